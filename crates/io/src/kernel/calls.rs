//! One system call for each transfer, done at once by whoever asks.

use crate::backend::{Answer, Backend, BackendError, Sleep, Transfer, carry};

/// The synchronous engine: `pread(2)` and `pwrite(2)`.
#[derive(Default)]
pub(super) struct Calls {
    answers: Vec<Answer>,
}

impl Backend for Calls {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let Transfer { token, fd, op, offset, segments, .. } = transfer;
        // SAFETY: the caller's promise.
        let raw = unsafe { carry(fd, op, offset, segments) };
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
