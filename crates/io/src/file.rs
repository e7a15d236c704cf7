//! File of a read path: reads at any offset, from any number of threads.
//!
//! A file has a *handle*: one opening with a readahead state of its own. `current` returns the
//! handle for this process and the present version of the file, which it may check by fstat(2).
//! `current_unchecked` leaves the check out. The *fast path* returns cached bytes without both.
//! A page is *shared* if readers may copy it from the path's own cache without its lock. The
//! *engine* is that cache with its requests. It knows a registered handle by numbers.

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use readpath_core::readahead::Advice;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use crate::os::aligned_bytes::AlignedBytes;
use crate::page_cache::PageCache;
use crate::page_cache::kernel::FilePages;
use crate::page_cache::own::Handle;
use crate::page_cache::own::copy_out::copy_out;
use crate::page_cache::own::frame_cache::PinnedPage;
use crate::page_cache::own::pending_read::PendingRead;
use crate::page_cache::own::storage_backend::StorageFile;
use crate::page_guard::PageGuard;
use crate::path::ReadPath;
use crate::probes;
use crate::read_error::ReadError;
use crate::readahead_state::ReadaheadState;
use crate::target::identity::file_time;
use crate::target::{Mode, OpenError, OpenOptions, Target};

pub(crate) mod open_file;
mod open_source;
pub(crate) mod reader;

use open_file::{OpenFileError, look_up_nfs_again};
use reader::Reader;

/// A file or block device, open for reading through a [`ReadPath`].
///
/// Reads take an offset and `&self`, and may come from any number of threads. Cached bytes are
/// returned without a lock, a system call or an allocation. By default [the kernel caches the
/// pages](crate::PageCache), and a read is one system call. Cloning is cheap, and a
/// clone shares the readahead state, as after `dup(2)`. Use [`reopen`](File::reopen) for a stream
/// with a state of its own.
///
/// The pages of a file stay cached as long as a handle of it is open.
///
/// **Changes by others** (another process, or this one without the path): a handle returns cached
/// bytes as they were and the rest as they are. Both may occur in one read, up to the length at
/// opening, and cached bytes may stay old as long as the file is open. Reads through the kernel
/// page cache (see [`mode`](File::mode)) are no exception. [`revalidate`](File::revalidate) checks
/// once, [`Builder::coherence`](crate::Builder::coherence) at each miss or each read.
/// [`raw`](File::raw) writes and keeps this cache correct.
///
/// **In a child** made by `fork(2)` a file continues over the same open file description. The
/// child's first read creates a cache, a queue and, if needed, threads, shared by all files of the
/// path. The child never touches the parent's. A [`Batch`](crate::Batch),
/// [`ReadFuture`](crate::ReadFuture) or [`PageGuard`] of the parent, and a file of an NFS server or
/// of a source, fail in the child with [`ReadError::Forked`].
///
/// ```
/// use readpath::{Advice, PageCache, ReadPath};
/// use std::io::IoSliceMut;
/// # let name = std::env::temp_dir().join(format!("readpath-doc-file-{}", std::process::id()));
/// # std::fs::write(&name, (0..100_000u32).map(|at| at as u8).collect::<Vec<u8>>())?;
/// let path = ReadPath::builder()
///     .page_cache(PageCache::Own { bytes: None })
///     .readahead("none")
///     .build()?;
/// let mut file = path.open(&name)?;
/// assert_eq!((file.len(), file.is_empty()), (100_000, false));
/// println!("read {}", file.mode());
///
/// // Any offset; short only at the end.
/// let mut buffer = [0; 300];
/// assert_eq!(file.read_at(&mut buffer, 99_990)?, 10);
/// assert!(file.read_exact_at(&mut buffer, 99_990).is_err());
/// let (mut one, mut two) = ([0; 3], [0; 5]);
/// file.read_vectored_at(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)], 256)?;
/// assert_eq!((one, two), ([0, 1, 2], [3, 4, 5, 6, 7]));
///
/// // Prefetch, then drop the cached pages.
/// file.prefetch(0, 8192);
/// assert_eq!(file.page(4096)?[..2], [0, 1]);
/// file.advise(Advice::DontNeed);
///
/// // Another stream, with readahead of its own.
/// let stream = file.reopen();
/// stream.advise(Advice::Sequential);
///
/// // After possible changes by others.
/// file.invalidate(0, 4096);
/// assert!(!file.revalidate()?);
/// assert_eq!(file.stats().bytes, 10 + 10 + 8 + 4096);
/// # std::fs::remove_file(&name)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct File {
    /// Readahead state and counters, shared by clones; [`File::revalidate`] replaces it.
    handle: Arc<Handle>,
    /// Name given at opening.
    name: Arc<Path>,
}

