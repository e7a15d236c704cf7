//! Cause: many small files are read one after the other. Each costs a separate request, and
//! readahead ends at the end of each file.
//!
//! The rule holds if there were waits for at least [`FILES_MIN`] files of up to [`SMALL_BYTES`].
//! The waits during which the device's queue depth was low are charged.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::gather::{DepthCharge, FileData, RecordingData};
use super::super::{SMALL_BYTES, WaitCause};
use super::CauseText;
use super::words::{bytes_text, duration_text};

/// Minimum number of small files before this cause is considered. Chosen.
const FILES_MIN: usize = 16;

/// Returns true if a file is small and had waits.
pub(super) fn is_small(file: &FileData) -> bool {
    file.waits.waits > 0 && file.bytes.is_some_and(|bytes| bytes <= SMALL_BYTES)
}

/// Returns true if there were waits for at least [`FILES_MIN`] small files.
pub(super) fn has_many_small_files(gathered: &RecordingData) -> bool {
    gathered.files.values().filter(|file| is_small(file)).count() >= FILES_MIN
}

/// Returns true for causes whose waits are charged to `ManyFiles` if the file is small: the file
/// size explains them.
pub(super) fn absorbs_cause(cause: Option<WaitCause>) -> bool {
    matches!(cause, None | Some(WaitCause::PageFaults | WaitCause::Small | WaitCause::Depth))
}

/// Returns the deepest folder that contains at least half of the files, and the number of them in
/// it. `None` without such a folder.
fn deepest_common_folder<'a>(files: &[&'a FileData]) -> Option<(&'a Path, usize)> {
    let mut counts: BTreeMap<&Path, usize> = BTreeMap::new();
    for file in files {
        // The first ancestor is the path of the file itself.
        Path::new(&file.path).ancestors().skip(1).for_each(|folder| {
            *counts.entry(folder).or_default() += 1;
        });
    }
    let candidates = counts.into_iter().filter(|(_, count)| *count * 2 >= files.len());
    candidates.max_by_key(|(folder, count)| (folder.components().count(), *count))
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let files: Vec<&FileData> = gathered.files.values().filter(|file| is_small(file)).collect();
    let mut sum = DepthCharge::default();
    for file in &files {
        let causes = file.charges.keys().filter(|cause| absorbs_cause(**cause));
        causes.filter_map(|cause| file.depth_charge(*cause)).for_each(|charge| sum.add(&charge));
    }
    let DepthCharge { low: charge, depth, .. } = sum;
    // Pages that are brought in ahead do not help direct reads.
    let direct_count = files.iter().filter(|file| file.bypasses_cache()).count();
    let total_bytes: u64 = files.iter().filter_map(|file| file.bytes).sum();
    // The root folder says nothing about the files.
    let folder = match deepest_common_folder(&files) {
        Some((path, count)) if path.parent().is_some() => {
            format!("{count} of them below {}", path.display())
        }
        _ => "in many folders".to_owned(),
    };
    CauseText {
        title: format!("{} small files are read one after the other", files.len()),
        evidence: format!(
            "files of {} on average, {folder}; {} reads of them waited {} each, with {:.1} \
             requests at the device on average",
            bytes_text(total_bytes as f64 / files.len().max(1) as f64),
            charge.waits,
            duration_text(charge.ns as f64 / charge.waits.max(1) as f64),
            depth.mean(),
        ),
        remedy: format!(
            "read several files at once (threads, io_uring, `xargs -P`),{} or keep them in one \
             file (an archive, a database)",
            match direct_count * 2 > files.len() {
                true => "",
                false => " announce the next ones with POSIX_FADV_WILLNEED,",
            }
        ),
    }
}
