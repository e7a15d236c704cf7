//! Event sequences of faults of mappings, with the records worked out by hand.

use super::super::event::TraceEvent;
use super::tests::{
    DISK, INODE, KnownFile, enter, falls_asleep, mapped_ranges, reads, records, resumes, switch,
};
use super::*;

/// Maps the whole file at 4 GiB by descriptor 5.
fn mmap_events() -> Vec<(u64, EventData)> {
    let arguments = [0, 1 << 30, 1, libc::MAP_SHARED as u64, 5, 0];
    vec![
        (1, EventData::Enter(SystemCall::Mmap, arguments)),
        (2, EventData::Exit(SystemCall::Mmap, 4 << 30)),
    ]
}

/// Exception of a touch of this page of the file, in the mapping at 4 GiB.
fn touch(page: u64) -> EventData {
    EventData::PageFault { address: (4 << 30) + page * 4096 }
}

/// Event of 16 resident pages that the kernel maps, from `first` on.
fn window(first: u64) -> EventData {
    EventData::MapPages { inode: INODE, first, end: first + 16 }
}

/// Events of Linux 6.18 for a touch with large readahead. A request for the page completes while
/// the task still submits requests for later pages. Then the task sleeps for 70 and for 2 ns.
#[test]
fn fault_waits_for_all_its_sleeps() {
    let queue =
        |sector| EventData::Queue { device: DISK, sector, sectors: 16, name: String::new() };
    let issue =
        |sector| EventData::Issue { device: DISK, sector, bytes: 8192, flags: "RA".to_owned() };
    let mut events = mmap_events();
    events.extend([
        (10, touch(75)),
        (11, EventData::Fault { inode: INODE, page: 75 }),
        (12, EventData::Insert { inode: INODE, first: 64, count: 32 }),
        (13, queue(800)),
        (14, issue(800)),
        (20, EventData::Complete { device: DISK, sector: 800, sectors: 16 }),
        (21, queue(816)),
        (22, issue(816)),
        (25, falls_asleep()),
        (95, resumes()),
        (97, falls_asleep()),
        (99, resumes()),
        (100, window(64)),
        (110, touch(512)),
    ]);
    let records = records(events);
    let actual: Vec<_> = reads(&records)
        .iter()
        .map(|read| (read.offset / 4096, read.begin_ns, read.end_ns, read.waited_ns))
        .collect();
    assert_eq!(actual, [(75, 10, 99, 72), (512, 110, 110, 0)]);
    assert_eq!(mapped_ranges(&records)[0], (64, 96));
}

/// The first fault ends by its timeout before its last event. The second one sleeps for longer than
/// the timeout.
#[test]
fn late_event_of_a_fault_is_not_a_second_read() {
    let mut follow = TaskTracker::new(KnownFile, 0);
    follow.add_task(70, 70, "cat");
    let mut records = Vec::new();
    let mut process = |at_ns, data| {
        follow.process(TraceEvent { at_ns, task: 70, data });
        records.extend(follow.take_final_records(at_ns));
    };
    for (at_ns, event) in mmap_events() {
        process(at_ns, event);
    }
    let ms = 1_000_000;
    process(10, touch(75));
    process(11, EventData::Fault { inode: INODE, page: 75 });
    // Two other tasks.
    let is_waiting = true;
    process(5 * ms, switch(1, 2, is_waiting));
    process(6 * ms, window(64));
    process(10 * ms, touch(200));
    process(10 * ms + 1, EventData::Fault { inode: INODE, page: 200 });
    process(10 * ms + 2, falls_asleep());
    process(11 * ms, resumes());
    process(12 * ms, falls_asleep());
    process(30 * ms, resumes());
    process(30 * ms + 1, window(192));
    records.extend(follow.finish(40 * ms));
    let actual: Vec<_> =
        reads(&records).iter().map(|read| (read.offset / 4096, read.waited_ns)).collect();
    assert_eq!(actual, [(75, 0), (200, 19 * ms - 2)]);
    assert_eq!(mapped_ranges(&records), [(75, 76), (64, 80), (192, 208)]);
}

