//! `kyber`: limits the requests in the device by measured latencies, as in Linux since 4.20.
//!
//! How it works: reads and writes are *domains*. A request needs a token of its domain, which it
//! returns at completion. At first there are 256 tokens for reads and 128 for writes. Inside
//! a domain the order is first come, first served. The domains take turns in batches of 16 reads
//! and 8 writes.
//!
//! Each domain has a target latency and two histograms: the *device time* of a request, and its
//! *total time* in scheduler and device. Every tenth of a second their percentiles are computed
//! from 500 requests, or from the requests of a second. The device is congested if the 90th
//! percentile of the device time is above the target in any domain. Then each domain gets as many
//! tokens as its total time allows. Its depth is multiplied by the 99th percentile of the total
//! time, as a share of the target in quarters. A domain above its target thus gets more tokens, and
//! a domain well below it gets fewer. Without congestion, only a domain above its target gets more.
//!
//! It suits fast devices that order their own queue. It ignores processes, priorities and the head
//! of a disk, and never leaves the device idle.
//!
//! Longest wait: the requests of its domain before it, and for each batch of them one batch of the
//! other domain. A batch ends early if no token is left. With a single token, each request before
//! it is a batch.
//!
//! Source: Linux's `Documentation/block/kyber-iosched.rst`, the article "Two new block I/O
//! schedulers for 4.12" (LWN, 2017), and the texts of the commits that introduced `kyber` (2017)
//! and its histograms (2018). Two domains are omitted, since no such requests exist here: discards
//! (64 tokens) and others (16). So is `async_depth`: it limits asynchronous requests, to 75 % of
//! the queue, before they reach a scheduler. One rule differs: in Linux the two histograms of a
//! domain share the second after which few samples are enough.

use alloc::vec::Vec;

use crate::policy::{Spec, SpecError};
use crate::request::{DeviceCaps, Op, RequestId, RequestTable};
use crate::unit::Time;

use super::requests::QueuedRequests;
use super::{Dispatch, Inserted, Scheduler};

mod latencies;

use latencies::{GOOD_BUCKETS, LatencyHistogram};

/// Time between the first completion of a period and the adjustment of the depths.
const PERIOD: Time = Time::from_ms(100);

/// Tokens of a domain at first, which are also its most: 256 reads, 128 writes.
const DEPTH_MAX: [u32; 2] = [256, 128];

/// Most requests of a domain in a batch: 16 reads, 8 writes.
const BATCH: [u32; 2] = [16, 8];

/// Percentile of the device time by which the device is congested. It is not sensitive to outliers.
const CONGESTION_PERCENTILE: u64 = 90;

/// Percentile of the total time by which a domain gets its depth.
const DEPTH_PERCENTILE: u64 = 99;

/// The tunables of `kyber`, under the kernel's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KyberTunables {
    /// Target latency of reads (`read_lat_nsec`; 2,000,000 ns). A lower one makes writes wait.
    pub read_lat: Time,
    /// Target latency of writes (`write_lat_nsec`; 10,000,000 ns).
    pub write_lat: Time,
}

impl Default for KyberTunables {
    /// The defaults of Linux.
    fn default() -> KyberTunables {
        KyberTunables { read_lat: Time::from_ms(2), write_lat: Time::from_ms(10) }
    }
}

impl KyberTunables {
    /// Parses `read_lat_nsec` and `write_lat_nsec`, in nanoseconds.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is not a number or out of range.
    pub fn from_spec(spec: &Spec) -> Result<KyberTunables, SpecError> {
        /// Largest target: a minute.
        const LATENCY_NS_MAX: u64 = 60_000_000_000;
        spec.only(&["read_lat_nsec", "write_lat_nsec"])?;
        let latency = |key, default_ns| spec.integer(key, default_ns, 1..=LATENCY_NS_MAX).map(Time);
        Ok(KyberTunables {
            read_lat: latency("read_lat_nsec", 2_000_000)?,
            write_lat: latency("write_lat_nsec", 10_000_000)?,
        })
    }
}

/// The requests of one direction.
#[derive(Debug)]
struct Domain {
    /// Requests that are not in the device.
    queued: QueuedRequests,
    /// Target latency.
    target: Time,
    /// Number of tokens: most requests in the device. A smaller depth takes effect as requests
    /// complete.
    depth: u32,
    /// Number of requests in the device.
    in_device: u32,
    /// Times from dispatch to completion.
    device_times: LatencyHistogram,
    /// Times from arrival to completion.
    total_times: LatencyHistogram,
    /// The latest 99th percentile of the total time, as its bucket of the histogram, until a
    /// congested period uses it.
    unused_bucket: Option<u32>,
}

