//! io_uring: requests go to the kernel in one shared queue, answers come back
//! in another, and one system call hands over a batch and sleeps for the answers.
//!
//! The ring belongs to one thread. Told so (`SINGLE_ISSUER`), the kernel does
//! the end of each request when that thread enters it (`DEFER_TASKRUN`, 6.1)
//! in place of interrupting it at any time; older kernels get a plain ring.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::{IoUring, opcode, squeue, types};
use readpath_core::request::Op;

use crate::backend::{Answer, Backend, BackendError, Sleep, Transfer};

/// The token of a cancellation's own answer, which nobody waits for.
const NOBODY: u64 = u64::MAX;

/// The kernel's rings have 32,768 entries at most (`IORING_MAX_ENTRIES`), and
/// each transfer may need one more to be withdrawn.
const DEPTH_MAX: u32 = 16_384;

/// How many transfers are queued before the kernel gets them without being asked to.
///
/// A larger batch spares system calls, but the device stands idle while it is
/// put together. Measured with 4 KiB random direct reads at depth 32, against
/// fio (one call each) in the same run, throughput and CPU a read: each at once
/// 0.97 and 4.7 us (fio 4.8), in fours 0.98 and 3.7, in eights 1.00 and 3.5,
/// only when about to sleep 0.80 to 0.88 and 4.0. Four also suits small depths.
const BATCH: usize = 4;

/// The ring backend.
pub(crate) struct Ring {
    ring: IoUring,
    file: types::Fd,
    /// The addresses of the memory that the kernel holds for this ring.
    registered: Range<usize>,
    /// Transfers queued and not yet answered.
    unanswered: u32,
}

impl Ring {
    /// A ring with room for `depth` transfers at once.
    ///
    /// # Errors
    /// The kernel gives none, or one that can't sleep for a limited time.
    pub(crate) fn new(fd: RawFd, depth: u32) -> Result<Ring, BackendError> {
        Ring::with_flags(fd, depth, |builder| {
            builder.setup_single_issuer().setup_defer_taskrun();
        })
    }

    /// A ring that different threads may use, one after the other: the end of a
    /// request is done by whichever thread enters it.
    ///
    /// # Errors
    /// As [`new`](Ring::new).
    pub(crate) fn for_any_thread(fd: RawFd, depth: u32) -> Result<Ring, BackendError> {
        Ring::with_flags(fd, depth, |builder| {
            builder.setup_coop_taskrun();
        })
    }

    fn with_flags(
        fd: RawFd,
        depth: u32,
        flags: impl Fn(&mut io_uring::Builder),
    ) -> Result<Ring, BackendError> {
        if depth > DEPTH_MAX {
            return Err(BackendError::Depth { depth, depth_max: DEPTH_MAX });
        }
        // Room for each transfer, and for one cancellation of each.
        let entries = (2 * depth).next_power_of_two();
        let mut builder = IoUring::builder();
        flags(&mut builder);
        let ring = builder
            .setup_taskrun_flag()
            .setup_submit_all()
            .build(entries)
            .or_else(|error| match error.raw_os_error() {
                // A kernel before 6.1 doesn't know these flags.
                Some(libc::EINVAL) => IoUring::new(entries),
                _ => Err(error),
            })
            .map_err(|error| BackendError::NoRing { errno: error.raw_os_error().unwrap_or(0) })?;
        if !ring.params().is_feature_ext_arg() {
            return Err(BackendError::OldRing);
        }
        Ok(Ring { ring, file: types::Fd(fd), registered: 0..0, unanswered: 0 })
    }

    /// Has the kernel hold `bytes` bytes of memory from `address` on, so that
    /// transfers of one piece within it need not pin it each time. False where
    /// it refuses (above all by the limit of locked memory); transfers then work
    /// as before.
    ///
    /// # Safety
    /// The memory is mapped, and stays so for as long as the ring.
    pub(crate) unsafe fn register(&mut self, address: *mut u8, bytes: usize) -> bool {
        let memory = [libc::iovec { iov_base: address.cast(), iov_len: bytes }];
        // SAFETY: the caller's promise.
        let is_held = unsafe { self.ring.submitter().register_buffers(&memory) }.is_ok();
        if is_held {
            self.registered = address as usize..address as usize + bytes;
        }
        is_held
    }

