//! Reads: from their start until their bytes are taken.
//!
//! A read *starts* with a call. It *begins* at a later poll, or in `begin_started`, when the
//! *machine* gets it: the page cache, readahead policy and scheduler of the core. A *site* is the
//! machine's file for one generation of a file.

use std::ops::Range;

use readpath_core::machine::{ReadAccess, Transfer};
use readpath_core::near_ranges;
use readpath_core::readahead::Advice;
use readpath_core::unit::{PAGE_BYTES, PageRange, SECTOR_BYTES, Time};

use super::neighbourhoods::Surroundings;
use super::options::{PlannerError, ReadFailure};
use super::work::{DirectBuffer, OpenRead, ReadState};
use super::{Event, HandleId, Planner, ReadId, THE_PROCESS, zeros};

impl Planner {
    /// Starts a read of up to `bytes` bytes at `offset`; it ends at the end of the file. A read of
    /// half of the memory or more bypasses the cache, with a buffer of its own.
    ///
    /// The read begins at the next [`poll`](Planner::poll), or in
    /// [`begin_started`](Planner::begin_started), after all reads of its file with lower offsets
    /// that start before then. The order in which concurrent readers call carries no information.
    /// It would hide a sequential stream.
    ///
    /// # Errors
    /// The handle is not open, too many reads are open, or no memory is available for the buffer.
    pub fn start(
        &mut self,
        now: Time,
        handle: HandleId,
        offset: u64,
        bytes: u64,
    ) -> Result<ReadId, PlannerError> {
        self.advance(now);
        let file = self.handles.get(&handle).ok_or(PlannerError::NotOpen)?;
        if self.work.reads.len() >= self.reads_max as usize {
            return Err(PlannerError::TooManyReads { reads_max: self.reads_max });
        }
        let start_sector = self.files[file].site;
        let site = self.work.sites.get_mut(&start_sector).expect("the site of an open file");
        let bytes = bytes.min(site.bytes.saturating_sub(offset));
        let direct = if bytes <= self.cached_read_bytes_max {
            None
        } else {
            let skipped = offset % SECTOR_BYTES;
            let data = zeros((skipped + bytes).next_multiple_of(SECTOR_BYTES))?;
            Some(DirectBuffer { data, skipped })
        };
        site.handles.get_mut(&handle).expect("an open handle").open_reads += 1;
        let id = ReadId(self.next_id);
        self.next_id += 1;
        let read = OpenRead {
            machine_read: None,
            site: start_sector,
            handle,
            offset,
            bytes,
            direct,
            state: ReadState::Waiting,
        };
        self.work.reads.insert(id, read);
        self.unbegun.push((start_sector, offset, id));
        Ok(id)
    }

    /// Starts several reads at once, as [`start`](Planner::start) does. Ranges that are close
    /// together leave in one fetch of at most `part_bytes`, with the gaps between them that
    /// [`read_gaps`](Planner::read_gaps) would read.
    ///
    /// # Errors
    /// As for [`start`](Planner::start); none of the reads is open then.
    pub fn start_many(
        &mut self,
        now: Time,
        handle: HandleId,
        ranges: &[Range<u64>],
    ) -> Result<Vec<ReadId>, PlannerError> {
        let mut reads = Vec::with_capacity(ranges.len());
        for range in ranges {
            match self.start(now, handle, range.start, range.end.saturating_sub(range.start)) {
                Ok(read) => reads.push(read),
                Err(error) => {
                    reads.into_iter().for_each(|read| self.abandon(now, read));
                    return Err(error);
                }
            }
        }
        self.read_gaps(handle, ranges)?;
        Ok(reads)
    }

    /// Reads gaps between ranges that have started, as [`start_many`](Planner::start_many) does, at
    /// the next [`poll`](Planner::poll). A gap is read where its bytes take less time than the
    /// requests that it saves, by the costs measured so far. If all ranges can be in flight at once
    /// (at most `fetches_max`), a gap saves no time of the store, and only gaps up to 32 KiB are
    /// read: see [`near_ranges`].
    ///
    /// # Errors
    /// The handle is not open.
    pub fn read_gaps(
        &mut self,
        handle: HandleId,
        ranges: &[Range<u64>],
    ) -> Result<(), PlannerError> {
        let file = self.handles.get(&handle).ok_or(PlannerError::NotOpen)?;
        let site = &self.work.sites[&self.files[file].site];
        let machine_handle = site.handles[&handle].machine_handle;
        let costs = self.machine.readahead_state(machine_handle).costs;
        // Sorted once: the sorts of both functions then take one pass each.
        let mut in_order = ranges.to_vec();
        in_order.sort_unstable_by_key(|range| range.start);
        let ranges_apart = near_ranges::separate_ranges(&in_order);
        let gap_bytes_max = costs.gap_bytes_max(ranges_apart, self.fetches_max);
        for run in near_ranges::runs(&in_order, gap_bytes_max, self.part_bytes) {
            self.gaps.extend(run.gaps.into_iter().map(|gap| (handle, gap)));
        }
        Ok(())
    }

