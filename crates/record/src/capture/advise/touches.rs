//! Page accesses of a recorded program, from the kernel's events, as early as they are known.
//!
//! A read names its pages when it begins. A fault names one page. The kernel maps its resident
//! neighbours within 64 KiB with it, and the whole of a large folio. Later touches of these pages
//! cause no event. A fault therefore counts as a touch of all pages that it maps, from its page to
//! the next multiple of 64 KiB and to the end of the folio. The range ends earlier if the kernel
//! added fewer pages to the cache (one page with the advice RANDOM).
//!
//! A fault that maps a huge folio has only the event of its exception. Folios prefetched by the
//! advisor have no event with their order, so the page table of the program is read.
//!
//! Whichever sources exist, the gap between two touches of a mapping counts as touched when it is
//! no longer than the previous touch. An example is the second half of a folio of 32 pages, of
//! which the kernel reports the first 16.

use std::collections::HashMap;

use readpath_core::unit::PageRange;

use super::super::event::{EventData, Inode, TraceEvent};
use super::super::folios::{AROUND_PAGES, Folios};
use super::super::follow::TaskMappings;
use super::super::maps::MappedPage;
use super::super::names::FileNames;

/// Access of a program to pages of a file, or the kernel's work for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageTouch {
    /// The program reads these pages or faults on them.
    Requested { task: u32, inode: Inode, range: PageRange },
    /// The kernel has mapped these resident pages. The program may access any of them without an
    /// event.
    Mapped { task: u32, inode: Inode, range: PageRange },
    /// Absent pages enter the kernel page cache because of the program's access.
    Missed { task: u32, inode: Inode, range: PageRange },
}

/// Source of addresses and page tables.
pub(super) trait PageLookup {
    /// Returns the page of a file at an address of a task, or `None` for other memory.
    fn mapped_page_at(&self, task: u32, address: u64) -> Option<MappedPage>;

    /// Returns the pages around `page` that the program's page table maps, or `None` if unknown.
    fn pages_mapped_around(&mut self, page: &MappedPage) -> Option<PageRange>;
}

/// Addresses and page tables of the running system.
pub(super) struct SystemTables<'a, N> {
    /// Reads page tables.
    pub names: &'a mut N,
    /// Mappings of the recorded tasks.
    pub mappings: TaskMappings<'a>,
}

impl<N: FileNames> PageLookup for SystemTables<'_, N> {
    fn mapped_page_at(&self, task: u32, address: u64) -> Option<MappedPage> {
        self.mappings.mapped_page_at(task, address)
    }

    fn pages_mapped_around(&mut self, page: &MappedPage) -> Option<PageRange> {
        self.names.pages_mapped_around(page)
    }
}

/// State of the accesses of all recorded tasks.
#[derive(Debug, Default)]
pub(super) struct Touches {
    /// Fault in progress of each task.
    faults: HashMap<u32, FaultRecord>,
    /// Last exception (touch of an address without a page table entry) of each task, until its next
    /// event.
    last_exceptions: HashMap<u32, MappedPage>,
    /// Page of each task's last exception, until the next one or the end of the task.
    exception_pages: HashMap<u32, MappedPage>,
    /// Large folios that entered the cache during the recording.
    folios: Folios,
    /// Last range that each task touched in a mapping.
    last_mapped: HashMap<u32, (Inode, PageRange)>,
}

/// Fault in progress on an absent page.
#[derive(Clone, Copy, Debug)]
struct FaultRecord {
    /// File of the fault.
    inode: Inode,
    /// Page that the program touched.
    page: u64,
    /// End (exclusive) of the pages added to the cache for this fault, from its page on without
    /// a gap. `None` if its page was not added.
    inserted_end: Option<u64>,
}

