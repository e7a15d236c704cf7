//! The folder of a tier: its checks, its lock, and the number of bytes in it. An *entry* is the
//! file of one block of an object's version.
//!
//! All names are looked up in the open folder, never by its path. A lock of the file `ledger`
//! (`flock(2)`) guards each change, among threads and processes. The kernel releases the lock of a
//! process that ends, unless a child made by `fork` has inherited its descriptor. The file has the
//! number of bytes of all entries. The number is raised before a write and lowered after a removal,
//! so a process that is killed leaves one that is too large. The next opening of the folder counts
//! again, and so does each process now and then.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use twox_hash::XxHash3_64;

use super::entry::EntryName;
use super::options::DiskError;

/// Name of the ledger.
const LEDGER: &str = "ledger";

/// Seed of the checksum of the ledger: the letters of its name.
const LEDGER_SEED: u64 = 0x6c65_6467_6572;

/// Longest wait for the lock at the opening of a tier. Another process may count 2^20 entries, at
/// 20 us each.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(30);

/// Time between two tries to get the lock, chosen.
const TRY_INTERVAL: Duration = Duration::from_millis(1);

/// Unit of `st_blocks` in bytes, on Linux.
const STAT_BLOCK_BYTES: u64 = 512;

/// Reason for which a folder is not opened.
#[derive(Debug)]
pub(super) enum OpenFailure {
    /// The path is no folder, or not one of this user alone.
    Refused(DiskError),
    /// A system call has failed.
    Io(io::Error),
}

impl From<io::Error> for OpenFailure {
    fn from(error: io::Error) -> OpenFailure {
        OpenFailure::Io(error)
    }
}

impl From<DiskError> for OpenFailure {
    fn from(error: DiskError) -> OpenFailure {
        OpenFailure::Refused(error)
    }
}

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder {
    /// The open folder itself, in which all names are looked up.
    dir: OwnedFd,
    /// The ledger. The mutex is the lock among the threads of this process, which share one lock of
    /// the kernel.
    ledger: Mutex<File>,
}

/// An entry of the folder, as a scan finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) name: EntryName,
    /// Allocated bytes.
    pub(super) bytes: u64,
    /// Time of the latest write: seconds and nanoseconds since the Unix epoch.
    modified: (i64, i64),
}

impl Folder {
    /// Opens a folder and its ledger, which are created if they do not exist: the folder with its
    /// parents, with mode 0700.
    ///
    /// # Errors
    /// The path is a symbolic link or no folder, the folder is of another user or open to other
    /// users, or a system call has failed.
    pub(super) fn open(path: &Path) -> Result<Folder, OpenFailure> {
        let create = || {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
        };
        // The kernel does not follow a link in the last place.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::open(path, flags, Mode::empty());
        let dir = match open() {
            Err(Errno::NOENT) => {
                create()?;
                open()
            }
            result => result,
        };
        let dir = dir.map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => DiskError::NoFolder { folder: path.to_owned() }.into(),
            error => OpenFailure::Io(error.into()),
        })?;
        let stat = rustix::fs::fstat(&dir).map_err(io::Error::from)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            let owner = stat.st_uid;
            return Err(DiskError::OtherOwner { folder: path.to_owned(), owner }.into());
        }
        if stat.st_mode & 0o077 != 0 {
            let mode = stat.st_mode & 0o7777;
            return Err(DiskError::OpenMode { folder: path.to_owned(), mode }.into());
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let ledger = rustix::fs::openat(&dir, LEDGER, flags, Mode::RUSR | Mode::WUSR);
        let ledger = File::from(ledger.map_err(io::Error::from)?);
        Ok(Folder { dir, ledger: Mutex::new(ledger) })
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// The folder was deleted (`ENOENT`), or a system call has failed.
    pub(super) fn lock(&self) -> io::Result<FolderLock<'_>> {
        let ledger = self.ledger.lock().expect("no thread panics with the ledger locked");
        retry_on_intr(|| rustix::fs::flock(&*ledger, FlockOperation::LockExclusive))?;
        self.checked_lock(ledger)
    }

    /// Waits for the lock up to [`OPEN_WAIT_MAX`].
    ///
    /// # Errors
    /// As [`lock`](Folder::lock), or the lock stays taken (`EWOULDBLOCK`).
    #[expect(clippy::disallowed_methods, reason = "a wait for another process has no event")]
    pub(super) fn lock_to_open(&self) -> io::Result<FolderLock<'_>> {
        let ledger = self.ledger.lock().expect("no thread panics with the ledger locked");
        let mut waited = Duration::ZERO;
        loop {
            match rustix::fs::flock(&*ledger, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if waited < OPEN_WAIT_MAX => {
                    std::thread::sleep(TRY_INTERVAL);
                    waited += TRY_INTERVAL;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => return self.checked_lock(ledger),
            }
        }
    }

    /// The lock that was just taken, unless the folder was deleted.
    fn checked_lock<'a>(&'a self, ledger: MutexGuard<'a, File>) -> io::Result<FolderLock<'a>> {
        let lock = FolderLock { folder: self, ledger };
        // A ledger without a name was deleted, and the folder with it.
        match rustix::fs::fstat(&*lock.ledger)?.st_nlink {
            0 => Err(Errno::NOENT.into()),
            _ => Ok(lock),
        }
    }

    /// The lock, if it is free: no other thread or process has it. An error counts as a lock that
    /// is not free, since the caller can do without it. Unlike [`lock`](Folder::lock), this does
    /// not check if the folder was deleted: it serves removals of entries, which have no effect
    /// there, and no writes of entries.
    pub(super) fn try_lock(&self) -> Option<FolderLock<'_>> {
        let ledger = match self.ledger.try_lock() {
            Ok(ledger) => ledger,
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return None,
        };
        rustix::fs::flock(&*ledger, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(FolderLock { folder: self, ledger })
    }

    /// Opens an entry to read.
    pub(super) fn open_entry(&self, name: EntryName) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name.file_name(), flags, Mode::empty())?;
        Ok(File::from(file))
    }

    /// All entries that are regular files, the one with the oldest write first.
    pub(super) fn scan(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for file in Dir::read_from(&self.dir)? {
            let Some(name) = EntryName::parse(file?.file_name().to_bytes()) else { continue };
            // An entry may have gone since.
            let Some(stat) = self.stat(name)? else { continue };
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                #[allow(clippy::unnecessary_cast, reason = "the types differ among machines")]
                let modified = (stat.st_mtime as i64, stat.st_mtime_nsec as i64);
                found.push(Found { name, bytes: allocated_bytes(&stat), modified });
            }
        }
        found.sort_unstable_by_key(|found| (found.modified, found.name));
        Ok(found)
    }

    /// State of the file of an entry; `None` without one.
    fn stat(&self, name: EntryName) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.dir, name.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The right to change the folder, until it is dropped.
