//! The file workloads of the policy matrix.
//!
//! Each is a typical access pattern of programs. It is small enough to be simulated in
//! milliseconds, and large enough that the learning time of a policy is a realistic part. The total
//! work is about the same for any number of processes, with a minimum per process. Private files of
//! the processes are at random positions on the device, as on a used disk. At equal distances, all
//! of them would begin on the same member of an array and on the same die of a solid-state drive.

use readpath_core::unit::PAGE_BYTES;

use readpath_models::random::SeededRng;
use readpath_sim::job::JobEngine;
use readpath_sim::workload::{FileId, GivenRead, ReadList, Workload, WorkloadFile};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Part of the device that contains the files, less than the size of the smallest device.
const SPREAD_BYTES: u64 = 16 * GIB;

/// An access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPattern {
    /// Each process reads its own file from start to end, cached or direct.
    Sequential { block_bytes: u64, is_direct: bool },
    /// All processes together read blocks of one file, each once, in random order: all blocks, or
    /// one in `work_divisor`. Each process has `depth` reads in flight.
    Random { block_bytes: u64, work_divisor: u64, depth: u32, is_direct: bool },
    /// Random aligned slices of the given size, through a mapping. One in `per` slices is read.
    Slices { slice_bytes: u64, per: u64 },
    /// Each process reads its own file from end to start.
    Backward { block_bytes: u64 },
    /// Each process reads its own file with a constant stride between the starts of blocks.
    Strided { block_bytes: u64, stride_bytes: u64 },
    /// Sequential streams, interleaved in random order: on one handle in one file, or each on a
    /// handle and file of its own.
    Interleaved { streams: u64, is_one_handle: bool },
    /// Three sequential reads of 64 KiB and one random read of 16 KiB in rotation, in one file.
    Mixed,
    /// Sequential, random, backward and strided phases, one after another.
    Phases,
    /// A database: random 16 KiB reads at depth four, of which four in five go to a fifth of the
    /// file.
    Database,
    /// A small file that is read once and then repeatedly at random.
    Cached,
    /// Each process reads its own file from start to end through a mapping.
    MappedStream { block_bytes: u64 },
    /// A database with scans: 16 KiB records with a Zipf distribution, and occasional sequential
    /// reads of 1 MiB.
    Scans,
    /// Columnar files: the footer, then the chunks of two of `columns` columns from each row group.
    Columns { columns: u64 },
    /// A file of tensors: the header, then all tensors in random order.
    Tensors,
    /// Many files of 4 to 200 KiB, each read completely.
    SmallFiles,
    /// Files of the given size, each read from the start up to a random position.
    ReadPartly { file_bytes: u64 },
    /// Random 16 KiB reads in a region of 4 MiB, which moves after every 128 reads.
    HotSpots,
}

