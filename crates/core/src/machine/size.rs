//! Changes of a machine's memory at run time.
//!
//! The *environment* is the code around the machine, which owns the memory of the frames.

use alloc::vec::Vec;

use super::Machine;
use crate::cache::FrameId;
use crate::unit::{PAGE_BYTES, Time};

impl Machine {
    /// Changes the amount of memory within limits: not below the memory in use now, and not above
    /// [`Config::memory_bytes_max`](super::Config::memory_bytes_max). A reduction evicts pages, so
    /// a large one is better done in several calls. Returns the frames whose memory the environment
    /// must take back, and then report as [withdrawn](Machine::on_withdrawn).
    pub fn resize(&mut self, now: Time, memory_bytes: u64) -> Vec<FrameId> {
        let pages = (memory_bytes / PAGE_BYTES).min(u32::MAX.into()) as u32;
        let withdrawing = self.base.frames.resize(pages);
        self.admit(now);
        withdrawing
    }

    /// Records that the environment has taken back the memory of these frames.
    pub fn on_withdrawn(&mut self, frames: &[FrameId]) {
        self.base.frames.cache.on_withdrawn(frames);
    }

    /// Approximate number of bytes read again after their eviction: the benefit of a larger memory.
    /// Counted only if the size may change and
    /// [`Config::counts_returned_pages`](super::Config::counts_returned_pages) is true; 0 otherwise.
    pub fn returned_bytes(&self) -> u64 {
        self.base.frames.cache.refault_pages() * PAGE_BYTES
    }

