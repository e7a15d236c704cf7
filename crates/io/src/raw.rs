//! Raw files: large transfers that bypass every cache, in chunks, reads and writes.
//!
//! A [`RawFile`] is for data that is moved once and in bulk: backups, model weights, column chunks,
//! sort runs. Each call is split into chunks. The next chunk is submitted while the last is in
//! flight, so the device and all disks of an array stay busy. The chunking policy `ring` of the
//! core ([`readpath_core::chunking`]) splits calls, here and in the simulator.
//!
//! **Memory.** The device reads and writes the caller's memory directly if it is aligned like the
//! file. Its address and the offset must have the same remainder in blocks of
//! [`alignment_bytes`](RawFile::alignment_bytes). Only partial blocks at both ends are copied then.
//! [`RawMemory`] is aligned and lies in huge pages. Unaligned chunks go through a buffer of the
//! ring; offsets and lengths are arbitrary. With io_uring the kernel registers these buffers at
//! opening if allowed ([`buffers_are_registered`](RawFile::buffers_are_registered)). Depth × chunk
//! bytes are mapped at opening: 2 MiB by default, and at least 2 MiB for chunks of 256 KiB or more
//! (huge pages). Later calls allocate no memory. A [`RawReader`] passes the buffers to the caller
//! in order, for bytes that are needed once.
//!
//! **Partial blocks.** A device writes whole blocks. A write that begins or ends inside a block
//! reads that block first and writes it back with the new bytes. Consequences:
//! - Calls on one `RawFile` run one after another and never lose each other's bytes.
//! - A call that writes a part of a block is refused while a [`RawBatch`] of the same `RawFile`
//!   writes that block. Whole blocks are never refused.
//! - Concurrent writers of the *same block* through another `RawFile`, descriptor or process may
//!   lose their bytes. Use whole blocks, or one writer.
//! - A write that ends inside the last block of a regular file extends the file to the end of that
//!   block and then truncates it. Other processes may see the longer file in between, and after a
//!   crash it may stay, filled with zeros. Use whole blocks if others extend the file at the same
//!   time.
//! - The file is not truncated while a [`RawBatch`] of the same `RawFile` writes behind the call's
//!   bytes. If the batch's write then fails, or is cancelled by a drop of the batch, the file stays
//!   longer by zeros.
//! - A write beyond the end that fails before its first byte leaves the length. On a file system
//!   that reports no holes, the file may end at the start of the write.
//! - If another writer extends the file meanwhile, its bytes before the write stay. The file may
//!   then end at the start of the write. Bytes in the 4 KiB page of the old end are lost if a
//!   later part of the failed write has succeeded.
//!
//! **Next to a cache.** A raw file also bypasses the caches of this process. A raw file from
//! [`File::raw`](crate::File::raw) makes the read path drop overwritten pages.
//!
//! **Durability.** A write that has returned is in the device or in its volatile cache. After
//! [`sync_data`](RawFile::sync_data) it survives a loss of power.
//!
//! **In a child** made by `fork(2)` a raw file continues over the same open file description, with
//! a ring and buffers of the child's own, created at first use. A [`RawReader`] belongs to the
//! parent and returns an error in the child.
//!
//! **Without direct I/O** (tmpfs, some network file systems) the calls go through the kernel page
//! cache. [`RawFile::mode`] reports the reason. [`RawFileBuilder::direct`] can make it an error.
//!
//! ```
//! use readpath::RawFile;
//!
//! # let path = std::env::temp_dir().join(format!("readpath-doc-raw-{}", std::process::id()));
//! let file = RawFile::builder().write(true).create(true).open(&path)?;
//! let data = vec![7; 3_000_001];
//! file.write_all_at(&data, 100)?;
//! file.sync_data()?;
//!
//! let mut back = vec![0; data.len()];
//! RawFile::open(&path)?.read_exact_at(&mut back, 100)?;
//! assert!(back == data);
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

