//! Table B: swap-in readahead (2012).
//!
//! One process touches a mapping of 1000 MiB in 900 MiB of memory, with 1 GiB of
//! swap: five sweeps, or five million touches at random; private memory
//! (`Anon`), or shared (`Shmem`). Each touch writes: a load that only reads
//! would swap nothing out on its later sweeps, and the published sequential
//! times on the disk are those of a head that goes to and fro. What is given is
//! the time of the touches, without that of the first filling.
//!
//! The columns, each of the table's laws as it stood:
//! - `cluster`, the kernel until then;
//! - the rival by mapping: `vma` that makes no difference between devices, and
//!   leaves shared memory to `cluster`;
//! - the early detector, which always read one page too many: `hits,least=2`;
//! - the detector: `hits`;
//! - no readahead: `page_cluster` 0, with which all laws are one.
//!
//! Beside them stand two laws with `page_cluster` 4, and `adaptive`, which nobody published.
//!
//! The machine is one description for all cells of a device: the kernel's
//! scheduler of that year (`cfq`), reclaim that writes 32 pages at once
//! (`SWAP_CLUSTER_MAX`), the host's times from the published 64 µs of system
//! time a fault; a 7,200 rpm disk of those years; and a solid-state drive of
//! the class of 2009, as the published times ask for: half a millisecond for a
//! page in and a page out is three times what a drive of 2012 takes.
//!
//! What does not come out: the absolute times, which are a quarter (disk) to a
//! half (solid-state drive) of the published ones, so that both devices of the
//! source were slower than these. Of a block of 8 slots some are in memory, so that it is
//! read in 1.7 requests with holes between them. That the whole cluster costs a disk so
//! little more than one page rests on how a drive takes the second of them: it waits
//! a few sectors before the head, and is read on to without a move.
//! Pages driven out for the cluster's cost little: a load that only reads shows the same.
//! A 4 KiB read alone takes the solid-state drive 148 µs; the data sheet says 65.

use readpath_core::machine::SwapOut;

use super::{Experiment, ProgressCallback, ReproducedTable, TableRow, policy};
use crate::load::{
    LoadRow, LoadSetup, MemoryHost, MemoryLoad, MemorySharing, TouchPattern, simulate_load,
};
use crate::run::Watch;
use crate::simulate::SimulateError;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "B",
    title: "swap-in readahead: 1000 MiB touched in 900 MiB of memory (2012)",
    run,
};

/// The disk: the drive of table D.
const DISK: &str = "hdd,drive=sata2010";

/// The solid-state drive: see [`DRIVE_WORDS`].
const DRIVE: &str = "ssd,size=80g,link=270m,channels=10,dies_per_channel=2,page=4k,\
                     channel_rate=50m,read_lsb=50us,read_msb=50us,read_overhead=1us,\
                     command_interval=28us,program_lsb=300us,program_msb=1500us,buffer=2m";

const DISK_WORDS: &str = "one drive of 7,200 rpm (SATA, 2009)";

/// Link: SATA 3 Gb/s, less 8b/10b and frames. Channels, dies, and 35,000 reads a second: the
/// data sheet of an 80 GB drive of 2009 (Intel X25-M). Flash: 34 nm MLC, 50 µs to read and 900 µs
/// in the mean to program (Grupp et al., MICRO 2009), on ONFI 1.0's fastest bus.
const DRIVE_WORDS: &str = "a solid-state drive of 80 GB on SATA 3 Gb/s with 20 dies (2009)";

/// The pages that reclaim writes at once (`SWAP_CLUSTER_MAX`).
const WRITE_PAGES_MAX: u64 = 32;

/// The rows of each table: what is called what, and the law.
const POLICIES: [(&str, &str); 8] = [
    ("the whole cluster", "cluster"),
    ("by mapping", "vma,shared=cluster,rotating=vma,halving=0"),
    ("the early detector", "hits,least=2"),
    ("the detector", "hits"),
    ("no readahead (page_cluster 0)", "none"),
    ("the whole cluster, page_cluster 4", "cluster,page_cluster=4"),
    ("the detector, page_cluster 4", "hits,page_cluster=4"),
    ("ours", "adaptive"),
];

/// One table: where, how, whose, and the published times of the first five laws, in hundredths
/// of a second.
struct TableCell {
    title: &'static str,
    on_disk: bool,
    pattern: TouchPattern,
    share: MemorySharing,
    published: Option<[u32; 5]>,
}

