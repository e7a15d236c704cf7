//! `file:PATH`: a job through our read path on real storage.

use std::path::Path;

use readpath::backend::BackendKind;
use readpath::carrier::{Carrier, CarrierMemory};
use readpath::clock::Clock;
use readpath::cold;
use readpath::target::{Mode, OpenOptions, Target};
use readpath::usage::CpuTime;
use readpath_core::machine::{Done, ReadPath};
use readpath_core::request::{Completion, DeviceRequest};
use readpath_core::unit::{PAGE_BYTES, Time};
use readpath_sim::report::Row;
use readpath_sim::run::run as run_workload;
use readpath_sim::simulate::Setup;
use readpath_sim::workload::{Placement, Process, Workload, WorkloadError};
use readpath_sim::world::World;

use crate::exit::Failure;
use crate::progress::Bar;
use crate::run::Plan;

/// Runs the job on `path` and gives its row.
pub fn run(plan: &Plan<'_>, path: &Path, setup: &Setup, bar: &Bar) -> Result<Row, Failure> {
    let options = OpenOptions { is_writable: plan.args.overwrite, ..OpenOptions::default() };
    let target = Target::open(path, options).map_err(Failure::usage)?;
    let workload = workload_on(plan, path, target.bytes())?;
    let residency =
        cold::drop_pages(path).map_err(|error| Failure::about(path.display(), error))?;
    let note = notes(&target, &residency);
    let memory = memory_for(&workload.processes, setup.memory_bytes);
    let carrier = Carrier::new(target, memory, BackendKind::Ring, Clock::start())
        .map_err(|error| Failure::about(path.display(), error))?;
    // The kernel's own largest window here, so that both start from the same.
    let window_bytes =
        carrier.target().queue().map_or(setup.window_bytes, |queue| queue.read_ahead_bytes);
    let setup = Setup { window_bytes, ..setup.clone() };
    let mut machine = ReadPath::new(setup.config(carrier.caps()))
        .map_err(|error| Failure::about(path.display(), error))?;
    let mut world = RealWorld::new(carrier, memory);
    let cpu = CpuTime::of_process();
    let measured = run_workload(&mut machine, workload, &mut world, &mut |now| bar.tell(now))
        .map_err(|error| Failure::about(path.display(), error))?;
    let mut row = measured
        .row(&plan.name, &format!("file:{}", path.display()), &plan.job)
        .with_meter(machine.meter(), &machine.cache_counters());
    row.cpu_seconds = Some(CpuTime::of_process().since(cpu).seconds());
    row.readahead = Some(setup.readahead.to_string());
    row.scheduler = Some(setup.scheduler.to_string());
    row.note = [row.note, note].into_iter().flatten().reduce(|one, two| format!("{one}; {two}"));
    Ok(row)
}

/// Lays the job's files out side by side on one existing file; a job that
/// gives no size uses the whole of it.
pub fn workload_on(plan: &Plan<'_>, path: &Path, have_bytes: u64) -> Result<Workload, Failure> {
    let about_job = |error| Failure::about(plan.args.job.display(), error);
    let seed = plan.args.seed;
    let name = path.display().to_string();
    match Workload::new(&plan.job, Placement::Modelled, seed) {
        Err(WorkloadError::UnknownSize { .. }) => {
            let one = Placement::One { name: &name, bytes: have_bytes };
            Workload::new(&plan.job, one, seed).map_err(about_job)
        }
        Err(error) => Err(about_job(error)),
        Ok(workload) => match workload.side_by_side() {
            (_, need_bytes) if need_bytes > have_bytes.next_multiple_of(PAGE_BYTES) => {
                Err(Failure::Usage(format!(
                    "{}: the job's files need {need_bytes} bytes and {name} has {have_bytes}; make \
                     `size` or `numjobs` smaller, or the file larger",
                    plan.args.job.display()
                )))
            }
            _ => Ok(workload),
        },
    }
}

/// What a reader of the row must know of how it began.
pub fn notes(target: &Target, residency: &cold::Residency) -> Option<String> {
    let mode = (target.mode() != Mode::Direct).then(|| target.mode().to_string());
    let warm = (residency.resident > 0).then(|| {
        format!("not cold: {} of {} pages stayed in memory", residency.resident, residency.pages)
    });
    [mode, warm].into_iter().flatten().reduce(|one, two| format!("{one}; {two}"))
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
struct RealWorld {
    carrier: Carrier,
    /// Where the bytes of a read are copied to, as a program's buffer would be.
    taken: Vec<u8>,
}

impl RealWorld {
    fn new(mut carrier: Carrier, memory: CarrierMemory) -> RealWorld {
        let mut byte = 0u8;
        for tag in 0..memory.buffers {
            carrier.fill_buffer(tag, |page| {
                byte = byte.wrapping_add(1);
                page.fill(byte);
            });
        }
        RealWorld { carrier, taken: Vec::new() }
    }
}

impl World for RealWorld {
    fn now(&mut self) -> Time {
        self.carrier.now()
    }

    fn submit(&mut self, path: &ReadPath, request: DeviceRequest) {
        self.carrier.submit(path, request);
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

    fn wait(&mut self, until: Option<Time>, completions: &mut Vec<Completion>) {
        self.carrier
            .wait(until, completions)
            .expect("a ring that has carried one request carries the next");
    }
}
