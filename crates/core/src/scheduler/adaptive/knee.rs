//! How many requests under way are worth having: the knee of throughput.
//!
//! More requests under way bring more until every head, die or slot of the device
//! has one; beyond that each only waits longer, and whoever asks for little waits
//! behind all of them. The knee is the fewest that still bring seven eighths of what the
//! most bring. Throughput decides, not latency: on a disk both rise together, and a
//! controller that holds latency down would end at one. The law in words:
//!
//! - At first nothing is held back, and what comes is measured over an epoch: as many
//!   completions as may be under way, and 32 at least.
//! - Then half as many are allowed, and half of that, as long as they bring seven eighths
//!   of what the most brought. When they don't, three quarters of the
//!   last that did are tried, and what did is the knee: less than half again above the true one.
//! - The knee is kept while its rate stays within a quarter of what it was, and while
//!   twice as many, allowed for one epoch in sixteen, don't bring an eighth more. When
//!   it isn't, the device (or the load) is another one, and the search begins anew.
//!
//! From `n` under way an epoch is `n` completions, the next one half, and as many
//! pass while the surplus drains: the knee is found within five times `n` completions, and within 300 for the 32
//! that a SATA drive takes.

use crate::unit::Time;

/// Fewest completions in an epoch.
const EPOCH: u32 = 32;

/// Epochs for which a knee is kept before more are allowed for one.
const KEPT_EPOCHS: u32 = 16;

/// What the search is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is held. Entered at first, and when a knee is not believed any more.
    Open,
    /// Half of what was good is tried. Entered when that brought enough.
    Halving,
    /// Three quarters of it are. Entered when half brought too little.
    Refining,
    /// Found, with what it brought at first. Entered when there is nothing left to try.
    Kept { kib_per_s: u64, epochs: u32 },
    /// Twice as many are allowed, for an epoch. Entered now and then.
    Probing { kib_per_s: u64 },
}

/// The search for the knee, for requests of about one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knee {
    stage: Stage,
    /// The most that may be under way; `None`: any number.
    depth: Option<u32>,
    /// The fewest that were found to bring enough.
    good: u32,
    /// What the most brought.
    most_kib_per_s: u64,
    began: Option<Time>,
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
            began: None,
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
            // What was sent before the depth changed must be there first.
            if self.depth.is_none_or(|depth| under_way <= depth) {
                (self.began, self.newest) = (Some(now), now);
            }
            return None;
        };
        let is_whole = self.completions >= EPOCH.max(self.depth.unwrap_or(under_way));
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
        let is_enough = 8 * kib_per_s >= 7 * self.most_kib_per_s;
        let depth = self.depth.unwrap_or(mean);
        let is_used = 4 * mean >= 3 * depth;
        match self.stage {
            Stage::Probing { kib_per_s: first } => {
                if is_used && 8 * kib_per_s > 9 * first {
                    *self = Knee::default();
                } else {
                    self.stage = Stage::Kept { kib_per_s: first, epochs: 0 };
                    self.allow(self.good);
                }
                None
            }
            // Programs that ask for less than they may tell nothing.
            _ if !is_used => None,
            Stage::Open => {
                self.most_kib_per_s = kib_per_s;
                self.good = mean;
                self.halve(kib_per_s)
            }
            Stage::Halving if is_enough => {
                self.good = depth;
                self.halve(kib_per_s)
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
                self.keep(kib_per_s)
            }
            Stage::Kept { kib_per_s: 0, .. } => {
                self.stage = Stage::Kept { kib_per_s, epochs: 1 };
                None
            }
            Stage::Kept { kib_per_s: first, epochs } => {
                let is_same = 4 * kib_per_s >= 3 * first && 4 * kib_per_s <= 5 * first;
                if !is_same {
                    *self = Knee::default();
                } else if epochs >= KEPT_EPOCHS {
                    self.stage = Stage::Probing { kib_per_s: first };
                    self.allow(2 * self.good);
                } else {
                    self.stage = Stage::Kept { kib_per_s: first, epochs: epochs + 1 };
                }
                None
            }
        }
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
        self.stage = Stage::Kept { kib_per_s: 0, epochs: 0 };
        self.allow(self.good);
        Some(Found { depth: self.good, kib_per_s, most_kib_per_s: self.most_kib_per_s })
    }

    fn allow(&mut self, depth: u32) {
        self.depth = Some(depth.max(1));
        self.began = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::splitmix;
    use super::*;
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

        fn run(&mut self, completions: u32, wanted: u32, service_us: u64, is_striped: bool) {
            for _ in 0..completions {
                let depth = self.knee.depth().unwrap_or(u32::MAX).min(wanted);
                while self.under_way.len() < depth as usize {
                    let first = (0..self.free_at.len()).min_by_key(|&at| self.free_at[at]).unwrap();
                    let drawn = splitmix(&mut self.seed) as usize % self.free_at.len();
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
            assert!(matches!(self.knee.stage, Stage::Kept { .. }), "{:?}", self.knee);
            self.knee.depth().unwrap()
        }
    }

    /// So many at a time, the rest waits: an NVMe drive's channels, an NFS server's threads. By hand: the
    /// fewest that bring seven eighths of `n` is 7/8 · n.
    #[test]
    fn of_servers_that_take_whoever_comes_the_knee_is_their_number() {
        for (servers, wanted) in [(1, 32), (2, 32), (5, 32), (8, 64), (12, 64), (40, 128)] {
            let mut bench = Bench::new(servers);
            bench.run((5 * wanted).max(500), wanted, 1_000, false);
            let (settled, servers) = (bench.settled(), servers as u32);
            assert!(8 * settled >= 7 * servers, "{servers}: {settled}");
            assert!(2 * settled <= 3 * servers, "{servers}: {settled}");
        }
    }

    /// Constant delay, whatever comes: all of them are worth having.
    #[test]
    fn a_constant_delay_has_no_knee_below_what_is_asked() {
        let mut bench = Bench::new(1_000);
        bench.run(500, 64, 20_000, false);
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
            bench.run(1_000, wanted, 8_000, true);
            let settled = bench.settled();
            assert!(settled >= spindles as u32, "{spindles}: {settled}");
            assert!(2 * settled <= 3 * by_hand, "{spindles}: {settled}");
        }
    }

    #[test]
    fn a_changed_device_has_another_knee_within_two_seconds() {
        let mut bench = Bench::new(8);
        bench.run(500, 64, 1_000, false);
        assert_eq!(bench.settled(), 8);
        // Two thirds of the servers are gone, or so slow as if they were.
        let now = bench.now;
        bench.free_at = vec![now; 3];
        bench.run(500, 64, 1_000, false);
        assert!((3..=4).contains(&bench.settled()), "{}", bench.settled());
        // Members are added: twice as many tell, once in 16 epochs, and then the search goes on.
        let now = bench.now;
        bench.free_at = vec![now; 24];
        bench.run(1_000, 64, 1_000, false);
        assert!(bench.now - now < 2_000_000, "more than two seconds");
        assert!((21..=36).contains(&bench.settled()), "{}", bench.settled());
    }

    #[test]
    fn programs_that_ask_for_less_than_they_may_change_nothing() {
        let mut bench = Bench::new(8);
        bench.run(500, 64, 1_000, false);
        assert_eq!(bench.settled(), 8);
        bench.run(1_000, 2, 1_000, false);
        assert_eq!(bench.settled(), 8);
    }
}
