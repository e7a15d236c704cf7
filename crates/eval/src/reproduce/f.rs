//! Table F: published figures of devices, next to the modelled ones.
//!
//! Each row is a device and each column a number of requests in flight. A figure that is a
//! parameter of the model, or to which one was fitted, is no prediction; the row says so. Five of
//! the twenty figures are predictions. Data sheets and measurements of others are the sources:
//!
//! - Seagate ST2000DM006: 94 random reads a second at depth 32 and 124 random writes, as measured.
//! - Toshiba DT01ACA200: 130 random reads a second of a full queue (ScyllaDB's `diskplorer`).
//! - Intel SSD 520: about 60 MB/s of random reads at depth 3 (AnandTech, 2012), 50,000 a second at
//!   depth 32 and 550 MB/s in sequence (data sheet).
//! - Micron 7300 PRO: 520,000 random reads a second, 3,000 and 1,900 MB/s in sequence (data
//!   sheet), and 70,000 to 77,000 random writes a second, of which the table has the mean.
//! - Micron 9550 MAX: 60 us for a read, 3,300,000 reads a second, 14,000 and 10,000 MB/s.
//! - Seagate ST8000AS0002: 190 MB/s at its outer edge (data sheet), about 165 MB/s of large files
//!   of borg (issue 2252).
//! - Amazon EBS: 3 I/Os a second for each GiB of `gp2` without credits, 3,000 of `gp3`, and 40 and
//!   12 MiB/s for each TiB of `st1` and `sc1` without credits.
//!
//! The host takes no time, since the sources use as many processors as needed. Misses stay in the
//! table: the random reads of a disk at depth 32 depend on the order of its queue.

use super::{Experiment, Grid, GridRow, ProgressCallback, ReproducedTable, spec_of};
use readpath_sim::job::JobFile;
use readpath_sim::simulate::{SimulateError, SimulationSetup, simulate};
use readpath_sim::world::HostCosts;

/// The experiment in the list of all.
pub(super) const EXPERIMENT: Experiment =
    Experiment { name: "F", title: "published figures of devices (2009 to 2025)", run };

/// A load, and the devices of which its figures are published.
struct Load {
    /// Title of the table.
    title: &'static str,
    /// Options of the job, without its size and its depth.
    job: &'static str,
    /// Name of the rate's unit.
    unit: &'static str,
    /// Bytes in that unit, per second. A request counts with its bytes.
    unit_bytes: f64,
    /// Requests in flight: the columns.
    depths: &'static [u32],
    /// One device each, with a figure for each of `depths`.
    rows: &'static [DeviceRow],
}

/// A device, and its published figures by column.
struct DeviceRow {
    /// Label of the row: the device, as it is sold.
    label: &'static str,
    /// Kind of the figures that are inputs of the model: `parameter` or `fitted`, with their depths
    /// if the row has both kinds. Empty for predictions: no row has inputs and predictions.
    inputs: &'static str,
    /// Device text of the model.
    device: &'static str,
    /// Size of the accessed part.
    size: &'static str,
    /// Simulated duration in milliseconds.
    milliseconds: u32,
    /// Published rate in the load's unit, by number of requests in flight. `None` if it is omitted.
    published: &'static [Option<f64>],
}

/// Requests of 4 KiB at random, and of 128 KiB in sequence.
const LOADS: [Load; 4] = [
    Load {
        title: "random reads of 4 KiB",
        job: "rw=randread\nbs=4k",
        unit: "requests/s",
        unit_bytes: 4_096.0,
        depths: &[1, 3, 32, 256, 512],
        rows: &[
            DeviceRow {
                label: "Seagate ST2000DM006",
                inputs: "fitted",
                device: "hdd,drive=sata",
                size: "1800g",
                milliseconds: 60_000,
                published: &[None, None, Some(94.0), None, None],
            },
            DeviceRow {
                label: "Toshiba DT01ACA200",
                inputs: "fitted",
                device: "hdd,drive=sata2012",
                size: "1800g",
                milliseconds: 60_000,
                published: &[None, None, Some(130.0), None, None],
            },
            DeviceRow {
                label: "Intel SSD 520",
                inputs: "depth 3 fitted, depth 32 parameter",
                device: "ssd520,size=8g",
                size: "7g",
                milliseconds: 1_000,
                published: &[None, Some(60e6 / 4_096.0), Some(50_000.0), None, None],
            },
            DeviceRow {
                label: "Micron 7300 PRO",
                inputs: "parameter",
                device: "nvme",
                size: "3400g",
                milliseconds: 200,
                published: &[None, None, None, Some(520_000.0), None],
            },
            DeviceRow {
                label: "Micron 9550 MAX",
                inputs: "depth 1 fitted, depth 512 parameter",
                device: "nvme5",
                size: "5800g",
                milliseconds: 100,
                published: &[Some(1e6 / 60.0), None, None, None, Some(3_300_000.0)],
            },
            DeviceRow {
                label: "Amazon gp2, 100 GiB, without credits",
                inputs: "parameter",
                device: "gp2,size=100g,io_credits=0",
                size: "99g",
                milliseconds: 10_000,
                published: &[None, None, Some(300.0), None, None],
            },
            DeviceRow {
                label: "Amazon gp3",
                inputs: "parameter",
                device: "gp3,size=100g",
                size: "99g",
                milliseconds: 10_000,
                published: &[None, None, Some(3_000.0), None, None],
            },
        ],
    },
    Load {
        title: "random writes of 4 KiB",
        job: "rw=randwrite\nbs=4k",
        unit: "requests/s",
        unit_bytes: 4_096.0,
        depths: &[1, 128],
        rows: &[
            DeviceRow {
                label: "Seagate ST2000DM006",
                inputs: "",
                device: "hdd,drive=sata",
                size: "1800g",
                milliseconds: 60_000,
                published: &[Some(124.0), None],
            },
            DeviceRow {
                label: "Micron 7300 PRO, steady state",
                inputs: "",
                device: "nvme",
                size: "3400g",
                milliseconds: 8_000,
                published: &[None, Some(73_500.0)],
            },
        ],
    },
    Load {
        title: "reads in sequence",
        job: "rw=read\nbs=128k",
        unit: "MB/s",
        unit_bytes: 1e6,
        depths: &[32],
        rows: &[
            sequential_row("Intel SSD 520", "parameter", "ssd520", &[Some(550.0)]),
            sequential_row("Micron 7300 PRO", "", "nvme", &[Some(3_000.0)]),
            sequential_row("Micron 9550 MAX", "parameter", "nvme5", &[Some(14_000.0)]),
            sequential_row("Seagate ST8000AS0002, outer edge", "parameter", "smr", &[Some(190.0)]),
            sequential_row(
                "Amazon st1, 1 TiB, without credits",
                "parameter",
                "st1,size=1t,rate_credits=0",
                &[Some(40.0 * 1.048_576)],
            ),
            sequential_row(
                "Amazon sc1, 1 TiB, without credits",
                "parameter",
                "sc1,size=1t,rate_credits=0",
                &[Some(12.0 * 1.048_576)],
            ),
        ],
    },
    Load {
        title: "writes in sequence",
        job: "rw=write\nbs=128k",
        unit: "MB/s",
        unit_bytes: 1e6,
        depths: &[32],
        rows: &[
            sequential_row("Micron 7300 PRO", "", "nvme", &[Some(1_900.0)]),
            sequential_row("Micron 9550 MAX", "parameter", "nvme5", &[Some(10_000.0)]),
            sequential_row("Seagate ST8000AS0002", "", "smr", &[Some(165.0)]),
        ],
    },
];

