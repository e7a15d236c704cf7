//! Options about written data: syncs and verification.

use super::{FioOption, refused, supported, without_effect};

/// Reason why details of the verification have no effect.
const VERIFY_DETAILS: &str = "what is read back is compared byte for byte with what was written";
/// Reason why saved verification states are not supported.
const STATE: &str = "what was written is known from the run itself, or not at all";
/// Reason why discards are rejected.
const TRIMS: &str = "no device here takes discards";

pub const TABLE: &[FioOption] = &[
    supported("fsync", &[], "fsync(2) after so many writes (0: never)", |draft, value| {
        value.integer(0..=u32::MAX).map(|n| draft.job.sync.writes = n)
    }),
    supported("fdatasync", &[], "fdatasync(2) after so many writes (0: never)", |draft, value| {
        value.integer(0..=u32::MAX).map(|n| draft.job.sync.data_writes = n)
    }),
    supported("end_fsync", &[], "1: fsync(2) when all is written (0)", |draft, value| {
        value.switch().map(|on| draft.ends_synced = on)
    }),
    supported("fsync_on_close", &[], "1: fsync(2) when all is written (0)", |draft, value| {
        value.switch().map(|on| draft.closes_synced = on)
    }),
    supported(
        "sync",
        &[],
        "none, sync, dsync (also 0, 1): each write is put on the medium before the next (none)",
        |draft, value| {
            let words = [
                ("none", (0, 0)),
                ("0", (0, 0)),
                ("sync", (1, 0)),
                ("1", (1, 0)),
                ("dsync", (0, 1)),
            ];
            value.one_of(&words).map(|each| draft.writes_per_sync = each)
        },
    ),
    refused(
        "sync_file_range",
        &[],
        &[],
        "it starts the writing of dirty pages, which the kernel does when it likes; use fdatasync",
    ),
    refused(
        "write_barrier",
        &[],
        &["0"],
        "it marks writes as barriers, which no kernel of today knows; use fdatasync",
    ),
    supported(
        "verify",
        &[],
        "md5, crc32c, sha256, pattern and fio's others: what was written is read back, and compared \
         byte for byte where there are bytes (no: not)",
        |draft, value| {
            const METHODS: &[&str] = &[
                "0",
                "md5",
                "crc64",
                "crc32",
                "crc32c",
                "crc32c-intel",
                "crc16",
                "crc7",
                "sha1",
                "sha256",
                "sha512",
                "sha3-224",
                "sha3-256",
                "sha3-384",
                "sha3-512",
                "xxhash",
                "meta",
                "pattern",
                "pattern_hdr",
                "null",
                "none",
                "no",
            ];
            match METHODS.contains(&value.text) {
                true => draft.verifies = !["0", "none", "no"].contains(&value.text),
                // Without the words that turn the verification off: the first, and the last two.
                false => return Err(METHODS[1..METHODS.len() - 2].join(", ")),
            }
            Ok(())
        },
    ),
    supported("do_verify", &[], "0: nothing is read back (1)", |draft, value| {
        value.switch().map(|on| draft.verifies_at_end = on)
    }),
    supported(
        "verify_only",
        &[],
        "nothing is written; what an earlier run wrote is read",
        |draft, value| value.switch().map(|on| draft.verifies_only = on),
    ),
    supported(
        "verify_backlog",
        &[],
        "read back after so many writes (0: at the end)",
        |draft, value| value.integer(0..=u32::MAX).map(|n| draft.verify_backlog = n),
    ),
    supported(
        "verify_backlog_batch",
        &["verify_batch"],
        "so many at a time (verify_backlog)",
        |draft, value| value.integer(0..=u32::MAX).map(|n| draft.verify_batch = n),
    ),
    without_effect("verifysort", &[], "what was written is read in the order of places"),
    without_effect("verifysort_nr", &[], "what was written is read in the order of places"),
    without_effect("verify_interval", &["header_interval"], VERIFY_DETAILS),
    without_effect("verify_offset", &["header_offset"], VERIFY_DETAILS),
    without_effect("verify_pattern", &[], VERIFY_DETAILS),
    without_effect("verify_pattern_interval", &[], VERIFY_DETAILS),
    without_effect("verify_fatal", &[], "blocks that differ are counted as errors"),
    without_effect("verify_dump", &[], "the first block that differs is reported"),
    without_effect("verify_async", &[], "the process that reads compares"),
    without_effect("verify_async_cpus", &[], "the process that reads compares"),
    without_effect("verify_write_sequence", &[], VERIFY_DETAILS),
    without_effect("verify_header_seed", &[], VERIFY_DETAILS),
    without_effect("experimental_verify", &[], VERIFY_DETAILS),
    without_effect("verify_state_save", &[], STATE),
    refused("verify_state_load", &[], &["0"], STATE),
    refused("trim_percentage", &[], &["0"], TRIMS),
    refused("trim_verify_zero", &[], &["0"], TRIMS),
    refused("trim_backlog", &[], &["0"], TRIMS),
    refused("trim_backlog_batch", &[], &["0"], TRIMS),
    without_effect("write_hint", &[], "no device here sorts data by its lifetime"),
    without_effect("write_mode", &[], "a write is a write on every device here"),
];
