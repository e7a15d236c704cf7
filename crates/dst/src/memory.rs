//! Memory of a simulated run that is registered with userfaultfds: page states, waiting touches and
//! reports. An *area* is one registered range. A *touch* is an access of the program to a page. The
//! *pager* is the library's server of page faults, whose calls are simulated here.
//!
//! The pager's calls are answered as by the kernel, by their numbers and structs
//! (ioctl_userfaultfd(2)). A call may be half done and has to be repeated. Pages of a transfer
//! cannot be moved until shortly after its end. Waiting threads may be woken spuriously. The bytes
//! are in the pager's mapping. Three errors end the run at once: a transfer with an absent page, a
//! page that is removed during its write-out, and more pages than the limit. Windows
//! [delegated](kernel_mapping) to the kernel's own mapping count as pages, together with the
//! kernel's readahead.

mod kernel_mapping;
mod system_calls;

use std::cell::RefMut;
use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::iovec;
use linux_raw_sys::general as raw;
use readpath_core::request::Op;
use readpath_core::unit::PAGE_BYTES;
use rustix::io::Errno;

pub use kernel_mapping::Kernel;
pub(crate) use system_calls::{
    assert_readable, cached_pages, clear_event_fd, drop_cached, end_run_on_panic,
    has_locked_memory, is_present, large_folio_pages, make_ioctl, map_file, move_into, open_uffd,
    queue, read_messages, release_pages, signal_event_fd, sleep_for_event, system_memory, unlock,
    unmap, wait_until_readable,
};

use super::world::World;
use kernel_mapping::KernelMemory;

/// Size of a page in bytes, as an index.
const PAGE: usize = PAGE_BYTES as usize;
/// Wait key of a pager's sleeping thread: the number by which the world wakes it.
const PAGER_SLEEP_KEY: usize = 0x600;
/// Byte value of a removed page.
const GARBAGE_BYTE: u8 = 0xdb;

/// State of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    /// No memory: a touch waits for the pager.
    Absent,
    /// The page has memory. `is_protected`: a touch for writing waits for the pager.
    Present { is_protected: bool },
    /// A touch ends in a bus error.
    Poisoned,
    /// The kernel maps the page `file_page` of the file here. `is_mapped`: the program has touched
    /// it since.
    Delegated { file_page: u64, is_mapped: bool },
}

/// State of one page of a registered range.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Presence of the page in memory.
    state: PageState,
    /// Number of times that the page was removed or moved. Transfers to an earlier generation have
    /// no effect.
    generation: u32,
    /// Number of transfers and calls that use the page.
    users: u32,
    /// Number of these that write it out.
    writers: u32,
    /// Virtual time at which the kernel releases the page; until then the page cannot be moved.
    released_at_ns: u64,
    /// True if the program has locked the page in memory (mlock(2)).
    is_locked: bool,
    /// Mapping (VMA) that contains the page. Some calls accept only pages of one mapping.
    mapping_id: u32,
}

impl Page {
    /// Creates an absent page without users.
    fn absent() -> Page {
        Page {
            state: PageState::Absent,
            generation: 0,
            users: 0,
            writers: 0,
            released_at_ns: 0,
            is_locked: false,
            mapping_id: 0,
        }
    }
}

/// A range that is registered with a userfaultfd.
struct RegisteredRange {
    /// The userfaultfd.
    uffd: RawFd,
    /// Its pages by address, without a gap.
    pages: Vec<Page>,
}

/// A touch that waits.
#[derive(Clone, Copy, Debug)]
struct WaitingTouch {
    /// The userfaultfd that reports it.
    uffd: RawFd,
    /// First byte of the page.
    address: usize,
    /// Flags of the report: a write, and a write to a protected page (`UFFD_PAGEFAULT_FLAG_…`).
    flags: u32,
    /// Number of the task that touches the page.
    task: u32,
    /// True once the pager has read the report.
    is_reported: bool,
}

/// A page that a transfer, or a system call of the program, uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct PinnedPage {
    /// First byte of the page.
    address: usize,
    /// Generation of the page at the start: the use has no effect on a later one.
    generation: u32,
    /// `Write` if the page is written out.
    op: Op,
}

