//! The calls in flight of a storage: its READs with the memory of their data, and *questions*,
//! which are all other calls.
//!
//! The memory of a request is written to only while a READ for it is in flight, and is not read
//! before the request is completed. Bytes of a reply that broke off are overwritten by the repeated
//! READ, or belong to a failed request.

use readpath_core::request::{DeviceError, Outcome, RequestId};

use super::call_results::CallId;
use super::call_results::{CallResults, Caller};
use super::procedures::{self, DataHead, FileHandle};
use super::rpc::CallError;
use super::status::Status;
use super::xdr::Garbled;

/// Maximum number of memory pieces for one receive. The limit of readv(2) is 1,024, and the link
/// adds a piece of its own.
const PIECES_MAX: usize = 1_000;

/// A request of the storage's user in flight. It may need several READs, one after the other.
pub(super) struct NfsRead {
    /// The machine's id of the request.
    pub(super) id: RequestId,
    /// Index of the storage's file.
    pub(super) file_index: usize,
    /// Offset of the request's first byte in the file.
    pub(super) offset: u64,
    /// Number of bytes of the request.
    pub(super) bytes: u64,
    /// Number of bytes already in memory.
    pub(super) bytes_done: u64,
    /// Number of bytes that the READ in flight requests.
    pub(super) bytes_requested: u32,
    /// Memory of the whole request, in file order.
    pub(super) memory: Vec<libc::iovec>,
}

// SAFETY: the memory pieces stay valid and unused by other code until the request is completed or
// the storage is dropped (the contract of `Storage::submit`), on any thread.
unsafe impl Send for NfsRead {}

/// Receives the results of a call other than a READ.
pub(super) type ResultsFn = Box<dyn FnMut(Result<&[u8], CallError>) -> Result<(), Garbled> + Send>;

/// Purpose of a call in flight.
pub(super) enum CallPurpose {
    /// READ for this request.
    Read(NfsRead),
    /// Question, with the receiver of its results.
    Question(ResultsFn),
}

/// Calls in flight, and results of ended ones.
pub(super) struct CallsInFlight {
    /// Purpose of each call in flight, by its number; `None` for a free number.
    pub(super) purposes: Vec<Option<CallPurpose>>,
    /// Handles of the storage's files by their indices; `None` for a free index.
    pub(super) files: Vec<Option<FileHandle>>,
    /// Requests that have ended, with their outcomes. The storage completes them.
    pub(super) ended: Vec<(NfsRead, Outcome)>,
    /// Requests of which bytes are still missing. The storage makes their next READ.
    pub(super) incomplete: Vec<NfsRead>,
}

impl CallsInFlight {
    /// Returns the request whose READ is this call, or `None` if the call is a question or has
    /// ended.
    fn read_of_call(&self, call: CallId) -> Option<&NfsRead> {
        match &self.purposes[call.0 as usize] {
            Some(CallPurpose::Read(nfs_read)) => Some(nfs_read),
            _ => None,
        }
    }

    /// Ends a READ with its reply or error. The inner error of `reply` is the server's status, and
    /// the outer one a call without results. Moves its request to `ended`, or to `incomplete` if
    /// bytes are missing.
    fn on_read_end(&mut self, call: CallId, reply: Result<Result<DataHead, Status>, CallError>) {
        let purpose = self.purposes[call.0 as usize].take();
        let Some(CallPurpose::Read(mut nfs_read)) = purpose else {
            unreachable!("the caller has matched a READ")
        };
        let ended = match reply {
            Ok(Ok(head)) => nfs_read.advance(head),
            Ok(Err(status)) => Some(Outcome::Failed(status.device_error())),
            Err(error) => Some(Outcome::Failed(device_error(error))),
        };
        match ended {
            Some(outcome) => self.ended.push((nfs_read, outcome)),
            None => self.incomplete.push(nfs_read),
        }
    }
}

