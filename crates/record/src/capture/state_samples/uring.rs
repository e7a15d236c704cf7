//! Reads by io_uring, sampled without root.
//!
//! A program and the kernel exchange requests and results in memory that they share, a *ring*. The
//! recorder maps the rings of the recorded processes for reading. A sample finds the requests and
//! the results since the last sample. The entry of a request stays in the ring until the program
//! reuses it. A program that sends more requests between two samples than its ring has entries
//! loses some: these reads are counted, and their files and ranges are unknown.
//!
//! The times of requests and results within an interval between samples are not known. They are
//! spread evenly over it, in their order. The number of reads in flight at each sample is exact, so
//! the mean wait (reads in flight ÷ rate) is right; single waits are only as exact as the interval.
//!
//! A request's entry is found by its index, in a table behind the results. A ring without that
//! table has its entries in order. The kernel reports the offsets in a ring of the recorder.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;

use readpath_trace::recording::Activity;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::super::event::AT_POSITION;
use super::super::kcmp::compare_open_files;
use super::super::names::OpenFile;
use super::super::now_ns;
use super::super::submitted::FIXED_FILE;
use super::super::uring_operations::{OperationKind, first_activity, is_vectored_read};
use super::spread;

mod descriptor_files;

use descriptor_files::{DescriptorFiles, FoundObject};

/// Largest number of entries of a ring, as in the kernel.
const ENTRIES_MAX: u32 = 1 << 16;

/// Largest plausible number of requests between two samples, which are usually half a millisecond
/// apart. A processor submits a few million requests a second.
const DIFFERENCE_MAX: u32 = 1 << 20;

/// Size in bytes of a request's and of a result's entry.
const REQUEST_BYTES: usize = 64;
const RESULT_BYTES: usize = 16;
/// Size in bytes of an entry in the table of indices, and alignment of that table.
const INDEX_BYTES: usize = 4;
const TABLE_ALIGNMENT: usize = 64;
/// Offsets of `mmap` that select the memory of the results and the memory of the requests.
const MAP_RINGS: u64 = 0;
const MAP_REQUESTS: u64 = 0x1000_0000;
/// Maximum number of reads in flight per ring. The oldest are forgotten.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// A sampled read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct UringRead {
    /// Process of the ring.
    pub process: u32,
    /// File, and its name, size and flags; `None` if it or the range of the read is unknown.
    pub file: Option<OpenFile>,
    /// Descriptor of the file in the process, or its index among the registered files.
    pub descriptor: u64,
    /// Offset in the file and size of the request, in bytes. A request with a list of buffers has
    /// the size of its result.
    pub offset: u64,
    pub asked_bytes: u64,
    /// Estimated clock times in nanoseconds.
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Number of bytes, or the negated error number. `None` if the result was overwritten.
    pub result: Option<i32>,
}

/// The rings of the recorded processes.
#[derive(Debug)]
pub(super) struct UringSamples {
    /// Offsets within a ring, the same for all rings.
    layout: Layout,
    /// Rings found by the last search.
    rings: Vec<Ring>,
    /// Time of the last sample on the monotonic clock, in nanoseconds.
    last_ns: u64,
    /// Files of the descriptors in the requests.
    files: DescriptorFiles,
    /// Receives the completed reads.
    reads: Sender<UringRead>,
}

/// Offsets in bytes within the memory of the results.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Counter of the requests that the kernel has taken.
    request_head: usize,
    /// Number of entries for requests.
    request_entries: usize,
    /// Counter of the results.
    result_tail: usize,
    /// Number of entries for results.
    result_entries: usize,
    /// Entry of the first result.
    results: usize,
}

