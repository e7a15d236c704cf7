//! A read through the machine that a thread or a task waits for, from its start to the copy of its bytes.
//! Everything that reads but a batch, which waits for many at once, does so through here.
//!
//! Two times under the lock: one starts the read, one takes what is done and gives the pages back.
//! In between, a thread carries a request of its own read by itself, where the storage lets it: that spares the
//! detour over a leader, and eight threads have eight requests under way. What else the read waits for, and what is
//! read ahead, the storage carries as ever.
//!
//! The bytes are copied without the lock, and nobody waits for that: pages of one 64 KiB are kept in
//! their frames by *signing in* for them (see [readers](super::readers)) before the machine lets them go. A larger read
//! stays pinned until it is copied.

use std::cell::Cell;
use std::ops::Deref;
use std::task::{Poll, Waker};

use readpath_core::cache::FrameId;
use readpath_core::machine;
use readpath_core::request::{DeviceError, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, Time};

use super::copy::{Bytes, slices};
use super::frame_cache::TOGETHER;
use super::in_flight::{CompletedRead, InFlightId, Parked, QueueId};
use super::locked::Locked;
use super::state::EngineState;
use super::{Engine, Handle, Waited};
use crate::frames::FrameMemory;
use crate::read_error::ReadError;

/// A read that is wanted, or under way; dropped, it is given up. What is more than one read of the machine takes
/// is read piece after piece.
pub(crate) struct PendingRead<H: Deref<Target = Handle>> {
    handle: H,
    /// Where the piece starts that is read now.
    offset: u64,
    /// Where the last piece ends.
    end: u64,
    /// Open from the start of a piece to its end.
    queue: Cell<Option<QueueId>>,
}

impl<H: Deref<Target = Handle>> PendingRead<H> {
    /// A read of bytes of which the file has all.
    ///
    /// # Errors
    /// There is no engine yet, and the system has no room for one.
    pub(crate) fn new(handle: H, offset: u64, bytes: u64) -> Result<Self, ReadError> {
        handle.engine.ready()?;
        handle.in_machine();
        Ok(PendingRead { handle, offset, end: offset + bytes, queue: Cell::new(None) })
    }

    /// Starts it, waits until it is done, and gives its bytes to `put`, in order.
    ///
    /// # Errors
    /// The machine refuses it, the storage failed on it, or the file has become shorter.
    pub(crate) fn wait(mut self, mut put: impl FnMut(&[u8])) -> Result<(), ReadError> {
        while self.offset < self.end {
            let engine: &Engine = &self.handle.engine;
            let bytes = self.piece_bytes();
            let mut state = engine.lock();
            let queue = self.open_queue(&mut state, false);
            let own = state.start_here(&self.handle, self.offset, bytes, queue);
            let mut done = None;
            if let Some(mut own) = own.map_err(ReadError::of)? {
                drop(state);
                // SAFETY: its frames are filled by this request alone, and looked at by nobody until it is
                // completed; the engine has them, and the pages in flight keep the file open.
                let outcome = unsafe { own.progress.carry() };
                state = engine.lock();
                let now = state.complete_own(own, outcome);
                done = state.in_flight.next_done(queue).and_then(Result::ok).map(|id| (now, id));
                if done.is_none() {
                    state.pump(now);
                }
            }
            if done.is_none() {
                let (locked, waited) = engine.wait(state, queue, engine.lets_carry);
                state = locked;
                match waited {
                    Waited::Done(id) => done = Some((engine.clock.now(), id)),
                    Waited::Failed(error) => return Err(ReadError::Storage { error }),
                    Waited::HeldUp => {}
                }
            }
            match done {
                Some((now, id)) => self.finish(state, now, id, &mut put)?,
                None => {
                    state.close_queue(queue);
                    self.queue.set(None);
                    drop(state);
                    self.read_past(bytes, &mut put)?;
                }
            }
            self.offset += bytes;
        }
        Ok(())
    }

    /// Gives its bytes to `put`, in order, as far as they are there; has `waker` be called when there are more. The
    /// first call starts it.
    ///
    /// # Errors
    /// As [`wait`](PendingRead::wait).
    pub(crate) fn poll(
        &mut self,
        waker: &Waker,
        mut put: impl FnMut(&[u8]),
    ) -> Poll<Result<(), ReadError>> {
        while self.offset < self.end {
            let bytes = self.piece_bytes();
            // The waker's own code runs without the lock.
            let waker = waker.clone();
            let mut state = self.handle.engine.lock();
            let queue = match self.queue.get() {
                Some(queue) => queue,
                None => {
                    let queue = self.open_queue(&mut state, true);
                    let started = state.start(&self.handle, self.offset, bytes, queue);
                    started.map_err(ReadError::of)?;
                    queue
                }
            };
            match state.in_flight.next_done(queue) {
                Some(Ok(id)) => {
                    let now = self.handle.engine.clock.now();
                    self.finish(state, now, id, &mut put)?;
                }
                Some(Err(error)) => return Poll::Ready(Err(ReadError::Storage { error })),
                None => {
                    state.in_flight.park(queue, Parked::Task(waker));
                    return Poll::Pending;
                }
            }
            self.offset += bytes;
        }
        Poll::Ready(Ok(()))
    }

    /// How many bytes one read of the machine takes now: it ends where a page ends.
    fn piece_bytes(&self) -> u64 {
        let piece_end = (self.offset + self.handle.engine.read_bytes_max) / PAGE_BYTES * PAGE_BYTES;
        piece_end.min(self.end) - self.offset
    }

