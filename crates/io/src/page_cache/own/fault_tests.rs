//! Tests with a real backend whose answers are altered: short, repeated, canceled, late, or EIO.
//! Every read returns the right bytes or an error, and nothing remains in flight.

use std::collections::BTreeSet;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use readpath_core::machine::{self, Config};
use readpath_core::policy::Spec;
use readpath_core::request::DeviceError;
use readpath_core::unit::PageRange;

use super::frame_cache::{FrameCache, FrameSharer};
use super::storage_backend::{StorageBackend, StorageFile};
use super::{Engine, Handle, LazyEngine};
use crate::backend::{Backend, BackendError, BackendInUse, BackendKind, KernelAnswer};
use crate::backend::{Sleep, Sleeper, Transfer};
use crate::file::File;
use crate::os::clock::Clock;
use crate::os::frames::FrameMemory;
use crate::page_cache::kernel::PathPages;
use crate::path::ReadPath;
use crate::read_error::ReadError;
use crate::storage::{FileStorage, Storage};
use crate::target::Coherence;
use crate::target::{OpenOptions, Target};

/// Alters about one answer of three while `is_tampering` is true.
struct TamperingBackend {
    ring: Box<dyn Backend>,
    sleeper: Arc<dyn Sleeper>,
    /// Answers that the next exchange returns.
    late_answers: Vec<KernelAnswer>,
    random_state: u64,
    is_tampering: Arc<AtomicBool>,
}

impl Backend for TamperingBackend {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        // SAFETY: the caller guarantees the contract of `queue`.
        unsafe { self.ring.queue(transfer) };
    }

    fn cancel(&mut self, token: u64) {
        self.ring.cancel(token);
    }

    /// Exchanges through the real backend, and alters or delays the new answers.
    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        answers.append(&mut self.late_answers);
        let mut new_answers = Vec::new();
        let sleep = if answers.is_empty() { sleep } else { Sleep::Never };
        let result = self.ring.exchange(sleep, &mut new_answers);
        for answer in new_answers {
            self.random_state = next_random_state(self.random_state);
            let is_tampering = self.is_tampering.load(Ordering::Relaxed);
            // Five of the fifteen kinds alter any answer, and one an answer of more than a block.
            let kind = (self.random_state >> 33) % 15;
            let raw = match kind {
                _ if !is_tampering => answer.raw,
                0 => -libc::EIO,
                1 => -libc::EAGAIN,
                2 => -libc::EINTR,
                // As if the submitting thread had ended.
                3 => -libc::ECANCELED,
                4 if answer.raw > BLOCK => short_count(answer.raw),
                5 => {
                    self.late_answers.push(answer);
                    self.sleeper.wake();
                    continue;
                }
                _ => answer.raw,
            };
            answers.push(KernelAnswer { raw, ..answer });
        }
        result
    }
}

/// Next state of a linear congruential generator (Knuth's MMIX). Its high bits are random.
fn next_random_state(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1)
}

/// Byte count of a transfer of `raw` bytes, more than a block, that stops early: about half, in
/// whole blocks. It is never zero, which would mean the end of the file. (The last pages of a file
/// are seldom whole: 6,400 bytes.)
fn short_count(raw: i32) -> i32 {
    (raw / 2 + BLOCK - 1) / BLOCK * BLOCK
}

const BLOCK: i32 = 4096;

/// Queue depth of the backends.
const DEPTH: u32 = 16;

/// Length in bytes of the file with one unreadable page: 1,024 pages.
const BAD_PAGE_FILE_BYTES: usize = 4 << 20;

/// All lengths above one block, up to 20 blocks.
#[test]
fn shortened_answers_are_whole_blocks_and_incomplete() {
    for raw in BLOCK + 1..20 * BLOCK {
        let short_bytes = short_count(raw);
        let is_incomplete = 0 < short_bytes && short_bytes < raw;
        assert!(is_incomplete && short_bytes % BLOCK == 0, "{raw}: {short_bytes}");
    }
}

