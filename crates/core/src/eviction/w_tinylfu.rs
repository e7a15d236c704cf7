//! `w-tinylfu`: a page stays if it was used more often than the page that would leave for it.
//!
//! How it works (W-TinyLFU: Einziger, Friedman and Manes, ACM TOS 13(4), 2017, with the sizes of
//! Caffeine): a page enters the *window*, an LRU list with 1 % of the memory. The rest is the *main
//! space*, a segmented LRU. A use moves a page from the *probationary* to the *protected* segment,
//! which has at most four fifths of the main space. The page at the end of a full window is the
//! *candidate*. It competes with the least recently used probationary page. If the candidate was
//! used more often, it becomes probationary and the other page leaves. Otherwise the candidate
//! leaves. The uses of all pages, evicted ones included, are counted approximately, in a count-min
//! sketch with at least 16 counters of 4 bits per page of memory. All counts are halved each time
//! the number of counted uses reaches ten times the pages of memory.
//!
//! While memory fills up, a candidate becomes probationary without competition. Caffeine admits a
//! few candidates at random and adapts the size of the window. This policy does neither: as long as
//! a probationary page has the largest count, 15, it stays.
//!
//! If several pages leave at once, several candidates compete, and the pages that enter for them
//! may exceed the window's share. The excess competes at the next evictions.
//!
//! If uses are known only from access bits, the candidate and the page at the end of the main space
//! are examined, and their uses count then.

use super::frequency_sketch::FrequencySketch;
// Access bits count the uses of a page that readers have not reported, up to two. Reading them
// resets them, so that a loop over used pages ends.
use super::{AccessBits, EvictionPolicy, FrameLists, List, PageKey, PageOrigin};
use crate::page::FrameId;

/// List of the newest pages.
const WINDOW: List = List::WINDOW;
/// Lists of the two segments of the main space.
const PROBATIONARY: List = List::PROBATION;
const PROTECTED: List = List::REUSED;

/// Divisor of the memory that gives the size of the window: 1 %.
const WINDOW_DIVISOR: u32 = 100;
/// Divisor of the memory that limits [`WTinyLfu::refills_due`]: a quarter. It bounds the excess of
/// the window where evicted pages are replaced late, or not at all.
const REFILLS_DIVISOR: u32 = 4;

/// Notes of a victim, which the lists keep for its frame: the list that it left.
const FROM_PROBATIONARY: u32 = 0;
const FROM_PROTECTED: u32 = 1;
const FROM_WINDOW: u32 = 2;

/// The eviction policy `w-tinylfu`.
#[derive(Debug)]
pub struct WTinyLfu {
    /// Most pages of the window while memory fills up.
    window_max: u32,
    /// Most pages of the protected segment.
    protected_max: u32,
    /// Number of evicted pages for which no page has entered yet. The page that enters for one has
    /// competed: its entry moves no page from the window to the main space.
    refills_due: u32,
    /// Limit of `refills_due`: more evicted pages than this are not counted.
    refills_due_max: u32,
    /// Approximate number of uses of each page.
    sketch: FrequencySketch,
}

/// The window, if it has a candidate: at least `pages_min` pages, and not zero. `None` if it has
/// none. A caller needs a list, and not a truth value, for [`WTinyLfu::first_unused`].
fn full_window(lists: &FrameLists, pages_min: u32) -> Option<List> {
    (lists.pages(WINDOW) >= pages_min.max(1)).then_some(WINDOW)
}

/// The list of the page that competes with a candidate: the protected segment only without
/// probationary pages. `None` if the main space is empty.
fn main_list(lists: &FrameLists) -> Option<List> {
    [PROBATIONARY, PROTECTED].into_iter().find(|&list| lists.pages(list) > 0)
}

impl WTinyLfu {
    /// Creates the policy for a cache of `pages` pages.
    pub fn new(pages: u32) -> WTinyLfu {
        let mut policy = WTinyLfu {
            window_max: 0,
            protected_max: 0,
            refills_due: 0,
            refills_due_max: 0,
            sketch: FrequencySketch::new(pages),
        };
        policy.set_limits(pages);
        policy
    }

