//! A device that turns into another device at a given time.
//!
//! It models members added to an array, a mount that moves to a slower server, or a drive that
//! throttles. A policy that has learned the properties of the first device must adapt to the
//! second. The first device serves all requests submitted before the change, the second all later
//! ones. Both exist from the start, so requests in flight at the change complete normally.

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, RequestId};
use readpath_core::unit::Time;

use super::parameter_spec::{ParameterQuantity, ParameterSpec, ParameterValues};
use super::parted_request::PartedRequest;
use super::{BoxedDevice, Device};

/// Parameters of `changing`.
pub const PARAMETERS: [ParameterSpec; 1] = [ParameterSpec {
    key: "at",
    description: "when the second member takes over",
    quantity: ParameterQuantity::Time,
    default: 2_000_000_000,
    least: 0,
    most: 1 << 50,
    source: "chosen: long enough for a policy to have settled on the first",
}];

/// Two devices, with the time at which the second replaces the first.
pub struct Changing {
    /// Limits that both devices satisfy.
    caps: DeviceCaps,
    /// Device before the change.
    first: BoxedDevice,
    /// Device from the change on.
    second: BoxedDevice,
    /// Time of the change: requests submitted from then on go to `second`.
    change_time: Time,
    /// Flushes that at least one device has not completed.
    flushes_in_flight: Vec<FlushInFlight>,
}

/// A flush of both members.
struct FlushInFlight {
    /// Identifier of the flush at both members. No request in flight has it.
    id: RequestId,
    /// Flushes of the two members.
    parts: PartedRequest,
}

impl Changing {
    /// Creates a device that is `first` until the time in `spec`, and then `second`. Its limits are
    /// the stricter of both: the smaller address space, the smaller requests, the lower queue
    /// depth, the larger alignment. It counts as rotational if one of them does.
    ///
    /// # Errors
    /// Fails on an unknown parameter and on an invalid value.
    pub fn from_spec(
        spec: &Spec,
        first: BoxedDevice,
        second: BoxedDevice,
    ) -> Result<Changing, SpecError> {
        let change_time = Time(ParameterValues::read(spec, &PARAMETERS)?.of("at"));
        let (first_caps, second_caps) = (first.caps(), second.caps());
        let caps = DeviceCaps {
            sectors: first_caps.sectors.min(second_caps.sectors),
            request_sectors_max: first_caps
                .request_sectors_max
                .min(second_caps.request_sectors_max),
            depth_max: first_caps.depth_max.min(second_caps.depth_max),
            is_rotational: first_caps.is_rotational || second_caps.is_rotational,
            alignment_sectors: first_caps.alignment_sectors.max(second_caps.alignment_sectors),
        };
        Ok(Changing { caps, first, second, change_time, flushes_in_flight: Vec::new() })
    }
}

impl Device for Changing {
    /// Limits that both devices satisfy.
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Sends the request to the device of the time `now`.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let device = if now < self.change_time { &mut self.first } else { &mut self.second };
        device.submit(now, request);
    }

    /// Flushes both members, because both may contain unflushed writes.
    fn flush(&mut self, now: Time, id: RequestId) {
        self.first.flush(now, id);
        self.second.flush(now, id);
        // A flush moves no sectors, and has a part in each member.
        let (sectors, part_count) = (0, 2);
        let parts = PartedRequest::new(sectors, part_count);
        self.flushes_in_flight.push(FlushInFlight { id, parts });
    }

    /// Returns the time of the next event of either device.
    fn next_event(&self) -> Option<Time> {
        [self.first.next_event(), self.second.next_event()].into_iter().flatten().min()
    }

    /// Returns the next completion of either device, for a flush only the second of its two. The
    /// flush fails if one of them does.
    fn poll(&mut self, now: Time) -> Option<Completion> {
        loop {
            let completion = self.first.poll(now).or_else(|| self.second.poll(now))?;
            let flush = self.flushes_in_flight.iter().position(|flush| flush.id == completion.id);
            let Some(index) = flush else { return Some(completion) };
            let parts = &mut self.flushes_in_flight[index].parts;
            // Only a short transfer has an offset. A flush fails or is done.
            let any_offset = 0;
            parts.record_outcome(any_offset, completion.outcome);
            if let Some(outcome) = parts.end_part() {
                self.flushes_in_flight.swap_remove(index);
                return Some(Completion { outcome, ..completion });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use readpath_core::request::{Op, RequestId};

    use super::*;
    use crate::registry::build;

    /// Reads 4 KiB at each of `reads` positions in turn, from time 0 on. Returns response times.
    fn response_times(device: &mut dyn Device, reads: u64) -> Vec<Time> {
        let mut now = Time::ZERO;
        let mut response_times = Vec::new();
        for nth in 0..reads {
            let start = nth * 1_000_000;
            device.submit(now, DeviceRequest { id: RequestId(0), op: Op::Read, start, sectors: 8 });
            let completion = loop {
                let next = device.next_event().expect("a request is under way");
                if let Some(completion) = device.poll(next) {
                    break completion;
                }
            };
            response_times.push(completion.at - now);
            now = completion.at;
        }
        response_times
    }

    #[test]
    fn changing_device_switches_to_its_second_member_at_the_given_time() {
        let device = |text: &str| build(&Spec::parse(text).unwrap(), 1).unwrap();
        let changing = response_times(&mut *device("changing:nvme+ssd,at=700us"), 14);
        let [nvme, ssd] = ["nvme", "ssd"].map(|name| response_times(&mut *device(name), 14));
        // Index of the first read that the second device served.
        let first_of_ssd = changing.iter().zip(&nvme).position(|(changing, nvme)| changing != nvme);
        let first_of_ssd = first_of_ssd.expect("the devices differ in a response time");
        // The first device also served the request in flight at 700 µs.
        let nvme_ns: u64 = changing[..first_of_ssd].iter().map(|time| time.ns()).sum();
        let last_of_nvme_ns = nvme[first_of_ssd - 1].ns();
        assert!((700_000..700_000 + last_of_nvme_ns).contains(&nvme_ns), "{nvme_ns} ns");
        // With one request in flight, response times do not depend on earlier requests.
        assert_eq!(changing[first_of_ssd..], ssd[..14 - first_of_ssd]);
    }

    #[test]
    fn changing_device_has_the_capabilities_common_to_both_members() {
        let caps = |text: &str| build(&Spec::parse(text).unwrap(), 1).unwrap().caps();
        let (both, hdd, nvme) = (caps("changing:hdd+nvme"), caps("hdd"), caps("nvme"));
        assert_eq!(both.depth_max, hdd.depth_max.min(nvme.depth_max));
        assert_eq!(both.sectors, hdd.sectors.min(nvme.sectors));
        assert!(both.is_rotational);
    }
}
