//! I/O backends: AIO, io_uring or threads, behind one small interface.
//!
//! A *transfer* moves bytes between memory segments and a file. The kernel's *answer* is the number
//! of bytes moved or a negative `errno`. A *sleeper* is an object in which one thread sleeps for
//! answers while other threads use the backend.
//!
//! A backend knows memory segments, offsets and the kernel's raw answers. [`answer`] decides on the
//! meaning of an answer, and `transfers.rs` on the next step. All backends return the same answers
//! to the same transfers; the contract tests check this. In a simulation (`cfg(simulation)`) a
//! simulated disk executes the transfers.

pub(crate) mod aio;
pub(crate) mod answer;
pub(crate) mod thread_pool;
pub(crate) mod uring;

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use readpath_core::request::Op;

use self::aio::{Aio, request_share};
use self::answer::raw_result;
use self::thread_pool::{ThreadPoolBackend, ThreadsSleeper};
use self::uring::UringBackend;

/// Kind of I/O backend.
///
/// The command and Python use the names `auto`, `aio`, `io_uring` and `threads`.
///
/// ```
/// use readpath::BackendKind;
///
/// assert_eq!("aio".parse(), Ok(BackendKind::Aio));
/// let error = "libaio".parse::<BackendKind>().unwrap_err();
/// assert!(error.to_string().contains("auto, aio, io_uring, threads"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// First suitable kind that the kernel provides; [`BackendInUse`] reports it and the reason. If
    /// threads share the backend or take turns: AIO, then threads. For one exclusive thread:
    /// io_uring, then AIO, then threads.
    #[default]
    Auto,
    /// Linux AIO: the device's interrupt completes requests, on no particular thread. Threads
    /// execute buffered I/O, for which AIO would block at submission.
    Aio,
    /// io_uring: one system call submits and sleeps. The submitting thread completes a request. If
    /// threads share the ring, one stalled thread (in `vfork`, by the scheduler, in a system call)
    /// therefore stalls all.
    Ring,
    /// A pool of threads, each in `preadv(2)` or `pwritev(2)`: the reference, and the fallback
    /// where the others are forbidden.
    Threads,
}

/// I/O backend in use, and the reason why no faster one is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendInUse {
    /// Kind; never [`BackendKind::Auto`].
    pub kind: BackendKind,
    /// Error of the first choice of [`BackendKind::Auto`]. `None` if that choice is in use, or if a
    /// kind was named. A backend that was replaced later has the error that ended its use.
    pub because: Option<BackendError>,
}

impl BackendInUse {
    /// Returns threads as the backend in use if the built one was replaced for a reason. Otherwise
    /// returns `self`. Only AIO is ever replaced, once a sandbox forbids `io_submit(2)`: its
    /// threads then execute all transfers.
    pub(crate) fn or_threads_if_replaced(
        self,
        replacement_reason: Option<BackendError>,
    ) -> BackendInUse {
        match replacement_reason {
            Some(_) => BackendInUse { kind: BackendKind::Threads, because: replacement_reason },
            None => self,
        }
    }
}

