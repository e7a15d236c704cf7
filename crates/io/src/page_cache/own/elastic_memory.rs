//! Memory that grows with use while the system has spare memory, and shrinks when others need it.
//!
//! A *path* is a `ReadPath` of the public API, with one engine and its cache. A path without a
//! configured memory size reserves addresses for most of the memory that the process may use. A
//! *limit* bounds the memory that it uses. The limit is the smaller of two amounts:
//!
//! - The useful amount: 256 MiB plus twice the bytes that were read again because they were
//!   evicted. A single sequential stream gains nothing from own memory and pays for clearing it.
//!   With 1 GiB of new memory, the rate of such a stream was 0.80 of the kernel's instead of 1.40.
//! - The available amount: the memory in use plus the [available memory](SystemMemory) minus a
//!   reserve.
//!
//! The limit is set
//!
//! - when 16 MiB come into use, and after each further 64 MiB (less in a small memory);
//! - when 16 MiB more were read again;
//! - four times a second, by one thread for all such paths of a process, while one of them uses
//!   more than these 64 MiB.
//!
//! If the limit falls below the memory in use, the eviction policy selects pages, and their memory
//! goes back to the system. If tasks still wait for memory (pressure stall information), an eighth
//! of the memory is given back at each check. The exception is a system with a quarter of its
//! memory available: the waiting tasks are then in a control group at its own limit. Giving back
//! memory here would not help them. The memory never shrinks below a floor that suffices for any
//! read.
//!
//! The *machine* is the state machine of an engine's cache. A *frame* is its memory for one page. A
//! *guard* is a `PageGuard` of the program, which pins a cached page and so takes its frame away
//! from reads.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use readpath_core::cache::FrameId;
use readpath_core::unit::PAGE_BYTES;

use super::Engine;
use crate::os::frames::locks_future_mappings;
use crate::os::process::ProcessNumber;
use crate::os::system_memory::{SystemMemory, total_memory};
use crate::os::thread;

/// Memory in bytes of a path if the system's memory is unknown. At most this much in a program that
/// locks its memory. Otherwise the useful amount without bytes that were read again. It is also the
/// largest memory that readahead policies count on.
pub(crate) const FIXED_BYTES: u64 = 256 << 20;
/// Bytes in use at which the limit is set for the first time. Until then the limit is the floor.
/// Also the number of bytes read again after which the limit is set.
const FIRST_CHECK_BYTES: u64 = 16 << 20;
/// Number of bytes that come into use before the limit is set again. The amounts of these checks
/// are chosen, not measured.
const CHECK_STEP_BYTES: u64 = 64 << 20;
/// Period of the adapter thread, which sets the limits of all engines.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Divisor of the total memory: this part is reserved for other processes.
const RESERVE_DIVISOR: u64 = 8;
/// Smallest reserve in bytes, but at most half of the total memory. An eighth of a small control
/// group is less than the buffer of one large read: the kernel then ends the process.
const RESERVE_BYTES_MIN: u64 = 16 << 20;
/// Upper limits of the memory that guards may pin by default: in bytes, and as a divisor of the
/// total memory.
const PINNED_BYTES_MAX: u64 = 64 << 20;
const PINNED_DIVISOR: u64 = 16;
/// Memory in bytes that is reserved for reads: three of the largest reads.
const READ_RESERVE_BYTES: u64 = 48 << 20;
/// Minimum memory in bytes that is reserved for reads. A small control group reserves a quarter of
/// its memory; larger reads are split.
const READ_RESERVE_BYTES_MIN: u64 = 1 << 20;
/// Divisor of the total memory. This part is the largest reserve for reads, and the largest memory
/// of a path in a program that locks its memory. An elastic path leaves the same part to others.
const TOTAL_PART_DIVISOR: u64 = 4;
/// Divisor of the elapsed time. Memory is short if tasks waited for memory during a larger part of
/// it than a twentieth. The number is chosen, not measured.
const STALL_TIME_DIVISOR: u64 = 20;
/// Divisor of the total memory. Memory is short only if a smaller part than this is available.
const AMPLE_MEMORY_DIVISOR: u64 = 4;
/// Divisor of the memory in use: this part is given back at each check while memory is short.
const SHRINK_DIVISOR: u64 = 8;
/// Number of bytes that are given back in one locked section. Other threads may take the lock
/// between two of them.
const SHRINK_STEP_BYTES: u64 = 16 << 20;

