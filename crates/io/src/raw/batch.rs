//! Batches of raw transfers: many at once from one thread, bypassing every cache, each with memory
//! of its own.

use std::marker::PhantomData;
use std::time::Duration;

use readpath_core::request::{Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};
use slab::Slab;

use super::batch_writes::BatchWriteGuard;
use super::cache_invalidator::OverwriteGuard;
use super::error::write_error;
use super::{RawError, RawFault, RawFile, RawMemory};
use crate::backend::{Backend, BackendError};
use crate::os::clock::Clock;
use crate::os::process::ProcessOwned;
use crate::read_error::Forked;
use crate::transfers::{EndedTransfer, TransferFile, TransferStart, Transfers};

/// Transfers of a [`RawFile`], in flight together: start many, wait for any.
///
/// A transfer owns its memory until it has ended, and then returns it. Offsets and lengths are
/// multiples of the file's [alignment](RawFile::alignment_bytes); no bytes are copied. Dropping a
/// batch cancels transfers in flight and waits for the rest. A forgotten batch (`std::mem::forget`)
/// leaves them in flight: they end by themselves, and their memory and the open file leak. In a
/// child made by `fork` every use returns an error.
///
/// A write is in flight from its start until the batch returns it, also if the batch is forgotten.
/// Meanwhile calls of the same `RawFile` that write a part of its blocks are refused
/// ([`BatchInFlight`](RawFault::BatchInFlight)). In the reverse order the start of a batch's write
/// waits for the call. It also waits while a call truncates the file, if it ends behind the call's
/// bytes.
///
/// The batch stays on the thread that created it: the kernel completes its transfers when that
/// thread enters the kernel.
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
    /// File whose path and options errors name.
    file: &'f RawFile,
    /// The file as `Transfers` needs it, with an unlimited length, because it may grow.
    file_to_transfer: TransferFile,
    /// Transfers in flight, which only the creating process may use.
    transfers: ProcessOwned<Transfers<TransferContext<'f>>>,
    /// Request ids in flight.
    request_ids: Slab<()>,
    /// Clock of the deadlines.
    clock: Clock,
    /// Makes the type `!Send`.
    _not_send: PhantomData<*mut ()>,
}

/// State kept for a transfer in flight.
struct TransferContext<'f> {
    /// Memory of the caller, returned with the result.
    memory: RawMemory,
    /// First byte in the file, for errors.
    offset: u64,
    /// End of its bytes in the file, for errors.
    end: u64,
    /// Number of the caller, returned with the result.
    ticket: u64,
    /// Guard of the overwritten range in the cache of a read path; dropped with the transfer.
    _overwriting: Option<OverwriteGuard<'f>>,
    /// A write's range, which calls respect until the transfer is returned.
    _write: Option<BatchWriteGuard<'f>>,
}

/// Completed transfer of a [`RawBatch`].
#[derive(Debug)]
pub struct RawMoved {
    /// Ticket given at the start.
    pub ticket: u64,
    /// Memory given at the start.
    pub memory: RawMemory,
    /// Number of bytes moved, less than requested only at the end of the file; or the error.
    pub result: Result<usize, RawError>,
}

impl RawFile {
    /// Creates an empty batch for up to `depth` transfers in flight. A depth of 0 counts as 1.
    ///
    /// # Errors
    /// The kernel provides no backend of that depth, or `depth` exceeds 16,384.
    pub fn batch(&self, depth: u32) -> Result<RawBatch<'_>, RawError> {
        // The backends differ in their treatment of 0.
        let depth = depth.max(1);
        let raw_error = |error: BackendError| self.error(RawFault::Backend(error));
        let (backend, _in_use) = self.channel_parameters.backend.build(depth).map_err(raw_error)?;
        Ok(self.batch_over(backend, depth))
    }

    /// Creates an empty batch over `backend`, which takes `depth` transfers.
    pub(super) fn batch_over(&self, backend: Box<dyn Backend>, depth: u32) -> RawBatch<'_> {
        let clock = Clock::start();
        let transfers = ProcessOwned::new(Transfers::with_backend(backend, depth, clock));
        let mut file_to_transfer = TransferFile::from_target(&self.channel_parameters.target);
        // The file may grow, so no known length is its end. A short read is continued until an
        // answer of 0 bytes. The alternative, fstat(2), would be a call for each read.
        file_to_transfer.set_bytes(u64::MAX);
        let request_ids = Slab::new();
        RawBatch {
            file: self,
            file_to_transfer,
            transfers,
            request_ids,
            clock,
            _not_send: PhantomData,
        }
    }
}

impl<'f> RawBatch<'f> {
    /// Number of further transfers that can start now; 0 in a child made by `fork`.
    pub fn room(&self) -> u32 {
        self.transfers.get().map_or(0, Transfers::free_slot_count)
    }

    /// Starts to read `bytes` bytes at `offset` into the start of `memory`. `ticket` is returned
    /// with them.
    ///
    /// # Errors
    /// The offset or length is misaligned, or the range exceeds the largest offset. The memory is
    /// dropped.
    ///
    /// # Panics
    /// There is no [room](RawBatch::room), or the memory is too small.
    pub fn read(
        &mut self,
        memory: RawMemory,
        bytes: usize,
        offset: u64,
        ticket: u64,
    ) -> Result<(), RawError> {
        self.start(Op::Read, memory, bytes, offset, ticket)
    }

