//! Freeing of frames: the victims of the eviction policy give up their frames, with the uses
//! reported by readers outside the machine. The *sharer* ([`PageSharer`]) shares pages with these
//! readers, and *recalls* a page before its frame is reused.
//!
//! Readers may pin pages for any time, and copy from others for a moment; such a page is *in use*,
//! and can't leave. The following rules ensure that all other pages can be freed:
//!
//! 1. Every filled, unpinned page is on a list of the policy, on the list of prefetched pages, or
//!    *refused*: set aside until the scan is over. The policy returns a victim as long as it has a
//!    page. A scan therefore ends with enough frames, or with every such page refused.
//! 2. Each step of a scan (`evict_victims`) queries the uses of a bounded number of pages. From
//!    then on a page is spared only because it is in use. A step, and so a scan, therefore ends.
//! 3. During a scan a pin may move to a page behind the scan while another ends before it. Pages
//!    can then refuse one after another, although only one at a time is pinned. The missing frames
//!    are therefore searched for once more while no reader may begin to pin
//!    ([`PageSharer::allow_pins`]). Each pin of that time then refuses at most one recall: it ends,
//!    or stays on its page.
//! 4. A page that was forgotten while in use stays pinned until it is returned. Returned pages are
//!    processed before that scan.
//!
//! Let `P` pages be pinned or in flight, and `H` pinned by readers at most (in the sharer's count,
//! in which a pin ends only after its page was returned). All but `P + H` frames are then free or
//! can be freed, except those that are being copied from at that moment. A read that finds too few
//! frames for this reason waits ([`Cache::reserve_frames`]).

use super::ahead::count_first_use;
use super::lists::FrameList;
use super::sharer::PageSharer;
use super::{Cache, CacheCounters, Frame, FrameId, FrameSet, FrameState, LeavingChoice, UseCount};
use crate::eviction::{AccessBits, PageKey};
use crate::readahead::Credit;

use alloc::boxed::Box;

/// All frames are checked once while this fraction of the frames is added as pages: an eighth.
const COLLECTION_DIVISOR: u32 = 8;

/// Value of `may_pin` while readers may begin to pin frames.
const PINS_ALLOWED: bool = true;

/// Value of `may_pin` during the second scan.
const PINS_FORBIDDEN: bool = false;

/// Number of added pages for which one of the `words` of the bitmap is checked, at least 1. All
/// words are checked once while an eighth of the frames is added.
pub(super) fn collect_interval(frames_max: u32, words: u32) -> u32 {
    (frames_max / COLLECTION_DIVISOR / words.max(1)).max(1)
}

/// Most pages that are recalled together: one bit each in a word of refusals.
pub(super) const RECALL_BATCH_MAX: usize = 64;

impl Cache {
    /// Reserves frames for `pages` pages. They stay free until the same number of pages is added
    /// pinned, or the reservation is [given back](Cache::release_reservation). Returns false,
    /// without a reservation, if too few frames can be freed. Within the memory's budget this only
    /// happens while too many pages are being copied from, which ends by itself. Without a sharer
    /// the caller's own budget is sufficient, and no frames are reserved.
    pub fn reserve_frames(&mut self, pages: u32) -> bool {
        if self.sharer.is_none() {
            return true;
        }
        let is_available = self.evict_until_unreserved(pages) >= pages;
        self.reserved += if is_available { pages } else { 0 };
        is_available
    }

    /// Cancels the reservation of `pages` frames that are not needed. No effect without a sharer.
    pub fn release_reservation(&mut self, pages: u32) {
        if self.sharer.is_some() {
            self.reserved -= pages;
        }
    }

    /// Number of reserved free frames.
    pub fn reserved_pages(&self) -> u32 {
        self.reserved
    }

    /// Number of pages, up to `pages`, that may be prefetched: within their limit, and, with a
    /// sharer, with an unreserved free frame. Frees frames for them as far as possible. Without a
    /// sharer, the caller checks that frames are available.
    pub fn room_ahead(&mut self, pages: u64) -> u64 {
        let allowed_pages = self.allowed_prefetch_pages(pages);
        match &self.sharer {
            None => allowed_pages,
            Some(_) => {
                let frames_wanted = allowed_pages.min(self.budget_pages().into()) as u32;
                self.evict_until_unreserved(frames_wanted).min(frames_wanted).into()
            }
        }
    }