/// A bus error that ends a touch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bus;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Memory {
    /// By first address.
    areas: BTreeMap<usize, RegisteredRange>,
    /// Waiting touches, in the order of their start.
    touches: Vec<WaitingTouch>,
    signalled_event_fds: Vec<RawFd>,
    /// Number of pages in the state `Present`.
    present_pages: u64,
    /// Number of pages in or before a write-out.
    pages_writing_out: u64,
    /// Number of ended write-outs that may be repeated, or whose end the pager does not know yet.
    pages_written_out: u64,
    /// Maximum number of present pages, without those in a write-out.
    pub(super) pages_max: u64,
    /// The kernel's own mapping and its page cache.
    pub(super) kernel_memory: KernelMemory,
}

impl Memory {
    /// Returns the page at an address, or `None` outside all areas.
    fn page(&mut self, address: usize) -> Option<&mut Page> {
        let (&base, area) = self.areas.range_mut(..=address).next_back()?;
        area.pages.get_mut((address - base) / PAGE)
    }

    /// Returns the userfaultfd of the area at an address, or `None` outside all areas.
    fn uffd_of(&self, address: usize) -> Option<RawFd> {
        let (&base, area) = self.areas.range(..=address).next_back()?;
        (address - base < area.pages.len() * PAGE).then_some(area.uffd)
    }

    /// Changes the state of the absent page at an address to `state`, by a call on `uffd`. Fails
    /// with EEXIST if the page is not absent, and with ENOENT if it is delegated or not of that
    /// userfaultfd.
    fn fill_absent(&mut self, address: usize, uffd: RawFd, state: PageState) -> Result<(), Errno> {
        let is_of_uffd = self.uffd_of(address) == Some(uffd);
        let page = self.page(address).filter(|_| is_of_uffd).ok_or(Errno::NOENT)?;
        if matches!(page.state, PageState::Delegated { .. }) {
            // No userfaultfd is registered for it.
            return Err(Errno::NOENT);
        }
        if page.state != PageState::Absent {
            return Err(Errno::EXIST);
        }
        self.set_state(address, state);
        Ok(())
    }

    /// True if a touch or a move of the userfaultfd's memory waits for its report.
    fn has_unreported_event(&self, uffd: RawFd) -> bool {
        self.touches.iter().any(|touch| touch.uffd == uffd && !touch.is_reported)
            || self.has_unreported_move(uffd)
    }
}

