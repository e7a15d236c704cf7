//! Fault injection: wraps a device and makes requests fail, to test the layers above.
//!
//! Requests take their normal time. A fault changes their outcome or delays it. Available faults:
//!
//! - an error for every request that touches a bad sector;
//! - an error, a short transfer or a delay for every n-th request;
//! - an error for one request in n, at random from a seed;
//! - loss of the device after n requests. A flush then fails too; no other fault affects a flush.

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::agenda::EventQueue;
use super::parameter_spec::{ParameterQuantity, ParameterSpec, ParameterValues};
use super::random::SeededRng;
use super::{BoxedDevice, Device};

/// One fault: the affected requests and the effect on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Rule that selects the affected requests.
    pub selector: FaultSelector,
    /// Effect on an affected request.
    pub effect: FaultEffect,
    /// Requests submitted before this time are not affected.
    pub since: Time,
}

/// Rule that selects the affected requests. All requests are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultSelector {
    /// Requests that touch these sectors.
    Sectors(std::ops::Range<u64>),
    /// Every n-th request.
    Every(u64),
    /// One request in n, at random.
    OneIn(u64),
    /// All requests after the n-th.
    After(u64),
}

/// Effect of a fault on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEffect {
    /// The request fails with this error.
    Fail(DeviceError),
    /// Only the first half of the sectors is transferred, rounded down.
    Halve,
    /// The completion is delayed by this time.
    Delay(Time),
}

/// A device with injected faults.
pub struct Faulty {
    /// The device that serves the requests.
    inner: BoxedDevice,
    /// Faults, in the order in which their effects apply.
    faults: Vec<FaultRule>,
    /// Choice of the requests of random faults.
    rng: SeededRng,
    /// Number of requests so far.
    submitted_count: u64,
    /// Requests and flushes in flight that a fault affects.
    affected_requests: Vec<AffectedRequest>,
    /// Completions that a fault delays, by their new times.
    delayed: EventQueue<Completion>,
}

/// A request or a flush in flight that a fault affects.
struct AffectedRequest {
    /// Identifier of the request in the inner device.
    id: RequestId,
    /// Number of sectors of the whole request, 0 for a flush.
    sectors: u32,
    /// Effects on it, in the order of the faults. Never empty.
    effects: Vec<FaultEffect>,
}

impl Faulty {
    /// Wraps `inner` with `faults`. Random faults derive from `seed`.
    pub fn new(inner: BoxedDevice, faults: Vec<FaultRule>, seed: u64) -> Faulty {
        Faulty {
            inner,
            faults,
            rng: SeededRng::new(seed),
            submitted_count: 0,
            affected_requests: Vec::new(),
            delayed: EventQueue::new(),
        }
    }

    /// Returns the faults that `spec` describes with the keys of [`PARAMETERS`].
    ///
    /// # Errors
    /// Fails on an unknown parameter and on an invalid value.
    pub fn faults(spec: &Spec) -> Result<Vec<FaultRule>, SpecError> {
        let settings = ParameterValues::read(spec, &PARAMETERS)?;
        // The count in the parameter `key`. 0 disables the fault.
        let count_of = |key| Some(settings.of(key)).filter(|&count| count > 0);
        let mut faults = Vec::new();
        // Adds a fault unless its selector is `None`. Only delays have a start time.
        let mut add = |selector: Option<FaultSelector>, effect| {
            let is_delay = matches!(effect, FaultEffect::Delay(_));
            let since = if is_delay { Time(settings.of("slow_from")) } else { Time::ZERO };
            faults.extend(selector.map(|selector| FaultRule { selector, effect, since }));
        };
        // The order is the order of the effects: the last error, a loss of the device, counts.
        let medium_error = FaultEffect::Fail(DeviceError::Medium);
        // A sector with some bad bytes is bad as a whole.
        let bad_start = settings.of("bad_from") / SECTOR_BYTES;
        let bad_end = (settings.of("bad_from") + settings.of("bad_bytes")).div_ceil(SECTOR_BYTES);
        let has_bad_bytes = settings.of("bad_bytes") > 0;
        let bad_sectors = FaultSelector::Sectors(bad_start..bad_end);
        add(has_bad_bytes.then_some(bad_sectors), medium_error);
        add(count_of("fail_every").map(FaultSelector::Every), medium_error);
        add(count_of("fail_one_in").map(FaultSelector::OneIn), medium_error);
        add(count_of("short_every").map(FaultSelector::Every), FaultEffect::Halve);
        add(
            count_of("slow_every").map(FaultSelector::Every),
            FaultEffect::Delay(Time(settings.of("slow_by"))),
        );
        add(count_of("gone_after").map(FaultSelector::After), FaultEffect::Fail(DeviceError::Gone));
        Ok(faults)
    }