    /// Number of frames, up to `frames_needed`, that are available, if need be after evictions. The
    /// caller takes them at once. With `is_reserved` and a sharer they come from a reservation of
    /// at least as many, which shrinks by that number. Without a sharer no frames are ever
    /// reserved.
    pub(super) fn claim_frames(&mut self, frames_needed: u32, is_reserved: bool) -> u32 {
        if is_reserved && self.sharer.is_some() {
            self.reserved -= frames_needed;
            return frames_needed;
        }
        self.evict_until_unreserved(frames_needed).min(frames_needed)
    }

    /// Frees frames until `frames_needed` are free in addition to the reserved ones, as far as
    /// possible. Returns the number of free, unreserved frames: more than `frames_needed` if more
    /// were free before.
    pub(super) fn evict_until_unreserved(&mut self, frames_needed: u32) -> u32 {
        self.free_frames_until(self.reserved + frames_needed);
        self.free_pages() - self.reserved
    }

    /// Frees frames until `frames_needed` are free, as far as possible. The first freed frame is
    /// the first to be reused: pages that were neighbours in memory are replaced by neighbours.
    fn free_frames_until(&mut self, frames_needed: u32) {
        if self.free_pages() >= frames_needed {
            return;
        }
        let freed_before = self.supply.freed_count();
        self.scan_until_free(frames_needed);
        if self.free_pages() < frames_needed && self.sharer.is_some() {
            // The second scan: pins may have moved during the first one. See rules 3 and 4 above.
            self.allow_pins(PINS_FORBIDDEN);
            self.take_returned();
            self.scan_until_free(frames_needed);
            self.allow_pins(PINS_ALLOWED);
        }
        self.supply.reverse_freed_since(freed_before);
    }

    /// Performs one scan for victims, until `frames_needed` frames are free or all pages are in
    /// use.
    fn scan_until_free(&mut self, frames_needed: u32) {
        while self.free_pages() < frames_needed
            && self.evict_victims(frames_needed - self.free_pages())
        {}
        self.end_set_aside();
    }

    /// Allows or forbids readers outside the machine to begin to pin frames. No effect without a
    /// sharer.
    fn allow_pins(&mut self, may_pin: bool) {
        if let Some(sharer) = &mut self.sharer {
            sharer.allow_pins(may_pin);
        }
    }

    /// Frees the frames of the next victims: one page of memory, or else at most `frames_needed`
    /// pages and one batch (`RECALL_BATCH_MAX`). Pages in use are set aside on the list `IN_USE`.
    /// Returns false if no page was left to try: the caller then ends its scan.
    fn evict_victims(&mut self, frames_needed: u32) -> bool {
        // These two lists hold only pages of memory, clean or prefetched, and unmapped. No reader
        // uses such a page, so it leaves without a recall. They leave before every page that the
        // policy would select.
        let memory_page = self
            .frame_lists
            .oldest(FrameList::MEMORY_CLEAN)
            .or_else(|| self.frame_lists.oldest(FrameList::MEMORY_PREFETCHED));
        if let Some(id) = memory_page {
            self.evict(id);
            return true;
        }
        // Bounds this call: readers outside the machine continue to use pages meanwhile.
        let mut queries_left = self.frames.len() as u32;
        loop {
            // Only the first `count` elements are valid.
            let mut batch = [FrameId(0); RECALL_BATCH_MAX];
            let mut count = 0;
            while count < RECALL_BATCH_MAX.min(frames_needed as usize) {
                let Some(id) = self.take_victim(count as u32, &mut queries_left) else { break };
                let frame = self.frame(id);
                if frame.is_held() {
                    // An unpinned page of memory that is mapped, dirty or being written. It is set
                    // aside until the scan is over.
                    self.frame_lists.push(id, FrameList::IN_USE);
                } else if frame.pins == 0 && frame.state == FrameState::Filled {
                    batch[count] = id;
                    count += 1;
                }
                // Any other page is pinned or in flight. It stays off the lists until its last
                // unpin or its arrival.
            }
            let victims = &batch[..count];
            let refused_bits = self.recall_all(victims);
            for (index, &id) in victims.iter().enumerate() {
                match refused_bits >> index & 1 {
                    0 => self.evict_and_report(id),
                    _ => self.frame_lists.push(id, FrameList::IN_USE),
                }
            }
            // The search is repeated only if every recall was refused, so that no frame was freed.
            if victims.is_empty() || (refused_bits.count_ones() as usize) < count {
                return count > 0;
            }
        }
    }

