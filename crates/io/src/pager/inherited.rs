//! What a child made by `fork` has in the place of an area that we fill.
//!
//! The area isn't inherited, for the thread that fills it isn't either, and absent pages
//! would read as zeros. But a program that forks its workers (a data loader) has
//! slices and arrays that point there. So when a child begins, its place is taken:
//!
//! - a mapping's by the kernel's own mapping of the same file, at the same address: the bytes
//!   are the same, and how they are read is the kernel's affair;
//! - a region's, whose bytes the parent alone has, by nothing: memory that may not be
//!   touched. Who does is told what it is ([`explain`]) before `SIGSEGV` takes its course.

use std::cell::UnsafeCell;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use readpath_core::readahead::Advice;
use readpath_core::unit::PageRange;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::mm;

use super::area::AnonymousArea;
use crate::kernel_pages::holds;
use crate::target::{Mode, Target};

/// What a range is loaded by that the kernel can't be told to bring in.
const SCRATCH_BYTES: u64 = 128 << 10;
const PAGE: usize = readpath_core::unit::PAGE_BYTES as usize;

/// What takes an area's place in children, as long as this lives.
#[derive(Debug)]
pub(super) struct ForkLocal {
    address: usize,
    bytes: usize,
    /// The file that takes the area's place; none where nothing does.
    file: Option<Arc<File>>,
    /// It is open for direct I/O: there was no other way.
    is_direct: bool,
}

impl ForkLocal {
    /// This file is to take the area's place.
    ///
    /// # Errors
    /// There is no descriptor left, or no handler of forks.
    pub(super) fn of(area: &AnonymousArea, target: &Target) -> std::io::Result<ForkLocal> {
        let (file, is_direct) = match target.through_cache() {
            Some(file) => (file, false),
            None => {
                let file = target.as_fd().try_clone_to_owned()?;
                (Arc::new(file.into()), target.mode() == Mode::Direct)
            }
        };
        ForkLocal::take(area, Some(file), is_direct)
    }

    /// Nothing is to take the area's place: to touch it there is an error that is explained.
    ///
    /// # Errors
    /// There is no handler of forks left.
    pub(super) fn none(area: &AnonymousArea) -> std::io::Result<ForkLocal> {
        ForkLocal::take(area, None, false)
    }

    fn take(
        area: &AnonymousArea,
        file: Option<Arc<File>>,
        is_direct: bool,
    ) -> std::io::Result<ForkLocal> {
        watch_forks()?;
        let fd = file.as_ref().map(AsRawFd::as_raw_fd);
        let place = InheritedRange { address: area.address(0), bytes: area.bytes(), fd };
        PLACES.with(|places| places.push(place));
        Ok(ForkLocal { address: place.address, bytes: place.bytes, file, is_direct })
    }

    /// Has the kernel map the file in the area's place in this process too, where nobody else fills it. From then on
    /// the target that it was made of is read through the kernel's cache.
    ///
    /// # Safety
    /// Nobody holds a reference into the area, or fills it.
    ///
    /// # Errors
    /// The kernel can't map it.
    pub(super) unsafe fn take_over(&mut self) -> std::io::Result<()> {
        let file = self.file.as_ref().expect("what takes over has a file");
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the area is as long, and nobody's, by the caller's promise.
        let mapped = unsafe {
            let address = self.address as *mut libc::c_void;
            libc::mmap(address, self.bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        if std::mem::take(&mut self.is_direct) {
            fcntl_setfl(file, fcntl_getfl(file)? - OFlags::DIRECT)?;
        }
        Ok(())
    }

    /// Tells the kernel what to expect of a range; in a child.
    ///
    /// What it holds it isn't told to read: for a mebibyte that takes it 18 us, a fifth of the time in which a program looks at it; to
    /// ask whether it holds that, 9.
    pub(super) fn advise(&self, advice: Advice, offset: u64, bytes: u64) {
        let pages = PageRange::covering(offset, bytes).clipped((self.bytes / PAGE) as u64);
        if advice == Advice::WillNeed && self.file.as_ref().is_some_and(|file| holds(file, pages)) {
            return;
        }
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
        match self.act(mm::Advice::LinuxPopulateRead, offset, bytes) {
            // The kernel is older than 5.14.
            Err(Errno::INVAL) => {}
            loaded => return loaded,
        }
        let mut scratch = vec![0; bytes.min(SCRATCH_BYTES) as usize];
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let piece = (end - at).min(SCRATCH_BYTES) as usize;
            match self.read(at, &mut scratch[..piece])? {
                read if read < piece => return Err(Errno::IO),
                read => at += read as u64,
            }
        }
        Ok(())
    }

    /// Copies bytes of the file, and gives how many of them there are. It doesn't look at the memory: to touch what another process cuts
    /// off at that moment would be a bus error. In a child, or where the kernel maps the file.
    ///
    /// # Errors
    /// They can't be read.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let file = self.file.as_ref().expect("what is read has a file");
        if self.is_direct {
            return Err(Errno::OPNOTSUPP);
        }
        let mut done = 0;
        while done < buffer.len() {
            match retry_on_intr(|| pread(file, &mut buffer[done..], offset + done as u64))? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    /// How long the file is now; none where it can't be told, or there is none.
    pub(super) fn file_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstat(self.file.as_ref()?).ok()?;
        Some(stat.st_size as u64)
    }

    fn act(&self, advice: mm::Advice, offset: u64, bytes: u64) -> Result<(), Errno> {
        let first = offset as usize / PAGE * PAGE;
        let end = offset.saturating_add(bytes).min(self.bytes as u64) as usize;
        let end = end.next_multiple_of(PAGE);
        if first >= end {
            return Ok(());
        }
        // SAFETY: the range lies in the kernel's mapping of the file, whose pages come
        // back with the same bytes whatever is advised.
        unsafe { mm::madvise((self.address + first) as *mut _, end - first, advice) }
    }
}

impl Drop for ForkLocal {
    fn drop(&mut self) {
        let address = self.address;
        PLACES.with(|places| places.retain(|place| place.address != address));
    }
}

#[derive(Clone, Copy)]
struct InheritedRange {
    address: usize,
    bytes: usize,
    /// The file, if there is one to take the place.
    fd: Option<i32>,
}

/// All places, behind a lock that can be let go of by another process than took it:
/// a fork takes it first, so that no other thread is in the list meanwhile.
struct InheritedRanges {
    is_held: AtomicBool,
    list: UnsafeCell<Vec<InheritedRange>>,
}

// SAFETY: the list is reached only by whoever has set `is_held`.
unsafe impl Sync for InheritedRanges {}

static PLACES: InheritedRanges =
    InheritedRanges { is_held: AtomicBool::new(false), list: UnsafeCell::new(Vec::new()) };

impl InheritedRanges {
    fn with(&self, act: impl FnOnce(&mut Vec<InheritedRange>)) {
        self.take();
        // SAFETY: the lock is held.
        act(unsafe { &mut *self.list.get() });
        self.let_go();
    }

