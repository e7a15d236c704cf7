//! The regret matrix: the law `adaptive` against the best classic law of each
//! cell, over devices, workloads and numbers of processes.
//!
//! A *cell* is one workload of so many processes on one device. Its rivals are
//! the classic readahead laws under each classic scheduler, without hints; for
//! reads past the cache, where no readahead law has a say, the schedulers alone;
//! for loads on memory the classic swap-in laws under each of them.
//! The figure is the throughput of the whole cell: the work is the same for
//! all, so it is the time of the last to end, turned round. What the best rival
//! of the cell has is 1; below 1 `adaptive` is to be regretted there.
//!
//! The same seed gives the same cells to the bit.

use readpath_core::law::Spec;
use serde::Serialize;

use crate::load::LoadRow;
use crate::report::Row;
use crate::run::{Go, Watch};
use crate::simulate::{Setup, SimulateError, simulate_workload};

mod memory;
mod workloads;

use memory::{LOADS, SWAPINS, Touching, takes_swap};
use workloads::{Pattern, WORKLOADS};

/// The devices: names in the matrix, and what they are.
pub const DEVICES: &[(&str, &str)] = &[
    ("hdd-1", "hdd,drive=sata2010"),
    ("hdd-2", "raid0:2xhdd,hdd.drive=sata2010"),
    ("hdd-3", "raid0:3xhdd,hdd.drive=sata2010"),
    ("hdd-4", "raid0:4xhdd,hdd.drive=sata2010"),
    ("hdd-6", "raid0:6xhdd,hdd.drive=sata2010"),
    ("hdd-12", "raid0:12xhdd,hdd.drive=sata2010"),
    ("array", "array:12xhdd,hdd.drive=sata2010"),
    ("ssd", "ssd"),
    ("nvme", "nvme"),
    ("nfs-0.2ms", "nfs:ssd,rtt=200us"),
    ("nfs-1ms", "nfs:ssd,rtt=1ms"),
    ("nfs-5ms", "nfs:ssd,rtt=5ms"),
    ("nfs-20ms", "nfs:ssd,rtt=20ms"),
    ("object", "object"),
];

/// How many processes share the work.
pub const PROCESSES: &[u32] = &[1, 4, 16, 64];

/// The classic readahead laws, and the classic schedulers.
const READAHEADS: [&str; 4] = ["none", "window", "window-fixed", "ondemand"];
const SCHEDULERS: [&str; 3] = ["noop", "deadline", "cfq"];

/// The laws under test.
const ADAPTIVE: (&str, &str) = ("adaptive", "adaptive");

/// One workload of so many processes on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The device's name in the matrix.
    pub device: &'static str,
    /// What it is, as [`crate::device::registry`] reads it.
    pub device_text: &'static str,
    /// The workload's name in the matrix.
    pub workload: &'static str,
    /// What its processes do.
    work: Work,
    /// How many processes.
    pub processes: u32,
}

/// What the processes of a cell do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// They read files.
    Reads(Pattern),
    /// They touch more memory than there is.
    Touches(Touching),
}

/// How a cell is run.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The seed of everything that is random.
    pub seed: u64,
    /// The part of the work that is done: 1 for all of it, 64 to show that it runs.
    pub part: u64,
}

/// One run of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// The readahead law; null where it has no say.
    pub readahead: Option<String>,
    /// The swap-in law; null where files are read.
    pub swapin: Option<String>,
    /// The scheduler.
    pub scheduler: String,
    /// The throughput.
    pub mib_per_s: f64,
    /// From the start to the end of the last process.
    pub seconds: f64,
    /// Requests that the device was given.
    pub device_requests: Option<u64>,
    /// Their mean size.
    pub device_request_kib_mean: Option<f64>,
    /// How many were in the device, mean over the time in which it had any.
    pub device_depth_mean: Option<f64>,
    /// Bytes from the device ÷ bytes asked for.
    pub amplification: Option<f64>,
    /// Asked bytes that were there in time ÷ asked bytes.
    pub coverage: Option<f64>,
    /// Bytes read ahead and never used.
    pub waste_bytes: Option<u64>,
}

