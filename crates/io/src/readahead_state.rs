//! Readahead estimate of a file, in bytes and seconds.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use readpath_core::readahead;
use readpath_core::unit::PAGE_BYTES;

/// Present estimate of the readahead policy for a file and its device.
///
/// Before any measurement it has the initial values: 1 ms per request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadaheadState {
    /// Cost of a request, without its bytes.
    pub request: Duration,
    /// Peak throughput of the device in bytes per second.
    pub bytes_per_s: u64,
    /// Marginal cost of a request: the number of bytes that cost as much as one more request now.
    /// Waiting readers share it.
    pub marginal_cost_bytes: u64,
    /// Percentage of the file's prefetched bytes that were used, among those whose fate is known.
    /// `None` without data, and if the kernel caches the pages, because it does not report their
    /// use.
    pub used_percent: Option<u64>,
    /// Prefetched bytes of the file that are not used yet; `None` if the kernel caches the pages.
    pub unused_bytes: Option<u64>,
    /// Newest prefetch window; `None` before the first.
    pub window: Option<ReadaheadWindow>,
}

/// A prefetch window and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadaheadWindow {
    /// Byte range of the file; for a stride including its gaps.
    pub bytes: Range<u64>,
    /// Access pattern: `forward`, `backward`, `strided`, or `sweep` (whole-file prefetch after
    /// random access).
    pub shape: &'static str,
    /// Reason for the size of the window. `waits`: wait of a reader for a request. `occupies`:
    /// device time of a request. `memory`: free memory. `evicted`: evicted pages. `asked`: pages
    /// requested at random in the file, or in a `region` of it.
    pub why: &'static str,
    /// Bytes of the stream so far; for a sweep, the cost of its requests in bytes.
    pub behind_bytes: u64,
}

impl ReadaheadState {
    /// Converts the core's estimates: pages to bytes, and picoseconds a page to bytes a second.
    pub(crate) fn from_core(readahead_state: readahead::ReadaheadState) -> ReadaheadState {
        const PICOSECONDS_PER_S: u128 = 1_000_000_000_000;
        // `credit` counts the prefetched pages of the file by their use. *Standing* pages were not
        // used yet. `behind` is the number of pages of the stream so far.
        let readahead::ReadaheadState { costs, marginal_cost_pages, credit, newest } =
            readahead_state;
        ReadaheadState {
            request: Duration::from_nanos(costs.request_ns),
            // `page_ps` is never 0.
            bytes_per_s: (u128::from(PAGE_BYTES) * PICOSECONDS_PER_S / u128::from(costs.page_ps))
                as u64,
            marginal_cost_bytes: marginal_cost_pages * PAGE_BYTES,
            used_percent: credit.and_then(|credit| credit.used_percent()),
            unused_bytes: credit.map(|credit| credit.standing_pages() * PAGE_BYTES),
            window: newest.map(
                |readahead::LatestReadahead { range, shape, why, behind, .. }| ReadaheadWindow {
                    bytes: range.first * PAGE_BYTES..range.end * PAGE_BYTES,
                    shape,
                    why,
                    behind_bytes: behind * PAGE_BYTES,
                },
            ),
        }
    }
}

/// One line, such as `a request costs 1.2ms or 480 KiB; 97 % of what was read ahead was used; the
/// newest window: …`.
impl fmt::Display for ReadaheadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request costs {:?} or {} KiB", self.request, self.marginal_cost_bytes / 1024)?;
        if let Some(percent) = self.used_percent {
            write!(f, "; {percent} % of what was read ahead was used")?;
        }
        if let Some(ReadaheadWindow { bytes, shape, why, behind_bytes }) = &self.window {
            let kib = (bytes.end - bytes.start) / 1024;
            write!(f, "; the newest window: {kib} KiB at {}, {shape}, ", bytes.start)?;
            write!(f, "with {} KiB behind, as large as it is by {why}", behind_bytes / 1024)?;
        }
        Ok(())
    }
}
