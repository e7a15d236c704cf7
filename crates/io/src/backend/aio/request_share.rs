//! Share of the system's AIO requests that one process may take.
//!
//! All processes together have `fs.aio-max-nr` requests (65,536 by default), and a context reserves
//! its depth for its lifetime. Without a limit, 512 paths of depth 128 would take them all and
//! leave none to a database that starts later. A path without a named backend therefore uses AIO
//! only within two limits: a sixteenth of the total for this process, and half of it for all
//! processes. Beyond them, threads execute the requests.

use std::fs::read_to_string;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::BackendError;
use crate::os::process::ProcessNumber;

/// Divisor of the system limit: share of one process. Both divisors are chosen, not measured.
const PROCESS_SHARE_DIVISOR: u32 = 16;
/// Divisor of the system limit: use by all processes at which this one stops taking more.
const SYSTEM_SHARE_DIVISOR: u32 = 2;

/// Number of requests reserved (low half) and the process that has them (high half). A forked child
/// has none of its parent's contexts.
static RESERVED_REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Number of requests that this process has reserved. `packed` is a value of [`RESERVED_REQUESTS`].
/// 0 if another process, the parent, has written it.
fn reserved_by_this_process(packed: u64) -> u32 {
    let is_this_process = (packed >> 32) as u32 == ProcessNumber::current().number();
    if is_this_process { packed as u32 } else { 0 }
}

/// Replaces the number of reserved requests of this process by the result of `change`, atomically.
fn update_reserved(change: impl Fn(u32) -> u32) {
    let process = u64::from(ProcessNumber::current().number()) << 32;
    let next = |packed| Some(process | u64::from(change(reserved_by_this_process(packed))));
    // Never fails: `next` always returns a value.
    let _ = RESERVED_REQUESTS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

/// Records a new context of `depth` requests.
pub(super) fn reserve(depth: u32) {
    update_reserved(|reserved| reserved.saturating_add(depth));
}

/// Records the end of a context of `depth` requests.
pub(super) fn unreserve(depth: u32) {
    update_reserved(|reserved| reserved.saturating_sub(depth));
}

/// Checks that a context of `depth` requests leaves enough to others. Succeeds if the system's
/// numbers cannot be read.
///
/// # Errors
/// It would exceed the share.
pub(crate) fn check_share(depth: u32) -> Result<(), BackendError> {
    let number_in_file = |name: &str| read_to_string(name).ok()?.trim().parse::<u32>().ok();
    let numbers =
        number_in_file("/proc/sys/fs/aio-max-nr").zip(number_in_file("/proc/sys/fs/aio-nr"));
    match numbers {
        Some((request_limit, system_reserved)) => check_limits(
            depth,
            reserved_by_this_process(RESERVED_REQUESTS.load(Ordering::Relaxed)),
            system_reserved,
            request_limit,
        ),
        None => Ok(()),
    }
}

/// Checks like [`check_share`] for a context of `depth` requests. `process_reserved` requests are
/// reserved by this process, and `system_reserved` by all processes. The system's limit is
/// `request_limit`.
fn check_limits(
    depth: u32,
    process_reserved: u32,
    system_reserved: u32,
    request_limit: u32,
) -> Result<(), BackendError> {
    let is_within = process_reserved.saturating_add(depth) <= request_limit / PROCESS_SHARE_DIVISOR
        && system_reserved.saturating_add(depth) <= request_limit / SYSTEM_SHARE_DIVISOR;
    if is_within {
        Ok(())
    } else {
        Err(BackendError::AioShare { taken: process_reserved, system_max: request_limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With 65,536 in the system, a process takes up to 4,096 (32 paths of depth 128) while all
    /// processes have at most 32,768. The arguments are depth, requests of the process, requests of
    /// all processes, and the system's limit.
    #[test]
    fn aio_share_is_a_sixteenth_per_process_and_half_in_total() {
        assert!(check_limits(128, 3_968, 3_968, 65_536).is_ok());
        // 4,128 requests of this process.
        assert!(check_limits(128, 4_000, 4_000, 65_536).is_err());
        assert!(check_limits(128, 0, 32_640, 65_536).is_ok());
        // 32,769 requests of all processes.
        assert!(check_limits(128, 0, 32_641, 65_536).is_err());
        // Sums do not overflow.
        assert!(check_limits(u32::MAX, u32::MAX, u32::MAX, u32::MAX).is_err());
    }
}
