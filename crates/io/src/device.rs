//! A real device under the machine: requests over page frames go in,
//! completions come out.
//!
//! It is to the real world what a device model is to the modelled one, and is
//! driven in the same order: `submit` while there is room, `wait` until
//! something happens or until the machine's next point in time, `poll` until
//! there is none. The frames belong to it, so that their bytes can be lent
//! safely: see [`crate::frames`].

use std::collections::VecDeque;
use std::ptr::NonNull;

use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use crate::backend::{BackendError, BackendKind};
use crate::clock::Clock;
use crate::frames::{FramePool, Piece};
use crate::target::Target;
use crate::transfers::{Start, Transfers};

/// A file or block device that carries the machine's requests out.
///
/// Order of calls: [`submit`](RealDevice::submit) while fewer than the depth
/// are in flight; [`wait`](RealDevice::wait) to hand them to the kernel and to
/// sleep; [`poll`](RealDevice::poll) until it gives nothing. Each request is
/// completed exactly once.
///
/// It belongs to one thread. Dropped with requests in flight, it withdraws
/// them and waits until the kernel has let go of every frame.
pub struct RealDevice {
    transfers: Transfers<Memory>,
    pool: FramePool,
    /// Lists of frames from earlier requests, kept for their room.
    spare: Vec<Vec<u32>>,
    /// The segments of the request that is being submitted.
    segments: Vec<libc::iovec>,
    caps: DeviceCaps,
    polled: VecDeque<Completion>,
}

/// The memory of a request in flight.
enum Memory {
    /// Frames of the pool, in order.
    Frames(Vec<u32>),
    /// The caller's, who watches over it.
    Raw,
}

impl RealDevice {
    /// A device over `target`, with `pool` as its frames. Its depth is that of
    /// [`Target::caps`].
    ///
    /// # Errors
    /// The backend isn't to be had here. There is no fall-back: the other one
    /// must be asked for.
    pub fn new(
        target: Target,
        pool: FramePool,
        backend: BackendKind,
        clock: Clock,
    ) -> Result<RealDevice, BackendError> {
        let caps = target.caps();
        let backend = backend.build(&target, caps.depth_max)?;
        let transfers = Transfers::over(target, backend, caps.depth_max, clock);
        let (spare, segments) = (Vec::new(), Vec::new());
        Ok(RealDevice { transfers, pool, spare, segments, caps, polled: VecDeque::new() })
    }

    /// What it can do; constant over its life.
    pub fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// The file or block device below.
    pub fn target(&self) -> &Target {
        self.transfers.target()
    }

    /// The time, on the clock that completions are stamped with.
    pub fn now(&self) -> Time {
        self.transfers.clock().now()
    }

    /// How many requests were submitted and not yet given back by `poll`.
    pub fn in_flight(&self) -> u32 {
        self.transfers.in_flight() + self.polled.len() as u32
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

    /// As [`submit_pieces`](RealDevice::submit_pieces), with one whole frame for
    /// each page of the request.
    ///
    /// # Panics
    /// As there.
    pub fn submit(&mut self, request: DeviceRequest, frames: &[u32]) {
        self.submit_pieces(request, frames.iter().map(|&frame| Piece::whole(frame)));
    }

    /// Takes a request in that moves its bytes between the device and
    /// `pieces` of the frames, in order. It may reach past the end of the
    /// device, and then a read ends `Short`: the rest of its frames holds what
    /// it held before. (A write there makes a regular file longer.)
    ///
    /// # Panics
    /// The pieces are not as long as the request, or are in flight, or more
    /// requests than the depth are.
    pub fn submit_pieces(&mut self, request: DeviceRequest, pieces: impl Iterator<Item = Piece>) {
        let mut frames = self.spare.pop().unwrap_or_default();
        let mut segments = std::mem::take(&mut self.segments);
        self.pool.depart(request.op, pieces, &mut frames, &mut segments);
        let bytes: usize = segments.iter().map(|segment| segment.iov_len).sum();
        assert_eq!(
            bytes as u64,
            request.sectors as u64 * SECTOR_BYTES,
            "a request fills its pieces"
        );
        // SAFETY: the frames belong to the pool, which lends none of them until
        // `collect` marks them as back, and which outlives the transfers.
        unsafe {
            self.transfers.start(start(request), Memory::Frames(frames), |_, described| {
                described.extend_from_slice(&segments);
            });
        }
        segments.clear();
        self.segments = segments;
    }

    /// Takes a request in that moves its bytes between the device and the
    /// memory at `memory`, past the frames.
    ///
    /// # Safety
    /// `memory` is valid for the request's bytes, and nobody else uses it (for
    /// a write: changes it), until `poll` has given the request back, or the
    /// device has been dropped.
    ///
    /// # Panics
    /// More requests than the depth are in flight.
    pub unsafe fn submit_raw(&mut self, request: DeviceRequest, memory: NonNull<u8>) {
        let start = start(request);
        let iov_len = start.bytes as usize;
        // SAFETY: the caller's promise.
        unsafe {
            self.transfers.start(start, Memory::Raw, |_, segments| {
                segments.push(libc::iovec { iov_base: memory.as_ptr().cast(), iov_len });
            });
        }
    }

    /// Withdraws a request if the kernel lets it. It is completed all the same:
    /// with `Cancelled` if that came in time.
    pub fn cancel(&mut self, id: RequestId) {
        self.transfers.cancel(id);
    }

    /// Hands what was submitted to the kernel, in one system call, and sleeps
    /// until a request is completed or `deadline` has come. May wake up early
    /// with nothing when a signal comes; comes back at once when something is
    /// there to be polled, or nothing is in flight.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such.
    pub fn wait(&mut self, deadline: Option<Time>) -> Result<(), BackendError> {
        if self.polled.is_empty() {
            self.transfers.wait(deadline)?;
        } else {
            self.transfers.flush()?;
        }
        self.collect();
        Ok(())
    }

    /// Hands what was submitted to the kernel and takes in what is completed,
    /// without sleeping.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such.
    pub fn flush(&mut self) -> Result<(), BackendError> {
        self.transfers.flush()?;
        self.collect();
        Ok(())
    }

    /// The next completion among those that `wait` or `flush` took in.
    pub fn poll(&mut self) -> Option<Completion> {
        self.polled.pop_front()
    }

    /// Marks the frames of what has ended as back.
    fn collect(&mut self) {
        while let Some(ended) = self.transfers.next_ended() {
            if let Memory::Frames(mut frames) = ended.kept {
                self.pool.arrive(ended.op, &frames);
                frames.clear();
                self.spare.push(frames);
            }
            self.polled.push_back(ended.completion);
        }
    }
}

impl Drop for RealDevice {
    fn drop(&mut self) {
        // Before the frames are given back to the system, they must be back here.
        self.transfers.drain();
        self.collect();
    }
}

/// A request in bytes.
fn start(request: DeviceRequest) -> Start {
    Start {
        id: request.id,
        op: request.op,
        offset: request.start * SECTOR_BYTES,
        bytes: request.sectors as u64 * SECTOR_BYTES,
    }
}