impl Touches {
    /// Processes events in the order of their times and calls `on_touch` with each access. A fault
    /// is reported when its pages are known, at the latest with the next access, system call,
    /// switch or end of its task.
    pub fn process_events(
        &mut self,
        events: &[TraceEvent],
        tables: &mut impl PageLookup,
        mut on_touch: impl FnMut(PageTouch),
    ) {
        for event in events {
            self.process_event(event, tables, &mut on_touch);
        }
        // A fault with added pages waits for the device, and its pages are known. It is reported
        // now, because its task may not have another event until the device has answered.
        let waiting_tasks: Vec<u32> = self
            .faults
            .iter()
            .filter_map(|(task, fault)| fault.inserted_end.map(|_| *task))
            .collect();
        waiting_tasks.into_iter().for_each(|task| self.end_fault(task, &mut on_touch));
    }

    /// Processes one event, and calls `on_touch` with the accesses that are known with it. A system
    /// call, another access or a switch to another task ends the fault in progress of a task.
    fn process_event(
        &mut self,
        event: &TraceEvent,
        tables: &mut impl PageLookup,
        on_touch: &mut impl FnMut(PageTouch),
    ) {
        let task = event.task;
        let belongs_to_exception = matches!(
            event.data,
            EventData::MapPages { .. } | EventData::Fault { .. } | EventData::Insert { .. }
        );
        // An exception without a further event of its fault has mapped its pages by now.
        let last_exception = self.last_exceptions.remove(&task);
        if let Some(mapped_page) = last_exception.filter(|_| !belongs_to_exception) {
            self.report_exception(task, &mapped_page, tables, on_touch);
        }
        match event.data {
            EventData::PageFault { address } => {
                self.end_fault(task, on_touch);
                self.exception_pages.remove(&task);
                if let Some(mapped_page) = tables.mapped_page_at(task, address) {
                    self.last_exceptions.insert(task, mapped_page);
                    self.exception_pages.insert(task, mapped_page);
                }
            }
            EventData::CacheRead { inode, first, end } => {
                self.end_fault(task, on_touch);
                on_touch(PageTouch::Requested { task, inode, range: PageRange { first, end } });
            }
            EventData::MapPages { inode, first, end } => {
                self.end_fault(task, on_touch);
                let window = PageRange { first, end };
                let range = self.pages_mapped_with_window(task, inode, window, tables);
                on_touch(PageTouch::Mapped { task, inode, range });
            }
            EventData::Fault { inode, page } => {
                self.end_fault(task, on_touch);
                self.faults.insert(task, FaultRecord { inode, page, inserted_end: None });
            }
            EventData::Insert { inode, first, count } => {
                let range = PageRange::new(first, count);
                self.folios.insert(inode, range);
                on_touch(PageTouch::Missed { task, inode, range });
                let Some(fault) = self.faults.get_mut(&task) else { return };
                // The added pages belong to the fault from its page on, without a gap.
                let next_page = fault.inserted_end.unwrap_or(fault.page);
                if fault.inode == inode && range.contains(next_page) {
                    fault.inserted_end = Some(range.end);
                }
            }
            EventData::Switch { from, .. } => self.end_fault(from, on_touch),
            EventData::Enter(..) => self.end_fault(task, on_touch),
            EventData::TaskEnds => {
                self.end_fault(task, on_touch);
                self.last_mapped.remove(&task);
                self.exception_pages.remove(&task);
            }
            // The other events concern no fault.
            _ => {}
        }
    }

    /// Reports the touch of a task's last exception, after which no other event of its fault came.
    fn report_exception(
        &mut self,
        task: u32,
        mapped_page: &MappedPage,
        tables: &mut impl PageLookup,
        on_touch: &mut impl FnMut(PageTouch),
    ) {
        // An earlier fault of the task is reported first.
        self.end_fault(task, on_touch);
        let touched_page = PageRange::new(mapped_page.page, 1);
        let has_exception_only = true;
        let range =
            self.pages_mapped_by_fault(mapped_page, touched_page, has_exception_only, tables);
        let range = self.extended_over_gap(task, mapped_page.inode, range);
        on_touch(PageTouch::Mapped { task, inode: mapped_page.inode, range });
    }

