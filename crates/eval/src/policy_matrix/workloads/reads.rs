//! Reads of the patterns with their own files, in read order.
//!
//! All sizes and counts are chosen to resemble typical programs, not measured.

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;
use readpath_models::random::SeededRng;
use readpath_sim::workload::{FileId, GivenRead};

use super::{GIB, KIB, MIB, WorkloadFiles};

/// Returns mixed reads: `blocks` sequential reads of 64 KiB in the first quarter of a file. After
/// every three of them follows a random read of 16 KiB in the rest.
pub(super) fn mixed_reads(
    files: &mut WorkloadFiles,
    blocks: u64,
    rng: &mut SeededRng,
) -> Vec<GivenRead> {
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

/// Returns the reads of four phases: `blocks` reads in each, in one file. The phases are
/// sequential, random, backward, and with strides. They use the first half of the file. The
/// backward phase starts in the middle of that half.
pub(super) fn phase_reads(
    files: &mut WorkloadFiles,
    blocks: u64,
    rng: &mut SeededRng,
) -> Vec<GivenRead> {
    let file = files.add(8 * blocks * 64 * KIB);
    let mut reads = ascending_blocks(blocks).reads_of(file, 64 * KIB);
    // 16 blocks of 16 KiB for each of 64 KiB are four times the bytes: half of the file.
    let random_blocks = shuffled_blocks(16 * blocks, rng).take(blocks);
    reads.extend(random_blocks.reads_of(file, 16 * KIB));
    let backward_blocks = ascending_blocks(2 * blocks).backward().take(blocks);
    reads.extend(backward_blocks.reads_of(file, 64 * KIB));
    reads.extend(ascending_blocks(blocks).multiplied_by(4).reads_of(file, 64 * KIB));
    reads
}

/// Returns the reads of a cached file: `bytes` bytes, in sequence once, then its
/// pages in random order, eight times.
pub(super) fn cached_reads(
    files: &mut WorkloadFiles,
    bytes: u64,
    rng: &mut SeededRng,
) -> Vec<GivenRead> {
    let file = files.add(bytes);
    let mut reads = ascending_blocks(bytes / (64 * KIB)).reads_of(file, 64 * KIB);
    for _ in 0..8 {
        let pages = shuffled_blocks(bytes / PAGE_BYTES, rng);
        reads.extend(pages.reads_of(file, PAGE_BYTES));
    }
    reads
}

/// Returns the reads of a random part of a new file of `file_bytes` bytes, from its start, 64 KiB
/// at a time.
pub(super) fn partial_file_reads(
    files: &mut WorkloadFiles,
    file_bytes: u64,
    rng: &mut SeededRng,
) -> Vec<GivenRead> {
    let file = files.add(file_bytes);
    let blocks = 1 + rng.below(file_bytes / (64 * KIB));
    ascending_blocks(blocks).reads_of(file, 64 * KIB)
}

/// Returns the reads of hot spots: 128 reads of 16 KiB in each of `spots` spots.
pub(super) fn hot_spot_reads(
    files: &mut WorkloadFiles,
    spots: u64,
    rng: &mut SeededRng,
) -> Vec<GivenRead> {
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

/// Returns the reads of lookups and scans in a table of 1 GiB, which is added to `files`. Each of
/// `rounds` rounds reads 112 records of 16 KiB with a Zipf distribution, then 1 MiB in sequence.
pub(super) fn scan_reads(
    files: &mut WorkloadFiles,
    rounds: u64,
    rng: &mut SeededRng,
) -> Vec<GivenRead> {
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
/// scatters neighbours in popularity. Its factor is odd, so no two ranks get the same block.
fn draw_zipf_block(blocks: u64, rng: &mut SeededRng) -> u64 {
    // Ranks count from 1. Rank `blocks` and above do not occur.
    let doubling = 1 << rng.below(u64::from(blocks.ilog2()));
    let rank = doubling + rng.below(doubling);
    rank.wrapping_mul(splitmix::STEP) % blocks
}

/// Returns the reads of two of `columns` columns over `row_groups` row groups. A file has up to
/// eight row groups, each with a chunk of 64 to 512 KiB per column. The order follows Parquet
/// readers: the last 8 bytes, the footer of up to 64 KiB, then the two columns, 64 KiB at a time.
pub(super) fn column_reads(
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
        // One column of the lower half and one of the upper half, the same in all row groups.
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

/// Returns the reads of tensors: a header of 64 KiB in one read, then `count` tensors of 256 KiB to
/// 2 MiB in random order, 256 KiB at a time.
pub(super) fn tensor_reads(
    files: &mut WorkloadFiles,
    count: u64,
    rng: &mut SeededRng,
) -> Vec<GivenRead> {
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
pub(super) fn small_file_reads(files: &mut WorkloadFiles, rng: &mut SeededRng) -> Vec<GivenRead> {
    let bytes = rng.between(1, 50) * 4 * KIB;
    let file = files.add(bytes);
    let start_offset = 0;
    in_pieces(file, start_offset, bytes, 64 * KIB).collect()
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

/// Returns reads of 4 KiB from `streams` sequential streams of `bytes` bytes each, until all
/// streams are read. The stream of each read is random. With `is_one_handle`, all streams are in
/// one file.
pub(super) fn interleaved_reads(
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
pub(super) struct BlockOrder(pub(super) Vec<u64>);

/// All blocks in ascending order.
pub(super) fn ascending_blocks(blocks: u64) -> BlockOrder {
    BlockOrder((0..blocks).collect())
}

/// All blocks in random order.
pub(super) fn shuffled_blocks(blocks: u64, rng: &mut SeededRng) -> BlockOrder {
    let mut order: Vec<u64> = (0..blocks).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    BlockOrder(order)
}

impl BlockOrder {
    /// Keeps only the first `blocks` blocks.
    pub(super) fn take(mut self, blocks: u64) -> BlockOrder {
        self.0.truncate(blocks as usize);
        self
    }

    /// Reverses the order of the blocks.
    pub(super) fn backward(mut self) -> BlockOrder {
        self.0.reverse();
        self
    }

    /// Multiplies all block numbers by `factor`, which leaves gaps.
    pub(super) fn multiplied_by(mut self, factor: u64) -> BlockOrder {
        self.0.iter_mut().for_each(|block| *block *= factor);
        self
    }

    /// Converts the blocks to reads in `file`. `bytes` is the size of a block and of its read.
    pub(super) fn reads_of(self, file: FileId, bytes: u64) -> Vec<GivenRead> {
        let read = |block| GivenRead { file, offset: block * bytes, bytes };
        self.0.into_iter().map(read).collect()
    }
}
