//! One run in the modelled world: a job, a device, the laws; one row out.

use std::fmt;

use readpath_core::machine::{BeyondDevice, Config, ConfigError, Machine, PolicyMaker, SwapError};
use readpath_core::policy::{Spec, SpecError};
use readpath_core::readahead::{self, ReadaheadLimits};
use readpath_core::request::DeviceCaps;
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, SECTOR_BYTES};

use crate::device::{BoxedDevice, registry};
use crate::job::{Job, JobEngine, JobFile};
use crate::observe::Observer;
use crate::report::ResultRow;
use crate::run::{Go, Progress, RunError, Watch, add_files, run};
use crate::stuck::Stuck;
use crate::workload::{FileSource, Workload, WorkloadError};
use crate::world::{HostCosts, SimulatedEnvironment};

/// What a row is of, beside the job.
#[derive(Clone, Debug)]
pub struct SimulationSetup {
    /// The modelled device.
    pub device: Spec,
    /// The readahead law.
    pub readahead: Spec,
    /// The scheduler.
    pub scheduler: Spec,
    /// What stays in memory.
    pub eviction: Spec,
    /// How the transfers of raw jobs are cut.
    pub raw: Spec,
    /// Whether the scheduler merges neighbours.
    pub merges: bool,
    /// How many requests the queue is made for (`nr_requests`).
    pub queue_requests: u32,
    /// Memory of the page cache in bytes.
    pub memory_bytes: u64,
    /// `read_ahead_kb` in bytes: what a readahead law takes for its largest
    /// window unless it is told otherwise. The kernel's default is 128 KiB.
    pub window_bytes: u64,
    /// Seed of everything that is random.
    pub seed: u64,
    /// What the host's processor costs.
    pub host: HostCosts,
}

impl SimulationSetup {
    /// The kernel's defaults over this device: `ondemand` with 128 KiB, `deadline`, 256 MiB; what
    /// stays in memory is `adaptive`'s to say.
    pub fn new(device: Spec) -> SimulationSetup {
        SimulationSetup {
            device,
            readahead: Spec::plain("ondemand"),
            scheduler: Spec::plain("deadline"),
            eviction: Spec::plain("adaptive"),
            raw: Spec::plain("ring"),
            merges: true,
            queue_requests: 128,
            memory_bytes: 256 << 20,
            window_bytes: 128 << 10,
            seed: 1,
            host: HostCosts::default(),
        }
    }

    /// The configuration of a read path over a device with these abilities.
    pub fn config(&self, caps: DeviceCaps) -> Config {
        Config {
            memory_bytes: self.memory_bytes,
            readahead: self.readahead.clone(),
            limits: ReadaheadLimits {
                window_pages_max: self.window_bytes / 4096,
                request_pages_max: u64::from(caps.request_sectors_max) / PAGE_SECTORS,
            },
            scheduler: self.scheduler.clone(),
            eviction: self.eviction.clone(),
            raw: self.raw.clone(),
            merges: self.merges,
            queue_requests: self.queue_requests,
            ..Config::new(caps)
        }
    }
}

/// Who takes part in a run beside what a [`SimulationSetup`] can name.
#[derive(Default)]
pub struct Participants {
    /// Makes the readahead laws, in place of the setup's.
    pub policy_maker: Option<PolicyMaker>,
    /// Sees each read, request and decision.
    pub observer: Option<Observer>,
}

/// Why there is no row.
#[derive(Clone, Debug)]
pub enum SimulateError {
    /// The device is unknown, or one of its parameters is wrong.
    Device(SpecError),
    /// The read path can't be built like this.
    Config(ConfigError),
    /// There can be no such swap area or memory.
    Swap(SwapError),
    /// The job asks for something that can't be.
    Workload(WorkloadError),
    /// The job's files don't fit on the device.
    TooLarge(BeyondDevice),
    /// The run does not come to an end.
    Stuck(Stuck),
}

fn not_run(error: RunError) -> SimulateError {
    match error {
        RunError::TooLarge(beyond) => SimulateError::TooLarge(beyond),
        RunError::Stuck(stuck) => SimulateError::Stuck(stuck),
    }
}

