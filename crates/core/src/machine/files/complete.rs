//! The end of requests for data of files: pages are filled or fail, and their readers go on.
//!
//! A *part* is a request as it was sent; the scheduler may have merged it with others
//! (`is_merged`) into one request of the device. Its *waiters* are the reads that need pages of it.
//! After a failure, the part is tried again in pieces: an error reaches only reads of bad data.
//! Remote storage has no bad pages: there a failure is one of the whole request, and only its
//! readahead is not tried again.

use alloc::vec::Vec;

use super::{MachineFiles, TransferKind};
use crate::cache::FileId;
use crate::machine::queue::{EndedPart, PartOutcome, RequestContent, SearchTail, Waiter};
use crate::machine::{Machine, ReadError, ReadId, SharedState};
use crate::request::{DeviceError, Need, Request};
use crate::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, Time};

impl Machine {
    /// Makes each later failure of a read one of its whole request, as for remote storage, where
    /// no single page is bad. All reads of a merged request then fail together, and no bad page is
    /// searched for. A request with readahead before or behind the needed pages is tried once again
    /// without it. By default reads of the good pages of a failed request succeed, at the cost of
    /// further requests.
    pub fn fail_requests_whole(&mut self) {
        self.files.fails_whole = true;
    }
}

impl MachineFiles {
    /// Processes the end of a request for pages, successful or not: fills or fails its pages, and
    /// advances the reads that wait for it. After a failure, some pages may be sent again instead.
    /// Returns the list of waiters, all processed, for its memory to be reused.
    pub(in crate::machine) fn complete_pages(
        &mut self,
        now: Time,
        base: &mut SharedState,
        ended: EndedPart,
        pages: RequestPages,
    ) -> Vec<Waiter> {
        let EndedPart { request, outcome, is_merged, waiters, .. } = ended;
        let RequestPages { file, range: tried_pages, .. } = pages;
        // Without a search these are the tried pages.
        let range = pages.with_search_tail();
        // The bad data may be data that a waiter does not need.
        if let PartOutcome::Failed(_) = outcome
            && self.has_unneeded_data(&waiters, range, is_merged)
        {
            self.retry_separately(base, request, file, range, &waiters);
            return waiters;
        }
        // Without a waiter the search would cost requests for pages that no read needs.
        let may_search = !self.fails_whole && !waiters.is_empty();
        if let Some(next_try) = pages.next_search_try(outcome).filter(|_| may_search) {
            // The search for the bad page goes on. The pages before the next try are good.
            base.frames.cache.fill_run(file, tried_pages.clipped(next_try.range.first));
            self.continue_search(now, base, request, next_try, &waiters);
            return waiters;
        }
        // The good pages are filled, the others fail. Pages of the search tail fail untried: each
        // waiter needs all pages of the range, and gets the error in any case.
        let good_end_byte = match outcome {
            PartOutcome::Moved(bytes) => range.first * PAGE_BYTES + bytes,
            PartOutcome::Failed(_) => range.first * PAGE_BYTES,
        };
        // The last page of a file is good although the device moved only a part of it: the file
        // ends there.
        let good_end_page = match good_end_byte < self.file(file).bytes {
            true => good_end_byte / PAGE_BYTES,
            false => range.end,
        };
        let cache = &mut base.frames.cache;
        cache.fill_run(file, range.clipped(good_end_page));
        // The scheduler cancelled a request that nothing waits for. Its pages then count neither as
        // used nor as wasted; `fail` counts an unused prefetched page as wasted.
        let was_withdrawn =
            outcome == PartOutcome::Failed(DeviceError::Cancelled) && waiters.is_empty();
        let bad_pages = PageRange { first: good_end_page, end: range.end };
        for page in bad_pages.pages() {
            let frame = cache.find(file, page).expect("a page in flight is in its table");
            if was_withdrawn { cache.cancel_prefetch(frame) } else { cache.fail(frame) }
        }
        for id in waiters.iter().copied().map(waiting_read) {
            self.record_bad_pages(id, bad_pages, outcome, good_end_byte);
            let read = self.file_transfer_mut(id);
            read.pending_requests -= 1;
            if read.pending_requests == 0 {
                self.continue_read(now, base, id);
            }
        }
        waiters
    }

