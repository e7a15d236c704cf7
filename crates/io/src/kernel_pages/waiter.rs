//! A thread that waits, in the place of tasks, until the kernel has read what they want.
//!
//! The kernel tells nobody that what it was advised to read is there: to read it is to wait for it. So a future whose bytes are
//! not held has the kernel begin with them, and leaves the waiting to this thread, which reads the place and wakes the task. What it
//! has read of up to 64 KiB the task is given: where memory is short, the kernel may have let go of it by the time that the task
//! comes (32 tasks of 64 KiB in a quarter of their memory read 390 to 420 MiB for 215 so). More than that goes to memory that nobody looks at, and
//! the task copies what is held. All that tasks wait for is under way by then, so one thread
//! is enough: it waits for the oldest first. The first future that waits starts it; idle, it sleeps on a condition.

use std::collections::VecDeque;
use std::fs::File as StdFile;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::thread::JoinHandle;

use crate::copied::Copied;
use crate::process::ProcessName;
use crate::thread;

/// The most that is read for a task at once, and of more at a time.
const COPY_BYTES_MAX: u64 = 64 << 10;

const POISON: &str = "no code of others runs under this lock";

/// What a task waits for.
pub(crate) struct Wish {
    pub(super) file: Arc<StdFile>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    has_come: AtomicBool,
    /// All of it, where it was read for the task.
    copy: Mutex<Option<Copied>>,
    waker: Mutex<Option<Waker>>,
}

/// The thread, once there is one, and what it is to wait for.
pub(super) struct Waiter {
    shared: Arc<WaiterShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The one that has the thread.
    process: ProcessName,
}

#[derive(Default)]
struct WaiterShared {
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
        let has_come = AtomicBool::new(false);
        Wish { file, offset, bytes, has_come, copy: Mutex::default(), waker: Mutex::default() }
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

    /// What was read of it, if that is all.
    pub(super) fn take_copy(&self) -> Option<Copied> {
        self.copy.lock().expect(POISON).take()
    }

    /// Waits for it, whatever comes of it: the task finds out.
    fn wait(&self) {
        let mut read = Copied::room(self.bytes.min(COPY_BYTES_MAX) as usize, None);
        let end = self.offset + self.bytes;
        let mut offset = self.offset;
        let mut is_read = true;
        while offset < end && is_read {
            let bytes = read.len().min((end - offset) as usize);
            is_read = self.file.read_exact_at(&mut read[..bytes], offset).is_ok();
            offset += bytes as u64;
        }
        if is_read && self.bytes <= COPY_BYTES_MAX {
            *self.copy.lock().expect(POISON) = Some(read);
        }
        self.has_come.store(true, Ordering::Release);
        let waker = self.waker.lock().expect(POISON).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Waiter {
    /// One without a thread.
    pub(super) fn new() -> Waiter {
        Waiter { shared: Arc::default(), thread: Mutex::default(), process: ProcessName::this() }
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

impl WaiterShared {
    /// The life of the thread.
    fn run(&self) {
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
            wish.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(bytes: u64) -> Wish {
        let name =
            std::env::temp_dir().join(format!("readpath-wish-{}-{bytes}", std::process::id()));
        let content: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(&name, content).unwrap();
        let file = Arc::new(StdFile::open(&name).unwrap());
        std::fs::remove_file(&name).unwrap();
        Wish::new(file, 10, bytes)
    }

    #[test]
    fn of_up_to_64_kib_the_task_is_given_what_was_read_and_of_more_nothing() {
        for (bytes, is_given) in [(1, true), (65_536, true), (65_537, false), (99_990, false)] {
            let wish = wish(bytes);
            wish.wait();
            assert!(wish.poll(Waker::noop()));
            let copy = wish.take_copy();
            assert_eq!(copy.is_some(), is_given, "{bytes} bytes");
            let is_right = |copy: Copied| {
                copy.len() as u64 == bytes
                    && copy.iter().zip(10u32..).all(|(&byte, at)| u32::from(byte) == at % 251)
            };
            assert!(copy.is_none_or(is_right));
        }
    }

    #[test]
    fn where_the_file_ends_before_the_task_is_given_nothing() {
        let wish = wish(99_991);
        let wish = Wish::new(Arc::clone(&wish.file), 99_990, 11);
        wish.wait();
        assert!(wish.poll(Waker::noop()));
        assert!(wish.take_copy().is_none());
    }
}
