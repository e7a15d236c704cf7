//! Faults of mappings: the touched page, and the pages mapped for it.
//!
//! `exceptions:page_fault_user` and `page_fault_kernel` report each fault with its address. A fault
//! that maps a huge folio has no other event. The events of `filemap` that follow belong to the
//! same fault: `mm_filemap_map_pages` (resident pages are mapped) and `mm_filemap_fault` (the page
//! is absent or not ready). Faults within a call (`MADV_POPULATE_READ`, `mlock`, direct I/O into a
//! mapping) have no exception, only the events of `filemap`.
//!
//! A fault has no event at its end. It stays open until its task causes another event.
//!
//! The mapped range is an upper bound: the window of `mm_filemap_map_pages`, extended by the folios
//! at its ends, within the mapping. A page that faults later was not mapped, so it cuts the range
//! of the previous fault.
//!
//! A `task` is the kernel's number of a thread. Times are nanoseconds since the start of the
//! recording. A *queued* record is written once no earlier record can follow.

use readpath_core::unit::PageRange;
use readpath_trace::recording::{
    CALL_BYTES_MAX, Mapped, ReadMethod, ReadOutcome, ReadRecord, Record,
};

use super::super::event::{Inode, Sleep};
use super::super::maps::{MappedPage, UNKNOWN};
use super::super::names::FileNames;
use super::{FAULT_TIMEOUT_NS, PAGE_BYTES, RecordedTask, TaskTracker};

/// Fault in progress of a task, called open until its records are queued.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFault {
    /// File of the fault.
    pub inode: Inode,
    /// Page that the task touched, as far as the events report it.
    pub page: u64,
    /// Time of its first event.
    pub begin_ns: u64,
    /// End of its last wait, when the task ran again.
    end_ns: u64,
    /// Sum of its waits.
    waited_ns: u64,
    /// Page at its address, if an exception reported it.
    mapped_page: Option<MappedPage>,
    /// Pages around the touched one, named by `mm_filemap_map_pages`.
    window: Option<PageRange>,
    /// True when the page was absent or not ready.
    is_missed: bool,
    /// True when the task has waited for the page. It may wait again: for a block of metadata, for
    /// a request, for the page.
    is_served: bool,
    /// True while the task sleeps within the fault.
    is_asleep: bool,
    /// Start and end of the first of its requests that completed while the task was awake.
    awake_request: Option<(u64, u64)>,
    /// True when its read record was written.
    is_recorded: bool,
}

impl OpenFault {
    /// Returns the state of a fault on a page of a file that began at `begin_ns`. No wait is known.
    fn new(inode: Inode, page: u64, begin_ns: u64) -> OpenFault {
        OpenFault {
            inode,
            page,
            begin_ns,
            end_ns: begin_ns,
            waited_ns: 0,
            mapped_page: None,
            window: None,
            is_missed: false,
            is_served: false,
            is_asleep: false,
            awake_request: None,
            is_recorded: false,
        }
    }

    /// Returns true when no further event of the fault is expected: `FAULT_TIMEOUT_NS` (2 ms) have
    /// passed since its begin, its last wait, and its request that completed while the task was
    /// awake. False while the task sleeps.
    fn is_timed_out(&self, now_ns: u64) -> bool {
        let end_ns = self.awake_request.map_or(self.end_ns, |(_, at_ns)| at_ns.max(self.end_ns));
        end_ns + FAULT_TIMEOUT_NS < now_ns && !self.is_asleep
    }

    /// Records the start of a sleep of the task. A fault on a resident page has no wait. The first
    /// sleep of any other fault is a wait for its page. After it the fault may be over: only a
    /// sleep that no signal ends belongs to the fault for certain.
    pub fn begin_sleep(&mut self, sleep: Sleep) {
        self.is_asleep = self.is_missed && (!self.is_served || sleep == Sleep::Uninterruptible);
    }

    /// Adds the sleep of the task, from its start to the wake-up, to the fault's wait, if it
    /// belongs to the fault. The task runs again at `at_ns`.
    fn end_sleep(&mut self, (since_ns, woken_ns): (u64, u64), at_ns: u64) {
        if self.is_asleep {
            self.waited_ns += woken_ns.saturating_sub(since_ns.max(self.begin_ns));
            self.end_ns = at_ns;
            (self.is_asleep, self.is_served) = (false, true);
        }
    }