    /// Takes the next page to leave off its list; `None` if no list has a page. It is a page of a
    /// file, or of memory if the policy manages memory. It may be pinned or in flight: the caller
    /// must check. Expired prefetched pages come first, then the victims of the policy, then the
    /// other prefetched pages. `victims_taken` is the number of victims taken and not evicted yet,
    /// which policies still count when they size their lists.
    /// `queries_left` bounds the queries for uses of pages by readers outside the machine. A query
    /// of the policy reduces it, and so does a prefetched page that is found used.
    pub(super) fn take_victim(
        &mut self,
        victims_taken: u32,
        queries_left: &mut u32,
    ) -> Option<FrameId> {
        while let Some(id) = self
            .frame_lists
            .oldest(FrameList::PREFETCHED)
            .filter(|&id| self.is_expired_file_prefetch(id))
        {
            if !self.enter_policy_if_used(id, queries_left) {
                self.frame_lists.unlink(id);
                return Some(id);
            }
        }
        let Cache { policy, frame_lists, sharer, frames, unused, counters, credits, .. } = self;
        let mut access_bits = CacheAccessBits {
            sharer,
            frames,
            unused,
            counters,
            credits,
            victims_taken,
            queries_left,
        };
        policy
            .victim(frame_lists, &mut access_bits)
            .or_else(|| frame_lists.pop(FrameList::PREFETCHED))
    }

    /// The page of a file that eviction would check next; `None` without such a page. The order is
    /// the same as in `take_victim`, but no page leaves its list.
    pub(super) fn next_file_page(&mut self) -> Option<FrameId> {
        let prefetched = self.frame_lists.oldest(FrameList::PREFETCHED);
        match prefetched.filter(|&id| self.is_expired_file_prefetch(id)) {
            Some(id) => Some(id),
            None => self.policy.oldest(&mut self.frame_lists).or(prefetched),
        }
    }

    /// Evicts the next page of a file, whose frame is then free (`Gone`). Only called while memory
    /// has separate lists, so that no victim is a page of memory. `None` if no list has a page, or
    /// the page is in use by a reader. `None` also if it is pinned or in flight: it is then on no
    /// list until that ends.
    pub(super) fn evict_next_file_page(&mut self) -> Option<LeavingChoice> {
        // One victim is taken at a time, so that none waits for its eviction.
        let (victims_taken, mut queries_left) = (0, self.frames.len() as u32);
        let id = self.take_victim(victims_taken, &mut queries_left)?;
        if self.frame(id).pins > 0 || self.state(id) != FrameState::Filled {
            return None;
        }
        if self.recall_all(&[id]) != 0 {
            self.list_file(id);
            return None;
        }
        self.evict_and_report(id);
        Some(LeavingChoice::Gone)
    }

    /// Puts a page of a file on the list of prefetched pages, or on the policy's. A page that is on
    /// a list stays there. A prefetched, unused page waits apart for its first use, unless the
    /// policy takes unused pages.
    pub(super) fn list_file(&mut self, id: FrameId) {
        if self.frame_lists.is_listed(id) {
            return;
        }
        if self.unused.contains(id) && !self.policy.enters_unused() {
            self.frame_lists.push(id, FrameList::PREFETCHED);
        } else {
            // It is on no list because it was selected as a victim while in flight, pinned or in
            // use. The policy takes it back.
            let key = self.frame(id).key();
            self.policy.restore_victim(&mut self.frame_lists, id, key);
        }
    }