    /// Sets the sizes of the lists for a memory of `pages` pages.
    fn set_limits(&mut self, pages: u32) {
        self.window_max = pages.div_ceil(WINDOW_DIVISOR);
        let main_pages = pages.saturating_sub(self.window_max);
        self.protected_max = (u64::from(main_pages) * 4 / 5) as u32;
        self.refills_due_max = pages / REFILLS_DIVISOR;
    }

    /// Moves the oldest protected pages to the front of the probationary segment, until the
    /// protected one has its size.
    fn demote(&self, lists: &mut FrameLists) {
        while lists.pages(PROTECTED) > self.protected_max {
            let Some(frame) = lists.pop(PROTECTED) else { return };
            lists.push(frame, PROBATIONARY);
        }
    }

    /// Moves a used page from its place in `list`: within the window, or to the front of the
    /// protected segment.
    fn promote(&self, lists: &mut FrameLists, frame: FrameId, list: List) {
        if list == WINDOW {
            lists.renew(frame, WINDOW);
        } else {
            lists.renew(frame, PROTECTED);
            self.demote(lists);
        }
    }

    /// Moves the oldest page of the window to the main space, if the window is too long. Returns
    /// true if it was.
    fn shorten_window(&self, lists: &mut FrameLists) -> bool {
        let is_too_long = lists.pages(WINDOW) > self.window_max;
        if is_too_long && let Some(frame) = lists.oldest(WINDOW) {
            lists.renew(frame, PROBATIONARY);
        }
        is_too_long
    }

    /// The oldest unused page of the list that `next_list` returns, which stays there. The uses of
    /// older ones are counted, and move them. `None` once `next_list` returns none.
    fn first_unused(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
        next_list: impl Fn(&FrameLists) -> Option<List>,
    ) -> Option<FrameId> {
        loop {
            let list = next_list(lists)?;
            let frame = lists.oldest(list)?;
            let uses = access_bits.uses(frame);
            if uses == 0 {
                return Some(frame);
            }
            for _ in 0..uses {
                self.sketch.record_use(access_bits.page(frame));
            }
            self.promote(lists, frame, list);
        }
    }
}

