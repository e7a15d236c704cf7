//! Assignment of fetched pages and waits to reads, and their charges.
//!
//! *Fetched* pages were read from a device for the program. A *claim* assigns them to the read that
//! caused the fetch, and a *charge* assigns a wait to a cause. An *advice* is a call of the program
//! that announces accesses, and a *hint* is an advice about their order.

use readpath_core::unit::PageRange;

use super::super::cause::{self, ReadWait};
use super::super::depth_sweep::ChargedWait;
use super::super::pattern::Step;
use super::super::readahead;
use super::super::{ORDERED_BYTES, WaitCause};
use super::{FileData, INSERTED_RUNS_MAX, RecordingData, WaitSum};
use crate::called_wait::wait_of_recorded;
use readpath_trace::page_set::PAGE_BYTES;
use readpath_trace::recording::{
    AdviceGiven, AdviceType, FaultUse, PagesInserted, ReadMethod, ReadOutcome, ReadRecord,
};

/// Time in nanoseconds after the end of a fault within which inserted pages of its file are its
/// readahead. Chosen.
const FAULT_READAHEAD_NS: u64 = 1_000_000;

/// Maximum bytes that the kernel brings in for one call with WILLNEED, if the readahead window of
/// the device is smaller. The kernel takes the largest request of the device then, which is not
/// recorded. This is its default, `BLK_DEF_MAX_SECTORS_CAP` of Linux 6.18. Linux 6.1 has 1280 KiB.
const ADVISED_BYTES_MAX: u64 = 4 << 20;

/// Pages that a thread inserted into the page cache since its last read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inserted {
    /// Time of the insertion in nanoseconds since the start of the recording.
    pub(super) at_ns: u64,
    /// Number of the file.
    pub(super) file: u32,
    /// Offset of the first page in bytes.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) bytes: u64,
}

/// Bytes inserted into the page cache for one read.
#[derive(Clone, Copy, Debug, Default)]
struct FetchedBytes {
    /// Number of all these bytes.
    bytes: u64,
    /// Bytes that had been fetched before.
    refetched_bytes: u64,
    /// Bytes beyond the requested pages.
    prefetched_bytes: u64,
}

impl RecordingData {
    /// Records an advice, and its hint if it has one. For `WillNeed`, the pages that the thread
    /// inserted within the range before the end of the call count as fetched. In a file of unknown
    /// length, the advice announces nothing.
    pub(super) fn on_advice(&mut self, advice: &AdviceGiven) {
        let file = self.files.entry(advice.file).or_default();
        match advice.is_of_mapping {
            true => file.mapped_hints.add(advice),
            false => file.hints.add(advice),
        }
        if advice.hint != AdviceType::WillNeed {
            return;
        }
        let bytes = advice.bytes_within(file.bytes.unwrap_or(0));
        let window_bytes = self.devices.get(&file.device).map_or(0, |it| it.readahead_bytes);
        let fetched_bytes = bytes.min(window_bytes.max(ADVISED_BYTES_MAX));
        let pages = PageRange::covering(advice.offset, fetched_bytes);
        file.announced.add(pages.first, pages.end);
        let thread = self.threads.entry(advice.thread).or_default();
        thread.will_need = Some(advice.clone());
        thread.inserted.retain(|inserted| {
            let is_advised = is_caused_by(advice, inserted);
            if is_advised {
                file.record_advised_fetch(inserted.offset, inserted.bytes);
            }
            !is_advised
        });
    }

