//! A file as memory: what `mmap` gives, with reads decided by a readahead law.
//!
//! The kernel serves a fault on a mapped file with a window fixed around it, or
//! with `MADV_RANDOM` page by page. Here a fault goes to the machine that also
//! serves reads, by the same law ([`adaptive`](readpath_core::readahead::Adaptive)
//! unless told otherwise), and direct I/O brings what it decided.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use readpath_core::machine::{ConfigError, ReadError};
use readpath_core::policy::Spec;
use readpath_core::readahead::{Advice, ReadaheadLimits, build};
use readpath_core::request::DeviceError;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::area::AnonymousArea;
use super::error::PagerError;
use super::inherited::ForkLocal;
use super::left_to_kernel;
use super::link::PagerLink;
use super::mapping_server::{ByteRange, MappingCommand, MappingServer, MappingSetup};
use super::uffd::{FaultScope, UffdError};
use crate::backend::BackendKind;
use crate::frames::has_room_for_tables;
use crate::kernel_pages::holds_all;
use crate::spare_memory::SpareMemory;
use crate::target::{OpenOptions, Target};

/// The law unless another is named.
const POLICY: &str = "adaptive";
/// The memory unless another is named, and there is less.
const MEMORY_BYTES: u64 = 256 << 20;
/// The least memory: one instruction may touch pages in many places, all of which must be there at once. A
/// move of bytes that are not aligned touches two, a gather of 16 numbers across borders 32.
const MEMORY_PAGES_MIN: u64 = 64;

/// How a file is to be mapped: [`Mapping::builder`], then [`open`](MappingBuilder::open).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingBuilder {
    memory_bytes: u64,
    readahead: String,
    window_bytes_max: Option<u64>,
    backend: BackendKind,
    takes_kernel_pages: bool,
}

impl Default for MappingBuilder {
    fn default() -> MappingBuilder {
        MappingBuilder {
            memory_bytes: MEMORY_BYTES,
            readahead: POLICY.to_owned(),
            window_bytes_max: None,
            backend: BackendKind::default(),
            takes_kernel_pages: true,
        }
    }
}

