//! Frames are made free: the pages that the reclaim law names give theirs up, with what
//! readers outside the machine say of their use.
//!
//! Readers may hold pages for as long as they like, and copy from others for a moment;
//! such a page is *in use*, and can't go. That the rest can always be had rests on these:
//!
//! 1. Every filled page that nobody has pinned is on a list of the law's, promised, or
//!    *refused*: out of the way until the scan is over. The law names a victim as long as it has a
//!    page. So a scan ends with enough frames, or with every such page refused.
//! 2. A scan asks of no more pages than there are whether they were used: from then on a page is
//!    spared only because it is in use. So a scan ends.
//! 3. A hold may come to a page behind the scan, and another end before it: so pages can
//!    refuse one after the other of which no more than one is held at a time. Therefore what
//!    couldn't be had so is looked for once more while nobody may begin to hold
//!    ([`PageSharer::let_hold`]). Each hold of that time then refuses one look
//!    at most: it ends, or stays where it is.
//! 4. A page that was forgotten while it was in use is held until it is returned, and
//!    what is returned is taken in before that scan.
//!
//! With `P` pages pinned or on their way, and `H` held at the most (in the lender's count,
//! in which a hold ends only after its page is returned), all but `P + H` frames are free or can
//! be freed, except those that are copied from at that moment. A read that finds too few
//! because of these waits ([`Cache::promise`]).

use super::ahead::first_use;
use super::lender::PageSharer;
use super::lists::FrameList;
use super::{Cache, CacheCounters, Frame, FrameId, FrameSet, FrameState, LeavingChoice, UseCount};
use crate::eviction::{AccessBits, PageKey};
use crate::readahead::Credit;

use alloc::boxed::Box;

/// While as many pages are added as an eighth of the frames, all frames are looked at once.
pub(super) const SETTLED: u32 = 8;

/// Pages that are recalled together at the most.
pub(super) const RECALL_BATCH_MAX: usize = 64;

impl Cache {
    /// Promises frames for so many pages: they are kept free until as many are added pinned, or
    /// the promise is [given back](Cache::give_back). False, and nothing is promised, while too
    /// many pages are copied from, which ends by itself. Without a lender the caller's own
    /// budget is all that there is to know, and nothing is kept.
    pub fn promise(&mut self, pages: u32) -> bool {
        if self.lender.is_none() {
            return true;
        }
        let is_had = self.free_unreserved(pages) >= pages;
        self.promised += if is_had { pages } else { 0 };
        is_had
    }

    /// Takes back a promise of frames that are not needed any more.
    pub fn give_back(&mut self, pages: u32) {
        if self.lender.is_some() {
            self.promised -= pages;
        }
    }

    /// How many free frames are promised.
    pub fn reserved_pages(&self) -> u32 {
        self.promised
    }

    /// How many of so many pages that nobody was promised a frame for would find one, and may be
    /// read ahead.
    pub fn room_ahead(&mut self, pages: u64) -> u64 {
        let pages = self.prefetch_room(pages);
        match &self.lender {
            None => pages,
            Some(_) => {
                let wanted = pages.min(self.budget_pages().into()) as u32;
                self.free_unreserved(wanted).min(wanted).into()
            }
        }
    }

    /// How many of the `wanted` frames are there now; they are taken at once.
    pub(super) fn frames_for(&mut self, wanted: u32, is_promised: bool) -> u32 {
        if is_promised && self.lender.is_some() {
            self.promised -= wanted;
            return wanted;
        }
        self.free_unreserved(wanted).min(wanted)
    }

    /// Sees to it that `wanted` frames are free beside those that are promised, as far as pages
    /// can go; gives how many are.
    pub(super) fn free_unreserved(&mut self, wanted: u32) -> u32 {
        self.reserve(self.promised + wanted);
        self.free_pages() - self.promised
    }

    /// Sees to it that `wanted` frames are free, as far as pages can go. The first to go is
    /// the first to be used again: pages that came in side by side in memory leave their
    /// place to others that do.
    fn reserve(&mut self, wanted: u32) {
        if self.free_pages() >= wanted {
            return;
        }
        let mark = self.supply.mark();
        self.scan_until_free(wanted);
        if self.free_pages() < wanted && self.lender.is_some() {
            self.let_hold(false);
            self.take_returned();
            self.scan_until_free(wanted);
            self.let_hold(true);
        }
        self.supply.turn(mark);
    }

    /// One scan.
    fn scan_until_free(&mut self, wanted: u32) {
        while self.free_pages() < wanted && self.eviction(wanted - self.free_pages()) {}
        self.take_back();
    }

    fn let_hold(&mut self, may_hold: bool) {
        if let Some(lender) = &mut self.lender {
            lender.let_hold(may_hold);
        }
    }

