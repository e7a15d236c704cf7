//! Where pages are: putting them where the program sees them, and taking them away.

use super::*;
use crate::pager::uffd::CallError;

impl Areas {
    /// Puts a frame's page where the program sees it.
    pub(super) fn map(&mut self, page: u64, frame: u32, is_zero: bool, is_writable: bool) {
        if self.poisoned.remove(&page) {
            // What failed then has come in now.
            // SAFETY: no bytes are there.
            unsafe { self.user.release(PageRange::new(page, 1)) };
        }
        match self.frames[frame as usize].place {
            FramePresence::Mapped { page: other, is_protected } => {
                assert_eq!(other, page, "frame {frame} is mapped elsewhere");
                if is_protected && is_writable {
                    self.allow_writes(page, frame);
                }
                return self.wake(page);
            }
            FramePresence::Nowhere => {
                assert!(is_zero, "page {page} has no bytes in frame {frame}");
                let zeros = self.zeros.address();
                self.put_copy(page, zeros, !is_writable);
                self.count_present(1);
            }
            FramePresence::Here => {
                if is_zero {
                    // SAFETY: the frame's own page is here, and only this thread
                    // touches it: a page that was never written is in no transfer.
                    unsafe {
                        std::ptr::write_bytes(
                            self.area.address(u64::from(frame)) as *mut u8,
                            0,
                            PAGE,
                        );
                    }
                }
                // A write that was queued, and has not come to the kernel yet, needs it here.
                let is_written = self.frames[frame as usize].writes > 0;
                if !is_writable || is_written || !self.move_in(page, frame) {
                    self.copy_in(page, frame, !is_writable);
                }
            }
        }
        self.frames[frame as usize].place =
            FramePresence::Mapped { page, is_protected: !is_writable };
        self.mapped[page as usize] = frame;
    }

    /// Whether a page that is mapped isn't there any more: the program has given it up
    /// by itself (madvise(2)). It has zeros then, which are to be kept as if it had written them.
    pub(super) fn give_up_lost(&mut self, machine: &mut Machine, page: u64) -> bool {
        let is_lost = self.put_zeros_if_lost(page);
        if is_lost {
            machine.handle_written(self.memory, page);
        }
        is_lost
    }

    fn put_zeros_if_lost(&mut self, page: u64) -> bool {
        let zeros = self.zeros.address();
        // SAFETY: `zeros` is ours; where a page is present nothing is done.
        let put = unsafe { self.uffd.copy(self.user.address(page), zeros, PAGE, true) };
        if put.is_ok() {
            self.frames[self.mapped[page as usize] as usize].place =
                FramePresence::Mapped { page, is_protected: true };
        }
        put.is_ok()
    }

    /// Moves a frame's page to its place; false when a transfer still holds it, or the program
    /// has locked the place in memory.
    fn move_in(&mut self, page: u64, frame: u32) -> bool {
        let (to, from) = (self.user.address(page), self.area.address(u64::from(frame)));
        // SAFETY: the frame's page is here, to which nobody holds a reference, and the
        // program's is absent.
        match unsafe { self.uffd.move_pages(to, from, PAGE) } {
            Ok(()) => true,
            Err(error) if [Errno::BUSY, Errno::INVAL].contains(&error.errno) => false,
            Err(error) => panic!("page {page} can't be mapped: {error}"),
        }
    }

    fn copy_in(&mut self, page: u64, frame: u32, is_protected: bool) {
        self.put_copy(page, self.area.address(u64::from(frame)), is_protected);
        self.count_present(1);
        if self.frames[frame as usize].writes > 0 {
            self.frames[frame as usize].is_double = true;
        } else {
            self.release(frame);
        }
    }

    fn put_copy(&mut self, page: u64, from: usize, is_protected: bool) {
        // SAFETY: `from` is a page of ours that nobody changes, and the program's is absent.
        let put = unsafe { self.uffd.copy(self.user.address(page), from, PAGE, is_protected) };
        put.expect("an absent page of a registered area takes a copy");
    }

    fn allow_writes(&mut self, page: u64, frame: u32) {
        // SAFETY: a page of the registered area.
        let allowed = unsafe { self.uffd.unprotect(self.user.address(page), PAGE) };
        allowed.expect("a page that is registered for writes can be written to");
        self.frames[frame as usize].place = FramePresence::Mapped { page, is_protected: false };
    }

