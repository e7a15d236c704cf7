//! Advice and think times of a process with listed reads.
//!
//! A process thinks before each listed read. Its advice of that time is given at its own moments in
//! it. Advice behind the last read counts from the end of that read.

use std::collections::{BTreeMap, VecDeque};

use readpath_core::readahead::Advice;
use readpath_core::unit::Time;

use super::super::FileId;
use super::Process;

/// Advice of a process that has no job file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenAdvice {
    /// Number of the process's reads that begin before it.
    pub reads_before: usize,
    /// Time from the start of the think time before the next read.
    pub think_time: Time,
    /// File of the advice.
    pub file: FileId,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The advice.
    pub advice: Advice,
}

/// Advice that the runner gives now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueAdvice {
    /// The advice.
    pub given: GivenAdvice,
    /// True if the process closes the file afterwards: no later read uses it, nor does the next
    /// advice.
    pub closes: bool,
}

/// Advice of a process, in order.
#[derive(Debug, Default)]
pub(super) struct AdviceQueue {
    /// Advice that is not due yet, the next one last.
    waiting: Vec<GivenAdvice>,
    /// Advice that is due and that the runner has not taken, in order.
    due: VecDeque<GivenAdvice>,
    /// Start of the present think time.
    think_begin: Option<Time>,
    /// Number of listed reads before the first operation; 0 without advice.
    read_count: usize,
    /// Index of the last listed read of each file.
    last_read_indices: BTreeMap<FileId, usize>,
    /// The kernel's readahead window, in bytes.
    window_bytes: u64,
}

impl Process {
    /// Adds advice to the listed reads ([`Process::set_reads`] comes first), in the order in which
    /// it is given. Each read must have a think time, from whose start the time of its advice
    /// counts. `window_bytes` is the kernel's readahead window.
    pub(crate) fn set_advice(&mut self, mut advice: Vec<GivenAdvice>, window_bytes: u64) {
        advice.reverse();
        let due = VecDeque::with_capacity(advice.len());
        let reads = self.remaining_reads.as_deref().unwrap_or_default();
        // The next read is the last entry. A later read replaces the index of an earlier one.
        let last_read_indices =
            reads.iter().rev().enumerate().map(|(index, read)| (read.file, index)).collect();
        self.advice = AdviceQueue {
            waiting: advice,
            due,
            think_begin: None,
            read_count: reads.len(),
            last_read_indices,
            window_bytes,
        };
    }

    /// Removes and returns the next advice that is due before the action that
    /// [`next`](Process::next) has returned. `None` if there is none left.
    pub fn take_due_advice(&mut self) -> Option<DueAdvice> {
        let AdviceQueue { waiting, due, last_read_indices, .. } = &mut self.advice;
        let given = due.pop_front()?;
        let last_read_index = last_read_indices.get(&given.file);
        let is_read_later = last_read_index.is_some_and(|&index| index >= given.reads_before);
        let is_advised_next =
            due.front().or(waiting.last()).is_some_and(|next| next.file == given.file);
        Some(DueAdvice { given, closes: !is_read_later && !is_advised_next })
    }

    /// Returns the kernel's readahead window in bytes, which limits one `WillNeed`. 0 without
    /// advice.
    pub const fn advice_window_bytes(&self) -> u64 {
        self.advice.window_bytes
    }

    /// Returns the end of the pause before the next listed read or before the next advice,
    /// whichever is earlier. Returns `None` if the read can begin: its pause is then removed, and
    /// all advice before it is due. The first call for a read, at the end of the read before it,
    /// starts the time. Until its end each call collects completions, and operations in flight
    /// continue.
    pub(super) fn poll_think_time(&mut self, now: Time) -> Option<Time> {
        let reads_left = self.remaining_reads.as_ref().map_or(0, Vec::len);
        // Without advice, `read_count` is 0, and so are the reads begun.
        let reads_begun = self.advice.read_count - reads_left.min(self.advice.read_count);
        let next_advice = |advice: &AdviceQueue| {
            advice.waiting.last().copied().filter(|advice| advice.reads_before <= reads_begun)
        };
        if next_advice(&self.advice).is_none() && self.think_times.is_empty() {
            return None;
        }
        let begin = *self.advice.think_begin.get_or_insert(now);
        while let Some(advice) = next_advice(&self.advice) {
            let end = begin + advice.think_time;
            if now < end {
                self.collect_completions(self.completed_not_collected);
                return Some(end);
            }
            self.advice.waiting.pop();
            self.advice.due.push_back(advice);
        }
        // Without a think time left, only advice behind the last read was waiting.
        let end = begin + *self.think_times.last()?;
        if now < end {
            self.collect_completions(self.completed_not_collected);
            return Some(end);
        }
        self.advice.think_begin = None;
        self.think_times.pop();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobFile;
    use crate::workload::{FileSource, GivenRead, NextAction, Workload};

    /// A recursion has a stack frame for each, and overflows the 2 MiB of a test thread.
    #[test]
    fn advice_of_one_time_needs_no_stack() {
        let jobs = JobFile::parse("[j]\nsize=4k\n").unwrap();
        let mut process =
            Workload::new(&jobs, FileSource::Modelled, 1).unwrap().processes.remove(0);
        let (file, offset, bytes) = (FileId(0), 0, 4096);
        process.set_reads(vec![GivenRead { file, offset, bytes }], vec![Time::ZERO]);
        let (reads_before, think_time, advice) = (0, Time::ZERO, Advice::Random);
        let given = GivenAdvice { reads_before, think_time, file, offset, bytes, advice };
        process.set_advice(vec![given; 1 << 17], u64::MAX);
        assert!(matches!(process.next(Time::ZERO), NextAction::Operation(_)));
        assert_eq!(std::iter::from_fn(|| process.take_due_advice()).count(), 1 << 17);
    }
}
