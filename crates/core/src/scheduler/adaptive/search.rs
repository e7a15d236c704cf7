//! Which limit serves best: when another is tried, and what the trial finds.
//!
//! The order of a trial: it *begins*, and nothing is sent any more that the new
//! limit does not allow; what was sent before *drains*; from then on the limit's
//! *own* requests are measured, until the trial is given up or has won.

use crate::unit::Time;

use super::crowd::Crowd;

/// The longest that a head takes to get anywhere: a full stroke of 18 ms, a
/// revolution of 8, and some more for an old disk. No epoch is shorter, and no
/// trial may fall further behind.
const SEEK_MAX: Time = Time::from_ms(32);

/// What was longer ago counts less and less: some tens of the longest ways.
const MEMORY: Time = Time::from_s(1);

/// Fewest completions in an epoch: half of what a disk queues.
const EPOCH: u32 = 16;

/// So many more requests against a trial than for it end it.
const AGAINST: i32 = 3;

/// All trials together cost no more than this part of the time.
const TRIALS_PART: u64 = 64;

/// After so many trials that found the same, the next takes no longer, or comes no later.
const DOUBLINGS_MAX: u32 = 3;

/// What became of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    /// The limit from now on; `None`: none.
    pub limit: Option<usize>,
    /// Why.
    pub why: &'static str,
    /// The rate that decided it.
    pub kib_per_s: u64,
    /// The rate that it was held against.
    pub before_kib_per_s: u64,
}

/// A read that the device is done with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub bytes: u64,
    /// From its dispatch on.
    pub latency: Time,
    /// How many were in the device, this one included.
    pub in_device: u32,
    /// How many are there or on their way there, this one included.
    pub under_way: u32,
    /// How many of these are of processes that have no place.
    pub foreign: u32,
    /// How many turns have begun so far.
    pub turns: u64,
}

/// Of the processes that want something, or were just given it, how many read
/// near to where they read before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    pub here: usize,
    pub are: usize,
    /// With those that have not read enough to tell.
    pub may_be: usize,
}

/// Bytes since a point of time.
#[derive(Clone, Copy, Debug)]
struct Measure {
    began: Time,
    completions: u32,
    bytes: u64,
}

impl Measure {
    fn begun(began: Time) -> Measure {
        Measure { began, completions: 0, bytes: 0 }
    }

    fn add(&mut self, bytes: u64) {
        self.completions += 1;
        self.bytes += bytes;
    }

    fn kib_per_s(&self, now: Time) -> u64 {
        self.bytes * 1_000_000 / 1024 * 1000 / now.since(self.began).ns().max(1)
    }

    /// How much longer it took than it would have at that rate; 0 if it took no longer.
    fn behind(&self, now: Time, kib_per_s: u64) -> Time {
        Time(now.since(self.began).ns().saturating_sub(span_ns(self.bytes, kib_per_s)))
    }
}

/// A rate over the last second or two: readers who now meet on one head and now don't
/// bring a tenth in one epoch of what they bring in the next, and a trial that begins in the
/// bad one must not be held against that alone.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    bytes: u64,
    span_ns: u64,
}

impl Average {
    fn add(&mut self, epoch: &Measure, now: Time) {
        if self.span_ns > MEMORY.ns() {
            (self.bytes, self.span_ns) = (self.bytes / 2, self.span_ns / 2);
        }
        self.bytes += epoch.bytes;
        self.span_ns += now.since(epoch.began).ns();
    }

    fn kib_per_s(&self) -> u64 {
        self.bytes * 1_000_000 / 1024 * 1000 / self.span_ns.max(1)
    }
}

/// How long so many bytes take at that rate.
fn span_ns(bytes: u64, kib_per_s: u64) -> u64 {
    bytes * 1_000_000 / 1024 * 1000 / kib_per_s.max(1)
}