    /// Returns all pages that a task's fault mapped. `window`: the pages in the kernel's event, at
    /// most 64 KiB of a large folio. The page table is used too if `window` has the page of the
    /// task's last exception.
    fn pages_mapped_with_window(
        &mut self,
        task: u32,
        inode: Inode,
        window: PageRange,
        tables: &mut impl PageLookup,
    ) -> PageRange {
        let mapped_page = self.exception_pages.get(&task).copied();
        let mapped_page =
            mapped_page.filter(|page| page.inode == inode && window.contains(page.page));
        let range = match mapped_page {
            Some(mapped_page) => {
                let has_exception_only = false;
                self.pages_mapped_by_fault(&mapped_page, window, has_exception_only, tables)
            }
            None => self.folios.covering(inode, window),
        };
        self.extended_over_gap(task, inode, range)
    }

    /// Ends the fault in progress of a task, and reports the pages that it mapped as requested.
    /// Without a fault nothing is reported. A fault without added pages has mapped its own page,
    /// which was resident.
    fn end_fault(&mut self, task: u32, on_touch: &mut impl FnMut(PageTouch)) {
        let Some(FaultRecord { inode, page, inserted_end }) = self.faults.remove(&task) else {
            return;
        };
        // The kernel maps no page behind the next multiple of 64 KiB, except in a large folio.
        let around_end = (page / AROUND_PAGES + 1) * AROUND_PAGES;
        let end = inserted_end.map_or(page + 1, |end| end.min(around_end));
        let folio_end = self.folios.covering(inode, PageRange::new(page, 1)).end;
        let end = end.max(folio_end);
        let range = self.extended_over_gap(task, inode, PageRange { first: page, end });
        on_touch(PageTouch::Requested { task, inode, range });
    }

    /// Returns the largest range of pages that a fault on `touched` may have mapped: `window`,
    /// extended by three sources and cut to the mapping (`touched.pages`). `window` has the pages
    /// of the kernel's event, or the touched page alone without such an event.
    ///
    /// The first source is the known folios at the ends of `window`. If the folio of the touched
    /// page is unknown, the second is the page table. If that cannot be read, the third is the
    /// possible huge page. It counts only for a fault without another event than its exception
    /// (`has_exception_only`), since a fault that maps a huge page has no other event.
    fn pages_mapped_by_fault(
        &self,
        touched: &MappedPage,
        window: PageRange,
        has_exception_only: bool,
        tables: &mut impl PageLookup,
    ) -> PageRange {
        let mut range = self.folios.covering(touched.inode, window);
        if !self.folios.is_known(touched.inode, touched.page) {
            let huge_range = if has_exception_only { touched.huge } else { None };
            if let Some(present) = tables.pages_mapped_around(touched).or(huge_range) {
                range.first = range.first.min(present.first);
                range.end = range.end.max(present.end);
            }
        }
        // A folio may reach beyond the mapping, where the kernel maps no page of it.
        PageRange {
            first: range.first.max(touched.pages.first),
            end: range.end.min(touched.pages.end),
        }
    }

