//! What carries bytes: the ring or the threads, behind one small interface.
//!
//! A backend knows pieces of memory, offsets and the kernel's raw answers. It
//! decides nothing: what an answer means is for `outcome.rs`, and what to
//! do about it for `transfers.rs`. Both backends give the same answers to
//! the same transfers; the contract tests hold them to that.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use readpath_core::request::Op;

use crate::outcome::raw_result;
use crate::ring::Ring;
use crate::threads::Threads;

/// Which backend carries the bytes. It is chosen, never fallen back to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// io_uring: one thread, and one system call for many requests.
    #[default]
    Ring,
    /// A pool of threads, each in `preadv(2)` or `pwritev(2)`: the reference,
    /// and the way where io_uring is forbidden.
    Threads,
}

impl BackendKind {
    /// Builds it for `depth` transfers at once, for one thread alone.
    ///
    /// # Errors
    /// The kernel gives no ring, or no thread.
    pub(crate) fn build(self, depth: u32) -> Result<Box<dyn Backend>, BackendError> {
        match self {
            BackendKind::Ring => Ok(Box::new(Ring::new(depth)?)),
            BackendKind::Threads => Ok(Box::new(Threads::new(depth)?)),
        }
    }

    /// Builds it for `depth` transfers at once, for threads that take turns,
    /// with what one of them sleeps on while another queues.
    ///
    /// # Errors
    /// As [`build`](BackendKind::build).
    pub(crate) fn build_shared(self, depth: u32) -> Result<SharedBackend, BackendError> {
        match self {
            BackendKind::Ring => {
                let (ring, sleeper) = Ring::shared(depth)?;
                Ok((Box::new(ring), Arc::new(sleeper)))
            }
            BackendKind::Threads => {
                let threads = Threads::new(depth)?;
                let sleeper = threads.sleeper();
                Ok((Box::new(threads), Arc::new(sleeper)))
            }
        }
    }

    /// As `build`, and has `bell`, an eventfd(2), written to whenever answers
    /// come, for an owner that sleeps elsewhere than in [`Backend::exchange`].
    /// It may ring without an answer, and never misses one.
    ///
    /// # Errors
    /// As `build`; the kernel refuses the bell.
    pub(crate) fn build_with_bell(
        self,
        depth: u32,
        bell: BorrowedFd<'_>,
    ) -> Result<Box<dyn Backend>, BackendError> {
        match self {
            BackendKind::Ring => {
                let ring = Ring::new(depth)?;
                ring.set_bell(bell)?;
                Ok(Box::new(ring))
            }
            BackendKind::Threads => {
                let threads = Threads::new(depth)?;
                threads.set_bell(bell)?;
                Ok(Box::new(threads))
            }
        }
    }
}

/// A backend of several threads, and what one of them sleeps on.
pub(crate) type SharedBackend = (Box<dyn Backend>, Arc<dyn Sleeper>);

/// One transfer between pieces of memory and consecutive bytes of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer<'a> {
    /// The name under which the answer comes back; any number but `u64::MAX`.
    pub token: u64,
    /// The open file.
    pub fd: RawFd,
    /// The direction.
    pub op: Op,
    /// The first byte in the file.
    pub offset: u64,
    /// The memory, in the order of the file; 1 to 1024 pieces.
    pub segments: &'a [libc::iovec],
}

/// The kernel's answer to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Which transfer.
    pub token: u64,
    /// Bytes moved, or a negative `errno`.
    pub raw: i32,
}

/// How long one may sleep for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Not at all.
    Never,
    /// Until one comes, or for so long.
    AtMost(Duration),
    /// Until one comes.
    UntilAnswered,
}

/// Sleeps for the answers of a storage, on one thread, while others hand in requests.
///
/// Only who sleeps here takes the answers out (`exchange`): an answer that somebody else took would leave the sleeper with nothing to wake up for.
pub trait Sleeper: Send + Sync {
    /// Hands over what was queued, and sleeps as long as `sleep` allows until
    /// there is an answer, or until [`wake`](Sleeper::wake). May come back early
    /// with nothing. With nothing in flight only `wake` ends it. True when it slept for
    /// answers and none lay there at the begin: those that there are now have just come.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError>;

    /// Ends the sleep of whoever sleeps, or else the next one. From any thread.
    fn wake(&self);
}

