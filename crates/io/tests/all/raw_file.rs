//! Raw files on real storage: all backends, direct and buffered, on a file system and on a block
//! device, from several threads.

use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::support::*;
use proptest::prelude::*;
use readpath::raw::{RawFault, RawFileBuilder};
use readpath::{BackendKind, BufferedBecause, Direct, Mode, RawFile};
use readpath_core::request::{DeviceError, Op};

fn options(backend: BackendKind, direct: Direct) -> RawFileBuilder {
    let builder = RawFile::builder().write(true).chunk_bytes(16 << 10).depth(3);
    builder.backend(backend).direct(direct)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    /// Every backend produces the same file as positioned reads and writes of the standard library.
    #[test]
    fn raw_file_equals_a_standard_library_file(
        length in 1usize..150_000,
        calls in proptest::collection::vec(
            (any::<bool>(), 0u64..200_000, 0usize..120_000, 0usize..5_000), 1..8),
    ) {
        for backend in BACKENDS {
            for direct in DIRECTS {
                let (ours, theirs) = (TempFile::new(length), TempFile::new(length));
                let file = options(backend, direct).open(&ours.path).unwrap();
                let plain = std::fs::File::options().read(true).write(true).open(&theirs.path).unwrap();
                for &(is_write, offset, bytes, shift) in &calls {
                    let mut memory = content(shift + bytes)[shift..].to_vec();
                    if is_write {
                        file.write_all_at(&memory, offset).unwrap();
                        plain.write_all_at(&memory, offset).unwrap();
                    } else {
                        let mut expected = vec![0; bytes];
                        let count = read_up_to(&plain, &mut expected, offset);
                        prop_assert_eq!(file.read_at(&mut memory, offset).unwrap(), count);
                        prop_assert!(memory[..count] == expected[..count]);
                    }
                }
                file.sync_data().unwrap();
                prop_assert!(std::fs::read(&ours.path).unwrap() == std::fs::read(&theirs.path).unwrap());
            }
        }
    }
}

#[test]
fn file_with_late_direct_io_takes_writes() {
    for backend in BACKENDS {
        let temp = TempFile::new(0);
        let file = options(backend, Direct::Late).open(&temp.path).unwrap();
        // Whole blocks, and parts of them.
        file.write_all_at(&content(64 << 10), 0).unwrap();
        file.write_all_at(b"abc", 5_000).unwrap();
        let mut expected = content(64 << 10);
        expected[5_000..5_003].copy_from_slice(b"abc");
        assert!(std::fs::read(&temp.path).unwrap() == expected, "{backend:?}");
    }
}

/// The standard library refuses these options as well.
#[test]
fn creation_without_write_is_an_error_that_names_write() {
    let temp = TempFile::new(10);
    let missing = temp.path.with_extension("missing");
    for path in [&temp.path, &missing] {
        let mut options = std::fs::File::options();
        let std_error = options.read(true).create(true).truncate(false).open(path).unwrap_err();
        assert_eq!(std_error.kind(), std::io::ErrorKind::InvalidInput);
        let error = RawFile::builder().create(true).open(path).unwrap_err();
        assert!(error.to_string().contains("`write`"), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std_error.kind());
        assert!(!missing.exists());
    }
}

/// A reader returns the same bytes as a read, on every backend.
#[test]
fn raw_reader_returns_the_same_bytes_as_a_read() {
    for backend in BACKENDS {
        for direct in DIRECTS {
            let file = TempFile::new(300_000);
            let mut raw = options(backend, direct).open(&file.path).unwrap();
            for (offset, bytes) in [(0, u64::MAX), (777, 100_000), (299_999, 5), (300_000, 5)] {
                let mut expected = vec![0; 300_000];
                let wanted =
                    usize::try_from(bytes).map_or(expected.len(), |bytes| bytes.min(300_000));
                let count = raw.read_at(&mut expected[..wanted], offset).unwrap();
                let mut borrowed = Vec::new();
                let mut reader = raw.reader(offset, bytes).unwrap();
                while let Some(chunk) = reader.next_chunk().unwrap() {
                    assert_eq!(chunk.offset(), offset + borrowed.len() as u64);
                    borrowed.extend_from_slice(&chunk);
                }
                assert!(borrowed == expected[..count], "{backend:?} {direct:?} {offset} {bytes}");
            }
        }
    }
}

/// Reads until the buffer is full or the file ends, by the standard library.
fn read_up_to(file: &std::fs::File, memory: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while done < memory.len() {
        match file.read_at(&mut memory[done..], offset + done as u64).unwrap() {
            0 => break,
            bytes => done += bytes,
        }
    }
    done
}

