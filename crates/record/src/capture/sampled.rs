//! Sampling of a running process without root: kernel counters and periodic samples.
//!
//! A sample finds the process's files open for reading and its mapped files, except programs and
//! libraries. It contains the positions of the descriptors and the resident pages of these files
//! (`mincore(2)`). Single reads are unknown: their offsets, their times, and their waits. Changes
//! between two samples are missed, so the counts of added and evicted pages are lower bounds. Pages
//! added by other programs are included, and a seek also moves a position. Descriptors made by
//! dup(2) share a position, which counts once. It counts for each of them if the kernel forbids
//! kcmp(2).
//!
//! The kernel reports residency only to the file's owner and to users with write permission. Other
//! files have no residency.
//!
//! Sampling takes at most a twentieth of a processor: a longer sample delays the next one.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::proc_text;

use super::event::Inode;
use super::kcmp::compare_open_files;
use super::mounts;
use super::names::{
    FileNames, OpenFile, System, is_executable, maps_text, parse_mapping, path_of_text,
};
use super::preload::KernelCounts;
use crate::cold::residency_flags;

/// Minimum interval between two samples, chosen.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Pause after a sample as a multiple of its duration: a twentieth of the time is sampling.
const PAUSE_PER_SAMPLE: u32 = 19;

/// Maximum number of files, chosen.
const FILES_MAX: usize = 256;

/// Maximum size of a file in pages (16 GiB), chosen.
const FILE_PAGES_MAX: u64 = 1 << 22;

/// Number of pages per `mincore` call, chosen.
const WINDOW_PAGES: u64 = 1 << 18;

/// A sampled process.
#[derive(Debug)]
pub struct Sampled {
    /// Number of the process.
    process: u32,
    /// Source of the files of descriptors.
    system: System,
    /// Time of the first sample.
    begun: Instant,
    /// Counters of the process at the first sample.
    first: KernelCounts,
    /// Counters at the newest sample.
    newest: KernelCounts,
    /// Files found so far.
    files: BTreeMap<Inode, TrackedFile>,
    /// File and position by descriptor, in the last sample.
    positions: BTreeMap<u64, (Inode, u64)>,
    /// Number of samples taken.
    samples_taken: u64,
    /// True if the process has more than [`FILES_MAX`] files, so that some are not sampled.
    has_untracked_files: bool,
    /// Time of the next sample.
    due: Instant,
}

/// Result of the samples of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// Duration in seconds.
    pub seconds: f64,
    /// Number of samples.
    pub looks: u64,
    /// Increase of the kernel's counters of the process over this time. The counters include the
    /// children that it has waited for.
    pub counts: KernelCounts,
    /// Sampled files, ordered by the number of added pages, largest first.
    pub files: Vec<SampledFile>,
    /// True if further files were not sampled.
    pub has_more: bool,
}

/// Result of the samples of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledFile {
    /// Path of the file.
    pub path: String,
    /// Length in bytes when it was found.
    pub bytes: u64,
    /// True if it was mapped.
    pub is_mapped: bool,
    /// Forward movement of its descriptors' positions in bytes. A movement back counts as 0.
    pub moved_bytes: u64,
    /// Residency of the file. `None` where the kernel does not report it.
    pub cache: Option<SampledCache>,
}

/// Counts of a file's resident pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampledCache {
    /// Resident pages in the first sample.
    pub first_pages: u64,
    /// Resident pages in the last sample.
    pub last_pages: u64,
    /// Pages absent in one sample and resident in the next.
    pub added_pages: u64,
    /// Number of contiguous runs of these pages.
    pub added_runs: u64,
    /// Pages resident in one sample and absent in the next.
    pub removed_pages: u64,
}

/// A sampled file.
#[derive(Debug)]
struct TrackedFile {
    /// Sums of the samples so far.
    result: SampledFile,
    /// The open file and its residency. `None` where the kernel does not report it.
    last_sample: Option<(File, Vec<bool>)>,
}

/// Descriptors with one position, because dup(2) made them from one.
#[derive(Debug)]
struct PositionGroup {
    /// Numbers of the descriptors, at least one.
    descriptors: Vec<u64>,
    /// File and position of the last one.
    open: OpenFile,
}

impl Sampled {
    /// Starts to sample a process, with its first sample.
    ///
    /// # Errors
    /// The process does not exist or belongs to another user.
    pub fn start(process: u32) -> io::Result<Sampled> {
        let first = KernelCounts::of(process)?;
        let mut sampled = Sampled {
            process,
            system: System::new(),
            begun: Instant::now(),
            first,
            newest: first,
            files: BTreeMap::new(),
            positions: BTreeMap::new(),
            samples_taken: 0,
            has_untracked_files: false,
            due: Instant::now(),
        };

        sampled.take_sample();
        Ok(sampled)
    }