impl BackendKind {
    /// All kinds with their names.
    pub const NAMES: [(BackendKind, &'static str); 4] = [
        (BackendKind::Auto, "auto"),
        (BackendKind::Aio, "aio"),
        (BackendKind::Ring, "io_uring"),
        (BackendKind::Threads, "threads"),
    ];

    /// Builds a backend for `depth` transfers and one exclusive thread.
    ///
    /// # Errors
    /// The kernel provides none of this kind, or `depth` exceeds [`DEPTH_MAX`].
    pub(crate) fn build(self, depth: u32) -> Result<BuiltBackend, BackendError> {
        self.first_available(depth, &EXCLUSIVE_ORDER, |kind| {
            Ok::<Box<dyn Backend>, _>(match kind {
                BackendKind::Ring => Box::new(UringBackend::new(depth)?),
                BackendKind::Aio => Box::new(Aio::new(depth)?),
                // Threads: `first_available` never passes `Auto`.
                _ => Box::new(ThreadPoolBackend::new(depth)),
            })
        })
    }

    /// Builds a backend for `depth` transfers and threads that take turns, with the sleeper for one
    /// of them while another queues.
    ///
    /// # Errors
    /// As [`build`](BackendKind::build), or `depth` exceeds [`SHARED_DEPTH_MAX`].
    pub(crate) fn build_shared(
        self,
        depth: u32,
    ) -> Result<(SharedBackend, BackendInUse), BackendError> {
        if depth > SHARED_DEPTH_MAX {
            return Err(BackendError::Depth { depth, depth_max: SHARED_DEPTH_MAX });
        }
        #[cfg(simulation)]
        if let Some(built) = crate::simulation::disk::backend() {
            // The simulated disk stands for AIO, whose kind is reported.
            return Ok((built, BackendInUse { kind: BackendKind::Aio, because: None }));
        }
        self.first_available(depth, &SHARED_ORDER, |kind| {
            Ok::<SharedBackend, _>(match kind {
                BackendKind::Ring => {
                    let (ring, sleeper) = UringBackend::shared(depth)?;
                    (Box::new(ring), Arc::new(sleeper))
                }
                BackendKind::Aio => {
                    let aio = Aio::new(depth)?;
                    let sleeper = aio.sleeper();
                    (Box::new(aio), Arc::new(sleeper))
                }
                // Threads: `first_available` never passes `Auto`.
                _ => {
                    let threads = ThreadPoolBackend::new(depth);
                    let sleeper = ThreadsSleeper(Arc::clone(threads.pool()));
                    (Box::new(threads), Arc::new(sleeper))
                }
            })
        })
    }

    /// Like `build`, and signals the eventfd(2) `event_fd` for each answer, for an owner that
    /// sleeps elsewhere than in [`Backend::exchange`]. It may be signalled without an answer, but
    /// never misses one.
    ///
    /// # Errors
    /// As `build`, or the kernel rejects the eventfd.
    pub(crate) fn build_with_event_fd(
        self,
        depth: u32,
        event_fd: BorrowedFd<'_>,
    ) -> Result<BuiltBackend, BackendError> {
        #[cfg(simulation)]
        if let Some(built) = crate::simulation::disk::backend_with_event_fd(event_fd) {
            // The simulated disk stands for AIO, as in `build_shared`.
            return Ok((built, BackendInUse { kind: BackendKind::Aio, because: None }));
        }
        self.first_available(depth, &EXCLUSIVE_ORDER, |kind| {
            Ok::<Box<dyn Backend>, _>(match kind {
                BackendKind::Ring => {
                    let ring = UringBackend::new(depth)?;
                    ring.register_event_fd(event_fd)?;
                    Box::new(ring)
                }
                BackendKind::Aio => Box::new(Aio::with_event_fd(depth, event_fd)?),
                // Threads: `first_available` never passes `Auto`.
                _ => {
                    let threads = ThreadPoolBackend::new(depth);
                    threads.set_event_fd(event_fd)?;
                    Box::new(threads)
                }
            })
        })
    }

    /// Calls `build` with the named kind. For `Auto`, calls it with the kinds of `order` until one
    /// succeeds. Returns its result with the kind. `Auto` takes AIO only if a context of `depth`
    /// requests is within [its share](request_share::check_share) of the system's requests.
    ///
    /// # Errors
    /// `depth` exceeds [`DEPTH_MAX`]. The error of the named kind. For `Auto`, the first kind's
    /// error if none of `order` is available; a `Depth` error of any kind ends the search.
    pub(crate) fn first_available<B>(
        self,
        depth: u32,
        order: &[BackendKind],
        mut build: impl FnMut(BackendKind) -> Result<B, BackendError>,
    ) -> Result<(B, BackendInUse), BackendError> {
        if depth > DEPTH_MAX {
            return Err(BackendError::Depth { depth, depth_max: DEPTH_MAX });
        }
        if self != BackendKind::Auto {
            return Ok((build(self)?, BackendInUse { kind: self, because: None }));
        }
        let mut because = None;
        for &kind in order {
            let is_aio = kind == BackendKind::Aio;
            let share_check = if is_aio { request_share::check_share(depth) } else { Ok(()) };
            match share_check.and_then(|()| build(kind)) {
                Ok(backend) => return Ok((backend, BackendInUse { kind, because })),
                // All kinds have the same limit.
                Err(error @ BackendError::Depth { .. }) => return Err(error),
                // The reason is the error of the first choice.
                Err(error) => because = because.or(Some(error)),
            }
        }
        Err(because.expect("at least one kind of backend was tried"))
    }
}

/// Largest depth of any backend. In a ring each transfer has two of the kernel's 32,768 queue
/// entries, one for its cancellation. Valid for all kinds, as [`SHARED_DEPTH_MAX`].
const DEPTH_MAX: u32 = 16_384;
/// Largest depth of a shared ring: its eventfd poll has an entry too. Valid for all kinds, so that
/// programs do not fail on other machines.
const SHARED_DEPTH_MAX: u32 = 16_383;
/// Order of kinds for one exclusive thread. io_uring comes first, because one call submits and
/// sleeps.
const EXCLUSIVE_ORDER: [BackendKind; 3] =
    [BackendKind::Ring, BackendKind::Aio, BackendKind::Threads];
/// Order of kinds for threads that share a backend or take turns. io_uring is missing, because one
/// stalled thread would stall all.
pub(crate) const SHARED_ORDER: [BackendKind; 2] = [BackendKind::Aio, BackendKind::Threads];

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entry = BackendKind::NAMES.iter().find(|(kind, _)| kind == self);
        f.write_str(entry.expect("each has a name").1)
    }
}