    /// Records pages inserted into the page cache. They count as fetched once a read or an advice
    /// claims them. Otherwise the program wrote them. An insertion of 0 bytes says that the
    /// thread's next read has inserted nothing, if it is of this file. Beyond `INSERTED_RUNS_MAX`,
    /// the older half counts as written.
    pub(super) fn on_insert(&mut self, insert: &PagesInserted) {
        let &PagesInserted { at_ns, thread, file, offset, bytes } = insert;
        if bytes == 0 {
            self.threads.entry(thread).or_default().inserted_none = Some(file);
            return;
        }
        let inserted = Inserted { at_ns, file, offset, bytes };
        self.files.entry(file).or_default().raise_length(offset + bytes);
        let thread = self.threads.entry(thread).or_default();
        // The pages of an advice come after its record, which has the end time of the call.
        if thread.will_need.as_ref().is_some_and(|advice| is_caused_by(advice, &inserted)) {
            self.files.entry(file).or_default().record_advised_fetch(offset, bytes);
            return;
        }
        if thread.inserted.len() >= INSERTED_RUNS_MAX {
            for written in thread.inserted.drain(..INSERTED_RUNS_MAX / 2) {
                self.files.entry(written.file).or_default().written_bytes += written.bytes;
            }
        }
        thread.inserted.push(inserted);
    }

    /// Counts a read in flight for which no thread slept, for its file and its thread.
    fn add_unslept(&mut self, read: &ReadRecord) {
        let in_flight_ns = read.end_ns.saturating_sub(read.begin_ns);
        self.unslept.add(read.begin_ns, read.end_ns);
        self.files.entry(read.file).or_default().unslept_ns += in_flight_ns;
        self.threads.entry(read.thread).or_default().unslept_ns += in_flight_ns;
    }

    /// Returns the wait of a read in nanoseconds. Without measured waits, it follows from the call
    /// and from sampled sleep.
    fn wait_of(&self, read: &ReadRecord, got_bytes: u64, is_direct: bool) -> u64 {
        match self.has_measured_waits() {
            true => read.waited_ns,
            false => wait_of_recorded(read, got_bytes, is_direct),
        }
    }

    /// Processes a read: claims its fetched pages, counts it, and charges its wait to a cause.
    /// The local `fault` says which pages a page fault mapped, and which pages it shows to be used.
    /// A retry of a fault was counted at its first record.
    pub(super) fn on_read(&mut self, read: &ReadRecord) {
        self.length_ns = self.length_ns.max(read.end_ns);
        let retried_step = self.retried_fault_step(read);
        let is_retry = retried_step.is_some();
        let is_first_fault = read.way == ReadMethod::Fault && !is_retry;
        let fault = is_first_fault.then(|| self.mapped.fault(read));
        let (got_bytes, (offset, end)) = used_bytes_and_range(read, fault.as_ref());
        let opened = read.descriptor.map(|descriptor| (read.file, descriptor));
        let is_direct = opened.is_some_and(|opened| self.direct_opens.contains(&opened));
        let claimed = self.claim_inserted(read, (offset, end), is_direct);
        let step = retried_step.unwrap_or_else(|| self.record_step(read, offset, end));
        if !is_retry {
            self.count_read(read, got_bytes);
        }
        let has_measured_waits = self.has_measured_waits();
        let waited_ns = self.wait_of(read, got_bytes, is_direct);
        // Without root, insertions into the page cache are not seen, and the descriptor decides.
        let is_buffered = opened.is_some_and(|opened| self.buffered_opens.contains(&opened));
        let has_filled_cache =
            claimed.bytes > 0 || (!has_measured_waits && is_buffered && waited_ns > 0);
        // Direct reads bypass the cache, and the requests of a trace have reached a device.
        // Insertions into the cache are reported only with measured waits.
        let bypasses_cache = is_direct || self.is_request_trace();
        let is_fetch_unreported = bypasses_cache || (!has_measured_waits && waited_ns > 0);
        let mut fetched = match got_bytes > 0 && claimed.bytes == 0 && is_fetch_unreported {
            true => self.record_unreported_fetch(read, got_bytes, bypasses_cache),
            false => claimed,
        };
        if !is_retry {
            self.record_used_pages(read, fault.as_ref(), step);
        }
        let is_small_call = self.calls.add_if_small(self.source, read, waited_ns, step.is_adjacent);
        let file = self.files.entry(read.file).or_default();
        // A read that returned no byte may begin behind the end of the file.
        if read.bytes_read() > 0 {
            file.raise_length(read.offset + read.bytes_read());
        }
        if is_small_call {
            file.small_calls.add(read.offset);
        }
        file.direct_reads += u64::from(is_direct);
        file.cached_direct_reads += u64::from(is_direct && has_filled_cache);
        if waited_ns == 0 {
            // No wait is charged. An asynchronous read may have been polled.
            let is_asynchronous = matches!(read.way, ReadMethod::Aio | ReadMethod::Uring);
            if is_asynchronous && has_measured_waits {
                self.add_unslept(read);
            }
            return;
        }
        if fetched.bytes == 0 && file.refetched.has(read.offset / PAGE_BYTES) {
            // It waited for a readahead of refetched pages. This value selects the cause `Again`.
            fetched.refetched_bytes = u64::MAX;
        }
        let wait = ReadWait {
            method: read.way,
            is_sequential: step.is_sequential,
            run_bytes: step.run_bytes,
            hint: file.hint_for_read(read.way, read.offset),
            asked_bytes: read.asked_bytes,
            fetched_bytes: fetched.bytes,
            refetched_bytes: fetched.refetched_bytes,
            prefetched_bytes: fetched.prefetched_bytes,
            has_filled_cache,
            is_request_seen: has_measured_waits || is_direct,
            is_announced: file.is_announced(read.offset, has_measured_waits),
            file_bytes: file.bytes,
        };
        self.charge_wait(read, &wait, waited_ns);
    }

