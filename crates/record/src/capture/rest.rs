//! Rest of the tracing while a program uses short files only.
//!
//! A *short* file has at most one readahead window of the kernel, which fetches it as a whole
//! anyway. The events of its open, read and close take as long as a part of the read. After
//! [`MISSED_FILES_MAX`] short files with absent pages, or [`OPENED_FILES_MAX`] opened ones, an
//! advised recorder *rests*: the kernel reports no events and no opens. The recorder samples the
//! open files and the mappings of the program instead. It traces again once two samples in a row
//! have seen a file with [`ABSENT_PAGES_MIN`] absent pages. Reads of that file up to then get no
//! advice. A file in use since the begin of the rest may be only held open. It counts once it is
//! read: the number of its absent pages has fallen.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::proc_text;

use super::advise::AdviceTarget;
use super::event::Inode;
use super::names::{is_executable, maps_text, parse_mapping};
use super::submitted::Submissions;
use super::tracing::ALL_EVENTS;
use super::{Recorder, group, is_initial_pid_namespace, mounts};

/// Minimum pause between two samples. A file that is read within two of them is gone before its
/// advice.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// Time as a multiple of the samples' own time: samples take a fiftieth of a processor.
const TIME_PER_SAMPLE: u32 = 50;

/// Minimum number of absent pages (4 MiB) of a file that ends a rest. Fewer pages are read before
/// the tracing has begun, which takes the kernel some 0.1 s.
const ABSENT_PAGES_MIN: u64 = 1024;

/// Minimum length in bytes of such a file.
const LONG_BYTES_MIN: u64 = ABSENT_PAGES_MIN * PAGE_BYTES;

/// Number of short files with absent pages, without a read of an advised file between them, after
/// which the tracing rests. Chosen: more than an interpreter's own at its start.
const MISSED_FILES_MAX: u64 = 256;

/// Number of opens of short files, also of files in memory, after which the tracing rests. Chosen.
const OPENED_FILES_MAX: u64 = 2048;

/// First minimum duration of a rest after a trace that prefetched nothing. It doubles each time.
const REST_MIN: Duration = Duration::from_millis(250);

/// Maximum of this duration.
const REST_MAX: Duration = Duration::from_secs(4);

/// State of a recorder that rests while no file can be advised.
#[derive(Debug)]
pub(super) struct Rest {
    /// Long files of the last sample.
    long_files: BTreeSet<LongFile>,
    /// Files in use since the begin of the rest, with their largest numbers of absent pages since.
    held_files: BTreeMap<Inode, u64>,
    /// Numbers of file systems without storage.
    without_storage: HashSet<u64>,
    /// Time of the next sample. `None` while the recorder traces.
    next_sample: Option<Instant>,
    /// Minimum duration of the next rest.
    rest_min: Duration,
    /// Bytes prefetched up to the last rest.
    prefetched_bytes: u64,
    /// Counts of short files up to the last read of an advised file, or up to the last rest.
    counted: ShortFiles,
    /// Time of the last read of an advised file when these were taken.
    last_read_ns: u64,
}

/// Counts of short files since the start of the recorder.
#[derive(Clone, Copy, Debug, Default)]
struct ShortFiles {
    /// Files with absent pages.
    missed: u64,
    /// Opens.
    opened: u64,
}

impl Recorder {
    /// Rests from now on while the program uses short files only. For a program attached by
    /// [`attach_program`](Recorder::attach_program), without a recording that is kept.
    pub fn rest_at_short_files(&mut self) {
        let mountinfo = mounts::mountinfo();
        let mut without_storage = mounts::without_storage(&mountinfo);
        without_storage.extend(mounts::in_memory(&mountinfo));
        self.rest = Some(Rest {
            long_files: BTreeSet::new(),
            held_files: BTreeMap::new(),
            without_storage,
            next_sample: None,
            rest_min: Duration::ZERO,
            prefetched_bytes: 0,
            counted: ShortFiles::default(),
            last_read_ns: 0,
        });
    }

