//! Table A: large random reads, asynchronous through the cache (2003).
//!
//! Random reads of 64 KiB records in a 1 GiB file, each record once; the
//! asynchronous rows with 64 reads in flight, submitted 8 at a time. The first
//! row is the kernel in which "asynchronous" reads through the cache waited for
//! each page (2.6.0-test2), the second the one in which they did not, with its
//! readahead shrunk to nothing, the third that one repaired.
//!
//! The machine: one 10,000 rpm SCSI disk of 2002, `deadline` (the kernel's own
//! anticipatory scheduler of those months is not modelled), memory for the
//! whole file. The scheduler does not merge, and its queue is never congested,
//! so that the device requests are those that the laws make: their numbers can
//! then be held against a model of the laws alone: 12,287 of 85 KiB; 262,144 of
//! 4 KiB; 12,256 of 85.6 KiB.
//!
//! What does not come out: the first row is 2.7 times as fast as published
//! (each of its reads took 10 ms there, a whole seek and turn for the ahead
//! window too, which follows the first without a gap), so that the ratios are
//! half of the published ones. Drives without read-ahead of their own, with a
//! deeper queue, and a SATA drive of 2010 were tried: 0.11 to 0.18 in the second
//! row, 1.4 to 2.1 in the third.

use super::{Case, Experiment, Reproduced, Tell, law, megabytes_per_second};
use crate::simulate::{Setup, SimulateError};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "A",
    title: "random reads of 64 KiB in a 1 GiB file, asynchronous through the cache (2003)",
    run,
};

const SYNCHRONOUS: &str = "ioengine=psync\n";
const ASYNCHRONOUS: &str =
    "ioengine=libaio\niodepth=64\niodepth_batch=8\niodepth_batch_complete=8\n";

fn run(seed: u64, shortened: u32, tell: &mut Tell<'_>) -> Result<Vec<Reproduced>, SimulateError> {
    let size_mib = (1024 / shortened).max(1);
    let case = |label, job: &str, readahead, published| Case {
        label,
        job: format!(
            "[records]\nrw=randread\nrandom_generator=permutation\nbs=64k\nsize={size_mib}m\nfadvise_hint=0\n{job}"
        ),
        setup: Setup {
            readahead: law(readahead),
            merges: false,
            queue_requests: 1024,
            memory_bytes: 2 << 30,
            seed,
            ..Setup::new(law("hdd"))
        },
        published,
    };
    let direct = format!("{ASYNCHRONOUS}direct=1\n");
    let cases = vec![
        case("2.6.0-test2: in fact synchronous", SYNCHRONOUS, "window,announce=page", Some(8.54)),
        case("mm4: asynchronous, window shrunk", ASYNCHRONOUS, "window", Some(2.40)),
        case("mm4 + repair", ASYNCHRONOUS, "window-fixed", Some(21.45)),
        case("mm4, O_DIRECT", &direct, "none", None),
        case("on-demand readahead (2007)", ASYNCHRONOUS, "ondemand", None),
    ];
    Ok(vec![Reproduced {
        table: "A".to_owned(),
        title: EXPERIMENT.title.to_owned(),
        machine:
            "one 10,000 rpm SCSI disk of 2002 (`hdd`; of its queue it sorts 4, fitted to the third row), deadline without merging, a queue of 1,024 requests, 2 GiB of cache"
                .to_owned(),
        unit: "MB/s".to_owned(),
        rows: megabytes_per_second(cases, tell)?,
        grid: None,
    }])
}
