//! Files that another process overwrites, truncates and extends while they are read, for each
//! option of [`Coherence`].

mod support;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use readpath::{Coherence, File, ReadPath};
use support::child::Child;
use support::*;

const PAGE: usize = 4096;
const PAGES: usize = 16;

fn path(coherence: Coherence) -> ReadPath {
    own_cache().kernel_cache(false).readahead("none").coherence(coherence).build().unwrap()
}

/// A file filled with `byte`.
fn filled(byte: u8) -> TempFile {
    let temp = TempFile::new(0);
    std::fs::write(&temp.path, vec![byte; PAGES * PAGE]).unwrap();
    temp
}

/// Runs `act` on the file in another process. First waits until the clock of file time stamps has
/// advanced.
fn by_another(name: &Path, act: impl Fn(&std::fs::File)) {
    std::thread::sleep(Duration::from_millis(25));
    let written = std::fs::File::options().write(true).open(name).unwrap();
    let child = Child::forked(&|| {
        act(&written);
        true
    });
    assert_eq!(child.code(), 0);
}

/// First byte at `offset`, by every kind of read.
fn bytes_in_every_way(path: &ReadPath, file: &File, offset: u64) -> Vec<u8> {
    use std::io::{BufRead, IoSliceMut, Read, Seek, SeekFrom};
    let mut byte = [0];
    let mut bytes = vec![];
    file.read_exact_at(&mut byte, offset).unwrap();
    bytes.push(byte[0]);
    file.read_vectored_at(&mut [IoSliceMut::new(&mut byte)], offset).unwrap();
    bytes.push(byte[0]);
    bytes.push(file.page(offset).unwrap()[0]);
    bytes.push(pollster::block_on(file.read_at_async(vec![0], offset)).1[0]);
    let mut batch = path.batch();
    batch.read(file, offset, 1, 0).unwrap();
    batch.wait().unwrap().expect("one is under way").copy_to(&mut byte).unwrap();
    bytes.push(byte[0]);
    let mut reader = file.reader();
    reader.seek(SeekFrom::Start(offset)).unwrap();
    bytes.push(reader.fill_buf().unwrap()[0]);
    reader.read_exact(&mut byte).unwrap();
    bytes.push(byte[0]);
    bytes
}

#[test]
fn each_read_coherence_shows_earlier_writes_and_length_changes() {
    let temp = filled(1);
    let path = path(Coherence::EachRead);
    let file = path.open(&temp.path).unwrap();
    let mut all = vec![0; 2 * PAGES * PAGE];
    for round in 2..6 {
        assert_eq!(file.read_at(&mut all, 0).unwrap(), PAGES * PAGE);
        assert!(all[..PAGES * PAGE].iter().all(|&byte| byte == round - 1));
        by_another(&temp.path, |written| {
            written.write_all_at(&vec![round; PAGES * PAGE], 0).unwrap();
        });
        assert_eq!(bytes_in_every_way(&path, &file, 5 * PAGE as u64), [round; 7]);
        by_another(&temp.path, |written| written.set_len(5_000).unwrap());
        assert_eq!(file.read_at(&mut all, 4_000).unwrap(), 1_000);
        assert_eq!((file.len(), file.page(5_000).unwrap().len()), (5_000, 0));
        by_another(&temp.path, |written| {
            written.write_all_at(&vec![round; PAGES * PAGE - 5_000], 5_000).unwrap();
        });
        assert_eq!(file.read_at(&mut all, 60_000).unwrap(), PAGES * PAGE - 60_000);
        assert_eq!(file.len(), (PAGES * PAGE) as u64);
    }
    assert!(file.stats().bytes > 4 * (PAGES * PAGE) as u64, "what every state has read");
}

/// Two batches of 20 reads of 500 bytes start before they are waited for, and the file is replaced
/// in between.
#[test]
fn batch_reads_of_a_replaced_version_count_in_the_statistics() {
    let temp = filled(1);
    let path = path(Coherence::EachRead);
    let file = path.open(&temp.path).unwrap();
    let mut batch = path.batch();
    for round in 0..2 {
        for number in 0..20 {
            batch.read(&file, number * 500, 500, number).unwrap();
        }
        by_another(&temp.path, |written| written.write_all_at(&[2 + round], 0).unwrap());
        if round == 0 {
            file.read_exact_at(&mut [0], 0).unwrap();
        }
    }
    while let Some(read) = batch.wait().unwrap() {
        assert_eq!(read.slices().unwrap().map(<[u8]>::len).sum::<usize>(), 500);
    }
    // The one byte was read between the batches.
    assert_eq!(file.stats().bytes, 2 * 20 * 500 + 1);
}

