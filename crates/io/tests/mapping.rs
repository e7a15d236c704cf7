//! A mapped file: every byte is the file's for all policies, memory sizes and numbers of threads;
//! and the number of device requests.

mod support;

use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use readpath::pager::FaultScope;
use readpath::pager::{KernelMappingReason, LoadError, MappingBuilder, MappingMode};
use readpath::{BackendKind, Mapping};
use readpath_core::machine::ReadError;
use readpath_core::readahead::{self, Advice};
use support::{
    BACKENDS, TempFile, can_serve, has_swap, in_child, limit_further_data, resident_bytes, splitmix,
};

const PAGE: usize = 4096;

fn map(file: &TempFile, options: MappingBuilder) -> Mapping {
    // SAFETY: the file belongs to the test, which changes it only where stated, without a live
    // slice.
    unsafe { options.open(&file.path) }.unwrap()
}

/// Random ranges by several concurrent threads, with memory for a fifth of the file.
#[test]
fn mapping_equals_the_file_for_threads_policies_and_backends() {
    if !can_serve() {
        return;
    }
    let bytes = 5 * (1 << 20) + 1234;
    let file = TempFile::new(bytes);
    let content = std::fs::read(&file.path).unwrap();
    for policy in readahead::POLICIES {
        for backend in BACKENDS {
            let options =
                Mapping::builder().kernel_cache(false).readahead(policy.name).backend(backend);
            let mapping = map(&file, options.memory(1 << 20));
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (mapping, content) = (&mapping, &content);
                    scope.spawn(move || {
                        let mut state = thread;
                        for _ in 0..300 {
                            let first = splitmix(&mut state) as usize % bytes;
                            let most = [100, 10_000, 100_000][splitmix(&mut state) as usize % 3];
                            let end = (first + splitmix(&mut state) as usize % most).min(bytes);
                            assert!(mapping.as_slice()[first..end] == content[first..end]);
                        }
                    });
                }
            });
            let statistics = mapping.stats();
            assert!(statistics.evicted_pages > 0, "{statistics:?}");
            assert!(statistics.resident_pages <= 256, "{statistics:?}");
            assert_eq!(statistics.poisoned_pages, 0);
        }
    }
}

/// Threads touch somewhat more pages than the memory has: some pages are read again in one request
/// with a page that takes their frame.
#[test]
fn each_page_that_was_read_is_evicted_once_or_resident() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(1024 * PAGE);
    let mapping = map(&file, Mapping::builder().kernel_cache(false).memory(256 * PAGE as u64));
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let mapping = &mapping;
            scope.spawn(move || {
                let (mut state, mut sum) = (thread, 0u64);
                for _ in 0..3_000 {
                    let page = splitmix(&mut state) as usize % 300;
                    sum += u64::from(mapping.as_slice()[page * PAGE]);
                }
                assert!(sum > 0);
            });
        }
    });
    let statistics = mapping.stats();
    let pages_read = statistics.device_read_bytes / PAGE as u64;
    assert_eq!(statistics.evicted_pages + statistics.resident_pages, pages_read, "{statistics:?}");
}

#[test]
fn mapping_memory_stays_within_the_budget_and_is_freed_on_drop() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(8 << 20);
    let mapping = map(&file, Mapping::builder().kernel_cache(false).memory(1 << 20));
    let address = mapping.as_slice().as_ptr() as usize;
    let mut sum = 0u64;
    for (at, page) in mapping.as_slice().chunks(PAGE).enumerate() {
        sum += u64::from(page[7]);
        if at % 256 == 255 {
            let resident = resident_bytes(address).unwrap();
            assert!(resident <= 1 << 20, "{resident} bytes resident after {at} pages");
            // Up to half of the memory holds prefetched pages that are not mapped yet.
            assert!(resident > 1 << 18, "{resident} bytes resident after {at} pages");
        }
    }
    assert!(sum > 0);
    drop(mapping);
    assert_eq!(resident_bytes(address), None, "its addresses are free");
}

