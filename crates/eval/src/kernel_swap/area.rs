//! Swap area for one run: a new file in a folder, or an existing file or block device given to the
//! run.
//!
//! The area has exactly the number of pages in the load, however large the device is. It has the
//! highest priority, so the kernel uses it before any other area.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use readpath_core::unit::PAGE_BYTES;
use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom};

use super::{CleanupEntry, SwapError, fresh_name, own_entries, try_lock_file};
use readpath_record::cleanup::{CleanupKind, Record};
use readpath_record::notice;
use readpath_record::swap_off::{PREFERRED, c_path, swap_off};

/// Extension of the files created in a folder.
const ENDING: &str = ".swap";

/// Advice for a refusal for lack of rights.
pub(super) const NEEDS_ROOT: &str = "swap areas need root (CAP_SYS_ADMIN)";
/// Advice for a file that the kernel does not accept as a swap area.
const TAKES_NO_SWAP: &str = "a file must be on a file system that takes swap files and have no holes (ext4 and XFS do); \
     else name a block device, such as a loop device over the file";

/// A swap area in use. Drop reads the swapped pages back into memory and removes a file created for
/// the area.
#[derive(Debug)]
pub struct SwapArea {
    /// Path of the file or block device.
    path: PathBuf,
    /// Open file that holds the lock.
    file: File,
    /// True if the kernel swaps to it.
    is_on: bool,
    /// True if the file was created for the area, and is removed with it.
    is_created_here: bool,
    /// True for a block device, false for a file.
    is_block_device: bool,
    /// Journal records of the area and, if created here, of its file.
    records: Vec<Record>,
}

impl SwapArea {
    /// Swaps to a new file in the folder `path`, or to the file or block device at `path`, whose
    /// contents are lost. The area has `bytes` bytes. In a folder, the swap files of killed runs
    /// are removed first, with one entry for each in the result.
    ///
    /// # Errors
    /// The storage is too small, supports no swap area, or the system refuses.
    pub fn on(path: &Path, bytes: u64) -> Result<(SwapArea, Vec<CleanupEntry>), SwapError> {
        let metadata = std::fs::metadata(path)
            .map_err(|error| SwapError::refused("use", path, error, "check the path"))?;
        if !metadata.is_dir() {
            let area = SwapArea::open_existing(path, bytes)?.switch_on(bytes)?;
            return Ok((area, Vec::new()));
        }
        let cleaned = remove_abandoned(path);
        Ok((SwapArea::create_file(path, bytes)?.switch_on(bytes)?, cleaned))
    }

