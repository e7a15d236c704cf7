//! `file:PATH` and `nfs://HOST/PATH`: a job through our read path on real storage.

use std::path::Path;
use std::time::Duration;

use readpath::backend::{BackendInUse, BackendKind};
use readpath::carrier::{Carrier, CarrierMemory};
use readpath::clock::Clock;
use readpath::cold;
use readpath::nfs::storage::NfsStorage;
use readpath::nfs::target::NfsTarget;
use readpath::nfs::url::NfsUrl;
use readpath::storage::Storage;
use readpath::target::{Direct, Mode, OpenOptions, Target};
use readpath::usage::CpuTime;
use readpath_core::machine::{Done, ReadPath};
use readpath_core::request::{Completion, DeviceRequest, Outcome, RequestId};
use readpath_core::unit::Time;
use readpath_sim::report::Row;
use readpath_sim::run::{Go, Progress, RunError, Watch, run as run_workload};
use readpath_sim::simulate::Setup;
use readpath_sim::workload::{Placement, Process, Workload, WorkloadError};
use readpath_sim::world::{World, WorldError};

use crate::exit::Failure;
use crate::peer;
use crate::run::Plan;

/// The longest sleep in the kernel between two looks at whether the run is to
/// end: short for a person who presses ctrl-C, rare for a processor.
const NAP: Time = Time::from_ms(50);

/// Finds out whether [`run`] would begin, without running.
pub fn check(plan: &Plan<'_>, path: &Path, setup: &Setup) -> Result<(), Failure> {
    let (target, _) = open(plan, path, Direct::Preferred)?;
    ReadPath::new(setup.config(target.caps())).map_err(Failure::usage)?;
    Ok(())
}

/// Runs the job on `path` and gives its row.
pub fn run(plan: &Plan<'_>, path: &Path, setup: &Setup, watch: Watch<'_>) -> Result<Row, Failure> {
    let about = |error: &dyn std::fmt::Display| Failure::about(path.display(), error);
    let (target, workload) = open(plan, path, Direct::Preferred)?;
    let nothing_yet = Progress { now: Time::ZERO, bytes: 0, bytes_total: None };
    let residency = make_cold(path, &mut || matches!((watch.tell)(nothing_yet), Go::On))?;
    let note = notes(&target, &residency);
    let memory = memory_for(&workload.processes, setup.memory_bytes);
    let carrier = Carrier::new(target, memory, plan.args.backend, Clock::start())
        .map_err(|error| about(&error))?;
    let note = join(note, carried_by(carrier.storage().backend()));
    // The kernel's own largest window here, so that both start from the same.
    let window_bytes =
        carrier.target().queue().map_or(setup.window_bytes, |queue| queue.read_ahead_bytes);
    let setup = Setup { window_bytes, ..setup.clone() };
    let mut world = RealWorld::new(carrier, memory, path);
    let name = format!("file:{}", path.display());
    let mut row = run_in(plan, &name, &mut world, workload, &setup, watch)?;
    row.note = join(row.note, note);
    Ok(row)
}

/// Has the kernel's cache give up the file's pages, as long as the run is wanted.
pub fn make_cold(path: &Path, is_wanted: cold::Wanted<'_>) -> Result<cold::Residency, Failure> {
    cold::drop_pages_while(path, is_wanted).map_err(|error| match error.kind() {
        std::io::ErrorKind::Interrupted => Failure::Interrupted,
        _ => Failure::about(path.display(), error),
    })
}

/// Finds out whether [`run_nfs`] would begin, without running.
pub fn check_nfs(plan: &Plan<'_>, url: &NfsUrl, setup: &Setup) -> Result<(), Failure> {
    let (target, _, _) = open_nfs(plan, url)?;
    ReadPath::new(setup.config(target.caps())).map_err(Failure::usage)?;
    Ok(())
}

