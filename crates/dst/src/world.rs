//! The world of one simulated run: its tasks, of which one runs at a time, its time, and its future
//! events.
//!
//! A *task* corresponds to a thread and has its own stack. All tasks of a world run on one thread
//! of the system. At each point where threads could interact (a lock, a condition variable, a
//! sleep, an atomic access of shared data) the seed decides the next task. Each such point is a
//! *step*. Time is virtual: it advances by less than a microsecond each time a task is
//! resumed, and to the next event if all tasks sleep. A run therefore depends on its seed alone.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use readpath_core::splitmix;

use super::disk::{Answered, Disk};
use super::memory::Memory;
use super::network::{Network, NetworkEvent};

/// Identifies a task of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskId(pub(crate) u32);

/// Frequencies of the seed's decisions.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleRates {
    /// One step of this number switches to another task; 0 for no voluntary switch.
    pub switch_one_in: u64,
    /// One step of this number stops the task for up to three seconds, as a debugger or a busy
    /// machine does; 0 for none.
    pub freeze_one_in: u64,
    /// One thread start of this number fails; 0 for none.
    pub refuse_thread_one_in: u64,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of steps.
    pub steps: u64,
    /// Duration in nanoseconds of virtual time.
    pub ns: u64,
    /// Number of pages delegated to the kernel's own mapping of the file, and of pages taken back.
    pub delegated_pages: (u64, u64),
    /// Hash of all decisions and bytes. Equal hashes mean equal runs.
    pub hash: u64,
    /// Failure, if any.
    pub failure: Option<String>,
}

/// Longest virtual time of a run in nanoseconds, an hour, and maximum number of steps. A longer run
/// hangs, because its events are milliseconds apart, and at most some seconds.
const RUN_NS_MAX: u64 = 3_600 * 1_000_000_000;
const RUN_STEPS_MAX: u64 = 2_000_000;
/// Size of a task's stack in bytes: far more than a read needs without optimization.
const STACK_BYTES: usize = 256 << 10;

/// Wait keys of parked, joining, and frozen or pausing tasks. A *wait key* is the number by which
/// sleeping tasks are woken. Other keys belong to rings, connections and pagers, or are addresses
/// of locks, condition variables and pages.
const PARKED: usize = 0x100;
const JOINING: usize = 0x200;
const FROZEN: usize = 0x300;
/// Bits of the awaited task's number in the key of a joining task.
const TASK_MASK: usize = 0xff;
/// Largest number of tasks of a world.
const TASKS_MAX: usize = 64;
/// One park of this number returns at once, without an unpark.
const SPURIOUS_UNPARK_ONE_IN: u64 = 50;

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    /// May be resumed, or runs now.
    Ready,
    /// Sleeps until its wait key is woken, or until a virtual time in nanoseconds.
    Blocked { key: usize, until_ns: Option<u64> },
    /// Has ended.
    Done,
}

/// A task with its stack.
struct WorldTask {
    /// Present state of the task: ready, asleep or at its end.
    state: TaskState,
    /// `None` while the task runs, and after its end.
    coroutine: Option<Coroutine<(), (), ()>>,
    /// Set by the task itself when it starts.
    yielder: *const Yielder<(), ()>,
    /// True after `unpark` of a task that is not parked.
    has_token: bool,
    /// True if the last sleep ended by a wake-up and not by its timeout.
    is_woken: bool,
    /// Number of locks that the task holds.
    held_locks: i32,
    /// Number of its current action, from 1; 0 before the first.
    action: usize,
}

impl WorldTask {
    /// True if the task sleeps until `key` is woken.
    fn sleeps_for(&self, key: usize) -> bool {
        matches!(self.state, TaskState::Blocked { key: own_key, .. } if own_key == key)
    }
}

