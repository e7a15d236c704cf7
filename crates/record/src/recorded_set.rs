//! Pages that a recorded program read, brought into the page cache ahead of a later run.
//!
//! The pages keep the order of their first use. A *part* of them has few enough files to be open at
//! once. The ranges of a *batch* within it are sorted, so that the device gets fewer requests.
//! Several threads start the kernel's readahead, each for one *group* of ranges at a time, and wait
//! until the group has arrived. The device thus has few requests of this kind at once, and a read
//! of the program waits for few of them. Needs no privileges.

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::io_priority;
use readpath_trace::page_set::PageSet;
use readpath_trace::recording::Record;
use rustix::fs::{Advice, fadvise};

use crate::capture::path_of_text;
use crate::readahead_file::ReadaheadFile;

/// Number of ranges that are sorted together, chosen. A larger batch departs more from the order of
/// use.
const BATCH_RANGES: usize = 1024;
/// Largest range in pages that one readahead call gets, chosen: 512 KiB.
const RANGE_PAGES_MAX: u64 = 128;
/// Ranges of one group, chosen; together they have at most [`RANGE_PAGES_MAX`] pages.
const GROUP_RANGES_MAX: usize = 4;
/// Maximum number of files that are open at once. Half of the usual limit of a process, which is
/// 1,024.
const OPEN_FILES_MAX: usize = 512;
/// Number of threads, chosen, each with one group under way: up to 32 requests, and 4 MiB.
const THREADS: usize = 8;

/// Pages of one or several recordings, in the order of their first use.
#[derive(Debug, Default)]
pub struct RecordedSet {
    /// Files of all recordings, in the order of their first occurrence.
    files: Vec<RecordedFile>,
    /// Index of the file with each path.
    index_by_path: HashMap<PathBuf, usize>,
    /// Indexes of the files of the present recording, by its file numbers.
    index_by_number: HashMap<u32, usize>,
    /// Ranges of pages in the order of their first use.
    ranges: Vec<FileRange>,
}

/// Pages of a file of the set.
#[derive(Clone, Copy, Debug)]
struct FileRange {
    /// Index of the file.
    file: usize,
    /// Its pages.
    range: PageRange,
}

/// A file of the set, as the recording found it.
#[derive(Debug)]
struct RecordedFile {
    /// Absolute path.
    path: PathBuf,
    /// Inode number in the last recording that has the file. 0 if unknown.
    inode: u64,
    /// Length in bytes in that recording, if known.
    bytes: Option<u64>,
    /// Pages that are in the set.
    pages: PageSet,
}

/// Result of [`RecordedSet::bring_in`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BroughtIn {
    /// Number of bytes whose readahead was started.
    pub bytes: u64,
    /// Number of bytes that were in memory before.
    pub cached_bytes: u64,
    /// Number of bytes left out because of the limit.
    pub beyond_limit_bytes: u64,
    /// Number of bytes left out because of the end of the program.
    pub late_bytes: u64,
    /// Number of files with pages in the set.
    pub files: u64,
    /// Files with another inode or length than in the recording.
    pub changed: Vec<PathBuf>,
    /// Files that cannot be opened, with the reason.
    pub missing: Vec<(PathBuf, String)>,
}

impl RecordedSet {
    /// Begins the next recording, whose numbers of files are its own.
    pub fn begin_recording(&mut self) {
        self.index_by_number.clear();
    }

    /// Adds the pages of a record, if it is a read that returned bytes, or a page fault. The record
    /// of a file has the path for the file number of later records. Files without an absolute path
    /// are left out: they cannot be opened again.
    pub fn take(&mut self, record: &Record) {
        match record {
            Record::File(file) if file.path.starts_with('/') => {
                let path = path_of_text(&file.path);
                let index = *self.index_by_path.entry(path.clone()).or_insert_with(|| {
                    let (inode, bytes) = (file.inode, file.bytes);
                    self.files.push(RecordedFile { path, inode, bytes, pages: PageSet::default() });
                    self.files.len() - 1
                });
                // The last recording has the newest state.
                let known = &mut self.files[index];
                (known.inode, known.bytes) = (file.inode, file.bytes);
                self.index_by_number.insert(file.file, index);
            }
            Record::Read(read) if read.bytes_read() > 0 => {
                self.add_pages(read.file, PageRange::covering(read.offset, read.bytes_read()));
            }
            Record::Mapped(mapped) if mapped.bytes > 0 => {
                self.add_pages(mapped.file, PageRange::covering(mapped.offset, mapped.bytes));
            }
            _ => {}
        }
    }

