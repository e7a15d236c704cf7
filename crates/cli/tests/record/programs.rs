//! Programs with one known fault each, and two without. Each is a function that this test binary
//! runs in its own process.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// Number of threads that write.
const WRITERS: usize = 4;

/// Length of the file `data`.
pub const DATA_BYTES: u64 = 256 * MIB;

/// Number of the files `few-0` and so on, and the length of each and of the file `cached`.
pub const FEW_FILES: usize = 4;
pub const FEW_BYTES: u64 = 4 * MIB;

/// Numbers of reads of each of the few files, and of the slow file.
const FEW_READS: u64 = 60;
pub const SLOW_READS: u64 = 20;

/// Number of reads of 1 MiB without a writer. Reads next to writers follow, up to the file's end.
pub const CLEAR_READS: u64 = 64;

/// Number of times that the file `cached` is read. Its events fit into the recorder's buffers.
pub const CACHED_ROUNDS: u64 = 10;

/// Test program.
pub struct Program {
    pub name: &'static str,
    /// Entry point; the argument is the folder of the files.
    pub run: fn(&Path),
}

pub const DIRECT: Program = Program { name: "random direct reads, one at a time", run: direct };
pub const BUFFERED: Program =
    Program { name: "random buffered reads, one at a time", run: buffered };
pub const SMALL: Program = Program { name: "small direct reads in a row", run: small };
pub const SHORT_RUNS: Program = Program { name: "short runs far apart", run: short_runs };
pub const TOUCHES: Program = Program { name: "touches far apart", run: touches };
pub const SLICES: Program = Program { name: "slices of a mapping", run: slices };
pub const ADVICE: Program = Program { name: "a stream under random advice", run: advice };
pub const ROUNDS: Program = Program { name: "rounds past the page cache", run: rounds };
pub const FORGOTTEN: Program = Program { name: "rounds that are forgotten", run: forgotten };
pub const SLOW_FILE: Program = Program { name: "a slow file among fast ones", run: slow_file };
pub const AMONG_WRITES: Program = Program { name: "reads among writes", run: among_writes };
pub const STREAM: Program = Program { name: "a stream", run: stream };
pub const IN_MEMORY: Program = Program { name: "reads of what is in memory", run: in_memory };

/// All programs above and below.
pub const PROGRAMS: [Program; 19] = [
    DIRECT,
    BUFFERED,
    SMALL,
    SHORT_RUNS,
    TOUCHES,
    SLICES,
    ADVICE,
    ROUNDS,
    FORGOTTEN,
    SLOW_FILE,
    AMONG_WRITES,
    STREAM,
    IN_MEMORY,
    PIECES,
    SCATTERED,
    PIECES_OF_DATA,
    MAPPED_DATA,
    MAPPED_STEPS,
    DIRECT_STREAM,
];

/// Program that reads each piece of the slow file once, in an unpredictable order.
pub const PIECES: Program = Program { name: "pieces in disorder", run: pieces };

/// Program that reads pages of the slow file, one at a time, at unpredictable positions.
pub const SCATTERED: Program = Program { name: "scattered pages", run: scattered };

/// Number of its reads.
pub const SCATTERED_READS: u64 = 240;

const PIECE: u64 = MIB;

fn scattered(folder: &Path) {
    let file = open(&folder.join("slow/device"), 0);
    forget(&file);
    advise(&file, libc::POSIX_FADV_RANDOM);
    let memory = buffer(4 * KIB);
    let slots = file.metadata().unwrap().len() / (64 * KIB);
    for slot in random_access(slots).take(SCATTERED_READS as usize) {
        read_at(&file, memory, slot * 64 * KIB);
    }
}

/// Program that reads each piece of the file `data` once, in an unpredictable order.
pub const PIECES_OF_DATA: Program =
    Program { name: "pieces of data in disorder", run: pieces_of_data };

/// Program that maps the file `data` and touches its pages in order.
pub const MAPPED_DATA: Program =
    Program { name: "mapped data in order", run: mapped_data_in_order };

fn mapped_data_in_order(folder: &Path) {
    let memory = mapped(folder);
    (0..memory.len() as u64).step_by(4 * KIB as usize).for_each(|offset| touch(memory, offset));
}

