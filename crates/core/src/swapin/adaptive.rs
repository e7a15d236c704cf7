//! `adaptive`: reads as far along a run as runs were seen to go on, and as that pays.
//!
//! Ideally a program never waits for a page that could have been foreseen, and
//! no page is read that drives one of use out. The law in words:
//!
//! - *Runs, by address and by slot.* Faults next to each other are a run: in the
//!   addresses of a mapping, or in the slots of the swap area, up or down,
//!   however many are interleaved. Addresses show the order of the program;
//!   slots the order in which pages were used before they left, all programs' together.
//! - *How far runs go is seen* (`length_distribution.rs`), for each mapping and for the slots: which part of the runs
//!   that came to a length went on to the next; one is taken to have ended when another begins, until
//!   it goes on after all. While nothing is known half of them
//!   come to twice their length, once they have two faults. So each page ahead has a likelihood.
//! - *Each page must pay.* One that will be used saves a fault. One that won't has
//!   cost its bytes, and a fault later: for the page that it drove out, which is
//!   worth as much as the others of a load that doesn't fit. So a page is foreseen when
//!   `likelihood × fault > bytes + (1 − likelihood) × fault`, with the device's
//!   own costs. A fault costs what a request takes, shared by the faults that wait
//!   with it, and never less than what one more request keeps the device busy.
//! - *By what saves most*: along the slots, as far as the pages that some run of any
//!   mapping will come to outweigh the others, at the cost of a request for each
//!   piece between pages that are there; or what the fault's own run will come to in
//!   its mapping, at the cost of a request for each piece of slots.
//! - *No more than the device needs, or memory has*: sixteen times what a request
//!   takes, so that the device is busy with bytes for 94 % of the time; a
//!   quarter of what is left of half of the memory, and the part of that half that
//!   falls to each of the faults that wait, so that who comes first leaves room
//!   to the others; as far as pages were seen to stay until they were used; and
//!   the pages that are ready.
//! - *Ahead of need*: whether more is to be read is seen when the run has come half
//!   the way to where what is there ends.
//!
//! With faults at random nothing is read ahead; two faults side by side begin
//! a run while nothing is known against it. A random load of pieces of one size is read piece by piece
//! once some few were seen.

use alloc::vec::Vec;

use super::{SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries};
use crate::decision::Decision;
use crate::length_distribution::CERTAIN;
use crate::policy::{Spec, SpecError};
use crate::readahead::{DeviceEvidence, WINDOW_COST_FACTOR};
use crate::unit::PageRange;

mod runs;
mod trust;

use runs::{FaultRun, FaultRuns, PredictionBounds};
use trust::PrefetchDistance;

/// The law `adaptive`.
#[derive(Clone, Debug, Default)]
pub struct AdaptiveSwapin {
    slots: FaultRuns,
    /// By mapping.
    addresses: Vec<FaultRuns>,
    trust: PrefetchDistance,
}

/// What things cost, in pages: the bytes of so many take as long.
#[derive(Clone, Copy, Debug)]
struct SwapCosts {
    /// A fault that must wait for a request.
    fault: i64,
    /// One more request among others.
    request: i64,
    /// The most pages that may be ahead of a run.
    pages_max: u64,
}

/// A way to read ahead.
#[derive(Clone, Copy, Debug)]
struct SwapinPlan {
    read: SwapRead,
    /// How many pages are read, in how many requests.
    pages: u64,
    requests: u64,
    /// What it saves, in pages.
    value: i64,
}

impl AdaptiveSwapin {
    /// It has no parameter.
    ///
    /// # Errors
    /// A parameter is given.
    pub fn from_spec(spec: &Spec) -> Result<AdaptiveSwapin, SpecError> {
        spec.only(&[])?;
        Ok(AdaptiveSwapin::default())
    }

    /// What pays to be read ahead of a fault, if it is the time to see;
    /// `is_miss` when its page must be read anyway.
    fn ahead(
        &mut self,
        fault: &SwapFault,
        is_miss: bool,
        swapped: &mut dyn SwappedPageQueries,
    ) -> Option<SwapRead> {
        let waiting_faults = swapped.waiting_faults();
        let mut costs = SwapCosts::of(swapped.evidence(), waiting_faults);
        costs.pages_max = self.trust.learn(!is_miss, swapped.wasted_pages(), costs.pages_max);
        let (by_slot, by_address) = self.runs_of(fault, costs);
        let slots_lead = by_slot.length > by_address.length;
        let leading = if slots_lead { by_slot } else { by_address };
        if !is_miss && !leading.is_due() {
            return None;
        }
        let plan = self.plan(fault, by_slot, by_address, costs, swapped);
        let plan = plan.and_then(|plan| {
            let room = swapped.room_for(plan.pages);
            plan.say(room, fault, [by_slot, by_address], costs, swapped);
            let is_crumb = room == 0 || (!is_miss && room < plan.pages / 2);
            (!is_crumb).then(|| plan.cut(room, fault, by_slot, by_address, swapped))
        });
        // Of the run that leads, the places before the first that stays absent.
        let stays_absent = |place| {
            let slot = match slots_lead {
                true => swapped.absent_page(place).map(|_| place),
                false => swapped.absent_slot(fault.memory, place),
            };
            slot.is_some_and(|slot| match plan {
                Some(SwapRead::Slots(range)) => !range.contains(slot),
                Some(SwapRead::Pages(range)) => slots_lead || !range.contains(place),
                None => true,
            })
        };
        let places = leading.outward(leading.ahead).take_while(|&at| !stays_absent(at)).count();
        let runs = if slots_lead { &mut self.slots } else { self.addresses_of(fault) };
        runs.newest_mut().defer_decision(places as u64);
        plan
    }

