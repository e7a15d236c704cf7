//! Eviction policy `adaptive`: follows the candidate policy that would have missed least.
//!
//! No single policy is best for every load. `lirs` keeps part of a loop but misses nearly all of a
//! walk to and fro. `lru` is best for recency, and a scan drives out its pages. This policy has no
//! replacement rule of its own and simulates the others.
//!
//! How it works:
//!
//! - *Sample.* Page keys select a sample of the pages: one of 64, or a larger share in a small
//!   cache, so that the sample has at least 1,536 pages of memory.
//! - *Simulation.* Each *candidate* (`clock2q`, `lirs`, `arc`, `lru`) is simulated on the
//!   references to sampled pages, in a memory scaled down by the same factor. Its miss ratio
//!   approximates the miss ratio in the whole memory (miniature simulation: Waldspurger,
//!   Saemundsson, Ahmad and Park, USENIX ATC 2017).
//! - *Policy in force.* One candidate is *in force*, initially `clock2q`. It alone selects victims.
//! - *Counting.* Each candidate's misses are counted. The counts decay by a 64th each time the
//!   number of references to the sample equals the sample's size in pages.
//! - *Switching.* A candidate takes over when its misses are fewer than the misses of the policy in
//!   force by more than a 32nd of the sample's pages. If the sample is smaller than the whole
//!   cache, the difference must exceed a 16th, and also the statistical error, the square root of
//!   the counted misses.
//! - *Excess.* The cache's own misses of sampled pages are counted as well. They can exceed the
//!   simulated misses of the policy in force, because the cache lacks pages of the simulation after
//!   a switch. The excess, up to two fifths of the sample's pages, is added to the difference that
//!   the next switch requires.
//! - *Bounded lead.* Leads are capped at half of the sample's pages. A change of load is therefore
//!   followed soon, however long the previous phase was.
//!
//! On a switch, the new policy adopts the pages in the eviction order of the old one, and learns
//! which pages the old one protected. It also inherits the ghosts. If the policy in force has no
//! ghosts (`lru`), this module keeps them for the next policy. A switch costs a walk over all
//! pages.
//!
//! `s3fifo` and `two-lists` are not candidates. Wherever one of them is best, another candidate is
//! close to it, and the simulation memory is better spent on a larger sample.
//!
//! Rejected alternatives (`bench/README.md` has more):
//!
//! - Counting a candidate's advantage only since it was last no better. Short phases then caused
//!   switches that came too late, on storage server traces and on `multi1` of the LIRS authors.
//! - Switching after a difference of a 64th of the sample's pages, whatever the excess. Over eleven
//!   published traces in memories of 5 to 95 % of their blocks, three of 209 cells then had more
//!   than 1.02 times the misses of the worst candidate (up to 1.027; now at most 1.009).
//! - Keeping exactly the pages of the candidate's simulation when the sample is the whole cache.
//!   Any part of a loop is as good to keep as any other, except while it is being fetched.
//!
//! When the cache is resized, the miss counts and the candidates' contents remain. The sampled
//! share of the pages may change. Pages that leave the sample are dropped. A page that joins the
//! sample causes one miss in every candidate.
//!
//! For some uses of sampled pages only access bits are recorded. Each victim selection reads the
//! access bits of 64 frames in turn. A candidate therefore learns of a use after at most a 64th of
//! the frames has been evicted.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{
    AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin,
    Simulation,
};
use crate::page::FrameId;
use crate::policy::Spec;

/// Names of the simulated policies. The first is in force initially, because it performs well while
/// little is known.
const CANDIDATES: [&str; 4] = ["clock2q", "lirs", "arc", "lru"];

/// Reciprocal of the sampled share of the pages: one page of 64.
const SAMPLE_SHARE: u32 = 64;
/// Minimum size of the sample's memory in pages, unless the cache is smaller. Each candidate's
/// simulation takes up to 60 bytes for each of these pages.
const SAMPLE_PAGES_MIN: u32 = 1536;

/// Divisor of the sample's memory: a candidate must lead by more than this share of its pages.
/// Chosen among 4 to 64 on eleven published traces (`bench/notes/eviction.md`).
const ADVANTAGE_SHARE: u32 = 16;
/// Divisor for a cache whose pages are all sampled, so that its simulations are exact. Chosen in
/// the same runs.
const ADVANTAGE_SHARE_ALL: u32 = 32;
/// Minimum lead in misses that a switch requires, however small the memory is. Chosen: a share of
/// a small sample is only a few misses.
const ADVANTAGE_MIN: u64 = 8;