    /// Applies the effects of the faults to a completion. A completion without faults is returned
    /// unchanged. Returns `None` for a delayed completion, which is added to `delayed`. Delays add
    /// up. The last of several errors counts, and an error replaces a short transfer.
    fn apply_faults(&mut self, mut completion: Completion) -> Option<Completion> {
        let is_own = |request: &AffectedRequest| request.id == completion.id;
        let Some(index) = self.affected_requests.iter().position(is_own) else {
            return Some(completion);
        };
        let AffectedRequest { sectors, effects, .. } = self.affected_requests.swap_remove(index);
        let mut delay = Time::ZERO;
        for effect in effects {
            match effect {
                FaultEffect::Delay(time) => delay += time,
                FaultEffect::Fail(error) => completion.outcome = Outcome::Failed(error),
                FaultEffect::Halve if completion.outcome == Outcome::Done => {
                    let bytes = u64::from(sectors / 2) * SECTOR_BYTES;
                    completion.outcome = Outcome::Short { bytes };
                }
                // A failed or short request stays as it is.
                FaultEffect::Halve => {}
            }
        }
        if delay == Time::ZERO {
            return Some(completion);
        }
        completion.at += delay;
        self.delayed.add(completion.at, completion);
        None
    }
}

impl Device for Faulty {
    /// Limits of the inner device. Faults do not change them.
    fn caps(&self) -> DeviceCaps {
        self.inner.caps()
    }

    /// Records the effects of all faults that select the request, and passes the request on.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        self.submitted_count += 1;
        let (request_number, rng) = (self.submitted_count, &mut self.rng);
        let effects: Vec<FaultEffect> = self
            .faults
            .iter()
            .filter(|fault| now >= fault.since)
            .filter(|fault| match &fault.selector {
                FaultSelector::Sectors(bad) => request.start < bad.end && bad.start < request.end(),
                FaultSelector::Every(n) => request_number.is_multiple_of(*n),
                FaultSelector::OneIn(n) => rng.below(*n) == 0,
                FaultSelector::After(n) => request_number > *n,
            })
            .map(|fault| fault.effect)
            .collect();
        if !effects.is_empty() {
            let DeviceRequest { id, sectors, .. } = request;
            self.affected_requests.push(AffectedRequest { id, sectors, effects });
        }
        self.inner.submit(now, request);
    }

    /// Passes a flush on. It is not counted as a request. Only a loss of the device affects it: an
    /// error of all requests after the n-th, which the next request would meet too.
    fn flush(&mut self, now: Time, id: RequestId) {
        let next_number = self.submitted_count + 1;
        let is_loss = |fault: &&FaultRule| {
            matches!(fault.selector, FaultSelector::After(n) if next_number > n)
                && matches!(fault.effect, FaultEffect::Fail(_))
                && now >= fault.since
        };
        let losses = self.faults.iter().filter(is_loss).map(|fault| fault.effect);
        let effects: Vec<FaultEffect> = losses.collect();
        if !effects.is_empty() {
            self.affected_requests.push(AffectedRequest { id, sectors: 0, effects });
        }
        self.inner.flush(now, id);
    }

    /// Returns the time of the next event of the inner device, or of the next delayed completion.
    fn next_event(&self) -> Option<Time> {
        [self.inner.next_event(), self.delayed.next_at()].into_iter().flatten().min()
    }

    /// Returns the next completion, with the effects of the faults applied.
    fn poll(&mut self, now: Time) -> Option<Completion> {
        if let Some((_, completion)) = self.delayed.take_due(now) {
            return Some(completion);
        }
        while let Some(completion) = self.inner.poll(now) {
            if let Some(completion) = self.apply_faults(completion) {
                return Some(completion);
            }
        }
        None
    }
}

/// Declares one parameter of `faulty`. Every fault is off by default: its count or size is 0. All
/// values share a chosen maximum, far above those that a test needs.
const fn parameter_spec(
    key: &'static str,
    description: &'static str,
    quantity: ParameterQuantity,
    default: u64,
) -> ParameterSpec {
    let source = "chosen: off unless given, a fault is what a test asks for";
    ParameterSpec { key, description, quantity, default, least: 0, most: 1 << 50, source }
}

