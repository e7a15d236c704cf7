//! A sharer for tests: it records calls, and shares no memory itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use readpath_core::cache::{FileId, FrameId, Mark, PageSharer, UseCount};

/// Recorded calls, and the answers to give.
#[derive(Debug, Default)]
pub struct SharerRecord {
    /// The page and mark of each shared frame.
    pub shared: BTreeMap<u32, (u64, Mark)>,
    /// Number of uses of each frame since the last query.
    pub used: BTreeMap<u32, u32>,
    /// Frames that a reader has pinned.
    pub held: BTreeSet<u32>,
    /// Frames whose page is to be forgotten and is still pinned.
    pub forgotten: BTreeSet<u32>,
    /// Frames that are being copied from, which refuse recalls.
    pub copied: BTreeSet<u32>,
    /// Forgotten frames that are no longer pinned, and not reported yet.
    pub returned: Vec<FrameId>,
    /// True if no reader may begin to pin a page.
    pub is_closed: bool,
    /// True if pins move: a page that has refused a recall is unpinned at once, and the page in the
    /// next frame is pinned instead.
    pub hops: bool,
}

impl SharerRecord {
    /// Ends a pin.
    pub fn let_go(&mut self, frame: u32) {
        assert!(self.held.remove(&frame));
        if self.forgotten.remove(&frame) {
            self.returned.push(FrameId(frame));
        }
    }

    /// Moves a pin to the next frame that is not pinned.
    fn hop(&mut self, from: u32) {
        let mut next = self.shared.range(from + 1..).chain(self.shared.range(..from));
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
    fn share(&mut self, _file: FileId, first: u64, frames: &[FrameId], marked: u64) {
        let mut books = self.0.lock().unwrap();
        for (nth, (page, frame)) in (first..).zip(frames).enumerate() {
            let mark = if marked >> nth & 1 == 0 { Mark::Clear } else { Mark::Set };
            books.shared.insert(frame.0, (page, mark));
        }
    }

    fn mark(&mut self, frame: FrameId) {
        self.0.lock().unwrap().shared.get_mut(&frame.0).unwrap().1 = Mark::Set;
    }

    fn unmark(&mut self, frame: FrameId) {
        self.0.lock().unwrap().shared.get_mut(&frame.0).unwrap().1 = Mark::Clear;
    }

    fn take_uses(&mut self, frame: FrameId) -> UseCount {
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
            false => drop(books.shared.remove(&frame.0)),
        }
        !is_held
    }

    fn forget(&mut self, frame: FrameId) {
        let mut books = self.0.lock().unwrap();
        books.shared.remove(&frame.0);
        match books.held.contains(&frame.0) {
            true => drop(books.forgotten.insert(frame.0)),
            false => books.returned.push(frame),
        }
    }

    fn take_returned(&mut self) -> Vec<FrameId> {
        std::mem::take(&mut self.0.lock().unwrap().returned)
    }

    fn allow_pins(&mut self, may_hold: bool) {
        self.0.lock().unwrap().is_closed = !may_hold;
    }
}