pub(super) struct FolderLock<'a> {
    folder: &'a Folder,
    /// The ledger, locked among the threads. The lock among the processes ends in `drop`.
    ledger: MutexGuard<'a, File>,
}

impl FolderLock<'_> {
    /// Number of bytes of all entries, as the ledger has it; `None` if the ledger is damaged or
    /// new.
    pub(super) fn used_bytes(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0; 16];
        match self.ledger.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [used, sum] =
            [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")));
        Ok((sum == ledger_sum(used)).then_some(used))
    }

    /// Writes the number of bytes of all entries.
    pub(super) fn set_used_bytes(&self, used: u64) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&used.to_le_bytes());
        bytes[8..].copy_from_slice(&ledger_sum(used).to_le_bytes());
        self.ledger.write_all_at(&bytes, 0)
    }

    /// Counts the bytes of all entries, and writes their number. Returns the number and the
    /// entries, the oldest first.
    pub(super) fn recount(&self) -> io::Result<(u64, Vec<Found>)> {
        let found = self.folder.scan()?;
        let used = found.iter().map(|found| found.bytes).sum();
        self.set_used_bytes(used)?;
        Ok((used, found))
    }

    /// Allocated bytes of an open entry.
    pub(super) fn allocated_bytes(&self, entry: &File) -> io::Result<u64> {
        Ok(allocated_bytes(&rustix::fs::fstat(entry)?))
    }

    /// Opens an entry to write, which is created if it does not exist.
    pub(super) fn open_entry(&self, name: EntryName) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.folder.dir, name.file_name(), flags, mode)?;
        Ok(File::from(file))
    }

    /// Removes an entry of `bytes` bytes, as far as this process knows. Returns the bytes to
    /// subtract in the ledger: 0 if another process has removed the entry, and its allocated bytes
    /// if another process has written it again with fewer pages.
    pub(super) fn remove(&self, name: EntryName, bytes: u64) -> io::Result<u64> {
        let Some(stat) = self.folder.stat(name)? else { return Ok(0) };
        let bytes = bytes.min(allocated_bytes(&stat));
        match rustix::fs::unlinkat(&self.folder.dir, name.file_name(), AtFlags::empty()) {
            Ok(()) => Ok(bytes),
            Err(Errno::NOENT) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for FolderLock<'_> {
    /// Releases the lock. Closing the file would do that too.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&*self.ledger, FlockOperation::Unlock);
    }
}

/// Allocated bytes of a file: holes do not count.
fn allocated_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES
}

/// Checksum of a ledger.
fn ledger_sum(used: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(LEDGER_SEED, &used.to_le_bytes())
}
