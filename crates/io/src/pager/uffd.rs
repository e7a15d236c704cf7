//! Wrapper of userfaultfd. A thread that touches an absent page of a registered range sleeps. The
//! userfaultfd reports the address, which is a *fault*, and its owner puts the page there. A
//! *remap* is a move of registered memory to another address by `mremap(2)`, which the userfaultfd
//! may report. It differs from a move of pages by a call here ([`Uffd::move_pages`]).
//!
//! Each call fills or moves whole pages, and the result becomes visible in one step: another thread
//! sees a page absent or filled, never half filled. The pager (mappings and regions) is built on
//! this property.
//!
//! The answer `EAGAIN` means that the memory map was changed at the same time (`mmap`, `fork`), and
//! a part may be done. Each call here continues until all is done, so callers see success or
//! failure. A call without memory (`ENOMEM`) waits for memory, as the kernel's own faults do. The
//! kernel's OOM killer selects the process to blame.
//!
//! A thread of a simulation (`cfg(simulation)`) gets the answers of a model, not of the kernel.
//! Functions with `cfg(inside)` exist only in the crate `readpath-dst`, for tests of this layer.
//!
//! Sources: userfaultfd(2), ioctl_userfaultfd(2), and the kernel's
//! `Documentation/admin-guide/mm/userfaultfd.rst`.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use linux_raw_sys::general as raw;
use readpath_core::unit::PAGE_BYTES;
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, opcode};

use crate::os::sync::park_timeout;

mod error;

pub use error::{CallError, UffdError};

/// Type letter of all its ioctls (`UFFDIO` in `linux/userfaultfd.h`).
const IOCTL_TYPE: u8 = raw::UFFDIO as u8;

const API: Opcode = opcode::read_write::<raw::uffdio_api>(IOCTL_TYPE, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(IOCTL_TYPE, raw::_UFFDIO_REGISTER as u8);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(IOCTL_TYPE, raw::_UFFDIO_WAKE as u8);
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(IOCTL_TYPE, raw::_UFFDIO_COPY as u8);
#[cfg(inside)]
const ZEROPAGE: Opcode =
    opcode::read_write::<raw::uffdio_zeropage>(IOCTL_TYPE, raw::_UFFDIO_ZEROPAGE as u8);
const MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(IOCTL_TYPE, raw::_UFFDIO_MOVE as u8);
const WRITEPROTECT: Opcode =
    opcode::read_write::<raw::uffdio_writeprotect>(IOCTL_TYPE, raw::_UFFDIO_WRITEPROTECT as u8);
const POISON: Opcode =
    opcode::read_write::<raw::uffdio_poison>(IOCTL_TYPE, raw::_UFFDIO_POISON as u8);

/// `USERFAULTFD_IOC_NEW`: request to `/dev/userfaultfd` for a userfaultfd (`linux/userfaultfd.h`).
const DEVICE_NEW: libc::c_ulong = 0xAA00;
const DEVICE: &str = "/dev/userfaultfd";

/// Size of the kernel's message in bytes (`struct uffd_msg`).
const MESSAGE_BYTES: usize = 32;
/// Maximum number of messages that one [`Uffd::take_faults`] reads.
const MESSAGES_MAX: usize = 64;

/// Accesses that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultScope {
    /// The program's own instructions, and system calls that use the memory.
    All,
    /// Only the program's own instructions. A system call with an absent page (`read(2)` into it,
    /// `write(2)` from it) fails with `EFAULT`.
    UserOnly,
}

/// Faults that a range is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeRegistration {
    /// Touches of absent pages.
    Missing,
    /// Touches of absent pages, and writes to protected pages.
    MissingAndWrites,
}

/// A thread that sleeps until a page is filled or becomes writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserFault {
    /// Address of the touched page.
    pub address: usize,
    /// Reason for the sleep.
    pub kind: FaultKind,
    /// Thread number, as `gettid(2)` returns it.
    pub thread: u32,
}

/// Reason for a thread's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Read of an absent page.
    Read,
    /// Write to an absent page.
    Write,
    /// Write to a present, protected page.
    Protected,
}

