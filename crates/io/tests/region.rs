//! Memory larger than its budget: reads return the written bytes for every policy, backend and
//! number of threads, with continuous evictions.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use readpath::pager::FaultScope;
use readpath::{PagerError, Region};
use readpath_core::swapin;
use support::{BACKENDS, can_serve, has_swap, in_child, resident_bytes, splitmix};

const PAGE: usize = 4096;

/// A folder on a real file system.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Content of a page after `version` writes: 512 words, unique for page and version.
fn fill(page: u64, version: u64, bytes: &mut [u8]) {
    let mut state = page << 32 | version;
    bytes
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&splitmix(&mut state).to_ne_bytes()));
}

fn check(page: u64, version: u64, bytes: &[u8]) {
    if version == 0 {
        assert!(bytes.iter().all(|&byte| byte == 0), "page {page} was never written");
        return;
    }
    let mut expected = [0; PAGE];
    fill(page, version, &mut expected);
    assert!(bytes == expected, "page {page} does not hold its version {version}");
}

/// Several threads touch separate pages in random order (read and compare, or rewrite). Then all
/// pages are read back.
fn torture(mut region: Region, pages: usize, threads: usize, touches: usize, seed: u64) -> Region {
    let mut versions = vec![0u64; pages];
    let share = pages.div_ceil(threads);
    std::thread::scope(|scope| {
        let memory = region.as_mut_slice().chunks_mut(share * PAGE);
        for (thread, (memory, versions)) in memory.zip(versions.chunks_mut(share)).enumerate() {
            let mut state = seed ^ (thread as u64) << 40;
            scope.spawn(move || {
                for _ in 0..touches {
                    let at = splitmix(&mut state) as usize % versions.len();
                    let page = (thread * share + at) as u64;
                    let bytes = &mut memory[at * PAGE..(at + 1) * PAGE];
                    match splitmix(&mut state) % 4 {
                        0 | 1 => check(page, versions[at], bytes),
                        // Write to a page that was just read.
                        2 => {
                            check(page, versions[at], bytes);
                            versions[at] += 1;
                            fill(page, versions[at], bytes);
                        }
                        _ => {
                            versions[at] += 1;
                            fill(page, versions[at], bytes);
                        }
                    }
                }
            });
        }
    });
    for (page, bytes) in region.as_slice().chunks_exact(PAGE).enumerate() {
        check(page as u64, versions[page], bytes);
    }
    region
}

fn settled(region: &Region, budget_pages: u64) {
    let statistics = region.stats();
    assert!(statistics.swap_out_pages > 0 && statistics.swap_in_pages > 0, "{statistics:?}");
    // Pages mapped again while they are written out are in memory twice.
    assert!(statistics.memory_pages_max <= budget_pages + 64, "{statistics:?}");
    assert_eq!(statistics.poisoned_pages, 0);
    region.check().unwrap();
}

#[test]
fn region_returns_written_bytes_under_every_policy_and_backend() {
    if !can_serve() {
        return;
    }
    let pages = 768;
    for policy in swapin::POLICIES {
        for backend in BACKENDS {
            let options = Region::builder().memory(256 * PAGE as u64).backend(backend);
            let options = options.swapin(policy.name);
            let region = options.in_folder((pages * PAGE) as u64, folder()).unwrap();
            let region = torture(region, pages, 3, 1_500, 11);
            settled(&region, 256);
        }
    }
}

/// The kernel sends `SIGXFSZ` for a file beyond the limit, which ends a program: setrlimit(2).
#[test]
fn region_beyond_the_limit_on_file_sizes_is_an_error_and_no_signal() {
    let limited = |bytes: u64, work: fn() -> bool| {
        in_child(|| {
            support::limit(libc::RLIMIT_FSIZE, bytes);
            work()
        })
    };
    assert!(limited(1 << 20, || {
        let made = Region::builder().memory(1 << 20).in_folder(8 << 20, folder());
        let text = made.unwrap_err().to_string();
        text.contains("File too large") && text.contains("ulimit -f")
    }));
    // Its limit leaves room for 1 MiB and the spare slots.
    assert!(limited(4 << 20, || {
        !can_serve() || Region::builder().memory(1 << 20).in_folder(1 << 20, folder()).is_ok()
    }));
}

