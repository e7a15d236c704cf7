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
use super::knob::{Knob, Quantity, Settings};

mod controller;
mod lines;
mod streams;

pub use controller::{Controller, ControllerParts};

/// What `array` takes.
pub const KNOBS: [Knob; 12] = [
    Knob {
        key: "stripe",
        what: "bytes on one member before the next one's turn",
        quantity: Quantity::Bytes,
        default: 256 << 10,
        least: SECTOR_BYTES,
        most: 1 << 30,
        source: "chosen: the usual default of controllers of the time",
    },
    Knob {
        key: "link",
        what: "link to the host, each way",
        quantity: Quantity::BytesPerSecond,
        default: 404_750_000,
        least: 1_000_000,
        most: 64_000_000_000,
        source: "fitted to table D: plateau of the sequential tables, 386 MiB/s: 4 Gbit Fibre Channel (400 MB/s nominal)",
    },
    Knob {
        key: "overhead",
        what: "controller's time for a request",
        quantity: Quantity::Time,
        default: 50_000,
        least: 0,
        most: 1_000_000_000,
        source: "fitted to table D: one reader of 64 KiB, direct, 279 MiB/s: 224 µs, of which 162 µs are the link",
    },
    Knob {
        key: "miss",
        what: "time that each read of the members keeps the controller's one processor",
        quantity: Quantity::Time,
        default: 940_000,
        least: 0,
        most: 1_000_000_000,
        source: "fitted to table D: 64 readers of 4 KiB at random saturate at 4,216 KiB/s, 1,054 a second",
    },
    Knob {
        key: "cache",
        what: "memory for what is read ahead; 0: none",
        quantity: Quantity::Bytes,
        default: 256 << 20,
        least: 0,
        most: 1 << 40,
        source: "chosen: a usual size of controllers of the time",
    },
    Knob {
        key: "readahead",
        what: "bytes read ahead of a sequential stream; 0: none",
        quantity: Quantity::Bytes,
        default: 4 << 20,
        least: 0,
        most: 1 << 30,
        source: "chosen: a stripe over the members, once ahead",
    },
    Knob {
        key: "readahead_all",
        what: "bytes read ahead of all streams together, in equal shares",
        quantity: Quantity::Bytes,
        default: 32 << 20,
        least: 0,
        most: 1 << 40,
        source: "fitted to table D: the sequential tables fall from 32 readers on, to two thirds at 64",
    },
    Knob {
        key: "readahead_after",
        what: "bytes that a stream must have read in sequence before",
        quantity: Quantity::Bytes,
        default: 256 << 10,
        least: 0,
        most: 1 << 40,
        source: "chosen: more than one record of 64 KiB, which is no stream",
    },
    Knob {
        key: "streams",
        what: "streams told apart at once",
        quantity: Quantity::Count,
        default: 256,
        least: 1,
        most: 4_096,
        source: "chosen: more than the published tables have readers",
    },
    Knob {
        key: "silent",
        what: "requests of all after which a stream that sent none has no share of `readahead_all`",
        quantity: Quantity::Count,
        default: 192,
        least: 1,
        most: 1 << 32,
        source: "chosen: three turns of 64 readers",
    },
    Knob {
        key: "write_cache",
        what: "battery-backed memory that answers writes; 0: none",
        quantity: Quantity::Bytes,
        default: 256 << 20,
        least: 0,
        most: 1 << 40,
        source: "chosen: a usual size of controllers of the time",
    },
    Knob {
        key: "depth",
        what: "requests at once",
        quantity: Quantity::Count,
        default: 256,
        least: 1,
        most: 65_535,
        source: "chosen: a Fibre Channel target's usual queue for one unit",
    },
];

/// Puts the controller that `settings`, read with [`KNOBS`], describe in front of `members`.
pub fn build(settings: &Settings, members: BoxedDevice) -> Controller {
    let sectors = |key| settings.of(key) / SECTOR_BYTES;
    let most = u64::from(members.caps().request_sectors_max);
    let parts = ControllerParts {
        overhead: Time(settings.of("overhead")),
        miss: Time(settings.of("miss")),
        link_bytes_per_second: Some(settings.of("link")),
        cache_bytes: settings.of("cache"),
        keeps_all: false,
        line_sectors: LINE_SECTORS.min(sectors("stripe")).min(most),
        readahead_sectors: sectors("readahead"),
        readahead_all_sectors: sectors("readahead_all"),
        readahead_after_sectors: sectors("readahead_after"),
        streams: settings.of("streams") as usize,
        silent_requests: settings.of("silent"),
        write_cache_bytes: settings.of("write_cache"),
        keeps_writes: settings.of("write_cache") > 0,
        depth_max: settings.of_u32("depth"),
    };
    Controller::new(members, parts)
}

/// Lines of 64 KiB: the records of the published tables, and small enough that
/// a stream's end wastes little.
const LINE_SECTORS: u64 = 128;
