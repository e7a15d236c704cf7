//! A process: a state machine that returns its next action and receives completions.
//!
//! It is the loop of a fio thread in inverted form. Each iteration has these steps:
//!
//! 1. With `depth` operations in flight, wait for `batch_complete` completions, or for as many as
//!    `iodepth_low` demands, and collect them.
//! 2. Stop if the run time has passed or another job ends this one.
//! 3. If enough operations were issued or collected since the last pause, or enough time has
//!    passed, wait for all in flight, and pause. If a backlog of writes is full, wait and verify
//!    it.
//! 4. If enough writes were issued since the last sync, sync the files. The process waits for the
//!    call, while operations in flight continue. With cached writes, the call waits for all of them
//!    (`fsync(2)`).
//! 5. If a rate or a flow delays the next operation, wait for all in flight, and for its time.
//! 6. Issue the next operation of the pass. At its end wait for all in flight, sync and verify if
//!    the job demands it. Then start another pass if there are loops, bytes or time left.
//!
//! Verification without a backlog repeats the pass: the same random choices return the same
//! positions, and the written data is read there. No list of writes is needed.
//!
//! An operation counts as in flight until it is *collected*, later than its completion in a batch.

use std::collections::BTreeSet;

use readpath_core::readahead::Advice;
use readpath_core::request::{Op, Priority, ProcessId};
use readpath_core::splitmix;
use readpath_core::unit::{PAGE_BYTES, Time};

use super::FileId;
use super::chance::RandomChoices;
use super::layout::FileArea;
use super::offsets::{PositionRules, ProcessOffsets, TooManyBlocks};
use super::pace::{DepthSearch, RateControl, SearchedDepth, SteadyStateDetector};
use super::random::ProcessSeeds;
use super::rules::ProcessRules;
use super::together::ProcessDependencies;
use crate::job::{Job, JobEngine};
use crate::operation_log::ProcessLog;

mod advice;
mod issue;
mod script;
mod syncs;
mod verification;

pub use advice::{DueAdvice, GivenAdvice};
pub use script::Lateness;
pub use script::ScriptStep;
use script::TraceSteps;
use verification::Verification;

/// Next action of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Issue this operation.
    Operation(ProcessOperation),
    /// Wait for a completion. Operations that are issued and not yet submitted are submitted now.
    WaitForCompletion,
    /// Sync the files, for all completed writes. Then call [`synced`](Process::synced).
    Sync {
        /// True if the files' data suffices (`fdatasync(2)`).
        is_data_enough: bool,
    },
    /// Sleep until this time. Operations can be in flight only while the process replays a trace at
    /// its recorded times, or waits for the think time of a listed read.
    WaitUntil(Time),
    /// The process has ended. No operation is in flight.
    Ended,
}

/// A read or a write of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessOperation {
    /// File of the operation.
    pub file: FileId,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub bytes: u64,
    /// Direction.
    pub op: Op,
    /// True if all operations since the last such one, including this one, are submitted now. The
    /// operation fills a batch (`iodepth_batch`) or the queue depth.
    pub is_batch_end: bool,
    /// True if the process closes the file afterwards.
    pub closes: bool,
}

/// A read of a process that has no job file. Within a process, also the position of any operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenRead {
    /// File of the read.
    pub file: FileId,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub bytes: u64,
}

/// Identity of a process within the jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobProcess {
    /// Index among all processes of the workload.
    pub id: ProcessId,
    /// Index of its job in the job file.
    pub job: usize,
    /// Index among the processes of the job, from 0.
    pub process_index: u32,
    /// Number of `stonewall` options before it: it starts when all lower phases have ended.
    pub phase: u32,
}

