//! `adaptive`: reads as far along a run as runs were observed to go on, if that pays.
//!
//! The goals: a program never waits for a predictable page, and no page is read that evicts a
//! useful one. How it works:
//!
//! - *Runs, by address and by slot.* Neighbouring faults form a run, in the addresses of a mapping
//!   or in the slots of the swap area. Runs go up or down, and any number can be interleaved.
//!   Addresses show the order of the program. Slots show the order in which the pages of all
//!   programs were used before they left.
//! - *Run lengths are measured* (`length_distribution.rs`), for each mapping and for the slots: the
//!   share of runs of each length that went on. A run counts as ended when another begins, until it
//!   continues after all. Without observations, half of the runs with two faults double their
//!   length. Each page ahead thus has a likelihood.
//! - *Each page must pay.* A used page saves a fault. An unused page costs its transfer and a later
//!   fault for the page that it evicted. A page is therefore selected when `likelihood × fault >
//!   bytes + (1 − likelihood) × fault`, with the measured costs of the device. A fault costs the
//!   time of a request, divided by the faults that wait with it, and at least the service time of
//!   one more request.
//! - *The better of two plans.* The first reads along the slots, as far as the pages that any run
//!   predicts outweigh the others. It pays one request for each block between pages in memory. The
//!   second reads the pages that the fault's own run predicts in its mapping, at one request for
//!   each block of slots.
//! - *Bounds.* At most sixteen times the pages of a request's time are read, which keeps the device
//!   transferring for 94 % of the time. In memory, the bound is a quarter of the rest of one half,
//!   and that half divided among the waiting faults. The other bounds are the distance at which
//!   pages were observed to stay until their use, and the reserved frames.
//! - *Ahead of need:* the next decision is made when the run has covered half of the distance to
//!   the first absent page.
//!
//! Random faults read nothing ahead. Two neighbouring faults begin a run as long as no observation
//! contradicts it. A random load of blocks of one size is read block by block after a few of them.

use alloc::vec::Vec;

use super::{SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries};
use crate::decision::Decision;
use crate::length_distribution::PROBABILITY_ONE;
use crate::policy::{Spec, SpecError};
use crate::readahead::{DeviceEvidence, WINDOW_COST_FACTOR};
use crate::unit::PageRange;

mod runs;
mod trust;

use runs::{FaultRun, FaultRuns, PredictionBounds};
use trust::PrefetchDistance;

/// The policy `adaptive`.
#[derive(Clone, Debug, Default)]
pub struct AdaptiveSwapin {
    /// Runs of faults by slot, of all mappings.
    slots: FaultRuns,
    /// Runs of faults by address, one element for each mapping.
    addresses: Vec<FaultRuns>,
    /// Distance ahead of a fault at which prefetched pages stay in memory until their use.
    prefetch_distance: PrefetchDistance,
}

/// Costs in pages: the number of pages whose transfer takes as long.
#[derive(Clone, Copy, Debug)]
struct SwapCosts {
    /// A fault that must wait for a request, divided among the waiting faults. This is the gain of
    /// a page that is used, and the loss for one that is not.
    fault_pages: i64,
    /// One more request among others: its service time on the device.
    request_pages: i64,
    /// Most pages that may be ahead of a run.
    pages_max: u64,
}

/// A candidate for reading ahead.
#[derive(Clone, Copy, Debug)]
struct SwapinPlan {
    /// The slots or addresses to read.
    read: SwapRead,
    /// Number of pages to read.
    pages: u64,
    /// Number of requests that the read takes.
    requests: u64,
    /// Expected saving, in pages.
    value: i64,
}

impl AdaptiveSwapin {
    /// Creates the policy, which has no parameter.
    ///
    /// # Errors
    /// A parameter is given.
    pub fn from_spec(spec: &Spec) -> Result<AdaptiveSwapin, SpecError> {
        spec.only(&[])?;
        Ok(AdaptiveSwapin::default())
    }

