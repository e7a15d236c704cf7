//! `demand-first`: the scheduler of a planner.
//!
//! How it works: requests that a reader waits for leave first, then prefetches that are usually
//! used, then speculative ones; each kind in the order of arrival. Adjacent queued requests are
//! merged up to the largest request. An eighth of the requests in flight, at least one, is reserved
//! for demand, so that a reader never waits for a prefetch to end before its own request leaves.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use readpath_core::policy::{Policy, Spec, SpecError};
use readpath_core::request::{DeviceCaps, Need, RequestId, RequestTable};
use readpath_core::scheduler::{self, Dispatch, Inserted, Scheduler};
use readpath_core::unit::Time;

/// Name of the scheduler in the registry of core.
pub(super) const NAME: &str = "demand-first";

/// Share of the requests in flight that is reserved for demand: one in eight.
const DEMAND_SHARE: u32 = 8;

/// Registers the scheduler once per process. It has no effect on planners that use another one.
pub(super) fn register() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let line = "demand first, then prefetches by arrival; adjacent requests are merged";
        let source = include_str!("demand_first.rs");
        let policy = Policy::new(NAME, line, source);
        // A scheduler of this name that another crate registered before is used instead.
        let _ = scheduler::register(policy, |spec: &Spec, caps: &DeviceCaps| {
            spec.only(&[])?;
            Ok::<Box<dyn Scheduler>, SpecError>(Box::new(DemandFirst::new(caps)))
        });
    });
}

/// First sector and identifier of a queued request. Two queued requests may begin with the same
/// sector: a read that bypasses the cache does not look there for a request of its pages.
type SectorKey = (u64, RequestId);

/// Order of dispatch: by need, then by arrival.
type OrderKey = (Reverse<Need>, u64);

/// The scheduler `demand-first`.
///
/// Invariants:
///
/// 1. `queued` and `order` have the same requests; each key of one is the value of the other.
/// 2. A queued request is the *head* of its parts in the table: it covers the requests that were
///    merged into it.
#[derive(Debug)]
pub(super) struct DemandFirst {
    /// Largest request in sectors.
    sectors_max: u32,
    /// Largest number of requests in flight that no reader waits for.
    prefetches_max: usize,
    /// Queued requests by position, to find neighbours.
    queued: BTreeMap<SectorKey, OrderKey>,
    /// Queued requests by order of dispatch.
    order: BTreeMap<OrderKey, SectorKey>,
    /// Number of insertions so far.
    arrivals: u64,
    /// Requests in flight that no reader waits for.
    prefetches: BTreeSet<RequestId>,
}

impl DemandFirst {
    /// Creates the scheduler for a device with these properties.
    pub(super) fn new(caps: &DeviceCaps) -> DemandFirst {
        let reserved = (caps.depth_max / DEMAND_SHARE).max(1);
        DemandFirst {
            sectors_max: caps.request_sectors_max,
            // At least one: with a depth of 1, prefetches use the only place.
            prefetches_max: caps.depth_max.saturating_sub(reserved).max(1) as usize,
            queued: BTreeMap::new(),
            order: BTreeMap::new(),
            arrivals: 0,
            prefetches: BTreeSet::new(),
        }
    }

    /// Adds a head to the queue. `arrival` is its place among the requests of its need: the
    /// count of insertions when it, or the request that it was merged into, arrived.
    fn add(&mut self, id: RequestId, arrival: u64, requests: &RequestTable) {
        let (key, order) = ((requests[id].start, id), (Reverse(requests[id].need), arrival));
        self.queued.insert(key, order);
        self.order.insert(order, key);
    }

    /// Removes a queued head. Returns its number of arrival; `None` if it is not queued.
    fn remove(&mut self, key: SectorKey) -> Option<u64> {
        let order = self.queued.remove(&key)?;
        self.order.remove(&order);
        Some(order.1)
    }

    /// Returns a queued request that ends or begins where this one begins or ends, and that can
    /// be merged with it: in direction, synchrony and total size. `None` without one.
    fn neighbour(&self, id: RequestId, requests: &RequestTable) -> Option<SectorKey> {
        let request = &requests[id];
        // `RequestId(0)` is the lowest identifier, so it precedes all requests at its sector.
        let before = self.queued.range(..(request.start, RequestId(0))).next_back();
        let behind = self.queued.range((request.end(), RequestId(0))..).next();
        [before, behind].into_iter().flatten().map(|(&key, _)| key).find(|&(_, other)| {
            let neighbour = &requests[other];
            let sectors = u64::from(neighbour.sectors) + u64::from(request.sectors);
            neighbour.touches(request)
                && neighbour.op == request.op
                && neighbour.is_sync == request.is_sync
                && sectors <= u64::from(self.sectors_max)
        })
    }
}