/// The patterns with their names in the matrix.
pub(crate) const WORKLOADS: &[(&str, ReadPattern)] = &[
    ("seq-4k", ReadPattern::Sequential { block_bytes: 4 * KIB, is_direct: false }),
    ("seq-64k", ReadPattern::Sequential { block_bytes: 64 * KIB, is_direct: false }),
    ("seq-1m", ReadPattern::Sequential { block_bytes: MIB, is_direct: false }),
    ("rand-4k", random(4 * KIB, 1)),
    ("rand-16k", random(16 * KIB, 1)),
    ("rand-64k", random(64 * KIB, 1)),
    ("rand-4k-tenth", random(4 * KIB, 10)),
    ("rand-16k-tenth", random(16 * KIB, 10)),
    ("rand-64k-tenth", random(64 * KIB, 10)),
    ("rand-4k-half", random(4 * KIB, 2)),
    ("rand-16k-half", random(16 * KIB, 2)),
    ("rand-64k-half", random(64 * KIB, 2)),
    ("rand-4k-quarter", random(4 * KIB, 4)),
    ("rand-16k-quarter", random(16 * KIB, 4)),
    ("rand-64k-quarter", random(64 * KIB, 4)),
    ("rand-4k-fortieth", random(4 * KIB, 40)),
    ("rand-16k-fortieth", random(16 * KIB, 40)),
    ("mmap-slices", ReadPattern::Slices { slice_bytes: 64 * KIB, per: 16 }),
    ("mmap-touches", ReadPattern::Slices { slice_bytes: 4 * KIB, per: 512 }),
    ("backward-4k", ReadPattern::Backward { block_bytes: 4 * KIB }),
    ("backward-64k", ReadPattern::Backward { block_bytes: 64 * KIB }),
    ("stride-64k-128k", strided(64 * KIB, 128 * KIB)),
    ("stride-64k-256k", strided(64 * KIB, 256 * KIB)),
    ("stride-16k-1m", strided(16 * KIB, MIB)),
    ("one-handle-2", interleaved(2, true)),
    ("one-handle-8", interleaved(8, true)),
    ("one-handle-64", interleaved(64, true)),
    ("many-handles-2", interleaved(2, false)),
    ("many-handles-8", interleaved(8, false)),
    ("many-handles-64", interleaved(64, false)),
    ("mixed", ReadPattern::Mixed),
    ("phases", ReadPattern::Phases),
    ("database-16k", ReadPattern::Database),
    ("cached", ReadPattern::Cached),
    ("direct-seq-64k", ReadPattern::Sequential { block_bytes: 64 * KIB, is_direct: true }),
    (
        "direct-rand-4k",
        ReadPattern::Random { block_bytes: 4 * KIB, work_divisor: 10, depth: 8, is_direct: true },
    ),
    (
        "direct-rand-64k",
        ReadPattern::Random { block_bytes: 64 * KIB, work_divisor: 4, depth: 1, is_direct: true },
    ),
    ("seq-1k", ReadPattern::Sequential { block_bytes: KIB, is_direct: false }),
    ("mmap-seq", ReadPattern::MappedStream { block_bytes: 64 * KIB }),
    ("database-scans", ReadPattern::Scans),
    ("columns", ReadPattern::Columns { columns: 8 }),
    ("columns-wide", ReadPattern::Columns { columns: 32 }),
    ("tensors", ReadPattern::Tensors),
    ("small-files", ReadPattern::SmallFiles),
    ("given-up", ReadPattern::ReadPartly { file_bytes: 4 * MIB }),
    ("given-up-1m", ReadPattern::ReadPartly { file_bytes: MIB }),
    ("given-up-16m", ReadPattern::ReadPartly { file_bytes: 16 * MIB }),
    ("hot-spots", ReadPattern::HotSpots),
];

/// Declares a pattern of random cached reads.
const fn random(block_bytes: u64, work_divisor: u64) -> ReadPattern {
    ReadPattern::Random { block_bytes, work_divisor, depth: 1, is_direct: false }
}

/// Declares a strided pattern.
const fn strided(block_bytes: u64, stride_bytes: u64) -> ReadPattern {
    ReadPattern::Strided { block_bytes, stride_bytes }
}

/// Declares a pattern of interleaved streams: on one handle if `is_one_handle`, otherwise each on
/// its own.
const fn interleaved(streams: u64, is_one_handle: bool) -> ReadPattern {
    ReadPattern::Interleaved { streams, is_one_handle }
}

impl ReadPattern {
    /// Returns true if all reads are direct, so that readahead has no effect.
    pub fn is_direct(self) -> bool {
        matches!(
            self,
            ReadPattern::Sequential { is_direct: true, .. }
                | ReadPattern::Random { is_direct: true, .. }
        )
    }

    /// Returns the workload of `processes`, with files spread over a device. `part` divides the
    /// work for quick tests.
    pub fn workload(self, processes: u64, part: u64, seed: u64) -> Workload {
        let mut draw = SeededRng::new(seed);
        let (files, lists) = self.lists(processes, part, &mut draw);
        Workload::from_lists(files.spread(&mut draw), lists)
    }

    /// Returns the same workload with contiguous files, as in one existing file.
    pub fn workload_packed(self, processes: u64, part: u64, seed: u64) -> Workload {
        let (files, lists) = self.lists(processes, part, &mut SeededRng::new(seed));
        Workload::from_lists(files.0, lists)
    }

