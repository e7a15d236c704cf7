//! Many reads in flight from one thread, over io_uring.

use std::io;
use std::path::Path;

use readpath_core::readahead::Advice;
use readpath_core::request::{Outcome, RequestId};

use super::positional_reads::AccessPattern;
use super::{Accesses, Checksum};
use crate::clock::Clock;
use crate::kernel::{KernelEngine, KernelError, KernelFile, KernelOptions};

/// Positional reads of one file with a fixed queue depth.
pub struct RingReads {
    /// Open file with a ring of its own. Its number of slots is the queue depth.
    file: KernelFile,
    /// Offsets and size of the reads of all threads.
    pattern: AccessPattern,
}

impl RingReads {
    /// Opens the file for reads of this pattern, with `depth` reads in flight, by `O_DIRECT` if
    /// `is_direct`. The reads of a pattern of several threads come thread by thread.
    ///
    /// # Errors
    /// Fails in the same cases as [`KernelFile::open`].
    pub fn open(
        path: &Path,
        pattern: AccessPattern,
        depth: u32,
        is_direct: bool,
    ) -> Result<RingReads, KernelError> {
        let options = KernelOptions {
            // The caller of a pass decides which pages are cached at its start.
            invalidates: false,
            engine: KernelEngine::IoUring,
            is_direct,
            depth,
            bytes_max: pattern.read_bytes as u32,
            is_writable: false,
            advice: Advice::Normal,
            mapping_advice: Advice::Normal,
        };
        Ok(RingReads { file: KernelFile::open(path, options, Clock::start())?, pattern })
    }
}

impl Accesses for RingReads {
    /// Performs all reads with as many in flight as there are slots. Returns the checksum of their
    /// data. After an error reads may still be in flight, and no further pass may follow.
    fn pass(&mut self) -> io::Result<Checksum> {
        let mut sum = Checksum::default();
        let offsets: Vec<u64> =
            (0..self.pattern.threads).flat_map(|thread| self.pattern.of_thread(thread)).collect();
        let (mut started, mut completed) = (0, 0);
        while completed < offsets.len() {
            while self.file.free_slots() > 0 && started < offsets.len() {
                // The identifier of a read is the index of its offset.
                let id = RequestId(started as u32);
                self.file.read(id, offsets[started], self.pattern.read_bytes as u32);
                started += 1;
            }
            let no_deadline = None;
            self.file.wait(no_deadline).map_err(io::Error::other)?;
            while let Some((completion, bytes)) = self.file.poll() {
                match completion.outcome {
                    Outcome::Failed(error) => return Err(io::Error::other(error.to_string())),
                    // A read that the end of the file shortens counts with its own bytes.
                    _ => sum.add(offsets[completion.id.0 as usize], bytes),
                }
                completed += 1;
            }
        }
        Ok(sum)
    }
}