/// Sizes of the memory of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// Initial limit.
    pub(crate) limit_bytes: u64,
    /// Largest limit at any time. Addresses are reserved for it.
    pub(crate) bytes_max: u64,
    /// Part of the memory that guards may pin.
    pub(crate) pinned_bytes_max: u64,
    /// Smallest limit; `None` for memory of fixed size.
    limit_bytes_min: Option<u64>,
}

/// Rounds a number of bytes down to whole pages.
fn round_down_to_page(bytes: u64) -> u64 {
    bytes / PAGE_BYTES * PAGE_BYTES
}

impl MemoryPlan {
    /// Creates a plan of `bytes` bytes, a fixed size. Guards may pin `pinned_bytes_max` bytes, by
    /// default a quarter in whole pages, and at least one page, so that a guard is possible. Reads
    /// have the rest. The part is chosen, not measured.
    pub(crate) fn fixed(bytes: u64, pinned_bytes_max: Option<u64>) -> MemoryPlan {
        let quarter = (bytes / PAGE_BYTES / 4).max(1) * PAGE_BYTES;
        let pinned_bytes_max = pinned_bytes_max.unwrap_or(quarter);
        MemoryPlan { limit_bytes: bytes, bytes_max: bytes, pinned_bytes_max, limit_bytes_min: None }
    }

    /// Creates a plan that depends on the memory of the system. Guards may pin `pinned_bytes_max`
    /// bytes, by default a part of the total memory. The plan has a fixed size if the program locks
    /// its memory (at most a quarter of the total), or if the amount of memory is unknown.
    pub(crate) fn elastic(pinned_bytes_max: Option<u64>) -> MemoryPlan {
        match total_memory() {
            // With `mlockall`, every mapped page would become resident at once. The plan of this
            // first case maps most of the memory.
            Some(total_bytes) if !locks_future_mappings() => {
                MemoryPlan::from_total_memory(total_bytes, pinned_bytes_max)
            }
            Some(total_bytes) => MemoryPlan::fixed(
                FIXED_BYTES.min(round_down_to_page(total_bytes / TOTAL_PART_DIVISOR)),
                pinned_bytes_max,
            ),
            None => MemoryPlan::fixed(FIXED_BYTES, pinned_bytes_max),
        }
    }

    /// Creates the plan of a process that may use `total_bytes` bytes of memory. The floor, which
    /// is also the initial limit, suffices for the pinned pages and for any read. The limit never
    /// exceeds three quarters of the memory, except for the floor.
    fn from_total_memory(total_bytes: u64, pinned_bytes_max: Option<u64>) -> MemoryPlan {
        let pinned_bytes_max = pinned_bytes_max.unwrap_or_else(|| {
            round_down_to_page((total_bytes / PINNED_DIVISOR).min(PINNED_BYTES_MAX))
        });
        let read_reserve_bytes = READ_RESERVE_BYTES
            .min(round_down_to_page(total_bytes / TOTAL_PART_DIVISOR))
            .max(READ_RESERVE_BYTES_MIN);
        // A sum beyond any memory is refused by the machine.
        let floor_bytes = pinned_bytes_max.saturating_add(read_reserve_bytes);
        let bytes_max =
            round_down_to_page(total_bytes - total_bytes / TOTAL_PART_DIVISOR).max(floor_bytes);
        MemoryPlan {
            limit_bytes: floor_bytes,
            bytes_max,
            pinned_bytes_max,
            limit_bytes_min: Some(floor_bytes),
        }
    }

