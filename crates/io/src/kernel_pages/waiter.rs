//! A thread that waits, in the place of tasks, until the kernel has read what they want.
//!
//! The kernel tells nobody that what it was advised to read is there: to read it is to wait for it. So a future whose bytes are
//! not held has the kernel begin with them, and leaves the waiting to this thread, which reads the place into memory that nobody
//! looks at and wakes the task; the task then copies what is held. All that tasks wait for is under way by then, so one thread
//! is enough: it waits for the oldest first. The first future that waits starts it; idle, it sleeps on a condition.

use std::collections::VecDeque;
use std::fs::File as StdFile;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::thread::JoinHandle;

use crate::process::Process;
use crate::thread;

/// So much is read at a time into memory that nobody looks at.
const SCRATCH_BYTES: usize = 64 << 10;

const POISON: &str = "no code of others runs under this lock";

/// What a task waits for.
pub(crate) struct Wish {
    pub(super) file: Arc<StdFile>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    has_come: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// The thread, once there is one, and what it is to wait for.
pub(super) struct Waiter {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The one that has the thread.
    process: Process,
}

#[derive(Default)]
struct Shared {
    wishes: Mutex<Wishes>,
    called: Condvar,
}

#[derive(Default)]
struct Wishes {
    queue: VecDeque<Arc<Wish>>,
    is_closing: bool,
}

impl Wish {
    pub(super) fn new(file: Arc<StdFile>, offset: u64, bytes: u64) -> Wish {
        let (has_come, waker) = (AtomicBool::new(false), Mutex::default());
        Wish { file, offset, bytes, has_come, waker }
    }

    /// Whether it was waited for; if not, `waker` is called when it was.
    pub(super) fn poll(&self, waker: &Waker) -> bool {
        // The waker's own code runs without the lock.
        let fresh = waker.clone();
        let before = self.waker.lock().expect(POISON).replace(fresh);
        drop(before);
        // Looked at after the waker is there: the thread takes the waker after it has set this.
        self.has_come.load(Ordering::Acquire)
    }

    /// Waits for it, whatever comes of it: the task finds out.
    fn wait(&self, scratch: &mut [u8]) {
        let end = self.offset + self.bytes;
        let mut offset = self.offset;
        while offset < end {
            let bytes = scratch.len().min((end - offset) as usize);
            match self.file.read_at(&mut scratch[..bytes], offset) {
                Ok(read @ 1..) => offset += read as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        self.has_come.store(true, Ordering::Release);
        let waker = self.waker.lock().expect(POISON).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Waiter {
    /// One without a thread.
    pub(super) fn new() -> Waiter {
        Waiter { shared: Arc::default(), thread: Mutex::default(), process: Process::this() }
    }

    /// Has the thread wait for it.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn wait_for(&self, wish: Arc<Wish>) -> io::Result<()> {
        let mut thread = self.thread.lock().expect(POISON);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            *thread = Some(thread::spawn("readpath-wait", move || shared.run())?);
        }
        drop(thread);
        self.shared.wishes.lock().expect(POISON).queue.push_back(wish);
        self.shared.called.notify_one();
        Ok(())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        let Some(thread) = self.thread.get_mut().expect(POISON).take() else { return };
        self.shared.wishes.lock().expect(POISON).is_closing = true;
        self.shared.called.notify_one();
        // A task that it woke may have dropped the last file of the path on it.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The life of the thread.
    fn run(&self) {
        let mut scratch = vec![0; SCRATCH_BYTES];
        loop {
            let mut wishes = self.wishes.lock().expect(POISON);
            while wishes.queue.is_empty() && !wishes.is_closing {
                wishes = self.called.wait(wishes).expect(POISON);
            }
            if wishes.is_closing {
                // No future is left that could want anything.
                return;
            }
            let Some(wish) = wishes.queue.pop_front() else { continue };
            drop(wishes);
            wish.wait(&mut scratch);
        }
    }
}
