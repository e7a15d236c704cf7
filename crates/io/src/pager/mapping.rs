//! A file as memory, like `mmap`, with reads decided by a readahead policy.
//!
//! The kernel serves a fault on a mapped file with a fixed window around it, or page by page with
//! `MADV_RANDOM`. Here a fault goes to the machine that also serves reads, with the same policy
//! ([`adaptive`](readpath_core::readahead::AdaptiveReadahead) by default), and direct I/O reads the
//! pages. The *server* is the thread that does this. The *machine* is the state machine of a cache.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use readpath_core::machine::{ConfigError, ReadError};
use readpath_core::policy::Spec;
use readpath_core::readahead::{Advice, ReadaheadLimits, build};
use readpath_core::request::DeviceError;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::anonymous_area::AnonymousArea;
use super::error::PagerError;
use super::fork_replacement::ForkReplacement;
use super::kernel_mapping;
use super::mapping_server::{ByteRange, MappingCommand, MappingServer, MappingSetup};
use super::pager_link::PagerLink;
use super::stats::MappingStats;
use super::uffd::{FaultScope, UffdError};
use crate::backend::BackendKind;
use crate::backend::answer::device_error;
use crate::os::frames::can_allocate_page_metadata;
use crate::os::system_memory::SystemMemory;
use crate::page_cache::kernel::is_fully_resident;
use crate::target::{OpenOptions, Target};

/// Default readahead policy.
const DEFAULT_POLICY: &str = "adaptive";
/// Default memory in bytes, if the system has enough free memory.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// Least memory in pages. One instruction may touch many pages, all of which must be present at
/// once. An unaligned move of bytes touches two, and a gather of 16 numbers across page borders 32.
const MEMORY_PAGES_MIN: u64 = 64;
/// Divisor of the memory: the default readahead window takes at most this part.
const WINDOW_MEMORY_DIVISOR: u64 = 8;

/// Options of a mapping: [`Mapping::builder`], then [`open`](MappingBuilder::open).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingBuilder {
    /// Limit of the memory for pages of the file.
    memory_bytes: u64,
    /// Readahead policy with its parameters, not parsed yet.
    readahead: String,
    /// `None` means the window of the device, limited by the memory.
    window_bytes_max: Option<u64>,
    /// Backend of the device reads.
    backend: BackendKind,
    /// Value of the option `kernel_cache`.
    uses_kernel_cache: bool,
}

impl Default for MappingBuilder {
    fn default() -> MappingBuilder {
        MappingBuilder {
            memory_bytes: DEFAULT_MEMORY_BYTES,
            readahead: DEFAULT_POLICY.to_owned(),
            window_bytes_max: None,
            backend: BackendKind::default(),
            uses_kernel_cache: true,
        }
    }
}

