//! One step of a machine, for every driver.
//!
//! The polls of a machine must be called in an order; this module does so for all drivers. An
//! *environment* is the code around a machine: a device, real or modelled, and the callers that
//! wait. Two traits cover the differences between environments: the execution of requests, and the
//! waiters.

use super::{Done, Faulted, Machine, Unmap};
use crate::request::{Completion, DeviceRequest};
use crate::unit::Time;

/// Executes requests between memory and a device, in real or in virtual time.
pub trait IoBackend {
    /// Starts a request at `now`, without waiting for it; `machine` provides its buffers
    /// ([`Machine::request_buffers`]).
    fn submit(&mut self, machine: &Machine, now: Time, request: DeviceRequest);

    /// The next request that completed by `now`; each is returned once. `None` if there is none.
    fn poll_completion(&mut self, now: Time) -> Option<Completion>;
}

/// The driver of a machine: executes its requests, and delivers results to waiters.
///
/// By default no caller waits, and all results are released at once.
pub trait Driver: IoBackend {
    /// Delivers a completed read or write, to be [released](Machine::release), now or later.
    #[inline]
    fn on_done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        machine.release(now, done.read);
    }

    /// Delivers a completed fault, to be [released](Machine::release_fault), now or later.
    #[inline]
    fn on_faulted(&mut self, machine: &mut Machine, now: Time, faulted: Faulted) {
        machine.release_fault(now, faulted.fault);
    }

    /// Unmaps a page from a program's address space, and [reports](Machine::handle_unmapped) this
    /// before it returns. More pages may be [polled](Machine::poll_unmap) here, to be unmapped
    /// together.
    ///
    /// By default no program has it mapped.
    #[inline]
    fn unmap(&mut self, machine: &mut Machine, now: Time, unmap: Unmap) {
        let was_written = false;
        machine.handle_unmapped(now, unmap, was_written);
    }
}

/// A driver calls [`step`](Machine::step) after each event, and at the time returned by
/// [`next_wake`](Machine::next_wake).
impl Machine {
    /// Does all work that is due: processes completions, sends requests, delivers faults and reads,
    /// and unmaps pages, in this order. The device thus works while waiters are served, and the
    /// preparation of free frames comes last. Returns true if there was any work. Another call may
    /// then find more: released memory may let others go on, and sent requests may have completed.
    #[inline]
    pub fn step<D: Driver + ?Sized>(&mut self, now: Time, driver: &mut D) -> bool {
        let mut has_worked = self.take_completions(now, driver);
        while let Some(request) = self.poll_request(now) {
            driver.submit(self, now, request);
            has_worked = true;
        }
        has_worked |= self.deliver_results(now, driver);
        has_worked | self.unmap(now, driver)
    }

    /// The first part of a [`step`](Machine::step), for drivers that start something between
    /// completions and new requests. Returns true if there was a completion.
    #[inline]
    pub fn take_completions<C: IoBackend + ?Sized>(&mut self, now: Time, backend: &mut C) -> bool {
        let mut has_completion = false;
        while let Some(completion) = backend.poll_completion(now) {
            self.handle_completion(now, completion);
            has_completion = true;
        }
        has_completion
    }

    /// The part of a [`step`](Machine::step) that delivers faults and reads, for drivers that
    /// release them before new requests are sent. Returns true if there was a result.
    #[inline]
    pub fn deliver_results<D: Driver + ?Sized>(&mut self, now: Time, driver: &mut D) -> bool {
        let mut has_result = false;
        while let Some(faulted) = self.poll_faulted() {
            driver.on_faulted(self, now, faulted);
            has_result = true;
        }
        while let Some(done) = self.poll_done() {
            driver.on_done(self, now, done);
            has_result = true;
        }
        has_result
    }

    /// The last part of a [`step`](Machine::step), for drivers that send writes of leaving pages
    /// together with reads. Returns true if there was a page to unmap.
    #[inline]
    pub fn unmap<D: Driver + ?Sized>(&mut self, now: Time, driver: &mut D) -> bool {
        let mut has_unmapped = false;
        while let Some(unmap) = self.poll_unmap() {
            driver.unmap(self, now, unmap);
            has_unmapped = true;
        }
        has_unmapped
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;

    use super::*;
    use crate::machine::{
        Config, MemoryAccess, MemoryFault, MemoryKind, ReadAccess, SwapConfig, Transfer,
    };
    use crate::request::{DeviceCaps, Op, Outcome, ProcessId};
    use crate::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange};

