//! Random direct 4 KiB reads at queue depth 32, through the whole simulation: workload, machine,
//! scheduler, device. The cache is not used.

use divan::Bencher;
use divan::counter::ItemsCount;
use readpath_core::policy::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::run::ProgressAnswer;
use readpath_sim::simulate::{SimulationSetup, simulate};

use crate::sized;

/// Pairs of device and scheduler.
const CASES: [&str; 5] = ["ssd noop", "ssd deadline", "nvme noop", "hdd noop", "hdd deadline"];

#[divan::bench(args = CASES, sample_count = 10)]
fn requests(bencher: Bencher, case: &str) {
    let (device, scheduler) = case.split_once(' ').expect("the cases above are two words");
    let operations = sized(500_000);
    let job = format!(
        "[r]\nrw=randread\nbs=4k\nsize=16g\nio_size={}\ndirect=1\nioengine=libaio\niodepth=32\n",
        operations * 4096
    );
    let job = JobFile::parse(&job).expect("the job is well formed");
    let setup = SimulationSetup {
        scheduler: Spec::plain(scheduler),
        memory_bytes: 4096,
        ..SimulationSetup::new(Spec::plain(device))
    };
    bencher.counter(ItemsCount::new(operations)).bench_local(|| {
        let row = simulate("speed", &job, &setup, &mut |_| ProgressAnswer::Continue)
            .expect("the run is well formed");
        assert_eq!(row.device_requests, Some(operations));
    });
}
