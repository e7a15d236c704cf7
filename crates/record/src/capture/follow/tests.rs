//! Event sequences of the kernel, with the records worked out by hand.

use readpath_trace::recording::{
    AdviceType, DeviceOperation, DeviceRecord, OthersRequests, ReadMethod, ReadRecord,
    RequestRecord,
};

use super::super::event::{Sleep, SubmittedRead};
use super::super::maps::{MappedPage, Mapping};
use super::super::names::OpenFile;
use super::*;

/// Source of names with one file, known by its inode and as descriptor 5 of any process.
#[derive(Debug)]
pub(super) struct KnownFile;

pub(super) const INODE: Inode = Inode { device: 8 << 20 | 1, number: 12 };
pub(super) const DISK: u64 = 8 << 20;

/// Path and length of the one file.
fn named_file() -> NamedFile {
    NamedFile { path: "/data".to_owned(), bytes: Some(1 << 20) }
}

/// Number of the device of `/proc`.
const PROC: u64 = 21;

impl FileNames for KnownFile {
    fn file(&mut self, inode: Inode) -> Option<NamedFile> {
        (inode == INODE).then(named_file)
    }

    fn open_file(&mut self, _: u32, descriptor: u64) -> Option<OpenFile> {
        let flags = libc::O_DIRECT as u64;
        let open = OpenFile { inode: INODE, named: named_file(), position: 512, flags };
        (descriptor == 5).then_some(open)
    }

    fn mappings(&mut self, _: u32) -> Vec<(u64, Mapping, NamedFile)> {
        Vec::new()
    }

    fn pages_mapped_around(&mut self, _: &MappedPage) -> Option<PageRange> {
        None
    }

    fn disk(&mut self, device: u64) -> DeviceRecord {
        // The partition lies on the disk.
        let device = if device == INODE.device { DISK } else { device };
        DeviceRecord { device, name: "sda".to_owned(), ..DeviceRecord::default() }
    }

    fn is_without_storage(&self, device: u64) -> bool {
        device == PROC
    }
}

/// Records of task 70 with these events, at times relative to the start.
pub(super) fn records(events: Vec<(u64, EventData)>) -> Vec<Record> {
    let mut follow = TaskTracker::new(KnownFile, 1000);
    follow.add_task(70, 70, "cat");
    for (at_ns, data) in events {
        follow.process(TraceEvent { at_ns: 1000 + at_ns, task: 70, data });
    }
    follow.finish(u64::MAX).collect()
}

/// Returns the read records.
pub(super) fn reads(records: &[Record]) -> Vec<&ReadRecord> {
    let matching = records.iter().filter_map(|record| match record {
        Record::Read(read) => Some(read),
        _ => None,
    });
    matching.collect()
}

/// Switch of a processor between tasks. `is_waiting`: the task that leaves sleeps for a request.
pub(super) fn switch(from: u32, to: u32, is_waiting: bool) -> EventData {
    EventData::Switch {
        from,
        from_name: "cat".to_owned(),
        sleep: is_waiting.then_some(Sleep::Uninterruptible),
        to,
        to_name: "cat".to_owned(),
    }
}

/// Task 70 leaves its processor to sleep.
pub(super) fn falls_asleep() -> EventData {
    let is_waiting = true;
    switch(70, 0, is_waiting)
}

/// Task 70 runs again.
pub(super) fn resumes() -> EventData {
    let is_waiting = false;
    switch(0, 70, is_waiting)
}

/// Begin of a system call with these first arguments.
pub(super) fn enter(call: SystemCall, arguments: [u64; 4]) -> EventData {
    let [a, b, c, d] = arguments;
    EventData::Enter(call, [a, b, c, d, 0, 0])
}