    fn addresses_of(&mut self, fault: &SwapFault) -> &mut FaultRuns {
        let at = fault.memory.0 as usize;
        if at >= self.addresses.len() {
            self.addresses.resize_with(at + 1, FaultRuns::default);
        }
        &mut self.addresses[at]
    }

    /// The runs that the fault belongs to, by slot and by address.
    fn runs_of(&mut self, fault: &SwapFault, costs: SwapCosts) -> (FaultRun, FaultRun) {
        let horizon = |places| PredictionBounds {
            places,
            likelihood_min: CERTAIN * (costs.fault as u64 + 1) / (2 * costs.fault as u64),
            pages_max: costs.pages_max,
        };
        let (pages, slots) = (horizon(fault.memory_pages), horizon(fault.slots));
        let by_address = self.addresses_of(fault).fault(fault.page, pages);
        let by_slot = self.slots.fault(fault.slot, slots);
        (by_slot, by_address)
    }

    /// The best way to read ahead, if one saves anything.
    fn plan(
        &self,
        fault: &SwapFault,
        by_slot: FaultRun,
        by_address: FaultRun,
        costs: SwapCosts,
        swapped: &dyn SwappedPageQueries,
    ) -> Option<SwapinPlan> {
        if by_slot.ahead.is_empty() && by_address.ahead.is_empty() {
            return None;
        }
        let along_slots = self.along_slots(fault, by_slot, costs, swapped);
        let by_address = pages_of(fault, by_address, costs, swapped);
        let best = if by_address.value > along_slots.value { by_address } else { along_slots };
        (best.value > 0).then_some(best)
    }

    /// The slots that follow, as far as those that some run will come to outweigh the others.
    fn along_slots(
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
        let (mut value, mut pages, mut requests, mut is_in_request) = (0, 0, 0, false);
        let all = match run.is_backward() {
            true => PageRange { first: 0, end: fault.slot },
            false => PageRange { first: fault.slot + 1, end: fault.slots },
        };
        // No further than where as much would be lost as the largest window costs.
        let lost_max = WINDOW_COST_FACTOR as i64 * costs.fault;
        for slot in run.outward(all).take(4 * costs.pages_max as usize) {
            let Some((memory, page)) = swapped.absent_page(slot) else {
                is_in_request = false;
                continue;
            };
            if !core::mem::replace(&mut is_in_request, true) {
                value -= costs.request;
                requests += 1;
            }
            pages += 1;
            let addresses = self.addresses.get(memory.0 as usize);
            let is_foreseen =
                run.ahead.contains(slot) || addresses.is_some_and(|runs| runs.is_predicted(page));
            value += if is_foreseen { costs.fault } else { -costs.fault } - 1;
            if value > best.value {
                let read = match run.is_backward() {
                    true => PageRange { first: slot, end: fault.slot },
                    false => PageRange { first: fault.slot + 1, end: slot + 1 },
                };
                best = SwapinPlan { read: SwapRead::Slots(read), pages, requests, value };
            }
            if pages >= costs.pages_max || value < best.value - lost_max {
                break;
            }
        }
        best
    }
}

/// What the run will come to of the mapping, wherever the slots are.
fn pages_of(
    fault: &SwapFault,
    run: FaultRun,
    costs: SwapCosts,
    swapped: &dyn SwappedPageQueries,
) -> SwapinPlan {
    let (mut pages, mut requests) = (0, 0);
    let mut last = None;
    let slots = run.outward(run.ahead).filter_map(|page| swapped.absent_slot(fault.memory, page));
    for slot in slots {
        pages += 1;
        requests += u64::from(last.is_none_or(|last: u64| last.abs_diff(slot) != 1));
        last = Some(slot);
    }
    let value = pages as i64 * (costs.fault - 1) - requests as i64 * costs.request;
    SwapinPlan { read: SwapRead::Pages(run.ahead), pages, requests, value }
}

impl SwapCosts {
    fn of(device: &DeviceEvidence, waiting_faults: u64) -> SwapCosts {
        let fault = device.estimate.request_cost_pages();
        let request = device.estimate.request_service_pages();
        SwapCosts {
            fault: (fault / waiting_faults.max(1)).max(request).max(1) as i64,
            request: request as i64,
            pages_max: (WINDOW_COST_FACTOR * fault)
                .min(device.window_share_pages())
                .min(device.memory_pages / 2 / waiting_faults.max(1)),
        }
    }
}

