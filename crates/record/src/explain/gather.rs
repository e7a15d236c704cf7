//! Aggregated data of a recording: requested, fetched and awaited data per file, requests per
//! device, reads per thread.
//!
//! *Requested* pages were asked for by the program, and *fetched* pages were read from a device for
//! it. *Inserted* pages came into the page cache. A read or an advice *claims* the inserted pages
//! that it caused. A *charge* assigns waits to a cause.

use std::collections::{BTreeMap, BTreeSet};

use readpath_core::unit::{PageRange, SECTOR_BYTES};

use super::WaitCause;
use super::depth_sweep::DepthSweep;
use super::interference::Interference;
use super::pattern::{AccessStreams, Step};
use super::reuse::ReuseSample;
use super::sample::RunSample;
use super::spans::IntervalUnion;
use super::stalls::StallHistogram;
use super::wait_sum::WaitSum;
use readpath_trace::page_set::{PAGE_BYTES, PageSet};
use readpath_trace::recording::{
    Activity, AdviceGiven, AdviceType, DeviceOperation, MappedUse, OthersRequests, OthersSampled,
    ReadMethod, Record, RecordingMethod, RequestRecord, Unseen,
};

mod calls;
mod costs;
mod depths;
mod hints;
mod inferred_fetches;
mod reads;

pub(super) use calls::{BUFFER_BYTES, CallOffsets, Calls};
pub(super) use costs::Cost;
pub(super) use depths::{DepthCharge, DepthSpread};

use costs::Costs;
use depths::UnusedEstimate;
use hints::Hints;
use inferred_fetches::InferredFetches;
use reads::Inserted;

/// Maximum number of page runs that are kept of a thread until a read claims them. It is the number
/// for a read of 2 GiB with windows of 128 KiB. Older ones count as written.
const INSERTED_RUNS_MAX: usize = 1 << 14;

/// Data of a file.
#[derive(Debug, Default)]
pub(super) struct FileData {
    /// Path. Empty if the recording has no name of the file.
    pub path: String,
    /// Device of the file: major × 2²⁰ + minor. 0 if unknown.
    pub device: u64,
    /// Inode number. 0 if unknown.
    pub inode: u64,
    /// Length in bytes at its first occurrence, or up to the last byte that was read or inserted
    /// into the page cache since.
    pub bytes: Option<u64>,
    /// True for a program or a library: the file was mapped for execution.
    pub is_executable: bool,
    /// Number of reads, with a restarted fault counted once.
    pub reads: u64,
    /// Bytes that reads returned to the program.
    pub got_bytes: u64,
    /// Pages that reads and faults requested.
    pub requested: PageSet,
    /// Pages mapped by faults. The program may have used each of them.
    pub mapped: PageSet,
    /// Pages that were inserted into the page cache for reads, or read past it.
    pub fetched: PageSet,
    /// Pages fetched by an advice of the program.
    advised: PageSet,
    /// Pages that the kernel may have brought in for announcements with WILLNEED.
    announced: PageSet,
    /// Number of bytes fetched for the program, with repetitions.
    pub fetched_bytes: u64,
    /// Number of fetched bytes that had been fetched before.
    pub refetched_bytes: u64,
    /// All waits for the file.
    pub waits: WaitSum,
    /// The waits among them of ordered reads.
    pub ordered_waits: WaitSum,
    /// Time in nanoseconds of its reads in flight for which no thread slept. Reads at the same time
    /// all count.
    pub unslept_ns: u64,
    /// Waits of reads in order for the kernel's readahead, or for a single request each.
    pub readahead_waits: WaitSum,
    /// The waits among them for a single request of the read itself.
    pub single_waits: WaitSum,
    /// Number of readahead windows for which these reads waited, at least one for each.
    pub readahead_windows: u64,
    /// Offset in bytes of the read with the first of these waits.
    pub readahead_offset: Option<u64>,
    /// Waits by cause. `None` means no cause.
    pub charges: BTreeMap<Option<WaitCause>, WaitSum>,
    /// All waits by cause, with the requests in flight during each. A wait is here under its first
    /// cause.
    depth_charges: BTreeMap<Option<WaitCause>, DepthCharge>,
    /// Estimate for the sample of over-read files.
    unused_estimate: UnusedEstimate,
    /// Bytes inserted into the page cache by neither a read nor an advice: the program wrote them.
    pub written_bytes: u64,
    /// Number of contiguous ranges that were both requested and fetched. Without readahead, each of
    /// them is a request.
    pub parts: u64,
    /// Bytes of these ranges.
    pub part_bytes: u64,
    /// Number of reads by a descriptor opened for direct I/O.
    pub direct_reads: u64,
    /// Number of direct reads that filled the page cache.
    pub cached_direct_reads: u64,
    /// Number of reads by AIO and io_uring.
    pub submitted_reads: u64,
    /// Small reads by system calls without a wait, as [`Calls`] counts them.
    pub small_calls: CallOffsets,
    /// Hints for reads.
    hints: Hints,
    /// Hints for accesses to mappings.
    mapped_hints: Hints,
    /// Pages fetched more than once.
    refetched: PageSet,
    /// Pages of which direct reads have fetched parts only.
    partial_pages: PageSet,
    /// Sectors that were fetched of these pages, by number.
    partial_sectors: PageSet,
    /// Last waits that count as fetches, where the page cache is not observed.
    inferred_fetches: InferredFetches,
}