    /// Records a request of the task from `since_ns` to `at_ns` that completed while the task was
    /// awake. Only the first one of a fault on an absent page is kept. It may be a request of
    /// readahead behind the page, so a sleep that is reported later counts instead.
    pub fn record_request(&mut self, since_ns: u64, at_ns: u64) {
        if self.is_missed && self.awake_request.is_none() {
            self.awake_request = Some((since_ns, at_ns));
        }
    }

    /// Returns the end of the fault and its wait, both in nanoseconds. The request that completed
    /// while the task was awake counts only if the task has not slept for the page.
    fn end_and_wait_ns(&self) -> (u64, u64) {
        match self.awake_request {
            Some((since_ns, at_ns)) if !self.is_served => (at_ns, at_ns - since_ns),
            _ => (self.end_ns, self.waited_ns),
        }
    }
}

impl RecordedTask {
    /// Returns the open fault if its page is one of `pages` of this file, else `None`.
    fn fault_at(&mut self, inode: Inode, pages: PageRange) -> Option<&mut OpenFault> {
        self.fault.as_mut().filter(|fault| fault.inode == inode && pages.contains(fault.page))
    }
}

impl<N: FileNames> TaskTracker<N> {
    /// Returns the tasks with an open fault of which no further event is expected.
    pub(super) fn timed_out_faults(&self, now_ns: u64) -> Vec<u32> {
        let is_timed_out =
            |state: &RecordedTask| state.fault.is_some_and(|fault| fault.is_timed_out(now_ns));
        self.tasks.iter().filter(|(_, state)| is_timed_out(state)).map(|(task, _)| *task).collect()
    }

    /// Ends the open fault of a task after its timeout. An event of the same fault may still
    /// follow, so its page is kept.
    pub(super) fn expire_fault(&mut self, task: u32) {
        let page = self
            .tasks
            .get(&task)
            .and_then(|state| state.fault.map(|fault| (fault.inode, fault.page)));
        self.end_fault(task, None);
        if let Some(state) = self.tasks.get_mut(&task) {
            state.expired_fault = page;
        }
    }

