//! `mglru`: Linux's multi-generational LRU, for pages that are read by calls.
//!
//! How it works: pages are in *generations*, numbered by age. A page enters the oldest one, which
//! alone is evicted from, in order of arrival. Inside a generation, a page that was used `N` times
//! is in *tier* `log2(N)`, rounded up: one use is tier 0, two are 1, four are 2, more are 3. A use
//! changes the count only and moves no page.
//!
//! A feedback loop decides which tiers are protected. Each tier has a refault rate: refaults of its
//! evicted pages, per page that left it. Tier 0 is the baseline. The first tier with 64 refaults
//! and more than twice the baseline's rate is protected, and so are all above it. A protected page
//! that would be the victim moves to the next generation instead, with its count of uses reset.
//!
//! When the oldest generation is empty, the next one is the oldest. The counts of the feedback loop
//! are then halved. The youngest generation is created when fewer than three would be left.
//! A page of tier 3 that returns soon after its eviction enters as a page of that tier.
//!
//! It suits loads with a hot set that is used several times between evictions. Without refaults it
//! is FIFO. Protected pages stay until the oldest generation is empty, even if their use has ended.
//!
//! If uses are known only from access bits, they are counted when the page is examined.
//!
//! Source: Linux's `Documentation/mm/multigen_lru.rst` and
//! `Documentation/admin-guide/mm/multigen_lru.rst`; the constants are the kernel's. Omitted:
//! anonymous memory, and promotion by scans of page tables. The two youngest of four generations
//! therefore stay empty. The kernel remembers evicted pages without a limit of its own; here as
//! many as memory has. A kernel without `CONFIG_LRU_GEN` cannot be compared.

// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin};
use crate::page::FrameId;

/// Number of tiers (`MAX_NR_TIERS`).
const TIERS: usize = 4;

/// Number of generations at first, which is also their largest number (`MAX_NR_GENS`).
const GENERATIONS_MAX: u32 = 4;

/// Smallest number of generations during eviction: two, and the one that is emptied.
const GENERATIONS_MIN: u32 = 3;

/// Refaults below which a tier is not protected (`MIN_LRU_BATCH`).
const REFAULTS_MIN: u64 = 64;

/// Factor of the baseline's refault rate from which a tier is protected. The pages of a higher tier
/// were used at least twice as often.
const GAIN: u64 = 2;

/// Uses above which the count is not kept: the fifth use is tier 3.
const USES_MAX: u8 = 5;

/// Use count of a page without a use, and of a protected page.
const UNUSED: u8 = 0;

/// Use count of a page with one use.
const USED_ONCE: u8 = 1;

/// Bits of a ghost's word below the generation.
const TIER_BITS: u32 = 2;

/// Tier of a page with this number of uses. A prefetched page without one is in tier 0.
fn tier(uses: u8) -> usize {
    match uses {
        0 | 1 => 0,
        2 => 1,
        3 | 4 => 2,
        _ => 3,
    }
}

/// Counts of a tier: of the present oldest generation, and the halved ones of those before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TierCounts {
    /// Pages that returned after their eviction.
    refaults: u64,
    /// Pages that were evicted or protected.
    leaving: u64,
}

impl TierCounts {
    /// Returns true if the refault rate is not clearly above the baseline's: at most `GAIN` times
    /// `(baseline.refaults + 1) / (baseline.leaving + REFAULTS_MIN)`. The added terms keep rates of
    /// few pages from deciding. The division is a multiplication here.
    fn is_usual(&self, baseline: &TierCounts) -> bool {
        self.refaults < REFAULTS_MIN
            || self.refaults * (baseline.leaving + REFAULTS_MIN)
                <= (baseline.refaults + 1) * self.leaving * GAIN
    }
}

