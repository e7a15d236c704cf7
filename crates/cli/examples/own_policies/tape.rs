//! `tape`: a tape drive. It winds to the place of a request, and then reads or writes at a constant
//! rate. The parameters are chosen, without a published source.

use std::collections::VecDeque;

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};
use readpath_models::Device;
use readpath_models::parameter_spec::{ParameterQuantity, ParameterSpec, ParameterValues};

/// Parameters of the device.
pub const PARAMETERS: [ParameterSpec; 2] = [
    ParameterSpec {
        key: "rate",
        description: "bytes read or written in a second",
        quantity: ParameterQuantity::BytesPerSecond,
        default: 10_000_000,
        least: 1_000,
        most: 10_000_000_000,
        source: "chosen",
    },
    ParameterSpec {
        key: "winding",
        description: "time to wind over 1 MiB",
        quantity: ParameterQuantity::Time,
        default: 10_000_000,
        least: 0,
        most: 1_000_000_000,
        source: "chosen",
    },
];

/// Length of the tape in bytes.
const TAPE_BYTES: u64 = 8 << 30;

/// A tape drive with one request at a time.
#[derive(Debug)]
pub struct Tape {
    bytes_per_second: u64,
    ns_per_mib: u64,
    /// Byte behind the last request.
    position: u64,
    free_at: Time,
    in_flight: VecDeque<(Time, RequestId)>,
}

impl Tape {
    /// A tape drive with the parameters of `spec`.
    ///
    /// # Errors
    /// A parameter is unknown, or its value is invalid.
    pub fn from_spec(spec: &Spec) -> Result<Tape, SpecError> {
        let values = ParameterValues::read(spec, &PARAMETERS)?;
        Ok(Tape {
            bytes_per_second: values.of("rate"),
            ns_per_mib: values.of("winding"),
            position: 0,
            free_at: Time(0),
            in_flight: VecDeque::new(),
        })
    }
}

impl Device for Tape {
    fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            sectors: TAPE_BYTES / SECTOR_BYTES,
            // Requests of up to 1 MiB, in whole pages of 4 KiB.
            request_sectors_max: 2048,
            depth_max: 1,
            is_rotational: true,
            alignment_sectors: 8,
        }
    }

    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let bytes = u64::from(request.sectors) * SECTOR_BYTES;
        let start = request.start * SECTOR_BYTES;
        // A MiB has 2²⁰ bytes.
        let winding = (start.abs_diff(self.position) * self.ns_per_mib) >> 20;
        let transfer = bytes * 1_000_000_000 / self.bytes_per_second;
        self.free_at = self.free_at.max(now) + Time(winding + transfer);
        self.position = start + bytes;
        self.in_flight.push_back((self.free_at, request.id));
    }

    fn flush(&mut self, now: Time, id: RequestId) {
        self.free_at = self.free_at.max(now);
        self.in_flight.push_back((self.free_at, id));
    }

    fn next_event(&self) -> Option<Time> {
        self.in_flight.front().map(|&(at, _)| at)
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        let &(at, id) = self.in_flight.front().filter(|(at, _)| *at <= now)?;
        self.in_flight.pop_front();
        Some(Completion::at(at, id, Outcome::Done))
    }
}
