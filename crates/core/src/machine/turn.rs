//! One turn of a machine, whoever drives it.
//!
//! A machine has polls that are called in an order; here they are called, for everybody.
//! What differs from world to world stands in two traits: what carries the requests, and who waits.

use super::{Done, Faulted, Machine, Unmap};
use crate::request::{Completion, DeviceRequest};
use crate::unit::Time;

/// What carries requests between memory and a device, in real or in virtual time.
pub trait IoBackend {
    /// Takes a request in; `machine` tells its memory ([`Machine::request_buffers`]).
    fn submit(&mut self, machine: &Machine, now: Time, request: DeviceRequest);

    /// The next of the requests that were completed by `now`, each of them once.
    fn poll_completion(&mut self, now: Time) -> Option<Completion>;
}

/// Who drives a machine: what carries its requests, and who waits for what it does.
///
/// By default nobody waits, and all is given back at once.
pub trait Driver: IoBackend {
    /// A read or a write has ended; to be [released](Machine::release), now or later.
    #[inline]
    fn done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        machine.release(now, done.read);
    }

    /// A fault on memory has ended; to be [released](Machine::release_fault), now or later.
    #[inline]
    fn faulted(&mut self, machine: &mut Machine, now: Time, faulted: Faulted) {
        machine.release_fault(now, faulted.fault);
    }

    /// A page is to be taken out of a program's address space, and to be
    /// [answered for](Machine::handle_unmapped) before this returns. More of them may be
    /// [polled](Machine::poll_unmap) here, to be taken out together.
    ///
    /// By default no program has it there.
    #[inline]
    fn unmap(&mut self, machine: &mut Machine, now: Time, unmap: Unmap) {
        machine.handle_unmapped(now, unmap, false);
    }
}

/// A driver calls [`turn`](Machine::turn) when anything has come, and at the time that
/// [`next_wake`](Machine::next_wake) names.
impl Machine {
    /// Does everything that there is to do at this time: takes completions in, hands requests
    /// out, tells of faults and of reads that have ended, and takes pages out of programs' sight,
    /// in this order. So the device works while those who waited are served, and the pages that
    /// are kept ready for later come last. Gives whether there was anything: what was released
    /// may let others go on, and what was submitted may have completed, in another turn.
    #[inline]
    pub fn turn<D: Driver + ?Sized>(&mut self, now: Time, driver: &mut D) -> bool {
        let mut is_any = self.take_in(now, driver);
        while let Some(request) = self.poll_request(now) {
            driver.submit(self, now, request);
            is_any = true;
        }
        is_any |= self.tell(now, driver);
        is_any | self.unmap(now, driver)
    }

    /// The first part of a [`turn`](Machine::turn) alone, for those who start something between what
    /// has come and what goes out.
    #[inline]
    pub fn take_in<C: IoBackend + ?Sized>(&mut self, now: Time, carrier: &mut C) -> bool {
        let mut is_any = false;
        while let Some(completion) = carrier.poll_completion(now) {
            self.handle_completion(now, completion);
            is_any = true;
        }
        is_any
    }

    /// The part of a [`turn`](Machine::turn) that tells of faults and reads that have ended alone, for those who
    /// give back what they are told of before anything goes out.
    #[inline]
    pub fn tell<D: Driver + ?Sized>(&mut self, now: Time, driver: &mut D) -> bool {
        let mut is_any = false;
        while let Some(faulted) = self.poll_faulted() {
            driver.faulted(self, now, faulted);
            is_any = true;
        }
        while let Some(done) = self.poll_done() {
            driver.done(self, now, done);
            is_any = true;
        }
        is_any
    }