/// Runs the job on a file of an NFS server and gives its row.
pub fn run_nfs(
    plan: &Plan<'_>,
    url: &NfsUrl,
    setup: &Setup,
    watch: Watch<'_>,
) -> Result<Row, Failure> {
    let (target, workload, clock) = open_nfs(plan, url)?;
    let port = if target.is_from_reserved_port() { "a reserved" } else { "an unprivileged" };
    let note = format!("READs of at most {} bytes, from {port} port", target.read_bytes());
    let memory = memory_for(&workload.processes, setup.memory_bytes);
    let carrier = Carrier::over(NfsStorage::one(target), memory, clock)
        .map_err(|error| Failure::about(url, error))?;
    // Nothing is written there, so nothing is put on a medium.
    let mut world = RealWorld::new(carrier, memory, Path::new(""));
    let mut row = run_in(plan, &url.to_string(), &mut world, workload, setup, watch)?;
    row.note = join(row.note, Some(note));
    Ok(row)
}

/// Finds the file and lays the job out on it.
fn open_nfs(plan: &Plan<'_>, url: &NfsUrl) -> Result<(NfsTarget, Workload, Clock), Failure> {
    if plan.writes() {
        return Err(Failure::Usage(format!(
            "{url}: the job writes, and files on a server are only read; run it on file: or on a \
             modelled device"
        )));
    }
    let clock = Clock::start();
    let target = NfsTarget::open(url, clock).map_err(Failure::usage)?;
    if target.bytes() == 0 {
        return Err(Failure::Usage(format!(
            "{url}: is empty; write the data to be read into it first"
        )));
    }
    let workload = workload_on(plan, &url.to_string(), target.bytes())?;
    Ok((target, workload, clock))
}

/// Runs the job on what a carrier carries.
fn run_in<S: Storage>(
    plan: &Plan<'_>,
    name: &str,
    world: &mut RealWorld<'_, S>,
    workload: Workload,
    setup: &Setup,
    watch: Watch<'_>,
) -> Result<Row, Failure> {
    let about = |error: &dyn std::fmt::Display| Failure::about(name, error);
    let mut machine =
        ReadPath::new(setup.config(world.carrier.caps())).map_err(|error| about(&error))?;
    let cpu = CpuTime::of_process();
    let measured =
        run_workload(&mut machine, workload, world, watch).map_err(|error| match error {
            RunError::World(_) => Failure::Run(format!("{name}: {error}")),
            _ => about(&error),
        })?;
    let mut row = measured
        .row(&plan.name, name, &plan.job)
        .with_meter(machine.meter(), &machine.cache_counters());
    row.cpu_seconds = Some(CpuTime::of_process().since(cpu).seconds());
    row.readahead = Some(setup.readahead.to_string());
    row.scheduler = Some(setup.scheduler.to_string());
    Ok(row)
}

/// Opens the storage and lays the job out on it.
pub fn open(plan: &Plan<'_>, path: &Path, direct: Direct) -> Result<(Target, Workload), Failure> {
    let options = OpenOptions { is_writable: plan.writes(), direct };
    let target = Target::open(path, options).map_err(Failure::usage)?;
    let workload = workload_on(plan, &path.display().to_string(), target.bytes())?;
    Ok((target, workload))
}

/// Lays the job's files out side by side on one existing file; a job that
/// gives no size uses the whole of it.
fn workload_on(plan: &Plan<'_>, name: &str, have_bytes: u64) -> Result<Workload, Failure> {
    let about_job = |error| Failure::about(plan.args.job.display(), error);
    let seed = plan.args.seed;
    let workload = match Workload::new(&plan.job, Placement::Modelled, seed) {
        Err(WorkloadError::UnknownSize { .. }) => {
            let one = Placement::One { name, bytes: have_bytes };
            return Workload::new(&plan.job, one, seed).map_err(about_job);
        }
        laid_out => laid_out.map_err(about_job)?,
    };
    let (starts, _) = workload.side_by_side();
    let ends = workload.files.iter().zip(starts).map(|(file, start)| start + file.bytes);
    match ends.max().unwrap_or(0) {
        need_bytes if need_bytes > have_bytes => Err(Failure::Usage(format!(
            "{}: the job's files need {need_bytes} bytes and {name} has {have_bytes}; make `size` \
             or `numjobs` smaller, or the file larger",
            plan.args.job.display()
        ))),
        _ => Ok(workload),
    }
}

/// What a reader of the row must know of how it began.
pub fn notes(target: &Target, residency: &cold::Residency) -> Option<String> {
    let mode = (target.mode() != Mode::Direct).then(|| target.mode().to_string());
    let warm = (residency.resident > 0).then(|| {
        format!("not cold: {} of {} pages stayed in memory", residency.resident, residency.pages)
    });
    join(mode, warm)
}

