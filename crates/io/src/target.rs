//! An open file or block device, with its properties.
//!
//! Direct I/O is tried first: the read path has a cache of its own, and caching a page twice wastes
//! memory. If the file system rejects it, reads go through the kernel page cache. [`Target::mode`]
//! reports this and the reason. In a simulation (`cfg(simulation)`) the file is a simulated one.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use readpath_core::request::DeviceCaps;
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, SECTOR_BYTES};
use readpath_os::page_cache;
use readpath_os::queue::QueueLimits;
use rustix::fs::{AtFlags, FileType, OFlags, Statx, StatxFlags, makedev};
use rustix::io::Errno;

use self::identity::Identity;
use self::opened::Opened;
use crate::os::process::ForkLocal;
use crate::os::raw_memory::RawMemory;

pub(crate) mod identity;
mod open_error;
mod opened;

pub use identity::Coherence;
pub use open_error::OpenError;
pub(crate) use opened::{clear_direct, clear_nonblock};

/// Number of bits of a sector number within its file: 4 PiB per file, and so 2 million files.
pub(crate) const FILE_SECTORS_LOG2: u32 = 43;
/// Largest file in bytes, so that sector numbers of files do not overlap.
pub(crate) const FILE_BYTES_MAX: u64 = SECTOR_BYTES << FILE_SECTORS_LOG2;

/// Largest transfer of a regular file in bytes: `IOV_MAX` (1024) separate frames of a page each.
/// The kernel splits it for the device without further system calls.
pub(crate) const TRANSFER_BYTES_MAX: u64 = 1024 * PAGE_BYTES;
/// Largest queue depth that is used. Above it the kernel's request tags run out on every device
/// (`queue/nr_requests`).
const DEPTH_MAX: u32 = 1024;
/// Queue depth without data in sysfs: the kernel's default of `nr_requests` for a device with
/// hardware queues of that size.
const DEFAULT_DEPTH: u32 = 128;
/// `f_type` of tmpfs and ramfs (statfs(2)), whose storage *is* the kernel page cache.
const MEMORY_FILE_SYSTEMS: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// `f_type` of file systems whose files are generated at each read and have no useful length
/// (linux/magic.h). The numbers of the last three stand next to their code: fs/fuse/control.c,
/// fs/configfs/mount.c and ipc/mqueue.c.
const GENERATED_FILE_SYSTEMS: [i64; 15] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x7472_6163, // tracefs
    0x6462_6720, // debugfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x7363_6673, // securityfs
    0x4249_4e4d, // binfmt_misc
    0x6e73_6673, // nsfs
    0x0765_5821, // resctrl
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x6573_5543, // fusectl
    0x6265_6570, // configfs
    0x1980_0202, // mqueue
];

/// Options for opening a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Opens the file for writing too; default no.
    pub is_writable: bool,
    /// Use of direct I/O; default [`Direct::Preferred`].
    pub direct: Direct,
}

/// Use of direct I/O (`O_DIRECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Direct I/O if the file system supports it; `Target::mode` reports the result.
    #[default]
    Preferred,
    /// Direct I/O, or an error.
    Required,
    /// No direct I/O.
    Never,
    /// Direct I/O if the file system supports it, but opened only for the first transfer. Until
    /// then the file is open through the kernel page cache.
    Late,
}

/// I/O mode of an open file: the way of the bytes between the device and the memory of readpath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Directly into the frames.
    Direct,
    /// Through the kernel page cache.
    Buffered(BufferedBecause),
}

/// Reason why a target is read through the kernel page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferedBecause {
    /// By option.
    Asked,
    /// The file system, or this file, does not support direct I/O.
    Refused,
    /// The file lives in the kernel page cache (tmpfs, ramfs), so there is no device.
    InMemory,
    /// The kernel caches the pages ([`PageCache::Kernel`](crate::PageCache::Kernel)).
    Kept,
    /// Direct I/O needs blocks larger than a page.
    Alignment {
        /// Required alignment of offsets and sizes in bytes.
        bytes: u32,
    },
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = match self {
            Mode::Direct => return f.write_str("direct"),
            Mode::Buffered(reason) => reason,
        };
        match reason {
            BufferedBecause::Asked => f.write_str("buffered"),
            BufferedBecause::Refused => {
                f.write_str("buffered (the file system refuses direct I/O here)")
            }
            BufferedBecause::Kept => f.write_str("buffered (the kernel keeps the pages)"),
            BufferedBecause::InMemory => f.write_str("buffered (the file lives in memory)"),
            BufferedBecause::Alignment { bytes } => {
                write!(f, "buffered (direct I/O would need blocks of {bytes} bytes here)")
            }
        }
    }
}

