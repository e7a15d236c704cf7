//! One file of a read path, to be read at any place by any number of threads.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use readpath_core::readahead::Advice;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use crate::engine::Handle;
use crate::engine::copy::copy_out;
use crate::engine::desk::slices;
use crate::engine::opening::Identity;
use crate::guard::PageGuard;
use crate::opening::{OpenFileError, find_again};
use crate::path::ReadPath;
use crate::read_error::ReadError;
use crate::reader::Reader;
use crate::target::{Mode, Target};

/// A file or block device, open for reading through a [`ReadPath`].
///
/// Reads name their place, take `&self`, and may come from any number of threads.
/// What is cached is given without a lock, a system call or an allocation. Cheap
/// to clone: a clone has the same readahead state, as `dup(2)` has; for a stream
/// of its own, [`reopen`](File::reopen).
///
/// The pages of a file stay cached as long as a handle of it is open.
///
/// ```
/// use readpath::{Advice, ReadPath};
/// use std::io::IoSliceMut;
/// # let name = std::env::temp_dir().join(format!("readpath-doc-file-{}", std::process::id()));
/// # std::fs::write(&name, (0..100_000u32).map(|at| at as u8).collect::<Vec<u8>>())?;
/// let path = ReadPath::builder().readahead("none").build()?;
/// let mut file = path.open(&name)?;
/// assert_eq!((file.len(), file.is_empty()), (100_000, false));
/// println!("read {}", file.mode());
///
/// // Any place; short only at the end.
/// let mut buffer = [0; 300];
/// assert_eq!(file.read_at(&mut buffer, 99_990)?, 10);
/// assert!(file.read_exact_at(&mut buffer, 99_990).is_err());
/// let (mut one, mut two) = ([0; 3], [0; 5]);
/// file.read_vectored_at(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)], 256)?;
/// assert_eq!((one, two), ([0, 1, 2], [3, 4, 5, 6, 7]));
///
/// // Ahead of need; and no more needed.
/// file.prefetch(0, 8192);
/// assert_eq!(file.page(4096)?[..2], [0, 1]);
/// file.advise(Advice::DontNeed);
///
/// // A stream beside it, with readahead of its own.
/// let stream = file.reopen();
/// stream.advise(Advice::Sequential);
///
/// // When somebody else may have changed the file.
/// file.invalidate(0, 4096);
/// assert!(!file.revalidate()?);
/// assert_eq!(file.stats().bytes, 10 + 10 + 8 + 4096);
/// # std::fs::remove_file(&name)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct File {
    handle: Arc<Handle>,
    name: Arc<PathBuf>,
}

impl File {
    pub(crate) fn new(handle: Handle, name: &Path) -> File {
        File { handle: Arc::new(handle), name: Arc::new(name.to_path_buf()) }
    }

    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// The length in bytes, when the file was opened.
    pub fn len(&self) -> u64 {
        self.handle.file.bytes
    }

    /// Whether the file had no bytes when it was opened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The read path that it was opened by: for a batch, say.
    pub fn read_path(&self) -> ReadPath {
        ReadPath::of(Arc::clone(&self.handle.engine))
    }

    /// The way that its bytes take: past the kernel's cache, or through it and why.
    pub fn mode(&self) -> Mode {
        self.handle.file.mode
    }

