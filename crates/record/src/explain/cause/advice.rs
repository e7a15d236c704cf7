//! Cause: the reads contradict a hint to the kernel.
//!
//! The rule holds for a read in a sequential run of at least [`ORDERED_BYTES`] if a random hint
//! turned readahead off. Under a sequential hint, bytes that are read and not used are charged
//! as in the cause `OverRead`: by their measured time. The rest of the wait has its own
//! cause, such as a low queue depth.

use super::super::gather::RecordingData;
use super::super::{ORDERED_BYTES, WaitCause};
use super::words::duration_text;
use super::{CauseText, ReadWait, over_read, path_or_dash};
use readpath_trace::recording::{AdviceType, ReadMethod};

/// Returns true if the wait is caused by wrong advice.
pub(super) fn is_cause_of(wait: &ReadWait) -> bool {
    let is_long_run = wait.is_sequential && wait.run_bytes >= ORDERED_BYTES;
    // Fetched bytes beyond the requested pages show that the hint had no effect on this read. A
    // read without fetched bytes waited for data in flight.
    wait.hint == Some(AdviceType::Random)
        && is_long_run
        && wait.fetched_bytes > 0
        && wait.prefetched_bytes == 0
}

/// Returns the number of waits that are charged to this cause, also in part.
pub(super) fn charged_wait_count(gathered: &RecordingData) -> u64 {
    // Both look-ups also return the file with the longest waits, which is not needed here.
    let (random, _file) = gathered.charged_waits(WaitCause::Advice);
    let (advised, _file) = over_read::advised_waits(gathered);
    random.waits + advised.waits
}

/// Returns the title of this cause, its evidence from the recording, and the remedy. The hint of
/// the file with the longest of these waits stands for all files.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let (random, random_file) = gathered.charged_waits(WaitCause::Advice);
    let (sequential, sequential_file) = over_read::advised_waits(gathered);
    let has_random_hint = random.ns >= sequential.ns;
    let (charge, file) =
        if has_random_hint { (random, random_file) } else { (sequential, sequential_file) };
    let is_mapped_hint = file.is_some_and(|file| file.has_mapped_hint(AdviceType::Random));
    let read_noun = if gathered.by_method.keys().all(|method| *method == ReadMethod::Fault) {
        "touch"
    } else {
        "read"
    };
    let reads = format!(
        "{} {read_noun}{} that waited {} each",
        charge.waits,
        if read_noun == "touch" { "es" } else { "s" },
        duration_text(charge.ns as f64 / charge.waits.max(1) as f64)
    );
    let file = path_or_dash(file);
    match has_random_hint {
        true => {
            let hint = if is_mapped_hint { "MADV_RANDOM" } else { "POSIX_FADV_RANDOM" };
            CauseText {
                title: "random advice on ordered access: the kernel reads nothing ahead".to_owned(),
                evidence: format!(
                    "{reads}, in runs of {} KiB and more, one after the other, most of them of {file}; \
                     the program advised {hint}",
                    ORDERED_BYTES >> 10
                ),
                remedy: format!(
                    "remove the advice {hint}: the kernel then reads ahead by itself; or advise \
                     MADV_SEQUENTIAL (POSIX_FADV_SEQUENTIAL)"
                ),
            }
        }
        false => CauseText {
            title: "the program advised SEQUENTIAL, but its reads are not sequential".to_owned(),
            evidence: format!(
                "{reads}, a part of it for bytes ahead that were not used, most of them of {file}"
            ),
            // Without advice the kernel reads around a touch of a mapping too.
            remedy: "advise POSIX_FADV_RANDOM (MADV_RANDOM): the kernel then reads only what is \
                     requested"
                .to_owned(),
        },
    }
}