/// Keeps the descriptors of a [`Target`] open.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "it is kept to be dropped")]
pub(crate) struct OpenDescriptor {
    /// First open file of the target.
    file: Arc<File>,
    /// Open file for direct transfers, with `Direct::Late`.
    late_direct: Option<Arc<ForkLocal<Option<File>>>>,
}

/// A file or block device, open for reading. Clones share the open file description.
#[derive(Clone, Debug)]
pub struct Target {
    /// Open file with the flags of `mode`. For [`Direct::Late`] it has no O_DIRECT.
    file: Arc<File>,
    /// Second open file for transfers with direct I/O, for [`Direct::Late`]; `None` inside if its
    /// opening failed.
    late_direct: Option<Arc<ForkLocal<Option<File>>>>,
    /// Path given at opening.
    path: Arc<Path>,
    /// Length at opening.
    bytes: u64,
    /// False for a regular file.
    is_block_device: bool,
    /// Direct I/O, or the kernel page cache and the reason.
    mode: Mode,
    /// Alignment of offsets and sizes; 1 through the kernel page cache.
    alignment_bytes: u32,
    /// Version of the file at opening.
    identity: Identity,
    /// Number of the device itself, or of the device below its file system.
    device: u64,
    /// True if the file is on overlayfs.
    is_on_overlay: bool,
    /// Inode number of the file in a simulation; `None` for a file of the system.
    #[cfg(simulation)]
    simulated_inode: Option<u32>,
    /// Queue limits, looked up at first use.
    queue: OnceLock<Option<QueueLimits>>,
}

