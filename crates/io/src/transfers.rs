//! Transfers in flight: each is continued after early stops of the kernel until it ends, and then
//! reported once.
//!
//! A transfer occupies a slot from its start until its report. Its request id identifies it
//! everywhere and is also the backend's token. The number of slots is the depth, however many ids
//! requests have. Invariants:
//!
//! 1. An occupied slot has exactly one transfer with the backend.
//! 2. Its segments describe the memory still to be moved.
//! 3. A cancelled transfer is not continued: it ends as `Cancelled`, unless the kernel had finished
//!    it before.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use readpath_core::request::{Completion, DeviceError, Op, Outcome, RequestId};
use readpath_core::unit::Time;

use crate::answer::{AGAIN_MAX, AnsweredTransfer, Verdict, verdict};
use crate::backend::{Backend, BackendError, KernelAnswer, Sleep, Transfer, carry};
use crate::clock::Clock;
use crate::target::{KeptOpen, Mode, Target};

/// An open file with the data needed to judge an answer.
///
/// Keeps the file open: backends refer to it by descriptor number, which the next opened file would
/// reuse.
#[derive(Clone, Debug)]
pub(crate) struct TransferFile {
    fd: RawFd,
    open: KeptOpen,
    file_bytes: u64,
    alignment_bytes: u64,
    is_direct: bool,
}

impl TransferFile {
    /// Describes `target`, which stays open until its transfers have ended.
    pub(crate) fn of(target: &Target) -> TransferFile {
        TransferFile {
            fd: target.transfer_fd(),
            open: target.keep_open(),
            file_bytes: target.bytes(),
            alignment_bytes: u64::from(target.alignment_bytes()),
            is_direct: target.mode() == Mode::Direct,
        }
    }

    pub(crate) fn set_bytes(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
    }
}

/// Arguments of [`Transfers::start`].
#[derive(Clone, Debug)]
pub(crate) struct TransferStart {
    /// Id for the report; unique among transfers in flight.
    pub id: RequestId,
    pub place: TransferFile,
    pub op: Op,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Number of bytes; equal to the total of the segments.
    pub bytes: u64,
}

/// State of a transfer: the next request to the kernel, and the results so far.
#[derive(Debug)]
pub(crate) struct Progress {
    fd: RawFd,
    /// Keeps `fd` open from the start of the transfer to its end.
    open: Option<KeptOpen>,
    is_direct: bool,
    /// The transfer and the kernel's answers so far.
    asked: AnsweredTransfer,
    /// Memory still to be moved, in file order.
    segments: Vec<libc::iovec>,
    /// True after a cancellation.
    is_withdrawn: bool,
}

// SAFETY: the addresses in the segments are for the kernel alone. The starter guarantees their
// validity until the transfer ends, on any thread.
unsafe impl Send for Progress {}

impl Progress {
    /// State of an unused slot.
    fn idle() -> Progress {
        let asked = AnsweredTransfer {
            op: Op::Read,
            offset: 0,
            bytes: 0,
            bytes_before: 0,
            agains: 0,
            file_bytes: 0,
            alignment_bytes: 1,
        };
        let segments = Vec::with_capacity(4);
        Progress { fd: -1, open: None, is_direct: false, asked, segments, is_withdrawn: false }
    }

    /// Starts a transfer over the memory of `segments`.
    pub(crate) fn begun(start: TransferStart, segments: Vec<libc::iovec>) -> Progress {
        let mut progress = Progress { segments, ..Progress::idle() };
        progress.begin(start);
        progress
    }

    /// Resets the state for a new transfer; `segments` must already describe its memory.
    fn begin(&mut self, start: TransferStart) {
        debug_assert_eq!(
            self.segments.iter().map(|segment| segment.iov_len as u64).sum::<u64>(),
            start.bytes
        );
        self.fd = start.place.fd;
        self.open = Some(start.place.open);
        self.is_direct = start.place.is_direct;
        self.is_withdrawn = false;
        self.asked = AnsweredTransfer {
            op: start.op,
            offset: start.offset,
            bytes: start.bytes,
            bytes_before: 0,
            agains: 0,
            file_bytes: start.place.file_bytes,
            alignment_bytes: start.place.alignment_bytes,
        };
    }

