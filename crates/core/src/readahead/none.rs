//! `none`: reads what was asked, whole, and nothing beyond it.
//!
//! The law in words: do nothing. The machine reads the request itself, so that
//! "no readahead" never means "page by page", the mistake of source C.

use super::{Advice, Ask, Pages, ReadaheadLaw};

/// The law `none`. It has no state and no parameter.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReadahead;

impl ReadaheadLaw for NoReadahead {
    fn read(&mut self, _ask: &Ask, _pages: &mut dyn Pages) {}
    fn fault(&mut self, _page: u64, _ask: &Ask, _pages: &mut dyn Pages) {}
    fn advise(&mut self, _advice: Advice) {}

    fn sees_every_hit(&self) -> bool {
        false
    }
}
