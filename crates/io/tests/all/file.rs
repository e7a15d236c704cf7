//! Public API over real files: every byte is the file's, by every kind of read.

use std::io::{BufRead, IoSliceMut, Read, Seek, SeekFrom};

use crate::support::*;
use readpath::{Advice, BackendKind, BuildError, Coherence, File, ReadError, ReadPath};
use readpath_core::machine::ConfigError;
use readpath_core::readahead;

const FILE_BYTES: usize = 3 * (1 << 20) + 1234;

fn path(memory: u64, policy: &str, backend: BackendKind) -> ReadPath {
    ReadPath::builder()
        .kernel_cache(false)
        .memory(memory)
        .readahead(policy)
        .backend(backend)
        .build()
        .unwrap()
}

fn next(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*state >> 33) % below
}

/// Expected bytes of `read_at`, from the content.
fn expected(content: &[u8], offset: u64, bytes: usize) -> &[u8] {
    let start = (offset as usize).min(content.len());
    &content[start..(start + bytes).min(content.len())]
}

fn check(file: &File, content: &[u8], offset: u64, bytes: usize) {
    let mut buffer = vec![0; bytes];
    let count = file.read_at(&mut buffer, offset).unwrap();
    assert!(buffer[..count] == *expected(content, offset, bytes), "{bytes} bytes at {offset}");
}

/// Reads, vectored reads, guards, hints, prefetches and invalidations, with memory from two pages
/// to more than the file.
#[test]
fn reads_equal_the_file_for_every_memory_size_and_policy() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    let rounds = std::env::var("READPATH_ROUNDS").map_or(60, |text| text.parse().unwrap());
    for backend in BACKENDS {
        for policy in readahead::POLICIES.iter().map(|policy| policy.name) {
            for memory in [2 * 4096, 5 * 4096, 300 << 10, 8 << 20] {
                let path = path(memory, policy, backend);
                let file = path.open(&temp.path).unwrap();
                let other = file.reopen();
                let mut state = memory ^ policy.len() as u64;
                for _ in 0..rounds {
                    let offset = next(&mut state, FILE_BYTES as u64 + 5000);
                    let most = [10, 5000, 100_000][next(&mut state, 3) as usize];
                    let bytes = next(&mut state, most) as usize;
                    let file = if next(&mut state, 3) == 0 { &other } else { &file };
                    match next(&mut state, 9) {
                        0 => file.advise(Advice::Sequential),
                        1 => file.advise(Advice::Random),
                        2 => file.prefetch(offset, bytes as u64),
                        3 => file.advise(Advice::DontNeed),
                        4 => file.invalidate(offset, bytes as u64),
                        5 => {
                            let guard = file.page(offset).unwrap();
                            let end = (offset / 4096 + 1) * 4096 - offset;
                            assert!(*guard == *expected(&content, offset, end as usize));
                        }
                        6 => {
                            let mut parts = [vec![0; bytes / 3], vec![0; bytes / 2]];
                            let [first, second] = &mut parts;
                            let slices = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
                            let count = file.read_vectored_at(slices, offset).unwrap();
                            let got = parts.concat();
                            assert!(got[..count] == *expected(&content, offset, got.len()));
                        }
                        _ => check(file, &content, offset, bytes),
                    }
                }
            }
        }
    }
}

#[test]
fn reads_at_the_ends_of_the_file_are_exact() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    let path = path(1 << 20, "ondemand", BackendKind::Ring);
    let file = path.open(&temp.path).unwrap();
    let end = FILE_BYTES as u64;
    for (offset, bytes) in
        [(0, 1), (end - 1, 1), (end - 1, 100), (end, 1), (end + 9999, 10), (4095, 2), (0, 0)]
    {
        check(&file, &content, offset, bytes);
    }
    let mut buffer = [0; 10];
    let error = file.read_exact_at(&mut buffer, end - 9).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    // Larger than the memory.
    check(&file, &content, 1000, FILE_BYTES);
}