impl Target {
    /// Opens the regular file or block device at `path`.
    ///
    /// # Errors
    /// It does not exist, cannot be opened, is neither of the two, or is empty; or direct I/O is
    /// required and not available.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Target, OpenError> {
        let creates = false;
        let target = Target::open_or_create(path, options, creates)?;
        match target.bytes {
            0 => Err(OpenError::Empty { path: target.path.to_path_buf() }),
            _ => Ok(target),
        }
    }

    /// Like [`open`](Target::open), but the file may be empty. If `creates` is true, a missing file
    /// is created.
    pub(crate) fn open_or_create(
        path: &Path,
        options: OpenOptions,
        creates: bool,
    ) -> Result<Target, OpenError> {
        #[cfg(simulation)]
        if let Some(opened) = crate::simulation::open(path) {
            return opened;
        }
        let open_error = |errno: Errno| OpenError::from_io_error(path, &errno.into());
        let Opened { file, is_direct, has_nonblock } = Opened::open(path, options, creates)?;
        let flags = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, flags).map_err(open_error)?;
        let file_type = FileType::from_raw_mode(u32::from(stat.stx_mode));
        let is_block_device = check_file_type(path, file_type)? == FileType::BlockDevice;
        let reported_bytes = reported_alignment_bytes(&stat);
        // Files with direct I/O are neither generated nor in memory. A device node lies in a memory
        // file system, but the device does not.
        let has_direct = reported_bytes.is_some_and(|bytes| bytes > 0)
            && (is_direct || options.direct == Direct::Late);
        let file_system = file_system_type(&file, &stat, has_direct);
        let has_device = is_block_device || has_direct;
        let is_in_memory = !has_device && check_if_in_memory(path, file_system)?;
        if options.direct == Direct::Late && reported_bytes.is_none() {
            // The kernel reports no alignment: only an open with O_DIRECT finds out if the file has
            // direct I/O. The second call has another option and does not come here.
            drop(file);
            let direct = OpenOptions { direct: Direct::Preferred, ..options };
            return Target::open_or_create(path, direct, creates);
        }
        let alignment_or_reason = match options.direct {
            Direct::Never => Err(BufferedBecause::Asked),
            _ if is_in_memory => Err(BufferedBecause::InMemory),
            Direct::Preferred | Direct::Required if !is_direct => Err(BufferedBecause::Refused),
            // The file is open with O_DIRECT, or may be opened with it later.
            _ => direct_alignment_bytes(&file, reported_bytes),
        };
        let (mode, alignment_bytes) = match alignment_or_reason {
            Ok(bytes) => (Mode::Direct, bytes),
            Err(why) if options.direct == Direct::Required => {
                return Err(OpenError::NoDirect { path: path.to_path_buf(), why });
            }
            Err(why) => (Mode::Buffered(why), 1),
        };
        // The open file gets the flags of its mode.
        if is_direct && mode != Mode::Direct {
            clear_direct(&file).map_err(open_error)?;
        }
        let bytes = length_bytes(path, &file, &stat, is_block_device)?;
        let is_late = options.direct == Direct::Late && mode == Mode::Direct;
        // A late file has another open file for transfers, or `reopen_direct` clears the flag.
        if has_nonblock && !is_late {
            clear_nonblock(&file).map_err(open_error)?;
        }
        Ok(Target {
            late_direct: is_late.then(|| Arc::new(ForkLocal::new())),
            file: Arc::new(file),
            path: Arc::from(path),
            bytes,
            is_block_device,
            mode,
            alignment_bytes,
            identity: Identity { bytes, ..Identity::from_statx(&stat) },
            device: device_number(&stat, is_block_device),
            is_on_overlay: !is_block_device && file_system == page_cache::OVERLAYFS,
            #[cfg(simulation)]
            simulated_inode: None,
            queue: OnceLock::new(),
        })
    }

    /// Creates the target of the file with inode number `inode` in the running simulation.
    #[cfg(simulation)]
    pub(crate) fn simulated(path: &Path, inode: u32, identity: Identity) -> Target {
        let file = File::open("/dev/null").expect("`/dev/null` exists");
        Target {
            late_direct: None,
            file: Arc::new(file),
            path: Arc::from(path),
            bytes: identity.bytes,
            is_block_device: false,
            mode: Mode::Direct,
            alignment_bytes: SECTOR_BYTES as u32,
            identity,
            // Any number: all simulated files are on one device.
            device: 1,
            is_on_overlay: false,
            simulated_inode: Some(inode),
            queue: OnceLock::from(crate::simulation::memory::queue()),
        }
    }

    /// Present version of a simulated file. `None` for a file of the system.
    #[cfg(simulation)]
    pub(crate) fn simulated_identity(&self) -> Option<Identity> {
        self.simulated_inode.map(crate::simulation::identity)
    }

    /// Returns this open file with its length set to `bytes` bytes. Its identity stays unchanged.
    pub(crate) fn with_bytes(self, bytes: u64) -> Target {
        Target { bytes, ..self }
    }

    /// Version of the file at opening: device, inode, length and times.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// True if the descriptor still belongs to this file, in any version, and was not closed and
    /// reused by the program. False also if fstat(2) fails.
    pub(crate) fn is_still_open(&self) -> bool {
        Identity::from_target(self).is_ok_and(|present| present.is_same_file(&self.identity))
    }

    /// Path given at opening.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path given at opening, shared.
    pub(crate) fn name(&self) -> Arc<Path> {
        Arc::clone(&self.path)
    }

    /// Length at opening in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the descriptor for transfers, with O_DIRECT in that [mode](Target::mode). For
    /// [`Direct::Late`], opens the file with O_DIRECT on first use. If that fails, transfers go
    /// through the kernel page cache.
    pub(crate) fn transfer_fd(&self) -> RawFd {
        // Transfers of a simulation name a file by its inode number.
        #[cfg(simulation)]
        if let Some(inode) = self.simulated_inode {
            return inode as RawFd;
        }
        let late_file = self.late_direct.as_ref().and_then(|late_direct| {
            let Ok(opened) = late_direct.get_or_init(|| Ok::<_, Infallible>(self.reopen_direct()));
            opened.as_ref()
        });
        late_file.unwrap_or(&self.file).as_raw_fd()
    }

    /// Keeps [`transfer_fd`](Target::transfer_fd) open as long as the returned value lives.
    pub(crate) fn open_descriptor(&self) -> OpenDescriptor {
        OpenDescriptor { file: Arc::clone(&self.file), late_direct: self.late_direct.clone() }
    }

    /// Returns the open file without O_DIRECT, if there is one.
    pub(crate) fn buffered_file(&self) -> Option<&Arc<File>> {
        (self.late_direct.is_some() || self.mode != Mode::Direct).then_some(&self.file)
    }

    /// Returns the open file without O_DIRECT: the first one if it has none, and otherwise another
    /// one opened now. `None` if that fails, without `/proc` or a free descriptor, and if the
    /// descriptor belongs to another file now.
    pub(crate) fn reopen_buffered(&self) -> Option<Arc<File>> {
        if let Some(file) = self.buffered_file() {
            return Some(Arc::clone(file));
        }
        let file = File::open(format!("/proc/self/fd/{}", self.as_raw_fd())).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let is_same = (stat.st_dev, stat.st_ino) == (self.identity.device, self.identity.inode);
        is_same.then(|| Arc::new(file))
    }

    /// Opens the file again with O_DIRECT, and for writing too if it is open for that. `None`
    /// without `/proc` or a free descriptor. Transfers then go through the kernel page cache, and
    /// the `O_NONBLOCK` of the first open file is cleared.
    fn reopen_direct(&self) -> Option<File> {
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mode = rustix::fs::fcntl_getfl(&self.file).map(|flags| flags & OFlags::RWMODE);
        let mut options = File::options();
        options.read(true).write(mode == Ok(OFlags::RDWR)).custom_flags(libc::O_DIRECT);
        let opened = options.open(name).ok();
        if opened.is_none() {
            let _ = clear_nonblock(&self.file);
        }
        opened
    }

    /// True for a block device, false for a regular file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Number of the device itself, or of the device below its file system.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// True if the file is on overlayfs: `cachestat(2)` counts none of its pages, and there is no
    /// `RWF_NOWAIT`.
    pub(crate) fn is_on_overlay(&self) -> bool {
        self.is_on_overlay
    }

    /// I/O mode: direct, or through the kernel page cache for a reason.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Required alignment of offsets and sizes in bytes; 1 through the kernel page cache.
    pub fn alignment_bytes(&self) -> u32 {
        self.alignment_bytes
    }

    /// Limits of the device's request queue; `None` if sysfs does not show it (network and stacked
    /// file systems, tmpfs).
    pub fn queue(&self) -> Option<&QueueLimits> {
        self.queue.get_or_init(|| QueueLimits::from_device_number(self.device)).as_ref()
    }

    /// Capabilities of the target.
    ///
    /// The largest request of a block device is the kernel's limit (`queue/max_sectors_kb`). For a
    /// regular file it is 4 MiB: its extents may lie anywhere, so only the kernel can split along
    /// the device's limits. A device without a report of its queue has that limit too.
    pub fn caps(&self) -> DeviceCaps {
        let request_bytes_max = match self.queue() {
            Some(queue) if self.is_block_device => {
                queue.request_bytes_max.clamp(PAGE_BYTES, TRANSFER_BYTES_MAX)
            }
            _ => TRANSFER_BYTES_MAX,
        };
        let whole_page_bytes = request_bytes_max - request_bytes_max % PAGE_BYTES;
        let depth = self.queue().map_or(DEFAULT_DEPTH, |queue| queue.requests_max);
        let is_sector_aligned = self.alignment_bytes as u64 <= SECTOR_BYTES;
        DeviceCaps {
            // Whole pages: a request for the last one may reach past the end and then completes
            // short.
            sectors: self.bytes.div_ceil(PAGE_BYTES) * PAGE_SECTORS,
            request_sectors_max: (whole_page_bytes / SECTOR_BYTES) as u32,
            depth_max: depth.clamp(1, DEPTH_MAX),
            is_rotational: self.queue().is_some_and(|queue| queue.is_rotational),
            // Larger alignments are at most a page.
            alignment_sectors: if is_sector_aligned { 1 } else { PAGE_SECTORS as u32 },
        }
    }
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Target {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Type of the file's file system, as in statfs(2), or 0 if unknown. Returns 0 without a system
/// call for a file with direct I/O on a device: it is on neither overlayfs nor a file system in
/// memory.
fn file_system_type(file: &File, stat: &Statx, has_direct: bool) -> i64 {
    match has_direct && stat.stx_dev_major != 0 {
        true => 0,
        false => rustix::fs::fstatfs(file).map_or(0, |file_system| file_system.f_type),
    }
}

/// Returns true if the file lies in memory, false otherwise. `file_system_type` is the type of its
/// file system.
///
/// # Errors
/// The file is generated at each read.
fn check_if_in_memory(path: &Path, file_system_type: i64) -> Result<bool, OpenError> {
    match GENERATED_FILE_SYSTEMS.contains(&file_system_type) {
        true => Err(OpenError::Generated { path: path.to_path_buf() }),
        false => Ok(MEMORY_FILE_SYSTEMS.contains(&file_system_type)),
    }
}

/// Length of the file or block device in bytes. `stat` are the attributes of `file`, which do not
/// include the length of a block device (`is_block_device`).
///
/// # Errors
/// It is longer than [`FILE_BYTES_MAX`], or the length of the block device is not available.
fn length_bytes(
    path: &Path,
    file: &File,
    stat: &Statx,
    is_block_device: bool,
) -> Result<u64, OpenError> {
    let bytes = match is_block_device {
        // statx(2) does not report it; a seek to the end finds it.
        true => rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))
            .map_err(|errno| OpenError::from_io_error(path, &errno.into()))?,
        false => stat.stx_size,
    };
    match bytes <= FILE_BYTES_MAX {
        true => Ok(bytes),
        false => {
            let path = path.to_path_buf();
            Err(OpenError::TooLarge { path, bytes, bytes_max: FILE_BYTES_MAX })
        }
    }
}

