//! A process: it says what it does next, and hears when something is done.
//!
//! The loop of a fio thread, turned inside out. Each turn of it:
//! 1. stop when the runtime is up, or another job takes this one along;
//! 2. with `depth` operations in flight, wait until `batch_complete` of them
//!    are complete, or as many as `iodepth_low` asks for, and take these;
//! 3. when enough operations were taken since the last pause, wait for all in
//!    flight, and pause; so too where a rate or a flow holds the next one back;
//! 4. when so many writes were issued since the last time, put what was written on the
//!    medium: by a call that the process waits for, while what is in flight goes on; of
//!    writes through the page cache the call waits for all (`fsync(2)`);
//! 5. issue the next operation of the pass. At its end wait for all in flight, put what
//!    was written on the medium if the job says so, and read it back if it says that; then begin
//!    another pass if there are loops, bytes or time left.
//!
//! To read back, the pass is gone through once more: the same draws give the same places, and
//! what was written is read there. So nothing need be remembered of it.
//!
//! An operation counts as in flight until it is *taken*, which is later than
//! its completion when completions are collected.

use std::collections::BTreeSet;

use readpath_core::readahead::Advice;
use readpath_core::request::{Op, Priority, ProcessId};
use readpath_core::unit::Time;

use super::FileId;
use super::chance::RandomChoices;
use super::layout::FileArea;
use super::pace::{DepthSearch, RateControl, SteadyStateDetector};
use super::places::{PositionRules, ProcessOffsets, TooManyBlocks};
use super::rules::ProcessRules;
use super::together::ProcessDependencies;
use crate::job::{Job, JobEngine};
use crate::operation_log::ProcessLog;

mod issue;
mod script;
mod verification;

pub use script::Lateness;
pub(crate) use script::ScriptStep;
use script::TraceSteps;
use verification::Verification;

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// It issues this.
    Operation(ProcessOperation),
    /// It waits for a completion. What it has issued and not submitted goes out now.
    WaitForCompletion,
    /// It waits for its files to be on the medium, as far as their writes are complete;
    /// when they are, [`synced`](Process::synced) is called.
    Sync {
        /// Whether the files' data is enough (`fdatasync(2)`).
        is_data_enough: bool,
    },
    /// It sleeps until this time. Nothing of it is in flight, unless it replays a trace at its
    /// recorded times: then completions come meanwhile.
    WaitUntil(Time),
    /// It has ended. Nothing of it is in flight.
    Ended,
}

/// A read or a write of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessOperation {
    /// In which file.
    pub file: FileId,
    /// The first byte in the file.
    pub offset: u64,
    /// How many bytes; at least 1.
    pub bytes: u64,
    /// The direction.
    pub op: Op,
    /// Whether all that was issued since the last such operation, this one included, is
    /// submitted now, together: it fills a batch (`iodepth_batch`) or the depth.
    pub is_batch_end: bool,
    /// Whether the process closes the file behind it.
    pub closes: bool,
}

/// A place that a process reads, where no job file says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenRead {
    /// In which file.
    pub file: FileId,
    /// The first byte in the file.
    pub offset: u64,
    /// How many bytes; at least 1.
    pub bytes: u64,
}

/// Which process of which job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobProcess {
    pub id: ProcessId,
    pub job: usize,
    pub clone: u32,
    pub phase: u32,
}

