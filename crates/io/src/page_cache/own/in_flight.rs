//! Work in flight: requests in the storage, reads that wait for them, and threads and tasks that
//! wait for the reads.
//!
//! The *machine* is the state machine of the cache: it decides on requests, frames and evictions. A
//! *frame* is memory for one page. An *abandoned* read is in flight, but its owner waits no more.
//! The *storage* executes the requests. The *leader* is the thread that sleeps in the storage for
//! all waiting threads, and the *reactor* the thread that leads for tasks. Each read in flight has
//! an entry. The reads of one thread, task or batch form a *completion queue*, with the reads in
//! flight and the completed ones.
//!
//! This module drives the machine. It submits the machine's requests to the storage, except a
//! request that the waiting thread executes itself. It moves completed reads to their queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use readpath_core::cache::FrameId;
use readpath_core::machine::{
    Buffer, Done, Driver, HandleId, IoBackend, Machine, ReadError, ReadId,
};
use readpath_core::request::{Completion, DeviceRequest};
use readpath_core::unit::{PAGE_BYTES, Time};
use slab::Slab;

use super::OpenFile;
use super::frame_cache::FrameCache;
use super::storage_backend::StorageBackend;
use crate::backend::BackendError;
use crate::os::aligned_bytes::AlignedBytes;
use crate::os::sync::Thread;
use crate::probes;
use crate::transfers::TransferProgress;

/// Identifies a read in flight.
pub(crate) type InFlightId = usize;
/// Identifies a completion queue.
pub(crate) type QueueId = usize;

/// A thread or task that sleeps until a read of a completion queue is done.
pub(crate) enum Parked {
    /// A parked thread.
    Thread(Thread),
    /// A task.
    Task(Waker),
}

/// A read in flight.
pub(super) struct InFlightRead {
    /// Queue of the read. `None` once it is done or abandoned.
    pub(super) queue: Option<QueueId>,
    /// The machine's number of the handle that reads.
    pub(super) handle: HandleId,
    /// Identifier in the machine, from the start of the read until its pages are unpinned. `None`
    /// after an error, and for a detached read.
    pub(super) machine_read: Option<ReadId>,
    /// Result and location of the bytes, complete once the read is done. The default value while
    /// the owner of the queue has taken it.
    pub(super) completed: CompletedRead,
    /// Next completed read of the queue.
    next_done: Option<InFlightId>,
}

/// A completed read with the location of its bytes, until it is released.
#[derive(Default)]
pub(crate) struct CompletedRead {
    /// Caller's identifier of the read.
    pub(crate) ticket: u64,
    /// Number of bytes, or the error; `None` before the end of the read.
    pub(crate) result: Option<Result<u64, ReadError>>,
    /// Frames of its pages, pinned by the machine. Empty after an error, and for `detached` bytes.
    pub(crate) frames: Vec<FrameId>,
    /// Offset of the first byte from the start of the first frame. Not used for `detached` bytes.
    pub(crate) skip: usize,
    /// The bytes themselves, if they were moved out of their frames.
    pub(crate) detached: Option<AlignedBytes>,
}

/// Owner of a completion queue, which waits for its reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueOwner {
    /// A thread, for a read of its own or for a batch.
    Thread,
    /// A task.
    Task,
}

/// The reads of one thread, task or batch.
#[derive(Default)]
pub(super) struct CompletionQueue {
    /// Thread or task to wake when a read is done, when the storage fails, or, for a thread, to
    /// lead.
    pub(super) parked: Option<Parked>,
    /// First and last completed read that is not taken.
    done: Option<(InFlightId, InFlightId)>,
    /// Number of reads in flight, plus the number of completed reads that were not taken.
    pub(super) reads: u32,
    /// Number of reads in flight, which are not completed.
    pub(super) pending: u32,
    /// True if a task waits, and not a thread.
    pub(super) is_task: bool,
}

/// A request that the waiting thread executes itself, without the lock.
pub(crate) struct InlineRequest {
    /// The machine's request.
    pub(super) request: DeviceRequest,
    /// Transfer of the request, which the thread executes.
    pub(super) progress: TransferProgress,
}

/// A value whose drop makes a system call or runs foreign code.
#[allow(dead_code, reason = "it is kept to be dropped")]
pub(crate) enum DeferredDrop {
    /// An open file, which the last reference closes by a system call.
    File(Arc<OpenFile>),
    /// A thread or a waker, which is foreign code.
    Parked(Parked),
}

/// Smallest request in sectors (64 KiB) that benefits from contiguous memory, as measured in
/// `crates/io/src/os/frames.rs`.
const LARGE_SECTORS: u32 = 128;