/// See the [module](self).
pub struct World {
    /// State of the random numbers.
    random: Cell<u64>,
    /// Instant of the virtual time 0.
    start: Instant,
    /// Virtual time in nanoseconds.
    ns: Cell<u64>,
    /// Number of steps so far.
    steps: Cell<u64>,
    /// Hash of all decisions and bytes so far.
    hash: Cell<u64>,
    /// Frequencies of switches, stops and failed thread starts.
    rates: ScheduleRates,
    /// Number of the running task.
    running: Cell<u32>,
    /// All tasks, ended ones included, by number.
    tasks: RefCell<Vec<WorldTask>>,
    /// Future events by virtual time in nanoseconds, then by order of creation.
    events: RefCell<BTreeMap<(u64, u64), WorldEvent>>,
    /// Number of events created so far.
    events_made: Cell<u64>,
    /// First failure of the run.
    failure: RefCell<Option<String>>,
    /// Describes the engine's state for a run that does not end.
    pub(super) describe_engine: RefCell<Option<Box<dyn Fn() -> String>>>,
    /// The files, and the transfers in flight.
    pub(super) disk: RefCell<Disk>,
    /// The server, and the connections to it.
    pub(super) network: RefCell<Network>,
    /// Memory whose faults the library serves.
    pub(super) memory: RefCell<Memory>,
}