impl Domain {
    /// Creates an empty domain with `depth` tokens.
    fn new(target: Time, depth: u32) -> Domain {
        Domain {
            queued: QueuedRequests::default(),
            target,
            depth,
            in_device: 0,
            device_times: LatencyHistogram::default(),
            total_times: LatencyHistogram::default(),
            unused_bucket: None,
        }
    }

    /// Sets the depth at `at`, the end of a period, to at most `depth_max`. Without congestion only
    /// a percentile above the target changes it. The percentile of an earlier period counts at the
    /// next congestion, because a domain may have too few samples in the congested period. It
    /// counts once. Without any percentile the depth stays.
    fn adjust_depth(&mut self, at: Time, is_congested: bool, depth_max: u32) {
        // The bucket of the percentile; from `GOOD_BUCKETS` on it is above the target.
        let mut latest_bucket = self.total_times.take_percentile(at, DEPTH_PERCENTILE);
        if is_congested {
            latest_bucket = latest_bucket.or(self.unused_bucket);
            self.unused_bucket = None;
        } else if latest_bucket.is_some() {
            self.unused_bucket = latest_bucket;
        }
        let Some(bucket) = latest_bucket else { return };
        if is_congested || bucket >= GOOD_BUCKETS {
            // The bucket ends at `bucket + 1` quarters of the target.
            self.depth = (self.depth * (bucket + 1) / GOOD_BUCKETS).clamp(1, depth_max);
        }
    }
}

/// A request in the device.
#[derive(Clone, Copy, Debug)]
struct SentRequest {
    /// Time of its arrival in the scheduler.
    arrived: Time,
    /// Time of its dispatch to the device.
    dispatched: Time,
}

/// The scheduler `kyber`.
#[derive(Debug)]
pub struct Kyber {
    /// Largest request of the device, in sectors.
    sectors_max: u32,
    /// Reads and writes, indexed by direction.
    domains: [Domain; 2],
    /// Domain of the current batch.
    batch_op: Op,
    /// Requests dispatched in the current batch.
    batch_requests: u32,
    /// Requests in the device, by identifier.
    sent: Vec<Option<SentRequest>>,
    /// End of the period; `None` until a request completes.
    period_end: Option<Time>,
}

impl Kyber {
    /// Creates the scheduler for a device with these properties.
    pub fn new(caps: &DeviceCaps, tunables: KyberTunables) -> Kyber {
        Kyber {
            sectors_max: caps.request_sectors_max,
            domains: [
                Domain::new(tunables.read_lat, DEPTH_MAX[Op::Read as usize]),
                Domain::new(tunables.write_lat, DEPTH_MAX[Op::Write as usize]),
            ],
            batch_op: Op::Read,
            batch_requests: 0,
            sent: Vec::new(),
            period_end: None,
        }
    }

    /// Adjusts the depths if the period has ended. Its end decides, not the time of the call. The
    /// next period begins with the next completion, so that an idle device has none. Without a
    /// completed request there is no period.
    fn end_period(&mut self, now: Time) {
        let Some(end) = self.period_end.take_if(|end| *end <= now) else { return };
        let mut is_congested = false;
        for domain in &mut self.domains {
            let bucket = domain.device_times.take_percentile(end, CONGESTION_PERCENTILE);
            // Above the target of the domain.
            is_congested |= bucket.is_some_and(|bucket| bucket >= GOOD_BUCKETS);
        }
        for (domain, depth_max) in self.domains.iter_mut().zip(DEPTH_MAX) {
            domain.adjust_depth(end, is_congested, depth_max);
        }
    }

    /// Sends the oldest request of a domain; `None` without one, or without a token.
    fn send(&mut self, now: Time, op: Op, requests: &RequestTable) -> Option<RequestId> {
        let domain = &mut self.domains[op as usize];
        if domain.in_device >= domain.depth {
            return None;
        }
        let (key, _) = domain.queued.oldest(requests)?;
        let waiting = domain.queued.remove(key)?;
        domain.in_device += 1;
        let index = waiting.id.0 as usize;
        if index >= self.sent.len() {
            self.sent.resize(index + 1, None);
        }
        self.sent[index] = Some(SentRequest { arrived: waiting.arrived, dispatched: now });
        Some(waiting.id)
    }
}

