//! Generated references to blocks.
//!
//! Each load is a typical shape from the literature on caches, with random properties: number of
//! blocks, skew, length of a loop or phase. A load has about 200,000 references, and a loop at
//! least 20 rounds. The ranges from which the properties are drawn are chosen, not measured.

use readpath_models::random::SeededRng;
use readpath_sim::job::Distribution;
use readpath_sim::workload::SkewedPositions;
use readpath_trace::references::BlockTrace;

use super::LoadSize;

/// A load with its name, and the tested memory sizes in percent of its blocks.
pub(super) struct ReferenceLoad {
    /// Name of the load in the matrix.
    pub(super) name: &'static str,
    /// Function that generates the references.
    pub(super) generate: ReferenceGenerator,
    /// Each size is a cell of its own.
    pub(super) sizes_percent: &'static [u64],
}

/// Function that generates at least the given number of references of a load, and less than twice
/// as many.
pub(super) type ReferenceGenerator = fn(&mut SeededRng, u64) -> Vec<u64>;

/// Memory sizes of loads without loops, in percent of the blocks.
const SIZES: &[u64] = &[1, 5, 10, 20, 40];
/// Memory sizes of loops in percent of the blocks, which hold a good part of a round.
const LOOP_SIZES: &[u64] = &[20, 50, 80, 90, 95];

/// The loads.
pub(super) const LOADS: &[ReferenceLoad] = &[
    ReferenceLoad { name: "zipf", generate: zipf, sizes_percent: SIZES },
    ReferenceLoad { name: "zipf-scans", generate: zipf_scans, sizes_percent: SIZES },
    ReferenceLoad { name: "drifting", generate: drifting_set, sizes_percent: SIZES },
    ReferenceLoad { name: "recent", generate: recency_stack, sizes_percent: SIZES },
    ReferenceLoad { name: "correlated", generate: short_repetitions, sizes_percent: SIZES },
    ReferenceLoad { name: "database", generate: index_and_rows, sizes_percent: SIZES },
    ReferenceLoad { name: "two-tenants", generate: two_tenants, sizes_percent: SIZES },
    ReferenceLoad { name: "phases", generate: phase_sequence, sizes_percent: SIZES },
    ReferenceLoad { name: "loop", generate: one_loop, sizes_percent: LOOP_SIZES },
    ReferenceLoad { name: "loops", generate: several_loops, sizes_percent: LOOP_SIZES },
    ReferenceLoad { name: "to-and-fro", generate: back_and_forth, sizes_percent: LOOP_SIZES },
];

/// Number of references of a full load. This number and the next one are chosen, not measured.
const REFERENCES: u64 = 200_000;
/// Minimum number of references of a shortened load.
const REFERENCES_MIN: u64 = 2000;

/// Generates the trace of a load.
pub(super) fn trace(generate: ReferenceGenerator, size: LoadSize) -> BlockTrace {
    let references = (REFERENCES / size.part).max(REFERENCES_MIN);
    BlockTrace::of(generate(&mut SeededRng::new(size.seed), references))
        .expect("few blocks are referenced")
}

/// Blocks from `first` on with a Zipf distribution.
struct ZipfBlocks {
    /// Distribution over the positions from 0. The frequent positions are scattered.
    skew: SkewedPositions,
    /// Number of the block at position 0.
    first: u64,
}

impl ZipfBlocks {
    /// Creates a source of `blocks` blocks from block `first` on. Draws an exponent from 0.7 to
    /// 1.2.
    fn new(rng: &mut SeededRng, first: u64, blocks: u64) -> ZipfBlocks {
        let theta_hundredths = 70 + rng.below(51);
        let theta = theta_hundredths as f64 / 100.0;
        // The formula of the distribution has a pole at 1.
        let theta = if theta == 1.0 { 1.01 } else { theta };
        // Without a centre, the frequent positions are scattered.
        let distribution = Distribution::Zipf { theta, center: None };
        let skew =
            SkewedPositions::new(&distribution, blocks, rng.bits()).expect("Zipf's law is skewed");
        ZipfBlocks { skew, first }
    }

    /// Draws the next block by its Zipf distribution.
    fn draw_block(&mut self) -> u64 {
        self.first + self.skew.draw()
    }
}

/// Number of the first block of a load's Zipf distribution, if nothing precedes it.
const FIRST_BLOCK: u64 = 0;

/// Generates references to a few blocks with a Zipf distribution.
fn zipf(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / rng.between(4, 12);
    let mut hot = ZipfBlocks::new(rng, FIRST_BLOCK, blocks);
    (0..references).map(|_| hot.draw_block()).collect()
}

