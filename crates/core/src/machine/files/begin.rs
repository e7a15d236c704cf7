//! The beginning of a read: its cached pages are pinned, the policy adds pages, and all absent
//! pages become requests.
//!
//! The *demand* is the range of the requested pages; all other added pages are prefetched. A *run*
//! is a range of added pages. A *window* is a group of runs that is sent in requests of its own.
//! `NO_FRAME` stands for the frame of an absent page. *Credit* limits the prefetch of a file by the
//! use of its earlier prefetched pages. *Unready* pages are pages of memory (swap) that are mapped,
//! dirty or being written: their frames are not available now.

use super::pages::{
    FilePages, NO_FRAME, ReadProgress, join_adjacent, move_demand_to_front, split_run,
};
use super::{FileTransfer, Handle, MachineFiles, ReadState, TransferKind};
use crate::cache::{Cache, FileId, FrameState};
use crate::machine::meter::Meter;
use crate::machine::queue::{RequestContent, SearchTail, Waiter};
use crate::machine::{ReadAccess, ReadError, ReadId, SharedState};
use crate::readahead::{Evidence, ReadRequest};
use crate::request::{DeviceError, Need, Op, ProcessId, Request};
use crate::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, SECTOR_BYTES, Time};

impl MachineFiles {
    /// Pins the cached pages of a read, and reserves frames for the absent ones. The caller has
    /// checked that the budget has room for the read; `begin` counts its pages there. Returns
    /// false, with nothing pinned or reserved, if too few frames can be freed because other threads
    /// are copying from them. The caller tries again later.
    pub(in crate::machine) fn try_reserve_memory(
        &mut self,
        base: &mut SharedState,
        id: ReadId,
    ) -> bool {
        let read = &mut self.reads[id.0 as usize];
        let file = self.handles[read.transfer.handle.0 as usize].file;
        let cache = &mut base.frames.cache;
        let mut absent_pages = 0;
        for page in read.range.pages() {
            let frame = cache.find(file, page);
            match frame {
                Some(frame) => cache.pin(frame),
                None => absent_pages += 1,
            }
            read.frames.push(frame.unwrap_or(NO_FRAME));
        }
        // After the pins: other pages may be evicted for the reservation.
        let is_reserved = cache.reserve_frames(absent_pages);
        if !is_reserved {
            let pinned_frames = read.frames.drain(..).filter(|&frame| frame != NO_FRAME);
            pinned_frames.for_each(|frame| cache.unpin(frame));
        }
        is_reserved
    }

    /// Begins a buffered read, or a fault on a mapped file, whose memory is
    /// [reserved](MachineFiles::try_reserve_memory). The policy adds pages. Their requests are
    /// sent, and the read waits for them or ends. The bytes that are cached count as hits.
    pub(in crate::machine) fn begin(&mut self, now: Time, base: &mut SharedState, id: ReadId) {
        let read_request = self.read_request(base, id);
        let read = &mut self.reads[id.0 as usize];
        let kind = read.kind;
        read.state = ReadState::Active;
        base.queue.evidence.now = now;
        base.frames.budget.pinned_pages += read.range.count();
        count_hits(&base.frames.cache, read, &mut base.queue.meter);

        let (handle, mut pages) = self.pages_for(base, id);
        match kind {
            TransferKind::Read(ReadAccess::Fault) => {
                handle.policy.fault(pages.demand.first, &read_request, &mut pages)
            }
            // A buffered read: direct reads and writes start by `start_direct`.
            _ => handle.policy.read(&read_request, &mut pages),
        }
        let first_page = pages.demand.first;
        let progress = pages.add_next_requested(&mut *handle.policy, &read_request, first_page);
        self.send_and_wait(now, base, id, progress);
    }

    /// Continues a read whose requests have all completed: requests its next pages, or ends it.
    pub(super) fn continue_read(&mut self, now: Time, base: &mut SharedState, id: ReadId) {
        let read = self.file_transfer(id);
        // `cursor` is the page up to which absent pages have been requested.
        let (cursor, end_page) = (read.cursor, read.range.end);
        if cursor >= end_page {
            return self.finish(base, id);
        }
        let progress = if read.error.is_some() {
            // A failed read skips its remaining pages, but waits for pinned ones that are in
            // flight.
            ReadProgress::Until { end_page }
        } else {
            let read_request = self.read_request(base, id);
            let (handle, mut pages) = self.pages_for(base, id);
            pages.add_next_requested(&mut *handle.policy, &read_request, cursor)
        };
        self.send_and_wait(now, base, id, progress);
    }