impl ReadPath {
    /// Opens a regular file or a block device.
    ///
    /// A file that is already open and unchanged shares its cached pages. "Unchanged" compares
    /// device, inode, length, modification time and change time. The pages of a changed file are
    /// read again by this and later handles. Earlier handles continue with the cached pages until
    /// they are [revalidated](File::revalidate). An empty file that grows stays empty for earlier
    /// handles in the same way.
    ///
    /// # Errors
    /// The file does not exist, cannot be opened, is neither regular nor a block device, or is
    /// generated by the kernel at each read (`/proc`).
    pub fn open(&self, name: impl AsRef<Path>) -> Result<File, OpenError> {
        let name = name.as_ref();
        let engine =
            self.engine().for_this_process().map_err(|why| OpenError::from_fork(name, why))?;
        // Read before the file's times, so that a later change is recognized as recent. The
        // unstable id marks a version whose next change may leave its times as they are.
        let opening_time = file_time();
        let options = OpenOptions { is_writable: false, direct: engine.pages.direct() };
        let creates = false;
        let target = Target::open_or_create(name, options, creates)?;
        let identity = target.identity().with_unstable_id(opening_time, engine.coherence);
        let name = target.name();
        Ok(File::new(Handle::open(&engine, StorageFile::Local(target), identity), name))
    }
}

impl File {
    /// Creates the file of a new handle. `name` is the name given at opening.
    pub(crate) fn new(handle: Handle, name: Arc<Path>) -> File {
        File { handle: Arc::new(handle), name }
    }

    /// Name with which the file was opened.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Returns the handle of the state in which the file was opened or last revalidated.
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Length in bytes at opening, or when a change was last seen.
    pub fn len(&self) -> u64 {
        self.handle.bytes()
    }

    /// True if [`len`](File::len) is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the read path of this file, for example for a [`Batch`](crate::Batch).
    pub fn read_path(&self) -> ReadPath {
        ReadPath::from_engine(Arc::clone(&self.handle.engine))
    }

    /// I/O mode: direct I/O, or the kernel page cache and the reason.
    pub fn mode(&self) -> Mode {
        self.handle.file.mode
    }

    /// True if a read of the range would now find all bytes in memory, in this path's cache or in
    /// the kernel page cache. A [`prefetch`](File::prefetch) would then have no effect. False in a
    /// child made by `fork` that cannot have a path of its own.
    pub fn is_cached(&self, offset: u64, bytes: u64) -> bool {
        let Ok(handle) = self.handle().current_unchecked() else { return false };
        let file = &handle.file;
        let bytes = bytes.min(file.bytes.saturating_sub(offset));
        let pages = PageRange::covering(offset, bytes);
        // A source may have all its bytes in memory. Otherwise the path's cache has all pages, or
        // it has none and the kernel has all: a read that finds some in each goes to the storage.
        file.storage_file.has_all_bytes()
            || handle.are_all_shared(pages)
            || !handle.has_own_pages(offset, bytes) && file.pages.are_resident(pages)
    }

    /// Page cache of the file and its path. With [`PageCache::Kernel`] the kernel's
    /// requests to the device are not in [`Stats`](crate::Stats).
    pub fn page_cache(&self) -> PageCache {
        self.handle.engine.pages.page_cache()
    }