/// The eviction policy `mglru`.
///
/// Invariants:
///
/// 1. A page is in the generation `oldest` or `oldest + 1`. The list of the generation follows from
///    its parity.
/// 2. `oldest + GENERATIONS_MIN - 1 <= youngest < oldest + GENERATIONS_MAX`, except inside
///    [`victim`](EvictionPolicy::victim).
#[derive(Debug)]
pub struct MgLru {
    /// Number of the oldest generation.
    oldest: u32,
    /// Number of the youngest generation.
    youngest: u32,
    /// Counts of the feedback loop, by tier.
    tiers: [TierCounts; TIERS],
    /// Evicted pages. Their word is the oldest generation at the eviction, and the tier.
    ghosts: Ghosts,
}

impl MgLru {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> MgLru {
        MgLru {
            oldest: 0,
            youngest: GENERATIONS_MAX - 1,
            tiers: [TierCounts::default(); TIERS],
            ghosts: Ghosts::new(pages),
        }
    }

    /// List of a generation.
    fn list(generation: u32) -> List {
        match generation % 2 {
            0 => List::PROBATION,
            _ => List::REUSED,
        }
    }

    /// The first protected tier; [`TIERS`] if none is.
    fn first_protected(&self) -> usize {
        let [baseline, others @ ..] = &self.tiers;
        let first = others.iter().position(|tier| !tier.is_usual(baseline));
        first.map_or(TIERS, |index| index + 1)
    }

    /// Makes the next generation the oldest one, and adds a youngest one if too few are left. The
    /// counts of the feedback loop are halved, so that new refaults weigh more.
    fn advance(&mut self) {
        self.oldest += 1;
        self.youngest = self.youngest.max(self.oldest + GENERATIONS_MIN - 1);
        for tier in &mut self.tiers {
            tier.refaults /= 2;
            tier.leaving /= 2;
        }
    }

    /// Adds a page to a generation, with its count of uses.
    fn push(&self, lists: &mut FrameLists, frame: FrameId, generation: u32, uses: u8) {
        lists.push(frame, MgLru::list(generation));
        lists.set_uses(frame, uses);
    }
}

