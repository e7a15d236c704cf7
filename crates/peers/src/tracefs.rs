//! tracefs: where it is, and folders of our own in it.
//!
//! A tracefs *instance* is a set of buffers with events of its own: using it does not touch anybody
//! else's tracing. One that a killed process left behind is removed by the next one that starts.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cleanup_entry::{CleanupKind, Record};

/// Where tracefs lies when the system has mounted it.
const USUAL_PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The name of our instances: this, then the process number, then a count.
const INSTANCE_PREFIX: &str = "readpath-";

/// Why the kernel can't be watched.
#[derive(Debug)]
pub enum TracefsError {
    /// A file of tracefs, or tracefs itself, could not be used.
    Unavailable {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The buffer overflowed: what was recorded has holes.
    LostEvents {
        /// How many events are missing, as far as the kernel counted them.
        count: u64,
    },
    /// An event could not be understood.
    UnknownEvent {
        /// The event as the kernel wrote it.
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

/// A folder of our own in tracefs, removed on drop.
#[derive(Debug)]
pub(crate) struct Instance {
    path: PathBuf,
    _record: Record,
    /// Dropped last: the instance lies in it.
    _tracefs: Tracefs,
}

impl Instance {
    /// Makes one.
    ///
    /// # Errors
    /// [`TracefsError::Unavailable`] without root or without tracefs.
    pub fn create() -> Result<Instance, TracefsError> {
        let tracefs = Tracefs::find()?;
        let instances = tracefs.path.join("instances");
        remove_abandoned(&instances);
        let path = create_instance(&instances)?;
        match record(CleanupKind::KernelFolder, &path) {
            Ok(_record) => Ok(Instance { path, _record, _tracefs: tracefs }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes to one of its files.
    pub fn write(&self, file: &str, text: &str) -> Result<(), TracefsError> {
        write(&self.path.join(file), text)
    }

    /// Reads one of its files.
    pub fn read(&self, file: &str) -> Result<String, TracefsError> {
        let path = self.path.join(file);
        fs::read_to_string(&path).map_err(|source| TracefsError::Unavailable {
            action: "read",
            path,
            source,
        })
    }

    /// Opens one of its files, to be read without waiting.
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

    /// How many events were lost since it was made, as far as the kernel counted.
    pub fn lost(&self) -> u64 {
        let mut count = 0;
        for entry in fs::read_dir(self.path.join("per_cpu")).into_iter().flatten().flatten() {
            let stats = fs::read_to_string(entry.path().join("stats")).unwrap_or_default();
            for line in stats.lines() {
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
        // The files that were opened in it must be closed: else it is busy.
        let _ = self.write("tracing_on", "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// tracefs, mounted by the system or by us.
#[derive(Debug)]
struct Tracefs {
    path: PathBuf,
    /// Of the mount, if it is ours.
    ours: Option<Record>,
}

impl Tracefs {
    fn find() -> Result<Tracefs, TracefsError> {
        for place in USUAL_PLACES.map(PathBuf::from) {
            if place.join("instances").is_dir() {
                return Ok(Tracefs { path: place, ours: None });
            }
        }
        static MOUNTS: AtomicU32 = AtomicU32::new(0);
        let count = MOUNTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{INSTANCE_PREFIX}tracefs-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let unavailable =
            |action, source| TracefsError::Unavailable { action, path: path.clone(), source };
        fs::create_dir(&path).map_err(|source| unavailable("create", source))?;
        let flags = rustix::mount::MountFlags::empty();
        let mounted = record(CleanupKind::Tracefs, &path).and_then(|record| {
            rustix::mount::mount("nodev", &path, "tracefs", flags, None)
                .map_err(|errno| unavailable("mount tracefs on", errno.into()))?;
            Ok(record)
        });
        match mounted {
            Ok(record) => Ok(Tracefs { path, ours: Some(record) }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.ours.is_some() {
            let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Has the next run undo what is at `path` if this one is killed.
fn record(kind: CleanupKind, path: &Path) -> Result<Record, TracefsError> {
    Record::keep(kind, path).map_err(|source| TracefsError::Unavailable {
        action: "keep a record of",
        path: path.to_owned(),
        source,
    })
}

/// Removes the instances of processes that are gone.
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

fn create_instance(instances: &Path) -> Result<PathBuf, TracefsError> {
    // One process may watch several files: the first free number is ours.
    for count in 0.. {
        let path = instances.join(format!("{INSTANCE_PREFIX}{}-{count}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(TracefsError::Unavailable { action: "create", path, source });
            }
        }
    }
    unreachable!("some number is free")
}

fn write(path: &Path, text: &str) -> Result<(), TracefsError> {
    fs::write(path, text).map_err(|source| TracefsError::Unavailable {
        action: "write to",
        path: path.to_owned(),
        source,
    })
}
