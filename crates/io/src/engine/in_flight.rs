//! What is in flight: requests in the storage, reads that wait for them, and those who wait for the reads.
//!
//! A read that is under way has an entry of its own. What one thread, one task or one batch waits for is a
//! *completion queue*: the reads that it has under way, and those of them that are done.
//!
//! Here the machine is driven: its requests go to the storage, but for one that the thread which waits for it carries
//! by itself, and the reads that are done go to their queues.

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
use super::below::Below;
use super::copy::push_frame;
use super::frame_cache::FrameCache;
use crate::backend::BackendError;
use crate::copied::Copied;
use crate::points;
use crate::sync::Thread;
use crate::transfers::Progress;

/// Names a read under way.
pub(crate) type InFlightId = usize;
/// Names a completion queue.
pub(crate) type QueueId = usize;

/// Somebody who sleeps until a read of a completion queue is done.
pub(crate) enum Parked {
    /// A thread that is parked.
    Thread(Thread),
    /// A task.
    Task(Waker),
}

/// A read under way.
pub(super) struct InFlightRead {
    /// Whose it is; none once it is done, or once nobody wants it any more.
    pub(super) queue: Option<QueueId>,
    pub(super) handle: HandleId,
    /// Its name in the machine, as long as its pages are pinned.
    pub(super) read: Option<ReadId>,
    pub(super) completed: CompletedRead,
    /// The next one that is done, in the queue.
    next_done: Option<InFlightId>,
}

/// A read that is done: where its bytes are, until it is given back.
#[derive(Default)]
pub(crate) struct CompletedRead {
    /// The name that was given at the start.
    pub(crate) ticket: u64,
    /// How many bytes, or why none.
    pub(crate) result: Option<Result<u64, ReadError>>,
    /// The frames of its pages, pinned by the machine.
    pub(crate) frames: Vec<FrameId>,
    /// The first byte, from the start of the first frame.
    pub(crate) skip: usize,
    /// The bytes themselves, if they had to leave their frames.
    pub(crate) copied: Option<Copied>,
}

/// The reads of one thread, task or batch.
#[derive(Default)]
pub(super) struct CompletionQueue {
    pub(super) parked: Option<Parked>,
    /// The first and the last read that are done and not taken.
    done: Option<(InFlightId, InFlightId)>,
    /// How many reads it has, done ones included.
    pub(super) reads: u32,
    /// How many of them are not done.
    pub(super) pending: u32,
    pub(super) is_task: bool,
}

/// A request that the thread which waits for it carries by itself, without the lock.
pub(crate) struct OwnRequest {
    pub(super) request: DeviceRequest,
    pub(super) progress: Progress,
}

/// Something whose drop takes a system call, or runs code of others.
#[allow(dead_code, reason = "it is kept to be dropped")]
pub(crate) enum DeferredDrop {
    File(Arc<OpenFile>),
    Parked(Parked),
}

/// A request of so many sectors, 64 KiB, gains by memory in one piece.
const LARGE_SECTORS: u32 = 128;

/// What is to be done once the lock is free.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) to_wake: Vec<Parked>,
    pub(super) drops: Vec<DeferredDrop>,
    /// Requests were submitted that nobody has handed over.
    pub(super) is_queued: bool,
    /// The leader sleeps for longer than it may, or has nothing to wait for any more.
    pub(super) is_leader_late: bool,
    /// The first large request is about to go out.
    pub(super) wants_huge_pages: bool,
    /// It is to be looked how much memory there is.
    pub(super) is_memory_due: bool,
}

/// Who leads: sleeps in the storage, for everybody.
#[derive(Default)]
pub(super) struct Lead {
    pub(super) is_taken: bool,
    /// How often somebody has begun to lead, or was relieved of it.
    pub(super) term: u64,
    /// What the leader itself waits for; none for the reactor.
    pub(super) queue: Option<QueueId>,
    /// When the leader wakes up by itself.
    pub(super) until: Option<Time>,
}

