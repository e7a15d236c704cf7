//! A path with default options leaves its pages to the kernel. Read pages stay in the kernel page
//! cache, the policy's windows are advised, and our own machine makes no request.

mod support;

use std::future::Future;
use std::io::{IoSliceMut, Read, Write};
use std::task::Poll;
use std::time::{Duration, Instant};

use readpath::pager::{KernelMappingReason, MappingMode};
use readpath::{Advice, BufferedBecause, File, Mapping, Mode, PageCache, ReadPath};
use readpath_core::unit::PageRange;
use support::*;

const FILE_BYTES: usize = 8 << 20;
const PAGE: usize = 4096;
/// Time for attempts to start a read that does not complete at once.
const ATTEMPTS_TIME: Duration = Duration::from_secs(10);

/// A file without resident pages, its content, and a path with default options. `None`, with a skip
/// message, if the kernel keeps the pages.
fn cold() -> Option<(TempFile, Vec<u8>, ReadPath, File)> {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    if resident(&temp, 0..FILE_BYTES / PAGE) > 0 {
        eprintln!("skipped: the kernel can't be brought to drop the pages here");
        return None;
    }
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&temp.path).unwrap();
    Some((temp, content, path, file))
}

/// Number of resident pages in the range.
fn resident(temp: &TempFile, pages: std::ops::Range<usize>) -> usize {
    let file = std::fs::File::open(&temp.path).unwrap();
    let range = PageRange { first: pages.start as u64, end: pages.end as u64 };
    let held = readpath_record::cold::residency_flags(&file, range).unwrap();
    held.into_iter().filter(|&is_held| is_held).count()
}

/// Waits until all pages of the range are resident, after advice to the kernel; false on timeout.
fn comes_in(temp: &TempFile, pages: std::ops::Range<usize>) -> bool {
    let begun = Instant::now();
    while resident(temp, pages.clone()) < pages.len() {
        if begun.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn reads_are_right_and_stay_in_the_kernel_page_cache() {
    let Some((temp, content, path, file)) = cold() else { return };
    assert_eq!(file.mode(), Mode::Buffered(BufferedBecause::Kept));
    let mut all = vec![0; FILE_BYTES];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all == content);
    assert_eq!(resident(&temp, 0..FILE_BYTES / PAGE), FILE_BYTES / PAGE);
    // Past the end, at it, and across it.
    let mut tail = [0; 100];
    assert_eq!(file.read_at(&mut tail, FILE_BYTES as u64).unwrap(), 0);
    assert_eq!(file.read_at(&mut tail, FILE_BYTES as u64 - 10).unwrap(), 10);
    assert_eq!(tail[..10], content[FILE_BYTES - 10..]);
    let (mut low, mut high) = ([0; 30], [0; 70]);
    let parts = &mut [IoSliceMut::new(&mut low), IoSliceMut::new(&mut high)];
    assert_eq!(file.read_vectored_at(parts, 70_001).unwrap(), 100);
    assert_eq!([&low[..], &high[..]].concat(), content[70_001..70_101]);
    assert_eq!(file.page(70_001).unwrap()[..], content[70_001..18 * PAGE]);
    let mut read = Vec::new();
    file.reader().read_to_end(&mut read).unwrap();
    assert!(read == content);
    let stats = file.stats();
    assert_eq!(stats.bytes, (2 * FILE_BYTES + 10 + 100 + 18 * PAGE - 70_001) as u64);
    assert_eq!(stats.cached_bytes + stats.kernel_read_bytes, stats.bytes);
    assert_eq!((path.stats().device_reads, path.stats().used_memory_bytes), (0, 0));
}

const PIECES: u64 = 120;
const APART: u64 = 250_007;

/// Offset of a piece (random, without a stride) and its length, 4 to 48 KiB.
fn piece(nth: u64) -> (u64, usize) {
    (
        nth * 77 % PIECES * APART + nth * 7_919 % 190_000,
        4_096 + (nth * nth * 3_571 % 45_000) as usize,
    )
}

/// The number of pages brought in is tested on the modelled device
/// (`kernel_pages/kernel_readahead/tests.rs`).
#[test]
fn pieces_after_headers_are_right_without_device_reads_of_the_path() {
    let temp = TempFile::new((PIECES * APART) as usize);
    let content = std::fs::read(&temp.path).unwrap();
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&temp.path).unwrap();
    for (at, bytes) in (0..PIECES).map(piece) {
        let mut data = vec![0; bytes];
        let mut header = [0; 54];
        file.read_exact_at(&mut header[..30], at).unwrap();
        file.read_exact_at(&mut header[30..], at + 30).unwrap();
        file.read_exact_at(&mut data, at + 54).unwrap();
        assert!(header == content[at as usize..][..54]);
        assert!(data == content[at as usize + 54..][..bytes]);
    }
    assert_eq!((path.stats().device_reads, path.stats().used_memory_bytes), (0, 0));
}