    /// Records the fetch of a read that used `used_bytes` bytes, for which the recording reports
    /// no insertion into the page cache. A read that bypasses the cache has fetched all of them. A
    /// sampled fault has fetched its whole range, of which the used pages are not known. Any other
    /// read has fetched its pages that were not read before, or all pages if each was. If the
    /// program announced the first page, the announcement has fetched them: the result has no
    /// fetched bytes then. Its refetched bytes stay, since they show a repeated fetch.
    fn record_unreported_fetch(
        &mut self,
        read: &ReadRecord,
        used_bytes: u64,
        bypasses_cache: bool,
    ) -> FetchedBytes {
        let got_bytes = match read.way {
            ReadMethod::Fault => read.bytes_read(),
            _ => used_bytes,
        };
        let thread = self.threads.entry(read.thread).or_default();
        let has_inserted_none = thread.has_inserted_none;
        let file = self.files.entry(read.file).or_default();
        let (bytes, refetched_bytes) = match bypasses_cache {
            true => (got_bytes, file.record_direct_fetch(read.offset, got_bytes)),
            false => file.record_absent_fetch(read, got_bytes, has_inserted_none),
        };
        let is_announced = !bypasses_cache && file.is_announced(read.offset, false);
        let bytes = if is_announced { 0 } else { bytes };
        FetchedBytes { bytes, refetched_bytes, prefetched_bytes: 0 }
    }

