//! Files with known bytes, and a reader of whole pages, for the tests.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use readpath::backend::BackendKind;
use readpath::clock::Clock;
use readpath::device::RealDevice;
use readpath::frames::FramePool;
use readpath::target::{Direct, Mode, OpenOptions, Target};
use readpath_core::request::{Completion, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange};

pub const BACKENDS: [BackendKind; 2] = [BackendKind::Ring, BackendKind::Threads];
pub const DIRECTS: [Direct; 2] = [Direct::Preferred, Direct::Never];

/// A file that is removed when the test ends, however it ends.
pub struct TempFile {
    pub path: PathBuf,
}

impl TempFile {
    /// A file of `bytes` bytes below the build directory (a real file system),
    /// filled from a generator, so that no two of its pages are alike.
    pub fn new(bytes: usize) -> TempFile {
        TempFile::in_directory(Path::new(env!("CARGO_TARGET_TMPDIR")), bytes)
    }

    pub fn in_directory(directory: &Path, bytes: usize) -> TempFile {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("readpath-test-{}-{number}", std::process::id()));
        let file = TempFile { path };
        std::fs::write(&file.path, content(bytes)).unwrap();
        file
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Bytes of Marsaglia's xorshift64, an eight-byte word a step.
pub fn content(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(bytes);
    content
}

/// The same bytes, through the standard library.
pub fn pread(path: &Path, offset: u64, bytes: u64) -> Vec<u8> {
    let file = std::fs::File::open(path).unwrap();
    let mut buffer = vec![0; bytes as usize];
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64).unwrap() {
            0 => break,
            count => filled += count,
        }
    }
    buffer.truncate(filled);
    buffer
}

pub fn open(path: &Path, direct: Direct) -> Target {
    Target::open(path, OpenOptions { direct, is_writable: false }).unwrap()
}

/// Whether the file can be read past the kernel's cache; says so if not.
pub fn takes_direct(path: &Path) -> bool {
    let mode = open(path, Direct::Preferred).mode();
    if mode != Mode::Direct {
        eprintln!("skipped: {} is read {mode}", path.display());
    }
    mode == Mode::Direct
}

pub fn device(target: Target, backend: BackendKind, frames: u32) -> RealDevice {
    let pool = FramePool::new(frames).unwrap();
    RealDevice::new(target, pool, backend, Clock::start()).unwrap()
}

/// A request for whole pages.
pub fn read_pages(id: u32, pages: PageRange) -> DeviceRequest {
    DeviceRequest {
        id: RequestId(id),
        op: Op::Read,
        start: pages.first * PAGE_SECTORS,
        sectors: (pages.count() * PAGE_SECTORS) as u32,
    }
}

/// Sleeps until there is a completion.
pub fn completion(device: &mut RealDevice) -> Completion {
    loop {
        if let Some(completion) = device.poll() {
            return completion;
        }
        assert!(device.in_flight() > 0, "nothing is in flight, so nothing will complete");
        device.wait(None).unwrap();
    }
}

/// Reads `bytes` bytes at `offset` by whole pages through frames that lie in
/// memory in an order of their own, and cuts out what was asked.
pub fn read_bytes(device: &mut RealDevice, offset: u64, bytes: u64) -> Vec<u8> {
    let pages = PageRange::covering(offset, bytes);
    // Backwards in pairs: 1 0, 3 2, …: neither contiguous nor all apart.
    let frames: Vec<u32> =
        (0..pages.count() as u32).map(|index| index ^ (index & 2) >> 1).collect();
    device.submit(read_pages(0, pages), &frames);
    let moved = match completion(device).outcome {
        Outcome::Done => pages.count() * PAGE_BYTES,
        Outcome::Short { bytes } => bytes,
        Outcome::Failed(error) => panic!("{bytes} bytes at {offset}: {error}"),
    };
    let mut got: Vec<u8> =
        frames.iter().flat_map(|&frame| device.frame(frame).iter().copied()).collect();
    got.truncate(moved as usize);
    let skip = ((offset - pages.first * PAGE_BYTES) as usize).min(got.len());
    let end = (skip + bytes as usize).min(got.len());
    got[skip..end].to_vec()
}
