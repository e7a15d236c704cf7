//! `window-fixed`: [`Window`] with the repair of source A.
//!
//! How it works: as `window`, with one difference while readahead is off. All pages of a read are
//! then counted as misses first. After that at least the pages of the read are submitted together,
//! before the reader waits for any of them. A read is therefore never served page by page. Enough
//! consecutive reads turn readahead on again, even if they are asynchronous.
//!
//! Source: KERNEL.md section 1; the thread of 2003 restated in SOURCES.md, A.

use super::window::{Window, submit};
use super::{Advice, PageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy, window_pages};
use crate::policy::{Spec, SpecError};

/// The policy `window-fixed`, for one open file.
#[derive(Clone, Debug)]
pub struct WindowFixed {
    /// The policy `window` with its state.
    window: Window,
}

impl WindowFixed {
    /// Creates the policy with windows of at most `window_pages_max` pages (the kernel's default:
    /// 32).
    pub fn new(window_pages_max: u64) -> WindowFixed {
        WindowFixed { window: Window::new(window_pages_max) }
    }

    /// Parses `window-fixed,read_ahead_kb=KIB`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is out of range.
    pub fn from_spec(spec: &Spec, limits: &ReadaheadLimits) -> Result<WindowFixed, SpecError> {
        spec.only(&["read_ahead_kb"])?;
        Ok(WindowFixed::new(window_pages(spec, limits)?))
    }
}

impl ReadaheadPolicy for WindowFixed {
    /// Announces the pages as `window` does. While readahead is off, counts all of them as misses
    /// and submits the whole request.
    fn read(&mut self, read: &ReadRequest, pages: &mut dyn PageView) {
        self.window.read(read, pages);
        if self.window.is_off() {
            let request = read.request().clipped(read.file_pages());
            request.pages().for_each(|page| self.window.record_miss(page));
            // The request is submitted even while the queue is congested: its reader waits for it
            // in any case.
            let uncongested = ReadRequest { is_congested: false, ..*read };
            submit(request.first, request.count() as i64, &uncongested, pages);
        }
    }

    /// Handles a fault as `window` does.
    fn fault(&mut self, page: u64, read: &ReadRequest, pages: &mut dyn PageView) {
        self.window.handle_fault(page, read, pages);
    }

    /// Applies the advice as `window` does.
    fn advise(&mut self, advice: Advice) {
        self.window.apply_advice(advice);
    }

    /// False: the policy is measured unchanged, as in the kernel.
    fn is_limited_by_credit(&self) -> bool {
        false
    }

    /// False: the windows ignore the costs of the device.
    fn uses_costs(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::PageTable;
    use super::super::window::tests::{read_request, take_ranges};
    use super::*;
    use crate::unit::PageRange;

    /// A first read elsewhere than at page 0 turns readahead off.
    #[test]
    fn read_is_submitted_whole_while_readahead_is_off() {
        let mut policy = WindowFixed::new(32);
        let mut pages = PageTable::default();
        policy.read(&read_request(160, 16), &mut pages);
        assert_eq!(take_ranges(&mut pages), [PageRange::new(160, 16)]);
    }

    /// Misses count as in `window`: 15 after the first record, 15 - 1 + 15 = 29 after the second.
    /// The misses of the third record reach a whole window of 32 pages, so that readahead is on
    /// again.
    #[test]
    fn three_records_of_sixteen_pages_bring_readahead_back() {
        let mut policy = WindowFixed::new(32);
        let mut pages = PageTable::default();
        policy.read(&read_request(160, 16), &mut pages);
        policy.read(&read_request(480, 16), &mut pages);
        assert!(policy.window.is_off());
        policy.read(&read_request(800, 16), &mut pages);
        assert!(!policy.window.is_off());
        assert_eq!(take_ranges(&mut pages).len(), 3);
    }
}