    /// True while no events are reported.
    pub(super) fn is_resting(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.next_sample.is_some())
    }

    /// Begins a rest: ends the events and the reports of opened files, and notes the files in use.
    /// The recorded tasks are forgotten. Fails if the kernel refuses.
    fn begin_rest(&mut self) -> io::Result<()> {
        self.set_tracing("0")?;
        // Events that stay in the buffers would be processed after the rest.
        self.read_task_events(ALL_EVENTS)?;
        self.read_global_events(ALL_EVENTS)?;
        self.tracing.submissions.iter_mut().for_each(Submissions::pause);
        self.tracker.names().pause_reports();
        self.events.clear();
        self.tracker.forget_tasks();
        let long_files = self.program.map(|program| self.long_files_of(program));
        let held = long_files.into_iter().flatten();
        let held_files =
            held.map(|(process, inode)| (inode, absent_pages(&(process, inode)))).collect();
        let prefetched_bytes = self.advisor.as_ref().map_or(0, |it| it.prefetched_bytes());
        let Some(rest) = &mut self.rest else { return Ok(()) };
        // The tracing since the last rest was of use, so this rest may be short again.
        if prefetched_bytes > rest.prefetched_bytes {
            rest.rest_min = Duration::ZERO;
        }
        rest.prefetched_bytes = prefetched_bytes;
        rest.long_files.clear();
        rest.held_files = held_files;
        rest.next_sample = Some(Instant::now() + rest.rest_min);
        rest.rest_min = (rest.rest_min * 2).clamp(REST_MIN, REST_MAX);
        Ok(())
    }

    /// Samples the files of the program if that is due, and ends the rest when a file can be
    /// advised. Fails if the kernel refuses.
    pub(super) fn sample_at_rest(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        let due = self.rest.as_ref().and_then(|rest| rest.next_sample);
        let (Some(program), Some(due)) = (self.program, due) else { return Ok(()) };
        if begin < due {
            return Ok(());
        }
        let long_files = self.long_files_of(program);
        let Some(rest) = &mut self.rest else { return Ok(()) };
        // The files of this sample and of the last one: each once, also with several processes that
        // use it.
        let mut sampled = BTreeSet::new();
        let in_both = long_files.intersection(&rest.long_files);
        let new_in_both = in_both.filter(|(_, inode)| sampled.insert(*inode));
        let mut ending = new_in_both.filter(|file| {
            let &&(_, inode) = file;
            ends_rest(&mut rest.held_files, inode, absent_pages(file))
        });
        // Ends at the first such file.
        let must_end = ending.next().is_some();
        rest.long_files = long_files;
        let pause = SAMPLE_INTERVAL.max(begin.elapsed() * TIME_PER_SAMPLE);
        rest.next_sample = Some(begin + pause);
        if must_end {
            rest.next_sample = None;
            self.tracker.names().resume_reports();
            self.tracing.submissions.iter_mut().for_each(Submissions::resume);
            self.set_tracing("1")?;
            self.attach_with_descendants(program)?;
            self.attach_processes(&self.listed_processes())?;
        }
        Ok(())
    }

    /// Processes in the kernel's list without this one, also the ones whose parent has ended. The
    /// kernel adds children during a rest too. Its numbers are of the initial PID namespace. Empty
    /// in another one, or if the list cannot be read.
    fn listed_processes(&self) -> Vec<u32> {
        if !is_initial_pid_namespace() {
            return Vec::new();
        }
        let listed = self.kernel_list().unwrap_or_default();
        let processes = listed.into_iter().filter_map(group::process_of);
        let others = processes.filter(|process| *process != std::process::id());
        others.collect::<BTreeSet<u32>>().into_iter().collect()
    }

    /// Long files with storage that the program's processes have open for reading or mapped. Mapped
    /// programs and libraries are left out.
    fn long_files_of(&self, program: u32) -> BTreeSet<LongFile> {
        let Some(rest) = &self.rest else { return BTreeSet::new() };
        let processes = group::with_descendants(program).into_iter();
        let mut found = BTreeSet::new();
        for process in processes.chain(self.listed_processes()).collect::<BTreeSet<u32>>() {
            let used = open_long_files(process).into_iter().chain(mapped_long_files(process));
            let stored = used.filter(|inode| !rest.without_storage.contains(&inode.device));
            found.extend(stored.map(|inode| (process, inode)));
        }
        found
    }

    /// Begins a rest after many short files without a read of an advised file. No effect during a
    /// rest, and on a recorder that never rests or has no advisor. Fails if the kernel refuses.
    pub(super) fn rest_if_short(&mut self) -> io::Result<()> {
        let (Some(rest), Some(advisor)) = (&mut self.rest, &self.advisor) else { return Ok(()) };
        let opened = self.tracker.names().short_opens();
        let now = ShortFiles { missed: advisor.short_files(), opened };
        if advisor.last_read_ns() > rest.last_read_ns {
            (rest.counted, rest.last_read_ns) = (now, advisor.last_read_ns());
        }
        let is_short = now.missed >= rest.counted.missed + MISSED_FILES_MAX
            || now.opened >= rest.counted.opened + OPENED_FILES_MAX;
        if rest.next_sample.is_none() && is_short {
            rest.counted = now;
            return self.begin_rest();
        }
        Ok(())
    }

    /// Writes the switch of both instances. Fails if the kernel refuses.
    fn set_tracing(&self, switch: &str) -> io::Result<()> {
        [&self.tracing.tasks, &self.tracing.system]
            .into_iter()
            .try_for_each(|it| it.instance.write("tracing_on", switch).map_err(io::Error::other))
    }
}

