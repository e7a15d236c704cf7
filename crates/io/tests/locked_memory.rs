//! Memory that the program locks or populates (`mlock(2)`, `mlockall(2)`, `madvise(2)`), before and
//! after its creation. Every byte is right, the memory limit holds, and no access hangs.
//!
//! Locks apply to the whole process, so each test forks a process of its own.

mod support;

use std::path::PathBuf;

use readpath::pager::FaultScope;
use readpath::pager::MappingBuilder;
use readpath::{Mapping, Region};
use readpath_core::readahead::Advice;
use support::{TempFile, can_serve, in_child, resident_bytes, splitmix};

const PAGE: usize = 4096;
const FILE_BYTES: usize = 4 * (1 << 20) + 1234;
const MEMORY_BYTES: u64 = 1 << 20;
/// Stack of a new thread (std's default) in bytes, completely resident if future memory is locked.
/// A stack left by an ended thread is reused first.
const STACK_BYTES: u64 = 2 << 20;
/// Usual combinations of `MCL_CURRENT`, `MCL_FUTURE` and `MCL_ONFAULT`.
const FUTURES: [libc::c_int; 4] = [
    libc::MCL_FUTURE,
    libc::MCL_CURRENT | libc::MCL_FUTURE,
    libc::MCL_FUTURE | libc::MCL_ONFAULT,
    libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT,
];

fn map(file: &TempFile, options: MappingBuilder) -> Mapping {
    // SAFETY: the file belongs to the test, which does not change it.
    unsafe { options.open(&file.path) }.unwrap()
}

fn small() -> MappingBuilder {
    Mapping::builder().kernel_cache(false).memory(MEMORY_BYTES)
}

fn lock_all(flags: libc::c_int) {
    // SAFETY: the call changes no bytes.
    assert_eq!(unsafe { libc::mlockall(flags) }, 0, "{}", std::io::Error::last_os_error());
}

/// Locks memory; returns the `errno`, 0 on success.
fn lock(memory: &[u8]) -> i32 {
    // SAFETY: the call changes no bytes.
    errno_of(unsafe { libc::mlock(memory.as_ptr().cast(), memory.len()) })
}

fn unlock(memory: &[u8]) {
    // SAFETY: the call changes no bytes.
    assert_eq!(unsafe { libc::munlock(memory.as_ptr().cast(), memory.len()) }, 0);
}

/// Like `lock`, with the given advice, for whole pages.
fn populate(memory: &[u8], advice: libc::c_int) -> i32 {
    // SAFETY: the call brings pages in and changes no bytes.
    errno_of(unsafe { libc::madvise(memory.as_ptr() as *mut _, memory.len(), advice) })
}

fn errno_of(answer: libc::c_int) -> i32 {
    if answer == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

/// Resident bytes of this process's anonymous and shared memory (proc(5)). File pages are excluded,
/// because program code comes in at its first run.
fn process_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (kib("RssAnon:") + kib("RssShmem:")) * 1024
}

/// Checks all bytes forwards, backwards and at random, and the memory limit.
fn is_whole(mapping: &Mapping, content: &[u8]) -> bool {
    let slice = mapping.as_slice();
    assert!(slice == content, "forwards");
    assert!(slice.rchunks(PAGE).zip(content.rchunks(PAGE)).all(|(ours, its)| ours == its));
    let mut state = 3;
    for _ in 0..200 {
        let first = splitmix(&mut state) as usize % content.len();
        let end = (first + splitmix(&mut state) as usize % 30_000).min(content.len());
        assert!(slice[first..end] == content[first..end], "{first} to {end}");
    }
    let address = slice.as_ptr() as usize;
    let resident = resident_bytes(address).unwrap();
    assert!(resident <= MEMORY_BYTES, "{resident} bytes are resident");
    assert_eq!(mapping.stats().poisoned_pages, 0);
    true
}

#[test]
fn mapping_created_under_mlockall_has_the_files_bytes() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&file.path).unwrap();
    for flags in FUTURES {
        assert!(in_child(|| {
            lock_all(flags);
            let before = process_bytes();
            let mapping = map(&file, small());
            let address = mapping.as_slice().as_ptr() as usize;
            assert_eq!(resident_bytes(address), Some(0), "none is there before its touch");
            assert!(process_bytes() < before + STACK_BYTES + 2 * MEMORY_BYTES);
            assert_eq!(mapping.stats().faults, 0);
            is_whole(&mapping, &content)
        }));
    }
}

#[test]
fn mapping_survives_mlockall_and_munlockall() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&file.path).unwrap();
    assert!(in_child(|| {
        let mapping = map(&file, small());
        for touched in [0, 1 << 20, FILE_BYTES] {
            assert!(mapping.as_slice()[..touched] == content[..touched]);
            lock_all(libc::MCL_CURRENT);
            let resident = process_bytes();
            assert!(is_whole(&mapping, &content));
            assert!(process_bytes() < resident + 2 * MEMORY_BYTES);
            // SAFETY: the call changes no bytes.
            assert_eq!(unsafe { libc::munlockall() }, 0);
            assert!(is_whole(&mapping, &content));
        }
        true
    }));
}

