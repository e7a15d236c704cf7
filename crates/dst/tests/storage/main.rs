//! Storages below the library's interface: targets, backends, and the requests that reach them.

extern crate readpath_dst as readpath;

mod block_device;
mod contract;
#[path = "../support/device.rs"]
mod device;
mod opening;
mod same_requests;
#[path = "../../../io/tests/support/mod.rs"]
mod support;
