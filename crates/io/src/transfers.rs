//! Transfers in flight: each is continued after early stops of the kernel until it ends, and then
//! reported once.
//!
//! A transfer occupies a slot from its start until its report. Its request id identifies it
//! everywhere and is also the backend's *token*, by which an answer names its request. The number
//! of slots is the depth, independent of the largest id. Invariants:
//!
//! 1. An occupied slot has exactly one transfer with the backend.
//! 2. Its segments describe the memory still to be moved.
//! 3. A cancelled transfer is not continued: it ends as `Cancelled`, unless the kernel had finished
//!    it before.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use readpath_core::request::{Completion, DeviceError, Op, Outcome, RequestId};
use readpath_core::unit::Time;

use crate::backend::answer::{AnsweredTransfer, NextStep, RETRIES_MAX, next_step};
use crate::backend::{Backend, BackendError, KernelAnswer, Sleep, Transfer, execute_transfer};
use crate::os::clock::Clock;
use crate::target::{Mode, OpenDescriptor, Target};

/// An open file with the data needed to judge an answer.
///
/// Keeps the file open: backends refer to it by descriptor number, which the next opened file would
/// reuse.
#[derive(Clone, Debug)]
pub(crate) struct TransferFile {
    fd: RawFd,
    /// Keeps `fd` open.
    descriptor: OpenDescriptor,
    /// Length of the file.
    file_bytes: u64,
    /// Alignment of direct I/O; 1 without it.
    alignment_bytes: u64,
    /// True if the file is open for direct I/O.
    is_direct: bool,
}

impl TransferFile {
    /// Describes `target`, which stays open until its transfers have ended.
    pub(crate) fn from_target(target: &Target) -> TransferFile {
        TransferFile {
            fd: target.transfer_fd(),
            descriptor: target.open_descriptor(),
            file_bytes: target.bytes(),
            alignment_bytes: u64::from(target.alignment_bytes()),
            is_direct: target.mode() == Mode::Direct,
        }
    }

    /// Sets the length of the file in bytes, by which answers to later transfers are judged. With
    /// `u64::MAX` a short answer is continued at every length.
    pub(crate) fn set_bytes(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
    }
}

/// Arguments of [`Transfers::start`].
#[derive(Clone, Debug)]
pub(crate) struct TransferStart {
    /// Id for the report; unique among transfers in flight.
    pub id: RequestId,
    /// File of the bytes.
    pub file: TransferFile,
    /// Direction.
    pub op: Op,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Number of bytes; equal to the total of the segments.
    pub bytes: u64,
}

/// State of a transfer: the next request to the kernel, and the results so far.
#[derive(Debug)]
pub(crate) struct TransferProgress {
    /// Descriptor of the open file.
    fd: RawFd,
    /// Keeps `fd` open from the start of the transfer to its end.
    descriptor: Option<OpenDescriptor>,
    /// True if the file is open for direct I/O.
    is_direct: bool,
    /// The transfer and the kernel's answers so far.
    transfer: AnsweredTransfer,
    /// Memory still to be moved, in file order.
    segments: Vec<libc::iovec>,
    /// True after a cancellation.
    is_cancelled: bool,
}

// SAFETY: the addresses in the segments are for the kernel alone. The starter guarantees their
// validity until the transfer ends, on any thread.
unsafe impl Send for TransferProgress {}

impl TransferProgress {
    /// State of an unused slot. Its numbers have no meaning; -1 is no descriptor.
    fn unused() -> TransferProgress {
        let transfer = AnsweredTransfer {
            op: Op::Read,
            offset: 0,
            bytes: 0,
            bytes_before: 0,
            retries: 0,
            file_bytes: 0,
            alignment_bytes: 1,
        };
        // Initial capacity. A transfer with more segments grows the list.
        let segments = Vec::with_capacity(4);
        TransferProgress {
            fd: -1,
            descriptor: None,
            is_direct: false,
            transfer,
            segments,
            is_cancelled: false,
        }
    }

    /// Prepares a transfer over the memory of `segments`, which has as many bytes as `start`. It is
    /// [executed](TransferProgress::execute) by its owner, without a slot or a backend.
    pub(crate) fn new(start: TransferStart, segments: Vec<libc::iovec>) -> TransferProgress {
        let mut progress = TransferProgress { segments, ..TransferProgress::unused() };
        progress.reset(start);
        progress
    }