/// Events of Linux 6.18 for a file touched in order: `map_pages` names 16 pages of folios of 64 and
/// 256 pages. The exception is the only event of a huge folio.
#[test]
fn fault_maps_the_whole_folio() {
    let folio = |first, count| EventData::Insert { inode: INODE, first, count };
    let mut events = mmap_events();
    events.extend([
        (10, touch(192)),
        (11, EventData::Fault { inode: INODE, page: 192 }),
        (12, folio(192, 64)),
        (13, folio(256, 256)),
        (14, folio(512, 512)),
        (15, falls_asleep()),
        (65, resumes()),
        (66, window(192)),
        (70, touch(256)),
        (71, window(256)),
        (80, touch(512)),
        // The last folio was added to the cache before the recording.
        (90, touch(1024)),
        (99, enter(SystemCall::Close, [9, 0, 0, 0])),
    ]);
    let records = records(events);
    assert_eq!(mapped_ranges(&records), [(192, 256), (256, 512), (512, 1024), (1024, 1536)]);
    let actual: Vec<_> = reads(&records)
        .iter()
        .map(|read| (read.offset / 4096, read.begin_ns, read.end_ns, read.waited_ns))
        .collect();
    assert_eq!(actual, [(192, 10, 65, 50), (256, 70, 70, 0), (512, 80, 80, 0), (1024, 90, 90, 0)]);
}

/// With the advice RANDOM each page faults. Each event names pages 32 to 47, but the next page
/// faults as well, so it was not mapped before.
#[test]
fn faulting_page_was_not_mapped_before() {
    let mut events = mmap_events();
    for (nth, page) in (32..36).chain([35, 34]).enumerate() {
        events.push((10 + 10 * nth as u64, touch(page)));
        events.push((11 + 10 * nth as u64, window(32)));
    }
    assert_eq!(mapped_ranges(&records(events))[..3], [(32, 33), (33, 34), (34, 35)]);
}

/// The descriptor is closed before the look-up. The first fault identifies the file.
#[test]
fn mapping_file_is_identified_by_its_first_fault() {
    let records = records(vec![
        (1, EventData::Enter(SystemCall::Mmap, [0, 1 << 30, 1, libc::MAP_SHARED as u64, 6, 0])),
        (2, EventData::Exit(SystemCall::Mmap, 4 << 30)),
        (10, touch(17)),
        (11, window(16)),
        (20, touch(512)),
        (30, enter(SystemCall::Close, [9, 0, 0, 0])),
    ]);
    assert_eq!(mapped_ranges(&records), [(16, 32), (512, 1024)]);
}

/// The fault at page 17 of the unknown file has no event of `filemap`. The next ones belong to a
/// fault of a known file, or to a call that maps pages without an exception. They do not identify
/// the unknown file: its page 512 stays without a record.
#[test]
fn fault_elsewhere_does_not_identify_a_mapping() {
    let known_page = EventData::PageFault { address: (8 << 30) + 17 * 4096 };
    let populate = enter(SystemCall::Mlock, [8 << 30, 1 << 20, 0, 0]);
    for other in [known_page, populate] {
        let records = records(vec![
            (1, EventData::Enter(SystemCall::Mmap, [0, 1 << 30, 1, libc::MAP_SHARED as u64, 6, 0])),
            (2, EventData::Exit(SystemCall::Mmap, 4 << 30)),
            (3, EventData::Enter(SystemCall::Mmap, [0, 1 << 30, 1, libc::MAP_SHARED as u64, 5, 0])),
            (4, EventData::Exit(SystemCall::Mmap, 8 << 30)),
            (10, touch(17)),
            (20, other),
            (21, window(16)),
            (30, touch(512)),
            (40, enter(SystemCall::Close, [9, 0, 0, 0])),
        ]);
        assert_eq!(mapped_ranges(&records), [(16, 32)]);
    }
}

/// A populated range is mapped as a whole, regardless of reported faults. By hand: 5,000 bytes from
/// page 2 on are pages 2 and 3.
#[test]
fn populated_range_is_mapped() {
    let mut events = mmap_events();
    let call =
        enter(SystemCall::Madvise, [(4 << 30) + 8192, 5000, libc::MADV_POPULATE_READ as u64, 0]);
    events.extend([(5, call), (9, EventData::Exit(SystemCall::Madvise, 0))]);
    assert_eq!(mapped_ranges(&records(events)), [(2, 4)]);
}
