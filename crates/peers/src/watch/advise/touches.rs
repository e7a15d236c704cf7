//! What a watched program comes to in files, from the kernel's events, as soon as it can be told.
//!
//! A read names its pages when it begins. A fault names one page; but the kernel maps its neighbours with it as far
//! as they are there, 64 KiB aligned, and of what the program then touches of them nothing is heard. So a fault is
//! taken for a touch of all that the kernel will map: from its page up to the next multiple of 64 KiB, or as far as the
//! kernel has put pages into the cache for it, if that is less (a mapping with the advice RANDOM gets one page).
//!
//! Where a fault finds its page there, the kernel may map all of the folio that it is in, and says nothing of that. So
//! what lies between a touch of a mapping and the next one is taken for touched, where it is no longer than the one before:
//! else a program that goes through a mapping would seem to come to one page of each folio.

use std::collections::HashMap;

use readpath_core::unit::PageRange;

use super::super::event::{Inode, TraceEvent, What};

/// What the kernel maps around a fault, in pages (`fault_around_bytes`).
const AROUND_PAGES: u64 = 16;

/// What a program does with the pages of a file, or the kernel for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageTouch {
    /// It comes to these pages, by a read or a fault.
    Comes { task: u32, inode: Inode, range: PageRange },
    /// The kernel has mapped these pages that were there; it may come to each of them.
    Mapped { task: u32, inode: Inode, range: PageRange },
    /// Pages that were not in the page cache come into it, because a watched program reads.
    Missed { task: u32, inode: Inode, range: PageRange },
}

/// Follows the events of watched tasks.
#[derive(Debug, Default)]
pub(super) struct Touches {
    /// The fault that each task is in.
    faults: HashMap<u32, FaultRecord>,
    /// What each task touched of a mapping last.
    mapped: HashMap<u32, (Inode, PageRange)>,
}

#[derive(Clone, Copy, Debug)]
struct FaultRecord {
    inode: Inode,
    page: u64,
    /// The end, exclusive, of the pages from its own on that came into the cache for it.
    inserted_end: Option<u64>,
}

impl Touches {
    /// Takes events in the order of their times.
    pub fn take(&mut self, events: &[TraceEvent], mut tell: impl FnMut(PageTouch)) {
        for event in events {
            let task = event.task;
            match event.what {
                What::CacheRead { inode, first, end } => {
                    self.end_fault(task, &mut tell);
                    tell(PageTouch::Comes { task, inode, range: PageRange { first, end } });
                }
                What::MapPages { inode, first, end } => {
                    self.end_fault(task, &mut tell);
                    let range = self.with_gap(task, inode, PageRange { first, end });
                    tell(PageTouch::Mapped { task, inode, range });
                }
                What::Fault { inode, page } => {
                    self.end_fault(task, &mut tell);
                    self.faults.insert(task, FaultRecord { inode, page, inserted_end: None });
                }
                What::Insert { inode, first, count } => {
                    let range = PageRange::new(first, count);
                    tell(PageTouch::Missed { task, inode, range });
                    let Some(fault) = self.faults.get_mut(&task) else { continue };
                    let goes_on = fault.inserted_end.unwrap_or(fault.page);
                    if fault.inode == inode && range.contains(goes_on) {
                        fault.inserted_end = Some(range.end);
                    }
                }
                What::Switch { from, .. } => self.end_fault(from, &mut tell),
                What::Enter(..) => self.end_fault(task, &mut tell),
                What::TaskEnds => {
                    self.end_fault(task, &mut tell);
                    self.mapped.remove(&task);
                }
                _ => {}
            }
        }
        // Those of which pages have come are waited for by now: nothing more is to be learned of them.
        let known: Vec<u32> = self
            .faults
            .iter()
            .filter_map(|(task, fault)| fault.inserted_end.map(|_| *task))
            .collect();
        known.into_iter().for_each(|task| self.end_fault(task, &mut tell));
    }

    fn end_fault(&mut self, task: u32, tell: &mut impl FnMut(PageTouch)) {
        let Some(FaultRecord { inode, page, inserted_end }) = self.faults.remove(&task) else {
            return;
        };
        let around_end = (page / AROUND_PAGES + 1) * AROUND_PAGES;
        let end = inserted_end.map_or(page + 1, |end| end.min(around_end));
        let range = self.with_gap(task, inode, PageRange { first: page, end });
        tell(PageTouch::Comes { task, inode, range });
    }

    /// What a task touches of a mapping, together with what was mapped before it and not told.
    fn with_gap(&mut self, task: u32, inode: Inode, range: PageRange) -> PageRange {
        let before = self.mapped.insert(task, (inode, range)).filter(|before| before.0 == inode);
        let first =
            before.map_or(range.first, |(_, before)| match range.first.checked_sub(before.end) {
                Some(gap) if gap <= before.count() => before.end,
                _ => range.first,
            });
        PageRange { first, ..range }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: Inode = Inode { device: 1, number: 2 };

    fn told(batches: &[&[What]]) -> Vec<(char, u64, u64)> {
        let mut touches = Touches::default();
        let mut all = Vec::new();
        for batch in batches {
            let events: Vec<TraceEvent> = batch
                .iter()
                .map(|what| TraceEvent { at_ns: 0, task: 7, what: what.clone() })
                .collect();
            touches.take(&events, |touch| {
                all.push(match touch {
                    PageTouch::Comes { range, .. } => ('c', range.first, range.end),
                    PageTouch::Mapped { range, .. } => ('m', range.first, range.end),
                    PageTouch::Missed { range, .. } => ('i', range.first, range.end),
                });
            });
        }
        all
    }

    /// A fault on page 20, around which the kernel reads pages 4 to 35: it will map up to page 31.
    #[test]
    fn a_fault_is_a_touch_of_what_the_kernel_will_map_from_there_on() {
        let fault = What::Fault { inode: INODE, page: 20 };
        let insert = |first, count| What::Insert { inode: INODE, first, count };
        let around = [fault.clone(), insert(4, 16), insert(20, 16)];
        assert_eq!(told(&[&around]), [('i', 4, 20), ('i', 20, 36), ('c', 20, 32)]);
        // A mapping with the advice RANDOM is given one page.
        assert_eq!(told(&[&[fault.clone(), insert(20, 1)]]), [('i', 20, 21), ('c', 20, 21)]);
        // One that finds its page there is a touch of that page, once that is known.
        assert_eq!(told(&[std::slice::from_ref(&fault)]), []);
        let next = What::MapPages { inode: INODE, first: 16, end: 32 };
        assert_eq!(told(&[&[fault], &[next]]), [('c', 20, 21), ('m', 16, 32)]);
    }

    /// Folios of 32 pages, of each of which the kernel tells of the first half: the other is touched as well. A longer gap is none.
    #[test]
    fn what_lies_between_two_touches_of_a_mapping_is_touched() {
        let found = |page| What::Fault { inode: INODE, page };
        let map = |first| What::MapPages { inode: INODE, first, end: first + 16 };
        let all = [map(0), found(32), map(32), found(64), map(64), map(97)];
        let gone_through = [
            ('m', 0, 16),
            ('c', 16, 33),
            ('m', 32, 48),
            ('c', 48, 65),
            ('m', 64, 80),
            ('m', 97, 113),
        ];
        assert_eq!(told(&[&all]), gone_through);
    }
}
