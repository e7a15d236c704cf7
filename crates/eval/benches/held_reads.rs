//! Cost of small calls without I/O: an open, and reads of cached bytes, compared with `open(2)` and
//! `pread(2)`.
//!
//! `cargo bench -p readpath-eval --bench held_reads [-- PART OF A NAME]`. Without `--bench`, as in
//! the tests, each runs once.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divan::{Bencher, black_box};
use readpath::{Coherence, File, ReadPath};

/// File size in bytes. The whole file is cached by the kernel and by the path.
const FILE_BYTES: u64 = 1 << 20;
const SIZES: [usize; 2] = [4 << 10, 64 << 10];

fn main() {
    divan::main();
}

/// A file that is removed on drop.
struct Held(PathBuf);

impl Held {
    fn new(name: &str) -> Held {
        let name = format!("readpath-held-{name}-{}", std::process::id());
        // The temporary folder may be in memory, this one is on a disk.
        let held = Held(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        fs::write(&held.0, vec![7; FILE_BYTES as usize]).expect("there is room for a file");
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Reads consecutive blocks of one size, all read before.
fn read(bencher: Bencher, bytes: usize, read: impl Fn(&mut [u8], u64)) {
    let mut buffer = vec![0; bytes];
    let mut places = (0..FILE_BYTES).step_by(bytes).cycle();
    (0..FILE_BYTES).step_by(bytes).for_each(|place| read(&mut buffer, place));
    bencher.bench_local(|| {
        let place = places.next().expect("it is a cycle");
        read(black_box(&mut buffer), black_box(place));
    });
}

fn read_through(bencher: Bencher, bytes: usize, path: &ReadPath, held: &Held) {
    let file = path.open(&held.0).expect("it was written just now");
    read(bencher, bytes, |buffer, place| file.read_exact_at(buffer, place).expect("it is held"));
}

/// A path that bypasses the kernel page cache, so that its reads come from its own memory.
fn with_memory(coherence: Coherence) -> ReadPath {
    let builder = ReadPath::builder().memory(4 << 20).kernel_cache(false).coherence(coherence);
    builder.build().expect("a path can be built")
}

#[divan::bench(args = SIZES, sample_size = 100)]
fn pread(bencher: Bencher, bytes: usize) {
    let held = Held::new("pread");
    let file = fs::File::open(&held.0).expect("it was written just now");
    read(bencher, bytes, |buffer, place| file.read_exact_at(buffer, place).expect("it is held"));
}

#[divan::bench(args = SIZES, sample_size = 100)]
fn nothing_set(bencher: Bencher, bytes: usize) {
    let path = ReadPath::builder().build().expect("a path can be built");
    read_through(bencher, bytes, &path, &Held::new("kernel"));
}

#[divan::bench(args = SIZES, sample_size = 100)]
fn memory_of_its_own(bencher: Bencher, bytes: usize) {
    read_through(bencher, bytes, &with_memory(Coherence::WhenOpened), &Held::new("own"));
}

#[divan::bench(args = SIZES, sample_size = 100)]
fn memory_and_a_look_at_each_miss(bencher: Bencher, bytes: usize) {
    read_through(bencher, bytes, &with_memory(Coherence::EachMiss), &Held::new("miss"));
}

#[divan::bench(args = SIZES, sample_size = 100)]
fn memory_and_a_look_at_each_read(bencher: Bencher, bytes: usize) {
    let held = Held::new("look");
    // A recently changed file is not served from the cache under `EachRead`.
    if std::env::args().any(|word| word == "--bench") {
        std::thread::sleep(Duration::from_millis(2_500));
    }
    read_through(bencher, bytes, &with_memory(Coherence::EachRead), &held);
}

#[divan::bench(sample_size = 100)]
fn guard(bencher: Bencher) {
    let held = Held::new("guard");
    let path = with_memory(Coherence::WhenOpened);
    let file = path.open(&held.0).expect("it was written just now");
    let mut pages = (0..FILE_BYTES).step_by(4096).cycle();
    file.read_exact_at(&mut vec![0; FILE_BYTES as usize], 0).expect("it can be read");
    bencher.bench_local(|| {
        let place = pages.next().expect("it is a cycle");
        black_box(file.page(black_box(place)).expect("it is held"));
    });
}

#[divan::bench(sample_size = 100)]
fn open_of_the_kernel(bencher: Bencher) {
    let held = Held::new("open");
    bencher.bench_local(|| fs::File::open(black_box(&held.0)).expect("it was written just now"));
}

#[divan::bench(sample_size = 100)]
fn open_with_nothing_set(bencher: Bencher) {
    let held = Held::new("open-ours");
    bencher.bench_local(|| File::open(black_box(&held.0)).expect("it was written just now"));
}
