//! Table B: swap-in readahead (2012).
//!
//! One process touches a mapping of 1000 MiB in 900 MiB of memory, with 1 GiB of swap. The load is
//! five sweeps or five million random touches, of private memory (`Anon`) or shared memory
//! (`Shmem`). Each touch writes. A load that only reads would swap nothing out on later sweeps, and
//! the published sequential times on the disk show a head that moves back and forth. The result is
//! the time of the touches without the initial filling.
//!
//! The policies of the table, as they were at the time:
//!
//! - `cluster`, the kernel until then;
//! - readahead by mapping: `vma`, without distinction between devices, with `cluster` for shared
//!   memory;
//! - the early detector, which always read one page too many: `hits,least=2`;
//! - the detector: `hits`;
//! - no readahead: `page_cluster` 0, with which all policies are equal.
//!
//! Two policies with `page_cluster` 4, and `adaptive`, have no published values.
//!
//! The machine has one description per device: the kernel's scheduler of that year (`cfq`), and
//! eviction that writes 32 pages at once (`SWAP_CLUSTER_MAX`). The host's times follow from the
//! published 64 µs of system time per fault. The devices are a 7,200 rpm disk of those years and a
//! solid-state drive of the class of 2009. The published times require such an old drive: half a
//! millisecond for a page in and a page out is three times the value of a drive of 2012.
//!
//! The absolute times are not reproduced. They are a quarter (disk) to a half (solid-state drive)
//! of the published ones, so both devices of the source were slower. Some slots of a block of 8 are
//! in memory, so a block is read in 1.7 requests with gaps between them. For a disk, the whole
//! cluster costs little more than one page. This depends on how a drive handles the second request:
//! it is a few sectors ahead of the head, and the head reaches it without a seek. Pages evicted for
//! the cluster's pages cost little: a load that only reads shows the same. A single 4 KiB read
//! takes 148 µs on the solid-state drive, and 65 µs in the data sheet.

use readpath_core::machine::SwapOut;

use super::{Experiment, ProgressCallback, ReproducedTable, TableRow, spec_of};
use readpath_sim::load::{
    LoadRow, LoadSetup, MemoryHost, MemoryLoad, MemorySharing, TouchPattern, simulate_load,
};
use readpath_sim::run::RunObserver;
use readpath_sim::simulate::SimulateError;

/// The experiment in the list of all.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "B",
    title: "swap-in readahead: 1000 MiB touched in 900 MiB of memory (2012)",
    run,
};

/// The disk, the same as in table D.
const DISK: &str = "hdd,drive=sata2010";

/// The solid-state drive, see [`DRIVE_WORDS`].
const DRIVE: &str = "ssd,size=80g,link=270m,channels=10,dies_per_channel=2,page=4k,\
                     channel_rate=50m,read_lsb=50us,read_msb=50us,read_overhead=1us,\
                     command_interval=28us,program_lsb=300us,program_msb=1500us,buffer=2m";

/// Description of the disk.
const DISK_WORDS: &str = "one drive of 7,200 rpm (SATA, 2009)";

/// Description of the solid-state drive. Link: SATA 3 Gb/s minus 8b/10b and frames. Channels, dies,
/// and 35,000 reads per second: data sheet of an 80 GB drive of 2009 (Intel X25-M). Flash: 34 nm
/// MLC with 50 µs per read and 900 µs mean per program (Grupp et al., MICRO 2009), on ONFI 1.0's
/// fastest bus.
const DRIVE_WORDS: &str = "a solid-state drive of 80 GB on SATA 3 Gb/s with 20 dies (2009)";

/// Number of pages that eviction writes at once (`SWAP_CLUSTER_MAX`).
const WRITE_PAGES_MAX: u64 = 32;

/// Rows of each table: label and swap-in policy.
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

/// One table: device, pattern, type of memory, and the published times of the first five policies
/// in hundredths of a second.
struct TableCell {
    /// Device, pattern and type of memory.
    title: &'static str,
    /// True for the disk, false for the solid-state drive.
    is_on_disk: bool,
    /// Order of the touches.
    pattern: TouchPattern,
    /// Private memory (`Anon`) or shared memory (`Shmem`).
    share: MemorySharing,
    /// Times of the first five of [`POLICIES`]. `None` for a table that the source omits.
    published_hundredths: Option<[u32; 5]>,
}