    /// Sets the error of a read at the first of `bad_pages` that it needs. `outcome` is the outcome
    /// of the request for them, which delivered the bytes of the file before `good_end_byte`. No
    /// effect if the read needs none of them, or has an error at no higher offset. The read then
    /// adds no more pages, and ends with the error.
    fn record_bad_pages(
        &mut self,
        id: ReadId,
        bad_pages: PageRange,
        outcome: PartOutcome,
        good_end_byte: u64,
    ) {
        let read = self.file_transfer_mut(id);
        let bad_page = bad_pages.first.max(read.range.first);
        if !bad_pages.contains(bad_page) || !read.range.contains(bad_page) {
            return;
        }
        let offset = (bad_page * PAGE_BYTES).max(read.transfer.offset);
        let error = match outcome {
            PartOutcome::Failed(error) => ReadError::Device { offset, error },
            // The device moved less than the pages: the file ends there.
            PartOutcome::Moved(_) => ReadError::Shrunk { offset: good_end_byte.max(offset) },
        };
        // With several failed requests, the lowest missing byte counts.
        let is_later =
            |known: ReadError| known.offset().is_some_and(|known_offset| known_offset > offset);
        if read.error.is_none_or(is_later) {
            read.error = Some(error);
        }
    }

    /// Processes the end of a piece of a direct transfer. `offset` is the position of the piece in
    /// the transfer, in bytes. The first error to arrive counts, because the whole transfer fails
    /// in any case. Completes the transfer after its last piece. Returns the list of waiters, which
    /// is empty, for its memory to be reused: the content of the request names the transfer.
    pub(in crate::machine) fn complete_direct(
        &mut self,
        base: &mut SharedState,
        ended: EndedPart,
        id: ReadId,
        offset: u64,
    ) -> Vec<Waiter> {
        let EndedPart { request, content, outcome, is_merged, waiters } = ended;
        if let PartOutcome::Failed(_) = outcome
            && is_merged
            && !self.fails_whole
        {
            // The error may be in a part that belongs to another transfer.
            base.queue.enqueue_retry(request, content);
            // The transfer goes on waiting, for the retry of the same piece.
            return waiters;
        }
        // The last piece reaches past the requested bytes, to the alignment.
        let read = self.file_transfer_mut(id);
        let file_offset = read.transfer.offset + offset;
        let expected_bytes = request.bytes().min(read.bytes - offset);
        let error = match outcome {
            PartOutcome::Failed(error) => Some(ReadError::Device { offset: file_offset, error }),
            PartOutcome::Moved(bytes) if bytes < expected_bytes => {
                Some(ReadError::Shrunk { offset: file_offset + bytes })
            }
            PartOutcome::Moved(_) => None,
        };
        read.error = read.error.or(error);
        read.pending_requests -= 1;
        if read.pending_requests == 0 {
            if read.kind == TransferKind::Write {
                // Pages read from the old data while the write was in progress are dropped too.
                self.forget_overwritten(base, id);
            }
            self.finish(base, id);
        }
        waiters
    }

    /// Drops the cached pages that a write overwrites. Pages in flight are dropped on arrival.
    /// Called before a write and again after it, because a read may add old data meanwhile.
    pub(super) fn forget_overwritten(&mut self, base: &mut SharedState, write: ReadId) {
        let transfer = self.file_transfer(write).transfer;
        let file = self.file_of(transfer.handle);
        let range = PageRange::covering(transfer.offset, transfer.bytes);
        base.frames.cache.invalidate(file, range);
    }

