//! Advice of programs to the kernel on their future reads.
//!
//! A `task` is the kernel's number of a thread. Times are nanoseconds since the start of the
//! recording. A *queued* record is written once no earlier record can follow.

use readpath_trace::recording::{AdviceGiven, AdviceType, OFFSET_MAX, Record};

use super::super::event::SystemCall;
use super::super::maps::UNKNOWN;
use super::super::names::FileNames;
use super::{ActiveCall, TaskTracker};

impl<N: FileNames> TaskTracker<N> {
    /// Queues the record of an `fadvise64` or `readahead` call on a descriptor, if its file is
    /// known. A length of 0 means up to the end of the file.
    pub(super) fn on_fadvise(&mut self, at_ns: u64, task: u32, call: &ActiveCall, descriptor: u64) {
        let Some(state) = self.tasks.get(&task) else { return };
        let file_state = self.tables.file_state(state.table, descriptor);
        // No event of the page cache names the file (`None`).
        let Some(file) = self.file_number_of(at_ns, task, descriptor, &file_state, None) else {
            return;
        };
        // readahead(2) has the same arguments, without the advice.
        let [_, offset, bytes, advice, ..] = call.arguments;
        // A readahead of no bytes reads nothing. Advice of no bytes extends to the end of the file.
        if call.system_call == SystemCall::Readahead && bytes == 0 {
            return;
        }
        let hint = match (call.system_call, advice as i32) {
            (SystemCall::Readahead, _) | (_, libc::POSIX_FADV_WILLNEED) => AdviceType::WillNeed,
            (_, libc::POSIX_FADV_NORMAL) => AdviceType::Normal,
            (_, libc::POSIX_FADV_RANDOM) => AdviceType::Random,
            (_, libc::POSIX_FADV_SEQUENTIAL) => AdviceType::Sequential,
            (_, libc::POSIX_FADV_DONTNEED) => AdviceType::DontNeed,
            _ => AdviceType::Other,
        };
        let is_of_mapping = false;
        self.put_advice(at_ns, task, file, (offset, bytes), hint, is_of_mapping);
    }

    /// Queues the record of an `madvise` call on the file mapping at `address`. `behaviour` is the
    /// third argument of the call. Memory without a known file has no record. The record names the
    /// file at `address` for all `bytes` bytes, even if the range contains further mappings.
    ///
    /// `MADV_POPULATE_READ` reads the pages, as WILLNEED does. Advice without a name here is
    /// recorded as `Other`, without its meaning.
    pub(super) fn on_madvise(
        &mut self,
        at_ns: u64,
        task: u32,
        process: u32,
        (address, bytes): (u64, u64),
        behaviour: u64,
    ) {
        // Advice of no bytes on memory has no effect. On a file it extends to the end.
        if bytes == 0 {
            return;
        }
        // The part of the mapping from `address` on, so its offset is the one at `address`.
        let mappings = self.maps.mappings_within(process, address, address.saturating_add(1));
        let Some((_, mapping)) = mappings.first().filter(|(_, mapping)| mapping.inode != UNKNOWN)
        else {
            return;
        };
        let (file, offset) = (mapping.file, mapping.offset);
        let hint = match behaviour as i32 {
            libc::MADV_NORMAL => AdviceType::Normal,
            libc::MADV_RANDOM => AdviceType::Random,
            libc::MADV_SEQUENTIAL => AdviceType::Sequential,
            libc::MADV_WILLNEED | libc::MADV_POPULATE_READ => AdviceType::WillNeed,
            libc::MADV_DONTNEED => AdviceType::DontNeed,
            _ => AdviceType::Other,
        };
        let is_of_mapping = true;
        self.put_advice(at_ns, task, file, (offset, bytes), hint, is_of_mapping);
    }

    /// Queues a record of advice on `bytes` bytes from `offset` of a file, cut at the largest
    /// offset of a recording. `is_of_mapping`: true for `madvise`.
    fn put_advice(
        &mut self,
        at_ns: u64,
        task: u32,
        file: u32,
        (offset, bytes): (u64, u64),
        hint: AdviceType,
        is_of_mapping: bool,
    ) {
        let Some(thread) = self.thread_number(task) else { return };
        let offset = offset.min(OFFSET_MAX);
        let bytes = bytes.min(OFFSET_MAX - offset);
        let advice = AdviceGiven { at_ns, thread, file, offset, bytes, hint, is_of_mapping };
        self.out.put(at_ns, Record::Advice(advice));
    }
}