impl FileData {
    /// Raises a known length to `end`, the end of a range of the file. An `end` within the last
    /// page of the file changes nothing: a range of whole pages includes the rest of that page.
    fn raise_length(&mut self, end: u64) {
        if let Some(bytes) = &mut self.bytes
            && end > bytes.next_multiple_of(PAGE_BYTES)
        {
            *bytes = end;
        }
    }

    /// Records that bytes of the file were fetched from the device. Returns the number of those
    /// that had been fetched before, counted in whole pages: an upper bound, at most `bytes`. If
    /// they are more than half of the bytes, all pages count as refetched.
    fn record_fetch(&mut self, offset: u64, bytes: u64) -> u64 {
        let PageRange { first, end } = PageRange::covering(offset, bytes);
        let new_pages = self.fetched.add(first, end);
        // Later reads of parts of these pages are compared with all their fetched sectors.
        if self.partial_pages.has_any(first, end) {
            let (first_sector, end_sector) = sectors_of(offset, bytes);
            self.partial_sectors.add(first_sector, end_sector);
        }
        let again_bytes = (end - first - new_pages) * PAGE_BYTES;
        self.fetched_bytes += bytes;
        self.refetched_bytes += again_bytes.min(bytes);
        if again_bytes * 2 > bytes {
            self.refetched.add(first, end);
        }
        again_bytes.min(bytes)
    }

    /// Records that a direct read fetched bytes of the file. Returns the number of those that had
    /// been fetched before. A read of whole pages counts as in `record_fetch`. Another read does so
    /// only if one of its pages was fetched as a whole, and the number is then an upper bound.
    /// Otherwise its sectors are compared with the fetched sectors of the pages. Beyond half of the
    /// bytes, all pages count as refetched.
    fn record_direct_fetch(&mut self, offset: u64, bytes: u64) -> u64 {
        if (offset | bytes).is_multiple_of(PAGE_BYTES) {
            return self.record_fetch(offset, bytes);
        }
        let PageRange { first, end } = PageRange::covering(offset, bytes);
        let is_whole = |page| self.fetched.has(page) && !self.partial_pages.has(page);
        if (first..end).any(is_whole) {
            return self.record_fetch(offset, bytes);
        }
        // A page fetched in part counts as fetched: the unused rest is no over-read.
        self.fetched.add(first, end);
        self.partial_pages.add(first, end);
        let (first_sector, end_sector) = sectors_of(offset, bytes);
        let new_bytes = self.partial_sectors.add(first_sector, end_sector) * SECTOR_BYTES;
        let again_bytes = bytes.saturating_sub(new_bytes);
        self.fetched_bytes += bytes;
        self.refetched_bytes += again_bytes;
        if again_bytes * 2 > bytes {
            self.refetched.add(first, end);
        }
        again_bytes
    }