    /// Returns the next request to the kernel, identified by `token`.
    fn next(&self, token: u64) -> Transfer<'_> {
        Transfer {
            token,
            fd: self.fd,
            op: self.asked.op,
            offset: self.asked.offset + self.asked.bytes_before,
            segments: &self.segments,
            is_direct: self.is_direct,
        }
    }

    /// Processes an answer of the kernel. Returns the outcome, or `None` if another request must
    /// follow.
    fn answered(&mut self, raw: i32) -> Option<Outcome> {
        match verdict(raw, &self.asked) {
            // A thread that exits takes its queued requests with it: repeat, up to a limit.
            Verdict::Over(Outcome::Failed(DeviceError::Cancelled))
                if !self.is_withdrawn && self.asked.agains < AGAIN_MAX =>
            {
                self.asked.agains += 1;
                None
            }
            Verdict::Over(outcome) => Some(outcome),
            Verdict::Again | Verdict::Continue { .. } if self.is_withdrawn => {
                Some(Outcome::Failed(DeviceError::Cancelled))
            }
            Verdict::Again => {
                self.asked.agains += 1;
                None
            }
            Verdict::Continue { bytes } => {
                self.asked.agains = 0;
                self.asked.bytes_before += bytes;
                skip(&mut self.segments, bytes as usize);
                None
            }
        }
    }

    /// Executes it to its end on the calling thread.
    ///
    /// # Safety
    /// As [`Transfers::start`], for the duration of the call.
    pub(crate) unsafe fn carry(&mut self) -> Outcome {
        loop {
            let Transfer { fd, op, offset, segments, .. } = self.next(0);
            // SAFETY: the caller's contract.
            let raw = unsafe { carry(fd, op, offset, segments) };
            if let Some(outcome) = self.answered(raw) {
                return outcome;
            }
        }
    }

    /// Returns the segment list for reuse.
    pub(crate) fn into_segments(self) -> Vec<libc::iovec> {
        self.segments
    }
}

/// A transfer that has ended, with the value kept for it.
#[derive(Debug)]
pub(crate) struct EndedTransfer<K> {
    pub completion: Completion,
    pub op: Op,
    /// Number of bytes moved; 0 after a failure.
    pub bytes: u64,
    /// Value given to `start`.
    pub kept: K,
}

/// All transfers in flight; `K` is the value kept for each until it ends.
pub(crate) struct Transfers<K> {
    // Dropped before the slots, whose segments the kernel may refer to.
    backend: Box<dyn Backend>,
    slots: Vec<TransferSlot<K>>,
    /// Indices of free slots.
    free: Vec<u32>,
    /// Slot of each request in flight, by its id; grows if ids exceed the depth.
    slot_of: Vec<u32>,
    /// Scratch list of answers, kept for its capacity.
    answers: Vec<KernelAnswer>,
    /// Ended transfers that were not taken by `next_ended`.
    ended: VecDeque<EndedTransfer<K>>,
    clock: Clock,
    /// Time of the last check for answers: all earlier answers were taken.
    looked: Time,
    /// True if a transfer was queued again since the last reset.
    is_again: bool,
}

struct TransferSlot<K> {
    id: RequestId,
    progress: Progress,
    /// Present while the slot is occupied.
    kept: Option<K>,
}

