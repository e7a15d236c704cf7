//! Files on a real NFS server, over a wire that is watched.

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