    /// Records that bytes of the file were fetched because of an advice of the program.
    fn record_advised_fetch(&mut self, offset: u64, bytes: u64) {
        self.record_fetch(offset, bytes);
        let pages = PageRange::covering(offset, bytes);
        self.advised.add(pages.first, pages.end);
    }

    /// Returns the hint that holds for reads by this method at an offset in bytes. Faults have
    /// hints of their own, for mapped access. `None` without a hint.
    fn hint_for_read(&self, method: ReadMethod, offset: u64) -> Option<AdviceType> {
        if method == ReadMethod::Fault {
            self.mapped_hints.hint_at(offset)
        } else {
            self.hints.hint_at(offset)
        }
    }

    /// Returns true if a part of the file has this hint, for reads or for mapped access.
    pub fn has_hint(&self, hint: AdviceType) -> bool {
        self.hints.has_hint(hint) || self.mapped_hints.has_hint(hint)
    }

    /// Returns true if a part of the file has this hint for mapped access.
    pub fn has_mapped_hint(&self, hint: AdviceType) -> bool {
        self.mapped_hints.has_hint(hint)
    }

    /// Returns true if most reads bypass the page cache. Pages that are brought into it ahead do
    /// not help them.
    pub fn bypasses_cache(&self) -> bool {
        self.direct_reads * 2 > self.reads && !self.direct_reads_fill_cache()
    }

    /// Returns true if direct reads filled the page cache: more than an eighth of them (chosen), as
    /// later ones find their pages there. Reads that bypass the cache never fill it.
    pub fn direct_reads_fill_cache(&self) -> bool {
        self.cached_direct_reads * 8 > self.direct_reads
    }

    /// Returns the waits charged to a cause (`None`: to no cause), 0 if there are none.
    pub fn charge(&self, cause: Option<WaitCause>) -> WaitSum {
        self.charges.get(&cause).copied().unwrap_or_default()
    }
}

/// Returns the first sector of a range of bytes and the end of its last one (exclusive).
fn sectors_of(offset: u64, bytes: u64) -> (u64, u64) {
    (offset / SECTOR_BYTES, (offset + bytes).div_ceil(SECTOR_BYTES))
}

/// Data of a thread.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadData {
    /// Name.
    pub name: String,
    /// Thread ID.
    pub task: u32,
    /// Number of reads.
    pub reads: u64,
    /// Bytes that reads returned.
    pub got_bytes: u64,
    /// Sum of the waits in nanoseconds.
    pub waited_ns: u64,
    /// Time in nanoseconds of its reads in flight for which no thread slept.
    pub unslept_ns: u64,
    /// Pages that no read or advice has claimed yet.
    inserted: Vec<Inserted>,
    /// Last range that the thread advised the kernel to fetch.
    will_need: Option<AdviceGiven>,
    /// File of its current read, if the recording says that the thread inserted no page for it: by
    /// an insertion of 0 bytes before the read.
    inserted_none: Option<u32>,
    /// True if that holds for the read in progress.
    has_inserted_none: bool,
    /// File and end time in nanoseconds of its last page fault.
    last_fault: Option<(u32, u64)>,
    /// File, page and step of its last page fault, until the thread reads other data.
    last_fault_step: Option<((u32, u64), Step)>,
}

/// Data of a device.
#[derive(Debug, Default)]
pub(super) struct DeviceData {
    /// Name in `/sys/block`. Empty if it has none.
    pub name: String,
    /// The kernel's readahead window in bytes. 0 if unknown.
    readahead_bytes: u64,
    /// Read requests of recorded threads.
    pub reads: IntervalUnion,
    /// Bytes of these requests.
    pub read_bytes: u64,
    /// Read requests of other programs.
    pub other_reads: IntervalUnion,
    /// Time in nanoseconds of the samples that have reads of other programs.
    pub sampled_other_reads_ns: u64,
    /// Bytes of the sampled reads of other programs.
    pub sampled_other_bytes: u64,
    /// Waits for bytes that were fetched from it.
    costs: Costs,
}

impl DeviceData {
    /// Returns the service time of its requests, or `None` if no read waited for it.
    pub fn request_cost(&self) -> Option<Cost> {
        self.costs.estimate()
    }

