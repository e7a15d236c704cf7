//! A request of the host: its parts, and the worst outcome among them.

use readpath_core::request::{DeviceError, DeviceRequest, Outcome};
use readpath_core::unit::SECTOR_BYTES;

/// A request of the host in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostRequest {
    /// Parts that are not done.
    parts_left: u64,
    bytes: u64,
    /// Bytes from the start of the request that were moved without a gap.
    contiguous_bytes: u64,
    /// First error of a part.
    error: Option<DeviceError>,
}

impl HostRequest {
    pub(super) fn new(request: DeviceRequest, parts: u64) -> HostRequest {
        let bytes = u64::from(request.sectors) * SECTOR_BYTES;
        HostRequest { parts_left: parts, bytes, contiguous_bytes: bytes, error: None }
    }

    /// Notes the outcome of a part that begins `offset` sectors after the request.
    pub(super) fn note(&mut self, offset: u64, outcome: Outcome) {
        match outcome {
            Outcome::Done => {}
            Outcome::Failed(error) => self.error = self.error.or(Some(error)),
            Outcome::Short { bytes } => {
                let moved = offset * SECTOR_BYTES + bytes;
                self.contiguous_bytes = self.contiguous_bytes.min(moved);
            }
        }
    }

    /// Counts the end of a part. Returns the outcome of the request after the last one.
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
