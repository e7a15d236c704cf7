//! Requests of AIO and io_uring in flight that may be of storage.

use std::collections::HashSet;

use super::super::event::{EventData, SystemCall};
use super::super::uring_operations;

/// Requests in flight since the recording began.
#[derive(Debug, Default)]
pub(super) struct AsyncRequests {
    /// Requests of io_uring, without operations that wait for an event.
    uring: HashSet<u64>,
    /// Number of requests of AIO that were submitted and not yet returned by a call. A program that
    /// takes results from memory has a higher number, and is then taken to wait for storage.
    aio: u64,
}

impl AsyncRequests {
    /// True for an event that changes the requests in flight. A call of AIO that failed or handled
    /// no request is none.
    pub fn has_effect(data: &EventData) -> bool {
        matches!(
            data,
            EventData::UringSubmit { .. }
                | EventData::UringComplete { .. }
                | EventData::Exit(SystemCall::IoSubmit | SystemCall::IoGetevents, 1..)
        )
    }

    /// Adds or removes the requests of an event. The event must be one for which `has_effect`
    /// returns true, so the counts are positive.
    pub fn process(&mut self, data: &EventData) {
        match data {
            EventData::UringSubmit { request, operation }
                if !uring_operations::is_event_name(operation) =>
            {
                self.uring.insert(*request);
            }
            EventData::UringComplete { request, .. } => {
                self.uring.remove(request);
            }
            EventData::Exit(SystemCall::IoSubmit, count) => self.aio += count.unsigned_abs(),
            EventData::Exit(SystemCall::IoGetevents, count) => {
                self.aio = self.aio.saturating_sub(count.unsigned_abs());
            }
            _ => {}
        }
    }

    /// True if no request of storage is in flight.
    pub fn are_none_of_storage(&self) -> bool {
        self.uring.is_empty() && self.aio == 0
    }
}
