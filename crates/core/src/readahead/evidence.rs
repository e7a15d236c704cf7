//! What the laws of all handles know together: of the device, and of a file.

use alloc::vec::Vec;

use super::LatestReadahead;
use crate::decision::DecisionLog;
use crate::estimate::DeviceEstimate;
use crate::length_distribution::{CERTAIN, LengthDistribution};
use crate::unit::{PageRange, Time};

/// Beyond so many times what a request costs a window saves less than a sixteenth.
pub(crate) const WINDOW_COST_FACTOR: u64 = 16;

/// How many streams one handle may carry, and how many runs of faults one space. Beyond it the one that was not seen
/// longest is forgotten. Sixty-four interleaved ones, and as many requests that
/// may turn out to be the begin of one.
pub(crate) const STREAMS_MAX: usize = 128;

/// Up to which power of two first requests are told apart: 1 MiB.
const SIZES: usize = 9;

/// The least region of a file of which it is known how much was asked for: 4 MiB.
const REGION_PAGES: u64 = 1024;

/// The most regions of one file: 8 bytes each.
const REGIONS_MAX: u64 = 4096;

/// How large a window should be, and what makes it so large: `waits`, what a reader waits for a request,
/// as a part of all that wait; `service_time`, what a request occupies of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTarget {
    /// Pages ahead of the reader.
    pub pages: u64,
    /// Why so many.
    pub why: &'static str,
}

/// What a law may look at and add to beside the pages.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// Of the device, by all its files together.
    pub device: &'a mut DeviceEvidence,
    /// Of this file, by all its handles together.
    pub file: &'a mut FileEvidence,
}

/// What is known of the device and of the programs that read from it.
#[derive(Clone, Debug, Default)]
pub struct DeviceEvidence {
    /// What a request costs, against a page.
    pub estimate: DeviceEstimate,
    /// Memory of the cache in pages.
    pub memory_pages: u64,
    /// Reads that were begun and have not ended, the one that asks among them.
    pub reads_under_way: u64,
    /// Pages in the cache that were read ahead and that nobody has used yet.
    pub standing_pages: u64,
    /// Pages that were ever added to the cache.
    pub added_pages: u64,
    /// The streams of all handles together.
    pub streams: StreamCounts,
    /// How far runs go.
    pub lengths: RunLengths,
    /// When the law is asked: for the log alone, no law decides by it.
    pub now: Time,
    /// What is read ahead, and why.
    pub log: DecisionLog,
}

impl DeviceEvidence {
    /// What one more request of so many pages costs now, in pages; at least 1.
    ///
    /// What it occupies of the device is taken from all who wait, however many they are; what its reader waits beside that, as
    /// [`DeviceEstimate::request_waits_pages`] has it.
    pub fn marginal_cost_pages(&self, pages: u64) -> u64 {
        self.marginal_cost(pages).0
    }

    /// The price, and what most of it is.
    fn marginal_cost(&self, pages: u64) -> (u64, &'static str) {
        let others = self.reads_under_way.saturating_sub(1);
        let waits = self.estimate.request_waits_pages(pages, others);
        let service_time = self.estimate.request_service_pages();
        ((service_time + waits).max(1), if service_time > waits { "occupies" } else { "waits" })
    }

    /// The window that costs least for a run of `length` requests of `each` pages that began so.
    ///
    /// What it costs is the price of a request and the pages that the run is not likely to come to
    /// ([`LengthDistribution`]). Beyond 16 times that price the requests are a sixteenth of the bytes, and
    /// there is nothing to be had.
    ///
    /// Of a request that continues nothing no page is read ahead that is likelier wasted than used: of
    /// many such each would bring in what nobody wants, and what that costs others no price says.
    pub fn window(&self, begin: RunBegin, length: u64, each: u64) -> WindowTarget {
        let lengths = self.lengths.of(begin);
        let prefetch_requests = match begin {
            RunBegin::Request { .. } | RunBegin::Part if length == 1 => {
                lengths.pages_ahead(1, CERTAIN / 2, u64::MAX)
            }
            _ => u64::MAX,
        };
        let (marginal_cost, why) = self.marginal_cost(each);
        let pays =
            lengths.window(length, each, marginal_cost, WINDOW_COST_FACTOR * marginal_cost / each);
        WindowTarget { pages: each * pays.min(prefetch_requests), why }
    }

    /// Whether it pays to read more now while nobody waits, of which a run of `length` requests of `each` pages takes the first page if
    /// it goes on for `ahead` more: what a reader would have to wait for then, against a request and a page in vain.
    pub fn pays_ahead(&self, begin: RunBegin, length: u64, each: u64, ahead: u64) -> bool {
        let chance = self.lengths.of(begin).probability_of_reaching(length, ahead);
        let in_vain = self.estimate.request_service_pages() + 1;
        chance * self.marginal_cost_pages(each) > (CERTAIN - chance) * in_vain
    }