    /// Reads bytes from `offset` on into `buffer` and returns their number. It is less than the
    /// length of the buffer only at the end of the file.
    ///
    /// A read is split if it is larger than 16 MiB, or than half of the path's memory that [guards
    /// may not pin](crate::Builder::held_memory).
    ///
    /// With [`PageCache::Kernel`] the read goes through the kernel page cache, straight into
    /// `buffer`, and sees writes that have not yet reached the device. With [`PageCache::Own`] the
    /// path's pages are returned until they are [invalidated](File::invalidate). Pages that only
    /// the kernel has come [from there](crate::Builder::kernel_cache).
    ///
    /// # Errors
    /// The storage failed on requested bytes, or the file was truncated. The error holds a
    /// [`ReadError`] with the position.
    #[inline]
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let handle = &*self.handle;
        let within = clip_to_file(buffer, handle, offset);
        let bytes = within.len();
        // True once `within` has been filled without the slow path. An empty read takes that path.
        let is_read = match &handle.file.pages {
            FilePages::Kernel(file) => {
                bytes > 0
                    && handle.is_fast_path_enabled()
                    && handle.read_kernel_pages(
                        file,
                        offset,
                        bytes as u64,
                        &mut [IoSliceMut::new(within)],
                    )
            }
            // Shared frames of the path, or else pages known to be in the kernel page cache. Both
            // functions check that the fast path is enabled.
            FilePages::Own(resident) => {
                bytes > 0
                    && (handle.read_shared(offset, within)
                        || resident
                            .as_ref()
                            .is_some_and(|file| handle.read_known_resident(file, offset, within)))
            }
            FilePages::None => false,
        };
        match is_read {
            true => Ok(bytes),
            false => Ok(self.read_uncached(buffer, offset)?),
        }
    }

    /// Like [`read_at`](File::read_at), but a file that ends before the buffer is full is an error.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at), and [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    #[inline]
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buffer, offset)? == buffer.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads bytes from `offset` on into the buffers in order, as one read.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at).
    pub fn read_vectored_at(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        let requested_bytes: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let handle = &self.handle;
        let bytes_in_file =
            |handle: &Handle| requested_bytes.min(handle.file.bytes.saturating_sub(offset));
        let range = PageRange::covering(offset, bytes_in_file(handle));
        if handle.is_fast_path_enabled()
            && handle.are_all_shared(range)
            && let Some(bytes) = self.read_shared_vectored(buffers, offset)
        {
            return Ok(bytes);
        }
        // Slow path: read all absent pages first, then copy each part to its buffer. Reads of a
        // file that the kernel caches always come here, unlike in `read_at`.
        let handle = handle.current()?;
        let bytes = bytes_in_file(&handle);
        if bytes == 0 || handle.read_start_from_kernel(offset, bytes, buffers) {
            return Ok(bytes as usize);
        }
        let mut destination = Destination { buffers: buffers.iter_mut(), rest: &mut [] };
        PendingRead::new(&*handle, offset, bytes)?.wait(|part| destination.append(part))?;
        Ok(bytes as usize)
    }

    /// Copies the range from shared frames into the buffers and returns the number of bytes. `None`
    /// if a byte is not shared: a partial result could mix bytes of two versions of the file.
    fn read_shared_vectored(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Option<usize> {
        let mut bytes_done = 0;
        for buffer in buffers {
            let part = clip_to_file(buffer, &self.handle, offset + bytes_done as u64);
            if !part.is_empty() && !self.handle.read_shared(offset + bytes_done as u64, part) {
                return None;
            }
            bytes_done += part.len();
        }
        Some(bytes_done)
    }

    /// Pins the page that holds byte `offset` and returns it from there to its end, or to the end
    /// of the file, without a copy. An absent page is read first. The guard is empty at and past
    /// the end of the file.
    ///
    /// # Errors
    /// As [`read_at`](File::read_at); [`ReadError::TooManyPinned`] if guards already pin as many
    /// pages as allowed.
    pub fn page(&self, offset: u64) -> io::Result<PageGuard> {
        let reusable = None;
        self.page_or_copy(offset, PAGE_BYTES, reusable)
    }

    /// Like [`page`](File::page), for sequential callers: a copy from the kernel page cache ends at
    /// most `copy_bytes_max`, rounded up to whole pages, after the start of the page. It reuses
    /// `reusable` if that is long enough.
    pub(crate) fn page_and_following(
        &self,
        offset: u64,
        copy_bytes_max: u64,
        reusable: Option<AlignedBytes>,
    ) -> io::Result<PageGuard> {
        self.page_or_copy(offset, copy_bytes_max.next_multiple_of(PAGE_BYTES), reusable)
    }

    /// Returns a guard from byte `offset` on: of a page pinned in shared frames if possible,
    /// otherwise by the slow path. `copy_bytes_max` and `reusable` are for a copy.
    #[inline]
    fn page_or_copy(
        &self,
        offset: u64,
        copy_bytes_max: u64,
        reusable: Option<AlignedBytes>,
    ) -> io::Result<PageGuard> {
        if self.handle.is_fast_path_enabled()
            && let Some((page, part)) = page_part(offset, self.handle.file.bytes)
            && let Some(pinned_page) = self.handle.pin_shared(page).map_err(ReadError::from)?
        {
            return Ok(guard_of_pinned(&self.handle, pinned_page, page, part));
        }
        self.page_uncached(offset, copy_bytes_max, reusable)
    }

    /// A reader with a position, for [`Read`](io::Read), [`Seek`](io::Seek) and
    /// [`BufRead`](io::BufRead). It starts at byte 0.
    pub fn reader(&self) -> Reader {
        Reader::new(self.clone())
    }

    /// Another handle of the file, with a readahead state of its own.
    pub fn reopen(&self) -> File {
        // A child without an engine keeps the old handle: each later use of it returns the error.
        let reopened = self.handle.current_unchecked().map(|handle| Arc::new(handle.reopen()));
        let handle = reopened.unwrap_or_else(|_| Arc::clone(&self.handle));
        File { handle, name: Arc::clone(&self.name) }
    }

    /// Hint on the access pattern of this handle, as in `posix_fadvise(2)`. `WillNeed` starts to
    /// read all absent pages of the file, as far as memory allows. `DontNeed` drops its cached
    /// pages that are not in use.
    pub fn advise(&self, advice: Advice) {
        self.advise_range(advice, PageRange { first: 0, end: self.len().div_ceil(PAGE_BYTES) });
    }

    /// Starts to read the absent pages of a range, as far as memory allows. Waits for no data, but
    /// the kernel may take up to 0.8 s a GiB to begin (measured).
    pub fn prefetch(&self, offset: u64, bytes: u64) {
        let bytes = bytes.min(self.len().saturating_sub(offset));
        self.advise_range(Advice::WillNeed, PageRange::covering(offset, bytes));
    }

    /// Passes a hint for a page range to the handle of this process. A hint that fails has no
    /// effect.
    fn advise_range(&self, advice: Advice, range: PageRange) {
        // A hint has no error. Reads in this child report that there is no handle.
        let handle = match advice {
            // Pages brought in now belong to the present version of the file.
            Advice::WillNeed => self.handle.current(),
            // Other advice is about the handle, or about pages that are cached already.
            _ => self.handle.current_unchecked(),
        };
        if let Ok(handle) = handle {
            handle.advise(advice, range);
        }
    }

    /// Drops cached bytes of a range that was changed in the storage, including clean pages of the
    /// kernel page cache if the kernel caches the pages. Waits for requests in flight in the range:
    /// a read that begins afterwards sees the change. Guards and reads in progress keep their
    /// bytes.
    pub fn invalidate(&self, offset: u64, bytes: u64) {
        // A child that cannot have a path of its own has no cached pages.
        let Ok(handle) = self.handle.current_unchecked() else { return };
        let bytes = bytes.min(handle.file.bytes.saturating_sub(offset));
        let range = PageRange::covering(offset, bytes);
        if let Some(file) = handle.file.pages.kernel_file() {
            file.drop_pages(range);
        }
        handle.invalidate(range);
    }

    /// Checks whether the file of that name has changed since it was opened: device, inode, length,
    /// modification time and change time. Returns true for a change, and this handle then reads the
    /// new version with its lasting advice. Clones of the handle continue with the old one.
    ///
    /// An NFS server gets one request for each component of the name. Its answer is as fresh as its
    /// own attribute cache. A [source](crate::source) has one version, and never a change.
    ///
    /// # Errors
    /// The file cannot be opened again, or its server does not answer in time. This handle stays as
    /// it is.
    pub fn revalidate(&mut self) -> Result<bool, OpenFileError> {
        let reopened = match look_up_nfs_again(&self.handle)? {
            Some(handle) => File::new(handle, Arc::clone(&self.name)),
            // A source has one version.
            None if self.handle.file.storage_file.source().is_some() => return Ok(false),
            None => self.read_path().open(&self.name).map_err(OpenFileError::Open)?,
        };
        let handle = self.handle.current_unchecked();
        let has_changed = match &handle {
            Ok(handle) => !handle.file.identity.is_same_version(&reopened.handle.file.identity),
            // This child has no usable handle yet.
            Err(_) => true,
        };
        if has_changed {
            handle.as_ref().unwrap_or(&self.handle).pass_advice_to(&reopened.handle);
            *self = reopened;
        }
        Ok(has_changed)
    }

    /// Read counters of this handle (in a child made by `fork`: of its reads there), and the
    /// present readahead estimate ([`ReadaheadState`]). Takes the path's lock, like a read that
    /// misses.
    pub fn stats(&self) -> FileStats {
        let [bytes, cached_bytes, kernel_bytes, kernel_cached_bytes] = self.handle.counter_sums();
        let kernel_read_bytes = kernel_bytes - kernel_cached_bytes;
        let readahead_state = self
            .handle
            .current_unchecked()
            .ok()
            .map(|handle| ReadaheadState::from_core(handle.readahead_state()));
        FileStats { bytes, cached_bytes, kernel_cached_bytes, kernel_read_bytes, readahead_state }
    }

    /// Reads bytes from `offset` on that are not in shared frames, through the kernel page cache or
    /// the engine. Returns their number, less than the buffer only at the end of the file.
    #[cold]
    fn read_uncached(&self, buffer: &mut [u8], offset: u64) -> Result<usize, ReadError> {
        let handle = self.handle.current()?;
        let buffer = clip_to_file(buffer, &handle, offset);
        // A read through the kernel page cache begins its own probe.
        let _probe = handle
            .file
            .pages
            .kernel_file()
            .is_none()
            .then(|| probes::begin_read(offset, buffer.len() as u64));
        // If the fast path is enabled, `read_at` has looked up shared frames already. Otherwise
        // they are looked up here, after the checks of `current`. The closure never ends a read of
        // a source early.
        if !buffer.is_empty()
            && (handle.is_fast_path_enabled() || !handle.read_shared_checked(offset, buffer))
            && open_source::read_direct(&handle, buffer, offset, || true)?.is_none()
        {
            read_absent(&handle, offset, buffer)?;
        }
        Ok(buffer.len())
    }

    /// Slow path of [`page`](File::page), for a page that is not in shared frames. If the kernel
    /// page cache has them, the bytes from `offset` on are copied. The copy ends `copy_bytes_max`
    /// bytes after the start of the page, or at the end of the file.
    #[cold]
    fn page_uncached(
        &self,
        offset: u64,
        copy_bytes_max: u64,
        reusable: Option<AlignedBytes>,
    ) -> io::Result<PageGuard> {
        let handle = self.handle.current()?;
        let Some((page, part)) = page_part(offset, handle.file.bytes) else {
            return Ok(PageGuard::empty());
        };
        if let Some(pinned_page) = handle.pin_shared(page).map_err(ReadError::from)? {
            return Ok(guard_of_pinned(&handle, pinned_page, page, part));
        }
        let copied_end = (page * PAGE_BYTES + copy_bytes_max).min(handle.file.bytes);
        if let Some(copy) = handle.copy_from_kernel(offset, copied_end - offset, || reusable) {
            return Ok(PageGuard::from_copy(copy));
        }
        // The page is absent, or its use must reach the readahead policy (a *marked* page): read it
        // through the engine. Pin it while the read still pins it. Once the read ends, the next
        // read that waits for memory may take the frame.
        let read = PendingRead::new(&*handle, offset, part.len() as u64)?;
        let frame_cache = &handle.engine.frame_cache;
        let (mut pinned_page, mut copy) = (Ok(None), None);
        read.wait(|bytes| {
            // The policy has processed the mark by this read.
            let ignores_mark = true;
            pinned_page =
                frame_cache.pin(handle.machine_ids_or_register().file_id, page, ignores_mark);
            copy = matches!(pinned_page, Ok(None)).then(|| AlignedBytes::from(bytes));
        })?;
        Ok(match pinned_page.map_err(ReadError::from)? {
            Some(pinned_page) => PageGuard::from_pinned(pinned_page, part.start, part.end),
            // The frame was taken at once: return the copy.
            None => PageGuard::from_copy(copy.expect("a page that was read has bytes")),
        })
    }
}

