//! A range of address space that we fill page by page ourselves.
//!
//! It costs no memory until a page is put into it. The kernel must never fill it
//! with zeros of its own: of a process that has locked all of its future memory
//! (`mlockall(MCL_FUTURE)`) it does so with whatever may be touched. So an area can't be
//! touched until a userfaultfd has it.
//!
//! A child process doesn't inherit it (it would find zeros where pages are absent, with
//! nobody to fill them); what it has in its place, `inherited.rs` says.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::mm;

use super::error::PagerError;
use super::uffd::{RangeRegistration, Uffd};

/// Private anonymous memory of whole pages, absent at first.
#[derive(Debug)]
pub(super) struct AnonymousArea {
    base: NonNull<u8>,
    pages: u64,
}

// SAFETY: the range belongs to the area alone, and nothing in it depends on the
// thread; what may be done with its memory is for the owners of references.
unsafe impl Send for AnonymousArea {}
// SAFETY: as above; through `&self` it gives addresses, and takes pages away
// only under a promise of the caller.
unsafe impl Sync for AnonymousArea {}

impl AnonymousArea {
    /// An area of `pages` pages, at least one. To touch it is a fault as to unmapped memory,
    /// until it is [watched](AnonymousArea::watch).
    ///
    /// # Errors
    /// The system gives no such range.
    pub(super) fn new(pages: u64) -> rustix::io::Result<AnonymousArea> {
        let bytes = usize::try_from(pages * PAGE_BYTES).map_err(|_| rustix::io::Errno::NOMEM)?;
        let (none, flags) =
            (mm::ProtFlags::empty(), mm::MapFlags::PRIVATE | mm::MapFlags::NORESERVE);
        // SAFETY: a new private mapping at an address that the kernel chooses.
        let base = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, none, flags)? };
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        let area = AnonymousArea { base, pages };
        // SAFETY: the whole of the mapping made above; none of them changes bytes.
        unsafe {
            mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxDontFork)?;
            // Pages come and go one by one. A kernel that has no huge pages refuses it.
            let _ = mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxNoHugepage);
            // And are moved, which those can't be that the kernel has merged with others of the same content, as it does
            // with all memory of a process that is set so (`PR_SET_MEMORY_MERGE`). One without this refuses it.
            let _ = mm::madvise(base.as_ptr().cast(), bytes, mm::Advice::LinuxUnmergeable);
        }
        Ok(area)
    }

    /// Has its absent pages watched by `uffd`, and lets it be touched from then on.
    ///
    /// # Errors
    /// Another userfaultfd has it, or the system has no room for so much.
    pub(super) fn watch(&self, uffd: &Uffd, watch: RangeRegistration) -> Result<(), PagerError> {
        let touchable = mm::MprotectFlags::READ | mm::MprotectFlags::WRITE;
        // SAFETY: the whole of our mapping; whoever touches it answers to the owner of
        // the userfaultfd, which was named first.
        unsafe {
            uffd.register(self.address(0), self.bytes(), watch).map_err(PagerError::Call)?;
            mm::mprotect(self.base.as_ptr().cast(), self.bytes(), touchable).map_err(|errno| {
                PagerError::AddressSpace {
                    bytes: self.pages * PAGE_BYTES,
                    errno: errno.raw_os_error(),
                }
            })
        }
    }

    /// How many bytes it has.
    pub(super) fn bytes(&self) -> usize {
        (self.pages * PAGE_BYTES) as usize
    }

    /// The address of a page.
    pub(super) fn address(&self, page: u64) -> usize {
        debug_assert!(page < self.pages, "page {page} of {}", self.pages);
        self.base.as_ptr() as usize + (page * PAGE_BYTES) as usize
    }

    /// The page at an address; `None` where it lies outside.
    pub(super) fn page(&self, address: usize) -> Option<u64> {
        let bytes = address.checked_sub(self.base.as_ptr() as usize)?;
        Some(bytes as u64 / PAGE_BYTES).filter(|&page| page < self.pages)
    }

    /// Whether a page is in memory.
    pub(super) fn is_present(&self, page: u64) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(is_present) = crate::simulation::memory::is_present(self.address(page)) {
            return is_present;
        }
        let mut is_in_core = 0;
        // SAFETY: a page of our mapping, and a byte for the answer.
        let answer = unsafe {
            libc::mincore(self.address(page) as *mut _, PAGE_BYTES as usize, &mut is_in_core)
        };
        answer == 0 && is_in_core & 1 != 0
    }

    /// Takes the lock off all of it that the program has locked in memory.
    pub(super) fn unlock(&self) {
        #[cfg(any(test, feature = "simulation"))]
        crate::simulation::memory::unlock(self.address(0), self.bytes());
        // SAFETY: the whole of our mapping, and no bytes change. What the kernel refuses
        // stays locked, and is met again as such.
        let _ = unsafe { mm::munlock(self.base.as_ptr().cast(), self.bytes()) };
    }

    /// Gives the memory of a range back; its pages are absent from now on.
    ///
    /// # Safety
    /// Nobody needs the bytes, and nobody holds a reference to them unless the
    /// pages are filled with the same bytes again when they are touched.
    pub(super) unsafe fn release(&self, range: PageRange) {
        #[cfg(any(test, feature = "simulation"))]
        if crate::simulation::memory::release(self.address(range.first), range) {
            return;
        }
        let bytes = (range.count() * PAGE_BYTES) as usize;
        // Also where the program has locked it: the budget is the stricter word.
        let advice = mm::Advice::LinuxDontneedLocked;
        // SAFETY: the range lies in the mapping; the caller gives its bytes up.
        let released = unsafe { mm::madvise(self.address(range.first) as *mut _, bytes, advice) };
        released.expect("pages of a private mapping can always be given back");
    }

    /// Has the kernel map a part of a file, the same pages of it, in the place of a range: what is there is gone.
    ///
    /// It is mapped elsewhere first, and moved: where a file system refuses to be mapped, what was in the place may be gone
    /// already (mmap(2) of POSIX says so, and Linux 6.18 does so). And a child has all of the part's neighbours or none.
    ///
    /// # Errors
    /// The system takes no more mappings, or the file can't be mapped; the range is as it was.
    pub(super) fn lend(&self, range: PageRange, file: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let offset = range.first * PAGE_BYTES;
        #[cfg(any(test, feature = "simulation"))]
        if let Some(lent) =
            crate::simulation::memory::lend(self.address(range.first), range, offset)
        {
            return lent;
        }
        let bytes = (range.count() * PAGE_BYTES) as usize;
        let place = self.address(range.first) as *mut _;
        let (protection, moved) = (mm::ProtFlags::READ, mm::MremapFlags::MAYMOVE);
        // SAFETY: a new mapping at an address that the kernel chooses, which is given back or moved; the place is a range of
        // our mapping, which reads as the file's bytes before and after.
        unsafe {
            let null = std::ptr::null_mut();
            let made = mm::mmap(null, bytes, protection, mm::MapFlags::SHARED, file, offset)?;
            mm::madvise(made, bytes, mm::Advice::LinuxDontFork)
                .and_then(|()| mm::mremap_fixed(made, bytes, bytes, moved, place).map(drop))
                .inspect_err(|_| _ = mm::munmap(made, bytes))
        }
    }

    /// Puts this area, as it is watched, in the place of as many pages of another, from `first` on.
    ///
    /// # Safety
    /// Nobody needs what is there, unless who watches fills it with the same bytes again.
    ///
    /// # Errors
    /// The system has no room for so many parts of memory, which it looks at first; the other is as it was.
    pub(super) unsafe fn move_into(
        self,
        other: &AnonymousArea,
        first: u64,
    ) -> rustix::io::Result<()> {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(moved) = crate::simulation::memory::move_into(
            self.address(0),
            self.bytes(),
            other.address(first),
        ) {
            return moved.map(|()| std::mem::forget(self));
        }
        let (from, to) = (self.base.as_ptr().cast(), other.address(first) as *mut _);
        // SAFETY: both are ours and as long; the caller's promise for what is in the target.
        unsafe {
            mm::mremap_fixed(from, self.bytes(), self.bytes(), mm::MremapFlags::MAYMOVE, to)?
        };
        // What it would give back is the other's now.
        std::mem::forget(self);
        Ok(())
    }

    /// The bytes of a page.
    ///
    /// # Safety
    /// The page is present, and nobody changes or takes it while the slice lives.
    pub(super) unsafe fn bytes_of(&self, page: u64) -> &[u8] {
        #[cfg(any(test, feature = "simulation"))]
        crate::simulation::memory::looked_at(self.address(page));
        // SAFETY: within the mapping; the caller's promise for the rest.
        unsafe { std::slice::from_raw_parts(self.address(page) as *const u8, PAGE_BYTES as usize) }
    }
}

