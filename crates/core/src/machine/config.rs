//! Configuration of a machine.

use crate::policy::Spec;
use crate::readahead::ReadaheadLimits;
use crate::request::DeviceCaps;

/// Configuration of a machine: one read path over one device.
#[derive(Clone, Debug)]
pub struct Config {
    /// Properties of the device.
    pub caps: DeviceCaps,
    /// Memory for the cache, in bytes; rounded down to whole pages, at least one. Default 256 MiB.
    /// Each page costs up to 104 bytes of bookkeeping. The simulations of the eviction policy
    /// `adaptive` take at least 310 KiB with 4 MiB of memory or more.
    pub memory_bytes: u64,
    /// The readahead policy of each opened file. Default `ondemand`.
    pub readahead: Spec,
    /// The [eviction policy](crate::eviction). Default `adaptive`.
    pub eviction: Spec,
    /// Limits of the device for the readahead policy.
    pub limits: ReadaheadLimits,
    /// The scheduler between all readers and the device. Default `noop`.
    pub scheduler: Spec,
    /// True if the scheduler merges neighbours (the inverse of the kernel's `queue/nomerges`).
    /// Default true; false shows the requests of the policies alone.
    pub merges: bool,
    /// The chunking policy for transfers that bypass the cache, for callers that drive them chunk
    /// by chunk ([`Machine::chunking_policy`](super::Machine::chunking_policy)). Default `ring`.
    pub chunking: Spec,
    /// Size of the queue in requests (the kernel's `queue/nr_requests`; default 128). The queue
    /// counts as congested if more than seven eighths of that number are queued or in the device.
    /// The readahead policies of 2003 then stop reading ahead.
    pub queue_requests: u32,
    /// Limit of requests in the device at once; the device's own limit applies too. Default: that
    /// limit.
    pub depth_max: u32,
    /// Largest memory after later changes ([`Machine::resize`](super::Machine::resize)), in bytes;
    /// rounded down to whole pages. A value below `memory_bytes`, such as the default 0, means
    /// `memory_bytes`.
    pub memory_bytes_max: u64,
    /// True if evicted pages that return are counted, in a memory that may change
    /// ([`Machine::returned_bytes`](super::Machine::returned_bytes)). The configured eviction
    /// policy then applies only after many have returned. Costs 4 MiB. Default true.
    pub counts_returned_pages: bool,
    /// Largest memory that readahead policies assume, in bytes. Default: all.
    pub policy_memory_bytes_max: u64,
    /// Memory that readers outside the machine may pin for longer than a copy
    /// ([`share_through`](super::Machine::share_through)), in bytes; rounded down to whole pages.
    /// Reads have the rest to themselves. Default 0.
    pub pinned_bytes_max: u64,
    /// Most open reads and writes together, including waiting ones. Open faults on memory have a
    /// limit of their own, of the same number. Default 65,536.
    pub open_reads_max: u32,
    /// True if the costs of requests are learned even if no policy asks for them. Default true.
    /// False saves time for a caller that doesn't use
    /// [`Machine::readahead_state`](super::Machine::readahead_state). With policies that ignore the
    /// costs, that function then returns the costs assumed before any request.
    pub learns_unused_costs: bool,
}

impl Config {
    /// The defaults for a device with these properties.
    pub fn new(caps: DeviceCaps) -> Config {
        Config {
            caps,
            memory_bytes: 256 << 20,
            readahead: Spec::plain("ondemand"),
            eviction: Spec::plain("adaptive"),
            limits: ReadaheadLimits::default(),
            scheduler: Spec::plain("noop"),
            merges: true,
            chunking: Spec::plain("ring"),
            queue_requests: 128,
            depth_max: caps.depth_max,
            memory_bytes_max: 0,
            counts_returned_pages: true,
            policy_memory_bytes_max: u64::MAX,
            pinned_bytes_max: 0,
            open_reads_max: 65_536,
            learns_unused_costs: true,
        }
    }
}
