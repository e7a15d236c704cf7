//! `none`: reads the request, whole, and no page beyond it.
//!
//! How it works: the policy adds no pages. The machine reads the request itself, in as few device
//! requests as possible. "No readahead" must not mean "page by page", which is the mistake of
//! source C.

use super::{Advice, PageView, ReadRequest, ReadaheadPolicy};

/// The policy `none`. It has no state and no parameter.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReadahead;

impl ReadaheadPolicy for NoReadahead {
    /// Adds no pages: the machine reads the request.
    fn read(&mut self, _request: &ReadRequest, _pages: &mut dyn PageView) {}
    /// Adds no pages: the machine reads the page.
    fn fault(&mut self, _page: u64, _request: &ReadRequest, _pages: &mut dyn PageView) {}
    /// Ignores the advice.
    fn advise(&mut self, _advice: Advice) {}

    /// False: no read has an effect on the policy.
    fn needs_every_hit(&self) -> bool {
        false
    }

    /// False: the policy reads nothing ahead, so the costs of requests have no influence.
    fn uses_costs(&self) -> bool {
        false
    }
}