/// Numerator and denominator of a share of the sample's memory: the excess is capped at two fifths
/// of its pages. With [`ADVANTAGE_SHARE`] this is less than the largest lead ([`LEAD_SHARE`]).
/// Pages that are dropped by their user also count as an excess, and cannot prevent all switches.
const EXCESS_SHARE: [u64; 2] = [2, 5];

/// Divisor of the decay: counts lose this share each time the references reach the sample's size.
const DECAY_DIVISOR: u64 = 64;
/// Fixed-point scale of the miss counts: one miss adds 64, so that the decay works in integers.
const MISS_UNITS: u64 = 64;

/// Divisor of the sample's memory: the best candidate's lead is capped at half of its pages.
const LEAD_SHARE: u64 = 2;

/// Number of frames in one word of the `sampled` bitmap.
const WORD_FRAMES: u32 = u64::BITS;

/// A simulated policy.
#[derive(Debug)]
struct Candidate {
    /// Name in [`CANDIDATES`].
    name: &'static str,
    /// Miniature cache with its policy, which contains the sampled pages it would keep.
    simulation: Simulation,
    /// Decaying count of its misses, in units of 1/[`MISS_UNITS`].
    misses: u64,
}

/// Eviction policy `adaptive`.
#[derive(Debug)]
pub struct AdaptiveEviction {
    /// Size of the cache in pages.
    pages: u32,
    /// Size of each simulated memory in pages.
    sample_pages: u32,
    /// Simulated policies, in the order of [`CANDIDATES`].
    candidates: [Candidate; CANDIDATES.len()],
    /// References to sampled pages since the last decay.
    references: u32,
    /// Decaying count of references to sampled pages that missed in the cache and hit in the
    /// simulation of the policy in force, less the reverse, in units of 1/[`MISS_UNITS`].
    excess: u64,
    /// Index of the candidate that selects victims.
    in_force: usize,
    /// Index of the candidate that takes over at the next victim selection.
    next_in_force: usize,
    /// Policy in force, for the whole cache.
    policy: Box<dyn EvictionPolicy>,
    /// Ghosts of evicted pages, while the policy in force keeps none.
    ghosts: Option<Ghosts>,
    /// Bitmap of the frames that contain a sampled page.
    sampled: Vec<u64>,
    /// Index of the next word of the bitmap whose access bits are checked.
    next_word: usize,
}

impl AdaptiveEviction {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> AdaptiveEviction {
        let sample_pages = sample_pages_for(pages);
        let candidate = |name| Candidate {
            name,
            simulation: Simulation::new(build_candidate(name, sample_pages), sample_pages),
            misses: 0,
        };
        AdaptiveEviction {
            pages,
            sample_pages,
            candidates: CANDIDATES.map(candidate),
            references: 0,
            excess: 0,
            in_force: 0,
            next_in_force: 0,
            policy: build_candidate(CANDIDATES[0], pages),
            ghosts: None,
            sampled: alloc::vec![0; pages.div_ceil(WORD_FRAMES) as usize],
            next_word: 0,
        }
    }

    /// True if the page belongs to the present sample of pages, whose references are simulated.
    fn is_sampled(&self, page: PageKey) -> bool {
        is_sampled(page, self.sample_pages, self.pages)
    }

    /// Rebuilds the bitmap of frames that contain a sampled page on a list of the policy. The check
    /// of access bits restarts at its first word.
    fn mark_sampled(&mut self, lists: &FrameLists, access_bits: &dyn AccessBits) {
        // After a shrink, frames with higher numbers than the pages may still be on a list.
        self.sampled.resize(lists.frames().max(self.pages).div_ceil(WORD_FRAMES) as usize, 0);
        for word in 0..self.sampled.len() {
            let first = word as u32 * WORD_FRAMES;
            let frames = (first..first + WORD_FRAMES).map(FrameId);
            let is_marked = |&frame: &FrameId| {
                is_of_policy(lists, frame) && self.is_sampled(access_bits.page(frame))
            };
            let marked = frames.filter(is_marked);
            self.sampled[word] = marked.fold(0, |bits, frame| bits | 1 << (frame.0 - first));
        }
        self.next_word = 0;
    }

