//! Cleanup journal: objects that a run creates on the machine, recorded for removal by a later run.
//!
//! Each object is removed when its value is dropped. A killed run drops nothing, and a removal may
//! fail, as `swapoff` does without memory. A [`Record`] therefore describes each object in a small
//! file. The file lies in a folder that only this user can write to, and stays locked (`flock(2)`)
//! while the run lives. [`undo_abandoned`] removes the objects of unlocked records, after a check
//! that the object is still the recorded one. A file is identified by its inode and creation time,
//! a swap area by its priority, a mount by its type.
//!
//! Without abandoned records the check costs one system call, because the folder does not exist.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};

use crate::escaped_path::unescaped;
use crate::swap_off::{is_ours, swap_off};

/// Maximum size of a record in bytes: a kind, an identity and a path.
const RECORD_BYTES_MAX: u64 = 8 << 10;

/// An object that an earlier run left and a later run cleaned up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CleanupEntry {
    /// Path of the object.
    pub path: PathBuf,
    /// Action taken, or the error that prevented it.
    pub outcome: String,
}

impl fmt::Display for CleanupEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: left behind by an earlier run; {}", self.path.display(), self.outcome)
    }
}

/// Kinds of recorded objects. Each kind has its own way of removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupKind {
    /// A file created for a run. Removal: `unlink`.
    File,
    /// A folder on a disk, created for a run. Removal includes its contents.
    Folder,
    /// A swap area. Removal: `swapoff`.
    SwapArea,
    /// A folder of tracefs or of a cgroup hierarchy, created for a run. Removal: `rmdir`, which
    /// fails while the folder is in use.
    KernelFolder,
    /// A tracefs mount on a folder created for it. Both are removed.
    Tracefs,
    /// A FUSE mount served by the run. Removal: unmount.
    ServedMount,
}

impl CleanupKind {
    const ALL: [CleanupKind; 6] = [
        CleanupKind::File,
        CleanupKind::Folder,
        CleanupKind::SwapArea,
        CleanupKind::KernelFolder,
        CleanupKind::Tracefs,
        CleanupKind::ServedMount,
    ];

    /// Returns the name of the kind in a record.
    const fn name(self) -> &'static str {
        match self {
            CleanupKind::File => "file",
            CleanupKind::Folder => "folder",
            CleanupKind::SwapArea => "swap-area",
            CleanupKind::KernelFolder => "kernel-folder",
            CleanupKind::Tracefs => "tracefs",
            CleanupKind::ServedMount => "served-mount",
        }
    }
}

/// Journal record of one object. Declare it after the guard that removes the object, so that the
/// record is dropped later.
#[derive(Debug)]
pub struct Record {
    /// Path of the record's file.
    path: PathBuf,
    /// Open file that holds the lock.
    file: File,
}

