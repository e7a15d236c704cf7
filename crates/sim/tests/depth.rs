//! What the depth of `adaptive` is for: who asks for little beside one who asks for much.
//!
//! One process reads 4 KiB at random, one after the other; another keeps 128 such reads under way. Without
//! a depth the first one waits behind all that the device takes of the second's, and where that
//! is more than the device takes, behind the rest too.

use readpath_core::law::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::report::Row;
use readpath_sim::run::Go;
use readpath_sim::simulate::{Setup, simulate};

const READS: &str = "[global]\nioengine=io_uring\ndirect=1\nrw=randread\nbs=4k\nfilename=f\n\
    size=16g\ntime_based\nruntime=4s\n";

fn run(sections: &str, device: &str, scheduler: &str) -> Row {
    let setup = Setup {
        scheduler: Spec::parse(scheduler).unwrap(),
        ..Setup::new(Spec::parse(device).unwrap())
    };
    let job = JobFile::parse(&format!("{READS}{sections}")).unwrap();
    simulate("reads", &job, &setup, &mut |_| Go::On).unwrap()
}

/// On a drive that serves a request in 100 µs and 50,000 a second, seven eighths of these
/// need some five under way; a mount with a round trip of 1 ms and some ten threads behind it,
/// as many; four disks, some tens, since each of them gains from choosing.
#[test]
fn who_asks_for_little_does_not_wait_behind_who_asks_for_much() {
    let uneven = "[foreground]\niodepth=1\n[background]\niodepth=128\n";
    for (device, times) in
        [("ssd", 8.0), ("nfs:ssd,rtt=1ms", 4.0), ("raid0:4xhdd,hdd.drive=sata2010", 1.4)]
    {
        let [deadline, adaptive] =
            ["deadline", "adaptive"].map(|scheduler| run(uneven, device, scheduler));
        let [before, after] = [&deadline, &adaptive].map(|row| row.sections[0].latency_us.p50);
        let (before, after) = (before.unwrap(), after.unwrap());
        assert!(before > times * after, "{device}: {before} µs, then {after} µs");
        let [most, less] = [&deadline, &adaptive].map(|row| row.sections[1].iops.unwrap());
        // Seven eighths, and a fiftieth for what an epoch of some tens of completions can't tell.
        assert!(less > (0.875 - 0.02) * most, "{device}: {most} a second, then {less}");
    }
}

/// Where all ask for as much, a depth would spare nobody anything: nothing is held back.
#[test]
fn where_all_ask_for_as_much_nothing_is_held_back() {
    let even = "[one]\niodepth=64\n[other]\niodepth=64\n";
    for device in ["ssd", "nfs:ssd,rtt=1ms"] {
        let [deadline, adaptive] =
            ["deadline", "adaptive"].map(|scheduler| run(even, device, scheduler));
        assert_eq!(deadline.device_depth_mean, adaptive.device_depth_mean, "{device}");
        assert_eq!(deadline.bytes, adaptive.bytes, "{device}");
    }
}
