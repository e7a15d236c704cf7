//! Which pages are mapped when one is touched, and how.
//!
//! The law in words. A page with the readahead mark is left, for its touch is what the readahead law wants to hear of. With the
//! first page of a run the others are mapped up to the mark, in the middle of what was read ahead; with one behind it as many as
//! the program has touched on its other side. So a run takes a fault for each doubling at the most, and how far it went is
//! known to a half. What the program has used before, or has said that it will use, is mapped as far as it is there. What is
//! mapped is taken for used from then on: nobody will hear of its uses.

use readpath_core::machine::Machine;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::io::Errno;

use super::{Areas, PagePresence};

/// How many pages are mapped at most to each side of one that was touched, 1 MiB:
/// moving so many takes as long as a few faults (0.1 to 0.2 µs a page).
const AROUND_PAGES_MAX: usize = 256;

impl Areas {
    /// Maps a page that was touched, and its neighbours that are there.
    pub(super) fn map_around(&mut self, machine: &mut Machine, page: u64) {
        if !self.is_at(page, PagePresence::Shadow) || self.lending.has(page) {
            // Another fault on the page was served first, or the kernel has it now.
            return self.wake(page);
        }
        self.cure(page);
        let (below, above) = ((0..page).rev(), page + 1..);
        let (used_below, used_above) = (self.used(below.clone()), self.used(above.clone()));
        let is_first = used_below + used_above == 0;
        let most = |used: usize| if is_first { AROUND_PAGES_MAX } else { used.saturating_sub(1) };
        let around = PageRange {
            first: page - self.mappable(machine, below, most(used_above)),
            end: page + 1 + self.mappable(machine, above, most(used_below)),
        };
        self.map(around);
        machine.mapped(self.handle, around);
    }

    /// What failed for another fault on the page has come in now.
    pub(super) fn cure(&mut self, page: u64) {
        if self.poisoned.remove(&page) {
            // SAFETY: no bytes are there.
            unsafe { self.user.release(PageRange::new(page, 1)) };
        }
    }

    pub(super) fn is_at(&self, page: u64, place: PagePresence) -> bool {
        self.resident.get(&page).is_some_and(|held| held.place == place)
    }

    /// How many of the pages on one side of a page the program has.
    fn used(&self, side: impl Iterator<Item = u64>) -> usize {
        let used =
            side.take(AROUND_PAGES_MAX).take_while(|&page| self.is_at(page, PagePresence::User));
        used.count()
    }

    /// How many of the pages on one side of a page are to be mapped with it, `most` of those that nobody has used.
    fn mappable(&self, machine: &Machine, side: impl Iterator<Item = u64>, most: usize) -> u64 {
        let is_mappable = |&(nth, page): &(usize, u64)| {
            self.is_at(page, PagePresence::Shadow)
                && !machine.is_marked(self.handle, page)
                && !self.poisoned.contains(&page)
                && !self.lending.has(page)
                && (nth < most || !machine.is_unused(self.handle, page))
        };
        side.take(AROUND_PAGES_MAX).enumerate().take_while(is_mappable).count() as u64
    }

    fn map(&mut self, range: PageRange) {
        let mut first = range.first;
        while first < range.end {
            let (to, from) = (self.user.address(first), self.shadow.address(first));
            let bytes = ((range.end - first) * PAGE_BYTES) as usize;
            // SAFETY: the pages are filled and in the shadow, to which nobody
            // holds a reference, and the user's are absent (invariant 1).
            match unsafe { self.uffd.move_pages(to, from, bytes) } {
                Ok(()) => break,
                // The kernel lets go of a transfer's pages a moment after its end; and
                // moves none to where the program has locked some.
                Err(error) if [Errno::BUSY, Errno::INVAL].contains(&error.errno) => {
                    first += error.bytes_done as u64 / PAGE_BYTES;
                    let is_copied = self.copy(first);
                    assert!(is_copied, "page {first} is absent in the user's area");
                    first += 1;
                }
                Err(error) => panic!("pages {range:?} can't be mapped: {error}"),
            }
        }
        for page in range.pages() {
            self.resident.get_mut(&page).expect("it was in the shadow").place = PagePresence::User;
        }
        self.runs.insert(range);
        self.statistics.mapped_pages += range.count();
    }

    /// Puts a page in its place by copying; false where one is there already.
    pub(super) fn copy(&mut self, page: u64) -> bool {
        let (to, from) = (self.user.address(page), self.shadow.address(page));
        // SAFETY: as in `map`; nobody changes what is in the shadow.
        let copied = unsafe { self.uffd.copy(to, from, PAGE_BYTES as usize, false) };
        // SAFETY: its bytes are in the user's area now.
        unsafe { self.shadow.release(PageRange::new(page, 1)) };
        match copied {
            Ok(()) => self.statistics.copied_pages += 1,
            Err(error) if error.errno == Errno::EXIST => return false,
            Err(error) => panic!("page {page} can't be copied to its place: {error}"),
        }
        true
    }
}
