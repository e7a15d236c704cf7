//! Runs the measurements in rounds over all cells. Each cell measures one contender after the
//! other, in an order that changes by round. Each measurement has its own process.
//!
//! Rounds are the outer loop. Disturbances of the machine then affect all cells alike, and at the
//! time limit all cells have about the same number of runs.
//!
//! A measurement is aborted after a multiple of the time of the cell's fastest baseline, at most
//! [`TIME_LIMIT_MAX`]. The table then shows its time as a bound. In the state `Second` it shows
//! no figure.
//!
//! A *cell* is one row of accesses in one cache state. A *contender* is the library, a baseline, or
//! a program with a queue, which is no baseline.

use std::collections::HashMap;
use std::num::NonZero;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use readpath_eval::kernel_swap::SwapError;
use readpath_eval::kernel_swap::group::MemoryGroup;
use rustix::process::Signal;

use super::one::{Contender, Measurement, MeasurementOrder, MeasurementOutcome};
use super::refused::DeniedInterface;
use super::rows::{Data, Row, Scale};
use super::states::{self, CacheState};
use crate::exit::Failure;
use crate::progress::Interrupt;
use crate::worker::{AnswerError, OrderPath, WorkerProcess, WorkerTask};

/// Time limit of a baseline, as a multiple of the cell's fastest baseline so far.
const BASELINE_TIME_LIMIT_FACTOR: u32 = 3;

/// Time limit of the library, as a multiple of the cell's fastest baseline so far. With the larger
/// factor a slow library has a figure, where a slow baseline has only a bound.
const LIBRARY_TIME_LIMIT_FACTOR: u32 = 10;

/// Extra time on each limit, for the start of the process and the noise of short cells.
const TIME_LIMIT_EXTRA: Duration = Duration::from_millis(500);

/// Longest measurement, and the limit if no other duration is known.
const TIME_LIMIT_MAX: Duration = Duration::from_secs(60);

/// Time limit of a pass in a cell without a completed baseline, as a multiple of a cold pass. A
/// thrashing pass may take too long to wait for. This factor and the ones above are chosen.
const COLD_PASS_TIME_LIMIT_FACTOR: u32 = 4;

/// Number of OOM kills of a contender in all runs of a cell after which it counts as out of memory.
/// One or two may happen when reclaim is slower than the reads.
const OOM_KILLS_MAX: u32 = 3;

/// Plan of the measurements.
pub struct Matrix<'a, 'r> {
    /// Rows of the cells, each in every state that applies to it.
    pub rows: &'r [Row],
    /// Size of the data and of the work.
    pub scale: Scale,
    /// Cache states that are measured.
    pub states: &'a [CacheState],
    /// Number of runs of each cell and contender.
    pub runs: u32,
    /// End of the measurements; `None`: no time limit.
    pub deadline: Option<Instant>,
    /// Folder with the data.
    pub folder: &'a Path,
    /// Depths of the queues that cold rows are compared with as well.
    pub queue_depths: &'a [NonZero<u32>],
    /// System calls to deny in the measured processes.
    pub denied: &'a [DeniedInterface],
    /// Interrupt of the whole run.
    pub interrupt: &'a Interrupt,
}

/// Row in one state, with its measurements.
pub struct RowState<'r> {
    pub row: &'r Row,
    /// Cache state before each run.
    pub state: CacheState,
    /// Runs of each contender: [`Contender::ALL`] in their order, then a queue of each depth if
    /// the row is cold and has a form with a queue.
    pub contenders: Vec<ContenderRuns>,
    /// Maximum number of data pages in the wrong cache state at the start of a measurement.
    pub stray_pages: u64,
}

/// Measurements of one contender in a cell.
#[derive(Default)]
pub struct ContenderRuns {
    /// The library, a baseline, or a queue.
    pub contender: Contender,
    /// Completed measurements.
    pub measured: Vec<Measurement>,
    /// Reason of the abort, after which no further run starts.
    pub abort_reason: Option<AbortReason>,
    /// Number of runs ended by the OOM killer of the memory group.
    pub oom_kills: u32,
}

