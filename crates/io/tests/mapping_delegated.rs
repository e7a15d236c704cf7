//! Windows of long runs that a mapping delegates to the kernel mapping: every byte is the file's
//! before, during and after, the memory limit holds, and faults are rare.

mod support;

use readpath::Mapping;
use readpath::pager::{MappingBuilder, MappingMode};
use readpath_core::readahead::Advice;
use support::{TempFile, can_serve, in_child, splitmix};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// Smallest memory in bytes with room for the kernel's readahead on a device with a window of 8
/// MiB.
const MEMORY: u64 = 32 << 20;
const FILE_MIB: usize = 48;

/// A file of [`FILE_MIB`] MiB without resident pages.
fn cold_file() -> (TempFile, Vec<u8>) {
    let part = support::content(8 * MIB);
    let file = TempFile::of(&part, FILE_MIB / 8);
    drop_cache(&file);
    (file, part.repeat(FILE_MIB / 8))
}

fn drop_cache(file: &TempFile) {
    let opened = std::fs::File::open(&file.path).unwrap();
    opened.sync_all().unwrap();
    rustix::fs::fadvise(&opened, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn map(file: &TempFile, options: MappingBuilder) -> Mapping {
    // SAFETY: the file belongs to the test, which does not change it.
    unsafe { options.memory(MEMORY).open(&file.path) }.unwrap()
}

/// Runs a test on a new mapping of a cold file once a window was delegated. The speed of the device
/// is measured once per mapping and may be too low under other load. Prints a skip message if it
/// always is.
fn lending(run: impl Fn(&Mapping, &[u8])) {
    if !can_serve() {
        return;
    }
    let (file, content) = cold_file();
    for _ in 0..5 {
        drop_cache(&file);
        let mapping = map(&file, Mapping::builder());
        assert_eq!(mapping.mode(), MappingMode::Served);
        assert!(mapping.as_slice()[..8 * MIB] == content[..8 * MIB]);
        if mapping.stats().delegated_pages > 0 {
            mapping.advise(Advice::DontNeed, 0, content.len() as u64);
            return run(&mapping, &content);
        }
    }
    eprintln!("skipped: the device isn't so fast that the kernel is delegated long runs of it");
}

/// Resident bytes of all mappings within a slice, from smaps (proc(5)).
fn resident_in(slice: &[u8]) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let range = slice.as_ptr_range();
    let (mut is_inside, mut bytes) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap();
        if let Some((start, _)) = first.split_once('-').filter(|_| !first.ends_with(':')) {
            let start = usize::from_str_radix(start, 16).unwrap();
            is_inside = (range.start as usize..range.end as usize).contains(&start);
        } else if is_inside && first == "Rss:" {
            bytes += words.next().unwrap().parse::<u64>().unwrap() * 1024;
        }
    }
    bytes
}

/// Two ascending passes: most pages are delegated, each window costs one fault, and resident memory
/// stays within the limit.
#[test]
fn streamed_windows_are_kernel_mapped_within_the_memory_limit() {
    lending(|mapping, content| {
        for pass in 0..2 {
            let before = mapping.stats();
            for (at, block) in mapping.as_slice().chunks(MIB).enumerate() {
                assert!(*block == content[at * MIB..(at + 1) * MIB], "MiB {at} of pass {pass}");
                if at % 8 == 7 {
                    let resident = resident_in(mapping.as_slice());
                    assert!(resident <= MEMORY, "{resident} bytes resident after {at} MiB");
                }
            }
            let now = mapping.stats();
            let delegated = now.delegated_pages - before.delegated_pages;
            // A run must be two MiB long before delegation; windows are two MiB here, a sixteenth
            // of the memory.
            assert!(delegated >= ((FILE_MIB - 8) * MIB / PAGE) as u64, "{now:?}");
            assert!(now.faults - before.faults <= 100, "{now:?} after {before:?}");
        }
    });
}

/// Like copies of the GNU C library between equally aligned buffers: each MiB in descending order.
#[test]
fn blocks_copied_in_descending_order_count_as_a_run() {
    lending(|mapping, content| {
        let before = mapping.stats();
        for (at, block) in mapping.as_slice().chunks(MIB).enumerate() {
            for page in (0..MIB / PAGE).rev() {
                let place = page * PAGE..(page + 1) * PAGE;
                assert!(block[place.clone()] == content[at * MIB..][place], "{page} of MiB {at}");
            }
        }
        let delegated = mapping.stats().delegated_pages - before.delegated_pages;
        assert!(delegated >= ((FILE_MIB - 12) * MIB / PAGE) as u64, "{delegated}");
    });
}

#[test]
fn descending_run_gets_kernel_windows_like_an_ascending_one() {
    lending(|mapping, content| {
        let before = mapping.stats();
        for page in (0..FILE_MIB * MIB / PAGE).rev() {
            let place = page * PAGE..(page + 1) * PAGE;
            assert!(mapping.as_slice()[place.clone()] == content[place], "page {page}");
        }
        let delegated = mapping.stats().delegated_pages - before.delegated_pages;
        assert!(delegated >= ((FILE_MIB - 8) * MIB / PAGE) as u64, "{delegated}");
    });
}

