//! Transfers in flight. Each transfer continues over short results to its end and is reported once.
//!
//! After a short result the rest is requested, until the kernel returns no more bytes. Direct I/O
//! that stops at an unaligned offset has met the end of the file. A request for its rest fails with
//! `EINVAL`.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use readpath_core::request::{Completion, DeviceError, Op, Outcome, RequestId};
use readpath_core::unit::Time;

use super::buffer::FixedBuffer;
use crate::clock::Clock;

/// Maximum number of consecutive `EAGAIN` or `EINTR` results before the transfer fails. A driver
/// that always returns them would otherwise cause an endless loop. Chosen, not measured.
const RETRIES_MAX: u32 = 64;

/// Moves bytes between a file and memory.
///
/// Every started transfer gets exactly one result.
pub(super) trait TransferEngine {
    /// Accepts a transfer. It begins with the next `wait` at the latest.
    ///
    /// # Errors
    /// The kernel accepts no more transfers. This one may be in flight all the same.
    ///
    /// # Safety
    /// The memory stays in place, without other users, until the result has arrived.
    unsafe fn start(&mut self, call: KernelTransfer) -> io::Result<()>;

    /// Submits the started transfers and sleeps until a result arrives, at most `time_max`. May
    /// return early without a result.
    ///
    /// # Errors
    /// The kernel refuses the submission.
    fn wait(&mut self, time_max: Option<Duration>) -> io::Result<()>;

    /// Returns the next result, or `None` if none has arrived.
    fn next_answer(&mut self) -> Option<TransferAnswer>;
}

/// One transfer as requested from the kernel.
pub(super) struct KernelTransfer {
    /// Number of the transfer, which its answer repeats.
    pub token: u32,
    /// Read or write.
    pub op: Op,
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Start of the memory that a read fills and a write reads.
    pub memory: *mut u8,
    /// Number of bytes to move.
    pub bytes: usize,
}

/// The kernel's result of a transfer.
pub(super) struct TransferAnswer {
    /// Number of the transfer, as in [`KernelTransfer`].
    pub token: u32,
    /// Bytes moved, fewer than requested at the end of the file, or a negative `errno`.
    pub bytes_or_errno: i32,
}

/// All transfers of one file.
pub(super) struct FileTransfers {
    /// The system calls that move the bytes.
    engine: Box<dyn TransferEngine>,
    /// Transfers by token.
    transfers: Vec<Option<StartedTransfer>>,
    /// Tokens of the transfers that can be started.
    free_tokens: Vec<u32>,
    /// Transfers that have ended and that `next_ended` has not returned yet.
    ended: VecDeque<EndedKernelTransfer>,
    /// Clock of the completions.
    clock: Clock,
    /// Time of the last check for results. A later result completed after this time.
    last_checked: Time,
    /// Error of a refused start, returned by the next `wait`.
    start_error: Option<io::Error>,
}

/// A transfer that the engine has accepted and not completed.
struct StartedTransfer {
    /// The caller's number, which the completion repeats.
    id: RequestId,
    /// Read or write.
    op: Op,
    /// Offset in the file in bytes.
    offset: u64,
    /// Length of the whole transfer in bytes.
    bytes: usize,
    /// Part of it that earlier results have moved, from its start.
    bytes_moved: usize,
    /// Number of consecutive results that demanded a retry.
    retries: u32,
    /// Memory of the transfer.
    buffer: FixedBuffer,
}

/// A completed transfer.
pub(super) struct EndedKernelTransfer {
    /// Identifier, times and outcome.
    pub completion: Completion,
    /// Buffer of the transfer. The bytes of a read are at its start.
    pub buffer: FixedBuffer,
    /// Read or write.
    pub op: Op,
    /// Bytes moved, 0 for a failed transfer.
    pub bytes: usize,
}

impl FileTransfers {
    /// Creates the state for `depth` transfers in flight.
    pub(super) fn over(engine: Box<dyn TransferEngine>, depth: u32, clock: Clock) -> FileTransfers {
        FileTransfers {
            engine,
            transfers: (0..depth).map(|_| None).collect(),
            free_tokens: (0..depth).rev().collect(),
            ended: VecDeque::with_capacity(depth as usize),
            clock,
            last_checked: clock.now(),
            start_error: None,
        }
    }

    /// Returns the clock of the completions.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// Keeps time by another clock from now on.
    pub(super) fn set_clock(&mut self, clock: Clock) {
        (self.clock, self.last_checked) = (clock, clock.now());
    }

