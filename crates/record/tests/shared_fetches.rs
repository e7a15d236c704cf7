//! Waits of several threads for the same pages, recorded without root, as recordings worked by
//! hand.

use readpath_record::explain::{Explanation, WaitCause};
use readpath_trace::recording::{
    PagesInserted, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingMethod,
};

use super::diagnoses::causes;
use super::explain::{KIB, Made, US, far};

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
