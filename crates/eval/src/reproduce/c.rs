//! Table C: reads over NFS with readahead off (2009).
//!
//! The first table is a read of 98,304 bytes where a READ call has at most 32,768 bytes. The rows
//! are the client with readahead off (one READ per page, each awaited before the next), the
//! repaired client (the request is sent whole), and direct I/O. The published value is the number
//! of READs. The first row uses the read loop of 2003 with an empty window, which has the same
//! effect on a request as the client of 2009.
//!
//! The second table is a program that reads 16 to 96 KiB at random positions, one read at a time,
//! over a link with a round trip of 1 ms. The only published value is that the whole application
//! ran 313 % faster, taken as a factor of 4.13. The simulated program only reads, so its gain is
//! larger.
//!
//! The remaining tables are not in the source. They show sequential reads over links of several
//! latencies and bandwidths. `ondemand` is limited to one of three window sizes, and `adaptive`
//! selects its own.

use super::{Experiment, Grid, GridRow, ProgressCallback, ReproducedTable, TableRow, spec_of};
use readpath_sim::job::JobFile;
use readpath_sim::report::ResultRow;
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate};
use readpath_sim::world::HostCosts;

/// The experiment in the list of all.
pub(super) const EXPERIMENT: Experiment =
    Experiment { name: "C", title: "reads over NFS with readahead off (2009)", run };

/// Size of the read whose READs the source counts.
pub const READ_BYTES: u64 = 98_304;

/// Maximum READ of the source's mount.
pub const RSIZE_BYTES: u64 = 32_768;

/// A row of the first two tables.
pub struct ReadCase {
    /// Label of the row.
    pub label: &'static str,
    /// Readahead policy that represents it. The `window` policy is the read loop of 2003. `none`
    /// requests each read whole, without readahead.
    pub readahead: &'static str,
    /// True for direct I/O.
    pub is_direct: bool,
    /// Published number of READs: 24 pages of 4 KiB, or 3 calls of 32 KiB.
    pub reads: u32,
}

/// Rows of the first table.
pub const READ_CASES: [ReadCase; 3] = [
    ReadCase {
        label: "buffered, readahead off",
        readahead: "window,read_ahead_kb=0",
        is_direct: false,
        reads: 24,
    },
    ReadCase { label: "the same, repaired", readahead: "none", is_direct: false, reads: 3 },
    ReadCase { label: "O_DIRECT", readahead: "none", is_direct: true, reads: 3 },
];

/// Device text of the mount in the first two tables. The server has a solid-state drive, memory for
/// data, and readahead of its own. A request and a READ have the same maximum, so each request of
/// the client is one READ.
const LINK: &str = "nfs:ssd,rsize=32k,request_max=32k";

