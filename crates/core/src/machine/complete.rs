//! Completions: pages are filled or fail, and their readers go on.

use super::*;
use crate::request::Outcome;

/// What became of one part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartOutcome {
    /// The first so many bytes of it are good; the rest is past the end.
    Moved(u64),
    Failed(DeviceError),
}

impl PartOutcome {
    /// How many whole pages of it are good, and what is wrong with the others.
    pub(super) fn good_pages(self) -> (u64, DeviceError) {
        match self {
            PartOutcome::Moved(bytes) => (bytes / PAGE_BYTES, DeviceError::Medium),
            PartOutcome::Failed(error) => (0, error),
        }
    }
}

impl ReadPath {
    /// The device has finished a request that [`poll_request`](ReadPath::poll_request) gave it.
    pub fn handle_completion(&mut self, now: Time, completion: Completion) {
        let head = completion.id;
        let merged = self.transfers.merged(head);
        self.meter.completed(now);
        self.evidence.estimate.completed(now, completion.not_before, head, merged.bytes());
        if !self.transfers.is_retry(head) {
            self.scheduler.complete(now, &merged);
        }
        let is_merged = self.transfers.next_part(head).is_some();
        let mut next = Some(head);
        while let Some(part) = next {
            next = self.transfers.next_part(part);
            let request = *self.transfers.request(part);
            let before = (request.start - merged.start) * SECTOR_BYTES;
            let outcome = match completion.outcome {
                Outcome::Done => PartOutcome::Moved(request.bytes()),
                Outcome::Short { bytes } => {
                    PartOutcome::Moved(bytes.saturating_sub(before).min(request.bytes()))
                }
                Outcome::Failed(error) => PartOutcome::Failed(error),
            };
            match self.transfers.content(part) {
                Content::Pages { file, range, ahead_pages, behind } => {
                    self.budget.ahead -= u64::from(ahead_pages);
                    let pages = Pages { file, range, behind };
                    self.complete_pages(now, request, pages, outcome, is_merged);
                }
                Content::Slots { range, ahead_pages } => {
                    self.budget.ahead -= u64::from(ahead_pages);
                    match request.op {
                        Op::Read => self.complete_swap_in(request, range, outcome, is_merged),
                        Op::Write => self.complete_swap_out(request, range, outcome, is_merged),
                    }
                }
                Content::Direct { read, offset } => {
                    self.complete_direct(now, request, read, offset, outcome, is_merged);
                }
            }
        }
        self.admit(now);
    }

    fn complete_pages(
        &mut self,
        now: Time,
        request: Request,
        pages: Pages,
        outcome: PartOutcome,
        is_merged: bool,
    ) {
        let Pages { file, range: tried, .. } = pages;
        let range = pages.whole();
        let waiters = self.transfers.close(request.id);
        if let PartOutcome::Failed(_) = outcome
            && self.concerns_others(&waiters, range, is_merged)
        {
            self.isolate(request, file, range, &waiters);
            return self.transfers.recycle(request.id, waiters);
        }
        if let Some(next) = pages.search(outcome).filter(|_| !waiters.is_empty()) {
            for page in tried.first..next.range.first {
                let frame = self.cache.find(file, page).expect("a page in flight is in its table");
                self.cache.fill(frame);
            }
            self.try_next(now, request, next, &waiters);
            return self.transfers.recycle(request.id, waiters);
        }
        let file_bytes = self.files[file.0 as usize].bytes;
        let good_end = match outcome {
            PartOutcome::Moved(bytes) => range.first * PAGE_BYTES + bytes,
            PartOutcome::Failed(_) => range.first * PAGE_BYTES,
        };
        // The last page of a file is good though the device moved only a part of it.
        let good = if good_end < file_bytes { good_end / PAGE_BYTES } else { range.end };
        for page in range.pages() {
            let frame = self.cache.find(file, page).expect("a page in flight is in its table");
            if page < good { self.cache.fill(frame) } else { self.cache.fail(frame) }
        }
        let first_bad = range.contains(good).then_some(good);
        for &read in &waiters {
            let slot = &mut self.reads[read.0 as usize];
            slot.pending -= 1;
            if let Some(bad) = first_bad.map(|page| page.max(slot.range.first))
                && range.contains(bad)
                && slot.range.contains(bad)
            {
                let offset = (bad * PAGE_BYTES).max(slot.transfer.offset);
                let error = match outcome {
                    PartOutcome::Failed(error) => ReadError::Device { offset, error },
                    PartOutcome::Moved(_) => ReadError::Shrunk { offset: good_end.max(offset) },
                };
                // Of several requests the first byte that is missing counts.
                let is_behind = |before: ReadError| before.offset().is_some_and(|at| at > offset);
                if slot.error.is_none_or(is_behind) {
                    slot.error = Some(error);
                }
            }
            if slot.pending == 0 {
                self.advance(now, read);
            }
        }
        self.transfers.recycle(request.id, waiters);
    }

