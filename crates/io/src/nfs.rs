//! Files on NFS version 3 servers, read from user space: no mount, no root.
//!
//! What was asked reaches the wire in as few READs as the server's largest one
//! (`rsize`) allows, all in flight at once on one connection. From the bottom up:
//!
//! - `xdr`, `records`, `rpc`: values, records on a stream, calls and replies;
//! - `calls`, `mount`, `status`: the procedures that reading a file takes;
//! - `client`: which calls are sent, sent again, answered, given up; pure; `caller`: for whom;
//! - `socket`, `connection`, `link`: what the system is asked for, the connection, the client on it;
//! - `url`, `options`: what a user says ([`NfsUrl`], [`NfsOptions`]);
//! - `lookup`: from names to a file, over symbolic links;
//! - `target`: the file, found; `error`: why not ([`NfsError`]);
//! - `storage`: the file under the machine; `reading`: its READs and their memory.
//!
//! The protocol is written here and not taken from a library. Of those that
//! there are, the pure ones (`nfs3_types`, and the clients upon it) believe a
//! length from the wire before they look whether the bytes are there: a reply
//! of forty bytes reserves sixteen gigabytes. They copy the data of each READ
//! into memory of its own, and have one call in flight; libnfs brings an event
//! loop and memory of its own. Reading takes five procedures. `nfs3_types` is
//! what the tests hold each of them against.

mod caller;
mod calls;
mod client;
mod connection;
pub(crate) mod error;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod garbage;
mod link;
pub(crate) mod lookup;
mod mount;
mod options;
mod printable;
mod reading;
mod records;
mod rpc;
pub(crate) mod socket;
mod status;
pub(crate) mod storage;
pub(crate) mod target;
pub(crate) mod url;
mod xdr;

pub(crate) use calls::Attributes;
pub use client::Traffic;
pub use error::{NfsError, NfsStep};
pub use options::{NfsOptions, SourcePort};
pub use rpc::{CallError, Credentials};
pub use status::Status;
pub use storage::Connection;
pub use url::{NfsUrl, UrlError};
