//! Options about engines and queue depth.

use super::{FioOption, supported, without_effect};
use crate::job::engines::{ENGINES, EngineClass};

pub const TABLE: &[FioOption] = &[
    supported(
        "ioengine",
        &[],
        "psync, sync, libaio, io_uring, mmap; raw, which fio has not; others are run as one of \
         these, or refused (psync)",
        |draft, value| {
            // As in fio, a colon and the path of a module may follow the name.
            let name = value.text.split(':').next().unwrap_or_default();
            let Some(engine) = ENGINES.iter().find(|engine| engine.name == name) else {
                let names: Vec<&str> = ENGINES
                    .iter()
                    .filter(|engine| !matches!(engine.class, EngineClass::Refused { .. }))
                    .map(|engine| engine.name)
                    .collect();
                return Err(names.join(", "));
            };
            match engine.class {
                EngineClass::Supported(job_engine) => {
                    draft.job.engine = job_engine;
                    draft.job.engine_named = None;
                }
                EngineClass::Replaced { replacement, .. } => {
                    draft.job.engine = replacement;
                    draft.job.engine_named = Some(engine.name);
                }
                EngineClass::Refused { because } => draft.rejection = Some(because),
            }
            Ok(())
        },
    ),
    supported(
        "iodepth",
        &[],
        "operations in flight, for asynchronous engines (1)",
        |draft, value| value.integer(1..=65_536).map(|n| draft.job.depth = n),
    ),
    supported(
        "iodepth_batch",
        &["iodepth_batch_submit"],
        "operations submitted together (1)",
        |draft, value| value.integer(0..=65_536).map(|n| draft.job.batch = n),
    ),
    supported(
        "iodepth_batch_complete_min",
        &["iodepth_batch_complete"],
        "completions waited for together (1)",
        |draft, value| value.integer(0..=65_536).map(|n| draft.job.batch_complete = n),
    ),
    without_effect("iodepth_batch_complete_max", &[], "all that are complete are taken"),
    supported(
        "iodepth_low",
        &[],
        "down to how many in flight a full queue is drained (iodepth)",
        |draft, value| value.integer(0..=65_536).map(|n| draft.job.low = n),
    ),
    without_effect(
        "serialize_overlap",
        &[],
        "operations on the same bytes are kept in order by the read path",
    ),
    without_effect(
        "io_submit_mode",
        &[],
        "operations are submitted by the process that asks for them",
    ),
    supported("direct", &[], "1 to go past the page cache (0)", |draft, value| {
        value.flag().map(|on| draft.job.is_direct = on)
    }),
    supported("buffered", &[], "0 to go past the page cache (1)", |draft, value| {
        value.flag().map(|on| draft.job.is_direct = !on)
    }),
    super::refused(
        "atomic",
        &[],
        &["0"],
        "no storage here promises that writes are whole or not at all",
    ),
    without_effect("uncached", &[], "what is read once leaves the cache first"),
];
