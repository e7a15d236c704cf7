//! Tests with a real backend whose answers are altered: short, repeated, canceled, late, or EIO.
//! Every read returns the right bytes or an error, and nothing remains in flight.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
use crate::page_cache::kernel::PathPages;
use crate::path::ReadPath;
use crate::read_error::ReadError;
use crate::storage::{FileStorage, Storage};
use crate::target::Coherence;
use crate::target::{OpenOptions, Target};

/// Alters one answer of three while it is on.
struct TamperingBackend {
    ring: Box<dyn Backend>,
    sleeper: Arc<dyn Sleeper>,
    late: Vec<KernelAnswer>,
    state: u64,
    is_on: Arc<AtomicBool>,
}

impl Backend for TamperingBackend {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        // SAFETY: the caller guarantees the contract of `queue`.
        unsafe { self.ring.queue(transfer) };
    }

    fn cancel(&mut self, token: u64) {
        self.ring.cancel(token);
    }

    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        answers.append(&mut self.late);
        let mut fresh = Vec::new();
        let sleep = if answers.is_empty() { sleep } else { Sleep::Never };
        let result = self.ring.exchange(sleep, &mut fresh);
        for answer in fresh {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let kind = if self.is_on.load(Ordering::Relaxed) { self.state >> 33 } else { u64::MAX };
            let raw = match kind % 15 {
                _ if kind == u64::MAX => answer.raw,
                0 => -libc::EIO,
                1 => -libc::EAGAIN,
                2 => -libc::EINTR,
                // As if the submitting thread had ended.
                3 => -libc::ECANCELED,
                4 if answer.raw > BLOCK => short_count(answer.raw),
                5 => {
                    self.late.push(answer);
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

/// Byte count of a transfer of `raw` bytes, more than a block, that stops early: about half, in
/// whole blocks. It is never zero, which would mean the end of the file. (The last pages of a file
/// are seldom whole: 6,400 bytes.)
fn short_count(raw: i32) -> i32 {
    (raw / 2 + BLOCK - 1) / BLOCK * BLOCK
}

const BLOCK: i32 = 4096;

#[test]
fn shortened_answers_are_whole_blocks_and_incomplete() {
    for raw in BLOCK + 1..20 * BLOCK {
        let stopped = short_count(raw);
        assert!(0 < stopped && stopped < raw && stopped % BLOCK == 0, "{raw}: {stopped}");
    }
}

/// Fails every transfer that touches one page.
struct BadPage {
    ring: Box<dyn Backend>,
    page: u64,
    /// Tokens of the transfers that touch the page.
    touching: BTreeSet<u64>,
}

impl Backend for BadPage {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let bytes: usize = transfer.segments.iter().map(|segment| segment.iov_len).sum();
        let pages = PageRange::covering(transfer.offset, bytes as u64);
        if pages.contains(self.page) {
            self.touching.insert(transfer.token);
        }
        // SAFETY: the caller guarantees the contract of `queue`.
        unsafe { self.ring.queue(transfer) };
    }

    fn cancel(&mut self, token: u64) {
        self.ring.cancel(token);
    }

    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        let result = self.ring.exchange(sleep, answers);
        for answer in answers {
            if self.touching.remove(&answer.token) {
                answer.raw = -libc::EIO;
            }
        }
        result
    }
}

#[test]
fn read_error_names_the_unreadable_page_for_any_request_size() {
    let name = std::env::temp_dir().join(format!("readpath-bad-page-{}", std::process::id()));
    let temp = Temp(name);
    std::fs::write(&temp.0, vec![7; 4 << 20]).unwrap();
    // Pages in the kernel page cache would be read from there.
    let made = std::fs::File::open(&temp.0).unwrap();
    made.sync_all().unwrap();
    rustix::fs::fadvise(&made, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for page in [0, 1, 300, 1022, 1023] {
        let ((ring, sleeper), in_use) = BackendKind::Auto.build_shared(16).unwrap();
        let path = path_over("none", 16 << 20, sleeper, in_use, |_| {
            Box::new(BadPage { ring, page, touching: BTreeSet::new() })
        });
        let target = Target::open(&temp.0, OpenOptions::default()).unwrap();
        let stamp = target.identity();
        let file = File::new(
            Handle::open(path.engine(), StorageFile::Local(target), stamp),
            temp.0.as_path().into(),
        );
        let mut all = vec![0; 4 << 20];
        let error = file.read_at(&mut all, 0).unwrap_err();
        let inner = *error.get_ref().unwrap().downcast_ref::<ReadError>().unwrap();
        let error = DeviceError::Medium;
        assert_eq!(inner, ReadError::Device { offset: page * 4096, error }, "page {page}");
        // One request of 4 MiB and at most eleven more: each step halves the candidates.
        assert!(path.stats().device_reads <= 12, "page {page}: {:?}", path.stats());
    }
}

/// A file that is removed when the test ends.
struct Temp(PathBuf);

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn path(policy: &str, memory_bytes: u64, is_on: &Arc<AtomicBool>) -> ReadPath {
    let ((ring, sleeper), in_use) = BackendKind::Auto.build_shared(16).unwrap();
    path_over(policy, memory_bytes, sleeper, in_use, |sleeper| {
        Box::new(TamperingBackend {
            ring,
            sleeper,
            late: Vec::new(),
            state: 11,
            is_on: Arc::clone(is_on),
        })
    })
}

fn path_over(
    policy: &str,
    memory_bytes: u64,
    sleeper: Arc<dyn Sleeper>,
    in_use: BackendInUse,
    backend: impl FnOnce(Arc<dyn Sleeper>) -> Box<dyn Backend>,
) -> ReadPath {
    let clock = Clock::start();
    let files = FileStorage::with_backend(backend(Arc::clone(&sleeper)), in_use, 16, clock);
    let config = Config {
        memory_bytes,
        pinned_bytes_max: memory_bytes / 4,
        readahead: Spec::parse(policy).unwrap(),
        ..Config::new(files.caps())
    };
    let mut machine = machine::Machine::new(config).unwrap();
    let pages = (memory_bytes / 4096) as u32;
    let frame_cache = Arc::new(FrameCache::new(pages, pages / 4).unwrap());
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

#[test]
fn reads_with_faults_are_right_or_errors_and_leave_nothing_in_flight() {
    let name = std::env::temp_dir().join(format!("readpath-faults-{}", std::process::id()));
    let temp = Temp(name);
    let content: Vec<u8> = (0..1_000_000u32).flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&temp.0, &content).unwrap();
    for policy in ["none", "ondemand", "window"] {
        for memory_bytes in [40 * 4096, 1 << 20] {
            let is_on = Arc::new(AtomicBool::new(true));
            let path = path(policy, memory_bytes, &is_on);
            let target = Target::open(&temp.0, OpenOptions::default()).unwrap();
            let stamp = target.identity();
            let file = File::new(
                Handle::open(path.engine(), StorageFile::Local(target), stamp),
                temp.0.as_path().into(),
            );
            let errors: u32 = std::thread::scope(|scope| {
                let threads = [1u64, 2, 3].map(|seed| {
                    let (file, content) = (&file, &content);
                    scope.spawn(move || read_at_random(file, content, seed, 200))
                });
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert!(errors > 0, "{policy}: the faults reached a read");
            is_on.store(false, Ordering::Relaxed);
            assert_eq!(read_at_random(&file, &content, 9, 50), 0, "{policy}: all is well again");
            // After a read of all bytes, no prefetch is in flight either.
            let mut all = vec![0; content.len()];
            file.read_exact_at(&mut all, 0).unwrap();
            assert!(all == content);
            let engine = Arc::clone(path.engine());
            drop((file, path));
            let mut state = engine.lock();
            while state.machine.meter().in_device() > 0 {
                state = engine.lead(state, None);
            }
            assert!(state.machine.is_idle(), "{policy}: nothing is open or reserved");
        }
    }
    // The file itself is intact.
    let mut byte = [0];
    std::fs::File::open(&temp.0).unwrap().read_exact_at(&mut byte, 4).unwrap();
    assert_eq!(byte, [1]);
}

/// Reads at random offsets and returns the number of reads that failed with a device error.
fn read_at_random(file: &File, content: &[u8], seed: u64, reads: u32) -> u32 {
    let mut state = seed;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let mut errors = 0;
    for _ in 0..reads {
        let offset = next(content.len() as u64);
        let mut buffer = vec![0; next(30_000) as usize];
        match file.read_at(&mut buffer, offset) {
            Ok(count) => {
                let right = &content[offset as usize..][..count];
                assert!(buffer[..count] == *right, "seed {seed}: {count} bytes at {offset}");
            }
            Err(error) => {
                let inner = error.get_ref().unwrap().downcast_ref::<ReadError>().unwrap();
                let ReadError::Device { error: DeviceError::Medium, offset: at } = *inner else {
                    panic!("seed {seed}: {} bytes at {offset}: {inner}", buffer.len());
                };
                assert!(offset <= at && at < offset + buffer.len() as u64);
                errors += 1;
            }
        }
    }
    errors
}
