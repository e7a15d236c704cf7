//! Whether advice pays, by the use of the pages that it brought in.
//!
//! First the program is only watched, until it has waited ten milliseconds for files that are not in
//! memory: a program that waits for less needs no help.
//!
//! Then pages are brought in on *credit*. It begins at [`START_PAGES`]; a page that is brought in
//! takes one, and a page that is used gives two, up to [`CREDIT_PAGES_MAX`]. The pages brought in are
//! never more than the start and twice the pages used. A file that is being used up in large
//! pieces has [`SWEEP_PAGES`] more: its pieces come in any order, so that the first of the rest are
//! used late. The rest of a large read that has begun is asked for already, and needs no credit.
//!
//! Advice did not pay in any of these cases:
//!
//! - pages were refused for want of credit, and of the pages that the program came to since then, as
//!   many as stand unused, less than a quarter had been brought in;
//! - more pages than the start were lost or stood too long, and more than were used;
//! - the program waited half as long again for each byte as it did without advice.
//!
//! Then advice rests: a second at first, and twice as long each time in a row, and begins again with
//! half of the start each time. While it rests the program's waits are measured again as waits
//! without advice. After five rests in a row it stops for good. So a program whose reads cannot be
//! foreseen has twice the start brought in at most, 4 MiB.
//!
//! Waits are compared only where both sides are a tenth of a second at least. The ten milliseconds
//! that are measured first show that a gain is possible, and not its size.

/// Pages that are brought in before any of them was used: 2 MiB.
const START_PAGES: u64 = 512;

/// Credit at most, in pages: 16 MiB. Help that paid for long does not cover much waste later.
const CREDIT_PAGES_MAX: i64 = 4096;

/// Further credit for a file that is being used up, in pages: 32 MiB.
const SWEEP_PAGES: i64 = 8192;

/// Pages of known fate after which the counts begin again: 16 MiB.
const ROUND_PAGES: u64 = 4096;

/// Part of the pages that a program comes to, one in this number, below which it is not helped.
const HELPED_PART: u64 = 4;

/// A rest after the first trial that did not pay, in nanoseconds.
const REST_NS: u64 = 1_000_000_000;

/// Number of trials in a row that did not pay after which it is over.
const VAIN_MAX: u32 = 5;

/// Waits without advice that are measured first, in nanoseconds.
const MEASURED_NS: u64 = 10_000_000;

/// Least waits, in nanoseconds, from which the cost of a byte is known.
const WAITS_NS: u64 = 100_000_000;

/// Reason for pages to be brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// They are the rest of a read that has begun.
    Asked,
    /// The readahead policy expects them; the file may also be one that is being used up.
    Expected { is_used_up: bool },
    /// They are the rest of a file that is being used up.
    Sweep,
}

/// Reason for advice to stop or rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vain {
    /// Less than half of the pages brought in were used.
    Unused,
    /// The program waited longer than without advice.
    WaitsGrew,
}

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

/// Counts since pages were refused for want of credit.
#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    came_pages: u64,
    used_pages: u64,
}