    /// Adds a read request of a recorded thread to the sums, and to the requests that may have
    /// delayed a wait.
    fn record_request(&mut self, request: &RequestRecord) {
        self.reads.add(request.begin_ns, request.end_ns);
        self.read_bytes += request.bytes;
        self.costs.record_request(request);
    }
}

/// Reads of which the bytes are not known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnseenReads {
    /// Number of reads.
    pub count: u64,
    /// Sum of the waits for them in nanoseconds.
    pub waited_ns: u64,
}

/// All aggregated data.
#[derive(Debug, Default)]
pub(super) struct RecordingData {
    /// Method of recording.
    source: RecordingMethod,
    /// Name of the program's file. Empty for several programs.
    pub program: String,
    /// End of the recording, or its latest event, in nanoseconds since its start.
    pub length_ns: u64,
    /// Processor time of the program in nanoseconds, if known.
    pub processor_ns: Option<u64>,
    /// Number of lost events.
    pub lost: u64,
    /// Wall time by activity in nanoseconds.
    pub spent_ns: BTreeMap<Activity, u64>,
    /// Files by their number in the recording.
    pub files: BTreeMap<u32, FileData>,
    /// Threads by their number in the recording.
    pub threads: BTreeMap<u32, ThreadData>,
    /// Devices by their kernel number.
    pub devices: BTreeMap<u64, DeviceData>,
    /// Files opened with direct I/O, as file and descriptor.
    direct_opens: BTreeSet<(u32, u64)>,
    /// File and descriptor of each other open.
    buffered_opens: BTreeSet<(u32, u64)>,
    /// Intervals of all waits.
    pub waits: IntervalUnion,
    /// Intervals of the waits of calls that read: neither page faults nor AIO and io_uring.
    call_waits: IntervalUnion,
    /// Intervals of the waits for AIO and io_uring.
    async_waits: IntervalUnion,
    /// Intervals of the reads by AIO and io_uring for which no thread slept. Only for measured
    /// waits.
    pub unslept: IntervalUnion,
    /// Waits for pages that the program had announced with WILLNEED.
    pub announced_waits: DepthCharge,
    /// Requests in flight during each wait.
    depth_sweep: DepthSweep,
    /// Waits by cause, to tell a low queue depth by chance.
    depth_spreads: BTreeMap<WaitCause, DepthSpread>,
    /// Sum of all waits in nanoseconds. Waits at the same time all count.
    pub waited_ns: u64,
    /// Number of reads, with a restarted fault counted once.
    pub reads: u64,
    /// Bytes that reads returned to the program.
    pub got_bytes: u64,
    /// Number of failed reads by error number.
    pub errors: BTreeMap<u32, u64>,
    /// Streams of the reads.
    pub pattern: AccessStreams,
    /// Sampled page references, for the miss-ratio curve.
    pub reuse: ReuseSample,
    /// Sampled reads that waited, by cause.
    pub samples: BTreeMap<WaitCause, RunSample>,
    /// Estimate of the pages used through mappings.
    mapped: MappedUse,
    /// Reads without known bytes, by method.
    pub unseen: BTreeMap<ReadMethod, UnseenReads>,
    /// Waits next to writes.
    pub writes: Interference,
    /// Waits next to other programs' reads.
    pub other_reads: Interference,
    /// Requests of other programs, by program.
    pub others_requests: Vec<OthersRequests>,
    /// Waits by size and duration, to find stalls.
    pub stalls: StallHistogram,
    /// Small reads by system calls.
    pub calls: Calls,
    /// Number of reads by the binary logarithm of their requested bytes.
    pub sizes: BTreeMap<u32, u64>,
    /// Number of waits by the binary logarithm of their nanoseconds.
    pub wait_sizes: BTreeMap<u32, u64>,
    /// Number of reads by method.
    pub by_method: BTreeMap<ReadMethod, u64>,
}

