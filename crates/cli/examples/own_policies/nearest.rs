//! `nearest`: the request nearest to the head, without merging.
//!
//! The head is behind the last dispatched request. The queued request with the smallest distance to
//! the head goes to the device. Distant requests can wait without limit.

use readpath_core::request::{RequestId, RequestTable};
use readpath_core::scheduler::{Dispatch, Inserted, Scheduler};
use readpath_core::unit::Time;

/// The scheduler `nearest`.
#[derive(Debug, Default)]
pub struct Nearest {
    queued: Vec<RequestId>,
    /// Sector behind the last dispatched request.
    head: u64,
}

impl Scheduler for Nearest {
    fn insert(&mut self, _now: Time, id: RequestId, _requests: &mut RequestTable) -> Inserted {
        self.queued.push(id);
        Inserted::Queued
    }

    fn dispatch(&mut self, _now: Time, requests: &RequestTable) -> Dispatch {
        let distance = |id: &RequestId| requests[*id].start.abs_diff(self.head);
        let nearest = (0..self.queued.len()).min_by_key(|&at| distance(&self.queued[at]));
        let Some(nearest) = nearest else { return Dispatch::Nothing };
        let id = self.queued.remove(nearest);
        self.head = requests[id].start + u64::from(requests[id].sectors);
        Dispatch::Request(id)
    }

    fn complete(&mut self, _now: Time, _id: RequestId, _requests: &RequestTable) {}

    fn queued(&self) -> usize {
        self.queued.len()
    }
}
