//! A request that a device serves in parts: their number, and the worst outcome among them.

use readpath_core::request::{DeviceError, Outcome};
use readpath_core::unit::SECTOR_BYTES;

/// Parts of a request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartedRequest {
    /// Parts that are not done.
    parts_left: u64,
    /// Size of the request; 0 for a flush.
    bytes: u64,
    /// Bytes from the start of the request that were moved without a gap, if every part that is
    /// not done moves all its bytes.
    contiguous_bytes: u64,
    /// First error of a part.
    error: Option<DeviceError>,
}

impl PartedRequest {
    /// A request of `sectors` sectors, 0 for a flush, in `parts` parts.
    pub(super) fn new(sectors: u32, parts: u64) -> PartedRequest {
        let bytes = u64::from(sectors) * SECTOR_BYTES;
        PartedRequest { parts_left: parts, bytes, contiguous_bytes: bytes, error: None }
    }

    /// Adds a part.
    pub(super) fn add_part(&mut self) {
        self.parts_left += 1;
    }

    /// Records the outcome of a part. After a short one, the bytes without a gap end at most
    /// `bytes` bytes behind `offset`. The sector `offset` counts from the start of the request.
    /// Other outcomes ignore it.
    pub(super) fn record_outcome(&mut self, offset: u64, outcome: Outcome) {
        match outcome {
            Outcome::Done => {}
            Outcome::Failed(error) => self.error = self.error.or(Some(error)),
            Outcome::Short { bytes } => {
                let moved = offset * SECTOR_BYTES + bytes;
                self.contiguous_bytes = self.contiguous_bytes.min(moved);
            }
        }
    }

    /// Counts the end of a part, whose outcome has been recorded. Returns the outcome of the
    /// request after the last part, and `None` before. It is the first error, else the moved bytes
    /// if they are too few.
    pub(super) fn end_part(&mut self) -> Option<Outcome> {
        self.parts_left -= 1;
        if self.parts_left > 0 {
            return None;
        }
        Some(match self.error {
            Some(error) => Outcome::Failed(error),
            None if self.contiguous_bytes < self.bytes => {
                Outcome::Short { bytes: self.contiguous_bytes }
            }
            None => Outcome::Done,
        })
    }
}
