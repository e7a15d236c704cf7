//! Resident pages are read from the kernel page cache by every kind of read: no request reaches the
//! device, and no absent page is brought into that cache.

mod support;

use std::io::{BufRead, IoSliceMut, Read};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use readpath::pager::{KernelMappingReason, LoadError, MappingMode};
use readpath::{File, Mapping, ReadPath};
use readpath_core::machine::ReadError;
use readpath_core::readahead::Advice;
use readpath_core::unit::PageRange;
use support::*;

const FILE_BYTES: usize = 2 << 20;
const LARGE: usize = 256 << 10;

/// A file on a device with direct I/O. `None`, with a skip message, if that or the residency check
/// is not available.
fn on_a_device() -> Option<(TempFile, ReadPath, File)> {
    let temp = TempFile::new(FILE_BYTES);
    let path = ReadPath::builder().memory(16 << 20).readahead("none").build().unwrap();
    let file = path.open(&temp.path).unwrap();
    std::fs::read(&temp.path).unwrap();
    if !file.is_cached(0, FILE_BYTES as u64) {
        eprintln!(
            "skipped: the kernel doesn't say what it holds ({}; cachestat, Linux 6.5)",
            file.mode()
        );
        return None;
    }
    Some((temp, path, file))
}

fn held_pages(temp: &TempFile) -> usize {
    let file = std::fs::File::open(&temp.path).unwrap();
    let pages = PageRange { first: 0, end: FILE_BYTES as u64 / 4096 };
    readpath_record::cold::residency_flags(&file, pages)
        .unwrap()
        .into_iter()
        .filter(|&is_held| is_held)
        .count()
}

#[test]
fn large_read_of_resident_pages_makes_no_device_request() {
    let Some((temp, path, file)) = on_a_device() else { return };
    let content = std::fs::read(&temp.path).unwrap();
    let mut buffer = vec![0; LARGE];
    for offset in [0, 4096, 70_001, FILE_BYTES - LARGE] {
        file.read_exact_at(&mut buffer, offset as u64).unwrap();
        assert!(buffer == content[offset..offset + LARGE], "at {offset}");
    }
    assert_eq!(path.stats().device_reads, 0);
    assert_eq!(file.stats().bytes, 4 * LARGE as u64);
    assert_eq!(file.stats().cached_bytes, 4 * LARGE as u64);
    assert_eq!(file.stats().kernel_cached_bytes, 4 * LARGE as u64);
}

#[test]
fn every_kind_of_read_of_resident_pages_makes_no_device_request() {
    let Some((temp, path, file)) = on_a_device() else { return };
    let content = std::fs::read(&temp.path).unwrap();
    for offset in (0..FILE_BYTES as u64 - 100).step_by(70_001) {
        let range = offset as usize..offset as usize + 100;
        let mut one = [0; 100];
        file.read_exact_at(&mut one, offset).unwrap();
        assert_eq!(one[..], content[range.clone()]);
        let (mut low, mut high) = ([0; 30], [0; 70]);
        let parts = &mut [IoSliceMut::new(&mut low), IoSliceMut::new(&mut high)];
        assert_eq!(file.read_vectored_at(parts, offset).unwrap(), 100);
        assert_eq!([&low[..], &high[..]].concat(), content[range.clone()]);
        let page = file.page(offset).unwrap();
        assert_eq!(page[..], content[range.start..(range.start / 4096 + 1) * 4096]);
        let mut batch = path.batch();
        batch.read(&file, offset, 100, 7).unwrap();
        let read = batch.wait().unwrap().unwrap();
        assert_eq!(read.ticket(), 7);
        assert_eq!(read.slices().unwrap().collect::<Vec<_>>().concat(), content[range.clone()]);
        let future = file.read_at_async(vec![0; 100], offset);
        let (read, bytes) = pollster::block_on(future);
        assert_eq!((read.unwrap(), &bytes[..]), (100, &content[range]));
    }
    // To the end, and past it.
    let mut all = Vec::new();
    file.reader().read_to_end(&mut all).unwrap();
    assert!(all == content);
    let mut reader = file.reader();
    let mut shared = Vec::new();
    while let part = reader.fill_buf().unwrap()
        && !part.is_empty()
    {
        shared.extend_from_slice(part);
        let bytes = part.len();
        reader.consume(bytes);
    }
    assert!(shared == content);
    assert_eq!(file.read_at(&mut [0; 10], FILE_BYTES as u64).unwrap(), 0);
    assert_eq!(path.stats().device_reads, 0);
}

/// Pages evicted by the kernel are read from the device. Pages that become resident again are found
/// before long.
#[test]
fn pages_evicted_by_the_kernel_are_read_from_the_device() {
    let Some((temp, path, file)) = on_a_device() else { return };
    let content = std::fs::read(&temp.path).unwrap();
    let mut page = [0; 4096];
    file.read_exact_at(&mut page, 0).unwrap();
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    if held_pages(&temp) > 0 {
        eprintln!("skipped: the kernel keeps the pages");
        return;
    }
    for at in 1..200 {
        file.read_exact_at(&mut page, at * 4096).unwrap();
        assert_eq!(page[..], content[at as usize * 4096..][..4096]);
    }
    // One read of eight, selected by its offset, checks for evictions; here it is the twelfth.
    let device_reads = path.stats().device_reads;
    assert!((180..=199).contains(&device_reads), "{device_reads}");
    std::fs::read(&temp.path).unwrap();
    for at in 200..500 {
        file.read_exact_at(&mut page, at * 4096).unwrap();
        assert_eq!(page[..], content[at as usize * 4096..][..4096]);
    }
    // At the lowest rate one read in 64 checks residency.
    let device_reads = path.stats().device_reads;
    assert!(device_reads <= 199 + 64, "{device_reads}");
}

