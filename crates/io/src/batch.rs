//! Many reads at once from one thread.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::copied::Copied;
use crate::engine::batches::{SharedRead, UnstartedRead};
use crate::engine::copy::copy_out;
use crate::engine::copy::slices;
use crate::engine::in_flight::{CompletedRead, QueueId};
use crate::engine::locked::Locked;
use crate::engine::{LazyEngine, READ_BYTES_MAX, Waited};
use crate::file::{File, read_absent};
use crate::kernel_pages::begun::Came;
use crate::path::ReadPath;
use crate::read_error::{Forked, ReadError};

mod begun;

use begun::Begun;

/// Reads that are given one after the other start together, so many at once: a group
/// spares locks, looks at the clock and system calls; while it is put together the
/// device has as many fewer, of the 32 or more that make it busy.
const GROUP: usize = 8;

/// Most bytes of a read that is copied from a copy: to ask first whether it is there costs a system
/// call, 0.3 us, as much as to copy 16 KiB within the processor's caches.
const PUT_COPIED_MAX: u64 = 16 << 10;

/// Reads that are under way together, of any files of one path: start many, wait
/// for any.
///
/// Whoever waits drives the storage: one thread keeps any number of reads in
/// flight without a wake-up between threads. Reads start in groups of 8 as they are
/// given; the last ones with [`start`](Batch::start), or when [`wait`](Batch::wait)
/// finds nothing done. Dropped, a batch gives up what is under way.
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
    engine: Arc<LazyEngine>,
    /// Its reads of the machine, once there were some.
    queue: Option<QueueId>,
    /// Begun by the kernel, which keeps the pages; taken as they come.
    kept: VecDeque<Begun>,
    /// Not started yet.
    asked: Vec<UnstartedRead>,
    /// Done, and to be lent.
    ready: VecDeque<SharedRead>,
    /// What the caller looks at.
    lent: Option<SharedRead>,
    /// What he has looked at, to be given back.
    returned: Vec<SharedRead>,
    /// Memory of copies that he has looked at.
    spare: Vec<Copied>,
}

impl ReadPath {
    /// A batch with nothing in it.
    pub fn batch(&self) -> Batch {
        // Where there is none in this child, each use of the batch says so.
        let engine = self.engine().here().unwrap_or_else(|_| Arc::clone(self.engine()));
        Batch {
            engine,
            queue: None,
            kept: VecDeque::new(),
            asked: Vec::new(),
            ready: VecDeque::new(),
            lent: None,
            returned: Vec::new(),
            spare: Vec::new(),
        }
    }
}

