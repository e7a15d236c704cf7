//! Simulation of a memory load: from a device and policies to one row of results.
//!
//! A touch of a mapped page only costs its time. The process then continues until the next event
//! elsewhere. Any other touch is a fault of the machine, and the process waits for it. Pages are
//! unmapped as soon as the machine demands it.
//!
//! The *machine* ([`Machine`]) is the read path with its memory, its policies and its scheduler. It
//! decides which pages are swapped, and which requests the device receives.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use readpath_core::machine::{
    Config, Driver, Faulted, IoBackend, Machine, MemoryAccess, MemoryFault, MemoryKind, PageSource,
    SwapConfig, SwapCounters, SwapOut,
};
use readpath_core::policy::Spec;
use readpath_core::request::{Completion, DeviceRequest, ProcessId};
use readpath_core::swapin::MemoryId;
use readpath_core::unit::{PAGE_BYTES, Time};

use super::{LoadRow, MemoryHost, MemoryLoad, MemorySharing, Touch, Touches};
use crate::observe::{Events, Observer};
use crate::report::ReadCounters;
use crate::run::{Progress, ProgressAnswer, RunObserver, STEPS_PER_PROGRESS};
use crate::simulate::SimulateError;
use crate::stuck::{Steps, Stuck, state_of};
use crate::world::{HostCosts, SimulatedEnvironment};
use readpath_models::registry;

/// Parameters of a simulation, in addition to the load.
#[derive(Clone, Debug)]
pub struct LoadSetup {
    /// Simulated device. Its first sectors are the swap area.
    pub device: Spec,
    /// Swap-in policy.
    pub swapin: Spec,
    /// Scheduler.
    pub scheduler: Spec,
    /// Eviction policy.
    pub eviction: Spec,
    /// Maximum number of pages written at once. `None` for the machine's default.
    pub write_pages_max: Option<u64>,
    /// Order in which pages are swapped out together.
    pub swap_out: SwapOut,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Processor costs of the host.
    pub host: MemoryHost,
}

impl LoadSetup {
    /// Creates a setup with the `adaptive` policies on this device and a host of today.
    pub fn new(device: Spec) -> LoadSetup {
        LoadSetup {
            device,
            swapin: Spec::plain("adaptive"),
            scheduler: Spec::plain("adaptive"),
            eviction: Spec::plain("adaptive"),
            write_pages_max: None,
            swap_out: SwapOut::default(),
            seed: 1,
            host: MemoryHost::TODAY,
        }
    }
}

/// Runs a load with `setup`. The callbacks receive the progress of the whole run, and the decisions
/// of the measured touches.
///
/// # Errors
/// Fails before the run if a name, a parameter or a size is wrong, or later if the run makes no
/// progress.
pub fn simulate_load(
    load: &MemoryLoad,
    setup: &LoadSetup,
    callbacks: RunObserver<'_>,
) -> Result<LoadRow, SimulateError> {
    simulate_load_with(load, setup, None, callbacks)
}

/// Simulates a load like [`simulate_load`]. An `observer`, if there is one, receives the device
/// requests made after filling.
///
/// # Errors
/// Fails in the same cases as [`simulate_load`].
pub fn simulate_load_with(
    load: &MemoryLoad,
    setup: &LoadSetup,
    observer: Option<Observer>,
    mut callbacks: RunObserver<'_>,
) -> Result<LoadRow, SimulateError> {
    let (environment, mut machine) = prepare(load, setup)?;
    let mut run = RunningLoad::new(load, setup, environment);
    let fill_result = run.fill(&mut machine, &mut RunObserver::progress(callbacks.on_progress));
    fill_result.map_err(SimulateError::Stuck)?;
    // A stop during the filling also stops the measurement, before its first touch.
    let counts_after_fill = LoadCounts::of(&machine);
    if let Some(observer) = observer {
        run.environment = run.environment.with_observer(observer);
    }
    run.measure_touches(&mut machine, &mut callbacks).map_err(SimulateError::Stuck)?;
    Ok(run.row(&machine, setup, &counts_after_fill))
}

/// Simulates a load like [`simulate_load`] and also returns the device requests made after filling,
/// at most `events_max`.
///
/// # Errors
/// Fails in the same cases as [`simulate_load`].
pub fn observe_load(
    load: &MemoryLoad,
    setup: &LoadSetup,
    events_max: usize,
) -> Result<(LoadRow, Events), SimulateError> {
    let observer = Observer::new(events_max);
    let mut never_stop = |_: Progress| ProgressAnswer::Continue;
    let callbacks = RunObserver::progress(&mut never_stop);
    let row = simulate_load_with(load, setup, Some(observer.clone()), callbacks)?;
    Ok((row, observer.take()))
}