/// A cell of the matrix, run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The device's name in the matrix.
    pub device: String,
    /// The workload's.
    pub workload: String,
    /// How many processes.
    pub processes: u32,
    /// Throughput of `adaptive` ÷ that of the best rival.
    pub ratio: f64,
    /// `adaptive` here.
    pub adaptive: Run,
    /// The rivals, the best one first.
    pub rivals: Vec<Run>,
}

/// What the cells say together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many cells.
    pub cells: usize,
    /// The lowest ratio; null without cells.
    pub minimum: Option<f64>,
    /// The geometric mean of the ratios; null without cells.
    pub geometric_mean: Option<f64>,
    /// How many cells are below 0.95.
    pub below_95_percent: usize,
    /// The ten cells with the lowest ratios, as `device/workload/processes` and the ratio.
    pub worst: Vec<(String, f64)>,
}

/// The cells whose name `device/workload/processes` contains each of `parts`, in the matrix's order.
pub fn cells(parts: &[&str]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &(device, device_text) in DEVICES {
        let reads = WORKLOADS.iter().map(|&(name, pattern)| (name, Work::Reads(pattern)));
        let touches = LOADS.iter().map(|&(name, touching)| (name, Work::Touches(touching)));
        for (workload, work) in reads.chain(touches.filter(|_| takes_swap(device))) {
            for &processes in PROCESSES {
                let cell = Cell { device, device_text, workload, work, processes };
                let name = format!("/{}/", cell.name());
                if parts.iter().all(|part| name.contains(part)) {
                    cells.push(cell);
                }
            }
        }
    }
    cells
}

impl Cell {
    /// `device/workload/processes`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.device, self.workload, self.processes)
    }

    /// Runs the rivals and `adaptive`.
    ///
    /// # Errors
    /// A law or a device is refused: a fault of the matrix itself.
    pub fn judge(&self, size: Size) -> Result<Judged, SimulateError> {
        let laws: &[&str] = match self.work {
            Work::Reads(pattern) if pattern.is_direct() => &["none"],
            Work::Reads(_) => &READAHEADS,
            Work::Touches(_) => &SWAPINS,
        };
        let mut rivals = Vec::new();
        for law in laws {
            for scheduler in SCHEDULERS {
                rivals.push(self.run(law, scheduler, size)?);
            }
        }
        rivals.sort_by(|one, two| two.mib_per_s.total_cmp(&one.mib_per_s));
        let adaptive = self.run(ADAPTIVE.0, ADAPTIVE.1, size)?;
        Ok(Judged {
            device: self.device.to_owned(),
            workload: self.workload.to_owned(),
            processes: self.processes,
            ratio: adaptive.mib_per_s / rivals[0].mib_per_s,
            adaptive,
            rivals,
        })
    }

    /// One run of the cell under a readahead law (of a load on memory: a swap-in law) and a scheduler.
    ///
    /// # Errors
    /// As [`judge`](Cell::judge).
    pub fn run(&self, law: &str, scheduler: &str, size: Size) -> Result<Run, SimulateError> {
        let spec = |text| Spec::parse(text).map_err(SimulateError::Device);
        let (device, law, scheduler) = (spec(self.device_text)?, spec(law)?, spec(scheduler)?);
        let pattern = match self.work {
            Work::Reads(pattern) => pattern,
            Work::Touches(touching) => {
                let row = touching.run(self.processes, device, &law, &scheduler, size)?;
                return Ok(Run::of_memory(&law, &scheduler, &row));
            }
        };
        let setup = Setup {
            readahead: law.clone(),
            scheduler: scheduler.clone(),
            seed: size.seed,
            ..Setup::new(device)
        };
        let workload = pattern.workload(self.processes.into(), size.part, size.seed);
        let row = simulate_workload(workload, &setup, Watch::progress(&mut |_| Go::On))?;
        Ok(Run::of_reads((!pattern.is_direct()).then_some(&law), &scheduler, &row))
    }
}

