//! What carries bytes: AIO, a ring or threads, behind one small interface.
//!
//! A backend knows pieces of memory, offsets and the kernel's raw answers. It
//! decides nothing: what an answer means is for `outcome.rs`, and what to
//! do about it for `transfers.rs`. All backends give the same answers to
//! the same transfers; the contract tests hold them to that.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use readpath_core::request::Op;

use crate::aio::{Aio, share};
use crate::outcome::raw_result;
use crate::ring::UringBackend;
use crate::threads::{Threads, ThreadsSleeper};

/// Which backend carries the bytes.
///
/// Its name, as the command and Python take it, is one of `auto`, `aio`, `io_uring`, `threads`.
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
    /// The first of those that suit, among what the kernel gives here; [`BackendInUse`] says which,
    /// and why not an earlier one. Where threads share it, or take turns: AIO, then threads. Where
    /// one thread has it to itself: io_uring, then AIO, then threads.
    #[default]
    Auto,
    /// Linux AIO: requests end in the interrupt of the device, on nobody's thread. What goes through the
    /// kernel's cache is carried by threads, for AIO would wait for it as it is handed over.
    Aio,
    /// io_uring: one system call hands over and sleeps. The end of a request is done by the
    /// thread that handed it over, so where threads share it, one that is held up
    /// (in `vfork`, by the scheduler, in a system call) holds up them all.
    Ring,
    /// A pool of threads, each in `preadv(2)` or `pwritev(2)`: the reference,
    /// and the way where the others are forbidden.
    Threads,
}

/// What carries the bytes, and why not what suits better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendInUse {
    /// Which; never [`BackendKind::Auto`].
    pub kind: BackendKind,
    /// Why the one that comes first in [`BackendKind::Auto`] doesn't.
    pub because: Option<BackendError>,
}

impl BackendInUse {
    /// Threads in its place, where it was `refused` since.
    pub(crate) fn unless(self, refused: Option<BackendError>) -> BackendInUse {
        match refused {
            Some(_) => BackendInUse { kind: BackendKind::Threads, because: refused },
            None => self,
        }
    }
}

impl BackendKind {
    /// All of them, with their names.
    pub const NAMES: [(BackendKind, &'static str); 4] = [
        (BackendKind::Auto, "auto"),
        (BackendKind::Aio, "aio"),
        (BackendKind::Ring, "io_uring"),
        (BackendKind::Threads, "threads"),
    ];

    /// Builds it for `depth` transfers at once, for one thread alone.
    ///
    /// # Errors
    /// The kernel gives none of its kind.
    pub(crate) fn build(self, depth: u32) -> Result<Built, BackendError> {
        self.first_of(depth, &BESIDE_NOBODY, |kind| {
            Ok::<Box<dyn Backend>, _>(match kind {
                BackendKind::Ring => Box::new(UringBackend::new(depth)?),
                BackendKind::Aio => Box::new(Aio::new(depth)?),
                _ => Box::new(Threads::new(depth)),
            })
        })
    }

    /// Builds it for `depth` transfers at once, for threads that take turns,
    /// with what one of them sleeps on while another queues.
    ///
    /// # Errors
    /// As [`build`](BackendKind::build).
    pub(crate) fn build_shared(
        self,
        depth: u32,
    ) -> Result<(SharedBackend, BackendInUse), BackendError> {
        if depth > SHARED_DEPTH_MAX {
            return Err(BackendError::Depth { depth, depth_max: SHARED_DEPTH_MAX });
        }
        #[cfg(any(test, feature = "simulation"))]
        if let Some(built) = crate::simulation::disk::backend() {
            return Ok((built, BackendInUse { kind: BackendKind::Aio, because: None }));
        }
        self.first_of(depth, &BESIDE_OTHERS, |kind| {
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
                _ => {
                    let threads = Threads::new(depth);
                    let sleeper = ThreadsSleeper(Arc::clone(threads.pool()));
                    (Box::new(threads), Arc::new(sleeper))
                }
            })
        })
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
    ) -> Result<Built, BackendError> {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(built) = crate::simulation::disk::backend_with_bell(bell) {
            return Ok((built, BackendInUse { kind: BackendKind::Aio, because: None }));
        }
        self.first_of(depth, &BESIDE_NOBODY, |kind| {
            Ok::<Box<dyn Backend>, _>(match kind {
                BackendKind::Ring => {
                    let ring = UringBackend::new(depth)?;
                    ring.set_bell(bell)?;
                    Box::new(ring)
                }
                BackendKind::Aio => Box::new(Aio::with_bell(depth, bell)?),
                _ => {
                    let threads = Threads::new(depth);
                    threads.set_bell(bell)?;
                    Box::new(threads)
                }
            })
        })
    }

    /// Builds the kind that was asked for, or the first of `order` that there is; of AIO, which has
    /// `depth` requests, only as much as others [can spare](share::look).
    pub(crate) fn first_of<B>(
        self,
        depth: u32,
        order: &[BackendKind],
        mut build: impl FnMut(BackendKind) -> Result<B, BackendError>,
    ) -> Result<(B, BackendInUse), BackendError> {
        if self != BackendKind::Auto {
            return Ok((build(self)?, BackendInUse { kind: self, because: None }));
        }
        let mut because = None;
        for &kind in order {
            let is_spared = if kind == BackendKind::Aio { share::look(depth) } else { Ok(()) };
            match is_spared.and_then(|()| build(kind)) {
                Ok(built) => return Ok((built, BackendInUse { kind, because })),
                // With another one it would be the same.
                Err(error @ BackendError::Depth { .. }) => return Err(error),
                Err(error) => because = because.or(Some(error)),
            }
        }
        Err(because.expect("there is a kind to be tried"))
    }
}

