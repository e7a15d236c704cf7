//! Threads that wait, in the place of tasks and batches, until the kernel has read their bytes.
//!
//! The kernel reports to nobody that pages have come which it was advised to read: to read them is
//! to wait for them. A future whose bytes are not there has the kernel begin with them and leaves
//! the wait to a thread of this pool, which reads the bytes and wakes the task. Small reads are kept
//! for the task: where memory is short, the kernel may have dropped the pages by the time that the
//! task comes. (32 tasks of 64 KiB in a quarter of their memory read 390 to 420 MiB for 215 so.)
//!
//! All reads are under way before anything waits for them, so one thread is enough, and the oldest
//! read is waited for first. The exception is a read that does not come back: a server that does not
//! answer, a disk that retries. Invariants:
//!
//! 1. While reads are queued and a thread is in a read, another thread *watches*: it sleeps for
//!    [`IDLE_TIMEOUT`], and takes a read by itself if none has ended meanwhile. So a queue whose reads
//!    end is served by one thread, and one that is stuck by one more thread each 4 ms.
//! 2. A file in which fewer threads are stuck comes first; the older read among equals.
//! 3. No more than [`FILE_THREADS_MAX`] threads are in one file, and [`DEVICE_FILES_MAX`] on one
//!    device. Stuck reads take no thread from the others.
//!
//! Code of others, the wakers, runs without a lock and contained: a panic of it ends no thread.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use readpath_core::unit::PageRange;

pub(crate) use super::wish::Wish;

use super::read_ahead;
use super::wish::POISON;
use crate::process::ProcessName;
use crate::target::Target;
use crate::thread::{self, contain};

/// Time without an end of any read after which one more thread takes a read.
const IDLE_TIMEOUT: Duration = Duration::from_millis(4);
/// Time after which an idle thread ends, where another one is idle as well.
const IDLE: Duration = Duration::from_secs(2);
/// Most threads that are in reads of one file.
const FILE_THREADS_MAX: u32 = 8;
/// Most threads on one device where another one is in the file.
const DEVICE_THREADS_MAX: u32 = 64;
/// Most threads on one device, each but these in a file of its own: a mount that hangs as a whole.
const DEVICE_FILES_MAX: u32 = 192;
/// Most threads of one path: those of one device that hangs, and some for the others.
const THREADS_MAX: usize = 256;

/// Names a file among all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileKey {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl FileKey {
    pub(super) fn of(target: &Target) -> FileKey {
        let identity = target.identity();
        FileKey { device: identity.device, inode: identity.inode }
    }
}

/// The threads, once there are some, and the reads that they are to make.
pub(super) struct Waiter {
    shared: Arc<WaiterShared>,
    /// The one that has the threads.
    process: ProcessName,
}

#[derive(Default)]
struct WaiterShared {
    pool: Mutex<Pool>,
    /// There is a read to take or to watch over, or the end.
    called: Condvar,
}

#[derive(Default)]
struct Pool {
    files: BTreeMap<FileKey, OfFile>,
    /// Files of which a read may be taken: by the number of threads in them, and by age.
    order: BTreeSet<(u32, u64, FileKey)>,
    /// Number of threads in reads, by device.
    devices: BTreeMap<u64, u32>,
    /// Number of reads queued since the start: the age of the next.
    age: u64,
    /// Number of reads that have ended since the start.
    ended: u64,
    threads: Vec<Worker>,
    /// Number of threads in reads.
    reading: u32,
    /// Number of threads that sleep.
    idle: u32,
    /// Whether one of them watches.
    has_length_marks: bool,
    is_closing: bool,
}

/// A thread of the pool.
struct Worker {
    handle: JoinHandle<()>,
    /// Whether it is in a read, or in code of others; changed under the lock.
    is_reading: Arc<AtomicBool>,
}

/// Something for a thread to do that may take as long as the file has it take.
pub(super) enum Task {
    /// A read, and its report.
    Read(Arc<Wish>),
    /// Advice to read ahead. It waits where the file system has as many requests under way as it
    /// takes, as FUSE does.
    Advise { target: Box<Target>, pages: PageRange },
}

impl Task {
    fn key(&self) -> FileKey {
        match self {
            Task::Read(wish) => wish.key,
            Task::Advise { target, .. } => FileKey::of(target),
        }
    }
}

/// Tasks of one file.
#[derive(Default)]
struct OfFile {
    /// Each with its age.
    queue: VecDeque<(u64, Task)>,
    reading: u32,
}

impl OfFile {
    /// Where the file stands in the order.
    fn turn(&self, key: FileKey) -> Option<(u32, u64, FileKey)> {
        let &(age, _) = self.queue.front()?;
        (self.reading < FILE_THREADS_MAX).then_some((self.reading, age, key))
    }
}