/// A mapped ring.
#[derive(Debug)]
struct Ring {
    /// Process in which the ring was found, and its descriptor there.
    process: u32,
    descriptor: u64,
    /// The recorder's own descriptor of the ring. Another ring may be opened under `descriptor`.
    file: OwnedFd,
    /// Memory with the counters, the results, and the table of indices.
    results: Mapped,
    /// Memory with the entries of the requests.
    requests: Mapped,
    /// Numbers of entries for requests and for results, powers of two.
    request_entries: u32,
    result_entries: u32,
    /// Number of requests taken by the kernel, and number of results, at the last sample.
    taken: u32,
    completed: u32,
    /// Requests in flight whose entries are known, the oldest first.
    in_flight: VecDeque<Request>,
    /// Requests in flight whose entries are not known.
    overwritten: VecDeque<Overwritten>,
}

/// A request in flight whose entry was overwritten before a sample, or before the ring was found.
#[derive(Clone, Copy, Debug)]
struct Overwritten {
    /// Estimated clock time of its start.
    begin_ns: u64,
    /// Activity of a thread that waits for it, by the readable entries of the same sample.
    activity: Activity,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Request {
    /// Value by which the program recognizes the result.
    user_data: u64,
    /// Number of the operation in `linux/io_uring.h`, and flags, such as [`FIXED_FILE`].
    operation: u8,
    flags: u8,
    /// Descriptor of the file, or its index among the registered files.
    descriptor: u64,
    /// Offset in the file in bytes, or [`AT_POSITION`].
    offset: u64,
    /// Size of the buffer in bytes.
    bytes: u64,
    /// Estimated clock time of its start.
    begin_ns: u64,
}

impl Request {
    /// Activity of a thread of `process` that waits for the request at the time `at_ns`. A
    /// registered file, and a descriptor that is closed by now, count as a file.
    fn activity(&self, process: u32, files: &mut DescriptorFiles, at_ns: u64) -> Activity {
        let kind = OperationKind::of_number(self.operation);
        let has_descriptor = matches!(kind, OperationKind::Read | OperationKind::Write)
            && u64::from(self.flags) & FIXED_FILE == 0;
        let is_file = !has_descriptor
            || !files.object(process, self.descriptor, self.begin_ns, at_ns).is_no_file();
        kind.activity(is_file)
    }
}

/// Memory of a ring, mapped for reading until it is dropped.
#[derive(Debug)]
struct Mapped {
    /// Address of the first byte in this process.
    address: *mut u8,
    /// Length of the mapping.
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and only its own methods access it.
unsafe impl Send for Mapped {}

impl UringSamples {
    /// Prepares samples without rings. Reads are sent to `reads`. `None` if the kernel has no
    /// io_uring or forbids it.
    pub fn new(reads: Sender<UringRead>) -> Option<UringSamples> {
        let files = DescriptorFiles::new();
        let layout = Layout::of_kernel()?;
        Some(UringSamples { layout, rings: Vec::new(), last_ns: now_ns(), files, reads })
    }

    /// True if there is a ring to sample.
    pub fn has_rings(&self) -> bool {
        !self.rings.is_empty()
    }

    /// Takes a sample. Returns the activity of the threads that wait for the requests in flight:
    /// [`Activity::Others`] without a request, `None` without a ring.
    pub fn waited_activity(&mut self) -> Option<Activity> {
        self.sample();
        let (files, now_ns) = (&mut self.files, self.last_ns);
        let activities = self.rings.iter().flat_map(|ring| {
            let known = ring.in_flight.iter().map(|it| it.activity(ring.process, files, now_ns));
            let known: Vec<Activity> = known.collect();
            known.into_iter().chain(ring.overwritten.iter().map(|request| request.activity))
        });
        let activity = first_activity(activities);
        self.has_rings().then_some(activity)
    }

