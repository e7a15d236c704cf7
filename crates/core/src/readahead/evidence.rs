//! Evidence that the policies of all handles share: of the device, and of each file.
//!
//! A *stream* is a sequence of requests of one reader that continue each other. A *run* is the
//! sequence of pages that it takes. A cost in pages is a time: the number of pages that the device
//! transfers in it at its best rate.

use alloc::vec::Vec;

use super::LatestReadahead;
use crate::decision::DecisionLog;
use crate::estimate::DeviceEstimate;
use crate::length_distribution::{LengthDistribution, PROBABILITY_ONE};
use crate::unit::{PageRange, Time};

/// Largest window, as a multiple of the cost of a request. A larger window saves less than a
/// sixteenth of the cost per byte.
pub(crate) const WINDOW_COST_FACTOR: u64 = 16;

/// Most streams per handle, and most fault runs per address space. Beyond it the least recently
/// seen one is forgotten. It allows 64 interleaved streams and 64 requests that may begin one.
pub(crate) const STREAMS_MAX: usize = 128;

/// Number of size classes of first requests, by powers of two: 1 page to 1 MiB. The last has all
/// larger ones too.
const SIZES: usize = 9;

/// Smallest region of a file with its own count of random requests: 1,024 pages, 4 MiB.
const REGION_PAGES: u64 = 1024;

/// Most regions of one file. Each takes 8 bytes.
const REGIONS_MAX: u64 = 4096;

/// A window size and the larger part of the request cost that determined it. "waits": the latency
/// for the reader, weighted by its share of all waiting readers. "occupies": the service time of
/// the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTarget {
    /// Pages ahead of the reader.
    pub pages: u64,
    /// The larger cost part: "waits" or "occupies".
    pub why: &'static str,
}

/// Evidence that a policy may read and update, in addition to the pages.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// Evidence of the device, shared by all its files.
    pub device: &'a mut DeviceEvidence,
    /// Evidence of this file, shared by all its handles.
    pub file: &'a mut FileEvidence,
}

/// Evidence of a device and of the programs that read from it.
#[derive(Clone, Debug, Default)]
pub struct DeviceEvidence {
    /// Estimated costs of a request and of a page.
    pub estimate: DeviceEstimate,
    /// Size of the cache in pages, or less if policies are to assume less.
    pub memory_pages: u64,
    /// Number of frames of the cache that hold no page. 0 where the kernel keeps the pages.
    pub free_pages: u64,
    /// Further memory in pages that would stay free. A file of a lone reader may be read whole into
    /// it. 0: none, as in every machine. It exists where the kernel caches the pages.
    pub spare_pages: u64,
    /// Prefetched pages in the spare memory that are not used yet.
    pub spare_standing_pages: u64,
    /// Total number of pages ever prefetched into the spare memory.
    pub spare_added_pages: u64,
    /// Reads, writes and faults that have not ended, the current one and waiting ones included.
    /// If the kernel caches the pages: waiting readers, or reads in progress, at least 1.
    pub open_reads: u64,
    /// Prefetched pages in the cache that are not used yet, of all files and mappings.
    pub standing_pages: u64,
    /// Total number of pages ever added to the cache.
    pub added_pages: u64,
    /// The active streams of all handles.
    pub streams: StreamCounts,
    /// Run-length distributions.
    pub lengths: RunLengths,
    /// Time of the current call, for the log, and for comparing the outcome of two ways of reading.
    /// Set when a read or fault begins.
    pub now: Time,
    /// Log of readahead decisions and their reasons.
    pub log: DecisionLog,
}

impl DeviceEvidence {
    /// Marginal cost of one more request of `pages` pages now, in pages; at least 1.
    ///
    /// The service time of the device counts in full, because all waiting readers share it. The
    /// latency of the reader beyond that counts by [`DeviceEstimate::request_waits_pages`].
    pub fn marginal_cost_pages(&self, pages: u64) -> u64 {
        let (cost_pages, _) = self.marginal_cost(pages);
        cost_pages
    }