impl RecordingData {
    /// Adds a record to the aggregated data. Records must come in the order of the recording.
    pub fn add_record(&mut self, record: &Record) {
        match record {
            Record::Start(start) => {
                self.source = start.source;
                self.program.clone_from(&start.program);
            }
            Record::Device(device) => {
                let device_data = self.devices.entry(device.device).or_default();
                device_data.name.clone_from(&device.name);
                device_data.readahead_bytes = device.readahead_bytes;
            }
            Record::File(file) => {
                let file_data = self.files.entry(file.file).or_default();
                file_data.path.clone_from(&file.path);
                (file_data.device, file_data.inode) = (file.device, file.inode);
                file_data.bytes = file_data.bytes.max(file.bytes);
            }
            Record::Thread(thread) => {
                let thread_data = self.threads.entry(thread.thread).or_default();
                thread_data.name.clone_from(&thread.name);
                thread_data.task = thread.task;
            }
            Record::Open(open) => {
                // The last open of a descriptor decides if its reads are direct.
                let opened = (open.file, open.descriptor);
                let (opens, other_opens) = match open.is_direct {
                    true => (&mut self.direct_opens, &mut self.buffered_opens),
                    false => (&mut self.buffered_opens, &mut self.direct_opens),
                };
                opens.insert(opened);
                other_opens.remove(&opened);
            }
            Record::Advice(advice) => self.on_advice(advice),
            Record::Insert(insert) => self.on_insert(insert),
            Record::Read(read) => self.on_read(read),
            Record::Request(request) => self.on_request(request),
            Record::Mapped(mapped) => {
                let pages = PageRange::covering(mapped.offset, mapped.bytes);
                let file_data = self.files.entry(mapped.file).or_default();
                file_data.mapped.add(pages.first, pages.end);
                // The next read of this thread is the fault that has mapped the range.
                self.mapped.map(mapped);
            }
            Record::Unseen(unseen) => self.on_unseen(unseen),
            Record::Lost(lost) => self.lost += lost.count,
            Record::End(end) => {
                self.length_ns = self.length_ns.max(end.at_ns);
                // The kernel's sum leaves out daemons, which are no children of the program.
                let traced_ns = match self.has_measured_waits() {
                    true => self.spent_ns(Activity::Processor) as u64,
                    false => 0,
                };
                self.processor_ns = end.processor_ns.map(|counted_ns| counted_ns.max(traced_ns));
                self.calls.processor_ns = self.processor_ns;
            }
            Record::TimeSpent(spent) => {
                *self.spent_ns.entry(spent.activity).or_default() += spent.wall_ns;
            }
            Record::OthersRequests(others) => self.others_requests.push(others.clone()),
            Record::OthersSampled(others) => self.on_others_sampled(others),
            Record::Executable(mapped) => {
                self.files.entry(mapped.file).or_default().is_executable = true;
            }
            // No rule needs them.
            Record::Map(_) | Record::Evict(_) => {}
        }
    }

    /// Adds a read to its device. Adds writes, and reads by other programs, to the requests that
    /// may delay the program. The program's own requests also extend the length of the run.
    fn on_request(&mut self, request: &RequestRecord) {
        match request.work {
            DeviceOperation::Write => self.writes.add_request(request),
            DeviceOperation::Read if request.thread.is_none() => {
                self.other_reads.add_request(request);
                let device = self.devices.entry(request.device).or_default();
                device.other_reads.add(request.begin_ns, request.end_ns);
            }
            DeviceOperation::Read | DeviceOperation::Other => {}
        }
        // A read with a thread is one by the program.
        if request.work == DeviceOperation::Read && request.thread.is_some() {
            self.devices.entry(request.device).or_default().record_request(request);
            self.depth_sweep.add_request(request);
            self.count_ended_waits();
        }
        // Other programs' requests may end after this program.
        if request.thread.is_some() {
            self.length_ns = self.length_ns.max(request.end_ns);
        }
    }

    /// Completes the aggregation at the end of the recording: classifies the last waits, limits the
    /// time that waits at the same time share, and counts unclaimed pages as written.
    pub fn finish(&mut self) {
        self.writes.classify_until(u64::MAX);
        self.other_reads.classify_until(u64::MAX);
        self.depth_sweep.advance(u64::MAX);
        self.count_ended_waits();
        self.limit_passed_time();
        self.samples.values_mut().for_each(RunSample::end_run);
        self.devices.values_mut().for_each(|device| device.costs.finish());
        for thread in self.threads.values_mut() {
            for written in thread.inserted.drain(..) {
                let file = self.files.entry(written.file).or_default();
                file.written_bytes += written.bytes;
            }
        }
    }