/// Actions to perform after the lock is released.
#[derive(Default)]
pub(super) struct Deferred {
    /// Threads and tasks to wake.
    pub(super) to_wake: Vec<Parked>,
    /// Values to drop.
    pub(super) drops: Vec<DeferredDrop>,
    /// True if requests are submitted but not handed to the kernel.
    pub(super) has_unsubmitted_requests: bool,
    /// True if the leader sleeps longer than it may, or if a read that it waits for is done.
    pub(super) must_wake_leader: bool,
    /// True if the first large request is about to be submitted: frames then lie in huge pages.
    pub(super) wants_huge_pages: bool,
    /// True if the spare memory of the system must be measured.
    pub(super) is_memory_check_due: bool,
}

impl Deferred {
    /// True if there is an action to perform.
    pub(super) fn has_actions(&self) -> bool {
        !(self.to_wake.is_empty() && self.drops.is_empty())
            || self.has_unsubmitted_requests
            || self.must_wake_leader
            || self.wants_huge_pages
            || self.is_memory_check_due
    }
}

/// State of the leader, which sleeps in the storage for all.
#[derive(Default)]
pub(super) struct LeaderState {
    /// True while there is a leader.
    pub(super) is_active: bool,
    /// Number of times that a leader started or was replaced.
    pub(super) term: u64,
    /// Queue that the leader itself waits for; `None` for the reactor.
    pub(super) queue: Option<QueueId>,
    /// Time at which the leader wakes up by itself.
    pub(super) wakes_at: Option<Time>,
}

/// See the [module](self).
pub(crate) struct InFlight {
    /// Executes the requests.
    pub(crate) storage: StorageBackend,
    frame_cache: Arc<FrameCache>,
    /// Reads in flight and completed reads that were not released, by [`InFlightId`].
    pub(super) reads: Slab<InFlightRead>,
    /// Empty frame lists of earlier reads, kept for their capacity.
    pub(super) spare_frames: Vec<Vec<FrameId>>,
    /// Open queues, by [`QueueId`].
    pub(super) queues: Slab<CompletionQueue>,
    /// Thread that sleeps in the storage, if there is one.
    pub(super) leader: LeaderState,
    /// Number of reads of tasks that are not completed.
    pub(super) tasks_pending: u32,
    /// Error of a storage that executes no more requests.
    storage_error: Option<BackendError>,
    /// Actions for the end of the locked section.
    pub(super) deferred: Deferred,
    /// Read whose thread executes the first request that the read waits for, and that request.
    pub(super) inline_read: Option<ReadId>,
    pub(super) inline_request: Option<InlineRequest>,
    /// Number of requests that threads execute themselves.
    pub(super) inline_requests_in_flight: u32,
    /// True once a large request was submitted. From then on, frames lie in huge pages.
    has_huge_pages: bool,
    /// Completions that the machine has not received.
    pub(super) completions: VecDeque<Completion>,
    /// Handles of abandoned reads that are done.
    pub(super) abandoned: Vec<HandleId>,
    /// Memory segments of the request that is being submitted; otherwise empty.
    segments: Vec<libc::iovec>,
    /// Empty segment lists of earlier requests, kept for their capacity.
    spare_segments: Vec<Vec<libc::iovec>>,
}

// SAFETY: the segment lists are kept only for their capacity. Their addresses are used only while a
// request is submitted.
unsafe impl Send for InFlight {}

impl InFlight {
    /// Creates the state of an engine over `storage`, with no read or request in flight.
    pub(super) fn new(storage: StorageBackend, frame_cache: Arc<FrameCache>) -> InFlight {
        InFlight {
            storage,
            frame_cache,
            reads: Slab::new(),
            spare_frames: Vec::new(),
            queues: Slab::new(),
            leader: LeaderState::default(),
            tasks_pending: 0,
            storage_error: None,
            deferred: Deferred::default(),
            inline_read: None,
            inline_request: None,
            inline_requests_in_flight: 0,
            has_huge_pages: false,
            completions: VecDeque::new(),
            abandoned: Vec::new(),
            segments: Vec::new(),
            spare_segments: Vec::new(),
        }
    }

    /// Creates an empty completion queue.
    pub(crate) fn open_queue(&mut self, owner: QueueOwner) -> QueueId {
        let is_task = owner == QueueOwner::Task;
        self.queues.insert(CompletionQueue { is_task, ..CompletionQueue::default() })
    }

