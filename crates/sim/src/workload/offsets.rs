//! Offset and size of the next operation in an area, the part of a file that a process uses. A
//! *pass* is one repetition of the job's work.
//!
//! A sequential operation begins at the end of the last one of its direction. A random one begins
//! at a block of the area, counted in the alignment of its direction. The rules follow fio 3.33.
//! They were derived by comparing its operations for random option sets:
//!
//! - An operation begins within the area. An operation of random size ends within it too. An
//!   operation of fixed size may extend past its end, as far as the file goes. Otherwise the pass
//!   is over.
//! - Gaps between sequential operations (`rw=read:64k`) wrap at the end of the file and not of the
//!   area: the pass ends with the first operation behind the area.
//! - The random map has one bit for each smallest block of all directions, trims included, which
//!   are never issued here. Each direction counts in its own smallest block. A taken block is
//!   replaced by the next free one. Operations between random ones neither read the map nor mark
//!   it.
//! - With zones, offsets and the map count from the start of the current zone.

use readpath_core::request::Op;

use super::block_map::{BLOCKS_MAX, BlockMap};
use super::chance::RandomChoices;
use super::layout::FileArea;
use super::lfsr::Lfsr;
use super::permuted::PermutedBlocks;
use super::skew::{SkewedPositions, zone_of};
use crate::job::{
    BlockSizes, Distribution, DistributionZone, Generator, Job, RandomSequence, Sequencer,
    StridedZones,
};

/// Properties that all areas of a process share.
#[derive(Clone, Debug)]
pub struct PositionRules {
    /// Sizes of reads and of writes, or, with `is_size_by_order`, of sequential and random offsets.
    sizes: [BlockSizes; 2],
    /// True if random sizes need not be multiples of the smallest one.
    is_unaligned: bool,
    /// True if the size depends on the order and not on the direction (option bs_is_seq_rand of
    /// fio).
    is_size_by_order: bool,
    /// Alignment of random offsets of reads and of writes. Random blocks have this size.
    align_bytes: [u64; 2],
    /// Size in bytes of the smallest block of all directions, trims included: the unit of the
    /// random map.
    map_block_bytes: u64,
    /// True for a random job, false for a sequential one.
    is_random: bool,
    /// Percentage of random offsets in a random job.
    random_percent: [u8; 2],
    /// Operations per random offset, behaviour of the others, and gaps of sequential ones.
    sequence: RandomSequence,
    /// Zones with gaps (`zonemode=strided`).
    strides: Option<StridedZones>,
    /// True if random blocks are drawn again as soon as all were used.
    is_restarted_at_once: bool,
    /// True if sequential offsets restart after the end of the area, within one pass.
    wraps_sequential: bool,
}

impl PositionRules {
    /// Creates the rules of a job that uses `files` files.
    pub fn new(job: &Job, files: usize) -> PositionRules {
        let smallest_bytes = [0, 1].map(|direction| job.block_sizes[direction].smallest_bytes());
        PositionRules {
            sizes: job.block_sizes.clone(),
            is_unaligned: job.is_unaligned,
            is_size_by_order: job.is_size_by_order,
            // A stated alignment is for random positions only.
            align_bytes: [0, 1].map(|direction| match job.align_bytes[direction] {
                Some(bytes) if job.pattern.is_random => bytes,
                _ => smallest_bytes[direction],
            }),
            map_block_bytes: smallest_bytes[0]
                .min(smallest_bytes[1])
                .min(job.trim_block_sizes.smallest_bytes()),
            is_random: job.pattern.is_random,
            random_percent: job.random_percent,
            sequence: job.sequence,
            strides: job.strides,
            // Otherwise the pass ends there and another begins: with a permutation, and for
            // sequential offsets with several files.
            is_restarted_at_once: job.is_time_based && job.generator != Generator::Permutation,
            wraps_sequential: job.is_time_based && files == 1,
        }
    }

    /// Returns the smallest size of each direction in bytes.
    pub fn smallest_bytes_by_direction(&self) -> [u64; 2] {
        [0, 1].map(|direction| self.sizes[direction].smallest_bytes())
    }