/// Through the kernel page cache, cold and resident, and through the path's own memory.
#[test]
fn batch_reads_into_destinations_fill_their_own_rows() {
    let Some((temp, content, kept, _)) = cold() else { return };
    let own = ReadPath::builder().memory(4 << 20).kernel_cache(false).build().unwrap();
    for path in [&kept, &kept, &own] {
        let file = path.open(&temp.path).unwrap();
        let mut batch = path.batch();
        let at = |row: u64| row * 200_003 % (FILE_BYTES as u64);
        let mut rows = vec![vec![0; 9_000]; 40];
        (0..40).for_each(|row| batch.read(&file, at(row), 9_000, row).unwrap());
        let mut seen = 0;
        while let Some(put) = batch.wait_into(|row, _| &mut rows[row as usize][..]).unwrap() {
            seen += 1 << put.ticket;
            let end = (at(put.ticket) + 9_000).min(FILE_BYTES as u64);
            assert_eq!(put.bytes.unwrap() as u64, end - at(put.ticket));
        }
        assert_eq!(seen, (1u64 << 40) - 1);
        for (row, bytes) in rows.iter().enumerate() {
            let from = &content[at(row as u64) as usize..];
            let count = from.len().min(9_000);
            assert!(
                bytes[..count] == from[..count] && bytes[count..].iter().all(|&byte| byte == 0)
            );
        }
    }
}

#[test]
fn batch_reads_are_started_together_and_are_right() {
    let Some((temp, content, path, file)) = cold() else { return };
    let mut batch = path.batch();
    let places: Vec<u64> = (0..40).map(|at| at * 200_003 % (FILE_BYTES as u64 - 9_000)).collect();
    for (ticket, &at) in places.iter().enumerate() {
        batch.read(&file, at, 9_000, ticket as u64).unwrap();
    }
    // Across the end of the file, and past it.
    batch.read(&file, FILE_BYTES as u64 - 7, 100, 40).unwrap();
    batch.read(&file, FILE_BYTES as u64, 100, 41).unwrap();
    assert_eq!(batch.len(), 42);
    let last = places[39] as usize / PAGE;
    assert!(comes_in(&temp, last..last + 2), "the last one was not begun");
    let mut seen = [false; 42];
    while let Some(read) = batch.wait().unwrap() {
        let bytes = read.slices().unwrap().collect::<Vec<_>>().concat();
        let expected = match read.ticket() {
            40 => &content[FILE_BYTES - 7..],
            41 => &[],
            ticket => &content[places[ticket as usize] as usize..][..9_000],
        };
        assert!(bytes == expected, "{}", read.ticket());
        assert!(!std::mem::replace(&mut seen[read.ticket() as usize], true));
    }
    assert_eq!(seen, [true; 42]);
    assert_eq!(path.stats().device_reads, 0);
}