const SWAP_TABLES: [TableCell; 8] = [
    TableCell {
        title: "HDD Seq Anon",
        on_disk: true,
        pattern: TouchPattern::Sequential,
        share: MemorySharing::Private,
        published: Some([73921, 76210, 75611, 76904, 121542]),
    },
    TableCell {
        title: "HDD Seq Shmem",
        on_disk: true,
        pattern: TouchPattern::Sequential,
        share: MemorySharing::Shared,
        published: None,
    },
    TableCell {
        title: "HDD Rand Anon",
        on_disk: true,
        pattern: TouchPattern::Random,
        share: MemorySharing::Private,
        published: Some([895_392, 831_243, 871_569, 845_197, 841_680]),
    },
    TableCell {
        title: "HDD Rand Shmem",
        on_disk: true,
        pattern: TouchPattern::Random,
        share: MemorySharing::Shared,
        published: None,
    },
    TableCell {
        title: "SSD Seq Anon",
        on_disk: false,
        pattern: TouchPattern::Sequential,
        share: MemorySharing::Private,
        published: Some([24634, 24198, 24673, 25107, 70018]),
    },
    TableCell {
        title: "SSD Seq Shmem",
        on_disk: false,
        pattern: TouchPattern::Sequential,
        share: MemorySharing::Shared,
        published: Some([24959, 24932, 25052, 25703, 69678]),
    },
    TableCell {
        title: "SSD Rand Anon",
        on_disk: false,
        pattern: TouchPattern::Random,
        share: MemorySharing::Private,
        published: Some([43014, 26146, 28075, 25989, 25901]),
    },
    TableCell {
        title: "SSD Rand Shmem",
        on_disk: false,
        pattern: TouchPattern::Random,
        share: MemorySharing::Shared,
        published: Some([45349, 45215, 28249, 24268, 24332]),
    },
];

fn run(
    seed: u64,
    shortened: u32,
    tell: &mut ProgressCallback<'_>,
) -> Result<Vec<ReproducedTable>, SimulateError> {
    SWAP_TABLES.iter().map(|cell| table(cell, seed, u64::from(shortened), tell)).collect()
}

fn table(
    cell: &TableCell,
    seed: u64,
    shortened: u64,
    tell: &mut ProgressCallback<'_>,
) -> Result<ReproducedTable, SimulateError> {
    let load = load(cell, shortened);
    let (device, words) = if cell.on_disk { (DISK, DISK_WORDS) } else { (DRIVE, DRIVE_WORDS) };
    let mut rows: Vec<TableRow> = Vec::new();
    for (nth, (label, swapin)) in POLICIES.into_iter().enumerate() {
        let setup = LoadSetup {
            device: policy(device),
            swapin: policy(swapin),
            scheduler: policy("cfq"),
            eviction: policy("two-lists"),
            write_pages_max: Some(WRITE_PAGES_MAX),
            swap_out: SwapOut::Oldest,
            seed,
            host: MemoryHost::OF_2012,
        };
        let row = simulate_load(&load, &setup, Watch::progress(tell))?;
        let published = cell.published.and_then(|times| times.get(nth).copied());
        rows.push(comparison(label, swapin, published, &row, &rows));
    }
    Ok(ReproducedTable {
        table: EXPERIMENT.name.to_owned(),
        title: cell.title.to_owned(),
        machine: format!("{words}, cfq, a host of 64 µs of system time a fault"),
        unit: "seconds".to_owned(),
        rows,
        grid: None,
    })
}

/// What is touched; shortened in all sizes alike, so that as much of it is missing.
fn load(cell: &TableCell, shortened: u64) -> MemoryLoad {
    let mib = |size: u64| (size / shortened).max(size / 100) << 20;
    let mapping_bytes = mib(1000);
    let sweeps = 5 * mapping_bytes / 4096;
    MemoryLoad {
        swap_bytes: mib(1024).max(mapping_bytes),
        pattern: cell.pattern,
        touches: match cell.pattern {
            TouchPattern::Sequential => sweeps,
            TouchPattern::Random | TouchPattern::Zipf | TouchPattern::Swept => {
                5_000_000 / shortened
            }
        },
        writes_percent: 100,
        share: cell.share,
        ..MemoryLoad::new(cell.title, mapping_bytes, mib(900))
    }
}

fn comparison(
    label: &str,
    swapin: &str,
    published: Option<u32>,
    row: &LoadRow,
    before: &[TableRow],
) -> TableRow {
    let published = published.map(|hundredths| f64::from(hundredths) / 100.0);
    let modelled = row.seconds.expect("a modelled load is measured");
    let first = before.first();
    let published_first = first.map_or(published, |first| first.published);
    TableRow {
        label: label.to_owned(),
        policies: swapin.to_owned(),
        published,
        published_ratio: published.zip(published_first).map(|(this, first)| this / first),
        modelled,
        modelled_ratio: modelled / first.map_or(modelled, |first| first.modelled),
        device_requests: row.device_requests,
        device_request_kib_mean: row.device_request_kib_mean,
        pages_in: row.pages_in,
        pages_out: row.pages_out,
    }
}
