//! A lender for tests: it keeps books, and lends nothing by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use readpath_core::cache::{FileId, FrameId, Mark, PageSharer, UseCount};

/// What a lender was told, and what it is to answer.
#[derive(Debug, Default)]
pub struct SharerRecord {
    /// By frame: its page and mark.
    pub lent: BTreeMap<u32, (u64, Mark)>,
    /// By frame: how often it was used since the cache asked.
    pub used: BTreeMap<u32, u32>,
    /// Frames that a reader holds on to.
    pub held: BTreeSet<u32>,
    /// Frames whose page is to be forgotten and is held still.
    pub forgotten: BTreeSet<u32>,
    /// Frames that are copied from: no recall, for a moment.
    pub copied: BTreeSet<u32>,
    /// Forgotten, held no more, and not told.
    pub returned: Vec<FrameId>,
    /// Whether nobody may begin to hold a page.
    pub is_closed: bool,
    /// Whether holds hop: a page that has refused a recall is let go at once, and
    /// that in the next frame is held instead.
    pub hops: bool,
}

impl SharerRecord {
    /// Ends a hold.
    pub fn let_go(&mut self, frame: u32) {
        assert!(self.held.remove(&frame));
        if self.forgotten.remove(&frame) {
            self.returned.push(FrameId(frame));
        }
    }

    fn hop(&mut self, from: u32) {
        let mut next = self.lent.range(from + 1..).chain(self.lent.range(..from));
        let to = next.find(|(frame, _)| !self.held.contains(frame)).map(|(&frame, _)| frame);
        if let Some(to) = to.filter(|_| self.hops && !self.is_closed) {
            self.held.remove(&from);
            self.held.insert(to);
        }
    }
}

#[derive(Debug)]
pub struct FrameSharer(pub Arc<Mutex<SharerRecord>>);

impl PageSharer for FrameSharer {
    fn lend(&mut self, _file: FileId, first: u64, frames: &[FrameId], marked: u64) {
        let mut books = self.0.lock().unwrap();
        for (nth, (page, frame)) in (first..).zip(frames).enumerate() {
            let mark = if marked >> nth & 1 == 0 { Mark::Clear } else { Mark::Set };
            books.lent.insert(frame.0, (page, mark));
        }
    }

    fn unmark(&mut self, frame: FrameId) {
        self.0.lock().unwrap().lent.get_mut(&frame.0).unwrap().1 = Mark::Clear;
    }

    fn uses(&mut self, frame: FrameId) -> UseCount {
        match self.0.lock().unwrap().used.remove(&frame.0) {
            None => UseCount::None,
            Some(1) => UseCount::Once,
            Some(_) => UseCount::Again,
        }
    }

    fn is_used(&self, frame: FrameId) -> bool {
        self.0.lock().unwrap().used.contains_key(&frame.0)
    }

    fn recall(&mut self, frame: FrameId) -> bool {
        let mut books = self.0.lock().unwrap();
        if books.copied.contains(&frame.0) {
            return false;
        }
        let is_held = books.held.contains(&frame.0);
        match is_held {
            true => books.hop(frame.0),
            false => drop(books.lent.remove(&frame.0)),
        }
        !is_held
    }

    fn forget(&mut self, frame: FrameId) {
        let mut books = self.0.lock().unwrap();
        books.lent.remove(&frame.0);
        match books.held.contains(&frame.0) {
            true => drop(books.forgotten.insert(frame.0)),
            false => books.returned.push(frame),
        }
    }

    fn take_returned(&mut self) -> Vec<FrameId> {
        std::mem::take(&mut self.0.lock().unwrap().returned)
    }

    fn let_hold(&mut self, may_hold: bool) {
        self.0.lock().unwrap().is_closed = !may_hold;
    }
}