#[test]
fn empty_file_returns_no_bytes_until_grown_and_revalidated() {
    let temp = TempFile::new(0);
    let path = path(1 << 20, "ondemand", BackendKind::Ring);
    let mut file = path.open(&temp.path).unwrap();
    let mut buffer = [0; 10];
    assert_eq!((file.len(), file.is_empty()), (0, true));
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 0);
    assert_eq!(file.read_at(&mut buffer, 5000).unwrap(), 0);
    assert!(file.page(0).unwrap().is_empty());
    let parts = &mut [IoSliceMut::new(&mut buffer)];
    assert_eq!(file.read_vectored_at(parts, 0).unwrap(), 0);
    assert_eq!(file.reader().read(&mut buffer).unwrap(), 0);
    let (count, _) = pollster::block_on(file.read_at_async(vec![0; 10], 0));
    assert_eq!(count.unwrap(), 0);
    file.advise(Advice::WillNeed);
    file.prefetch(0, 4096);
    file.invalidate(0, 4096);
    let mut batch = path.batch();
    batch.read(&file, 0, 10, 7).unwrap();
    let read = batch.wait().unwrap().unwrap();
    assert_eq!((read.ticket(), read.bytes().unwrap(), read.slices().unwrap().count()), (7, 0, 0));
    assert!(batch.wait().unwrap().is_none());
    assert!(!file.revalidate().unwrap());
    std::fs::write(&temp.path, b"grown").unwrap();
    assert!(path.open(&temp.path).unwrap().len() == 5 && file.is_empty());
    assert!(file.revalidate().unwrap());
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 5);
    assert_eq!(buffer[..5], *b"grown");
    assert_eq!(path.stats().device_reads, 1);
}

#[test]
fn kernel_generated_file_is_refused_by_name() {
    let path = path(1 << 20, "none", BackendKind::Ring);
    // A namespace has no length, and read(2) of it is EINVAL.
    let namespace = path.open("/proc/self/ns/mnt").err().map(|error| error.to_string());
    let is_named = |text: &String| text.contains("is made by the kernel as it is read");
    assert!(namespace.as_ref().is_some_and(is_named), "{namespace:?}");
    let Err(error) = path.open("/proc/self/status") else { panic!("it has no length") };
    assert_eq!(
        error.to_string(),
        "/proc/self/status: is made by the kernel as it is read, and can't be cached; read it with std::fs"
    );
}

/// A thread may do any read while it holds a read of a batch, even if the memory fits little more
/// than one.
#[test]
fn thread_never_waits_for_pages_pinned_by_its_own_batches() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    for memory in [2, 3, 5, 8, 16, 40, 100u64].map(|pages| pages * 4096) {
        let path = path(memory, "none", BackendKind::Ring);
        let file = path.open(&temp.path).unwrap();
        let mut batches = [path.batch(), path.batch(), path.batch()];
        // The largest read that the path allows; at least a page.
        let bytes_max = (1..)
            .map(|pages| pages * 4096)
            .take_while(|&bytes| path.batch().read(&file, 0, bytes, 0).is_ok());
        let bytes = bytes_max.last().unwrap();
        for (at, batch) in (0..).zip(&mut batches) {
            for read in 0..3 {
                batch.read(&file, (at * 3 + read) * bytes, bytes, read).unwrap();
            }
        }
        for _ in 0..3 {
            let reads = batches.each_mut().map(|batch| batch.wait().unwrap().unwrap());
            check(&file, &content, 2_000_000, 5 * memory as usize);
            check(&file, &content, 2_500_000, 1);
            let (count, _) = pollster::block_on(file.read_at_async(vec![0; 50_000], 1_000_000));
            assert_eq!(count.unwrap(), 50_000);
            for (at, read) in (0..).zip(&reads) {
                let mut buffer = vec![0; bytes as usize];
                assert_eq!(read.copy_to(&mut buffer).unwrap(), buffer.len());
                let offset = (at * 3 + read.ticket()) * bytes;
                assert!(buffer == expected(&content, offset, buffer.len()), "{memory}");
            }
        }
    }
}

