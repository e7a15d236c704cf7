//! The engine's state under the lock: it starts reads, submits requests, takes in completions, and
//! finds the waiting threads and tasks.
//!
//! The *machine* is the state machine of the cache. A *frame* is memory for one page. A *handle* is
//! one opening of a file. An *abandoned* read is in flight without a queue. A *queue* is the
//! completion queue of one thread, task or batch. A read is *detached* when its bytes are copied
//! out of its frames to separate memory. The *storage* executes the requests of the machine. The
//! *leader* is the one thread that sleeps in the storage for all waiting threads; its *lead* is the
//! time in which it has this role. The *reactor* is the thread that leads for tasks.
//!
//! This module never sleeps, makes no system call and runs no foreign code. These actions are
//! recorded and performed after the lock is released (see [locked](super::engine_guard)).
//!
//! A completed read keeps its pages until it is taken. If another read waits for memory meanwhile,
//! the bytes are copied to separate memory and the pages are released. No read therefore waits for
//! a slow reader.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use readpath_core::machine::{Machine, ReadAccess, ReadError, ReadId, Transfer};
use readpath_core::request::{Completion, Outcome, ProcessId};
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};

use super::Handle;
use super::frame_cache::FrameCache;
use super::in_flight::{
    CompletedRead, DeferredDrop, InFlight, InFlightId, InFlightRead, InlineRequest, LeaderState,
    QueueId,
};
use super::read_bytes::slices;
use super::storage_backend::StorageBackend;
use crate::backend::{BackendError, BackendInUse};
use crate::os::aligned_bytes::AlignedBytes;
use crate::os::clock::Clock;
use crate::probes;

pub(crate) mod batch_reads;
pub(crate) mod open_files;

use batch_reads::batch_pages_max;
use open_files::{ALL_PAGES, HandleUse, OpenFileEntry, OpenFiles};

/// Argument of `collect_completions` for a call without a sleep before it.
const WITHOUT_SLEEP: Result<bool, BackendError> = Ok(false);

/// See the [module](self).
pub(crate) struct EngineState {
    /// Decides on requests, frames and evictions.
    pub(crate) machine: Machine,
    /// Requests and reads in flight.
    pub(crate) in_flight: InFlight,
    /// Has the bytes of completed reads.
    frame_cache: Arc<FrameCache>,
    pub(super) clock: Clock,
    /// Number of pages of completed reads that batches have taken and not returned, and its limit.
    pub(super) batch_pages: u64,
    pub(super) batch_pages_max: u64,
    /// Open files, with their handle counts.
    pub(super) open_files: OpenFiles,
    /// By handle number.
    pub(super) handle_uses: Vec<HandleUse>,
    /// Files without handles that still have pages in flight.
    pub(super) closing_files: Vec<OpenFileEntry>,
    /// True while the reactor sleeps without a timeout, because no task waits.
    pub(crate) is_reactor_idle: bool,
    /// True once the engine's owner ends the reactor.
    pub(crate) is_closing: bool,
    /// Number of bytes in use at which the spare memory is measured; `u64::MAX` for never.
    pub(super) memory_check_bytes: u64,
    /// Number of bytes read again after eviction at which the spare memory is measured; `u64::MAX`
    /// for never.
    pub(super) refault_check_bytes: u64,
    /// Completions just collected; otherwise empty.
    completion_scratch: Vec<Completion>,
}

impl EngineState {
    /// Creates the state without reads. No memory check is due until an elastic memory sets an
    /// amount.
    pub(crate) fn new(
        machine: Machine,
        storage: StorageBackend,
        frame_cache: Arc<FrameCache>,
        clock: Clock,
    ) -> EngineState {
        let batch_pages_limit = batch_pages_max(machine.read_bytes_max());
        EngineState {
            machine,
            in_flight: InFlight::new(storage, Arc::clone(&frame_cache)),
            frame_cache,
            clock,
            batch_pages: 0,
            batch_pages_max: batch_pages_limit,
            open_files: OpenFiles::default(),
            handle_uses: Vec::new(),
            closing_files: Vec::new(),
            is_reactor_idle: false,
            is_closing: false,
            memory_check_bytes: u64::MAX,
            refault_check_bytes: u64::MAX,
            completion_scratch: Vec::new(),
        }
    }

