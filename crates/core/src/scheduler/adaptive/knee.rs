//! How many requests under way are worth having: the knee of throughput.
//!
//! More requests under way bring more until every head, die or slot of the device
//! has one; beyond that each only waits longer, and whoever asks for little waits
//! behind all of them. The knee is the fewest that still bring seven eighths of what the
//! most bring. Throughput decides, not latency: on a disk both rise together, and a
//! controller that holds latency down would end at one. The law in words:
//!
//! - At first nothing is held back, and what comes is measured over two epochs, each of as many
//!   completions as may be under way, and 32 at least.
//! - Then half as many are allowed, and half of that, as long as they bring seven eighths
//!   of what the most brought. When they don't, three quarters of the
//!   last that did are tried, and what did is the knee: less than half again above the true one.
//! - One epoch alone decides nothing that ends the search, for some tens of requests to a few disks
//!   vary by a tenth: what one epoch speaks for, a second must bear out, and their mean counts.
//! - The knee is kept while its rate stays within a quarter of what it was on average. After four
//!   epochs, then eight, then every sixteen, it is put to the proof, for four times as long. Three quarters of it are allowed,
//!   and where they bring enough, they are the knee, and three quarters of them are tried at once.
//!   The next time, and then twice as often as the time before, twice as many are: where they bring an eighth more than the most ever did, the
//!   device (or the load) is another one and the search begins anew, as when the rate doesn't
//!   stay. A knee that didn't bring enough on the average of sixteen epochs becomes a third more, and
//!   if that is too little as well, the search begins anew. Where the most are the knee, what they
//!   bring on average is what the most bring.
//!
//! From `n` under way two epochs are `2n` completions and the next one half of one; as many pass before
//! each while the surplus drains, and as many once more: the knee is found within nine times `n`
//! completions, and within 400 for the 32 that a SATA drive takes.

use crate::unit::Time;

/// Fewest completions in an epoch.
const EPOCH: u32 = 32;

/// Epochs for which a knee that was just found is kept before it is put to the proof.
const PROOF_EPOCHS: u32 = 4;

/// An epoch of a proof is so many times as long: of `n` under way, `n` completions are those that
/// were there when it began, and what these bring is chance's.
const PROOF_ROUNDS: u32 = 4;

/// The most epochs between two proofs, and the fewest whose mean says that a knee is none.
const KEPT_EPOCHS: u32 = 16;

/// The most proofs with more between two with fewer, which cost throughput: with a few under way a
/// proof takes a fifth of the time to the next one and brings half.
const PROOFS_MAX: u32 = 4;

/// What the search is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is held. Entered at first, and when a knee is not believed any more.
    Open,
    /// Half of what was good is tried. Entered when that brought enough.
    Halving,
    /// Three quarters of it are. Entered when half brought too little.
    Refining,
    /// Found. Entered when there is nothing left to try.
    Kept(Usual),
    /// Twice as many are allowed. Entered now and then.
    Doubling(Usual),
    /// Three quarters are. Entered now and then.
    Lessening(Usual),
}

/// What a knee brings: the sum of so many epochs' rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usual {
    kib_per_s: u64,
    epochs: u32,
}

impl Usual {
    /// With one epoch more; what was long ago counts less.
    fn with(self, kib_per_s: u64) -> Usual {
        let part = if self.epochs == 2 * KEPT_EPOCHS { 2 } else { 1 };
        Usual {
            kib_per_s: self.kib_per_s / part + kib_per_s,
            epochs: self.epochs / part as u32 + 1,
        }
    }

    fn mean(self) -> u64 {
        self.kib_per_s / u64::from(self.epochs.max(1))
    }
}

/// The search for the knee, for requests of about one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knee {
    stage: Stage,
    /// The most that may be under way; `None`: any number.
    depth: Option<u32>,
    /// The fewest that were found to bring enough.
    good: u32,
    /// What the most brought, and how many these were.
    most_kib_per_s: u64,
    most: u32,
    /// The rate of the epoch before, where it waits to be borne out by this one.
    waits: Option<u64>,
    /// Epochs since it was found or last put to the proof, and for how many it is kept.
    kept_epochs: u32,
    proof_after: u32,
    /// So many proofs with more come before the next one with fewer, and did before the last.
    proofs_left: u32,
    proofs: u32,
    /// Whether it has just become a third more.
    is_raised: bool,
    began: Option<Time>,
    /// Completions since the surplus was gone, before the epoch begins.
    passed: u32,
    /// When the newest request was done.
    newest: Time,
    completions: u32,
    bytes: u64,
    /// Sum over the completions of how many were under way.
    under_way: u64,
}