    /// Returns true if an area has more blocks than 32 bits can count.
    pub fn is_beyond_32_bits(&self, area_bytes: u64) -> bool {
        area_bytes / self.map_block_bytes > u64::from(u32::MAX)
    }
}

/// Offsets of one process in one area. They count from the start of the file.
#[derive(Clone, Debug)]
pub struct ProcessOffsets {
    /// Start of the area in the file.
    area_start: u64,
    /// Length of the area.
    area_bytes: u64,
    /// Length of the whole file.
    file_bytes: u64,
    /// Start of the current zone. Without zones, start of the area.
    zone_start: u64,
    /// End of the last operation of each direction. Before the first one, start of the zone.
    last_end: [u64; 2],
    /// Start of the last operation of each direction. `None` before the first one in the zone.
    last_start: [Option<u64>; 2],
    /// Order of the random blocks, with its state.
    order: BlockOrder,
}

/// Order of the random blocks.
#[derive(Clone, Debug)]
enum BlockOrder {
    /// Uniformly random blocks. With a map, each block once.
    Uniform { map: Option<BlockMap> },
    /// Each block once, by a shift register. Each zone and pass restarts it from `seed`.
    Shifted { lfsr: Lfsr, seed: u64 },
    /// By a permutation, with a generator of its own.
    Permuted(Box<PermutedBlocks>),
    /// With a skewed distribution. A verification starts from the state `at_pass_start` again.
    Skewed { next: Box<SkewedPositions>, at_pass_start: Box<SkewedPositions> },
    /// By zones with shares. Without a map, as in fio.
    Zoned {
        zones: [Vec<DistributionZone>; 2],
        /// True if the length of a zone is in bytes, false if it is in percent of the area.
        is_absolute: bool,
        /// Register and its seed, in a job with `random_generator=lfsr`.
        lfsr: Option<(Lfsr, u64)>,
    },
}

/// Error: the area has too many blocks for a map or a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyBlocks {
    /// Number of blocks in the area.
    pub blocks: u64,
}

impl ProcessOffsets {
    /// Creates the offsets of `job` in an area. `random` supplies the seeds, and the generator
    /// of a permutation.
    ///
    /// # Errors
    /// Fails if the area has too many blocks for a map or a register.
    pub fn new(
        job: &Job,
        rules: &PositionRules,
        area: &FileArea,
        random: &mut RandomChoices,
    ) -> Result<ProcessOffsets, TooManyBlocks> {
        let area_bytes = area.bytes;
        let mapped_bytes = job.strides.map_or(area_bytes, |strides| strides.range_bytes);
        // Blocks of a zone, or of the area: at least 1, even if it is shorter than a block.
        let blocks = (mapped_bytes / rules.map_block_bytes).max(1);
        let map = || {
            if !job.has_random_map {
                return Ok(None);
            }
            match blocks > BLOCKS_MAX {
                true => Err(TooManyBlocks { blocks }),
                false => Ok(Some(BlockMap::new(blocks))),
            }
        };
        let lfsr = |random: &RandomChoices| {
            let seed = random.seeds().position_seed();
            Lfsr::new(blocks, seed).map(|lfsr| (lfsr, seed)).ok_or(TooManyBlocks { blocks })
        };
        let order = match &job.distribution {
            _ if !job.pattern.is_random => BlockOrder::Uniform { map: None },
            _ if job.generator == Generator::Permutation => {
                let generator =
                    random.own_generator.as_mut().expect("a permutation has draws of its own");
                BlockOrder::Permuted(Box::new(PermutedBlocks::new(job, area_bytes, generator)))
            }
            Distribution::Uniform if job.generator == Generator::Lfsr => {
                let (lfsr, seed) = lfsr(random)?;
                BlockOrder::Shifted { lfsr, seed }
            }
            Distribution::Uniform => BlockOrder::Uniform { map: map()? },
            Distribution::Zoned { zones, is_absolute } => BlockOrder::Zoned {
                zones: zones.clone(),
                is_absolute: *is_absolute,
                lfsr: match job.generator {
                    Generator::Lfsr => Some(lfsr(random)?),
                    _ => None,
                },
            },
            skewed => {
                // The file's name has an effect only in a repeatable job without a seed of its own.
                let seed = match job.has_seed || !job.is_repeatable {
                    true => random.seeds().position_seed(),
                    false => random.seeds().file_seed(area.name_hash),
                };
                // In units of the smallest block of both directions, even if the job has one
                // direction.
                let [read, write] = rules.smallest_bytes_by_direction();
                let skewed_blocks = area_bytes.div_ceil(read.min(write)).max(1);
                // `None` is returned only for the uniform and zoned distributions, handled above.
                let skew = SkewedPositions::new(skewed, skewed_blocks, seed)
                    .expect("the others have gone before");
                let next = Box::new(skew);
                BlockOrder::Skewed { at_pass_start: next.clone(), next }
            }
        };
        Ok(ProcessOffsets {
            area_start: area.offset,
            area_bytes,
            file_bytes: area.file_bytes,
            zone_start: area.offset,
            last_end: [area.offset; 2],
            last_start: [None; 2],
            order,
        })
    }

