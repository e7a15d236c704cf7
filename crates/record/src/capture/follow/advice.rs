//! Advice of programs to the kernel on their future reads.

use readpath_trace::recording::{AdviceGiven, AdviceType, OFFSET_MAX, Record};

use super::super::event::SystemCall;
use super::super::maps::UNKNOWN;
use super::super::names::FileNames;
use super::{InCall, TaskTracker};

impl<N: FileNames> TaskTracker<N> {
    /// Records `fadvise64` and `readahead`.
    pub(super) fn fadvise(&mut self, at: u64, number: u32, entered: &InCall, descriptor: u64) {
        let Some(task) = self.tasks.get(&number) else { return };
        let held = self.tables.file_state(task.table, descriptor);
        let Some(file) = self.file_of(at, number, descriptor, &held, None) else { return };
        let [_, offset, bytes, advice, ..] = entered.arguments;
        let hint = match (entered.call, advice as i32) {
            (SystemCall::Readahead, _) | (_, libc::POSIX_FADV_WILLNEED) => AdviceType::WillNeed,
            (_, libc::POSIX_FADV_NORMAL) => AdviceType::Normal,
            (_, libc::POSIX_FADV_RANDOM) => AdviceType::Random,
            (_, libc::POSIX_FADV_SEQUENTIAL) => AdviceType::Sequential,
            (_, libc::POSIX_FADV_DONTNEED) => AdviceType::DontNeed,
            _ => AdviceType::Other,
        };
        self.put_advice(at, number, file, (offset, bytes), hint, false);
    }

    /// Records `madvise` on a mapping of a file.
    pub(super) fn madvise(
        &mut self,
        at: u64,
        number: u32,
        process: u32,
        (address, bytes): (u64, u64),
        behaviour: u64,
    ) {
        let all = self.maps.within(process, address, address.saturating_add(1));
        let Some((_, mapping)) = all.first().filter(|(_, it)| it.inode != UNKNOWN) else { return };
        let (file, offset) = (mapping.file, mapping.offset);
        let hint = match behaviour as i32 {
            libc::MADV_NORMAL => AdviceType::Normal,
            libc::MADV_RANDOM => AdviceType::Random,
            libc::MADV_SEQUENTIAL => AdviceType::Sequential,
            libc::MADV_WILLNEED | libc::MADV_POPULATE_READ => AdviceType::WillNeed,
            libc::MADV_DONTNEED => AdviceType::DontNeed,
            _ => AdviceType::Other,
        };
        self.put_advice(at, number, file, (offset, bytes), hint, true);
    }

    fn put_advice(
        &mut self,
        at_ns: u64,
        number: u32,
        file: u32,
        (offset, bytes): (u64, u64),
        hint: AdviceType,
        is_of_mapping: bool,
    ) {
        let Some(thread) = self.thread(number) else { return };
        let offset = offset.min(OFFSET_MAX);
        let bytes = bytes.min(OFFSET_MAX - offset);
        let advice = AdviceGiven { at_ns, thread, file, offset, bytes, hint, is_of_mapping };
        self.out.put(at_ns, Record::Advice(advice));
    }
}
