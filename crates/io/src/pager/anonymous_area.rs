//! A range of address space that readpath fills page by page.
//!
//! An area costs no memory until a page is put into it. The kernel must never fill it with zero
//! pages. In a process that has locked all future memory (`mlockall(MCL_FUTURE)`) it would do so
//! for any accessible range. An area is therefore inaccessible until a userfaultfd is registered
//! for it.
//!
//! A child process does not inherit an area, because absent pages would read as zeros there without
//! a thread to fill them. The module `fork_replacement.rs` describes the replacement.
//!
//! In a simulation (`cfg(simulation)`) a model of the memory answers the calls here. Its `None` or
//! false means that the thread is in no simulation, and the system call follows. Calls without an
//! answer inform the model, and the system call follows in any case.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::mm;

use super::error::PagerError;
use super::uffd::{RangeRegistration, Uffd};
use crate::os::frames::can_allocate;

/// Memory that a serving thread needs next to its tables, in bytes: for its backend, and to serve.
/// Without it, limits of data (`ulimit -d`) in a range of 224 KiB ended a program. It had a region
/// of 256 MiB and 16 MiB of memory (crates/io/tests/process_limits.rs, in steps of 16 KiB).
const SERVING_BYTES: u64 = 1 << 20;

/// Private anonymous memory of whole pages, initially absent.
#[derive(Debug)]
pub(super) struct AnonymousArea {
    /// Address of page 0.
    base: NonNull<u8>,
    /// Length in pages.
    pages: u64,
}

// SAFETY: the range belongs to the area alone, and nothing in it depends on the thread. The owners
// of references control the access to its memory.
unsafe impl Send for AnonymousArea {}
// SAFETY: `&self` gives only addresses. Functions that take pages away are unsafe.
unsafe impl Sync for AnonymousArea {}

