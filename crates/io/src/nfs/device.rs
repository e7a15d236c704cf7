//! A file on an NFS server under the machine: requests over page frames in,
//! completions out, as [`crate::device`] has it for local files.
//!
//! A request of the machine is one READ. It is sent by the `wait` or `flush`
//! that follows `submit`, together with all others, before any answer is
//! awaited. The data goes from the receive buffer into the frames once its
//! whole reply has come and makes sense: a reply that is cut off, late or
//! garbage touches no frame. A server that brings less than was asked, without
//! saying that the file ends there, is asked for the rest.

use std::collections::VecDeque;

use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::calls::{self, Attributes};
use super::client::{CallId, Traffic};
use super::error::{NfsError, Step};
use super::rpc::CallError;
use super::status::Status;
use super::target::NfsTarget;
use crate::frames::{FramePool, Piece};

/// A file on an NFS server that carries the machine's requests out. It belongs
/// to one thread, and is driven in the order of [`crate::device::RealDevice`].
pub struct NfsDevice {
    target: NfsTarget,
    pool: FramePool,
    /// What each call in flight is for, by its number.
    uses: Vec<Option<Use>>,
    /// READs whose replies brought a part only.
    partial: Vec<Reading>,
    /// Readings that are over, kept for their room.
    spare: Vec<Reading>,
    polled: VecDeque<Completion>,
    in_flight: u32,
}

enum Use {
    Read(Reading),
    /// GETATTR; its answer goes to the target.
    Attributes,
}

/// A request of the machine on its way.
struct Reading {
    id: RequestId,
    offset: u64,
    bytes: u64,
    /// Bytes that are in the frames already.
    bytes_done: u64,
    /// Bytes that the READ in flight asks for.
    bytes_asked: u32,
    pieces: Vec<Piece>,
    frames: Vec<u32>,
}

impl NfsDevice {
    /// A device over `target`, with `pool` as its frames.
    pub fn new(target: NfsTarget, pool: FramePool) -> NfsDevice {
        let slots = target.caps().depth_max as usize;
        NfsDevice {
            target,
            pool,
            uses: (0..slots).map(|_| None).collect(),
            partial: Vec::new(),
            spare: Vec::new(),
            polled: VecDeque::new(),
            in_flight: 0,
        }
    }

    /// What it can do; constant over its life.
    pub fn caps(&self) -> DeviceCaps {
        self.target.caps()
    }

    /// The file that is read.
    pub fn target(&self) -> &NfsTarget {
        &self.target
    }

    /// What went over the wire so far.
    pub fn traffic(&self) -> Traffic {
        self.target.link.traffic()
    }

    /// The time, on the clock that completions are stamped with.
    pub fn now(&self) -> Time {
        self.target.link.clock().now()
    }

    /// How many requests were submitted and not yet given back by `poll`.
    pub fn in_flight(&self) -> u32 {
        self.in_flight + self.polled.len() as u32
    }

    /// The bytes of a frame.
    ///
    /// # Panics
    /// There is no such frame, or a request in flight is filling it.
    pub fn frame(&self, frame: u32) -> &[u8] {
        self.pool.bytes(frame)
    }

    /// The bytes of a frame, to be changed.
    ///
    /// # Panics
    /// There is no such frame, or it belongs to a request in flight.
    pub fn frame_mut(&mut self, frame: u32) -> &mut [u8] {
        self.pool.bytes_mut(frame)
    }

    /// Takes a request in that reads into `pieces` of the frames, in order. It
    /// may reach past the end of the file, and then ends `Short`. A write is
    /// refused: files on a server are read here, and nothing else.
    ///
    /// # Panics
    /// The pieces are not as long as the request, or are in flight, or more
    /// requests than the depth are.
    pub fn submit_pieces(&mut self, request: DeviceRequest, pieces: impl Iterator<Item = Piece>) {
        if request.op == Op::Write {
            let outcome = Outcome::Failed(DeviceError::Refused);
            self.polled.push_back(Completion { id: request.id, at: self.now(), outcome });
            return;
        }
        let mut reading = self.spare.pop().unwrap_or_else(Reading::empty);
        reading.id = request.id;
        reading.offset = request.start * SECTOR_BYTES;
        reading.bytes = u64::from(request.sectors) * SECTOR_BYTES;
        reading.bytes_done = 0;
        reading.pieces.extend(pieces);
        let bytes: u64 = reading.pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
        assert_eq!(bytes, reading.bytes, "a request fills its pieces");
        self.pool.claim(&reading.pieces, &mut reading.frames);
        self.in_flight += 1;
        self.call(reading);
    }

    /// Withdraws a request: it is completed at once with `Cancelled`, and
    /// whatever the server still answers is dropped.
    pub fn cancel(&mut self, id: RequestId) {
        let is_it = |used: &Option<Use>| matches!(used, Some(Use::Read(read)) if read.id == id);
        let Some(call) = self.uses.iter().position(is_it) else { return };
        if let Some(Use::Read(reading)) = self.uses[call].take() {
            self.target.link.cancel(CallId(call as u32));
            self.complete(reading, Outcome::Failed(DeviceError::Cancelled));
        }
    }

    /// Sends what was submitted and sleeps until a request is completed or
    /// `deadline` has come; comes back at once when something is there to be
    /// polled, or nothing is in flight.
    pub fn wait(&mut self, deadline: Option<Time>) {
        loop {
            let until = if self.polled.is_empty() { deadline } else { Some(Time::ZERO) };
            self.exchange(until);
            let is_late = deadline.is_some_and(|deadline| self.now() >= deadline);
            if !self.polled.is_empty() || self.in_flight == 0 || is_late {
                return;
            }
        }
    }

    /// Sends what was submitted and takes in what has come, without sleeping.
    pub fn flush(&mut self) {
        self.exchange(Some(Time::ZERO));
    }

