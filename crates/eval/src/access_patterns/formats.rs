//! Access patterns of files with an index: a header, then the ranges that it names.
//!
//! The files contain no real header. Only the offsets and sizes of the reads follow the format.

use std::io::{self, SeekFrom};

use readpath_core::splitmix;

use super::{Accesses, Checksum, SequentialFile};

/// File formats, as sequences of seeks and reads of their usual readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Apache Parquet: the last 8 bytes hold the length of the footer before them, which names the
    /// column chunks. Row groups of an eighth of the file with 16 columns each, of which 3 are
    /// read.
    Parquet,
    /// Zip: the record at the end (22 bytes) holds the offset of the directory before it. Each
    /// entry has a header of 30 bytes and a name, then its data. Random entries of 4 to 200 KiB, a
    /// tenth of the file in total.
    Zip,
    /// Safetensors: the first 8 bytes hold the length of the header after them, which names the
    /// tensors. Every second tensor is read, in file order.
    Safetensors,
}

const PARQUET_FOOTER_BYTES: u64 = 64 << 10;
const PARQUET_GROUPS: u64 = 8;
const PARQUET_COLUMNS: u64 = 16;
/// Columns of a query that reads three of them.
const PARQUET_COLUMNS_READ: [u64; 3] = [1, 6, 13];
const ZIP_END_BYTES: u64 = 22;
/// Size of an entry header's fixed part, and of a name with 24 letters.
const ZIP_HEADER_BYTES: [u64; 2] = [30, 24];
const SAFETENSORS_HEADER_BYTES: u64 = 64 << 10;
const SAFETENSORS_TENSORS: u64 = 64;

impl FileFormat {
    /// All formats.
    pub const ALL: [FileFormat; 3] =
        [FileFormat::Parquet, FileFormat::Zip, FileFormat::Safetensors];

    /// Name of the format.
    pub const fn name(self) -> &'static str {
        match self {
            FileFormat::Parquet => "parquet",
            FileFormat::Zip => "zip",
            FileFormat::Safetensors => "safetensors",
        }
    }

    /// Returns the reads in a file of `file_bytes` bytes, at least 1 MiB, as offsets and sizes in
    /// order.
    pub fn ranges(self, file_bytes: u64) -> Vec<(u64, u64)> {
        match self {
            FileFormat::Parquet => parquet(file_bytes),
            FileFormat::Zip => zip(file_bytes),
            FileFormat::Safetensors => safetensors(file_bytes),
        }
    }
}

/// Returns the ranges that a Parquet reader requests: the footer, then some columns of each row
/// group.
fn parquet(file_bytes: u64) -> Vec<(u64, u64)> {
    let footer_at = file_bytes - 8 - PARQUET_FOOTER_BYTES;
    let mut ranges = vec![(file_bytes - 8, 8), (footer_at, PARQUET_FOOTER_BYTES)];
    let group_bytes = footer_at / PARQUET_GROUPS;
    let chunk_bytes = group_bytes / PARQUET_COLUMNS;
    for group in 0..PARQUET_GROUPS {
        let chunk = |column| (4 + group * group_bytes + column * chunk_bytes, chunk_bytes - 4);
        ranges.extend(PARQUET_COLUMNS_READ.map(chunk));
    }
    ranges
}

/// Returns the ranges, as offset and length in bytes, that a ZIP reader requests: the directory,
/// then random entries, a tenth of the file.
fn zip(file_bytes: u64) -> Vec<(u64, u64)> {
    let directory_bytes = file_bytes / 2048;
    let directory_offset = file_bytes - ZIP_END_BYTES - directory_bytes;
    let mut ranges =
        vec![(file_bytes - ZIP_END_BYTES, ZIP_END_BYTES), (directory_offset, directory_bytes)];
    let (mut state, mut bytes_left) = (2, file_bytes / 10);
    for data_bytes in super::whole_files::lengths(usize::MAX) {
        let [fixed_bytes, name_bytes] = ZIP_HEADER_BYTES;
        let entry_bytes = fixed_bytes + name_bytes + data_bytes;
        if bytes_left < entry_bytes {
            return ranges;
        }
        bytes_left -= entry_bytes;
        let offset = splitmix::next(&mut state) % (directory_offset - entry_bytes);
        ranges.extend([
            (offset, fixed_bytes),
            (offset + fixed_bytes, name_bytes),
            (offset + fixed_bytes + name_bytes, data_bytes),
        ]);
    }
    ranges
}

/// Returns the ranges that a safetensors reader requests: the header, then every second tensor.
fn safetensors(file_bytes: u64) -> Vec<(u64, u64)> {
    let data_at = 8 + SAFETENSORS_HEADER_BYTES;
    let tensor_bytes = (file_bytes - data_at) / SAFETENSORS_TENSORS;
    let tensors = (0..SAFETENSORS_TENSORS).step_by(2);
    let data = tensors.map(|tensor| (data_at + tensor * tensor_bytes, tensor_bytes));
    [(0, 8), (8, SAFETENSORS_HEADER_BYTES)].into_iter().chain(data).collect()
}

/// Seeks to each range in turn and reads all of it.
pub struct Ranges {
    stream: Box<dyn SequentialFile>,
    ranges: Vec<(u64, u64)>,
    buffer: Vec<u8>,
}

impl Ranges {
    /// Creates the accesses to `ranges`, pairs of offset and length in bytes.
    pub fn over(stream: Box<dyn SequentialFile>, ranges: Vec<(u64, u64)>) -> Ranges {
        let longest = ranges.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0);
        Ranges { stream, ranges, buffer: vec![0; longest as usize] }
    }
}

impl Accesses for Ranges {
    /// Reads all ranges in order. Returns the checksum of their data.
    fn pass(&mut self) -> io::Result<Checksum> {
        let mut sum = Checksum::default();
        for &(offset, bytes) in &self.ranges {
            let buffer = &mut self.buffer[..bytes as usize];
            self.stream.seek(SeekFrom::Start(offset))?;
            self.stream.read_exact(buffer)?;
            sum.add(offset, buffer);
            sum.add_ends(offset, buffer);
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn format_ranges_lie_in_the_file_after_a_small_header() {
        for format in FileFormat::ALL {
            for file_bytes in [MIB, 256 * MIB] {
                let ranges = format.ranges(file_bytes);
                assert!(ranges.iter().all(|&(at, bytes)| bytes > 0 && at + bytes <= file_bytes));
                let header: u64 = ranges[..2].iter().map(|&(_, bytes)| bytes).sum();
                assert!(header <= 200 << 10, "{format:?}: {header} bytes of header");
            }
        }
    }

    /// Worked by hand: 3 of 16 columns of 256 MiB are 48 MiB, a tenth is 25.6 MiB, every second
    /// tensor is 128 MiB.
    #[test]
    fn format_ranges_cover_the_documented_share_of_the_file() {
        let read = |format: FileFormat| {
            let bytes: u64 = format.ranges(256 * MIB).iter().map(|&(_, bytes)| bytes).sum();
            bytes as f64 / MIB as f64
        };
        assert!((read(FileFormat::Parquet) - 48.0).abs() < 0.2, "{}", read(FileFormat::Parquet));
        assert!((read(FileFormat::Zip) - 25.6).abs() < 0.4, "{}", read(FileFormat::Zip));
        assert!(
            (read(FileFormat::Safetensors) - 128.0).abs() < 0.2,
            "{}",
            read(FileFormat::Safetensors)
        );
    }
}