    /// Returns the plan with half the address space, for a second attempt after a failed
    /// reservation. `None` if the result is smaller than the floor or the fixed default, and for a
    /// plan of fixed size.
    pub(crate) fn halved(self) -> Option<MemoryPlan> {
        let bytes_max = round_down_to_page(self.bytes_max / 2);
        let is_enough =
            self.limit_bytes_min.is_some_and(|floor| bytes_max >= floor.max(FIXED_BYTES));
        is_enough.then_some(MemoryPlan { bytes_max, ..self })
    }

    /// Limit in bytes by the available memory, for an engine that uses `used_bytes` bytes. At least
    /// `floor_bytes`, and at most the plan's largest limit.
    fn available_limit_bytes(
        &self,
        floor_bytes: u64,
        used_bytes: u64,
        memory: SystemMemory,
    ) -> u64 {
        let total_bytes = memory.total_bytes;
        let reserve = (total_bytes / RESERVE_DIVISOR).max(RESERVE_BYTES_MIN.min(total_bytes / 2));
        let limit = (used_bytes + memory.available_bytes).saturating_sub(reserve);
        limit.clamp(floor_bytes, self.bytes_max) / PAGE_BYTES * PAGE_BYTES
    }
}

/// Measurement of the stall time.
#[derive(Clone, Copy)]
struct StallCheck {
    /// Time in microseconds for which tasks of the system have waited for memory so far.
    stall_us: u64,
    /// Time of the measurement.
    checked_at: Instant,
}

/// State of an engine's memory of variable size.
pub(crate) struct Elastic {
    /// Sizes from which the limit is computed.
    plan: MemoryPlan,
    /// Smallest limit, from the plan.
    floor_bytes: u64,
    /// Locked by the thread that adapts the memory. `None` before the first check.
    last_check: Mutex<Option<StallCheck>>,
}

impl Elastic {
    /// Creates the state of an elastic plan. Returns `None` for a plan of fixed size.
    pub(crate) fn from_plan(plan: MemoryPlan) -> Option<Elastic> {
        let floor_bytes = plan.limit_bytes_min?;
        Some(Elastic { plan, floor_bytes, last_check: Mutex::default() })
    }

    /// Number of bytes in use at which the limit is set for the first time. It is at most half of
    /// the initial limit, so that a small memory is checked before it is full.
    pub(super) fn first_check_bytes(&self) -> u64 {
        FIRST_CHECK_BYTES.min(self.plan.limit_bytes / 2)
    }

    /// Number of bytes that come into use before the limit is set again: at most an eighth of the
    /// largest limit.
    fn check_step_bytes(&self) -> u64 {
        CHECK_STEP_BYTES.min(self.plan.bytes_max / 8)
    }

    /// Limit in bytes for an engine that uses `used_bytes` bytes and has read `refault_bytes` bytes
    /// again after their eviction. Replaces `last_check` by the stall time and the time of this
    /// check. Memory is short if tasks have stalled since the last check and little is available.
    fn limit_bytes(
        &self,
        last_check: &mut Option<StallCheck>,
        used_bytes: u64,
        refault_bytes: u64,
        memory: SystemMemory,
    ) -> u64 {
        // The useful amount, then the available one: see the module.
        let target_bytes = FIXED_BYTES.saturating_add(2 * refault_bytes).max(self.floor_bytes);
        let limit_bytes =
            self.plan.available_limit_bytes(self.floor_bytes, used_bytes, memory).min(target_bytes);
        let now = Instant::now();
        let this_check = StallCheck { stall_us: memory.stall_us, checked_at: now };
        let is_stalled = last_check.replace(this_check).is_some_and(|previous| {
            let elapsed_us = now.duration_since(previous.checked_at).as_micros() as u64;
            memory.stall_us.saturating_sub(previous.stall_us) > elapsed_us / STALL_TIME_DIVISOR
        });
        let is_short =
            is_stalled && memory.available_bytes < memory.total_bytes / AMPLE_MEMORY_DIVISOR;
        // No further bound if memory is not short.
        let shrunk_bytes =
            if is_short { used_bytes - used_bytes / SHRINK_DIVISOR } else { u64::MAX };
        limit_bytes.min(shrunk_bytes.max(self.floor_bytes) / PAGE_BYTES * PAGE_BYTES)
    }
}