    /// Closes a queue whose owner does not wait any more. Its completed reads are released now, and
    /// reads in flight when they are done.
    pub(crate) fn close_queue(&mut self, queue: QueueId) {
        while let Some(id) = self.in_flight.pop_done(queue) {
            let now = self.clock.now();
            self.release_in_machine(now, id);
            self.step_until_idle(now);
        }
        let in_flight = &mut self.in_flight;
        let closed_queue = in_flight.queues.remove(queue);
        // The rest is in flight. Without a queue it is released when it is done.
        if closed_queue.reads != 0 {
            for (_, read) in &mut in_flight.reads {
                read.queue.take_if(|read_queue| *read_queue == queue);
            }
        }
        in_flight.tasks_pending -= if closed_queue.is_task { closed_queue.pending } else { 0 };
        in_flight.deferred.drops.extend(closed_queue.parked.map(DeferredDrop::Parked));
    }

    /// Makes the machine take back the invalidated frames that readers have left meanwhile: reads
    /// that wait for memory may go on with the next step. Returns the present time.
    fn take_returned_frames(&mut self) -> Time {
        let now = self.clock.now();
        self.machine.take_returned(now);
        now
    }

    /// Starts a read of `bytes` bytes from byte `offset` on in a queue, and submits its requests.
    /// The read may be done at once: the caller looks into the queue before it waits.
    ///
    /// # Errors
    /// The machine rejects the read.
    pub(crate) fn start(
        &mut self,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        queue: QueueId,
    ) -> Result<(), ReadError> {
        let now = self.take_returned_frames();
        self.begin_with_retry(now, handle, offset, bytes, queue)?;
        self.step_until_idle(now);
        Ok(())
    }

    /// Like [`start`](EngineState::start), for a thread that is about to wait. Returns the first
    /// request of the read, if the storage lets the thread execute it. The thread then calls
    /// [`complete_inline`](EngineState::complete_inline). `None` also if the read submits no
    /// request of its own: its pages are cached or in flight.
    ///
    /// # Errors
    /// The machine rejects the read.
    pub(crate) fn start_inline(
        &mut self,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        queue: QueueId,
    ) -> Result<Option<InlineRequest>, ReadError> {
        let now = self.take_returned_frames();
        let read = self.begin_with_retry(now, handle, offset, bytes, queue)?;
        // The next step keeps this request for the thread instead of submitting it.
        self.in_flight.inline_read = self.in_flight.storage.can_execute_inline().then_some(read);
        self.step_until_idle(now);
        self.in_flight.inline_read = None;
        Ok(self.in_flight.inline_request.take())
    }

    /// Like [`begin`](EngineState::begin), for a single read. At the limit of reads, it takes in
    /// completions and tries once more: abandoned reads may be done without a thread that takes
    /// them in.
    fn begin_with_retry(
        &mut self,
        now: Time,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        queue: QueueId,
    ) -> Result<ReadId, ReadError> {
        // The ticket of a single read has no use.
        let ticket = 0;
        match self.begin(now, handle, offset, bytes, queue, ticket) {
            Err(ReadError::TooManyReads { .. }) if self.collect_completions(WITHOUT_SLEEP) => {
                self.begin(now, handle, offset, bytes, queue, ticket)
            }
            begun => begun,
        }
    }