    /// Claims the pages that the reading thread inserted into the cache within this read, and
    /// returns the bytes of the read's own file among them. Pages of other files count as fetched
    /// too. Pages inserted earlier were written, with two exceptions. One is the readahead of the
    /// thread's last fault. The other is the first page of a buffered read that waited and inserted
    /// no page itself: an earlier call that must not wait fetched it. These calls fail, without a
    /// record.
    ///
    /// The read requests the bytes from `begin` to `end`, exclusive. Bytes of other files and of
    /// the last fault's readahead are not in the result.
    fn claim_inserted(
        &mut self,
        read: &ReadRecord,
        (begin, end): (u64, u64),
        is_direct: bool,
    ) -> FetchedBytes {
        let thread = self.threads.entry(read.thread).or_default();
        // An insertion of 0 bytes holds for this read only, if it is of the read's file.
        thread.has_inserted_none = thread.inserted_none.take() == Some(read.file);
        let last_fault = thread.last_fault;
        thread.last_fault = (read.way == ReadMethod::Fault).then_some((read.file, read.end_ns));
        let is_own = |it: &Inserted| it.file == read.file && it.at_ns >= read.begin_ns;
        let waits_for_earlier =
            read.waited_ns > 0 && !is_direct && !thread.inserted.iter().any(is_own);
        let mut fetched = FetchedBytes::default();
        for inserted in thread.inserted.drain(..) {
            let Inserted { at_ns, file, offset, bytes } = inserted;
            let file_data = self.files.entry(file).or_default();
            // A fault without a wait ends as it begins; its readahead comes after it.
            let is_of_last_fault = last_fault.is_some_and(|(fault_file, end_ns)| {
                fault_file == file && at_ns.saturating_sub(end_ns) <= FAULT_READAHEAD_NS
            });
            // A copy writes the pages of its target.
            let is_copied = read.way == ReadMethod::Copied && file != read.file;
            let has_first_page = file == read.file
                && (offset..offset + bytes).contains(&(begin / PAGE_BYTES * PAGE_BYTES));
            let is_of_read = at_ns >= read.begin_ns || (waits_for_earlier && has_first_page);
            // Neither this read nor the last fault caused the insertion.
            if (!is_of_read || is_copied) && !is_of_last_fault {
                file_data.written_bytes += bytes;
                continue;
            }
            let again_bytes = file_data.record_fetch(offset, bytes);
            if file == read.file && is_of_read {
                let pages = PageRange::covering(begin, end - begin);
                let (first_byte, end_byte) = (pages.first * PAGE_BYTES, pages.end * PAGE_BYTES);
                let requested_bytes =
                    end_byte.min(offset + bytes).saturating_sub(first_byte.max(offset));
                fetched.bytes += bytes;
                fetched.refetched_bytes += again_bytes;
                fetched.prefetched_bytes += bytes - requested_bytes.min(bytes);
            }
        }
        fetched
    }

    /// Returns the step of a fault that was recorded already, or `None` for any other read. The
    /// second record comes from the kernel, which restarts a fault after the wait for its page.
    fn retried_fault_step(&self, read: &ReadRecord) -> Option<Step> {
        let page = (read.file, read.offset / PAGE_BYTES);
        let (last_page, step) = self.threads.get(&read.thread)?.last_fault_step?;
        (read.way == ReadMethod::Fault && last_page == page).then_some(step)
    }

    /// Records a read of the bytes from `begin` to `end`, exclusive. Returns its position relative
    /// to the previous reads of its reader. The step of a fault is kept for its retry. A failed
    /// read is no step: the program may repeat it, and the second read does not continue the first.
    fn record_step(&mut self, read: &ReadRecord, begin: u64, end: u64) -> Step {
        if matches!(read.outcome, ReadOutcome::Error(_)) {
            return Step { is_sequential: false, is_adjacent: false, run_bytes: 0 };
        }
        let reader = (read.thread, read.file, read.descriptor);
        let step = self.pattern.record_read(reader, begin, end);
        let page = (read.file, read.offset / PAGE_BYTES);
        let is_fault = read.way == ReadMethod::Fault;
        let thread = self.threads.entry(read.thread).or_default();
        thread.last_fault_step = is_fault.then_some((page, step));
        step
    }

    /// Counts a read by file, thread, method and size.
    fn count_read(&mut self, read: &ReadRecord, got_bytes: u64) {
        self.reads += 1;
        self.got_bytes += got_bytes;
        if let ReadOutcome::Error(error) = read.outcome {
            *self.errors.entry(error).or_default() += 1;
        }
        *self.by_method.entry(read.way).or_default() += 1;
        // A copy that found no byte left has no size.
        if let Some(size_log2) = read.asked_bytes.checked_ilog2() {
            *self.sizes.entry(size_log2).or_default() += 1;
        }
        let file = self.files.entry(read.file).or_default();
        file.reads += 1;
        file.submitted_reads += u64::from(matches!(read.way, ReadMethod::Aio | ReadMethod::Uring));
        file.got_bytes += got_bytes;
        let thread = self.threads.entry(read.thread).or_default();
        thread.reads += 1;
        thread.got_bytes += got_bytes;
    }