    /// Records `range` as the task's last touch of a mapping. Returns it extended down over the gap
    /// to the end of the previous touch, if that is of the same file. A gap with more pages than
    /// the previous touch is not added: it is longer than the part of a folio that the kernel may
    /// have left out. A previous touch that ends behind the start of `range` adds nothing.
    fn extended_over_gap(&mut self, task: u32, inode: Inode, range: PageRange) -> PageRange {
        let previous =
            self.last_mapped.insert(task, (inode, range)).filter(|previous| previous.0 == inode);
        let first = previous.map_or(range.first, |(_, previous)| {
            match range.first.checked_sub(previous.end) {
                Some(gap) if gap <= previous.count() => previous.end,
                _ => range.first,
            }
        });
        PageRange { first, ..range }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: Inode = Inode { device: 1, number: 2 };

    /// A mapping at the file's own offsets, and unreadable page tables.
    struct NoPageTables;

    impl PageLookup for NoPageTables {
        fn mapped_page_at(&self, _: u32, address: u64) -> Option<MappedPage> {
            let page = address / 4096;
            let (pages, huge) =
                (PageRange::new(0, 1 << 20), Some(PageRange::new(page / 512 * 512, 512)));
            Some(MappedPage { process: 7, address, inode: INODE, page, pages, huge })
        }

        fn pages_mapped_around(&mut self, _: &MappedPage) -> Option<PageRange> {
            None
        }
    }

    /// Touches reported for batches of events of one task: kind, first page and end. The kinds are
    /// r for a request, m for mapped pages, a for absent pages added to the cache.
    fn reported_touches(batches: &[&[EventData]]) -> Vec<(char, u64, u64)> {
        let mut touches = Touches::default();
        let mut all = Vec::new();
        for batch in batches {
            let events: Vec<TraceEvent> = batch
                .iter()
                .map(|data| TraceEvent { at_ns: 0, task: 7, data: data.clone() })
                .collect();
            touches.process_events(&events, &mut NoPageTables, |touch| {
                all.push(match touch {
                    PageTouch::Requested { range, .. } => ('r', range.first, range.end),
                    PageTouch::Mapped { range, .. } => ('m', range.first, range.end),
                    PageTouch::Missed { range, .. } => ('a', range.first, range.end),
                });
            });
        }
        all
    }

    /// A fault on page 20. The kernel reads pages 4 to 35 around it and maps up to page 31.
    #[test]
    fn fault_touches_the_pages_that_the_kernel_maps_after_it() {
        let fault = EventData::Fault { inode: INODE, page: 20 };
        let insert = |first, count| EventData::Insert { inode: INODE, first, count };
        let around = [fault.clone(), insert(4, 16), insert(20, 16)];
        assert_eq!(reported_touches(&[&around]), [('a', 4, 20), ('a', 20, 36), ('r', 20, 32)]);
        // A mapping with the advice RANDOM gets one page.
        let one_page = [fault.clone(), insert(20, 1)];
        assert_eq!(reported_touches(&[&one_page]), [('a', 20, 21), ('r', 20, 21)]);
        // A fault on a resident page is a touch of that page, reported with the next event.
        assert_eq!(reported_touches(&[std::slice::from_ref(&fault)]), []);
        let next = EventData::MapPages { inode: INODE, first: 16, end: 32 };
        assert_eq!(reported_touches(&[&[fault], &[next]]), [('r', 20, 21), ('m', 16, 32)]);
    }

    /// Folios of 64 and of 512 pages in order, as Linux 6.18 maps them. `map_pages` names 16 pages
    /// of the first. The exception is the only event of the second.
    #[test]
    fn fault_touches_its_whole_folio() {
        let folio = |first, count| EventData::Insert { inode: INODE, first, count };
        let touch = |page: u64| EventData::PageFault { address: page * 4096 };
        let map = EventData::MapPages { inode: INODE, first: 448, end: 464 };
        let all = [folio(448, 64), folio(512, 512), touch(448), map, touch(512), touch(1024)];
        let reported = reported_touches(&[
            &all,
            &[EventData::Enter(super::super::super::event::SystemCall::Close, [0; 6])],
        ]);
        let mapped: Vec<_> = reported.into_iter().filter(|(kind, ..)| *kind == 'm').collect();
        assert_eq!(mapped, [('m', 448, 512), ('m', 512, 1024), ('m', 1024, 1536)]);
    }

    /// Folios of 32 pages. The kernel reports the first half of each, and the other half counts as
    /// touched. A longer gap does not.
    #[test]
    fn short_gap_between_mapping_touches_counts_as_touched() {
        let found = |page| EventData::Fault { inode: INODE, page };
        let map = |first| EventData::MapPages { inode: INODE, first, end: first + 16 };
        let all = [map(0), found(32), map(32), found(64), map(64), map(97)];
        let expected = [
            ('m', 0, 16),
            ('r', 16, 33),
            ('m', 32, 48),
            ('r', 48, 65),
            ('m', 64, 80),
            ('m', 97, 113),
        ];
        assert_eq!(reported_touches(&[&all]), expected);
    }
}
