//! One file of a read path, to be read at any place by any number of threads.

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use readpath_core::readahead::Advice;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use crate::copied::Copied;
use crate::engine::Handle;
use crate::engine::copy::copy_out;
use crate::engine::frame_cache::PinnedPage;
use crate::engine::pending::PendingRead;
use crate::guard::PageGuard;
use crate::opening::{OpenFileError, find_again};
use crate::path::ReadPath;
use crate::points;
use crate::read_error::ReadError;
use crate::readahead_state::ReadaheadState;
use crate::reader::Reader;
use crate::target::Mode;

/// A file or block device, open for reading through a [`ReadPath`].
///
/// Reads name their place, take `&self`, and may come from any number of threads.
/// What the path has cached is given without a lock, a system call or an allocation; with nothing set the kernel
/// [keeps the pages](crate::Builder::kernel_cache), and a read is one system call. Cheap
/// to clone: a clone has the same readahead state, as `dup(2)` has; for a stream
/// of its own, [`reopen`](File::reopen).
///
/// The pages of a file stay cached as long as a handle of it is open.
///
/// **When others change the file**, in another process or past the path, a handle gives what
/// it has cached as it was and the rest as it is, perhaps in one read, up to the length that the file had
/// when it was opened; what it has cached may stay so for as long as it is open. Reads through the kernel's
/// cache, as [`mode`](File::mode) tells, are no exception. [`revalidate`](File::revalidate) looks once,
/// [`Builder::coherence`](crate::Builder::coherence) at each miss or each read, and
/// [`raw`](File::raw) writes without any of this.
///
/// **In a child** made by `fork(2)` a file goes on: over the same open file, with a cache, a queue and, where
/// they are needed, threads of the child's own, made by its first read and shared by all files of the
/// path. What the parent has is not touched, by whatever the child does. What was in the middle of
/// something ([`Batch`](crate::Batch), [`ReadFuture`](crate::ReadFuture), [`PageGuard`]), and a
/// server's file, fails there with [`ReadError::Forked`].
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
    name: Arc<Path>,
}

impl File {
    pub(crate) fn new(handle: Handle, name: Arc<Path>) -> File {
        File { handle: Arc::new(handle), name }
    }

    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// The length in bytes: when the file was opened, or last seen to have changed.
    pub fn len(&self) -> u64 {
        self.handle.bytes()
    }

    /// Whether the file has no bytes, as [`len`](File::len) knows it.
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

    /// Whether the kernel [keeps the pages](crate::Builder::kernel_cache): then what it asks its device for is not in the path's
    /// [`Stats`](crate::Stats).
    pub fn kernel_keeps(&self) -> bool {
        self.handle.file.kernel_pages.are_kept()
    }

