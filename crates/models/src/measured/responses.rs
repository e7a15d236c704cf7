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
    line: usize,
    /// Distance to the next measured size, in 1/65,536 of the interval.
    part: i64,
}

/// Length of an interval between two measured sizes, in units of `part`.
const INTERVAL_PARTS: i64 = 1 << 16;

impl ResponseTimes {
    /// Interpolates the response times of `lines` at all depths. Each line has a time for each of
    /// the first `depths`.
    pub fn new(lines: &[SizeCosts], depths: &[u32]) -> ResponseTimes {
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
    pub fn place(&self, bytes: u64) -> SizeInterval {
        let next_index = self.sizes.partition_point(|&size| size <= bytes);
        let line = next_index.saturating_sub(1).min(self.sizes.len().saturating_sub(2));
        let (low, high) = (self.sizes[line], self.sizes.get(line + 1));
        let fraction = match high {
            Some(high) => {
                let offset = bytes.saturating_sub(low) as i128 * i128::from(INTERVAL_PARTS);
                (offset / i128::from(high - low)) as i64
            }
            None => 0,
        };
        SizeInterval { line, part: fraction }
    }

    /// Returns the response time in ns of a request in a size interval, with `count` requests in
    /// flight, including the request itself. The result is at least 1 ns.
    #[inline]
    pub fn ns(&self, interval: SizeInterval, count: u32) -> u64 {
        let low = self.at(interval.line, count);
        let ns = match interval.part {
            0 => low,
            part => low + (self.at(interval.line + 1, count) - low) * part / INTERVAL_PARTS,
        };
        ns.max(1) as u64
    }

    /// Returns the response time in ns of a single request of `bytes`.
    pub fn single_request_ns(&self, bytes: u64) -> f64 {
        self.ns(self.place(bytes), 1) as f64
    }

    /// Returns the response time in ns of a measured size. Beyond the greatest depth it is
    /// proportional to `count`.
    #[inline]
    fn at(&self, line: usize, count: u32) -> i64 {
        let deepest = self.depth_max[line];
        match self.ns[line].get(count.saturating_sub(1) as usize) {
            Some(&ns) => ns,
            None => self.ns[line][deepest as usize - 1] * i64::from(count) / i64::from(deepest),
        }
    }
}
