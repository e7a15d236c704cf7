//! A read through the machine that a thread or a task waits for, from its start to the copy of its
//! bytes. The *machine* is the state machine of the cache. The *engine* of a path consists of the
//! machine, its frames (memory for one page each) and its storage. All reads except batches use
//! this module.
//!
//! A read takes the lock twice: once to start, once to take the result and release the pages.
//! Between the two, a thread executes one request of its own read itself, if the storage permits
//! that. This avoids the hand-over through a leader, the thread that sleeps in the storage for all,
//! and eight threads have eight requests in flight. The storage executes the other requests of the
//! read and the prefetches.
//!
//! The bytes are copied without the lock. Pages of one group of 64 KiB are protected by *signing
//! in* for them (see [readers](super::reader_slots)) before the machine unpins them. A larger read
//! stays pinned until it is copied. The bytes of a *detached* read were copied out of its frames,
//! because another read waited for memory. An *abandoned* read continues without its owner. A
//! thread is *stalled* if it does not complete its own request for a second: it is stopped, or
//! gets no processor. Reads that wait behind such a thread then read their bytes themselves.

use std::cell::Cell;
use std::ops::Deref;
use std::task::{Poll, Waker};

use readpath_core::cache::FrameId;
use readpath_core::machine;
use readpath_core::request::{DeviceError, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, Time};

use super::engine_guard::EngineGuard;
use super::frame_cache::GROUP_PAGES;
use super::in_flight::{CompletedRead, InFlightId, Parked, QueueId, QueueOwner};
use super::read_bytes::{ReadBytes, slices};
use super::state::EngineState;
use super::{Engine, Handle, WaitOutcome};
use crate::os::frames::FrameMemory;
use crate::read_error::ReadError;

/// A read that is planned or in flight. Dropping it abandons the read. A read longer than the
/// machine's limit is done in pieces.
pub(crate) struct PendingRead<H: Deref<Target = Handle>> {
    /// Handle that reads, and the way to its engine.
    handle: H,
    /// Start of the current piece.
    offset: u64,
    /// End of the last piece.
    end: u64,
    /// Queue of the current piece, from its start to its end.
    queue: Cell<Option<QueueId>>,
}

impl<H: Deref<Target = Handle>> PendingRead<H> {
    /// Creates a read of `bytes` bytes from `offset` on, within the file. Builds the engine and
    /// registers the handle at the first read.
    ///
    /// # Errors
    /// There is no engine yet, and it cannot be built.
    pub(crate) fn new(handle: H, offset: u64, bytes: u64) -> Result<Self, ReadError> {
        handle.engine.engine_or_build()?;
        handle.machine_ids_or_register();
        Ok(PendingRead { handle, offset, end: offset + bytes, queue: Cell::new(None) })
    }

    /// Starts the read, waits for it and passes its bytes to `deliver` in order. After an error the
    /// bytes of the pieces before it have been passed.
    ///
    /// # Errors
    /// The machine rejects the read, the device or the storage failed, memory is short, or the file
    /// has become shorter.
    pub(crate) fn wait(mut self, mut deliver: impl FnMut(&[u8])) -> Result<(), ReadError> {
        while self.offset < self.end {
            let engine: &Engine = &self.handle.engine;
            let bytes = self.piece_bytes();
            let mut state = engine.lock();
            let queue = self.open_queue(&mut state, QueueOwner::Thread);
            let inline_request = state.start_inline(&self.handle, self.offset, bytes, queue);
            let mut done = None;
            // This thread executes one request of its read. An error of the start leaves the queue
            // to the drop of `self`.
            if let Some(mut inline_request) = inline_request.map_err(ReadError::from_machine)? {
                drop(state);
                // SAFETY: only this request writes to its frames, and no thread reads them until it
                // is completed. The engine owns the frames, and the pages in flight keep the file
                // open.
                let outcome = unsafe { inline_request.progress.execute() };
                state = engine.lock();
                let now = state.complete_inline(inline_request, outcome);
                // An error of the storage as a whole is found again by the wait below.
                let popped = state.in_flight.pop_done_or_error(queue);
                done = popped.and_then(Result::ok).map(|id| (now, id));
                // For a read that is done, `finish` steps the machine.
                if done.is_none() {
                    state.step_until_idle(now);
                }
            }
            // The storage or other threads execute the rest.
            if done.is_none() {
                // Only a request that a thread executes itself can stall.
                let ends_when_stalled = engine.can_execute_inline;
                let (locked, waited) = engine.wait(state, queue, ends_when_stalled);
                state = locked;
                match waited {
                    WaitOutcome::Done(id) => done = Some((engine.clock.now(), id)),
                    WaitOutcome::Failed(error) => return Err(ReadError::Storage { error }),
                    WaitOutcome::Stalled => {}
                }
            }
            match done {
                Some((now, id)) => self.finish_piece(state, now, id, bytes, &mut deliver)?,
                // A thread is stalled, perhaps with a page of this read. The read is abandoned with
                // its queue.
                None => {
                    state.close_queue(queue);
                    self.queue.set(None);
                    drop(state);
                    self.read_bypassing_cache(bytes, &mut deliver)?;
                }
            }
            self.offset += bytes;
        }
        Ok(())
    }