impl EvictionPolicy for WTinyLfu {
    /// Adds a page at the front of the window. Without an eviction before it, the oldest page of a
    /// window that is too long moves to the main space.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, _entry: PageOrigin) {
        self.sketch.record_use(page);
        lists.push(frame, WINDOW);
        match self.refills_due {
            // No counted eviction has made space for the page, as while memory fills up.
            0 => _ = self.shorten_window(lists),
            _ => self.refills_due -= 1,
        }
    }

    /// Counts a use, and moves the page. A page that is on no list is not moved.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.sketch.record_use(page);
        if let Some(list) = lists.list_of(frame) {
            self.promote(lists, frame, list);
        }
    }

    /// Compares the candidate with the oldest page of the main space, and removes the one with
    /// fewer uses. If both have the same number, the candidate is the victim; if one is missing,
    /// the other is. Without both it is the oldest page of the window. `None` without a page.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId> {
        // One page will enter the window for each victim that was taken before.
        let pages_min = self.window_max.saturating_sub(access_bits.taken());
        let candidate_window = |lists: &FrameLists| full_window(lists, pages_min);
        // The page at the end of a full window, and the page that it competes with.
        let candidate = self.first_unused(lists, access_bits, candidate_window);
        let main_page = self.first_unused(lists, access_bits, main_list);
        let victim = match (candidate, main_page) {
            (Some(candidate), Some(main_page)) => {
                let [candidate_uses, main_uses] = [candidate, main_page]
                    .map(|frame| self.sketch.estimate(access_bits.page(frame)));
                if candidate_uses > main_uses {
                    lists.renew(candidate, PROBATIONARY);
                    main_page
                } else {
                    candidate
                }
            }
            (candidate, main_page) => candidate.or(main_page).or_else(|| lists.oldest(WINDOW))?,
        };
        let note = match lists.list_of(victim) {
            Some(WINDOW) => FROM_WINDOW,
            Some(PROTECTED) => FROM_PROTECTED,
            _ => FROM_PROBATIONARY,
        };
        lists.set_note(victim, note);
        lists.unlink(victim);
        Some(victim)
    }

    /// Counts the page that may enter for this one, up to a quarter of the memory. The policy keeps
    /// no ghosts.
    fn evicted(&mut self, _lists: &mut FrameLists, _frame: FrameId, _page: PageKey) {
        self.refills_due = (self.refills_due + 1).min(self.refills_due_max);
    }

    /// The oldest page of a full window, or of the main space; `None` without a page.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId> {
        let list = full_window(lists, self.window_max).or_else(|| main_list(lists));
        lists.oldest(list.unwrap_or(WINDOW))
    }

    /// A victim that did not leave returns to the front of the list that it left. The protected
    /// segment may have been filled meanwhile, so its oldest page may have to leave it.
    fn restore_victim(&mut self, lists: &mut FrameLists, frame: FrameId, _page: PageKey) {
        let list = match lists.note(frame) {
            FROM_WINDOW => WINDOW,
            FROM_PROTECTED => PROTECTED,
            _ => PROBATIONARY,
        };
        lists.push(frame, list);
        self.demote(lists);
    }

    /// Adopts a page of another policy: a reused page as protected and used twice, any other as
    /// probationary and used once.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, was_reused: bool) {
        self.sketch.record_use(page);
        if was_reused {
            self.sketch.record_use(page);
        }
        lists.push(frame, if was_reused { PROTECTED } else { PROBATIONARY });
        self.demote(lists);
    }

    /// Sets the sizes of the lists and of the sketch for a memory of `pages` pages. The excess of
    /// the window becomes probationary.
    fn resize(&mut self, lists: &mut FrameLists, _bits: &dyn AccessBits, pages: u32) {
        self.set_limits(pages);
        self.sketch.resize(pages);
        self.refills_due = 0;
        while self.shorten_window(lists) {}
        self.demote(lists);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::simulation::trial::{TestAccessBits, victims};
    use super::*;
    use crate::splitmix;

    /// Worked by hand, five pages: a window of one, and a main space of four, which 1 to 4 enter in
    /// this order. 1 is used again. The candidate 5 was used once, as 2 was, and leaves for 6. The
    /// use of 6 makes it a candidate with two uses: it enters the main space, and 2 leaves for 7.
    #[test]
    fn a_candidate_used_more_often_replaces_the_oldest_probationary_page() {
        let references = [1, 2, 3, 4, 5, 1, 6, 6, 7];
        assert_eq!(victims(WTinyLfu::new(5), 5, references), [5, 2]);
    }

    /// Worked by hand, five pages as above: 1 to 4 are used twice. Evicted pages remain counted.
    /// Each time 6 returns it leaves again, until its uses are more than two: then 1 leaves, which
    /// the use of 4 demoted (the protected segment has three pages).
    #[test]
    fn uses_of_evicted_pages_count() {
        let references = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 7, 6, 7, 6, 7];
        assert_eq!(victims(WTinyLfu::new(5), 5, references), [5, 6, 7, 6, 7, 1]);
    }

    /// Key of the page in a frame.
    fn key(frame: u32) -> PageKey {
        PageKey::from_number(frame.into())
    }

    fn enter(policy: &mut WTinyLfu, lists: &mut FrameLists, frame: u32) {
        policy.enter(lists, FrameId(frame), key(frame), PageOrigin::Demand);
    }

    /// Five pages: frame 4 is in the window, and 0 to 3 are probationary. The uses of 4 and 0 are
    /// found late: 0 becomes protected, and the candidate 4 replaces 1, which was used once.
    #[test]
    fn unreported_uses_count_in_the_comparison() {
        let (mut policy, mut lists) = (WTinyLfu::new(5), FrameLists::new(5));
        (0..5).for_each(|frame| enter(&mut policy, &mut lists, frame));
        let mut bits = TestAccessBits { uses: [1, 0, 0, 0, 1].to_vec(), taken: 0 };
        assert_eq!(policy.victim(&mut lists, &mut bits), Some(FrameId(1)));
        let lists_of = [0, 4].map(|frame| lists.list_of(FrameId(frame)));
        assert_eq!(lists_of, [Some(PROTECTED), Some(PROBATIONARY)]);
    }

    /// A cache of 200 pages with a window of two is full. Groups of 20 new pages enter, each after
    /// 20 victims. The first group displaces two pages of the window and 18 of the main space. From
    /// then on the 20 pages of the window leave, because no new page is used again.
    #[test]
    fn pages_that_enter_together_compete_as_well() {
        let (mut policy, mut lists) = (WTinyLfu::new(200), FrameLists::new(200));
        (0..200).for_each(|frame| enter(&mut policy, &mut lists, frame));
        assert_eq!([WINDOW, PROBATIONARY].map(|list| lists.pages(list)), [2, 198]);
        let mut left = Vec::new();
        for group in 0..3 {
            for taken in 0..20 {
                let mut bits = TestAccessBits { taken, ..TestAccessBits::default() };
                left.push(policy.victim(&mut lists, &mut bits).unwrap().0);
            }
            for &frame in &left[20 * group..] {
                policy.evicted(&mut lists, FrameId(frame), key(frame));
            }
            (0..20).for_each(|nth| enter(&mut policy, &mut lists, 200 + 20 * group as u32 + nth));
        }
        let expected: Vec<u32> = [198, 199].into_iter().chain(0..18).chain(200..240).collect();
        assert_eq!(left, expected);
    }

    /// Counts of a reference model: exact ones, up to 15, of each page.
    struct Counts {
        of_pages: Vec<u64>,
        uses: u64,
        uses_max: u64,
    }

    impl Counts {
        fn record_use(&mut self, page: u64) {
            if self.of_pages[page as usize] == 15 {
                return;
            }
            self.of_pages[page as usize] += 1;
            self.uses += 1;
            if self.uses == self.uses_max {
                let odd_pages = self.of_pages.iter().filter(|&count| count % 2 == 1).count();
                self.uses = (self.uses - odd_pages as u64) / 2;
                self.of_pages.iter_mut().for_each(|count| *count /= 2);
            }
        }
    }

    /// Victims of a reference model: three vectors of pages, the oldest first, and exact counts.
    fn expected(pages: usize, references: &[u64]) -> Vec<u64> {
        let (mut window, mut new, mut protected) = (Vec::new(), Vec::new(), Vec::new());
        let (uses_max, mut gone) = (10 * pages as u64, Vec::new());
        let mut counts = Counts { of_pages: [0; 80].to_vec(), uses: 0, uses_max };
        let window_max = pages.div_ceil(100);
        for &page in references {
            let is_in_main = new.contains(&page) || protected.contains(&page);
            let is_present = is_in_main || window.contains(&page);
            for list in [&mut window, &mut new, &mut protected] {
                list.retain(|it| *it != page);
            }
            if is_in_main {
                protected.push(page);
            } else {
                window.push(page);
            }
            if protected.len() > (pages - window_max) * 4 / 5 {
                new.push(protected.remove(0));
            }
            if !is_present && window.len() > window_max {
                let candidate: u64 = window.remove(0);
                new.push(candidate);
                if window.len() + new.len() + protected.len() > pages {
                    let [left, right] = [candidate, new[0]].map(|it| counts.of_pages[it as usize]);
                    let victim = if left > right { new[0] } else { candidate };
                    new.retain(|it| *it != victim);
                    gone.push(victim);
                }
            }
            counts.record_use(page);
        }
        gone
    }

    /// Pseudo-random references to 80 pages, half of them to twenty pages that change. The sketch
    /// is as large as for 10,000 pages, so that no two pages share their counters.
    #[test]
    fn victims_equal_a_reference_model() {
        let draw = |at: u64| (splitmix::mixed(at) >> 32) % 80;
        let hot = |at: u64| (draw(at) % 20 + at / 1000) % 80;
        let page = |at: u64| if draw(at + 1) < 40 { draw(at) } else { hot(at) };
        let references: Vec<u64> = (0..20_000).map(page).collect();
        for pages in [1, 2, 5, 12, 30] {
            let mut policy = WTinyLfu::new(pages);
            policy.sketch = FrequencySketch::with_limit(10_000, 10 * u64::from(pages));
            let found = victims(policy, pages, references.iter().copied());
            assert_eq!(found, expected(pages as usize, &references), "{pages} pages");
        }
    }
}
