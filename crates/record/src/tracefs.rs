//! tracefs: its mount point, and private instances.
//!
//! An *instance* of tracefs is a set of buffers with its own events, so it does not affect other
//! tracing. An instance of a killed process is removed by the next start.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cleanup::{CleanupKind, Record};

/// Mount points of tracefs in ordinary systems.
const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Prefix of instance names. The process number and a counter follow.
const INSTANCE_PREFIX: &str = "readpath-";

/// Error of tracing.
#[derive(Debug)]
pub enum TracefsError {
    /// tracefs or one of its files is unavailable.
    Unavailable {
        /// Action that was tried.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The buffer overflowed, so the trace has gaps.
    LostEvents {
        /// Number of lost events, as counted by the kernel.
        count: u64,
    },
    /// An event has an unknown format.
    UnknownEvent {
        /// Text of the event.
        line: String,
    },
}

impl std::fmt::Display for TracefsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TracefsError::Unavailable { action, path, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())?;
                f.write_str("; watching the kernel needs root and tracefs (CONFIG_FTRACE)")
            }
            TracefsError::LostEvents { count } => write!(
                f,
                "the kernel's trace buffer overflowed, {count} events are missing; \
                 use shorter reads, or raise BUFFER_KIB"
            ),
            TracefsError::UnknownEvent { line } => {
                write!(f, "this kernel writes the event in a form that is not known here: `{line}`")
            }
        }
    }
}

impl std::error::Error for TracefsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TracefsError::Unavailable { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A private tracefs instance, removed on drop.
#[derive(Debug)]
pub struct Instance {
    /// Folder of the instance.
    path: PathBuf,
    /// Its record in the cleanup journal.
    record: Record,
    /// Dropped last, because the instance lies in this mount.
    tracefs: Tracefs,
}

impl Instance {
    /// Creates an instance in the mounted tracefs, which is mounted first if it is missing. Removes
    /// the instances of killed processes.
    ///
    /// # Errors
    /// [`TracefsError::Unavailable`] without root or without tracefs.
    pub fn create() -> Result<Instance, TracefsError> {
        Instance::create_in(Tracefs::find()?)
    }

    /// Creates an instance as [`create`](Instance::create) does, and returns the lock for its
    /// preparation. Waits while another process has it.
    ///
    /// # Errors
    /// As for [`create`](Instance::create).
    pub fn create_locked() -> Result<(Instance, ChangeLock), TracefsError> {
        let tracefs = Tracefs::find()?;
        let lock = ChangeLock::wait_for(&tracefs.path);
        Ok((Instance::create_in(tracefs)?, lock))
    }

    /// Waits for the lock for the preparation or the removal of this instance.
    pub fn lock(&self) -> ChangeLock {
        ChangeLock::wait_for(&self.tracefs.path)
    }

    /// Takes the lock for the preparation of this instance. `None` while another process has it.
    /// The result holds no lock if the folder cannot be locked.
    pub fn try_lock(&self) -> Option<ChangeLock> {
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        match ChangeLock::take(&self.tracefs.path, operation) {
            Err(rustix::io::Errno::WOULDBLOCK) => None,
            taken => Some(taken.unwrap_or(ChangeLock { _folder: None })),
        }
    }

