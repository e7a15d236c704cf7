//! Anonymous memory larger than its memory budget. The rest lies in a file or on a block device.
//!
//! It provides swap for one piece of memory of one program, with its own budget, storage and
//! policies. The *server* is the thread that fills absent pages of the *user area*, the memory that
//! the program sees. A *frame* is memory for one page, and a *slot* is its storage.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use readpath_core::machine::ReadError;
use readpath_core::policy::Spec;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::process::{Resource, getrlimit};

use super::anonymous_area::AnonymousArea;
use super::error::PagerError;
use super::fork_replacement::ForkReplacement;
use super::pager_link::PagerLink;
use super::region_server::{RegionCommand, RegionServer, RegionSetup};
use super::stats::RegionStats;
use super::uffd::FaultScope;
use crate::backend::BackendKind;
use crate::os::frames::{can_allocate, can_allocate_page_metadata, page_metadata_bytes};
use crate::os::system_memory::SystemMemory;
use crate::target::{OpenOptions, Target};

/// Divisor of the number of pages: this part is added as spare slots, so that long free runs exist
/// for writes.
const SPARE_SLOTS_DIVISOR: u64 = 8;
/// Least number of spare slots: a few large writes, for small regions.
const SPARE_SLOTS_MIN: u64 = 256;
/// Least memory in pages: room for a large write, a cluster that is read, and the program's working
/// set.
const MEMORY_PAGES_MIN: u64 = 64;
/// Maximum number of pages by which pinned pages exceed the memory: 4 MiB. A
/// [`RawFile`](crate::RawFile) pins 2 MiB by default, and a request of the kernel's direct I/O
/// 1 MiB (`BIO_MAX_VECS` in linux/bio.h).
const KEPT_PAGES_MAX: u64 = 1_024;

/// Default memory in bytes, if the system has enough free memory.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;

/// Options of a region: [`Region::builder`], then [`in_folder`](RegionBuilder::in_folder) or
/// [`on_device`](RegionBuilder::on_device).
#[derive(Clone, Debug)]
pub struct RegionBuilder {
    /// Limit of the memory. `None` means [`DEFAULT_MEMORY_BYTES`], but at most half of the free
    /// memory.
    memory_bytes: Option<u64>,
    /// Swap-in policy with its parameters, not parsed yet.
    swapin: String,
    /// Eviction policy, not parsed yet.
    eviction: String,
    backend: BackendKind,
}

impl Default for RegionBuilder {
    fn default() -> RegionBuilder {
        RegionBuilder {
            memory_bytes: None,
            swapin: "adaptive".to_owned(),
            eviction: "adaptive".to_owned(),
            backend: BackendKind::default(),
        }
    }
}

impl RegionBuilder {
    /// Sets the maximum memory for pages of the region, in bytes. Default 256 MiB, but at most half
    /// of the free memory.
    ///
    /// A direct transfer from or into the region keeps its pages pinned. Pages that have to leave
    /// but are pinned exceed this memory, by up to 4 MiB. The excess is given back as these pages
    /// leave, which they do only when others need their frames. A region that fits into the memory
    /// and 4 MiB may therefore keep it. A transfer that pins more than the memory and 4 MiB waits
    /// until other transfers have ended. If it is the only one, it waits for ever.
    ///
    /// Values under 256 KiB are raised to 256 KiB. Values over twice the length of the region are
    /// reduced to that. In addition the region takes about 100 bytes for each page of this memory
    /// and of the 4 MiB. Its tables have 17 bytes for each page of its length, which take memory at
    /// their first use.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> RegionBuilder {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Sets the swap-in policy by its name in `readpath policies`, with parameters. It selects the
    /// pages that are read together with a faulting page. Default: `adaptive`.
    #[must_use]
    pub fn swapin(mut self, policy: &str) -> RegionBuilder {
        policy.clone_into(&mut self.swapin);
        self
    }

    /// Sets the eviction policy by its name in `readpath policies`. Default: `adaptive`. The policy
    /// learns of uses only by faults: touches of mapped pages cannot be observed.
    #[must_use]
    pub fn eviction(mut self, policy: &str) -> RegionBuilder {
        policy.clone_into(&mut self.eviction);
        self
    }

    /// Sets the I/O backend. Default: [`BackendKind::Auto`].
    #[must_use]
    pub fn backend(mut self, backend: BackendKind) -> RegionBuilder {
        self.backend = backend;
        self
    }

