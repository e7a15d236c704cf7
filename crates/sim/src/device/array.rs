//! An array behind a controller: members side by side, one link to the host.
//!
//! It is not so many free spindles. All its bytes cross one link, every
//! request costs the controller time, and what makes one sequential reader
//! fast, the controller's read-ahead, is a memory that many readers share.
//!
//! The defaults describe the 12-disk array of the published 2010 tables (a
//! thread on the CFQ scheduler's seek detection): one description for all of
//! them. Its link shows as the plateau of the sequential tables. That a
//! controller works on one miss at a time shows in the random table, which
//! saturates at about a thousand small reads a second however many readers
//! there are; and that its streams share what is read ahead, in the fall from
//! 32 sequential readers on.

use readpath_core::unit::{SECTOR_BYTES, Time};

use super::BoxedDevice;
use super::parameter_spec::{ParameterQuantity, ParameterSpec, ParameterValues};

mod controller;
mod lines;
mod streams;

pub use controller::{Controller, ControllerParts};

/// What `array` takes.
pub const PARAMETERS: [ParameterSpec; 13] = [
    ParameterSpec {
        key: "stripe",
        what: "bytes on one member before the next one's turn",
        quantity: ParameterQuantity::Bytes,
        default: 256 << 10,
        least: SECTOR_BYTES,
        most: 1 << 30,
        source: "chosen: the usual default of controllers of the time",
    },
    ParameterSpec {
        key: "link",
        what: "link to the host, each way",
        quantity: ParameterQuantity::BytesPerSecond,
        default: 404_750_000,
        least: 1_000_000,
        most: 64_000_000_000,
        source: "fitted to table D: plateau of the sequential tables, 386 MiB/s: 4 Gbit Fibre Channel (400 MB/s nominal)",
    },
    ParameterSpec {
        key: "overhead",
        what: "controller's time for a request",
        quantity: ParameterQuantity::Time,
        default: 50_000,
        least: 0,
        most: 1_000_000_000,
        source: "fitted to table D: one reader of 64 KiB, direct, 279 MiB/s: 224 µs, of which 162 µs are the link",
    },
    ParameterSpec {
        key: "miss",
        what: "time that each read of the members keeps the controller's one processor, if any rotates",
        quantity: ParameterQuantity::Time,
        default: 940_000,
        least: 0,
        most: 1_000_000_000,
        source: "fitted to table D: 64 readers of 4 KiB at random saturate at 4,216 KiB/s, 1,054 a second",
    },
    ParameterSpec {
        key: "miss_solid",
        what: "the same where no member rotates, unless `miss` is given",
        quantity: ParameterQuantity::Time,
        default: 10_000,
        least: 0,
        most: 1_000_000_000,
        source: "chosen: controllers for solid-state drives are sold by the hundred thousand requests a second",
    },
    ParameterSpec {
        key: "cache",
        what: "memory for what is read ahead; 0: none",
        quantity: ParameterQuantity::Bytes,
        default: 256 << 20,
        least: 0,
        most: 1 << 40,
        source: "chosen: a usual size of controllers of the time",
    },
    ParameterSpec {
        key: "readahead",
        what: "bytes read ahead of a sequential stream; 0: none",
        quantity: ParameterQuantity::Bytes,
        default: 4 << 20,
        least: 0,
        most: 1 << 30,
        source: "chosen: a stripe over the members, once ahead",
    },
    ParameterSpec {
        key: "readahead_all",
        what: "bytes read ahead of all streams together, in equal shares",
        quantity: ParameterQuantity::Bytes,
        default: 32 << 20,
        least: 0,
        most: 1 << 40,
        source: "fitted to table D: the sequential tables fall from 32 readers on, to two thirds at 64",
    },
    ParameterSpec {
        key: "readahead_after",
        what: "bytes that a stream must have read in sequence before",
        quantity: ParameterQuantity::Bytes,
        default: 256 << 10,
        least: 0,
        most: 1 << 40,
        source: "chosen: more than one record of 64 KiB, which is no stream",
    },
    ParameterSpec {
        key: "streams",
        what: "streams told apart at once",
        quantity: ParameterQuantity::Count,
        default: 256,
        least: 1,
        most: 4_096,
        source: "chosen: more than the published tables have readers",
    },
    ParameterSpec {
        key: "silent",
        what: "requests of all after which a stream that sent none has no share of `readahead_all`",
        quantity: ParameterQuantity::Count,
        default: 192,
        least: 1,
        most: 1 << 32,
        source: "chosen: three turns of 64 readers",
    },
    ParameterSpec {
        key: "write_cache",
        what: "battery-backed memory that answers writes; 0: none",
        quantity: ParameterQuantity::Bytes,
        default: 256 << 20,
        least: 0,
        most: 1 << 40,
        source: "chosen: a usual size of controllers of the time",
    },
    ParameterSpec {
        key: "depth",
        what: "requests at once",
        quantity: ParameterQuantity::Count,
        default: 256,
        least: 1,
        most: 65_535,
        source: "chosen: a Fibre Channel target's usual queue for one unit",
    },
];

/// Puts the controller that `settings`, read with [`PARAMETERS`], describe in front of `members`.
pub fn build(settings: &ParameterValues, members: BoxedDevice) -> Controller {
    let sectors = |key| settings.of(key) / SECTOR_BYTES;
    let most = u64::from(members.caps().request_sectors_max);
    // What reads of disks cost the controller of the tables says nothing of other members.
    let is_for_disks = members.caps().is_rotational || settings.is_given("miss");
    let miss = if is_for_disks { "miss" } else { "miss_solid" };
    let parts = ControllerParts {
        overhead: Time(settings.of("overhead")),
        miss: Time(settings.of(miss)),
        link_bytes_per_second: Some(settings.of("link")),
        cache_bytes: settings.of("cache"),
        caches_all_reads: false,
        line_sectors: LINE_SECTORS.min(sectors("stripe")).min(most),
        readahead_sectors: sectors("readahead"),
        readahead_all_sectors: sectors("readahead_all"),
        readahead_after_sectors: sectors("readahead_after"),
        streams: settings.of("streams") as usize,
        inactive_after_requests: settings.of("silent"),
        write_cache_bytes: settings.of("write_cache"),
        write_cache_survives_power_loss: settings.of("write_cache") > 0,
        depth_max: settings.get_u32("depth"),
    };
    Controller::new(members, parts)
}

/// The array of the published tables of 2010, for whoever compares with it or holds laws
/// against each other on it: the drives are of that year; link and overhead follow from the
/// published sequential tables (64 KiB in 224 µs, 386 MiB/s at most).
///
/// - A near page takes 1.1 ms, which leaves 7 ms of a record's published 23 ms to
///   the far one. Half a millisecond of it keeps the controller's one processor
///   busy, the rest is the way to the drive and back, which twelve of them have at
///   once: with all of it in the processor nothing could exceed 4.2 MB/s, which 64
///   processes reach under the old detection though it serves one at a time for
///   most of each record.
/// - 16 MiB of a stream are read ahead, so that two of them reach the link's rate
///   though each turn costs a seek, in a memory of 256 MiB, where the shares of 64
///   become too small. A stream keeps its share while others have their slices.
pub const TWELVE_DISKS: &str = "array:12xhdd,hdd.drive=sata2010,hdd.overhead.read_hit_ms=0.54,\
    hdd.overhead.read_miss_ms=0.64,miss=500us,overhead=60us,cache=256m,readahead=16m,\
    readahead_all=224m,silent=65536";

/// Lines of 64 KiB: the records of the published tables, and small enough that
/// a stream's end wastes little.
const LINE_SECTORS: u64 = 128;
