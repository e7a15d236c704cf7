//! `none`: reads what was asked, whole, and nothing beyond it.
//!
//! The law in words: do nothing. The machine reads the request itself, so that
//! "no readahead" never means "page by page", the mistake of source C.

use super::{Advice, PageView, ReadRequest, ReadaheadPolicy};

/// The law `none`. It has no state and no parameter.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReadahead;

impl ReadaheadPolicy for NoReadahead {
    fn read(&mut self, _ask: &ReadRequest, _pages: &mut dyn PageView) {}
    fn fault(&mut self, _page: u64, _ask: &ReadRequest, _pages: &mut dyn PageView) {}
    fn advise(&mut self, _advice: Advice) {}

    fn sees_every_hit(&self) -> bool {
        false
    }
}
