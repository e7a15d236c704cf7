//! Names missing from the kernel's events: paths of files, names of devices and tasks.
//!
//! An event names a file by its inode. The path comes from fanotify(7), which reports each open
//! with its own descriptor of the file. The path is therefore found even if the program has closed
//! the file or ended. Without fanotify, `/proc` is read while the file is open. fanotify reports
//! the opens of all processes; only paths of recorded processes are looked up.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::sys::fanotify::{EventFFlags, Fanotify, FanotifyEvent, InitFlags, MarkFlags, MaskFlags};
use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::proc_text;
use readpath_os::queue::{QueueLimits, ReadaheadSetting, device_folder};
use readpath_trace::recording::{DeviceRecord, path_bytes, path_text};
use rustix::fs::makedev;

use super::device_number;
use super::event::Inode;
use super::maps::{MappedPage, Mapping};
use super::mounts;
use super::tracing;

mod queued;

/// Maximum number of paths, chosen. All are discarded at the limit.
const PATHS_MAX: usize = 1 << 18;

/// A file with its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamedFile {
    /// Path of the file. Empty if it is not known.
    pub path: String,
    /// Length in bytes, if it is known.
    pub bytes: Option<u64>,
}

/// File and state of a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenFile {
    /// The file.
    pub inode: Inode,
    /// Its path and length.
    pub named: NamedFile,
    /// Position in bytes.
    pub position: u64,
    /// Flags of `open(2)`.
    pub flags: u64,
}

/// Source of names.
pub(super) trait FileNames {
    /// Returns the file with this inode, if its open was reported. `None` also for a file that was
    /// open before the recording.
    fn file(&mut self, inode: Inode) -> Option<NamedFile>;

    /// Returns the file of a descriptor. `None` for objects without offsets and for descriptors
    /// that `/proc` does not report. A position or flags that `fdinfo` lacks are 0.
    fn open_file(&mut self, process: u32, descriptor: u64) -> Option<OpenFile>;

    /// Returns true for an open descriptor of a pipe, a socket or another object without storage,
    /// where that is known.
    fn is_no_file(&self, _process: u32, _descriptor: u64) -> bool {
        false
    }

    /// Returns the files that a process has mapped for execution, with their lengths, where they
    /// are known.
    fn executables(&mut self, _process: u32) -> Vec<(Inode, NamedFile)> {
        Vec::new()
    }

    /// Returns a process's current file mappings: first address, mapping, and file.
    fn mappings(&mut self, process: u32) -> Vec<(u64, Mapping, NamedFile)>;

    /// Returns the contiguous mapped pages around `page`, within a huge page. `None` if the page
    /// itself is not mapped, or the page table cannot be read or has been read too often.
    fn pages_mapped_around(&mut self, page: &MappedPage) -> Option<PageRange>;

    /// Returns the disk of a device, which may be a partition. `device` is the kernel's number.
    fn disk(&mut self, device: u64) -> DeviceRecord;

    /// Returns true for the number of a file system without storage, such as `/proc`.
    fn is_without_storage(&self, device: u64) -> bool;
}

/// Names from the running system: paths reported by fanotify, and entries of `/proc` and `/sys`.
#[derive(Debug)]
pub(super) struct System {
    /// Reports of opened files. `None` if the kernel refuses them.
    fanotify: Option<Arc<Fanotify>>,
    /// Files whose open was reported.
    paths: HashMap<Inode, NamedFile>,
    /// Processes whose opens are kept, those that have ended included. `None` in a PID namespace:
    /// fanotify and the tracepoints number processes differently there, and all opens are kept.
    processes: Option<HashSet<u32>>,
    /// Devices of file systems without storage.
    without_storage: HashSet<u64>,
    /// Devices of overlays. The kernel opens the file of a layer first, then the file of the
    /// overlay, and reports both opens.
    overlays: HashSet<u64>,
    /// File that each process opened last, if there are overlays.
    last_opened: HashMap<u32, Inode>,
    /// Number of page table reads left until the next call of `allow_lookups`.
    lookups_left: u32,
    /// Maximum length in bytes of files whose paths are not looked up. 0: all are looked up.
    unnamed_bytes_max: u64,
    /// Number of opens of such files.
    short_opens: u64,
    /// Known disks of devices. A search in sysfs takes some 20 system calls.
    disks: HashMap<u64, DeviceRecord>,
}

