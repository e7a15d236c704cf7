//! The kernel's own mapping of the file in a simulation: delegated windows, the page cache, and the
//! return of windows.
//!
//! The *pager* is the library's server of page faults. A *window* is a range of consecutive pages
//! of the memory that the pager serves. A window is *delegated* while the kernel's own mapping of
//! the file is in its place and serves its pages. The pager takes a window back by a move of
//! registered memory to its place (mremap(2)).
//!
//! A window shows the file at the time of the touch. Pages that are not in the cache are read first
//! together with their neighbours, and a page beyond the end is a bus error. A move of registered
//! memory into a window's place happens in one step and then waits until its report is read from
//! the userfaultfd. Until then, calls on that userfaultfd fail with EAGAIN (mremap(2),
//! ioctl_userfaultfd(2)).

use std::collections::BTreeSet;
use std::os::fd::RawFd;

use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::io::Errno;

use super::super::world::World;
use super::{Bus, Memory, PAGE, PAGER_SLEEP_KEY, Page, PageState};

/// Properties of the kernel of a run with delegated windows.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Largest page of a file, in pages.
    pub large_folio_pages: u64,
    /// Readahead window around a touched page, in pages.
    pub ahead_pages: u64,
    /// True if less memory is free than the file has.
    pub is_memory_short: bool,
    /// One page of this number is in the cache at the start; 0 for none.
    pub cached_one_in: u64,
}

/// Inode number of the run's file. Another file may get its name later.
const INODE: u32 = 0;

/// The kernel's part of the [memory](Memory) of a run.
#[derive(Default)]
pub(in crate::simulation) struct KernelMemory {
    /// `None` if no windows are delegated.
    kernel: Option<Kernel>,
    /// Pages of the file in the kernel page cache.
    cached: BTreeSet<u64>,
    /// Number of pages delegated now.
    delegated_pages: u64,
    /// Number of pages that could not be taken back because the system has too many mappings.
    stuck_pages: u64,
    /// First addresses of the pages whose move failed, because a transfer used them. A page stays
    /// here until it leaves its place.
    kept_pages: BTreeSet<usize>,
    /// Number of further failed moves of kept pages, since the last page left its place.
    kept_again: u64,
    /// Maximum of the kept pages and further failed moves together. The pager takes frames for
    /// kept pages back when pages leave, which may be later.
    kept_pages_max: u64,
    /// Number of mappings made so far, without the first. The number is the id of the last one.
    mappings_made: u32,
    /// Moves whose report was not yet handled.
    moves: Vec<Move>,
    /// Number of pages delegated so far.
    pub(in crate::simulation) delegated_total: u64,
    /// Number of pages taken back so far.
    pub(in crate::simulation) taken_back_total: u64,
}

/// A move of registered memory that waits for its report.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// The userfaultfd of the moved range, which reports the move.
    uffd: RawFd,
    /// First address of the moved range before the move, which identifies the move.
    from: usize,
    /// True once the pager has read the report.
    is_reported: bool,
}

impl Memory {
    /// Sets the kernel of the run, with these page numbers of the file in its cache.
    pub(in crate::simulation) fn set_kernel(&mut self, kernel: &Kernel, cached: BTreeSet<u64>) {
        (self.kernel_memory.kernel, self.kernel_memory.cached) = (Some(kernel.clone()), cached);
    }

    /// Properties of the kernel, or `None` in a run without delegated windows.
    pub(super) fn kernel(&self) -> Option<&Kernel> {
        self.kernel_memory.kernel.as_ref()
    }

    /// Number of pages of memory that the kernel uses: the delegated pages and its readahead, or 0
    /// without delegated pages.
    pub(super) fn kernel_pages_in_use(&self) -> u64 {
        let ahead_pages = self.kernel().map_or(0, |kernel| kernel.ahead_pages);
        let delegated_pages = self.kernel_memory.delegated_pages;
        delegated_pages + if delegated_pages > 0 { ahead_pages } else { 0 }
    }

    /// True if the page at an address is delegated.
    pub(in crate::simulation) fn is_delegated(&mut self, address: usize) -> bool {
        self.delegated_page(address).is_some()
    }

