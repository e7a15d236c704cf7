//! A stream of chunks out of the ring, the next ones always in flight.
//!
//! A call that reads into the caller's memory returns when its last chunk has
//! come: meanwhile fewer and fewer chunks are in flight, and between two calls none
//! is. A [`RawReader`] lends the ring's own buffers instead, one chunk after the
//! other. A buffer that is given back is submitted again at once, so the device
//! has as many chunks to fill as the law allows, less the one that is looked at.
//! Nothing is copied, whatever the caller's memory is like, and the kernel holds
//! the buffers from the opening on where it may.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::path::Path;

use readpath_core::raw::RawTransfer;
use readpath_core::request::{Op, Outcome};

use super::channel::{Channel, ChunkOutcome, ChunkState};
use super::layout::clipped;
use super::{RawError, RawFault};
use crate::process::ProcessName;
use crate::read_error::Forked;
use crate::storage::Sleep;

/// Reads a range of a [`RawFile`](super::RawFile) in order, chunk by chunk, in place.
///
/// Made by [`RawFile::reader`](super::RawFile::reader). What is in flight when it is dropped is
/// withdrawn, or waited for, by the file's next call, or when the file is closed.
pub struct RawReader<'f> {
    channel: &'f mut Channel,
    /// Who made it.
    process: ProcessName,
    path: &'f Path,
    asked: Range<u64>,
    transfer: RawTransfer,
    /// Chunks that were submitted and not lent yet, in the order of the file.
    coming: VecDeque<Coming>,
    /// The buffer of the chunk that was lent last.
    lent: Option<u32>,
    /// Why there is nothing more: the end, or an error.
    ended: Option<Option<RawFault>>,
}

/// A chunk that was submitted, and what came of it once that is known.
struct Coming {
    place: ChunkState,
    moved: Option<ChunkOutcome>,
}

/// Some bytes of a file, lent out of the ring until the next are asked for.
#[derive(Clone, Copy, Debug)]
pub struct RawChunk<'a> {
    offset: u64,
    bytes: &'a [u8],
}

impl RawChunk<'_> {
    /// Where in the file its first byte is.
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
    /// Reads `asked`, which ends within the file, with all buffers of a channel that has
    /// [begun](Channel::begin_stream).
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

    /// The next bytes, in the order of the file: a chunk of the law's size, less at both ends
    /// of the range; `None` after the last. Submits the buffer of the one before again, and waits
    /// if these have not come.
    ///
    /// ```
    /// # let path = std::env::temp_dir().join(format!("readpath-doc-chunks-{}", std::process::id()));
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
    /// The device failed on the next bytes; all before them were lent. The same error again
    /// from then on.
    pub fn next_chunk(&mut self) -> Result<Option<RawChunk<'_>>, RawError> {
        match self.next_range() {
            Ok(None) => Ok(None),
            Ok(Some((buffer, skip, range))) => {
                let start = self.channel.chunk_address(buffer).wrapping_add(skip);
                let bytes = (range.end - range.start) as usize;
                // SAFETY: the kernel has filled these bytes and is done with them; the buffer is
                // submitted again by the next call alone, which ends this loan.
                let bytes = unsafe { std::slice::from_raw_parts(start, bytes) };
                Ok(Some(RawChunk { offset: range.start, bytes }))
            }
            Err(fault) => Err(RawError { path: self.path.to_path_buf(), fault }),
        }
    }

    /// How many chunks were submitted so far by the channel.
    #[cfg(test)]
    pub(super) fn submitted(&self) -> u64 {
        self.channel.counters().reads
    }

    /// The next chunk: its buffer, how many of its first bytes nobody asked for, and the
    /// bytes of the file.
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
            // The file ends here, now.
            self.ended = Some(None);
        }
        let skip = (range.start - start) as usize;
        Ok((!range.is_empty()).then_some((place.buffer, skip, range)))
    }

    /// Hands over what was submitted, and waits for the first chunk that is coming, if any is.
    fn await_first(&mut self) -> Result<Option<Coming>, RawFault> {
        let is_there = |first: &Coming| first.moved.is_some();
        let mut sleep = match self.coming.front() {
            None => return Ok(None),
            // What was submitted goes out all the same.
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

    /// There is nothing more, for this reason.
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
