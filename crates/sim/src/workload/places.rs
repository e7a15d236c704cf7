//! Where in an area the next operation goes, and how large it is.
//!
//! A sequential operation begins where the last one of its direction has ended; a random one at a
//! block of the area, counted in the alignment of its direction. An operation that would reach
//! past the end of the area is not issued: the pass is over then. What has been taken by random
//! operations of this pass is in a map, and the next free block is taken in place of one that is
//! taken; sequential operations between them don't count for the map, as in fio.

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

/// What all areas of a process have in common.
#[derive(Clone, Debug)]
pub struct PositionRules {
    sizes: [BlockSizes; 2],
    is_unaligned: bool,
    is_size_by_order: bool,
    align_bytes: [u64; 2],
    least_bytes: u64,
    is_random: bool,
    random_percent: [u8; 2],
    sequence: RandomSequence,
    strides: Option<StridedZones>,
}

impl PositionRules {
    /// That of a job.
    pub fn new(job: &Job) -> PositionRules {
        let least = [0, 1].map(|way| job.block_sizes[way].least());
        PositionRules {
            sizes: job.block_sizes.clone(),
            is_unaligned: job.is_unaligned,
            is_size_by_order: job.is_size_by_order,
            align_bytes: [0, 1].map(|way| job.align_bytes[way].unwrap_or(least[way])),
            least_bytes: match job.pattern.reads_percent {
                0 => least[1],
                100 => least[0],
                _ => least[0].min(least[1]),
            },
            is_random: job.pattern.is_random,
            random_percent: job.random_percent,
            sequence: job.sequence,
            strides: job.strides,
        }
    }

    /// The smallest operation of each direction.
    pub fn least_bytes_of_directions(&self) -> [u64; 2] {
        [0, 1].map(|way| self.sizes[way].least())
    }

    /// Whether an area has more blocks than a generator of 32 bits reaches.
    pub fn is_beyond_32_bits(&self, area_bytes: u64) -> bool {
        area_bytes / self.least_bytes > u64::from(u32::MAX)
    }
}

/// The places of one process in one area.
#[derive(Clone, Debug)]
pub struct ProcessOffsets {
    area_bytes: u64,
    /// Whether the area begins where its file does.
    is_at_start: bool,
    /// Where the zone begins that is in use; 0 without zones.
    zone_start: u64,
    /// Where the last operation of each direction has ended, and where it began.
    last_end: [u64; 2],
    last_start: [Option<u64>; 2],
    order: BlockOrder,
}

/// How one random block follows another.
#[derive(Clone, Debug)]
enum BlockOrder {
    /// Any block; each once where there is a map.
    Uniform { map: Option<BlockMap> },
    /// Each block once, by a register.
    Shifted { lfsr: Lfsr, seed: u64 },
    /// By a permutation, with draws of its own.
    Permuted(Box<PermutedBlocks>),
    /// Few blocks often.
    Skewed(Box<SkewedPositions>),
    /// Zones with shares; without a map, as in fio.
    Zoned { zones: [Vec<DistributionZone>; 2], is_absolute: bool },
}

/// What keeps a job from having places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyBlocks {
    /// How many blocks the area has.
    pub blocks: u64,
}

