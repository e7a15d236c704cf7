//! A file or block device of this machine, before a run on it begins.

use std::path::Path;

use readpath::raw::RawFileBuilder;
use readpath::{Mode, OpenError};
use readpath_peers::cold;
use readpath_peers::queue::KernelQueue;

use crate::exit::Failure;

/// Which way the bytes of a file or device take, and how many there are.
pub fn found(path: &Path, builder: RawFileBuilder) -> Result<(Mode, u64), Failure> {
    let file = builder.open(path).map_err(Failure::usage)?;
    match file.bytes().map_err(Failure::usage)? {
        0 => Err(Failure::usage(OpenError::Empty { path: path.to_path_buf() })),
        bytes => Ok((file.mode(), bytes)),
    }
}

/// Has the kernel's cache give up the file's pages, as long as the run is wanted.
pub fn make_cold(path: &Path, is_wanted: cold::ContinueFn<'_>) -> Result<cold::Residency, Failure> {
    cold::drop_pages_while(path, is_wanted).map_err(|error| match error.kind() {
        std::io::ErrorKind::Interrupted => Failure::Interrupted,
        _ => Failure::about(path.display(), error),
    })
}

/// What the kernel decides by for the device below a path, where it says so.
pub fn queue_of(path: &Path) -> Option<KernelQueue> {
    KernelQueue::of(&std::fs::metadata(path).ok()?)
}
