//! Recorder without root, by functions that are called in place of the C library's.
//!
//! A library (the crate `readpath-preload`) is loaded into the program and its children. It reports
//! each read in shared memory. Both crates include the file with its layout. Some reads bypass
//! these functions: touches of mappings, io_uring, and formatted input (`fscanf`). The first two
//! are sampled (state_samples.rs). The library is not loaded into statically
//! linked programs, into programs with other privileges than their starter, and into programs that
//! clear their environment. The kernel's count of reads for the program and its children shows the
//! missing share.
//!
//! The reports come from the recorded program. They are checked, and a false report can only make
//! its own recording wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};

use readpath_core::unit::PageRange;
use readpath_trace::recording::{
    AdviceGiven, AdviceType, EventsLost, PagesInserted, ReadMethod, ReadOutcome, ReadRecord,
    Record, RecordingEnd, RecordingMethod, RecordingWriter, path_text,
};

use super::advise::{Advisor, CalledRead, SHORT_BYTES_MAX};
use super::event::Inode;
use super::names::System;
use super::state_samples::{SamplePurpose, StateSampler};
use super::{RecordingSummary, first_record, now_ns, wall_ns};
use crate::cleanup::{CleanupKind, Record as CleanupEntry};
use crate::notice;

mod kernel_counts;
mod last_opens;
mod memory_advice;
mod opens;
mod own_requests;
mod pending;
mod recorded_names;
mod ring_reader;
mod sampled_reads;
mod shared_files;
mod sleep_times;

pub use kernel_counts::KernelCounts;

// Both crates include one layout file.
#[path = "../../preload/layout.rs"]
mod layout;

// A *cell* has space for one report, and a *ticket* is the number of a write to a ring. A cell is
// `ABANDONED` if its writer found the path too long. Bits from `REQUESTS_SHIFT` on show if the
// thread sent requests, and method numbers from `ADVICE` on are advice. `VARIABLE` names the
// environment variable in which the library finds the path of the shared memory.
use last_opens::LastOpens;
use layout::{ABANDONED, ADVICE, BYTES, Cells, REQUESTS_SHIFT, RecordRing, RingSlot, VARIABLE};
use memory_advice::{ProcessMappings, memory_advice_number};
use opens::{TakenOpen, TakenOpens};
use own_requests::OwnRequests;
use pending::PendingRecords;
use ring_reader::RingReader;
use shared_files::{
    LIBRARY_FILE, RING_FILE, create_private_folder, create_shared_files, remove_folder,
    temporary_folders,
};

/// Bytes of the preloaded library. Empty if the build could not make one.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));

/// Advice numbers of `posix_fadvise(2)`, from 0.
const HINTS: [AdviceType; 6] = [
    AdviceType::Normal,
    AdviceType::Random,
    AdviceType::Sequential,
    AdviceType::WillNeed,
    AdviceType::DontNeed,
    AdviceType::Other,
];

/// Upper bound of error numbers (exclusive).
const ERRNO_MAX: u64 = 4096;

/// Running recorder of one program.
#[derive(Debug)]
pub struct Preload {
    /// Private folder with the library's file and the shared memory.
    folder: PathBuf,
    /// Journal record for the removal of the folder by a later run, in case of a kill.
    _cleanup_entry: Option<CleanupEntry>,
    /// Shared memory, with a ring of reads and two rings of file names.
    ring: RecordRing,
    /// Reader of the reads.
    slot_reader: RingReader,
    /// Reader of the names with short paths.
    short_name_reader: RingReader,
    /// Reader of the names with long paths.
    long_name_reader: RingReader,
    /// Number in the recording of each file, by device and inode.
    files: BTreeMap<(u64, u64), u32>,
    /// Number in the recording of each thread, by its process (upper half) and its number.
    threads: BTreeMap<u64, u32>,
    /// Disk of each device.
    disks: BTreeMap<u64, u64>,
    /// Source of the names of disks, and of files for the advisor.
    system: System,
    /// Start of the recording by the monotonic clock.
    start_ns: u64,
    /// Start of the recording in nanoseconds since 1970.
    wall_ns: u64,
    /// Number of lost reports that the recording contains.
    lost: u64,
    /// Number of reads by calls, and by io_uring also of an unknown file. Page faults are left out.
    reads: u64,
    /// Number of these reads by AIO and io_uring.
    asynchronous_reads: u64,
    /// Prefetcher for the program, if it is advised.
    advisor: Option<Advisor>,
    /// Samples of the program's threads and mappings. `None` before the program starts, and where
    /// the kernel denies them.
    states: Option<StateSampler>,
    /// Device and inode of each file that a call has read. Sampled faults of these files are left
    /// out.
    called_files: BTreeSet<(u64, u64)>,
    /// Records that wait for the samples of their time.
    pending: PendingRecords,
    /// Reported opens that are not yet recorded.
    opens: TakenOpens,
    /// Opens that the recording contains.
    written_opens: LastOpens,
    /// Counts of the bytes that threads requested from devices.
    own_requests: OwnRequests,
    /// Mappings of the processes with advice in the present `record`, by process.
    advised_mappings: BTreeMap<u32, ProcessMappings>,
    /// Number of the started process. 0 before its start.
    process: u32,
}