    /// Records the fault, and selects the pages to read ahead of it; `None` if no decision is due
    /// or nothing pays. `is_miss` is true if the fault's page must be read anyway, so that a
    /// decision is always due. A decision sets the position of the next one for the longer of the
    /// fault's runs.
    fn choose_readahead(
        &mut self,
        fault: &SwapFault,
        is_miss: bool,
        swapped: &mut dyn SwappedPageQueries,
    ) -> Option<SwapRead> {
        // The costs now, and the distance at which prefetched pages stay until their use.
        let waiting_faults = swapped.waiting_faults();
        let mut costs = SwapCosts::of(swapped.evidence(), waiting_faults);
        let is_hit = !is_miss;
        costs.pages_max =
            self.prefetch_distance.update(is_hit, swapped.wasted_pages(), costs.pages_max);
        // The runs that the fault belongs to. At a hit, a decision waits for the longer one.
        let (by_slot, by_address) = self.record_fault(fault, costs);
        let is_slot_run_leading = by_slot.length > by_address.length;
        let leading = if is_slot_run_leading { by_slot } else { by_address };
        if !is_miss && !leading.is_decision_due() {
            return None;
        }
        // `None` if no plan has a positive value. Then only the next decision is set below.
        let plan = self.choose_plan(fault, by_slot, by_address, costs, swapped);
        let read = plan.and_then(|plan| {
            // Number of these pages that find a frame. For the others, frames are freed from now
            // on.
            let room_pages = swapped.prefetch_room(plan.pages);
            plan.log_plan(room_pages, fault, [by_slot, by_address], costs, swapped);
            // At a miss a request is sent in any case, so any room is used. At a hit at least half
            // of the plan must have frames: a smaller part would cost a request of its own, and the
            // next hit decides again.
            let has_room = room_pages > 0 && (is_miss || room_pages >= plan.pages / 2);
            has_room.then(|| plan.limited_to(room_pages, fault, by_slot, by_address, swapped))
        });
        // True if the page at this position of the leading run is absent and will not be read.
        let stays_absent = |position| {
            let absent_slot = match is_slot_run_leading {
                true => swapped.absent_page(position).map(|_| position),
                false => swapped.absent_slot(fault.memory, position),
            };
            absent_slot.is_some_and(|slot| match read {
                Some(SwapRead::Slots(range)) => !range.contains(slot),
                // The slots of a read by address are not known here: they count as absent.
                Some(SwapRead::Pages(range)) => is_slot_run_leading || !range.contains(position),
                None => true,
            })
        };
        // The next decision is due halfway to the first page of the run that stays absent. The run
        // with this fault is the newest of its space.
        let predicted = leading.in_run_order(leading.predicted);
        let present_count = predicted.take_while(|&position| !stays_absent(position)).count();
        let runs = if is_slot_run_leading { &mut self.slots } else { self.address_runs_mut(fault) };
        runs.newest_mut().defer_decision(present_count as u64);
        read
    }

    /// Returns the runs by address of the fault's mapping, created if the mapping is new.
    fn address_runs_mut(&mut self, fault: &SwapFault) -> &mut FaultRuns {
        let index = fault.memory.0 as usize;
        if index >= self.addresses.len() {
            self.addresses.resize_with(index + 1, FaultRuns::default);
        }
        &mut self.addresses[index]
    }

    /// Records the fault in the runs by slot and by address, and returns the two runs that it
    /// belongs to, by slot first.
    fn record_fault(&mut self, fault: &SwapFault, costs: SwapCosts) -> (FaultRun, FaultRun) {
        let fault_pages = costs.fault_pages as u64;
        // Solves: likelihood × fault = 1 + (1 − likelihood) × fault, all in pages. A fault costs at
        // least one page (`SwapCosts`). `PROBABILITY_ONE` stands for 1.
        let likelihood_min = PROBABILITY_ONE * (fault_pages + 1) / (2 * fault_pages);
        let pages_max = costs.pages_max;
        let bounds = |space_end| PredictionBounds { space_end, likelihood_min, pages_max };
        let (address_bounds, slot_bounds) = (bounds(fault.memory_pages), bounds(fault.slots));
        let by_address = self.address_runs_mut(fault).record_fault(fault.page, address_bounds);
        let by_slot = self.slots.record_fault(fault.slot, slot_bounds);
        (by_slot, by_address)
    }

    /// The plan of higher value, along the slots or the addresses; `None` if none has a positive
    /// value. The slots win if the values are equal.
    fn choose_plan(
        &self,
        fault: &SwapFault,
        by_slot: FaultRun,
        by_address: FaultRun,
        costs: SwapCosts,
        swapped: &dyn SwappedPageQueries,
    ) -> Option<SwapinPlan> {
        if by_slot.predicted.is_empty() && by_address.predicted.is_empty() {
            return None;
        }
        let along_slots = self.plan_by_slot(fault, by_slot, costs, swapped);
        let along_addresses = plan_by_address(fault, by_address, costs, swapped);
        let is_address_better = along_addresses.value > along_slots.value;
        let best = if is_address_better { along_addresses } else { along_slots };
        (best.value > 0).then_some(best)
    }