    /// Starts to write the first `bytes` bytes of `memory` at `offset`. `ticket` is returned with
    /// them.
    ///
    /// # Errors
    /// As [`read`](RawBatch::read), or the file was not opened for writing.
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

    /// Checks range and alignment and starts a transfer of the first `bytes` bytes of `memory`. A
    /// write invalidates its range in the read path's cache. It waits for a call that writes a part
    /// of its blocks, or that truncates the file there. The next wait submits the transfer. After
    /// an error `memory` is dropped.
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
        let is_misaligned = |value: &u64| !value.is_multiple_of(u64::from(alignment_bytes));
        if let Some(value) = [offset, bytes as u64].into_iter().find(is_misaligned) {
            return Err(self.file.error(RawFault::Misaligned { value, alignment_bytes }));
        }
        let end = offset + bytes as u64;
        let range = PageRange { first: offset / PAGE_BYTES, end: end.div_ceil(PAGE_BYTES) };
        let cache_invalidator = self.file.cache_invalidator.as_ref().filter(|_| op == Op::Write);
        // The guard lives in the context, and invalidates the range again at the transfer's end.
        let overwriting =
            cache_invalidator.map(|cache_invalidator| cache_invalidator.begin_overwrite(range));
        let transfers = own_transfers(self.file, &mut self.transfers)?;
        let process_channel = self.file.process_channel()?;
        process_channel.count_batch_transfer(op, bytes as u64);
        let batch_writes = &process_channel.batch_writes;
        let write = (op == Op::Write).then(|| batch_writes.begin_batch_write(offset..end));
        let context = TransferContext {
            memory,
            offset,
            end,
            ticket,
            _overwriting: overwriting,
            _write: write,
        };
        let id = RequestId(self.request_ids.insert(()) as u32);
        let start = TransferStart {
            id,
            file: self.file_to_transfer.clone(),
            op,
            offset,
            bytes: bytes as u64,
        };
        // SAFETY: the transfer owns the memory, which does not move, until it has ended; there is
        // no other reference. A forgotten batch leaks both.
        unsafe {
            transfers.start(start, context, |context, segments| {
                let iov_base = context.memory.as_ptr().cast_mut().cast();
                segments.push(libc::iovec { iov_base, iov_len: bytes });
            });
        }
        Ok(())
    }

    /// Waits for any transfer to end and returns it; `None` if none is in flight.
    ///
    /// # Errors
    /// The kernel rejected the submission as a whole.
    pub fn wait(&mut self) -> Result<Option<RawMoved>, RawError> {
        let no_deadline = None;
        self.wait_until(no_deadline)
    }

    /// Like [`wait`](RawBatch::wait), but waits at most for `timeout` and then returns `None`.
    ///
    /// # Errors
    /// As [`wait`](RawBatch::wait).
    pub fn wait_for(&mut self, timeout: Duration) -> Result<Option<RawMoved>, RawError> {
        // Limited to half of the largest `Time`, because of the sum below.
        let timeout = Time(timeout.as_nanos().min(u128::from(u64::MAX / 2)) as u64);
        self.wait_until(Some(self.clock.now() + timeout))
    }

    /// Waits for a transfer until `deadline`, and checks for answers at least once, also after the
    /// deadline. `None` is no deadline. Returns `None` if no transfer has ended.
    fn wait_until(&mut self, deadline: Option<Time>) -> Result<Option<RawMoved>, RawError> {
        let transfers = own_transfers(self.file, &mut self.transfers)?;
        let mut has_checked = false;
        loop {
            if let Some(ended) = transfers.next_ended() {
                self.request_ids.remove(ended.completion.id.0 as usize);
                return Ok(Some(to_raw_moved(self.file, ended)));
            }
            let is_time_up = deadline.is_some_and(|deadline| self.clock.now() >= deadline);
            if transfers.in_flight() == 0 || (has_checked && is_time_up) {
                return Ok(None);
            }
            has_checked = true;
            let waited = transfers.wait(deadline);
            waited.map_err(|error| self.file.error(RawFault::Backend(error)))?;
        }
    }
}

/// Returns the transfers if this process created the batch, and an error in a child made by `fork`.
fn own_transfers<'t, 'f>(
    file: &RawFile,
    transfers: &'t mut ProcessOwned<Transfers<TransferContext<'f>>>,
) -> Result<&'t mut Transfers<TransferContext<'f>>, RawError> {
    transfers.get_mut().ok_or_else(|| file.error(RawFault::Forked(Forked::UnderWay)))
}

/// Converts an ended transfer to the public result: its ticket, its memory, and the number of bytes
/// or the error. The guards of a write are dropped here: its range in the cache is invalidated
/// again, and calls may write its blocks.
fn to_raw_moved(file: &RawFile, ended: EndedTransfer<TransferContext<'_>>) -> RawMoved {
    let EndedTransfer { completion, op, bytes, context } = ended;
    let TransferContext { memory, offset, end, ticket, .. } = context;
    let result = match completion.outcome {
        Outcome::Done | Outcome::Short { .. } => Ok(bytes as usize),
        Outcome::Failed(error) => {
            // `write_error` recognizes an exceeded limit on file sizes.
            let error = match op {
                Op::Read => error,
                Op::Write => write_error(error, end, &file.channel_parameters.target),
            };
            // A transfer counts as a whole: bytes moved before the failure are not reported.
            let fault = RawFault::Device { op, offset, bytes_done: 0, error };
            Err(file.error(fault))
        }
    };
    RawMoved { ticket, memory, result }
}
