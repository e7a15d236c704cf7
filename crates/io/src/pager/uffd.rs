//! userfaultfd, call by call: who touches an absent page of a registered range
//! sleeps, and we are told the address and put the page there.
//!
//! Every call moves whole pages, and what it puts in place becomes visible
//! at once and whole: another thread sees the page absent or filled, never half
//! filled. That is what the pager is built on.
//!
//! An answer of `EAGAIN` means that the memory map was being changed by
//! somebody (`mmap`, `fork`), and that a part may have been done: every call
//! here goes on from there until it is whole, so callers see done or failed. One
//! for which there is no memory (`ENOMEM`) waits until there is, as the kernel's own
//! faults do: whoever is to blame is found by its OOM killer, and not by us.
//!
//! Sources: userfaultfd(2), ioctl_userfaultfd(2), and the kernel's
//! `Documentation/admin-guide/mm/userfaultfd.rst`.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use linux_raw_sys::general as raw;
use readpath_core::unit::PAGE_BYTES;
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, opcode};

use crate::sync::park_timeout;

/// The type letter of all its calls (`UFFDIO` in `linux/userfaultfd.h`).
const LETTER: u8 = raw::UFFDIO as u8;

const API: Opcode = opcode::read_write::<raw::uffdio_api>(LETTER, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(LETTER, raw::_UFFDIO_REGISTER as u8);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(LETTER, raw::_UFFDIO_WAKE as u8);
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(LETTER, raw::_UFFDIO_COPY as u8);
const ZEROPAGE: Opcode =
    opcode::read_write::<raw::uffdio_zeropage>(LETTER, raw::_UFFDIO_ZEROPAGE as u8);
const MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(LETTER, raw::_UFFDIO_MOVE as u8);
const WRITEPROTECT: Opcode =
    opcode::read_write::<raw::uffdio_writeprotect>(LETTER, raw::_UFFDIO_WRITEPROTECT as u8);
const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(LETTER, raw::_UFFDIO_POISON as u8);

/// `USERFAULTFD_IOC_NEW`: what `/dev/userfaultfd` is asked for (`linux/userfaultfd.h`).
const DEVICE_NEW: libc::c_ulong = 0xAA00;
const DEVICE: &str = "/dev/userfaultfd";

/// The size of the kernel's message (`struct uffd_msg`).
const MESSAGE_BYTES: usize = 32;
/// How many messages one [`Uffd::faults`] takes at most.
const MESSAGES_MAX: usize = 64;

/// Whose accesses are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultScope {
    /// The program's own instructions, and system calls that are given the memory.
    All,
    /// The program's own instructions. A system call that is given an absent
    /// page (`read(2)` into it, `write(2)` from it) fails with `EFAULT`.
    UserOnly,
}

/// What a range is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeRegistration {
    /// Touches of absent pages.
    Missing,
    /// Touches of absent pages, and writes to pages that are protected.
    MissingAndWrites,
}

/// A thread that sleeps until a page is put in place, or allows a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserFault {
    /// The address of the page that was touched.
    pub address: usize,
    /// Why it sleeps.
    pub kind: FaultKind,
    /// The thread, as `gettid(2)` names it.
    pub thread: u32,
}

/// Why a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It reads an absent page.
    Read,
    /// It writes to an absent page.
    Write,
    /// It writes to a page that is there, and protected.
    Protected,
}

/// A userfaultfd with every ability that the pager needs.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    scope: FaultScope,
    told: Mutex<BufferedMessages>,
}

/// What was read of a descriptor and not taken yet.
#[derive(Debug, Default)]
struct BufferedMessages {
    faults: Vec<UserFault>,
    moves: u32,
}

const WHOLE: &str = "nothing panics while it is told";

/// The abilities that the pager needs, and the first kernel with each.
const FEATURES: [(u32, &str, &str); 3] = [
    (raw::UFFD_FEATURE_THREAD_ID, "thread ids", "4.14"),
    (raw::UFFD_FEATURE_POISON, "poisoned pages", "6.6"),
    (raw::UFFD_FEATURE_MOVE, "moving pages", "6.8"),
];