    /// Returns the plan along the slots with the highest value; without pages if no value is above
    /// 0. A predicted page, by this run or any run of its mapping, adds the cost of a fault. Any
    /// other page subtracts it. Each page also subtracts 1, its transfer, and each request its
    /// cost.
    fn plan_by_slot(
        &self,
        fault: &SwapFault,
        run: FaultRun,
        costs: SwapCosts,
        swapped: &dyn SwappedPageQueries,
    ) -> SwapinPlan {
        let mut best = SwapinPlan {
            read: SwapRead::Slots(PageRange::default()),
            pages: 0,
            requests: 0,
            value: 0,
        };
        // Sums over the slots so far. A page in memory, or a free slot, ends a request. The first
        // request counts too, although at a miss it may join the fault's own: the value is then a
        // lower bound.
        let (mut value, mut pages, mut requests, mut is_in_request) = (0, 0, 0, false);
        let candidates = match run.is_backward() {
            true => PageRange { first: 0, end: fault.slot },
            false => PageRange { first: fault.slot + 1, end: fault.slots },
        };
        // The search stops where the value is more than 16 faults (`WINDOW_COST_FACTOR`), the cost
        // of the largest window, below the best one.
        let loss_max = WINDOW_COST_FACTOR as i64 * costs.fault_pages;
        // At most four slots are searched for each page of the largest plan: this bounds the search
        // where most slots are free or have pages in memory.
        let slots_max = 4 * costs.pages_max as usize;
        for slot in run.in_run_order(candidates).take(slots_max) {
            let Some((memory, page)) = swapped.absent_page(slot) else {
                is_in_request = false;
                continue;
            };
            if !core::mem::replace(&mut is_in_request, true) {
                value -= costs.request_pages;
                requests += 1;
            }
            pages += 1;
            let addresses = self.addresses.get(memory.0 as usize);
            let is_predicted_page = run.predicted.contains(slot)
                || addresses.is_some_and(|runs| runs.is_predicted(page));
            value += if is_predicted_page { costs.fault_pages } else { -costs.fault_pages } - 1;
            if value > best.value {
                let read = match run.is_backward() {
                    true => PageRange { first: slot, end: fault.slot },
                    false => PageRange { first: fault.slot + 1, end: slot + 1 },
                };
                best = SwapinPlan { read: SwapRead::Slots(read), pages, requests, value };
            }
            if pages >= costs.pages_max || value < best.value - loss_max {
                break;
            }
        }
        best
    }
}

/// Returns the plan along the addresses: the pages that the run predicts, in any slots, with
/// requests and value. Each page adds the cost of a fault and subtracts 1, its transfer. Each
/// request, for pages in adjacent slots, subtracts its cost.
fn plan_by_address(
    fault: &SwapFault,
    run: FaultRun,
    costs: SwapCosts,
    swapped: &dyn SwappedPageQueries,
) -> SwapinPlan {
    let (mut pages, mut requests) = (0, 0);
    // Slot of the page before: an adjacent slot belongs to the same request. The first page counts
    // as a request, although at a miss it may join the fault's own: the value is then a lower
    // bound.
    let mut last = None;
    let predicted = run.in_run_order(run.predicted);
    let slots = predicted.filter_map(|page| swapped.absent_slot(fault.memory, page));
    for slot in slots {
        pages += 1;
        requests += u64::from(last.is_none_or(|last: u64| last.abs_diff(slot) != 1));
        last = Some(slot);
    }
    let value = pages as i64 * (costs.fault_pages - 1) - requests as i64 * costs.request_pages;
    SwapinPlan { read: SwapRead::Pages(run.predicted), pages, requests, value }
}

impl SwapCosts {
    /// The current costs while `waiting_faults` faults wait.
    ///
    /// A fault costs request ÷ waiting faults, and at least the service time of a request. At most
    /// 16 requests' cost in pages is read ahead. With m pages of memory and u unused prefetched
    /// ones, the other bounds are (m ÷ 2 - u) ÷ 4 and m ÷ 2 ÷ waiting faults.
    fn of(device: &DeviceEvidence, waiting_faults: u64) -> SwapCosts {
        let cost_pages = device.estimate.request_cost_pages();
        let service_pages = device.estimate.request_service_pages();
        SwapCosts {
            fault_pages: (cost_pages / waiting_faults.max(1)).max(service_pages).max(1) as i64,
            request_pages: service_pages as i64,
            // `WINDOW_COST_FACTOR` is 16.
            pages_max: (WINDOW_COST_FACTOR * cost_pages)
                .min(device.window_share_pages())
                .min(device.memory_pages / 2 / waiting_faults.max(1)),
        }
    }
}

