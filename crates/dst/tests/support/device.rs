//! A storage with memory of its own: accepts requests over its frames and returns completions.
//! Readers of whole pages through it.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::VecDeque;
use std::path::Path;

use readpath::inside::{Clock, FileStorage, OpenOptions, Sleep, Storage, Target};
use readpath::raw::RawMemory;
use readpath::{BackendError, BackendKind, Direct};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, SECTOR_BYTES, Time};

const PAGE: usize = PAGE_BYTES as usize;

pub struct Device<S: Storage = FileStorage> {
    // Dropped first, so that no request accesses the memory any more.
    storage: S,
    _memory: RawMemory,
    /// Start of the memory, which is read frame by frame, never as a whole.
    base: *mut u8,
    clock: Clock,
    in_flight: u32,
    completed: VecDeque<Completion>,
}

impl<S: Storage> Device<S> {
    /// Builds a device over a storage whose completions are stamped by `clock`.
    pub fn over(storage: S, frames: u32, clock: Clock) -> Device<S> {
        let mut memory = RawMemory::new(frames as usize * PAGE).unwrap();
        let base = memory.as_mut_ptr();
        let completed = VecDeque::new();
        Device { storage, _memory: memory, base, clock, in_flight: 0, completed }
    }

    pub fn storage(&self) -> &S {
        &self.storage
    }

    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    pub fn caps(&self) -> DeviceCaps {
        self.storage.caps()
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Number of requests submitted and not yet polled.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Content of a frame that no read in flight fills.
    pub fn frame(&self, frame: u32) -> &[u8] {
        // SAFETY: a page of the memory, which is initialised.
        unsafe { std::slice::from_raw_parts(self.base.add(frame as usize * PAGE), PAGE) }
    }

    /// Content of a frame that is in no request in flight.
    pub fn frame_mut(&mut self, frame: u32) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(frame as usize * PAGE), PAGE) }
    }

    pub fn submit(&mut self, request: DeviceRequest, frames: &[u32]) {
        self.submit_pieces(request, frames.iter().map(|&frame| (frame as usize * PAGE, PAGE)));
    }

    /// Submits a request over pieces of the memory (first byte, length).
    pub fn submit_pieces(
        &mut self,
        request: DeviceRequest,
        pieces: impl Iterator<Item = (usize, usize)>,
    ) {
        let mut segments: Vec<libc::iovec> = Vec::new();
        for (at, iov_len) in pieces {
            let iov_base = self.base.wrapping_add(at).cast();
            match segments.last_mut() {
                Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == iov_base => {
                    last.iov_len += iov_len;
                }
                _ => segments.push(libc::iovec { iov_base, iov_len }),
            }
        }
        let bytes: usize = segments.iter().map(|segment| segment.iov_len).sum();
        assert_eq!(bytes as u64, u64::from(request.sectors) * SECTOR_BYTES);
        // SAFETY: memory of this value, which outlives the storage; the tests read no frame in
        // flight.
        unsafe { self.storage.submit(request, &segments) };
        self.in_flight += 1;
    }

    pub fn cancel(&mut self, id: RequestId) {
        self.storage.cancel(id);
    }

    /// Submits requests, and sleeps until a completion or `deadline`. Returns at once if a
    /// completion can be polled.
    pub fn wait(&mut self, deadline: Option<Time>) -> Result<(), BackendError> {
        self.exchange(match deadline {
            _ if !self.completed.is_empty() => Sleep::Never,
            Some(deadline) => Sleep::AtMost(self.clock.until(deadline)),
            None => Sleep::UntilAnswered,
        })
    }

    /// Like `wait`, without sleeping.
    pub fn flush(&mut self) -> Result<(), BackendError> {
        self.exchange(Sleep::Never)
    }

    fn exchange(&mut self, sleep: Sleep) -> Result<(), BackendError> {
        let mut completions = Vec::new();
        let exchanged = self.storage.exchange(sleep, &mut completions);
        self.completed.extend(completions);
        exchanged
    }

    pub fn poll(&mut self) -> Option<Completion> {
        let completion = self.completed.pop_front()?;
        self.in_flight -= 1;
        Some(completion)
    }
}

pub fn open(path: &Path, direct: Direct) -> Target {
    Target::open(path, OpenOptions { direct, is_writable: false }).unwrap()
}

pub fn device(target: Target, backend: BackendKind, frames: u32) -> Device {
    let clock = Clock::start();
    Device::over(FileStorage::for_one_thread(target, backend, clock).unwrap(), frames, clock)
}

/// A read request for whole pages.
pub fn read_pages(id: u32, pages: PageRange) -> DeviceRequest {
    DeviceRequest {
        id: RequestId(id),
        op: Op::Read,
        start: pages.first * PAGE_SECTORS,
        sectors: (pages.count() * PAGE_SECTORS) as u32,
    }
}

/// Sleeps until a request completes.
pub fn completion(device: &mut Device) -> Completion {
    loop {
        if let Some(completion) = device.poll() {
            return completion;
        }
        assert!(device.in_flight() > 0, "nothing is in flight, so nothing will complete");
        device.wait(None).unwrap();
    }
}

/// Reads `bytes` bytes at `offset` by whole pages, through frames in permuted order, and cuts out
/// the requested range.
pub fn read_bytes(device: &mut Device, offset: u64, bytes: u64) -> Vec<u8> {
    let pages = PageRange::covering(offset, bytes);
    // Reversed in pairs (1 0, 3 2, …): neither contiguous nor completely scattered.
    let frames: Vec<u32> =
        (0..pages.count() as u32).map(|index| index ^ (index & 2) >> 1).collect();
    device.submit(read_pages(0, pages), &frames);
    let moved = match completion(device).outcome {
        Outcome::Done => pages.count() * PAGE_BYTES,
        Outcome::Short { bytes } => bytes,
        Outcome::Failed(error) => panic!("{bytes} bytes at {offset}: {error}"),
    };
    let mut got: Vec<u8> =
        frames.iter().flat_map(|&frame| device.frame(frame).iter().copied()).collect();
    got.truncate(moved as usize);
    let skip = ((offset - pages.first * PAGE_BYTES) as usize).min(got.len());
    let end = (skip + bytes as usize).min(got.len());
    got[skip..end].to_vec()
}