impl AnonymousArea {
    /// Reserves an area of `pages` pages, at least one. An access is a segmentation fault until the
    /// area is [registered](AnonymousArea::register).
    ///
    /// # Errors
    /// The system cannot reserve the range.
    pub(super) fn new(pages: u64) -> rustix::io::Result<AnonymousArea> {
        let bytes = usize::try_from(pages * PAGE_BYTES).map_err(|_| rustix::io::Errno::NOMEM)?;
        // NORESERVE: the system sets no memory aside for the range.
        let (no_access, flags) =
            (mm::ProtFlags::empty(), mm::MapFlags::PRIVATE | mm::MapFlags::NORESERVE);
        // SAFETY: a new private mapping at an address that the kernel chooses.
        let base = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, no_access, flags)? };
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        let area = AnonymousArea { base, pages };
        // SAFETY: the whole mapping made above. The calls change no bytes.
        unsafe {
            mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxDontFork)?;
            // Pages come and go one by one. A kernel without huge pages rejects this advice.
            let _ = mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxNoHugepage);
            // The kernel cannot move pages that it has merged with other pages of equal content, as
            // it does for all memory of a process with `PR_SET_MEMORY_MERGE`. A kernel without this
            // feature rejects the advice.
            let _ = mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxUnmergeable);
        }
        Ok(area)
    }

    /// Registers the area with `uffd` for the faults that `registration` names, and makes it
    /// accessible.
    ///
    /// # Errors
    /// Another userfaultfd is registered for it, or the limit of writable memory is reached. The
    /// whole area counts (`RLIMIT_DATA` in getrlimit(2), and `vm.overcommit_memory` 2).
    pub(super) fn register(
        &self,
        uffd: &Uffd,
        registration: RangeRegistration,
    ) -> Result<(), PagerError> {
        let protection = mm::MprotectFlags::READ | mm::MprotectFlags::WRITE;
        // SAFETY: the whole mapping is registered first. The owner of the userfaultfd then serves
        // each access.
        unsafe {
            uffd.register(self.address(0), self.bytes(), registration).map_err(PagerError::Call)?;
            mm::mprotect(self.base.as_ptr().cast(), self.bytes(), protection).map_err(|errno| {
                PagerError::WritableMemory {
                    bytes: self.pages * PAGE_BYTES,
                    errno: errno.raw_os_error(),
                }
            })
        }
    }

    /// Checks that the serving thread can allocate its tables and the memory with which it serves.
    /// Each table has a number of entries, and a size of an entry in bytes. A failure at the real
    /// allocation would abort the process. Called after the registration of all areas, which count
    /// towards the same limits.
    ///
    /// # Errors
    /// A limit of writable memory is too near.
    pub(super) fn check_tables(tables: [(u64, usize); 2]) -> Result<(), PagerError> {
        let table_bytes = tables.map(|(entries, entry_bytes)| entries * entry_bytes as u64);
        let bytes = SERVING_BYTES + table_bytes.iter().sum::<u64>();
        match can_allocate(bytes) {
            true => Ok(()),
            false => Err(PagerError::WritableMemory { bytes, errno: libc::ENOMEM }),
        }
    }

    /// Length in bytes.
    pub(super) fn bytes(&self) -> usize {
        (self.pages * PAGE_BYTES) as usize
    }

    /// Address of the first byte of page number `page` of the area.
    pub(super) fn address(&self, page: u64) -> usize {
        debug_assert!(page < self.pages, "page {page} of {}", self.pages);
        self.base.as_ptr() as usize + (page * PAGE_BYTES) as usize
    }

    /// Page at an address; `None` outside the area.
    pub(super) fn page_at(&self, address: usize) -> Option<u64> {
        let bytes = address.checked_sub(self.base.as_ptr() as usize)?;
        Some(bytes as u64 / PAGE_BYTES).filter(|&page| page < self.pages)
    }

    /// True if a page is in memory (mincore(2)). False if it is absent, if the kernel has swapped
    /// it out, or if the call fails.
    pub(super) fn is_present(&self, page: u64) -> bool {
        #[cfg(simulation)]
        if let Some(is_present) = crate::simulation::memory::is_present(self.address(page)) {
            return is_present;
        }
        let mut is_in_core = 0;
        // SAFETY: a page of this mapping, and one byte for the answer.
        let answer = unsafe {
            libc::mincore(self.address(page) as *mut _, PAGE_BYTES as usize, &mut is_in_core)
        };
        answer == 0 && is_in_core & 1 != 0
    }

    /// Unlocks all pages that the program has locked in memory.
    pub(super) fn unlock(&self) {
        #[cfg(simulation)]
        crate::simulation::memory::unlock(self.address(0), self.bytes());
        // SAFETY: the whole mapping, and no bytes change. If the kernel refuses, the pages stay
        // locked, and a later move of a page reports that.
        let _ = unsafe { mm::munlock(self.base.as_ptr().cast(), self.bytes()) };
    }

    /// Gives the memory of a range back to the system. Its pages are absent afterwards.
    ///
    /// # Safety
    /// The bytes are not needed. References to them may exist only if later faults fill the pages
    /// with the same bytes.
    pub(super) unsafe fn release(&self, range: PageRange) {
        #[cfg(simulation)]
        if crate::simulation::memory::release_pages(self.address(range.first), range) {
            return;
        }
        let bytes = (range.count() * PAGE_BYTES) as usize;
        // The advice includes pages that the program has locked: the memory budget takes
        // precedence.
        let advice = mm::Advice::LinuxDontneedLocked;
        // SAFETY: the range lies in the mapping, and the caller gives its bytes up.
        let released = unsafe { mm::madvise(self.address(range.first) as *mut _, bytes, advice) };
        released.expect("pages of a private mapping can always be given back");
    }

    /// Replaces a range by the kernel's mapping of the same pages of a file. The content of the
    /// range is lost.
    ///
    /// The file is first mapped at another address and then moved. If a file system rejects a
    /// mapping at a fixed address, the range there may already be unmapped (POSIX permits this for
    /// mmap(2), and Linux 6.18 does it). The move also keeps the range's fork behaviour equal to
    /// its neighbours'.
    ///
    /// # Errors
    /// The system has too many mappings, or the file cannot be mapped. The range is unchanged.
    pub(super) fn map_file(
        &self,
        range: PageRange,
        file: BorrowedFd<'_>,
    ) -> rustix::io::Result<()> {
        let offset = range.first * PAGE_BYTES;
        #[cfg(simulation)]
        if let Some(simulated) =
            crate::simulation::memory::map_file(self.address(range.first), range, offset)
        {
            return simulated;
        }
        let bytes = (range.count() * PAGE_BYTES) as usize;
        let destination = self.address(range.first) as *mut _;
        let (protection, move_flags) = (mm::ProtFlags::READ, mm::MremapFlags::MAYMOVE);
        // SAFETY: a new mapping at an address that the kernel chooses, which is unmapped or moved.
        // The target is a range of this area, which reads as the file's bytes before and after.
        unsafe {
            let null = std::ptr::null_mut();
            let new_mapping =
                mm::mmap(null, bytes, protection, mm::MapFlags::SHARED, file, offset)?;
            mm::madvise(new_mapping, bytes, mm::Advice::LinuxDontFork)
                .and_then(|()| {
                    mm::mremap_fixed(new_mapping, bytes, bytes, move_flags, destination).map(drop)
                })
                // The new mapping was not moved.
                .inspect_err(|_| _ = mm::munmap(new_mapping, bytes))
        }
    }

    /// Moves this whole registered area to the pages of `other` from page `first_page` on, which
    /// are replaced.
    ///
    /// # Safety
    /// The content of the target is not needed, or faults on the moved area fill it with the same
    /// bytes.
    ///
    /// # Errors
    /// The system has too many mappings, which it checks first. `other` is unchanged, and this area
    /// is unmapped.
    pub(super) unsafe fn move_into(
        self,
        other: &AnonymousArea,
        first_page: u64,
    ) -> rustix::io::Result<()> {
        #[cfg(simulation)]
        if let Some(moved) = crate::simulation::memory::move_into(
            self.address(0),
            self.bytes(),
            other.address(first_page),
        ) {
            return moved.map(|()| std::mem::forget(self));
        }
        let (from, to) = (self.base.as_ptr().cast(), other.address(first_page) as *mut _);
        // SAFETY: both ranges belong to areas and have the same length. The caller guarantees that
        // the target's content is not needed.
        unsafe {
            mm::mremap_fixed(from, self.bytes(), self.bytes(), mm::MremapFlags::MAYMOVE, to)?
        };
        // The drop would unmap memory that belongs to `other` now.
        std::mem::forget(self);
        Ok(())
    }

    /// Returns the bytes of a page.
    ///
    /// # Safety
    /// The page is present, and no thread changes or removes it while the slice lives.
    pub(super) unsafe fn page_bytes(&self, page: u64) -> &[u8] {
        #[cfg(simulation)]
        crate::simulation::memory::assert_readable(self.address(page));
        // SAFETY: within the mapping. The caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.address(page) as *const u8, PAGE_BYTES as usize) }
    }
}