    /// Number of transfers that can be started.
    pub(super) fn free_slots(&self) -> u32 {
        self.free_tokens.len() as u32
    }

    /// Starts a transfer between the first `bytes` bytes of `buffer` and the file at `offset`.
    ///
    /// # Panics
    /// The depth is reached, or the buffer is too small.
    pub(super) fn start(
        &mut self,
        id: RequestId,
        op: Op,
        offset: u64,
        bytes: usize,
        buffer: FixedBuffer,
    ) {
        assert!(bytes <= buffer.len(), "the transfer is at most as large as its buffer");
        let token = self
            .free_tokens
            .pop()
            .expect("a token is free: at most `depth` transfers are in flight");
        let transfer =
            StartedTransfer { id, op, offset, bytes, bytes_moved: 0, retries: 0, buffer };
        self.transfers[token as usize] = Some(transfer);
        self.request_rest(token);
    }

    /// Submits the started transfers and collects results. Sleeps until a result arrives or until
    /// `deadline`. It may return without an ended transfer: early, or after a short result, whose
    /// rest it has requested. Returns at once if an ended transfer is collected already, or if
    /// nothing is in flight and there is no deadline.
    ///
    /// # Errors
    /// The kernel refuses the submission, or has refused a start since the last call.
    pub(super) fn wait(&mut self, deadline: Option<Time>) -> io::Result<()> {
        if let Some(error) = self.start_error.take() {
            return Err(error);
        }
        let in_flight = self.transfers.len() - self.free_tokens.len();
        if !self.ended.is_empty() || in_flight == 0 && deadline.is_none() {
            return Ok(());
        }
        let time_max = deadline.map(|deadline| self.clock.until(deadline));
        self.engine.wait(time_max)?;
        let now = self.clock.now();
        let last_check = std::mem::replace(&mut self.last_checked, now);
        while let Some(answer) = self.engine.next_answer() {
            self.handle_answer(now, last_check, answer);
        }
        Ok(())
    }

    /// Returns the next ended transfer among the collected ones. `None` if there is none; does not
    /// wait.
    pub(super) fn next_ended(&mut self) -> Option<EndedKernelTransfer> {
        self.ended.pop_front()
    }

    /// Requests the rest of a transfer from the engine. An error is kept for the next `wait`.
    fn request_rest(&mut self, token: u32) {
        let transfer = self.transfers[token as usize].as_ref().expect("the transfer is in flight");
        let moved = transfer.bytes_moved;
        let call = KernelTransfer {
            token,
            op: transfer.op,
            offset: transfer.offset + moved as u64,
            memory: transfer.buffer.address().wrapping_add(moved),
            bytes: transfer.bytes - moved,
        };
        // SAFETY: the transfer owns the buffer, and with it the memory, until it has ended. If the
        // engine never answers, the buffer is never released.
        if let Err(error) = unsafe { self.engine.start(call) } {
            self.start_error = Some(error);
        }
    }

    /// Processes an answer of the kernel: requests the rest of a short transfer, or ends the
    /// transfer with its outcome. `not_before` is the earliest possible time of its completion.
    fn handle_answer(&mut self, now: Time, not_before: Time, answer: TransferAnswer) {
        let slot = &mut self.transfers[answer.token as usize];
        let transfer = slot.as_mut().expect("the kernel answers only transfers in flight");
        // A result of 0 bytes has met the end of the file.
        let outcome = match answer.bytes_or_errno {
            0 => Outcome::Short { bytes: transfer.bytes_moved as u64 },
            bytes @ 1.. => {
                (transfer.bytes_moved, transfer.retries) =
                    (transfer.bytes_moved + bytes as usize, 0);
                match transfer.bytes_moved < transfer.bytes {
                    true => return self.request_rest(answer.token),
                    false => Outcome::Done,
                }
            }
            negative_errno => match -negative_errno {
                libc::EINTR | libc::EAGAIN if transfer.retries < RETRIES_MAX => {
                    transfer.retries += 1;
                    return self.request_rest(answer.token);
                }
                // The rest of a direct transfer that has met the end of the file.
                libc::EINVAL if transfer.bytes_moved > 0 => {
                    Outcome::Short { bytes: transfer.bytes_moved as u64 }
                }
                libc::EIO => Outcome::Failed(DeviceError::Medium),
                errno => Outcome::Failed(DeviceError::Other(errno)),
            },
        };
        let StartedTransfer { id, op, bytes_moved, buffer, .. } =
            slot.take().expect("the transfer is in flight");
        let completion = Completion { id, at: now, not_before, outcome };
        let bytes = match outcome {
            Outcome::Failed(_) => 0,
            _ => bytes_moved,
        };
        self.ended.push_back(EndedKernelTransfer { completion, buffer, op, bytes });
        self.free_tokens.push(answer.token);
    }
}

