//! Depth: the number of requests of a queue in the device, and detection of devices that queue
//! requests internally.
//!
//! A *slice* is the time for which one queue, the *active* one, has the device. The device is
//! *idled for* a queue while it is kept free for the queue's next request.

use super::tunables::{Jiffies, jiffies};
use super::{Cfq, QueueId};
use crate::decision::Decision;
use crate::unit::Time;

/// Number of requests in the device at once from which it counts as queueing internally; the
/// kernel's value. A completion is *under load* if more than this number were queued or in the
/// device.
const QUEUEING_DEPTH_MIN: u32 = 5;

/// Number of completions under load before the verdict; the kernel's value.
const QUEUEING_SAMPLES: u32 = 50;

/// Detects devices that queue requests internally (NCQ, an array), by the largest number of
/// requests in the device.
#[derive(Debug, Default)]
pub(super) struct QueueingDetector {
    /// Largest number of requests in the device so far.
    peak: u32,
    /// Completions under load so far, without those at which the queue was held back.
    samples: u32,
    /// True once the device has shown that it queues internally, and false if it did not under
    /// load. `None` before enough samples: the device is assumed to queue internally.
    verdict: Option<bool>,
}

/// Load at a completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadSample {
    /// Number of queued requests.
    pub queued: u32,
    /// Number of requests in the device, including the completed one.
    pub in_device: u32,
    /// True if the active queue is idled for and has few requests, so that the device could not
    /// receive more.
    pub is_held_back: bool,
}

impl QueueingDetector {
    /// Returns true if the device queues requests internally.
    pub(super) fn is_queueing(&self) -> bool {
        self.verdict.unwrap_or(true)
    }

    /// Processes one completion. Returns the verdict when it changes, with the peak that led to it;
    /// `None` otherwise. A positive verdict is final: the peak never falls. The first verdict needs
    /// more than `QUEUEING_SAMPLES` completions under load.
    pub(super) fn observe(&mut self, load: LoadSample) -> Option<(bool, u32)> {
        self.peak = self.peak.max(load.in_device);
        let is_loaded = load.queued > QUEUEING_DEPTH_MIN || load.in_device > QUEUEING_DEPTH_MIN;
        if self.verdict == Some(true) || !is_loaded || load.is_held_back {
            return None;
        }
        self.samples += 1;
        if self.samples <= QUEUEING_SAMPLES {
            return None;
        }
        let verdict = self.peak >= QUEUEING_DEPTH_MIN;
        (self.verdict.replace(verdict) != Some(verdict)).then_some((verdict, self.peak))
    }
}

/// Reason for which a queue may not send a request, with the count and its limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct DepthLimit {
    /// Reason for the log.
    pub why: &'static str,
    /// Number of requests in the device that are limited.
    pub in_device: u32,
    /// The most that would be allowed.
    pub limit: u32,
}

impl Cfq {
    /// Checks if the active queue may send a request. `Ok` has its limit of requests in the device
    /// (`None`: unlimited). `Err` has the reason for which it has to wait.
    pub(super) fn depth_limit(&self, now: Time, id: QueueId) -> Result<Option<u32>, DepthLimit> {
        let queue = &self.queues[id];
        // The device has to finish asynchronous requests before the slice of a queue that reads
        // synchronously and is idled for. They would take up its time.
        if self.in_device_async > 0 && self.should_idle(id) {
            let why = "async_in_device";
            return Err(DepthLimit { why, in_device: self.in_device_async, limit: 0 });
        }
        // Asynchronous requests would delay the synchronous ones in the device.
        if self.in_device_sync > 0 && !queue.is_sync {
            return Err(DepthLimit {
                why: "sync_in_device",
                in_device: self.in_device_sync,
                limit: 0,
            });
        }
        let mut limit = self.queue_limit(jiffies(now), id)?;
        if !queue.is_sync && self.tunables.low_latency {
            let depth = self.async_depth(jiffies(now), queue.in_device);
            limit = Some(limit.map_or(depth, |limit| limit.min(depth)));
        }
        match limit {
            Some(limit) if queue.in_device >= limit => {
                Err(DepthLimit { why: "depth", in_device: queue.in_device, limit })
            }
            _ => Ok(limit),
        }
    }