#[test]
fn region_returns_written_bytes_under_every_eviction_policy() {
    if !can_serve() {
        return;
    }
    let pages = 768;
    for policy in readpath_core::eviction::POLICIES {
        let options = Region::builder().memory(256 * PAGE as u64).eviction(policy.name);
        let region = options.in_folder((pages * PAGE) as u64, folder()).unwrap();
        settled(&torture(region, pages, 3, 1_500, 11), 256);
    }
    let unknown = Region::builder().eviction("guess").in_folder(1 << 20, folder());
    assert!(unknown.unwrap_err().to_string().contains("`guess`"));
}

/// A cyclic sweep over three times the memory. `lru` never has the next page; `lirs` keeps the
/// first ones, a third of the pages less the reserve. Over 8 rounds of 3,072 pages it must read
/// back less by at least half of the memory in 7 rounds.
#[test]
fn eviction_policy_decides_which_pages_of_a_sweep_stay() {
    if !can_serve() {
        return;
    }
    let (pages, memory_pages) = (3_072, 1_024);
    let read_back = |policy: &str| {
        let options = Region::builder().memory(memory_pages * PAGE as u64).eviction(policy);
        let options = options.swapin("none");
        let mut region = options.in_folder((pages * PAGE) as u64, folder()).unwrap();
        for _ in 0..8 {
            region.as_mut_slice().chunks_mut(PAGE).for_each(|page| page[0] = 1);
        }
        region.stats().swap_in_pages
    };
    let [lirs, lru] = ["lirs", "lru"].map(read_back);
    assert!(lirs + 7 * memory_pages / 2 < lru, "{lirs} pages, under lru {lru}");
}

/// `READPATH_MINUTES=10 READPATH_SEED=1 cargo test --release -p readpath --test region -- --ignored
/// --nocapture for_minutes`
#[test]
#[ignore = "takes the minutes that READPATH_MINUTES says (1)"]
fn region_returns_written_bytes_for_minutes() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (minutes, mut seed): (u64, u64) =
        (number("READPATH_MINUTES", 1), number("READPATH_SEED", 1));
    let start = std::time::Instant::now();
    while start.elapsed().as_secs() < minutes * 60 {
        let mut state = seed;
        let policy = swapin::POLICIES[splitmix(&mut state) as usize % swapin::POLICIES.len()].name;
        let budget = 64 + splitmix(&mut state) % 2_000;
        let pages = (3 * budget) as usize;
        let threads = 1 + splitmix(&mut state) as usize % 6;
        let touches = 20_000;
        println!("seed {seed}: {policy}, {budget} of {pages} pages, {threads} threads");
        let options = Region::builder().memory(budget * PAGE as u64).swapin(policy);
        let region = options.in_folder((pages * PAGE) as u64, folder()).unwrap();
        settled(&torture(region, pages, threads, touches, seed), budget);
        seed += 1;
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn region_memory_stays_within_the_budget_and_drop_leaves_nothing() {
    if !can_serve() {
        return;
    }
    let own = folder().join(format!("readpath-region-{}", std::process::id()));
    std::fs::create_dir(&own).unwrap();
    let mut region = Region::builder().memory(1 << 20).in_folder(4 << 20, &own).unwrap();
    let address = region.as_slice().as_ptr() as usize;
    for (at, page) in region.as_mut_slice().chunks_mut(PAGE).enumerate() {
        page[0] = 1;
        if at % 128 == 127 {
            let resident = resident_bytes(address).unwrap();
            assert!(resident <= 1 << 20, "{resident} bytes resident after {at} pages");
        }
    }
    assert_eq!(std::fs::read_dir(&own).unwrap().count(), 0, "the file has no name");
    let is_ours = |link: PathBuf| link.starts_with(&own);
    let links = || {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| is_ours(link.clone())).count()
    };
    assert!(links() > 0 && open_files() > 0);
    drop(region);
    assert_eq!((links(), resident_bytes(address)), (0, None));
    std::fs::remove_dir(&own).unwrap();
}

