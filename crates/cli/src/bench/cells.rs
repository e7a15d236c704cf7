//! Results of the cells: medians, the ratio to the fastest baseline, and the comparison with the
//! goal.
//!
//! A *cell* is one row of accesses in one cache state. A *contender* is the library, a baseline, or
//! a program with a queue, which is no baseline.

use readpath_eval::access_patterns::Baseline;
use readpath_eval::policy_matrix::geometric_mean;
use serde::Serialize;

use super::one::Contender;
use super::rounds::{AbortReason, ContenderRuns, RowState};
use super::states::CacheState;

/// Cell of the table and of the JSON document.
#[derive(Clone, Debug, Serialize)]
pub struct BenchCell {
    /// Name of the row.
    pub row: String,
    /// Cache state before each run.
    pub state: CacheState,
    /// Bytes requested by the accesses in one pass.
    pub bytes: u64,
    /// Figures of the library, and of two baselines: calls of `pread` and a mapping.
    pub ours: Figures,
    pub pread: Figures,
    pub mmap: Figures,
    /// Figures of `O_DIRECT`, which bypasses the kernel page cache.
    pub o_direct: Figures,
    /// Figures of a program that keeps many reads in flight, by their number. Empty without
    /// `--queue`, for states other than `Cold`, and for rows that no queue can read.
    pub queues: Vec<QueueFigures>,
    /// Time of the fastest queue ÷ the library's time; null without one.
    pub queue_ratio: Option<f64>,
    /// Name of the fastest baseline.
    pub best: Option<&'static str>,
    /// Time of the fastest baseline ÷ the library's time.
    pub ratio: Option<f64>,
    /// Processor time of the library ÷ processor time of the fastest baseline.
    pub cpu_ratio: Option<f64>,
    /// Baseline of the goal. Null if the goal takes the fastest one, if its own baseline is the
    /// fastest one, or if there is no fastest one.
    #[serde(rename = "judged_beside")]
    pub goal_baseline: Option<&'static str>,
    /// Time of the goal's baseline ÷ the library's time. Equals `ratio` if that baseline is the
    /// fastest.
    pub judged_ratio: Option<f64>,
    /// Minimum of `judged_ratio` that meets the goal.
    pub ratio_min: f64,
    /// True if the cell meets its goal. False also if the library was too slow and has only a lower
    /// bound, or failed without a figure where a baseline has complete runs. `None` if no
    /// comparison is possible.
    pub is_met: Option<bool>,
    /// Caveat about the figures.
    pub note: Option<String>,
}

/// Figures of a program with a queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueFigures {
    /// Number of reads in flight.
    pub depth: u32,
    /// Medians of its runs.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Figures of one contender: medians of its runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Median duration of the completed runs; with `is_lower_bound` the time until the abort.
    /// `None` after a second pass that was too slow.
    pub seconds: Option<f64>,
    /// Throughput: bytes requested by the accesses per second.
    pub mib_per_s: Option<f64>,
    /// User and system time.
    pub cpu_seconds: Option<f64>,
    /// Peak memory of the process.
    pub peak_bytes: Option<u64>,
    /// Bytes read from storage.
    pub device_bytes: Option<u64>,
    /// Duration of each run, in order.
    pub seconds_by_run: Vec<f64>,
    /// Reason of an abort or a failure.
    pub broken_off: Option<String>,
    /// True if `seconds` is the time until an abort, a lower bound of the duration.
    #[serde(rename = "is_bound")]
    pub is_lower_bound: bool,
}

/// Summary of the cells of one state.
#[derive(Clone, Debug, Serialize)]
pub struct StateSummary {
    /// Cache state before each run.
    pub state: CacheState,
    /// Number of cells that have a ratio.
    pub cells: usize,
    /// Geometric mean of the ratios to the fastest baseline.
    pub geometric_mean: Option<f64>,
    /// Smallest of these ratios.
    pub minimum: Option<f64>,
    /// Row with the smallest ratio.
    pub minimum_row: Option<String>,
    /// Number of cells that were compared with their goal. Cells in which the library failed are
    /// among them. These have no ratio, and are not in `cells`.
    #[serde(rename = "judged")]
    pub judged_cells: usize,
    /// Number of these cells that miss their goal.
    #[serde(rename = "below")]
    pub missed_goals: usize,
    /// Comparison with the fastest queue; null if no cell has one.
    pub queue: Option<QueueSummary>,
}

