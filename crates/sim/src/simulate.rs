//! One run in the modelled world: a job, a device, the laws; one row out.

use std::fmt;

use readpath_core::law::{Spec, SpecError};
use readpath_core::machine::{BeyondDevice, Config, ConfigError, LawMaker, Machine, SwapError};
use readpath_core::readahead::{self, ReadaheadLimits};
use readpath_core::request::DeviceCaps;
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, SECTOR_BYTES};

use crate::device::{BoxedDevice, registry};
use crate::job::{Engine, Job, JobFile};
use crate::observe::Observer;
use crate::report::Row;
use crate::run::{Go, Progress, Watch, add_files, run};
use crate::workload::{Placement, Workload, WorkloadError};
use crate::world::{Host, ModelledWorld};

/// What a row is of, beside the job.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The modelled device.
    pub device: Spec,
    /// The readahead law.
    pub readahead: Spec,
    /// The scheduler.
    pub scheduler: Spec,
    /// What stays in memory.
    pub reclaim: Spec,
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
    pub host: Host,
}

impl Setup {
    /// The kernel's defaults over this device: `ondemand` with 128 KiB, `deadline`, 256 MiB; what
    /// stays in memory is `adaptive`'s to say.
    pub fn new(device: Spec) -> Setup {
        Setup {
            device,
            readahead: Spec::plain("ondemand"),
            scheduler: Spec::plain("deadline"),
            reclaim: Spec::plain("adaptive"),
            raw: Spec::plain("ring"),
            merges: true,
            queue_requests: 128,
            memory_bytes: 256 << 20,
            window_bytes: 128 << 10,
            seed: 1,
            host: Host::default(),
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
            reclaim: self.reclaim.clone(),
            raw: self.raw.clone(),
            merges: self.merges,
            queue_requests: self.queue_requests,
            ..Config::new(caps)
        }
    }
}

/// Who takes part in a run beside what a [`Setup`] can name.
#[derive(Default)]
pub struct Guests {
    /// Makes the readahead laws, in place of the setup's.
    pub law_maker: Option<LawMaker>,
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
}

/// What a [`SimulateError`] is about, for those who name it in front of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The job file.
    Job,
    /// The laws, which the error names itself.
    Laws,
    /// The device.
    Storage,
}

impl SimulateError {
    /// What is to be changed.
    pub fn about(&self) -> About {
        match self {
            SimulateError::Workload(_) => About::Job,
            SimulateError::Config(ConfigError::Law(_)) => About::Laws,
            _ => About::Storage,
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
    setup: &Setup,
    tell: &mut dyn FnMut(Progress) -> Go,
) -> Result<Row, SimulateError> {
    simulate_watched(job, job_file, setup, Watch::progress(tell))
}

/// As [`simulate`], with more than the progress told.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_watched(
    job: &str,
    job_file: &JobFile,
    setup: &Setup,
    watch: Watch<'_>,
) -> Result<Row, SimulateError> {
    simulate_with(job, job_file, setup, Guests::default(), watch)
}

/// As [`simulate_watched`], with guests.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_with(
    job: &str,
    job_file: &JobFile,
    setup: &Setup,
    guests: Guests,
    watch: Watch<'_>,
) -> Result<Row, SimulateError> {
    let (device, workload, mut path) = prepare(job_file, setup)?;
    let mut world = ModelledWorld::new(device, setup.host);
    let Guests { law_maker, observer } = guests;
    if let Some(observer) = observer {
        let mut make = law_maker.unwrap_or_else(|| named_laws(setup.readahead.clone()));
        let watcher = observer.clone();
        path.set_law_maker(Box::new(move |limits| watcher.watch(make(limits))));
        world = world.observed_by(observer);
    } else if let Some(make) = law_maker {
        path.set_law_maker(make);
    }
    let measured = run(&mut path, workload, &mut world, watch).map_err(SimulateError::TooLarge)?;
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
    setup: &Setup,
    watch: Watch<'_>,
) -> Result<Row, SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    let mut path = Machine::new(setup.config(device.caps())).map_err(SimulateError::Config)?;
    let mut world = ModelledWorld::new(device, setup.host);
    let measured = run(&mut path, workload, &mut world, watch).map_err(SimulateError::TooLarge)?;
    let device = setup.device.to_string();
    let mut row = match job {
        Some((name, job_file)) => measured.row(name, &device, job_file),
        None => Row::new("listed", &device, &measured.total),
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
pub fn device_bytes(setup: &Setup) -> Result<u64, SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    Ok(device.caps().sectors.saturating_mul(SECTOR_BYTES))
}

/// Finds out whether [`simulate`] would run, without running: so that of many
/// rows none is begun when one can't be.
///
/// # Errors
/// As [`simulate`].
pub fn check(job_file: &JobFile, setup: &Setup) -> Result<(), SimulateError> {
    let (_, workload, mut path) = prepare(job_file, setup)?;
    add_files(&mut path, &workload).map(drop).map_err(SimulateError::TooLarge)
}

/// How large a file is on a modelled device where nothing says it, or as large as the device, if
/// that is smaller.
pub const ASSUMED_FILE_BYTES: u64 = 1 << 30;

/// The workload, with files of an assumed size where a job gives none.
fn laid_out(job_file: &JobFile, device_bytes: u64, seed: u64) -> Result<Workload, WorkloadError> {
    match Workload::new(job_file, Placement::Modelled, seed) {
        Err(WorkloadError::UnknownSize { .. }) => {
            let file_bytes = ASSUMED_FILE_BYTES.min(device_bytes / PAGE_BYTES * PAGE_BYTES);
            Workload::new(job_file, Placement::Assumed { file_bytes }, seed)
        }
        laid_out => laid_out,
    }
}

/// Everything that a run needs, from its description.
fn prepare(
    job_file: &JobFile,
    setup: &Setup,
) -> Result<(BoxedDevice, Workload, Machine), SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    let device_bytes = device.caps().sectors.saturating_mul(SECTOR_BYTES);
    let workload = laid_out(job_file, device_bytes, setup.seed).map_err(SimulateError::Workload)?;
    let path = Machine::new(setup.config(device.caps())).map_err(SimulateError::Config)?;
    Ok((device, workload, path))
}

fn named_laws(spec: Spec) -> LawMaker {
    let law = move |limits: &ReadaheadLimits| readahead::build(&spec, limits);
    Box::new(move |limits| law(limits).expect("the path was built with this law"))
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
        let is_cached = !job.is_direct && job.engine != Engine::Mmap;
        is_cached && job.reads() && job.block_bytes_read() > memory_bytes
    };
    job_file.jobs.iter().find(needs_more).map_or(Ok(()), |job| {
        Err(SmallMemory { job: job.name.clone(), block_bytes: job.block_bytes_read() })
    })
}

/// The largest memory of a cache whose books, 64 bytes a page, fit into half
/// of a machine with so much memory.
pub fn memory_bytes_max(machine_bytes: u64) -> u64 {
    const BOOK_BYTES: u64 = 64;
    machine_bytes / 2 / BOOK_BYTES * PAGE_BYTES
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
            SimulateError::TooLarge(error) => write!(
                f,
                "the job's files are larger than the device: {error}; give a smaller size or a \
                 larger device"
            ),
        }
    }
}

impl std::error::Error for SimulateError {}
