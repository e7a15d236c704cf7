//! Batches: many reads at once from one thread.
//!
//! A read goes through the kernel page cache if the kernel caches the pages of its file, unless it
//! fails there. Any other read goes to the *engine*: the path's own cache with its requests. The
//! engine knows a file by a handle that is *registered* with it. The engine puts the batch's
//! completed reads into a *completion queue*. A path with the kernel page cache builds its engine
//! only for the first read that needs it. An *unstarted* read waits for its group or for room. A
//! *shared* read is completed: its pages stay pinned until the batch returns it, or its bytes are a
//! copy.

use std::collections::VecDeque;
use std::sync::Arc;

use readpath_core::machine;
use slab::Slab;

use crate::file::{File, read_absent};
use crate::os::aligned_bytes::AlignedBytes;
use crate::page_cache::kernel_reads::submitted_reads::KernelReadStatus;
use crate::page_cache::own::copy_out::copy_out;
use crate::page_cache::own::engine_guard::EngineGuard;
use crate::page_cache::own::in_flight::{CompletedRead, QueueId, QueueOwner};
use crate::page_cache::own::read_bytes::slices;
use crate::page_cache::own::state::batch_reads::{SharedRead, UnstartedRead};
use crate::page_cache::own::{LazyEngine, READ_BYTES_MAX, WaitOutcome};
use crate::path::ReadPath;
use crate::read_error::{Forked, ReadError};

mod kernel_reads;
mod kernel_ring;

use kernel_reads::KernelReads;

/// Number of reads that start together. A group shares a lock, a clock reading and a system call.
/// While it fills, the device has up to 8 fewer of the 32 or more requests that keep it busy.
const START_GROUP_READS: usize = 8;

/// Largest read in bytes that `wait_into` copies twice: from the kernel page cache to a buffer, and
/// from there to the caller. A residency check would avoid the first copy, but costs a system call
/// (0.3 us), as much as a copy of 16 KiB within the processor's caches.
const COPY_TWICE_BYTES_MAX: u64 = 16 << 10;

/// Reads of any files of one path, in flight together: start many, wait for any.
///
/// The waiting thread drives the storage itself, so one thread keeps any number of reads in flight
/// without wake-ups between threads. Reads start in groups of 8. An incomplete group starts with
/// [`start`](Batch::start), or when [`wait`](Batch::wait) finds no completed read. Dropping a batch
/// abandons its reads.
///
/// ```
/// # let name = std::env::temp_dir().join(format!("readpath-doc-batch-{}", std::process::id()));
/// # std::fs::write(&name, vec![7u8; 100_000])?;
/// let path = readpath::ReadPath::builder().build()?;
/// let file = path.open(&name)?;
/// let mut batch = path.batch();
/// for ticket in 0..10 {
///     batch.read(&file, ticket * 5_000, 100, ticket)?;
/// }
/// let mut bytes = 0;
/// while let Some(read) = batch.wait()? {
///     assert!(read.ticket() < 10);
///     bytes += read.slices()?.map(<[u8]>::len).sum::<usize>();
/// }
/// assert_eq!(bytes, 1000);
/// # std::fs::remove_file(&name)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch {
    /// Owner of the engine of the batch's path.
    engine: Arc<LazyEngine>,
    /// Completion queue of this batch in the engine, from its first read there.
    queue: Option<QueueId>,
    /// Reads submitted to the kernel page cache and not yet copied out.
    kernel_reads: KernelReads,
    /// Reads for the engine, until their results are in `ready`.
    engine_reads: Slab<UnstartedRead>,
    /// Keys in `engine_reads` of the reads that have not started.
    unstarted: Vec<usize>,
    /// Completed reads, not yet returned by `wait`.
    ready: VecDeque<SharedRead>,
    /// Read whose bytes the caller borrows at present.
    borrowed: Option<SharedRead>,
    /// Reads that the caller has finished with; their pages are released with the next lock.
    returned: Vec<SharedRead>,
    /// Memory of earlier copies, for reuse.
    free_buffers: Vec<AlignedBytes>,
}

impl ReadPath {
    /// Creates a batch without reads. Its reads are of files that this path has opened.
    pub fn batch(&self) -> Batch {
        // A child without an engine keeps the parent's: each use of the batch returns the error.
        let engine = self.engine().for_this_process().unwrap_or_else(|_| Arc::clone(self.engine()));
        Batch {
            engine,
            queue: None,
            kernel_reads: KernelReads::default(),
            engine_reads: Slab::new(),
            unstarted: Vec::new(),
            ready: VecDeque::new(),
            borrowed: None,
            returned: Vec::new(),
            free_buffers: Vec::new(),
        }
    }
}