    /// Adds the pages of a range that are not in the set yet. A file without a name record is
    /// ignored.
    fn add_pages(&mut self, file_number: u32, range: PageRange) {
        let Some(&index) = self.index_by_number.get(&file_number) else { return };
        for page in range.pages() {
            if self.files[index].pages.add(page, page + 1) == 0 {
                continue;
            }
            match self.ranges.last_mut() {
                Some(last)
                    if last.file == index
                        && last.range.end == page
                        && last.range.count() < RANGE_PAGES_MAX =>
                {
                    last.range.end += 1;
                }
                _ => self.ranges.push(FileRange { file: index, range: PageRange::new(page, 1) }),
            }
        }
    }

    /// True if the set has no page.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Brings the pages into the page cache. At most `bytes_max` bytes that are not there yet are
    /// read, and none after `is_over`: the program has ended. Files that have changed are left out.
    /// Returns after the last page has arrived.
    pub fn bring_in(&self, bytes_max: u64, is_over: &AtomicBool) -> BroughtIn {
        let mut result = BroughtIn::default();
        let mut is_examined = vec![false; self.files.len()];
        let counters = ByteCounters::default();
        for ranges in self.parts() {
            let opened_files = self.open_files(ranges, &mut is_examined, &mut result);
            let groups = range_groups(ranges, &opened_files);
            let next_group = AtomicUsize::new(0);
            let bring_in_groups = || {
                // The lowest of the usual priorities, for schedulers that have them.
                let (class, level) = (io_priority::BEST_EFFORT, io_priority::LEVEL_LAST);
                let _ = io_priority::set_of_thread(class, level);
                while let Some(group) = groups.get(next_group.fetch_add(1, Ordering::Relaxed)) {
                    counters.bring_in_group(group, &opened_files, bytes_max, is_over);
                }
            };
            std::thread::scope(|scope| {
                for _ in 1..THREADS {
                    // Without further threads, the others do all the work.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, bring_in_groups);
                }
                bring_in_groups();
            });
        }
        BroughtIn {
            bytes: counters.bytes.into_inner(),
            cached_bytes: counters.cached_bytes.into_inner(),
            beyond_limit_bytes: counters.beyond_bytes.into_inner(),
            late_bytes: counters.late_bytes.into_inner(),
            ..result
        }
    }

    /// Splits the ranges, in their order, into parts of at most [`OPEN_FILES_MAX`] files each.
    fn parts(&self) -> Vec<&[FileRange]> {
        let (mut parts, mut first) = (Vec::new(), 0);
        let mut files = HashSet::new();
        for (index, range) in self.ranges.iter().enumerate() {
            files.insert(range.file);
            if files.len() > OPEN_FILES_MAX {
                parts.push(&self.ranges[first..index]);
                (first, files) = (index, HashSet::from([range.file]));
            }
        }
        parts.push(&self.ranges[first..]);
        parts
    }

    /// Opens the files of ranges. A file that is examined for the first time is counted in
    /// `result`.
    fn open_files(
        &self,
        ranges: &[FileRange],
        is_examined: &mut [bool],
        result: &mut BroughtIn,
    ) -> OpenedFiles {
        let mut opened_files = OpenedFiles::new();
        for &FileRange { file, .. } in ranges {
            if opened_files.contains_key(&file) {
                continue;
            }
            let is_first = !std::mem::replace(&mut is_examined[file], true);
            result.files += u64::from(is_first);
            let path = &self.files[file].path;
            let opened = match self.files[file].open() {
                Ok(Some(opened)) => Some(opened),
                Ok(None) => {
                    result.changed.extend(is_first.then(|| path.clone()));
                    None
                }
                Err(error) => {
                    result.missing.extend(is_first.then(|| (path.clone(), error.to_string())));
                    None
                }
            };
            opened_files.insert(file, opened);
        }
        opened_files
    }
}

/// Files of a part of the set, by their indexes. `None`: changed or missing.
type OpenedFiles = HashMap<usize, Option<ReadaheadFile>>;

/// Numbers of bytes, as in [`BroughtIn`].
#[derive(Debug, Default)]
struct ByteCounters {
    bytes: AtomicU64,
    cached_bytes: AtomicU64,
    beyond_bytes: AtomicU64,
    late_bytes: AtomicU64,
}