    /// Returns the marginal cost of a request of `pages` pages, in pages, and the name of its
    /// larger part for the log. At least 1: a request is never free.
    fn marginal_cost(&self, pages: u64) -> (u64, &'static str) {
        let other_readers = self.open_reads.saturating_sub(1);
        let wait_pages = self.estimate.request_waits_pages(pages, other_readers);
        let service_pages = self.estimate.request_service_pages();
        (
            (service_pages + wait_pages).max(1),
            if service_pages > wait_pages { "occupies" } else { "waits" },
        )
    }

    /// Returns the window with the least expected cost for a run of `length` requests of
    /// `request_pages` pages (at least 1) that began as `begin`.
    ///
    /// The cost is the marginal cost of a request plus the pages that the run is unlikely to reach
    /// ([`LengthDistribution`]). The window has at most 16 times that marginal cost: beyond it,
    /// requests are less than a sixteenth of the total and the gain is negligible.
    ///
    /// After the first request of a run that nothing announced (`Request` or `Part`), a page is
    /// prefetched only if it is at least as likely used as wasted. Many such requests would each
    /// bring in unused pages, and the marginal cost does not include the harm to other readers. 0
    /// pages if no prefetch is expected to pay.
    pub fn window(&self, begin: RunBegin, length: u64, request_pages: u64) -> WindowTarget {
        let lengths = self.lengths.of(begin);
        // In requests, like all lengths of the distribution. Other runs have no such bound.
        let likely_requests = match begin {
            // The only request so far continues no stream, or is the first of another size.
            // Requests ahead of it are limited to the ones with a probability of at least one half.
            RunBegin::Request { .. } | RunBegin::Part if length == 1 => {
                let requests_max = u64::MAX;
                lengths.pages_ahead(length, PROBABILITY_ONE / 2, requests_max)
            }
            _ => u64::MAX,
        };
        let (marginal_cost_pages, why) = self.marginal_cost(request_pages);
        // 0 for requests that are larger than the largest window.
        let window_requests_max = WINDOW_COST_FACTOR * marginal_cost_pages / request_pages;
        let window_requests =
            lengths.window(length, request_pages, marginal_cost_pages, window_requests_max);
        WindowTarget { pages: request_pages * window_requests.min(likely_requests), why }
    }

    /// Returns true if reading more now, before the reader waits, has a positive expected gain.
    ///
    /// The run has `length` requests of `request_pages` pages, and takes the first of the new pages
    /// if it goes on for `requests_ahead` more requests. The avoided wait is weighed against a
    /// wasted request and page.
    pub fn pays_ahead(
        &self,
        begin: RunBegin,
        length: u64,
        request_pages: u64,
        requests_ahead: u64,
    ) -> bool {
        // In units of 1/`PROBABILITY_ONE`.
        let probability = self.lengths.of(begin).probability_of_reaching(length, requests_ahead);
        // One more request, and the transfer of one page.
        let wasted_cost_pages = self.estimate.request_service_pages() + 1;
        probability * self.marginal_cost_pages(request_pages)
            > (PROBABILITY_ONE - probability) * wasted_cost_pages
    }

    /// Number of the next `count` blocks of a stride that may each be read by a separate request.
    /// The stride has `length` requests of `request_pages` pages until now. The first of the blocks
    /// is the `blocks_ahead`-th block after the last request.
    ///
    /// Returns `count` if at least three of four strides of that length go on. Otherwise each block
    /// must pay for itself. A wasted block costs two requests' service time: one for the block, and
    /// one for the seek back to the block that the reader requests instead. The transfer of a page
    /// is added, as in [`pays_ahead`](DeviceEvidence::pays_ahead). A distance that repeats
    /// less often than one time in four is no stride, because the most common distance of random
    /// requests repeats as often.
    pub fn blocks_that_pay(
        &self,
        length: u64,
        request_pages: u64,
        blocks_ahead: u64,
        count: u64,
    ) -> u64 {
        let strides = self.lengths.of(RunBegin::Stride);
        // Number of quarters, rounded down: of four strides of that length, how many go on.
        let quarters_that_go_on = 4 * strides.probability_of_reaching(length, 1) / PROBABILITY_ONE;
        match quarters_that_go_on {
            0 => 0,
            3.. => count,
            // The blocks before the first one that does not pay.
            _ => {
                let transfer_pages = 1;
                let wasted_cost_pages = 2 * self.estimate.request_service_pages() + transfer_pages;
                let marginal_cost_pages = self.marginal_cost_pages(request_pages);
                let pays = |&index: &u64| {
                    let probability = strides.probability_of_reaching(length, blocks_ahead + index);
                    probability * marginal_cost_pages
                        > (PROBABILITY_ONE - probability) * wasted_cost_pages
                };
                (0..count).take_while(pays).count() as u64
            }
        }
    }

