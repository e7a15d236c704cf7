//! Memory that grows with use while the machine has some to spare, and is given back where others need it.
//!
//! A path for which no memory was named has addresses for most of what the process may ever have, and a *limit*: no more
//! than is good for it, and no more than there is. Good for it are 256 MiB, and twice as much as was read anew that a larger
//! memory would have kept: a stream that comes by once gains nothing by memory of its own, and pays for it (to have the system
//! clear 1 GiB took longer than to read it; 0.80 of the kernel's rate, where it was 1.40). There is what it uses now
//! and what is [available](SpareMemory) beside, but for a reserve. The limit is set anew
//! - whenever it has come to use 16 MiB, and then 64 MiB more;
//! - whenever 16 MiB more had to be read anew;
//! - four times a second, by a thread that all such paths of a process share, while one of them uses more than that.
//!
//! Where the limit falls below what is used, pages leave as reclaim would have them leave, and their memory goes back to
//! the system. Where tasks wait for memory all the same (pressure stall information), an eighth of it goes at each look, unless
//! a quarter of all is available: who waits then is in a control group that has reached a limit of its own, which
//! nothing that is given back here would help.
//! It never goes below a floor, by which any read can be made.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use readpath_core::cache::FrameId;
use readpath_core::unit::PAGE_BYTES;

use super::Engine;
use crate::frames::locks_what_is_mapped;
use crate::process::ProcessName;
use crate::spare_memory::{SpareMemory, total_memory};
use crate::thread;

/// What a path has where it can't be known what there is, or before it is seen that more is good for it; and what readahead
/// laws count on at the most.
pub(crate) const FIXED_BYTES: u64 = 256 << 20;
/// The limit is set for the first time when so much is in use; until then it is the floor.
const FIRST_BYTES: u64 = 16 << 20;
/// The limit is set anew when so much more has come into use.
const STEP_BYTES: u64 = 64 << 20;
/// How often the thread looks.
const INTERVAL: Duration = Duration::from_millis(250);
/// One part of so many of all memory is left to others.
const RESERVE_PART: u64 = 8;
/// The most that guards may hold, and its part of all memory at the most.
const HELD_BYTES: u64 = 64 << 20;
const HELD_PART: u64 = 16;
/// What reads have for themselves at the least: three of the largest.
const READS_BYTES: u64 = 48 << 20;
/// The same in a small control group, which has a quarter of its memory for them; larger reads are
/// made in pieces.
const READS_BYTES_MIN: u64 = 1 << 20;
/// Where tasks have waited for memory for longer than one part of so many of the time, there is too little.
const STALLED_PART: u64 = 20;
/// And less than one part of so many of all memory is available.
const PLENTY_PART: u64 = 4;
/// What is given back then at each look, as a part of what is used.
const GIVEN_PART: u64 = 8;
/// What is given back at a time, under the lock.
const PIECE_BYTES: u64 = 16 << 20;

/// How much memory a path has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// At the start.
    pub(crate) limit_bytes: u64,
    /// At the most.
    pub(crate) bytes_max: u64,
    /// How much of it guards may hold.
    pub(crate) held_bytes: u64,
    /// At the least; `None` for one that stays as it is.
    floor_bytes: Option<u64>,
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE_BYTES * PAGE_BYTES
}

impl MemoryPlan {
    /// Memory that stays as it is.
    pub(crate) fn fixed(bytes: u64, held_bytes: Option<u64>) -> MemoryPlan {
        let quarter = (bytes / PAGE_BYTES / 4).max(1) * PAGE_BYTES;
        let held_bytes = held_bytes.unwrap_or(quarter);
        MemoryPlan { limit_bytes: bytes, bytes_max: bytes, held_bytes, floor_bytes: None }
    }

    /// Memory that goes by what there is.
    pub(crate) fn elastic(held_bytes: Option<u64>) -> MemoryPlan {
        match total_memory() {
            // What is mapped would be brought in whole.
            Some(total) if !locks_what_is_mapped() => MemoryPlan::of(total, held_bytes),
            Some(total) => MemoryPlan::fixed(FIXED_BYTES.min(whole_pages(total / 4)), held_bytes),
            None => MemoryPlan::fixed(FIXED_BYTES, held_bytes),
        }
    }

