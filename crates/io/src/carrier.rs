//! Carries the machine's requests out on a real device: the plumbing between
//! [`Machine`] and [`RealDevice`].
//!
//! All memory is frames of one pool: first the cache's, then, for each direct
//! transfer that may be open at once, a buffer of consecutive frames. A buffer
//! is named by the transfer's tag. So the bytes of everything that is done can
//! be lent safely, and nothing is allocated for a request that was not merged.

use readpath_core::machine::{Buffer, Done, Machine};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest};
use readpath_core::unit::{PAGE_BYTES, Time};

use crate::backend::{BackendError, BackendKind};
use crate::clock::Clock;
use crate::device::RealDevice;
use crate::frames::{FramePool, FramePoolError, Piece};
use crate::storage::{Files, Storage};
use crate::target::Target;

/// How much memory a [`Carrier`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarrierMemory {
    /// Of the page cache, in bytes: what the machine's configuration says.
    pub cache_bytes: u64,
    /// Buffers for direct transfers: one for each tag from 0 up to, and without, this.
    pub buffers: u32,
    /// The largest direct transfer in bytes.
    pub buffer_bytes: u64,
}

/// Why there is no carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CarrierError {
    /// The system has no room for the frames.
    Memory(FramePoolError),
    /// The backend isn't to be had here.
    Backend(BackendError),
}

/// A real device under a machine.
///
/// Order of calls: [`submit`](Carrier::submit) what the machine gives,
/// [`wait`](Carrier::wait) for completions, [`bytes_of`](Carrier::bytes_of)
/// what is done, before it is released.
pub struct Carrier<S: Storage = Files> {
    device: RealDevice<S>,
    cache_frames: u32,
    buffer_frames: u32,
    pieces: Vec<Piece>,
}

impl Carrier {
    /// Opens the device with all the memory that it will need.
    ///
    /// # Errors
    /// There is not so much memory, or the backend isn't to be had.
    pub fn new(
        target: Target,
        memory: CarrierMemory,
        backend: BackendKind,
        clock: Clock,
    ) -> Result<Carrier, CarrierError> {
        let storage = Files::one(target, backend, clock).map_err(CarrierError::Backend)?;
        Carrier::over(storage, memory, clock)
    }

    /// The file or block device below.
    pub fn target(&self) -> &Target {
        self.device.target()
    }
}

impl<S: Storage> Carrier<S> {
    /// The same over any storage, whose completions are stamped by `clock`.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn over(
        storage: S,
        memory: CarrierMemory,
        clock: Clock,
    ) -> Result<Carrier<S>, CarrierError> {
        let cache_frames = memory.cache_bytes / PAGE_BYTES;
        // A direct transfer may reach up to one alignment past its end.
        let buffer_frames = memory.buffer_bytes.div_ceil(PAGE_BYTES);
        let frames = u64::from(memory.buffers)
            .checked_mul(buffer_frames)
            .and_then(|frames| u32::try_from(frames + cache_frames).ok())
            .ok_or(CarrierError::Memory(FramePoolError::Memory {
                bytes: usize::MAX,
                errno: libc::ENOMEM,
            }))?;
        let pool = FramePool::new(frames).map_err(CarrierError::Memory)?;
        Ok(Carrier {
            device: RealDevice::over(storage, pool, clock),
            cache_frames: cache_frames as u32,
            buffer_frames: buffer_frames as u32,
            pieces: Vec::new(),
        })
    }

    /// What carries the requests.
    pub fn storage(&self) -> &S {
        self.device.storage()
    }

    /// The same, to be asked.
    pub fn storage_mut(&mut self) -> &mut S {
        self.device.storage_mut()
    }

    /// What the device can do.
    pub fn caps(&self) -> DeviceCaps {
        self.device.caps()
    }

    /// The time on the clock of the completions.
    pub fn now(&self) -> Time {
        self.device.now()
    }

    /// Takes a request of the machine in.
    pub fn submit(&mut self, path: &Machine, request: DeviceRequest) {
        let (first_buffer, buffer_frames) = (self.cache_frames, self.buffer_frames);
        let pieces = &mut self.pieces;
        path.request_buffers(request.id, |buffer| {
            pieces.push(match buffer {
                Buffer::Frame(frame) => Piece::whole(frame.0),
                Buffer::Caller { read, offset, bytes } => Piece {
                    frame: first_buffer
                        + path.tag(read) as u32 * buffer_frames
                        + (offset / PAGE_BYTES) as u32,
                    bytes: bytes as u32,
                },
            });
        });
        self.device.submit_pieces(request, self.pieces.drain(..));
    }

    /// Hands what was submitted to the kernel, and sleeps until something is
    /// completed or `deadline` has come; adds what is completed to `completions`.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such.
    pub fn wait(
        &mut self,
        deadline: Option<Time>,
        completions: &mut Vec<Completion>,
    ) -> Result<(), BackendError> {
        self.device.wait(deadline)?;
        completions.extend(std::iter::from_fn(|| self.device.poll()));
        Ok(())
    }

    /// Lends the bytes of what is done and not yet released, in order.
    pub fn bytes_of(&self, path: &Machine, done: &Done, mut each: impl FnMut(&[u8])) {
        let bytes = done.result.unwrap_or(0) as usize;
        let mut skip = (path.offset(done.read) % PAGE_BYTES) as usize;
        let mut left = bytes;
        let frames = path.read_frames(done.read);
        let (first, count) = if frames.is_empty() {
            skip = 0;
            let first = self.cache_frames + done.tag as u32 * self.buffer_frames;
            (first, bytes.div_ceil(PAGE_BYTES as usize))
        } else {
            (0, frames.len())
        };
        for at in 0..count {
            let frame = frames.get(at).map_or(first + at as u32, |frame| frame.0);
            let page = self.device.frame(frame);
            let part = left.min(page.len() - skip);
            each(&page[skip..skip + part]);
            left -= part;
            skip = 0;
        }
    }

    /// Has the buffer of a tag filled before it is written out.
    pub fn fill_buffer(&mut self, tag: u32, mut fill: impl FnMut(&mut [u8])) {
        let first = self.cache_frames + tag * self.buffer_frames;
        (first..first + self.buffer_frames).for_each(|frame| fill(self.device.frame_mut(frame)));
    }
}

impl std::fmt::Display for CarrierError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CarrierError::Memory(error) => error.fmt(f),
            CarrierError::Backend(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CarrierError {}