impl Batch {
    /// Adds a read of `bytes` bytes of `file` at `offset`. `ticket` is returned with the result.
    /// One read is of at most 16 MiB within the file, and less with a small own cache.
    /// [`File::read_at`] has no limit.
    ///
    /// `file` may be dropped before the read completes. Errors of the start (such as too many reads
    /// in flight) are reported by [`BatchRead`].
    ///
    /// # Errors
    /// The read is larger than the limit ([`ReadError::TooLarge`]). The batch was created
    /// before a `fork`, and this is the child ([`ReadError::Forked`]). The check of the file for a
    /// change failed. The system lacks memory or a backend for a read past the kernel page cache.
    ///
    /// # Panics
    /// The file belongs to another path.
    pub fn read(
        &mut self,
        file: &File,
        offset: u64,
        bytes: u64,
        ticket: u64,
    ) -> Result<(), ReadError> {
        self.check_process()?;
        let handle = file.handle().current()?;
        assert!(Arc::ptr_eq(&handle.engine, &self.engine), "a batch reads files of its own path");
        let engine = self.engine.existing_engine();
        // Without an engine so far, the largest limit that an engine can have applies.
        let bytes_max = engine.map_or(READ_BYTES_MAX, |engine| engine.read_bytes_max);
        let bytes_in_file = bytes.min(handle.file.bytes.saturating_sub(offset));
        if bytes_in_file > bytes_max {
            return Err(ReadError::TooLarge { bytes: bytes_in_file, bytes_max });
        }
        self.end_borrow();
        // A read at or past the end of the file has no bytes. The engine completes it.
        if bytes_in_file > 0 {
            // `None` if the kernel does not cache the pages, or if the file cannot be opened for
            // reads through its cache.
            if let Some(residency) = handle.submit_to_kernel(offset, bytes_in_file) {
                // The kernel has started the I/O. `wait` copies the bytes when they are resident.
                let kernel_read = UnstartedRead { handle, offset, bytes: bytes_in_file, ticket };
                self.kernel_reads.push(kernel_read, residency);
                return Ok(());
            }
            // `Some` only on a path with a cache of its own, if all pages are known to be in the
            // kernel page cache and none is in the path's cache.
            if let Some(copy) =
                handle.copy_resident(offset, bytes_in_file, || self.free_buffers.pop())
            {
                self.ready.push_back(SharedRead::from_copy(ticket, copy));
                return Ok(());
            }
        }
        self.engine.engine_or_build()?;
        self.add_engine_read(UnstartedRead { handle, offset, bytes: bytes_in_file, ticket });
        if self.unstarted.len() >= START_GROUP_READS {
            self.start();
        }
        Ok(())
    }

    /// Submits all reads that have not started to the storage, and releases the pages of returned
    /// reads. No effect in a child process that was forked after the batch was created, and as long
    /// as the path has no engine: [`wait`](Batch::wait) tries to build it.
    pub fn start(&mut self) {
        if !self.engine.is_of_this_process()
            || self.engine.existing_engine().is_none()
            || self.unstarted.is_empty() && self.returned.is_empty()
        {
            return;
        }
        let engine = Arc::clone(&self.engine);
        let ready_before = self.ready.len();
        // The drop of the guard releases the lock and submits the requests.
        drop(self.release_and_submit(&engine));
        self.finish_engine_reads(ready_before);
    }

    /// Adds a read for the engine, which has not started.
    fn add_engine_read(&mut self, read: UnstartedRead) {
        self.unstarted.push(self.engine_reads.insert(read));
    }

    /// Ends the engine's reads in `ready` from index `first` on. The engine knows each by its key
    /// in `engine_reads`, which is replaced by the caller's ticket. If the file has become shorter
    /// and ends behind the bytes of a read in their last page, that page cannot be cached, and the
    /// read has failed. It is read again by `read_absent`, which needs no cached page.
    ///
    /// Called without the lock: dropping the last handle of a file takes it.
    fn finish_engine_reads(&mut self, first: usize) {
        for SharedRead { completed, .. } in self.ready.iter_mut().skip(first) {
            let read = self.engine_reads.remove(completed.ticket as usize);
            completed.ticket = read.ticket;
            if let Some(Err(machine::ReadError::Shrunk { offset })) = completed.result
                && offset >= read.offset + read.bytes
            {
                let mut copy = AlignedBytes::allocate(read.bytes as usize, self.free_buffers.pop());
                // After another error, such as of a server's file, the first one stays.
                if read_absent(&read.handle, read.offset, &mut copy).is_ok() {
                    completed.result = Some(Ok(read.bytes));
                    completed.detached = Some(copy);
                }
            }
        }
    }

