//! Synchronous engine: one system call per transfer, made by the calling thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use readpath_core::request::Op;

use super::under_way::{KernelTransfer, TransferAnswer, TransferEngine};

/// The synchronous engine: `pread(2)` and `pwrite(2)`.
pub(super) struct Calls {
    /// File of all transfers, owned by the caller.
    fd: RawFd,
    /// Results that `next_answer` has not returned yet. The calls behind them have ended.
    answers: VecDeque<TransferAnswer>,
}

impl Calls {
    /// Creates the engine for a file that outlives it.
    pub(super) fn new(fd: RawFd) -> Calls {
        Calls { fd, answers: VecDeque::new() }
    }
}

impl TransferEngine for Calls {
    /// Performs the transfer by a blocking call, and queues its answer.
    unsafe fn start(&mut self, call: KernelTransfer) -> io::Result<()> {
        let (memory, offset) = (call.memory.cast(), call.offset as i64);
        // SAFETY: guaranteed by the caller.
        let result = unsafe {
            match call.op {
                Op::Read => libc::pread64(self.fd, memory, call.bytes, offset),
                Op::Write => libc::pwrite64(self.fd, memory, call.bytes, offset),
            }
        };
        let bytes_or_errno = match result {
            // A call moves at most 0x7ffff000 bytes (read(2)).
            0.. => result as i32,
            _ => -io::Error::last_os_error().raw_os_error().expect("a failed call sets errno"),
        };
        self.answers.push_back(TransferAnswer { token: call.token, bytes_or_errno });
        Ok(())
    }

    /// Returns at once, because each transfer has ended when it was started.
    fn wait(&mut self, _time_max: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    /// Returns the oldest result that was not returned yet, or `None`.
    fn next_answer(&mut self) -> Option<TransferAnswer> {
        self.answers.pop_front()
    }
}