impl MappingBuilder {
    /// The most memory for pages of the file, in bytes; default 256 MiB, or half of what the machine and its control groups
    /// have free when it is mapped, where that is less; at least 256 KiB (less is raised to that). Pages beyond it are given up and read again when they
    /// are touched again. Of a fast device the kernel's own mapping serves the windows of long runs (unless [`kernel_cache`](MappingBuilder::kernel_cache)
    /// forbids it): no more of them than fits into this memory are mapped, and what of them the kernel's cache keeps beyond that gives way by itself. Beside it the mapping takes about 200 bytes a page
    /// of this memory.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> MappingBuilder {
        self.memory_bytes = bytes;
        self
    }

    /// The readahead law, as `readpath policies` names it, with its parameters; default `adaptive`.
    #[must_use]
    pub fn readahead(mut self, policy: &str) -> MappingBuilder {
        policy.clone_into(&mut self.readahead);
        self
    }

    /// The readahead law that is set.
    pub fn policy(&self) -> &str {
        &self.readahead
    }

    /// The most that a law reads ahead at once, in bytes, if it is not `adaptive`; default: the
    /// device's `read_ahead_kb`, or 128 KiB where it has none, and no more than an eighth of the memory. `adaptive` finds
    /// out what its device and its memory give. Larger windows cost
    /// more memory and time where the guess is wrong.
    #[must_use]
    pub fn window_bytes_max(mut self, bytes: u64) -> MappingBuilder {
        self.window_bytes_max = Some(bytes);
        self
    }

    /// What carries the bytes; default [`BackendKind::Auto`].
    #[must_use]
    pub fn backend(mut self, backend: BackendKind) -> MappingBuilder {
        self.backend = backend;
        self
    }

    /// Whether a file may be left to the kernel's own mapping; default yes. One is of which its page cache holds everything when
    /// it is mapped ([`KernelMapping::Held`]): no byte of it is read again, and none is in memory twice. So is one, where nothing
    /// else is set, that the kernel brings in no slower than we could ([`KernelMapping::Swift`]): on a fast device, of a hundred of
    /// its readahead windows at the most. Should the kernel let pages go later, it brings them back by its own readahead. Of a file that we serve it may
    /// be lent the windows of long runs, where no law, window or backend is set ([`MappingStatistics::lent_pages`]).
    #[must_use]
    pub fn kernel_cache(mut self, is_used: bool) -> MappingBuilder {
        self.takes_kernel_pages = is_used;
        self
    }

    /// The memory that is set; by default no more than half of what is free, so that a small control group has room for it.
    fn memory_now(&self) -> u64 {
        let is_default = self.memory_bytes == MEMORY_BYTES;
        let memory = if is_default { SpareMemory::now() } else { None };
        memory.map_or(self.memory_bytes, |memory| self.memory_bytes.min(memory.available / 2))
    }

    /// Whether long runs of a file of so many bytes may be lent to the kernel's own mapping; and if so, whether what it brings in
    /// is to go with them, since the file is larger than what is free.
    fn lends(&self, bytes: u64) -> Option<bool> {
        let is_free = self.takes_kernel_pages
            && self.readahead == POLICY
            && self.window_bytes_max.is_none()
            && self.backend == BackendKind::default();
        is_free.then(|| SpareMemory::now().is_none_or(|memory| memory.available < bytes))
    }

    /// Whether all that it would be served with is left as it is by default.
    fn names_nothing(&self) -> bool {
        *self == MappingBuilder::default()
    }

    /// Maps the whole of the file or block device at `path`.
    ///
    /// # Safety
    /// As for every mapping of a file that gives out slices: as long as the
    /// mapping lives, nobody may change the file's bytes or make it shorter. A
    /// page that was given up is read again, and a slice must not change.
    ///
    /// # Errors
    /// The file can't be opened or is empty; the system gives no memory; a law is unknown. Where it gives
    /// no userfaultfd, or may be [left](MappingBuilder::kernel_cache) the file, the kernel maps it ([`Mapping::mode`]).
    pub unsafe fn open(self, path: impl AsRef<Path>) -> Result<Mapping, PagerError> {
        let path = path.as_ref();
        let readahead = Spec::parse(&self.readahead).map_err(PagerError::Policy)?;
        let target = Target::open(path, OpenOptions::default()).map_err(PagerError::Open)?;
        let bytes = target.bytes();
        let pages = bytes.div_ceil(PAGE_BYTES);
        let area = AnonymousArea::new(pages)
            .and_then(|user| Ok((Arc::new(user), AnonymousArea::new(pages)?)));
        let (user, shadow) =
            area.map_err(|errno| PagerError::AddressSpace { bytes, errno: errno.raw_os_error() })?;
        let fork_local = ForkLocal::of(&user, &target).map_err(PagerError::System)?;
        let mapping = |link, scope, mode, fork_local, user| {
            let path = path.to_path_buf();
            Mapping { link, mode, fork_local, user, bytes, scope, path }
        };
        let by_kernel = |mut fork_local: ForkLocal, user, because| {
            // SAFETY: nobody has looked at the area, and it has no server.
            unsafe { fork_local.take_over() }.map_err(PagerError::System)?;
            let mode = MappingMode::Kernel { because };
            Ok(mapping(None, FaultScope::All, mode, fork_local, user))
        };
        if self.takes_kernel_pages && holds_all(&target) {
            check(&readahead)?;
            return by_kernel(fork_local, user, KernelMapping::Held);
        }
        if self.names_nothing() && left_to_kernel::suits(&target) {
            return by_kernel(fork_local, user, KernelMapping::Swift);
        }
        let memory_bytes = self.memory_now().max(MEMORY_PAGES_MIN * PAGE_BYTES);
        let memory_bytes_used = memory_bytes.min(pages * PAGE_BYTES);
        if !has_room_for_tables(memory_bytes_used / PAGE_BYTES) {
            let errno = libc::ENOMEM;
            return Err(PagerError::AddressSpace { bytes: memory_bytes_used, errno });
        }
        let window_bytes_max =
            self.window_bytes_max.unwrap_or_else(|| window_of(&target).min(memory_bytes / 8));
        let setup = MappingSetup {
            target,
            user: Arc::clone(&user),
            shadow,
            memory_bytes: memory_bytes_used,
            readahead,
            window_bytes_max,
            backend: self.backend,
            lends: self.lends(bytes),
        };
        let started =
            PagerLink::start("readpath-map", move |inbox| MappingServer::new(setup, inbox));
        match started {
            Ok((link, scope)) => {
                Ok(mapping(Some(link), scope, MappingMode::Served, fork_local, user))
            }
            Err(PagerError::Uffd(why)) => by_kernel(fork_local, user, KernelMapping::Unserved(why)),
            Err(error) => Err(error),
        }
    }
}

