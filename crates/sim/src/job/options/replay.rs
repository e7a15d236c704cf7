//! Options about traces instead of a pattern.

use super::{FioOption, refused, supported, without_effect};

/// Values of the redirection option.
const REDIRECT: &str = "any name: all devices of the trace are one, each with its offsets, and that is the storage that \
                        is named to the command; else they lie side by side on it";

pub const TABLE: &[FioOption] = &[
    supported(
        "read_iolog",
        &[],
        "a trace that is replayed, in any format that is known; it runs alone, with the job's \
         engine, depth, runtime and startdelay, and with a depth of 1 at its own times through the \
         cache; other options that change a run are refused next to it",
        |draft, value| {
            let names = value.non_empty_text()?;
            draft.replay.names = names.split(':').map(str::to_owned).collect();
            Ok(())
        },
    ),
    without_effect("read_iolog_chunked", &[], "traces are always read piece by piece"),
    supported(
        "replay_no_stall",
        &[],
        "1: the times of the trace are not kept (0)",
        |draft, value| value.switch().map(|on| draft.replay.keeps_times = !on),
    ),
    supported(
        "replay_time_scale",
        &[],
        "in percent, how fast the trace goes (100)",
        |draft, value| value.integer(1..=100_000).map(|n| draft.replay.time_percent = n),
    ),
    supported("replay_redirect", &[], REDIRECT, |draft, value| {
        value.non_empty_text().map(|name| draft.replay.redirect = Some(name))
    }),
    supported("replay_scale", &[], "offsets are divided by so much (1)", |draft, value| {
        value.integer(0..=u32::MAX).map(|n| draft.replay.scale = n.max(1))
    }),
    supported(
        "replay_align",
        &[],
        "offsets are rounded down to a multiple of so many bytes, a power of 2 (none)",
        |draft, value| {
            let bytes = value.bytes_in(0..=1 << 40)?;
            match bytes == 0 || bytes.is_power_of_two() {
                true => draft.replay.align_bytes = bytes.max(1),
                false => return Err("a power of 2 in bytes".to_owned()),
            }
            Ok(())
        },
    ),
    supported("replay_skip", &[], "read, write, trim, sync: what is left out", |draft, value| {
        for word in value.text.split(',') {
            match word.trim() {
                "read" => draft.replay.skips[0] = true,
                "write" => draft.replay.skips[1] = true,
                "trim" | "sync" => {}
                _ => return Err("read, write, trim or sync, with commas between them".to_owned()),
            }
        }
        Ok(())
    }),
    refused("merge_blktrace_file", &[], &[], "merge the traces first, and replay what came of it"),
    refused(
        "merge_blktrace_scalars",
        &[],
        &[],
        "merge the traces first, and replay what came of it",
    ),
    refused("merge_blktrace_iters", &[], &[], "merge the traces first, and replay what came of it"),
];
