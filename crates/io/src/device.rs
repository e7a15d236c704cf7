//! A real device under the machine: requests over page frames go in,
//! completions come out.
//!
//! It is to the real world what a device model is to the modelled one, and is
//! driven in the same order: `submit` while there is room, `wait` until
//! something happens or until the machine's next point in time, `poll` until
//! there is none. The frames belong to it, so that their bytes can be lent
//! safely: see [`crate::frames`].

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use crate::backend::{BackendError, BackendKind, Sleep};
use crate::clock::Clock;
use crate::frames::{FramePool, Piece};
use crate::storage::{Files, Storage};
use crate::target::Target;

/// A file or block device that carries the machine's requests out.
///
/// Order of calls: [`submit`](RealDevice::submit) while fewer than the depth
/// are in flight; [`wait`](RealDevice::wait) to hand them to the kernel and to
/// sleep; [`poll`](RealDevice::poll) until it gives nothing. Each request is
/// completed exactly once.
///
/// It belongs to one thread. Dropped with requests in flight, it withdraws
/// them and waits until the kernel has let go of every frame.
pub struct RealDevice<S: Storage = Files> {
    storage: S,
    pool: ManuallyDrop<FramePool>,
    clock: Clock,
    /// By the number of each request in flight: its frames.
    departed: Vec<Option<Departed>>,
    in_flight: u32,
    /// Lists of frames from earlier requests, kept for their room.
    spare: Vec<Vec<u32>>,
    /// The segments of the request that is being submitted.
    segments: Vec<libc::iovec>,
    completions: Vec<Completion>,
    polled: VecDeque<Completion>,
}

/// The frames of a request in flight; none for memory that the caller watches over.
struct Departed {
    op: Op,
    frames: Vec<u32>,
}

impl RealDevice {
    /// A device over `target`, with `pool` as its frames. Its depth is that of
    /// [`Target::caps`].
    ///
    /// # Errors
    /// The backend isn't to be had here.
    pub fn new(
        target: Target,
        pool: FramePool,
        backend: BackendKind,
        clock: Clock,
    ) -> Result<RealDevice, BackendError> {
        Ok(RealDevice::over(Files::one(target, backend, clock)?, pool, clock))
    }

    /// The file or block device below.
    pub fn target(&self) -> &Target {
        self.storage.target(0)
    }
}

impl<S: Storage> RealDevice<S> {
    /// A device over `storage`, which stamps completions by `clock`.
    pub fn over(storage: S, pool: FramePool, clock: Clock) -> RealDevice<S> {
        RealDevice {
            storage,
            pool: ManuallyDrop::new(pool),
            clock,
            departed: Vec::new(),
            in_flight: 0,
            spare: Vec::new(),
            segments: Vec::new(),
            completions: Vec::new(),
            polled: VecDeque::new(),
        }
    }

    /// What carries the requests.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// The same, to be asked.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// What it can do; constant over its life.
    pub fn caps(&self) -> DeviceCaps {
        self.storage.caps()
    }

    /// The time, on the clock that completions are stamped with.
    pub fn now(&self) -> Time {
        self.clock.now()
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
        self.depart(request, frames);
        // SAFETY: the frames belong to the pool, which lends none of them until
        // `collect` marks them as back, and which outlives the storage's use of
        // them: see `drop`.
        unsafe { self.storage.submit(request, &segments) };
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
        let frames = self.spare.pop().unwrap_or_default();
        self.depart(request, frames);
        let iov_len = request.sectors as usize * SECTOR_BYTES as usize;
        let segment = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len };
        // SAFETY: the caller's promise.
        unsafe { self.storage.submit(request, &[segment]) };
    }

    /// Notes what belongs to a request until it is completed.
    fn depart(&mut self, request: DeviceRequest, frames: Vec<u32>) {
        let at = request.id.0 as usize;
        if at >= self.departed.len() {
            self.departed.resize_with(at + 1, || None);
        }
        let before = self.departed[at].replace(Departed { op: request.op, frames });
        assert!(before.is_none(), "request {at} is in flight already");
        self.in_flight += 1;
    }

    /// Withdraws a request if the kernel lets it. It is completed all the same:
    /// with `Cancelled` if that came in time.
    pub fn cancel(&mut self, id: RequestId) {
        self.storage.cancel(id);
    }

    /// Hands what was submitted to the kernel, in one system call, and sleeps
    /// until a request is completed or `deadline` has come. May wake up early
    /// with nothing when a signal comes; comes back at once when something is
    /// there to be polled, or nothing is in flight.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such.
    pub fn wait(&mut self, deadline: Option<Time>) -> Result<(), BackendError> {
        let sleep = match deadline {
            _ if !self.polled.is_empty() => Sleep::Never,
            Some(deadline) => Sleep::AtMost(self.clock.until(deadline)),
            None => Sleep::UntilAnswered,
        };
        self.exchange(sleep)
    }

    /// Hands what was submitted to the kernel and takes in what is completed,
    /// without sleeping.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such.
    pub fn flush(&mut self) -> Result<(), BackendError> {
        self.exchange(Sleep::Never)
    }

    /// The next completion among those that `wait` or `flush` took in.
    pub fn poll(&mut self) -> Option<Completion> {
        self.polled.pop_front()
    }

    /// Marks the frames of what has ended as back.
    fn exchange(&mut self, sleep: Sleep) -> Result<(), BackendError> {
        let result = self.storage.exchange(sleep, &mut self.completions);
        for completion in self.completions.drain(..) {
            let departed = self.departed[completion.id.0 as usize].take();
            let Departed { op, mut frames } = departed.expect("a request is completed once");
            self.pool.arrive(op, &frames);
            frames.clear();
            self.spare.push(frames);
            self.in_flight -= 1;
            self.polled.push_back(completion);
        }
        result
    }
}

impl<S: Storage> Drop for RealDevice<S> {
    fn drop(&mut self) {
        // Before the frames are given back to the system, they must be back here.
        for (id, departed) in self.departed.iter().enumerate() {
            if departed.is_some() {
                self.storage.cancel(RequestId(id as u32));
            }
        }
        while self.in_flight > 0 && self.exchange(Sleep::UntilAnswered).is_ok() {}
        if self.in_flight == 0 {
            // SAFETY: it is looked at by nobody afterwards.
            unsafe { ManuallyDrop::drop(&mut self.pool) };
        }
        // Else the storage can't find out when the kernel is done with them, and they stay its own.
    }
}
