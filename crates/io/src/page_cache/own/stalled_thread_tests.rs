//! Tests with a stalled thread: stopped or without a processor. If it leads, waiting threads do its
//! work. If it executes a request, waiting threads read the bytes again.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use super::LazyEngine;
use super::in_flight::QueueOwner;
use super::storage_backend::StorageBackend;
use crate::backend::{BackendError, BackendKind, Sleep, Sleeper};
use crate::file::File;
use crate::os::clock::Clock;
use crate::page_cache::kernel::PathPages;
use crate::path::ReadPath;
use crate::storage::{FileStorage, Storage};
use crate::target::Coherence;

/// Time limit of a read that could wait forever, long enough for any machine. A passing test does
/// not wait for it.
const LIVENESS_LIMIT: Duration = Duration::from_secs(20);

/// Name of the thread that stalls.
const STALLED_THREAD: &str = "held";

/// Sleeper that blocks the thread [`STALLED_THREAD`] after its sleep until the test releases it.
struct StallingSleeper {
    sleeper: Arc<dyn Sleeper>,
    /// Reports to the test that the thread has stalled.
    stall_sender: SyncSender<()>,
    release_receiver: std::sync::Mutex<Receiver<()>>,
}

impl Sleeper for StallingSleeper {
    /// Sleeps, and then stalls if the calling thread is the one of the test.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let sleep_result = self.sleeper.sleep(sleep);
        if sleep != Sleep::Never && std::thread::current().name() == Some(STALLED_THREAD) {
            self.stall_sender.send(()).unwrap();
            // The end of the test also releases it.
            let _ = self.release_receiver.lock().unwrap().recv();
        }
        sleep_result
    }

    fn wake(&self) {
        self.sleeper.wake();
    }

    fn has_pooled_transfer(&self) -> bool {
        self.sleeper.has_pooled_transfer()
    }

    fn execute_pooled_transfer(&self) -> Option<bool> {
        self.sleeper.execute_pooled_transfer()
    }
}

/// Lets a thread lead and stall, runs `read` on another thread and returns its result. Returns
/// `None` if the leader read the file of this program without a sleep, so that it did not stall.
fn read_behind_a_stalled_leader(read: impl FnOnce(&File) -> u8 + Send + 'static) -> Option<u8> {
    let program_path = std::env::current_exe().expect("this program has a file");
    let (stall_sender, stall_receiver) = sync_channel(1);
    let (release_sender, release_receiver) = channel::<()>();
    let clock = Clock::start();
    let (files, sleeper) = FileStorage::for_several_threads(16, BackendKind::Auto, clock).unwrap();
    let stalling_sleeper = Arc::new(StallingSleeper {
        sleeper,
        stall_sender,
        release_receiver: std::sync::Mutex::new(release_receiver),
    });
    let caps = files.caps();
    let builder = ReadPath::builder().readahead("none").memory(1 << 20);
    let files = StorageBackend::Files(Box::new(files));
    let engine = builder.build_engine_over(files, stalling_sleeper, caps, clock).unwrap();
    let path = ReadPath::from_engine(Arc::new(LazyEngine::new(
        engine,
        Coherence::WhenOpened,
        PathPages::Own { bytes: None, reads_resident: false },
        None,
    )));
    let file = path.open(&program_path).unwrap();
    let leader_file = file.reopen();
    let leader = std::thread::Builder::new().name(STALLED_THREAD.to_owned());
    let read_as_leader = move || {
        let mut batch = leader_file.read_path().batch();
        let (offset, bytes, ticket) = (0, 1, 0);
        batch.read(&leader_file, offset, bytes, ticket).unwrap();
        batch.wait().unwrap().expect("one read is in flight").bytes().unwrap();
    };
    let leader = leader.spawn(read_as_leader).unwrap();
    // If the file is in memory, the leader reads it itself and does not sleep.
    if stall_receiver.recv_timeout(Duration::from_secs(2)).is_err() && leader.is_finished() {
        eprintln!("skipped: this program's file is read without a sleep");
        return None;
    }
    let (answer_sender, answer_receiver) = channel();
    let reader = std::thread::spawn(move || answer_sender.send(read(&file)).unwrap());
    let byte = answer_receiver.recv_timeout(LIVENESS_LIMIT);
    drop(release_sender);
    reader.join().unwrap();
    leader.join().unwrap();
    Some(byte.expect("the read waited for the thread that is gone"))
}

