//! Response time by request size and queue depth, measured or interpolated.

use super::description::SizeCosts;

/// Response times by request size and queue depth.
#[derive(Clone, Debug)]
pub struct ResponseTimes {
    /// Request sizes in bytes, increasing.
    sizes: Vec<u64>,
    /// For each size, the response time in ns at depth `n`, at index `n - 1`.
    ns: Vec<Vec<i64>>,
    /// For each size, the greatest measured depth.
    depth_max: Vec<u32>,
}

/// Position of a request size between two measured sizes.
#[derive(Clone, Copy, Debug)]
pub struct SizeInterval {
    /// Index of the smaller measured size.
    size_index: usize,
    /// Distance from the smaller measured size, in 1/65,536 of the interval.
    offset_parts: i64,
}

/// Length of an interval between two measured sizes, in units of `offset_parts`.
const INTERVAL_PARTS: i64 = 1 << 16;

impl ResponseTimes {
    /// Interpolates the response times of `lines` at all depths. Each line has a time for each of
    /// the first `depths`.
    pub fn new(lines: &[SizeCosts], depths: &[u32]) -> ResponseTimes {
        // The response times of one size at all depths from 1 to the greatest measured one.
        let interpolate = |line: &SizeCosts| {
            let mut ns = Vec::new();
            for (index, us) in line.us.iter().enumerate() {
                let (depth, time_ns) = (depths[index], us * 1e3);
                let (depth_before, time_before_ns) = match index {
                    0 => (0, time_ns),
                    _ => (depths[index - 1], line.us[index - 1] * 1e3),
                };
                for depth_between in depth_before + 1..=depth {
                    let fraction =
                        f64::from(depth_between - depth_before) / f64::from(depth - depth_before);
                    ns.push((time_before_ns + (time_ns - time_before_ns) * fraction) as i64);
                }
            }
            ns
        };
        let ns: Vec<Vec<i64>> = lines.iter().map(interpolate).collect();
        ResponseTimes {
            sizes: lines.iter().map(|line| line.bytes).collect(),
            depth_max: ns.iter().map(|ns| ns.len() as u32).collect(),
            ns,
        }
    }

    /// Returns the position of a request size among the measured sizes.
    pub fn size_interval(&self, bytes: u64) -> SizeInterval {
        let next_index = self.sizes.partition_point(|&size| size <= bytes);
        let size_index = next_index.saturating_sub(1).min(self.sizes.len().saturating_sub(2));
        let (low, high) = (self.sizes[size_index], self.sizes.get(size_index + 1));
        let offset_parts = match high {
            Some(high) => {
                let offset = bytes.saturating_sub(low) as i128 * i128::from(INTERVAL_PARTS);
                (offset / i128::from(high - low)) as i64
            }
            None => 0,
        };
        SizeInterval { size_index, offset_parts }
    }

    /// Returns the response time in ns of a request in a size interval, with `count` requests in
    /// flight, including the request itself. The result is at least 1 ns.
    #[inline]
    pub fn response_ns(&self, interval: SizeInterval, count: u32) -> u64 {
        let low_ns = self.measured_size_ns(interval.size_index, count);
        let ns = match interval.offset_parts {
            0 => low_ns,
            parts => {
                let high_ns = self.measured_size_ns(interval.size_index + 1, count);
                low_ns + (high_ns - low_ns) * parts / INTERVAL_PARTS
            }
        };
        ns.max(1) as u64
    }

    /// Returns the response time in ns of a single request of `bytes`.
    pub fn single_request_ns(&self, bytes: u64) -> f64 {
        self.response_ns(self.size_interval(bytes), 1) as f64
    }

    /// Returns the response time in ns of a measured size with `count` requests in flight. Beyond
    /// the greatest measured depth it is proportional to `count`.
    #[inline]
    fn measured_size_ns(&self, size_index: usize, count: u32) -> i64 {
        let deepest = self.depth_max[size_index];
        match self.ns[size_index].get(count.saturating_sub(1) as usize) {
            Some(&ns) => ns,
            None => {
                self.ns[size_index][deepest as usize - 1] * i64::from(count) / i64::from(deepest)
            }
        }
    }
}