    fn open_queue(&self, state: &mut EngineState, is_task: bool) -> QueueId {
        let queue = state.in_flight.open_queue(is_task);
        self.queue.set(Some(queue));
        queue
    }

    /// Gives the bytes of the piece, which is done, to `put`, and its pages to the machine.
    fn finish(
        &self,
        mut state: Locked<'_>,
        now: Time,
        id: InFlightId,
        put: &mut impl FnMut(&[u8]),
    ) -> Result<(), ReadError> {
        let frame_cache = &self.handle.engine.frame_cache;
        let completed = state.in_flight.take_completed(id);
        let result = completed.result.expect("a read that is done has a result");
        let CompletedRead { frames, skip, copied, .. } = &completed;
        let first = self.offset / PAGE_BYTES;
        let reading = match copied {
            None if result.is_ok() => frame_cache.keep(self.handle.named().file, first, frames),
            _ => None,
        };
        let bytes = result.unwrap_or(0) as usize;
        if reading.is_none() && bytes > 0 {
            state.pump(now);
            drop(state);
            // Also where `put` panics, which may call a buffer of the program.
            let pinned = Pinned { read: self, id, completed };
            slices(frame_cache, &pinned.completed).for_each(put);
            return Ok(());
        }
        let mut kept = [FrameId(0); TOGETHER as usize];
        let kept = &mut kept[..frames.len().min(TOGETHER as usize)];
        kept.copy_from_slice(&frames[..kept.len()]);
        let found = Bytes { frames: kept, skip: *skip, bytes, copied: None };
        self.release(state, now, id, completed);
        found.slices(frame_cache).for_each(put);
        drop(reading);
        result.map(drop).map_err(ReadError::of)
    }

    fn release(&self, mut state: Locked<'_>, now: Time, id: InFlightId, completed: CompletedRead) {
        state.give_back_and_close(now, id, completed, self.queue.take());
    }

    /// A thread that carries a request which this read waits for doesn't get on: it is stopped, or gets no
    /// processor. The bytes are read once more, past the cache.
    #[cold]
    fn read_past(&self, bytes: u64, put: &mut impl FnMut(&[u8])) -> Result<(), ReadError> {
        let pages = PageRange::covering(self.offset, bytes);
        let memory = FrameMemory::new(pages.count() as u32);
        let no_room = DeviceError::Other(libc::ENOMEM);
        let memory =
            memory.map_err(|_| ReadError::Device { offset: self.offset, error: no_room })?;
        let mut outcome = self.carry_past(&memory, pages, pages);
        if let Outcome::Failed(_) = outcome {
            // The error is to say which page it is that can't be read, and perhaps all can.
            for page in pages.pages() {
                let before = (page - pages.first) * PAGE_BYTES;
                outcome = self.carry_past(&memory, pages, PageRange::new(page, 1));
                match &mut outcome {
                    Outcome::Done => {}
                    Outcome::Short { bytes } => {
                        *bytes += before;
                        break;
                    }
                    Outcome::Failed(error) => {
                        let offset = self.offset.max(page * PAGE_BYTES);
                        return Err(ReadError::Device { offset, error: *error });
                    }
                }
            }
        }
        let skip = self.offset % PAGE_BYTES;
        if let Outcome::Short { bytes: end } = outcome
            && end < skip + bytes
        {
            let offset = self.offset.max(pages.first * PAGE_BYTES + end);
            return Err(ReadError::of(machine::ReadError::Shrunk { offset }));
        }
        // SAFETY: filled by the kernel up to there, and nobody else's.
        let all = unsafe { std::slice::from_raw_parts(memory.address(0), (skip + bytes) as usize) };
        put(&all[skip as usize..]);
        Ok(())
    }

    /// Reads `part` of the pages that `memory` is for, into its place there.
    fn carry_past(&self, memory: &FrameMemory, pages: PageRange, part: PageRange) -> Outcome {
        let request = DeviceRequest {
            id: RequestId(0),
            op: Op::Read,
            start: self.handle.named().start_sector + part.first * PAGE_SECTORS,
            sectors: (part.count() * PAGE_SECTORS) as u32,
        };
        let iov_base = memory.address((part.first - pages.first) as u32).cast();
        let iov_len = (part.count() * PAGE_BYTES) as usize;
        let segments = vec![libc::iovec { iov_base, iov_len }];
        let mut progress = self.handle.engine.lock().in_flight.files.progress(request, segments);
        // SAFETY: the memory is the caller's own, and the handle keeps the file open.
        unsafe { progress.carry() }
    }
}

/// The pages of a piece that is done, pinned until this is dropped.
struct Pinned<'r, H: Deref<Target = Handle>> {
    read: &'r PendingRead<H>,
    id: InFlightId,
    completed: CompletedRead,
}

impl<H: Deref<Target = Handle>> Drop for Pinned<'_, H> {
    fn drop(&mut self) {
        let engine = &self.read.handle.engine;
        let state = engine.lock();
        let now = engine.clock.now();
        self.read.release(state, now, self.id, std::mem::take(&mut self.completed));
    }
}

impl<H: Deref<Target = Handle>> Drop for PendingRead<H> {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take()
            && self.handle.engine.is_ours()
        {
            self.handle.engine.lock().close_queue(queue);
        }
    }
}
