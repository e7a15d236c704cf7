//! Ghosts: pages that a policy remembers after their eviction.
//!
//! A ghost is 31 bits of its page's key, and a *word*: a number with a meaning defined by the
//! policy. Two pages with the same 31 bits are confused. With a million ghosts, one of 2,000 new
//! pages is taken for a returning one, which costs a policy one wrong guess.
//!
//! Each ghost is in one of two lists, in order of insertion. Their total number is bounded.

use alloc::vec::Vec;

use super::PageKey;

/// End of a chain or a list.
const NO_GHOST: u32 = u32::MAX;

/// One of the two lists of ghosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GhostList {
    /// The first; the only one for policies that need no second.
    First,
    /// The second.
    Second,
}

/// A remembered page, with links of its list and its hash chain.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    /// Bits of the page's key; the lowest bit is replaced by the number of its list.
    key_bits: u32,
    /// A number with a meaning defined by the policy.
    word: u32,
    /// Next newer ghost of the list.
    newer: u32,
    /// Next older ghost of the list.
    older: u32,
    /// Next ghost of the hash chain, or of the free list.
    next: u32,
}

/// Both ends of a list, and its length. The ends of an empty list are `NO_GHOST`.
#[derive(Clone, Copy, Debug)]
struct GhostListEnds {
    /// Index of the newest ghost.
    newest: u32,
    /// Index of the oldest ghost.
    oldest: u32,
    /// Number of ghosts.
    count: u32,
}

/// Ends of an empty list.
const EMPTY: GhostListEnds = GhostListEnds { newest: NO_GHOST, oldest: NO_GHOST, count: 0 };

/// The ghosts of a policy: up to 24 bytes each.
#[derive(Clone, Debug)]
pub struct Ghosts {
    /// Entries of ghosts, and free entries.
    ghosts: Vec<Ghost>,
    /// First ghost of each hash chain.
    heads: Vec<u32>,
    /// Ends of the first and the second list.
    lists: [GhostListEnds; 2],
    /// First element of the free list; `NO_GHOST` if no entry is free.
    free: u32,
    /// Most ghosts in both lists together.
    ghosts_max: u32,
    /// A page that will enter next, with the list and word of its ghost, which is removed already.
    returning: Option<(PageKey, (GhostList, u32))>,
}

impl Ghosts {
    /// Creates an empty set of at most `ghosts_max` ghosts.
    pub fn new(ghosts_max: u32) -> Ghosts {
        Ghosts {
            ghosts: Vec::new(),
            heads: alloc::vec![NO_GHOST; (ghosts_max as usize).max(1)],
            lists: [EMPTY; 2],
            free: NO_GHOST,
            ghosts_max,
            returning: None,
        }
    }

    /// Number of ghosts in a list.
    pub fn count(&self, list: GhostList) -> u32 {
        self.lists[list as usize].count
    }

    /// Limit of the number of ghosts in both lists together.
    pub fn most(&self) -> u32 {
        self.ghosts_max
    }

    /// Replaces all ghosts by another policy's, and keeps its own largest number. Excess ghosts are
    /// dropped.
    pub(super) fn replace_by(&mut self, mut ghosts: Ghosts) {
        ghosts.resize(self.ghosts_max);
        *self = ghosts;
    }

    /// Replaces all ghosts by another policy's, joined in the first list, and keeps its own largest
    /// number. Each ghost gets `word`.
    pub(super) fn replace_by_joined(&mut self, mut ghosts: Ghosts, word: u32) {
        ghosts.join(word);
        self.replace_by(ghosts);
    }

    /// Removes and returns all ghosts. The set has room for none afterwards: its policy is about to
    /// be replaced.
    pub(super) fn take_all(&mut self) -> Ghosts {
        core::mem::replace(self, Ghosts::new(0))
    }

    /// Sets the largest number of ghosts. Excess ghosts are dropped from the oldest on: first all
    /// of the first list, then of the second. The others keep their order. The hash chains are
    /// built again for the new size.
    pub fn resize(&mut self, ghosts_max: u32) {
        while self.count(GhostList::First) + self.count(GhostList::Second) > ghosts_max {
            self.forget_oldest(if self.count(GhostList::First) > 0 {
                GhostList::First
            } else {
                GhostList::Second
            });
        }
        let old = core::mem::replace(self, Ghosts::new(ghosts_max));
        for (ends, list) in old.lists.into_iter().zip([GhostList::First, GhostList::Second]) {
            let mut index = ends.oldest;
            while index != NO_GHOST {
                // The stored bits of the key are enough: no other bits are used.
                let Ghost { key_bits, word, newer, .. } = old.ghosts[index as usize];
                self.remember(list, PageKey(key_bits.into()), word);
                index = newer;
            }
        }
    }