/// Slices of 64 KiB at random offsets, touched page by page in order. Each takes two faults (the
/// first page and the marked one in the middle) and one awaited request. At first the policy also
/// prefetches as much again beyond the slice; costly requests delay the end of that.
#[test]
fn random_slices_wait_for_one_request_each() {
    if !can_serve() {
        return;
    }
    let file = TempFile::of(&support::content(64 << 20), 16);
    let mapping = map(&file, Mapping::builder().kernel_cache(false));
    // Each of the 16,384 slices once, in random order.
    let mut order: Vec<usize> = (0..16384).collect();
    let mut state = 7;
    for at in (1..order.len()).rev() {
        order.swap(at, (splitmix(&mut state) % (at as u64 + 1)) as usize);
    }
    let touch = |places: std::ops::Range<usize>| {
        let mut sum = 0u64;
        for place in places {
            let first = order[place] * 65_536;
            for page in 0..16 {
                sum += u64::from(mapping.as_slice()[first + page * PAGE]);
            }
        }
        sum
    };
    assert!(touch(0..200) > 0);
    let before = mapping.stats();
    assert!(touch(200..600) > 0);
    let after = mapping.stats();
    let waited = after.faults_read - before.faults_read;
    assert!((380..=420).contains(&waited), "{waited}");
    let requests = after.device_reads - before.device_reads;
    assert!((waited..=3 * waited).contains(&requests), "{requests}");
    let bytes = after.device_read_bytes - before.device_read_bytes;
    assert!(bytes <= 2 * 400 * 65_536, "{bytes}");
    let faults = after.faults - before.faults;
    assert!(faults <= 3 * 400, "{faults}");
}

#[test]
fn loaded_range_takes_one_request_and_one_fault() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(4 << 20);
    let mapping = map(&file, Mapping::builder().kernel_cache(false));
    mapping.load(1 << 20, 40 * PAGE as u64).unwrap();
    let statistics = mapping.stats();
    assert_eq!((statistics.device_reads, statistics.faults), (1, 0), "{statistics:?}");
    let slice = &mapping.as_slice()[1 << 20..(1 << 20) + 40 * PAGE];
    assert!(slice == support::pread(&file.path, 1 << 20, 40 * PAGE as u64));
    let statistics = mapping.stats();
    assert_eq!((statistics.device_reads, statistics.faults), (1, 1), "{statistics:?}");
    mapping.advise(Advice::DontNeed, 0, 4 << 20);
    assert_eq!(mapping.stats().resident_pages, 0);
    assert_eq!(resident_bytes(slice.as_ptr() as usize), Some(0));
    assert!(slice == support::pread(&file.path, 1 << 20, 40 * PAGE as u64));
}

#[test]
fn read_at_returns_resident_and_absent_bytes() {
    if !can_serve() {
        return;
    }
    let bytes = (3 << 20) + 77;
    let file = TempFile::new(bytes);
    let content = std::fs::read(&file.path).unwrap();
    let mapping = map(&file, Mapping::builder().kernel_cache(false).memory(1 << 20));
    assert_eq!(mapping.as_slice()[bytes - 1], content[bytes - 1]);
    for (offset, length) in [(0, bytes), (bytes - 5000, 5000), (4095, 2), (100, 0), (bytes, 0)] {
        let mut buffer = vec![0; length];
        mapping.read_exact_at(&mut buffer, offset as u64).unwrap();
        assert!(buffer == content[offset..offset + length], "{length} bytes at {offset}");
    }
    let past = mapping.read_exact_at(&mut [0; 2], bytes as u64 - 1);
    assert_eq!(past, Err(LoadError::PastEnd { bytes: bytes as u64 }));
    assert_eq!(mapping.load(u64::MAX, 2), Err(LoadError::PastEnd { bytes: bytes as u64 }));
}

/// A system call with absent pages brings them in, if this process may serve kernel accesses.
#[test]
fn system_calls_accept_mapping_memory() {
    if !can_serve() {
        return;
    }
    let (file, out) = (TempFile::new(1 << 20), TempFile::new(1));
    let mapping = map(&file, Mapping::builder().kernel_cache(false).memory(64 << 10));
    let written = std::fs::File::options()
        .write(true)
        .open(&out.path)
        .unwrap()
        .write_all_at(mapping.as_slice(), 0);
    match mapping.scope() {
        FaultScope::All => {
            written.unwrap();
            assert!(std::fs::read(&out.path).unwrap() == std::fs::read(&file.path).unwrap());
        }
        // EFAULT is 14 in errno(3).
        FaultScope::UserOnly => assert_eq!(written.unwrap_err().raw_os_error(), Some(14)),
    }
}

