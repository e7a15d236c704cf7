//! A process: it says what it does next, and hears when something is done.
//!
//! The loop of a fio thread, turned inside out. Each turn of it:
//! 1. stop when the runtime is up;
//! 2. with `depth` operations in flight, wait until `batch_complete` of them
//!    are complete, and take these;
//! 3. when enough operations were taken since the last pause, wait for all in
//!    flight, and pause;
//! 4. when so many writes were issued since the last time, put what was written on the
//!    medium: by a call that the process waits for, while what is in flight goes on; of
//!    writes through the page cache the call waits for all (`fsync(2)`);
//! 5. issue the next operation of the pass. At its end wait for all in flight, put what
//!    was written on the medium if the job says so; then begin another pass if there are
//!    loops, bytes or time left.
//!
//! An operation counts as in flight until it is *taken*, which is later than
//! its completion when completions are collected.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use readpath_core::readahead::Advice;
use readpath_core::request::{Op, Priority, ProcessId};
use readpath_core::unit::Time;

use super::FileId;
use super::layout::Area;
use super::places::{Places, below};
use super::rules::Rules;
use crate::job::{Engine, Job};

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It issues this.
    Operation(Operation),
    /// It waits for a completion. What it has issued and not submitted goes out now.
    WaitForCompletion,
    /// It waits for its files to be on the medium, as far as their writes are complete;
    /// when they are, [`synced`](Process::synced) is called.
    Sync {
        /// Whether the files' data is enough (`fdatasync(2)`).
        is_data_enough: bool,
    },
    /// It sleeps until this time. Nothing of it is in flight.
    WaitUntil(Time),
    /// It has ended. Nothing of it is in flight.
    Ended,
}

/// A read or a write of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
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
}

/// A place that a process reads, where no job file says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// In which file.
    pub file: FileId,
    /// The first byte in the file.
    pub offset: u64,
    /// How many bytes; at least 1.
    pub bytes: u64,
}

/// Which process of which job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
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
/// Invariants: `completed_not_taken ≤ in_flight ≤ depth`; nothing is allocated
/// after construction.
#[derive(Debug)]
pub struct Process {
    place: Place,
    rules: Rules,
    regions: Vec<Region>,
    /// What it reads, in place of its job's places; the next one last.
    listed: Option<Vec<Reading>>,
    random: Xoshiro256PlusPlus,
    stage: Stage,
    begun: Option<Time>,
    /// The region whose turn it is: files are served in turn, one operation each.
    turn: usize,
    loops_left: u32,
    issued_bytes: u64,
    in_flight: u32,
    completed_not_taken: u32,
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
}

/// An area, and where in it the process is.
#[derive(Debug)]
struct Region {
    area: Area,
    places: Places,
    is_done: bool,
}