/// Maximum number of page table reads between two calls of `allow_lookups`. One takes about 5 µs,
/// so all of them take some 3 ms.
const LOOKUPS_MAX: u32 = 512;

impl System {
    /// Adds the name of a file, where its open is reported by other means than fanotify.
    pub fn add_name(&mut self, inode: Inode, named: NamedFile) {
        self.paths.insert(inode, named);
    }

    /// Starts to record the paths of opened files.
    pub fn new() -> System {
        let fanotify = start_fanotify();
        let mountinfo = mounts::mountinfo();
        let without_storage = mounts::without_storage(&mountinfo);
        let processes = tracing::is_initial_pid_namespace().then(HashSet::new);
        System {
            fanotify,
            paths: HashMap::new(),
            processes,
            without_storage,
            overlays: mounts::overlays(&mountinfo),
            last_opened: HashMap::new(),
            lookups_left: LOOKUPS_MAX,
            unnamed_bytes_max: 0,
            short_opens: 0,
            disks: HashMap::new(),
        }
    }

    /// Looks up no path of a file with at most `bytes_max` bytes from now on. The names of
    /// these files have a length only.
    pub fn leave_unnamed(&mut self, bytes_max: u64) {
        self.unnamed_bytes_max = bytes_max;
    }

    /// Number of opens of files whose paths are not looked up.
    pub fn short_opens(&self) -> u64 {
        self.short_opens
    }

    /// Returns the descriptor of the reports. The kernel takes some 20 ms to close it.
    pub fn take_reports(&mut self) -> Option<Arc<Fanotify>> {
        self.fanotify.take()
    }

    /// Ends the reports of opened files until [`resume_reports`](System::resume_reports). Reports
    /// that were not yet read are discarded.
    pub fn pause_reports(&mut self) {
        let Some(fanotify) = &self.fanotify else { return };
        let flags = MarkFlags::FAN_MARK_FLUSH | MarkFlags::FAN_MARK_FILESYSTEM;
        if let Ok(root) = File::open("/") {
            // The flush removes the marks of all file systems, whatever the path.
            let _ = fanotify.mark(flags, MaskFlags::empty(), &root, Some("/"));
        }
        while self.next_reports().is_some() {}
    }

    /// Continues the reports of opened files.
    pub fn resume_reports(&mut self) {
        self.fanotify.iter().for_each(watch_all_file_systems);
    }

    /// Keeps the opens of a process from now on.
    pub fn add_process(&mut self, process: u32) {
        if let Some(processes) = &mut self.processes {
            processes.insert(process);
        }
    }

    /// Allows `LOOKUPS_MAX` further reads of page tables.
    pub fn allow_lookups(&mut self) {
        self.lookups_left = LOOKUPS_MAX;
    }

    /// Returns some of the opens reported since the last call, each with a descriptor. `None` if
    /// there is none, without fanotify, and if it cannot be read.
    fn next_reports(&mut self) -> Option<Vec<FanotifyEvent>> {
        let reports = self.fanotify.as_ref()?.read_events().ok()?;
        (!reports.is_empty()).then_some(reports)
    }

    /// Keeps the paths of opened files. Opens of other processes are left out. If there are
    /// overlays, the file that a process opened just before may be the layer's file of this one.
    pub fn keep(&mut self, reports: Vec<FanotifyEvent>) {
        for report in reports {
            let process = report.pid() as u32;
            if self.processes.as_ref().is_some_and(|processes| !processes.contains(&process)) {
                continue;
            }
            // A report of lost opens has no descriptor.
            let Some(descriptor) = report.fd() else { continue };
            if self.paths.len() >= PATHS_MAX {
                self.paths.clear();
                self.last_opened.clear();
            }
            let opened = remember_path(&mut self.paths, descriptor, self.unnamed_bytes_max);
            let Some(opened) = opened else { continue };
            let has_path = self.paths.get(&opened).is_some_and(|named| !named.path.is_empty());
            self.short_opens += u64::from(!has_path);
            // Without overlays, no file has a second name.
            if self.overlays.is_empty() {
                continue;
            }
            let opened_before = self.last_opened.insert(process, opened);
            if let Some(below) = opened_before.filter(|_| self.overlays.contains(&opened.device)) {
                name_as_in_overlay(&mut self.paths, below, opened);
            }
        }
    }
}

