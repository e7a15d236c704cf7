//! Positional reads: forward, backward, strided or random, by one or more threads.

use std::io;
use std::sync::Arc;

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;
use readpath_os::page_buffer::PageBuffer;

use super::threads::read_in_parallel;
use super::{Accesses, Checksum, ReadAt};

/// Order of the offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOrder {
    /// Ascending from the start of the file, without gaps.
    Forward,
    /// Descending to the start of the file.
    Backward,
    /// Ascending from the start of the file with a constant step.
    Stride {
        /// Distance between the starts of two reads in bytes.
        step_bytes: u64,
    },
    /// Random offsets, with repetitions. Each thread has its own sequence.
    Random,
}

/// Use of the bytes by the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteUse {
    /// The bytes are copied to the reader's buffer.
    Copied,
    /// The bytes are examined in place, if they are in shared memory.
    InPlace,
}

/// Offsets and size of the reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// Order of the offsets.
    pub order: AccessOrder,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Size of a read in bytes.
    pub read_bytes: u64,
    /// Number of reads of all threads together.
    pub count: u64,
    /// Number of threads or tasks. More than one only with random order.
    pub threads: u64,
}

impl AccessPattern {
    /// Pattern that covers a whole file with one thread, at distances of `read_bytes` or of the
    /// stride. The bytes after the last whole distance are left out.
    pub const fn all(order: AccessOrder, file_bytes: u64, read_bytes: u64) -> AccessPattern {
        let step_bytes = match order {
            AccessOrder::Stride { step_bytes } => step_bytes,
            _ => read_bytes,
        };
        AccessPattern { order, file_bytes, read_bytes, count: file_bytes / step_bytes, threads: 1 }
    }

    /// Pattern of `count` random reads.
    pub const fn random(
        file_bytes: u64,
        read_bytes: u64,
        count: u64,
        threads: u64,
    ) -> AccessPattern {
        AccessPattern { order: AccessOrder::Random, file_bytes, read_bytes, count, threads }
    }

    /// Total number of bytes read.
    pub const fn bytes(self) -> u64 {
        self.count * self.read_bytes
    }

    /// Offsets of one thread in bytes. Each thread has an equal part of the reads, rounded down.
    /// Random offsets are page-aligned, also for reads smaller than a page.
    pub fn of_thread(self, thread: u64) -> impl Iterator<Item = u64> {
        let AccessPattern { order, read_bytes, count, .. } = self;
        let slot_bytes = read_bytes.next_multiple_of(PAGE_BYTES);
        // A file that is smaller than one read has one offset, 0.
        let slots = (self.file_bytes / slot_bytes).max(1);
        // The thread's number is the seed, so every pass has the same offsets.
        let mut rng_state = thread;
        (0..count / self.threads).map(move |nth| match order {
            AccessOrder::Forward => nth * read_bytes,
            AccessOrder::Backward => (count - 1 - nth) * read_bytes,
            AccessOrder::Stride { step_bytes } => nth * step_bytes,
            AccessOrder::Random => splitmix::next(&mut rng_state) % slots * slot_bytes,
        })
    }
}

/// Positional reads of one open file.
pub struct PatternReads {
    /// The file to read.
    file: Arc<dyn ReadAt>,
    /// Offsets, size and number of the reads, and number of threads.
    pattern: AccessPattern,
    /// Copied into the buffers, or examined in place.
    byte_use: ByteUse,
    /// One buffer per thread.
    buffers: Vec<PageBuffer>,
}

impl PatternReads {
    /// Creates the reads of this pattern in the file. Each thread has its own buffer.
    pub fn over(file: Arc<dyn ReadAt>, pattern: AccessPattern, byte_use: ByteUse) -> PatternReads {
        let buffers = (0..pattern.threads).map(|_| PageBuffer::new(pattern.read_bytes)).collect();
        PatternReads { file, pattern, byte_use, buffers }
    }
}

impl Accesses for PatternReads {
    /// Performs all reads of the pattern, by all threads at once. Returns the checksum of their
    /// data.
    fn pass(&mut self) -> io::Result<Checksum> {
        let PatternReads { file, pattern, byte_use, buffers } = self;
        read_in_parallel(buffers, |thread, buffer| {
            let offsets = pattern.of_thread(thread as u64);
            let buffer = &mut buffer[..pattern.read_bytes as usize];
            read_at_each(&**file, offsets, buffer, *byte_use)
        })
    }
}

/// Reads at each of `offsets` (in bytes) as many bytes as the buffer has. With
/// [`ByteUse::InPlace`], the bytes stay where they are if possible. Returns the checksum of the
/// data.
fn read_at_each(
    file: &dyn ReadAt,
    offsets: impl Iterator<Item = u64>,
    buffer: &mut [u8],
    byte_use: ByteUse,
) -> io::Result<Checksum> {
    let mut sum = Checksum::default();
    for offset in offsets {
        match byte_use {
            // In shared memory, or else copied to the buffer.
            ByteUse::InPlace => sum.add(offset, file.borrow_at(buffer, offset)?),
            ByteUse::Copied => {
                let bytes = file.read_at(buffer, offset)?;
                sum.add(offset, &buffer[..bytes]);
            }
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the offsets of the first thread.
    fn offsets_of(pattern: AccessPattern) -> Vec<u64> {
        pattern.of_thread(0).collect()
    }

    /// Arguments are the order, the size of the file and the size of a read.
    #[test]
    fn access_orders_produce_forward_backward_and_strided_offsets() {
        assert_eq!(
            offsets_of(AccessPattern::all(AccessOrder::Forward, 40_960, 8192)),
            [0, 8192, 16_384, 24_576, 32_768]
        );
        assert_eq!(
            offsets_of(AccessPattern::all(AccessOrder::Backward, 16_384, 4096)),
            [12_288, 8192, 4096, 0]
        );
        let stride = AccessOrder::Stride { step_bytes: 16_384 };
        assert_eq!(offsets_of(AccessPattern::all(stride, 49_152, 4096)), [0, 16_384, 32_768]);
    }

    /// 1,000 reads of 8 bytes by four threads: 250 for each, at the starts of 256 pages.
    #[test]
    fn random_offsets_lie_in_the_file_and_differ_by_thread() {
        let (file_bytes, read_bytes, count, threads) = (1 << 20, 8, 1000, 4);
        let pattern = AccessPattern::random(file_bytes, read_bytes, count, threads);
        let [first_offsets, second_offsets] =
            [0, 1].map(|thread| pattern.of_thread(thread).collect::<Vec<u64>>());
        assert_eq!((first_offsets.len(), second_offsets.len()), (250, 250));
        assert_ne!(first_offsets, second_offsets);
        assert!(first_offsets.iter().all(|offset| offset % 4096 == 0 && *offset < file_bytes));
        assert_eq!(
            first_offsets,
            pattern.of_thread(0).collect::<Vec<u64>>(),
            "the offsets are equal in every pass"
        );
        let distinct: std::collections::BTreeSet<_> = first_offsets.iter().collect();
        assert!(distinct.len() > 100, "{} places", distinct.len());
    }
}