    /// How many of `count` blocks of a stride of `length` requests of `each` pages may be read by
    /// requests of their own, from the one on that is `ahead` blocks on.
    ///
    /// All of them where three of four strides of that length go on. Else each has to pay for
    /// itself: in vain it occupies the device twice, on the way there, and back to the block that
    /// the reader asks for in its place. And a distance that repeats less often than one time in
    /// four is no stride: so often the commonest gap repeats where pages are drawn.
    pub fn blocks_that_pay(&self, length: u64, each: u64, ahead: u64, count: u64) -> u64 {
        let strides = self.lengths.of(RunBegin::Stride);
        match 4 * strides.probability_of_reaching(length, 1) / CERTAIN {
            0 => 0,
            3.. => count,
            _ => {
                let in_vain = 2 * self.estimate.request_service_pages() + 1;
                let marginal_cost = self.marginal_cost_pages(each);
                let pays = |&nth: &u64| {
                    let chance = strides.probability_of_reaching(length, ahead + nth);
                    chance * marginal_cost > (CERTAIN - chance) * in_vain
                };
                (0..count).take_while(pays).count() as u64
            }
        }
    }

    /// Pages that came into the cache because somebody asked for them, or were asked for since.
    pub fn requested_pages(&self) -> u64 {
        self.added_pages.saturating_sub(self.standing_pages)
    }

    /// What is free of the half of the memory that may be read ahead into, of 64 parts.
    pub fn free_share(&self) -> u64 {
        let half = self.memory_pages / 2;
        (half.saturating_sub(self.standing_pages) * 64).checked_div(half).unwrap_or(0)
    }

    /// How many more pages one window may have: a quarter of what is left of
    /// half of the memory.
    ///
    /// So `n` windows come to rest at `1 / (n + 4)` of that half each, however
    /// many there are and whichever was first, and what was read ahead never
    /// fills more than half of the memory: the other half is what a page that
    /// is read ahead lives on until it is used.
    pub fn window_share_pages(&self) -> u64 {
        (self.memory_pages / 2).saturating_sub(self.standing_pages) / 4
    }

    /// How many more pages the window of a stream may have: of the memory that is not read ahead
    /// into yet, the part of one among all streams, and no more than an eighth.
    ///
    /// So `n` windows come to rest at half of the memory together, however many there are
    /// and whichever was first; a few at less. The other half is what a page that is read
    /// ahead lives on until it is used.
    pub fn stream_share_pages(&self) -> u64 {
        let rest = self.memory_pages.saturating_sub(self.standing_pages);
        rest / self.streams.count().max(8)
    }

    /// A stream was seen to go on; gives its place in the count.
    pub fn record_stream_progress(&mut self, counted: Option<Era>) -> Option<Era> {
        // An era is half of the time in which the memory is refilled.
        let era = Era(self.added_pages / (self.memory_pages / 2).max(1));
        self.streams.ended(counted);
        self.streams.came(era);
        Some(era)
    }
}

/// When a stream was seen last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Era(u64);

/// How many streams go on: those that were seen in this era or in the one before, and that are not
/// known to have ended since. One that rests for longer finds nothing of its own in memory any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    era: Era,
    now: u64,
    before: u64,
}

impl StreamCounts {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.now + self.before
    }

    fn came(&mut self, era: Era) {
        if era != self.era {
            let is_next = era.0 == self.era.0 + 1;
            (self.before, self.now) = (if is_next { self.now } else { 0 }, 0);
            self.era = era;
        }
        self.now += 1;
    }

    /// One that was counted has ended.
    pub fn ended(&mut self, counted: Option<Era>) {
        match counted {
            Some(era) if era == self.era => self.now -= 1,
            Some(era) if era.0 + 1 == self.era.0 => self.before = self.before.saturating_sub(1),
            _ => {}
        }
    }
}

/// What is known of a run when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunBegin {
    /// It begins with its file, or the program has said that it reads in order.
    Told,
    /// Three requests at one distance.
    Stride,
    /// A request that goes on from others of another size: what follows a header.
    Part,
    /// A request that continues nothing.
    Request {
        /// Pages that it asks for.
        pages: u64,
    },
}