/// Stores path and length of an open file by its inode, and returns the inode. The path of a file
/// with at most `unnamed_bytes_max` bytes stays empty. With 0 bytes as this limit every file gets
/// its path, also a file without bytes. `None` if `/proc` cannot be read: nothing is stored then.
fn remember_path(
    paths: &mut HashMap<Inode, NamedFile>,
    descriptor: impl AsFd,
    unnamed_bytes_max: u64,
) -> Option<Inode> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()));
    let file = fs::metadata(&link).ok()?;
    let path = match file.len() > unnamed_bytes_max || unnamed_bytes_max == 0 {
        true => link_text(&link)?,
        false => String::new(),
    };
    let named = NamedFile { path, bytes: Some(file.len()) };
    let inode = mounts::inode_at(&link, &file);
    paths.insert(inode, named);
    Some(inode)
}

/// Gives the file `below`, of a layer, the path of the file `above` of an overlay. Its own path
/// begins at the layer, and names another file or none. Files with different ends of their paths
/// stay as they are: then `below` is no layer's file of `above`.
fn name_as_in_overlay(paths: &mut HashMap<Inode, NamedFile>, below: Inode, above: Inode) {
    let Some(path) = paths.get(&above).map(|named| named.path.clone()) else { return };
    if let Some(named) = paths.get_mut(&below)
        && Path::new(&path).ends_with(named.path.trim_start_matches('/'))
    {
        named.path = path;
    }
}

/// Starts the reports of opened files. Returns `None` when the kernel refuses fanotify.
fn start_fanotify() -> Option<Arc<Fanotify>> {
    let flags = InitFlags::FAN_CLASS_NOTIF
        | InitFlags::FAN_NONBLOCK
        | InitFlags::FAN_CLOEXEC
        | InitFlags::FAN_UNLIMITED_QUEUE;
    let files = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_LARGEFILE;
    let fanotify = Arc::new(Fanotify::init(flags, files).ok()?);
    watch_all_file_systems(&fanotify);
    Some(fanotify)
}

/// Watches each file system with files, once if it has several mounts. File systems with a server
/// come last, because the server may not answer.
fn watch_all_file_systems(fanotify: &Arc<Fanotify>) {
    let mountinfo = mounts::mountinfo();
    let mut watched_devices = HashSet::new();
    let mut served_paths = Vec::new();
    for mount in mounts::mounts_with_files(&mountinfo) {
        if !watched_devices.insert(mount.device) {
            continue;
        }
        match mounts::has_server(&mount) {
            true => served_paths.push(mounts::mount_path(&mount)),
            false => watch_file_system(fanotify, &mounts::mount_path(&mount)),
        }
    }
    watch_served_file_systems(fanotify, served_paths);
}

/// Maximum time, chosen, for the servers of file systems to answer. Files of a slower one have no
/// names if they are closed quickly.
const SERVER_TIMEOUT: Duration = Duration::from_millis(500);

/// Watches file systems with a server on a thread of its own, and waits at most `SERVER_TIMEOUT`.
/// The kernel asks the server, which may never answer.
fn watch_served_file_systems(fanotify: &Arc<Fanotify>, paths: Vec<PathBuf>) {
    let (done_sender, done_receiver) = mpsc::channel();
    let fanotify = Arc::clone(fanotify);
    std::thread::spawn(move || {
        paths.iter().for_each(|path| watch_file_system(&fanotify, path));
        // The recorder may have stopped waiting.
        let _ = done_sender.send(());
    });
    let _ = done_receiver.recv_timeout(SERVER_TIMEOUT);
}