    /// Returns the number of the file's page that the kernel shows at an address. Returns `None` if
    /// the page at the address is not delegated.
    fn delegated_page(&mut self, address: usize) -> Option<u64> {
        match self.page(address)?.state {
            PageState::Delegated { file_page, .. } => Some(file_page),
            _ => None,
        }
    }

    /// Marks the next unreported move of this userfaultfd's memory as reported. Returns the first
    /// address of the range before its move, or `None` if there is none.
    pub(super) fn report_next_move(&mut self, uffd: RawFd) -> Option<usize> {
        let mut moves = self.kernel_memory.moves.iter_mut();
        let next_move = moves.find(|next_move| next_move.uffd == uffd && !next_move.is_reported)?;
        next_move.is_reported = true;
        Some(next_move.from)
    }

    /// True if a move of this userfaultfd's memory was not reported yet.
    pub(super) fn has_unreported_move(&self, uffd: RawFd) -> bool {
        self.kernel_memory
            .moves
            .iter()
            .any(|pending_move| pending_move.uffd == uffd && !pending_move.is_reported)
    }

    /// True while a move of this userfaultfd's memory waits for its report to be read.
    pub(super) fn has_pending_move(&self, uffd: RawFd) -> bool {
        self.kernel_memory.moves.iter().any(|pending_move| pending_move.uffd == uffd)
    }

    /// Replaces the page at an address by a page of the mapping `mapping_id`, in this state and
    /// with the next generation.
    fn replace_page(&mut self, address: usize, state: PageState, mapping_id: u32) {
        let page = self.page(address).expect("the address is in an area");
        let generation = page.generation + 1;
        *page = Page { state, generation, mapping_id, ..Page::absent() };
    }

    /// Drops the file's pages `range` from the cache, except pages that the program has touched in
    /// a window.
    pub(super) fn drop_cached(&mut self, range: PageRange) {
        let mut mapped = BTreeSet::new();
        for area in self.areas.values() {
            mapped.extend(area.pages.iter().filter_map(|page| match page.state {
                PageState::Delegated { file_page, is_mapped: true } => Some(file_page),
                _ => None,
            }));
        }
        self.kernel_memory.cached.retain(|page| !range.contains(*page) || mapped.contains(page));
    }

    /// Number of the file's pages `range` that are in the cache.
    pub(super) fn cached_pages(&self, range: PageRange) -> u64 {
        self.kernel_memory.cached.range(range.first..range.end).count() as u64
    }

    /// Adds the pages of a window of `bytes` bytes that could not be taken back to the number of
    /// stuck pages.
    pub(super) fn count_stuck(&mut self, bytes: usize) {
        self.kernel_memory.stuck_pages += (bytes / PAGE) as u64;
    }

    /// Counts a page whose move failed, because a transfer used it.
    pub(super) fn count_kept(&mut self, address: usize) {
        let is_new = self.kernel_memory.kept_pages.insert(address);
        let kernel = &mut self.kernel_memory;
        kernel.kept_again += u64::from(!is_new);
        let kept = kernel.kept_pages.len() as u64 + kernel.kept_again;
        kernel.kept_pages_max = kernel.kept_pages_max.max(kept);
    }

    /// Changes the state of the page at an address by the pager, which knows its place from then
    /// on. A page that leaves it or is filled there is no longer kept.
    pub(super) fn set_state(&mut self, address: usize, state: PageState) {
        let has_left = self.change_state(address, state);
        if has_left || self.is_kept(address) {
            self.count_left(address);
        }
    }

    /// Changes the state of the page at an address, and the number of present pages. Returns true
    /// if the page was present and no longer is: it gets the next generation, and has no users.
    pub(super) fn change_state(&mut self, address: usize, state: PageState) -> bool {
        let page = self.page(address).expect("the address is in an area");
        let old_state = std::mem::replace(&mut page.state, state);
        let is_present = |state| matches!(state, PageState::Present { .. });
        let has_left = is_present(old_state) && !is_present(state);
        if has_left {
            *page = Page {
                generation: page.generation + 1,
                users: 0,
                writers: 0,
                released_at_ns: 0,
                ..*page
            };
            self.present_pages -= 1;
        }
        self.present_pages += u64::from(!is_present(old_state) && is_present(state));
        has_left
    }

