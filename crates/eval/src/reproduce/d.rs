//! Table D: seek detection and idling, on an array and on one spindle (2010).
//!
//! Each process reads a file of its own. One load is random 64 KiB records through a mapping, which
//! become consecutive 4 KiB requests: 15 near ones and a far one. The other loads read 64 KiB in
//! sequence, direct and cached. The rows are CFQ with detection by the mean distance, CFQ with
//! detection by the last 32 requests, the latter without `low_latency` and without idling, and
//! `deadline`.
//!
//! The machine has one description for all cells: twelve 7,200 rpm drives in RAID-0 behind a
//! controller. Each file lies at the start of an equal part of the volume, in shuffled order. With
//! adjacent files at the volume's edge the arms would hardly move between them, and the new
//! detection, which serves one process at a time, would not decline. It declines because a drive's
//! arm is in another file when a record's first page is read. `deadline` also loses the benefit of
//! idling here: when two processes meet on one of the twelve drives, each page of both records
//! costs a seek.
//!
//! Not reproduced are:
//!
//! - the last decline of the new detection (1,672 at 64 processes, 2,100 here);
//! - the old detection at 2 and 4 processes (a tenth more here);
//! - cached sequential reads under CFQ. In the source they lost an eighth with the second process,
//!   here they lose nothing before the sixteenth. A time slice of 100 ms cost 12 ms more than with
//!   direct reads there. The controller's memory, which makes slices cheap, is the same for both.
//!   CFQ's slices are equal too, with a quantum of 4 and of 8.
//!
//! Each process reads for a fixed virtual time, not to the end of its file. A third of that time is
//! less than two slices for each of 64 processes, and the first slices are slow. Direct reads of 32
//! and 64 processes then have 136 and 43 MiB/s. At the full length they have 198 and 80, at three
//! times the length 214 and 88 (published: 214 and 99).
//!
//! The second half of the experiment repeats this on a single one of those drives, where idling
//! wins. It has no published values.

use super::{Experiment, Grid, GridRow, ProgressCallback, ReproducedTable, spec_of};
use readpath_models::array::TWELVE_DISKS;
use readpath_models::random::SeededRng;
use readpath_sim::job::JobFile;
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate};
use readpath_sim::world::HostCosts;

/// The experiment in the list of all.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "D",
    title: "CFQ with both seek detections, and deadline, by the number of processes (2010)",
    run,
};

/// Numbers of processes: the columns of the tables.
const PROCESSES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Published values of one row, by number of processes.
type PublishedRow = [Option<f64>; 7];

/// A row without published values.
const UNPUBLISHED_ROW: PublishedRow = [None; 7];

/// Returns a row with all values published.
const fn published(values: [u32; 7]) -> PublishedRow {
    let mut published = UNPUBLISHED_ROW;
    let mut index = 0;
    while index < 7 {
        published[index] = Some(values[index] as f64);
        index += 1;
    }
    published
}

/// Rows of each table, from the old detection to `deadline`. `adaptive` is later than the source
/// and not part of it.
const POLICIES: [(&str, &str); 6] = [
    ("CFQ, old detection", "cfq,seeky=mean"),
    ("CFQ, new detection", "cfq,seeky=history"),
    ("CFQ, new, low_latency 0", "cfq,seeky=history,low_latency=0"),
    ("CFQ, new, slice_idle 0", "cfq,seeky=history,slice_idle=0"),
    ("deadline", "deadline"),
    ("adaptive", "adaptive"),
];

/// A machine, with the part of it that contains the files.
struct Testbed {
    /// Device text.
    device: &'static str,
    /// Text for the table.
    description: &'static str,
    /// Size of the part with the files, in MiB: nearly the whole device, of 931 GiB a drive.
    volume_mib: u64,
}

/// The array of the source.
const ARRAY: Testbed = Testbed {
    device: TWELVE_DISKS,
    description: "12 drives of 7,200 rpm in RAID-0 behind a controller (its link, overheads and \
            read-ahead are fitted to these tables)",
    volume_mib: 10_900 << 10,
};