impl Run {
    fn of_reads(readahead: Option<&Spec>, scheduler: &Spec, row: &Row) -> Run {
        Run {
            readahead: readahead.map(Spec::to_string),
            swapin: None,
            scheduler: scheduler.to_string(),
            mib_per_s: row.mib_per_s.expect("a cell moves bytes, and that takes time"),
            seconds: row.seconds,
            device_requests: row.device_requests,
            device_request_kib_mean: row.device_request_kib_mean,
            device_depth_mean: row.device_depth_mean,
            amplification: row.amplification,
            coverage: row.coverage,
            waste_bytes: row.waste_bytes,
        }
    }

    fn of_memory(swapin: &Spec, scheduler: &Spec, row: &LoadRow) -> Run {
        Run {
            readahead: None,
            swapin: Some(swapin.to_string()),
            scheduler: scheduler.to_string(),
            mib_per_s: row.mib_per_s.expect("a cell touches pages, and that takes time"),
            seconds: row.seconds.expect("a modelled load is measured"),
            device_requests: row.device_requests,
            device_request_kib_mean: row.device_request_kib_mean,
            device_depth_mean: row.device_depth_mean,
            amplification: row.amplification,
            coverage: row.coverage,
            waste_bytes: row.waste_bytes,
        }
    }

    /// The laws by name.
    pub fn laws(&self) -> String {
        match self.readahead.as_ref().or(self.swapin.as_ref()) {
            Some(law) => format!("{law} {}", self.scheduler),
            None => self.scheduler.clone(),
        }
    }
}

impl Judged {
    /// `device/workload/processes`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.device, self.workload, self.processes)
    }
}

impl Summary {
    /// What these cells say together.
    pub fn of(cells: &[Judged]) -> Summary {
        let mut ratios: Vec<(String, f64)> =
            cells.iter().map(|cell| (cell.name(), cell.ratio)).collect();
        ratios.sort_by(|one, two| one.1.total_cmp(&two.1));
        let logarithms: f64 = ratios.iter().map(|(_, ratio)| ratio.ln()).sum();
        Summary {
            cells: cells.len(),
            minimum: ratios.first().map(|(_, ratio)| *ratio),
            geometric_mean: (!ratios.is_empty()).then(|| (logarithms / ratios.len() as f64).exp()),
            below_95_percent: ratios.iter().filter(|(_, ratio)| *ratio < 0.95).count(),
            worst: ratios.into_iter().take(10).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ratio: f64) -> Judged {
        let run = Run {
            readahead: None,
            swapin: None,
            scheduler: "noop".to_owned(),
            mib_per_s: 1.0,
            seconds: 1.0,
            device_requests: None,
            device_request_kib_mean: None,
            device_depth_mean: None,
            amplification: None,
            coverage: None,
            waste_bytes: None,
        };
        Judged {
            device: "d".to_owned(),
            workload: "w".to_owned(),
            processes: 1,
            ratio,
            adaptive: run.clone(),
            rivals: vec![run],
        }
    }

    #[test]
    fn the_mean_is_geometric_and_the_worst_come_first() {
        let summary = Summary::of(&[judged(4.0), judged(0.5), judged(0.5)]);
        assert_eq!(summary.geometric_mean, Some(1.0));
        assert_eq!((summary.minimum, summary.below_95_percent), (Some(0.5), 2));
        assert_eq!(summary.worst[0].1, 0.5);
        assert_eq!(Summary::of(&[]).minimum, None);
    }

    #[test]
    fn cells_are_named_and_chosen_by_parts_of_their_names() {
        let reads = DEVICES.len() * WORKLOADS.len();
        let touches = (DEVICES.len() - 1) * LOADS.len();
        assert_eq!(cells(&[]).len(), (reads + touches) * PROCESSES.len(), "no swap on objects");
        let one = cells(&["/hdd-1/", "/seq-4k/", "/64/"]);
        assert_eq!(one.iter().map(Cell::name).collect::<Vec<_>>(), ["hdd-1/seq-4k/64"]);
    }
}
