//! Start of a program next to ten sequential streams, by scheduler, on the modelled disk.
//!
//! `bench/notes/schedulers.md` has the figures. BFQ's published comparison has 0.74 s for `bfq` and
//! about 2.1 s for the others, of another program on another disk: only the order is compared.

use readpath_core::policy::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::run::ProgressAnswer;
use readpath_sim::simulate::{SimulationSetup, simulate};

/// The job of the figures.
const JOB: &str = include_str!("../../../bench/jobs/program-start.fio");

/// Seconds from the program's first read to its last completion.
fn start_seconds(scheduler: &str) -> f64 {
    let setup = SimulationSetup {
        scheduler: Spec::parse(scheduler).unwrap(),
        readahead: Spec::plain("ondemand"),
        ..SimulationSetup::new(Spec::plain("hdd"))
    };
    let job = JobFile::parse(JOB).unwrap();
    let row = simulate("start", &job, &setup, &mut |_| ProgressAnswer::Continue).unwrap();
    let program = row.sections.iter().find(|section| section.name == "start").unwrap();
    assert_eq!(program.bytes, 1 << 20, "{scheduler}");
    program.seconds
}

/// The program takes 0.08 s alone. `cfq` serves it once in a round of all time slices. The others
/// let each of its reads wait for one request of each stream.
#[test]
fn program_starts_first_under_bfq_then_under_cfq() {
    let [bfq, cfq] = ["bfq", "cfq"].map(start_seconds);
    assert!(bfq < 0.12 && 5.0 * bfq < cfq, "{bfq} s under bfq, {cfq} s under cfq");
    for other in ["noop", "deadline", "mq-deadline", "kyber"] {
        let seconds = start_seconds(other);
        assert!(seconds > 2.0 * cfq, "{seconds} s under {other}, {cfq} s under cfq");
    }
}
