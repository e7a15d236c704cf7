//! More is fetched than is used.
//!
//! It holds for a file of which at least half of what was fetched was not asked for. That part of
//! the waits is lost to it that have no other cause, or that of places which nobody could foresee.

use super::super::gather::{FileData, RecordingData};
use super::words::bytes;
use super::{CauseText, name};
use crate::page_set::PAGE_BYTES;

/// Less is the end of a window, or the head of a small file.
const FETCHED_PAGES_MIN: u64 = 256;

/// The part of what was fetched of a file that was not asked for; 0 when that is less than half.
pub(super) fn part(file: &FileData) -> f64 {
    let fetched = file.fetched.count();
    let unused = file.unused_pages();
    if fetched < FETCHED_PAGES_MIN || unused * 2 < fetched {
        return 0.0;
    }
    unused as f64 / fetched as f64
}

pub(super) fn words(gathered: &RecordingData) -> CauseText {
    let files = || gathered.files.values().filter(|file| part(file) > 0.0);
    let fetched: u64 = files().map(|file| file.fetched.count()).sum();
    let unused: u64 = files().map(FileData::unused_pages).sum();
    let most = files().max_by_key(|file| file.unused_pages());
    // Of pages that a fault mapped it is not known how many were used.
    let is_bound = files().any(|file| file.mapped.count_without(&file.asked) > 0);
    let [most_of, least] = if is_bound { ["at most ", "at least "] } else { ["", ""] };
    let used = fetched - unused;
    CauseText {
        title: "more is read than is used".to_owned(),
        evidence: format!(
            "{} were fetched and {most_of}{} of them used ({least}{:.0} times as much as needed), most of {}",
            bytes((fetched * PAGE_BYTES) as f64),
            bytes((used * PAGE_BYTES) as f64),
            fetched as f64 / used.max(1) as f64,
            name(most),
        ),
        remedy:
            "say which reads are at random places (POSIX_FADV_RANDOM, MADV_RANDOM) and ask for \
                 whole ranges at once (`pread`, MADV_WILLNEED); or make the device's read_ahead_kb \
                 smaller"
                .to_owned(),
    }
}
