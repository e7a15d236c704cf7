//! Waits of several threads for the same pages, recorded without root, as recordings worked by
//! hand.

use readpath_record::explain::{Explanation, WaitCause};
use readpath_trace::recording::{
    PagesInserted, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingMethod,
};

use super::diagnoses::causes;
use super::explain::{KIB, Made, US, far, found};

/// Number of pages that each thread reads, far from each other.
const PAGES: u64 = 100;

/// Time in microseconds between the first reads of two pages.
const STEP_US: u64 = 2000;

/// A thread's reads of 4 KiB: each page at the same time after the first thread's read of it.
struct Reader {
    /// Time in microseconds after the start of the first thread's read.
    begin_us: u64,
    /// Duration of a read in microseconds.
    duration_us: u64,
    /// True if the recording has the kernel's count for the thread: it requested nothing.
    is_counted: bool,
}

/// Explains a recording in which these threads read the same pages, `rounds` times.
fn explained(rounds: u64, readers: &[Reader]) -> Explanation {
    let mut made = Made::by(RecordingMethod::Preload);
    for at in 0..rounds * PAGES {
        for (thread, reader) in (0..).zip(readers) {
            let begin_ns = (at * STEP_US + reader.begin_us) * US;
            let end_ns = begin_ns + reader.duration_us * US;
            let (file, offset) = (0, far(at % PAGES));
            if reader.is_counted {
                let insert = PagesInserted { at_ns: end_ns, thread, file, offset, bytes: 0 };
                made.records.push(Record::Insert(insert));
            }
            made.records.push(Record::Read(ReadRecord {
                begin_ns,
                end_ns,
                thread,
                way: ReadMethod::Pread,
                descriptor: Some(3),
                file,
                offset,
                asked_bytes: 4 * KIB,
                outcome: ReadOutcome::Bytes(4 * KIB),
                ..ReadRecord::default()
            }));
        }
    }
    made.now = rounds * PAGES * STEP_US * US;
    made.explained()
}

/// Fetched bytes, and the bytes of them that had been fetched before.
fn fetched(explanation: &Explanation) -> (u64, u64) {
    (explanation.shape.fetched_bytes, explanation.shape.again_bytes)
}

/// A read of the device that lasts 500 µs.
const FETCH: Reader = Reader { begin_us: 0, duration_us: 500, is_counted: false };

/// The second read begins within the first one, or 300 µs after its end, which is less than its
/// duration. One that begins 700 µs after the end is a fetch, as far as its duration shows.
#[test]
fn reads_of_a_page_by_two_threads_at_a_time_are_one_fetch() {
    let all = PAGES * 4 * KIB;
    for (begin_us, again_bytes) in [(200, 0), (800, 0), (1200, all)] {
        let second = Reader { begin_us, duration_us: 600, is_counted: false };
        let explanation = explained(1, &[FETCH, second]);
        assert_eq!(fetched(&explanation), (all + again_bytes, again_bytes), "{begin_us} µs");
        assert_eq!(causes(&explanation).contains(&WaitCause::Again), again_bytes > 0);
    }
}

/// The second thread reads each page 1.2 ms after the first one, for 600 µs. The kernel counted no
/// request of it: it waited for a processor.
#[test]
fn wait_of_a_thread_without_a_request_is_no_fetch() {
    let second = Reader { begin_us: 1200, duration_us: 600, is_counted: true };
    let explanation = explained(1, &[FETCH, second]);
    assert_eq!(fetched(&explanation), (PAGES * 4 * KIB, 0));
    assert!(!causes(&explanation).contains(&WaitCause::Again), "{explanation:?}");
}

/// One thread reads all pages twice, and the kernel counted its requests both times. The other
/// thread waits for these requests.
#[test]
fn pages_that_left_memory_are_fetched_again_by_two_threads() {
    let second = Reader { begin_us: 200, duration_us: 300, is_counted: true };
    let explanation = explained(2, &[FETCH, second]);
    assert_eq!(fetched(&explanation), (2 * PAGES * 4 * KIB, PAGES * 4 * KIB));
    assert!(causes(&explanation).contains(&WaitCause::Again), "{explanation:?}");
}

/// Three processes wait for each page that one of them fetches in 500 µs. One begins before the
/// fetch, and one ends after it. A device has one request at a time: as many as for the first
/// process alone. By hand: 500 µs less 20 for the call and 4 for the copy, 100 times, are 48 ms.
#[test]
fn waits_for_one_fetch_are_one_request_at_a_time() {
    let fetch = |begin_us| Reader { begin_us, duration_us: 500, is_counted: false };
    let alone = explained(1, &[fetch(20)]);
    let early = Reader { begin_us: 0, duration_us: 520, is_counted: false };
    let late = Reader { begin_us: 60, duration_us: 470, is_counted: false };
    let together = explained(1, &[fetch(20), early, late]);
    for explanation in [alone, together] {
        assert_eq!(found(&explanation), [(WaitCause::Depth, 48)]);
        let depth = explanation.shape.depth;
        assert!((depth - 1.0).abs() < 0.05, "{depth}");
    }
}

/// As root, four processes wait 1 ms for each of 300 pages, for which one sends a request. The
/// share of the cause was a quarter of the 300 ms.
#[test]
fn waits_for_the_request_of_another_process_have_its_cause() {
    let mut made = Made::new();
    for at in 0..300 {
        let begin_ns = made.now;
        made.read(0, ReadMethod::Pread, (far(at), 4 * KIB), 4 * KIB, 1000);
        let Some(Record::Read(fetch)) = made.records.last().cloned() else { unreachable!() };
        for thread in 1..4 {
            let (begin_ns, end_ns) = (begin_ns, fetch.end_ns);
            made.records.push(Record::Read(ReadRecord {
                thread,
                begin_ns,
                end_ns,
                ..fetch.clone()
            }));
        }
    }
    let explanation = made.explained();
    assert_eq!(found(&explanation), [(WaitCause::Depth, 300)]);
    assert!(explanation.findings[0].evidence.starts_with("300 reads"), "{explanation:?}");
    assert!((explanation.findings[0].share - 1.0).abs() < 0.01, "{explanation:?}");
}