impl ByteCounters {
    /// Brings in the ranges of a group that are not in memory, up to `bytes_max` bytes of all
    /// groups, and waits for them. A range that is partly in memory counts as absent. Only counts
    /// the bytes once `is_over` is true.
    fn bring_in_group(
        &self,
        group: &[FileRange],
        opened_files: &OpenedFiles,
        bytes_max: u64,
        is_over: &AtomicBool,
    ) {
        let mut started: Vec<(&ReadaheadFile, PageRange)> = Vec::with_capacity(group.len());
        for &FileRange { file, range } in group {
            let Some(Some(file)) = opened_files.get(&file) else { continue };
            let range_bytes = range.count() * PAGE_BYTES;
            let bytes = &self.bytes;
            let counter = if is_over.load(Ordering::Relaxed) {
                &self.late_bytes
            } else if file.cached_pages(range) == Some(range.count()) {
                &self.cached_bytes
            } else if bytes.fetch_add(range_bytes, Ordering::Relaxed) + range_bytes > bytes_max {
                // Added above, so that other threads see the sum at once.
                bytes.fetch_sub(range_bytes, Ordering::Relaxed);
                &self.beyond_bytes
            } else {
                // A refused readahead counts as well: the wait below reads its last page.
                file.read_ahead(range);
                started.push((file, range));
                continue;
            };
            counter.fetch_add(range_bytes, Ordering::Relaxed);
        }
        wait_for_arrival(&started);
    }
}

/// Returns groups of those `ranges` whose files are open, sorted within batches. Each group is read
/// at once by one thread.
fn range_groups(ranges: &[FileRange], opened_files: &OpenedFiles) -> Vec<Vec<FileRange>> {
    let is_opened = |pages: &&FileRange| opened_files.get(&pages.file).is_some_and(Option::is_some);
    let ranges: Vec<FileRange> = ranges.iter().filter(is_opened).copied().collect();
    let mut groups: Vec<Vec<FileRange>> = Vec::new();
    for batch in ranges.chunks(BATCH_RANGES) {
        for next in sorted_and_joined(batch) {
            let page_count =
                |group: &Vec<FileRange>| group.iter().map(|pages| pages.range.count()).sum::<u64>();
            match groups.last_mut() {
                Some(group)
                    if group.len() < GROUP_RANGES_MAX
                        && page_count(group) + next.range.count() <= RANGE_PAGES_MAX =>
                {
                    group.push(next);
                }
                _ => groups.push(vec![next]),
            }
        }
    }
    groups
}

/// Returns the ranges of a batch in the order of files and pages. Adjacent ranges are joined, up to
/// [`RANGE_PAGES_MAX`] pages.
fn sorted_and_joined(batch: &[FileRange]) -> Vec<FileRange> {
    let mut sorted = batch.to_vec();
    sorted.sort_by_key(|pages| (pages.file, pages.range.first));
    let mut joined_ranges: Vec<FileRange> = Vec::new();
    for next in sorted {
        match joined_ranges.last_mut() {
            Some(last)
                if last.file == next.file
                    && last.range.end == next.range.first
                    && last.range.count() + next.range.count() <= RANGE_PAGES_MAX =>
            {
                last.range.end = next.range.end;
            }
            _ => joined_ranges.push(next),
        }
    }
    joined_ranges
}

impl RecordedFile {
    /// Opens the file for readahead by these calls only. Returns `None` if its inode or length has
    /// changed since the recording, and the error of an open that failed.
    fn open(&self) -> io::Result<Option<ReadaheadFile>> {
        let is_unchanged = |metadata: &Metadata| {
            (self.inode == 0 || metadata.ino() == self.inode)
                && self.bytes.is_none_or(|bytes| metadata.len() == bytes)
        };
        let opened = ReadaheadFile::open(&self.path, is_unchanged)?;
        if let Some(opened) = &opened {
            // The read that waits for a page must bring in no other page.
            let _ = fadvise(opened.file(), 0, None, Advice::Random);
        }
        Ok(opened)
    }
}

/// Waits until the last page of each range has arrived, by a read of that page's first byte.
fn wait_for_arrival(started: &[(&ReadaheadFile, PageRange)]) {
    for (file, range) in started {
        // An error is the program's to report.
        let _ = file.file().read_at(&mut [0], (range.end - 1) * PAGE_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::{FileRecord, ReadOutcome, ReadRecord};

    use super::*;

    /// 600 files of a page each, with at most 900 descriptors for the whole process: 300 are open
    /// elsewhere.
    #[test]
    fn many_files_are_brought_in_with_few_descriptors() {
        let folder = std::env::temp_dir().join(format!("readpath-set-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut set = RecordedSet::default();
        for file in 0..600 {
            let path = folder.join(file.to_string());
            std::fs::write(&path, [1; 100]).unwrap();
            let path = path.to_str().unwrap().to_owned();
            set.take(&Record::File(FileRecord { file, path, ..FileRecord::default() }));
            let outcome = ReadOutcome::Bytes(100);
            set.take(&Record::Read(ReadRecord { file, outcome, ..ReadRecord::default() }));
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let few = rustix::process::Rlimit { current: Some(900), ..limit };
        let open: Vec<_> = (0..300).map(|_| std::fs::File::open(&folder).unwrap()).collect();
        rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
        let brought_in = set.bring_in(1 << 30, &AtomicBool::new(false));
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        drop(open);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((brought_in.files, brought_in.missing), (600, Vec::new()));
    }
}
