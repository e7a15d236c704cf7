//! Strides: blocks of one length at equal distances.
//!
//! Programs read records of 10,000 bytes, a tensor of each layer, or a column of each row group at
//! equal distances in bytes. Their page numbers are equally spaced only if the distance is a
//! multiple of the page size. A policy that used page numbers alone would predict wrong pages or
//! treat the stride as random access. A stride is therefore followed in bytes. It is followed in
//! pages if only the page numbers are equally spaced, as for records of different lengths that
//! begin at page boundaries.

use super::AccessContext;
use crate::readahead::PageView;
use crate::unit::{PAGE_BYTES, PageRange};

/// A reader's position in a sequence of equally spaced blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stride {
    /// Unit of the other fields in bytes: 1, or the page size.
    unit_bytes: u64,
    /// Distance from block to block, negative for a backward stride.
    distance: i64,
    /// Length of a block.
    length: u64,
    /// Distance from the begin of a block to the request that its reader sends first. 0 unless each
    /// block is read downwards, from its last page.
    lead: u64,
    /// True if a block is longer than its first request: further requests read the rest.
    spans_requests: bool,
    /// Offset of the request in the last block that was read.
    last: u64,
    /// Offset of the request in the next block that was neither read nor prefetched; below 0 it
    /// wraps around.
    ahead: u64,
}

/// True if a page is cached and was used.
pub(super) fn was_used(page: u64, pages: &dyn PageView) -> bool {
    pages.is_cached(page) && !pages.is_unused(page)
}

/// A request that continues no stream and may begin a stride.
#[derive(Clone, Copy, Debug)]
pub(super) struct RandomAccess {
    /// Pages of the request.
    request: PageRange,
    /// Offset of the request in bytes.
    offset: u64,
    /// Size of the request in bytes.
    bytes: u64,
    /// Distance in pages from the previous request that continued no stream; 0 without one.
    distance_pages: i64,
    /// Distance in bytes from that request.
    distance_bytes: i64,
    /// Number of consecutive requests without a stream, up to this one, that each had an absent
    /// page.
    missed_count: u64,
}

impl RandomAccess {
    /// Creates the record of the request `access`, which continues no stream. `previous` is the
    /// record of the last such request before it; `None` if it is the first.
    pub(super) fn after(previous: Option<RandomAccess>, access: &AccessContext) -> RandomAccess {
        let AccessContext { request, offset, bytes, .. } = *access;
        // Distance of `position` from the same position of the previous request: negative below it,
        // 0 without one.
        let distance = |position: u64, position_of: fn(&RandomAccess) -> u64| {
            previous.map_or(0, |previous| position.wrapping_sub(position_of(&previous)) as i64)
        };
        RandomAccess {
            request,
            offset,
            bytes,
            distance_pages: distance(request.first, |record| record.request.first),
            distance_bytes: distance(offset, |record| record.offset),
            missed_count: if access.has_absent_page {
                previous.map_or(0, |previous| previous.missed_count) + 1
            } else {
                0
            },
        }
    }

    /// Returns two flags: the request lies above the previous one, and it lies below the previous
    /// one.
    pub(super) fn is_above_or_below(&self) -> (bool, bool) {
        (self.distance_pages > 0, self.distance_pages < 0)
    }