    /// Returns true if a failed request carried data that one of its waiters did not need: pages of
    /// `range`, or other merged parts (`is_merged`). The bad data may then be data that this waiter
    /// did not need. The pages of the waiters are then retried separately. False without a waiter.
    /// If requests fail as a whole, only pages before and behind all needed ones are unneeded.
    fn has_unneeded_data(&self, waiters: &[Waiter], range: PageRange, is_merged: bool) -> bool {
        if self.fails_whole {
            return !waiters.is_empty() && self.needed_by_all(waiters, range) != range;
        }
        let needs_all = |&waiter: &Waiter| {
            let needed = self.file_transfer(waiting_read(waiter)).range;
            needed.first <= range.first && range.end <= needed.end
        };
        !waiters.is_empty() && (is_merged || !waiters.iter().all(needs_all))
    }

    /// The pages of `range` from the first to the last one that a waiter needs. There is a waiter,
    /// and each needs a page of `range`.
    fn needed_by_all(&self, waiters: &[Waiter], range: PageRange) -> PageRange {
        let needed = |&waiter: &Waiter| self.file_transfer(waiting_read(waiter)).range;
        let first = waiters.iter().map(|waiter| needed(waiter).first).min().unwrap_or(range.first);
        let end = waiters.iter().map(|waiter| needed(waiter).end).max().unwrap_or(range.end);
        PageRange { first: first.max(range.first), end: end.min(range.end) }
    }

    /// Retries the needed pages of a failed request. They are split so that all waiters of a piece
    /// need all of it; unneeded pages leave the cache. A piece that fails again then fails exactly
    /// its waiters. If requests fail as a whole, the needed pages are one piece, for all waiters.
    fn retry_separately(
        &mut self,
        base: &mut SharedState,
        request: Request,
        file: FileId,
        range: PageRange,
        waiters: &[Waiter],
    ) {
        let readers: Vec<ReadId> = waiters.iter().copied().map(waiting_read).collect();
        let needed: Vec<PageRange> = match self.fails_whole {
            true => [self.needed_by_all(waiters, range)].into(),
            false => readers.iter().map(|read| self.file_transfer(*read).range).collect(),
        };
        // The boundaries of the pieces: all ends of the needed ranges that lie in the failed one.
        let mut cuts: Vec<u64> = [range.first, range.end].into();
        cuts.extend(needed.into_iter().flat_map(|needed| [needed.first, needed.end]));
        cuts.retain(|&page| range.first <= page && page <= range.end);
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            let piece = PageRange { first: pair[0], end: pair[1] };
            let frame_of = |base: &SharedState, page| {
                base.frames.cache.find(file, page).expect("a page in flight is in its table")
            };
            // No cut lies within the piece: a read that needs a page of it needs all of it, unless
            // requests fail as a whole.
            let needs_piece = |read: &&ReadId| {
                let needed = self.file_transfer(**read).range;
                needed.first < piece.end && piece.first < needed.end
            };
            let piece_readers: Vec<ReadId> = readers.iter().filter(needs_piece).copied().collect();
            if piece_readers.is_empty() {
                for page in piece.pages() {
                    let frame = frame_of(base, page);
                    base.frames.cache.fail(frame);
                }
                continue;
            }
            let pages = RequestPages { file, range: piece, search_tail: SearchTail::none(piece) };
            self.retry_pages(base, request, pages, &piece_readers);
        }
        // The failed request has ended for them; they wait for the retries.
        for read in readers {
            self.file_transfer_mut(read).pending_requests -= 1;
        }
    }

    /// Continues the search for the bad page of a failed request with the pages `next_try`. Waiters
    /// that need none of the remaining pages go on: their pages are good.
    fn continue_search(
        &mut self,
        now: Time,
        base: &mut SharedState,
        request: Request,
        next_try: RequestPages,
        waiters: &[Waiter],
    ) {
        let remaining = next_try.with_search_tail();
        let needs_some = |read: &ReadId| {
            let needed = self.file_transfer(*read).range;
            needed.first < remaining.end && remaining.first < needed.end
        };
        let readers: Vec<ReadId> =
            waiters.iter().copied().map(waiting_read).filter(needs_some).collect();
        self.retry_pages(base, request, next_try, &readers);
        // The failed request has ended for all waiters. The readers of the next try have that
        // pending now, so their counts stay above 0.
        for id in waiters.iter().copied().map(waiting_read) {
            let read = self.file_transfer_mut(id);
            read.pending_requests -= 1;
            if read.pending_requests == 0 {
                self.continue_read(now, base, id);
            }
        }
    }

    /// Sends the pages of a failed request again, in a request of their own. `readers` wait for it.
    /// The pages of the search tail refer to the new request as well. The retry bypasses the
    /// scheduler, so that it is not merged again. Operation, process and priority are taken from
    /// the request `failed`.
    fn retry_pages(
        &mut self,
        base: &mut SharedState,
        failed: Request,
        pages: RequestPages,
        readers: &[ReadId],
    ) {
        let RequestPages { file, range, search_tail } = pages;
        let start = self.file(file).start_sector + range.first * PAGE_SECTORS;
        let sectors = (range.count() * PAGE_SECTORS) as u32;
        // Waiting reads need these pages and have pinned them, so none counts as prefetched.
        let content = RequestContent::Pages { file, range, ahead_pages: 0, search_tail };
        // Its first waiter makes it a demand request.
        let request = Request { start, sectors, need: Need::Prefetch, ..failed };
        let retry = base.queue.enqueue_retry(request, content);
        base.frames.cache.set_run_request(file, pages.with_search_tail(), retry);
        for &read in readers {
            base.queue.add_waiter(retry, Waiter::Read(read));
            self.file_transfer_mut(read).pending_requests += 1;
        }
    }
}