/// Watches the file system at a path, where that is allowed. Its root is not opened.
fn watch_file_system(fanotify: &Fanotify, path: &Path) {
    let flags = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
    // The call needs the descriptor of a folder, which has no effect on an absolute path.
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
        let metadata = fs::metadata(&path).ok()?;
        if !has_offsets(metadata.file_type()) {
            return None;
        }
        let inode = mounts::inode_at(&path, &metadata);
        let named = NamedFile { path: link_text(&path)?, bytes: Some(metadata.len()) };
        let fdinfo = fs::read_to_string(format!("/proc/{process}/fdinfo/{descriptor}")).ok()?;
        let value = |name: &str| proc_text::field(&fdinfo, name);
        let position = value("pos:").and_then(|text| text.parse().ok()).unwrap_or(0);
        let flags = value("flags:").and_then(|text| u64::from_str_radix(text, 8).ok());
        Some(OpenFile { inode, named, position, flags: flags.unwrap_or(0) })
    }

    fn is_no_file(&self, process: u32, descriptor: u64) -> bool {
        is_without_offsets(process, descriptor)
    }

    fn executables(&mut self, process: u32) -> Vec<(Inode, NamedFile)> {
        let lines = maps_text(process).unwrap_or_default();
        let executable = lines.lines().filter(|line| is_executable(line)).filter_map(parse_mapping);
        let with_lengths = executable.map(|(first, mapping, named)| {
            let bytes = file_bytes(process, first, &mapping, &named.path);
            (mapping.inode, NamedFile { bytes, ..named })
        });
        with_lengths.collect()
    }

    fn mappings(&mut self, process: u32) -> Vec<(u64, Mapping, NamedFile)> {
        let lines = maps_text(process).unwrap_or_default();
        lines.lines().filter_map(parse_mapping).collect()
    }

    fn pages_mapped_around(&mut self, page: &MappedPage) -> Option<PageRange> {
        if self.lookups_left == 0 {
            return None;
        }
        self.lookups_left -= 1;
        mapped_pages_around(page)
    }

    fn is_without_storage(&self, device: u64) -> bool {
        self.without_storage.contains(&device)
    }

    fn disk(&mut self, device: u64) -> DeviceRecord {
        self.disks.entry(device).or_insert_with(|| find_disk(device)).clone()
    }
}

/// Returns true for a regular file or a block device: reads of other objects have no offset.
pub(super) fn has_offsets(kind: fs::FileType) -> bool {
    kind.is_file() || kind.is_block_device()
}

/// Returns true for an open descriptor of a pipe, a socket or another object without offsets. False
/// also for a closed descriptor.
pub(super) fn is_without_offsets(process: u32, descriptor: u64) -> bool {
    let metadata = fs::metadata(format!("/proc/{process}/fd/{descriptor}"));
    metadata.is_ok_and(|metadata| !has_offsets(metadata.file_type()))
}

/// Finds the disk of a device in sysfs: of a partition its whole disk.
fn find_disk(device: u64) -> DeviceRecord {
    // btrfs has a number of its own, without a block device. Its only disk stands for it.
    if device_number::is_without_block_device(device)
        && let Some(disk) = mounts::disk_of_btrfs(device)
    {
        return find_disk(disk);
    }
    let (major, minor) = device_number::parts(device);
    let number = makedev(major as u32, minor as u32);
    // A mount of a server is no block device, but has a readahead size. 0 stands for unknown.
    let readahead_bytes =
        ReadaheadSetting::from_device_number(number).map_or(0, |setting| setting.bytes);
    // A device without a folder in sysfs is its own disk, and has no name.
    let unknown = DeviceRecord { device, readahead_bytes, ..DeviceRecord::default() };
    let Ok(folder) = fs::canonicalize(device_folder(number)) else { return unknown };
    // The folder of a partition lies in the folder of its disk.
    let is_partition = folder.join("partition").exists();
    let disk = if is_partition { folder.parent().unwrap_or(&folder) } else { &folder };
    let read = |file: &str| fs::read_to_string(disk.join(file)).unwrap_or_default();
    let queue_of_disk = QueueLimits::from_device_number(number);
    let device_text = read("dev");
    let whole_disk = device_text.trim().split_once(':').and_then(|(major, minor)| {
        Some(device_number::from_parts(major.parse().ok()?, minor.parse().ok()?))
    });
    DeviceRecord {
        device: whole_disk.unwrap_or(device),
        name: disk.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        is_rotational: queue_of_disk.is_some_and(|queue| queue.is_rotational),
        ..unknown
    }
}

/// Returns the target of a symbolic link as a text of a recording.
fn link_text(link: &Path) -> Option<String> {
    Some(path_text(fs::read_link(link).ok()?.as_os_str().as_bytes()))
}