    /// Reads bytes from `offset` on into `buffer`; gives how many: fewer than there
    /// is room for only at the end of the file.
    ///
    /// A read of more than half of what the path's memory has for reads (all but what
    /// [guards may hold](crate::Builder::held_memory)), or of more than 16 MiB, is carried
    /// out as several.
    ///
    /// A read of 64 KiB or more of which this path has nothing is taken from the kernel's cache, where that
    /// holds all of it: straight into `buffer`, with no copy in this path's memory. It has what others
    /// have written and not yet carried to the device; a page that this path has is given from here, until it is
    /// [invalidated](File::invalidate).
    ///
    /// # Errors
    /// The storage failed on bytes that were needed, or the file has become
    /// shorter; the error holds a [`ReadError`] that says where.
    #[inline]
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.len().saturating_sub(offset);
        let bytes = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..bytes];
        if bytes > 0
            && !self.handle.read_lent(offset, buffer)
            && !self.handle.read_from_kernel(offset, buffer)
        {
            self.read_through(buffer, offset)?;
        }
        Ok(bytes)
    }

    /// As [`read_at`](File::read_at), but it is an error when the file ends before
    /// the buffer is full.
    ///
    /// # Errors
    /// As there, and [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    #[inline]
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buffer, offset)? == buffer.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads bytes from `offset` on into the buffers, one after the other, as one read.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    pub fn read_vectored_at(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        // What is absent comes in whole first; then every buffer finds its part.
        let range = PageRange::covering(offset, wanted.min(left) as u64);
        if !self.handle.engine.shelf.has(self.handle.file.id, range) {
            let mut all = vec![0; wanted.min(left)];
            self.read_at(&mut all, offset)?;
            let mut rest = &all[..];
            for buffer in buffers {
                let (part, after) = rest.split_at(buffer.len().min(rest.len()));
                buffer[..part.len()].copy_from_slice(part);
                rest = after;
            }
            return Ok(wanted.min(left));
        }
        let mut done = 0;
        for buffer in buffers {
            let bytes = self.read_at(buffer, offset + done as u64)?;
            done += bytes;
            if bytes < buffer.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Lends the page that holds byte `offset` from there to its end, or to the
    /// end of the file, without copying it; reads it first if it is absent. Empty
    /// at and past the end of the file.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at); [`ReadError::HeldMax`] when as much is held as may be.
    pub fn page(&self, offset: u64) -> io::Result<PageGuard> {
        let page = offset / PAGE_BYTES;
        let end = self.len().min((page + 1) * PAGE_BYTES);
        if offset >= end {
            return Ok(PageGuard::empty());
        }
        let (skip, end) = ((offset % PAGE_BYTES) as usize, (end - page * PAGE_BYTES) as usize);
        let (shelf, file) = (&self.handle.engine.shelf, self.handle.file.id);
        loop {
            let held = match self.handle.sees_every_hit {
                true => None,
                false => shelf.hold(file, page, false).map_err(ReadError::from)?,
            };
            if let Some(held) = held {
                self.handle.tally.held((end - skip) as u64, offset + (end - skip) as u64);
                return Ok(PageGuard::of(held, skip, end));
            }
            // Absent, marked, or seen by the law: through the machine, and then
            // it is lent, unless memory is so short that it is gone again.
            let mut bytes = [0; PAGE_BYTES as usize];
            self.read_through(&mut bytes[skip..end], offset)?;
            if let Some(held) = shelf.hold(file, page, true).map_err(ReadError::from)? {
                return Ok(PageGuard::of(held, skip, end));
            }
        }
    }

    /// A reader with a place of its own, for [`Read`](io::Read), [`Seek`](io::Seek) and
    /// [`BufRead`](io::BufRead). It starts at the start.
    pub fn reader(&self) -> Reader {
        Reader::new(self.clone())
    }

    /// The same file with a readahead state of its own.
    pub fn reopen(&self) -> File {
        File { handle: Arc::new(self.handle.again()), name: Arc::clone(&self.name) }
    }

    /// A hint on how this handle will read, as `posix_fadvise(2)` gives it.
    /// `WillNeed` starts to read what is absent of the whole file, as far as memory
    /// allows; `DontNeed` drops what is cached of it and not in use.
    pub fn advise(&self, advice: Advice) {
        self.advise_range(advice, PageRange { first: 0, end: self.len().div_ceil(PAGE_BYTES) });
    }

    /// Starts to read what is absent of `bytes` bytes at `offset`, as far as memory
    /// allows, and doesn't wait for it.
    pub fn prefetch(&self, offset: u64, bytes: u64) {
        let bytes = bytes.min(self.len().saturating_sub(offset));
        self.advise_range(Advice::WillNeed, PageRange::covering(offset, bytes));
    }

    fn advise_range(&self, advice: Advice, range: PageRange) {
        let engine = &self.handle.engine;
        let mut desk = engine.desk();
        let handle = self.handle.id;
        let process = readpath_core::request::ProcessId(handle.0);
        desk.command(|machine, now| machine.advise(now, handle, process, advice, range));
        engine.leave_and_hand_over(desk);
    }

    /// Drops what is cached of `bytes` bytes at `offset`, which somebody has changed
    /// in the storage. Guards and reads under way keep what they have.
    pub fn invalidate(&self, offset: u64, bytes: u64) {
        let engine = &self.handle.engine;
        let mut desk = engine.desk();
        let range = PageRange::covering(offset, bytes);
        desk.command(|machine, _| machine.invalidate(self.handle.id, range));
        engine.leave_and_hand_over(desk);
    }

    /// Looks whether the file of that name has changed since it was opened (device,
    /// inode, length, times of modification and of change), and if so, reads it
    /// afresh from now on; true then. Clones of this handle go on with what they have.
    ///
    /// A server is asked once for each name on the way to the file, and it must
    /// itself know of the change: some believe what they know of a file for a while.
    ///
    /// # Errors
    /// The file can't be opened again, or its server gives no answer in time; this handle
    /// goes on as it is.
    pub fn revalidate(&mut self) -> Result<bool, OpenFileError> {
        let again = match find_again(&self.handle.engine) {
            Some(found) => File::new(found?, &self.name),
            None => self.read_path().open(self.name.as_path()).map_err(OpenFileError::Open)?,
        };
        let has_changed = again.handle.file.id != self.handle.file.id;
        if has_changed {
            *self = again;
        }
        Ok(has_changed)
    }

    /// What this handle has read.
    pub fn stats(&self) -> FileStats {
        let tally = &self.handle.tally;
        let hit_bytes = tally.hit_bytes();
        let [bytes, cached_bytes] = tally.through_sums();
        FileStats { bytes: hit_bytes + bytes, cached_bytes: hit_bytes + cached_bytes }
    }

    /// Reads through the machine what is not lent.
    #[cold]
    fn read_through(&self, buffer: &mut [u8], offset: u64) -> Result<(), ReadError> {
        let engine = &self.handle.engine;
        let mut offset = offset;
        let mut buffer = buffer;
        while !buffer.is_empty() {
            // Pieces end where a page ends.
            let piece_end = (offset + engine.read_bytes_max) / PAGE_BYTES * PAGE_BYTES;
            let bytes = buffer.len().min((piece_end - offset) as usize);
            let (piece, rest) = buffer.split_at_mut(bytes);
            self.read_piece(piece, offset)?;
            offset += bytes as u64;
            buffer = rest;
        }
        Ok(())
    }

    fn read_piece(&self, buffer: &mut [u8], offset: u64) -> Result<(), ReadError> {
        let engine = &self.handle.engine;
        let mut desk = engine.desk();
        let line = desk.open_line(false);
        if let Err(error) = desk.start(&self.handle, offset, buffer.len() as u64, line, 0) {
            desk.close_line(line);
            engine.leave(desk);
            return Err(ReadError::of(error));
        }
        let (mut desk, done) = engine.wait(desk, line);
        let seat = match done {
            Ok(seat) => seat,
            Err(error) => {
                desk.close_line(line);
                engine.leave(desk);
                return Err(ReadError::Storage { error });
            }
        };
        let landed = desk.land(seat);
        let is_queued = desk.take_is_queued();
        engine.leave(desk);
        if is_queued {
            // What the law reads ahead goes out before the bytes are copied.
            engine.hand_over();
        }
        let mut rest = buffer;
        for part in slices(&engine.shelf, &landed) {
            let (here, after) = rest.split_at_mut(part.len());
            copy_out(part, here);
            rest = after;
        }
        let result = landed.result.expect("a read that is done has a result");
        let mut desk = engine.desk();
        desk.take_off(seat, landed);
        desk.close_line(line);
        engine.leave(desk);
        match result {
            Ok(_) => Ok(()),
            Err(error) => Err(ReadError::of(error)),
        }
    }
}

/// What one handle, and its clones, have read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStats {
    /// Bytes that reads asked for, cut at the end of the file.
    pub bytes: u64,
    /// Those of them that were in the cache when the read came, or in the kernel's.
    pub cached_bytes: u64,
}

/// What must be the same for a file to be served from what is cached of it.
pub(crate) fn identity(target: &Target) -> io::Result<Identity> {
    let stat = rustix::fs::fstat(target.as_fd())?;
    Ok(Identity {
        device: stat.st_dev,
        inode: stat.st_ino,
        bytes: target.bytes(),
        modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
        changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
    })
}
