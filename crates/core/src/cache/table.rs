//! The hash table from pages of all files to frames.
//!
//! A hash table with chaining. The *head* of a chain is the link to its first frame; the *home* of
//! a page is the index of the head of its chain. Every frame has one link, and there are at least
//! as many heads as frames, allocated at the start. The size of the table therefore depends on the
//! memory alone, not on the size of the files or the distance of their pages. (A table indexed by
//! page number would need a terabyte for a sparse file of 2^60 bytes.)
//!
//! The heads of sixteen neighbours are in one cache line, and the heads of an *extent* of 1,024
//! pages in one page of memory. The table is initially zero, so the system allocates its pages only
//! when they are written. A small file thus touches few pages of a large table. A range is searched
//! page by page; if it has more pages than there are frames, checking every frame is cheaper.
//!
//! Invariants:
//! 1. a frame is in exactly one chain, the home of its page, while it is in flight or filled, and
//!    in none otherwise;
//! 2. no page of a file is in two frames.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{FileId, Frame, FrameId, FrameState};
use crate::splitmix::spread;
use crate::unit::PageRange;

/// Binary logarithm of the number of neighbouring pages whose heads are in one cache line.
const GROUP_LOG2: u32 = 4;
/// Bits of a page number that are the position of the page in its group.
const GROUP_MASK: u64 = (1 << GROUP_LOG2) - 1;
/// Binary logarithm of the number of neighbouring pages whose heads are in one page of memory.
const EXTENT_LOG2: u32 = 10;

/// The heads of all chains, and the number of pages of each file.
#[derive(Debug)]
pub(super) struct PageTableIndex {
    /// Link to the first frame of each chain. Their number is a power of two.
    heads: Box<[FrameLink]>,
    /// Number of pages in the table, by file.
    pages: Vec<u32>,
}

/// The next frame of a chain: its number plus one; 0 at the end. A plain integer, so that the table
/// can be allocated as zeroed memory.
pub(super) type FrameLink = u32;

/// The link to a frame.
fn link_to(id: FrameId) -> FrameLink {
    id.0 + 1
}

/// The frame of a link; `None` at the end of a chain.
fn frame_of(link: FrameLink) -> Option<FrameId> {
    link.checked_sub(1).map(FrameId)
}

impl Frame {
    /// Returns true if the frame is in a chain.
    fn is_in_table(&self) -> bool {
        matches!(self.state, FrameState::InFlight(_) | FrameState::Filled)
    }

    /// Returns true if the frame holds a page of the range.
    fn holds(&self, file: FileId, range: PageRange) -> bool {
        self.is_in_table() && self.file == file && range.contains(self.page)
    }
}

impl PageTableIndex {
    /// Creates a table without files for `frames` frames.
    pub(super) fn new(frames: u32) -> PageTableIndex {
        let heads = (frames as usize).next_power_of_two().max(1 << GROUP_LOG2);
        PageTableIndex { heads: alloc::vec![0; heads].into_boxed_slice(), pages: Vec::new() }
    }

    /// Adds a file without pages, and returns its identifier.
    pub(super) fn add_file(&mut self) -> FileId {
        self.pages.push(0);
        FileId(self.pages.len() as u32 - 1)
    }

    /// Returns true if no page of the file is in the table.
    pub(super) fn is_empty(&self, file: FileId) -> bool {
        self.pages[file.0 as usize] == 0
    }

    /// The frame of a page, if it is in the table.
    #[inline]
    pub(super) fn find(&self, frames: &[Frame], file: FileId, page: u64) -> Option<FrameId> {
        self.find_in_chain(frames, self.group(file, page).home(page), file, page)
    }

    /// Returns the frame of a page, as `find`. Checks first the frame after `previous`, where the
    /// neighbouring page often is. `previous` may be any number: it is only a guess.
    #[inline]
    pub(super) fn find_after(
        &self,
        frames: &[Frame],
        previous: FrameId,
        file: FileId,
        page: u64,
    ) -> Option<FrameId> {
        let candidate = FrameId(previous.0.wrapping_add(1));
        match frames.get(candidate.0 as usize) {
            Some(frame) if frame.page == page && frame.file == file && frame.is_in_table() => {
                Some(candidate)
            }
            _ => self.find(frames, file, page),
        }
    }

    /// Returns the frame of a page; `None` if the page is not in the table. `home` must be the
    /// index of the chain that the page belongs to.
    #[inline]
    pub(super) fn find_in_chain(
        &self,
        frames: &[Frame],
        home: usize,
        file: FileId,
        page: u64,
    ) -> Option<FrameId> {
        let mut link = self.heads[home];
        while let Some(id) = frame_of(link) {
            let frame = &frames[id.0 as usize];
            if frame.page == page && frame.file == file {
                return Some(id);
            }
            link = frame.next_in_table;
        }
        None
    }