/// Parameters of `faulty`.
pub const PARAMETERS: [ParameterSpec; 9] = [
    parameter_spec("bad_from", "where the bad bytes start", ParameterQuantity::Bytes, 0),
    parameter_spec(
        "bad_bytes",
        "how many are bad: every request that touches them fails",
        ParameterQuantity::Bytes,
        0,
    ),
    parameter_spec("fail_every", "every n-th request fails; 0: none", ParameterQuantity::Count, 0),
    parameter_spec(
        "fail_one_in",
        "one request in n fails, by chance; 0: none",
        ParameterQuantity::Count,
        0,
    ),
    parameter_spec(
        "short_every",
        "every n-th request moves half; 0: none",
        ParameterQuantity::Count,
        0,
    ),
    parameter_spec(
        "slow_every",
        "every n-th request is late; 0: none",
        ParameterQuantity::Count,
        0,
    ),
    parameter_spec("slow_by", "how late", ParameterQuantity::Time, 100_000_000),
    parameter_spec("slow_from", "when they begin to be late", ParameterQuantity::Time, 0),
    parameter_spec(
        "gone_after",
        "the device is gone after n requests; 0: never",
        ParameterQuantity::Count,
        0,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use readpath_core::request::Op;

    use crate::ssd::{Ssd, sata_2012};

    /// Returns a solid-state drive with the faults of a device text.
    fn faulty(text: &str, seed: u64) -> Faulty {
        let drive = Ssd::from_spec(&Spec::plain("ssd"), &sata_2012()).unwrap();
        let faults = Faulty::faults(&Spec::parse(text).unwrap()).unwrap();
        Faulty::new(Box::new(drive), faults, seed)
    }

    /// Reads eight sectors at each position, one after another. Returns outcome and response time.
    fn outcomes(device: &mut Faulty, start_sectors: &[u64]) -> Vec<(Outcome, Time)> {
        let mut now = Time::ZERO;
        let mut outcomes = Vec::new();
        for &start in start_sectors {
            let request = DeviceRequest { id: RequestId(9), op: Op::Read, start, sectors: 8 };
            device.submit(now, request);
            let submit_time = now;
            let completion = loop {
                now = device.next_event().unwrap();
                if let Some(completion) = device.poll(now) {
                    break completion;
                }
            };
            outcomes.push((completion.outcome, completion.at - submit_time));
        }
        outcomes
    }

    const EIO: Outcome = Outcome::Failed(DeviceError::Medium);

    /// Sector 16, at 8 KiB, is bad. Reads of 8 sectors from 9 and from 16 touch it.
    #[test]
    fn bad_sectors_fail_every_request_that_touches_them() {
        let mut device = faulty("faulty,bad_from=8k,bad_bytes=512", 0);
        let ended = outcomes(&mut device, &[8, 9, 16, 17]);
        let outcomes: Vec<Outcome> = ended.into_iter().map(|(outcome, _)| outcome).collect();
        assert_eq!(outcomes, [Outcome::Done, EIO, EIO, Outcome::Done]);
    }

    /// Seven reads. A read that is both short and failed counts as failed (number 6). The device is
    /// gone after number 6, and number 5 is 7 ms later than number 1.
    #[test]
    fn nth_requests_fail_or_are_short_or_late_until_the_device_is_gone() {
        let text = "faulty,fail_every=3,short_every=2,slow_every=5,slow_by=7ms,gone_after=6";
        let ended = outcomes(&mut faulty(text, 0), &[0; 7]);
        let short = Outcome::Short { bytes: 4 * 512 };
        let gone = Outcome::Failed(DeviceError::Gone);
        let outcomes: Vec<Outcome> = ended.iter().map(|(outcome, _)| *outcome).collect();
        assert_eq!(outcomes, [Outcome::Done, short, EIO, short, Outcome::Done, EIO, gone]);
        let ((_, first_time), (_, fifth_time)) = (ended[0], ended[4]);
        assert_eq!(fifth_time - first_time, Time::from_ms(7));
    }

    /// A flush is no request: it is not counted, and no fault of requests affects it. A device that
    /// is gone answers nothing with success.
    #[test]
    fn flush_fails_only_if_the_device_is_gone() {
        let mut device = faulty("faulty,fail_every=1,short_every=1,gone_after=1", 0);
        let flush = |device: &mut Faulty| {
            device.flush(Time::from_ms(100), RequestId(1));
            let at = device.next_event().unwrap();
            device.poll(at.max(Time::from_ms(100))).map(|completion| completion.outcome)
        };
        assert_eq!([flush(&mut device), flush(&mut device)], [Some(Outcome::Done); 2]);
        assert_eq!(outcomes(&mut device, &[0])[0].0, EIO);
        assert_eq!(flush(&mut device), Some(Outcome::Failed(DeviceError::Gone)));
    }

    /// Twenty reads. Each one submitted at 1 ms or later takes 7 ms longer than on the same drive
    /// without faults.
    #[test]
    fn a_device_can_become_slow_at_a_time() {
        let text = "faulty,slow_every=1,slow_by=7ms,slow_from=1ms";
        let [normal, slow] = [faulty("faulty", 0), faulty(text, 0)]
            .map(|mut device| outcomes(&mut device, &[0; 20]));
        let mut submit_time = Time::ZERO;
        for ((_, normal_time), (_, response_time)) in normal.iter().zip(&slow) {
            let delay = if submit_time < Time::from_ms(1) { Time::ZERO } else { Time::from_ms(7) };
            assert_eq!(*response_time, *normal_time + delay);
            submit_time += *response_time;
        }
        assert!(
            submit_time > Time::from_ms(21),
            "some requests were late, and the first ones were not"
        );
    }

    /// 500 of 5,000 are expected, with a standard deviation of 21.
    #[test]
    fn random_failures_follow_the_seed_and_the_rate() {
        let failures = |seed| -> Vec<bool> {
            let ended = outcomes(&mut faulty("faulty,fail_one_in=10", seed), &[0; 5_000]);
            ended.into_iter().map(|(outcome, _)| outcome == EIO).collect()
        };
        assert_eq!(failures(1), failures(1));
        assert_ne!(failures(1), failures(2));
        let failed = failures(1).into_iter().filter(|&is_failed| is_failed).count();
        assert!((430..570).contains(&failed), "{failed} of 5,000 at one in ten");
    }
}
