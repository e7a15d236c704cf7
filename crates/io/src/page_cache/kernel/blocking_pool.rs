//! Threads that wait for reads through the kernel page cache, on behalf of tasks and batches.
//!
//! A *job* is one read or one call of advice for a thread of the pool. A thread is *in a read*
//! while it executes a job of either kind. A *task* is a future of the program: its waker is called
//! at the end of its read.
//!
//! The kernel does not report when advised pages have arrived: the only way to wait for them is to
//! read them. A future that misses starts the kernel's I/O and passes the wait to a thread of this
//! pool, which reads the bytes and wakes the task. Bytes of small reads are kept for the task,
//! because the kernel may evict the pages before the task runs. (Without this, 32 tasks of 64 KiB
//! with a quarter of their memory read 390 to 420 MiB for 215.)
//!
//! All I/O is in flight before a thread waits, so one thread is enough and takes the oldest read
//! first. The exception is a stalled read: a server that does not answer, a disk that retries.
//! Invariants:
//!
//! 1. While reads are queued and a thread is in a read, another thread *watches*. It sleeps for
//!    [`STALL_TIMEOUT`] and takes a read itself if none has ended meanwhile. A queue that
//!    progresses is thus served by one thread, and a stalled one gains a thread each 4 ms.
//! 2. A file with fewer threads in reads comes first; among equals, the older read.
//! 3. At most [`FILE_THREADS_MAX`] threads are in one file and [`DEVICE_THREADS_FIRST_MAX`] on one
//!    device. Stalled reads take no thread from others.
//!
//! A future or a batch that is dropped leaves its reads in the queue. No thread executes them. A
//! queue that has doubled since the last search is searched for them, because a stalled file would
//! keep them for ever. Advice has no owner. While a file or its device has all threads that it may
//! have, or no further thread can be started, its queued advice is bounded by [`ADVICE_JOBS_MAX`].
//! Further advice is dropped, and the pages are read when they are needed. Other files keep all
//! advice: a batch may queue one call per read before the first one is executed.
//!
//! Wakers are foreign code: they run without a lock, and a panic is contained.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use readpath_core::unit::PageRange;

pub(crate) use super::blocking_read::{BlockingRead, FileKey};

use super::blocking_read::POISON;
use super::read_ahead;
use crate::os::process::ProcessNumber;
use crate::os::thread::{self, run_contained};
use crate::target::Target;

/// Time without any completed read after which another thread takes a read. This and the other
/// limits here are chosen, not measured.
const STALL_TIMEOUT: Duration = Duration::from_millis(4);
/// Idle timeout of a thread, if another one is idle too.
const THREAD_IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest number of threads in reads of one file. Further reads of the file wait in its queue.
const FILE_THREADS_MAX: u32 = 8;
/// Limit of threads on one device for a file that already has a thread in a read.
const DEVICE_THREADS_MAX: u32 = 64;
/// Limit of threads on one device for a file without a thread in a read. It covers a mount that
/// hangs as a whole.
const DEVICE_THREADS_FIRST_MAX: u32 = 192;
/// Largest number of threads of one path: a whole hanging device, and some for the others.
const THREADS_MAX: usize = 256;

/// Number of queued calls of advice of one file from which on further ones are dropped, while no
/// more threads may serve the file.
const ADVICE_JOBS_MAX: usize = 1024;
/// Smallest number of jobs in the queue of a file that is searched for reads without an owner.
const SEARCHED_JOBS_MIN: usize = 64;

/// Thread pool with its queue of reads.
pub(super) struct BlockingPool {
    shared: Arc<BlockingPoolShared>,
    /// Process that owns the threads.
    process: ProcessNumber,
}

/// State shared by the owner of the pool and its threads.
#[derive(Default)]
struct BlockingPoolShared {
    pool: Mutex<BlockingPoolState>,
    /// Signals a read to take or to watch, or the shutdown.
    work_signal: Condvar,
}

