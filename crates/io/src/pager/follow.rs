//! Keeps the thread that serves faults on the core of the threads that fault.
//!
//! A thread that faults sleeps, so its core is free; a server on that core is
//! switched to directly. One that sleeps on another core must first be woken
//! there, which costs as much as a read of 4 KiB: 43 µs against 7 on an idle
//! virtual machine (`crates/peers/benches/fault_ways.rs`). The kernel's scheduler doesn't
//! know that and places a woken thread where it ran last.
//!
//! So now and then the server asks where the thread whose fault it is serving
//! ran last, and goes there. To ask takes a few µs, hence now and then only. Where threads on
//! several cores fault, the server wanders among those; then it rarely sleeps.

use crate::sync::thread_number;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

/// How many faults are served from one question to the next. At 5 µs a question
/// that is below 0.1 µs a fault; a thread that changes its core is followed
/// before it has lost 3 ms.
const FAULTS_PER_QUESTION: u32 = 64;

/// Where the calling thread serves.
#[derive(Debug, Default)]
pub(super) struct Follower {
    /// Faults until the next question.
    left: u32,
    core: Option<usize>,
}

impl Follower {
    /// A fault of `thread` is being served by the calling thread.
    pub(super) fn serve(&mut self, thread: u32) {
        // The threads of a simulation are on no core.
        if thread_number().is_some() {
            return;
        }
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        self.left = FAULTS_PER_QUESTION - 1;
        let Some(core) = core_of(thread) else { return };
        if self.core != Some(core) {
            let mut set = CpuSet::new();
            set.set(core);
            // Forbidden, the server stays where it is: slower, and no less right.
            if sched_setaffinity(None::<Pid>, &set).is_ok() {
                self.core = Some(core);
            }
        }
    }
}

/// The core on which a thread of this process ran last; `None` when it has ended.
fn core_of(thread: u32) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The name, in parentheses, may hold anything; `processor` is field 39 (proc(5)),
    // 37th after it.
    let after_name = &text[text.rfind(')')? + 1..];
    let core = after_name.split_ascii_whitespace().nth(36)?.parse().ok()?;
    (core < CpuSet::MAX_CPU).then_some(core)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_goes_to_the_core_of_the_thread_that_faults() {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        for core in 0..cores.min(2) {
            let mut set = CpuSet::new();
            set.set(core);
            let before = rustix::thread::sched_getaffinity(None).unwrap();
            sched_setaffinity(None::<Pid>, &set).unwrap();
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let others = before;
            let server = std::thread::spawn(move || {
                // It may run anywhere, and does so elsewhere at first.
                let mut elsewhere = others;
                elsewhere.unset(core);
                let _ = sched_setaffinity(None::<Pid>, &elsewhere);
                Follower::default().serve(thread);
                rustix::thread::sched_getcpu()
            });
            assert_eq!(server.join().unwrap(), core);
            sched_setaffinity(None::<Pid>, &before).unwrap();
        }
    }

    #[test]
    fn a_thread_that_has_ended_has_no_core() {
        assert_eq!(core_of(u32::MAX), None);
    }
}