impl MappingBuilder {
    /// Sets the maximum memory for pages of the file, in bytes. The default is 256 MiB, but at most
    /// half of the free memory of the system and its control groups at the time of `open`. The
    /// minimum is 256 KiB, and smaller values are raised to it. Pages beyond this memory are
    /// evicted and read again on the next touch.
    ///
    /// On a fast device, the kernel's own mapping serves windows of long runs, unless
    /// [`kernel_cache`](MappingBuilder::kernel_cache) forbids it. The mapped windows fit into this
    /// memory. Pages that the kernel page cache keeps beyond them are reclaimable. The mapping
    /// needs another 200 bytes or so per page of this memory.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> MappingBuilder {
        self.memory_bytes = bytes;
        self
    }

    /// Sets the readahead policy by its name in `readpath policies`, with parameters. Default:
    /// `adaptive`.
    #[must_use]
    pub fn readahead(mut self, policy: &str) -> MappingBuilder {
        policy.clone_into(&mut self.readahead);
        self
    }

    /// Name of the readahead policy.
    pub fn policy(&self) -> &str {
        &self.readahead
    }

    /// Sets the largest readahead window in bytes, for policies other than `adaptive`. The default
    /// is the device's `read_ahead_kb`, or 128 KiB if it has none, and at most an eighth of the
    /// memory. `adaptive` measures the device and the memory instead. A larger window costs more
    /// memory and time after a wrong prediction.
    #[must_use]
    pub fn window_bytes_max(mut self, bytes: u64) -> MappingBuilder {
        self.window_bytes_max = Some(bytes);
        self
    }

    /// Sets the I/O backend. Default: [`BackendKind::Auto`].
    #[must_use]
    pub fn backend(mut self, backend: BackendKind) -> MappingBuilder {
        self.backend = backend;
        self
    }

    /// Sets if a file may be served by the kernel's own mapping. Default: yes.
    ///
    /// - A file that is completely in the kernel page cache at `open` is mapped by the kernel
    ///   ([`KernelMappingReason::InMemory`]): no byte is read again, and none is in memory twice.
    ///   If the kernel evicts pages later, its own readahead brings them back.
    /// - Without other options, the kernel also maps a file that it reads no slower than readpath
    ///   ([`KernelMappingReason::KernelIsFast`]): on a fast device, with at most a hundred
    ///   readahead windows.
    /// - In a file that readpath serves, the kernel may serve windows of long runs, unless a
    ///   policy, window or backend is set ([`MappingStats::delegated_pages`]).
    /// - A process without free descriptors (`EMFILE`) gets a kernel mapping, or else an error.
    #[must_use]
    pub fn kernel_cache(mut self, is_used: bool) -> MappingBuilder {
        self.uses_kernel_cache = is_used;
        self
    }

    /// Memory to use in bytes. The default, or a named size equal to it, is limited to half of the
    /// free memory, so that it fits into a small control group.
    fn effective_memory_bytes(&self) -> u64 {
        let is_default = self.memory_bytes == DEFAULT_MEMORY_BYTES;
        let memory = if is_default { SystemMemory::measure() } else { None };
        memory.map_or(self.memory_bytes, |memory| self.memory_bytes.min(memory.available_bytes / 2))
    }

    /// Returns `None` if the kernel must not serve windows of long runs. Otherwise returns true if
    /// the page cache of these windows is dropped behind the run. It is dropped if the file of
    /// `bytes` bytes is larger than the free memory, or if the free memory is unknown.
    fn delegated_windows_drop_behind(&self, bytes: u64) -> Option<bool> {
        let may_delegate = self.uses_kernel_cache
            && self.readahead == DEFAULT_POLICY
            && self.window_bytes_max.is_none()
            && self.backend == BackendKind::default();
        may_delegate
            .then(|| SystemMemory::measure().is_none_or(|memory| memory.available_bytes < bytes))
    }

    /// True if all options have their defaults.
    fn has_default_options(&self) -> bool {
        *self == MappingBuilder::default()
    }

    /// Maps the whole file or block device at `path`.
    ///
    /// # Safety
    /// As for every mapping of a file that returns slices: while the mapping lives, no process may
    /// change the file's bytes or shorten it. An evicted page is read again, and a slice must not
    /// change.
    ///
    /// # Errors
    /// The file cannot be opened or is empty, memory is short, a policy is unknown, or the kernel
    /// should map the file and cannot. It maps the file ([`Mapping::mode`]) if no userfaultfd is
    /// permitted, or the file is [left](MappingBuilder::kernel_cache) to it. So it does if twice the
    /// length and the tables exceed a limit of memory.
    pub unsafe fn open(self, path: impl AsRef<Path>) -> Result<Mapping, PagerError> {
        let path = path.as_ref();
        let readahead = Spec::parse(&self.readahead).map_err(PagerError::Policy)?;
        let target = Target::open(path, OpenOptions::default()).map_err(PagerError::Open)?;
        let bytes = target.bytes();
        let pages = bytes.div_ceil(PAGE_BYTES);
        // The user area is the mapping's memory. In the shadow the device's bytes arrive.
        let areas = AnonymousArea::new(pages)
            .and_then(|user| Ok((Arc::new(user), AnonymousArea::new(pages)?)));
        let (user, shadow) = areas.map_err(|errno| PagerError::AddressSpace {
            bytes: 2 * pages * PAGE_BYTES,
            errno: errno.raw_os_error(),
        })?;
        let replacement = ForkReplacement::with_file(&user, &target).map_err(PagerError::System)?;
        // The link leads to the serving thread. The scope names the accesses that are served.
        let new_mapping = |link, scope, mode, replacement, user| {
            let path = path.to_path_buf();
            Mapping { link, mode, replacement, user_area: user, bytes, scope, path }
        };
        let map_by_kernel = |mut replacement: ForkReplacement, user, because| {
            let map_error = |error| PagerError::Map { path: path.to_path_buf(), error };
            // SAFETY: the area has no references yet, and no server.
            unsafe { replacement.map_here() }.map_err(map_error)?;
            let mode = MappingMode::Kernel { because };
            // The kernel serves each access, also by system calls, and needs no link.
            Ok(new_mapping(None, FaultScope::All, mode, replacement, user))
        };
        if self.uses_kernel_cache && is_fully_resident(&target) {
            // A wrong policy is an error in any case, also where it is not used.
            check_policy(&readahead)?;
            return map_by_kernel(replacement, user, KernelMappingReason::InMemory);
        }
        if self.has_default_options() && kernel_mapping::is_kernel_mapping_as_fast(&target) {
            return map_by_kernel(replacement, user, KernelMappingReason::KernelIsFast);
        }
        let setup = self.server_setup(target, Arc::clone(&user), shadow, readahead)?;
        let started =
            PagerLink::start("readpath-map", move |inbox| MappingServer::new(setup, inbox));
        match started {
            Ok((link, scope)) => {
                Ok(new_mapping(Some(link), scope, MappingMode::Served, replacement, user))
            }
            // The system permits no faults in user space, or lacks a feature for them. Without the
            // option `kernel_cache`, a lack of descriptors is an error, because it may pass.
            Err(PagerError::Uffd(why)) if self.uses_kernel_cache || !why.is_descriptor_limit() => {
                map_by_kernel(replacement, user, KernelMappingReason::NoUserfaultfd(why))
            }
            // The kernel's mapping is not writable, and does not count towards that limit.
            Err(PagerError::WritableMemory { errno, .. }) => {
                map_by_kernel(replacement, user, KernelMappingReason::NoWritableMemory { errno })
            }
            Err(error) => Err(error),
        }
    }
}