    /// Frees frames of the pages that reclaim likes least, one at least and `wanted` at the
    /// most; false when all are in use.
    fn eviction(&mut self, wanted: u32) -> bool {
        // Only memory is ever on these lists, and only what nobody can see.
        let unseen =
            self.places.oldest(FrameList::COLD).or_else(|| self.places.oldest(FrameList::AHEAD));
        if let Some(id) = unseen {
            self.evict(id);
            return true;
        }
        // Readers that the machine doesn't see go on using pages meanwhile.
        let mut asks_left = self.frames.len() as u32;
        loop {
            let mut victims = [FrameId(0); RECALL_BATCH_MAX];
            let mut count = 0;
            while count < RECALL_BATCH_MAX.min(wanted as usize) {
                let Some(id) = self.next_victim(count as u32, &mut asks_left) else { break };
                // One that is pinned stays off the lists until its last unpin puts it back.
                let frame = self.frame(id);
                if frame.is_held() {
                    self.places.push(id, FrameList::REFUSED);
                } else if frame.pins == 0 && frame.state == FrameState::Filled {
                    victims[count] = id;
                    count += 1;
                }
            }
            let victims = &victims[..count];
            let refused = self.recall_all(victims);
            for (nth, &id) in victims.iter().enumerate() {
                match refused >> nth & 1 {
                    0 => self.evict_by_policy(id),
                    _ => self.places.push(id, FrameList::REFUSED),
                }
            }
            if victims.is_empty() || (refused.count_ones() as usize) < count {
                return count > 0;
            }
        }
    }

    /// Takes the page of a file that goes next off its list, where so many were taken before it.
    pub(super) fn next_victim(&mut self, taken: u32, asks_left: &mut u32) -> Option<FrameId> {
        while let Some(id) = self.places.oldest(FrameList::PROMISED).filter(|&id| self.is_stale(id))
        {
            if !self.enter_policy_if_used(id, asks_left) {
                self.places.unlink(id);
                return Some(id);
            }
        }
        let Cache { policy, places, lender, frames, unused, counters, credits, .. } = self;
        let mut looking =
            CacheAccessBits { lender, frames, unused, counters, credits, taken, asks_left };
        policy.victim(places, &mut looking).or_else(|| places.pop(FrameList::PROMISED))
    }

    /// The page of a file that reclaim would look at next.
    pub(super) fn oldest_of_files(&mut self) -> Option<FrameId> {
        let promised = self.places.oldest(FrameList::PROMISED);
        match promised.filter(|&id| self.is_stale(id)) {
            Some(id) => Some(id),
            None => self.policy.oldest(&mut self.places).or(promised),
        }
    }

    /// Has the page of a file go that reclaim likes least; `None` when it is pinned, or in use.
    pub(super) fn choose_of_files(&mut self) -> Option<LeavingChoice> {
        let id = self.next_victim(0, &mut (self.frames.len() as u32))?;
        if self.frame(id).pins > 0 || self.state(id) != FrameState::Filled {
            return None;
        }
        if self.recall_all(&[id]) != 0 {
            self.list_file(id);
            return None;
        }
        self.evict_by_policy(id);
        Some(LeavingChoice::Gone)
    }

    /// Puts a page of a file that is on no list where it belongs.
    pub(super) fn list_file(&mut self, id: FrameId) {
        if self.places.is_listed(id) {
            return;
        }
        if self.unused.contains(id) && !self.policy.enters_unused() {
            self.places.push(id, FrameList::PROMISED);
        } else {
            let key = self.frame(id).key();
            self.policy.put_back(&mut self.places, id, key);
        }
    }

    pub(super) fn evict_by_policy(&mut self, id: FrameId) {
        let is_memory = self.frame(id).memory.is_memory;
        if !is_memory && (!self.unused.contains(id) || self.policy.enters_unused()) {
            let key = self.frame(id).key();
            self.policy.evicted(&mut self.places, id, key);
        }
        self.evict(id);
    }

    /// How often the page was lent since this was last asked: 0, 1, or 2 for more.
    pub(super) fn uses(&mut self, id: FrameId) -> u8 {
        uses_of(&mut self.lender, &self.frames[id.0 as usize], id)
    }

    /// Pages are added: takes in which of the next frames were lent for the first time. So
    /// what is counted as read ahead and not used is late by as many pages as are added
    /// meanwhile: an eighth of the memory at the most.
    pub(super) fn settle_next(&mut self, added: u32) {
        if self.lender.is_none() {
            return;
        }
        self.collect_due += added;
        if self.collect_due < self.collect_each {
            return;
        }
        // Those beyond have held nothing yet.
        let words = (self.frames.len() as u32).div_ceil(u64::BITS).max(1);
        for _ in 0..words.min(self.collect_due / self.collect_each) {
            let word = self.collect_from;
            self.collect_from = (word + 1) % words;
            self.collect_word_uses(word);
        }
        self.collect_due %= self.collect_each;
    }