/// Three reads: one that sleeps from 26 to 96 for absent pages, one of cached pages at the position
/// after the first, and one after a seek.
#[test]
fn read_record_has_file_offset_and_wait() {
    let records = records(vec![
        (10, enter(SystemCall::OpenAt, [0, 0, 0, 0])),
        (11, EventData::Exit(SystemCall::OpenAt, 3)),
        (20, enter(SystemCall::Read, [3, 0, 8192, 0])),
        (21, EventData::CacheRead { inode: INODE, first: 0, end: 2 }),
        (22, EventData::Insert { inode: INODE, first: 0, count: 4 }),
        (23, EventData::Insert { inode: INODE, first: 4, count: 4 }),
        (
            24,
            EventData::Queue {
                device: INODE.device,
                sector: 800,
                sectors: 64,
                name: String::new(),
            },
        ),
        (25, EventData::Issue { device: DISK, sector: 800, bytes: 32768, flags: "RA".to_owned() }),
        (26, falls_asleep()),
        // The stack of the sleep is no end of the wait. The wake-up is: the task then waits for a
        // processor.
        (26, EventData::Stack { addresses: vec![1] }),
        (90, EventData::Complete { device: DISK, sector: 800, sectors: 64 }),
        (91, EventData::Wake { task: 70 }),
        (96, resumes()),
        (100, EventData::Exit(SystemCall::Read, 8192)),
        (110, enter(SystemCall::Read, [3, 0, 8192, 0])),
        (111, EventData::CacheRead { inode: INODE, first: 2, end: 4 }),
        (115, EventData::Exit(SystemCall::Read, 100)),
        (120, enter(SystemCall::Lseek, [3, 0, 0, 0])),
        (121, EventData::Exit(SystemCall::Lseek, 64)),
        (130, enter(SystemCall::Read, [3, 0, 10, 0])),
        (131, EventData::CacheRead { inode: INODE, first: 0, end: 1 }),
        (132, EventData::Exit(SystemCall::Read, 10)),
    ]);
    let reads = reads(&records);
    let actual: Vec<_> = reads
        .iter()
        .map(|read| (read.offset, read.asked_bytes, read.bytes_read(), read.begin_ns, read.end_ns))
        .collect();
    assert_eq!(
        actual,
        [(0, 8192, 8192, 20, 100), (8192, 8192, 100, 110, 115), (64, 10, 10, 130, 132)]
    );
    assert_eq!(reads.iter().map(|read| read.waited_ns).collect::<Vec<_>>(), [65, 0, 0]);
    let thread = Some(0);
    let request = RequestRecord {
        end_ns: 90,
        begin_ns: 25,
        thread,
        device: DISK,
        work: DeviceOperation::Read,
        is_ahead: true,
        place: 800 * 512,
        bytes: 32768,
    };
    let insert = PagesInserted { at_ns: 22, thread: 0, file: 0, offset: 0, bytes: 32768 };
    assert!(records.contains(&Record::Request(request)), "{records:?}");
    assert!(records.contains(&Record::Insert(insert)), "{records:?}");
    let opened =
        records.iter().filter(|record| matches!(record, Record::Open(open) if open.at_ns == 10));
    assert_eq!(opened.count(), 1);
}

/// By the time of the look-up, the descriptor of a file of `/proc` belongs to another file.
#[test]
fn reads_of_files_without_storage_are_not_recorded() {
    let open = |at: u64, device: u64| {
        let inode = Inode { device, number: 1 };
        [
            (at, enter(SystemCall::OpenAt, [0, 0, 0, 0])),
            (at + 1, EventData::Exit(SystemCall::OpenAt, 5)),
            (at + 2, EventData::Opened { descriptor: 5, inode, flags: 0 }),
            (at + 3, enter(SystemCall::Read, [5, 0, 100, 0])),
            (at + 4, EventData::Exit(SystemCall::Read, 100)),
            (at + 5, enter(SystemCall::Close, [5, 0, 0, 0])),
            (at + 6, EventData::Exit(SystemCall::Close, 0)),
        ]
    };
    let records = records([open(10, PROC), open(20, INODE.device)].concat());
    let begins: Vec<u64> = reads(&records).iter().map(|read| read.begin_ns).collect();
    assert_eq!(begins, [23]);
}