    /// Maps the new rings of the processes, and drops the rings that these no longer have open. A
    /// ring that was opened under the descriptor of a closed one is new.
    pub fn search(&mut self, processes: impl Iterator<Item = u32>) {
        let mut open = Vec::new();
        for process in processes {
            open.extend(ring_descriptors(process).into_iter().map(|number| (process, number)));
        }
        self.rings.retain(|ring| {
            let (process, descriptor) = (ring.process, ring.descriptor);
            open.contains(&(process, descriptor)) && ring.is_at(process, descriptor)
        });
        for (process, descriptor) in open {
            // Children inherit the rings of their parents.
            if !self.rings.iter().any(|ring| ring.is_at(process, descriptor))
                && let Some(ring) = Ring::map(process, descriptor, self.layout, &mut self.files)
            {
                self.rings.push(ring);
            }
        }
    }

    /// Sends the reads that have completed since the last sample.
    pub fn sample(&mut self) {
        let now_ns = now_ns();
        for ring in &mut self.rings {
            ring.sample(self.layout, (self.last_ns, now_ns), &mut self.files, &self.reads);
        }
        self.last_ns = now_ns;
    }
}

impl Layout {
    /// Reads the layout from a new ring with one entry, which is closed at once. `None` if the
    /// kernel or a sandbox refuses io_uring.
    fn of_kernel() -> Option<Layout> {
        /// Number of 32-bit words in the parameters, and index of the first offset of the requests
        /// and of the results among them.
        const WORDS: usize = 30;
        const REQUEST_OFFSETS: usize = 10;
        const RESULT_OFFSETS: usize = 20;
        let mut parameters = [0_u32; WORDS];
        // SAFETY: the parameters have the size that the kernel reads and writes (120 bytes).
        let result = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut parameters) };
        let descriptor = i32::try_from(result).ok().filter(|&number| number >= 0)?;
        // SAFETY: the descriptor is new and has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let offset = |index: usize| parameters[index] as usize;
        // Fields of `struct io_sqring_offsets` and `struct io_cqring_offsets`: head 0, tail 1,
        // number of entries 3, results 5.
        Some(Layout {
            request_head: offset(REQUEST_OFFSETS),
            request_entries: offset(REQUEST_OFFSETS + 3),
            result_tail: offset(RESULT_OFFSETS + 1),
            result_entries: offset(RESULT_OFFSETS + 3),
            results: offset(RESULT_OFFSETS + 5),
        })
    }

    /// Offset in bytes of the table of indices, which follows the `result_entries` results.
    fn index_table(self, result_entries: u32) -> usize {
        let result_end = self.results + result_entries as usize * RESULT_BYTES;
        result_end.next_multiple_of(TABLE_ALIGNMENT)
    }
}

/// Returns how far the counter `later` of a ring is beyond `earlier`; both wrap at 2^32. `None` for
/// more than [`DIFFERENCE_MAX`]: the later one is behind, as with requests that have many results,
/// or the process writes no valid counters.
fn difference(later: u32, earlier: u32) -> Option<u32> {
    Some(later.wrapping_sub(earlier)).filter(|&count| count <= DIFFERENCE_MAX)
}

