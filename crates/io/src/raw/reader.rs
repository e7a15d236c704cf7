//! Stream of chunks in the ring's buffers, with the next chunks always in flight.
//!
//! A call that reads into the caller's memory ends with fewer and fewer chunks in flight, and with
//! none between two calls. A [`RawReader`] returns the ring's own buffers instead, one after
//! another. A returned buffer is resubmitted at once, so the device always has the policy's depth
//! in flight, less the chunk in use. No bytes are copied, whatever the caller's alignment, and the
//! kernel registers the buffers at opening if allowed.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::path::Path;

use readpath_core::chunking::RawTransfer;
use readpath_core::request::{Op, Outcome};

use super::channel::{Channel, ChunkOutcome, ChunkState};
use super::layout::clipped;
use super::{RawError, RawFault};
use crate::process::ProcessName;
use crate::read_error::Forked;
use crate::storage::Sleep;

/// Reads a range of a [`RawFile`](super::RawFile) in order, chunk by chunk, in place.
///
/// Created by [`RawFile::reader`](super::RawFile::reader). Chunks in flight at its drop are
/// cancelled or awaited by the file's next call, or when the file is closed.
pub struct RawReader<'f> {
    channel: &'f mut Channel,
    /// Process that created the reader.
    process: ProcessName,
    path: &'f Path,
    /// Requested byte range, cut to the file.
    asked: Range<u64>,
    /// Splits the range into chunks.
    transfer: RawTransfer,
    /// Submitted chunks that were not returned yet, in file order.
    coming: VecDeque<Coming>,
    /// Buffer of the chunk returned last.
    lent: Option<u32>,
    /// Set when no chunk follows: the end of the range, or an error.
    ended: Option<Option<RawFault>>,
}

/// A submitted chunk, and its result once known.
struct Coming {
    place: ChunkState,
    moved: Option<ChunkOutcome>,
}

/// Bytes of a file in the ring's buffer, valid until the next call of the reader.
#[derive(Clone, Copy, Debug)]
pub struct RawChunk<'a> {
    offset: u64,
    bytes: &'a [u8],
}

