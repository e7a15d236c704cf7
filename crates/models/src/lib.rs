//! Modelled storage devices in virtual time.
//!
//! Each model has a published source for its parameters. [`registry`] makes a device from its name.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, RequestId};
use readpath_core::unit::Time;

pub mod agenda;
pub mod array;
pub mod changing;
pub mod due;
pub mod earliest;
pub mod faulty;
pub mod fields;
pub mod hdd;
pub mod input_file;
pub mod measure;
pub mod measured;
pub mod nfs;
pub mod numbered_slab;
pub mod object;
pub mod parameter;
pub mod parameter_spec;
mod parted_request;
pub mod path_text;
pub mod raid0;
pub mod random;
pub mod rate;
pub mod registry;
pub mod smr;
pub mod ssd;
pub mod validate;
pub mod volume;

/// A simulated device of any type. It can be moved to another thread.
pub type BoxedDevice = Box<dyn Device + Send>;

/// A simulated device: it accepts requests and completes them later, in virtual time.
///
/// Callers obey this order of calls:
///
/// - `submit` while fewer than `depth_max` requests are in flight.
/// - `flush` at any time, with an identifier that no request in flight has.
/// - `next_event` returns the time of the next event inside the device.
/// - `poll(now)` returns one finished request or flush per call, until it returns `None`. `now`
///   never decreases and never exceeds `next_event`.
pub trait Device {
    /// Returns the limits of the device: size, largest request, queue depth. They never change.
    fn caps(&self) -> DeviceCaps;

    /// Accepts a request. The caller has checked that it lies within the device, is no larger than
    /// the largest request, and that the queue has room.
    fn submit(&mut self, now: Time, request: DeviceRequest);

    /// Makes all writes that were reported complete by `now` durable. A completion with this `id`
    /// reports the end of the flush.
    fn flush(&mut self, now: Time, id: RequestId);

    /// Returns the time of the next internal event, or `None` when the device is idle. It can be
    /// earlier than the next completion: `poll` then returns `None`.
    fn next_event(&self) -> Option<Time>;

    /// Advances the device to `now` and returns the next finished request, if any.
    fn poll(&mut self, now: Time) -> Option<Completion>;
}
