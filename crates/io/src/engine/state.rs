//! What one caller at a time does: reads are started, requests go out,
//! completions come in, and those who wait are found.
//!
//! Nothing here sleeps, makes a system call or runs code of others: that is written down, and done once the
//! lock is free again (see [locked](super::locked)).
//!
//! A read that is done keeps its pages until somebody takes them. Should another
//! one wait for memory meanwhile, its bytes are copied to memory of their own, and its pages given back:
//! so no read ever waits for a reader that doesn't come.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use readpath_core::machine::{Machine, ReadAccess, ReadError, ReadId, Transfer};
use readpath_core::request::{Completion, Outcome, ProcessId};
use readpath_core::unit::Time;

use super::Handle;
use super::batches::lent_pages_max;
use super::below::Below;
use super::copy::slices;
use super::frame_cache::FrameCache;
use super::in_flight::{
    CompletedRead, DeferredDrop, InFlight, InFlightId, InFlightRead, Lead, OwnRequest, QueueId,
};
use super::opening::{InUse, OpenFiles, OpenHandle};
use crate::backend::{BackendError, BackendInUse};
use crate::clock::Clock;
use crate::copied::Copied;
use crate::points;

/// The state of an engine.
pub(crate) struct EngineState {
    pub(crate) machine: Machine,
    pub(crate) in_flight: InFlight,
    frame_cache: Arc<FrameCache>,
    pub(super) clock: Clock,
    /// Pages that batches lend now, and how many they may.
    pub(super) lent_pages: u64,
    pub(super) lent_pages_max: u64,
    pub(super) open: OpenFiles,
    /// By the number of the handle.
    pub(super) in_use: Vec<InUse>,
    /// Files without handles, some of whose pages are still on their way.
    pub(super) removing: Vec<OpenHandle>,
    /// The reactor sleeps, and watches over nobody.
    pub(crate) is_reactor_idle: bool,
    pub(crate) is_closing: bool,
    /// When so much memory is in use, it is looked how much there is.
    pub(super) memory_due_bytes: u64,
    /// And when so much had to be read anew.
    pub(super) returned_due_bytes: u64,
    /// Completions that were just collected; empty in between.
    collected: Vec<Completion>,
}

impl EngineState {
    pub(crate) fn new(
        machine: Machine,
        files: Below,
        frame_cache: Arc<FrameCache>,
        clock: Clock,
    ) -> EngineState {
        let lent_pages_max = lent_pages_max(machine.read_bytes_max());
        EngineState {
            machine,
            in_flight: InFlight::new(files, Arc::clone(&frame_cache)),
            frame_cache,
            clock,
            lent_pages: 0,
            lent_pages_max,
            open: OpenFiles::default(),
            in_use: Vec::new(),
            removing: Vec::new(),
            is_reactor_idle: false,
            is_closing: false,
            memory_due_bytes: u64::MAX,
            returned_due_bytes: u64::MAX,
            collected: Vec::new(),
        }
    }

    /// Nobody waits for the queue any more: what is done is given back, what is
    /// under way when it is done.
    pub(crate) fn close_queue(&mut self, queue: QueueId) {
        while let Some(id) = self.in_flight.pop_done(queue) {
            let now = self.clock.now();
            self.release(now, id);
            self.pump(now);
        }
        let in_flight = &mut self.in_flight;
        let closed = in_flight.queues.remove(queue);
        if closed.reads != 0 {
            for (_, read) in &mut in_flight.reads {
                read.queue.take_if(|of| *of == queue);
            }
        }
        in_flight.tasks_pending -= if closed.is_task { closed.pending } else { 0 };
        in_flight.deferred.drops.extend(closed.parked.map(DeferredDrop::Parked));
    }