    /// Takes the next sample if it is due.
    pub fn sample_if_due(&mut self) {
        if Instant::now() >= self.due {
            self.take_sample();
        }
    }

    /// Returns true when the process has ended, even if it is still a zombie.
    pub fn is_over(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process)).unwrap_or_default();
        let state = proc_text::stat_fields(&stat).and_then(|mut fields| fields.next());
        matches!(state, None | Some("Z" | "X"))
    }

    /// Takes the last sample and returns the sums of all samples. Files with the most added pages
    /// come first, then files with the most moved bytes. Unreported residency counts as 0 pages.
    pub fn finish(mut self) -> Samples {
        self.take_sample();
        let mut files: Vec<SampledFile> =
            self.files.into_values().map(|file| file.result).collect();
        let added_pages = |file: &SampledFile| file.cache.map_or(0, |cache| cache.added_pages);
        files.sort_by_key(|file| std::cmp::Reverse((added_pages(file), file.moved_bytes)));
        Samples {
            seconds: self.begun.elapsed().as_secs_f64(),
            looks: self.samples_taken,
            counts: self.newest.since(self.first),
            files,
            has_more: self.has_untracked_files,
        }
    }

    /// Takes a sample of the counters and of all files, and sets the time of the next one.
    fn take_sample(&mut self) {
        let start = Instant::now();
        self.samples_taken += 1;
        // After the end of the process, its last counters stay.
        if let Ok(counts) = KernelCounts::of(self.process) {
            self.newest = counts;
        }
        // A new file is sampled when it is found. Known files come first, or a file found in this
        // sample would be sampled twice.
        self.files.values_mut().for_each(TrackedFile::sample);
        self.sample_descriptors();
        self.sample_mappings();
        self.due = Instant::now() + SAMPLE_INTERVAL_MIN.max(PAUSE_PER_SAMPLE * start.elapsed());
    }

    /// Samples the descriptors that are open for reading: finds new files and adds the forward
    /// movement of positions.
    fn sample_descriptors(&mut self) {
        let mut positions = BTreeMap::new();
        for PositionGroup { descriptors, open } in self.position_groups() {
            // A file opened since the last sample began at position 0. In the first sample it is
            // unknown which bytes before the position were read: they do not count.
            let mut known = descriptors.iter().filter_map(|number| self.positions.get(number));
            let previous = match known.find(|previous| previous.0 == open.inode) {
                Some(&(_, position)) => position,
                None if self.samples_taken > 1 => 0,
                None => open.position,
            };
            let path = format!("/proc/{}/fd/{}", self.process, descriptors[0]);
            if let Some(file) = self.tracked_file(open.inode, &path, open.named.path) {
                file.result.moved_bytes += open.position.saturating_sub(previous);
            }
            let current = (open.inode, open.position);
            positions.extend(descriptors.into_iter().map(|number| (number, current)));
        }
        self.positions = positions;
    }

    /// Groups the descriptors that are open for reading by their position.
    fn position_groups(&mut self) -> Vec<PositionGroup> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.process)).into_iter().flatten();
        let numbers =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // The groups of each file, in the order of the kernel.
        let mut files: BTreeMap<Inode, Vec<PositionGroup>> = BTreeMap::new();
        // Descriptors that the kernel does not compare.
        let mut alone = Vec::new();
        for descriptor in numbers.collect::<Vec<u64>>() {
            // Pipes, sockets and descriptors closed by now have no file.
            let Some(open) = self.system.open_file(self.process, descriptor) else { continue };
            if open.flags as i32 & libc::O_ACCMODE == libc::O_WRONLY {
                continue;
            }
            let groups = files.entry(open.inode).or_default();
            let (mut is_compared, wanted) = (true, (self.process, descriptor));
            let place = groups.binary_search_by(|group| {
                let order = compare_open_files((self.process, group.descriptors[0]), wanted);
                is_compared &= order.is_some();
                order.unwrap_or(Ordering::Less)
            });
            match place {
                Ok(index) => {
                    groups[index].descriptors.push(descriptor);
                    groups[index].open = open;
                }
                Err(index) => {
                    let group = PositionGroup { descriptors: vec![descriptor], open };
                    match is_compared {
                        true => groups.insert(index, group),
                        false => alone.push(group),
                    }
                }
            }
        }
        files.into_values().flatten().chain(alone).collect()
    }

    /// Marks the mapped files of the process, and finds new ones among them.
    fn sample_mappings(&mut self) {
        let maps = maps_text(self.process).unwrap_or_default();
        for (inode, path) in mapped_files(&maps) {
            if let Some(file) = self.tracked_file(inode, &path, path.clone()) {
                file.result.is_mapped = true;
            }
        }
    }

    /// Returns the state of the file with this inode. A new file is opened by `open_path`, a path
    /// as in a recording, and gets the path `name` in the result. `None` if `open_path` does not
    /// name this inode, or if there are too many files.
    fn tracked_file(
        &mut self,
        inode: Inode,
        open_path: &str,
        name: String,
    ) -> Option<&mut TrackedFile> {
        if !self.files.contains_key(&inode) {
            if self.files.len() >= FILES_MAX {
                self.has_untracked_files = true;
                return None;
            }
            let file = TrackedFile::open(&path_of_text(open_path), inode, name)?;
            self.files.insert(inode, file);
        }
        self.files.get_mut(&inode)
    }
}