    /// Charges a wait to its cause, and adds it to the sums of file, thread and device.
    fn charge_wait(&mut self, read: &ReadRecord, wait: &ReadWait, waited_ns: u64) {
        let fetched_bytes = wait.fetched_bytes;
        let reader = (read.thread, read.file, read.descriptor);
        let file = self.files.entry(read.file).or_default();
        file.waits.add(waited_ns, fetched_bytes);
        if wait.is_sequential {
            file.ordered_waits.add(waited_ns, fetched_bytes);
        }
        let cause = cause::cause_of_wait(wait);
        file.charges.entry(cause).or_default().add(waited_ns, fetched_bytes);
        // The kernel's window has no effect on pages that an advice has brought in.
        let is_advised = file.advised.has(read.offset / PAGE_BYTES);
        if cause.is_none() && readahead::is_readahead_wait(wait) && !is_advised {
            file.readahead_waits.add(waited_ns, fetched_bytes);
            file.readahead_windows += readahead::windows_of_wait(wait);
            file.readahead_offset.get_or_insert(read.offset);
            if readahead::is_single_request(wait) {
                file.single_waits.add(waited_ns, fetched_bytes);
            }
        }
        // A wait for a small file is in a second sample: if small files are many, their cause takes
        // the charge.
        let charged = ChargedWait {
            file: read.file,
            thread: read.thread,
            cause,
            many_files: cause::many_files_cause(file, cause),
            offset: read.offset,
            fetched_bytes,
            bytes: wait.asked_bytes.max(fetched_bytes),
            waited_ns,
            is_announced: wait.is_announced,
        };
        // Waits of this run may move to the cause `Advice`, now or later.
        if let Some(run) = self.pattern.current_run(reader) {
            charge_run_to_advice(file, &mut run.provisional, wait, (cause, waited_ns));
        }
        self.threads.entry(read.thread).or_default().waited_ns += waited_ns;
        self.waited_ns += waited_ns;
        // A read is taken to end with its wait.
        let span @ (begin_ns, end_ns) = (read.end_ns.saturating_sub(waited_ns), read.end_ns);
        self.waits.add(begin_ns, end_ns);
        match read.way {
            ReadMethod::Fault => {}
            ReadMethod::Aio | ReadMethod::Uring => self.async_waits.add(begin_ns, end_ns),
            _ => self.call_waits.add(begin_ns, end_ns),
        }
        self.depth_sweep.add_wait(span, charged);
        // A wait for data in flight is for a request of unknown size.
        if fetched_bytes > 0 {
            self.writes.record_wait(file.device, span, fetched_bytes);
            self.other_reads.record_wait(file.device, span, fetched_bytes);
            self.stalls.record_wait(file.device, waited_ns, fetched_bytes);
            let device = self.devices.entry(file.device).or_default();
            device.costs.record_wait(read, waited_ns, fetched_bytes);
        }
        *self.wait_sizes.entry(waited_ns.max(1).ilog2()).or_default() += 1;
        // Samples earlier waits, once all requests during them are known.
        self.count_ended_waits();
    }

