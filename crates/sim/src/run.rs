//! Runs a workload through the read path, in the simulation.
//!
//! Each process of the workload returns its next operation. The runner converts it to reads of the
//! machine (one fault per page for mapped files) and reports the completion to the process. A
//! process is busy while it copies its data, and issues no operation meanwhile. In one step, all
//! operations that can be issued at the present time are issued before the device receives the
//! first of their requests. Direct writes are sent batch by batch, as by the kernel: adjacent ones
//! of different batches are merged only if they wait for the device.
//!
//! The *machine* ([`Machine`]) is the read path with its page cache, its policies and its
//! scheduler. The *environment* ([`SimulatedEnvironment`]) is the simulated device with the clock.
//! A *phase* contains the processes that start when all processes of earlier phases have ended.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use readpath_core::cache::FileId;
use readpath_core::machine::{
    BeyondDevice, Done, Driver, HandleId, IoBackend, Machine, ReadAccess, ReadError, Transfer,
};
use readpath_core::readahead::Advice;
use readpath_core::request::{Completion, DeviceRequest, Op, ProcessId};
use readpath_core::unit::{PAGE_BYTES, PageRange, SECTOR_BYTES, Time};
use slab::Slab;

use crate::job::JobEngine;
use crate::report::{ProcessShare, ReadCounters};
use crate::stuck::{Steps, Stuck, state_of};
use crate::workload::{self, NextAction, Process, ProcessOperation, Workload};
use crate::world::SimulatedEnvironment;

mod advice;
mod measurements;
mod raw;
mod unmeasured;
mod watch;
mod writes;

pub use measurements::RunMeasurements;
pub use watch::{Progress, ProgressAnswer, RunObserver};

use raw::{ChunksInFlight, RawOperation};
use writes::{IS_SYNC, flush_of, process_of_flush};

/// State of one process.
struct RunningProcess {
    /// The state machine that returns the next operations.
    process: Process,
    /// Results of the process.
    share: ProcessShare,
    /// True once an operation in the measured time of the process has ended.
    is_measured: bool,
    /// Counters of its reads and writes before that time. `None` without any, and once they are
    /// dropped.
    unmeasured: Option<Box<[ReadCounters; 2]>>,
    /// Open files, with the machine's handles on them.
    handles: Vec<(workload::FileId, HandleId)>,
    /// Operations that wait until their batch is full.
    batch: Vec<ProcessOperation>,
    /// Raw operation (one transfer in chunks) in progress.
    raw: Option<RawOperation>,
    /// End of the processor time for the last operations. The process issues nothing before.
    busy_until: Time,
    /// Time at which the process is woken from a sleep with operations in flight.
    alarm: Option<Time>,
    /// True after the end of the process, or if the run stops before its start.
    has_ended: bool,
}

/// An operation that a process has issued and the machine has not completed.
#[derive(Clone, Copy, Debug)]
struct OperationInFlight {
    /// Number of its process.
    process: u32,
    /// The operation as the process demands it.
    operation: ProcessOperation,
    /// Issue time, from which the latency counts.
    issued: Time,
    /// Offset in the file of the next page fault of a mapped read. Other operations do not use
    /// it.
    next_byte: u64,
}

/// Error of a run without results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The workload's files exceed the device.
    TooLarge(BeyondDevice),
    /// The run makes no progress.
    Stuck(Stuck),
}

/// Runs all processes of `workload` to their ends. The workload's files must not be on the machine
/// yet.
///
/// # Errors
/// Fails if the workload's files exceed the device, or if the run makes no progress.
pub fn run(
    machine: &mut Machine,
    mut workload: Workload,
    environment: &mut SimulatedEnvironment,
    mut observer: RunObserver<'_>,
) -> Result<RunMeasurements, RunError> {
    if let Some(on_workload) = &mut observer.on_workload {
        on_workload(&mut workload);
    }
    observer.begin(machine);
    let mut run = RunningJob::new(machine, workload, environment).map_err(RunError::TooLarge)?;
    run.run_steps(machine, &mut observer).map_err(RunError::Stuck)?;
    Ok(run.into_measurements())
}

