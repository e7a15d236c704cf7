//! What a read path is built from.

use crate::policy::Spec;
use crate::readahead::ReadaheadLimits;
use crate::request::DeviceCaps;

/// How a read path is built.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the device can do.
    pub caps: DeviceCaps,
    /// Memory for the cache, in bytes; rounded down to whole pages, at least
    /// one. Default 256 MiB. More memory costs up to 104 bytes of bookkeeping a page; the
    /// simulations of the reclaim law `adaptive` take 310 KiB at least, of 4 MiB and more.
    pub memory_bytes: u64,
    /// The readahead law of each file that is opened. Default `ondemand`.
    pub readahead: Spec,
    /// What stays in memory ([`eviction`](crate::eviction)). Default `adaptive`.
    pub eviction: Spec,
    /// What the readahead law may know of the device.
    pub limits: ReadaheadLimits,
    /// The scheduler between all readers and the device. Default `noop`.
    pub scheduler: Spec,
    /// Whether the scheduler merges neighbours (the kernel's `queue/nomerges`
    /// turned round). Default yes; no shows what the laws alone make.
    pub merges: bool,
    /// How large transfers past the cache are cut, for those who drive them
    /// chunk by chunk ([`Machine::raw_policy`](super::Machine::raw_policy)). Default `ring`.
    pub raw: Spec,
    /// How many requests the queue is made for (the kernel's
    /// `queue/nr_requests`; default 128). Once seven eighths of them and one
    /// more are queued or in the device, laws are told that the queue is
    /// congested: those of 2003 then stop reading ahead.
    pub queue_requests: u32,
    /// The most requests in the device at once; bounded by what the device
    /// takes. Default: what the device takes.
    pub depth_max: u32,
    /// How much memory there may come to be ([`Machine::resize`](super::Machine::resize)), in bytes; rounded down to
    /// whole pages. Less than `memory_bytes` stands for that, and so does the default, 0.
    pub memory_bytes_max: u64,
    /// The most memory that readahead laws count on, in bytes, however much there is. Default: all.
    pub policy_memory_bytes_max: u64,
    /// How much of the memory the world may lend for longer than a copy takes,
    /// past the machine ([`lend_through`](super::Machine::lend_through)), in bytes; rounded down to whole
    /// pages. Reads have the rest to themselves. Default 0.
    pub pinned_bytes_max: u64,
    /// The most reads that may be open at once, waiting ones included. Default 65,536.
    pub open_reads_max: u32,
}

impl Config {
    /// The defaults over a device with these abilities.
    pub fn new(caps: DeviceCaps) -> Config {
        Config {
            caps,
            memory_bytes: 256 << 20,
            readahead: Spec::plain("ondemand"),
            eviction: Spec::plain("adaptive"),
            limits: ReadaheadLimits::default(),
            scheduler: Spec::plain("noop"),
            merges: true,
            raw: Spec::plain("ring"),
            queue_requests: 128,
            depth_max: caps.depth_max,
            memory_bytes_max: 0,
            policy_memory_bytes_max: u64::MAX,
            pinned_bytes_max: 0,
            open_reads_max: 65_536,
        }
    }
}