    /// Starts a read of `bytes` bytes from `offset` on in the machine, and adds it to a queue. The
    /// handle is registered, and counts the read until `on_read_end`. `step_until_idle` must follow
    /// and submits the requests. `ticket` is returned with the completed read.
    ///
    /// # Errors
    /// The machine rejects the read, which then has no effect on the queue.
    pub(super) fn begin(
        &mut self,
        now: Time,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        queue: QueueId,
        ticket: u64,
    ) -> Result<ReadId, ReadError> {
        let machine_ids = handle.machine_ids();
        if handle.file.pages.stay_in_own_cache() {
            // From now on a reader must look into the path's cache first.
            handle.file.has_pages.store(true, Ordering::Relaxed);
        }
        // The policy learns of reads that bypassed the machine, by the offset where the last one of
        // each thread ended.
        handle
            .take_unreported_ends(|end| self.machine.record_shared_reads(machine_ids.handle, end));
        let id = self.in_flight.reads.vacant_key();
        // For the scheduler, each handle is a process of its own. The tag finds the read's entry.
        let (process, tag) = (ProcessId(machine_ids.handle.0), id as u64);
        let transfer = Transfer { handle: machine_ids.handle, process, offset, bytes, tag };
        // The increase of the machine's counters is this read, which the machine has cut at the end
        // of the file.
        let meter_before = self.machine.meter();
        let (requested_before, hit_before) = (meter_before.requested_bytes, meter_before.hit_bytes);
        let read = self.machine.read(now, ReadAccess::Buffered, transfer)?;
        let meter_after = self.machine.meter();
        let (requested_bytes, hit_bytes) =
            (meter_after.requested_bytes - requested_before, meter_after.hit_bytes - hit_before);
        handle.read_counters.record_machine_read(
            requested_bytes,
            hit_bytes,
            offset + requested_bytes,
        );
        self.in_flight.add_read(id, queue, machine_ids.handle, read, ticket);
        self.handle_uses[machine_ids.handle.0 as usize].reads += 1;
        Ok(read)
    }

    /// Applies `change` to the machine at the present time, submits the resulting requests, and
    /// returns the result of `change`.
    pub(crate) fn with_machine<T>(&mut self, change: impl FnOnce(&mut Machine, Time) -> T) -> T {
        let now = self.take_returned_frames();
        let result = change(&mut self.machine, now);
        self.step_until_idle(now);
        result
    }

    /// Releases a completed read with its pages. `completed` was taken out of the read's entry and
    /// goes back, so that its frame list is kept. `step_until_idle` must follow.
    pub(super) fn release_completed(
        &mut self,
        now: Time,
        id: InFlightId,
        completed: CompletedRead,
    ) {
        self.in_flight.reads[id].completed = completed;
        self.release_in_machine(now, id);
    }

    /// Releases a completed read with its pages, closes its queue, which has no other reads, and
    /// steps the machine. A queue of `None` was closed before.
    pub(super) fn release_completed_and_close(
        &mut self,
        now: Time,
        id: InFlightId,
        completed: CompletedRead,
        queue: Option<QueueId>,
    ) {
        self.release_completed(now, id, completed);
        if let Some(queue) = queue {
            self.close_queue(queue);
        }
        self.step_until_idle(now);
    }

    /// Removes the entry of a completed read, and releases its pages in the machine. Then ends the
    /// read on its handle by `on_read_end`: it drops the pages if the path does not cache them, and
    /// closes a dropped handle with its last read. `step_until_idle` must follow.
    fn release_in_machine(&mut self, now: Time, id: InFlightId) {
        let InFlightRead { handle, machine_read, completed, .. } = self.in_flight.reads.remove(id);
        let mut frames = completed.frames;
        let range = match machine_read {
            Some(read) => {
                PageRange::new(self.machine.offset(read) / PAGE_BYTES, frames.len() as u64)
            }
            // A failed or detached read was released in the machine before, and with it its range.
            None => ALL_PAGES,
        };
        frames.clear();
        self.in_flight.spare_frames.push(frames);
        if let Some(read) = machine_read {
            self.machine.release(now, read);
        }
        self.on_read_end(handle, range);
    }

