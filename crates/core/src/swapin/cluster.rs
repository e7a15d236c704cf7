//! `cluster`: the swap-in readahead of Linux until 3.7.
//!
//! How it works: a fault always reads the whole aligned block of `1 << page_cluster` slots around
//! its own. Empty slots and pages that are already in memory are skipped.
//!
//! Purpose: pages that were swapped out together lie together, and on a disk the rest of the block
//! costs almost nothing compared with the seek. On a solid-state drive it does cost time, and each
//! useless page evicts a useful one (the failure of 2012).
//!
//! Parameter: `page_cluster` (default 3: 8 pages, 32 KiB).

use super::{SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries, aligned_block, pages_max};
use crate::policy::{Spec, SpecError};

/// The policy `cluster`.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// Size of a block in slots, a power of two.
    block_slots: u64,
}

impl Cluster {
    /// Builds the policy from the parameter `page_cluster`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is out of range.
    pub fn from_spec(spec: &Spec) -> Result<Cluster, SpecError> {
        spec.only(&["page_cluster"])?;
        Ok(Cluster::of(pages_max(spec)?))
    }

    /// Creates the policy with blocks of `block_slots` slots, a power of two.
    pub(super) fn of(block_slots: u64) -> Cluster {
        Cluster { block_slots }
    }
}

impl SwapinPolicy for Cluster {
    /// Reads nothing at a fault on a prefetched page. The policy has no state that a hit could
    /// change.
    fn hit(
        &mut self,
        _fault: &SwapFault,
        _swapped: &mut dyn SwappedPageQueries,
    ) -> Option<SwapRead> {
        None
    }

    /// Reads the aligned block of slots around the slot of the fault.
    fn miss(&mut self, fault: &SwapFault, _swapped: &mut dyn SwappedPageQueries) -> SwapRead {
        aligned_block(fault.slot, self.block_slots)
    }

    /// False: the policy ignores the costs of requests.
    fn uses_costs(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, miss};
    use super::*;
    use crate::unit::PageRange;

    #[test]
    fn each_fault_reads_its_aligned_block() {
        // page_cluster, faulting slot → first slot and number of slots.
        let table = [
            ("cluster", 0, (0, 8)),
            ("cluster", 7, (0, 8)),
            ("cluster", 8, (8, 8)),
            ("cluster", 77, (72, 8)),
            ("cluster,page_cluster=0", 77, (77, 1)),
            ("cluster,page_cluster=4", 77, (64, 16)),
        ];
        for (text, slot, (first, count)) in table {
            let mut policy = Cluster::from_spec(&Spec::parse(text).unwrap()).unwrap();
            let expected = SwapRead::Slots(PageRange::new(first, count));
            assert_eq!(miss(&mut policy, fault(3, slot)), expected, "{text}, slot {slot}");
            // Always the same: the outcome of the last block changes nothing.
            assert_eq!(miss(&mut policy, fault(3, slot)), expected, "{text}, slot {slot} again");
        }
    }
}
