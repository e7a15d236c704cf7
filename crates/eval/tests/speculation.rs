//! Speculative requests hardly delay demand requests, however much a policy reads ahead.

use readpath_core::policy::Spec;
use readpath_core::readahead::{
    Advice, NoReadahead, PageView, ReadRequest, ReadaheadLimits, ReadaheadPolicy,
};
use readpath_core::unit::PageRange;
use readpath_eval::policy_matrix::DEVICES;
use readpath_sim::job::JobFile;
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::{Participants, SimulationSetup, simulate_with};

/// Pages added by the policy per read.
const WINDOW: u64 = 1024;

/// Half of the file in pages. The file has 8 GiB, and its second half is read.
const HALF: u64 = (4 << 30) / 4096;

/// A policy with the maximum of useless readahead: a window of the unread half, and, if
/// `is_behind_too`, one after each read.
struct Junk {
    next: u64,
    is_behind_too: bool,
}

impl ReadaheadPolicy for Junk {
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        pages.add_absent(PageRange::new(self.next, WINDOW), false);
        self.next = (self.next + 7 * WINDOW) % (HALF - WINDOW);
        if self.is_behind_too {
            pages.add_absent(PageRange::new(ask.request().end, WINDOW), false);
        }
    }

    fn fault(&mut self, _page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        self.read(ask, pages);
    }

    fn advise(&mut self, _advice: Advice) {}
}

/// 99th percentile of 40,000 random reads of 4 KiB by `processes` processes, in microseconds.
fn p99_us(device: &str, processes: u32, policy: Policy) -> f64 {
    let job = format!(
        "[a]\nrw=randread\nbs=4k\nfilename=f\noffset=4g\nsize=4g\nio_size={}k\nnumjobs={processes}\ngroup_reporting\n",
        4 * 40_000 / processes,
    );
    let setup = SimulationSetup {
        scheduler: Spec::plain("adaptive"),
        ..SimulationSetup::new(Spec::parse(device).unwrap())
    };
    let policy_maker = Some(Box::new(move |_: &ReadaheadLimits| policy()) as _);
    let guests = Participants { policy_maker, observer: None };
    let mut go = |_: _| ProgressAnswer::Continue;
    let watch = RunObserver::progress(&mut go);
    let row = simulate_with("j", &JobFile::parse(&job).unwrap(), &setup, guests, watch).unwrap();
    row.sections[0].latency_us.p99.unwrap()
}

type Policy = fn() -> Box<dyn ReadaheadPolicy>;

fn delays_by_less_than_a_tenth(devices: &[&str], processes: u32, junk: Policy) {
    for name in devices {
        let (_, device) = DEVICES.iter().find(|device| device.0 == *name).unwrap();
        let without = p99_us(device, processes, || Box::new(NoReadahead));
        let with = p99_us(device, processes, junk);
        println!("{name} {processes}: {without} us, {with} us beside it: {:.3}", with / without);
        assert!(with <= 1.1 * without, "{name}: {without} and {with} us");
    }
}

#[test]
fn useless_prefetch_delays_readers_by_less_than_a_tenth() {
    let names: Vec<&str> = DEVICES.iter().map(|device| device.0).collect();
    delays_by_less_than_a_tenth(&names, 8, || Box::new(Junk { next: 0, is_behind_too: true }));
}

#[test]
fn useless_prefetch_far_from_reads_delays_them_by_less_than_a_tenth() {
    let far = || -> Box<dyn ReadaheadPolicy> { Box::new(Junk { next: 0, is_behind_too: false }) };
    delays_by_less_than_a_tenth(&["hdd-2", "ssd", "nfs-1ms"], 8, far);
    delays_by_less_than_a_tenth(&["hdd-1", "nvme", "nfs-0.2ms"], 1, far);
}
