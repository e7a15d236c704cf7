//! A lender for tests: it keeps books, and lends nothing by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use readpath_core::cache::{FileId, FrameId, Lender, Mark, Uses};

/// What a lender was told, and what it is to answer.
#[derive(Debug, Default)]
pub struct Books {
    /// By frame: its page and mark.
    pub lent: BTreeMap<u32, (u64, Mark)>,
    /// By frame: how often it was used since the cache asked.
    pub used: BTreeMap<u32, u32>,
    /// Frames that a reader holds on to.
    pub held: BTreeSet<u32>,
}

#[derive(Debug)]
pub struct Clerk(pub Arc<Mutex<Books>>);

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
        let mut books = self.0.lock().unwrap();
        assert!(books.held.contains(&frame.0), "only what is held is to be forgotten");
        books.lent.remove(&frame.0);
    }
}
