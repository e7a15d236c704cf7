//! What one caller at a time does: reads are started, requests go out,
//! completions come in, and those who wait are found.
//!
//! A read that is under way has a *seat*. Seats stand in *lines*: a line is what
//! one thread, one batch or one future waits for. Nothing here sleeps; who is to
//! be woken is written down and called once the desk is free again.
//!
//! A read that is done keeps its pages until somebody takes them. Should another
//! one wait for memory meanwhile, the bytes are *spilled* to memory of their own:
//! so no read ever waits for a reader that doesn't come.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::thread::Thread;

use readpath_core::cache::FrameId;
use readpath_core::machine::{self, Access, Buffer, Done, HandleId, ReadError, ReadId, Transfer};
use readpath_core::request::{Completion, ProcessId};
use readpath_core::unit::{PAGE_BYTES, Time};

use super::below::{Below, Opening};
use super::copy::{push_frame, slices};
use super::opening::{InUse, OpenFiles};
use super::shelf::Shelf;
use super::turn::lent_pages_max;
use super::{Handle, OpenFile};
use crate::backend::{BackendError, BackendInUse};
use crate::clock::Clock;
use crate::storage::Sleep;

/// Names a read under way.
pub(crate) type SeatId = usize;
/// Names a line of seats.
pub(crate) type LineId = usize;

/// Who waits for a line.
pub(crate) enum Who {
    /// A thread that is parked.
    Thread(Thread),
    /// A task.
    Task(Waker),
}

impl Who {
    /// Wakes it.
    pub(crate) fn call(self) {
        match self {
            Who::Thread(thread) => thread.unpark(),
            Who::Task(waker) => contain(|| waker.wake()),
        }
    }
}

/// Runs code of others on a thread that has nothing to do with it: should it panic, the panic
/// hook has told so, and who waits beside it is not to suffer.
fn contain(act: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(act)) {
        // Its drop might panic as well.
        std::mem::forget(payload);
    }
}

/// A read under way.
struct Seat {
    /// The line, as long as somebody wants the read.
    line: Option<LineId>,
    /// Its name in the line.
    ticket: u64,
    read: Option<ReadId>,
    handle: HandleId,
    /// Where the bytes are, once they are there.
    landed: Landed,
}

/// A read that is done: where its bytes are, until it is given back.
#[derive(Default)]
pub(crate) struct Landed {
    /// The name that was given at the start.
    pub(crate) ticket: u64,
    /// How many bytes, or why none.
    pub(crate) result: Option<Result<u64, ReadError>>,
    /// The frames of its pages, pinned by the machine.
    pub(crate) frames: Vec<FrameId>,
    /// The first byte, from the start of the first frame.
    pub(crate) skip: usize,
    /// The bytes themselves, if they had to leave their frames.
    pub(crate) spilled: Option<Box<[u8]>>,
}

#[derive(Default)]
struct Line {
    who: Option<Who>,
    done: VecDeque<SeatId>,
    /// Seats that are not done.
    pending: u32,
    is_future: bool,
}

/// The state of an engine.
pub(crate) struct Desk {
    pub(crate) machine: machine::Machine,
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
    seats: Vec<Seat>,
    seats_free: Vec<SeatId>,
    lines: Vec<Line>,
    lines_free: Vec<LineId>,
    is_led: bool,
    /// How often somebody has begun to lead, or was relieved of it.
    term: u64,
    /// What the leader itself waits for; none for the driver.
    leader_line: Option<LineId>,
    /// When the leader wakes up by itself.
    leader_until: Option<Time>,
    is_leader_late: bool,
    /// Requests were submitted that nobody has handed over.
    is_queued: bool,
    futures_pending: u32,
    /// The driver sleeps, and watches over nobody.
    pub(crate) is_driver_idle: bool,
    pub(crate) is_closing: bool,
    fault: Option<BackendError>,
    calls: Vec<Who>,
    /// What is to be dropped without the lock.
    pub(super) graveyard: Vec<Buried>,
    completions: Vec<Completion>,
    segments: Vec<libc::iovec>,
}

// SAFETY: the addresses in `segments` are for the storage alone, and are there
// only while a request is submitted.
unsafe impl Send for Desk {}

/// Something whose drop takes a system call, or runs code of others.
#[allow(dead_code, reason = "it is kept to be dropped")]
pub(crate) enum Buried {
    File(Arc<OpenFile>),
    Opening(Opening),
    Who(Who),
}

impl Buried {
    /// Drops it, without the lock.
    pub(crate) fn drop_quietly(self) {
        contain(|| drop(self));
    }
}