    /// Releases the reads that the caller has finished with and submits the unstarted ones, under
    /// one lock. Reads that are rejected at their start move to `ready`, for
    /// [`finish_engine_reads`](Batch::finish_engine_reads). Returns the engine's locked state and
    /// the batch's queue in it. Requires a built engine.
    fn release_and_submit<'e>(&mut self, engine: &'e LazyEngine) -> (EngineGuard<'e>, QueueId) {
        // Without the lock, which the registration of a handle takes. The handle keeps its ids.
        let reads = &self.engine_reads;
        self.unstarted.iter().for_each(|&key| _ = reads[key].handle.machine_ids_or_register());
        let mut state = engine.lock();
        let open_queue = || state.in_flight.open_queue(QueueOwner::Thread);
        let queue = *self.queue.get_or_insert_with(open_queue);
        let (unstarted, ready) = (&self.unstarted, &mut self.ready);
        state.release_and_start(queue, &mut self.returned, unstarted, reads, ready);
        self.unstarted.clear();
        (state, queue)
    }

    /// Number of reads in flight, or completed and not yet returned by `wait`.
    pub fn len(&self) -> usize {
        let queue_len = match (self.engine.existing_engine(), self.queue) {
            (Some(engine), Some(queue)) => engine.lock().in_flight.queue_len(queue),
            _ => 0,
        };
        self.kernel_reads.len() + self.unstarted.len() + queue_len + self.ready.len()
    }

    /// True if `wait` would return `None`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for any read to complete and returns it with its bytes. `None` if the batch is empty.
    ///
    /// The bytes stay valid until the next use of the batch. Meanwhile the thread may read from the
    /// same path. All batches together pin at most a quarter of the memory; further bytes are
    /// returned as copies.
    ///
    /// # Errors
    /// The storage has failed as a whole. The batch was created before a `fork`, and this is the
    /// child. Or the system lacks memory or a backend for a read past the kernel page cache: it
    /// stays in the batch, and the next call tries again. An error of one read is reported by
    /// [`BatchRead`].
    pub fn wait(&mut self) -> Result<Option<BatchRead<'_>>, ReadError> {
        self.check_process()?;
        self.end_borrow();
        if self.ready.is_empty() {
            self.wait_for_kernel_read();
        }
        // A read that has just failed in the kernel page cache is in `unstarted` now.
        if self.ready.is_empty() && (self.queue.is_some() || !self.unstarted.is_empty()) {
            self.wait_for_engine_reads()?;
        }
        self.borrowed = self.ready.pop_front();
        let engine = &*self.engine;
        Ok(self
            .borrowed
            .as_ref()
            .map(|SharedRead { completed, .. }| BatchRead { engine, completed }))
    }

    /// Like [`wait`](Batch::wait), but copies the bytes to the start of a buffer. `buffer_for`
    /// returns the buffer for the ticket and the number of bytes. It may stay uncalled if the read
    /// has failed. More than 16 KiB that are found in the kernel page cache are copied there
    /// directly, without the intermediate copy of `wait`. `None` if the batch is empty.
    ///
    /// ```
    /// # let folder = std::env::temp_dir();
    /// # let name = folder.join(format!("readpath-doc-wait-into-{}", std::process::id()));
    /// # std::fs::write(&name, vec![7u8; 100_000])?;
    /// # let path = readpath::ReadPath::builder().build()?;
    /// # let file = path.open(&name)?;
    /// let (mut batch, mut rows) = (path.batch(), [[0; 100]; 10]);
    /// for row in 0..10 {
    ///     batch.read(&file, row * 5_000, 100, row)?;
    /// }
    /// while let Some(put) = batch.wait_into(|row, _| &mut rows[row as usize])? {
    ///     assert_eq!(put.bytes?, 100);
    /// }
    /// assert_eq!(rows, [[7; 100]; 10]);
    /// # std::fs::remove_file(&name)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`wait`](Batch::wait).
    ///
    /// # Panics
    /// The buffer is too small.
    pub fn wait_into<'p>(
        &mut self,
        buffer_for: impl FnOnce(u64, usize) -> &'p mut [u8],
    ) -> Result<Option<PutRead>, ReadError> {
        self.check_process()?;
        self.end_borrow();
        if self.ready.is_empty()
            && let Some((kernel_read, status)) =
                self.kernel_reads.next(COPY_TWICE_BYTES_MAX, &mut self.free_buffers)
        {
            let UnstartedRead { handle, offset, bytes, ticket } = kernel_read;
            let bytes = bytes as usize;
            let target = &mut buffer_for(ticket, bytes)[..bytes];
            let read = match status {
                KernelReadStatus::Copied(copy) => {
                    target.copy_from_slice(&copy);
                    self.free_buffers.push(copy);
                    Ok(())
                }
                // Not copied yet, or not available from the kernel page cache: the bytes go
                // straight to the caller's buffer.
                KernelReadStatus::LeftToCaller { is_awaited: true }
                    if handle.read_awaited(offset, target) =>
                {
                    Ok(())
                }
                KernelReadStatus::LeftToCaller { .. } | KernelReadStatus::MustBypass => {
                    read_absent(&handle, offset, target)
                }
                KernelReadStatus::Failed(error) => Err(ReadError::from_machine(error)),
            };
            return Ok(Some(PutRead { ticket, bytes: read.map(|()| bytes) }));
        }
        let copy_to_buffer = |read: BatchRead<'_>| {
            let bytes = read
                .bytes()
                .and_then(|bytes| read.copy_to(buffer_for(read.ticket(), bytes as usize)));
            PutRead { ticket: read.ticket(), bytes }
        };
        Ok(self.wait()?.map(copy_to_buffer))
    }

    /// Ends the caller's borrow of the last read. The memory of a copy from outside the engine is
    /// kept for reuse. Any other read, copied or failed, is kept for release with the next lock.
    fn end_borrow(&mut self) {
        let Some(borrowed) = self.borrowed.take() else { return };
        match borrowed.into_copy() {
            Ok(copy) => self.free_buffers.push(copy),
            Err(borrowed) => self.returned.push(borrowed),
        }
    }

    /// Checks that this process created the batch.
    ///
    /// # Errors
    /// Another process did.
    fn check_process(&self) -> Result<(), ReadError> {
        match self.engine.is_of_this_process() {
            true => Ok(()),
            false => Err(ReadError::Forked { why: Forked::UnderWay }),
        }
    }

    /// Waits for the next read from the kernel page cache and moves its bytes to `ready`. A read
    /// that fails there moves to `unstarted`, to be read without that cache. Returns at once if no
    /// read was submitted to the kernel page cache.
    fn wait_for_kernel_read(&mut self) {
        // A read of any size may be copied at once, because the caller borrows a copy in any case.
        let copied_bytes_max = u64::MAX;
        let next = self.kernel_reads.next(copied_bytes_max, &mut self.free_buffers);
        let Some((kernel_read, status)) = next else { return };
        let UnstartedRead { handle, offset, bytes, ticket } = &kernel_read;
        let copy = match status {
            KernelReadStatus::Copied(copy) => Some(copy),
            // Not copied yet: the file system has no reads that never block, or no helper thread
            // was available. This copy may block. `None` if the kernel cannot provide the bytes.
            KernelReadStatus::LeftToCaller { is_awaited } => {
                let mut copy = AlignedBytes::allocate(*bytes as usize, self.free_buffers.pop());
                match is_awaited && handle.read_awaited(*offset, &mut copy) {
                    true => Some(copy),
                    false => handle.copy_from_kernel(*offset, *bytes, || Some(copy)),
                }
            }
            // The kernel cannot provide the bytes.
            KernelReadStatus::MustBypass => None,
            KernelReadStatus::Failed(error) => {
                self.ready.push_back(SharedRead::from_error(*ticket, error));
                return;
            }
        };
        match copy {
            Some(copy) => self.ready.push_back(SharedRead::from_copy(*ticket, copy)),
            None => self.add_engine_read(kernel_read),
        }
    }

    /// Waits for the next read of the engine, and moves it to `ready`, with as many other completed
    /// reads as may stay pinned. Returns without a wait if a read was rejected at its start, or if
    /// none is in flight.
    ///
    /// # Errors
    /// The storage has failed. Or the engine cannot be built, and the reads stay in `unstarted`.
    fn wait_for_engine_reads(&mut self) -> Result<(), ReadError> {
        self.engine.engine_or_build()?;
        let engine = Arc::clone(&self.engine);
        let ready_before = self.ready.len();
        let (state, queue) = self.release_and_submit(&engine);
        let result = if self.ready.is_empty() && state.in_flight.queue_len(queue) > 0 {
            // A single read leaves a stalled thread's request and bypasses the cache. A batch has
            // no such way out, so it waits for that thread.
            let ends_when_stalled = false;
            let (mut locked, waited) = engine.wait(state, queue, ends_when_stalled);
            match waited {
                WaitOutcome::Done(id) => {
                    // The read `id` has left the queue. This call takes it, and the next ones
                    // within the limit.
                    locked.share_completed(queue, id, &mut self.ready);
                    Ok(())
                }
                WaitOutcome::Failed(error) => Err(ReadError::Storage { error }),
                WaitOutcome::Stalled => unreachable!("the wait does not end for a stalled thread"),
            }
        } else {
            drop(state);
            Ok(())
        };
        self.finish_engine_reads(ready_before);
        result
    }
}

