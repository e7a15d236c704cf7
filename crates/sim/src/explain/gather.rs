//! What is remembered of a recording: of each file what was asked for, fetched and waited for, of
//! each device its requests, of each thread its reads.

use std::collections::{BTreeMap, BTreeSet};

use readpath_core::unit::PageRange;

use super::cause::{self, ReadWait};
use super::pattern::AccessStreams;
use super::reuse::ReuseSample;
use super::spans::IntervalUnion;
use super::writes::WriteInterference;
use super::{LOW_DEPTH, WaitCause};
use crate::page_set::{PAGE_BYTES, PageSet};
use crate::recording::{
    AdviceType, DeviceOperation, FaultUse, MappedUse, PagesInserted, ReadMethod, ReadOutcome,
    ReadRecord, Record, RecordingMethod, Unseen,
};

/// Where nobody saw what a read waited for, it waited for what it took beyond this and beyond the
/// copying of its bytes, of which a slow machine does one in a nanosecond.
const READ_WITHOUT_WAIT_NS: u64 = 20_000;

/// Runs of pages that a thread puts into the page cache and that belong to no read: it writes.
const INSERTED_MAX: usize = 1 << 12;

/// Waits that are charged alike.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct WaitSum {
    pub waits: u64,
    pub ns: u64,
    /// What was fetched for them.
    pub bytes: u64,
}

impl WaitSum {
    fn add(&mut self, ns: u64, bytes: u64) {
        self.waits += 1;
        self.ns += ns;
        self.bytes += bytes;
    }
}

/// What is remembered of a file.
#[derive(Debug, Default)]
pub(super) struct FileData {
    pub path: String,
    pub device: u64,
    pub bytes: Option<u64>,
    pub reads: u64,
    pub got_bytes: u64,
    pub asked: PageSet,
    /// Pages that faults mapped: the program may have used each of them.
    pub mapped: PageSet,
    pub fetched: PageSet,
    pub fetched_bytes: u64,
    pub again_bytes: u64,
    pub waits: WaitSum,
    /// By what they are charged to; `None` where nothing is wrong with them.
    pub charges: BTreeMap<Option<WaitCause>, WaitSum>,
    /// What the kernel was last told of the file, and of mappings of it.
    hint: Option<AdviceType>,
    mapped_hint: Option<AdviceType>,
    /// Pages that were fetched once more.
    again: PageSet,
}

impl FileData {
    /// Adds to what was fetched; says how many bytes of it had been fetched before.
    fn fetch(&mut self, offset: u64, bytes: u64) -> u64 {
        let PageRange { first, end } = PageRange::covering(offset, bytes);
        let added = self.fetched.add(first, end);
        let again = (end - first - added) * PAGE_BYTES;
        self.fetched_bytes += bytes;
        self.again_bytes += again.min(bytes);
        if again * 2 > bytes {
            self.again.add(first, end);
        }
        again.min(bytes)
    }

    /// Number of pages that were fetched and can't have been used.
    pub fn unused_pages(&self) -> u64 {
        self.fetched.count_without_both(&self.asked, &self.mapped)
    }

    /// What the kernel was told that counts for reads by this way.
    pub fn hint(&self, way: ReadMethod) -> Option<AdviceType> {
        if way == ReadMethod::Fault { self.mapped_hint } else { self.hint }
    }
}

/// What is remembered of a thread.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadData {
    pub name: String,
    pub task: u32,
    pub reads: u64,
    pub got_bytes: u64,
    pub waited_ns: u64,
    /// What it has put into the page cache since its last read: the call's beginning, file, offset,
    /// bytes, and how many of them had been fetched before.
    inserted: Vec<(u64, u32, u64, u64, u64)>,
}

/// What is remembered of a device.
#[derive(Debug, Default)]
pub(super) struct DeviceData {
    pub name: String,
    /// Requests to read of watched threads.
    pub reads: IntervalUnion,
    pub read_bytes: u64,
}

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct RecordingData {
    source: RecordingMethod,
    pub program: String,
    pub length_ns: u64,
    pub processor_ns: Option<u64>,
    pub lost: u64,
    pub files: BTreeMap<u32, FileData>,
    pub threads: BTreeMap<u32, ThreadData>,
    pub devices: BTreeMap<u64, DeviceData>,
    /// Which descriptors are read past the page cache.
    direct: BTreeSet<(u32, u64)>,
    pub waits: IntervalUnion,
    pub waited_ns: u64,
    pub reads: u64,
    pub got_bytes: u64,
    pub errors: u64,
    pub pattern: AccessStreams,
    pub reuse: ReuseSample,
    mapped: MappedUse,
    /// By way: reads of which the bytes are not known, and the waits for them in nanoseconds.
    pub unseen: BTreeMap<ReadMethod, (u64, u64)>,
    pub writes: WriteInterference,
    /// Sizes of reads and lengths of waits, by the logarithm of base 2.
    pub sizes: BTreeMap<u32, u64>,
    pub wait_sizes: BTreeMap<u32, u64>,
    pub by_way: BTreeMap<ReadMethod, u64>,
}

