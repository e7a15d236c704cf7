//! `adaptive`: the one of the other laws that would have missed least.
//!
//! No law is best everywhere: what keeps a part of a loop misses everything of what walks to and
//! fro, and what is best for recency is driven out by a scan. So this law holds no belief of its
//! own, and tries the others.
//!
//! The law in words: a sample of the pages is chosen by their keys, one of 64, or as many as 1,536
//! pages of memory are a part of all. Each *candidate* (`clock2q`, `lirs`, `arc`, `lru`) is
//! simulated on the references to them, in a memory that is smaller by as much: that is as if it
//! had the whole (miniature simulation: Waldspurger, Saemundsson, Ahmad and Park, USENIX ATC 2017).
//! One of them is *in force*, `clock2q` at first: it alone says which pages go. The misses of each
//! candidate are counted, and fade: by a 64th while as many references of the sample come as it has
//! pages. When a candidate has fewer misses than the one in force, by more than a 64th of the
//! sample's pages, it takes over. Where the sample is not all pages they must be fewer by more than
//! chance makes them as well: the root of the misses counted. No lead counts for more than half of
//! the sample's pages, so that a load that changes is followed soon, however long the last one was.
//!
//! The one that takes over gets the pages in the order in which the other would have let them go,
//! with those that it kept apart, and the ghosts. Where the one in force remembers nothing (`lru`),
//! the ghosts are kept for the next. A change costs a walk over all pages.
//!
//! `s3fifo` and `two-lists` are no candidates: where one of them is the best, another is next to
//! it, and a larger sample is worth more than they are.
//!
//! What was tried and is worse (`bench/README.md` has more): to count a candidate's advantage only
//! since it was last no better. Each has its moments, and whoever has just had one is followed by
//! another: on traces of storage servers, and on `multi1` of the LIRS authors, the law in force was
//! then always yesterday's. And to keep just the pages that the candidate's own simulation has,
//! where the sample is all pages: of a loop any part is as good as any other, but not while it is
//! fetched.
//!
//! When the size of the cache changes the misses counted stay as they are, and so does what the
//! candidates have. The part of all pages that is the sample may become another: pages that are
//! none of it any more are dropped. One that is of it from then on is a miss of every candidate,
//! once.
//!
//! Uses of sampled pages that are known only as bits are asked for in turn: with each victim 64
//! frames are looked at. So a candidate hears of a use late by a 64th of the frames in victims at
//! most.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{
    AccessBits, EvictionPolicy, FrameLists, GhostList, Ghosts, List, PageKey, PageOrigin,
    Simulation,
};
use crate::cache::FrameId;
use crate::policy::Spec;

/// The laws that are tried, first the one to begin with: it does well where little is known.
const CANDIDATES: [&str; 4] = ["clock2q", "lirs", "arc", "lru"];

/// The sample is one page of so many…
const SAMPLE_SHARE: u32 = 64;
/// …and has so much memory at least, in pages, if there is as much. The simulations take up to 60
/// bytes for each of these pages and each candidate.
const SAMPLE_PAGES_MIN: u32 = 1536;

/// A candidate must be better by one page of so many of the sample's memory.
const ADVANTAGE_SHARE: u32 = 64;
/// And by so many misses, however small the memory is.
const ADVANTAGE_MIN: u64 = 8;

/// Misses fade by one of so many while as many references come as the sample has pages.
const FADING: u64 = 64;
/// A miss, in the parts in which misses are counted: they fade in whole numbers.
const MISS: u64 = 64;

/// The best has a lead over any other of one page of so many of the sample's memory at the most.
const LEAD_SHARE: u64 = 2;

/// Frames that are looked at together.
const WORD_FRAMES: u32 = u64::BITS;

/// A law on trial.
#[derive(Debug)]
struct Candidate {
    name: &'static str,
    simulation: Simulation,
    /// Its misses, fading, in parts of a [`MISS`].
    misses: u64,
}