/// Another limit is tried.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The limit before.
    before: Option<usize>,
    /// When what was sent under that one is there at the latest.
    drained_by: Time,
    /// From the begin on.
    whole: Measure,
    /// Since all that is on its way was sent under the new limit.
    own: Option<Measure>,
    /// How many more of its own requests were fast enough than were not.
    votes: i32,
}

/// The limit in force, and the search for a better one.
#[derive(Debug, Default)]
pub(super) struct Search {
    limit: Option<usize>,
    trial: Option<Trial>,
    /// While there is no limit.
    crowd: Crowd,
    epoch: Option<Measure>,
    /// Turns at its begin.
    epoch_turns: u64,
    /// What the limit in force brought in the last epoch, in how large requests.
    kept_kib_per_s: u64,
    kept_request_bytes: u64,
    /// What all together brought.
    all: Average,
    /// No trial before, unless the rate is another than it was at the last one.
    quiet_until: Time,
    tried_at_kib_per_s: u64,
    /// Under a limit: whether next twice as many are tried, or all.
    tries_more: bool,
    /// How many trials were voted down, or undid a limit, on a device that was the same.
    refusals: u32,
    /// How many were not, and fell behind though most of their requests were fast.
    doubts: u32,
}

impl Search {
    /// How many processes may be active; `None`: all.
    pub(super) fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// When a trial ends in which nothing comes back.
    pub(super) fn ends_at(&self) -> Option<Time> {
        let trial = self.trial?;
        match trial.own {
            None => Some(trial.drained_by),
            Some(own) if own.completions == 0 => Some(own.began + SEEK_MAX),
            Some(_) => None,
        }
    }

    /// Time has come to `now`.
    pub(super) fn waited(&mut self, now: Time) -> Option<Tried> {
        let is_late = self.ends_at().is_some_and(|end| end <= now);
        is_late.then(|| self.give_up(now, "late"))
    }

    /// The device is done with a read. `near` is asked once in an epoch.
    pub(super) fn completed(
        &mut self,
        now: Time,
        served: Served,
        near: impl FnOnce() -> Near,
    ) -> Option<Tried> {
        if self.trial.is_some() {
            return self.tried(now, served);
        }
        if self.limit.is_none() {
            self.crowd.add(served.latency, served.in_device);
        }
        let doubts = self.doubts;
        let epoch = self.epoch.get_or_insert(Measure::begun(now));
        epoch.add(served.bytes);
        if epoch.completions < EPOCH << doubts
            || now.since(epoch.began) < Time(SEEK_MAX.ns() << doubts)
        {
            return None;
        }
        let epoch = *epoch;
        self.epoch_ended(now, epoch, served, near())
    }

    fn epoch_ended(
        &mut self,
        now: Time,
        epoch: Measure,
        served: Served,
        near: Near,
    ) -> Option<Tried> {
        if self.limit.is_some() && near.may_be < 2 {
            return Some(self.lift("far"));
        }
        if self.limit.is_some() && served.turns - self.epoch_turns < near.may_be as u64 {
            // Some had no turn yet: the first turn of each is its slowest.
            return None;
        }
        let before = core::mem::replace(&mut self.kept_kib_per_s, epoch.kib_per_s(now));
        self.kept_request_bytes = epoch.bytes / u64::from(epoch.completions);
        self.begin_epoch(now, served.turns);
        let kept = self.kept_kib_per_s;
        match self.limit {
            None => self.all.add(&epoch, now),
            Some(_) if kept < self.all.kib_per_s() => return Some(self.lift("less")),
            Some(_) => {}
        }
        let tried_at = self.tried_at_kib_per_s;
        let is_another = match self.limit {
            None => 2 * self.all.kib_per_s() < tried_at,
            Some(_) => 2 * kept < tried_at || kept > 2 * tried_at,
        };
        if is_another {
            (self.quiet_until, self.refusals) = (now, 0);
        }
        let is_steady = 4 * kept <= 5 * before && 3 * kept >= 2 * before;
        if !is_steady || now < self.quiet_until {
            return None;
        }
        let limit = match self.limit {
            None if near.are < 2 || 2 * near.are < near.here => return None,
            None if !self.crowd.is_in_its_own_way() => return None,
            None => Some(1),
            Some(limit) => Some(2 * limit).filter(|&more| self.tries_more && more < near.may_be),
        };
        self.tries_more = limit.is_none();
        if self.limit.is_none() {
            self.kept_kib_per_s = self.all.kib_per_s().max(kept.min(before));
        }
        Some(self.begin_trial(now, limit, served.under_way))
    }