/// A continuous writer: each read returns at least the version published before it.
#[test]
fn each_read_coherence_follows_a_continuous_writer() {
    let temp = filled(0);
    let written_version = Shared::new();
    let name = &temp.path;
    let writer = Child::forked(&|| {
        let written = std::fs::File::options().write(true).open(name).unwrap();
        for version in 1..=400u64 {
            written.write_all_at(&version.to_le_bytes().repeat(PAGES * PAGE / 8), 0).unwrap();
            written_version.word().store(version, Ordering::Release);
            // The clock of file time stamps has a tick of 1 to 10 ms.
            std::thread::sleep(Duration::from_micros(version * 37 % 5_000));
        }
        true
    });
    let file = path(Coherence::EachRead).open(name).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (file, written_version) = (&file, &written_version);
            scope.spawn(move || {
                let (mut seed, mut bytes) = (thread, [0; 8]);
                while written_version.word().load(Ordering::Acquire) < 400 {
                    let least = written_version.word().load(Ordering::Acquire);
                    let place = splitmix(&mut seed) % (PAGES * PAGE / 8) as u64 * 8;
                    file.read_exact_at(&mut bytes, place).unwrap();
                    let version = u64::from_le_bytes(bytes);
                    assert!(version >= least, "{version} after {least} was written");
                }
            });
        }
    });
    assert_eq!(writer.code(), 0);
}

/// A hit returns cached bytes; a read that misses a page returns no byte older than the change.
#[test]
fn each_miss_coherence_returns_no_byte_older_than_the_change() {
    let temp = filled(1);
    let file = path(Coherence::EachMiss).open(&temp.path).unwrap();
    let (mut one, mut two) = (vec![0; PAGE], vec![0; 2 * PAGE]);
    file.read_exact_at(&mut one, 0).unwrap();
    by_another(&temp.path, |written| written.write_all_at(&[2; PAGES * PAGE], 0).unwrap());
    file.read_exact_at(&mut one, 0).unwrap();
    assert_eq!(one, [1; PAGE], "a hit is not looked at");
    file.read_exact_at(&mut two, 0).unwrap();
    assert_eq!(two, [2; 2 * PAGE]);
    file.read_exact_at(&mut one, 0).unwrap();
    assert_eq!(one, [2; PAGE]);
}

/// The documented default: cached bytes stay as they were, other bytes are as they are.
#[test]
fn default_coherence_keeps_cached_bytes_until_revalidation() {
    let temp = filled(1);
    let mut file = path(Coherence::WhenOpened).open(&temp.path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    by_another(&temp.path, |written| written.write_all_at(&[2; PAGES * PAGE], 0).unwrap());
    let mut got = [0; 2];
    for (place, got) in [0, PAGE as u64].into_iter().zip(&mut got) {
        file.read_exact_at(&mut byte, place).unwrap();
        *got = byte[0];
    }
    assert_eq!(got, [1, 2]);
    assert!(file.revalidate().unwrap());
    file.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [2]);
}

/// Checks cost no cached page as long as the file does not change.
#[test]
fn unchanged_file_is_read_from_the_device_once() {
    let temp = filled(1);
    // Resident pages would be read from the kernel page cache.
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    std::thread::sleep(Duration::from_millis(2_100));
    for coherence in [Coherence::EachMiss, Coherence::EachRead] {
        let path = path(coherence);
        let file = path.open(&temp.path).unwrap();
        for _ in 0..3 {
            file.read_exact_at(&mut vec![0; PAGES * PAGE], 0).unwrap();
        }
        assert_eq!(path.stats().device_bytes, (PAGES * PAGE) as u64, "{coherence:?}");
        assert_eq!(file.stats().cached_bytes, 2 * (PAGES * PAGE) as u64);
    }
}

/// Pages of an unreachable version give way to the present one: there is room for one version and
/// an eighth, and no eviction is needed.
#[test]
fn pages_of_an_older_version_are_replaced_first() {
    const CACHED: usize = 256;
    let temp = TempFile::new(0);
    std::fs::write(&temp.path, vec![1; CACHED * PAGE]).unwrap();
    // The version at opening is read. It would not be recognised for a file written just now.
    std::thread::sleep(Duration::from_millis(2_100));
    let path = ReadPath::builder()
        .kernel_cache(false)
        .readahead("none")
        .memory((CACHED / 8 * 9 * PAGE) as u64)
        .coherence(Coherence::EachRead)
        .build()
        .unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut all = vec![0; CACHED * PAGE];
    for round in 1..4 {
        file.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(all, vec![round; CACHED * PAGE]);
        by_another(&temp.path, |written| {
            written.write_all_at(&vec![round + 1; CACHED * PAGE], 0).unwrap();
        });
    }
    assert_eq!(path.stats().device_bytes, (3 * CACHED * PAGE) as u64);
    assert_eq!(path.stats().evicted_bytes, 0);
    assert_eq!(file.stats().bytes, (3 * CACHED * PAGE) as u64, "of each state its own");
}

/// A word shared by this process and its children.
struct Shared(*mut AtomicU64);

// SAFETY: an atomic word in a mapping that lives as long as this value.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Shared {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
        assert!(page != libc::MAP_FAILED);
        Shared(page.cast())
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: mapped, aligned, and initially zero.
        unsafe { &*self.0 }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(self.0.cast(), PAGE) };
    }
}