/// Number of the block device itself (`is_block_device`), or of the device that holds the file.
fn device_number(stat: &Statx, is_block_device: bool) -> u64 {
    match is_block_device {
        true => makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        false => makedev(stat.stx_dev_major, stat.stx_dev_minor),
    }
}

/// Returns the type of a regular file or block device; others are errors.
fn check_file_type(path: &Path, kind: FileType) -> Result<FileType, OpenError> {
    match kind {
        FileType::RegularFile | FileType::BlockDevice => Ok(kind),
        FileType::Directory => Err(OpenError::Directory { path: path.to_path_buf() }),
        _ => Err(OpenError::NotStorage { path: path.to_path_buf() }),
    }
}

/// Alignment of direct I/O in bytes, as the kernel reports it (`STATX_DIOALIGN`, Linux 6.1). 0: the
/// file has no direct I/O. `None`: the kernel reports nothing.
fn reported_alignment_bytes(stat: &Statx) -> Option<u32> {
    let is_reported = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    // Our memory is page-aligned, and addresses in it advance with the offsets. The larger
    // alignment therefore applies to both.
    is_reported.then(|| stat.stx_dio_offset_align.max(stat.stx_dio_mem_align))
}

/// Returns the alignment in bytes that direct I/O on the file needs, at most a page, or the reason
/// against direct I/O. `reported_bytes` is the result of `reported_alignment_bytes`.
fn direct_alignment_bytes(
    file: &File,
    reported_bytes: Option<u32>,
) -> Result<u32, BufferedBecause> {
    // Without a report, the sector size of a block device. The ioctl fails for a regular file.
    let bytes = match reported_bytes.or_else(|| rustix::fs::ioctl_blksszget(file).ok()) {
        Some(bytes) => bytes,
        // A regular file without a report: an alignment of a page suffices if such a read succeeds.
        None if first_page_can_be_read(file) => PAGE_BYTES as u32,
        None => 0,
    };
    match bytes {
        0 => Err(BufferedBecause::Refused),
        bytes if u64::from(bytes) > PAGE_BYTES => Err(BufferedBecause::Alignment { bytes }),
        bytes => Ok(bytes),
    }
}