impl World {
    /// Borrows the memory. No other call on the memory may follow before the end of the borrow.
    fn memory(&self) -> RefMut<'_, Memory> {
        self.memory.borrow_mut()
    }

    /// Simulates a touch of a page by the calling task, for writing if `is_written` is true. Sleeps
    /// until the pager has made the page usable. The task may then use the page's bytes until it
    /// passes another [preemption point](World::preemption_point). Returns `Bus` if the page is
    /// poisoned, in no area, or delegated and not readable.
    pub(super) fn touch(&self, address: usize, is_written: bool) -> Result<(), Bus> {
        let address = address - address % PAGE;
        loop {
            self.preemption_point();
            let mut memory = self.memory();
            let state = memory.page(address).map(|page| page.state);
            let mut flags = if is_written { raw::UFFD_PAGEFAULT_FLAG_WRITE } else { 0 };
            match state {
                Some(PageState::Present { is_protected }) if is_protected && is_written => {
                    flags |= raw::UFFD_PAGEFAULT_FLAG_WP;
                }
                Some(PageState::Present { .. }) => return Ok(()),
                Some(PageState::Poisoned) | None => return Err(Bus),
                Some(PageState::Delegated { .. }) => {
                    drop(memory);
                    match self.touch_delegated(address) {
                        Some(touched) => return touched,
                        // The page has changed, so the touch is tried again.
                        None => continue,
                    }
                }
                Some(PageState::Absent) => {}
            }
            // The touch waits until the pager wakes it, and is then tried again.
            let uffd = memory.uffd_of(address).expect("the address is in an area");
            let task = self.task().0;
            memory.touches.push(WaitingTouch { uffd, address, flags, task, is_reported: false });
            drop(memory);
            self.wake_all(PAGER_SLEEP_KEY);
            // A signal may end the wait, here after up to 200 µs.
            let spurious_wake_one_in = self.disk.borrow().faults().spurious_wake_one_in;
            let until_ns = self
                .happens_one_in(spurious_wake_one_in)
                .then(|| self.now_ns() + self.random_below(200_000));
            self.block(address, until_ns);
            self.memory().touches.retain(|touch| touch.task != task);
        }
    }

    /// Simulates a system call of the program that uses a touched page, until the
    /// [end of its use](World::end_use). `address` is the first byte of the page, in an area.
    pub(super) fn begin_use(&self, address: usize) -> PinnedPage {
        let mut memory = self.memory();
        let page = memory.page(address).expect("the address is in an area");
        page.users += 1;
        // `Read`: the call does not write the page out.
        PinnedPage { address, generation: page.generation, op: Op::Read }
    }

    /// True if a used page is still in its place.
    pub(super) fn is_page_in_place(&self, pinned_page: &PinnedPage) -> bool {
        self.memory()
            .page(pinned_page.address)
            .is_some_and(|page| page.generation == pinned_page.generation)
    }

    /// True if the bytes that a transfer writes to an address arrive there: the page was not moved
    /// or removed since the start. `pinned_pages` are the pages of the transfer. Also true for a
    /// page outside all areas.
    pub(super) fn does_write_arrive(&self, pinned_pages: &[PinnedPage], address: usize) -> bool {
        let page = address - address % PAGE;
        pinned_pages
            .iter()
            .find(|pinned_page| pinned_page.address == page)
            .is_none_or(|pinned_page| self.is_page_in_place(pinned_page))
    }

    /// Adds the pages of a queued write to `pages_writing_out`: pages of an area, or zeros outside
    /// all areas that are written in their place. No effect in a run without areas.
    pub(super) fn count_written(&self, segments: &[iovec]) {
        let mut memory = self.memory();
        if !memory.areas.is_empty() {
            memory.pages_writing_out += segments.iter().flat_map(pages_of).count() as u64;
        }
    }

    /// Starts a transfer: marks its pages as used and returns them. A page that is absent, poisoned
    /// or delegated, or protected from the transfer, is a failure of the run.
    pub(super) fn begin_transfer(&self, op: Op, segments: &[iovec]) -> Vec<PinnedPage> {
        let mut pinned_pages = Vec::new();
        if self.memory().areas.is_empty() {
            return pinned_pages;
        }
        for address in segments.iter().flat_map(pages_of) {
            let mut memory = self.memory();
            let Some(page) = memory.page(address) else {
                if op == Op::Write {
                    // `count_written` has counted it, so `end_use` must find it. The generation is
                    // not used, because no page is there.
                    pinned_pages.push(PinnedPage { address, generation: 0, op });
                }
                continue;
            };
            // A transfer that reads storage writes to memory, which must not be protected.
            let is_usable = match page.state {
                PageState::Present { is_protected } => op == Op::Write || !is_protected,
                _ => false,
            };
            page.users += 1;
            let pinned_page = PinnedPage { address, generation: page.generation, op };
            page.writers += u32::from(op == Op::Write);
            drop(memory);
            if !is_usable {
                self.record_failure(format!("a transfer ({op:?}) of a page that can't be touched"));
            }
            pinned_pages.push(pinned_page);
        }
        pinned_pages
    }

    /// Ends a transfer or a system call that uses these pages. The kernel releases each page now,
    /// or in one case of four up to 30 µs later. A page that was moved or removed meanwhile has a
    /// later generation, and no longer counts this use. Each write-out counts as ended.
    pub(super) fn end_use(&self, pinned_pages: &[PinnedPage]) {
        for pinned_page in pinned_pages {
            let released_at_ns = if self.random_below(4) == 0 {
                self.now_ns() + self.random_below(30_000)
            } else {
                0
            };
            let mut memory = self.memory();
            memory.pages_writing_out -= u64::from(pinned_page.op == Op::Write);
            memory.pages_written_out += u64::from(pinned_page.op == Op::Write);
            if let Some(page) = memory.page(pinned_page.address)
                && page.generation == pinned_page.generation
            {
                page.users -= 1;
                page.writers -= u32::from(pinned_page.op == Op::Write);
                page.released_at_ns = page.released_at_ns.max(released_at_ns);
            }
        }
    }

    /// Simulates that the program locks `pages` pages from an address on in memory, or unlocks them
    /// if `is_locked` is false.
    pub(super) fn set_locked(&self, address: usize, pages: u64, is_locked: bool) {
        let mut memory = self.memory();
        for page_index in 0..pages as usize {
            if let Some(page) = memory.page(address + page_index * PAGE) {
                page.is_locked = is_locked;
            }
        }
    }

    /// Simulates that the pager or the program drops `pages` pages from an address on (madvise(2)).
    /// `is_by_pager` is true for the pager. Delegated pages stay. Stops at the end of the area.
    /// Fails the run if the pager drops a page that is written out.
    pub(super) fn drop_pages(&self, address: usize, pages: usize, is_by_pager: bool) {
        for address in (address..).step_by(PAGE).take(pages) {
            let mut memory = self.memory();
            let Some(page) = memory.page(address) else { return };
            if page.writers > 0 && is_by_pager {
                self.record_failure("a page is given up while it is written out".to_owned());
            }
            if matches!(page.state, PageState::Delegated { .. }) {
                // The page belongs to the file.
                continue;
            }
            if matches!(page.state, PageState::Present { .. }) {
                // SAFETY: a page of the pager's mapping that may no longer be read.
                unsafe { std::ptr::write_bytes(address as *mut u8, GARBAGE_BYTE, PAGE) };
            }
            if is_by_pager {
                memory.set_state(address, PageState::Absent);
            } else {
                // A kept page adds to the pager's limit until the pager learns of the drop.
                memory.change_state(address, PageState::Absent);
            }
        }
    }

    /// Wakes the touches that wait for a page of the range of `bytes` bytes at `address`. The
    /// page's address is the key of their sleep.
    fn wake_range(&self, address: usize, bytes: usize) {
        let memory = self.memory();
        let range = address..address + bytes;
        let is_in_range = |touch: &&WaitingTouch| range.contains(&touch.address);
        let addresses: Vec<usize> =
            memory.touches.iter().filter(is_in_range).map(|touch| touch.address).collect();
        drop(memory);
        addresses.into_iter().for_each(|address| self.wake_all(address));
    }

    /// Executes a call on `bytes` bytes, which are whole pages, page by page with `on_page`, which
    /// gets the page's address. The injected fault `short_call_one_in` may stop the call early.
    /// Wakes the touches that wait for the pages done. Returns two values as the kernel does: the
    /// number of bytes done, or a negative errno if there are none; and the reason for a stop.
    fn for_each_page(
        &self,
        address: u64,
        bytes: u64,
        mut on_page: impl FnMut(usize) -> Result<(), Errno>,
    ) -> (i64, Result<(), Errno>) {
        let short_call_one_in = self.disk.borrow().faults().short_call_one_in;
        let mut bytes_done = 0;
        let result = loop {
            if bytes_done == bytes {
                break Ok(());
            }
            // The fault: another thread changes the memory map.
            if self.happens_one_in(short_call_one_in) {
                break Err(Errno::AGAIN);
            }
            if let Err(errno) = on_page((address + bytes_done) as usize) {
                break Err(errno);
            }
            bytes_done += PAGE_BYTES;
        };
        if bytes_done > 0 {
            self.wake_range(address as usize, bytes_done as usize);
        }
        match result {
            Ok(()) => (bytes_done as i64, Ok(())),
            Err(errno) if bytes_done == 0 => (-i64::from(errno.raw_os_error()), Err(errno)),
            // After a part of the range, the kernel reports this error for any reason.
            Err(_) => (bytes_done as i64, Err(Errno::AGAIN)),
        }
    }

    /// Fails the run if more pages are present and delegated than the limit. Called when the
    /// pager's thread has finished its work. Pages of write-outs, windows that could not be taken
    /// back, and kept pages are allowed in addition.
    fn check_present_pages(&self) {
        let memory = self.memory();
        let pages_of_writes = memory.pages_writing_out + memory.pages_written_out;
        let pages_max = memory.pages_max + pages_of_writes + memory.extra_page_count();
        let (present, delegated) = (memory.present_pages, memory.kernel_pages_in_use());
        if present + delegated > pages_max {
            self.record_failure(format!(
                "{present} pages are present and {delegated} delegated, and {pages_max} may be"
            ));
        }
    }

    /// Registers a range (`UFFDIO_REGISTER`). Fails with EBUSY if its start is registered. Any but
    /// the first range of `uffd` is there to replace a delegated window, by a call of `move_into`.
    /// It fails by `mapping_limit_one_in` with ENOMEM, and the window's pages count as stuck.
    fn register(&self, uffd: RawFd, argument: &raw::uffdio_register) -> Result<(), Errno> {
        let (start, bytes) = (argument.range.start as usize, argument.range.len as usize);
        let mut memory = self.memory();
        if memory.uffd_of(start).is_some() {
            return Err(Errno::BUSY);
        }
        let is_first = memory.areas.values().all(|area| area.uffd != uffd);
        if !is_first && self.happens_one_in(self.disk.borrow().faults().mapping_limit_one_in) {
            memory.count_stuck(bytes);
            return Err(Errno::NOMEM);
        }
        memory
            .areas
            .insert(start, RegisteredRange { uffd, pages: vec![Page::absent(); bytes / PAGE] });
        Ok(())
    }

    /// Fills absent pages with copies (`UFFDIO_COPY`), page by page, and wakes their touches.
    /// Writes the number of bytes done, or a negative errno, to `argument`, as the kernel does.
    /// Returns the error that stopped it before the end of the range.
    fn copy(&self, uffd: RawFd, argument: &mut raw::uffdio_copy) -> Result<(), Errno> {
        let shift = argument.src.wrapping_sub(argument.dst) as usize;
        let is_protected = argument.mode & u64::from(raw::UFFDIO_COPY_MODE_WP) != 0;
        let out_of_memory_one_in = self.disk.borrow().faults().out_of_memory_one_in;
        let (bytes_or_errno, answer) = self.for_each_page(argument.dst, argument.len, |to| {
            let from = to.wrapping_add(shift);
            let mut memory = self.memory();
            // An unregistered source page is always present.
            let is_not_present =
                |page: &mut Page| !matches!(page.state, PageState::Present { is_protected: _ });
            if memory.page(from).is_some_and(is_not_present) {
                return Err(Errno::FAULT);
            }
            drop(memory);
            if self.happens_one_in(out_of_memory_one_in) {
                return Err(Errno::NOMEM);
            }
            self.memory().fill_absent(to, uffd, PageState::Present { is_protected })?;
            // SAFETY: a whole page that the caller may read, and one that was absent until now.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, PAGE) };
            Ok(())
        });
        argument.copy = bytes_or_errno;
        answer
    }

    /// Fills absent pages with zeros (`UFFDIO_ZEROPAGE`). Results as for `copy`.
    fn zero(&self, uffd: RawFd, argument: &mut raw::uffdio_zeropage) -> Result<(), Errno> {
        let raw::uffdio_range { start, len } = argument.range;
        let (bytes_or_errno, answer) = self.for_each_page(start, len, |to| {
            self.memory().fill_absent(to, uffd, PageState::Present { is_protected: false })?;
            // SAFETY: a page that was absent until now.
            unsafe { std::ptr::write_bytes(to as *mut u8, 0, PAGE) };
            Ok(())
        });
        argument.zeropage = bytes_or_errno;
        answer
    }

    /// Poisons absent pages (`UFFDIO_POISON`). Results as for `copy`.
    fn poison(&self, uffd: RawFd, argument: &mut raw::uffdio_poison) -> Result<(), Errno> {
        let raw::uffdio_range { start, len } = argument.range;
        let poison_page = |to| self.memory().fill_absent(to, uffd, PageState::Poisoned);
        let (bytes_or_errno, answer) = self.for_each_page(start, len, poison_page);
        argument.updated = bytes_or_errno;
        answer
    }

    /// Moves pages to absent pages (`UFFDIO_MOVE`). Results as for `copy`. Fails with EBUSY at a
    /// page that a transfer or call uses. Moves nothing (EINVAL) if a side is not in areas, is
    /// partly delegated or is not in one mapping, or if only one side is locked.
    fn move_pages(&self, uffd: RawFd, argument: &mut raw::uffdio_move) -> Result<(), Errno> {
        let shift = argument.src.wrapping_sub(argument.dst) as usize;
        {
            // All pairs of a target and a source page must agree with the first pair, whose pages
            // are both locked or both unlocked.
            let mut memory = self.memory();
            let pages = (argument.dst as usize..).step_by(PAGE).take(argument.len as usize / PAGE);
            let mut lock_and_mapping = |address| {
                let page = memory.page(address)?;
                let is_delegated = matches!(page.state, PageState::Delegated { .. });
                (!is_delegated).then_some((page.is_locked, page.mapping_id))
            };
            let mut page_pairs = pages
                .map(|to| Some((lock_and_mapping(to)?, lock_and_mapping(to.wrapping_add(shift))?)));
            let first_pair = page_pairs.next().flatten();
            let first_pair = first_pair.filter(|((is_target_locked, _), (is_source_locked, _))| {
                is_target_locked == is_source_locked
            });
            if first_pair.is_none() || page_pairs.any(|pair| pair != first_pair) {
                return Err(Errno::INVAL);
            }
        }
        let now_ns = self.now_ns();
        // The pages are moved one by one, until one cannot be moved.
        let (bytes_or_errno, answer) = self.for_each_page(argument.dst, argument.len, |to| {
            let from = to.wrapping_add(shift);
            let mut memory = self.memory();
            let source = *memory.page(from).ok_or(Errno::INVAL)?;
            match source.state {
                PageState::Present { .. } => {}
                PageState::Absent => return Err(Errno::NOENT),
                PageState::Poisoned => return Err(Errno::FAULT),
                PageState::Delegated { .. } => return Err(Errno::INVAL),
            }
            if source.users > 0 || source.released_at_ns > now_ns {
                memory.count_kept(from);
                return Err(Errno::BUSY);
            }
            memory.fill_absent(to, uffd, PageState::Present { is_protected: false })?;
            memory.set_state(from, PageState::Absent);
            // SAFETY: a page that the caller may move, and one that was absent until now.
            unsafe {
                std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, PAGE);
                std::ptr::write_bytes(from as *mut u8, GARBAGE_BYTE, PAGE);
            }
            Ok(())
        });
        argument.move_ = bytes_or_errno;
        answer
    }

    /// Marks an eventfd as signalled, and wakes the sleeping threads of pagers.
    pub(super) fn signal_event_fd(&self, event_fd: RawFd) {
        let mut memory = self.memory();
        if !memory.signalled_event_fds.contains(&event_fd) {
            memory.signalled_event_fds.push(event_fd);
        }
        drop(memory);
        self.wake_all(PAGER_SLEEP_KEY);
    }

    /// Number of areas, which are registered ranges.
    pub(super) fn area_count(&self) -> usize {
        self.memory().areas.len()
    }

    /// Unmaps all areas. A run that failed does not unmap them itself.
    pub(super) fn unmap_all(&self) {
        for (base, area) in std::mem::take(&mut self.memory().areas) {
            // SAFETY: the pager's mapping, which is no longer used: no task continues.
            unsafe { libc::munmap(base as *mut _, area.pages.len() * PAGE) };
        }
    }
}

/// Returns the addresses of the pages that contain a piece of memory.
fn pages_of(segment: &iovec) -> impl Iterator<Item = usize> {
    let start = segment.iov_base.addr();
    (start - start % PAGE..start + segment.iov_len).step_by(PAGE)
}
