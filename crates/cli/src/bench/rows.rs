//! Rows of the matrix: common ways in which programs access files.
//!
//! A row has a name, the data files that the run creates, and the accesses. The name selects the
//! row on the command line and identifies it to the measuring process. The accesses are the same
//! for all contenders.

use std::path::{Path, PathBuf};

use readpath_eval::access_patterns::formats::FileFormat;
use readpath_eval::access_patterns::positional_reads::{AccessOrder, AccessPattern, ByteUse};
use readpath_eval::access_patterns::whole_files;
use serde::{Deserialize, Serialize};

/// Bytes in a KiB and in a MiB.
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Bytes of a read of a sequential program with a queue: Linux's default readahead window, so that
/// a depth of N compares with N such windows in flight. Files of sequential rows are multiples of
/// it.
const QUEUED_BLOCK_BYTES: u64 = 128 * KIB;

/// Bytes that a touch of a mapping reads.
const TOUCH_BYTES: u64 = 8;

/// Scale of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// At most 4 MiB: checks that every row runs; the figures are not meaningful.
    Small,
    /// At most 256 MiB.
    Usual,
    /// `Usual`, and additional rows of 2 GiB.
    Full,
}

impl Scale {
    /// Default number of runs of each cell.
    pub const fn runs(self) -> u32 {
        match self {
            Scale::Small => 1,
            Scale::Usual => 3,
            Scale::Full => 5,
        }
    }

    /// Default time limit of the command in minutes; `None`: no limit.
    pub const fn minutes(self) -> Option<u64> {
        match self {
            Scale::Small | Scale::Usual => Some(9),
            Scale::Full => None,
        }
    }
}

/// Row of the matrix.
#[derive(Clone, Debug)]
pub struct Row {
    /// Access pattern and size of a read.
    pub name: String,
    /// Data files of the row.
    pub data: Data,
    /// Accesses of one pass.
    pub work: RowAccesses,
}

/// Data files of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// One file.
    File {
        /// Length of the file.
        bytes: u64,
    },
    /// Many small files.
    Files {
        /// Number of files.
        count: usize,
    },
}

/// Accesses of a row. The library has default options, except where a field says otherwise.
#[derive(Clone, Copy, Debug)]
pub enum RowAccesses {
    /// `File::read_at` at the offsets of a pattern.
    Offsets(AccessPattern),
    /// `Reader`: sequential calls of `read`.
    Blocks {
        /// Buffer size of each call.
        bytes: u64,
    },
    /// `Reader`: `std::io::copy`.
    Copied,
    /// `File::read_at` of each whole file, between its opening and closing.
    WholeFiles {
        /// Number of threads.
        threads: usize,
    },
    /// `Reader`: seeks and reads of a parser of this file format.
    Format(FileFormat),
    /// `Mapping`: accesses to mapped memory.
    Mapped {
        /// Offsets and sizes.
        pattern: AccessPattern,
        /// Copy out of the mapping, or access in place.
        byte_use: ByteUse,
        /// Value of the option [`memory`](readpath::pager::MappingBuilder::memory).
        memory_bytes: Option<u64>,
    },
    /// `Batch`, compared with io_uring.
    Batch {
        /// Offsets and sizes.
        pattern: AccessPattern,
        /// Number of reads in flight.
        depth: u32,
    },
    /// `File::read_at_async` on tokio, with one task per thread of the pattern, compared with
    /// `spawn_blocking`.
    Futures(AccessPattern),
}

/// Form of a row in a program that knows its reads beforehand and keeps many in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuedReads {
    /// Reads of this pattern by io_uring and `O_DIRECT`, from one thread.
    Ring(AccessPattern),
    /// Whole files by as many threads as reads in flight, each with `O_DIRECT`.
    Threads,
}

impl Row {
    /// Returns the row with that name, or `None` if it is unknown.
    pub fn of(name: &str, scale: Scale) -> Option<Row> {
        rows(scale).into_iter().find(|row| row.name == name)
    }