impl MappingBuilder {
    /// Returns the parameters of the server for `target`: the memory, which need not exceed the
    /// file, and the readahead window, which leaves most of the memory to other pages. The server
    /// fills `user_area` by way of `shadow_area`.
    ///
    /// # Errors
    /// The system cannot provide the metadata of the memory's pages.
    fn server_setup(
        &self,
        target: Target,
        user_area: Arc<AnonymousArea>,
        shadow_area: AnonymousArea,
        readahead: Spec,
    ) -> Result<MappingSetup, PagerError> {
        let (bytes, file_pages) = (target.bytes(), target.bytes().div_ceil(PAGE_BYTES));
        let memory_limit_bytes = self.effective_memory_bytes().max(MEMORY_PAGES_MIN * PAGE_BYTES);
        let memory_bytes = memory_limit_bytes.min(file_pages * PAGE_BYTES);
        if !can_allocate_page_metadata(memory_bytes / PAGE_BYTES) {
            return Err(PagerError::Metadata { bytes: memory_bytes, errno: libc::ENOMEM });
        }
        let window_bytes_max = self.window_bytes_max.unwrap_or_else(|| {
            device_window_bytes(&target).min(memory_limit_bytes / WINDOW_MEMORY_DIVISOR)
        });
        Ok(MappingSetup {
            target,
            user_area,
            shadow_area,
            memory_bytes,
            readahead,
            window_bytes_max,
            backend: self.backend,
            delegated_windows_drop_behind: self.delegated_windows_drop_behind(bytes),
        })
    }
}