    /// Inserts the frame `id` of an absent page into the chain at `home`, as its first. Returns the
    /// link to the next frame of the chain, which the caller stores in the frame.
    #[inline]
    pub(super) fn insert(&mut self, file: FileId, home: usize, id: FrameId) -> FrameLink {
        self.pages[file.0 as usize] += 1;
        core::mem::replace(&mut self.heads[home], link_to(id))
    }

    /// Removes a frame, whose page is in the table, from its chain.
    #[inline]
    pub(super) fn remove(&mut self, frames: &mut [Frame], id: FrameId) {
        let Frame { file, page, next_in_table, .. } = frames[id.0 as usize];
        self.pages[file.0 as usize] -= 1;
        let home = self.group(file, page).home(page);
        // The link that is checked: the head of the chain, then the link of each of its frames.
        let mut link = &mut self.heads[home];
        while let Some(other) = frame_of(*link).filter(|&other| other != id) {
            // Follows the chain to the link that leads to the frame `id`.
            link = &mut frames[other.0 as usize].next_in_table;
        }
        *link = next_in_table;
    }

    /// The first run of successive absent pages of the range; `None` if no page is absent.
    pub(super) fn absent_run(
        &self,
        frames: &[Frame],
        file: FileId,
        range: PageRange,
    ) -> Option<PageRange> {
        let is_absent = |&(page, home): &_| self.find_in_chain(frames, home, file, page).is_none();
        let (first, _) = self.homes(file, range).find(is_absent)?;
        let rest = PageRange { first, ..range };
        let is_any = |_: &Frame| true;
        let first_cached = self.first_matching(frames, file, rest, is_any);
        let end = first_cached.map_or(range.end, |(page, _)| page);
        Some(PageRange { first, end })
    }

    /// Returns the first cached page of the range whose frame satisfies `is_match`, with its frame.
    /// `None` without such a page.
    pub(super) fn first_matching(
        &self,
        frames: &[Frame],
        file: FileId,
        range: PageRange,
        is_match: impl Fn(&Frame) -> bool,
    ) -> Option<(u64, FrameId)> {
        if self.is_empty(file) {
            return None;
        }
        // Searches page by page for at most as many pages as there are frames.
        let searched = range.clipped(range.first.saturating_add(frames.len() as u64));
        let mut cached = self.cached_pages(frames, file, searched);
        let found = cached.find(|&(_, id)| is_match(&frames[id.0 as usize]));
        if found.is_some() || searched == range {
            return found;
        }
        // The range has more pages than there are frames, and the searched part has no match. One
        // pass over all frames finds a match in the rest.
        (0..)
            .map(FrameId)
            .zip(frames)
            .filter(|(_, frame)| frame.holds(file, range) && is_match(frame))
            .map(|(id, frame)| (frame.page, id))
            // Frames are in no order of pages: the lowest page is the first.
            .min()
    }

    /// Returns the frames of the cached pages of the range. Their order is the order of the pages,
    /// or of the frames if the range has more pages than there are frames.
    pub(super) fn cached_frames(
        &self,
        frames: &[Frame],
        file: FileId,
        range: PageRange,
    ) -> Vec<FrameId> {
        if self.is_empty(file) {
            return Vec::new();
        }
        if range.count() <= frames.len() as u64 {
            return self.cached_pages(frames, file, range).map(|(_, id)| id).collect();
        }
        let numbered_frames = (0..).map(FrameId).zip(frames);
        numbered_frames.filter(|(_, frame)| frame.holds(file, range)).map(|(id, _)| id).collect()
    }

    /// The cached pages of a range, and their frames.
    fn cached_pages(
        &self,
        frames: &[Frame],
        file: FileId,
        range: PageRange,
    ) -> impl Iterator<Item = (u64, FrameId)> {
        let with_frame =
            move |(page, home)| Some((page, self.find_in_chain(frames, home, file, page)?));
        self.homes(file, range).filter_map(with_frame)
    }

    /// Returns the pages of a range, each with its home.
    #[inline]
    pub(super) fn homes(
        &self,
        file: FileId,
        range: PageRange,
    ) -> impl Iterator<Item = (u64, usize)> + use<> {
        let heads_log2 = self.heads_log2();
        let mut group = HeadGroup::holding(file, range.first, heads_log2);
        range.pages().map(move |page| {
            // The first page of the next group.
            if page & GROUP_MASK == 0 {
                group = HeadGroup::holding(file, page, heads_log2);
            }
            (page, group.home(page))
        })
    }

    /// Returns the heads for the page and its neighbours in the same group.
    #[inline]
    fn group(&self, file: FileId, page: u64) -> HeadGroup {
        HeadGroup::holding(file, page, self.heads_log2())
    }