#[test]
fn cached_bytes_cost_no_device_read_and_one_more_byte_costs_one() {
    let temp = TempFile::new(FILE_BYTES);
    // Drop the pages from the kernel page cache too, where the write left them.
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    let path = path(8 << 20, "none", BackendKind::Ring);
    let file = path.open(&temp.path).unwrap();
    let mut buffer = vec![0; 65_537];
    file.read_exact_at(&mut buffer[..65_536], 0).unwrap();
    assert_eq!(path.stats().device_reads, 1);
    file.read_exact_at(&mut buffer[..65_536], 0).unwrap();
    assert_eq!(path.stats().device_reads, 1);
    file.read_exact_at(&mut buffer, 0).unwrap();
    let stats = path.stats();
    assert_eq!((stats.device_reads, stats.device_bytes), (2, 65_536 + 4096));
    let stats = file.stats();
    assert_eq!(stats.bytes, 3 * 65_536 + 1);
    assert_eq!(stats.cached_bytes, 2 * 65_536);
}

#[test]
fn reader_seeks_and_splits_lines_at_its_position() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    let path = path(1 << 20, "ondemand", BackendKind::Ring);
    let mut reader = path.open(&temp.path).unwrap().reader();
    reader.seek(SeekFrom::End(-10_000)).unwrap();
    let mut got = vec![0; 100];
    reader.read_exact(&mut got).unwrap();
    let line = reader.by_ref().split(b'\n').next().unwrap().unwrap();
    got.extend_from_slice(&line);
    let start = FILE_BYTES - 10_000;
    assert!(got == content[start..start + got.len()]);
    assert_eq!(content.get(start + got.len()).copied().unwrap_or(b'\n'), b'\n');
    assert_eq!(reader.stream_position().unwrap(), (start + got.len() + 1) as u64);
    assert!(reader.seek(SeekFrom::Current(-(FILE_BYTES as i64) * 2)).is_err());
    reader.rewind().unwrap();
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    assert!(all == content);
}

#[test]
fn batch_returns_each_read_once_by_its_ticket() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    for backend in BACKENDS {
        for memory in [16 * 4096, 4 << 20] {
            let path = path(memory, "ondemand", backend);
            let file = path.open(&temp.path).unwrap();
            let mut batch = path.batch();
            let mut state = 5;
            let mut asked: Vec<Option<(u64, u64)>> = Vec::new();
            let mut buffer = vec![0; 20_000];
            for round in 0..300 {
                let (offset, bytes) =
                    (next(&mut state, FILE_BYTES as u64 + 99), next(&mut state, 9000));
                batch.read(&file, offset, bytes, round).unwrap();
                asked.push(Some((offset, bytes)));
                if round < 32 {
                    continue;
                }
                let read = batch.wait().unwrap().unwrap();
                let (offset, bytes) = asked[read.ticket() as usize].take().unwrap();
                let count = read.copy_to(&mut buffer).unwrap();
                assert!(buffer[..count] == *expected(&content, offset, bytes as usize));
                // Another read by the same thread while the batch pins much of the memory.
                if round % 7 == 0 {
                    check(&file, &content, next(&mut state, FILE_BYTES as u64), 4096);
                }
            }
            assert_eq!(batch.len(), 32);
            while let Some(read) = batch.wait().unwrap() {
                assert!(asked[read.ticket() as usize].take().is_some());
            }
            assert!(asked.iter().all(Option::is_none) && batch.is_empty());
        }
    }
}

