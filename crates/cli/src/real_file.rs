//! Local file or block device before a run on it.

use std::path::Path;

use readpath::raw::RawFileBuilder;
use readpath::{Mode, OpenError};
use readpath_os::queue::QueueLimits;
use readpath_record::cold;

use crate::exit::Failure;

/// Returns the mode in which a file or device is read (direct or through the kernel page cache),
/// and its length in bytes. An empty file is an error.
pub fn mode_and_length(path: &Path, builder: RawFileBuilder) -> Result<(Mode, u64), Failure> {
    let file = builder.open(path).map_err(Failure::usage)?;
    match file.bytes().map_err(Failure::usage)? {
        0 => Err(Failure::usage(OpenError::Empty { path: path.to_path_buf() })),
        bytes => Ok((file.mode(), bytes)),
    }
}

/// Drops the file's pages from the kernel page cache, while `should_continue` returns true. Returns
/// the numbers of remaining pages and of all pages. The end by `should_continue` is the failure
/// `Interrupted`.
pub fn make_cold(
    path: &Path,
    should_continue: cold::ContinueFn<'_>,
) -> Result<cold::Residency, Failure> {
    cold::drop_pages_while(path, should_continue).map_err(|error| match error.kind() {
        std::io::ErrorKind::Interrupted => Failure::Interrupted,
        _ => Failure::usage_of(path.display(), error),
    })
}

/// Returns the kernel's queue settings of the device below a path, if available.
pub fn kernel_queue(path: &Path) -> Option<QueueLimits> {
    QueueLimits::from_metadata(&std::fs::metadata(path).ok()?)
}
