//! Touched pages of mappings, sampled without root for prefetching.
//!
//! A sample finds the pages that have been mapped since the last one, in the page tables of the
//! recorded processes. The time of threads in page faults is divided equally among the ranges of
//! these pages.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use readpath_core::unit::PageRange;

use super::super::event::Inode;
use super::super::names::{NamedFile, open_page_table};
use super::page_tables::{LookScope, MappingPages, file_mappings, has_memory};

/// Minimum pause between two samples.
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// Pause after a sample as a multiple of its duration: a twentieth of the time is sampling. The
/// pause between two samples of all pages is set by their own duration.
const PAUSE_PER_SAMPLE: u32 = 19;
/// Period of the search for new mappings, chosen.
const SEARCH_PERIOD: Duration = Duration::from_millis(20);
/// Maximum size of a mapping in pages (64 GiB).
const PAGES_MAX: u64 = 1 << 24;

/// Pages of a file that a process has touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct SampledTouch {
    /// Process that touched them.
    pub process: u32,
    /// The file.
    pub inode: Inode,
    /// Its path.
    pub named: NamedFile,
    /// The pages, with the neighbours that the kernel mapped together with them.
    pub range: PageRange,
    /// Time of threads in page faults for it, in nanoseconds.
    pub waited_ns: u64,
}

/// The mappings of the recorded processes.
#[derive(Debug)]
pub(super) struct TouchSamples {
    /// Sampled processes, by number.
    processes: BTreeMap<u32, MappedProcess>,
    /// Earliest time of the next sample.
    next_sample: Instant,
    /// Time of the next sample of all pages. Until then, samples look at active parts.
    next_whole_sample: Instant,
    /// Time of the last search for mappings. `None` before the first.
    last_search: Option<Instant>,
    /// Receives the touches.
    touches: Sender<SampledTouch>,
}

/// A process with its page table and its file mappings.
#[derive(Debug)]
struct MappedProcess {
    /// Its `/proc/PID/pagemap`.
    page_table: File,
    /// Its file mappings.
    mappings: Vec<MappingPages>,
}

impl TouchSamples {
    /// Prepares samples without mappings. Touches are sent to `touches`.
    pub fn new(touches: Sender<SampledTouch>) -> TouchSamples {
        TouchSamples {
            processes: BTreeMap::new(),
            next_sample: Instant::now(),
            next_whole_sample: Instant::now(),
            last_search: None,
            touches,
        }
    }

    /// Takes a sample of the processes if it is due, and sends the touches since the last one.
    /// Frequent samples look only at parts of the mappings with new pages at the last look, rare
    /// ones at all pages. The time of a sample sets the pause after it. `fault_ns` is the time of
    /// threads in faults since the last touch. Touches share it, and it is then 0.
    pub fn sample_if_due(&mut self, processes: impl Iterator<Item = u32>, fault_ns: &mut u64) {
        let begin = Instant::now();
        if begin < self.next_sample {
            return;
        }
        let is_recent = |last_search: Instant| last_search.elapsed() < SEARCH_PERIOD;
        if !self.last_search.is_some_and(is_recent) {
            self.last_search = Some(begin);
            self.search(processes.collect());
        }
        let is_whole = begin >= self.next_whole_sample;
        self.sample(if is_whole { LookScope::All } else { LookScope::Active }, fault_ns);
        let end = Instant::now();
        let pause = (end - begin) * PAUSE_PER_SAMPLE;
        // A sample of all pages delays only the next one of all pages.
        match is_whole {
            true => self.next_whole_sample = end + pause,
            false => self.next_sample = end + PAUSE_MIN.max(pause),
        }
        self.next_sample = self.next_sample.max(end + PAUSE_MIN);
    }