/// A read of a batch that ends past the end of the file is as long as its bytes there.
#[test]
fn batch_reads_past_the_end_are_limited_by_their_bytes_in_the_file() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    let own = readpath::PageCache::Own { bytes: Some(64 << 10) };
    for page_cache in [readpath::PageCache::Kernel, own, readpath::PageCache::None] {
        let path = ReadPath::builder().page_cache(page_cache).build().unwrap();
        let file = path.open(&temp.path).unwrap();
        for left in [5_000, 1, 0] {
            for bytes in [1 << 20, 1 << 40, u64::MAX] {
                let mut batch = path.batch();
                batch.read(&file, (FILE_BYTES - left) as u64, bytes, 7).unwrap();
                let mut buffer = [0; 5_000];
                let read = batch.wait_into(|_, bytes| &mut buffer[..bytes]).unwrap().unwrap();
                assert_eq!((read.ticket, read.bytes), (7, Ok(left)), "{page_cache}, {bytes}");
                assert!(buffer[..left] == content[FILE_BYTES - left..]);
            }
        }
    }
    // The limit of the default is 16 MiB for any memory of the machine.
    let large = TempFile::new(0);
    std::fs::File::options().write(true).open(&large.path).unwrap().set_len(17 << 20).unwrap();
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&large.path).unwrap();
    let error = path.batch().read(&file, 0, 17 << 20, 0).unwrap_err();
    let text = "one read of a batch has 17825792 bytes, and the limit of this path is 16777216; read \
                in smaller pieces, or by `read_at`";
    assert_eq!(error.to_string(), text);
}

#[test]
fn page_guards_pin_their_pages_up_to_the_limit() {
    let temp = TempFile::new(FILE_BYTES);
    let content = std::fs::read(&temp.path).unwrap();
    let builder = ReadPath::builder()
        .kernel_cache(false)
        .memory(16 * 4096)
        .held_memory(4 * 4096)
        .readahead("none");
    let path = builder.build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let guards: Vec<_> = (0..4).map(|page| file.page(page * 4096).unwrap()).collect();
    let error = file.page(20 * 4096).unwrap_err();
    let inner = error.get_ref().unwrap().downcast_ref::<ReadError>().unwrap();
    assert_eq!(*inner, ReadError::TooManyPinned { held_bytes_max: 4 * 4096 });
    // Read many times through the rest of the memory; pinned pages stay untouched.
    for page in 0..200 {
        check(&file, &content, page * 4096 + 50, 9000);
    }
    file.invalidate(0, FILE_BYTES as u64);
    for page in 0..200 {
        check(&file, &content, page * 4096 + 50, 9000);
    }
    for (page, guard) in guards.iter().enumerate() {
        assert!(**guard == content[page * 4096..(page + 1) * 4096]);
    }
    drop(guards);
    assert!(*file.page(20 * 4096).unwrap() == content[20 * 4096..21 * 4096]);
    // A guard outlives its file and its path.
    let guard = file.page(7).unwrap();
    drop((file, path));
    assert!(*guard == content[7..4096]);
}

#[test]
fn handles_compare_their_file_and_its_version() {
    let temp = TempFile::new(FILE_BYTES);
    let path = path(8 << 20, "none", BackendKind::Ring);
    let first = path.open(&temp.path).unwrap();
    let compared = |other: &File| (other.is_same_file(&first), other.is_same_version(&first));
    assert_eq!(compared(&path.open(&temp.path).unwrap()), (true, true));
    std::fs::write(&temp.path, [9; 5000]).unwrap();
    let mut changed = path.open(&temp.path).unwrap();
    assert_eq!(compared(&changed), (true, false));
    // The first handle keeps the old inode in use, so the new file has another one.
    std::fs::remove_file(&temp.path).unwrap();
    std::fs::write(&temp.path, [9; 5000]).unwrap();
    assert_eq!(compared(&path.open(&temp.path).unwrap()), (false, false));
    assert_eq!(compared(&changed), (true, false));
    assert!(changed.revalidate().unwrap());
    assert_eq!(compared(&changed), (false, false));
}