/// What carries the requests, where that is not the best there is.
pub fn carried_by(in_use: BackendInUse) -> Option<String> {
    let is_named = in_use.because.is_some() || in_use.kind == BackendKind::Threads;
    is_named.then(|| format!("carried by {in_use}"))
}

/// Two notes as one.
pub fn join(one: Option<String>, two: Option<String>) -> Option<String> {
    [one, two].into_iter().flatten().reduce(|one, two| format!("{one}; {two}"))
}

/// The cache, and a buffer for each operation that may be open at once.
fn memory_for(processes: &[Process], cache_bytes: u64) -> CarrierMemory {
    let needs_buffers = |process: &&Process| process.is_direct() || process.writes();
    let largest = processes.iter().filter(needs_buffers).map(Process::block_bytes_max).max();
    CarrierMemory {
        cache_bytes,
        // Every operation has a tag below the sum of the depths.
        buffers: largest.map_or(0, |_| processes.iter().map(Process::depth).sum()),
        buffer_bytes: largest.unwrap_or(0),
    }
}

/// The real world under the runner.
struct RealWorld<'a, S: Storage> {
    carrier: Carrier<S>,
    /// The file that the requests write to.
    path: &'a Path,
    /// Flushes that are done, or how one failed.
    flushed: std::io::Result<Vec<RequestId>>,
    /// Requests that have been submitted and not completed.
    in_flight: usize,
    /// Where the bytes of a read are copied to, as a program's buffer would be.
    taken: Vec<u8>,
}

impl<S: Storage> RealWorld<'_, S> {
    fn new(mut carrier: Carrier<S>, memory: CarrierMemory, path: &Path) -> RealWorld<'_, S> {
        let mut byte = 0u8;
        for tag in 0..memory.buffers {
            carrier.fill_buffer(tag, |page| {
                byte = byte.wrapping_add(1);
                page.fill(byte);
            });
        }
        RealWorld { carrier, path, flushed: Ok(Vec::new()), in_flight: 0, taken: Vec::new() }
    }
}

impl<S: Storage> World for RealWorld<'_, S> {
    fn now(&mut self) -> Time {
        self.carrier.now()
    }

    fn submit(&mut self, path: &ReadPath, request: DeviceRequest) {
        self.in_flight += 1;
        self.carrier.submit(path, request);
    }

    /// By a call of the thread that drives all processes.
    fn flush(&mut self, id: RequestId) {
        let synced = peer::sync(self.path, false);
        match (&mut self.flushed, synced) {
            (Ok(flushed), Ok(())) => flushed.push(id),
            (Ok(_), Err(error)) => self.flushed = Err(error),
            (Err(_), _) => {}
        }
    }

    fn take(&mut self, path: &ReadPath, done: &Done) -> Time {
        // A direct transfer has its bytes where the program wants them already.
        if !path.read_frames(done.read).is_empty() {
            let taken = &mut self.taken;
            taken.clear();
            self.carrier.bytes_of(path, done, |part| taken.extend_from_slice(part));
            std::hint::black_box(&taken);
        }
        Time::ZERO
    }

    fn pin(&mut self, _bytes: u64) -> Time {
        Time::ZERO
    }

    fn wait(
        &mut self,
        until: Option<Time>,
        completions: &mut Vec<Completion>,
    ) -> Result<(), WorldError> {
        let now = self.carrier.now();
        let flushed = self.flushed.as_mut();
        let flushed = flushed.map_err(|error| WorldError(format!("fsync: {error}")))?;
        if !flushed.is_empty() {
            let done = flushed.drain(..).map(|id| Completion::at(now, id, Outcome::Done));
            completions.extend(done);
            return Ok(());
        }
        let nap_end = now + NAP;
        let until = until.map_or(nap_end, |until| until.min(nap_end));
        // With nothing to wait for the carrier would come back at once.
        if self.in_flight == 0 {
            std::thread::sleep(Duration::from_nanos(until.since(now).ns()));
            return Ok(());
        }
        let before = completions.len();
        let waited = self.carrier.wait(Some(until), completions);
        waited.map_err(|error| WorldError(error.to_string()))?;
        self.in_flight -= completions.len() - before;
        Ok(())
    }

    fn turns_per_progress(&self) -> u32 {
        1
    }
}