/// Threads stream, access at random, copy by the checked call and drop pages in the same range. An
/// access during a change of its window sees the file's bytes.
#[test]
fn mapping_equals_the_file_while_kernel_windows_change() {
    lending(|mapping, content| {
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || several_ways(mapping, content, thread));
            }
        });
        let statistics = mapping.stats();
        assert_eq!(statistics.poisoned_pages, 0, "{statistics:?}");
    });
}

fn several_ways(mapping: &Mapping, content: &[u8], mut state: u64) {
    for round in 0..4 {
        let first = splitmix(&mut state) as usize % (FILE_MIB * MIB / 2);
        for at in (first..first + 12 * MIB).step_by(64 << 10) {
            let place = at..at + (64 << 10);
            assert!(mapping.as_slice()[place.clone()] == content[place], "{round}: {at}");
        }
        for _ in 0..50 {
            let at = splitmix(&mut state) as usize % (FILE_MIB * MIB - 10_000);
            let mut copy = [0; 10_000];
            match splitmix(&mut state) % 16 {
                0 => {
                    mapping.advise(Advice::DontNeed, at as u64, 4 * MIB as u64);
                    continue;
                }
                1 => mapping.read_exact_at(&mut copy, at as u64).unwrap(),
                _ => copy.copy_from_slice(&mapping.as_slice()[at..at + 10_000]),
            }
            assert!(copy == content[at..at + 10_000], "at {at}");
        }
    }
}

#[test]
fn forked_child_reads_the_whole_file_with_kernel_windows() {
    lending(|mapping, content| {
        let half = FILE_MIB * MIB / 2;
        assert!(mapping.as_slice()[..half] == content[..half]);
        assert!(in_child(|| mapping.as_slice() == content));
        assert!(mapping.as_slice() == content);
    });
}

#[test]
fn dropped_range_leaves_no_kernel_window() {
    lending(|mapping, content| {
        assert!(mapping.as_slice() == content);
        assert!(resident_in(mapping.as_slice()) > 0);
        mapping.advise(Advice::DontNeed, 0, (FILE_MIB * MIB) as u64);
        // The answer comes after the earlier hint was processed.
        mapping.stats();
        assert_eq!(resident_in(mapping.as_slice()), 0);
        assert!(mapping.as_slice() == content);
    });
}

/// Windows of the kernel mapping would not be locked. Runs in a separate process, since locks apply
/// to the whole process.
#[test]
fn locked_memory_of_the_program_prevents_kernel_windows() {
    if !can_serve() {
        return;
    }
    let (file, content) = cold_file();
    assert!(in_child(|| {
        let locked = vec![1u8; PAGE];
        // SAFETY: the call changes no bytes.
        assert_eq!(unsafe { libc::mlock(locked.as_ptr().cast(), PAGE) }, 0);
        let mapping = map(&file, Mapping::builder());
        mapping.as_slice() == content && mapping.stats().delegated_pages == 0
    }));
}

#[test]
fn named_policy_or_disabled_kernel_cache_prevents_kernel_windows() {
    if !can_serve() {
        return;
    }
    let (file, content) = cold_file();
    let all: [fn(MappingBuilder) -> MappingBuilder; 2] =
        [|builder| builder.readahead("runs"), |builder| builder.kernel_cache(false)];
    for with in all {
        drop_cache(&file);
        let mapping = map(&file, with(Mapping::builder()));
        assert!(mapping.as_slice() == content);
        assert_eq!(mapping.stats().delegated_pages, 0);
    }
}

/// The program moves pages of the mapping away (`mremap(2)`) while others are brought in. Moves
/// wait for the pager to read the event, and the pager waits for the moves.
#[test]
fn mapping_pages_may_be_moved_by_mremap_during_faults() {
    if !can_serve() {
        return;
    }
    let pages = 512;
    let file = TempFile::new(pages * PAGE);
    let content = std::fs::read(&file.path).unwrap();
    assert!(in_child(|| {
        for _ in 0..20 {
            let options = Mapping::builder().kernel_cache(false).readahead("none");
            let mapping = map(&file, options);
            let slice = mapping.as_slice();
            let first = slice.as_ptr() as usize;
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    (1..pages).step_by(2).for_each(|page| move_away(first + page * PAGE))
                });
                for page in (0..pages).step_by(2) {
                    let place = page * PAGE..(page + 1) * PAGE;
                    assert!(slice[place.clone()] == content[place], "page {page}");
                }
            });
        }
        true
    }));
}

/// Moves a page elsewhere and unmaps it.
fn move_away(page: usize) {
    // SAFETY: the page has no users, at either address.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let to = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        assert_ne!(libc::mremap(page as *mut _, PAGE, PAGE, flags, to), libc::MAP_FAILED);
        libc::munmap(to, PAGE);
    }
}
