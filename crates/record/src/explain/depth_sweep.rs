//! Number of requests in flight during each wait.
//!
//! The mean of a whole recording hides a phase with one request at a time next to a phase with many
//! requests. Each wait is therefore judged by the requests in flight while it lasts. The waits
//! themselves stand for requests if no request was recorded.
//!
//! The begins and ends of requests and waits are processed in the order of their times. Two
//! integrals over time are kept: the number of requests in flight, and the number of devices that
//! have at least one. Their increases during a wait are its [`Depth`].
//!
//! Waits at the same time share the time that passes: a third integral is the share of one of them.
//! The shares of all waits sum to the time in which at least one thread waited.
//!
//! A wait for pages that another wait in progress fetches has no part of that time, and stands for
//! no request: see [`Followers`].
//!
//! A wait is recorded at its end, so its begin precedes the records before it. The events are kept
//! up to a number of them. A wait that is longer than the kept time counts from its seen part on.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use super::followers::{Followers, WaitedPages};
use super::interference::RECORD_DELAY_NS;
use super::{LOW_DEPTH, WaitCause};
use readpath_trace::recording::RequestRecord;

/// Number of kept events, chosen by their memory: 9 MiB of 144 bytes each. Beyond it the events
/// before the last [`RECORD_DELAY_NS`] are processed.
const EVENTS_MAX: usize = 1 << 16;

/// Inverse of the part of a wait that must have been seen for a low queue depth. Chosen.
const SEEN_PART_DIVISOR: u64 = 2;

/// Requests in flight during waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Depth {
    /// Sum of the times of all requests within the waits, in nanoseconds. It grows with the square
    /// of the number of threads, so 64 bits are too few.
    request_ns: u128,
    /// Sum of the times in which each device was busy within the waits, in nanoseconds.
    busy_ns: u128,
}

impl Depth {
    /// Adds the requests during other waits.
    pub fn add(&mut self, other: Depth) {
        self.request_ns += other.request_ns;
        self.busy_ns += other.busy_ns;
    }

    /// Returns the mean number of requests in flight at a busy device. 1 if no time was measured.
    pub fn mean(&self) -> f64 {
        if self.busy_ns == 0 { 1.0 } else { self.request_ns as f64 / self.busy_ns as f64 }
    }

    /// Returns true if the mean is below [`LOW_DEPTH`].
    pub fn is_low(&self) -> bool {
        self.mean() < LOW_DEPTH
    }

    /// Returns the increase since an earlier value.
    fn since(self, earlier: Depth) -> Depth {
        Depth {
            request_ns: self.request_ns - earlier.request_ns,
            busy_ns: self.busy_ns - earlier.busy_ns,
        }
    }
}

/// Wait of a read, with its charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargedWait {
    /// Number of the file in the recording.
    pub file: u32,
    /// Number of the reading thread.
    pub thread: u32,
    /// Cause to which it was charged first, if any.
    pub cause: Option<WaitCause>,
    /// Second cause, which takes the charge if the recording has many small files.
    pub many_files: Option<WaitCause>,
    /// Offset of the read in bytes.
    pub offset: u64,
    /// Number of fetched bytes.
    pub fetched_bytes: u64,
    /// Number of fetched or requested bytes, whichever is greater.
    pub bytes: u64,
    /// Duration in nanoseconds.
    pub waited_ns: u64,
    /// True if the program had announced the first page.
    pub is_announced: bool,
}

impl ChargedWait {
    /// Returns the pages for which it waits.
    fn pages(&self) -> WaitedPages {
        WaitedPages::new(self.file, self.offset, self.bytes, self.fetched_bytes > 0)
    }
}

/// Wait with its surroundings.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedWait {
    /// The wait.
    pub wait: ChargedWait,
    /// Requests in flight during it.
    pub depth: Depth,
    /// Its share of the time that passed, in nanoseconds.
    pub passed_ns: f64,
    /// True if another wait fetched its pages during most of it.
    pub is_following: bool,
    /// Time at which its end was processed, in nanoseconds since the start of the recording.
    pub end_ns: u64,
    /// Length in nanoseconds of its part for which the surroundings are known.
    seen_ns: u64,
}

