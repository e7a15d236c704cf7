//! The NFS client as a storage, through a proxy that observes the wire.

extern crate readpath_dst as readpath;

mod counts;
#[path = "../support/device.rs"]
mod device;
#[path = "../../../io/tests/nfs/draw.rs"]
mod draw;
mod faults;
mod opening;
#[path = "../../../io/tests/nfs/proxy.rs"]
mod proxy;
mod rig;
#[path = "../../../io/tests/nfs/server.rs"]
mod server;
#[path = "../../../io/tests/support/mod.rs"]
mod support;