#[test]
fn clean_pages_are_not_written_out_again() {
    if !can_serve() {
        return;
    }
    let region = filled(1024, "hits");
    let sweep = |region: &Region| {
        let pages = region.as_slice().chunks(PAGE).enumerate();
        pages.for_each(|(at, page)| check(at as u64, 1, page));
    };
    sweep(&region);
    let before = region.stats();
    sweep(&region);
    sweep(&region);
    let after = region.stats();
    assert_eq!(after.swap_out_pages, before.swap_out_pages);
    assert!(after.swap_in_pages - before.swap_in_pages >= 2 * (1024 - 256));
}

#[test]
fn unwritten_region_memory_costs_no_storage_requests() {
    if !can_serve() {
        return;
    }
    let options = Region::builder().memory(1 << 20);
    let region = options.in_folder(8 << 20, folder()).unwrap();
    assert!(region.as_slice().iter().all(|&byte| byte == 0));
    let statistics = region.stats();
    assert_eq!((statistics.device_reads, statistics.device_writes), (0, 0), "{statistics:?}");
}

/// `read(2)` into it and `write(2)` from it, larger than its budget.
#[test]
fn system_calls_accept_region_memory() {
    if !can_serve() {
        return;
    }
    let file = support::TempFile::new(4 << 20);
    let options = Region::builder().memory(1 << 20);
    let mut region = options.in_folder(4 << 20, folder()).unwrap();
    let read = File::open(&file.path).unwrap().read_exact_at(region.as_mut_slice(), 0);
    if region.scope() == FaultScope::UserOnly {
        // EFAULT is 14 in errno(3).
        return assert_eq!(read.unwrap_err().raw_os_error(), Some(14));
    }
    read.unwrap();
    assert!(region.as_slice() == std::fs::read(&file.path).unwrap());
    let copy = support::TempFile::new(1);
    std::fs::write(&copy.path, region.as_slice()).unwrap();
    assert!(std::fs::read(&copy.path).unwrap() == std::fs::read(&file.path).unwrap());
}

#[test]
fn impossible_regions_are_errors_with_a_remedy() {
    if !can_serve() {
        return;
    }
    let error = Region::builder().in_folder(1 << 20, "/nowhere").unwrap_err().to_string();
    assert!(error.contains("/nowhere") && error.contains("name a folder"), "{error}");
    assert!(!error.contains("may write to"), "{error}");
    // Larger than any disk: refused at creation, not once the disk is full. No limit of the process
    // and no permission is the reason.
    for bytes in [1 << 50, 1 << 55, u64::MAX] {
        let error = Region::builder().in_folder(bytes, folder()).unwrap_err();
        assert!(matches!(error, PagerError::Space { .. }), "{error}");
        let text = error.to_string();
        assert!(!text.contains("ulimit -f") && !text.contains("may write to"), "{text}");
    }
    let policy = Region::builder().swapin("guess");
    let error = policy.in_folder(1 << 20, folder()).unwrap_err().to_string();
    assert!(error.contains("`guess`"), "{error}");
    // A path that is no block device is not overwritten.
    let file = support::TempFile::new(4 << 20);
    let before = std::fs::read(&file.path).unwrap();
    for path in [&file.path, Path::new("/dev/null")] {
        let error = Region::builder().on_device(1 << 20, path).unwrap_err();
        assert!(matches!(error, PagerError::NotADevice { .. }), "{error}");
        assert!(error.to_string().contains("is no block device"), "{error}");
    }
    assert!(std::fs::read(&file.path).unwrap() == before);
}

/// The memory is limited to the region's size, and no page is evicted.
#[test]
fn oversized_budget_is_limited_to_the_region_size() {
    if !can_serve() {
        return;
    }
    let mut region = Region::builder().memory(u64::MAX).in_folder(4 << 20, folder()).unwrap();
    let memory = region.as_mut_slice().chunks_mut(PAGE).enumerate();
    memory.for_each(|(at, page)| fill(at as u64, 1, page));
    let memory = region.as_slice().chunks(PAGE).enumerate();
    memory.for_each(|(at, page)| check(at as u64, 1, page));
    let statistics = region.stats();
    assert_eq!((statistics.memory_pages, statistics.device_writes), (1024, 0), "{statistics:?}");
}

