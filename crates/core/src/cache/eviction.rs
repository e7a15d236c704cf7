//! Freeing of frames: the victims of the eviction policy give up their frames, with the uses
//! reported by readers outside the machine.
//!
//! Readers may pin pages for any time, and copy from others for a moment; such a page is *in use*,
//! and can't leave. The following rules ensure that all other pages can be freed:
//!
//! 1. Every filled, unpinned page is on a list of the policy, on the list of prefetched pages, or
//!    *refused*: set aside until the scan is over. The policy returns a victim as long as it has a
//!    page. A scan therefore ends with enough frames, or with every such page refused.
//! 2. A scan queries the uses of at most the number of pages that exist. From then on a page is
//!    spared only because it is in use. A scan therefore ends.
//! 3. During a scan a pin may move to a page behind the scan while another ends before it. Pages
//!    can then refuse one after another, although only one at a time is pinned. The missing frames
//!    are therefore searched for once more while no reader may begin to pin
//!    ([`PageSharer::let_hold`]). Each pin of that time then refuses at most one recall: it ends,
//!    or stays on its page.
//! 4. A page that was forgotten while in use stays pinned until it is returned. Returned pages are
//!    processed before that scan.
//!
//! Let `P` pages be pinned or in flight, and `H` pinned by readers at most (in the sharer's count,
//! in which a pin ends only after its page was returned). All but `P + H` frames are then free or
//! can be freed, except those that are being copied from at that moment. A read that finds too few
//! frames for this reason waits ([`Cache::promise`]).

use super::ahead::first_use;
use super::lender::PageSharer;
use super::lists::FrameList;
use super::{Cache, CacheCounters, Frame, FrameId, FrameSet, FrameState, LeavingChoice, UseCount};
use crate::eviction::{AccessBits, PageKey};
use crate::readahead::Credit;

use alloc::boxed::Box;

/// All frames are checked once while this fraction of the frames is added as pages: an eighth.
pub(super) const SETTLED: u32 = 8;

/// Most pages that are recalled together.
pub(super) const RECALL_BATCH_MAX: usize = 64;

impl Cache {
    /// Reserves frames for `pages` pages. They stay free until the same number of pages is added
    /// pinned, or the reservation is [given back](Cache::give_back). Returns false, without a
    /// reservation, while too many pages are being copied from, which ends by itself. Without a
    /// sharer the caller's own budget is sufficient, and no frames are reserved.
    pub fn promise(&mut self, pages: u32) -> bool {
        if self.lender.is_none() {
            return true;
        }
        let is_had = self.free_unreserved(pages) >= pages;
        self.promised += if is_had { pages } else { 0 };
        is_had
    }

    /// Cancels a reservation of frames that are no longer needed.
    pub fn give_back(&mut self, pages: u32) {
        if self.lender.is_some() {
            self.promised -= pages;
        }
    }

    /// Number of reserved free frames.
    pub fn reserved_pages(&self) -> u32 {
        self.promised
    }

    /// Number of pages, up to `pages`, that may be prefetched: within their limit, and with an
    /// unreserved free frame.
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

    /// Number of frames, up to `wanted`, that are available; the caller takes them at once.
    pub(super) fn frames_for(&mut self, wanted: u32, is_promised: bool) -> u32 {
        if is_promised && self.lender.is_some() {
            self.promised -= wanted;
            return wanted;
        }
        self.free_unreserved(wanted).min(wanted)
    }

    /// Frees frames until `wanted` are free in addition to the reserved ones, as far as possible.
    /// Returns their number.
    pub(super) fn free_unreserved(&mut self, wanted: u32) -> u32 {
        self.reserve(self.promised + wanted);
        self.free_pages() - self.promised
    }

    /// Frees frames until `wanted` are free, as far as possible. The first freed frame is the first
    /// to be reused: pages that were neighbours in memory are replaced by neighbours.
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

    /// Performs one scan.
    fn scan_until_free(&mut self, wanted: u32) {
        while self.free_pages() < wanted && self.eviction(wanted - self.free_pages()) {}
        self.take_back();
    }

    fn let_hold(&mut self, may_hold: bool) {
        if let Some(lender) = &mut self.lender {
            lender.let_hold(may_hold);
        }
    }