impl SwapinPlan {
    /// Logs the plan, if the log is on, with the values behind it: runs, costs, room and unused
    /// pages.
    fn log_plan(
        &self,
        room_pages: u64,
        fault: &SwapFault,
        [by_slot, by_address]: [FaultRun; 2],
        costs: SwapCosts,
        swapped: &mut dyn SwappedPageQueries,
    ) {
        let waiting = swapped.waiting_faults();
        let device = swapped.evidence();
        if !device.log.is_on() {
            return;
        }
        let (by, range) = match self.read {
            SwapRead::Slots(range) => ("slots", range),
            SwapRead::Pages(range) => ("addresses", range),
        };
        let decision = Decision::SwapIn {
            memory: fault.memory.0,
            page: fault.page,
            by,
            first: range.first,
            places: range.count(),
            target_pages: self.pages,
            requests: self.requests,
            room_pages,
            value: self.value,
            run_by_slot: by_slot.length,
            run_by_address: by_address.length,
            waiting,
            fault_pages: costs.fault_pages as u64,
            service_pages: costs.request_pages as u64,
            pages_max: costs.pages_max,
            unused_pages: device.standing_pages,
        };
        device.log.log_with(device.now, || decision);
    }

    /// Returns the part of the plan nearest to the fault, with at most `room_pages` absent pages.
    /// The other pages would find no frame.
    fn limited_to(
        self,
        room_pages: u64,
        fault: &SwapFault,
        by_slot: FaultRun,
        by_address: FaultRun,
        swapped: &dyn SwappedPageQueries,
    ) -> SwapRead {
        if room_pages >= self.pages {
            return self.read;
        }
        match self.read {
            SwapRead::Slots(range) => SwapRead::Slots(by_slot.nearest_part(
                range,
                room_pages,
                |slot| swapped.absent_page(slot).is_some(),
            )),
            SwapRead::Pages(range) => {
                SwapRead::Pages(by_address.nearest_part(range, room_pages, |page| {
                    swapped.absent_slot(fault.memory, page).is_some()
                }))
            }
        }
    }
}

