//! Recordings: the reads of a program, their times, and their pages in the kernel's cache, in one
//! file.
//!
//! `readpath record` writes them; all other commands read them. A recording names files and
//! threads, and the byte ranges of their operations. It contains no data of the files and no
//! command line.
//!
//! # The file
//!
//! All numbers of fixed width are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `D2 72 65 61 64 72 65 63`: a byte that is no text, then `readrec` |
//! | 4 | the version: 6; 5 has no `Executable` and no activity `Sync`, 4 no `OthersSampled`, 3 no
//! `OthersRequests`, 2 no `TimeSpent`, 1 no `Mapped`, `Unseen` and `aio` |
//! | … | blocks, up to the end of the file |
//!
//! A block is:
//!
//! | bytes | content |
//! |---|---|
//! | 4 | the length of its records in bytes: 1 to 1,048,576 |
//! | 4 | CRC-32 (IEEE 802.3, as in gzip) of its records |
//! | … | records, each whole |
//!
//! A truncated file returns all blocks before the cut, and a changed byte is detected in its block.
//! A block can be decoded with only the names ([`FileRecord`], [`ThreadName`], [`DeviceRecord`])
//! from earlier blocks.
//!
//! # A record
//!
//! A record is a byte with its kind ([`Record::tag`]), then its fields in the order of declaration,
//! with these encodings:
//!
//! | | |
//! |---|---|
//! | number | seven bits a byte, the lowest first; the highest bit says that another byte follows |
//! | difference | the number `d × 2` for `d ≥ 0`, `-d × 2 - 1` for `d < 0`, modulo 2⁶⁴ |
//! | yes or no | the number 1 or 0 |
//! | text | its length in bytes as a number, then that many bytes of UTF-8 |
//! | perhaps a number | 0 for none, else the number + 1 |
//! | time | the difference to the last time in this block, 0 at its beginning, in nanoseconds |
//! | a beginning | the number of nanoseconds from it to the end time of the same record |
//! | offset | difference to the end of the last range of the same file in this block, 0 at first |
//! | result of a read | the number `(asked - got) × 2`, or `error number × 2 + 1` |
//!
//! The first record is [`Record::Start`]. The last is [`Record::End`], unless the recorder was
//! killed. Records of reads and requests are in the order of their *ends*, and times are counted
//! from the start.
//!
//! # Guarantees
//!
//! A [`RecordingReader`] checks each record:
//!
//! - its files, threads and devices were named before;
//! - it does not end before it begins;
//! - no range extends beyond 2⁶³ bytes;
//! - no read returned more than [`CALL_BYTES_MAX`] bytes. It may have asked for more.
//!
//! The sums of all times, bytes and counts of a recording are at most [`SUM_MAX`]. Sums in
//! 64 bits therefore do not overflow.

use serde::Serialize;

mod advice;
mod code;
mod fields;
mod mapped;
mod merge;
mod read;
pub mod strace;
mod sums;
mod totals;
mod write;

pub use mapped::{FaultUse, MappedUse};

pub use merge::MergedRecords;
pub use read::RecordingReader;
pub use readpath_models::path_text::{path_bytes, path_text};
pub use totals::{Activity, OthersRequests, OthersSampled, TimeSpent, is_kernel_thread};
pub use write::RecordingWriter;

/// First bytes of a recording.
pub const MAGIC: [u8; 8] = *b"\xd2readrec";

/// Version of the format that is written.
pub const VERSION: u32 = 6;

/// Oldest version that can be read. Its format is [`VERSION`] without the newer record kinds.
pub const VERSION_OLDEST: u32 = 1;

/// Maximum length of a block's records in bytes. It bounds the memory of a reader.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;

/// Maximum length of a text in bytes. It bounds the memory of a reader.
pub const TEXT_BYTES_MAX: u64 = 64 << 10;

/// Maximum end of a file range.
pub const OFFSET_MAX: u64 = 1 << 63;

/// Maximum number of bytes that one call returned, of one insertion into the page cache, and of a
/// [`Mapped`]. Linux limits a call to 2 GiB less a page, and reads ahead beyond that.
pub const CALL_BYTES_MAX: u64 = 1 << 32;

/// Maximum sum over a recording, in nanoseconds or bytes: durations of reads and requests, waits
/// (36 years of waiting threads), sizes, lost events.
pub const SUM_MAX: u64 = 1 << 60;

