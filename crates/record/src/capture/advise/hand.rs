//! Access to another program's files: open, prefetch, count and evict pages.
//!
//! A file is opened for reading by one of three paths: the program's path, its descriptors in
//! `/proc`, or its mappings in `/proc`. Only the inode named by the kernel's events is accepted.
//! Reads through the file have one byte and do not wait. Some files cannot be opened, for example
//! on a FUSE file system restricted to its owner. If the program maps such a file,
//! `process_madvise(2)` advises the program's own mapping.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use readpath_core::readahead::ReadaheadLimits;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::proc_text;
use readpath_trace::page_set::PageSet;
use readpath_trace::recording::path_text;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::event::Inode;
use super::super::mounts;
use super::super::names::{parse_mapping, path_of_text};
use crate::readahead_file::{CALL_BYTES_MIN, ReadaheadFile, for_each_call};

/// A file that can be advised.
#[derive(Debug)]
pub(in crate::capture) struct AdviceTarget {
    /// Way to the pages of the file.
    access: TargetAccess,
    /// Number of pages that can be advised, from the start of the file.
    pages: u64,
    /// Pages that were prefetched or used, where the kernel reports no residency: it denies
    /// `cachestat(2)` for files that the user neither owns nor may write.
    known_present: Option<PageSet>,
}

/// Access to the pages of a target.
#[derive(Debug)]
enum TargetAccess {
    /// The file itself, opened for reading.
    Opened(ReadaheadFile),
    /// A program's mapping: its process, its first byte in the file, and its address.
    Mapped { process: OwnedFd, offset: u64, address: u64 },
}

impl AdviceTarget {
    /// Opens the file `inode` that a task reads: by its likely path `path`, by the task's
    /// descriptors, or through a mapping. Returns `None` if all of them fail.
    pub fn open_file_of_task(task: u32, inode: Inode, path: Option<&str>) -> Option<AdviceTarget> {
        let proc_folder = PathBuf::from(format!("/proc/{task}"));
        let likely_path = path.map(path_of_text).into_iter();
        // Links to the task's open and mapped files. Unreadable ones are left out.
        let links = ["fd", "map_files"].map(|name| fs::read_dir(proc_folder.join(name)));
        let links = links.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
        let opened = likely_path.chain(links).find_map(|path| open_inode(&path, inode));
        opened.or_else(|| largest_mapping(&proc_folder, inode))
    }

    /// Number of pages from the start of the file to its end, or to the end of its mapping.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Creates a target of `pages` pages. If the kernel reports no residency for the first page,
    /// the pages that are prefetched or used are recorded in `known_present` instead.
    fn new(access: TargetAccess, pages: u64) -> AdviceTarget {
        let mut target = AdviceTarget { access, pages, known_present: None };
        if target.cached_pages(PageRange::new(0, 1)).is_none() {
            target.known_present = Some(PageSet::default());
        }
        target
    }

    /// Number of absent pages in a range. Pages that were prefetched or used count as present
    /// if the kernel reports no residency of this file. If it does, and one call for the number
    /// fails, all pages of the range count as absent. At worst, resident pages are prefetched.
    pub fn absent_pages(&self, range: PageRange) -> u64 {
        let present = match &self.known_present {
            Some(known) => range.pages().filter(|page| known.has(*page)).count() as u64,
            None => self.cached_pages(range).unwrap_or(0),
        };
        range.count().saturating_sub(present)
    }

    /// Records that these pages were prefetched or used. Without effect if the kernel reports
    /// residency.
    pub fn record_present(&mut self, range: PageRange) {
        if let Some(known) = &mut self.known_present {
            known.add(range.first, range.end);
        }
    }

    /// Splits a range into parts with absent pages, each with the number of its absent pages. A
    /// part is wholly absent or at most as long as the kernel's readahead window. The order is
    /// ascending.
    pub fn absent_parts(&self, range: PageRange) -> Vec<(PageRange, u64)> {
        let (mut parts, mut unsplit) = (Vec::new(), vec![range]);
        while let Some(part) = unsplit.pop() {
            let absent = self.absent_pages(part);
            match absent {
                0 => {}
                _ if absent == part.count() || !is_large(part) => parts.push((part, absent)),
                _ => {
                    let middle = part.first + part.count() / 2;
                    // The lower half is next: the order stays ascending.
                    unsplit.push(PageRange { first: middle, ..part });
                    unsplit.push(part.clipped(middle));
                }
            }
        }
        parts
    }