impl Desk {
    pub(crate) fn new(
        machine: machine::Machine,
        files: Below,
        shelf: Arc<Shelf>,
        clock: Clock,
    ) -> Desk {
        let lent_pages_max = lent_pages_max(machine.read_bytes_max());
        Desk {
            machine,
            files,
            shelf,
            clock,
            lent_pages: 0,
            lent_pages_max,
            open: OpenFiles::default(),
            in_use: Vec::new(),
            removing: Vec::new(),
            seats: Vec::new(),
            seats_free: Vec::new(),
            lines: Vec::new(),
            lines_free: Vec::new(),
            is_led: false,
            term: 0,
            leader_line: None,
            leader_until: None,
            is_leader_late: false,
            is_queued: false,
            futures_pending: 0,
            is_driver_idle: false,
            is_closing: false,
            fault: None,
            calls: Vec::new(),
            graveyard: Vec::new(),
            completions: Vec::new(),
            segments: Vec::new(),
        }
    }

    /// A line with nothing in it.
    pub(crate) fn open_line(&mut self, is_future: bool) -> LineId {
        let line = self.lines_free.pop().unwrap_or_else(|| {
            self.lines.push(Line::default());
            self.lines.len() - 1
        });
        self.lines[line].is_future = is_future;
        line
    }

    /// Nobody waits for the line any more: what is done is given back, what is
    /// under way when it is done.
    pub(crate) fn close_line(&mut self, line: LineId) {
        while let Some(seat) = self.lines[line].done.pop_front() {
            self.release(seat);
        }
        if self.lines[line].pending > 0 {
            for seat in &mut self.seats {
                if seat.line == Some(line) {
                    seat.line = None;
                }
            }
            if self.lines[line].is_future {
                self.futures_pending -= self.lines[line].pending;
            }
            self.lines[line].pending = 0;
        }
        self.graveyard.extend(self.lines[line].who.take().map(Buried::Who));
        self.lines_free.push(line);
    }

    /// Starts a read in a line; `ticket` comes back with it.
    ///
    /// # Errors
    /// The machine refuses it.
    pub(crate) fn start(
        &mut self,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        line: LineId,
        ticket: u64,
    ) -> Result<(), ReadError> {
        let now = self.clock.now();
        self.machine.take_returned(now);
        self.seat(now, handle, offset, bytes, line, ticket)?;
        self.pump(now);
        Ok(())
    }

    /// Gives a read to the machine, and a seat; to be sent out by `pump`.
    pub(super) fn seat(
        &mut self,
        now: Time,
        handle: &Handle,
        offset: u64,
        bytes: u64,
        line: LineId,
        ticket: u64,
    ) -> Result<(), ReadError> {
        handle.take_passed(|end| self.machine.passed(handle.id, end));
        let id = self.seats_free.pop().unwrap_or_else(|| {
            self.seats.push(Seat {
                line: None,
                ticket: 0,
                read: None,
                handle: handle.id,
                landed: Landed::default(),
            });
            self.seats.len() - 1
        });
        let transfer = Transfer {
            handle: handle.id,
            process: ProcessId(handle.id.0),
            offset,
            bytes,
            tag: id as u64,
        };
        let before = *self.machine.meter();
        let read = match self.machine.read(now, Access::Buffered, transfer) {
            Ok(read) => {
                let after = self.machine.meter();
                let asked_bytes = after.asked_bytes - before.asked_bytes;
                handle.tally.through(asked_bytes, after.hit_bytes - before.hit_bytes);
                read
            }
            Err(error) => {
                self.seats_free.push(id);
                return Err(error);
            }
        };
        let seat = &mut self.seats[id];
        seat.line = Some(line);
        seat.ticket = ticket;
        seat.read = Some(read);
        seat.handle = handle.id;
        self.in_use[handle.id.0 as usize].reads += 1;
        self.lines[line].pending += 1;
        self.futures_pending += u32::from(self.lines[line].is_future);
        Ok(())
    }

    /// Does to the machine what `change` does, and sends out what it made.
    pub(crate) fn command(&mut self, change: impl FnOnce(&mut machine::Machine, Time)) {
        let now = self.clock.now();
        self.machine.take_returned(now);
        change(&mut self.machine, now);
        self.pump(now);
    }

    /// The next read of the line that is done; an error once the storage carries
    /// nothing any more.
    pub(crate) fn next_done(&mut self, line: LineId) -> Option<Result<SeatId, BackendError>> {
        let done = self.lines[line].done.pop_front().map(Ok);
        done.or_else(|| self.fault.map(Err))
    }

    /// How many reads of the line are under way, or done and not taken.
    pub(crate) fn line_len(&self, line: LineId) -> usize {
        self.lines[line].pending as usize + self.lines[line].done.len()
    }