    /// Begins the reads that have started, before others that start until the next
    /// [`poll`](Planner::poll). Memory is given in the order in which reads begin. To be called
    /// after each start if the caller takes the bytes in the order of the starts, and the reads may
    /// need more memory than there is. Otherwise a read of a lower offset could hold the memory.
    pub fn begin_started(&mut self, now: Time) {
        let now = self.advance(now);
        self.begin_reads(now);
    }

    /// Begins the reads that have started since the last poll, by file and offset; then the reads
    /// of the gaps between them.
    pub(super) fn begin_reads(&mut self, now: Time) {
        self.unbegun.sort_unstable();
        for (start_sector, _, id) in std::mem::take(&mut self.unbegun) {
            // A read that was abandoned before this point is not open any more.
            let Some(read) = self.work.reads.get_mut(&id) else { continue };
            let site = &self.work.sites[&start_sector];
            let skipped = read.direct.as_ref().map_or(0, |direct| direct.skipped);
            let transfer = Transfer {
                handle: site.handles[&read.handle].machine_handle,
                process: THE_PROCESS,
                offset: read.offset - skipped,
                bytes: read.direct.as_ref().map_or(read.bytes, |direct| direct.data.len() as u64),
                tag: id.0,
            };
            let access = match read.direct {
                None => ReadAccess::Buffered,
                Some(_) => ReadAccess::Direct,
            };
            let begun = self.machine.read(now, access, transfer);
            let begun = begun.expect("size, alignment and number were checked at the start");
            read.machine_read = Some(begun);
            // A direct read has no pages in the cache, with which prefetched ones would be used.
            if read.direct.is_none() {
                let (handle, request) = (read.handle, PageRange::covering(read.offset, read.bytes));
                self.observe(start_sector, handle, request);
            }
        }
        // Last: a gap then meets the requests on both of its sides, and is merged with them.
        for (handle, gap) in std::mem::take(&mut self.gaps) {
            // The handle may have been closed since.
            let _ = self.advise(now, handle, Advice::WillNeed, gap);
        }
    }

    /// Records a request in the neighbourhoods of handle `id` on the site at `start_sector`: the
    /// parts of a file that are read whole, in no order. Their window, if there is one, is
    /// prefetched with the gaps.
    fn observe(&mut self, start_sector: u64, id: HandleId, request: PageRange) {
        let site = self.work.sites.get_mut(&start_sector).expect("the site of an open read");
        let file_pages = site.bytes.div_ceil(PAGE_BYTES);
        let handle = site.handles.get_mut(&id).expect("the handle of an open read");
        let surroundings = Surroundings {
            cost_pages: self.machine.readahead_state(handle.machine_handle).marginal_cost_pages,
            memory_pages: self.pool.len() as u64 / PAGE_BYTES,
            file_pages,
        };
        if let Some(window) = handle.neighbourhoods.record(request, surroundings) {
            self.gaps.push((id, window.first * PAGE_BYTES..window.end * PAGE_BYTES));
        }
    }

    /// Returns true if all bytes of the range are in memory or being fetched. The range is cut at
    /// the end of the file, and a range without bytes counts as cached.
    ///
    /// # Errors
    /// The handle is not open.
    pub fn is_cached(&self, handle: HandleId, range: Range<u64>) -> Result<bool, PlannerError> {
        let file = self.handles.get(&handle).ok_or(PlannerError::NotOpen)?;
        let site = &self.work.sites[&self.files[file].site];
        let bytes = range.end.min(site.bytes).saturating_sub(range.start);
        let machine_handle = site.handles[&handle].machine_handle;
        let mut pages = PageRange::covering(range.start, bytes).pages();
        Ok(pages.all(|page| self.machine.is_cached(machine_handle, page)))
    }