/// Each read has two or five pages, and all were absent before the batch. Larger ones than 16 KiB
/// are left to the caller by `wait_into`.
#[test]
fn batch_reads_of_absent_pages_count_as_awaited() {
    const COUNT: u64 = 60;
    for bytes in [8 << 10, 20 << 10] {
        let Some((temp, content, path, file)) = cold() else { return };
        file.advise(Advice::Random);
        let offset = |row: u64| row * 31 * PAGE as u64;
        let mut batch = path.batch();
        (0..COUNT).for_each(|row| batch.read(&file, offset(row), bytes, row).unwrap());
        assert!(comes_in(&temp, 59 * 31..59 * 31 + 2), "the last one was not begun");
        let mut rows = vec![vec![0; bytes as usize]; COUNT as usize];
        while let Some(put) = batch.wait_into(|row, _| &mut rows[row as usize][..]).unwrap() {
            assert_eq!(put.bytes.unwrap() as u64, bytes);
        }
        for (row, read) in (0..COUNT).zip(&rows) {
            assert!(read[..] == content[offset(row) as usize..][..bytes as usize]);
        }
        let (stats, path_stats) = (file.stats(), path.stats());
        assert_eq!((stats.bytes, stats.kernel_read_bytes), (COUNT * bytes, COUNT * bytes));
        let waited = (path_stats.kernel_waits, path_stats.kernel_read_bytes);
        assert_eq!(waited, (COUNT, COUNT * bytes), "reads of {bytes} bytes");
    }
}

/// The advised pages are tested on the modelled device.
#[test]
fn strided_and_descending_reads_are_right() {
    let Some((_temp, content, path, file)) = cold() else { return };
    let mut block = vec![0; 16 << 10];
    for at in (0..8).map(|nth| nth * (256 << 10) + (64 << 10)) {
        file.read_exact_at(&mut block, at as u64).unwrap();
        assert!(block == content[at..at + block.len()]);
    }
    let mut block = vec![0; 64 << 10];
    for nth in 1..=16 {
        let at = FILE_BYTES - nth * block.len();
        file.read_exact_at(&mut block, at as u64).unwrap();
        assert!(block == content[at..at + block.len()]);
    }
    assert_eq!(path.stats().device_reads, 0);
}

#[test]
fn prefetched_ranges_become_resident_and_unneeded_ones_leave() {
    let Some((temp, _content, path, file)) = cold() else { return };
    file.prefetch(1 << 20, 1 << 20);
    assert!(comes_in(&temp, 256..512));
    assert_eq!(resident(&temp, 600..FILE_BYTES / PAGE), 0);
    assert!(file.is_cached(1 << 20, 1 << 20));
    file.advise(Advice::DontNeed);
    assert_eq!(resident(&temp, 0..FILE_BYTES / PAGE), 0);
    assert!(!file.is_cached(1 << 20, 1 << 20));
    file.read_exact_at(&mut [0; 100], 5 << 20).unwrap();
    file.invalidate(5 << 20, 4096);
    assert_eq!(resident(&temp, (5 << 20) / PAGE..(5 << 20) / PAGE + 1), 0);
    assert_eq!(path.stats().device_reads, 0);
}

#[test]
fn shrunk_file_is_an_error_for_reads_and_batches() {
    let Some((temp, _content, path, file)) = cold() else { return };
    std::fs::File::options().write(true).open(&temp.path).unwrap().set_len(8192).unwrap();
    let error = file.read_exact_at(&mut [0; 4096], 6_000).unwrap_err();
    assert!(error.to_string().contains("shorter"), "{error}");
    let mut batch = path.batch();
    batch.read(&file, 6_000, 4096, 7).unwrap();
    let error = batch.wait().unwrap().unwrap().bytes().unwrap_err();
    assert!(error.to_string().contains("shorter"), "{error}");
}