impl Engine {
    /// Measures the spare memory, sets the limit, and shrinks the memory to it. Sets the amounts of
    /// memory at which this is called again. Starts the adapter thread once the engine uses enough
    /// memory. No effect if the engine's memory is fixed, or if another thread adapts it now: that
    /// one sets the amounts.
    pub(crate) fn adapt_memory(&self) {
        let Some(elastic) = &self.elastic else { return };
        let Ok(mut last_check) = elastic.last_check.try_lock() else { return };
        let memory = SystemMemory::measure();
        let mut state = self.lock();
        let [old_limit_bytes, used_bytes] = state.machine.memory_bytes();
        // Bytes that were read again after their eviction.
        let refault_bytes = state.machine.returned_bytes();
        // Without a measurement the old limit stays.
        let limit_bytes = memory.map_or(old_limit_bytes, |memory| {
            elastic.limit_bytes(&mut last_check, used_bytes, refault_bytes, memory)
        });
        state.refault_check_bytes = refault_bytes + FIRST_CHECK_BYTES;
        state.memory_check_bytes = used_bytes + elastic.check_step_bytes();
        // A higher limit is set at once. A lower one is set step by step without this lock.
        if limit_bytes >= old_limit_bytes {
            // A growth withdraws no frames, so the list is empty.
            state.with_machine(|machine, now| drop(machine.resize(now, limit_bytes)));
        }
        drop(state);
        self.shrink_memory(old_limit_bytes, limit_bytes);
        if used_bytes >= elastic.check_step_bytes() {
            start_adapter_thread();
        }
    }

    /// True if the memory is elastic and the engine uses so much that the thread adapts it.
    fn is_adapted_by_thread(&self) -> bool {
        let Some(elastic) = &self.elastic else { return false };
        let [_limit_bytes, used_bytes] = self.lock().machine.memory_bytes();
        used_bytes >= elastic.check_step_bytes()
    }

    /// Shrinks the memory in steps from its present limit, `step_limit_bytes` bytes, to
    /// `limit_bytes` bytes, and returns the freed frames to the system. Stops early if the
    /// remaining pages are in use: the next check tries again. No effect if the limit is not
    /// smaller.
    fn shrink_memory(&self, mut step_limit_bytes: u64, limit_bytes: u64) {
        while step_limit_bytes > limit_bytes {
            step_limit_bytes = step_limit_bytes.saturating_sub(SHRINK_STEP_BYTES).max(limit_bytes);
            let mut withdrawn: Vec<FrameId> = Vec::new();
            let reached_bytes = self.lock().with_machine(|machine, now| {
                withdrawn = machine.resize(now, step_limit_bytes);
                let [reached_bytes, _used_bytes] = machine.memory_bytes();
                reached_bytes
            });
            self.frame_cache.release_memory(&mut withdrawn);
            // Their memory is gone now, so the machine no longer counts it as in use.
            self.lock().machine.on_withdrawn(&withdrawn);
            if reached_bytes > step_limit_bytes {
                // The machine found fewer frames to withdraw: the remaining pages are in use.
                return;
            }
        }
    }
}

/// All engines of a process with elastic memory, and the state of the thread that adapts them.
#[derive(Default)]
struct ElasticEngines {
    /// Engines with elastic memory.
    engines: Vec<Weak<Engine>>,
    /// True while the adapter thread runs.
    is_running: bool,
}