impl RecordingData {
    pub fn take(&mut self, record: &Record) {
        match record {
            Record::Start(start) => {
                self.source = start.source;
                self.program.clone_from(&start.program);
            }
            Record::Device(device) => {
                self.devices.entry(device.device).or_default().name.clone_from(&device.name);
            }
            Record::File(file) => {
                let facts = self.files.entry(file.file).or_default();
                facts.path.clone_from(&file.path);
                (facts.device, facts.bytes) = (file.device, file.bytes);
            }
            Record::Thread(thread) => {
                let facts = self.threads.entry(thread.thread).or_default();
                facts.name.clone_from(&thread.name);
                facts.task = thread.task;
            }
            Record::Open(open) => {
                let opened = (open.file, open.descriptor);
                match open.is_direct {
                    true => self.direct.insert(opened),
                    false => self.direct.remove(&opened),
                };
            }
            Record::Advice(advice) => {
                let facts = self.files.entry(advice.file).or_default();
                if matches!(
                    advice.hint,
                    AdviceType::Normal | AdviceType::Random | AdviceType::Sequential
                ) {
                    match advice.is_of_mapping {
                        true => facts.mapped_hint = Some(advice.hint),
                        false => facts.hint = Some(advice.hint),
                    }
                }
            }
            Record::Insert(insert) => self.insert(insert),
            Record::Read(read) => self.read(read),
            Record::Request(request) => {
                self.writes.take(request);
                if request.work == DeviceOperation::Read && request.thread.is_some() {
                    let device = self.devices.entry(request.device).or_default();
                    device.reads.add(request.begin_ns, request.end_ns);
                    device.read_bytes += request.bytes;
                }
                self.length_ns = self.length_ns.max(request.end_ns);
            }
            Record::Mapped(mapped) => {
                let pages = PageRange::covering(mapped.offset, mapped.bytes);
                let facts = self.files.entry(mapped.file).or_default();
                facts.mapped.add(pages.first, pages.end);
                self.mapped.map(mapped);
            }
            Record::Unseen(unseen) => self.unseen(unseen),
            Record::Lost(lost) => self.lost += lost.count,
            Record::End(end) => {
                self.length_ns = self.length_ns.max(end.at_ns);
                self.processor_ns = end.processor_ns;
            }
            Record::Map(_) | Record::Evict(_) => {}
        }
    }

    pub fn end(&mut self) {
        self.writes.settle(u64::MAX);
    }

    fn insert(&mut self, insert: &PagesInserted) {
        let &PagesInserted { at_ns, thread, file, offset, bytes } = insert;
        let again = self.files.entry(file).or_default().fetch(offset, bytes);
        let facts = self.threads.entry(thread).or_default();
        if facts.inserted.len() >= INSERTED_MAX {
            facts.inserted.clear();
        }
        facts.inserted.push((at_ns, file, offset, bytes, again));
    }

