//! A job under construction: it starts with fio's defaults, receives the options in the order of
//! the file, and is finally checked as a whole.

use readpath_core::request::{Class, Priority};
use readpath_core::unit::Time;

use super::value::ByteUnits;
use super::{
    AdviceHint, BlockSizes, BytesOrPercent, Distribution, ExitScope, FileService, FlowShareRule,
    Generator, Job, JobEngine, JobError, JobPattern, LatencyTarget, LogOptions, PauseRule,
    RandomSequence, RateLimits, ReplayOptions, StridedZones, SyncRule, VerifyRule,
};

/// fio's default `randseed` (`fio --cmdhelp=randseed`).
const SEED_DEFAULT: u64 = 0x89;

/// A job under construction. Properties that depend on several options have fields of their own.
#[derive(Clone, Debug)]
pub struct JobDraft {
    /// The job so far. [`JobDraft::finish`] sets its properties that depend on the fields below.
    pub job: Job,
    /// The value of `name`, which replaces the section's name.
    pub name: Option<String>,
    /// Meaning of `k` in numbers of bytes (`kb_base`).
    pub kilo: ByteUnits,
    /// The value of `rw`. `None` means sequential reads.
    pub read_write: Option<ReadWriteOption>,
    /// Percentage of reads, if `rw` demands a mix (`rwmixread`).
    pub reads_percent_of_mix: u8,
    /// I/O class (`prioclass`). `None` without the option and for `prioclass=0`.
    pub priority_class: Option<Class>,
    /// Level within the class (`prio`), from 0 (highest) to 7. Without it, a job with a class
    /// has 0.
    pub priority_level: Option<u8>,
    /// True if the end of each job ends the jobs of its `exit_what` (`exitall`). One job with
    /// the option is enough: the parser combines the drafts and resets `exit_scope` if none has
    /// it.
    pub exits_all: bool,
    /// True if the job covers the whole file, whatever its `size` says (`fill_device`).
    pub fills_storage: bool,
    /// Jobs that `exitall` ends together with this one (`exit_what`).
    pub exit_what: ExitScope,
    /// The value of `zonemode`. `None` without the option, which means the same as `none`.
    pub zone_mode: Option<ZoneMode>,
    /// Bytes that are transferred in each zone (`zonesize`). 0 means no zones.
    pub zone_moved_bytes: u64,
    /// Length of a zone (`zonerange`). 0 means `zone_moved_bytes`.
    pub zone_range_bytes: u64,
    /// Length of the gap between two zones (`zoneskip`).
    pub zone_skip_bytes: u64,
    /// Maximum latency in the search for a queue depth (`latency_target`). 0 without a search.
    pub latency_target: Time,
    /// Period in which each depth of the search is tried (`latency_window`). `None` means the
    /// run time, or 1 s without one.
    pub latency_window: Option<Time>,
    /// Percentage of operations that must end within `latency_target` (`latency_percentile`).
    pub latency_percentile: f64,
    /// True if the job goes on after the search for its whole run time (`latency_run`). False
    /// if the end of the search ends it.
    pub latency_continues: bool,
    /// Weight in the flow (`flow`). 0 means that the job belongs to no flow.
    pub flow_weight: u32,
    /// Number of the flow (`flow_id`).
    pub flow_id: u32,
    /// Pause of a process that is ahead of its share (`flow_sleep`).
    pub flow_sleep: Time,
    /// Seconds for which a steady state must last (`steadystate_duration`). 0 disables it.
    pub steady_seconds: u32,
    /// Time at the start that the steady state leaves out (`steadystate_ramp_time`).
    pub steady_ramp: Time,
    /// True if written data is synced at the end (`end_fsync`).
    pub ends_synced: bool,
    /// True if written data is synced at the end (`fsync_on_close`).
    pub closes_synced: bool,
    /// Number of writes between syncs, and between data syncs, from the option `sync`. (0, 0),
    /// the value of `sync=none`, leaves the numbers of `fsync` and `fdatasync` in effect.
    pub writes_per_sync: (u32, u32),
    /// True if `verify` names a method of verification. Without it the fields below have no
    /// effect.
    pub verifies: bool,
    /// True if written data is read back after all writes (`do_verify`). With `do_verify=0`
    /// only a backlog or `verify_only` still reads back.
    pub verifies_at_end: bool,
    /// True if the job writes nothing and reads the data of an earlier run (`verify_only`).
    pub verifies_only: bool,
    /// Number of writes before a verification. 0 without a backlog.
    pub verify_backlog: u32,
    /// Number of writes of the backlog that are verified at a time. 0: the whole backlog.
    pub verify_batch: u32,
    /// Options of a replayed trace. Without `names` nothing is replayed.
    pub replay: ReplayOptions,
    /// Reason to reject the value of the last option, which fio accepts. An option's setter
    /// sets it, and `FioOption::apply` takes it away and returns it as an error.
    pub rejection: Option<&'static str>,
}