/// What the process is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
    Sync { is_data_enough: bool },
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
    pub(super) fn new(job: &Job, place: Place, areas: &[Area], run_seed: u64) -> Process {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed_of(run_seed, job.seed, place.id));
        let regions = areas
            .iter()
            .map(|area| Region {
                area: *area,
                places: Places::new(job, area.bytes, &mut random),
                is_done: false,
            })
            .collect();
        let rules = Rules::new(job, areas.iter().map(|area| area.bytes).sum());
        Process {
            place,
            loops_left: rules.loops - 1,
            rules,
            regions,
            listed: None,
            random,
            stage: Stage::Issuing,
            begun: None,
            turn: 0,
            issued_bytes: 0,
            in_flight: 0,
            completed_not_taken: 0,
            batched: 0,
            taken: 0,
            taken_at_pause: 0,
            may_pause: false,
            writes_issued: 0,
            is_synced: false,
        }
    }

    /// Has it read these places, one pass of them, in place of those of its job.
    pub(crate) fn follow(&mut self, mut readings: Vec<Reading>) {
        let bytes = || readings.iter().map(|reading| reading.bytes);
        self.rules.limit_bytes = bytes().sum();
        self.rules.block_bytes_largest = bytes().max().expect("there is one at least");
        readings.reverse();
        self.listed = Some(readings);
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
    pub const fn engine(&self) -> Engine {
        self.rules.engine
    }

    /// Whether it bypasses the page cache.
    pub const fn is_direct(&self) -> bool {
        self.rules.is_direct
    }

    /// Whether any of its operations may be a write.
    pub const fn writes(&self) -> bool {
        self.rules.reads_percent < 100
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
        (!self.rules.is_time_based).then(|| self.rules.limit_bytes.saturating_mul(loops))
    }

    /// An operation is complete, well or with an error.
    pub fn completed(&mut self, _now: Time) {
        assert!(self.completed_not_taken < self.in_flight, "only what was issued completes");
        self.completed_not_taken += 1;
    }

    /// Its files are on the medium, as it asked; or could not be put there.
    pub fn synced(&mut self, now: Time) {
        let Stage::Syncing(then) = self.stage else { panic!("only what was asked for is done") };
        self.is_synced = true;
        self.stage = match then {
            AfterSync::Issue => Stage::Issuing,
            AfterSync::NextPass => self.drained(AfterDrain::NextPass, now),
            AfterSync::End => self.drained(AfterDrain::End, now),
        };
    }

    /// What it does next.
    pub fn next(&mut self, now: Time) -> Next {
        let begun = *self.begun.get_or_insert(now);
        loop {
            match self.stage {
                Stage::Issuing => {
                    if let Some(next) = self.issuing(now, begun) {
                        return next;
                    }
                }
                Stage::Draining(then) => {
                    self.take(self.completed_not_taken);
                    if self.in_flight > 0 {
                        return Next::WaitForCompletion;
                    }
                    self.stage = self.drained(then, now);
                }
                Stage::Pausing { until } if now < until => return Next::WaitUntil(until),
                Stage::Pausing { .. } => self.stage = Stage::Issuing,
                Stage::SyncDue { is_data_enough, then } => {
                    self.stage = Stage::Syncing(then);
                    return Next::Sync { is_data_enough };
                }
                Stage::Syncing(_) => return Next::WaitForCompletion,
                Stage::Ended => return Next::Ended,
            }
        }
    }

    /// One turn of the loop; `None` when the stage has changed.
    fn issuing(&mut self, now: Time, begun: Time) -> Option<Next> {
        if self.in_flight == self.rules.depth {
            if self.completed_not_taken < self.rules.batch_complete {
                return Some(Next::WaitForCompletion);
            }
            self.take(self.rules.batch_complete);
        }
        if self.rules.runtime.is_some_and(|runtime| now.since(begun) >= runtime) {
            self.stage = Stage::Draining(AfterDrain::End);
            return None;
        }
        if self.pauses_now() {
            self.stage = Stage::Draining(AfterDrain::Pause);
            return None;
        }
        if !self.is_pass_over()
            && let Some(is_data_enough) = self.sync_due()
        {
            self.stage = match self.rules.is_direct {
                true => Stage::SyncDue { is_data_enough, then: AfterSync::Issue },
                false => Stage::Draining(AfterDrain::Sync { is_data_enough }),
            };
            return None;
        }
        match self.operation() {
            Some(operation) => Some(Next::Operation(operation)),
            None => {
                self.stage = Stage::Draining(AfterDrain::NextPass);
                None
            }
        }
    }

    /// Whether a pause is due; asked once after each operation.
    fn pauses_now(&mut self) -> bool {
        let is_asked = std::mem::take(&mut self.may_pause);
        if !is_asked || self.rules.think_time == Time::ZERO {
            return false;
        }
        let is_due = self.taken - self.taken_at_pause >= self.rules.think_blocks;
        if is_due {
            // Before the wait for the rest: what that wait takes counts for the next pause.
            self.taken_at_pause = self.taken;
        }
        is_due
    }

    /// Whether its files are to be put on the medium before the next operation, and whether
    /// their data is enough; `fsync` goes before `fdatasync`, as in fio.
    fn sync_due(&self) -> Option<bool> {
        let is_due = |every: u32| every > 0 && self.writes_issued.is_multiple_of(every.into());
        match self.rules.sync {
            _ if self.is_synced || self.writes_issued == 0 => None,
            sync if is_due(sync.writes) => Some(false),
            sync if is_due(sync.data_writes) => Some(true),
            _ => None,
        }
    }

    /// The stage that follows when nothing is in flight any more.
    fn drained(&mut self, then: AfterDrain, now: Time) -> Stage {
        let syncs_at_end = self.rules.sync.at_end && self.writes_issued > 0 && !self.is_synced;
        let sync_due = |then| Stage::SyncDue { is_data_enough: false, then };
        match then {
            AfterDrain::Sync { is_data_enough } => {
                Stage::SyncDue { is_data_enough, then: AfterSync::Issue }
            }
            AfterDrain::NextPass if syncs_at_end => sync_due(AfterSync::NextPass),
            AfterDrain::End if syncs_at_end => sync_due(AfterSync::End),
            // A pause is not cut short by the end of the runtime, nor is it in fio.
            AfterDrain::Pause => Stage::Pausing { until: now + self.rules.think_time },
            AfterDrain::NextPass if self.goes_on() => {
                for region in &mut self.regions {
                    region.places.restart();
                    region.is_done = false;
                }
                self.turn = 0;
                Stage::Issuing
            }
            AfterDrain::NextPass | AfterDrain::End => Stage::Ended,
        }
    }

    /// Whether another pass follows: time first, then loops, then bytes that are still owed.
    fn goes_on(&mut self) -> bool {
        if self.rules.is_time_based {
            return true;
        }
        if self.loops_left > 0 {
            self.loops_left -= 1;
            return true;
        }
        let owed_bytes = self.rules.limit_bytes.saturating_sub(self.issued_bytes);
        let is_all_done = match &self.listed {
            Some(listed) => listed.is_empty(),
            None => self.regions.iter().all(|region| region.is_done),
        };
        owed_bytes >= self.rules.block_bytes_largest && (self.rules.has_io_size || !is_all_done)
    }

    /// Whether all bytes that the job moves were issued.
    fn is_pass_over(&self) -> bool {
        let limit_bytes = self.rules.limit_bytes.saturating_mul(u64::from(self.rules.loops));
        !self.rules.is_time_based && self.issued_bytes >= limit_bytes
    }

    /// The next operation of the pass.
    fn operation(&mut self) -> Option<Operation> {
        if self.is_pass_over() {
            return None;
        }
        let rules = &self.rules;
        let op = match rules.reads_percent {
            100 => Op::Read,
            0 => Op::Write,
            percent if below(&mut self.random, 100) < u64::from(percent) => Op::Read,
            _ => Op::Write,
        };
        let Reading { file, offset, bytes } = match &mut self.listed {
            Some(listed) => listed.pop()?,
            None => {
                let bytes = rules.block_bytes[op as usize];
                let (file, offset) = self.place(op)?;
                Reading { file, offset, bytes }
            }
        };
        self.issued_bytes = self.issued_bytes.saturating_add(bytes);
        self.writes_issued += u64::from(op == Op::Write);
        self.is_synced = false;
        self.in_flight += 1;
        self.batched += 1;
        let is_batch_full = self.batched == self.rules.batch;
        if is_batch_full {
            self.batched = 0;
        }
        let is_batch_end = is_batch_full || self.in_flight == self.rules.depth;
        self.may_pause = true;
        Some(Operation { file, offset, bytes, op, is_batch_end })
    }

    /// A file that is not done, in turn, and the place in it.
    fn place(&mut self, op: Op) -> Option<(FileId, u64)> {
        let count = self.regions.len();
        for _ in 0..count {
            let region = &mut self.regions[self.turn];
            self.turn = if self.turn + 1 == count { 0 } else { self.turn + 1 };
            if region.is_done {
                continue;
            }
            match region.places.next(op, &mut self.random) {
                Some(place) => return Some((region.area.file, region.area.offset + place)),
                None => region.is_done = true,
            }
        }
        None
    }

    fn take(&mut self, count: u32) {
        self.completed_not_taken -= count;
        self.in_flight -= count;
        self.taken += u64::from(count);
    }
}

/// One seed for each process, from the run's, the job's, and its place.
pub fn seed_of(run_seed: u64, job_seed: u64, id: ProcessId) -> u64 {
    let spread = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    spread(spread(run_seed) ^ job_seed) ^ u64::from(id.0)
}
