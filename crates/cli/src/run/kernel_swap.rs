//! `kernel:PATH` for loads: the same touches under the kernel's own swap.
//!
//! The load's processes are children in a memory cgroup with the load's limit. The swap area is on
//! the storage that PATH names. All processes fill their memory first. The kernel's counters are
//! read then, and again after all touches.
//!
//! A memory cgroup's OOM killer sometimes ends such a run, when reclaim is slower than the faults.
//! The run is then repeated up to `ATTEMPTS` times, and the row has a caveat.

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use readpath_eval::kernel_swap::area::SwapArea;
use readpath_eval::kernel_swap::counters::{self, DeviceCounts, SwappedPages};
use readpath_eval::kernel_swap::group::MemoryGroup;
use readpath_eval::kernel_swap::memory::shared_object;
use readpath_eval::kernel_swap::page_cluster::{self, PageCluster};
use readpath_eval::kernel_swap::{SwapError, SwapLock};
use readpath_record::notice;
use readpath_sim::load::{LoadRow, MemorySharing};
use readpath_sim::report::ReadCounters;
use rustix::process::Signal;

use crate::exit::Failure;
use crate::note::join;
use crate::plan::load::LoadRun;
use crate::progress::Interrupt;
use crate::real_file::kernel_queue;
use crate::touch_memory::{TouchBegin, TouchReply, TouchTask, Touched};
use crate::worker::{AnswerError, WorkerProcess, WorkerTask};

/// Maximum number of attempts if the OOM killer ends the run. It ended 8 of 80 on the test machine:
/// five in a row have another cause.
const ATTEMPTS: u32 = 5;

/// Longest wait between two checks of the interrupt. Chosen, not measured.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Reason for a row without figures.
enum RunAbort {
    /// The system lacks something or refuses it.
    Unavailable(String),
    /// The run failed for another reason.
    RunFailed(String),
    /// The OOM killer ended the run.
    OutOfMemory,
    /// The user has interrupted the command.
    Interrupted,
}

impl From<SwapError> for RunAbort {
    /// Counts every error of the swap area, the group and `vm.page_cluster` as unavailable.
    fn from(error: SwapError) -> RunAbort {
        RunAbort::Unavailable(error.to_string())
    }
}

/// Runs the load and returns its row. A system that cannot run it yields a row without figures,
/// with the reason in its note, and so do `ATTEMPTS` attempts that the OOM killer ended.
///
/// `page_cluster` is the value of `vm.page_cluster` during the run; `None` leaves it unchanged.
pub fn run(
    run: &LoadRun,
    path: &Path,
    page_cluster: Option<u32>,
    interrupt: &Interrupt,
) -> Result<LoadRow, Failure> {
    let mut row = LoadRow::new(&run.load, &run.storage);
    row.engine = Some("kernel swap".to_owned());
    row.scheduler = kernel_queue(path).and_then(|queue| queue.scheduler);
    let row_without_figures = |row: LoadRow, reason| LoadRow { note: Some(reason), ..row };
    let mut oom_kills = 0;
    for _ in 0..ATTEMPTS {
        match run_once(run, path, page_cluster, interrupt, row.clone()) {
            Ok(done) => return Ok(with_note(done, oom_caveat(oom_kills))),
            Err(RunAbort::OutOfMemory) => oom_kills += 1,
            Err(RunAbort::Unavailable(reason)) => return Ok(row_without_figures(row, reason)),
            Err(RunAbort::RunFailed(reason)) => {
                return Err(Failure::Run(format!("{}: {reason}", path.display())));
            }
            Err(RunAbort::Interrupted) => return Err(Failure::Interrupted),
        }
    }
    let reason = format!(
        "the memory cgroup's OOM killer ended all of {ATTEMPTS} attempts; give the load more memory"
    );
    Ok(row_without_figures(row, reason))
}

/// Returns a caveat about `oom_kills` attempts ended by the OOM killer, or `None` for 0.
fn oom_caveat(oom_kills: u32) -> Option<String> {
    (oom_kills > 0).then(|| {
        format!("the memory cgroup's OOM killer had ended {oom_kills} attempts before this one")
    })
}

/// Adds a caveat to a row.
fn with_note(mut row: LoadRow, note: Option<String>) -> LoadRow {
    row.note = join(row.note, note);
    row
}

/// Counters of the kernel at one moment.
struct SwapCounts {
    /// Pages swapped in and out by the whole machine.
    swapped: Option<SwappedPages>,
    /// Requests of the swap area's device, if it has its own.
    device: Option<DeviceCounts>,
}