/// The reclaim law `adaptive`.
#[derive(Debug)]
pub struct AdaptiveEviction {
    pages: u32,
    sample_pages: u32,
    candidates: [Candidate; CANDIDATES.len()],
    /// References to the sample since misses last faded.
    references: u32,
    in_force: usize,
    /// The one that takes over with the next victim.
    next_in_force: usize,
    policy: Box<dyn EvictionPolicy>,
    /// What has left, while the law in force remembers nothing.
    ghosts: Option<Ghosts>,
    /// A bit for each frame whose page is of the sample, and the word to be looked at next.
    sampled: Vec<u64>,
    word: usize,
}

impl AdaptiveEviction {
    /// For a cache of so many pages.
    pub fn new(pages: u32) -> AdaptiveEviction {
        let sample_pages = sample_of(pages);
        let candidate = |name| Candidate {
            name,
            simulation: Simulation::new(built(name, sample_pages), sample_pages),
            misses: 0,
        };
        AdaptiveEviction {
            pages,
            sample_pages,
            candidates: CANDIDATES.map(candidate),
            references: 0,
            in_force: 0,
            next_in_force: 0,
            policy: built(CANDIDATES[0], pages),
            ghosts: None,
            sampled: alloc::vec![0; pages.div_ceil(WORD_FRAMES) as usize],
            word: 0,
        }
    }

    fn is_sampled(&self, page: PageKey) -> bool {
        is_sampled(page, self.sample_pages, self.pages)
    }

    /// Finds out anew which frames have pages of the sample.
    fn mark_sampled(&mut self, places: &FrameLists, looks: &dyn AccessBits) {
        self.sampled.resize(places.frames().max(self.pages).div_ceil(WORD_FRAMES) as usize, 0);
        for word in 0..self.sampled.len() {
            let first = word as u32 * WORD_FRAMES;
            let frames = (first..first + WORD_FRAMES).map(FrameId);
            let is_marked = |&frame: &FrameId| {
                is_of_policy(places, frame) && self.is_sampled(looks.page(frame))
            };
            self.sampled[word] =
                frames.filter(is_marked).fold(0, |bits, FrameId(at)| bits | 1 << (at - first));
        }
        self.word = 0;
    }

    /// A page of the sample is referenced: each candidate shows what it would have had.
    fn refer(&mut self, page: PageKey) {
        for candidate in &mut self.candidates {
            let is_there = candidate.simulation.reference(page);
            candidate.misses += if is_there { 0 } else { MISS };
        }
        self.references += 1;
        if self.references >= self.sample_pages {
            self.references = 0;
            self.candidates.iter_mut().for_each(|one| one.misses -= one.misses / FADING);
        }
        let least = (0..CANDIDATES.len()).min_by_key(|&at| self.candidates[at].misses);
        let least = least.expect("there are candidates");
        let lead_max = u64::from(self.sample_pages) * MISS / LEAD_SHARE;
        let misses_max = self.candidates[least].misses + lead_max;
        self.candidates.iter_mut().for_each(|one| one.misses = one.misses.min(misses_max));
        let [mine, others] = [self.in_force, least].map(|at| self.candidates[at].misses);
        self.next_in_force =
            if mine - others > self.advantage(mine) { least } else { self.in_force };
    }

    /// By how much a candidate must have missed less than the law in force, which missed `misses`.
    fn advantage(&self, misses: u64) -> u64 {
        let share = u64::from(self.sample_pages / ADVANTAGE_SHARE).max(ADVANTAGE_MIN);
        let is_all = self.sample_pages == self.pages;
        let chance = if is_all { 0 } else { (misses / MISS).isqrt() };
        share.max(chance) * MISS
    }

    /// Has the candidate that is to be in force take over what is there.
    fn change(&mut self, places: &mut FrameLists, looks: &dyn AccessBits) {
        let order = self.policy.give_up(places);
        let ghosts = self.policy.release_ghosts().or_else(|| self.ghosts.take());
        self.policy = built(self.candidates[self.next_in_force].name, self.pages);
        for (frame, is_kept) in order {
            self.policy.adopt(places, frame, looks.page(frame), is_kept);
        }
        self.ghosts = ghosts.and_then(|ghosts| self.policy.inherit(ghosts));
        self.in_force = self.next_in_force;
    }

