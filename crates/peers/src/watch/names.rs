//! What the kernel's events leave out: the paths of files, the names of devices and tasks.
//!
//! An event names a file by its inode. Its path comes from fanotify(7), which tells of each opening
//! with a descriptor of the file itself: so it is found also when the program has closed it, or
//! ended, before anybody looks. Where fanotify is refused, `/proc` is asked while the file is open.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use readpath_sim::recording::DeviceRecord;
use rustix::fs::{major, minor};

use super::event::Inode;

/// How many paths are kept: of files that anybody on the machine opens.
const PATHS_MAX: usize = 1 << 18;

/// A file with its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamedFile {
    pub path: String,
    pub bytes: Option<u64>,
}

/// What a descriptor is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenFile {
    pub inode: Inode,
    pub named: NamedFile,
    pub position: u64,
    pub flags: u64,
}

/// Who knows the names.
pub(super) trait FileNames {
    /// The file that was opened as this inode.
    fn file(&mut self, inode: Inode) -> Option<NamedFile>;

    /// What a descriptor of a process is of; `None` when it is of no file that can be read at
    /// places, or not there any more.
    fn open_file(&mut self, process: u32, descriptor: u64) -> Option<OpenFile>;

    /// The disk that a device is, or is a part of, by the kernel's number.
    fn disk(&mut self, device: u64) -> DeviceRecord;
}

/// The running system.
#[derive(Debug)]
pub(super) struct System {
    fanotify: Option<Fanotify>,
    paths: HashMap<Inode, NamedFile>,
}

impl System {
    /// Begins to note which files are opened.
    pub fn new() -> System {
        let fanotify = start_fanotify();
        System { fanotify, paths: HashMap::new() }
    }

    /// Takes in what was opened since the last call.
    pub fn drain(&mut self) {
        let Some(fanotify) = &self.fanotify else { return };
        while let Ok(events) = fanotify.read_events() {
            if events.is_empty() {
                break;
            }
            for event in events {
                let Some(descriptor) = event.fd() else { continue };
                if self.paths.len() >= PATHS_MAX {
                    self.paths.clear();
                }
                note(&mut self.paths, descriptor);
            }
        }
    }
}

fn note(paths: &mut HashMap<Inode, NamedFile>, descriptor: impl AsFd) {
    let Ok(file) = rustix::fs::fstat(&descriptor) else { return };
    let inode = Inode { device: kernel_device(file.st_dev), number: file.st_ino };
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&descriptor.as_fd()));
    if let Ok(path) = fs::read_link(link) {
        let path = path.to_string_lossy().into_owned();
        paths.insert(inode, NamedFile { path, bytes: Some(file.st_size as u64) });
    }
}

/// Marks each file system that lies on a device; `None` when that is refused.
fn start_fanotify() -> Option<Fanotify> {
    let flags = InitFlags::FAN_CLASS_NOTIF
        | InitFlags::FAN_NONBLOCK
        | InitFlags::FAN_CLOEXEC
        | InitFlags::FAN_UNLIMITED_QUEUE;
    let files = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_LARGEFILE;
    let fanotify = Fanotify::init(flags, files).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut marked = HashSet::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(device), Some(at)) = (fields.nth(2), fields.nth(1)) else { continue };
        // Not proc, sysfs and the like; but what has no device and holds files.
        let kind = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next());
        let is_held = !device.starts_with("0:")
            || matches!(
                kind,
                Some("btrfs" | "overlay" | "zfs" | "nfs" | "nfs4" | "tmpfs" | "fuse")
            );
        if is_held && marked.insert(device.to_owned()) {
            let path = at.replace("\\040", " ");
            let flags = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
            let root = File::open(&path).ok()?;
            let _ = fanotify.mark(flags, MaskFlags::FAN_OPEN, &root, None::<&Path>);
        }
    }
    Some(fanotify)
}

impl FileNames for System {
    fn file(&mut self, inode: Inode) -> Option<NamedFile> {
        self.paths.get(&inode).cloned()
    }

    fn open_file(&mut self, process: u32, descriptor: u64) -> Option<OpenFile> {
        let path = PathBuf::from(format!("/proc/{process}/fd/{descriptor}"));
        let found = fs::metadata(&path).ok()?;
        if !found.is_file() && !found.file_type().is_block_device() {
            return None;
        }
        let inode = Inode { device: kernel_device(found.dev()), number: found.ino() };
        let named = NamedFile {
            path: fs::read_link(&path).ok()?.to_string_lossy().into_owned(),
            bytes: Some(found.len()),
        };
        let about = fs::read_to_string(format!("/proc/{process}/fdinfo/{descriptor}")).ok()?;
        let value = |name: &str| about.lines().find_map(|line| line.strip_prefix(name));
        let position = value("pos:").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let flags = value("flags:").and_then(|text| u64::from_str_radix(text.trim(), 8).ok());
        Some(OpenFile { inode, named, position, flags: flags.unwrap_or(0) })
    }

    fn disk(&mut self, device: u64) -> DeviceRecord {
        let (major, minor) = (device >> 20, device & 0xf_ffff);
        // What is no block device, as the mount of a server, says at least how far it reads ahead.
        let ahead = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let ahead = fs::read_to_string(ahead).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let readahead_bytes = ahead.unwrap_or(0) << 10;
        let unknown = DeviceRecord { device, readahead_bytes, ..DeviceRecord::default() };
        let Ok(folder) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
            return unknown;
        };
        // A partition lies in the folder of its disk.
        let is_part = folder.join("partition").exists();
        let disk = if is_part { folder.parent().unwrap_or(&folder) } else { &folder };
        let read = |file: &str| fs::read_to_string(disk.join(file)).unwrap_or_default();
        let number = |file: &str| read(file).trim().parse::<u64>().unwrap_or(0);
        let whole = read("dev");
        let whole = whole.trim().split_once(':').and_then(|(major, minor)| {
            Some(major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?)
        });
        DeviceRecord {
            device: whole.unwrap_or(device),
            name: disk.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            is_rotational: number("queue/rotational") == 1,
            readahead_bytes: number("queue/read_ahead_kb") << 10,
            ..unknown
        }
    }
}

/// A device number of `stat(2)` as the kernel has it inside: major × 2²⁰ + minor.
pub(super) fn kernel_device(device: u64) -> u64 {
    u64::from(major(device)) << 20 | u64::from(minor(device))
}