/// One of its drives alone.
const SPINDLE: Testbed = Testbed {
    device: "hdd,drive=sata2010",
    description: "one drive of 7,200 rpm (SATA, 2009)",
    volume_mib: 900 << 10,
};

/// Work of the processes, and the unit of the result.
struct TableLoad {
    /// Title of the table.
    title: &'static str,
    /// Options of the job.
    job: &'static str,
    /// Simulated duration.
    seconds: u32,
    /// Name of the rate's unit.
    unit: &'static str,
    /// Bytes in that unit, per second.
    unit_bytes: f64,
}

impl TableLoad {
    /// Divides the duration by `divisor`; it stays at least a second.
    fn shortened(self, divisor: u32) -> TableLoad {
        TableLoad { seconds: (self.seconds / divisor).max(1), ..self }
    }
}

/// Random records through a mapping, as in the source.
const MAPPED: TableLoad = TableLoad {
    title: "mmap, random 64 KiB",
    job: "ioengine=mmap\nrw=randread\nrandom_generator=permutation\nbs=64k\nsize=8g",
    seconds: 60,
    unit: "KiB/s",
    unit_bytes: 1024.0,
};

/// Sequential direct reads, as in the source.
const DIRECT: TableLoad = TableLoad {
    title: "direct, sequential 64 KiB",
    job: "direct=1\nrw=read\nbs=64k\nsize=4g",
    seconds: 20,
    unit: "MiB/s",
    unit_bytes: 1_048_576.0,
};

/// Sequential cached reads, as in the source.
const BUFFERED: TableLoad =
    TableLoad { title: "buffered, sequential 64 KiB", job: "rw=read\nbs=64k\nsize=4g", ..DIRECT };

/// Load that is not in the source: no detection may lose on it.
const RANDOM: TableLoad = TableLoad {
    title: "direct, random 4 KiB",
    job: "direct=1\nrw=randread\nrandom_generator=permutation\nbs=4k\nsize=4g",
    ..MAPPED
};

