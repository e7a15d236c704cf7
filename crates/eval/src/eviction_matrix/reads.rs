//! File reads through the whole simulation that can profit from a cache.
//!
//! Memory is 16 MiB. Most loads are one process that reads several files in rotation, so the order
//! of its reads is the same under any policy. A *turn* is one repetition of its work: usually one
//! read in a hot set, and a part of each scan. The amount read from each file per turn is a fixed
//! share in bytes, with the remainder carried over to the next turn. The other loads are concurrent
//! processes, each at its own speed. The sizes, ratios and ranges of all loads are chosen.

use readpath_core::unit::PAGE_BYTES;

use super::LoadSize;
use readpath_models::random::SeededRng;
use readpath_sim::job::{Distribution, JobEngine};
use readpath_sim::workload::{
    FileId, GivenRead, ReadList, SkewedPositions, Workload, WorkloadFile,
};

/// Memory of the page cache, 16 MiB. Chosen, not measured.
pub(super) const MEMORY_BYTES: u64 = 4096 * PAGE_BYTES;

/// [`MEMORY_BYTES`] in pages.
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

/// The loads by name. `scans` takes the step in bytes and the number of scans.
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

/// Work of a whole load: in most loads about the number of reads that do not belong to a scan.
/// Phases have two thirds as many, streams half as many, and a loop has only a scan. Chosen, not
/// measured.
const READS_OUTSIDE_SCANS: u64 = 40_000;
/// Minimum of that number for a shortened load. It is twice the pages of a quarter of the memory,
/// the lead of the first reader in [`reader_and_follower`], which needs more turns than that.
const READS_OUTSIDE_SCANS_MIN: u64 = 2048;

impl ReadLoad {
    /// Returns the workload: the files, and for each process its cached reads, one at a time. The
    /// `part` of the size divides the work.
    pub(super) fn workload(self, size: LoadSize) -> Workload {
        let mut rng = SeededRng::new(size.seed);
        let mut files = LoadFiles::default();
        let turns = (READS_OUTSIDE_SCANS / size.part).max(READS_OUTSIDE_SCANS_MIN);
        let lists = self.reads_of_processes(&mut files, &mut rng, turns);
        let list_of = |reads| ReadList {
            engine: JobEngine::Psync,
            is_direct: false,
            depth: 1,
            reads,
            think_times: Vec::new(),
        };
        Workload::from_lists(files.0, lists.into_iter().map(list_of).collect())
    }

    /// Returns the reads of each process. `turns` is the amount of work, as in
    /// [`READS_OUTSIDE_SCANS`]. Adds the files to `files`.
    fn reads_of_processes(
        self,
        files: &mut LoadFiles,
        rng: &mut SeededRng,
        turns: u64,
    ) -> Vec<Vec<GivenRead>> {
        match self {
            ReadLoad::Scans { step_bytes, scans } => {
                vec![hot_set_and_scans(files, rng, turns, step_bytes, scans)]
            }
            ReadLoad::Zipf => {
                let mut hot = ZipfPages::new(files, rng, 4 * MEMORY_PAGES);
                let mut scan = FileScan::new(files, turns * PAGE_BYTES, 64 * KIB);
                let mut append_turn = |_: &mut SeededRng, reads: &mut Vec<GivenRead>| {
                    reads.push(hot.draw_read());
                    scan.append_steps(PAGE_BYTES / 3, reads);
                };
                vec![collect_turns(turns, rng, &mut append_turn)]
            }
            ReadLoad::Loop { percent } => {
                let mut scan = FileScan::new(files, MEMORY_BYTES * percent / 100, 64 * KIB);
                let mut reads = Vec::new();
                // The bytes of the hot set and of one scan, as in `Scans`.
                scan.append_steps(2 * turns * PAGE_BYTES, &mut reads);
                vec![reads]
            }
            ReadLoad::Phases => vec![zipf_sets_and_loops(files, rng, turns)],
            ReadLoad::Tenants => {
                let mut hot = ZipfPages::new(files, rng, 2 * MEMORY_PAGES);
                let tenths = rng.between(6, 9);
                let mut scan = FileScan::new(files, MEMORY_BYTES * tenths / 10, 64 * KIB);
                let mut scan_reads = Vec::new();
                scan.append_steps(turns * PAGE_BYTES, &mut scan_reads);
                vec![(0..turns).map(|_| hot.draw_read()).collect(), scan_reads]
            }
            ReadLoad::Database => vec![index_and_table(files, rng, turns)],
            ReadLoad::Follower => vec![reader_and_follower(files, rng, turns)],
            ReadLoad::FileHeads => vec![hot_set_and_file_heads(files, rng, turns)],
            ReadLoad::Streams { streams } => {
                vec![hot_set_and_streams(files, rng, turns, streams)]
            }
        }
    }
}