#[test]
fn changed_file_is_read_again_after_open_or_revalidate() {
    let temp = TempFile::new(FILE_BYTES);
    let path = path(8 << 20, "none", BackendKind::Ring);
    let mut file = path.open(&temp.path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 100).unwrap();
    assert!(!file.revalidate().unwrap());
    assert_eq!(path.open(&temp.path).unwrap().len(), FILE_BYTES as u64);
    file.read_exact_at(&mut byte, 100).unwrap();
    assert_eq!(path.stats().device_reads, 1, "what is unchanged is shared");
    std::fs::write(&temp.path, [9; 5000]).unwrap();
    assert_eq!(path.open(&temp.path).unwrap().len(), 5000);
    assert!(file.revalidate().unwrap());
    file.read_exact_at(&mut byte, 100).unwrap();
    assert_eq!((file.len(), byte), (5000, [9]));
    std::fs::remove_file(&temp.path).unwrap();
    assert!(file.revalidate().is_err());
    file.read_exact_at(&mut byte, 4999).unwrap();
}

/// A young file may change without a change of its times. Until it does, both are one version.
#[test]
fn file_without_a_change_is_one_version_with_each_coherence() {
    for coherence in [Coherence::WhenOpened, Coherence::EachMiss, Coherence::EachRead] {
        let temp = TempFile::new(FILE_BYTES);
        let path = ReadPath::builder().memory(1 << 20).coherence(coherence).build().unwrap();
        let mut file = path.open(&temp.path).unwrap();
        let first = path.open(&temp.path).unwrap();
        assert!(!file.revalidate().unwrap() && file.is_same_version(&first), "{coherence:?}");
        std::fs::write(&temp.path, [9; 5000]).unwrap();
        assert!(file.revalidate().unwrap() && !file.is_same_version(&first), "{coherence:?}");
        assert!(!file.revalidate().unwrap(), "{coherence:?}");
        let mut bytes = [0; 5000];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((file.len(), bytes), (5000, [9; 5000]));
    }
}

/// Bytes read ahead of a sequential scan of `file` by 4 KiB.
fn readahead_of_scan(file: &File) -> u64 {
    let before = file.read_path().stats().readahead_bytes;
    (0..64).for_each(|page| file.read_exact_at(&mut [0; 4096], page * 4096).unwrap());
    file.read_path().stats().readahead_bytes - before
}

/// `Random` turns readahead off. It is given to the version at opening or to a later one.
#[test]
fn lasting_advice_stays_with_the_handle_after_changes_of_the_file() {
    let own = || ReadPath::builder().memory(8 << 20).kernel_cache(false).readahead("ondemand");
    for coherence in [Coherence::WhenOpened, Coherence::EachMiss] {
        let path = own().coherence(coherence).build().unwrap();
        let temp = TempFile::new(1 << 20);
        let mut file = path.open(&temp.path).unwrap();
        assert!(readahead_of_scan(&file) > 0, "the policy reads ahead without advice");
        let write = |byte| {
            std::fs::write(&temp.path, vec![byte; (1 << 20) + usize::from(byte)]).unwrap();
        };
        // With `EachMiss` a read of an absent page finds the change.
        let change = |byte, file: &mut File| {
            write(byte);
            match coherence {
                Coherence::WhenOpened => assert!(file.revalidate().unwrap()),
                _ => file.read_exact_at(&mut [0; 1], (1 << 20) - 1).unwrap(),
            }
            assert_eq!(file.len(), (1 << 20) + u64::from(byte));
        };
        change(1, &mut file);
        file.advise(Advice::Random);
        for byte in 2..4 {
            change(byte, &mut file);
            assert_eq!(readahead_of_scan(&file), 0, "{coherence:?}, change {byte}");
        }
        file.advise(Advice::Normal);
        change(4, &mut file);
        assert!(readahead_of_scan(&file) > 0, "{coherence:?}");
    }
}

