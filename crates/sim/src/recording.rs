//! Recordings: what a program read, when, and what of it the kernel had, in one file.
//!
//! `readpath watch` writes them; everything else reads them. A recording names files and threads
//! and says what was done with which bytes. It has no byte of what was read, and nothing of a
//! command line.
//!
//! # The file
//!
//! All numbers of fixed width are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `D2 72 65 61 64 72 65 63`: a byte that is no text, then `readrec` |
//! | 4 | the version: 2; version 1 has no `Mapped`, no `Unseen` and no `aio` |
//! | … | blocks, up to the end of the file |
//!
//! A block is:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | the length of its records in bytes: 1 to 1,048,576 |
//! | 4 | CRC-32 (IEEE 802.3, as in gzip) of its records |
//! | … | records, each whole |
//!
//! So a file that is cut off gives all blocks that stand before the cut, and a byte that was changed
//! is noticed in its block. A block can be understood with the names alone ([`FileRecord`], [`ThreadName`],
//! [`DeviceRecord`]) that came before it.
//!
//! # A record
//!
//! A byte that tells its kind ([`Record::tag`]), then its fields in the order in which they are
//! declared, with these encodings:
//!
//! | | |
//! |---|---|
//! | number | seven bits a byte, the lowest first; the highest bit says that another byte follows |
//! | difference | the number `d × 2` for `d ≥ 0`, `-d × 2 - 1` for `d < 0`, modulo 2⁶⁴ |
//! | yes or no | the number 1 or 0 |
//! | text | its length in bytes as a number, then that many bytes of UTF-8 |
//! | perhaps a number | 0 for none, else the number + 1 |
//! | time | the difference to the last time in this block, 0 at its beginning, in nanoseconds |
//! | a beginning | the number of nanoseconds from it to the time before which it stands |
//! | offset | the difference to where the last range of the same file in this block ended, 0 at first |
//! | result of a read | the number `(asked - got) × 2`, or `error number × 2 + 1` |
//!
//! The first record is [`Record::RecordingStart`]. The last is [`Record::RecordingEnd`], unless the recorder was
//! killed. Records of reads and requests stand in the order in which these *ended*, and times are
//! counted from the start.
//!
//! # What may be relied on
//!
//! A [`RecordingReader`] has checked of each record that its files, threads and devices have been named
//! before, that it doesn't end before it begins, that no range goes beyond 2⁶³ bytes, and that no call was given more than
//! a call can be ([`CALL_BYTES_MAX`]). All times together, all bytes and all counts of a recording are at most
//! [`RECALL_BATCH_MAX`], so that whoever sums them up needs no more than 64 bits.

use serde::Serialize;

mod code;
mod fields;
mod mapped;
mod merge;
mod read;
pub mod strace;
mod sums;
mod write;

pub use mapped::{FaultUse, MappedUse};
pub use merge::{MergeError, MergedRecords};
pub use read::{RecordingError, RecordingReader};
pub use write::RecordingWriter;

/// The first bytes of a recording.
pub const MAGIC: [u8; 8] = *b"\xd2readrec";

/// Version of the format that is written.
pub const VERSION: u32 = 2;

/// Oldest version that is read. Its records are those of [`VERSION`], without the newer kinds.
pub const VERSION_OLDEST: u32 = 1;

/// The longest a block's records may be in bytes.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;

/// The longest text in bytes.
pub const TEXT_BYTES_MAX: u64 = 64 << 10;

/// No range of a file ends beyond this.
pub const OFFSET_MAX: u64 = 1 << 63;

/// What one call is given at most, what it brings into the page cache, and what a [`Mapped`] names: Linux gives 2 GiB less a page, and reads ahead
/// beyond that.
pub const CALL_BYTES_MAX: u64 = 1 << 32;

/// What the lengths of all reads, of all requests and of all waits may be together in nanoseconds (36 years of threads that
/// wait), their bytes, and how many events were lost.
pub const RECALL_BATCH_MAX: u64 = 1 << 60;

