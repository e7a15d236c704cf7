//! What one caller at a time does: reads are started, requests go out,
//! completions come in, and those who wait are found.
//!
//! A read that is under way has an entry of its own. What one thread, one task or one batch waits for is a
//! *completion queue*: the reads that it has under way, and those of them that are done. Nothing here sleeps,
//! makes a system call or runs code of others: that is written down, and done once the lock is free again
//! (see [locked](super::locked)).
//!
//! A read that is done keeps its pages until somebody takes them. Should another
//! one wait for memory meanwhile, its bytes are copied to memory of their own, and its pages given back:
//! so no read ever waits for a reader that doesn't come.

use std::sync::Arc;
use std::task::Waker;
use std::thread::Thread;

use readpath_core::cache::FrameId;
use readpath_core::machine::{
    Access, Buffer, Done, HandleId, Machine, ReadError, ReadId, Transfer,
};
use readpath_core::request::{Completion, DeviceRequest, Outcome, ProcessId};
use readpath_core::unit::{PAGE_BYTES, Time};
use slab::Slab;

use super::batches::lent_pages_max;
use super::below::{Below, Opening};
use super::copy::{push_frame, slices};
use super::opening::{InUse, OpenFiles};
use super::shelf::Shelf;
use super::{Handle, OpenFile};
use crate::backend::{BackendError, BackendInUse};
use crate::clock::Clock;
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
struct InFlightRead {
    /// Whose it is; none once nobody wants it any more.
    queue: Option<QueueId>,
    handle: HandleId,
    /// Its name in the machine, as long as its pages are pinned.
    read: Option<ReadId>,
    completed: CompletedRead,
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
    pub(crate) copied: Option<Box<[u8]>>,
}

/// The reads of one thread, task or batch.
#[derive(Default)]
struct CompletionQueue {
    parked: Option<Parked>,
    /// The first and the last read that are done and not taken.
    done: Option<(InFlightId, InFlightId)>,
    /// How many reads it has, done ones included.
    reads: u32,
    /// How many of them are not done.
    pending: u32,
    is_task: bool,
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
    Opening(Opening),
    Parked(Parked),
}

/// What is to be done once the lock is free.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) to_wake: Vec<Parked>,
    pub(super) drops: Vec<DeferredDrop>,
    /// Requests were submitted that nobody has handed over.
    pub(super) is_queued: bool,
    /// The leader sleeps for longer than it may, or has nothing to wait for any more.
    pub(super) is_leader_late: bool,
}

/// Who leads: sleeps in the storage, for everybody.
#[derive(Default)]
struct Lead {
    is_taken: bool,
    /// How often somebody has begun to lead, or was relieved of it.
    term: u64,
    /// What the leader itself waits for; none for the driver.
    queue: Option<QueueId>,
    /// When the leader wakes up by itself.
    until: Option<Time>,
}

/// The state of an engine.
pub(crate) struct State {
    pub(crate) machine: Machine,
    pub(crate) files: Below,
    shelf: Arc<Shelf>,
    pub(super) clock: Clock,
    /// Pages that batches lend now, and how many they may.
    pub(super) lent_pages: u64,
    pub(super) lent_pages_max: u64,
    pub(super) open: OpenFiles,
    /// By the number of the handle.
    pub(super) in_use: Vec<InUse>,
    /// Files without handles, some of whose pages are still on their way.
    pub(super) removing: Vec<Arc<OpenFile>>,
    reads: Slab<InFlightRead>,
    /// Lists of frames of earlier reads, kept for their room.
    spare_frames: Vec<Vec<FrameId>>,
    queues: Slab<CompletionQueue>,
    lead: Lead,
    tasks_pending: u32,
    /// How many requests threads are carrying by themselves.
    pub(super) own_under_way: u32,
    /// The driver sleeps, and watches over nobody.
    pub(crate) is_driver_idle: bool,
    pub(crate) is_closing: bool,
    /// Why the storage carries nothing any more.
    fault: Option<BackendError>,
    pub(super) deferred: Deferred,
    completions: Vec<Completion>,
    /// Memory of a request on its way to the storage; empty in between.
    segments: Vec<libc::iovec>,
    /// Lists of memory of earlier requests, kept for their room.
    spare_segments: Vec<Vec<libc::iovec>>,
}

// SAFETY: the lists of memory are kept for their room alone; the addresses in them are
// looked at only while a request is submitted.
unsafe impl Send for State {}