    /// Returns the median of the absent pages in a range: the one that follows half of them,
    /// rounded down. Returns the first page of the range if none is absent.
    pub fn middle_absent_page(&self, range: PageRange) -> u64 {
        let parts = self.absent_parts(range);
        let runs: Vec<PageRange> =
            parts.iter().flat_map(|(part, absent)| self.absent_runs(*part, *absent)).collect();
        // Number of absent pages between the start of `run` and the median.
        let mut pages_to_median = runs.iter().map(|run| run.count()).sum::<u64>() / 2;
        for run in runs {
            if pages_to_median < run.count() {
                return run.first + pages_to_median;
            }
            pages_to_median -= run.count();
        }
        range.first
    }

    /// Returns the absent ranges within `part`, which has `absent` absent pages, by bisection. The
    /// order is ascending, and neighbouring ranges may touch.
    pub fn absent_runs(&self, part: PageRange, absent: u64) -> Vec<PageRange> {
        // `absent` comes from an earlier count, or from the difference of two. Pages arrive and
        // leave in between, so it can exceed the number of pages.
        if absent >= part.count() {
            return vec![part];
        }
        if absent == 0 {
            return Vec::new();
        }
        let middle = part.first + part.count() / 2;
        let below = part.clipped(middle);
        let absent_below = self.absent_pages(below);
        let above = PageRange { first: middle, ..part };
        let mut runs = self.absent_runs(below, absent_below.min(absent));
        runs.extend(self.absent_runs(above, absent.saturating_sub(absent_below)));
        runs
    }

    /// Number of resident pages in a range. `None` where the kernel reports no number.
    pub fn cached_pages(&self, range: PageRange) -> Option<u64> {
        let TargetAccess::Opened(file) = &self.access else { return None };
        file.cached_pages(range)
    }

    /// Returns true if the data of a page are in memory. `None` if that is not known.
    pub fn is_read(&self, page: u64) -> Option<bool> {
        let TargetAccess::Opened(file) = &self.access else { return None };
        file.is_read(page)
    }

    /// Starts to read these pages into the kernel page cache. Returns false if the kernel refuses,
    /// or if the pages begin before the mapping by which the file is advised. The parts before a
    /// refused one are read all the same.
    pub fn prefetch(&self, range: PageRange) -> bool {
        match &self.access {
            TargetAccess::Opened(file) => file.read_ahead(range),
            TargetAccess::Mapped { process, offset: mapping_offset, address } => {
                // Calls for parts that the kernel reads whole with its default readahead window,
                // until one returns false.
                for_each_call(range, CALL_BYTES_MIN, |offset, bytes| {
                    // The pages before the mapping have no address.
                    offset >= *mapping_offset
                        && advise_will_need(process, address + (offset - mapping_offset), bytes)
                })
            }
        }
    }

    /// Evicts these pages from the kernel page cache, except dirty and mapped pages. No effect on a
    /// file that is advised by its mapping. An empty range is left out, because the kernel takes a
    /// length of 0 for the rest of the file.
    pub fn evict(&self, range: PageRange) {
        if let (TargetAccess::Opened(file), Some(bytes)) =
            (&self.access, std::num::NonZero::new(range.count() * PAGE_BYTES))
        {
            let advice = rustix::fs::Advice::DontNeed;
            let _ = rustix::fs::fadvise(file.file(), range.first * PAGE_BYTES, Some(bytes), advice);
        }
    }
}

/// Returns true if the range is longer than the kernel's readahead window.
pub(super) fn is_large(range: PageRange) -> bool {
    range.count() > ReadaheadLimits::default().window_pages_max
}

/// Opens the file at a path. Returns `None` if that fails or if the path names another inode.
fn open_inode(path: &Path, inode: Inode) -> Option<AdviceTarget> {
    let has_inode = |found: &fs::Metadata| mounts::inode_at(path, found) == inode;
    let file = ReadaheadFile::open(path, has_inode).ok()??;
    let pages = file.pages();
    Some(AdviceTarget::new(TargetAccess::Opened(file), pages))
}

/// Returns the largest mapping of a file in a task. `folder` is the task's folder in `/proc`.
/// `None` if the task has no mapping of the file or has ended.
fn largest_mapping(folder: &Path, inode: Inode) -> Option<AdviceTarget> {
    let maps = path_text(&fs::read(folder.join("maps")).ok()?);
    let mappings = maps.lines().filter_map(parse_mapping);
    // Each one is its first address, the mapping with its end address, and the name of its file.
    let of_file = mappings.filter(|(_, mapping, _)| mapping.inode == inode);
    let (address, mapping, _) = of_file.max_by_key(|(first, mapping, _)| mapping.end - first)?;
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let process = proc_text::field(&status, "Tgid:")?.parse().ok()?;
    let pidfd = pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty());
    let (bytes, offset) = (mapping.end - address, mapping.offset);
    let mapped = TargetAccess::Mapped { process: pidfd.ok()?, offset, address };
    Some(AdviceTarget::new(mapped, (offset + bytes) / PAGE_BYTES))
}