/// Checks that [`simulate_load`] can run, without the simulation.
///
/// # Errors
/// Fails in the same cases as [`simulate_load`].
pub fn check_load(load: &MemoryLoad, setup: &LoadSetup) -> Result<(), SimulateError> {
    prepare(load, setup).map(|_| ())
}

/// Builds the simulated device and the machine with its swap area and mappings.
fn prepare(
    load: &MemoryLoad,
    setup: &LoadSetup,
) -> Result<(SimulatedEnvironment, Machine), SimulateError> {
    let device = registry::build(&setup.device, setup.seed).map_err(SimulateError::Device)?;
    let mut machine = Machine::new(Config {
        memory_bytes: load.memory_bytes,
        readahead: Spec::plain("none"),
        scheduler: setup.scheduler.clone(),
        eviction: setup.eviction.clone(),
        // The costs of requests are measured only if a policy uses them, which saves time.
        learns_unused_costs: false,
        ..Config::new(device.caps())
    })
    .map_err(SimulateError::Config)?;
    let mut swap = SwapConfig {
        policy: setup.swapin.clone(),
        swap_out: setup.swap_out,
        // The eviction policy also selects the pages that are swapped out.
        by_policy: true,
        // The swap area begins at sector 0.
        ..SwapConfig::new(0, load.swap_bytes / PAGE_BYTES)
    };
    swap.write_pages_max = setup.write_pages_max.unwrap_or(swap.write_pages_max);
    machine.add_swap(&swap).map_err(SimulateError::Swap)?;
    let kind = match load.share {
        MemorySharing::Private => MemoryKind::Private,
        MemorySharing::Shared => MemoryKind::Shared,
    };
    // The machine numbers the mappings from 0, as `RunningLoad::new` expects.
    for _ in 0..load.mappings() {
        machine.add_memory(load.mapping_pages(), kind).map_err(SimulateError::Swap)?;
    }
    // The costs of file operations are not used: a `MemoryHost` has the costs of touches.
    Ok((SimulatedEnvironment::new(device, HostCosts::default()), machine))
}

/// One process.
struct LoadProcess {
    /// Mapping that the process touches: the one of its own number, or 0 for a shared one.
    memory: MemoryId,
    /// Touches that follow.
    touches: Touches,
    /// A touch that is drawn and not yet performed.
    pending_touch: Option<Touch>,
    /// Start time of the last fault.
    fault_start: Time,
}

/// Number of touches that one step of the machine counts as, in the work between two progress
/// reports, of [`STEPS_PER_PROGRESS`] touches. It is much larger than 1, because a step may examine
/// every page. The sixteenth is chosen.
const STEP_TOUCHES: u32 = STEPS_PER_PROGRESS / 16;

/// State of a simulation.
struct RunningLoad<'a> {
    /// The load: its pattern, its processes and their memory.
    load: &'a MemoryLoad,
    /// Processor costs of touches and faults.
    host: MemoryHost,
    /// The simulated device, with the clock.
    environment: SimulatedEnvironment,
    /// All processes, by their numbers.
    processes: Vec<LoadProcess>,
    /// Processes that can continue, and the time from which they can.
    ready: BinaryHeap<Reverse<(Time, u32)>>,
    /// Counters of the measured touches.
    read_counters: ReadCounters,
    /// Start time of the measured touches.
    measurement_start: Time,
    /// Swap counters whose costs have been charged to a process. The fault that ends next pays for
    /// all pages swapped since.
    charged: SwapCounters,
    /// Text of the first failure of a touch; `None` without one.
    first_error: Option<String>,
    /// True once the progress callback has demanded the end. Processes then start no more
    /// touches.
    is_stopping: bool,
    /// Work since the progress was last reported, in touches.
    unreported_touches: u32,
}

/// Counters of a machine at one time: at the start of the measured touches, or at their end.
struct LoadCounts {
    /// Swap counters: faults, and pages in and out.
    swap: SwapCounters,
    /// Prefetched pages that were never used.
    waste_pages: u64,
    /// Reads and writes of the device.
    device_requests: u64,
    /// Bytes of these requests.
    device_bytes: u64,
}