/// Returns the path with this text in a recording.
pub(crate) fn path_of_text(text: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(path_bytes(text)))
}

/// Returns `/proc/PID/maps`, with its paths as texts of a recording.
pub(super) fn maps_text(process: u32) -> io::Result<String> {
    Ok(path_text(&fs::read(format!("/proc/{process}/maps"))?))
}

/// Parses a line of `/proc/PID/maps` with a file, such as `7f0c6ee00000-7f0c7ee00000 r--s 00000000
/// fe:00 9972143    /tmp/data`. Returns first address, mapping and file. `None` for other memory.
/// The mapping has no file number yet: its 0 is a placeholder for the caller to replace.
pub(super) fn parse_mapping(line: &str) -> Option<(u64, Mapping, NamedFile)> {
    let mut fields = line.split_whitespace();
    let from_hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (first, end) = fields.next()?.split_once('-')?;
    // The rights before the offset are skipped.
    let offset = from_hex(fields.nth(1)?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = Inode {
        device: device_number::from_parts(from_hex(major)?, from_hex(minor)?),
        number: fields.next()?.parse().ok()?,
    };
    let path = line.get(line.find('/')?..)?.to_owned();
    let mapping = Mapping { end: from_hex(end)?, inode, file: 0, offset };
    // Anonymous and special memory has inode 0.
    (inode.number != 0).then_some((from_hex(first)?, mapping, NamedFile { path, bytes: None }))
}

/// Returns the length in bytes of the file of a mapping that begins at `first`. Without the right
/// to open mapped files, the file at `path` is taken if it has the inode. `None` for other files.
pub(super) fn file_bytes(process: u32, first: u64, mapping: &Mapping, path: &str) -> Option<u64> {
    let by_address = format!("/proc/{process}/map_files/{first:x}-{:x}", mapping.end);
    let by_path = || {
        let path = path_of_text(&format!("/proc/{process}/root{path}"));
        let metadata = fs::metadata(&path).ok()?;
        (mounts::inode_at(&path, &metadata) == mapping.inode).then_some(metadata)
    };
    Some(fs::metadata(by_address).ok().or_else(by_path)?.len())
}

/// True if the rights in a line of `/proc/PID/maps` include execution.
pub(super) fn is_executable(line: &str) -> bool {
    line.split(' ').nth(1).is_some_and(|rights| rights.contains('x'))
}

/// Number of pages in a huge page.
const HUGE_PAGES: u64 = 512;

/// Size of an entry in `/proc/PID/pagemap` in bytes.
const ENTRY_BYTES: u64 = 8;

/// Bit of a resident and mapped page in such an entry.
const PRESENT: u64 = 1 << 63;

/// Opens the page table of a process. `None` if it has ended or belongs to another user.
pub(super) fn open_page_table(process: u32) -> Option<File> {
    File::open(format!("/proc/{process}/pagemap")).ok()
}

/// Returns one flag for each of `count` pages of addresses from page number `first` on: true if it
/// is resident and mapped. `None` if the table cannot be read, as after the end of the process.
pub(super) fn mapped_flags(page_table: &File, first: u64, count: u64) -> Option<Vec<bool>> {
    let mut bytes = vec![0; (count * ENTRY_BYTES) as usize];
    page_table.read_exact_at(&mut bytes, first * ENTRY_BYTES).ok()?;
    let (entries, _) = bytes.as_chunks();
    Some(entries.iter().map(|&entry| u64::from_ne_bytes(entry) & PRESENT != 0).collect())
}

/// Returns the contiguous mapped pages around `touched`, within a huge page and its mapping. `None`
/// if the page itself is not mapped or the page table cannot be read.
fn mapped_pages_around(touched: &MappedPage) -> Option<PageRange> {
    let page_table = open_page_table(touched.process)?;
    let page_number = touched.address / PAGE_BYTES;
    // Folios of files are aligned by their offset in the file. `first` is a page of the file,
    // `page_number` counts pages of addresses.
    let pages_before = (touched.page % HUGE_PAGES).min(touched.page - touched.pages.first);
    let first = touched.page - pages_before;
    let end = (touched.page / HUGE_PAGES + 1) * HUGE_PAGES;
    let count = end.min(touched.pages.end) - first;
    let entries = mapped_flags(&page_table, page_number - pages_before, count)?;
    let touched_index = pages_before as usize;
    if !entries[touched_index] {
        return None;
    }
    let mapped_before =
        entries[..touched_index].iter().rev().take_while(|is_present| **is_present).count();
    let mapped_from = entries[touched_index..].iter().take_while(|is_present| **is_present).count();
    Some(PageRange {
        first: touched.page - mapped_before as u64,
        end: touched.page + mapped_from as u64,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Number of read calls of this thread, counted by the kernel.
    pub(in super::super) fn read_calls() -> u64 {
        let text = fs::read_to_string("/proc/thread-self/io").unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap();
        count.parse().unwrap()
    }

    /// A search reads several files of sysfs. The count itself makes as many read calls each time.
    #[test]
    fn disk_of_a_device_is_searched_once() {
        use std::os::linux::fs::MetadataExt;
        let number = fs::metadata("/").unwrap().st_dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = u64::from(major) << 20 | u64::from(minor);
        let mut system = System::new();
        let first = system.disk(device);
        let calls = [read_calls(), read_calls()];
        assert_eq!(system.disk(device), first);
        assert_eq!(read_calls() - calls[1], calls[1] - calls[0]);
    }

    /// `é` in Latin-1 is the byte E9, which is not UTF-8. A recording has U+10FFE9 for it.
    #[test]
    fn name_outside_of_utf8_leads_to_its_file() {
        let name = format!("readpath-{}-caf\u{10ffe9}", std::process::id());
        let path = path_of_text(std::env::temp_dir().join(name).to_str().unwrap());
        let file = File::create_new(&path).unwrap();
        let descriptor = file.as_raw_fd() as u64;
        let opened = System::new().open_file(std::process::id(), descriptor).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(path.as_os_str().as_bytes().ends_with(b"caf\xe9"), "{path:?}");
        assert_eq!(path_of_text(&opened.named.path), path);
    }

    /// The program of this process is mapped for execution.
    #[test]
    fn executable_has_the_length_of_its_file() {
        let path = std::env::current_exe().unwrap();
        let mut executables = System::new().executables(std::process::id()).into_iter();
        let own = executables.find(|(_, named)| Path::new(&named.path) == path).unwrap();
        assert_eq!(own.1.bytes, Some(fs::metadata(&path).unwrap().len()));
    }

    /// A layer at `/layers/low` has the file `/layers/low/sub/data`, which the kernel reports as
    /// `/sub/data`. An unrelated file keeps its path, and so does one below a file without a path.
    #[test]
    fn file_of_a_layer_has_the_path_of_its_overlay() {
        let inode = |number| Inode { device: 8, number };
        let named = |path: &str| NamedFile { path: path.to_owned(), bytes: Some(7) };
        let files = [(1, "/sub/data"), (2, "/merged/sub/data"), (3, "/data"), (4, "/etc/conf")];
        let mut paths: HashMap<Inode, NamedFile> =
            files.into_iter().map(|(number, path)| (inode(number), named(path))).collect();
        for below in [1, 4] {
            name_as_in_overlay(&mut paths, inode(below), inode(2));
        }
        name_as_in_overlay(&mut paths, inode(3), inode(9));
        let path = |number| paths[&inode(number)].path.as_str();
        assert_eq!(
            [1, 2, 3, 4].map(path),
            ["/merged/sub/data", "/merged/sub/data", "/data", "/etc/conf"]
        );
    }

    #[test]
    fn mapping_of_a_file_is_parsed_from_a_line_of_maps() {
        let line = "7f0000001000-7f0000003000 r--s 0000a000 fd:02 1234       /a file";
        let inode = Inode { device: 0xfd << 20 | 2, number: 1234 };
        let mapping = Mapping { end: 0x7f00_0000_3000, inode, file: 0, offset: 0xa000 };
        let named = NamedFile { path: "/a file".to_owned(), bytes: None };
        assert_eq!(parse_mapping(line), Some((0x7f00_0000_1000, mapping, named)));
        assert_eq!(parse_mapping("7f00-7f10 rw-p 00000000 00:00 0"), None);
        assert_eq!(parse_mapping("7f00-7f10 rw-p 00000000 00:00 0     [heap]"), None);
    }
}
