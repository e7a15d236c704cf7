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
    /// one in `one_in`. Each process has `depth` reads in flight.
    Random { block_bytes: u64, one_in: u64, depth: u32, is_direct: bool },
    /// Random aligned slices of the given size, through a mapping. One in `one_in` slices is read.
    Slices { slice_bytes: u64, one_in: u64 },
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

const ONE_HANDLE: bool = true;
const OWN_HANDLES: bool = false;

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
    ("mmap-slices", ReadPattern::Slices { slice_bytes: 64 * KIB, one_in: 16 }),
    ("mmap-touches", ReadPattern::Slices { slice_bytes: 4 * KIB, one_in: 512 }),
    ("backward-4k", ReadPattern::Backward { block_bytes: 4 * KIB }),
    ("backward-64k", ReadPattern::Backward { block_bytes: 64 * KIB }),
    ("stride-64k-128k", strided(64 * KIB, 128 * KIB)),
    ("stride-64k-256k", strided(64 * KIB, 256 * KIB)),
    ("stride-16k-1m", strided(16 * KIB, MIB)),
    ("one-handle-2", interleaved(2, ONE_HANDLE)),
    ("one-handle-8", interleaved(8, ONE_HANDLE)),
    ("one-handle-64", interleaved(64, ONE_HANDLE)),
    ("many-handles-2", interleaved(2, OWN_HANDLES)),
    ("many-handles-8", interleaved(8, OWN_HANDLES)),
    ("many-handles-64", interleaved(64, OWN_HANDLES)),
    ("mixed", ReadPattern::Mixed),
    ("phases", ReadPattern::Phases),
    ("database-16k", ReadPattern::Database),
    ("cached", ReadPattern::Cached),
    ("direct-seq-64k", ReadPattern::Sequential { block_bytes: 64 * KIB, is_direct: true }),
    (
        "direct-rand-4k",
        ReadPattern::Random { block_bytes: 4 * KIB, one_in: 10, depth: 8, is_direct: true },
    ),
    (
        "direct-rand-64k",
        ReadPattern::Random { block_bytes: 64 * KIB, one_in: 4, depth: 1, is_direct: true },
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
const fn random(block_bytes: u64, one_in: u64) -> ReadPattern {
    ReadPattern::Random { block_bytes, one_in, depth: 1, is_direct: false }
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

    /// Returns the workload of `processes`, with files spread over a device. `work_divisor` divides
    /// the work for quick tests.
    pub fn workload(self, processes: u64, work_divisor: u64, seed: u64) -> Workload {
        let mut rng = SeededRng::new(seed);
        let (files, lists) = self.files_and_lists(processes, work_divisor, &mut rng);
        Workload::from_lists(files.spread(&mut rng), lists)
    }

    /// Returns the same workload with contiguous files, as in one existing file.
    pub fn workload_packed(self, processes: u64, work_divisor: u64, seed: u64) -> Workload {
        let mut rng = SeededRng::new(seed);
        let (files, lists) = self.files_and_lists(processes, work_divisor, &mut rng);
        Workload::from_lists(files.0, lists)
    }

    /// Returns the files and the reads of each process. `work_divisor` divides the work.
    fn files_and_lists(
        self,
        processes: u64,
        work_divisor: u64,
        rng: &mut SeededRng,
    ) -> (WorkloadFiles, Vec<ReadList>) {
        let mut files = WorkloadFiles::default();
        let shared = self.shared_reads(&mut files, processes, work_divisor, rng);
        let lists = (0..processes).map(|process| {
            let reads = match &shared {
                Some(reads) => every_nth(reads, process, processes),
                None => self.reads_of_process(&mut files, processes, work_divisor, rng),
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
    fn shared_reads(
        self,
        files: &mut WorkloadFiles,
        processes: u64,
        work_divisor: u64,
        rng: &mut SeededRng,
    ) -> Option<Vec<GivenRead>> {
        match self {
            ReadPattern::Random { block_bytes, one_in, .. } => {
                let blocks = even_share(4096 / work_divisor, processes, 16) * processes;
                let file = files.add(blocks * one_in * block_bytes);
                Some(shuffled_blocks(blocks * one_in, rng).take(blocks).reads_of(file, block_bytes))
            }
            ReadPattern::Database => {
                let (block_bytes, blocks) = (16 * KIB, GIB / (16 * KIB));
                let file = files.add(GIB);
                let reads = even_share(4096 / work_divisor, processes, 32) * processes;
                let block = |rng: &mut SeededRng| match rng.below(5) {
                    0 => rng.below(blocks),
                    _ => rng.below(blocks / 5),
                };
                let blocks = (0..reads).map(|_| block(rng)).collect();
                Some(BlockOrder(blocks).reads_of(file, block_bytes))
            }
            _ => None,
        }
    }

    /// Returns the reads of one of `processes` processes in its own files, which are added to
    /// `files`. `work_divisor` divides the work.
    fn reads_of_process(
        self,
        files: &mut WorkloadFiles,
        processes: u64,
        work_divisor: u64,
        rng: &mut SeededRng,
    ) -> Vec<GivenRead> {
        match self {
            ReadPattern::Sequential { block_bytes, is_direct } => {
                // Direct reads have no readahead, so more requests are needed for a comparable
                // device load.
                let total_bytes = if is_direct { 256 * MIB } else { 64 * MIB };
                let bytes = even_share(total_bytes / work_divisor, processes, MIB);
                let file = files.add(bytes);
                ascending_blocks(bytes / block_bytes).reads_of(file, block_bytes)
            }
            ReadPattern::MappedStream { block_bytes } => {
                let bytes = even_share(64 * MIB / work_divisor, processes, MIB);
                let file = files.add(bytes);
                ascending_blocks(bytes / block_bytes).reads_of(file, block_bytes)
            }
            ReadPattern::Backward { block_bytes } => {
                let bytes = even_share(32 * MIB / work_divisor, processes, MIB);
                let file = files.add(bytes);
                ascending_blocks(bytes / block_bytes).backward().reads_of(file, block_bytes)
            }
            ReadPattern::Strided { block_bytes, stride_bytes } => {
                let reads = even_share(512 / work_divisor, processes, 16);
                let file = files.add(reads * stride_bytes);
                let blocks_per_stride = stride_bytes / block_bytes;
                ascending_blocks(reads).multiplied_by(blocks_per_stride).reads_of(file, block_bytes)
            }
            ReadPattern::Slices { slice_bytes, one_in } => {
                let slices = even_share(1024 / work_divisor, processes, 16);
                let file = files.add(slices * one_in * slice_bytes);
                shuffled_blocks(slices * one_in, rng).take(slices).reads_of(file, slice_bytes)
            }
            ReadPattern::Interleaved { streams, is_one_handle } => {
                let bytes = even_share(32 * MIB / work_divisor, processes * streams, 128 * KIB);
                interleaved_reads(files, streams, bytes, is_one_handle, rng)
            }
            ReadPattern::Mixed => {
                let blocks = even_share(1024 / work_divisor, processes, 32);
                let bytes = blocks * 64 * KIB;
                let file = files.add(4 * bytes);
                let sequential = ascending_blocks(blocks).reads_of(file, 64 * KIB);
                let random = |rng: &mut SeededRng| GivenRead {
                    file,
                    offset: bytes + rng.below(3 * bytes / (16 * KIB)) * 16 * KIB,
                    bytes: 16 * KIB,
                };
                let triples = sequential.chunks(3);
                triples.flat_map(|triple| [triple, &[random(rng)]].concat()).collect()
            }
            ReadPattern::Phases => {
                let blocks = even_share(512 / work_divisor, processes, 32);
                let bytes = blocks * 64 * KIB;
                let file = files.add(8 * bytes);
                let mut reads = ascending_blocks(blocks).reads_of(file, 64 * KIB);
                let random_blocks = shuffled_blocks(16 * blocks, rng).take(blocks);
                reads.extend(random_blocks.reads_of(file, 16 * KIB));
                let backward_blocks = ascending_blocks(2 * blocks).backward().take(blocks);
                reads.extend(backward_blocks.reads_of(file, 64 * KIB));
                reads.extend(ascending_blocks(blocks).multiplied_by(4).reads_of(file, 64 * KIB));
                reads
            }
            ReadPattern::Cached => {
                let bytes = even_share(8 * MIB / work_divisor, processes, 256 * KIB);
                let file = files.add(bytes);
                let mut reads = ascending_blocks(bytes / (64 * KIB)).reads_of(file, 64 * KIB);
                for _ in 0..8 {
                    let pages = shuffled_blocks(bytes / PAGE_BYTES, rng);
                    reads.extend(pages.reads_of(file, PAGE_BYTES));
                }
                reads
            }
            ReadPattern::Scans => {
                scan_reads(files, even_share(32 / work_divisor, processes, 1), rng)
            }
            ReadPattern::Columns { columns: column_count } => {
                column_reads(files, even_share(64 / work_divisor, processes, 2), column_count, rng)
            }
            ReadPattern::Tensors => {
                tensor_reads(files, even_share(64 / work_divisor, processes, 4), rng)
            }
            ReadPattern::SmallFiles => {
                let count = even_share(512 / work_divisor, processes, 8);
                (0..count).flat_map(|_| small_file_reads(files, rng)).collect()
            }
            ReadPattern::ReadPartly { file_bytes } => {
                let count = even_share(128 * MIB / file_bytes / work_divisor, processes, 2);
                let file_reads = |_| {
                    let file = files.add(file_bytes);
                    let blocks = 1 + rng.below(file_bytes / (64 * KIB));
                    ascending_blocks(blocks).reads_of(file, 64 * KIB)
                };
                (0..count).flat_map(file_reads).collect()
            }
            ReadPattern::HotSpots => {
                let spots = even_share(32 / work_divisor, processes, 1);
                let file = files.add(512 * MIB);
                // A spot of 4 MiB begins in the first 508 MiB of the file.
                let spot_reads = |_| {
                    let spot_offset = rng.below(127 * 4 * MIB / (16 * KIB)) * 16 * KIB;
                    let mut draw_read = || GivenRead {
                        file,
                        offset: spot_offset + rng.below(4 * MIB / (16 * KIB)) * 16 * KIB,
                        bytes: 16 * KIB,
                    };
                    (0..128).map(|_| draw_read()).collect::<Vec<_>>()
                };
                (0..spots).flat_map(spot_reads).collect()
            }
            ReadPattern::Random { .. } | ReadPattern::Database => {
                unreachable!("these share one file")
            }
        }
    }
}

/// Returns the reads of [`ReadPattern::Scans`]. Each round has 112 records of a 1 GiB table and 1
/// MiB in sequence.
fn scan_reads(files: &mut WorkloadFiles, rounds: u64, rng: &mut SeededRng) -> Vec<GivenRead> {
    let file = files.add(GIB);
    let mut reads = Vec::new();
    for _ in 0..rounds {
        for _ in 0..112 {
            let offset = draw_zipf_block(GIB / (16 * KIB), rng) * 16 * KIB;
            reads.push(GivenRead { file, offset, bytes: 16 * KIB });
        }
        let scan_offset = rng.below(GIB / MIB) * MIB;
        reads.extend(in_pieces(file, scan_offset, MIB, 64 * KIB));
    }
    reads
}

/// Draws a block number below `blocks`, a power of two. The `n`-th most popular block is about `1 ÷
/// n` as likely as the first: each doubling of the rank has equal probability. A multiplication
/// scatters neighbours in popularity.
fn draw_zipf_block(blocks: u64, rng: &mut SeededRng) -> u64 {
    let doubling = 1 << rng.below(u64::from(blocks.ilog2()));
    let rank = doubling + rng.below(doubling);
    rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks
}

/// Returns the reads of [`ReadPattern::Columns`]. A file has eight row groups with chunks of 64 to
/// 512 KiB. The order follows Parquet readers: the last 8 bytes, the footer of up to 64 KiB, then
/// two of the columns, 64 KiB at a time.
fn column_reads(
    files: &mut WorkloadFiles,
    row_groups: u64,
    columns: u64,
    rng: &mut SeededRng,
) -> Vec<GivenRead> {
    let mut reads = Vec::new();
    let mut row_groups_left = row_groups;
    while row_groups_left > 0 {
        let groups = row_groups_left.min(8);
        row_groups_left -= groups;
        let [first_column, second_column] =
            [rng.below(columns / 2), columns / 2 + rng.below(columns / 2)];
        let (mut chunks, mut end) = (Vec::new(), 0);
        for chunk in 0..groups * columns {
            let bytes = rng.between(16, 128) * 4 * KIB;
            if [first_column, second_column].contains(&(chunk % columns)) {
                chunks.push((end, bytes));
            }
            end += bytes;
        }
        let footer_bytes = rng.between(1, 16) * 4 * KIB;
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
fn tensor_reads(files: &mut WorkloadFiles, count: u64, rng: &mut SeededRng) -> Vec<GivenRead> {
    let mut end = 64 * KIB;
    let mut tensor_ranges = Vec::new();
    for _ in 0..count {
        let bytes = rng.between(64, 512) * 4 * KIB;
        tensor_ranges.push((end, bytes));
        end += bytes;
    }
    let file = files.add(end);
    let mut reads = vec![GivenRead { file, offset: 0, bytes: 64 * KIB }];
    for index in shuffled_blocks(count, rng).0 {
        let (offset, bytes) = tensor_ranges[index as usize];
        reads.extend(in_pieces(file, offset, bytes, 256 * KIB));
    }
    reads
}

/// Returns the reads of a new file of 4 to 200 KiB, 64 KiB at a time.
fn small_file_reads(files: &mut WorkloadFiles, rng: &mut SeededRng) -> Vec<GivenRead> {
    let bytes = rng.between(1, 50) * 4 * KIB;
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

/// Returns the share of one of `sharers` in `total`, at least `min`. The unit is the caller's.
fn even_share(total: u64, sharers: u64, min: u64) -> u64 {
    (total / sharers).max(min)
}

/// Returns every `step`-th read from `first_index` on.
fn every_nth(reads: &[GivenRead], first_index: u64, step: u64) -> Vec<GivenRead> {
    reads.iter().skip(first_index as usize).step_by(step as usize).copied().collect()
}

/// Returns reads of 4 KiB from `streams` sequential streams of `bytes` bytes each. The stream of
/// each read is random. With `is_one_handle`, all streams are in one file.
fn interleaved_reads(
    files: &mut WorkloadFiles,
    streams: u64,
    bytes: u64,
    is_one_handle: bool,
    rng: &mut SeededRng,
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
        let stream = rng.below(next.len() as u64) as usize;
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
struct BlockOrder(Vec<u64>);

/// All blocks in ascending order.
fn ascending_blocks(blocks: u64) -> BlockOrder {
    BlockOrder((0..blocks).collect())
}

/// All blocks in random order.
fn shuffled_blocks(blocks: u64, rng: &mut SeededRng) -> BlockOrder {
    let mut order: Vec<u64> = (0..blocks).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    BlockOrder(order)
}

impl BlockOrder {
    /// Keeps only the first `blocks` blocks.
    fn take(mut self, blocks: u64) -> BlockOrder {
        self.0.truncate(blocks as usize);
        self
    }

    /// Reverses the order of the blocks.
    fn backward(mut self) -> BlockOrder {
        self.0.reverse();
        self
    }

    /// Multiplies all block numbers by `factor`, which leaves gaps.
    fn multiplied_by(mut self, factor: u64) -> BlockOrder {
        self.0.iter_mut().for_each(|block| *block *= factor);
        self
    }

    /// Converts the blocks to reads of `file`.
    fn reads_of(self, file: FileId, bytes: u64) -> Vec<GivenRead> {
        let read = |block| GivenRead { file, offset: block * bytes, bytes };
        self.0.into_iter().map(read).collect()
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

    /// Draws the sizes of the gaps. The first file begins at 0, the others at random positions.
    fn spread(mut self, rng: &mut SeededRng) -> Vec<WorkloadFile> {
        let used_bytes: u64 = self.0.iter().map(|file| file.bytes).sum();
        let gap_pages = SPREAD_BYTES.saturating_sub(used_bytes) / PAGE_BYTES;
        let files = self.0.len() / 2;
        let mut cuts: Vec<u64> = (0..files).map(|_| rng.below(gap_pages + 1)).collect();
        cuts.sort_unstable();
        let mut last_cut = 0;
        for (gap, cut) in self.0.iter_mut().skip(1).step_by(2).zip(cuts) {
            gap.bytes = (cut - last_cut) * PAGE_BYTES;
            last_cut = cut;
        }
        self.0
    }
}