/// One process of a job.
///
/// Order of calls: [`next`](Process::next) until it returns a wait. Then call it again when the
/// time has come or an operation is complete ([`completed`](Process::completed), once per
/// operation). `now` never decreases. The first call starts the process.
///
/// Invariants: `completed_not_collected ≤ in_flight ≤ depth`. No memory is allocated after
/// construction.
#[derive(Debug)]
pub struct Process {
    /// Number, job and phase.
    identity: JobProcess,
    /// Options of the job.
    rules: ProcessRules,
    /// Its area in each of its files.
    areas: Vec<AreaState>,
    /// Reads that replace the job's positions, the next one last.
    remaining_reads: Option<Vec<GivenRead>>,
    /// For each remaining read, true if no later one uses its file. The next one last.
    closes_after_read: Vec<bool>,
    /// Think time before each remaining read, the next one last.
    think_times: Vec<Time>,
    /// Advice between the listed reads, and the present think time.
    advice: advice::AdviceQueue,
    /// Steps of a trace that replace the job's pattern.
    script: Option<TraceSteps>,
    /// Delays behind the times of the trace.
    lateness: Lateness,
    /// Options of the job about positions.
    position_rules: PositionRules,
    /// Random streams.
    random: RandomChoices,
    /// Links to other processes.
    dependencies: ProcessDependencies,
    /// Maximum and minimum rates.
    pace: RateControl,
    /// Verification of its writes.
    verification: Verification,
    /// Detection of a steady rate, if the job demands one.
    steady: Option<SteadyStateDetector>,
    /// Search for the queue depth, if the job demands one.
    search: Option<DepthSearch>,
    /// Present state.
    state: ProcessState,
    /// Time of the first call. `None` before it, and while the process waits for another job.
    started_at: Option<Time>,
    /// The file whose turn it is.
    file_selection: FileSelection,
    /// Operations up to and including the next one at a random position (`rw=randread:8`).
    operations_until_draw: u32,
    /// True if the next operation is not marked in the random map: an operation between random
    /// ones found no position in its file, as in fio.
    skips_map_mark: bool,
    /// State of the draws at the start of the pass, to which the verification returns.
    pass_start: PassStart,
    /// Direction of the last operation.
    last_op: Op,
    /// Bytes issued in this pass.
    pass_bytes: u64,
    /// Operations issued in this pass.
    pass_operations: u64,
    /// Drawn direction of the next operation, in a process with a rate.
    drawn_op: Option<Op>,
    /// Bytes transferred in the present zone.
    zone_bytes: u64,
    /// Operations of the job's work issued since the ramp time, without verifications.
    issued_operations: u64,
    /// True once the ramp time has passed, or if there is none.
    is_ramp_over: bool,
    /// True if the rate is steady or the queue depth is found, which ends the process.
    has_converged: bool,
    /// Reason why the process ended early.
    failure: Option<&'static str>,
    /// End of the last pause, or start of the process.
    worked_since: Time,
    /// Number of repetitions that still follow.
    loops_left: u32,
    /// Bytes of the job's work issued since the start, without verifications.
    issued_bytes: u64,
    /// Operations that are issued and not yet collected.
    in_flight: u32,
    /// Operations that have completed and are not yet collected.
    completed_not_collected: u32,
    /// Operations since the last full batch. A full queue or a wait submits them early and does not
    /// reset the counter, as in fio.
    batch_operations: u32,
    /// Operations collected since the start, verifications included.
    collected_operations: u64,
    /// Count of collected or issued operations (the one that the job names) at the last pause.
    count_at_pause: u64,
    /// True if an operation was issued since the last check for a pause.
    is_pause_unchecked: bool,
    /// Writes issued since the start.
    writes_issued: u64,
    /// Syncs between operations since the start, without data syncs and the sync at the end.
    fsyncs: u64,
    /// True if no operation was issued since the last sync.
    is_synced: bool,
    /// Log of its operations.
    log: Option<Box<ProcessLog>>,
}

/// An area, and the present position in it.
#[derive(Debug)]
struct AreaState {
    /// The area.
    area: FileArea,
    /// Positions in it.
    offsets: ProcessOffsets,
    /// True if the area has no position left in this pass.
    is_done: bool,
    /// True if an operation of this pass has used the area.
    is_open: bool,
}

/// State of the draws at the start of a pass. The fields are the same as in [`Process`].
#[derive(Clone, Debug)]
struct PassStart {
    random: RandomChoices,
    file_selection: FileSelection,
    operations_until_draw: u32,
    skips_map_mark: bool,
}