    /// Takes the pages of `self.unmaps` out of the program's sight.
    pub(super) fn move_all_out(&mut self, machine: &mut Machine, now: Time) {
        let mut unmaps = std::mem::take(&mut self.unmaps);
        // Neighbours that lie side by side in frames too go with one call.
        let mut first = 0;
        while first < unmaps.len() {
            let follows = |pair: &[Unmap]| {
                pair[1].page == pair[0].page + 1 && pair[1].frame.0 == pair[0].frame.0 + 1
            };
            let count = 1 + unmaps[first..].windows(2).take_while(|pair| follows(pair)).count();
            first += self.move_out(&unmaps[first..first + count]);
        }
        let is_stuck =
            |all: &[Frame], unmap: &Unmap| all[unmap.frame.0 as usize].place != FramePresence::Here;
        for &unmap in &unmaps {
            // Every write to a clean page was told by a fault. One that is stuck
            // may be written to by whoever holds it.
            machine.handle_unmapped(now, unmap, is_stuck(&self.frames, &unmap));
        }
        // All are answered for: now the machine may be asked again.
        for unmap in unmaps.drain(..) {
            if is_stuck(&self.frames, &unmap) {
                self.statistics.busy_pages += 1;
                self.fault(machine, now, unmap.page, MemoryAccess::Write, STUCK);
            }
        }
        self.unmaps = unmaps;
    }

    /// Moves neighbours out, as far as one call comes; gives how many were dealt with.
    fn move_out(&mut self, run: &[Unmap]) -> usize {
        let mut moved = self.try_move_out(run);
        if is_refused(moved) && run.len() > 1 {
            // Some of them may be locked and others not: one by one.
            return self.move_out(&run[..1]);
        }
        if is_refused(moved) {
            // A page that has to leave can't stay locked. All are unlocked together: page by
            // page the kernel would be left with a mapping for each, of which it gives few.
            self.user.unlock();
            self.area.unlock();
            moved = self.try_move_out(run);
        }
        let count = match moved {
            Ok(()) => run.len(),
            // Where it stopped is found out by the next call.
            Err(error) if error.bytes_done > 0 => error.bytes_done / PAGE,
            // In use by the kernel.
            Err(error) if error.errno == Errno::BUSY => return 1,
            // The program has taken its own right to it away (mprotect(2)).
            Err(_) if is_refused(moved) => return 1,
            // Or has given it up by itself: it stays for now, as one of zeros.
            Err(error) if error.errno == Errno::NOENT && self.put_zeros_if_lost(run[0].page) => {
                return 1;
            }
            Err(error) => panic!("page {} can't be unmapped: {error}", run[0].page),
        };
        for unmap in &run[..count] {
            self.frames[unmap.frame.0 as usize].place = FramePresence::Here;
            self.mapped[unmap.page as usize] = NO_FRAME;
        }
        count
    }

    fn try_move_out(&self, run: &[Unmap]) -> Result<(), CallError> {
        let first = &run[0];
        let (to, from) =
            (self.area.address(u64::from(first.frame.0)), self.user.address(first.page));
        // SAFETY: pages of the registered areas; the frames' own are absent, as
        // every mapped frame's that is not being written. A reference of the
        // program sees the same bytes when it touches the page again.
        unsafe { self.area_uffd.move_pages(to, from, run.len() * PAGE) }
    }

    pub(super) fn poison(&mut self, page: u64) {
        self.statistics.poisoned_pages += u64::from(self.poisoned.insert(page));
        // SAFETY: the page is absent.
        match unsafe { self.uffd.poison(self.user.address(page), PAGE) } {
            Ok(()) => {}
            // Another thread's fault on it has failed before.
            Err(error) if error.errno == Errno::EXIST => self.wake(page),
            Err(error) => panic!("page {page} can't be poisoned: {error}"),
        }
    }

    pub(super) fn wake(&self, page: u64) {
        let woken = self.uffd.wake(self.user.address(page), PAGE);
        woken.expect("a page of a registered area can be waited for");
    }
}

/// Whether the kernel moves no page between the two places, as the program has treated them.
fn is_refused(moved: Result<(), CallError>) -> bool {
    moved.is_err_and(|error| error.errno == Errno::INVAL && error.bytes_done == 0)
}