impl EvictionPolicy for MgLru {
    /// Adds a page to the oldest generation. If it was evicted not long ago, its tier gets
    /// a refault. A page of the highest tier keeps its tier, and enters the second oldest of four
    /// generations or the oldest of three.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, origin: PageOrigin) {
        let uses = u8::from(origin == PageOrigin::Demand);
        let Some((_, word)) = self.ghosts.take(page) else {
            return self.push(lists, frame, self.oldest, uses);
        };
        // The word has the oldest generation at the eviction, and the tier in its low bits.
        let (evicted_at, tier) = (word >> TIER_BITS, word as usize % TIERS);
        // The page left too many generations ago: its return says nothing about the tier.
        if self.youngest - evicted_at >= GENERATIONS_MAX {
            return self.push(lists, frame, self.oldest, uses);
        }
        self.tiers[tier].refaults += 1;
        if tier + 1 < TIERS {
            return self.push(lists, frame, self.oldest, uses);
        }
        // With four generations the second oldest, with three the oldest.
        let generation = (self.youngest + 2).saturating_sub(GENERATIONS_MAX).max(self.oldest);
        self.push(lists, frame, generation, USES_MAX);
    }

    /// Counts a use; no effect on a page that is on no list.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        if lists.is_listed(frame) {
            lists.set_uses(frame, lists.uses(frame).saturating_add(1).min(USES_MAX));
        }
    }

    /// Examines the oldest generation in the order of arrival. A page of a protected tier moves to
    /// the next generation; the first other one is the victim. An empty oldest generation is left
    /// for the next one; `None` if both are empty.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        loop {
            let Some(frame) = lists.pop(MgLru::list(self.oldest)) else {
                lists.oldest(MgLru::list(self.oldest + 1))?;
                self.advance();
                continue;
            };
            let uses = lists.uses(frame).saturating_add(access_bits.uses(frame)).min(USES_MAX);
            lists.set_uses(frame, uses);
            // A protected page counts as leaving its tier, too.
            self.tiers[tier(uses)].leaving += 1;
            if tier(uses) < self.first_protected() {
                return Some(frame);
            }
            self.push(lists, frame, self.oldest + 1, UNUSED);
        }
    }

    /// Remembers the page with its tier.
    fn evicted(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        let word = self.oldest << TIER_BITS | tier(lists.uses(frame)) as u32;
        self.ghosts.remember(GhostList::First, page, word);
    }

    /// The page that is examined next; `None` without a page.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        let next = lists.oldest(MgLru::list(self.oldest));
        next.or_else(|| lists.oldest(MgLru::list(self.oldest + 1)))
    }

    /// Returns a victim that did not leave to the oldest generation. Its count starts again with
    /// one use.
    fn restore_victim(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        self.push(lists, frame, self.oldest, USED_ONCE);
    }

    /// Adopts a page of another policy, as used once: a reused one into the second oldest
    /// generation, any other into the oldest.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey, was_reused: bool) {
        self.push(lists, frame, self.oldest + u32::from(was_reused), USED_ONCE);
    }

    /// Sets the number of remembered pages.
    fn resize(&mut self, _lists: &mut FrameLists, _access_bits: &dyn AccessBits, pages: u32) {
        self.ghosts.resize(pages);
    }

    /// Releases all pages, of the oldest generation first. The flag is true for the others.
    fn give_up(&mut self, lists: &mut FrameLists) -> alloc::vec::Vec<(FrameId, bool)> {
        let mut pages = alloc::vec::Vec::new();
        for (generation, is_protected) in [(self.oldest, false), (self.oldest + 1, true)] {
            while let Some(frame) = lists.pop(MgLru::list(generation)) {
                pages.push((frame, is_protected));
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    use super::super::Simulation;
    use super::super::simulation::trial::{TestAccessBits, victims};
    use super::*;
    use crate::splitmix;

    /// The tier is the logarithm of the uses to base 2, rounded up (multigen_lru.rst).
    #[test]
    fn tier_is_the_rounded_logarithm_of_the_uses() {
        assert_eq!([1, 2, 3, 4, 5].map(tier), [0, 1, 2, 2, 3]);
    }

    /// Without 64 refaults no tier is protected: FIFO, however often a page is used.
    #[test]
    fn few_refaults_leave_the_order_of_arrival() {
        let references = [1, 1, 1, 2, 2, 3, 4, 1, 5, 6, 1, 7, 8];
        assert_eq!(victims(MgLru::new(4), 4, references), [1, 2, 3, 4, 5]);
    }

    /// Tier 0: 100 of 936 pages returned; with the added ones 101 and 1,000. Tier 1 with 300 pages:
    /// the limit is 2 · 101 · 300 / 1,000 = 60.6, and so 64 refaults protect it, and 63 do not. Of
    /// 400 pages the limit is 80.8. A protected tier protects those above it.
    #[test]
    fn golden_protection_by_refault_rates() {
        let first_protected = |refaults, leaving| {
            let mut policy = MgLru::new(1);
            policy.tiers[0] = TierCounts { refaults: 100, leaving: 936 };
            policy.tiers[1] = TierCounts { refaults, leaving };
            policy.first_protected()
        };
        assert_eq!([(63, 300), (64, 300)].map(|(r, l)| first_protected(r, l)), [TIERS, 1]);
        assert_eq!([(80, 400), (81, 400)].map(|(r, l)| first_protected(r, l)), [TIERS, 1]);
    }

    /// Memory has 200 pages. In a round, 100 hot pages are read twice each, then 120 pages that
    /// do not return.
    ///
    /// Round 1 misses 220 and evicts the hot pages 0 to 19, of tier 1. In round 2 each hot page is
    /// a refault, and evicts the next hot page in the order of arrival, until these are protected.
    /// Before the 64th refault hot pages 20 to 82 leave. The 64th, page 63, is counted
    /// when it enters, after page 83 has left for it. Tier 1 has 84 leaving pages then, and tier 0
    /// has none: 64 · (0 + 64) > (0 + 1) · 84 · 2. For page 64 the pages 84 to 99 are protected;
    /// these are the last 16 of the first round. Its victim is the first page of the scan. Pages
    /// 64 to 83 are misses, pages 84 to 99 hits. Round 2 has 84 + 120 misses.
    ///
    /// In round 3 all pages of a round are either present or protected when they are examined: only
    /// the 120 others miss, and in all later rounds.
    #[test]
    fn golden_trajectory_of_a_hot_set_next_to_a_scan() {
        let mut cache = Simulation::new(Box::new(MgLru::new(200)), 200);
        let mut next_of_scan = 1_000;
        let misses: Vec<u32> = (0..5)
            .map(|_| {
                let scan = next_of_scan..next_of_scan + 120;
                next_of_scan = scan.end;
                let references = (0..100).flat_map(|page| [page, page]).chain(scan);
                let is_miss = |page: u64| u32::from(!cache.reference(PageKey::from_number(page)));
                references.map(is_miss).sum()
            })
            .collect();
        assert_eq!(misses, [220, 204, 120, 120, 120]);
    }

    /// A protected page moves to the next generation and loses its uses: there it is in tier 0. The
    /// empty generation is followed by the next one, which halves the counts.
    #[test]
    fn protected_page_is_a_victim_of_the_next_generation() {
        let mut policy = MgLru::new(4);
        policy.tiers[1] = TierCounts { refaults: 1_000, leaving: 1_000 };
        let mut lists = FrameLists::new(4);
        let mut bits = TestAccessBits::default();
        for frame in [0, 1].map(FrameId) {
            policy.enter(&mut lists, frame, bits.page(frame), PageOrigin::Demand);
            policy.used(&mut lists, frame, bits.page(frame));
        }
        assert_eq!(policy.victim(&mut lists, &mut bits), Some(FrameId(0)));
        assert_eq!((policy.oldest, policy.youngest), (1, 3));
        assert_eq!(policy.tiers[1], TierCounts { refaults: 500, leaving: 501 });
        assert_eq!(policy.tiers[0].leaving, 1);
    }

    /// Uses from access bits count like reported ones: two bits and the first use are tier 2.
    #[test]
    fn access_bits_count_at_the_examination() {
        let mut policy = MgLru::new(4);
        let mut lists = FrameLists::new(4);
        let mut bits = TestAccessBits { uses: Vec::from([2]), taken: 0 };
        policy.enter(&mut lists, FrameId(0), bits.page(FrameId(0)), PageOrigin::Demand);
        assert_eq!(policy.victim(&mut lists, &mut bits), Some(FrameId(0)));
        assert_eq!(policy.tiers[2].leaving, 1);
    }

    /// Pseudo-random references to 400 pages, a quarter of them to 20 pages. Each page is in one
    /// place: `victims` checks it against a list of the present pages. The invariants of the
    /// generations hold after each reference.
    #[test]
    fn pages_and_generations_keep_their_bounds() {
        let random = |seed: u64, below: u64| (splitmix::mixed(seed) >> 32) % below;
        let page = |nth: u64| match random(2 * nth, 4) {
            0 => random(2 * nth + 1, 20),
            _ => random(2 * nth + 1, 400),
        };
        for pages in [1, 2, 7, 60, 350] {
            let evicted = victims(MgLru::new(pages), pages, (0..6_000).map(page));
            assert!(evicted.len() > 100, "{pages} pages");
        }
        let (mut policy, mut lists) = (MgLru::new(50), FrameLists::new(50));
        let mut bits = TestAccessBits::default();
        for nth in 0..20_000 {
            let frame = FrameId(random(3 * nth, 50) as u32);
            if lists.is_listed(frame) {
                policy.used(&mut lists, frame, bits.page(frame));
            } else {
                policy.enter(&mut lists, frame, bits.page(frame), PageOrigin::Demand);
            }
            if random(3 * nth + 1, 2) == 0
                && let Some(victim) = policy.victim(&mut lists, &mut bits)
            {
                policy.evicted(&mut lists, victim, bits.page(victim));
            }
            let generations = policy.youngest - policy.oldest + 1;
            assert!((GENERATIONS_MIN..=GENERATIONS_MAX).contains(&generations));
            assert_eq!(lists.pages(List::WINDOW), 0);
            assert!(policy.tiers.iter().all(|tier| tier.leaving <= nth + 1));
        }
        assert!(policy.oldest > 0, "generations were emptied");
    }
}