use readpath_core::unit::PageRange;

use crate::backend::BackendInUse;
use crate::target::Mode;

mod batch;
mod batch_writes;
mod buffers;
mod builder;
mod cache_invalidator;
mod channel;
mod error;
mod layout;
mod process_channels;
mod reader;
#[cfg(test)]
mod tests;

pub use crate::os::raw_memory::RawMemory;
pub use batch::{RawBatch, RawMoved};
pub use builder::RawFileBuilder;
use cache_invalidator::CacheInvalidator;
use channel::{Channel, SyncScope};
pub use error::{RawError, RawFault, RawOpenError};
use process_channels::{ChannelParameters, ProcessChannel, ProcessChannels};
pub use reader::{RawChunk, RawReader};

/// A regular file or block device for large chunked transfers that bypass every cache.
///
/// Threads may share it. Calls run one after another, since one large transfer keeps the device
/// busy. Open the file again for parallel transfers. The [module](self) describes memory, partial
/// blocks and durability.
pub struct RawFile {
    /// Channel of each process: the open file with its buffers and its I/O backend.
    channels: ProcessChannels,
    /// Parameters for the channel of a forked child.
    channel_parameters: ChannelParameters,
    path: PathBuf,
    mode: Mode,
    alignment_bytes: u32,
    chunk_bytes: u64,
    depth: u32,
    is_writable: bool,
    buffers_are_registered: bool,
    /// I/O backend at opening.
    in_use: BackendInUse,
    /// Read path whose cached pages are dropped by writes; `None` for a file opened alone.
    cache_invalidator: Option<CacheInvalidator>,
}

/// Counters of a raw file since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawStats {
    /// Chunks read, including blocks read for partial writes. A transfer of a batch is one chunk.
    pub reads: u64,
    /// Bytes of these chunks, in whole blocks.
    pub read_bytes: u64,
    /// Chunks written. A transfer of a batch is one chunk.
    pub writes: u64,
    /// Bytes of these chunks, in whole blocks.
    pub written_bytes: u64,
    /// Bytes copied between the caller's memory and buffers, because they could not be moved
    /// directly. A write counts its whole chunks if they go through buffers, and nothing otherwise.
    pub copied_bytes: u64,
}