impl SwapinPlan {
    /// Says what was found to be worth reading, and by which numbers.
    fn say(
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
            fault_pages: costs.fault as u64,
            service_pages: costs.request as u64,
            pages_max: costs.pages_max,
            unused_pages: device.standing_pages,
        };
        device.log.say(device.now, || decision);
    }

    /// What of it is nearest and has no more than so many pages.
    fn cut(
        self,
        room: u64,
        fault: &SwapFault,
        by_slot: FaultRun,
        by_address: FaultRun,
        swapped: &dyn SwappedPageQueries,
    ) -> SwapRead {
        if room >= self.pages {
            return self.read;
        }
        match self.read {
            SwapRead::Slots(range) => SwapRead::Slots(
                by_slot.nearest(range, room, |slot| swapped.absent_page(slot).is_some()),
            ),
            SwapRead::Pages(range) => SwapRead::Pages(
                by_address
                    .nearest(range, room, |page| swapped.absent_slot(fault.memory, page).is_some()),
            ),
        }
    }
}

impl SwapinPolicy for AdaptiveSwapin {
    fn hit(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> Option<SwapRead> {
        self.ahead(fault, false, swapped)
    }

    fn miss(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> SwapRead {
        let alone = SwapRead::Slots(PageRange::new(fault.slot, 1));
        self.ahead(fault, true, swapped).unwrap_or(alone)
    }

    fn keeps_log(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::super::testing::TestSwapArea;
    use super::*;

    fn policy() -> AdaptiveSwapin {
        AdaptiveSwapin::from_spec(&Spec::plain("adaptive")).unwrap()
    }

    /// Worked by hand. A fault costs 122 pages before anything is measured, so a page is foreseen from 123 of
    /// 244 on. The first fault foresees nothing. Two have shown that the one run that was seen went on, where one of two
    /// is expected to end: it ends half as often as its age says. It comes to 2 + 5 with 4/5 × 6/7 × 8/9 × 10/11 × 12/13,
    /// or 0.511, and not to 2 + 6: 2 to 6 are read. When half of these are used the run has five faults, and
    /// sixteen are foreseen by a model of the law in fractions. The second column is what is read, the fault's own page aside.
    #[test]
    fn golden_trajectory_of_a_sweep() {
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
        for (page, read) in table {
            assert_eq!(area.fault(&mut policy, page), read, "page {page}");
        }
        assert_eq!((area.misses, area.hits), (2, 7));
    }

    #[test]
    fn a_downward_sweep_is_read_ahead() {
        let mut area = TestSwapArea::in_order(1000);
        let mut policy = policy();
        let read: Vec<Vec<u64>> =
            [900, 899, 898, 897].iter().map(|&page| area.fault(&mut policy, page)).collect();
        assert_eq!(read, [vec![], vec![894, 895, 896, 897, 898], vec![], vec![]]);
    }

    /// The slots are 37 apart: by slot nothing is known, and three requests of two
    /// pages' time each are cheaper than three faults of 122.
    #[test]
    fn a_sweep_over_scattered_slots_is_read_by_address() {
        let mut area = TestSwapArea::new(1000, |page| page * 37 % 1000);
        let mut policy = policy();
        let read: Vec<Vec<u64>> = (0..2).map(|page| area.fault(&mut policy, page)).collect();
        assert_eq!(read, [vec![], vec![2, 3, 4, 5, 6]]);
        assert!(matches!(area.last_read, Some(SwapRead::Pages(_))));
    }

    /// Pages that are used in the order in which they left, wherever they are.
    #[test]
    fn a_strange_order_that_repeats_is_read_by_slot() {
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

    #[test]
    fn random_faults_read_nothing_ahead() {
        let mut area = TestSwapArea::in_order(100_000);
        let mut policy = policy();
        // Any two of them are further apart than 300 pages.
        for nth in 0..300 {
            assert_eq!(area.fault(&mut policy, nth * 61_803 % 100_000), vec![], "{nth}");
        }
    }

    /// Runs of four faults that never go on. One is taken to have ended when the next begins: the first reads three
    /// pages in vain, the others none. Then one goes on: its fifth fault reads one page, for of those of
    /// four all have ended; its sixth, as one of one has come to that, nineteen. Both by a
    /// model of the law in fractions.
    #[test]
    fn readahead_stops_without_hits_and_resumes_with_runs() {
        let mut area = TestSwapArea::in_order(400_000);
        let mut policy = policy();
        let mut wasted = Vec::new();
        for nth in 0..200 {
            (0..4).for_each(|page| drop(area.fault(&mut policy, 1000 * nth + page)));
            wasted.push(area.waste_all());
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

    #[test]
    fn pages_without_frames_are_not_read() {
        let mut area = TestSwapArea::in_order(1000);
        area.room_pages = 2;
        let mut policy = policy();
        let read: Vec<Vec<u64>> = (0..4).map(|page| area.fault(&mut policy, page)).collect();
        assert_eq!(read[1], [2, 3], "the nearest");
    }
}