/// The value of `rw`.
#[derive(Clone, Copy, Debug)]
pub struct ReadWriteOption {
    /// True for random positions (`randread`, `randwrite`, `randrw`).
    pub is_random: bool,
    /// Reads, writes, or a mix of both.
    pub direction: TransferDirection,
}

/// Direction of the transfers.
#[derive(Clone, Copy, Debug)]
pub enum TransferDirection {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes, by the percentage of reads (`rwmixread`).
    Mix,
}

/// The value of `zonemode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneMode {
    /// No zones (`none`).
    None,
    /// Zones with gaps between (`strided`).
    Strided,
}

impl Default for JobDraft {
    /// Creates a draft with fio's default of every option.
    fn default() -> JobDraft {
        JobDraft {
            job: default_job(),
            name: None,
            kilo: ByteUnits::default(),
            read_write: None,
            reads_percent_of_mix: 50,
            priority_class: None,
            priority_level: None,
            exits_all: false,
            fills_storage: false,
            exit_what: ExitScope::Group,
            zone_mode: None,
            zone_moved_bytes: 0,
            zone_range_bytes: 0,
            zone_skip_bytes: 0,
            latency_target: Time::ZERO,
            latency_window: None,
            latency_percentile: 100.0,
            latency_continues: false,
            flow_weight: 0,
            flow_id: 0,
            flow_sleep: Time::ZERO,
            steady_seconds: 0,
            steady_ramp: Time::ZERO,
            ends_synced: false,
            closes_synced: false,
            writes_per_sync: (0, 0),
            verifies: false,
            verifies_at_end: true,
            verifies_only: false,
            verify_backlog: 0,
            verify_batch: 0,
            replay: ReplayOptions {
                names: Vec::new(),
                keeps_times: true,
                time_percent: 100,
                scale: 1,
                align_bytes: 1,
                redirect: None,
                skips: [false; 2],
            },
            rejection: None,
        }
    }
}