/// The knee, found: how many, and what they and the most bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub depth: u32,
    pub kib_per_s: u64,
    pub most_kib_per_s: u64,
}

impl Default for Knee {
    fn default() -> Knee {
        Knee {
            stage: Stage::Open,
            depth: None,
            good: 0,
            most_kib_per_s: 0,
            most: 0,
            waits: None,
            kept_epochs: 0,
            proof_after: PROOF_EPOCHS,
            proofs_left: 0,
            proofs: 0,
            is_raised: false,
            began: None,
            passed: 0,
            newest: Time::ZERO,
            completions: 0,
            bytes: 0,
            under_way: 0,
        }
    }
}

impl Knee {
    /// How many may be under way; `None`: any number.
    pub(super) fn depth(&self) -> Option<u32> {
        self.depth
    }

    /// The device is done with a request; so many were under way, this one included.
    pub(super) fn completed(&mut self, now: Time, bytes: u64, under_way: u32) -> Option<Found> {
        let Some(began) = self.began else {
            // What was sent before the depth changed must be there first, and so must those that
            // waited beside it: they come sooner than others will, as do the first of all.
            self.passed += u32::from(self.depth.is_none_or(|depth| under_way <= depth));
            if self.passed > self.depth.unwrap_or(under_way) {
                (self.began, self.newest, self.passed) = (Some(now), now, 0);
            }
            return None;
        };
        let rounds = match self.stage {
            Stage::Doubling(_) | Stage::Lessening(_) => PROOF_ROUNDS,
            _ => 1,
        };
        let is_whole = self.completions >= rounds * EPOCH.max(self.depth.unwrap_or(under_way));
        // Many may end at one instant: an epoch has all of them, or none.
        let found = if is_whole && now > self.newest { self.epoch_ended(began) } else { None };
        if now > began {
            self.completions += 1;
            self.bytes += bytes;
            self.under_way += u64::from(under_way);
        }
        self.newest = now;
        found
    }

    fn epoch_ended(&mut self, began: Time) -> Option<Found> {
        let mean = (self.under_way / u64::from(self.completions)).max(1) as u32;
        let span_ns = self.newest.since(began).ns().max(1);
        let kib_per_s = self.bytes * 1_000_000 / 1024 * 1000 / span_ns;
        (self.began, self.completions, self.bytes, self.under_way) = (Some(self.newest), 0, 0, 0);
        self.judge(mean, kib_per_s)
    }