impl Record {
    /// Records an existing object, in the first folder of records that can be written.
    ///
    /// # Errors
    /// The record cannot be written, or the path does not exist. The error is of the first folder.
    pub fn write_record(kind: CleanupKind, path: &Path) -> io::Result<Record> {
        let mut first_error = None;
        for folder in record_folders() {
            match Record::create_in(&folder, kind, path) {
                Err(error) => _ = first_error.get_or_insert(error),
                created => return created,
            }
        }
        // There is always a folder, so an error.
        Err(first_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    /// Writes a record of an existing object into `folder`. Tries it several times, because another
    /// run may remove the empty folder. Returns the last error, or the one of a missing object.
    fn create_in(folder: &Path, kind: CleanupKind, path: &Path) -> io::Result<Record> {
        let path = fs::canonicalize(path)?;
        // The other kinds are recognized by their type when they are removed.
        let identity = match kind {
            CleanupKind::File | CleanupKind::Folder => file_identity(&path)?,
            _ => "-".to_owned(),
        };
        let mut attempts_left = FOLDER_ATTEMPTS;
        loop {
            attempts_left -= 1;
            match Record::write_into(folder, kind, &identity, &path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts_left > 0 => {}
                result => return result,
            }
        }
    }

    /// Writes a record into the folder, which is created if it is missing. `identity`: text that
    /// identifies the object, besides its path.
    ///
    /// # Errors
    /// The folder cannot be created, other users can write to it, or the record cannot be written.
    fn write_into(
        folder: &Path,
        kind: CleanupKind,
        identity: &str,
        path: &Path,
    ) -> io::Result<Record> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if !is_private(folder)? {
            let problem = format!("{}: others may write there; remove it", folder.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let record_number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{record_number}", std::process::id());
        // The file is locked and complete before the rename, so no other run finds it unlocked.
        let temporary_path = folder.join(format!("{name}{NEW_SUFFIX}"));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary_path)?;
        // A run that cleans up may hold the lock for a moment. It removes the file, and the rename
        // then fails as for a removed folder.
        let mut text = format!("{}\n{identity}\n", kind.name()).into_bytes();
        text.extend_from_slice(path.as_os_str().as_bytes());
        let path = folder.join(name);
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(io::Error::from)
            .and_then(|()| (&file).write_all(&text))
            .and_then(|()| fs::rename(&temporary_path, &path))
            .inspect_err(|_| _ = fs::remove_file(&temporary_path))?;
        Ok(Record { path, file })
    }

    /// Leaves the record, for an object that cannot be removed. It stays locked until this process
    /// ends. The next run after that tries again.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Descriptor of the file that holds the lock. A process with a copy of it holds the lock too.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // The object was removed before, or the owner calls `leave`. Errors are ignored: a record
        // that stays names an object that is gone, and undoing it does nothing.
        remove_record(&self.path);
    }
}

/// Removes the objects that killed runs of this user left. Returns one entry per object that was
/// removed or cannot be removed.
pub fn undo_abandoned() -> Vec<CleanupEntry> {
    record_folders().iter().flat_map(|folder| undo_abandoned_in(folder)).collect()
}

/// Removes the objects of all unlocked records in `folder`, the newest first. Returns one entry per
/// object that was removed or cannot be removed. A folder that is not private is left as it is.
fn undo_abandoned_in(folder: &Path) -> Vec<CleanupEntry> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    if !is_private(folder).unwrap_or(false) {
        return Vec::new();
    }
    // A record is named after its process and its number in that process. A record that is still
    // being written is locked, or empty and written again under another number. The newest record
    // of a process comes first, because files on a mount must be removed before the mount.
    let record_number = |path: &PathBuf| -> Option<u32> {
        let number = path.file_name()?.to_str()?.split_once('-')?.1;
        number.strip_suffix(NEW_SUFFIX).unwrap_or(number).parse().ok()
    };
    let records = entries.flatten().map(|entry| entry.path());
    let mut records: Vec<PathBuf> = records.filter(|path| record_number(path).is_some()).collect();
    records.sort_by_key(|path| std::cmp::Reverse(record_number(path)));
    records.iter().filter_map(|record| undo_record(record)).collect()
}

/// Removes the object of one record, and the record. Returns `None` if the owner still runs and
/// holds the lock, if the object is gone, or if the record is incomplete or cannot be read. The
/// record of a gone object and an incomplete record are removed too. A record whose object cannot
/// be removed stays.
fn undo_record(record: &Path) -> Option<CleanupEntry> {
    let mut file = File::open(record).ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    // The owner may have ended and removed the record since the `open`.
    let metadata = fs::metadata(record).ok()?;
    let opened_metadata = file.metadata().ok()?;
    if (opened_metadata.dev(), opened_metadata.ino()) != (metadata.dev(), metadata.ino()) {
        return None;
    }
    let mut text = Vec::new();
    (&mut file).take(RECORD_BYTES_MAX).read_to_end(&mut text).ok()?;
    let mut fields = text.splitn(3, |&byte| byte == b'\n');
    let (kind, identity, path) = (fields.next()?, fields.next(), fields.next());
    let kind = CleanupKind::ALL.into_iter().find(|known_kind| known_kind.name().as_bytes() == kind);
    let entry = match (kind, identity, path) {
        (Some(kind), Some(identity), Some(path)) => {
            let path = PathBuf::from(OsStr::from_bytes(path));
            match remove_object(kind, identity, &path) {
                None => None,
                Some(Ok(action)) => Some(CleanupEntry { path, outcome: action.to_owned() }),
                // The record stays, and the next run tries again.
                Some(Err(error)) => {
                    let outcome = format!("it can't be undone: {error}");
                    return Some(CleanupEntry { path, outcome });
                }
            }
        }
        // The record was cut off before it was complete: its object did not exist yet. A record of
        // an unknown kind is dropped as well.
        _ => None,
    };
    remove_record(record);
    entry
}