/// State of the pool under its lock.
#[derive(Default)]
struct BlockingPoolState {
    /// Files with queued jobs or threads in reads.
    files: BTreeMap<FileKey, FileQueue>,
    /// Files with a job that may be taken, in the order in which threads take them: number of
    /// threads in reads, age of the oldest job, key.
    takeable_files: BTreeSet<(u32, u64, FileKey)>,
    /// Number of threads in reads, by device.
    devices: BTreeMap<u64, u32>,
    /// Number of calls of `push_job`, also of dropped advice. Its value at a call is the job's age.
    jobs_queued: u64,
    /// Number of jobs that have ended since the start.
    jobs_ended: u64,
    /// Started threads. The ended ones are removed before another one starts.
    threads: Vec<Worker>,
    /// Number of threads in reads.
    threads_reading: u32,
    /// Number of sleeping threads, with the watching one and those that have not begun to run.
    threads_idle: u32,
    /// True if a thread watches.
    has_watcher: bool,
    /// True if the last attempt to start a thread has failed, or has met [`THREADS_MAX`].
    is_start_refused: bool,
    /// True once the pool is dropped.
    is_closing: bool,
}

/// A thread of the pool.
struct Worker {
    handle: JoinHandle<()>,
    /// True while it is in a read or in foreign code; changed under the lock.
    is_reading: Arc<AtomicBool>,
}

/// A possibly blocking operation for a thread.
pub(super) enum Job {
    /// A read and its completion report.
    Read(Arc<BlockingRead>),
    /// Advice to read ahead, which blocks if the file system has its maximum of requests in flight
    /// (FUSE).
    Advise { target: Box<Target>, pages: PageRange },
}

impl Job {
    /// Returns the file in whose queue the job waits.
    fn key(&self) -> FileKey {
        match self {
            Job::Read(read) => read.key,
            Job::Advise { target, .. } => FileKey::from_target(target),
        }
    }

    /// False for a read whose owner was dropped: only the job itself still refers to it.
    fn has_owner(&self) -> bool {
        match self {
            Job::Read(read) => Arc::strong_count(read) > 1,
            Job::Advise { .. } => true,
        }
    }
}

/// Queue of one file, with the number of threads in its reads.
#[derive(Default)]
struct FileQueue {
    /// Jobs, each with its age: its number in the order of queuing, so the oldest has the lowest.
    queue: VecDeque<(u64, Job)>,
    /// Number of calls of advice in the queue.
    advice_jobs: usize,
    /// Number of threads in reads of the file.
    threads_reading: u32,
    /// Number of queued jobs at which the queue is searched for reads without an owner, if it is
    /// more than [`SEARCHED_JOBS_MIN`].
    searched_jobs: usize,
}

impl FileQueue {
    /// Returns the entry of the file in `takeable_files`. Returns `None` if no thread may take a
    /// job of the file now.
    fn takeable_entry(&self, key: FileKey) -> Option<(u32, u64, FileKey)> {
        let &(age, _) = self.queue.front()?;
        (self.threads_reading < FILE_THREADS_MAX).then_some((self.threads_reading, age, key))
    }

    /// Returns a job that was just taken out of the queue, without its age, and counts it out.
    fn count_out(&mut self, taken: Option<(u64, Job)>) -> Option<Job> {
        let (_, job) = taken?;
        self.advice_jobs -= usize::from(matches!(job, Job::Advise { .. }));
        Some(job)
    }

    /// Removes and returns the reads without an owner, with their ages, if the queue has doubled
    /// since the last search and has at least [`SEARCHED_JOBS_MIN`] jobs. Otherwise returns none.
    fn take_ownerless_reads(&mut self) -> VecDeque<(u64, Job)> {
        if self.queue.len() < self.searched_jobs.max(SEARCHED_JOBS_MIN) {
            return VecDeque::new();
        }
        let queue = std::mem::take(&mut self.queue);
        let (ownerless, queue) = queue.into_iter().partition(|(_, job)| !job.has_owner());
        self.queue = queue;
        self.searched_jobs = 2 * self.queue.len();
        ownerless
    }
}