    fn judge(&mut self, mean: u32, kib_per_s: u64) -> Option<Found> {
        let depth = self.depth.unwrap_or(mean);
        // Programs that ask for less than they may tell nothing.
        if 4 * mean < 3 * depth {
            self.waits = None;
            if let Stage::Doubling(usual) | Stage::Lessening(usual) = self.stage {
                self.go_on(usual);
            }
            return None;
        }
        let before = self.waits.take();
        let rate = before.map_or(kib_per_s, |before| (before + kib_per_s) / 2);
        let is_enough = 8 * rate >= 7 * self.most_kib_per_s;
        // Whether the epoch speaks for what would be the end of this stage.
        let is_decisive = match self.stage {
            Stage::Open => true,
            Stage::Halving | Stage::Refining => !is_enough,
            Stage::Kept(usual) => usual.epochs > 0 && !is_within_a_quarter(rate, usual.mean()),
            Stage::Doubling(_) => 8 * rate > 9 * self.most_kib_per_s,
            Stage::Lessening(_) => is_enough,
        };
        if is_decisive && before.is_none() {
            self.waits = Some(kib_per_s);
            return None;
        }
        match self.stage {
            Stage::Open => {
                (self.most_kib_per_s, self.most) = (rate, mean);
                self.good = mean;
                self.halve(rate)
            }
            Stage::Halving if is_enough => {
                self.good = depth;
                self.halve(rate)
            }
            Stage::Halving => {
                self.stage = Stage::Refining;
                self.allow(3 * self.good / 4);
                None
            }
            Stage::Refining => {
                if is_enough {
                    self.good = depth;
                }
                self.keep(rate)
            }
            Stage::Lessening(_) if is_decisive && depth > 1 => {
                self.good = depth;
                self.proofs = 0;
                let usual = Usual { kib_per_s: rate, epochs: 1 };
                self.stage = Stage::Lessening(usual);
                self.allow(3 * self.good / 4);
                Some(Found { depth, kib_per_s: rate, most_kib_per_s: self.most_kib_per_s })
            }
            Stage::Kept(_) | Stage::Doubling(_) if is_decisive => {
                *self = Knee::default();
                None
            }
            Stage::Kept(usual) if self.kept_epochs < self.proof_after => {
                self.kept_epochs += 1;
                self.stage = Stage::Kept(usual.with(kib_per_s));
                None
            }
            Stage::Kept(usual)
                if usual.epochs >= KEPT_EPOCHS
                    && self.good < self.most
                    && 8 * usual.mean() < 7 * self.most_kib_per_s =>
            {
                if self.is_raised {
                    *self = Knee::default();
                    return None;
                }
                self.is_raised = true;
                self.good = (4 * self.good).div_ceil(3);
                self.keep(usual.mean())
            }
            Stage::Kept(usual) => {
                if self.good >= self.most {
                    self.most_kib_per_s = usual.mean();
                }
                self.is_raised = false;
                self.proof_after = (2 * self.proof_after).min(KEPT_EPOCHS);
                if self.proofs_left == 0 && self.good > 1 {
                    self.proofs = (2 * self.proofs).clamp(1, PROOFS_MAX);
                    self.proofs_left = self.proofs;
                    self.stage = Stage::Lessening(usual);
                    self.allow(3 * self.good / 4);
                } else {
                    self.proofs_left = self.proofs_left.saturating_sub(1);
                    self.stage = Stage::Doubling(usual);
                    self.allow(2 * self.good);
                }
                None
            }
            Stage::Doubling(usual) | Stage::Lessening(usual) => {
                self.go_on(usual);
                None
            }
        }
    }

    /// The knee is kept, until the next proof.
    fn go_on(&mut self, usual: Usual) {
        self.stage = Stage::Kept(usual);
        self.kept_epochs = 0;
        self.allow(self.good);
    }

    fn halve(&mut self, kib_per_s: u64) -> Option<Found> {
        if self.good == 1 {
            return self.keep(kib_per_s);
        }
        self.stage = Stage::Halving;
        self.allow(self.good / 2);
        None
    }

    fn keep(&mut self, kib_per_s: u64) -> Option<Found> {
        self.go_on(Usual::default());
        Some(Found { depth: self.good, kib_per_s, most_kib_per_s: self.most_kib_per_s })
    }

    fn allow(&mut self, depth: u32) {
        self.depth = Some(depth.max(1));
        (self.began, self.passed) = (None, 0);
    }
}

