//! Stream of chunks in the ring's buffers, with the next chunks always in flight. The *ring* is the
//! channel's set of buffers, one for each chunk in flight.
//!
//! A call that reads into the caller's memory ends with fewer and fewer chunks in flight, and with
//! none between two calls. A [`RawReader`] returns the ring's own buffers instead, one after
//! another. The next call resubmits a returned buffer, so the device always has the policy's depth
//! in flight, less the chunk in use. No bytes are copied, whatever the caller's alignment, and the
//! kernel registers the buffers at opening if allowed.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::path::Path;

use readpath_core::chunking::RawTransfer;
use readpath_core::request::{Op, Outcome};

use super::channel::{Channel, ChunkOutcome, ChunkState};
use super::layout::intersection;
use super::{RawError, RawFault};
use crate::os::process::ProcessNumber;
use crate::read_error::Forked;
use crate::storage::Sleep;

/// Reads a range of a [`RawFile`](super::RawFile) in order, chunk by chunk, in place.
///
/// Created by [`RawFile::reader`](super::RawFile::reader). Chunks in flight at its drop are
/// cancelled or awaited by the file's next call, or when the file is closed.
pub struct RawReader<'f> {
    /// Channel with the ring, borrowed until the reader is dropped.
    channel: &'f mut Channel,
    /// Process that created the reader.
    process: ProcessNumber,
    path: &'f Path,
    /// Requested byte range, cut to the file.
    requested: Range<u64>,
    /// Splits the range into chunks.
    transfer: RawTransfer,
    /// Submitted chunks that were not returned yet, in file order.
    chunks_in_flight: VecDeque<SubmittedChunk>,
    /// Buffer of the chunk returned last.
    returned_buffer: Option<u32>,
    /// `None` while chunks may follow. `Some(None)`: the range or the file has ended.
    /// `Some(Some(fault))`: the reader has failed.
    end_result: Option<Option<RawFault>>,
}

/// A submitted chunk.
struct SubmittedChunk {
    /// Part of the file, with its buffer.
    chunk_state: ChunkState,
    /// `None` while the chunk is in flight.
    outcome: Option<ChunkOutcome>,
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
    /// Creates a reader of the byte range `requested`, which lies within the file and may be empty.
    /// The channel has [begun a stream](Channel::begin_stream).
    pub(super) fn new(
        channel: &'f mut Channel,
        path: &'f Path,
        requested: Range<u64>,
    ) -> RawReader<'f> {
        let bytes = requested.end.saturating_sub(requested.start);
        let transfer = RawTransfer::new(requested.start, bytes, channel.block_bytes());
        let chunks_in_flight = VecDeque::with_capacity(channel.policy().depth() as usize);
        RawReader {
            channel,
            process: ProcessNumber::current(),
            path,
            requested,
            transfer,
            chunks_in_flight,
            returned_buffer: None,
            end_result: None,
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
    /// returns the same error. Or this is a child made by `fork`.
    pub fn next_chunk(&mut self) -> Result<Option<RawChunk<'_>>, RawError> {
        match self.next_range() {
            Ok(None) => Ok(None),
            Ok(Some((buffer, bytes_to_skip, range))) => {
                let start = self.channel.chunk_address(buffer).wrapping_add(bytes_to_skip);
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
    pub(super) fn submitted_chunks(&self) -> u64 {
        self.channel.counters().reads
    }

    /// Waits for the next chunk and returns its buffer, the number of leading bytes to skip in it,
    /// and the byte range of the rest in the file. Returns `None` at the end. Before the wait,
    /// frees the buffer returned last and starts further chunks in free buffers. Chunks behind a
    /// failed or short one are never returned.
    fn next_range(&mut self) -> Result<Option<(u32, usize, Range<u64>)>, RawFault> {
        if !self.process.is_current() {
            return Err(RawFault::Forked(Forked::UnderWay));
        }
        if let Some(fault) = self.end_result {
            return fault.map_or(Ok(None), Err);
        }
        if let Some(buffer) = self.returned_buffer.take() {
            self.channel.free_buffer(buffer);
        }
        while let Some(chunk_state) =
            self.channel.start_into_buffer(|policy| self.transfer.poll_chunk(policy))
        {
            self.chunks_in_flight.push_back(SubmittedChunk { chunk_state, outcome: None });
        }
        let Some(SubmittedChunk { chunk_state, outcome }) = self.wait_for_first()? else {
            self.end_result = Some(None);
            return Ok(None);
        };
        self.returned_buffer = Some(chunk_state.buffer);
        let ChunkOutcome { outcome, bytes } = outcome.expect("the first chunk has completed");
        let start = chunk_state.chunk.offset;
        if let Outcome::Failed(error) = outcome {
            // The chunk may begin before the requested bytes.
            let offset = start.max(self.requested.start);
            let bytes_done = offset - self.requested.start;
            return self.end_with_fault(RawFault::Device {
                op: Op::Read,
                offset,
                bytes_done,
                error,
            });
        }
        let range = intersection(&self.requested, &(start..start + bytes));
        if outcome != Outcome::Done {
            // The file has become shorter and ends here.
            self.end_result = Some(None);
        }
        // The first block may begin before the requested bytes. The range is empty if the file now
        // ends before them.
        let bytes_to_skip = (range.start - start) as usize;
        Ok((!range.is_empty()).then_some((chunk_state.buffer, bytes_to_skip, range)))
    }

    /// Submits started chunks, waits for the first one in file order, and removes it. Returns
    /// `None` if no chunk is in flight.
    fn wait_for_first(&mut self) -> Result<Option<SubmittedChunk>, RawFault> {
        let has_outcome = |first: &SubmittedChunk| first.outcome.is_some();
        let mut sleep = match self.chunks_in_flight.front() {
            None => return Ok(None),
            // Started chunks must still be submitted.
            Some(first) if has_outcome(first) => Sleep::Never,
            Some(_) => Sleep::UntilAnswered,
        };
        loop {
            if let Err(error) = self.channel.exchange(sleep) {
                return self.end_with_fault(RawFault::Backend(error));
            }
            // Without the first chunk the next exchange sleeps.
            sleep = Sleep::UntilAnswered;
            while let Some((chunk_state, chunk_outcome)) = self.channel.next_completed() {
                let submitted = self
                    .chunks_in_flight
                    .iter_mut()
                    .find(|chunk| chunk.chunk_state.buffer == chunk_state.buffer);
                submitted.expect("a completed chunk is in flight").outcome = Some(chunk_outcome);
                self.transfer.handle(chunk_state.chunk, chunk_outcome.outcome);
            }
            if self.chunks_in_flight.front().is_some_and(has_outcome) {
                return Ok(self.chunks_in_flight.pop_front());
            }
        }
    }

    /// Ends the stream with this error, which every later call returns again.
    fn end_with_fault<T>(&mut self, fault: RawFault) -> Result<T, RawFault> {
        self.end_result = Some(Some(fault));
        Err(fault)
    }
}

impl std::fmt::Debug for RawReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawReader")
            .field("path", &self.path)
            .field("requested", &self.requested)
            .field("ended", &self.end_result)
            .finish_non_exhaustive()
    }
}
