//! Lending: readers that the machine doesn't see.
//!
//! Many threads read pages that are cached, and the machine is one. So the
//! world may lend filled pages to readers by itself, without asking each time:
//! the cache tells it which pages are filled, asks it how they were used when it
//! decides what goes, and recalls a page before it gives the frame away.
//!
//! A reader that only copies holds a page for a moment; a recall waits for that.
//! A reader may also hold a page for as long as it likes; then the recall is
//! refused. How many pages may be held so is limited by the world, to what it
//! told the machine when that was built.

use core::fmt;

use super::{FileId, FrameId, Mark};

/// How a page was used since that was last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uses {
    /// Not at all.
    None,
    /// Once.
    Once,
    /// More than once.
    Again,
}

/// Lends filled pages to readers beside the machine.
pub trait Lender: Send + fmt::Debug {
    /// The page is filled, in this frame: it may be lent. A page that carries the
    /// mark is not: its reader comes to the machine, so that the law hears of it.
    fn lend(&mut self, file: FileId, page: u64, frame: FrameId, mark: Mark);

    /// The page in the frame carries the mark no more.
    fn unmark(&mut self, frame: FrameId);

    /// How the page in the frame was used since this was last asked.
    fn uses(&mut self, frame: FrameId) -> Uses;

    /// Whether [`uses`](Lender::uses) would tell of a use.
    fn is_used(&self, frame: FrameId) -> bool;

    /// Lends the page in the frame no more, and waits for those who copy from it.
    /// False, and nothing has changed, if somebody holds it for longer.
    fn recall(&mut self, frame: FrameId) -> bool;

    /// Lends the page in the frame no more, though somebody holds it: its bytes
    /// are out of date. Once nobody does, the machine is told so
    /// ([`ReadPath::returned`](crate::machine::ReadPath::returned)).
    fn forget(&mut self, frame: FrameId);
}

#[cfg(test)]
mod tests {
    use alloc::collections::{BTreeMap, BTreeSet};
    use alloc::sync::Arc;
    use std::sync::Mutex;
    use std::vec::Vec;

    use super::*;
    use crate::cache::{Cache, FrameState};
    use crate::readahead::Folio;
    use crate::unit::PageRange;

    /// What a lender was told, and what it is to answer.
    #[derive(Debug, Default)]
    struct Books {
        lent: BTreeMap<u32, (u64, Mark)>,
        used: BTreeMap<u32, u32>,
        held: BTreeSet<u32>,
    }

    #[derive(Debug)]
    struct Clerk(Arc<Mutex<Books>>);

    impl Lender for Clerk {
        fn lend(&mut self, _file: FileId, page: u64, frame: FrameId, mark: Mark) {
            self.0.lock().unwrap().lent.insert(frame.0, (page, mark));
        }

        fn unmark(&mut self, frame: FrameId) {
            self.0.lock().unwrap().lent.get_mut(&frame.0).unwrap().1 = Mark::Clear;
        }

        fn uses(&mut self, frame: FrameId) -> Uses {
            match self.0.lock().unwrap().used.remove(&frame.0) {
                None => Uses::None,
                Some(1) => Uses::Once,
                Some(_) => Uses::Again,
            }
        }

        fn is_used(&self, frame: FrameId) -> bool {
            self.0.lock().unwrap().used.contains_key(&frame.0)
        }

        fn recall(&mut self, frame: FrameId) -> bool {
            let mut books = self.0.lock().unwrap();
            let is_held = books.held.contains(&frame.0);
            if !is_held {
                books.lent.remove(&frame.0);
            }
            !is_held
        }

        fn forget(&mut self, frame: FrameId) {
            self.0.lock().unwrap().lent.remove(&frame.0);
        }
    }

