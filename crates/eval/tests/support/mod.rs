//! Files with known bytes, for the tests.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file that is removed on drop.
pub struct TempFile {
    pub path: PathBuf,
}

impl TempFile {
    /// Creates a file of `bytes` bytes below the build directory (a real file system), with
    /// different contents in every page.
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

/// Pseudorandom bytes, one eight-byte word per step.
pub fn content(bytes: usize) -> Vec<u8> {
    let mut state = 0;
    let words = (0..bytes.div_ceil(8))
        .flat_map(|_| readpath_core::splitmix::next(&mut state).to_le_bytes());
    words.take(bytes).collect()
}

/// Reads the same bytes through the standard library.
pub fn pread(path: &Path, offset: u64, bytes: u64) -> Vec<u8> {
    let file = File::open(path).unwrap();
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

/// Returns true when the file system supports `O_DIRECT`, else prints a message.
pub fn takes_direct(path: &Path) -> bool {
    let opened = File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
    match opened {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: {} past the kernel's cache: {error}", path.display());
            false
        }
    }
}
