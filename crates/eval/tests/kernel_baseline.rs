//! The kernel baseline returns the file's bytes with every engine, reports the engine that ran, and
//! survives a file that shrinks under its mapping.

mod support;

use readpath_core::readahead::Advice;
use readpath_core::request::{DeviceError, Outcome, RequestId};
use readpath_core::unit::Time;
use readpath_eval::clock::Clock;
use readpath_eval::kernel::{KernelEngine, KernelError, KernelFile, KernelOptions};
use readpath_record::cold::drop_pages;
use support::*;

const ENGINES: [KernelEngine; 3] = [KernelEngine::Psync, KernelEngine::Mmap, KernelEngine::IoUring];

fn options(engine: KernelEngine) -> KernelOptions {
    KernelOptions {
        invalidates: true,
        engine,
        is_direct: false,
        depth: 8,
        bytes_max: 1 << 20,
        is_writable: false,
        advice: Advice::Normal,
        mapping_advice: Advice::Normal,
    }
}

fn open_peer(file: &TempFile, options: KernelOptions) -> KernelFile {
    KernelFile::open(&file.path, options, Clock::start()).unwrap()
}

/// Waits for the next completion. Returns its id, outcome and bytes.
fn ended(file: &mut KernelFile) -> (RequestId, Outcome, Vec<u8>) {
    loop {
        if let Some((completion, bytes)) = file.poll() {
            return (completion.id, completion.outcome, bytes.to_vec());
        }
        file.wait(None).unwrap();
    }
}

#[test]
fn engines_return_the_files_bytes_at_any_offset_and_size() {
    let file_bytes = 2 * (1 << 20) + 777;
    let file = TempFile::new(file_bytes as usize);
    for engine in ENGINES {
        for advice in [Advice::Normal, Advice::Sequential, Advice::Random] {
            let mut peer = open_peer(
                &file,
                KernelOptions { advice, mapping_advice: advice, ..options(engine) },
            );
            assert_eq!((peer.engine(), peer.bytes()), (engine, file_bytes));
            let reads = [
                (0, 1),
                (0, 65_536),
                (4_095, 2),
                (1_234_567, 100_001),
                (file_bytes - 1, 1),
                (file_bytes - 10, 4_096),
                (file_bytes, 4_096),
                (file_bytes + 5_000, 4_096),
            ];
            for (offset, bytes) in reads {
                peer.read(RequestId(3), offset, bytes);
                let (id, outcome, got) = ended(&mut peer);
                let expected = pread(&file.path, offset, bytes.into());
                let what = match expected.len() as u64 {
                    count if count == u64::from(bytes) => Outcome::Done,
                    count => Outcome::Short { bytes: count },
                };
                assert_eq!((id, outcome), (RequestId(3), what), "{engine:?} {offset} {bytes}");
                assert!(got == expected, "{engine:?}: {bytes} bytes at {offset}");
            }
        }
    }
}

#[test]
fn io_uring_reads_complete_in_parallel_direct_and_buffered() {
    let file = TempFile::new(1 << 20);
    for is_direct in [false, true] {
        if is_direct && !takes_direct(&file.path) {
            return;
        }
        let wanted = KernelOptions { is_direct, ..options(KernelEngine::IoUring) };
        let mut peer = open_peer(&file, wanted);
        assert_eq!(peer.is_direct(), is_direct);
        for round in 0..10u32 {
            let place = |id: u32| u64::from((id * 5 + round * 3) % 16) * 65_536;
            assert_eq!(peer.free_slots(), 8);
            (0..8).for_each(|id| peer.read(RequestId(id), place(id), 65_536));
            assert_eq!(peer.free_slots(), 0);
            for _ in 0..8 {
                let (id, outcome, got) = ended(&mut peer);
                assert_eq!(outcome, Outcome::Done);
                assert!(got == pread(&file.path, place(id.0), 65_536));
            }
        }
    }
}

/// Two reads of cached pages have ended, and their completions are not taken: of three buffers one
/// is free.
#[test]
fn free_slots_are_reads_that_can_be_started_before_completions_are_taken() {
    let file = TempFile::new(1 << 16);
    let wanted = KernelOptions { depth: 2, invalidates: false, ..options(KernelEngine::IoUring) };
    let mut peer = open_peer(&file, wanted);
    (0..2).for_each(|id| peer.read(RequestId(id), 0, 4096));
    let mut started = 2;
    for _ in 0..10 {
        let deadline = peer.now() + Time::from_ms(10);
        peer.wait(Some(deadline)).unwrap();
        for _ in 0..peer.free_slots() {
            peer.read(RequestId(started), 0, 4096);
            started += 1;
        }
    }
    assert_eq!((started, peer.free_slots()), (3, 0));
    let mut ids: Vec<u32> = (0..started).map(|_| ended(&mut peer).0.0).collect();
    ids.sort();
    assert_eq!(ids, [0, 1, 2]);
    assert!(peer.poll().is_none());
    assert_eq!(peer.free_slots(), 2);
}