    fn is_registered(&self, segment: &libc::iovec) -> bool {
        let start = segment.iov_base as usize;
        self.registered.start <= start && start + segment.iov_len <= self.registered.end
    }

    /// Has the eventfd `bell` written to whenever an answer comes.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn set_bell(&self, bell: BorrowedFd<'_>) -> Result<(), BackendError> {
        let refused = |error: std::io::Error| BackendError::Exchange {
            errno: error.raw_os_error().unwrap_or(0),
        };
        self.ring.submitter().register_eventfd(bell.as_raw_fd()).map_err(refused)
    }

    /// Puts an entry into the shared queue.
    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the memory that the entry names is valid until its answer
        // comes, by the contract of `queue`; a cancellation names none.
        unsafe { self.ring.submission().push(entry) }
            .expect("the queue has room for each transfer and for one cancellation of each");
    }

    /// Takes the answers that lie in the shared queue.
    fn collect(&mut self, answers: &mut Vec<Answer>) {
        for entry in self.ring.completion() {
            if entry.user_data() != NOBODY {
                answers.push(Answer { token: entry.user_data(), raw: entry.result() });
                self.unanswered -= 1;
            }
        }
    }

    /// Enters the kernel: hands over, and sleeps for one answer as `sleep` allows.
    fn enter(&self, sleep: Sleep) -> std::io::Result<usize> {
        match sleep {
            Sleep::Never => self.ring.submit(),
            Sleep::UntilAnswered => self.ring.submit_and_wait(1),
            Sleep::AtMost(span) => {
                let span = types::Timespec::from(span);
                let args = types::SubmitArgs::new().timespec(&span);
                self.ring.submitter().submit_with_args(1, &args)
            }
        }
    }

    /// Sleeps for one answer and hands nothing over.
    fn wait_for_one(&self) -> Result<(), BackendError> {
        const GETEVENTS: u32 = 1; // IORING_ENTER_GETEVENTS, io_uring_enter(2)
        // SAFETY: no argument is passed, and nothing is submitted.
        let entered =
            unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, GETEVENTS, None) };
        match entered.map_err(|error| error.raw_os_error().unwrap_or(0)) {
            Ok(_) | Err(libc::EINTR) => Ok(()),
            Err(errno) => Err(BackendError::Exchange { errno }),
        }
    }

    /// Whether transfers are with the kernel, and not only in the queue.
    fn kernel_has_some(&mut self) -> bool {
        self.unanswered as usize > self.ring.submission().len()
    }

    /// Whether entering the kernel with no wish to sleep would do anything.
    fn is_enter_due(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }
}

