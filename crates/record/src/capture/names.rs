//! Names missing from the kernel's events: paths of files, names of devices and tasks.
//!
//! An event names a file by its inode. The path comes from fanotify(7), which reports each open
//! with its own descriptor of the file. The path is therefore found even if the program has closed
//! the file or ended. Without fanotify, `/proc` is read while the file is open.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use readpath_os::queue::{QueueLimits, ReadaheadSetting};
use readpath_trace::recording::DeviceRecord;
use rustix::fs::makedev;

use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::event::Inode;
use super::maps::{MappedPage, Mapping};
use super::mounts;

/// Maximum number of paths. They include files opened by other programs.
const PATHS_MAX: usize = 1 << 18;

/// A file with its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamedFile {
    pub path: String,
    pub bytes: Option<u64>,
}

/// File and state of a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenFile {
    pub inode: Inode,
    pub named: NamedFile,
    pub position: u64,
    pub flags: u64,
}

/// Source of names.
pub(super) trait FileNames {
    /// Returns the file with this inode, if its open was reported.
    fn file(&mut self, inode: Inode) -> Option<NamedFile>;

    /// Returns the file of a descriptor. `None` for objects without offsets and for closed
    /// descriptors.
    fn open_file(&mut self, process: u32, descriptor: u64) -> Option<OpenFile>;

    /// Returns a process's current file mappings: first address, mapping, and file.
    fn mappings(&mut self, process: u32) -> Vec<(u64, Mapping, NamedFile)>;

    /// Returns the contiguous mapped pages around a place, within a huge page. `None` if the page
    /// itself is not mapped or the page table cannot be read.
    fn mapped(&mut self, place: &MappedPage) -> Option<PageRange>;

    /// Returns the disk of a device, by the kernel's number.
    fn disk(&mut self, device: u64) -> DeviceRecord;

    /// Returns true for the number of a file system without storage, such as `/proc`.
    fn is_without_storage(&self, device: u64) -> bool;
}

/// Names from the running system.
#[derive(Debug)]
pub(super) struct System {
    fanotify: Option<Arc<Fanotify>>,
    paths: HashMap<Inode, NamedFile>,
    without_storage: HashSet<u64>,
    /// Number of page table reads left until the next call of `drain`.
    lookups: u32,
}

/// Maximum number of page table reads between two calls of `drain`. One takes about 5 µs.
const LOOKUPS_MAX: u32 = 512;

impl System {
    /// Adds the name of a file, where its open is reported by other means than fanotify.
    pub fn add(&mut self, inode: Inode, named: NamedFile) {
        self.paths.insert(inode, named);
    }

    /// Starts to record the paths of opened files.
    pub fn new() -> System {
        let fanotify = start_fanotify();
        let without_storage = mounts::without_storage(&mounts::table());
        System { fanotify, paths: HashMap::new(), without_storage, lookups: LOOKUPS_MAX }
    }

    /// Reads the opens since the last call.
    pub fn drain(&mut self) {
        self.lookups = LOOKUPS_MAX;
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
                remember_path(&mut self.paths, descriptor);
            }
        }
    }
}

/// Stores path and length of an open file by its inode.
fn remember_path(paths: &mut HashMap<Inode, NamedFile>, descriptor: impl AsFd) {
    let link = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()));
    let (Ok(file), Ok(path)) = (fs::metadata(&link), fs::read_link(&link)) else { return };
    let path = path.to_string_lossy().into_owned();
    let named = NamedFile { path, bytes: Some(file.len()) };
    paths.insert(mounts::inode_at(&link, &file), named);
}

/// Watches each file system with storage. Returns `None` when fanotify is refused.
fn start_fanotify() -> Option<Arc<Fanotify>> {
    let flags = InitFlags::FAN_CLASS_NOTIF
        | InitFlags::FAN_NONBLOCK
        | InitFlags::FAN_CLOEXEC
        | InitFlags::FAN_UNLIMITED_QUEUE;
    let files = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_LARGEFILE;
    let fanotify = Arc::new(Fanotify::init(flags, files).ok()?);
    let mounts = mounts::table();
    let mut marked = HashSet::new();
    let mut served = Vec::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(device), Some(at)) = (fields.nth(2), fields.nth(1)) else { continue };
        // Skips proc, sysfs and the like, but not file systems that hold files without a device.
        let kind = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("");
        let is_served = kind.starts_with("fuse") || matches!(kind, "nfs" | "nfs4");
        let is_held = !device.starts_with("0:")
            || matches!(kind, "btrfs" | "overlay" | "zfs" | "nfs" | "nfs4" | "tmpfs" | "fuse");
        if is_held && marked.insert(device.to_owned()) {
            let path = PathBuf::from(at.replace("\\040", " "));
            match is_served {
                true => served.push(path),
                false => watch_file_system(&fanotify, &path),
            }
        }
    }
    watch_served_file_systems(&fanotify, served);
    Some(fanotify)
}