    /// Returns the number of bytes that one pass requests. A touch counts as its whole page.
    pub fn bytes(&self) -> u64 {
        match self.work {
            RowAccesses::Mapped { pattern, .. } => pattern.count * pattern.read_bytes.max(4 * KIB),
            RowAccesses::Offsets(pattern)
            | RowAccesses::Batch { pattern, .. }
            | RowAccesses::Futures(pattern) => pattern.bytes(),
            RowAccesses::Blocks { .. } | RowAccesses::Copied | RowAccesses::WholeFiles { .. } => {
                self.data.bytes()
            }
            RowAccesses::Format(format) => {
                format.ranges(self.data.bytes()).iter().map(|&(_, bytes)| bytes).sum()
            }
        }
    }

    /// Returns the reads of a program that fetches the bytes of the row with a queue. A sequential
    /// row becomes reads of [`QUEUED_BLOCK_BYTES`]; all other reads keep their size. `None`: the
    /// program of the row cannot have a queue, because it uses mapped memory or learns its next
    /// reads from the bytes of the first one.
    pub fn queued(&self) -> Option<QueuedReads> {
        let whole_file = || {
            let file_bytes = self.data.bytes();
            AccessPattern::all(AccessOrder::Forward, file_bytes, QUEUED_BLOCK_BYTES)
        };
        match self.work {
            RowAccesses::Offsets(AccessPattern { order: AccessOrder::Forward, .. })
            | RowAccesses::Futures(AccessPattern { order: AccessOrder::Forward, .. })
            | RowAccesses::Blocks { .. }
            | RowAccesses::Copied => Some(QueuedReads::Ring(whole_file())),
            RowAccesses::Offsets(pattern)
            | RowAccesses::Batch { pattern, .. }
            | RowAccesses::Futures(pattern) => Some(QueuedReads::Ring(pattern)),
            RowAccesses::WholeFiles { .. } => Some(QueuedReads::Threads),
            RowAccesses::Format(_) | RowAccesses::Mapped { .. } => None,
        }
    }

    /// Size in bytes of the buffer into which a program copies mapped bytes; 0 for other rows. Only
    /// this buffer may be as large as the file, and thus leave too little memory for the cache.
    pub fn buffer_bytes(&self) -> u64 {
        match self.work {
            RowAccesses::Mapped { pattern, byte_use: ByteUse::Copied, .. } => pattern.read_bytes,
            _ => 0,
        }
    }

    /// True if the row accesses a mapping.
    pub fn is_mapping(&self) -> bool {
        matches!(self.work, RowAccesses::Mapped { .. })
    }
}

impl Data {
    /// Returns the total length of the files in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Data::File { bytes } => bytes,
            Data::Files { count } => whole_files::lengths(count).sum(),
        }
    }

    /// Paths of the files in the run's folder, each with its length. Equal data has equal paths.
    /// All rows of `Files` have the same count, so their paths have no count.
    pub fn files(self, folder: &Path) -> Vec<(PathBuf, u64)> {
        match self {
            Data::File { bytes } => vec![(folder.join(format_size(bytes)), bytes)],
            Data::Files { count } => {
                let folder = folder.join("files");
                let path = |file_number: usize| folder.join(format!("{file_number:04}"));
                let lengths = whole_files::lengths(count).enumerate();
                lengths.map(|(file_number, bytes)| (path(file_number), bytes)).collect()
            }
        }
    }
}