impl TrackedFile {
    /// Opens a file by `open_path` and counts its resident pages. `path` is its name in the result.
    /// Returns `None` if `open_path` names no file or another inode. A file whose residency is
    /// hidden or cannot be read, as for a too large file, is kept without it.
    fn open(open_path: &Path, inode: Inode, path: String) -> Option<TrackedFile> {
        let metadata = fs::metadata(open_path).ok()?;
        if mounts::inode_at(open_path, &metadata) != inode {
            return None;
        }
        let mut tracked = TrackedFile {
            result: SampledFile {
                path,
                bytes: metadata.len(),
                is_mapped: false,
                moved_bytes: 0,
                cache: None,
            },
            last_sample: None,
        };
        if let Some(file) = open_if_residency_is_shown(open_path, inode)
            && let Some(residency) = page_residency(&file)
        {
            let pages = count_resident(&residency);
            let cache =
                SampledCache { first_pages: pages, last_pages: pages, ..Default::default() };
            tracked.result.cache = Some(cache);
            tracked.last_sample = Some((file, residency));
        }
        Some(tracked)
    }

    /// Counts the changes of the resident pages since the last sample. No effect on a file whose
    /// residency is not reported or cannot be read now.
    fn sample(&mut self) {
        let (Some((file, previous)), Some(cache)) = (&mut self.last_sample, &mut self.result.cache)
        else {
            return;
        };
        let Some(current) = page_residency(file) else { return };
        cache.count_changes(previous, &current);
        *previous = current;
    }
}

impl SampledCache {
    /// Adds the changes between two samples, one flag per page. Pages beyond the end of a sample
    /// count as absent.
    fn count_changes(&mut self, previous: &[bool], current: &[bool]) {
        let is_resident = |pages: &[bool], page: usize| pages.get(page).copied().unwrap_or(false);
        let mut was_added = false;
        for page in 0..previous.len().max(current.len()) {
            let (was, is) = (is_resident(previous, page), is_resident(current, page));
            let is_added = is && !was;
            self.added_pages += u64::from(is_added);
            self.added_runs += u64::from(is_added && !was_added);
            self.removed_pages += u64::from(was && !is);
            was_added = is_added;
        }
        self.last_pages = count_resident(current);
    }
}

/// Returns the number of resident pages, from one flag per page.
fn count_resident(residency: &[bool]) -> u64 {
    residency.iter().filter(|&&is_resident| is_resident).count() as u64
}

/// Opens a file of which the kernel shows this user the residency. `None` for other files, if the
/// path names another inode, and if the open fails.
pub(super) fn open_if_residency_is_shown(path: &Path, inode: Inode) -> Option<File> {
    let metadata = fs::metadata(path).ok()?;
    let is_accessible = metadata.uid() == rustix::process::geteuid().as_raw()
        || rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    if mounts::inode_at(path, &metadata) != inode || !is_accessible {
        return None;
    }
    // The open must not wait, as for a pipe that has replaced the file, or for a lease.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()
}

/// Returns one flag per page of a file from [`open_if_residency_is_shown`]: true if it is resident.
/// For other files the kernel would set all flags. `None` if the file cannot be mapped, or has more
/// than `FILE_PAGES_MAX` pages.
pub(super) fn page_residency(file: &File) -> Option<Vec<bool>> {
    let pages = file.metadata().ok()?.len().div_ceil(PAGE_BYTES);
    if pages > FILE_PAGES_MAX {
        return None;
    }
    let mut flags = Vec::with_capacity(pages as usize);
    while (flags.len() as u64) < pages {
        let window = PageRange::new(flags.len() as u64, WINDOW_PAGES).clipped(pages);
        flags.extend(residency_flags(file, window).ok()?);
    }
    Some(flags)
}

