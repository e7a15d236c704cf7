//! Points at which a path can be looked at from outside while it runs.
//!
//! | point | when | what it tells |
//! |---|---|---|
//! | `read` | a read that isn't answered by a copy alone begins, and ends | offset in the file, bytes |
//! | `submitted` | the storage is given a request | its name, first sector, sectors, whether it writes |
//! | `completed` | and is done with it | its name, whether all bytes were moved |
//! | `advised` | the kernel is advised to read ahead | offset in the file, bytes |
//!
//! With the feature `tracing` each is an event of the crate of that name (`read` a span), at the level
//! `TRACE`, under the target `readpath`. With `usdt` each is a USDT probe of the provider `readpath`, `read` two
//! of them, `read_begin` and `read_end`: a single `nop` until somebody attaches. With neither there is no code.
//!
//! The first three are also told of reads of servers' files. `submitted`, `completed` and `advised` are
//! told while the path is locked: who hears of them must not read through the same path. A panic of a
//! subscriber there is contained.
//! A read that is answered by a copy passes no point: that is what makes it cheap.

use readpath_core::request::{Completion, DeviceRequest, Op, Outcome};

#[cfg(feature = "tracing")]
use crate::thread::contain;

/// Whether anybody can hear of a point: what only leads to one is left out where nobody can.
pub(crate) const ARE_TOLD: bool = cfg!(any(feature = "tracing", feature = "usdt"));

/// Is there while a read goes on.
pub(crate) struct ReadPoint {
    #[cfg(feature = "tracing")]
    _span: tracing::span::EnteredSpan,
    #[cfg(feature = "usdt")]
    offset: u64,
}

/// A read begins; it ends when what is given is dropped.
#[inline(always)]
#[cfg_attr(not(any(feature = "tracing", feature = "usdt")), allow(unused_variables))]
pub(crate) fn read(offset: u64, bytes: u64) -> ReadPoint {
    #[cfg(feature = "usdt")]
    probe::probe!(readpath, read_begin, offset, bytes);
    ReadPoint {
        #[cfg(feature = "tracing")]
        _span: tracing::trace_span!(target: "readpath", "read", offset, bytes).entered(),
        #[cfg(feature = "usdt")]
        offset,
    }
}

#[cfg(feature = "usdt")]
impl Drop for ReadPoint {
    #[inline(always)]
    fn drop(&mut self) {
        probe::probe!(readpath, read_end, self.offset);
    }
}

/// The storage is given a request.
#[inline(always)]
#[cfg_attr(not(any(feature = "tracing", feature = "usdt")), allow(unused_variables))]
pub(crate) fn submitted(request: &DeviceRequest) {
    let DeviceRequest { id, op, start, sectors } = *request;
    let is_write = op == Op::Write;
    #[cfg(feature = "tracing")]
    contain(
        || tracing::trace!(target: "readpath", id = id.0, start, sectors, is_write, "submitted"),
    );
    #[cfg(feature = "usdt")]
    probe::probe!(readpath, submitted, id.0, start, sectors, u32::from(is_write));
}

/// The storage is done with a request.
#[inline(always)]
#[cfg_attr(not(any(feature = "tracing", feature = "usdt")), allow(unused_variables))]
pub(crate) fn completed(completion: &Completion) {
    let (id, is_whole) = (completion.id, completion.outcome == Outcome::Done);
    #[cfg(feature = "tracing")]
    contain(|| tracing::trace!(target: "readpath", id = id.0, is_whole, "completed"));
    #[cfg(feature = "usdt")]
    probe::probe!(readpath, completed, id.0, u32::from(is_whole));
}

/// The kernel is advised to read ahead.
#[inline(always)]
#[cfg_attr(not(any(feature = "tracing", feature = "usdt")), allow(unused_variables))]
pub(crate) fn advised(offset: u64, bytes: u64) {
    #[cfg(feature = "tracing")]
    contain(|| tracing::trace!(target: "readpath", offset, bytes, "advised"));
    #[cfg(feature = "usdt")]
    probe::probe!(readpath, advised, offset, bytes);
}