impl Uffd {
    /// Opens one that serves as much as this process may: [`Uffd::scope`] says
    /// which accesses. It is tried in this order: the system call (needs
    /// `CAP_SYS_PTRACE`, or `vm.unprivileged_userfaultfd` 1), the device
    /// `/dev/userfaultfd` (needs access to it), and the system call for
    /// user-mode faults alone (needs nothing).
    ///
    /// # Errors
    /// The kernel has no userfaultfd, or not all that it takes; or something
    /// forbids it.
    pub fn open() -> Result<Uffd, UffdError> {
        Uffd::open_with(0)
    }

    /// Opens one that tells of moves of what it watches too (`mremap(2)`), which wait until that is read. Memory that is moved
    /// stays watched.
    ///
    /// # Errors
    /// As for [`open`](Uffd::open).
    pub fn open_following() -> Result<Uffd, UffdError> {
        Uffd::open_with(raw::UFFD_FEATURE_EVENT_REMAP)
    }

    /// Opens one that tells of no touch: that of an absent page is a bus error, or `EFAULT` where
    /// the kernel touches it for a system call. For memory that nobody but its owner
    /// has business with; to lock it in memory (`mlockall(2)`) takes none.
    ///
    /// # Errors
    /// As for [`open`](Uffd::open).
    pub fn open_refusing() -> Result<Uffd, UffdError> {
        Uffd::open_with(raw::UFFD_FEATURE_SIGBUS)
    }

    fn open_with(features: u32) -> Result<Uffd, UffdError> {
        let (fd, scope) = open_widest()?;
        let uffd = Uffd::of(fd, scope);
        uffd.agree(features)?;
        Ok(uffd)
    }

    fn of(fd: OwnedFd, scope: FaultScope) -> Uffd {
        Uffd { fd, scope, told: Mutex::default() }
    }

    /// Whose accesses it serves.
    pub fn scope(&self) -> FaultScope {
        self.scope
    }

    /// Asks for the abilities that the pager needs, and for `features` too; the kernel
    /// tells all that it has.
    fn agree(&self, features: u32) -> Result<(), UffdError> {
        let wanted: u32 = FEATURES.iter().map(|&(bit, ..)| bit).sum::<u32>() | features;
        let mut api = raw::uffdio_api {
            api: u64::from(raw::UFFD_API),
            features: u64::from(wanted),
            ioctls: 0,
        };
        // SAFETY: `API` takes this struct and writes to no other memory.
        match unsafe { self.call::<API, _>(&mut api) } {
            Ok(()) => Ok(()),
            Err(_) => Err(self.lacks()),
        }
    }

    /// Which ability is not there. A refused request may not be repeated on
    /// the same descriptor, so this asks on another one.
    fn lacks(&self) -> UffdError {
        let unknown = UffdError::Old { feature: "the interface of 4.3", since: "4.3" };
        let Ok((fd, scope)) = open_widest() else { return unknown };
        let other = Uffd::of(fd, scope);
        let mut api = raw::uffdio_api { api: u64::from(raw::UFFD_API), features: 0, ioctls: 0 };
        // SAFETY: `API` takes this struct and writes to no other memory.
        if unsafe { other.call::<API, _>(&mut api) }.is_err() {
            return unknown;
        }
        let lacking = FEATURES.iter().find(|&&(bit, ..)| api.features & u64::from(bit) == 0);
        lacking.map_or(unknown, |&(_, feature, since)| UffdError::Old { feature, since })
    }

    /// Has touches of a range of memory told to this descriptor, until the
    /// range is unmapped or the descriptor closed.
    ///
    /// # Safety
    /// The range is private anonymous memory of the caller, who owns all
    /// accesses to it: from here on they depend on what the caller puts there.
    ///
    /// # Errors
    /// The range is no such memory, or another descriptor has it.
    pub unsafe fn register(
        &self,
        address: usize,
        bytes: usize,
        watch: RangeRegistration,
    ) -> Result<(), CallError> {
        let mode = match watch {
            RangeRegistration::Missing => raw::UFFDIO_REGISTER_MODE_MISSING,
            RangeRegistration::MissingAndWrites => {
                raw::UFFDIO_REGISTER_MODE_MISSING | raw::UFFDIO_REGISTER_MODE_WP
            }
        };
        let mut argument =
            raw::uffdio_register { range: range(address, bytes), mode: u64::from(mode), ioctls: 0 };
        // SAFETY: the caller's promise.
        unsafe { self.call::<REGISTER, _>(&mut argument) }.map_err(CallError::at("register"))
    }

