//! Share of the system's AIO requests that a process takes.
//!
//! All processes together have `fs.aio-max-nr` requests (65,536 by default), and a context reserves
//! its depth for as long as it lives. 512 paths of depth 128 would take them all, and a database that
//! is started next would get none. A path without a
//! named backend uses AIO only while this process has no more than a sixteenth of the limit, and all
//! processes no more than half of it. Beyond that, threads carry the requests.

use std::fs::read_to_string;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::BackendError;
use crate::process::ProcessName;

/// Part of the limit that one process takes.
const OF_PROCESS: u32 = 16;
/// Part of the limit up to which all processes have come before it is left to others.
const OF_ALL: u32 = 2;

/// Number of requests reserved, below, and of the process that has them, above: a child made by
/// `fork` has none of its parent's contexts.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Requests of this process, of a word.
fn of_this(word: u64) -> u32 {
    let is_this = (word >> 32) as u32 == ProcessName::this().number();
    if is_this { word as u32 } else { 0 }
}

fn change(by: impl Fn(u32) -> u32) {
    let process = u64::from(ProcessName::this().number()) << 32;
    let next = |word| Some(process | u64::from(by(of_this(word))));
    let _ = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

/// A context of so many requests was made.
pub(super) fn add(depth: u32) {
    change(|taken| taken.saturating_add(depth));
}

/// A context of so many requests was given back.
pub(super) fn remove(depth: u32) {
    change(|taken| taken.saturating_sub(depth));
}

/// Checks that a context of `depth` requests leaves enough to others. A system that doesn't report
/// its limit has no limit here.
///
/// # Errors
/// It leaves too few.
pub(crate) fn look(depth: u32) -> Result<(), BackendError> {
    let number = |name: &str| read_to_string(name).ok()?.trim().parse::<u32>().ok();
    let limits = number("/proc/sys/fs/aio-max-nr").zip(number("/proc/sys/fs/aio-nr"));
    match limits {
        Some((most, all)) => judge(depth, of_this(TAKEN.load(Ordering::Relaxed)), all, most),
        None => Ok(()),
    }
}

/// The same, of `taken` requests of this process and `all` that are reserved, of `most`.
fn judge(depth: u32, taken: u32, all: u32, most: u32) -> Result<(), BackendError> {
    let is_within = taken.saturating_add(depth) <= most / OF_PROCESS
        && all.saturating_add(depth) <= most / OF_ALL;
    if is_within { Ok(()) } else { Err(BackendError::AioShare { taken, system_max: most }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 65,536 a process takes 4,096, 32 paths of depth 128, while all have no more than 32,768.
    #[test]
    fn process_takes_a_sixteenth_and_leaves_half_to_others() {
        assert!(judge(128, 3_968, 3_968, 65_536).is_ok());
        assert!(judge(128, 4_000, 4_000, 65_536).is_err());
        assert!(judge(128, 0, 32_640, 65_536).is_ok());
        assert!(judge(128, 0, 32_641, 65_536).is_err());
        assert!(judge(u32::MAX, u32::MAX, u32::MAX, u32::MAX).is_err());
    }
}