/// Generates references to a few blocks with a Zipf distribution, and scans of blocks that are
/// never reused.
fn zipf_scans(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / rng.between(8, 20);
    let mut hot = ZipfBlocks::new(rng, FIRST_BLOCK, blocks);
    let scan_blocks = blocks / rng.between(2, 10);
    let references_between_scans = rng.between(2, 5) * scan_blocks;
    let mut blocks_read = Vec::new();
    let mut next_scan_block = blocks;
    while (blocks_read.len() as u64) < references {
        blocks_read.extend((0..references_between_scans).map(|_| hot.draw_block()));
        // During a scan, every other reference belongs to it.
        for block in next_scan_block..next_scan_block + scan_blocks {
            blocks_read.extend([block, hot.draw_block()]);
        }
        next_scan_block += scan_blocks;
    }
    blocks_read
}

/// Generates references to a working set with uniform use that changes block by block. The set is
/// always `working_set_blocks` consecutive blocks. After every `references_per_block` references
/// its lowest block leaves and the next higher one enters.
fn drifting_set(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let working_set_blocks = references / rng.between(20, 200);
    let references_per_block = rng.between(3, 12);
    let block = |index: u64| index / references_per_block + rng.below(working_set_blocks);
    (0..references).map(block).collect()
}

/// Maximum number of blocks in the stack of [`recency_stack`]. A block that leaves it is not used
/// again. Chosen, not measured.
const STACK_BLOCKS_MAX: usize = 20_000;

/// Generates references to blocks that are reused soon or never. The used blocks form a stack, and
/// the next one is new or has a random depth in it.
fn recency_stack(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let references_per_new_block = rng.between(4, 12);
    let mut stack: Vec<u64> = Vec::new();
    let mut last_new_block = 0;
    let mut next_block = || {
        let depth_max = stack.len() as u64;
        let block = if depth_max == 0 || rng.one_in(references_per_new_block) {
            last_new_block += 1;
            last_new_block
        } else {
            // The depth is between 1 and 2 as likely as between 2 and 4, and so on. A depth beyond
            // the stack becomes the largest one. The last block used is the last element, at depth
            // 1.
            let octave = rng.below(u64::from(depth_max.ilog2()) + 1);
            let depth = ((1 << octave) + rng.below(1 << octave)).min(depth_max);
            stack.remove((depth_max - depth) as usize)
        };
        stack.push(block);
        if stack.len() > STACK_BLOCKS_MAX {
            stack.remove(0);
        }
        block
    };
    (0..references).map(|_| next_block()).collect()
}

/// Generates references to new blocks, each used a few times in short succession, and to a set of
/// blocks with a Zipf distribution.
fn short_repetitions(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / rng.between(10, 30);
    let mut hot = ZipfBlocks::new(rng, FIRST_BLOCK, blocks);
    let repetitions_max = rng.between(1, 4);
    // Least number of references between two uses of a new block. If several blocks are due at
    // once, all but the first are used later.
    let distance = rng.between(1, 8);
    // Index of the reference from which a block is due again, and the block.
    let mut repetitions: Vec<(u64, u64)> = Vec::new();
    let mut last_new_block = blocks;
    let mut blocks_read = Vec::new();
    while (blocks_read.len() as u64) < references {
        let index = blocks_read.len() as u64;
        if let Some(due) = repetitions.iter().position(|&(due_index, _)| due_index <= index) {
            let (_, block) = repetitions.remove(due);
            blocks_read.push(block);
        } else if rng.one_in(3) {
            last_new_block += 1;
            blocks_read.push(last_new_block);
            let count = rng.between(0, repetitions_max);
            repetitions.extend((1..=count).map(|nth| (index + nth * distance, last_new_block)));
        } else {
            blocks_read.push(hot.draw_block());
        }
    }
    blocks_read
}

/// Generates references of a database: an index that every look-up uses, rows of a table, and
/// occasionally the whole table.
fn index_and_rows(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    // Each row and each index block is one block: first the index, then the rows.
    let rows = references / rng.between(6, 12);
    let index_blocks = rows / rng.between(20, 60);
    let mut row = ZipfBlocks::new(rng, index_blocks, rows);
    let scans = rng.between(1, 3);
    let references_per_scan = references / (scans + 1);
    let mut blocks_read = Vec::new();
    let mut next_scan_index = references_per_scan;
    while (blocks_read.len() as u64) < references {
        if blocks_read.len() as u64 >= next_scan_index {
            next_scan_index += references_per_scan;
            blocks_read.extend(index_blocks..index_blocks + rows);
        }
        let row_block = row.draw_block();
        // The index has its blocks in the order of the rows.
        blocks_read.extend([(row_block - index_blocks) * index_blocks / rows, row_block]);
    }
    blocks_read
}