    /// The last part of a [`turn`](Machine::turn) alone, for those who have what leaves memory
    /// go to the device together with what comes in.
    #[inline]
    pub fn unmap<D: Driver + ?Sized>(&mut self, now: Time, driver: &mut D) -> bool {
        let mut is_any = false;
        while let Some(unmap) = self.poll_unmap() {
            driver.unmap(self, now, unmap);
            is_any = true;
        }
        is_any
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

    /// A device that answers at the next look, and what happened, in order.
    #[derive(Default)]
    struct RecordingDriver {
        in_device: VecDeque<DeviceRequest>,
        seen: Vec<&'static str>,
    }

    impl IoBackend for RecordingDriver {
        fn submit(&mut self, machine: &Machine, _now: Time, request: DeviceRequest) {
            let mut pages = 0;
            machine.request_buffers(request.id, |_| pages += 1);
            assert_eq!(pages * PAGE_SECTORS, request.sectors.into());
            self.seen.push(if request.op == Op::Read { "read" } else { "write" });
            self.in_device.push_back(request);
        }

        fn poll_completion(&mut self, now: Time) -> Option<Completion> {
            let request = self.in_device.pop_front()?;
            self.seen.push("completed");
            Some(Completion::at(now, request.id, Outcome::Done))
        }
    }

    impl Driver for RecordingDriver {
        fn done(&mut self, machine: &mut Machine, now: Time, done: Done) {
            self.seen.push("done");
            machine.release(now, done.read);
        }

        fn faulted(&mut self, machine: &mut Machine, now: Time, faulted: Faulted) {
            self.seen.push("faulted");
            machine.release_fault(now, faulted.fault);
        }

        fn unmap(&mut self, machine: &mut Machine, now: Time, unmap: Unmap) {
            // Those that are neighbours leave together.
            let mut unmaps = alloc::vec![unmap];
            unmaps.extend(core::iter::from_fn(|| machine.poll_unmap()));
            self.seen.push("unmap");
            unmaps.into_iter().for_each(|unmap| machine.handle_unmapped(now, unmap, true));
        }
    }

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

    #[test]
    fn a_read_is_sent_in_one_step_and_done_in_the_next() {
        let (mut machine, mut driver) = (machine(64), RecordingDriver::default());
        let file = machine.add_file(PAGE_BYTES, 0).unwrap();
        let handle = machine.open(file);
        let process = ProcessId(0);
        let transfer = Transfer { handle, process, offset: 0, bytes: PAGE_BYTES, tag: 0 };
        machine.read(Time::ZERO, ReadAccess::Buffered, transfer).unwrap();
        assert!(machine.turn(Time::ZERO, &mut driver));
        assert_eq!(driver.seen, ["read"]);
        assert!(machine.turn(Time::from_us(1), &mut driver));
        assert_eq!(driver.seen, ["read", "completed", "done"]);
        assert!(!machine.turn(Time::from_us(1), &mut driver));
        assert!(machine.is_idle());
    }

    /// Twice as many pages as there is memory for are written to, and the first of them again.
    #[test]
    fn pages_swap_out_and_in_step_by_step() {
        let (mut machine, mut driver) = (machine(16), RecordingDriver::default());
        machine.add_swap(&SwapConfig::new(0, 64)).unwrap();
        let memory = machine.add_memory(32, MemoryKind::Private).unwrap();
        for page in PageRange::new(0, 32).pages().chain([0]) {
            let access = MemoryAccess::Write;
            let fault = MemoryFault { memory, page, access, process: ProcessId(0), tag: page };
            machine.fault(Time::ZERO, fault).unwrap();
            while machine.turn(Time::ZERO, &mut driver) {}
        }
        let count = |what| driver.seen.iter().filter(|&&seen| seen == what).count();
        assert_eq!(count("faulted"), 33);
        assert!(count("unmap") > 0 && count("write") > 0 && count("read") == 1);
        assert_eq!(count("completed"), count("read") + count("write"));
        // What is unmapped goes out before anybody is told of anything else.
        let after = |pair: &[&str]| pair[0] != "unmap" || ["write", "completed"].contains(&pair[1]);
        assert!(driver.seen.windows(2).all(after), "{:?}", driver.seen);
    }
}
