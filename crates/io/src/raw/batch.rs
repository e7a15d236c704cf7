//! Many transfers at once from one thread, past every cache, each between the device and memory
//! that goes along with it.

use std::marker::PhantomData;
use std::time::Duration;

use readpath_core::request::{Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};
use slab::Slab;

use super::beside::Overwriting;
use super::{RawError, RawFault, RawFile, RawMemory};
use crate::backend::BackendError;
use crate::clock::Clock;
use crate::process::Own;
use crate::read_error::Forked;
use crate::transfers::{EndedTransfer, TransferFile, TransferStart, Transfers};

/// Transfers of a [`RawFile`] that are under way together: start many, wait for any.
///
/// The memory of a transfer goes with it and comes back when it has ended, so that nobody looks at
/// it meanwhile. Offsets and lengths are whole multiples of the file's
/// [alignment](RawFile::alignment_bytes); nothing is copied. Dropped, a batch withdraws what is under
/// way, and waits for the rest. Forgotten (`std::mem::forget`), it leaves the transfers under way: they
/// end by themselves, and their memory and the open file are never given back. In a child made by
/// `fork` it fails by name.
///
/// It belongs to the thread that made it: the kernel ends its transfers when that thread comes for them.
///
/// ```
/// use readpath::raw::RawMemory;
///
/// let file = readpath::RawFile::open(std::env::current_exe()?)?;
/// let mut batch = file.batch(4)?;
/// for ticket in 0..4 {
///     batch.read(RawMemory::new(4096)?, 4096, ticket * 8192, ticket)?;
/// }
/// let mut bytes = 0;
/// while let Some(moved) = batch.wait()? {
///     bytes += moved.result?;
/// }
/// assert_eq!(bytes, 4 * 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RawBatch<'f> {
    file: &'f RawFile,
    place: TransferFile,
    transfers: Own<Transfers<Kept<'f>>>,
    /// The names of what is under way.
    names: Slab<()>,
    clock: Clock,
    of_one_thread: PhantomData<*mut ()>,
}

/// What goes along with a transfer.
struct Kept<'f> {
    memory: RawMemory,
    offset: u64,
    ticket: u64,
    /// Ends, for a read path that has the file open, with the write.
    _overwriting: Option<Overwriting<'f>>,
}

/// A transfer of a [`RawBatch`] that has ended.
#[derive(Debug)]
pub struct RawMoved {
    /// The name that was given at the start.
    pub ticket: u64,
    /// The memory that was given at the start.
    pub memory: RawMemory,
    /// How many bytes were moved: fewer than asked only at the end of the file.
    pub result: Result<usize, RawError>,
}

impl RawFile {
    /// A batch with nothing in it, for `depth` transfers at once.
    ///
    /// # Errors
    /// The kernel gives nothing to carry so many.
    pub fn batch(&self, depth: u32) -> Result<RawBatch<'_>, RawError> {
        let refused = |error: BackendError| self.error(RawFault::Backend(error));
        let (backend, _) = self.spare.backend.build(depth).map_err(refused)?;
        let clock = Clock::start();
        let transfers = Own::new(Transfers::over(backend, depth, clock));
        let place = TransferFile::of(&self.spare.target);
        let names = Slab::new();
        Ok(RawBatch { file: self, place, transfers, names, clock, of_one_thread: PhantomData })
    }
}

impl<'f> RawBatch<'f> {
    /// How many more transfers can be started now; none in a child made by `fork`.
    pub fn room(&self) -> u32 {
        self.transfers.get().map_or(0, Transfers::room)
    }

    /// Has the first `bytes` bytes of `memory` be read from byte `offset` on; `ticket` comes
    /// back with them.
    ///
    /// # Errors
    /// The place is misaligned, or reaches past the largest offset; the memory is given up.
    ///
    /// # Panics
    /// There is no [room](RawBatch::room), or the memory is smaller than that.
    pub fn read(
        &mut self,
        memory: RawMemory,
        bytes: usize,
        offset: u64,
        ticket: u64,
    ) -> Result<(), RawError> {
        self.start(Op::Read, memory, bytes, offset, ticket)
    }