    /// Pages that were requested: added to the cache on demand, or used since.
    pub fn requested_pages(&self) -> u64 {
        self.added_pages.saturating_sub(self.standing_pages)
    }

    /// Most pages that one window of swap-in readahead may have: a quarter of the rest of half of
    /// the memory. Streams of file reads have
    /// [`stream_share_pages`](DeviceEvidence::stream_share_pages) instead.
    ///
    /// With `n` windows each converges to `1 / (n + 4)` of that half, independent of their order.
    /// Prefetched, unused pages thus never fill more than half of the memory. The other half keeps
    /// a prefetched page resident until it is used.
    pub fn window_share_pages(&self) -> u64 {
        (self.memory_pages / 2).saturating_sub(self.standing_pages) / 4
    }

    /// Most pages that the window of a stream of file reads may have: an equal share, among all
    /// streams, of the memory without unused prefetched pages; at most an eighth.
    ///
    /// With `n` windows they converge to half of the memory together, independent of their order;
    /// few windows take less. The other half keeps a prefetched page resident until it is used. The
    /// 8 is the least divisor, also for a single stream.
    pub fn stream_share_pages(&self) -> u64 {
        let rest = self.memory_pages.saturating_sub(self.standing_pages);
        rest / self.streams.count().max(8)
    }

    /// Records that a stream continued. `counted` is the stream's era at the last call, `None` at
    /// the first; returns its present era, never `None`. The caller passes that era to the next
    /// call, so that a stream counts once.
    pub fn record_stream_progress(&mut self, counted: Option<Era>) -> Option<Era> {
        self.streams.remove_stream(counted);
        let era = self.streams.count_stream(self.added_pages, self.memory_pages);
        Some(era)
    }
}

/// Period in which a stream was last seen: half a memory of added pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Era(u64);

/// Number of active streams: seen in this era or the one before, and not known to have ended. A
/// stream that pauses longer no longer has pages in memory.
///
/// Invariant: eras never return, whatever the size of the memory becomes. Each stream of the
/// current era and of the one before is therefore in exactly one of the two counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// The current era: the newest in which a stream was counted.
    era: Era,
    /// Number of pages that had been added to the cache at the start of the current era.
    era_start_pages: u64,
    /// Streams seen in the current era.
    current_era_streams: u64,
    /// Streams seen last in the era before.
    previous_era_streams: u64,
}

impl StreamCounts {
    /// Number of active streams.
    pub fn count(&self) -> u64 {
        self.current_era_streams + self.previous_era_streams
    }

    /// Counts a stream as active in the present era, after shifting the counts if the era is new.
    /// Returns that era. `added_pages` is the number of pages ever added to the cache, and
    /// `memory_pages` its present size.
    fn count_stream(&mut self, added_pages: u64, memory_pages: u64) -> Era {
        // An era is half of the time in which the memory is refilled. It counts from the start of
        // the current era. Counted from the first page ever added, eras would become longer in a
        // larger memory, and the number of the current one would fall.
        let era_pages = (memory_pages / 2).max(1);
        let eras = added_pages.saturating_sub(self.era_start_pages) / era_pages;
        if eras > 0 {
            // The counts shift by one era; after two or more, no earlier stream is active.
            self.previous_era_streams = if eras == 1 { self.current_era_streams } else { 0 };
            self.current_era_streams = 0;
            self.era.0 += eras;
            self.era_start_pages += eras * era_pages;
        }
        self.current_era_streams += 1;
        self.era
    }