    /// Checks for enough space at `path` for [`SwapArea::on`], without changes.
    ///
    /// # Errors
    /// The path is unusable, or its space is too small.
    pub fn check(path: &Path, bytes: u64) -> Result<(), SwapError> {
        let metadata = std::fs::metadata(path)
            .map_err(|error| SwapError::refused("use", path, error, "check the path"))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            let space = rustix::fs::statvfs(path)
                .map_err(|errno| SwapError::refused("use", path, errno, "check the path"))?;
            return check_size(path, space.f_bavail * space.f_frsize, bytes);
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(SwapError::NotStorage { path: path.to_path_buf() });
        }
        let file = File::open(path)
            .map_err(|error| SwapError::refused("open", path, error, NEEDS_ROOT))?;
        check_size(path, file_length(&file, path)?, bytes)
    }

    /// Creates a swap file in a folder, with room for a header and `bytes` bytes. Records it for
    /// clean-up.
    fn create_file(folder: &Path, bytes: u64) -> Result<SwapArea, SwapError> {
        let path = folder.join(fresh_name(ENDING));
        let refused = |action, error: io::Error| {
            SwapError::refused(action, &path, error, "name another folder")
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| refused("make", error))?;
        // From here on, dropping `area` removes the file.
        let mut area = SwapArea {
            path: path.clone(),
            file,
            is_on: false,
            is_created_here: true,
            is_block_device: false,
            records: Vec::new(),
        };
        // Always succeeds: no other run knows the new file.
        try_lock_file(&area.file);
        area.record(CleanupKind::File)?;
        let (no_flags, from_start) = (FallocateFlags::empty(), 0);
        rustix::fs::fallocate(&area.file, no_flags, from_start, bytes + PAGE_BYTES)
            .map_err(|errno| refused("find room for", errno.into()))?;
        Ok(area)
    }

    /// Opens and locks an existing file or block device for swap. Changes nothing in it.
    fn open_existing(path: &Path, bytes: u64) -> Result<SwapArea, SwapError> {
        SwapArea::check(path, bytes)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            // On a block device this fails while the device is mounted or in use.
            .custom_flags(libc::O_EXCL)
            .open(path)
            .map_err(|error| {
                SwapError::refused("write", path, error, "unmount it, or run as a user who may")
            })?;
        // Storage of an unknown type counts as a file.
        let metadata = file.metadata();
        let is_block_device = metadata.is_ok_and(|data| data.file_type().is_block_device());
        lock(&file, path)?;
        let path = path.to_path_buf();
        Ok(SwapArea {
            path,
            file,
            is_on: false,
            is_created_here: false,
            is_block_device,
            records: Vec::new(),
        })
    }

    /// Writes the header of an area of `bytes` bytes, records the area for clean-up, and adds it to
    /// the kernel's swap areas. After an error the drop of the value removes a created file.
    fn switch_on(mut self, bytes: u64) -> Result<SwapArea, SwapError> {
        write_header(&self.file, bytes / PAGE_BYTES)
            .map_err(|error| SwapError::refused("write", &self.path, error, NEEDS_ROOT))?;
        if self.is_block_device {
            // The kernel opens the device exclusively, so the own exclusive handle is closed first.
            self.file = move_lock(&self.file, &self.path)?;
        }
        // Recorded first, so that a kill between the two leaves no area without a record.
        self.record(CleanupKind::SwapArea)?;
        let name = c_path(&self.path);
        // `PREFERRED` is the flag for a priority, with the highest one.
        // SAFETY: `name` is a 0-terminated string that outlives the call.
        match unsafe { libc::swapon(name.as_ptr(), PREFERRED) } {
            0 => self.is_on = true,
            _ => {
                let error = io::Error::last_os_error();
                let is_unsupported = error.raw_os_error() == Some(libc::EINVAL);
                let advice = if is_unsupported { TAKES_NO_SWAP } else { NEEDS_ROOT };
                return Err(SwapError::refused("swap to", &self.path, error, advice));
            }
        }
        Ok(self)
    }

    /// Adds the object to the cleanup journal, for removal after a kill.
    fn record(&mut self, kind: CleanupKind) -> Result<(), SwapError> {
        let record = Record::write_record(kind, &self.path);
        let refused = |error| SwapError::refused("keep a record of", &self.path, error, NEEDS_ROOT);
        self.records.push(record.map_err(refused)?);
        Ok(())
    }

    /// Path of the file or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the device number (`st_rdev`) of a block device. `None` for a file, or if the number
    /// is unknown.
    pub fn device(&self) -> Option<u64> {
        let metadata = self.is_block_device.then(|| self.file.metadata().ok()).flatten();
        metadata.map(|metadata| metadata.rdev())
    }
}

impl Drop for SwapArea {
    /// Swaps the area off and removes a file created for it. An area that cannot be swapped off, or
    /// a file that cannot be removed, stays with its records and a notice.
    fn drop(&mut self) {
        if self.is_on
            && let Err(error) = swap_off(&self.path)
        {
            notice::print(format_args!(
                "{}: is still swapped to: {error}; free memory, then `swapoff` it",
                self.path.display()
            ));
            return self.records.drain(..).for_each(Record::leave);
        }
        if self.is_created_here
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            notice::print(format_args!("{}: can't be removed: {error}", self.path.display()));
            self.records.drain(..).for_each(Record::leave);
        }
    }
}

/// Switches off and removes the swap files of killed runs in `folder`. A live run keeps its file
/// locked, so a file that can be locked is left from a killed one. Returns the paths with the
/// outcome.
fn remove_abandoned(folder: &Path) -> Vec<CleanupEntry> {
    let mut cleaned = Vec::new();
    for path in own_entries(folder, ENDING) {
        if File::open(&path).is_ok_and(|file| try_lock_file(&file)) {
            // Fails harmlessly when the area is already off.
            let _ = swap_off(&path);
            let outcome = match std::fs::remove_file(&path) {
                Ok(()) => "it has been swapped off and removed".to_owned(),
                Err(error) => format!("it can't be removed: {error}"),
            };
            cleaned.push(CleanupEntry { path, outcome });
        }
    }
    cleaned
}