/// Whether a server could be built with this law.
///
/// # Errors
/// The law is unknown.
fn check(readahead: &Spec) -> Result<(), PagerError> {
    let built = build(readahead, &ReadaheadLimits::default());
    built.map(drop).map_err(|error| PagerError::Config(ConfigError::Policy(error)))
}

/// Who brings the pages of a mapping in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingMode {
    /// We do, in the memory and by the law that were set.
    Served,
    /// The kernel does. The bytes are the same. The memory
    /// is the kernel's cache, which gives way as other memory is needed, the readahead is its own, and
    /// nothing is counted; hints and loads are given to it.
    Kernel {
        /// Why.
        because: KernelMapping,
    },
}

/// Why the kernel brings the pages of a mapping in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelMapping {
    /// Its cache held the whole file when it was mapped.
    Held,
    /// Nothing was set, and it brings in a file of that size from that device no slower than we could.
    Swift,
    /// Faults can't be served in user space here; with what would help.
    Unserved(UffdError),
}

impl std::fmt::Display for KernelMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KernelMapping::Held => f.write_str("its cache holds the whole file"),
            KernelMapping::Swift => f.write_str("it brings this file in no slower than we could"),
            KernelMapping::Unserved(why) => why.fmt(f),
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

/// The device's own readahead, which takes its speed into account; else the
/// kernel's default.
fn window_of(target: &Target) -> u64 {
    let own = target.queue().map(|queue| queue.read_ahead_bytes).filter(|&bytes| bytes > 0);
    own.unwrap_or(ReadaheadLimits::default().window_pages_max * PAGE_BYTES)
}

/// A file as memory, in a budget of its own.
///
/// ```
/// use readpath::Mapping;
///
/// # let path = std::env::temp_dir().join(format!("readpath-doc-mapping-{}", std::process::id()));
/// # let numbers: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
/// # std::fs::write(&path, numbers)?;
/// // SAFETY: nobody changes the file while it is mapped.
/// let mapping = unsafe { Mapping::builder().memory(1 << 20).open(&path)? };
/// let numbers = mapping.as_slice().chunks_exact(4);
/// let sum: u64 = numbers.map(|number| u64::from(u32::from_le_bytes(number.try_into().unwrap()))).sum();
/// assert_eq!(sum, 99_999 * 100_000 / 2);
/// println!("{}: {:?}", mapping.mode(), mapping.statistics());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Any number of threads may touch it at once. A page that can't be read is
/// *poisoned*: to touch it is a bus error (`SIGBUS`), as with the kernel's
/// mappings, and [`read_at`](Mapping::read_at) or [`load`](Mapping::load) give
/// it as an error instead. `DontNeed` advice takes the poison off.
///
/// A child made by `fork` has the kernel's own mapping of the file in its place: what is
/// read there comes through the kernel, outside the memory and the law that were set, and
/// isn't counted.
///
/// # Locked memory
/// To lock the mapping or a part of it (`mlock(2)`, `mlockall(2)`), or to populate it
/// (`madvise(2)`), brings the file's bytes in; where system calls may not be given its
/// memory ([`FaultScope::UserOnly`]), a lock of absent pages is refused with `ENOMEM`. A lock keeps
/// the kernel from swapping pages out. It doesn't make the mapping's memory larger: what is
/// locked beyond it is given up and read again like any other page.
///
/// Dropped, the mapping gives all memory back.
#[derive(Debug)]
pub struct Mapping {
    /// None where the kernel serves it.
    link: Option<PagerLink<MappingCommand>>,
    mode: MappingMode,
    fork_local: ForkLocal,
    // After the link: its thread, which serves the area, has ended by then.
    user: Arc<AnonymousArea>,
    bytes: u64,
    scope: FaultScope,
    path: PathBuf,
}

