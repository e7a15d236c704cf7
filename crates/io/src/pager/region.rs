//! Memory larger than memory: anonymous memory of which at most a budget is
//! present, and the rest lies in a file or on a block device.
//!
//! It is what the kernel's swap gives to a whole machine, for one piece of
//! memory of one program: its own budget, its own storage, its own law.

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

use super::area::AnonymousArea;
use super::error::PagerError;
use super::inherited::ForkLocal;
use super::link::PagerLink;
use super::region_server::{RegionCommand, RegionServer, RegionSetup};
use super::uffd::FaultScope;
use crate::backend::BackendKind;
use crate::frames::has_room_for_tables;
use crate::spare_memory::SpareMemory;
use crate::target::{OpenOptions, Target};

/// Slots beyond one a page: an eighth, so that there are long free runs to write to.
const SPARE_SLOTS_DIVISOR: u64 = 8;
/// And this many at least: a few large writes for small regions.
const SPARE_SLOTS_MIN: u64 = 256;
/// The least memory: room for a large write, a cluster that is read, and what
/// the program works on.
const MEMORY_PAGES_MIN: u64 = 64;

/// The memory unless another is named, and there is less.
const MEMORY_BYTES: u64 = 256 << 20;

/// How a region is to be made: [`Region::builder`], then [`in_folder`](RegionBuilder::in_folder) or
/// [`on_device`](RegionBuilder::on_device).
#[derive(Clone, Debug)]
pub struct RegionBuilder {
    /// None: as much as [`MEMORY_BYTES`], and no more than half of what is free.
    memory_bytes: Option<u64>,
    swapin: String,
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
    /// The most memory that pages of the region may take, in bytes; default 256
    /// MiB, or half of what is free where that is less; at least 256 KiB (less is raised to that); more than twice the region's length
    /// is as much as that. Beside it the region takes about 100 bytes a page of this memory
    /// and 12 bytes a page of its length.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> RegionBuilder {
        self.memory_bytes = Some(bytes);
        self
    }

    /// The swap-in law: what is read beyond the page of a fault; as `readpath policies` names it, with its
    /// parameters; default `adaptive`.
    #[must_use]
    pub fn swapin(mut self, policy: &str) -> RegionBuilder {
        policy.clone_into(&mut self.swapin);
        self
    }

    /// The reclaim law: which pages leave when memory is short; as `readpath policies` names it; default
    /// `adaptive`. It learns of uses by faults alone: of a page that is mapped nobody is told that it is
    /// touched again.
    #[must_use]
    pub fn eviction(mut self, policy: &str) -> RegionBuilder {
        policy.clone_into(&mut self.eviction);
        self
    }

    /// What carries the bytes; default [`BackendKind::Auto`].
    #[must_use]
    pub fn backend(mut self, backend: BackendKind) -> RegionBuilder {
        self.backend = backend;
        self
    }

    /// A region of `bytes` bytes, all zero, over a file without a name in the
    /// folder `folder`. Its space, a ninth more than the region, is taken now, so that
    /// a full file system is an error here and not later. On btrfs copy-on-write is turned
    /// off for the file, and checksums with it, since each write would take fresh space. File systems
    /// that always write elsewhere (bcachefs, f2fs) can't keep space: a full one is met later. When
    /// the process ends, however it ends, the file is gone.
    ///
    /// # Errors
    /// There is no such folder, its file system has no room or no files without
    /// a name; the system gives no memory, ring or userfaultfd; the law is unknown.
    pub fn in_folder(self, bytes: u64, folder: impl AsRef<Path>) -> Result<Region, PagerError> {
        let folder = folder.as_ref();
        let slots = slots_wanted(bytes);
        let file_bytes = slots.saturating_mul(PAGE_BYTES);
        let refused =
            |error| PagerError::Space { path: folder.to_path_buf(), bytes: file_bytes, error };
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .mode(0o600)
            .open(folder)
            .map_err(refused)?;
        within_file_limit(file_bytes).map_err(refused)?;
        overwrite_in_place(&file).map_err(|errno| refused(errno.into()))?;
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, file_bytes)
            .map_err(|errno| refused(errno.into()))?;
        // The file has no path of its own; this one leads to it while it is open.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        self.over(bytes, &path, file)
    }

    /// A region of `bytes` bytes, all zero, over the block device at `path`.
    /// What is on it is overwritten; it needs nothing to be cleared afterwards.
    ///
    /// # Errors
    /// It is no block device (a regular file is not touched), in use (mounted,
    /// swapped to), smaller than the region, or can't be opened for writing; and as for [`in_folder`](RegionBuilder::in_folder).
    pub fn on_device(self, bytes: u64, path: impl AsRef<Path>) -> Result<Region, PagerError> {
        let path = path.as_ref();
        let refused = |error| PagerError::Space { path: path.to_path_buf(), bytes, error };
        if !std::fs::metadata(path).map_err(refused)?.file_type().is_block_device() {
            return Err(PagerError::NotADevice { path: path.to_path_buf() });
        }
        // O_EXCL on a block device: refused while anybody else has a claim to it (open(2)).
        let claim = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_EXCL)
            .open(path)
            .map_err(refused)?;
        self.over(bytes, path, claim)
    }

    /// Over what is at `path`, which `claim` keeps.
    pub(crate) fn over(self, bytes: u64, path: &Path, claim: File) -> Result<Region, PagerError> {
        let swapin = Spec::parse(&self.swapin).map_err(PagerError::Policy)?;
        let eviction = Spec::parse(&self.eviction).map_err(PagerError::Policy)?;
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        // With twice its length as much as it is long is always free, which is more than is kept ready: nothing has to leave.
        let memory_bytes = self.memory_bytes.unwrap_or_else(|| {
            SpareMemory::now().map_or(MEMORY_BYTES, |memory| MEMORY_BYTES.min(memory.available / 2))
        });
        let memory_pages = (memory_bytes / PAGE_BYTES).min(2 * pages).max(MEMORY_PAGES_MIN);
        if !has_room_for_tables(memory_pages) {
            let errno = libc::ENOMEM;
            return Err(PagerError::AddressSpace { bytes: memory_pages * PAGE_BYTES, errno });
        }
        let options = OpenOptions { is_writable: true, ..OpenOptions::default() };
        let target = Target::open(path, options).map_err(PagerError::Open)?;
        let slots = (target.bytes() / PAGE_BYTES).min(slots_wanted(bytes));
        if slots < pages {
            return Err(PagerError::Small {
                path: path.to_path_buf(),
                bytes: target.bytes(),
                needed_bytes: pages.saturating_mul(PAGE_BYTES),
            });
        }
        let areas = AnonymousArea::new(pages)
            .and_then(|user| Ok((Arc::new(user), AnonymousArea::new(memory_pages)?)));
        let (user, frames) = areas
            .map_err(|errno| PagerError::AddressSpace { bytes, errno: errno.raw_os_error() })?;
        let fork_local = ForkLocal::none(&user).map_err(PagerError::System)?;
        let setup = RegionSetup {
            target,
            user: Arc::clone(&user),
            pages,
            frames,
            memory_pages,
            slots,
            swapin,
            eviction,
            backend: self.backend,
        };
        let (link, scope) =
            PagerLink::start("readpath-swap", move |inbox| RegionServer::new(setup, inbox))?;
        Ok(Region { link, _fork_local: fork_local, user, bytes, scope, _claim: claim })
    }
}

