//! Files on NFS version 3 servers, read from user space without a mount and without root.
//!
//! A request reaches the wire in as few READs as the server's largest one (`rsize`) allows, all in
//! flight at once on one connection. From the bottom up:
//!
//! - `xdr`, `records`, `rpc`: values, records on a stream, calls and replies;
//! - `procedures`, `mount`, `status`: the procedures needed to read a file;
//! - `client`: state machine of the calls in flight, without I/O; `call_results`: its interface to
//!   the caller;
//! - `socket`, `connection`, `server_link`: system calls, the connection, the client on it;
//! - `url`, `options`: the user's input ([`NfsUrl`], [`NfsOptions`]);
//! - `lookup`: from names to a file, over symbolic links;
//! - `target`: an opened file; `error`: reasons of a failed open ([`NfsError`]);
//! - `storage`: the file as a storage of the machine; `calls_in_flight`: its READs and their
//!   memory.
//!
//! The protocol is implemented here and not taken from a library. The pure Rust implementations
//! (`nfs3_types` and the clients based on it) trust a length from the wire before they check that
//! the bytes exist. A reply of forty bytes reserves sixteen gigabytes. They copy the data of each
//! READ into separate memory, and have one call in flight. libnfs has its own event loop and
//! memory. Reading needs five procedures. The tests compare each of them with `nfs3_types`.

mod call_results;
mod calls_in_flight;
mod client;
mod connection;
pub(crate) mod error;
pub(crate) mod lookup;
mod mount;
mod options;
mod printable;
pub(crate) mod procedures;
pub(crate) mod records;
pub(crate) mod rpc;
mod server_link;
pub(crate) mod socket;
mod status;
pub(crate) mod storage;
pub(crate) mod target;
pub(crate) mod url;
mod xdr;

pub use client::Traffic;
pub use error::{NfsError, NfsStep};
pub use options::{NfsOptions, SourcePort};
pub(crate) use procedures::Attributes;
pub use rpc::{CallError, Credentials};
pub use status::Status;
pub use storage::Connection;
pub use url::{NfsUrl, UrlError};