impl Scheduler for DemandFirst {
    /// Queues a request, or merges it with up to two neighbours. The merged request has the highest
    /// need of its parts, and the arrival of the first neighbour found.
    fn insert(&mut self, _now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        self.arrivals += 1;
        let Some(key) = self.neighbour(id, requests) else {
            self.add(id, self.arrivals, requests);
            return Inserted::Queued;
        };
        let into = key.1;
        let arrival = self.remove(key).expect("a neighbour is queued");
        requests.merge(into, id);
        let with = self.neighbour(into, requests);
        if let Some(key) = with {
            self.remove(key);
            requests.merge(into, key.1);
        }
        self.add(into, arrival, requests);
        Inserted::Merged { into, with: with.map(|(_, id)| id) }
    }

    /// Sends the oldest request of the highest need. A prefetch waits while `prefetches_max` of
    /// them are in flight.
    fn dispatch(&mut self, _now: Time, requests: &RequestTable) -> Dispatch {
        let Some((_, &key)) = self.order.first_key_value() else { return Dispatch::Nothing };
        let is_demand = requests[key.1].need == Need::Demand;
        if !is_demand && self.prefetches.len() >= self.prefetches_max {
            return Dispatch::Nothing;
        }
        self.remove(key);
        if !is_demand {
            self.prefetches.insert(key.1);
        }
        Dispatch::Request(key.1)
    }

    /// Makes place for the next prefetch.
    fn complete(&mut self, _now: Time, id: RequestId, _requests: &RequestTable) {
        self.prefetches.remove(&id);
    }

    /// A reader has begun to wait for a request, whose need in `requests` is already `Demand`. If
    /// it is queued, it moves to the demand requests. If it is in flight, it no longer counts as a
    /// prefetch, so that another one may leave. One that is not inserted yet needs no change.
    fn idled_for(&mut self, id: RequestId, requests: &RequestTable) {
        self.prefetches.remove(&id);
        if let Some(arrival) = self.remove((requests[id].start, id)) {
            self.add(id, arrival, requests);
        }
    }

    /// Number of requests that are not in flight, where merged ones count once.
    fn queued(&self) -> usize {
        self.queued.len()
    }
}

#[cfg(test)]
mod tests {
    use readpath_core::request::{Op, Priority, ProcessId, Request};

    use super::*;

    const NOW: Time = Time::ZERO;

    /// A scheduler for `depth_max` requests of up to 24 sectors, and its table.
    fn scheduler(depth_max: u32) -> (DemandFirst, RequestTable) {
        let caps = DeviceCaps {
            sectors: 1 << 30,
            request_sectors_max: 24,
            depth_max,
            is_rotational: false,
            alignment_sectors: 1,
        };
        (DemandFirst::new(&caps), RequestTable::default())
    }

    fn read(start: u64, need: Need) -> Request {
        let (process, priority) = (ProcessId(0), Priority::default());
        Request { op: Op::Read, start, sectors: 8, process, priority, is_sync: true, need }
    }

    /// Dispatches until nothing is allowed. Returns the first sector and the size of each request.
    fn dispatch_all(policy: &mut DemandFirst, table: &RequestTable) -> Vec<(u64, u32)> {
        let next = || match policy.dispatch(NOW, table) {
            Dispatch::Request(id) => Some((table[id].start, table[id].sectors)),
            _ => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn demand_leaves_before_prefetches_that_arrived_earlier() {
        let (mut policy, mut table) = scheduler(32);
        let requests = [
            (0, Need::Speculative),
            (100, Need::Prefetch),
            (200, Need::Demand),
            (300, Need::Prefetch),
        ];
        let ids = requests.map(|(start, need)| {
            let id = table.open(read(start, need));
            policy.insert(NOW, id, &mut table);
            id
        });
        // A reader begins to wait for the last one.
        table.set_demand(ids[3]);
        policy.idled_for(ids[3], &table);
        assert_eq!(dispatch_all(&mut policy, &table), [(200, 8), (300, 8), (100, 8), (0, 8)]);
    }

    /// If eight requests are in flight, seven of them may be prefetches.
    #[test]
    fn prefetches_leave_a_place_for_demand() {
        let (mut policy, mut table) = scheduler(8);
        for start in 0..20 {
            let id = table.open(read(start * 100, Need::Prefetch));
            policy.insert(NOW, id, &mut table);
        }
        assert_eq!(dispatch_all(&mut policy, &table).len(), 7);
        let demand = table.open(read(5000, Need::Demand));
        policy.insert(NOW, demand, &mut table);
        assert_eq!(dispatch_all(&mut policy, &table), [(5000, 8)]);
        policy.complete(NOW, RequestId(0), &table);
        assert_eq!(dispatch_all(&mut policy, &table), [(700, 8)]);
    }

    /// 8 + 8 + 8 sectors are the largest request; a fourth part does not fit.
    #[test]
    fn adjacent_requests_merge_on_both_sides_up_to_the_largest_request() {
        let (mut policy, mut table) = scheduler(32);
        let ids = [100, 116, 108, 92].map(|start| table.open(read(start, Need::Prefetch)));
        let inserted = ids.map(|id| policy.insert(NOW, id, &mut table));
        let merged = Inserted::Merged { into: ids[0], with: Some(ids[1]) };
        assert_eq!(inserted, [Inserted::Queued, Inserted::Queued, merged, Inserted::Queued]);
        assert_eq!(dispatch_all(&mut policy, &table), [(100, 24), (92, 8)]);
    }
}
