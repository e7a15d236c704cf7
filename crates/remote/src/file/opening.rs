//! The request that opens an object: its description, with bytes of its start or of its end.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, Result};
use readpath_core::unit::PAGE_BYTES;

use crate::store::{Ends, body_of, may_succeed_later};

/// Extensions of formats whose index is at the end of the file: Parquet, ORC, files of Arrow, and
/// archives of zip. Their readers begin there. NumPy begins to read its archives at the start.
const INDEX_AT_END: [&str; 7] = ["parquet", "pq", "orc", "arrow", "feather", "zip", "jar"];

/// Bytes of an object that came with the answer of its opening.
#[derive(Default)]
pub(super) struct OpenedBytes {
    /// Offset of the first one in the object.
    start: u64,
    bytes: Bytes,
}

impl OpenedBytes {
    /// Returns all bytes of an object of `size` bytes; `None` if some are not here.
    pub(super) fn all(&self, size: u64) -> Option<&[u8]> {
        (self.start == 0 && self.bytes.len() as u64 == size).then_some(&*self.bytes)
    }

    /// Returns the bytes at the start of a range, or else the bytes at its end. `None` if neither
    /// end is here.
    pub(super) fn ends_of(&self, range: &Range<u64>) -> Option<Ends> {
        let end = self.start + self.bytes.len() as u64;
        let part = |start: u64, end: u64| {
            self.bytes.slice((start - self.start) as usize..(end - self.start) as usize)
        };
        if (self.start..end).contains(&range.start) {
            let prefix = part(range.start, range.end.min(end));
            return Some(Ends { prefix, ..Ends::default() });
        }
        let has_end = range.end > self.start && range.end <= end;
        has_end.then(|| Ends { suffix: part(self.start, range.end), ..Ends::default() })
    }
}

/// Returns the description of an object, and at most `first_bytes` bytes of its start, or of its
/// end if its name has one of the extensions [`INDEX_AT_END`]. At the end there is one page more.
/// If the store refuses a range at the end, or fails in a way that may pass, the start is requested
/// instead. There are no bytes if the body of the answer failed, or has not exactly its range.
///
/// A server without byte ranges is an error, unless the object is empty: with `first_bytes` 0, one
/// byte is requested to find that out. `is_kept` is true if a disk tier has bytes of the object,
/// which came by ranges. With `first_bytes` 0, the description is then requested alone.
pub(super) async fn begin(
    store: &Arc<dyn ObjectStore>,
    location: &Path,
    first_bytes: u64,
    is_kept: bool,
) -> Result<(ObjectMeta, OpenedBytes)> {
    if first_bytes == 0 && is_kept {
        return Ok((store.head(location).await?, OpenedBytes::default()));
    }
    if first_bytes == 0 {
        let (meta, _first_byte) = begin_with(store, location, GetRange::Bounded(0..1)).await?;
        return Ok((meta, OpenedBytes::default()));
    }
    if has_index_at_end(location) {
        // Reads have whole pages, so the first of these bytes must be in the answer too.
        let range = GetRange::Suffix(first_bytes.saturating_add(PAGE_BYTES));
        match begin_with(store, location, range).await {
            // Stores without such ranges, as Azure's; servers that refuse them in their own way.
            Err(Error::NotSupported { .. } | Error::NotImplemented { .. }) => {}
            Err(error) if may_succeed_later(&error) => {}
            result => return result,
        }
    }
    begin_with(store, location, GetRange::Bounded(0..first_bytes)).await
}

/// Returns true if the name of an object has one of the extensions [`INDEX_AT_END`].
fn has_index_at_end(location: &Path) -> bool {
    let extension = location.extension().map(str::to_ascii_lowercase);
    extension.is_some_and(|extension| INDEX_AT_END.contains(&&*extension))
}

/// Returns the description of an object, and its bytes of a range: a suffix, or one from the start.
async fn begin_with(
    store: &Arc<dyn ObjectStore>,
    location: &Path,
    range: GetRange,
) -> Result<(ObjectMeta, OpenedBytes)> {
    let options = GetOptions { range: Some(range.clone()), ..GetOptions::default() };
    let result = match store.get_opts(location, options).await {
        // An object without bytes has no such range: status 416, or the store's own error. For an
        // object with bytes the error stays, because its reads would fail too.
        Err(error) if may_be_of_range(&error, &range) => {
            return match store.head(location).await {
                Ok(meta) if meta.size == 0 => Ok((meta, OpenedBytes::default())),
                _ => Err(error),
            };
        }
        result => result?,
    };
    let meta = result.meta.clone();
    let Range { start, end } = result.range;
    // True if the answer is for the requested end of the object.
    let is_requested = match range {
        GetRange::Suffix(_) => end == meta.size,
        _ => start == 0,
    };
    if !is_requested {
        return Ok((meta, OpenedBytes::default()));
    }
    let mut body = body_of(result);
    let mut bytes = BytesMut::new();
    while let Some(chunk) = body.next().await {
        match chunk {
            // One byte too many is enough: the rest may be the whole object, or have no end.
            Ok(chunk) if (bytes.len() + chunk.len()) as u64 <= end - start => {
                bytes.extend_from_slice(&chunk);
            }
            _ => return Ok((meta, OpenedBytes::default())),
        }
    }
    let is_whole = bytes.len() as u64 == end - start;
    let opened = if is_whole {
        OpenedBytes { start, bytes: bytes.freeze() }
    } else {
        OpenedBytes::default()
    };
    Ok((meta, opened))
}

/// Returns true if an error may be the one of a range that an empty object does not have. The text
/// of the error may contain the name of the object.
fn may_be_of_range(error: &Error, range: &GetRange) -> bool {
    match error {
        // A suffix may be refused without a request; a range from the start is requested next.
        Error::NotSupported { .. } => !matches!(range, GetRange::Suffix(_)),
        // Status 416 has the text "Range Not Satisfiable". Its number may be a part of a port.
        _ => may_succeed_later(error) && error.to_string().to_lowercase().contains("range"),
    }
}