impl Drop for AnonymousArea {
    fn drop(&mut self) {
        #[cfg(any(test, feature = "simulation"))]
        crate::simulation::memory::unmap(self.address(0), self.bytes());
        // SAFETY: a mapping of ours; who borrows from it borrows from its owner.
        // It can't fail for a mapping of whole pages, and there is no remedy if it did.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.bytes()) };
    }
}

/// Calls `each` with the runs of consecutive pages in `pages`, and empties it.
pub(super) fn for_each_run(pages: &mut Vec<u64>, mut each: impl FnMut(PageRange)) {
    pages.sort_unstable();
    let mut run = PageRange::default();
    for page in pages.drain(..) {
        if page == run.end && !run.is_empty() {
            run.end += 1;
            continue;
        }
        if !run.is_empty() {
            each(run);
        }
        run = PageRange::new(page, 1);
    }
    if !run.is_empty() {
        each(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_pages_are_one_run_whatever_their_order() {
        let mut runs = Vec::new();
        for_each_run(&mut vec![7, 3, 4, 9, 8, 0], |run| runs.push((run.first, run.end)));
        assert_eq!(runs, [(0, 1), (3, 5), (7, 10)]);
        for_each_run(&mut Vec::new(), |run| panic!("{run:?}"));
    }

    /// A file that says no only when it is asked itself: one that the kernel makes as it is read.
    #[test]
    fn a_range_stays_where_a_file_can_t_be_mapped_in_its_place() {
        let area = AnonymousArea::new(4).unwrap();
        let Ok(file) = std::fs::File::open("/sys/kernel/uevent_seqnum") else { return };
        let refused = area.lend(PageRange::new(1, 2), std::os::fd::AsFd::as_fd(&file));
        assert_eq!(refused, Err(rustix::io::Errno::NODEV));
        let mut is_in_core = [0; 4];
        // SAFETY: four pages, and a byte for each; it fails where one of them isn't mapped (mincore(2)).
        let all = unsafe {
            libc::mincore(area.address(0) as *mut _, area.bytes(), is_in_core.as_mut_ptr())
        };
        assert_eq!(all, 0);
    }

    #[test]
    fn released_pages_are_absent_and_the_kernel_puts_nothing_in_their_place() {
        let area = AnonymousArea::new(4).unwrap();
        assert_eq!(area.page(area.address(3) + 5), Some(3));
        assert_eq!(area.page(area.address(0) - 1), None);
        assert_eq!(area.page(area.address(0) + area.bytes()), None);
        let Ok(uffd) = Uffd::open_refusing() else { return };
        area.watch(&uffd, RangeRegistration::Missing).unwrap();
        let present = || (0..4).filter(|&page| area.is_present(page)).collect::<Vec<_>>();
        let nine = [9; PAGE_BYTES as usize];
        // SAFETY: this test's own memory; no reference outlives its statement.
        unsafe {
            uffd.copy(area.address(1), nine.as_ptr() as usize, nine.len(), false).unwrap();
            assert_eq!(area.bytes_of(1), nine);
            assert_eq!(present(), [1]);
            // Locked, it takes no other page in, and those it has can be given back.
            let refused = libc::mlock(area.address(0) as *const _, area.bytes());
            assert_eq!((refused, present()), (-1, vec![1]));
            area.release(PageRange::new(1, 2));
        }
        assert_eq!(present(), []);
    }
}
