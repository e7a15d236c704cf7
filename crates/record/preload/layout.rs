//! Layout of the memory that a recorded program and its recorder share.
//!
//! The file has [`BYTES`] bytes: the [`Head`], then three rings of cells. All programs that the
//! recorded program starts write to the same file. Both crates compile this source file, so that
//! they agree.
//!
//! **A ring** is bounded, with many writers and one reader (after D. Vyukov). The first word of
//! each cell is its `turn`, which starts as the cell's index. A writer that drew the ticket `t`
//! owns the cell `t % count` while its turn is `t`, and publishes it as `t + 1`. The reader takes
//! the cell and sets the turn to `t + count`. No side waits: a writer that finds the ring full
//! counts a lost read.
//!
//! **The file is small**, about 1.6 MiB: a program may lock all of its memory (`mlockall(2)`)
//! within 8 MiB, and the kernel counts this mapping too. The recorder empties the rings every few
//! milliseconds.

use core::ffi::CStr;
use core::sync::atomic::AtomicU64;

/// First word of the file.
pub const MAGIC: u64 = 0x7265_6164_7061_7468;

/// Environment variable with the path of the file.
pub const VARIABLE: &CStr = c"READPATH_WATCH_RING";

/// Longest path in bytes that is reported; a longer one is cut.
pub const PATH_BYTES_MAX: usize = 4096;

const HEAD_BYTES: u64 = 4096;

/// A ring of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cells {
    /// Reads: each a [`RingSlot`]. At 50,000 reads a second the ring holds 0.3 s of them.
    Slots,
    /// Files with short paths: each a [`Name`] and its path.
    Short,
    /// Files with paths of up to [`PATH_BYTES_MAX`] bytes.
    Long,
}

impl Cells {
    /// Number of cells, chosen.
    pub const fn count(self) -> u64 {
        match self {
            Cells::Slots => 1 << 14,
            Cells::Short => 1 << 10,
            Cells::Long => 1 << 4,
        }
    }

    /// Length of a cell in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Cells::Slots => size_of::<RingSlot>() as u64,
            Cells::Short => 256,
            Cells::Long => (size_of::<Name>() + PATH_BYTES_MAX) as u64,
        }
    }

    /// Offset of the first cell in the file.
    const fn begin(self) -> u64 {
        match self {
            Cells::Slots => HEAD_BYTES,
            Cells::Short => Cells::Slots.end(),
            Cells::Long => Cells::Short.end(),
        }
    }

    /// Offset after the last cell.
    const fn end(self) -> u64 {
        self.begin() + self.count() * self.bytes()
    }

    /// Space for a path in a cell, in bytes.
    pub const fn path_room(self) -> usize {
        self.bytes() as usize - size_of::<Name>()
    }
}

/// Length of the file.
pub const BYTES: u64 = Cells::Long.end();

/// First method number of advice. Methods of reads: 0 `read`, 1 `pread`, 2 `readv`, 3 `preadv`, 4
/// `sendfile`, `splice` and `copy_file_range`, 5 AIO. Advice: this plus the number of
/// `posix_fadvise(2)`.
pub const ADVICE: u64 = 64;

/// First method number of advice on memory. It is this plus the number of `madvise(2)`: 0 to 3, and
/// `MADV_POPULATE_READ`. The offset is the address, and the file has device and inode 0.
pub const MEMORY_ADVICE: u64 = 128;

/// Position in [`RingSlot::method_and_descriptor`] of the count of requests that the thread sent to
/// devices since its last counted call, including this one: [`NO_REQUEST`], [`SOME_REQUEST`], or 0
/// if they were not counted.
pub const REQUESTS_SHIFT: u32 = 56;

/// The thread sent no request.
pub const NO_REQUEST: u64 = 1;

/// The thread sent one or more requests.
pub const SOME_REQUEST: u64 = 2;

/// Value of [`Name::path_bytes`] in a cell that its writer gave up.
pub const ABANDONED: u64 = u64::MAX;