/// Returns a job without options: sequential buffered reads of 4 KiB, one at a time.
/// [`JobDraft::for_job`] sets its name and line. `low` is 0 here, which [`adjust_to_engine`]
/// replaces by the depth.
fn default_job() -> Job {
    Job {
        name: String::new(),
        description: None,
        line: 0,
        pattern: JobPattern { is_random: false, reads_percent: 100 },
        block_sizes: [BlockSizes::One(4096), BlockSizes::One(4096)],
        trim_block_sizes: BlockSizes::One(4096),
        is_unaligned: false,
        is_size_by_order: false,
        align_bytes: [None; 2],
        size: None,
        io_size: None,
        offset: BytesOrPercent::Bytes(0),
        offset_increment: BytesOrPercent::Bytes(0),
        offset_align_bytes: None,
        operations: None,
        file_bytes: None,
        file_names: Vec::new(),
        files: 1,
        open_files_max: None,
        file_name_format: None,
        file_service: FileService::default(),
        directories: Vec::new(),
        processes: 1,
        depth: 1,
        batch: 1,
        batch_complete: 1,
        low: 0,
        engine: JobEngine::default(),
        engine_named: None,
        is_direct: false,
        runtime: None,
        is_time_based: false,
        ramp: Time::ZERO,
        pauses: PauseRule::default(),
        rate: RateLimits { check_period: Time::from_s(1), ..RateLimits::default() },
        latency_max: None,
        latency_target: None,
        flow: None,
        steady: None,
        hint: AdviceHint::default(),
        seed: SEED_DEFAULT,
        has_seed: false,
        is_repeatable: true,
        is_all_repeatable: false,
        generator: Generator::default(),
        random_percent: [100; 2],
        sequence: RandomSequence::default(),
        strides: None,
        distribution: Distribution::default(),
        has_random_map: true,
        is_group_reported: false,
        start_delay: Time::ZERO,
        has_stonewall: false,
        wait_for: None,
        is_new_group: false,
        exit_scope: ExitScope::OnlyItself,
        is_creation_only: false,
        invalidates: true,
        verify: None,
        replay: None,
        logs: LogOptions::default(),
        loops: 1,
        sync: SyncRule::default(),
        priority: None,
        without_effect: Vec::new(),
    }
}

impl JobDraft {
    /// Returns this draft of the global options as the start of a job whose section is at `line`.
    pub fn for_job(mut self, section: &str, line: usize) -> JobDraft {
        section.clone_into(&mut self.job.name);
        self.job.line = line;
        // The option `name` of a global section applies to no job.
        self.name = None;
        self
    }

    /// Records the option `name`, which has no effect here, for the note of the results.
    pub fn note_without_effect(&mut self, name: &'static str) {
        if !self.job.without_effect.contains(&name) {
            self.job.without_effect.push(name);
        }
    }

    /// Combines the options that belong together, and checks the job as a whole.
    ///
    /// # Errors
    /// Fails if two options contradict each other.
    pub fn finish(self) -> Result<Job, JobError> {
        // These depend on several options of the draft, whose parts move into the job below.
        let strides = self.strides();
        let zones_conflict = self.zones_conflict();
        let latency_target = self.latency_target();
        let verify = self.verify_rule();
        let mut job = self.job;
        job.name = self.name.unwrap_or(job.name);
        // A log without a name is named after the job.
        let logs = [&mut job.logs.latency, &mut job.logs.bandwidth, &mut job.logs.operations];
        for prefix in logs.into_iter().flatten().filter(|prefix| prefix.is_empty()) {
            prefix.clone_from(&job.name);
        }
        let read_write = self
            .read_write
            .unwrap_or(ReadWriteOption { is_random: false, direction: TransferDirection::Read });
        job.pattern.is_random = read_write.is_random;
        job.pattern.reads_percent = match read_write.direction {
            TransferDirection::Read => 100,
            TransferDirection::Write => 0,
            TransferDirection::Mix => self.reads_percent_of_mix,
        };
        // A level without a class is one of best-effort, the default class.
        job.priority = match (self.priority_class, self.priority_level) {
            (None, None) => None,
            (class, level) => Some(Priority {
                class: class.unwrap_or_default(),
                level: level.unwrap_or_default(),
            }),
        };
        job.has_random_map &= !has_own_alignment(&job);
        job.strides = strides;
        job.latency_target = latency_target;
        job.verify = verify;
        job.flow = (self.flow_weight > 0).then_some(FlowShareRule {
            id: self.flow_id,
            weight: self.flow_weight,
            sleep: self.flow_sleep,
        });
        // `steadystate` states the condition. These options complete it, in any order in the file.
        if let Some(steady) = &mut job.steady {
            steady.seconds = self.steady_seconds;
            steady.ramp = self.steady_ramp;
        }
        job.steady = job.steady.filter(|steady| steady.seconds > 0);
        // The parser resets it if no job has `exitall` (field `exits_all`).
        job.exit_scope = self.exit_what;
        job.replay = (!self.replay.names.is_empty()).then_some(self.replay);
        if self.writes_per_sync != (0, 0) {
            (job.sync.writes, job.sync.data_writes) = self.writes_per_sync;
        }
        job.sync.at_end = self.ends_synced || self.closes_synced;
        // A file here has a fixed size and is full at its end. Without `size` the job covers all of
        // it.
        if self.fills_storage {
            job.size = None;
        }
        adjust_to_engine(&mut job);
        let conflict = zones_conflict
            .or_else(|| rates_conflict(&job.rate))
            .or_else(|| permutation_conflict(&job));
        match conflict {
            Some(what) => {
                Err(JobError::Conflict { line: job.line, job: job.name, what: what.to_owned() })
            }
            None => Ok(job),
        }
    }