    /// True if a move of the page failed, and the pager has not learned since that it has left.
    fn is_kept(&self, address: usize) -> bool {
        self.kernel_memory.kept_pages.contains(&address)
    }

    /// Ends the count of a page that leaves its place.
    fn count_left(&mut self, address: usize) {
        self.kernel_memory.kept_pages.remove(&address);
        self.kernel_memory.kept_again = 0;
    }

    /// Number of pages that may be in memory beyond the budget, because the system has failed or
    /// has kept pages in their place.
    pub(super) fn extra_page_count(&self) -> u64 {
        self.kernel_memory.stuck_pages + self.kernel_memory.kept_pages_max
    }

    /// Subtracts the delegated pages among the pages of an unmapped area from the number of
    /// delegated pages.
    pub(super) fn count_unmapped_area(&mut self, area_pages: &[Page]) {
        let delegated =
            area_pages.iter().filter(|page| matches!(page.state, PageState::Delegated { .. }));
        self.kernel_memory.delegated_pages -= delegated.count() as u64;
    }
}

impl World {
    /// Simulates a touch of a delegated page at `address` by the calling task. A page that is not
    /// in the cache is read first, which takes time. Returns `None` if the touch must be repeated:
    /// after a read without an error, and if the page is not delegated, or no longer. Otherwise
    /// the task may use the page's bytes, or gets a bus error: for a page past the end of the
    /// file, or after a read with an error.
    pub(super) fn touch_delegated(&self, address: usize) -> Option<Result<(), Bus>> {
        let page = self.memory().delegated_page(address)?;
        let faults = self.disk.borrow().faults().clone();
        let is_past_end = || page * PAGE_BYTES >= self.disk.borrow().inodes[INODE as usize].bytes;
        if is_past_end() {
            return Some(Err(Bus));
        }
        if !self.memory().kernel_memory.cached.contains(&page) {
            // The page is read. Meanwhile the window may be taken back, or the file truncated: the
            // repeated touch then finds out.
            self.pause(self.random_latency_ns(&faults));
            if self.memory().delegated_page(address) != Some(page) || is_past_end() {
                return None;
            }
            if self.happens_one_in(faults.error_one_in) || self.disk.borrow().is_bad(INODE, page) {
                return Some(Err(Bus));
            }
            self.read_around(page);
            return None;
        }
        // The page becomes mapped, and shows the current bytes of the file.
        let mut memory = self.memory();
        if let Some(Page { state: PageState::Delegated { is_mapped, .. }, .. }) =
            memory.page(address)
        {
            *is_mapped = true;
        }
        let disk = self.disk.borrow();
        let file = &disk.inodes[INODE as usize];
        let file_part_bytes = (file.bytes - page * PAGE_BYTES).min(PAGE_BYTES) as usize;
        // SAFETY: the pager's writable mapping. No task reads it before this one receives it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, PAGE) };
        file.read_current(INODE, page * PAGE_BYTES, &mut bytes[..file_part_bytes]);
        bytes[file_part_bytes..].fill(0);
        Some(Ok(()))
    }

    /// Reads a page of the file and its readable neighbours into the cache: the readahead window,
    /// with the page in its middle. The caller has checked that the page itself is readable.
    fn read_around(&self, page: u64) {
        let mut memory = self.memory();
        let ahead_pages = memory.kernel().map_or(0, |kernel| kernel.ahead_pages);
        let disk = self.disk.borrow();
        let file_pages = disk.inodes[INODE as usize].bytes.div_ceil(PAGE_BYTES);
        let first_page = page.saturating_sub(ahead_pages / 2);
        let readable_pages = (first_page..(first_page + ahead_pages).min(file_pages))
            .filter(|&page| !disk.is_bad(INODE, page));
        memory.kernel_memory.cached.extend(readable_pages);
        memory.kernel_memory.cached.insert(page);
    }