    /// Where the bytes of a read that is done are; to be given back by `release`.
    pub(crate) fn land(&mut self, seat: SeatId) -> Landed {
        std::mem::take(&mut self.seats[seat].landed)
    }

    /// Gives the list of frames of a read back, for its room, and its pages.
    pub(crate) fn take_off(&mut self, seat: SeatId, landed: Landed) {
        self.seats[seat].landed = landed;
        self.release(seat);
    }

    /// As [`take_off`](Desk::take_off), but what that makes possible is sent out by `pump`.
    pub(super) fn vacate_with(&mut self, now: Time, seat: SeatId, landed: Landed) {
        self.seats[seat].landed = landed;
        self.vacate(now, seat);
    }

    /// How many pages a read that is done pins.
    pub(super) fn pages_landed(&self, seat: SeatId) -> u64 {
        self.seats[seat].landed.frames.len() as u64
    }

    /// The next read of the line that is done, if it is `wanted`.
    pub(super) fn next_done_if(
        &mut self,
        line: LineId,
        wanted: impl FnOnce(&Desk, SeatId) -> bool,
    ) -> Option<SeatId> {
        let seat = *self.lines[line].done.front()?;
        wanted(self, seat).then(|| self.lines[line].done.pop_front()).flatten()
    }

    fn release(&mut self, id: SeatId) {
        let now = self.clock.now();
        self.vacate(now, id);
        self.pump(now);
    }

    /// Gives a seat and its pages back; what that makes possible is sent out by `pump`.
    fn vacate(&mut self, now: Time, id: SeatId) {
        let seat = &mut self.seats[id];
        let landed = &mut seat.landed;
        landed.frames.clear();
        landed.result = None;
        if landed.spilled.take().is_none() {
            let read = seat.read.take().expect("a read that is done has a name");
            self.machine.release(now, read);
        }
        self.seats_free.push(id);
        self.read_ended(self.seats[id].handle);
    }

    /// Sends out what the machine has for the storage, and seats what is done.
    pub(super) fn pump(&mut self, now: Time) {
        loop {
            while let Some(request) = self.machine.poll_request(now) {
                let segments = &mut self.segments;
                segments.clear();
                self.machine.request_buffers(request.id, |buffer| match buffer {
                    Buffer::Frame(frame) => push_frame(segments, self.shelf.address(frame.0)),
                    Buffer::Caller { .. } => unreachable!("every read goes through the cache"),
                });
                // SAFETY: frames in flight are filled by this request alone, and
                // looked at by nobody until it is completed; the shelf outlives
                // the storage.
                unsafe { self.files.submit(request, segments) };
                self.is_queued = true;
            }
            let mut has_released = false;
            while let Some(done) = self.machine.poll_done() {
                has_released |= self.seat_done(now, done);
            }
            has_released |= self.machine.is_short_of_memory() && self.spill(now);
            if !has_released {
                break;
            }
        }
        let wake = self.machine.next_wake();
        if self.is_led
            && wake.is_some_and(|wake| self.leader_until.is_none_or(|until| wake < until))
        {
            self.is_leader_late = true;
        }
    }

    /// Puts a read that is done into its line; true if nobody wants it, and its
    /// pages are released.
    fn seat_done(&mut self, now: Time, done: Done) -> bool {
        let id = done.tag as SeatId;
        let seat = &mut self.seats[id];
        let Some(line) = seat.line.take() else {
            self.machine.release(now, done.read);
            seat.read = None;
            let handle = seat.handle;
            self.seats_free.push(id);
            self.read_ended(handle);
            return true;
        };
        seat.landed.ticket = seat.ticket;
        seat.landed.result = Some(done.result);
        seat.landed.skip = (self.machine.offset(done.read) % PAGE_BYTES) as usize;
        if done.result.is_ok() {
            seat.landed.frames.extend_from_slice(self.machine.read_frames(done.read));
        }
        // The leader sleeps, and its read is done by what another thread did.
        self.is_leader_late |= self.is_led && self.leader_line == Some(line);
        let line = &mut self.lines[line];
        line.done.push_back(id);
        line.pending -= 1;
        self.futures_pending -= u32::from(line.is_future);
        self.calls.extend(line.who.take());
        false
    }

    /// Takes the bytes of reads that are done, and that nobody has come for, out of
    /// their frames; true if there were any.
    fn spill(&mut self, now: Time) -> bool {
        let mut has_spilled = false;
        for line in 0..self.lines.len() {
            for at in 0..self.lines[line].done.len() {
                has_spilled |= self.spill_one(now, self.lines[line].done[at]);
            }
        }
        has_spilled
    }

