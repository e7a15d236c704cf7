//! Watching the kernel's page cache: which folios come in, for one file.
//!
//! A tracefs instance of our own records `filemap:mm_filemap_add_to_page_cache`
//! for one inode, without touching anybody else's tracing. The event is
//! written by the thread that reads, before its system call returns: what is in
//! the buffer right after a call was added by that call (or by somebody else who
//! used the file meanwhile).
//!
//! The instance is removed on drop. One that a killed process left behind is
//! removed by the next one that starts.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use readpath_core::readahead::Folio;
use readpath_core::unit::PAGE_BYTES;
use rustix::fs::{major, minor};

use crate::leftover::{Kind, Record};

/// Where tracefs lies when the system has mounted it.
const USUAL_PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The name of our instances: this, then the process number, then a count.
const INSTANCE_PREFIX: &str = "readpath-";

/// Buffer per processor. One event takes about 48 bytes, a read of 4 MiB in
/// single pages with a window of 16 MiB makes 5,120 of them: 240 KiB.
const BUFFER_KIB: u32 = 4096;

/// Why the page cache can't be watched.
#[derive(Debug)]
pub enum TraceError {
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

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TraceError::Unavailable { action, path, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())?;
                f.write_str("; watching the kernel needs root and tracefs (CONFIG_FTRACE)")
            }
            TraceError::LostEvents { count } => write!(
                f,
                "the kernel's trace buffer overflowed, {count} events are missing; \
                 use shorter reads, or raise BUFFER_KIB"
            ),
            TraceError::UnknownEvent { line } => {
                write!(f, "this kernel writes the event in a form that is not known here: `{line}`")
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TraceError::Unavailable { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A running recording of what comes into the page cache for one inode.
#[derive(Debug)]
pub struct PageCacheTrace {
    instance: PathBuf,
    pipe: fs::File,
    /// Text that was read from the pipe and not yet taken apart.
    pending: Vec<u8>,
    _record: Record,
    /// Dropped last: the instance lies in it.
    _tracefs: Tracefs,
}

impl PageCacheTrace {
    /// Starts to record what is added for inode `inode` of device `device` (`st_ino`, `st_dev`).
    ///
    /// # Errors
    /// [`TraceError::Unavailable`] without root or without tracefs.
    pub fn start(device: u64, inode: u64) -> Result<PageCacheTrace, TraceError> {
        let tracefs = Tracefs::find()?;
        let instances = tracefs.path.join("instances");
        remove_abandoned(&instances);
        let instance = create_instance(&instances)?;
        let started = record(Kind::KernelFolder, &instance)
            .and_then(|record| Ok((record, open_pipe(&instance, device, inode)?)));
        match started {
            Ok((_record, pipe)) => {
                let pending = Vec::new();
                Ok(PageCacheTrace { instance, pipe, pending, _record, _tracefs: tracefs })
            }
            Err(error) => {
                let _ = fs::remove_dir(&instance);
                Err(error)
            }
        }
    }

    /// The folios that were added since the last call, in order.
    ///
    /// # Errors
    /// [`TraceError::LostEvents`] when the buffer overflowed in between.
    pub fn drain(&mut self) -> Result<Vec<Folio>, TraceError> {
        let mut chunk = [0; 1 << 16];
        loop {
            match self.pipe.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => self.pending.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let path = self.instance.join("trace_pipe");
                    return Err(TraceError::Unavailable { action: "read", path, source });
                }
            }
        }
        let text = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&text).lines().filter_map(|line| parse(line).transpose()).collect()
    }

    /// Ends the recording, and says whether it was whole.
    ///
    /// # Errors
    /// [`TraceError::LostEvents`] when any event was lost since the start.
    pub fn finish(self) -> Result<(), TraceError> {
        let mut count = 0;
        for entry in fs::read_dir(self.instance.join("per_cpu")).into_iter().flatten().flatten() {
            let stats = fs::read_to_string(entry.path().join("stats")).unwrap_or_default();
            for line in stats.lines() {
                if let Some(("overrun" | "commit overrun" | "dropped events", number)) =
                    line.split_once(": ")
                {
                    count += number.trim().parse().unwrap_or(0);
                }
            }
        }
        if count > 0 { Err(TraceError::LostEvents { count }) } else { Ok(()) }
    }
}

