//! Carries the measurements out: round after round over all cells, in each cell one way after the other,
//! each time another one first, each measurement in a process of its own.
//!
//! Rounds are outermost, so that what the machine does meanwhile falls on all cells alike; and when the
//! time is over, each cell has about as many runs as any other.
//!
//! Nobody waits for who is out of the race: a measurement ends when it has taken several times as long as
//! the fastest peer of its cell. It stands in the table as what it is, a bound.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use readpath_peers::kernel_swap::SwapError;
use readpath_peers::kernel_swap::group::MemoryGroup;
use rustix::process::Signal;

use super::one::{self, Measurement, MeasurementOrder, MeasurementOutcome, ReadWay};
use super::refused::Refused;
use super::rows::{Data, Row, Scale};
use super::states::{self, CacheState};
use crate::exit::Failure;
use crate::part::{Gone, OrderPath, WorkerProcess};
use crate::progress::Interrupt;

/// How many times as long as the fastest peer of the cell so far a peer may take, and ours.
const IDLE_TIMEOUT: [u32; 2] = [3, 10];

/// What is given on top of it: the start of the process, and noise where a cell is short.
const GRACE: Duration = Duration::from_millis(500);

/// The longest measurement, of whom nothing is known.
const LONGEST: Duration = Duration::from_secs(60);

/// How many times as long as a cold pass a pass may take with little memory: one that reads what it has
/// read before, and that was pushed out meanwhile, over and over, has no end that can be waited for.
const SHORT_IDLE_TIMEOUT: u32 = 4;

/// So many runs of a way in a cell are ended by the OOM killer of a memory group before it is believed
/// that there is no memory for it: one or two may be, when reclaim is slower than reads.
const OOM_KILLS_MAX: u32 = 3;

/// What is to be measured.
pub struct Matrix<'a, 'r> {
    /// The rows.
    pub rows: &'r [Row],
    /// The scale that they are of.
    pub scale: Scale,
    /// The states.
    pub states: &'a [CacheState],
    /// How many times each.
    pub runs: u32,
    /// When to stop; `None`: when all is done.
    pub deadline: Option<Instant>,
    /// The folder with the data.
    pub folder: &'a Path,
    /// What is refused to whoever reads.
    pub refused: &'a [Refused],
    /// Whether the run is to end.
    pub interrupt: &'a Interrupt,
}

/// A row in a state, with what was measured.
pub struct RowState<'r> {
    /// The row.
    pub row: &'r Row,
    /// The state.
    pub state: CacheState,
    /// Of each way, in the order of [`ReadWay::ALL`].
    pub ways: [ContenderRuns; 4],
    /// The most pages of the data that were not as the state wants them when a measurement began.
    pub stray_pages: u64,
}

/// What was measured of one way.
#[derive(Default)]
pub struct ContenderRuns {
    /// Those that came to their end.
    pub measured: Vec<Measurement>,
    /// Why there is no more.
    pub broken_off: Option<BrokenOff>,
    /// How many the OOM killer of the memory group has ended.
    pub oom_kills: u32,
}

/// Why a measurement gave no figures.
#[derive(Clone, Debug, PartialEq)]
pub enum BrokenOff {
    /// It can't be done so here.
    Failed(String),
    /// There was no memory for it.
    OutOfMemory,
    /// It was out of the race, so long after its start.
    TooSlow {
        /// How long it had taken.
        seconds: f64,
    },
}

impl<'r> Matrix<'_, 'r> {
    /// Every cell, not measured yet.
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

    /// Measures the cells, until all is done or the time is over.
    ///
    /// # Errors
    /// A way has read other bytes than the others, or the run was interrupted. The cells have what
    /// was measured until then.
    pub fn measure(&self, cells: &mut [RowState<'r>]) -> Result<(), Failure> {
        let bar = ProgressBar::new(cells.len() as u64 * u64::from(self.runs));
        let measured = self.measure_by(cells, &bar);
        bar.finish_and_clear();
        measured
    }

    fn measure_by(&self, cells: &mut [RowState<'r>], bar: &ProgressBar) -> Result<(), Failure> {
        let mut files: HashMap<Data, Vec<(PathBuf, u64)>> = HashMap::new();
        let mut sums: HashMap<&str, (u64, ReadWay)> = HashMap::new();
        // A cold pass of a row by its fastest peer: in this round it comes before what it is needed for.
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

    /// Measures one way once more, unless it was broken off before; gives the sum over what was read.
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

    /// One measurement.
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
        // What comes later is dropped first: the process has ended before its group goes.
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
        // One that has ended is found out below, with the reason.
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
                    false => BrokenOff::Failed(format!("its process has ended: {status}")),
                }))
            }
        }
    }
}

impl RowState<'_> {
    /// How long the fastest peer has taken, if one has come to its end.
    fn fastest_peer(&self) -> Option<f64> {
        let peers = ReadWay::ALL.iter().zip(&self.ways).filter(|(way, _)| way.peer().is_some());
        let seconds = peers.flat_map(|(_, runs)| runs.measured.iter().map(|run| run.seconds));
        seconds.min_by(f64::total_cmp)
    }

    /// How long a measurement may take, by what is known: how long a peer takes for the same, or else for a
    /// cold pass, in seconds.
    fn longest(&self, way: ReadWay, cold_pass: Option<f64>) -> Duration {
        let idle_timeout = IDLE_TIMEOUT[usize::from(way == ReadWay::Ours)];
        let longest = match (self.fastest_peer(), cold_pass) {
            (Some(fastest), _) => {
                // What is waited for includes the first pass, which may take far longer.
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

/// In which order the ways are measured. Over four rounds each comes once at each place, and once behind each other one
/// (E. J. Williams, "Experimental designs balanced for the estimation of residual effects of treatments",
/// Australian Journal of Scientific Research A 2, 1949): what one leaves behind is left to all alike.
fn turns(round: usize) -> [usize; 4] {
    [0, 1, 3, 2].map(|first| (first + round) % 4)
}

/// How fast a cold pass is believed to be at least.
const COLD_BYTES_PER_SECOND: f64 = 100e6;

/// All ways to a row read the same bytes, in all states.
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

/// Why no process can be given less memory here; `None` where it can.
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

    /// Of a peer three times as long as the fastest, of ours ten times, and half a second each.
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
        // The first pass takes 3 s, or 2.68 s at 100 MB/s, where that isn't known.
        assert_eq!(longest(CacheState::Second, Some(1.0), ReadWay::Direct, Some(3.0)), 12.5);
        let second = longest(CacheState::Second, Some(1.0), ReadWay::Direct, None);
        assert!((second - 11.553).abs() < 0.001, "{second}");
        // Two passes of 1 s each.
        assert_eq!(longest(CacheState::Short, None, ReadWay::Direct, Some(1.0)), 8.5);
    }
}