impl RawFile {
    /// Opens a file or block device for reading, with the defaults of [`RawFile::builder`].
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// let file = readpath::RawFile::open(&path)?;
    /// assert_eq!((file.chunk_bytes(), file.depth()), (512 << 10, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`RawFileBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<RawFile, RawOpenError> {
        RawFile::builder().open(path)
    }

    /// Creates the file of an open channel. `channel_parameters` build another channel in a child.
    fn from_channel(
        channel: Channel,
        channel_parameters: ChannelParameters,
        is_writable: bool,
        cache_invalidator: Option<CacheInvalidator>,
    ) -> RawFile {
        RawFile {
            path: channel.target().path().to_path_buf(),
            mode: channel.target().mode(),
            alignment_bytes: channel.target().alignment_bytes(),
            chunk_bytes: channel.policy().chunk_bytes(),
            depth: channel.policy().depth(),
            buffers_are_registered: channel.buffers_are_registered(),
            in_use: channel.backend(),
            channels: ProcessChannels::new(channel),
            channel_parameters,
            is_writable,
            cache_invalidator,
        }
    }

    /// Reads from byte `offset` on into `memory` and returns the number of bytes. It is less than
    /// the length only at the end of the file.
    ///
    /// ```
    /// # let path = std::env::temp_dir().join(format!("readpath-doc-read-{}", std::process::id()));
    /// std::fs::write(&path, "0123456789")?;
    /// let file = readpath::RawFile::open(&path)?;
    /// let mut memory = [0; 100];
    /// assert_eq!(file.read_at(&mut memory, 7)?, 3);
    /// assert_eq!(&memory[..3], b"789");
    /// assert_eq!(file.read_at(&mut memory, 10)?, 0);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device failed on requested bytes. The error reports the number of bytes before them,
    /// which are valid in `memory`. The content after them is unspecified.
    pub fn read_at(&self, memory: &mut [u8], offset: u64) -> Result<usize, RawError> {
        self.check_range(memory.len(), offset)?;
        let read = self.channel()?.read(memory, offset);
        read.map(|bytes| bytes as usize).map_err(|fault| self.error(fault))
    }

    /// Reads up to `bytes` bytes from `offset` on, or to the end of the file, in order and without
    /// a copy. The [`RawReader`] returns the ring's buffers chunk after chunk while the next chunks
    /// are in flight. This is the fastest way to pass over a file once.
    ///
    /// ```
    /// # let folder = std::env::temp_dir();
    /// # let path = folder.join(format!("readpath-doc-reader-{}", std::process::id()));
    /// std::fs::write(&path, "0123456789")?;
    /// let mut file = readpath::RawFile::open(&path)?;
    /// let mut reader = file.reader(7, 100)?;
    /// assert_eq!(&reader.next_chunk()?.expect("three bytes")[..], b"789");
    /// assert!(reader.next_chunk()?.is_none());
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The length of the file cannot be read, or a child made by `fork` cannot open a channel.
    pub fn reader(&mut self, offset: u64, bytes: u64) -> Result<RawReader<'_>, RawError> {
        let path = &self.path;
        let error = |fault| RawError { path: path.clone(), fault };
        let channel =
            self.channels.for_this_process_mut(&self.channel_parameters).map_err(error)?;
        // A poisoned lock is safe, as in `ProcessChannel::lock`.
        let channel = channel.channel.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let file_bytes = channel.begin_stream().map_err(error)?;
        let offset = offset.min(file_bytes);
        let end = offset.saturating_add(bytes).min(file_bytes);
        Ok(RawReader::new(channel, path, offset..end))
    }

    /// Reads exactly `memory.len()` bytes.
    ///
    /// ```
    /// # use readpath::raw::RawFault;
    /// # let folder = std::env::temp_dir();
    /// # let path = folder.join(format!("readpath-doc-exact-{}", std::process::id()));
    /// std::fs::write(&path, "0123456789")?;
    /// let file = readpath::RawFile::open(&path)?;
    /// let error = file.read_exact_at(&mut [0; 8], 5).unwrap_err();
    /// assert_eq!(error.fault, RawFault::EndOfFile { offset: 10, bytes_done: 5 });
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`read_at`](RawFile::read_at), and if the file ends before.
    pub fn read_exact_at(&self, memory: &mut [u8], offset: u64) -> Result<(), RawError> {
        match self.read_at(memory, offset)? {
            bytes if bytes == memory.len() => Ok(()),
            bytes => {
                let bytes_done = bytes as u64;
                Err(self.error(RawFault::EndOfFile { offset: offset + bytes_done, bytes_done }))
            }
        }
    }

    /// Writes `memory` at byte `offset` and returns the number of bytes written, which is less only
    /// if the kernel stops without an error. A regular file is extended as needed. Bytes between
    /// its old end and `offset` read as zeros.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let folder = std::env::temp_dir();
    /// # let path = folder.join(format!("readpath-doc-write-{}", std::process::id()));
    /// std::fs::write(&path, "0123456789")?;
    /// let file = RawFile::builder().write(true).open(&path)?;
    /// assert_eq!(file.write_at(b"abcd", 8)?, 4);
    /// assert_eq!(std::fs::read(&path)?, b"01234567abcd");
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device failed. The error reports the number of bytes written before the failure. Any
    /// part of the rest may have been written too. Past the old end of the file, such bytes are cut
    /// off unless a batch writes there at the same time. A block device that is too short is not
    /// written at all. No byte is written either if a batch has a write in flight to a block of
    /// which `memory` is only a part.
    pub fn write_at(&self, memory: &[u8], offset: u64) -> Result<usize, RawError> {
        self.check_range(memory.len(), offset)?;
        if !self.is_writable {
            return Err(self.error(RawFault::ReadOnly));
        }
        let range = PageRange::covering(offset, memory.len() as u64);
        let overwriting =
            self.cache_invalidator.as_ref().map(|invalidator| invalidator.begin_overwrite(range));
        let process_channel = self.process_channel()?;
        let batch_writes = &process_channel.batch_writes;
        let written = process_channel.lock().write(memory, offset, batch_writes);
        // Invalidates the range again: reads may have cached old bytes during the write.
        drop(overwriting);
        written.map(|bytes| bytes as usize).map_err(|fault| self.error(fault))
    }

    /// Writes all of `memory`.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let path = std::env::temp_dir().join(format!("readpath-doc-all-{}", std::process::id()));
    /// let file = RawFile::builder().write(true).create(true).open(&path)?;
    /// file.write_all_at(&[1; 70_000], 5)?;
    /// assert_eq!(file.bytes()?, 70_005);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`write_at`](RawFile::write_at), and if the kernel accepts no more bytes.
    pub fn write_all_at(&self, memory: &[u8], offset: u64) -> Result<(), RawError> {
        let mut bytes_done = 0;
        while bytes_done < memory.len() {
            let written = self.write_at(&memory[bytes_done..], offset + bytes_done as u64);
            match written.map_err(|error| self.error(error.fault.after(bytes_done as u64)))? {
                0 => {
                    let (offset, bytes_done) = (offset + bytes_done as u64, bytes_done as u64);
                    return Err(self.error(RawFault::Stalled { offset, bytes_done }));
                }
                bytes => bytes_done += bytes,
            }
        }
        Ok(())
    }

    /// Makes written data durable, with the metadata needed to read it back (above all the length):
    /// `fdatasync(2)`. Concurrent writes of other threads may or may not be included.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let path = std::env::temp_dir().join(format!("readpath-doc-sync-{}", std::process::id()));
    /// let file = RawFile::builder().write(true).create(true).open(&path)?;
    /// file.write_all_at(b"to last", 0)?;
    /// file.sync_data()?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device failed. Data written since the last success may be lost, and the next call may
    /// succeed all the same: write it again.
    pub fn sync_data(&self) -> Result<(), RawError> {
        self.channel()?.sync(SyncScope::Data).map_err(|fault| self.error(fault))
    }

    /// Like [`sync_data`](RawFile::sync_data), with all other metadata such as times: `fsync(2)`.
    /// The directory entry of a new file needs a sync of its directory, which this call does not
    /// do.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let folder = std::env::temp_dir();
    /// # let path = folder.join(format!("readpath-doc-sync-all-{}", std::process::id()));
    /// RawFile::builder().write(true).create(true).open(&path)?.sync_all()?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`sync_data`](RawFile::sync_data).
    pub fn sync_all(&self) -> Result<(), RawError> {
        self.channel()?.sync(SyncScope::DataAndMetadata).map_err(|fault| self.error(fault))
    }

    /// Present length of the file in bytes.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// assert_eq!(readpath::RawFile::open(&path)?.bytes()?, std::fs::metadata(&path)?.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The kernel reports no length.
    pub fn bytes(&self) -> Result<u64, RawError> {
        self.channel()?.bytes().map_err(|fault| self.error(fault))
    }

    /// I/O backend, with the reason why no faster one is used. In a child that cannot have a
    /// channel, the parent's at opening.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// let file = readpath::RawFile::open(&path)?;
    /// println!("{}, carried by {}", file.mode(), file.backend());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backend(&self) -> BackendInUse {
        self.channel().map_or(self.in_use, |channel| channel.backend())
    }

    /// Direct I/O, or the kernel page cache and the reason.
    ///
    /// ```
    /// use readpath::{BufferedBecause, Mode};
    ///
    /// # let path = std::env::current_exe()?;
    /// match readpath::RawFile::open(&path)?.mode() {
    ///     Mode::Direct => {}
    ///     Mode::Buffered(why) => assert_ne!(why, BufferedBecause::Asked),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Block size in bytes. Address and offset must agree modulo it for direct transfers of the
    /// caller's memory. It is 1 if reads go through the kernel page cache.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// assert!(readpath::RawFile::open(&path)?.alignment_bytes().is_power_of_two());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn alignment_bytes(&self) -> u32 {
        self.alignment_bytes
    }

    /// Largest chunk in bytes.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let path = std::env::current_exe()?;
    /// assert_eq!(RawFile::builder().chunk_bytes(65_536).open(&path)?.chunk_bytes(), 65_536);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Largest number of chunks in flight.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let path = std::env::current_exe()?;
    /// assert_eq!(RawFile::builder().depth(7).open(&path)?.depth(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// True if the kernel has the ring's buffers registered, so that a chunk needs no pinning per
    /// request. Only with io_uring, and only within the limit of locked memory (`ulimit -l`).
    /// Everything also works without. Direct transfers of the caller's memory are not affected.
    ///
    /// Chunks of 64 KiB through registered buffers need 0.77 of the processor time. Chunks of 512
    /// KiB show no measurable difference.
    ///
    /// ```
    /// use readpath::RawFile;
    /// use readpath::BackendKind;
    ///
    /// # let path = std::env::current_exe()?;
    /// let over_threads = RawFile::builder().backend(BackendKind::Threads).open(&path)?;
    /// assert!(!over_threads.buffers_are_registered());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn buffers_are_registered(&self) -> bool {
        self.buffers_are_registered
    }

    /// Path given at opening.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// assert_eq!(readpath::RawFile::open(&path)?.path(), path);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Counters of this process since the opening. All are zero in a child that cannot have a
    /// channel.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// let file = readpath::RawFile::open(&path)?;
    /// file.read_exact_at(&mut [0; 100], 1000)?;
    /// assert_eq!(file.stats().reads, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> RawStats {
        self.process_channel().map_or_else(|_| RawStats::default(), ProcessChannel::counters)
    }

    /// Returns the locked channel of this process. A forked child builds one on first use.
    ///
    /// # Errors
    /// This is a forked child that cannot have a channel.
    fn channel(&self) -> Result<MutexGuard<'_, Channel>, RawError> {
        Ok(self.process_channel()?.lock())
    }

    /// Returns the channel of this process with the writes of its batches.
    ///
    /// # Errors
    /// As [`channel`](RawFile::channel).
    fn process_channel(&self) -> Result<&ProcessChannel, RawError> {
        let channel = self.channels.for_this_process(&self.channel_parameters);
        channel.map_err(|fault| self.error(fault))
    }

    /// Adds the path of the file to a fault.
    fn error(&self, fault: RawFault) -> RawError {
        RawError { path: self.path.clone(), fault }
    }

    /// Checks that a range ends at or below the largest offset. Kernel offsets are signed, and the
    /// last block must end there too.
    ///
    /// # Errors
    /// The range exceeds it.
    fn check_range(&self, bytes: usize, offset: u64) -> Result<(), RawError> {
        // Room for the rest of the last block.
        let end_max = i64::MAX as u64 - u64::from(self.alignment_bytes);
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= end_max => Ok(()),
            _ => Err(self.error(RawFault::Range { offset })),
        }
    }
}

impl fmt::Debug for RawFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawFile")
            .field("path", &self.path)
            .field("mode", &self.mode)
            .field("chunk_bytes", &self.chunk_bytes)
            .field("depth", &self.depth)
            .field("buffers_are_registered", &self.buffers_are_registered)
            .finish_non_exhaustive()
    }
}
