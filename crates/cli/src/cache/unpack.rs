//! The bytes of a trace, which is often compressed where it is published.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use crate::exit::Failure;

/// The name of a trace without the ending of its compression, and its bytes.
pub fn read(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let packed = std::fs::read(path).map_err(|error| {
        Failure::Usage(format!("{}: {error}; name a trace that can be read", path.display()))
    })?;
    let Some((bare, ending)) = name.rsplit_once('.') else { return Ok((name, packed)) };
    let unpack = match ending {
        "gz" => gzip,
        "xz" => xz,
        "zst" => zstd,
        _ => return Ok((name, packed)),
    };
    match unpack(&packed) {
        Ok(bytes) => Ok((bare.to_owned(), bytes)),
        Err(error) => Err(Failure::Usage(format!(
            "{}: is no .{ending} file, or is cut off: {error}",
            path.display()
        ))),
    }
}

fn gzip(packed: &[u8]) -> Result<Vec<u8>, String> {
    all(flate2::read::MultiGzDecoder::new(packed))
}

fn zstd(packed: &[u8]) -> Result<Vec<u8>, String> {
    all(ruzstd::decoding::StreamingDecoder::new(packed).map_err(told)?)
}

fn xz(mut packed: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    lzma_rs::xz_decompress(&mut packed, &mut bytes).map_err(told)?;
    Ok(bytes)
}

fn all(mut reader: impl Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(told)?;
    Ok(bytes)
}

fn told(error: impl Display) -> String {
    error.to_string()
}