/// Removes a record, and its folder with the last record.
fn remove_record(record: &Path) {
    let _ = fs::remove_file(record);
    if let Some(folder) = record.parent() {
        let _ = fs::remove_dir(folder);
    }
}

/// Removes one object, and returns a text about the action, or the error of the removal. Returns
/// `None` when the object is gone or differs from the recorded one. A mount's text also stands for
/// a folder that alone was left.
fn remove_object(
    kind: CleanupKind,
    recorded_identity: &[u8],
    path: &Path,
) -> Option<io::Result<&'static str>> {
    let (result, action) = match kind {
        CleanupKind::File if file_identity(path).ok()?.as_bytes() == recorded_identity => {
            (fs::remove_file(path), "it has been removed")
        }
        CleanupKind::Folder if file_identity(path).ok()?.as_bytes() == recorded_identity => {
            (fs::remove_dir_all(path), "it has been removed with all that was in it")
        }
        CleanupKind::File | CleanupKind::Folder => return None,
        CleanupKind::SwapArea if is_ours(path) => (swap_off(path), "it has been swapped off"),
        CleanupKind::SwapArea => return None,
        CleanupKind::KernelFolder if path.is_dir() => {
            (remove_kernel_folder(path), "it has been removed")
        }
        CleanupKind::KernelFolder => return None,
        CleanupKind::Tracefs | CleanupKind::ServedMount => {
            let is_tracefs = kind == CleanupKind::Tracefs;
            let is_mounted_here = match is_tracefs {
                true => is_mounted(path, "nodev", "tracefs"),
                false => is_mounted(path, "readpath", "fuse") && has_no_server(path),
            };
            let mut result = Ok(());
            if is_mounted_here {
                result = unmount(path, UnmountFlags::DETACH).map_err(io::Error::from);
            }
            // `rmdir` removes the folder created for the mount, but not one that has been filled
            // since.
            let is_removed = is_tracefs && result.is_ok() && fs::remove_dir(path).is_ok();
            if !is_mounted_here && !is_removed {
                return None;
            }
            (result, "it has been unmounted")
        }
    };
    Some(result.map(|()| action))
}

/// Longest wait, chosen, until a folder of the kernel is not in use.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Interval of the attempts during that wait.
const BUSY_INTERVAL: Duration = Duration::from_millis(20);

/// Removes a folder of the kernel, with attempts for up to [`BUSY_WAIT`] while it is in use.
/// Children of a killed run may have its files open for a while. Returns the error of the last
/// attempt.
fn remove_kernel_folder(path: &Path) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match fs::remove_dir(path) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < BUSY_WAIT =>
            {
                std::thread::sleep(BUSY_INTERVAL);
            }
            result => return result,
        }
    }
}

/// End of the name of a record that is being written. A run that is killed then leaves such a file.
const NEW_SUFFIX: &str = ".new";

/// Number of attempts, chosen, to write a record while other runs remove its empty folder.
const FOLDER_ATTEMPTS: u32 = 100;

/// Number of names, chosen, that are tried in the folder of temporary files.
const NAMES: u32 = 8;

/// Folders of the records, in the order of the attempts. Root has one in `/run`. Other users have
/// one in their run-time folder, if that is private, and [`NAMES`] in the folder of temporary
/// files, where any user may take a name.
fn record_folders() -> Vec<PathBuf> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return vec![PathBuf::from("/run/readpath")];
    }
    let user = user.as_raw();
    let run_time = PathBuf::from(format!("/run/user/{user}"));
    let mut folders = vec![std::env::temp_dir().join(format!("readpath-run-{user}"))];
    if is_private(&run_time).unwrap_or(false) {
        folders.insert(0, run_time.join("readpath"));
    }
    let more = (1..NAMES).map(|nth| format!("readpath-run-{user}-{nth}"));
    folders.extend(more.map(|name| std::env::temp_dir().join(name)));
    folders
}

