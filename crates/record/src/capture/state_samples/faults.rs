//! Page faults of mapped files, sampled without root.
//!
//! A sample compares the resident pages of each mapped file with the pages resident before
//! (mincore(2)). The pages that arrived in the interval, the number of major faults and the time of
//! threads in faults are known for all files together. The pages are divided into at least as many
//! ranges as there were faults, of one readahead window at most. The largest ranges, one for each
//! fault, and all whole windows share the time equally. A thread that waits for a window in flight
//! has no major fault. The used pages of a range, and the order of the ranges within an interval,
//! are not known.
//!
//! The kernel reports residency only to the file's owner and to users with write permission. For
//! other files the pages that appear in the page table of the process take its place: the touched
//! pages and their neighbours. Pages that other programs read at the same time are included.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::proc_text;

use super::super::event::Inode;
use super::super::names::{FileNames, NamedFile, System, maps_text, open_page_table, path_of_text};
use super::super::now_ns;
use super::super::sampled::{mapped_files, open_if_residency_is_shown, page_residency};
use super::call_faults::MAJOR_FAULTS;
use super::page_tables::{LookScope, MappingPages, add_page, file_mappings, has_memory};
use super::spread;

/// Minimum pause between two samples, chosen.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Pause after a sample as a multiple of its duration: a twentieth of the time is sampling.
const PAUSE_PER_SAMPLE: u32 = 19;
/// Period of the search for mapped files while no thread is in a fault. Otherwise every sample
/// searches.
const SEARCH_PERIOD: Duration = Duration::from_millis(50);
/// The kernel's default readahead window, 128 KiB.
const DEFAULT_WINDOW_PAGES: u64 = 32;
/// Maximum number of pages, chosen, of a mapping without residency (64 GiB).
const FILE_PAGES_MAX: u64 = 1 << 24;
/// Maximum number of mapped files that are sampled, chosen. Further ones are left out.
const FILES_MAX: usize = 64;

/// A range of pages that a page fault brought into the page cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct SampledFault {
    /// Process that maps the file.
    pub process: u32,
    /// The file.
    pub inode: Inode,
    /// Its path and length.
    pub named: NamedFile,
    /// The pages.
    pub range: PageRange,
    /// Estimated start by the monotonic clock.
    pub begin_ns: u64,
    /// Estimated end by the monotonic clock.
    pub end_ns: u64,
}

/// The mapped files of the recorded processes.
#[derive(Debug)]
pub(super) struct FaultSamples {
    /// Source of the readahead windows of disks.
    system: System,
    /// Mapped files found so far.
    files: BTreeMap<Inode, MappedFile>,
    /// Number of major faults of each process at the last sample.
    major_faults: BTreeMap<u32, u64>,
    /// Time of the last sample by the monotonic clock.
    last_ns: u64,
    /// Time of the next sample.
    next_sample: Instant,
    /// Time of the last search for mapped files. `None` before the first.
    last_search: Option<Instant>,
    /// Receives the faults.
    faults: Sender<SampledFault>,
}

/// A mapped file.
#[derive(Debug)]
struct MappedFile {
    /// Process in which it was found first.
    process: u32,
    /// Its path and length.
    named: NamedFile,
    /// Size of the kernel's readahead window for the file, in pages.
    window_pages: u64,
    /// Source of the pages that faults bring in.
    pages: PageSource,
}

/// Source of the pages that faults bring in.
#[derive(Debug)]
enum PageSource {
    /// Resident pages of the file: one flag per page, true if it was resident at the last look.
    Residency { file: File, residency: Vec<bool> },
    /// Pages in the page table of the process, for a file whose residency is not shown.
    PageTable { page_table: File, mappings: Vec<MappingPages> },
}

impl FaultSamples {
    /// Prepares samples without files. Faults are sent to `faults`.
    pub fn new(faults: Sender<SampledFault>) -> FaultSamples {
        FaultSamples {
            system: System::new(),
            files: BTreeMap::new(),
            major_faults: BTreeMap::new(),
            last_ns: now_ns(),
            next_sample: Instant::now(),
            last_search: None,
            faults,
        }
    }

    /// Takes a sample of the processes if it is due, and sends the faults since the last one.
    /// `fault_ns`: time of threads in faults since then; a sample takes it.
    pub fn sample_if_due(&mut self, processes: impl Iterator<Item = u32>, fault_ns: &mut u64) {
        let begin = Instant::now();
        if begin < self.next_sample {
            return;
        }
        let processes: Vec<u32> = processes.collect();
        let fault_ns = std::mem::take(fault_ns);
        self.sample(&processes, fault_ns);
        // A file that is found now is compared from the next sample on.
        let is_recent = |last_search: Instant| last_search.elapsed() < SEARCH_PERIOD;
        if fault_ns > 0 || !self.last_search.is_some_and(is_recent) {
            self.last_search = Some(begin);
            self.search(&processes);
        }
        let end = Instant::now();
        self.next_sample = end + PAUSE_MIN.max((end - begin) * PAUSE_PER_SAMPLE);
    }

