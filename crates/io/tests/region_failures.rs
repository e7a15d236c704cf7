//! A region with failing storage: unavailable bytes are an error, and never differ from the written
//! ones. A killed process leaves no file.
//!
//! Its memory is filled and read by system calls, which fail with `EFAULT` where a program's own
//! access would be a bus error.

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use readpath::Region;
use readpath::pager::FaultScope;
use readpath_core::machine::ReadError;
use readpath_core::request::DeviceError;
use support::TempFile;

const PAGE: usize = 4096;
/// EFAULT in errno(3).
const BAD_ADDRESS: i32 = 14;

/// True if system calls may access a region's memory here; prints a skip message otherwise.
fn can_serve_system_calls() -> bool {
    let region = Region::builder().memory(1 << 20).in_folder(1 << 20, env!("CARGO_TARGET_TMPDIR"));
    match region.map(|region| region.scope()) {
        Ok(FaultScope::All) => true,
        Ok(FaultScope::UserOnly) => {
            eprintln!("skipped: only faults of the program itself can be served here");
            false
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// Runs a command and returns its output; `None`, with the reason on standard error, on failure.
fn output_of(program: &str, args: &[&str]) -> Option<String> {
    match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
        }
        Ok(output) => {
            eprintln!("skipped: {program}: {}", String::from_utf8_lossy(&output.stderr).trim());
            None
        }
        Err(error) => {
            eprintln!("skipped: {program}: {error}");
            None
        }
    }
}

/// A loop device, removed on drop.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Loop> {
        output_of("losetup", &["--find", "--show", file.to_str()?]).map(|path| Loop(path.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A file system in memory with room for `bytes`, removed on drop.
struct SmallFileSystem(PathBuf);

impl SmallFileSystem {
    fn new(bytes: usize) -> Option<SmallFileSystem> {
        // The tests of this file run at the same time, and have different sizes.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("readpath-small-{bytes}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let (system, size) = (SmallFileSystem(path), format!("size={bytes}"));
        let target = system.0.to_str().unwrap();
        output_of("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", target])?;
        Some(system)
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Fills page after page from `content`; returns the number of filled pages.
fn fill(region: &mut Region, content: &TempFile) -> usize {
    let content = File::open(&content.path).unwrap();
    for (page, bytes) in region.as_mut_slice().chunks_exact_mut(PAGE).enumerate() {
        if let Err(error) = content.read_exact_at(bytes, (page * PAGE) as u64) {
            assert_eq!(error.raw_os_error(), Some(BAD_ADDRESS), "{error}");
            return page;
        }
    }
    region.len() / PAGE
}

/// Reads the first `pages` pages back and returns the number of readable ones, which must have the
/// filled content.
fn read_back(region: &Region, content: &TempFile, pages: usize) -> usize {
    let expected = std::fs::read(&content.path).unwrap();
    let out = TempFile::new(PAGE);
    let file = File::options().read(true).write(true).open(&out.path).unwrap();
    let mut good = 0;
    for page in 0..pages {
        let place = page * PAGE..(page + 1) * PAGE;
        match file.write_all_at(&region.as_slice()[place.clone()], 0) {
            Ok(()) => {
                assert!(std::fs::read(&out.path).unwrap() == expected[place], "page {page}");
                good += 1;
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(BAD_ADDRESS), "{error}"),
        }
    }
    good
}

/// 64 pages of memory over a device with room for about 16 pages: at about 80 pages there is no
/// more room.
#[test]
fn device_without_space_is_an_error_before_data_is_lost() {
    if !can_serve_system_calls() {
        return;
    }
    let Some(system) = SmallFileSystem::new(16 * PAGE) else { return };
    let backing = system.0.join("device");
    File::create(&backing).unwrap().set_len(8 << 20).unwrap();
    let Some(device) = Loop::over(&backing) else { return };
    let mut region =
        Region::builder().memory(64 * PAGE as u64).on_device(2 << 20, &device.0).unwrap();
    let content = TempFile::new(2 << 20);
    let filled = fill(&mut region, &content);
    assert!((64..=96).contains(&filled), "{filled} pages");
    assert!(matches!(region.check(), Err(ReadError::SwapWrite { .. })), "{:?}", region.check());
    assert!(region.stats().failed_writes > 0);
    // Pages in memory are intact; pages written out are readable only if memory has room.
    let good = read_back(&region, &content, filled);
    assert!(good >= 48, "{good} of {filled} pages");
    drop(region);
}

/// Half of the file system is free. Its free space is polled by statvfs(3) next to a request for
/// more, which must not take the free half first.
#[test]
fn region_beyond_the_free_space_takes_none_of_it() {
    const BYTES: usize = 64 << 20;
    let Some(system) = SmallFileSystem::new(BYTES) else { return };
    let filler = vec![1; BYTES / 2];
    std::fs::write(system.0.join("filler"), filler).unwrap();
    let free_bytes = || {
        let state = rustix::fs::statvfs(&system.0).unwrap();
        state.f_bavail * state.f_frsize
    };
    let before = free_bytes();
    let is_over = AtomicBool::new(false);
    let (error, least) = std::thread::scope(|scope| {
        let least = scope.spawn(|| {
            let mut least = free_bytes();
            while !is_over.load(Ordering::Relaxed) {
                least = least.min(free_bytes());
            }
            least
        });
        let made = Region::builder().memory(1 << 20).in_folder((BYTES / 4 * 3) as u64, &system.0);
        is_over.store(true, Ordering::Relaxed);
        (made.unwrap_err().to_string(), least.join().unwrap())
    });
    assert!(error.contains("free some"), "{error}");
    assert_eq!(least, before);
}

/// The device loses its content: its backing file is truncated.
#[test]
fn unreadable_swap_pages_are_errors_and_other_pages_intact() {
    if !can_serve_system_calls() {
        return;
    }
    let backing = TempFile::new(8 << 20);
    let Some(device) = Loop::over(&backing.path) else { return };
    // The oldest pages are evicted first.
    let options = Region::builder().memory(64 * PAGE as u64).eviction("two-lists");
    let mut region = options.on_device(2 << 20, &device.0).unwrap();
    let content = TempFile::new(2 << 20);
    assert_eq!(fill(&mut region, &content), 512);
    // After reading back once, memory has no dirty page. A write would extend the backing file, and
    // the device would return zeros without an error.
    assert_eq!(read_back(&region, &content, 512), 512);
    region.check().unwrap();
    File::options().write(true).open(&backing.path).unwrap().set_len(0).unwrap();
    let lost = region.load(0, PAGE as u64);
    let medium = DeviceError::Medium;
    assert_eq!(lost, Err(ReadError::Device { offset: 0, error: medium }));
    assert_eq!(region.check(), Ok(()), "nothing was touched in vain so far");
    let good = read_back(&region, &content, 512);
    assert!((1..=64).contains(&good), "{good} of 512 pages");
    assert!(matches!(region.check(), Err(ReadError::Device { .. })));
    assert_eq!(region.stats().poisoned_pages, 512 - good as u64);
    // Lost pages can be used again after a discard.
    region.discard(0, 2 << 20);
    let zeros = TempFile::new(PAGE);
    let out = File::options().read(true).write(true).open(&zeros.path).unwrap();
    for page in region.as_slice().chunks(PAGE) {
        out.write_all_at(page, 0).unwrap();
        assert!(std::fs::read(&zeros.path).unwrap() == [0; PAGE]);
    }
}

#[test]
fn killed_process_leaves_no_swap_file() {
    if !can_serve_system_calls() {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("readpath-killed-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_writes_until_it_is_killed", "--ignored", "--nocapture"])
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find(|line| line.contains("swept"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.is_some(), "the child had written over its budget");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
#[ignore = "runs until it is killed, by the test above"]
fn child_writes_until_it_is_killed() {
    let mut region = Region::builder().memory(1 << 20).in_folder(8 << 20, ".").unwrap();
    loop {
        region.as_mut_slice().chunks_mut(PAGE).for_each(|page| page[0] = page[0].wrapping_add(1));
        println!("swept");
    }
}