/// How reads were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordingMethod {
    /// By the kernel's tracepoints: reads, faults, the page cache and the device.
    #[default]
    Tracepoints,
    /// By functions put before the C library's: calls that read, and advice.
    Preload,
    /// From the text of `strace`: reads alone.
    Strace,
    /// From a trace of block requests: reads alone.
    Requests,
}

/// How the recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordingStart {
    /// How reads were seen.
    pub source: RecordingMethod,
    /// When, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// The length of a page of memory in bytes.
    pub page_bytes: u64,
    /// How much memory the machine has in bytes; 0 when that is not known.
    pub memory_bytes: u64,
    /// The name of the program's file, without arguments; empty when several were watched.
    pub program: String,
    /// The kernel and its release, as in `Linux 6.18.44`; empty when that is not known.
    pub system: String,
}

/// A block device, named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceRecord {
    /// The kernel's number: major × 2²⁰ + minor.
    pub device: u64,
    /// Its name, as in `/sys/block`; empty when it is none there (a network's file system).
    pub name: String,
    /// Whether the kernel takes it for one with a head that moves.
    pub is_rotational: bool,
    /// How far the kernel reads ahead on it, in bytes.
    pub readahead_bytes: u64,
    /// The type of the file system or what else the device is for; empty when not known.
    pub file_system: String,
}

/// A file, named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileRecord {
    /// Its number in the recording.
    pub file: u32,
    /// The device that it lies on: major × 2²⁰ + minor; 0 when that is not known.
    pub device: u64,
    /// Its inode number; 0 when that is not known.
    pub inode: u64,
    /// Its length in bytes when it was first seen.
    pub bytes: Option<u64>,
    /// Its path. What is no UTF-8 in it is replaced.
    pub path: String,
}

/// A thread, named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ThreadName {
    /// Its number in the recording.
    pub thread: u32,
    /// The kernel's number of it.
    pub task: u32,
    /// The kernel's number of its process.
    pub process: u32,
    /// Its name, at most 15 characters.
    pub name: String,
}

/// A file was opened, or was open when the recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpenRecord {
    /// When.
    pub at_ns: u64,
    /// By which thread.
    pub thread: u32,
    /// Which file.
    pub file: u32,
    /// The descriptor.
    pub descriptor: u64,
    /// Whether it is read past the page cache (`O_DIRECT`).
    pub is_direct: bool,
    /// Whether it is opened to be read.
    pub is_readable: bool,
    /// Whether it is opened to be written.
    pub is_writable: bool,
}

/// A file was mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileMapped {
    /// When.
    pub at_ns: u64,
    /// By which thread.
    pub thread: u32,
    /// Which file.
    pub file: u32,
    /// From which byte of the file.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What the kernel was told of a range to come.
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
    /// `FADV_NOREUSE`, and what else there is.
    Other,
}

/// The kernel was told of a range to come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AdviceGiven {
    /// When.
    pub at_ns: u64,
    /// By which thread.
    pub thread: u32,
    /// Of which file.
    pub file: u32,
    /// From which byte on.
    pub offset: u64,
    /// How many bytes; 0 for all up to the end.
    pub bytes: u64,
    /// What.
    pub hint: AdviceType,
    /// Whether it was said of a mapping (`madvise`), not of the file.
    pub is_of_mapping: bool,
}

/// By which way a read went.
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
    /// A touch of a mapping that the kernel had to serve: one page is asked for.
    Fault,
    /// A read given to io_uring.
    Uring,
    /// `sendfile`, `copy_file_range`, `splice`.
    Copied,
    /// A read given to Linux AIO (`io_submit`).
    Aio,
}

/// What came of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadOutcome {
    /// So many bytes, at most as many as were asked for.
    Bytes(u64),
    /// This error number; 0 when it is not known which.
    Error(u32),
}

impl Default for ReadOutcome {
    fn default() -> ReadOutcome {
        ReadOutcome::Bytes(0)
    }
}

