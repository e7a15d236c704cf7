//! The kernel was told what is not so.
//!
//! It holds for a read that goes on where the last one ended though random ones were promised, so
//! that nothing is read ahead; and for one that does not though sequential ones were, if more was
//! fetched than it asked for.

use super::super::WaitCause;
use super::super::gather::RecordingData;
use super::words::time;
use super::{CauseText, ReadWait, name};
use crate::recording::{AdviceType, ReadMethod};

pub(super) fn holds(wait: &ReadWait) -> bool {
    match wait.hint {
        Some(AdviceType::Random) => wait.goes_on && wait.fetched_bytes > 0,
        Some(AdviceType::Sequential) => !wait.goes_on && wait.ahead_bytes > wait.asked_bytes,
        _ => false,
    }
}

pub(super) fn words(gathered: &RecordingData) -> CauseText {
    let (charge, file) = gathered.charged(WaitCause::Advice);
    let hints =
        [ReadMethod::Read, ReadMethod::Fault].map(|way| file.and_then(|file| file.hint(way)));
    let is_random = hints.contains(&Some(AdviceType::Random));
    let (told, is_so, better) = match is_random {
        true => ("RANDOM", "goes on where the last one ended", "SEQUENTIAL"),
        false => ("SEQUENTIAL", "is somewhere else than the last one ended", "RANDOM"),
    };
    CauseText {
        title: format!("the kernel was told {told}, and the reads are not"),
        evidence: format!(
            "{} reads that waited {} each: each {is_so}, most of them of {}",
            charge.waits,
            time(charge.ns as f64 / charge.waits.max(1) as f64),
            name(file),
        ),
        remedy: format!("leave out the advice, or say POSIX_FADV_{better} (MADV_{better})"),
    }
}