impl BlockingPoolState {
    /// Applies `change` to the queue of a file, updates the file's entry in `takeable_files`, and
    /// returns the result. A file without jobs and threads is removed.
    fn with_file<T>(&mut self, key: FileKey, change: impl FnOnce(&mut FileQueue) -> T) -> T {
        let file = self.files.entry(key).or_default();
        if let Some(entry) = file.takeable_entry(key) {
            self.takeable_files.remove(&entry);
        }
        let result = change(file);
        if let Some(entry) = file.takeable_entry(key) {
            self.takeable_files.insert(entry);
        }
        if file.queue.is_empty() && file.threads_reading == 0 {
            self.files.remove(&key);
        }
        result
    }

    /// Adds a job to the queue of its file. Returns the reads without an owner, with their ages,
    /// that leave the queue. `None` if advice beyond the bound was dropped: no thread is gained.
    fn push_job(&mut self, job: Job) -> Option<VecDeque<(u64, Job)>> {
        self.jobs_queued += 1;
        let (age, key) = (self.jobs_queued, job.key());
        let is_advice = matches!(job, Job::Advise { .. });
        if is_advice && self.is_advice_full(key) {
            return None;
        }
        Some(self.with_file(key, |file| {
            file.advice_jobs += usize::from(is_advice);
            file.queue.push_back((age, job));
            file.take_ownerless_reads()
        }))
    }

    /// True if the file has [`ADVICE_JOBS_MAX`] queued calls of advice, and no further thread may
    /// take a job of it.
    fn is_advice_full(&self, key: FileKey) -> bool {
        let Some(file) = self.files.get(&key) else { return false };
        let gains_thread = (self.threads_idle > 0 || !self.is_start_refused)
            && file.threads_reading < FILE_THREADS_MAX
            && self.is_below_device_limit(file.threads_reading, key.device);
        file.advice_jobs >= ADVICE_JOBS_MAX && !gains_thread
    }

    /// True if the device may have one more thread, for a file with `threads_in_file` threads.
    fn is_below_device_limit(&self, threads_in_file: u32, device: u64) -> bool {
        let threads_max =
            if threads_in_file == 0 { DEVICE_THREADS_FIRST_MAX } else { DEVICE_THREADS_MAX };
        self.devices.get(&device).is_none_or(|&threads_on_device| threads_on_device < threads_max)
    }

    /// Removes and returns the newest job of a file. `None` if the file has no queued job.
    fn withdraw_newest_job(&mut self, key: FileKey) -> Option<Job> {
        self.with_file(key, |file| {
            let newest = file.queue.pop_back();
            file.count_out(newest)
        })
    }

    /// Takes the next job for the calling thread, which is counted as in a read. Returns `None` if
    /// no job may be taken now.
    fn take_job(&mut self) -> Option<Job> {
        // The order of `takeable_files` is kept. Files on a device at its limit are passed over.
        let mut files = self.takeable_files.iter();
        let &(_, _, key) = files.find(|(threads_in_file, _, key)| {
            self.is_below_device_limit(*threads_in_file, key.device)
        })?;
        self.threads_reading += 1;
        *self.devices.entry(key.device).or_default() += 1;
        let queued_job = self.with_file(key, |file| {
            file.threads_reading += 1;
            let oldest = file.queue.pop_front();
            file.count_out(oldest)
        });
        Some(queued_job.expect("a file in the order has a job"))
    }

    /// Records that a thread has ended a job of the file.
    fn record_end(&mut self, key: FileKey) {
        self.jobs_ended += 1;
        self.threads_reading -= 1;
        self.with_file(key, |file| file.threads_reading -= 1);
        if let Some(threads_on_device) = self.devices.get_mut(&key.device) {
            *threads_on_device -= 1;
            if *threads_on_device == 0 {
                self.devices.remove(&key.device);
            }
        }
    }
}

impl BlockingPool {
    /// Creates a pool of the calling process, without threads. Threads start on demand.
    pub(super) fn new() -> BlockingPool {
        BlockingPool { shared: Arc::default(), process: ProcessNumber::current() }
    }