impl std::str::FromStr for BackendKind {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<BackendKind, UnknownBackend> {
        let entry = BackendKind::NAMES.iter().find(|(_, kind_name)| *kind_name == name);
        entry.map(|&(kind, _)| kind).ok_or_else(|| UnknownBackend { name: name.to_owned() })
    }
}

impl std::fmt::Display for BackendInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.because {
            None => self.kind.fmt(f),
            Some(because) => write!(f, "{} ({because})", self.kind),
        }
    }
}

/// Error for an unknown backend name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownBackend {
    /// Given name.
    pub name: String,
}

impl std::fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = BackendKind::NAMES.map(|(_, name)| name).join(", ");
        write!(f, "there is no backend `{}`; there are: {names}", self.name)
    }
}

impl std::error::Error for UnknownBackend {}

/// A backend of one thread, with its kind.
pub(crate) type BuiltBackend = (Box<dyn Backend>, BackendInUse);

/// A backend of several threads, with its sleeper.
pub(crate) type SharedBackend = (Box<dyn Backend>, Arc<dyn Sleeper>);

/// One transfer between memory segments and consecutive bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer<'a> {
    /// Identifies the answer; any number below `u64::MAX - 1`. io_uring uses the two numbers above
    /// for answers of its own.
    pub token: u64,
    /// Descriptor of the open file.
    pub fd: RawFd,
    /// Direction.
    pub op: Op,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Memory in file order; 1 to 1024 segments (`IOV_MAX`).
    pub segments: &'a [libc::iovec],
    /// True if the file is open for direct I/O. AIO passes other transfers to threads, because they
    /// would wait at submission.
    pub is_direct: bool,
}

/// The kernel's answer to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelAnswer {
    /// Token of the transfer.
    pub token: u64,
    /// Bytes moved, or a negative `errno`.
    pub raw: i32,
}

/// Limit of a sleep for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// No sleep.
    Never,
    /// Until an answer arrives, or this time has passed.
    AtMost(Duration),
    /// Until an answer arrives.
    UntilAnswered,
}

/// Sleeps for the answers of a storage on one thread, while other threads queue requests.
///
/// It takes no answers. Another thread may take them (`exchange`) and then [wakes](Sleeper::wake)
/// the sleeper if it has no answer left to wait for.
pub trait Sleeper: Send + Sync {
    /// Submits queued requests, and sleeps until an answer arrives or until
    /// [`wake`](Sleeper::wake), as long as `sleep` allows. May return early without an answer. Only
    /// `wake` ends it if no request is in flight. Returns true if it slept and no answer was there
    /// at the start: all present answers have then just arrived, so their times may be used to
    /// estimate request costs.
    ///
    /// # Errors
    /// The kernel rejected the submission as a whole.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError>;

    /// Submits queued requests. The next [`sleep`](Sleeper::sleep) reports errors.
    fn submit_queued(&self) {
        let _ = self.sleep(Sleep::Never);
    }

    /// Receives answers from the kernel in place of a sleeping thread that is stalled. No operation
    /// if answers arrive in memory shared with the kernel. Only an NFS connection needs it.
    fn drain_kernel_answers(&self) {}

    /// Ends the present sleep, or else the next one. From any thread.
    fn wake(&self);

    /// True if transfers that only a thread can execute have not begun.
    fn has_pooled_transfer(&self) -> bool {
        false
    }

    /// Executes one pooled transfer on this thread, which must wait for an answer anyway. `None`:
    /// there is none. `Some(true)`: no answer was there at the start. `Some(false)`: one was. The
    /// flag has the use of the result of [`sleep`](Sleeper::sleep).
    fn execute_pooled_transfer(&self) -> Option<bool> {
        None
    }
}

