//! Cause: reads that were meant to bypass the page cache go through it.
//!
//! Some file systems serve direct reads (`O_DIRECT`) through the page cache: btrfs for compressed
//! files, ext4 with `data=journal` or encryption. AIO without `O_DIRECT` does so everywhere. A
//! read of this kind fills the cache, and the kernel may fetch more than the read asks for. A
//! submission of AIO then waits for its reads, one after the other.
//!
//! The rule for a single wait holds for a read at an unpredictable position that AIO submitted and
//! that filled the page cache. It is charged if devices had less than two concurrent requests on
//! average meanwhile. A recording without root has no requests; there the descriptor without
//! `O_DIRECT` is enough. Other direct reads of a file count if more than one in eight filled the
//! cache. The bytes that they fetch without need are charged here, and not to [`over_read`].

use super::super::WaitCause;
use super::super::depth_sweep::Depth;
use super::super::gather::{DepthCharge, FileData, RecordingData};
use super::super::wait_sum::WaitSum;
use super::words::{bytes_text, duration_text};
use super::{CauseText, ReadWait, over_read, path_or_dash};
use readpath_trace::page_set::PAGE_BYTES;
use readpath_trace::recording::ReadMethod;

/// Returns true if a submission of AIO waited for its read at an unpredictable position, which
/// filled the page cache.
pub(super) fn is_cause_of(wait: &ReadWait) -> bool {
    wait.method == ReadMethod::Aio && wait.has_filled_cache && !wait.is_sequential
}

/// Returns the files whose unneeded bytes are charged to this cause.
fn over_read_files(gathered: &RecordingData) -> impl Iterator<Item = &FileData> {
    let files = gathered.files.values().filter(|file| file.direct_reads_fill_cache());
    files.filter(|file| over_read::lost_share(gathered, file) > 0.0)
}

/// Returns the charged waits of single reads with their requests in flight, and the file with the
/// longest of them. Without root the requests at the device are not seen. All waits count then, and
/// the requests in flight are not for use.
fn charged_waits(gathered: &RecordingData) -> (WaitSum, Depth, Option<&FileData>) {
    let (DepthCharge { low, depth, .. }, file) = gathered.low_depth_waits(WaitCause::Direct);
    if gathered.has_measured_waits() {
        return (low, depth, file);
    }
    let (charge, file) = gathered.charged_waits(WaitCause::Direct);
    (charge, depth, file)
}

/// Returns the number of waits that this cause is charged with. In files with unneeded bytes, each
/// direct read that filled the page cache counts as one.
pub(super) fn charged_wait_count(gathered: &RecordingData) -> u64 {
    let read_count: u64 = over_read_files(gathered).map(|file| file.cached_direct_reads).sum();
    charged_waits(gathered).0.waits + read_count
}

/// Returns the title of this cause, its evidence from the recording, and the remedy.
pub(super) fn cause_text(gathered: &RecordingData) -> CauseText {
    let (charge, depth, charged_file) = charged_waits(gathered);
    let over_read_file = over_read_files(gathered).max_by_key(|file| file.cached_direct_reads);
    // One file stands for all.
    let file = charged_file.or(over_read_file);
    let is_direct = file.is_some_and(|file| file.direct_reads > 0);
    let title = match is_direct {
        true => "direct reads go through the page cache".to_owned(),
        false => "AIO without O_DIRECT: each submission waits for its reads".to_owned(),
    };
    let (cache_filling_reads, direct_reads) =
        file.map_or((0, 0), |file| (file.cached_direct_reads, file.direct_reads));
    let mut parts = Vec::new();
    if is_direct {
        parts.push(format!(
            "{cache_filling_reads} of {direct_reads} direct reads of {} filled the page cache",
            path_or_dash(file)
        ));
    }
    if charge.waits > 0 {
        // Without root the requests at the device are not seen.
        let depth = match gathered.has_measured_waits() {
            true => {
                format!(", with {:.1} requests at the device on average", depth.mean())
            }
            false => String::new(),
        };
        parts.push(format!(
            "{} reads of AIO waited {} each{depth}; most of them read {}",
            charge.waits,
            duration_text(charge.ns as f64 / charge.waits as f64),
            path_or_dash(charged_file),
        ));
    }
    if let Some(file) = over_read_file {
        let fetched_bytes = (file.fetched.count() * PAGE_BYTES) as f64;
        let used_bytes = fetched_bytes - (file.unused_pages() * PAGE_BYTES) as f64;
        parts.push(format!(
            "{} were fetched and {} of them used",
            bytes_text(fetched_bytes),
            bytes_text(used_bytes)
        ));
    }
    let remedy = match is_direct {
        true => {
            "find out why the file system does so (compression on btrfs: `btrfs property set FILE \
             compression none`, and write the file again; data=journal or encryption on ext4); or read \
             without O_DIRECT, with 16 to 32 reads in flight by io_uring or threads"
        }
        false => "open the file with O_DIRECT, or use io_uring, and keep 16 to 32 reads in flight",
    };
    CauseText { title, evidence: parts.join("; "), remedy: remedy.to_owned() }
}
