//! Advice of a recorded program, at its position between the reads.
//!
//! A recording has no descriptor of an advice. As in `explain`, a hint about the order of accesses
//! holds for all reads of its file by the same way: system calls, or a mapping. Each thread with
//! such reads repeats it. Other advice is repeated by its own thread. Advice after the last read of
//! the program has no effect on a read.

use std::collections::BTreeMap;

use readpath_core::readahead::Advice;
use readpath_core::unit::Time;
use readpath_sim::job::JobEngine;
use readpath_sim::workload::{FileId, GivenAdvice, ReadList, WorkloadFile};

use crate::recording::{AdviceGiven, AdviceType, ReadRecord};

/// Reads of one thread, as the position of its advice needs them.
pub(super) struct ThreadEvents {
    /// Begins of the reads, in order.
    begins: Vec<u64>,
    /// Ends of the reads, in order.
    ends: Vec<u64>,
    /// True if the replayed reads are touches of mappings.
    is_of_mappings: bool,
    /// First and last offset of the replayed reads of each file.
    offsets: BTreeMap<FileId, (u64, u64)>,
}

impl ThreadEvents {
    /// Events of these reads, in any order, which are replayed by `list`.
    pub(super) fn new(reads: &[ReadRecord], list: &ReadList) -> ThreadEvents {
        let mut begins: Vec<u64> = reads.iter().map(|read| read.begin_ns).collect();
        let mut ends: Vec<u64> = reads.iter().map(|read| read.end_ns).collect();
        begins.sort_unstable();
        ends.sort_unstable();
        let mut offsets = BTreeMap::new();
        for read in &list.reads {
            let (first, last) = offsets.entry(read.file).or_insert((read.offset, read.offset));
            *first = read.offset.min(*first);
            *last = read.offset.max(*last);
        }
        let is_of_mappings = list.engine == JobEngine::Mmap;
        ThreadEvents { begins, ends, is_of_mappings, offsets }
    }

    /// Returns true if a hint about the order of accesses holds for all replayed reads of `file`,
    /// of which there is at least one. A hint on a descriptor holds for the whole file.
    fn is_under(&self, hint: &AdviceGiven, file: FileId) -> bool {
        let Some(&(first, last)) = self.offsets.get(&file) else { return false };
        self.is_of_mappings == hint.is_of_mapping
            && (!hint.is_of_mapping || hint.offset <= first && last < hint.end())
    }

    /// Returns the number of reads that begin before `at_ns`, and the last event until then. A call
    /// is recorded at its end: a read that begins at this time follows it.
    fn position(&self, at_ns: u64) -> (usize, u64) {
        let begun = self.begins.partition_point(|&begin_ns| begin_ns < at_ns);
        let ended = self.ends.partition_point(|&end_ns| end_ns <= at_ns);
        let last = |times: &[u64]| times.last().copied().unwrap_or(0);
        (begun, last(&self.begins[..begun]).max(last(&self.ends[..ended])))
    }
}

/// Advice of all threads.
#[derive(Debug, Default)]
pub(super) struct ThreadAdvice {
    /// Advice of each thread with reads, then of each thread without.
    pub by_thread: Vec<Vec<GivenAdvice>>,
    /// Number of advices that are not repeated, without those that would change nothing and those
    /// from the start of the last read on.
    pub left_out: u64,
}

/// Returns the replayed form of `advice`, which is in the order of its times. Advice from the start
/// of the last read of all threads on is ignored. `threads` has the number and the events of each
/// thread with reads, `file_indexes` the index in `files` by file number.
pub(super) fn thread_advice(
    advice: &[AdviceGiven],
    threads: &[(u32, ThreadEvents)],
    file_indexes: &BTreeMap<u32, usize>,
    files: &[WorkloadFile],
) -> ThreadAdvice {
    let last_begins = threads.iter().filter_map(|(_, events)| events.begins.last());
    let last_begin_ns = last_begins.copied().max().unwrap_or(0);
    let mut by_thread = vec![Vec::new(); threads.len()];
    // Advice of the threads without reads. No read separates it: all times have one start.
    let mut advisers: BTreeMap<u32, Vec<GivenAdvice>> = BTreeMap::new();
    // The last repeated hint by thread and file. An equal one changes nothing.
    let mut last_hints: BTreeMap<(usize, usize), AdviceType> = BTreeMap::new();
    let mut left_out = 0;
    for recorded in advice.iter().filter(|advice| advice.at_ns < last_begin_ns) {
        let Some(&file_index) = file_indexes.get(&recorded.file) else {
            left_out += 1;
            continue;
        };
        let given = |(reads_before, since_ns)| GivenAdvice {
            reads_before,
            think_time: Time(recorded.at_ns.saturating_sub(since_ns)),
            file: FileId(file_index as u32),
            offset: recorded.offset,
            bytes: recorded.bytes_within(files[file_index].bytes),
            advice: replayed_advice(recorded.hint),
        };
        match recorded.hint {
            // It removes pages from a page table, and none from the page cache.
            AdviceType::DontNeed if recorded.is_of_mapping => {}
            AdviceType::WillNeed | AdviceType::DontNeed => {
                match threads.iter().position(|(thread, _)| *thread == recorded.thread) {
                    Some(index) => {
                        by_thread[index].push(given(threads[index].1.position(recorded.at_ns)));
                    }
                    None => advisers.entry(recorded.thread).or_default().push(given((0, 0))),
                }
            }
            AdviceType::Normal | AdviceType::Random | AdviceType::Sequential => {
                let mut is_repeated = false;
                for (index, (thread, events)) in threads.iter().enumerate() {
                    if events.is_under(recorded, FileId(file_index as u32)) {
                        is_repeated = true;
                        let last_hint = last_hints.insert((index, file_index), recorded.hint);
                        if last_hint == Some(recorded.hint) {
                            continue;
                        }
                        let (reads_before, since_ns) = events.position(recorded.at_ns);
                        // Another thread does not wait for the advice.
                        let is_own = *thread == recorded.thread;
                        let since_ns = if is_own { since_ns } else { recorded.at_ns };
                        by_thread[index].push(given((reads_before, since_ns)));
                    }
                }
                left_out += u64::from(!is_repeated);
            }
            AdviceType::Other => left_out += 1,
        }
    }
    by_thread.extend(advisers.into_values());
    ThreadAdvice { by_thread, left_out }
}

/// Returns the advice of a recorded type. `Other` has no effect that can be repeated.
fn replayed_advice(hint: AdviceType) -> Advice {
    match hint {
        AdviceType::Normal | AdviceType::Other => Advice::Normal,
        AdviceType::Random => Advice::Random,
        AdviceType::Sequential => Advice::Sequential,
        AdviceType::WillNeed => Advice::WillNeed,
        AdviceType::DontNeed => Advice::DontNeed,
    }
}