    /// Returns the first byte in the file and the length of the next operation of this
    /// direction. `None` ends this pass in the area: no offset is left, or no size fits at the
    /// offset.
    ///
    /// `is_drawn` requests a random offset: it is false for the operations between two random
    /// ones (`rw=randread:8`). `skips_map_mark` is set if the offset of a random job is not
    /// random. If it is set before the call, because another file had no offset left, this
    /// operation is not marked in the map either, as in fio.
    pub fn next(
        &mut self,
        rules: &PositionRules,
        op: Op,
        is_drawn: bool,
        skips_map_mark: &mut bool,
        random: &mut RandomChoices,
    ) -> Option<(u64, u64)> {
        let direction = op as usize;
        let is_random = rules.is_random
            && is_drawn
            && random.draw_is_random(op, rules.random_percent[direction]);
        *skips_map_mark |= rules.is_random && !is_random;
        let zone_offset = self.next_in_zone(rules, direction, is_drawn, is_random, random)?;
        let start = self.zone_start.checked_add(zone_offset)?;
        // The offset in a zone is compared with the length of the whole area, as in fio.
        if zone_offset >= self.area_bytes || start >= self.file_bytes {
            return None;
        }
        let area_end = self.area_start.saturating_add(self.area_bytes);
        // Checks a random size only. A fixed one may exceed the area, but not the file.
        let fits = |bytes: u64| start.checked_add(bytes).is_some_and(|end| end <= area_end);
        // By order, index 0 is of sequential and 1 of random operations.
        let size_index = if rules.is_size_by_order { usize::from(is_random) } else { direction };
        let mut bytes =
            random.draw_size(&rules.sizes[size_index], size_index, rules.is_unaligned, fits)?;
        if start.checked_add(bytes).is_none_or(|end| end > self.file_bytes) {
            return None;
        }
        if is_random && !*skips_map_mark {
            bytes = self.mark_used(rules, direction, zone_offset, bytes);
        }
        self.last_start[direction] = Some(start);
        self.last_end[direction] = start + bytes;
        Some((start, bytes))
    }

    /// Returns the offset of the next operation, counted from the start of the zone, or `None` at
    /// the end of this pass. `is_drawn` and `is_random` state if a random offset was requested, and
    /// if the job's share of random offsets allows it. A random job without an offset in sequence
    /// left continues at a random one.
    fn next_in_zone(
        &mut self,
        rules: &PositionRules,
        direction: usize,
        is_drawn: bool,
        is_random: bool,
        random: &mut RandomChoices,
    ) -> Option<u64> {
        if is_random {
            return self.random_offset(rules, direction, random);
        }
        // An operation between two random ones repeats the last offset.
        if rules.is_random && !is_drawn && rules.sequence.kind == Sequencer::Identical {
            let last = self.last_start[direction].unwrap_or(self.zone_start);
            return last.checked_sub(self.zone_start);
        }
        match self.sequential_offset(rules, direction) {
            None if rules.is_random => self.random_offset(rules, direction, random),
            start => start,
        }
    }