/// What a ring has room for, and its bell; the same for all, so that a program doesn't find out elsewhere.
const SHARED_DEPTH_MAX: u32 = 16_383;
/// What is tried where one thread has a backend to itself, in this order.
const BESIDE_NOBODY: [BackendKind; 3] = [BackendKind::Ring, BackendKind::Aio, BackendKind::Threads];
/// What is tried where threads share one, or use it one after the other.
pub(crate) const BESIDE_OTHERS: [BackendKind; 2] = [BackendKind::Aio, BackendKind::Threads];

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let found = BackendKind::NAMES.iter().find(|(kind, _)| kind == self);
        f.write_str(found.expect("each has a name").1)
    }
}

impl std::str::FromStr for BackendKind {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<BackendKind, UnknownBackend> {
        let found = BackendKind::NAMES.iter().find(|(_, known)| *known == name);
        found.map(|&(kind, _)| kind).ok_or_else(|| UnknownBackend { name: name.to_owned() })
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

/// There is no backend of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownBackend {
    /// What was given.
    pub name: String,
}

impl std::fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = BackendKind::NAMES.map(|(_, name)| name).join(", ");
        write!(f, "there is no backend `{}`; there are: {names}", self.name)
    }
}

impl std::error::Error for UnknownBackend {}

/// A backend of one thread, and which one it is.
pub(crate) type Built = (Box<dyn Backend>, BackendInUse);

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
    /// Whether the file is open for direct I/O.
    pub is_direct: bool,
}

/// The kernel's answer to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelAnswer {
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
/// It takes nothing out. So another thread may take answers out (`exchange`) while one sleeps here, and
/// then [wakes](Sleeper::wake) it if there is nothing left for it to sleep for.
pub trait Sleeper: Send + Sync {
    /// Hands over what was queued, and sleeps as long as `sleep` allows until
    /// there is an answer, or until [`wake`](Sleeper::wake). May come back early
    /// with nothing. With nothing in flight only `wake` ends it. True when it slept for
    /// answers and none lay there at the begin: those that there are now have just come.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError>;

    /// Hands over what was queued. What hinders it is told by the next [`sleep`](Sleeper::sleep).
    fn hand_over(&self) {
        let _ = self.sleep(Sleep::Never);
    }

    /// Takes in what lies in the kernel for one who sleeps and doesn't come for it. Nothing to do where answers lie in
    /// memory that is shared with the kernel.
    fn look(&self) {}

    /// Ends the sleep of whoever sleeps, or else the next one. From any thread.
    fn wake(&self);

    /// Whether there are transfers that take a thread of their own, and that nobody has begun.
    fn has_work(&self) -> bool {
        false
    }

    /// Carries one of them on this thread, which has to wait for an answer anyway; nothing if there is
    /// none. Otherwise says, as [`sleep`](Sleeper::sleep) does, whether the answer was awaited.
    fn work(&self) -> Option<bool> {
        None
    }
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

    /// Why what was built no longer carries, and something else does in its place.
    fn refused(&self) -> Option<BackendError> {
        None
    }

    /// Asks the kernel to withdraw a transfer. It is answered all the same: with
    /// `-ECANCELED` if that came in time.
    fn cancel(&mut self, token: u64);

