//! What the laws of all handles know together: of the device, and of a file.

use alloc::vec::Vec;

use super::Ahead;
use crate::decision::DecisionLog;
use crate::estimate::DeviceEstimate;
use crate::unit::{PageRange, Time};

/// How many pieces must agree before the next is read in one.
const PIECES: usize = 4;

/// Beyond so many times what a request costs a window saves less than a sixteenth.
pub(super) const REQUESTS_SHARE: u64 = 16;

/// Up to which power of two pages ages are told apart: 2 GiB.
const AGES: usize = 20;

/// The least region of a file of which it is known how much was asked for: 4 MiB.
const REGION_PAGES: u64 = 1024;

/// The most regions of one file: 8 bytes each.
const REGIONS_MAX: u64 = 4096;

/// Of so many streams of one age it is known whether they went on.
const AGES_LIMIT: u8 = 64;

/// How large a window should be, and what makes it so large: `waits`, what a reader
/// waits for a request; `fills`, what fills a device that many wait for; `occupies`,
/// what a request occupies of a device that is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
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
    /// How long the newest pieces were, the newest last.
    pub pieces: Pieces,
    /// The streams of all handles together.
    pub streams: Streams,
    /// At which age streams end, and at which they go on.
    pub ages: Ages,
    /// When the law is asked: for the log alone, no law decides by it.
    pub now: Time,
    /// What is read ahead, and why.
    pub log: DecisionLog,
}

impl DeviceEvidence {
    /// What one more request costs now, in pages.
    ///
    /// A reader that waits for it loses what it takes. Where `n` wait at a time that is the
    /// `n`-th part of what all of them get done meanwhile; and what the request
    /// occupies of the device is taken from all of them, however many they are.
    pub fn price_pages(&self) -> u64 {
        let wait = self.estimate.request_cost_pages() / self.reads_under_way.max(1);
        wait.max(self.estimate.request_occupies_pages())
    }

    /// The window that costs least for a stream that has so many pages behind it.
    ///
    /// A stream that has gone on for `b` pages ends within the next `w` with a chance
    /// of about `w ÷ (b + w)`: nothing is known of it but its age. So `w` pages
    /// cost `w² ÷ 2b` pages in vain, and a request saved for each `w` is worth its
    /// price `p`: together they are least at `w² = 2pb`. Beyond 16 `p` the requests are
    /// a sixteenth of the bytes, and there is nothing to be had.
    ///
    /// The price is what a request takes, as long as the device has time to spare; `n`
    /// readers with requests of `w` pages each leave it none once their bytes take
    /// as long as a request: what is read ahead beyond twice that hides nothing, for the
    /// others' bytes come later by as much. From there on the price is what it occupies.
    ///
    /// Where streams of that age were seen to end more often than to go on they count as
    /// so much younger, and elsewhere as so much older.
    pub fn window(&self, behind: u64) -> Wanted {
        let (went_on, ended) = self.ages.seen(behind);
        let least = |price: u64| {
            let by_age = 2 * price * behind * went_on / ended;
            by_age.isqrt().min(REQUESTS_SHARE * price)
        };
        let waits = self.estimate.request_cost_pages();
        let others = self.reads_under_way.saturating_sub(1);
        let filling = (2 * waits).checked_div(others).unwrap_or(u64::MAX);
        let (idle, busy) = (least(waits), least(self.estimate.request_occupies_pages()));
        match idle.min(filling) {
            pages if pages <= busy => Wanted { pages: busy, why: "occupies" },
            pages if pages == idle => Wanted { pages, why: "waits" },
            pages => Wanted { pages, why: "fills" },
        }
    }

    /// Pages that came into the cache because somebody asked for them, or were asked for since.
    pub fn asked_pages(&self) -> u64 {
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
    pub fn stream_goes_on(&mut self, counted: Option<Era>) -> Option<Era> {
        // An era is half of the time in which the memory is refilled.
        let era = Era(self.added_pages / (self.memory_pages / 2).max(1));
        self.streams.ended(counted);
        self.streams.came(era);
        Some(era)
    }
}

/// How many streams ended at an age, and how many came to twice that age.
///
/// Ages are counted by powers of two: of a stream that has from 16 to 31 pages behind it, it counts
/// whether it comes to 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ages {
    went_on: [u8; AGES],
    ended: [u8; AGES],
}

impl Default for Ages {
    /// As many as not go on, as far as is known.
    fn default() -> Ages {
        Ages { went_on: [1; AGES], ended: [1; AGES] }
    }
}

impl Ages {
    /// Of streams with so many pages behind them, how many went on and how many ended; neither is 0.
    fn seen(&self, behind: u64) -> (u64, u64) {
        let age = age(behind);
        (self.went_on[age].into(), self.ended[age].into())
    }

    /// A stream went on from `before` to `behind` pages.
    pub fn went_on(&mut self, before: u64, behind: u64) {
        for age in age(before)..age(behind) {
            self.went_on[age] += 1;
            self.forget(age);
        }
    }

    /// A stream ended with so many pages behind it.
    pub fn ended(&mut self, behind: u64) {
        self.ended[age(behind)] += 1;
        self.forget(age(behind));
    }

    /// One that was taken to have ended with so many pages goes on after all.
    pub fn goes_on_after_all(&mut self, behind: u64) {
        let ended = &mut self.ended[age(behind)];
        *ended = (*ended - 1).max(1);
    }