fn cut_short(file: &TempFile, bytes: u64) {
    std::fs::File::options().write(true).open(&file.path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn unreadable_bytes_are_errors_of_load_and_read_at() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(1 << 20);
    let mapping = map(&file, Mapping::builder().kernel_cache(false).readahead("none"));
    let start = support::pread(&file.path, 0, 1 << 19);
    cut_short(&file, 1 << 19);
    let shrunk = Err(LoadError::Read(ReadError::Shrunk { offset: 1 << 19 }));
    assert_eq!(mapping.load(1 << 19, 4096), shrunk);
    assert_eq!(mapping.read_exact_at(&mut [0; 8192], (1 << 19) - 4096), shrunk);
    let mut buffer = vec![0; 1 << 19];
    mapping.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == start, "what is there can still be read");
    // The file ends within the page of the last bytes, behind them.
    cut_short(&file, 300_001);
    mapping.advise(Advice::DontNeed, 0, 1 << 20);
    mapping.read_exact_at(&mut buffer[..9_000], 291_000).unwrap();
    assert!(buffer[..9_000] == start[291_000..300_000]);
    let shrunk = Err(LoadError::Read(ReadError::Shrunk { offset: 300_001 }));
    assert_eq!(mapping.read_exact_at(&mut buffer[..9_002], 291_000), shrunk);
}

/// An access to unreadable bytes is a bus error, tested in a separate process; SIGBUS is 7 in
/// signal(7).
#[test]
fn touch_of_unreadable_bytes_is_a_bus_error() {
    use std::os::unix::process::ExitStatusExt;
    if !can_serve() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program)
        .args(["--exact", "child_touches_truncated_bytes", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let child_output = String::from_utf8_lossy(&child.stdout).into_owned();
    assert_eq!(child.status.signal(), Some(7), "{child_output}");
    let path =
        child_output.lines().find_map(|line| line.strip_prefix("file ")).expect("the child's file");
    std::fs::remove_file(path).unwrap();
}

#[test]
#[ignore = "ends its process by a bus error; run by the test above"]
fn child_touches_truncated_bytes() {
    let file = TempFile::new(1 << 20);
    println!("file {}", file.path.display());
    let mapping = map(&file, Mapping::builder().kernel_cache(false));
    cut_short(&file, 1 << 19);
    let byte = std::hint::black_box(mapping.as_slice())[(1 << 20) - 1];
    println!("read {byte}");
}

#[test]
fn an_unknown_policy_and_an_empty_file_are_refused_by_name() {
    if !can_serve() {
        return;
    }
    let open = |file: &TempFile, policy| {
        // SAFETY: the open fails, so no memory is mapped.
        let opened =
            unsafe { Mapping::builder().kernel_cache(false).readahead(policy).open(&file.path) };
        opened.unwrap_err().to_string()
    };
    assert!(open(&TempFile::new(10), "guess").contains("no readahead policy `guess`"));
    assert!(open(&TempFile::new(0), "runs").contains("empty"));
}

/// In a child and a grandchild, existing slices are read through the kernel. After the mapping is
/// dropped, children no longer have its addresses.
#[test]
fn forked_child_reads_the_mapping_through_the_kernel() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(1_000_001);
    let content = std::fs::read(&file.path).unwrap();
    let mapping = map(&file, Mapping::builder().kernel_cache(false).memory(64 << 10));
    let slice = mapping.as_slice();
    assert!(slice[500_000..] == content[500_000..]);
    let is_whole = || slice == content;
    assert_eq!(mapping.mode(), MappingMode::Served);
    assert!(in_child(|| {
        let forked = MappingMode::Kernel { because: KernelMappingReason::Forked };
        assert_eq!(mapping.mode(), forked);
        mapping.advise(Advice::Random, 0, 1_000_001);
        mapping.advise(Advice::DontNeed, 4_096, 1 << 40);
        let mut part = [0; 9];
        mapping.load(123, 500_000).unwrap();
        mapping.read_exact_at(&mut part, 999_992).unwrap();
        let past_end = LoadError::PastEnd { bytes: 1_000_001 };
        assert_eq!(mapping.load(1, 1_000_001), Err(past_end));
        is_whole() && part == content[999_992..] && in_child(is_whole)
    }));
    assert!(is_whole() && mapping.stats().faults > 0);
    assert!(in_child(|| is_mapped(&file)));
    drop(mapping);
    // Opened often enough to reuse the mapping's descriptor number.
    let next = TempFile::new(4096);
    let _opened: Vec<_> = (0..64).map(|_| std::fs::File::open(&next.path).unwrap()).collect();
    assert!(in_child(|| !is_mapped(&file) && !is_mapped(&next)));
}

