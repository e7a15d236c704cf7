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

/// Liveness limit, long enough for any machine. A passing test does not wait for it.
const LIVENESS_LIMIT: Duration = Duration::from_secs(20);

/// Sleeper that blocks the thread named "held" after its sleep until the test releases it.
struct StalledThread {
    sleeper: Arc<dyn Sleeper>,
    stalled: SyncSender<()>,
    release_signal: std::sync::Mutex<Receiver<()>>,
}

impl Sleeper for StalledThread {
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let slept = self.sleeper.sleep(sleep);
        if sleep != Sleep::Never && std::thread::current().name() == Some("held") {
            self.stalled.send(()).unwrap();
            // The end of the test also releases it.
            let _ = self.release_signal.lock().unwrap().recv();
        }
        slept
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

/// Lets a thread lead and stall, runs `read` on another thread and returns its result.
fn read_behind_a_stalled_leader(read: impl FnOnce(&File) -> u8 + Send + 'static) -> Option<u8> {
    let name = std::env::current_exe().expect("this program has a file");
    let (begun, has_begun) = sync_channel(1);
    let (release, let_go) = channel::<()>();
    let clock = Clock::start();
    let (files, sleeper) = FileStorage::for_several_threads(16, BackendKind::Auto, clock).unwrap();
    let held = Arc::new(StalledThread {
        sleeper,
        stalled: begun,
        release_signal: std::sync::Mutex::new(let_go),
    });
    let caps = files.caps();
    let builder = ReadPath::builder().readahead("none").memory(1 << 20);
    let files = StorageBackend::Files(Box::new(files));
    let engine = builder.build_engine_over(files, held, caps, clock).unwrap();
    let path = ReadPath::from_engine(Arc::new(LazyEngine::new(
        engine,
        Coherence::WhenOpened,
        PathPages::Own { bytes: None, reads_resident: false },
        None,
    )));
    let file = path.open(&name).unwrap();
    let theirs = file.reopen();
    let leader = std::thread::Builder::new().name("held".to_owned());
    let leads = move || {
        let mut batch = theirs.read_path().batch();
        batch.read(&theirs, 0, 1, 0).unwrap();
        batch.wait().unwrap().expect("one read is under way").bytes().unwrap();
    };
    let leader = leader.spawn(leads).unwrap();
    // The thread itself reads a file in memory and does not sleep then.
    if has_begun.recv_timeout(Duration::from_secs(2)).is_err() && leader.is_finished() {
        eprintln!("skipped: this program's file is read without a sleep");
        return None;
    }
    let (answer_sender, tell) = channel();
    let reader = std::thread::spawn(move || answer_sender.send(read(&file)).unwrap());
    let byte = tell.recv_timeout(LIVENESS_LIMIT);
    drop(release);
    reader.join().unwrap();
    leader.join().unwrap();
    Some(byte.expect("the read waited for the thread that is gone"))
}

/// Reads one byte of the file with the standard library.
fn byte_at(offset: u64) -> u8 {
    use std::os::unix::fs::FileExt;
    let mut byte = [0];
    let name = std::env::current_exe().expect("this program has a file");
    std::fs::File::open(name).unwrap().read_exact_at(&mut byte, offset).unwrap();
    byte[0]
}

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

#[test]
fn request_of_a_stalled_thread_is_read_again_by_a_waiting_reader() {
    let name = std::env::current_exe().expect("this program has a file");
    let path = ReadPath::builder().readahead("none").memory(1 << 20).build().unwrap();
    let file = path.open(name).unwrap();
    let engine = path.engine();
    let mut state = engine.lock();
    let queue = state.in_flight.open_queue(QueueOwner::Thread);
    let own = state.start_inline(file.handle(), 300_001, 1, queue).unwrap();
    let mut own = own.expect("what is absent is given to the thread that waits");
    drop(state);
    let mut bytes = [0; 2];
    file.read_exact_at(&mut bytes, 300_001).unwrap();
    assert_eq!(bytes, [byte_at(300_001), byte_at(300_002)]);
    // The thread resumes: the page becomes available to all, and nothing remains in flight. SAFETY:
    // the frames are filled by this request alone, and the engine outlives it.
    let outcome = unsafe { own.progress.execute() };
    let mut state = engine.lock();
    let now = state.complete_inline(own, outcome);
    state.pump(now);
    state.close_queue(queue);
    assert!(state.machine.is_idle());
    drop(state);
    file.read_exact_at(&mut bytes, 300_001).unwrap();
    assert_eq!(bytes, [byte_at(300_001), byte_at(300_002)]);
    assert_eq!(path.stats().device_reads, 1);
}