impl Batch {
    /// Has `bytes` bytes of `file` at `offset` be read; `ticket` comes back with
    /// them. The handle may be dropped meanwhile. What the path refuses once it
    /// starts (too many reads are under way) is told by [`BatchRead`].
    ///
    /// # Errors
    /// It asks for more than there is memory for ([`ReadError::TooLarge`]); or the batch was
    /// made before a `fork`, and this is the child ([`ReadError::Forked`]).
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
        let handle = file.handle().here()?;
        assert!(Arc::ptr_eq(&handle.engine, &self.engine), "a batch reads files of its own path");
        let engine = self.engine.built();
        let bytes_max = engine.map_or(READ_BYTES_MAX, |engine| engine.read_bytes_max);
        if bytes > bytes_max {
            return Err(ReadError::TooLarge { bytes, bytes_max });
        }
        self.take_back();
        let within = bytes.min(handle.file.bytes.saturating_sub(offset));
        if within > 0 {
            if let Some(was_held) = handle.begin_in_kernel(offset, within) {
                // Copied when it has come, into memory that the last one was lent in.
                let asked = UnstartedRead { handle, offset, bytes: within, ticket };
                self.kept.push_back(Begun { asked, was_held, wish: None });
                return Ok(());
            }
            if let Some(copy) = handle.copied_held(offset, within, || self.spare.pop()) {
                self.ready.push_back(SharedRead::copied(ticket, copy));
                return Ok(());
            }
        }
        self.engine.ready()?;
        self.asked.push(UnstartedRead { handle, offset, bytes, ticket });
        if self.asked.len() == GROUP {
            self.start();
        }
        Ok(())
    }

    /// Hands over what was not started yet.
    pub fn start(&mut self) {
        if !self.engine.is_ours() || self.asked.is_empty() && self.returned.is_empty() {
            return;
        }
        let engine = Arc::clone(&self.engine);
        drop(self.turn(&engine));
        self.asked.clear();
    }

    /// Gives back what the caller has looked at, and starts what he has asked for; the engine, which is there by now, is the batch's.
    fn turn<'e>(&mut self, engine: &'e LazyEngine) -> (Locked<'e>, QueueId) {
        self.asked.iter().for_each(|asked| _ = asked.handle.in_machine());
        let mut state = engine.lock();
        let queue = *self.queue.get_or_insert_with(|| state.in_flight.open_queue(false));
        state.turn(queue, &mut self.returned, &self.asked, &mut self.ready);
        (state, queue)
    }

    /// How many reads are under way, or done and not yet waited for.
    pub fn len(&self) -> usize {
        let queue_len = match (self.engine.built(), self.queue) {
            (Some(engine), Some(queue)) => engine.lock().in_flight.queue_len(queue),
            _ => 0,
        };
        self.kept.len() + self.asked.len() + queue_len + self.ready.len()
    }

    /// Whether there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until any of the reads is done, and lends its bytes; `None` when there
    /// is none.
    ///
    /// They are lent until the batch is used again. Meanwhile the thread may read
    /// what it likes from the same path: all batches together keep at most a
    /// quarter of the memory from others, and what is more is lent as a copy.
    ///
    /// # Errors
    /// The storage carries nothing any more; or the batch was made before a `fork`, and this is
    /// the child. (That one read failed is told by
    /// [`BatchRead`].)
    pub fn wait(&mut self) -> Result<Option<BatchRead<'_>>, ReadError> {
        self.check_process()?;
        self.take_back();
        if self.ready.is_empty() {
            self.wait_for_kept()?;
        }
        if self.ready.is_empty() && (self.queue.is_some() || !self.asked.is_empty()) {
            self.wait_for_some()?;
        }
        self.lent = self.ready.pop_front();
        let engine = &*self.engine;
        Ok(self.lent.as_ref().map(|SharedRead { completed, .. }| BatchRead { engine, completed }))
    }

    /// As [`wait`](Batch::wait), for who has a place for each read: its bytes are put to the start of what `place` gives for its
    /// ticket and their number. What the kernel's cache has is copied there at once, where `wait` copies it to lend it.
    ///
    /// ```
    /// # let name = std::env::temp_dir().join(format!("readpath-doc-wait-into-{}", std::process::id()));
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
    /// The place is too small.
    pub fn wait_into<'p>(
        &mut self,
        place: impl FnOnce(u64, usize) -> &'p mut [u8],
    ) -> Result<Option<PutRead>, ReadError> {
        self.check_process()?;
        self.take_back();
        if self.ready.is_empty()
            && let Some((asked, came)) = self.next_begun(PUT_COPIED_MAX)
        {
            let UnstartedRead { handle, offset, bytes, ticket } = asked;
            let bytes = bytes as usize;
            let to = &mut place(ticket, bytes)[..bytes];
            let read = match came {
                Came::Copied(copy) => {
                    to.copy_from_slice(&copy);
                    self.spare.push(copy);
                    Ok(())
                }
                Came::There | Came::Past => read_absent(&handle, offset, to),
            };
            return Ok(Some(PutRead { ticket, bytes: read.map(|()| bytes) }));
        }
        let put = |read: BatchRead<'_>| {
            let bytes =
                read.bytes().and_then(|bytes| read.copy_to(place(read.ticket(), bytes as usize)));
            PutRead { ticket: read.ticket(), bytes }
        };
        Ok(self.wait()?.map(put))
    }

    /// Takes back what the caller has looked at.
    fn take_back(&mut self) {
        let Some(lent) = self.lent.take() else { return };
        match lent.into_copy() {
            Ok(copy) => self.spare.push(copy),
            Err(lent) => self.returned.push(lent),
        }
    }

    /// # Errors
    /// It was made by another process.
    fn check_process(&self) -> Result<(), ReadError> {
        match self.engine.is_ours() {
            true => Ok(()),
            false => Err(ReadError::Forked { why: Forked::UnderWay }),
        }
    }

    /// Takes the next that comes of the reads that the kernel has begun; one that it can't give is
    /// read past its cache.
    fn wait_for_kept(&mut self) -> Result<(), ReadError> {
        let Some((asked, came)) = self.next_begun(u64::MAX) else { return Ok(()) };
        let UnstartedRead { handle, offset, bytes, ticket } = &asked;
        let copy = match came {
            Came::Copied(copy) => Some(copy),
            Came::There => handle.copied_from_kernel(*offset, *bytes, || self.spare.pop()),
            Came::Past => None,
        };
        match copy {
            Some(copy) => self.ready.push_back(SharedRead::copied(*ticket, copy)),
            None => {
                self.engine.ready()?;
                self.asked.push(asked);
            }
        }
        Ok(())
    }

    /// Waits for the next read to be done, and has all that are done lent; none if
    /// there are none to wait for.
    fn wait_for_some(&mut self) -> Result<(), ReadError> {
        let engine = Arc::clone(&self.engine);
        let (state, queue) = self.turn(&engine);
        let result = if self.ready.is_empty() && state.in_flight.queue_len(queue) > 0 {
            let (mut locked, waited) = engine.wait(state, queue, false);
            match waited {
                Waited::Done(id) => {
                    locked.lend(queue, id, &mut self.ready);
                    Ok(())
                }
                Waited::Failed(error) => Err(ReadError::Storage { error }),
                Waited::HeldUp => unreachable!("who waits for many is patient"),
            }
        } else {
            drop(state);
            Ok(())
        };
        // Without the lock, which the last handle of a file takes when it goes.
        self.asked.clear();
        result
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let (Some(engine), Some(queue)) = (self.engine.built(), self.queue) else { return };
        self.returned.extend(self.lent.take());
        self.returned.extend(self.ready.drain(..));
        let mut state = engine.lock();
        state.turn(queue, &mut self.returned, &[], &mut self.ready);
        state.close_queue(queue);
    }
}