/// 1 MiB in chunks of 16 KiB: 64. Memory aligned like the file is not copied; unaligned memory is
/// copied completely.
#[test]
fn aligned_memory_is_not_copied() {
    let file = TempFile::new(1 << 20);
    if !takes_direct(&file.path) {
        return;
    }
    let raw = options(BackendKind::Ring, Direct::Required).open(&file.path).unwrap();
    let mut memory = vec![0u8; (1 << 20) + 8192];
    let start = memory.as_ptr().align_offset(4096);
    let aligned = &mut memory[start..start + (1 << 20)];
    raw.read_exact_at(aligned, 0).unwrap();
    assert!(aligned == content(1 << 20));
    let first = raw.stats();
    assert_eq!((first.reads, first.read_bytes, first.copied_bytes), (64, 1 << 20, 0));
    raw.write_all_at(&memory[start..start + (1 << 20)], 0).unwrap();
    assert_eq!((raw.stats().writes, raw.stats().copied_bytes), (64, 0));
    // Memory and file offset are both off by one byte: only the edges are copied, at most a block
    // each.
    raw.read_exact_at(&mut memory[start + 1..start + 100_001], 1).unwrap();
    let edges = raw.stats().copied_bytes;
    assert!((1..=2 * 4096).contains(&edges), "{edges}");
    // Only the memory is off by one byte: all bytes are copied.
    raw.read_exact_at(&mut memory[start + 1..start + 100_001], 0).unwrap();
    assert_eq!(raw.stats().copied_bytes - edges, 100_000);
}

#[test]
fn concurrent_writes_lose_no_byte_of_a_shared_block() {
    let file = TempFile::new(100_000);
    let raw = options(BackendKind::Ring, Direct::Preferred).open(&file.path).unwrap();
    // Eight threads write every eighth piece of 1,000 bytes, which is no multiple of a block.
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let raw = &raw;
            scope.spawn(move || {
                for piece in (u64::from(thread)..100).step_by(8) {
                    raw.write_all_at(&[thread; 1_000], piece * 1_000).unwrap();
                }
            });
        }
    });
    let got = std::fs::read(&file.path).unwrap();
    assert_eq!(got.len(), 100_000);
    for (piece, bytes) in got.chunks(1_000).enumerate() {
        assert!(bytes.iter().all(|&byte| usize::from(byte) == piece % 8), "piece {piece}");
    }
}

#[test]
fn raw_file_can_be_moved_to_another_thread() {
    let file = TempFile::new(70_000);
    let raw = RawFile::open(&file.path).unwrap();
    let read = std::thread::spawn(move || {
        let mut memory = vec![0; 70_000];
        raw.read_exact_at(&mut memory, 0).unwrap();
        (memory, raw)
    });
    let (memory, raw) = read.join().unwrap();
    assert!(memory == content(70_000));
    assert_eq!(raw.read_at(&mut [0; 10], 69_999).unwrap(), 1);
}

#[test]
fn files_on_tmpfs_are_buffered_and_report_it() {
    let directory = std::path::Path::new("/dev/shm");
    if !directory.is_dir() {
        eprintln!("skipped: no /dev/shm");
        return;
    }
    let file = TempFile::in_directory(directory, 10_000);
    let raw = options(BackendKind::Ring, Direct::Preferred).open(&file.path).unwrap();
    if raw.mode() == Mode::Direct {
        eprintln!("skipped: /dev/shm is no memory file system");
        return;
    }
    assert_eq!(raw.mode(), Mode::Buffered(BufferedBecause::InMemory));
    raw.write_all_at(b"abc", 9_999).unwrap();
    assert_eq!(std::fs::read(&file.path).unwrap().len(), 10_002);
    let error = options(BackendKind::Ring, Direct::Required).open(&file.path).unwrap_err();
    assert!(error.to_string().contains("no direct I/O"), "{error}");
}