impl Drop for Batch {
    /// Releases the pages of completed reads, and abandons the reads in flight in the engine. Does
    /// nothing if no read went there, and in a child made by `fork`, whose parent has the engine.
    /// Reads in the kernel page cache are abandoned by the drop of `kernel_reads`.
    fn drop(&mut self) {
        let (Some(engine), Some(queue)) = (self.engine.existing_engine(), self.queue) else {
            return;
        };
        self.returned.extend(self.borrowed.take());
        self.returned.extend(self.ready.drain(..));
        let mut state = engine.lock();
        // No read starts here, so none is rejected into `ready`.
        let (no_reads, ready) = (&[], &mut self.ready);
        state.release_and_start(queue, &mut self.returned, no_reads, &self.engine_reads, ready);
        state.close_queue(queue);
    }
}

/// Completed read of a [`Batch`] whose bytes were copied to the [caller's
/// buffer](Batch::wait_into).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutRead {
    /// Ticket given to [`Batch::read`].
    pub ticket: u64,
    /// Number of bytes, less than requested only at the end of the file; or the error.
    pub bytes: Result<usize, ReadError>,
}

/// Completed read of a [`Batch`] with its bytes, valid until the next use of the batch.
pub struct BatchRead<'a> {
    /// Owner of the engine, in whose frames the bytes may lie.
    engine: &'a LazyEngine,
    /// Result, with the frames or the copy of its bytes.
    completed: &'a CompletedRead,
}