/// How far runs go, in requests of the size of their first, by how they begin.
///
/// Programs that jump about often read pieces of one size, and ask for each with requests of one size: so
/// runs that begin with a request of another size say nothing of them.
#[derive(Clone, Debug)]
pub struct RunLengths {
    told: LengthDistribution,
    strides: LengthDistribution,
    parts: LengthDistribution,
    /// By the powers of two of the first request's pages.
    requests: [LengthDistribution; SIZES],
}

impl Default for RunLengths {
    fn default() -> RunLengths {
        RunLengths {
            told: LengthDistribution::default(),
            strides: LengthDistribution::default(),
            parts: LengthDistribution::default(),
            requests: core::array::from_fn(|_| LengthDistribution::of_requests()),
        }
    }
}

impl RunLengths {
    fn of(&self, begin: RunBegin) -> &LengthDistribution {
        match begin {
            RunBegin::Told => &self.told,
            RunBegin::Stride => &self.strides,
            RunBegin::Part => &self.parts,
            RunBegin::Request { pages } => &self.requests[size_of(pages)],
        }
    }

    /// How far runs that begin so were seen to go.
    pub fn of_mut(&mut self, begin: RunBegin) -> &mut LengthDistribution {
        match begin {
            RunBegin::Told => &mut self.told,
            RunBegin::Stride => &mut self.strides,
            RunBegin::Part => &mut self.parts,
            RunBegin::Request { pages } => &mut self.requests[size_of(pages)],
        }
    }
}

fn size_of(pages: u64) -> usize {
    (pages.max(1).ilog2() as usize).min(SIZES - 1)
}

/// Requests that belonged to no stream, and found pages absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomAccess {
    /// What they have cost beside their pages, each at the price of its moment: in pages.
    pub cost_paid_pages: u32,
    /// How many there were.
    pub requests: u32,
}

/// Where in a file such requests fell, by regions of equal size.
#[derive(Clone, Debug, Default)]
pub struct RegionCounts {
    pages_each: u64,
    seen: Vec<RandomAccess>,
}

impl RegionCounts {
    /// The region of a page of a file of so many, and what was seen of it.
    pub fn at(&mut self, page: u64, file_pages: u64) -> (PageRange, &mut RandomAccess) {
        if self.seen.is_empty() {
            let least = file_pages.div_ceil(REGIONS_MAX).next_power_of_two();
            self.pages_each = least.max(REGION_PAGES);
        }
        let at = page / self.pages_each;
        if at as usize >= self.seen.len() {
            self.seen.resize(at as usize + 1, RandomAccess::default());
        }
        let region = PageRange::new(at * self.pages_each, self.pages_each).clipped(file_pages);
        (region, &mut self.seen[at as usize])
    }
}

/// What is known of one file, by all its handles together.
#[derive(Clone, Debug, Default)]
pub struct FileEvidence {
    /// Which file it is, in the order in which they were added.
    pub number: u32,
    /// Requests that belonged to no stream and found pages absent.
    pub scattered_requests: u64,
    /// Pages that these asked for and that were absent.
    pub scattered_pages: u64,
    /// What these have cost beside their pages, each at the price of its moment: in pages.
    pub cost_paid_pages: u64,
    /// The same, region by region.
    pub regions: RegionCounts,
    /// What was read ahead of it last.
    pub newest: Option<LatestReadahead>,
    /// Up to which page it was read whole; `None` while it isn't.
    pub whole_file_end: Option<u64>,
    /// How many pages were read so, of all of it or of a part.
    pub whole_file_pages: u64,
    /// What requests would have cost beside their pages that found all their pages there, and belonged to no stream.
    pub cost_avoided_pages: u64,
}

impl FileEvidence {
    /// Nothing is known of the file of that number.
    pub fn new(number: u32) -> FileEvidence {
        FileEvidence { number, ..FileEvidence::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a memory of 1,000 pages an era is 500 of them.
    #[test]
    fn a_stream_that_pauses_for_two_eras_is_not_counted() {
        let mut device = DeviceEvidence { memory_pages: 1000, ..DeviceEvidence::default() };
        let [first, second] = [None, None].map(|counted| device.record_stream_progress(counted));
        assert_eq!(device.streams.count(), 2);
        // Each may have half of what is free; but no more than an eighth.
        assert_eq!(device.stream_share_pages(), 125);
        device.added_pages = 600;
        let second = device.record_stream_progress(second);
        assert_eq!(device.streams.count(), 2, "the first one was seen in the era before");
        device.added_pages = 1100;
        let second = device.record_stream_progress(second);
        assert_eq!(device.streams.count(), 1);
        device.streams.ended(first);
        assert_eq!(device.streams.count(), 1, "it was not counted any more");
        device.streams.ended(second);
        assert_eq!(device.streams.count(), 0);
    }
}
