//! Generates lists of reads with all patterns that are critical for a readahead policy.

use std::ops::Range;

use readpath_core::readahead::{Advice, HandleStep};
use readpath_core::unit::PAGE_BYTES;

use readpath_models::random::SeededRng;

/// Maximum size of a generated read. This number and the ones below are chosen, not measured.
const READ_BYTES_MAX: u64 = 4 << 20;

/// Total size after which a pattern ends, so that a pattern of large reads does not fill the
/// memory.
const PATTERN_BYTES_MAX: u64 = 16 << 20;

/// Lower bound of the drawn exponent of an arena's size. An arena has half of this power or more.
const ARENA_BYTES_MIN: u64 = 64 << 10;

/// Maximum size of an arena, if the file is not smaller.
const ARENA_BYTES_MAX: u64 = 16 << 30;

/// Generates a list of `count` reads of a file of `file_bytes` bytes.
///
/// The list is a sequence of patterns: sequential, random, strided, interleaved streams, backward,
/// re-reads, small steps around earlier reads, and a mix of all. Reads have 1 byte to 4 MiB,
/// aligned or not, and some are past the end of the file. Between patterns the advice changes, the
/// file is reopened or evicted, or the patterns move to another arena. An arena is a part of the
/// file, large or small, often at its start or end, where reads find pages cached by earlier ones.
/// Equal arguments return equal lists.
pub fn generate(count: usize, seed: u64, file_bytes: u64) -> Vec<HandleStep> {
    let may_map = false;
    generate_steps(count, seed, file_bytes, may_map)
}

/// Generates a list like [`generate`], but half of the patterns access the mapped file: one byte at
/// the start of each read.
pub fn generate_mapped(count: usize, seed: u64, file_bytes: u64) -> Vec<HandleStep> {
    let may_map = true;
    generate_steps(count, seed, file_bytes, may_map)
}

/// Generates a list. `may_map`: half of the patterns access the mapped file.
fn generate_steps(count: usize, seed: u64, file_bytes: u64, may_map: bool) -> Vec<HandleStep> {
    // Positions are drawn below the length, so an empty file counts as one byte.
    let file_bytes = file_bytes.max(1);
    let random = SeededRng::new(seed);
    let arena = 0..file_bytes;
    let mut generator =
        StepGenerator { random, file_bytes, arena, is_mapped: false, steps: Vec::new() };
    let mut reads = 0;
    while reads < count {
        generator.insert_events();
        generator.is_mapped = may_map && generator.random.one_in(2);
        reads += generator.append_pattern(count - reads);
    }
    generator.steps
}

/// State of the generator.
struct StepGenerator {
    /// Generator of all random choices.
    random: SeededRng,
    /// Length of the file in bytes, at least 1.
    file_bytes: u64,
    /// The part of the file, in bytes, in which patterns begin. Not empty.
    arena: Range<u64>,
    /// True if the present pattern accesses the mapped file instead of reading.
    is_mapped: bool,
    /// The list so far, events included.
    steps: Vec<HandleStep>,
}

impl StepGenerator {
    /// Inserts random events between two patterns: advice, a new open, dropped pages, another part
    /// of the file. Each has its own probability of one in four to one in eight, so a pattern often
    /// follows without any, and sometimes after several.
    fn insert_events(&mut self) {
        if self.random.one_in(4) {
            // Normal advice comes twice as often as each of the others.
            let advice = [Advice::Normal, Advice::Sequential, Advice::Random, Advice::Normal];
            self.steps.push(HandleStep::Advise(advice[self.random.below(4) as usize]));
        }
        if self.random.one_in(6) {
            self.steps.push(HandleStep::Reopen);
        }
        if self.random.one_in(8) {
            self.steps.push(HandleStep::Advise(Advice::DontNeed));
        }
        if self.random.one_in(4) {
            let [exponent_min, exponent_max]: [u64; 2] =
                [ARENA_BYTES_MIN, ARENA_BYTES_MAX].map(|bytes| bytes.ilog2().into());
            let bytes_max = 1 << self.random.between(exponent_min, exponent_max);
            let bytes = self.random.between(bytes_max / 2, bytes_max).min(self.file_bytes);
            let free_bytes = self.file_bytes - bytes;
            let start = match self.random.below(3) {
                0 => 0,
                1 => free_bytes,
                _ => self.random.between(0, free_bytes),
            };
            self.arena = start..start + bytes;
        }
    }

