//! A device that fails as told: what stands above it can be shown to cope.
//!
//! It wraps any device. Requests take the time that they would have taken;
//! what is changed is how they end, or when: an error wherever a bad sector is
//! touched, an error or a short transfer for every so many-th request, an
//! error for one in so many by chance from a seed, a delay for every so
//! many-th, and no device at all after so many requests.

use readpath_core::law::{Spec, SpecError};
use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::agenda::Agenda;
use super::knob::{Knob, Quantity, Settings};
use super::random::Draw;
use super::{BoxedDevice, Device};

/// One way to fail, and for which requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which requests it strikes.
    pub strikes: Strikes,
    /// What becomes of them.
    pub effect: Effect,
    /// It strikes none that were submitted before.
    pub since: Time,
}

/// Which requests a fault strikes; requests are counted from 1 in order of submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strikes {
    /// Those that touch these sectors.
    Sectors(std::ops::Range<u64>),
    /// Every n-th.
    Every(u64),
    /// One in n, by chance.
    OneIn(u64),
    /// All after the n-th.
    After(u64),
}

/// What becomes of a request that a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It ends with this error.
    Fail(DeviceError),
    /// Only the first half of its sectors is moved, rounded down.
    Halve,
    /// It ends so much later.
    Delay(Time),
}

/// A device with faults.
pub struct Faulty {
    inner: BoxedDevice,
    faults: Vec<Fault>,
    draw: Draw,
    submitted: u64,
    /// What will become of the requests in flight that were struck.
    struck: Vec<(RequestId, u32, Vec<Effect>)>,
    delayed: Agenda<Completion>,
}

impl Faulty {
    /// Puts `faults` on `inner`; chance follows from `seed`.
    pub fn new(inner: BoxedDevice, faults: Vec<Fault>, seed: u64) -> Faulty {
        Faulty {
            inner,
            faults,
            draw: Draw::new(seed),
            submitted: 0,
            struck: Vec::new(),
            delayed: Agenda::new(),
        }
    }

    /// The faults that `spec` names with the keys of [`KNOBS`].
    ///
    /// # Errors
    /// An unknown parameter, or a value that can't be used.
    pub fn faults(spec: &Spec) -> Result<Vec<Fault>, SpecError> {
        let settings = Settings::read(spec, &KNOBS)?;
        let count = |key| Some(settings.of(key)).filter(|&count| count > 0);
        let mut faults = Vec::new();
        let mut add = |strikes: Option<Strikes>, effect| {
            let is_slow = matches!(effect, Effect::Delay(_));
            let since = if is_slow { Time(settings.of("slow_from")) } else { Time::ZERO };
            faults.extend(strikes.map(|strikes| Fault { strikes, effect, since }));
        };
        let eio = Effect::Fail(DeviceError::Medium);
        let bad_start = settings.of("bad_from") / SECTOR_BYTES;
        let bad_end = (settings.of("bad_from") + settings.of("bad_bytes")).div_ceil(SECTOR_BYTES);
        let is_bad = settings.of("bad_bytes") > 0;
        add(is_bad.then_some(Strikes::Sectors(bad_start..bad_end)), eio);
        add(count("fail_every").map(Strikes::Every), eio);
        add(count("fail_one_in").map(Strikes::OneIn), eio);
        add(count("short_every").map(Strikes::Every), Effect::Halve);
        add(count("slow_every").map(Strikes::Every), Effect::Delay(Time(settings.of("slow_by"))));
        add(count("gone_after").map(Strikes::After), Effect::Fail(DeviceError::Gone));
        Ok(faults)
    }

