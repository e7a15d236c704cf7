//! Elastic memory: a second pass hits the cache, a control group is never exceeded, and memory that
//! others need is returned.

mod support;

use std::fs::File as StdFile;
use std::time::{Duration, Instant};

use readpath::{BackendKind, File, Mapping, PageCache, ReadPath, Region};
use readpath_eval::kernel_swap::group::MemoryGroup;
use support::child::Child;
use support::{TempFile, own_cache};

const MIB: u64 = 1 << 20;

/// A file of zeros without blocks on its device and without pages in the kernel page cache.
fn sparse(bytes: u64) -> TempFile {
    let temp = TempFile::new(0);
    StdFile::options().write(true).open(&temp.path).unwrap().set_len(bytes).unwrap();
    temp
}

fn read_whole(file: &File) {
    let mut buffer = vec![1; MIB as usize];
    for offset in (0..file.len()).step_by(MIB as usize) {
        file.read_exact_at(&mut buffer, offset).unwrap();
    }
}

/// Runs `act` in a child in a control group of `bytes` of memory. Prints a skip message if there
/// can be none.
fn in_group(bytes: u64, act: impl Fn() -> bool) {
    let (group, _) = match MemoryGroup::new(bytes) {
        Ok(made) => made,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let child = Child::forked(&|| {
        group.add(std::process::id()).unwrap();
        act()
    });
    assert_eq!(child.code(), 0);
    assert_eq!(group.counts().oom_kills, 0);
}

#[test]
fn repeatedly_read_file_that_fits_free_memory_stays_cached() {
    let temp = sparse(400 * MIB);
    let path = own_cache().kernel_cache(false).build().unwrap();
    assert_eq!(path.stats().used_memory_bytes, 0);
    let file = path.open(&temp.path).unwrap();
    // Bytes read once get at most 256 MiB; repeated reads get as much as they need.
    read_whole(&file);
    let first = path.stats();
    assert_eq!(first.device_bytes, 400 * MIB);
    if first.memory_bytes < 256 * MIB {
        return eprintln!("skipped: this machine has {} bytes to spare", first.memory_bytes);
    }
    assert_eq!(first.memory_bytes, 256 * MIB);
    (0..3).for_each(|_| read_whole(&file));
    let before = path.stats();
    if before.memory_bytes < 400 * MIB {
        return eprintln!("skipped: this machine has {} bytes to spare", before.memory_bytes);
    }
    read_whole(&file);
    let last = path.stats();
    assert_eq!(last.device_bytes, before.device_bytes);
    assert!(last.memory_bytes >= 400 * MIB && last.used_memory_bytes <= 400 * MIB, "{last:?}");
}

#[test]
fn configured_memory_size_is_not_exceeded() {
    let temp = sparse(100 * MIB);
    let path = ReadPath::builder().memory(32 * MIB).build().unwrap();
    read_whole(&path.open(&temp.path).unwrap());
    let stats = path.stats();
    assert_eq!((stats.memory_bytes, stats.used_memory_bytes), (32 * MIB, 32 * MIB));
}

/// Reads the whole file four times in a group of two thirds of its size.
#[test]
fn elastic_memory_never_exceeds_a_small_control_group() {
    let temp = sparse(300 * MIB);
    in_group(200 * MIB, || {
        let path = own_cache().kernel_cache(false).build().unwrap();
        let file = path.open(&temp.path).unwrap();
        (0..4).for_each(|_| read_whole(&file));
        let stats = path.stats();
        // An eighth is left to others.
        stats.used_memory_bytes <= 175 * MIB && stats.used_memory_bytes >= 64 * MIB
    });
}

/// Default options: a file by reads and by a mapping. Neither causes an OOM kill.
#[test]
fn default_options_fit_into_a_small_control_group() {
    let temp = sparse(300 * MIB);
    in_group(64 * MIB, || {
        let path = ReadPath::builder().build().unwrap();
        let file = path.open(&temp.path).unwrap();
        (0..2).for_each(|_| read_whole(&file));
        // SAFETY: the file does not change.
        let mapping = unsafe { Mapping::builder().open(&temp.path) }.unwrap();
        let pages = mapping.as_slice().iter().step_by(4096);
        pages.map(|&byte| u64::from(byte)).sum::<u64>() == 0
    });
}

/// A backend, a policy or a depth is set, but no memory size. Without a page cache, memory is used
/// only by reads in flight.
#[test]
fn path_without_a_memory_size_fits_into_a_small_control_group() {
    let temp = sparse(200 * MIB);
    let builder = || own_cache();
    let paths: [&dyn Fn() -> readpath::Builder; 6] = [
        &|| builder().backend(BackendKind::Aio),
        &|| builder().backend(BackendKind::Threads),
        &|| builder().readahead("none"),
        &|| builder().depth(8),
        &|| builder().kernel_cache(false).held_memory(1 << 20),
        &|| ReadPath::builder().page_cache(PageCache::None),
    ];
    for bytes in [48 * MIB, 32 * MIB] {
        for (nth, path) in paths.into_iter().enumerate() {
            eprintln!("path {nth} in {bytes} bytes");
            in_group(bytes, || {
                let path = path().build().unwrap();
                let file = path.open(&temp.path).unwrap();
                (0..2).for_each(|_| read_whole(&file));
                // Many concurrent reads, and a large one.
                let mut batch = path.batch();
                for nth in 0..40 {
                    batch.read(&file, nth * 5 * MIB, 64 << 10, nth).unwrap();
                }
                let mut count = 0;
                while let Some(read) = batch.wait().unwrap() {
                    count += u32::from(read.bytes().is_ok());
                }
                file.read_exact_at(&mut vec![1; 8 << 20], 50 * MIB).unwrap();
                count == 40 && path.stats().used_memory_bytes <= bytes * 3 / 4
            });
        }
    }
}

/// A region without a memory option, four times as large as the group.
#[test]
fn region_without_a_memory_size_fits_into_a_small_control_group() {
    if !support::can_serve() {
        return eprintln!("skipped: no userfaultfd");
    }
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    in_group(48 * MIB, || {
        let mut region = Region::builder().in_folder(192 * MIB, &folder).unwrap();
        for (nth, page) in region.as_mut_slice().chunks_exact_mut(4096).enumerate() {
            page[..8].copy_from_slice(&nth.to_le_bytes());
        }
        let mut pages = region.as_slice().chunks_exact(4096).enumerate();
        pages.all(|(nth, page)| page[..8] == nth.to_le_bytes()) && region.check().is_ok()
    });
}

/// The program itself gradually allocates two fifths of its group.
#[test]
fn elastic_memory_is_returned_when_others_need_it() {
    let temp = sparse(400 * MIB);
    in_group(400 * MIB, || {
        let path = own_cache().kernel_cache(false).build().unwrap();
        let file = path.open(&temp.path).unwrap();
        read_whole(&file);
        let full = path.stats().used_memory_bytes;
        let mut needed: Vec<Vec<u8>> = Vec::new();
        for count in 1..=10 {
            needed.push(vec![count; 16 * MIB as usize]);
            let begun = Instant::now();
            let taken = u64::from(count) * 16 * MIB;
            while path.stats().used_memory_bytes + taken > 360 * MIB {
                assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", path.stats());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        std::hint::black_box(&needed);
        let left = path.stats();
        // The remaining cached bytes are right, and so are bytes read again.
        read_whole(&file);
        full > 240 * MIB && left.used_memory_bytes < 200 * MIB
    });
}