    /// Records a reference to a sampled page in every simulation, and selects the next policy in
    /// force. `is_hit` is true if the page was in the cache.
    fn simulate_reference(&mut self, page: PageKey, is_hit: bool) {
        let simulated_hits =
            self.candidates.each_mut().map(|candidate| candidate.simulation.reference(page));
        for (candidate, is_simulated_hit) in self.candidates.iter_mut().zip(simulated_hits) {
            candidate.misses += if is_simulated_hit { 0 } else { MISS_UNITS };
        }
        let sample_units = u64::from(self.sample_pages) * MISS_UNITS;
        let excess_max = sample_units * EXCESS_SHARE[0] / EXCESS_SHARE[1];
        // Misses of the cache that the simulation of the policy in force does not have, less the
        // reverse.
        self.excess = match (is_hit, simulated_hits[self.in_force]) {
            (false, true) => (self.excess + MISS_UNITS).min(excess_max),
            (true, false) => self.excess.saturating_sub(MISS_UNITS),
            _ => self.excess,
        };
        // All counts decay.
        self.references += 1;
        if self.references >= self.sample_pages {
            self.references = 0;
            self.candidates
                .iter_mut()
                .for_each(|candidate| candidate.misses -= candidate.misses / DECAY_DIVISOR);
            self.excess -= self.excess / DECAY_DIVISOR;
        }
        // The lead of the best candidate is capped; then it decides about a switch.
        let best = (0..CANDIDATES.len()).min_by_key(|&index| self.candidates[index].misses);
        let best = best.expect("there are candidates");
        let misses_max = self.candidates[best].misses + sample_units / LEAD_SHARE;
        self.candidates
            .iter_mut()
            .for_each(|candidate| candidate.misses = candidate.misses.min(misses_max));
        let [in_force_misses, best_misses] =
            [self.in_force, best].map(|index| self.candidates[index].misses);
        let lead = in_force_misses - best_misses;
        self.next_in_force =
            if lead > self.required_lead(in_force_misses) { best } else { self.in_force };
    }

    /// Lead that a candidate needs over the policy in force, which has `in_force_misses` simulated
    /// misses. Both numbers are in units of 1/[`MISS_UNITS`].
    fn required_lead(&self, in_force_misses: u64) -> u64 {
        let is_all_sampled = self.sample_pages == self.pages;
        let divisor = if is_all_sampled { ADVANTAGE_SHARE_ALL } else { ADVANTAGE_SHARE };
        let share = u64::from(self.sample_pages / divisor).max(ADVANTAGE_MIN);
        // A number of sampled misses varies at random by about its square root.
        let statistical_error =
            if is_all_sampled { 0 } else { (in_force_misses / MISS_UNITS).isqrt() };
        share.max(statistical_error) * MISS_UNITS + self.excess
    }

    /// Switches to the selected candidate, which adopts the resident pages in the order of eviction
    /// of the policy before, and that policy's ghosts (evicted pages that are remembered).
    fn switch_policy(&mut self, lists: &mut FrameLists, access_bits: &dyn AccessBits) {
        let eviction_order = self.policy.give_up(lists);
        let ghosts = self.policy.release_ghosts().or_else(|| self.ghosts.take());
        self.policy = build_candidate(self.candidates[self.next_in_force].name, self.pages);
        for (frame, was_reused) in eviction_order {
            self.policy.adopt(lists, frame, access_bits.page(frame), was_reused);
        }
        // Ghosts that the new policy does not take stay here for the policy after it.
        self.ghosts = ghosts.and_then(|ghosts| self.policy.inherit(ghosts));
        self.in_force = self.next_in_force;
    }

    /// Records that a page has entered a frame. If it is sampled, every simulation gets the
    /// reference, and counts a miss if it lacks the page. The cache itself has missed.
    fn record_arrival(&mut self, frame: FrameId, page: PageKey) {
        if let Some(ghosts) = &mut self.ghosts {
            // A page in the cache is no ghost.
            ghosts.take(page);
        }
        let (word, bit) = ((frame.0 / WORD_FRAMES) as usize, 1 << (frame.0 % WORD_FRAMES));
        // The cache may have grown since the bitmap was made.
        if word >= self.sampled.len() {
            self.sampled.resize(word + 1, 0);
        }
        if self.is_sampled(page) {
            self.sampled[word] |= bit;
            let is_hit = false;
            self.simulate_reference(page, is_hit);
        } else {
            self.sampled[word] &= !bit;
        }
    }

