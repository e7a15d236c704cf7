//! `noop`: first come, first served, with merging.
//!
//! How it works: a request that touches a queued one of its direction is merged with it. All other
//! requests go to the device in arrival order. It suits devices that order their own queue or have
//! no head to move. It ignores processes and never leaves the device idle. The wait of a request
//! depends only on the requests queued before it. Source: KERNEL.md section 4.13.

use crate::request::{DeviceCaps, RequestId, RequestTable};
use crate::unit::Time;

use super::requests::QueuedRequests;
use super::{Dispatch, Inserted, Scheduler};

/// The scheduler `noop`. It has no parameter.
#[derive(Debug)]
pub struct Noop {
    /// Requests that are not in the device.
    queued: QueuedRequests,
    /// Largest request of the device, in sectors.
    sectors_max: u32,
}

impl Noop {
    /// Creates the scheduler for a device with these properties.
    pub fn new(caps: &DeviceCaps) -> Noop {
        Noop { queued: QueuedRequests::default(), sectors_max: caps.request_sectors_max }
    }
}

impl Scheduler for Noop {
    /// Adds a request at the end of the queue, merged with a neighbour if possible.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        self.queued.insert_or_merge(now, id, requests, self.sectors_max)
    }

    /// Sends the oldest request; `Nothing` if none is queued.
    fn dispatch(&mut self, _now: Time, requests: &RequestTable) -> Dispatch {
        let oldest = self.queued.oldest(requests).map(|(key, _)| key);
        match oldest.and_then(|key| self.queued.remove(key)) {
            Some(waiting) => Dispatch::Request(waiting.id),
            None => Dispatch::Nothing,
        }
    }

    /// Ignores completions.
    fn complete(&mut self, _now: Time, _id: RequestId, _requests: &RequestTable) {}

    /// Number of requests that are not in the device.
    fn queued(&self) -> usize {
        self.queued.count()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SchedulerBench, caps, read};
    use super::*;

    /// The sectors are in another order than the arrivals 0, 1, 2.
    #[test]
    fn requests_are_dispatched_in_order_of_arrival() {
        let mut noop = SchedulerBench::new(Noop::new(&caps()));
        for start in [5000, 10, 900] {
            noop.insert(Time::ZERO, read(start, 8));
        }
        assert_eq!(noop.dispatch_all(Time::ZERO), [(0, 5000, 8), (1, 10, 8), (2, 900, 8)]);
    }

    /// Three adjacent requests of 8 sectors become one of 24 with the oldest identifier, 0.
    #[test]
    fn adjacent_requests_merge_at_both_ends_up_to_the_largest_request() {
        let mut noop = SchedulerBench::new(Noop::new(&caps()));
        let merged = Inserted::Merged { into: RequestId(0), with: None };
        assert_eq!(noop.insert(Time::ZERO, read(100, 8)), Inserted::Queued);
        assert_eq!(noop.insert(Time::ZERO, read(108, 8)), merged);
        assert_eq!(noop.insert(Time::ZERO, read(92, 8)), merged);
        // 24 + 240 sectors would exceed the 256 of the device's largest request.
        assert_eq!(noop.insert(Time::ZERO, read(116, 240)), Inserted::Queued);
        assert_eq!(noop.dispatch_all(Time::ZERO), [(0, 92, 24), (3, 116, 240)]);
    }
}
