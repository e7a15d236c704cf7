//! Raw files: large transfers past every cache, in chunks, reads and writes.
//!
//! A [`RawFile`] is for data that is moved once and in bulk: backups, model
//! weights, column chunks, sort runs. Each call is cut into chunks, and the next
//! is submitted while the last is in flight, so that the device always has
//! work, and several disks of an array have it at once. The cutting is the
//! core's law `ring` ([`readpath_core::raw`]), the same that the modelled world runs.
//!
//! **Memory.** Where your memory is aligned as the file is (its address and the
//! offset have the same remainder in blocks of
//! [`alignment_bytes`](RawFile::alignment_bytes)) the device reads and writes it
//! directly; nothing is copied but a block at each end that is asked for in
//! part. [`RawMemory`] is aligned so, and lies in huge pages, which is worth a lot:
//! see there. Otherwise each chunk goes through a buffer of the ring, which the kernel
//! holds from the opening on where io_uring carries and it may
//! ([`buffers_are_registered`](RawFile::buffers_are_registered)). Offsets and lengths may
//! be anything either way. Depth × chunk bytes are mapped at the opening (2 MiB
//! by default; of 256 KiB or more, 2 MiB at least, for they lie in huge pages), and nothing
//! is allocated afterwards. Who needs the bytes just once, in order, reads them in these
//! buffers: a [`RawReader`] lends them chunk after chunk, the next ones always in flight.
//!
//! **Partial blocks.** A device writes whole blocks. A write that begins or
//! ends within one reads that block first and writes it back with your bytes in
//! it. So:
//! - calls on one `RawFile` take turns, and never lose each other's bytes;
//! - others that write to the *same block* at the same time, through another
//!   `RawFile`, descriptor or process, may lose theirs. Keep to whole blocks where
//!   several write, or to one writer;
//! - a write that ends within the last block of a regular file makes it longer, up
//!   to the end of that block, and then gives it its length back. Somebody who looks in
//!   between sees the longer one, and after a crash it may stay, filled with
//!   zeros. A regular file that others extend at the same time wants whole blocks.
//!
//! **Beside a cache.** A raw file passes by every cache of this process too. One
//! that was opened by [`File::raw`](crate::File::raw) has the read path of that file
//! drop what it overwrites.
//!
//! **What lasts.** A write that has returned is with the device, or with its
//! cache. After [`sync_data`](RawFile::sync_data) has succeeded it outlives a
//! loss of power.
//!
//! **In a child** made by `fork(2)` a raw file goes on over the same open file, with a ring and buffers
//! of the child's own, made when they are first needed. A [`RawReader`] is its parent's, and says so.
//!
//! **Where there is no direct I/O** (tmpfs, some network file systems) the same
//! calls go through the kernel's cache; [`RawFile::mode`] says so, and why, and
//! [`RawFileBuilder::direct`] can make it an error.
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
mod beside;
mod buffers;
mod builder;
mod channel;
mod error;
mod layout;
mod memory;
mod reader;
mod spare;
#[cfg(test)]
mod tests;

pub use batch::{RawBatch, RawMoved};
use beside::Beside;
pub use builder::RawFileBuilder;
use channel::Channel;
pub use error::{RawError, RawFault, RawOpenError};
pub use memory::RawMemory;
pub use reader::{RawChunk, RawReader};
use spare::{Channels, Spare};

/// A regular file or a block device, moved in large chunks past every cache.
///
/// It may be shared between threads. Calls take turns: one large transfer
/// keeps the device busy by itself; for transfers side by side, open it again.
/// See the [module](self) for memory, partial blocks and what lasts.
pub struct RawFile {
    channels: Channels,
    spare: Spare,
    path: PathBuf,
    mode: Mode,
    alignment_bytes: u32,
    chunk_bytes: u64,
    depth: u32,
    is_writable: bool,
    buffers_are_registered: bool,
    /// What carried the bytes when it was opened.
    in_use: BackendInUse,
    /// The read path that takes notice of writes.
    beside: Option<Beside>,
}