/// Requests readahead of `bytes` bytes at `address` in the process of `pidfd`, by
/// `process_madvise(2)` with `MADV_WILLNEED`. Returns false if the kernel refuses. A partly
/// accepted range counts as success.
fn advise_will_need(pidfd: &OwnedFd, address: u64, bytes: u64) -> bool {
    let range = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes as usize };
    let (pidfd, advice) = (pidfd.as_raw_fd(), libc::MADV_WILLNEED);
    // SAFETY: the kernel reads only `range`, which names memory of another process.
    let advised = unsafe { libc::syscall(libc::SYS_process_madvise, pidfd, &range, 1, advice, 0) };
    advised >= 0
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use readpath_os::page_cache::resident_pages;
    use std::fs::{File, OpenOptions};

    /// Creates a file of 1 MiB without resident pages.
    fn create_cold_file(name: &str) -> (PathBuf, File, Inode) {
        let name = format!("hand-{name}-{}", std::process::id());
        let path = std::env::current_exe().unwrap().with_file_name(path_of_text(&name));
        let mut file = OpenOptions::new();
        let mut file = file.read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let found = file.metadata().unwrap();
        let inode = mounts::inode_at(&path, &found);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        (path, file, inode)
    }

    /// Pages of the file, and a part of them.
    const ALL: PageRange = PageRange { first: 0, end: 256 };
    const PART: PageRange = PageRange { first: 64, end: 128 };

    /// The kernel's count of resident pages shows the effect of each call. By hand: of pages 60 to
    /// 129, four before and two after the prefetched part are absent.
    #[test]
    fn pages_of_an_unlinked_file_can_be_prefetched_and_evicted() {
        let (path, file, inode) = create_cold_file("opened");
        let by_path = AdviceTarget::open_file_of_task(std::process::id(), inode, path.to_str());
        fs::remove_file(&path).unwrap();
        let by_descriptor =
            AdviceTarget::open_file_of_task(std::process::id(), inode, path.to_str());
        for target in [by_path, by_descriptor] {
            let target = target.expect("the test has the file open");
            assert_eq!(target.pages(), 256);
            if resident_pages(&file, 0, 0).is_ok_and(|cached| cached != 0) {
                return println!("skipped: the file system keeps its pages");
            }
            assert!(target.prefetch(PART));
            assert_eq!((target.cached_pages(PART), target.absent_pages(ALL)), (Some(64), 192));
            let around = PageRange { first: 60, end: 130 };
            let absent: Vec<PageRange> = target.absent_runs(around, 6);
            assert_eq!(absent.iter().map(|run| run.count()).sum::<u64>(), 6);
            assert!(absent.iter().all(|run| run.end <= 64 || run.first >= 128), "{absent:?}");
            // Pages with I/O in flight cannot be evicted.
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut [0; 64 * 4096], 64 * 4096)
                .unwrap();
            target.evict(ALL);
            assert_eq!(target.cached_pages(ALL), Some(0));
        }
    }

    /// `é` in Latin-1 is the byte E9, which is not UTF-8. No process has the file open.
    #[test]
    fn closed_file_with_a_name_outside_of_utf8_is_opened_by_its_path() {
        let (path, file, inode) = create_cold_file("caf\u{10ffe9}");
        drop(file);
        let text = format!(
            "{}/hand-caf\u{10ffe9}-{}",
            path.parent().unwrap().display(),
            std::process::id()
        );
        let target = AdviceTarget::open_file_of_task(std::process::id(), inode, Some(&text));
        fs::remove_file(&path).unwrap();
        assert!(path.as_os_str().as_encoded_bytes().contains(&0xe9), "{path:?}");
        assert_eq!(target.expect("a file at this path").pages(), 256);
    }

    /// The file has no path, and the target no descriptor. Through a mapping the kernel reports no
    /// residency.
    #[test]
    fn unopenable_file_is_prefetched_through_its_mapping() {
        let (path, file, inode) = create_cold_file("mapped");
        fs::remove_file(&path).unwrap();
        let (bytes, protection) = (1 << 20, rustix::mm::ProtFlags::READ);
        let flags = rustix::mm::MapFlags::SHARED;
        // SAFETY: new memory at an address chosen by the kernel. It is never accessed.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0).unwrap()
        };
        let target =
            largest_mapping(Path::new("/proc/self"), inode).expect("the test has mapped the file");
        assert_eq!((target.pages(), target.cached_pages(PART)), (256, None));
        if resident_pages(&file, 0, 0).is_ok_and(|cached| cached == 0) {
            assert!(target.prefetch(PART));
            assert_eq!(resident_pages(&file, 64 * 4096, 64 * 4096).unwrap(), 64);
            assert_eq!(resident_pages(&file, 0, 0).unwrap(), 64);
        }
        // SAFETY: the mapping was made above and has no references.
        unsafe { rustix::mm::munmap(address, bytes).unwrap() };
    }
}