/// Simulates all tables of this experiment. `divisor` shortens the work.
fn run(
    seed: u64,
    divisor: u32,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<Vec<ReproducedTable>, SimulateError> {
    let mut tables =
        vec![one_read_table(seed, on_progress)?, random_program_table(seed, divisor, on_progress)?];
    for gigabits in [1, 10] {
        tables.push(sequential_table(gigabits, seed, divisor, on_progress)?);
    }
    Ok(tables)
}

/// Simulates the first table: the number of READs for one read of 96 KiB, in each case of direct
/// I/O and readahead.
fn one_read_table(
    seed: u64,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<ReproducedTable, SimulateError> {
    let mut rows = Vec::new();
    for case in &READ_CASES {
        let direct = u32::from(case.is_direct);
        let text = format!("[read]\nrw=read\nbs=96k\nsize=96k\nfadvise_hint=0\ndirect={direct}\n");
        let row = simulate_job(case.label, &text, LINK, case.readahead, seed, on_progress)?;
        // One device request is one READ. A simulation always counts them.
        let reads = row.device_requests.unwrap_or(0);
        let first = f64::from(READ_CASES[0].reads);
        rows.push(TableRow {
            pages_in: None,
            pages_out: None,
            label: case.label.to_owned(),
            policies: case.readahead.to_owned(),
            published: Some(f64::from(case.reads)),
            published_ratio: Some(f64::from(case.reads) / first),
            modelled: reads as f64,
            modelled_ratio: reads as f64
                / rows.first().map_or(reads as f64, |row: &TableRow| row.modelled),
            device_requests: row.device_requests,
            device_request_kib_mean: row.device_request_kib_mean,
        });
    }
    Ok(ReproducedTable {
        table: EXPERIMENT.name.to_owned(),
        title: format!("{}: one read of {READ_BYTES} bytes, rsize {RSIZE_BYTES}", EXPERIMENT.title),
        machine: format!("a server on one gigabit switch (`{LINK}`)"),
        unit: "READs".to_owned(),
        rows,
        grid: None,
    })
}

/// Simulates the second table: the throughput in MB/s of a program that reads 16 to 96 KiB at
/// random. `divisor` shortens the work. Rows are the `READ_CASES`, of which only the second has a
/// published factor. Direct I/O shows the limit without a page cache.
fn random_program_table(
    seed: u64,
    divisor: u32,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<ReproducedTable, SimulateError> {
    let device = format!("{LINK},rtt=1ms");
    // 200 reads of each size in the full table, at least 4 in a shortened one. Both are chosen, not
    // measured.
    let reads_of_each_size = (200 / divisor).max(4);
    let mut rows: Vec<TableRow> = Vec::new();
    for case in &READ_CASES {
        let row = simulate_job(
            case.label,
            &random_job(reads_of_each_size, case.is_direct),
            &device,
            case.readahead,
            seed,
            on_progress,
        )?;
        let modelled = row.bytes as f64 / 1e6 / row.seconds;
        // The second row is the one that the source repaired: 313 % faster than the first. The
        // source states no gain for the third.
        let published_ratio = match rows.len() {
            0 => Some(1.0),
            1 => Some(4.13),
            _ => None,
        };
        rows.push(TableRow {
            pages_in: None,
            pages_out: None,
            label: case.label.to_owned(),
            policies: case.readahead.to_owned(),
            published: None,
            published_ratio,
            modelled,
            modelled_ratio: modelled / rows.first().map_or(modelled, |first| first.modelled),
            device_requests: row.device_requests,
            device_request_kib_mean: row.device_request_kib_mean,
        });
    }
    Ok(ReproducedTable {
        table: EXPERIMENT.name.to_owned(),
        title: "a program that reads 16 to 96 KiB at random, one read at a time".to_owned(),
        machine: format!("a server with a round trip of 1 ms (`{device}`)"),
        unit: "MB/s".to_owned(),
        rows,
        grid: None,
    })
}

/// Returns a job with `reads` reads of each size, one size after another, at different offsets of a
/// file of 1 GiB. `is_direct`: with direct I/O.
fn random_job(reads: u32, is_direct: bool) -> String {
    let mut text = format!(
        "[global]\nrw=randread\nrandom_generator=permutation\nsize=1g\nfilename=database\nfadvise_hint=0\ndirect={}\n",
        u32::from(is_direct)
    );
    for kib in [16, 32, 48, 64, 80, 96] {
        let io_kib = kib * reads;
        text += &format!("[of{kib}k]\nbs={kib}k\nio_size={io_kib}k\nstonewall\n");
    }
    text
}

/// Round-trip times of the links in the sequential tables, in microseconds. Chosen: from one switch
/// to a distant site.
const ROUND_TRIPS_US: [u32; 4] = [200, 1_000, 5_000, 20_000];

/// Rows of the sequential tables: limited windows, and the policy that selects its own.
const WINDOWS: [(&str, &str); 4] = [
    ("windows of 128 KiB", "ondemand,read_ahead_kb=128"),
    ("windows of 1 MiB", "ondemand,read_ahead_kb=1024"),
    ("windows of 15 MiB", "ondemand,read_ahead_kb=15360"),
    ("a window that is found", "adaptive"),
];

/// Simulates the sequential table of a link of `gigabits` Gbit/s: the throughput in MB/s by
/// readahead window and round-trip time. `divisor` shortens the work. All parameters are chosen,
/// not published. Slots, threads and depth admit more calls than fill a link: 10 Gbit/s and 20 ms
/// hold 24 MB, or 24 calls of 1 MiB. The server reads ahead further than any window of the client.
fn sequential_table(
    gigabits: u32,
    seed: u64,
    divisor: u32,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<ReproducedTable, SimulateError> {
    let device = |round_trip_us: u32| {
        // 1 Gbit/s are 125 MB/s, of which headers take about a seventeenth: 117.7 MB/s remain.
        // Rounded down to whole MB/s.
        let megabytes_per_second = u64::from(gigabits) * 1_177 / 10;
        format!(
            "nfs:nvme,rsize=1m,request_max=1m,slots=128,threads=64,depth=128,jitter=0,\
             server_readahead=64m,rtt={round_trip_us}us,bandwidth={megabytes_per_second}m"
        )
    };
    // 1 GiB, or less if shortened, but at least twice the largest window, 15 MiB. The unit is MiB.
    let mib = (1024 / divisor).max(32);
    let text = format!("[stream]\nrw=read\nbs=128k\nsize={mib}m\nfadvise_hint=0\n");
    let mut rows = Vec::new();
    for (label, policies) in WINDOWS {
        let mut modelled = Vec::new();
        for round_trip_us in ROUND_TRIPS_US {
            let device = device(round_trip_us);
            let row = simulate_job(label, &text, &device, policies, seed, on_progress)?;
            modelled.push(row.bytes as f64 / 1e6 / row.seconds);
        }
        // The source has no such table.
        let published = vec![None; ROUND_TRIPS_US.len()];
        rows.push(GridRow {
            label: label.to_owned(),
            is_input: false,
            policies: policies.to_owned(),
            published,
            modelled,
        });
    }
    Ok(ReproducedTable {
        table: EXPERIMENT.name.to_owned(),
        title: format!("in sequence, {gigabits} Gbit/s"),
        machine: format!("a server of today behind each link (`{}`)", device(ROUND_TRIPS_US[0])),
        unit: "MB/s".to_owned(),
        rows: Vec::new(),
        grid: Some(Grid {
            over: "round trip us".to_owned(),
            columns: ROUND_TRIPS_US.to_vec(),
            rows,
        }),
    })
}

/// Simulates the text of one job on a device, under a readahead policy. The other settings are
/// equal for all tables. They are the defaults of a simulation, except eviction by two lists, as in
/// the kernels of that time. In all jobs (`fadvise_hint=0`) the program gives the kernel no advice
/// on its reads.
fn simulate_job(
    label: &str,
    job: &str,
    device: &str,
    readahead: &str,
    seed: u64,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<ResultRow, SimulateError> {
    let job = JobFile::parse(job).expect("the experiment's job is well formed");
    let setup = SimulationSetup {
        device: spec_of(device),
        readahead: spec_of(readahead),
        scheduler: spec_of("deadline"),
        eviction: spec_of("two-lists"),
        // Without effect: only raw jobs are chunked.
        chunking: spec_of("ring"),
        merges: true,
        queue_requests: 128,
        memory_bytes: 256 << 20,
        // Without effect for a policy with a parameter `read_ahead_kb`.
        window_bytes: 128 << 10,
        seed,
        host: HostCosts::default(),
    };
    simulate(label, &job, &setup, on_progress)
}
