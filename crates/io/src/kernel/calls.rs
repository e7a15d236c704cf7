//! One system call for each transfer, done at once by whoever asks.

use std::os::fd::{AsRawFd, RawFd};

use crate::backend::{Answer, Backend, BackendError, Sleep, Transfer, carry};
use crate::target::Target;

/// The synchronous engine: `pread(2)` and `pwrite(2)`.
pub(super) struct Calls {
    fd: RawFd,
    answers: Vec<Answer>,
}

impl Calls {
    /// Calls on `target`, which stays open as long.
    pub(super) fn new(target: &Target) -> Calls {
        Calls { fd: target.as_raw_fd(), answers: Vec::new() }
    }
}

impl Backend for Calls {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let Transfer { token, op, offset, segments } = transfer;
        // SAFETY: the caller's promise.
        let raw = unsafe { carry(self.fd, op, offset, segments) };
        self.answers.push(Answer { token, raw });
    }

    fn cancel(&mut self, _token: u64) {
        // What is queued is over already.
    }

    fn exchange(&mut self, _sleep: Sleep, answers: &mut Vec<Answer>) -> Result<(), BackendError> {
        answers.append(&mut self.answers);
        Ok(())
    }
}
