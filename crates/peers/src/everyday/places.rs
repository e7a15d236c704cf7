//! Reads at places: in order, backwards, with gaps, at random; by one thread or by many.

use std::io;
use std::sync::Arc;

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;

use super::threads::by_threads;
use super::{Accesses, Checksum, PageBuffer, ReadAt};

/// In which order the places come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOrder {
    /// One after the other from the start of the file.
    Forward,
    /// One before the other.
    Backward,
    /// From the start of the file, so far from the start of one to the start of the next.
    Stride {
        /// How far, in bytes.
        step_bytes: u64,
    },
    /// At random, the same place perhaps more than once; each thread has places of its own.
    Random,
}

/// What the reader does with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// It has them copied to memory of its own.
    Copied,
    /// It looks at them: where they lie, if they lie in memory.
    Lent,
}

/// Where is read, and how much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// In which order.
    pub order: AccessOrder,
    /// How much of the file there is, in bytes.
    pub file_bytes: u64,
    /// How much is read at once, in bytes.
    pub read_bytes: u64,
    /// How many reads there are, by all threads together.
    pub count: u64,
    /// How many threads there are, or tasks; more than one only at random.
    pub threads: u64,
}

impl AccessPattern {
    /// All of a file, by one thread.
    pub const fn all(order: AccessOrder, file_bytes: u64, read_bytes: u64) -> AccessPattern {
        let step_bytes = match order {
            AccessOrder::Stride { step_bytes } => step_bytes,
            _ => read_bytes,
        };
        AccessPattern { order, file_bytes, read_bytes, count: file_bytes / step_bytes, threads: 1 }
    }

    /// So many places at random.
    pub const fn random(
        file_bytes: u64,
        read_bytes: u64,
        count: u64,
        threads: u64,
    ) -> AccessPattern {
        AccessPattern { order: AccessOrder::Random, file_bytes, read_bytes, count, threads }
    }

    /// How many bytes are read.
    pub const fn bytes(self) -> u64 {
        self.count * self.read_bytes
    }

    /// The places of one thread, as offsets in bytes; each is the start of a page, wherever a read is
    /// smaller than one.
    pub fn of_thread(self, thread: u64) -> impl Iterator<Item = u64> {
        let AccessPattern { order, read_bytes, count, .. } = self;
        let slot_bytes = read_bytes.next_multiple_of(PAGE_BYTES);
        let slots = (self.file_bytes / slot_bytes).max(1);
        let mut state = thread;
        (0..count / self.threads).map(move |nth| match order {
            AccessOrder::Forward => nth * read_bytes,
            AccessOrder::Backward => (count - 1 - nth) * read_bytes,
            AccessOrder::Stride { step_bytes } => nth * step_bytes,
            AccessOrder::Random => splitmix::next(&mut state) % slots * slot_bytes,
        })
    }
}

/// Reads at places of one open file.
pub struct AtPlaces {
    file: Arc<dyn ReadAt>,
    places: AccessPattern,
    taking: Taking,
    /// One for each thread.
    buffers: Vec<PageBuffer>,
}

impl AtPlaces {
    /// Nothing has been read yet.
    pub fn over(file: Arc<dyn ReadAt>, places: AccessPattern, taking: Taking) -> AtPlaces {
        let buffers = (0..places.threads).map(|_| PageBuffer::of(places.read_bytes)).collect();
        AtPlaces { file, places, taking, buffers }
    }
}

impl Accesses for AtPlaces {
    fn pass(&mut self) -> io::Result<Checksum> {
        let AtPlaces { file, places, taking, buffers } = self;
        by_threads(buffers, |thread, buffer| {
            let places_of_thread = places.of_thread(thread as u64);
            let buffer = &mut buffer[..places.read_bytes as usize];
            read_at_each(&**file, places_of_thread, buffer, *taking)
        })
    }
}

fn read_at_each(
    file: &dyn ReadAt,
    places: impl Iterator<Item = u64>,
    buffer: &mut [u8],
    taking: Taking,
) -> io::Result<Checksum> {
    let mut sum = Checksum::default();
    for offset in places {
        match taking {
            Taking::Lent => sum.add(offset, file.lend(buffer, offset)?),
            Taking::Copied => {
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

    fn of(places: AccessPattern) -> Vec<u64> {
        places.of_thread(0).collect()
    }

    #[test]
    fn the_orders_are_what_they_are_called() {
        assert_eq!(
            of(AccessPattern::all(AccessOrder::Forward, 40_960, 8192)),
            [0, 8192, 16_384, 24_576, 32_768]
        );
        assert_eq!(
            of(AccessPattern::all(AccessOrder::Backward, 16_384, 4096)),
            [12_288, 8192, 4096, 0]
        );
        let stride = AccessOrder::Stride { step_bytes: 16_384 };
        assert_eq!(of(AccessPattern::all(stride, 49_152, 4096)), [0, 16_384, 32_768]);
    }

    #[test]
    fn random_places_are_in_the_file_and_each_thread_has_its_own() {
        let places = AccessPattern::random(1 << 20, 8, 1000, 4);
        let [one, two] = [0, 1].map(|thread| places.of_thread(thread).collect::<Vec<u64>>());
        assert_eq!((one.len(), two.len()), (250, 250));
        assert_ne!(one, two);
        assert!(one.iter().all(|at| at % 4096 == 0 && *at < 1 << 20));
        assert_eq!(one, places.of_thread(0).collect::<Vec<u64>>(), "the same in every pass");
        let distinct: std::collections::BTreeSet<_> = one.iter().collect();
        assert!(distinct.len() > 100, "{} places", distinct.len());
    }
}
