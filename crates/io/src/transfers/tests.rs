//! Tests of transfers: progress, splitting, errors and order.

use std::sync::{Arc, Mutex};

use super::*;
use crate::target::{Direct, OpenOptions};

/// A backend with prepared answers, one for each queued transfer. It records its requests.
struct ScriptedBackend {
    raws: VecDeque<i32>,
    asked: Arc<Mutex<Vec<(u64, u64)>>>,
    answers: Vec<KernelAnswer>,
}

impl Backend for ScriptedBackend {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let bytes = transfer.segments.iter().map(|segment| segment.iov_len as u64).sum();
        self.asked.lock().unwrap().push((transfer.offset, bytes));
        let raw = self.raws.pop_front().expect("an answer for each transfer");
        self.answers.push(KernelAnswer { token: transfer.token, raw });
    }

    fn cancel(&mut self, _token: u64) {}

    fn exchange(&mut self, _: Sleep, answers: &mut Vec<KernelAnswer>) -> Result<(), BackendError> {
        answers.append(&mut self.answers);
        Ok(())
    }
}

const INTERRUPTED: i32 = -4; // EINTR in errno(3)
const AGAIN: i32 = -11; // EAGAIN
const IO_ERROR: i32 = -5; // EIO

/// Reads 16 KiB at 4 KiB with a backend that answers `raws`. Returns the outcome, and the
/// offsets and sizes of the backend's requests.
fn read(raws: &[i32], is_withdrawn: bool) -> (Outcome, u64, Vec<(u64, u64)>) {
    let path = std::env::current_exe().expect("this program has a file");
    let options = OpenOptions { direct: Direct::Never, is_writable: false };
    let target = Target::open(&path, options).unwrap();
    assert!(target.bytes() > 20_480, "the file is larger than what is read of it");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let raws = raws.iter().copied().collect();
    let script = ScriptedBackend { raws, asked: Arc::clone(&asked), answers: Vec::new() };
    let mut transfers = Transfers::with_backend(Box::new(script), 1, Clock::start());
    let place = TransferFile::from_target(&target);
    let start =
        TransferStart { id: RequestId(9), file: place, op: Op::Read, offset: 4_096, bytes: 16_384 };
    // SAFETY: the scripted backend accesses no memory.
    unsafe { transfers.start(start, (), |(), list| *list = pieces(&[4_096, 12_288])) };
    assert_eq!((transfers.in_flight(), transfers.free_slot_count()), (1, 0));
    if is_withdrawn {
        transfers.cancel(RequestId(9));
    }
    let ended = loop {
        transfers.wait(None).unwrap();
        if let Some(ended) = transfers.next_ended() {
            break ended;
        }
    };
    assert_eq!(ended.completion.id, RequestId(9));
    assert_eq!((transfers.in_flight(), transfers.free_slot_count()), (0, 1));
    let asked = asked.lock().unwrap().clone();
    (ended.completion.outcome, ended.bytes, asked)
}

/// A read that is answered at once and found 2 ms later. Returns its completion, with the times
/// of the last check before it and of the check that found it.
fn completion_times(sleep: Sleep) -> (Time, Completion, Time) {
    let path = std::env::current_exe().expect("this program has a file");
    let options = OpenOptions { direct: Direct::Never, is_writable: false };
    let target = Target::open(&path, options).unwrap();
    let raws = VecDeque::from([16_384]);
    let script = ScriptedBackend { raws, asked: Arc::default(), answers: Vec::new() };
    let clock = Clock::start();
    let mut transfers = Transfers::with_backend(Box::new(script), 1, clock);
    let place = TransferFile::from_target(&target);
    let start =
        TransferStart { id: RequestId(9), file: place, op: Op::Read, offset: 0, bytes: 16_384 };
    transfers.record_wait();
    let before = clock.now();
    // SAFETY: the scripted backend accesses no memory.
    unsafe { transfers.start(start, (), |(), list| *list = pieces(&[16_384])) };
    std::thread::sleep(std::time::Duration::from_millis(2));
    transfers.exchange(sleep).unwrap();
    (before, transfers.next_ended().expect("it was answered").completion, clock.now())
}

#[test]
fn answer_time_is_bounded_by_two_polls_and_exact_after_a_sleep() {
    let (before, unseen, after) = completion_times(Sleep::Never);
    assert!(unseen.not_before <= before && before < unseen.at && unseen.at <= after);
    let (before, demand, _) = completion_times(Sleep::UntilAnswered);
    assert_eq!(demand.not_before, demand.at);
    assert!(before < demand.at);
}

#[test]
fn interrupted_transfer_continues_at_the_stopped_byte() {
    let (outcome, bytes, asked) = read(&[5_000, INTERRUPTED, 11_000, AGAIN, 384], false);
    assert_eq!((outcome, bytes), (Outcome::Done, 16_384));
    let rest = (4_096 + 16_000, 384);
    assert_eq!(asked, [(4_096, 16_384), (9_096, 11_384), (9_096, 11_384), rest, rest]);
}

#[test]
fn early_end_of_file_is_short_with_the_bytes_transferred() {
    let (outcome, bytes, asked) = read(&[5_000, 0], false);
    assert_eq!((outcome, bytes), (Outcome::Short { bytes: 5_000 }, 5_000));
    assert_eq!(asked.len(), 2);
}

#[test]
fn error_after_some_bytes_fails_the_transfer() {
    let (outcome, bytes, _) = read(&[5_000, IO_ERROR], false);
    assert_eq!((outcome, bytes), (Outcome::Failed(DeviceError::Medium), 0));
}

#[test]
fn request_cancelled_by_thread_exit_is_resubmitted() {
    const CANCELLED: i32 = -125; // ECANCELED
    let (outcome, _, asked) = read(&[CANCELLED, 16_384], false);
    assert_eq!((outcome, asked.len()), (Outcome::Done, 2));
    let (outcome, _, asked) = read(&[CANCELLED; 65], false);
    assert_eq!((outcome, asked.len()), (Outcome::Failed(DeviceError::Cancelled), 65));
    let (outcome, _, asked) = read(&[CANCELLED], true);
    assert_eq!((outcome, asked.len()), (Outcome::Failed(DeviceError::Cancelled), 1));
}

#[test]
fn cancelled_transfer_is_not_continued_but_may_complete() {
    let cancelled = Outcome::Failed(DeviceError::Cancelled);
    for raw in [5_000, INTERRUPTED] {
        let (outcome, bytes, asked) = read(&[raw], true);
        assert_eq!((outcome, bytes, asked.len()), (cancelled, 0, 1));
    }
    assert_eq!(read(&[16_384], true).0, Outcome::Done);
}

fn pieces(lengths: &[usize]) -> Vec<libc::iovec> {
    let piece = |&iov_len| libc::iovec { iov_base: std::ptr::null_mut(), iov_len };
    lengths.iter().map(piece).collect()
}

#[test]
fn skip_advances_within_to_the_end_of_and_past_a_segment() {
    for (bytes, left, moved) in [
        (0, &[100, 200][..], 0),
        (40, &[60, 200][..], 40),
        (100, &[200][..], 0),
        (150, &[150][..], 50),
    ] {
        let mut segments = pieces(&[100, 200]);
        skip_bytes(&mut segments, bytes);
        let lengths: Vec<usize> = segments.iter().map(|segment| segment.iov_len).collect();
        assert_eq!(lengths, left);
        assert_eq!(segments[0].iov_base as usize, moved);
    }
}