    /// Sends the pages that one step of a read has added as device requests. Then the read waits
    /// for its requests in flight, or ends if there are none. `progress` is the result of the step.
    /// It has added the pages all together (`AllAdded`), or one by one up to a page (`Until`).
    ///
    /// `Stuck` means that a page failed for another read, and that no frame is free for a second
    /// try. A failed frame does not store its error, so this read reports a medium error. It adds
    /// no more pages, but still waits for its requests in flight, because it has pinned their
    /// frames.
    fn send_and_wait(
        &mut self,
        now: Time,
        base: &mut SharedState,
        id: ReadId,
        progress: ReadProgress,
    ) {
        let read = &mut self.reads[id.0 as usize];
        let (demand, transfer) = (read.range, &read.transfer);
        if let ReadProgress::Stuck { failed_page } = progress {
            let offset = (failed_page * PAGE_BYTES).max(transfer.offset);
            read.error = Some(ReadError::Device { offset, error: DeviceError::Medium });
        }
        let end_page = match progress {
            ReadProgress::Until { end_page } => end_page,
            ReadProgress::AllAdded | ReadProgress::Stuck { .. } => demand.end,
        };
        let first_page = core::mem::replace(&mut read.cursor, end_page);
        let (file, process) =
            (self.handles[transfer.handle.0 as usize].file, read.transfer.process);
        // Only an `AllAdded` step has added all absent pages of the demand together. After any
        // other step the policy chooses the requests, page by page.
        let is_demand_whole = progress == ReadProgress::AllAdded;
        self.send_file_runs(now, base, file, demand, is_demand_whole, process);
        self.wait_for_in_flight(base, id, PageRange { first: first_page, end: end_page });
    }

    /// Prefetches the absent pages of `range`, which must end within the file, as far as memory
    /// allows.
    pub(super) fn read_ahead(
        &mut self,
        now: Time,
        base: &mut SharedState,
        file: FileId,
        range: PageRange,
        process: ProcessId,
    ) {
        let unready_pages = base.frames.unready_pages();
        let mut pages = FilePages {
            cache: &mut base.frames.cache,
            file,
            file_pages: range.end,
            demand: PageRange::default(),
            frames: &mut [],
            runs: &mut self.runs,
            budget: &mut base.frames.budget,
            unready_pages,
            // The caller has asked for these pages: credit limits only the policy.
            is_on_credit: false,
            evidence: Evidence {
                device: &mut base.queue.evidence,
                file: &mut self.files[file.0 as usize].evidence,
            },
        };
        // It adds runs to `runs`, which the call below sends.
        pages.add_window(range);
        // Without a demand it makes no difference if that is sent whole.
        let no_demand = PageRange::default();
        let is_demand_whole = true;
        self.send_file_runs(now, base, file, no_demand, is_demand_whole, process);
    }

    /// The description of a read for the policy. Its bytes may reach past the end of the file.
    /// `is_congested` is true if the queue is so full that some policies stop prefetching.
    pub(super) fn read_request(&self, base: &SharedState, id: ReadId) -> ReadRequest {
        let transfer = &self.file_transfer(id).transfer;
        ReadRequest {
            offset: transfer.offset,
            bytes: transfer.bytes,
            file_bytes: self.file_bytes(transfer.handle),
            is_congested: base.queue.is_congested(),
        }
    }