    /// Reads bytes from `offset` on into `buffer`; gives how many: fewer than there
    /// is room for only at the end of the file.
    ///
    /// A read of more than half of what the path's memory has for reads (all but what
    /// [guards may hold](crate::Builder::held_memory)), or of more than 16 MiB, is carried
    /// out as several.
    ///
    /// A read of which this path has nothing comes through the kernel's cache, where that keeps the pages or
    /// holds all of it: straight into `buffer`, with no copy in this path's memory. It has what others
    /// have written and not yet carried to the device; a page that this path has is given from here, until it is
    /// [invalidated](File::invalidate). ([`Builder::kernel_cache`](crate::Builder::kernel_cache) says when, and turns that off.)
    ///
    /// # Errors
    /// The storage failed on bytes that were needed, or the file has become
    /// shorter; the error holds a [`ReadError`] that says where.
    #[inline]
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let within = cut(buffer, &self.handle, offset);
        if !within.is_empty()
            && (self.handle.read_lent(offset, within)
                || self.handle.read_known_held(offset, within))
        {
            return Ok(within.len());
        }
        Ok(self.read_here(buffer, offset)?)
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
        let wanted: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let handle = &self.handle;
        let within = |handle: &Handle| wanted.min(handle.file.bytes.saturating_sub(offset));
        let range = PageRange::covering(offset, within(handle));
        if handle.lends()
            && handle.has_pages()
            && handle.engine.frame_cache.has(handle.in_machine().file, range)
            && let Some(bytes) = self.read_lent_vectored(buffers, offset)
        {
            return Ok(bytes);
        }
        // What is absent comes in whole first; each part of it goes where it belongs.
        let handle = handle.here()?;
        let bytes = within(&handle);
        if bytes == wanted && handle.read_from_kernel(offset, bytes, buffers) {
            return Ok(bytes as usize);
        }
        let mut to = Destination { buffers: buffers.iter_mut(), rest: &mut [] };
        PendingRead::new(&*handle, offset, bytes)?.wait(|part| to.put(part))?;
        Ok(bytes as usize)
    }

    /// Reads what is lent into the buffers, all of it or nothing: a part that is not lent any more would
    /// else be of the file as it is now, beside others as it was. Gives how many bytes.
    fn read_lent_vectored(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Option<usize> {
        let mut done = 0;
        for buffer in buffers {
            let part = cut(buffer, &self.handle, offset + done as u64);
            if !part.is_empty() && !self.handle.read_lent(offset + done as u64, part) {
                return None;
            }
            done += part.len();
        }
        Some(done)
    }

    /// Lends the page that holds byte `offset` from there to its end, or to the
    /// end of the file, without copying it; reads it first if it is absent. Empty
    /// at and past the end of the file.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at); [`ReadError::HeldMax`] when as much is held as may be.
    pub fn page(&self, offset: u64) -> io::Result<PageGuard> {
        self.page_or_more(offset, PAGE_BYTES, None)
    }

    /// As [`page`](File::page), for who goes on from there: what is copied from the kernel's cache is that page, and as many more as
    /// `copied_bytes` take. The copy is made in `spare` where that is as long.
    pub(crate) fn page_and_on(
        &self,
        offset: u64,
        copied_bytes: u64,
        spare: Option<Copied>,
    ) -> io::Result<PageGuard> {
        self.page_or_more(offset, copied_bytes.next_multiple_of(PAGE_BYTES), spare)
    }

    #[inline]
    fn page_or_more(
        &self,
        offset: u64,
        copied_bytes: u64,
        spare: Option<Copied>,
    ) -> io::Result<PageGuard> {
        if self.handle.lends()
            && let Some((page, part)) = part_of_page(offset, self.handle.file.bytes)
            && let Some(held) = self.handle.hold_cached(page).map_err(ReadError::from)?
        {
            return Ok(lent(&self.handle, held, page, part));
        }
        self.page_here(offset, copied_bytes, spare)
    }

    /// A reader with a place of its own, for [`Read`](io::Read), [`Seek`](io::Seek) and
    /// [`BufRead`](io::BufRead). It starts at the start.
    pub fn reader(&self) -> Reader {
        Reader::new(self.clone())
    }

    /// The same file with a readahead state of its own.
    pub fn reopen(&self) -> File {
        // Where there is none in this child, each use of the file says so.
        let again = self.handle.here_as_seen().map(|handle| Arc::new(handle.again()));
        let handle = again.unwrap_or_else(|_| Arc::clone(&self.handle));
        File { handle, name: Arc::clone(&self.name) }
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
        // A hint: that there is no handle in this child is told by its reads.
        let handle = match advice {
            // What is brought in belongs to the file as it is.
            Advice::WillNeed => self.handle.here(),
            _ => self.handle.here_as_seen(),
        };
        if let Ok(handle) = handle {
            handle.advise(advice, range);
        }
    }

    /// Drops what is cached of `bytes` bytes at `offset`, which somebody has changed
    /// in the storage; where the kernel keeps the pages, what is clean of its. What is on its way of it is waited for, so that
    /// a read which begins afterwards sees the change. Guards and reads under way keep what they have.
    pub fn invalidate(&self, offset: u64, bytes: u64) {
        let Ok(handle) = self.handle.here_as_seen() else { return };
        let bytes = bytes.min(handle.file.bytes.saturating_sub(offset));
        let range = PageRange::covering(offset, bytes);
        handle.file.kernel_pages.drop_kept(range);
        handle.invalidate(range);
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
        let again = match find_again(&self.handle)? {
            Some(found) => File::new(found, Arc::clone(&self.name)),
            None => self.read_path().open(&self.name).map_err(OpenFileError::Open)?,
        };
        let has_changed = match self.handle.here_as_seen() {
            Ok(handle) => handle.file.identity != again.handle.file.identity,
            Err(_) => true,
        };
        if has_changed {
            *self = again;
        }
        Ok(has_changed)
    }

    /// What this handle has read; in a child made by `fork`, what it has read there. And what is
    /// [believed](ReadaheadState) of the file at the moment, for which the path is locked as by a read that misses.
    pub fn stats(&self) -> FileStats {
        let [bytes, cached_bytes, kernel_bytes, kernel_cached_bytes] = self.handle.sums();
        let kernel_read_bytes = kernel_bytes - kernel_cached_bytes;
        let readahead_state = self
            .handle
            .here_as_seen()
            .ok()
            .map(|handle| ReadaheadState::of(handle.readahead_state()));
        FileStats { bytes, cached_bytes, kernel_cached_bytes, kernel_read_bytes, readahead_state }
    }

    /// Reads what is not lent past the door; gives how many bytes.
    #[cold]
    fn read_here(&self, buffer: &mut [u8], offset: u64) -> Result<usize, ReadError> {
        let handle = self.handle.here()?;
        let buffer = cut(buffer, &handle, offset);
        let _read = points::read(offset, buffer.len() as u64);
        if !buffer.is_empty() && (handle.lends() || !handle.read_cached(offset, buffer)) {
            read_absent(&handle, offset, buffer)?;
        }
        Ok(buffer.len())
    }

    /// As [`page`](File::page), of a page that is not lent past the door; of up to `copied_bytes` from the start of that
    /// page on where the kernel's cache has them.
    #[cold]
    fn page_here(
        &self,
        offset: u64,
        copied_bytes: u64,
        spare: Option<Copied>,
    ) -> io::Result<PageGuard> {
        let handle = self.handle.here()?;
        let Some((page, part)) = part_of_page(offset, handle.file.bytes) else {
            return Ok(PageGuard::empty());
        };
        if let Some(held) = handle.hold_cached(page).map_err(ReadError::from)? {
            return Ok(lent(&handle, held, page, part));
        }
        let copied_end = (page * PAGE_BYTES + copied_bytes).min(handle.file.bytes);
        if let Some(copy) = handle.copied_from_kernel(offset, copied_end - offset, || spare) {
            return Ok(PageGuard::of_copy(copy));
        }
        // Absent, marked, or seen by the law: through the machine. It is held while the read still has it: as soon as that
        // lets it go, the next one that waits for memory may take the frame.
        let read = PendingRead::new(&*handle, offset, part.len() as u64)?;
        let frame_cache = &handle.engine.frame_cache;
        let (mut held, mut copy) = (Ok(None), None);
        read.wait(|bytes| {
            held = frame_cache.hold(handle.in_machine().file, page, true);
            copy = matches!(held, Ok(None)).then(|| Copied::from(bytes));
        })?;
        Ok(match held.map_err(ReadError::from)? {
            Some(held) => PageGuard::of(held, part.start, part.end),
            // It had to go at once.
            None => PageGuard::of_copy(copy.expect("a page that was read has bytes")),
        })
    }
}