/// A mapping with any option set is served if possible; one with default options may be left to the
/// kernel, and reports it.
#[test]
fn mapping_is_left_to_the_kernel_only_with_default_options() {
    let Some((temp, content, ..)) = cold() else { return };
    // SAFETY: the file does not change.
    let map = |builder: readpath::pager::MappingBuilder| unsafe { builder.open(&temp.path) };
    let left = MappingMode::Kernel { because: KernelMappingReason::KernelIsFast };
    let mapping = map(Mapping::builder()).unwrap();
    assert!(mapping.mode() == left || !can_serve() || mapping.mode() == MappingMode::Served);
    assert!(mapping.as_slice() == content);
    for named in [Mapping::builder().memory(1 << 20), Mapping::builder().readahead("none")] {
        readpath_record::cold::drop_pages(&temp.path).unwrap();
        let mapping = map(named).unwrap();
        assert_ne!(mapping.mode(), left);
        assert!(mapping.as_slice()[5 << 20..6 << 20] == content[5 << 20..6 << 20]);
    }
}

/// A file is buffered because the kernel caches its pages, or direct.
#[test]
fn mode_of_a_file_follows_from_the_page_cache_of_its_path() {
    let Some((temp, ..)) = cold() else { return };
    let builder = ReadPath::builder;
    let own = PageCache::Own { bytes: None };
    let is_kept = |builder: readpath::Builder| {
        let mode = builder.build().unwrap().open(&temp.path).unwrap().mode();
        mode == Mode::Buffered(BufferedBecause::Kept)
    };
    assert!(is_kept(builder()) && is_kept(builder().page_cache(PageCache::Kernel)));
    assert!(is_kept(builder().log_decisions(true)));
    for page_cache in [own, PageCache::None] {
        assert!(!is_kept(builder().page_cache(page_cache)));
        assert!(!is_kept(builder().page_cache(page_cache).depth(128)));
    }
    assert!(!is_kept(builder().memory(64 << 20)));
}

/// Decisions are logged only by option. Their content is tested on the modelled device.
#[test]
fn decisions_are_logged_only_with_the_option() {
    for is_on in [false, true] {
        let Some((temp, ..)) = cold() else { return };
        let path = ReadPath::builder().log_decisions(is_on).build().unwrap();
        let file = path.open(&temp.path).unwrap();
        for nth in 0..16 {
            file.read_exact_at(&mut [0; 4096], nth * (256 << 10) + 8192).unwrap();
        }
        let said = path.take_decisions();
        assert!(is_on || said.is_empty(), "{said:?}");
        assert!(path.take_decisions().is_empty());
    }
}

/// 64 concurrent reads of tasks: each is right, and our own machine makes no request.
#[test]
fn awaited_reads_come_through_the_kernel_page_cache() {
    let Some((temp, content, path, file)) = cold() else { return };
    let reads = (0..64).map(|at| {
        let place = at * 130_003 % (FILE_BYTES as u64 - 20_000);
        let read = file.read_at_async(vec![0; 20_000], place);
        (place, read)
    });
    let mut under_way: Vec<_> = reads.map(|(place, read)| (place, Box::pin(read))).collect();
    // All are begun before any is awaited.
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    under_way.retain_mut(|(place, read)| match read.as_mut().poll(&mut context) {
        Poll::Pending => true,
        Poll::Ready((bytes, buffer)) => {
            assert_eq!(bytes.unwrap(), 20_000);
            assert!(buffer == content[*place as usize..][..20_000]);
            false
        }
    });
    // Some are dropped without an effect.
    under_way.truncate(40);
    let last = (FILE_BYTES / PAGE) - 1;
    for (place, read) in under_way {
        let (bytes, buffer) = pollster::block_on(read);
        assert_eq!(bytes.unwrap(), 20_000);
        assert!(buffer == content[place as usize..][..20_000]);
    }
    let (bytes, buffer) =
        pollster::block_on(file.read_at_async(vec![0; 100], (last * PAGE + 4_000) as u64));
    assert_eq!((bytes.unwrap(), &buffer[..96]), (96, &content[last * PAGE + 4_000..]));
    assert_eq!(path.stats().device_reads, 0);
    assert_eq!(file.stats().cached_bytes + file.stats().kernel_read_bytes, file.stats().bytes);
    // A read of a truncated file returns a named error.
    std::fs::File::options().write(true).open(&temp.path).unwrap().set_len(8192).unwrap();
    let (bytes, _) = pollster::block_on(file.read_at_async(vec![0; 4096], 6_000));
    assert!(bytes.unwrap_err().to_string().contains("shorter"));
}