/// Reason for a measurement without figures. Each ends the runs of its contender in the cell.
/// [`OutOfMemory`](AbortReason::OutOfMemory) does so after `OOM_KILLS_MAX` kills.
#[derive(Clone, Debug, PartialEq)]
pub enum AbortReason {
    /// The reads failed or cannot be made here, or the process gave no valid answer.
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
    /// Returns every cell of the plan, state by state, without measurements.
    pub fn cells(&self) -> Vec<RowState<'r>> {
        let cell = |state: CacheState, row: &'r Row| {
            let has_queue = state == CacheState::Cold && row.queued().is_some();
            let queue_depths = if has_queue { self.queue_depths } else { &[] };
            let queues = queue_depths.iter().map(|&depth| Contender::Queue { depth: depth.get() });
            let contenders = Contender::ALL.into_iter().chain(queues);
            let without_runs = |contender| ContenderRuns { contender, ..ContenderRuns::default() };
            RowState {
                row,
                state,
                contenders: contenders.map(without_runs).collect(),
                stray_pages: 0,
            }
        };
        let applies = |state: CacheState| move |row: &&Row| state.applies_to(row, self.scale);
        let cells_of_state = |&state: &CacheState| {
            let rows = self.rows.iter().filter(applies(state));
            rows.map(move |row| cell(state, row))
        };
        self.states.iter().flat_map(cells_of_state).collect()
    }

    /// Measures the cells until all runs are done or the time limit is reached.
    ///
    /// # Errors
    /// A contender read other bytes than the others, a measurement could not be prepared, or the
    /// run was interrupted. The cells keep the measurements made until then.
    pub fn measure(&self, cells: &mut [RowState<'r>]) -> Result<(), Failure> {
        let bar = ProgressBar::new(cells.len() as u64 * u64::from(self.runs));
        let measured = self.run_rounds(cells, &bar);
        bar.finish_and_clear();
        measured
    }

    /// Runs the rounds over all cells, until the deadline. In a round, each contender is measured
    /// once in each cell, in an order that changes from cell to cell. The results are added to
    /// `cells`. Different checksums of one row are a failure.
    fn run_rounds(&self, cells: &mut [RowState<'r>], bar: &ProgressBar) -> Result<(), Failure> {
        let mut files: HashMap<Data, Vec<(PathBuf, u64)>> = HashMap::new();
        let mut checksums: HashMap<&str, (u64, Contender)> = HashMap::new();
        // Duration of a cold pass of each row by its fastest baseline, for the time limits of the
        // row's cells of other states. Cold cells come first in a round. Without a cold cell or a
        // completed baseline the duration is unknown.
        let mut cold_seconds: HashMap<&str, f64> = HashMap::new();
        for round in 0..self.runs {
            for (cell_index, cell) in cells.iter_mut().enumerate() {
                let data = cell.row.data;
                let files = files.entry(data).or_insert_with(|| data.files(self.folder));
                let cold_pass_seconds = cold_seconds.get(cell.row.name.as_str()).copied();
                let contender_count = cell.contenders.len();
                for index in contender_order(round as usize + cell_index, contender_count) {
                    if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Ok(());
                    }
                    let sum = self.measure_contender(cell, index, files, cold_pass_seconds)?;
                    if let Some(sum) = sum {
                        let contender = cell.contenders[index].contender;
                        check_checksums(&mut checksums, cell.row, contender, sum)?;
                    }
                }
                if let (CacheState::Cold, Some(fastest)) =
                    (cell.state, cell.fastest_baseline_seconds())
                {
                    cold_seconds.insert(&cell.row.name, fastest);
                }
                bar.inc(1);
            }
        }
        Ok(())
    }

    /// Measures one contender once more, unless it was aborted before. Repeats a run that was
    /// killed for memory. Returns the checksum of the bytes, or `None` if the contender is aborted.
    /// `files` has the path and the length of each data file. `cold_pass_seconds` is the duration
    /// of a cold pass in seconds, if known.
    fn measure_contender(
        &self,
        cell: &mut RowState<'r>,
        contender_index: usize,
        files: &[(PathBuf, u64)],
        cold_pass_seconds: Option<f64>,
    ) -> Result<Option<u64>, Failure> {
        while cell.contenders[contender_index].abort_reason.is_none() {
            let contender = cell.contenders[contender_index].contender;
            let outcome = self.measure_once(cell, contender, files, cold_pass_seconds)?;
            let runs = &mut cell.contenders[contender_index];
            match outcome {
                Ok(measured) => {
                    let sum = measured.checksum;
                    runs.measured.push(measured);
                    return Ok(Some(sum));
                }
                Err(reason) => {
                    runs.oom_kills += u32::from(reason == AbortReason::OutOfMemory);
                    let is_final =
                        reason != AbortReason::OutOfMemory || runs.oom_kills == OOM_KILLS_MAX;
                    runs.abort_reason = is_final.then_some(reason);
                }
            }
        }
        Ok(None)
    }

    /// Makes one measurement in a new process, which is killed at the end of this function. Returns
    /// the measurement, or the reason for which it was aborted. An outer error ends the whole run.
    /// The process starts before the files are prepared, and waits for its order meanwhile.
    /// `cold_pass_seconds` is the duration of a cold pass, if known.
    fn measure_once(
        &self,
        cell: &mut RowState<'r>,
        contender: Contender,
        files: &[(PathBuf, u64)],
        cold_pass_seconds: Option<f64>,
    ) -> Result<Result<Measurement, AbortReason>, Failure> {
        let failure_at = |step: &str, error: &dyn std::fmt::Display| {
            Failure::Run(format!("{}: {step}: {error}", cell.row.name))
        };
        let group = cell.state.group_bytes(cell.row).map(MemoryGroup::new).transpose();
        // A group comes with the list of the removed groups of killed runs, which is not used.
        let group = group.map_err(|error| failure_at("a memory group", &error))?;
        // Locals drop in reverse order: the process ends before its memory group is removed.
        let mut worker = WorkerProcess::start(WorkerTask::Bench)
            .map_err(|error| failure_at("a process", &error))?;
        if let Some((group, _)) = &group {
            group.add(worker.id()).map_err(|error| failure_at("a memory group", &error))?;
        }
        let stray_pages = states::prepare(cell.state, files, self.interrupt)?;
        cell.stray_pages = cell.stray_pages.max(stray_pages);
        let order = MeasurementOrder {
            row: cell.row.name.clone(),
            scale: self.scale,
            contender,
            state: cell.state,
            folder: OrderPath(self.folder.to_path_buf()),
            refused: self.denied.to_vec(),
        };
        // An ended process is detected below, together with the reason.
        let _ = worker.send_order(&order);
        let start = Instant::now();
        let deadline = start + cell.time_limit(contender, cold_pass_seconds);
        match worker.receive_answer(Some(deadline), self.interrupt) {
            Ok(MeasurementOutcome::Measured(measured)) => Ok(Ok(measured)),
            Ok(MeasurementOutcome::Failed(reason)) => Ok(Err(AbortReason::Failed(reason))),
            Err(AnswerError::Interrupted) => Err(Failure::Interrupted),
            Err(AnswerError::TimedOut) => {
                let seconds = start.elapsed().as_secs_f64();
                Ok(Err(AbortReason::TooSlow { seconds }))
            }
            Err(AnswerError::Malformed(message)) => Ok(Err(AbortReason::Failed(message))),
            Err(AnswerError::Ended(status)) => {
                let is_killed = status.signal() == Some(Signal::KILL.as_raw());
                let oom_kills = group.as_ref().map_or(0, |(group, _)| group.counts().oom_kills);
                Ok(Err(match is_killed && oom_kills > 0 {
                    true => AbortReason::OutOfMemory,
                    false => AbortReason::Failed(format!("its process ended: {status}")),
                }))
            }
        }
    }
}

