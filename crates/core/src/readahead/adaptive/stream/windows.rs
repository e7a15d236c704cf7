//! The windows of a stream: their size, their position, and which of their pages are marked. The
//! use of a marked page is reported to the policy, also if the reader need not wait.
//!
//! [`PageView::add_absent`] adds the absent pages of a range in ascending order, and marks only the
//! first of them if it is called with `MARKED`. It returns false if memory is short.

use super::super::super::{DeviceEvidence, PageView, RunBegin};
use super::super::run::SequentialRun;
use super::super::{AccessContext, LatestReadahead, MARKED, UNMARKED, record_window};
use super::{ReadStream, StreamShape, Stride};
use crate::observed::{EWMA_WINDOW, MIN_SAMPLES};
use crate::unit::PageRange;

/// Size of the next window.
#[derive(Clone, Copy)]
struct WindowSize {
    /// Number of pages ahead of the reader.
    pages: u64,
    /// Name of the bound that determined the size, for the decision log.
    why: &'static str,
    /// The stream's share of the memory for pages ahead, in pages.
    share_pages: u64,
}

impl ReadStream {
    /// Prefetches the next window, if the reader waits or another request pays for itself. A
    /// backward window is prefetched in any case. Part of the window may be prefetched already, so
    /// that only the missing pages are added.
    pub(in super::super) fn read_ahead(&mut self, access: AccessContext, pages: &mut dyn PageView) {
        let device = &mut *pages.evidence().device;
        self.record_progress(&access, device);
        let size = self.window_size(device);
        // Without a window the direction stays open.
        if self.shape == StreamShape::Open && size.pages > 0 {
            self.shape = self.assumed_shape();
        }
        let added = match self.shape {
            StreamShape::Open => PageRange::default(),
            StreamShape::Backward => self.read_backward(size, access.request, pages),
            StreamShape::Forward => self.read_forward(size, access, pages),
            StreamShape::Strided(stride) => self.read_strided(stride, size, access, pages),
        };
        if added.is_empty() {
            return;
        }
        self.window_pages = size.pages;
        // Each prefetched window doubles the limit that an eviction has set.
        self.window_pages_max = self.window_pages_max.saturating_mul(2);
        // For the log, and for the newest readahead of the file.
        let (shape, why, behind) = (self.shape.name(), size.why, self.run.used_pages);
        let latest = LatestReadahead { range: added, shape, why, behind, size: size.pages };
        record_window(pages, latest);
    }

    /// Counts the stream as active on the device, or stops counting it at the end of the file. A
    /// stream of a single request is not counted: it may be a random access. The number of active
    /// streams determines the share of each in the memory.
    fn record_progress(&mut self, access: &AccessContext, device: &mut DeviceEvidence) {
        if self.is_at_file_end(access.request, access.file_pages) {
            self.stop_counting(device);
        } else if self.run.length() > 1 {
            self.counted_era = device.record_stream_progress(self.counted_era);
        }
    }

    /// Size of the next window: the least of the target, the limit after evictions, the pages that
    /// stay in memory, and the limit for runs that few requests have continued. The log gets the
    /// name of the least one. Stores the target in `target_pages`.
    fn window_size(&mut self, device: &DeviceEvidence) -> WindowSize {
        let latest_run = self.latest_run();
        let target = device.window(latest_run.begin, latest_run.length(), latest_run.request_pages);
        self.target_pages = target.pages;
        let bounds = [
            (target.pages, target.why),
            (self.window_pages_max, "evicted"),
            (self.pages_kept_until_use(device), "memory"),
            (self.unproven_pages_max(device), "unproven"),
        ];
        let (pages, why) = bounds.into_iter().min_by_key(|&(pages, _)| pages).expect("four bounds");
        WindowSize { pages, why, share_pages: device.stream_share_pages() }
    }

    /// True if the next request pays for itself, `requests_ahead` requests ahead of the reader. No
    /// reader waits for that request.
    fn next_request_pays(&self, requests_ahead: u64, pages: &mut dyn PageView) -> bool {
        let SequentialRun { begin, request_pages, .. } = *self.latest_run();
        let length = self.latest_run().length();
        pages.evidence().device.pays_ahead(begin, length, request_pages, requests_ahead)
    }