/// With active swap (`swapon(8)`), the kernel may swap out our pages like any memory.
#[test]
fn region_pages_swapped_out_by_the_kernel_keep_their_bytes() {
    if !can_serve() || !has_swap() {
        return;
    }
    let mut region = filled(1024, "hits");
    for round in 1..4 {
        let address = region.as_slice().as_ptr().cast_mut().cast();
        // SAFETY: memory of the region, whose bytes do not change (madvise(2)).
        assert_eq!(unsafe { libc::madvise(address, region.len(), libc::MADV_PAGEOUT) }, 0);
        for (at, page) in region.as_mut_slice().chunks_mut(PAGE).enumerate() {
            check(at as u64, round, page);
            fill(at as u64, round + 1, page);
        }
    }
    settled(&region, 256);
}

/// True if the kernel may merge the page at an address with equal pages (KSM).
fn is_mergeable(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_here = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) =
            range.map(|(start, end)| (number(start), number(end)))
        {
            is_here = (start..end).contains(&address);
        } else if is_here && line.starts_with("VmFlags:") {
            return line.split(' ').any(|flag| flag == "mg");
        }
    }
    panic!("{address:x} is not mapped");
}

/// A merged page cannot be moved and would never be evicted.
#[test]
fn region_pages_are_not_mergeable() {
    const SET_MEMORY_MERGE: i32 = 67; // PR_SET_MEMORY_MERGE in linux/prctl.h
    // SAFETY: affects no memory read here; each page keeps its bytes.
    let set = |is: libc::c_ulong| unsafe { libc::prctl(SET_MEMORY_MERGE, is, 0, 0, 0) };
    if !can_serve() || set(1) != 0 {
        return eprintln!("skipped: the kernel merges no pages");
    }
    let other = vec![1u8; 64 << 20];
    let region = Region::builder().memory(1 << 20).in_folder(4 << 20, folder()).unwrap();
    let are_loaded =
        [other.as_ptr() as usize + PAGE, region.as_slice().as_ptr() as usize].map(is_mergeable);
    set(0);
    assert_eq!(are_loaded, [true, false]);
}

#[test]
fn loaded_region_pages_cause_no_fault() {
    if !can_serve() {
        return;
    }
    let region = filled(1024, "hits");
    region.load(0, 32 * PAGE as u64).unwrap();
    let before = region.stats();
    (0..32).for_each(|at| check(at, 1, &region.as_slice()[at as usize * PAGE..][..PAGE]));
    assert_eq!(region.stats().faults, before.faults);
}

/// A region of four times its memory with version 1 in every page. The last quarter is in memory,
/// because the oldest pages are evicted first.
fn filled(pages: usize, policy: &str) -> Region {
    let options = Region::builder().memory((pages / 4 * PAGE) as u64);
    let options = options.swapin(policy).eviction("two-lists");
    let mut region = options.in_folder((pages * PAGE) as u64, folder()).unwrap();
    let memory = region.as_mut_slice().chunks_mut(PAGE).enumerate();
    memory.for_each(|(at, page)| fill(at as u64, 1, page));
    region
}

/// The policy `none` reads one page per fault. Announced pages are present and came in requests of
/// many pages.
#[test]
fn will_need_pages_arrive_in_large_requests_before_a_touch() {
    if !can_serve() {
        return;
    }
    let region = filled(2048, "none");
    let before = region.stats();
    region.will_need(0, 128 * PAGE as u64);
    // Up to a minute, for a busy machine.
    let is_there = |region: &Region| {
        let now = region.stats();
        now.swap_in_pages - before.swap_in_pages >= 128
    };
    let mut waits = 0;
    while !is_there(&region) {
        std::thread::sleep(std::time::Duration::from_millis(10));
        waits += 1;
        assert!(waits < 6_000, "{:?}", region.stats());
    }
    for at in 0..128 {
        check(at, 1, &region.as_slice()[at as usize * PAGE..][..PAGE]);
    }
    let after = region.stats();
    assert_eq!(after.swap_in_pages - before.swap_in_pages, 128, "each was read once");
    let requests = after.device_reads - before.device_reads;
    assert!(requests <= 128 / 8, "{requests} requests for 128 pages side by side");
    region.check().unwrap();
}