    /// Frees the frames of the next victims, between one and `wanted`. Returns false if all pages
    /// are in use.
    fn eviction(&mut self, wanted: u32) -> bool {
        // These lists have only memory, and only pages that no reader can see.
        let unseen =
            self.places.oldest(FrameList::COLD).or_else(|| self.places.oldest(FrameList::AHEAD));
        if let Some(id) = unseen {
            self.evict(id);
            return true;
        }
        // Readers outside the machine continue to use pages meanwhile.
        let mut asks_left = self.frames.len() as u32;
        loop {
            let mut victims = [FrameId(0); RECALL_BATCH_MAX];
            let mut count = 0;
            while count < RECALL_BATCH_MAX.min(wanted as usize) {
                let Some(id) = self.next_victim(count as u32, &mut asks_left) else { break };
                // A pinned page stays off the lists until its last unpin.
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

    /// Takes the next page of a file to leave off its list. `taken`: the number of victims taken
    /// before it.
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

    /// The page of a file that eviction would check next.
    pub(super) fn oldest_of_files(&mut self) -> Option<FrameId> {
        let promised = self.places.oldest(FrameList::PROMISED);
        match promised.filter(|&id| self.is_stale(id)) {
            Some(id) => Some(id),
            None => self.policy.oldest(&mut self.places).or(promised),
        }
    }

    /// Evicts the next page of a file; `None` if it is pinned, or in use.
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

    /// Puts an unlisted page of a file on its list.
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

    /// Evicts a page, and reports it to the policy if the policy had it.
    pub(super) fn evict_by_policy(&mut self, id: FrameId) {
        let is_memory = self.frame(id).memory.is_memory;
        if !is_memory && (!self.unused.contains(id) || self.policy.enters_unused()) {
            let key = self.frame(id).key();
            self.policy.evicted(&mut self.places, id, key);
        }
        self.evict(id);
    }

    /// Returns and resets the uses of the page by readers outside the machine: 0, 1, or 2 for more.
    pub(super) fn uses(&mut self, id: FrameId) -> u8 {
        uses_of(&mut self.lender, &self.frames[id.0 as usize], id)
    }

    /// Collects first uses of prefetched pages from the next frames when pages are added. The count
    /// of unused prefetched pages is thus late by the pages added meanwhile: at most an eighth of
    /// the memory.
    pub(super) fn settle_next(&mut self, added: u32) {
        if self.lender.is_none() {
            return;
        }
        self.collect_due += added;
        if self.collect_due < self.collect_each {
            return;
        }
        // Frames beyond these have never held a page.
        let words = (self.frames.len() as u32).div_ceil(u64::BITS).max(1);
        for _ in 0..words.min(self.collect_due / self.collect_each) {
            let word = self.collect_from;
            self.collect_from = (word + 1) % words;
            self.collect_word_uses(word);
        }
        self.collect_due %= self.collect_each;
    }

    /// Collects the first uses of all prefetched pages.
    pub fn collect_first_uses(&mut self) {
        if self.lender.is_some() {
            (0..(self.frames.len() as u32).div_ceil(u64::BITS))
                .for_each(|word| self.collect_word_uses(word));
        }
    }

    /// Collects the uses of the prefetched pages in one word of frames.
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

    /// Recalls at most [`RECALL_BATCH_MAX`] pages. Returns a bit for each refusal, the lowest for
    /// the first page.
    pub(super) fn recall_all(&mut self, ids: &[FrameId]) -> u64 {
        if self.lender.is_none() {
            return 0;
        }
        for &id in ids {
            // A page with an earlier use is not waste.
            if self.unused.contains(id) && self.uses(id) > 0 {
                self.note_use(id);
            }
        }
        self.lender.as_mut().map_or(0, |lender| lender.recall_all(ids))
    }

    /// Removes a page and counts its eviction.
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

/// Access of a policy to the cache while it selects a victim.
struct CacheAccessBits<'a> {
    lender: &'a mut Option<Box<dyn PageSharer>>,
    frames: &'a mut [Frame],
    unused: &'a mut FrameSet,
    counters: &'a mut CacheCounters,
    credits: &'a mut [Credit],
    /// Victims that were taken and have not left yet.
    taken: u32,
    /// Number of queries of uses left in this scan.
    asks_left: &'a mut u32,
}

impl AccessBits for CacheAccessBits<'_> {
    /// Returns and resets the access bits of a page, and counts a first use of a prefetched one.
    /// The queries of one scan are bounded by `asks_left`; after that every page counts as unused.
    fn uses(&mut self, id: FrameId) -> u8 {
        let frame = &mut self.frames[id.0 as usize];
        if frame.memory.is_memory {
            return u8::from(frame.pins == 0 && core::mem::take(&mut frame.is_referenced));
        }
        // For a page in flight, the sharer's access bits belong to the frame's previous page. A
        // pinned page can't be evicted, and is checked after its return.
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

/// Returns and resets the uses of a file's page: 0, 1, or 2 for more.
fn uses_of(lender: &mut Option<Box<dyn PageSharer>>, frame: &Frame, id: FrameId) -> u8 {
    let lends = !frame.memory.is_memory;
    match lender.as_mut().filter(|_| lends).map_or(UseCount::None, |lender| lender.uses(id)) {
        UseCount::None => 0,
        UseCount::Once => 1,
        UseCount::Again => 2,
    }
}

/// The frames whose bits are set; bit 0 stands for `first`.
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

    /// As in the kernel, a page enters its list when it is added: a window that arrives before the
    /// one in front of it is not evicted first.
    #[test]
    fn pages_are_evicted_in_order_of_addition_not_of_arrival() {
        let mut cache = Cache::new(3, Box::new(TwoLists));
        let file = cache.add_file();
        let [first, second, slow] = [0, 1, 2].map(|page| add(&mut cache, file, page));
        cache.fill(second);
        cache.fill(first);
        assert_eq!(add(&mut cache, file, 3), first);
        // The page that is still in flight is skipped, and moves to the front.
        assert_eq!(add(&mut cache, file, 4), second);
        cache.fill(slow);
        assert_eq!(add(&mut cache, file, 5), slow);
    }
}