/// Maximum time for the servers of file systems to answer. Files of a slower one have no names if
/// they are closed quickly.
const SERVER_TIMEOUT: Duration = Duration::from_millis(500);

/// Watches file systems with a server, on a thread: the kernel asks the server, which may never
/// answer.
fn watch_served_file_systems(fanotify: &Arc<Fanotify>, paths: Vec<PathBuf>) {
    let (end, ended) = mpsc::channel();
    let fanotify = Arc::clone(fanotify);
    std::thread::spawn(move || {
        paths.iter().for_each(|path| watch_file_system(&fanotify, path));
        // The recorder may have stopped waiting.
        let _ = end.send(());
    });
    let _ = ended.recv_timeout(SERVER_TIMEOUT);
}

/// Watches the file system at a path, where that is allowed. Its root is not opened.
fn watch_file_system(fanotify: &Fanotify, path: &Path) {
    let flags = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
    if let Ok(root) = File::open("/") {
        let _ = fanotify.mark(flags, MaskFlags::FAN_OPEN, &root, Some(path));
    }
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
        let inode = mounts::inode_at(&path, &found);
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

    fn mappings(&mut self, process: u32) -> Vec<(u64, Mapping, NamedFile)> {
        let lines = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        lines.lines().filter_map(mapping).collect()
    }

    fn mapped(&mut self, place: &MappedPage) -> Option<PageRange> {
        if self.lookups == 0 {
            return None;
        }
        self.lookups -= 1;
        pagemap(place)
    }

    fn is_without_storage(&self, device: u64) -> bool {
        self.without_storage.contains(&device)
    }

    fn disk(&mut self, device: u64) -> DeviceRecord {
        if device >> 20 == 0
            && let Some(disk) = mounts::disk_of_btrfs(device)
        {
            return self.disk(disk);
        }
        let (major, minor) = (device >> 20, device & 0xf_ffff);
        let number = makedev(major as u32, minor as u32);
        // A mount of a server is no block device, but has a readahead size.
        let readahead_bytes =
            ReadaheadSetting::from_device_number(number).map_or(0, |setting| setting.bytes);
        let unknown = DeviceRecord { device, readahead_bytes, ..DeviceRecord::default() };
        let Ok(folder) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
            return unknown;
        };
        // The folder of a partition lies in the folder of its disk.
        let is_part = folder.join("partition").exists();
        let disk = if is_part { folder.parent().unwrap_or(&folder) } else { &folder };
        let read = |file: &str| fs::read_to_string(disk.join(file)).unwrap_or_default();
        let queue = QueueLimits::from_device_number(number);
        let whole = read("dev");
        let whole = whole.trim().split_once(':').and_then(|(major, minor)| {
            Some(major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?)
        });
        DeviceRecord {
            device: whole.unwrap_or(device),
            name: disk.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            is_rotational: queue.is_some_and(|queue| queue.is_rotational),
            ..unknown
        }
    }
}

/// Parses a file mapping in a line of `/proc/PID/maps`: `7f0c6ee00000-7f0c7ee00000 r--s 00000000
/// fe:00 9972143    /tmp/data`.
fn mapping(line: &str) -> Option<(u64, Mapping, NamedFile)> {
    let mut fields = line.split_whitespace();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (first, end) = fields.next()?.split_once('-')?;
    let offset = hex(fields.nth(1)?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode =
        Inode { device: hex(major)? << 20 | hex(minor)?, number: fields.next()?.parse().ok()? };
    let path = line.get(line.find('/')?..)?.to_owned();
    let mapping = Mapping { end: hex(end)?, inode, file: 0, offset };
    (inode.number != 0).then_some((hex(first)?, mapping, NamedFile { path, bytes: None }))
}

/// Number of pages in a huge page.
const HUGE_PAGES: u64 = 512;

/// Bit of an entry in `/proc/PID/pagemap`: the page is resident and mapped.
const PRESENT: u64 = 1 << 63;

fn pagemap(place: &MappedPage) -> Option<PageRange> {
    let table = File::open(format!("/proc/{}/pagemap", place.process)).ok()?;
    let own = place.address / PAGE_BYTES;
    // Folios of files are aligned by their offset in the file.
    let before = (place.page % HUGE_PAGES).min(place.page - place.pages.first);
    let first = place.page - before;
    let end = (place.page / HUGE_PAGES + 1) * HUGE_PAGES;
    let count = end.min(place.pages.end) - first;
    let mut bytes = vec![0; (count * 8) as usize];
    table.read_exact_at(&mut bytes, (own - before) * 8).ok()?;
    let entries: Vec<bool> = bytes
        .chunks_exact(8)
        .map(|entry| u64::from_le_bytes(entry.try_into().expect("eight bytes")) & PRESENT != 0)
        .collect();
    let at = before as usize;
    if !entries[at] {
        return None;
    }
    let below = entries[..at].iter().rev().take_while(|is_present| **is_present).count();
    let above = entries[at..].iter().take_while(|is_present| **is_present).count();
    Some(PageRange { first: place.page - below as u64, end: place.page + above as u64 })
}