/// Simulates all loads on the single drive, and all but the random one on the array. `divisor`
/// shortens the work.
fn run(
    seed: u64,
    divisor: u32,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<Vec<ReproducedTable>, SimulateError> {
    // Published values of each load: a row for each of the policies but the last, `adaptive`, with
    // the numbers of processes as columns.
    let array = [
        (
            MAPPED,
            [
                published([2771, 2779, 3084, 3623, 3847, 3940, 4216]),
                published([2778, 2447, 2240, 2182, 2082, 2033, 1672]),
                published([2755, 2374, 2225, 2174, 2007, 1904, 1856]),
                UNPUBLISHED_ROW,
                // Published only for 8 processes: 3,953 to 3,992.
                [None, None, None, Some(3972.5), None, None, None],
            ],
        ),
        (
            DIRECT,
            [
                published([279, 277, 276, 263, 262, 214, 99]),
                UNPUBLISHED_ROW,
                UNPUBLISHED_ROW,
                UNPUBLISHED_ROW,
                published([271, 385, 386, 385, 384, 356, 257]),
            ],
        ),
        (
            BUFFERED,
            [
                published([372, 326, 319, 272, 250, 200, 186]),
                UNPUBLISHED_ROW,
                UNPUBLISHED_ROW,
                UNPUBLISHED_ROW,
                published([380, 381, 386, 383, 382, 370, 234]),
            ],
        ),
    ];
    let mut tables = Vec::new();
    for (load, published) in array {
        let load = load.shortened(divisor);
        tables.push(table(&ARRAY, &load, &published, seed, on_progress)?);
    }
    for load in [MAPPED, DIRECT, BUFFERED, RANDOM] {
        let load = load.shortened(divisor);
        tables.push(table(&SPINDLE, &load, &[UNPUBLISHED_ROW; 5], seed, on_progress)?);
    }
    Ok(tables)
}

/// Simulates one load on one machine under all policies. `published`: a row for each policy but the
/// last.
fn table(
    machine: &Testbed,
    load: &TableLoad,
    published: &[PublishedRow; 5],
    seed: u64,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<ReproducedTable, SimulateError> {
    let mut rows = Vec::new();
    // The last policy, `adaptive`, has no published values.
    for ((label, policies), published) in
        POLICIES.into_iter().zip(published.iter().chain([&UNPUBLISHED_ROW]))
    {
        let mut modelled = Vec::new();
        for processes in PROCESSES {
            let row = (label, policies);
            modelled.push(simulated_rate(machine, load, row, processes, seed, on_progress)?);
        }
        rows.push(GridRow {
            label: label.to_owned(),
            is_input: false,
            policies: policies.to_owned(),
            published: published.to_vec(),
            modelled,
        });
    }
    Ok(ReproducedTable {
        table: EXPERIMENT.name.to_owned(),
        title: load.title.to_owned(),
        machine: format!("{} (`{}`), files spread over it", machine.description, machine.device),
        unit: load.unit.to_owned(),
        rows: Vec::new(),
        grid: Some(Grid { over: "processes".to_owned(), columns: PROCESSES.to_vec(), rows }),
    })
}

/// Returns the rate of this number of processes under one policy, in the load's unit.
fn simulated_rate(
    machine: &Testbed,
    load: &TableLoad,
    (label, policies): (&str, &str),
    processes: u32,
    seed: u64,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<f64, SimulateError> {
    let setup = SimulationSetup {
        device: spec_of(machine.device),
        // The readahead of that kernel. Only the scheduler differs between the rows.
        readahead: spec_of("ondemand"),
        scheduler: spec_of(policies),
        // The policy of the kernels of that time. One that keeps a part of the file would read it
        // faster than over the link.
        eviction: spec_of("two-lists"),
        // Without effect: only raw jobs are chunked.
        chunking: spec_of("ring"),
        // The kernel's defaults: `nr_requests` 128, `read_ahead_kb` 128. The memory, 1 GiB, is
        // chosen.
        merges: true,
        queue_requests: 128,
        memory_bytes: 1 << 30,
        window_bytes: 128 << 10,
        seed,
        host: HostCosts::default(),
    };
    let job = JobFile::parse(&job_text(machine, load, processes, seed))
        .expect("the experiment's job is well formed");
    let row = simulate(label, &job, &setup, on_progress)?;
    Ok(row.bytes as f64 / row.seconds / load.unit_bytes)
}

/// Returns the text of a job with one section per process. The volume is divided into equal parts,
/// which the seed shuffles. Each process reads a file at the start of one. The file has the size in
/// the load's options, and no part is smaller.
fn job_text(machine: &Testbed, load: &TableLoad, processes: u32, seed: u64) -> String {
    let part_mib = machine.volume_mib / u64::from(processes);
    let mut parts: Vec<u64> = (0..processes.into()).collect();
    let mut rng = SeededRng::new(seed);
    for last in (1..parts.len()).rev() {
        parts.swap(last, rng.below(last as u64 + 1) as usize);
    }
    let mut text = format!("[global]\n{}\nruntime={}\ntime_based=1\n", load.job, load.seconds);
    for (process, part) in parts.iter().enumerate() {
        text += &format!("[process{process}]\nfilename=volume\noffset={}m\n", part * part_mib);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use readpath_sim::run::ProgressAnswer;

    /// In 20 s one process reads its file of 4 GiB almost twice. The source measured at most 386
    /// MiB/s over its link: 8 processes, direct, `deadline`. One percent is added for rounding.
    #[test]
    fn file_read_again_is_transferred_over_the_link_again() {
        for (policy, processes) in [("deadline", 1), ("cfq,seeky=mean", 1), ("adaptive", 1)] {
            let never_stop = &mut |_| ProgressAnswer::Continue;
            let (row, seed) = ((policy, policy), 1);
            let rate = simulated_rate(&ARRAY, &BUFFERED, row, processes, seed, never_stop).unwrap();
            assert!(rate <= 386.0 * 1.01, "{policy}, {processes}: {rate} MiB/s");
        }
    }
}