/// Program that touches a page in each 64 KiB of the first 64 MiB of the mapped file `data`.
pub const MAPPED_STEPS: Program =
    Program { name: "a page in each step of a mapping", run: mapped_steps };

fn mapped_steps(folder: &Path) {
    let memory = mapped(folder);
    (0..64 * MIB).step_by(64 * KIB as usize).for_each(|offset| touch(memory, offset));
}

/// Program that reads the first 64 MiB of the file `data` directly, 64 KiB at a time.
pub const DIRECT_STREAM: Program = Program { name: "a direct stream", run: direct_stream };

fn direct_stream(folder: &Path) {
    let file = data(folder, libc::O_DIRECT);
    let memory = buffer(64 * KIB);
    (0..64 * MIB).step_by(64 * KIB as usize).for_each(|offset| read_at(&file, memory, offset));
}

fn pieces_of_data(folder: &Path) {
    read_pieces(&data(folder, 0));
}

fn pieces(folder: &Path) {
    read_pieces(&open(&folder.join("slow/device"), 0));
}

fn read_pieces(file: &File) {
    let mut piece = vec![0; 64 * KIB as usize];
    for slot in random_access(file.metadata().unwrap().len() / PIECE) {
        for part in 0..PIECE / (64 * KIB) {
            file.read_exact_at(&mut piece, slot * PIECE + part * 64 * KIB).unwrap();
        }
    }
}

fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap()
}

pub fn data(folder: &Path, flags: i32) -> File {
    let file = open(&folder.join("data"), flags);
    forget(&file);
    file
}

/// Drops the file's pages from the kernel page cache.
fn forget(file: &File) {
    advise(file, libc::POSIX_FADV_DONTNEED);
}

fn advise(file: &File, advice: i32) {
    // SAFETY: the descriptor is open, and advice accesses no memory.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) };
    assert_eq!(result, 0);
}

/// Buffer with the alignment of direct reads.
fn buffer(bytes: u64) -> &'static mut [u8] {
    let pages = vec![[0_u64; 512]; (bytes / 4096) as usize + 1];
    let memory: &'static mut [[u64; 512]] = pages.leak();
    // SAFETY: bytes have no invalid values, and the leaked memory has no other user.
    let (_, memory, _) = unsafe { memory.align_to_mut::<u8>() };
    let skipped = memory.as_ptr().align_offset(4096);
    &mut memory[skipped..skipped + bytes as usize]
}

/// Slots of a file, each once, in an unpredictable order. Their number is a power of two.
pub fn random_access(slots: u64) -> impl Iterator<Item = u64> {
    (0..slots).scan(1_u64, move |at, _| {
        *at = (*at * 1_664_525 + 1_013_904_223) % slots;
        Some(*at)
    })
}

fn read_at(file: &File, memory: &mut [u8], offset: u64) {
    file.read_exact_at(memory, offset).unwrap();
}

fn direct(folder: &Path) {
    let (file, memory) = (data(folder, libc::O_DIRECT), buffer(4 * KIB));
    for slot in random_access(DATA_BYTES / (4 * KIB)).take(8000) {
        read_at(&file, memory, slot * 4 * KIB);
    }
}

fn buffered(folder: &Path) {
    let (file, memory) = (data(folder, 0), buffer(16 * KIB));
    advise(&file, libc::POSIX_FADV_RANDOM);
    for slot in random_access(DATA_BYTES / (16 * KIB)).take(6000) {
        read_at(&file, memory, slot * 16 * KIB);
    }
}

fn small(folder: &Path) {
    let (file, memory) = (data(folder, libc::O_DIRECT), buffer(4 * KIB));
    (0..10_000).for_each(|at| read_at(&file, memory, at * 4 * KIB));
}

fn short_runs(folder: &Path) {
    let (file, memory) = (data(folder, 0), buffer(16 * KIB));
    for slot in random_access(DATA_BYTES / MIB) {
        (0..3).for_each(|at| read_at(&file, memory, slot * MIB + at * 16 * KIB));
    }
}

