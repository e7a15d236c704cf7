//! What the machine counts.

use crate::request::{Op, Request};
use crate::unit::Time;

/// Counters of one read path since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Bytes that reads asked for, cut at the end of the file.
    pub asked_bytes: u64,
    /// Those of them that were in the cache when the read came.
    pub hit_bytes: u64,
    /// Bytes that writes asked for.
    pub written_bytes: u64,
    /// Reads that the device was given.
    pub device_reads: u64,
    /// Bytes that the device was asked to read.
    pub device_read_bytes: u64,
    /// Writes that the device was given.
    pub device_writes: u64,
    /// Bytes that the device was asked to write.
    pub device_write_bytes: u64,
    /// The most requests that were in the device at once.
    pub depth_max: u32,
    in_device: u32,
    changed: Time,
    /// Requests in the device, summed over time: requests × ns.
    depth_ns: u128,
    /// Time with at least one request in the device.
    busy_ns: u64,
}

impl Meter {
    /// How many requests are in the device now.
    pub fn in_device(&self) -> u32 {
        self.in_device
    }

    /// The mean number of requests in the device while it had any, in
    /// thousandths; None when it never had one.
    pub fn depth_mean_milli(&self) -> Option<u64> {
        (self.busy_ns > 0).then(|| (self.depth_ns * 1000 / u128::from(self.busy_ns)) as u64)
    }

    /// How long the device had at least one request, in nanoseconds.
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    pub(super) fn dispatched(&mut self, now: Time, request: &Request) {
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

    pub(super) fn completed(&mut self, now: Time) {
        self.integrate(now);
        self.in_device -= 1;
    }

    fn integrate(&mut self, now: Time) {
        let span = now.since(self.changed).ns();
        self.depth_ns += u128::from(self.in_device) * u128::from(span);
        self.busy_ns += if self.in_device > 0 { span } else { 0 };
        self.changed = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Need, Priority, ProcessId};

    /// One request from 0 to 2 ms and one from 1 to 4 ms: 5 ms in the device together, which was busy for 4; what comes after a rest of 6 ms
    /// begins at 10 and takes 1, so that it is 6 of 5.
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
        meter.dispatched(Time::ZERO, &request);
        meter.dispatched(Time::from_ms(1), &request);
        meter.completed(Time::from_ms(2));
        meter.completed(Time::from_ms(4));
        assert_eq!(meter.depth_mean_milli(), Some(1_250));
        meter.dispatched(Time::from_ms(10), &request);
        meter.completed(Time::from_ms(11));
        assert_eq!(meter.depth_mean_milli(), Some(1_200));
        assert_eq!((meter.depth_max, meter.device_read_bytes), (2, 3 * 4096));
    }
}