    /// Returns the stride whose third block is this request, if the last two distances are equal.
    /// `previous` is the record from which this one was created by `after`.
    ///
    /// A request whose pages are cached or being read is reported only because of another prefetch.
    /// Requests before and after it may be unreported, so its distances are not evidence. Each of
    /// the three requests must therefore have missed a page.
    ///
    /// `block_pages_max` is a bound of the caller's windows. The rest of a block is searched for at
    /// most that number of pages in each direction. A block that is cut off there fits no window.
    pub(super) fn detect_stride(
        &self,
        previous: Option<RandomAccess>,
        block_pages_max: u64,
        pages: &dyn PageView,
    ) -> Option<Stride> {
        // Three requests have two distances: the one of this request, and the one before.
        let previous = previous.filter(|_| self.missed_count >= 3)?;
        let is_equal_in_bytes =
            self.distance_bytes == previous.distance_bytes && self.bytes == previous.bytes;
        // Requests at unaligned offsets have equal page distances by chance.
        let is_equal_in_pages = self.distance_pages == previous.distance_pages
            && self.request.count() == previous.request.count()
            && [self.offset, previous.offset].iter().all(|offset| offset % PAGE_BYTES == 0);
        let (unit_bytes, distance, request_length, last) =
            match (is_equal_in_bytes, is_equal_in_pages) {
                // The pages between the two requests before this one were used as well: contiguous
                // blocks are read whole. The pages between the previous request and this one are
                // the rest of the block that begins now, and not read yet.
                (_, true) if previous.has_used_gap(pages) => return Some(self.contiguous_blocks()),
                // Bytes are exact, so they are preferred to pages.
                (true, _) => (1, self.distance_bytes, self.bytes, self.offset),
                (_, true) => {
                    (PAGE_BYTES, self.distance_pages, self.request.count(), self.request.first)
                }
                _ => return None,
            };
        let ahead = last.wrapping_add_signed(distance);
        let (used_before, used_behind) = self.rest_of_block(previous, block_pages_max, pages);
        let page_units = PAGE_BYTES / unit_bytes;
        let lead = used_before * page_units;
        let length = request_length + lead + used_behind * page_units;
        let spans_requests = used_before + used_behind > 0;
        // Blocks closer than a page are contiguous in pages and form no stride.
        (self.distance_pages != 0).then_some(Stride {
            unit_bytes,
            distance,
            length,
            lead,
            spans_requests,
            last,
            ahead,
        })
    }

    /// Returns the numbers of pages that a block has before and behind its first request, if its
    /// reader sends further requests for them. In both earlier blocks these pages were used, and in
    /// this one they are absent. Pages that are cached here too belong to an earlier pass over the
    /// file. Stops after `pages_max` pages in each direction.
    fn rest_of_block(
        &self,
        previous: RandomAccess,
        pages_max: u64,
        pages: &dyn PageView,
    ) -> (u64, u64) {
        let (this, distance) = (self.request, previous.distance_pages);
        let gap_pages = distance.unsigned_abs().saturating_sub(previous.request.count());
        let was_used = |page: u64| was_used(page, pages);
        // `page` lies in the previous block, one distance from the block before. `page_here` is the
        // same page of this block. `None` lies before the file.
        let is_part = |page: Option<u64>, page_here: Option<u64>| {
            let page_before = page.and_then(|page| page.checked_add_signed(-distance));
            page.is_some_and(was_used)
                && page_before.is_some_and(was_used)
                && page_here.is_some_and(|page| !pages.is_cached(page))
        };
        let is_behind = |nth: &u64| is_part(Some(previous.request.end + nth), Some(this.end + nth));
        let is_before = |nth: &u64| {
            let before = |request: PageRange| request.first.checked_sub(nth + 1);
            is_part(before(previous.request), before(this))
        };
        let count_max = gap_pages.min(pages_max);
        let behind = (0..count_max).take_while(is_behind).count() as u64;
        let before_max = (gap_pages - behind).min(pages_max);
        let before = (0..before_max).take_while(is_before).count() as u64;
        (before, behind)
    }

    /// Returns the stride of contiguous blocks, each read against the order of the blocks.
    /// Ascending blocks are read downwards: the request is the end of its block. Descending blocks
    /// are read upwards: the request is the begin of its block.
    fn contiguous_blocks(&self) -> Stride {
        let (distance, length) = (self.distance_pages, self.distance_pages.unsigned_abs());
        let last = self.request.first;
        let lead = if distance > 0 { length.saturating_sub(self.request.count()) } else { 0 };
        let ahead = last.wrapping_add_signed(distance);
        Stride { unit_bytes: PAGE_BYTES, distance, length, lead, spans_requests: true, last, ahead }
    }