/// True if a direct read of the first page succeeds. For file systems that report no alignment.
fn first_page_can_be_read(file: &File) -> bool {
    let Ok(mut memory) = RawMemory::new(PAGE_BYTES as usize) else { return false };
    rustix::io::pread(file, &mut memory[..], 0).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::os::process::is_true_in_child;

    /// A thread of the parent is opening the file for direct I/O at the fork. The child has no such
    /// thread and must not wait for it: an alarm would end it.
    #[test]
    fn child_opens_a_file_that_its_parent_was_opening_at_the_fork() {
        let path = std::env::current_exe().expect("this program has a file");
        let options = OpenOptions { direct: Direct::Late, is_writable: false };
        let target = Target::open(&path, options).unwrap();
        let Some(late_direct) = target.late_direct.clone() else {
            return eprintln!("skipped: there is no direct I/O");
        };
        let (begin_sender, begin_receiver) = channel();
        let (end_sender, end_receiver) = channel();
        let opening_thread = std::thread::spawn(move || {
            let opened = late_direct.get_or_init(|| {
                begin_sender.send(()).unwrap();
                end_receiver.recv().unwrap();
                Ok::<_, Infallible>(None)
            });
            opened.is_ok()
        });
        begin_receiver.recv().unwrap();
        let has_fd = is_true_in_child(|| target.transfer_fd() >= 0);
        end_sender.send(()).unwrap();
        assert!(opening_thread.join().unwrap());
        assert!(has_fd);
    }
}
