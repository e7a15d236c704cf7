//! Bytes of a trace, which is often compressed where it is published (`.gz`, `.xz`, `.zst`).
//!
//! A few bytes of a compressed file can expand to more than the memory of a machine. A trace that
//! is read whole may take half of the machine's memory: its file may, and so may its unpacked
//! bytes. A trace that is read as a stream has no limit, except `.xz`, which is unpacked whole.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Write};
use std::path::Path;

use readpath_models::input_file::{self, read_at_most};
use readpath_sim::job::printable;

use crate::exit::Failure;

/// Size of the buffer of a stream in bytes. Lines are read within it, and a large buffer cuts few
/// lines.
const BUFFER_BYTES: usize = 64 << 10;

/// Stream of the unpacked bytes of a trace.
pub type UnpackedStream = Box<dyn BufRead + Send>;

/// Opens a trace as a stream. The ending of the name selects the decompression.
///
/// # Errors
/// The file can't be read, or its first bytes are not of the compression that its name says.
pub fn open(path: &Path) -> Result<UnpackedStream, Failure> {
    let failure =
        |error: io::Error| Failure::usage_of(printable(&path.display().to_string()), error);
    let file = || File::open(path).map_err(failure);
    let buffered = || file().map(|file| BufReader::with_capacity(BUFFER_BYTES, file));
    let ending = path.extension().unwrap_or_default().to_string_lossy().into_owned();
    let unpacked: Box<dyn Read + Send> = match ending.as_str() {
        "gz" => Box::new(flate2::read::MultiGzDecoder::new(buffered()?)),
        "zst" => match ruzstd::decoding::StreamingDecoder::new(buffered()?) {
            Ok(decoder) => Box::new(decoder),
            Err(error) => return Err(unpack_failure(path, &ending, &error_text(error))),
        },
        "xz" => {
            let (_, bytes) = read(path)?;
            Box::new(Cursor::new(bytes))
        }
        _ => return buffered().map(|stream| Box::new(stream) as UnpackedStream),
    };
    let mut stream = BufReader::with_capacity(BUFFER_BYTES, unpacked);
    match stream.fill_buf() {
        Ok(_) => Ok(Box::new(stream)),
        Err(error) => Err(unpack_failure(path, &ending, &error_text(error))),
    }
}

/// Creates the failure for a file that cannot be unpacked.
fn unpack_failure(path: &Path, ending: &str, error: &str) -> Failure {
    Failure::Usage(format!(
        "{}: is no .{ending} file, is cut off, or is too large unpacked: {error}",
        path.display()
    ))
}

/// Returns the name of a trace without the ending of its compression, and its unpacked bytes. The
/// ending selects the decompression; a file with another ending is returned as it is. The file and
/// its unpacked bytes may each take half of the machine's memory.
pub fn read(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bytes_max_unpacked = half_of_memory_bytes();
    let compressed = input_file::bytes(path, bytes_max_unpacked).map_err(|error| {
        Failure::Usage(format!("{}: {error}; name a trace that can be read", path.display()))
    })?;
    let Some((unpacked_name, ending)) = name.rsplit_once('.') else {
        return Ok((name, compressed));
    };
    let unpack: Unpack = match ending {
        "gz" => unpack_gzip,
        "xz" => unpack_xz,
        "zst" => unpack_zstd,
        _ => return Ok((name, compressed)),
    };
    match unpack(&compressed, bytes_max_unpacked) {
        Ok(bytes) => Ok((unpacked_name.to_owned(), bytes)),
        Err(error) => Err(unpack_failure(path, ending, &error)),
    }
}

/// Decompressor: takes the compressed bytes and the largest allowed decompressed size in bytes.
type Unpack = fn(&[u8], u64) -> Result<Vec<u8>, String>;

/// Largest size of a trace in bytes: half of the machine's memory.
fn half_of_memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram as u64).saturating_mul(system.mem_unit.into()) / 2
}

/// Decompresses gzip, also several files in one. More than `bytes_max` bytes are an error.
fn unpack_gzip(compressed: &[u8], bytes_max: u64) -> Result<Vec<u8>, String> {
    read_at_most(flate2::read::MultiGzDecoder::new(compressed), bytes_max).map_err(error_text)
}

/// Decompresses zstd. More than `bytes_max` bytes are an error.
fn unpack_zstd(compressed: &[u8], bytes_max: u64) -> Result<Vec<u8>, String> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(compressed).map_err(error_text)?;
    read_at_most(decoder, bytes_max).map_err(error_text)
}

/// Decompresses xz into a buffer that refuses more than `bytes_max` bytes.
fn unpack_xz(mut compressed: &[u8], bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut unpacked = BoundedBuffer { bytes: Vec::new(), limit_bytes: bytes_max };
    lzma_rs::xz_decompress(&mut compressed, &mut unpacked).map_err(error_text)?;
    Ok(unpacked.bytes)
}

/// Writer that keeps the bytes in memory. More than `limit_bytes` bytes are an error.
struct BoundedBuffer {
    /// The bytes written so far.
    bytes: Vec<u8>,
    /// Largest allowed length of `bytes`.
    limit_bytes: u64,
}

impl Write for BoundedBuffer {
    /// Appends the bytes, and fails beyond the limit.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.limit_bytes {
            let message =
                format!("it has more than {} bytes, the most that is read here", self.limit_bytes);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Has no effect: no byte is held back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts an error of a decoder to its message.
fn error_text(error: impl Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 MiB of zeros, packed to a few kilobytes by each installed program. A limit of exactly
    /// 16 MiB is enough, and one byte less is not.
    #[test]
    fn decompressed_size_is_limited() {
        let decoders: [(&str, Unpack); 3] =
            [("gzip", unpack_gzip), ("xz", unpack_xz), ("zstd", unpack_zstd)];
        for (program, unpack) in decoders {
            let text = format!("head -c 16777216 /dev/zero | {program} -c");
            let compressed = std::process::Command::new("sh").args(["-c", &text]).output().unwrap();
            if compressed.stdout.is_empty() {
                println!("skipped: {program} is not installed");
                continue;
            }
            assert!(compressed.stdout.len() < 1 << 17, "{program}");
            assert_eq!(unpack(&compressed.stdout, 16 << 20).map(|bytes| bytes.len()), Ok(16 << 20));
            let error = unpack(&compressed.stdout, (16 << 20) - 1).unwrap_err();
            assert!(error.contains("more than 16777215 bytes"), "{program}: {error}");
        }
    }
}