/// Ranges of this process's memory with a flag of smaps (proc_pid_smaps(5)) in an area: first byte
/// and end, in bytes from its start.
fn flagged_ranges(area: &[u8], flag: &str) -> Vec<(usize, usize)> {
    let start = area.as_ptr() as usize;
    let (mut ranges, mut range) = (Vec::new(), 0..0);
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = |hex| usize::from_str_radix(hex, 16).ok();
        if let Some((first, end)) = words[0].split_once('-') {
            range = address(first).unwrap()..address(end).unwrap();
        }
        let is_in_area = range.start >= start && range.start < start + area.len();
        if words[0] == "VmFlags:" && is_in_area && words.contains(&flag) {
            ranges.push((range.start - start, range.end - start));
        }
    }
    ranges
}

/// The kernel gets advice for the pages of the range, and none for an empty one. In smaps, `rr` is
/// random access and `sr` is sequential access.
#[test]
fn kernel_mapping_is_advised_of_the_pages_of_the_range() {
    let file = TempFile::new(100_000);
    std::fs::read(&file.path).unwrap();
    let mapping = map(&file, Mapping::builder());
    if !matches!(mapping.mode(), MappingMode::Kernel { .. }) {
        return eprintln!("skipped: {}", mapping.mode());
    }
    mapping.advise(Advice::Random, 5_000, 4_000);
    mapping.advise(Advice::Sequential, 20_000, 0);
    mapping.advise(Advice::Sequential, 200_000, 10);
    let ranges = ["rr", "sr"].map(|flag| flagged_ranges(mapping.as_slice(), flag));
    assert_eq!(ranges, [vec![(4_096, 12_288)], vec![]]);
    // Cut to the file, whose last page is the 25th.
    mapping.advise(Advice::Sequential, 90_112, u64::MAX);
    assert_eq!(flagged_ranges(mapping.as_slice(), "sr"), [(90_112, 102_400)]);
}

/// A child can drop an inherited mapping, whose thread it does not have.
#[test]
fn forked_child_can_drop_an_inherited_mapping() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(10_000);
    let mut mapping = Some(map(&file, Mapping::builder().kernel_cache(false)));
    assert!(in_child(|| mapping.take().is_some_and(|owned| owned.len() == 10_000)));
    assert!(mapping.unwrap().as_slice() == std::fs::read(&file.path).unwrap());
}

/// True if the kernel maps the file in this process.
fn is_mapped(file: &TempFile) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.ends_with(file.path.to_str().unwrap()))
}

/// With active swap (`swapon(8)`), the kernel may swap out our pages like any memory.
#[test]
fn mapping_pages_swapped_out_by_the_kernel_keep_their_bytes() {
    if !can_serve() || !has_swap() {
        return;
    }
    let file = TempFile::new(1 << 20);
    let content = std::fs::read(&file.path).unwrap();
    let mapping = map(&file, Mapping::builder().kernel_cache(false).memory(4 << 20));
    assert!(mapping.as_slice() == content);
    let address = mapping.as_slice().as_ptr().cast_mut().cast();
    // SAFETY: memory of the mapping, whose bytes do not change (madvise(2)).
    assert_eq!(unsafe { libc::madvise(address, mapping.len(), libc::MADV_PAGEOUT) }, 0);
    let mut copied = vec![0; 1 << 20];
    mapping.read_exact_at(&mut copied, 0).unwrap();
    assert!(copied == content);
    assert!(mapping.as_slice() == content);
    assert_eq!(mapping.stats().poisoned_pages, 0);
}