/// Maps the file `data`.
fn mapped(folder: &Path) -> &'static [u8] {
    let file = data(folder, 0);
    let length = file.metadata().unwrap().len() as usize;
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a new mapping of a file that no process writes to or cuts.
    unsafe {
        let start =
            libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0);
        assert_ne!(start, libc::MAP_FAILED);
        std::slice::from_raw_parts(start.cast(), length)
    }
}

fn touch(memory: &[u8], offset: u64) {
    std::hint::black_box(memory[offset as usize]);
}

fn touches(folder: &Path) {
    let memory = mapped(folder);
    random_access(DATA_BYTES / MIB).for_each(|slot| touch(memory, slot * MIB + 300 * KIB));
}

fn slices(folder: &Path) {
    let memory = mapped(folder);
    // SAFETY: the mapping exists, and advice does not change its bytes.
    let result =
        unsafe { libc::madvise(memory.as_ptr() as *mut _, memory.len(), libc::MADV_RANDOM) };
    assert_eq!(result, 0);
    for slot in random_access(DATA_BYTES / (64 * KIB)).take(600) {
        (0..16).for_each(|page| touch(memory, slot * 64 * KIB + page * 4 * KIB));
    }
}

fn advice(folder: &Path) {
    let (file, memory) = (data(folder, 0), buffer(16 * KIB));
    advise(&file, libc::POSIX_FADV_RANDOM);
    (0..8000).for_each(|at| read_at(&file, memory, at * 16 * KIB));
}

fn rounds(folder: &Path) {
    let (file, memory) = (data(folder, libc::O_DIRECT), buffer(MIB));
    (0..40 * 16).for_each(|at| read_at(&file, memory, at % 16 * MIB));
}

fn forgotten(folder: &Path) {
    let (file, memory) = (data(folder, 0), buffer(MIB));
    for _ in 0..8 {
        (0..64).for_each(|at| read_at(&file, memory, at * MIB));
        forget(&file);
    }
}

fn slow_file(folder: &Path) {
    let memory = buffer(4 * KIB);
    let few = (0..FEW_FILES).map(|number| (folder.join(format!("few-{number}")), FEW_READS));
    for (path, reads) in few.chain([(folder.join("slow/device"), SLOW_READS)]) {
        let file = open(&path, 0);
        forget(&file);
        advise(&file, libc::POSIX_FADV_RANDOM);
        for slot in random_access(FEW_BYTES / (4 * KIB)).take(reads as usize) {
            read_at(&file, memory, slot * 4 * KIB);
        }
    }
}

/// Reads a part of the file alone, and the rest while four threads write.
fn among_writes(folder: &Path) {
    let (file, memory) = (data(folder, libc::O_DIRECT), buffer(MIB));
    let (begin, has_ended) = (Barrier::new(WRITERS + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let (begin, has_ended) = (&begin, &has_ended);
            scope.spawn(move || {
                let mut options = OpenOptions::new();
                let options = options.write(true).create(true).custom_flags(libc::O_DIRECT);
                let file = options.open(folder.join(format!("written-{number}"))).unwrap();
                let memory = buffer(4 * MIB);
                begin.wait();
                for at in 0.. {
                    if at > 0 && has_ended.load(Ordering::Relaxed) {
                        break;
                    }
                    file.write_all_at(memory, at % 8 * 4 * MIB).unwrap();
                }
            });
        }
        for at in 0..DATA_BYTES / MIB {
            if at == CLEAR_READS {
                begin.wait();
            }
            read_at(&file, memory, at * MIB);
        }
        has_ended.store(true, Ordering::Relaxed);
    });
}

fn stream(folder: &Path) {
    let (file, memory) = (data(folder, 0), buffer(256 * KIB));
    (0..DATA_BYTES / (256 * KIB)).for_each(|at| read_at(&file, memory, at * 256 * KIB));
}

/// Reads cached pages and uses each byte. Without the use, a debug build of the recorder cannot
/// follow, and the kernel drops events.
fn in_memory(folder: &Path) {
    let (file, memory) = (open(&folder.join("cached"), 0), buffer(4 * KIB));
    for _ in 0..CACHED_ROUNDS {
        for slot in random_access(FEW_BYTES / (4 * KIB)) {
            read_at(&file, memory, slot * 4 * KIB);
            std::hint::black_box(memory.iter().map(|&byte| u64::from(byte)).sum::<u64>());
        }
    }
}