/// How much is copied from the kernel's cache at the most for who reads on. (256 MiB by 4 KiB, held: 70 ms by `pread`; in copies of 16, 32, 64,
/// 128 and 256 KiB 59, 53, 53, 48 and 49.)
pub(crate) const COPIED_BYTES: u64 = 128 << 10;

/// The part of a buffer for which the file has bytes from `offset` on.
pub(crate) fn cut<'b>(buffer: &'b mut [u8], handle: &Handle, offset: u64) -> &'b mut [u8] {
    let left = handle.file.bytes.saturating_sub(offset);
    let bytes = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    &mut buffer[..bytes]
}

/// Fills a buffer with bytes that the file has, from the kernel's cache or through the machine.
pub(crate) fn read_absent(
    handle: &Handle,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), ReadError> {
    let bytes = buffer.len() as u64;
    if handle.read_from_kernel(offset, bytes, &mut [IoSliceMut::new(buffer)]) {
        return Ok(());
    }
    let mut done = 0;
    PendingRead::new(handle, offset, bytes)?.wait(|part| {
        copy_out(part, &mut buffer[done..done + part.len()]);
        done += part.len();
    })
}

/// The page of a byte, and its part from there up to the end of the page or of the file; none past it.
fn part_of_page(offset: u64, file_bytes: u64) -> Option<(u64, Range<usize>)> {
    let (page, skip) = (offset / PAGE_BYTES, offset % PAGE_BYTES);
    let left = file_bytes.checked_sub(offset).filter(|&left| left > 0)?;
    Some((page, skip as usize..(skip + left).min(PAGE_BYTES) as usize))
}

/// A guard on a part of a page that was lent past the machine.
fn lent(handle: &Handle, held: PinnedPage, page: u64, part: Range<usize>) -> PageGuard {
    handle.read_counters.held(part.len() as u64, page * PAGE_BYTES + part.end as u64);
    PageGuard::of(held, part.start, part.end)
}

/// The buffers of a vectored read.
struct Destination<'a, 'b> {
    /// Those that nothing has been put into yet.
    buffers: std::slice::IterMut<'a, IoSliceMut<'b>>,
    /// What is left of the one before them.
    rest: &'a mut [u8],
}

impl Destination<'_, '_> {
    /// Puts bytes after those that are there; there is room for them.
    fn put(&mut self, mut part: &[u8]) {
        while !part.is_empty() {
            if self.rest.is_empty() {
                self.rest = self.buffers.next().expect("no more is read than there is room for");
            }
            let bytes = part.len().min(self.rest.len());
            let (here, after) = std::mem::take(&mut self.rest).split_at_mut(bytes);
            copy_out(&part[..bytes], here);
            (self.rest, part) = (after, &part[bytes..]);
        }
    }
}

/// What one handle, and its clones, have read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStats {
    /// Bytes that reads asked for, cut at the end of the file.
    pub bytes: u64,
    /// Those of them that were in the cache when the read came, or in the kernel's.
    pub cached_bytes: u64,
    /// Those of these that were taken from the kernel's.
    pub kernel_cached_bytes: u64,
    /// Bytes that the kernel read into its cache for these reads, and that they waited for.
    pub kernel_read_bytes: u64,
    /// What the readahead law believes of the file; `None` in a child made by `fork` that can't have a path of its
    /// own.
    pub readahead_state: Option<ReadaheadState>,
}
