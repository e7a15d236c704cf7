//! The part of a fetch that the disk tier has, or gets. Without the feature `disk`, or without a
//! tier, all of this has no effect.

use std::ops::Range;

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::path::Path;
#[cfg(all(feature = "disk", target_os = "linux"))]
use readpath_core::request::RequestId;

#[cfg(all(feature = "disk", target_os = "linux"))]
use super::objects::is_weak;
#[cfg(all(feature = "disk", target_os = "linux"))]
use crate::disk::{DiskObject, DiskStore};
use crate::planner::Time;

/// Bytes at both ends of a range, which the store need not send.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// The first bytes of the range.
    pub(crate) prefix: Bytes,
    /// The last bytes of the range, none of them in the prefix.
    pub(crate) suffix: Bytes,
}

/// A fetch with its disk tier.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    #[cfg(all(feature = "disk", target_os = "linux"))]
    inner: Option<Inner>,
}

#[cfg(all(feature = "disk", target_os = "linux"))]
#[derive(Debug)]
struct Inner {
    /// The version of the object, in the tier.
    object: DiskObject,
    /// Request to the store in progress, whose time is measured.
    request: Option<RequestId>,
    /// Position of the first chunk in the object; of no meaning without chunks.
    start: u64,
    /// Fetched bytes, without a gap.
    chunks: Vec<Bytes>,
}

/// The disk tier of a store, if it has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    #[cfg(all(feature = "disk", target_os = "linux"))]
    pub(crate) store: Option<DiskStore>,
}

#[cfg(all(feature = "disk", target_os = "linux"))]
impl Disk {
    /// Returns true if the folder has some bytes of an object.
    pub(crate) fn has(&self, location: &Path) -> bool {
        self.store.as_ref().is_some_and(|store| store.has(location.as_ref()))
    }

    /// The tier of a fetch of an object in this version. Without effect for an object that the tier
    /// cannot have, such as one without a strong ETag.
    pub(crate) fn blocks(&self, meta: &ObjectMeta) -> Blocks {
        let tag = meta.e_tag.as_deref().filter(|tag| !is_weak(tag));
        let (location, store) = (meta.location.as_ref(), self.store.as_ref());
        let object = store.and_then(|store| store.object(location, tag, meta.size));
        let inner = |object| Inner { object, request: None, start: 0, chunks: Vec::new() };
        Blocks { inner: object.map(inner) }
    }
}

#[cfg(not(all(feature = "disk", target_os = "linux")))]
impl Disk {
    /// False.
    pub(crate) fn has(&self, _location: &Path) -> bool {
        false
    }

    /// No tier.
    pub(crate) fn blocks(&self, _meta: &ObjectMeta) -> Blocks {
        Blocks::default()
    }
}

#[cfg(all(feature = "disk", target_os = "linux"))]
impl Blocks {
    /// The bytes of a range that the folder has, at both ends, up to the first absent page.
    pub(crate) async fn read(&self, range: Range<u64>) -> Ends {
        let Some(inner) = &self.inner else { return Ends::default() };
        let read = inner.object.read(range).await;
        Ends { prefix: read.prefix, suffix: read.suffix }
    }

    /// A request to the store begins.
    pub(crate) fn on_request(&mut self, now: Time) {
        if let Some(inner) = &mut self.inner {
            inner.request = Some(inner.object.on_request(now));
        }
    }

    /// The request has ended, with this number of bytes; `None` if it has failed.
    pub(crate) fn on_answer(&mut self, now: Time, bytes: Option<u64>) {
        if let Some(inner) = &mut self.inner
            && let Some(request) = inner.request.take()
        {
            inner.object.on_answer(now, request, bytes);
        }
    }

    /// Keeps bytes of the object from `start` on, to offer them. They follow the kept ones without
    /// a gap.
    pub(crate) fn keep(&mut self, start: u64, chunk: Bytes) {
        if let Some(inner) = &mut self.inner
            && !chunk.is_empty()
        {
            if inner.chunks.is_empty() {
                inner.start = start;
            }
            inner.chunks.push(chunk);
        }
    }

    /// Drops the bytes that have arrived.
    pub(crate) fn restart(&mut self) {
        if let Some(inner) = &mut self.inner {
            inner.chunks.clear();
        }
    }

    /// All bytes have arrived: offers them to the folder.
    pub(crate) fn offer(&mut self) {
        if let Some(inner) = &mut self.inner
            && !inner.chunks.is_empty()
        {
            inner.object.offer(inner.start, std::mem::take(&mut inner.chunks));
        }
    }
}

#[cfg(all(feature = "disk", target_os = "linux"))]
impl Drop for Blocks {
    /// Ends the request of a fetch that is dropped, as a failed one: its time does not count.
    fn drop(&mut self) {
        self.on_answer(Time::ZERO, None);
    }
}

#[cfg(not(all(feature = "disk", target_os = "linux")))]
impl Blocks {
    /// No bytes.
    pub(crate) async fn read(&self, _range: Range<u64>) -> Ends {
        Ends::default()
    }

    /// No effect, as the functions below.
    pub(crate) fn on_request(&mut self, _now: Time) {}

    pub(crate) fn on_answer(&mut self, _now: Time, _bytes: Option<u64>) {}

    pub(crate) fn keep(&mut self, _start: u64, _chunk: Bytes) {}

    pub(crate) fn restart(&mut self) {}

    pub(crate) fn offer(&mut self) {}
}