impl RawChunk<'_> {
    /// File offset of the first byte.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// let mut file = readpath::RawFile::open(&path)?;
    /// let mut reader = file.reader(1000, 5000)?;
    /// assert_eq!(reader.next_chunk()?.expect("the file is as long").offset(), 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Deref for RawChunk<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl<'f> RawReader<'f> {
    /// Creates a reader of `asked`, a range within the file. The channel has [begun a
    /// stream](Channel::begin_stream).
    pub(super) fn new(
        channel: &'f mut Channel,
        path: &'f Path,
        asked: Range<u64>,
    ) -> RawReader<'f> {
        let bytes = asked.end.saturating_sub(asked.start);
        let transfer = RawTransfer::new(asked.start, bytes, channel.block_bytes());
        let coming = VecDeque::with_capacity(channel.policy().depth() as usize);
        RawReader {
            channel,
            process: ProcessName::this(),
            path,
            asked,
            transfer,
            coming,
            lent: None,
            ended: None,
        }
    }

    /// Returns the next bytes in file order: a chunk of the policy's size, less at both ends of the
    /// range; `None` after the last. Resubmits the buffer of the previous chunk, and waits for this
    /// one if needed.
    ///
    /// ```
    /// # let folder = std::env::temp_dir();
    /// # let path = folder.join(format!("readpath-doc-chunks-{}", std::process::id()));
    /// # std::fs::write(&path, vec![1; 3_000_000])?;
    /// let mut file = readpath::RawFile::open(&path)?;
    /// let mut reader = file.reader(0, u64::MAX)?; // up to the end of the file
    /// let (mut chunks, mut sum) = (0, 0);
    /// while let Some(chunk) = reader.next_chunk()? {
    ///     chunks += 1;
    ///     sum += chunk.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    /// }
    /// assert_eq!((chunks, sum), (6, 3_000_000));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device failed on the next bytes; all bytes before them were returned. Every later call
    /// returns the same error.
    pub fn next_chunk(&mut self) -> Result<Option<RawChunk<'_>>, RawError> {
        match self.next_range() {
            Ok(None) => Ok(None),
            Ok(Some((buffer, skip, range))) => {
                let start = self.channel.chunk_address(buffer).wrapping_add(skip);
                let bytes = (range.end - range.start) as usize;
                // SAFETY: the kernel has filled these bytes and has finished with them. Only the
                // next call, which ends this borrow, resubmits the buffer.
                let bytes = unsafe { std::slice::from_raw_parts(start, bytes) };
                Ok(Some(RawChunk { offset: range.start, bytes }))
            }
            Err(fault) => Err(RawError { path: self.path.to_path_buf(), fault }),
        }
    }

    /// Number of chunks that the channel has submitted so far.
    #[cfg(test)]
    pub(super) fn submitted(&self) -> u64 {
        self.channel.counters().reads
    }

    /// Returns the next chunk: its buffer, the number of leading bytes to skip, and its file range.
    fn next_range(&mut self) -> Result<Option<(u32, usize, Range<u64>)>, RawFault> {
        if !self.process.is_this() {
            return Err(RawFault::Forked(Forked::UnderWay));
        }
        if let Some(fault) = self.ended {
            return fault.map_or(Ok(None), Err);
        }
        if let Some(buffer) = self.lent.take() {
            self.channel.give_back(buffer);
        }
        while let Some(place) =
            self.channel.start_into_buffer(|policy| self.transfer.poll_chunk(policy))
        {
            self.coming.push_back(Coming { place, moved: None });
        }
        let Some(Coming { place, moved }) = self.await_first()? else {
            self.ended = Some(None);
            return Ok(None);
        };
        self.lent = Some(place.buffer);
        let ChunkOutcome { outcome, bytes } = moved.expect("it was waited for");
        let start = place.chunk.offset;
        if let Outcome::Failed(error) = outcome {
            let offset = start.max(self.asked.start);
            let bytes_done = offset - self.asked.start;
            return self.end(RawFault::Device { op: Op::Read, offset, bytes_done, error });
        }
        let range = clipped(&self.asked, &(start..start + bytes));
        if outcome != Outcome::Done {
            // The file ends here now.
            self.ended = Some(None);
        }
        let skip = (range.start - start) as usize;
        Ok((!range.is_empty()).then_some((place.buffer, skip, range)))
    }

    /// Submits started chunks and waits for the first one in file order. `None` if no chunk is in
    /// flight.
    fn await_first(&mut self) -> Result<Option<Coming>, RawFault> {
        let is_there = |first: &Coming| first.moved.is_some();
        let mut sleep = match self.coming.front() {
            None => return Ok(None),
            // Started chunks must still be submitted.
            Some(first) if is_there(first) => Sleep::Never,
            Some(_) => Sleep::UntilAnswered,
        };
        loop {
            if let Err(error) = self.channel.exchange(sleep) {
                return self.end(RawFault::Backend(error));
            }
            sleep = Sleep::UntilAnswered;
            while let Some((place, moved)) = self.channel.next_moved() {
                let coming = self.coming.iter_mut().find(|one| one.place.buffer == place.buffer);
                coming.expect("only what is coming is moved").moved = Some(moved);
                self.transfer.handle(place.chunk, moved.outcome);
            }
            if self.coming.front().is_some_and(is_there) {
                return Ok(self.coming.pop_front());
            }
        }
    }

    /// Ends the stream with this error.
    fn end<T>(&mut self, fault: RawFault) -> Result<T, RawFault> {
        self.ended = Some(Some(fault));
        Err(fault)
    }
}

impl std::fmt::Debug for RawReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawReader")
            .field("path", &self.path)
            .field("asked", &self.asked)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