/// Long file in use: a process that uses it, and its identity.
type LongFile = (u32, Inode);

/// Number of pages of the file that are not in the kernel page cache. 0 for a file that cannot be
/// opened: it gets no advice, and ends no rest.
fn absent_pages(&(process, inode): &LongFile) -> u64 {
    let target = AdviceTarget::open_file_of_task(process, inode, None);
    target.map_or(0, |it| it.absent_pages(PageRange::new(0, it.pages())))
}

/// True if a file with this number of absent pages ends the rest. `held`: the files in use since
/// its begin, with their largest numbers so far, which the call updates. The number of a file that
/// is read falls. A file that is not among them has come into use since, and counts as read.
fn ends_rest(held: &mut BTreeMap<Inode, u64>, inode: Inode, absent_pages: u64) -> bool {
    let is_read = held.get_mut(&inode).is_none_or(|largest| {
        let is_read = absent_pages < *largest;
        *largest = absent_pages.max(*largest);
        is_read
    });
    is_read && absent_pages >= ABSENT_PAGES_MIN
}

/// Long regular files that a process has open for reading.
fn open_long_files(process: u32) -> Vec<Inode> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let long_file = |entry: fs::DirEntry| {
        let path = entry.path();
        let metadata = fs::metadata(&path).ok()?;
        let is_long = metadata.is_file() && metadata.size() >= LONG_BYTES_MIN;
        let number = entry.file_name().into_string().ok().filter(|_| is_long)?;
        let fdinfo = fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).ok()?;
        let flags = u32::from_str_radix(proc_text::field(&fdinfo, "flags:")?, 8).ok()?;
        let is_read = flags & libc::O_ACCMODE as u32 != libc::O_WRONLY as u32;
        is_read.then(|| mounts::inode_at(&path, &metadata))
    };
    descriptors.filter_map(long_file).collect()
}

/// Files with a mapping of at least `LONG_BYTES_MIN` bytes in a process. A file with an executable
/// part is left out: it is a program or a library.
fn mapped_long_files(process: u32) -> Vec<Inode> {
    let maps = maps_text(process).unwrap_or_default();
    let mappings =
        maps.lines().filter_map(|line| Some((is_executable(line), parse_mapping(line)?)));
    let (mut long_files, mut programs) = (Vec::new(), BTreeSet::new());
    for (is_executable, (first, mapping, _)) in mappings {
        if is_executable {
            programs.insert(mapping.inode);
        } else if mapping.end - first >= LONG_BYTES_MIN {
            long_files.push(mapping.inode);
        }
    }
    long_files.retain(|inode| !programs.contains(inode));
    long_files
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1024 absent pages end a rest, of a held file only when their number has fallen.
    #[test]
    fn held_file_ends_a_rest_once_it_is_read() {
        let [held_file, other_file] = [1, 2].map(|number| Inode { device: 8, number });
        let mut held = BTreeMap::from([(held_file, 2000)]);
        let mut ends = |inode, absent_pages| ends_rest(&mut held, inode, absent_pages);
        assert!(!ends(held_file, 2000));
        assert!(ends(held_file, 1999));
        // Evicted, and then read.
        assert!(!ends(held_file, 3000));
        assert!(ends(held_file, 2500));
        assert!(!ends(held_file, 1023));
        assert!(!ends(other_file, 1023));
        assert!(ends(other_file, 1024));
    }
}