    /// Returns the files and the reads of each process. `part` divides the work.
    fn lists(
        self,
        processes: u64,
        part: u64,
        draw: &mut SeededRng,
    ) -> (WorkloadFiles, Vec<ReadList>) {
        let mut files = WorkloadFiles::default();
        let shared = self.shared_lists(&mut files, processes, part, draw);
        let lists = (0..processes).map(|process| {
            let reads = match &shared {
                Some(reads) => every_nth(reads, process, processes),
                None => self.lists_of_process(&mut files, processes, part, draw),
            };
            let (engine, depth) = match self {
                ReadPattern::Slices { .. } | ReadPattern::MappedStream { .. } => {
                    (JobEngine::Mmap, 1)
                }
                ReadPattern::Random { depth, .. } if depth > 1 => (JobEngine::IoUring, depth),
                ReadPattern::Database => (JobEngine::IoUring, 4),
                _ => (JobEngine::Psync, 1),
            };
            ReadList { engine, is_direct: self.is_direct(), depth, reads, think_times: Vec::new() }
        });
        let lists = lists.collect();
        (files, lists)
    }

    /// Returns true for cached reads with one read in flight per process.
    pub fn is_plain(self) -> bool {
        let is_deep =
            matches!(self, ReadPattern::Database | ReadPattern::Random { depth: 2.., .. });
        !is_deep && !self.is_direct() && !self.is_mapped()
    }

    /// Returns true for reads through a mapping.
    pub fn is_mapped(self) -> bool {
        matches!(self, ReadPattern::Slices { .. } | ReadPattern::MappedStream { .. })
    }

    /// Returns the common reads of all processes, for the patterns with one shared file, which is
    /// added to `files`. `None` for other patterns.
    fn shared_lists(
        self,
        files: &mut WorkloadFiles,
        processes: u64,
        part: u64,
        draw: &mut SeededRng,
    ) -> Option<Vec<GivenRead>> {
        match self {
            ReadPattern::Random { block_bytes, work_divisor, .. } => {
                let blocks = share(4096 / part, processes, 16) * processes;
                let file = files.add(blocks * work_divisor * block_bytes);
                Some(shuffled(blocks * work_divisor, draw).take(blocks).of(file, block_bytes))
            }
            ReadPattern::Database => {
                let (block_bytes, blocks) = (16 * KIB, GIB / (16 * KIB));
                let file = files.add(GIB);
                let reads = share(4096 / part, processes, 32) * processes;
                let block = |draw: &mut SeededRng| match draw.below(5) {
                    0 => draw.below(blocks),
                    _ => draw.below(blocks / 5),
                };
                let blocks = (0..reads).map(|_| block(draw)).collect();
                Some(RandomBlockOrder(blocks).of(file, block_bytes))
            }
            _ => None,
        }
    }