    /// Has the first `bytes` bytes of `memory` be written from byte `offset` on; `ticket`
    /// comes back with them.
    ///
    /// # Errors
    /// As [`read`](RawBatch::read); the file was not opened for writing.
    ///
    /// # Panics
    /// As [`read`](RawBatch::read).
    pub fn write(
        &mut self,
        memory: RawMemory,
        bytes: usize,
        offset: u64,
        ticket: u64,
    ) -> Result<(), RawError> {
        if !self.file.is_writable {
            return Err(self.file.error(RawFault::ReadOnly));
        }
        self.start(Op::Write, memory, bytes, offset, ticket)
    }

    fn start(
        &mut self,
        op: Op,
        memory: RawMemory,
        bytes: usize,
        offset: u64,
        ticket: u64,
    ) -> Result<(), RawError> {
        assert!(bytes <= memory.len(), "the memory of a transfer is as large as the transfer");
        self.file.check_range(bytes, offset)?;
        let alignment_bytes = self.file.alignment_bytes;
        let is_odd = |value: &u64| !value.is_multiple_of(u64::from(alignment_bytes));
        if let Some(value) = [offset, bytes as u64].into_iter().find(is_odd) {
            return Err(self.file.error(RawFault::Misaligned { value, alignment_bytes }));
        }
        let range = PageRange {
            first: offset / PAGE_BYTES,
            end: (offset + bytes as u64).div_ceil(PAGE_BYTES),
        };
        let beside = self.file.beside.as_ref().filter(|_| op == Op::Write);
        let overwriting = beside.map(|beside| beside.overwrite(range));
        let kept = Kept { memory, offset, ticket, _overwriting: overwriting };
        let transfers = own(self.file, &mut self.transfers)?;
        let id = RequestId(self.names.insert(()) as u32);
        let start =
            TransferStart { id, place: self.place.clone(), op, offset, bytes: bytes as u64 };
        // SAFETY: the transfer keeps the memory, which doesn't move, until it has ended; nobody
        // else has it until then. A batch that is forgotten keeps both for good.
        unsafe {
            transfers.start(start, kept, |kept, segments| {
                let iov_base = kept.memory.as_ptr().cast_mut().cast();
                segments.push(libc::iovec { iov_base, iov_len: bytes });
            });
        }
        Ok(())
    }

    /// Waits until any of the transfers has ended, and gives it; `None` when none is under way.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such.
    pub fn wait(&mut self) -> Result<Option<RawMoved>, RawError> {
        self.wait_until(None)
    }

    /// As [`wait`](RawBatch::wait), for so long at most: `None` also when the time is up.
    ///
    /// # Errors
    /// As [`wait`](RawBatch::wait).
    pub fn wait_for(&mut self, most: Duration) -> Result<Option<RawMoved>, RawError> {
        let span = Time(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX / 2));
        self.wait_until(Some(self.clock.now() + span))
    }

    fn wait_until(&mut self, deadline: Option<Time>) -> Result<Option<RawMoved>, RawError> {
        let transfers = own(self.file, &mut self.transfers)?;
        let mut has_looked = false;
        loop {
            if let Some(ended) = transfers.next_ended() {
                self.names.remove(ended.completion.id.0 as usize);
                return Ok(Some(moved(self.file, ended)));
            }
            let is_time_up = deadline.is_some_and(|deadline| self.clock.now() >= deadline);
            if transfers.in_flight() == 0 || (has_looked && is_time_up) {
                return Ok(None);
            }
            has_looked = true;
            let waited = transfers.wait(deadline);
            waited.map_err(|error| self.file.error(RawFault::Backend(error)))?;
        }
    }
}

/// The transfers of this process.
fn own<'t, 'f>(
    file: &RawFile,
    transfers: &'t mut Own<Transfers<Kept<'f>>>,
) -> Result<&'t mut Transfers<Kept<'f>>, RawError> {
    transfers.get_mut().ok_or_else(|| file.error(RawFault::Forked(Forked::UnderWay)))
}

fn moved(file: &RawFile, ended: EndedTransfer<Kept<'_>>) -> RawMoved {
    let EndedTransfer { completion, op, bytes, kept } = ended;
    let Kept { memory, offset, ticket, .. } = kept;
    let result = match completion.outcome {
        Outcome::Done | Outcome::Short { .. } => Ok(bytes as usize),
        Outcome::Failed(error) => {
            let fault = RawFault::Device { op, offset, bytes_done: 0, error };
            Err(file.error(fault))
        }
    };
    RawMoved { ticket, memory, result }
}