    /// Marks the requested pages as used, and adds them to the sample of the miss-ratio curve. For
    /// a fault, these are the pages that it shows to be used. The pages that it mapped may have
    /// been used, and are marked as mapped. `fault` is `None` for other reads.
    fn record_used_pages(&mut self, read: &ReadRecord, fault: Option<&FaultUse>, step: Step) {
        let called_pages = [PageRange::covering(read.offset, read.bytes_read())];
        let file = self.files.entry(read.file).or_default();
        if let Some(fault) = fault {
            file.mapped.add(fault.mapped.first, fault.mapped.end);
        }
        for pages in fault.map_or(&called_pages[..], |fault| &fault.used) {
            let is_fetched = file.fetched.has_any(pages.first, pages.end);
            let new_pages = file.requested.add(pages.first, pages.end);
            // A part is a contiguous range that was both requested and fetched. A read adjacent to
            // the last one extends its part.
            if is_fetched && new_pages > 0 {
                file.parts += u64::from(!step.is_adjacent);
                file.part_bytes += new_pages * PAGE_BYTES;
            }
            self.reuse.add_references(read.file, *pages);
        }
    }
}

impl FileData {
    /// Returns true if the program announced the page at an offset with WILLNEED. The kernel brings
    /// in a part of a long announcement only. Measured waits come with insertions, which show that
    /// part. Otherwise it is taken to be the first [`ADVISED_BYTES_MAX`] bytes, or the readahead
    /// window if that is larger.
    fn is_announced(&self, offset: u64, has_measured_waits: bool) -> bool {
        let pages = if has_measured_waits { &self.advised } else { &self.announced };
        pages.has(offset / PAGE_BYTES)
    }
}

/// Returns the number of bytes that a read used, and the range that it requested: first byte and
/// end (exclusive). A fault uses the pages that it shows to be used, and requests the pages that it
/// mapped. `fault` is `None` for other reads and for the retry of a fault.
fn used_bytes_and_range(read: &ReadRecord, fault: Option<&FaultUse>) -> (u64, (u64, u64)) {
    let Some(FaultUse { mapped, used, .. }) = fault else {
        return (read.bytes_read(), (read.offset, read.offset + read.asked_bytes));
    };
    let used_pages: u64 = used.iter().map(|range| range.count()).sum();
    (used_pages * PAGE_BYTES, (mapped.first * PAGE_BYTES, mapped.end * PAGE_BYTES))
}

/// Returns true if an advice caused the insertion of pages. Both have the same file, the ranges
/// share a byte, and the advice ended after the insertion.
fn is_caused_by(advice: &AdviceGiven, inserted: &Inserted) -> bool {
    let overlaps =
        inserted.offset < advice.end() && inserted.offset + inserted.bytes > advice.offset;
    advice.file == inserted.file && inserted.at_ns <= advice.at_ns && overlaps
}

/// Moves the waits of a run to [`WaitCause::Advice`] once it has [`ORDERED_BYTES`] (128 KiB), long
/// enough to show that the hint is wrong. A shorter run may be a record that is read whole. Its
/// waits are collected in `provisional`. A read that is not in order, or without a random hint,
/// clears it. Only waits charged to page faults or to small reads are moved.
fn charge_run_to_advice(
    file: &mut FileData,
    provisional: &mut Vec<(Option<WaitCause>, WaitSum)>,
    wait: &ReadWait,
    (cause, waited_ns): (Option<WaitCause>, u64),
) {
    if wait.hint != Some(AdviceType::Random) || !wait.is_sequential {
        provisional.clear();
        return;
    }
    // The run is still short: its waits are kept for a later move.
    if wait.run_bytes < ORDERED_BYTES {
        let charge = WaitSum { waits: 1, ns: waited_ns, bytes: wait.fetched_bytes };
        provisional.push((cause, charge));
        return;
    }
    // This read of a long run is charged to `Advice` already. The earlier ones follow.
    for (cause, charge) in provisional.drain(..) {
        if matches!(cause, Some(WaitCause::PageFaults | WaitCause::Small)) {
            file.charges.entry(cause).or_default().subtract(&charge);
            file.charges.entry(Some(WaitCause::Advice)).or_default().add_all(&charge);
        }
    }
}