    /// Removes a stream that was last counted in the era `counted`. No effect for `None`, or for an
    /// older era, whose streams do not count.
    pub fn remove_stream(&mut self, counted: Option<Era>) {
        let Some(counted) = counted else { return };
        let streams = match self.era.0.wrapping_sub(counted.0) {
            0 => &mut self.current_era_streams,
            1 => &mut self.previous_era_streams,
            _ => return,
        };
        debug_assert!(*streams > 0, "a stream of the two newest eras is counted");
        *streams = streams.saturating_sub(1);
    }
}

/// Beginning of a run, which selects the run-length distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunBegin {
    /// At the start of its file, or after sequential advice.
    Sequential,
    /// Three requests at one distance.
    Stride,
    /// A request that continues requests of another size, such as the data after a header.
    Part,
    /// A request that continues no stream.
    Request {
        /// Size of the request in pages.
        pages: u64,
    },
}

/// Run-length distributions, in requests of the size of the first one, by how the run began.
///
/// Programs with random access often read pieces of one size with requests of one size. Runs that
/// begin with requests of different sizes are therefore kept apart.
#[derive(Clone, Debug)]
pub struct RunLengths {
    /// Runs from the start of a file, or after sequential advice.
    sequential: LengthDistribution,
    /// Runs of requests at one distance.
    strides: LengthDistribution,
    /// Runs that continue requests of another size.
    parts: LengthDistribution,
    /// One distribution per power of two of the first request's pages.
    requests: [LengthDistribution; SIZES],
}

impl Default for RunLengths {
    /// Distributions without observations. By default half of the runs double their length; a
    /// request that continues no stream is not expected to go on at all.
    fn default() -> RunLengths {
        RunLengths {
            sequential: LengthDistribution::default(),
            strides: LengthDistribution::default(),
            parts: LengthDistribution::default(),
            requests: core::array::from_fn(|_| LengthDistribution::of_requests()),
        }
    }
}

impl RunLengths {
    /// Returns the distribution of the lengths of runs that began as `begin`.
    fn of(&self, begin: RunBegin) -> &LengthDistribution {
        match begin {
            RunBegin::Sequential => &self.sequential,
            RunBegin::Stride => &self.strides,
            RunBegin::Part => &self.parts,
            RunBegin::Request { pages } => &self.requests[size_class(pages)],
        }
    }

    /// The distribution of runs that began as `begin`, to be updated.
    pub fn of_mut(&mut self, begin: RunBegin) -> &mut LengthDistribution {
        match begin {
            RunBegin::Sequential => &mut self.sequential,
            RunBegin::Stride => &mut self.strides,
            RunBegin::Part => &mut self.parts,
            RunBegin::Request { pages } => &mut self.requests[size_class(pages)],
        }
    }
}

/// Size class of a request: the binary logarithm of its pages, rounded down, up to `SIZES - 1`.
fn size_class(pages: u64) -> usize {
    (pages.max(1).ilog2() as usize).min(SIZES - 1)
}

/// Random-access requests that belonged to no stream and found pages absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomAccess {
    /// Sum of the requests' marginal costs at the time of each, without their own pages, in pages.
    pub cost_paid_pages: u32,
    /// Number of requests.
    pub requests: u32,
}

/// Random-access requests of a file, counted in regions of equal size.
#[derive(Clone, Debug, Default)]
pub struct RegionCounts {
    /// Size of a region in pages.
    region_pages: u64,
    /// Counts per region, up to the last region with a request.
    counts: Vec<RandomAccess>,
}

impl RegionCounts {
    /// Returns the region that contains `page` in a file of `file_pages` pages, and the counts of
    /// random requests in it. The first call sets the size of the regions. They stay fixed, because
    /// the counts refer to them.
    pub fn region_at(&mut self, page: u64, file_pages: u64) -> (PageRange, &mut RandomAccess) {
        if self.counts.is_empty() {
            // A power of two, with which the file has at most `REGIONS_MAX` regions.
            let pages_min = file_pages.div_ceil(REGIONS_MAX).next_power_of_two();
            self.region_pages = pages_min.max(REGION_PAGES);
        }
        let index = page / self.region_pages;
        if index as usize >= self.counts.len() {
            self.counts.resize(index as usize + 1, RandomAccess::default());
        }
        let first = index * self.region_pages;
        let region = PageRange::new(first, self.region_pages).clipped(file_pages);
        (region, &mut self.counts[index as usize])
    }
}