    /// Evicts a page, and reports it to the policy if the policy had it. For a page of memory,
    /// `evict` reports it. An unused prefetched page is unknown to most policies.
    pub(super) fn evict_and_report(&mut self, id: FrameId) {
        let is_memory = self.frame(id).memory.is_memory;
        if !is_memory && (!self.unused.contains(id) || self.policy.enters_unused()) {
            let key = self.frame(id).key();
            self.policy.evicted(&mut self.frame_lists, id, key);
        }
        self.evict(id);
    }

    /// Returns and resets the uses of the page by readers outside the machine: 0, 1, or 2 for more.
    pub(super) fn take_uses(&mut self, id: FrameId) -> u8 {
        take_uses_of_frame(&mut self.sharer, &self.frames[id.0 as usize], id)
    }

    /// Collects first uses of prefetched pages from the next frames when `added_pages` pages are
    /// added. The count of unused prefetched pages is thus late by at most an eighth of the memory
    /// in added pages. No effect without a sharer.
    pub(super) fn collect_next_uses(&mut self, added_pages: u32) {
        if self.sharer.is_none() {
            return;
        }
        self.collect_due += added_pages;
        // One word is due after `collect_interval` added pages.
        if self.collect_due < self.collect_interval {
            return;
        }
        // Frames beyond these have never held a page. At least 1 avoids a division by zero before
        // the first page.
        let words = (self.frames.len() as u32).div_ceil(u64::BITS).max(1);
        for _ in 0..words.min(self.collect_due / self.collect_interval) {
            let word = self.collect_cursor;
            self.collect_cursor = (word + 1) % words;
            self.collect_word_uses(word);
        }
        self.collect_due %= self.collect_interval;
    }

    /// Collects the uses of all prefetched, unused pages from the sharer. No effect without a
    /// sharer.
    pub fn collect_first_uses(&mut self) {
        if self.sharer.is_some() {
            (0..(self.frames.len() as u32).div_ceil(u64::BITS))
                .for_each(|word| self.collect_word_uses(word));
        }
    }

    /// Collects the uses of the prefetched pages in one word of frames.
    fn collect_word_uses(&mut self, word: u32) {
        let (first, unused_bits) = self.unused.word_at(word);
        // For a page in flight, the sharer's uses belong to the frame's previous page.
        let is_filled = |&id: &FrameId| self.state(id) == FrameState::Filled;
        let filled = frames_in_bits(first, unused_bits).filter(is_filled);
        let filled_bits = filled.fold(0, |bits, id| bits | 1 << (id.0 - first.0));
        if filled_bits == 0 {
            return;
        }
        let Some(sharer) = &mut self.sharer else { return };
        let [used_bits, used_again_bits] = sharer.take_uses_of(first, filled_bits);
        for id in frames_in_bits(first, used_bits) {
            self.touch(id);
            // A second touch stands for all further uses, so that the policy sees a reused page.
            if used_again_bits >> (id.0 - first.0) & 1 != 0 {
                self.touch(id);
            }
        }
    }

    /// Ends the sharing of at most [`RECALL_BATCH_MAX`] pages with readers outside the machine.
    /// Returns a bit for each page in use, whose recall was refused, the lowest for the first page.
    pub(super) fn recall_all(&mut self, ids: &[FrameId]) -> u64 {
        if self.sharer.is_none() {
            return 0;
        }
        for &id in ids {
            // The use must be recorded before the page leaves, or it would count as waste.
            if self.unused.contains(id) && self.take_uses(id) > 0 {
                self.record_use(id);
            }
        }
        self.sharer.as_mut().map_or(0, |sharer| sharer.recall_all(ids))
    }

    /// Removes a page and counts its eviction. Stores its key to recognize its return, if the size
    /// of the cache may change. Reports the eviction to the policy if it is a page of memory that
    /// the policy knows.
    pub(super) fn evict(&mut self, id: FrameId) {
        self.counters.evicted_pages += 1;
        let frame = self.frame(id);
        if frame.memory.is_known {
            let key = frame.key();
            self.policy.evicted(&mut self.frame_lists, id, key);
        }
        if let Some(refaults) = &mut self.refaults {
            refaults.record_eviction(self.frames[id.0 as usize].key());
        }
        self.remove_page(id);
    }
}

