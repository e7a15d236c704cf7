//! A read into memory that is brought in late stalls only its own caller.

extern crate readpath_dst as readpath;

#[path = "../../io/tests/support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use readpath::inside::{RangeRegistration, Uffd};
use readpath::{File, ReadPath};
use rustix::mm::{MapFlags, ProtFlags};
use support::*;

const PAGE: usize = 4096;
const FILE_PAGES: usize = 1024;

/// Memory that is absent until it is served, unmapped on drop.
struct Absent {
    uffd: Uffd,
    address: usize,
    bytes: usize,
}

impl Absent {
    fn new(bytes: usize) -> Absent {
        let uffd = Uffd::open().unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping without other users.
        let address = unsafe {
            rustix::mm::mmap_anonymous(null, bytes, protection, MapFlags::PRIVATE).unwrap() as usize
        };
        // SAFETY: the mapping made above.
        unsafe { uffd.register(address, bytes, RangeRegistration::Missing).unwrap() };
        Absent { uffd, address, bytes }
    }

    /// Waits for the first access to it.
    fn wait_for_touch(&self) {
        let mut faults = Vec::new();
        within_20_s("the destination is touched", || {
            self.uffd.take_faults(&mut faults).unwrap();
            !faults.is_empty()
        });
    }

    fn serve(&self) {
        // SAFETY: registered above.
        unsafe { self.uffd.zero(self.address, self.bytes).unwrap() };
    }
}

impl Drop for Absent {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, without users left.
        let _ = unsafe { rustix::mm::munmap(self.address as *mut _, self.bytes) };
    }
}

/// Serves the memory on drop, also after a failed assertion: its reader could not end otherwise.
struct Serve<'a>(&'a Absent);

impl Drop for Serve<'_> {
    fn drop(&mut self) {
        self.0.serve();
    }
}

fn within_20_s(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a read of the cached page 0 into absent memory, runs `meanwhile`, and only then serves
/// the memory.
fn stalled(memory: u64, meanwhile: impl Fn(&ReadPath, &File, &[u8]) + Sync) {
    if !can_serve() {
        return;
    }
    let temp = TempFile::new(FILE_PAGES * PAGE);
    let content = std::fs::read(&temp.path).unwrap();
    let path =
        ReadPath::builder().kernel_cache(false).memory(memory).readahead("none").build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut page = vec![0; PAGE];
    file.read_exact_at(&mut page, 0).unwrap();
    let absent = Absent::new(PAGE);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the mapping, which has no other users while this thread lives.
            let to = unsafe { std::slice::from_raw_parts_mut(absent.address as *mut u8, PAGE) };
            file.read_exact_at(to, 0).unwrap();
            assert!(*to == content[..PAGE], "the bytes that were asked for, however late");
        });
        let serve = Serve(&absent);
        absent.wait_for_touch();
        scope.spawn(|| {
            meanwhile(&path, &file, &content);
            is_done.store(true, Ordering::Relaxed);
        });
        within_20_s("the others go on", || is_done.load(Ordering::Relaxed));
        drop(serve);
    });
}

#[test]
fn other_readers_continue_during_a_stalled_copy() {
    stalled(64 * PAGE as u64, |_, file, content| {
        let mut buffer = vec![0; 8 * PAGE];
        for round in 0..3 {
            for (at, right) in content.chunks(buffer.len()).enumerate() {
                file.read_exact_at(&mut buffer, (at * right.len()) as u64).unwrap();
                assert!(buffer == right, "round {round}");
            }
        }
    });
}

#[test]
fn page_in_a_stalled_copy_can_be_invalidated_and_read_again() {
    stalled(64 * PAGE as u64, |path, file, content| {
        let mut buffer = vec![0; PAGE];
        for _ in 0..20 {
            file.invalidate(0, PAGE as u64);
            let before = path.stats().device_reads;
            file.read_exact_at(&mut buffer, 0).unwrap();
            assert!(buffer == content[..PAGE]);
            assert_eq!(path.stats().device_reads, before + 1, "it is read again");
        }
    });
}

#[test]
fn another_file_can_be_read_during_a_stalled_copy() {
    let other = TempFile::new(10 * PAGE);
    stalled(64 * PAGE as u64, |path, _, _| {
        for _ in 0..5 {
            let file = path.open(&other.path).unwrap();
            file.read_exact_at(&mut vec![0; 10 * PAGE], 0).unwrap();
        }
    });
}

/// Two frames, one for guards and one for reads, both in use by copies: a third read waits until a
/// copy ends.
#[test]
fn read_waits_for_a_copy_if_all_frames_are_in_copies() {
    if !can_serve() {
        return;
    }
    let temp = TempFile::new(FILE_PAGES * PAGE);
    let content = std::fs::read(&temp.path).unwrap();
    let path = ReadPath::builder()
        .kernel_cache(false)
        .memory(2 * PAGE as u64)
        .readahead("none")
        .build()
        .unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut page = vec![0; PAGE];
    let absents = [0, 1].map(|_| Absent::new(PAGE));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serves = absents.each_ref().map(Serve);
        for (at, absent) in absents.iter().enumerate() {
            // Sixteen pages apart, so that each is in a separate group.
            let offset = at * 16 * PAGE;
            file.read_exact_at(&mut page, offset as u64).unwrap();
            let (file, content) = (&file, &content);
            scope.spawn(move || {
                // SAFETY: as in `stalled`.
                let to = unsafe { std::slice::from_raw_parts_mut(absent.address as *mut u8, PAGE) };
                file.read_exact_at(to, offset as u64).unwrap();
                assert!(*to == content[offset..][..PAGE]);
            });
            absent.wait_for_touch();
        }
        scope.spawn(|| {
            let mut page = vec![0; PAGE];
            file.read_exact_at(&mut page, 100 * PAGE as u64).unwrap();
            assert!(page == content[100 * PAGE..][..PAGE]);
            is_done.store(true, Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!is_done.load(Ordering::Relaxed), "there is no frame for it");
        let [first, _second] = serves;
        drop(first);
        within_20_s("the read goes on", || is_done.load(Ordering::Relaxed));
    });
}