impl PassStart {
    /// Start of the first pass.
    fn new(random: RandomChoices) -> PassStart {
        PassStart {
            random,
            file_selection: FileSelection::default(),
            operations_until_draw: 1,
            skips_map_mark: false,
        }
    }
}

/// The file whose turn it is. A *turn* is a number of operations in one file (option
/// file_service_type of fio).
#[derive(Clone, Copy, Debug, Default)]
struct FileSelection {
    /// The next file in rotation.
    next: usize,
    /// The file in use.
    current: Option<usize>,
    /// Number of operations left in its turn.
    operations_left: u32,
}

/// State of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessState {
    /// Issues operations. The initial state, also after a pause and at the start of a pass.
    Issuing,
    /// Waits for all in flight, then continues as stated.
    Draining(AfterDrain),
    /// Pauses as the job demands (option thinktime of fio). No operation is in flight.
    Pausing { until: Time },
    /// Sleeps, because a rate or a flow delays the next operation. No operation is in flight.
    Delayed { until: Time },
    /// Demands a sync with the next action. `then` is the state after it.
    SyncDue { is_data_enough: bool, then: AfterSync },
    /// Waits for the sync.
    Syncing(AfterSync),
    /// The end. No operation is in flight.
    Ended,
}

/// Continuation after all operations in flight have completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterDrain {
    /// Pauses as the job demands (option thinktime of fio).
    Pause,
    /// A rate or a flow delays the next operation until this time.
    Delay(Time),
    /// Syncs the files, then goes on.
    Sync {
        /// True if the files' data suffices (`fdatasync(2)`).
        is_data_enough: bool,
    },
    /// Starts the verification of the backlog, or ends it if it is in progress.
    ToggleBacklogCheck,
    /// Syncs, verifies, starts another pass, or ends, whichever is due first.
    NextPass,
    /// Ends the process.
    End,
}

/// Continuation after a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterSync {
    /// Goes on with the pass.
    Issue,
    /// As [`AfterDrain::NextPass`].
    NextPass,
    /// Ends the process.
    End,
}

impl Process {
    /// Creates a process of `job` on `areas`, at least one. `identity` is its number and its job;
    /// `dependencies` are its links to other processes. The first pass is one of the `loops`.
    ///
    /// # Errors
    /// Fails if an area has too many blocks for random positions.
    pub(super) fn new(
        job: &Job,
        identity: JobProcess,
        areas: &[FileArea],
        dependencies: ProcessDependencies,
        run_seed: u64,
    ) -> Result<Process, TooManyBlocks> {
        let own_seed = seed_of(run_seed, job.seed, identity.id);
        let position_rules = PositionRules::new(job, areas.len());
        let is_wide = areas.iter().any(|area| position_rules.is_beyond_32_bits(area.bytes));
        let is_clone = identity.process_index > 0;
        let seeds = ProcessSeeds::new(job, identity.id.0, is_clone, run_seed);
        let mut random = RandomChoices::new(job, seeds, is_wide, own_seed);
        let mut area_states = Vec::new();
        for area in areas {
            let offsets = ProcessOffsets::new(job, &position_rules, area, &mut random)?;
            area_states.push(AreaState { area: *area, offsets, is_done: false, is_open: false });
        }
        let rules = ProcessRules::new(job, areas);
        Ok(Process {
            identity,
            loops_left: rules.loops - 1,
            pass_start: PassStart::new(random.clone()),
            skips_map_mark: false,
            areas: area_states,
            remaining_reads: None,
            closes_after_read: Vec::new(),
            think_times: Vec::new(),
            advice: advice::AdviceQueue::default(),
            script: None,
            lateness: Lateness::default(),
            random,
            dependencies,
            pace: RateControl::new(
                &job.rate,
                position_rules.smallest_bytes_by_direction(),
                [job.pattern.reads_percent > 0, job.pattern.reads_percent < 100],
            ),
            verification: Verification::new(job.verify, job.pattern.reads_percent < 100),
            steady: job.steady.map(SteadyStateDetector::new),
            search: job.latency_target.map(|target| DepthSearch::new(target, rules.depth)),
            state: ProcessState::Issuing,
            started_at: None,
            file_selection: FileSelection::default(),
            operations_until_draw: 1,
            last_op: Op::Read,
            pass_bytes: 0,
            pass_operations: 0,
            drawn_op: None,
            zone_bytes: 0,
            issued_bytes: 0,
            issued_operations: 0,
            is_ramp_over: rules.ramp == Time::ZERO,
            has_converged: false,
            failure: None,
            worked_since: Time::ZERO,
            in_flight: 0,
            completed_not_collected: 0,
            batch_operations: 0,
            collected_operations: 0,
            count_at_pause: 0,
            is_pause_unchecked: false,
            writes_issued: 0,
            fsyncs: 0,
            is_synced: false,
            log: None,
            position_rules,
            rules,
        })
    }