impl ElasticEngines {
    /// Removes the entries of engines that were dropped.
    fn remove_dropped(&mut self) {
        self.engines.retain(|engine| engine.strong_count() != 0);
    }
}

/// Registry of one process. A child made by `fork` creates a registry of its own, because a thread
/// of the parent may have held the lock.
struct ProcessRegistry {
    /// Process that the registry belongs to.
    process: ProcessNumber,
    elastic_engines: Mutex<ElasticEngines>,
}

/// Registry of this process, or of the process that forked it; null before its first use.
static PROCESS_REGISTRY: AtomicPtr<ProcessRegistry> = AtomicPtr::new(std::ptr::null_mut());

/// Applies `act` to the registry of this process and returns the result.
fn with_registry<T>(act: impl FnOnce(&mut ElasticEngines) -> T) -> T {
    act(&mut registry().lock().expect("nothing panics under this lock"))
}

/// Returns the registry of this process, which is created on first use.
fn registry() -> &'static Mutex<ElasticEngines> {
    let current = PROCESS_REGISTRY.load(Ordering::Acquire);
    // SAFETY: the pointer comes from `Box::into_raw` below and is never freed.
    let mut registry = unsafe { current.as_ref() }.filter(|registry| registry.process.is_current());
    if registry.is_none() {
        let new_registry = ProcessRegistry {
            process: ProcessNumber::current(),
            elastic_engines: Mutex::default(),
        };
        let new_registry = Box::into_raw(Box::new(new_registry));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let registry_pointer =
            match PROCESS_REGISTRY.compare_exchange(current, new_registry, success, failure) {
                Ok(_) => new_registry,
                // Another thread was first. The registry made here leaks, at most once per thread.
                Err(other_registry) => other_registry,
            };
        // SAFETY: the pointer comes from `Box::into_raw` and is never freed.
        registry = unsafe { registry_pointer.as_ref() };
    }
    &registry.expect("the registry was created above").elastic_engines
}

/// Adds an engine to the registry of this process, so that the thread adapts its memory. No effect
/// for memory of fixed size.
pub(super) fn register_engine(engine: &Arc<Engine>) {
    if engine.elastic.is_some() {
        with_registry(|registry| {
            registry.remove_dropped();
            registry.engines.push(Arc::downgrade(engine));
        });
    }
}

/// Starts the thread that adapts all engines, if it does not run.
fn start_adapter_thread() {
    with_registry(|registry| {
        if !registry.is_running {
            // If the system cannot start a thread, the next check tries again.
            registry.is_running = thread::spawn("readpath-memory", run_adapter_thread).is_ok();
        }
    });
}

/// Main loop of the adapter thread: adapts all engines once in each [`CHECK_INTERVAL`]. The loop
/// ends when each engine uses less than its `check_step_bytes`.
fn run_adapter_thread() {
    loop {
        std::thread::sleep(CHECK_INTERVAL);
        let mut has_large_engine = false;
        for engine in elastic_engines().iter().filter_map(Weak::upgrade) {
            has_large_engine |= engine.is_adapted_by_thread();
            engine.adapt_memory();
        }
        let finds_large_engine = || {
            let engines = elastic_engines();
            engines.iter().filter_map(Weak::upgrade).any(|engine| engine.is_adapted_by_thread())
        };
        if !has_large_engine && mark_as_ended(registry(), finds_large_engine) {
            return;
        }
    }
}

/// Returns the engines with elastic memory that are in use. Their owners may drop them meanwhile.
fn elastic_engines() -> Vec<Weak<Engine>> {
    with_registry(|registry| {
        registry.remove_dropped();
        registry.engines.clone()
    })
}