/// Evidence of one file, shared by all its handles.
#[derive(Clone, Debug, Default)]
pub struct FileEvidence {
    /// Number of the file in the decision log.
    pub number: u32,
    /// Random-access requests: belonged to no stream and found pages absent.
    pub scattered_requests: u64,
    /// Number of these requests that were made while another read was open.
    pub crowded_requests: u64,
    /// Number of absent pages that the random-access requests asked for.
    pub scattered_pages: u64,
    /// Sum of the marginal costs of these requests, without their own pages, in pages.
    pub cost_paid_pages: u64,
    /// Number and cost of the random-access requests per region.
    pub regions: RegionCounts,
    /// The newest readahead of the file.
    pub newest: Option<LatestReadahead>,
    /// End page of the whole-file prefetch; `None` while there was none.
    pub whole_file_end: Option<u64>,
    /// Number of pages read by whole-file prefetch, of the file or a part of it.
    pub whole_file_pages: u64,
    /// True while pages are added to the spare memory ([`DeviceEvidence::spare_pages`]).
    pub fills_spare: bool,
    /// Marginal costs, in pages, of random-access requests that found all pages cached: the cost
    /// that the prefetch avoided.
    pub cost_avoided_pages: u64,
}

impl FileEvidence {
    /// Creates empty evidence for a file. `file_number` identifies the file in the decision log.
    pub fn new(file_number: u32) -> FileEvidence {
        FileEvidence { number: file_number, ..FileEvidence::default() }
    }

    /// Returns true if random-access requests covered at least the fraction 1/`divisor` of the
    /// file. Pages requested twice count twice, if they were absent both times.
    pub(super) fn has_requested_share(&self, divisor: u64, file_pages: u64) -> bool {
        divisor * self.scattered_pages >= file_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a memory of 1,000 pages an era is 500 added pages: 600 lie in era 1, and 1,100 in era 2.
    /// A stream counts in its era and the next one.
    #[test]
    fn a_stream_that_pauses_for_two_eras_is_not_counted() {
        let mut device = DeviceEvidence { memory_pages: 1000, ..DeviceEvidence::default() };
        let [first, second] = [None, None].map(|counted| device.record_stream_progress(counted));
        assert_eq!(device.streams.count(), 2);
        // An equal share would be half of the free memory. The limit is an eighth.
        assert_eq!(device.stream_share_pages(), 125);
        device.added_pages = 600;
        let second = device.record_stream_progress(second);
        assert_eq!(device.streams.count(), 2, "the first one was seen in the era before");
        device.added_pages = 1100;
        let second = device.record_stream_progress(second);
        assert_eq!(device.streams.count(), 1);
        device.streams.remove_stream(first);
        assert_eq!(device.streams.count(), 1, "the first one is not counted any more");
        device.streams.remove_stream(second);
        assert_eq!(device.streams.count(), 0);
    }

    /// A memory of 1,000 pages with 600 added pages is in era 1, and one of 2,000 pages in era 0.
    /// The stream of era 1 pauses while the memory grows. Another stream begins, and reads on in
    /// the smaller memory again, with 1,100 added pages. Both are active, and no count is negative.
    #[test]
    fn streams_are_counted_once_after_the_memory_grew_and_shrank() {
        let mut device =
            DeviceEvidence { memory_pages: 1000, added_pages: 600, ..DeviceEvidence::default() };
        let pausing = device.record_stream_progress(None);
        device.memory_pages = 2000;
        let other = device.record_stream_progress(None);
        assert_eq!(device.streams.count(), 2, "nothing was added in between");
        device.memory_pages = 1000;
        let other = device.record_stream_progress(other);
        assert_eq!(device.streams.count(), 2, "nothing was added in between");
        device.streams.remove_stream(pausing);
        assert_eq!(device.streams.count(), 1);
        device.streams.remove_stream(other);
        assert_eq!(device.streams.count(), 0);
    }
}
