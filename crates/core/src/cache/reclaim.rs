//! Reclaim: which filled page gives its frame up when memory is short, with what
//! readers outside the machine say of its use.

use super::lists::List;
use super::{Cache, FrameId, FrameState, Uses};

/// While as many pages are added as an eighth of the frames, all frames are looked at once.
const SETTLED: u32 = 8;

/// Pages that are recalled together at the most.
const VICTIMS_MAX: usize = 64;

impl Cache {
    /// Sees to it that `wanted` frames are free, as far as pages can go. The first to go is
    /// the first to be used again: pages that came in side by side in memory leave their
    /// place to others that do.
    pub(super) fn reserve(&mut self, wanted: u32) {
        let free_before = self.free.len();
        while self.free_pages() < wanted && self.reclaim(wanted - self.free_pages()) {}
        // Frames are popped from the end.
        self.free[free_before..].reverse();
    }

    /// Frees frames of the pages that reclaim likes least, one at least and `wanted` at the
    /// most; false when all are held.
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
            let mut victims = [FrameId(0); VICTIMS_MAX];
            let mut count = 0;
            while looks < 2 * listed && count < VICTIMS_MAX.min(wanted as usize) {
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
            let refused = self.lender.as_mut().map_or(0, |lender| lender.recall_all(victims));
            for (nth, &id) in victims.iter().enumerate() {
                match refused >> nth & 1 {
                    0 => self.evict(id),
                    _ => self.lists.push_front(&mut self.frames, id, List::Inactive),
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
        let words = self.unused.words();
        let pages_each = (self.budget_pages() / SETTLED / words).max(1);
        for _ in 0..words.min(self.settle_due / pages_each) {
            let word = self.settle_from;
            self.settle_from = (word + 1) % words;
            for id in self.unused.of_word(word) {
                if self.state(id) == FrameState::Filled {
                    (0..self.uses(id)).for_each(|_| self.touch(id));
                }
            }
        }
        self.settle_due %= pages_each;
    }

    /// Has the page lent no more; false if somebody still holds it.
    pub(super) fn recall(&mut self, id: FrameId) -> bool {
        if self.uses(id) > 0 {
            self.touch(id);
        }
        self.lender.as_mut().is_none_or(|lender| lender.recall(id))
    }

    pub(super) fn evict(&mut self, id: FrameId) {
        self.counters.evicted_pages += 1;
        self.remove(id);
    }
}