    /// Returns a random offset, counted from the start of the zone, or `None` if none is left. With
    /// `is_restarted_at_once`, all blocks are drawn again after each was used. `None` even then for
    /// a zone without a block.
    fn random_offset(
        &mut self,
        rules: &PositionRules,
        direction: usize,
        random: &mut RandomChoices,
    ) -> Option<u64> {
        match self.draw_offset(rules, direction, random) {
            None if rules.is_restarted_at_once => {
                self.restart_zone();
                self.draw_offset(rules, direction, random)
            }
            offset => offset,
        }
    }

    /// Draws a random offset in the zone. Returns `None` if the zone has no block, or the order has
    /// none left.
    fn draw_offset(
        &mut self,
        rules: &PositionRules,
        direction: usize,
        random: &mut RandomChoices,
    ) -> Option<u64> {
        let align_bytes = rules.align_bytes[direction];
        let zone_bytes = rules.strides.map_or(self.area_bytes, |strides| strides.range_bytes);
        let smallest_bytes = rules.sizes[direction].smallest_bytes();
        // The smallest operation must fit behind the last start.
        let start_range = zone_bytes.saturating_sub(smallest_bytes.saturating_sub(align_bytes));
        let blocks = start_range / align_bytes;
        if blocks == 0 {
            return None;
        }
        let free_block = |map: &Option<BlockMap>, block: u64| match map {
            None => Some(block),
            Some(map) if map.is_used(block) => map.next_free(block),
            Some(_) => Some(block),
        };
        let block = match &mut self.order {
            BlockOrder::Uniform { map } => free_block(map, random.draw_block(blocks))?,
            BlockOrder::Shifted { lfsr, .. } => lfsr.next()?,
            BlockOrder::Permuted(permuted) => {
                let generator =
                    random.own_generator.as_mut().expect("a permutation has draws of its own");
                permuted.next(direction, generator)?
            }
            // A block beyond the end ends the pass, as in fio.
            BlockOrder::Skewed { next, .. } => next.draw(),
            BlockOrder::Zoned { zones, is_absolute, lfsr } => {
                let draw = random.draw_zone_percent();
                let zone = zone_of(&zones[direction], *is_absolute, align_bytes, blocks, draw);
                // Shares are 100 % together. Without a zone for the draw, the whole area is used.
                let (start, end) = zone.unwrap_or((0, blocks));
                let part_block = match lfsr {
                    // The offset is drawn from the whole area, as in fio.
                    Some((lfsr, _)) => lfsr.next()?,
                    // In a zone without a whole block, the draw is 0.
                    None => random.draw_block(end - start),
                };
                start + part_block
            }
        };
        block.checked_mul(align_bytes)
    }

    /// Returns the offset after the last operation and the job's gap, counted from the start of the
    /// zone. `None` at the end of the file. Gaps wrap at the end of the file.
    fn sequential_offset(&mut self, rules: &PositionRules, direction: usize) -> Option<u64> {
        let skip_bytes = rules.sequence.skip_bytes;
        let end = self.area_start.saturating_add(self.area_bytes);
        let last_end = &mut self.last_end[direction];
        if rules.wraps_sequential && *last_end >= end {
            *last_end = self.zone_start;
        }
        if *last_end >= self.file_bytes {
            return None;
        }
        // With a negative gap, the operations go backwards from the end. As in fio, the length of
        // the area serves as a position in the file. In an area from byte 0 on, the first one is at
        // 0 nevertheless.
        let backwards_from = self.area_bytes.min(self.file_bytes);
        if *last_end == self.zone_start && self.zone_start > 0 && skip_bytes < 0 {
            *last_end = backwards_from;
        }
        // A position before the zone wraps to a large number, which the comparison below or the
        // caller rejects.
        let zone_offset = last_end.wrapping_sub(self.zone_start);
        // There is no gap before the first operation of a zone.
        if zone_offset == 0 || skip_bytes == 0 {
            return Some(zone_offset);
        }
        let next = zone_offset.wrapping_add_signed(skip_bytes);
        Some(match next {
            // fio compares the file's length with an offset in the zone.
            next if next < self.file_bytes => next,
            // fio wraps to the zone's start as it counts from the start of the file.
            _ if skip_bytes > 0 => self.zone_start,
            _ => backwards_from.wrapping_add_signed(skip_bytes),
        })
    }

