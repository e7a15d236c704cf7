//! Observation does not change a run, and its events add up.

use readpath_core::policy::Spec;
use readpath_core::readahead::NoReadahead;
use readpath_sim::job::JobFile;
use readpath_sim::observe::{Events, Observer};
use readpath_sim::report::ResultRow;
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::{Participants, SimulationSetup, simulate, simulate_with};

const SEQUENTIAL: &str = "[a]\nrw=read\nbs=64k\nsize=1m\n";

fn setup(device: &str, readahead: &str) -> SimulationSetup {
    let readahead = Spec::parse(readahead).unwrap();
    SimulationSetup { readahead, ..SimulationSetup::new(Spec::parse(device).unwrap()) }
}

fn observed(job: &str, setup: &SimulationSetup, events_max: usize) -> (ResultRow, Events) {
    let observer = Observer::new(events_max);
    let guests = Participants { observer: Some(observer.clone()), policy_maker: None };
    let job = JobFile::parse(job).unwrap();
    let row = simulate_with(
        "job",
        &job,
        setup,
        guests,
        RunObserver::progress(&mut |_| ProgressAnswer::Continue),
    )
    .unwrap();
    (row, observer.take())
}

fn plain(job: &str, setup: &SimulationSetup) -> ResultRow {
    simulate("job", &JobFile::parse(job).unwrap(), setup, &mut |_| ProgressAnswer::Continue)
        .unwrap()
}

#[test]
fn observer_does_not_change_the_run() {
    let mapped = "[m]\nrw=randread\nbs=64k\nsize=64m\nio_size=4m\nioengine=mmap\nnumjobs=3\n";
    let direct = "[d]\nrw=randrw\nbs=16k\nsize=16m\ndirect=1\nioengine=libaio\niodepth=8\n";
    for job in [SEQUENTIAL, mapped, direct] {
        for (device, policy) in [("hdd", "ondemand"), ("ssd", "window"), ("nvme", "none")] {
            let setup = setup(device, policy);
            assert_eq!(
                observed(job, &setup, 1 << 20).0,
                plain(job, &setup),
                "{job} {device} {policy}"
            );
        }
    }
}

/// Every policy decides the same with an observer, in a memory of 4 MiB. Two processes read at
/// random and one in order, so that some prefetched pages leave unused and the credit of a limited
/// policy is used up.
#[test]
fn every_policy_decides_the_same_with_an_observer() {
    let job = "[r]\nrw=randread\nbs=24k\nsize=32m\nio_size=3m\nnumjobs=2\n\
               [s]\nrw=read:48k\nbs=16k\nsize=32m\nio_size=6m\n";
    for policy in readpath_core::readahead::POLICIES {
        let setup = SimulationSetup { memory_bytes: 4 << 20, ..setup("ssd", policy.name) };
        assert_eq!(observed(job, &setup, 1 << 20).0, plain(job, &setup), "{}", policy.name);
    }
}

/// 16 reads of 16 pages. Without readahead each is one request of 128 sectors.
#[test]
fn every_read_and_request_and_policy_call_is_observed() {
    let (row, events) = observed(SEQUENTIAL, &setup("ssd", "none"), 1 << 20);
    let offsets: Vec<u64> = events.reads.iter().map(|read| read.offset).collect();
    assert_eq!(offsets, (0..16).map(|nth| nth * 65_536).collect::<Vec<u64>>());
    assert!(events.reads.iter().all(|read| read.bytes == Some(65_536)));
    assert!(
        events.requests.iter().all(|request| (request.sectors, request.is_write) == (128, false))
    );
    assert!(events.requests.iter().all(|request| request.done_ns > Some(request.issued_ns)));
    assert_eq!(row.device_requests, Some(events.requests.len() as u64));
    let asked: Vec<(u64, u64)> =
        events.windows.iter().map(|call| (call.page, call.pages)).collect();
    assert_eq!(asked, (0..16).map(|nth| (nth * 16, 16)).collect::<Vec<_>>());
    assert_eq!(events.dropped, 0);
}

/// fio's hint sets the largest window to 64 pages. A request of 16 at the start of the file is at
/// most a quarter of that, so its first window is twice the request. The next, at the mark, is the
/// largest (KERNEL.md, section 2: initial and next size).
#[test]
fn observed_windows_separate_demand_pages_from_prefetched_pages() {
    let (_, events) = observed(SEQUENTIAL, &setup("ssd", "ondemand"), 1 << 20);
    let first: Vec<_> =
        events.windows[..2].iter().map(|call| (call.demand_pages, call.ahead_pages)).collect();
    assert_eq!(first, [(16, 16), (0, 64)]);
}

#[test]
fn full_event_log_drops_and_counts_later_events() {
    let (_, events) = observed(SEQUENTIAL, &setup("ssd", "none"), 10);
    let lists = [events.reads.len(), events.requests.len(), events.windows.len()];
    assert_eq!((lists, events.dropped), ([10, 10, 10], 18));
}

#[test]
fn a_policy_from_outside_runs_in_place_of_the_named_one() {
    let job = JobFile::parse(SEQUENTIAL).unwrap();
    let guests = || Participants {
        policy_maker: Some(Box::new(|_| Box::new(NoReadahead))),
        observer: Some(Observer::new(0)),
    };
    for guests in [guests(), Participants { observer: None, ..guests() }] {
        let setup = setup("ssd", "ondemand");
        let row = simulate_with(
            "job",
            &job,
            &setup,
            guests,
            RunObserver::progress(&mut |_| ProgressAnswer::Continue),
        );
        let expected = plain(SEQUENTIAL, &self::setup("ssd", "none"));
        assert_eq!(row.unwrap().decisions, expected.decisions);
    }
}