    /// Prefetches the window below the prefetched pages, whose lowest page is `prefetch_end`.
    /// Returns the window without the pages that were not added because memory is short; empty if
    /// no page is missing. Unlike a forward window, it has no test for a small or unprofitable
    /// window: any missing part is read.
    fn read_backward(
        &mut self,
        size: WindowSize,
        request: PageRange,
        pages: &mut dyn PageView,
    ) -> PageRange {
        // The reader may already be below all prefetched pages.
        let end = self.prefetch_end.min(request.first);
        let missing_pages = size.pages.saturating_sub(request.first - end).min(size.share_pages);
        let window = PageRange { first: round_begin(end, missing_pages), end };
        self.add_backward(window, pages)
    }

    /// Prefetches the window behind the prefetched pages. Returns the window without the pages that
    /// were not added because memory is short; empty if it is too small or does not pay.
    fn read_forward(
        &mut self,
        size: WindowSize,
        access: AccessContext,
        pages: &mut dyn PageView,
    ) -> PageRange {
        let AccessContext { request, file_pages, .. } = access;
        let first = self.prefetch_end.max(request.end);
        let missing_pages = size.pages.saturating_sub(first - request.end).min(size.share_pages);
        let window_end = round_end(first, missing_pages);
        let window = PageRange { first, end: window_end }.clipped(file_pages);
        // Less than a quarter of the window would pay a whole request for few pages. It is read
        // only if nothing is prefetched, or at the file's end.
        let is_too_small =
            window.count() < size.pages.min(size.share_pages) / 4 && window.end < file_pages;
        if first > request.end && is_too_small {
            // The window has become smaller since the pages ahead were read.
            self.mark_ahead(request, size.pages / 2, pages);
            return PageRange::default();
        }
        let request_pages = self.latest_run().request_pages;
        // Requests until the reader takes the first new page.
        let requests_ahead = (first + 1 - request.end).div_ceil(request_pages);
        if !(access.reader_waits || self.next_request_pays(requests_ahead, pages)) {
            return PageRange::default();
        }
        // If memory determined the size, `size.pages` is all that stays in memory, and may be too
        // small for two windows. All other bounds leave room.
        let is_memory_short = size.why == "memory" && 2 * window.count() > size.pages;
        let has_room_for_two_windows = !is_memory_short;
        self.add_forward(window, access, has_room_for_two_windows, pages)
    }

    /// Marks the page after which `pages_ahead` prefetched pages remain, so that the next window is
    /// considered there. No effect if the request is past that page.
    fn mark_ahead(&self, request: PageRange, pages_ahead: u64, pages: &mut dyn PageView) {
        let page = self.prefetch_end.saturating_sub(pages_ahead.max(1));
        if page >= request.end {
            pages.mark(page);
        }
    }

    /// Prefetches the next blocks of a stride. Returns the range from the lowest to the highest
    /// page; empty if the blocks are too few (less than a quarter of a window) or do not pay. Gaps
    /// are read along if a gap is smaller than a block and costs less than the service time of a
    /// request.
    fn read_strided(
        &mut self,
        mut stride: Stride,
        size: WindowSize,
        access: AccessContext,
        pages: &mut dyn PageView,
    ) -> PageRange {
        // The reader has passed the prefetched blocks.
        if stride.steps_ahead() < 1 {
            stride.restart_prefetch();
            self.shape = StreamShape::Strided(stride);
        }
        // Blocks that are prefetched and not read yet: all before the next block to prefetch.
        let prefetched_blocks = stride.steps_ahead() as u64 - 1;
        let block_pages = stride.block_pages(access.request.count());
        let window_pages = size.pages.min(size.share_pages);
        // A block of one request is read whole in any case. A longer one, unless the blocks are
        // contiguous, is read only if it fits the window.
        if stride.must_fit_window() && window_pages < block_pages {
            return PageRange::default();
        }
        let blocks_max = (window_pages / block_pages).max(1);
        // Up to one and a half windows are ahead, so that a small disk array has enough requests to
        // sort. At most one window is read at once.
        let missing_blocks = (3 * blocks_max / 2).saturating_sub(prefetched_blocks).min(blocks_max);
        let is_too_small = missing_blocks < (blocks_max / 4).max(1);
        let first_missing_block = prefetched_blocks + 1;
        if is_too_small
            || !(access.reader_waits || self.next_request_pays(first_missing_block, pages))
        {
            return PageRange::default();
        }
        let device = &*pages.evidence().device;
        let gap = stride.gap_pages(block_pages);
        let reads_through = gap < block_pages && gap < device.estimate.request_service_pages();
        let (length, request_pages) = (self.latest_run().length(), self.latest_run().request_pages);
        // Without the gaps, each block is a request of its own, which must pay for itself.
        let count = match reads_through {
            true => missing_blocks,
            false => {
                device.blocks_that_pay(length, request_pages, first_missing_block, missing_blocks)
            }
        };
        self.add_blocks(stride, count, reads_through, access.file_pages, pages)
    }