impl Drop for FileTransfers {
    /// Waits for all transfers in flight, because the kernel uses their memory.
    fn drop(&mut self) {
        while self.free_tokens.len() < self.transfers.len() {
            // `wait` collects nothing while ended transfers are left.
            self.ended.clear();
            let no_deadline = None;
            // After an error the end of the kernel's access to the memory is unknown, so the memory
            // is leaked.
            if self.wait(no_deadline).is_err() {
                return std::mem::forget(std::mem::take(&mut self.transfers));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Engine with prepared results. It records the offset and size of each request.
    struct Scripted {
        results: Vec<i32>,
        requests: std::rc::Rc<std::cell::RefCell<Vec<(u64, usize)>>>,
        answers: Vec<TransferAnswer>,
    }

    impl TransferEngine for Scripted {
        unsafe fn start(&mut self, call: KernelTransfer) -> io::Result<()> {
            self.requests.borrow_mut().push((call.offset, call.bytes));
            let bytes_or_errno = self.results.remove(0);
            self.answers.push(TransferAnswer { token: call.token, bytes_or_errno });
            Ok(())
        }

        fn wait(&mut self, _: Option<Duration>) -> io::Result<()> {
            Ok(())
        }

        fn next_answer(&mut self) -> Option<TransferAnswer> {
            self.answers.pop()
        }
    }

    /// Reads 16,384 bytes at offset 4,096 with these results of the kernel: bytes or a negative
    /// errno. Returns the outcome, the bytes read, and offset and size of each request.
    fn read_with_results(results: &[i32]) -> (Outcome, usize, Vec<(u64, usize)>) {
        let requests = std::rc::Rc::default();
        let script = Scripted {
            results: results.to_vec(),
            requests: std::rc::Rc::clone(&requests),
            answers: Vec::new(),
        };
        let depth = 1;
        let mut transfers = FileTransfers::over(Box::new(script), depth, Clock::start());
        let buffer = FixedBuffer::allocate(depth, 16_384).unwrap().pop().unwrap();
        transfers.start(RequestId(7), Op::Read, 4_096, 16_384, buffer);
        assert_eq!(transfers.free_slots(), 0);
        while transfers.free_slots() == 0 {
            transfers.wait(None).unwrap();
        }
        let ended = transfers.next_ended().unwrap();
        assert_eq!((ended.completion.id, transfers.free_slots()), (RequestId(7), 1));
        let requests = requests.borrow().clone();
        (ended.completion.outcome, ended.bytes, requests)
    }

    /// A result of 5,000 bytes leaves 11,384 bytes at offset 9,096.
    #[test]
    fn short_transfer_requests_the_rest() {
        let whole = (4_096, 16_384);
        let (short, rest) = (Outcome::Short { bytes: 5_000 }, (9_096, 11_384));
        assert_eq!(read_with_results(&[16_384]), (Outcome::Done, 16_384, vec![whole]));
        assert_eq!(read_with_results(&[5_000, 11_384]), (Outcome::Done, 16_384, vec![whole, rest]));
        assert_eq!(read_with_results(&[5_000, 0]), (short, 5_000, vec![whole, rest]));
        // EINVAL is 22 in errno(3). Direct I/O has met the end of the file.
        assert_eq!(read_with_results(&[5_000, -22]), (short, 5_000, vec![whole, rest]));
        assert_eq!(read_with_results(&[0]), (Outcome::Short { bytes: 0 }, 0, vec![whole]));
    }

    #[test]
    fn errno_maps_to_named_errors_and_eagain_retries_are_limited() {
        let outcome = |results: &[i32]| read_with_results(results).0;
        // EIO, EINTR, EAGAIN and EINVAL are 5, 4, 11 and 22 in errno(3).
        assert_eq!(outcome(&[-5]), Outcome::Failed(DeviceError::Medium));
        assert_eq!(outcome(&[-22]), Outcome::Failed(DeviceError::Other(22)));
        assert_eq!(outcome(&[-4, -11, 16_384]), Outcome::Done);
        assert_eq!(outcome(&[-11; 65]), Outcome::Failed(DeviceError::Other(11)));
    }
}