    /// That of a process that may have `total` bytes in all.
    fn of(total: u64, held_bytes: Option<u64>) -> MemoryPlan {
        let held_bytes =
            held_bytes.unwrap_or_else(|| whole_pages((total / HELD_PART).min(HELD_BYTES)));
        let reads_bytes = READS_BYTES.min(whole_pages(total / 4)).max(READS_BYTES_MIN);
        let floor_bytes = held_bytes + reads_bytes;
        let bytes_max = whole_pages(total - total / 4).max(floor_bytes);
        MemoryPlan {
            limit_bytes: floor_bytes,
            bytes_max,
            held_bytes,
            floor_bytes: Some(floor_bytes),
        }
    }

    /// The same with addresses for half as much; `None` if that is less than is had without knowing.
    pub(crate) fn halved(self) -> Option<MemoryPlan> {
        let bytes_max = self.bytes_max / 2 / PAGE_BYTES * PAGE_BYTES;
        let is_enough = self.floor_bytes.is_some_and(|floor| bytes_max >= floor.max(FIXED_BYTES));
        is_enough.then_some(MemoryPlan { bytes_max, ..self })
    }

    /// The limit of one that uses so much of its memory.
    fn limit(&self, floor_bytes: u64, used_bytes: u64, memory: SpareMemory) -> u64 {
        let reserve = memory.total / RESERVE_PART;
        let limit = (used_bytes + memory.available).saturating_sub(reserve);
        limit.clamp(floor_bytes, self.bytes_max) / PAGE_BYTES * PAGE_BYTES
    }
}

/// The memory of an engine that is set anew from time to time.
pub(crate) struct Elastic {
    plan: MemoryPlan,
    floor_bytes: u64,
    /// For how long tasks had waited when this was looked at last, if it was, and when that was.
    looked: Mutex<Option<(u64, Instant)>>,
}

impl Elastic {
    /// That of a plan; `None` for one that stays as it is.
    pub(crate) fn of(plan: MemoryPlan) -> Option<Elastic> {
        let floor_bytes = plan.floor_bytes?;
        Some(Elastic { plan, floor_bytes, looked: Mutex::default() })
    }

    /// Bytes in use at which it is first looked how much memory there is.
    pub(super) fn first_bytes(&self) -> u64 {
        FIRST_BYTES.min(self.plan.limit_bytes / 2)
    }

    /// Bytes more in use at which it is looked again.
    fn step_bytes(&self) -> u64 {
        STEP_BYTES.min(self.plan.bytes_max / 8)
    }

    /// The limit now, of an engine that uses so much.
    fn limit(
        &self,
        looked: &mut Option<(u64, Instant)>,
        used_bytes: u64,
        returned_bytes: u64,
        memory: SpareMemory,
    ) -> u64 {
        let good = FIXED_BYTES.saturating_add(2 * returned_bytes).max(self.floor_bytes);
        let limit = self.plan.limit(self.floor_bytes, used_bytes, memory).min(good);
        let now = Instant::now();
        let before = looked.replace((memory.stalled_us, now));
        let is_stalled = before.is_some_and(|(stalled_us, at)| {
            let elapsed_us = now.duration_since(at).as_micros() as u64;
            memory.stalled_us.saturating_sub(stalled_us) > elapsed_us / STALLED_PART
        });
        let is_short = is_stalled && memory.available < memory.total / PLENTY_PART;
        let most = if is_short { used_bytes - used_bytes / GIVEN_PART } else { u64::MAX };
        limit.min(most.max(self.floor_bytes) / PAGE_BYTES * PAGE_BYTES)
    }
}

