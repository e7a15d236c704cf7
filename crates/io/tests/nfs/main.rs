//! Files on a real NFS server, through a proxy that observes the wire.

#[path = "../support/mod.rs"]
mod support;

mod counts;
mod faults;
mod file_api;
mod ganesha;
mod opening;
mod proxy;
mod rig;
mod server;
