//! `vma`: swap-in readahead by address, for each mapping (Linux since 4.14).
//!
//! How it works: each mapping has its own count of hits and the page of its last fault (found or
//! read). A fault that must read sizes its window by the rule of `hits`, with its page in place of
//! the slot. The position of the window follows the direction of the faults. It starts at the page
//! if the last fault was on the page before it. It ends at the page if the last fault was on the
//! page after it. Otherwise it lies around the page, with `(pages − 1) / 2` pages before it. The
//! pages at those *addresses* are read, in any slots. Shared memory has no single address, and on a
//! disk the head would have to seek: both use `hits`, by slot.
//!
//! Purpose: memory that was swapped out in another order than it is used in, on a device without
//! seeks. It also separates concurrent loads, one sequential and one random, which a count for the
//! whole system mixes.
//!
//! Parameters:
//! - `page_cluster` (default 3: 8 pages); 0 turns readahead off.
//! - `halving` (0 or 1, default 1, as since 3.14): see `hits`.
//! - `shared` (`hits` or `cluster`, default `hits`): the policy of shared memory. The competing
//!   proposal of 2012, by mapping, used `cluster`.
//! - `rotating` (`hits` or `vma`, default `hits`): the policy for a swap area on a disk. The
//!   proposal of 2012 made no difference: `vma`.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::hits::HitRate;
use super::{Cluster, Hits, SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries, pages_max};
use crate::policy::{Spec, SpecError};
use crate::unit::PageRange;

/// The policy `vma`.
pub struct Vma {
    /// Initial state of a mapping.
    initial_rate: HitRate,
    /// Hit counts, one for each mapping.
    mappings: Vec<HitRate>,
    /// Policy of shared memory, by slot.
    shared: Box<dyn SwapinPolicy>,
    /// Policy for all mappings on a disk, by slot. `None` on other devices, and with
    /// `rotating=vma`.
    rotational: Option<Hits>,
}

impl Vma {
    /// Builds the policy from the parameters `page_cluster`, `halving`, `shared` and `rotating`.
    /// `is_rotational`: the swap area is on a disk.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is out of range.
    pub fn from_spec(spec: &Spec, is_rotational: bool) -> Result<Vma, SpecError> {
        spec.only(&["page_cluster", "halving", "shared", "rotating"])?;
        let pages_max = pages_max(spec)?;
        let limits_shrinking = spec.integer("halving", 1, 0..=1)? == 1;
        let shared_index = choice_index(spec, "shared", ["hits", "cluster"])?;
        // Index 0 is the first of the two words, and the default. Policies by slot are the version
        // of 2012: `halving` applies to windows by address alone.
        let shared: Box<dyn SwapinPolicy> = match shared_index {
            0 => Box::new(Hits::version_2012(pages_max)),
            _ => Box::new(Cluster::of(pages_max)),
        };
        let is_disk_by_slot = choice_index(spec, "rotating", ["hits", "vma"])? == 0;
        // A fault without hits reads its page alone, as in the kernel.
        let pages_min = 1;
        Ok(Vma {
            initial_rate: HitRate::new(pages_max, pages_min, limits_shrinking),
            mappings: Vec::new(),
            shared,
            rotational: (is_rotational && is_disk_by_slot).then(|| Hits::version_2012(pages_max)),
        })
    }

    /// The hit count and last fault of the fault's mapping, created if the mapping is new.
    fn hit_rate_mut(&mut self, fault: &SwapFault) -> &mut HitRate {
        let index = fault.memory.0 as usize;
        if index >= self.mappings.len() {
            self.mappings.resize(index + 1, self.initial_rate);
        }
        &mut self.mappings[index]
    }

    /// The policy that handles this fault by slot, for shared memory or a disk; `None` if the fault
    /// is handled by address.
    fn policy_by_slot(&mut self, fault: &SwapFault) -> Option<&mut dyn SwapinPolicy> {
        match &mut self.rotational {
            _ if fault.is_shared => Some(&mut *self.shared),
            Some(hits) => Some(hits),
            None => None,
        }
    }
}

