//! `vma`: swap-in readahead by address, for each mapping (Linux since 4.14).
//!
//! The law in words: each mapping has its own count of hits and the page of its
//! last fault (found or read). A fault that must read sizes its window by the
//! rule of `hits`, with the place of a fault being its page. The window is laid
//! where the faults go: forward from the page when the last fault was on the
//! page before it, backward up to the page when it was on the page after it,
//! else around it, `(pages − 1) / 2` of them before it. What is read are the
//! pages at those *addresses*, wherever their slots are. Shared memory has no
//! one address and a head would have to travel: both get `hits`, by slot.
//!
//! What it is for: memory that was swapped out in another order than it is
//! used in, on a device without seeks, and loads beside each other, of which
//! one sweeps and one doesn't: a count for the system mixes them up.
//!
//! Parameters:
//! - `page_cluster` (default 3: 8 pages); 0 turns readahead off.
//! - `halving` (0 or 1, default 1, as since 3.14): see `hits`.
//! - `shared` (`hits` or `cluster`, default `hits`): the law of shared memory.
//!   The rival by mapping of 2012 left it to `cluster`.
//! - `rotating` (`hits` or `vma`, default `hits`): what memory gets whose swap
//!   area lies on a disk. The rival of 2012 made no difference: `vma`.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::hits::HitRate;
use super::{Cluster, Hits, SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries, pages_max};
use crate::policy::{Spec, SpecError};
use crate::unit::PageRange;

/// The law `vma`.
pub struct Vma {
    fresh: HitRate,
    /// By mapping.
    mappings: Vec<HitRate>,
    shared: Box<dyn SwapinPolicy>,
    /// By slots on this device, whatever the mapping.
    rotating: Option<Hits>,
}

impl Vma {
    /// With the parameters `page_cluster`, `halving`, `shared` and `rotating`.
    ///
    /// # Errors
    /// Another parameter, or a value that can't be used.
    pub fn from_spec(spec: &Spec, is_rotational: bool) -> Result<Vma, SpecError> {
        spec.only(&["page_cluster", "halving", "shared", "rotating"])?;
        let pages_max = pages_max(spec)?;
        let halves = spec.integer("halving", 1, 0..=1)? == 1;
        let shared: Box<dyn SwapinPolicy> = match choice(spec, "shared", ["hits", "cluster"])? {
            0 => Box::new(Hits::version_2012(pages_max)),
            _ => Box::new(Cluster::of(pages_max)),
        };
        let by_slot = choice(spec, "rotating", ["hits", "vma"])? == 0;
        Ok(Vma {
            fresh: HitRate::new(pages_max, 1, halves),
            mappings: Vec::new(),
            shared,
            rotating: (is_rotational && by_slot).then(|| Hits::version_2012(pages_max)),
        })
    }

    fn mapping(&mut self, fault: &SwapFault) -> &mut HitRate {
        let at = fault.memory.0 as usize;
        if at >= self.mappings.len() {
            self.mappings.resize(at + 1, self.fresh);
        }
        &mut self.mappings[at]
    }

    fn by_slot(&mut self, fault: &SwapFault) -> Option<&mut dyn SwapinPolicy> {
        match &mut self.rotating {
            _ if fault.is_shared => Some(&mut *self.shared),
            Some(hits) => Some(hits),
            None => None,
        }
    }
}