/// A userfaultfd with all features that the pager needs.
#[derive(Debug)]
pub struct Uffd {
    /// The open userfaultfd.
    fd: OwnedFd,
    /// Accesses that it serves.
    scope: FaultScope,
    /// A call that meets `EAGAIN` reads messages of the kernel, and keeps them here.
    buffered: Mutex<BufferedMessages>,
}

/// Messages read from the descriptor and not taken yet.
#[derive(Debug, Default)]
struct BufferedMessages {
    faults: Vec<UserFault>,
    /// Number of reported remaps.
    remaps: u32,
}

/// Reason for which the lock is never poisoned.
const LOCK_NOT_POISONED: &str = "no thread panics while it is set";

/// Features that the pager needs: the bit, a name for messages, and the first kernel with it.
const FEATURES: [(u32, &str, &str); 3] = [
    (raw::UFFD_FEATURE_THREAD_ID, "thread ids", "4.14"),
    (raw::UFFD_FEATURE_POISON, "poisoned pages", "6.6"),
    (raw::UFFD_FEATURE_MOVE, "moving pages", "6.8"),
];

impl Uffd {
    /// Opens a userfaultfd with the widest scope that this process may have, see [`Uffd::scope`].
    /// The order of attempts is:
    ///
    /// 1. the system call (needs `CAP_SYS_PTRACE`, or `vm.unprivileged_userfaultfd` 1),
    /// 2. the device `/dev/userfaultfd` (needs access to it),
    /// 3. the system call for user-mode faults only (needs no privilege).
    ///
    /// # Errors
    /// The kernel has no userfaultfd, lacks a feature, or forbids its use.
    pub fn open() -> Result<Uffd, UffdError> {
        let additional_features = 0;
        Uffd::open_with(additional_features)
    }

    /// Opens a userfaultfd that also reports remaps of registered memory (`mremap(2)`). A remap
    /// waits until its report is read. The memory stays registered.
    ///
    /// # Errors
    /// As for [`open`](Uffd::open).
    pub fn open_reporting_remaps() -> Result<Uffd, UffdError> {
        Uffd::open_with(raw::UFFD_FEATURE_EVENT_REMAP)
    }

    /// Opens a userfaultfd that reports no touches. A touch of an absent page is a bus error, or
    /// `EFAULT` in a system call. It is meant for memory that only its owner uses. Locking that
    /// memory (`mlockall(2)`) then adds no pages.
    ///
    /// # Errors
    /// As for [`open`](Uffd::open).
    pub fn open_without_reports() -> Result<Uffd, UffdError> {
        Uffd::open_with(raw::UFFD_FEATURE_SIGBUS)
    }

    /// Opens a userfaultfd with the widest scope and the additional `features`, a bit set.
    fn open_with(features: u32) -> Result<Uffd, UffdError> {
        let (fd, scope) = open_widest()?;
        let uffd = Uffd::from_fd(fd, scope);
        uffd.request_features(features)?;
        Ok(uffd)
    }

    /// Wraps an open userfaultfd whose features were not requested yet.
    fn from_fd(fd: OwnedFd, scope: FaultScope) -> Uffd {
        Uffd { fd, scope, buffered: Mutex::default() }
    }

    /// Accesses that it serves.
    pub fn scope(&self) -> FaultScope {
        self.scope
    }

    /// Requests the features that the pager needs, and the additional `features`, a bit set. The
    /// error names a missing one.
    fn request_features(&self, features: u32) -> Result<(), UffdError> {
        // The bits are distinct, so their sum is their union.
        let all_features: u32 = FEATURES.iter().map(|&(bit, ..)| bit).sum::<u32>() | features;
        let mut api = raw::uffdio_api {
            api: u64::from(raw::UFFD_API),
            features: u64::from(all_features),
            ioctls: 0,
        };
        // SAFETY: `API` takes this struct and writes to no other memory.
        match unsafe { self.call_ioctl::<API, _>(&mut api) } {
            Ok(()) => Ok(()),
            Err(_) => Err(self.find_missing_feature()),
        }
    }