    /// Resets the state for a new transfer. The field `segments` must describe its memory already.
    fn reset(&mut self, start: TransferStart) {
        debug_assert_eq!(
            self.segments.iter().map(|segment| segment.iov_len as u64).sum::<u64>(),
            start.bytes
        );
        self.fd = start.file.fd;
        self.descriptor = Some(start.file.descriptor);
        self.is_direct = start.file.is_direct;
        self.is_cancelled = false;
        self.transfer = AnsweredTransfer {
            op: start.op,
            offset: start.offset,
            bytes: start.bytes,
            bytes_before: 0,
            retries: 0,
            file_bytes: start.file.file_bytes,
            alignment_bytes: start.file.alignment_bytes,
        };
    }

    /// Returns the next request to the kernel, identified by `token`.
    fn next_request(&self, token: u64) -> Transfer<'_> {
        Transfer {
            token,
            fd: self.fd,
            op: self.transfer.op,
            offset: self.transfer.offset + self.transfer.bytes_before,
            segments: &self.segments,
            is_direct: self.is_direct,
        }
    }

    /// Processes an answer of the kernel: `raw` is its number of bytes, or a negative errno.
    /// Returns the outcome, or `None` if another request must follow.
    fn on_answer(&mut self, raw: i32) -> Option<Outcome> {
        match next_step(raw, &self.transfer) {
            // The library has not cancelled it. If a thread exits, the kernel cancels the queued
            // requests that it submitted, though others wait for them. Repeat, up to the limit.
            NextStep::Ended(Outcome::Failed(DeviceError::Cancelled))
                if !self.is_cancelled && self.transfer.retries < RETRIES_MAX =>
            {
                self.transfer.retries += 1;
                None
            }
            NextStep::Ended(outcome) => Some(outcome),
            NextStep::Retry | NextStep::Continue { .. } if self.is_cancelled => {
                Some(Outcome::Failed(DeviceError::Cancelled))
            }
            // After `RETRIES_MAX` retries, `next_step` returns `Ended`.
            NextStep::Retry => {
                self.transfer.retries += 1;
                None
            }
            NextStep::Continue { bytes } => {
                // The limit is for consecutive answers without progress.
                self.transfer.retries = 0;
                self.transfer.bytes_before += bytes;
                skip_bytes(&mut self.segments, bytes as usize);
                None
            }
        }
    }

    /// Executes the transfer to its end on the calling thread, and returns its outcome.
    ///
    /// # Safety
    /// As [`Transfers::start`], for the duration of the call.
    pub(crate) unsafe fn execute(&mut self) -> Outcome {
        loop {
            let unused_token = 0;
            let Transfer { fd, op, offset, segments, .. } = self.next_request(unused_token);
            // SAFETY: the caller's contract.
            let raw = unsafe { execute_transfer(fd, op, offset, segments) };
            if let Some(outcome) = self.on_answer(raw) {
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
    /// Outcome, with the earliest and latest time of the end.
    pub completion: Completion,
    /// Direction.
    pub op: Op,
    /// Number of bytes moved; 0 after a failure.
    pub bytes: u64,
    /// Value given to `start`.
    pub context: K,
}

/// All transfers in flight; `K` is the value kept for each until it ends.
pub(crate) struct Transfers<K> {
    // Dropped before the slots, whose segments the kernel may refer to.
    backend: Box<dyn Backend>,
    /// One for each transfer that may be in flight.
    slots: Vec<TransferSlot<K>>,
    /// Indices of free slots.
    free_slots: Vec<u32>,
    /// Slot of each request in flight, by its id; grows if ids exceed the depth. The entries of
    /// other ids are out of date.
    slot_by_id: Vec<u32>,
    /// Scratch list of answers, kept for its capacity.
    answers: Vec<KernelAnswer>,
    /// Ended transfers that were not taken by `next_ended`.
    ended: VecDeque<EndedTransfer<K>>,
    /// Stamps the completions.
    clock: Clock,
    /// Time of the last check for answers, or of the owner's last wait. Answers found later have
    /// arrived since.
    last_check: Time,
    /// True if a transfer was queued again since the present exchange or collection began.
    has_requeued: bool,
}

/// A transfer in flight, or a free slot.
struct TransferSlot<K> {
    /// Id of the present transfer, or of the last one.
    id: RequestId,
    /// State of the transfer. A free slot keeps its segment list.
    progress: TransferProgress,
    /// Present while the slot is occupied.
    context: Option<K>,
}

impl<K> Transfers<K> {
    /// Creates slots for `depth` transfers over `backend`, all free. `clock` stamps completions.
    pub(crate) fn with_backend(
        backend: Box<dyn Backend>,
        depth: u32,
        clock: Clock,
    ) -> Transfers<K> {
        let slot = |_| TransferSlot {
            id: RequestId(0),
            progress: TransferProgress::unused(),
            context: None,
        };
        Transfers {
            backend,
            slots: (0..depth).map(slot).collect(),
            free_slots: (0..depth).rev().collect(),
            slot_by_id: vec![0; depth as usize],
            answers: Vec::with_capacity(depth as usize),
            ended: VecDeque::with_capacity(depth as usize),
            clock,
            last_check: clock.now(),
            has_requeued: false,
        }
    }

    /// Returns the reason if the backend was replaced since it was built, and `None` otherwise.
    pub(crate) fn replacement_reason(&self) -> Option<BackendError> {
        self.backend.replacement_reason()
    }

    /// Number of transfers in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free_slots.len()) as u32
    }

    /// Number of further transfers that can start.
    pub(crate) fn free_slot_count(&self) -> u32 {
        self.free_slots.len() as u32
    }

    /// Queues a transfer. `context` is kept until its end. `push_segments` adds the transfer's
    /// memory to a list, in file order.
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
        context: K,
        push_segments: impl FnOnce(&K, &mut Vec<libc::iovec>),
    ) {
        let index =
            self.free_slots.pop().expect("a slot is free: at most `depth` transfers are in flight");
        let id_index = start.id.0 as usize;
        if id_index >= self.slot_by_id.len() {
            self.slot_by_id.resize(id_index + 1, 0);
        }
        self.slot_by_id[id_index] = index;
        let slot = &mut self.slots[index as usize];
        slot.progress.segments.clear();
        push_segments(&context, &mut slot.progress.segments);
        let id = start.id;
        slot.progress.reset(start);
        slot.id = id;
        slot.context = Some(context);
        self.queue(id);
    }

    /// Cancels a transfer if the kernel allows it; it is reported in any case. No effect if no
    /// transfer with this id is in flight.
    pub(crate) fn cancel(&mut self, id: RequestId) {
        let Some(&index) = self.slot_by_id.get(id.0 as usize) else { return };
        let slot = &mut self.slots[index as usize];
        if slot.id == id && slot.context.is_some() && !slot.progress.is_cancelled {
            slot.progress.is_cancelled = true;
            self.backend.cancel(id.0.into());
        }
    }

    /// Submits started transfers and processes answers. Sleeps until a transfer ends or until
    /// `deadline`; `None` is no deadline. Does not sleep if `next_ended` has a result or no
    /// transfer is in flight. May return early.
    ///
    /// # Errors
    /// As [`exchange`](Transfers::exchange).
    pub(crate) fn wait(&mut self, deadline: Option<Time>) -> Result<(), BackendError> {
        let sleep = match deadline {
            _ if !self.ended.is_empty() => Sleep::Never,
            Some(deadline) => Sleep::AtMost(self.clock.until(deadline)),
            None => Sleep::UntilAnswered,
        };
        self.exchange(sleep)
    }

    /// Removes and returns the next ended transfer among the processed ones, or `None` if there is
    /// none.
    pub(crate) fn next_ended(&mut self) -> Option<EndedTransfer<K>> {
        self.ended.pop_front()
    }

    /// Cancels all transfers in flight and waits until they have ended. Returns early, with
    /// transfers in flight, after an error of the backend. Ended transfers stay for `next_ended`.
    pub(crate) fn drain(&mut self) {
        // A free slot has the id of an ended transfer, for which this has no effect.
        for index in 0..self.slots.len() {
            self.cancel(self.slots[index].id);
        }
        while self.in_flight() > 0 {
            if self.exchange(Sleep::UntilAnswered).is_err() {
                return;
            }
        }
    }

    /// Records that the owner has slept for answers until this moment: all answers found next have
    /// just arrived.
    pub(crate) fn record_wait(&mut self) {
        self.last_check = self.clock.now();
    }

    /// Submits started transfers and processes answers: ended transfers come out of `next_ended`.
    /// Sleeps for the first answer as long as `sleep` allows. A transfer that must be continued or
    /// repeated is submitted here too, because the owner may sleep elsewhere from now on. If the
    /// first answer is of such a transfer, the sleep ends without an ended one.
    ///
    /// # Errors
    /// The backend fails to submit requests or to take answers.
    pub(crate) fn exchange(&mut self, sleep: Sleep) -> Result<(), BackendError> {
        // With an answer at hand the backend does not sleep.
        let waits_for_answer = sleep != Sleep::Never && !self.backend.has_answers();
        self.has_requeued = false;
        self.process_answers(waits_for_answer, |backend, answers| {
            backend.exchange(sleep, answers)
        })?;
        let has_waited = false;
        while std::mem::take(&mut self.has_requeued) {
            self.process_answers(has_waited, |backend, answers| {
                backend.exchange(Sleep::Never, answers)
            })?;
        }
        Ok(())
    }

    /// Processes the available answers without sleeping. Returns true if requests were queued
    /// again, which the caller must then submit. Fails as [`exchange`](Transfers::exchange).
    pub(crate) fn collect(&mut self) -> Result<bool, BackendError> {
        self.has_requeued = false;
        let has_waited = false;
        let mut has_queued = false;
        self.process_answers(has_waited, |backend, answers| {
            has_queued = backend.collect(answers)?;
            Ok(())
        })?;
        Ok(has_queued || self.has_requeued)
    }

    /// Takes answers from the backend by `collect` and processes them, also with an error. If
    /// `has_waited` is true, the caller has slept for them, so they have just arrived. Otherwise
    /// they arrived at any time after the last check.
    fn process_answers(
        &mut self,
        has_waited: bool,
        collect: impl FnOnce(&mut dyn Backend, &mut Vec<KernelAnswer>) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let mut answers = std::mem::take(&mut self.answers);
        let result = collect(&mut *self.backend, &mut answers);
        let now = self.clock.now();
        let last_check = std::mem::replace(&mut self.last_check, now);
        let not_before = if has_waited { now } else { last_check };
        for answer in answers.drain(..) {
            self.on_kernel_answer(now, not_before, answer);
        }
        self.answers = answers;
        result
    }

    /// Completes the answered transfer, or queues its next request. The answer was taken at time
    /// `now`, and arrived at `not_before` or later.
    fn on_kernel_answer(&mut self, now: Time, not_before: Time, answer: KernelAnswer) {
        let id = RequestId(answer.token as u32);
        let index = self.slot_by_id[id.0 as usize];
        let slot = &mut self.slots[index as usize];
        let Some(outcome) = slot.progress.on_answer(answer.raw) else {
            self.has_requeued = true;
            return self.queue(id);
        };
        let context = slot.context.take().expect("the kernel answers only occupied slots");
        slot.progress.descriptor = None;
        let AnsweredTransfer { op, bytes, .. } = slot.progress.transfer;
        let completion = Completion { id, at: now, not_before, outcome };
        let bytes = match outcome {
            Outcome::Done => bytes,
            Outcome::Short { bytes } => bytes,
            Outcome::Failed(_) => 0,
        };
        self.ended.push_back(EndedTransfer { completion, op, bytes, context });
        self.free_slots.push(index);
    }

    /// Passes the rest of the transfer with this id to the backend: all of it at its start.
    fn queue(&mut self, id: RequestId) {
        let index = self.slot_by_id[id.0 as usize];
        let transfer = self.slots[index as usize].progress.next_request(id.0.into());
        // SAFETY: the memory is valid until the transfer ends (the contract of `start`). The slot
        // keeps the file open as long, and its segments do not move until then.
        unsafe { self.backend.queue(transfer) };
    }
}

impl<K> Drop for Transfers<K> {
    /// Cancels all transfers and waits until none of them accesses memory. An error of the backend
    /// ends the wait.
    fn drop(&mut self) {
        self.drain();
        if self.in_flight() > 0 {
            // The backend cannot find out when the kernel has finished with the segment lists: leak
            // them.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

/// Removes the first `bytes` bytes from a segment list, which has at least as many.
fn skip_bytes(segments: &mut Vec<libc::iovec>, bytes: usize) {
    let mut bytes_left = bytes;
    let whole_segments = segments.iter().take_while(|segment| {
        let is_whole = segment.iov_len <= bytes_left;
        bytes_left -= if is_whole { segment.iov_len } else { 0 };
        is_whole
    });
    let count = whole_segments.count();
    segments.drain(..count);
    if bytes_left > 0 {
        let first = &mut segments[0];
        first.iov_base = first.iov_base.wrapping_byte_add(bytes_left);
        first.iov_len -= bytes_left;
    }
}

#[cfg(test)]
mod tests;
