//! Generated references to blocks.
//!
//! Each load is a typical shape from the literature on caches, with random properties: number of
//! blocks, skew, length of a loop or phase. A load has about 200,000 references, and a loop at
//! least 20 rounds.

use readpath_models::random::SeededRng;
use readpath_sim::job::Distribution;
use readpath_sim::workload::SkewedPositions;
use readpath_trace::references::BlockTrace;

use super::LoadSize;

/// A load with its name, and the tested memory sizes in percent of its blocks.
pub(super) struct ReferenceLoad {
    pub(super) name: &'static str,
    pub(super) make: ReferenceGenerator,
    pub(super) sizes: &'static [u64],
}

/// Function that generates about the given number of references of a load.
pub(super) type ReferenceGenerator = fn(&mut SeededRng, u64) -> Vec<u64>;

/// Memory sizes of loads without loops.
const SIZES: &[u64] = &[1, 5, 10, 20, 40];
/// Memory sizes of loops, which hold a good part of a round.
const LOOP_SIZES: &[u64] = &[20, 50, 80, 90, 95];

/// The loads.
pub(super) const LOADS: &[ReferenceLoad] = &[
    ReferenceLoad { name: "zipf", make: zipf, sizes: SIZES },
    ReferenceLoad { name: "zipf-scans", make: zipf_scans, sizes: SIZES },
    ReferenceLoad { name: "drifting", make: drifting, sizes: SIZES },
    ReferenceLoad { name: "recent", make: recent, sizes: SIZES },
    ReferenceLoad { name: "correlated", make: correlated, sizes: SIZES },
    ReferenceLoad { name: "database", make: database, sizes: SIZES },
    ReferenceLoad { name: "two-tenants", make: two_tenants, sizes: SIZES },
    ReferenceLoad { name: "phases", make: phases, sizes: SIZES },
    ReferenceLoad { name: "loop", make: one_loop, sizes: LOOP_SIZES },
    ReferenceLoad { name: "loops", make: several_loops, sizes: LOOP_SIZES },
    ReferenceLoad { name: "to-and-fro", make: back_and_forth, sizes: LOOP_SIZES },
];

/// Number of references of a full load.
const REFERENCES: u64 = 200_000;
/// Minimum number of references of a shortened load.
const REFERENCES_MIN: u64 = 2000;

/// Generates the trace of a load.
pub(super) fn trace(make: ReferenceGenerator, size: LoadSize) -> BlockTrace {
    let references = (REFERENCES / size.part).max(REFERENCES_MIN);
    BlockTrace::of(make(&mut SeededRng::new(size.seed), references))
        .expect("few blocks are referenced")
}

/// Blocks from `first` on with a Zipf distribution.
struct ZipfBlocks {
    skew: SkewedPositions,
    first: u64,
}

impl ZipfBlocks {
    /// Creates a source of `blocks` blocks from block `first` on. Draws an exponent from 0.7 to
    /// 1.2.
    fn new(draw: &mut SeededRng, first: u64, blocks: u64) -> ZipfBlocks {
        let theta = (70 + draw.below(51)) as f64 / 100.0;
        // The formula of the distribution has a pole at 1.
        let theta = if theta == 1.0 { 1.01 } else { theta };
        let policy = Distribution::Zipf { theta, center: None };
        let skew =
            SkewedPositions::new(&policy, blocks, draw.bits()).expect("Zipf's law is skewed");
        ZipfBlocks { skew, first }
    }

    /// Draws the next block by its Zipf distribution.
    fn next(&mut self) -> u64 {
        self.first + self.skew.draw()
    }
}

/// Generates references to a few blocks with a Zipf distribution.
fn zipf(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / draw.between(4, 12);
    let mut hot = ZipfBlocks::new(draw, 0, blocks);
    (0..references).map(|_| hot.next()).collect()
}

/// Generates references to a few blocks with a Zipf distribution, and scans of blocks that are
/// never reused.
fn zipf_scans(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / draw.between(8, 20);
    let mut hot = ZipfBlocks::new(draw, 0, blocks);
    let scan_blocks = blocks / draw.between(2, 10);
    let references_between = draw.between(2, 5) * scan_blocks;
    let mut blocks_read = Vec::new();
    let mut scanned = blocks;
    while (blocks_read.len() as u64) < references {
        blocks_read.extend((0..references_between).map(|_| hot.next()));
        // During a scan, every other reference belongs to it.
        for block in scanned..scanned + scan_blocks {
            blocks_read.extend([block, hot.next()]);
        }
        scanned += scan_blocks;
    }
    blocks_read
}

/// Generates references to a working set with uniform use that changes block by block.
fn drifting(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let hot = references / draw.between(20, 200);
    let references_per_block = draw.between(3, 12);
    (0..references).map(|index| index / references_per_block + draw.below(hot)).collect()
}

/// Blocks are reused soon or never: a stack from which a random depth is drawn.
fn recent(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let fresh_in = draw.between(4, 12);
    let mut stack: Vec<u64> = Vec::new();
    let mut fresh = 0;
    let mut next = || {
        let depth_max = stack.len() as u64;
        let block = if depth_max == 0 || draw.one_in(fresh_in) {
            fresh += 1;
            fresh
        } else {
            // The depth is between 1 and 2 as likely as between 2 and 4, and so on.
            let octave = draw.below(u64::from(depth_max.ilog2()) + 1);
            let depth = ((1 << octave) + draw.below(1 << octave)).min(depth_max);
            stack.remove((depth_max - depth) as usize)
        };
        stack.push(block);
        if stack.len() > 20_000 {
            stack.remove(0);
        }
        block
    };
    (0..references).map(|_| next()).collect()
}