/// Copies by `splice` with an offset in memory: two at pages 16 and 18, where the second continues
/// the first at 65,536 + 10,000 bytes, and one at page 3. The file position stays 0 for the copy
/// without an offset, which moves it.
#[test]
fn copies_with_their_own_offset_leave_the_file_position() {
    let splice = |at: u64, offset: u64, first: u64, bytes: i64| {
        [
            (at, enter(SystemCall::Splice, [3, offset, 7, 0])),
            (at + 1, EventData::CacheRead { inode: INODE, first, end: first + 1 }),
            (at + 2, EventData::Exit(SystemCall::Splice, bytes)),
        ]
    };
    let (pointer, null) = (0x7f00, 0);
    let opened = vec![
        (1, enter(SystemCall::OpenAt, [0, 0, 0, 0])),
        (2, EventData::Exit(SystemCall::OpenAt, 3)),
    ];
    let copies = [
        splice(10, pointer, 16, 10_000),
        splice(20, pointer, 18, 100),
        splice(30, pointer, 3, 4096),
        splice(40, null, 0, 4096),
        splice(50, null, 1, 4096),
    ];
    let records = records([opened, copies.concat()].concat());
    let places: Vec<_> =
        reads(&records).iter().map(|read| (read.way, read.offset, read.bytes_read())).collect();
    assert_eq!(
        places,
        [(65_536, 10_000), (75_536, 100), (12_288, 4096), (0, 4096), (4096, 4096)]
            .map(|(offset, bytes)| (ReadMethod::Copied, offset, bytes))
    );
}

/// For direct I/O only the descriptor identifies the file. A pipe has none.
#[test]
fn direct_read_is_identified_by_descriptor_and_pipes_are_ignored() {
    let records = records(vec![
        (10, enter(SystemCall::Pread, [5, 0, 4096, 65536])),
        (30, EventData::Exit(SystemCall::Pread, 4096)),
        (40, enter(SystemCall::Read, [6, 0, 4096, 0])),
        (90, EventData::Exit(SystemCall::Read, 4096)),
    ]);
    let reads = reads(&records);
    assert_eq!((reads.len(), reads[0].offset, reads[0].way), (1, 65536, ReadMethod::Pread));
    let is_direct = |record: &Record| matches!(record, Record::Open(open) if open.is_direct);
    assert!(records.iter().any(is_direct));
}

/// A fault with a wait ends when its task runs again. The kernel's second attempt belongs to the
/// same fault. A fault without a wait ends at its start, and precedes the records that ended later.
#[test]
fn fault_records_end_when_their_task_resumes() {
    let records = records(vec![
        (10, EventData::Fault { inode: INODE, page: 7 }),
        (12, EventData::Insert { inode: INODE, first: 7, count: 1 }),
        (15, falls_asleep()),
        (65, resumes()),
        (66, EventData::Fault { inode: INODE, page: 7 }),
        (80, EventData::Fault { inode: INODE, page: 9 }),
        (90, EventData::MapPages { inode: INODE, first: 16, end: 32 }),
    ]);
    let actual: Vec<_> = reads(&records)
        .iter()
        .map(|read| (read.offset, read.asked_bytes, read.begin_ns, read.end_ns, read.waited_ns))
        .collect();
    assert_eq!(
        actual,
        [(7 * 4096, 4096, 10, 65, 50), (9 * 4096, 4096, 80, 80, 0), (16 * 4096, 4096, 90, 90, 0),]
    );
    assert_eq!(mapped_ranges(&records), [(7, 8), (9, 10), (16, 32)]);
}

/// The task is woken at 40 and gets a processor at 3,000,065: only the first 25 ns are a wait. The
/// fault is not over before, though its timeout is.
#[test]
fn waiting_for_a_processor_is_no_wait_of_a_fault() {
    let ran_ns = 3_000_065;
    let records = records(vec![
        (10, EventData::Fault { inode: INODE, page: 7 }),
        (12, EventData::Insert { inode: INODE, first: 7, count: 1 }),
        (15, falls_asleep()),
        (40, EventData::Wake { task: 70 }),
        (ran_ns, resumes()),
        (ran_ns + 5, EventData::MapPages { inode: INODE, first: 7, end: 8 }),
    ]);
    let actual: Vec<_> =
        reads(&records).iter().map(|read| (read.begin_ns, read.end_ns, read.waited_ns)).collect();
    assert_eq!(actual, [(10, ran_ns, 25)]);
}