/// First page of the file.
#[repr(C)]
pub struct Head {
    /// [`MAGIC`], once the file is complete.
    pub magic: AtomicU64,
    /// Number of seccomp filters that the recorder itself runs under.
    pub filters: AtomicU64,
    /// Next ticket of each ring.
    pub tickets: [AtomicU64; 3],
    /// Reads lost because a ring was full, or because the library had no free entry or buffer for
    /// them.
    pub lost: AtomicU64,
    /// Programs that have found this file.
    pub programs: AtomicU64,
    /// Programs that entered a sandbox (seccomp), in which recording would end them.
    pub sandboxed: AtomicU64,
    /// Calls that were not recorded: in a sandbox, or on a signal stack with too little space.
    pub unrecorded: AtomicU64,
    /// Reads of POSIX AIO, which are not recorded.
    pub helper_reads: AtomicU64,
    /// Maximum length in bytes of files whose reads are not reported. 0: all are reported, and
    /// empty files always are.
    pub unreported_bytes_max: AtomicU64,
}

/// One read that has ended.
#[repr(C)]
#[derive(Default)]
pub struct RingSlot {
    /// Turn of the cell, which decides its owner (see the head of this file).
    pub turn: AtomicU64,
    /// Begin of the call, by `CLOCK_MONOTONIC`.
    pub begin_ns: AtomicU64,
    /// End of the call.
    pub end_ns: AtomicU64,
    /// Process × 2³² + thread, as the kernel numbers them.
    pub task: AtomicU64,
    /// Requests × 2⁵⁶ + method number × 2³² + descriptor.
    pub method_and_descriptor: AtomicU64,
    /// Major number of the file's device × 2²⁰ + the minor number.
    pub device: AtomicU64,
    /// Inode of the file.
    pub inode: AtomicU64,
    /// First byte.
    pub offset: AtomicU64,
    /// Requested bytes.
    pub requested_bytes: AtomicU64,
    /// Bytes read, or the negative number of an error.
    pub result: AtomicU64,
}

/// A file that was read, at a descriptor. Its path follows.
#[repr(C)]
pub struct Name {
    /// Turn of the cell, as in [`RingSlot`].
    pub turn: AtomicU64,
    /// Device, as in [`RingSlot`].
    pub device: AtomicU64,
    /// Inode.
    pub inode: AtomicU64,
    /// Length of the file in bytes.
    pub bytes: AtomicU64,
    /// Task, as in [`RingSlot`].
    pub task: AtomicU64,
    /// Flags of `open(2)` × 2³² + descriptor.
    pub opened: AtomicU64,
    /// Length of the path in bytes, or [`ABANDONED`].
    pub path_bytes: AtomicU64,
    /// End of the first read at the descriptor, by `CLOCK_MONOTONIC`.
    pub at_ns: AtomicU64,
}

/// The file, mapped.
#[derive(Clone, Copy, Debug)]
pub struct RecordRing(*const u8);

// SAFETY: all shared data are atomics, except paths, and only the owner of a cell writes its path.
unsafe impl Send for RecordRing {}
// SAFETY: as above.
unsafe impl Sync for RecordRing {}

impl RecordRing {
    /// Creates a view of the shared memory.
    ///
    /// # Safety
    /// `address` is a writable mapping of [`BYTES`] bytes that is never unmapped.
    pub const unsafe fn new(address: *const u8) -> RecordRing {
        RecordRing(address)
    }

    /// Returns the first page of the memory.
    pub fn head(&self) -> &Head {
        // SAFETY: the mapping is longer and aligned to a page; any bytes are atomics.
        unsafe { &*self.0.cast() }
    }

    /// Returns the address of the cell of a ticket.
    fn cell(&self, cells: Cells, ticket: u64) -> *const u8 {
        let offset = cells.begin() + ticket % cells.count() * cells.bytes();
        // SAFETY: the cell lies in the mapping.
        unsafe { self.0.add(offset as usize) }
    }

    /// Returns the turn of the cell of a ticket.
    pub fn turn(&self, cells: Cells, ticket: u64) -> &AtomicU64 {
        // SAFETY: each cell begins with its turn, at a multiple of eight.
        unsafe { &*self.cell(cells, ticket).cast() }
    }

    /// Returns the slot of a ticket of [`Cells::Slots`].
    pub fn slot(&self, ticket: u64) -> &RingSlot {
        // SAFETY: a cell of this ring is a slot, at a multiple of eight.
        unsafe { &*self.cell(Cells::Slots, ticket).cast() }
    }

    /// Returns the name of a ticket of another ring, and the address of its path with space for
    /// `cells.path_room()` bytes.
    pub fn name(&self, cells: Cells, ticket: u64) -> (&Name, *mut u8) {
        let cell = self.cell(cells, ticket);
        // SAFETY: a cell of these rings holds a name and then the path, at a multiple of eight.
        unsafe { (&*cell.cast(), cell.add(size_of::<Name>()).cast_mut()) }
    }
}