    /// After so many streams the older ones begin to be forgotten.
    fn forget(&mut self, age: usize) {
        if self.went_on[age] + self.ended[age] > AGES_LIMIT {
            self.went_on[age] = self.went_on[age].div_ceil(2);
            self.ended[age] = self.ended[age].div_ceil(2);
        }
    }
}

fn age(behind: u64) -> usize {
    (behind.max(1).ilog2() as usize).min(AGES - 1)
}

/// When a stream was seen last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Era(u64);

/// How many streams go on: those that were seen in this era or in the one before, and that are not
/// known to have ended since. One that rests for longer finds nothing of its own in memory any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    era: Era,
    now: u64,
    before: u64,
}

impl Streams {
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

/// What a program read in a row before it jumped elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Pages that its first request asked for.
    pub begun_with: u64,
    /// Pages that were read altogether.
    pub pages: u64,
}

/// How many pages programs read one after the other before they jump elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    newest: [Piece; PIECES],
}

impl Pieces {
    /// A piece has ended.
    pub fn ended(&mut self, piece: Piece) {
        self.newest.rotate_left(1);
        self.newest[PIECES - 1] = piece;
    }

    /// How long the piece will be at least that begins with a request for so many pages: what the
    /// newest four all had; 0 while there were fewer, or one began with another request.
    pub fn expected_pages(&self, begun_with: u64) -> u64 {
        let is_alike = self.newest.iter().all(|piece| piece.begun_with == begun_with);
        let least = self.newest.iter().map(|piece| piece.pages).min().unwrap_or(0);
        if is_alike { least } else { 0 }
    }
}

/// Requests that belonged to no stream, and found pages absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scattered {
    /// Pages that they asked for and that were absent.
    pub pages: u32,
    /// How many there were.
    pub requests: u32,
}

/// Where in a file such requests fell, by regions of equal size.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    pages_each: u64,
    seen: Vec<Scattered>,
}

impl Regions {
    /// The region of a page of a file of so many, and what was seen of it.
    pub fn at(&mut self, page: u64, file_pages: u64) -> (PageRange, &mut Scattered) {
        if self.seen.is_empty() {
            let least = file_pages.div_ceil(REGIONS_MAX).next_power_of_two();
            self.pages_each = least.max(REGION_PAGES);
        }
        let at = page / self.pages_each;
        if at as usize >= self.seen.len() {
            self.seen.resize(at as usize + 1, Scattered::default());
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
    /// Pages of it that were asked for, belonged to no stream, and were absent.
    pub scattered_pages: u64,
    /// Requests for such pages.
    pub scattered_requests: u64,
    /// The same, region by region.
    pub regions: Regions,
    /// What was read ahead of it last.
    pub newest: Option<Ahead>,
    /// Up to which page it was read whole; `None` while it isn't.
    pub swept_end: Option<u64>,
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

    #[test]
    fn a_piece_is_as_long_as_the_shortest_of_four_that_began_alike() {
        let mut pieces = Pieces::default();
        for pages in [16, 12, 20, 512] {
            assert_eq!(pieces.expected_pages(4), 0);
            pieces.ended(Piece { begun_with: 4, pages });
        }
        assert_eq!((pieces.expected_pages(4), pieces.expected_pages(16)), (12, 0));
        pieces.ended(Piece { begun_with: 16, pages: 512 });
        assert_eq!(pieces.expected_pages(4), 0);
    }

    /// In a memory of 1,000 pages an era is 500 of them.
    #[test]
    fn a_stream_that_rests_for_two_eras_counts_no_more() {
        let mut device = DeviceEvidence { memory_pages: 1000, ..DeviceEvidence::default() };
        let [first, second] = [None, None].map(|counted| device.stream_goes_on(counted));
        assert_eq!(device.streams.count(), 2);
        // Each may have half of what is free; but no more than an eighth.
        assert_eq!(device.stream_share_pages(), 125);
        device.added_pages = 600;
        let second = device.stream_goes_on(second);
        assert_eq!(device.streams.count(), 2, "the first one was seen in the era before");
        device.added_pages = 1100;
        let second = device.stream_goes_on(second);
        assert_eq!(device.streams.count(), 1);
        device.streams.ended(first);
        assert_eq!(device.streams.count(), 1, "it was not counted any more");
        device.streams.ended(second);
        assert_eq!(device.streams.count(), 0);
    }

    /// A request costs 122 pages at first: a stream of 16 pages wants √(2 × 122 × 16) = 62. Seven of
    /// such an age ended, one went on beside the one of each that is taken for granted: as if it had
    /// 16 × 2 ÷ 8 = 4 pages behind it, √(2 × 122 × 4) = 31.
    #[test]
    fn a_stream_counts_as_younger_where_most_end_and_as_older_where_most_go_on() {
        let mut device = DeviceEvidence::default();
        assert_eq!(device.window(16).pages, 62);
        device.ages.went_on(8, 40);
        (0..7).for_each(|_| device.ages.ended(31));
        assert_eq!(device.window(16).pages, 31);
        // Those of 32 pages are of another age.
        assert_eq!(device.window(32).pages, 88);
        // Only one has ended, beside the other: as if it had 16 × 2 ÷ 2 pages behind it. Six more went
        // on: 16 × 8 ÷ 2 are 64, and √(2 × 122 × 64) is 124.
        (0..6).for_each(|_| device.ages.goes_on_after_all(31));
        assert_eq!(device.window(16).pages, 62);
        (0..6).for_each(|_| device.ages.went_on(16, 32));
        assert_eq!(device.window(16).pages, 124);
    }
}