    /// The amount of memory in bytes, and the part of it that was used and not taken back since.
    pub fn memory_bytes(&self) -> [u64; 2] {
        let cache = &self.base.frames.cache;
        [cache.budget_pages(), cache.backed_pages()].map(|pages| u64::from(pages) * PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Config, ConfigError, HandleId, ReadAccess, ReadError, SwapConfig, SwapError, Transfer,
    };
    use super::*;
    use crate::eviction;
    use crate::policy::SpecError;
    use crate::request::{Completion, DeviceCaps, Outcome, ProcessId};

    const CAPS: DeviceCaps = DeviceCaps {
        sectors: 1 << 30,
        alignment_sectors: 1,
        request_sectors_max: 1024,
        depth_max: 32,
        is_rotational: false,
    };

    /// Reads pages through the machine, one by one. Returns the number of device reads.
    fn read_pages(machine: &mut Machine, handle: HandleId, pages: core::ops::Range<u64>) -> u64 {
        let now = Time::ZERO;
        let reads_before = machine.meter().device_reads;
        for page in pages {
            let offset = page * PAGE_BYTES;
            let transfer =
                Transfer { handle, process: ProcessId(0), offset, bytes: PAGE_BYTES, tag: 0 };
            let read = machine.read(now, ReadAccess::Buffered, transfer).unwrap();
            while let Some(request) = machine.poll_request(now) {
                let id = request.id;
                machine.handle_completion(now, Completion::at(now, id, Outcome::Done));
            }
            assert_eq!(machine.poll_done().unwrap().result, Ok(PAGE_BYTES));
            machine.release(now, read);
        }
        machine.meter().device_reads - reads_before
    }

    /// A machine with 16 pages of memory that may become 64, and a file of 64 pages. It reads only
    /// requested pages.
    fn machine() -> (Machine, HandleId) {
        let config = Config {
            memory_bytes: 16 * PAGE_BYTES,
            memory_bytes_max: 64 * PAGE_BYTES,
            readahead: crate::policy::Spec::plain("none"),
            eviction: crate::policy::Spec::plain("two-lists"),
            ..Config::new(CAPS)
        };
        let mut machine = Machine::new(config).unwrap();
        let file = machine.add_file(64 * PAGE_BYTES, 0).unwrap();
        let handle = machine.open(file);
        (machine, handle)
    }

    /// The file is read twice in a memory of 16 pages: the eviction in order of arrival keeps the
    /// last 16 of 64. After growth to 64 pages, the third pass reads the other 48, the fourth none.
    #[test]
    fn pages_that_fit_a_larger_memory_are_read_once() {
        let (mut machine, handle) = machine();
        assert_eq!(read_pages(&mut machine, handle, 0..64), 64);
        assert_eq!(read_pages(&mut machine, handle, 0..64), 64);
        assert_eq!(machine.resize(Time::ZERO, 1 << 40), []);
        assert_eq!(machine.memory_bytes(), [64, 16].map(|pages| pages * PAGE_BYTES));
        // Each page of the second pass had been evicted before it was read again.
        assert_eq!(machine.returned_bytes(), 64 * PAGE_BYTES);
        assert_eq!(read_pages(&mut machine, handle, 0..64), 48);
        assert_eq!(read_pages(&mut machine, handle, 0..64), 0);
        // All frames are in use, and more than a sixteenth have returned: the next `resize`
        // builds the configured policy for its size.
        assert_eq!(machine.base.frames.cache.policy_pages(), 16);
        let withdrawing = machine.resize(Time::ZERO, 40 * PAGE_BYTES);
        assert_eq!(machine.base.frames.cache.policy_pages(), 40);
        assert_eq!((withdrawing.len(), machine.memory_bytes()[0]), (24, 40 * PAGE_BYTES));
        machine.on_withdrawn(&withdrawing);
        assert_eq!(machine.memory_bytes(), [40 * PAGE_BYTES; 2]);
        assert_eq!((0..64).filter(|&page| machine.is_cached(handle, page)).count(), 40);
        // The policy is set up for the 64 frames that exist.
        machine.resize(Time::ZERO, u64::MAX);
        assert_eq!(machine.base.frames.cache.policy_pages(), 64);
    }

    /// The configured policy applies from the start, built for the 16 pages, although the memory
    /// may change.
    #[test]
    fn returns_that_are_not_counted_choose_no_policy() {
        let config = Config {
            memory_bytes: 16 * PAGE_BYTES,
            memory_bytes_max: 64 * PAGE_BYTES,
            counts_returned_pages: false,
            readahead: crate::policy::Spec::plain("none"),
            ..Config::new(CAPS)
        };
        let mut machine = Machine::new(config).unwrap();
        let file = machine.add_file(64 * PAGE_BYTES, 0).unwrap();
        let handle = machine.open(file);
        for _ in 0..3 {
            read_pages(&mut machine, handle, 0..64);
        }
        assert_eq!(machine.returned_bytes(), 0);
        assert_eq!(machine.base.frames.cache.policy_pages(), 16);
        assert_eq!(machine.resize(Time::ZERO, 64 * PAGE_BYTES), []);
        assert_eq!(machine.base.frames.cache.policy_pages(), 64);
    }

    /// A registered policy may refuse a size. `Machine::new` checks a memory that may change with a
    /// size of 1 page; the memory has 16 when the policy is given its pages.
    #[test]
    fn policy_that_refuses_the_size_of_the_memory_is_an_error_of_the_swap_area() {
        let policy = crate::policy::Policy::new("one-page", "Accepts a memory of 1 page.", "");
        let refusal = SpecError::Malformed { text: "one-page".into() };
        let build: eviction::BuildEviction = |_, pages| match pages {
            1 => Ok(alloc::boxed::Box::new(eviction::TwoLists)),
            _ => Err(SpecError::Malformed { text: "one-page".into() }),
        };
        eviction::register(policy, build).unwrap();
        let config = Config {
            memory_bytes: 16 * PAGE_BYTES,
            memory_bytes_max: 64 * PAGE_BYTES,
            eviction: crate::policy::Spec::plain("one-page"),
            ..Config::new(CAPS)
        };
        let mut machine = Machine::new(config.clone()).unwrap();
        let swap = SwapConfig { by_policy: true, ..SwapConfig::new(0, 64) };
        assert_eq!(machine.add_swap(&swap), Err(SwapError::Policy(refusal.clone())));
        // Many pages have returned, but the refused policy does not apply after a change of size.
        let file = machine.add_file(64 * PAGE_BYTES, 0).unwrap();
        let handle = machine.open(file);
        (0..3).for_each(|_| _ = read_pages(&mut machine, handle, 0..64));
        machine.resize(Time::ZERO, 64 * PAGE_BYTES);
        (0..2).for_each(|_| _ = read_pages(&mut machine, handle, 0..64));
        assert_eq!(machine.resize(Time::ZERO, 40 * PAGE_BYTES).len(), 24);
        // Without a count of returned pages, the policy applies from the start.
        let config = Config { counts_returned_pages: false, ..config };
        assert_eq!(Machine::new(config).err(), Some(ConfigError::Policy(refusal)));
    }

    /// 2^61 slots of a page have more bytes than 64 bits count.
    #[test]
    fn refusals_of_a_swap_area_name_the_area() {
        let caps = DeviceCaps { sectors: 1 << 60, ..CAPS };
        let config = Config { memory_bytes: 16 * PAGE_BYTES, ..Config::new(caps) };
        let mut machine = Machine::new(config).unwrap();
        let mut refusal = |slots| machine.add_swap(&SwapConfig::new(0, slots)).unwrap_err();
        let numbered = alloc::format!("{}", refusal(u64::from(u32::MAX)));
        assert!(numbered.starts_with("a swap area of 4294967295 pages"), "{numbered}");
        for slots in [1 << 58, 1 << 61, u64::MAX] {
            let beyond = alloc::format!("{}", refusal(slots));
            assert!(beyond.starts_with("the swap area would end at byte"), "{beyond}");
        }
    }

    #[test]
    fn write_at_the_end_of_the_address_range_is_past_the_end() {
        let (mut machine, handle) = machine();
        let offset = u64::MAX - PAGE_BYTES + 1;
        let transfer =
            Transfer { handle, process: ProcessId(0), offset, bytes: PAGE_BYTES, tag: 0 };
        let written = machine.write(Time::ZERO, transfer, true);
        let file_bytes = 64 * PAGE_BYTES;
        assert_eq!(written.unwrap_err(), ReadError::PastEnd { file_bytes });
    }

    #[test]
    fn memory_pinned_by_a_read_survives_a_resize_to_zero() {
        let (mut machine, handle) = machine();
        let bytes = 10 * PAGE_BYTES;
        let transfer = Transfer { handle, process: ProcessId(0), offset: 0, bytes, tag: 0 };
        machine.read(Time::ZERO, ReadAccess::Buffered, transfer).unwrap();
        assert_eq!(machine.resize(Time::ZERO, 0), []);
        assert_eq!(machine.memory_bytes()[0], bytes);
        assert!(machine.poll_request(Time::ZERO).is_some());
    }
}