    /// Returns the reads of one of `processes` processes in its own files, which are added to
    /// `files`. `part` divides the work.
    fn lists_of_process(
        self,
        files: &mut WorkloadFiles,
        processes: u64,
        part: u64,
        draw: &mut SeededRng,
    ) -> Vec<GivenRead> {
        match self {
            ReadPattern::Sequential { block_bytes, is_direct } => {
                // Direct reads have no readahead, so more requests are needed for a comparable
                // device load.
                let total = if is_direct { 256 * MIB } else { 64 * MIB };
                let bytes = share(total / part, processes, MIB);
                let file = files.add(bytes);
                forward(bytes / block_bytes).of(file, block_bytes)
            }
            ReadPattern::MappedStream { block_bytes } => {
                let bytes = share(64 * MIB / part, processes, MIB);
                let file = files.add(bytes);
                forward(bytes / block_bytes).of(file, block_bytes)
            }
            ReadPattern::Backward { block_bytes } => {
                let bytes = share(32 * MIB / part, processes, MIB);
                let file = files.add(bytes);
                forward(bytes / block_bytes).backward().of(file, block_bytes)
            }
            ReadPattern::Strided { block_bytes, stride_bytes } => {
                let reads = share(512 / part, processes, 16);
                let file = files.add(reads * stride_bytes);
                let blocks_per_stride = stride_bytes / block_bytes;
                forward(reads).times(blocks_per_stride).of(file, block_bytes)
            }
            ReadPattern::Slices { slice_bytes, per: slices_per_read } => {
                let slices = share(1024 / part, processes, 16);
                let file = files.add(slices * slices_per_read * slice_bytes);
                shuffled(slices * slices_per_read, draw).take(slices).of(file, slice_bytes)
            }
            ReadPattern::Interleaved { streams, is_one_handle } => {
                let bytes = share(32 * MIB / part, processes * streams, 128 * KIB);
                interleave(files, streams, bytes, is_one_handle, draw)
            }
            ReadPattern::Mixed => {
                let blocks = share(1024 / part, processes, 32);
                let bytes = blocks * 64 * KIB;
                let file = files.add(4 * bytes);
                let sequential = forward(blocks).of(file, 64 * KIB);
                let random = |draw: &mut SeededRng| GivenRead {
                    file,
                    offset: bytes + draw.below(3 * bytes / (16 * KIB)) * 16 * KIB,
                    bytes: 16 * KIB,
                };
                let triples = sequential.chunks(3);
                triples.flat_map(|triple| [triple, &[random(draw)]].concat()).collect()
            }
            ReadPattern::Phases => {
                let blocks = share(512 / part, processes, 32);
                let bytes = blocks * 64 * KIB;
                let file = files.add(8 * bytes);
                let mut reads = forward(blocks).of(file, 64 * KIB);
                reads.extend(shuffled(16 * blocks, draw).take(blocks).of(file, 16 * KIB));
                reads.extend(forward(2 * blocks).backward().take(blocks).of(file, 64 * KIB));
                reads.extend(forward(blocks).times(4).of(file, 64 * KIB));
                reads
            }
            ReadPattern::Cached => {
                let bytes = share(8 * MIB / part, processes, 256 * KIB);
                let file = files.add(bytes);
                let mut reads = forward(bytes / (64 * KIB)).of(file, 64 * KIB);
                for _ in 0..8 {
                    reads.extend(shuffled(bytes / PAGE_BYTES, draw).of(file, PAGE_BYTES));
                }
                reads
            }
            ReadPattern::Scans => scans(files, share(32 / part, processes, 1), draw),
            ReadPattern::Columns { columns: column_count } => {
                columns(files, share(64 / part, processes, 2), column_count, draw)
            }
            ReadPattern::Tensors => tensors(files, share(64 / part, processes, 4), draw),
            ReadPattern::SmallFiles => {
                let count = share(512 / part, processes, 8);
                (0..count).flat_map(|_| small_file(files, draw)).collect()
            }
            ReadPattern::ReadPartly { file_bytes } => {
                let count = share(128 * MIB / file_bytes / part, processes, 2);
                let one = |_| {
                    let file = files.add(file_bytes);
                    forward(1 + draw.below(file_bytes / (64 * KIB))).of(file, 64 * KIB)
                };
                (0..count).flat_map(one).collect()
            }
            ReadPattern::HotSpots => {
                let spots = share(32 / part, processes, 1);
                let file = files.add(512 * MIB);
                let spot = |_| {
                    let first = draw.below(127 * 4 * MIB / (16 * KIB)) * 16 * KIB;
                    let offset_in_spot =
                        |draw: &mut SeededRng| first + draw.below(4 * MIB / (16 * KIB)) * 16 * KIB;
                    let reading = |offset| GivenRead { file, offset, bytes: 16 * KIB };
                    (0..128).map(|_| reading(offset_in_spot(draw))).collect::<Vec<_>>()
                };
                (0..spots).flat_map(spot).collect()
            }
            ReadPattern::Random { .. } | ReadPattern::Database => {
                unreachable!("these share one file")
            }
        }
    }
}

/// Returns the reads of [`ReadPattern::Scans`]. Each round has 112 records of a 1 GiB table and 1
/// MiB in sequence.
fn scans(files: &mut WorkloadFiles, rounds: u64, draw: &mut SeededRng) -> Vec<GivenRead> {
    let file = files.add(GIB);
    let mut readings = Vec::new();
    for _ in 0..rounds {
        for _ in 0..112 {
            let offset = zipf(GIB / (16 * KIB), draw) * 16 * KIB;
            readings.push(GivenRead { file, offset, bytes: 16 * KIB });
        }
        let first = draw.below(GIB / MIB) * MIB;
        readings.extend(in_pieces(file, first, MIB, 64 * KIB));
    }
    readings
}