/// Adds the workload's files to the machine, contiguously on its device. Returns their identifiers,
/// in the order of the workload's files. Fails if they exceed the device.
pub fn add_files(machine: &mut Machine, workload: &Workload) -> Result<Vec<FileId>, BeyondDevice> {
    let (starts, _) = workload.contiguous_starts();
    let files = workload.files.iter().zip(starts);
    files.map(|(file, start)| machine.add_file(file.bytes, start / SECTOR_BYTES)).collect()
}

/// State of a run.
struct RunningJob<'a> {
    /// Device and clock.
    world: &'a mut SimulatedEnvironment,
    /// Files of the machine, in the order of the workload's files.
    files: Vec<FileId>,
    /// All processes, by their numbers.
    processes: Vec<RunningProcess>,
    /// Operations in flight. The index is their tag: the number by which the machine reports their
    /// ends.
    operations_in_flight: Slab<OperationInFlight>,
    /// Chunks of raw operations, which the machine reports by tags of their own.
    chunks: ChunksInFlight,
    /// Processes that can continue now.
    ready: Vec<u32>,
    /// Processes that can continue later, with their times.
    later: BinaryHeap<Reverse<(Time, u32)>>,
    /// Processes of phases that have not started, the next one last.
    later_phases: Vec<u32>,
    /// Number of processes of this and earlier phases that have not ended.
    unended_processes: usize,
    /// Counters of the reads and writes of each job.
    jobs: Vec<[ReadCounters; 2]>,
    /// Number of device flushes, one for each process in a sync.
    flushes_in_flight: u32,
    /// Bytes of all successful operations, for the progress.
    bytes_moved: u64,
    /// Bytes that the workload will move, or `None` if only time limits it.
    bytes_planned: Option<u64>,
    /// Text of the first error of an operation or process.
    first_error: Option<String>,
    /// True once the observer has stopped the run.
    is_stopping: bool,
    /// Counter of the failed operations at one virtual time.
    failures: Steps,
    /// Error after too many failed operations at one time. `run_steps` returns it.
    stuck: Option<Stuck>,
}

/// Number of steps between progress reports. A step takes about 1 µs.
pub const STEPS_PER_PROGRESS: u32 = 4096;