    /// Returns the handle of a read, and the pages of its file as the policy of that handle sees
    /// and extends them. Pages that the policy adds get frames at once. They are collected in
    /// `runs`, which the caller sends by `send_file_runs`. `runs` is empty here, because each send
    /// clears it. Credit limits the prefetch only if the policy is subject to it.
    pub(super) fn pages_for<'a>(
        &'a mut self,
        base: &'a mut SharedState,
        id: ReadId,
    ) -> (&'a mut Handle, FilePages<'a>) {
        let read = &mut self.reads[id.0 as usize];
        let handle = &mut self.handles[read.transfer.handle.0 as usize];
        let file = &mut self.files[handle.file.0 as usize];
        let unready_pages = base.frames.unready_pages();
        let pages = FilePages {
            cache: &mut base.frames.cache,
            file: handle.file,
            file_pages: file.bytes.div_ceil(PAGE_BYTES),
            demand: read.range,
            frames: &mut read.frames,
            runs: &mut self.runs,
            budget: &mut base.frames.budget,
            unready_pages,
            // Credit is earned by used pages. The program uses mapped pages without a call, so a
            // fault on a mapping would never earn credit, and is exempt.
            is_on_credit: handle.policy.is_limited_by_credit()
                && read.kind != TransferKind::Read(ReadAccess::Fault),
            evidence: Evidence { device: &mut base.queue.evidence, file: &mut file.evidence },
        };
        (handle, pages)
    }

    /// Makes the read wait for every request in flight that delivers one of these pages. Completes
    /// the read if there is none. Pages with their data in the cache, and failed ones, need no
    /// wait.
    fn wait_for_in_flight(&mut self, base: &mut SharedState, id: ReadId, pages: PageRange) {
        let read = &mut self.reads[id.0 as usize];
        let index = |page: u64| (page - read.range.first) as usize;
        let mut last_request = None;
        for &frame in &read.frames[index(pages.first)..index(pages.end)] {
            if frame != NO_FRAME
                && let FrameState::InFlight(request) = base.frames.cache.state(frame)
                && last_request != Some(request)
            {
                base.queue.add_waiter(request, Waiter::Read(id));
                read.pending_requests += 1;
                // Neighbouring pages mostly have the same request, which is waited for once. A read
                // that is registered twice at a request is also counted twice at its end.
                last_request = Some(request);
            }
        }
        // No page is in flight, so the read has reached its end: `add_next_requested` stops earlier
        // only at a page in flight.
        if read.pending_requests == 0 {
            self.finish(base, id);
        }
    }

    /// Creates device requests for the runs of added pages, and clears the runs. With
    /// `is_demand_whole`, the requested pages (`demand`) are joined across windows, and each absent
    /// run of them is sent whole. They are sent first, because the reader waits for them.
    fn send_file_runs(
        &mut self,
        now: Time,
        base: &mut SharedState,
        file: FileId,
        demand: PageRange,
        is_demand_whole: bool,
        process: ProcessId,
    ) {
        let pages_max = base.queue.request_pages_max();
        let start_sector = self.file(file).start_sector;
        let priority = base.queue.priority(process);
        // `Prefetch`, or `Speculative` if most of the file's earlier prefetched pages were not
        // used. A scheduler may cancel a speculative request.
        let prefetch_need = base.frames.cache.credit(file).need();
        // Requested pages are joined across windows. An empty run separates two windows.
        let demand_run_count =
            if is_demand_whole { move_demand_to_front(&mut self.runs, demand) } else { 0 };
        let (demand_runs, windows) = self.runs.split_at_mut(demand_run_count);
        // Sends the runs of one window as requests, of the largest size where a run is longer.
        let mut send = |window: &mut [PageRange]| {
            // The joined runs are the first `joined` ones.
            let joined = join_adjacent(window);
            for &run in &window[..joined] {
                split_run(run, demand, pages_max, |range| {
                    // The part of the demand in this request; empty if it only prefetches.
                    let requested = PageRange {
                        first: range.first.max(demand.first),
                        end: range.end.min(demand.end),
                    };
                    let ahead_pages = (range.count() - requested.count()) as u32;
                    let request = Request {
                        op: Op::Read,
                        start: start_sector + range.first * PAGE_SECTORS,
                        sectors: (range.count() * PAGE_SECTORS) as u32,
                        process,
                        priority,
                        // To a scheduler every read is synchronous, prefetch included.
                        is_sync: true,
                        need: if requested.is_empty() { prefetch_need } else { Need::Demand },
                    };
                    let content = RequestContent::Pages {
                        file,
                        range,
                        ahead_pages,
                        search_tail: SearchTail::none(range),
                    };
                    let request_id = base.queue.send(now, request, content);
                    // Each page in flight stores the request that delivers it.
                    base.frames.cache.set_run_request(file, range, request_id);
                });
            }
        };
        send(demand_runs);
        windows.split_mut(|run| run.is_empty()).for_each(send);
        self.runs.clear();
    }

    /// Sends a direct transfer (without the cache) as requests of the device's largest size.
    /// Completes it at once if it is empty.
    pub(in crate::machine) fn start_direct(
        &mut self,
        now: Time,
        base: &mut SharedState,
        id: ReadId,
        op: Op,
        is_sync: bool,
    ) {
        let read = &mut self.reads[id.0 as usize];
        read.state = ReadState::Active;
        let file = self.handles[read.transfer.handle.0 as usize].file;
        let start = self.files[file.0 as usize].start_sector + read.transfer.offset / SECTOR_BYTES;
        let process = read.transfer.process;
        let priority = base.queue.priority(process);
        // The last piece reaches to the end of the sector, or of the device's alignment.
        let alignment_sectors = u64::from(base.queue.caps().alignment_sectors);
        let sectors = read.bytes.div_ceil(SECTOR_BYTES).next_multiple_of(alignment_sectors);
        if sectors == 0 {
            return self.finish(base, id);
        }
        // The largest request, rounded down to the alignment. It is never 0: a device takes at
        // least a page, and its alignment is at most a page.
        let piece_sectors_max = u64::from(base.queue.caps().request_sectors_max)
            / alignment_sectors
            * alignment_sectors;
        read.pending_requests = sectors.div_ceil(piece_sectors_max) as u32;
        // One request for each piece.
        let mut sent_sectors = 0;
        while sent_sectors < sectors {
            let piece_sectors = piece_sectors_max.min(sectors - sent_sectors);
            let request = Request {
                op,
                start: start + sent_sectors,
                sectors: piece_sectors as u32,
                process,
                priority,
                is_sync,
                // `Demand` if the caller waits for the transfer, else `Prefetch`.
                need: Need::of(is_sync),
            };
            // The content names the transfer: no waiter is added to the request.
            let content = RequestContent::Direct { read: id, offset: sent_sectors * SECTOR_BYTES };
            base.queue.send(now, request, content);
            sent_sectors += piece_sectors;
        }
    }
}

