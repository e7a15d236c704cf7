//! Page faults on a program's memory within its system calls, found by samples.
//!
//! A call that copies from or to the program's memory may fault on it, as a `write` of mapped
//! pages. `/proc` then has the call, and not the fault. The kernel's function in which the thread
//! sleeps is a wait for a page. Some calls wait in this function for pages of files themselves.
//! There the number of major faults of the thread decides. The kernel counts a fault at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use readpath_os::proc_text;

/// Evidence that a sleep in a system call is a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultEvidence {
    /// A wait for a page: a call of a socket or a pipe never waits for one itself.
    PageWait,
    /// A wait for a page, and a major fault since the last such wait of the thread.
    MajorFault,
}

/// A sleep of a thread that may be a page fault.
#[derive(Clone, Copy, Debug)]
struct SampledWait {
    /// True if the kernel names the function of the sleep, and it waits for a page.
    is_named: bool,
    /// Number of major faults of the thread.
    major_faults: u64,
    /// Number of times that the thread began to run, or `None` if the kernel does not count them.
    /// It is equal in two samples of one sleep.
    run_count: Option<u64>,
}

/// Last sampled wait of each thread that may have been a page fault.
#[derive(Debug, Default)]
pub(super) struct CallFaults {
    /// The wait, and true if it counts as a fault, by thread.
    last: BTreeMap<u32, (SampledWait, bool)>,
}

impl CallFaults {
    /// Returns true if a thread of a process waits for a page fault within its system call. Called
    /// once per sample.
    pub fn is_fault(&mut self, process: u32, thread: u32, evidence: FaultEvidence) -> bool {
        let wait = SampledWait::of_thread(process, thread);
        wait.is_some_and(|wait| self.is_fault_by(thread, wait, evidence))
    }

    /// Returns true if a wait is a page fault. With [`FaultEvidence::PageWait`], a wait in a named
    /// function is one at once. Otherwise a major fault since the thread's last sampled wait
    /// decides, or the result of an earlier sample of the same sleep. The first sampled wait of a
    /// thread is then none.
    fn is_fault_by(&mut self, thread: u32, wait: SampledWait, evidence: FaultEvidence) -> bool {
        let is_fault = match self.last.get(&thread) {
            _ if evidence == FaultEvidence::PageWait && wait.is_named => true,
            Some((last, was_fault)) => {
                let is_same_sleep = wait.run_count.is_some() && wait.run_count == last.run_count;
                (is_same_sleep && *was_fault) || wait.major_faults > last.major_faults
            }
            None => false,
        };
        self.last.insert(thread, (wait, is_fault));
        is_fault
    }

    /// Notes a page fault of a thread outside of its system calls. `major_faults` does not count it
    /// yet: a next wait with one fault more is none within its call.
    pub fn on_fault_outside(&mut self, thread: u32, major_faults: u64) {
        let wait = SampledWait { is_named: false, major_faults: major_faults + 1, run_count: None };
        self.last.insert(thread, (wait, false));
    }

    /// Forgets the threads that a search did not find.
    pub fn on_search(&mut self, found: &BTreeSet<u32>) {
        self.last.retain(|thread, _| found.contains(thread));
    }
}

impl SampledWait {
    /// Returns the wait of a thread that may be a page fault. Signals do not end such a sleep, and
    /// its function waits for a page or is hidden. `None` for a thread in another state, and for an
    /// ended one.
    fn of_thread(process: u32, thread: u32) -> Option<SampledWait> {
        let function = wait_function(process, thread);
        if function.as_ref().is_some_and(|function| !is_page_wait(function)) {
            return None;
        }
        let (state, major_faults) = state_and_major_faults(process, thread)?;
        if state != 'D' {
            return None;
        }
        // Time on a processor, time in the queue of one, number of time slices.
        let slices = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat"));
        let slices = slices.unwrap_or_default();
        let run_count = slices.split_ascii_whitespace().nth(2).and_then(|word| word.parse().ok());
        Some(SampledWait { is_named: function.is_some(), major_faults, run_count })
    }
}

/// Index of the number of major faults in `/proc/PID/stat`, among the fields after the name, of
/// which the first is the state.
pub(super) const MAJOR_FAULTS: usize = 9;