impl Ring {
    /// Maps the ring of another process that has this `descriptor` there. `None` if the caller may
    /// not read it, or if its sizes do not fit the `layout`.
    fn map(
        process: u32,
        descriptor: u64,
        layout: Layout,
        files: &mut DescriptorFiles,
    ) -> Option<Ring> {
        let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let number = i32::try_from(descriptor).ok()?;
        let file = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).ok()?;
        // The part before the results has the sizes of the rest.
        let head = Mapped::new(&file, MAP_RINGS, layout.results)?;
        let request_entries = head.word(layout.request_entries).load(Ordering::Acquire);
        let result_entries = head.word(layout.result_entries).load(Ordering::Acquire);
        let is_valid_count = |entries: u32| entries.is_power_of_two() && entries <= ENTRIES_MAX;
        if !is_valid_count(request_entries) || !is_valid_count(result_entries) {
            return None;
        }
        let table = layout.index_table(result_entries);
        let table_end = table + request_entries as usize * INDEX_BYTES;
        // A ring without a table ends where the table would begin.
        let results = Mapped::new(&file, MAP_RINGS, table_end)
            .or_else(|| Mapped::new(&file, MAP_RINGS, table))?;
        let request_bytes = request_entries as usize * REQUEST_BYTES;
        let requests = Mapped::new(&file, MAP_REQUESTS, request_bytes)?;
        // In this order: a request that completes between the two loads counts as in flight.
        let completed = results.word(layout.result_tail).load(Ordering::Acquire);
        let taken = results.word(layout.request_head).load(Ordering::Acquire);
        // The requests in flight at the first look began before the recorder knew the ring. With
        // implausible counters there are none.
        let in_flight_count = difference(taken, completed).unwrap_or(0);
        let mut ring = Ring {
            process,
            descriptor,
            file,
            results,
            requests,
            request_entries,
            result_entries,
            taken,
            completed,
            in_flight: VecDeque::new(),
            overwritten: VecDeque::new(),
        };
        // Any of the newest requests may be in flight, also one that waits for storage.
        let newest_count = taken.min(request_entries);
        let entries = ring.entry_indices(taken.wrapping_sub(newest_count), newest_count, layout);
        let begin_ns = now_ns();
        let activity = ring.activity_of_entries(&entries, files, begin_ns);
        ring.overwritten =
            vec![Overwritten { begin_ns, activity }; in_flight_count as usize].into();
        Some(ring)
    }

    /// True if a descriptor is this ring. If the kernel does not compare descriptors for this user,
    /// rings of two processes with one number count as the same.
    fn is_at(&self, process: u32, descriptor: u64) -> bool {
        let own = (std::process::id(), self.file.as_raw_fd() as u64);
        let order = compare_open_files(own, (process, descriptor));
        order.map_or(self.descriptor == descriptor, |order| order.is_eq())
    }

    /// Takes a sample: the requests that the kernel has taken and completed since the last one.
    /// Sends each completed read to `reads`. `interval` is the start and the end of this time in
    /// nanoseconds. Begins and ends are spread evenly over it.
    fn sample(
        &mut self,
        layout: Layout,
        interval: (u64, u64),
        files: &mut DescriptorFiles,
        reads: &Sender<UringRead>,
    ) {
        // A request that completes between the two loads appears in the next sample.
        let completed = self.results.word(layout.result_tail).load(Ordering::Acquire);
        let taken = self.results.word(layout.request_head).load(Ordering::Acquire);
        let first_request = std::mem::replace(&mut self.taken, taken);
        let first_result = std::mem::replace(&mut self.completed, completed);
        // The counters went back, or moved by an implausible number. No request in flight is known.
        let (Some(request_count), Some(result_count)) =
            (difference(taken, first_request), difference(completed, first_result))
        else {
            self.in_flight.clear();
            self.overwritten.clear();
            return;
        };
        let entries = self.entry_indices(first_request, request_count, layout);
        // Only requests without an entry need it.
        let activity = match entries.contains(&None) {
            true => self.activity_of_entries(&entries, files, interval.1),
            false => Activity::AsyncIo,
        };
        // The requests come first: some of the results may be theirs.
        for (index, entry) in (0..).zip(entries) {
            let begin_ns = spread(interval, index, request_count);
            match entry {
                Some(entry) => self.in_flight.push_back(self.request(entry, begin_ns)),
                None => self.overwritten.push_back(Overwritten { begin_ns, activity }),
            }
        }
        for index in 0..result_count {
            let is_overwritten = result_count - index > self.result_entries;
            let end_ns = spread(interval, index, result_count);
            let result = first_result.wrapping_add(index);
            if let Some(read) = self.complete(result, is_overwritten, layout, end_ns, files) {
                // The receiver ends after the sender.
                let _ = reads.send(read);
            }
        }
        let excess = self.in_flight.len().saturating_sub(IN_FLIGHT_MAX);
        self.in_flight.drain(..excess);
        let excess = self.overwritten.len().saturating_sub(IN_FLIGHT_MAX);
        self.overwritten.drain(..excess);
    }

    /// Index of the entry of each of `count` requests from number `first` on. `None` for an entry
    /// that a later request has overwritten. The latest request comes first in the search: an entry
    /// belongs to the latest request that has its index.
    fn entry_indices(&self, first: u32, count: u32, layout: Layout) -> Vec<Option<u32>> {
        if count == 0 {
            return Vec::new();
        }
        let table = layout.index_table(self.result_entries);
        let index_at = |position: u32| self.results.get(table + position as usize * INDEX_BYTES);
        // The program sets the index before each request. A table of zeros is none.
        let has_table =
            (0..self.request_entries).any(|position| index_at(position).unwrap_or(0) > 0);
        let mut is_used = vec![false; self.request_entries as usize];
        let mut entries: Vec<Option<u32>> = (0..count)
            .rev()
            .map(|nth| {
                // The table has no more than the latest requests.
                if nth + self.request_entries < count {
                    return None;
                }
                // The number of entries is a power of two.
                let in_order = first.wrapping_add(nth) & (self.request_entries - 1);
                let index = match index_at(in_order) {
                    Some(index) if has_table => index,
                    _ => in_order,
                };
                let is_used = is_used.get_mut(index as usize)?;
                (!std::mem::replace(is_used, true)).then_some(index)
            })
            .collect();
        entries.reverse();
        entries
    }

    /// Decodes the request in the entry with index `entry`. `begin_ns` is its estimated begin.
    fn request(&self, entry: u32, begin_ns: u64) -> Request {
        let start = entry as usize * REQUEST_BYTES;
        let word = |index: usize| self.requests.word(start + 4 * index).load(Ordering::Relaxed);
        let long = |index: usize| u64::from(word(index)) | u64::from(word(index + 1)) << 32;
        // Bytes 0 and 1 are the operation and its flags, then come the descriptor (4), the offset
        // (8), the buffer (16), the size (24) and the user's data (32).
        let [operation, flags, ..] = word(0).to_ne_bytes();
        Request {
            user_data: long(8),
            operation,
            flags,
            descriptor: u64::from(word(1)),
            offset: long(2),
            bytes: u64::from(word(6)),
            begin_ns,
        }
    }

    /// Activity of a thread that waits at `at_ns` for requests whose entries were overwritten.
    /// `entries`: of the same sample, from `entry_indices`. Any request with a readable entry may
    /// have their kind. Without one they may be reads.
    fn activity_of_entries(
        &self,
        entries: &[Option<u32>],
        files: &mut DescriptorFiles,
        at_ns: u64,
    ) -> Activity {
        let requests = entries.iter().flatten().map(|&entry| self.request(entry, at_ns));
        let mut activities = requests.map(|it| it.activity(self.process, files, at_ns)).peekable();
        match activities.peek() {
            Some(_) => first_activity(activities),
            None => Activity::AsyncIo,
        }
    }

    /// True if the oldest request in flight has a known entry. False if there is no request.
    fn is_oldest_known(&self) -> bool {
        let unknown_ns = self.overwritten.front().map_or(u64::MAX, |request| request.begin_ns);
        self.in_flight.front().is_some_and(|request| request.begin_ns <= unknown_ns)
    }

    /// Ends the request of result number `number`, and returns it if it is a read. `None` for other
    /// requests and for reads of sockets and the like. If the ring has overwritten the result
    /// (`is_overwritten`), the oldest request in flight counts as ended. A request without a known
    /// entry counts as a read of an unknown file, unless its activity is not `AsyncIo`.
    fn complete(
        &mut self,
        number: u32,
        is_overwritten: bool,
        layout: Layout,
        end_ns: u64,
        files: &mut DescriptorFiles,
    ) -> Option<UringRead> {
        let start = layout.results + (number & (self.result_entries - 1)) as usize * RESULT_BYTES;
        let word = |index: usize| self.results.word(start + 4 * index).load(Ordering::Relaxed);
        let user_data = u64::from(word(0)) | u64::from(word(1)) << 32;
        // A later request may use the same data. The times are estimates: without unknown requests,
        // the oldest request with the data has the result.
        let has_data = |request: &Request| request.user_data == user_data;
        let is_same = |request: &Request| has_data(request) && request.begin_ns < end_ns;
        let found = match is_overwritten {
            true => self.is_oldest_known().then_some(0),
            false => match self.in_flight.iter().position(is_same) {
                None if self.overwritten.is_empty() => self.in_flight.iter().position(has_data),
                position => position,
            },
        };
        let result = (!is_overwritten).then_some(word(2) as i32);
        let process = self.process;
        // Without a known entry, the result may be one of a request whose entry was overwritten.
        let Some(request) = found.and_then(|index| self.in_flight.remove(index)) else {
            let Overwritten { begin_ns, activity } = self.overwritten.pop_front()?;
            if activity != Activity::AsyncIo {
                return None;
            }
            let unknown = UringRead { process, begin_ns, end_ns, result, ..UringRead::default() };
            return Some(unknown);
        };
        if OperationKind::of_number(request.operation) != OperationKind::Read {
            return None;
        }
        // The lengths of the buffers in a list are in the program's memory, and the result stands
        // for them: with 0 bytes after an error. With an overwritten result the range is unknown.
        let asked_bytes = match is_vectored_read(request.operation) {
            true => result.map(|result| u64::try_from(result).unwrap_or(0)),
            false => Some(request.bytes),
        };
        let is_registered = u64::from(request.flags) & FIXED_FILE != 0;
        let file = match is_registered {
            true => &FoundObject::Unknown,
            false => files.object(process, request.descriptor, request.begin_ns, end_ns),
        };
        let file = match file {
            // A read of a socket or of a counter of events.
            FoundObject::NoFile => return None,
            FoundObject::File(file) if request.offset != AT_POSITION => Some(file.clone()),
            FoundObject::File(_) | FoundObject::Unknown => None,
        };
        Some(UringRead {
            process,
            file: file.filter(|_| asked_bytes.is_some()),
            descriptor: request.descriptor,
            offset: request.offset,
            asked_bytes: asked_bytes.unwrap_or(0),
            // Both times are estimates, and the begin may be the later one.
            begin_ns: request.begin_ns.min(end_ns),
            end_ns,
            result,
        })
    }
}