    /// A cache of four pages of one file, all filled and read ahead, lent by a clerk.
    fn lent() -> (Cache, FileId, Arc<Mutex<Books>>) {
        let books = Arc::new(Mutex::default());
        let mut cache = Cache::new(4);
        cache.lend_through(alloc::boxed::Box::new(Clerk(Arc::clone(&books))));
        let file = cache.add_file();
        (0..4).for_each(|page| add(&mut cache, file, page, Mark::Clear));
        (cache, file, books)
    }

    fn add(cache: &mut Cache, file: FileId, page: u64, mark: Mark) {
        let frame = cache.add(file, page, Folio::holding(page, 0), mark, true).unwrap();
        cache.fill(frame);
    }

    fn cached(cache: &Cache, file: FileId) -> Vec<u64> {
        (0..100).filter(|&page| cache.find(file, page).is_some()).collect()
    }

    #[test]
    fn what_was_lent_twice_outlives_what_was_not() {
        let (mut cache, file, books) = lent();
        let first = cache.find(file, 0).unwrap();
        books.lock().unwrap().used.insert(first.0, 2);
        (10..13).for_each(|page| add(&mut cache, file, page, Mark::Clear));
        assert_eq!(cached(&cache, file), [0, 10, 11, 12]);
        // It was read ahead and used; three others were not.
        assert_eq!((cache.counters().used_pages, cache.counters().waste_pages), (1, 3));
        assert_eq!(books.lock().unwrap().lent.len(), 4);
    }

    #[test]
    fn what_was_lent_is_used_at_once_and_counted_soon() {
        let (mut cache, file, books) = lent();
        let first = cache.find(file, 0).unwrap();
        assert!(cache.is_unused(first));
        books.lock().unwrap().used.insert(first.0, 1);
        assert!(!cache.is_unused(first));
        assert_eq!(cache.counters().used_pages, 0);
        // The next page that is added looks at more frames than there are.
        add(&mut cache, file, 10, Mark::Clear);
        assert_eq!(cache.counters().used_pages, 1);
    }

    #[test]
    fn what_is_held_stays_and_is_given_back_to_reclaim_later() {
        let (mut cache, file, books) = lent();
        let held: Vec<u32> = (0..3).map(|page| cache.find(file, page).unwrap().0).collect();
        books.lock().unwrap().held.extend(&held);
        add(&mut cache, file, 10, Mark::Clear);
        add(&mut cache, file, 11, Mark::Clear);
        assert_eq!(cached(&cache, file), [0, 1, 2, 11]);
        books.lock().unwrap().held.clear();
        (20..24).for_each(|page| add(&mut cache, file, page, Mark::Clear));
        assert_eq!(cached(&cache, file), [20, 21, 22, 23]);
    }

    #[test]
    fn with_everything_in_use_all_the_time_something_still_goes() {
        let (mut cache, file, books) = lent();
        for page in 10..30 {
            books.lock().unwrap().used = (0..4).map(|frame| (frame, 2)).collect();
            add(&mut cache, file, page, Mark::Clear);
        }
        assert_eq!(cached(&cache, file).len(), 4);
    }

    #[test]
    fn what_is_out_of_date_while_held_is_free_once_it_is_returned() {
        let (mut cache, file, books) = lent();
        let held = cache.find(file, 2).unwrap();
        books.lock().unwrap().held.insert(held.0);
        cache.invalidate(file, PageRange::new(0, 4));
        assert!(cache.is_empty(file) && books.lock().unwrap().lent.is_empty());
        assert_eq!((cache.state(held), cache.free_pages()), (FrameState::Orphan, 3));
        cache.returned(held);
        assert_eq!(cache.free_pages(), 4);
    }

    #[test]
    fn the_mark_is_told_and_taken_off() {
        let (mut cache, file, books) = lent();
        add(&mut cache, file, 10, Mark::Set);
        let frame = cache.find(file, 10).unwrap().0;
        assert_eq!(books.lock().unwrap().lent[&frame], (10, Mark::Set));
        cache.clear_mark(file, Folio::holding(10, 0));
        assert_eq!(books.lock().unwrap().lent[&frame], (10, Mark::Clear));
    }
}
