//! Runs the measurements in rounds over all cells. Each cell measures one contender after the
//! other, in an order that changes by round. Each measurement has its own process.
//!
//! Rounds are the outer loop. Disturbances of the machine then affect all cells alike, and at the
//! time limit all cells have about the same number of runs.
//!
//! A measurement is aborted after a multiple of the time of the cell's fastest baseline. The table
//! then shows its time as a bound.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use readpath_eval::kernel_swap::SwapError;
use readpath_eval::kernel_swap::group::MemoryGroup;
use rustix::process::Signal;

use super::one::{self, Measurement, MeasurementOrder, MeasurementOutcome, ReadWay};
use super::refused::Refused;
use super::rows::{Data, Row, Scale};
use super::states::{self, CacheState};
use crate::exit::Failure;
use crate::part::{Gone, OrderPath, WorkerProcess};
use crate::progress::Interrupt;

/// Time limit of a baseline and of the library, as multiples of the cell's fastest baseline so far.
const IDLE_TIMEOUT: [u32; 2] = [3, 10];

/// Extra time on each limit, for the start of the process and the noise of short cells.
const GRACE: Duration = Duration::from_millis(500);

/// Longest measurement, and the limit if no other duration is known.
const LONGEST: Duration = Duration::from_secs(60);

/// Time limit of a pass with little memory, as a multiple of a cold pass. A thrashing pass may take
/// too long to wait for.
const SHORT_IDLE_TIMEOUT: u32 = 4;

/// Number of OOM kills of a contender in a cell before the cell counts as out of memory. One or two
/// may happen when reclaim is slower than the reads.
const OOM_KILLS_MAX: u32 = 3;

/// Plan of the measurements.
pub struct Matrix<'a, 'r> {
    /// Rows to measure.
    pub rows: &'r [Row],
    /// Scale of the rows.
    pub scale: Scale,
    /// Cache states to measure.
    pub states: &'a [CacheState],
    /// Number of runs of each cell and contender.
    pub runs: u32,
    /// End of the measurements; `None`: no time limit.
    pub deadline: Option<Instant>,
    /// Folder with the data.
    pub folder: &'a Path,
    /// System calls to deny in the measured processes.
    pub refused: &'a [Refused],
    /// Interrupt of the whole run.
    pub interrupt: &'a Interrupt,
}

/// Row in one state, with its measurements.
pub struct RowState<'r> {
    /// Row of the matrix.
    pub row: &'r Row,
    /// Cache state.
    pub state: CacheState,
    /// Runs of each contender, in the order of [`ReadWay::ALL`].
    pub ways: [ContenderRuns; 4],
    /// Maximum number of data pages in the wrong cache state at the start of a measurement.
    pub stray_pages: u64,
}

/// Measurements of one contender in a cell.
#[derive(Default)]
pub struct ContenderRuns {
    /// Completed measurements.
    pub measured: Vec<Measurement>,
    /// Reason of the abort, after which no further run starts.
    pub broken_off: Option<BrokenOff>,
    /// Number of runs ended by the OOM killer of the memory group.
    pub oom_kills: u32,
}

/// Reason for a measurement without figures.
#[derive(Clone, Debug, PartialEq)]
pub enum BrokenOff {
    /// The contender cannot run here.
    Failed(String),
    /// The memory of the group did not suffice.
    OutOfMemory,
    /// The measurement exceeded its time limit.
    TooSlow {
        /// Time until the abort.
        seconds: f64,
    },
}