impl Pool {
    /// Changes the entry of a file, and its position in the order with it.
    fn with_file<T>(&mut self, key: FileKey, change: impl FnOnce(&mut OfFile) -> T) -> T {
        let file = self.files.entry(key).or_default();
        if let Some(turn) = file.turn(key) {
            self.order.remove(&turn);
        }
        let result = change(file);
        if let Some(turn) = file.turn(key) {
            self.order.insert(turn);
        }
        if file.queue.is_empty() && file.reading == 0 {
            self.files.remove(&key);
        }
        result
    }

    fn queue(&mut self, task: Task) {
        self.age += 1;
        let age = self.age;
        self.with_file(task.key(), |file| file.queue.push_back((age, task)));
    }

    /// The next task, for the calling thread to do.
    fn take(&mut self) -> Option<Task> {
        let is_free = |in_file: u32, key: &FileKey| {
            let most = if in_file == 0 { DEVICE_FILES_MAX } else { DEVICE_THREADS_MAX };
            self.devices.get(&key.device).is_none_or(|&reading| reading < most)
        };
        let &(_, _, key) = self.order.iter().find(|(in_file, _, key)| is_free(*in_file, key))?;
        self.reading += 1;
        *self.devices.entry(key.device).or_default() += 1;
        let taken = self.with_file(key, |file| {
            file.reading += 1;
            file.queue.pop_front()
        });
        let (_, task) = taken.expect("a file in the order has a task");
        Some(task)
    }

    /// A read of the file has ended.
    fn ended(&mut self, key: FileKey) {
        self.ended += 1;
        self.reading -= 1;
        self.with_file(key, |file| file.reading -= 1);
        if let Some(reading) = self.devices.get_mut(&key.device) {
            *reading -= 1;
            if *reading == 0 {
                self.devices.remove(&key.device);
            }
        }
    }
}

impl Waiter {
    /// One without threads.
    pub(super) fn new() -> Waiter {
        Waiter { shared: Arc::default(), process: ProcessName::this() }
    }

    /// Has a thread do the task.
    ///
    /// # Errors
    /// The system gives no thread, and there is none yet.
    pub(super) fn hand_over(&self, task: Task) -> io::Result<()> {
        let mut pool = self.shared.lock();
        pool.queue(task);
        if pool.idle > 0 && (pool.reading == 0 || !pool.has_length_marks) {
            self.shared.called.notify_one();
            return Ok(());
        }
        match self.shared.start_if_needed(&mut pool) {
            Err(error) if pool.threads.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether a thread is in a read of the file now.
    pub(super) fn waits_for(&self, key: FileKey) -> bool {
        self.shared.lock().files.get(&key).is_some_and(|file| file.reading > 0)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        let mut pool = self.shared.lock();
        pool.is_closing = true;
        let threads = std::mem::take(&mut pool.threads);
        let files = std::mem::take(&mut pool.files);
        pool.order.clear();
        drop(pool);
        self.shared.called.notify_all();
        // No future waits for these any more; wakers in them are code of others.
        contain(|| drop(files));
        for Worker { handle, is_reading } in threads {
            // One that is in a read, which may be stuck, ends after it; this may be that thread: a
            // task that it woke may have dropped the last file of the path.
            if !is_reading.load(Ordering::Relaxed) {
                let _ = handle.join();
            }
        }
    }
}

impl WaiterShared {
    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().expect(POISON)
    }

    /// Starts a thread where none sleeps: to take a read, or to watch over those that are queued.
    ///
    /// # Errors
    /// The system gives no thread.
    fn start_if_needed(self: &Arc<WaiterShared>, pool: &mut Pool) -> io::Result<()> {
        if pool.idle > 0 || pool.is_closing {
            return Ok(());
        }
        pool.threads.retain(|worker| !worker.handle.is_finished());
        if pool.threads.len() >= THREADS_MAX {
            return Ok(());
        }
        let (shared, is_reading) = (Arc::clone(self), Arc::new(AtomicBool::new(false)));
        let of_thread = Arc::clone(&is_reading);
        let handle = thread::spawn("readpath-wait", move || shared.run(&of_thread))?;
        pool.threads.push(Worker { handle, is_reading });
        // Counted from here on, so that no more are started until it runs.
        pool.idle += 1;
        Ok(())
    }

    /// The life of a thread.
    fn run(self: &Arc<WaiterShared>, is_reading: &AtomicBool) {
        let mut pool = self.lock();
        pool.idle -= 1;
        let mut may_take = false;
        while !pool.is_closing {
            let task = if may_take || pool.reading == 0 { pool.take() } else { None };
            if let Some(task) = task {
                is_reading.store(true, Ordering::Relaxed);
                if !pool.order.is_empty() && !pool.has_length_marks {
                    // Where no thread can be started, this one goes on after the read.
                    let _ = self.start_if_needed(&mut pool);
                    self.called.notify_one();
                }
                drop(pool);
                let key = task.key();
                carry(task);
                pool = self.lock();
                if pool.is_closing {
                    return;
                }
                pool.ended(key);
                is_reading.store(false, Ordering::Relaxed);
                may_take = true;
                continue;
            }
            let is_over;
            pool.idle += 1;
            (pool, may_take, is_over) = self.sleep(pool);
            pool.idle -= 1;
            if is_over && pool.idle > 0 && pool.order.is_empty() {
                return;
            }
        }
    }

    /// Sleeps until called. A thread that watches sleeps for no longer than its patience, and then may
    /// take a read if none has ended meanwhile. The last is true of a thread that has idled for long
    /// while others did.
    fn sleep<'s>(&'s self, mut pool: MutexGuard<'s, Pool>) -> (MutexGuard<'s, Pool>, bool, bool) {
        if !pool.order.is_empty() && !pool.has_length_marks {
            pool.has_length_marks = true;
            let ended = pool.ended;
            let (mut pool, waited) = self.called.wait_timeout(pool, IDLE_TIMEOUT).expect(POISON);
            pool.has_length_marks = false;
            let is_stuck = waited.timed_out() && pool.ended == ended;
            return (pool, is_stuck, false);
        }
        if pool.idle == 1 {
            return (self.called.wait(pool).expect(POISON), false, false);
        }
        let (pool, waited) = self.called.wait_timeout(pool, IDLE).expect(POISON);
        (pool, false, waited.timed_out())
    }
}

