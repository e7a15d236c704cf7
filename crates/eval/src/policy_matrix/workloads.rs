//! The file workloads of the policy matrix.
//!
//! Each is a typical access pattern of programs. It is small enough to be simulated in
//! milliseconds, and large enough that the learning time of a policy is a realistic part. The total
//! work is about the same for any number of processes, with a minimum per process. Private files of
//! the processes are at random positions on the device, as on a used disk. At equal distances, all
//! of them would begin on the same member of an array and on the same die of a solid-state drive.
//! The totals and minimums of the work are chosen.

use readpath_core::unit::PAGE_BYTES;

use readpath_models::random::SeededRng;
use readpath_sim::job::JobEngine;
use readpath_sim::workload::{FileId, GivenRead, ReadList, Workload, WorkloadFile};

mod reads;

use reads::{
    BlockOrder, ascending_blocks, cached_reads, column_reads, hot_spot_reads, interleaved_reads,
    mixed_reads, partial_file_reads, phase_reads, scan_reads, shuffled_blocks, small_file_reads,
    tensor_reads,
};

/// Bytes in a KiB.
const KIB: u64 = 1 << 10;
/// Bytes in a MiB.
const MIB: u64 = 1 << 20;
/// Bytes in a GiB.
const GIB: u64 = 1 << 30;

/// Part of the device that contains the files, less than the size of the smallest device. The files
/// have the same positions on every device.
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

/// All streams of a process share one handle of one file.
const ONE_HANDLE: bool = true;
/// Each stream has a handle and a file of its own.
const OWN_HANDLES: bool = false;

/// The patterns with their names in the matrix. `random` takes the block size, and one block in how
/// many is read; `strided` the block size and the stride; `interleaved` the number of streams.
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

/// Declares a pattern of random cached reads, one in flight per process. The processes read one
/// block in `one_in` of their file.
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

    /// Returns the workload of `processes` with contiguous files, as in one existing file.
    /// `work_divisor` divides the work for quick tests.
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
            // Engines have fio's names: a mapping, io_uring for several reads in flight, and pread.
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
    /// added to `files`. `None` for other patterns. `work_divisor` divides the work.
    fn shared_reads(
        self,
        files: &mut WorkloadFiles,
        processes: u64,
        work_divisor: u64,
        rng: &mut SeededRng,
    ) -> Option<Vec<GivenRead>> {
        match self {
            ReadPattern::Random { block_bytes, one_in, .. } => {
                // Reads of all processes together, at least 16 of each.
                let blocks = even_share(4096 / work_divisor, processes, 16) * processes;
                let file = files.add(blocks * one_in * block_bytes);
                Some(shuffled_blocks(blocks * one_in, rng).take(blocks).reads_of(file, block_bytes))
            }
            ReadPattern::Database => {
                let (block_bytes, blocks) = (16 * KIB, GIB / (16 * KIB));
                let file = files.add(GIB);
                let reads = even_share(4096 / work_divisor, processes, 32) * processes;
                // One read in five goes to any block, the others to the first fifth of the blocks.
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
        // Share of one process in `total`, at least `min`. The unit is bytes for sequential,
        // backward and cached reads, and reads for strides, slices and each of the phases. It is
        // 64 KiB blocks for mixed reads, files for `SmallFiles` and `ReadPartly`, and otherwise
        // scan rounds, row groups, tensors or hot spots.
        let share = |total: u64, min: u64| even_share(total / work_divisor, processes, min);
        match self {
            ReadPattern::Sequential { block_bytes, .. }
            | ReadPattern::MappedStream { block_bytes } => {
                // Direct reads have no readahead, so more requests are needed for a comparable
                // device load.
                let total_bytes = if self.is_direct() { 256 * MIB } else { 64 * MIB };
                let bytes = share(total_bytes, MIB);
                let file = files.add(bytes);
                ascending_blocks(bytes / block_bytes).reads_of(file, block_bytes)
            }
            ReadPattern::Backward { block_bytes } => {
                // Half of the bytes of a forward stream; chosen, not measured.
                let bytes = share(32 * MIB, MIB);
                let file = files.add(bytes);
                ascending_blocks(bytes / block_bytes).backward().reads_of(file, block_bytes)
            }
            ReadPattern::Strided { block_bytes, stride_bytes } => {
                let reads = share(512, 16);
                let file = files.add(reads * stride_bytes);
                let blocks_per_stride = stride_bytes / block_bytes;
                ascending_blocks(reads).multiplied_by(blocks_per_stride).reads_of(file, block_bytes)
            }
            ReadPattern::Slices { slice_bytes, one_in } => {
                let slices = share(1024, 16);
                let file = files.add(slices * one_in * slice_bytes);
                shuffled_blocks(slices * one_in, rng).take(slices).reads_of(file, slice_bytes)
            }
            ReadPattern::Interleaved { streams, is_one_handle } => {
                // Each stream of each process has a share.
                let bytes = even_share(32 * MIB / work_divisor, processes * streams, 128 * KIB);
                interleaved_reads(files, streams, bytes, is_one_handle, rng)
            }
            ReadPattern::Mixed => mixed_reads(files, share(1024, 32), rng),
            ReadPattern::Phases => phase_reads(files, share(512, 32), rng),
            ReadPattern::Cached => {
                let bytes = share(8 * MIB, 256 * KIB);
                cached_reads(files, bytes, rng)
            }
            ReadPattern::Scans => scan_reads(files, share(32, 1), rng),
            ReadPattern::Columns { columns: column_count } => {
                column_reads(files, share(64, 2), column_count, rng)
            }
            ReadPattern::Tensors => tensor_reads(files, share(64, 4), rng),
            ReadPattern::SmallFiles => {
                let count = share(512, 8);
                (0..count).flat_map(|_| small_file_reads(files, rng)).collect()
            }
            ReadPattern::ReadPartly { file_bytes } => {
                let count = share(128 * MIB / file_bytes, 2);
                (0..count).flat_map(|_| partial_file_reads(files, file_bytes, rng)).collect()
            }
            ReadPattern::HotSpots => hot_spot_reads(files, share(32, 1), rng),
            ReadPattern::Random { .. } | ReadPattern::Database => {
                unreachable!("all processes read one shared file, see `shared_reads`")
            }
        }
    }
}

/// Returns the share of one of `sharers` in `total`, at least `min`. The unit is the caller's.
fn even_share(total: u64, sharers: u64, min: u64) -> u64 {
    (total / sharers).max(min)
}

/// Returns every `step`-th read from `first_index` on.
fn every_nth(reads: &[GivenRead], first_index: u64, step: u64) -> Vec<GivenRead> {
    reads.iter().skip(first_index as usize).step_by(step as usize).copied().collect()
}

/// Files, each followed by a gap that belongs to other files. A gap is a file that is not read, at
/// an odd index, of 0 bytes until [`spread`](WorkloadFiles::spread) draws its size.
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

    /// Draws the sizes of the gaps. The first file begins at 0, the others at random positions. If
    /// the files exceed `SPREAD_BYTES`, all gaps have 0 bytes.
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