/// What a raw file has moved since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawCounters {
    /// Chunks read, with the blocks that writes had to read first.
    pub reads: u64,
    /// Bytes in them, whole blocks.
    pub read_bytes: u64,
    /// Chunks written.
    pub writes: u64,
    /// Bytes in them, whole blocks.
    pub written_bytes: u64,
    /// Bytes copied between the caller's memory and buffers, since they could
    /// not be moved directly. The blocks at the ends of writes don't count.
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

    fn over(channel: Channel, spare: Spare, is_writable: bool, beside: Option<Beside>) -> RawFile {
        RawFile {
            path: channel.target().path().to_path_buf(),
            mode: channel.target().mode(),
            alignment_bytes: channel.target().alignment_bytes(),
            chunk_bytes: channel.policy().chunk_bytes(),
            depth: channel.policy().depth(),
            buffers_are_registered: channel.buffers_are_registered(),
            in_use: channel.backend(),
            channels: Channels::new(channel),
            spare,
            is_writable,
            beside,
        }
    }

    /// Reads from byte `offset` on into `memory`; gives how many bytes there
    /// were: fewer than asked for only at the end of the file.
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
    /// The device failed on bytes that were asked for; the error says how many
    /// before them were read, and these are in `memory`. What is after them there
    /// is unspecified.
    pub fn read_at(&self, memory: &mut [u8], offset: u64) -> Result<usize, RawError> {
        self.check_range(memory.len(), offset)?;
        let read = self.channel()?.read(memory, offset);
        read.map(|bytes| bytes as usize).map_err(|fault| self.error(fault))
    }

    /// Reads up to `bytes` bytes from `offset` on, to the end of the file at the most, in
    /// order and in place: the [`RawReader`] lends the ring's buffers, chunk after chunk,
    /// while the next chunks are in flight. For who goes through a file once, and doesn't
    /// need its bytes in memory of their own, nothing is faster.
    ///
    /// ```
    /// # let path = std::env::temp_dir().join(format!("readpath-doc-reader-{}", std::process::id()));
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
    /// The length of the file can't be learned.
    pub fn reader(&mut self, offset: u64, bytes: u64) -> Result<RawReader<'_>, RawError> {
        let path = &self.path;
        let error = |fault| RawError { path: path.clone(), fault };
        let channel = self.channels.here_mut(&self.spare).map_err(error)?;
        let channel = channel.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let file_bytes = channel.begin_stream().map_err(error)?;
        let offset = offset.min(file_bytes);
        let end = offset.saturating_add(bytes).min(file_bytes);
        Ok(RawReader::new(channel, path, offset..end))
    }

    /// Reads exactly as many bytes as `memory` has.
    ///
    /// ```
    /// # use readpath::raw::RawFault;
    /// # let path = std::env::temp_dir().join(format!("readpath-doc-exact-{}", std::process::id()));
    /// std::fs::write(&path, "0123456789")?;
    /// let file = readpath::RawFile::open(&path)?;
    /// let error = file.read_exact_at(&mut [0; 8], 5).unwrap_err();
    /// assert_eq!(error.fault, RawFault::EndOfFile { offset: 10, bytes_done: 5 });
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`read_at`](RawFile::read_at), and when the file ends before.
    pub fn read_exact_at(&self, memory: &mut [u8], offset: u64) -> Result<(), RawError> {
        match self.read_at(memory, offset)? {
            bytes if bytes == memory.len() => Ok(()),
            bytes => {
                let bytes_done = bytes as u64;
                Err(self.error(RawFault::EndOfFile { offset: offset + bytes_done, bytes_done }))
            }
        }
    }

    /// Writes `memory` from byte `offset` on; gives how many bytes were written:
    /// fewer only where the kernel stops without a reason. A regular file becomes as long
    /// as is needed; what lies between its end and `offset` reads as zeros.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let path = std::env::temp_dir().join(format!("readpath-doc-write-{}", std::process::id()));
    /// std::fs::write(&path, "0123456789")?;
    /// let file = RawFile::builder().write(true).open(&path)?;
    /// assert_eq!(file.write_at(b"abcd", 8)?, 4);
    /// assert_eq!(std::fs::read(&path)?, b"01234567abcd");
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device failed; the error says how many bytes before were written. Of
    /// what comes after, any part may have been written as well, but not past what
    /// was the end of the file. A block device that would have to be longer is not
    /// written to at all.
    pub fn write_at(&self, memory: &[u8], offset: u64) -> Result<usize, RawError> {
        self.check_range(memory.len(), offset)?;
        if !self.is_writable {
            return Err(self.error(RawFault::ReadOnly));
        }
        let range = PageRange::covering(offset, memory.len() as u64);
        let overwriting = self.beside.as_ref().map(|beside| beside.overwrite(range));
        let written = self.channel()?.write(memory, offset);
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
    /// As [`write_at`](RawFile::write_at), and when the kernel takes no more bytes.
    pub fn write_all_at(&self, memory: &[u8], offset: u64) -> Result<(), RawError> {
        let mut done = 0;
        while done < memory.len() {
            match self.write_at(&memory[done..], offset + done as u64)? {
                0 => {
                    let (offset, bytes_done) = (offset + done as u64, done as u64);
                    return Err(self.error(RawFault::Stalled { offset, bytes_done }));
                }
                bytes => done += bytes,
            }
        }
        Ok(())
    }

    /// Has the device keep what was written, and what is needed to read it back (its
    /// length above all), through a loss of power: `fdatasync(2)`. What another
    /// thread is writing meanwhile may be kept or not.
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
    /// The device failed; what was written since the last success may be lost, and
    /// the next call may succeed all the same: write it again.
    pub fn sync_data(&self) -> Result<(), RawError> {
        self.channel()?.sync(false).map_err(|fault| self.error(fault))
    }

    /// As [`sync_data`](RawFile::sync_data), with the rest of what is known of
    /// the file, such as its times: `fsync(2)`. The name of a file that was made
    /// lasts when its directory has been synced, which is not done here.
    ///
    /// ```
    /// # use readpath::RawFile;
    /// # let path = std::env::temp_dir().join(format!("readpath-doc-sync-all-{}", std::process::id()));
    /// RawFile::builder().write(true).create(true).open(&path)?.sync_all()?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn sync_all(&self) -> Result<(), RawError> {
        self.channel()?.sync(true).map_err(|fault| self.error(fault))
    }

    /// The length of the file now, in bytes.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// assert_eq!(readpath::RawFile::open(&path)?.bytes()?, std::fs::metadata(&path)?.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn bytes(&self) -> Result<u64, RawError> {
        self.channel()?.bytes().map_err(|fault| self.error(fault))
    }

    /// What carries the bytes, and why not what suits better.
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

    /// The way that bytes take: directly, or through the kernel's cache, and why.
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

    /// Bytes in a block: what address and offset must agree in for the device to
    /// move the caller's memory directly; 1 when it goes through the kernel's cache.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// assert!(readpath::RawFile::open(&path)?.alignment_bytes().is_power_of_two());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn alignment_bytes(&self) -> u32 {
        self.alignment_bytes
    }

    /// The largest chunk in bytes.
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

    /// The most chunks in flight.
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

    /// Whether the kernel holds the ring's buffers for good, so that a chunk that goes
    /// through one needs no pinning of its own. Over io_uring alone, and not where the
    /// limit of locked memory (`ulimit -l`) forbids it: everything works as well
    /// then. What is moved directly, in memory of the caller's, has nothing to do with it.
    ///
    /// Chunks of 64 KiB through buffers cost 0.77 of the processor time with it;
    /// of those of 512 KiB it makes no difference that could be measured.
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

    /// Where it was found.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// assert_eq!(readpath::RawFile::open(&path)?.path(), path);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was moved so far, by this process.
    ///
    /// ```
    /// # let path = std::env::current_exe()?;
    /// let file = readpath::RawFile::open(&path)?;
    /// file.read_exact_at(&mut [0; 100], 1000)?;
    /// assert_eq!(file.counters().reads, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counters(&self) -> RawCounters {
        self.channel().map_or_else(|_| RawCounters::default(), |channel| channel.counters())
    }

    /// The channel of this process.
    ///
    /// # Errors
    /// This is a child, and there is none.
    fn channel(&self) -> Result<MutexGuard<'_, Channel>, RawError> {
        let channel = self.channels.here(&self.spare).map_err(|fault| self.error(fault))?;
        // A panic leaves nothing in flight, and the books are begun anew by each call.
        Ok(channel.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn error(&self, fault: RawFault) -> RawError {
        RawError { path: self.path.clone(), fault }
    }

    /// Offsets are signed in the kernel, and the last block must end below the largest.
    fn check_range(&self, bytes: usize, offset: u64) -> Result<(), RawError> {
        let most = i64::MAX as u64 - u64::from(self.alignment_bytes);
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= most => Ok(()),
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
