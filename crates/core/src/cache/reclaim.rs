//! Reclaim: which filled page gives its frame up when memory is short, with what
//! readers outside the machine say of its use.
//!
//! Readers may hold pages for as long as they like, and copy from others for a moment;
//! such a page is *in use*, and can't go. That the rest can always be had rests on these:
//!
//! 1. Every filled page that nobody has pinned is on the inactive list, on the active one, or
//!    *refused*: out of the way until the scan is over. When the inactive list is at its end, it
//!    is refilled from the active one, whatever is refused. So a scan ends with enough frames,
//!    or with every such page refused.
//! 2. The first look at a page may spare it because it was used, the second only because
//!    it is in use then: so a scan ends.
//! 3. A hold may come to a page behind the scan, and another end before it: so pages can
//!    refuse one after the other of which no more than one is held at a time. Therefore what
//!    couldn't be had so is looked for once more while nobody may begin to hold
//!    ([`Lender::let_hold`](super::Lender::let_hold)). Each hold of that time then refuses one look
//!    at most: it ends, or stays where it is.
//! 4. A page that was forgotten while it was in use is held until it is returned, and
//!    what is returned is taken in before that scan.
//!
//! With `P` pages pinned or on their way, and `H` held at the most (in the lender's count,
//! in which a hold ends only after its page is returned), all but `P + H` frames are free or can
//! be freed, except those that are copied from at that moment. A read that finds too few
//! because of these waits ([`Cache::promise`]).

use super::lists::List;
use super::{Cache, FrameId, FrameState, Uses};

/// While as many pages are added as an eighth of the frames, all frames are looked at once.
pub(super) const SETTLED: u32 = 8;

/// Pages that are recalled together at the most.
pub(super) const TOGETHER_MAX: usize = 64;

