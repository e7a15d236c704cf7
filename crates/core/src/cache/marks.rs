//! Readahead marks: the policy learns of the next use of a marked page.

use super::{Cache, FileId, FrameState};
use crate::readahead::Folio;

impl Cache {
    /// The folio of the page, if it carries the readahead mark; `None` otherwise.
    pub fn marked(&self, file: FileId, page: u64) -> Option<Folio> {
        let frame = self.frame(self.find(file, page)?);
        frame.is_marked.then(|| Folio::holding(page, frame.order))
    }

    /// Puts a readahead mark on a page. A filled one is no longer shared with outside readers, as
    /// every marked page. No effect on an absent page.
    pub fn mark(&mut self, file: FileId, page: u64) {
        let is_marked = true;
        self.set_mark(file, page, is_marked);
    }

    /// Removes the readahead mark from every page of the folio. Filled ones are shared with outside
    /// readers from then on; a marked page is not.
    pub fn clear_mark(&mut self, file: FileId, folio: Folio) {
        let is_marked = false;
        for page in folio.range().pages() {
            self.set_mark(file, page, is_marked);
        }
    }

    /// Sets or removes the mark of a page. No effect on an absent page.
    fn set_mark(&mut self, file: FileId, page: u64, is_marked: bool) {
        let Some(frame) = self.find(file, page) else { return };
        self.frame_mut(frame).is_marked = is_marked;
        if let (FrameState::Filled, Some(sharer)) = (self.state(frame), &mut self.sharer) {
            if is_marked {
                sharer.mark(frame);
            } else {
                sharer.unmark(frame);
            }
        }
    }
}
