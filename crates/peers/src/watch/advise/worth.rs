//! Whether advice pays, by what became of it.
//!
//! The law in words. First it is only watched, until the program has waited ten milliseconds for files that are not in
//! memory: who waits for less needs no help. What is brought in is judged in rounds of 16 MiB, or of a quarter of the budget where that is less,
//! of pages whose fate is known: used, gone unused, or standing for so long that they count as unused. A round of which less
//! than half was used did not pay, and neither did one in which the program waited half as long again for each of the
//! bytes that it read as it did without advice. After a round that did not pay advice rests: a second at first, and twice
//! as long each time in a row. While it rests the program's waits are measured anew as what they are without
//! advice. After five such rounds in a row it stops for good.
//!
//! Waits are compared only where both sides are of a tenth of a second at least: the ten milliseconds that are
//! measured first say that there is something to gain, and not how much.

/// Pages of known fate that are judged together: 16 MiB.
const ROUND_PAGES: u64 = 4096;

/// A rest after the first round that did not pay, in nanoseconds.
const REST_NS: u64 = 1_000_000_000;

/// After so many rounds in a row that did not pay it is over.
const VAIN_MAX: u32 = 5;

/// Waits without advice that are measured first, in nanoseconds.
const MEASURED_NS: u64 = 10_000_000;

/// Waits of less, in nanoseconds, say nothing of what a byte costs.
const WAITS_NS: u64 = 100_000_000;

/// Whether to advise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Now {
    /// Not yet: it is measured what waits there are without.
    Measure,
    /// It pays, or it isn't known yet.
    Advise,
    /// It did not pay; it is tried again at that time.
    RestUntil(u64),
    /// It never paid.
    Stopped,
}

/// How long a program waited for how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Waited for devices, in nanoseconds, of all threads together.
    pub waited_ns: u64,
    /// Bytes that it read meanwhile.
    pub read_bytes: u64,
}

impl Waits {
    fn add(&mut self, waited_ns: u64, read_bytes: u64) {
        self.waited_ns += waited_ns;
        self.read_bytes += read_bytes;
    }

    /// What a MiB cost, in seconds; none where nothing was read.
    pub fn seconds_a_mib(&self) -> Option<f64> {
        let mib = self.read_bytes as f64 / f64::from(1 << 20);
        (self.read_bytes > 0).then(|| self.waited_ns as f64 / 1e9 / mib)
    }

    /// Whether it waited half as long again for a byte as `other` did, as far as both are known.
    fn is_worse_than(&self, other: &Waits) -> bool {
        let are_known = other.waited_ns >= WAITS_NS && self.waited_ns >= WAITS_NS;
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        are_known
            && 2 * product(self.waited_ns, other.read_bytes)
                >= 3 * product(other.waited_ns, self.read_bytes)
    }
}

/// What is known of how advice pays.
#[derive(Debug)]
pub(super) struct Worth {
    now: Now,
    vain: u32,
    round_pages: u64,
    /// Of this round.
    used_pages: u64,
    lost_pages: u64,
    waits: Waits,
    /// The newest spell without advice.
    alone: Waits,
    /// Of the whole run: without, and with advice.
    without: Waits,
    with: Waits,
}

impl Worth {
    /// Nothing is known; rounds are of a quarter of so many pages at most.
    pub fn new(budget_pages: u64) -> Worth {
        Worth {
            now: Now::Measure,
            vain: 0,
            round_pages: ROUND_PAGES.min(budget_pages / 4).max(1),
            used_pages: 0,
            lost_pages: 0,
            waits: Waits::default(),
            alone: Waits::default(),
            without: Waits::default(),
            with: Waits::default(),
        }
    }

    /// What to do at this time.
    pub fn now(&mut self, at_ns: u64) -> Now {
        if matches!(self.now, Now::RestUntil(until_ns) if at_ns >= until_ns) {
            self.now = Now::Advise;
            self.waits = Waits::default();
        }
        self.now
    }

    /// The program has read a file of which something was missing, and waited for it.
    pub fn read(&mut self, waited_ns: u64, read_bytes: u64) {
        if self.now == Now::Advise {
            self.waits.add(waited_ns, read_bytes);
            self.with.add(waited_ns, read_bytes);
            return;
        }
        self.alone.add(waited_ns, read_bytes);
        self.without.add(waited_ns, read_bytes);
        if self.now == Now::Measure && self.alone.waited_ns >= MEASURED_NS {
            self.now = Now::Advise;
        }
    }

    /// Pages that were brought in are used.
    pub fn used(&mut self, pages: u64) {
        self.used_pages += pages;
    }

    /// Pages that were brought in are gone.
    pub fn lost(&mut self, pages: u64) {
        self.lost_pages += pages;
    }

    /// Judges the round, if it is over, while so many pages have stood too long. False: it did not pay.
    pub fn judge(&mut self, stale_pages: u64, at_ns: u64) -> bool {
        let vain_pages = self.lost_pages + stale_pages;
        if self.now != Now::Advise || self.used_pages + vain_pages < self.round_pages {
            return true;
        }
        let is_in_vain = self.used_pages < vain_pages;
        let pays = !is_in_vain && !self.waits.is_worse_than(&self.alone);
        (self.used_pages, self.lost_pages, self.waits) = (0, 0, Waits::default());
        if pays {
            self.vain = 0;
            return true;
        }
        let rest_ns = REST_NS << self.vain;
        self.vain += 1;
        self.alone = Waits::default();
        self.now = match self.vain {
            VAIN_MAX.. => Now::Stopped,
            _ => Now::RestUntil(at_ns + rest_ns),
        };
        false
    }

    /// The program's waits without advice, and with it.
    pub fn told(&self) -> (Waits, Waits) {
        (self.without, self.with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_is_used_goes_on() {
        let mut worth = Worth::new(1 << 20);
        worth.read(MEASURED_NS, 1 << 20);
        for _ in 0..100 {
            worth.used(1000);
            worth.lost(900);
            assert!(worth.judge(0, 5));
        }
        assert_eq!(worth.now(6), Now::Advise);
    }

    /// Rounds of 4,096 pages, all of them lost: rests of 1, 2, 4 and 8 seconds, and the fifth is the last.
    #[test]
    fn what_is_not_used_rests_ever_longer_and_ends() {
        let mut worth = Worth::new(1 << 20);
        worth.read(MEASURED_NS, 1 << 20);
        let mut at_ns = 0;
        for rest in [1, 2, 4, 8] {
            worth.lost(4000);
            assert!(worth.judge(95, at_ns));
            assert!(!worth.judge(96, at_ns));
            assert_eq!(worth.now(at_ns), Now::RestUntil(at_ns + rest * SECOND));
            at_ns += rest * SECOND;
            assert_eq!(worth.now(at_ns), Now::Advise, "after {rest} s");
        }
        assert!(!worth.judge(5000, at_ns));
        assert_eq!(worth.now(1 << 60), Now::Stopped);
    }

    /// All is used, and still each MiB is waited for longer than before: 1 s for 100 MiB.
    #[test]
    fn waits_that_grow_are_not_worth_it() {
        for (after_ns, pays) in [(SECOND, true), (SECOND * 3 / 2, false), (SECOND * 2, false)] {
            let mut worth = Worth::new(1 << 20);
            assert_eq!(worth.now(0), Now::Measure);
            worth.read(SECOND, 100 << 20);
            worth.read(after_ns, 100 << 20);
            worth.used(4096);
            assert_eq!(worth.judge(0, 7), pays, "{after_ns} ns");
        }
    }
}
