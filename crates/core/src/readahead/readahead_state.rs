//! The readahead state of an open file, for display.

use super::{Credit, DeviceEvidence, FileEvidence};
use crate::near_ranges::RequestCosts;
use crate::unit::PageRange;

/// The newest readahead of a file, and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatestReadahead {
    /// The pages. For a stride, the gaps are included.
    pub range: PageRange,
    /// Access shape: forward, backward, strided, gaps (skipped pages are read along) or sweep (a
    /// file or region is read whole).
    pub shape: &'static str,
    /// The bound that determined its size; see
    /// [`Decision::ReadAhead`](crate::decision::Decision::ReadAhead).
    pub why: &'static str,
    /// Pages of the stream before this point; for a sweep, the cost of its requests in pages.
    pub behind: u64,
    /// Number of pages that may be ahead of the reader.
    pub size: u64,
}

/// Readahead state of an open file and of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadaheadState {
    /// Costs of a request and of a page.
    pub costs: RequestCosts,
    /// Marginal cost of one more request of one page now, in pages.
    pub marginal_cost_pages: u64,
    /// Outcome of the prefetched pages of the file; `None` if they are not counted.
    pub credit: Option<Credit>,
    /// The newest window of the file; `None` before the first readahead.
    pub newest: Option<LatestReadahead>,
}

impl ReadaheadState {
    /// Takes the state from the evidence.
    pub fn of(
        device: &DeviceEvidence,
        file: &FileEvidence,
        credit: Option<Credit>,
    ) -> ReadaheadState {
        let request_pages = 1;
        ReadaheadState {
            costs: device.estimate.request_costs(),
            marginal_cost_pages: device.marginal_cost_pages(request_pages),
            credit,
            newest: file.newest,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use crate::machine::{Config, Machine, ReadAccess, SwapConfig, Transfer};
    use crate::policy::Spec;
    use crate::readahead::NoReadahead;
    use crate::request::{Completion, DeviceCaps, Outcome, ProcessId};
    use crate::unit::{PAGE_SECTORS, PageRange, Time};

    /// A machine that measures request costs only if one of its policies uses them.
    fn machine(policy: &str) -> Machine {
        Machine::new(config(policy)).unwrap()
    }

    /// A device of 1,024 pages with requests of up to 64 pages, and the readahead policy `policy`.
    fn config(policy: &str) -> Config {
        let caps = DeviceCaps {
            sectors: 1024 * PAGE_SECTORS,
            request_sectors_max: 64 * PAGE_SECTORS as u32,
            depth_max: 4,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let readahead = Spec::plain(policy);
        Config { readahead, learns_unused_costs: false, ..Config::new(caps) }
    }

    /// Executes one read of a page that takes 5 ms. Returns the estimated cost of a request, in ns.
    fn estimate_after_request_ns(machine: &mut Machine) -> u64 {
        const END: Time = Time::from_ms(5);
        let file = machine.add_file(1 << 20, 0).unwrap();
        let handle = machine.open(file);
        let process = ProcessId(0);
        let transfer = Transfer { handle, process, offset: 0, bytes: 4096, tag: 0 };
        machine.read(Time::ZERO, ReadAccess::Buffered, transfer).unwrap();
        let id = machine.poll_request(Time::ZERO).unwrap().id;
        machine.handle_completion(END, Completion::at(END, id, Outcome::Done));
        machine.readahead_state(handle).costs.request_ns
    }

    /// Before a measurement a request is assumed to cost 1 ms. A machine that measures costs raises
    /// the estimate above 4 ms after a request of 5 ms.
    #[test]
    fn device_costs_are_learned_only_for_policies_that_use_them() {
        const ASSUMED_NS: u64 = 1_000_000;
        let is_learned = |ns: u64| ns > 4_000_000;
        for policy in ["none", "window", "window-fixed", "ondemand"] {
            let estimate_ns = estimate_after_request_ns(&mut machine(policy));
            assert_eq!(estimate_ns, ASSUMED_NS, "{policy}");
        }
        for policy in ["runs", "adaptive"] {
            assert!(is_learned(estimate_after_request_ns(&mut machine(policy))), "{policy}");
        }
        let always = Config { learns_unused_costs: true, ..config("none") };
        assert!(is_learned(estimate_after_request_ns(&mut Machine::new(always).unwrap())));
        for (policy, uses_costs) in [
            ("none", false),
            ("cluster", false),
            ("hits", false),
            ("vma", false),
            ("adaptive", true),
        ] {
            let mut machine = machine("none");
            let policy = Spec::plain(policy);
            machine
                .add_swap(&SwapConfig { policy: policy.clone(), ..SwapConfig::new(4096, 64) })
                .unwrap();
            assert_eq!(is_learned(estimate_after_request_ns(&mut machine)), uses_costs, "{policy}");
        }
        let mut custom = machine("none");
        custom.set_policy_maker(Box::new(|_| Box::new(NoReadahead)));
        assert!(is_learned(estimate_after_request_ns(&mut custom)), "any policy may be made");
    }

    /// A request is initially assumed to cost 1 ms, or 122 pages. The request and the window have n
    /// pages. Without observations the reader reaches page n with likelihood 1 ÷ n, and thus uses s
    /// = 1 + 1 ÷ 2 + … + 1 ÷ n pages. Page n pays while n × s is at most 122 + n: up to n = 37. The
    /// window of 36 pages is rounded to end at page 32 of the file. Its pages are not used yet.
    #[test]
    fn first_read_at_offset_0_starts_a_forward_window_of_31_pages() {
        let mut machine = machine("adaptive");
        let file = machine.add_file(1 << 20, 0).unwrap();
        let handle = machine.open(file);
        assert_eq!(machine.readahead_state(handle).newest, None);
        let process = ProcessId(0);
        let transfer = Transfer { handle, process, offset: 0, bytes: 4096, tag: 0 };
        machine.read(Time::ZERO, ReadAccess::Buffered, transfer).unwrap();
        let readahead_state = machine.readahead_state(handle);
        assert_eq!(
            (readahead_state.costs.request_ns, readahead_state.marginal_cost_pages),
            (1_000_000, 122)
        );
        let newest = readahead_state.newest.unwrap();
        assert_eq!((newest.shape, newest.behind), ("forward", 1));
        assert_eq!(newest.range, PageRange::new(1, 31));
        let credit = readahead_state.credit.unwrap();
        assert_eq!((credit.standing_pages(), credit.used_percent()), (31, None));
    }
}