/// Refuses a file beyond the limit on the size of files: the kernel would end the program by `SIGXFSZ`.
/// Threads of this crate, which write the file later, have all signals blocked.
fn within_file_limit(bytes: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if bytes > limit => Err(io::Error::from_raw_os_error(libc::EFBIG)),
        _ => Ok(()),
    }
}

/// `f_type` of btrfs (linux/magic.h).
const BTRFS: i64 = 0x9123_683e;

/// Has btrfs overwrite the blocks of a file that is empty still, as `chattr +C` does. By default it
/// writes each block to fresh space, whatever was taken for the file.
fn overwrite_in_place(file: &File) -> rustix::io::Result<()> {
    if rustix::fs::fstatfs(file)?.f_type != BTRFS {
        return Ok(());
    }
    let flags = rustix::fs::ioctl_getflags(file)?;
    rustix::fs::ioctl_setflags(file, flags | rustix::fs::IFlags::NOCOW)
}

fn slots_wanted(bytes: u64) -> u64 {
    let pages = bytes.div_ceil(PAGE_BYTES).max(1);
    pages + (pages / SPARE_SLOTS_DIVISOR).max(SPARE_SLOTS_MIN)
}

/// Memory larger than memory: the rest lies in a folder, or on a block device.
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
/// assert!(region.statistics().swap_out_pages > 0);
/// # Ok::<(), PagerError>(())
/// ```
///
/// Any number of threads may touch it at once. What was written is what is
/// read: a page whose only copy can't be read back is *poisoned*, and to touch
/// it is a bus error (`SIGBUS`), never other bytes. So is a page for which there
/// is no memory because the device takes no writes any more. In both cases
/// [`check`](Region::check) tells the error from then on;
/// [`load`](Region::load) finds out without touching.
///
/// # In a child made by `fork`
/// The child doesn't have the memory. There `load` and `check` are errors, hints and counts are
/// of nothing, and to touch the memory ends the child by `SIGSEGV`, after a line on its
/// standard error that says so (as with every handler of that signal, unless the child sets
/// another). The parent's region is as it was.
///
/// # Locked memory
/// To lock a region or a part of it (`mlock(2)`, `mlockall(2)`), or to populate it (`madvise(2)`),
/// brings its pages in; where system calls may not be given its memory
/// ([`FaultScope::UserOnly`]), a lock of absent pages is refused with `ENOMEM`. The budget stays
/// the stricter word: as soon as a locked page has to leave, the whole region is unlocked.
/// What the program unmaps, moves or gives up behind its back (`munmap(2)`, `mremap(2)`,
/// `MADV_DONTNEED`) is lost; [`discard`](Region::discard) is the way to give content up.
///
/// Dropped, the region gives all memory and storage back.
#[derive(Debug)]
pub struct Region {
    link: PagerLink<RegionCommand>,
    _fork_local: ForkLocal,
    // After the link: its thread, which serves the area, has ended by then.
    user: Arc<AnonymousArea>,
    bytes: u64,
    scope: FaultScope,
    /// Keeps the storage: the file without a name, or the claim to the device.
    _claim: File,
}