#[test]
fn engine_writes_are_in_the_file() {
    for engine in ENGINES {
        let file = TempFile::new(1 << 16);
        let mut peer = open_peer(&file, KernelOptions { is_writable: true, ..options(engine) });
        peer.write(RequestId(0), 5_000, 10_000, |bytes| bytes.fill(0xa5));
        let (_, outcome, bytes) = ended(&mut peer);
        assert_eq!((outcome, bytes.len()), (Outcome::Done, 0));
        let mut expected = content(1 << 16);
        expected[5_000..15_000].fill(0xa5);
        assert!(pread(&file.path, 0, 1 << 16) == expected, "{engine:?}");
    }
}

#[test]
fn shrunk_file_reads_short_at_its_new_end() {
    for engine in ENGINES {
        let file = TempFile::new(64 * 4096);
        let mut peer = open_peer(&file, options(engine));
        let handle = std::fs::File::options().write(true).open(&file.path).unwrap();
        handle.set_len(20 * 4096).unwrap();
        for (page, count) in [(30, 0), (19, 4096), (10, 10 * 4096), (30, 0)] {
            peer.read(RequestId(0), page * 4096, 30 * 4096);
            let (_, outcome, got) = ended(&mut peer);
            assert_eq!(outcome, Outcome::Short { bytes: count }, "{engine:?}, page {page}");
            assert!(got == pread(&file.path, page * 4096, count), "{engine:?}, page {page}");
        }
        // Remaining and returning pages read as before.
        handle.set_len(64 * 4096).unwrap();
        peer.read(RequestId(0), 15 * 4096, 20 * 4096);
        let (_, outcome, got) = ended(&mut peer);
        assert_eq!(outcome, Outcome::Done, "{engine:?}");
        assert!(got == pread(&file.path, 15 * 4096, 20 * 4096), "{engine:?}");
        assert!(got[5 * 4096..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn misaligned_direct_read_fails_with_einval() {
    let file = TempFile::new(1 << 16);
    if !takes_direct(&file.path) {
        return;
    }
    for engine in [KernelEngine::Psync, KernelEngine::IoUring] {
        let mut peer = open_peer(&file, KernelOptions { is_direct: true, ..options(engine) });
        peer.read(RequestId(0), 100, 512);
        let (_, outcome, _) = ended(&mut peer);
        assert_eq!(outcome, Outcome::Failed(DeviceError::Other(22)), "EINVAL is 22 in errno(3)");
    }
}

#[test]
fn engine_in_use_is_reported_by_name() {
    let of = |name: &str| KernelEngine::from_ioengine(name).map(KernelEngine::name);
    assert_eq!(of("sync"), Some("psync"));
    assert_eq!(of("libaio"), Some("io_uring"));
    assert_eq!(of("mmap"), Some("mmap"));
    assert_eq!(of("rbd"), None);
    let file = TempFile::new(4096);
    let peer = open_peer(&file, KernelOptions { is_direct: true, ..options(KernelEngine::Mmap) });
    assert!(!peer.is_direct(), "a mapping is never direct");
}

#[test]
fn open_errors_name_the_cause_and_a_remedy() {
    let missing = std::path::Path::new("/nowhere/at/all");
    let error = KernelFile::open(missing, options(KernelEngine::Psync), Clock::start()).err();
    // ENOENT is 2 in errno(3).
    assert!(matches!(error, Some(KernelError::Open { errno: 2, .. })), "{error:?}");
    let file = TempFile::new(4096);
    let large =
        KernelOptions { bytes_max: u32::MAX, depth: 1 << 20, ..options(KernelEngine::Psync) };
    let large = KernelOptions { engine: KernelEngine::IoUring, depth: 30_000, ..large };
    let error = KernelFile::open(&file.path, large, Clock::start()).err().unwrap().to_string();
    assert!(error.contains("30001 buffers of 4294967295 bytes"), "{error}");
    assert!(error.contains("use a smaller bs"), "{error}");
}

#[test]
fn random_advice_prevents_kernel_readahead() {
    // The running kernel is the oracle: after random advice, a read of one page in the middle
    // brings in only that page.
    let file = TempFile::new(4 << 20);
    let residency = drop_pages(&file.path).unwrap();
    if residency.resident > 0 {
        eprintln!("skipped: {} pages stayed in the kernel's cache", residency.resident);
        return;
    }
    for engine in ENGINES {
        drop_pages(&file.path).unwrap();
        let advice = Advice::Random;
        let mut peer =
            open_peer(&file, KernelOptions { advice, mapping_advice: advice, ..options(engine) });
        peer.read(RequestId(0), 2 << 20, 4096);
        ended(&mut peer);
        let handle = std::fs::File::open(&file.path).unwrap();
        let pages = readpath_core::unit::PageRange::new(0, 1024);
        let resident = readpath_record::cold::residency_flags(&handle, pages).unwrap();
        let held: Vec<usize> = (0..1024).filter(|&page| resident[page]).collect();
        assert_eq!(held, [512], "{engine:?}");
    }
}