    /// Returns the target of the search for a queue depth, if the job has one
    /// (`latency_target`).
    fn latency_target(&self) -> Option<LatencyTarget> {
        (self.latency_target > Time::ZERO).then(|| LatencyTarget {
            target: self.latency_target,
            window: self.latency_window.or(self.job.runtime).unwrap_or(Time::from_s(1)),
            percentile: self.latency_percentile,
            continues_after: self.latency_continues,
        })
    }

    /// Returns the rule of verification. `None` without a method (`verify`), and if nothing
    /// would be read back: neither after all writes, nor a backlog, nor the data of an earlier
    /// run.
    fn verify_rule(&self) -> Option<VerifyRule> {
        let rule = VerifyRule {
            at_end: self.verifies_at_end,
            backlog: self.verify_backlog,
            backlog_batch: self.verify_batch,
            is_only: self.verifies_only,
        };
        let verifies = self.verifies && (rule.at_end || rule.backlog > 0 || rule.is_only);
        verifies.then_some(rule)
    }

    /// Returns the zones, if the job has any (`zonemode=strided` with a `zonesize`).
    fn strides(&self) -> Option<StridedZones> {
        let has_zones = self.zone_mode == Some(ZoneMode::Strided) && self.zone_moved_bytes > 0;
        let range_bytes = match self.zone_range_bytes {
            0 => self.zone_moved_bytes,
            bytes => bytes,
        };
        let moved_bytes = self.zone_moved_bytes;
        let skip_bytes = self.zone_skip_bytes;
        has_zones.then_some(StridedZones { moved_bytes, range_bytes, skip_bytes })
    }

    /// Returns the message for zones that fio refuses: `zonesize` without `zonemode=strided`,
    /// or the mode without that size. `None` if the zones are valid.
    fn zones_conflict(&self) -> Option<&'static str> {
        match (self.zone_mode, self.zone_moved_bytes) {
            (Some(ZoneMode::Strided), 0) => {
                Some("zonemode=strided needs a `zonesize`: give one, or leave `zonemode` out")
            }
            (None | Some(ZoneMode::None), 1..) => Some(
                "zonesize has no effect without zones: add `zonemode=strided`, or leave it out",
            ),
            _ => None,
        }
    }
}

/// Adjusts the options that the engine of `job` cannot follow: direct or cached I/O, and the depth
/// of a synchronous engine, which is 1. Then limits the batches and `low` to the depth. Also drops
/// `time_based` without a run time, unless a search for a depth ends the job.
fn adjust_to_engine(job: &mut Job) {
    // Raw I/O always bypasses the page cache, and so do fio's engines of driver commands.
    job.is_direct |= job.engine == JobEngine::Raw
        || job.engine_named.is_some_and(|named| ["sg", "io_uring_cmd"].contains(&named));
    // A mapping always uses the page cache.
    if job.engine == JobEngine::Mmap && std::mem::take(&mut job.is_direct) {
        job.without_effect.push("direct");
    }
    // The work cannot be repeated up to a time that is not given. fio does the same and reports it.
    // A search for a depth (`latency_target`) ends the job itself.
    if job.is_time_based && job.runtime.is_none() && job.latency_target.is_none() {
        job.is_time_based = false;
        job.without_effect.push("time_based");
    }
    if !job.engine.is_async() {
        // Each call returns after its operation. fio does the same and reports it in a note.
        job.depth = 1;
    }
    // In fio a batch of 0, or above the depth, is the depth.
    job.batch = if job.batch == 0 { job.depth } else { job.batch.min(job.depth) };
    // 0 means polling in fio: available completions are collected, as with 1.
    job.batch_complete = job.batch_complete.clamp(1, job.depth);
    // Without the option it is the depth: a full queue then waits for one batch of completions
    // only.
    job.low = if job.low == 0 { job.depth } else { job.low.min(job.depth) };
}