/// What a region has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionStatistics {
    /// Faults told by the kernel, those on pages that had come in meanwhile too.
    pub faults: u64,
    /// Faults on pages that had to be read, or were on their way already.
    pub faults_major: u64,
    /// Faults on pages in memory, or never written before.
    pub faults_minor: u64,
    /// Writes to pages that were mapped for reading alone.
    pub faults_protected: u64,
    /// Faults on pages that the law had read ahead.
    pub hits: u64,
    /// Pages read from the storage.
    pub swap_in_pages: u64,
    /// Pages written to it.
    pub swap_out_pages: u64,
    /// Pages that it failed to write; each stays in memory, and is tried elsewhere.
    pub failed_writes: u64,
    /// Pages that ended in a bus error.
    pub poisoned_pages: u64,
    /// Pages that could not be taken out of the program's sight, since a system
    /// call was using their memory.
    pub busy_pages: u64,
    /// Pages of memory taken now: mapped, being read or written, or kept ready.
    pub memory_pages: u64,
    /// The most that it ever was.
    pub memory_pages_max: u64,
    /// Reads of the storage.
    pub device_reads: u64,
    /// Bytes that these asked for.
    pub device_read_bytes: u64,
    /// Writes to it.
    pub device_writes: u64,
    /// Bytes that these were to write.
    pub device_write_bytes: u64,
}

impl Region {
    /// How a region is to be made, with the defaults.
    pub fn builder() -> RegionBuilder {
        RegionBuilder::default()
    }

