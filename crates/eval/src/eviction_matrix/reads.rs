//! File reads through the whole simulation that can profit from a cache.
//!
//! Memory is 16 MiB. Most loads are one process that reads several files in rotation, so the order
//! of its reads is the same under any policy. The amount read from each file per turn is a fixed
//! share in bytes, with the remainder carried over to the next turn. The other loads are concurrent
//! processes, each at its own speed.

use readpath_core::unit::PAGE_BYTES;

use super::LoadSize;
use readpath_models::random::SeededRng;
use readpath_sim::job::{Distribution, JobEngine};
use readpath_sim::workload::{
    FileId, GivenRead, ReadList, SkewedPositions, Workload, WorkloadFile,
};

/// Memory of the page cache.
pub(super) const MEMORY_BYTES: u64 = 4096 * PAGE_BYTES;

const MEMORY_PAGES: u64 = MEMORY_BYTES / PAGE_BYTES;
/// One KiB in bytes.
const KIB: u64 = 1 << 10;

/// A load of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadLoad {
    /// Random reads in a hot set of 3/8 of the memory, and scans in steps of `step_bytes`. Each
    /// scan reads as many bytes as the hot set's reads.
    Scans { step_bytes: u64, scans: u64 },
    /// Reads with a Zipf distribution in four times the memory, and a scan with a third as many
    /// bytes.
    Zipf,
    /// A cyclic scan of a file with the given size in percent of the memory.
    Loop { percent: u64 },
    /// Zipf, a loop, and another Zipf in sequence, twice.
    Phases,
    /// One process reads with a Zipf distribution, another loops over more than its half of the
    /// memory.
    Tenants,
    /// Random pages of an index and of a table, and occasionally the whole table.
    Database,
    /// One process reads a file, another follows at a distance of a quarter of the memory.
    Follower,
    /// The first 48 KiB of one file after another, and a hot set of half the memory.
    FileHeads,
    /// Several sequential streams in random rotation, each of its own file, and a hot set.
    Streams { streams: u64 },
}

/// The loads by name.
pub(super) const READS: &[(&str, ReadLoad)] = &[
    ("scan-512", scans(512, 1)),
    ("scan-1k", scans(KIB, 1)),
    ("scan-4k", scans(4 * KIB, 1)),
    ("scan-64k", scans(64 * KIB, 1)),
    ("four-scans-1k", scans(KIB, 4)),
    ("four-scans-64k", scans(64 * KIB, 4)),
    ("zipf-scan", ReadLoad::Zipf),
    ("round-110%", ReadLoad::Loop { percent: 110 }),
    ("round-150%", ReadLoad::Loop { percent: 150 }),
    ("round-300%", ReadLoad::Loop { percent: 300 }),
    ("phases", ReadLoad::Phases),
    ("two-tenants", ReadLoad::Tenants),
    ("database", ReadLoad::Database),
    ("followed", ReadLoad::Follower),
    ("begun", ReadLoad::FileHeads),
    ("streams-16", ReadLoad::Streams { streams: 16 }),
    ("streams-64", ReadLoad::Streams { streams: 64 }),
];

/// Declares a load of scans.
const fn scans(step_bytes: u64, scans: u64) -> ReadLoad {
    ReadLoad::Scans { step_bytes, scans }
}

/// Number of reads that do not belong to a scan, over a whole load.
const READS_OUTSIDE_SCANS: u64 = 40_000;
/// Minimum of that number for a shortened load.
const READS_OUTSIDE_SCANS_MIN: u64 = 2048;

impl ReadLoad {
    /// Returns the workload with its files.
    pub(super) fn workload(self, size: LoadSize) -> Workload {
        let mut draw = SeededRng::new(size.seed);
        let mut files = LoadFiles::default();
        let turns = (READS_OUTSIDE_SCANS / size.part).max(READS_OUTSIDE_SCANS_MIN);
        let lists = self.lists(&mut files, &mut draw, turns);
        let listed = |readings| ReadList {
            engine: JobEngine::Psync,
            is_direct: false,
            depth: 1,
            reads: readings,
            think_times: Vec::new(),
        };
        Workload::from_lists(files.0, lists.into_iter().map(listed).collect())
    }