impl LoadCounts {
    /// Reads the present counters of the machine.
    fn of(machine: &Machine) -> LoadCounts {
        let meter = machine.meter();
        let cache = machine.cache_counters();
        LoadCounts {
            swap: machine.swap_counters(),
            waste_pages: cache.unused_pages(),
            device_requests: meter.device_reads + meter.device_writes,
            device_bytes: meter.device_read_bytes + meter.device_write_bytes,
        }
    }
}

impl<'a> RunningLoad<'a> {
    /// Creates the run of a load, with all processes at their start.
    fn new(
        load: &'a MemoryLoad,
        setup: &LoadSetup,
        environment: SimulatedEnvironment,
    ) -> RunningLoad<'a> {
        let memory_of = |process: u32| match load.share {
            MemorySharing::Private => MemoryId(process),
            MemorySharing::Shared => MemoryId(0),
        };
        let processes = (0..load.processes).map(|process| LoadProcess {
            memory: memory_of(process),
            touches: load.touches_of(process, setup.seed),
            pending_touch: None,
            fault_start: Time::ZERO,
        });
        RunningLoad {
            load,
            host: setup.host,
            environment,
            processes: processes.collect(),
            ready: BinaryHeap::new(),
            read_counters: ReadCounters::default(),
            measurement_start: Time::ZERO,
            charged: SwapCounters::default(),
            first_error: None,
            is_stopping: false,
            unreported_touches: 0,
        }
    }

    /// Writes every page of every mapping once, in order. Swaps out pages once memory is full. Then
    /// restores the touches of the load, and resets the counters of touches. The counters of the
    /// machine go on.
    fn fill(
        &mut self,
        machine: &mut Machine,
        callbacks: &mut RunObserver<'_>,
    ) -> Result<(), Stuck> {
        let filling = MemoryLoad {
            pattern: super::TouchPattern::Sequential,
            writes_percent: 100,
            touches: self.load.mapping_pages(),
            ..self.load.clone()
        };
        let mut measured = Vec::new();
        for (process, running) in self.processes.iter_mut().enumerate() {
            // The first process of a shared mapping fills it from its start, without the others.
            let is_filler = (process as u32) < self.load.mappings();
            let fill_touches = if is_filler { filling.touches } else { 0 };
            let fill_load = MemoryLoad { touches: fill_touches, ..filling.clone() };
            // Sequential writes do not depend on the seed.
            let run_seed = 0;
            let touches = fill_load.touches_of(process as u32, run_seed);
            measured.push(std::mem::replace(&mut running.touches, touches));
        }
        self.run_steps(machine, callbacks)?;
        for (running, touches) in self.processes.iter_mut().zip(measured) {
            running.touches = touches;
        }
        self.read_counters = ReadCounters::default();
        Ok(())
    }

    /// Runs all processes to their ends, and measures their touches. The measured time starts with
    /// this call, after the filling, and so do the decision logs for the callbacks.
    fn measure_touches(
        &mut self,
        machine: &mut Machine,
        callbacks: &mut RunObserver<'_>,
    ) -> Result<(), Stuck> {
        callbacks.begin(machine);
        self.measurement_start = self.environment.now();
        self.run_steps(machine, callbacks)
    }

    /// Adds `touch_count` touches to the completed work. Reports the progress after each
    /// [`STEPS_PER_PROGRESS`] touches, and stops the run if the callback demands it. Steps of the
    /// machine count as touches too. During the filling, the reported bytes are the filled ones,
    /// and afterwards start from 0 again.
    fn count_work(&mut self, touch_count: u32, callbacks: &mut RunObserver<'_>) {
        self.unreported_touches += touch_count;
        if self.unreported_touches >= STEPS_PER_PROGRESS {
            self.unreported_touches = 0;
            let bytes_total = self.load.touches * u64::from(self.load.processes) * PAGE_BYTES;
            let (now, bytes) = (self.environment.now(), self.read_counters.bytes);
            let progress = Progress { now, bytes, bytes_total: Some(bytes_total) };
            self.is_stopping |= (callbacks.on_progress)(progress) == ProgressAnswer::Stop;
        }
    }

    /// Runs all processes until their touches are used up and no request is in flight, or until the
    /// progress callback stops them. Reports progress and decisions to the callbacks. Fails after
    /// too many steps at one virtual time, or if internal events of the device continue without
    /// end.
    fn run_steps(
        &mut self,
        machine: &mut Machine,
        callbacks: &mut RunObserver<'_>,
    ) -> Result<(), Stuck> {
        let start = self.environment.now();
        self.ready.extend((0..self.processes.len() as u32).map(|id| Reverse((start, id))));
        let mut steps = Steps::default();
        loop {
            let now = self.environment.now();
            callbacks.forward_decisions(machine);
            self.count_work(STEP_TOUCHES, callbacks);
            steps.count(now, || format!("faults and touches: {}", state_of(machine)))?;
            let next_ready = self.ready.peek().map(|Reverse(time_and_id)| *time_and_id);
            if let Some((time, id)) = next_ready
                && time <= now
            {
                self.ready.pop();
                self.run_process(machine, now, id, callbacks)?;
                continue;
            }
            let ready_time = next_ready.map(|(time, _)| time);
            let next_time = [ready_time, machine.next_wake()].into_iter().flatten().min();
            if machine.meter().in_device() == 0 && next_time.is_none() {
                assert!(machine.is_idle(), "nothing is under way, so nothing is waited for");
                return Ok(());
            }
            self.environment.advance(next_time)?;
            self.step_machine(machine, callbacks)?;
        }
    }

    /// Runs process number `id` until it faults, until the next event elsewhere, or to its end,
    /// which is now if the run is stopping. A fault at the present time is submitted to the
    /// machine. After earlier touches, `time` is ahead of the machine: the process then continues
    /// when the machine's time has come. Until then it is in `ready`.
    fn run_process(
        &mut self,
        machine: &mut Machine,
        now: Time,
        id: u32,
        callbacks: &mut RunObserver<'_>,
    ) -> Result<(), Stuck> {
        let next_ready = self.ready.peek().map(|Reverse((time, _))| *time);
        let events = [next_ready, self.environment.next_event(), machine.next_wake()];
        // Up to the next event elsewhere, no other process or device can affect this one.
        let horizon = events.into_iter().flatten().min();
        let touch_time = Time(self.host.touch_ns);
        let mut time = now;
        while !self.is_stopping {
            self.count_work(1, callbacks);
            let process = &mut self.processes[id as usize];
            let Some(touch) = process.pending_touch.take().or_else(|| process.touches.next())
            else {
                return Ok(());
            };
            if machine.touch(process.memory, touch.page, access_of(touch)) {
                self.read_counters.record(time, time + touch_time, PAGE_BYTES);
                time += touch_time;
                if horizon.is_none_or(|horizon| time < horizon) {
                    continue;
                }
            } else if time == now {
                process.pending_touch = Some(touch);
                return self.submit_fault(machine, now, (id, touch), callbacks);
            } else {
                // The process is ahead of the machine: its fault waits for the machine's time.
                process.pending_touch = Some(touch);
            }
            self.ready.push(Reverse((time, id)));
            break;
        }
        Ok(())
    }

    /// Submits the page fault of process number `id` for its pending touch to the machine, and
    /// performs the machine's work. `on_faulted` then completes the touch, now or later.
    fn submit_fault(
        &mut self,
        machine: &mut Machine,
        now: Time,
        (id, touch): (u32, Touch),
        callbacks: &mut RunObserver<'_>,
    ) -> Result<(), Stuck> {
        let running = &mut self.processes[id as usize];
        running.fault_start = now;
        let fault = MemoryFault {
            memory: running.memory,
            page: touch.page,
            access: access_of(touch),
            process: ProcessId(id),
            tag: id.into(),
        };
        machine.fault(now, fault).expect("a process has one fault at a time");
        self.step_machine(machine, callbacks)
    }

    /// Performs all work of the machine at the present time: a step returns true as long as it had
    /// any. Fails after too many steps. Pages are unmapped before any request is submitted, so the
    /// scheduler has the writes together with the reads.
    fn step_machine(
        &mut self,
        machine: &mut Machine,
        callbacks: &mut RunObserver<'_>,
    ) -> Result<(), Stuck> {
        let now = self.environment.now();
        let mut steps = Steps::default();
        machine.take_completions(now, self);
        machine.unmap(now, self);
        while machine.step(now, self) {
            self.count_work(STEP_TOUCHES, callbacks);
            steps.count(now, || format!("turns of the machine: {}", state_of(machine)))?;
        }
        Ok(())
    }

    /// Returns the processor time of a fault, including all pages swapped since the last fault, and
    /// records these as charged. A fault is a major one if it `has_waited` or its page came from
    /// swap. A fault whose page was prefetched in time is a minor one.
    fn charge_fault(&mut self, machine: &Machine, faulted: &Faulted, has_waited: bool) -> Time {
        let counters = machine.swap_counters();
        let pages_in = counters.swap_in_pages - self.charged.swap_in_pages;
        let pages_out = counters.swap_out_pages - self.charged.swap_out_pages;
        self.charged = counters;
        let is_major = has_waited || matches!(faulted.result, Ok((_, PageSource::Swap)));
        let fault_ns = match (is_major, self.load.share) {
            (true, _) => self.host.major_fault_ns,
            (false, MemorySharing::Private) => self.host.minor_fault_private_ns,
            (false, MemorySharing::Shared) => self.host.minor_fault_shared_ns,
        };
        Time(fault_ns + pages_in * self.host.page_in_ns + pages_out * self.host.page_out_ns)
    }

    /// Builds the row of results. `after_fill` has the counters at the start of the measurement,
    /// when the memory was filled. The row contains the differences since then, except the queue
    /// depths, which include the filling.
    fn row(&self, machine: &Machine, setup: &LoadSetup, after_fill: &LoadCounts) -> LoadRow {
        let counts = LoadCounts::of(machine);
        let since_fill = |counter: fn(&SwapCounters) -> u64| {
            Some(counter(&counts.swap) - counter(&after_fill.swap))
        };
        let seconds = self.read_counters.last.since(self.measurement_start).seconds();
        let meter = machine.meter();
        let touches = self.read_counters.operations;
        let mut row = LoadRow::new(self.load, &setup.device.to_string())
            .with_touches(touches, seconds)
            .with_swapping(
                since_fill(|swap| swap.faults_major),
                since_fill(|swap| swap.swap_in_pages),
                since_fill(|swap| swap.swap_out_pages),
            )
            .with_device(
                counts.device_requests - after_fill.device_requests,
                counts.device_bytes - after_fill.device_bytes,
            );
        row.swapin = Some(setup.swapin.to_string());
        row.scheduler = Some(setup.scheduler.to_string());
        row.engine = Some("modelled".to_owned());
        row.fill_seconds = Some(self.measurement_start.seconds());
        row.latency_us = self.read_counters.latency();
        row.minor_faults = since_fill(|swap| swap.faults_minor);
        row.device_depth_mean = meter.depth_mean_milli().map(|milli| milli as f64 / 1e3);
        row.device_depth_max = row.device_requests.filter(|&n| n > 0).map(|_| meter.depth_max);
        // Pages prefetched during the filling may be used later, so the number may fall.
        let waste_pages = counts.waste_pages.saturating_sub(after_fill.waste_pages);
        row.waste_bytes = Some(waste_pages * PAGE_BYTES);
        row.decisions = Some(format!("{:016x}", self.environment.decisions()));
        row.note = match &self.first_error {
            Some(error) => {
                Some(format!("{} touches failed; the first: {error}", self.read_counters.errors))
            }
            None => self.is_stopping.then(|| "interrupted before its end".to_owned()),
        };
        row
    }
}

