//! Selection and mapping of the pages around a touched one.
//!
//! A page is *mapped* if it is in the *user area*, which the program sees. Read pages wait in the
//! *shadow*, the area that the device fills, until they are mapped. A *run* is a range of
//! consecutive mapped pages. A page is *used* if the program has touched it, and *poisoned* if a
//! touch of it is a bus error. The *readahead mark* of a page asks for more prefetches when the
//! page is touched.
//!
//! Rules: a page with the readahead mark is never mapped early, because the readahead policy must
//! learn of its touch. The first page of a run is mapped together with the prefetched pages up to
//! the mark, which is in the middle of the prefetched range. A later page extends a run of n mapped
//! pages by n: the page itself and n - 1 unused ones beyond it. A run therefore causes at most one
//! fault per doubling, and its length is known within a factor of two. On each side at most
//! [`FAULT_AROUND_PAGES_MAX`] pages are mapped. Pages that the program has used before, or has
//! announced with advice, are mapped as far as they are present. Mapped pages count as used,
//! because their uses cannot be observed.

use readpath_core::machine::Machine;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::io::Errno;

use super::{Areas, PagePresence};

/// Maximum number of pages mapped on each side of a touched one: 1 MiB. Moving this number takes as
/// long as a few faults (0.1 to 0.2 µs per page).
const FAULT_AROUND_PAGES_MAX: usize = 256;

impl Areas {
    /// Moves a touched page, with its neighbours in the shadow, to the user area. Wakes the threads
    /// that wait for them. The pages then count as used in the machine.
    pub(super) fn map_around(&mut self, machine: &mut Machine, page: u64) {
        if !self.has_presence(page, PagePresence::Shadow)
            || self.delegated_windows.is_kernel_served(page)
        {
            // Another fault on the page was served first, or the kernel serves the page now. A
            // thread without its page faults again.
            return self.wake(page);
        }
        self.remove_poison(page);
        let (pages_below, pages_above) = ((0..page).rev(), page + 1..);
        let (mapped_below, mapped_above) = (
            self.mapped_neighbours(pages_below.clone()),
            self.mapped_neighbours(pages_above.clone()),
        );
        let is_first_of_run = mapped_below + mapped_above == 0;
        // A run of n pages doubles by the touched page and n - 1 more. The first page of a run
        // takes the prefetched pages up to the mark, as far as the general limit permits.
        let unused_pages_max = |mapped_on_other_side: usize| {
            if is_first_of_run {
                FAULT_AROUND_PAGES_MAX
            } else {
                mapped_on_other_side.saturating_sub(1)
            }
        };
        let around = PageRange {
            first: page
                - self.mappable_neighbours(machine, pages_below, unused_pages_max(mapped_above)),
            end: page
                + 1
                + self.mappable_neighbours(machine, pages_above, unused_pages_max(mapped_below)),
        };
        self.map_range(around);
        machine.mapped(self.handle, around);
    }

    /// Removes the poison of a page that has been read successfully since.
    pub(super) fn remove_poison(&mut self, page: u64) {
        if self.poisoned.remove(&page) {
            // Removes the kernel's marker. SAFETY: a poisoned page has no bytes.
            unsafe { self.user.release(PageRange::new(page, 1)) };
        }
    }

    /// True if a page is in this state.
    pub(super) fn has_presence(&self, page: u64, presence: PagePresence) -> bool {
        self.resident.get(&page).is_some_and(|resident_page| resident_page.presence == presence)
    }

    /// Number of consecutive mapped pages on one side of a page, at most
    /// [`FAULT_AROUND_PAGES_MAX`]. `side` yields the page numbers of that side, the nearest first.
    fn mapped_neighbours(&self, side: impl Iterator<Item = u64>) -> usize {
        let mapped = side
            .take(FAULT_AROUND_PAGES_MAX)
            .take_while(|&page| self.has_presence(page, PagePresence::User));
        mapped.count()
    }

    /// Number of consecutive pages on one side of a page to map with it. `side` yields the page
    /// numbers of that side, the nearest first. Unused pages are included only among the first
    /// `unused_pages_max` pages.
    fn mappable_neighbours(
        &self,
        machine: &Machine,
        side: impl Iterator<Item = u64>,
        unused_pages_max: usize,
    ) -> u64 {
        let is_mappable = |&(distance, page): &(usize, u64)| {
            self.has_presence(page, PagePresence::Shadow)
                && !machine.is_marked(self.handle, page)
                && !self.poisoned.contains(&page)
                && !self.delegated_windows.is_kernel_served(page)
                && (distance < unused_pages_max || !machine.is_unused(self.handle, page))
        };
        side.take(FAULT_AROUND_PAGES_MAX).enumerate().take_while(is_mappable).count() as u64
    }

    /// Moves filled pages from the shadow to the user area, and copies a page that cannot be moved.
    /// Wakes the threads that wait for them.
    fn map_range(&mut self, range: PageRange) {
        let mut first = range.first;
        while first < range.end {
            let (to, from) = (self.user.address(first), self.shadow.address(first));
            let bytes = ((range.end - first) * PAGE_BYTES) as usize;
            // SAFETY: the pages are filled and in the shadow, which has no references. A page is
            // present in at most one of the areas, so the user area's pages are absent.
            match unsafe { self.uffd.move_pages(to, from, bytes) } {
                Ok(()) => break,
                // The kernel releases a transfer's pages shortly after its end. It also moves no
                // pages to a range that the program has locked.
                Err(error) if [Errno::BUSY, Errno::INVAL].contains(&error.errno) => {
                    // The pages before the failing one were moved.
                    first += error.bytes_done as u64 / PAGE_BYTES;
                    let is_copied = self.copy_page(first);
                    assert!(is_copied, "page {first} is absent in the user's area");
                    first += 1;
                }
                Err(error) => panic!("pages {range:?} can't be mapped: {error}"),
            }
        }
        for page in range.pages() {
            self.resident
                .get_mut(&page)
                .expect("a page of the range is resident in the shadow area")
                .presence = PagePresence::User;
        }
        self.mapped_ranges.insert(range);
        self.statistics.mapped_pages += range.count();
    }

    /// Copies a page from the shadow to the user area, wakes the threads that wait for it, and
    /// releases the shadow's page. Returns false if a page is already there: the shadow's page is
    /// released in this case too.
    pub(super) fn copy_page(&mut self, page: u64) -> bool {
        let (to, from) = (self.user.address(page), self.shadow.address(page));
        let is_protected = false;
        // SAFETY: as in `map_range`. No thread changes the shadow.
        let copied = unsafe { self.uffd.copy(to, from, PAGE_BYTES as usize, is_protected) };
        // SAFETY: the bytes are in the user area now.
        unsafe { self.shadow.release(PageRange::new(page, 1)) };
        match copied {
            Ok(()) => self.statistics.copied_pages += 1,
            Err(error) if error.errno == Errno::EXIST => return false,
            Err(error) => panic!("page {page} can't be copied to its place: {error}"),
        }
        true
    }
}