impl<'a> RunningJob<'a> {
    /// Creates the run: adds the files to the machine, and all processes in the order of phases.
    fn new(
        machine: &mut Machine,
        workload: Workload,
        world: &'a mut SimulatedEnvironment,
    ) -> Result<RunningJob<'a>, BeyondDevice> {
        let files = add_files(machine, &workload)?;
        let job_count = workload.processes.iter().map(|process| process.job() + 1).max();
        let bytes_planned = workload.bytes_planned();
        let mut processes = Vec::new();
        for process in workload.processes {
            if let Some(priority) = process.priority() {
                machine.set_priority(process.id(), priority);
            }
            processes.push(RunningProcess {
                share: ProcessShare::new(&process),
                is_measured: false,
                unmeasured: None,
                process,
                handles: Vec::new(),
                batch: Vec::new(),
                raw: None,
                busy_until: Time::ZERO,
                alarm: None,
                has_ended: false,
            });
        }
        Ok(RunningJob {
            world,
            files,
            ready: Vec::new(),
            // The processes are in the order of their phases.
            later_phases: (0..processes.len() as u32).rev().collect(),
            processes,
            operations_in_flight: Slab::new(),
            chunks: ChunksInFlight::default(),
            later: BinaryHeap::new(),
            unended_processes: 0,
            jobs: vec![Default::default(); job_count.unwrap_or(0)],
            flushes_in_flight: 0,
            bytes_moved: 0,
            bytes_planned,
            first_error: None,
            is_stopping: false,
            failures: Steps::default(),
            stuck: None,
        })
    }

    /// Runs steps until no process can continue and no request is in flight. Reports progress and
    /// decisions to the observer, which may stop the run. Fails after too many steps or failed
    /// operations at one virtual time, or if internal events of the device continue without end.
    fn run_steps(
        &mut self,
        machine: &mut Machine,
        observer: &mut RunObserver<'_>,
    ) -> Result<(), Stuck> {
        let mut step_count: u32 = 0;
        let mut steps = Steps::default();
        loop {
            let has_more = self.do_present_work(machine);
            self.stuck.take().map_or(Ok(()), Err)?;
            // Detects a policy or model that keeps working without progress of the virtual time.
            steps.count(self.world.now(), || format!("turns: {}", state_of(machine)))?;
            observer.forward_decisions(machine);
            step_count = step_count.wrapping_add(1);
            if step_count.is_multiple_of(STEPS_PER_PROGRESS) {
                let (now, bytes) = (self.world.now(), self.bytes_moved);
                let progress = Progress { now, bytes, bytes_total: self.bytes_planned };
                if (observer.on_progress)(progress) == ProgressAnswer::Stop && !self.is_stopping {
                    self.stop();
                    continue;
                }
            }
            if has_more {
                continue;
            }
            // The next time at which the machine or a process demands work.
            let wakes = [machine.next_wake(), self.later.peek().map(|Reverse((time, _))| *time)];
            let next_time = wakes.into_iter().flatten().min();
            let is_device_busy = machine.meter().in_device() > 0 || self.flushes_in_flight > 0;
            if !is_device_busy && next_time.is_none() {
                assert!(machine.is_idle(), "nothing is under way, so nothing is waited for");
                return Ok(());
            }
            self.world.advance(next_time)?;
        }
    }

    /// Stops issuing: unstarted processes never start, the others end at their next step. All are
    /// made ready, so that this step is now. Operations in flight still end and count. Operations
    /// that wait for a full batch are never issued.
    fn stop(&mut self) {
        self.is_stopping = true;
        for id in self.later_phases.drain(..) {
            self.processes[id as usize].has_ended = true;
        }
        self.later.clear();
        self.ready.clear();
        self.ready.extend(0..self.processes.len() as u32);
    }

    /// Performs all work of the present time: takes completions, starts the next phase if none
    /// runs, lets due processes issue operations, and steps the machine. Returns true if more work
    /// is left at this time: of the machine, or the start of the next phase.
    fn do_present_work(&mut self, machine: &mut Machine) -> bool {
        let now = self.world.now();
        machine.take_completions(now, self);
        if self.unended_processes == 0 {
            self.start_next_phase(now);
        }
        while let Some(&Reverse((time, process))) = self.later.peek() {
            if time > now {
                break;
            }
            self.later.pop();
            let running = &mut self.processes[process as usize];
            // An alarm of this time has served its purpose.
            running.alarm = running.alarm.filter(|alarm| *alarm != time);
            self.ready.push(process);
        }
        while let Some(process) = self.ready.pop() {
            self.run_process(machine, now, process);
        }
        let is_phase_over = self.unended_processes == 0 && !self.later_phases.is_empty();
        machine.step(now, self) || is_phase_over
    }

    /// Starts the processes of the next phase, each after its delay, which counts from the start of
    /// the run. No effect without a phase.
    fn start_next_phase(&mut self, now: Time) {
        let phase_of = |run: &RunningJob<'_>, id: u32| run.processes[id as usize].process.phase();
        let Some(phase) = self.later_phases.last().map(|&id| phase_of(self, id)) else { return };
        while let Some(&id) = self.later_phases.last()
            && phase_of(self, id) == phase
        {
            self.later_phases.pop();
            self.unended_processes += 1;
            let start = self.processes[id as usize].process.start_delay().max(now);
            self.later.push(Reverse((start, id)));
        }
    }

    /// Lets process number `id` issue as many operations as it can, until it waits or ends. A
    /// process that waits for a completion, or for a sync, becomes ready again by that. A sleeping
    /// process becomes ready at its time.
    fn run_process(&mut self, machine: &mut Machine, now: Time, id: u32) {
        loop {
            let running = &mut self.processes[id as usize];
            // An ended process still completes its raw operation.
            if running.has_ended && running.raw.is_none() || self.stuck.is_some() {
                return;
            }
            if running.busy_until > now {
                self.later.push(Reverse((running.busy_until, id)));
                return;
            }
            if running.raw.is_some() {
                // The next chunk of the raw operation is ready to be submitted.
                return self.submit_pinned(machine, now, id);
            }
            if self.is_stopping {
                return self.end_process(machine, now, id);
            }
            // This call also gives the advice of the process that is due before the action.
            let (next_action, running) = self.next_action(machine, now, id);
            match next_action {
                NextAction::Operation(operation) => {
                    let is_direct_write = operation.op == Op::Write && running.process.is_direct();
                    running.batch.push(operation);
                    if operation.is_batch_end {
                        self.submit_batch(machine, now, id);
                        // The kernel sends direct writes at the end of the call.
                        if is_direct_write {
                            self.send_requests(machine, now);
                        }
                    }
                }
                NextAction::WaitUntil(time) => {
                    self.submit_batch(machine, now, id);
                    // A single alarm suffices, even if completions ask again before it.
                    let running = &mut self.processes[id as usize];
                    if running.alarm.replace(time) != Some(time) {
                        self.later.push(Reverse((time, id)));
                    }
                    return;
                }
                // The device has one kind of flush, also for a data sync.
                NextAction::Sync { .. } => {
                    self.submit_batch(machine, now, id);
                    self.flushes_in_flight += 1;
                    self.world.flush(flush_of(id));
                    return;
                }
                NextAction::WaitForCompletion if running.batch.is_empty() => return,
                NextAction::WaitForCompletion => return self.submit_batch(machine, now, id),
                NextAction::Ended => return self.end_process(machine, now, id),
            }
        }
    }

    /// Starts all operations of a process that wait for their batch.
    fn submit_batch(&mut self, machine: &mut Machine, now: Time, id: u32) {
        let mut batch = std::mem::take(&mut self.processes[id as usize].batch);
        batch.drain(..).for_each(|operation| self.issue_operation(machine, now, id, operation));
        self.processes[id as usize].batch = batch;
    }

    /// Sends the requests of a batch to the device, as far as the scheduler and the device accept
    /// them. Requests of one batch can be merged, and requests that wait for the device.
    fn send_requests(&mut self, machine: &mut Machine, now: Time) {
        while let Some(request) = machine.poll_request(now) {
            self.world.submit(machine, now, request);
        }
    }

    /// Records the end of a process, also in the machine. A failure, such as a rate below the
    /// minimum, counts as a failed read without a duration, even if the process only writes.
    fn end_process(&mut self, machine: &mut Machine, now: Time, id: u32) {
        let running = &mut self.processes[id as usize];
        running.has_ended = true;
        if let Some(failure) = running.process.failure() {
            self.jobs[running.process.job()][Op::Read as usize].record_error(now, now);
            running.share.record_error(now, now);
            self.first_error.get_or_insert_with(|| failure.to_owned());
        }
        machine.process_ended(now, ProcessId(id));
        self.unended_processes -= 1;
    }

    /// Issues an operation of process number `process` at time `now`.
    fn issue_operation(
        &mut self,
        machine: &mut Machine,
        now: Time,
        process: u32,
        operation: ProcessOperation,
    ) {
        let in_flight =
            OperationInFlight { process, operation, issued: now, next_byte: operation.offset };
        let tag = self.operations_in_flight.insert(in_flight) as u32;
        self.start_transfer(machine, now, tag);
    }

    /// Starts the transfer of operation `tag`, or the next fault of a mapped one.
    fn start_transfer(&mut self, machine: &mut Machine, now: Time, tag: u32) {
        let in_flight = self.operations_in_flight[tag as usize];
        let operation = in_flight.operation;
        if self.processes[in_flight.process as usize].process.engine() == JobEngine::Raw {
            return self.start_raw(machine, now, tag);
        }
        let handle = self.open_once(machine, now, in_flight.process, operation.file);
        let process = &self.processes[in_flight.process as usize].process;
        let mut transfer = Transfer {
            handle,
            process: ProcessId(in_flight.process),
            offset: operation.offset,
            bytes: operation.bytes,
            tag: tag.into(),
        };
        let started = match (operation.op, process.engine(), process.is_direct()) {
            (Op::Write, _, is_direct) => {
                // Also a mapped job writes by calls: stores into a mapping are not modelled. A
                // cached write covers whole units of the device's alignment. A direct one is passed
                // on as it is.
                if !is_direct {
                    transfer = Self::extend_to_units(machine, transfer);
                }
                machine.write(now, transfer, IS_SYNC)
            }
            (Op::Read, JobEngine::Mmap, _) => {
                transfer.offset = in_flight.next_byte;
                let page_end = (in_flight.next_byte / PAGE_BYTES + 1) * PAGE_BYTES;
                let end = page_end.min(operation.offset + operation.bytes);
                transfer.bytes = end - in_flight.next_byte;
                machine.read(now, ReadAccess::Fault, transfer)
            }
            (Op::Read, _, true) => machine.read(now, ReadAccess::Direct, transfer),
            (Op::Read, _, false) => machine.read(now, ReadAccess::Buffered, transfer),
        };
        // The identifier of a started transfer is not needed: its end is reported with its tag.
        if let Err(error) = started {
            self.complete_operation(machine, now, tag, Err(error));
        }
    }

    /// Continues operation `tag` after one of its transfers: the next fault of a mapped read, or
    /// its end.
    fn continue_operation(&mut self, machine: &mut Machine, now: Time, tag: u32, done: &Done) {
        let in_flight = &mut self.operations_in_flight[tag as usize];
        let process = &self.processes[in_flight.process as usize].process;
        let end = in_flight.operation.offset + in_flight.operation.bytes;
        let is_write = in_flight.operation.op == Op::Write;
        let is_mapped = process.engine() == JobEngine::Mmap && !is_write;
        match done.result {
            // No bytes mean the end of the file, which ends the operation early.
            Ok(bytes) if is_mapped && bytes > 0 && in_flight.next_byte + bytes < end => {
                in_flight.next_byte += bytes;
                self.start_transfer(machine, now, tag);
            }
            Ok(bytes) if is_mapped => {
                let moved_bytes = in_flight.next_byte + bytes - in_flight.operation.offset;
                self.complete_operation(machine, now, tag, Ok(moved_bytes));
            }
            // Only the program's bytes count: a cached write is extended to whole device units.
            Ok(_) if is_write => {
                let bytes = in_flight.operation.bytes;
                self.complete_operation(machine, now, tag, Ok(bytes));
            }
            result => self.complete_operation(machine, now, tag, result),
        }
    }

    /// Records the end of an operation: removes it, closes its file if it `closes`, and counts its
    /// latency and bytes or its error. Errors count during the ramp time too. Its process can
    /// continue then. Too many failures at one virtual time stop the run: a process whose
    /// operations fail at once would go on without end.
    fn complete_operation(
        &mut self,
        machine: &mut Machine,
        now: Time,
        tag: u32,
        result: Result<u64, ReadError>,
    ) {
        let OperationInFlight { process, operation, issued, .. } =
            self.operations_in_flight.remove(tag as usize);
        // The operation is removed, so that only others keep its file open.
        if operation.closes {
            self.close_if_unused(machine, process, operation.file);
        }
        let running = &mut self.processes[process as usize];
        // The process has its data when it has copied them.
        let ended = running.busy_until.max(now);
        match result {
            Ok(bytes) => self.record_success(process, &operation, (issued, ended), bytes),
            Err(error) => {
                let read_counters = &mut self.jobs[running.process.job()][operation.op as usize];
                read_counters.record_error(issued, ended);
                running.share.record_error(issued, ended);
                self.first_error.get_or_insert_with(|| error.to_string());
                let state = || format!("operations that fail: {error}, {}", state_of(machine));
                self.stuck = self.failures.count(now, state).err();
            }
        }
        self.processes[process as usize].process.completed(ended);
        self.ready.push(process);
    }

    /// Returns the process's handle on a file. The first use opens the file. Cached data of the
    /// file is then dropped, as in fio (`invalidate`), and the process's advice is given.
    fn open_once(
        &mut self,
        machine: &mut Machine,
        now: Time,
        process: u32,
        file: workload::FileId,
    ) -> HandleId {
        let running = &mut self.processes[process as usize];
        if let Some(&(_, handle)) = running.handles.iter().find(|(opened, _)| *opened == file) {
            return handle;
        }
        let handle = machine.open(self.files[file.0 as usize]);
        running.handles.push((file, handle));
        let opener = &running.process;
        let advice = match opener.engine() {
            JobEngine::Mmap => opener.mapping_advice(),
            _ => opener.advice(),
        };
        let whole = PageRange::covering(0, machine.file_bytes(handle));
        if opener.invalidates() {
            machine.advise(now, handle, ProcessId(process), Advice::DontNeed, whole);
        }
        // A new handle behaves as with `Normal` already.
        if advice != Advice::Normal {
            machine.advise(now, handle, ProcessId(process), advice, whole);
        }
        handle
    }

    /// Closes the process's handle on a file, unless it has other operations in flight on it.
    fn close_if_unused(&mut self, machine: &mut Machine, process: u32, file: workload::FileId) {
        let is_on_file =
            |other: &OperationInFlight| (other.process, other.operation.file) == (process, file);
        let handles = &mut self.processes[process as usize].handles;
        if let Some(index) = handles.iter().position(|(opened, _)| *opened == file)
            && !self.operations_in_flight.iter().any(|(_, other)| is_on_file(other))
        {
            machine.close(handles.remove(index).1);
        }
    }
}

