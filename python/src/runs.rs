//! Ranges of one call that are close together: they are fetched with the gaps between them.

use std::ops::Range;

use readpath::File;
use readpath_core::unit::PAGE_BYTES;

use crate::many::ReadRange;

/// Maximum length of a run in bytes: one request of the default size. Longer runs would have fewer
/// requests in parallel.
const RUN_BYTES_MAX: u64 = 2 << 20;

/// Longest gap in bytes within a run. It takes 0.3 ms at 100 MB/s, and a request 0.5 ms of
/// processor time. The latency of a request counts for nothing: the ranges of one call wait
/// together.
const GAP_BYTES_MAX: u64 = 32 << 10;

/// Groups of ranges with small gaps.
pub struct Runs {
    /// Run of each range, if it has one with others.
    run_of_range: Vec<Option<usize>>,
    /// Bytes of each run with its gaps, until its prefetch.
    extents: Vec<Option<Range<u64>>>,
}

impl Runs {
    /// Finds the runs of the ranges.
    pub fn new(ranges: &[&ReadRange]) -> Runs {
        let mut order: Vec<usize> = (0..ranges.len()).collect();
        order.sort_unstable_by_key(|&index| ranges[index].offset);
        let mut runs = Runs { run_of_range: vec![None; ranges.len()], extents: Vec::new() };
        let mut members: Vec<usize> = Vec::new();
        let mut extent = 0..0;
        for index in order.into_iter().filter(|&index| ranges[index].bytes > 0) {
            let start = ranges[index].offset;
            let end = start + ranges[index].bytes as u64;
            let joins = !members.is_empty()
                && start.saturating_sub(extent.end) <= GAP_BYTES_MAX
                && end.max(extent.end) - extent.start <= RUN_BYTES_MAX;
            if !joins {
                runs.add(&members, &extent);
                members.clear();
                extent = start..end;
            }
            members.push(index);
            extent.end = extent.end.max(end);
        }
        runs.add(&members, &extent);
        runs
    }

    /// Adds a run, unless it has one range, or one page.
    fn add(&mut self, members: &[usize], extent: &Range<u64>) {
        if members.len() < 2 || extent.start / PAGE_BYTES == (extent.end - 1) / PAGE_BYTES {
            return;
        }
        members.iter().for_each(|&index| self.run_of_range[index] = Some(self.extents.len()));
        self.extents.push(Some(extent.clone()));
    }

    /// Prefetches the run of a range, before the first read of the run.
    pub fn on_start(&mut self, file: &File, range: usize) {
        let extent = self.run_of_range[range].and_then(|run| self.extents[run].take());
        if let Some(Range { start, end }) = extent {
            file.prefetch(start, end - start);
        }
    }
}