    /// Takes in how the next sampled pages were used that readers used by themselves.
    fn look(&mut self, places: &mut FrameLists, looks: &mut dyn AccessBits) {
        let first = self.word as u32 * WORD_FRAMES;
        let mut bits = self.sampled[self.word];
        self.word = (self.word + 1) % self.sampled.len();
        while bits != 0 {
            let frame = FrameId(first + bits.trailing_zeros());
            bits &= bits - 1;
            // Another page may have come into the frame that is none of the law's.
            for _ in 0..if is_of_policy(places, frame) { looks.uses(frame) } else { 0 } {
                self.used(places, frame, looks.page(frame));
            }
        }
    }
}

/// Whether the page is of the sample that has so much of the memory. Tables are entered by other
/// bits of the key.
#[inline]
fn is_sampled(page: PageKey, sample_pages: u32, pages: u32) -> bool {
    ((page.0 >> 32) * u64::from(pages)) >> 32 < u64::from(sample_pages)
}

/// Whether the frame is on one of the law's lists.
fn is_of_policy(places: &FrameLists, frame: FrameId) -> bool {
    places.list_of(frame).is_some_and(|list| List::OF_POLICY.contains(&list))
}

/// How much memory the sample of a cache of so many pages has, in pages.
fn sample_of(pages: u32) -> u32 {
    (pages / SAMPLE_SHARE).max(SAMPLE_PAGES_MIN).min(pages)
}

fn built(name: &'static str, pages: u32) -> Box<dyn EvictionPolicy> {
    super::build(&Spec::plain(name), pages).expect("each candidate is a policy without parameters")
}

impl EvictionPolicy for AdaptiveEviction {
    fn enter(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey, entry: PageOrigin) {
        if let Some(ghosts) = &mut self.ghosts {
            ghosts.take(page);
        }
        self.policy.enter(places, frame, page, entry);
        let (word, bit) = ((frame.0 / WORD_FRAMES) as usize, 1 << (frame.0 % WORD_FRAMES));
        if word >= self.sampled.len() {
            self.sampled.resize(word + 1, 0);
        }
        if self.is_sampled(page) {
            self.sampled[word] |= bit;
            self.refer(page);
        } else {
            self.sampled[word] &= !bit;
        }
    }

    fn used(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.policy.used(places, frame, page);
        if self.is_sampled(page) {
            self.refer(page);
        }
    }

    fn victim(&mut self, places: &mut FrameLists, looks: &mut dyn AccessBits) -> Option<FrameId> {
        self.look(places, looks);
        if self.next_in_force != self.in_force {
            self.change(places, looks);
        }
        self.policy.victim(places, looks)
    }

    fn evicted(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey) {
        match &mut self.ghosts {
            Some(ghosts) => ghosts.remember(GhostList::First, page, 0),
            None => self.policy.evicted(places, frame, page),
        }
    }

    fn oldest(&mut self, places: &mut FrameLists) -> Option<FrameId> {
        self.policy.oldest(places)
    }

    fn demand(&mut self, page: PageKey) {
        self.policy.demand(page);
    }

    fn resize(&mut self, places: &mut FrameLists, looks: &dyn AccessBits, pages: u32) {
        self.policy.resize(places, looks, pages);
        if let Some(ghosts) = &mut self.ghosts {
            ghosts.resize(pages);
        }
        let (pages_before, sample_before) = (self.pages, self.sample_pages);
        (self.pages, self.sample_pages) = (pages, sample_of(pages));
        // What a candidate would have of the sample as it was, in the new size.
        let scaled = u64::from(sample_before) * u64::from(pages) / u64::from(pages_before);
        let scaled = (scaled as u32).clamp(1, sample_before);
        let AdaptiveEviction { candidates, sample_pages, .. } = self;
        for candidate in candidates {
            candidate.simulation.resize(scaled);
            candidate.simulation.retain(|page| is_sampled(page, *sample_pages, pages));
            candidate.simulation.resize(*sample_pages);
        }
        self.mark_sampled(places, looks);
    }