impl SwapCounts {
    /// Reads the counters.
    fn now(area: &SwapArea) -> SwapCounts {
        SwapCounts {
            swapped: SwappedPages::now(),
            device: area.device().and_then(DeviceCounts::of),
        }
    }
}

/// Runs the load once and fills the row with its figures. Waits for the lock of the kernel's swap.
/// At its end, also after a failure, the swap area and the memory group are removed, and
/// `vm.page_cluster` is restored.
fn run_once(
    run: &LoadRun,
    path: &Path,
    page_cluster: Option<u32>,
    interrupt: &Interrupt,
    mut row: LoadRow,
) -> Result<LoadRow, RunAbort> {
    let load = &run.load;
    // Locals drop in reverse order: the processes end before the area is swapped off.
    let _swap_lock = lock_kernel_swap(interrupt)?;
    let page_cluster_set = page_cluster.map(PageCluster::set).transpose()?;
    let (area, area_notes) = SwapArea::on(path, load.swap_bytes)?;
    let (group, group_notes) = MemoryGroup::new(load.memory_bytes)?;
    let setting_notes = page_cluster_set.iter().flat_map(|(_, note)| note.iter());
    setting_notes.chain(&area_notes).chain(&group_notes).for_each(notice::print);

    // The counters before and after the touches do not contain the filling.
    let mut processes = Processes::start(run, &group)?;
    let fill_seconds =
        processes.wait_for_fill(interrupt).map_err(|error| missing_answer_reason(error, &group))?;
    let before = SwapCounts::now(&area);
    let touched =
        processes.touch(interrupt).map_err(|error| missing_answer_reason(error, &group))?;
    let after = SwapCounts::now(&area);

    // Sums over the processes; the time is the longest of one.
    row.swapin = page_cluster::current().map(|value| format!("kernel,page_cluster={value}"));
    row.fill_seconds = Some(fill_seconds);
    row.cpu_seconds = Some(touched.iter().map(|reply| reply.cpu_seconds).sum());
    let mut read_counters = ReadCounters::default();
    for (ns, count) in touched.iter().flat_map(|reply| &reply.latencies) {
        read_counters.record_latencies(*ns, *count);
    }
    row.latency_us = read_counters.latency();
    row.minor_faults = Some(touched.iter().map(|reply| reply.minor_faults).sum());
    let seconds = touched.iter().map(|reply| reply.seconds).fold(0.0, f64::max);
    let major_faults = touched.iter().map(|reply| reply.major_faults).sum();
    let swapped = after.swapped.zip(before.swapped).map(|(after, before)| after.since(before));
    row = row.with_touches(load.touches * u64::from(load.processes), seconds).with_swapping(
        Some(major_faults),
        swapped.map(|swapped| swapped.pages_in),
        swapped.map(|swapped| swapped.pages_out),
    );
    if let Some((after, before)) = after.device.zip(before.device) {
        let counts = after.since(before);
        row = row.with_device(counts.requests, counts.bytes);
    }
    Ok(with_note(row, machine_caveats(page_cluster.is_some(), &processes.process_ids())))
}

/// Waits until no other run uses the kernel's swap, and prints a notice if it has to wait.
fn lock_kernel_swap(interrupt: &Interrupt) -> Result<SwapLock, RunAbort> {
    let mut is_wait_reported = false;
    loop {
        if let Some(lock) = SwapLock::take()? {
            return Ok(lock);
        }
        if interrupt.is_signalled() {
            return Err(RunAbort::Interrupted);
        }
        if !is_wait_reported {
            notice::print("another run uses the kernel's swap; waiting for its end");
            is_wait_reported = true;
        }
        std::thread::sleep(INTERRUPT_CHECK_INTERVAL);
    }
}

/// Returns caveats about the machine, or `None`: a changed `vm.page_cluster` (if
/// `is_page_cluster_set`), other swap areas, swapped pages of other processes, and zswap.
/// `own_processes` are the processes of the load.
fn machine_caveats(is_page_cluster_set: bool, own_processes: &[u32]) -> Option<String> {
    let set_note =
        is_page_cluster_set.then(|| "page_cluster was set for the whole machine".to_owned());
    // An unknown number counts as the load's own area alone.
    let areas = counters::swap_areas().unwrap_or(1);
    let shared_note = (areas > 1).then(|| {
        format!("{} other swap areas are in use: pages in and out are the machine's", areas - 1)
    });
    let others_kib = counters::swapped_bytes_of_others(own_processes) / 1024;
    let others_note = (others_kib > 0)
        .then(|| format!("{others_kib} KiB of other processes were in swap at the end too"));
    let zswap = counters::has_zswap()
        .then(|| "zswap is on: some pages never reached the device".to_owned());
    [set_note, shared_note, others_note, zswap].into_iter().fold(None, join)
}