    /// Returns the reads of each process. `turns` is the amount of work: the number of reads in the
    /// hot set, approximately. Adds the files to `files`.
    fn lists(self, files: &mut LoadFiles, draw: &mut SeededRng, turns: u64) -> Vec<Vec<GivenRead>> {
        match self {
            ReadLoad::Scans { step_bytes, scans } => {
                let mut hot = UniformPages::new(files, MEMORY_PAGES * 3 / 8);
                let mut scans: Vec<FileScan> = (0..scans)
                    .map(|_| FileScan::new(files, turns * PAGE_BYTES, step_bytes))
                    .collect();
                let mut turn = |draw: &mut SeededRng, list: &mut Vec<GivenRead>| {
                    list.push(hot.next(draw));
                    scans.iter_mut().for_each(|scan| scan.append_steps(PAGE_BYTES, list));
                };
                vec![collect_turns(turns, draw, &mut turn)]
            }
            ReadLoad::Zipf => {
                let mut hot = ZipfPages::new(files, draw, 4 * MEMORY_PAGES);
                let mut scan = FileScan::new(files, turns * PAGE_BYTES, 64 * KIB);
                let mut turn = |_: &mut SeededRng, list: &mut Vec<GivenRead>| {
                    list.push(hot.next());
                    scan.append_steps(PAGE_BYTES / 3, list);
                };
                vec![collect_turns(turns, draw, &mut turn)]
            }
            ReadLoad::Loop { percent } => {
                let mut round = FileScan::new(files, MEMORY_BYTES * percent / 100, 64 * KIB);
                let mut list = Vec::new();
                round.append_steps(2 * turns * PAGE_BYTES, &mut list);
                vec![list]
            }
            ReadLoad::Phases => {
                let phase_reads = turns / 6;
                let mut list = Vec::new();
                for _ in 0..2 {
                    let [mut first_set, mut second_set] =
                        [2, 3].map(|times| ZipfPages::new(files, draw, times * MEMORY_PAGES));
                    list.extend((0..phase_reads).map(|_| first_set.next()));
                    let blocks = MEMORY_PAGES * draw.between(11, 16) / 10;
                    FileScan::new(files, blocks * PAGE_BYTES, 16 * KIB)
                        .append_steps(4 * phase_reads * PAGE_BYTES, &mut list);
                    list.extend((0..phase_reads).map(|_| second_set.next()));
                }
                vec![list]
            }
            ReadLoad::Tenants => {
                let mut hot = ZipfPages::new(files, draw, 2 * MEMORY_PAGES);
                let tenths = draw.between(6, 9);
                let mut round = FileScan::new(files, MEMORY_BYTES * tenths / 10, 64 * KIB);
                let mut rounds = Vec::new();
                round.append_steps(turns * PAGE_BYTES, &mut rounds);
                vec![(0..turns).map(|_| hot.next()).collect(), rounds]
            }
            ReadLoad::Database => {
                let pages = 3 * MEMORY_PAGES;
                let mut index = UniformPages::new(files, MEMORY_PAGES / draw.between(6, 16));
                let mut table = ZipfPages::new(files, draw, pages);
                let mut scan = FileScan::of(table.file, pages * PAGE_BYTES, 128 * KIB);
                let mut list = Vec::new();
                for _ in 0..3 {
                    for _ in 0..turns / 6 {
                        list.extend([index.next(draw), table.next()]);
                    }
                    scan.append_steps(pages * PAGE_BYTES, &mut list);
                }
                vec![list]
            }
            ReadLoad::Follower => {
                let mut hot = UniformPages::new(files, MEMORY_PAGES / 4);
                let bytes = turns * PAGE_BYTES;
                let mut first = FileScan::new(files, bytes, 16 * KIB);
                let mut second = FileScan::of(first.file, bytes, 16 * KIB);
                let mut list = Vec::new();
                first.append_steps(MEMORY_BYTES / 4, &mut list);
                let mut turn = |draw: &mut SeededRng, list: &mut Vec<GivenRead>| {
                    list.push(hot.next(draw));
                    first.append_steps(PAGE_BYTES, list);
                    second.append_steps(PAGE_BYTES, list);
                };
                list.extend(collect_turns(turns - MEMORY_PAGES / 4, draw, &mut turn));
                vec![list]
            }
            ReadLoad::FileHeads => {
                let mut hot = UniformPages::new(files, MEMORY_PAGES / 2);
                let mut begun = Vec::new();
                for _ in 0..turns / 16 {
                    FileScan::new(files, 1024 * KIB, 16 * KIB).append_steps(48 * KIB, &mut begun);
                }
                let mut begun = begun.into_iter();
                let mut turn = |draw: &mut SeededRng, list: &mut Vec<GivenRead>| {
                    list.extend((0..4).map(|_| hot.next(draw)));
                    list.extend(begun.next());
                };
                vec![collect_turns(turns / 4, draw, &mut turn)]
            }
            ReadLoad::Streams { streams } => {
                let mut hot = UniformPages::new(files, MEMORY_PAGES * 3 / 8);
                let bytes = 2 * turns * PAGE_BYTES / streams;
                let mut scans: Vec<FileScan> =
                    (0..streams).map(|_| FileScan::new(files, bytes, 16 * KIB)).collect();
                let mut turn = |draw: &mut SeededRng, list: &mut Vec<GivenRead>| {
                    list.push(hot.next(draw));
                    let stream = draw.below(streams) as usize;
                    scans[stream].append_steps(4 * PAGE_BYTES, list);
                };
                vec![collect_turns(turns / 2, draw, &mut turn)]
            }
        }
    }
}

