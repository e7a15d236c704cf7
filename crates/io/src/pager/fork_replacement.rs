//! Replacement of areas in a child made by `fork`.
//!
//! A child does not inherit an area, because it does not inherit the thread that fills it, and
//! absent pages would read as zeros. A program that forks its workers (a data loader) has slices
//! and arrays in the area, however. The child therefore maps a replacement at the same address when
//! it starts:
//!
//! - a mapping is replaced by the kernel's own mapping of the same file: the bytes are the same,
//!   and the kernel's readahead applies;
//! - a region, whose bytes only the parent has, is replaced by inaccessible memory. An access is
//!   reported ([`report_touch`]) before `SIGSEGV` is delivered.

use std::cell::UnsafeCell;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use readpath_core::readahead::Advice;
use readpath_core::unit::PageRange;
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::mm;

use super::anonymous_area::AnonymousArea;
use crate::page_cache::kernel::counted_pages;
use crate::target::{Mode, Target, clear_direct};

/// Buffer size in bytes for loading a range that the kernel cannot populate. The number is chosen,
/// not measured.
const SCRATCH_BYTES: u64 = 128 << 10;
const PAGE: usize = readpath_core::unit::PAGE_BYTES as usize;

/// Registers the replacement of an area in children while it lives.
#[derive(Debug)]
pub(super) struct ForkReplacement {
    /// Address range of the area.
    address: usize,
    /// Length of the area.
    bytes: usize,
    /// File to map; `None` for inaccessible memory.
    file: Option<Arc<File>>,
    /// True if the file is open for direct I/O, because it could not be opened otherwise.
    is_direct: bool,
}

impl ForkReplacement {
    /// Registers the target's file as the replacement of the area.
    ///
    /// # Errors
    /// The limit of descriptors or the memory for fork handlers is exhausted.
    pub(super) fn with_file(
        area: &AnonymousArea,
        target: &Target,
    ) -> std::io::Result<ForkReplacement> {
        let (file, is_direct) = match target.reopen_buffered() {
            // Opened without direct I/O.
            Some(file) => (file, false),
            // It could not be opened again: the mapping works with the present descriptor too.
            None => {
                let file = target.as_fd().try_clone_to_owned()?;
                (Arc::new(file.into()), target.mode() == Mode::Direct)
            }
        };
        ForkReplacement::register(area, Some(file), is_direct)
    }

    /// Registers inaccessible memory as the replacement of the area. Accesses are reported.
    ///
    /// # Errors
    /// The memory for fork handlers is exhausted.
    pub(super) fn inaccessible(area: &AnonymousArea) -> std::io::Result<ForkReplacement> {
        let no_file = None;
        let is_direct = false;
        ForkReplacement::register(area, no_file, is_direct)
    }

    /// Registers the replacement of an area in children: `file`, or inaccessible memory without
    /// one. `is_direct` is true if the file is open for direct I/O. Fails if the memory for fork
    /// handlers is exhausted.
    fn register(
        area: &AnonymousArea,
        file: Option<Arc<File>>,
        is_direct: bool,
    ) -> std::io::Result<ForkReplacement> {
        install_fork_handlers()?;
        let fd = file.as_ref().map(AsRawFd::as_raw_fd);
        let inherited_range = InheritedRange { address: area.address(0), bytes: area.bytes(), fd };
        INHERITED_RANGES.with_locked(|ranges| ranges.push(inherited_range));
        Ok(ForkReplacement {
            address: inherited_range.address,
            bytes: inherited_range.bytes,
            file,
            is_direct,
        })
    }

