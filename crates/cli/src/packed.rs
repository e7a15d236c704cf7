//! Bytes of a trace, which is often compressed where it is published (`.gz`, `.xz`, `.zst`).
//!
//! Programs that compress in parallel write several parts into a file, one after the other, and all
//! of them are read.
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
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::exit::Failure;

/// Size of the buffer of a stream in bytes. Lines are read within it, and a large buffer cuts few
/// lines.
const BUFFER_BYTES: usize = 64 << 10;

/// Stream of the unpacked bytes of a trace.
pub type UnpackedStream = Box<dyn BufRead + Send>;

/// Opens a trace as a stream. The ending of the name selects the decompression.
///
/// # Errors
/// The file can't be read, or its first bytes are not of the compression that its name says. A
/// fault behind them is an error of the stream.
pub fn open(path: &Path) -> Result<UnpackedStream, Failure> {
    let failure =
        |error: io::Error| Failure::usage_of(printable(&path.display().to_string()), error);
    let file = || File::open(path).map_err(failure);
    let buffered = || file().map(|file| BufReader::with_capacity(BUFFER_BYTES, file));
    let ending = path.extension().unwrap_or_default().to_string_lossy().into_owned();
    let unpacked: Box<dyn Read + Send> = match ending.as_str() {
        "gz" => Box::new(flate2::read::MultiGzDecoder::new(buffered()?)),
        "zst" => Box::new(ZstdReader::new(buffered()?)),
        "xz" => {
            let (_name, bytes) = read(path)?;
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
    read_at_most(ZstdReader::new(compressed), bytes_max).map_err(error_text)
}

/// Reader of the unpacked bytes of all frames of zstd, one after the other. Skippable frames, such
/// as pzstd's before each of its own, hold no data.
struct ZstdReader<R> {
    /// The packed bytes, up to the end of a block.
    source: R,
    /// Decoder of the present frame.
    decoder: FrameDecoder,
    /// True from the header of the first frame on.
    has_begun: bool,
}

impl<R: BufRead> ZstdReader<R> {
    /// Creates a reader at the start of the packed bytes.
    fn new(source: R) -> ZstdReader<R> {
        ZstdReader { source, decoder: FrameDecoder::new(), has_begun: false }
    }

    /// Reads the header of the next frame with data. Returns false at the end of the packed bytes,
    /// which is an error before the first frame.
    fn begin_next_frame(&mut self) -> io::Result<bool> {
        while !self.has_begun || !self.source.fill_buf()?.is_empty() {
            self.has_begun = true;
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                // The decoder has taken the header, and leaves the data of such a frame.
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut data = self.source.by_ref().take(length.into());
                    if io::copy(&mut data, &mut io::sink())? < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    /// Reads unpacked bytes of the present frame, or of the next one with any.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let is_over = !self.has_begun || self.decoder.is_finished();
            if is_over && self.decoder.can_collect() == 0 {
                if to.is_empty() || !self.begin_next_frame()? {
                    return Ok(0);
                }
                continue;
            }
            // The decoder keeps a window of unpacked bytes, and `can_collect` counts the ones that
            // may leave it. One call may therefore yield none.
            while self.decoder.can_collect() < to.len() && !self.decoder.is_finished() {
                let bytes = to.len() - self.decoder.can_collect();
                let up_to = BlockDecodingStrategy::UptoBytes(bytes);
                self.decoder.decode_blocks(&mut self.source, up_to).map_err(io::Error::other)?;
            }
            let bytes = self.decoder.read(to)?;
            if bytes > 0 || to.is_empty() {
                return Ok(bytes);
            }
        }
    }
}

/// Decompresses xz, also several streams in one file, into a buffer that refuses more than
/// `bytes_max` bytes.
fn unpack_xz(compressed: &[u8], bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut unpacked = BoundedBuffer { bytes: Vec::new(), limit_bytes: bytes_max };
    // The decoder takes one stream at a time. Bytes of another form, or without a stream, are
    // passed to it as a whole, for its error names their fault.
    let streams = xz_streams(compressed).filter(|streams| !streams.is_empty());
    for mut stream in streams.unwrap_or_else(|| vec![compressed]) {
        lzma_rs::xz_decompress(&mut stream, &mut unpacked).map_err(error_text)?;
    }
    Ok(unpacked.bytes)
}

/// Bytes of the header of a stream of xz, and of its footer.
const XZ_HEADER_BYTES: u64 = 12;

/// Splits the bytes of an xz file into its streams, without the padding between them. The format
/// leads from the end of a stream to its start: the footer has the size of the index, and the index
/// the sizes of the blocks. `None` for another form. Source: The .xz File Format 1.2.0, sections 2
/// and 4.
fn xz_streams(mut compressed: &[u8]) -> Option<Vec<&[u8]>> {
    let mut streams = Vec::new();
    loop {
        // The padding of a stream has a multiple of four bytes.
        while let Some(rest) = compressed.strip_suffix(&[0; 4]) {
            compressed = rest;
        }
        if compressed.is_empty() {
            streams.reverse();
            return Some(streams);
        }
        // A check sum of four bytes, the size of the index (in units of four bytes, less one), two
        // flags and `YZ`.
        let footer = compressed.last_chunk::<12>().filter(|footer| footer.ends_with(b"YZ"))?;
        let index_units = u32::from_le_bytes(*footer[4..].first_chunk()?);
        let index_bytes = (u64::from(index_units) + 1) * 4;
        let (before_footer, _) = compressed.split_at(compressed.len() - footer.len());
        let index_start = before_footer.len().checked_sub(usize::try_from(index_bytes).ok()?)?;
        let blocks_bytes = xz_block_bytes(&before_footer[index_start..])?;
        let start = (index_start as u64).checked_sub(blocks_bytes.checked_add(XZ_HEADER_BYTES)?)?;
        let (rest, stream) = compressed.split_at(start as usize);
        streams.push(stream);
        compressed = rest;
    }
}

/// Returns the bytes of all blocks in an index of xz, with their padding. `None` for another form.
fn xz_block_bytes(index: &[u8]) -> Option<u64> {
    let mut rest = index.strip_prefix(&[0])?;
    let blocks = xz_number(&mut rest)?;
    let mut block_bytes: u64 = 0;
    for _ in 0..blocks {
        let (unpadded_bytes, _unpacked_bytes) = (xz_number(&mut rest)?, xz_number(&mut rest)?);
        block_bytes = block_bytes.checked_add(unpadded_bytes.checked_next_multiple_of(4)?)?;
    }
    Some(block_bytes)
}

/// Takes a number from the front of an index of xz: seven bits in a byte, the lowest first, and a
/// set high bit if a byte follows. `None` without a whole number.
fn xz_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for position in 0..9 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
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
