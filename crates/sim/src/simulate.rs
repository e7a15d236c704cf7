//! Simulation of a job: from a job, a device and policies to one row of results.

use std::fmt;

use readpath_core::machine::{BeyondDevice, Config, ConfigError, Machine, PolicyMaker, SwapError};
use readpath_core::policy::{Spec, SpecError};
use readpath_core::readahead::{self, ReadaheadLimits};
use readpath_core::request::DeviceCaps;
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, SECTOR_BYTES};

use crate::job::{Job, JobEngine, JobFile};
use crate::observe::Observer;
use crate::report::ResultRow;
use crate::run::{Progress, ProgressAnswer, RunError, RunObserver, add_files, run};
use crate::stuck::Stuck;
use crate::workload::{FileSource, Workload, WorkloadError};
use crate::world::{HostCosts, SimulatedEnvironment};
use readpath_models::{BoxedDevice, registry};

/// Parameters of a simulation, in addition to the job.
#[derive(Clone, Debug)]
pub struct SimulationSetup {
    /// Simulated device.
    pub device: Spec,
    /// Readahead policy.
    pub readahead: Spec,
    /// Scheduler.
    pub scheduler: Spec,
    /// Eviction policy.
    pub eviction: Spec,
    /// Chunking policy of raw jobs.
    pub chunking: Spec,
    /// Enables merging of adjacent requests in the scheduler.
    pub merges: bool,
    /// Size of the request queue (`nr_requests`).
    pub queue_requests: u32,
    /// Memory of the page cache in bytes.
    pub memory_bytes: u64,
    /// `read_ahead_kb` in bytes: the default maximum window of a readahead policy. The kernel's
    /// default is 128 KiB.
    pub window_bytes: u64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Processor costs of the host.
    pub host: HostCosts,
}

impl SimulationSetup {
    /// Creates a setup with the kernel's policies on this device: `ondemand` with 128 KiB, and
    /// `deadline`. The page cache has 256 MiB, with the eviction policy `adaptive`.
    pub fn new(device: Spec) -> SimulationSetup {
        SimulationSetup {
            device,
            readahead: Spec::plain("ondemand"),
            scheduler: Spec::plain("deadline"),
            eviction: Spec::plain("adaptive"),
            chunking: Spec::plain("ring"),
            merges: true,
            queue_requests: 128,
            memory_bytes: 256 << 20,
            window_bytes: 128 << 10,
            seed: 1,
            host: HostCosts::default(),
        }
    }

    /// Returns the configuration of the machine for a device with these limits.
    pub fn config(&self, caps: DeviceCaps) -> Config {
        Config {
            memory_bytes: self.memory_bytes,
            readahead: self.readahead.clone(),
            limits: ReadaheadLimits {
                window_pages_max: self.window_bytes / PAGE_BYTES,
                request_pages_max: u64::from(caps.request_sectors_max) / PAGE_SECTORS,
            },
            scheduler: self.scheduler.clone(),
            eviction: self.eviction.clone(),
            chunking: self.chunking.clone(),
            merges: self.merges,
            queue_requests: self.queue_requests,
            // The costs of requests are measured only if a policy uses them, which saves time.
            learns_unused_costs: false,
            ..Config::new(caps)
        }
    }
}

/// Additional participants of a simulation that a [`SimulationSetup`] cannot name.
#[derive(Default)]
pub struct Participants {
    /// Creates the readahead policies, instead of the setup's policy, whose name the row keeps.
    pub policy_maker: Option<PolicyMaker>,
    /// Records reads, requests and decisions.
    pub observer: Option<Observer>,
}

/// Error that prevents a simulation.
#[derive(Clone, Debug)]
pub enum SimulateError {
    /// The device is unknown or has an invalid parameter.
    Device(SpecError),
    /// The configuration of the machine is invalid.
    Config(ConfigError),
    /// The swap area or a memory is invalid.
    Swap(SwapError),
    /// The job is impossible.
    Workload(WorkloadError),
    /// The job's files do not fit on the device.
    TooLarge(BeyondDevice),
    /// The run does not come to an end.
    Stuck(Stuck),
    /// No byte was read or written. For callers that compare throughputs; no function here returns
    /// it.
    NoBytes,
    /// Operations failed. For callers that compare times, as failed operations take less; no
    /// function here returns it.
    FailedOperations {
        /// Number of failed operations.
        count: u64,
        /// First error.
        first: String,
    },
}