/// Returns inode and path of each file in a text of [`maps_text`], without files that have an
/// executable part.
pub(super) fn mapped_files(maps: &str) -> Vec<(Inode, String)> {
    // Path of each file, and true if one of its mappings is executable.
    let mut files: BTreeMap<Inode, (String, bool)> = BTreeMap::new();
    for line in maps.lines() {
        let Some((_, mapping, named)) = parse_mapping(line) else { continue };
        files.entry(mapping.inode).or_insert((named.path, false)).1 |= is_executable(line);
    }
    files.retain(|_, (_, is_program)| !*is_program);
    files.into_iter().map(|(inode, (path, _))| (inode, path)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn sampled_cache_counts_added_runs_and_evicted_pages() {
        let mut cache = SampledCache::default();
        let pages = |text: &str| text.chars().map(|page| page == '1').collect::<Vec<bool>>();
        cache.count_changes(&pages("1100000"), &pages("1011011"));
        let after = SampledCache {
            last_pages: 5,
            added_pages: 4,
            added_runs: 2,
            removed_pages: 1,
            first_pages: 0,
        };
        assert_eq!(cache, after);
        // The file grows by one resident page and is then truncated.
        cache.count_changes(&pages("1"), &pages("11"));
        cache.count_changes(&pages("11"), &pages("1"));
        assert_eq!((cache.added_pages, cache.added_runs, cache.removed_pages), (5, 3, 2));
    }

    #[test]
    fn mapped_files_exclude_executables() {
        let maps = "\
55d0-55d1 r--p 00000000 fd:02 11                         /usr/bin/program
55d1-55d2 r-xp 00001000 fd:02 11                         /usr/bin/program
7f00-7f10 r--s 00001000 fd:02 1234                       /a file
7f10-7f20 rw-p 00000000 00:00 0                          [heap]
7f20-7f30 rw-p 00000000 00:00 0 
";
        let inode = Inode { device: 0xfd << 20 | 2, number: 1234 };
        assert_eq!(mapped_files(maps), [(inode, "/a file".to_owned())]);
    }

    /// Creates a file of 100 pages without a name, with the position 0.
    fn unnamed_file(prefix: &str) -> File {
        let name = format!("{prefix}-{}", std::process::id());
        let path = std::env::current_exe().unwrap().with_file_name(name);
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(&vec![7; 100 * PAGE_BYTES as usize]).unwrap();
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
        file
    }

    /// Three descriptors share a position, one of them since the read of 50 pages. A fourth one of
    /// the same file has its own position, for 10 pages. By hand: 60 pages.
    #[test]
    fn movement_of_duplicated_descriptors_counts_once() {
        let mut file = unnamed_file("duplicated");
        let duplicate = file.try_clone().unwrap();
        let [left, right] =
            [&file, &duplicate].map(|file| (std::process::id(), file.as_raw_fd() as u64));
        if compare_open_files(left, right).is_none() {
            return println!("skipped: the kernel compares no descriptors");
        }
        let mut other = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let mut sampled = Sampled::start(std::process::id()).unwrap();
        file.read_exact(&mut vec![0; 50 * PAGE_BYTES as usize]).unwrap();
        other.read_exact(&mut vec![0; 10 * PAGE_BYTES as usize]).unwrap();
        let _later = file.try_clone().unwrap();
        sampled.take_sample();
        let samples = sampled.finish();
        let found = samples.files.iter().find(|file| file.path.contains("duplicated-"));
        let found = found.expect("the file is open");
        assert_eq!(found.moved_bytes, 60 * PAGE_BYTES);
    }

    /// This process reads 50 consecutive pages of its own file. The position moves by as much, and
    /// the pages are resident.
    #[test]
    fn sampling_detects_the_reads_of_a_process() {
        let mut file = unnamed_file("sampled");
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut sampled = Sampled::start(std::process::id()).unwrap();
        let mut memory = vec![0; 50 * PAGE_BYTES as usize];
        file.read_exact(&mut memory).unwrap();

        sampled.take_sample();
        assert!(!sampled.is_over());
        let samples = sampled.finish();
        let is_test_file =
            |file: &&SampledFile| file.path.contains("sampled-") && file.bytes == 409_600;
        let found = samples.files.iter().find(is_test_file).expect("the file is open");
        assert_eq!(found.moved_bytes, 50 * PAGE_BYTES);
        assert!(samples.counts.reads >= 1 && samples.counts.bytes >= 50 * PAGE_BYTES);
        let cache = found.cache.expect("the file belongs to this user");
        if cache.first_pages > 0 {
            return println!("skipped: the file system keeps its pages");
        }
        assert!(cache.added_pages >= 50 && cache.last_pages == cache.added_pages, "{cache:?}");
        assert_eq!(cache.added_runs, 1);
    }
}
