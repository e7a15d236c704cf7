//! Opening: properties of a file or device, the reported fallback from direct I/O, and every open
//! error.

use std::path::{Path, PathBuf};

use readpath::inside::{OpenOptions, Target};
use readpath::{BufferedBecause, Direct, Mode, OpenError};
use readpath_core::unit::PageRange;
use readpath_record::cold::{Residency, drop_pages, residency_flags};

use crate::device::*;
use crate::support::*;

#[test]
fn regular_file_properties_are_reported() {
    let file = TempFile::new(1 << 20 | 1);
    let target = open(&file.path, Direct::Never);
    assert_eq!(target.mode(), Mode::Buffered(BufferedBecause::Asked));
    assert_eq!((target.bytes(), target.is_block_device()), (1 << 20 | 1, false));
    let caps = target.caps();
    assert_eq!(caps.sectors, 2_056, "a page begun counts whole");
    assert_eq!(caps.request_sectors_max, 8_192, "1024 pieces (IOV_MAX) of 4 KiB");
    assert_eq!(caps.alignment_sectors, 1);
    assert!(caps.depth_max >= 1);
}

#[test]
fn tmpfs_file_is_buffered_and_reports_it() {
    let directory = Path::new("/dev/shm");
    if !directory.is_dir() {
        eprintln!("skipped: there is no tmpfs at /dev/shm");
        return;
    }
    let file = TempFile::in_directory(directory, 100_000);
    let target = open(&file.path, Direct::Preferred);
    assert_eq!(target.mode(), Mode::Buffered(BufferedBecause::InMemory));
    assert_eq!(target.mode().to_string(), "buffered (the file lives in memory)");
    for backend in BACKENDS {
        let mut device = device(open(&file.path, Direct::Preferred), backend, 64);
        let got = read_bytes(&mut device, 12_345, 100_000);
        assert!(got == pread(&file.path, 12_345, 100_000));
    }
    let options = OpenOptions { direct: Direct::Required, is_writable: false };
    let error = Target::open(&file.path, options).unwrap_err();
    assert!(error.to_string().contains("no direct I/O"), "{error}");
}

/// Error of opening a path that must fail.
fn refused(path: impl AsRef<Path>) -> OpenError {
    Target::open(path.as_ref(), OpenOptions::default()).unwrap_err()
}

#[test]
fn open_errors_name_the_cause_and_a_remedy() {
    let missing = PathBuf::from("/nowhere/at/all");
    assert_eq!(refused(&missing), OpenError::Missing { path: missing.clone() });
    assert_eq!(
        refused(&missing).to_string(),
        "/nowhere/at/all: there is no such file; check the path, or make it"
    );
    let file = TempFile::new(1);
    // As open(2) of an entry of a file.
    let below = refused(file.path.join("below"));
    assert_eq!(below, OpenError::Other { path: file.path.join("below"), errno: libc::ENOTDIR });
    assert!(below.to_string().ends_with("/below: its folder is no directory; check the path"));
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    assert_eq!(refused(&directory), OpenError::Directory { path: directory });
    let null = PathBuf::from("/dev/null");
    assert_eq!(refused(&null), OpenError::NotStorage { path: null });
    let empty = TempFile::new(0);
    assert_eq!(refused(&empty.path), OpenError::Empty { path: empty.path.clone() });
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pipe-{}", std::process::id()));
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no mkfifo");
        return;
    }
    let error = refused(&path);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(error, OpenError::NotStorage { path });
}

#[test]
fn file_without_permission_is_refused_by_name() {
    use std::os::unix::fs::PermissionsExt;
    let file = TempFile::new(4096);
    std::fs::set_permissions(&file.path, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(&file.path).is_ok() {
        eprintln!("skipped: this user (root) may open everything");
        return;
    }
    assert_eq!(refused(&file.path), OpenError::Refused { path: file.path.clone() });
}

#[test]
fn drop_pages_reports_pages_that_stayed_resident() {
    let file = TempFile::new(100 * 4096 + 1);
    if !takes_direct(&file.path) {
        return; // A file in memory can't be dropped from memory.
    }
    let handle = std::fs::File::open(&file.path).unwrap();
    assert_eq!(pread(&file.path, 0, 500_000).len(), 100 * 4096 + 1);
    let warm = residency_flags(&handle, PageRange::new(0, 101)).unwrap();
    assert_eq!(warm.iter().filter(|&&is_resident| is_resident).count(), 101);
    assert_eq!(drop_pages(&file.path).unwrap(), Residency { pages: 101, resident: 0 });
    // A mapped and touched page stays: the kernel does not drop it.
    let Some(mapping) = Mapping::of(&handle, 101 * 4096) else { return };
    mapping.touch(50);
    let stayed = drop_pages(&file.path).unwrap();
    assert!(stayed.resident >= 1, "{stayed:?}");
    assert!(residency_flags(&handle, PageRange::new(50, 1)).unwrap()[0]);
}

/// A shared mapping of a file.
struct Mapping {
    address: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    fn of(file: &std::fs::File, bytes: usize) -> Option<Mapping> {
        use std::os::fd::AsRawFd;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(null, bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        (address != libc::MAP_FAILED).then_some(Mapping { address, bytes })
    }

    fn touch(&self, page: usize) -> u8 {
        assert!(page * 4096 < self.bytes);
        // SAFETY: within the mapping of a file that keeps its length.
        unsafe { self.address.cast::<u8>().add(page * 4096).read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}