impl Engine {
    /// Looks how much memory there is to spare, and sets the limit anew, if the engine's memory goes by that. Doesn't wait
    /// for another thread that does so.
    pub(crate) fn adapt_memory(&self) {
        let Some(elastic) = &self.elastic else { return };
        let Ok(mut looked) = elastic.looked.try_lock() else { return };
        let memory = SpareMemory::now();
        let mut state = self.lock();
        let [bytes, used_bytes] = state.machine.memory_bytes();
        let returned_bytes = state.machine.returned_bytes();
        let limit = memory
            .map_or(bytes, |memory| elastic.limit(&mut looked, used_bytes, returned_bytes, memory));
        state.returned_due_bytes = returned_bytes + FIRST_BYTES;
        state.memory_due_bytes = used_bytes + elastic.step_bytes();
        if limit >= bytes {
            state.command(|machine, now| drop(machine.resize(now, limit)));
        }
        drop(state);
        self.give_back_memory(bytes, limit);
        if used_bytes >= elastic.step_bytes() {
            watch_over_all();
        }
    }

    /// Takes pages out of the memory, from `bytes` on down to `limit`, and gives their memory to the system.
    fn give_back_memory(&self, mut bytes: u64, limit: u64) {
        while bytes > limit {
            bytes = bytes.saturating_sub(PIECE_BYTES).max(limit);
            let mut withdrawing: Vec<FrameId> = Vec::new();
            let left = self.lock().command(|machine, now| {
                withdrawing = machine.resize(now, bytes);
                machine.memory_bytes()[0]
            });
            self.frame_cache.give_back(&mut withdrawing);
            self.lock().machine.withdrawn(&withdrawing);
            if left > bytes {
                // The rest is in use.
                return;
            }
        }
    }
}

/// All engines of a process whose memory is elastic, and whether the thread is there that looks after them.
#[derive(Default)]
struct Watched {
    engines: Vec<Weak<Engine>>,
    is_running: bool,
}

impl Watched {
    fn forget_dropped(&mut self) {
        self.engines.retain(|engine| engine.strong_count() != 0);
    }
}

/// Those of one process. A child made by `fork` makes its own: a thread of its parent's may have held the lock.
struct OfProcess {
    process: ProcessName,
    watched: Mutex<Watched>,
}

static WATCHED: AtomicPtr<OfProcess> = AtomicPtr::new(std::ptr::null_mut());

/// Does something to those of this process.
fn with_watched<T>(act: impl FnOnce(&mut Watched) -> T) -> T {
    let found = WATCHED.load(Ordering::Acquire);
    // SAFETY: what is there was made below, and is never freed.
    let mut here = unsafe { found.as_ref() }.filter(|here| here.process.is_this());
    if here.is_none() {
        let made = OfProcess { process: ProcessName::this(), watched: Mutex::default() };
        let made = Box::into_raw(Box::new(made));
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let place = match WATCHED.compare_exchange(found, made, order.0, order.1) {
            Ok(_) => made,
            // Another thread was first; what was made here is lost, once.
            Err(theirs) => theirs,
        };
        // SAFETY: as above.
        here = unsafe { place.as_ref() };
    }
    let watched = &here.expect("made just now").watched;
    act(&mut watched.lock().expect("nothing panics under this lock"))
}

/// Has the engine looked after from when it uses much.
pub(super) fn enlist(engine: &Arc<Engine>) {
    if engine.elastic.is_some() {
        with_watched(|watched| {
            watched.forget_dropped();
            watched.engines.push(Arc::downgrade(engine));
        });
    }
}

/// Starts the thread that looks after all, if it isn't there.
fn watch_over_all() {
    with_watched(|watched| {
        if !watched.is_running {
            // Where the system gives no thread, the next look tries again.
            watched.is_running = thread::spawn("readpath-memory", watch).is_ok();
        }
    });
}

