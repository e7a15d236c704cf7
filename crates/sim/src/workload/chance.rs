//! All random choices of one process. A *pass* is one repetition of the job's work.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use readpath_core::request::Op;

use super::random::{Generator, ProcessSeeds, RandomStream, Taus88, Taus258};
use crate::job::{BlockSizes, Job};

/// Random streams of a process, one per purpose.
#[derive(Clone, Debug)]
pub struct RandomChoices {
    /// Seeds of all streams.
    seeds: ProcessSeeds,
    /// True if each pass begins with the same draws.
    is_reseeded: bool,
    /// True if positions and sizes need 64-bit random numbers.
    is_wide: bool,
    /// The streams in their present states.
    streams: RandomStreams,
    /// Generator of the directions and of permuted blocks, in a job whose positions come from a
    /// permutation. The streams serve all other choices of such a job too.
    pub own_generator: Option<Xoshiro256PlusPlus>,
}

/// The streams in their present states.
#[derive(Clone, Debug)]
struct RandomStreams {
    /// Positions, in blocks.
    positions: Generator,
    /// Sizes of reads and of writes.
    sizes: [Generator; 2],
    /// Choice between a random and a sequential position, for reads and for writes.
    position_kinds: [Taus88; 2],
    /// Direction of the next operation.
    direction: Taus88,
    /// Alternation of the directions.
    mix: ReadWriteMix,
    /// Choice of the next file.
    files: Taus88,
    /// Choice of a zone, by the shares of the zones.
    zones: Taus88,
    /// Intervals between reads and between writes.
    times: [Taus88; 2],
}

/// Alternation of reads and writes, as in fio. After a change of direction, the new direction is
/// kept until its operations reach its percentage of the other direction's operations so far.
#[derive(Clone, Copy, Debug)]
struct ReadWriteMix {
    /// Present direction.
    op: Op,
    /// Operations issued so far, reads and writes.
    issued: [u64; 2],
    /// Value of `issued` of the present direction from which a direction is drawn again.
    direction_kept_until: u64,
}

impl RandomStreams {
    /// Creates the streams at their starts. `is_wide` selects 64-bit positions and sizes.
    fn new(seeds: &ProcessSeeds, is_wide: bool) -> RandomStreams {
        let small_generator = |stream| Taus88::new(seeds.stream_seed(stream));
        let sized_generator = |seed| match is_wide {
            true => Generator::Taus258(Taus258::new(seed)),
            false => Generator::Taus88(Taus88::new(seed)),
        };
        RandomStreams {
            positions: sized_generator(seeds.position_seed()),
            sizes: [RandomStream::ReadSizes, RandomStream::WriteSizes]
                .map(|stream| sized_generator(seeds.stream_seed(stream))),
            // Reads and writes begin with the same draws.
            position_kinds: [RandomStream::IsRandom; 2].map(small_generator),
            direction: small_generator(RandomStream::Direction),
            mix: ReadWriteMix { op: Op::Read, issued: [0; 2], direction_kept_until: 0 },
            files: small_generator(RandomStream::Files),
            zones: small_generator(RandomStream::Zones),
            times: [RandomStream::ReadTimes, RandomStream::WriteTimes].map(small_generator),
        }
    }
}

impl RandomStreams {
    /// Returns the direction of the next operation: the present one while it is kept, otherwise a
    /// drawn one, with `reads_percent` as the share of reads.
    fn next_direction(&mut self, reads_percent: u8) -> Op {
        let ReadWriteMix { op, issued, direction_kept_until: kept_until } = &mut self.mix;
        if issued[*op as usize] >= *kept_until {
            let drawn = match self.direction.draw_percent(reads_percent) {
                true => Op::Read,
                false => Op::Write,
            };
            if drawn != *op {
                let drawn_percent = match drawn {
                    Op::Read => reads_percent,
                    Op::Write => 100 - reads_percent,
                };
                // `op` is still the direction before the change.
                *kept_until = issued[*op as usize] * u64::from(drawn_percent) / 100;
            }
            *op = drawn;
        }
        *op
    }
}

impl RandomChoices {
    /// Creates the streams of a process of `job` from its seeds. `is_wide` means that the areas
    /// have more blocks than 32 bits can count. `own_seed` is for the choices with a permutation.
    pub fn new(job: &Job, seeds: ProcessSeeds, is_wide: bool, own_seed: u64) -> RandomChoices {
        use crate::job::Generator;
        let is_wide = is_wide || job.generator == Generator::Tausworthe64;
        let is_own = job.generator == Generator::Permutation;
        RandomChoices {
            streams: RandomStreams::new(&seeds, is_wide),
            seeds,
            // As in fio, a seed that is given keeps runs alike, but not passes.
            is_reseeded: job.is_repeatable && !job.has_seed,
            is_wide,
            own_generator: is_own.then(|| Xoshiro256PlusPlus::seed_from_u64(own_seed)),
        }
    }

    /// Returns the seeds of all streams.
    pub fn seeds(&self) -> &ProcessSeeds {
        &self.seeds
    }