impl State {
    pub(crate) fn new(machine: Machine, files: Below, shelf: Arc<Shelf>, clock: Clock) -> State {
        let lent_pages_max = lent_pages_max(machine.read_bytes_max());
        State {
            machine,
            files,
            shelf,
            clock,
            lent_pages: 0,
            lent_pages_max,
            open: OpenFiles::default(),
            in_use: Vec::new(),
            removing: Vec::new(),
            reads: Slab::new(),
            spare_frames: Vec::new(),
            queues: Slab::new(),
            lead: Lead::default(),
            tasks_pending: 0,
            own_under_way: 0,
            is_driver_idle: false,
            is_closing: false,
            fault: None,
            deferred: Deferred::default(),
            completions: Vec::new(),
            segments: Vec::new(),
            spare_segments: Vec::new(),
        }
    }

    /// A completion queue with nothing in it, of a task or of a thread.
    pub(crate) fn open_queue(&mut self, is_task: bool) -> QueueId {
        self.queues.insert(CompletionQueue { is_task, ..CompletionQueue::default() })
    }

    /// Nobody waits for the queue any more: what is done is given back, what is
    /// under way when it is done.
    pub(crate) fn close_queue(&mut self, queue: QueueId) {
        while let Some(id) = self.pop_done(queue) {
            self.release(id);
        }
        let CompletionQueue { parked, reads, pending, is_task, .. } = self.queues.remove(queue);
        if reads > 0 {
            for (_, read) in &mut self.reads {
                read.queue.take_if(|of| *of == queue);
            }
        }
        self.tasks_pending -= if is_task { pending } else { 0 };
        self.deferred.drops.extend(parked.map(DeferredDrop::Parked));
    }

    /// Starts a read in a queue; `ticket` comes back with it.
    ///
    /// # Errors
    /// The machine refuses it.
    pub(crate) fn start(
        &mut self,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        queue: QueueId,
    ) -> Result<(), ReadError> {
        let now = self.clock.now();
        self.machine.take_returned(now);
        self.begin(now, handle, offset, bytes, queue, 0)?;
        self.pump(now);
        Ok(())
    }