/// Hidden mappings of the library take no memory when all memory is locked.
#[test]
fn mlockall_locks_no_more_than_the_mapping_budget() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(96 << 20);
    assert!(in_child(|| {
        let mapping = map(&file, small());
        lock_all(libc::MCL_CURRENT);
        let all = process_bytes();
        drop(mapping);
        let freed = all.saturating_sub(process_bytes());
        assert!(freed < 8 << 20, "the mapping took {freed} bytes of {MEMORY_BYTES}");
        true
    }));
}

#[test]
fn mapping_slices_may_be_locked_in_part_and_beyond_the_budget() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&file.path).unwrap();
    assert!(in_child(|| {
        let mapping = map(&file, small());
        let slice = mapping.as_slice();
        // Within the limit, at unaligned ranges, resident and absent.
        assert!(slice[..300_000] == content[..300_000]);
        for range in [100_000..200_000, 1_000_000..1_500_000, 1_400_000..1_700_000] {
            assert_eq!(lock(&slice[range.clone()]), 0);
            assert!(slice[range.clone()] == content[range]);
        }
        assert!(is_whole(&mapping, &content));
        // Prefetched pages in flight at the hint may arrive after it.
        let is_empty = |_| {
            mapping.advise(Advice::DontNeed, 0, FILE_BYTES as u64);
            mapping.stats().resident_pages == 0
        };
        assert!((0..1000).any(is_empty), "{:?}", mapping.stats());
        assert_eq!(resident_bytes(slice.as_ptr() as usize), Some(0));
        assert!(is_whole(&mapping, &content));
        // All of it, four times the limit.
        assert_eq!(lock(slice), 0);
        assert!(is_whole(&mapping, &content));
        unlock(&slice[2_000_000..2_500_000]);
        assert!(is_whole(&mapping, &content));
        unlock(slice);
        is_whole(&mapping, &content)
    }));
}

#[test]
fn mapping_slices_may_be_populated() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&file.path).unwrap();
    assert!(in_child(|| {
        let mapping = map(&file, small());
        for advice in [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE] {
            let part = &mapping.as_slice()[40 * PAGE..100 * PAGE];
            assert_eq!(populate(part, advice), 0);
            let before = mapping.stats().faults;
            assert!(*part == content[40 * PAGE..100 * PAGE]);
            assert_eq!(mapping.stats().faults, before, "it was there");
            assert_eq!(populate(mapping.as_slice(), advice), 0);
            assert!(is_whole(&mapping, &content));
        }
        true
    }));
}

/// A region of four times its memory: pages are rewritten in random order and read back, with
/// `lock_anew` called before each round.
fn torture(mut region: Region, mut lock_anew: impl FnMut(usize, &[u8])) -> bool {
    let pages = region.len() / PAGE;
    let mut versions = vec![0u64; pages];
    let mut state = 9;
    for round in 0..6 {
        lock_anew(round, region.as_slice());
        for _ in 0..2 * pages {
            let page = splitmix(&mut state) as usize % pages;
            let bytes = &mut region.as_mut_slice()[page * PAGE..][..PAGE];
            assert_eq!(bytes[..8], versions[page].to_ne_bytes(), "page {page}, round {round}");
            assert_eq!(bytes[PAGE - 8..], versions[page].to_ne_bytes(), "page {page}");
            if splitmix(&mut state).is_multiple_of(2) {
                versions[page] = splitmix(&mut state);
                bytes[..8].copy_from_slice(&versions[page].to_ne_bytes());
                bytes[PAGE - 8..].copy_from_slice(&versions[page].to_ne_bytes());
            }
        }
        let discarded = splitmix(&mut state) as usize % (pages - 50);
        region.discard((discarded * PAGE) as u64, 50 * PAGE as u64);
        versions[discarded..discarded + 50].fill(0);
        region.check().unwrap();
    }
    let statistics = region.stats();
    assert_eq!(statistics.poisoned_pages, 0, "{statistics:?}");
    assert!(statistics.swap_in_pages > 0 && statistics.swap_out_pages > 0, "{statistics:?}");
    assert!(statistics.memory_pages_max <= 256 + 64, "{statistics:?}");
    let resident = resident_bytes(region.as_slice().as_ptr() as usize).unwrap();
    assert!(resident <= MEMORY_BYTES + 64 * PAGE as u64, "{resident} bytes are resident");
    true
}

fn region() -> Region {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    Region::builder().memory(MEMORY_BYTES).in_folder(4 * MEMORY_BYTES, folder).unwrap()
}

#[test]
fn region_created_under_mlockall_keeps_written_bytes() {
    if !can_serve() {
        return;
    }
    for flags in FUTURES {
        assert!(in_child(|| {
            lock_all(flags);
            torture(region(), |_, _| {})
        }));
    }
}