    /// Maps the file over the area in this process too, for a mapping without a server. The file is
    /// then read through the kernel page cache.
    ///
    /// # Safety
    /// There are no references into the area, and no server fills it.
    ///
    /// # Errors
    /// The kernel cannot map the file.
    pub(super) unsafe fn map_here(&mut self) -> std::io::Result<()> {
        let file = self.file.as_ref().expect("a replacement that maps the file has it open");
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the area has this length, and the caller guarantees that it is unused.
        let mapped = unsafe {
            let address = self.address as *mut libc::c_void;
            libc::mmap(address, self.bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // Reads by system calls go through the kernel page cache from here on too.
        if std::mem::take(&mut self.is_direct) {
            clear_direct(file)?;
        }
        Ok(())
    }

    /// Gives the kernel advice about `bytes` bytes from byte `offset` on. Callers are a child made
    /// by `fork`, and a process whose kernel maps the file.
    ///
    /// `WillNeed` has no effect for a range that is completely resident. For 1 MiB the advice takes
    /// 18 µs, a fifth of the time in which a program reads it, and the check takes 9 µs.
    pub(super) fn advise(&self, advice: Advice, offset: u64, bytes: u64) {
        let pages = PageRange::covering(offset, bytes).clipped((self.bytes / PAGE) as u64);
        // `counted_pages` returns the number of resident pages, if the kernel reports it.
        if advice == Advice::WillNeed
            && self.file.as_ref().and_then(|file| counted_pages(file, pages)) == Some(pages.count())
        {
            return;
        }
        let advice = match advice {
            Advice::Normal => mm::Advice::Normal,
            Advice::Sequential => mm::Advice::Sequential,
            Advice::Random => mm::Advice::Random,
            Advice::WillNeed => mm::Advice::WillNeed,
            Advice::DontNeed => mm::Advice::LinuxDontNeed,
        };
        // The kernel may ignore the advice.
        let _ = self.madvise_range(advice, offset, bytes);
    }

    /// Brings `bytes` bytes from byte `offset` on into memory and waits. Callers: as for `advise`.
    /// A kernel older than 5.14 reads them into its page cache alone.
    ///
    /// # Errors
    /// The range cannot be read.
    pub(super) fn load(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        match self.madvise_range(mm::Advice::LinuxPopulateRead, offset, bytes) {
            // The kernel is older than 5.14.
            Err(Errno::INVAL) => {}
            loaded => return loaded,
        }
        let mut scratch = vec![0; bytes.min(SCRATCH_BYTES) as usize];
        let (mut position, end) = (offset, offset + bytes);
        while position < end {
            let piece_bytes = (end - position).min(SCRATCH_BYTES) as usize;
            match self.read(position, &mut scratch[..piece_bytes])? {
                // The file has become shorter. The caller looks at its length for the error.
                read_bytes if read_bytes < piece_bytes => return Err(Errno::IO),
                read_bytes => position += read_bytes as u64,
            }
        }
        Ok(())
    }

    /// Reads bytes of the file from byte `offset` on into `buffer`. Returns their number, which is
    /// smaller than the buffer only at the end of the file. Callers are a child made by `fork`, and
    /// a process whose kernel maps the file, without a fault server. The mapping is not accessed:
    /// if another process truncates the file at that moment, the access would be a bus error.
    ///
    /// # Errors
    /// The bytes cannot be read. A file that is open for direct I/O (`is_direct`) is not read at
    /// all, because `buffer` need not be aligned.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let file = self.file.as_ref().expect("a replacement that reads the file has it open");
        if self.is_direct {
            return Err(Errno::OPNOTSUPP);
        }
        let mut bytes_done = 0;
        while bytes_done < buffer.len() {
            match retry_on_intr(|| {
                pread(file, &mut buffer[bytes_done..], offset + bytes_done as u64)
            })? {
                0 => break,
                read_bytes => bytes_done += read_bytes,
            }
        }
        Ok(bytes_done)
    }

    /// Current length of the file; `None` if it is unknown or there is no file.
    pub(super) fn file_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstat(self.file.as_ref()?).ok()?;
        Some(stat.st_size as u64)
    }