    /// Creates a region of `bytes` zero bytes over an unnamed file in the folder `folder`.
    ///
    /// The disk space is allocated now: a full file system is an error here and not later. It is an
    /// eighth more than the region, and at least 1 MiB more. On btrfs, copy-on-write and therefore
    /// checksums are turned off for the file, because each write would take fresh space. File
    /// systems that never overwrite in place (bcachefs, f2fs) cannot reserve space: there a full
    /// file system is detected later. The file is removed when the process ends, in any way.
    ///
    /// # Errors
    /// Fails if the folder does not exist, or if its file system has no space or no unnamed files.
    /// Fails if the system provides no memory, ring or userfaultfd, or if the policy is unknown.
    pub fn in_folder(self, bytes: u64, folder: impl AsRef<Path>) -> Result<Region, PagerError> {
        let folder = folder.as_ref();
        let slots = slot_count(bytes);
        let file_bytes = slots.saturating_mul(PAGE_BYTES);
        let space_error =
            |error| PagerError::Space { path: folder.to_path_buf(), bytes: file_bytes, error };
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            // For this user alone: the file has the region's content.
            .mode(0o600)
            .open(folder)
            .map_err(space_error)?;
        check_file_size_limit(file_bytes).map_err(space_error)?;
        check_free_space(&file, file_bytes).map_err(space_error)?;
        disable_copy_on_write(&file).map_err(|errno| space_error(errno.into()))?;
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, file_bytes)
            .map_err(|errno| space_error(errno.into()))?;
        // Path to the open unnamed file, which `Target::open` opens again. `file` stays open in the
        // region.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        self.open_storage(bytes, &path, file)
    }

    /// Creates a region of `bytes` zero bytes over the block device at `path`. The device is
    /// overwritten and needs no clearing afterwards.
    ///
    /// # Errors
    /// The path is not a block device (a regular file is not touched), in use (mounted, swap),
    /// smaller than the region, or not writable. Other errors are as for
    /// [`in_folder`](RegionBuilder::in_folder).
    pub fn on_device(self, bytes: u64, path: impl AsRef<Path>) -> Result<Region, PagerError> {
        let path = path.as_ref();
        let space_error = |error| PagerError::Space { path: path.to_path_buf(), bytes, error };
        if !std::fs::metadata(path).map_err(space_error)?.file_type().is_block_device() {
            return Err(PagerError::NotADevice { path: path.to_path_buf() });
        }
        // O_EXCL on a block device: the open fails while another program claims the device
        // (open(2)).
        let claim = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_EXCL)
            .open(path)
            .map_err(space_error)?;
        self.open_storage(bytes, path, claim)
    }

    /// Creates a region of `bytes` bytes over the file or device at `path`. The region keeps
    /// `storage_file` open: an unnamed file needs it to exist, and a device to stay claimed. Fails
    /// as [`in_folder`](RegionBuilder::in_folder), or if the storage is smaller than the region.
    pub(crate) fn open_storage(
        self,
        bytes: u64,
        path: &Path,
        storage_file: File,
    ) -> Result<Region, PagerError> {
        let swapin = Spec::parse(&self.swapin).map_err(PagerError::Policy)?;
        let eviction = Spec::parse(&self.eviction).map_err(PagerError::Policy)?;
        // A region of 0 bytes has a page too, because an area cannot be empty.
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        let memory_bytes = self.memory_bytes.unwrap_or_else(|| {
            SystemMemory::measure().map_or(DEFAULT_MEMORY_BYTES, |memory| {
                DEFAULT_MEMORY_BYTES.min(memory.available_bytes / 2)
            })
        });
        // With memory of twice the region's length, an amount equal to the length is always free.
        // The machine keeps fewer frames ready, so no page has to be evicted. More memory would
        // have no use.
        let memory_pages = (memory_bytes / PAGE_BYTES).min(2 * pages).max(MEMORY_PAGES_MIN);
        // Pinned pages add frames, within the same bound.
        let memory_pages_max = (memory_pages + KEPT_PAGES_MAX).min((2 * pages).max(memory_pages));
        if !can_allocate_page_metadata(memory_pages_max) {
            let errno = libc::ENOMEM;
            return Err(PagerError::Metadata { bytes: memory_pages * PAGE_BYTES, errno });
        }
        // The storage may be larger than needed, but not smaller than the region.
        let options = OpenOptions { is_writable: true, ..OpenOptions::default() };
        let target = Target::open(path, options).map_err(PagerError::Open)?;
        let slots = (target.bytes() / PAGE_BYTES).min(slot_count(bytes));
        if slots < pages {
            return Err(PagerError::Small {
                path: path.to_path_buf(),
                bytes: target.bytes(),
                needed_bytes: pages.saturating_mul(PAGE_BYTES),
            });
        }
        let table_bytes = table_bytes(pages, slots, memory_pages_max);
        if !can_allocate(table_bytes) {
            return Err(PagerError::Tables { bytes, table_bytes, errno: libc::ENOMEM });
        }
        let areas = AnonymousArea::new(pages)
            .and_then(|user_area| Ok((Arc::new(user_area), AnonymousArea::new(memory_pages_max)?)));
        let (user_area, frame_area) = areas.map_err(|errno| PagerError::AddressSpace {
            bytes: (pages + memory_pages_max) * PAGE_BYTES,
            errno: errno.raw_os_error(),
        })?;
        let replacement = ForkReplacement::inaccessible(&user_area).map_err(PagerError::System)?;
        let setup = RegionSetup {
            target,
            user_area: Arc::clone(&user_area),
            pages,
            frame_area,
            memory_pages,
            memory_pages_max,
            slots,
            swapin,
            eviction,
            backend: self.backend,
        };
        let (link, scope) =
            PagerLink::start("readpath-swap", move |inbox| RegionServer::new(setup, inbox))?;
        Ok(Region {
            link,
            _replacement: replacement,
            user: user_area,
            bytes,
            scope,
            _storage_file: storage_file,
        })
    }
}