/// The serving thread runs on the core of the touching thread. The threads that it starts for I/O
/// may run on all.
#[test]
fn io_threads_of_a_mapping_may_run_on_all_cores() {
    if !can_serve() {
        return;
    }
    if std::thread::available_parallelism().unwrap().get() == 1 {
        eprintln!("skipped: one core shows no pinned thread");
        return;
    }
    // The cores that the kernel allows a thread, from status (proc(5)).
    let allowed_cores = |task: &std::path::Path| {
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"))?;
        Some(line.to_owned())
    };
    let file = TempFile::new(4 << 20);
    let options = Mapping::builder().kernel_cache(false).backend(BackendKind::Threads);
    let mapping = map(&file, options.readahead("none"));
    let bytes = mapping.as_slice();
    // At the 64th fault at the latest the serving thread moves.
    let sum: usize = (0..bytes.len()).step_by(PAGE).map(|at| usize::from(bytes[at])).sum();
    assert!(sum > 0);
    let own_cores = allowed_cores("/proc/thread-self".as_ref()).unwrap();
    let mut io_threads = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if !name.starts_with("readpath-io-") {
            continue;
        }
        // A thread has its name before its cores.
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut cores = allowed_cores(&task.path());
        while cores.as_ref().is_some_and(|cores| *cores != own_cores) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            cores = allowed_cores(&task.path());
        }
        // A thread of another test may have ended meanwhile.
        let Some(cores) = cores else { continue };
        assert_eq!(cores, own_cores, "{name}");
        io_threads += 1;
    }
    assert!(io_threads > 0, "no thread has this name");
}

/// The process may have 1 GiB more of writable memory, and the file has 4 GiB. A mapping that is
/// not writable does not count.
#[test]
fn mapping_beyond_the_limit_of_writable_memory_is_the_kernels() {
    if !can_serve() {
        return;
    }
    const LONG: u64 = 4 << 30;
    let file = TempFile::new(1 << 20);
    let writer = std::fs::File::options().write(true).open(&file.path).unwrap();
    writer.set_len(LONG).unwrap();
    writer.write_all_at(b"the end", LONG - 7).unwrap();
    assert!(in_child(|| {
        limit_further_data(1 << 30);
        // SAFETY: the file does not change.
        let mapping = match unsafe { Mapping::builder().kernel_cache(false).open(&file.path) } {
            Ok(mapping) => mapping,
            Err(error) => panic!("{error}"),
        };
        let mode = mapping.mode().to_string();
        assert!(mode.contains("ulimit -d") && mode.contains("vm.overcommit_memory"), "{mode}");
        let offsets = [0, 123_456, (1 << 20) - 100, 2 << 30, LONG - 4_096];
        offsets.into_iter().all(|offset| {
            let end = offset as usize + 4_096;
            mapping.as_slice()[offset as usize..end] == support::pread(&file.path, offset, 4_096)
        })
    }));
}

/// Each limit leaves one descriptor more, from none to enough for a mapping with a server.
#[test]
fn mapping_without_descriptors_for_its_server_is_an_error_if_the_kernel_may_not_map() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(1 << 20);
    assert!(in_child(|| {
        let next = std::fs::File::open(&file.path).unwrap();
        let first_free = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
        drop(next);
        let (mut errors, mut served) = (0, 0);
        for free in 0..16 {
            let limit = libc::rlimit { rlim_cur: first_free + free, rlim_max: 1_024 };
            // SAFETY: the struct lives through the call, which changes this child alone.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
            // SAFETY: the file does not change.
            match unsafe { Mapping::builder().kernel_cache(false).open(&file.path) } {
                Ok(mapping) if mapping.mode() == MappingMode::Served => served += 1,
                Ok(mapping) => panic!("{free} descriptors: {}", mapping.mode()),
                Err(_) => errors += 1,
            }
        }
        errors > 1 && served > 0
    }));
}
