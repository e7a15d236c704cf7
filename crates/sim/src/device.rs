//! Modelled devices, in virtual time.

use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, RequestId};
use readpath_core::unit::Time;

pub mod agenda;
pub mod array;
pub mod changing;
pub mod due;
pub mod earliest;
pub mod faulty;
pub mod hdd;
pub mod measured;
pub mod nfs;
pub mod object;
pub mod parameter;
pub mod parameter_spec;
pub mod places;
pub mod raid0;
pub mod random;
pub mod rate;
pub mod registry;
pub mod ssd;

/// Any modelled device; it may be handed to another thread.
pub type BoxedDevice = Box<dyn Device + Send>;

/// A device that takes requests and finishes them later, in virtual time.
///
/// Order of calls: `submit` while fewer than `depth_max` requests are in it, and `flush`
/// at any time, under a name that no request has; `next_event` says when it next needs to be looked at; `poll(now)`, with a
/// `now` that never goes backwards and never passes `next_event`, gives the
/// requests and flushes that are finished by then, one a call, until there is none.
pub trait Device {
    /// What it can do; constant over its life.
    fn caps(&self) -> DeviceCaps;

    /// Takes a request in. It lies within the device, is no larger than the
    /// largest request, and there is room for it: the machine saw to that.
    fn submit(&mut self, now: Time, request: DeviceRequest);

    /// Puts everything that was reported written by now on what keeps it without power;
    /// a completion of this name says when that is done.
    fn flush(&mut self, now: Time, id: RequestId);

    /// The earliest time at which something happens inside; `None` when it is idle.
    fn next_event(&self) -> Option<Time>;

    /// Lets time come to `now` and gives the next finished request, if there is one.
    fn poll(&mut self, now: Time) -> Option<Completion>;
}