/// One process of a job.
///
/// Order of calls: [`next`](Process::next) until it says to wait; then, when
/// the time has come or an operation is complete
/// ([`completed`](Process::completed), once for each), again. `now` never goes
/// backwards; the first call starts the process.
///
/// Invariants: `completed_not_collected ≤ in_flight ≤ depth`; nothing is allocated
/// after construction.
#[derive(Debug)]
pub struct Process {
    place: JobProcess,
    rules: ProcessRules,
    regions: Vec<AreaState>,
    /// What it reads, in place of its job's places; the next one last.
    listed: Option<Vec<GivenRead>>,
    /// Whether each of them is the last of its file, the next one last.
    closes: Vec<bool>,
    /// For how long it does something else before each of them, the next one last.
    thinks: Vec<Time>,
    /// Until when it does, before the next one.
    thinks_until: Option<Time>,
    /// What it does, and when, in place of its job's pattern.
    script: Option<TraceSteps>,
    late: Lateness,
    grain: PositionRules,
    chance: RandomChoices,
    ties: ProcessDependencies,
    pace: RateControl,
    verification: Verification,
    steady: Option<SteadyStateDetector>,
    search: Option<DepthSearch>,
    stage: ProcessState,
    begun: Option<Time>,
    turn: FileTurn,
    /// Operations up to the one whose place is drawn, that one included (`rw=randread:8`).
    draw_in: u32,
    /// True after an operation between random places found no place: the next one is not marked in
    /// the map, as in fio.
    is_between: bool,
    /// State of the draws at the start of the pass, from which it is read back.
    at_pass_start: (RandomChoices, FileTurn, u32, bool),
    /// Direction of the last operation.
    last_op: Op,
    /// Bytes and operations of this pass.
    pass_bytes: u64,
    pass_operations: u64,
    /// The direction that was drawn for an operation that a rate holds back.
    drawn: Option<Op>,
    /// Bytes moved in the zone that is in use.
    on_zone_bytes: u64,
    issued_operations: u64,
    is_ramp_over: bool,
    /// Whether its rate is steady, or its depth found, which ends it.
    is_enough: bool,
    /// Why it has ended before its work was done.
    failure: Option<&'static str>,
    /// When the last pause ended.
    worked_since: Time,
    loops_left: u32,
    issued_bytes: u64,
    in_flight: u32,
    completed_not_collected: u32,
    /// Operations since the last full batch. A full depth or a wait submits them early
    /// and does not start the count anew, as in fio.
    batched: u32,
    taken: u64,
    /// What `taken` was when the last pause was decided.
    taken_at_pause: u64,
    /// Whether an operation was issued since it was last asked whether to pause.
    may_pause: bool,
    writes_issued: u64,
    /// Whether nothing was issued since the last sync.
    is_synced: bool,
    /// What it writes down of its operations.
    log: Option<Box<ProcessLog>>,
}

/// An area, and where in it the process is.
#[derive(Debug)]
struct AreaState {
    area: FileArea,
    places: ProcessOffsets,
    is_done: bool,
}

/// The file whose turn it is.
#[derive(Clone, Copy, Debug, Default)]
struct FileTurn {
    /// The next file in turn.
    next: usize,
    /// The file in use, and how many more operations it has.
    current: Option<usize>,
    left: u32,
}

/// What the process is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessState {
    /// It issues operations. Entered at the start, after a pause, with a new pass.
    Issuing,
    /// It waits for all in flight, and goes on with the stage of the same name.
    Draining(AfterDrain),
    /// It sleeps; nothing is in flight.
    Pausing { until: Time },
    /// It asks for its files to be put on the medium, as soon as it is asked what it does
    /// next, and then goes on as the pass or its drain say.
    SyncDue { is_data_enough: bool, then: AfterSync },
    /// It waits for that.
    Syncing(AfterSync),
    /// The end; nothing is in flight, nothing follows.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterDrain {
    Pause,
    /// A rate or a flow holds it back until then.
    HoldBack(Time),
    Sync {
        is_data_enough: bool,
    },
    /// What was written is read back, as far as it waits for that; or has been.
    Check,
    NextPass,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterSync {
    Issue,
    NextPass,
    End,
}

