//! Batch reads that were submitted to the kernel page cache, taken as they complete.
//!
//! To submit a read is to make the kernel start its I/O. A page is *resident* if it is in the
//! kernel page cache. A read with absent pages is awaited in the *ring*, an io_uring of the batch,
//! or on a *helper thread*. Both make the read itself. A read that the kernel cannot provide goes
//! to the *engine*: the path's own cache with its requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{Thread, current, park, park_timeout};
use std::time::Duration;

use super::kernel_ring::{self, KernelRing, RingAnswer};
use crate::backend::Sleep;
use crate::os::aligned_bytes::AlignedBytes;
use crate::page_cache::kernel::blocking_read::BlockingRead;
use crate::page_cache::kernel_reads::submitted_reads::{KernelReadStatus, SubmittedResidency};
use crate::page_cache::own::OpenFile;
use crate::page_cache::own::state::batch_reads::UnstartedRead;

/// Number of reads that are checked, oldest first, before the batch waits for one. Each check is a
/// system call. The numbers here are chosen, not measured.
const CHECKS_MAX: u32 = 8;
/// Limits of reads that helper threads await for one batch: per file, and in total. They bound the
/// queue of the path's thread pool, which has limits of its own for threads.
const FILE_WAITERS_MAX: u32 = 16;
const WAITERS_MAX: u32 = 64;
/// Longest sleep between checks of the ring while threads wait for other reads. It bounds the delay
/// of a read that ends in the ring meanwhile.
const RING_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Reads of one batch that were submitted to the kernel page cache.
#[derive(Default)]
pub(super) struct KernelReads {
    /// Reads in order of their submission.
    reads: VecDeque<KernelCacheRead>,
    /// Number of these reads that only a thread can wait for.
    thread_reads: usize,
    /// Created when the batch first waits.
    ring: RingState,
}

/// Ring of a batch.
#[derive(Default)]
enum RingState {
    /// The batch has not waited yet.
    #[default]
    NotCreated,
    /// The ring awaits reads of the batch.
    Open(KernelRing),
    /// The kernel provides no ring.
    Unavailable,
}

/// A batch read submitted to the kernel page cache.
struct KernelCacheRead {
    /// The read, as the engine would start it.
    unstarted: UnstartedRead,
    /// Residency of its pages at submission.
    residency: SubmittedResidency,
    /// True if only a thread can wait for it: there is no ring, it is full, or the kernel would
    /// serve the file by threads.
    needs_thread: bool,
    /// Present method of waiting for it.
    wait: ReadWait,
}

/// Method by which a submitted read is awaited.
enum ReadWait {
    /// No method yet: the batch has not had to wait.
    Unassigned,
    /// A helper thread makes the read.
    Thread(Arc<BlockingRead>),
    /// The ring makes the read.
    Ring { token: u64 },
}

/// Waker that unparks the batch's thread.
struct Unpark(Thread);

