//! Response time by request size and queue depth, measured or interpolated.

use super::description::SizeCosts;

/// Response times by request size and queue depth.
#[derive(Clone, Debug)]
pub struct ResponseTimes {
    /// Request sizes in bytes, increasing.
    sizes: Vec<u64>,
    /// For each size, the response times in ns: index 0 is depth 1.
    ns_by_depth: Vec<Vec<i64>>,
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
    /// Interpolates the times of `size_costs` linearly between the measured `depths`. A size can
    /// lack the last depths, and its times end at its greatest measured depth.
    pub fn new(size_costs: &[SizeCosts], depths: &[u32]) -> ResponseTimes {
        // The response times in ns of one size at all depths from 1 to the greatest measured one.
        let interpolate = |costs: &SizeCosts| {
            let mut all_ns = Vec::new();
            for (index, us) in costs.us.iter().enumerate() {
                let (depth, time_ns) = (depths[index], us * 1e3);
                let (depth_before, time_before_ns) = match index {
                    0 => (0, time_ns),
                    _ => (depths[index - 1], costs.us[index - 1] * 1e3),
                };
                for depth_between in depth_before + 1..=depth {
                    let fraction =
                        f64::from(depth_between - depth_before) / f64::from(depth - depth_before);
                    let between_ns = time_before_ns + (time_ns - time_before_ns) * fraction;
                    all_ns.push(between_ns as i64);
                }
            }
            all_ns
        };
        let ns_by_depth: Vec<Vec<i64>> = size_costs.iter().map(interpolate).collect();
        ResponseTimes {
            sizes: size_costs.iter().map(|costs| costs.bytes).collect(),
            depth_max: ns_by_depth.iter().map(|all_ns| all_ns.len() as u32).collect(),
            ns_by_depth,
        }
    }

    /// Returns the position of a request size among the measured sizes. Beyond the largest size it
    /// extrapolates the last interval; below the smallest it is that size.
    pub fn size_interval(&self, bytes: u64) -> SizeInterval {
        let next_index = self.sizes.partition_point(|&size| size <= bytes);
        let size_index = next_index.saturating_sub(1).min(self.sizes.len().saturating_sub(2));
        let (low, high) = (self.sizes[size_index], self.sizes.get(size_index + 1));
        let offset_parts = match high {
            Some(high) => {
                let offset = bytes.saturating_sub(low) as i128 * i128::from(INTERVAL_PARTS);
                (offset / i128::from(high - low)) as i64
            }
            // With one measured size, every request takes its time.
            None => 0,
        };
        SizeInterval { size_index, offset_parts }
    }

    /// Returns the response time in ns of a request in a size interval, with `depth` requests in
    /// flight, including the request itself. The result is at least 1 ns.
    #[inline]
    pub fn response_ns(&self, interval: SizeInterval, depth: u32) -> u64 {
        let low_ns = self.measured_size_ns(interval.size_index, depth);
        let ns = match interval.offset_parts {
            0 => low_ns,
            parts => {
                let high_ns = self.measured_size_ns(interval.size_index + 1, depth);
                low_ns + (high_ns - low_ns) * parts / INTERVAL_PARTS
            }
        };
        ns.max(1) as u64
    }

    /// Returns the response time in ns of a single request of `bytes`.
    pub fn single_request_ns(&self, bytes: u64) -> f64 {
        let depth = 1;
        self.response_ns(self.size_interval(bytes), depth) as f64
    }

    /// Returns the response time in ns of a measured size with `depth` requests in flight. Beyond
    /// the greatest measured depth it is proportional to `depth`.
    #[inline]
    fn measured_size_ns(&self, size_index: usize, depth: u32) -> i64 {
        let all_ns = &self.ns_by_depth[size_index];
        let depth_max = self.depth_max[size_index];
        match all_ns.get(depth.saturating_sub(1) as usize) {
            Some(&ns) => ns,
            None => all_ns[depth_max as usize - 1] * i64::from(depth) / i64::from(depth_max),
        }
    }
}