/// See the [module](self).
pub(crate) struct InFlight {
    pub(crate) files: Below,
    frame_cache: Arc<FrameCache>,
    pub(super) reads: Slab<InFlightRead>,
    /// Lists of frames of earlier reads, kept for their room.
    pub(super) spare_frames: Vec<Vec<FrameId>>,
    pub(super) queues: Slab<CompletionQueue>,
    pub(super) lead: Lead,
    pub(super) tasks_pending: u32,
    /// Why the storage carries nothing any more.
    fault: Option<BackendError>,
    pub(super) deferred: Deferred,
    /// A read whose thread carries the first request that it waits for, and that request.
    pub(super) carries: Option<ReadId>,
    pub(super) own: Option<OwnRequest>,
    /// How many requests threads are carrying by themselves.
    pub(super) own_under_way: u32,
    /// Whether a large request has gone out: frames lie in huge pages from there on.
    has_huge_pages: bool,
    /// What the machine is still to be told of.
    pub(super) completions: VecDeque<Completion>,
    /// The handles of reads that nobody wanted and that are done.
    pub(super) abandoned: Vec<HandleId>,
    /// Memory of a request on its way to the storage; empty in between.
    segments: Vec<libc::iovec>,
    /// Lists of memory of earlier requests, kept for their room.
    spare_segments: Vec<Vec<libc::iovec>>,
}

// SAFETY: the lists of memory are kept for their room alone; the addresses in them are
// looked at only while a request is submitted.
unsafe impl Send for InFlight {}

impl InFlight {
    pub(super) fn new(files: Below, frame_cache: Arc<FrameCache>) -> InFlight {
        InFlight {
            files,
            frame_cache,
            reads: Slab::new(),
            spare_frames: Vec::new(),
            queues: Slab::new(),
            lead: Lead::default(),
            tasks_pending: 0,
            fault: None,
            deferred: Deferred::default(),
            carries: None,
            own: None,
            own_under_way: 0,
            has_huge_pages: false,
            completions: VecDeque::new(),
            abandoned: Vec::new(),
            segments: Vec::new(),
            spare_segments: Vec::new(),
        }
    }

    /// A completion queue with nothing in it, of a task or of a thread.
    pub(crate) fn open_queue(&mut self, is_task: bool) -> QueueId {
        self.queues.insert(CompletionQueue { is_task, ..CompletionQueue::default() })
    }

    /// Enters a read, which the machine has begun as `read`, in a queue; `id` is the next free one.
    pub(super) fn enter(
        &mut self,
        id: InFlightId,
        queue: QueueId,
        handle: HandleId,
        read: ReadId,
        ticket: u64,
    ) {
        let frames = self.spare_frames.pop().unwrap_or_default();
        let completed = CompletedRead { ticket, frames, ..CompletedRead::default() };
        let read = Some(read);
        let entry = InFlightRead { queue: Some(queue), handle, read, completed, next_done: None };
        let entered = self.reads.insert(entry);
        debug_assert_eq!(entered, id);
        let queue = &mut self.queues[queue];
        queue.reads += 1;
        queue.pending += 1;
        self.tasks_pending += u32::from(queue.is_task);
    }

    /// The next read of the queue that is done; an error once the storage carries
    /// nothing any more.
    pub(crate) fn next_done(&mut self, queue: QueueId) -> Option<Result<InFlightId, BackendError>> {
        let done = self.pop_done(queue).map(Ok);
        done.or_else(|| self.fault.map(Err))
    }

    /// The next read of the queue that is done, if it is `wanted`.
    pub(super) fn next_done_if(
        &mut self,
        queue: QueueId,
        wanted: impl FnOnce(&InFlight, InFlightId) -> bool,
    ) -> Option<InFlightId> {
        let (first, _) = self.queues[queue].done?;
        wanted(self, first).then(|| self.pop_done(queue)).flatten()
    }

    pub(super) fn pop_done(&mut self, queue: QueueId) -> Option<InFlightId> {
        let queue = &mut self.queues[queue];
        let (first, last) = queue.done?;
        queue.done = self.reads[first].next_done.take().map(|next| (next, last));
        queue.reads -= 1;
        Some(first)
    }

    /// How many reads of the queue are under way, or done and not taken.
    pub(crate) fn queue_len(&self, queue: QueueId) -> usize {
        self.queues[queue].reads as usize
    }

    /// Where the bytes of a read that is done are; to be given back.
    pub(crate) fn take_completed(&mut self, id: InFlightId) -> CompletedRead {
        std::mem::take(&mut self.reads[id].completed)
    }

    /// How many pages a read that is done pins.
    pub(super) fn pages_of(&self, id: InFlightId) -> u64 {
        self.reads[id].completed.frames.len() as u64
    }

