//! Tests of transfers: progress, splitting, errors and order.

use std::sync::{Arc, Mutex};

use super::*;
use crate::backend::BackendKind;
use crate::os::frames::FrameMemory;
use crate::target::{Direct, OpenOptions};

/// A backend with prepared answers, one for each queued transfer. It records its requests.
struct ScriptedBackend {
    /// Kernel answers to come: numbers of bytes, or negative errors.
    raws: VecDeque<i32>,
    /// Offset and number of bytes of each request so far.
    requests: Arc<Mutex<Vec<(u64, u64)>>>,
    answers: Vec<KernelAnswer>,
}

impl Backend for ScriptedBackend {
    /// Records the request, and takes its prepared answer.
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let bytes = transfer.segments.iter().map(|segment| segment.iov_len as u64).sum();
        self.requests.lock().unwrap().push((transfer.offset, bytes));
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

/// Reads 16 KiB at 4 KiB with a backend that answers `raws`. Returns the outcome, the number of
/// bytes moved, and the offsets and sizes of the backend's requests.
fn read(raws: &[i32]) -> (Outcome, u64, Vec<(u64, u64)>) {
    let is_cancelled = false;
    execute_read(raws, is_cancelled)
}

/// Like `read`, but the read is cancelled before its first answer.
fn read_cancelled(raws: &[i32]) -> (Outcome, u64, Vec<(u64, u64)>) {
    let is_cancelled = true;
    execute_read(raws, is_cancelled)
}

/// Runs the read of `read` or of `read_cancelled`.
fn execute_read(raws: &[i32], is_cancelled: bool) -> (Outcome, u64, Vec<(u64, u64)>) {
    let path = std::env::current_exe().expect("this program has a file");
    let options = OpenOptions { direct: Direct::Never, is_writable: false };
    let target = Target::open(&path, options).unwrap();
    assert!(target.bytes() > 20_480, "the file is larger than the range that is read");
    let requests = Arc::new(Mutex::new(Vec::new()));
    let raws = raws.iter().copied().collect();
    let script = ScriptedBackend { raws, requests: Arc::clone(&requests), answers: Vec::new() };
    let mut transfers = Transfers::with_backend(Box::new(script), 1, Clock::start());
    let file = TransferFile::from_target(&target);
    let start =
        TransferStart { id: RequestId(9), file, op: Op::Read, offset: 4_096, bytes: 16_384 };
    // SAFETY: the scripted backend accesses no memory.
    unsafe { transfers.start(start, (), |(), list| *list = segments_of(&[4_096, 12_288])) };
    assert_eq!((transfers.in_flight(), transfers.free_slot_count()), (1, 0));
    if is_cancelled {
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
    let requests = requests.lock().unwrap().clone();
    (ended.completion.outcome, ended.bytes, requests)
}

/// A read that is answered at once and found 2 ms later, by an exchange with `sleep`. Returns the
/// time before the read, its completion, and the time after the exchange.
fn completion_times(sleep: Sleep) -> (Time, Completion, Time) {
    let path = std::env::current_exe().expect("this program has a file");
    let options = OpenOptions { direct: Direct::Never, is_writable: false };
    let target = Target::open(&path, options).unwrap();
    let raws = VecDeque::from([16_384]);
    let script = ScriptedBackend { raws, requests: Arc::default(), answers: Vec::new() };
    let clock = Clock::start();
    let mut transfers = Transfers::with_backend(Box::new(script), 1, clock);
    let file = TransferFile::from_target(&target);
    let start = TransferStart { id: RequestId(9), file, op: Op::Read, offset: 0, bytes: 16_384 };
    transfers.record_wait();
    let before = clock.now();
    // SAFETY: the scripted backend accesses no memory.
    unsafe { transfers.start(start, (), |(), list| *list = segments_of(&[16_384])) };
    std::thread::sleep(std::time::Duration::from_millis(2));
    transfers.exchange(sleep).unwrap();
    (before, transfers.next_ended().expect("the read was answered").completion, clock.now())
}

/// A polled answer arrived between the check before the read and the poll. An answer found by an
/// exchange that may sleep counts as just arrived.
#[test]
fn answer_time_is_bounded_by_two_polls_and_exact_after_a_sleep() {
    let (before, polled, after) = completion_times(Sleep::Never);
    assert!(polled.not_before <= before && before < polled.at && polled.at <= after);
    let (before, awaited, _) = completion_times(Sleep::UntilAnswered);
    assert_eq!(awaited.not_before, awaited.at);
    assert!(before < awaited.at);
}

/// The answers move 5,000, 11,000 and 384 of 16,384 bytes. Errors between them repeat a request.
#[test]
fn interrupted_transfer_continues_at_the_stopped_byte() {
    let (outcome, bytes, requests) = read(&[5_000, INTERRUPTED, 11_000, AGAIN, 384]);
    assert_eq!((outcome, bytes), (Outcome::Done, 16_384));
    let rest = (4_096 + 16_000, 384);
    assert_eq!(requests, [(4_096, 16_384), (9_096, 11_384), (9_096, 11_384), rest, rest]);
}

#[test]
fn early_end_of_file_is_short_with_the_bytes_transferred() {
    let (outcome, bytes, requests) = read(&[5_000, 0]);
    assert_eq!((outcome, bytes), (Outcome::Short { bytes: 5_000 }, 5_000));
    assert_eq!(requests.len(), 2);
}

#[test]
fn error_after_some_bytes_fails_the_transfer() {
    let (outcome, bytes, _) = read(&[5_000, IO_ERROR]);
    assert_eq!((outcome, bytes), (Outcome::Failed(DeviceError::Medium), 0));
}

/// `ECANCELED` without a cancellation is repeated up to 64 times. After a cancellation it ends the
/// transfer at once.
#[test]
fn request_cancelled_by_thread_exit_is_resubmitted() {
    const CANCELLED: i32 = -125; // ECANCELED
    let (outcome, _, requests) = read(&[CANCELLED, 16_384]);
    assert_eq!((outcome, requests.len()), (Outcome::Done, 2));
    let (outcome, _, requests) = read(&[CANCELLED; 65]);
    assert_eq!((outcome, requests.len()), (Outcome::Failed(DeviceError::Cancelled), 65));
    let (outcome, _, requests) = read_cancelled(&[CANCELLED]);
    assert_eq!((outcome, requests.len()), (Outcome::Failed(DeviceError::Cancelled), 1));
}

#[test]
fn cancelled_transfer_is_not_continued_but_may_complete() {
    let cancelled = Outcome::Failed(DeviceError::Cancelled);
    for raw in [5_000, INTERRUPTED] {
        let (outcome, bytes, requests) = read_cancelled(&[raw]);
        assert_eq!((outcome, bytes, requests.len()), (cancelled, 0, 1));
    }
    assert_eq!(read_cancelled(&[16_384]).0, Outcome::Done);
}

/// The length of the segment has 33 bits. A call moves at most 0x7fff_f000 bytes (read(2)), and
/// here the 8,192 bytes of the file.
#[test]
fn transfer_of_4_gib_reads_the_bytes_of_a_short_file() {
    const FRAMES: u32 = 1 << 20;
    const BYTES: u64 = 1 << 32;
    let memory = FrameMemory::new(FRAMES).unwrap();
    let path = std::env::temp_dir().join(format!("readpath-4-gib-{}", std::process::id()));
    std::fs::write(&path, [7; 8_192]).unwrap();
    let options = OpenOptions { direct: Direct::Never, is_writable: false };
    let target = Target::open(&path, options);
    std::fs::remove_file(&path).unwrap();
    let file = TransferFile::from_target(&target.unwrap());
    for kind in [BackendKind::Ring, BackendKind::Aio, BackendKind::Threads] {
        let Ok((backend, _)) = kind.build(1) else { continue };
        let mut transfers = Transfers::with_backend(backend, 1, Clock::start());
        let (id, op, file) = (RequestId(0), Op::Read, file.clone());
        let start = TransferStart { id, file, op, offset: 0, bytes: BYTES };
        let iov_base = memory.address(0).cast();
        let segment = libc::iovec { iov_base, iov_len: BYTES as usize };
        // SAFETY: the memory outlives the transfers.
        unsafe { transfers.start(start, (), |(), list| list.push(segment)) };
        let ended = loop {
            transfers.wait(None).unwrap();
            if let Some(ended) = transfers.next_ended() {
                break ended;
            }
        };
        assert_eq!(ended.completion.outcome, Outcome::Short { bytes: 8_192 }, "{kind}");
        // SAFETY: bytes of the mapping, and no transfer is in flight.
        assert_eq!(unsafe { memory.address(1).add(4_095).read() }, 7);
    }
}

/// Segments of these lengths in bytes, from address 0 each.
fn segments_of(lengths: &[usize]) -> Vec<libc::iovec> {
    let piece = |&iov_len| libc::iovec { iov_base: std::ptr::null_mut(), iov_len };
    lengths.iter().map(piece).collect()
}

#[test]
fn skip_advances_within_to_the_end_of_and_past_a_segment() {
    // Bytes to skip, and the expected lengths and first address of two segments of 100 and 200.
    for (bytes, expected_lengths, expected_address) in [
        (0, &[100, 200][..], 0),
        (40, &[60, 200][..], 40),
        (100, &[200][..], 0),
        (150, &[150][..], 50),
    ] {
        let mut segments = segments_of(&[100, 200]);
        skip_bytes(&mut segments, bytes);
        let lengths: Vec<usize> = segments.iter().map(|segment| segment.iov_len).collect();
        assert_eq!(lengths, expected_lengths);
        assert_eq!(segments[0].iov_base as usize, expected_address);
    }
}