impl<'r> Matrix<'_, 'r> {
    /// Returns every cell, without measurements.
    pub fn cells(&self) -> Vec<RowState<'r>> {
        let cell = |state: CacheState, row| {
            let ways = std::array::from_fn(|_| ContenderRuns::default());
            RowState { row, state, ways, stray_pages: 0 }
        };
        let suits = |state: CacheState| move |row: &&Row| state.suits(row, self.scale);
        let of_state = |&state: &CacheState| {
            let rows = self.rows.iter().filter(suits(state));
            rows.map(move |row| cell(state, row))
        };
        self.states.iter().flat_map(of_state).collect()
    }

    /// Measures the cells until all runs are done or the time limit is reached.
    ///
    /// # Errors
    /// A contender read other bytes than the others, or the run was interrupted. The cells keep the
    /// measurements made until then.
    pub fn measure(&self, cells: &mut [RowState<'r>]) -> Result<(), Failure> {
        let bar = ProgressBar::new(cells.len() as u64 * u64::from(self.runs));
        let measured = self.measure_by(cells, &bar);
        bar.finish_and_clear();
        measured
    }

    /// Runs the rounds over all cells, until the deadline.
    fn measure_by(&self, cells: &mut [RowState<'r>], bar: &ProgressBar) -> Result<(), Failure> {
        let mut files: HashMap<Data, Vec<(PathBuf, u64)>> = HashMap::new();
        let mut sums: HashMap<&str, (u64, ReadWay)> = HashMap::new();
        // Duration of a cold pass of each row by its fastest baseline. Cold cells come first in a
        // round.
        let mut cold: HashMap<&str, f64> = HashMap::new();
        for round in 0..self.runs {
            for (number, cell) in cells.iter_mut().enumerate() {
                let data = cell.row.data;
                let files = files.entry(data).or_insert_with(|| data.files(self.folder));
                let cold_pass = cold.get(cell.row.name.as_str()).copied();
                for at in turns(round as usize + number) {
                    if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Ok(());
                    }
                    if let Some(sum) = self.turn(cell, at, files, cold_pass)? {
                        check(&mut sums, cell.row, ReadWay::ALL[at], sum)?;
                    }
                }
                if let (CacheState::Cold, Some(fastest)) = (cell.state, cell.fastest_peer()) {
                    cold.insert(&cell.row.name, fastest);
                }
                bar.inc(1);
            }
        }
        Ok(())
    }

    /// Measures one contender once more, unless it was aborted before. Returns the checksum of the
    /// bytes.
    fn turn(
        &self,
        cell: &mut RowState<'r>,
        at: usize,
        files: &[(PathBuf, u64)],
        cold_pass: Option<f64>,
    ) -> Result<Option<u64>, Failure> {
        while cell.ways[at].broken_off.is_none() {
            let ended = self.one(cell, ReadWay::ALL[at], files, cold_pass)?;
            let runs = &mut cell.ways[at];
            match ended {
                Ok(measured) => {
                    let sum = measured.checksum;
                    runs.measured.push(measured);
                    return Ok(Some(sum));
                }
                Err(broken_off) => {
                    runs.oom_kills += u32::from(broken_off == BrokenOff::OutOfMemory);
                    let is_final =
                        broken_off != BrokenOff::OutOfMemory || runs.oom_kills == OOM_KILLS_MAX;
                    runs.broken_off = is_final.then_some(broken_off);
                }
            }
        }
        Ok(None)
    }

    /// Makes one measurement in a new process.
    fn one(
        &self,
        cell: &mut RowState<'r>,
        way: ReadWay,
        files: &[(PathBuf, u64)],
        cold_pass: Option<f64>,
    ) -> Result<Result<Measurement, BrokenOff>, Failure> {
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            Failure::Run(format!("{}: {what}: {error}", cell.row.name))
        };
        let group = cell.state.group_bytes(cell.row).map(MemoryGroup::new).transpose();
        let group = group.map_err(|error| cannot("a memory group", &error))?;
        // Locals drop in reverse order: the process ends before its memory group is removed.
        let mut part =
            WorkerProcess::start(one::NAME).map_err(|error| cannot("a process", &error))?;
        if let Some((group, _)) = &group {
            group.add(part.id()).map_err(|error| cannot("a memory group", &error))?;
        }
        let stray_pages = states::prepare(cell.state, files, self.interrupt)?;
        cell.stray_pages = cell.stray_pages.max(stray_pages);
        let order = MeasurementOrder {
            row: cell.row.name.clone(),
            scale: self.scale,
            way,
            state: cell.state,
            folder: OrderPath(self.folder.to_path_buf()),
            refused: self.refused.to_vec(),
        };
        // An ended process is detected below, together with the reason.
        let _ = part.tell(&order);
        let start = Instant::now();
        match part.answer(Some(start + cell.longest(way, cold_pass)), self.interrupt) {
            Ok(MeasurementOutcome::Measured(measured)) => Ok(Ok(measured)),
            Ok(MeasurementOutcome::Failed(reason)) => Ok(Err(BrokenOff::Failed(reason))),
            Err(Gone::Interrupted) => Err(Failure::Interrupted),
            Err(Gone::TooLate) => {
                let seconds = start.elapsed().as_secs_f64();
                Ok(Err(BrokenOff::TooSlow { seconds }))
            }
            Err(Gone::Said(words)) => Ok(Err(BrokenOff::Failed(words))),
            Err(Gone::Process(status)) => {
                let is_killed = status.signal() == Some(Signal::KILL.as_raw());
                let oom_kills = group.as_ref().map_or(0, |(group, _)| group.counts().oom_kills);
                Ok(Err(match is_killed && oom_kills > 0 {
                    true => BrokenOff::OutOfMemory,
                    false => BrokenOff::Failed(format!("its process ended: {status}")),
                }))
            }
        }
    }
}

impl RowState<'_> {
    /// Shortest time of a baseline in seconds, if one has completed.
    fn fastest_peer(&self) -> Option<f64> {
        let peers = ReadWay::ALL.iter().zip(&self.ways).filter(|(way, _)| way.peer().is_some());
        let seconds = peers.flat_map(|(_, runs)| runs.measured.iter().map(|run| run.seconds));
        seconds.min_by(f64::total_cmp)
    }

    /// Time limit of a measurement. It derives from the fastest baseline of the cell, or else from
    /// the time of a cold pass in seconds.
    fn longest(&self, way: ReadWay, cold_pass: Option<f64>) -> Duration {
        let idle_timeout = IDLE_TIMEOUT[usize::from(way == ReadWay::Ours)];
        let longest = match (self.fastest_peer(), cold_pass) {
            (Some(fastest), _) => {
                // The wait includes the first pass, which may take far longer.
                let data = self.row.data.bytes() as f64;
                let first = cold_pass.unwrap_or(data / COLD_BYTES_PER_SECOND);
                let first = if self.state == CacheState::Second { first } else { 0.0 };
                Duration::from_secs_f64(fastest + first) * idle_timeout
            }
            (None, Some(cold_pass)) => {
                let passes: u32 = self.state.passes().iter().sum();
                Duration::from_secs_f64(cold_pass) * passes * SHORT_IDLE_TIMEOUT
            }
            (None, None) => LONGEST,
        };
        (longest + GRACE).min(LONGEST)
    }
}