    fn begin_epoch(&mut self, now: Time, turns: u64) {
        self.epoch = Some(Measure::begun(now));
        self.epoch_turns = turns;
    }

    /// All are active again.
    fn lift(&mut self, why: &'static str) -> Tried {
        self.limit = None;
        self.epoch = None;
        self.crowd = Crowd::default();
        let (kib_per_s, before_kib_per_s) = (self.kept_kib_per_s, self.all.kib_per_s());
        Tried { limit: None, why, kib_per_s, before_kib_per_s }
    }

    fn begin_trial(&mut self, now: Time, limit: Option<usize>, under_way: u32) -> Tried {
        let kib_per_s = self.kept_kib_per_s;
        let drain_ns = span_ns(u64::from(under_way) * self.kept_request_bytes, kib_per_s);
        self.trial = Some(Trial {
            before: self.limit,
            // A crowd that served its requests one by one needs so long, and a head
            // that they no longer crowd has less to choose from.
            drained_by: now + Time(4 * drain_ns) + SEEK_MAX,
            whole: Measure::begun(now),
            own: None,
            votes: 0,
        });
        self.limit = limit;
        self.tried_at_kib_per_s = kib_per_s;
        Tried { limit, why: "try", kib_per_s, before_kib_per_s: kib_per_s }
    }

    fn tried(&mut self, now: Time, served: Served) -> Option<Tried> {
        let kept = self.kept_kib_per_s;
        let limit = self.limit;
        // A limit is worth it if it brings a quarter more than none.
        let is_worth_it = |kib_per_s: u64| match limit {
            Some(_) => 4 * kib_per_s > 5 * kept,
            None => 5 * kib_per_s > 4 * kept,
        };
        let trial = self.trial.as_mut()?;
        trial.whole.add(served.bytes);
        let Some(own) = &mut trial.own else {
            if served.foreign == 0 {
                trial.own = Some(Measure::begun(now));
            }
            return None;
        };
        own.add(served.bytes);
        let own = *own;
        // The first of each process is a switch to it, and not near.
        if own.completions as usize > limit.unwrap_or(0) {
            let bytes_beside = served.bytes * u64::from(served.in_device);
            let like_it_ns = served.latency.ns().max(1);
            let like_it_kib_per_s = bytes_beside * 1_000_000 / 1024 * 1000 / like_it_ns;
            trial.votes += if is_worth_it(like_it_kib_per_s) { 1 } else { -1 };
        }
        if trial.votes <= -AGAINST {
            return Some(self.give_up(now, "against"));
        }
        if own.behind(now, kept) > Time(SEEK_MAX.ns() << self.doubts) {
            return Some(self.give_up(now, "behind"));
        }
        let is_whole = own.completions >= (2 * EPOCH) << self.doubts
            && now.since(own.began) >= Time((2 * SEEK_MAX.ns()) << self.doubts);
        let kib_per_s = own.kib_per_s(now);
        match is_whole {
            false => None,
            true if is_worth_it(kib_per_s) => Some(self.win(now, own, served.turns)),
            true => Some(self.give_up(now, "worse")),
        }
    }

