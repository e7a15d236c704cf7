//! Mapping pages at the program's addresses, and unmapping them.
//!
//! A *frame* is memory of the machine for one page. Its page is *here*, at the frame's own address,
//! or *mapped*, at the program's address of the page in the *user area*. A protected page is
//! write-protected: the first write to it is a fault, by which the machine learns of the change. A
//! page is *poisoned* if a touch of it is a bus error. An `Unmap` is a page that the machine wants
//! back in its frame.

use super::*;
use crate::pager::uffd::CallError;

/// A page of zeros, aligned for direct I/O.
#[derive(Debug)]
#[repr(align(4096))]
pub(super) struct Zeros(pub(super) [u8; PAGE]);

impl Zeros {
    /// Address of the page.
    pub(super) fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl Areas {
    /// Puts a frame's page at the program's address of `page`, and wakes the threads that wait for
    /// it. `is_zero` is true for a page of zeros without bytes in the frame. If `is_writable` is
    /// false, the page is write-protected. If the page is already there, only lifts its write
    /// protection if needed.
    pub(super) fn map_frame(&mut self, page: u64, frame: u32, is_zero: bool, is_writable: bool) {
        if self.poisoned.remove(&page) {
            // The page could be read this time: the kernel's marker is removed. SAFETY: a poisoned
            // page has no bytes.
            unsafe { self.user.release(PageRange::new(page, 1)) };
        }
        match self.frames[frame as usize].presence {
            FramePresence::Mapped { page: other, is_protected } => {
                assert_eq!(other, page, "frame {frame} is mapped elsewhere");
                if is_protected && is_writable {
                    self.allow_writes(page, frame);
                }
                return self.wake(page);
            }
            FramePresence::Unallocated => {
                assert!(is_zero, "page {page} has no bytes in frame {frame}");
                let zeros = self.zeros.address();
                self.copy_page(page, zeros, !is_writable);
                self.add_present(1);
            }
            FramePresence::InFrame => {
                if is_zero {
                    // SAFETY: the frame's own page is here, and only this thread touches it. A page
                    // that was never written is in no transfer.
                    unsafe {
                        std::ptr::write_bytes(
                            self.frame_area.address(u64::from(frame)) as *mut u8,
                            0,
                            PAGE,
                        );
                    }
                }
                // A write in progress, which may not have reached the kernel, needs the page here.
                // A page to be write-protected cannot be moved and protected in one step. Both are
                // copied.
                let is_written = self.frames[frame as usize].writes > 0;
                if !is_writable || is_written || !self.move_to_user(page, frame) {
                    self.copy_to_user(page, frame, !is_writable);
                }
            }
        }
        self.frames[frame as usize].presence =
            FramePresence::Mapped { page, is_protected: !is_writable };
        self.frame_of_page[page as usize] = frame + 1;
    }

    /// Fills a mapped page with zeros if the program has dropped it itself (madvise(2)), and
    /// informs the machine of the write. Returns true if the page was dropped.
    pub(super) fn zero_dropped_page(&mut self, machine: &mut Machine, page: u64) -> bool {
        let was_dropped = self.fill_if_dropped(page);
        if was_dropped {
            self.memory_limit.on_left(page);
            machine.handle_written(self.memory, page);
        }
        was_dropped
    }

    /// Fills a mapped page with zeros, write-protected, if it is absent. Returns true if it was
    /// absent.
    fn fill_if_dropped(&mut self, page: u64) -> bool {
        let zeros = self.zeros.address();
        let is_protected = true;
        // If a page is present, the call fails. SAFETY: this server owns `zeros`, and a failed call
        // changes nothing.
        let result = unsafe { self.uffd.copy(self.user.address(page), zeros, PAGE, is_protected) };
        if result.is_ok() {
            self.frames[self.frame_of_page[page as usize] as usize - 1].presence =
                FramePresence::Mapped { page, is_protected: true };
        }
        result.is_ok()
    }

    /// Moves a frame's page to the program's address. Returns false if a transfer still uses it, or
    /// if the program has locked that address in memory.
    fn move_to_user(&mut self, page: u64, frame: u32) -> bool {
        let (to, from) = (self.user.address(page), self.frame_area.address(u64::from(frame)));
        // SAFETY: the frame's page is here and has no references, and the program's page is absent.
        match unsafe { self.uffd.move_pages(to, from, PAGE) } {
            Ok(()) => true,
            // The caller copies the page instead.
            Err(error) if [Errno::BUSY, Errno::INVAL].contains(&error.errno) => false,
            Err(error) => panic!("page {page} can't be mapped: {error}"),
        }
    }

    /// Copies a frame's page to the program's address, because it cannot be moved. The copy is
    /// write-protected if `is_protected`. The frame's own memory is released, or kept until its
    /// writes to the device have ended.
    fn copy_to_user(&mut self, page: u64, frame: u32, is_protected: bool) {
        self.copy_page(page, self.frame_area.address(u64::from(frame)), is_protected);
        self.add_present(1);
        if self.frames[frame as usize].writes > 0 {
            self.frames[frame as usize].is_present_twice = true;
        } else {
            self.release_frame_memory(frame);
        }
    }

    /// Copies the page at `source_address` to the program's absent page `page`. If `is_protected`
    /// is true, the copy is write-protected.
    fn copy_page(&mut self, page: u64, source_address: usize, is_protected: bool) {
        // SAFETY: `source_address` is a page of this server that no thread changes, and the
        // program's page is absent.
        let result =
            unsafe { self.uffd.copy(self.user.address(page), source_address, PAGE, is_protected) };
        result.expect("an absent page of a registered area takes a copy");
    }

    /// Removes the write protection of a mapped page, and wakes the threads that wait to write.
    fn allow_writes(&mut self, page: u64, frame: u32) {
        // SAFETY: a page of the registered area.
        let allowed = unsafe { self.uffd.unprotect(self.user.address(page), PAGE) };
        allowed.expect("a page that is registered for writes can be written to");
        self.frames[frame as usize].presence = FramePresence::Mapped { page, is_protected: false };
    }

    /// Unmaps the pages of `self.unmaps`, reports each to the machine, and empties the list. A page
    /// that the kernel or the program keeps in its place counts as busy and stays mapped. It is
    /// reported as unmapped too, because the machine expects that, and then as mapped by a fault.
    pub(super) fn unmap_all(&mut self, machine: &mut Machine, now: Time) {
        let mut unmaps = std::mem::take(&mut self.unmaps);
        let kept_before = self.memory_limit.kept_pages();
        // Adjacent pages in adjacent frames are moved by one call.
        let mut run_start = 0;
        while run_start < unmaps.len() {
            let follows = |pair: &[Unmap]| {
                pair[1].page == pair[0].page + 1 && pair[1].frame.0 == pair[0].frame.0 + 1
            };
            let pairs = unmaps[run_start..].windows(2);
            let run_length = 1 + pairs.take_while(|pair| follows(pair)).count();
            run_start += self.unmap_run(&unmaps[run_start..run_start + run_length]);
        }
        let is_stuck = |frames: &[Frame], unmap: &Unmap| {
            frames[unmap.frame.0 as usize].presence != FramePresence::InFrame
        };
        for &unmap in &unmaps {
            // Each write to a clean page was reported by a fault. The system call that uses a stuck
            // page may still write to it.
            let may_be_written = is_stuck(&self.frames, &unmap);
            machine.handle_unmapped(now, unmap, may_be_written);
        }
        // All answers are in, so the machine accepts frames and faults again. A page that the
        // program has dropped is stuck too, but leaves when it is chosen again.
        let kept_count =
            unmaps.iter().filter(|unmap| self.memory_limit.is_kept(unmap.page)).count();
        if kept_count > 0 {
            // A page that is kept for the first time has no frame of its own yet, although the
            // memory may still be larger for pages that have left.
            let are_kept_again =
                kept_count == unmaps.len() && self.memory_limit.kept_pages() == kept_before;
            self.enlarge_memory(machine, now, unmaps.len(), are_kept_again);
        }
        // A stuck page is mapped again, as by a write, because it may still be written to. With
        // `REMAP_TAG` an error of this fault poisons no page.
        for unmap in unmaps.drain(..) {
            if is_stuck(&self.frames, &unmap) {
                self.statistics.busy_pages += 1;
                self.on_touch(machine, now, unmap.page, MemoryAccess::Write, REMAP_TAG);
            }
        }
        self.unmaps = unmaps;
    }

    /// Unmaps adjacent pages of adjacent frames as far as one call gets, or skips the first one,
    /// which stays mapped. If the kernel rejects the move, as of locked pages, unlocks all memory
    /// of the region. Returns the number of pages moved or skipped, at least one: the caller
    /// continues behind them.
    fn unmap_run(&mut self, run: &[Unmap]) -> usize {
        let mut moved = self.try_move_run(run);
        if is_move_rejected(moved) && run.len() > 1 {
            // Some of the pages may be locked and others not, so each is moved alone.
            return self.unmap_run(&run[..1]);
        }
        if is_move_rejected(moved) {
            // A page that must be evicted cannot stay locked. All pages are unlocked together:
            // unlocking page by page would leave the kernel with a mapping for each page, and their
            // number is limited.
            self.user.unlock();
            self.frame_area.unlock();
            moved = self.try_move_run(run);
        }
        let count = match moved {
            Ok(()) => run.len(),
            // The next call finds out the reason for the stop.
            Err(error) if error.bytes_done > 0 => error.bytes_done / PAGE,
            // The kernel uses the page, or the program has removed its own access to it
            // (mprotect(2)). The page is skipped, and stays mapped.
            Err(error) if error.errno == Errno::BUSY || is_move_rejected(moved) => {
                self.memory_limit.on_kept(run[0].page);
                return 1;
            }
            // The program has dropped the page itself: it stays for now as a zero page.
            Err(error) if error.errno == Errno::NOENT && self.fill_if_dropped(run[0].page) => {
                self.memory_limit.on_left(run[0].page);
                return 1;
            }
            Err(error) => panic!("page {} can't be unmapped: {error}", run[0].page),
        };
        for unmap in &run[..count] {
            self.frames[unmap.frame.0 as usize].presence = FramePresence::InFrame;
            self.frame_of_page[unmap.page as usize] = NO_FRAME;
            self.memory_limit.on_left(unmap.page);
        }
        count
    }

    /// Moves adjacent pages to adjacent frames by one call. The error contains the number of bytes
    /// moved before it.
    fn try_move_run(&self, run: &[Unmap]) -> Result<(), CallError> {
        let first_unmap = &run[0];
        let to = self.frame_area.address(u64::from(first_unmap.frame.0));
        let from = self.user.address(first_unmap.page);
        // SAFETY: pages of the registered areas. The frames' own pages are absent, as for each
        // mapped frame that is not being written. A reference of the program sees the same bytes on
        // the next touch.
        unsafe { self.frame_uffd.move_pages(to, from, run.len() * PAGE) }
    }

    /// Makes each touch of the absent page a bus error, and wakes the threads that wait for it.
    pub(super) fn poison(&mut self, page: u64) {
        self.statistics.poisoned_pages += u64::from(self.poisoned.insert(page));
        // SAFETY: the page is absent.
        match unsafe { self.uffd.poison(self.user.address(page), PAGE) } {
            Ok(()) => {}
            // An earlier fault of another thread has poisoned the page.
            Err(error) if error.errno == Errno::EXIST => self.wake(page),
            Err(error) => panic!("page {page} can't be poisoned: {error}"),
        }
    }

    /// Wakes the threads that wait for a page.
    pub(super) fn wake(&self, page: u64) {
        let woken = self.uffd.wake(self.user.address(page), PAGE);
        woken.expect("a page of a registered area can be waited for");
    }
}

/// True if the kernel cannot move pages between the two addresses, because the program has locked
/// or protected one of them.
fn is_move_rejected(move_result: Result<(), CallError>) -> bool {
    move_result.is_err_and(|error| error.errno == Errno::INVAL && error.bytes_done == 0)
}