    /// Queues a job, and wakes or starts a thread for it if needed. After an error the job is
    /// dropped without being executed.
    ///
    /// # Errors
    /// The system provides no thread, and the pool has none. Or the job is advice, the file gains
    /// no thread for it, and has [`ADVICE_JOBS_MAX`] calls of advice queued (`QuotaExceeded`).
    pub(super) fn queue_job(&self, job: Job) -> io::Result<()> {
        let key = job.key();
        let mut pool = self.shared.lock();
        let Some(ownerless_reads) = pool.push_job(job) else {
            // The system may have a thread for the queue again.
            if pool.is_start_refused {
                let _ = self.shared.start_if_needed(&mut pool);
            }
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        let result = self.wake_or_start(pool, key);
        // Ownerless reads may hold the last references to wakers, which are foreign code.
        for read in ownerless_reads {
            run_contained(|| drop(read));
        }
        result
    }

    /// Wakes or starts a thread for the newest job, which is of the file `key`, if needed.
    ///
    /// # Errors
    /// As [`queue_job`](BlockingPool::queue_job), which has the lock of `pool`.
    fn wake_or_start(
        &self,
        mut pool: MutexGuard<'_, BlockingPoolState>,
        key: FileKey,
    ) -> io::Result<()> {
        // While threads read and one watches, none is woken: the watching thread finds the job. If
        // no thread sleeps, one is started within the limits. Otherwise a reading thread takes the
        // job after its read.
        if pool.threads_idle > 0 && (pool.threads_reading == 0 || !pool.has_watcher) {
            self.shared.work_signal.notify_one();
            return Ok(());
        }
        match self.shared.start_if_needed(&mut pool) {
            Err(error) if pool.threads.is_empty() => {
                // The lock was held since the job was queued, so it is the newest.
                let withdrawn_job = pool.withdraw_newest_job(key);
                drop(pool);
                // The job may hold the last reference to a waker, which is foreign code.
                run_contained(|| drop(withdrawn_job));
                Err(error)
            }
            // After a failed start, one of the other threads takes the job later.
            _ => Ok(()),
        }
    }

    /// True if a thread is in a read of the file now.
    pub(super) fn has_read_of(&self, key: FileKey) -> bool {
        self.shared.lock().files.get(&key).is_some_and(|file| file.threads_reading > 0)
    }
}

impl Drop for BlockingPool {
    /// Drops the queued jobs unexecuted, and ends the threads. Waits for each thread that is not in
    /// a read. Does nothing in a child made by `fork`, which has no threads.
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let mut pool = self.shared.lock();
        pool.is_closing = true;
        let threads = std::mem::take(&mut pool.threads);
        let files = std::mem::take(&mut pool.files);
        pool.takeable_files.clear();
        drop(pool);
        // Notifying is a system call, also without a thread to wake.
        if !threads.is_empty() {
            self.shared.work_signal.notify_all();
        }
        // No future waits for these any more. Their wakers are foreign code.
        run_contained(|| drop(files));
        for Worker { handle, is_reading } in threads {
            // A thread in a (possibly stalled) read ends after it. It may also be the current
            // thread: a task that it woke may have dropped the last file of the path.
            if !is_reading.load(Ordering::Relaxed) {
                let _ = handle.join();
            }
        }
    }
}