    /// Delegates a window: maps `pages` pages of the file from byte `offset` on at `address`
    /// (mmap(2)). Fails with `ENOMEM` at the rate of the fault `mapping_limit_one_in`.
    pub(super) fn map_file(&self, address: usize, pages: u64, offset: u64) -> Result<(), Errno> {
        let mapping_limit_one_in = self.disk.borrow().faults().mapping_limit_one_in;
        if self.happens_one_in(mapping_limit_one_in) {
            return Err(Errno::NOMEM);
        }
        let mut memory = self.memory();
        memory.kernel_memory.mappings_made += 1;
        memory.kernel_memory.delegated_pages += pages;
        memory.kernel_memory.delegated_total += pages;
        let mapping_id = memory.kernel_memory.mappings_made;
        // A window may only replace absent pages: others would lose their bytes.
        for page_index in 0..pages {
            let address = address + page_index as usize * PAGE;
            if memory.page(address).is_some_and(|page| page.state != PageState::Absent) {
                self.record_failure(format!(
                    "page {page_index} of a window of {pages} is not absent"
                ));
            }
            let file_page = offset / PAGE_BYTES + page_index;
            let state = PageState::Delegated { file_page, is_mapped: false };
            memory.replace_page(address, state, mapping_id);
        }
        Ok(())
    }

    /// Takes a window at `to` back: moves the registered range of `bytes` bytes at `from` to the
    /// place of the window (mremap(2)). Then waits until the pager has read the report of the move.
    /// Fails with `ENOMEM` at the rate of the fault `mapping_limit_one_in`.
    pub(super) fn move_into(&self, from: usize, bytes: usize, to: usize) -> Result<(), Errno> {
        let mapping_limit_one_in = self.disk.borrow().faults().mapping_limit_one_in;
        if self.happens_one_in(mapping_limit_one_in) {
            // The window stays delegated.
            self.memory().count_stuck(bytes);
            return Err(Errno::NOMEM);
        }
        let is_merge_drawn = self.random_below(2) == 0;
        let mut memory = self.memory();
        // The range leaves its place, and its pages replace the pages of the window.
        let uffd = memory.areas.remove(&from).expect("the moved range is a registered area").uffd;
        if memory.uffd_of(to) != Some(uffd) {
            self.record_failure("memory is moved to where another userfaultfd has it".to_owned());
        }
        memory.kernel_memory.mappings_made += 1;
        // The kernel may merge the moved range with the mapping before it: in one case of two here.
        let can_merge = memory.uffd_of(to - PAGE) == Some(uffd) && !memory.is_delegated(to - PAGE);
        let page_before = memory.page(to - PAGE).filter(|_| can_merge && is_merge_drawn);
        let merged_mapping_id = page_before.map(|page| page.mapping_id);
        let mapping_id = merged_mapping_id.unwrap_or(memory.kernel_memory.mappings_made);
        for address in (to..to + bytes).step_by(PAGE) {
            if !memory.is_delegated(address) {
                self.record_failure("what is taken back wasn't delegated".to_owned());
            }
            memory.replace_page(address, PageState::Absent, mapping_id);
        }
        let pages = (bytes / PAGE) as u64;
        memory.kernel_memory.delegated_pages -= pages;
        memory.kernel_memory.taken_back_total += pages;
        memory.kernel_memory.moves.push(Move { uffd, from, is_reported: false });
        drop(memory);
        // SAFETY: the pager's own range. The pager gives the range up with this call.
        unsafe { libc::munmap(from as *mut _, bytes) };
        self.wake_all(PAGER_SLEEP_KEY);
        // The pager's thread wakes the key `from` when it reads the report.
        let is_report_read =
            |pending_move: &Move| pending_move.from == from && pending_move.is_reported;
        while !self.memory().kernel_memory.moves.iter().any(is_report_read) {
            let no_timeout = None;
            self.block(from, no_timeout);
        }
        self.memory().kernel_memory.moves.retain(|pending_move| pending_move.from != from);
        Ok(())
    }
}