/// Knowledge of how advice pays.
#[derive(Debug)]
pub(super) struct Worth {
    now: Now,
    vain: u32,
    why: Option<Vain>,
    start_pages: u64,
    credit_pages: i64,
    refused: Option<Refused>,
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
    /// Nothing is known; the start is half of the budget at most.
    pub fn new(budget_pages: u64) -> Worth {
        let start_pages = START_PAGES.min(budget_pages / 2).max(1);
        Worth {
            now: Now::Measure,
            vain: 0,
            why: None,
            start_pages,
            credit_pages: start_pages as i64,
            refused: None,
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
            self.credit_pages = (self.start_pages >> self.vain) as i64;
            (self.used_pages, self.lost_pages, self.waits) = (0, 0, Waits::default());
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

    /// Number of pages that may be brought in now.
    pub fn room_pages(&self, why: Why) -> u64 {
        let more = match why {
            Why::Asked => return u64::MAX,
            Why::Expected { is_used_up: false } => 0,
            // Within a piece of such a file the policy goes on when the sweep has to wait.
            Why::Expected { is_used_up: true } => SWEEP_PAGES + self.start_pages as i64,
            Why::Sweep => SWEEP_PAGES,
        };
        u64::try_from(self.credit_pages + more).unwrap_or(0)
    }

    /// Pages were brought in.
    pub fn brought(&mut self, pages: u64, why: Why) {
        if why != Why::Asked {
            self.credit_pages -= pages as i64;
        }
    }

    /// Pages were refused for want of credit.
    pub fn refused(&mut self) {
        self.refused.get_or_insert_default();
    }

    /// The program has come to pages of a file that is helped.
    pub fn came(&mut self, pages: u64) {
        if let Some(refused) = &mut self.refused {
            refused.came_pages += pages;
        }
    }

    /// Pages that were brought in are used.
    pub fn used(&mut self, pages: u64) {
        self.used_pages += pages;
        self.credit_pages = (self.credit_pages + 2 * pages as i64).min(CREDIT_PAGES_MAX);
        if let Some(refused) = &mut self.refused {
            refused.used_pages += pages;
        }
    }

    /// Pages that were brought in are gone.
    pub fn lost(&mut self, pages: u64) {
        self.lost_pages += pages;
    }

    /// Judges, while so many pages stand unused, and so many of them too long. False: it did not pay.
    pub fn judge(&mut self, (standing_pages, stale_pages): (u64, u64), at_ns: u64) -> bool {
        if self.now != Now::Advise {
            return true;
        }
        let Some(why) = self.vain_now(standing_pages, stale_pages) else {
            if self.used_pages + self.lost_pages + stale_pages >= ROUND_PAGES {
                self.vain = 0;
                (self.used_pages, self.lost_pages, self.waits) = (0, 0, Waits::default());
            }
            return true;
        };
        let rest_ns = REST_NS << self.vain;
        self.vain += 1;
        self.why = Some(why);
        self.refused = None;
        self.alone = Waits::default();
        self.now = match self.vain {
            VAIN_MAX.. => Now::Stopped,
            _ => Now::RestUntil(at_ns + rest_ns),
        };
        false
    }

    /// Why it does not pay, if it does not.
    fn vain_now(&mut self, standing_pages: u64, stale_pages: u64) -> Option<Vain> {
        let least = (self.start_pages >> self.vain).max(1);
        let gone_pages = self.lost_pages + stale_pages;
        if gone_pages >= least && self.used_pages < gone_pages {
            return Some(Vain::Unused);
        }
        if let Some(Refused { came_pages, used_pages }) = self.refused
            && came_pages >= (standing_pages + self.lost_pages).max(least)
        {
            self.refused = None;
            if used_pages * HELPED_PART < came_pages {
                return Some(Vain::Unused);
            }
        }
        self.waits.is_worse_than(&self.alone).then_some(Vain::WaitsGrew)
    }

    /// The program's waits without advice, and with it.
    pub fn told(&self) -> (Waits, Waits) {
        (self.without, self.with)
    }

    /// Why it rested or stopped last.
    pub fn why(&self) -> Option<Vain> {
        self.why
    }

    /// Whether pages are refused for want of credit.
    pub fn is_refusing(&self) -> bool {
        self.refused.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn advising() -> Worth {
        let mut worth = Worth::new(1 << 20);
        worth.read(MEASURED_NS, 1 << 20);
        assert_eq!(worth.now(0), Now::Advise);
        worth
    }

    const EXPECTED: Why = Why::Expected { is_used_up: false };

    #[test]
    fn what_is_used_goes_on() {
        let mut worth = advising();
        for _ in 0..100 {
            worth.used(1000);
            worth.lost(900);
            assert!(worth.judge((0, 0), 5));
        }
        assert_eq!(worth.now(6), Now::Advise);
    }

    /// Trials of 512, 256, 128, 64 and 32 pages, all lost: rests of 1, 2, 4 and 8 seconds between.
    #[test]
    fn what_is_not_used_rests_ever_longer_and_ends() {
        let mut worth = advising();
        let mut at_ns = 0;
        for (rest, pages) in [(1, 512), (2, 256), (4, 128), (8, 64)] {
            assert_eq!(worth.room_pages(EXPECTED), pages);
            worth.lost(pages - 100.min(pages));
            assert!(worth.judge((0, 99.min(pages - 1)), at_ns));
            assert!(!worth.judge((0, 100.min(pages)), at_ns));
            assert_eq!(worth.now(at_ns), Now::RestUntil(at_ns + rest * SECOND));
            at_ns += rest * SECOND;
            assert_eq!(worth.now(at_ns), Now::Advise, "after {rest} s");
        }
        assert!(!worth.judge((0, 32), at_ns));
        assert_eq!((worth.now(1 << 60), worth.why()), (Now::Stopped, Some(Vain::Unused)));
    }

    /// A program that comes to a page in 16 of those that were brought in: no more than twice the
    /// start is brought in, whatever it reads.
    #[test]
    fn reads_that_cannot_be_foreseen_have_few_pages_brought_in() {
        let mut worth = advising();
        let (mut brought, mut used) = (0, 0);
        for step in 0..1_000_000_u64 {
            let at_ns = step * 100_000;
            if worth.now(at_ns) == Now::Advise {
                let pages = worth.room_pages(EXPECTED).min(32);
                if pages < 32 {
                    worth.refused();
                }
                worth.brought(pages, EXPECTED);
                brought += pages;
            }
            worth.came(1);
            if used * 16 < brought {
                worth.used(1);
                used += 1;
            }
            worth.judge((brought - used, 0), at_ns);
        }
        assert_eq!(worth.now(u64::MAX), Now::Stopped);
        assert!(brought <= 2 * START_PAGES + 2 * used, "{brought} pages, {used} used");
    }

    /// A stream: each window is used before the next but one is brought in.
    #[test]
    fn a_stream_is_never_refused() {
        let mut worth = advising();
        worth.brought(256, EXPECTED);
        for step in 0..10_000 {
            assert!(worth.room_pages(EXPECTED) >= 256, "step {step}");
            worth.brought(256, EXPECTED);
            worth.came(256);
            worth.used(256);
            assert!(worth.judge((256, 0), step));
        }
        assert_eq!(worth.why(), None);
    }

    /// The sweep of a file waits for use, while the policy goes on within the pieces.
    #[test]
    fn a_file_that_is_used_up_has_more_credit() {
        let mut worth = advising();
        let sweep = worth.room_pages(Why::Sweep);
        assert_eq!(sweep, 8192 + 512);
        worth.brought(sweep, Why::Sweep);
        let within = Why::Expected { is_used_up: true };
        assert_eq!((worth.room_pages(Why::Sweep), worth.room_pages(within)), (0, 512));
        worth.brought(1 << 20, Why::Asked);
        assert_eq!(worth.room_pages(within), 512, "the rest of a read needs none");
        worth.refused();
        for piece in 0..1000 {
            worth.brought(200, within);
            worth.came(256);
            worth.used(200);
            assert!(worth.judge((8192, 0), piece));
        }
        assert!(worth.room_pages(Why::Sweep) > 8192);
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
            assert_eq!(worth.judge((0, 0), 7), pays, "{after_ns} ns");
            assert_eq!(worth.why(), (!pays).then_some(Vain::WaitsGrew));
        }
    }
}
