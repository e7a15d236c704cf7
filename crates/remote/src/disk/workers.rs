//! The threads of a tier: they wait for the disk, so that no task of a runtime does.
//!
//! Threads start with the first reads and writes, and sleep until the next ones. There is no timer.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::entries::{DiskRead, ReadJob, WriteJob};
use super::options::DiskOff;
use super::tier::Tier;
use crate::promise::Promise;

/// Number of threads that read. Each fetch is one job, and a local disk serves a job in less than
/// the latency of a store.
const READERS_MAX: usize = 4;

/// Largest number of bytes that wait for their write, chosen. Further ones are dropped. A larger
/// job waits alone.
const QUEUED_BYTES_MAX: u64 = 32 << 20;

/// A tier with the queues of its threads.
#[derive(Debug)]
pub(super) struct Workers {
    /// The folder that the threads read and write.
    pub(super) tier: Tier,
    /// Jobs and threads. No thread holds its lock while it waits for the disk.
    queue: Mutex<Queue>,
    /// A read has come, or the tier is closed.
    read_due: Condvar,
    /// A write has come, or the tier is closed.
    write_due: Condvar,
    /// All writes have ended.
    flushed: Condvar,
}

/// The jobs that no thread has taken yet, and the number of threads.
#[derive(Debug, Default)]
struct Queue {
    reads: VecDeque<QueuedRead>,
    writes: VecDeque<WriteJob>,
    /// Bytes of the queued writes, and of the one that is executed.
    queued_bytes: u64,
    /// True while a write is executed.
    is_writing: bool,
    /// Number of threads that read, and of these that wait for a job.
    readers: usize,
    idle_readers: usize,
    /// True once the thread that writes was started.
    has_writer: bool,
    /// True once the tier has ended: the threads end when the queues are empty.
    is_closed: bool,
}

/// A read whose result is expected.
#[derive(Debug)]
struct QueuedRead {
    job: ReadJob,
    /// Gets the bytes; a fetch waits for it.
    promise: Promise<DiskRead>,
}

impl Drop for QueuedRead {
    /// Ends a read without bytes, unless it has ended.
    fn drop(&mut self) {
        self.promise.set(DiskRead::default());
    }
}

impl Workers {
    /// A tier without threads.
    pub(super) fn new(tier: Tier) -> Workers {
        Workers {
            tier,
            queue: Mutex::default(),
            read_due: Condvar::new(),
            write_due: Condvar::new(),
            flushed: Condvar::new(),
        }
    }

    /// Locks the queue.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a read. The promise is kept in any case, without bytes if no thread can be started.
    pub(super) fn read(self: &Arc<Self>, job: ReadJob) -> Promise<DiskRead> {
        let promise = Promise::new();
        let mut queue = self.lock();
        queue.reads.push_back(QueuedRead { job, promise: promise.clone() });
        // An idle thread takes the job, or no further thread may start.
        if queue.idle_readers >= queue.reads.len() || queue.readers == READERS_MAX {
            drop(queue);
            self.read_due.notify_one();
            return promise;
        }
        queue.readers += 1;
        drop(queue);
        let of_thread = Arc::clone(self);
        if !start("readpath-disk-read", move || read_loop(&of_thread)) {
            let mut queue = self.lock();
            queue.readers -= 1;
            // All queued reads end without bytes, as the tier is turned off. Other threads, if any,
            // are busy.
            let reads = std::mem::take(&mut queue.reads);
            drop(queue);
            drop(reads);
            self.tier.turn_off(DiskOff::NoThread);
        }
        promise
    }

    /// Queues a write. Returns false if too many bytes wait already. If no thread can be started,
    /// all queued writes are dropped, and the tier is off from then on. The result is true then.
    pub(super) fn write(self: &Arc<Self>, job: WriteJob) -> bool {
        let mut queue = self.lock();
        if queue.queued_bytes > 0 && queue.queued_bytes + job.bytes() > QUEUED_BYTES_MAX {
            return false;
        }
        queue.queued_bytes += job.bytes();
        queue.writes.push_back(job);
        if std::mem::replace(&mut queue.has_writer, true) {
            drop(queue);
            self.write_due.notify_one();
            return true;
        }
        drop(queue);
        let of_thread = Arc::clone(self);
        if !start("readpath-disk-write", move || write_loop(&of_thread)) {
            let mut queue = self.lock();
            queue.has_writer = false;
            queue.queued_bytes = 0;
            queue.writes.clear();
            drop(queue);
            self.flushed.notify_all();
            self.tier.turn_off(DiskOff::NoThread);
        }
        true
    }

    /// Waits until all queued writes have ended.
    pub(super) fn flush(&self) {
        let mut queue = self.lock();
        while queue.is_writing || !queue.writes.is_empty() {
            queue = self.flushed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the threads, after the queued jobs.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.read_due.notify_all();
        self.write_due.notify_all();
    }
}

/// Starts a thread. Returns false if the system provides none.
fn start(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).is_ok()
}

/// Reads until the tier is closed and all queued reads are done.
fn read_loop(workers: &Workers) {
    let mut queue = workers.lock();
    loop {
        if let Some(read) = queue.reads.pop_front() {
            drop(queue);
            let bytes = workers.tier.read(&read.job);
            read.promise.set(bytes);
            drop(read);
            queue = workers.lock();
            continue;
        }
        if queue.is_closed {
            queue.readers -= 1;
            return;
        }
        queue.idle_readers += 1;
        queue = workers.read_due.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.idle_readers -= 1;
    }
}

/// Writes until the tier is closed and all queued writes are done.
fn write_loop(workers: &Workers) {
    let mut queue = workers.lock();
    loop {
        if let Some(job) = queue.writes.pop_front() {
            queue.is_writing = true;
            drop(queue);
            let bytes = job.bytes();
            workers.tier.write(job);
            queue = workers.lock();
            queue.is_writing = false;
            queue.queued_bytes -= bytes;
            continue;
        }
        workers.flushed.notify_all();
        if queue.is_closed {
            return;
        }
        queue = workers.write_due.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}
