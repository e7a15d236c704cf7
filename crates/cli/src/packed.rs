//! The bytes of a trace, which is often compressed where it is published.
//!
//! A few bytes of a compressed file can stand for more than a machine has memory. So a trace may have, as it is and
//! unpacked, half of the machine's memory and no more.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use readpath_sim::input_file::{self, up_to};

use crate::exit::Failure;

/// The name of a trace without the ending of its compression, and its bytes.
pub fn read(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let most = bytes_max();
    let packed = input_file::bytes(path, most).map_err(|error| {
        Failure::Usage(format!("{}: {error}; name a trace that can be read", path.display()))
    })?;
    let Some((bare, ending)) = name.rsplit_once('.') else { return Ok((name, packed)) };
    let unpack: Unpack = match ending {
        "gz" => gzip,
        "xz" => xz,
        "zst" => zstd,
        _ => return Ok((name, packed)),
    };
    match unpack(&packed, most) {
        Ok(bytes) => Ok((bare.to_owned(), bytes)),
        Err(error) => Err(Failure::Usage(format!(
            "{}: is no .{ending} file, is cut off, or is too large unpacked: {error}",
            path.display()
        ))),
    }
}

/// Gives the bytes that packed ones stand for, of which there may be so many.
type Unpack = fn(&[u8], u64) -> Result<Vec<u8>, String>;

/// How long a trace may be: half of the machine's memory.
fn bytes_max() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram as u64).saturating_mul(system.mem_unit.into()) / 2
}

fn gzip(packed: &[u8], most: u64) -> Result<Vec<u8>, String> {
    up_to(flate2::read::MultiGzDecoder::new(packed), most).map_err(told)
}

fn zstd(packed: &[u8], most: u64) -> Result<Vec<u8>, String> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(packed).map_err(told)?;
    up_to(decoder, most).map_err(told)
}

fn xz(mut packed: &[u8], most: u64) -> Result<Vec<u8>, String> {
    let mut kept = Kept { bytes: Vec::new(), most };
    lzma_rs::xz_decompress(&mut packed, &mut kept).map_err(told)?;
    Ok(kept.bytes)
}

/// Keeps what is written to it, up to so many bytes.
struct Kept {
    bytes: Vec<u8>,
    most: u64,
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.most {
            let what = format!("it has more than {} bytes, the most that is read here", self.most);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn told(error: impl Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 MiB of zeros, packed by each program that is there, in a few kilobytes.
    #[test]
    fn what_is_unpacked_is_bounded() {
        let decoders: [(&str, Unpack); 3] = [("gzip", gzip), ("xz", xz), ("zstd", zstd)];
        for (program, unpack) in decoders {
            let text = format!("head -c 16777216 /dev/zero | {program} -c");
            let packed = std::process::Command::new("sh").args(["-c", &text]).output().unwrap();
            if packed.stdout.is_empty() {
                println!("skipped: {program} is not installed");
                continue;
            }
            assert!(packed.stdout.len() < 1 << 17, "{program}");
            assert_eq!(unpack(&packed.stdout, 16 << 20).map(|bytes| bytes.len()), Ok(16 << 20));
            let error = unpack(&packed.stdout, (16 << 20) - 1).unwrap_err();
            assert!(error.contains("more than 16777215 bytes"), "{program}: {error}");
        }
    }
}