/// Adds the bytes of the read whose pages were cached when it began to the meter's hits. A page
/// that is still being read is no hit.
fn count_hits(cache: &Cache, read: &FileTransfer, meter: &mut Meter) {
    for (page, &frame) in read.range.pages().zip(&read.frames) {
        if frame != NO_FRAME && cache.state(frame) == FrameState::Filled {
            let start = read.transfer.offset.max(page * PAGE_BYTES);
            let end = (read.transfer.offset + read.bytes).min((page + 1) * PAGE_BYTES);
            meter.hit_bytes += end - start;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Machine, Transfer};
    use crate::policy::Spec;
    use crate::request::{DeviceCaps, ProcessId};

    /// The file begins at sector 800. A read of 20,480 bytes (40 sectors) from byte 4,096 on begins
    /// at sector 808. The largest request has 20 sectors, and with the alignment of eight only 16.
    #[test]
    fn direct_read_is_split_into_the_largest_aligned_requests() {
        let caps = DeviceCaps {
            sectors: 1 << 20,
            alignment_sectors: 8,
            request_sectors_max: 20,
            depth_max: 8,
            is_rotational: false,
        };
        let config = Config { scheduler: Spec::plain("noop"), ..Config::new(caps) };
        let mut machine = Machine::new(config).unwrap();
        let file = machine.add_file(1 << 20, 800).unwrap();
        let handle = machine.open(file);
        let process = ProcessId(0);
        let transfer = Transfer { handle, process, offset: 4096, bytes: 20_480, tag: 0 };
        machine.read(Time::ZERO, ReadAccess::Direct, transfer).unwrap();
        let sent = std::iter::from_fn(|| machine.poll_request(Time::ZERO));
        let pieces: alloc::vec::Vec<_> =
            sent.map(|request| (request.start, request.sectors)).collect();
        assert_eq!(pieces, [(808, 16), (824, 16), (840, 8)]);
    }
}