/// Converts an error of the run.
fn run_error(error: RunError) -> SimulateError {
    match error {
        RunError::TooLarge(beyond) => SimulateError::TooLarge(beyond),
        RunError::Stuck(stuck) => SimulateError::Stuck(stuck),
    }
}

/// Subject of a [`SimulateError`], for a prefix of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorSubject {
    /// The job file.
    Job,
    /// The policies, which the error names itself.
    Policies,
    /// The device.
    Storage,
}

impl SimulateError {
    /// Returns the subject of the error. Any error that names neither the job nor a policy is one
    /// of the storage: of the device, its size, or a run on it.
    pub fn about(&self) -> ErrorSubject {
        match self {
            SimulateError::Workload(_) => ErrorSubject::Job,
            SimulateError::Config(ConfigError::Policy(_)) => ErrorSubject::Policies,
            _ => ErrorSubject::Storage,
        }
    }
}

/// Simulates a job file as `setup` describes. `job` is its name in the row. `on_progress` receives
/// the progress.
///
/// # Errors
/// Fails before the simulation if a name, a parameter or a size is invalid, or later if the run
/// makes no progress.
pub fn simulate(
    job: &str,
    job_file: &JobFile,
    setup: &SimulationSetup,
    on_progress: &mut dyn FnMut(Progress) -> ProgressAnswer,
) -> Result<ResultRow, SimulateError> {
    simulate_with_callbacks(job, job_file, setup, RunObserver::progress(on_progress))
}

/// Simulates a job file like [`simulate`], with all callbacks.
///
/// # Errors
/// Fails in the same cases as [`simulate`].
pub fn simulate_with_callbacks(
    job: &str,
    job_file: &JobFile,
    setup: &SimulationSetup,
    callbacks: RunObserver<'_>,
) -> Result<ResultRow, SimulateError> {
    simulate_with(job, job_file, setup, Participants::default(), callbacks)
}

/// Simulates a job file like [`simulate_with_callbacks`], with additional participants. An observer
/// also receives the calls of the readahead policies, which it wraps.
///
/// # Errors
/// Fails in the same cases as [`simulate`].
pub fn simulate_with(
    job: &str,
    job_file: &JobFile,
    setup: &SimulationSetup,
    participants: Participants,
    callbacks: RunObserver<'_>,
) -> Result<ResultRow, SimulateError> {
    let (device, workload, mut machine) = prepare(job_file, setup)?;
    let mut world = SimulatedEnvironment::new(device, setup.host);
    let Participants { policy_maker, observer } = participants;
    if let Some(observer) = observer {
        let mut make_policy =
            policy_maker.unwrap_or_else(|| maker_of_policy(setup.readahead.clone()));
        let policy_observer = observer.clone();
        machine.set_policy_maker(Box::new(move |limits| {
            policy_observer.observe_policy(make_policy(limits))
        }));
        world = world.with_observer(observer);
    } else if let Some(make_policy) = policy_maker {
        machine.set_policy_maker(make_policy);
    }
    let measured = run(&mut machine, workload, &mut world, callbacks).map_err(run_error)?;
    let mut row = measured
        .row(job, &setup.device.to_string(), job_file)
        .with_meter(machine.meter(), &machine.cache_counters());
    row.readahead = Some(setup.readahead.to_string());
    row.scheduler = Some(setup.scheduler.to_string());
    row.raw = job_file.has_raw().then(|| setup.chunking.to_string());
    row.host_seconds = Some(world.host_time().seconds());
    row.decisions = Some(format!("{:016x}", world.decisions()));
    Ok(row)
}