impl EndedWait {
    /// Returns true if the queue depth was low, and most of the wait was seen.
    pub fn is_depth_low(&self) -> bool {
        self.depth.is_low() && self.seen_ns >= self.wait.waited_ns / SEEN_PART_DIVISOR
    }
}

/// Change at a time.
#[derive(Debug)]
enum Change {
    /// A request to a device begins. It ends at `end_ns`.
    RequestBegins { device: u64, end_ns: u64 },
    /// A request to a device ends.
    RequestEnds { device: u64 },
    /// A wait begins. It ends at `end_ns`.
    WaitBegins { wait: ChargedWait, end_ns: u64 },
    /// A wait ends. Its begin was processed with these values.
    WaitEnds { wait: ChargedWait, begin: WaitBegin },
}

/// Change that is not processed yet.
#[derive(Debug)]
struct Event {
    /// Time in nanoseconds.
    at_ns: u64,
    /// The change.
    change: Change,
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.at_ns == other.at_ns
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest event is the greatest, as a heap returns the greatest first.
    fn cmp(&self, other: &Event) -> Ordering {
        other.at_ns.cmp(&self.at_ns)
    }
}

/// Integrals over the time so far.
#[derive(Clone, Copy, Debug, Default)]
struct Integrals {
    /// Integral of the requests.
    requests: Depth,
    /// Integral of the waits, as if each were a request to one device.
    waits: Depth,
    /// Integral of the share of a wait in progress, in nanoseconds.
    passed_ns: f64,
}

/// Values when the begin of a wait was processed.
#[derive(Clone, Copy, Debug)]
struct WaitBegin {
    /// Time in nanoseconds.
    at_ns: u64,
    /// Integrals over the time until then.
    integrals: Integrals,
    /// Part of the integral of the share during fetches of its page by others, in nanoseconds.
    fetched_ns: f64,
}

/// Requests and waits of a recording, in the order of their times.
#[derive(Debug, Default)]
pub(super) struct DepthSweep {
    /// Changes that are not processed yet.
    events: BinaryHeap<Event>,
    /// Time of the last processed change in nanoseconds.
    at_ns: u64,
    /// Number of requests in flight by device. Idle devices are absent.
    devices: BTreeMap<u64, u64>,
    /// Number of requests in flight at all devices.
    requests: u64,
    /// Number of waits in progress, without the ones that follow.
    waits: u64,
    /// Waits in progress by their pages.
    followers: Followers,
    /// Integrals up to the last processed change.
    integrals: Integrals,
    /// Waits that have ended.
    ended: Vec<EndedWait>,
}

impl DepthSweep {
    /// Adds a read request of the program.
    pub fn add_request(&mut self, request: &RequestRecord) {
        let &RequestRecord { device, begin_ns, end_ns, .. } = request;
        self.add(begin_ns, end_ns, Change::RequestBegins { device, end_ns });
    }

    /// Adds a wait from `begin_ns` to `end_ns`.
    pub fn add_wait(&mut self, (begin_ns, end_ns): (u64, u64), wait: ChargedWait) {
        self.add(begin_ns, end_ns, Change::WaitBegins { wait, end_ns });
    }

    /// Adds a change at `begin_ns`, which is recorded at `end_ns`. If more than [`EVENTS_MAX`]
    /// changes are kept, processes the earliest of the changes that no later record can precede.
    fn add(&mut self, begin_ns: u64, end_ns: u64, change: Change) {
        self.events.push(Event { at_ns: begin_ns, change });
        let until_ns = end_ns.saturating_sub(RECORD_DELAY_NS);
        while self.events.len() > EVENTS_MAX && self.process_next(until_ns) {}
    }

    /// Processes the changes up to `until_ns`. A request or a wait that began before the changes
    /// processed so far counts from them on.
    pub fn advance(&mut self, until_ns: u64) {
        while self.process_next(until_ns) {}
    }