/// State of a thread as in `/proc/PID/stat`, and its number of major faults: `D` in a wait that
/// signals do not end, `S` in another. `None` if the thread has ended.
pub(super) fn state_and_major_faults(process: u32, thread: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).ok()?;
    let mut fields = proc_text::stat_fields(&stat)?;
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(MAJOR_FAULTS - 1)?.parse().ok()?))
}

/// Name of the kernel's function in which a thread sleeps, from `/proc`. `None` if the thread runs,
/// or if the kernel hides the name.
pub(super) fn wait_function(process: u32, thread: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{process}/task/{thread}/wchan")).ok()?;
    Some(name).filter(|name| !name.is_empty() && name != "0")
}

/// Returns true if a function of the kernel waits for a page of the page cache. Names are of Linux
/// 5.10 to 6.18.
fn is_page_wait(function: &str) -> bool {
    const NAMES: [&str; 6] =
        ["folio_wait_", "__folio_lock", "wait_on_page_", "__lock_page", "filemap_", "lock_folio_"];
    NAMES.iter().any(|name| function.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(major_faults: u64, run_count: u64) -> SampledWait {
        SampledWait { is_named: true, major_faults, run_count: Some(run_count) }
    }

    /// A socket waits for the page cache only in a fault on the memory that is sent.
    #[test]
    fn page_wait_below_a_socket_is_a_fault() {
        let mut faults = CallFaults::default();
        assert!(faults.is_fault_by(1, wait(0, 10), FaultEvidence::PageWait));
    }

    /// Faults take 10 ms and samples come every 2 ms: the count rises at the end of a fault, and
    /// each later sample of the next sleep is of a fault too.
    #[test]
    fn page_wait_below_a_write_is_a_fault_while_major_faults_rise() {
        let mut faults = CallFaults::default();
        let samples = [
            // The first sample has no earlier count.
            ((5, 10), false),
            ((5, 10), false),
            ((6, 11), true),
            ((6, 11), true),
            ((7, 12), true),
            // A write that waits for the rest of its page.
            ((7, 13), false),
            ((7, 13), false),
        ];
        for (index, ((major_faults, runs), expected)) in samples.into_iter().enumerate() {
            let sample = wait(major_faults, runs);
            let is_fault = faults.is_fault_by(1, sample, FaultEvidence::MajorFault);
            assert_eq!(is_fault, expected, "sample {index}");
        }
    }

    /// In each round the program touches a cold mapped page, which is fault 6, and writes to a file
    /// with `O_DSYNC`. The kernel counts the fault before the write waits. The next count is of a
    /// fault within the write.
    #[test]
    fn fault_outside_of_a_call_is_none_within_the_next_write() {
        let mut faults = CallFaults::default();
        let is_fault =
            |faults: &mut CallFaults, wait| faults.is_fault_by(1, wait, FaultEvidence::MajorFault);
        assert!(!is_fault(&mut faults, wait(5, 10)));
        faults.on_fault_outside(1, 5);
        assert!(!is_fault(&mut faults, wait(6, 12)));
        assert!(is_fault(&mut faults, wait(7, 13)));
        // A sleep outside ends the fault within the call, also with an equal count of runs.
        faults.on_fault_outside(1, 7);
        assert!(!is_fault(&mut faults, wait(8, 13)));
    }

    /// Without a name, the number of major faults decides for sockets, too.
    #[test]
    fn sleep_in_a_hidden_function_is_a_fault_while_major_faults_rise() {
        let mut faults = CallFaults::default();
        let hidden =
            |major_faults| SampledWait { is_named: false, ..wait(major_faults, major_faults) };
        assert!(!faults.is_fault_by(1, hidden(5), FaultEvidence::PageWait));
        assert!(faults.is_fault_by(1, hidden(6), FaultEvidence::PageWait));
    }

    /// Names as in proc(5), of Linux 6.18 and 5.10, the third of a write that is throttled.
    #[test]
    fn page_waits_are_known_by_their_functions() {
        assert!(is_page_wait("folio_wait_bit_common"));
        assert!(is_page_wait("wait_on_page_bit_common"));
        assert!(!is_page_wait("balance_dirty_pages"));
        assert!(!is_page_wait("unix_stream_read_generic"));
    }
}