impl IoBackend for RunningJob<'_> {
    /// Submits a request to the simulated device.
    fn submit(&mut self, machine: &Machine, now: Time, request: DeviceRequest) {
        self.world.submit(machine, now, request);
    }

    /// Returns the next completion of a device request, or `None`. Completed flushes on the way end
    /// the syncs of their processes.
    fn poll_completion(&mut self, now: Time) -> Option<Completion> {
        loop {
            let completion = self.world.poll_completion(now)?;
            match process_of_flush(completion.id) {
                Some(process) => self.end_sync(now, process, completion.outcome),
                None => return Some(completion),
            }
        }
    }
}

impl Driver for RunningJob<'_> {
    /// Handles a completed transfer: charges its processor time, releases it in the machine, and
    /// continues its operation. The process is busy for that time. A chunk of a raw operation takes
    /// no such time, and is counted to its operation.
    fn on_done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        if raw::is_chunk(&done) {
            return self.on_chunk_completed(machine, now, &done);
        }
        let tag = done.tag as u32;
        // Before the release: the time depends on the data of the read.
        let processor_time = self.world.charge_completion(machine, &done);
        machine.release(now, done.read);
        let running = &mut self.processes[self.operations_in_flight[tag as usize].process as usize];
        running.busy_until = running.busy_until.max(now) + processor_time;
        self.continue_operation(machine, now, tag, &done);
    }
}