/// Returns an error for a file beyond the process's file size limit: the kernel would end the
/// program by `SIGXFSZ`. Threads of this crate, which write the file later, have all signals
/// blocked.
fn check_file_size_limit(bytes: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if bytes > limit => Err(io::Error::from_raw_os_error(libc::EFBIG)),
        _ => Ok(()),
    }
}

/// Returns an error if the file system of `file` cannot have `bytes` bytes of free space. Without
/// this check fallocate(2) takes all of it from other programs before it fails.
fn check_free_space(file: &File, bytes: u64) -> io::Result<()> {
    let space = rustix::fs::fstatfs(file)?;
    let blocks_max = allocatable_blocks(space.f_type, space.f_blocks, space.f_bfree);
    match bytes > blocks_max.saturating_mul(space.f_frsize as u64) {
        true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        false => Ok(()),
    }
}

/// Upper bound of the number of blocks that fallocate(2) finds, from statfs(2): the type of the
/// file system, its size, and its free blocks with the reserved ones (`mkfs.ext4 -m`). Root, the
/// user and the group that they are reserved for, and CAP_SYS_RESOURCE may use these. A file system
/// that reports no size has no bound.
fn allocatable_blocks(file_system_type: i64, blocks: u64, free_blocks: u64) -> u64 {
    match (file_system_type, blocks) {
        (_, 0) => u64::MAX,
        // XFS frees deleted files in the background, and keeps blocks preallocated behind files
        // that grow. Before it fails, fallocate(2) takes both.
        (XFS, _) => blocks,
        _ => free_blocks,
    }
}

/// File system type of XFS in `f_type` (linux/magic.h).
const XFS: i64 = 0x5846_5342;

/// File system type of btrfs in `f_type` (linux/magic.h).
const BTRFS: i64 = 0x9123_683e;

/// Makes btrfs overwrite the blocks of a still empty file in place, as `chattr +C` does. By default
/// it writes each block to fresh space, in spite of the allocation.
fn disable_copy_on_write(file: &File) -> rustix::io::Result<()> {
    if rustix::fs::fstatfs(file)?.f_type != BTRFS {
        return Ok(());
    }
    let flags = rustix::fs::ioctl_getflags(file)?;
    rustix::fs::ioctl_setflags(file, flags | rustix::fs::IFlags::NOCOW)
}

/// Size of the tables of a region in bytes: 8 for each page (its frame and its slot), 8 for each
/// slot (its page), and the metadata of the memory. A failure at their real allocation would abort
/// the process.
fn table_bytes(pages: u64, slots: u64, memory_pages_max: u64) -> u64 {
    (8 * pages + 8 * slots).saturating_add(page_metadata_bytes(memory_pages_max))
}