impl Process {
    /// A process of `job` on `areas`, at least one.
    ///
    /// # Errors
    /// An area has more blocks than random places can be drawn of.
    pub(super) fn new(
        job: &Job,
        place: JobProcess,
        areas: &[FileArea],
        ties: ProcessDependencies,
        run_seed: u64,
    ) -> Result<Process, TooManyBlocks> {
        let own_seed = seed_of(run_seed, job.seed, place.id);
        let area_bytes = areas.iter().map(|area| area.bytes).sum();
        let grain = PositionRules::new(job, areas.len());
        let is_wide = areas.iter().any(|area| grain.is_beyond_32_bits(area.bytes));
        let mut chance = RandomChoices::new(job, place.id.0, run_seed, is_wide, own_seed);
        let mut regions = Vec::new();
        for area in areas {
            let places = ProcessOffsets::new(job, &grain, area, &mut chance)?;
            regions.push(AreaState { area: *area, places, is_done: false });
        }
        let rules = ProcessRules::new(job, area_bytes);
        Ok(Process {
            place,
            loops_left: rules.loops - 1,
            at_pass_start: (chance.clone(), FileTurn::default(), 1, false),
            is_between: false,
            regions,
            listed: None,
            closes: Vec::new(),
            thinks: Vec::new(),
            thinks_until: None,
            script: None,
            late: Lateness::default(),
            chance,
            ties,
            pace: RateControl::new(
                &job.rate,
                grain.least_bytes_of_directions(),
                [job.pattern.reads_percent > 0, job.pattern.reads_percent < 100],
            ),
            verification: Verification::new(job.verify, job.pattern.reads_percent < 100),
            steady: job.steady.map(SteadyStateDetector::new),
            search: job.latency_target.map(|target| DepthSearch::new(target, rules.depth)),
            stage: ProcessState::Issuing,
            begun: None,
            turn: FileTurn::default(),
            draw_in: 1,
            last_op: Op::Read,
            pass_bytes: 0,
            pass_operations: 0,
            drawn: None,
            on_zone_bytes: 0,
            issued_bytes: 0,
            issued_operations: 0,
            is_ramp_over: rules.ramp == Time::ZERO,
            is_enough: false,
            failure: None,
            worked_since: Time::ZERO,
            in_flight: 0,
            completed_not_collected: 0,
            batched: 0,
            taken: 0,
            taken_at_pause: 0,
            may_pause: false,
            writes_issued: 0,
            is_synced: false,
            log: None,
            grain,
            rules,
        })
    }

    /// Has it read these places, one pass of them, in place of those of its job; before each it
    /// does something else for so long, where that is said.
    pub(crate) fn follow(&mut self, mut readings: Vec<GivenRead>, mut thinks: Vec<Time>) {
        thinks.reverse();
        self.thinks = thinks;
        let bytes = || readings.iter().map(|reading| reading.bytes);
        self.rules.limit_bytes = bytes().sum();
        self.rules.pass_bytes = self.rules.limit_bytes;
        self.rules.block_bytes_largest = bytes().max().expect("there is one at least");
        readings.reverse();
        let mut used = BTreeSet::new();
        self.closes = readings.iter().map(|reading| used.insert(reading.file)).collect();
        self.listed = Some(readings);
    }

    /// Has it go through these steps in place of what its job says; none is larger than
    /// `largest_bytes`, and together they move `all_bytes`.
    pub(crate) fn set_steps(
        &mut self,
        steps: Box<dyn Iterator<Item = ScriptStep> + Send>,
        largest_bytes: u64,
        all_bytes: u64,
    ) {
        (self.rules.limit_bytes, self.rules.pass_bytes) = (all_bytes, all_bytes);
        self.rules.block_bytes_largest = largest_bytes;
        self.script = Some(TraceSteps::new(steps));
    }

    /// Has it write its operations down.
    pub fn keep_log(&mut self, log: ProcessLog) {
        self.log = Some(Box::new(log));
    }

    /// Its name in the run: its place among all processes.
    pub const fn id(&self) -> ProcessId {
        self.place.id
    }

    /// Its job: the place in the job file.
    pub const fn job(&self) -> usize {
        self.place.job
    }

    /// Which of the job's processes it is, from 0.
    pub const fn clone_index(&self) -> u32 {
        self.place.clone
    }

    /// It starts when all processes of lower phases have ended.
    pub const fn phase(&self) -> u32 {
        self.place.phase
    }

    /// It starts no earlier than this, counted from the start of the run.
    pub const fn start_delay(&self) -> Time {
        self.rules.start_delay
    }

    /// Its I/O priority; `None`: the default, or the caller's.
    pub const fn priority(&self) -> Option<Priority> {
        self.rules.priority
    }

    /// By which system call it moves its data.
    pub const fn engine(&self) -> JobEngine {
        self.rules.engine
    }

    /// Whether it bypasses the page cache.
    pub const fn is_direct(&self) -> bool {
        self.rules.is_direct
    }

    /// Whether any of its operations may be a write.
    pub const fn writes(&self) -> bool {
        self.rules.writes
    }