/// Summary of such a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preloaded {
    /// Summary common to all recorders.
    pub summary: RecordingSummary,
    /// Number of programs that loaded the library.
    pub programs: u64,
    /// Number of reads by calls, and by io_uring also of an unknown file. Page faults are left out.
    pub reads: u64,
    /// Number of these reads by AIO and io_uring.
    pub asynchronous_reads: u64,
    /// Number of programs that entered a sandbox (seccomp), in which they are not recorded.
    pub sandboxed: u64,
    /// Number of calls that were not recorded: in a sandbox, or on a small signal stack.
    pub unrecorded: u64,
}

impl Preload {
    /// Creates the shared memory and the library's file in a new private folder, which is removed
    /// with this value. `library`: bytes of the library.
    ///
    /// # Errors
    /// No folder of temporary files has enough space and allows programs to be loaded from it.
    pub fn start(library: &[u8]) -> io::Result<Preload> {
        // The first folder of temporary files in which everything succeeds.
        let mut failures = Vec::new();
        let folder_and_ring = temporary_folders().into_iter().find_map(|parent| {
            let created = create_private_folder(&parent).and_then(|folder| {
                let shared =
                    create_shared_files(&folder, library).inspect_err(|_| remove_folder(&folder));
                Ok((folder, shared?))
            });
            created.map_err(|error| failures.push(format!("{}: {error}", parent.display()))).ok()
        });
        let Some((folder, ring)) = folder_and_ring else {
            let size_kib = (BYTES + library.len() as u64).div_ceil(1 << 10);
            let hint = "name a folder with room in TMPDIR, or allow larger files (`ulimit -f`)";
            let failures = failures.join("; ");
            return Err(io::Error::other(format!("{size_kib} KiB are needed: {failures}; {hint}")));
        };
        let cleanup_entry = CleanupEntry::write_record(CleanupKind::Folder, &folder)
            .inspect_err(|error| {
                let folder = folder.display();
                notice::print(format_args!(
                    "{folder} stays behind if this command is killed: {error}"
                ));
            })
            .ok();
        Ok(Preload {
            folder,
            _cleanup_entry: cleanup_entry,
            ring,
            slot_reader: RingReader::new(Cells::Slots),
            short_name_reader: RingReader::new(Cells::Short),
            long_name_reader: RingReader::new(Cells::Long),
            files: BTreeMap::new(),
            threads: BTreeMap::new(),
            disks: BTreeMap::new(),
            system: System::new(),
            start_ns: now_ns(),
            wall_ns: wall_ns(),
            lost: 0,
            reads: 0,
            asynchronous_reads: 0,
            advisor: None,
            states: None,
            called_files: BTreeSet::new(),
            pending: PendingRecords::default(),
            opens: TakenOpens::default(),
            written_opens: LastOpens::default(),
            own_requests: OwnRequests::default(),
            advised_mappings: BTreeMap::new(),
            process: 0,
        })
    }

    /// Returns the first record. `program` is the name of the program's file.
    pub fn first_record(&self, program: &str) -> Record {
        first_record(RecordingMethod::Preload, self.wall_ns, program)
    }