    fn take(&self) {
        while !self.try_take() {
            std::thread::yield_now();
        }
    }

    fn try_take(&self) -> bool {
        !self.is_held.swap(true, Ordering::Acquire)
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
    let mut is_any_empty = false;
    for place in places {
        let (protection, flags, fd) = match place.fd {
            Some(fd) => (libc::PROT_READ, libc::MAP_SHARED, fd),
            None => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                (libc::PROT_NONE, flags, -1)
            }
        };
        // SAFETY: the area was not inherited, so that nothing is there; where
        // something is (a grandchild has its parent's mapping), it stays. A
        // failure leaves a hole: to touch it is a fault, never a wrong byte.
        unsafe {
            let flags = flags | libc::MAP_FIXED_NOREPLACE;
            libc::mmap(place.address as *mut _, place.bytes, protection, flags, fd, 0);
        }
        is_any_empty |= place.fd.is_none();
    }
    if is_any_empty {
        explain_touches();
    }
    PLACES.let_go();
}

/// What a thread is told that touches an empty place.
const TOUCHED: &[u8] = b"readpath: memory of a `readpath::Region` was touched in a child made by \
`fork`, which doesn't have it: its pages are with the process that made it. Make a region \
in the child, or hand over what it needs another way (a file, shared memory, a pipe).\n";

/// What this process did at `SIGSEGV` before [`explain`] came first; written in a child's
/// only thread, before there are others.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written as it says, and read afterwards alone.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::uninit()));

/// Has touches of empty places explained from now on, in a child where no other thread is yet.
fn explain_touches() {
    // SAFETY: sigaction(2) may be called there; the old action is written to memory that nobody
    // else looks at yet, unless it is the handler itself that a grandchild has inherited.
    unsafe {
        let mut now = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut now);
        if now.sa_sigaction == explain as *const () as usize {
            return;
        }
        (*BEFORE.0.get()).write(now);
        let mut ours = std::mem::zeroed::<libc::sigaction>();
        ours.sa_sigaction = explain as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &ours, std::ptr::null_mut());
    }
}

/// Tells what was touched if it is an empty place, and gives way to what the program, or the
/// system, does at `SIGSEGV`: on return the same instruction faults again.
extern "C" fn explain(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's own description of the signal, and calls that a handler may make. The
    // list is looked at under its lock, for which a handler doesn't wait: it may have interrupted
    // who holds it.
    unsafe {
        let is_sent = (*info).si_code <= 0;
        let address = (*info).si_addr() as usize;
        if !is_sent && PLACES.try_take() {
            let is_within = |place: &InheritedRange| {
                place.fd.is_none() && address.wrapping_sub(place.address) < place.bytes
            };
            if (*PLACES.list.get()).iter().any(is_within) {
                libc::write(2, TOUCHED.as_ptr().cast(), TOUCHED.len());
            }
            PLACES.let_go();
        }
        libc::sigaction(signal, (*BEFORE.0.get()).as_ptr(), std::ptr::null_mut());
        if is_sent {
            // No instruction will fault again: it is pending until this returns.
            libc::raise(signal);
        }
    }
}