    /// Returns the error for a rejected request of features. Finds the missing feature on a new
    /// descriptor, because a request cannot be repeated. If the kernel has all of them or does not
    /// answer, the interface itself counts as missing.
    fn find_missing_feature(&self) -> UffdError {
        let unknown = UffdError::Old { feature: "the interface of 4.3", since: "4.3" };
        let Ok((fd, scope)) = open_widest() else { return unknown };
        let new_uffd = Uffd::from_fd(fd, scope);
        // A call without requested features returns all that the kernel has.
        let mut api = raw::uffdio_api { api: u64::from(raw::UFFD_API), features: 0, ioctls: 0 };
        // SAFETY: `API` takes this struct and writes to no other memory.
        if unsafe { new_uffd.call_ioctl::<API, _>(&mut api) }.is_err() {
            return unknown;
        }
        let missing = FEATURES.iter().find(|&&(bit, ..)| api.features & u64::from(bit) == 0);
        missing.map_or(unknown, |&(_, feature, since)| UffdError::Old { feature, since })
    }

    /// Registers a range of memory for fault reports, until the range is unmapped or the descriptor
    /// is closed.
    ///
    /// # Safety
    /// The range is private anonymous memory of the caller, who owns all accesses to it. From here
    /// on, these accesses depend on the pages that the caller puts there.
    ///
    /// # Errors
    /// The range is other memory, or it is registered with another descriptor.
    pub unsafe fn register(
        &self,
        address: usize,
        bytes: usize,
        registration: RangeRegistration,
    ) -> Result<(), CallError> {
        let mode = match registration {
            RangeRegistration::Missing => raw::UFFDIO_REGISTER_MODE_MISSING,
            RangeRegistration::MissingAndWrites => {
                raw::UFFDIO_REGISTER_MODE_MISSING | raw::UFFDIO_REGISTER_MODE_WP
            }
        };
        let mut argument = raw::uffdio_register {
            range: ioctl_range(address, bytes),
            mode: u64::from(mode),
            ioctls: 0,
        };
        // SAFETY: the caller guarantees the contract of this function.
        unsafe { self.call_ioctl::<REGISTER, _>(&mut argument) }
            .map_err(CallError::from_errno("register"))
    }