impl SwapinPolicy for AdaptiveSwapin {
    /// Handles a fault on a prefetched page: reads ahead if a decision is due. `None` if none is,
    /// or nothing pays.
    fn hit(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> Option<SwapRead> {
        let is_miss = false;
        self.choose_readahead(fault, is_miss, swapped)
    }

    /// Returns the pages to read with the page of the fault; only its own slot if nothing else
    /// pays.
    fn miss(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> SwapRead {
        let fault_slot_only = SwapRead::Slots(PageRange::new(fault.slot, 1));
        let is_miss = true;
        self.choose_readahead(fault, is_miss, swapped).unwrap_or(fault_slot_only)
    }

    /// True: the policy logs each plan with its values.
    fn keeps_log(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::super::testing::TestSwapArea;
    use super::*;

    /// The policy without observations.
    fn policy() -> AdaptiveSwapin {
        AdaptiveSwapin::from_spec(&Spec::plain("adaptive")).unwrap()
    }

    /// Pages 0 to 8 fault in order. Each row of the table has the page of a fault, and the pages
    /// read ahead of it.
    ///
    /// Worked by hand. Without measurements a fault costs 122 pages, so a page is selected if its
    /// likelihood is at least 123 of 244. The first fault selects none. The second shows that the
    /// one observed run went on, although half of the runs are expected to end. A run therefore
    /// ends half as often as its length implies. From two faults it reaches five more pages with
    /// 4/5 × 6/7 × 8/9 × 10/11 × 12/13, or 0.511, and a sixth with less than 123 of 244: pages 2 to
    /// 6 are read. At page 4 half of them are used. The run then has five faults, and a model of
    /// the policy in fractions selects sixteen pages from 5 on, of which 7 to 20 are absent.
    #[test]
    fn ascending_sweep_reads_the_hand_computed_pages() {
        let table: [(u64, &[u64]); 9] = [
            (0, &[]),
            (1, &[2, 3, 4, 5, 6]),
            (2, &[]),
            (3, &[]),
            (4, &[7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]),
            (5, &[]),
            (6, &[]),
            (7, &[]),
            (8, &[]),
        ];
        let mut area = TestSwapArea::in_order(1000);
        let mut policy = policy();
        for (page, read_ahead) in table {
            assert_eq!(area.fault(&mut policy, page), read_ahead, "page {page}");
        }
        assert_eq!((area.misses, area.hits), (2, 7));
    }

    /// The mirror image of the ascending sweep: the second fault reads the five pages below it.
    #[test]
    fn a_downward_sweep_is_read_ahead() {
        let mut area = TestSwapArea::in_order(1000);
        let mut policy = policy();
        let read: Vec<Vec<u64>> =
            [900, 899, 898, 897].iter().map(|&page| area.fault(&mut policy, page)).collect();
        assert_eq!(read, [vec![], vec![894, 895, 896, 897, 898], vec![], vec![]]);
    }

    /// The slots are 37 apart, so the slots show no run. Three requests of two pages' time each are
    /// cheaper than three faults of 122.
    #[test]
    fn a_sweep_over_scattered_slots_is_read_by_address() {
        let mut area = TestSwapArea::new(1000, |page| page * 37 % 1000);
        let mut policy = policy();
        let read: Vec<Vec<u64>> = (0..2).map(|page| area.fault(&mut policy, page)).collect();
        assert_eq!(read, [vec![], vec![2, 3, 4, 5, 6]]);
        assert!(matches!(area.last_read, Some(SwapRead::Pages(_))));
    }

    /// Pages are used in the order in which they left, by slot, at arbitrary addresses. As in the
    /// ascending sweep, the fault at slot 1 reads the slots 2 to 6.
    #[test]
    fn faults_in_swap_out_order_are_read_by_slot() {
        let mut area = TestSwapArea::new(1000, |page| page * 37 % 1000);
        let page_of = |slot: u64| (0..1000).find(|page| page * 37 % 1000 == slot).unwrap();
        let mut policy = policy();
        let read: Vec<Vec<u64>> =
            (0..2).map(|slot| area.fault(&mut policy, page_of(slot))).collect();
        let mut expected = [2, 3, 4, 5, 6].map(page_of);
        expected.sort_unstable();
        assert_eq!(read[1], expected);
        assert!(matches!(area.last_read, Some(SwapRead::Slots(_))));
    }

    /// 300 faults at pages without neighbours: each begins a run of its own.
    #[test]
    fn random_faults_read_nothing_ahead() {
        let mut area = TestSwapArea::in_order(100_000);
        let mut policy = policy();
        // Any two of them are more than 300 pages apart.
        for nth in 0..300 {
            assert_eq!(area.fault(&mut policy, nth * 61_803 % 100_000), vec![], "{nth}");
        }
    }

    /// Runs of four faults that never go on. A run counts as ended when the next one begins: the
    /// first wastes three pages, the others none. Then one goes on. Its fifth fault reads one page,
    /// because all runs of length four have ended. Its sixth reads nineteen, because the only run
    /// of length five went on. Both by a model of the policy in fractions.
    #[test]
    fn readahead_stops_without_hits_and_resumes_with_runs() {
        let mut area = TestSwapArea::in_order(400_000);
        let mut policy = policy();
        let mut wasted = Vec::new();
        for nth in 0..200 {
            (0..4).for_each(|page| drop(area.fault(&mut policy, 1000 * nth + page)));
            wasted.push(area.evict_unused());
        }
        assert_eq!(wasted[0], 3);
        assert_eq!(wasted[1..], [0; 199]);
        let back: Vec<Vec<u64>> =
            (0..6).map(|page| area.fault(&mut policy, 300_000 + page)).collect();
        assert_eq!(back[0], [300_001, 300_002, 300_003]);
        assert!(back[1..4].iter().all(Vec::is_empty));
        assert_eq!(back[4], [300_005]);
        assert_eq!(back[5], (300_006..300_025).collect::<Vec<u64>>());
    }

    /// Two of the five pages that the second fault selects may be prefetched.
    #[test]
    fn readahead_is_limited_to_the_free_frames() {
        let mut area = TestSwapArea::in_order(1000);
        area.room_pages = 2;
        let mut policy = policy();
        let read: Vec<Vec<u64>> = (0..4).map(|page| area.fault(&mut policy, page)).collect();
        assert_eq!(read[1], [2, 3], "the nearest");
    }
}
