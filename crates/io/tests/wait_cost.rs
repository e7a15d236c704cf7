//! Cost of a wait in system calls.

mod support;

use readpath::BackendKind;
use support::system_calls::{calls_between_marks, mark};
use support::{TempFile, own_cache};

const PAGE: usize = 4096;
const READS: usize = 32;

/// io_uring_enter(2) submits requests and sleeps for their answers in one call: a read that submits
/// and waits needs no other.
#[test]
fn waiting_read_submits_and_sleeps_in_one_system_call() {
    let temp = TempFile::new(READS * PAGE);
    let ring = || {
        let builder = own_cache().kernel_cache(false).readahead("none");
        builder.backend(BackendKind::Ring).build()
    };
    if let Err(error) = ring() {
        return eprintln!("skipped: {error}");
    }
    let calls = calls_between_marks(|| {
        let path = ring().unwrap();
        let file = path.open(&temp.path).unwrap();
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, 0).unwrap();
        mark();
        for nth in 1..READS {
            file.read_exact_at(&mut page, (nth * PAGE) as u64).unwrap();
        }
        mark();
    });
    let Some(calls) = calls else { return };
    let is_enter = |&&number: &&i64| number == libc::SYS_io_uring_enter;
    assert_eq!(calls[0].iter().filter(is_enter).count(), READS - 1, "{:?}", calls[0]);
}