fn is_within_a_quarter(rate: u64, of: u64) -> bool {
    4 * rate >= 3 * of && 4 * rate <= 5 * of
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;
    use alloc::vec;
    use alloc::vec::Vec;

    /// A device of servers that take so long for a request each; where a request goes is drawn, or
    /// it goes to the one that is free first. A program keeps `wanted` under way.
    struct Bench {
        knee: Knee,
        now: u64,
        free_at: Vec<u64>,
        under_way: Vec<u64>,
        seed: u64,
    }

    impl Bench {
        fn new(servers: usize) -> Bench {
            let (knee, free_at) = (Knee::default(), vec![0; servers]);
            Bench { knee, now: 0, free_at, under_way: Vec::new(), seed: 1 }
        }

        fn run_for_two_seconds(&mut self, wanted: u32, service_us: u64, is_striped: bool) {
            let end = self.now + 2_000_000;
            while self.now < end {
                self.run(1, wanted, service_us, is_striped);
            }
        }

        fn run(&mut self, completions: u32, wanted: u32, service_us: u64, is_striped: bool) {
            for _ in 0..completions {
                let depth = self.knee.depth().unwrap_or(u32::MAX).min(wanted);
                while self.under_way.len() < depth as usize {
                    let first = (0..self.free_at.len()).min_by_key(|&at| self.free_at[at]).unwrap();
                    let drawn = splitmix::next(&mut self.seed) as usize % self.free_at.len();
                    let server = if is_striped { drawn } else { first };
                    self.free_at[server] = self.free_at[server].max(self.now) + service_us;
                    self.under_way.push(self.free_at[server]);
                }
                self.under_way.sort_unstable();
                self.now = self.under_way[0];
                let count = self.under_way.len() as u32;
                self.knee.completed(Time::from_us(self.now), 4096, count);
                self.under_way.remove(0);
            }
        }

        fn settled(&self) -> u32 {
            assert!(
                matches!(
                    self.knee.stage,
                    Stage::Kept(_) | Stage::Doubling(_) | Stage::Lessening(_)
                ),
                "{:?}",
                self.knee
            );
            self.knee.good
        }
    }

    /// So many at a time, the rest waits: an NVMe drive's channels, an NFS server's threads. By hand: the
    /// fewest that bring seven eighths of `n` is 7/8 · n.
    #[test]
    fn of_servers_that_take_whoever_comes_the_knee_is_their_number() {
        for (servers, wanted) in [(1, 32), (2, 32), (5, 32), (8, 64), (12, 64), (40, 128)] {
            let mut bench = Bench::new(servers);
            bench.run_for_two_seconds(wanted, 1_000, false);
            let (settled, servers) = (bench.settled(), servers as u32);
            assert!(8 * settled >= 7 * servers, "{servers}: {settled}");
            assert!(2 * settled <= 3 * servers, "{servers}: {settled}");
        }
    }

    /// Constant delay, whatever comes: all of them are worth having.
    #[test]
    fn a_constant_delay_has_no_knee_below_what_is_asked() {
        let mut bench = Bench::new(1_000);
        bench.run_for_two_seconds(64, 20_000, false);
        assert_eq!(bench.settled(), 64);
    }

    /// RAID-0 of `n` spindles, each request on one of them at random. Of `n` in a closed
    /// network of equal exponential servers `d` requests bring `d / (d + n − 1)` of all (product
    /// form); constant service loses less. By hand for 4 spindles: from 64 under way, which bring
    /// 64/67, seven eighths are 0.836, and `d / (d + 3)` is that at 15.3. For 12, from
    /// 128, 128/139, 0.806, at 45.6.
    #[test]
    fn of_spindles_the_knee_is_where_few_of_them_idle() {
        for (spindles, wanted, by_hand) in [(4, 64, 15), (12, 128, 45)] {
            let mut bench = Bench::new(spindles);
            bench.run_for_two_seconds(wanted, 8_000, true);
            let settled = bench.settled();
            assert!(settled >= spindles as u32, "{spindles}: {settled}");
            assert!(2 * settled <= 3 * by_hand, "{spindles}: {settled}");
        }
    }

    #[test]
    fn a_changed_device_has_another_knee_within_two_seconds() {
        let mut bench = Bench::new(8);
        bench.run_for_two_seconds(64, 1_000, false);
        assert_eq!(bench.settled(), 8);
        // Two thirds of the servers are gone, or so slow as if they were.
        let now = bench.now;
        bench.free_at = vec![now; 3];
        bench.run_for_two_seconds(64, 1_000, false);
        assert!((3..=4).contains(&bench.settled()), "{}", bench.settled());
        // Members are added: twice as many tell, once in 32 epochs, and then the search goes on.
        let now = bench.now;
        bench.free_at = vec![now; 24];
        bench.run_for_two_seconds(64, 1_000, false);
        assert!((21..=36).contains(&bench.settled()), "{}", bench.settled());
    }

    /// Four spindles whose requests go where they are drawn: the rates of epochs vary by a tenth. Half again the
    /// knee of 15, by hand as above, is exceeded for some seconds at a time and not for half a minute.
    #[test]
    fn chance_does_not_keep_the_depth_above_the_knee_for_long() {
        for seed in 1..9 {
            let mut bench = Bench::new(4);
            bench.seed = seed;
            let (mut since_us, mut longest_us) = (0, 0);
            while bench.now < 60_000_000 {
                bench.run(1, 128, 8_000, true);
                match bench.knee.depth() {
                    Some(depth) if 2 * depth <= 3 * 15 => since_us = bench.now,
                    _ => longest_us = longest_us.max(bench.now - since_us),
                }
            }
            assert!(longest_us < 4_000_000, "{seed}: {longest_us}");
        }
    }

    #[test]
    fn programs_that_ask_for_less_than_they_may_change_nothing() {
        let mut bench = Bench::new(8);
        bench.run_for_two_seconds(64, 1_000, false);
        assert_eq!(bench.settled(), 8);
        bench.run(1_000, 2, 1_000, false);
        assert_eq!(bench.settled(), 8);
    }
}
