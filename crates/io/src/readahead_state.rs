//! What the readahead law believes of a file at the moment, in a program's units.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use readpath_core::readahead;
use readpath_core::unit::PAGE_BYTES;

/// What the readahead law believes of a file, and of the device that it is on.
///
/// Before anything was measured these are the beliefs to begin with: a request costs 1 ms.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadaheadState {
    /// What a request costs beside its bytes.
    pub request: Duration,
    /// Bytes that the device moves in a second at its best.
    pub bytes_per_s: u64,
    /// The price: so many bytes cost as much as one more request would now. Shared by those who wait.
    pub marginal_cost_bytes: u64,
    /// The chance: of what was read ahead of the file, and of which it is known, so much was used, in percent. `None`
    /// while nothing is known, and where the kernel keeps the pages, which tells nobody.
    pub used_percent: Option<u64>,
    /// Bytes that were read ahead of the file and are not used yet; `None` where the kernel keeps the pages.
    pub unused_bytes: Option<u64>,
    /// The newest window; `None` while nothing was read ahead.
    pub window: Option<ReadaheadWindow>,
}

/// What was read ahead, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadaheadWindow {
    /// The bytes of the file; of a stride, with the gaps among them.
    pub bytes: Range<u64>,
    /// What they are ahead of: `forward`, `backward`, `strided`; or a `sweep` of what is used up at
    /// random.
    pub shape: &'static str,
    /// What made it as large as it is, and no larger: what a reader `waits` for a request, what
    /// a request `service_time` of the device; `memory`, pages that were `evicted`; pages that were `asked` for
    /// at random, in the file or in a `region` of it.
    pub why: &'static str,
    /// Bytes that the stream has behind it; of a sweep, what its requests have cost.
    pub behind_bytes: u64,
}

impl ReadaheadState {
    pub(crate) fn of(readahead_state: readahead::ReadaheadState) -> ReadaheadState {
        let readahead::ReadaheadState { request_ns, page_ps, marginal_cost_pages, credit, newest } =
            readahead_state;
        ReadaheadState {
            request: Duration::from_nanos(request_ns),
            bytes_per_s: (u128::from(PAGE_BYTES) * 1_000_000_000_000 / u128::from(page_ps)) as u64,
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

/// In a line: `a request costs 1.2ms or 480 KiB; 97 % of what was read ahead was used; the newest window: …`.
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
