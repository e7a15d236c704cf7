//! Reads of a file into the memory of a caller: a buffer, one range, or several.

use pyo3::prelude::*;

use super::LocalFile;
use crate::buffers::{BufferMemory, Writable};
use crate::many::{ReadRange, read_many};
use crate::waits::fill_interruptibly;

impl LocalFile {
    /// Fills a writable buffer from `offset` and returns the number of bytes, fewer than its length
    /// only at the end of the file. Raises BufferError or TypeError for an unusable buffer.
    pub(super) fn fill_buffer(
        &self,
        py: Python<'_>,
        offset: u64,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let pinned = Writable::of(buffer)?;
        let (address, bytes) = pinned.memory();
        let memory = BufferMemory(address);
        // SAFETY: `pinned` keeps the memory in place until the return. As with built-in files,
        // another thread that uses the memory sees some of the new bytes.
        let filled = unsafe { self.fill_memory(py, offset, memory, bytes) };
        drop(pinned);
        filled
    }

    /// Fills the memory of each range. All bytes are within the file.
    ///
    /// # Safety
    /// The memory of each range is writable, and has no other user, until the return.
    pub(super) unsafe fn fill_ranges(
        &self,
        py: Python<'_>,
        ranges: Vec<ReadRange>,
    ) -> PyResult<()> {
        let piece_bytes = self.engine.piece_bytes as usize;
        let reports = self.reports.as_deref();
        let url = self.path.to_str().unwrap_or_default();
        let is_remote = self.is_remote;
        // A read of a server's file may wait for seconds, and signals are handled meanwhile.
        self.with(py, move |file| match is_remote {
            // SAFETY: guaranteed by the caller.
            true => unsafe { fill_interruptibly(file, &ranges, piece_bytes) }.map_err(|failure| {
                match reports {
                    Some(reports) => reports.explain(failure, url),
                    None => failure,
                }
            }),
            // SAFETY: guaranteed by the caller.
            false => unsafe { read_many(file, &ranges) },
        })
    }

    /// Fills `bytes` bytes of `memory` from `offset` and returns their number, fewer only at the
    /// end of the file. A long read is split, and the next piece is prefetched during the current
    /// one. Signals are handled in between.
    ///
    /// # Safety
    /// `bytes` bytes are writable there until the return.
    pub(super) unsafe fn fill_memory(
        &self,
        py: Python<'_>,
        offset: u64,
        memory: BufferMemory,
        bytes: usize,
    ) -> PyResult<usize> {
        let piece_bytes_max = self.engine.piece_bytes;
        // A server's file: `fill_ranges` splits the read itself, and handles signals.
        if self.is_remote {
            let remote_bytes = self.bytes_within(offset, bytes as u64) as usize;
            let range = ReadRange { offset, memory, bytes: remote_bytes };
            // SAFETY: guaranteed by the caller.
            unsafe { self.fill_ranges(py, vec![range])? };
            return Ok(remote_bytes);
        }
        let mut filled = 0;
        loop {
            let piece_offset = offset.saturating_add(filled as u64);
            let piece_bytes = (bytes - filled).min(piece_bytes_max as usize);
            // The last piece of the buffer, or the only one of an empty buffer.
            let is_last = filled + piece_bytes == bytes;
            // SAFETY: within the buffer.
            let piece_memory = BufferMemory(unsafe { memory.0.add(filled) });
            let bytes_read = self.with(py, move |file| {
                let next_offset = piece_offset.saturating_add(piece_bytes as u64);
                if !is_last && !file.is_cached(next_offset, piece_bytes_max) {
                    file.prefetch(next_offset, piece_bytes_max);
                }
                // SAFETY: guaranteed by the caller.
                let buffer = unsafe { piece_memory.slice(piece_bytes) };
                Ok(file.read_at(buffer, piece_offset)?)
            })?;
            filled += bytes_read;
            // A short read has met the end of the file.
            if is_last || bytes_read < piece_bytes {
                return Ok(filled);
            }
            py.check_signals()?;
        }
    }
}