/// Order of the contenders in a round. Over four rounds each contender comes once at each position
/// and once directly after each other one. The effects that a contender leaves behind are therefore
/// balanced (E. J. Williams, "Experimental designs balanced for the estimation of residual effects
/// of treatments", Australian Journal of Scientific Research A 2, 1949).
fn turns(round: usize) -> [usize; 4] {
    [0, 1, 3, 2].map(|first| (first + round) % 4)
}

/// Assumed minimum speed of a cold pass, for its time limit.
const COLD_BYTES_PER_SECOND: f64 = 100e6;

/// Checks that all contenders of a row read the same bytes in all states.
fn check<'a>(
    sums: &mut HashMap<&'a str, (u64, ReadWay)>,
    row: &'a Row,
    way: ReadWay,
    sum: u64,
) -> Result<(), Failure> {
    let (first, by) = *sums.entry(&row.name).or_insert((sum, way));
    match first == sum {
        true => Ok(()),
        false => Err(Failure::Run(format!(
            "{}: {} has read other bytes than {}",
            row.name,
            way.name(),
            by.name()
        ))),
    }
}

/// Returns the reason if memory cgroups cannot be used here.
pub fn memory_groups() -> Option<String> {
    MemoryGroup::new(1 << 30).err().map(|error: SwapError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;

    #[test]
    fn other_bytes_are_told_with_who_read_them() {
        let row = &rows::rows(Scale::Small)[0];
        let mut sums = HashMap::new();
        check(&mut sums, row, ReadWay::Pread, 7).unwrap();
        check(&mut sums, row, ReadWay::Ours, 7).unwrap();
        let Err(Failure::Run(told)) = check(&mut sums, row, ReadWay::Mmap, 8) else { panic!() };
        assert_eq!(told, format!("{}: mmap has read other bytes than pread", row.name));
    }

    #[test]
    fn each_way_comes_once_at_each_place_and_behind_each_other_one() {
        let orders: Vec<[usize; 4]> = (5..9).map(turns).collect();
        let sorted = |mut seen: Vec<(usize, usize)>| {
            seen.sort_unstable();
            seen
        };
        let places = orders.iter().flat_map(|order| order.iter().copied().enumerate()).collect();
        let all = (0..4).flat_map(|place| (0..4).map(move |way| (place, way)));
        assert_eq!(sorted(places), all.collect::<Vec<_>>());
        let pairs = orders.iter().flat_map(|order| order.windows(2).map(|it| (it[0], it[1])));
        let others = (0..4).flat_map(|one| (0..4).map(move |other| (one, other)));
        assert_eq!(
            sorted(pairs.collect()),
            others.filter(|(one, other)| one != other).collect::<Vec<_>>()
        );
    }

    /// Limits: a baseline 3 times the fastest, the library 10 times, each plus half a second.
    #[test]
    fn who_is_out_of_the_race_is_not_waited_for() {
        let row = Row::of("stream/256MiB/4KiB", Scale::Usual).unwrap();
        let longest = |state, seconds: Option<f64>, way, cold_pass| {
            let mut ways: [ContenderRuns; 4] = std::array::from_fn(|_| ContenderRuns::default());
            ways[1].measured.extend(seconds.map(|seconds| Measurement {
                seconds,
                cpu_seconds: 0.0,
                peak_bytes: None,
                device_bytes: None,
                checksum: 0,
                note: None,
            }));
            let cell = RowState { row: &row, state, ways, stray_pages: 0 };
            cell.longest(way, cold_pass).as_secs_f64()
        };
        assert_eq!(longest(CacheState::Cold, None, ReadWay::Direct, None), 60.0);
        assert_eq!(longest(CacheState::Cold, Some(2.0), ReadWay::Direct, Some(2.0)), 6.5);
        assert_eq!(longest(CacheState::Cold, Some(2.0), ReadWay::Ours, Some(2.0)), 20.5);
        // The first pass takes 3 s, or 2.68 s at 100 MB/s if its time is not known.
        assert_eq!(longest(CacheState::Second, Some(1.0), ReadWay::Direct, Some(3.0)), 12.5);
        let second = longest(CacheState::Second, Some(1.0), ReadWay::Direct, None);
        assert!((second - 11.553).abs() < 0.001, "{second}");
        // Two passes of 1 s each.
        assert_eq!(longest(CacheState::Short, None, ReadWay::Direct, Some(1.0)), 8.5);
    }
}