    /// Passes the available bytes to `deliver` in order, and registers `waker` for the rest. The
    /// first call starts the read. `Ready` without an error means that all bytes were passed. After
    /// `Pending` the caller starts the reactor, which takes in the completions.
    ///
    /// # Errors
    /// As for [`wait`](PendingRead::wait).
    pub(crate) fn poll(
        &mut self,
        waker: &Waker,
        mut deliver: impl FnMut(&[u8]),
    ) -> Poll<Result<(), ReadError>> {
        while self.offset < self.end {
            let bytes = self.piece_bytes();
            // The waker's own code runs without the lock.
            let waker = waker.clone();
            let mut state = self.handle.engine.lock();
            let queue = match self.queue.get() {
                Some(queue) => queue,
                // The current piece has not started.
                None => {
                    let queue = self.open_queue(&mut state, QueueOwner::Task);
                    let started = state.start(&self.handle, self.offset, bytes, queue);
                    started.map_err(ReadError::from_machine)?;
                    queue
                }
            };
            match state.in_flight.pop_done_or_error(queue) {
                Some(Ok(id)) => {
                    let now = self.handle.engine.clock.now();
                    self.finish_piece(state, now, id, bytes, &mut deliver)?;
                }
                Some(Err(error)) => return Poll::Ready(Err(ReadError::Storage { error })),
                // The piece is in flight.
                None => {
                    state.in_flight.park(queue, Parked::Task(waker));
                    return Poll::Pending;
                }
            }
            self.offset += bytes;
        }
        Poll::Ready(Ok(()))
    }

    /// Length of the current piece in bytes: at most the largest read of the machine. A piece ends
    /// at a page boundary, and the last one at the end of the read.
    fn piece_bytes(&self) -> u64 {
        let piece_end = (self.offset + self.handle.engine.read_bytes_max) / PAGE_BYTES * PAGE_BYTES;
        piece_end.min(self.end) - self.offset
    }

    /// Opens the completion queue of a piece.
    fn open_queue(&self, state: &mut EngineState, owner: QueueOwner) -> QueueId {
        let queue = state.in_flight.open_queue(owner);
        self.queue.set(Some(queue));
        queue
    }

    /// Like [`finish`](PendingRead::finish), for a piece of `bytes` bytes. If the file has become
    /// shorter and ends behind these bytes in their last page, that page cannot be cached. The
    /// bytes are then read without the cache. A server or source returns the error instead, because
    /// only the engine receives its answers.
    fn finish_piece(
        &self,
        state: EngineGuard<'_>,
        now: Time,
        id: InFlightId,
        bytes: u64,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), ReadError> {
        match self.finish(state, now, id, deliver) {
            Err(ReadError::Shrunk { offset })
                if offset >= self.offset + bytes && self.handle.engine.has_files =>
            {
                self.read_bypassing_cache(bytes, deliver)
            }
            result => result,
        }
    }

    /// Passes the bytes of the completed piece `id` to `deliver` without the lock, releases its
    /// pages, and closes its queue, which the piece has left. `now` is the present time. Returns
    /// the error of a failed read. Pages of one group are released before the copy, and other pages
    /// after it.
    fn finish(
        &self,
        mut state: EngineGuard<'_>,
        now: Time,
        id: InFlightId,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), ReadError> {
        let frame_cache = &self.handle.engine.frame_cache;
        let completed = state.in_flight.take_completed(id);
        let result = completed.result.expect("a completed read has a result");
        let CompletedRead { frames, skip, detached, .. } = &completed;
        let first_page = self.offset / PAGE_BYTES;
        let reader_guard = match detached {
            // The bytes are in the frames, which the machine is about to unpin. No guard for pages
            // of several groups, or if all reader slots are taken.
            None if result.is_ok() => {
                frame_cache.protect_pinned(self.handle.machine_ids().file_id, first_page, frames)
            }
            _ => None,
        };
        let bytes = result.unwrap_or(0) as usize;
        if reader_guard.is_none() && bytes > 0 {
            // The pages stay pinned while they are copied, or the bytes are detached. The caller
            // leaves the step to this function: requests of other reads start before the copy.
            state.step_until_idle(now);
            drop(state);
            // Its drop releases the pages, even if `deliver` runs code of the program and panics.
            let pinned = Pinned { read: self, id, completed };
            slices(frame_cache, &pinned.completed).for_each(deliver);
            return Ok(());
        }
        // The pages are protected, or there are none after an error: they are released first. The
        // copy needs their frames, at most one group. Their list goes back to the engine.
        let mut protected_frames = [FrameId(0); GROUP_PAGES as usize];
        let protected_frames = &mut protected_frames[..frames.len().min(GROUP_PAGES as usize)];
        protected_frames.copy_from_slice(&frames[..protected_frames.len()]);
        let read_bytes = ReadBytes { frames: protected_frames, skip: *skip, bytes, detached: None };
        self.release_piece(state, now, id, completed);
        read_bytes.slices(frame_cache).for_each(deliver);
        drop(reader_guard);
        result.map(drop).map_err(ReadError::from_machine)
    }