/// What a mapping has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingStatistics {
    /// Touches of pages that were not mapped.
    pub faults: u64,
    /// Those of them that waited for the device.
    pub faults_read: u64,
    /// Pages that were mapped, by faults and with their neighbours.
    pub mapped_pages: u64,
    /// Pages that were copied in place of moved, since a transfer still held them.
    pub copied_pages: u64,
    /// Pages that were given up.
    pub evicted_pages: u64,
    /// Pages that could not be read when they were touched.
    pub poisoned_pages: u64,
    /// Pages of long runs that were lent to the kernel's own mapping of the file; they are in no other count.
    pub lent_pages: u64,
    /// Pages in memory now.
    pub resident_pages: u64,
    /// Requests to the device.
    pub device_reads: u64,
    /// Bytes that these asked for.
    pub device_read_bytes: u64,
}

/// What was asked of a mapping can't be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The range reaches past the end.
    PastEnd {
        /// The length of the mapping in bytes.
        bytes: u64,
    },
    /// The device failed, or the file has become shorter.
    Read(ReadError),
}

impl Mapping {
    /// How a file is to be mapped, with the defaults.
    pub fn builder() -> MappingBuilder {
        MappingBuilder::default()
    }

    /// The bytes of the file.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the area is as long, and each of its pages, absent or not,
        // reads as the file's bytes: that is what its server does. Nobody
        // changes them, by the promise given at `open`.
        unsafe {
            std::slice::from_raw_parts(self.user.address(0) as *const u8, self.bytes as usize)
        }
    }

    /// The length in bytes: the file's when it was mapped; never 0.
    #[allow(clippy::len_without_is_empty, reason = "an empty file can't be mapped")]
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who brings its pages in.
    pub fn mode(&self) -> MappingMode {
        self.mode
    }

    /// Whether system calls may be given its memory: where they may not
    /// ([`FaultScope::UserOnly`]), one that meets an absent page fails with `EFAULT`.
    pub fn scope(&self) -> FaultScope {
        self.scope
    }

    /// A hint about `bytes` bytes at `offset`. `WillNeed` has them read now, in
    /// the largest requests that the device takes, as far as memory allows, and
    /// doesn't wait; `DontNeed` gives their memory back; the others concern the
    /// whole mapping.
    pub fn advise(&self, advice: Advice, offset: u64, bytes: u64) {
        let Some(link) = self.link() else { return self.fork_local.advise(advice, offset, bytes) };
        let range = PageRange::covering(offset, bytes).clipped(self.pages());
        link.tell(MappingCommand::Advise { advice, range });
    }

    /// Reads `bytes` bytes at `offset`, in the largest requests that the device
    /// takes, and waits. Touched before they are given up again, they cost
    /// no read.
    ///
    /// # Errors
    /// The range is not in the file, or can't be read.
    pub fn load(&self, offset: u64, bytes: u64) -> Result<(), LoadError> {
        self.read_range(offset, bytes, false, |_| {})
    }

    /// Copies bytes of the file from `offset` on into the whole of `buffer`,
    /// and never ends in a bus error.
    ///
    /// # Errors
    /// The range is not in the file, or can't be read; then `buffer` holds
    /// some of its bytes.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), LoadError> {
        if self.link().is_none() {
            let end = self.end_of(offset, buffer.len() as u64)?;
            return match self.fork_local.read(offset, buffer) {
                Ok(read) if read == buffer.len() => Ok(()),
                Ok(read) => {
                    Err(LoadError::Read(ReadError::Shrunk { offset: offset + read as u64 }))
                }
                Err(_) => Err(self.refused(offset, end)),
            };
        }
        let mut at = 0;
        self.read_range(offset, buffer.len() as u64, true, |bytes| {
            buffer[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        })
    }

    /// What was counted so far: nothing where the kernel serves it ([`mode`](Mapping::mode)), or in a
    /// child made by `fork`.
    pub fn statistics(&self) -> MappingStatistics {
        match self.link() {
            Some(link) => link.ask(|reply| MappingCommand::Statistics { reply }),
            None => MappingStatistics::default(),
        }
    }

    /// The link to the thread that serves it, where there is one.
    fn link(&self) -> Option<&PagerLink<MappingCommand>> {
        self.link.as_ref().filter(|link| link.is_here())
    }

    fn pages(&self) -> u64 {
        self.bytes.div_ceil(PAGE_BYTES)
    }

    /// Where a range ends that is in the file.
    fn end_of(&self, offset: u64, bytes: u64) -> Result<u64, LoadError> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes);
        end.ok_or(LoadError::PastEnd { bytes: self.bytes })
    }

    /// Why the kernel doesn't give a range.
    fn refused(&self, offset: u64, end: u64) -> LoadError {
        let error = ReadError::Device { offset, error: DeviceError::Medium };
        let shrunk = self.fork_local.file_bytes().filter(|&bytes| bytes < end);
        let shrunk = shrunk.map(|bytes| ReadError::Shrunk { offset: bytes.max(offset) });
        LoadError::Read(shrunk.unwrap_or(error))
    }

    /// Has the range read piece by piece by the thread that serves it, and gives each piece's bytes if they are wanted.
    fn read_range(
        &self,
        offset: u64,
        bytes: u64,
        wants_bytes: bool,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), LoadError> {
        let end = self.end_of(offset, bytes)?;
        let Some(link) = self.link() else {
            return self.fork_local.load(offset, bytes).map_err(|_| self.refused(offset, end));
        };
        // So that the pieces are on their way together.
        self.advise(Advice::WillNeed, offset, bytes);
        let mut at = offset;
        while at < end {
            let range = ByteRange { offset: at, bytes: end - at };
            let piece = link.ask(|reply| MappingCommand::Read { range, wants_bytes, reply });
            let piece = piece.map_err(LoadError::Read)?;
            each(&piece.copied);
            at += piece.bytes;
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
mod tests {
    use super::*;

    /// Memory as a file (tmpfs(5)) has no device; the kernel's default is 32 pages (`VM_READAHEAD_PAGES`).
    #[test]
    fn a_window_is_the_devices_and_without_one_the_kernels() {
        let window_in = |folder: &Path| {
            let path = folder.join(format!("readpath-window-{}", std::process::id()));
            std::fs::write(&path, [1]).unwrap();
            let target = Target::open(&path, OpenOptions::default());
            std::fs::remove_file(&path).unwrap();
            let target = target.unwrap();
            (window_of(&target), target.queue().map_or(0, |queue| queue.read_ahead_bytes))
        };
        let (window, devices) = window_in(Path::new(env!("CARGO_MANIFEST_DIR")));
        assert_eq!(window, if devices > 0 { devices } else { 131_072 });
        let memory = Path::new("/dev/shm");
        if memory.is_dir() {
            assert_eq!(window_in(memory), (131_072, 0));
        }
    }
}