/// Largest copy from the kernel page cache for a sequential caller of `page`, in bytes. 256 MiB
/// resident, read by 4 KiB: 70 ms by `pread`; in copies of 16, 32, 64, 128 and 256 KiB 59, 53, 53,
/// 48 and 49 ms.
pub(crate) const SEQUENTIAL_COPY_BYTES: u64 = 128 << 10;

/// Returns the first part of `buffer` that the file can fill from `offset` on.
pub(crate) fn clip_to_file<'b>(buffer: &'b mut [u8], handle: &Handle, offset: u64) -> &'b mut [u8] {
    let file_bytes_left = handle.file.bytes.saturating_sub(offset);
    let bytes = buffer.len().min(usize::try_from(file_bytes_left).unwrap_or(usize::MAX));
    &mut buffer[..bytes]
}

/// Fills `buffer` with the bytes from `offset` on, from the kernel page cache or through the
/// engine. The file must have them all.
pub(crate) fn read_absent(
    handle: &Handle,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), ReadError> {
    let bytes = buffer.len() as u64;
    if handle.read_from_kernel(offset, bytes, &mut [IoSliceMut::new(buffer)]) {
        return Ok(());
    }
    let mut bytes_done = 0;
    PendingRead::new(handle, offset, bytes)?.wait(|part| {
        copy_out(part, &mut buffer[bytes_done..bytes_done + part.len()]);
        bytes_done += part.len();
    })
}