/// Returns all rows, in the order of the table. `scale` selects the sizes; only sequential rows
/// exist in each of several sizes. The numbers of files, reads and threads are chosen.
pub fn rows(scale: Scale) -> Vec<Row> {
    // `divisor` reduces the numbers of files, reads and touches.
    let (small_bytes, large_bytes, divisor) = match scale {
        Scale::Small => (MIB, 4 * MIB, 64),
        Scale::Usual | Scale::Full => (16 * MIB, 256 * MIB, 1),
    };
    let mut sizes = vec![small_bytes, large_bytes];
    sizes.extend((scale == Scale::Full).then_some(2048 * MIB));
    let mut rows = sequential_rows(&sizes);
    rows.extend(random_rows(large_bytes, divisor));
    rows.extend(strided_and_backward_rows(small_bytes, large_bytes));
    // Many small files, formats, mappings, batches and futures.
    for threads in [1, 8] {
        let count = (2000 / divisor) as usize;
        let name = format!("files/{count}/{threads}-threads");
        rows.push(Row {
            name,
            data: Data::Files { count },
            work: RowAccesses::WholeFiles { threads },
        });
    }
    let large_file = Data::File { bytes: large_bytes };
    let row_of_large_file = |name: String, work| Row { name, data: large_file, work };
    for format in FileFormat::ALL {
        let name = format!("format/{}", format.name());
        rows.push(row_of_large_file(name, RowAccesses::Format(format)));
    }
    rows.extend(mapped_rows(large_bytes, divisor));
    for (read_bytes, count) in [(4 * KIB, 8192), (64 * KIB, 2048)] {
        let threads = 1;
        let pattern = AccessPattern::random(large_bytes, read_bytes, count / divisor, threads);
        let work = RowAccesses::Batch { pattern, depth: 32 };
        rows.push(row_of_large_file(format!("batch/{}/32-deep", format_size(read_bytes)), work));
    }
    for (read_bytes, count) in [(4 * KIB, 8192), (64 * KIB, 2048)] {
        let tasks = 32;
        let pattern = AccessPattern::random(large_bytes, read_bytes, count / divisor, tasks);
        let work = RowAccesses::Futures(pattern);
        rows.push(row_of_large_file(format!("futures/{}/32-tasks", format_size(read_bytes)), work));
    }
    let pattern = AccessPattern::all(AccessOrder::Forward, large_bytes, 64 * KIB);
    let work = RowAccesses::Futures(pattern);
    rows.push(row_of_large_file("futures/stream/64KiB".to_owned(), work));
    rows
}

/// Rows of sequential reads of files of each of `sizes`, in bytes: by `read_at`, by `Reader`, and
/// by `std::io::copy`.
fn sequential_rows(sizes: &[u64]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: &str, bytes: u64, work: &dyn Fn(u64) -> RowAccesses| {
        for block_bytes in [4 * KIB, 64 * KIB, MIB] {
            let name = format!("{name}/{}/{}", format_size(bytes), format_size(block_bytes));
            rows.push(Row { name, data: Data::File { bytes }, work: work(block_bytes) });
        }
    };
    for &bytes in sizes {
        add("stream", bytes, &|block_bytes| {
            RowAccesses::Offsets(AccessPattern::all(AccessOrder::Forward, bytes, block_bytes))
        });
    }
    for &bytes in sizes {
        add("reader", bytes, &|block_bytes| RowAccesses::Blocks { bytes: block_bytes });
    }
    let copied = |&bytes| {
        let name = format!("copy/{}", format_size(bytes));
        Row { name, data: Data::File { bytes }, work: RowAccesses::Copied }
    };
    rows.extend(sizes.iter().map(copied));
    rows
}

/// Rows of random reads by 1, 8 and 32 threads in a file of `large_bytes` bytes. Without reduction
/// by `divisor` they request 32, 64 and 128 MiB, parts of a file of 256 MiB.
fn random_rows(large_bytes: u64, divisor: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (read_bytes, count) in [(4 * KIB, 8192), (16 * KIB, 4096), (64 * KIB, 2048)] {
        for threads in [1, 8, 32] {
            let pattern = AccessPattern::random(large_bytes, read_bytes, count / divisor, threads);
            let name = format!("random/{}/{threads}-threads", format_size(read_bytes));
            rows.push(Row {
                name,
                data: Data::File { bytes: large_bytes },
                work: RowAccesses::Offsets(pattern),
            });
        }
    }
    rows
}