/// What a [`SimulateError`] is about, for those who name it in front of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorSubject {
    /// The job file.
    Job,
    /// The laws, which the error names itself.
    Policies,
    /// The device.
    Storage,
}

impl SimulateError {
    /// What is to be changed.
    pub fn about(&self) -> ErrorSubject {
        match self {
            SimulateError::Workload(_) => ErrorSubject::Job,
            SimulateError::Config(ConfigError::Policy(_)) => ErrorSubject::Policies,
            _ => ErrorSubject::Storage,
        }
    }
}

/// Runs a job file, called `job` in the row, as `setup` says. `tell` hears of the progress.
///
/// # Errors
/// A name, a parameter or a size is wrong; nothing has been run then.
pub fn simulate(
    job: &str,
    job_file: &JobFile,
    setup: &SimulationSetup,
    tell: &mut dyn FnMut(Progress) -> Go,
) -> Result<ResultRow, SimulateError> {
    simulate_with_callbacks(job, job_file, setup, Watch::progress(tell))
}

/// As [`simulate`], with more than the progress told.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_with_callbacks(
    job: &str,
    job_file: &JobFile,
    setup: &SimulationSetup,
    watch: Watch<'_>,
) -> Result<ResultRow, SimulateError> {
    simulate_with(job, job_file, setup, Participants::default(), watch)
}

/// As [`simulate_with_callbacks`], with guests.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_with(
    job: &str,
    job_file: &JobFile,
    setup: &SimulationSetup,
    guests: Participants,
    watch: Watch<'_>,
) -> Result<ResultRow, SimulateError> {
    let (device, workload, mut path) = prepare(job_file, setup)?;
    let mut world = SimulatedEnvironment::new(device, setup.host);
    let Participants { policy_maker, observer } = guests;
    if let Some(observer) = observer {
        let mut make = policy_maker.unwrap_or_else(|| named_policies(setup.readahead.clone()));
        let watcher = observer.clone();
        path.set_policy_maker(Box::new(move |limits| watcher.watch(make(limits))));
        world = world.observed_by(observer);
    } else if let Some(make) = policy_maker {
        path.set_policy_maker(make);
    }
    let measured = run(&mut path, workload, &mut world, watch).map_err(not_run)?;
    let mut row = measured
        .row(job, &setup.device.to_string(), job_file)
        .with_meter(path.meter(), &path.cache_counters());
    row.readahead = Some(setup.readahead.to_string());
    row.scheduler = Some(setup.scheduler.to_string());
    row.raw = job_file.has_raw().then(|| setup.raw.to_string());
    row.host_seconds = Some(world.host_time().seconds());
    row.decisions = Some(format!("{:016x}", world.decisions()));
    Ok(row)
}

/// Runs a workload that is not laid out from a job file, as `setup` says. Where `job` is given, the
/// row has that name, and sections of these jobs.
///
/// # Errors
/// As [`simulate`].
pub(crate) fn simulate_workload(
    job: Option<(&str, &JobFile)>,
    workload: Workload,
    setup: &SimulationSetup,
    watch: Watch<'_>,
) -> Result<ResultRow, SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    let mut path = Machine::new(setup.config(device.caps())).map_err(SimulateError::Config)?;
    let mut world = SimulatedEnvironment::new(device, setup.host);
    let measured = run(&mut path, workload, &mut world, watch).map_err(not_run)?;
    let device = setup.device.to_string();
    let mut row = match job {
        Some((name, job_file)) => measured.row(name, &device, job_file),
        None => ResultRow::new("listed", &device, &measured.total),
    };
    row = row.with_meter(path.meter(), &path.cache_counters());
    row.readahead = Some(setup.readahead.to_string());
    row.scheduler = Some(setup.scheduler.to_string());
    row.first_error = measured.first_error;
    row.host_seconds = Some(world.host_time().seconds());
    row.decisions = Some(format!("{:016x}", world.decisions()));
    Ok(row)
}