    /// True if the pages between this request and the one before it were used. The first, the
    /// middle and the last one are examined. False if no page lies between the requests.
    ///
    /// A program may read the whole file in blocks, each of them backward. Only its request for the
    /// last page of each block continues no stream, and these requests look like blocks of one
    /// page. The three samples stand for the whole gap.
    fn has_used_gap(&self, pages: &dyn PageView) -> bool {
        let RandomAccess { request, distance_pages, .. } = *self;
        let gap_pages = distance_pages.unsigned_abs().saturating_sub(request.count());
        let first = match distance_pages < 0 {
            true => request.end,
            false => request.first.saturating_sub(gap_pages),
        };
        let is_used = |&nth: &u64| was_used(first + nth, pages);
        gap_pages > 0 && [0, gap_pages / 2, gap_pages - 1].iter().all(is_used)
    }
}

impl Stride {
    /// Returns the pages of the block whose request is at `request_offset`, in the stride's unit.
    /// Empty if the block begins before the file.
    fn block_at(&self, request_offset: u64) -> PageRange {
        // An offset before the file has wrapped around.
        match request_offset.wrapping_sub(self.lead).checked_mul(self.unit_bytes) {
            Some(first_byte) if first_byte <= i64::MAX as u64 => {
                PageRange::covering(first_byte, self.length * self.unit_bytes)
            }
            _ => PageRange::default(),
        }
    }

    /// Pages of the next block that was neither read nor prefetched. Empty before the file.
    pub(super) fn ahead_block(&self) -> PageRange {
        self.block_at(self.ahead)
    }

    /// Pages of the last block that was read or prefetched.
    pub(super) fn last_prefetched_block(&self) -> PageRange {
        self.block_at(self.ahead.wrapping_add_signed(-self.distance))
    }

    /// Pages of the block after the last one that was read. Empty before the file.
    pub(super) fn next_block(&self) -> PageRange {
        self.block_at(self.next_offset())
    }

    /// Offset of the block after the last block that was read, in the stride's unit.
    fn next_offset(&self) -> u64 {
        self.last.wrapping_add_signed(self.distance)
    }

    /// Number of pages of a block whose request has `request_pages` pages. Blocks that span several
    /// requests have a known length; for others the request is the block.
    pub(super) fn block_pages(&self, request_pages: u64) -> u64 {
        match self.spans_requests {
            true => (self.length * self.unit_bytes).div_ceil(PAGE_BYTES),
            false => request_pages,
        }
    }

    /// True if a block is longer than its first request: further requests read the rest.
    pub(super) fn spans_requests(&self) -> bool {
        self.spans_requests
    }

    /// True if blocks are longer than their first request, with gaps between them. These blocks are
    /// prefetched whole, and only if one fits into a window.
    pub(super) fn must_fit_window(&self) -> bool {
        self.spans_requests && !self.is_contiguous()
    }

    /// True if each block begins where its neighbour ends.
    pub(super) fn is_contiguous(&self) -> bool {
        self.unit_bytes == PAGE_BYTES && self.length == self.distance.unsigned_abs()
    }

    /// Page of a block that its reader uses first, as a range of one page.
    pub(super) fn first_used_page(&self, block: PageRange) -> PageRange {
        PageRange::new(block.first + self.lead * self.unit_bytes / PAGE_BYTES, 1)
    }

    /// Pages of the last block that was read.
    pub(super) fn last_block(&self) -> PageRange {
        self.block_at(self.last)
    }