/// Method by which the reads were recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordingMethod {
    /// The kernel's tracepoints: reads, faults, the page cache and the device.
    #[default]
    Tracepoints,
    /// Functions preloaded before the C library's: reading calls and advice.
    Preload,
    /// The output of `strace`: reads only.
    Strace,
    /// A trace of block requests: reads only.
    Requests,
}

/// Start of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordingStart {
    /// Method of recording.
    pub source: RecordingMethod,
    /// Start time in nanoseconds since 1970.
    pub wall_ns: u64,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Memory of the machine in bytes. 0 if unknown.
    pub memory_bytes: u64,
    /// Name of the program's file, without arguments. Empty for several programs.
    pub program: String,
    /// Kernel and release, such as `Linux 6.18.44`. Empty if unknown.
    pub system: String,
}

/// Name of a block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceRecord {
    /// Kernel number: major × 2²⁰ + minor.
    pub device: u64,
    /// Name in `/sys/block`. Empty if it has none there (a network file system).
    pub name: String,
    /// True if the kernel classifies it as rotational.
    pub is_rotational: bool,
    /// The kernel's readahead window in bytes.
    pub readahead_bytes: u64,
    /// Type of the file system, or other purpose of the device. Empty if unknown.
    pub file_system: String,
}

/// Name of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileRecord {
    /// Number in the recording.
    pub file: u32,
    /// Device of the file: major × 2²⁰ + minor. 0 if unknown.
    pub device: u64,
    /// Inode number. 0 if unknown.
    pub inode: u64,
    /// Length in bytes at its first occurrence.
    pub bytes: Option<u64>,
    /// Path as [`path_text`]: bytes that are not UTF-8 have an escape.
    pub path: String,
}

/// Name of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ThreadName {
    /// Number in the recording.
    pub thread: u32,
    /// Thread ID.
    pub task: u32,
    /// Process ID.
    pub process: u32,
    /// Name, at most 15 characters.
    pub name: String,
}

/// A file was opened, or was open at the start of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpenRecord {
    /// Time of the call. In a recording without root, the end of the first read by this
    /// descriptor, or its begin for a read of io_uring.
    pub at_ns: u64,
    /// Calling thread. In a recording without root, the first reader.
    pub thread: u32,
    /// File.
    pub file: u32,
    /// File descriptor.
    pub descriptor: u64,
    /// True for direct I/O (`O_DIRECT`).
    pub is_direct: bool,
    /// True if opened for reading.
    pub is_readable: bool,
    /// True if opened for writing.
    pub is_writable: bool,
}

/// A file was mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileMapped {
    /// Time of the call.
    pub at_ns: u64,
    /// Calling thread.
    pub thread: u32,
    /// File.
    pub file: u32,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range.
    pub bytes: u64,
}

/// A file was mapped for execution: a program or a library. Reads of it belong to the start of the
/// program, or to its loader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExecutableMapped {
    /// Time of the first such mapping that the recorder saw.
    pub at_ns: u64,
    /// File.
    pub file: u32,
}

/// Advice to the kernel about a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdviceType {
    /// `FADV_NORMAL`, `MADV_NORMAL`.
    #[default]
    Normal,
    /// `FADV_RANDOM`, `MADV_RANDOM`.
    Random,
    /// `FADV_SEQUENTIAL`, `MADV_SEQUENTIAL`.
    Sequential,
    /// `FADV_WILLNEED`, `MADV_WILLNEED`, `MADV_POPULATE_READ`, `readahead`.
    WillNeed,
    /// `FADV_DONTNEED`, `MADV_DONTNEED`.
    DontNeed,
    /// `FADV_NOREUSE` and all others.
    Other,
}

/// The program advised the kernel about a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AdviceGiven {
    /// Time of the call.
    pub at_ns: u64,
    /// Calling thread.
    pub thread: u32,
    /// File.
    pub file: u32,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range. 0 means up to the end of the file.
    pub bytes: u64,
    /// The advice.
    pub hint: AdviceType,
    /// True for advice on a mapping (`madvise`), false on a file.
    pub is_of_mapping: bool,
}

/// System call or mechanism of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadMethod {
    /// `read`.
    #[default]
    Read,
    /// `pread64`.
    Pread,
    /// `readv`.
    Readv,
    /// `preadv`, `preadv2`.
    Preadv,
    /// A page fault on a mapping, with a size of one page.
    Fault,
    /// A read submitted to io_uring.
    Uring,
    /// `sendfile`, `copy_file_range`, `splice`.
    Copied,
    /// A read given to Linux AIO (`io_submit`).
    Aio,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadOutcome {
    /// Number of bytes read, at most the requested number.
    Bytes(u64),
    /// Error number. 0 if unknown.
    Error(u32),
}

