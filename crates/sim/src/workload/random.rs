//! fio's random numbers, so that a job has the same positions as in fio.
//!
//! fio uses published generators. Each type of choice (positions, directions, sizes, …) has a
//! stream of its own, and all seeds follow from `randseed` and the number of the process. The
//! generators are written from their papers. The derivation of the seeds was determined from fio's
//! traces, and tests compare it with fio again.

mod tausworthe;

use crate::job::Job;

pub use tausworthe::{Taus88, Taus258};

/// Purposes of random numbers, with their stream numbers in fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomStream {
    /// Sizes of reads.
    ReadSizes = 0,
    /// Sizes of writes.
    WriteSizes = 1,
    /// Direction: read or write.
    Direction = 4,
    /// Choice of the next file.
    Files = 5,
    /// Positions, if runs differ (`randrepeat=0`).
    Positions = 6,
    /// Sizes of files (`filesize=LEAST-MOST`).
    FileSizes = 7,
    /// Choice between random and sequential. The generators of both directions have this seed.
    IsRandom = 10,
    /// The times between reads.
    ReadTimes = 15,
    /// Zones.
    Zones = 16,
    /// The times between writes.
    WriteTimes = 17,
}

/// Seeds of one process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessSeeds {
    /// The job's `randseed`.
    job_seed: u64,
    /// Number of the process over all jobs, from 1.
    number: u64,
    /// Seed of the run. 1 leaves fio's seeds unchanged.
    run_seed: u64,
    /// True if each run has the same positions (option randrepeat of fio).
    is_repeatable: bool,
    /// True if all seeds are independent of `job_seed` (option allrandrepeat of fio).
    is_all_repeatable: bool,
}

/// Multiplier between successive seeds: a prime near 2^32 divided by the golden ratio (Knuth, "The
/// Art of Computer Programming", volume 3, section 6.4).
const STEP: u64 = 0x9e37_0001;

/// Seed of the positions in repeatable runs, and of all streams with option allrandrepeat of fio.
/// The job's seed does not change it.
const REPEATABLE_SEED: u64 = 0xb189_9bed;

impl ProcessSeeds {
    /// Creates the seeds of a process of `job`, with the number `index` over all jobs, from 0.
    /// `is_clone` is false for the first process of the job. As in fio, `randseed` changes the
    /// positions of the clones, but not the ones of the first process. The run seed 1 leaves
    /// fio's seeds unchanged.
    pub fn new(job: &Job, index: u32, is_clone: bool, run_seed: u64) -> ProcessSeeds {
        ProcessSeeds {
            job_seed: job.seed,
            number: u64::from(index) + 1,
            run_seed,
            is_repeatable: job.is_repeatable && !(is_clone && job.has_seed),
            is_all_repeatable: job.is_all_repeatable,
        }
    }

    /// Returns the seed of one stream. As in fio, the job's seed is multiplied 4 + n times for
    /// stream number n. If all streams are repeatable, a constant replaces the product.
    pub fn stream_seed(&self, stream: RandomStream) -> u64 {
        let mut seed = self.job_seed;
        for _ in 0..4 + stream as u32 {
            seed = seed.wrapping_mul(STEP);
        }
        if self.is_all_repeatable {
            seed = REPEATABLE_SEED;
        }
        self.with_run_seed(seed.wrapping_mul(self.number).wrapping_add(stream as u64))
    }

    /// Returns the seed of random positions. If they are repeatable, it ignores the job's seed, as
    /// in fio.
    pub fn position_seed(&self) -> u64 {
        match self.is_repeatable {
            true => self.with_run_seed(REPEATABLE_SEED.wrapping_mul(self.number)),
            false => self.stream_seed(RandomStream::Positions),
        }
    }

    /// Returns the seed of skewed positions in a file, from the hash of its name.
    pub fn file_seed(&self, name_hash: u32) -> u64 {
        self.with_run_seed(u64::from(name_hash).wrapping_mul(self.number))
    }

    /// Combines a seed with the run seed. Run seed 1 leaves it unchanged.
    fn with_run_seed(&self, seed: u64) -> u64 {
        seed ^ self.run_seed.wrapping_sub(1).wrapping_mul(readpath_core::splitmix::STEP)
    }
}

/// Generator of random positions and sizes.
#[derive(Clone, Copy, Debug)]
pub enum Generator {
    /// 32-bit numbers.
    Taus88(Taus88),
    /// 64-bit numbers.
    Taus258(Taus258),
}

impl Generator {
    /// Draws a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        match self {
            Generator::Taus88(generator) => generator.below(bound),
            Generator::Taus258(generator) => generator.below(bound),
        }
    }
}