    /// Starts a read in a queue.
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
        self.begin_in_room(now, handle, offset, bytes, queue)?;
        self.pump(now);
        Ok(())
    }

    /// As [`start`](EngineState::start), for a thread that is about to wait. It may be given a request of the read to carry by
    /// itself, and then [tells](EngineState::complete_own) what came of it.
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
        let read = self.begin_in_room(now, handle, offset, bytes, queue)?;
        self.in_flight.carries = self.in_flight.files.lets_carry().then_some(read);
        self.pump(now);
        self.in_flight.carries = None;
        Ok(self.in_flight.own.take())
    }

    /// As [`begin`](EngineState::begin), for a read alone. Where as many are under way as may be, what is completed is
    /// taken in before it is refused: of reads that were given up, nobody else takes it in.
    fn begin_in_room(
        &mut self,
        now: Time,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        queue: QueueId,
    ) -> Result<ReadId, ReadError> {
        match self.begin(now, handle, offset, bytes, queue, 0) {
            Err(ReadError::TooManyReads { .. }) if self.take_in(Ok(false)) => {
                self.begin(now, handle, offset, bytes, queue, 0)
            }
            begun => begun,
        }
    }

    /// Gives a read to the machine; what it asks for is sent out by `pump`, and `ticket` comes back with it.
    pub(super) fn begin(
        &mut self,
        now: Time,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        queue: QueueId,
        ticket: u64,
    ) -> Result<ReadId, ReadError> {
        let named = handle.named();
        handle.file.has_pages.store(true, Ordering::Relaxed);
        handle.take_passed(|end| self.machine.passed(named.handle, end));
        let id = self.in_flight.reads.vacant_key();
        let (process, tag) = (ProcessId(named.handle.0), id as u64);
        let transfer = Transfer { handle: named.handle, process, offset, bytes, tag };
        let before = self.machine.meter();
        let (asked_before, hit_before) = (before.asked_bytes, before.hit_bytes);
        let read = self.machine.read(now, ReadAccess::Buffered, transfer)?;
        let after = self.machine.meter();
        let (asked, there) = (after.asked_bytes - asked_before, after.hit_bytes - hit_before);
        handle.read_counters.through(asked, there, offset + asked);
        self.in_flight.enter(id, queue, named.handle, read, ticket);
        self.in_use[named.handle.0 as usize].reads += 1;
        Ok(read)
    }

    /// Does to the machine what `change` does, and sends out what it made.
    pub(crate) fn command<T>(&mut self, change: impl FnOnce(&mut Machine, Time) -> T) -> T {
        let now = self.clock.now();
        self.machine.take_returned(now);
        let result = change(&mut self.machine, now);
        self.pump(now);
        result
    }

    /// Gives the list of frames of a read back, for its room, and its pages; what that makes possible
    /// is sent out by `pump`.
    pub(super) fn give_back(&mut self, now: Time, id: InFlightId, completed: CompletedRead) {
        self.in_flight.reads[id].completed = completed;
        self.release(now, id);
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
    }

    /// Gives a read that is done back, and its pages; what that makes possible is sent out by `pump`.
    fn release(&mut self, now: Time, id: InFlightId) {
        let InFlightRead { handle, read, completed, .. } = self.in_flight.reads.remove(id);
        let mut frames = completed.frames;
        frames.clear();
        self.in_flight.spare_frames.push(frames);
        if let Some(read) = read {
            self.machine.release(now, read);
        }
        self.read_ended(handle);
    }

    /// Turns the machine: sends out what it has for the storage, takes in what is done.
    pub(super) fn pump(&mut self, now: Time) {
        loop {
            self.machine.turn(now, &mut self.in_flight);
            let has_released =
                self.end_abandoned() || self.machine.is_short_of_memory() && self.copy_out_all(now);
            if !has_released {
                break;
            }
        }
        let lead = &self.in_flight.lead;
        if lead.is_taken
            && let Some(wake) = self.machine.next_wake()
            && lead.until.is_none_or(|until| wake < until)
        {
            self.in_flight.deferred.is_leader_late = true;
        }
        if !self.removing.is_empty() {
            self.remove_files();
        }
        if self.machine.memory_bytes()[1] >= self.memory_due_bytes
            || self.machine.returned_bytes() >= self.returned_due_bytes
        {
            (self.memory_due_bytes, self.returned_due_bytes) = (u64::MAX, u64::MAX);
            self.in_flight.deferred.is_memory_due = true;
        }
    }

    /// Reads that nobody wanted have ended, if there are any.
    fn end_abandoned(&mut self) -> bool {
        let mut has_some = false;
        while let Some(handle) = self.in_flight.abandoned.pop() {
            self.read_ended(handle);
            has_some = true;
        }
        has_some
    }

    /// The request has been carried, with this outcome, by the thread that it was given to; gives the time now. What that
    /// makes possible is sent out by `pump`.
    pub(crate) fn complete_own(&mut self, own: OwnRequest, outcome: Outcome) -> Time {
        let OwnRequest { request, progress } = own;
        let now = self.clock.now();
        self.in_flight.recycle(progress);
        self.in_flight.own_under_way -= 1;
        if points::ARE_TOLD {
            points::completed(&Completion::at(now, request.id, outcome));
        }
        self.machine.handle_completion(now, Completion::at(now, request.id, outcome));
        if self.machine.meter().in_device() > self.in_flight.own_under_way {
            // What the storage carries, read ahead for one, may be there too.
            self.take_in(Ok(false));
        } else {
            self.machine.tell(now, &mut self.in_flight);
        }
        now
    }

    /// Copies the bytes of reads that are done, and that nobody has come for, out of
    /// their frames; true if there were any.
    fn copy_out_all(&mut self, now: Time) -> bool {
        let is_done = |read: &InFlightRead| read.queue.is_none() && read.completed.result.is_some();
        let reads = self.in_flight.reads.iter().filter(|(_, read)| is_done(read));
        let done: Vec<InFlightId> = reads.map(|(id, _)| id).collect();
        done.into_iter().map(|id| self.copy_out(now, id)).fold(false, |any, one| any | one)
    }

    /// Copies the bytes of a read that is done out of their frames; false if they
    /// are out of them.
    pub(super) fn copy_out(&mut self, now: Time, id: InFlightId) -> bool {
        let InFlightRead { completed, read, .. } = &mut self.in_flight.reads[id];
        let Some(read) = read.take_if(|_| completed.copied.is_none()) else { return false };
        let parts = || slices(&self.frame_cache, completed);
        let mut copy = Copied::room(parts().map(<[u8]>::len).sum(), None);
        let mut room = &mut copy[..];
        for part in parts() {
            let (here, rest) = room.split_at_mut(part.len());
            here.copy_from_slice(part);
            room = rest;
        }
        completed.copied = Some(copy);
        completed.frames.clear();
        self.machine.release(now, read);
        true
    }

    /// What carries the bytes of files of this machine.
    pub(crate) fn backend(&self) -> Option<BackendInUse> {
        self.in_flight.files.backend()
    }

    /// Whether somebody sleeps in the storage.
    pub(crate) fn is_led(&self) -> bool {
        self.in_flight.lead.is_taken
    }

    /// Begins to lead; gives the term, and the time at which to wake up in any case.
    pub(crate) fn lead(&mut self, queue: Option<QueueId>) -> (u64, Option<Time>) {
        let until = self.machine.next_wake();
        let term = self.in_flight.lead.term + 1;
        self.in_flight.lead = Lead { is_taken: true, term, queue, until };
        self.in_flight.deferred.is_leader_late = false;
        (term, until)
    }

    /// The leader's sleep is over: takes in what is completed. It is still the leader unless
    /// another took its place meanwhile.
    pub(crate) fn led(&mut self, term: u64, slept: Result<bool, BackendError>) {
        let lead = &mut self.in_flight.lead;
        if lead.term == term {
            lead.is_taken = false;
        }
        self.take_in(slept);
    }

    /// Who waits behind a leader has waited for long: if there is something to be taken in, the leader
    /// doesn't come for it (it is stopped, or gets no processor), and its place is free.
    pub(crate) fn take_in_for_the_leader(&mut self) {
        if self.take_in(Ok(false)) && self.in_flight.lead.is_taken {
            self.in_flight.lead.is_taken = false;
            self.in_flight.lead.term += 1;
        }
    }

    /// Takes in what is completed, if it was awaited as `slept` says; true if there was something.
    pub(crate) fn take_in(&mut self, slept: Result<bool, BackendError>) -> bool {
        let in_flight = &mut self.in_flight;
        let is_demand = slept == Ok(true);
        match slept.and_then(|_| in_flight.files.collect(&mut self.collected)) {
            Ok(is_queued) => in_flight.deferred.is_queued |= is_queued,
            Err(error) => in_flight.fail(error),
        }
        let now = self.clock.now();
        let has_some = !self.collected.is_empty();
        for mut completion in self.collected.drain(..) {
            if is_demand {
                completion.not_before = now;
            }
            in_flight.completions.push_back(completion);
        }
        self.machine.take_returned(now);
        self.pump(now);
        has_some
    }

    /// Whether to wake the reactor: to lead, or to watch over whoever does.
    pub(super) fn call_reactor(&mut self) -> bool {
        self.in_flight.has_tasks()
            && (std::mem::take(&mut self.is_reactor_idle) || !self.in_flight.lead.is_taken)
    }
}