/// A read of a [`Batch`] that is done, and whose bytes are [where they belong](Batch::wait_into).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutRead {
    /// The name that was given at the start.
    pub ticket: u64,
    /// How many bytes there are, fewer than asked only at the end of the file; or why there are none.
    pub bytes: Result<usize, ReadError>,
}

/// A read of a [`Batch`] that is done, with its bytes, until the batch is used again.
pub struct BatchRead<'a> {
    engine: &'a LazyEngine,
    completed: &'a CompletedRead,
}

impl BatchRead<'_> {
    /// The name that was given at the start.
    pub fn ticket(&self) -> u64 {
        self.completed.ticket
    }

    /// How many bytes there are: fewer than asked only at the end of the file.
    ///
    /// # Errors
    /// Why there are none.
    pub fn bytes(&self) -> Result<u64, ReadError> {
        if !self.engine.is_ours() {
            return Err(ReadError::Forked { why: Forked::UnderWay });
        }
        self.completed.result.expect("a read that is done has a result").map_err(ReadError::of)
    }

    /// The bytes, as they lie in the cache: a page or less each.
    ///
    /// # Errors
    /// Why there are none.
    pub fn slices(&self) -> Result<impl Iterator<Item = &[u8]>, ReadError> {
        self.bytes()?;
        // A copy is no affair of the engine, which may not be there.
        let copy = self.completed.copied.as_deref();
        let engine = self.engine.built().filter(|_| copy.is_none());
        let cached = engine.map(|engine| slices(&engine.frame_cache, self.completed));
        Ok(copy.into_iter().chain(cached.into_iter().flatten()))
    }

    /// Copies the bytes to the start of `buffer`; gives how many.
    ///
    /// # Errors
    /// Why there are none.
    ///
    /// # Panics
    /// The buffer is too small.
    pub fn copy_to(&self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        let mut done = 0;
        for part in self.slices()? {
            copy_out(part, &mut buffer[done..done + part.len()]);
            done += part.len();
        }
        Ok(done)
    }
}