/// Executes transfers on open files.
///
/// Every queued transfer is answered exactly once. Dropping a backend may withdraw transfers that
/// have not begun, and waits for the rest as far as the kernel still answers.
pub(crate) trait Backend: Send {
    /// Queues a transfer, which starts at the latest with the next `exchange`.
    ///
    /// # Safety
    /// The segments and their memory stay in place until the answer comes out of `exchange` or the
    /// backend is dropped. Until then no other code uses them (for a write: changes them), and the
    /// file stays open.
    unsafe fn queue(&mut self, transfer: Transfer<'_>);

    /// True if answers are there already, so the next `exchange` does not sleep and their times of
    /// arrival are unknown. False for backends that answer only in `exchange`.
    fn has_answers(&mut self) -> bool {
        false
    }

    /// Returns the reason if the backend has been replaced by another one since it was built, and
    /// `None` otherwise.
    fn replacement_reason(&self) -> Option<BackendError> {
        None
    }

    /// Asks the kernel to cancel a transfer. It is answered in any case, with `-ECANCELED` if the
    /// cancellation succeeded.
    fn cancel(&mut self, token: u64);

    /// Adds the available answers to `answers`, without sleeping. A backend with a [`Sleeper`]
    /// makes no system call that submits requests. The default calls `exchange`. Returns true if
    /// the backend has queued a request of its own, which the caller must then submit.
    ///
    /// # Errors
    /// As [`exchange`](Backend::exchange).
    fn collect(&mut self, answers: &mut Vec<KernelAnswer>) -> Result<bool, BackendError> {
        self.exchange(Sleep::Never, answers).map(|()| false)
    }

    /// Submits queued transfers and adds available answers. Sleeps in the kernel for the first
    /// answer as long as `sleep` allows. A signal may end it early without an answer.
    ///
    /// # Errors
    /// The kernel rejected the submission as a whole; no answer is lost.
    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError>;
}

/// Executes one transfer with one system call, which may wait. Returns the number of bytes moved,
/// or a negative errno. `offset` is the first byte in the file.
///
/// # Safety
/// The segments are valid and have no other users; the file is open.
pub(crate) unsafe fn execute_transfer(
    fd: RawFd,
    op: Op,
    offset: u64,
    segments: &[libc::iovec],
) -> i32 {
    #[cfg(simulation)]
    if let Some(raw) = crate::simulation::disk::execute_transfer(fd, op, offset, segments) {
        return raw;
    }
    let count = segments.len() as i32;
    let offset = offset as i64;
    // SAFETY: the caller's contract.
    let transferred = unsafe {
        match op {
            Op::Read => libc::preadv64(fd, segments.as_ptr(), count, offset),
            Op::Write => libc::pwritev64(fd, segments.as_ptr(), count, offset),
        }
    };
    raw_result(transferred)
}

/// Error of an I/O backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendError {
    /// The kernel provides no io_uring, or none that signals an eventfd.
    NoRing {
        /// Error of the kernel, as in `errno(3)`.
        errno: i32,
    },
    /// The depth exceeds the backend's limit.
    Depth {
        /// Requested depth.
        depth: u32,
        /// Largest depth.
        depth_max: u32,
    },
    /// The kernel is older than 5.11: its io_uring has no timed sleep.
    OldRing,
    /// The kernel provides no AIO.
    NoAio {
        /// Error of the kernel, as in `errno(3)`.
        errno: i32,
    },
    /// The remaining AIO requests of the system are left to other programs.
    AioShare {
        /// Number of requests of this process.
        taken: u32,
        /// Limit for all processes (`fs.aio-max-nr`).
        system_max: u32,
    },
    /// The kernel provides no eventfd.
    NoEventFd {
        /// Error of the kernel, as in `errno(3)`.
        errno: i32,
    },
    /// The kernel rejected the submission to io_uring.
    Exchange {
        /// Error of the kernel, as in `errno(3)`.
        errno: i32,
    },
}