/// Page ranges mapped by faults.
pub(super) fn mapped_ranges(records: &[Record]) -> Vec<(u64, u64)> {
    let matching = records.iter().filter_map(|record| match record {
        Record::Mapped(mapped) => {
            Some((mapped.offset / 4096, (mapped.offset + mapped.bytes) / 4096))
        }
        _ => None,
    });
    matching.collect()
}

/// A child has a copy of the descriptors with shared positions. A thread has the same descriptors,
/// so only the child can read after the thread has closed the file. Task 99 is not recorded.
#[test]
fn descriptors_are_inherited() {
    let mut follow = TaskTracker::new(KnownFile, 0);
    follow.add_task(70, 70, "sh");
    let mut process = |at_ns, task, data| follow.process(TraceEvent { at_ns, task, data });
    process(1, 70, enter(SystemCall::OpenAt, [0, 0, 0, 0]));
    process(2, 70, EventData::Exit(SystemCall::OpenAt, 5));
    let new_task = |task, is_thread| EventData::NewTask {
        task,
        name: "sh".to_owned(),
        is_thread,
        is_kernel_io: false,
        shares_files: is_thread,
    };
    let is_thread = true;
    process(3, 70, new_task(71, !is_thread));
    process(4, 70, new_task(72, is_thread));
    process(5, 72, enter(SystemCall::Close, [5, 0, 0, 0]));
    process(6, 72, EventData::Exit(SystemCall::Close, 0));
    process(7, 71, enter(SystemCall::Read, [5, 0, 100, 0]));
    process(8, 71, EventData::CacheRead { inode: INODE, first: 0, end: 1 });
    process(9, 71, EventData::Exit(SystemCall::Read, 100));
    process(10, 99, enter(SystemCall::Read, [5, 0, 100, 0]));
    process(11, 99, EventData::Exit(SystemCall::Read, 100));
    let records: Vec<Record> = follow.finish(u64::MAX).collect();
    let reads = reads(&records);
    assert_eq!((reads.len(), reads[0].offset, reads[0].bytes_read()), (1, 0, 100));
}

/// Advice on the whole file, on a page of its mapping, and on memory without a file. The mapping
/// begins at byte 8192 of the file.
#[test]
fn file_and_mapping_advice_is_recorded() {
    let advice = libc::POSIX_FADV_RANDOM as u64;
    let mut mapping = enter(SystemCall::Mmap, [0, 1 << 20, 1, libc::MAP_SHARED as u64]);
    if let EventData::Enter(_, arguments) = &mut mapping {
        (arguments[4], arguments[5]) = (5, 8192);
    }
    let records = records(vec![
        (1, enter(SystemCall::Fadvise, [5, 0, 0, advice])),
        (2, EventData::Exit(SystemCall::Fadvise, 0)),
        (3, mapping),
        (4, EventData::Exit(SystemCall::Mmap, 0x7000)),
        (5, enter(SystemCall::Madvise, [0x8000, 4096, libc::MADV_WILLNEED as u64, 0])),
        (6, EventData::Exit(SystemCall::Madvise, 0)),
        (7, enter(SystemCall::Madvise, [0x8_0000_0000, 4096, 0, 0])),
        (8, EventData::Exit(SystemCall::Madvise, 0)),
    ]);
    let advices = records.iter().filter_map(|record| match record {
        Record::Advice(advice) => {
            Some((advice.offset, advice.bytes, advice.hint, advice.is_of_mapping))
        }
        _ => None,
    });
    let actual: Vec<_> = advices.collect();
    assert_eq!(
        actual,
        [(0, 0, AdviceType::Random, false), (8192 + 4096, 4096, AdviceType::WillNeed, true)]
    );
}

