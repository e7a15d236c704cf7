//! Bytes of completed reads, in the frames of their pages or moved out of them.
//!
//! A *frame* is memory for one page of the path's cache. The *machine* is the state machine of that
//! cache. It pins the pages of a completed read until the read is *released*. A reader that is
//! *signed in* for a group of 16 pages protects them too, during its copy.

use readpath_core::cache::FrameId;

use super::frame_cache::FrameCache;
use super::in_flight::CompletedRead;

/// Location of the bytes of a completed read.
pub(crate) struct ReadBytes<'a> {
    /// Frames of the read's pages. The frames keep these pages while the bytes are in use.
    pub(super) frames: &'a [FrameId],
    /// Offset of the first byte from the start of the first frame.
    pub(super) skip: usize,
    /// Number of bytes; 0 after an error.
    pub(super) bytes: usize,
    /// The bytes themselves, if they were moved out of their frames.
    pub(super) detached: Option<&'a [u8]>,
}

impl<'a> ReadBytes<'a> {
    /// Returns the bytes as slices, one for each run of adjacent frames; none after an error. Few
    /// slices are faster to copy: one of 64 KiB that is in no processor cache takes two thirds of
    /// the time of sixteen pages.
    pub(crate) fn slices(
        &self,
        frame_cache: &'a FrameCache,
    ) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let ReadBytes { frames, mut skip, bytes, detached } = *self;
        // Detached bytes are one slice, and the frames are not read.
        let mut bytes_left = if detached.is_some() { 0 } else { bytes };
        let runs = frames.chunk_by(|frame, next| next.0 == frame.0 + 1);
        let pieces = runs.map_while(move |run| {
            // SAFETY: the frames keep their pages, either pinned by the machine or because the
            // reader is signed in for them.
            let pages = unsafe { frame_cache.frame_bytes(run[0].0, run.len()) };
            let part = &pages[skip..pages.len().min(skip + bytes_left)];
            bytes_left -= part.len();
            skip = 0;
            (!part.is_empty()).then_some(part)
        });
        detached.into_iter().chain(pieces)
    }
}

/// Returns the bytes of a completed read that is not released, as slices. There is none after an
/// error.
pub(crate) fn slices<'a>(
    frame_cache: &'a FrameCache,
    completed: &'a CompletedRead,
) -> impl Iterator<Item = &'a [u8]> {
    let CompletedRead { result, frames, skip, detached, .. } = completed;
    let bytes = result.and_then(Result::ok).unwrap_or(0) as usize;
    ReadBytes { frames, skip: *skip, bytes, detached: detached.as_deref() }.slices(frame_cache)
}