    /// Records the uses that the access bits show for the sampled pages of the next bitmap word,
    /// and advances to the word after it. A use counts in the policy in force and in every
    /// simulation.
    fn record_next_uses(&mut self, lists: &mut FrameLists, access_bits: &mut dyn AccessBits) {
        let first = self.next_word as u32 * WORD_FRAMES;
        let mut bits = self.sampled[self.next_word];
        self.next_word = (self.next_word + 1) % self.sampled.len();
        while bits != 0 {
            let frame = FrameId(first + bits.trailing_zeros());
            bits &= bits - 1;
            // The frame may meanwhile contain a page that is on none of the policy's lists.
            let uses = if is_of_policy(lists, frame) { access_bits.uses(frame) } else { 0 };
            for _ in 0..uses {
                self.used(lists, frame, access_bits.page(frame));
            }
        }
    }
}

/// True if the page belongs to a sample of `sample_pages` of `pages`. Uses the key's upper 32 bits;
/// hash tables use other bits.
#[inline]
fn is_sampled(page: PageKey, sample_pages: u32, pages: u32) -> bool {
    // Scales the upper bits to a number below `pages`.
    ((page.0 >> 32) * u64::from(pages)) >> 32 < u64::from(sample_pages)
}

/// True if the frame is on one of the policy's lists.
fn is_of_policy(lists: &FrameLists, frame: FrameId) -> bool {
    lists.list_of(frame).is_some_and(|list| List::OF_POLICY.contains(&list))
}

/// Size of the simulated memory in pages, for a cache of `pages` pages.
fn sample_pages_for(pages: u32) -> u32 {
    (pages / SAMPLE_SHARE).max(SAMPLE_PAGES_MIN).min(pages)
}

/// Builds a candidate policy for a memory of `pages` pages.
fn build_candidate(name: &'static str, pages: u32) -> Box<dyn EvictionPolicy> {
    super::build(&Spec::plain(name), pages).expect("each candidate is a policy without parameters")
}

