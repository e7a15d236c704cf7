//! Transfer times at a fixed bandwidth, computed without a division per request.

use readpath_core::unit::Time;

/// Fraction bits of the nanoseconds per byte. At 64 GB/s a byte takes 1/64 ns, and this time is
/// then accurate to one part in 2¹⁸.
const FRACTION_BITS: u32 = 24;

/// A bandwidth, stored as time per byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Nanoseconds per byte, in fixed point with [`FRACTION_BITS`] fraction bits.
    ns_per_byte_shifted: u64,
}

impl Bandwidth {
    /// Creates a rate. Panics below 1,000,000 bytes per second, which could overflow a product.
    pub fn new(bytes_per_second: u64) -> Bandwidth {
        assert!(bytes_per_second >= 1_000_000, "a rate is at least 1 MB/s");
        Bandwidth {
            ns_per_byte_shifted: (1_000_000_000u64 << FRACTION_BITS).div_ceil(bytes_per_second),
        }
    }

    /// Returns the transfer time of `bytes`, at most 64 MiB, rounded down to whole ns. This bound
    /// keeps the product within 64 bits at the lowest rate.
    #[inline]
    pub fn time(self, bytes: u64) -> Time {
        debug_assert!(bytes <= 1 << 26, "one transfer is at most 64 MiB");
        Time((bytes * self.ns_per_byte_shifted) >> FRACTION_BITS)
    }
}

/// A link or bus that carries one transfer at a time.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bandwidth of the link.
    rate: Bandwidth,
    /// End of the last queued transfer.
    free_at: Time,
}

impl Link {
    /// Creates an idle link.
    pub fn new(bytes_per_second: u64) -> Link {
        Link { rate: Bandwidth::new(bytes_per_second), free_at: Time::ZERO }
    }

    /// Queues a transfer of data that is ready at `ready_time`. Returns the time of its end.
    #[inline]
    pub fn queue_transfer(&mut self, ready_time: Time, bytes: u64) -> Time {
        self.free_at = self.free_at.max(ready_time) + self.rate.time(bytes);
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_times_match_hand_calculations() {
        // 4096 B / 600 MB/s = 6826.67 ns.
        assert_eq!(Bandwidth::new(600_000_000).time(4096), Time(6_826));
        // 1 MiB at 1 MB/s: 1 µs per byte.
        assert_eq!(Bandwidth::new(1_000_000).time(1 << 20), Time(1_048_576_000));
    }

    #[test]
    fn link_carries_one_transfer_at_a_time() {
        // 1 GB/s: 1 ns per byte.
        let mut link = Link::new(1_000_000_000);
        assert_eq!(link.queue_transfer(Time(0), 1_000), Time(1_000));
        assert_eq!(link.queue_transfer(Time(500), 1_000), Time(2_000));
        assert_eq!(link.queue_transfer(Time(9_000), 1_000), Time(10_000));
    }
}
