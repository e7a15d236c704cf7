//! The policy within the read path: it is chosen by name, and its decisions are logged.

use readpath_core::machine::{Config, Machine, ReadAccess, Transfer};
use readpath_core::policy::Spec;
use readpath_core::request::ProcessId;
use readpath_core::unit::Time;

use super::rig::SPINDLE;

#[test]
fn machine_exposes_the_decision_log_of_its_scheduler() {
    let config = Config { scheduler: Spec::plain("cfq"), ..Config::new(SPINDLE.caps()) };
    let mut path = Machine::new(config).unwrap();
    path.scheduler_decisions().unwrap().set_enabled(true);
    let file = path.add_file(1 << 20, 80_000).unwrap();
    let handle = path.open(file);
    let transfer = Transfer { handle, process: ProcessId(3), offset: 8192, bytes: 4096, tag: 0 };
    path.read(Time::ZERO, ReadAccess::Direct, transfer).unwrap();
    assert!(path.poll_request(Time::ZERO).is_some());
    let log = path.scheduler_decisions().unwrap();
    let lines: Vec<String> = std::iter::from_fn(|| log.poll()).map(|it| it.to_string()).collect();
    // 80,000 sectors and two pages of 8.
    let dispatch = "process=3 start=80016 sectors=8 why=next_by_sector";
    assert!(lines.last().unwrap().contains(dispatch), "{lines:?}");
}

#[test]
fn machine_without_a_scheduler_log_exposes_no_decisions() {
    let mut path = Machine::new(Config::new(SPINDLE.caps())).unwrap();
    assert!(path.scheduler_decisions().is_none());
}