#[test]
fn kernel_page_cache_is_not_used_when_disabled() {
    let Some((temp, ..)) = on_a_device() else { return };
    let path = own_cache().kernel_cache(false).readahead("none").build().unwrap();
    let file = path.open(&temp.path).unwrap();
    assert!(!file.is_cached(0, LARGE as u64));
    file.read_exact_at(&mut vec![0; LARGE], 0).unwrap();
    assert_eq!(path.stats().device_bytes, LARGE as u64);
}

#[test]
fn mapping_of_a_resident_file_is_the_kernels_and_reports_it() {
    let Some((temp, ..)) = on_a_device() else { return };
    let content = std::fs::read(&temp.path).unwrap();
    // SAFETY: the file does not change.
    let map = |builder: readpath::pager::MappingBuilder| unsafe { builder.open(&temp.path) };
    let mapping = map(Mapping::builder()).unwrap();
    assert_eq!(mapping.mode(), MappingMode::Kernel { because: KernelMappingReason::InMemory });
    assert!(mapping.mode().to_string().contains("its cache holds"), "{}", mapping.mode());
    assert!(mapping.as_slice() == content);
    assert_eq!(mapping.stats().device_reads, 0);
    // Hints past the end have no effect.
    for (offset, bytes) in [(0, u64::MAX), (u64::MAX - 10, 100), (1 << 40, 1 << 30)] {
        mapping.advise(Advice::WillNeed, offset, bytes);
        mapping.advise(Advice::DontNeed, offset, bytes);
    }
    // Invalid options are refused here too.
    map(Mapping::builder().readahead("psychic")).unwrap_err();
    // With one page absent the mapping is served.
    let file = std::fs::File::open(&temp.path).unwrap();
    file.sync_all().unwrap();
    let third = Some(std::num::NonZero::new(4096).unwrap());
    rustix::fs::fadvise(&file, 1 << 20, third, rustix::fs::Advice::DontNeed).unwrap();
    if can_serve() && held_pages(&temp) < FILE_BYTES / 4096 {
        assert_eq!(map(Mapping::builder()).unwrap().mode(), MappingMode::Served);
    }
}

/// Another thread truncates and extends the file all the time: missing bytes are an error, not a
/// bus error.
#[test]
fn truncation_during_a_copy_from_the_kernel_mapping_is_an_error() {
    let Some((temp, ..)) = on_a_device() else { return };
    // SAFETY: its bytes are read only by `read_at`.
    let mapping = unsafe { Mapping::builder().open(&temp.path) }.unwrap();
    assert_eq!(mapping.mode(), MappingMode::Kernel { because: KernelMappingReason::InMemory });
    let file = std::fs::File::options().write(true).open(&temp.path).unwrap();
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let (mut read, mut cut) = (0, 0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while start.elapsed() < second {
                file.set_len(8192).unwrap();
                file.set_len(FILE_BYTES as u64).unwrap();
            }
        });
        let mut buffer = vec![0; FILE_BYTES / 2];
        while start.elapsed() < second {
            match mapping.read_exact_at(&mut buffer, 5_000) {
                Ok(()) => read += 1,
                Err(LoadError::Read(ReadError::Shrunk { offset: 8192.. })) => cut += 1,
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert!(cut > 0, "{read} reads, and none was cut");
}

#[test]
fn read_of_absent_pages_bypasses_the_kernel_page_cache() {
    let Some((temp, path, file)) = on_a_device() else { return };
    let content = std::fs::read(&temp.path).unwrap();
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    if held_pages(&temp) > 0 {
        eprintln!("skipped: the kernel keeps the pages");
        return;
    }
    assert!(!file.is_cached(0, LARGE as u64));
    let mut buffer = vec![0; LARGE];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == content[..LARGE]);
    assert_eq!(path.stats().device_bytes, LARGE as u64);
    assert_eq!(held_pages(&temp), 0);
    // Now from our own cache.
    assert!(file.is_cached(0, LARGE as u64));
}

/// Dirty pages are read as by any `read`.
#[test]
fn dirty_pages_are_read_and_a_cached_page_never_reverts() {
    let Some((temp, path, file)) = on_a_device() else { return };
    readpath_record::cold::drop_pages(&temp.path).unwrap();
    if held_pages(&temp) > 0 {
        eprintln!("skipped: the kernel keeps the pages");
        return;
    }
    let mut small = [0; 4096];
    file.read_exact_at(&mut small, 8192).unwrap();
    let old = small;
    let writer = std::fs::File::options().write(true).open(&temp.path).unwrap();
    let new: Vec<u8> = std::fs::read(&temp.path).unwrap().iter().map(|byte| !byte).collect();
    writer.write_all_at(&new, 0).unwrap();

    let mut buffer = vec![0; LARGE];
    file.read_exact_at(&mut buffer, 1 << 20).unwrap();
    assert!(buffer == new[1 << 20..(1 << 20) + LARGE]);
    assert_eq!(path.stats().device_reads, 1, "the small read alone");

    // The third page is in our cache: all reads return that version until it is invalidated.
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(buffer[8192..12_288], old);
    file.read_exact_at(&mut small, 8192).unwrap();
    assert_eq!(small, old);
    file.invalidate(0, FILE_BYTES as u64);
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == new[..LARGE]);
}

#[test]
fn shrunk_file_is_an_error_for_resident_pages() {
    let Some((temp, _path, file)) = on_a_device() else { return };
    std::fs::File::options().write(true).open(&temp.path).unwrap().set_len(8192).unwrap();
    let mut buffer = vec![0; LARGE];
    let error = file.read_exact_at(&mut buffer, 0).unwrap_err();
    assert!(error.to_string().contains("shorter"), "{error}");
}