    fn win(&mut self, now: Time, own: Measure, turns: u64) -> Tried {
        let kib_per_s = own.kib_per_s(now);
        let before_kib_per_s = core::mem::replace(&mut self.kept_kib_per_s, kib_per_s);
        self.tried_at_kib_per_s = kib_per_s;
        self.trial = None;
        self.doubts = 0;
        self.tries_more = true;
        self.quiet_until = now + Time((SEEK_MAX.ns() * TRIALS_PART) << self.refusals);
        if self.limit.is_none() {
            // The limit that there was did not last.
            self.refusals = (self.refusals + 1).min(DOUBLINGS_MAX);
            self.all = Average::default();
            self.all.add(&own, now);
            self.crowd = Crowd::default();
        }
        self.begin_epoch(now, turns);
        Tried { limit: self.limit, why: "better", kib_per_s, before_kib_per_s }
    }

    fn give_up(&mut self, now: Time, why: &'static str) -> Tried {
        let trial = self.trial.take().expect("only a trial is given up");
        let cost = trial.whole.behind(now, self.kept_kib_per_s);
        self.quiet_until = now + Time((cost.ns() * TRIALS_PART) << self.refusals);
        let same = if trial.votes > 0 { &mut self.doubts } else { &mut self.refusals };
        *same = (*same + 1).min(DOUBLINGS_MAX);
        self.limit = trial.before;
        self.epoch = None;
        self.crowd = Crowd::default();
        let kib_per_s = trial.own.unwrap_or(trial.whole).kib_per_s(now);
        Tried { limit: self.limit, why, kib_per_s, before_kib_per_s: self.kept_kib_per_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;

    /// A device in front of which so many processes read one request of 64 KiB after the other.
    struct Bench {
        search: Search,
        now: Time,
        /// When the request of each is back, and when it was sent.
        under_way: Vec<(Time, Time, usize)>,
        processes: usize,
        turn: usize,
        turns: u64,
        seed: u64,
        log: Vec<(Time, Tried)>,
    }

    use alloc::vec::Vec;

    const BYTES: u64 = 65_536;

    impl Bench {
        fn new(processes: usize, seed: u64) -> Bench {
            Bench {
                search: Search::default(),
                now: Time::ZERO,
                under_way: Vec::new(),
                processes,
                turn: 0,
                turns: 0,
                seed,
                log: Vec::new(),
            }
        }

        /// Until so many completions more. `latency` knows the number of requests that
        /// are under way, this one included, and whether its process was served last.
        fn run(&mut self, completions: u32, latency: impl Fn(&mut Bench, u64, bool) -> u64) {
            let mut last = usize::MAX;
            for _ in 0..completions {
                let limit = self.search.limit().unwrap_or(self.processes);
                for nth in 0..limit.min(self.processes) {
                    let process = (self.turn + nth) % self.processes;
                    if self.under_way.iter().all(|&(.., of)| of != process) {
                        let count = self.under_way.len() as u64 + 1;
                        let back = self.now + Time(latency(self, count, last == process));
                        self.under_way.push((back, self.now, process));
                    }
                }
                self.under_way.sort_unstable();
                let (back, sent, process) = self.under_way[0];
                if let Some(end) = self.search.ends_at().filter(|&end| end < back) {
                    self.now = end;
                    let tried = self.search.waited(end);
                    self.log.extend(tried.map(|tried| (end, tried)));
                    continue;
                }
                self.now = back;
                let in_device = self.under_way.len() as u32;
                self.under_way.remove(0);
                last = process;
                let own = |process: usize| {
                    (process + self.processes - self.turn) % self.processes < limit
                };
                let foreign = self.under_way.iter().filter(|&&(.., of)| !own(of)).count() as u32;
                let near =
                    Near { here: self.processes, are: self.processes, may_be: self.processes };
                let served = Served {
                    bytes: BYTES,
                    latency: back.since(sent),
                    in_device,
                    under_way: in_device,
                    foreign,
                    turns: self.turns,
                };
                let tried = self.search.completed(back, served, || near);
                self.log.extend(tried.map(|tried| (back, tried)));
                // A turn of a hundred requests.
                if splitmix::next(&mut self.seed).is_multiple_of(100) {
                    self.turn = (self.turn + limit) % self.processes;
                    self.turns += limit as u64;
                }
            }
        }

        /// The limit that is kept; a trial is none.
        fn kept(&self) -> Option<usize> {
            self.search.trial.map_or(self.search.limit, |trial| trial.before)
        }
    }

    /// 12 ms to anywhere, 0.6 ms to what lies next; one after the other.
    fn one_head(_: &mut Bench, under_way: u64, is_next: bool) -> u64 {
        if under_way == 1 && is_next { 600_000 } else { 12_000_000 * under_way }
    }

    #[test]
    fn one_head_is_found_within_two_hundred_completions() {
        let mut bench = Bench::new(16, 1);
        bench.run(200, one_head);
        assert_eq!(bench.kept(), Some(1), "{:?}", bench.log);
        bench.run(5_000, one_head);
        assert_eq!(bench.kept(), Some(1), "{:?}", bench.log);
        let lost: u64 = bench.log.iter().filter(|(_, tried)| tried.why == "try").count() as u64;
        assert!(lost < 8, "trials cost a head's time: {:?}", bench.log);
    }

    #[test]
    fn where_all_are_served_at_once_nothing_is_tried() {
        let mut bench = Bench::new(16, 1);
        bench.run(10_000, |_, _, _| 200_000);
        assert_eq!(bench.log, []);
    }

    #[test]
    fn a_full_link_is_no_head() {
        // 0.1 ms alone, and for some that are lucky; 0.5 GB/s for all.
        let mut bench = Bench::new(16, 1);
        bench.run(10_000, |bench, under_way, _| {
            let is_lucky = splitmix::next(&mut bench.seed).is_multiple_of(16);
            if is_lucky { 100_000 } else { (131_000 * under_way).max(100_000) }
        });
        assert_eq!(bench.kept(), None, "{:?}", bench.log);
        let tried: Vec<_> = bench.log.iter().filter(|(_, tried)| tried.limit.is_none()).collect();
        assert!(!tried.is_empty() && tried.iter().all(|(_, tried)| tried.why == "against"));
    }

    /// Latencies of 10 to 2,000 ms that tell nothing, as an object store's: whatever is drawn, a
    /// limit is never kept.
    #[test]
    fn noise_is_never_taken_for_a_head() {
        for seed in 0..50 {
            let mut bench = Bench::new([4, 16, 64][seed as usize % 3], seed);
            bench.run(5_000, |bench, _, _| {
                let slow = [20, 20, 30, 30, 40, 60, 100, 150]
                    [splitmix::next(&mut bench.seed) as usize % 8];
                let outlier =
                    if splitmix::next(&mut bench.seed).is_multiple_of(500) { 2_000 } else { 0 };
                (10 + splitmix::next(&mut bench.seed) % slow + outlier) * 1_000_000
            });
            assert!(
                bench.log.iter().all(|(_, tried)| tried.why != "better"),
                "seed {seed}: {:?}",
                bench.log
            );
        }
    }

    /// Four heads in place of one, each at hand for another process.
    #[test]
    fn members_that_are_added_are_found_within_two_seconds() {
        let mut bench = Bench::new(4, 1);
        bench.run(5_000, one_head);
        assert_eq!(bench.kept(), Some(1));
        let changed = bench.now;
        let trials = bench.log.len();
        bench.run(20_000, |_, _, _| 250_000);
        let (found, _) =
            bench.log[trials..].iter().find(|(_, tried)| tried.why == "better").unwrap();
        assert!(found.since(changed) < Time::from_s(2), "{:?}", found.since(changed));
        assert_eq!(bench.kept(), None, "{:?}", bench.log);
    }
}