/// Two bios of a task that is not recorded become one request, next to a request of no known task.
/// A kernel thread issues both.
#[test]
fn requests_of_other_programs_are_counted_by_the_task_that_queued_them() {
    let queue = |sector, name: &str| TraceEvent {
        at_ns: 10,
        task: 77,
        data: EventData::Queue { device: DISK, sector, sectors: 8, name: name.to_owned() },
    };
    let of_kernel = |at_ns, data| TraceEvent { at_ns, task: 5, data };
    let issue =
        |sector, bytes| EventData::Issue { device: DISK, sector, bytes, flags: "W".to_owned() };
    let complete = |sector, sectors| EventData::Complete { device: DISK, sector, sectors };
    let mut tracker = TaskTracker::new(KnownFile, 0);
    tracker.add_task(70, 70, "cat");
    tracker.process(queue(800, "dd"));
    tracker.process(queue(808, "dd"));
    tracker.process(of_kernel(20, issue(800, 8192)));
    tracker.process(of_kernel(21, issue(4000, 4096)));
    tracker.process(of_kernel(30, complete(800, 16)));
    tracker.process(of_kernel(31, complete(4000, 8)));
    let expected = OthersRequests {
        at_ns: 40,
        device: DISK,
        work: DeviceOperation::Write,
        task: 77,
        name: "dd".to_owned(),
        count: 1,
        bytes: 8192,
    };
    assert_eq!(tracker.take_others(40), [Record::OthersRequests(expected)]);
    assert!(tracker.block_ranges.is_empty(), "{:?}", tracker.block_ranges);
}

/// Without a reported sleep, the time of a device request counts as a wait if the task cannot
/// continue without it: from 12 to 50, and from 73 to 93.
#[test]
fn miss_without_a_sleep_event_counts_device_time_as_wait() {
    let issue =
        |sector| EventData::Issue { device: DISK, sector, bytes: 4096, flags: "R".to_owned() };
    let queue = |sector| EventData::Queue { device: DISK, sector, sectors: 8, name: String::new() };
    let complete = |sector| EventData::Complete { device: DISK, sector, sectors: 8 };
    let records = records(vec![
        (10, enter(SystemCall::Pread, [5, 0, 4096, 65536])),
        (11, queue(80)),
        (12, issue(80)),
        (50, complete(80)),
        (60, EventData::Exit(SystemCall::Pread, 4096)),
        (70, EventData::Fault { inode: INODE, page: 7 }),
        (71, EventData::Insert { inode: INODE, first: 7, count: 1 }),
        (72, queue(800)),
        (73, issue(800)),
        (93, complete(800)),
        // The page is resident while readahead is in flight.
        (100, enter(SystemCall::Pread, [5, 0, 4096, 0])),
        (101, EventData::CacheRead { inode: INODE, first: 0, end: 1 }),
        (102, EventData::Insert { inode: INODE, first: 8, count: 1 }),
        (103, queue(808)),
        (104, issue(808)),
        (105, complete(808)),
        (106, EventData::Exit(SystemCall::Pread, 4096)),
    ]);
    let waits: Vec<u64> = reads(&records).iter().map(|read| read.waited_ns).collect();
    assert_eq!(waits, [38, 20, 0]);
}

/// The event of a wake-up may be missing. The task's next event shows that it runs, and the
/// device's completion shows since when: 45. Without a completion it is the time of the event.
#[test]
fn task_event_after_a_sleep_ends_the_wait() {
    let records = records(vec![
        (10, EventData::Fault { inode: INODE, page: 7 }),
        (11, EventData::Queue { device: DISK, sector: 80, sectors: 8, name: String::new() }),
        (12, EventData::Issue { device: DISK, sector: 80, bytes: 4096, flags: "R".to_owned() }),
        (15, falls_asleep()),
        (45, EventData::Complete { device: DISK, sector: 80, sectors: 8 }),
        (55, EventData::MapPages { inode: INODE, first: 0, end: 16 }),
        (60, EventData::Fault { inode: INODE, page: 9 }),
        (65, falls_asleep()),
        (95, EventData::Fault { inode: INODE, page: 9 }),
    ]);
    let actual: Vec<(u64, u64, u64)> =
        reads(&records).iter().map(|read| (read.offset, read.end_ns, read.waited_ns)).collect();
    assert_eq!(actual, [(7 * 4096, 45, 30), (9 * 4096, 95, 30)]);
}