    /// The memory.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the area is as long; each of its pages, absent or not, reads
        // as what was last written to it: that is what its server does. Nobody
        // writes to it while `self` is borrowed.
        unsafe {
            std::slice::from_raw_parts(self.user.address(0) as *const u8, self.bytes as usize)
        }
    }

    /// The memory, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes this the only access.
        unsafe {
            std::slice::from_raw_parts_mut(self.user.address(0) as *mut u8, self.bytes as usize)
        }
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether system calls may be given its memory: where they may not
    /// ([`FaultScope::UserOnly`]), one that meets an absent page fails with `EFAULT`.
    pub fn scope(&self) -> FaultScope {
        self.scope
    }

    /// Brings the pages of `bytes` bytes at `offset` in and waits for them: a
    /// hint, and a test that they can be read. They may be given up again at once if
    /// the range is larger than the memory.
    ///
    /// # Errors
    /// A page can't be read, or there is no memory for it; it is not poisoned by that. This
    /// is a child made by `fork`.
    ///
    /// # Panics
    /// The range reaches past the end.
    pub fn load(&self, offset: u64, bytes: u64) -> Result<(), ReadError> {
        self.assert_inside(offset, bytes);
        self.assure_here()?;
        let range = PageRange::covering(offset, bytes);
        range.pages().step_by(LOAD_PAGES as usize).try_for_each(|first| {
            let range = PageRange::new(first, LOAD_PAGES).clipped(range.end);
            self.link.ask(|reply| RegionCommand::Load { range, reply })
        })
    }

    /// A hint: the `bytes` bytes at `offset` will be touched soon. Those of their
    /// pages that are swapped out are read ahead, side by side in the largest
    /// requests that the device takes, while the caller goes on.
    ///
    /// At most half of the memory is read for hints: of a longer range the
    /// first part, and of several the latest. A page that can't be read is told to
    /// whom touches it. To wait for pages, and to be told, [`load`](Region::load) them.
    ///
    /// There is no hint for sequential or random touches: the swap-in law finds
    /// that out from the faults.
    ///
    /// # Panics
    /// The range reaches past the end.
    pub fn will_need(&self, offset: u64, bytes: u64) {
        self.assert_inside(offset, bytes);
        let range = PageRange::covering(offset, bytes);
        if self.link.is_here() {
            self.link.ask(|reply| RegionCommand::WillNeed { range, reply })
        }
    }

    /// Gives the content of `bytes` bytes at `offset` up: they are zeros from
    /// now on, and the memory and storage of the whole pages among them is free. It is no
    /// hint: unlike `posix_fadvise(2)`'s `DONTNEED`, it loses what was written. Also
    /// the way to use a page again that could not be read back.
    ///
    /// Waits for transfers of these pages that are under way.
    ///
    /// # Panics
    /// The range reaches past the end; in a child made by `fork`.
    pub fn discard(&mut self, offset: u64, bytes: u64) {
        self.assert_inside(offset, bytes);
        let end = offset + bytes;
        let whole = PageRange {
            first: offset.div_ceil(PAGE_BYTES),
            // The last page is the region's alone, however little of it is used.
            end: if end == self.bytes { end.div_ceil(PAGE_BYTES) } else { end / PAGE_BYTES },
        };
        let edges = if whole.first < whole.end {
            self.link.ask(|reply| RegionCommand::Discard { range: whole, reply });
            [offset..whole.first * PAGE_BYTES, (whole.end * PAGE_BYTES).min(end)..end]
        } else {
            [offset..end, end..end]
        };
        for edge in edges {
            self.as_mut_slice()[edge.start as usize..edge.end as usize].fill(0);
        }
    }

    fn assert_inside(&self, offset: u64, bytes: u64) {
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(is_inside, "{bytes} bytes at {offset} of a region of {}", self.bytes);
    }

    /// Whether all went well so far.
    ///
    /// # Errors
    /// The first error that a touch of the memory has met. This is a child made by `fork`.
    pub fn check(&self) -> Result<(), ReadError> {
        self.assure_here()?;
        self.link.ask(|reply| RegionCommand::Check { reply })
    }

    /// What was counted so far; in a child made by `fork` nothing is.
    pub fn statistics(&self) -> RegionStatistics {
        if !self.link.is_here() {
            return RegionStatistics::default();
        }
        self.link.ask(|reply| RegionCommand::Statistics { reply })
    }

    fn assure_here(&self) -> Result<(), ReadError> {
        if self.link.is_here() { Ok(()) } else { Err(ReadError::OtherProcess) }
    }
}

/// How many pages are loaded at once: less than the least memory, so that
/// they don't push each other out.
const LOAD_PAGES: u64 = 32;
