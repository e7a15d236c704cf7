//! Service times of a device by request size, from the waits of the recording itself.
//!
//! A wait for `b` bytes is taken to be `fixed + b × per byte`. Where the recording has waits of two
//! sizes that lie far enough apart, both terms follow from their means. Where it has one size, only
//! their sum is known; then a device is assumed whose request costs as much as [`HALF_BYTES`] of
//! data do (with a moving head: [`HALF_BYTES_ROTATIONAL`]).

use std::collections::BTreeMap;

use super::super::SMALL_BYTES;

/// Bytes that take as long as a request without any, on a device without moving parts: 1 GB/s and
/// 60 µs a request.
const HALF_BYTES: f64 = SMALL_BYTES as f64;

/// The same of a disk: 10 ms for a place, and 150 MB/s.
const HALF_BYTES_ROTATIONAL: f64 = 1_500_000.0;

/// Number of waits of one size before their mean is used.
const MIN_SAMPLES: u64 = 16;

/// Ratio of two sizes from which on they tell the two terms apart.
const SIZES_APART: f64 = 4.0;

/// Waits of one size class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    count: u64,
    ns: u64,
    bytes: u64,
}

impl Class {
    fn mean(&self) -> (f64, f64) {
        (self.bytes as f64 / self.count as f64, self.ns as f64 / self.count as f64)
    }
}

/// Service times of one device.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Costs {
    /// By the logarithm of base 2 of their sizes.
    classes: BTreeMap<u32, Class>,
}

/// Service time of a request: a fixed part, and a part for each byte, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Cost {
    fixed_ns: f64,
    byte_ns: f64,
}

impl Cost {
    /// Service time of a request of this size.
    pub fn request_ns(&self, bytes: f64) -> f64 {
        self.fixed_ns + self.byte_ns * bytes
    }
}

impl Costs {
    /// Adds a wait for bytes that were fetched meanwhile.
    pub fn add(&mut self, ns: u64, bytes: u64) {
        let class = self.classes.entry(bytes.max(1).ilog2()).or_default();
        class.count += 1;
        class.ns += ns;
        class.bytes += bytes;
    }

    /// The cost of a request; none where there were no waits.
    pub fn cost(&self, is_rotational: bool) -> Option<Cost> {
        let known = || self.classes.values().filter(|class| class.count >= MIN_SAMPLES);
        if let (Some(small), Some(large)) = (known().next(), known().next_back()) {
            let ((small_bytes, small_ns), (large_bytes, large_ns)) = (small.mean(), large.mean());
            if large_bytes >= SIZES_APART * small_bytes {
                let byte_ns = ((large_ns - small_ns) / (large_bytes - small_bytes)).max(0.0);
                let fixed_ns = (small_ns - byte_ns * small_bytes).max(0.0);
                return Some(Cost { fixed_ns, byte_ns });
            }
        }
        let all = self.classes.values().fold(Class::default(), |all, class| Class {
            count: all.count + class.count,
            ns: all.ns + class.ns,
            bytes: all.bytes + class.bytes,
        });
        let half = if is_rotational { HALF_BYTES_ROTATIONAL } else { HALF_BYTES };
        (all.count > 0).then(|| {
            let (bytes, ns) = all.mean();
            let byte_ns = ns / (bytes + half);
            Cost { fixed_ns: byte_ns * half, byte_ns }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 60 µs a request and 1 ns a byte.
    #[test]
    fn two_sizes_tell_the_terms_apart() {
        let mut costs = Costs::default();
        assert_eq!(costs.cost(false), None);
        for bytes in [4096, 131_072] {
            (0..16).for_each(|_| costs.add(60_000 + bytes, bytes));
        }
        let cost = costs.cost(true).unwrap();
        assert!((cost.request_ns(1e6) - 1_060_000.0).abs() < 1.0, "{cost:?}");
    }

    /// Of 64 KiB that take 200 µs half is the request.
    #[test]
    fn one_size_is_split_as_on_devices_of_its_kind() {
        let mut costs = Costs::default();
        costs.add(200_000, 65_536);
        let request = |is_rotational| costs.cost(is_rotational).unwrap().request_ns(0.0);
        assert!((request(false) - 100_000.0).abs() < 1.0);
        assert!(request(true) > 190_000.0);
    }
}