    /// Processes the next change. Returns false if there is none up to `until_ns`.
    fn process_next(&mut self, until_ns: u64) -> bool {
        let next = self.events.peek().is_some_and(|event| event.at_ns <= until_ns);
        let Some(Event { at_ns, change }) = next.then(|| self.events.pop()).flatten() else {
            return false;
        };
        self.advance_integrals(at_ns);
        match change {
            Change::RequestBegins { device, end_ns } => {
                *self.devices.entry(device).or_default() += 1;
                self.requests += 1;
                self.events.push(Event { at_ns: end_ns, change: Change::RequestEnds { device } });
            }
            Change::RequestEnds { device } => {
                self.requests -= 1;
                let count = self.devices.entry(device).or_default();
                *count -= 1;
                if *count == 0 {
                    self.devices.remove(&device);
                }
            }
            Change::WaitBegins { wait, end_ns } => {
                let (at_ns, integrals) = (self.at_ns, self.integrals);
                let change = self.followers.begin(wait.pages(), integrals.passed_ns);
                self.waits = self.waits.saturating_add_signed(change);
                let fetched_ns = self.followers.fetched_ns(wait.pages(), integrals.passed_ns);
                let begin = WaitBegin { at_ns, integrals, fetched_ns };
                let change = Change::WaitEnds { wait, begin };
                self.events.push(Event { at_ns: end_ns, change });
            }
            Change::WaitEnds { wait, begin } => {
                self.ended.push(self.ended_wait(wait, begin));
                let change = self.followers.end(wait.pages(), self.integrals.passed_ns);
                self.waits = self.waits.saturating_add_signed(change);
            }
        }
        true
    }

    /// Returns a wait that ends now with its surroundings. `begin`: the values when its begin was
    /// processed. A part of the wait before that time counts like the rest.
    fn ended_wait(&self, wait: ChargedWait, begin: WaitBegin) -> EndedWait {
        let requests = self.integrals.requests.since(begin.integrals.requests);
        let waits = self.integrals.waits.since(begin.integrals.waits);
        let passed_ns = self.integrals.passed_ns - begin.integrals.passed_ns;
        let fetched_ns =
            self.followers.fetched_ns(wait.pages(), self.integrals.passed_ns) - begin.fetched_ns;
        // Without a request in flight, the waits stand for requests.
        let depth = if requests.busy_ns > 0 { requests } else { waits };
        let seen_ns = self.at_ns - begin.at_ns;
        let share = match seen_ns {
            // No part of the wait was seen. It counts as the only one.
            0 => 1.0,
            _ => (passed_ns - fetched_ns).max(0.0) / seen_ns as f64,
        };
        EndedWait {
            wait,
            depth,
            passed_ns: wait.waited_ns as f64 * share,
            is_following: fetched_ns * 2.0 > passed_ns,
            end_ns: self.at_ns,
            seen_ns,
        }
    }

    /// Adds the time up to `at_ns` to the integrals. An earlier `at_ns` changes nothing.
    fn advance_integrals(&mut self, at_ns: u64) {
        let passed_ns = at_ns.saturating_sub(self.at_ns);
        self.at_ns += passed_ns;
        let Integrals { requests, waits, passed_ns: share_ns } = &mut self.integrals;
        let time_of = |count: u64| u128::from(passed_ns) * u128::from(count);
        requests.request_ns += time_of(self.requests);
        requests.busy_ns += time_of(self.devices.len() as u64);
        waits.request_ns += time_of(self.waits);
        waits.busy_ns += time_of(u64::from(self.waits > 0));
        // Only the increase during a wait is used, so the increase without a wait has no effect.
        *share_ns += passed_ns as f64 / self.waits.max(1) as f64;
    }

    /// Returns the mean number of waits in progress at a time, without the ones that follow. 1
    /// without waits.
    pub fn mean_waits(&self) -> f64 {
        self.integrals.waits.mean()
    }