    /// Whether what is cached of a file is dropped when it first uses it.
    pub const fn invalidates(&self) -> bool {
        self.rules.invalidates
    }

    /// Whether an operation that was issued at `issued` is measured: none is while it warms up
    /// (`ramp_time`).
    pub fn is_measured(&self, issued: Time) -> bool {
        self.begun.is_none_or(|begun| issued.since(begun) >= self.rules.ramp)
    }

    /// The seed of what it writes, where what it reads is compared with that (`verify`).
    pub fn content_seed(&self) -> Option<u64> {
        self.verification.is_on().then_some(self.rules.content_seed)
    }

    /// Whether the reads that are in flight now are of what was written before, and so to be
    /// compared: with writes none are in flight at the same time.
    pub fn is_checking(&self) -> bool {
        self.verification.is_checking()
    }

    /// Why it has ended before its work was done: it was slower than its job allows.
    pub fn failure(&self) -> Option<&'static str> {
        self.failure
    }

    /// How many of its operations went out after the time that a trace gives them.
    pub const fn lateness(&self) -> Lateness {
        self.late
    }

    /// What it says of its pattern when it opens a file, to `posix_fadvise(2)`.
    pub const fn advice(&self) -> Advice {
        self.rules.advice
    }

    /// What it says of its pattern when it maps a file, to `madvise(2)`; only for the engine `mmap`.
    pub const fn mapping_advice(&self) -> Advice {
        self.rules.mapping_advice
    }

    /// The most operations that it keeps in flight.
    pub const fn depth(&self) -> u32 {
        self.rules.depth
    }

    /// The most bytes that one of its operations moves.
    pub const fn block_bytes_max(&self) -> u64 {
        self.rules.block_bytes_largest
    }

    /// The files that it uses, each once, in order.
    pub fn files(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = match &self.listed {
            Some(readings) => readings.iter().map(|reading| reading.file).collect(),
            None => self.regions.iter().map(|region| region.area.file).collect(),
        };
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The bytes that its job asks it to move; `None` when only time ends it. What it moves
    /// may differ by less than a block for each loop, and a runtime may end it before.
    pub fn bytes_planned(&self) -> Option<u64> {
        let loops = u64::from(self.rules.loops);
        let most = self.rules.limit_operations.saturating_mul(self.rules.block_bytes_largest);
        (!self.rules.is_time_based).then(|| self.rules.limit_bytes.min(most).saturating_mul(loops))
    }

    /// What an operation that is complete has taken; called before [`completed`](Process::completed)
    /// is, where it ended well; `bytes`: how many it has moved.
    pub fn took(&mut self, now: Time, issued: Time, operation: &ProcessOperation, bytes: u64) {
        let latency = now.since(issued);
        self.pace.ended(operation.op, bytes);
        if self.is_measured(issued)
            && let Some(log) = &mut self.log
        {
            log.ended(issued, now, operation);
        }
        if self.rules.latency_max.is_some_and(|most| latency > most) {
            self.failure = Some("an operation has taken longer than max_latency");
        }
        let is_steady = self.steady.as_mut().is_some_and(|steady| steady.ended(now, bytes));
        let is_found = self.search.as_mut().is_some_and(|search| search.ended(now, latency));
        self.is_enough |= is_steady || is_found;
    }

    /// An operation is complete, well or with an error.
    pub fn completed(&mut self, _now: Time) {
        assert!(self.completed_not_collected < self.in_flight, "only what was issued completes");
        self.completed_not_collected += 1;
    }

    /// Its files are on the medium, as it asked; or could not be put there.
    pub fn synced(&mut self, now: Time) {
        let ProcessState::Syncing(then) = self.stage else {
            panic!("only what was asked for is done")
        };
        self.is_synced = true;
        self.stage = match then {
            AfterSync::Issue => ProcessState::Issuing,
            AfterSync::NextPass => self.drained(AfterDrain::NextPass, now),
            AfterSync::End => self.drained(AfterDrain::End, now),
        };
    }
}

/// One seed for each process, from the run's, the job's, and its place.
pub fn seed_of(run_seed: u64, job_seed: u64, id: ProcessId) -> u64 {
    let spread = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    spread(spread(run_seed) ^ job_seed) ^ u64::from(id.0)
}
