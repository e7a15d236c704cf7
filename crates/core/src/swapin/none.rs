//! `none`: no readahead of swapped-out memory.
//!
//! How it works: a fault reads its own page and no other. Every other policy does the same with
//! `page_cluster` 0. It is the lower bound for random faults: no page is wasted, and no page is
//! evicted for it.

use super::{SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries, aligned_block};

/// The policy `none`. It has no parameter and no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSwapReadahead;

impl SwapinPolicy for NoSwapReadahead {
    /// Reads nothing.
    fn hit(
        &mut self,
        _fault: &SwapFault,
        _swapped: &mut dyn SwappedPageQueries,
    ) -> Option<SwapRead> {
        None
    }

    /// Reads only the slot of the fault.
    fn miss(&mut self, fault: &SwapFault, _swapped: &mut dyn SwappedPageQueries) -> SwapRead {
        let slots = 1;
        aligned_block(fault.slot, slots)
    }

    /// False: the policy ignores the costs of requests.
    fn uses_costs(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hit, miss};
    use super::*;
    use crate::unit::PageRange;

    /// A hit reads nothing, as `hit` checks. A miss reads the slot of its page, whatever the page.
    #[test]
    fn each_fault_reads_its_own_slot_alone() {
        let mut policy = NoSwapReadahead;
        for slot in [0, 1, 2, 77] {
            let (hit_page, missed_page) = (slot, 500);
            hit(&mut policy, fault(hit_page, slot));
            assert_eq!(
                miss(&mut policy, fault(missed_page, slot)),
                SwapRead::Slots(PageRange::new(slot, 1))
            );
        }
    }
}