/// A read of 4 KiB from descriptor 5, submitted at the address `request`.
pub(super) fn submitted_read(request: u64, offset: u64) -> SubmittedRead {
    SubmittedRead { request, descriptor: Some(5), offset, bytes: Some(4096) }
}

/// Records of task 70, with the ranges of its requests to AIO and io_uring.
pub(super) fn asynchronous_records(events: Vec<(u64, EventData)>) -> Vec<Record> {
    let mut follow = TaskTracker::new(KnownFile, 1000);
    follow.expect_submissions();
    follow.add_task(70, 70, "fio");
    for (at_ns, data) in events {
        follow.process(TraceEvent { at_ns: 1000 + at_ns, task: 70, data });
    }
    follow.finish(u64::MAX).collect()
}

/// Offset, start, end and wait of each read.
fn read_spans(records: &[Record]) -> Vec<(u64, u64, u64, u64)> {
    let span = |read: &&ReadRecord| (read.offset, read.begin_ns, read.end_ns, read.waited_ns);
    reads(records).iter().map(span).collect()
}

/// Two direct reads in one call. The device completes the second first, while the program runs. The
/// first is waited for in `io_getevents`, from 31 to 66.
#[test]
fn direct_aio_read_ends_when_the_program_receives_it() {
    let queue = |sector| EventData::Queue { device: DISK, sector, sectors: 8, name: String::new() };
    let issue =
        |sector| EventData::Issue { device: DISK, sector, bytes: 4096, flags: "R".to_owned() };
    let complete = |sector| EventData::Complete { device: DISK, sector, sectors: 8 };
    let records = asynchronous_records(vec![
        (10, enter(SystemCall::IoSubmit, [1, 2, 0, 0])),
        (11, EventData::AioRead(submitted_read(1, 8192))),
        (12, EventData::AioRead(submitted_read(2, 65536))),
        (13, queue(80)),
        (14, issue(80)),
        (15, queue(800)),
        (16, issue(800)),
        (20, EventData::Exit(SystemCall::IoSubmit, 2)),
        (25, complete(800)),
        (30, enter(SystemCall::IoGetevents, [1, 1, 2, 0])),
        (31, falls_asleep()),
        (60, complete(80)),
        (66, resumes()),
        (70, EventData::Exit(SystemCall::IoGetevents, 2)),
    ]);
    assert_eq!(read_spans(&records), [(65536, 12, 25, 0), (8192, 11, 70, 35)]);
    assert_eq!(reads(&records)[0].way, ReadMethod::Aio);
    assert!(!records.iter().any(|record| matches!(record, Record::Unseen(_))));
}

/// Through the page cache both reads end with the call. The event of the cache follows the wait for
/// its pages: from 14 to 40, and from 43 to 60.
#[test]
fn buffered_aio_read_waits_in_its_submit_call() {
    let cached = |page| EventData::CacheRead { inode: INODE, first: page, end: page + 1 };
    let plain = |request, offset| {
        let read = submitted_read(request, offset);
        SubmittedRead { descriptor: Some(6), ..read }
    };
    let records = asynchronous_records(vec![
        (10, enter(SystemCall::IoSubmit, [1, 2, 0, 0])),
        (11, EventData::AioRead(plain(1, 8192))),
        (12, EventData::AioRead(plain(2, 65536))),
        (13, EventData::Insert { inode: INODE, first: 2, count: 1 }),
        (14, falls_asleep()),
        (40, resumes()),
        (41, cached(2)),
        (42, EventData::Insert { inode: INODE, first: 16, count: 1 }),
        (43, falls_asleep()),
        (60, resumes()),
        (61, cached(16)),
        (70, EventData::Exit(SystemCall::IoSubmit, 2)),
    ]);
    assert_eq!(read_spans(&records), [(8192, 10, 41, 26), (65536, 41, 70, 17)]);
    let offset = |record: &Record| match record {
        Record::Insert(insert) => Some(insert.offset),
        Record::Read(read) => Some(read.offset),
        _ => None,
    };
    let order: Vec<u64> = records.iter().filter_map(offset).collect();
    assert_eq!(order, [8192, 8192, 65536, 65536], "pages stand before the read that fetched them");
}