    /// Gives advice for the pages of a range by madvise(2), as far as it lies in the area. Returns
    /// the error of that call. Does nothing for an empty range.
    fn madvise_range(&self, advice: mm::Advice, offset: u64, bytes: u64) -> Result<(), Errno> {
        // Cut to the area, and widened to whole pages, as the call requires.
        let start = offset as usize / PAGE * PAGE;
        let end = offset.saturating_add(bytes).min(self.bytes as u64) as usize;
        let end = end.next_multiple_of(PAGE);
        if bytes == 0 || start >= end {
            return Ok(());
        }
        // SAFETY: the range lies in the kernel's mapping of the file. Its pages come back with the
        // same bytes after any advice.
        unsafe { mm::madvise((self.address + start) as *mut _, end - start, advice) }
    }
}

impl Drop for ForkReplacement {
    /// Ends the registration: later children get no replacement of the area.
    fn drop(&mut self) {
        let address = self.address;
        INHERITED_RANGES.with_locked(|ranges| {
            ranges.retain(|inherited_range| inherited_range.address != address)
        });
    }
}

/// An address range with its replacement in a child.
#[derive(Clone, Copy)]
struct InheritedRange {
    /// First address of the area.
    address: usize,
    /// Length of the area.
    bytes: usize,
    /// Descriptor of the file to map, open while the range is registered; `None` for inaccessible
    /// memory.
    fd: Option<i32>,
}

/// All registered ranges behind a lock that a process other than its owner may release. A fork
/// takes the lock first, so that no other thread is in the list at that time.
struct InheritedRanges {
    /// True while a thread uses the list, or a fork is in progress.
    is_locked: AtomicBool,
    /// Accessed only while `is_locked` is set by the accessing thread.
    ranges: UnsafeCell<Vec<InheritedRange>>,
}

// SAFETY: only the thread that has set `is_locked` accesses the list.
unsafe impl Sync for InheritedRanges {}

/// All registered ranges of this process.
static INHERITED_RANGES: InheritedRanges =
    InheritedRanges { is_locked: AtomicBool::new(false), ranges: UnsafeCell::new(Vec::new()) };

impl InheritedRanges {
    /// Calls `act` with the list while the lock is held.
    fn with_locked(&self, act: impl FnOnce(&mut Vec<InheritedRange>)) {
        self.lock();
        // SAFETY: the lock is held.
        act(unsafe { &mut *self.ranges.get() });
        self.unlock();
    }

    /// Takes the lock, and yields the processor until it is free.
    fn lock(&self) {
        while !self.try_lock() {
            std::thread::yield_now();
        }
    }

    /// Takes the lock if it is free. Returns false otherwise.
    fn try_lock(&self) -> bool {
        !self.is_locked.swap(true, Ordering::Acquire)
    }

    /// Releases the lock. The caller need not be the thread that took it: after a fork it is the
    /// child's only thread.
    fn unlock(&self) {
        self.is_locked.store(false, Ordering::Release);
    }
}

/// Installs the fork handlers of this process at the first call. Later calls return the result of
/// the first.
fn install_fork_handlers() -> std::io::Result<()> {
    static INSTALL_ERRNO: OnceLock<i32> = OnceLock::new();
    let errno = *INSTALL_ERRNO.get_or_init(|| {
        // SAFETY: the handlers are functions of the program. The child's handler uses only system
        // calls and atomics, as required in a process that had other threads.
        unsafe {
            libc::pthread_atfork(
                Some(before_fork),
                Some(after_fork_in_parent),
                Some(map_replacements_in_child),
            )
        }
    });
    if errno == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(errno)) }
}

/// Takes the lock of the list for the duration of the fork.
extern "C" fn before_fork() {
    INHERITED_RANGES.lock();
}

/// Releases the lock of the list in the parent.
extern "C" fn after_fork_in_parent() {
    INHERITED_RANGES.unlock();
}

