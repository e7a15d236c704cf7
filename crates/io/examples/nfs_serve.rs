//! Serves one file by NFS version 3 on loopback, read-only, to try the client from other programs.
//! It uses the server of the tests with its `/data`.
//!
//! ```text
//! cargo run -p readpath --example nfs_serve -- FILE
//! ```
//!
//! Prints the URL of the file, `nfs://127.0.0.1:PORT/data/file`. The server ends at the end of its
//! standard input, so it never outlives its parent.

use std::io::Read;

#[path = "../tests/nfs/server.rs"]
mod server;

/// READ size in bytes that the server prefers: the value of Linux's own server.
const READ_BYTES: u32 = 1 << 20;

fn main() {
    let name = std::env::args().nth(1).expect("FILE");
    let content = std::fs::read(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let server = server::Server::start(content, READ_BYTES);
    println!("nfs://127.0.0.1:{}/data/file", server.port);
    std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input can be read");
}