    /// Adds the files that the processes have mapped since the last search, at most [`FILES_MAX`]
    /// in all. A file in the page table of an ended program is removed before, and added again if
    /// another process has mapped it.
    fn search(&mut self, processes: &[u32]) {
        self.files.retain(|_, file| file.pages.is_readable());
        for &process in processes {
            let maps = maps_text(process).unwrap_or_default();
            for (inode, path) in mapped_files(&maps) {
                if self.files.len() >= FILES_MAX || self.files.contains_key(&inode) {
                    continue;
                }
                let real_path = path_of_text(&path);
                let Some(pages) = PageSource::of_file(process, inode, &real_path) else {
                    continue;
                };
                let bytes = fs::metadata(&real_path).ok().map(|metadata| metadata.len());
                let named = NamedFile { path, bytes };
                let window_bytes = self.system.disk(inode.device).readahead_bytes;
                // A file system without a device has the kernel's default.
                let window_pages = match window_bytes / PAGE_BYTES {
                    0 => DEFAULT_WINDOW_PAGES,
                    pages => pages,
                };
                self.files.insert(inode, MappedFile { process, named, window_pages, pages });
            }
        }
    }

    /// Takes a sample: the pages that entered the page cache since the last one. Divides them into
    /// ranges, and sends the largest ones as faults: one for each major fault, and all whole
    /// windows. `fault_ns` is the time that threads spent in faults. The sent ranges share it
    /// equally, and their ends are spread evenly over the interval. Without it, or without new
    /// pages, no fault is sent.
    fn sample(&mut self, processes: &[u32], fault_ns: u64) {
        // The counts of faults and the resident pages are renewed even if no fault is sent below.
        let counted: BTreeMap<u32, u64> = processes
            .iter()
            .filter_map(|&process| Some((process, major_faults(process)?)))
            .collect();
        // A process without an earlier count has no new faults.
        let new_faults = |(process, count): (&u32, &u64)| {
            count - self.major_faults.get(process).unwrap_or(count).min(count)
        };
        let fault_count: u64 = counted.iter().map(new_faults).sum();
        self.major_faults = counted;
        let now_ns = now_ns();
        let interval = (std::mem::replace(&mut self.last_ns, now_ns), now_ns);
        let mut added: Vec<(Inode, PageRange)> = Vec::new();
        for (&inode, file) in &mut self.files {
            added.extend(file.pages.added().into_iter().map(|range| (inode, range)));
        }
        // No thread waited: readahead brought the pages in time.
        if fault_ns == 0 {
            return;
        }
        // A thread that waits for a window in flight has no major fault, and waits for one range.
        let fault_count = fault_count.max(1);
        let pages: u64 = added.iter().map(|(_, range)| range.count()).sum();
        let pages_per_fault = pages.div_ceil(fault_count).max(1);
        // A part of more than half a window counts as a whole one.
        let mut parts = Vec::new();
        let mut window_count = 0;
        for (inode, range) in added {
            let window_pages = self.files[&inode].window_pages;
            let divided = divide(range, pages_per_fault.min(window_pages));
            window_count += divided.iter().filter(|part| 2 * part.count() > window_pages).count();
            parts.extend(divided.into_iter().map(|part| (inode, part)));
        }
        let parts = largest(parts, window_count.max(fault_count as usize));
        let count = parts.len() as u32;
        for (index, (inode, range)) in (0..).zip(parts) {
            let file = &self.files[&inode];
            let end_ns = spread(interval, index, count);
            let fault = SampledFault {
                process: file.process,
                inode,
                named: file.named.clone(),
                range,
                begin_ns: end_ns.saturating_sub(fault_ns / u64::from(count)),
                end_ns,
            };
            // The receiver ends after the sender.
            let _ = self.faults.send(fault);
        }
    }
}

impl PageSource {
    /// Source of a file that a process maps, with its present pages as the first look: the
    /// residency where it is shown, else the page table. `None` if that one cannot be read, or if
    /// the file is too large for a look at its residency. Without residency, mappings of more than
    /// [`FILE_PAGES_MAX`] pages are left out.
    fn of_file(process: u32, inode: Inode, path: &Path) -> Option<PageSource> {
        if let Some(file) = open_if_residency_is_shown(path, inode) {
            let residency = page_residency(&file)?;
            return Some(PageSource::Residency { file, residency });
        }
        let page_table = open_page_table(process)?;
        let mut mappings = file_mappings(process, FILE_PAGES_MAX);
        mappings.retain(|mapping| mapping.inode == inode);
        let mut source = PageSource::PageTable { page_table, mappings };
        // The pages that are mapped now count as seen: later looks return only further ones.
        source.added();
        Some(source)
    }

