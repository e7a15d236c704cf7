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

/// Size of the signature at the start of a Parquet file.
const PARQUET_MAGIC_BYTES: u64 = 4;
/// Size of the last bytes of a Parquet file: the length of the footer, and the signature.
const PARQUET_END_BYTES: u64 = 8;
/// Size of the footer, which names the column chunks. It is chosen, as are the numbers of row
/// groups and columns.
const PARQUET_FOOTER_BYTES: u64 = 64 << 10;
/// Number of row groups of a file.
const PARQUET_GROUPS: u64 = 8;
/// Number of columns, each with one chunk in each row group.
const PARQUET_COLUMNS: u64 = 16;
/// Columns of a query that reads three of them, numbered from 0 and not adjacent.
const PARQUET_COLUMNS_READ: [u64; 3] = [1, 6, 13];
/// Size of the record at the end of a Zip file, without a comment.
const ZIP_END_BYTES: u64 = 22;
/// Size of an entry header's fixed part, and of a name with 24 letters.
const ZIP_HEADER_BYTES: [u64; 2] = [30, 24];
/// Size of the header's length at the start of the file.
const SAFETENSORS_LENGTH_BYTES: u64 = 8;
/// Size of the header, which names the tensors. Chosen, as is the number of tensors.
const SAFETENSORS_HEADER_BYTES: u64 = 64 << 10;
/// Number of tensors of equal size.
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
            FileFormat::Parquet => parquet_ranges(file_bytes),
            FileFormat::Zip => zip_ranges(file_bytes),
            FileFormat::Safetensors => safetensors_ranges(file_bytes),
        }
    }
}

/// Returns the ranges, as offset and length in bytes, that a Parquet reader requests: the footer,
/// then some columns of each row group.
fn parquet_ranges(file_bytes: u64) -> Vec<(u64, u64)> {
    let end_offset = file_bytes - PARQUET_END_BYTES;
    let footer_offset = end_offset - PARQUET_FOOTER_BYTES;
    let mut ranges = vec![(end_offset, PARQUET_END_BYTES), (footer_offset, PARQUET_FOOTER_BYTES)];
    let group_bytes = footer_offset / PARQUET_GROUPS;
    let chunk_bytes = group_bytes / PARQUET_COLUMNS;
    for group in 0..PARQUET_GROUPS {
        // A chunk is shorter by the signature, and the last one ends before the footer.
        let chunk = |column| {
            let offset = PARQUET_MAGIC_BYTES + group * group_bytes + column * chunk_bytes;
            (offset, chunk_bytes - PARQUET_MAGIC_BYTES)
        };
        ranges.extend(PARQUET_COLUMNS_READ.map(chunk));
    }
    ranges
}

/// Returns the ranges, as offset and length in bytes, that a ZIP reader requests: the directory,
/// then random entries, a tenth of the file.
fn zip_ranges(file_bytes: u64) -> Vec<(u64, u64)> {
    // Half a KiB of directory for each MiB of the file.
    let directory_bytes = file_bytes / 2048;
    let directory_offset = file_bytes - ZIP_END_BYTES - directory_bytes;
    let mut ranges =
        vec![(file_bytes - ZIP_END_BYTES, ZIP_END_BYTES), (directory_offset, directory_bytes)];
    // The sizes and the offsets of the entries have fixed seeds: every call returns the same
    // ranges.
    let (mut rng_state, mut bytes_left) = (2, file_bytes / 10);
    // The sequence of sizes has no end of its own: the loop ends when the tenth is used up.
    for data_bytes in super::whole_files::lengths(usize::MAX) {
        let [fixed_bytes, name_bytes] = ZIP_HEADER_BYTES;
        let entry_bytes = fixed_bytes + name_bytes + data_bytes;
        if bytes_left < entry_bytes {
            return ranges;
        }
        bytes_left -= entry_bytes;
        // Entries may overlap: only offsets and sizes of the reads count.
        let offset = splitmix::next(&mut rng_state) % (directory_offset - entry_bytes);
        // The parts of the header and the data are separate reads.
        ranges.extend([
            (offset, fixed_bytes),
            (offset + fixed_bytes, name_bytes),
            (offset + fixed_bytes + name_bytes, data_bytes),
        ]);
    }
    ranges
}

/// Returns the ranges, as offset and length in bytes, that a safetensors reader requests: the
/// header, then every second tensor.
fn safetensors_ranges(file_bytes: u64) -> Vec<(u64, u64)> {
    let data_offset = SAFETENSORS_LENGTH_BYTES + SAFETENSORS_HEADER_BYTES;
    let tensor_bytes = (file_bytes - data_offset) / SAFETENSORS_TENSORS;
    let tensors = (0..SAFETENSORS_TENSORS).step_by(2);
    let data = tensors.map(|tensor| (data_offset + tensor * tensor_bytes, tensor_bytes));
    let length = (0, SAFETENSORS_LENGTH_BYTES);
    let header = (SAFETENSORS_LENGTH_BYTES, SAFETENSORS_HEADER_BYTES);
    [length, header].into_iter().chain(data).collect()
}

/// Seeks to each range in turn and reads all of it.
pub struct Ranges {
    /// The file, with a position that a seek changes.
    stream: Box<dyn SequentialFile>,
    /// Offset and length of each read in bytes, in read order.
    ranges: Vec<(u64, u64)>,
    /// Buffer with the length of the longest range.
    buffer: Vec<u8>,
}

impl Ranges {
    /// Creates the accesses to `ranges`, pairs of offset and length in bytes.
    pub fn over(stream: Box<dyn SequentialFile>, ranges: Vec<(u64, u64)>) -> Ranges {
        let bytes_max = ranges.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0);
        Ranges { stream, ranges, buffer: vec![0; bytes_max as usize] }
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
            // One byte of each page. A range within a page has only its ends in the sum.
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

    /// The header of each format is its first two ranges. The largest, the directory of a Zip file
    /// of 256 MiB, has 128 KiB.
    #[test]
    fn format_ranges_lie_in_the_file_after_a_small_header() {
        for format in FileFormat::ALL {
            for file_bytes in [MIB, 256 * MIB] {
                let ranges = format.ranges(file_bytes);
                let is_inside = |&(offset, bytes): &(u64, u64)| offset + bytes <= file_bytes;
                assert!(ranges.iter().all(is_inside));
                assert!(ranges.iter().all(|&(_, bytes)| bytes > 0));
                let header: u64 = ranges[..2].iter().map(|&(_, bytes)| bytes).sum();
                assert!(header <= 200 << 10, "{format:?}: {header} bytes of header");
            }
        }
    }

    /// Worked by hand: 3 of 16 columns of 256 MiB are 48 MiB, a tenth is 25.6 MiB, every second
    /// tensor is 128 MiB.
    #[test]
    fn format_ranges_cover_the_documented_share_of_the_file() {
        let mib_read = |format: FileFormat| {
            let bytes: u64 = format.ranges(256 * MIB).iter().map(|&(_, bytes)| bytes).sum();
            bytes as f64 / MIB as f64
        };
        for (format, mib, tolerance_mib) in [
            (FileFormat::Parquet, 48.0, 0.2),
            (FileFormat::Zip, 25.6, 0.4),
            (FileFormat::Safetensors, 128.0, 0.2),
        ] {
            assert!((mib_read(format) - mib).abs() < tolerance_mib, "{}", mib_read(format));
        }
    }
}