/// Generates the references of one program with a Zipf distribution over a few blocks, and one that
/// loops.
fn two_tenants(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / rng.between(10, 30);
    let mut hot = ZipfBlocks::new(rng, FIRST_BLOCK, blocks);
    let loop_blocks = blocks / rng.between(1, 4);
    let references_per_loop_block = rng.between(2, 5);
    let mut loop_position = 0;
    let mut next_block = || match rng.one_in(references_per_loop_block) {
        true => {
            loop_position = (loop_position + 1) % loop_blocks;
            blocks + loop_position
        }
        false => hot.draw_block(),
    };
    (0..references).map(|_| next_block()).collect()
}

/// Generates at least `references` references in phases: a hot set, a loop, another hot set, a walk
/// in alternating direction, a scan.
fn phase_sequence(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / rng.between(20, 60);
    let mut blocks_read = Vec::new();
    let mut phase = 0;
    while (blocks_read.len() as u64) < references {
        let length = references / rng.between(6, 14);
        // A phase has one of three ranges of blocks, so it can use the blocks of earlier phases.
        let first = rng.below(3) * blocks;
        match phase % 5 {
            0 | 2 => {
                let mut hot = ZipfBlocks::new(rng, first, blocks);
                blocks_read.extend((0..length).map(|_| hot.draw_block()));
            }
            1 => {
                let loop_blocks = rng.between(blocks / 8, blocks / 2).max(1);
                blocks_read.extend((0..length).map(|index| first + index % loop_blocks));
            }
            3 => {
                let walk_blocks = rng.between(blocks / 8, blocks / 2).max(2);
                blocks_read.extend(
                    (0..length).map(|index| first + position_back_and_forth(index, walk_blocks)),
                );
            }
            // Blocks behind the blocks of all other phases, a quarter as many as another phase has
            // references. Every scan reads the same blocks, from the first.
            _ => blocks_read.extend(4 * blocks..4 * blocks + length / 4),
        }
        phase += 1;
    }
    blocks_read
}

/// Generates `references` references in a loop over the same blocks.
fn one_loop(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let loop_blocks = references / rng.between(20, 60);
    (0..references).map(|index| index % loop_blocks).collect()
}

/// Generates at least `references` references in two to four loops of different lengths. Each turn
/// continues a random loop for a random part of its length.
fn several_loops(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let lengths: Vec<u64> =
        (0..rng.between(2, 4)).map(|_| references / rng.between(40, 200)).collect();
    let firsts: Vec<u64> =
        lengths.iter().scan(0, |end, length| Some(std::mem::replace(end, *end + length))).collect();
    let mut positions = vec![0; lengths.len()];
    let mut blocks_read = Vec::new();
    while (blocks_read.len() as u64) < references {
        let loop_index = rng.below(lengths.len() as u64) as usize;
        for _ in 0..rng.between(1, lengths[loop_index]) {
            blocks_read.push(firsts[loop_index] + positions[loop_index]);
            positions[loop_index] = (positions[loop_index] + 1) % lengths[loop_index];
        }
    }
    blocks_read
}

/// Generates `references` references in a walk over the blocks in alternating direction.
fn back_and_forth(rng: &mut SeededRng, references: u64) -> Vec<u64> {
    let walk_blocks = references / rng.between(20, 60);
    (0..references).map(|step| position_back_and_forth(step, walk_blocks)).collect()
}

/// Returns the position after `step` steps of a walk over `walk_blocks` blocks in alternating
/// direction.
fn position_back_and_forth(step: u64, walk_blocks: u64) -> u64 {
    let position = step % (2 * walk_blocks);
    if position < walk_blocks { position } else { 2 * walk_blocks - 1 - position }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: LoadSize = LoadSize { seed: 3, part: 1 };

    /// A walk over three blocks: up to block 2, back to block 0, and up again.
    #[test]
    fn walk_to_and_fro_reverses_at_both_ends() {
        let walk: Vec<u64> = (0..8).map(|step| position_back_and_forth(step, 3)).collect();
        assert_eq!(walk, [0, 1, 2, 2, 1, 0, 0, 1]);
    }

    /// Every load has the expected number of references and reuses its blocks. At its largest
    /// memory size, the optimum misses less than half.
    #[test]
    fn optimum_hits_most_references_of_each_load() {
        for ReferenceLoad { name, generate, sizes_percent } in LOADS {
            let trace = trace(*generate, WHOLE);
            let references = trace.references.len() as u64;
            assert!((REFERENCES..2 * REFERENCES).contains(&references), "{name}: {references}");
            let percent = sizes_percent.last().expect("a load has at least one memory size");
            let pages = u64::from(trace.blocks) * percent / 100;
            let missed = readpath_trace::references::belady(&trace, pages as u32);
            assert!(missed * 2 < references, "{name}: {missed} of {references}");
        }
    }
}