/// Number of storage slots for a region of `bytes` bytes. A slot has one page.
fn slot_count(bytes: u64) -> u64 {
    let pages = bytes.div_ceil(PAGE_BYTES).max(1);
    pages + (pages / SPARE_SLOTS_DIVISOR).max(SPARE_SLOTS_MIN)
}

/// Memory larger than its budget: the rest lies in a folder or on a block device.
///
/// ```
/// use readpath::{PagerError, Region};
///
/// // 8 MiB, of which 1 MiB is in memory at a time.
/// let made = Region::builder().memory(1 << 20).in_folder(8 << 20, std::env::temp_dir());
/// # if let Err(PagerError::Uffd(_) | PagerError::Space { .. }) = &made {
/// #     eprintln!("skipped: {}", made.unwrap_err());
/// #     return Ok(());
/// # }
/// let mut region = made?;
/// for (number, page) in region.as_mut_slice().chunks_exact_mut(4096).enumerate() {
///     page.fill(number as u8);
/// }
/// assert_eq!(region.as_slice()[300 * 4096], 44);
/// assert!(region.stats().swap_out_pages > 0);
/// # Ok::<(), PagerError>(())
/// ```
///
/// Any number of threads may touch it at once. Reads return the bytes that were written last. A
/// page whose only copy cannot be read back is *poisoned*: a touch is a bus error (`SIGBUS`) and
/// never returns other bytes. A page for which no memory can be freed, because the device accepts
/// no more writes, is poisoned too. In both cases [`check`](Region::check) returns the error from
/// then on. [`load`](Region::load) tests pages without touching them.
///
/// # In a child made by `fork`
/// The child does not have the memory. There, `load` and `check` return errors, and advice and
/// counters have no effect. A touch of the memory ends the child by `SIGSEGV` after a line on its
/// standard error, unless the child sets another handler of that signal. The parent's region is
/// unchanged.
///
/// # Locked memory
/// Locking a region or a part of it (`mlock(2)`, `mlockall(2)`), or populating it (`madvise(2)`),
/// brings its pages in. If system calls cannot use its memory ([`FaultScope::UserOnly`]), a lock of
/// absent pages fails with `ENOMEM`. The memory budget takes precedence: as soon as a locked page
/// has to be evicted, the whole region is unlocked. Content that the program unmaps, moves or drops
/// by system calls (`munmap(2)`, `mremap(2)`, `MADV_DONTNEED`) is lost.
/// [`discard`](Region::discard) is the way to drop content.
///
/// Dropping the region frees all its memory and storage.
#[derive(Debug)]
pub struct Region {
    /// Commands to the serving thread, which ends when this is dropped.
    link: PagerLink<RegionCommand>,
    /// Replaces the memory by inaccessible memory in children.
    _replacement: ForkReplacement,
    // Declared after the link: the serving thread has ended when the area is dropped.
    user: Arc<AnonymousArea>,
    /// Length of the region.
    bytes: u64,
    /// Accesses whose faults are served.
    scope: FaultScope,
    /// Keeps the storage: the unnamed file, or the claim to the device.
    _storage_file: File,
}

impl Region {
    /// Returns options with their defaults.
    pub fn builder() -> RegionBuilder {
        RegionBuilder::default()
    }