/// Checks the readahead policy for a mapping that needs no server.
///
/// # Errors
/// The policy is unknown.
fn check_policy(readahead: &Spec) -> Result<(), PagerError> {
    let built = build(readahead, &ReadaheadLimits::default());
    built.map(drop).map_err(|error| PagerError::Config(ConfigError::Policy(error)))
}

/// Provider of the pages of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingMode {
    /// readpath, with the configured memory and policy.
    Served,
    /// The kernel. The bytes are the same. The memory is the kernel page cache, which is
    /// reclaimable, the readahead is the kernel's, and nothing is counted. Advice and loads are
    /// passed to the kernel.
    Kernel {
        /// Reason.
        because: KernelMappingReason,
    },
}

/// Reason for the kernel's own mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelMappingReason {
    /// The whole file was in the kernel page cache at `open`.
    InMemory,
    /// No options were set, and the kernel reads a file of that size from that device no slower
    /// than readpath.
    KernelIsFast,
    /// This is a child made by `fork`, and the parent's mapping is served.
    Forked,
    /// Faults cannot be served in user space here. The error names a remedy.
    NoUserfaultfd(UffdError),
    /// A mapping with a server takes twice the file's length of writable memory, and its tables,
    /// which exceed a limit of the process or of the system.
    NoWritableMemory {
        /// Error number of the system, as in `errno(3)`.
        errno: i32,
    },
}

impl std::fmt::Display for KernelMappingReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KernelMappingReason::InMemory => f.write_str("its cache holds the whole file"),
            KernelMappingReason::KernelIsFast => {
                f.write_str("it brings this file in no slower than we could")
            }
            KernelMappingReason::Forked => f.write_str("a child made by `fork` has no other"),
            KernelMappingReason::NoUserfaultfd(why) => why.fmt(f),
            KernelMappingReason::NoWritableMemory { errno } => write!(
                f,
                "twice its length of memory, and its tables, are over a limit ({}); raise it \
                 (`ulimit -d`), or set vm.overcommit_memory to 0",
                std::io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

impl std::fmt::Display for MappingMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MappingMode::Served => f.write_str("served"),
            MappingMode::Kernel { because } => write!(f, "the kernel's own mapping ({because})"),
        }
    }
}

/// Returns the device's own readahead window, which reflects its speed, or else the kernel's
/// default.
fn device_window_bytes(target: &Target) -> u64 {
    let device_bytes =
        target.queue().map(|queue| queue.read_ahead_bytes).filter(|&bytes| bytes > 0);
    device_bytes.unwrap_or(ReadaheadLimits::default().window_pages_max * PAGE_BYTES)
}

/// A file as memory, with its own memory budget.
///
/// ```
/// use readpath::Mapping;
///
/// # let path = std::env::temp_dir().join(format!("readpath-doc-mapping-{}", std::process::id()));
/// # let numbers: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
/// # std::fs::write(&path, numbers)?;
/// // SAFETY: no process changes the file while it is mapped.
/// let mapping = unsafe { Mapping::builder().memory(1 << 20).open(&path)? };
/// let numbers = mapping.as_slice().chunks_exact(4);
/// let numbers = numbers.map(|number| u32::from_le_bytes(number.try_into().unwrap()));
/// let sum: u64 = numbers.map(u64::from).sum();
/// assert_eq!(sum, 99_999 * 100_000 / 2);
/// println!("{}: {:?}", mapping.mode(), mapping.stats());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Any number of threads may touch it at once. A page that cannot be read is *poisoned*: a touch is
/// a bus error (`SIGBUS`), as with the kernel's mappings. [`Mapping::read_exact_at`] and
/// [`Mapping::load`] return an error instead. `DontNeed` advice removes the poison.
///
/// A child made by `fork` has the kernel's own mapping of the file at the same address. Its reads
/// go through the kernel, outside the configured memory and policy, and are not counted.
///
/// # Locked memory
/// Locking the mapping or a part of it (`mlock(2)`, `mlockall(2)`), or populating it
/// (`madvise(2)`), brings the file's bytes in. If system calls cannot use its memory
/// ([`FaultScope::UserOnly`]), a lock of absent pages fails with `ENOMEM`. A lock prevents the
/// kernel from swapping pages out. It does not enlarge the mapping's memory: locked pages beyond it
/// are evicted and read again like other pages.
///
/// Dropping the mapping frees all its memory.
#[derive(Debug)]
pub struct Mapping {
    /// `None` if the kernel serves the mapping.
    link: Option<PagerLink<MappingCommand>>,
    /// Provider of the pages in the process that opened the mapping.
    mode: MappingMode,
    /// The kernel's own mapping of the file: in a child, or if there is no link.
    replacement: ForkReplacement,
    // Declared after the link: the serving thread has ended when the area is dropped.
    user_area: Arc<AnonymousArea>,
    /// Length of the file at `open`.
    bytes: u64,
    /// Accesses whose faults are served.
    scope: FaultScope,
    /// Path given to `open`.
    path: PathBuf,
}