    /// Keeps the list of a request's memory for the next one.
    pub(super) fn recycle(&mut self, progress: Progress) {
        let mut segments = progress.into_segments();
        segments.clear();
        self.spare_segments.push(segments);
    }

    /// The storage carries nothing any more: everybody is told.
    pub(super) fn fail(&mut self, error: BackendError) {
        self.fault = Some(error);
        let parked = self.queues.iter_mut().filter_map(|(_, queue)| queue.parked.take());
        self.deferred.to_wake.extend(parked);
    }

    /// Notes whom to wake when something of the queue is done.
    pub(crate) fn park(&mut self, queue: QueueId, parked: Parked) {
        let before = self.queues[queue].parked.replace(parked);
        self.deferred.drops.extend(before.map(DeferredDrop::Parked));
    }

    /// Forgets it again.
    pub(crate) fn unpark(&mut self, queue: QueueId) {
        let parked = self.queues[queue].parked.take();
        self.deferred.drops.extend(parked.map(DeferredDrop::Parked));
    }

    /// Wakes a thread that waits, for it to lead, if nobody does.
    pub(crate) fn pass_the_lead_on(&mut self) {
        if self.lead.is_taken {
            return;
        }
        let is_waiting = |queue: &&mut CompletionQueue| {
            queue.pending > 0 && matches!(queue.parked, Some(Parked::Thread(_)))
        };
        let next = self.queues.iter_mut().map(|(_, queue)| queue).find(is_waiting);
        self.deferred.to_wake.extend(next.and_then(|queue| queue.parked.take()));
    }

    /// Whether tasks wait.
    pub(crate) fn has_tasks(&self) -> bool {
        self.tasks_pending > 0 && self.fault.is_none()
    }

    /// Whether tasks wait, and nobody leads.
    pub(crate) fn is_reactor_due(&self) -> bool {
        self.has_tasks() && !self.lead.is_taken
    }
}

impl IoBackend for InFlight {
    fn submit(&mut self, machine: &Machine, _now: Time, request: DeviceRequest) {
        points::submitted(&request);
        let is_own = self.carries.take_if(|read| machine.awaits(*read, request.id)).is_some();
        let spare = if is_own { self.spare_segments.pop() } else { None };
        let mut segments = spare.unwrap_or_else(|| std::mem::take(&mut self.segments));
        machine.request_buffers(request.id, |buffer| match buffer {
            Buffer::Frame(frame) => push_frame(&mut segments, self.frame_cache.address(frame.0)),
            Buffer::Caller { .. } => unreachable!("every read goes through the cache"),
        });
        if request.sectors >= LARGE_SECTORS && !self.has_huge_pages {
            self.has_huge_pages = true;
            self.deferred.wants_huge_pages = true;
        }
        if is_own {
            let progress = self.files.progress(request, segments);
            self.own = Some(OwnRequest { request, progress });
            self.own_under_way += 1;
            return;
        }
        // SAFETY: frames in flight are filled by this request alone, and
        // looked at by nobody until it is completed; the frame cache outlives
        // the storage.
        unsafe { self.files.submit(request, &segments) };
        segments.clear();
        self.segments = segments;
        self.deferred.is_queued = true;
    }

    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        let completion = self.completions.pop_front();
        if points::ARE_TOLD
            && let Some(completion) = &completion
        {
            points::completed(completion);
        }
        completion
    }
}

impl Driver for InFlight {
    /// Puts the read into its queue; gives it back at once if nobody wants it.
    fn done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        let id = done.tag as InFlightId;
        let read = &mut self.reads[id];
        let Some(of) = read.queue.take() else {
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
            // There is nothing to be looked at, and it may be long before somebody comes for the error: the pages that it
            // was promised are not kept from others until then.
            Err(_) => {
                read.read = None;
                machine.release(now, done.read);
            }
        }
        let queue = &mut self.queues[of];
        match &mut queue.done {
            Some((_, last)) => self.reads[std::mem::replace(last, id)].next_done = Some(id),
            none => *none = Some((id, id)),
        }
        queue.pending -= 1;
        self.tasks_pending -= u32::from(queue.is_task);
        self.deferred.to_wake.extend(queue.parked.take());
        // The leader sleeps, and its read is done by what another thread did.
        self.deferred.is_leader_late |= self.lead.is_taken && self.lead.queue == Some(of);
    }
}