/// Processes of the load. Dropping them kills them and waits for their end.
struct Processes {
    /// One worker for each process of the load.
    workers: Vec<WorkerProcess>,
}

/// Finds the reason that a process gave no answer: the OOM killer, or another one.
fn missing_answer_reason(error: AnswerError, group: &MemoryGroup) -> RunAbort {
    match error {
        AnswerError::Interrupted => RunAbort::Interrupted,
        AnswerError::Malformed(message) => RunAbort::RunFailed(message),
        AnswerError::TimedOut => unreachable!("a load has no time limit"),
        AnswerError::Ended(status) if status.signal() == Some(Signal::KILL.as_raw()) => {
            match group.counts().oom_kills {
                0 => RunAbort::RunFailed(
                    "a process of the load was killed by a signal from outside".to_owned(),
                ),
                _ => RunAbort::OutOfMemory,
            }
        }
        AnswerError::Ended(status) => {
            RunAbort::RunFailed(format!("a process of the load ended early: {status}"))
        }
    }
}

impl Processes {
    /// Starts the processes and sends their orders. Each one joins the group before its order, and
    /// thus before it maps memory.
    fn start(run: &LoadRun, group: &MemoryGroup) -> Result<Processes, RunAbort> {
        let load = &run.load;
        let failure = |subject: &str, error: std::io::Error| {
            RunAbort::RunFailed(format!("{subject}: {error}"))
        };
        // Open until every process has its own copy of the handle; closed before the area is
        // swapped off.
        let object = match load.share {
            MemorySharing::Private => None,
            MemorySharing::Shared => {
                let memory_file = shared_object(load.mapping_bytes);
                Some(memory_file.map_err(|error| failure("shared memory", error))?)
            }
        };
        let descriptor = object.as_ref().map(|object| object.as_raw_fd());
        let mut processes = Processes { workers: Vec::new() };
        for process in 0..load.processes {
            let worker = WorkerProcess::start(WorkerTask::Touch)
                .map_err(|error| failure("a process", error))?;
            processes.workers.push(worker);
            let worker = processes.workers.last_mut().expect("the worker was pushed above");
            group.add(worker.id())?;
            let order =
                TouchTask { load: load.clone(), process, seed: run.seed, object: descriptor };
            worker.send_order(&order).map_err(|error| failure("a process of the load", error))?;
        }
        Ok(processes)
    }

    /// Ids of the processes.
    fn process_ids(&self) -> Vec<u32> {
        self.workers.iter().map(WorkerProcess::id).collect()
    }

    /// Waits until all processes have filled their memory. Returns the longest time of one in
    /// seconds.
    fn wait_for_fill(&mut self, interrupt: &Interrupt) -> Result<f64, AnswerError> {
        let mut seconds_max = 0.0_f64;
        for worker in &mut self.workers {
            let no_deadline = None;
            match worker.receive_answer(no_deadline, interrupt)? {
                TouchReply::Filled { seconds } => seconds_max = seconds_max.max(seconds),
                other => return Err(unexpected_answer(other)),
            }
        }
        Ok(seconds_max)
    }

    /// Orders all processes to touch their pages, and waits for the last. Returns their
    /// measurements.
    fn touch(&mut self, interrupt: &Interrupt) -> Result<Vec<Touched>, AnswerError> {
        for worker in &mut self.workers {
            // An ended process is detected below, together with the reason.
            let _ = worker.send_order(&TouchBegin);
        }
        let mut replies = Vec::new();
        for worker in &mut self.workers {
            let no_deadline = None;
            match worker.receive_answer(no_deadline, interrupt)? {
                TouchReply::Touched(touched) => replies.push(touched),
                other => return Err(unexpected_answer(other)),
            }
        }
        Ok(replies)
    }
}

/// Failure of an answer that does not fit the protocol.
fn unexpected_answer(answer: TouchReply) -> AnswerError {
    AnswerError::Malformed(match answer {
        TouchReply::Failed(message) => message,
        other => format!("unexpected answer {other:?}"),
    })
}