    /// Starts a program with the library loaded, and then the samples of its activities. An advisor
    /// also gets samples of the touched pages of mappings. A recording without an advisor also gets
    /// the reads by io_uring, the page faults and the requests of other programs. Without access to
    /// the program's state in `/proc` there are no samples, which is no error.
    ///
    /// `LD_PRELOAD` and `ASAN_OPTIONS` of this process are extended and passed on. Values that
    /// `command` has for them are replaced.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(&mut self, mut command: Command) -> io::Result<Child> {
        let mut libraries: OsString = self.folder.join(LIBRARY_FILE).into();
        if let Some(others) = std::env::var_os(PRELOAD_VARIABLE).filter(|text| !text.is_empty()) {
            libraries.push(":");
            libraries.push(others);
        }
        // AddressSanitizer's shared run time ends a program if another library precedes it. Here
        // this order is required and harmless, because this library forwards calls to the
        // sanitizer's functions.
        let mut sanitizer = std::env::var_os(SANITIZER_VARIABLE).unwrap_or_default();
        if !sanitizer.is_empty() {
            sanitizer.push(":");
        }
        sanitizer.push("verify_asan_link_order=0");
        let ring_variable = VARIABLE.to_str().expect("the name of the variable is ASCII");
        command.env(PRELOAD_VARIABLE, libraries).env(SANITIZER_VARIABLE, sanitizer);
        // The recording begins with the program, and not with the preparation of the shared memory.
        (self.start_ns, self.wall_ns) = (now_ns(), wall_ns());
        let child = command.env(ring_variable, self.folder.join(RING_FILE)).spawn()?;
        let purpose = match self.advisor {
            Some(_) => SamplePurpose::Prefetch,
            None => SamplePurpose::Record,
        };
        self.states = StateSampler::start(child.id(), purpose);
        self.process = child.id();
        Ok(child)
    }

    /// Starts to prefetch for the reads that are reported. At most `budget_bytes` bytes are
    /// prefetched and not yet used. Call it before the program starts. Unless `is_recorded`, the
    /// library reports no reads of files that get no advice: a report takes several system calls
    /// per opened file.
    pub fn advise(&mut self, budget_bytes: u64, is_recorded: bool) {
        self.advisor = Some(Advisor::of_calls(budget_bytes));
        if !is_recorded {
            self.ring.head().unreported_bytes_max.store(SHORT_BYTES_MAX, Ordering::Relaxed);
        }
    }

    /// Returns true while each read of an advised program is needed at once.
    pub fn is_awake(&self) -> bool {
        self.advisor.as_ref().is_some_and(|advisor| advisor.is_awake(now_ns()))
    }

    /// Number of programs that have loaded the library so far.
    pub fn programs(&self) -> u64 {
        self.ring.head().programs.load(Ordering::Relaxed)
    }

    /// Writes the reads since the last call to a recording, with the sampled ones and the count of
    /// lost reads. The advisor, if there is one, sees the reads and judges its advice. Returns true
    /// when a ring was more than a quarter full, so the next call should come soon.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn record<W: Write>(&mut self, writer: &mut RecordingWriter<W>) -> io::Result<bool> {
        let ring = self.ring;
        let mut slots: Vec<RingSlot> = Vec::new();
        // At most one ring: a program may write as fast as this loop reads.
        while slots.len() < Cells::Slots.count() as usize
            && let Some(ticket) = self.slot_reader.next_ticket(ring)
        {
            slots.push(copy_slot(ring.slot(ticket)));
            self.slot_reader.release_cell(ring, ticket);
        }
        // Taken after the reads: a program reports the name of a file before its first read, so
        // the names of all these files are there.
        let short = self.take_names(Cells::Short, writer)?;
        let long = self.take_names(Cells::Long, writer)?;
        slots.sort_by_key(|slot| slot.end_ns.load(Ordering::Relaxed));
        // The slots were taken before their mappings are read: one reading serves all.
        self.advised_mappings.clear();
        for slot in &slots {
            self.put_opens_until(get(&slot.end_ns), writer)?;
            self.record_slot(slot, writer)?;
        }
        self.put_held_opens(writer)?;
        // Without the end (`false`), young records wait for their samples.
        self.record_pending(false, writer)?;
        self.record_sampled_reads(writer)?;
        if let Some(advisor) = &mut self.advisor {
            advisor.judge_periodically(now_ns());
            advisor.continue_whole_files(now_ns());
        }
        // A program that overwrites the count cannot lower it.
        let lost = ring.head().lost.load(Ordering::Relaxed).max(self.lost);
        if lost > self.lost {
            let at_ns = now_ns() - self.start_ns;
            writer.put(Record::Lost(EventsLost { at_ns, count: lost - self.lost }))?;
            self.lost = lost;
        }
        // Cells taken from each ring.
        let counts =
            [(Cells::Slots, slots.len() as u64), (Cells::Short, short), (Cells::Long, long)];
        Ok(counts.iter().any(|(cells, count)| count * 4 > cells.count()))
    }

    /// Writes the rest of the recording, and its end. `processor_ns`: processor time of the
    /// program, if it is known. `has_exited` is true if the program has ended.
    ///
    /// # Errors
    /// The recording cannot be written.
    pub fn finish<W: Write>(
        mut self,
        mut writer: RecordingWriter<W>,
        processor_ns: Option<u64>,
        has_exited: bool,
    ) -> io::Result<Preloaded> {
        // The last samples are recorded as well.
        self.states.iter_mut().for_each(StateSampler::stop);
        self.record(&mut writer)?;
        self.put_opens_until(u64::MAX, &mut writer)?;
        // With the end (`true`), no record waits any longer.
        self.record_pending(true, &mut writer)?;
        let at_ns = now_ns() - self.start_ns;
        let times = self.states.take().map(|states| states.finish(at_ns)).unwrap_or_default();
        times.into_iter().try_for_each(|time| writer.put(time))?;
        // The number of reads by POSIX AIO, which have no slots.
        self.record_helper_reads(at_ns, &mut writer)?;
        writer.put(Record::End(RecordingEnd { at_ns, processor_ns, has_exited }))?;
        writer.finish()?.flush()?;
        let seconds = at_ns as f64 / 1e9;
        let summary = RecordingSummary {
            seconds,
            lost: self.lost,
            // Only recordings of the kernel's events have the next two.
            unlocated_reads: 0,
            incomplete_programs: 0,
            help: self.advisor.take().map(Advisor::finish),
        };
        let head = self.ring.head();
        Ok(Preloaded {
            summary,
            programs: self.programs(),
            reads: self.reads,
            asynchronous_reads: self.asynchronous_reads,
            sandboxed: head.sandboxed.load(Ordering::Relaxed),
            unrecorded: head.unrecorded.load(Ordering::Relaxed),
        })
    }

    /// Writes the names of one ring (`Cells::Short` or `Cells::Long`) to the recording, and keeps
    /// their opens. Returns the number of cells taken, including abandoned ones, which have no
    /// name. It takes at most one round of the ring. Fails if the recording cannot be written.
    fn take_names<W: Write>(
        &mut self,
        cells: Cells,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<u64> {
        let (ring, mut count) = (self.ring, 0);
        while count < cells.count() {
            let names = match cells {
                Cells::Long => &mut self.long_name_reader,
                _ => &mut self.short_name_reader,
            };
            let Some(ticket) = names.next_ticket(ring) else { break };
            count += 1;
            let (name, path) = ring.name(cells, ticket);
            let path_bytes = get(&name.path_bytes);
            let length = path_bytes.min(cells.path_room() as u64) as usize;
            // SAFETY: the path's space lies in the mapping, and its bytes are copied once.
            let path: Vec<u8> =
                (0..length).map(|index| unsafe { path.add(index).read_volatile() }).collect();
            let device_and_inode = (get(&name.device), get(&name.inode));
            let (bytes, task, opened) = (get(&name.bytes), get(&name.task), get(&name.opened));
            let at_ns = get(&name.at_ns);
            names.release_cell(ring, ticket);
            if path_bytes != ABANDONED {
                let path = path_text(&path);
                let file = self.file_number(device_and_inode, Some((path, bytes)), writer)?;
                self.opens.add(TakenOpen::new(at_ns, file, task, opened));
            }
        }
        Ok(count)
    }

    /// Records the read or the advice that a program reported in a slot. Fails if the recording
    /// cannot be written.
    fn record_slot<W: Write>(
        &mut self,
        slot: &RingSlot,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        if let Some(number) = memory_advice_number(slot) {
            return self.record_memory_advice(slot, number, writer);
        }
        let file = self.file_number((get(&slot.device), get(&slot.inode)), None, writer)?;
        let thread = self.thread(get(&slot.task), writer)?;
        let record = self.record_of_slot(slot, file, thread);
        if let Record::Read(read) = &record {
            self.advise_after(slot, read);
            self.called_files.insert((get(&slot.device), get(&slot.inode)));
            let requests = get(&slot.method_and_descriptor) >> REQUESTS_SHIFT;
            if self.longest_wait(read) > 0
                && self.own_requests.sent_none(get(&slot.device), requests)
            {
                // The thread waited for the request of another one, or for a processor. A record of
                // 0 inserted bytes shows that it sent none.
                let &ReadRecord { end_ns: at_ns, thread, file, offset, .. } = read;
                let none = PagesInserted { at_ns, thread, file, offset, bytes: 0 };
                self.put_called(Record::Insert(none), get(&slot.task), writer)?;
            }
        }
        self.put_called(record, get(&slot.task), writer)
    }

    /// Writes a record of the library. One with impossible values counts as lost. Any other error
    /// of the writer is returned.
    fn put_checked<W: Write>(
        &mut self,
        record: Record,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let method = if let Record::Read(read) = &record { Some(read.way) } else { None };
        match writer.put(record) {
            Ok(()) => {
                self.reads += u64::from(method.is_some());
                self.asynchronous_reads += u64::from(method == Some(ReadMethod::Aio));
            }
            // No kernel returns such values, so the program's report is discarded.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.ring.head().lost.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the read or the advice in a slot, of this file and thread of the recording. Its wait
    /// is 0, as unknown: the library sees only the duration of the call.
    fn record_of_slot(&self, slot: &RingSlot, file: u32, thread: u32) -> Record {
        // The descriptor is in the lower 32 bits, the method in the bits above.
        let word = get(&slot.method_and_descriptor);
        let (method_number, descriptor) = (word >> 32 & METHOD_MASK, word & u64::from(u32::MAX));
        let begin_ns = get(&slot.begin_ns).saturating_sub(self.start_ns);
        let end_ns = get(&slot.end_ns).saturating_sub(self.start_ns);
        let (offset, asked_bytes) = (get(&slot.offset), get(&slot.requested_bytes));
        match METHODS.get(method_number as usize) {
            Some(&method) => {
                // Results from -4095 to -1 are negated error numbers. A lower one becomes more
                // bytes than any read returns, and `put_checked` discards the record.
                let result = get(&slot.result);
                let outcome = match result.wrapping_neg() {
                    errno if result as i64 >= 0 || errno >= ERRNO_MAX => ReadOutcome::Bytes(result),
                    errno => ReadOutcome::Error(errno as u32),
                };
                let descriptor = Some(descriptor);
                let (waited_ns, begin_ns) = (0, begin_ns.min(end_ns));
                Record::Read(ReadRecord {
                    end_ns,
                    begin_ns,
                    waited_ns,
                    thread,
                    way: method,
                    descriptor,
                    file,
                    offset,
                    asked_bytes,
                    outcome,
                })
            }
            // Any other number is advice, also a false one.
            None => {
                let advice_number = method_number.saturating_sub(ADVICE) as usize;
                let hint = HINTS.get(advice_number).copied().unwrap_or(AdviceType::Other);
                let (at_ns, bytes) = (end_ns, asked_bytes);
                Record::Advice(AdviceGiven {
                    at_ns,
                    thread,
                    file,
                    offset,
                    bytes,
                    hint,
                    is_of_mapping: false,
                })
            }
        }
    }

    /// Shows a read to the advisor, if there is one. `slot` contains the report of the read. A read
    /// of no bytes only counts with its wait.
    fn advise_after(&mut self, slot: &RingSlot, read: &ReadRecord) {
        let waited_ns = self.longest_wait(read);
        let Some(advisor) = &mut self.advisor else { return };
        let inode = Inode { device: get(&slot.device), number: get(&slot.inode) };
        let range = PageRange::covering(read.offset, read.bytes_read());
        let task = get(&slot.task) as u32;
        let call = CalledRead { task, inode, range, has_waited: waited_ns > 0 };
        advisor.on_record(&Record::Read(ReadRecord { waited_ns, ..*read }));
        if !range.is_empty() {
            advisor.on_call(call, &mut self.system, now_ns());
        }
    }
}

/// Loads a value of a slot.
fn get(value: &AtomicU64) -> u64 {
    value.load(Ordering::Relaxed)
}

impl Drop for Preload {
    fn drop(&mut self) {
        remove_folder(&self.folder);
    }
}

/// Bits of a method number in a slot.
const METHOD_MASK: u64 = (1 << (REQUESTS_SHIFT - 32)) - 1;

/// Read methods, by the numbers in the slots.
const METHODS: [ReadMethod; 6] = [
    ReadMethod::Read,
    ReadMethod::Pread,
    ReadMethod::Readv,
    ReadMethod::Preadv,
    ReadMethod::Copied,
    ReadMethod::Aio,
];

/// Variable of the loader that names libraries to load first.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Variable with the options of AddressSanitizer.
const SANITIZER_VARIABLE: &str = "ASAN_OPTIONS";

/// Copies a slot, which a program may overwrite after its release.
fn copy_slot(slot: &RingSlot) -> RingSlot {
    let copy = |value: &AtomicU64| AtomicU64::new(value.load(Ordering::Relaxed));
    RingSlot {
        turn: copy(&slot.turn),
        begin_ns: copy(&slot.begin_ns),
        end_ns: copy(&slot.end_ns),
        task: copy(&slot.task),
        method_and_descriptor: copy(&slot.method_and_descriptor),
        device: copy(&slot.device),
        inode: copy(&slot.inode),
        offset: copy(&slot.offset),
        requested_bytes: copy(&slot.requested_bytes),
        result: copy(&slot.result),
    }
}
