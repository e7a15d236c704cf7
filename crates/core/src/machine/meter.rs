//! Counters of the machine.

use crate::request::{Op, Request};
use crate::unit::Time;

/// Counters of one machine since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Bytes requested by reads, clipped at the end of the file, and the pages of faults that had
    /// to be read from the swap area.
    pub requested_bytes: u64,
    /// The part of them that was in the cache when the read or fault began.
    pub hit_bytes: u64,
    /// Bytes requested by writes.
    pub written_bytes: u64,
    /// Reads sent to the device.
    pub device_reads: u64,
    /// Bytes of these reads.
    pub device_read_bytes: u64,
    /// Writes sent to the device.
    pub device_writes: u64,
    /// Bytes of these writes.
    pub device_write_bytes: u64,
    /// Largest observed number of requests in the device at once.
    pub depth_max: u32,
    /// Number of requests in the device now.
    in_device: u32,
    /// Time up to which the integrals below are computed.
    integrated_until: Time,
    /// Requests in the device, integrated over time: requests × ns.
    depth_ns: u128,
    /// Time with at least one request in the device, in nanoseconds.
    busy_ns: u64,
}

impl Meter {
    /// Number of requests in the device now.
    pub fn in_device(&self) -> u32 {
        self.in_device
    }

    /// Mean number of requests in the device while it had any, in thousandths; `None` if it never
    /// had one.
    pub fn depth_mean_milli(&self) -> Option<u64> {
        (self.busy_ns > 0).then(|| (self.depth_ns * 1000 / u128::from(self.busy_ns)) as u64)
    }

    /// Time with at least one request in the device, in nanoseconds.
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Counts a request sent to the device at `now`, after updating the integrals.
    pub(super) fn on_dispatch(&mut self, now: Time, request: &Request) {
        self.integrate(now);
        self.in_device += 1;
        self.depth_max = self.depth_max.max(self.in_device);
        match request.op {
            Op::Read => {
                self.device_reads += 1;
                self.device_read_bytes += request.bytes();
            }
            Op::Write => {
                self.device_writes += 1;
                self.device_write_bytes += request.bytes();
            }
        }
    }

    /// Removes a request that completed at `now` from the requests in the device.
    pub(super) fn on_completion(&mut self, now: Time) {
        self.integrate(now);
        self.in_device -= 1;
    }

    /// Adds the time since the last call to the integrals `depth_ns` and `busy_ns`.
    fn integrate(&mut self, now: Time) {
        let elapsed_ns = now.since(self.integrated_until).ns();
        self.depth_ns += u128::from(self.in_device) * u128::from(elapsed_ns);
        self.busy_ns += if self.in_device > 0 { elapsed_ns } else { 0 };
        self.integrated_until = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Need, Priority, ProcessId};

    /// One request from 0 to 2 ms and one from 1 to 4 ms: 2 + 3 = 5 ms of requests in 4 busy ms, a
    /// mean depth of 1.25. A third one after a pause, from 10 to 11 ms: 6 ms in 5 busy ms, 1.2.
    #[test]
    fn the_mean_depth_excludes_idle_time() {
        let request = Request {
            op: Op::Read,
            start: 0,
            sectors: 8,
            process: ProcessId(0),
            priority: Priority::default(),
            is_sync: true,
            need: Need::Demand,
        };
        let mut meter = Meter::default();
        assert_eq!(meter.depth_mean_milli(), None);
        meter.on_dispatch(Time::ZERO, &request);
        meter.on_dispatch(Time::from_ms(1), &request);
        meter.on_completion(Time::from_ms(2));
        meter.on_completion(Time::from_ms(4));
        assert_eq!(meter.depth_mean_milli(), Some(1_250));
        meter.on_dispatch(Time::from_ms(10), &request);
        meter.on_completion(Time::from_ms(11));
        assert_eq!(meter.depth_mean_milli(), Some(1_200));
        assert_eq!((meter.depth_max, meter.device_read_bytes), (2, 3 * 4096));
    }
}