    fn end(&mut self, mut completion: Completion) -> Option<Completion> {
        let Some(index) = self.struck.iter().position(|(id, ..)| *id == completion.id) else {
            return Some(completion);
        };
        let (_, sectors, effects) = self.struck.swap_remove(index);
        let mut delay = Time::ZERO;
        for effect in effects {
            match effect {
                Effect::Delay(by) => delay += by,
                Effect::Fail(error) => completion.outcome = Outcome::Failed(error),
                Effect::Halve if completion.outcome == Outcome::Done => {
                    let bytes = u64::from(sectors / 2) * SECTOR_BYTES;
                    completion.outcome = Outcome::Short { bytes };
                }
                Effect::Halve => {}
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
    fn caps(&self) -> DeviceCaps {
        self.inner.caps()
    }

    fn submit(&mut self, now: Time, request: DeviceRequest) {
        self.submitted += 1;
        let (number, draw) = (self.submitted, &mut self.draw);
        let effects: Vec<Effect> = self
            .faults
            .iter()
            .filter(|fault| now >= fault.since)
            .filter(|fault| match &fault.strikes {
                Strikes::Sectors(bad) => request.start < bad.end && bad.start < request.end(),
                Strikes::Every(n) => number.is_multiple_of(*n),
                Strikes::OneIn(n) => draw.below(*n) == 0,
                Strikes::After(n) => number > *n,
            })
            .map(|fault| fault.effect)
            .collect();
        if !effects.is_empty() {
            self.struck.push((request.id, request.sectors, effects));
        }
        self.inner.submit(now, request);
    }

    /// Faults strike requests; a flush passes.
    fn flush(&mut self, now: Time, id: RequestId) {
        self.inner.flush(now, id);
    }

    fn next_event(&self) -> Option<Time> {
        [self.inner.next_event(), self.delayed.next_at()].into_iter().flatten().min()
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        if let Some((_, completion)) = self.delayed.take_due(now) {
            return Some(completion);
        }
        while let Some(completion) = self.inner.poll(now) {
            if let Some(completion) = self.end(completion) {
                return Some(completion);
            }
        }
        None
    }
}

const fn knob(key: &'static str, what: &'static str, quantity: Quantity, default: u64) -> Knob {
    let source = "chosen: off unless given, a fault is what a test asks for";
    Knob { key, what, quantity, default, least: 0, most: 1 << 50, source }
}

/// What `faulty` takes.
pub const KNOBS: [Knob; 9] = [
    knob("bad_from", "where the bad bytes start", Quantity::Bytes, 0),
    knob(
        "bad_bytes",
        "how many are bad: every request that touches them fails",
        Quantity::Bytes,
        0,
    ),
    knob("fail_every", "every n-th request fails; 0: none", Quantity::Count, 0),
    knob("fail_one_in", "one request in n fails, by chance; 0: none", Quantity::Count, 0),
    knob("short_every", "every n-th request moves half; 0: none", Quantity::Count, 0),
    knob("slow_every", "every n-th request is late; 0: none", Quantity::Count, 0),
    knob("slow_by", "how late", Quantity::Time, 100_000_000),
    knob("slow_from", "when they begin to be late", Quantity::Time, 0),
    knob("gone_after", "the device is gone after n requests; 0: never", Quantity::Count, 0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use readpath_core::request::Op;

    use crate::device::ssd::{Ssd, sata_2012};

    fn faulty(text: &str, seed: u64) -> Faulty {
        let drive = Ssd::from_spec(&Spec::plain("ssd"), &sata_2012()).unwrap();
        let faults = Faulty::faults(&Spec::parse(text).unwrap()).unwrap();
        Faulty::new(Box::new(drive), faults, seed)
    }

    /// Reads eight sectors at each place, one after the other: how each ended, and how long it took.
    fn outcomes(device: &mut Faulty, places: &[u64]) -> Vec<(Outcome, Time)> {
        let mut now = Time::ZERO;
        let mut outcomes = Vec::new();
        for &start in places {
            let request = DeviceRequest { id: RequestId(9), op: Op::Read, start, sectors: 8 };
            device.submit(now, request);
            let submitted = now;
            let completion = loop {
                now = device.next_event().unwrap();
                if let Some(completion) = device.poll(now) {
                    break completion;
                }
            };
            outcomes.push((completion.outcome, completion.at - submitted));
        }
        outcomes
    }

    const EIO: Outcome = Outcome::Failed(DeviceError::Medium);

    #[test]
    fn bad_sectors_fail_whoever_touches_them() {
        let mut device = faulty("faulty,bad_from=8k,bad_bytes=512", 0);
        let ended: Vec<Outcome> =
            outcomes(&mut device, &[8, 9, 16, 17]).into_iter().map(|end| end.0).collect();
        assert_eq!(ended, [Outcome::Done, EIO, EIO, Outcome::Done]);
    }

    #[test]
    fn every_nth_fails_is_short_or_late_and_at_last_the_device_is_gone() {
        let text = "faulty,fail_every=3,short_every=2,slow_every=5,slow_by=7ms,gone_after=6";
        let ended = outcomes(&mut faulty(text, 0), &[0; 7]);
        let short = Outcome::Short { bytes: 4 * 512 };
        let gone = Outcome::Failed(DeviceError::Gone);
        let kinds: Vec<Outcome> = ended.iter().map(|end| end.0).collect();
        assert_eq!(kinds, [Outcome::Done, short, EIO, short, Outcome::Done, EIO, gone]);
        assert_eq!(ended[4].1 - ended[0].1, Time::from_ms(7));
    }

    #[test]
    fn a_device_can_become_slow_at_a_time() {
        let text = "faulty,slow_every=1,slow_by=7ms,slow_from=1ms";
        let [before, after] = [faulty("faulty", 0), faulty(text, 0)]
            .map(|mut device| outcomes(&mut device, &[0; 20]));
        let mut begun = Time::ZERO;
        for (quick, other) in before.iter().zip(&after) {
            let late = if begun < Time::from_ms(1) { Time::ZERO } else { Time::from_ms(7) };
            assert_eq!(other.1, quick.1 + late);
            begun += other.1;
        }
        assert!(begun > Time::from_ms(21), "some were late, and the first were not");
    }

    #[test]
    fn chance_follows_the_seed_and_the_rate() {
        let struck = |seed| -> Vec<bool> {
            let ended = outcomes(&mut faulty("faulty,fail_one_in=10", seed), &[0; 5_000]);
            ended.into_iter().map(|end| end.0 == EIO).collect()
        };
        assert_eq!(struck(1), struck(1));
        assert_ne!(struck(1), struck(2));
        let failed = struck(1).into_iter().filter(|&is_struck| is_struck).count();
        assert!((430..570).contains(&failed), "{failed} of 5,000 at one in ten");
    }
}