impl SwapinPolicy for Vma {
    fn hit(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> Option<SwapRead> {
        if let Some(policy) = self.by_slot(fault) {
            return policy.hit(fault, swapped);
        }
        let mapping = self.mapping(fault);
        mapping.hit();
        mapping.remember(fault.page);
        None
    }

    fn miss(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> SwapRead {
        if let Some(policy) = self.by_slot(fault) {
            return policy.miss(fault, swapped);
        }
        let mapping = self.mapping(fault);
        let previous = mapping.previous();
        let pages = mapping.pages(fault.page);
        mapping.remember(fault.page);
        let before = match previous {
            Some(last) if last + 1 == fault.page => 0,
            Some(last) if last == fault.page + 1 => pages - 1,
            _ => (pages - 1) / 2,
        };
        let first = fault.page.saturating_sub(before);
        let end = fault.page - before.min(fault.page) + pages;
        SwapRead::Pages(PageRange { first, end }.clipped(fault.memory_pages))
    }
}

/// Which of two words the parameter is, 0 or 1; the first when it is not given.
fn choice(spec: &Spec, key: &str, words: [&str; 2]) -> Result<usize, SpecError> {
    let Some(text) = spec.parameters.get(key) else { return Ok(0) };
    words.iter().position(|word| word == text).ok_or_else(|| SpecError::BadValue {
        name: spec.name.clone(),
        key: key.into(),
        value: text.clone(),
        expected: alloc::format!("{} or {}", words[0], words[1]),
    })
}

impl core::fmt::Debug for Vma {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vma").field("mappings", &self.mappings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hit, miss};
    use super::super::{MemoryId, SwapFault};
    use super::*;

    fn policy(text: &str, is_rotational: bool) -> Vma {
        Vma::from_spec(&Spec::parse(text).unwrap(), is_rotational).unwrap()
    }

    fn pages(first: u64, count: u64) -> SwapRead {
        SwapRead::Pages(PageRange::new(first, count))
    }

    /// Each row: the pages hit before the fault, its page, and the window.
    /// Worked by hand; the slots (all 5) play no part.
    #[test]
    fn golden_trajectory() {
        let table: [(&[u64], u64, (u64, u64)); 8] = [
            (&[], 100, (97, 8)),                         // 4 at the start: 8, around
            (&[101, 102, 103, 104], 105, (105, 8)),      // 6 → 8, after 104: forward
            (&[], 500, (499, 4)),                        // no hit, far: half of 8, around
            (&[], 499, (498, 2)),                        // before 500: a pair, backward
            (&[], 700, (700, 1)),                        // far again: 1
            (&[], 701, (701, 2)),                        // after 700: a pair, forward
            (&[702, 703, 704, 705, 706], 999, (996, 4)), // around, cut at the end of the mapping
            (&[], 1, (0, 4)),                            // half of 8, around: one before it
        ];
        let mut policy = policy("vma", false);
        for (row, (hits, page, (first, count))) in table.into_iter().enumerate() {
            hits.iter().for_each(|&page| hit(&mut policy, fault(page, 5)));
            assert_eq!(miss(&mut policy, fault(page, 5)), pages(first, count), "row {row}");
        }
    }

    #[test]
    fn mappings_do_not_disturb_each_other() {
        let mut policy = policy("vma,halving=0", false);
        let other = |page| SwapFault { memory: MemoryId(1), ..fault(page, 5) };
        miss(&mut policy, fault(100, 5));
        miss(&mut policy, other(200));
        (0..7).for_each(|nth| hit(&mut policy, fault(104 + nth, 5)));
        assert_eq!(miss(&mut policy, other(600)), pages(600, 1));
        assert_eq!(miss(&mut policy, fault(111, 5)), pages(111, 8));
    }

    #[test]
    fn shared_memory_and_disks_use_slots() {
        let shared = SwapFault { is_shared: true, ..fault(300, 77) };
        let slots = |first, count| SwapRead::Slots(PageRange::new(first, count));
        let mut today = policy("vma", false);
        assert_eq!(miss(&mut today, shared), slots(72, 8));
        assert_eq!(miss(&mut today, shared), slots(77, 1));
        let mut baseline = policy("vma,shared=cluster,rotating=vma", true);
        assert_eq!([miss(&mut baseline, shared), miss(&mut baseline, shared)], [slots(72, 8); 2]);
        assert_eq!(miss(&mut baseline, fault(300, 77)), pages(297, 8));
        let mut on_disk = policy("vma", true);
        assert_eq!(miss(&mut on_disk, fault(300, 77)), slots(72, 8));
    }
}