/// Simulates a workload that was not built from a job file, such as a trace or lists of reads. If
/// `job` is given, the row has its name and its sections. Otherwise the row is named `listed` and
/// has no sections. Neither row names a chunking policy.
///
/// # Errors
/// Fails in the same cases as [`simulate`].
pub fn simulate_workload(
    job: Option<(&str, &JobFile)>,
    workload: Workload,
    setup: &SimulationSetup,
    callbacks: RunObserver<'_>,
) -> Result<ResultRow, SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    let mut machine = Machine::new(setup.config(device.caps())).map_err(SimulateError::Config)?;
    let mut world = SimulatedEnvironment::new(device, setup.host);
    let measured = run(&mut machine, workload, &mut world, callbacks).map_err(run_error)?;
    let device = setup.device.to_string();
    let mut row = match job {
        Some((name, job_file)) => measured.row(name, &device, job_file),
        None => ResultRow::new("listed", &device, &measured.total),
    };
    row = row.with_meter(machine.meter(), &machine.cache_counters());
    row.readahead = Some(setup.readahead.to_string());
    row.scheduler = Some(setup.scheduler.to_string());
    row.first_error = measured.first_error;
    row.host_seconds = Some(world.host_time().seconds());
    row.decisions = Some(format!("{:016x}", world.decisions()));
    Ok(row)
}

/// Returns the properties of a setup's device.
///
/// # Errors
/// Fails if the device is unknown or has an invalid parameter.
pub fn device_caps(setup: &SimulationSetup) -> Result<DeviceCaps, SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    Ok(device.caps())
}

/// Checks that [`simulate`] can run, without the simulation. A table can then be rejected before
/// its first row.
///
/// # Errors
/// Fails in the same cases as [`simulate`].
pub fn check(job_file: &JobFile, setup: &SimulationSetup) -> Result<(), SimulateError> {
    let (_, workload, mut machine) = prepare(job_file, setup)?;
    add_files(&mut machine, &workload).map(drop).map_err(SimulateError::TooLarge)
}

/// Default file size on a simulated device, limited by the size of the device. Chosen.
pub const ASSUMED_FILE_BYTES: u64 = 1 << 30;

/// Builds the workload. If the size of a file is unknown, builds it again with the default file
/// size for such files, limited to the whole pages of the device.
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
        workload_or_error => workload_or_error,
    }
}

/// Builds the device, the workload and the machine.
fn prepare(
    job_file: &JobFile,
    setup: &SimulationSetup,
) -> Result<(BoxedDevice, Workload, Machine), SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    let device_bytes = device.caps().sectors.saturating_mul(SECTOR_BYTES);
    let workload =
        build_workload(job_file, device_bytes, setup.seed).map_err(SimulateError::Workload)?;
    let machine = Machine::new(setup.config(device.caps())).map_err(SimulateError::Config)?;
    Ok((device, workload, machine))
}

/// Returns a maker of the readahead policy that `spec` names, one for each opened file.
fn maker_of_policy(spec: Spec) -> PolicyMaker {
    let build_policy = move |limits: &ReadaheadLimits| readahead::build(&spec, limits);
    Box::new(move |limits| build_policy(limits).expect("the path was built with this policy"))
}

/// Error: the cache memory is too small for a single read of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallMemory {
    /// Name of the job.
    pub job: String,
    /// Cached bytes of a single read.
    pub block_bytes: u64,
}

/// Checks that the memory holds one read of every job. A cached read needs memory for all its bytes
/// at once, a mapped one for a page.
///
/// # Errors
/// Returns the first job with too little memory.
pub fn check_memory(job_file: &JobFile, memory_bytes: u64) -> Result<(), SmallMemory> {
    let needs_more = |job: &&Job| {
        let is_cached = !job.is_direct && job.engine != JobEngine::Mmap;
        is_cached && job.reads() && job.block_bytes_read() > memory_bytes
    };
    job_file.jobs.iter().find(needs_more).map_or(Ok(()), |job| {
        Err(SmallMemory { job: job.name.clone(), block_bytes: job.block_bytes_read() })
    })
}

/// Returns the maximum cache memory whose bookkeeping, 64 bytes per page, fits into half of the
/// real machine's memory, `machine_bytes`. Simulated pages have no content.
pub fn memory_bytes_max(machine_bytes: u64) -> u64 {
    const BOOKKEEPING_BYTES_PER_PAGE: u64 = 64;
    machine_bytes / 2 / BOOKKEEPING_BYTES_PER_PAGE * PAGE_BYTES
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
            SimulateError::NoBytes => {
                f.write_str("no byte was read or written, so there is no throughput to compare")
            }
            SimulateError::FailedOperations { count, first } => {
                write!(f, "{count} operations failed; the first: {first}")
            }
            SimulateError::TooLarge(error) => write!(
                f,
                "the job's files are larger than the device: {error}; give a smaller size or a \
                 larger device"
            ),
        }
    }
}

impl std::error::Error for SimulateError {}