    /// Steps the machine until it is idle: submits its requests and moves its completed reads to
    /// their queues. If memory is short, completed reads that were not taken are detached. Requests
    /// a memory check if one is due.
    pub(super) fn step_until_idle(&mut self, now: Time) {
        loop {
            self.machine.step(now, &mut self.in_flight);
            // Released memory may let waiting reads begin, so the machine is stepped again.
            let has_released = self.end_abandoned_reads()
                || self.machine.is_short_of_memory() && self.detach_all(now);
            if !has_released {
                break;
            }
        }
        // The leader must wake up for the machine's next timed work.
        let leader = &self.in_flight.leader;
        if leader.is_active
            && let Some(wake) = self.machine.next_wake()
            && leader.wakes_at.is_none_or(|leader_wake| wake < leader_wake)
        {
            self.in_flight.deferred.must_wake_leader = true;
        }
        if !self.closing_files.is_empty() {
            self.remove_idle_files();
        }
        // `returned_bytes` counts bytes that were read again after their eviction.
        let [_limit_bytes, used_bytes] = self.machine.memory_bytes();
        if used_bytes >= self.memory_check_bytes
            || self.machine.returned_bytes() >= self.refault_check_bytes
        {
            // No further check is due until this one has set the next amounts.
            (self.memory_check_bytes, self.refault_check_bytes) = (u64::MAX, u64::MAX);
            self.in_flight.deferred.is_memory_check_due = true;
        }
    }

    /// Ends the abandoned reads that are done on their handles. The machine has released their
    /// pages before. Returns false if there are none.
    fn end_abandoned_reads(&mut self) -> bool {
        let mut has_some = false;
        while let Some(handle) = self.in_flight.abandoned.pop() {
            // The range of the read is not known any more.
            self.on_read_end(handle, ALL_PAGES);
            has_some = true;
        }
        has_some
    }

    /// Completes a request that a thread has executed itself, moves the reads that are done now to
    /// their queues, and returns the current time. `step_until_idle` must follow.
    pub(crate) fn complete_inline(
        &mut self,
        inline_request: InlineRequest,
        outcome: Outcome,
    ) -> Time {
        let InlineRequest { request, progress } = inline_request;
        let now = self.clock.now();
        self.in_flight.keep_segment_list(progress);
        self.in_flight.inline_requests_in_flight -= 1;
        if probes::ARE_COMPILED_IN {
            probes::on_complete(&Completion::at(now, request.id, outcome));
        }
        // The thread knows the time of the end exactly.
        self.machine.handle_completion(now, Completion::at(now, request.id, outcome));
        if self.machine.meter().in_device() > self.in_flight.inline_requests_in_flight {
            // Requests that the storage executes, such as prefetches, may be complete too.
            self.collect_completions(WITHOUT_SLEEP);
        } else {
            // Results alone: the caller may release its read before new requests are submitted.
            self.machine.deliver_results(now, &mut self.in_flight);
        }
        now
    }

    /// Detaches all completed reads that were not taken, so that their pages become free for reads
    /// that wait for memory. Returns false if there was none to detach. `step_until_idle` must
    /// follow.
    fn detach_all(&mut self, now: Time) -> bool {
        // A done read has no queue. An abandoned one, and one that was taken, have no result here.
        let is_completed =
            |read: &InFlightRead| read.queue.is_none() && read.completed.result.is_some();
        let reads = self.in_flight.reads.iter().filter(|(_, read)| is_completed(read));
        let completed: Vec<InFlightId> = reads.map(|(id, _)| id).collect();
        // `|` and not `||`: each of them is detached.
        completed
            .into_iter()
            .map(|id| self.detach(now, id))
            .fold(false, |any_detached, is_detached| any_detached | is_detached)
    }

    /// Copies the bytes of a completed read out of their frames, and releases its pages in the
    /// machine. Returns false without an effect if this was done before, or if the read failed.
    /// `step_until_idle` must follow.
    pub(super) fn detach(&mut self, now: Time, id: InFlightId) -> bool {
        let InFlightRead { completed, machine_read, .. } = &mut self.in_flight.reads[id];
        let Some(read) = machine_read.take_if(|_| completed.detached.is_none()) else {
            return false;
        };
        // Called twice: to count the bytes, and to copy them.
        let parts = || slices(&self.frame_cache, completed);
        let bytes = parts().map(<[u8]>::len).sum();
        let reusable_memory = None;
        let mut copy = AlignedBytes::allocate(bytes, reusable_memory);
        let mut uncopied = &mut copy[..];
        for part in parts() {
            let (target, rest) = uncopied.split_at_mut(part.len());
            target.copy_from_slice(part);
            uncopied = rest;
        }
        completed.detached = Some(copy);
        completed.frames.clear();
        self.machine.release(now, read);
        true
    }

