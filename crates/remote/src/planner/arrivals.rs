//! The bytes of fetches: stored as they arrive, and counted. They fill the frames of the cache, or
//! the buffer of a read that bypasses it.

use readpath_core::request::{DeviceError, Outcome};
use readpath_core::unit::{PAGE_BYTES, Time};

use super::work::{Piece, Work, scatter};
use super::{Arrival, FetchId, Planner};

impl Planner {
    /// Stores the next bytes of a fetch, in the order of the file. With more bytes than are
    /// left, the fetch fails as by [`fail`](Planner::fail), and reads that fail with it get
    /// [`ReadFailure::WrongLength`]. Bytes of a fetch that has ended or been dropped are ignored.
    ///
    /// [`ReadFailure::WrongLength`]: super::ReadFailure::WrongLength
    pub fn fill(&mut self, now: Time, id: FetchId, data: &[u8]) -> Arrival {
        let now = self.advance(now);
        let Work { fetching, reads, .. } = &mut self.work;
        let Some(fetch) = fetching.get_mut(&id) else { return Arrival::Ignored };
        let left_bytes = fetch.range.end - fetch.range.start - fetch.arrived_bytes;
        if data.len() as u64 > left_bytes {
            self.work.end_fetch(now, id, Outcome::Failed(DeviceError::Garbled));
            return Arrival::WrongLength;
        }
        let pool = &mut self.pool;
        scatter(fetch, data, |piece, offset, bytes| match piece {
            Piece::Frame(frame) => {
                let start = frame as usize * PAGE_BYTES as usize + offset;
                pool[start..start + bytes.len()].copy_from_slice(bytes);
            }
            Piece::Direct { read, offset: start, .. } => {
                let direct = reads.get_mut(&read).and_then(|read| read.direct.as_mut());
                let direct = direct.expect("a read keeps its buffer until the machine ends it");
                let start = start as usize + offset;
                // The last piece may reach past the file, by less than a sector. Bytes past the
                // buffer are dropped in any case.
                let fitting = bytes.len().min(direct.data.len().saturating_sub(start));
                direct.data[start..start + fitting].copy_from_slice(&bytes[..fitting]);
            }
        });
        Arrival::Accepted
    }

    /// Drops the bytes of a fetch that have arrived: the next ones are its first again. Returns
    /// [`Arrival::Ignored`] if the fetch has ended or been dropped, as do the functions below.
    pub fn restart(&mut self, id: FetchId) -> Arrival {
        let Some(fetch) = self.work.fetching.get_mut(&id) else { return Arrival::Ignored };
        (fetch.arrived_bytes, fetch.next_piece, fetch.next_offset) = (0, 0, 0);
        Arrival::Accepted
    }

    /// Ends a fetch whose bytes have all arrived. With too few bytes the fetch fails, as with too
    /// many in [`fill`](Planner::fill): bytes of a shorter answer are never used.
    pub fn finish(&mut self, now: Time, id: FetchId) -> Arrival {
        let now = self.advance(now);
        let Some(fetch) = self.work.fetching.get(&id) else { return Arrival::Ignored };
        let is_whole = fetch.arrived_bytes == fetch.range.end - fetch.range.start;
        let (outcome, arrival) = match is_whole {
            true => (Outcome::Done, Arrival::Accepted),
            false => (Outcome::Failed(DeviceError::Garbled), Arrival::WrongLength),
        };
        self.work.end_fetch(now, id, outcome);
        arrival
    }

    /// Ends a fetch, perhaps at the end of the file: if too few bytes have arrived, they are the
    /// last ones of the file. Reads of the page in which it ends, and of later ones, fail with
    /// [`ReadFailure::Shrunk`](super::ReadFailure::Shrunk). For storage whose short answers mean
    /// the end of the file, as those by `pread(2)`. Otherwise use [`finish`](Planner::finish).
    pub fn finish_at_file_end(&mut self, now: Time, id: FetchId) -> Arrival {
        let now = self.advance(now);
        let Some(fetch) = self.work.fetching.get(&id) else { return Arrival::Ignored };
        let bytes = fetch.arrived_bytes;
        let outcome = match bytes == fetch.range.end - fetch.range.start {
            true => Outcome::Done,
            false => Outcome::Short { bytes },
        };
        self.work.end_fetch(now, id, outcome);
        Arrival::Accepted
    }

    /// Fails a fetch. `reason` is for the caller, and is returned with the reads that fail
    /// ([`ReadFailure::Fetch`](super::ReadFailure::Fetch)). If readahead was added to a read, it is
    /// tried once again without that. Joined reads fail together.
    pub fn fail(&mut self, now: Time, id: FetchId, reason: i32) -> Arrival {
        let now = self.advance(now);
        if !self.work.fetching.contains_key(&id) {
            return Arrival::Ignored;
        }
        self.work.end_fetch(now, id, Outcome::Failed(DeviceError::Other(reason)));
        Arrival::Accepted
    }
}
