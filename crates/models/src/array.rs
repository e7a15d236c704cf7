//! A disk array behind a controller: striped members and one link to the host.
//!
//! It differs from the same number of independent disks. All bytes cross one link, and every
//! request costs controller time. A single sequential reader is fast because of the controller's
//! read-ahead, and many readers share the memory for it.
//!
//! The defaults describe the 12-disk array of the tables published in 2010, in a thread on the seek
//! detection of the CFQ scheduler. One set of values covers all tables:
//!
//! - The link is the plateau of the sequential tables.
//! - The controller processes one cache miss at a time. The random table shows this: it saturates
//!   at about 1,000 small reads per second for any number of readers.
//! - Streams share the read-ahead memory. The sequential tables show this as a decline from 32
//!   readers on.

use readpath_core::unit::{SECTOR_BYTES, Time};

use super::BoxedDevice;
use super::parameter_spec::{ParameterQuantity, ParameterSpec, ParameterValues};

mod controller;
mod lines;
mod streams;
mod write_cache;

pub use controller::{Controller, ControllerParts};

/// Parameters of `array`.
pub const PARAMETERS: [ParameterSpec; 13] = [
    ParameterSpec {
        key: "stripe",
        description: "bytes on one member before the next one's turn",
        quantity: ParameterQuantity::Bytes,
        default: 256 << 10,
        least: SECTOR_BYTES,
        most: 1 << 30,
        source: "chosen: the usual default of controllers of the time",
    },
    ParameterSpec {
        key: "link",
        description: "link to the host, each way",
        quantity: ParameterQuantity::BytesPerSecond,
        default: 404_750_000,
        least: 1_000_000,
        most: 64_000_000_000,
        source: "fitted to table D: plateau of the sequential tables, 386 MiB/s: 4 Gbit Fibre Channel (400 MB/s nominal)",
    },
    ParameterSpec {
        key: "overhead",
        description: "controller's time for a request",
        quantity: ParameterQuantity::Time,
        default: 50_000,
        least: 0,
        most: 1_000_000_000,
        source: "fitted to table D: one reader of 64 KiB, direct, 279 MiB/s: 224 µs, of which 162 µs are the link",
    },
    ParameterSpec {
        key: "miss",
        description: "time that each read of the members keeps the controller's one processor, if any rotates",
        quantity: ParameterQuantity::Time,
        default: 940_000,
        least: 0,
        most: 1_000_000_000,
        source: "fitted to table D: 64 readers of 4 KiB at random saturate at 4,216 KiB/s, 1,054 a second",
    },
    ParameterSpec {
        key: "miss_solid",
        description: "the same where no member rotates, unless `miss` is given",
        quantity: ParameterQuantity::Time,
        default: 10_000,
        least: 0,
        most: 1_000_000_000,
        source: "chosen: controllers for solid-state drives are sold by the hundred thousand requests a second",
    },
    ParameterSpec {
        key: "cache",
        description: "memory for what is read ahead; 0: none",
        quantity: ParameterQuantity::Bytes,
        default: 256 << 20,
        least: 0,
        most: 1 << 40,
        source: "chosen: a usual size of controllers of the time",
    },
    ParameterSpec {
        key: "readahead",
        description: "bytes read ahead of a sequential stream; 0: none",
        quantity: ParameterQuantity::Bytes,
        default: 4 << 20,
        least: 0,
        most: 1 << 30,
        source: "chosen: a stripe over the members, once ahead",
    },
    ParameterSpec {
        key: "readahead_all",
        description: "bytes read ahead of all streams together, in equal shares",
        quantity: ParameterQuantity::Bytes,
        default: 32 << 20,
        least: 0,
        most: 1 << 40,
        source: "fitted to table D: the sequential tables fall from 32 readers on, to two thirds at 64",
    },
    ParameterSpec {
        key: "readahead_after",
        description: "bytes that a stream must have read in sequence before",
        quantity: ParameterQuantity::Bytes,
        default: 256 << 10,
        least: 0,
        most: 1 << 40,
        source: "chosen: more than one record of 64 KiB, which is no stream",
    },
    ParameterSpec {
        key: "streams",
        description: "number of streams that are distinguished",
        quantity: ParameterQuantity::Count,
        default: 256,
        least: 1,
        most: 4_096,
        source: "chosen: more than the published tables have readers",
    },
    ParameterSpec {
        key: "silent",
        description: "requests of all after which a stream that sent none has no share of `readahead_all`",
        quantity: ParameterQuantity::Count,
        default: 192,
        least: 1,
        most: 1 << 32,
        source: "chosen: three turns of 64 readers",
    },
    ParameterSpec {
        key: "write_cache",
        description: "battery-backed memory that answers writes; 0: none",
        quantity: ParameterQuantity::Bytes,
        default: 256 << 20,
        least: 0,
        most: 1 << 40,
        source: "chosen: a usual size of controllers of the time",
    },
    ParameterSpec {
        key: "depth",
        description: "requests at once",
        quantity: ParameterQuantity::Count,
        default: 256,
        least: 1,
        most: 65_535,
        source: "chosen: a Fibre Channel target's usual queue for one unit",
    },
];