impl BatchRead<'_> {
    /// Ticket given to [`Batch::read`].
    pub fn ticket(&self) -> u64 {
        self.completed.ticket
    }

    /// Number of bytes, less than requested only at the end of the file.
    ///
    /// # Errors
    /// The read failed, or this is a child made by `fork` after the batch was created.
    pub fn bytes(&self) -> Result<u64, ReadError> {
        if !self.engine.is_of_this_process() {
            return Err(ReadError::Forked { why: Forked::UnderWay });
        }
        self.completed
            .result
            .expect("a completed read has a result")
            .map_err(ReadError::from_machine)
    }

    /// The bytes in order, as one or more slices of any length. They lie in place in the path's
    /// cache, or in one copy.
    ///
    /// # Errors
    /// As [`bytes`](BatchRead::bytes).
    pub fn slices(&self) -> Result<impl Iterator<Item = &[u8]>, ReadError> {
        self.bytes()?;
        // A copy needs no engine, which may not exist.
        let copy = self.completed.detached.as_deref();
        let engine = self.engine.existing_engine().filter(|_| copy.is_none());
        let cached = engine.map(|engine| slices(&engine.frame_cache, self.completed));
        Ok(copy.into_iter().chain(cached.into_iter().flatten()))
    }

    /// Copies the bytes to the start of `buffer` and returns their number.
    ///
    /// # Errors
    /// As [`bytes`](BatchRead::bytes).
    ///
    /// # Panics
    /// The buffer is too small.
    pub fn copy_to(&self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        let mut bytes_done = 0;
        for part in self.slices()? {
            copy_out(part, &mut buffer[bytes_done..bytes_done + part.len()]);
            bytes_done += part.len();
        }
        Ok(bytes_done)
    }
}