/// At depth 1 the thread sleeps 45 ns in the submitting call. Next to an older recorder, the
/// program that copies the range runs before the event, and reports the submission first.
#[test]
fn io_uring_read_waits_in_its_enter_call() {
    let event = EventData::UringSubmit { request: 9, operation: "READ".to_owned() };
    let program = |offset| EventData::UringRead { read: submitted_read(9, offset), process: 70 };
    let event_first = |offset| [event.clone(), program(offset)];
    let program_first = |offset| [program(offset), event.clone()];
    for orders in [
        [event_first(12288), event_first(4096)],
        [program_first(12288), program_first(4096)],
        [event_first(12288), program_first(4096)],
    ] {
        let mut events = Vec::new();
        for (at, [first, second]) in [0, 100].into_iter().zip(orders) {
            events.extend([
                (at + 10, enter(SystemCall::UringEnter, [4, 1, 1, 1])),
                (at + 11, first),
                (at + 12, second),
                (at + 15, falls_asleep()),
                (at + 60, resumes()),
                (at + 61, EventData::UringComplete { request: 9, result: 4096 }),
                (
                    at + 61,
                    EventData::UringEnds { request: 9, inode: Some(INODE), flags: 0, result: 4096 },
                ),
                (at + 62, EventData::Exit(SystemCall::UringEnter, 1)),
            ]);
        }
        let records = asynchronous_records(events);
        assert_eq!(read_spans(&records), [(12288, 11, 61, 45), (4096, 111, 161, 45)]);
        assert!(reads(&records).iter().all(|read| read.descriptor == Some(5)));
        assert!(!records.iter().any(|record| matches!(record, Record::Unseen(_))));
    }
}

/// Next to an older recorder, the file of an open call is reported before the end of the call.
#[test]
fn file_of_an_open_call_is_known_in_both_orders() {
    let exit = EventData::Exit(SystemCall::OpenAt, 6);
    let opened = EventData::Opened { descriptor: 6, inode: INODE, flags: libc::O_DIRECT as u64 };
    for [first, second] in [[exit.clone(), opened.clone()], [opened, exit]] {
        let records = records(vec![
            (10, enter(SystemCall::OpenAt, [0, 0, 0, 0])),
            (11, first),
            (12, second),
            (20, enter(SystemCall::Read, [6, 0, 100, 0])),
            (21, EventData::Exit(SystemCall::Read, 100)),
        ]);
        assert_eq!(read_spans(&records), [(0, 20, 21, 0)]);
    }
}

/// Reads of unknown range are counted with their waits: 35 ns in `io_getevents`.
#[test]
fn reads_without_a_range_are_counted() {
    let records = records(vec![
        (10, enter(SystemCall::IoSubmit, [1, 3, 0, 0])),
        (20, EventData::Exit(SystemCall::IoSubmit, 3)),
        (30, enter(SystemCall::IoGetevents, [1, 1, 2, 0])),
        (31, falls_asleep()),
        (66, resumes()),
        (70, EventData::Exit(SystemCall::IoGetevents, 3)),
        (80, EventData::UringSubmit { request: 9, operation: "READ".to_owned() }),
        (81, EventData::UringComplete { request: 9, result: 4096 }),
    ]);
    let unseen = records.iter().filter_map(|record| match record {
        Record::Unseen(unseen) => Some((unseen.way, unseen.count, unseen.waited_ns)),
        _ => None,
    });
    assert_eq!(unseen.collect::<Vec<_>>(), [(ReadMethod::Uring, 1, 0), (ReadMethod::Aio, 3, 35)]);
    assert!(reads(&records).is_empty());
}
