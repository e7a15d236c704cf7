//! Keeps the thread that serves faults on the core of the faulting threads.
//!
//! A faulting thread sleeps, so its core is free, and the kernel switches directly to a server on
//! that core. A server on another core must first be woken there, which costs as much as a read of
//! 4 KiB. A fault then takes 43 µs instead of 7 µs on an idle virtual machine
//! (`crates/dst/benches/fault_ways.rs`). The kernel's scheduler does not know this, and places a
//! woken thread on its last core.
//!
//! The server therefore looks up the last core of the current faulting thread from time to time,
//! and moves there. The look-up takes a few µs. If threads on several cores fault, the server
//! moves among these cores, and then it rarely sleeps.

use crate::os::sync::thread_number;
use crate::os::thread::pin_to_core;
use rustix::thread::CpuSet;

/// Number of faults from one look-up to the next. A look-up takes 5 µs, which is less than 0.1 µs
/// per fault. After a thread has moved to another core, the server follows before 3 ms are lost.
const FAULTS_PER_CORE_CHECK: u32 = 64;

/// Core affinity of the calling thread.
#[derive(Debug, Default)]
pub(super) struct CoreFollower {
    /// Number of faults until the next look-up; 0 at first, so the first fault looks up.
    faults_until_check: u32,
    /// Core to which the calling thread was moved last.
    pinned_core: Option<usize>,
}

impl CoreFollower {
    /// Records a fault of the thread with the kernel's number `thread` (gettid(2)). From time to
    /// time, moves the calling thread to the last core of that thread.
    pub(super) fn on_fault(&mut self, thread: u32) {
        // Only threads of a simulation have such a number. They run on no core.
        if thread_number().is_some() {
            return;
        }
        if self.faults_until_check > 0 {
            self.faults_until_check -= 1;
            return;
        }
        self.faults_until_check = FAULTS_PER_CORE_CHECK - 1;
        let Some(core) = last_core_of(thread) else { return };
        // If this is forbidden, the server stays on its core: slower, but correct.
        if self.pinned_core != Some(core) && pin_to_core(core) {
            self.pinned_core = Some(core);
        }
    }
}

/// Returns the last core of a thread of this process, named by the kernel's number. `None` if the
/// thread has ended, or if `/proc` does not report it.
fn last_core_of(thread: u32) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The name in parentheses, field 2, may contain any characters. The last core is field 39
    // (proc(5)), and the first field after the name has index 0 here.
    const CORE_INDEX_AFTER_NAME: usize = 39 - 3;
    let after_name = &text[text.rfind(')')? + 1..];
    let core = after_name.split_ascii_whitespace().nth(CORE_INDEX_AFTER_NAME)?.parse().ok()?;
    // A set cannot name a higher core.
    (core < CpuSet::MAX_CPU).then_some(core)
}

#[cfg(test)]
mod tests {
    use rustix::thread::{Pid, sched_setaffinity};

    use super::*;

    /// This thread stays on one core, as the faulting thread. The server starts on another core.
    #[test]
    fn fault_server_moves_to_the_faulting_threads_core() {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        for core in 0..cores.min(2) {
            let mut core_set = CpuSet::new();
            core_set.set(core);
            let affinity_before = rustix::thread::sched_getaffinity(None).unwrap();
            sched_setaffinity(None::<Pid>, &core_set).unwrap();
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let server = std::thread::spawn(move || {
                // The thread may run anywhere, and starts on another core.
                let mut other_cores = affinity_before;
                other_cores.unset(core);
                let _ = sched_setaffinity(None::<Pid>, &other_cores);
                CoreFollower::default().on_fault(thread);
                rustix::thread::sched_getcpu()
            });
            assert_eq!(server.join().unwrap(), core);
            sched_setaffinity(None::<Pid>, &affinity_before).unwrap();
        }
    }

    #[test]
    fn ended_thread_has_no_core() {
        assert_eq!(last_core_of(u32::MAX), None);
    }
}
