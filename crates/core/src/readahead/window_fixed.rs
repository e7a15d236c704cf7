//! `window-fixed`: [`Window`] with the repair of source A.
//!
//! The law in words: as `window`, but while readahead is off, all the pages of
//! a read are first told as missed, and then at least the pages that the read
//! needs are started in one go, before anything is waited for. So a read is
//! never crawled through page by page, and enough reads in order bring
//! readahead back though they are asynchronous.
//!
//! Source: KERNEL.md section 1; the thread of 2003 restated in SOURCES.md, A.

use super::window::{Window, submit};
use super::{Advice, PageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy, window_pages};
use crate::policy::{Spec, SpecError};

/// The law `window-fixed`, for one open file.
#[derive(Clone, Debug)]
pub struct WindowFixed {
    window: Window,
}

impl WindowFixed {
    /// With windows of at most `window_pages_max` pages (the kernel's default: 32).
    pub fn new(window_pages_max: u64) -> WindowFixed {
        WindowFixed { window: Window::new(window_pages_max) }
    }

    /// Parses `window-fixed,read_ahead_kb=KIB`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value can't be used.
    pub fn from_spec(spec: &Spec, limits: &ReadaheadLimits) -> Result<WindowFixed, SpecError> {
        spec.only(&["read_ahead_kb"])?;
        Ok(WindowFixed::new(window_pages(spec, limits)?))
    }
}

impl ReadaheadPolicy for WindowFixed {
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        self.window.read(ask, pages);
        if self.window.is_off() {
            let request = ask.request().clipped(ask.file_pages());
            request.pages().for_each(|page| self.window.note_miss(page));
            let whole = ReadRequest { is_congested: false, ..*ask };
            submit(request.first, request.count() as i64, &whole, pages);
        }
    }

    fn fault(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        self.window.note_fault(page, ask, pages);
    }

    fn advise(&mut self, advice: Advice) {
        self.window.note_advice(advice);
    }

    fn is_on_credit(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::PageTable;
    use super::super::window::tests::{ask, ranges};
    use super::*;
    use crate::unit::PageRange;

    #[test]
    fn a_read_is_started_whole_though_readahead_is_off() {
        let mut policy = WindowFixed::new(32);
        let mut pages = PageTable::default();
        policy.read(&ask(160, 16), &mut pages);
        assert_eq!(ranges(&mut pages), [PageRange::new(160, 16)]);
    }

    /// 15 + 14 + … as in `window`: the misses of the third record reach a
    /// whole window, so that the fourth meets a law that is on again.
    #[test]
    fn three_records_of_sixteen_pages_bring_readahead_back() {
        let mut policy = WindowFixed::new(32);
        let mut pages = PageTable::default();
        policy.read(&ask(160, 16), &mut pages);
        policy.read(&ask(480, 16), &mut pages);
        assert!(policy.window.is_off());
        policy.read(&ask(800, 16), &mut pages);
        assert!(!policy.window.is_off());
        assert_eq!(ranges(&mut pages).len(), 3);
    }
}
