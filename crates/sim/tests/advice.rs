//! Advice of processes with listed reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use readpath_core::machine::Machine;
use readpath_core::policy::Spec;
use readpath_core::readahead::{Advice, PageView, ReadRequest, ReadaheadPolicy};
use readpath_core::unit::Time;
use readpath_models::registry;
use readpath_sim::job::JobEngine;
use readpath_sim::run::{ProgressAnswer, RunObserver, run};
use readpath_sim::simulate::SimulationSetup;
use readpath_sim::workload::{FileId, GivenAdvice, GivenRead, ReadList, Workload, WorkloadFile};
use readpath_sim::world::SimulatedEnvironment;

/// Policy without readahead that counts the open handles.
struct HandleCounter {
    /// Number of open handles.
    open: Arc<AtomicUsize>,
}

impl ReadaheadPolicy for HandleCounter {
    fn read(&mut self, _: &ReadRequest, _: &mut dyn PageView) {}

    fn fault(&mut self, _: u64, _: &ReadRequest, _: &mut dyn PageView) {}

    fn advise(&mut self, _: Advice) {}
}

impl Drop for HandleCounter {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs one process, and returns the largest number of its files that were open at once.
fn open_files_max(files: u32, reads: Vec<GivenRead>, advice: Vec<GivenAdvice>) -> usize {
    let setup = SimulationSetup::new(Spec::plain("ssd"));
    let device = registry::build(&setup.device, setup.seed).unwrap();
    let mut machine = Machine::new(setup.config(device.caps())).unwrap();
    let (open, open_max) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let counted_max = Arc::clone(&open_max);
    machine.set_policy_maker(Box::new(move |_| {
        let open_now = open.fetch_add(1, Ordering::Relaxed) + 1;
        counted_max.fetch_max(open_now, Ordering::Relaxed);
        Box::new(HandleCounter { open: Arc::clone(&open) })
    }));
    let think_times = vec![Time::ZERO; reads.len()];
    let (engine, is_direct, depth) = (JobEngine::Psync, false, 1);
    let list = ReadList { engine, is_direct, depth, reads, think_times };
    let file = |nth| WorkloadFile { name: format!("f{nth}"), bytes: 4096 };
    let workload = Workload::from_lists((0..files).map(file).collect(), vec![list])
        .with_advice(vec![advice], setup.window_bytes);
    let mut environment = SimulatedEnvironment::new(device, setup.host);
    let mut go_on = |_| ProgressAnswer::Continue;
    let observer = RunObserver::progress(&mut go_on);
    run(&mut machine, workload, &mut environment, observer).unwrap();
    open_max.load(Ordering::Relaxed)
}

/// One advice on each of 100 files. `reads_before` has the number of reads before it.
fn advice_on_each(advice: Advice, reads_before: fn(usize) -> usize) -> Vec<GivenAdvice> {
    let given = |nth: usize| GivenAdvice {
        reads_before: reads_before(nth),
        think_time: Time::ZERO,
        file: FileId(nth as u32),
        offset: 0,
        bytes: 4096,
        advice,
    };
    (0..100).map(given).collect()
}

/// A program opens, reads, advises and closes each of its files: one is open at any time.
#[test]
fn file_is_closed_after_the_advice_behind_its_last_read() {
    let read = |nth| GivenRead { file: FileId(nth), offset: 0, bytes: 4096 };
    let reads: Vec<GivenRead> = (0..100).map(read).collect();
    let dropped = advice_on_each(Advice::DontNeed, |nth| nth + 1);
    assert_eq!(open_files_max(100, reads.clone(), dropped), 1);
    // A file that is announced before its read stays open until then.
    let announced = advice_on_each(Advice::WillNeed, |_| 0);
    assert_eq!(open_files_max(100, reads, announced), 100);
    // A process without reads closes each file behind its advice.
    assert_eq!(open_files_max(100, Vec::new(), advice_on_each(Advice::WillNeed, |_| 0)), 1);
}