    fn read(&mut self, read: &ReadRecord) {
        let fault = (read.way == ReadMethod::Fault).then(|| self.mapped.fault(read));
        let pages = |range: PageRange| (range.first * PAGE_BYTES, range.end * PAGE_BYTES);
        let (offset, end) = match &fault {
            Some(fault) => pages(fault.mapped),
            None => (read.offset, read.offset + read.asked_bytes),
        };
        let reader = (read.thread, read.file, read.descriptor);
        let goes_on = self.pattern.take(reader, offset, end);
        let got = fault.as_ref().map_or(read.got_bytes(), |fault| {
            fault.used.iter().map(|range| range.count() * PAGE_BYTES).sum()
        });
        self.reads += 1;
        self.got_bytes += got;
        self.errors += u64::from(matches!(read.outcome, ReadOutcome::Error(_)));
        self.length_ns = self.length_ns.max(read.end_ns);
        *self.by_way.entry(read.way).or_default() += 1;
        *self.sizes.entry(read.asked_bytes.max(1).ilog2()).or_default() += 1;
        self.take_pages(read, fault.as_ref());

        let facts = self.files.entry(read.file).or_default();
        facts.reads += 1;
        facts.got_bytes += got;
        let thread = self.threads.entry(read.thread).or_default();
        thread.reads += 1;
        thread.got_bytes += got;
        let (mut fetched_bytes, mut again_bytes, mut ahead_bytes) = (0, 0, 0);
        for (at_ns, file, at, bytes, again) in thread.inserted.drain(..) {
            if at_ns >= read.begin_ns && file == read.file {
                fetched_bytes += bytes;
                again_bytes += again;
                let within = end.min(at + bytes).saturating_sub(offset.max(at));
                ahead_bytes += bytes - within.min(bytes);
            }
        }
        let is_direct = read
            .descriptor
            .is_some_and(|descriptor| self.direct.contains(&(read.file, descriptor)));
        let is_seen = self.source == RecordingMethod::Tracepoints;
        let waited_ns = match is_seen {
            true => read.waited_ns,
            false => read.took_ns().saturating_sub(READ_WITHOUT_WAIT_NS + got),
        };
        let is_untold = is_direct || (!is_seen && waited_ns > 0);
        if got > 0 && fetched_bytes == 0 && is_untold {
            again_bytes = facts.fetch(read.offset, got);
            fetched_bytes = got;
        }
        if waited_ns == 0 {
            return;
        }
        if fetched_bytes == 0 && facts.again.has(read.offset / PAGE_BYTES) {
            // It waited for what was being read ahead, and that had been fetched before.
            again_bytes = u64::MAX;
        }
        let wait = ReadWait {
            way: read.way,
            goes_on,
            hint: facts.hint(read.way),
            asked_bytes: read.asked_bytes,
            fetched_bytes,
            again_bytes,
            ahead_bytes,
        };
        let cause = cause::of(&wait);
        facts.waits.add(waited_ns, fetched_bytes);
        facts.charges.entry(cause).or_default().add(waited_ns, fetched_bytes);
        thread.waited_ns += waited_ns;
        self.waited_ns += waited_ns;
        let span = (read.end_ns.saturating_sub(waited_ns), read.end_ns);
        self.waits.add(span.0, span.1);
        if fetched_bytes > 0 {
            self.writes.wait(facts.device, span, fetched_bytes);
        }
        *self.wait_sizes.entry(waited_ns.ilog2()).or_default() += 1;
    }

    /// The pages that a read asks for.
    fn take_pages(&mut self, read: &ReadRecord, fault: Option<&FaultUse>) {
        let called = [PageRange::covering(read.offset, read.got_bytes())];
        let facts = self.files.entry(read.file).or_default();
        if let Some(fault) = fault {
            facts.mapped.add(fault.mapped.first, fault.mapped.end);
        }
        for pages in fault.map_or(&called[..], |fault| &fault.used) {
            facts.asked.add(pages.first, pages.end);
            self.reuse.take(read.file, *pages);
        }
    }

    fn unseen(&mut self, unseen: &Unseen) {
        let (count, waited_ns) = self.unseen.entry(unseen.way).or_default();
        *count += unseen.count;
        *waited_ns += unseen.waited_ns;
    }

    /// How many requests devices had to read on average while they had any; of the waits where no
    /// requests were seen.
    pub fn depth(&self) -> f64 {
        let count: u64 = self.devices.values().map(|device| device.reads.count()).sum();
        if count == 0 {
            return self.waits.depth();
        }
        let sum: u64 = self.devices.values().map(|device| device.reads.sum_ns()).sum();
        let union: u64 = self.devices.values().map(|device| device.reads.union_ns()).sum();
        sum as f64 / union.max(1) as f64
    }

    /// Whether devices had little to do at a time.
    pub fn is_depth_low(&self) -> bool {
        self.depth() < LOW_DEPTH
    }

    /// All charges to a cause, and the file with the most of them.
    pub fn charged(&self, cause: WaitCause) -> (WaitSum, Option<&FileData>) {
        let mut all = WaitSum::default();
        let mut most: Option<(&FileData, u64)> = None;
        for file in self.files.values() {
            let Some(charge) = file.charges.get(&Some(cause)) else { continue };
            all.waits += charge.waits;
            all.ns += charge.ns;
            all.bytes += charge.bytes;
            if most.is_none_or(|(_, ns)| charge.ns > ns) {
                most = Some((file, charge.ns));
            }
        }
        (all, most.map(|(file, _)| file))
    }
}
