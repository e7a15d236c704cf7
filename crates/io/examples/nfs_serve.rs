//! Serves one file by NFS version 3 on loopback, read-only, for trying the client from
//! other programs: the server of the tests, with its `/data`.
//!
//! ```text
//! cargo run -p readpath --example nfs_serve -- FILE
//! ```
//!
//! Prints the URL of the file, `nfs://127.0.0.1:PORT/data/file`. It ends when its standard
//! input does, so that it never outlives who started it.

use std::io::Read;

#[path = "../tests/nfs/server.rs"]
#[allow(dead_code, reason = "its faults are for the tests")]
mod server;

/// What the server says that a READ had best have: Linux's own server says the same.
const READ_BYTES: u32 = 1 << 20;

fn main() {
    let name = std::env::args().nth(1).expect("FILE");
    let content = std::fs::read(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let server = server::Server::start(content, READ_BYTES);
    println!("nfs://127.0.0.1:{}/data/file", server.port);
    std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input can be read");
}