impl Default for ReadOutcome {
    /// A read of no bytes, without an error.
    fn default() -> ReadOutcome {
        ReadOutcome::Bytes(0)
    }
}

/// A read of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadRecord {
    /// Completion time.
    pub end_ns: u64,
    /// Start time, at most `end_ns`.
    pub begin_ns: u64,
    /// Part of that time in which the thread waited for a device. In a recording by
    /// [`RecordingMethod::Preload`] it is an upper bound from samples of the thread, at least 1, or
    /// 0 without samples.
    pub waited_ns: u64,
    /// Calling thread.
    pub thread: u32,
    /// System call or mechanism.
    pub way: ReadMethod,
    /// File descriptor. Absent for a page fault.
    pub descriptor: Option<u64>,
    /// File.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Requested bytes.
    pub asked_bytes: u64,
    /// Result.
    pub outcome: ReadOutcome,
}

impl ReadRecord {
    /// Number of bytes read.
    pub fn bytes_read(&self) -> u64 {
        match self.outcome {
            ReadOutcome::Bytes(bytes) => bytes,
            ReadOutcome::Error(_) => 0,
        }
    }

    /// Duration in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns - self.begin_ns
    }
}

/// Pages were mapped by one fault, or by a call that populates a mapping.
///
/// The program may have used each of them: the kernel reports no further touch. The record stands
/// before the [`ReadRecord`] of its fault, which is by the same thread and names the page that was
/// touched. A record without such a read is of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mapped {
    /// Time of the call.
    pub at_ns: u64,
    /// Calling thread.
    pub thread: u32,
    /// File.
    pub file: u32,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range.
    pub bytes: u64,
}

/// Reads of which neither the bytes nor the file is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// Time at which the loss was detected.
    pub at_ns: u64,
    /// Calling thread.
    pub thread: u32,
    /// System call or mechanism.
    pub way: ReadMethod,
    /// Number of reads.
    pub count: u64,
    /// Observed time that the thread waited for them.
    pub waited_ns: u64,
}

/// Contiguous pages were inserted into the page cache by one thread within one call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PagesInserted {
    /// Time of the first insertion.
    pub at_ns: u64,
    /// Thread that inserted the pages. Between the start and the end of a read by the same thread,
    /// that read caused the insertion.
    pub thread: u32,
    /// File.
    pub file: u32,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range. 0 before the record of a read that waited: the thread inserted no page
    /// for it.
    pub bytes: u64,
}

/// Contiguous pages were removed from the page cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PagesEvicted {
    /// Time of the first removal.
    pub at_ns: u64,
    /// File.
    pub file: u32,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range.
    pub bytes: u64,
}

/// Type of a device request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceOperation {
    /// Read.
    #[default]
    Read,
    /// Write.
    Write,
    /// Flush, discard or other.
    Other,
}

/// A request to a block device by any process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestRecord {
    /// Completion time.
    pub end_ns: u64,
    /// Time of submission to the device, at most `end_ns`.
    pub begin_ns: u64,
    /// Submitting thread, if it belongs to the recorded program.
    pub thread: Option<u64>,
    /// Device.
    pub device: u64,
    /// Type of the request.
    pub work: DeviceOperation,
    /// True if the kernel marked it as readahead.
    pub is_ahead: bool,
    /// First byte on the device.
    pub place: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Events were lost since the last such record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventsLost {
    /// Time at which the loss was detected.
    pub at_ns: u64,
    /// Number of lost events, as counted by the kernel.
    pub count: u64,
}

/// End of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordingEnd {
    /// Duration of the recording.
    pub at_ns: u64,
    /// Processor time of the program and its children, in nanoseconds. Absent if unknown.
    pub processor_ns: Option<u64>,
    /// True if the program exited, false if the recording was stopped.
    pub has_exited: bool,
}