impl RowState<'_> {
    /// Shortest time of a baseline in seconds, if one has completed. Queues do not count: they may
    /// be so much faster than the baselines that the limits would end all of these.
    fn fastest_baseline_seconds(&self) -> Option<f64> {
        let baselines = self.contenders.iter().filter(|runs| runs.contender.baseline().is_some());
        let seconds = baselines.flat_map(|runs| runs.measured.iter().map(|run| run.seconds));
        seconds.min_by(f64::total_cmp)
    }

    /// Time limit of a measurement of `contender`, from its order to its answer. It is a multiple
    /// of the time of the cell's fastest baseline, in the state `Second` with a cold first pass
    /// added. Before any baseline has completed, it is a multiple of `cold_pass_seconds`, the time
    /// of a cold pass over the data, for each pass of the state. [`TIME_LIMIT_EXTRA`] is added.
    /// [`TIME_LIMIT_MAX`] is the upper bound, and the limit if both times are unknown.
    fn time_limit(&self, contender: Contender, cold_pass_seconds: Option<f64>) -> Duration {
        let limit_factor = match contender {
            Contender::Ours => LIBRARY_TIME_LIMIT_FACTOR,
            // Baselines and queues.
            _ => BASELINE_TIME_LIMIT_FACTOR,
        };
        let limit = match (self.fastest_baseline_seconds(), cold_pass_seconds) {
            (Some(fastest), _) => {
                // The wait includes the unmeasured first pass, which may take far longer.
                let data_bytes = self.row.data.bytes() as f64;
                let cold_seconds = cold_pass_seconds.unwrap_or(data_bytes / COLD_BYTES_PER_SECOND);
                let first_pass_seconds =
                    if self.state == CacheState::Second { cold_seconds } else { 0.0 };
                Duration::from_secs_f64(fastest + first_pass_seconds) * limit_factor
            }
            (None, Some(cold_pass_seconds)) => {
                let passes: u32 = self.state.passes().iter().sum();
                Duration::from_secs_f64(cold_pass_seconds) * passes * COLD_PASS_TIME_LIMIT_FACTOR
            }
            (None, None) => TIME_LIMIT_MAX,
        };
        (limit + TIME_LIMIT_EXTRA).min(TIME_LIMIT_MAX)
    }
}