/// Bytes advised to the kernel during a stream; `None` if the kernel does not drop the file's
/// pages.
fn advised_of_stream(read: impl Fn(&File, u64) -> Vec<u8>) -> Option<u64> {
    let (_temp, content, path, file) = cold()?;
    for (nth, expected) in content.chunks(64 << 10).enumerate() {
        assert!(read(&file, nth as u64 * (64 << 10)) == expected);
    }
    Some(path.stats().kernel_advised_bytes)
}

/// If the kernel's own window is large enough, a stream is left to it, for threads and tasks:
/// advised pages would come in singly.
#[test]
fn stream_of_tasks_is_left_to_the_kernel_like_that_of_a_thread() {
    let by_thread = advised_of_stream(|file, place| {
        let mut read = vec![0; 64 << 10];
        file.read_exact_at(&mut read, place).unwrap();
        read
    });
    let by_tasks = advised_of_stream(|file, place| {
        let (bytes, read) = pollster::block_on(file.read_at_async(vec![0; 64 << 10], place));
        assert_eq!(bytes.unwrap(), 64 << 10);
        read
    });
    let (Some(by_thread), Some(by_tasks)) = (by_thread, by_tasks) else { return };
    if by_thread > FILE_BYTES as u64 / 8 {
        return eprintln!(
            "skipped: the kernel is advised of {by_thread} bytes of a thread's stream here"
        );
    }
    assert!(by_tasks <= FILE_BYTES as u64 / 8, "{by_tasks} bytes, {by_thread} by a thread");
}

/// A task's read whose pages the kernel evicts before the task is polled again, as under memory
/// pressure.
///
/// `None` if every read completes within its first poll, as on a busy machine with a fast disk.
fn read_and_let_go(temp: &TempFile, file: &File, page: usize, pages: usize) -> Option<Vec<u8>> {
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let begin = || {
        let mut read = Box::pin(file.read_at_async(vec![0; pages * PAGE], (page * PAGE) as u64));
        if read.as_mut().poll(context).is_pending() {
            return Some(read);
        }
        readpath_record::cold::drop_pages(&temp.path).unwrap();
        None
    };
    let begun = Instant::now();
    let attempts = std::iter::repeat_with(begin);
    let read = attempts.take_while(|_| begun.elapsed() < ATTEMPTS_TIME).find_map(|read| read);
    let Some(read) = read else {
        eprintln!("skipped: all reads completed within their first poll");
        return None;
    };
    assert!(comes_in(temp, page..page + pages));
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    let (result, bytes) = pollster::block_on(read);
    assert_eq!(result.unwrap(), pages * PAGE);
    Some(bytes)
}

/// The bytes are right whether or not the waiter thread ran before the eviction. (The unit tests of
/// `kernel_page_cache/submitted_reads.rs` check that it keeps up to 64 KiB for the task.)
#[test]
fn small_read_evicted_before_its_task_runs_is_right() {
    let Some((temp, content, _path, file)) = cold() else { return };
    for page in (100..2_000).step_by(100) {
        let Some(bytes) = read_and_let_go(&temp, &file, page, 16) else { return };
        assert!(bytes == content[page * PAGE..(page + 16) * PAGE]);
    }
}