    /// Releases the pages of the completed piece `id`, closes its queue, and steps the machine.
    fn release_piece(
        &self,
        mut state: EngineGuard<'_>,
        now: Time,
        id: InFlightId,
        completed: CompletedRead,
    ) {
        state.release_completed_and_close(now, id, completed, self.queue.take());
    }

    /// Reads `bytes` bytes of the current piece without the cache, and passes them to `deliver`,
    /// all or none. This is needed because a thread is stalled that may execute a request of this
    /// read, or because its last page cannot be cached. An error names the first requested byte
    /// that cannot be read.
    #[cold]
    fn read_bypassing_cache(
        &self,
        bytes: u64,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), ReadError> {
        let pages = PageRange::covering(self.offset, bytes);
        let memory = FrameMemory::new(pages.count() as u32);
        // Reported as an error of the read at its first byte.
        let no_memory = DeviceError::Other(libc::ENOMEM);
        let memory =
            memory.map_err(|_| ReadError::Device { offset: self.offset, error: no_memory })?;
        let mut outcome = self.execute_bypassing_cache(&memory, pages, pages);
        if let Outcome::Failed(_) = outcome {
            // Read page by page: the error must name the page that cannot be read, and the retry
            // may succeed.
            for page in pages.pages() {
                let bytes_before_page = (page - pages.first) * PAGE_BYTES;
                outcome = self.execute_bypassing_cache(&memory, pages, PageRange::new(page, 1));
                match &mut outcome {
                    Outcome::Done => {}
                    Outcome::Short { bytes: end } => {
                        *end += bytes_before_page;
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
        // `end` counts from the start of the first page, in both cases above.
        if let Outcome::Short { bytes: end } = outcome
            && end < skip + bytes
        {
            let offset = self.offset.max(pages.first * PAGE_BYTES + end);
            return Err(ReadError::from_machine(machine::ReadError::Shrunk { offset }));
        }
        // SAFETY: the kernel has filled this part, and this function owns the memory.
        let read_pages =
            unsafe { std::slice::from_raw_parts(memory.address(0), (skip + bytes) as usize) };
        deliver(&read_pages[skip as usize..]);
        Ok(())
    }

    /// Reads the pages `part`, some of `pages`, into their position in `memory`, which has room for
    /// all `pages`. Waits for the device. A `Short` outcome counts from the start of `part`.
    fn execute_bypassing_cache(
        &self,
        memory: &FrameMemory,
        pages: PageRange,
        part: PageRange,
    ) -> Outcome {
        let request = DeviceRequest {
            // The identifier is not used, because the request does not go through the machine.
            id: RequestId(0),
            op: Op::Read,
            start: self.handle.machine_ids().start_sector + part.first * PAGE_SECTORS,
            sectors: (part.count() * PAGE_SECTORS) as u32,
        };
        let iov_base = memory.address((part.first - pages.first) as u32).cast();
        let iov_len = (part.count() * PAGE_BYTES) as usize;
        let segments = vec![libc::iovec { iov_base, iov_len }];
        let mut progress =
            self.handle.engine.lock().in_flight.storage.inline_transfer(request, segments);
        // SAFETY: the caller owns the memory, and the handle keeps the file open.
        unsafe { progress.execute() }
    }
}

/// The pages of a piece that is done, pinned until this is dropped.
struct Pinned<'r, H: Deref<Target = Handle>> {
    /// Read to which the piece belongs.
    read: &'r PendingRead<H>,
    /// Entry of the piece in the engine.
    id: InFlightId,
    /// Result with the pinned frames. It goes back to the entry.
    completed: CompletedRead,
}

impl<H: Deref<Target = Handle>> Drop for Pinned<'_, H> {
    /// Releases the pages, and closes the queue of the piece.
    fn drop(&mut self) {
        let engine = &self.read.handle.engine;
        let state = engine.lock();
        let now = engine.clock.now();
        self.read.release_piece(state, now, self.id, std::mem::take(&mut self.completed));
    }
}

impl<H: Deref<Target = Handle>> Drop for PendingRead<H> {
    /// Abandons a read that is not finished.
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take()
            && self.handle.engine.is_of_this_process()
        {
            self.handle.engine.lock().close_queue(queue);
        }
    }
}