/// Reads one byte of the file with the standard library.
fn byte_at(offset: u64) -> u8 {
    use std::os::unix::fs::FileExt;
    let mut byte = [0];
    let program_path = std::env::current_exe().expect("this program has a file");
    std::fs::File::open(program_path).unwrap().read_exact_at(&mut byte, offset).unwrap();
    byte[0]
}

/// A thread that waits behind the stalled leader takes over and completes its reads.
#[test]
fn waiting_thread_replaces_a_stalled_leader() {
    let read = |file: &File| {
        let mut byte = [0];
        // A second read shows that the waiting thread became the leader.
        file.read_exact_at(&mut byte, 500_000).unwrap();
        file.read_exact_at(&mut byte, 300_001).unwrap();
        byte[0]
    };
    if let Some(byte) = read_behind_a_stalled_leader(read) {
        assert_eq!(byte, byte_at(300_001));
    }
}

/// A future has no thread: the reactor takes over.
#[test]
fn reactor_replaces_a_stalled_leader_for_a_future() {
    let read = |file: &File| {
        let (count, buffer) = pollster::block_on(file.read_at_async([0u8], 300_001));
        assert_eq!(count.unwrap(), 1);
        buffer[0]
    };
    if let Some(byte) = read_behind_a_stalled_leader(read) {
        assert_eq!(byte, byte_at(300_001));
    }
}

/// Byte 17 lies in the page that the stalled leader has requested.
#[test]
fn page_requested_by_a_stalled_leader_is_readable_by_others() {
    let read = |file: &File| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 17).unwrap();
        byte[0]
    };
    if let Some(byte) = read_behind_a_stalled_leader(read) {
        assert_eq!(byte, byte_at(17));
    }
}

/// This thread takes a request and does not execute it, like a stalled thread. Another read of the
/// same page waits for the stall timeout, and then reads the bytes itself.
#[test]
fn request_of_a_stalled_thread_is_read_again_by_a_waiting_reader() {
    let program_path = std::env::current_exe().expect("this program has a file");
    let path = ReadPath::builder().readahead("none").memory(1 << 20).build().unwrap();
    let file = path.open(program_path).unwrap();
    let engine = path.engine();
    let mut state = engine.lock();
    let queue = state.in_flight.open_queue(QueueOwner::Thread);
    let offset = 300_001;
    let requested_bytes = 1;
    let inline_request = state.start_inline(file.handle(), offset, requested_bytes, queue).unwrap();
    let mut inline_request =
        inline_request.expect("the waiting thread executes the request for an absent page");
    drop(state);
    let mut bytes = [0; 2];
    file.read_exact_at(&mut bytes, offset).unwrap();
    assert_eq!(bytes, [byte_at(offset), byte_at(offset + 1)]);
    // The thread resumes: the page becomes available to all, and nothing remains in flight. SAFETY:
    // the frames are filled by this request alone, and the engine outlives it.
    let outcome = unsafe { inline_request.progress.execute() };
    let mut state = engine.lock();
    let now = state.complete_inline(inline_request, outcome);
    state.step_until_idle(now);
    state.close_queue(queue);
    assert!(state.machine.is_idle());
    drop(state);
    file.read_exact_at(&mut bytes, offset).unwrap();
    assert_eq!(bytes, [byte_at(offset), byte_at(offset + 1)]);
    // The read without the cache is not counted.
    assert_eq!(path.stats().device_reads, 1);
}