/// A larger read may have to bypass the kernel page cache. Another handle reads the same bytes, and
/// both see later changes: none of these pages stays in the path's own cache.
#[test]
fn large_read_evicted_before_its_task_runs_is_right() {
    let Some((temp, content, _path, file)) = cold() else { return };
    let other = file.reopen();
    for page in (100..2_000).step_by(100) {
        let Some(bytes) = read_and_let_go(&temp, &file, page, 20) else { return };
        assert!(bytes == content[page * PAGE..(page + 20) * PAGE]);
        let mut again = vec![0; 20 * PAGE];
        other.read_exact_at(&mut again, (page * PAGE) as u64).unwrap();
        assert!(again == bytes);
    }
    let fresh = vec![0x5a; FILE_BYTES];
    // In place, because the handles have this file open.
    let mut written = std::fs::File::options().write(true).open(&temp.path).unwrap();
    written.write_all(&fresh).unwrap();
    for handle in [&file, &other] {
        let mut all = vec![0; FILE_BYTES];
        handle.read_exact_at(&mut all, 0).unwrap();
        assert!(all == fresh);
    }
}

/// A memory file system has no `RWF_NOWAIT`: 64 KiB come as a copy of the waiter thread, more do
/// not.
#[test]
fn future_without_nowait_is_read_once_through_the_kernel_page_cache() {
    let directory = std::path::Path::new("/dev/shm");
    if !directory.is_dir() {
        return eprintln!("skipped: no memory file system at {}", directory.display());
    }
    let temp = TempFile::in_directory(directory, 1 << 20);
    let content = std::fs::read(&temp.path).unwrap();
    for bytes in [64 << 10, (64 << 10) + 1, 1 << 20] {
        let path = ReadPath::builder().build().unwrap();
        let file = path.open(&temp.path).unwrap();
        for _ in 0..3 {
            let (count, buffer) = pollster::block_on(file.read_at_async(vec![0; bytes], 0));
            assert_eq!(count.unwrap(), bytes);
            assert!(buffer == content[..bytes]);
        }
        let stats = path.stats();
        let found = (stats.device_reads, stats.used_memory_bytes, stats.kernel_read_bytes);
        assert_eq!(found, (0, 0, 3 * bytes as u64), "{bytes} bytes");
    }
}

/// The second buffer is filled in part, or the third not at all.
#[test]
fn vectored_read_across_the_end_of_file_stays_in_the_kernel_page_cache() {
    let temp = TempFile::new(100_000);
    let content = std::fs::read(&temp.path).unwrap();
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&temp.path).unwrap();
    for offset in [0, 34_464, 99_999, 100_000] {
        let [mut low, mut high, mut last] = [(); 3].map(|()| vec![0; 64 << 10]);
        let buffers = &mut [&mut low, &mut high, &mut last].map(|buffer| IoSliceMut::new(buffer));
        let count = file.read_vectored_at(buffers, offset).unwrap();
        let found = [low, high, last].concat();
        assert!(found[..count] == content[offset as usize..], "{count} bytes at {offset}");
        assert!(found[count..].iter().all(|&byte| byte == 0));
    }
    assert_eq!((path.stats().device_reads, path.stats().used_memory_bytes), (0, 0));
}

/// One preadv2(2) takes 1,024 buffers (`UIO_MAXIOV`). The other buffers are no miss.
#[test]
fn resident_read_of_more_buffers_than_one_call_takes_awaits_nothing() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    if resident(&temp, 0..FILE_BYTES / PAGE) < FILE_BYTES / PAGE {
        return eprintln!("skipped: the file is not resident");
    }
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut rows = vec![[0; 512]; 2_500];
    let mut buffers: Vec<_> = rows.iter_mut().map(|row| IoSliceMut::new(row)).collect();
    assert_eq!(file.read_vectored_at(&mut buffers, 7).unwrap(), 2_500 * 512);
    assert!(rows.concat() == content[7..][..2_500 * 512]);
    assert_eq!((file.stats().kernel_read_bytes, path.stats().kernel_waits), (0, 0));
}