    /// Adds the answers that there are to `answers`, without a system call where somebody else sleeps
    /// for them. True if something is to be handed over for that.
    ///
    /// # Errors
    /// As [`exchange`](Backend::exchange).
    fn collect(&mut self, answers: &mut Vec<KernelAnswer>) -> Result<bool, BackendError> {
        self.exchange(Sleep::Never, answers).map(|()| false)
    }

    /// Hands over what was queued, and adds the answers that there are to
    /// `answers`, sleeping in the kernel for the first one as long as `sleep`
    /// allows. May come back early with none when a signal interrupts it.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such; no answer is lost by that.
    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError>;
}

/// Carries one transfer with one system call, and gives the kernel's raw answer.
///
/// # Safety
/// The pieces of memory are valid, and nobody else uses them; the file is open.
pub(crate) unsafe fn carry(fd: RawFd, op: Op, offset: u64, segments: &[libc::iovec]) -> i32 {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(raw) = crate::simulation::disk::carry(fd, op, offset, segments) {
        return raw;
    }
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
    /// More transfers at once than there is room for.
    Depth {
        /// How many were asked for.
        depth: u32,
        /// How many there can be.
        depth_max: u32,
    },
    /// The kernel is older than 5.11: its ring can't sleep for a limited time.
    OldRing,
    /// The kernel gives no AIO.
    NoAio {
        /// Its answer, as in `errno(3)`.
        errno: i32,
    },
    /// The AIO requests that are left of the system's limit are for other programs.
    AioShare {
        /// Number of requests that this process has.
        taken: u32,
        /// Most that all processes may have (`fs.aio-max-nr`).
        system_max: u32,
    },
    /// The kernel gives no eventfd.
    NoBell {
        /// Its answer, as in `errno(3)`.
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
                write!(f, "the kernel gives no AIO: {}; ", told(errno))?;
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
            BackendError::NoBell { errno } => write!(
                f,
                "the kernel gives no eventfd: {}; raise the limit of open files (ulimit -n)",
                told(errno)
            ),
            BackendError::Exchange { errno } => {
                write!(f, "io_uring_enter failed: {}; ", told(errno))?;
                f.write_str(match errno {
                    libc::EPERM | libc::EACCES | libc::ENOSYS => {
                        "a sandbox has come to forbid it since the opening: set it up before, or \
                         choose the backend `aio`"
                    }
                    _ => "this is a bug, please report it",
                })
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
        assert!(refused.contains("or choose the backend `auto`"), "{refused}");
        let too_many = BackendError::NoRing { errno: libc::EMFILE }.to_string();
        assert!(too_many.contains("ulimit -n") && !too_many.contains("auto"), "{too_many}");
        let error = BackendKind::Ring.build(16_385).err().unwrap();
        assert_eq!(error, BackendError::Depth { depth: 16_385, depth_max: 16_384 });
        assert!(BackendKind::Ring.build(16_384).is_ok());
    }

    #[test]
    fn auto_takes_the_first_that_there_is_and_says_why_not_an_earlier_one() {
        let no_ring = BackendError::NoRing { errno: libc::EPERM };
        let no_aio = BackendError::NoAio { errno: libc::EAGAIN };
        let there = |kinds: &'static [BackendKind]| {
            move |kind| match kind {
                _ if kinds.contains(&kind) => Ok(kind),
                BackendKind::Ring => Err(no_ring),
                _ => Err(no_aio),
            }
        };
        let all: &[_] = &[BackendKind::Ring, BackendKind::Aio, BackendKind::Threads];
        let built = |kind, because| Ok((kind, BackendInUse { kind, because }));
        let auto = |kinds| BackendKind::Auto.first_of(0, &BESIDE_NOBODY, there(kinds));
        assert_eq!(auto(all), built(BackendKind::Ring, None));
        assert_eq!(auto(&all[1..]), built(BackendKind::Aio, Some(no_ring)));
        assert_eq!(auto(&all[2..]), built(BackendKind::Threads, Some(no_ring)));
        let shared = BackendKind::Auto.first_of(0, &BESIDE_OTHERS, there(&all[2..]));
        assert_eq!(shared, built(BackendKind::Threads, Some(no_aio)));
        // What is asked for by name is that or nothing.
        let named = BackendKind::Aio.first_of(0, &BESIDE_NOBODY, there(&all[2..]));
        assert_eq!(named, Err(no_aio));
    }
}