    /// Reads pending faults without sleeping and adds them to `faults`, with those that were
    /// buffered before. Reads at most `MESSAGES_MAX` messages, so that the caller can do other
    /// work. Returns the number of remaps reported since the last call.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn take_faults(&self, faults: &mut Vec<UserFault>) -> Result<u32, CallError> {
        self.read_messages()?;
        let mut buffered = self.buffered.lock().expect(LOCK_NOT_POISONED);
        faults.append(&mut buffered.faults);
        Ok(std::mem::take(&mut buffered.remaps))
    }

    /// True if faults were read from the descriptor and not taken yet. The descriptor itself may
    /// then be empty.
    pub fn has_buffered_faults(&self) -> bool {
        !self.buffered.lock().expect(LOCK_NOT_POISONED).faults.is_empty()
    }

    /// Reads up to `MESSAGES_MAX` pending messages without sleeping, and buffers their faults and
    /// remaps.
    fn read_messages(&self) -> Result<(), CallError> {
        let mut buffer = [0u8; MESSAGE_BYTES * MESSAGES_MAX];
        let read_bytes = match self.read_descriptor(&mut buffer) {
            Ok(read_bytes) => read_bytes,
            // There is no message, or a signal came: the next call reads.
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(errno) => return Err(CallError { call: "read", errno, bytes_done: 0 }),
        };
        let mut buffered = self.buffered.lock().expect(LOCK_NOT_POISONED);
        for message in buffer[..read_bytes].chunks_exact(MESSAGE_BYTES) {
            match u32::from(message[0]) {
                raw::UFFD_EVENT_PAGEFAULT => buffered.faults.push(parse_fault(message)),
                raw::UFFD_EVENT_REMAP => buffered.remaps += 1,
                // No other event was requested, so none is expected.
                _ => {}
            }
        }
        Ok(())
    }

    /// Copies `bytes` bytes at the address `from_address` to absent pages at `to_address`, and
    /// wakes the threads that wait for them. With `is_protected`, writes to these pages are
    /// reported as faults.
    ///
    /// # Safety
    /// The bytes at `from_address` are readable and not changed meanwhile. The target lies in a
    /// registered range of the caller.
    ///
    /// # Errors
    /// A target page is already present (`EEXIST`: the pages before it are in place), or is not in
    /// a registered range.
    pub unsafe fn copy(
        &self,
        to_address: usize,
        from_address: usize,
        bytes: usize,
        is_protected: bool,
    ) -> Result<(), CallError> {
        let mode = if is_protected { raw::UFFDIO_COPY_MODE_WP } else { 0 };
        self.repeat_until_complete(bytes, "copy", |bytes_done| {
            let mut argument = raw::uffdio_copy {
                dst: (to_address + bytes_done) as u64,
                src: (from_address + bytes_done) as u64,
                len: (bytes - bytes_done) as u64,
                mode: u64::from(mode),
                copy: 0,
            };
            // SAFETY: the caller guarantees the contract of this function.
            let answer = unsafe { self.call_ioctl::<COPY, _>(&mut argument) };
            (answer, argument.copy)
        })
    }

    /// Moves the pages at the address `from_address` without copying to absent pages at
    /// `to_address`, and wakes the threads that wait for them. Pages at `from_address` are absent
    /// afterwards.
    ///
    /// # Safety
    /// Both are writable private anonymous memory of the caller, and the target is in a registered
    /// range. There are no references into the source.
    ///
    /// # Errors
    /// The pages before the failing one are moved, except for `EINVAL`, which moves none.
    ///
    /// - `EEXIST`: a target page is present.
    /// - `ENOENT`: a source page is absent.
    /// - `EBUSY`: the kernel uses a source page, because I/O to or from it is in progress.
    /// - `EINVAL`: the program has treated the two ranges differently. One is locked in memory and
    ///   the other is not, or has another protection, or only a part of it is so.
    pub unsafe fn move_pages(
        &self,
        to_address: usize,
        from_address: usize,
        bytes: usize,
    ) -> Result<(), CallError> {
        self.repeat_until_complete(bytes, "move", |bytes_done| {
            let mut argument = raw::uffdio_move {
                dst: (to_address + bytes_done) as u64,
                src: (from_address + bytes_done) as u64,
                len: (bytes - bytes_done) as u64,
                mode: 0,
                move_: 0,
            };
            // SAFETY: the caller guarantees the contract of this function.
            let answer = unsafe { self.call_ioctl::<MOVE, _>(&mut argument) };
            (answer, argument.move_)
        })
    }

    /// Puts zero pages to absent pages from the address `to_address` on, and wakes the threads that
    /// wait for them.
    ///
    /// # Safety
    /// The range is registered and belongs to the caller.
    ///
    /// # Errors
    /// As for [`copy`](Uffd::copy).
    #[cfg(inside)]
    pub unsafe fn zero(&self, to_address: usize, bytes: usize) -> Result<(), CallError> {
        self.repeat_until_complete(bytes, "zero", |bytes_done| {
            let mut argument = raw::uffdio_zeropage {
                range: ioctl_range(to_address + bytes_done, bytes - bytes_done),
                mode: 0,
                zeropage: 0,
            };
            // SAFETY: the caller guarantees the contract of this function.
            let answer = unsafe { self.call_ioctl::<ZEROPAGE, _>(&mut argument) };
            (answer, argument.zeropage)
        })
    }

    /// Makes each access to absent pages from the address `to_address` on end in `SIGBUS`, as the
    /// kernel does for a mapped file that cannot be read. Wakes the waiting threads.
    ///
    /// # Safety
    /// The range is registered and belongs to the caller.
    ///
    /// # Errors
    /// As for [`copy`](Uffd::copy).
    pub unsafe fn poison(&self, to_address: usize, bytes: usize) -> Result<(), CallError> {
        self.repeat_until_complete(bytes, "poison", |bytes_done| {
            let mut argument = raw::uffdio_poison {
                range: ioctl_range(to_address + bytes_done, bytes - bytes_done),
                mode: 0,
                updated: 0,
            };
            // SAFETY: the caller guarantees the contract of this function.
            let answer = unsafe { self.call_ioctl::<POISON, _>(&mut argument) };
            (answer, argument.updated)
        })
    }

    /// Permits writes to the present pages of a range again, and wakes the threads that wait to
    /// write.
    ///
    /// # Safety
    /// The range is registered for writes and belongs to the caller.
    ///
    /// # Errors
    /// The range is not registered for writes.
    pub unsafe fn unprotect(&self, address: usize, bytes: usize) -> Result<(), CallError> {
        let mut argument = raw::uffdio_writeprotect { range: ioctl_range(address, bytes), mode: 0 };
        loop {
            // SAFETY: the caller guarantees the contract of this function.
            match unsafe { self.call_ioctl::<WRITEPROTECT, _>(&mut argument) } {
                Err(Errno::AGAIN) => self.read_messages()?,
                answer => return answer.map_err(CallError::from_errno("write-protect")),
            }
        }
    }

    /// Wakes the threads that wait for a page of the range, so that they try again.
    ///
    /// # Errors
    /// The range does not consist of whole pages.
    pub fn wake(&self, address: usize, bytes: usize) -> Result<(), CallError> {
        let mut argument = ioctl_range(address, bytes);
        // SAFETY: `WAKE` takes this struct. Threads that try again find the memory unchanged.
        unsafe { self.call_ioctl::<WAKE, _>(&mut argument) }.map_err(CallError::from_errno("wake"))
    }

    /// Repeats a call that may stop early until all `bytes` bytes are done. `call` takes the number
    /// of bytes done so far, and returns the answer and the number of bytes that it did, or a
    /// negative errno. An error other than `EAGAIN` and `ENOMEM` ends the repetition.
    fn repeat_until_complete(
        &self,
        bytes: usize,
        call_name: &'static str,
        mut call: impl FnMut(usize) -> (Result<(), Errno>, i64),
    ) -> Result<(), CallError> {
        let mut bytes_done = 0;
        while bytes_done < bytes {
            let (answer, call_bytes) = call(bytes_done);
            // A call that has stopped returns its progress, otherwise a negative errno.
            bytes_done += usize::try_from(call_bytes).unwrap_or(0);
            match answer {
                Ok(()) => {}
                // A remap that waits for its report also causes `EAGAIN` until the report is read.
                Err(Errno::AGAIN) => self.read_messages()?,
                Err(Errno::NOMEM) => park_timeout(RETRY_DELAY),
                Err(errno) => return Err(CallError { call: call_name, errno, bytes_done }),
            }
        }
        Ok(())
    }

    /// Reads messages of the kernel into `buffer`, and returns their size in bytes. Fails with
    /// `EAGAIN` if there are none.
    fn read_descriptor(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        #[cfg(simulation)]
        if let Some(result) = crate::simulation::memory::read_messages(self.as_fd(), buffer) {
            return result;
        }
        rustix::io::read(&self.fd, buffer)
    }

    /// Makes one ioctl on the descriptor.
    ///
    /// # Safety
    /// `OPCODE` is an ioctl of userfaultfd that takes a `T`. The caller is responsible for its
    /// effect on the memory that the argument names.
    unsafe fn call_ioctl<const OPCODE: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        #[cfg(simulation)]
        {
            let argument = std::ptr::from_mut(argument).cast();
            // SAFETY: the caller guarantees the contract of this function.
            let answer =
                unsafe { crate::simulation::memory::make_ioctl(self.as_fd(), OPCODE, argument) };
            if let Some(answer) = answer {
                return answer;
            }
        }
        // SAFETY: the caller guarantees the contract of this function.
        unsafe { ioctl::ioctl(&self.fd, ioctl::Updater::<OPCODE, T>::new(argument)) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Delay before a call without memory is repeated. The kernel can reclaim memory during this time,
/// and the delay is negligible compared with that.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// Converts a range to the struct of the ioctls.
fn ioctl_range(address: usize, bytes: usize) -> raw::uffdio_range {
    raw::uffdio_range { start: address as u64, len: bytes as u64 }
}

/// Parses a message: the event, then at bytes 8, 16 and 24 its flags, address and thread (`struct
/// uffd_msg`).
fn parse_fault(message: &[u8]) -> UserFault {
    let word = |offset: usize| {
        u64::from_ne_bytes(message[offset..offset + 8].try_into().expect("8 bytes"))
    };
    let flags = word(8) as u32;
    let kind = if flags & raw::UFFD_PAGEFAULT_FLAG_WP != 0 {
        FaultKind::Protected
    } else if flags & raw::UFFD_PAGEFAULT_FLAG_WRITE != 0 {
        FaultKind::Write
    } else {
        FaultKind::Read
    };
    // Rounded down to the page.
    let address = word(16) as usize;
    UserFault { address: address - address % PAGE_BYTES as usize, kind, thread: word(24) as u32 }
}

/// Opens the descriptor with the widest scope that this process may have, by the attempts of
/// [`Uffd::open`].
fn open_widest() -> Result<(OwnedFd, FaultScope), UffdError> {
    #[cfg(simulation)]
    if let Some(fd) = crate::simulation::memory::open_uffd() {
        return Ok((fd, FaultScope::All));
    }
    let no_flags = 0;
    // Error of the first attempt, if it was refused.
    let all_faults_errno = match open_by_syscall(no_flags) {
        Ok(fd) => return Ok((fd, FaultScope::All)),
        Err(Errno::NOSYS) => return Err(UffdError::None),
        Err(errno) => errno,
    };
    // A missing or forbidden device is no error: the last attempt decides.
    if let Ok(fd) = open_by_device() {
        return Ok((fd, FaultScope::All));
    }
    match open_by_syscall(raw::UFFD_USER_MODE_ONLY) {
        Ok(fd) => Ok((fd, FaultScope::UserOnly)),
        // The flag is unknown before Linux 5.11: the first attempt has the reason.
        Err(Errno::INVAL) => Err(UffdError::Forbidden { errno: all_faults_errno.raw_os_error() }),
        Err(errno) => Err(UffdError::Forbidden { errno: errno.raw_os_error() }),
    }
}

/// Flags of the descriptor: it is closed by `execve(2)`, and reads never wait for messages.
const DESCRIPTOR_FLAGS: u32 = raw::O_CLOEXEC | raw::O_NONBLOCK;

/// Opens a userfaultfd by the system call, with these flags in addition to [`DESCRIPTOR_FLAGS`].
fn open_by_syscall(flags: u32) -> Result<OwnedFd, Errno> {
    let flags = flags | DESCRIPTOR_FLAGS;
    let flags = rustix::mm::UserfaultfdFlags::from_bits_retain(flags);
    // SAFETY: opening a descriptor touches no memory. Its later uses have contracts of their own.
    unsafe { rustix::mm::userfaultfd(flags) }
}

/// Opens a userfaultfd by the device [`DEVICE`].
fn open_by_device() -> std::io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    let flags = libc::c_ulong::from(DESCRIPTOR_FLAGS);
    // SAFETY: the device's only ioctl. Its argument is a number.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_NEW, flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that no other code knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways to open one, as far as this system permits them.
    #[test]
    fn userfaultfd_descriptors_are_close_on_exec_and_nonblocking() {
        let no_flags = 0;
        for fd in [open_by_syscall(no_flags).ok(), open_by_device().ok()].into_iter().flatten() {
            // SAFETY: the calls only query a descriptor of this test.
            let (descriptor_flags, file_flags) = unsafe {
                let fd = fd.as_raw_fd();
                (libc::fcntl(fd, libc::F_GETFD), libc::fcntl(fd, libc::F_GETFL))
            };
            assert_eq!(descriptor_flags, libc::FD_CLOEXEC);
            assert_ne!(file_flags & libc::O_NONBLOCK, 0);
        }
    }
}