    /// Takes in which of the pages that were read ahead were lent for the first time.
    pub fn collect_first_uses(&mut self) {
        if self.lender.is_some() {
            (0..(self.frames.len() as u32).div_ceil(u64::BITS))
                .for_each(|word| self.collect_word_uses(word));
        }
    }

    fn collect_word_uses(&mut self, word: u32) {
        let (first, unused) = self.unused.word_at(word);
        let is_filled = |&id: &FrameId| self.state(id) == FrameState::Filled;
        let filled = frames_of(first, unused).filter(is_filled);
        let wanted = filled.fold(0, |wanted, id| wanted | 1 << (id.0 - first.0));
        if wanted == 0 {
            return;
        }
        let Some(lender) = &mut self.lender else { return };
        let [used, again] = lender.uses_of(first, wanted);
        for id in frames_of(first, used) {
            self.touch(id);
            if again >> (id.0 - first.0) & 1 != 0 {
                self.touch(id);
            }
        }
    }

    /// Has pages lent no more, [`RECALL_BATCH_MAX`] at the most; gives a bit, the lowest for the first,
    /// for each that somebody still holds.
    pub(super) fn recall_all(&mut self, ids: &[FrameId]) -> u64 {
        if self.lender.is_none() {
            return 0;
        }
        for &id in ids {
            // Of one that was used before it is known that it is no waste.
            if self.unused.contains(id) && self.uses(id) > 0 {
                self.note_use(id);
            }
        }
        self.lender.as_mut().map_or(0, |lender| lender.recall_all(ids))
    }

    pub(super) fn evict(&mut self, id: FrameId) {
        self.counters.evicted_pages += 1;
        let frame = self.frame(id);
        if frame.memory.is_known {
            let key = frame.key();
            self.policy.evicted(&mut self.places, id, key);
        }
        if let Some(refaults) = &mut self.refaults {
            refaults.leave(self.frames[id.0 as usize].key());
        }
        self.remove(id);
    }
}

/// What a law can see of the cache while it looks for a victim.
struct CacheAccessBits<'a> {
    lender: &'a mut Option<Box<dyn PageSharer>>,
    frames: &'a mut [Frame],
    unused: &'a mut FrameSet,
    counters: &'a mut CacheCounters,
    credits: &'a mut [Credit],
    taken: u32,
    asks_left: &'a mut u32,
}

impl AccessBits for CacheAccessBits<'_> {
    fn uses(&mut self, id: FrameId) -> u8 {
        let frame = &mut self.frames[id.0 as usize];
        if frame.memory.is_memory {
            return u8::from(frame.pins == 0 && core::mem::take(&mut frame.is_referenced));
        }
        // Of a page on its way the lender knows only who used the one before; one that is pinned
        // is no victim, and is asked about when it has come back.
        let is_asked = frame.pins == 0 && frame.state == FrameState::Filled && *self.asks_left > 0;
        if !is_asked {
            return 0;
        }
        *self.asks_left -= 1;
        let uses = uses_of(self.lender, frame, id);
        if uses > 0 {
            first_use(self.unused, self.counters, self.credits, frame, id);
        }
        uses
    }

    fn page(&self, id: FrameId) -> PageKey {
        self.frames[id.0 as usize].key()
    }

    fn taken(&self) -> u32 {
        self.taken
    }
}

fn uses_of(lender: &mut Option<Box<dyn PageSharer>>, frame: &Frame, id: FrameId) -> u8 {
    let lends = !frame.memory.is_memory;
    match lender.as_mut().filter(|_| lends).map_or(UseCount::None, |lender| lender.uses(id)) {
        UseCount::None => 0,
        UseCount::Once => 1,
        UseCount::Again => 2,
    }
}

/// The frames whose bits are set, the lowest that of `first`.
fn frames_of(first: FrameId, mut bits: u64) -> impl Iterator<Item = FrameId> {
    core::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(FrameId(first.0 + lowest))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{FileId, Mark};
    use super::*;
    use crate::eviction::TwoLists;
    use crate::readahead::Folio;

    fn add(cache: &mut Cache, file: FileId, page: u64) -> FrameId {
        cache.add(file, page, Folio::holding(page, 0), Mark::Clear, true).unwrap()
    }

    /// As in the kernel, where a page enters its list as it enters the cache: a
    /// window that comes before the one in front of it is not the first to go.
    #[test]
    fn pages_are_evicted_in_order_of_addition_not_of_arrival() {
        let mut cache = Cache::new(3, Box::new(TwoLists));
        let file = cache.add_file();
        let [first, second, slow] = [0, 1, 2].map(|page| add(&mut cache, file, page));
        cache.fill(second);
        cache.fill(first);
        assert_eq!(add(&mut cache, file, 3), first);
        // The one that is still on its way is passed over, and comes to the front.
        assert_eq!(add(&mut cache, file, 4), second);
        cache.fill(slow);
        assert_eq!(add(&mut cache, file, 5), slow);
    }
}