/// Returns the order of `count` contenders in a round, as indices. Over `count` rounds each
/// contender comes once at each position and, if `count` is even, once directly after each other
/// one. An odd `count` needs twice as many rounds: each pair then occurs twice. The effects that a
/// contender leaves behind are therefore balanced (E. J. Williams, "Experimental designs balanced
/// for the estimation of residual effects of treatments", Australian Journal of Scientific Research
/// A 2, 1949).
fn contender_order(round: usize, count: usize) -> Vec<usize> {
    // 0, 1, count - 1, 2, count - 2, …
    let first_round = (0..count).map(|position| match position % 2 {
        1 => position.div_ceil(2),
        _ => (count - position / 2) % count,
    });
    let mut order: Vec<usize> = first_round.map(|first| (first + round) % count).collect();
    if count % 2 == 1 && round / count % 2 == 1 {
        order.reverse();
    }
    order
}

/// Assumed minimum speed of a cold pass in bytes per second, for its time limit.
const COLD_BYTES_PER_SECOND: f64 = 100e6;

/// Checks that all contenders of a row read the same bytes in all states. `checksums` has the first
/// checksum of each row with its contender; a new row is added. `sum` is the one of `contender`.
fn check_checksums<'a>(
    checksums: &mut HashMap<&'a str, (u64, Contender)>,
    row: &'a Row,
    contender: Contender,
    sum: u64,
) -> Result<(), Failure> {
    let (first_sum, first_contender) = *checksums.entry(&row.name).or_insert((sum, contender));
    match first_sum == sum {
        true => Ok(()),
        false => Err(Failure::Run(format!(
            "{}: {} has read other bytes than {}",
            row.name,
            contender.name(),
            first_contender.name()
        ))),
    }
}