impl IoBackend for RunningLoad<'_> {
    /// Submits a request to the simulated device.
    fn submit(&mut self, machine: &Machine, now: Time, request: DeviceRequest) {
        self.environment.submit(machine, now, request);
    }

    /// Returns the next completed device request, or `None`.
    fn poll_completion(&mut self, now: Time) -> Option<Completion> {
        self.environment.poll_completion(now)
    }
}

impl Driver for RunningLoad<'_> {
    /// Completes a fault: the process has touched the page and continues after the kernel's work.
    fn on_faulted(&mut self, machine: &mut Machine, now: Time, faulted: Faulted) {
        // Reads and faults that wait for the page go on.
        machine.release_fault(now, faulted.fault);
        let id = faulted.process.0;
        let running = &mut self.processes[id as usize];
        let touch = running.pending_touch.take().expect("a process that faults is touching");
        let fault_start = running.fault_start;
        let memory = running.memory;
        let has_waited = now > fault_start;
        let ended = now + self.charge_fault(machine, &faulted, has_waited);
        match faulted.result {
            Ok(_) => {
                // The page is mapped now, so the touch succeeds. It marks the page as used, and as
                // dirty by a write.
                machine.touch(memory, touch.page, access_of(touch));
                self.read_counters.record(fault_start, ended, PAGE_BYTES);
            }
            Err(error) => {
                self.read_counters.record_error(fault_start, ended);
                self.first_error.get_or_insert_with(|| error.to_string());
            }
        }
        self.ready.push(Reverse((ended, id)));
    }
}

/// Returns the type of access of a touch: write or read.
fn access_of(touch: Touch) -> MemoryAccess {
    if touch.is_write { MemoryAccess::Write } else { MemoryAccess::Read }
}
