//! Kind of the file at a descriptor.

use std::fs;

use super::super::names::has_offsets;

/// True if a descriptor belongs to a regular file or a block device.
pub(in super::super) fn is_file(process: u32, descriptor: Option<u32>) -> bool {
    let Some(descriptor) = descriptor else { return false };
    let metadata = fs::metadata(format!("/proc/{process}/fd/{descriptor}"));
    metadata.is_ok_and(|metadata| has_offsets(metadata.file_type()))
}