impl ProcessOffsets {
    /// The places of `job` in an area.
    ///
    /// # Errors
    /// There are more blocks than a map or a register is made for.
    pub fn new(
        job: &Job,
        grain: &PositionRules,
        area: &FileArea,
        chance: &mut RandomChoices,
    ) -> Result<ProcessOffsets, TooManyBlocks> {
        let (area_bytes, least_bytes) = (area.bytes, grain.least_bytes);
        let blocks = (area_bytes / least_bytes).max(1);
        let map = || match job.has_random_map {
            true if blocks > BLOCKS_MAX => Err(TooManyBlocks { blocks }),
            true => Ok(Some(BlockMap::new(blocks))),
            false => Ok(None),
        };
        let order = match &job.distribution {
            _ if !job.pattern.is_random => BlockOrder::Uniform { map: None },
            _ if job.generator == Generator::Permutation => {
                let own = chance.own.as_mut().expect("a permutation has draws of its own");
                BlockOrder::Permuted(Box::new(PermutedBlocks::new(job, area_bytes, own)))
            }
            Distribution::Uniform if job.generator == Generator::Lfsr => {
                let seed = chance.seeds().of_places();
                let lfsr = Lfsr::new(blocks, seed).ok_or(TooManyBlocks { blocks })?;
                BlockOrder::Shifted { lfsr, seed }
            }
            Distribution::Uniform => BlockOrder::Uniform { map: map()? },
            Distribution::Zoned { zones, is_absolute } => {
                BlockOrder::Zoned { zones: zones.clone(), is_absolute: *is_absolute }
            }
            skewed => {
                let seed = match job.has_seed || !job.is_repeatable {
                    true => chance.seeds().of_places(),
                    false => chance.seeds().of_name(area.name_hash),
                };
                // In the smallest blocks of both directions, also where there is one direction.
                let [read, write] = grain.least_bytes_of_directions();
                let blocks = area_bytes.div_ceil(read.min(write)).max(1);
                let skew = SkewedPositions::new(skewed, blocks, seed)
                    .expect("the others have gone before");
                BlockOrder::Skewed(Box::new(skew))
            }
        };
        Ok(ProcessOffsets {
            area_bytes: area.bytes,
            is_at_start: area.offset == 0,
            zone_start: 0,
            last_end: [0; 2],
            last_start: [None; 2],
            order,
        })
    }

    /// The next operation of this direction, as its first byte in the area and its length; `None`
    /// when this pass has come to its end. `is_drawn`: a random place is due.
    pub fn next(
        &mut self,
        grain: &PositionRules,
        op: Op,
        is_drawn: bool,
        chance: &mut RandomChoices,
    ) -> Option<(u64, u64)> {
        let way = op as usize;
        let is_random =
            grain.is_random && is_drawn && chance.is_random(op, grain.random_percent[way]);
        let start = if is_random {
            self.random_start(grain, way, chance)?
        } else if is_drawn || grain.sequence.kind == Sequencer::Sequential {
            match self.sequential_start(grain, way) {
                Some(start) => start,
                None if grain.is_random => self.random_start(grain, way, chance)?,
                None => return None,
            }
        } else {
            self.last_start[way].unwrap_or(0)
        };
        let end = self.area_bytes;
        let fits = |bytes: u64| start.checked_add(bytes).is_some_and(|last| last <= end);
        let which = if grain.is_size_by_order { usize::from(is_random) } else { way };
        let mut bytes = chance.size(&grain.sizes[which], which, grain.is_unaligned, fits)?;
        if is_random {
            bytes = self.taken(grain, start, bytes);
        }
        self.last_start[way] = Some(start);
        self.last_end[way] = start + bytes;
        Some((start, bytes))
    }

    fn random_start(
        &mut self,
        grain: &PositionRules,
        way: usize,
        chance: &mut RandomChoices,
    ) -> Option<u64> {
        let align = grain.align_bytes[way];
        let in_zone = grain.strides.map_or(self.area_bytes, |strides| {
            strides.range_bytes.min(self.area_bytes - self.zone_start)
        });
        let room = in_zone.saturating_sub(grain.sizes[way].least().saturating_sub(align));
        let blocks = room / align;
        if blocks == 0 {
            return None;
        }
        let free = |map: &Option<BlockMap>, block: u64| match map {
            None => Some(block),
            // The map counts in the smallest blocks; where the alignment is another, as fio does.
            Some(map) if map.is_taken(block) => map.next_free(block),
            Some(_) => Some(block),
        };
        let block = match &mut self.order {
            BlockOrder::Uniform { map } => free(map, chance.block(blocks))?,
            BlockOrder::Shifted { lfsr, .. } => lfsr.next()?,
            BlockOrder::Permuted(permuted) => {
                let own = chance.own.as_mut().expect("a permutation has draws of its own");
                permuted.next(way, own)?
            }
            // A place beyond the end ends the pass, as in fio.
            BlockOrder::Skewed(skew) => skew.next(),
            BlockOrder::Zoned { zones, is_absolute } => {
                let draw = chance.zone();
                let zone = zone_of(&zones[way], *is_absolute, align, blocks, draw);
                let (start, end) = zone.unwrap_or((0, blocks));
                start + chance.block(end - start)
            }
        };
        let start = self.zone_start.checked_add(block.checked_mul(align)?)?;
        (start < self.area_bytes).then_some(start)
    }