/// The tables, in the order of the output.
const SWAP_TABLES: [TableCell; 8] = [
    TableCell {
        title: "HDD Seq Anon",
        is_on_disk: true,
        pattern: TouchPattern::Sequential,
        share: MemorySharing::Private,
        published_hundredths: Some([73921, 76210, 75611, 76904, 121542]),
    },
    TableCell {
        title: "HDD Seq Shmem",
        is_on_disk: true,
        pattern: TouchPattern::Sequential,
        share: MemorySharing::Shared,
        published_hundredths: None,
    },
    TableCell {
        title: "HDD Rand Anon",
        is_on_disk: true,
        pattern: TouchPattern::Random,
        share: MemorySharing::Private,
        published_hundredths: Some([895_392, 831_243, 871_569, 845_197, 841_680]),
    },
    TableCell {
        title: "HDD Rand Shmem",
        is_on_disk: true,
        pattern: TouchPattern::Random,
        share: MemorySharing::Shared,
        published_hundredths: None,
    },
    TableCell {
        title: "SSD Seq Anon",
        is_on_disk: false,
        pattern: TouchPattern::Sequential,
        share: MemorySharing::Private,
        published_hundredths: Some([24634, 24198, 24673, 25107, 70018]),
    },
    TableCell {
        title: "SSD Seq Shmem",
        is_on_disk: false,
        pattern: TouchPattern::Sequential,
        share: MemorySharing::Shared,
        published_hundredths: Some([24959, 24932, 25052, 25703, 69678]),
    },
    TableCell {
        title: "SSD Rand Anon",
        is_on_disk: false,
        pattern: TouchPattern::Random,
        share: MemorySharing::Private,
        published_hundredths: Some([43014, 26146, 28075, 25989, 25901]),
    },
    TableCell {
        title: "SSD Rand Shmem",
        is_on_disk: false,
        pattern: TouchPattern::Random,
        share: MemorySharing::Shared,
        published_hundredths: Some([45349, 45215, 28249, 24268, 24332]),
    },
];

/// Simulates all tables. `divisor` shortens the work.
fn run(
    seed: u64,
    divisor: u32,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<Vec<ReproducedTable>, SimulateError> {
    SWAP_TABLES.iter().map(|cell| table(cell, seed, u64::from(divisor), on_progress)).collect()
}

/// Simulates one table: the seconds of a load on memory with each swap-in policy. `divisor`
/// shortens the work.
fn table(
    cell: &TableCell,
    seed: u64,
    divisor: u64,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<ReproducedTable, SimulateError> {
    let load = memory_load(cell, divisor);
    let (device, machine_text) = match cell.is_on_disk {
        true => (DISK, DISK_WORDS),
        false => (DRIVE, DRIVE_WORDS),
    };
    let mut rows: Vec<TableRow> = Vec::new();
    for (index, (label, swapin)) in POLICIES.into_iter().enumerate() {
        let setup = LoadSetup {
            device: spec_of(device),
            swapin: spec_of(swapin),
            scheduler: spec_of("cfq"),
            eviction: spec_of("two-lists"),
            write_pages_max: Some(WRITE_PAGES_MAX),
            // Pages leave memory in the order of their age, as in the kernel.
            swap_out: SwapOut::Oldest,
            seed,
            // Processor times of a fault and of a touch on the machine of the source.
            host: MemoryHost::OF_2012,
        };
        let row = simulate_load(&load, &setup, RunObserver::progress(on_progress))?;
        let published_hundredths =
            cell.published_hundredths.and_then(|times| times.get(index).copied());
        rows.push(table_row(label, swapin, published_hundredths, &row, &rows));
    }
    Ok(ReproducedTable {
        table: EXPERIMENT.name.to_owned(),
        title: cell.title.to_owned(),
        machine: format!("{machine_text}, cfq, a host of 64 µs of system time a fault"),
        unit: "seconds".to_owned(),
        rows,
        grid: None,
    })
}

/// Returns the memory load of a table. `divisor` reduces all sizes alike, so the part that does not
/// fit stays the same.
fn memory_load(cell: &TableCell, divisor: u64) -> MemoryLoad {
    // At least a hundredth of each size is kept. The shift converts MiB to bytes.
    let bytes_of_mib = |mib: u64| (mib / divisor).max(mib / 100) << 20;
    let mapping_bytes = bytes_of_mib(1000);
    // Five sweeps over pages of 4 KiB.
    let touches_of_sweeps = 5 * mapping_bytes / 4096;
    MemoryLoad {
        // At least the size of the mapping, so that every page has a slot.
        swap_bytes: bytes_of_mib(1024).max(mapping_bytes),
        pattern: cell.pattern,
        touches: match cell.pattern {
            TouchPattern::Sequential => touches_of_sweeps,
            // No table has `Zipf` or `Swept`.
            TouchPattern::Random | TouchPattern::Zipf | TouchPattern::Swept => 5_000_000 / divisor,
        },
        writes_percent: 100,
        share: cell.share,
        ..MemoryLoad::new(cell.title, mapping_bytes, bytes_of_mib(900))
    }
}

/// Builds one row of a table. Its ratios are relative to the first of `previous_rows`, or to itself
/// if it is the first row. `published_hundredths` is in hundredths of a second.
fn table_row(
    label: &str,
    swapin: &str,
    published_hundredths: Option<u32>,
    row: &LoadRow,
    previous_rows: &[TableRow],
) -> TableRow {
    let published = published_hundredths.map(|hundredths| f64::from(hundredths) / 100.0);
    let modelled = row.seconds.expect("a modelled load is measured");
    let first = previous_rows.first();
    let published_first = first.map_or(published, |first| first.published);
    TableRow {
        label: label.to_owned(),
        policies: swapin.to_owned(),
        published,
        published_ratio: published.zip(published_first).map(|(own, first)| own / first),
        modelled,
        modelled_ratio: modelled / first.map_or(modelled, |first| first.modelled),
        device_requests: row.device_requests,
        device_request_kib_mean: row.device_request_kib_mean,
        pages_in: row.pages_in,
        pages_out: row.pages_out,
    }
}