    /// Replaces the job's positions by these reads in one pass: their bytes together end the pass
    /// and the process. `think_times` has the pause before each read, or is empty. Both lists are
    /// stored in reverse: the next entry is the last. Without reads, the largest block is a page.
    pub(crate) fn set_reads(&mut self, mut reads: Vec<GivenRead>, mut think_times: Vec<Time>) {
        think_times.reverse();
        self.think_times = think_times;
        let bytes = || reads.iter().map(|read| read.bytes);
        self.rules.limit_bytes = bytes().sum();
        self.rules.pass_bytes = self.rules.limit_bytes;
        self.rules.block_bytes_largest = bytes().max().unwrap_or(PAGE_BYTES);
        reads.reverse();
        // In reverse order, the first read of a file is its last one.
        let mut files = BTreeSet::new();
        self.closes_after_read = reads.iter().map(|read| files.insert(read.file)).collect();
        self.remaining_reads = Some(reads);
    }

    /// Keeps the cached pages of the files that the process opens.
    pub(crate) const fn keep_cached_pages(&mut self) {
        self.rules.invalidates = false;
    }

    /// Replaces the job's pattern by these steps. Each has at most `largest_bytes`, and together
    /// they transfer `all_bytes`, which end the process.
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

    /// Enables a log of its operations.
    pub fn keep_log(&mut self, log: ProcessLog) {
        self.log = Some(Box::new(log));
    }

    /// Identifier in the run: the index among all processes.
    pub const fn id(&self) -> ProcessId {
        self.identity.id
    }

    /// Index of its job in the job file.
    pub const fn job(&self) -> usize {
        self.identity.job
    }

    /// Index among the job's processes, from 0.
    pub const fn clone_index(&self) -> u32 {
        self.identity.process_index
    }

    /// Phase: the process starts when all processes of lower phases have ended.
    pub const fn phase(&self) -> u32 {
        self.identity.phase
    }

    /// Earliest start, relative to the start of the run.
    pub const fn start_delay(&self) -> Time {
        self.rules.start_delay
    }

    /// I/O priority. `None` means the default, or the caller's.
    pub const fn priority(&self) -> Option<Priority> {
        self.rules.priority
    }

    /// I/O engine.
    pub const fn engine(&self) -> JobEngine {
        self.rules.engine
    }

    /// True for direct I/O.
    pub const fn is_direct(&self) -> bool {
        self.rules.is_direct
    }

    /// Returns true if the process can write.
    pub const fn writes(&self) -> bool {
        self.rules.writes
    }

    /// True if cached data of a file is dropped before its first use.
    pub const fn invalidates(&self) -> bool {
        self.rules.invalidates
    }

    /// Returns true if an operation issued at `issued` is measured, which excludes the ramp time
    /// (`ramp_time`) and the search for a queue depth, if its end ends the job.
    pub fn is_measured(&self, issued: Time) -> bool {
        self.is_past_ramp(issued)
            && self.search.as_ref().is_none_or(|search| search.is_measured(issued))
    }

    /// Returns true if an operation issued at `issued` is not in the ramp time.
    fn is_past_ramp(&self, issued: Time) -> bool {
        // Before the start there is no ramp time to exclude.
        self.started_at.is_none_or(|begun| issued.since(begun) >= self.rules.ramp)
    }