    /// Returns the waits that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<EndedWait> {
        std::mem::take(&mut self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A wait without a cause.
    fn charged(waited_ns: u64) -> ChargedWait {
        ChargedWait {
            file: 0,
            thread: 0,
            cause: None,
            many_files: None,
            offset: 0,
            fetched_bytes: 0,
            bytes: 0,
            waited_ns,
            is_announced: false,
        }
    }

    /// Adds waits, with their times in ms.
    fn add_waits(sweep: &mut DepthSweep, waits: &[(u64, u64)]) {
        for &(begin, end) in waits {
            sweep.add_wait((begin * MS, end * MS), charged((end - begin) * MS));
        }
    }

    /// Waits in the order of their ends. All times in ms; a request has a device.
    fn ended(requests: &[(u64, u64, u64)], waits: &[(u64, u64)]) -> Vec<EndedWait> {
        let mut sweep = DepthSweep::default();
        for &(begin, end, device) in requests {
            let (begin_ns, end_ns) = (begin * MS, end * MS);
            let request = RequestRecord { begin_ns, end_ns, device, ..RequestRecord::default() };
            sweep.add_request(&request);
        }
        add_waits(&mut sweep, waits);
        sweep.advance(u64::MAX);
        sweep.take_ended()
    }

    /// Mean depths of these waits.
    fn depths(requests: &[(u64, u64, u64)], waits: &[(u64, u64)]) -> Vec<f64> {
        ended(requests, waits).iter().map(|ended| ended.depth.mean()).collect()
    }

    /// By hand: the wait of 10 ms has one request for 10 ms and a second one for 5 ms. A request to
    /// another device for 5 ms is one at a time there: 20 ms of requests in 15 ms of busy devices.
    #[test]
    fn depth_of_a_wait_is_the_mean_of_the_busy_devices_during_it() {
        assert_eq!(depths(&[(0, 20, 1), (15, 30, 1)], &[(10, 20)]), [1.5]);
        let depth = depths(&[(0, 20, 1), (15, 30, 1), (10, 15, 2)], &[(10, 20)])[0];
        assert!((depth - 20.0 / 15.0).abs() < 1e-9, "{depth}");
    }

    /// Without requests, four waits at a time are four requests.
    #[test]
    fn waits_stand_for_requests_that_are_not_recorded() {
        assert_eq!(
            depths(&[], &[(0, 10), (0, 10), (0, 10), (0, 10), (20, 30)])[..],
            [4.0, 4.0, 4.0, 4.0, 1.0]
        );
    }

    /// By hand: of the 2 s of the wait, 0.9 s have one request, 0.1 s three and 1 s two. The wait
    /// is recorded at its end.
    #[test]
    fn wait_longer_than_the_delay_of_records_is_judged_from_its_begin() {
        assert_eq!(depths(&[(0, 1000, 1), (900, 2000, 1), (900, 2000, 1)], &[(0, 2000)]), [1.6]);
    }

    /// 80 waits of 2 s on eight threads, one every 250 ms.
    fn staggered() -> Vec<(u64, u64)> {
        (0..80).map(|at| (at * 250, at * 250 + 2000)).collect()
    }

    /// By hand: from the eighth wait to the 73rd, eight are in progress at each moment, so a wait
    /// has an eighth of its 2 s. All waits pass from 0 to 21.75 s.
    #[test]
    fn staggered_waits_of_two_seconds_share_the_time_from_their_begins() {
        let ended = ended(&[], &staggered());
        for wait in &ended[7..73] {
            assert!((wait.depth.mean() - 8.0).abs() < 1e-9, "{wait:?}");
            assert!((wait.passed_ns / 1e6 - 250.0).abs() < 1e-6, "{wait:?}");
        }
        let passed_ns: f64 = ended.iter().map(|wait| wait.passed_ns).sum();
        assert!((passed_ns / 1e6 - 21_750.0).abs() < 1e-3, "{passed_ns}");
    }

    /// By hand: 1.5 s are processed when a wait is added that ends at 2 s. If it began at 0, the
    /// seen quarter is no evidence of a low queue depth. If it began at 1.2 s, 0.5 of 0.8 s are.
    #[test]
    fn depth_of_a_wait_is_low_only_if_half_of_it_was_seen() {
        let is_low = |begin| {
            let mut sweep = DepthSweep::default();
            add_waits(&mut sweep, &[(1499, 1500)]);
            sweep.advance(u64::MAX);
            add_waits(&mut sweep, &[(begin, 2000)]);
            sweep.advance(u64::MAX);
            sweep.take_ended().iter().map(EndedWait::is_depth_low).collect::<Vec<bool>>()
        };
        assert_eq!(is_low(0), [true, false]);
        assert_eq!(is_low(1200), [true, true]);
    }

    /// 100,000 waits in 2 s: 0.5 s has 25,000 of them.
    #[test]
    fn number_of_kept_events_is_bounded() {
        let mut sweep = DepthSweep::default();
        (0..100_000)
            .for_each(|at| sweep.add_wait((at * 20_000, at * 20_000 + 1000), charged(1000)));
        assert_eq!(sweep.events.len(), EVENTS_MAX);
    }

    /// By hand: 40 requests during each of 40 waits, all of 2⁵⁹/40 ns. The sum of all waits is 40
    /// times 2⁵⁹ ns of requests, more than 2⁶⁴.
    #[test]
    fn sums_of_many_long_waits_do_not_overflow() {
        let end_ns = (1 << 59) / 40;
        let mut sweep = DepthSweep::default();
        for _ in 0..40 {
            let request = RequestRecord { end_ns, device: 1, ..RequestRecord::default() };
            sweep.add_request(&request);
        }
        for _ in 0..40 {
            sweep.add_wait((0, end_ns), charged(end_ns));
        }
        sweep.advance(u64::MAX);
        let mut sum = Depth::default();
        sweep.take_ended().iter().for_each(|ended| sum.add(ended.depth));
        assert!((sum.mean() - 40.0).abs() < 1e-9, "{sum:?}");
    }

    /// By hand, in ms: of 0 to 30, the first wait has 10 alone and shares 10 with the second one,
    /// which has the last 10 alone. Four waits of 2 s share 2 s, most of it before the last 0.5 s.
    #[test]
    fn waits_at_the_same_time_share_the_passed_time() {
        let passed = |waits| -> Vec<u64> {
            ended(&[], waits).iter().map(|ended| (ended.passed_ns / 1e6).round() as u64).collect()
        };
        assert_eq!(passed(&[(0, 20), (10, 30)]), [15, 15]);
        assert_eq!(passed(&[(0, 2000); 4]), [500; 4]);
    }
    /// By hand, in ms: a wait from 5 to 30 for the second page of a fetch from 10 to 20 has 5
    /// before it and 10 after it. A second one, from 12 to 26, shares 6 of these 10. A wait for
    /// another page shares 10 to 20 with the fetch. All four pass in 25.
    #[test]
    fn waits_for_a_page_that_another_wait_fetches_have_none_of_its_time() {
        let mut sweep = DepthSweep::default();
        let mut add = |(begin, end), offset: u64, fetched_bytes: u64| {
            let bytes = fetched_bytes.max(4096);
            let wait = ChargedWait { offset, fetched_bytes, bytes, ..charged((end - begin) * MS) };
            sweep.add_wait((begin * MS, end * MS), wait);
        };
        add((10, 20), 0, 8192);
        add((5, 30), 4096, 0);
        add((12, 26), 4096, 0);
        add((10, 20), 1 << 20, 0);
        sweep.advance(u64::MAX);
        assert_eq!(sweep.waits, 0);
        let ended = sweep.take_ended();
        // In the order of the ends: the fetch and the wait for another page are first.
        let mut passed: Vec<(u64, bool)> = ended
            .iter()
            .map(|ended| ((ended.passed_ns / 1e6).round() as u64, ended.is_following))
            .collect();
        passed.sort_unstable();
        assert_eq!(passed, [(3, true), (5, false), (5, false), (12, false)]);
    }
}
