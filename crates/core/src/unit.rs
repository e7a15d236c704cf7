//! The units of the read path: time, pages, sectors.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// Bytes in a page, the unit of the cache.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes in a sector, the unit of a device's addresses.
pub const SECTOR_BYTES: u64 = 512;

/// Sectors in a page.
pub const PAGE_SECTORS: u64 = PAGE_BYTES / SECTOR_BYTES;

/// A point in time, or a duration, in nanoseconds. Zero is the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The start of the run.
    pub const ZERO: Time = Time(0);

    /// A duration of `us` microseconds.
    pub const fn from_us(us: u64) -> Time {
        Time(us * 1_000)
    }

    /// A duration of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// A duration of `s` seconds.
    pub const fn from_s(s: u64) -> Time {
        Time(s * 1_000_000_000)
    }

    /// The time in nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// The time in seconds, for reports.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The duration from `earlier` to this time; zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Time {
        Time(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Time {
    type Output = Time;
    /// The time `duration` later, or the sum of two durations.
    fn add(self, duration: Time) -> Time {
        Time(self.0 + duration.0)
    }
}

impl AddAssign for Time {
    /// Adds a duration.
    fn add_assign(&mut self, duration: Time) {
        self.0 += duration.0;
    }
}

impl Sub for Time {
    type Output = Time;
    /// The duration from `earlier` to this time. `earlier` must not be later; see
    /// [`since`](Time::since) otherwise.
    fn sub(self, earlier: Time) -> Time {
        Time(self.0 - earlier.0)
    }
}

impl fmt::Display for Time {
    /// Writes milliseconds with six decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Pages `first` to `end` (exclusive) of one file or mapping, or slots of a swap area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The first page.
    pub first: u64,
    /// The page after the last: exclusive.
    pub end: u64,
}

impl PageRange {
    /// `count` pages from `first`.
    pub const fn new(first: u64, count: u64) -> PageRange {
        PageRange { first, end: first + count }
    }

    /// The pages that hold `bytes` bytes at `offset`, none past the largest offset; empty if
    /// `bytes` is 0.
    pub const fn covering(offset: u64, bytes: u64) -> PageRange {
        if bytes == 0 {
            return PageRange { first: offset / PAGE_BYTES, end: offset / PAGE_BYTES };
        }
        PageRange {
            first: offset / PAGE_BYTES,
            end: offset.saturating_add(bytes).div_ceil(PAGE_BYTES),
        }
    }

    /// Number of pages.
    pub const fn count(self) -> u64 {
        self.end.saturating_sub(self.first)
    }

    /// Returns true if the range has no page.
    pub const fn is_empty(self) -> bool {
        self.end <= self.first
    }

    /// Returns true if `page` is in the range.
    pub const fn contains(self, page: u64) -> bool {
        self.first <= page && page < self.end
    }

    /// The part of the range before page `end`; empty if it has none. A range behind `end` becomes
    /// empty at `end`.
    pub fn clipped(self, end: u64) -> PageRange {
        PageRange { first: self.first.min(end), end: self.end.min(end) }
    }

    /// Its pages, in order.
    pub fn pages(self) -> core::ops::Range<u64> {
        self.first..self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte, two bytes in two pages, one whole page, an empty range, and the largest offset.
    #[test]
    fn covering_takes_every_page_that_a_byte_falls_in() {
        assert_eq!(PageRange::covering(0, 1), PageRange::new(0, 1));
        assert_eq!(PageRange::covering(4095, 2), PageRange::new(0, 2));
        assert_eq!(PageRange::covering(4096, 4096), PageRange::new(1, 1));
        assert_eq!(PageRange::covering(10_000, 0).count(), 0);
        assert_eq!(PageRange::covering(u64::MAX - 4095, u64::MAX).count(), 1);
    }
}