    /// Returns the I/O backend of the files of this machine. Returns `None` for an NFS server and
    /// for a source.
    pub(crate) fn backend(&self) -> Option<BackendInUse> {
        self.in_flight.storage.backend()
    }

    /// True if there is a leader.
    pub(crate) fn has_leader(&self) -> bool {
        self.in_flight.leader.is_active
    }

    /// Makes the calling thread the leader, which waits for `queue` (`None`: the reactor). Returns
    /// its *term*, a number that distinguishes successive leaders, and the latest time to wake up.
    /// The time is `None` if the machine has no timed work.
    pub(crate) fn become_leader(&mut self, queue: Option<QueueId>) -> (u64, Option<Time>) {
        let wakes_at = self.machine.next_wake();
        let term = self.in_flight.leader.term + 1;
        self.in_flight.leader = LeaderState { is_active: true, term, queue, wakes_at };
        // The new leader has not slept yet.
        self.in_flight.deferred.must_wake_leader = false;
        (term, wakes_at)
    }

    /// Called by a leader after its sleep, with its number `term`. Ends its lead, unless another
    /// thread has replaced it: the present leader then keeps the role. Takes in the available
    /// completions in any case. `slept` is the result of the sleep, as for `collect_completions`.
    pub(crate) fn end_lead(&mut self, term: u64, slept: Result<bool, BackendError>) {
        let leader = &mut self.in_flight.leader;
        if leader.term == term {
            leader.is_active = false;
        }
        self.collect_completions(slept);
    }

    /// Called by a thread that has waited long behind a leader. If completions are available, the
    /// leader is stalled (stopped, or without a processor) and loses its role. They are taken in.
    /// The calling thread does not become the leader by this call.
    pub(crate) fn replace_stalled_leader(&mut self) {
        if self.collect_completions(WITHOUT_SLEEP) && self.in_flight.leader.is_active {
            self.in_flight.leader.is_active = false;
            // In the new term, the former leader's call of `end_lead` ends no lead.
            self.in_flight.leader.term += 1;
        }
    }

    /// Takes in the available completions and submits the requests that result. `slept` is the
    /// result of a sleep before. `Ok(true)`: no completion was there when the sleep began, so all
    /// have arrived just now, and their earliest times (`not_before`) are set to now. `Ok(false)`:
    /// there was no sleep, or completions were there before it, so their times stay. An error of
    /// the sleep or of the storage ends the storage: all waiting reads fail. Returns true if there
    /// were any completions.
    pub(crate) fn collect_completions(&mut self, slept: Result<bool, BackendError>) -> bool {
        let in_flight = &mut self.in_flight;
        let have_just_arrived = slept == Ok(true);
        match slept.and_then(|_| in_flight.storage.collect(&mut self.completion_scratch)) {
            // True if the storage has queued requests again, such as the rest of a short one.
            Ok(has_requeued) => in_flight.deferred.has_unsubmitted_requests |= has_requeued,
            Err(error) => in_flight.fail(error),
        }
        let now = self.clock.now();
        let has_some = !self.completion_scratch.is_empty();
        for mut completion in self.completion_scratch.drain(..) {
            if have_just_arrived {
                completion.not_before = now;
            }
            in_flight.completions.push_back(completion);
        }
        // As in `take_returned_frames`.
        self.machine.take_returned(now);
        self.step_until_idle(now);
        has_some
    }

    /// Returns true if tasks wait and the reactor must be woken: to lead if there is no leader, or
    /// out of its sleep without a timeout, to monitor the leader. If tasks wait, also marks the
    /// reactor as not idle. The caller wakes it after the release of the lock.
    pub(super) fn take_reactor_wake(&mut self) -> bool {
        self.in_flight.has_tasks()
            && (std::mem::take(&mut self.is_reactor_idle) || !self.in_flight.leader.is_active)
    }
}