/// A row of 10 s in sequence, on the first 200 GiB.
const fn sequential_row(
    label: &'static str,
    inputs: &'static str,
    device: &'static str,
    published: &'static [Option<f64>],
) -> DeviceRow {
    DeviceRow { label, inputs, device, size: "200g", milliseconds: 10_000, published }
}

/// Simulates all tables. `divisor` shortens the work.
fn run(
    seed: u64,
    divisor: u32,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<Vec<ReproducedTable>, SimulateError> {
    LOADS.iter().map(|load| table(load, seed, divisor, on_progress)).collect()
}

/// Simulates one load on each of its devices.
fn table(
    load: &Load,
    seed: u64,
    divisor: u32,
    on_progress: &mut ProgressCallback<'_>,
) -> Result<ReproducedTable, SimulateError> {
    let mut rows = Vec::new();
    for row in load.rows {
        let mut modelled = Vec::new();
        for depth in load.depths {
            modelled.push(simulated_rate(load, row, *depth, (seed, divisor), on_progress)?);
        }
        rows.push(GridRow {
            label: match row.inputs {
                "" => row.label.to_owned(),
                inputs => format!("{} ({inputs})", row.label),
            },
            is_input: !row.inputs.is_empty(),
            policies: row.device.to_owned(),
            published: row.published.to_vec(),
            modelled,
        });
    }
    Ok(ReproducedTable {
        table: EXPERIMENT.name.to_owned(),
        title: load.title.to_owned(),
        machine: "each device alone, direct I/O, `noop`, a host that takes no time".to_owned(),
        unit: load.unit.to_owned(),
        rows: Vec::new(),
        grid: Some(Grid {
            over: "requests in flight".to_owned(),
            columns: load.depths.to_vec(),
            rows,
        }),
    })
}

/// Returns the rate of a device with `depth` requests in flight, in the load's unit. The last
/// argument is the seed, and the divisor of the duration.
fn simulated_rate(
    load: &Load,
    row: &DeviceRow,
    depth: u32,
    (seed, divisor): (u64, u32),
    on_progress: &mut ProgressCallback<'_>,
) -> Result<f64, SimulateError> {
    let milliseconds = (row.milliseconds / divisor).max(10);
    let job = format!(
        "[load]\n{}\nsize={}\ndirect=1\nioengine=libaio\niodepth={depth}\ntime_based\n\
         runtime={milliseconds}ms\n",
        load.job, row.size
    );
    let job = JobFile::parse(&job).expect("the experiment's job is well formed");
    let setup = SimulationSetup {
        device: spec_of(row.device),
        // Without effect on direct requests that are sent as they are.
        readahead: spec_of("none"),
        scheduler: spec_of("noop"),
        eviction: spec_of("two-lists"),
        chunking: spec_of("ring"),
        merges: false,
        queue_requests: 1_024,
        memory_bytes: 64 << 20,
        window_bytes: 128 << 10,
        seed,
        host: HostCosts { operation_ns: 0, byte_ps: 0, fault_ns: 0, chunk_ns: 0, pin_page_ns: 0 },
    };
    let simulated = simulate(row.label, &job, &setup, on_progress)?;
    Ok(simulated.bytes as f64 / simulated.seconds / load.unit_bytes)
}
