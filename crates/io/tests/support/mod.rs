//! Files with known content, and readers of whole pages, for the tests.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod child;
pub mod system_calls;

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use readpath::{BackendKind, Builder, Direct, Mode, PageCache, PagerError, ReadPath, Region};

pub const BACKENDS: [BackendKind; 3] = [BackendKind::Aio, BackendKind::Ring, BackendKind::Threads];
pub const DIRECTS: [Direct; 2] = [Direct::Preferred, Direct::Never];

/// Options of a path with a page cache of its own, whose memory is elastic.
pub fn own_cache() -> Builder {
    ReadPath::builder().page_cache(PageCache::Own { bytes: None })
}

/// A file that is deleted on drop.
pub struct TempFile {
    pub path: PathBuf,
}

impl TempFile {
    /// Creates a file of `bytes` bytes in the build directory (a real file system). Its content is
    /// generated, so no two pages are equal.
    pub fn new(bytes: usize) -> TempFile {
        TempFile::in_directory(Path::new(env!("CARGO_TARGET_TMPDIR")), bytes)
    }

    pub fn in_directory(directory: &Path, bytes: usize) -> TempFile {
        let file = TempFile::named_in(directory);
        std::fs::write(&file.path, content(bytes)).unwrap();
        file
    }

    /// Creates a large file by repeating `content`, for tests that need no unique pages. A test
    /// build generates a GiB of [`content`] only in seconds.
    pub fn of(content: &[u8], times: usize) -> TempFile {
        let file = TempFile::named_in(Path::new(env!("CARGO_TARGET_TMPDIR")));
        let mut written = std::fs::File::create(&file.path).unwrap();
        (0..times).for_each(|_| written.write_all(content).unwrap());
        file
    }

    fn named_in(directory: &Path) -> TempFile {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("readpath-test-{}-{number}", std::process::id()));
        TempFile { path }
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

/// Reads the same range by the standard library.
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

/// True if the file can be read with direct I/O; prints a skip message otherwise.
pub fn takes_direct(path: &Path) -> bool {
    let uncached = ReadPath::builder().page_cache(PageCache::None);
    let mode = uncached.open(path).unwrap().mode();
    if mode != Mode::Direct {
        eprintln!("skipped: {} is read {mode}", path.display());
    }
    mode == Mode::Direct
}

/// True if the system has active swap (a line each, below a header); prints a skip message
/// otherwise.
pub fn has_swap() -> bool {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let is_any = swaps.lines().count() > 1;
    if !is_any {
        eprintln!("skipped: the system has no swap");
    }
    is_any
}

/// True if userfaultfd is available here; prints a skip message otherwise.
pub fn can_serve() -> bool {
    match Region::builder().memory(1 << 20).in_folder(4096, env!("CARGO_TARGET_TMPDIR")) {
        Err(error @ PagerError::Uffd(_)) => {
            eprintln!("skipped: {error}");
            false
        }
        _ => true,
    }
}

/// Resident bytes of the mapping that holds `address`, from smaps (proc(5)).
pub fn resident_bytes(address: usize) -> Option<u64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_inside = false;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next()?;
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let (Some(start), Some(end)) = (number(start), number(end)) {
                is_inside = (start..end).contains(&address);
            }
        } else if is_inside && first == "Rss:" {
            return Some(words.next()?.parse::<u64>().ok()? * 1024);
        }
    }
    None
}

/// A number of `/proc/self/status` (proc(5)) in bytes.
pub fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Limits the writable memory of this process to `bytes` more than it has.
pub fn limit_further_data(bytes: u64) {
    limit(libc::RLIMIT_DATA, status_bytes("VmData:") + bytes);
}

/// Sets a limit of this process.
pub fn limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: the struct lives through the call, which changes this process alone.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// Runs `work` in a forked child, which has no other threads. Returns its result.
pub fn in_child(work: impl FnOnce() -> bool) -> bool {
    status_of_child(work) == 0
}

/// Like [`in_child`], with the child's status as from waitpid(2).
pub fn status_of_child(work: impl FnOnce() -> bool) -> libc::c_int {
    // SAFETY: the child runs `work` and exits at once. It may allocate memory, since the C library
    // holds its locks over a fork.
    let process = unsafe { libc::fork() };
    assert!(process >= 0, "fork: {}", std::io::Error::last_os_error());
    if process == 0 {
        // SAFETY: as above. A hanging child is killed and counts as failed.
        unsafe { libc::alarm(60) };
        let is_true = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        if let Err(panic) = &is_true {
            // The test's captured output lies in memory that ends with the child.
            let message = panic.downcast_ref::<String>().map_or("a panic", |message| message);
            let message = panic.downcast_ref::<&str>().map_or(message, |message| message);
            let line = format!("child: {message}\n");
            // SAFETY: the bytes of a live string; 2 is standard error.
            unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
        }
        // SAFETY: ends the child without running the parent's code.
        unsafe { libc::_exit(if matches!(is_true, Ok(true)) { 0 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: `status` is written to, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(process, &mut status, 0) }, process);
    status
}

/// Like [`status_of_child`], with the child's standard error.
pub fn text_of_child(work: impl FnOnce() -> bool) -> (libc::c_int, String) {
    use std::io::Read;
    let (mut message, teller) = std::io::pipe().unwrap();
    let status = status_of_child(|| {
        // SAFETY: two open descriptors of the child.
        assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&teller), 2) }, 2);
        work()
    });
    drop(teller);
    let mut text = String::new();
    message.read_to_string(&mut text).unwrap();
    (status, text)
}

/// Next number of a splitmix64 sequence.
pub fn splitmix(state: &mut u64) -> u64 {
    readpath_core::splitmix::next(state)
}