/// Summary of the ratios to the fastest queue of each cell.
#[derive(Clone, Debug, Serialize)]
pub struct QueueSummary {
    /// Number of cells that have such a ratio, at least one.
    pub cells: usize,
    /// Geometric mean of the ratios.
    pub geometric_mean: f64,
    /// Smallest of the ratios, and its row.
    pub minimum: f64,
    pub minimum_row: String,
}

/// Computes the figures of a cell and compares them with its goal. The ratios divide the time of a
/// baseline by the time of the library. `None` where one of the two has no figure. A baseline with
/// only a lower bound (`is_lower_bound`) is never the fastest. As the goal's own baseline it counts
/// with its bound, and so does the library.
pub fn judge(cell: &RowState<'_>) -> BenchCell {
    let [_passes_before, measured_passes] = cell.state.passes();
    let bytes = cell.row.bytes();
    let figures =
        |runs: &ContenderRuns| Figures::of(runs, cell.state, bytes * u64::from(measured_passes));
    // Every cell begins with these contenders, in this order. Queues may follow.
    let [ours, pread, mmap, o_direct] =
        std::array::from_fn(|index| figures(&cell.contenders[index]));
    let queues: Vec<QueueFigures> = cell
        .contenders
        .iter()
        .filter_map(|runs| match runs.contender {
            Contender::Queue { depth } => Some(QueueFigures { depth, figures: figures(runs) }),
            _ => None,
        })
        .collect();
    let baselines =
        [(Baseline::Pread, &pread), (Baseline::Mmap, &mmap), (Baseline::Direct, &o_direct)];
    let best = fastest(baselines);
    let ratio_to = |seconds: Option<f64>| Some(seconds? / ours.seconds?);
    let ratio = ratio_to(best.map(|(.., seconds)| seconds));
    let queue_ratio = ratio_to(fastest_queue(&queues).and_then(|fastest| fastest.figures.seconds));
    let cpu_ratio = best.and_then(|(_, figures, _)| Some(ours.cpu_seconds? / figures.cpu_seconds?));
    // A goal without a baseline of its own is compared with the fastest one.
    let goal = cell.state.goal(cell.row.is_mapping());
    let best_baseline = best.map(|(baseline, ..)| baseline);
    let goal_baseline =
        goal.baseline.filter(|baseline| best_baseline.is_some_and(|best| best != *baseline));
    let judged_ratio = match goal.baseline {
        Some(required) => {
            let required = baselines.iter().find(|(baseline, _)| *baseline == required);
            ratio_to(required.and_then(|(_, figures)| figures.seconds))
        }
        None => ratio,
    };
    // The limit of the processor time applies where the library is not faster.
    let exceeds_cpu_limit = ratio.is_some_and(|ratio| ratio <= 1.0)
        && goal
            .cpu_ratio_max
            .is_some_and(|ratio_max| cpu_ratio.is_some_and(|ratio| ratio > ratio_max));
    let is_met = match judged_ratio {
        Some(ratio) => Some(ratio >= goal.ratio_min && !exceeds_cpu_limit && !ours.is_lower_bound),
        // The library failed where a baseline has figures: the goal is missed. A library that has
        // not run yet, at the time limit, misses nothing.
        None => best.is_some().then_some(false).filter(|_| ours.broken_off.is_some()),
    };
    let note = cell_caveats(cell);
    BenchCell {
        row: cell.row.name.clone(),
        state: cell.state,
        bytes,
        best: best_baseline.map(Baseline::name),
        ratio,
        cpu_ratio,
        goal_baseline: goal_baseline.map(Baseline::name),
        judged_ratio,
        ratio_min: goal.ratio_min,
        is_met,
        note,
        ours,
        pread,
        mmap,
        o_direct,
        queues,
        queue_ratio,
    }
}

/// Returns the queue with the shortest median. `None` if every queue lacks complete runs, or is a
/// lower bound.
pub fn fastest_queue(queues: &[QueueFigures]) -> Option<&QueueFigures> {
    fastest(queues.iter().map(|queue| (queue, &queue.figures))).map(|(queue, ..)| queue)
}