    /// Returns the limit of requests of a queue in the device: half the tunable `quantum`, or one
    /// for the idle class. A queue that has reached half the quantum gets a higher limit in two
    /// cases. The only busy queue is unlimited (`None`). Another queue gets the whole quantum if
    /// its slice is long enough for its requests in the device. In all other cases the error has
    /// the reason. A slice without an end is too short: its length is not known yet.
    fn queue_limit(&self, now: Jiffies, id: QueueId) -> Result<Option<u32>, DepthLimit> {
        let queue = &self.queues[id];
        let in_device = queue.in_device;
        // A quantum of 1 has no half: one request is always allowed.
        let limit = if queue.is_idle_class() { 1 } else { (self.tunables.quantum / 2).max(1) };
        if in_device < limit {
            return Ok(Some(limit));
        }
        if queue.is_idle_class() {
            return Err(DepthLimit { why: "idle_class", in_device, limit });
        }
        if self.trees.busy_queues() == 1 {
            return Ok(None);
        }
        // A request in the device is assumed to take the idle time of a slice.
        let serving_end = now + self.tunables.slice_idle * Jiffies::from(in_device);
        if queue.slice_end.is_none_or(|end| serving_end > end) {
            return Err(DepthLimit { why: "slice_used_soon", in_device, limit });
        }
        Ok(Some(self.tunables.quantum))
    }

    /// Limit of asynchronous requests in the device: the time since a synchronous request was last
    /// late, in slices of `slice_sync`. It thus grows slowly after a late one. It is at least one
    /// if none is in the device (`in_device` is 0), so that they make progress.
    fn async_depth(&self, now: Jiffies, in_device: u32) -> u32 {
        let slices = (now - self.last_late_sync) / self.tunables.slice_sync;
        // Never negative: the last late request is not in the future.
        let depth = u32::try_from(slices).unwrap_or(0);
        if depth == 0 && in_device == 0 { 1 } else { depth }
    }

    /// Reports a completion to the detector, before the request is removed from the counts. A
    /// completion while the active queue has an idle window (idling for it pays) and few requests
    /// does not count: the scheduler itself keeps the device below its depth then.
    pub(super) fn observe_load(&mut self, now: Time) {
        let is_idled_for = self.active.is_some_and(|id| {
            let queue = &self.queues[id];
            let requests = queue.in_device + queue.requests.count() as u32;
            queue.has_idle_window && requests < QUEUEING_DEPTH_MIN
        });
        let in_device = self.in_device();
        let load = LoadSample {
            queued: self.queued as u32,
            in_device,
            is_held_back: is_idled_for && in_device < QUEUEING_DEPTH_MIN,
        };
        if let Some((is_queueing, peak)) = self.queueing.observe(load) {
            self.log.log_with(now, || Decision::Queueing { is_queueing, peak });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 50 completions under load give no verdict, the 51st gives it. The load is 9 queued requests.
    #[test]
    fn a_device_with_five_requests_at_once_queues_internally() {
        let verdict_after_51 = |in_device, is_held_back| {
            let mut detector = QueueingDetector::default();
            (0..51)
                .find_map(|_| detector.observe(LoadSample { queued: 9, in_device, is_held_back }))
        };
        let (held_back, not_held_back) = (true, false);
        assert_eq!(verdict_after_51(5, not_held_back), Some((true, 5)));
        assert_eq!(verdict_after_51(4, not_held_back), Some((false, 4)));
        assert_eq!(verdict_after_51(1, held_back), None, "held back: no evidence");
        assert!(QueueingDetector::default().is_queueing(), "assumed before the verdict");
    }
}