/// Collects the reads of `turns` turns.
fn collect_turns(
    turns: u64,
    draw: &mut SeededRng,
    turn: &mut dyn FnMut(&mut SeededRng, &mut Vec<GivenRead>),
) -> Vec<GivenRead> {
    let mut list = Vec::new();
    (0..turns).for_each(|_| turn(draw, &mut list));
    list
}

/// Files of a load.
#[derive(Default)]
struct LoadFiles(Vec<WorkloadFile>);

impl LoadFiles {
    /// Adds a file and returns its identifier.
    fn add(&mut self, bytes: u64) -> FileId {
        self.0.push(WorkloadFile { name: format!("file{}", self.0.len()), bytes });
        FileId(self.0.len() as u32 - 1)
    }
}

/// Random pages of a file with a uniform distribution.
struct UniformPages {
    file: FileId,
    pages: u64,
}

impl UniformPages {
    /// Adds a file of `pages` pages, whose pages are read with equal probability.
    fn new(files: &mut LoadFiles, pages: u64) -> UniformPages {
        UniformPages { file: files.add(pages * PAGE_BYTES), pages }
    }

    /// Draws the next read.
    fn next(&mut self, draw: &mut SeededRng) -> GivenRead {
        page(self.file, draw.below(self.pages))
    }
}

/// Random pages of a file with a Zipf distribution of exponent 0.9.
struct ZipfPages {
    file: FileId,
    skew: SkewedPositions,
}

impl ZipfPages {
    /// Adds a file of `pages` pages, whose pages are read with a Zipf distribution.
    fn new(files: &mut LoadFiles, draw: &mut SeededRng, pages: u64) -> ZipfPages {
        let policy = Distribution::Zipf { theta: 0.9, center: None };
        let skew = SkewedPositions::new(&policy, pages, draw.bits()).expect("Zipf's law is skewed");
        ZipfPages { file: files.add(pages * PAGE_BYTES), skew }
    }

    /// Draws the next read.
    fn next(&mut self) -> GivenRead {
        page(self.file, self.skew.draw())
    }
}

/// Returns the read of one page.
fn page(file: FileId, page: u64) -> GivenRead {
    GivenRead { file, offset: page * PAGE_BYTES, bytes: PAGE_BYTES }
}

/// A cyclic sequential read of a file.
struct FileScan {
    file: FileId,
    file_bytes: u64,
    step_bytes: u64,
    offset: u64,
    /// Bytes that the stream is entitled to and has not yet read.
    credit_bytes: u64,
}

impl FileScan {
    /// Adds a file of `bytes` bytes, rounded up to whole steps, and a scan over it.
    fn new(files: &mut LoadFiles, bytes: u64, step_bytes: u64) -> FileScan {
        let bytes = bytes.next_multiple_of(step_bytes);
        FileScan::of(files.add(bytes), bytes, step_bytes)
    }

    /// Creates a stream on a file, with its size rounded up to whole steps.
    fn of(file: FileId, bytes: u64, step_bytes: u64) -> FileScan {
        let file_bytes = bytes.next_multiple_of(step_bytes);
        FileScan { file, file_bytes, step_bytes, offset: 0, credit_bytes: 0 }
    }

    /// Advances the scan by `bytes` bytes: appends the whole steps that all bytes so far cover.
    fn append_steps(&mut self, bytes: u64, list: &mut Vec<GivenRead>) {
        self.credit_bytes += bytes;
        while self.credit_bytes >= self.step_bytes {
            self.credit_bytes -= self.step_bytes;
            let FileScan { file, offset, step_bytes: bytes, .. } = *self;
            list.push(GivenRead { file, offset, bytes });
            self.offset = (offset + bytes) % self.file_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With 16 KiB steps and one page per turn, every fourth turn has a read. A file of three steps
    /// ends after the third.
    #[test]
    fn file_scan_advances_in_whole_steps_and_restarts_at_the_end() {
        let mut files = LoadFiles::default();
        let mut stream = FileScan::new(&mut files, 48 * KIB, 16 * KIB);
        let counts: Vec<Vec<u64>> = (0..16)
            .map(|_| {
                let mut list = Vec::new();
                stream.append_steps(PAGE_BYTES, &mut list);
                list.iter().map(|reading| reading.offset / KIB).collect()
            })
            .collect();
        assert_eq!(counts.concat(), [0, 16, 32, 0]);
        assert!(counts[3] == [0] && counts[4].is_empty());
    }

    #[test]
    fn every_read_is_within_its_file() {
        for &(name, reads) in READS {
            let mut files = LoadFiles::default();
            let lists = reads.lists(&mut files, &mut SeededRng::new(1), READS_OUTSIDE_SCANS_MIN);
            for reading in lists.concat() {
                let file = &files.0[reading.file.0 as usize];
                assert!(reading.offset + reading.bytes <= file.bytes, "{name}: {reading:?}");
            }
            assert!(
                lists.iter().all(|list| list.len() as u64 >= READS_OUTSIDE_SCANS_MIN / 16),
                "{name}"
            );
        }
    }
}
