//! Probes for tracing a path while it runs.
//!
//! | probe | event | arguments |
//! |---|---|---|
//! | `read` | a read that is more than a copy begins, and ends | offset in the file, bytes |
//! | `submitted` | a request is submitted to the storage | id, first sector, sectors, write flag |
//! | `completed` | the request is completed | id, true if all bytes were moved |
//! | `advised` | the kernel is advised to read ahead | offset in the file, bytes |
//!
//! With the feature `tracing` each is an event of that crate (`read` a span), at level `TRACE` with
//! target `readpath`. With `usdt` each is a USDT probe of the provider `readpath`, and `read` is
//! two: `read_begin` and `read_end`. A USDT probe is a single `nop` until a tracer attaches.
//! Without both features there is no code.
//!
//! The first three also report reads of NFS files. `submitted`, `completed` and `advised` fire
//! while the path is locked: a subscriber must not read through the same path. Their panics in a
//! subscriber are contained. A panic in the span of `read`, outside of the lock, reaches the
//! caller of the read. Reads of cached bytes fire no probe, to stay cheap.

use readpath_core::request::{Completion, DeviceRequest, Op, Outcome};

#[cfg(feature = "tracing")]
use crate::os::thread::run_contained;

/// True if any probe is compiled in. Code that only serves a probe is left out otherwise.
pub(crate) const ARE_COMPILED_IN: bool = cfg!(any(feature = "tracing", feature = "usdt"));

/// Span of a read in progress.
pub(crate) struct ReadSpan {
    #[cfg(feature = "tracing")]
    _span: tracing::span::EnteredSpan,
    #[cfg(feature = "usdt")]
    offset: u64,
}

/// Begins the span of a read; dropping the result ends it.
#[inline(always)]
#[cfg_attr(not(any(feature = "tracing", feature = "usdt")), allow(unused_variables))]
pub(crate) fn begin_read(offset: u64, bytes: u64) -> ReadSpan {
    #[cfg(feature = "usdt")]
    probe::probe!(readpath, read_begin, offset, bytes);
    ReadSpan {
        #[cfg(feature = "tracing")]
        _span: tracing::trace_span!(target: "readpath", "read", offset, bytes).entered(),
        #[cfg(feature = "usdt")]
        offset,
    }
}

#[cfg(feature = "usdt")]
impl Drop for ReadSpan {
    /// Reports the end of the read that began at `offset`. The probe has this argument only.
    #[inline(always)]
    fn drop(&mut self) {
        probe::probe!(readpath, read_end, self.offset);
    }
}

/// Reports a request submitted to the storage.
#[inline(always)]
#[cfg_attr(not(any(feature = "tracing", feature = "usdt")), allow(unused_variables))]
pub(crate) fn on_submit(request: &DeviceRequest) {
    let DeviceRequest { id, op, start, sectors } = *request;
    let is_write = op == Op::Write;
    #[cfg(feature = "tracing")]
    run_contained(
        || tracing::trace!(target: "readpath", id = id.0, start, sectors, is_write, "submitted"),
    );
    #[cfg(feature = "usdt")]
    probe::probe!(readpath, submitted, id.0, start, sectors, u32::from(is_write));
}

/// Reports a completed request.
#[inline(always)]
#[cfg_attr(not(any(feature = "tracing", feature = "usdt")), allow(unused_variables))]
pub(crate) fn on_complete(completion: &Completion) {
    let (id, is_whole) = (completion.id, completion.outcome == Outcome::Done);
    #[cfg(feature = "tracing")]
    run_contained(|| tracing::trace!(target: "readpath", id = id.0, is_whole, "completed"));
    #[cfg(feature = "usdt")]
    probe::probe!(readpath, completed, id.0, u32::from(is_whole));
}

/// Reports advice to the kernel to read ahead.
#[inline(always)]
#[cfg_attr(not(any(feature = "tracing", feature = "usdt")), allow(unused_variables))]
pub(crate) fn on_advice(offset: u64, bytes: u64) {
    #[cfg(feature = "tracing")]
    run_contained(|| tracing::trace!(target: "readpath", offset, bytes, "advised"));
    #[cfg(feature = "usdt")]
    probe::probe!(readpath, advised, offset, bytes);
}