    fn put_back(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.policy.put_back(places, frame, page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses(policy: &str, pages: u32, references: impl Iterator<Item = u64>) -> usize {
        let policy = super::super::build(&Spec::plain(policy), pages).unwrap();
        let mut cache = Simulation::new(policy, pages);
        references.filter(|&page| !cache.reference(PageKey::numbered(page))).count()
    }

    /// Of a loop of 5,000 in 2,000 pages `lru` has nothing, and of what walks to and fro `lirs` has
    /// next to nothing: the one that is in force has to change twice.
    #[test]
    fn it_follows_the_load_from_policy_to_policy_and_back() {
        let round = || (0..5000).cycle().take(200_000);
        let to_and_fro =
            |way: u64| (0..5000).map(move |at| if way.is_multiple_of(2) { at } else { 4999 - at });
        let walk = || (0..40).flat_map(to_and_fro);
        let all = || round().chain(walk()).chain(round());
        let best = 2 * misses("lirs", 2000, round()) + misses("lru", 2000, walk());
        let ours = misses("adaptive", 2000, all());
        let fixed = CANDIDATES.map(|policy| misses(policy, 2000, all()));
        assert!(ours * 100 <= best * 105, "{ours}, where who knows what is to come has {best}");
        assert!(fixed.iter().all(|&other| ours < other), "{ours} against {fixed:?}");
    }

    /// It costs what a loop larger than memory is worth to find out, and no more.
    #[test]
    fn loops_larger_than_memory_are_kept_within_a_twentieth_of_lirs() {
        for (pages, length) in [(1000, 1100), (3000, 3300), (20_000, 22_000), (20_000, 40_000)] {
            let round = || (0..length).cycle().take(40 * length as usize);
            let (ours, best) = (misses("adaptive", pages, round()), misses("lirs", pages, round()));
            assert!(ours * 100 <= best * 105, "{pages} of {length}: {ours}, lirs {best}");
        }
    }

    /// Misses of a cache of `before` pages that learns from `references` and is to have `after`
    /// pages then, and of one that had these from the start, while they come once more.
    fn misses_resized(before: u32, after: u32, references: &[u64]) -> [usize; 2] {
        [before, after].map(|pages| {
            let mut cache = Simulation::new(Box::new(AdaptiveEviction::new(pages)), pages);
            let pass = |cache: &mut Simulation| {
                let is_missed = |&&page: &&u64| !cache.reference(PageKey::numbered(page));
                references.iter().filter(is_missed).count()
            };
            pass(&mut cache);
            if pages != after {
                cache.resize(after);
            }
            pass(&mut cache)
        })
    }

    /// A walk to and fro is `lru`'s, a loop `lirs`'s, and neither is what the law begins with: a
    /// cache that is to be smaller or larger misses at most a twentieth more than one of that size
    /// that had it from the start, and what it takes to fill the room that is new. Of 20,000 pages
    /// one of 13 is sampled, of 2,000 three of four, of 800 each.
    #[test]
    fn what_was_learned_stays_when_the_size_changes() {
        for (before, after) in [(2000, 800), (800, 2000), (20_000, 4000), (4000, 20_000)] {
            let length = 3 * u64::from(after);
            let round: Vec<u64> = (0..length).cycle().take(6 * length as usize).collect();
            let walk: Vec<u64> =
                (0..length).chain((0..length).rev()).cycle().take(6 * length as usize).collect();
            for references in [round, walk] {
                let [resized, from_start] = misses_resized(before, after, &references);
                let filling = after.saturating_sub(before) as usize;
                assert!(
                    resized * 20 <= from_start * 21 + filling * 20,
                    "{before} to {after}: {resized} missed, {from_start} from the start"
                );
            }
        }
    }

    /// A sample of 1,536 pages stands for 20,000.
    #[test]
    fn a_sampled_page_is_one_of_as_many_as_the_sample_is_smaller() {
        let policy = AdaptiveEviction::new(20_000);
        let sampled =
            (0..200_000).filter(|&page| policy.is_sampled(PageKey::numbered(page))).count();
        assert!(sampled.abs_diff(15_360) < 400, "{sampled}");
    }
}
