//! The READs in flight, and the memory of their data.
//!
//! The memory of a request is written to only while a READ for it is in flight, and is not read
//! before the request is completed. Bytes of a reply that broke off are overwritten by the repeated
//! READ, or belong to a failed request.

use readpath_core::request::{DeviceError, Outcome, RequestId};
use readpath_core::unit::Time;

use super::call_results::{Caller, Results};
use super::client::CallId;
use super::lookup::RegularFile;
use super::procedures::{self, Attributes, DataHead};
use super::rpc::CallError;
use super::status::Status;
use super::xdr::Garbled;
use crate::clock::Clock;

/// Maximum number of memory pieces for one receive. The limit of readv(2) is 1,024.
const PIECES_MAX: usize = 1_000;

/// A request of the machine in flight.
pub(super) struct NfsRead {
    pub(super) id: RequestId,
    /// Index of the storage's file.
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Number of bytes already in memory.
    pub(super) bytes_done: u64,
    /// Number of bytes that the READ in flight requests.
    pub(super) bytes_asked: u32,
    pub(super) memory: Vec<libc::iovec>,
}

// SAFETY: the memory pieces stay valid and unused by other code until the request is completed or
// the storage is dropped (the contract of `Storage::submit`), on any thread.
unsafe impl Send for NfsRead {}

/// Receives the results of a call other than a READ.
pub(super) type Hear = Box<dyn FnMut(Result<&[u8], CallError>) -> Result<(), Garbled> + Send>;

/// Purpose of a call in flight.
pub(super) enum Use {
    Read(NfsRead),
    Question(Hear),
}

/// A file of the storage with its last attributes and their time.
pub(super) struct Opened {
    pub(super) found: RegularFile,
    pub(super) told_at: Time,
}

/// Calls in flight by their numbers, and results of ended ones.
pub(super) struct Uses {
    pub(super) calls: Vec<Option<Use>>,
    pub(super) files: Vec<Option<Opened>>,
    /// Requests that have ended.
    pub(super) over: Vec<(NfsRead, Outcome)>,
    /// READs whose replies contained only a part of the data.
    pub(super) partial: Vec<NfsRead>,
    pub(super) clock: Clock,
}

impl Uses {
    /// Returns the READ of a call, if it is one.
    fn reading(&self, call: CallId) -> Option<&NfsRead> {
        match &self.calls[call.0 as usize] {
            Some(Use::Read(reading)) => Some(reading),
            _ => None,
        }
    }

    /// Ends a READ: completes its request, or requests the rest.
    fn read_ended(&mut self, call: CallId, told: Result<Result<DataHead, Status>, CallError>) {
        let used = self.calls[call.0 as usize].take();
        let Some(Use::Read(mut reading)) = used else { unreachable!("the caller looked") };
        if let Ok(Ok(DataHead { attributes: Some(fresh), .. })) = told {
            self.told(reading.file, fresh);
        }
        let ended = match told {
            Ok(Ok(head)) => reading.advance(head),
            Ok(Err(status)) => Some(Outcome::Failed(status.device_error())),
            Err(error) => Some(Outcome::Failed(device_error(error))),
        };
        match ended {
            Some(outcome) => self.over.push((reading, outcome)),
            None => self.partial.push(reading),
        }
    }

    /// Updates the attributes of a file.
    pub(super) fn told(&mut self, file: usize, fresh: Attributes) {
        if let Some(opened) = &mut self.files[file] {
            (opened.found.attributes, opened.told_at) = (fresh, self.clock.now());
        }
    }
}

impl Caller for Uses {
    /// Passes the results to the question, or completes the READ.
    fn ended(
        &mut self,
        call: CallId,
        results: Result<Results<'_>, CallError>,
    ) -> Result<(), Garbled> {
        let used = self.calls[call.0 as usize].as_mut();
        match (used.expect("only a call that was made ends"), results) {
            (Use::Question(hear), Ok(Results::Here(results))) => hear(Ok(results))?,
            (Use::Question(_), Ok(Results::Landed(_))) => return Err(Garbled),
            (Use::Question(hear), Err(error)) => hear(Err(error))?,
            (Use::Read(_), Ok(Results::Landed(head))) => {
                self.read_ended(call, Ok(Ok(head)));
                return Ok(());
            }
            (Use::Read(reading), Ok(Results::Here(results))) => {
                let told = procedures::data_told(results, reading.bytes_asked)?;
                let told = told.map(|(head, data)| {
                    reading.fill(0, data);
                    head
                });
                self.read_ended(call, Ok(told));
                return Ok(());
            }
            (Use::Read(_), Err(error)) => {
                self.read_ended(call, Err(error));
                return Ok(());
            }
        }
        self.calls[call.0 as usize] = None;
        Ok(())
    }

    fn take(&mut self, call: CallId, at: usize, data: &[u8]) {
        if let Some(reading) = self.reading(call) {
            reading.fill(at, data);
        }
    }

    fn room(&self, call: CallId, at: usize, bytes: usize, pieces: &mut Vec<libc::iovec>) {
        if let Some(reading) = self.reading(call) {
            pieces.extend(reading.room(at, bytes).take(PIECES_MAX));
        }
    }
}

impl NfsRead {
    pub(super) fn empty() -> NfsRead {
        NfsRead {
            id: RequestId(0),
            file: 0,
            offset: 0,
            bytes: 0,
            bytes_done: 0,
            bytes_asked: 0,
            memory: Vec::new(),
        }
    }

    /// Accounts for a reply's data in memory. Returns the outcome of the request, or `None` if
    /// another READ is needed.
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

    /// Memory for `bytes` bytes from byte `at` of the next reply's data on.
    fn room(&self, at: usize, bytes: usize) -> impl Iterator<Item = libc::iovec> {
        let (mut skip, mut left) = (self.bytes_done as usize + at, bytes);
        self.memory.iter().filter_map(move |piece| {
            let skipped = skip.min(piece.iov_len);
            let bytes = left.min(piece.iov_len - skipped);
            skip -= skipped;
            left -= bytes;
            let iov_base = piece.iov_base.wrapping_byte_add(skipped);
            (bytes > 0).then_some(libc::iovec { iov_base, iov_len: bytes })
        })
    }

    /// Copies received data to its position in the next reply's data.
    fn fill(&self, at: usize, data: &[u8]) {
        let mut left = data;
        for piece in self.room(at, data.len()) {
            let (part, rest) = left.split_at(piece.iov_len);
            // SAFETY: the piece lies within the request's memory, which is valid and unused by
            // other code until the request is completed (the contract of `Storage::submit`). The
            // receive buffer does not overlap it.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), piece.iov_base.cast(), part.len());
            }
            left = rest;
        }
        assert!(left.is_empty(), "more bytes than the request has memory for");
    }
}

/// Error that a reader receives for a failed call.
fn device_error(error: CallError) -> DeviceError {
    match error {
        CallError::TimedOut => DeviceError::TimedOut,
        CallError::Garbled => DeviceError::Garbled,
        CallError::Denied { .. } => DeviceError::Refused,
        CallError::Unavailable => DeviceError::Gone,
        CallError::ServerFault | CallError::NoBell => DeviceError::Medium,
    }
}
