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

use super::{Frame, FrameId};

const NOBODY: u32 = u32::MAX;

/// Which list a frame is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// Used once at most since it came here.
    Inactive,
    /// Used more than once.
    Active,
}

/// A frame's place on its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    list: Option<List>,
    newer: u32,
    older: u32,
}

impl Default for Links {
    fn default() -> Links {
        Links { list: None, newer: NOBODY, older: NOBODY }
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
    inactive: Ends,
    active: Ends,
}

impl TwoLists {
    pub(super) fn push_front(&mut self, frames: &mut [Frame], id: FrameId, list: List) {
        let ends = self.ends(list);
        let was_newest = core::mem::replace(&mut ends.newest, id.0);
        if was_newest == NOBODY {
            ends.oldest = id.0;
        }
        ends.pages += 1;
        if was_newest != NOBODY {
            frames[was_newest as usize].links.newer = id.0;
        }
        frames[id.0 as usize].links = Links { list: Some(list), newer: NOBODY, older: was_newest };
    }

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

    /// How many frames are on the lists.
    pub(super) fn pages(&self) -> u32 {
        self.inactive.pages + self.active.pages
    }

    /// Takes the next candidate off its list. A frame that turns out to be
    /// pinned stays off until its last unpin puts it back.
    pub(super) fn pop_victim(&mut self, frames: &mut [Frame]) -> Option<FrameId> {
        while self.inactive.pages < self.active.pages {
            let id = FrameId(self.active.oldest);
            self.unlink(frames, id);
            frames[id.0 as usize].is_referenced = false;
            self.push_front(frames, id, List::Inactive);
        }
        if self.inactive.pages == 0 {
            return None;
        }
        let id = FrameId(self.inactive.oldest);
        self.unlink(frames, id);
        Some(id)
    }

    fn ends(&mut self, list: List) -> &mut Ends {
        match list {
            List::Inactive => &mut self.inactive,
            List::Active => &mut self.active,
        }
    }
}
