//! Bytes of the objects that the tests read.

use std::ops::Range;

use readpath_core::splitmix;

/// Bytes of a version of an object, different in most places from all other versions.
pub fn content(version: u64, range: Range<u64>) -> Vec<u8> {
    let key = splitmix::mixed(version);
    let words = range.start / 8..range.end.div_ceil(8);
    let mut bytes: Vec<u8> =
        words.flat_map(|word| splitmix::mixed(word ^ key).to_le_bytes()).collect();
    bytes.drain(..(range.start % 8) as usize);
    bytes.truncate((range.end - range.start) as usize);
    bytes
}