/// Access of a policy to the cache while it selects a victim.
struct CacheAccessBits<'a> {
    /// Has the uses by readers outside the machine; `None`: no such readers.
    sharer: &'a mut Option<Box<dyn PageSharer>>,
    /// The frames of the cache.
    frames: &'a mut [Frame],
    /// Frames with a prefetched page that is not used yet.
    unused: &'a mut FrameSet,
    /// Counters of the cache: a first use is counted in them.
    counters: &'a mut CacheCounters,
    /// Outcome of prefetched pages by file, in which a first use is counted too.
    credits: &'a mut [Credit],
    /// Victims that were taken and have not left yet.
    victims_taken: u32,
    /// Number of queries of uses left in this scan.
    queries_left: &'a mut u32,
}

impl AccessBits for CacheAccessBits<'_> {
    /// Returns and resets the access bits of a page, and counts a first use of a prefetched one.
    /// The queries of one scan are bounded by `queries_left`; after that every page of a file
    /// counts as unused. A page of memory needs no query: its one access bit is `is_referenced`.
    fn uses(&mut self, id: FrameId) -> u8 {
        let frame = &mut self.frames[id.0 as usize];
        if frame.memory.is_memory {
            // A pinned page keeps the bit until a later search: it can't be evicted now.
            return u8::from(frame.pins == 0 && core::mem::take(&mut frame.is_referenced));
        }
        // For a page in flight, the sharer's access bits belong to the frame's previous page. A
        // pinned page can't be evicted, and is checked after its return.
        let is_queried =
            frame.pins == 0 && frame.state == FrameState::Filled && *self.queries_left > 0;
        if !is_queried {
            return 0;
        }
        *self.queries_left -= 1;
        let uses = take_uses_of_frame(self.sharer, frame, id);
        if uses > 0 {
            count_first_use(self.unused, self.counters, self.credits, frame, id);
        }
        uses
    }

    /// Returns the key of the page in a frame.
    fn page(&self, id: FrameId) -> PageKey {
        self.frames[id.0 as usize].key()
    }

    /// Returns the number of victims that were taken and have not left yet.
    fn taken(&self) -> u32 {
        self.victims_taken
    }
}

/// Returns and resets the uses of a page by readers outside the machine: 0, 1, or 2 for more.
/// Pages of memory are not shared with such readers.
fn take_uses_of_frame(sharer: &mut Option<Box<dyn PageSharer>>, frame: &Frame, id: FrameId) -> u8 {
    let sharer = sharer.as_mut().filter(|_| !frame.memory.is_memory);
    match sharer.map_or(UseCount::None, |sharer| sharer.take_uses(id)) {
        UseCount::None => 0,
        UseCount::Once => 1,
        UseCount::Again => 2,
    }
}

/// Returns the frames whose bits are set in `bits`; bit 0 stands for the frame `first`.
fn frames_in_bits(first: FrameId, mut bits: u64) -> impl Iterator<Item = FrameId> {
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

    /// Adds a prefetched page in flight, and returns its frame.
    fn add_prefetched(cache: &mut Cache, file: FileId, page: u64) -> FrameId {
        let is_ahead = true;
        cache.add(file, page, Folio::holding(page, 0), Mark::Clear, is_ahead).unwrap()
    }

    /// As in the kernel, a page enters its list when it is added: a window that arrives before the
    /// one in front of it is not evicted first. Three pages fill the cache, and the second arrives
    /// before the first.
    #[test]
    fn pages_are_evicted_in_order_of_addition_not_of_arrival() {
        let mut cache = Cache::new(3, Box::new(TwoLists));
        let file = cache.add_file();
        let [first, second, slow] = [0, 1, 2].map(|page| add_prefetched(&mut cache, file, page));
        cache.fill(second);
        cache.fill(first);
        assert_eq!(add_prefetched(&mut cache, file, 3), first);
        // The page that is still in flight is skipped, and moves to the front.
        assert_eq!(add_prefetched(&mut cache, file, 4), second);
        cache.fill(slow);
        assert_eq!(add_prefetched(&mut cache, file, 5), slow);
    }
}