    /// Maximum number of pages ahead of the reader that remain in memory until the reader reaches
    /// them.
    ///
    /// The memory is replaced once as many pages were requested as it has. The stream's share of
    /// these is its number of used pages, divided by all pages requested since it began. Each
    /// stream counts as if it had used 16 pages more (`EWMA_WINDOW`). While the numbers are small,
    /// the share is thus about one divided by the number of streams.
    fn pages_kept_until_use(&self, device: &DeviceEvidence) -> u64 {
        let requested_pages =
            device.requested_pages().saturating_sub(self.requested_pages_at_begin);
        let weighted_pages = requested_pages + EWMA_WINDOW * device.streams.count();
        device.memory_pages * (self.run.used_pages + EWMA_WINDOW) / weighted_pages.max(1)
    }

    /// Maximum number of pages of the next window while few requests have continued a run that
    /// nothing announced: the rest of half of the memory. Few are a length below 4 (`MIN_SAMPLES`).
    /// No limit for any other run.
    ///
    /// Unused prefetched pages may fill three quarters of the machine's cache, so the last quarter
    /// stays for longer runs. Without this bound the windows of random reads, each of which may
    /// begin a run, fill all of it, and a stream among them is not prefetched.
    fn unproven_pages_max(&self, device: &DeviceEvidence) -> u64 {
        match self.run.begin {
            RunBegin::Request { .. } if self.run.length() < MIN_SAMPLES => {
                (device.memory_pages / 2).saturating_sub(device.standing_pages)
            }
            _ => u64::MAX,
        }
    }

    /// Prefetches a forward window, moves `prefetch_end` behind the added pages, and returns their
    /// range from the start of the window on. The middle page is marked, so that the next window is
    /// read while the reader still has half of this one. If memory has no room for two windows, the
    /// last page is marked instead. While only one request has arrived, every page is marked,
    /// except in a mapping.
    fn add_forward(
        &mut self,
        window: PageRange,
        access: AccessContext,
        has_room_for_two_windows: bool,
        pages: &mut dyn PageView,
    ) -> PageRange {
        let request = access.request;
        let unmarked_pages = match has_room_for_two_windows {
            true => window.count() / 2,
            false => window.count().saturating_sub(1),
        };
        if !(self.is_continued() || access.is_touch) {
            // Mark each page, so that the reader's next position is reported wherever it is. A
            // mapping may report first touches of prefetched pages without marks. If memory is
            // short, the next window begins again at the request.
            let add_page = |page: &u64| pages.add_absent(PageRange::new(*page, 1), MARKED);
            let count = window.pages().take_while(add_page).count() as u64;
            let added = window.clipped(window.first + count);
            self.prefetch_end = if added == window { window.end } else { request.end };
            return added;
        }
        let middle = window.first + unmarked_pages;
        let is_first_part_added = pages.add_absent(window.clipped(middle), UNMARKED);
        let second_part = PageRange { first: middle, ..window };
        let is_second_part_added = pages.add_absent(second_part, MARKED);
        // If the window was cut short, the next one begins after the pages that were added. The
        // mark must lie below `prefetch_end`: a request that finds its pages is reported only at a
        // mark, and a mark beyond it would begin another stream.
        let is_cached = |page: &u64| pages.is_cached(*page);
        self.prefetch_end = match is_first_part_added && is_second_part_added {
            true => window.end,
            false => window.first + window.pages().take_while(is_cached).count() as u64,
        };
        window.clipped(self.prefetch_end)
    }