thread_local! {
    /// The world that runs on this thread.
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
    /// Stacks of ended tasks, for reuse.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// World of the calling thread; `None` if the thread is no task of one.
#[inline]
pub fn world() -> Option<Rc<World>> {
    WORLD.with(|world| world.borrow().clone())
}

/// A timed event.
#[derive(Clone, Copy, Debug)]
pub(super) enum WorldEvent {
    /// A transfer is answered.
    Answered(Answered),
    /// An event on a connection.
    Connection(NetworkEvent),
}

impl From<Answered> for WorldEvent {
    /// An answer of a transfer, as an event of the world.
    fn from(answered: Answered) -> WorldEvent {
        WorldEvent::Answered(answered)
    }
}

impl From<NetworkEvent> for WorldEvent {
    /// An event on a connection, as an event of the world.
    fn from(event: NetworkEvent) -> WorldEvent {
        WorldEvent::Connection(event)
    }
}

/// Panic payload that ends a task after a failure.
struct RunFailed;

/// Panic payload of a caller's code, for deliberate panics.
pub(super) struct Deliberate;

impl World {
    /// Runs `main`, and all tasks that it starts, to their end or to the first failure. Then frees
    /// the stacks and the memory of tasks that have not ended, and reports the run.
    pub fn run(seed: u64, rates: ScheduleRates, disk: Disk, main: Box<dyn FnOnce()>) -> Report {
        let world = Rc::new(World {
            random: Cell::new(splitmix::mixed(seed)),
            start: Instant::now(),
            ns: Cell::new(0),
            steps: Cell::new(0),
            hash: Cell::new(0),
            rates,
            running: Cell::new(0),
            tasks: RefCell::default(),
            events: RefCell::default(),
            events_made: Cell::new(0),
            failure: RefCell::default(),
            describe_engine: RefCell::default(),
            disk: RefCell::new(disk),
            network: RefCell::default(),
            memory: RefCell::default(),
        });
        let previous_world =
            WORLD.with(|current_world| current_world.borrow_mut().replace(Rc::clone(&world)));
        assert!(previous_world.is_none(), "a thread runs one world at a time");
        // Task by task, until all have ended or the run has failed.
        world.spawn(main);
        let run = || while world.failure.borrow().is_none() && world.run_one_task() {};
        // A panic here comes from the world itself, and not from a task.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
            world.record_failure(format!("the simulation panicked: {}", panic_message(&*payload)));
        }
        world.reclaim_stacks();
        world.unmap_all();
        WORLD.with(|current_world| current_world.borrow_mut().take());
        let delegated_pages = {
            let memory = world.memory.borrow();
            (memory.kernel_memory.delegated_total, memory.kernel_memory.taken_back_total)
        };
        Report {
            steps: world.steps.get(),
            ns: world.ns.get(),
            delegated_pages,
            hash: world.hash.get(),
            failure: world.failure.borrow_mut().take(),
        }
    }

    /// Handles due events, and resumes one ready task. If none is ready, advances the time. Returns
    /// false once all have ended, and if the time cannot advance, which is a failure.
    fn run_one_task(&self) -> bool {
        self.handle_due_events();
        // Timeouts that are over make their tasks ready.
        let mut ready = [0u32; TASKS_MAX];
        let mut ready_count = 0;
        let (mut next_wake_ns, mut are_done) = (u64::MAX, true);
        for (id, task) in self.tasks.borrow_mut().iter_mut().enumerate() {
            match task.state {
                TaskState::Blocked { until_ns: Some(until_ns), .. }
                    if until_ns <= self.ns.get() =>
                {
                    task.is_woken = false;
                    task.state = TaskState::Ready;
                }
                // `u64::MAX` for a sleep without a timeout.
                TaskState::Blocked { until_ns, .. } => {
                    next_wake_ns = next_wake_ns.min(until_ns.unwrap_or(u64::MAX));
                }
                _ => {}
            }
            are_done &= task.state == TaskState::Done;
            if task.state == TaskState::Ready {
                ready[ready_count] = id as u32;
                ready_count += 1;
            }
        }
        if are_done {
            return false;
        }
        if ready_count == 0 {
            if let Some((&(due_ns, _), _)) = self.events.borrow().first_key_value() {
                next_wake_ns = next_wake_ns.min(due_ns);
            }
            return self.advance_time(next_wake_ns);
        }
        // The seed selects one of the ready tasks.
        let id = ready[self.random_below(ready_count as u64) as usize];
        // Each resumption takes less than 800 ns, a chosen time.
        self.ns.set(self.ns.get() + self.random_below(800));
        self.add_to_hash(u64::from(id));
        self.run_task(id);
        true
    }

    /// Advances the time to `next_wake_ns`, because no task is ready; `u64::MAX` means that no task
    /// will be. Returns false and ends the run then, and if it would not come to an end.
    fn advance_time(&self, next_wake_ns: u64) -> bool {
        let problem = if next_wake_ns == u64::MAX {
            "no task can go on: "
        } else if next_wake_ns > RUN_NS_MAX || self.steps.get() > RUN_STEPS_MAX {
            "it doesn't come to an end: "
        } else {
            self.ns.set(next_wake_ns.max(self.ns.get()));
            return true;
        };
        self.record_failure(problem.to_owned() + &self.describe_tasks());
        false
    }

    /// Describes the state of each task and of the engine.
    fn describe_tasks(&self) -> String {
        let tasks = self.tasks.borrow();
        let states = tasks.iter().enumerate().map(|(id, task)| match task.state {
            TaskState::Ready => format!("{id} is ready"),
            TaskState::Blocked { key: PARKED, .. } => format!("{id} is parked"),
            TaskState::Blocked { key, .. } if key & !TASK_MASK == JOINING => {
                format!("{id} waits for the end of {}", key & TASK_MASK)
            }
            TaskState::Blocked { .. } => format!("{id} waits"),
            TaskState::Done => format!("{id} has ended"),
        });
        let actions = tasks.iter().map(|task| match task.action {
            0 => String::new(),
            action => format!(" in action {action}"),
        });
        let states = states.zip(actions).map(|(states, action)| states + &action);
        let engine_state =
            self.describe_engine.borrow().as_ref().map_or_else(String::new, |describe| describe());
        states.collect::<Vec<String>>().join(", ") + "; " + &engine_state
    }

    /// Runs the task `id` until it suspends or ends.
    fn run_task(&self, id: u32) {
        self.running.set(id);
        let coroutine = self.tasks.borrow_mut()[id as usize].coroutine.take();
        let mut coroutine = coroutine.expect("a task that is ready has not ended");
        self.count_step();
        let is_over = matches!(coroutine.resume(()), CoroutineResult::Return(()));
        // The stack is used again, and the tasks that wait for the end continue.
        if is_over {
            self.tasks.borrow_mut()[id as usize].state = TaskState::Done;
            STACKS.with(|stacks| stacks.borrow_mut().push(coroutine.into_stack()));
            self.wake_all(JOINING + id as usize);
        } else {
            self.tasks.borrow_mut()[id as usize].coroutine = Some(coroutine);
        }
    }

    /// Creates a ready task that will run `body`, and returns its id. A panic of the task is a
    /// failure of the run, unless `fail_run` has caused it, which records the failure itself.
    ///
    /// # Panics
    /// The limit of tasks is reached.
    pub(crate) fn spawn(&self, body: Box<dyn FnOnce()>) -> TaskId {
        let stack = STACKS.with(|stacks| stacks.borrow_mut().pop()).unwrap_or_else(|| {
            DefaultStack::new(STACK_BYTES).expect("the system has memory for a stack")
        });
        let id = self.tasks.borrow().len();
        assert!(id < TASKS_MAX, "a world has at most {TASKS_MAX} tasks");
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            let world = world().expect("a task runs in its world");
            world.tasks.borrow_mut()[id].yielder = yielder;
            if let Err(payload) = catch_unwind(AssertUnwindSafe(body))
                && !payload.is::<RunFailed>()
            {
                world.record_failure(format!("task {id} panicked: {}", panic_message(&*payload)));
            }
        });
        self.tasks.borrow_mut().push(WorldTask {
            state: TaskState::Ready,
            coroutine: Some(coroutine),
            yielder: std::ptr::null(),
            has_token: false,
            is_woken: false,
            held_locks: 0,
            action: 0,
        });
        TaskId(id as u32)
    }

    /// Takes back the stacks of tasks that have not ended. These are not unwound, and their values
    /// leak.
    fn reclaim_stacks(&self) {
        for task in &mut *self.tasks.borrow_mut() {
            if let Some(mut coroutine) = task.coroutine.take() {
                // SAFETY: the task is never resumed, and its stack is no longer used: the world
                // ends, and heap values with pointers to it leak.
                unsafe { coroutine.force_reset() };
                STACKS.with(|stacks| stacks.borrow_mut().push(coroutine.into_stack()));
            }
        }
    }

    /// Records a failure, which ends the run at the next switch of tasks. The first one counts.
    pub(super) fn record_failure(&self, failure: String) {
        self.failure.borrow_mut().get_or_insert(failure);
    }

    /// Records a failure, and ends the calling task at once.
    pub(super) fn fail_run(&self, failure: String) -> ! {
        self.record_failure(failure);
        resume_unwind(Box::new(RunFailed))
    }

    /// Returns the running task.
    pub(crate) fn task(&self) -> TaskId {
        TaskId(self.running.get())
    }

    /// Number of locks that the running task holds.
    pub(super) fn held_locks(&self) -> i32 {
        self.tasks.borrow()[self.running.get() as usize].held_locks
    }

    /// Sets the number of the running task's action, from 1, for the description of a hanging run.
    pub(super) fn set_action(&self, action: usize) {
        self.tasks.borrow_mut()[self.running.get() as usize].action = action;
    }

    /// Adds `change` to the number of locks that the running task holds.
    pub(crate) fn change_held_locks(&self, change: i32) {
        self.tasks.borrow_mut()[self.running.get() as usize].held_locks += change;
    }

    /// Current virtual time as an instant.
    pub(crate) fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.ns.get())
    }

    /// Virtual time since the start, in nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        self.ns.get()
    }

    /// Returns a random number below `end`, which is not 0.
    pub(super) fn random_below(&self, end: u64) -> u64 {
        let mut state = self.random.get();
        let random = splitmix::next(&mut state);
        self.random.set(state);
        random % end
    }

    /// True once in `calls` calls on average, by the seed; never if `calls` is 0.
    pub(super) fn happens_one_in(&self, calls: u64) -> bool {
        calls > 0 && self.random_below(calls) == 0
    }

    /// True if the present thread start must fail, once in `refuse_thread_one_in` calls by the
    /// seed.
    pub(crate) fn does_thread_start_fail(&self) -> bool {
        self.happens_one_in(self.rates.refuse_thread_one_in)
    }

    /// Adds a value and the current time to the hash of the run.
    pub(super) fn add_to_hash(&self, value: u64) {
        // The shift keeps the time apart from a value below 256.
        let mixed = splitmix::mixed(self.hash.get() ^ value.wrapping_add(self.ns.get() << 8));
        self.hash.set(mixed);
    }

    /// Counts a step, and ends a run with too many.
    fn count_step(&self) {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() > RUN_STEPS_MAX {
            let failure = format!("it hasn't come to an end in {RUN_STEPS_MAX} steps: ");
            self.record_failure(failure + &self.describe_tasks());
        }
    }

    /// Counts a step. Another task may run before it returns, or time may pass, at the rates of the
    /// run. No effect during a panic.
    #[inline]
    pub fn preemption_point(&self) {
        // No switch during unwinding: the flag of a panic belongs to the whole thread of the
        // system.
        if std::thread::panicking() {
            return;
        }
        self.count_step();
        if self.happens_one_in(self.rates.freeze_one_in) {
            // Up to three seconds.
            let until_ns = self.ns.get() + self.random_below(3_000_000_000);
            self.block(FROZEN, Some(until_ns));
        } else if self.happens_one_in(self.rates.switch_one_in) {
            self.suspend();
        }
    }

    /// Suspends the running task until another task wakes `key`, or until the virtual time
    /// `until_ns` (`None`: without a timeout). Returns true if it was woken, and false after a
    /// timeout. The caller checks its condition again, as other tasks may have run since.
    pub fn block(&self, key: usize, until_ns: Option<u64>) -> bool {
        let id = self.running.get() as usize;
        {
            let task = &mut self.tasks.borrow_mut()[id];
            task.is_woken = false;
            task.state = TaskState::Blocked { key, until_ns };
        }
        self.suspend();
        self.tasks.borrow()[id].is_woken
    }

    /// Returns control from the running task to the world.
    fn suspend(&self) {
        let yielder = self.tasks.borrow()[self.running.get() as usize].yielder;
        // SAFETY: the running task has set the pointer to its own stack, where the value lives as
        // long as the task.
        unsafe { (*yielder).suspend(()) };
    }

    /// Makes a sleeping task ready and marks it as woken.
    fn wake(task: &mut WorldTask) {
        task.state = TaskState::Ready;
        task.is_woken = true;
    }

    /// Wakes all tasks that sleep for `key`.
    pub(crate) fn wake_all(&self, key: usize) {
        let sleeps_for_key = |task: &&mut WorldTask| task.sleeps_for(key);
        self.tasks.borrow_mut().iter_mut().filter(sleeps_for_key).for_each(World::wake);
    }

    /// Wakes one task that sleeps for `key`, selected by the seed. No effect if there is none.
    pub(crate) fn wake_one(&self, key: usize) {
        let sleepers = self.tasks.borrow().iter().filter(|task| task.sleeps_for(key)).count();
        if sleepers > 0 {
            let task_index = self.random_below(sleepers as u64) as usize;
            let mut tasks = self.tasks.borrow_mut();
            tasks.iter_mut().filter(|task| task.sleeps_for(key)).nth(task_index).map(World::wake);
        }
    }

    /// Sleeps until unparked, or until the virtual time `until_ns` (`None`: without a timeout).
    /// Returns at once if the task was unparked before, or rarely without a reason, as a real park
    /// may.
    pub(crate) fn park(&self, until_ns: Option<u64>) {
        self.preemption_point();
        let id = self.running.get() as usize;
        let has_token = std::mem::take(&mut self.tasks.borrow_mut()[id].has_token);
        if !has_token && !self.happens_one_in(SPURIOUS_UNPARK_ONE_IN) {
            self.block(PARKED, until_ns);
            // Unparks between the end of the sleep and this point count as the one that ended it.
            self.tasks.borrow_mut()[id].has_token = false;
        }
    }

    /// Wakes a parked task. Otherwise, its next park returns at once.
    pub(crate) fn unpark(&self, id: TaskId) {
        let task = &mut self.tasks.borrow_mut()[id.0 as usize];
        match task.state {
            TaskState::Blocked { key: PARKED, .. } => World::wake(task),
            _ => task.has_token = true,
        }
    }

    /// Sleeps until the task has ended.
    pub(crate) fn join(&self, id: TaskId) {
        while self.tasks.borrow()[id.0 as usize].state != TaskState::Done {
            self.block(JOINING + id.0 as usize, None);
        }
    }

    /// Sleeps for `ns` nanoseconds of virtual time. The key `FROZEN` is never woken.
    pub fn pause(&self, ns: u64) {
        self.block(FROZEN, Some(self.ns.get() + ns));
    }

    /// Schedules an event in `ns` nanoseconds of virtual time.
    pub(super) fn schedule(&self, ns: u64, event: impl Into<WorldEvent>) {
        let event_number = self.events_made.get();
        self.events_made.set(event_number + 1);
        self.events.borrow_mut().insert((self.ns.get() + ns, event_number), event.into());
    }

    /// Handles the events whose time has come, in the order of their times.
    fn handle_due_events(&self) {
        loop {
            let mut events = self.events.borrow_mut();
            let Some(first) = events.first_entry() else { return };
            let (due_ns, _) = *first.key();
            if due_ns > self.ns.get() {
                return;
            }
            let event = first.remove();
            drop(events);
            let mark_of_an_event = 0xe7e7;
            self.add_to_hash(mark_of_an_event);
            match event {
                WorldEvent::Answered(answered) => self.on_answered(answered),
                WorldEvent::Connection(event) => self.on_connection_event(event),
            }
        }
    }
}

/// Returns the message of a panic from its payload, or a placeholder for a payload without text.
pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "something that is no text".to_owned())
}