impl Backend for Ring {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let Transfer { token, op, offset, segments } = transfer;
        // One piece needs no list: that spares the kernel copying and walking it.
        let entry = match (op, segments) {
            (Op::Read, [one]) if self.is_registered(one) => {
                opcode::ReadFixed::new(self.file, one.iov_base.cast(), length(one), 0)
                    .offset(offset)
                    .build()
            }
            (Op::Write, [one]) if self.is_registered(one) => {
                let memory = one.iov_base.cast_const().cast();
                opcode::WriteFixed::new(self.file, memory, length(one), 0).offset(offset).build()
            }
            (Op::Read, [one]) => opcode::Read::new(self.file, one.iov_base.cast(), length(one))
                .offset(offset)
                .build(),
            (Op::Write, [one]) => {
                opcode::Write::new(self.file, one.iov_base.cast_const().cast(), length(one))
                    .offset(offset)
                    .build()
            }
            (Op::Read, list) => opcode::Readv::new(self.file, list.as_ptr(), list.len() as u32)
                .offset(offset)
                .build(),
            (Op::Write, list) => opcode::Writev::new(self.file, list.as_ptr(), list.len() as u32)
                .offset(offset)
                .build(),
        };
        self.unanswered += 1;
        self.push(&entry.user_data(token));
        if self.ring.submission().len() >= BATCH {
            // If the kernel has no room now, they stay queued, and `exchange`
            // tries again and reports what hinders it.
            let _ = self.ring.submit();
        }
    }

    fn cancel(&mut self, token: u64) {
        self.push(&opcode::AsyncCancel::new(token).build().user_data(NOBODY));
    }

    fn exchange(&mut self, sleep: Sleep, answers: &mut Vec<Answer>) -> Result<(), BackendError> {
        let count_before = answers.len();
        self.collect(answers);
        let has_answers = answers.len() > count_before;
        let sleep = if has_answers || self.unanswered == 0 { Sleep::Never } else { sleep };
        if sleep == Sleep::Never && !self.is_enter_due() {
            return Ok(());
        }
        if let Err(error) = self.enter(sleep) {
            match error.raw_os_error().unwrap_or(0) {
                // The time is up, or a signal came.
                libc::ETIME | libc::EINTR => {}
                // No memory for more requests, or for more answers: earlier
                // requests give some back as they end.
                libc::EAGAIN | libc::EBUSY | libc::ENOMEM if self.kernel_has_some() => {
                    self.wait_for_one()?;
                }
                errno => return Err(BackendError::Exchange { errno }),
            }
        }
        self.collect(answers);
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut answers = Vec::new();
        while self.unanswered > 0 {
            if self.exchange(Sleep::UntilAnswered, &mut answers).is_err() {
                // Never seen. To return would free memory that the kernel
                // still writes to.
                std::process::abort();
            }
        }
    }
}

/// The length of a piece; a transfer is at most 4 MiB.
fn length(segment: &libc::iovec) -> u32 {
    segment.iov_len as u32
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;

    /// Queues a read of up to 8 bytes from a pipe, which doesn't answer by itself.
    fn queue_read(ring: &mut Ring, token: u64, memory: &mut [u8; 8], list: &mut [libc::iovec; 1]) {
        list[0] = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        let transfer = Transfer { token, op: Op::Read, offset: 0, segments: list };
        // SAFETY: each test keeps `memory` and `list` past the ring.
        unsafe { ring.queue(transfer) };
    }

    const NO_PIECE: [libc::iovec; 1] = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];

    #[test]
    fn it_sleeps_until_the_time_is_up_or_an_answer_comes() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (mut memory, mut list, mut answers) = ([0; 8], NO_PIECE, Vec::new());
        let mut ring = Ring::new(reader.as_raw_fd(), 4).unwrap();
        queue_read(&mut ring, 7, &mut memory, &mut list);
        ring.exchange(Sleep::AtMost(Duration::from_millis(1)), &mut answers).unwrap();
        ring.exchange(Sleep::Never, &mut answers).unwrap();
        assert_eq!(answers, []);
        writer.write_all(b"abc").unwrap();
        while answers.is_empty() {
            ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
        }
        assert_eq!(answers, [Answer { token: 7, raw: 3 }]);
        // Nothing is in flight: there is nothing to sleep for.
        ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
        drop(ring);
        assert_eq!(&memory[..3], b"abc");
    }

    #[test]
    fn what_is_withdrawn_is_answered_by_that_name() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let (mut memory, mut list, mut answers) = ([0; 8], NO_PIECE, Vec::new());
        let mut ring = Ring::new(reader.as_raw_fd(), 1).unwrap();
        queue_read(&mut ring, 3, &mut memory, &mut list);
        ring.exchange(Sleep::Never, &mut answers).unwrap();
        assert_eq!(answers, []);
        ring.cancel(3);
        while answers.is_empty() {
            ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
        }
        // ECANCELED is 125 in errno(3).
        assert_eq!(answers, [Answer { token: 3, raw: -125 }]);
    }

    #[test]
    fn a_file_that_is_closed_is_answered_by_errno() {
        let (mut memory, mut list, mut answers) = ([0; 8], NO_PIECE, Vec::new());
        let mut ring = Ring::new(-1, 1).unwrap();
        queue_read(&mut ring, 0, &mut memory, &mut list);
        ring.exchange(Sleep::UntilAnswered, &mut answers).unwrap();
        // EBADF is 9 in errno(3).
        assert_eq!(answers, [Answer { token: 0, raw: -9 }]);
    }
}