/// Returns the contender with the shortest median, its figures, and the median in seconds.
/// Contenders without a completed run and lower bounds are left out; `None` if no other is left.
fn fastest<'f, T>(
    contenders: impl IntoIterator<Item = (T, &'f Figures)>,
) -> Option<(T, &'f Figures, f64)> {
    contenders
        .into_iter()
        .filter(|(_, figures)| !figures.is_lower_bound)
        .filter_map(|(contender, figures)| Some((contender, figures, figures.seconds?)))
        .min_by(|(.., left_seconds), (.., right_seconds)| left_seconds.total_cmp(right_seconds))
}

/// Joins the caveats of a cell: of the library, of the cache state, and of contenders with an abort
/// or with killed runs. `None` if there is none.
fn cell_caveats(cell: &RowState<'_>) -> Option<String> {
    // The library is the first contender.
    let library_note = cell.contenders[0].measured.iter().find_map(|run| run.note.clone());
    let stray_pages_note = (cell.stray_pages > 0).then(|| match cell.state.is_cold() {
        true => format!("not cold: up to {} pages stayed in memory", cell.stray_pages),
        false => {
            format!("not all in the kernel's cache: up to {} pages were not", cell.stray_pages)
        }
    });
    let contender_notes = cell.contenders.iter().filter_map(|runs| {
        let contender = runs.contender;
        let text = match &runs.abort_reason {
            // The table shows other contenders that were too slow by a bound, except in the state
            // `Second`.
            Some(AbortReason::TooSlow { .. })
                if contender != Contender::Ours && cell.state != CacheState::Second =>
            {
                None
            }
            Some(reason) => Some(reason.text()),
            None if runs.oom_kills > 0 => Some(format!(
                "{} more runs were killed: the group's memory did not suffice",
                runs.oom_kills
            )),
            None => None,
        };
        Some(format!("{}: {}", contender.name(), text?))
    });
    [library_note, stray_pages_note]
        .into_iter()
        .flatten()
        .chain(contender_notes)
        .reduce(|notes, note| format!("{notes}; {note}"))
}

impl AbortReason {
    /// Formats the reason of an abort for the table's notes. The group is the memory cgroup of the
    /// state `Short`.
    fn text(&self) -> String {
        match self {
            AbortReason::Failed(reason) => reason.clone(),
            AbortReason::OutOfMemory => "killed: the group's memory did not suffice".to_owned(),
            AbortReason::TooSlow { seconds } => {
                format!("aborted after {seconds:.1} s: too slow")
            }
        }
    }
}

impl Figures {
    /// Computes the medians of a contender's runs. A contender that was too slow has no processor
    /// time, and the time until the abort in place of the median; in the state `Second` neither.
    /// After any other abort, the medians of its completed runs stay. `bytes` is the number of
    /// bytes that the measured passes of a run request.
    fn of(runs: &ContenderRuns, state: CacheState, bytes: u64) -> Figures {
        let measured = &runs.measured;
        // `None` if one of the runs lacks the figure.
        let median_of = |figure: &dyn Fn(&super::one::Measurement) -> Option<f64>| {
            let values: Option<Vec<f64>> = measured.iter().map(figure).collect();
            values.and_then(median)
        };
        let too_slow_seconds = match runs.abort_reason {
            Some(AbortReason::TooSlow { seconds }) => Some(seconds),
            _ => None,
        };
        // In the state `Second` the run may have been aborted in its first pass. No bound for the
        // second pass follows.
        let bound_seconds = too_slow_seconds.filter(|_| state != CacheState::Second);
        // The completed runs of a contender that was too slow are its faster ones.
        let of_complete_runs = |median: Option<f64>| median.filter(|_| too_slow_seconds.is_none());
        let seconds =
            bound_seconds.or_else(|| of_complete_runs(median_of(&|run| Some(run.seconds))));
        Figures {
            seconds,
            mib_per_s: seconds.map(|seconds| bytes as f64 / f64::from(1 << 20) / seconds),
            cpu_seconds: of_complete_runs(median_of(&|run| Some(run.cpu_seconds))),
            peak_bytes: median_of(&|run| Some(run.peak_bytes? as f64)).map(|bytes| bytes as u64),
            device_bytes: median_of(&|run| Some(run.device_bytes? as f64))
                .map(|bytes| bytes as u64),
            seconds_by_run: measured.iter().map(|run| run.seconds).collect(),
            broken_off: runs.abort_reason.as_ref().map(AbortReason::text),
            is_lower_bound: bound_seconds.is_some(),
        }
    }
}