    /// The next completion among those that `wait` or `flush` took in.
    pub fn poll(&mut self) -> Option<Completion> {
        self.polled.pop_front()
    }

    /// What the server last told of the file: with each READ, or, when that is
    /// longer ago than the option `attributes` allows, now.
    ///
    /// # Errors
    /// It had to be asked, and gives no answer, or the file is gone.
    pub fn attributes(&mut self) -> Result<Attributes, NfsError> {
        let age_max = self.target.url().options.attributes_age_max;
        if self.now().since(self.target.attributes_at) <= age_max {
            return Ok(self.target.attributes);
        }
        while self.target.link.room() == 0 {
            self.exchange(None);
        }
        let handle = self.target.handle;
        let call = self.target.link.call(calls::GETATTR, |to| calls::put_handle(to, &handle));
        self.uses[call.0 as usize] = Some(Use::Attributes);
        let mut answer = None;
        while answer.is_none() {
            answer = self.exchange(None);
        }
        let told = answer.expect("the loop ends with it");
        told.map_err(|error| NfsError::call(Step::File, error))?
            .map_err(|status| NfsError::of_file(self.target.url(), status))
    }

    /// Sends, and takes in what comes until `deadline` or until a call has
    /// ended; gives the answer to GETATTR, if that came.
    fn exchange(
        &mut self,
        deadline: Option<Time>,
    ) -> Option<Result<Result<Attributes, Status>, CallError>> {
        let NfsTarget { link, attributes, attributes_at, .. } = &mut self.target;
        let (uses, pool, partial) = (&mut self.uses, &mut self.pool, &mut self.partial);
        let clock = link.clock();
        let mut told = None;
        let mut over: Vec<(Reading, Outcome)> = Vec::new();
        link.exchange(deadline, &mut |call, results| {
            let used = &mut uses[call.0 as usize];
            let now = clock.now();
            let reading = match used.as_mut().expect("only a call that was made ends") {
                Use::Read(reading) => reading,
                Use::Attributes => {
                    let answer = results.map(calls::attributes_told);
                    told = Some(match answer {
                        Ok(answer) => Ok(answer?.inspect(|&fresh| {
                            (*attributes, *attributes_at) = (fresh, now);
                        })),
                        Err(error) => Err(error),
                    });
                    *used = None;
                    return Ok(());
                }
            };
            let ended = match results {
                Ok(results) => {
                    let told = calls::data_told(results, reading.bytes_asked)?;
                    if let Ok(Some(fresh)) = told.map(|data| data.attributes) {
                        (*attributes, *attributes_at) = (fresh, now);
                    }
                    reading.take(told, pool)
                }
                Err(error) => Some(Outcome::Failed(device_error(error))),
            };
            let Some(Use::Read(reading)) = used.take() else { unreachable!("it was one above") };
            match ended {
                Some(outcome) => over.push((reading, outcome)),
                None => partial.push(reading),
            }
            Ok(())
        });
        over.into_iter().for_each(|(reading, outcome)| self.complete(reading, outcome));
        while let Some(reading) = self.partial.pop() {
            self.call(reading);
        }
        told
    }

    /// Asks for what is missing of a request, as far as one READ goes.
    fn call(&mut self, mut reading: Reading) {
        let left = reading.bytes - reading.bytes_done;
        reading.bytes_asked = left.min(u64::from(self.target.read_bytes)) as u32;
        let (handle, offset) = (self.target.handle, reading.offset + reading.bytes_done);
        let put = |to: &mut Vec<u8>| calls::put_read(to, &handle, offset, reading.bytes_asked);
        let call = self.target.link.call(calls::READ, put);
        self.uses[call.0 as usize] = Some(Use::Read(reading));
    }

    fn complete(&mut self, mut reading: Reading, outcome: Outcome) {
        self.pool.arrive(Op::Read, &reading.frames);
        self.polled.push_back(Completion { id: reading.id, at: self.now(), outcome });
        self.in_flight -= 1;
        reading.frames.clear();
        reading.pieces.clear();
        self.spare.push(reading);
    }
}

impl Drop for NfsDevice {
    fn drop(&mut self) {
        // Nobody but this device writes to the frames: they can be taken back at once.
        for used in &mut self.uses {
            if let Some(Use::Read(reading)) = used.take() {
                self.pool.arrive(Op::Read, &reading.frames);
            }
        }
    }
}

impl Reading {
    fn empty() -> Reading {
        Reading {
            id: RequestId(0),
            offset: 0,
            bytes: 0,
            bytes_done: 0,
            bytes_asked: 0,
            pieces: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// Takes the data of a reply in; gives how the request ends, unless more is to be asked for.
    fn take(
        &mut self,
        told: Result<calls::Data<'_>, Status>,
        pool: &mut FramePool,
    ) -> Option<Outcome> {
        let data = match told {
            Ok(data) => data,
            Err(status) => return Some(Outcome::Failed(status.device_error())),
        };
        pool.fill(&self.pieces, self.bytes_done as usize, data.bytes);
        self.bytes_done += data.bytes.len() as u64;
        if self.bytes_done == self.bytes {
            Some(Outcome::Done)
        } else if data.is_at_end || data.bytes.is_empty() {
            Some(Outcome::Short { bytes: self.bytes_done })
        } else {
            None
        }
    }
}

/// What a read that got no results tells its reader.
fn device_error(error: CallError) -> DeviceError {
    match error {
        CallError::TimedOut => DeviceError::TimedOut,
        CallError::Garbled => DeviceError::Garbled,
        CallError::Denied { .. } => DeviceError::Refused,
        CallError::Unavailable => DeviceError::Gone,
        CallError::ServerFault => DeviceError::Medium,
    }
}