    /// Behind the last operation, with the gap that the job leaves.
    fn sequential_start(&mut self, grain: &PositionRules, way: usize) -> Option<u64> {
        let skip = grain.sequence.skip_bytes;
        let last_end = self.last_end[way];
        if skip == 0 {
            return (last_end < self.area_bytes).then_some(last_end);
        }
        let end = i128::from(self.area_bytes);
        if last_end == 0 && self.last_start[way].is_none() {
            // Backwards the first operation is the last of the area; but at the start of a file it
            // is the first, as in fio.
            let first = if skip < 0 && !self.is_at_start { end + i128::from(skip) } else { 0 };
            return u64::try_from(first).ok();
        }
        let next = i128::from(last_end) + i128::from(skip);
        let next = match next {
            // Past the end it begins anew, past the start at the end.
            next if next >= end => 0,
            next if next < 0 => end + i128::from(skip),
            next => next,
        };
        u64::try_from(next).ok()
    }

    /// Marks what a random operation takes; gives how much of it was free.
    fn taken(&mut self, grain: &PositionRules, start: u64, bytes: u64) -> u64 {
        let BlockOrder::Uniform { map: Some(map) } = &mut self.order else {
            return bytes;
        };
        let unit = grain.least_bytes;
        let first = (start - self.zone_start) / unit;
        let taken = map.take(first, bytes.div_ceil(unit).max(1));
        match taken {
            0 => bytes,
            taken => bytes.min(taken * unit),
        }
    }

    /// So many bytes were moved in the zones of this process: perhaps the next zone begins.
    /// Gives whether it does.
    pub fn on_zone_bytes(&mut self, strides: &StridedZones, moved_bytes: u64, op: Op) -> bool {
        let is_next = moved_bytes >= strides.moved_bytes;
        if is_next {
            let step = strides.range_bytes.saturating_add(strides.skip_bytes);
            self.zone_start = self.zone_start.saturating_add(step);
            if self.zone_start >= self.area_bytes {
                self.zone_start = 0;
            }
            self.last_end[op as usize] = self.zone_start;
        }
        let zone_end = self.zone_start.saturating_add(strides.range_bytes);
        if self.last_end[op as usize] >= zone_end {
            self.last_end[op as usize] = self.zone_start;
        }
        if is_next || moved_bytes.is_multiple_of(strides.range_bytes) {
            self.clear_used();
        }
        is_next
    }

    /// Begins the next pass.
    pub fn restart(&mut self) {
        self.zone_start = 0;
        self.last_end = [0; 2];
        self.last_start = [None; 2];
        self.clear_used();
    }

    fn clear_used(&mut self) {
        match &mut self.order {
            BlockOrder::Uniform { map } => {
                if let Some(map) = map {
                    map.clear();
                }
            }
            BlockOrder::Shifted { lfsr, seed } => lfsr.restart(*seed),
            BlockOrder::Permuted(permuted) => permuted.restart(),
            // It goes on where it was, as in fio.
            BlockOrder::Skewed(_) | BlockOrder::Zoned { .. } => {}
        }
    }
}