    fn complete_direct(
        &mut self,
        now: Time,
        request: Request,
        read: ReadId,
        offset: u64,
        outcome: PartOutcome,
        is_merged: bool,
    ) {
        let waiters = self.transfers.close(request.id);
        self.transfers.recycle(request.id, waiters);
        if let PartOutcome::Failed(_) = outcome
            && is_merged
        {
            // The error may lie in a part that belongs to somebody else.
            let again = self.transfers.open_retry(request, Content::Direct { read, offset });
            return self.retries.push_back(again);
        }
        let slot = &mut self.reads[read.0 as usize];
        let at = slot.transfer.offset + offset;
        let due = request.bytes().min(slot.bytes - offset);
        let error = match outcome {
            PartOutcome::Failed(error) => Some(ReadError::Device { offset: at, error }),
            PartOutcome::Moved(bytes) if bytes < due => {
                Some(ReadError::Shrunk { offset: at + bytes })
            }
            PartOutcome::Moved(_) => None,
        };
        slot.error = slot.error.or(error);
        slot.pending -= 1;
        let is_over = slot.pending == 0;
        if is_over && matches!(slot.kind, Kind::Write { .. }) {
            // What was read from the old bytes while the write was on its way goes too.
            self.forget_overwritten(read);
        }
        if is_over {
            self.advance(now, read);
        }
    }

    /// Whether a failed transfer carried bytes that one of its waiters did not
    /// need: then its failure does not tell whose bytes are bad.
    fn concerns_others(&self, waiters: &[ReadId], range: PageRange, is_merged: bool) -> bool {
        let needs_all = |read: &ReadId| {
            let needed = self.reads[read.0 as usize].range;
            needed.first <= range.first && range.end <= needed.end
        };
        !waiters.is_empty() && (is_merged || !waiters.iter().all(needs_all))
    }

    /// Tries the needed pages of a failed transfer again, cut so that each
    /// piece is needed whole by everybody who waits for it; what nobody needs
    /// leaves the cache. A piece that fails again then fails just its waiters.
    fn isolate(&mut self, request: Request, file: FileId, range: PageRange, waiters: &[ReadId]) {
        let needed = |read: ReadId| self.reads[read.0 as usize].range;
        let mut cuts: Vec<u64> = [range.first, range.end].into();
        cuts.extend(waiters.iter().flat_map(|&read| [needed(read).first, needed(read).end]));
        cuts.retain(|&page| range.first <= page && page <= range.end);
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            let piece = PageRange { first: pair[0], end: pair[1] };
            let readers: Vec<ReadId> = waiters
                .iter()
                .copied()
                .filter(|&read| self.reads[read.0 as usize].range.contains(piece.first))
                .collect();
            if readers.is_empty() {
                for page in piece.pages() {
                    let frame =
                        self.cache.find(file, page).expect("a page in flight is in its table");
                    self.cache.fail(frame);
                }
                continue;
            }
            let piece = Pages { file, range: piece, behind: Behind::none(piece) };
            self.retry(request, piece, &readers);
        }
        for &read in waiters {
            self.reads[read.0 as usize].pending -= 1;
        }
    }

    /// Goes on with the search for the bad page of a failed transfer: those who need nothing
    /// of what is left are served.
    fn try_next(&mut self, now: Time, request: Request, next: Pages, waiters: &[ReadId]) {
        let left = next.whole();
        let needs_some = |read: &&ReadId| {
            let needed = self.reads[read.0 as usize].range;
            needed.first < left.end && left.first < needed.end
        };
        let readers: Vec<ReadId> = waiters.iter().filter(needs_some).copied().collect();
        self.retry(request, next, &readers);
        for &read in waiters {
            let slot = &mut self.reads[read.0 as usize];
            slot.pending -= 1;
            if slot.pending == 0 {
                self.advance(now, read);
            }
        }
    }

    /// Has pages of a request that failed tried again on their own, for these readers.
    fn retry(&mut self, request: Request, pages: Pages, readers: &[ReadId]) {
        let Pages { file, range, behind } = pages;
        let start = self.files[file.0 as usize].start_sector + range.first * PAGE_SECTORS;
        let sectors = (range.count() * PAGE_SECTORS) as u32;
        let content = Content::Pages { file, range, ahead_pages: 0, behind };
        let again = self.transfers.open_retry(Request { start, sectors, ..request }, content);
        self.cache.carry_run(file, pages.whole(), again.id);
        for &read in readers {
            self.transfers.wait(again.id, read);
            self.reads[read.0 as usize].pending += 1;
        }
        self.retries.push_back(again);
    }
}

/// The pages of a transfer, and those in flight behind them.
#[derive(Clone, Copy, Debug)]
struct Pages {
    file: FileId,
    range: PageRange,
    behind: Behind,
}

impl Pages {
    fn whole(self) -> PageRange {
        PageRange { first: self.range.first, end: self.behind.end }
    }

    /// What to try next to find the first page that can't be read: the first half of where it
    /// must be. `None` when it is found, or when there is nothing to search for. So a transfer
    /// of n pages takes log2(n) + 1 more, each of which a device that is about to die may take
    /// seconds for.
    fn search(self, outcome: PartOutcome) -> Option<Pages> {
        let Pages { range, behind, .. } = self;
        let suspects = match outcome {
            PartOutcome::Failed(DeviceError::Medium) if range.count() > 1 => range,
            PartOutcome::Moved(bytes) if bytes == range.count() * PAGE_BYTES => {
                PageRange { first: range.end, end: behind.suspect_end }
            }
            _ => return None,
        };
        if suspects.is_empty() {
            // It was read this time. What is behind it was never tried alone.
            let rest = PageRange { first: suspects.first, end: behind.end };
            let behind = Behind::none(rest);
            return (!rest.is_empty()).then_some(Pages { range: rest, behind, ..self });
        }
        let half = PageRange::new(suspects.first, suspects.count().div_ceil(2));
        let behind = Behind { suspect_end: suspects.end, end: behind.end };
        Some(Pages { range: half, behind, ..self })
    }
}