// A method that is not passed on would have the effect of its default.
#[deny(clippy::missing_trait_methods)]
impl EvictionPolicy for AdaptiveEviction {
    /// Adds the page to the policy in force. A sampled page counts as a miss of the cache.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, origin: PageOrigin) {
        self.policy.enter(lists, frame, page, origin);
        self.record_arrival(frame, page);
    }

    /// Adds a page of another policy to the policy in force, which keeps it reused if it was. A
    /// sampled page counts as a miss of the cache.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, was_reused: bool) {
        self.policy.adopt(lists, frame, page, was_reused);
        self.record_arrival(frame, page);
    }

    /// Records a use in the policy in force. A sampled page counts as a hit of the cache.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.policy.used(lists, frame, page);
        if self.is_sampled(page) {
            let is_hit = true;
            self.simulate_reference(page, is_hit);
        }
    }

    /// Records uses of sampled pages, switches to the selected policy if it has changed, and
    /// returns the victim of the policy in force. `None` if no list of the policy has a page.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        self.record_next_uses(lists, access_bits);
        if self.next_in_force != self.in_force {
            self.switch_policy(lists, access_bits);
        }
        self.policy.victim(lists, access_bits)
    }

    /// Remembers the page as a ghost: here while the policy in force keeps none (`lru`, which
    /// records no evictions), else in the policy.
    fn evicted(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        match &mut self.ghosts {
            Some(ghosts) => {
                // A policy that inherits the ghosts sets their words.
                let unused_word = 0;
                ghosts.remember(GhostList::First, page, unused_word);
            }
            None => self.policy.evicted(lists, frame, page),
        }
    }

    /// The frame that the policy in force will check next; `None` without a page.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        self.policy.oldest(lists)
    }

    /// Reports the request of an absent page to the policy in force.
    fn demand(&mut self, page: PageKey) {
        self.policy.demand(page);
    }

    /// Adapts the policy in force, the ghosts and the sample to a memory of `pages` pages.
    fn resize(&mut self, lists: &mut FrameLists, access_bits: &dyn AccessBits, pages: u32) {
        self.policy.resize(lists, access_bits, pages);
        if let Some(ghosts) = &mut self.ghosts {
            ghosts.resize(pages);
        }
        let (pages_before, sample_pages_before) = (self.pages, self.sample_pages);
        (self.pages, self.sample_pages) = (pages, sample_pages_for(pages));
        // First resize the old sample in proportion to the cache, then drop pages outside the new
        // sample. Each candidate thus chooses the pages that leave a smaller memory. A sample that
        // grows is enlarged last, and fills by misses.
        let scaled_pages =
            u64::from(sample_pages_before) * u64::from(pages) / u64::from(pages_before);
        let scaled_pages = (scaled_pages as u32).clamp(1, sample_pages_before);
        let AdaptiveEviction { candidates, sample_pages, .. } = self;
        for candidate in candidates {
            candidate.simulation.resize(scaled_pages);
            candidate.simulation.retain(|page| is_sampled(page, *sample_pages, pages));
            candidate.simulation.resize(*sample_pages);
        }
        self.mark_sampled(lists, access_bits);
    }

    /// Removes all pages, in the order of eviction of the policy in force.
    fn give_up(&mut self, lists: &mut FrameLists) -> Vec<(FrameId, bool)> {
        self.policy.give_up(lists)
    }

    /// Passes the ghosts of another policy to the policy in force. Keeps them here if it takes
    /// none, for the next policy in force. Returns `None`, because none is left over.
    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        self.ghosts = self.policy.inherit(ghosts);
        None
    }

    /// Releases the ghosts of the policy in force, or the ones that are kept here for the next.
    fn release_ghosts(&mut self) -> Option<Ghosts> {
        self.policy.release_ghosts().or_else(|| self.ghosts.take())
    }

    /// Returns true if the policy in force gets prefetched pages before their first use. No
    /// candidate does.
    fn enters_unused(&self) -> bool {
        self.policy.enters_unused()
    }

    /// Returns true if the policy in force has separate lists of mapped memory. No candidate does.
    fn has_memory_apart(&self) -> bool {
        self.policy.has_memory_apart()
    }

    /// Returns a victim that did not leave to the policy in force.
    fn restore_victim(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.policy.restore_victim(lists, frame, page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of misses of a policy for a sequence of references.
    fn misses(policy: &str, pages: u32, references: impl Iterator<Item = u64>) -> usize {
        let policy = super::super::build(&Spec::plain(policy), pages).unwrap();
        let mut cache = Simulation::new(policy, pages);
        references.filter(|&page| !cache.reference(PageKey::from_number(page))).count()
    }

    /// `lru` hits nothing in a loop of 5,000 pages in a memory of 2,000. `lirs` hits almost nothing
    /// in a walk to and fro. The load is a loop, a walk and a loop, so that the policy in force
    /// must change twice. `best_misses` is their number with the best candidate in each phase.
    #[test]
    fn adaptive_eviction_follows_the_load_from_policy_to_policy_and_back() {
        const PAGES: u32 = 2000;
        let cycle = || (0..5000).cycle().take(200_000);
        let one_way = |pass: u64| {
            (0..5000).map(move |page| if pass.is_multiple_of(2) { page } else { 4999 - page })
        };
        let walk = || (0..40).flat_map(one_way);
        let load = || cycle().chain(walk()).chain(cycle());
        let best_misses = 2 * misses("lirs", PAGES, cycle()) + misses("lru", PAGES, walk());
        let adaptive_misses = misses("adaptive", PAGES, load());
        let fixed_misses = CANDIDATES.map(|policy| misses(policy, PAGES, load()));
        assert!(
            adaptive_misses * 100 <= best_misses * 105,
            "{adaptive_misses}, where who knows what is to come has {best_misses}"
        );
        assert!(
            fixed_misses.iter().all(|&misses| adaptive_misses < misses),
            "{adaptive_misses} against {fixed_misses:?}"
        );
    }

    /// Each loop runs 40 times. The misses during learning stay within a twentieth of the misses of
    /// `lirs`, the best candidate for loops.
    #[test]
    fn misses_in_loops_larger_than_memory_are_within_5_percent_of_lirs() {
        for (pages, length) in [(1000, 1100), (3000, 3300), (20_000, 22_000), (20_000, 40_000)] {
            let cycle = || (0..length).cycle().take(40 * length as usize);
            let adaptive_misses = misses("adaptive", pages, cycle());
            let lirs_misses = misses("lirs", pages, cycle());
            assert!(
                adaptive_misses * 100 <= lirs_misses * 105,
                "{pages} of {length}: {adaptive_misses}, lirs {lirs_misses}"
            );
        }
    }

    /// Returns the misses in the second pass over `references` of two caches of `pages_after`
    /// pages. The first had `pages_before` pages during the first pass; the second had
    /// `pages_after` pages throughout.
    fn misses_resized(pages_before: u32, pages_after: u32, references: &[u64]) -> [usize; 2] {
        [pages_before, pages_after].map(|pages| {
            let mut cache = Simulation::new(Box::new(AdaptiveEviction::new(pages)), pages);
            let pass_misses = |cache: &mut Simulation| {
                let is_missed = |&&page: &&u64| !cache.reference(PageKey::from_number(page));
                references.iter().filter(is_missed).count()
            };
            pass_misses(&mut cache);
            if pages != pages_after {
                cache.resize(pages_after);
            }
            pass_misses(&mut cache)
        })
    }

    /// `lru` is best for a walk to and fro and `lirs` for a loop, and neither is initially in
    /// force. A resized cache may miss a twentieth more than a cache that always had the new size,
    /// plus the misses that fill added frames. The sample is one of 13 pages in a cache of 20,000,
    /// three of four in 2,000, and all pages in 800.
    #[test]
    fn learned_policy_survives_a_change_of_the_cache_size() {
        for (before, after) in [(2000, 800), (800, 2000), (20_000, 4000), (4000, 20_000)] {
            let length = 3 * u64::from(after);
            let cycle: Vec<u64> = (0..length).cycle().take(6 * length as usize).collect();
            let walk: Vec<u64> =
                (0..length).chain((0..length).rev()).cycle().take(6 * length as usize).collect();
            for references in [cycle, walk] {
                let [resized, from_start] = misses_resized(before, after, &references);
                let added_frames = after.saturating_sub(before) as usize;
                assert!(
                    resized * 20 <= from_start * 21 + added_frames * 20,
                    "{before} to {after}: {resized} missed, {from_start} from the start"
                );
            }
        }
    }

    /// In a cache of 20,000 pages the sample has 1,536 pages, so about 15,360 of 200,000 keys are
    /// sampled.
    #[test]
    fn sampling_rate_is_the_ratio_of_sample_size_to_cache_size() {
        let policy = AdaptiveEviction::new(20_000);
        let sampled =
            (0..200_000).filter(|&page| policy.is_sampled(PageKey::from_number(page))).count();
        assert!(sampled.abs_diff(15_360) < 400, "{sampled}");
    }

    /// The pages of frames 0 and 1, in the order in which the policy gives them up after `prepare`.
    fn order_of_two_pages(
        prepare: impl FnOnce(&mut AdaptiveEviction, &mut FrameLists),
    ) -> Vec<(u32, bool)> {
        let (mut policy, mut lists) = (AdaptiveEviction::new(100), FrameLists::new(100));
        prepare(&mut policy, &mut lists);
        let order = policy.give_up(&mut lists);
        order.into_iter().map(|(frame, was_reused)| (frame.0, was_reused)).collect()
    }

    /// The policy in force at first, `clock2q`, has reused pages in a list of their own, and its
    /// used pages leave last. The adaptive one passes on both.
    #[test]
    fn pages_keep_their_order_when_they_come_from_a_policy_or_go_to_one() {
        let adopted = order_of_two_pages(|policy, lists| {
            for (frame, was_reused) in [(0, true), (1, false)] {
                policy.adopt(lists, FrameId(frame), PageKey(frame.into()), was_reused);
            }
        });
        assert_eq!(adopted, [(1, false), (0, true)]);
        let used = order_of_two_pages(|policy, lists| {
            for frame in 0..2 {
                let page = PageKey(frame.into());
                policy.enter(lists, FrameId(frame), page, PageOrigin::Demand);
            }
            lists.set_uses(FrameId(0), 1);
        });
        assert_eq!(used, [(1, false), (0, false)]);
    }
}