    /// Appends one random pattern of at most `reads_max` reads, which may be touches. Returns their
    /// number.
    fn append_pattern(&mut self, reads_max: usize) -> usize {
        let bytes = self.draw_bytes();
        // Up to 80 reads (chosen, not measured), fewer if they are large.
        let reads = self.random.between(1, 80).min(1 + PATTERN_BYTES_MAX / bytes);
        let reads = reads_max.min(reads as usize);
        let start = self.draw_offset();
        match self.random.below(8) {
            // In sequence: the stride is the size of a read.
            0 => self.append_strided(reads, start, bytes, bytes),
            1 => self.append_random(reads, bytes),
            2 => {
                let stride_bytes = bytes + self.draw_bytes();
                self.append_strided(reads, start, bytes, stride_bytes);
            }
            3 => self.append_interleaved(reads, bytes),
            4 => self.append_backward(reads, start, bytes),
            5 => self.append_repetitions(reads),
            6 => self.append_near_last(reads),
            _ => self.append_mixed(reads, start),
        }
        reads
    }

    /// Appends `reads` reads of `bytes` bytes from offset `start`, with a constant stride in bytes.
    fn append_strided(&mut self, reads: usize, start: u64, bytes: u64, stride_bytes: u64) {
        for index in 0..reads as u64 {
            self.append_read(start + index * stride_bytes, bytes);
        }
    }

    /// Appends `reads` reads of `bytes` bytes at random positions.
    fn append_random(&mut self, reads: usize, bytes: u64) {
        for _ in 0..reads {
            let offset = self.draw_offset();
            self.append_read(offset, bytes);
        }
    }

    /// Appends `reads` reads of two to five sequential streams in rotation, on one open file.
    fn append_interleaved(&mut self, reads: usize, bytes: u64) {
        let count = self.random.between(2, 5) as usize;
        let mut next_offsets: Vec<u64> = (0..count).map(|_| self.draw_offset()).collect();
        for index in 0..reads {
            let next_offset = &mut next_offsets[index % count];
            let offset = *next_offset;
            *next_offset += bytes;
            self.append_read(offset, bytes);
        }
    }

    /// Appends a stream of `reads` reads backwards from offset `start`.
    fn append_backward(&mut self, reads: usize, start: u64, bytes: u64) {
        for index in 1..=reads as u64 {
            self.append_read(start.saturating_sub(index * bytes), bytes);
        }
    }

    /// Appends repetitions of earlier reads, or of the start of the file.
    fn append_repetitions(&mut self, reads: usize) {
        for _ in 0..reads {
            // Any step but a read, and the index behind the last step, stand for the start of the
            // file.
            let earlier = self.random.below(self.steps.len() as u64 + 1) as usize;
            match self.steps.get(earlier) {
                Some(&HandleStep::Read { offset, bytes }) => self.append_read(offset, bytes),
                _ => {
                    let start_offset = 0;
                    self.append_read(start_offset, PAGE_BYTES);
                }
            }
        }
    }

    /// Appends small reads, each up to 127 pages before or after one of the last two.
    fn append_near_last(&mut self, reads: usize) {
        let mut offset = self.draw_offset();
        let mut previous_end = offset;
        for _ in 0..reads {
            // A read of up to 16 pages, and a distance of up to 127.
            let bytes = self.draw_page_bytes(4);
            self.append_read(offset, bytes);
            let distance_bytes = self.draw_page_bytes(7) - PAGE_BYTES;
            let next = match self.random.below(3) {
                0 => previous_end + distance_bytes,
                1 => offset + bytes + distance_bytes,
                _ => offset.saturating_sub(distance_bytes),
            };
            previous_end = offset + bytes;
            offset = next;
        }
    }