/// Returns true when the folder belongs to this user and no other user can write to it. Fails if
/// nothing is there.
fn is_private(folder: &Path) -> io::Result<bool> {
    let metadata = fs::symlink_metadata(folder)?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    Ok(metadata.is_dir() && is_ours && metadata.mode() & 0o022 == 0)
}

/// Identity of a file: device, inode and, where the file system stores it, the creation time. A
/// later file of the same name has another identity. Fails if there is no file.
fn file_identity(path: &Path) -> io::Result<String> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let attributes = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, mask)?;
    let has_birth = attributes.stx_mask & StatxFlags::BTIME.bits() != 0;
    let birth = has_birth.then_some((attributes.stx_btime.tv_sec, attributes.stx_btime.tv_nsec));
    let device = (attributes.stx_dev_major, attributes.stx_dev_minor);
    Ok(format!("{device:?} {} {birth:?}", attributes.stx_ino))
}

/// Returns true when a file system of this type and source name is mounted on `path`.
fn is_mounted(path: &Path, source_name: &str, kind: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut fields = line.split(' ');
        let mut next = || fields.next().unwrap_or_default();
        let (source, mount_point, file_system) = (next(), next(), next());
        let mount_point = unescaped(mount_point);
        Path::new(&mount_point) == path && source == source_name && file_system == kind
    })
}