/// A record of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// First record.
    Start(RecordingStart),
    /// Name of a device.
    Device(DeviceRecord),
    /// Name of a file.
    File(FileRecord),
    /// Name of a thread. A repetition is a new name.
    Thread(ThreadName),
    /// A file was opened.
    Open(OpenRecord),
    /// A file was mapped.
    Map(FileMapped),
    /// The program advised the kernel about a range.
    Advice(AdviceGiven),
    /// A read.
    Read(ReadRecord),
    /// Pages were inserted into the page cache.
    Insert(PagesInserted),
    /// Pages were removed from the page cache.
    Evict(PagesEvicted),
    /// A device request.
    Request(RequestRecord),
    /// Events were lost.
    Lost(EventsLost),
    /// Last record.
    End(RecordingEnd),
    /// Pages were mapped.
    Mapped(Mapped),
    /// Reads of which the bytes are not known.
    Unseen(Unseen),
    /// Wall time of one activity.
    TimeSpent(TimeSpent),
    /// Requests of another program.
    OthersRequests(OthersRequests),
    /// Requests of others, sampled.
    OthersSampled(OthersSampled),
    /// A file was mapped for execution.
    Executable(ExecutableMapped),
}

impl Record {
    /// Times of the record in nanoseconds since the start of the recording: its end, and its begin
    /// if it has one. `None` for a record without a time.
    pub fn times_mut(&mut self) -> Option<(&mut u64, Option<&mut u64>)> {
        Some(match self {
            Record::Open(open) => (&mut open.at_ns, None),
            Record::Map(map) => (&mut map.at_ns, None),
            Record::Advice(advice) => (&mut advice.at_ns, None),
            Record::Read(read) => (&mut read.end_ns, Some(&mut read.begin_ns)),
            Record::Insert(insert) => (&mut insert.at_ns, None),
            Record::Evict(evict) => (&mut evict.at_ns, None),
            Record::Request(request) => (&mut request.end_ns, Some(&mut request.begin_ns)),
            Record::Lost(lost) => (&mut lost.at_ns, None),
            Record::End(end) => (&mut end.at_ns, None),
            Record::Mapped(mapped) => (&mut mapped.at_ns, None),
            Record::Unseen(unseen) => (&mut unseen.at_ns, None),
            Record::TimeSpent(spent) => (&mut spent.at_ns, None),
            Record::OthersRequests(others) => (&mut others.at_ns, None),
            Record::OthersSampled(others) => (&mut others.end_ns, Some(&mut others.begin_ns)),
            Record::Executable(mapped) => (&mut mapped.at_ns, None),
            Record::Start(_) | Record::Device(_) | Record::File(_) | Record::Thread(_) => {
                return None;
            }
        })
    }

    /// Number of the record's type, its first byte in the file. Numbers never change.
    pub const fn tag(&self) -> u8 {
        match self {
            Record::Start(_) => 1,
            Record::Device(_) => 2,
            Record::File(_) => 3,
            Record::Thread(_) => 4,
            Record::Open(_) => 5,
            Record::Map(_) => 6,
            Record::Advice(_) => 7,
            Record::Read(_) => 8,
            Record::Insert(_) => 9,
            Record::Evict(_) => 10,
            Record::Request(_) => 11,
            Record::Lost(_) => 12,
            Record::End(_) => 13,
            Record::Mapped(_) => 14,
            Record::Unseen(_) => 15,
            Record::TimeSpent(_) => 16,
            Record::OthersRequests(_) => 17,
            Record::OthersSampled(_) => 18,
            Record::Executable(_) => 19,
        }
    }

    /// Returns a function that creates an empty record of the type `tag`, for the decoder to fill
    /// in. `None` for an unknown type.
    const fn constructor_of(tag: u8) -> Option<fn() -> Record> {
        Some(match tag {
            1 => || Record::Start(RecordingStart::default()),
            2 => || Record::Device(DeviceRecord::default()),
            3 => || Record::File(FileRecord::default()),
            4 => || Record::Thread(ThreadName::default()),
            5 => || Record::Open(OpenRecord::default()),
            6 => || Record::Map(FileMapped::default()),
            7 => || Record::Advice(AdviceGiven::default()),
            8 => || Record::Read(ReadRecord::default()),
            9 => || Record::Insert(PagesInserted::default()),
            10 => || Record::Evict(PagesEvicted::default()),
            11 => || Record::Request(RequestRecord::default()),
            12 => || Record::Lost(EventsLost::default()),
            13 => || Record::End(RecordingEnd::default()),
            14 => || Record::Mapped(Mapped::default()),
            15 => || Record::Unseen(Unseen::default()),
            16 => || Record::TimeSpent(TimeSpent::default()),
            17 => || Record::OthersRequests(OthersRequests::default()),
            18 => || Record::OthersSampled(OthersSampled::default()),
            19 => || Record::Executable(ExecutableMapped::default()),
            _ => return None,
        })
    }
}