    /// Appends a forward movement of `reads` reads of all sizes from offset `start`, with small
    /// gaps, small steps back, and jumps.
    fn append_mixed(&mut self, reads: usize, start: u64) {
        let mut offset = start;
        let mut requested_bytes = 0;
        for _ in 0..reads {
            // After enough bytes, single pages follow.
            let bytes = match requested_bytes < PATTERN_BYTES_MAX {
                true => self.draw_bytes(),
                false => PAGE_BYTES,
            };
            self.append_read(offset, bytes);
            requested_bytes += bytes;
            offset += bytes;
            // Gaps and steps back are below 16 pages. Most reads follow without either.
            match self.random.below(8) {
                0 => offset += self.random.below(16 * PAGE_BYTES),
                1 => offset = offset.saturating_sub(self.random.below(16 * PAGE_BYTES)),
                2 => offset = self.draw_offset(),
                _ => {}
            }
        }
    }

    /// Appends one read, or a touch of its first byte in a mapped pattern.
    fn append_read(&mut self, offset: u64, bytes: u64) {
        let touches = self.is_mapped && offset < self.file_bytes;
        self.steps.push(if touches {
            HandleStep::Touch { offset }
        } else {
            HandleStep::Read { offset, bytes }
        });
    }

    /// Draws a size in bytes, from 1 byte to 4 MiB. Each doubling is equally likely. Whole pages
    /// and powers of two are frequent.
    fn draw_bytes(&mut self) -> u64 {
        let bytes_max = 1 << self.random.between(0, READ_BYTES_MAX.ilog2().into());
        let bytes = self.random.between(bytes_max / 2 + 1, bytes_max);
        match self.random.below(4) {
            0 => bytes,
            1 => bytes_max.next_multiple_of(PAGE_BYTES),
            _ => bytes.next_multiple_of(PAGE_BYTES),
        }
    }

    /// Draws a size of 1 to `1 << doublings_max` pages, in bytes. Each doubling is equally likely.
    fn draw_page_bytes(&mut self, doublings_max: u64) -> u64 {
        let pages_max = 1 << self.random.between(0, doublings_max);
        self.random.between(1, pages_max) * PAGE_BYTES
    }

    /// Draws a position in the arena, often page-aligned. Rarely it is the start of the file or
    /// near its end, at most a page behind it.
    fn draw_offset(&mut self) -> u64 {
        let offset = match self.random.below(16) {
            0 => 0,
            1 => {
                let distance_bytes = self.random.below(READ_BYTES_MAX);
                (self.file_bytes + PAGE_BYTES).saturating_sub(distance_bytes)
            }
            _ => self.arena.start + self.random.below(self.arena.end - self.arena.start),
        };
        if self.random.one_in(2) { offset / PAGE_BYTES * PAGE_BYTES } else { offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_steps_cover_sizes_and_advice_and_repeat_from_the_seed() {
        let file_bytes = 64 << 20;
        let steps = generate(2000, 1, file_bytes);
        assert_eq!(steps, generate(2000, 1, file_bytes));
        assert_ne!(steps, generate(2000, 2, file_bytes));
        let reads: Vec<(u64, u64)> = steps
            .iter()
            .filter_map(|step| match *step {
                HandleStep::Read { offset, bytes } => Some((offset, bytes)),
                _ => None,
            })
            .collect();
        assert_eq!(reads.len(), 2000);
        assert!(reads.iter().all(|&(_, bytes)| (1..=READ_BYTES_MAX).contains(&bytes)));
        assert!(reads.iter().any(|&(_, bytes)| bytes == 1));
        assert!(reads.iter().any(|&(_, bytes)| bytes > 2 << 20));
        assert!(reads.iter().any(|&(offset, bytes)| offset + bytes > file_bytes));
        assert!(reads.iter().any(|&(offset, _)| offset % PAGE_BYTES != 0));
        for advice in [Advice::Normal, Advice::Sequential, Advice::Random, Advice::DontNeed] {
            assert!(steps.contains(&HandleStep::Advise(advice)), "{advice:?}");
        }
        assert!(steps.contains(&HandleStep::Reopen));
        assert!(!steps.iter().any(|step| matches!(step, HandleStep::Touch { .. })));
    }

    /// Half of the patterns are mapped, so at least a quarter of 2,000 accesses should be touches.
    #[test]
    fn touches_lie_within_the_file() {
        let file_bytes = 100_000;
        let steps = generate_mapped(2000, 1, file_bytes);
        let touches = steps.iter().filter_map(|step| match step {
            HandleStep::Touch { offset } => Some(*offset),
            _ => None,
        });
        assert!(touches.clone().count() > 500);
        assert!(touches.max() < Some(file_bytes));
    }
}