    /// Marks the blocks of a random operation. Returns its size in bytes, cut before the first used
    /// block. Not cut without a map, at the end of the map, and if its first block was used.
    fn mark_used(
        &mut self,
        rules: &PositionRules,
        direction: usize,
        zone_offset: u64,
        bytes: u64,
    ) -> u64 {
        let BlockOrder::Uniform { map: Some(map) } = &mut self.order else {
            return bytes;
        };
        let block_bytes = rules.sizes[direction].smallest_bytes();
        let (first, count) = (zone_offset / block_bytes, bytes.div_ceil(block_bytes).max(1));
        let marked_blocks = map.mark_used(first, count);
        // A partial block at the end of the file has no bit.
        let marked_end = (first + marked_blocks) * block_bytes;
        let has_partial_block =
            first + marked_blocks >= map.blocks() && zone_offset + bytes < marked_end + block_bytes;
        match marked_blocks {
            0 => bytes,
            _ if has_partial_block => bytes,
            marked_blocks => bytes.min(marked_blocks * block_bytes),
        }
    }

    /// Enters the next zone if `moved_bytes`, the bytes moved in this one, reach the job's
    /// number. Returns true in that case. Behind the end of the file, the next zone is the
    /// first one. Otherwise the present zone may start again. Sequential offsets do after an
    /// operation of this direction up to the end of the zone's range. The random order, and all
    /// offsets with it, do after each multiple of the range's bytes.
    pub fn advance_zone(&mut self, strides: &StridedZones, moved_bytes: u64, op: Op) -> bool {
        let is_next_zone = moved_bytes >= strides.moved_bytes;
        let direction = op as usize;
        if is_next_zone {
            let step_bytes = strides.range_bytes.saturating_add(strides.skip_bytes);
            self.zone_start = self.zone_start.saturating_add(step_bytes);
            if self.zone_start >= self.file_bytes {
                self.zone_start = self.area_start;
            }
            self.last_end[direction] = self.zone_start;
        }
        if self.last_end[direction] >= self.zone_start.saturating_add(strides.range_bytes) {
            self.last_end[direction] = self.zone_start;
        }
        if is_next_zone || (moved_bytes > 0 && moved_bytes.is_multiple_of(strides.range_bytes)) {
            self.restart_zone();
        }
        is_next_zone
    }

    /// Starts the next pass, at the start of the area. Saves the state of a skewed order, to which
    /// `rewind` returns.
    pub fn restart(&mut self) {
        self.zone_start = self.area_start;
        if let BlockOrder::Skewed { next, at_pass_start } = &mut self.order {
            at_pass_start.clone_from(next);
        }
        self.restart_zone();
    }

    /// Returns to the start of the pass, with the same random order. A skewed order has a random
    /// state of its own. The process restores the state of the others.
    pub fn rewind(&mut self) {
        if let BlockOrder::Skewed { next, at_pass_start } = &mut self.order {
            next.clone_from(at_pass_start);
        }
        self.restart();
    }

    /// Returns to the start of the zone, and marks all its blocks as free.
    fn restart_zone(&mut self) {
        self.last_end = [self.zone_start; 2];
        self.last_start = [None; 2];
        self.restart_order();
    }

    /// Starts the random order again: marks all blocks of a map as free, and restarts a register or
    /// a permutation.
    fn restart_order(&mut self) {
        match &mut self.order {
            BlockOrder::Uniform { map } => {
                if let Some(map) = map {
                    map.clear();
                }
            }
            BlockOrder::Shifted { lfsr, seed }
            | BlockOrder::Zoned { lfsr: Some((lfsr, seed)), .. } => {
                lfsr.restart(*seed);
            }
            BlockOrder::Permuted(permuted) => permuted.restart(),
            // The sequence continues, as in fio.
            BlockOrder::Skewed { .. } | BlockOrder::Zoned { .. } => {}
        }
    }
}