/// Marks the adapter thread as ended, and returns true if the calling thread must end.
/// `finds_large_engine` returns true if an engine uses enough memory for the thread. A large engine
/// that grows later starts a thread. One that has grown just before the mark has found this thread
/// running: it is found here, and the thread goes on unless another one was started.
fn mark_as_ended(
    registry: &Mutex<ElasticEngines>,
    finds_large_engine: impl FnOnce() -> bool,
) -> bool {
    let lock = || registry.lock().expect("nothing panics under this lock");
    lock().is_running = false;
    !finds_large_engine() || std::mem::replace(&mut lock().is_running, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// Bytes read again, enough that the useful amount of memory has no effect.
    const MANY_REFAULT_BYTES: u64 = 1 << 40;

    /// System memory without stalls.
    fn system_memory(total_mib: u64, available_mib: u64) -> SystemMemory {
        SystemMemory {
            total_bytes: total_mib * MIB,
            available_bytes: available_mib * MIB,
            stall_us: 0,
        }
    }

    /// An engine grows just before the mark, and then one more thread may start after it.
    #[test]
    fn adapter_thread_goes_on_for_an_engine_that_grew_before_its_end() {
        let registry = Mutex::new(ElasticEngines { engines: Vec::new(), is_running: true });
        let is_running = || registry.lock().unwrap().is_running;
        assert!(!mark_as_ended(&registry, || true));
        assert!(is_running());
        let another_starts = || {
            registry.lock().unwrap().is_running = true;
            true
        };
        assert!(mark_as_ended(&registry, another_starts));
        assert!(is_running());
        assert!(mark_as_ended(&registry, || false));
        assert!(!is_running());
    }

    /// A process with 16,384 MiB: three quarters at the most, and at the least 64 MiB for guards
    /// and 48 MiB for reads. The reserve is an eighth: 2,048 MiB. `limit` counts in MiB.
    #[test]
    fn memory_limit_is_used_plus_available_minus_reserve() {
        let plan = MemoryPlan::from_total_memory(16_384 * MIB, None);
        assert_eq!((plan.pinned_bytes_max, plan.bytes_max), (64 * MIB, 12_288 * MIB));
        assert_eq!(plan.limit_bytes, 112 * MIB);
        let elastic = Elastic::from_plan(plan).unwrap();
        let limit = |used: u64, available| {
            let memory = system_memory(16_384, available);
            elastic.limit_bytes(&mut None, used * MIB, MANY_REFAULT_BYTES, memory) / MIB
        };
        // By hand: 5,000 + 5,000 - 2,048 and 5,000 + 1,000 - 2,048.
        assert_eq!(limit(5_000, 5_000), 7_952);
        assert_eq!(limit(5_000, 1_000), 3_952);
        // The lower bound is the memory for reads and guards: 48 + 64. The upper bound is 12,288.
        assert_eq!((limit(500, 100), limit(12_000, 4_000)), (112, 12_288));
    }

    /// Check of one interval ago, with a stall time of 1 ms up to then.
    fn check_before_an_interval() -> Option<StallCheck> {
        let checked_at = Instant::now() - CHECK_INTERVAL;
        Some(StallCheck { stall_us: 1_000, checked_at })
    }

    /// A group of 64 MiB leaves 16 MiB to the program; a group of 24 MiB half of its memory. By
    /// hand: the limits are 20 + 40 - 16 and 10 + 14 - 12.
    #[test]
    fn small_control_group_keeps_memory_for_the_buffers_of_the_program() {
        let limit = |total: u64, used: u64, available: u64| {
            let elastic = Elastic::from_plan(MemoryPlan::from_total_memory(total * MIB, None));
            let memory = system_memory(total, available);
            elastic.unwrap().limit_bytes(&mut None, used * MIB, MANY_REFAULT_BYTES, memory) / MIB
        };
        assert_eq!((limit(64, 20, 40), limit(24, 10, 14)), (44, 12));
    }

    /// By hand: 256 MiB plus twice 0, 50 and 1,000 MiB.
    #[test]
    fn memory_limit_grows_by_twice_the_bytes_read_again() {
        let elastic =
            Elastic::from_plan(MemoryPlan::from_total_memory(16_384 * MIB, None)).unwrap();
        let limit = |refaulted: u64| {
            let memory = system_memory(16_384, 10_000);
            elastic.limit_bytes(&mut None, 100 * MIB, refaulted * MIB, memory) / MIB
        };
        assert_eq!((limit(0), limit(50), limit(1_000)), (256, 356, 2_256));
    }

    /// 800 MiB are in use and 4,000 of 16,384 available, which is less than a quarter. By hand: an
    /// eighth of 800 is 100. Without a stall the limit is 700 + 4,000 less the reserve of 2,048.
    #[test]
    fn memory_limit_shrinks_by_an_eighth_while_tasks_stall() {
        let elastic =
            Elastic::from_plan(MemoryPlan::from_total_memory(16_384 * MIB, None)).unwrap();
        let mut last_check = check_before_an_interval();
        let stalled = |stall_us| SystemMemory { stall_us, ..system_memory(16_384, 4_000) };
        // First interval: stalled for 50 ms of 250. Second interval: no stall.
        let mut limit_mib = |used_mib: u64| {
            let (used_bytes, memory) = (used_mib * MIB, stalled(51_000));
            elastic.limit_bytes(&mut last_check, used_bytes, MANY_REFAULT_BYTES, memory) / MIB
        };
        assert_eq!((limit_mib(800), limit_mib(700)), (700, 2_652));
    }

    /// An equal stall with 10,000 MiB available. By hand: 800 + 10,000 less the reserve of 2,048.
    #[test]
    fn memory_limit_ignores_stalls_while_memory_is_plentiful() {
        let elastic =
            Elastic::from_plan(MemoryPlan::from_total_memory(16_384 * MIB, None)).unwrap();
        let mut last_check = check_before_an_interval();
        let stalled = SystemMemory { stall_us: 51_000, ..system_memory(16_384, 10_000) };
        let limit = elastic.limit_bytes(&mut last_check, 800 * MIB, MANY_REFAULT_BYTES, stalled);
        assert_eq!(limit, 8_752 * MIB);
    }

    /// A group of 48 MiB: a sixteenth for guards, a quarter for reads, three quarters at the most.
    #[test]
    fn memory_floor_is_a_fraction_of_a_small_control_group() {
        let plan = MemoryPlan::from_total_memory(48 * MIB, None);
        assert_eq!((plan.pinned_bytes_max, plan.limit_bytes_min), (3 * MIB, Some(15 * MIB)));
        assert_eq!((plan.limit_bytes, plan.bytes_max), (15 * MIB, 36 * MIB));
        let elastic = Elastic::from_plan(plan).unwrap();
        assert!(
            elastic.first_check_bytes() < plan.limit_bytes && elastic.check_step_bytes() < 5 * MIB
        );
        let tiny = MemoryPlan::from_total_memory(4 * MIB, None);
        assert!(tiny.limit_bytes <= 2 * MIB && tiny.bytes_max <= 3 * MIB);
    }

    /// By hand: a sixteenth of 256 MiB for guards; with 48 MiB for reads the floor is 64 MiB. Half
    /// of the three quarters would be less than the default of 256 MiB.
    #[test]
    fn memory_plan_scales_with_the_group_and_can_be_halved() {
        let plan = MemoryPlan::from_total_memory(256 * MIB, None);
        assert_eq!((plan.pinned_bytes_max, plan.limit_bytes), (16 * MIB, 64 * MIB));
        assert_eq!((plan.bytes_max, plan.halved()), (192 * MIB, None));
        let large = MemoryPlan::from_total_memory(16_384 * MIB, None).halved().unwrap();
        assert_eq!((large.bytes_max, large.limit_bytes), (6_144 * MIB, 112 * MIB));
        assert_eq!(MemoryPlan::fixed(64 * MIB, None).halved(), None);
    }
}