#[test]
fn impossible_ranges_are_refused() {
    let file = TempFile::new(1_000);
    let raw = options(BackendKind::Ring, Direct::Preferred).open(&file.path).unwrap();
    for offset in [u64::MAX, i64::MAX as u64, i64::MAX as u64 - 100] {
        let error = raw.read_at(&mut [0; 200], offset).unwrap_err();
        assert_eq!(error.fault, RawFault::Range { offset });
        assert!(raw.write_at(&[0; 200], offset).is_err());
    }
    let error = std::io::Error::from(raw.read_exact_at(&mut [0; 2_000], 0).unwrap_err());
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

/// A loop device over a file, removed on drop.
struct LoopDevice(String);

impl LoopDevice {
    fn over(backing: &TempFile) -> Option<LoopDevice> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&backing.path).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(LoopDevice(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
            }
            _ => {
                eprintln!("skipped: no loop device (it needs root)");
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Root may open every file, and no user can write to a read-only file system.
#[test]
fn read_only_file_system_is_named_in_the_error() {
    let folder = std::env::temp_dir().join(format!("readpath-read-only-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "ro", "tmpfs"]).arg(&folder);
    if !mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no mount (it needs root)");
        return std::fs::remove_dir(&folder).unwrap();
    }
    let error = RawFile::builder().write(true).create(true).open(folder.join("new")).err();
    let status = Command::new("umount").arg(&folder).status().unwrap();
    std::fs::remove_dir(&folder).unwrap();
    assert!(status.success());
    let text = error.unwrap().to_string();
    assert!(text.contains("Read-only file system") && text.contains("remount it"), "{text}");
    assert!(!text.contains("run as a user"), "{text}");
}

#[test]
fn block_device_write_keeps_surrounding_bytes_and_stops_at_its_end() {
    let backing = TempFile::new(1 << 20);
    let Some(device) = LoopDevice::over(&backing) else { return };
    let mut expected = content(1 << 20);
    for backend in BACKENDS {
        let raw = options(backend, Direct::Required).open(&device.0).unwrap();
        assert_eq!(raw.bytes().unwrap(), 1 << 20);
        for (offset, bytes) in [(700, 100_000), (5, 3), (1_048_570, 6), (512, 512), (0, 1 << 20)] {
            let data = content(bytes + 7)[7..].to_vec();
            raw.write_all_at(&data, offset).unwrap();
            expected[offset as usize..offset as usize + bytes].copy_from_slice(&data);
            let mut got = vec![0; 1 << 20];
            raw.read_exact_at(&mut got, 0).unwrap();
            assert!(got == expected, "{bytes} at {offset}");
        }
        // A write past its end writes no bytes, and a read stops there.
        let error = raw.write_at(&[0; 100], (1 << 20) - 50).unwrap_err();
        assert_eq!(error.fault, RawFault::PastEnd { device_bytes: 1 << 20 });
        assert_eq!(raw.read_at(&mut [0; 100], (1 << 20) - 50).unwrap(), 50);
        assert_eq!(raw.read_at(&mut [0; 100], 1 << 20).unwrap(), 0);
        raw.sync_all().unwrap();
    }
}

/// The second half of the device is missing. A read fails there, reports the first such chunk, and
/// returns the bytes before it.
#[test]
fn medium_error_reports_the_bytes_read_before_it() {
    let backing = TempFile::new(1 << 20);
    let Some(device) = LoopDevice::over(&backing) else { return };
    std::fs::File::options().write(true).open(&backing.path).unwrap().set_len(1 << 19).unwrap();
    for backend in BACKENDS {
        let raw = options(backend, Direct::Required).open(&device.0).unwrap();
        let mut memory = vec![0; 1 << 20];
        let error = raw.read_at(&mut memory, 0).unwrap_err();
        let RawFault::Device { op: Op::Read, bytes_done, error, .. } = error.fault else {
            panic!("{error}");
        };
        assert_eq!((bytes_done, error), (1 << 19, DeviceError::Medium));
        assert!(memory[..1 << 19] == content(1 << 20)[..1 << 19]);
        assert_eq!(raw.read_at(&mut memory[..1 << 19], 0).unwrap(), 1 << 19);
    }
}

/// A memory file system of 1 MiB is soon full.
#[test]
fn full_file_system_is_reported_as_full() {
    let directory = TempFile::new(0);
    std::fs::remove_file(&directory.path).unwrap();
    std::fs::create_dir(&directory.path).unwrap();
    struct Mounted<'a>(&'a std::path::Path);
    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            // Lazily: a child of another test may have inherited the open file for a moment.
            let _ = Command::new("umount").arg("-l").arg(self.0).status();
            let _ = std::fs::remove_dir(self.0);
        }
    }
    let mounted = Mounted(&directory.path);
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&directory.path)
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no tmpfs of its own (it needs root)");
        return;
    }
    let builder = options(BackendKind::Ring, Direct::Preferred).create(true);
    let raw = builder.open(mounted.0.join("file")).unwrap();
    let error = raw.write_all_at(&vec![1; 2 << 20], 0).unwrap_err();
    let RawFault::Device { error: DeviceError::Full, bytes_done, .. } = error.fault else {
        panic!("{error}");
    };
    assert!(bytes_done <= 1 << 20);
    assert_eq!(raw.bytes().unwrap(), bytes_done);
    drop(raw);
}