/// Reads of a hot set, and of `scans` scans in steps of `step_bytes`.
fn hot_set_and_scans(
    files: &mut LoadFiles,
    rng: &mut SeededRng,
    turns: u64,
    step_bytes: u64,
    scans: u64,
) -> Vec<GivenRead> {
    let mut hot = UniformPages::new(files, MEMORY_PAGES * 3 / 8);
    let mut scans: Vec<FileScan> =
        (0..scans).map(|_| FileScan::new(files, turns * PAGE_BYTES, step_bytes)).collect();
    let mut append_turn = |rng: &mut SeededRng, reads: &mut Vec<GivenRead>| {
        reads.push(hot.draw_read(rng));
        scans.iter_mut().for_each(|scan| scan.append_steps(PAGE_BYTES, reads));
    };
    collect_turns(turns, rng, &mut append_turn)
}

/// Reads with a Zipf distribution, of a loop, and with another Zipf distribution, twice. All six
/// phases have the same number of reads: pages of a Zipf phase, and steps of 16 KiB of a loop. The
/// files of the Zipf phases are two and three times as large as the memory, and the file of a loop
/// 1.1 to 1.6 times. In a full load, a loop reads its file four to six times.
fn zipf_sets_and_loops(files: &mut LoadFiles, rng: &mut SeededRng, turns: u64) -> Vec<GivenRead> {
    const STEP_BYTES: u64 = 16 * KIB;
    let phase_reads = turns / 6;
    let mut reads = Vec::new();
    for _ in 0..2 {
        let [mut first_set, mut second_set] =
            [2, 3].map(|times| ZipfPages::new(files, rng, times * MEMORY_PAGES));
        reads.extend((0..phase_reads).map(|_| first_set.draw_read()));
        let loop_file_pages = MEMORY_PAGES * rng.between(11, 16) / 10;
        let mut loop_scan = FileScan::new(files, loop_file_pages * PAGE_BYTES, STEP_BYTES);
        loop_scan.append_steps(phase_reads * STEP_BYTES, &mut reads);
        reads.extend((0..phase_reads).map(|_| second_set.draw_read()));
    }
    reads
}

/// Random reads of an index and a table in rotation, with three scans of the table: one after each
/// third of the random reads.
fn index_and_table(files: &mut LoadFiles, rng: &mut SeededRng, turns: u64) -> Vec<GivenRead> {
    let pages = 3 * MEMORY_PAGES;
    let mut index = UniformPages::new(files, MEMORY_PAGES / rng.between(6, 16));
    let mut table = ZipfPages::new(files, rng, pages);
    let mut scan = FileScan::over_file(table.file, pages * PAGE_BYTES, 128 * KIB);
    let mut reads = Vec::new();
    for _ in 0..3 {
        for _ in 0..turns / 6 {
            reads.extend([index.draw_read(rng), table.draw_read()]);
        }
        scan.append_steps(pages * PAGE_BYTES, &mut reads);
    }
    reads
}

