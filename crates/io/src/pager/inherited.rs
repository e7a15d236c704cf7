//! A mapping in a child made by `fork`: the kernel's own mapping of the same file.
//!
//! The area that we fill isn't inherited, for the thread that fills it isn't either,
//! and absent pages would read as zeros. But a program that forks its workers (a
//! data loader) has slices and arrays that point there. So when a child begins, the
//! kernel maps the file at the same address: the bytes are the same, and how they
//! are read is the kernel's affair.

use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use readpath_core::readahead::Advice;
use rustix::io::Errno;
use rustix::mm;

use super::area::Area;

const PAGE: usize = readpath_core::unit::PAGE_BYTES as usize;

/// A file that takes an area's place in children, as long as this lives.
#[derive(Debug)]
pub(super) struct Heir {
    address: usize,
    bytes: usize,
    file: OwnedFd,
}

impl Heir {
    /// This file is to take the area's place. It may be open for direct I/O.
    ///
    /// # Errors
    /// There is no descriptor left, or no handler of forks.
    pub(super) fn of(area: &Area, file: BorrowedFd<'_>) -> std::io::Result<Heir> {
        let file = file.try_clone_to_owned()?;
        watch_forks()?;
        let place = Place { address: area.address(0), bytes: area.bytes(), fd: file.as_raw_fd() };
        PLACES.with(|places| places.push(place));
        Ok(Heir { address: place.address, bytes: place.bytes, file })
    }

    /// Has the kernel map the file in the area's place in this process too, where nobody else can fill it.
    ///
    /// # Safety
    /// Nobody holds a reference into the area, or fills it.
    ///
    /// # Errors
    /// The kernel can't map it.
    pub(super) unsafe fn take_over(&self) -> std::io::Result<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the area is as long, and nobody's, by the caller's promise.
        let mapped = unsafe {
            let address = self.address as *mut libc::c_void;
            libc::mmap(address, self.bytes, libc::PROT_READ, flags, self.file.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    }

    /// Tells the kernel what to expect of a range; in a child.
    pub(super) fn advise(&self, advice: Advice, offset: u64, bytes: u64) {
        let advice = match advice {
            Advice::Normal => mm::Advice::Normal,
            Advice::Sequential => mm::Advice::Sequential,
            Advice::Random => mm::Advice::Random,
            Advice::WillNeed => mm::Advice::WillNeed,
            Advice::DontNeed => mm::Advice::LinuxDontNeed,
        };
        // A hint: whether it is taken is the kernel's affair.
        let _ = self.act(advice, offset, bytes);
    }

    /// Has a range read, and waits; in a child.
    ///
    /// # Errors
    /// It can't be read.
    pub(super) fn load(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.act(mm::Advice::LinuxPopulateRead, offset, bytes)
    }

    fn act(&self, advice: mm::Advice, offset: u64, bytes: u64) -> Result<(), Errno> {
        let first = offset as usize / PAGE * PAGE;
        let end = (offset + bytes).div_ceil(PAGE as u64) as usize * PAGE;
        let end = end.min(self.bytes);
        if first >= end {
            return Ok(());
        }
        // SAFETY: the range lies in the kernel's mapping of the file, whose pages come
        // back with the same bytes whatever is advised.
        unsafe { mm::madvise((self.address + first) as *mut _, end - first, advice) }
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        let address = self.address;
        PLACES.with(|places| places.retain(|place| place.address != address));
    }
}

#[derive(Clone, Copy)]
struct Place {
    address: usize,
    bytes: usize,
    fd: i32,
}

/// All places, behind a lock that can be let go of by another process than took it:
/// a fork takes it first, so that no other thread is in the list meanwhile.
struct Places {
    is_held: AtomicBool,
    list: UnsafeCell<Vec<Place>>,
}

// SAFETY: the list is reached only by whoever has set `is_held`.
unsafe impl Sync for Places {}

static PLACES: Places =
    Places { is_held: AtomicBool::new(false), list: UnsafeCell::new(Vec::new()) };

impl Places {
    fn with(&self, act: impl FnOnce(&mut Vec<Place>)) {
        self.take();
        // SAFETY: the lock is held.
        act(unsafe { &mut *self.list.get() });
        self.let_go();
    }

    fn take(&self) {
        while self.is_held.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn let_go(&self) {
        self.is_held.store(false, Ordering::Release);
    }
}

/// Has the places filled in every child from now on.
fn watch_forks() -> std::io::Result<()> {
    static WATCHED: Once = Once::new();
    let mut errno = 0;
    WATCHED.call_once(|| {
        // SAFETY: handlers that live as long as the program; the child's does nothing
        // but system calls and atomics, as it must where other threads have been.
        errno =
            unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    });
    if errno == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(errno)) }
}

extern "C" fn before_fork() {
    PLACES.take();
}

extern "C" fn after_fork() {
    PLACES.let_go();
}

extern "C" fn in_child() {
    // SAFETY: the lock was taken before the fork, and this is the only thread.
    let places = unsafe { &*PLACES.list.get() };
    for place in places {
        // SAFETY: the area was not inherited, so that nothing is there; where
        // something is (a grandchild has its parent's mapping), it stays. A
        // failure leaves a hole: to touch it is a fault, never a wrong byte.
        unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
            libc::mmap(place.address as *mut _, place.bytes, libc::PROT_READ, flags, place.fd, 0);
        }
    }
    PLACES.let_go();
}
