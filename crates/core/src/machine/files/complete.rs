//! Requests for bytes of files have ended: pages are filled or fail, and their readers go on.

use alloc::vec::Vec;

use super::{Files, Kind};
use crate::cache::FileId;
use crate::machine::queue::{Content, Ended, PartOutcome, Waiter};
use crate::machine::{Base, ReadError, ReadId};
use crate::request::Request;
use crate::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, Time};

impl Files {
    /// Pages of a file have come, or not; gives the list of waiters back.
    pub(in crate::machine) fn complete_pages(
        &mut self,
        now: Time,
        base: &mut Base,
        ended: Ended,
        file: FileId,
        range: PageRange,
    ) -> Vec<Waiter> {
        let Ended { request, outcome, is_merged, waiters, .. } = ended;
        if let PartOutcome::Failed(_) = outcome
            && self.concerns_others(&waiters, range, is_merged)
        {
            self.isolate(base, request, file, range, &waiters);
            return waiters;
        }
        let good_end = match outcome {
            PartOutcome::Moved(bytes) => range.first * PAGE_BYTES + bytes,
            PartOutcome::Failed(_) => range.first * PAGE_BYTES,
        };
        // The last page of a file is good though the device moved only a part of it.
        let good = if good_end < self.file(file).bytes { good_end / PAGE_BYTES } else { range.end };
        let cache = &mut base.frames.cache;
        for page in range.pages() {
            let frame = cache.find(file, page).expect("a page in flight is in its table");
            if page < good { cache.fill(frame) } else { cache.fail(frame) }
        }
        let first_bad = range.contains(good).then_some(good);
        for id in waiters.iter().copied().map(reader) {
            let read = self.get_mut(id);
            read.pending -= 1;
            if let Some(bad) = first_bad.map(|page| page.max(read.range.first))
                && range.contains(bad)
                && read.range.contains(bad)
                && read.error.is_none()
            {
                let offset = (bad * PAGE_BYTES).max(read.transfer.offset);
                read.error = Some(match outcome {
                    PartOutcome::Failed(error) => ReadError::Device { offset, error },
                    PartOutcome::Moved(_) => ReadError::Shrunk { offset: good_end.max(offset) },
                });
            }
            if read.pending == 0 {
                self.advance(now, base, id);
            }
        }
        waiters
    }

    /// A piece of a transfer past the cache has been moved, or not; gives the list of
    /// waiters back.
    pub(in crate::machine) fn complete_direct(
        &mut self,
        base: &mut Base,
        ended: Ended,
        id: ReadId,
        offset: u64,
    ) -> Vec<Waiter> {
        let Ended { request, content, outcome, is_merged, waiters } = ended;
        if let PartOutcome::Failed(_) = outcome
            && is_merged
        {
            // The error may lie in a part that belongs to somebody else.
            base.queue.send_again(request, content);
            return waiters;
        }
        let read = self.get_mut(id);
        let at = read.transfer.offset + offset;
        let due = request.bytes().min(read.bytes - offset);
        let error = match outcome {
            PartOutcome::Failed(error) => Some(ReadError::Device { offset: at, error }),
            PartOutcome::Moved(bytes) if bytes < due => {
                Some(ReadError::Shrunk { offset: at + bytes })
            }
            PartOutcome::Moved(_) => None,
        };
        read.error = read.error.or(error);
        read.pending -= 1;
        if read.pending == 0 {
            if read.kind == Kind::Write {
                // What was read from the old bytes while the write was on its way goes too.
                self.forget_overwritten(base, id);
            }
            self.finish(base, id);
        }
        waiters
    }

    /// Drops the cached pages that a write overwrites.
    pub(super) fn forget_overwritten(&mut self, base: &mut Base, write: ReadId) {
        let transfer = self.get(write).transfer;
        let file = self.file_of(transfer.handle);
        let range = PageRange::covering(transfer.offset, transfer.bytes);
        base.frames.cache.invalidate(file, range);
    }

    /// Whether a failed request carried bytes that one of its waiters did not
    /// need: then its failure does not tell whose bytes are bad.
    fn concerns_others(&self, waiters: &[Waiter], range: PageRange, is_merged: bool) -> bool {
        let needs_all = |&waiter: &Waiter| {
            let needed = self.get(reader(waiter)).range;
            needed.first <= range.first && range.end <= needed.end
        };
        !waiters.is_empty() && (is_merged || !waiters.iter().all(needs_all))
    }

    /// Tries the needed pages of a failed request again, cut so that each
    /// piece is needed whole by everybody who waits for it; what nobody needs
    /// leaves the cache. A piece that fails again then fails just its waiters.
    fn isolate(
        &mut self,
        base: &mut Base,
        request: Request,
        file: FileId,
        range: PageRange,
        waiters: &[Waiter],
    ) {
        let readers: Vec<ReadId> = waiters.iter().copied().map(reader).collect();
        let needed = |read: &ReadId| self.get(*read).range;
        let mut cuts: Vec<u64> = [range.first, range.end].into();
        cuts.extend(readers.iter().map(needed).flat_map(|needed| [needed.first, needed.end]));
        cuts.retain(|&page| range.first <= page && page <= range.end);
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            let piece = PageRange { first: pair[0], end: pair[1] };
            let frame_of = |base: &Base, page| {
                base.frames.cache.find(file, page).expect("a page in flight is in its table")
            };
            let is_for = |read: &&ReadId| self.get(**read).range.contains(piece.first);
            let readers: Vec<ReadId> = readers.iter().filter(is_for).copied().collect();
            if readers.is_empty() {
                for page in piece.pages() {
                    let frame = frame_of(base, page);
                    base.frames.cache.fail(frame);
                }
                continue;
            }
            let start = request.start + (piece.first - range.first) * PAGE_SECTORS;
            let sectors = (piece.count() * PAGE_SECTORS) as u32;
            let content = Content::Pages { file, range: piece, ahead_pages: 0 };
            let again = base.queue.send_again(Request { start, sectors, ..request }, content);
            for page in piece.pages() {
                let frame = frame_of(base, page);
                base.frames.cache.carry(frame, again);
            }
            for read in readers {
                base.queue.wait(again, Waiter::Read(read));
                self.get_mut(read).pending += 1;
            }
        }
        for read in readers {
            self.get_mut(read).pending -= 1;
        }
    }
}

/// The read that waits for pages of a file.
fn reader(waiter: Waiter) -> ReadId {
    match waiter {
        Waiter::Read(read) => read,
        Waiter::Fault(_) => unreachable!("faults wait for slots of the swap area"),
    }
}
