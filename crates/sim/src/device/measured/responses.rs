//! How long a request takes among so many, by its size: what was measured, and in between.

use super::description::SizeCosts;

/// Times from start to end, by size and number under way.
#[derive(Clone, Debug)]
pub struct ResponseTimes {
    /// Sizes in bytes, rising.
    sizes: Vec<u64>,
    /// For each size, at `n - 1` the time in ns among `n`.
    ns: Vec<Vec<i64>>,
    /// How many are under way where the last entry of each was measured.
    deepest: Vec<u32>,
}

/// Where a size lies between two that were measured.
#[derive(Clone, Copy, Debug)]
pub struct SizeInterval {
    line: usize,
    /// How far from that line to the next, in 1/65,536.
    part: i64,
}

const WHOLE: i64 = 1 << 16;

impl ResponseTimes {
    /// What `lines` say, which have a time for each of the first `depths`.
    pub fn new(lines: &[SizeCosts], depths: &[u32]) -> ResponseTimes {
        let between = |line: &SizeCosts| {
            let mut ns = Vec::new();
            for (index, us) in line.us.iter().enumerate() {
                let (depth, now) = (depths[index], us * 1e3);
                let (before, from) = match index {
                    0 => (0, now),
                    _ => (depths[index - 1], line.us[index - 1] * 1e3),
                };
                for n in before + 1..=depth {
                    let part = f64::from(n - before) / f64::from(depth - before);
                    ns.push((from + (now - from) * part) as i64);
                }
            }
            ns
        };
        let ns: Vec<Vec<i64>> = lines.iter().map(between).collect();
        ResponseTimes {
            sizes: lines.iter().map(|line| line.bytes).collect(),
            deepest: ns.iter().map(|ns| ns.len() as u32).collect(),
            ns,
        }
    }

    /// Where requests of `bytes` lie.
    pub fn place(&self, bytes: u64) -> SizeInterval {
        let above = self.sizes.partition_point(|&size| size <= bytes);
        let line = above.saturating_sub(1).min(self.sizes.len().saturating_sub(2));
        let (low, high) = (self.sizes[line], self.sizes.get(line + 1));
        let part = match high {
            Some(high) => {
                let past = bytes.saturating_sub(low) as i128 * i128::from(WHOLE);
                (past / i128::from(high - low)) as i64
            }
            None => 0,
        };
        SizeInterval { line, part }
    }

    /// The time of a request among `count` under way, itself among them; at least 1 ns.
    #[inline]
    pub fn ns(&self, place: SizeInterval, count: u32) -> u64 {
        let low = self.at(place.line, count);
        let ns = match place.part {
            0 => low,
            part => low + (self.at(place.line + 1, count) - low) * part / WHOLE,
        };
        ns.max(1) as u64
    }

    /// The time alone of a request of `bytes`.
    pub fn alone_ns(&self, bytes: u64) -> f64 {
        self.ns(self.place(bytes), 1) as f64
    }

    #[inline]
    fn at(&self, line: usize, count: u32) -> i64 {
        let deepest = self.deepest[line];
        match self.ns[line].get(count.saturating_sub(1) as usize) {
            Some(&ns) => ns,
            None => self.ns[line][deepest as usize - 1] * i64::from(count) / i64::from(deepest),
        }
    }
}