/// The pages of a request, and the pages in flight behind them. After a failure, the first bad page
/// is searched for: each retry reads a part of the failed pages, and the rest stay in flight as its
/// search tail.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct RequestPages {
    /// The file of the pages.
    pub(in crate::machine) file: FileId,
    /// The pages that the request reads.
    pub(in crate::machine) range: PageRange,
    /// Bounds behind `range`: the bad page lies before `suspect_end`, and the failed pages end at
    /// `end`. Both are the end of `range` without a search.
    pub(in crate::machine) search_tail: SearchTail,
}

impl RequestPages {
    /// The pages of the request, and the pages in flight behind them.
    fn with_search_tail(self) -> PageRange {
        PageRange { first: self.range.first, end: self.search_tail.end }
    }

    /// The next pages to try in the binary search for the first unreadable page: the first half of
    /// the suspects. Without a suspect left, all failed pages behind them. `None` if that page is
    /// found, if no page is left, or if the device did not report a bad page. A request of n
    /// pages takes log2(n) + 1 more, each of which may take seconds on a failing device.
    fn next_search_try(self, outcome: PartOutcome) -> Option<RequestPages> {
        let RequestPages { range, search_tail, .. } = self;
        let suspects = match outcome {
            // The bad page is one of the tried pages.
            PartOutcome::Failed(DeviceError::Medium) if range.count() > 1 => range,
            // The tried pages are good: the bad one is behind them.
            PartOutcome::Moved(bytes) if bytes == range.count() * PAGE_BYTES => {
                PageRange { first: range.end, end: search_tail.suspect_end }
            }
            // A single page failed: it is the bad one. Or the transfer was short, or failed for
            // another reason: no page is known to be bad.
            _ => return None,
        };
        if suspects.is_empty() {
            // The last suspect was read this time: no page has proved to be bad. The pages behind
            // it were never tried alone, and follow in one request.
            let rest = PageRange { first: suspects.first, end: search_tail.end };
            let search_tail = SearchTail::none(rest);
            return (!rest.is_empty()).then_some(RequestPages { range: rest, search_tail, ..self });
        }
        let half = PageRange::new(suspects.first, suspects.count().div_ceil(2));
        let search_tail = SearchTail { suspect_end: suspects.end, end: search_tail.end };
        Some(RequestPages { range: half, search_tail, ..self })
    }
}

/// The read that waits for pages of a file. Panics for a fault on memory, which never waits for
/// them.
fn waiting_read(waiter: Waiter) -> ReadId {
    match waiter {
        Waiter::Read(read) => read,
        Waiter::Fault(_) => unreachable!("faults wait for slots of the swap area"),
    }
}