/// Error of [`Mapping::load`] or [`Mapping::read_exact_at`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The range reaches past the end.
    PastEnd {
        /// Length of the mapping in bytes.
        bytes: u64,
    },
    /// The device failed, or the file has become shorter.
    Read(ReadError),
}

impl Mapping {
    /// Returns options with their defaults.
    pub fn builder() -> MappingBuilder {
        MappingBuilder::default()
    }

    /// Bytes of the file.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the area has this length, and its server fills each absent page with the file's
        // bytes. The caller of `open` guarantees that the bytes do not change.
        unsafe {
            std::slice::from_raw_parts(self.user_area.address(0) as *const u8, self.bytes as usize)
        }
    }

    /// Length in bytes: the file's length at `open`, never 0.
    #[allow(clippy::len_without_is_empty, reason = "an empty file can't be mapped")]
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Provider of the pages in this process.
    pub fn mode(&self) -> MappingMode {
        // A link whose thread is in the parent.
        match self.link.is_some() && self.link().is_none() {
            true => MappingMode::Kernel { because: KernelMappingReason::Forked },
            false => self.mode,
        }
    }

    /// Returns if system calls may use its memory. With [`FaultScope::UserOnly`], a system call
    /// that meets an absent page fails with `EFAULT`.
    pub fn scope(&self) -> FaultScope {
        self.scope
    }

    /// Gives advice about `bytes` bytes at `offset`. `WillNeed` prefetches the range in the
    /// device's largest requests, as far as memory allows, without waiting. `DontNeed` frees its
    /// memory. Other advice applies to the whole mapping, or to the range if the kernel serves it.
    /// Advice that the kernel refuses has no effect.
    pub fn advise(&self, advice: Advice, offset: u64, bytes: u64) {
        let Some(link) = self.link() else { return self.replacement.advise(advice, offset, bytes) };
        let range = PageRange::covering(offset, bytes).clipped(self.pages());
        link.send(MappingCommand::Advise { advice, range });
    }

    /// Reads `bytes` bytes at `offset` in the device's largest requests, and waits. A touch before
    /// their eviction needs no read.
    ///
    /// # Errors
    /// The range is not in the file, or cannot be read.
    pub fn load(&self, offset: u64, bytes: u64) -> Result<(), LoadError> {
        let wants_bytes = false;
        let ignore_piece = |_: &[u8]| {};
        self.read_range(offset, bytes, wants_bytes, ignore_piece)
    }

    /// Copies bytes of the file from `offset` on into the whole of `buffer`, without the risk of a
    /// bus error.
    ///
    /// # Errors
    /// The range is not in the file, or cannot be read. `buffer` then contains some of its bytes.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), LoadError> {
        // The kernel serves the mapping, or this is a child made by `fork`: the file is read.
        if self.link().is_none() {
            let end = self.range_end(offset, buffer.len() as u64)?;
            return match self.replacement.read(offset, buffer) {
                Ok(read_bytes) if read_bytes == buffer.len() => Ok(()),
                // The file has ended before.
                Ok(read_bytes) => {
                    Err(LoadError::Read(ReadError::Shrunk { offset: offset + read_bytes as u64 }))
                }
                Err(errno) => {
                    let error = device_error(errno.raw_os_error());
                    Err(self.kernel_read_error(offset, end, error))
                }
            };
        }
        let wants_bytes = true;
        let (mut bytes_done, bytes) = (0, buffer.len() as u64);
        let result = self.read_range(offset, bytes, wants_bytes, |piece| {
            buffer[bytes_done..bytes_done + piece.len()].copy_from_slice(piece);
            bytes_done += piece.len();
        });
        match result {
            // The file has become shorter and ends behind these bytes in their last page. The
            // page cannot be mapped, so the bytes are read from the file.
            Err(LoadError::Read(ReadError::Shrunk { offset: file_end }))
                if file_end >= offset + bytes
                    && self.replacement.read(offset, buffer) == Ok(buffer.len()) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// Returns the counters. All are zero if the kernel serves the mapping
    /// ([`mode`](Mapping::mode)) and in a child made by `fork`.
    pub fn stats(&self) -> MappingStats {
        match self.link() {
            Some(link) => link.request(|reply| MappingCommand::Statistics { reply }),
            None => MappingStats::default(),
        }
    }

    /// Returns the link to the serving thread. Returns `None` if the kernel serves the mapping, and
    /// in a child made by `fork`.
    fn link(&self) -> Option<&PagerLink<MappingCommand>> {
        self.link.as_ref().filter(|link| link.is_in_this_process())
    }

    /// Number of pages of the mapping.
    fn pages(&self) -> u64 {
        self.bytes.div_ceil(PAGE_BYTES)
    }

    /// Returns the end of a range in bytes, or an error if the range is not in the mapping.
    fn range_end(&self, offset: u64, bytes: u64) -> Result<u64, LoadError> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes);
        end.ok_or(LoadError::PastEnd { bytes: self.bytes })
    }

    /// Returns the error for the range from `offset` to `end`, which the kernel cannot read. If the
    /// file is shorter than `end` now, the error names its end, or `offset` if that lies behind it.
    /// Otherwise the error is `error`.
    fn kernel_read_error(&self, offset: u64, end: u64, error: DeviceError) -> LoadError {
        let error = ReadError::Device { offset, error };
        let shrunk_error = self.replacement.file_bytes().filter(|&bytes| bytes < end);
        let shrunk_error =
            shrunk_error.map(|bytes| ReadError::Shrunk { offset: bytes.max(offset) });
        LoadError::Read(shrunk_error.unwrap_or(error))
    }

    /// Reads the range piece by piece on the serving thread. Passes the bytes of each piece to
    /// `on_piece` if `wants_bytes` is true, and otherwise an empty slice. Without that thread, the
    /// kernel loads the range, and `on_piece` is not called. After an error, the pieces before it
    /// have been passed.
    fn read_range(
        &self,
        offset: u64,
        bytes: u64,
        wants_bytes: bool,
        mut on_piece: impl FnMut(&[u8]),
    ) -> Result<(), LoadError> {
        let end = self.range_end(offset, bytes)?;
        let Some(link) = self.link() else {
            return self.replacement.load(offset, bytes).map_err(|errno| {
                // The kernel reports EFAULT for a page that it can't populate (madvise(2)).
                let error = match errno {
                    rustix::io::Errno::FAULT => DeviceError::Medium,
                    errno => device_error(errno.raw_os_error()),
                };
                self.kernel_read_error(offset, end, error)
            });
        };
        // Puts all pieces in flight together, as far as memory permits. The server ends each piece
        // at its own limit, and returns at least one byte.
        self.advise(Advice::WillNeed, offset, bytes);
        let mut position = offset;
        while position < end {
            let range = ByteRange { offset: position, bytes: end - position };
            let piece = link.request(|reply| MappingCommand::Read { range, wants_bytes, reply });
            let piece = piece.map_err(LoadError::Read)?;
            on_piece(&piece.copy);
            position += piece.bytes;
        }
        Ok(())
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoadError::PastEnd { bytes } => {
                write!(f, "the range reaches past the end of the mapping at byte {bytes}")
            }
            LoadError::Read(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

#[cfg(test)]
mod tests;
