//! Runs: ranges of one call that are close together. They are fetched with the gaps between them.

use std::ops::Range;

use readpath::File;
use readpath_core::near_ranges::{self, GAP_BYTES_MIN, Run};
use readpath_core::unit::PAGE_BYTES;

use crate::many::ReadRange;

/// Maximum length of a run in bytes: one request of the default size. Longer runs would have fewer
/// requests in parallel.
const RUN_BYTES_MAX: u64 = 2 << 20;

/// Groups of ranges with small gaps.
pub struct Runs {
    /// Index in `extents` of each range's run; None for a range in no run.
    run_of_range: Vec<Option<usize>>,
    /// Bytes of each run with its gaps; None after its prefetch.
    extents: Vec<Option<Range<u64>>>,
}

impl Runs {
    /// Finds the runs of the ranges. Runs within one page need no prefetch, and are left out.
    pub fn new(ranges: &[&ReadRange]) -> Runs {
        let mut runs = Runs { run_of_range: vec![None; ranges.len()], extents: Vec::new() };
        let bytes_of = |range: &&ReadRange| range.offset..range.offset + range.bytes as u64;
        let ranges: Vec<Range<u64>> = ranges.iter().map(bytes_of).collect();
        for Run { members, extent, .. } in near_ranges::runs(&ranges, GAP_BYTES_MIN, RUN_BYTES_MAX)
        {
            if extent.start / PAGE_BYTES == (extent.end - 1) / PAGE_BYTES {
                continue;
            }
            for index in members {
                runs.run_of_range[index] = Some(runs.extents.len());
            }
            runs.extents.push(Some(extent));
        }
        runs
    }

    /// Prefetches the run of the range with this index, before the first read of the run. No effect
    /// at its later reads.
    pub fn on_start(&mut self, file: &File, range_index: usize) {
        let extent = self.run_of_range[range_index].and_then(|run| self.extents[run].take());
        if let Some(Range { start, end }) = extent {
            file.prefetch(start, end - start);
        }
    }
}
