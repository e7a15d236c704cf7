//! The read loop of 2003, for the law that splits the demand: it is kept to be measured.

use super::Files;
use super::pages::NO_FRAME;
use crate::cache::FrameState;
use crate::machine::queue::Waiter;
use crate::machine::{Base, ReadError, ReadId};
use crate::readahead::Pages;
use crate::request::DeviceError;
use crate::unit::{PAGE_BYTES, PageRange, Time};

impl Files {
    /// Goes on with a read whose requests have all come: to the next page
    /// where the law splits the demand, else to its end.
    pub(super) fn advance(&mut self, now: Time, base: &mut Base, id: ReadId) {
        let read = self.get(id);
        let is_whole = read.cursor >= read.range.end;
        if is_whole || !self.law(read.transfer.handle).splits_demand() {
            return self.finish(base, id);
        }
        self.next_page(now, base, id);
    }

    /// Goes on to the next page that has to be waited for: each page is told to
    /// the law, and read alone if it is absent then. After an error nothing more
    /// is read, but what is on its way is waited for: until then its frames are
    /// promised to this read.
    pub(super) fn next_page(&mut self, now: Time, base: &mut Base, id: ReadId) {
        let ask = self.ask(base, id);
        let (mut cursor, mut error) = (self.get(id).cursor, self.get(id).error);
        let (handle, mut pages) = self.pages_for(base, id);
        let mut waits_for = None;
        while cursor < pages.demand.end && waits_for.is_none() {
            let page = cursor;
            cursor += 1;
            let at = (page - pages.demand.first) as usize;
            if error.is_none() {
                handle.law.step(page, &ask, &mut pages);
            }
            if pages.frames[at] != NO_FRAME
                && pages.cache.state(pages.frames[at]) == FrameState::Failed
            {
                // Somebody else's read of it failed; this one tries for itself, if it
                // finds a frame.
                if pages.cache.promise(1) {
                    pages.cache.unpin(pages.frames[at]);
                    pages.frames[at] = NO_FRAME;
                } else {
                    let offset = (page * PAGE_BYTES).max(ask.offset);
                    error = Some(ReadError::Device { offset, error: DeviceError::Medium });
                }
            }
            if pages.frames[at] == NO_FRAME && error.is_none() {
                // Another read may have brought it in the meantime.
                match pages.cache.find(pages.file, page) {
                    Some(frame) => {
                        pages.cache.pin(frame);
                        pages.cache.give_back(1);
                        pages.frames[at] = frame;
                    }
                    None => {
                        handle.law.miss(page);
                        pages.begin_window();
                        pages.add_run(PageRange::new(page, 1), 0, 0);
                    }
                }
            }
            let frame = pages.frames[at];
            if frame != NO_FRAME && matches!(pages.cache.state(frame), FrameState::InFlight(_)) {
                waits_for = Some(frame);
            }
        }
        let read = self.get_mut(id);
        (read.cursor, read.error) = (cursor, error);
        self.send_runs(now, base, id);
        let Some(frame) = waits_for else { return self.finish(base, id) };
        if let FrameState::InFlight(request) = base.frames.cache.state(frame) {
            base.queue.wait(request, Waiter::Read(id));
            self.get_mut(id).pending += 1;
        }
    }
}