    /// Starts a pass. The random streams begin again if `is_reseeded`, and the next direction is
    /// drawn at once. `own_generator` goes on: a permutation itself keeps its order in each pass,
    /// and its orders with repetitions continue over all passes.
    pub fn restart(&mut self) {
        if self.is_reseeded {
            let mix = self.streams.mix;
            self.streams = RandomStreams { mix, ..RandomStreams::new(&self.seeds, self.is_wide) };
        }
        // As in fio, the counts of reads and writes go on, and a direction is drawn at once.
        self.streams.mix.direction_kept_until = 0;
    }

    /// Records the issue of an operation of this direction.
    pub fn on_issue(&mut self, op: Op) {
        self.streams.mix.issued[op as usize] += 1;
    }

    /// Records that the mix continues with this direction, because the maximum rate delays the
    /// drawn direction longer.
    pub fn change_direction(&mut self, op: Op) {
        self.streams.mix.op = op;
    }

    /// Draws a block number below `blocks`.
    pub fn draw_block(&mut self, blocks: u64) -> u64 {
        self.streams.positions.below(blocks)
    }

    /// Draws the direction of the next operation: true for a read. `percent` is the share of reads.
    pub fn draw_is_read(&mut self, percent: u8) -> bool {
        match &mut self.own_generator {
            Some(own) => below(own, 100) < u64::from(percent),
            None => self.streams.next_direction(percent) == Op::Read,
        }
    }

    /// Returns true if the position of the next operation is random, with `percent` as the
    /// share of random positions. Draws nothing for 100 percent.
    pub fn draw_is_random(&mut self, op: Op, percent: u8) -> bool {
        percent == 100 || self.streams.position_kinds[op as usize].draw_percent(percent)
    }

    /// Draws the number of the next file, below `files`.
    pub fn draw_file(&mut self, files: u64) -> u64 {
        self.streams.files.below(files)
    }

    /// Draws a number from 0 to 99, which selects a zone by the shares of the zones in percent.
    pub fn draw_zone_percent(&mut self) -> u64 {
        self.streams.zones.below(100)
    }

    /// Draws a number from 0 to 1 for the interval between operations of a direction. It is
    /// never 0, because the interval follows from its logarithm: the smallest is one step of the
    /// generator.
    pub fn draw_unit(&mut self, op: Op) -> f64 {
        self.streams.times[op as usize].draw_unit().max(1.0 / f64::from(u32::MAX))
    }

    /// Draws the size of an operation in bytes. A random size is drawn again if `fits` rejects
    /// it. Returns `None` if the smallest size does not fit. A fixed size is not checked.
    /// `stream_index` selects the random stream: 0 for reads and 1 for writes. For sizes by
    /// order, 0 is sequential and 1 is random. Sizes are multiples of the smallest one unless
    /// `is_unaligned`.
    pub fn draw_size(
        &mut self,
        sizes: &BlockSizes,
        stream_index: usize,
        is_unaligned: bool,
        fits: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let stream = &mut self.streams.sizes[stream_index];
        let (min, max) = match sizes {
            BlockSizes::One(bytes) => return Some(*bytes),
            sizes => (sizes.smallest_bytes(), sizes.largest_bytes()),
        };
        // A size with a share of 0 is never drawn. fio repeats the draw for ever where only such a
        // size fits.
        let drawn_min = match sizes {
            BlockSizes::Split(parts) => {
                let drawn = parts.iter().filter(|(_, share)| *share > 0);
                drawn.map(|(bytes, _)| *bytes).min().unwrap_or(min)
            }
            _ => min,
        };
        if !fits(drawn_min) {
            return None;
        }
        // The smallest drawn size fits, so the loop ends.
        loop {
            let drawn = match sizes {
                BlockSizes::Split(parts) => stream.draw_by_share(parts, &fits),
                // As in fio, the sum can exceed the maximum, which limits the size below.
                _ => min + stream.below(max),
            };
            let aligned = if is_unaligned { drawn } else { drawn - drawn % min };
            let bytes = aligned.min(max);
            // Only a split without any share, which is no valid option, has a draw of 0.
            if bytes > 0 && fits(bytes) {
                return Some(bytes);
            }
        }
    }
}

impl Generator {
    /// Draws one of the sizes, in bytes, by their shares in percent. Sizes that do not fit are
    /// skipped. If no size is left, returns the last one, whether it fits or not.
    fn draw_by_share(&mut self, parts: &[(u64, u8)], fits: &impl Fn(u64) -> bool) -> u64 {
        let (drawn, max) = match self {
            Generator::Taus88(generator) => (u64::from(generator.next()), u64::from(u32::MAX)),
            Generator::Taus258(generator) => (generator.next(), u64::MAX),
        };
        let mut shares_end = 0;
        let mut last_bytes = 0;
        for &(bytes, share) in parts.iter().filter(|(_, share)| *share > 0) {
            last_bytes = bytes;
            shares_end += u64::from(share);
            // The draw lies in the first `shares_end` percent of its range. Both sides are divided
            // and not multiplied, which could overflow.
            if drawn / shares_end <= max / 100 && fits(bytes) {
                break;
            }
        }
        last_bytes
    }
}

/// Draws a number below `bound`: the high half of a product instead of a division. The bias is
/// below `bound / 2^64`.
pub fn below(random: &mut Xoshiro256PlusPlus, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}