impl Drop for PageCacheTrace {
    fn drop(&mut self) {
        // An instance whose pipe is open can't be removed: give the pipe up first.
        if let Ok(nothing) = fs::File::open("/dev/null") {
            self.pipe = nothing;
        }
        let _ = write(&self.instance.join("tracing_on"), "0");
        let _ = fs::remove_dir(&self.instance);
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
    fn find() -> Result<Tracefs, TraceError> {
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
            |action, source| TraceError::Unavailable { action, path: path.clone(), source };
        fs::create_dir(&path).map_err(|source| unavailable("create", source))?;
        let flags = rustix::mount::MountFlags::empty();
        let mounted = record(Kind::Tracefs, &path).and_then(|record| {
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
fn record(kind: Kind, path: &Path) -> Result<Record, TraceError> {
    Record::keep(kind, path).map_err(|source| TraceError::Unavailable {
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

fn create_instance(instances: &Path) -> Result<PathBuf, TraceError> {
    // One process may watch several files: the first free number is ours.
    for count in 0.. {
        let path = instances.join(format!("{INSTANCE_PREFIX}{}-{count}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(TraceError::Unavailable { action: "create", path, source }),
        }
    }
    unreachable!("some number is free")
}

/// Sets the instance up for one inode and opens its pipe.
fn open_pipe(instance: &Path, device: u64, inode: u64) -> Result<fs::File, TraceError> {
    let event = instance.join("events/filemap/mm_filemap_add_to_page_cache");
    // The kernel's own device number: 12 bits of major, 20 of minor.
    let kernel_device = u64::from(major(device)) << 20 | u64::from(minor(device));
    write(&instance.join("buffer_size_kb"), &BUFFER_KIB.to_string())?;
    write(&event.join("filter"), &format!("i_ino == {inode} && s_dev == {kernel_device}"))?;
    write(&event.join("enable"), "1")?;
    let path = instance.join("trace_pipe");
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path)
        .map_err(|source| TraceError::Unavailable { action: "open", path, source })
}

fn write(path: &Path, text: &str) -> Result<(), TraceError> {
    fs::write(path, text).map_err(|source| TraceError::Unavailable {
        action: "write to",
        path: path.to_owned(),
        source,
    })
}

/// One line of the pipe: an event, a notice of loss, or nothing of interest.
fn parse(line: &str) -> Result<Option<Folio>, TraceError> {
    if let Some((_, lost)) = line.split_once("[LOST ") {
        let count = lost.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(1);
        return Err(TraceError::LostEvents { count });
    }
    let Some((_, fields)) = line.split_once("mm_filemap_add_to_page_cache: ") else {
        return Ok(None);
    };
    let field = |name: &str| {
        fields
            .split(' ')
            .find_map(|field| field.strip_prefix(name))
            .and_then(|number| number.parse::<u64>().ok())
    };
    match (field("ofs="), field("order=").map(u8::try_from)) {
        (Some(offset), Some(Ok(order))) => Ok(Some(Folio { first: offset / PAGE_BYTES, order })),
        _ => Err(TraceError::UnknownEvent { line: line.trim().to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_the_kernel_writes_them() {
        // A line of Linux 6.18.
        let line = "         conform-4321    [001] .....  9123.456789: mm_filemap_add_to_page_cache: \
                    dev 254:0 ino 12ab pfn=0x1f3c00 ofs=2097152 order=9";
        assert_eq!(parse(line).unwrap(), Some(Folio { first: 512, order: 9 }));
        assert_eq!(parse("# tracer: nop").unwrap(), None);
    }

    #[test]
    fn lost_and_strange_events_are_errors() {
        let lost = parse("CPU:1 [LOST 17 EVENTS]").unwrap_err();
        assert!(matches!(lost, TraceError::LostEvents { count: 17 }), "{lost}");
        let strange = parse("x: mm_filemap_add_to_page_cache: dev 1:2 page=7").unwrap_err();
        assert!(strange.to_string().contains("dev 1:2 page=7"), "{strange}");
    }

    #[test]
    fn instances_are_removed_ours_and_those_of_dead_processes() {
        let trace = match PageCacheTrace::start(0, 1) {
            Ok(trace) => trace,
            Err(error) => return println!("skipped: {error}"),
        };
        let instance = trace.instance.clone();
        // Process numbers end below 2^22.
        let abandoned = instance.with_file_name("readpath-4194305-0");
        fs::create_dir(&abandoned).unwrap();
        let other = PageCacheTrace::start(0, 1).unwrap();
        assert!(instance.is_dir() && other.instance.is_dir() && instance != other.instance);
        assert!(!abandoned.exists());
        drop(trace);
        assert!(!instance.exists() && other.instance.is_dir());
    }
}
