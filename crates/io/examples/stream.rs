//! Reads a file, local or on an NFS server, from start to end, and counts its lines.
//!
//! ```text
//! cargo run --release -p readpath --example stream -- FILE
//! cargo run --release -p readpath --example stream -- nfs://HOST/EXPORT/FILE
//! ```

use std::error::Error;
use std::io::BufRead;

use readpath::File;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: stream FILE")?;
    let file = File::open(&name)?;
    let mut reader = file.reader();
    let (mut lines, mut bytes) = (0, 0);
    loop {
        // The cached pages themselves, without a copy.
        let page = reader.fill_buf()?;
        if page.is_empty() {
            break;
        }
        lines += page.iter().filter(|&&byte| byte == b'\n').count();
        let seen = page.len();
        bytes += seen;
        reader.consume(seen);
    }
    println!("{lines} lines, {bytes} bytes");
    let stats = file.read_path().stats();
    println!("{} reads of the device, {} bytes", stats.device_reads, stats.device_bytes);
    Ok(())
}
