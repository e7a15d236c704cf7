//! fio's randomness, so that the same job has the same places.
//!
//! fio draws with generators that are published, each choice of a process (places, directions,
//! sizes, …) from a stream of its own, and the seeds of all streams follow from `randseed` and
//! the number of the process. The generators are written from their papers; how the seeds follow
//! from each other was found by asking fio for its traces, and tests ask it again.

mod tausworthe;

pub use tausworthe::{Taus88, Taus258};

/// What a process draws numbers for; each has a stream of its own, by its number in fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomStream {
    /// The sizes of reads.
    ReadSizes = 0,
    /// The sizes of writes.
    WriteSizes = 1,
    /// Reads or writes.
    Direction = 4,
    /// Which file is next.
    Files = 5,
    /// Places, where runs differ (`randrepeat=0`).
    Places = 6,
    /// Whether a place is random: each direction has a generator with this seed.
    IsRandom = 10,
    /// The times between reads.
    ReadTimes = 15,
    /// Zones.
    Zones = 16,
    /// The times between writes.
    WriteTimes = 17,
}

/// The seeds of one process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessSeeds {
    job_seed: u64,
    /// The number of the process among all, from 1.
    number: u64,
    run_seed: u64,
    is_repeatable: bool,
}

/// The multiplier between one seed and the next: 2^32 divided by the golden ratio, to a prime
/// (Knuth, "The Art of Computer Programming", volume 3, section 6.4).
const STEP: u64 = 0x9e37_0001;

/// The seed of places in runs that repeat, which no `randseed` changes.
const PLACES: u64 = 0xb189_9bed;

impl ProcessSeeds {
    /// The seeds of the process that is `index`, counted from 0, of all. The run's own seed 1
    /// leaves fio's as they are.
    pub fn new(job_seed: u64, index: u32, run_seed: u64, is_repeatable: bool) -> ProcessSeeds {
        ProcessSeeds { job_seed, number: u64::from(index) + 1, run_seed, is_repeatable }
    }

    /// The seed of one stream.
    pub fn of(&self, stream: RandomStream) -> u64 {
        let mut seed = self.job_seed;
        for _ in 0..4 + stream as u32 {
            seed = seed.wrapping_mul(STEP);
        }
        self.in_run(seed.wrapping_mul(self.number).wrapping_add(stream as u64))
    }

    /// The seed of random places.
    pub fn of_places(&self) -> u64 {
        match self.is_repeatable {
            true => self.in_run(PLACES.wrapping_mul(self.number)),
            false => self.of(RandomStream::Places),
        }
    }

    /// The seed of places in a file that are not spread evenly, by the hash of its name.
    pub fn of_name(&self, hash: u32) -> u64 {
        self.in_run(u64::from(hash).wrapping_mul(self.number))
    }

    /// What a seed is in this run: itself where the run's own is 1.
    pub fn in_run(&self, seed: u64) -> u64 {
        seed ^ self.run_seed.wrapping_sub(1).wrapping_mul(readpath_core::splitmix::STEP)
    }
}

/// A source of random places and sizes.
#[derive(Clone, Copy, Debug)]
pub enum Generator {
    /// 32 bits at a time.
    Taus88(Taus88),
    /// 64 bits at a time.
    Taus258(Taus258),
}

impl Generator {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        match self {
            Generator::Taus88(generator) => generator.below(bound),
            Generator::Taus258(generator) => generator.below(bound),
        }
    }
}
