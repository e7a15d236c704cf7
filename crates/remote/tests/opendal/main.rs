//! The layer for OpenDAL: bytes, versions, errors and request counts.

#[path = "../http/server.rs"]
#[allow(dead_code)]
mod server;
mod support;

mod behaviour;
mod counts;
mod faults;
mod versions;