/// Opens the file or block device at `path` once more, and moves the lock of `first` to the new
/// handle. While `first` is open exclusively, no other run can open the device exclusively and then
/// lock it.
///
/// # Errors
/// The file cannot be opened, or another run has locked it.
fn move_lock(first: &File, path: &Path) -> Result<File, SwapError> {
    let second =
        File::open(path).map_err(|error| SwapError::refused("open", path, error, NEEDS_ROOT))?;
    // A lock is not shared with another handle. Without a lock this has no effect.
    let _ = rustix::fs::flock(first, FlockOperation::NonBlockingUnlock);
    lock(&second, path)?;
    Ok(second)
}

/// Locks the file at `path`, without a wait. Returns an error if another run has locked it.
fn lock(file: &File, path: &Path) -> Result<(), SwapError> {
    match try_lock_file(file) {
        true => Ok(()),
        false => {
            let error = io::ErrorKind::ResourceBusy;
            Err(SwapError::refused("use", path, error, "another run uses it"))
        }
    }
}

/// Returns the length of a file or block device in bytes. Moves the position to the end.
fn file_length(file: &File, path: &Path) -> Result<u64, SwapError> {
    rustix::fs::seek(file, SeekFrom::End(0))
        .map_err(|errno| SwapError::refused("measure", path, errno, NEEDS_ROOT))
}

/// Returns an error if the area and its header page do not fit.
fn check_size(path: &Path, have_bytes: u64, area_bytes: u64) -> Result<(), SwapError> {
    let needed_bytes = area_bytes + PAGE_BYTES;
    match have_bytes < needed_bytes {
        true => {
            Err(SwapError::TooSmall { path: path.to_path_buf(), bytes: have_bytes, needed_bytes })
        }
        false => Ok(()),
    }
}

/// Writes the first page of an area in the format of mkswap(8). Version, last page and number of
/// bad pages start at byte 1024 (`union swap_header` in the kernel). The magic string is at the
/// page's end. The number of bad pages stays 0. `pages` are the pages behind the header, so it is
/// also the number of the last page.
fn write_header(file: &File, pages: u64) -> io::Result<()> {
    // Magic string and only version of the format that the kernel accepts.
    const MAGIC: &[u8; 10] = b"SWAPSPACE2";
    const VERSION: u32 = 1;
    let last_page = u32::try_from(pages).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut page = [0u8; PAGE_BYTES as usize];
    page[1024..1028].copy_from_slice(&VERSION.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    let magic_offset = page.len() - MAGIC.len();
    page[magic_offset..].copy_from_slice(MAGIC);
    file.write_all_at(&page, 0)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of this test program, which a test may open and lock, but not change.
    fn open_self() -> (File, PathBuf) {
        let path = std::env::current_exe().unwrap();
        (File::open(&path).unwrap(), path)
    }

    /// The file is no swap area, so that swapoff(2) fails, with or without the right to it.
    #[test]
    fn area_that_is_not_swapped_off_stays_in_the_cleanup_journal() {
        let path = std::env::temp_dir().join(fresh_name(".test"));
        let file = File::create_new(&path).unwrap();
        let mut area = SwapArea {
            path: path.clone(),
            file,
            is_on: true,
            is_created_here: true,
            is_block_device: false,
            records: Vec::new(),
        };
        area.record(CleanupKind::File).unwrap();
        let descriptor = area.records[0].descriptor();
        let record = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap();
        drop(area);
        assert!(path.exists() && record.exists());
        // It is of a live run: this one.
        let lock = File::open(&record).unwrap();
        assert!(!try_lock_file(&lock));
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&record).unwrap();
        // Other records may be in the folder.
        let _ = std::fs::remove_dir(record.parent().unwrap());
    }

    /// `flock(2)`: a lock belongs to the open file, so that a second handle does not share it.
    #[test]
    fn lock_moves_to_the_new_handle_unless_another_run_has_it() {
        let (first, path) = open_self();
        assert!(try_lock_file(&first));
        let second = move_lock(&first, &path).unwrap();
        assert!(!try_lock_file(&first), "the second handle has the lock");
        drop(second);
        assert!(try_lock_file(&first));
        let (unlocked, _) = open_self();
        let error = move_lock(&unlocked, &path).unwrap_err();
        assert!(error.to_string().contains("another run uses it"), "{error}");
    }
}