/// Draws a block number below `blocks`, a power of two. The `n`-th most popular block is about `1 ÷
/// n` as likely as the first. Neighbours in popularity have random positions. Integer arithmetic
/// only: each doubling of the rank has equal probability.
fn zipf(blocks: u64, draw: &mut SeededRng) -> u64 {
    let doubling = 1 << draw.below(u64::from(blocks.ilog2()));
    let rank = doubling + draw.below(doubling);
    rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks
}

/// Returns the reads of [`ReadPattern::Columns`]. A file has eight row groups with chunks of 64 to
/// 512 KiB. The order follows Parquet readers: the last 8 bytes, the footer of up to 64 KiB, then
/// two of the columns, 64 KiB at a time.
fn columns(
    files: &mut WorkloadFiles,
    row_groups: u64,
    columns: u64,
    draw: &mut SeededRng,
) -> Vec<GivenRead> {
    let mut reads = Vec::new();
    let mut row_groups_left = row_groups;
    while row_groups_left > 0 {
        let groups = row_groups_left.min(8);
        row_groups_left -= groups;
        let [first_column, second_column] =
            [draw.below(columns / 2), columns / 2 + draw.below(columns / 2)];
        let (mut chunks, mut end) = (Vec::new(), 0);
        for chunk in 0..groups * columns {
            let bytes = draw.between(16, 128) * 4 * KIB;
            if [first_column, second_column].contains(&(chunk % columns)) {
                chunks.push((end, bytes));
            }
            end += bytes;
        }
        let footer_bytes = draw.between(1, 16) * 4 * KIB;
        let file = files.add(end + footer_bytes);
        reads.push(GivenRead { file, offset: end + footer_bytes - 8, bytes: 8 });
        reads.push(GivenRead { file, offset: end, bytes: footer_bytes });
        for (offset, bytes) in chunks {
            reads.extend(in_pieces(file, offset, bytes, 64 * KIB));
        }
    }
    reads
}

/// Returns the reads of [`ReadPattern::Tensors`]: `count` tensors of 256 KiB to 2 MiB after a
/// header of 64 KiB, 256 KiB at a time.
fn tensors(files: &mut WorkloadFiles, count: u64, draw: &mut SeededRng) -> Vec<GivenRead> {
    let mut end = 64 * KIB;
    let mut tensor_ranges = Vec::new();
    for _ in 0..count {
        let bytes = draw.between(64, 512) * 4 * KIB;
        tensor_ranges.push((end, bytes));
        end += bytes;
    }
    let file = files.add(end);
    let mut reads = vec![GivenRead { file, offset: 0, bytes: 64 * KIB }];
    for index in shuffled(count, draw).0 {
        let (offset, bytes) = tensor_ranges[index as usize];
        reads.extend(in_pieces(file, offset, bytes, 256 * KIB));
    }
    reads
}

/// Returns the reads of a new file of 4 to 200 KiB, 64 KiB at a time.
fn small_file(files: &mut WorkloadFiles, draw: &mut SeededRng) -> Vec<GivenRead> {
    let bytes = draw.between(1, 50) * 4 * KIB;
    let file = files.add(bytes);
    in_pieces(file, 0, bytes, 64 * KIB).collect()
}

/// Splits a range of a file into consecutive reads of `piece_bytes`.
fn in_pieces(
    file: FileId,
    offset: u64,
    bytes: u64,
    piece_bytes: u64,
) -> impl Iterator<Item = GivenRead> {
    let piece = move |first| GivenRead {
        file,
        offset: offset + first,
        bytes: piece_bytes.min(bytes - first),
    };
    (0..bytes).step_by(piece_bytes as usize).map(piece)
}

/// Returns the share of one of `sharers` in `total`, at least `min`.
fn share(total: u64, sharers: u64, min: u64) -> u64 {
    (total / sharers).max(min)
}

