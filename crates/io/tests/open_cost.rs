//! Cost of an open in system calls and memory, with many files open.

mod support;

use std::io;
use std::path::{Path, PathBuf};

use readpath::ReadPath;
use support::system_calls::{calls_between_marks, mark};
use support::takes_direct;

/// A folder of small files, deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn of(files: usize) -> Folder {
        let name = format!("readpath-many-{files}-{}", std::process::id());
        let folder = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        std::fs::create_dir(&folder.0).unwrap();
        for at in 0..files {
            std::fs::write(folder.file(at), (at as u64).to_le_bytes()).unwrap();
        }
        folder
    }

    fn file(&self, at: usize) -> PathBuf {
        self.0.join(at.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Raises the descriptor limit; prints a skip message if it cannot.
fn can_open(descriptors: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is local.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = limit.rlim_cur.max(descriptors);
    // SAFETY: as above.
    let is_allowed = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
    if !is_allowed {
        eprintln!("skipped: {}: {descriptors} descriptors", io::Error::last_os_error());
    }
    is_allowed
}

#[test]
fn open_takes_equally_few_system_calls_with_a_thousand_files() {
    const FILES: usize = 1_000;
    if !can_open(FILES as u64 + 100) {
        return;
    }
    let folder = Folder::of(FILES);
    let calls = calls_between_marks(|| {
        let path = ReadPath::builder().build().unwrap();
        let mut open = vec![path.open(folder.file(0)).unwrap()];
        for at in 1..FILES {
            let is_counted = at == 1 || at == FILES - 1;
            let name = folder.file(at);
            is_counted.then(mark);
            let file = path.open(&name).unwrap();
            if is_counted {
                drop(file);
                mark();
            } else {
                open.push(file);
            }
        }
        // A file that is already open.
        let name = folder.file(7);
        mark();
        drop(path.open(&name).unwrap());
        mark();
    });
    let Some(mut calls) = calls else { return };
    eprintln!("system calls of open and close: {calls:?}");
    // Exclude the allocator's calls.
    let is_ours =
        |&number: &i64| ![libc::SYS_brk, libc::SYS_mmap, libc::SYS_mprotect].contains(&number);
    calls.iter_mut().for_each(|calls| calls.retain(is_ours));
    // openat, statx, close. Without a reported direct I/O alignment also a second open with
    // O_DIRECT, its fstatfs, and the reset of the flag. With debug assertions the standard library
    // checks each closed descriptor.
    let most = if takes_direct(&folder.file(0)) { 3 } else { 11 };
    let most = most + usize::from(cfg!(debug_assertions));
    assert!(calls.len() == 3 && calls.iter().all(|calls| calls.len() <= most), "{calls:?}");
}

#[test]
fn ten_thousand_open_files_take_little_memory() {
    const FILES: usize = 10_000;
    if !can_open(FILES as u64 + 100) {
        return;
    }
    let folder = Folder::of(FILES);
    let path = ReadPath::builder().memory(8 << 20).build().unwrap();
    let before = resident();
    let files: Vec<_> = (0..FILES).map(|at| path.open(folder.file(at)).unwrap()).collect();
    let grown = resident() - before;
    eprintln!("{} bytes of memory for each open file", grown / FILES as u64);
    assert!(grown < FILES as u64 * 8_192, "{grown} bytes");
    for at in (0..FILES).step_by(97).chain([FILES - 1]) {
        let mut bytes = [0; 8];
        files[at].read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), at as u64);
    }
}

/// Resident bytes of this process, from statm (proc(5)).
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