    /// Wall time of an activity in nanoseconds; 0 if the recording has none.
    pub fn spent_ns(&self, activity: Activity) -> f64 {
        self.spent_ns.get(&activity).copied().unwrap_or(0) as f64
    }

    /// Wall time in nanoseconds in which the program may have waited for reads that were not seen.
    ///
    /// With times by activity, it is the time of unknown activity and the time that they leave out.
    /// Without them, a recording by the preloaded library or strace lacks touches of mappings: it
    /// is the time without a wait and without a processor. It is 0 for other recordings: as root
    /// all waits for reads are seen.
    pub fn unknown_ns(&self) -> f64 {
        if !self.spent_ns.is_empty() {
            // The rest has no activity: children of the program may extend the recording beyond its
            // end.
            let counted_ns: u64 = self.spent_ns.values().sum();
            let rest_ns = self.length_ns.saturating_sub(counted_ns);
            return self.spent_ns(Activity::Unknown) + rest_ns as f64;
        }
        // An unknown processor time counts as unknown. The sum of several threads may exceed the
        // length, and leaves nothing unknown.
        let known_ns = self.waits.union_ns() + self.processor_ns.unwrap_or(0);
        match self.source {
            RecordingMethod::Preload | RecordingMethod::Strace => {
                self.length_ns.saturating_sub(known_ns) as f64
            }
            _ => 0.0,
        }
    }

    /// Returns true if the recording has page cache insertions and measured waits, which only
    /// tracepoints report.
    pub fn has_measured_waits(&self) -> bool {
        self.source == RecordingMethod::Tracepoints
    }

    /// Returns true for a trace of requests, which has no durations and no calls.
    pub fn is_request_trace(&self) -> bool {
        self.source == RecordingMethod::Requests
    }

    /// Converts recorded waits to seconds. Returns `None` for a trace of requests.
    pub fn waited_seconds(&self, waited_ns: u64) -> Option<f64> {
        (!self.is_request_trace()).then_some(waited_ns as f64 / 1e9)
    }

    /// Returns the other program whose requests of kind `work` on a device have the most bytes.
    /// Programs without a name are ignored. `None` if there is no other.
    pub fn largest_other_program(
        &self,
        device: u64,
        work: DeviceOperation,
    ) -> Option<&OthersRequests> {
        let others = self
            .others_requests
            .iter()
            .filter(|requests| requests.device == device && requests.work == work);
        others.filter(|requests| !requests.name.is_empty()).max_by_key(|requests| requests.bytes)
    }

    /// Returns the bytes of files on a device that were fetched for the program.
    pub fn fetched_bytes(&self, device: u64) -> u64 {
        let files = self.files.values().filter(|file| file.device == device);
        files.map(|file| file.fetched_bytes).sum()
    }

    /// Returns the bytes that the program wrote into the page cache of files on a device.
    pub fn written_bytes(&self, device: u64) -> u64 {
        let files = self.files.values().filter(|file| file.device == device);
        files.map(|file| file.written_bytes).sum()
    }

    /// Adds requests of others between two samples as one request of that time.
    fn on_others_sampled(&mut self, others: &OthersSampled) {
        let &OthersSampled { end_ns, begin_ns, device, work, bytes } = others;
        let request =
            RequestRecord { end_ns, begin_ns, device, work, bytes, ..RequestRecord::default() };
        match work {
            DeviceOperation::Write => self.writes.add_sampled(&request),
            DeviceOperation::Read => {
                self.other_reads.add_sampled(&request);
                let device_data = self.devices.entry(device).or_default();
                device_data.sampled_other_reads_ns += end_ns - begin_ns;
                device_data.sampled_other_bytes += bytes;
            }
            DeviceOperation::Other => {}
        }
    }

    /// Adds reads that were not seen, with the waits for them.
    fn on_unseen(&mut self, unseen: &Unseen) {
        let sum = self.unseen.entry(unseen.way).or_default();
        sum.count += unseen.count;
        sum.waited_ns += unseen.waited_ns;
    }
}