/// Returns every `step`-th read from `first_index` on.
fn every_nth(reads: &[GivenRead], first_index: u64, step: u64) -> Vec<GivenRead> {
    reads.iter().skip(first_index as usize).step_by(step as usize).copied().collect()
}

/// Returns reads of 4 KiB from `streams` sequential streams of `bytes` bytes each. The stream of
/// each read is random. With `is_one_handle`, all streams are in one file.
fn interleave(
    files: &mut WorkloadFiles,
    streams: u64,
    bytes: u64,
    is_one_handle: bool,
    draw: &mut SeededRng,
) -> Vec<GivenRead> {
    let shared_file = is_one_handle.then(|| files.add(streams * bytes));
    let mut next: Vec<GivenRead> = (0..streams)
        .map(|stream| match shared_file {
            Some(file) => GivenRead { file, offset: stream * bytes, bytes: PAGE_BYTES },
            None => GivenRead { file: files.add(bytes), offset: 0, bytes: PAGE_BYTES },
        })
        .collect();
    let mut reads_left = vec![bytes / PAGE_BYTES; streams as usize];
    let mut reads = Vec::new();
    while !next.is_empty() {
        let stream = draw.below(next.len() as u64) as usize;
        reads.push(next[stream]);
        next[stream].offset += PAGE_BYTES;
        reads_left[stream] -= 1;
        if reads_left[stream] == 0 {
            next.swap_remove(stream);
            reads_left.swap_remove(stream);
        }
    }
    reads
}

/// Block numbers of one file in read order.
struct RandomBlockOrder(Vec<u64>);

/// All blocks in ascending order.
fn forward(blocks: u64) -> RandomBlockOrder {
    RandomBlockOrder((0..blocks).collect())
}

/// All blocks in random order.
fn shuffled(blocks: u64, draw: &mut SeededRng) -> RandomBlockOrder {
    let mut order: Vec<u64> = (0..blocks).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, draw.below(last as u64 + 1) as usize);
    }
    RandomBlockOrder(order)
}

impl RandomBlockOrder {
    /// Keeps only the first `blocks` blocks.
    fn take(mut self, blocks: u64) -> RandomBlockOrder {
        self.0.truncate(blocks as usize);
        self
    }

    /// Reverses the order of the blocks.
    fn backward(mut self) -> RandomBlockOrder {
        self.0.reverse();
        self
    }

    /// Multiplies all block numbers by `factor`, which leaves gaps.
    fn times(mut self, factor: u64) -> RandomBlockOrder {
        self.0.iter_mut().for_each(|block| *block *= factor);
        self
    }

    /// Converts the blocks to reads of `file`.
    fn of(self, file: FileId, bytes: u64) -> Vec<GivenRead> {
        let reading = |block| GivenRead { file, offset: block * bytes, bytes };
        self.0.into_iter().map(reading).collect()
    }
}

/// Files, each followed by a gap that belongs to other files.
#[derive(Default)]
struct WorkloadFiles(Vec<WorkloadFile>);

impl WorkloadFiles {
    /// Adds a file of `bytes` bytes, and a gap behind it. Returns its identifier.
    fn add(&mut self, bytes: u64) -> FileId {
        let name = format!("file{}", self.0.len() / 2);
        self.0.push(WorkloadFile { name, bytes });
        self.0.push(WorkloadFile { name: "between".to_owned(), bytes: 0 });
        FileId(self.0.len() as u32 - 2)
    }

    /// Draws the sizes of the gaps, so that all positions of a file are equally likely.
    fn spread(mut self, draw: &mut SeededRng) -> Vec<WorkloadFile> {
        let used: u64 = self.0.iter().map(|file| file.bytes).sum();
        let between_pages = SPREAD_BYTES.saturating_sub(used) / PAGE_BYTES;
        let files = self.0.len() / 2;
        let mut cuts: Vec<u64> = (0..files).map(|_| draw.below(between_pages + 1)).collect();
        cuts.sort_unstable();
        let mut last = 0;
        for (gap, cut) in self.0.iter_mut().skip(1).step_by(2).zip(cuts) {
            gap.bytes = (cut - last) * PAGE_BYTES;
            last = cut;
        }
        self.0
    }
}