impl Cache {
    /// Promises frames for so many pages: they are kept free until as many are added pinned, or
    /// the promise is [given back](Cache::give_back). False, and nothing is promised, while too
    /// many pages are copied from, which ends by itself. Without a lender the caller's own
    /// budget is all that there is to know, and nothing is kept.
    pub fn promise(&mut self, pages: u32) -> bool {
        if self.lender.is_none() {
            return true;
        }
        let is_had = self.free_beside(pages) >= pages;
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
    pub fn promised_pages(&self) -> u32 {
        self.promised
    }

    /// How many of so many pages that nobody was promised a frame for would find one.
    pub fn room_ahead(&mut self, pages: u64) -> u64 {
        match &self.lender {
            None => pages,
            Some(_) => {
                let wanted = pages.min(self.budget_pages().into()) as u32;
                self.free_beside(wanted).min(wanted).into()
            }
        }
    }

    /// How many of the `wanted` frames are there now; they are taken at once.
    pub(super) fn frames_for(&mut self, wanted: u32, is_promised: bool) -> u32 {
        if is_promised && self.lender.is_some() {
            self.promised -= wanted;
            return wanted;
        }
        self.free_beside(wanted).min(wanted)
    }

    /// Sees to it that `wanted` frames are free beside those that are promised, as far as pages
    /// can go; gives how many are.
    pub(super) fn free_beside(&mut self, wanted: u32) -> u32 {
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
        self.reclaim_up_to(wanted);
        if self.free_pages() < wanted && self.lender.is_some() {
            self.let_hold(false);
            self.take_returned();
            self.reclaim_up_to(wanted);
            self.let_hold(true);
        }
        self.supply.turn(mark);
    }

    /// One scan.
    fn reclaim_up_to(&mut self, wanted: u32) {
        while self.free_pages() < wanted && self.reclaim(wanted - self.free_pages()) {}
        while let Some(id) = self.lists.oldest(List::Refused) {
            self.lists.unlink(&mut self.frames, id);
            self.lists.push_front(&mut self.frames, id, List::Inactive);
        }
    }

    fn let_hold(&mut self, may_hold: bool) {
        if let Some(lender) = &mut self.lender {
            lender.let_hold(may_hold);
        }
    }

    /// Frees frames of the pages that reclaim likes least, one at least and `wanted` at the
    /// most; false when all are in use.
    fn reclaim(&mut self, wanted: u32) -> bool {
        // Only memory is ever on these lists, and only what nobody can see.
        let unseen = self.lists.oldest(List::Cold).or_else(|| self.lists.oldest(List::Ahead));
        if let Some(id) = unseen {
            self.evict(id);
            return true;
        }
        // Readers that the machine doesn't see go on using pages meanwhile: only
        // the first look at each may spare it for that.
        let listed = self.lists.pages(List::Inactive) + self.lists.pages(List::Active);
        let mut looks = 0;
        while looks < 2 * listed {
            let mut victims = [FrameId(0); TOGETHER_MAX];
            let mut count = 0;
            while looks < 2 * listed && count < TOGETHER_MAX.min(wanted as usize) {
                let Some(id) = self.lists.pop_victim(&mut self.frames, count as u32) else { break };
                looks += 1;
                if self.frame(id).pins > 0 || self.state(id) != FrameState::Filled {
                    continue;
                }
                if looks <= listed && self.is_used_again(id) {
                    self.lists.push_front(&mut self.frames, id, List::Active);
                    continue;
                }
                victims[count] = id;
                count += 1;
            }
            let victims = &victims[..count];
            let refused = self.recall_all(victims);
            for (nth, &id) in victims.iter().enumerate() {
                match refused >> nth & 1 {
                    0 => self.evict(id),
                    _ => self.lists.push_front(&mut self.frames, id, List::Refused),
                }
            }
            if victims.is_empty() || (refused.count_ones() as usize) < count {
                return count > 0;
            }
        }
        false
    }

    /// Takes in what the lender knows of the use of a page that is off its list;
    /// true if it has become active by that.
    pub(super) fn is_used_again(&mut self, id: FrameId) -> bool {
        let uses = self.uses(id);
        if uses == 0 {
            return false;
        }
        let was_referenced = self.frame(id).is_referenced;
        self.touch(id);
        let is_again = was_referenced || uses > 1;
        self.frame_mut(id).is_referenced = !is_again;
        is_again
    }

    /// How often the page was lent since this was last asked: 0, 1, or 2 for more.
    pub(super) fn uses(&mut self, id: FrameId) -> u8 {
        let lends = !self.frame(id).memory.is_memory;
        match self.lender.as_mut().filter(|_| lends).map_or(Uses::None, |lender| lender.uses(id)) {
            Uses::None => 0,
            Uses::Once => 1,
            Uses::Again => 2,
        }
    }

    /// Pages are added: takes in which of the next frames were lent for the first time. So
    /// what is counted as read ahead and not used is late by as many pages as are added
    /// meanwhile: an eighth of the memory at the most.
    pub(super) fn settle_next(&mut self, added: u32) {
        if self.lender.is_none() {
            return;
        }
        self.settle_due += added;
        if self.settle_due < self.settle_each {
            return;
        }
        // Those beyond have held nothing yet.
        let words = (self.frames.len() as u32).div_ceil(u64::BITS).max(1);
        for _ in 0..words.min(self.settle_due / self.settle_each) {
            let word = self.settle_from;
            self.settle_from = (word + 1) % words;
            self.settle_word(word);
        }
        self.settle_due %= self.settle_each;
    }

    fn settle_word(&mut self, word: u32) {
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

    /// Has pages lent no more, [`TOGETHER_MAX`] at the most; gives a bit, the lowest for the first,
    /// for each that somebody still holds.
    pub(super) fn recall_all(&mut self, ids: &[FrameId]) -> u64 {
        if self.lender.is_none() {
            return 0;
        }
        for &id in ids {
            // Of one that was used before it is known that it is no waste.
            if self.unused.contains(id) && self.uses(id) > 0 {
                self.touch(id);
            }
        }
        self.lender.as_mut().map_or(0, |lender| lender.recall_all(ids))
    }

    pub(super) fn evict(&mut self, id: FrameId) {
        self.counters.evicted_pages += 1;
        self.remove(id);
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