    /// Number of bytes of an ended read, or its failure; `None` while it waits, and for a read that
    /// is not open.
    pub fn result(&self, read: ReadId) -> Option<Result<u64, ReadFailure>> {
        if let Some(failure) = self.work.failed.get(&read) {
            return Some(Err(*failure));
        }
        let open = self.work.reads.get(&read)?;
        match open.state {
            ReadState::Done => Some(Ok(open.bytes)),
            ReadState::Waiting | ReadState::Unwanted => None,
        }
    }

    /// Takes the bytes of an ended read, in a buffer of exactly their size, and removes the read.
    /// Returns `None` while the read waits, and for a read that is not open.
    pub fn take(&mut self, now: Time, read: ReadId) -> Option<Result<Vec<u8>, ReadFailure>> {
        let now = self.advance(now);
        if let Some(failure) = self.work.failed.remove(&read) {
            return Some(Err(failure));
        }
        let open = self.work.reads.get_mut(&read)?;
        if open.state != ReadState::Done {
            return None;
        }
        let bytes = open.bytes;
        let data = match open.direct.take() {
            Some(mut direct) => {
                // The buffer begins on a sector, and the requested bytes may begin within it.
                if direct.skipped > 0 {
                    direct.data.copy_within(direct.skipped as usize.., 0);
                }
                direct.data.truncate(bytes as usize);
                direct.data.shrink_to_fit();
                direct.data
            }
            None => {
                let mut data = Vec::with_capacity(bytes as usize);
                self.for_each_piece(read, bytes, |piece| data.extend_from_slice(piece));
                data
            }
        };
        self.work.release(&mut self.machine, now, read);
        Some(Ok(data))
    }

    /// As [`take`](Planner::take), into the beginning of a buffer. Returns the number of bytes;
    /// `None` in the same cases.
    ///
    /// # Panics
    /// The buffer is smaller than the [result](Planner::result).
    pub fn take_into(
        &mut self,
        now: Time,
        read: ReadId,
        buffer: &mut [u8],
    ) -> Option<Result<u64, ReadFailure>> {
        let now = self.advance(now);
        if let Some(failure) = self.work.failed.remove(&read) {
            return Some(Err(failure));
        }
        let open = self.work.reads.get(&read)?;
        if open.state != ReadState::Done {
            return None;
        }
        let bytes = open.bytes;
        let mut rest = &mut buffer[..bytes as usize];
        self.for_each_piece(read, bytes, |piece| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(piece.len());
            head.copy_from_slice(piece);
            rest = tail;
        });
        self.work.release(&mut self.machine, now, read);
        Some(Ok(bytes))
    }

    /// Calls `each` with the pieces of a successful read, in order. `bytes` is the size of the
    /// read.
    fn for_each_piece(&self, read: ReadId, bytes: u64, mut each: impl FnMut(&[u8])) {
        let open = &self.work.reads[&read];
        if let Some(direct) = &open.direct {
            return each(&direct.data[direct.skipped as usize..][..bytes as usize]);
        }
        let mut skipped = open.offset % PAGE_BYTES;
        let mut left = bytes;
        for frame in self.machine.read_frames(open.machine_read.expect("an ended read has begun")) {
            let part = left.min(PAGE_BYTES - skipped);
            let start = u64::from(frame.0) * PAGE_BYTES + skipped;
            each(&self.pool[start as usize..][..part as usize]);
            (left, skipped) = (left - part, 0);
        }
    }

    /// Abandons a read, ended or not. Its fetches go on: others may wait for them, and their bytes
    /// enter the cache. No effect on a read that is not open.
    pub fn abandon(&mut self, now: Time, read: ReadId) {
        let now = self.advance(now);
        self.work.events.retain(|event| *event != Event::Ended(read));
        self.work.failed.remove(&read);
        match self.work.reads.get_mut(&read) {
            Some(OpenRead { state: ReadState::Done, .. }) => {
                self.work.release(&mut self.machine, now, read)
            }
            // The read has not begun: the machine does not know it.
            Some(OpenRead { machine_read: None, .. }) => {
                self.work.release(&mut self.machine, now, read);
            }
            // The machine still reads its pages, and releases the read at its end.
            Some(open) => open.state = ReadState::Unwanted,
            None => {}
        }
    }
}