    /// Remembers a page as the newest of a list, with a word. At the limit, the oldest ghost of
    /// that list is dropped for it, or of the other list if this one is empty. No effect if the
    /// limit is 0.
    pub fn remember(&mut self, list: GhostList, page: PageKey, word: u32) {
        // The set has no room: nothing is remembered.
        if self.ghosts_max == 0 {
            return;
        }
        // A page that is a ghost already is not remembered twice.
        self.take(page);
        if self.count(GhostList::First) + self.count(GhostList::Second) >= self.ghosts_max {
            let shortened_list = match (self.count(list), list) {
                (0, GhostList::First) => GhostList::Second,
                (0, GhostList::Second) => GhostList::First,
                _ => list,
            };
            self.forget_oldest(shortened_list);
        }
        // The ghost becomes the first of its hash chain, in a free entry if there is one.
        let (home, key_bits) = (self.home(page), stored_key_bits(page, list));
        let former_newest = self.lists[list as usize].newest;
        let ghost =
            Ghost { key_bits, word, newer: NO_GHOST, older: former_newest, next: self.heads[home] };
        let index = match self.free {
            NO_GHOST => {
                self.ghosts.push(ghost);
                self.ghosts.len() as u32 - 1
            }
            free => {
                self.free = self.ghosts[free as usize].next;
                self.ghosts[free as usize] = ghost;
                free
            }
        };
        self.heads[home] = index;
        // It becomes the newest of its list.
        let ends = &mut self.lists[list as usize];
        ends.newest = index;
        ends.count += 1;
        match former_newest {
            NO_GHOST => ends.oldest = index,
            _ => self.ghosts[former_newest as usize].newer = index,
        }
    }

    /// If the page, which will enter next, is a ghost, removes the ghost before the ghost of the
    /// next victim displaces it. [`take_entering`](Ghosts::take_entering) returns it.
    pub(super) fn announce(&mut self, page: PageKey) {
        self.returning = self.take(page).map(|ghost| (page, ghost));
    }

    /// Removes a page that enters, if it is remembered or was when it was announced. Returns the
    /// list and the word of its ghost.
    pub(super) fn take_entering(&mut self, page: PageKey) -> Option<(GhostList, u32)> {
        match self.returning.take() {
            Some((returning, ghost)) if returning == page => Some(ghost),
            _ => self.take(page),
        }
    }

    /// Removes a page, if it is remembered. Returns its list and its word; `None` if it is not
    /// remembered.
    pub fn take(&mut self, page: PageKey) -> Option<(GhostList, u32)> {
        let home = self.home(page);
        let mut index = self.heads[home];
        while index != NO_GHOST {
            let ghost = self.ghosts[index as usize];
            // All bits but the lowest, the number of the list, are equal.
            if (ghost.key_bits ^ page.0 as u32) >> 1 == 0 {
                let list = match ghost.key_bits & 1 {
                    0 => GhostList::First,
                    _ => GhostList::Second,
                };
                self.remove(index, home, list);
                return Some((list, ghost.word));
            }
            index = ghost.next;
        }
        None
    }

    /// The word of the oldest ghost of a list; `None` if the list is empty.
    pub fn oldest_word(&self, list: GhostList) -> Option<u32> {
        let oldest = self.lists[list as usize].oldest;
        (oldest != NO_GHOST).then(|| self.ghosts[oldest as usize].word)
    }

    /// Drops the oldest ghost of a list, if there is one.
    pub fn forget_oldest(&mut self, list: GhostList) {
        let index = self.lists[list as usize].oldest;
        if index != NO_GHOST {
            let home = self.home_of(self.ghosts[index as usize].key_bits);
            self.remove(index, home, list);
        }
    }

    /// Joins both lists into the first, for a policy that uses only one. The former ghosts of the
    /// second list are the newest. Sets all words to `word`, because their meaning belonged to
    /// another policy.
    pub fn join(&mut self, word: u32) {
        let [first, second] = self.lists;
        // Free entries change as well, without an effect.
        for ghost in &mut self.ghosts {
            // The lowest bit 0 stands for the first list.
            (ghost.word, ghost.key_bits) = (word, ghost.key_bits & !1);
        }
        if first.count > 0 && second.count > 0 {
            self.ghosts[first.newest as usize].newer = second.oldest;
            self.ghosts[second.oldest as usize].older = first.newest;
        }
        let oldest = if first.count > 0 { first.oldest } else { second.oldest };
        let newest = if second.count > 0 { second.newest } else { first.newest };
        self.lists = [GhostListEnds { newest, oldest, count: first.count + second.count }, EMPTY];
    }

    /// Removes the ghost at `index` from its hash chain (`home`) and its list, and frees its entry.
    fn remove(&mut self, index: u32, home: usize, list: GhostList) {
        // The link to it in the chain leads to the next ghost instead.
        let Ghost { newer, older, next, .. } = self.ghosts[index as usize];
        let ghosts = self.ghosts.as_mut_slice();
        let mut link = &mut self.heads[home];
        while *link != index {
            link = &mut ghosts[*link as usize].next;
        }
        *link = next;
        let ends = &mut self.lists[list as usize];
        ends.count -= 1;
        match newer {
            NO_GHOST => ends.newest = older,
            _ => self.ghosts[newer as usize].older = older,
        }
        match older {
            NO_GHOST => ends.oldest = newer,
            _ => self.ghosts[older as usize].newer = newer,
        }
        self.ghosts[index as usize].next = self.free;
        self.free = index;
    }