    /// Adds a read, which the machine has started as `read`, to a queue. `id` is the next free
    /// entry of `reads`, which the machine already knows as the read's tag.
    pub(super) fn add_read(
        &mut self,
        id: InFlightId,
        queue: QueueId,
        handle: HandleId,
        read: ReadId,
        ticket: u64,
    ) {
        let frames = self.spare_frames.pop().unwrap_or_default();
        let completed = CompletedRead { ticket, frames, ..CompletedRead::default() };
        let machine_read = Some(read);
        let entry =
            InFlightRead { queue: Some(queue), handle, machine_read, completed, next_done: None };
        let entered = self.reads.insert(entry);
        debug_assert_eq!(entered, id);
        let queue = &mut self.queues[queue];
        queue.reads += 1;
        queue.pending += 1;
        self.tasks_pending += u32::from(queue.is_task);
    }

    /// Removes and returns the next completed read of the queue, which the caller must release. If
    /// there is none, returns the error of a failed storage, or `None`. Its reads in flight then
    /// stay in the queue.
    pub(crate) fn pop_done_or_error(
        &mut self,
        queue: QueueId,
    ) -> Option<Result<InFlightId, BackendError>> {
        let done = self.pop_done(queue).map(Ok);
        done.or_else(|| self.storage_error.map(Err))
    }

    /// Removes and returns the next completed read of the queue if `accepts` returns true for it.
    /// Returns `None` otherwise, and if there is none.
    pub(super) fn pop_done_if(
        &mut self,
        queue: QueueId,
        accepts: impl FnOnce(&InFlight, InFlightId) -> bool,
    ) -> Option<InFlightId> {
        let (first, _) = self.queues[queue].done?;
        accepts(self, first).then(|| self.pop_done(queue)).flatten()
    }

    /// Removes and returns the next completed read of the queue, or `None` if there is none.
    pub(super) fn pop_done(&mut self, queue: QueueId) -> Option<InFlightId> {
        let queue = &mut self.queues[queue];
        let (first, last) = queue.done?;
        queue.done = self.reads[first].next_done.take().map(|next| (next, last));
        queue.reads -= 1;
        Some(first)
    }

    /// Number of reads of the queue that are in flight or not taken.
    pub(crate) fn queue_len(&self, queue: QueueId) -> usize {
        self.queues[queue].reads as usize
    }

    /// Takes the result of a completed read with the location of its bytes. The caller puts it back
    /// when it releases the read.
    pub(crate) fn take_completed(&mut self, id: InFlightId) -> CompletedRead {
        std::mem::take(&mut self.reads[id].completed)
    }

    /// Number of pages that a completed read pins.
    pub(super) fn pinned_pages(&self, id: InFlightId) -> u64 {
        self.reads[id].completed.frames.len() as u64
    }

    /// Keeps the segment list of a request for the next one.
    pub(super) fn keep_segment_list(&mut self, progress: TransferProgress) {
        let mut segments = progress.into_segments();
        segments.clear();
        self.spare_segments.push(segments);
    }

    /// Records the error of a storage that executes no more requests. All waiting threads and tasks
    /// are woken after the lock is released.
    pub(super) fn fail(&mut self, error: BackendError) {
        self.storage_error = Some(error);
        let parked = self.queues.iter_mut().filter_map(|(_, queue)| queue.parked.take());
        self.deferred.to_wake.extend(parked);
    }

    /// Sets the thread or task to wake when a read of the queue is done. An earlier one is not
    /// woken but dropped, after the lock is released: a waker is foreign code.
    pub(crate) fn park(&mut self, queue: QueueId, parked: Parked) {
        let previous = self.queues[queue].parked.replace(parked);
        self.deferred.drops.extend(previous.map(DeferredDrop::Parked));
    }

    /// Removes the thread or task set by [`park`](InFlight::park), if it was not woken. It is
    /// dropped after the lock is released.
    pub(crate) fn unpark(&mut self, queue: QueueId) {
        let parked = self.queues[queue].parked.take();
        self.deferred.drops.extend(parked.map(DeferredDrop::Parked));
    }

    /// Wakes a waiting thread, which then leads, if there is no leader. The wake-up follows after
    /// the lock is released. Tasks are skipped: the reactor leads for them.
    pub(crate) fn wake_next_leader(&mut self) {
        if self.leader.is_active {
            return;
        }
        let is_waiting = |queue: &&mut CompletionQueue| {
            queue.pending > 0 && matches!(queue.parked, Some(Parked::Thread(_)))
        };
        // The first one found: any waiting thread can lead.
        let next = self.queues.iter_mut().map(|(_, queue)| queue).find(is_waiting);
        self.deferred.to_wake.extend(next.and_then(|queue| queue.parked.take()));
    }