#[test]
fn discarded_pages_are_zeros_and_take_no_memory_or_storage() {
    if !can_serve() {
        return;
    }
    let mut region = filled(1024, "hits");
    // All except a part of the first page and of the last two.
    let (from, to) = (100, 1022 * PAGE + 7);
    region.will_need(0, 64 * PAGE as u64);
    region.discard(from as u64, (to - from) as u64);
    let before = region.stats();
    let mut expected = vec![0; 1024 * PAGE];
    for page in [0, 1022, 1023] {
        fill(page, 1, &mut expected[page as usize * PAGE..][..PAGE]);
    }
    expected[from..to].fill(0);
    assert!(region.as_slice() == expected);
    let after = region.stats();
    // Only the pages at the edges may have been swapped out.
    assert!(after.swap_in_pages - before.swap_in_pages <= 3, "{after:?}");
    // A range within one page, and an empty one.
    region.discard(1022 * PAGE as u64 + 10, 5);
    region.discard(1024 * PAGE as u64, 0);
    expected[1022 * PAGE + 10..1022 * PAGE + 15].fill(0);
    assert!(region.as_slice() == expected);
}

/// A page that is chosen for eviction but absent counts once as a busy page of zeros, and does not
/// block later evictions.
#[test]
fn pages_dropped_by_the_program_count_as_busy_once_and_leave() {
    if !can_serve() {
        return;
    }
    let options = Region::builder().memory(256 * PAGE as u64).eviction("lru");
    let mut region = options.in_folder(1024 * PAGE as u64, folder()).unwrap();
    region.as_mut_slice().fill(1);
    let (last, bytes) = (1024 - 32, 32 * PAGE);
    let given_up = region.as_slice()[last * PAGE..].as_ptr();
    // SAFETY: whole pages of the region, which afterwards are zeros or unchanged.
    assert_eq!(unsafe { libc::madvise(given_up.cast_mut().cast(), bytes, libc::MADV_DONTNEED) }, 0);
    let before = region.stats();
    for version in 2..8 {
        for at in 0..last {
            fill(at as u64, version, &mut region.as_mut_slice()[at * PAGE..][..PAGE]);
        }
    }
    let busy = region.stats().busy_pages - before.busy_pages;
    // The kernel may use a page more or less while writing it out.
    assert!((32..64).contains(&busy), "{:?}", region.stats());
    assert!(region.as_slice()[last * PAGE..].iter().all(|&byte| byte == 0));
    settled(&region, 256);
}

/// The storage has room for the region and an eighth: without freed slots the rounds would fill it.
#[test]
fn discarded_memory_can_be_rewritten_round_after_round() {
    if !can_serve() {
        return;
    }
    let mut region = filled(1024, "cluster");
    let mut versions = vec![1u64; 1024];
    let mut state = 5;
    for round in 2..30 {
        let first = splitmix(&mut state) as usize % 1024;
        let count = splitmix(&mut state) as usize % (1024 - first) + 1;
        let (offset, bytes) = ((first * PAGE) as u64, (count * PAGE) as u64);
        match round % 3 {
            0 => region.will_need(offset, bytes),
            1 => {
                region.discard(offset, bytes);
                versions[first..first + count].fill(0);
            }
            _ => {}
        }
        for at in (first / 2..first + count).step_by(3) {
            versions[at] = round;
            fill(at as u64, round, &mut region.as_mut_slice()[at * PAGE..][..PAGE]);
        }
    }
    let memory = region.as_slice().chunks(PAGE).enumerate();
    memory.for_each(|(at, page)| check(at as u64, versions[at], page));
    settled(&region, 256);
}