    /// False for the page table of memory that has ended with its process or a call of execve.
    fn is_readable(&self) -> bool {
        match self {
            PageSource::Residency { .. } => true,
            PageSource::PageTable { page_table, .. } => has_memory(page_table),
        }
    }

    /// Ranges of pages that have arrived since the last look. Empty if they cannot be read now.
    fn added(&mut self) -> Vec<PageRange> {
        match self {
            PageSource::Residency { file, residency } => {
                let Some(current) = page_residency(file) else { return Vec::new() };
                let added = added_ranges(residency, &current);
                *residency = current;
                added
            }
            PageSource::PageTable { page_table, mappings } => {
                let added =
                    |mapping: &mut MappingPages| mapping.newly_mapped(page_table, LookScope::All);
                mappings.iter_mut().flat_map(added).collect()
            }
        }
    }
}

/// Number of major faults of a process. `None` if it has ended.
fn major_faults(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    proc_text::stat_fields(&stat)?.nth(MAJOR_FAULTS)?.parse().ok()
}

/// Contiguous ranges of pages that are resident now and were not before.
fn added_ranges(previous: &[bool], current: &[bool]) -> Vec<PageRange> {
    let mut ranges: Vec<PageRange> = Vec::new();
    for (page, &is_resident) in (0..).zip(current) {
        let was_resident = previous.get(page as usize).copied().unwrap_or(false);
        if !is_resident || was_resident {
            continue;
        }
        add_page(&mut ranges, page);
    }
    ranges
}

/// Divides a range into parts of at most `pages_max` pages (at least 1), of nearly equal size.
fn divide(range: PageRange, pages_max: u64) -> Vec<PageRange> {
    let parts = range.count().div_ceil(pages_max);
    let bound = |part: u64| range.first + range.count() * part / parts;
    (0..parts).map(|part| PageRange { first: bound(part), end: bound(part + 1) }).collect()
}

/// The `count` largest ranges, in their former order.
fn largest(ranges: Vec<(Inode, PageRange)>, count: usize) -> Vec<(Inode, PageRange)> {
    let mut by_size: Vec<usize> = (0..ranges.len()).collect();
    by_size.sort_by_key(|&index| std::cmp::Reverse(ranges[index].1.count()));
    by_size.truncate(count);
    by_size.sort_unstable();
    by_size.into_iter().map(|index| ranges[index]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Vec<bool> {
        text.chars().map(|page| page == '1').collect()
    }

    /// Pages 1 and 2 arrive together, page 5 alone, page 6 in a file that has grown.
    #[test]
    fn added_pages_are_joined_to_ranges() {
        let ranges = added_ranges(&flags("100010"), &flags("1110111"));
        let expected = [PageRange::new(1, 2), PageRange::new(5, 2)];
        assert_eq!(ranges, expected);
    }

    /// 100 pages by three faults: 34 pages at most, so three parts.
    #[test]
    fn ranges_are_divided_into_nearly_equal_parts() {
        let parts = divide(PageRange::new(10, 100), 34);
        let sizes: Vec<u64> = parts.iter().map(|part| part.count()).collect();
        assert_eq!(sizes, [33, 33, 34]);
        assert_eq!((parts[0].first, parts[2].end), (10, 110));
    }

    /// Two faults: readahead brought in the single page.
    #[test]
    fn largest_ranges_keep_their_order() {
        let range = |first, count| (Inode::default(), PageRange::new(first, count));
        let ranges = vec![range(8, 16), range(30, 1), range(40, 32)];
        assert_eq!(largest(ranges, 2), [range(8, 16), range(40, 32)]);
    }

    /// The process that mapped a file has ended. Its page table shows no page any more.
    #[test]
    fn file_of_an_ended_process_is_searched_again() {
        // Its first byte comes after its execve. Before, it has the memory of this process.
        let mut program = std::process::Command::new("sh")
            .args(["-c", "echo; read line"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(program.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let (sender, _faults) = std::sync::mpsc::channel();
        let mut samples = FaultSamples::new(sender);
        let (process, page_table) = (program.id(), open_page_table(program.id()).unwrap());
        let pages = PageSource::PageTable { page_table, mappings: Vec::new() };
        let named = NamedFile { path: String::new(), bytes: None };
        let file = MappedFile { process, named, window_pages: DEFAULT_WINDOW_PAGES, pages };
        samples.files.insert(Inode::default(), file);
        samples.search(&[]);
        let is_kept = samples.files.len() == 1;
        program.kill().unwrap();
        program.wait().unwrap();
        samples.search(&[]);
        assert!(is_kept && samples.files.is_empty());
    }

    #[test]
    fn own_major_faults_are_known() {
        assert!(major_faults(std::process::id()).is_some());
        assert_eq!(major_faults(u32::MAX), None);
    }
}