impl Caller for CallsInFlight {
    /// Passes the results to the question, or ends the READ, whose data is copied if it is not in
    /// place. Fails if the results cannot be decoded: the call then stays in flight, to be sent
    /// again.
    fn on_call_end(
        &mut self,
        call: CallId,
        results: Result<CallResults<'_>, CallError>,
    ) -> Result<(), Garbled> {
        let purpose = self.purposes[call.0 as usize].as_mut();
        // `on_read_end` removes the purpose of a READ. A question's is removed at the end.
        match (purpose.expect("a call that ends is in flight"), results) {
            (CallPurpose::Question(on_results), Ok(CallResults::Whole(results))) => {
                on_results(Ok(results))?
            }
            // Does not occur: the client receives only the data of READs in place.
            (CallPurpose::Question(_), Ok(CallResults::DataInPlace(_))) => return Err(Garbled),
            (CallPurpose::Question(on_results), Err(error)) => on_results(Err(error))?,
            (CallPurpose::Read(_), Ok(CallResults::DataInPlace(head))) => {
                self.on_read_end(call, Ok(Ok(head)));
                return Ok(());
            }
            (CallPurpose::Read(nfs_read), Ok(CallResults::Whole(results))) => {
                let reply = procedures::decode_read(results, nfs_read.bytes_requested)?;
                let reply = reply.map(|(head, data)| {
                    let data_offset = 0;
                    nfs_read.copy_data(data_offset, data);
                    head
                });
                self.on_read_end(call, Ok(reply));
                return Ok(());
            }
            (CallPurpose::Read(_), Err(error)) => {
                self.on_read_end(call, Err(error));
                return Ok(());
            }
        }
        self.purposes[call.0 as usize] = None;
        Ok(())
    }

    /// Copies received data to the memory of the READ's request. No effect for an ended call.
    fn copy_data(&mut self, call: CallId, data_offset: usize, data: &[u8]) {
        if let Some(nfs_read) = self.read_of_call(call) {
            nfs_read.copy_data(data_offset, data);
        }
    }

    /// Adds the memory of the READ's request for the next data, in at most [`PIECES_MAX`] pieces.
    /// Adds none for an ended call.
    fn data_memory(
        &self,
        call: CallId,
        data_offset: usize,
        bytes: usize,
        pieces: &mut Vec<libc::iovec>,
    ) {
        if let Some(nfs_read) = self.read_of_call(call) {
            pieces.extend(nfs_read.unread_memory(data_offset, bytes).take(PIECES_MAX));
        }
    }
}

impl NfsRead {
    /// Creates a spare request, without memory. The next request that uses it sets all fields.
    pub(super) fn empty() -> NfsRead {
        NfsRead {
            id: RequestId(0),
            file_index: 0,
            offset: 0,
            bytes: 0,
            bytes_done: 0,
            bytes_requested: 0,
            memory: Vec::new(),
        }
    }

    /// Accounts for a reply's data, which is already in memory and has at most `bytes_requested`
    /// bytes. Returns the outcome of the request, or `None` if another READ is needed. A reply
    /// without data counts as the end of the file, so that READs are not repeated without end.
    fn advance(&mut self, head: DataHead) -> Option<Outcome> {
        self.bytes_done += u64::from(head.bytes);
        if self.bytes_done == self.bytes {
            Some(Outcome::Done)
        } else if head.is_at_end || head.bytes == 0 {
            Some(Outcome::Short { bytes: self.bytes_done })
        } else {
            None
        }
    }

    /// Returns the memory for `bytes` bytes of the next reply's data, from byte `data_offset` of
    /// that data on. The data follows the `bytes_done` bytes of earlier replies.
    fn unread_memory(&self, data_offset: usize, bytes: usize) -> impl Iterator<Item = libc::iovec> {
        let (mut bytes_to_skip, mut bytes_left) = (self.bytes_done as usize + data_offset, bytes);
        self.memory.iter().filter_map(move |piece| {
            let skipped_bytes = bytes_to_skip.min(piece.iov_len);
            let part_bytes = bytes_left.min(piece.iov_len - skipped_bytes);
            bytes_to_skip -= skipped_bytes;
            bytes_left -= part_bytes;
            let iov_base = piece.iov_base.wrapping_byte_add(skipped_bytes);
            (part_bytes > 0).then_some(libc::iovec { iov_base, iov_len: part_bytes })
        })
    }

    /// Copies received data to the request's memory. The data begins at byte `data_offset` of the
    /// next reply's data.
    fn copy_data(&self, data_offset: usize, data: &[u8]) {
        let mut uncopied = data;
        for piece in self.unread_memory(data_offset, data.len()) {
            let (part, rest) = uncopied.split_at(piece.iov_len);
            // SAFETY: the piece lies within the request's memory, which is valid and unused by
            // other code until the request is completed (the contract of `Storage::submit`). The
            // receive buffer does not overlap it.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), piece.iov_base.cast(), part.len());
            }
            uncopied = rest;
        }
        assert!(uncopied.is_empty(), "the data fits the memory of the request");
    }
}

/// Error that a reader receives for a failed call.
fn device_error(error: CallError) -> DeviceError {
    match error {
        CallError::TimedOut => DeviceError::TimedOut,
        CallError::Garbled => DeviceError::Garbled,
        CallError::Denied { .. } => DeviceError::Refused,
        CallError::Unavailable => DeviceError::Gone,
        // A READ needs no eventfd: `NoEventFd` does not occur here.
        CallError::ServerFault | CallError::NoEventFd => DeviceError::Medium,
    }
}