    /// Index of the hash chain of a page.
    fn home(&self, page: PageKey) -> usize {
        self.home_of(page.0 as u32)
    }

    /// Index of the hash chain for stored key bits, which are pseudo-random: their value without
    /// the lowest bit, scaled to the number of chains.
    fn home_of(&self, key_bits: u32) -> usize {
        ((u64::from(key_bits >> 1) * self.heads.len() as u64) >> 31) as usize
    }
}

/// The stored bits of a page's key; the lowest bit is the number of its list.
fn stored_key_bits(page: PageKey, list: GhostList) -> u32 {
    page.0 as u32 & !1 | list as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix;

    fn key(page: u64) -> PageKey {
        PageKey(splitmix::mixed(page))
    }

    /// Four pages are remembered with a limit of three, each with its number as word: page 1 is
    /// dropped.
    #[test]
    fn the_newest_ghost_replaces_the_oldest_and_a_taken_one_is_gone() {
        let mut ghosts = Ghosts::new(3);
        (1..=4).for_each(|page| ghosts.remember(GhostList::First, key(page), page as u32));
        assert_eq!((ghosts.take(key(1)), ghosts.oldest_word(GhostList::First)), (None, Some(2)));
        assert_eq!(ghosts.take(key(3)), Some((GhostList::First, 3)));
        assert_eq!((ghosts.take(key(3)), ghosts.count(GhostList::First)), (None, 2));
        ghosts.remember(GhostList::Second, key(9), 9);
        // The limit of three is for both lists, and the second has only this one ghost.
        ghosts.remember(GhostList::Second, key(10), 10);
        assert_eq!((ghosts.take(key(9)), ghosts.count(GhostList::First)), (None, 2));
        assert_eq!(ghosts.take(key(10)), Some((GhostList::Second, 10)));
    }

    /// The first list has pages 3 and 4, the second 1 and 2: after the join, the oldest two are 3
    /// and 4.
    #[test]
    fn join_puts_the_second_list_after_the_first() {
        let mut ghosts = Ghosts::new(8);
        (1..=2).for_each(|page| ghosts.remember(GhostList::Second, key(page), 0));
        (3..=4).for_each(|page| ghosts.remember(GhostList::First, key(page), 0));
        ghosts.join(7);
        assert_eq!((ghosts.count(GhostList::First), ghosts.count(GhostList::Second)), (4, 0));
        ghosts.forget_oldest(GhostList::First);
        ghosts.forget_oldest(GhostList::First);
        assert_eq!((ghosts.take(key(3)), ghosts.take(key(4))), (None, None));
        assert_eq!(ghosts.take(key(1)), Some((GhostList::First, 7)));
    }

    /// The oldest two of five ghosts are dropped at a limit of three. After a larger limit the
    /// three are still there, in their lists and order.
    #[test]
    fn resizing_keeps_the_newest_ghosts_in_order() {
        let mut ghosts = Ghosts::new(5);
        (1..=4).for_each(|page| ghosts.remember(GhostList::First, key(page), page as u32));
        ghosts.remember(GhostList::Second, key(5), 5);
        ghosts.resize(3);
        ghosts.resize(1000);
        assert_eq!((ghosts.count(GhostList::First), ghosts.count(GhostList::Second)), (2, 1));
        assert_eq!((ghosts.oldest_word(GhostList::First), ghosts.most()), (Some(3), 1000));
        let remembered = [1, 2, 3, 4, 5].map(|page| ghosts.take(key(page)));
        let [third, fourth] = [3, 4].map(|word| Some((GhostList::First, word)));
        assert_eq!(remembered, [None, None, third, fourth, Some((GhostList::Second, 5))]);
    }

    /// Random operations give the same ghosts as a vector of at most 50 pages, the oldest first.
    #[test]
    fn ghost_list_matches_a_plain_list_model() {
        let mut ghosts = Ghosts::new(50);
        let mut model: Vec<u64> = Vec::new();
        let mut state = 1;
        for _ in 0..20_000 {
            let page = splitmix::next(&mut state) % 120;
            let index = model.iter().position(|&other| other == page);
            if splitmix::next(&mut state).is_multiple_of(3) {
                assert_eq!(ghosts.take(key(page)).is_some(), index.is_some());
                index.map(|index| model.remove(index));
            } else {
                ghosts.remember(GhostList::First, key(page), 0);
                index.map(|index| model.remove(index));
                model.push(page);
                if model.len() > 50 {
                    model.remove(0);
                }
            }
            assert_eq!(ghosts.count(GhostList::First) as usize, model.len());
        }
    }
}