impl BlockingPoolShared {
    /// Locks the state of the pool.
    fn lock(&self) -> MutexGuard<'_, BlockingPoolState> {
        self.pool.lock().expect(POISON)
    }

    /// Starts a thread, which takes a read or watches, if none sleeps, the limit permits it and the
    /// pool is not closing. At the limit, the call only records the refusal.
    ///
    /// # Errors
    /// The system provides no thread.
    fn start_if_needed(
        self: &Arc<BlockingPoolShared>,
        pool: &mut BlockingPoolState,
    ) -> io::Result<()> {
        if pool.threads_idle > 0 || pool.is_closing {
            return Ok(());
        }
        pool.threads.retain(|worker| !worker.handle.is_finished());
        // Until the start below has succeeded.
        pool.is_start_refused = true;
        if pool.threads.len() >= THREADS_MAX {
            return Ok(());
        }
        let (shared, is_reading) = (Arc::clone(self), Arc::new(AtomicBool::new(false)));
        let is_thread_reading = Arc::clone(&is_reading);
        let handle = thread::spawn("readpath-wait", move || shared.run(&is_thread_reading))?;
        pool.threads.push(Worker { handle, is_reading });
        pool.is_start_refused = false;
        // Counted as idle already, so that no more threads start before it runs.
        pool.threads_idle += 1;
        Ok(())
    }

    /// Main loop of a thread: takes and executes jobs. Without one it *watches* the running reads
    /// or sleeps (see the module documentation). It ends when the pool closes, or when it was idle
    /// for too long while other threads are idle. `is_reading` is true while it executes a job.
    fn run(self: &Arc<BlockingPoolShared>, is_reading: &AtomicBool) {
        let mut pool = self.lock();
        pool.threads_idle -= 1; // Counted by `start_if_needed`.
        // True after a job, and after a watch that found the running reads stalled.
        let mut may_take_job = false;
        while !pool.is_closing {
            // While no thread is in a read, any thread may take a job at once.
            let may_take_job_now = may_take_job || pool.threads_reading == 0;
            let job = if may_take_job_now { pool.take_job() } else { None };
            if let Some(job) = job {
                is_reading.store(true, Ordering::Relaxed);
                if !pool.takeable_files.is_empty() && !pool.has_watcher {
                    // Without another thread, this one continues after the read.
                    let _ = self.start_if_needed(&mut pool);
                    self.work_signal.notify_one();
                }
                drop(pool);
                let key = job.key();
                execute(job);
                pool = self.lock();
                // The counters have no reader any more. `is_reading` stays true: the drop of the
                // pool does not wait for this thread.
                if pool.is_closing {
                    return;
                }
                pool.record_end(key);
                is_reading.store(false, Ordering::Relaxed);
                may_take_job = true;
                continue;
            }
            let is_idle_too_long;
            pool.threads_idle += 1;
            (pool, may_take_job, is_idle_too_long) = self.sleep(pool);
            pool.threads_idle -= 1;
            if is_idle_too_long && pool.threads_idle > 0 && pool.takeable_files.is_empty() {
                return;
            }
        }
    }

    /// Sleeps until signalled. The thread *watches* if a job may be taken and no other thread
    /// watches. It then sleeps at most for [`STALL_TIMEOUT`]. Any other thread sleeps at most for
    /// [`THREAD_IDLE_TIMEOUT`], or without a limit if it is the only idle one. The first flag
    /// returned is true if the thread may take a read, because it has watched and no read has ended
    /// meanwhile. The second is true if the thread was idle too long while others were idle.
    fn sleep<'s>(
        &'s self,
        mut pool: MutexGuard<'s, BlockingPoolState>,
    ) -> (MutexGuard<'s, BlockingPoolState>, bool, bool) {
        if !pool.takeable_files.is_empty() && !pool.has_watcher {
            pool.has_watcher = true;
            let ended_before = pool.jobs_ended;
            let (mut pool, waited) =
                self.work_signal.wait_timeout(pool, STALL_TIMEOUT).expect(POISON);
            pool.has_watcher = false;
            let are_reads_stalled = waited.timed_out() && pool.jobs_ended == ended_before;
            let is_idle_too_long = false;
            return (pool, are_reads_stalled, is_idle_too_long);
        }
        // One idle thread stays, so that the next job needs no new thread.
        let may_take_job = false;
        if pool.threads_idle == 1 {
            let is_idle_too_long = false;
            return (self.work_signal.wait(pool).expect(POISON), may_take_job, is_idle_too_long);
        }
        let (pool, waited) =
            self.work_signal.wait_timeout(pool, THREAD_IDLE_TIMEOUT).expect(POISON);
        (pool, may_take_job, waited.timed_out())
    }
}

/// Executes a job; a read only if its owner still exists, and so has a reference besides the
/// job's own. Only foreign code can panic here. The result of advice is ignored: it is a hint.
fn execute(job: Job) {
    run_contained(|| match &job {
        Job::Read(read) if job.has_owner() => {
            read.execute();
            read.wake_task();
        }
        Job::Read(_) => {}
        Job::Advise { target, pages } => {
            read_ahead(&**target, *pages);
        }
    });
    // The last reference to a waker may be dropped here.
    run_contained(|| drop(job));
}

#[cfg(test)]
mod advice_tests;

#[cfg(test)]
mod tests {
    use std::fs::File as StdFile;

    use super::*;