#[test]
fn region_keeps_written_bytes_across_mlockall_and_munlockall() {
    if !can_serve() {
        return;
    }
    assert!(in_child(|| {
        torture(region(), |round, _| match round % 2 {
            0 => lock_all(libc::MCL_CURRENT),
            // SAFETY: the call changes no bytes.
            _ => assert_eq!(unsafe { libc::munlockall() }, 0),
        })
    }));
}

#[test]
fn region_keeps_written_bytes_while_parts_are_locked_or_populated() {
    if !can_serve() {
        return;
    }
    assert!(in_child(|| {
        torture(region(), |round, memory| match round {
            0 => assert_eq!(lock(&memory[100_000..500_000]), 0),
            1 => unlock(&memory[200_000..300_000]),
            // All of it, four times the limit.
            2 => assert_eq!(lock(memory), 0),
            3 => {
                lock_all(libc::MCL_CURRENT);
                unlock(&memory[..2_000_000]);
            }
            4 => assert_eq!(populate(memory, libc::MADV_POPULATE_READ), 0),
            _ => assert_eq!(populate(memory, libc::MADV_POPULATE_WRITE), 0),
        })
    }));
}

/// Effects of a program's own calls on its mapping: no access waits for ever.
#[test]
fn pages_dropped_or_protected_by_the_program_are_restored() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&file.path).unwrap();
    assert!(in_child(|| {
        let mapping = map(&file, small());
        let part = &mapping.as_slice()[..64 * PAGE];
        for _ in 0..3 {
            assert!(*part == content[..64 * PAGE]);
            assert_eq!(populate(part, libc::MADV_DONTNEED), 0);
        }
        // Not accessed by any thread except the copying one.
        assert_eq!(populate(part, libc::MADV_DONTNEED), 0);
        let mut copied = vec![0; part.len()];
        mapping.read_exact_at(&mut copied, 0).unwrap();
        assert!(copied == content[..64 * PAGE]);
        // SAFETY: the call changes no bytes, and a mapping is never written to.
        unsafe { libc::mprotect(part.as_ptr() as *mut _, part.len(), libc::PROT_READ) };
        assert!(is_whole(&mapping, &content));
        // Extended in place if the addresses behind are free: an access there is a bus error, not a
        // hang.
        let (start, bytes) = (mapping.as_slice().as_ptr(), FILE_BYTES.next_multiple_of(PAGE));
        // SAFETY: the new page has no other users.
        let longer = unsafe { libc::mremap(start as *mut _, bytes, bytes + PAGE, 0) };
        if longer != libc::MAP_FAILED {
            // SAFETY: a page of this process, of which no byte is read here.
            let behind = unsafe { std::slice::from_raw_parts(start.wrapping_add(bytes), PAGE) };
            assert_ne!(populate(behind, libc::MADV_POPULATE_READ), 0);
        }
        is_whole(&mapping, &content)
    }));
    assert!(in_child(|| {
        let mut region = region();
        for round in 1..4 {
            region.as_mut_slice()[..64 * PAGE].fill(round);
            assert_eq!(populate(&region.as_slice()[..64 * PAGE], libc::MADV_DONTNEED), 0);
            // Swapped-out pages are not affected by the call.
            let first = region.as_slice()[..64 * PAGE].to_vec();
            let is_kept = |page: &[u8]| page == [0; PAGE] || page == [round; PAGE];
            assert!(first.chunks(PAGE).all(is_kept) && first.contains(&0));
            region.as_mut_slice()[64 * PAGE..].fill(round);
            assert!(region.as_slice()[..64 * PAGE] == first);
            assert!(region.as_slice()[64 * PAGE..].iter().all(|&byte| byte == round));
            // The eviction meets pages that the program has already dropped.
            let last = region.len() - 64 * PAGE;
            assert_eq!(populate(&region.as_slice()[last..], libc::MADV_DONTNEED), 0);
            region.as_mut_slice()[..last].fill(round);
            let lost = &region.as_slice()[last..];
            assert!(lost.iter().all(|&byte| byte == 0 || byte == round));
        }
        region.check().is_ok()
    }));
}

/// An ordinary user's userfaultfd does not serve kernel accesses: locking absent pages fails
/// (`ENOMEM`, 12 in errno(3), as in mlock(2)), and other accesses continue.
#[test]
fn mlock_of_absent_pages_by_an_ordinary_user_fails_with_enomem() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&file.path).unwrap();
    assert!(in_child(|| {
        // SAFETY: affects this process alone.
        let is_ordinary = unsafe { libc::seteuid(65_534) } == 0;
        // SAFETY: the file does not change.
        let mapping = unsafe { small().open(&file.path) };
        let (true, Ok(mapping)) = (is_ordinary, mapping) else {
            eprintln!("skipped: not root, or others can't reach {}", file.path.display());
            return true;
        };
        if mapping.scope() == FaultScope::All {
            return true;
        }
        let part = &mapping.as_slice()[80 * PAGE..120 * PAGE];
        assert_eq!(lock(part), 12);
        assert!(*part == content[80 * PAGE..120 * PAGE]);
        assert_eq!(lock(part), 0, "they are there now");
        is_whole(&mapping, &content)
    }));
}