/// The sizes in the errors are the given ones. The largest sum that a `u64` holds stands for more.
#[test]
fn memory_for_guards_beyond_the_memory_is_an_error() {
    let memory_bytes = 1 << 20;
    let addressable_bytes = 1 << 44;
    for held_bytes in [
        1 << 20,
        1 << 40,
        addressable_bytes - 12_288,
        addressable_bytes - 8192,
        u64::MAX - 4096,
        u64::MAX,
    ] {
        let builder = ReadPath::builder().memory(memory_bytes).held_memory(held_bytes);
        let error = builder.build().map(drop).unwrap_err();
        let needed_bytes = held_bytes.saturating_add(4096) / 4096 * 4096;
        let needed_bytes = if held_bytes > u64::MAX - 4096 { u64::MAX } else { needed_bytes };
        let expected = ConfigError::NoMemory { memory_bytes, needed_bytes };
        assert_eq!(error, BuildError::Config(expected), "{held_bytes}");
        // Pages are numbered by 32 bits, and the last number is not used: a larger memory is
        // refused too, and less for guards is the only remedy.
        let is_possible = needed_bytes / 4096 < (1 << 32) - 1;
        let text = error.to_string();
        assert_eq!(text.contains(&format!("give at least {needed_bytes} bytes")), is_possible);
        assert_eq!(text.contains("give less memory to pinned pages"), !is_possible, "{text}");
    }
    let own = readpath::PageCache::Own { bytes: None };
    for held_bytes in [1 << 50, u64::MAX] {
        let builder = ReadPath::builder().page_cache(own).held_memory(held_bytes);
        let error = builder.build().map(drop).unwrap_err();
        let is_too_much = matches!(error, BuildError::Config(ConfigError::TooMuchMemory {
            memory_bytes
        }) if memory_bytes >= held_bytes);
        assert!(is_too_much, "{held_bytes}: {error}");
        // 2^32 - 2 pages. One more is the number for no frame.
        assert!(error.to_string().contains("at most 16 TiB less 8 KiB"), "{error}");
    }
}

#[test]
fn shrunk_file_is_an_error_at_its_new_end() {
    let temp = TempFile::new(FILE_BYTES);
    let path = path(8 << 20, "none", BackendKind::Ring);
    let file = path.open(&temp.path).unwrap();
    let end = 1 << 20;
    std::fs::File::options().write(true).open(&temp.path).unwrap().set_len(end).unwrap();
    let error = file.read_at(&mut [0; 16_384], end - 8192).unwrap_err();
    let inner = error.get_ref().unwrap().downcast_ref::<ReadError>().unwrap();
    assert_eq!(*inner, ReadError::Shrunk { offset: end });
    let content = std::fs::read(&temp.path).unwrap();
    check(&file, &content, end - 8192, 8192);
}

/// The file ends within a page, which is then in no cache. The bytes before the end are no error.
#[test]
fn bytes_before_the_end_of_a_cut_page_are_read() {
    const CUT: usize = (1 << 20) + 576;
    let own = readpath::PageCache::Own { bytes: Some(8 << 20) };
    for page_cache in [readpath::PageCache::Kernel, own, readpath::PageCache::None] {
        let temp = TempFile::new(FILE_BYTES);
        let content = std::fs::read(&temp.path).unwrap();
        let path = ReadPath::builder().page_cache(page_cache).build().unwrap();
        let file = path.open(&temp.path).unwrap();
        let written = std::fs::File::options().write(true).open(&temp.path).unwrap();
        written.set_len(CUT as u64).unwrap();
        for bytes in [1, 576, 5_000, 100_000] {
            let offset = (CUT - bytes) as u64;
            check(&file, &content, offset, bytes);
            let mut buffer = vec![0; bytes];
            let count = file.read_vectored_at(&mut [IoSliceMut::new(&mut buffer)], offset);
            assert_eq!(count.unwrap(), bytes, "{page_cache}");
            assert!(buffer == content[CUT - bytes..CUT]);
            let (count, buffer) = pollster::block_on(file.read_at_async(vec![0; bytes], offset));
            assert_eq!(count.unwrap(), bytes, "{page_cache}");
            assert!(buffer == content[CUT - bytes..CUT]);
            let error = file.read_at(&mut vec![0; bytes + 1], offset).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        }
    }
}