    /// Adds the mappings that the processes made since the last search, and removes the mappings
    /// and processes that have ended. A call of execve ends all mappings of a process.
    fn search(&mut self, processes: Vec<u32>) {
        let mut formers = std::mem::take(&mut self.processes);
        for process in processes {
            let former = formers.remove(&process);
            // An open page table stays bound to the memory before a call of execve. A child has the
            // memory of its parent before it, after vfork(2).
            let Some(page_table) = open_page_table(process) else { continue };
            let mut mappings = file_mappings(process, PAGES_MAX);
            if let Some(mut known) = former.filter(|former| has_memory(&former.page_table)) {
                let is_same = |old: &MappingPages, new: &MappingPages| {
                    (old.address, old.inode, old.pages) == (new.address, new.inode, new.pages)
                };
                known.mappings.retain(|old| mappings.iter().any(|new| is_same(old, new)));
                mappings.retain(|new| !known.mappings.iter().any(|old| is_same(old, new)));
                mappings.splice(0..0, known.mappings);
            }
            self.processes.insert(process, MappedProcess { page_table, mappings });
        }
    }

    /// Takes a sample: the pages that entered the page tables of the processes since the last one.
    /// Sends each range as a touch. `fault_ns` is the time that threads spent in faults. It is
    /// divided equally among the touches, and set to 0 if there are any.
    fn sample(&mut self, scope: LookScope, fault_ns: &mut u64) {
        let mut touches = Vec::new();
        for (&process, mapped) in &mut self.processes {
            for mapping in &mut mapped.mappings {
                for range in mapping.newly_mapped(&mapped.page_table, scope) {
                    let (inode, named) = (mapping.inode, mapping.named.clone());
                    touches.push(SampledTouch { process, inode, named, range, waited_ns: 0 });
                }
            }
        }
        if touches.is_empty() {
            return;
        }
        let waited_ns = std::mem::take(fault_ns) / touches.len() as u64;
        for touch in touches {
            // The receiver ends after the sender.
            let _ = self.touches.send(SampledTouch { waited_ns, ..touch });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use readpath_core::unit::PAGE_BYTES;
    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use super::*;

    /// Page that [`program_that_touches_a_page`] touches.
    const TOUCHED_PAGE: u64 = 5;

    /// Maps a file of 8 pages, whose path is the first line of the input, and touches one page.
    /// Prints a line then, and runs until the input ends.
    #[test]
    #[ignore = "it is a program for the test below"]
    fn program_that_touches_a_page() {
        let mut lines = std::io::stdin().lines().map_while(Result::ok);
        let Some(path) = lines.next() else { return };
        let (file, bytes) = (File::open(path).unwrap(), 8 * PAGE_BYTES as usize);
        // SAFETY: a new mapping of a file that nothing changes; the page lies in it.
        let byte = unsafe {
            let address =
                mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0);
            let page = address.unwrap().cast::<u8>().add((TOUCHED_PAGE * PAGE_BYTES) as usize);
            page.read_volatile()
        };
        println!("\ntouched {byte}");
        assert_eq!(lines.next(), None);
    }

    /// A shell is sampled, and then replaced by the program above.
    #[test]
    fn touches_of_a_program_are_found_after_its_execve() {
        let own = std::env::current_exe().unwrap();
        let path = own.with_file_name(format!("sampled-touches-{}", std::process::id()));
        fs::write(&path, vec![7; 8 * PAGE_BYTES as usize]).unwrap();
        let name = concat!(module_path!(), "::program_that_touches_a_page");
        let (_crate, name) = name.split_once("::").unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec \"$0\" --exact \"$1\" --ignored --nocapture"])
            .args([own.as_os_str(), name.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, touches) = mpsc::channel();
        let mut samples = TouchSamples::new(sender);
        samples.search(vec![child.id()]);
        let mut input = child.stdin.take().unwrap();
        write!(input, "\n{}\n", path.display()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let has_touched = lines.any(|line| line == "touched 7");
        samples.search(vec![child.id()]);
        samples.sample(LookScope::All, &mut 0);
        drop(input);
        let status = child.wait().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(has_touched && status.success());
        let is_found = |touch: SampledTouch| {
            touch.named.path == path.to_str().unwrap() && touch.range.contains(TOUCHED_PAGE)
        };
        assert!(touches.try_iter().any(is_found), "the page is not found");
    }
}