/// Most blocks are used a few times in short succession and then never again. Some return.
fn correlated(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / draw.between(10, 30);
    let mut hot = ZipfBlocks::new(draw, 0, blocks);
    let again_max = draw.between(1, 4);
    let apart = draw.between(1, 8);
    let mut due: Vec<(u64, u64)> = Vec::new();
    let mut fresh = blocks;
    let mut out = Vec::new();
    while (out.len() as u64) < references {
        let now = out.len() as u64;
        if let Some(at) = due.iter().position(|&(when, _)| when <= now) {
            out.push(due.remove(at).1);
        } else if draw.one_in(3) {
            fresh += 1;
            out.push(fresh);
            due.extend((1..=draw.between(0, again_max)).map(|nth| (now + nth * apart, fresh)));
        } else {
            out.push(hot.next());
        }
    }
    out
}

/// Generates references of a database: an index that every look-up uses, rows of a table, and
/// occasionally the whole table.
fn database(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let rows = references / draw.between(6, 12);
    let index = rows / draw.between(20, 60);
    let mut row = ZipfBlocks::new(draw, index, rows);
    let scans = draw.between(1, 3);
    let scan_each = references / (scans + 1);
    let mut blocks_read = Vec::new();
    let mut scanned_at = scan_each;
    while (blocks_read.len() as u64) < references {
        if blocks_read.len() as u64 >= scanned_at {
            scanned_at += scan_each;
            blocks_read.extend(index..index + rows);
        }
        let row_block = row.next();
        blocks_read.extend([(row_block - index) * index / rows, row_block]);
    }
    blocks_read
}

/// Generates the references of one program with a Zipf distribution over a few blocks, and one that
/// loops.
fn two_tenants(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / draw.between(10, 30);
    let mut hot = ZipfBlocks::new(draw, 0, blocks);
    let loop_blocks = blocks / draw.between(1, 4);
    let turns = draw.between(2, 5);
    let mut loop_position = 0;
    let mut next = || match draw.one_in(turns) {
        true => {
            loop_position = (loop_position + 1) % loop_blocks;
            blocks + loop_position
        }
        false => hot.next(),
    };
    (0..references).map(|_| next()).collect()
}

/// Generates phases in sequence: a hot set, a loop, another hot set, a walk to and fro, a scan.
fn phases(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let blocks = references / draw.between(20, 60);
    let mut blocks_read = Vec::new();
    let mut phase = 0;
    while (blocks_read.len() as u64) < references {
        let length = references / draw.between(6, 14);
        let first = draw.below(3) * blocks;
        match phase % 5 {
            0 | 2 => {
                let mut hot = ZipfBlocks::new(draw, first, blocks);
                blocks_read.extend((0..length).map(|_| hot.next()));
            }
            1 => {
                let loop_blocks = draw.between(blocks / 8, blocks / 2).max(1);
                blocks_read.extend((0..length).map(|index| first + index % loop_blocks));
            }
            3 => {
                let walk_blocks = draw.between(blocks / 8, blocks / 2).max(2);
                blocks_read.extend(
                    (0..length).map(|index| first + position_back_and_forth(index, walk_blocks)),
                );
            }
            _ => blocks_read.extend(4 * blocks..4 * blocks + length / 4),
        }
        phase += 1;
    }
    blocks_read
}

/// Generates a loop over the same blocks.
fn one_loop(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let loop_blocks = references / draw.between(20, 60);
    (0..references).map(|index| index % loop_blocks).collect()
}

/// Generates loops of several lengths, each continued by a random amount per turn.
fn several_loops(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let lengths: Vec<u64> =
        (0..draw.between(2, 4)).map(|_| references / draw.between(40, 200)).collect();
    let firsts: Vec<u64> =
        lengths.iter().scan(0, |end, length| Some(std::mem::replace(end, *end + length))).collect();
    let mut positions = vec![0; lengths.len()];
    let mut blocks_read = Vec::new();
    while (blocks_read.len() as u64) < references {
        let loop_index = draw.below(lengths.len() as u64) as usize;
        for _ in 0..draw.between(1, lengths[loop_index]) {
            blocks_read.push(firsts[loop_index] + positions[loop_index]);
            positions[loop_index] = (positions[loop_index] + 1) % lengths[loop_index];
        }
    }
    blocks_read
}

/// Generates a walk over the blocks in alternating direction.
fn back_and_forth(draw: &mut SeededRng, references: u64) -> Vec<u64> {
    let walk_blocks = references / draw.between(20, 60);
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

    #[test]
    fn walk_to_and_fro_reverses_at_both_ends() {
        let walk: Vec<u64> = (0..8).map(|at| position_back_and_forth(at, 3)).collect();
        assert_eq!(walk, [0, 1, 2, 2, 1, 0, 0, 1]);
    }

    /// Every load has the expected number of references and reuses its blocks. At its largest
    /// memory size, the optimum misses less than half.
    #[test]
    fn optimum_hits_most_references_of_each_load() {
        for ReferenceLoad { name, make, sizes } in LOADS {
            let trace = trace(*make, WHOLE);
            let references = trace.references.len() as u64;
            assert!((REFERENCES..2 * REFERENCES).contains(&references), "{name}: {references}");
            let percent = sizes.last().expect("there are sizes");
            let pages = u64::from(trace.blocks) * percent / 100;
            let missed = readpath_trace::references::belady(&trace, pages as u32);
            assert!(missed * 2 < references, "{name}: {missed} of {references}");
        }
    }
}