/// Creates a controller in front of `members`: the array's disks, already striped as one device.
/// `settings` has been read with [`PARAMETERS`], so its values are in bytes and ns.
pub fn build(settings: &ParameterValues, members: BoxedDevice) -> Controller {
    let sectors = |key| settings.of(key) / SECTOR_BYTES;
    let request_sectors_max = u64::from(members.caps().request_sectors_max);
    // The cost per miss was fitted to disks and is no estimate for other members.
    let uses_disk_miss = members.caps().is_rotational || settings.is_given("miss");
    let miss_key = if uses_disk_miss { "miss" } else { "miss_solid" };
    let parts = ControllerParts {
        overhead: Time(settings.of("overhead")),
        miss: Time(settings.of(miss_key)),
        link_bytes_per_second: Some(settings.of("link")),
        cache_bytes: settings.of("cache"),
        caches_all_reads: false,
        // The read of a line must fit one request, and should occupy one member.
        line_sectors: LINE_SECTORS.min(sectors("stripe")).min(request_sectors_max),
        readahead_sectors: sectors("readahead"),
        readahead_all_sectors: sectors("readahead_all"),
        readahead_after_sectors: sectors("readahead_after"),
        streams: settings.of("streams") as usize,
        inactive_after_requests: settings.of("silent"),
        write_cache_bytes: settings.of("write_cache"),
        // The memory is battery-backed. Without it the members have to flush.
        write_cache_survives_power_loss: settings.of("write_cache") > 0,
        depth_max: settings.get_u32("depth"),
    };
    Controller::new(members, parts)
}

/// The array of the tables published in 2010, for comparison with these tables and between
/// policies. The drives are of that year. Link and overhead follow from the published sequential
/// tables (64 KiB in 224 µs, 386 MiB/s at most).
///
/// - A near page takes 1.1 ms. This leaves 7 ms of a record's published 23 ms for the far page. The
///   controller's single processor takes 0.5 ms of the 1.1 ms. The rest is the path to the drive
///   and back, which the twelve drives overlap. If the processor took all of it, no load could
///   exceed 4.2 MB/s. The tables show that rate for 64 processes under the old detection, although
///   one process at a time is served for most of each record.
/// - A stream is read ahead by 16 MiB, so two streams reach the link's rate although each switch
///   costs a seek. The 256 MiB memory makes the shares of 64 streams too small. A stream keeps its
///   share during the time slices of other streams.
pub const TWELVE_DISKS: &str = "array:12xhdd,hdd.drive=sata2010,hdd.overhead.read_hit_ms=0.54,\
    hdd.overhead.read_miss_ms=0.64,miss=500us,overhead=60us,cache=256m,readahead=16m,\
    readahead_all=224m,silent=65536";

/// Cache line size: 64 KiB, in sectors. This is the record size of the published tables and small
/// enough that the end of a stream wastes little.
const LINE_SECTORS: u64 = 128;