/// Does a task; a read only if its owner is there still. What panics is code of others.
fn carry(task: Task) {
    contain(|| match &task {
        Task::Read(wish) if Arc::strong_count(wish) > 1 => {
            wish.carry();
            wish.tell();
        }
        Task::Read(_) => {}
        Task::Advise { target, pages } => {
            read_ahead(&**target, *pages);
        }
    });
    // The last drop of a waker may be here.
    contain(|| drop(task));
}

#[cfg(test)]
mod tests {
    use std::fs::File as StdFile;

    use super::*;

    fn wish(device: u64, inode: u64) -> Task {
        let file = Arc::new(StdFile::open("/dev/null").unwrap());
        Task::Read(Arc::new(Wish::new(file, FileKey { device, inode }, 0, 1)))
    }

    /// Files in which no thread is come first, and older reads before younger ones.
    #[test]
    fn file_with_fewer_threads_in_it_comes_first() {
        let mut pool = Pool::default();
        for inode in [1, 1, 1, 2, 3] {
            pool.queue(wish(0, inode));
        }
        let order: Vec<u64> = (0..5).map(|_| pool.take().unwrap().key().inode).collect();
        assert_eq!(order, [1, 2, 3, 1, 1]);
        assert!(pool.take().is_none());
        // Of the three files two end; a new read of the first still waits behind one of another.
        pool.ended(FileKey { device: 0, inode: 2 });
        pool.queue(wish(0, 1));
        pool.queue(wish(0, 2));
        assert_eq!(pool.take().unwrap().key().inode, 2);
    }

    #[test]
    fn file_and_device_take_no_more_threads_than_they_may() {
        let mut pool = Pool::default();
        (0..20).for_each(|_| pool.queue(wish(0, 1)));
        let taken = std::iter::from_fn(|| pool.take()).count();
        assert_eq!(taken, FILE_THREADS_MAX as usize);
        pool.ended(FileKey { device: 0, inode: 1 });
        assert!(pool.take().is_some() && pool.take().is_none());
        (2..300).for_each(|inode| pool.queue(wish(0, inode)));
        let taken = std::iter::from_fn(|| pool.take()).count() as u32;
        assert_eq!(taken, DEVICE_FILES_MAX - FILE_THREADS_MAX);
        pool.queue(wish(1, 1));
        assert_eq!(pool.take().unwrap().key().device, 1);
    }

    #[test]
    fn ended_reads_leave_nothing_behind() {
        let mut pool = Pool::default();
        (0..9).for_each(|inode| pool.queue(wish(inode, inode)));
        while let Some(wish) = pool.take() {
            pool.ended(wish.key());
        }
        assert!(pool.files.is_empty() && pool.order.is_empty() && pool.devices.is_empty());
        assert_eq!((pool.reading, pool.ended), (0, 9));
    }
}
