//! `--log FILE`: check that the run has decisions to log.

use readpath_core::policy::Spec;
use readpath_core::readahead::{self, ReadaheadLimits};
use readpath_core::request::DeviceCaps;
use readpath_core::scheduler;
use readpath_core::swapin;

use super::storage::Storage;
use crate::exit::{CommandResult, Failure};

/// Checks that a job has decisions to log. Refuses the kernel, and policies of which neither keeps
/// a log.
pub fn check_job(storage: &Storage, readahead: &Spec, scheduler: &Spec) -> CommandResult {
    refuse_kernel(storage)?;
    // The ability to keep a log does not depend on the device.
    let limits = ReadaheadLimits::default();
    let keeps_log = readahead::build(readahead, &limits).map_err(Failure::usage)?.keeps_log();
    check_any_log(keeps_log, ("readahead", readahead), scheduler)
}

/// Checks that a load has decisions to log. Refuses the kernel, regions, and policies of which
/// neither keeps a log.
pub fn check_load(storage: &Storage, swapin: &Spec, scheduler: &Spec) -> CommandResult {
    refuse_kernel(storage)?;
    if let Storage::Region(_) = storage {
        return Err(Failure::Usage(format!(
            "--log: {storage} keeps no log; name a modelled device, on which the same policies decide"
        )));
    }
    // The ability to keep a log does not depend on the device.
    let is_rotational = false;
    let policy = swapin::build(swapin, is_rotational).map_err(Failure::usage)?;
    let keeps_log = policy.keeps_log();
    check_any_log(keeps_log, ("swap-in", swapin), scheduler)
}

/// Refuses rows of the kernel, which does not report its decisions.
fn refuse_kernel(storage: &Storage) -> CommandResult {
    match storage {
        Storage::Kernel(_) => Err(Failure::Usage(format!(
            "--log: on {storage} the kernel decides and keeps no log; leave out --log or this \
                storage"
        ))),
        _ => Ok(()),
    }
}

/// Checks that the scheduler or the other policy of the row keeps a log. `keeps_log` is
/// true if the other policy does; `kind` is its kind.
fn check_any_log(
    keeps_log: bool,
    (kind, other_policy): (&str, &Spec),
    scheduler: &Spec,
) -> CommandResult {
    if keeps_log || scheduler_keeps_log(scheduler)? {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "--log: neither the scheduler `{}` nor the {kind} policy `{}` keeps a log of its \
         decisions; the schedulers `cfq` and `adaptive` do, and the {kind} policy `adaptive`",
        scheduler.name, other_policy.name
    )))
}

/// True if the scheduler keeps a log, on a device with arbitrary properties.
fn scheduler_keeps_log(scheduler: &Spec) -> Result<bool, Failure> {
    let caps = DeviceCaps {
        sectors: 1 << 20,
        request_sectors_max: 256,
        depth_max: 1,
        is_rotational: true,
        alignment_sectors: 1,
    };
    let mut scheduler = scheduler::build(scheduler, &caps).map_err(Failure::usage)?;
    Ok(scheduler.decisions().is_some())
}