    /// Job of a read of one byte of the file with these numbers.
    pub(super) fn read_job(device: u64, inode: u64) -> Job {
        let file = Arc::new(StdFile::open("/dev/null").unwrap());
        let (offset, bytes) = (0, 1);
        Job::Read(Arc::new(BlockingRead::new(file, FileKey { device, inode }, offset, bytes)))
    }

    /// Files without threads come first, and older reads before younger ones.
    #[test]
    fn waiter_pool_prefers_the_file_with_fewer_threads() {
        let mut pool = BlockingPoolState::default();
        for inode in [1, 1, 1, 2, 3] {
            assert!(pool.push_job(read_job(0, inode)).is_some());
        }
        let mut take_inode = || pool.take_job().unwrap().key().inode;
        let taken_inodes: Vec<u64> = (0..5).map(|_| take_inode()).collect();
        assert_eq!(taken_inodes, [1, 2, 3, 1, 1]);
        assert!(pool.take_job().is_none());
        // The read of file 2 ends. Three threads are in file 1, so a new read of file 2 comes
        // before a new one of file 1, although it is younger.
        pool.record_end(FileKey { device: 0, inode: 2 });
        assert!(pool.push_job(read_job(0, 1)).is_some() && pool.push_job(read_job(0, 2)).is_some());
        assert_eq!(pool.take_job().unwrap().key().inode, 2);
    }

    /// A file gets 8 threads at most. The other files of the device get one each, up to 192 threads
    /// on the device. Another device is not affected.
    #[test]
    fn waiter_pool_limits_threads_per_file_and_device() {
        let mut pool = BlockingPoolState::default();
        (0..20).for_each(|_| assert!(pool.push_job(read_job(0, 1)).is_some()));
        let taken = std::iter::from_fn(|| pool.take_job()).count();
        assert_eq!(taken, FILE_THREADS_MAX as usize);
        pool.record_end(FileKey { device: 0, inode: 1 });
        assert!(pool.take_job().is_some() && pool.take_job().is_none());
        (2..300).for_each(|inode| assert!(pool.push_job(read_job(0, inode)).is_some()));
        let taken = std::iter::from_fn(|| pool.take_job()).count() as u32;
        assert_eq!(taken, DEVICE_THREADS_FIRST_MAX - FILE_THREADS_MAX);
        assert!(pool.push_job(read_job(1, 1)).is_some());
        assert_eq!(pool.take_job().unwrap().key().device, 1);
    }

    /// Makes the start of a thread fail with EAGAIN on the calling thread from now on, as at a
    /// limit of processes (seccomp(2)). Other threads are not affected.
    pub(super) fn forbid_threads() {
        const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
        const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
        const RETURN: u16 = 0x06; // BPF_RET | BPF_K
        const NUMBER: u32 = 0; // of `struct seccomp_data`: number of the call
        let code = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
        let mut filter = [
            code(LOAD, NUMBER, 0, 0),
            code(IF_EQUAL, libc::SYS_clone as u32, 1, 0),
            code(IF_EQUAL, libc::SYS_clone3 as u32, 0, 1),
            code(RETURN, libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32, 0, 0),
            code(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the program outlives the calls, and affects only the calling thread.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
        }
    }

    #[test]
    fn job_without_a_thread_is_an_error_and_leaves_the_queue() {
        let restricted = thread::spawn("restricted", || {
            forbid_threads();
            let pool = BlockingPool::new();
            let error = pool.queue_job(read_job(0, 1)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            let files = std::mem::take(&mut pool.shared.lock().files);
            assert!(files.is_empty() && pool.shared.lock().takeable_files.is_empty());
        });
        restricted.unwrap().join().unwrap();
    }

    /// Nine files on nine devices with one read each.
    #[test]
    fn ended_reads_leave_nothing_behind() {
        let mut pool = BlockingPoolState::default();
        (0..9).for_each(|inode| assert!(pool.push_job(read_job(inode, inode)).is_some()));
        while let Some(job) = pool.take_job() {
            pool.record_end(job.key());
        }
        assert!(pool.files.is_empty() && pool.takeable_files.is_empty() && pool.devices.is_empty());
        assert_eq!((pool.threads_reading, pool.jobs_ended), (0, 9));
    }
}
