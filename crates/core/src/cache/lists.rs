//! `two-lists`: which page goes when memory is short.
//!
//! The law in words: a page enters at the front of the *inactive* list. A page
//! that is used a second time while it is there moves to the front of the
//! *active* list. The victim is the page at the back of the inactive list; when
//! the inactive list is shorter than the active one, pages first move from the
//! back of the active list to the front of the inactive one. So a long stream
//! of pages that are used once flows through the inactive list and leaves the
//! pages that are used again alone. This is the shape of Linux's file lists
//! (without its refault distances).
//!
//! Memory that programs map has two such lists of its own. Its uses are not
//! counted one by one: a page that carries the referenced bit when it comes to
//! the back of the inactive list goes to the front of the active one, without
//! the bit. A page that was read ahead and not used yet ages beside them. When
//! memory is short the oldest of the three backs goes (that of the inactive
//! list of files, of that of memory, of the pages read ahead). A page that a
//! program maps can't go at once: it is unmapped, and written if it is dirty,
//! and is *cold* then. So many cold pages are kept ready (see
//! [`SwapConfig`](crate::machine::SwapConfig)) that a fault needn't wait for that.

use super::{Frame, FrameId};

const NOBODY: u32 = u32::MAX;

/// Which list a frame is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// Of a file: used once at most since it came here.
    Inactive,
    /// Of a file: used more than once.
    Active,
    /// Of a file: in use when it was to go, and out of the way until the others have been asked.
    Refused,
    /// Of memory: not found referenced since it came here.
    MemoryInactive,
    /// Of memory: found referenced.
    MemoryActive,
    /// Of memory: read ahead, and not used yet.
    Ahead,
    /// Of memory: dirty and unmapped; to be written unless it is used again.
    Resting,
    /// Of memory: clean and unmapped; goes next.
    Cold,
}

const LISTS: usize = List::Cold as usize + 1;

/// A frame's place on its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    list: Option<List>,
    newer: u32,
    older: u32,
    /// When it came here: counts pushes, round and round.
    stamp: u32,
}

impl Default for Links {
    fn default() -> Links {
        Links { list: None, newer: NOBODY, older: NOBODY, stamp: 0 }
    }
}

impl Links {
    pub(super) fn is_listed(&self) -> bool {
        self.list.is_some()
    }

    pub(super) fn list(&self) -> Option<List> {
        self.list
    }
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    newest: u32,
    oldest: u32,
    pages: u32,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends { newest: NOBODY, oldest: NOBODY, pages: 0 }
    }
}

/// The reclaim policy `two-lists`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TwoLists {
    ends: [Ends; LISTS],
    pushes: u32,
}

impl TwoLists {
    #[inline]
    pub(super) fn push_front(&mut self, frames: &mut [Frame], id: FrameId, list: List) {
        frames[id.0 as usize].links = self.enter(frames, id, list);
    }

    /// As `push_front`, of a frame that the caller gives these links.
    #[inline]
    pub(super) fn enter(&mut self, frames: &mut [Frame], id: FrameId, list: List) -> Links {
        self.pushes = self.pushes.wrapping_add(1);
        let stamp = self.pushes;
        let ends = self.ends(list);
        let was_newest = core::mem::replace(&mut ends.newest, id.0);
        ends.pages += 1;
        match was_newest {
            NOBODY => ends.oldest = id.0,
            _ => frames[was_newest as usize].links.newer = id.0,
        }
        Links { list: Some(list), newer: NOBODY, older: was_newest, stamp }
    }

    #[inline]
    pub(super) fn unlink(&mut self, frames: &mut [Frame], id: FrameId) {
        let links = core::mem::take(&mut frames[id.0 as usize].links);
        let ends = self.ends(links.list.expect("only a listed frame is unlinked"));
        ends.pages -= 1;
        if links.newer == NOBODY {
            ends.newest = links.older;
        }
        if links.older == NOBODY {
            ends.oldest = links.newer;
        }
        if links.newer != NOBODY {
            frames[links.newer as usize].links.older = links.older;
        }
        if links.older != NOBODY {
            frames[links.older as usize].links.newer = links.newer;
        }
    }

    /// How many frames are on a list.
    pub(super) fn pages(&self, list: List) -> u32 {
        self.ends[list as usize].pages
    }

    /// The frame that has been on a list for longest.
    pub(super) fn oldest(&self, list: List) -> Option<FrameId> {
        let oldest = self.ends[list as usize].oldest;
        (oldest != NOBODY).then_some(FrameId(oldest))
    }

    /// Which of the lists' oldest frames has been there for longest.
    pub(super) fn oldest_of(&self, frames: &[Frame], lists: &[List]) -> Option<FrameId> {
        lists.iter().filter_map(|&list| self.oldest(list)).max_by_key(|&id| self.age(frames, id))
    }

    /// How many frames have come to some list since this one came to its.
    pub(super) fn age(&self, frames: &[Frame], id: FrameId) -> u32 {
        self.pushes.wrapping_sub(frames[id.0 as usize].links.stamp)
    }

    /// Takes the next file page off its list, where so many were taken `before` it for pages that
    /// are to come there. A frame that turns out to be pinned stays off until its last unpin
    /// puts it back.
    pub(super) fn pop_victim(&mut self, frames: &mut [Frame], before: u32) -> Option<FrameId> {
        self.refill(frames, List::Inactive, List::Active, before);
        let id = self.oldest(List::Inactive)?;
        self.unlink(frames, id);
        Some(id)
    }

    /// Moves pages from the back of the active list, unreferenced, until the
    /// inactive one is no shorter; `beside` pages age beside it.
    #[inline]
    pub(super) fn refill(
        &mut self,
        frames: &mut [Frame],
        inactive: List,
        active: List,
        beside: u32,
    ) {
        while self.pages(inactive) + beside < self.pages(active) {
            let id = self.oldest(active).expect("it is longer than none");
            self.unlink(frames, id);
            frames[id.0 as usize].is_referenced = false;
            self.push_front(frames, id, inactive);
        }
    }

    fn ends(&mut self, list: List) -> &mut Ends {
        &mut self.ends[list as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cache, Mark};
    use crate::readahead::Folio;

    /// As in the kernel, where a page enters its list as it enters the cache: a
    /// window that comes before the one in front of it is not the first to go.
    #[test]
    fn pages_go_in_the_order_in_which_they_were_added_and_not_in_that_in_which_they_came() {
        let mut cache = Cache::new(3);
        let file = cache.add_file();
        let add = |cache: &mut Cache, page| {
            cache.add(file, page, Folio::holding(page, 0), Mark::Clear, true).unwrap()
        };
        let [first, second, slow] = [0, 1, 2].map(|page| add(&mut cache, page));
        cache.fill(second);
        cache.fill(first);
        assert_eq!(add(&mut cache, 3), first);
        // The one that is still on its way is passed over, and comes to the front.
        assert_eq!(add(&mut cache, 4), second);
        cache.fill(slow);
        assert_eq!(add(&mut cache, 5), slow);
    }
}
