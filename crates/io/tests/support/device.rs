//! A storage with memory of its own: accepts requests over its frames and returns completions.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::VecDeque;

use readpath::BackendError;
use readpath::inside::{Clock, FileStorage, Sleep, Storage};
use readpath::raw::RawMemory;
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, RequestId};
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES, Time};

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