    /// Returns the memory of the region.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the area has this length, and each page, absent or not, reads as its last written
        // bytes, because its server fills it so. No thread writes to it while `self` is borrowed.
        unsafe {
            std::slice::from_raw_parts(self.user.address(0) as *const u8, self.bytes as usize)
        }
    }

    /// Returns the memory of the region, writable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`. `&mut self` makes this the only access.
        unsafe {
            std::slice::from_raw_parts_mut(self.user.address(0) as *mut u8, self.bytes as usize)
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the scope of fault handling: whether system calls may use the memory. With
    /// [`FaultScope::UserOnly`], a system call that meets an absent page fails with `EFAULT`.
    pub fn scope(&self) -> FaultScope {
        self.scope
    }

    /// Brings in the pages of `bytes` bytes at `offset` and waits for them. It serves as a
    /// prefetch, and as a test that the pages can be read. Pages of a range larger than the memory
    /// may be evicted at once.
    ///
    /// # Errors
    /// A page cannot be read, or there is no memory for it. This does not poison the page. The
    /// process is a child made by `fork`.
    ///
    /// # Panics
    /// The range reaches past the end.
    pub fn load(&self, offset: u64, bytes: u64) -> Result<(), ReadError> {
        self.assert_inside(offset, bytes);
        self.check_process()?;
        let range = PageRange::covering(offset, bytes);
        // In parts, one after the other. The first error ends the load.
        range.pages().step_by(LOAD_PAGES as usize).try_for_each(|first| {
            let range = PageRange::new(first, LOAD_PAGES).clipped(range.end);
            self.link.request(|reply| RegionCommand::Load { range, reply })
        })
    }

    /// Prefetches the swapped-out pages of `bytes` bytes at `offset`, in parallel and in the
    /// device's largest requests. The caller does not wait. No effect in a child made by `fork`.
    ///
    /// At most half of the memory is used for such prefetches: the first part of a long range, and
    /// the latest of several ranges. An unreadable page is reported to the thread that touches it.
    /// [`load`](Region::load) waits for pages and returns errors.
    ///
    /// There is no advice for sequential or random access, because the swap-in policy derives it
    /// from the faults.
    ///
    /// # Panics
    /// The range reaches past the end.
    pub fn will_need(&self, offset: u64, bytes: u64) {
        self.assert_inside(offset, bytes);
        let range = PageRange::covering(offset, bytes);
        if self.link.is_in_this_process() {
            self.link.request(|reply| RegionCommand::WillNeed { range, reply })
        }
    }

    /// Drops the content of `bytes` bytes at `offset`: they read as zeros afterwards, and the
    /// memory and storage of the whole pages among them is freed. Unlike `DONTNEED` of
    /// `posix_fadvise(2)`, this loses written data. It also makes a page usable again that could
    /// not be read back.
    ///
    /// Waits for transfers of these pages.
    ///
    /// # Panics
    /// The range reaches past the end, or the process is a child made by `fork`.
    pub fn discard(&mut self, offset: u64, bytes: u64) {
        self.assert_inside(offset, bytes);
        // Also without a whole page, and so without a command.
        assert!(self.link.is_in_this_process(), "{}", ReadError::OtherProcess);
        let end = offset + bytes;
        let whole_pages = PageRange {
            first: offset.div_ceil(PAGE_BYTES),
            // The last page belongs to the region alone, even if the region uses only part of it.
            end: if end == self.bytes { end.div_ceil(PAGE_BYTES) } else { end / PAGE_BYTES },
        };
        // The parts of pages at both ends are filled with zeros instead.
        let edges = if whole_pages.first < whole_pages.end {
            self.link.request(|reply| RegionCommand::Discard { range: whole_pages, reply });
            [offset..whole_pages.first * PAGE_BYTES, (whole_pages.end * PAGE_BYTES).min(end)..end]
        } else {
            // No whole page: all bytes are filled with zeros.
            [offset..end, end..end]
        };
        for edge in edges {
            self.as_mut_slice()[edge.start as usize..edge.end as usize].fill(0);
        }
    }

    /// Panics if a range of bytes is not within the region.
    fn assert_inside(&self, offset: u64, bytes: u64) {
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(is_inside, "{bytes} bytes at {offset} of a region of {}", self.bytes);
    }

    /// Checks for errors so far.
    ///
    /// # Errors
    /// The first error that a touch of the memory has met. The process is a child made by `fork`.
    pub fn check(&self) -> Result<(), ReadError> {
        self.check_process()?;
        self.link.request(|reply| RegionCommand::Check { reply })
    }

    /// Returns the counters. In a child made by `fork` all are zero.
    pub fn stats(&self) -> RegionStats {
        if !self.link.is_in_this_process() {
            return RegionStats::default();
        }
        self.link.request(|reply| RegionCommand::Statistics { reply })
    }

    /// Returns an error in a child made by `fork`, which has no serving thread.
    fn check_process(&self) -> Result<(), ReadError> {
        if self.link.is_in_this_process() { Ok(()) } else { Err(ReadError::OtherProcess) }
    }
}

/// Number of pages of one load command: less than the least memory, so that they do not evict each
/// other.
const LOAD_PAGES: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system of 100 blocks has 10 free ones. The types are from statfs(2).
    #[test]
    fn allocatable_blocks_are_the_free_ones_except_where_more_become_free() {
        assert_eq!(allocatable_blocks(0xef53, 100, 10), 10, "ext4");
        assert_eq!(allocatable_blocks(0x5846_5342, 100, 10), 100, "xfs");
        assert_eq!(allocatable_blocks(0x6969, 0, 0), u64::MAX, "a size that is not reported");
    }
}