    /// Returns the state of the search for a queue depth (`latency_target`). `None` without a
    /// search.
    pub fn searched_depth(&self) -> Option<SearchedDepth> {
        self.search.as_ref().map(DepthSearch::searched_depth)
    }

    /// Returns the seed of the written contents. `None` if they are not verified (`verify`).
    pub fn content_seed(&self) -> Option<u64> {
        self.verification.is_on().then_some(self.rules.content_seed)
    }

    /// Returns true if the reads in flight are verifications. No writes are in flight at the same
    /// time.
    pub fn is_checking(&self) -> bool {
        self.verification.is_checking()
    }

    /// Returns the reason of an early end: the process was slower than its job allows. `None` if it
    /// was fast enough.
    pub fn failure(&self) -> Option<&'static str> {
        self.failure
    }

    /// Returns the delays of the operations behind the times of a trace.
    pub const fn lateness(&self) -> Lateness {
        self.lateness
    }

    /// Advice when a file is opened, for `posix_fadvise(2)`.
    pub const fn advice(&self) -> Advice {
        self.rules.advice
    }

    /// Advice when a file is mapped, for `madvise(2)`. Only for the engine `mmap`.
    pub const fn mapping_advice(&self) -> Advice {
        self.rules.mapping_advice
    }

    /// Maximum queue depth.
    pub const fn depth(&self) -> u32 {
        self.rules.depth
    }

    /// Maximum size of an operation.
    pub const fn block_bytes_max(&self) -> u64 {
        self.rules.block_bytes_largest
    }

    /// Returns the files of the process, each once, in order: of its listed reads, or of its areas.
    /// Listed reads that were issued already do not count.
    pub fn files(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = match &self.remaining_reads {
            Some(reads) => reads.iter().map(|read| read.file).collect(),
            None => self.areas.iter().map(|state| state.area.file).collect(),
        };
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Returns the bytes that the job demands, or `None` if it is limited by time only. The actual
    /// number can differ by less than a block per loop, and the run time can end it earlier.
    pub fn bytes_planned(&self) -> Option<u64> {
        let loops = u64::from(self.rules.loops);
        let bytes_max = self.rules.limit_operations.saturating_mul(self.rules.block_bytes_largest);
        (!self.rules.is_time_based)
            .then(|| self.rules.limit_bytes.min(bytes_max).saturating_mul(loops))
    }

    /// Records a successful operation that completed at time `now`, with its latency and its
    /// transferred `bytes`. The process ends soon if the latency exceeds `max_latency`, or if the
    /// rate is steady or the queue depth is found. Called before [`completed`](Process::completed).
    pub fn record_latency(
        &mut self,
        now: Time,
        issued: Time,
        operation: &ProcessOperation,
        bytes: u64,
    ) {
        let latency = now.since(issued);
        self.pace.on_completed(operation.op, bytes);
        // As in fio, the log includes the search for a queue depth.
        if self.is_past_ramp(issued)
            && let Some(log) = &mut self.log
        {
            log.on_completed(issued, now, operation);
        }
        if self.rules.latency_max.is_some_and(|latency_max| latency > latency_max) {
            self.failure = Some("an operation has taken longer than max_latency");
        }
        let is_steady = self.steady.as_mut().is_some_and(|steady| steady.record_end(now, bytes));
        let is_found = self.search.as_mut().is_some_and(|search| search.record_end(now, issued));
        self.has_converged |= is_steady || is_found;
    }

    /// Records the completion of an operation, successful or not. The time has no effect.
    pub fn completed(&mut self, _now: Time) {
        assert!(self.completed_not_collected < self.in_flight, "only what was issued completes");
        self.completed_not_collected += 1;
    }
}

/// Returns a seed for the process `id`, derived from the run's seed, the job's and its index. The
/// rotation brings the well-mixed high bits of a product to lower positions. Its 29 bits are
/// chosen.
pub fn seed_of(run_seed: u64, job_seed: u64, id: ProcessId) -> u64 {
    let hash = |value: u64| value.wrapping_mul(splitmix::STEP).rotate_left(29);
    hash(hash(run_seed) ^ job_seed) ^ u64::from(id.0)
}