/// The other direction.
const fn other(op: Op) -> Op {
    match op {
        Op::Read => Op::Write,
        Op::Write => Op::Read,
    }
}

impl Scheduler for Kyber {
    /// Adds a request at the end of its domain, merged with a neighbour if possible.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        let domain = &mut self.domains[requests[id].op as usize];
        domain.queued.insert_or_merge(now, id, requests, self.sectors_max)
    }

    /// Sends the next request of the batch. After the end of the batch, or if its domain has no
    /// request or no token, the other domain begins one, or the same one if the other cannot.
    /// `Nothing` if neither can: an arrival, or a token from a completion, is needed.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        self.end_period(now);
        if self.batch_requests < BATCH[self.batch_op as usize]
            && let Some(id) = self.send(now, self.batch_op, requests)
        {
            self.batch_requests += 1;
            return Dispatch::Request(id);
        }
        for op in [other(self.batch_op), self.batch_op] {
            if let Some(id) = self.send(now, op, requests) {
                self.batch_op = op;
                self.batch_requests = 1;
                return Dispatch::Request(id);
            }
        }
        // The next request begins a batch of the full length.
        self.batch_requests = 0;
        Dispatch::Nothing
    }

    /// Returns the token, and adds the latencies to the histograms. The first completion after a
    /// period begins the next one.
    fn complete(&mut self, now: Time, id: RequestId, requests: &RequestTable) {
        self.end_period(now);
        let sent = self.sent[id.0 as usize].take();
        let SentRequest { arrived, dispatched } = sent.expect("only what was sent completes");
        let domain = &mut self.domains[requests[id].op as usize];
        domain.in_device -= 1;
        domain.device_times.add(now.since(dispatched), domain.target);
        domain.total_times.add(now.since(arrived), domain.target);
        self.period_end.get_or_insert(now + PERIOD);
    }

    /// Number of requests that are not in the device.
    fn queued(&self) -> usize {
        self.domains.iter().map(|domain| domain.queued.count()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SchedulerBench, caps, read, write};
    use super::*;

    fn bench() -> SchedulerBench {
        SchedulerBench::new(Kyber::new(&caps(), KyberTunables::default()))
    }

    /// Reads are 0 to 19, writes 20 to 29; all wait from the start. A batch has 16 reads or 8
    /// writes, and the domains take turns.
    #[test]
    fn golden_order_of_reads_and_writes() {
        let mut policy = bench();
        for nth in 0..20 {
            policy.insert(Time::ZERO, read(90_000 - 100 * nth, 8));
        }
        for nth in 0..10 {
            policy.insert(Time::ZERO, write(900 + 100 * nth, 8));
        }
        let ids = policy.dispatch_all::<30>(Time::ZERO).map(|(id, ..)| id);
        let expected = (0..16).chain(20..28).chain(16..20).chain(28..30);
        assert!(ids.into_iter().eq(expected), "{ids:?}");
    }

    /// Serves `count` requests, one alone each time: from `at_ms`, for `queued_us` in the scheduler
    /// and `device_us` in the device. All are in one period, since each starts at `at_ms`.
    fn serve(kyber: &mut Kyber, op: Op, count: u64, at_ms: u64, queued_us: u64, device_us: u64) {
        let mut requests = RequestTable::default();
        for nth in 0..count {
            let start = nth * 100;
            let request = if op == Op::Read { read(start, 8) } else { write(start, 8) };
            let id = requests.open(request);
            let arrived = Time::from_ms(at_ms);
            let dispatched = arrived + Time::from_us(queued_us);
            kyber.insert(arrived, id, &mut requests);
            assert_eq!(kyber.dispatch(dispatched, &requests), Dispatch::Request(id));
            kyber.complete(dispatched + Time::from_us(device_us), id, &requests);
        }
    }

    /// Targets: 2 ms for reads, 10 ms for writes. Quarters: 0.5 and 2.5 ms. A period ends 100 ms
    /// after the first completion in it, and is noticed at the next call.
    #[test]
    fn golden_depths_by_latency() {
        let mut kyber = Kyber::new(&caps(), KyberTunables::default());
        let depths_at = |kyber: &mut Kyber, ms| {
            kyber.end_period(Time::from_ms(ms));
            [kyber.domains[0].depth, kyber.domains[1].depth]
        };
        // Reads of 1 ms and writes of 1 ms plus 1 ms in the queue are below their targets: nothing
        // changes. The percentiles are remembered: reads in bucket 1, writes in bucket 0.
        serve(&mut kyber, Op::Read, 500, 0, 0, 1_000);
        serve(&mut kyber, Op::Write, 500, 10, 1_000, 1_000);
        assert_eq!(depths_at(&mut kyber, 200), [256, 128]);
        // Reads of 10 ms in the device: congested, bucket 7. Reads: 256 × 8/4, at most 256. Writes:
        // 128 × 1/4 by the remembered bucket 0.
        serve(&mut kyber, Op::Read, 500, 200, 0, 10_000);
        assert_eq!(depths_at(&mut kyber, 400), [256, 32]);
        // Again: the writes have no newer percentile, and keep their depth.
        serve(&mut kyber, Op::Read, 500, 400, 0, 10_000);
        assert_eq!(depths_at(&mut kyber, 600), [256, 32]);
        // Writes wait 24 ms for a device that takes 1 ms: no congestion, bucket 7: 32 × 8/4.
        serve(&mut kyber, Op::Write, 500, 600, 24_000, 1_000);
        assert_eq!(depths_at(&mut kyber, 800), [256, 64]);
        // Writes of 12 ms in the device, bucket 4: congested, 64 × 5/4. Of the reads, 499 are too
        // few for a percentile. They count in the next period, together with 1 more: no congestion.
        serve(&mut kyber, Op::Write, 500, 800, 0, 12_000);
        serve(&mut kyber, Op::Read, 499, 820, 0, 1_600);
        assert_eq!(depths_at(&mut kyber, 1_000), [256, 80]);
        serve(&mut kyber, Op::Read, 1, 1_000, 0, 1_600);
        assert_eq!(depths_at(&mut kyber, 1_200), [256, 80]);
        // The reads' bucket is 3, 1.5 to 2 ms. At the next congestion: 256 × 4/4, and 80 × 5/4.
        serve(&mut kyber, Op::Write, 500, 1_200, 0, 12_000);
        assert_eq!(depths_at(&mut kyber, 1_400), [256, 100]);
    }

    /// Reads get 256 tokens. A completion returns one.
    #[test]
    fn domain_without_tokens_waits_for_a_completion() {
        let mut policy = bench();
        for nth in 0..300 {
            policy.insert(Time::ZERO, read(100 * nth, 8));
        }
        for id in 0..256 {
            assert_eq!(policy.dispatch(Time::ZERO), Dispatch::Request(RequestId(id)));
        }
        assert_eq!(policy.dispatch(Time::ZERO), Dispatch::Nothing);
        policy.insert(Time::ZERO, write(0, 8));
        assert_eq!(policy.dispatch(Time::ZERO), Dispatch::Request(RequestId(300)), "of the others");
        policy.complete(Time::from_ms(1), RequestId(7));
        assert_eq!(policy.dispatch(Time::from_ms(1)), Dispatch::Request(RequestId(256)));
        assert_eq!(policy.dispatch(Time::from_ms(1)), Dispatch::Nothing);
    }

    /// A target of 20 ms for reads: 10 ms in the device are no congestion, and the writes keep
    /// their depth.
    #[test]
    fn targets_are_read_from_the_spec_and_decide() {
        let tunables = |text| KyberTunables::from_spec(&Spec::parse(text).unwrap());
        let patient = tunables("kyber,read_lat_nsec=20000000").unwrap();
        assert_eq!(patient, KyberTunables { read_lat: Time::from_ms(20), ..Default::default() });
        assert!(
            tunables("kyber,read_lat_nsec=0").is_err() && tunables("kyber,async_depth=1").is_err()
        );
        let write_depth = |tunables| {
            let mut kyber = Kyber::new(&caps(), tunables);
            serve(&mut kyber, Op::Write, 500, 0, 0, 1_000);
            serve(&mut kyber, Op::Read, 500, 10, 0, 10_000);
            kyber.end_period(Time::from_ms(200));
            kyber.domains[1].depth
        };
        assert_eq!((write_depth(patient), write_depth(KyberTunables::default())), (128, 32));
        let strict = tunables("kyber,write_lat_nsec=1000000").unwrap();
        // One ms is bucket 3 of a target of 1 ms.
        assert_eq!(write_depth(strict), 128);
    }
}