    /// Takes the faults that wait to be told, without sleeping; at most 64 at
    /// once, so that a caller with more to do is not kept from it. Gives how many moves of memory were told with them.
    ///
    /// # Errors
    /// The descriptor can't be read.
    pub fn faults(&self, faults: &mut Vec<UserFault>) -> Result<u32, CallError> {
        self.hear()?;
        let mut told = self.told.lock().expect(WHOLE);
        faults.append(&mut told.faults);
        Ok(std::mem::take(&mut told.moves))
    }

    /// Whether something was told that was not taken yet, though the descriptor has nothing to be read.
    pub fn has_told(&self) -> bool {
        !self.told.lock().expect(WHOLE).faults.is_empty()
    }

    fn hear(&self) -> Result<(), CallError> {
        let mut buffer = [0u8; MESSAGE_BYTES * MESSAGES_MAX];
        let read = match self.read(&mut buffer) {
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(errno) => return Err(CallError { call: "read", errno, bytes_done: 0 }),
        };
        let mut told = self.told.lock().expect(WHOLE);
        for message in buffer[..read].chunks_exact(MESSAGE_BYTES) {
            match u32::from(message[0]) {
                raw::UFFD_EVENT_PAGEFAULT => told.faults.push(fault(message)),
                raw::UFFD_EVENT_REMAP => told.moves += 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// Copies `bytes` bytes at `from` to absent pages at `to`, and wakes who
    /// waits for them. With `is_protected`, writes to them are told as faults.
    ///
    /// # Safety
    /// `from` can be read for `bytes` bytes and is changed by nobody meanwhile;
    /// `to` lies in a registered range of the caller.
    ///
    /// # Errors
    /// A page of the target is present already (`EEXIST`: the ones before it are
    /// in place), or is not of a registered range.
    pub unsafe fn copy(
        &self,
        to: usize,
        from: usize,
        bytes: usize,
        is_protected: bool,
    ) -> Result<(), CallError> {
        let mode = if is_protected { raw::UFFDIO_COPY_MODE_WP } else { 0 };
        self.whole(bytes, "copy", |done| {
            let mut argument = raw::uffdio_copy {
                dst: (to + done) as u64,
                src: (from + done) as u64,
                len: (bytes - done) as u64,
                mode: u64::from(mode),
                copy: 0,
            };
            // SAFETY: the caller's promise.
            let answer = unsafe { self.call::<COPY, _>(&mut argument) };
            (answer, argument.copy)
        })
    }

    /// Takes the pages at `from` away and puts them, without copying, to absent
    /// pages at `to`; wakes who waits for them. Whoever touches `from`
    /// afterwards finds it absent.
    ///
    /// # Safety
    /// Both are writable private anonymous memory of the caller, `to` in a
    /// registered range; nobody holds a reference into `from`.
    ///
    /// # Errors
    /// A page of the target is present (`EEXIST`), one of the source is absent
    /// (`ENOENT`) or in use by the kernel (`EBUSY`: an I/O to or from it is not
    /// over). The pages before it are moved. Or the program has treated the two
    /// differently (`EINVAL`, and none is moved): one of them is locked in memory and the other
    /// isn't, has another protection, or is so only in part.
    pub unsafe fn move_pages(&self, to: usize, from: usize, bytes: usize) -> Result<(), CallError> {
        self.whole(bytes, "move", |done| {
            let mut argument = raw::uffdio_move {
                dst: (to + done) as u64,
                src: (from + done) as u64,
                len: (bytes - done) as u64,
                mode: 0,
                move_: 0,
            };
            // SAFETY: the caller's promise.
            let answer = unsafe { self.call::<MOVE, _>(&mut argument) };
            (answer, argument.move_)
        })
    }

    /// Puts pages of zeroes to absent pages, and wakes who waits for them.
    ///
    /// # Safety
    /// The range is registered and the caller's.
    ///
    /// # Errors
    /// As for [`copy`](Uffd::copy).
    pub unsafe fn zero(&self, to: usize, bytes: usize) -> Result<(), CallError> {
        self.whole(bytes, "zero", |done| {
            let mut argument = raw::uffdio_zeropage {
                range: range(to + done, bytes - done),
                mode: 0,
                zeropage: 0,
            };
            // SAFETY: the caller's promise.
            let answer = unsafe { self.call::<ZEROPAGE, _>(&mut argument) };
            (answer, argument.zeropage)
        })
    }

    /// Has every access to absent pages end in `SIGBUS` from now on, as the
    /// kernel does with a mapped file that can't be read; wakes who waits.
    ///
    /// # Safety
    /// The range is registered and the caller's.
    ///
    /// # Errors
    /// As for [`copy`](Uffd::copy).
    pub unsafe fn poison(&self, to: usize, bytes: usize) -> Result<(), CallError> {
        self.whole(bytes, "poison", |done| {
            let mut argument =
                raw::uffdio_poison { range: range(to + done, bytes - done), mode: 0, updated: 0 };
            // SAFETY: the caller's promise.
            let answer = unsafe { self.call::<POISON, _>(&mut argument) };
            (answer, argument.updated)
        })
    }

    /// Lets writes to the present pages of a range through again, and wakes who
    /// waits to write.
    ///
    /// # Safety
    /// The range is registered for writes and the caller's.
    ///
    /// # Errors
    /// It is not registered so.
    pub unsafe fn unprotect(&self, address: usize, bytes: usize) -> Result<(), CallError> {
        let mut argument = raw::uffdio_writeprotect { range: range(address, bytes), mode: 0 };
        loop {
            // SAFETY: the caller's promise.
            match unsafe { self.call::<WRITEPROTECT, _>(&mut argument) } {
                Err(Errno::AGAIN) => self.hear()?,
                answer => return answer.map_err(CallError::at("write-protect")),
            }
        }
    }

    /// Wakes who waits for a page of the range: they try again.
    ///
    /// # Errors
    /// The range is not whole pages.
    pub fn wake(&self, address: usize, bytes: usize) -> Result<(), CallError> {
        let mut argument = range(address, bytes);
        // SAFETY: `WAKE` takes this struct; threads that try again find the
        // memory as it is.
        unsafe { self.call::<WAKE, _>(&mut argument) }.map_err(CallError::at("wake"))
    }

    /// Repeats a call that may stop half-way until all `bytes` bytes are done.
    /// `call` gets how many are, and gives the raw answer and how many it did.
    fn whole(
        &self,
        bytes: usize,
        name: &'static str,
        mut call: impl FnMut(usize) -> (Result<(), Errno>, i64),
    ) -> Result<(), CallError> {
        let mut done = 0;
        while done < bytes {
            let (answer, count) = call(done);
            // A call that has stopped tells how far it came; else a negative errno.
            done += usize::try_from(count).unwrap_or(0);
            match answer {
                Ok(()) => {}
                // A move that waits to be told of is a change too, and lasts until then.
                Err(Errno::AGAIN) => self.hear()?,
                Err(Errno::NOMEM) => park_timeout(MEMORY_WAIT),
                Err(errno) => return Err(CallError { call: name, errno, bytes_done: done }),
            }
        }
        Ok(())
    }

    fn read(&self, to: &mut [u8]) -> Result<usize, Errno> {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(read) = crate::simulation::memory::messages(self.as_fd(), to) {
            return read;
        }
        rustix::io::read(&self.fd, to)
    }

    /// # Safety
    /// `OPCODE` is a call of userfaultfd that takes a `T`; what it does to the
    /// memory that the argument names is the caller's to answer for.
    unsafe fn call<const OPCODE: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        #[cfg(any(test, feature = "simulation"))]
        {
            let argument = std::ptr::from_mut(argument).cast();
            // SAFETY: the caller's promise.
            let answer = unsafe { crate::simulation::memory::call(self.as_fd(), OPCODE, argument) };
            if let Some(answer) = answer {
                return answer;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { ioctl::ioctl(&self.fd, ioctl::Updater::<OPCODE, T>::new(argument)) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How long a call for which there is no memory waits until it is tried again: the kernel has had time to reclaim
/// some, and nobody notices so much beside that.
const MEMORY_WAIT: Duration = Duration::from_millis(1);

fn range(address: usize, bytes: usize) -> raw::uffdio_range {
    raw::uffdio_range { start: address as u64, len: bytes as u64 }
}

/// Reads a message: the event, then (at bytes 8, 16 and 24) its flags, the
/// address and the thread (`struct uffd_msg`).
fn fault(message: &[u8]) -> UserFault {
    let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("8 bytes"));
    let flags = word(8) as u32;
    let kind = if flags & raw::UFFD_PAGEFAULT_FLAG_WP != 0 {
        FaultKind::Protected
    } else if flags & raw::UFFD_PAGEFAULT_FLAG_WRITE != 0 {
        FaultKind::Write
    } else {
        FaultKind::Read
    };
    let address = word(16) as usize;
    UserFault { address: address - address % PAGE_BYTES as usize, kind, thread: word(24) as u32 }
}

/// The descriptor with the widest scope that this process may have.
fn open_widest() -> Result<(OwnedFd, FaultScope), UffdError> {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(fd) = crate::simulation::memory::open() {
        return Ok((fd, FaultScope::All));
    }
    let all = match by_call(0) {
        Ok(fd) => return Ok((fd, FaultScope::All)),
        Err(Errno::NOSYS) => return Err(UffdError::None),
        Err(errno) => errno,
    };
    if let Ok(fd) = by_device() {
        return Ok((fd, FaultScope::All));
    }
    match by_call(raw::UFFD_USER_MODE_ONLY) {
        Ok(fd) => Ok((fd, FaultScope::UserOnly)),
        // Before 5.11 the flag is not known.
        Err(Errno::INVAL) => Err(UffdError::Forbidden { errno: all.raw_os_error() }),
        Err(errno) => Err(UffdError::Forbidden { errno: errno.raw_os_error() }),
    }
}

/// No program that a process becomes has it, and who reads finds nothing rather than waits.
const DESCRIPTOR_FLAGS: u32 = raw::O_CLOEXEC | raw::O_NONBLOCK;

fn by_call(flags: u32) -> Result<OwnedFd, Errno> {
    let flags = flags | DESCRIPTOR_FLAGS;
    let flags = rustix::mm::UserfaultfdFlags::from_bits_retain(flags);
    // SAFETY: a descriptor alone touches no memory; what is done through it
    // later has contracts of its own.
    unsafe { rustix::mm::userfaultfd(flags) }
}

fn by_device() -> std::io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    let flags = libc::c_ulong::from(DESCRIPTOR_FLAGS);
    // SAFETY: the device's only call; its argument is a number.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_NEW, flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which nobody else knows of.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Why there is no userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UffdError {
    /// The kernel was built without it.
    None,
    /// It is there, and forbidden here.
    Forbidden {
        /// The kernel's answer, as in `errno(3)`.
        errno: i32,
    },
    /// It lacks something that the pager needs.
    Old {
        /// What it lacks.
        feature: &'static str,
        /// The first kernel that has it.
        since: &'static str,
    },
}

impl fmt::Display for UffdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UffdError::None => f.write_str(
                "this kernel has no userfaultfd, by which faults are served in user space; it \
                 needs one built with CONFIG_USERFAULTFD",
            ),
            UffdError::Forbidden { errno } => write!(
                f,
                "userfaultfd, by which faults are served in user space, is refused here ({}); \
                 have one of: the system call let through by the container's seccomp profile, \
                 read and write access to {DEVICE}, or `sysctl vm.unprivileged_userfaultfd=1`",
                std::io::Error::from_raw_os_error(*errno)
            ),
            UffdError::Old { feature, since } => write!(
                f,
                "this kernel's userfaultfd lacks {feature}; it needs Linux {since} or later"
            ),
        }
    }
}

impl std::error::Error for UffdError {}

/// Why a call on a userfaultfd failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    /// Which call.
    pub call: &'static str,
    /// The kernel's answer.
    pub(crate) errno: Errno,
    /// How much of the range was done before.
    pub bytes_done: usize,
}

impl CallError {
    fn at(call: &'static str) -> impl Fn(Errno) -> CallError {
        move |errno| CallError { call, errno, bytes_done: 0 }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "userfaultfd's call `{}` failed: {}", self.call, self.errno)
    }
}

impl std::error::Error for CallError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of a descriptor, however it was had: FD_CLOEXEC and O_NONBLOCK, as in fcntl(2).
    #[test]
    fn a_descriptor_ends_with_the_program_and_never_blocks() {
        for fd in [by_call(0).ok(), by_device().ok()].into_iter().flatten() {
            // SAFETY: questions about a descriptor of ours.
            let (own, of_file) = unsafe {
                let fd = fd.as_raw_fd();
                (libc::fcntl(fd, libc::F_GETFD), libc::fcntl(fd, libc::F_GETFL))
            };
            assert_eq!(own, libc::FD_CLOEXEC);
            assert_ne!(of_file & libc::O_NONBLOCK, 0);
        }
    }
}