    /// Prefetches a backward window. Its last page is marked, because the reader uses it first.
    /// Pieces of doubling size are added from the end, so that a full memory cuts off the pages
    /// used last. Returns the range of the pieces that were added whole; a part of the next one may
    /// be in memory too.
    fn add_backward(&mut self, window: PageRange, pages: &mut dyn PageView) -> PageRange {
        let mut added_begin = window.end;
        while added_begin > window.first {
            // As many pages as were added before.
            let count = (window.end - added_begin).max(1);
            let first = added_begin.saturating_sub(count).max(window.first);
            let is_marked = added_begin == window.end;
            if !pages.add_absent(PageRange { first, end: added_begin }, is_marked) {
                break;
            }
            added_begin = first;
        }
        // An empty window leaves the position of the prefetched pages as it is.
        if !window.is_empty() {
            self.prefetch_end = added_begin;
        }
        PageRange { first: added_begin, end: window.end }
    }

    /// Prefetches the next `count` blocks of a stride, with the gaps before them if `reads_through`
    /// is set. The block after a quarter of them is marked, so that its use starts the next read
    /// while most of them are still ahead. Ends early at an end of the file, or if memory is short.
    /// Returns the range from the lowest to the highest page of the added blocks.
    fn add_blocks(
        &mut self,
        mut stride: Stride,
        count: u64,
        reads_through: bool,
        file_pages: u64,
        pages: &mut dyn PageView,
    ) -> PageRange {
        // The range of all added blocks, and the block before the next one.
        let mut covered = PageRange::default();
        let mut previous_block = stride.last_prefetched_block();
        // The rest of the last block, of which one request alone has arrived, is read first.
        let rest = previous_block.clipped(file_pages);
        if stride.spans_requests() && !pages.add_absent(rest, UNMARKED) {
            return covered;
        }
        for index in 0..count {
            let block = stride.ahead_block().clipped(file_pages);
            // The stride has reached an end of the file.
            if block.is_empty() {
                break;
            }
            // The gap lies between the previous block and this one, whatever the direction.
            let block_and_gap = match reads_through {
                true => PageRange {
                    first: block.first.min(previous_block.end),
                    end: block.end.max(previous_block.first).min(file_pages),
                },
                false => block,
            };
            let is_marked = index == count / 4;
            // The page that is used first is added first. The mark moves to the rest of a block
            // whose first page was added before.
            let has_room = match stride.spans_requests() {
                true => {
                    let first_used = stride.first_used_page(block).clipped(file_pages);
                    let marks_rest = is_marked && pages.is_cached(first_used.first);
                    pages.add_absent(first_used, is_marked) && pages.add_absent(block, marks_rest)
                }
                false => pages.add_absent(block, is_marked),
            };
            // A block whose gap finds no room is not counted: the next window begins with it.
            if !has_room || !pages.add_absent(block_and_gap, UNMARKED) {
                break;
            }
            covered = match index {
                0 => block_and_gap,
                _ => PageRange {
                    first: covered.first.min(block_and_gap.first),
                    end: covered.end.max(block_and_gap.end),
                },
            };
            previous_block = block;
            stride.record_prefetched_block();
        }
        self.shape = StreamShape::Strided(stride);
        covered
    }
}

/// Power of two to which a window's end is rounded, at most half of the window.
///
/// Servers, stripes and drives transfer powers of two. With NFS calls of 32 KiB, 68 KiB take three
/// calls and 64 KiB take two. Rounding costs little: a window a quarter larger or smaller than the
/// best one costs a thirtieth more.
fn rounding_unit(pages: u64) -> u64 {
    1 << (pages.max(2).ilog2() - 1)
}

/// Rounded end of a window of about `pages` pages that begins at `first`. Not rounded if the result
/// would be an empty window.
fn round_end(first: u64, pages: u64) -> u64 {
    let unit = rounding_unit(pages);
    let end = (first + pages + unit / 2) / unit * unit;
    if end > first { end } else { first + pages }
}

/// Rounded begin of a backward window of at least `pages` pages that ends at `end`. Rounding down
/// never shortens the window; only the file's begin does.
fn round_begin(end: u64, pages: u64) -> u64 {
    let unit = rounding_unit(pages);
    end.saturating_sub(pages) / unit * unit
}
