//! Every baseline makes the same accesses and reads the file's bytes. The expected sums are
//! computed from the bytes in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use readpath_core::splitmix;
use readpath_eval::access_patterns::batches::RingReads;
use readpath_eval::access_patterns::formats::{FileFormat, Ranges};
use readpath_eval::access_patterns::positional_reads::{
    AccessOrder, AccessPattern, ByteUse, PatternReads,
};
use readpath_eval::access_patterns::streams::{Blocks, Copied};
use readpath_eval::access_patterns::whole_files::{FILE_BYTES_MAX, WholeFiles, lengths};
use readpath_eval::access_patterns::{Accesses, Baseline, Checksum};

const MIB: u64 = 1 << 20;

/// A folder on a disk with files of pseudo-random bytes, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("everyday-{name}-{}", std::process::id());
        let scratch = Scratch(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        fs::create_dir(&scratch.0).unwrap();
        scratch
    }

    fn file(&self, name: &str, bytes: u64, seed: u64) -> (PathBuf, Vec<u8>) {
        let mut state = seed;
        let content: Vec<u8> = (0..bytes).map(|_| splitmix::next(&mut state) as u8).collect();
        fs::write(self.0.join(name), &content).unwrap();
        (self.0.join(name), content)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checksum of two passes, which must be equal. `None` where the file system does not support
/// direct I/O.
fn sum(peer: Baseline, accesses: std::io::Result<impl Accesses>) -> Option<Checksum> {
    let mut accesses = match accesses {
        Err(error) if peer == Baseline::Direct && error.raw_os_error() == Some(22) => {
            println!("skipped: no O_DIRECT here");
            return None;
        }
        accesses => accesses.unwrap(),
    };
    let first = accesses.pass().unwrap();
    assert_eq!(accesses.pass().unwrap(), first, "{peer:?}: the second pass");
    Some(first)
}

fn expected(content: &[u8], ranges: impl Iterator<Item = (u64, u64)>, has_ends: bool) -> Checksum {
    let mut sum = Checksum::default();
    for (offset, bytes) in ranges {
        let bytes = &content[offset as usize..(offset + bytes) as usize];
        sum.add(offset, bytes);
        if has_ends {
            sum.add_ends(offset, bytes);
        }
    }
    assert_ne!(sum, Checksum::default());
    sum
}

fn hold(wanted: Checksum, mut by: impl FnMut(Baseline) -> Option<Checksum>, what: &str) {
    for peer in Baseline::ALL {
        if let Some(found) = by(peer) {
            assert_eq!(found, wanted, "{what} by {peer:?}");
        }
    }
}

#[test]
fn baselines_read_the_same_bytes_at_given_offsets() {
    let scratch = Scratch::new("places");
    let (path, content) = scratch.file("data", MIB, 1);
    let stride = AccessOrder::Stride { step_bytes: 65_536 };
    for places in [
        AccessPattern::all(AccessOrder::Forward, MIB, 4096),
        AccessPattern::all(AccessOrder::Forward, MIB, MIB),
        AccessPattern::all(AccessOrder::Backward, MIB, 65_536),
        AccessPattern::all(stride, MIB, 8192),
        AccessPattern::random(MIB, 16_384, 64, 8),
        AccessPattern::random(MIB, 8, 64, 1),
    ] {
        let all = (0..places.threads).flat_map(|thread| places.of_thread(thread));
        let wanted = expected(&content, all.map(|at| (at, places.read_bytes)), false);
        for taking in [ByteUse::Copied, ByteUse::InPlace] {
            let by = |peer: Baseline| {
                // SAFETY: the file does not change.
                let file = unsafe { peer.open(&path) };
                sum(peer, file.map(|file| PatternReads::over(Arc::from(file), places, taking)))
            };
            hold(wanted, by, &format!("{places:?} {taking:?}"));
        }
    }
}

#[test]
fn baseline_streams_return_the_whole_file() {
    let scratch = Scratch::new("streams");
    // The length is not a multiple of the page size.
    let (path, content) = scratch.file("data", MIB + 5000, 2);
    let wanted = expected(&content, [(0, MIB + 5000)].into_iter(), false);
    for bytes in [4096, 65_536, 2 * MIB] {
        // SAFETY: the file does not change.
        let stream = |peer: Baseline| unsafe { peer.open_stream(&path) };
        let by = |peer| sum(peer, stream(peer).map(|stream| Blocks::over(stream, bytes)));
        hold(wanted, by, &format!("blocks of {bytes}"));
        hold(wanted, |peer| sum(peer, stream(peer).map(Copied::over)), "io::copy");
    }
}

#[test]
fn baselines_read_the_same_format_ranges() {
    let scratch = Scratch::new("formats");
    let (path, content) = scratch.file("data", 4 * MIB, 3);
    for format in FileFormat::ALL {
        let ranges = format.ranges(4 * MIB);
        let wanted = expected(&content, ranges.iter().copied(), true);
        let by = |peer: Baseline| {
            // SAFETY: the file does not change.
            let stream = unsafe { peer.open_stream(&path) };
            sum(peer, stream.map(|stream| Ranges::over(stream, ranges.clone())))
        };
        hold(wanted, by, format.name());
    }
}

#[test]
fn baselines_read_small_files_whole_with_any_thread_count() {
    let scratch = Scratch::new("files");
    let mut paths = Vec::new();
    let mut wanted = Checksum::default();
    for (number, bytes) in lengths(20).enumerate() {
        let (path, content) = scratch.file(&format!("{number}"), bytes, number as u64);
        let place = number as u64 * FILE_BYTES_MAX;
        wanted.add(place, &content);
        wanted.add_ends(place, &content);
        paths.push(path);
    }
    for threads in [1, 8] {
        let by = |peer: Baseline| {
            // SAFETY: the files do not change.
            let open = move |path: &Path| unsafe { peer.open(path) };
            // The first file shows if the way is supported.
            let files = open(&paths[0]).map(|_| paths.clone());
            sum(peer, files.map(|files| WholeFiles::over(Box::new(open), files, threads)))
        };
        hold(wanted, by, &format!("{threads} threads"));
    }
}

#[test]
fn io_uring_baseline_reads_the_same_bytes() {
    let scratch = Scratch::new("ring");
    let (path, content) = scratch.file("data", MIB, 5);
    let places = AccessPattern::random(MIB, 4096, 200, 1);
    let wanted = expected(&content, places.of_thread(0).map(|at| (at, 4096)), false);
    for is_direct in [false, true] {
        match RingReads::open(&path, places, 32, is_direct) {
            Ok(mut ring) => assert_eq!(ring.pass().unwrap(), wanted),
            Err(error) => println!("skipped: {error}"),
        }
    }
}