impl SwapinPolicy for Vma {
    /// Counts the hit for the fault's mapping, and records its page. Reads nothing. Shared memory,
    /// and a swap area on a disk, have a policy by slot.
    fn hit(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> Option<SwapRead> {
        if let Some(policy) = self.policy_by_slot(fault) {
            return policy.hit(fault, swapped);
        }
        let hit_rate = self.hit_rate_mut(fault);
        hit_rate.count_hit();
        hit_rate.record_fault(fault.page);
        None
    }

    /// Selects a window, whose size follows the mapping's count of hits (the rule of `hits`). It
    /// lies in the direction of the mapping's last two faults if these are neighbours. Otherwise
    /// the fault is in its middle. Shared memory, and a swap area on a disk, have a policy by slot.
    /// At the start of the mapping the window is shifted, at the end it is cut.
    fn miss(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> SwapRead {
        if let Some(policy) = self.policy_by_slot(fault) {
            return policy.miss(fault, swapped);
        }
        let hit_rate = self.hit_rate_mut(fault);
        // Read before this fault replaces it.
        let previous_page = hit_rate.previous_position();
        let window_pages = hit_rate.take_window_pages(fault.page);
        hit_rate.record_fault(fault.page);
        let pages_before = match previous_page {
            Some(previous) if previous + 1 == fault.page => 0,
            Some(previous) if previous == fault.page + 1 => window_pages - 1,
            _ => (window_pages - 1) / 2,
        };
        let first = fault.page.saturating_sub(pages_before);
        SwapRead::Pages(PageRange::new(first, window_pages).clipped(fault.memory_pages))
    }

    /// False: the policy ignores the costs of requests.
    fn uses_costs(&self) -> bool {
        false
    }
}

/// Returns the index of the parameter's value in `words`; 0 if the parameter is missing. Fails if
/// the value is none of them.
fn choice_index(spec: &Spec, key: &str, words: [&str; 2]) -> Result<usize, SpecError> {
    let Some(text) = spec.parameters.get(key) else { return Ok(0) };
    words.iter().position(|word| word == text).ok_or_else(|| SpecError::BadValue {
        name: spec.name.clone(),
        key: key.into(),
        value: text.clone(),
        expected: alloc::format!("{} or {}", words[0], words[1]),
    })
}

impl core::fmt::Debug for Vma {
    /// Writes the hit counts of the mappings only.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vma").field("mappings", &self.mappings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hit, miss};
    use super::super::{MemoryId, SwapFault};
    use super::*;

    /// The policy of the specification `text`, on a disk if `is_rotational`.
    fn policy(text: &str, is_rotational: bool) -> Vma {
        Vma::from_spec(&Spec::parse(text).unwrap(), is_rotational).unwrap()
    }

    /// Read of `count` pages by address.
    fn pages(first: u64, count: u64) -> SwapRead {
        SwapRead::Pages(PageRange::new(first, count))
    }

    /// Each row has the pages hit before a fault, the page of the fault, and the window: first page
    /// and number of pages. Worked by hand: hits + 2, rounded up to a power of two, and at
    /// least half of the last window. The slots (all 5) have no influence.
    #[test]
    fn windows_of_one_mapping_match_the_hand_computed_table() {
        let table: [(&[u64], u64, (u64, u64)); 8] = [
            (&[], 100, (97, 8)),                         // initially 4: 8, around
            (&[101, 102, 103, 104], 105, (105, 8)),      // 6 → 8, after 104: forward
            (&[], 500, (499, 4)),                        // no hit, far: half of 8, around
            (&[], 499, (498, 2)),                        // before 500: a pair, backward
            (&[], 700, (700, 1)),                        // far again: 1
            (&[], 701, (701, 2)),                        // after 700: a pair, forward
            (&[702, 703, 704, 705, 706], 999, (996, 4)), // around, cut at the end of the mapping
            (&[], 1, (0, 4)),                            // half of 8, around: one before it
        ];
        let is_rotational = false;
        let mut policy = policy("vma", is_rotational);
        for (row, (hits, page, (first, count))) in table.into_iter().enumerate() {
            hits.iter().for_each(|&page| hit(&mut policy, fault(page, 5)));
            assert_eq!(miss(&mut policy, fault(page, 5)), pages(first, count), "row {row}");
        }
    }

    /// Mapping 0 hits all 7 prefetched pages, mapping 1 none: their next windows have 8 pages and
    /// 1.
    #[test]
    fn mappings_do_not_disturb_each_other() {
        let is_rotational = false;
        let mut policy = policy("vma,halving=0", is_rotational);
        let other = |page| SwapFault { memory: MemoryId(1), ..fault(page, 5) };
        miss(&mut policy, fault(100, 5));
        miss(&mut policy, other(200));
        (0..7).for_each(|nth| hit(&mut policy, fault(104 + nth, 5)));
        assert_eq!(miss(&mut policy, other(600)), pages(600, 1));
        assert_eq!(miss(&mut policy, fault(111, 5)), pages(111, 8));
    }

    /// By default shared memory and disks use `hits`: the first fault reads the aligned block of 8
    /// slots around slot 77, a second one without hits its slot alone. The parameters select
    /// `cluster` for shared memory, and addresses on a disk.
    #[test]
    fn shared_memory_and_disks_use_slots() {
        let shared = SwapFault { is_shared: true, ..fault(300, 77) };
        let slots = |first, count| SwapRead::Slots(PageRange::new(first, count));
        let (on_ssd, on_disk) = (false, true);
        let mut default = policy("vma", on_ssd);
        assert_eq!(miss(&mut default, shared), slots(72, 8));
        assert_eq!(miss(&mut default, shared), slots(77, 1));
        let mut baseline = policy("vma,shared=cluster,rotating=vma", on_disk);
        assert_eq!([miss(&mut baseline, shared), miss(&mut baseline, shared)], [slots(72, 8); 2]);
        assert_eq!(miss(&mut baseline, fault(300, 77)), pages(297, 8));
        let mut default_on_disk = policy("vma", on_disk);
        assert_eq!(miss(&mut default_on_disk, fault(300, 77)), slots(72, 8));
    }
}