/// Rows of strided and backward reads of files of `small_bytes` and `large_bytes` bytes.
fn strided_and_backward_rows(small_bytes: u64, large_bytes: u64) -> Vec<Row> {
    let row = |order, bytes, block_bytes| {
        let name = match order {
            AccessOrder::Stride { step_bytes } => {
                format!("stride/{}-of-{}", format_size(block_bytes), format_size(step_bytes))
            }
            // Backward, the only other order of these rows.
            _ => format!("backward/{}/{}", format_size(bytes), format_size(block_bytes)),
        };
        let work = RowAccesses::Offsets(AccessPattern::all(order, bytes, block_bytes));
        Row { name, data: Data::File { bytes }, work }
    };
    let stride = |step_bytes| AccessOrder::Stride { step_bytes };
    vec![
        row(stride(64 * KIB), large_bytes, 4 * KIB),
        row(stride(256 * KIB), large_bytes, 64 * KIB),
        row(AccessOrder::Backward, small_bytes, 4 * KIB),
        row(AccessOrder::Backward, large_bytes, 64 * KIB),
    ]
}

/// Rows of mappings of `large_bytes` bytes: copies, touches, and mappings limited to a quarter of
/// the file. `divisor` reduces the number of random accesses.
fn mapped_rows(large_bytes: u64, divisor: u64) -> Vec<Row> {
    let row = |name: String, pattern, byte_use, memory_bytes| {
        let work = RowAccesses::Mapped { pattern, byte_use, memory_bytes };
        Row { name, data: Data::File { bytes: large_bytes }, work }
    };
    let stream = |block_bytes| AccessPattern::all(AccessOrder::Forward, large_bytes, block_bytes);
    let mut rows = Vec::new();
    for block_bytes in [4 * KIB, 64 * KIB, MIB] {
        let name = format!("map/stream/{}", format_size(block_bytes));
        rows.push(row(name, stream(block_bytes), ByteUse::Copied, None));
    }
    rows.push(row("map/stream/whole".to_owned(), stream(large_bytes), ByteUse::Copied, None));
    let threads = 1;
    let touches = AccessPattern::random(large_bytes, TOUCH_BYTES, 8192 / divisor, threads);
    let slices = AccessPattern::random(large_bytes, 64 * KIB, 2048 / divisor, threads);
    rows.push(row("map/touches".to_owned(), touches, ByteUse::InPlace, None));
    rows.push(row("map/slices/64KiB".to_owned(), slices, ByteUse::InPlace, None));
    // Larger than memory: the mapping is limited to a quarter of the file.
    let quarter = Some(large_bytes / 4);
    rows.push(row(
        "map-in-quarter/stream/64KiB".to_owned(),
        stream(64 * KIB),
        ByteUse::Copied,
        quarter,
    ));
    rows.push(row("map-in-quarter/slices/64KiB".to_owned(), slices, ByteUse::InPlace, quarter));
    rows
}

/// Formats a size in the largest unit that divides it. Sizes of rows are whole KiB.
pub fn format_size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1024 * MIB) => format!("{}GiB", bytes >> 30),
        _ if bytes.is_multiple_of(MIB) => format!("{}MiB", bytes >> 20),
        _ => format!("{}KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// 45 rows: 14 sequential, 9 random, 4 strided or backward, 2 of whole files, 3 of formats, 8
    /// mapped, 2 of batches and 3 of futures. The full scale has a third file size, with three more
    /// rows of reads, three of a reader, and a copy.
    #[test]
    fn row_names_are_unique_at_every_scale() {
        for (scale, count) in [(Scale::Small, 45), (Scale::Usual, 45), (Scale::Full, 52)] {
            let rows = rows(scale);
            let names: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
            assert_eq!((names.len(), rows.len()), (count, count), "{scale:?}");
        }
    }

    /// All threads of a row have the same number of reads, which end within the data.
    #[test]
    fn row_accesses_stay_within_their_data_files() {
        for row in [Scale::Small, Scale::Usual, Scale::Full].into_iter().flat_map(rows) {
            assert!((1..=row.data.bytes()).contains(&row.bytes()), "{}", row.name);
            let (RowAccesses::Offsets(pattern)
            | RowAccesses::Mapped { pattern, .. }
            | RowAccesses::Futures(pattern)) = row.work
            else {
                continue;
            };
            assert_eq!(pattern.count % pattern.threads, 0, "{}", row.name);
            for thread in 0..pattern.threads {
                let ends = pattern.of_thread(thread).map(|start| start + pattern.read_bytes);
                let end = ends.max().unwrap();
                assert!(end <= row.data.bytes(), "{}", row.name);
            }
        }
    }
}