    /// Takes the bytes of a read that is done out of their frames; false if they
    /// are out of them.
    pub(super) fn spill_one(&mut self, now: Time, id: SeatId) -> bool {
        let Seat { landed, read, .. } = &mut self.seats[id];
        let Some(read) = read.take_if(|_| landed.spilled.is_none()) else { return false };
        let mut bytes = Vec::new();
        slices(&self.shelf, landed).for_each(|part| bytes.extend_from_slice(part));
        landed.spilled = Some(bytes.into_boxed_slice());
        landed.frames.clear();
        self.machine.release(now, read);
        true
    }

    /// What carries the bytes of files of this machine.
    pub(crate) fn backend(&self) -> Option<BackendInUse> {
        self.files.backend()
    }

    /// Whether somebody sleeps in the storage.
    pub(crate) fn is_led(&self) -> bool {
        self.is_led
    }

    /// Begins to lead; gives the term, and the time at which to wake up in any case.
    pub(crate) fn lead(&mut self, line: Option<LineId>) -> (u64, Option<Time>) {
        self.is_led = true;
        self.term += 1;
        self.leader_line = line;
        self.is_queued = false;
        self.is_leader_late = false;
        self.leader_until = self.machine.next_wake();
        (self.term, self.leader_until)
    }

    /// The leader's sleep is over: takes in what is completed. It is still the leader unless
    /// another took its place meanwhile.
    pub(crate) fn led(&mut self, term: u64, slept: Result<bool, BackendError>) {
        if self.term == term {
            self.is_led = false;
        }
        self.take_in(slept);
    }

    /// Who waits behind a leader has waited for long: if there is something to be taken in, the leader
    /// doesn't come for it (it is stopped, or gets no processor), and its place is free.
    pub(crate) fn take_in_for_the_leader(&mut self) {
        if self.take_in(Ok(false)) && self.is_led {
            self.is_led = false;
            self.term += 1;
        }
    }

    /// Takes in what is completed, if it was awaited as `slept` says; true if there was something.
    pub(crate) fn take_in(&mut self, slept: Result<bool, BackendError>) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        let is_awaited = slept == Ok(true);
        let exchanged = slept.and_then(|_| self.files.exchange(Sleep::Never, &mut completions));
        let now = self.clock.now();
        let has_some = !completions.is_empty();
        for mut completion in completions.drain(..) {
            if is_awaited {
                completion.not_before = now;
            }
            self.machine.handle_completion(now, completion);
        }
        self.completions = completions;
        if let Err(error) = exchanged {
            self.fail(error);
        }
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
        for line in &mut self.lines {
            self.calls.extend(line.who.take());
        }
    }

    /// Notes whom to wake when something of the line is done.
    pub(crate) fn park(&mut self, line: LineId, who: Who) {
        let before = self.lines[line].who.replace(who);
        self.graveyard.extend(before.map(Buried::Who));
    }

    /// Forgets it again.
    pub(crate) fn unpark(&mut self, line: LineId) {
        self.graveyard.extend(self.lines[line].who.take().map(Buried::Who));
    }

    /// Wakes a thread that waits, for it to lead, if nobody does.
    pub(crate) fn pass_the_lead_on(&mut self) {
        if self.is_led {
            return;
        }
        let waiting =
            |line: &&mut Line| line.pending > 0 && matches!(line.who, Some(Who::Thread(_)));
        let next = self.lines.iter_mut().find(waiting);
        self.calls.extend(next.and_then(|line| line.who.take()));
    }

    /// Whether futures wait.
    pub(crate) fn has_futures(&self) -> bool {
        self.futures_pending > 0 && self.fault.is_none()
    }

    /// Whether futures wait, and nobody leads.
    pub(crate) fn is_driver_due(&self) -> bool {
        self.has_futures() && !self.is_led
    }

    /// Whether to wake the driver: to lead, or to watch over whoever does.
    pub(crate) fn call_driver(&mut self) -> bool {
        self.has_futures() && (std::mem::take(&mut self.is_driver_idle) || !self.is_led)
    }

    /// Whether something was submitted that nobody has handed over; not so afterwards.
    pub(crate) fn take_is_queued(&mut self) -> bool {
        std::mem::take(&mut self.is_queued)
    }

    /// Whether the leader is to be woken: it sleeps for longer than it may, or has
    /// nothing to wait for any more. Not so afterwards.
    pub(crate) fn take_is_leader_late(&mut self) -> bool {
        std::mem::take(&mut self.is_leader_late)
    }

    /// Whom to wake, once the desk is free.
    pub(crate) fn take_calls(&mut self) -> Vec<Who> {
        std::mem::take(&mut self.calls)
    }

    /// What to drop, once the desk is free.
    pub(crate) fn take_graveyard(&mut self) -> Vec<Buried> {
        std::mem::take(&mut self.graveyard)
    }
}