    /// Opens the expired fault of a task again, if its page is one of `pages`. Otherwise that fault
    /// is forgotten. Only the mapped pages of the opened fault are recorded, because its read
    /// record exists.
    fn reopen_fault(&mut self, at_ns: u64, task: u32, inode: Inode, pages: PageRange) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        let expired = state.expired_fault.take();
        if let Some((_, page)) =
            expired.filter(|(other, page)| *other == inode && pages.contains(*page))
        {
            self.open_fault(
                task,
                OpenFault { is_recorded: true, ..OpenFault::new(inode, page, at_ns) },
            );
        }
    }

    /// Handles an exception of a task at an address without an entry in the page table. It ends the
    /// previous fault and opens one for a file mapping. In a mapping of unknown file the exception
    /// is only kept: the next `filemap` event identifies the file.
    pub(super) fn on_exception(&mut self, at_ns: u64, task: u32, address: u64) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        state.expired_fault = None;
        let touched = self.maps.mapped_page_at(state.process, address);
        self.end_fault(task, touched.map(|touched| (touched.inode, touched.page)));
        let Some(touched) = touched else { return };
        if touched.inode == UNKNOWN {
            if let Some(state) = self.tasks.get_mut(&task) {
                state.last_exception = Some((touched, at_ns));
            }
            return;
        }
        let fault = OpenFault {
            mapped_page: Some(touched),
            ..OpenFault::new(touched.inode, touched.page, at_ns)
        };
        self.open_fault(task, fault);
    }

    /// Identifies the unknown file of a mapping by the first `filemap` event after an exception in
    /// it, and opens the fault of that exception. No effect if the task had no such exception. If
    /// its page is not one of the event's `pages`, the exception is only forgotten.
    fn identify_mapped_file(&mut self, task: u32, inode: Inode, pages: PageRange) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        let exception =
            state.last_exception.take().filter(|(mapped_page, _)| pages.contains(mapped_page.page));
        let Some((mapped_page, begin_ns)) = exception else { return };
        let no_name = None;
        let file = self.file_number(inode, no_name);
        self.maps.set_file(mapped_page.process, mapped_page.address, inode, file);
        let page = mapped_page.page;
        let mapped_page = Some(MappedPage { inode, ..mapped_page });
        self.open_fault(task, OpenFault { mapped_page, ..OpenFault::new(inode, page, begin_ns) });
    }

    /// Handles `mm_filemap_fault`: a page that the task touched is absent or not ready. The event
    /// belongs to the open fault of the task if that is a fault on this page. Otherwise that fault
    /// ends, and another one is opened.
    pub(super) fn on_filemap_fault(&mut self, at_ns: u64, task: u32, inode: Inode, page: u64) {
        // Both may open the fault that this event belongs to.
        self.identify_mapped_file(task, inode, PageRange::new(page, 1));
        self.reopen_fault(at_ns, task, inode, PageRange::new(page, 1));
        let Some(state) = self.tasks.get_mut(&task) else { return };
        if let Some(fault) = state.fault_at(inode, PageRange::new(page, 1)) {
            fault.is_missed = true;
            return;
        }
        self.end_fault(task, Some((inode, page)));
        let fault = OpenFault { is_missed: true, ..OpenFault::new(inode, page, at_ns) };
        self.open_fault(task, fault);
    }

    /// Handles `mm_filemap_map_pages`: resident pages of `window` are mapped for the task. They
    /// belong to the open fault of the task if its page is among them. Otherwise that fault ends,
    /// and a fault without a read from the device is opened.
    pub(super) fn on_map_pages(&mut self, at_ns: u64, task: u32, inode: Inode, window: PageRange) {
        // Both may open the fault that this event belongs to.
        self.identify_mapped_file(task, inode, window);
        self.reopen_fault(at_ns, task, inode, window);
        let Some(state) = self.tasks.get_mut(&task) else { return };
        if let Some(fault) = state.fault_at(inode, window) {
            fault.window = Some(window);
            return;
        }
        // The event does not name the touched page: it cuts no range, and the first page of the
        // window stands for it.
        self.end_fault(task, None);
        let fault = OpenFault::new(inode, window.first, at_ns);
        let fault = OpenFault { window: Some(window), ..fault };
        self.open_fault(task, fault);
    }

    /// Makes `fault` the open fault of a task. Records from its start on are held back until it
    /// ends.
    fn open_fault(&mut self, task: u32, fault: OpenFault) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        self.out.hold(fault.begin_ns);
        state.fault = Some(fault);
    }

    /// Records that a task that sleeps was woken at `at_ns`. `on_wakeup` counts its sleep later.
    /// Until then the task waits for a processor, which is no wait for a device.
    pub(super) fn on_waking(&mut self, at_ns: u64, task: u32) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        if state.sleep_since_ns.is_some() {
            state.woken_ns.get_or_insert(at_ns);
            let begins_sleep = false;
            self.on_sleep_change(at_ns, task, begins_sleep);
        }
    }

    /// Handles a task that runs again at `at_ns`. Its sleep counts as a wait of its call and of its
    /// fault: up to the wake-up, or to `at_ns` if that was not reported. A task that was not asleep
    /// has no wait.
    pub(super) fn on_wakeup(&mut self, at_ns: u64, task: u32) {
        let begins_sleep = false;
        self.on_sleep_change(at_ns, task, begins_sleep);
        let Some(state) = self.tasks.get_mut(&task) else { return };
        let Some(since_ns) = state.sleep_since_ns.take() else { return };
        let woken_ns = state.woken_ns.take().unwrap_or(at_ns).min(at_ns);
        if let Some(call) = &mut state.call {
            let since_ns = since_ns.max(call.begin_ns);
            call.waited_ns += woken_ns.saturating_sub(since_ns);
        }
        if let Some(fault) = &mut state.fault {
            fault.end_sleep((since_ns, woken_ns), at_ns);
        }
    }

    /// Ends the open fault of a task, if any, and queues its records. `next` is the page of the
    /// next fault, which this fault has not mapped. An exception whose file no event has identified
    /// is forgotten.
    pub(super) fn end_fault(&mut self, task: u32, next: Option<(Inode, u64)>) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        state.last_exception = None;
        let Some(fault) = state.fault.take() else { return };
        let previous = state.mapped.filter(|(inode, _)| *inode == fault.inode);
        let mut range = self.mapped_range(&fault);
        // The next fault's page was not mapped. The previous fault's pages need no further mapping.
        let unmapped = next.filter(|(inode, _)| *inode == fault.inode).map(|(_, page)| page);
        for edge in unmapped
            .map(|page| PageRange::new(page, 1))
            .into_iter()
            .chain(previous.map(|(_, pages)| pages))
        {
            range = cut_beyond(range, fault.page, edge);
        }
        if let Some(state) = self.tasks.get_mut(&task) {
            state.mapped = Some((fault.inode, range));
        }
        // Records after the begin of the fault need no longer wait for its own.
        self.out.release(fault.begin_ns);
        let (end_ns, _wait_ns) = fault.end_and_wait_ns();
        // The pages that the task added to the cache up to the end come before those it mapped.
        self.put_inserted(end_ns, task);
        self.put_mapped(end_ns, task, self.files.number(fault.inode), fault.inode, range);
        // A fault that was opened again after its timeout has a read record already.
        if !fault.is_recorded {
            self.put_fault(task, &fault);
        }
    }

    /// Returns the largest range of pages that a fault may have mapped, within its mapping. Without
    /// the page at its address the mapping is unknown, and only the folios extend the window.
    fn mapped_range(&mut self, fault: &OpenFault) -> PageRange {
        let touched = PageRange::new(fault.page, 1);
        let base = fault.window.unwrap_or(touched);
        let mut range = self.folios.covering(fault.inode, base);
        if let Some(mapped_page) = fault.mapped_page {
            if !self.folios.is_known(fault.inode, fault.page) {
                // The folio was added before the recording, so the page table is read.
                let present = self.names.pages_mapped_around(&mapped_page);
                // A fault that maps a huge folio has no event but its exception.
                let has_exception_only = fault.window.is_none() && !fault.is_missed;
                let huge_range = if has_exception_only { mapped_page.huge } else { None };
                range = enclosing_range(range, present.or(huge_range).unwrap_or(touched));
            }
            range = PageRange {
                first: range.first.max(mapped_page.pages.first),
                end: range.end.min(mapped_page.pages.end),
            };
        }
        range
    }

    /// Queues the read record of a fault: one page, with its wait.
    fn put_fault(&mut self, task: u32, fault: &OpenFault) {
        let &OpenFault { inode, page, begin_ns, .. } = fault;
        let (end_ns, waited_ns) = fault.end_and_wait_ns();
        let (thread, file) = (self.thread_number(task), self.file_number(inode, None));
        let Some(thread) = thread else { return };
        self.out.put(
            end_ns,
            Record::Read(ReadRecord {
                end_ns,
                begin_ns,
                waited_ns,
                thread,
                way: ReadMethod::Fault,
                descriptor: None,
                file,
                offset: page * PAGE_BYTES,
                asked_bytes: PAGE_BYTES,
                outcome: ReadOutcome::Bytes(PAGE_BYTES),
            }),
        );
    }

    /// Queues the records of pages that a task mapped, split at the maximum size of a record.
    /// `file` is the number of `inode` in the recording; `None` to look it up or to assign one.
    pub(super) fn put_mapped(
        &mut self,
        at_ns: u64,
        task: u32,
        file: Option<u32>,
        inode: Inode,
        range: PageRange,
    ) {
        let Some(thread) = self.thread_number(task) else { return };
        let file = file.unwrap_or_else(|| self.file_number(inode, None));
        let mut first = range.first;
        while first < range.end {
            let end = range.end.min(first + CALL_BYTES_MAX / PAGE_BYTES);
            let (offset, bytes) = (first * PAGE_BYTES, (end - first) * PAGE_BYTES);
            self.out.put(at_ns, Record::Mapped(Mapped { at_ns, thread, file, offset, bytes }));
            first = end;
        }
    }

    /// Queues records for a call that has mapped all pages of an address range, whose end is
    /// exclusive. Memory without a known file is left out.
    pub(super) fn on_populate(
        &mut self,
        at_ns: u64,
        task: u32,
        (first_address, end_address): (u64, u64),
    ) {
        let Some(state) = self.tasks.get(&task) else { return };
        let mappings = self.maps.mappings_within(state.process, first_address, end_address);
        for (start, mapping) in mappings {
            if mapping.inode == UNKNOWN {
                continue;
            }
            let pages = PageRange::covering(mapping.offset, mapping.end - start);
            self.put_mapped(at_ns, task, Some(mapping.file), mapping.inode, pages);
        }
    }
}

/// Cuts a range around `page` so that it excludes `edge`, on either side of `page`, and the pages
/// beyond. An edge that contains `page` cuts nothing.
fn cut_beyond(range: PageRange, page: u64, edge: PageRange) -> PageRange {
    let PageRange { mut first, mut end } = range;
    if edge.end <= page {
        first = first.max(edge.end);
    } else if edge.first > page {
        end = end.min(edge.first);
    }
    PageRange { first, end }
}

/// Returns the smallest range that contains both ranges.
fn enclosing_range(left: PageRange, right: PageRange) -> PageRange {
    PageRange { first: left.first.min(right.first), end: left.end.max(right.end) }
}