/// Median; for an even number of values, the mean of the middle two. `None` without values.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl StateSummary {
    /// Summarizes the cells of one state: number, geometric mean and minimum of the ratios, and
    /// number of missed goals.
    pub fn of(state: CacheState, cells: &[BenchCell]) -> StateSummary {
        let cells_of_state = || cells.iter().filter(|cell| cell.state == state);
        let rows_with_ratio = || cells_of_state().filter_map(|cell| Some((cell.ratio?, &cell.row)));
        let ratios: Vec<f64> = rows_with_ratio().map(|(ratio, _)| ratio).collect();
        let slowest = rows_with_ratio().min_by(|left, right| left.0.total_cmp(&right.0));
        StateSummary {
            state,
            cells: ratios.len(),
            geometric_mean: (!ratios.is_empty()).then(|| geometric_mean(&ratios)),
            minimum: slowest.map(|(ratio, _)| ratio),
            minimum_row: slowest.map(|(_, row)| row.clone()),
            judged_cells: cells_of_state().filter(|cell| cell.is_met.is_some()).count(),
            missed_goals: cells_of_state().filter(|cell| cell.is_met == Some(false)).count(),
            queue: QueueSummary::of(cells_of_state()),
        }
    }
}

impl QueueSummary {
    /// Summarizes the ratios to the fastest queues. `None` if no cell has such a ratio.
    fn of<'a>(cells: impl Iterator<Item = &'a BenchCell>) -> Option<QueueSummary> {
        let ratios: Vec<(f64, &str)> =
            cells.filter_map(|cell| Some((cell.queue_ratio?, cell.row.as_str()))).collect();
        let by_ratio = |left: &&(f64, &str), right: &&(f64, &str)| left.0.total_cmp(&right.0);
        let &(minimum, minimum_row) = ratios.iter().min_by(by_ratio)?;
        let values: Vec<f64> = ratios.iter().map(|&(ratio, _)| ratio).collect();
        Some(QueueSummary {
            cells: ratios.len(),
            geometric_mean: geometric_mean(&values),
            minimum,
            minimum_row: minimum_row.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::one::Measurement;
    use super::super::picture::svg;
    use super::super::rows::{Row, Scale};
    use super::super::tell::{cells_table, summary_sentence};
    use super::*;

    /// One run per duration in seconds, each with the same processor time.
    fn runs(seconds: &[f64], cpu_seconds: f64) -> ContenderRuns {
        let measured = seconds.iter().map(|&seconds| Measurement {
            seconds,
            cpu_seconds,
            peak_bytes: Some(1 << 20),
            device_bytes: None,
            checksum: 1,
            note: None,
        });
        ContenderRuns { measured: measured.collect(), ..ContenderRuns::default() }
    }

    /// Judged cell of the row of this name, with the runs of the library, pread, mmap and O_DIRECT.
    fn judged(state: CacheState, row: &str, contenders: [ContenderRuns; 4]) -> BenchCell {
        let mut contenders = contenders;
        for (runs, contender) in contenders.iter_mut().zip(Contender::ALL) {
            runs.contender = contender;
        }
        let row = Row::of(row, Scale::Usual).unwrap();
        judge(&RowState { row: &row, state, contenders: contenders.into(), stray_pages: 0 })
    }

    /// The library takes 1 s, a queue of 8 takes 2 s (median of 3, 2 and 1) and one of 32 was
    /// aborted after 0.1 s, which is no figure: the ratio is 2. A cell without queues does not
    /// enter the summary, whose mean of 2 and 0.5 is 1.
    #[test]
    fn queue_ratio_compares_with_fastest_complete_queue() {
        let row = Row::of("stream/16MiB/4KiB", Scale::Usual).unwrap();
        let cell = |queue_seconds: &[f64]| {
            let mut contenders: Vec<ContenderRuns> = (0..4).map(|_| runs(&[1.0], 0.1)).collect();
            let contender = Contender::Queue { depth: 8 };
            contenders.push(ContenderRuns { contender, ..runs(queue_seconds, 0.1) });
            contenders.push(ContenderRuns {
                contender: Contender::Queue { depth: 32 },
                abort_reason: Some(AbortReason::TooSlow { seconds: 0.1 }),
                ..ContenderRuns::default()
            });
            judge(&RowState { row: &row, state: CacheState::Cold, contenders, stray_pages: 0 })
        };
        let faster = cell(&[3.0, 2.0, 1.0]);
        assert_eq!((faster.queue_ratio, faster.ratio), (Some(2.0), Some(1.0)));
        assert_eq!(fastest_queue(&faster.queues).map(|queue| queue.depth), Some(8));
        let four = || std::array::from_fn(|_| runs(&[1.0], 0.1));
        let without = judged(CacheState::Cold, "map/touches", four());
        assert_eq!((without.queues.len(), without.queue_ratio), (0, None));
        let cells = [faster, without.clone(), cell(&[0.5])];
        let summary = StateSummary::of(CacheState::Cold, &cells).queue.unwrap();
        assert_eq!((summary.cells, summary.geometric_mean, summary.minimum), (2, 1.0, 0.5));
        assert!(StateSummary::of(CacheState::Cold, &[without]).queue.is_none());
    }

    /// Throughput of 16 MiB in 0.5 s: 32 MiB/s. Medians: library 0.5 s, pread 0.4 s, mmap 0.2 s.
    /// The shorter bound of the aborted O_DIRECT does not count.
    #[test]
    fn cell_ratio_compares_with_fastest_completed_baseline() {
        let aborted = ContenderRuns {
            abort_reason: Some(AbortReason::TooSlow { seconds: 0.1 }),
            ..ContenderRuns::default()
        };
        let contenders =
            [runs(&[0.9, 0.5, 0.1], 0.3), runs(&[0.4], 0.1), runs(&[0.3, 0.1], 0.2), aborted];
        let cell = judged(CacheState::Cold, "stream/16MiB/4KiB", contenders);
        assert_eq!((cell.best, cell.ratio), (Some("mmap"), Some(0.2 / 0.5)));
        assert_eq!(cell.cpu_ratio, Some(0.3 / 0.2));
        assert_eq!((cell.ours.mib_per_s, cell.is_met), (Some(32.0), Some(false)));
        assert!(cell.o_direct.is_lower_bound && cell.o_direct.cpu_seconds.is_none());
    }

    /// In the state `Second` a run that was too slow gives no bound: the contender has no figure,
    /// also after completed runs, and a note. The fastest of the others, mmap, takes twice the
    /// library's time. A library that was too slow misses the goal.
    #[test]
    fn contender_too_slow_in_second_pass_is_noted_and_has_no_figure() {
        let too_slow = |completed_seconds: &[f64]| ContenderRuns {
            abort_reason: Some(AbortReason::TooSlow { seconds: 9.0 }),
            ..runs(completed_seconds, 0.1)
        };
        let contenders = [runs(&[1.0], 0.1), too_slow(&[0.5]), runs(&[2.0], 0.1), too_slow(&[])];
        let cell = judged(CacheState::Second, "stream/16MiB/4KiB", contenders);
        assert_eq!((cell.best, cell.ratio), (Some("mmap"), Some(2.0)));
        assert_eq!((cell.pread.seconds, cell.pread.cpu_seconds), (None, None));
        assert_eq!(cell.pread.seconds_by_run, [0.5]);
        let notes = "pread: aborted after 9.0 s: too slow; O_DIRECT: aborted after 9.0 s: too slow";
        assert_eq!(cell.note.as_deref(), Some(notes));
        let contenders =
            [too_slow(&[0.5]), runs(&[1.0], 0.1), runs(&[2.0], 0.1), runs(&[2.0], 0.1)];
        let cell = judged(CacheState::Second, "stream/16MiB/4KiB", contenders);
        assert_eq!((cell.ratio, cell.is_met), (None, Some(false)));
    }

    /// The library takes 1 s. A cached copy is judged against pread: 0.95 s ÷ 1 s meets the
    /// minimum of 0.9. A mapping is judged against mmap, the fastest one: 0.5 s ÷ 1 s misses it.
    #[test]
    fn cached_cells_are_judged_against_pread_for_copies_mmap_for_mappings() {
        let contenders =
            || [runs(&[1.0], 0.1), runs(&[0.95], 0.1), runs(&[0.5], 0.1), runs(&[9.0], 0.1)];
        let copy = judged(CacheState::Cached, "stream/16MiB/4KiB", contenders());
        assert_eq!((copy.goal_baseline, copy.judged_ratio), (Some("pread"), Some(0.95)));
        assert_eq!((copy.ratio, copy.is_met), (Some(0.5), Some(true)));
        let mapping = judged(CacheState::Cached, "map/touches", contenders());
        assert_eq!((mapping.goal_baseline, mapping.is_met), (None, Some(false)));
    }

    /// The library needs twice the processor time of pread. The limit of 1.1 times applies to a
    /// library that takes as long as pread (1 s), and not to a faster one (0.9 s).
    #[test]
    fn cold_cell_without_speedup_is_judged_by_cpu_time() {
        let contenders = |our_seconds| {
            [runs(&[our_seconds], 0.2), runs(&[1.0], 0.1), runs(&[2.0], 0.1), runs(&[2.0], 0.1)]
        };
        assert_eq!(judged(CacheState::Cold, "copy/16MiB", contenders(1.0)).is_met, Some(false));
        assert_eq!(judged(CacheState::Cold, "copy/16MiB", contenders(0.9)).is_met, Some(true));
    }

    /// The library was aborted after 1 s, and pread takes 2 s: the ratio of 2 is an upper bound.
    /// The second cell misses its goal by the processor time, as above.
    #[test]
    fn aborted_library_run_is_the_reason_of_a_missed_goal() {
        let miss_reason = |ours: ContenderRuns| {
            let contenders = [ours, runs(&[2.0], 0.1), runs(&[3.0], 0.1), runs(&[3.0], 0.1)];
            let cell = judged(CacheState::Cold, "copy/16MiB", contenders);
            assert_eq!(cell.is_met, Some(false));
            cells_table(&[&cell]).rows()[0].last().cloned()
        };
        let aborted = ContenderRuns {
            abort_reason: Some(AbortReason::TooSlow { seconds: 1.0 }),
            ..ContenderRuns::default()
        };
        assert_eq!(miss_reason(aborted).as_deref(), Some("aborted"));
        assert_eq!(miss_reason(runs(&[2.0], 0.2)).as_deref(), Some("processor time"));
    }

    /// Ratios of the two completed cells: 1 s ÷ 0.25 s, and 1 s ÷ 1 s.
    #[test]
    fn cell_with_killed_library_run_misses_goal_and_enters_no_mean() {
        let killed = ContenderRuns {
            abort_reason: Some(AbortReason::OutOfMemory),
            ..ContenderRuns::default()
        };
        let baselines = || [runs(&[1.0], 0.1), runs(&[2.0], 0.1), runs(&[2.0], 0.1)];
        let [pread, mmap, direct] = baselines();
        let killed_cell =
            judged(CacheState::Short, "random/64KiB/1-threads", [killed, pread, mmap, direct]);
        assert_eq!((killed_cell.ratio, killed_cell.is_met), (None, Some(false)));
        assert!(killed_cell.note.as_ref().is_some_and(|note| note.contains("killed")));
        let completed = |seconds: f64| {
            let [pread, mmap, direct] = baselines();
            judged(
                CacheState::Short,
                "stream/256MiB/4KiB",
                [runs(&[seconds], 0.1), pread, mmap, direct],
            )
        };
        let alone = StateSummary::of(CacheState::Short, std::slice::from_ref(&killed_cell));
        assert!(summary_sentence(&alone).ends_with("; 1 of 1 miss the goal\n"));
        let cells = [killed_cell, completed(0.25), completed(1.0)];
        let summary = StateSummary::of(CacheState::Short, &cells);
        assert_eq!((summary.cells, summary.missed_goals), (2, 1));
        let picture = svg(&cells, std::slice::from_ref(&summary), "title");
        for text in [summary_sentence(&summary), picture] {
            assert!(text.contains("1 of 3 miss the goal"), "{text}");
        }
        // Square root of 4 × 1.
        assert!((summary.geometric_mean.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(summary.minimum, Some(1.0));
    }
}