/// Returns the reason if memory cgroups cannot be used here, or `None`. Creates a group for the
/// test and removes it.
pub fn memory_cgroup_problem() -> Option<String> {
    // The process of the test is not moved into the group, so any limit shows the problem.
    let limit_bytes = 1 << 30;
    MemoryGroup::new(limit_bytes).err().map(|error: SwapError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;

    /// Two contenders read checksum 7 and a third one 8: the error names the first and the third.
    #[test]
    fn checksum_mismatch_error_names_both_contenders() {
        let row = &rows::rows(Scale::Small)[0];
        let mut checksums = HashMap::new();
        check_checksums(&mut checksums, row, Contender::Pread, 7).unwrap();
        check_checksums(&mut checksums, row, Contender::Ours, 7).unwrap();
        let different = check_checksums(&mut checksums, row, Contender::Mmap, 8);
        let Err(Failure::Run(message)) = different else { panic!() };
        assert_eq!(message, format!("{}: mmap has read other bytes than pread", row.name));
    }

    /// Over as many rounds as contenders, each one is once at each position, and each ordered pair
    /// of an even number of contenders is once in sequence. An odd number needs twice the rounds,
    /// and has everything twice. The rounds do not begin with the first one.
    #[test]
    fn round_orders_balance_positions_and_predecessors_of_contenders() {
        for count in 4..9 {
            let repetitions = 1 + count % 2;
            let rounds = count + 1..count + 1 + repetitions * count;
            let orders: Vec<Vec<usize>> =
                rounds.map(|round| contender_order(round, count)).collect();
            let mut positions = vec![0; count * count];
            let mut pairs = vec![0; count * count];
            for order in &orders {
                for (position, contender) in order.iter().enumerate() {
                    positions[position * count + contender] += 1;
                }
                for pair in order.windows(2) {
                    pairs[pair[0] * count + pair[1]] += 1;
                }
            }
            assert_eq!(positions, vec![repetitions; count * count], "{count}");
            let is_same = |index| index / count == index % count;
            let expected: Vec<usize> = (0..count * count)
                .map(|index| if is_same(index) { 0 } else { repetitions })
                .collect();
            assert_eq!(pairs, expected, "{count}");
        }
        // The published square of four treatments.
        assert_eq!(contender_order(0, 4), [0, 1, 3, 2]);
    }

    /// Limits: a baseline 3 times the fastest, the library 10 times, each plus half a second.
    #[test]
    fn run_time_limit_is_a_multiple_of_the_fastest_baseline() {
        let row = Row::of("stream/256MiB/4KiB", Scale::Usual).unwrap();
        // `seconds` is the time of the only completed baseline, pread.
        let limit_seconds = |state, seconds: Option<f64>, contender, cold_pass_seconds| {
            let mut contenders = Contender::ALL
                .map(|contender| ContenderRuns { contender, ..ContenderRuns::default() });
            contenders[1].measured.extend(seconds.map(|seconds| Measurement {
                seconds,
                cpu_seconds: 0.0,
                peak_bytes: None,
                device_bytes: None,
                checksum: 0,
                note: None,
            }));
            let contenders = contenders.into();
            let cell = RowState { row: &row, state, contenders, stray_pages: 0 };
            cell.time_limit(contender, cold_pass_seconds).as_secs_f64()
        };
        assert_eq!(limit_seconds(CacheState::Cold, None, Contender::Direct, None), 60.0);
        assert_eq!(limit_seconds(CacheState::Cold, Some(2.0), Contender::Direct, Some(2.0)), 6.5);
        assert_eq!(limit_seconds(CacheState::Cold, Some(2.0), Contender::Ours, Some(2.0)), 20.5);
        // Three times the sum of the second pass (1 s) and the first: 3 s, or 2.68 s at 100 MB/s
        // if its time is not known.
        let second = limit_seconds(CacheState::Second, Some(1.0), Contender::Direct, Some(3.0));
        assert_eq!(second, 12.5);
        let second = limit_seconds(CacheState::Second, Some(1.0), Contender::Direct, None);
        assert!((second - 11.553).abs() < 0.001, "{second}");
        // Two passes of 1 s each, times 4.
        assert_eq!(limit_seconds(CacheState::Short, None, Contender::Direct, Some(1.0)), 8.5);
    }
}