impl Drop for AnonymousArea {
    /// Unmaps the area.
    fn drop(&mut self) {
        #[cfg(simulation)]
        crate::simulation::memory::unmap(self.address(0), self.bytes());
        // SAFETY: a mapping of this area. References into it borrow from its owner. The call cannot
        // fail for whole pages, and a failure would have no remedy.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.bytes()) };
    }
}

/// Calls `on_run` for each run of consecutive pages in `pages`, in ascending order, and empties
/// `pages`. The pages come in any order, each once.
pub(super) fn for_each_run(pages: &mut Vec<u64>, mut on_run: impl FnMut(PageRange)) {
    pages.sort_unstable();
    let mut run = PageRange::default();
    for page in pages.drain(..) {
        if page == run.end && !run.is_empty() {
            run.end += 1;
            continue;
        }
        if !run.is_empty() {
            on_run(run);
        }
        run = PageRange::new(page, 1);
    }
    if !run.is_empty() {
        on_run(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the pages 0; 3, 4; and 7, 8, 9.
    #[test]
    fn consecutive_pages_form_one_run_in_any_order() {
        let mut runs = Vec::new();
        for_each_run(&mut vec![7, 3, 4, 9, 8, 0], |run| runs.push((run.first, run.end)));
        assert_eq!(runs, [(0, 1), (3, 5), (7, 10)]);
        for_each_run(&mut Vec::new(), |run| panic!("{run:?}"));
    }

    /// A file that rejects only the mapping itself: the kernel generates its content on each read.
    #[test]
    fn range_stays_mapped_after_a_rejected_file_mapping() {
        let area = AnonymousArea::new(4).unwrap();
        let Ok(file) = std::fs::File::open("/sys/kernel/uevent_seqnum") else { return };
        let result = area.map_file(PageRange::new(1, 2), std::os::fd::AsFd::as_fd(&file));
        assert_eq!(result, Err(rustix::io::Errno::NODEV));
        let mut is_in_core = [0; 4];
        // SAFETY: four pages with a byte for each. The call fails if a page is not mapped
        // (mincore(2)).
        let mincore_result = unsafe {
            libc::mincore(area.address(0) as *mut _, area.bytes(), is_in_core.as_mut_ptr())
        };
        assert_eq!(mincore_result, 0);
    }

    /// An area of four pages with a userfaultfd that fills none. The test puts a page 1 there.
    #[test]
    fn released_pages_are_absent_and_not_filled_by_mlock() {
        let area = AnonymousArea::new(4).unwrap();
        assert_eq!(area.page_at(area.address(3) + 5), Some(3));
        assert_eq!(area.page_at(area.address(0) - 1), None);
        assert_eq!(area.page_at(area.address(0) + area.bytes()), None);
        let Ok(uffd) = Uffd::open_without_reports() else { return };
        area.register(&uffd, RangeRegistration::Missing).unwrap();
        let present_pages = || (0..4).filter(|&page| area.is_present(page)).collect::<Vec<_>>();
        let page_content = [9; PAGE_BYTES as usize];
        let is_protected = false;
        // SAFETY: memory of this test. No reference outlives its statement.
        unsafe {
            let source = page_content.as_ptr() as usize;
            uffd.copy(area.address(1), source, page_content.len(), is_protected).unwrap();
            assert_eq!(area.page_bytes(1), page_content);
            assert_eq!(present_pages(), [1]);
            // The lock is refused and brings in no page. A page that is present can still be
            // released.
            let lock_result = libc::mlock(area.address(0) as *const _, area.bytes());
            assert_eq!((lock_result, present_pages()), (-1, vec![1]));
            area.release(PageRange::new(1, 2));
        }
        assert_eq!(present_pages(), []);
    }
}