impl Mapped {
    /// Maps for reading the first `bytes` of a ring's memory that `offset` selects (`MAP_RINGS` or
    /// `MAP_REQUESTS`). `None` if the ring has less.
    fn new(ring: &impl AsFd, offset: u64, bytes: usize) -> Option<Mapped> {
        // SAFETY: a new mapping at an address that the kernel chooses. It is unmapped on drop.
        let address = unsafe {
            let null = std::ptr::null_mut();
            rustix::mm::mmap(null, bytes, ProtFlags::READ, MapFlags::SHARED, ring, offset)
        };
        Some(Mapped { address: address.ok()?.cast(), bytes })
    }

    /// Word at an offset in bytes, a multiple of four. `None` if it is not mapped.
    fn get(&self, offset: usize) -> Option<u32> {
        (offset + 4 <= self.bytes).then(|| self.word(offset).load(Ordering::Relaxed))
    }

    /// Word at an offset in bytes, a multiple of four. The other process may change it.
    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.bytes,
            "offset {offset} of {}",
            self.bytes
        );
        // SAFETY: the word is aligned and lies in the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.address.add(offset).cast()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), self.bytes) };
    }
}

/// Descriptors of a process that are rings.
fn ring_descriptors(process: u32) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    let is_ring = |path: &std::path::Path| {
        fs::read_link(path).is_ok_and(|target| target.as_os_str() == "anon_inode:[io_uring]")
    };
    let rings = entries.flatten().filter(|entry| is_ring(&entry.path()));
    rings.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests;