    /// A device that completes each request at the next poll, and a log of events in order.
    #[derive(Default)]
    struct RecordingDriver {
        in_device: VecDeque<DeviceRequest>,
        events: Vec<&'static str>,
    }

    impl IoBackend for RecordingDriver {
        fn submit(&mut self, machine: &Machine, _now: Time, request: DeviceRequest) {
            let mut pages = 0;
            machine.request_buffers(request.id, |_| pages += 1);
            assert_eq!(pages * PAGE_SECTORS, request.sectors.into());
            self.events.push(if request.op == Op::Read { "read" } else { "write" });
            self.in_device.push_back(request);
        }

        fn poll_completion(&mut self, now: Time) -> Option<Completion> {
            let request = self.in_device.pop_front()?;
            self.events.push("completed");
            Some(Completion::at(now, request.id, Outcome::Done))
        }
    }

    impl Driver for RecordingDriver {
        fn on_done(&mut self, machine: &mut Machine, now: Time, done: Done) {
            self.events.push("done");
            machine.release(now, done.read);
        }

        fn on_faulted(&mut self, machine: &mut Machine, now: Time, faulted: Faulted) {
            self.events.push("faulted");
            machine.release_fault(now, faulted.fault);
        }

        fn unmap(&mut self, machine: &mut Machine, now: Time, unmap: Unmap) {
            // All pages to be unmapped are taken first, so that their writes are sent together.
            let mut unmaps = alloc::vec![unmap];
            unmaps.extend(core::iter::from_fn(|| machine.poll_unmap()));
            self.events.push("unmap");
            let was_written = true;
            unmaps.into_iter().for_each(|unmap| machine.handle_unmapped(now, unmap, was_written));
        }
    }

    /// A machine with `memory_pages` pages of memory over a device of 1,024 pages.
    fn machine(memory_pages: u64) -> Machine {
        let caps = DeviceCaps {
            sectors: 1024 * PAGE_SECTORS,
            request_sectors_max: 64 * PAGE_SECTORS as u32,
            depth_max: 4,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let memory_bytes = memory_pages * PAGE_BYTES;
        Machine::new(Config { memory_bytes, ..Config::new(caps) }).unwrap()
    }

    /// The test device completes the read before the second step; the third step finds no work.
    #[test]
    fn a_read_is_sent_in_one_step_and_done_in_the_next() {
        let (mut machine, mut driver) = (machine(64), RecordingDriver::default());
        let file = machine.add_file(PAGE_BYTES, 0).unwrap();
        let handle = machine.open(file);
        let process = ProcessId(0);
        let transfer = Transfer { handle, process, offset: 0, bytes: PAGE_BYTES, tag: 0 };
        machine.read(Time::ZERO, ReadAccess::Buffered, transfer).unwrap();
        assert!(machine.step(Time::ZERO, &mut driver));
        assert_eq!(driver.events, ["read"]);
        assert!(machine.step(Time::from_us(1), &mut driver));
        assert_eq!(driver.events, ["read", "completed", "done"]);
        assert!(!machine.step(Time::from_us(1), &mut driver));
        assert!(machine.is_idle());
    }

    /// A program writes 32 pages in a memory of 16, and page 0 again: 33 faults. Page 0 has been
    /// swapped out, so the last fault reads it: one read.
    #[test]
    fn pages_swap_out_and_in_step_by_step() {
        let (mut machine, mut driver) = (machine(16), RecordingDriver::default());
        machine.add_swap(&SwapConfig::new(0, 64)).unwrap();
        let memory = machine.add_memory(32, MemoryKind::Private).unwrap();
        for page in PageRange::new(0, 32).pages().chain([0]) {
            let access = MemoryAccess::Write;
            let fault = MemoryFault { memory, page, access, process: ProcessId(0), tag: page };
            machine.fault(Time::ZERO, fault).unwrap();
            while machine.step(Time::ZERO, &mut driver) {}
        }
        let count = |name: &str| driver.events.iter().filter(|&&event| event == name).count();
        assert_eq!(count("faulted"), 33);
        assert!(count("unmap") > 0 && count("write") > 0 && count("read") == 1);
        assert_eq!(count("completed"), count("read") + count("write"));
        // Writes of unmapped pages are sent before any other event is delivered.
        let is_in_order =
            |pair: &[&str]| pair[0] != "unmap" || ["write", "completed"].contains(&pair[1]);
        assert!(driver.events.windows(2).all(is_in_order), "{:?}", driver.events);
    }
}
