//! Options about the contents of the transferred memory.

use super::{FioOption, without_effect};

/// Reason why contents have no effect.
const CONTENT: &str = "modelled devices have no content, and what is written to others is filler";
/// Reason why the type of memory has no effect.
const MEMORY: &str = "memory is taken from the system, aligned to pages";

pub const TABLE: &[FioOption] = &[
    without_effect("zero_buffers", &[], CONTENT),
    without_effect("refill_buffers", &[], CONTENT),
    without_effect("scramble_buffers", &[], CONTENT),
    without_effect("buffer_pattern", &[], CONTENT),
    without_effect("buffer_compress_percentage", &[], CONTENT),
    without_effect("buffer_compress_chunk", &[], CONTENT),
    without_effect("dedupe_percentage", &[], CONTENT),
    without_effect("dedupe_mode", &[], CONTENT),
    without_effect("dedupe_working_set_percentage", &[], CONTENT),
    without_effect("dedupe_global", &[], CONTENT),
    without_effect("mem", &["iomem"], MEMORY),
    without_effect("iomem_align", &["mem_align"], MEMORY),
    without_effect("hugepage-size", &[], MEMORY),
    without_effect("lockmem", &[], MEMORY),
];