    /// As [`start`](State::start), for a thread that is about to wait. It may be given a request of the read to carry by
    /// itself, and then [tells](State::complete_own) what came of it.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn start_here(
        &mut self,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        queue: QueueId,
    ) -> Result<Option<OwnRequest>, ReadError> {
        let now = self.clock.now();
        self.machine.take_returned(now);
        let read = self.begin(now, handle, offset, bytes, queue, 0)?;
        let mut own = None;
        let wish = self.files.lets_carry().then_some((read, &mut own));
        self.pump_but(now, wish);
        Ok(own)
    }

    /// Gives a read to the machine; what it asks for is sent out by `pump`.
    pub(super) fn begin(
        &mut self,
        now: Time,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        queue: QueueId,
        ticket: u64,
    ) -> Result<ReadId, ReadError> {
        handle.take_passed(|end| self.machine.passed(handle.id, end));
        let entry = self.reads.vacant_entry();
        let transfer = Transfer {
            handle: handle.id,
            process: ProcessId(handle.id.0),
            offset,
            bytes,
            tag: entry.key() as u64,
        };
        let before = self.machine.meter();
        let (asked_before, hit_before) = (before.asked_bytes, before.hit_bytes);
        let read = self.machine.read(now, Access::Buffered, transfer)?;
        let after = self.machine.meter();
        handle.tally.through(after.asked_bytes - asked_before, after.hit_bytes - hit_before);
        let frames = self.spare_frames.pop().unwrap_or_default();
        entry.insert(InFlightRead {
            queue: Some(queue),
            handle: handle.id,
            read: Some(read),
            completed: CompletedRead { ticket, frames, ..CompletedRead::default() },
            next_done: None,
        });
        self.in_use[handle.id.0 as usize].reads += 1;
        let queue = &mut self.queues[queue];
        queue.reads += 1;
        queue.pending += 1;
        self.tasks_pending += u32::from(queue.is_task);
        Ok(read)
    }

    /// Does to the machine what `change` does, and sends out what it made.
    pub(crate) fn command(&mut self, change: impl FnOnce(&mut Machine, Time)) {
        let now = self.clock.now();
        self.machine.take_returned(now);
        change(&mut self.machine, now);
        self.pump(now);
    }

    /// The next read of the queue that is done; an error once the storage carries
    /// nothing any more.
    pub(crate) fn next_done(&mut self, queue: QueueId) -> Option<Result<InFlightId, BackendError>> {
        let done = self.pop_done(queue).map(Ok);
        done.or_else(|| self.fault.map(Err))
    }

    fn pop_done(&mut self, queue: QueueId) -> Option<InFlightId> {
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

    /// Where the bytes of a read that is done are; to be given back by `give_back`.
    pub(crate) fn take_completed(&mut self, id: InFlightId) -> CompletedRead {
        std::mem::take(&mut self.reads[id].completed)
    }

    /// Gives the list of frames of a read back, for its room, and its pages; what that makes possible
    /// is sent out by `pump`.
    pub(crate) fn give_back(&mut self, now: Time, id: InFlightId, completed: CompletedRead) {
        self.reads[id].completed = completed;
        self.release_only(now, id);
    }

    /// How many pages a read that is done pins.
    pub(super) fn pages_of(&self, id: InFlightId) -> u64 {
        self.reads[id].completed.frames.len() as u64
    }

    /// The next read of the queue that is done, if it is `wanted`.
    pub(super) fn next_done_if(
        &mut self,
        queue: QueueId,
        wanted: impl FnOnce(&State, InFlightId) -> bool,
    ) -> Option<InFlightId> {
        let (first, _) = self.queues[queue].done?;
        wanted(self, first).then(|| self.pop_done(queue)).flatten()
    }

    /// Gives a read that is done back, and its pages, and closes the queue of which it was the only one.
    pub(super) fn give_back_and_close(
        &mut self,
        now: Time,
        id: InFlightId,
        completed: CompletedRead,
        queue: Option<QueueId>,
    ) {
        self.give_back(now, id, completed);
        if let Some(queue) = queue {
            self.close_queue(queue);
        }
        self.pump(now);
        if !self.removing.is_empty() {
            self.remove_files();
        }
    }

    /// Gives a read that is done back, and its pages.
    pub(crate) fn release(&mut self, id: InFlightId) {
        let now = self.clock.now();
        self.release_only(now, id);
        self.pump(now);
    }

    /// The same; what that makes possible is sent out by `pump`.
    pub(super) fn release_only(&mut self, now: Time, id: InFlightId) {
        let InFlightRead { handle, read, completed, .. } = self.reads.remove(id);
        let mut frames = completed.frames;
        frames.clear();
        self.spare_frames.push(frames);
        if let Some(read) = read {
            self.machine.release(now, read);
        }
        self.read_ended(handle);
    }

    /// Sends out what the machine has for the storage, and takes in what is done.
    pub(super) fn pump(&mut self, now: Time) {
        self.pump_but(now, None);
    }

    /// The same, but for the first request that the read of `wish` waits for: that one is left there.
    fn pump_but(&mut self, now: Time, mut wish: Option<(ReadId, &mut Option<OwnRequest>)>) {
        loop {
            while let Some(request) = self.machine.poll_request(now) {
                let is_wished = |wish: &mut (ReadId, _)| self.machine.awaits(wish.0, request.id);
                match wish.take_if(is_wished) {
                    Some((_, own)) => *own = Some(self.own(request)),
                    None => self.submit(request),
                }
            }
            let has_released =
                self.take_done(now) || self.machine.is_short_of_memory() && self.copy_out_all(now);
            if !has_released {
                break;
            }
        }
        if self.lead.is_taken
            && let Some(wake) = self.machine.next_wake()
            && self.lead.until.is_none_or(|until| wake < until)
        {
            self.deferred.is_leader_late = true;
        }
    }

    fn submit(&mut self, request: DeviceRequest) {
        let mut segments = std::mem::take(&mut self.segments);
        self.describe(request, &mut segments);
        // SAFETY: frames in flight are filled by this request alone, and
        // looked at by nobody until it is completed; the shelf outlives
        // the storage.
        unsafe { self.files.submit(request, &segments) };
        segments.clear();
        self.segments = segments;
        self.deferred.is_queued = true;
    }

    /// The request, to be carried by the caller.
    fn own(&mut self, request: DeviceRequest) -> OwnRequest {
        let mut segments = self.spare_segments.pop().unwrap_or_default();
        self.describe(request, &mut segments);
        let progress = self.files.progress(request, segments);
        self.own_under_way += 1;
        OwnRequest { request, progress }
    }

    /// The memory that a request fills.
    fn describe(&self, request: DeviceRequest, segments: &mut Vec<libc::iovec>) {
        self.machine.request_buffers(request.id, |buffer| match buffer {
            Buffer::Frame(frame) => push_frame(segments, self.shelf.address(frame.0)),
            Buffer::Caller { .. } => unreachable!("every read goes through the cache"),
        });
    }

    /// The request has been carried, with this outcome, by the thread that it was given to; the time now. What that
    /// makes possible is sent out by `pump`, unless more has come meanwhile.
    pub(crate) fn complete_own(&mut self, own: OwnRequest, outcome: Outcome) -> Time {
        let OwnRequest { request, progress } = own;
        self.own_under_way -= 1;
        let mut segments = progress.into_segments();
        segments.clear();
        self.spare_segments.push(segments);
        let now = self.clock.now();
        self.machine.handle_completion(now, Completion::at(now, request.id, outcome));
        if self.machine.meter().in_device() > self.own_under_way {
            // What the storage carries, read ahead for one, may be there too.
            self.take_in(Ok(false));
        } else {
            self.take_done(now);
        }
        now
    }

    /// Takes in what is done; true if that let pages go that others may wait for.
    fn take_done(&mut self, now: Time) -> bool {
        let mut has_released = false;
        while let Some(done) = self.machine.poll_done() {
            has_released |= self.note_done(now, done);
        }
        has_released
    }

    /// Puts a read that is done into its queue; true if nobody wants it, and its
    /// pages are released.
    fn note_done(&mut self, now: Time, done: Done) -> bool {
        let id = done.tag as InFlightId;
        let read = &mut self.reads[id];
        let Some(of) = read.queue.take() else {
            self.release_only(now, id);
            return true;
        };
        read.completed.result = Some(done.result);
        read.completed.skip = (self.machine.offset(done.read) % PAGE_BYTES) as usize;
        if done.result.is_ok() {
            read.completed.frames.extend_from_slice(self.machine.read_frames(done.read));
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
        false
    }

    /// Copies the bytes of reads that are done, and that nobody has come for, out of
    /// their frames; true if there were any.
    fn copy_out_all(&mut self, now: Time) -> bool {
        let is_done = |read: &InFlightRead| read.queue.is_none() && read.completed.result.is_some();
        let done: Vec<InFlightId> =
            self.reads.iter().filter(|(_, read)| is_done(read)).map(|(id, _)| id).collect();
        done.into_iter().map(|id| self.copy_out(now, id)).fold(false, |any, one| any | one)
    }

    /// Copies the bytes of a read that is done out of their frames; false if they
    /// are out of them.
    pub(super) fn copy_out(&mut self, now: Time, id: InFlightId) -> bool {
        let InFlightRead { completed, read, .. } = &mut self.reads[id];
        let Some(read) = read.take_if(|_| completed.copied.is_none()) else { return false };
        let mut bytes = Vec::new();
        slices(&self.shelf, completed).for_each(|part| bytes.extend_from_slice(part));
        completed.copied = Some(bytes.into_boxed_slice());
        completed.frames.clear();
        self.machine.release(now, read);
        true
    }

    /// What carries the bytes of files of this machine.
    pub(crate) fn backend(&self) -> Option<BackendInUse> {
        self.files.backend()
    }

    /// Whether somebody sleeps in the storage.
    pub(crate) fn is_led(&self) -> bool {
        self.lead.is_taken
    }

    /// Begins to lead; gives the term, and the time at which to wake up in any case.
    pub(crate) fn lead(&mut self, queue: Option<QueueId>) -> (u64, Option<Time>) {
        let until = self.machine.next_wake();
        self.lead = Lead { is_taken: true, term: self.lead.term + 1, queue, until };
        self.deferred.is_leader_late = false;
        (self.lead.term, until)
    }

    /// The leader's sleep is over: takes in what is completed. It is still the leader unless
    /// another took its place meanwhile.
    pub(crate) fn led(&mut self, term: u64, slept: Result<bool, BackendError>) {
        if self.lead.term == term {
            self.lead.is_taken = false;
        }
        self.take_in(slept);
    }

    /// Who waits behind a leader has waited for long: if there is something to be taken in, the leader
    /// doesn't come for it (it is stopped, or gets no processor), and its place is free.
    pub(crate) fn take_in_for_the_leader(&mut self) {
        if self.take_in(Ok(false)) && self.lead.is_taken {
            self.lead.is_taken = false;
            self.lead.term += 1;
        }
    }

    /// Takes in what is completed, if it was awaited as `slept` says; true if there was something.
    pub(crate) fn take_in(&mut self, slept: Result<bool, BackendError>) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        let is_awaited = slept == Ok(true);
        match slept.and_then(|_| self.files.collect(&mut completions)) {
            Ok(is_queued) => self.deferred.is_queued |= is_queued,
            Err(error) => self.fail(error),
        }
        let now = self.clock.now();
        let has_some = !completions.is_empty();
        for mut completion in completions.drain(..) {
            if is_awaited {
                completion.not_before = now;
            }
            self.machine.handle_completion(now, completion);
        }
        self.completions = completions;
        self.machine.take_returned(now);
        self.pump(now);
        if !self.removing.is_empty() {
            self.remove_files();
        }
        has_some
    }

    /// The storage carries nothing any more: everybody is told.
    fn fail(&mut self, error: BackendError) {
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
    pub(crate) fn is_driver_due(&self) -> bool {
        self.has_tasks() && !self.lead.is_taken
    }

    /// Whether to wake the driver: to lead, or to watch over whoever does.
    pub(super) fn call_driver(&mut self) -> bool {
        self.has_tasks() && (std::mem::take(&mut self.is_driver_idle) || !self.lead.is_taken)
    }
}
