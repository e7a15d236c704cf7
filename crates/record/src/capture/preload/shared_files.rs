//! Private folder with the preloaded library and the shared memory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use readpath_os::proc_text;
use rustix::mm::{MapFlags, ProtFlags};

use super::layout::{BYTES, Cells, MAGIC, RecordRing};
use crate::notice;

/// Name of the library in the private folder.
pub(super) const LIBRARY_FILE: &str = "preload.so";

/// Name of the shared memory in the private folder.
pub(super) const RING_FILE: &str = "ring";

/// Folders for temporary files, in the order of the attempts.
pub(super) fn temporary_folders() -> Vec<PathBuf> {
    let mut folders = vec![std::env::temp_dir()];
    for other in ["/var/tmp", "/dev/shm"].map(PathBuf::from) {
        if !folders.contains(&other) {
            folders.push(other);
        }
    }
    folders
}

/// Creates a folder in `parent` that only this user may enter. Fails on a file system from which no
/// library may be loaded, or after 100 names that exist already.
pub(super) fn create_private_folder(parent: &Path) -> io::Result<PathBuf> {
    let mount = rustix::fs::statvfs(parent)?;
    if mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("no library may be loaded from there (noexec)"));
    }
    // Names of earlier runs with the same process number may exist.
    for number in 0..100 {
        let folder = parent.join(format!("readpath-watch-{}-{number}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|()| folder),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Removes a folder with its contents. A failure is only printed.
pub(super) fn remove_folder(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        notice::print(format_args!("{}: can't be removed: {error}", folder.display()));
    }
}

/// Writes the library's file, and the file of the shared memory with its head and empty rings.
/// Returns the mapped memory, whose size is [`BYTES`]. All of it is written before it is mapped, so
/// a full file system is an error here, and not a bus error later.
pub(super) fn create_shared_files(folder: &Path, library: &[u8]) -> io::Result<RecordRing> {
    fs::write(folder.join(LIBRARY_FILE), library)?;
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let mut file: File = options.open(folder.join(RING_FILE))?;
    file.write_all(&vec![0; BYTES as usize])?;
    // SAFETY: a new mapping at an address chosen by the kernel, never unmapped.
    let ring = unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (null, bytes) = (std::ptr::null_mut(), BYTES as usize);
        let address = rustix::mm::mmap(null, bytes, protection, MapFlags::SHARED, &file, 0)?;
        RecordRing::new(address.cast())
    };
    for cells in [Cells::Slots, Cells::Short, Cells::Long] {
        for ticket in 0..cells.count() {
            // An empty cell: the writer that draws this ticket may use it.
            ring.turn(cells, ticket).store(ticket, Ordering::Relaxed);
        }
    }
    ring.head().filters.store(own_filters(), Ordering::Relaxed);
    // Last: a program that finds this value may use all of the memory.
    ring.head().magic.store(MAGIC, Ordering::Release);
    Ok(ring)
}

/// Number of seccomp filters of this process. A program with more filters is in its own sandbox.
fn own_filters() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let count = proc_text::field(&status, "Seccomp_filters:");
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}