/// Reads of a hot set, and of one file by two readers at a distance of a quarter of the memory.
fn reader_and_follower(files: &mut LoadFiles, rng: &mut SeededRng, turns: u64) -> Vec<GivenRead> {
    let mut hot = UniformPages::new(files, MEMORY_PAGES / 4);
    let bytes = turns * PAGE_BYTES;
    let mut first = FileScan::new(files, bytes, 16 * KIB);
    let mut second = FileScan::over_file(first.file, bytes, 16 * KIB);
    let mut reads = Vec::new();
    first.append_steps(MEMORY_BYTES / 4, &mut reads);
    let mut append_turn = |rng: &mut SeededRng, reads: &mut Vec<GivenRead>| {
        reads.push(hot.draw_read(rng));
        first.append_steps(PAGE_BYTES, reads);
        second.append_steps(PAGE_BYTES, reads);
    };
    // The first reader has read a quarter of the memory already, and ends with its file.
    reads.extend(collect_turns(turns - MEMORY_PAGES / 4, rng, &mut append_turn));
    reads
}

/// Reads of a hot set, and of the first 48 KiB of many files. After every four reads of the hot set
/// follows one of three steps of 16 KiB of a file. The last quarter of the turns has no file left.
fn hot_set_and_file_heads(
    files: &mut LoadFiles,
    rng: &mut SeededRng,
    turns: u64,
) -> Vec<GivenRead> {
    let mut hot = UniformPages::new(files, MEMORY_PAGES / 2);
    let mut heads = Vec::new();
    for _ in 0..turns / 16 {
        FileScan::new(files, 1024 * KIB, 16 * KIB).append_steps(48 * KIB, &mut heads);
    }
    let mut heads = heads.into_iter();
    let mut append_turn = |rng: &mut SeededRng, reads: &mut Vec<GivenRead>| {
        reads.extend((0..4).map(|_| hot.draw_read(rng)));
        reads.extend(heads.next());
    };
    collect_turns(turns / 4, rng, &mut append_turn)
}

/// Reads of a hot set, and of `streams` sequential streams in random rotation. Each turn has one
/// read of the hot set and one step of 16 KiB of a random stream. A stream has on average as many
/// steps as its file, and restarts at the end of the file.
fn hot_set_and_streams(
    files: &mut LoadFiles,
    rng: &mut SeededRng,
    turns: u64,
    streams: u64,
) -> Vec<GivenRead> {
    let mut hot = UniformPages::new(files, MEMORY_PAGES * 3 / 8);
    let bytes = 2 * turns * PAGE_BYTES / streams;
    let mut scans: Vec<FileScan> =
        (0..streams).map(|_| FileScan::new(files, bytes, 16 * KIB)).collect();
    let mut append_turn = |rng: &mut SeededRng, reads: &mut Vec<GivenRead>| {
        reads.push(hot.draw_read(rng));
        let stream = rng.below(streams) as usize;
        scans[stream].append_steps(4 * PAGE_BYTES, reads);
    };
    collect_turns(turns / 2, rng, &mut append_turn)
}

/// Collects the reads of `turns` turns. `append_turn` appends the reads of one turn to its
/// argument.
fn collect_turns(
    turns: u64,
    rng: &mut SeededRng,
    append_turn: &mut dyn FnMut(&mut SeededRng, &mut Vec<GivenRead>),
) -> Vec<GivenRead> {
    let mut reads = Vec::new();
    (0..turns).for_each(|_| append_turn(rng, &mut reads));
    reads
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
    /// The file to read.
    file: FileId,
    /// Length of the file in pages.
    pages: u64,
}

impl UniformPages {
    /// Adds a file of `pages` pages, whose pages are read with equal probability.
    fn new(files: &mut LoadFiles, pages: u64) -> UniformPages {
        UniformPages { file: files.add(pages * PAGE_BYTES), pages }
    }

    /// Draws the next read.
    fn draw_read(&mut self, rng: &mut SeededRng) -> GivenRead {
        page_read(self.file, rng.below(self.pages))
    }
}