    /// Binary logarithm of the number of heads.
    #[inline]
    fn heads_log2(&self) -> u32 {
        self.heads.len().trailing_zeros()
    }
}

/// Position of the heads of sixteen neighbouring pages.
#[derive(Clone, Copy, Debug)]
struct HeadGroup {
    /// Index of the first head.
    first: u64,
    /// Value whose low bits permute the heads within the group, by exclusive or.
    permutation: u64,
}

impl HeadGroup {
    /// Returns the heads of the group of neighbouring pages that contains `page`. The table has
    /// 2^`heads_log2` heads.
    #[inline]
    fn holding(file: FileId, page: u64, heads_log2: u32) -> HeadGroup {
        // Hashes the extent (of 4 MiB), then the group's position in its extent, and the page's
        // position in its group, each differently. `spread` mixes all bits of a number into its
        // high bits. Without the hash in the two positions, pages 4 MiB apart would share a few
        // heads.
        let extent = page >> EXTENT_LOG2 ^ u64::from(file.0).wrapping_mul(FILE_HASH_FACTOR);
        let hash = spread(extent);
        let extents_log2 = heads_log2.saturating_sub(EXTENT_LOG2);
        // The highest bits of the hash select the place of the extent; none if there is only one.
        let first = hash.checked_shr(64 - extents_log2).unwrap_or(0) << EXTENT_LOG2;
        // Position of the group in its extent.
        let in_extent = (page ^ hash) & ((1 << EXTENT_LOG2.min(heads_log2)) - 1) & !GROUP_MASK;
        // The shift takes the high bits, which are mixed best.
        let permutation = spread(page >> GROUP_LOG2 ^ hash) >> 32;
        HeadGroup { first: first | in_extent, permutation }
    }

    /// Home of a page of the group.
    #[inline]
    fn home(self, page: u64) -> usize {
        (self.first | (page ^ self.permutation) & GROUP_MASK) as usize
    }
}

/// Factor that spreads file numbers over all bits: 2^64 divided by the square root of 2, odd.
const FILE_HASH_FACTOR: u64 = 0xb504_f333_f9de_6485;

#[cfg(test)]
mod tests {
    use super::super::{Cache, Mark};
    use super::*;
    use crate::eviction::TwoLists;
    use crate::readahead::Folio;

    /// Adds a page in flight, and returns its frame.
    fn add_requested(cache: &mut Cache, file: FileId, page: u64) -> FrameId {
        let is_ahead = false;
        let frame = cache.add(file, page, Folio::holding(page, 0), Mark::Clear, is_ahead);
        frame.expect("a frame is free")
    }

    /// First page of the range in the table.
    fn first_page(cache: &Cache, file: FileId, range: PageRange) -> Option<u64> {
        Some(cache.table.first_matching(&cache.frames, file, range, |_| true)?.0)
    }

    /// A file has page 5 and a page near the largest offset; the range from page 6 on has more
    /// pages than there are frames, and is searched frame by frame.
    #[test]
    fn distant_pages_of_a_file_are_found_until_they_are_removed() {
        let mut cache = Cache::new(8, Box::new(TwoLists));
        let (file, other) = (cache.add_file(), cache.add_file());
        let far = u64::MAX / 4096;
        let [near_frame, far_frame] = [5, far].map(|page| add_requested(&mut cache, file, page));
        assert_eq!(cache.find(file, 5), Some(near_frame));
        assert_eq!(cache.find(file, far), Some(far_frame));
        assert_eq!((cache.find(file, 6), cache.find(other, 5)), (None, None));
        let whole = PageRange { first: 6, end: u64::MAX };
        assert_eq!(first_page(&cache, file, whole), Some(far));
        assert_eq!(first_page(&cache, file, PageRange { end: far, ..whole }), None);
        assert_eq!(cache.absent_run(file, whole), Some(PageRange { first: 6, end: far }));
        cache.fail(far_frame);
        assert_eq!((cache.find(file, far), first_page(&cache, file, whole)), (None, None));
        assert!(!cache.is_empty(file) && cache.is_empty(other));
    }

    /// 4,096 pages at a distance of 16 pages (one group), of 512 pages (2 MiB), and of more, as a
    /// sparse reader touches them.
    #[test]
    fn distant_pages_spread_over_the_hash_chains() {
        for stride in [16, 512, 1 << 18, 1 << 40] {
            let mut cache = Cache::new(4096, Box::new(TwoLists));
            let file = cache.add_file();
            for number in 0..4096 {
                add_requested(&mut cache, file, number * stride % (1 << 52));
            }
            let used_chains = cache.table.heads.iter().filter(|&&head| head != 0).count();
            // At random, 63 % of the heads are used if there are as many heads as pages.
            assert!(used_chains > 4096 / 2, "stride {stride}: {used_chains} chains");
        }
    }
}
