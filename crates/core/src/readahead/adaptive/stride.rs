//! Blocks of one length at one distance.
//!
//! What a program reads so lies at equal distances in bytes: records of 10,000 bytes, a tensor of
//! each layer, a column of each group of rows. Their pages don't, unless the distance is one of
//! whole pages: a law that looked at pages alone would take them for places at random, or foresee
//! the wrong page now and then. So a stride is followed in bytes; and in pages where these are at
//! equal distances and the bytes aren't, as of records of different lengths that each begin a page.

use super::AccessContext;
use crate::unit::{PAGE_BYTES, PageRange};

/// Where a reader is on its way over such blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stride {
    /// In how many bytes the rest is counted: 1, or a page's.
    unit_bytes: u64,
    /// From block to block, upwards or downwards.
    distance: i64,
    /// How long a block is.
    length: u64,
    /// Where the block begins that was read last.
    last: u64,
    /// Where the next one begins that was neither read nor read ahead.
    ahead: u64,
}

/// A request that continued none, as a stride may begin with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RandomAccess {
    request: PageRange,
    offset: u64,
    bytes: u64,
    /// How far it lies from the one before, in pages and in bytes.
    distance_pages: i64,
    distance_bytes: i64,
    /// How many in a row have asked for a page that no guess had, this one the last.
    missed: u64,
}

impl RandomAccess {
    /// One after another.
    pub(super) fn after(before: Option<RandomAccess>, seen: &AccessContext) -> RandomAccess {
        let AccessContext { request, offset, bytes, .. } = *seen;
        let from = |place: u64, of: fn(&RandomAccess) -> u64| {
            before.map_or(0, |before| place.wrapping_sub(of(&before)) as i64)
        };
        RandomAccess {
            request,
            offset,
            bytes,
            distance_pages: from(request.first, |before| before.request.first),
            distance_bytes: from(offset, |before| before.offset),
            missed: if seen.misses { before.map_or(0, |before| before.missed) + 1 } else { 0 },
        }
    }

    /// Whether it lies above the one before, and whether below.
    pub(super) fn way(&self) -> (bool, bool) {
        (self.distance_pages > 0, self.distance_pages < 0)
    }

    /// The stride of which it is the third block, if it lies from the one before as that from its
    /// own.
    ///
    /// A request that finds its pages, or has them on their way, is seen by chance, as another
    /// guess brought them in. Requests around it may not have been seen, and its distance from
    /// others is no evidence. Each of the three has therefore missed a page.
    pub(super) fn stride(&self, before: Option<RandomAccess>) -> Option<Stride> {
        let before = before.filter(|_| self.missed >= 3)?;
        let is_of_bytes =
            self.distance_bytes == before.distance_bytes && self.bytes == before.bytes;
        let is_of_pages = self.distance_pages == before.distance_pages
            && self.request.count() == before.request.count();
        let (unit_bytes, distance, length, last) = match (is_of_bytes, is_of_pages) {
            (true, _) => (1, self.distance_bytes, self.bytes, self.offset),
            (_, true) => {
                (PAGE_BYTES, self.distance_pages, self.request.count(), self.request.first)
            }
            _ => return None,
        };
        let ahead = last.wrapping_add_signed(distance);
        // Closer than a page it is no stride: their pages follow each other.
        (self.distance_pages != 0).then_some(Stride { unit_bytes, distance, length, last, ahead })
    }
}

impl Stride {
    /// The pages of the block that begins at a place; none where that lies before the file.
    fn pages_at(&self, place: u64) -> PageRange {
        // A place before the file has wrapped around.
        match place.checked_mul(self.unit_bytes) {
            Some(offset) if offset <= i64::MAX as u64 => {
                PageRange::covering(offset, self.length * self.unit_bytes)
            }
            _ => PageRange::default(),
        }
    }

    /// The pages of the next block that was neither read nor read ahead; none before the file.
    pub(super) fn ahead_pages(&self) -> PageRange {
        self.pages_at(self.ahead)
    }

    /// The pages of the block before it.
    pub(super) fn before_ahead_pages(&self) -> PageRange {
        self.pages_at(self.ahead.wrapping_add_signed(-self.distance))
    }

    /// The pages of the block after the last that was read; none before the file.
    pub(super) fn next_pages(&self) -> PageRange {
        self.pages_at(self.next())
    }

    fn next(&self) -> u64 {
        self.last.wrapping_add_signed(self.distance)
    }

    /// How many pages lie between a block's pages and those of the next one, at the least.
    pub(super) fn gap_pages(&self, block_pages: u64) -> u64 {
        let distance_bytes = self.distance.unsigned_abs().saturating_mul(self.unit_bytes);
        (distance_bytes / PAGE_BYTES).saturating_sub(block_pages)
    }

    fn place_of(&self, seen: &AccessContext) -> u64 {
        match self.unit_bytes {
            1 => seen.offset,
            _ => seen.request.first,
        }
    }

    /// How many strides the request is from the last block; 0 when it is off the stride.
    pub(super) fn steps_to(&self, seen: &AccessContext) -> i64 {
        let way = self.place_of(seen).wrapping_sub(self.last) as i64;
        if way % self.distance == 0 { way / self.distance } else { 0 }
    }

    /// The pages of the blocks between the last one and that so many steps on.
    pub(super) fn blocks_between(&self, steps: i64) -> impl Iterator<Item = PageRange> {
        let stride = *self;
        (1..steps)
            .map(move |nth| stride.pages_at(stride.last.wrapping_add_signed(nth * stride.distance)))
    }

    /// How many blocks there are from the last one on to the one that was neither read nor read
    /// ahead.
    pub(super) fn steps_ahead(&self) -> i64 {
        self.ahead.wrapping_sub(self.last) as i64 / self.distance
    }

    /// How many strides the block is from the last one of which `page` is the last page, or 0.
    pub(super) fn steps_to_last_page(&self, page: u64) -> i64 {
        let at = page.saturating_mul(PAGE_BYTES) / self.unit_bytes;
        let nearest = at.wrapping_sub(self.last) as i64 / self.distance;
        let ends_there = |steps: &i64| {
            let place = self.last.wrapping_add_signed(steps.saturating_mul(self.distance));
            self.pages_at(place).end == page + 1
        };
        (nearest - 1..=nearest + 1).find(ends_there).unwrap_or(0)
    }

    /// Whether the request is the block that was to be read ahead next.
    pub(super) fn is_next_ahead(&self, seen: &AccessContext) -> bool {
        self.place_of(seen) == self.ahead
    }

    /// The reader has come to the request.
    pub(super) fn advance(&mut self, seen: &AccessContext) {
        self.last = self.place_of(seen);
    }

    /// It goes on so many strides from the last block.
    pub(super) fn went(&mut self, steps: i64) {
        self.last = self.last.wrapping_add_signed(steps * self.distance);
    }

    /// Nothing is ahead of the reader.
    pub(super) fn restart(&mut self) {
        self.ahead = self.next();
    }

    /// The block that was to be read ahead next is.
    pub(super) fn pass(&mut self) {
        self.ahead = self.ahead.wrapping_add_signed(self.distance);
    }
}