impl Wake for Unpark {
    /// Ends the sleep of the batch's thread, or its next one.
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl KernelReads {
    /// Number of submitted reads that were not returned by [`next`](KernelReads::next).
    pub(super) fn len(&self) -> usize {
        self.reads.len()
    }

    /// Adds a read that was submitted to the kernel, with the residency found at submission.
    pub(super) fn push(&mut self, unstarted: UnstartedRead, residency: SubmittedResidency) {
        let needs_thread = matches!(self.ring, RingState::Unavailable);
        self.thread_reads += usize::from(needs_thread);
        let wait = ReadWait::Unassigned;
        self.reads.push_back(KernelCacheRead { unstarted, residency, needs_thread, wait });
    }

    /// Removes and returns the next completed read, and waits if there is none. Returns `None` if
    /// `reads` is empty. A read found resident is copied if it has at most `copied_bytes_max`
    /// bytes, and otherwise left to the caller. Buffers are taken from `free_buffers`. If the
    /// system provides no thread to wait on, the oldest read that needs one is left to the caller
    /// uncompleted.
    pub(super) fn next(
        &mut self,
        copied_bytes_max: u64,
        free_buffers: &mut Vec<AlignedBytes>,
    ) -> Option<(UnstartedRead, KernelReadStatus)> {
        while !self.reads.is_empty() {
            // First, because it needs no system call.
            if let Some(completed) = self.take_ring_answer() {
                return Some(completed);
            }
            if let Some(completed) = self.take_first_completed(copied_bytes_max, free_buffers) {
                return Some(completed);
            }
            if !self.wait(free_buffers) {
                // No helper thread is available. The caller makes the read, and blocks in it.
                // Reads in the ring stay in the list, which finds them by their answers.
                let needs_thread = |read: &KernelCacheRead| {
                    read.needs_thread && matches!(read.wait, ReadWait::Unassigned)
                };
                let index = self.reads.iter().position(needs_thread);
                let index = index.expect("a read had no thread, so it is unassigned");
                // The caller's read counts its own wait.
                let status = KernelReadStatus::LeftToCaller { is_awaited: false };
                return self.remove_read(index).map(|read| (read, status));
            }
        }
        None
    }

    /// Removes the read at an index of `reads`. Returns `None` if there is none.
    fn remove_read(&mut self, index: usize) -> Option<UnstartedRead> {
        let KernelCacheRead { unstarted, needs_thread, .. } = self.reads.remove(index)?;
        self.thread_reads -= usize::from(needs_thread);
        Some(unstarted)
    }

    /// Removes a read that the ring has completed, without waiting. Returns `None` if there is
    /// none.
    fn take_ring_answer(&mut self) -> Option<(UnstartedRead, KernelReadStatus)> {
        let RingState::Open(ring) = &mut self.ring else { return None };
        let RingAnswer { token, buffer, has_all_bytes } = ring.take_answer()?;
        let is_answered = |read: &KernelCacheRead| match read.wait {
            ReadWait::Ring { token: read_token } => read_token == token,
            ReadWait::Unassigned | ReadWait::Thread(_) => false,
        };
        let index = self
            .reads
            .iter()
            .position(is_answered)
            .expect("a read stays in the list until its answer");
        let unstarted = self.remove_read(index).expect("the index was found above");
        let UnstartedRead { handle, offset, bytes, .. } = &unstarted;
        // Without all bytes, the read must bypass the kernel page cache.
        let status = handle.take_from_ring(buffer, has_all_bytes, *offset, *bytes);
        Some((unstarted, status))
    }

    /// Polls each read that a thread makes, and the [`CHECKS_MAX`] oldest reads without a method of
    /// waiting, once. Removes the first completed one. Returns `None` if none has completed. Reads
    /// without a method are copied up to `copied_bytes_max` bytes, into memory of `free_buffers`.
    /// Reads in the ring are left to [`take_ring_answer`](KernelReads::take_ring_answer).
    fn take_first_completed(
        &mut self,
        copied_bytes_max: u64,
        free_buffers: &mut Vec<AlignedBytes>,
    ) -> Option<(UnstartedRead, KernelReadStatus)> {
        let mut check_count = 0;
        for index in 0..self.reads.len() {
            let KernelCacheRead { unstarted, residency, wait, .. } = &self.reads[index];
            let UnstartedRead { handle, offset, bytes, .. } = unstarted;
            let status = match wait {
                ReadWait::Thread(read) if read.has_ended() => {
                    Some(handle.take_waited(read, *offset, *bytes, free_buffers))
                }
                ReadWait::Unassigned if check_count < CHECKS_MAX => {
                    check_count += 1;
                    // `None` if the read has to wait.
                    handle.poll_submitted(
                        *offset,
                        *bytes,
                        *residency,
                        copied_bytes_max,
                        free_buffers,
                    )
                }
                // Not ended on its thread, in the ring, or beyond the limit of checks.
                _ => None,
            };
            if let Some(status) = status {
                let unstarted = self.remove_read(index).expect("the index was found above");
                return Some((unstarted, status));
            }
        }
        None
    }

    /// Queues reads in the ring, starts helper threads for the others, and sleeps until a read
    /// completes in either. May return early. Returns false if a read needs a thread and the system
    /// provides none, also with reads in the ring. Buffers of queued reads are taken from
    /// `free_buffers`.
    fn wait(&mut self, free_buffers: &mut Vec<AlignedBytes>) -> bool {
        self.queue_in_ring(free_buffers);
        let needs_threads = self.thread_reads > 0;
        match &mut self.ring {
            RingState::Open(ring) if !ring.is_empty() => {
                // With reads in both, the sleep is for the threads, and the ring is checked often.
                ring.wait(if needs_threads { Sleep::Never } else { Sleep::UntilAnswered });
                !needs_threads || self.wait_on_threads(Some(RING_CHECK_INTERVAL))
            }
            _ => {
                let no_timeout = None;
                self.wait_on_threads(no_timeout)
            }
        }
    }

    /// Queues reads in the ring while it has room. A full ring may contain only stuck reads of one
    /// file. Threads therefore wait for the reads of files that have none in a full ring. Without a
    /// ring, threads wait for all reads. `free_buffers` has memory for reuse.
    fn queue_in_ring(&mut self, free_buffers: &mut Vec<AlignedBytes>) {
        // All reads need threads, so the ring has nothing to do.
        if self.thread_reads == self.reads.len() {
            return;
        }
        if let RingState::NotCreated = self.ring {
            self.ring = KernelRing::new().map_or(RingState::Unavailable, RingState::Open);
        }
        let RingState::Open(ring) = &mut self.ring else {
            self.reads.iter_mut().for_each(|read| read.needs_thread = true);
            self.thread_reads = self.reads.len();
            return;
        };
        let mut files_in_ring: BTreeSet<*const OpenFile> = BTreeSet::new();
        for read in self.reads.iter_mut().filter(|read| !read.needs_thread) {
            let UnstartedRead { handle, offset, bytes, .. } = &read.unstarted;
            let open_file = Arc::as_ptr(&handle.file);
            if let ReadWait::Ring { .. } = read.wait {
                files_in_ring.insert(open_file);
                continue;
            }
            let has_room = ring.has_room(*bytes);
            // The read stays unassigned until the ring has room.
            if !has_room && files_in_ring.contains(&open_file) {
                continue;
            }
            // `file_for_ring` returns `None` if the kernel would wait for the file with threads.
            match has_room.then(|| handle.file_for_ring()).flatten() {
                Some(file) => {
                    // It counts as a read that waited for the device.
                    handle.record_wait(*bytes);
                    let buffer = AlignedBytes::allocate(*bytes as usize, free_buffers.pop());
                    read.wait = ReadWait::Ring { token: ring.queue_read(file, *offset, buffer) };
                    files_in_ring.insert(open_file);
                }
                // The file is not suited, or the ring is full and has none of its reads.
                None => {
                    read.needs_thread = true;
                    self.thread_reads += 1;
                }
            }
        }
    }

    /// Starts helper threads for the oldest reads of each file that need one, and sleeps until one
    /// completes or until `timeout`; `None` is no limit. Does not sleep if one has ended already.
    /// Returns false if the system provides no thread.
    fn wait_on_threads(&mut self, timeout: Option<Duration>) -> bool {
        let waker = Waker::from(Arc::new(Unpark(current())));
        let mut waiters_by_file: BTreeMap<*const OpenFile, u32> = BTreeMap::new();
        let mut waiter_count = 0;
        let mut has_ended = false;
        for kernel_read in self.reads.iter_mut().filter(|read| read.needs_thread) {
            let UnstartedRead { handle, offset, bytes, .. } = &kernel_read.unstarted;
            let file_waiters = waiters_by_file.entry(Arc::as_ptr(&handle.file)).or_default();
            // The first read of a file may exceed the total limit, so every file progresses.
            if *file_waiters >= FILE_WAITERS_MAX || *file_waiters > 0 && waiter_count >= WAITERS_MAX
            {
                continue;
            }
            *file_waiters += 1;
            waiter_count += 1;
            if let ReadWait::Unassigned = kernel_read.wait {
                match handle.wait_on_thread(*offset, *bytes) {
                    Ok(Some(read)) => kernel_read.wait = ReadWait::Thread(read),
                    // The read does not go through the kernel page cache. The next check,
                    // `poll_submitted`, finds that out and completes it.
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
            // `poll` returns true for a read that has ended. Any other unparks this thread later.
            has_ended |= match &kernel_read.wait {
                ReadWait::Thread(read) => read.poll(&waker),
                ReadWait::Unassigned | ReadWait::Ring { .. } => false,
            };
        }
        // After a spurious wake-up the caller checks again and sleeps again.
        match timeout {
            _ if has_ended => {}
            Some(timeout) => park_timeout(timeout),
            None => park(),
        }
        true
    }
}

impl Drop for KernelReads {
    /// Abandons the reads in the ring. Their memory stays until the kernel has answered.
    fn drop(&mut self) {
        if let RingState::Open(ring) = std::mem::take(&mut self.ring) {
            kernel_ring::end_ring(ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File as StdFile;
    use std::io::PipeReader;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use readpath_core::unit::PageRange;

    use super::*;
    use crate::os::process::is_true_in_child;
    use crate::page_cache::kernel::drop_kernel_range;
    use crate::path::ReadPath;
    use crate::target::{OpenOptions, Target};

    /// Forbids this process further threads. Root is not limited, so it becomes the user 65534.
    /// Returns false if the kernel starts threads even so.
    fn may_have_no_threads() -> bool {
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: the calls change this process alone, and the struct lives through them.
        unsafe {
            let is_limited = libc::getuid() > 0 || libc::setuid(65_534) == 0;
            is_limited && libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) == 0
        }
    }

    /// Two absent reads: the first one in a ring, where it stays, and the second one for a thread.
    fn ring_and_thread_reads(path: &Path, stuck: PipeReader) -> Option<KernelReads> {
        let file = ReadPath::builder().build().unwrap().open(path).unwrap();
        let mut reads = KernelReads::default();
        for ticket in 0..2 {
            let handle = Arc::clone(file.handle());
            let unstarted = UnstartedRead { handle, offset: 0, bytes: 4096, ticket };
            reads.push(unstarted, SubmittedResidency::Absent);
        }
        let mut ring = KernelRing::new()?;
        let stuck = StdFile::from(OwnedFd::from(stuck));
        let token = ring.queue_read(Arc::new(stuck), 0, AlignedBytes::allocate(4096, None));
        reads.reads[0].wait = ReadWait::Ring { token };
        reads.reads[1].needs_thread = true;
        reads.thread_reads = 1;
        reads.ring = RingState::Open(ring);
        Some(reads)
    }

    /// The ring reads a pipe that nothing writes to. Its read stays in the list for its answer.
    #[test]
    fn caller_makes_the_read_for_which_no_thread_is_available() {
        let name = std::env::temp_dir().join(format!("readpath-threadless-{}", std::process::id()));
        std::fs::write(&name, [7; 4096]).unwrap();
        let target = Target::open(&name, OpenOptions::default()).unwrap();
        rustix::fs::fsync(&target).unwrap();
        drop_kernel_range(&target, PageRange::new(0, 1));
        let (stuck, _writer) = std::io::pipe().unwrap();
        let is_right = is_true_in_child(|| {
            let Some(reads) = ring_and_thread_reads(&name, stuck) else { return true };
            // The drop would wait for the pipe.
            let mut reads = std::mem::ManuallyDrop::new(reads);
            if !may_have_no_threads() || std::thread::Builder::new().spawn(|| {}).is_ok() {
                return true;
            }
            let next = reads.next(4096, &mut Vec::new());
            next.is_some_and(|(read, _)| read.ticket == 1)
        });
        std::fs::remove_file(&name).unwrap();
        assert!(is_right);
    }
}
