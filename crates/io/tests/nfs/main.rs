//! Files on a real NFS server, through a proxy that observes the wire.

#[path = "../support/mod.rs"]
mod support;

mod draw;
mod file_api;
mod ganesha;
mod proxy;
mod server;