/// Holds back all answers while `is_holding` is true.
struct HoldingBackend {
    ring: Box<dyn Backend>,
    held_answers: Vec<KernelAnswer>,
    /// True once an answer was held back.
    has_held: Arc<AtomicBool>,
    is_holding: Arc<AtomicBool>,
}

impl Backend for HoldingBackend {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        // SAFETY: the caller guarantees the contract of `queue`.
        unsafe { self.ring.queue(transfer) };
    }

    fn cancel(&mut self, token: u64) {
        self.ring.cancel(token);
    }

    /// Exchanges through the real backend, and returns the answers that may be returned.
    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        let result = self.ring.exchange(sleep, &mut self.held_answers);
        if !self.is_holding.load(Ordering::SeqCst) {
            answers.append(&mut self.held_answers);
        } else if !self.held_answers.is_empty() {
            self.has_held.store(true, Ordering::SeqCst);
        }
        result
    }
}

/// The answer to an abandoned read of a closed file arrives when no task waits any more. The
/// descriptor is closed although nothing uses the path after that.
#[test]
fn file_is_closed_after_the_last_abandoned_read_without_another_call() {
    let name = format!("readpath-abandoned-{}", std::process::id());
    let temporary_file = TemporaryFile { path: std::env::temp_dir().join(name) };
    std::fs::write(&temporary_file.path, vec![7; 100_000]).unwrap();
    let real_path = std::fs::canonicalize(&temporary_file.path).unwrap();
    let is_open = || {
        let mut descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        descriptors.any(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == real_path))
    };
    let started_at = std::time::Instant::now();
    let wait_until = |condition: &dyn Fn() -> bool, what: &str| {
        while !condition() {
            assert!(started_at.elapsed().as_secs() < 20, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    let (has_held, is_holding) = (Arc::default(), Arc::new(AtomicBool::new(true)));
    let ((ring, sleeper), in_use) = BackendKind::Auto.build_shared(DEPTH).unwrap();
    let path = path_over_backend("none", 1 << 20, sleeper, in_use, |_| {
        let (has_held, is_holding) = (Arc::clone(&has_held), Arc::clone(&is_holding));
        Box::new(HoldingBackend { ring, held_answers: Vec::new(), has_held, is_holding })
    });
    let target = Target::open(&temporary_file.path, OpenOptions::default()).unwrap();
    let identity = target.identity();
    let file = File::new(
        Handle::open(path.engine(), StorageFile::Local(target), identity),
        temporary_file.path.as_path().into(),
    );
    let mut future = Box::pin(file.read_at_async(vec![0; 4096], 0));
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    wait_until(&|| has_held.load(Ordering::SeqCst), "the read was not answered");
    // The reactor receives the answer at the end of its present sleep.
    is_holding.store(false, Ordering::SeqCst);
    drop((future, file));
    wait_until(&|| !is_open(), "the file stayed open");
}

/// Fails every transfer that touches one page.
struct BadPageBackend {
    ring: Box<dyn Backend>,
    page: u64,
    /// Tokens of the transfers that touch the page.
    tokens_of_bad_page: BTreeSet<u64>,
}

impl Backend for BadPageBackend {
    /// Queues the transfer, and marks it if it contains the page.
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let bytes: usize = transfer.segments.iter().map(|segment| segment.iov_len).sum();
        let pages = PageRange::covering(transfer.offset, bytes as u64);
        if pages.contains(self.page) {
            self.tokens_of_bad_page.insert(transfer.token);
        }
        // SAFETY: the caller guarantees the contract of `queue`.
        unsafe { self.ring.queue(transfer) };
    }

    fn cancel(&mut self, token: u64) {
        self.ring.cancel(token);
    }

    /// Exchanges through the real backend, and replaces the answers to marked transfers by EIO.
    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        let result = self.ring.exchange(sleep, answers);
        for answer in answers {
            if self.tokens_of_bad_page.remove(&answer.token) {
                answer.raw = -libc::EIO;
            }
        }
        result
    }
}