/// Returns the number of the page that contains byte `offset`. Also returns the byte range in that
/// page from there to its end or the end of the file. Returns `None` at or past the end of the
/// file.
fn page_part(offset: u64, file_bytes: u64) -> Option<(u64, Range<usize>)> {
    let (page, skip) = (offset / PAGE_BYTES, offset % PAGE_BYTES);
    let bytes_left = file_bytes.checked_sub(offset).filter(|&bytes_left| bytes_left > 0)?;
    Some((page, skip as usize..(skip + bytes_left).min(PAGE_BYTES) as usize))
}

/// Creates a guard of the byte range `part` of a page that was pinned without the engine, and
/// counts the read. `page` is the number of the page in the file. The counters take the offset in
/// the file at which the guard ends.
fn guard_of_pinned(
    handle: &Handle,
    pinned_page: PinnedPage,
    page: u64,
    part: Range<usize>,
) -> PageGuard {
    handle.read_counters.record_pin(part.len() as u64, page * PAGE_BYTES + part.end as u64);
    PageGuard::from_pinned(pinned_page, part.start, part.end)
}

/// Output buffers of a vectored read, filled in order.
struct Destination<'a, 'b> {
    /// Buffers that have no bytes yet.
    buffers: std::slice::IterMut<'a, IoSliceMut<'b>>,
    /// Unfilled rest of the current buffer.
    rest: &'a mut [u8],
}

impl Destination<'_, '_> {
    /// Appends bytes to the buffers. The caller never passes more than fits.
    fn append(&mut self, mut part: &[u8]) {
        while !part.is_empty() {
            if self.rest.is_empty() {
                self.rest =
                    self.buffers.next().expect("the buffers have room for all bytes of the read");
            }
            let bytes = part.len().min(self.rest.len());
            let (target, unfilled) = std::mem::take(&mut self.rest).split_at_mut(bytes);
            copy_out(&part[..bytes], target);
            (self.rest, part) = (unfilled, &part[bytes..]);
        }
    }
}

/// Read counters of one handle and its clones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStats {
    /// Requested bytes, cut at the end of the file.
    pub bytes: u64,
    /// Bytes found in the path's cache or in the kernel page cache.
    pub cached_bytes: u64,
    /// Bytes of `cached_bytes` that came from the kernel page cache.
    pub kernel_cached_bytes: u64,
    /// Bytes that the kernel read into its page cache while these reads waited.
    pub kernel_read_bytes: u64,
    /// Readahead estimate for the file. `None` in a child of `fork` that cannot have its own path.
    pub readahead_state: Option<ReadaheadState>,
}