/// The life of that thread: until no engine uses much.
fn watch() {
    loop {
        std::thread::sleep(INTERVAL);
        let engines = with_watched(|watched| {
            watched.forget_dropped();
            watched.engines.clone()
        });
        let mut has_large = false;
        for engine in engines.iter().filter_map(Weak::upgrade) {
            let used_bytes = engine.lock().machine.memory_bytes()[1];
            let elastic = engine.elastic.as_ref();
            has_large |= elastic.is_some_and(|elastic| used_bytes >= elastic.step_bytes());
            engine.adapt_memory();
        }
        if !has_large {
            return with_watched(|watched| watched.is_running = false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(total: u64, available: u64) -> SpareMemory {
        SpareMemory { total: total * MIB, available: available * MIB, stalled_us: 0 }
    }

    #[test]
    fn the_limit_is_what_is_used_and_available_without_the_reserve() {
        let plan = MemoryPlan::of(16_384 * MIB, None);
        assert_eq!((plan.held_bytes, plan.bytes_max), (64 * MIB, 12_288 * MIB));
        assert_eq!(plan.limit_bytes, 112 * MIB);
        let elastic = Elastic::of(plan).unwrap();
        let limit = |used: u64, available| {
            // An eighth of 16,384 is 2,048.
            elastic.limit(&mut None, used * MIB, 1 << 40, memory(16_384, available)) / MIB
        };
        assert_eq!(limit(5_000, 5_000), 7_952);
        assert_eq!(limit(5_000, 1_000), 3_952);
        // No further down than what reads and guards need, no further up than there are addresses.
        assert_eq!((limit(500, 100), limit(12_000, 4_000)), (112, 12_288));
    }

    #[test]
    fn memory_grows_by_twice_what_was_read_anew() {
        let elastic = Elastic::of(MemoryPlan::of(16_384 * MIB, None)).unwrap();
        let limit = |returned: u64| {
            elastic.limit(&mut None, 100 * MIB, returned * MIB, memory(16_384, 10_000)) / MIB
        };
        assert_eq!((limit(0), limit(50), limit(1_000)), (256, 356, 2_256));
    }

    #[test]
    fn where_tasks_wait_for_memory_an_eighth_goes_at_each_look() {
        let elastic = Elastic::of(MemoryPlan::of(16_384 * MIB, None)).unwrap();
        let mut looked = Some((1_000, Instant::now() - Duration::from_millis(250)));
        let stalled = |stalled_us| SpareMemory { stalled_us, ..memory(16_384, 4_000) };
        // A fifth of the time, then nothing.
        assert_eq!(elastic.limit(&mut looked, 800 * MIB, 1 << 40, stalled(51_000)), 700 * MIB);
        assert_eq!(elastic.limit(&mut looked, 700 * MIB, 1 << 40, stalled(51_000)), 2_652 * MIB);
    }

    #[test]
    fn while_there_is_plenty_who_waits_is_not_helped_by_what_is_given_back() {
        let elastic = Elastic::of(MemoryPlan::of(16_384 * MIB, None)).unwrap();
        let mut looked = Some((1_000, Instant::now() - Duration::from_millis(250)));
        let stalled = SpareMemory { stalled_us: 51_000, ..memory(16_384, 10_000) };
        assert_eq!(elastic.limit(&mut looked, 800 * MIB, 1 << 40, stalled), 8_752 * MIB);
    }

    /// A group of 48 MiB: a sixteenth for guards, a quarter for reads, three quarters at the most.
    #[test]
    fn floor_of_a_small_group_is_a_part_of_it() {
        let plan = MemoryPlan::of(48 * MIB, None);
        assert_eq!((plan.held_bytes, plan.floor_bytes), (3 * MIB, Some(15 * MIB)));
        assert_eq!((plan.limit_bytes, plan.bytes_max), (15 * MIB, 36 * MIB));
        let elastic = Elastic::of(plan).unwrap();
        assert!(elastic.first_bytes() < plan.limit_bytes && elastic.step_bytes() < 5 * MIB);
        let tiny = MemoryPlan::of(4 * MIB, None);
        assert!(tiny.limit_bytes <= 2 * MIB && tiny.bytes_max <= 3 * MIB);
    }

    #[test]
    fn a_small_group_has_a_small_memory_and_few_addresses_are_as_good() {
        let plan = MemoryPlan::of(256 * MIB, None);
        assert_eq!((plan.held_bytes, plan.limit_bytes), (16 * MIB, 64 * MIB));
        assert_eq!((plan.bytes_max, plan.halved()), (192 * MIB, None));
        let large = MemoryPlan::of(16_384 * MIB, None).halved().unwrap();
        assert_eq!((large.bytes_max, large.limit_bytes), (6_144 * MIB, 112 * MIB));
        assert_eq!(MemoryPlan::fixed(64 * MIB, None).halved(), None);
    }
}