    /// Creates an instance in this tracefs, and removes the instances of killed processes. An
    /// instance that cannot be entered in the cleanup journal is removed again, as an error.
    fn create_in(tracefs: Tracefs) -> Result<Instance, TracefsError> {
        let instances = tracefs.path.join("instances");
        remove_abandoned(&instances);
        let path = create_instance(&instances)?;
        match write_cleanup_record(CleanupKind::KernelFolder, &path) {
            Ok(record) => Ok(Instance { path, record, tracefs }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    /// Returns the folder of the instance.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes to a file of the instance.
    ///
    /// # Errors
    /// [`TracefsError::Unavailable`] if the kernel lacks the file or refuses the text.
    pub fn write(&self, file: &str, text: &str) -> Result<(), TracefsError> {
        write(&self.path.join(file), text)
    }

    /// Reads a file of the instance.
    ///
    /// # Errors
    /// [`TracefsError::Unavailable`] if the kernel lacks the file.
    pub fn read(&self, file: &str) -> Result<String, TracefsError> {
        let path = self.path.join(file);
        fs::read_to_string(&path).map_err(|source| TracefsError::Unavailable {
            action: "read",
            path,
            source,
        })
    }

    /// Opens a file of the instance for non-blocking reads.
    ///
    /// # Errors
    /// [`TracefsError::Unavailable`] if the kernel lacks the file.
    pub fn open(&self, file: &str) -> Result<fs::File, TracefsError> {
        let path = self.path.join(file);
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        options.open(&path).map_err(|source| TracefsError::Unavailable {
            action: "open",
            path,
            source,
        })
    }

    /// Descriptors of the locked cleanup records and of a detached mount, as numbers. A forked
    /// process that removes the instance keeps them open, and closes all others.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let records = [Some(&self.record), self.tracefs.mount_record.as_ref()];
        let detached = self.tracefs.detached.as_ref().map(AsRawFd::as_raw_fd);
        records.into_iter().flatten().map(Record::descriptor).chain(detached)
    }

    /// Unmounts the tracefs of this process and removes its folder. The instance stays, and is
    /// reached by a descriptor. The kernel takes some 0.4 s to remove it, and its user may remove
    /// the folder for temporary files meanwhile. Without `/proc` the mount stays until the drop. No
    /// effect on a mount of the system.
    pub fn detach_mount(&mut self) {
        if self.tracefs.mount_record.is_none() || self.tracefs.detached.is_some() {
            return;
        }
        let Ok(root) = fs::File::open(&self.tracefs.path) else { return };
        let root_path = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
        let Ok(within) = self.path.strip_prefix(&self.tracefs.path) else { return };
        let path = root_path.join(within);
        if !path.is_dir() {
            return;
        }
        self.tracefs.unmount();
        self.path = path;
        self.tracefs.path = root_path;
        self.tracefs.detached = Some(root);
    }

    /// Returns the number of events lost since the creation, as counted by the kernel.
    pub fn lost(&self) -> u64 {
        let mut count = 0;
        for entry in fs::read_dir(self.path.join("per_cpu")).into_iter().flatten().flatten() {
            let stats = fs::read_to_string(entry.path().join("stats")).unwrap_or_default();
            for line in stats.lines() {
                // Overwritten events, nested events without space, and events of a full buffer.
                if let Some(("overrun" | "commit overrun" | "dropped events", number)) =
                    line.split_once(": ")
                {
                    count += number.trim().parse::<u64>().unwrap_or(0);
                }
            }
        }
        count
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The instance's open files must be closed by now, else the folder is busy.
        let _ = self.write("tracing_on", "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// Lock for the preparation and the removal of instances, held until the drop.
///
/// Linux 6.18 sometimes reports no event to an instance that is prepared while another one is being
/// removed: 8 of 40 recordings were empty, and no event counted as lost. The lock is an flock(2) of
/// the folder `instances`, which all mounts of tracefs share.
#[derive(Debug)]
pub struct ChangeLock {
    /// Locked folder; `None` where it cannot be locked.
    _folder: Option<fs::File>,
}

impl ChangeLock {
    /// Waits for the lock of the tracefs at `path`. The result holds no lock if the folder cannot
    /// be opened or locked.
    fn wait_for(path: &Path) -> ChangeLock {
        let taken = ChangeLock::take(path, rustix::fs::FlockOperation::LockExclusive);
        taken.unwrap_or(ChangeLock { _folder: None })
    }

    /// Takes the lock of the tracefs at `path`. The result holds no lock if the folder cannot be
    /// opened. Returns the error of flock(2).
    fn take(path: &Path, operation: rustix::fs::FlockOperation) -> rustix::io::Result<ChangeLock> {
        let folder = fs::File::open(path.join("instances")).ok();
        if let Some(folder) = &folder {
            rustix::io::retry_on_intr(|| rustix::fs::flock(folder, operation))?;
        }
        Ok(ChangeLock { _folder: folder })
    }
}

/// A tracefs mount, from the system or from this process.
#[derive(Debug)]
struct Tracefs {
    /// Mount point.
    path: PathBuf,
    /// Journal record of a mount made by this process.
    mount_record: Option<Record>,
    /// Root of the mount, if it was unmounted before the drop.
    detached: Option<fs::File>,
}

impl Tracefs {
    /// Finds the mounted tracefs, or mounts one in a temporary folder. Fails if the kernel refuses
    /// the mount, as it does without root.
    fn find() -> Result<Tracefs, TracefsError> {
        for mount_point in MOUNT_POINTS.map(PathBuf::from) {
            if mount_point.join("instances").is_dir() {
                return Ok(Tracefs { path: mount_point, mount_record: None, detached: None });
            }
        }
        static MOUNTS: AtomicU32 = AtomicU32::new(0);
        let mount_number = MOUNTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{INSTANCE_PREFIX}tracefs-{}-{mount_number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let unavailable =
            |action, source| TracefsError::Unavailable { action, path: path.clone(), source };
        fs::create_dir(&path).map_err(|source| unavailable("create", source))?;
        let flags = rustix::mount::MountFlags::empty();
        let mount_result = write_cleanup_record(CleanupKind::Tracefs, &path).and_then(|record| {
            rustix::mount::mount("nodev", &path, "tracefs", flags, None)
                .map_err(|errno| unavailable("mount tracefs on", errno.into()))?;
            Ok(record)
        });
        match mount_result {
            Ok(record) => Ok(Tracefs { path, mount_record: Some(record), detached: None }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }
}

impl Tracefs {
    /// Unmounts the tracefs of this process, also while files of it are open. Removes its folder.
    fn unmount(&self) {
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.path);
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.mount_record.is_some() && self.detached.is_none() {
            self.unmount();
        }
    }
}

/// Adds the object at `path` to the cleanup journal, for removal after a kill. The object stays in
/// the journal while the result lives. Fails if the journal cannot be written.
fn write_cleanup_record(kind: CleanupKind, path: &Path) -> Result<Record, TracefsError> {
    Record::write_record(kind, path).map_err(|source| TracefsError::Unavailable {
        action: "keep a record of",
        path: path.to_owned(),
        source,
    })
}

/// Removes the folders in `instances` that are named after a process which has ended. A folder
/// stays while another process has its number.
fn remove_abandoned(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix(INSTANCE_PREFIX))
            .and_then(|rest| rest.split('-').next())
            .and_then(|number| number.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Creates a trace instance with the first free number of this process. Returns its folder, or the
/// error of the kernel.
fn create_instance(instances: &Path) -> Result<PathBuf, TracefsError> {
    // A process may trace several files, so the first free number is taken.
    for number in 0.. {
        let path = instances.join(format!("{INSTANCE_PREFIX}{}-{number}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(TracefsError::Unavailable { action: "create", path, source });
            }
        }
    }
    unreachable!("some number of the loop is free")
}

/// Writes a text to a file of tracefs.
fn write(path: &Path, text: &str) -> Result<(), TracefsError> {
    fs::write(path, text).map_err(|source| TracefsError::Unavailable {
        action: "write to",
        path: path.to_owned(),
        source,
    })
}