/// Random pages of a file with a Zipf distribution of exponent 0.9.
struct ZipfPages {
    /// The file to read.
    file: FileId,
    /// Generator of the page numbers.
    skew: SkewedPositions,
}

impl ZipfPages {
    /// Adds a file of `pages` pages, whose pages are read with a Zipf distribution.
    fn new(files: &mut LoadFiles, rng: &mut SeededRng, pages: u64) -> ZipfPages {
        // Without a centre, the frequent pages are scattered over the file.
        let distribution = Distribution::Zipf { theta: 0.9, center: None };
        let skew =
            SkewedPositions::new(&distribution, pages, rng.bits()).expect("Zipf's law is skewed");
        ZipfPages { file: files.add(pages * PAGE_BYTES), skew }
    }

    /// Draws the next read.
    fn draw_read(&mut self) -> GivenRead {
        page_read(self.file, self.skew.draw())
    }
}

/// Returns the read of one page.
fn page_read(file: FileId, page: u64) -> GivenRead {
    GivenRead { file, offset: page * PAGE_BYTES, bytes: PAGE_BYTES }
}

/// A cyclic sequential read of a file.
struct FileScan {
    /// The file to read.
    file: FileId,
    /// Length of the scanned part of the file, whole steps. The scan restarts at its end.
    file_bytes: u64,
    /// Size of each read.
    step_bytes: u64,
    /// Offset of the next read.
    offset: u64,
    /// Bytes of the advance so far that are not read yet, less than a step.
    unread_bytes: u64,
}

impl FileScan {
    /// Adds a file of `bytes` bytes, rounded up to whole steps, and a scan over it.
    fn new(files: &mut LoadFiles, bytes: u64, step_bytes: u64) -> FileScan {
        let bytes = bytes.next_multiple_of(step_bytes);
        FileScan::over_file(files.add(bytes), bytes, step_bytes)
    }

    /// Creates a scan over an existing file, with its size rounded up to whole steps.
    fn over_file(file: FileId, bytes: u64, step_bytes: u64) -> FileScan {
        let file_bytes = bytes.next_multiple_of(step_bytes);
        FileScan { file, file_bytes, step_bytes, offset: 0, unread_bytes: 0 }
    }

    /// Advances the scan by `bytes` bytes: appends the whole steps that all bytes so far cover.
    fn append_steps(&mut self, bytes: u64, reads: &mut Vec<GivenRead>) {
        self.unread_bytes += bytes;
        while self.unread_bytes >= self.step_bytes {
            self.unread_bytes -= self.step_bytes;
            let FileScan { file, offset, step_bytes: bytes, .. } = *self;
            reads.push(GivenRead { file, offset, bytes });
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
        let mut scan = FileScan::new(&mut files, 48 * KIB, 16 * KIB);
        let kib_offsets: Vec<Vec<u64>> = (0..16)
            .map(|_| {
                let mut reads = Vec::new();
                scan.append_steps(PAGE_BYTES, &mut reads);
                reads.iter().map(|read| read.offset / KIB).collect()
            })
            .collect();
        assert_eq!(kib_offsets.concat(), [0, 16, 32, 0]);
        assert!(kib_offsets[3] == [0] && kib_offsets[4].is_empty());
    }

    /// A shortened load still has at least a sixteenth of its turns as reads in each process.
    #[test]
    fn every_read_is_within_its_file() {
        for &(name, reads) in READS {
            let mut files = LoadFiles::default();
            let (mut rng, turns) = (SeededRng::new(1), READS_OUTSIDE_SCANS_MIN);
            let lists = reads.reads_of_processes(&mut files, &mut rng, turns);
            for read in lists.concat() {
                let file = &files.0[read.file.0 as usize];
                assert!(read.offset + read.bytes <= file.bytes, "{name}: {read:?}");
            }
            assert!(
                lists.iter().all(|reads| reads.len() as u64 >= READS_OUTSIDE_SCANS_MIN / 16),
                "{name}"
            );
        }
    }
}