/// A read of a whole file of 1,024 pages with one unreadable page at the ends or inside. The error
/// names the first byte of that page.
#[test]
fn read_error_names_the_unreadable_page_for_any_request_size() {
    let file_path = std::env::temp_dir().join(format!("readpath-bad-page-{}", std::process::id()));
    let temporary_file = TemporaryFile { path: file_path };
    std::fs::write(&temporary_file.path, vec![7; BAD_PAGE_FILE_BYTES]).unwrap();
    // Pages in the kernel page cache would be read from there.
    let written_file = std::fs::File::open(&temporary_file.path).unwrap();
    written_file.sync_all().unwrap();
    rustix::fs::fadvise(&written_file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for page in [0, 1, 300, 1022, 1023] {
        let ((ring, sleeper), in_use) = BackendKind::Auto.build_shared(DEPTH).unwrap();
        let path = path_over_backend("none", 16 << 20, sleeper, in_use, |_| {
            Box::new(BadPageBackend { ring, page, tokens_of_bad_page: BTreeSet::new() })
        });
        let target = Target::open(&temporary_file.path, OpenOptions::default()).unwrap();
        let identity = target.identity();
        let file = File::new(
            Handle::open(path.engine(), StorageFile::Local(target), identity),
            temporary_file.path.as_path().into(),
        );
        let mut buffer = vec![0; BAD_PAGE_FILE_BYTES];
        let error = file.read_at(&mut buffer, 0).unwrap_err();
        let inner = *error.get_ref().unwrap().downcast_ref::<ReadError>().unwrap();
        let error = DeviceError::Medium;
        assert_eq!(inner, ReadError::Device { offset: page * 4096, error }, "page {page}");
        // One request of 4 MiB and at most eleven more: each step halves the candidates.
        assert!(path.stats().device_reads <= 12, "page {page}: {:?}", path.stats());
    }
}

/// A file that is removed when the test ends.
struct TemporaryFile {
    path: PathBuf,
}

impl Drop for TemporaryFile {
    /// Removes the file.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Path whose backend tampers with answers while `is_tampering` is true.
fn tampered_path(policy: &str, memory_bytes: u64, is_tampering: &Arc<AtomicBool>) -> ReadPath {
    let ((ring, sleeper), in_use) = BackendKind::Auto.build_shared(DEPTH).unwrap();
    path_over_backend(policy, memory_bytes, sleeper, in_use, |sleeper| {
        Box::new(TamperingBackend {
            ring,
            sleeper,
            late_answers: Vec::new(),
            random_state: 11,
            is_tampering: Arc::clone(is_tampering),
        })
    })
}

/// Path with the readahead policy `policy` over files whose backend `build_backend` returns.
fn path_over_backend(
    policy: &str,
    memory_bytes: u64,
    sleeper: Arc<dyn Sleeper>,
    in_use: BackendInUse,
    build_backend: impl FnOnce(Arc<dyn Sleeper>) -> Box<dyn Backend>,
) -> ReadPath {
    let clock = Clock::start();
    let files =
        FileStorage::with_backend(build_backend(Arc::clone(&sleeper)), in_use, DEPTH, clock);
    let config = Config {
        memory_bytes,
        pinned_bytes_max: memory_bytes / 4,
        readahead: Spec::parse(policy).unwrap(),
        ..Config::new(files.caps())
    };
    let mut machine = machine::Machine::new(config).unwrap();
    let pages = (memory_bytes / 4096) as u32;
    let memory = FrameMemory::new(pages).unwrap();
    let frame_cache = Arc::new(FrameCache::new(memory, pages / 4));
    machine.share_through(Box::new(FrameSharer(Arc::clone(&frame_cache))));
    let engine =
        Engine::new(machine, StorageBackend::Files(Box::new(files)), sleeper, frame_cache, clock);
    ReadPath::from_engine(Arc::new(LazyEngine::new(
        engine,
        Coherence::WhenOpened,
        PathPages::Own { bytes: None, reads_resident: false },
        None,
    )))
}

/// Number of reads of each thread while answers are altered.
const READS_WITH_FAULTS: u32 = 200;

/// Three threads read while answers are altered, with a small memory of 40 pages and a larger one.
/// After that, reads succeed without alterations, and the machine is idle once the path is closed.
#[test]
fn reads_with_faults_are_right_or_errors_and_leave_nothing_in_flight() {
    let file_path = std::env::temp_dir().join(format!("readpath-faults-{}", std::process::id()));
    let temporary_file = TemporaryFile { path: file_path };
    let content: Vec<u8> = (0..1_000_000u32).flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&temporary_file.path, &content).unwrap();
    for policy in ["none", "ondemand", "window"] {
        for memory_bytes in [40 * 4096, 1 << 20] {
            let is_tampering = Arc::new(AtomicBool::new(true));
            let path = tampered_path(policy, memory_bytes, &is_tampering);
            let target = Target::open(&temporary_file.path, OpenOptions::default()).unwrap();
            let identity = target.identity();
            let file = File::new(
                Handle::open(path.engine(), StorageFile::Local(target), identity),
                temporary_file.path.as_path().into(),
            );
            let errors: u32 = std::thread::scope(|scope| {
                let threads = [1u64, 2, 3].map(|seed| {
                    let (file, content) = (&file, &content);
                    scope.spawn(move || read_at_random(file, content, seed, READS_WITH_FAULTS))
                });
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert!(errors > 0, "{policy}: the faults reached a read");
            is_tampering.store(false, Ordering::Relaxed);
            let (seed, reads) = (9, 50);
            let errors = read_at_random(&file, &content, seed, reads);
            assert_eq!(errors, 0, "{policy}: reads succeed again after the faults");
            // After a read of all bytes, no prefetch is in flight either.
            let mut buffer = vec![0; content.len()];
            file.read_exact_at(&mut buffer, 0).unwrap();
            assert!(buffer == content);
            let engine = Arc::clone(path.engine());
            drop((file, path));
            let mut state = engine.lock();
            while state.machine.meter().in_device() > 0 {
                state = engine.lead(state, None);
            }
            assert!(
                state.machine.is_idle(),
                "{policy}: no request is open, and no frame is reserved"
            );
        }
    }
    // The file itself is intact: byte 4 is the lowest byte of the number 1.
    let mut byte = [0];
    std::fs::File::open(&temporary_file.path).unwrap().read_exact_at(&mut byte, 4).unwrap();
    assert_eq!(byte, [1]);
}

/// Makes `reads` reads of up to 30,000 bytes at random offsets, compares them with `content`, and
/// returns the number of reads that failed with a device error.
fn read_at_random(file: &File, content: &[u8], seed: u64, reads: u32) -> u32 {
    let mut state = seed;
    let mut random_below = |end: u64| {
        state = next_random_state(state);
        (state >> 33) % end
    };
    let mut errors = 0;
    for _ in 0..reads {
        let offset = random_below(content.len() as u64);
        let mut buffer = vec![0; random_below(30_000) as usize];
        match file.read_at(&mut buffer, offset) {
            Ok(count) => {
                let expected = &content[offset as usize..][..count];
                assert!(buffer[..count] == *expected, "seed {seed}: {count} bytes at {offset}");
            }
            Err(error) => {
                let inner = error.get_ref().unwrap().downcast_ref::<ReadError>().unwrap();
                let ReadError::Device { error: DeviceError::Medium, offset: failed_offset } =
                    *inner
                else {
                    panic!("seed {seed}: {} bytes at {offset}: {inner}", buffer.len());
                };
                assert!((offset..offset + buffer.len() as u64).contains(&failed_offset));
                errors += 1;
            }
        }
    }
    errors
}