/// How many bytes the device of a setup has.
///
/// # Errors
/// There is no such device.
pub fn device_bytes(setup: &SimulationSetup) -> Result<u64, SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    Ok(device.caps().sectors.saturating_mul(SECTOR_BYTES))
}

/// Finds out whether [`simulate`] would run, without running: so that of many
/// rows none is begun when one can't be.
///
/// # Errors
/// As [`simulate`].
pub fn check(job_file: &JobFile, setup: &SimulationSetup) -> Result<(), SimulateError> {
    let (_, workload, mut path) = prepare(job_file, setup)?;
    add_files(&mut path, &workload).map(drop).map_err(SimulateError::TooLarge)
}

/// How large a file is on a modelled device where nothing says it, or as large as the device, if
/// that is smaller.
pub const ASSUMED_FILE_BYTES: u64 = 1 << 30;

/// The workload, with files of an assumed size where a job gives none.
fn build_workload(
    job_file: &JobFile,
    device_bytes: u64,
    seed: u64,
) -> Result<Workload, WorkloadError> {
    match Workload::new(job_file, FileSource::Modelled, seed) {
        Err(WorkloadError::UnknownSize { .. }) => {
            let file_bytes = ASSUMED_FILE_BYTES.min(device_bytes / PAGE_BYTES * PAGE_BYTES);
            Workload::new(job_file, FileSource::Assumed { file_bytes }, seed)
        }
        build_workload => build_workload,
    }
}

/// Everything that a run needs, from its description.
fn prepare(
    job_file: &JobFile,
    setup: &SimulationSetup,
) -> Result<(BoxedDevice, Workload, Machine), SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    let device_bytes = device.caps().sectors.saturating_mul(SECTOR_BYTES);
    let workload =
        build_workload(job_file, device_bytes, setup.seed).map_err(SimulateError::Workload)?;
    let path = Machine::new(setup.config(device.caps())).map_err(SimulateError::Config)?;
    Ok((device, workload, path))
}

fn named_policies(spec: Spec) -> PolicyMaker {
    let policy = move |limits: &ReadaheadLimits| readahead::build(&spec, limits);
    Box::new(move |limits| policy(limits).expect("the path was built with this policy"))
}

/// The memory of a cache is too small for a job: one of its reads needs more at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallMemory {
    /// The job.
    pub job: String,
    /// What one read of it moves through the cache.
    pub block_bytes: u64,
}

/// Refuses a memory that holds not one read of every job. A read through the
/// cache needs memory for all of it at once; a mapped one, for a page.
///
/// # Errors
/// The first job that has too little.
pub fn check_memory(job_file: &JobFile, memory_bytes: u64) -> Result<(), SmallMemory> {
    let needs_more = |job: &&Job| {
        let is_cached = !job.is_direct && job.engine != JobEngine::Mmap;
        is_cached && job.reads() && job.block_bytes_read() > memory_bytes
    };
    job_file.jobs.iter().find(needs_more).map_or(Ok(()), |job| {
        Err(SmallMemory { job: job.name.clone(), block_bytes: job.block_bytes_read() })
    })
}

/// The largest memory of a cache whose books, 64 bytes a page, fit into half
/// of a machine with so much memory.
pub fn memory_bytes_max(machine_bytes: u64) -> u64 {
    const BOOKKEEPING_BYTES: u64 = 64;
    machine_bytes / 2 / BOOKKEEPING_BYTES * PAGE_BYTES
}

impl fmt::Display for SmallMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "job `{}` reads {} bytes at once through the cache; give at least so much memory, or \
             a smaller bs",
            self.job, self.block_bytes
        )
    }
}

impl std::error::Error for SmallMemory {}

impl fmt::Display for SimulateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimulateError::Device(error) => error.fmt(f),
            SimulateError::Config(error) => error.fmt(f),
            SimulateError::Swap(error) => error.fmt(f),
            SimulateError::Workload(error) => error.fmt(f),
            SimulateError::Stuck(error) => error.fmt(f),
            SimulateError::TooLarge(error) => write!(
                f,
                "the job's files are larger than the device: {error}; give a smaller size or a \
                 larger device"
            ),
        }
    }
}

impl std::error::Error for SimulateError {}