/// Maps the replacements of all registered ranges in a child, and releases the lock of the list.
extern "C" fn map_replacements_in_child() {
    // SAFETY: the lock was taken before the fork, and this is the only thread.
    let ranges = unsafe { &*INHERITED_RANGES.ranges.get() };
    let mut is_any_inaccessible = false;
    for inherited_range in ranges {
        let (protection, flags, fd) = match inherited_range.fd {
            Some(fd) => (libc::PROT_READ, libc::MAP_SHARED, fd),
            None => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                (libc::PROT_NONE, flags, -1)
            }
        };
        // SAFETY: the area was not inherited, so the range is free. In a grandchild the range
        // already has its parent's mapping, which stays. A failure leaves a hole: an access is a
        // fault and never returns a wrong byte.
        unsafe {
            let flags = flags | libc::MAP_FIXED_NOREPLACE;
            libc::mmap(
                inherited_range.address as *mut _,
                inherited_range.bytes,
                protection,
                flags,
                fd,
                0,
            );
        }
        // Only ranges without a file have accesses to report.
        is_any_inaccessible |= inherited_range.fd.is_none();
    }
    if is_any_inaccessible {
        install_touch_handler();
    }
    INHERITED_RANGES.unlock();
}

/// Message for an access to a region in a child.
const TOUCH_MESSAGE: &[u8] =
    b"readpath: memory of a `readpath::Region` was touched in a child made by \
`fork`, which doesn't have it: its pages are with the process that made it. Make a region \
in the child, or hand over what it needs another way (a file, shared memory, a pipe).\n";

/// Action of this process for `SIGSEGV` before [`report_touch`] was installed. It is written while
/// a child has only one thread.
struct PreviousAction(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written by a child's only thread and only read afterwards.
unsafe impl Sync for PreviousAction {}

static PREVIOUS_ACTION: PreviousAction = PreviousAction(UnsafeCell::new(MaybeUninit::uninit()));

/// Installs [`report_touch`] in a child that has no other thread yet.
fn install_touch_handler() {
    // SAFETY: sigaction(2) may be called here. The old action is written to memory that no other
    // thread reads yet. A grandchild that has inherited the handler returns first.
    unsafe {
        let mut present_action = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut present_action);
        if present_action.sa_sigaction == report_touch as *const () as usize {
            return;
        }
        (*PREVIOUS_ACTION.0.get()).write(present_action);
        let mut new_action = std::mem::zeroed::<libc::sigaction>();
        new_action.sa_sigaction = report_touch as *const () as usize;
        new_action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &new_action, std::ptr::null_mut());
    }
}

/// Handler of `SIGSEGV`: reports an access to a region, and restores the action of the program or
/// the system in any case. After a fault, the same instruction faults again, and that action
/// applies. A sent signal is raised again.
extern "C" fn report_touch(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's description of the signal, and calls that a handler may make. The
    // handler reads the list under its lock and never waits for it, because it may have interrupted
    // the lock's owner.
    unsafe {
        // Codes up to 0 mean a signal that a process has sent (sigaction(2)).
        let is_sent_by_process = (*info).si_code <= 0;
        let address = (*info).si_addr() as usize;
        if !is_sent_by_process && INHERITED_RANGES.try_lock() {
            let is_within = |inherited_range: &InheritedRange| {
                inherited_range.fd.is_none()
                    && address.wrapping_sub(inherited_range.address) < inherited_range.bytes
            };
            if (*INHERITED_RANGES.ranges.get()).iter().any(is_within) {
                let (text, bytes) = (TOUCH_MESSAGE.as_ptr().cast(), TOUCH_MESSAGE.len());
                libc::write(libc::STDERR_FILENO, text, bytes);
            }
            INHERITED_RANGES.unlock();
        }
        libc::sigaction(signal, (*PREVIOUS_ACTION.0.get()).as_ptr(), std::ptr::null_mut());
        if is_sent_by_process {
            // The signal was sent by a process, so no instruction faults again. The raised signal
            // stays pending until the handler returns.
            libc::raise(signal);
        }
    }
}