/// Returns true when the server of the FUSE mount at `path` is gone (ENOTCONN).
fn has_no_server(path: &Path) -> bool {
    let result = fs::metadata(path).map_err(|error| error.raw_os_error());
    matches!(result, Err(Some(libc::ENOTCONN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folder for one test. Removed with its content on drop.
    struct ScratchFolder(PathBuf);

    impl ScratchFolder {
        fn new(name: &str) -> ScratchFolder {
            let name = format!("readpath-leftover-{name}-{}", std::process::id());
            let scratch = ScratchFolder(std::env::temp_dir().join(name));
            fs::create_dir(&scratch.0).unwrap();
            scratch
        }
    }

    impl Drop for ScratchFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Leaves the record as a killed run does: present, but unlocked.
    fn unlock_as_if_killed(record: Record) {
        let path = record.path.clone();
        let copy = path.with_extension("copy");
        fs::copy(&path, &copy).unwrap();
        drop(record);
        fs::rename(copy, path).unwrap();
    }

    /// Four threads create and drop records at the same time, so each may remove the empty folder
    /// before another one writes into it.
    #[test]
    fn folder_goes_with_its_last_record_and_is_made_again() {
        let scratch = ScratchFolder::new("folder");
        let records = scratch.0.join("records");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (path, records) = (scratch.0.join(format!("{thread}")), &records);
                scope.spawn(move || {
                    fs::write(&path, "").unwrap();
                    for _ in 0..200 {
                        Record::create_in(records, CleanupKind::File, &path).unwrap();
                    }
                });
            }
        });
        assert!(!records.exists(), "a folder without a record stays");
    }

    /// A run was killed before the rename of a record, which is complete or empty. A living run
    /// holds the lock of another one.
    #[test]
    fn record_of_a_run_killed_at_its_writing_is_cleaned_up() {
        let scratch = ScratchFolder::new("unfinished");
        let records = scratch.0.join("records");
        let [living, dead] = ["living", "dead"].map(|name| {
            let path = scratch.0.join(name);
            fs::write(&path, name).unwrap();
            path
        });
        let record = Record::create_in(&records, CleanupKind::File, &dead).unwrap();
        fs::copy(&record.path, records.join("1-7.new")).unwrap();
        fs::write(records.join("1-8.new"), "").unwrap();
        drop(record);
        let locked = Record::create_in(&records, CleanupKind::File, &living).unwrap();
        fs::rename(&locked.path, records.join("1-9.new")).unwrap();
        let undone = undo_abandoned_in(&records);
        let paths: Vec<&Path> = undone.iter().map(|entry| entry.path.as_path()).collect();
        assert_eq!(paths, [dead.as_path()]);
        assert!(living.exists() && !dead.exists());
        let left: Vec<_> = fs::read_dir(&records).unwrap().map(|it| it.unwrap().path()).collect();
        assert_eq!(left, [records.join("1-9.new")]);
    }

    /// A cleanup that runs between the creation and the lock of new records removes their files.
    /// The records are written again.
    #[test]
    fn records_are_written_next_to_cleanups_of_other_runs() {
        let scratch = ScratchFolder::new("next-to");
        let (records, path) = (scratch.0.join("records"), scratch.0.join("file"));
        fs::write(&path, "").unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..2_000 {
                    Record::create_in(&records, CleanupKind::File, &path).unwrap();
                }
            });
            while !writer.is_finished() {
                assert_eq!(undo_abandoned_in(&records), [], "the run lives");
            }
        });
        assert!(path.exists() && !records.exists());
    }

    /// Records of a living run, of a killed run, and of a killed run whose file was replaced.
    #[test]
    fn cleanup_removes_only_unlocked_recorded_files() {
        let scratch = ScratchFolder::new("files");
        let records = scratch.0.join("records");
        let [living, dead, replaced] = ["living", "dead", "replaced"].map(|name| {
            let path = scratch.0.join(name);
            fs::write(&path, name).unwrap();
            path
        });
        let create_record = |path| Record::create_in(&records, CleanupKind::File, path).unwrap();
        let living_record = create_record(&living);
        unlock_as_if_killed(create_record(&dead));
        unlock_as_if_killed(create_record(&replaced));
        // Another file takes over the name.
        fs::write(scratch.0.join("own"), "own").unwrap();
        fs::rename(scratch.0.join("own"), &replaced).unwrap();
        let entries = undo_abandoned_in(&records);
        assert_eq!(entries.iter().map(|entry| &entry.path).collect::<Vec<_>>(), [&dead]);
        assert!(living.exists() && !dead.exists() && replaced.exists());
        assert_eq!(
            fs::read_dir(&records).unwrap().count(),
            1,
            "the folder of the living process stays"
        );
        drop(living_record);
        assert!(!records.exists());
    }

    /// Folders of two killed runs. Another folder has taken the name of the second one.
    #[test]
    fn recorded_folder_is_removed_with_its_content_unless_replaced() {
        let scratch = ScratchFolder::new("folders");
        let records = scratch.0.join("records");
        let [dead, replaced] = ["dead", "replaced"].map(|name| {
            let path = scratch.0.join(name);
            fs::create_dir_all(path.join("below")).unwrap();
            fs::write(path.join("below/file"), name).unwrap();
            unlock_as_if_killed(Record::create_in(&records, CleanupKind::Folder, &path).unwrap());
            path
        });
        fs::rename(&replaced, scratch.0.join("elsewhere")).unwrap();
        fs::create_dir(&replaced).unwrap();
        let entries = undo_abandoned_in(&records);
        assert_eq!(entries.iter().map(|entry| &entry.path).collect::<Vec<_>>(), [&dead]);
        assert!(!dead.exists() && replaced.exists());
        assert!(scratch.0.join("elsewhere/below/file").exists());
    }

    /// A folder that is not empty stands for an object that is in use.
    #[test]
    fn object_that_cannot_be_removed_keeps_its_record() {
        let scratch = ScratchFolder::new("in-use");
        let (records, path) = (scratch.0.join("records"), scratch.0.join("instance"));
        fs::create_dir_all(path.join("used")).unwrap();
        unlock_as_if_killed(Record::create_in(&records, CleanupKind::KernelFolder, &path).unwrap());
        for _ in 0..2 {
            let entries = undo_abandoned_in(&records);
            assert!(entries[0].outcome.starts_with("it can't be undone: "), "{}", entries[0]);
            assert!(path.exists());
        }
        fs::remove_dir(path.join("used")).unwrap();
        assert_eq!(undo_abandoned_in(&records)[0].outcome, "it has been removed");
        assert!(!path.exists() && !records.exists());
    }

    #[test]
    fn record_folder_writable_by_others_is_ignored() {
        let scratch = ScratchFolder::new("foreign");
        let (records, path) = (scratch.0.join("records"), scratch.0.join("file"));
        fs::write(&path, "").unwrap();
        unlock_as_if_killed(Record::create_in(&records, CleanupKind::File, &path).unwrap());
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
        fs::set_permissions(&records, open).unwrap();
        assert_eq!(undo_abandoned_in(&records), []);
        assert!(path.exists() && Record::create_in(&records, CleanupKind::File, &path).is_err());
    }
}