impl std::fmt::Display for BackendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let errno_text = |errno: i32| std::io::Error::from_raw_os_error(errno);
        match *self {
            BackendError::NoRing { errno } => {
                write!(f, "the kernel gives no io_uring: {}; ", errno_text(errno))?;
                f.write_str(match errno {
                    libc::EPERM | libc::EACCES => {
                        "set kernel.io_uring_disabled to 0, or leave the sandbox that forbids it, \
                         or choose the backend `auto`"
                    }
                    libc::ENOMEM => {
                        "raise the limit of locked memory (ulimit -l), or ask for less depth, or \
                         choose the backend `auto`"
                    }
                    libc::EMFILE => "close files, or raise the limit of open files (ulimit -n)",
                    libc::ENFILE => "raise the limit of open files of all processes (fs.file-max)",
                    libc::ENOSYS => {
                        "this kernel has none, or the sandbox hides it: choose the backend `auto`"
                    }
                    _ => "choose the backend `auto`",
                })
            }
            BackendError::Depth { depth, depth_max } => {
                write!(
                    f,
                    "{depth_max} requests at once are the most, not {depth}; ask for less depth"
                )
            }
            BackendError::OldRing => {
                f.write_str("this kernel's io_uring is older than 5.11; choose the backend `auto`")
            }
            BackendError::NoAio { errno } => {
                write!(f, "the kernel gives no AIO: {}; ", errno_text(errno))?;
                f.write_str(match errno {
                    libc::EAGAIN => "raise fs.aio-max-nr, or choose the backend `auto`",
                    libc::EPERM | libc::EACCES => {
                        "leave the sandbox that forbids it, or choose the backend `auto`"
                    }
                    _ => "choose the backend `auto`",
                })
            }
            BackendError::AioShare { taken, system_max } => write!(
                f,
                "AIO is left to other programs: this one has {taken} of the system's {system_max} \
                 requests; raise fs.aio-max-nr, use fewer paths, or name the backend `aio`"
            ),
            BackendError::NoEventFd { errno } => write!(
                f,
                "the kernel gives no eventfd: {}; raise the limit of open files (ulimit -n)",
                errno_text(errno)
            ),
            BackendError::Exchange { errno } => {
                write!(f, "io_uring_enter failed: {}; ", errno_text(errno))?;
                f.write_str(match errno {
                    libc::EPERM | libc::EACCES | libc::ENOSYS => {
                        "a sandbox has come to forbid it since the opening: set it up before, or \
                         choose the backend `aio`"
                    }
                    // No other error is expected of valid arguments.
                    _ => "this is a bug, please report it",
                })
            }
        }
    }
}

impl std::error::Error for BackendError {}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn backend_errors_name_a_remedy() {
        let forbidden_text = BackendError::NoRing { errno: libc::EPERM }.to_string();
        assert!(forbidden_text.contains("kernel.io_uring_disabled"), "{forbidden_text}");
        assert!(forbidden_text.contains("or choose the backend `auto`"), "{forbidden_text}");
        let files_text = BackendError::NoRing { errno: libc::EMFILE }.to_string();
        assert!(files_text.contains("ulimit -n") && !files_text.contains("auto"), "{files_text}");
        // The kernel's 32,768 queue entries are for each transfer and its cancellation.
        let error = BackendKind::Ring.build(16_385).err().unwrap();
        assert_eq!(error, BackendError::Depth { depth: 16_385, depth_max: 16_384 });
        assert!(BackendKind::Ring.build(16_384).is_ok());
        let event_fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for (kind, _) in BackendKind::NAMES {
            let error = BackendError::Depth { depth: 1_000_000, depth_max: 16_384 };
            assert_eq!(kind.build(1_000_000).err(), Some(error), "{kind}");
            let built = kind.build_with_event_fd(1_000_000, event_fd.as_fd());
            assert_eq!(built.err(), Some(error), "{kind}");
        }
    }

    #[test]
    fn auto_backend_is_the_first_available_and_gives_the_reason() {
        let no_ring = BackendError::NoRing { errno: libc::EPERM };
        let no_aio = BackendError::NoAio { errno: libc::EAGAIN };
        // Build function of a machine that provides only these kinds.
        let providing = |kinds: &'static [BackendKind]| {
            move |kind| match kind {
                _ if kinds.contains(&kind) => Ok(kind),
                BackendKind::Ring => Err(no_ring),
                _ => Err(no_aio),
            }
        };
        let all: &[_] = &[BackendKind::Ring, BackendKind::Aio, BackendKind::Threads];
        let (no_ring_kinds, only_threads) = (&all[1..], &all[2..]);
        // Adds nothing to the process's share of AIO requests.
        let depth = 0;
        let expected = |kind, because| Ok((kind, BackendInUse { kind, because }));
        let auto =
            |kinds| BackendKind::Auto.first_available(depth, &EXCLUSIVE_ORDER, providing(kinds));
        assert_eq!(auto(all), expected(BackendKind::Ring, None));
        assert_eq!(auto(no_ring_kinds), expected(BackendKind::Aio, Some(no_ring)));
        assert_eq!(auto(only_threads), expected(BackendKind::Threads, Some(no_ring)));
        let shared =
            BackendKind::Auto.first_available(depth, &SHARED_ORDER, providing(only_threads));
        assert_eq!(shared, expected(BackendKind::Threads, Some(no_aio)));
        // A named kind is used or is an error.
        let named =
            BackendKind::Aio.first_available(depth, &EXCLUSIVE_ORDER, providing(only_threads));
        assert_eq!(named, Err(no_aio));
    }
}