/// Carries transfers on open files.
///
/// Every transfer that was queued is answered exactly once. Dropping a backend
/// waits until none is in flight, withdrawing what it can.
pub(crate) trait Backend: Send {
    /// Takes a transfer in; it starts with the next `exchange` at the latest.
    ///
    /// # Safety
    /// The segments and the memory that they describe stay where they are, and
    /// are used by nobody else (for a write: changed by nobody), until the
    /// answer has come out of `exchange`, or the backend has been dropped. The
    /// file stays open until then.
    unsafe fn queue(&mut self, transfer: Transfer<'_>);

    /// Whether answers lie there that came unseen, before an `exchange` that could have slept for
    /// them. False where a transfer is answered only in `exchange`.
    fn has_answers(&mut self) -> bool {
        false
    }

    /// Asks the kernel to withdraw a transfer. It is answered all the same: with
    /// `-ECANCELED` if that came in time.
    fn cancel(&mut self, token: u64);

    /// Hands over what was queued, and adds the answers that there are to
    /// `answers`, sleeping in the kernel for the first one as long as `sleep`
    /// allows. May come back early with none when a signal interrupts it.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such; no answer is lost by that.
    fn exchange(&mut self, sleep: Sleep, answers: &mut Vec<Answer>) -> Result<(), BackendError>;
}

/// Carries one transfer with one system call, and gives the kernel's raw answer.
///
/// # Safety
/// The pieces of memory are valid, and nobody else uses them; the file is open.
pub(crate) unsafe fn carry(fd: RawFd, op: Op, offset: u64, segments: &[libc::iovec]) -> i32 {
    let count = segments.len() as i32;
    let offset = offset as i64;
    // SAFETY: the caller's promise.
    let moved = unsafe {
        match op {
            Op::Read => libc::preadv64(fd, segments.as_ptr(), count, offset),
            Op::Write => libc::pwritev64(fd, segments.as_ptr(), count, offset),
        }
    };
    raw_result(moved)
}

/// Why a backend can't carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendError {
    /// The kernel gives no ring.
    NoRing {
        /// Its answer, as in `errno(3)`.
        errno: i32,
    },
    /// More transfers at once than a ring has room for.
    Depth {
        /// How many were asked for.
        depth: u32,
        /// How many there can be.
        depth_max: u32,
    },
    /// The kernel is older than 5.11: its ring can't sleep for a limited time.
    OldRing,
    /// The kernel gives no thread.
    NoThread {
        /// Its answer, as in `errno(3)`; 0 if it gave none.
        errno: i32,
    },
    /// The kernel refused to exchange requests and answers over the ring.
    Exchange {
        /// Its answer, as in `errno(3)`.
        errno: i32,
    },
}

impl std::fmt::Display for BackendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let told = |errno: i32| std::io::Error::from_raw_os_error(errno);
        match *self {
            BackendError::NoRing { errno } => {
                write!(f, "the kernel gives no io_uring: {}; ", told(errno))?;
                f.write_str(match errno {
                    libc::EPERM | libc::EACCES => {
                        "set kernel.io_uring_disabled to 0, or leave the sandbox that \
                         forbids it, or choose the thread backend"
                    }
                    libc::ENOMEM => {
                        "raise the limit of locked memory (ulimit -l), or ask for less depth"
                    }
                    libc::EMFILE => "close files, or raise the limit of open files (ulimit -n)",
                    libc::ENFILE => "raise the limit of open files of all processes (fs.file-max)",
                    libc::ENOSYS => {
                        "this kernel has none, or the sandbox hides it: choose the thread backend"
                    }
                    _ => "choose the thread backend",
                })
            }
            BackendError::Depth { depth, depth_max } => {
                write!(f, "a ring holds {depth_max} requests, not {depth}; ask for less depth")
            }
            BackendError::OldRing => {
                f.write_str("this kernel's io_uring is older than 5.11; choose the thread backend")
            }
            BackendError::NoThread { errno } => {
                write!(f, "the kernel gives no thread: {}; ask for less depth", told(errno))
            }
            BackendError::Exchange { errno } => {
                write!(f, "io_uring_enter failed: {}; this is a bug, please report it", told(errno))
            }
        }
    }
}

impl std::error::Error for BackendError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let refused = BackendError::NoRing { errno: libc::EPERM }.to_string();
        assert!(refused.contains("kernel.io_uring_disabled"), "{refused}");
        assert!(refused.contains("or choose the thread backend"), "{refused}");
        let too_many = BackendError::NoRing { errno: libc::EMFILE }.to_string();
        assert!(too_many.contains("ulimit -n") && !too_many.contains("thread"), "{too_many}");
        let error = BackendKind::Ring.build(16_385).err().unwrap();
        assert_eq!(error, BackendError::Depth { depth: 16_385, depth_max: 16_384 });
        assert!(BackendKind::Ring.build(16_384).is_ok());
    }
}