    /// True if tasks wait and the storage works.
    pub(crate) fn has_tasks(&self) -> bool {
        self.tasks_pending > 0 && self.storage_error.is_none()
    }

    /// True if tasks wait and there is no leader.
    pub(crate) fn is_reactor_due(&self) -> bool {
        self.has_tasks() && !self.leader.is_active
    }
}

impl IoBackend for InFlight {
    /// Submits a request to the storage, or keeps it in `inline_request` for the waiting thread
    /// that executes it. The drop of the engine's lock, or the sleep, hands submitted requests on.
    fn submit(&mut self, machine: &Machine, _now: Time, request: DeviceRequest) {
        probes::on_submit(&request);
        // True for the first request that `inline_read` waits for, which empties that field. The
        // later requests of this read, and prefetches, go to the storage.
        let is_inline =
            self.inline_read.take_if(|read| machine.is_waiting_for(*read, request.id)).is_some();
        // The thread keeps its list until the end of the request. The storage copies the other one.
        let spare_segments = if is_inline { self.spare_segments.pop() } else { None };
        let mut segments = spare_segments.unwrap_or_else(|| std::mem::take(&mut self.segments));
        machine.request_buffers(request.id, |buffer| match buffer {
            Buffer::Frame(frame) => push_frame(&mut segments, self.frame_cache.address(frame.0)),
            Buffer::Caller { .. } => unreachable!("every read fills frames of the cache"),
        });
        if request.sectors >= LARGE_SECTORS && !self.has_huge_pages {
            self.has_huge_pages = true;
            self.deferred.wants_huge_pages = true;
        }
        if is_inline {
            let progress = self.storage.inline_transfer(request, segments);
            self.inline_request = Some(InlineRequest { request, progress });
            self.inline_requests_in_flight += 1;
            return;
        }
        // SAFETY: only this request writes to frames in flight, and no thread reads them until it
        // is completed. The frame cache outlives the storage.
        unsafe { self.storage.submit(request, &segments) };
        segments.clear();
        self.segments = segments;
        self.deferred.has_unsubmitted_requests = true;
    }

    /// Removes and returns the next collected completion, for the machine. `None` if there is none.
    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        let completion = self.completions.pop_front();
        if probes::ARE_COMPILED_IN
            && let Some(completion) = &completion
        {
            probes::on_complete(completion);
        }
        completion
    }
}

impl Driver for InFlight {
    /// Moves the read to the completed ones of its queue, and wakes the queue's owner. The pages of
    /// a successful read stay pinned until the read is released; a failed one has none. An
    /// abandoned read, which has no queue, is released in the machine at once. Its handle goes to
    /// `abandoned`: the engine then ends the read on that handle.
    fn on_done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        // The tag was the number of the read's entry at its start.
        let id = done.tag as InFlightId;
        let read = &mut self.reads[id];
        let Some(queue_id) = read.queue.take() else {
            let read = self.reads.remove(id);
            self.spare_frames.push(read.completed.frames);
            machine.release(now, done.read);
            self.abandoned.push(read.handle);
            return;
        };
        read.completed.result = Some(done.result);
        read.completed.skip = (machine.offset(done.read) % PAGE_BYTES) as usize;
        match done.result {
            Ok(_) => read.completed.frames.extend_from_slice(machine.read_frames(done.read)),
            // There are no bytes to read, and the caller may fetch the error much later. Until then
            // the reserved pages would be missing for other reads.
            Err(_) => {
                read.machine_read = None;
                machine.release(now, done.read);
            }
        }
        let queue = &mut self.queues[queue_id];
        // The read is appended to the list of completed reads.
        match &mut queue.done {
            Some((_, last)) => self.reads[std::mem::replace(last, id)].next_done = Some(id),
            empty => *empty = Some((id, id)),
        }
        queue.pending -= 1;
        self.tasks_pending -= u32::from(queue.is_task);
        self.deferred.to_wake.extend(queue.parked.take());
        // Otherwise the leader would sleep on, although another thread has completed its read.
        self.deferred.must_wake_leader |=
            self.leader.is_active && self.leader.queue == Some(queue_id);
    }
}

/// Adds the page at `address` to a list of memory segments. A page behind the last segment extends
/// it.
fn push_frame(segments: &mut Vec<libc::iovec>, address: *mut u8) {
    const BYTES: usize = PAGE_BYTES as usize;
    match segments.last_mut() {
        Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == address.cast() => {
            last.iov_len += BYTES;
        }
        _ => segments.push(libc::iovec { iov_base: address.cast(), iov_len: BYTES }),
    }
}