    /// Pages of a block that its reader uses for certain. The length of a block that spans requests
    /// is known in pages only. If such a stride is followed in bytes, the first and the last page
    /// of a block may belong to a gap.
    pub(super) fn certain_pages(&self, block: PageRange) -> PageRange {
        if !self.spans_requests || self.unit_bytes == PAGE_BYTES || block.is_empty() {
            return block;
        }
        let first = block.first + u64::from(self.lead > 0);
        PageRange { first, end: (block.end - 1).max(first) }
    }

    /// Minimum number of pages between the pages of two successive blocks of `block_pages` pages.
    pub(super) fn gap_pages(&self, block_pages: u64) -> u64 {
        let distance_bytes = self.distance.unsigned_abs().saturating_mul(self.unit_bytes);
        (distance_bytes / PAGE_BYTES).saturating_sub(block_pages)
    }

    /// Position of the request in the stride's unit.
    fn position_of(&self, access: &AccessContext) -> u64 {
        match self.unit_bytes {
            1 => access.offset,
            _ => access.request.first,
        }
    }

    /// Number of strides from the last block to the block of the request; negative behind it. 0 if
    /// the request is a further one of the last block. `None` off the stride. `None` also for a
    /// further request with an absent page in the last block or behind it: the rest of that block
    /// was not prefetched.
    pub(super) fn steps_to(&self, access: &AccessContext) -> Option<i64> {
        let from_last = self.position_of(access).wrapping_sub(self.last) as i64;
        let from_block = from_last.wrapping_add_unsigned(self.lead);
        // Distance from the begin of the block at or below the request, less than the stride.
        let within = from_block.wrapping_rem_euclid(self.distance).unsigned_abs();
        let steps = from_block.wrapping_sub_unsigned(within) / self.distance;
        let is_further =
            self.spans_requests && within < self.length && (steps > 0 || !access.has_absent_page);
        (within == self.lead || is_further).then_some(steps)
    }

    /// Pages of the blocks between the last one and the block `steps` strides further on.
    pub(super) fn blocks_between(&self, steps: i64) -> impl Iterator<Item = PageRange> {
        let stride = *self;
        (1..steps)
            .map(move |nth| stride.block_at(stride.last.wrapping_add_signed(nth * stride.distance)))
    }

    /// Number of strides from the last block to the next block that was neither read nor
    /// prefetched.
    pub(super) fn steps_ahead(&self) -> i64 {
        self.ahead.wrapping_sub(self.last) as i64 / self.distance
    }

    /// Number of strides from the last block to the block that ends with `page`. 0 for the last
    /// block itself, and if no block ends with it.
    pub(super) fn steps_to_block_end(&self, page: u64) -> i64 {
        let position = page.saturating_mul(PAGE_BYTES) / self.unit_bytes;
        // The position of the request may lie before the end of its block, and the division rounds:
        // the blocks next to the result are examined too.
        let nearest = position.wrapping_sub(self.last) as i64 / self.distance;
        let ends_there = |steps: &i64| {
            let block = self.last.wrapping_add_signed(steps.saturating_mul(self.distance));
            self.block_at(block).end == page + 1
        };
        (nearest - 1..=nearest + 1).find(ends_there).unwrap_or(0)
    }

    /// True if the request is the next block to be prefetched. It was neither read nor prefetched
    /// before.
    pub(super) fn is_next_ahead(&self, access: &AccessContext) -> bool {
        self.steps_to(access) == Some(self.steps_ahead())
    }

    /// Moves the last block that was read forward by `steps` strides.
    pub(super) fn skip_blocks(&mut self, steps: i64) {
        self.last = self.last.wrapping_add_signed(steps * self.distance);
    }

    /// Sets the next block to prefetch to the block after the last one that was read.
    pub(super) fn restart_prefetch(&mut self) {
        self.ahead = self.next_offset();
    }

    /// Moves the next block to prefetch by one stride, after it was prefetched.
    pub(super) fn record_prefetched_block(&mut self) {
        self.ahead = self.ahead.wrapping_add_signed(self.distance);
    }
}