/// A read of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadRecord {
    /// When its bytes were there.
    pub end_ns: u64,
    /// When it began; at most `end_ns`.
    pub begin_ns: u64,
    /// How long of that its thread did not run because it waited for a device.
    pub waited_ns: u64,
    /// By which thread.
    pub thread: u32,
    /// By which way.
    pub way: ReadMethod,
    /// The descriptor; none for a touch of a mapping.
    pub descriptor: Option<u64>,
    /// Of which file.
    pub file: u32,
    /// From which byte on.
    pub offset: u64,
    /// How many bytes it asked for.
    pub asked_bytes: u64,
    /// What it was given.
    pub outcome: ReadOutcome,
}

impl ReadRecord {
    /// How many bytes it was given.
    pub fn got_bytes(&self) -> u64 {
        match self.outcome {
            ReadOutcome::Bytes(bytes) => bytes,
            ReadOutcome::Error(_) => 0,
        }
    }

    /// How long it took, in nanoseconds.
    pub fn took_ns(&self) -> u64 {
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
    /// When.
    pub at_ns: u64,
    /// By which thread.
    pub thread: u32,
    /// Of which file.
    pub file: u32,
    /// From which byte on.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Reads were made of which neither the bytes nor the file is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// When that was noticed.
    pub at_ns: u64,
    /// By which thread.
    pub thread: u32,
    /// By which way.
    pub way: ReadMethod,
    /// Number of reads.
    pub count: u64,
    /// How long the thread waited for them, as far as that was seen.
    pub waited_ns: u64,
}

/// Pages came into the page cache, one beside the other, by one thread within one call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PagesInserted {
    /// When the first came.
    pub at_ns: u64,
    /// The thread that put them there. Between a read's beginning and its end by the same thread it
    /// is that read that made the kernel fetch them.
    pub thread: u32,
    /// Of which file.
    pub file: u32,
    /// From which byte on.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Pages left the page cache, one beside the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PagesEvicted {
    /// When the first left.
    pub at_ns: u64,
    /// Of which file.
    pub file: u32,
    /// From which byte on.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What a request asks a device for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceOperation {
    /// To read.
    #[default]
    Read,
    /// To write.
    Write,
    /// To flush, discard or what else there is.
    Other,
}

/// A request of a block device, whoever made it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestRecord {
    /// When the device was done with it.
    pub end_ns: u64,
    /// When the device was given it; at most `end_ns`.
    pub begin_ns: u64,
    /// The thread that gave it, when it is one that was watched.
    pub thread: Option<u64>,
    /// Which device.
    pub device: u64,
    /// What it was asked for.
    pub work: DeviceOperation,
    /// Whether the kernel has it as reading ahead.
    pub is_ahead: bool,
    /// Its first byte on the device.
    pub place: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Events were lost, since the last such record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventsLost {
    /// When that was noticed.
    pub at_ns: u64,
    /// How many, as far as the kernel counted.
    pub count: u64,
}

/// How the recording ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordingEnd {
    /// When: the length of the recording.
    pub at_ns: u64,
    /// Processor time of the program and what it started, in nanoseconds; none when not known.
    pub processor_ns: Option<u64>,
    /// Whether the program ended; else watching did.
    pub has_exited: bool,
}

/// What stands in a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The first record.
    Start(RecordingStart),
    /// A device's name.
    Device(DeviceRecord),
    /// A file's name.
    File(FileRecord),
    /// A thread's name; one that is named again has another name since.
    Thread(ThreadName),
    /// A file was opened.
    Open(OpenRecord),
    /// A file was mapped.
    Map(FileMapped),
    /// The kernel was told of a range to come.
    Advice(AdviceGiven),
    /// A read.
    Read(ReadRecord),
    /// Pages came into the page cache.
    Insert(PagesInserted),
    /// Pages left the page cache.
    Evict(PagesEvicted),
    /// A device's request.
    Request(RequestRecord),
    /// Events were lost.
    Lost(EventsLost),
    /// The last record.
    End(RecordingEnd),
    /// Pages were mapped.
    Mapped(Mapped),
    /// Reads of which the bytes are not known.
    Unseen(Unseen),
}

impl Record {
    /// The byte that tells its kind.
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
        }
    }

    /// An empty record of the kind that a byte tells.
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
            _ => return None,
        })
    }
}