impl<K> Transfers<K> {
    /// Creates slots for `depth` transfers over `backend`.
    pub(crate) fn over(backend: Box<dyn Backend>, depth: u32, clock: Clock) -> Transfers<K> {
        let slot = |_| TransferSlot { id: RequestId(0), progress: Progress::idle(), kept: None };
        Transfers {
            backend,
            slots: (0..depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            slot_of: vec![0; depth as usize],
            answers: Vec::with_capacity(depth as usize),
            ended: VecDeque::with_capacity(depth as usize),
            clock,
            looked: clock.now(),
            is_again: false,
        }
    }

    /// Reason if the backend was replaced since it was built.
    pub(crate) fn refused(&self) -> Option<BackendError> {
        self.backend.refused()
    }

    /// Number of transfers in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Number of further transfers that can start.
    pub(crate) fn room(&self) -> u32 {
        self.free.len() as u32
    }

    /// Starts a transfer; `describe` fills in its segments, in file order.
    ///
    /// # Safety
    /// The memory stays valid until the transfer comes out of `next_ended` or `self` is dropped.
    /// Until then no other code uses it (for a write: changes it). The transfer itself keeps the
    /// file open.
    ///
    /// # Panics
    /// The maximum of transfers is in flight.
    pub(crate) unsafe fn start(
        &mut self,
        start: TransferStart,
        kept: K,
        describe: impl FnOnce(&K, &mut Vec<libc::iovec>),
    ) {
        let index = self.free.pop().expect("no more requests than the depth are in flight");
        let name = start.id.0 as usize;
        if name >= self.slot_of.len() {
            self.slot_of.resize(name + 1, 0);
        }
        self.slot_of[name] = index;
        let slot = &mut self.slots[index as usize];
        slot.progress.segments.clear();
        describe(&kept, &mut slot.progress.segments);
        let id = start.id;
        slot.progress.begin(start);
        slot.id = id;
        slot.kept = Some(kept);
        self.queue(id);
    }

    /// Cancels a transfer if the kernel allows it; it is reported in any case.
    pub(crate) fn cancel(&mut self, id: RequestId) {
        let Some(&index) = self.slot_of.get(id.0 as usize) else { return };
        let slot = &mut self.slots[index as usize];
        if slot.id == id && slot.kept.is_some() && !slot.progress.is_withdrawn {
            slot.progress.is_withdrawn = true;
            self.backend.cancel(id.0.into());
        }
    }

    /// Submits started transfers and processes answers. Sleeps until a transfer ends or until
    /// `deadline`. Returns at once if `next_ended` has a result or no transfer is in flight.
    pub(crate) fn wait(&mut self, deadline: Option<Time>) -> Result<(), BackendError> {
        let sleep = match deadline {
            _ if !self.ended.is_empty() => Sleep::Never,
            Some(deadline) => Sleep::AtMost(self.clock.until(deadline)),
            None => Sleep::UntilAnswered,
        };
        self.exchange(sleep)
    }

    /// Returns the next completed transfer among the processed ones.
    pub(crate) fn next_ended(&mut self) -> Option<EndedTransfer<K>> {
        self.ended.pop_front()
    }

    /// Cancels all transfers in flight and waits until they have ended.
    pub(crate) fn drain(&mut self) {
        for index in 0..self.slots.len() {
            self.cancel(self.slots[index].id);
        }
        while self.in_flight() > 0 {
            if self.exchange(Sleep::UntilAnswered).is_err() {
                return;
            }
        }
    }

    /// Records that the owner has slept for answers until now: all answers found next have just
    /// arrived.
    pub(crate) fn watched(&mut self) {
        self.looked = self.clock.now();
    }

    /// Submits started transfers and processes answers. Repeated requests are submitted too,
    /// because the owner may sleep elsewhere from now on.
    pub(crate) fn exchange(&mut self, sleep: Sleep) -> Result<(), BackendError> {
        let is_demand = sleep != Sleep::Never && !self.backend.has_answers();
        self.is_again = false;
        self.take_in(is_demand, |backend, answers| backend.exchange(sleep, answers))?;
        while std::mem::take(&mut self.is_again) {
            self.take_in(false, |backend, answers| backend.exchange(Sleep::Never, answers))?;
        }
        Ok(())
    }

    /// Processes answers without a system call. True if repeated requests must be submitted.
    pub(crate) fn collect(&mut self) -> Result<bool, BackendError> {
        self.is_again = false;
        let mut has_queued = false;
        self.take_in(false, |backend, answers| {
            has_queued = backend.collect(answers)?;
            Ok(())
        })?;
        Ok(has_queued || self.is_again)
    }

    /// Takes answers from the backend and processes them. An awaited answer has just arrived;
    /// others arrived after the last check.
    fn take_in(
        &mut self,
        is_demand: bool,
        take: impl FnOnce(&mut dyn Backend, &mut Vec<KernelAnswer>) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let mut answers = std::mem::take(&mut self.answers);
        let result = take(&mut *self.backend, &mut answers);
        let now = self.clock.now();
        let looked = std::mem::replace(&mut self.looked, now);
        let not_before = if is_demand { now } else { looked };
        for answer in answers.drain(..) {
            self.handle_answer(now, not_before, answer);
        }
        self.answers = answers;
        result
    }

    /// Completes the answered transfer, or queues its next request.
    fn handle_answer(&mut self, now: Time, not_before: Time, answer: KernelAnswer) {
        let id = RequestId(answer.token as u32);
        let index = self.slot_of[id.0 as usize];
        let slot = &mut self.slots[index as usize];
        let Some(outcome) = slot.progress.answered(answer.raw) else {
            self.is_again = true;
            return self.queue(id);
        };
        let kept = slot.kept.take().expect("only a slot that is taken is answered");
        slot.progress.open = None;
        let AnsweredTransfer { op, bytes, .. } = slot.progress.asked;
        let completion = Completion { id, at: now, not_before, outcome };
        let bytes = match outcome {
            Outcome::Done => bytes,
            Outcome::Short { bytes } => bytes,
            Outcome::Failed(_) => 0,
        };
        self.ended.push_back(EndedTransfer { completion, op, bytes, kept });
        self.free.push(index);
    }

    /// Passes the rest of a transfer to the backend.
    fn queue(&mut self, id: RequestId) {
        let index = self.slot_of[id.0 as usize];
        let transfer = self.slots[index as usize].progress.next(id.0.into());
        // SAFETY: the memory is valid until the transfer ends (the contract of `start`). The slot
        // keeps the file open as long, and its segments do not move until then.
        unsafe { self.backend.queue(transfer) };
    }
}

impl<K> Drop for Transfers<K> {
    fn drop(&mut self) {
        self.drain();
        if self.in_flight() > 0 {
            // The backend cannot find out when the kernel has finished with them: leak them.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

/// Removes the first `bytes` bytes from a segment list.
fn skip(segments: &mut Vec<libc::iovec>, bytes: usize) {
    let mut left = bytes;
    let whole = segments.iter().take_while(|segment| {
        let is_whole = segment.iov_len <= left;
        left -= if is_whole { segment.iov_len } else { 0 };
        is_whole
    });
    let count = whole.count();
    segments.drain(..count);
    if left > 0 {
        let first = &mut segments[0];
        first.iov_base = first.iov_base.wrapping_byte_add(left);
        first.iov_len -= left;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::target::{Direct, OpenOptions};

    /// A backend with prepared answers, one for each queued transfer. It records its requests.
    struct Scripted {
        raws: VecDeque<i32>,
        asked: Arc<Mutex<Vec<(u64, u64)>>>,
        answers: Vec<KernelAnswer>,
    }

    impl Backend for Scripted {
        unsafe fn queue(&mut self, transfer: Transfer<'_>) {
            let bytes = transfer.segments.iter().map(|segment| segment.iov_len as u64).sum();
            self.asked.lock().unwrap().push((transfer.offset, bytes));
            let raw = self.raws.pop_front().expect("an answer for each transfer");
            self.answers.push(KernelAnswer { token: transfer.token, raw });
        }

        fn cancel(&mut self, _token: u64) {}

        fn exchange(
            &mut self,
            _: Sleep,
            answers: &mut Vec<KernelAnswer>,
        ) -> Result<(), BackendError> {
            answers.append(&mut self.answers);
            Ok(())
        }
    }

    const INTERRUPTED: i32 = -4; // EINTR in errno(3)
    const AGAIN: i32 = -11; // EAGAIN
    const IO_ERROR: i32 = -5; // EIO

    /// Reads 16 KiB at 4 KiB with a backend that answers `raws`. Returns the outcome, and the
    /// offsets and sizes of the backend's requests.
    fn read(raws: &[i32], is_withdrawn: bool) -> (Outcome, u64, Vec<(u64, u64)>) {
        let path = std::env::current_exe().expect("this program has a file");
        let options = OpenOptions { direct: Direct::Never, is_writable: false };
        let target = Target::open(&path, options).unwrap();
        assert!(target.bytes() > 20_480, "the file is larger than what is read of it");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let raws = raws.iter().copied().collect();
        let script = Scripted { raws, asked: Arc::clone(&asked), answers: Vec::new() };
        let mut transfers = Transfers::over(Box::new(script), 1, Clock::start());
        let place = TransferFile::of(&target);
        let start =
            TransferStart { id: RequestId(9), place, op: Op::Read, offset: 4_096, bytes: 16_384 };
        // SAFETY: the scripted backend accesses no memory.
        unsafe { transfers.start(start, (), |(), list| *list = pieces(&[4_096, 12_288])) };
        assert_eq!((transfers.in_flight(), transfers.room()), (1, 0));
        if is_withdrawn {
            transfers.cancel(RequestId(9));
        }
        let ended = loop {
            transfers.wait(None).unwrap();
            if let Some(ended) = transfers.next_ended() {
                break ended;
            }
        };
        assert_eq!(ended.completion.id, RequestId(9));
        assert_eq!((transfers.in_flight(), transfers.room()), (0, 1));
        let asked = asked.lock().unwrap().clone();
        (ended.completion.outcome, ended.bytes, asked)
    }

    /// A read that is answered at once and found 2 ms later. Returns its completion, with the times
    /// of the last check before it and of the check that found it.
    fn looked_at(sleep: Sleep) -> (Time, Completion, Time) {
        let path = std::env::current_exe().expect("this program has a file");
        let options = OpenOptions { direct: Direct::Never, is_writable: false };
        let target = Target::open(&path, options).unwrap();
        let raws = VecDeque::from([16_384]);
        let script = Scripted { raws, asked: Arc::default(), answers: Vec::new() };
        let clock = Clock::start();
        let mut transfers = Transfers::over(Box::new(script), 1, clock);
        let place = TransferFile::of(&target);
        let start =
            TransferStart { id: RequestId(9), place, op: Op::Read, offset: 0, bytes: 16_384 };
        transfers.watched();
        let before = clock.now();
        // SAFETY: the scripted backend accesses no memory.
        unsafe { transfers.start(start, (), |(), list| *list = pieces(&[16_384])) };
        std::thread::sleep(std::time::Duration::from_millis(2));
        transfers.exchange(sleep).unwrap();
        (before, transfers.next_ended().expect("it was answered").completion, clock.now())
    }

    #[test]
    fn an_answer_came_between_two_looks_and_one_that_was_slept_for_when_it_was_seen() {
        let (before, unseen, after) = looked_at(Sleep::Never);
        assert!(unseen.not_before <= before && before < unseen.at && unseen.at <= after);
        let (before, demand, _) = looked_at(Sleep::UntilAnswered);
        assert_eq!(demand.not_before, demand.at);
        assert!(before < demand.at);
    }

    #[test]
    fn what_stops_in_the_middle_is_continued_from_there() {
        let (outcome, bytes, asked) = read(&[5_000, INTERRUPTED, 11_000, AGAIN, 384], false);
        assert_eq!((outcome, bytes), (Outcome::Done, 16_384));
        let rest = (4_096 + 16_000, 384);
        assert_eq!(asked, [(4_096, 16_384), (9_096, 11_384), (9_096, 11_384), rest, rest]);
    }

    #[test]
    fn an_end_that_comes_early_is_short_by_what_was_moved() {
        let (outcome, bytes, asked) = read(&[5_000, 0], false);
        assert_eq!((outcome, bytes), (Outcome::Short { bytes: 5_000 }, 5_000));
        assert_eq!(asked.len(), 2);
    }

    #[test]
    fn an_error_after_some_bytes_fails_the_whole() {
        let (outcome, bytes, _) = read(&[5_000, IO_ERROR], false);
        assert_eq!((outcome, bytes), (Outcome::Failed(DeviceError::Medium), 0));
    }

    #[test]
    fn what_ends_with_the_thread_that_asked_is_asked_again() {
        const CANCELLED: i32 = -125; // ECANCELED
        let (outcome, _, asked) = read(&[CANCELLED, 16_384], false);
        assert_eq!((outcome, asked.len()), (Outcome::Done, 2));
        let (outcome, _, asked) = read(&[CANCELLED; 65], false);
        assert_eq!((outcome, asked.len()), (Outcome::Failed(DeviceError::Cancelled), 65));
        let (outcome, _, asked) = read(&[CANCELLED], true);
        assert_eq!((outcome, asked.len()), (Outcome::Failed(DeviceError::Cancelled), 1));
    }

    #[test]
    fn what_is_withdrawn_is_not_continued_but_may_have_been_done() {
        let cancelled = Outcome::Failed(DeviceError::Cancelled);
        for raw in [5_000, INTERRUPTED] {
            let (outcome, bytes, asked) = read(&[raw], true);
            assert_eq!((outcome, bytes, asked.len()), (cancelled, 0, 1));
        }
        assert_eq!(read(&[16_384], true).0, Outcome::Done);
    }

    fn pieces(lengths: &[usize]) -> Vec<libc::iovec> {
        let piece = |&iov_len| libc::iovec { iov_base: std::ptr::null_mut(), iov_len };
        lengths.iter().map(piece).collect()
    }

    #[test]
    fn skipping_ends_within_at_the_end_of_and_beyond_a_piece() {
        for (bytes, left, moved) in [
            (0, &[100, 200][..], 0),
            (40, &[60, 200][..], 40),
            (100, &[200][..], 0),
            (150, &[150][..], 50),
        ] {
            let mut segments = pieces(&[100, 200]);
            skip(&mut segments, bytes);
            let lengths: Vec<usize> = segments.iter().map(|segment| segment.iov_len).collect();
            assert_eq!(lengths, left);
            assert_eq!(segments[0].iov_base as usize, moved);
        }
    }
}