/// Returns true for random offsets with another alignment (`blockalign`) than their smallest
/// blocks, in either direction. fio then keeps no map of the used blocks. `job.align_bytes` and
/// `job.block_sizes` have reads first, then writes.
fn has_own_alignment(job: &Job) -> bool {
    const READ: usize = 0;
    const WRITE: usize = 1;
    let differs = |direction: usize| {
        let block_bytes = job.block_sizes[direction].smallest_bytes();
        job.align_bytes[direction].is_some_and(|align_bytes| align_bytes != block_bytes)
    };
    job.pattern.is_random && (differs(READ) || differs(WRITE))
}

/// Returns the message for rates that fio refuses: rates in both units, or a minimum above the
/// maximum. `None` if the rates are valid.
fn rates_conflict(rate: &RateLimits) -> Option<&'static str> {
    let RateLimits {
        bytes_per_s, operations_per_s, least_bytes_per_s, least_operations_per_s, ..
    } = *rate;
    // In each field 0 means no limit.
    let has_bytes = bytes_per_s != [0; 2] || least_bytes_per_s != [0; 2];
    let has_operations = operations_per_s != [0; 2] || least_operations_per_s != [0; 2];
    if has_bytes && has_operations {
        return Some("rate and rate_iops exclude each other: give one of them");
    }
    let is_minimum_above = (0..2).any(|direction| {
        (bytes_per_s[direction] > 0 && bytes_per_s[direction] < least_bytes_per_s[direction])
            || (operations_per_s[direction] > 0
                && operations_per_s[direction] < least_operations_per_s[direction])
    });
    is_minimum_above
        .then_some("the least rate is above the most: make `rate_min` smaller than `rate`")
}

/// Returns the message for options that a permutation (`random_generator=permutation`) cannot
/// follow. Its order is of whole blocks of one size, and its only skew is the one of Zipf. `None`
/// without a permutation, and in sequential jobs, whose generator has no effect.
fn permutation_conflict(job: &Job) -> Option<&'static str> {
    if job.generator != Generator::Permutation || !job.pattern.is_random {
        return None;
    }
    let is_one_size = |sizes: &BlockSizes| sizes.smallest_bytes() == sizes.largest_bytes();
    match job.distribution {
        // Without a center, the permutation itself scatters the ranks of Zipf.
        Distribution::Uniform | Distribution::Zipf { center: None, .. } => {}
        Distribution::Zipf { .. } => {
            return Some(
                "a permutation scatters the blocks of a zipf distribution: leave its center out, \
                 or leave `random_generator` out",
            );
        }
        _ => {
            return Some(
                "a permutation is uniform, or zipf without a center: leave \
                 `random_distribution` or `random_generator` out",
            );
        }
    }
    // Reads and writes may differ in size: each direction has a permutation of its own blocks. With
    // sizes by order, the two sizes are of sequential and of random operations instead, and both
    // occur in one direction.
    let is_by_order = job.is_size_by_order && job.block_bytes_read() != job.block_bytes_write();
    if !job.block_sizes.iter().all(is_one_size) || has_own_alignment(job) || is_by_order {
        return Some(
            "a permutation is of blocks of one size: leave out `random_generator`, or the range, \
             split, order (`bs_is_seq_rand`) or alignment (`blockalign`) of the sizes",
        );
    }
    job.strides.map(|_| "a permutation has no zones: leave `zonemode` or `random_generator` out")
}
