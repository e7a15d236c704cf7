//! Verdict on the advice, from the use of the prefetched pages.
//!
//! At first the program is only recorded, until it has waited ten milliseconds for files outside
//! the kernel page cache. A program with shorter waits needs no advice.
//!
//! Then pages are prefetched on *credit*. It begins at [`INITIAL_CREDIT_PAGES`]. A prefetched page
//! takes one, and a used page returns two, up to [`CREDIT_PAGES_MAX`]. Prefetched pages thus never
//! exceed the start plus twice the used pages. A file that is used up in large pieces has more
//! credit, because its pieces come in any order and the first prefetched pages are used late:
//! [`WHOLE_FILE_CREDIT_PAGES`], or as many pages as the device reads in the time that the program
//! has waited so far. The waits of several threads add up. The rest of a large read in progress is
//! already requested and needs no credit.
//!
//! The verdict is negative in any of these cases:
//!
//! - pages were refused for want of credit, and less than a quarter of the pages used since then
//!   had been prefetched. The share is taken once the program has used as many pages as are
//!   prefetched and unused. Random order in a file that is prefetched as a whole can hit only the
//!   prefetched part of its rest. The limit there is half of that part, if that is less;
//! - at least as many pages as the start were evicted or became stale, and more than were used;
//! - the program waited 1.5 times as long per byte as without advice.
//!
//! A negative verdict pauses the advice: one second at first, and twice as long after each further
//! verdict in a row. The advice resumes with half of the previous start. During a pause the waits
//! without advice are measured again. The fifth verdict in a row stops the advice for good. A
//! program with unpredictable reads thus causes at most twice the start, 4 MiB, of prefetches.
//!
//! Waits are compared only where both sides are at least a tenth of a second. The first ten
//! milliseconds show that a gain is possible, not its size. The limits are chosen.

/// Initial credit in pages (2 MiB).
const INITIAL_CREDIT_PAGES: u64 = 512;

/// Maximum credit in pages (16 MiB). Past success must not cover much waste later.
const CREDIT_PAGES_MAX: i64 = 4096;

/// Minimum additional credit in pages (32 MiB) for a file that is being used up.
const WHOLE_FILE_CREDIT_PAGES: i64 = 8192;

/// Number of used or wasted pages (16 MiB) after which the counts start again.
const ROUND_PAGES: u64 = 4096;

/// Inverse of the minimum share of prefetched pages among the pages that the program uses.
const HELPED_SHARE_DIVISOR: u64 = 4;

/// Duration of the first pause in nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;

/// Number of negative verdicts in a row after which the advice stops.
const NEGATIVE_VERDICTS_MAX: u32 = 5;

/// Waits in nanoseconds that are measured before the advice begins.
const MEASURED_NS: u64 = 10_000_000;

/// Minimum waits in nanoseconds for a comparison of costs per byte.
const WAITS_NS: u64 = 100_000_000;

/// Reason of a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefetchReason {
    /// The pages are the rest of a read in progress.
    Requested,
    /// The readahead policy predicts the pages. The flag marks a file that is being used up.
    Predicted { is_used_up: bool },
    /// The pages are the rest of a file that is being used up.
    WholeFile,
}

/// Reason of a negative verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// More prefetched pages were lost than used.
    Unused,
    /// Fewer than a quarter of the accessed pages had been prefetched. In a file that is prefetched
    /// as a whole: fewer than half of those that random reads would find.
    FewPrefetched,
    /// The program waited longer than without advice.
    WaitsGrew,
}

/// State of the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdviceState {
    /// Off: waits without advice are being measured.
    Measure,
    /// On: the advice pays, or its effect is unknown.
    Advise,
    /// Paused until this time after a negative verdict.
    RestUntil { until_ns: u64 },
    /// Stopped for good.
    Stopped,
}

/// Waits of a program and the bytes it read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Waits for devices in nanoseconds, summed over all threads.
    pub waited_ns: u64,
    /// Bytes read in the same period.
    pub read_bytes: u64,
}

impl Waits {
    /// Adds a read of `read_bytes` bytes that waited `waited_ns` for devices.
    fn add(&mut self, waited_ns: u64, read_bytes: u64) {
        self.waited_ns += waited_ns;
        self.read_bytes += read_bytes;
    }

    /// Returns true when the wait per byte is at least 1.5 times the one in `other`. False while
    /// one of the waits is shorter than `WAITS_NS`.
    fn is_worse_than(&self, other: &Waits) -> bool {
        let are_known = other.waited_ns >= WAITS_NS && self.waited_ns >= WAITS_NS;
        // The comparison of two quotients, multiplied out for integers.
        let product = |ns: u64, bytes: u64| u128::from(ns) * u128::from(bytes);
        are_known
            && 2 * product(self.waited_ns, other.read_bytes)
                >= 3 * product(other.waited_ns, self.read_bytes)
    }
}

/// Unused part of a file that is prefetched as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct WholeFileRest {
    /// Pages that the program has not used.
    pub pages: u64,
    /// Number of these that are prefetched.
    pub prefetched_pages: u64,
}

impl WholeFileRest {
    /// Returns the number of `accessed_pages` that count for the minimum share. It is twice the
    /// number of accessed pages that are prefetched if the program reads the rest in random order.
    /// The minimum share, a quarter, is then half of the pages that random reads would find.
    fn expected_pages(self, accessed_pages: u64) -> u64 {
        (2 * accessed_pages * self.prefetched_pages).div_ceil(self.pages.max(1)).min(accessed_pages)
    }
}

/// Counts since the first refusal for want of credit.
#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    /// Pages that the program accessed.
    accessed_pages: u64,
    /// Pages that count for the minimum share; at most `accessed_pages`.
    expected_pages: u64,
    /// Prefetched pages that the program used.
    used_pages: u64,
}

/// State of the credit and of the verdict.
#[derive(Debug)]
pub(super) struct AdviceCredit {
    /// State of the advice, except that an expired pause is still recorded as one.
    state: AdviceState,
    /// Number of negative verdicts since the last round that paid. It shortens the initial
    /// credit and lengthens the pause.
    consecutive_negative_verdicts: u32,
    /// Reason of the last negative verdict.
    last_stop_reason: Option<StopReason>,
    /// Initial credit in pages.
    start_pages: u64,
    /// Pages that may be prefetched. Negative after prefetches on additional credit.
    credit_pages: i64,
    /// Counts since the first refusal for want of credit. `None` before it, and once they were
    /// judged.
    refused: Option<Refused>,
    /// Prefetched pages that the program used in this round. A round ends with a verdict, or
    /// after `ROUND_PAGES` pages.
    used_pages: u64,
    /// Prefetched pages evicted without use in this round.
    lost_pages: u64,
    /// Waits with advice in this round.
    waits: Waits,
    /// Waits of the latest period without advice.
    latest_waits_without: Waits,
    /// Waits of the whole run without advice.
    waits_without: Waits,
    /// Waits of the whole run with advice.
    waits_with: Waits,
}

impl AdviceCredit {
    /// Creates the state before any advice. The initial credit is at most half of the budget, but
    /// at least one page.
    pub fn new(budget_pages: u64) -> AdviceCredit {
        let start_pages = INITIAL_CREDIT_PAGES.min(budget_pages / 2).max(1);
        AdviceCredit {
            state: AdviceState::Measure,
            consecutive_negative_verdicts: 0,
            last_stop_reason: None,
            start_pages,
            credit_pages: start_pages as i64,
            refused: None,
            used_pages: 0,
            lost_pages: 0,
            waits: Waits::default(),
            latest_waits_without: Waits::default(),
            waits_without: Waits::default(),
            waits_with: Waits::default(),
        }
    }

    /// Returns the state at this time. An expired pause turns the advice on, with a new start
    /// credit.
    pub fn state_at(&mut self, at_ns: u64) -> AdviceState {
        if matches!(self.state, AdviceState::RestUntil { until_ns } if at_ns >= until_ns) {
            self.state = AdviceState::Advise;
            self.credit_pages = (self.start_pages >> self.consecutive_negative_verdicts) as i64;
            (self.used_pages, self.lost_pages, self.waits) = (0, 0, Waits::default());
        }
        self.state
    }

    /// Records a read of `read_bytes` bytes that waited `waited_ns` nanoseconds for devices. Only
    /// reads of files with absent pages are passed. The wait counts for the current period, with or
    /// without advice. The advice begins once the initial waits reach `MEASURED_NS`.
    pub fn record_read(&mut self, waited_ns: u64, read_bytes: u64) {
        if self.state == AdviceState::Advise {
            self.waits.add(waited_ns, read_bytes);
            self.waits_with.add(waited_ns, read_bytes);
            return;
        }
        self.latest_waits_without.add(waited_ns, read_bytes);
        self.waits_without.add(waited_ns, read_bytes);
        if self.state == AdviceState::Measure && self.latest_waits_without.waited_ns >= MEASURED_NS
        {
            self.state = AdviceState::Advise;
        }
    }

    /// Number of pages that may be prefetched for `reason` now: the credit, and the additional
    /// credit for a file that is being used up. Zero means that no credit is left. The rest of a
    /// read in progress has no limit. `page_ps` is the time in picoseconds in which the device
    /// reads a page.
    pub fn available_pages(&self, reason: PrefetchReason, page_ps: u64) -> u64 {
        let waited_ns = self.waits_without.waited_ns + self.waits_with.waited_ns;
        // A nanosecond has 1,000 picoseconds.
        let waited_pages = (waited_ns.saturating_mul(1000) / page_ps.max(1)) as i64;
        let whole_file_pages = waited_pages.max(WHOLE_FILE_CREDIT_PAGES);
        let extra_pages = match reason {
            PrefetchReason::Requested => return u64::MAX,
            PrefetchReason::Predicted { is_used_up: false } => 0,
            // `start_pages` more than the whole-file prefetch may take. The policy can thus
            // continue within a piece of the file while the whole-file prefetch waits for credit.
            PrefetchReason::Predicted { is_used_up: true } => {
                whole_file_pages + self.start_pages as i64
            }
            PrefetchReason::WholeFile => whole_file_pages,
        };
        u64::try_from(self.credit_pages + extra_pages).unwrap_or(0)
    }

    /// Takes credit for prefetched pages. The rest of a read in progress needs no credit.
    pub fn record_prefetched(&mut self, pages: u64, reason: PrefetchReason) {
        if reason != PrefetchReason::Requested {
            self.credit_pages -= pages as i64;
        }
    }

    /// Records that pages were not prefetched for want of credit. The minimum share is judged from
    /// the first refusal on.
    pub fn record_credit_refusal(&mut self) {
        self.refused.get_or_insert_default();
    }

    /// Records the program's access to `pages` pages. `whole_file` is the unused part of their file
    /// if that is prefetched as a whole.
    pub fn record_access(&mut self, pages: u64, whole_file: Option<WholeFileRest>) {
        if let Some(refused) = &mut self.refused {
            refused.accessed_pages += pages;
            refused.expected_pages += whole_file.map_or(pages, |rest| rest.expected_pages(pages));
        }
    }

    /// Records that the program used prefetched pages, and returns two pages of credit for each, up
    /// to a credit of `CREDIT_PAGES_MAX`.
    pub fn record_used(&mut self, pages: u64) {
        self.used_pages += pages;
        self.credit_pages = (self.credit_pages + 2 * pages as i64).min(CREDIT_PAGES_MAX);
        if let Some(refused) = &mut self.refused {
            refused.used_pages += pages;
        }
    }

    /// Records that prefetched pages were evicted without use.
    pub fn record_lost(&mut self, pages: u64) {
        self.lost_pages += pages;
    }

    /// Judges the advice at `at_ns`. `unused_pages` are prefetched and not yet used, `stale_pages`
    /// of them are old. A negative verdict returns false and pauses or stops the advice. True also
    /// stands for advice that is off. After `ROUND_PAGES` pages without a negative verdict, the
    /// counts and the row of negative verdicts start again.
    pub fn judge(&mut self, (unused_pages, stale_pages): (u64, u64), at_ns: u64) -> bool {
        if self.state != AdviceState::Advise {
            return true;
        }
        let Some(reason) = self.negative_verdict(unused_pages, stale_pages) else {
            if self.used_pages + self.lost_pages + stale_pages >= ROUND_PAGES {
                self.consecutive_negative_verdicts = 0;
                (self.used_pages, self.lost_pages, self.waits) = (0, 0, Waits::default());
            }
            return true;
        };
        // Each further negative verdict in a row doubles the pause.
        let pause_ns = PAUSE_NS << self.consecutive_negative_verdicts;
        self.consecutive_negative_verdicts += 1;
        self.last_stop_reason = Some(reason);
        // The refusals and the waits without advice are measured again.
        self.refused = None;
        self.latest_waits_without = Waits::default();
        self.state = match self.consecutive_negative_verdicts {
            NEGATIVE_VERDICTS_MAX.. => AdviceState::Stopped,
            _ => AdviceState::RestUntil { until_ns: at_ns + pause_ns },
        };
        false
    }

    /// Returns the reason of a negative verdict, or `None` while the advice pays or is not yet
    /// judged. The share of used pages is judged once enough pages were accessed: as many as are
    /// prefetched and unused or lost, and at least the start. The next refusal then starts its
    /// count again.
    fn negative_verdict(&mut self, unused_pages: u64, stale_pages: u64) -> Option<StopReason> {
        // The credit at the start of this period of advice, which each negative verdict halves.
        let pages_min = (self.start_pages >> self.consecutive_negative_verdicts).max(1);
        let gone_pages = self.lost_pages + stale_pages;
        if gone_pages >= pages_min && self.used_pages < gone_pages {
            return Some(StopReason::Unused);
        }
        if let Some(Refused { accessed_pages, expected_pages, used_pages }) = self.refused
            && accessed_pages >= (unused_pages + self.lost_pages).max(pages_min)
        {
            self.refused = None;
            if used_pages * HELPED_SHARE_DIVISOR < expected_pages {
                return Some(StopReason::FewPrefetched);
            }
        }
        self.waits.is_worse_than(&self.latest_waits_without).then_some(StopReason::WaitsGrew)
    }

    /// Returns the waits without and with advice.
    pub fn waits_without_and_with(&self) -> (Waits, Waits) {
        (self.waits_without, self.waits_with)
    }

    /// Returns the reason of the last negative verdict, `None` before the first.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.last_stop_reason
    }

    /// Returns true from a refusal for want of credit until the share of used pages is judged.
    pub fn is_refusing(&self) -> bool {
        self.refused.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Time of a page of 4 KiB at 500 MB/s, in picoseconds.
    const PAGE_PS: u64 = 8_192_000;

    /// State after the initial waits. The tests call `judge` with (unused, stale) pages and a time.
    fn credit_in_advice() -> AdviceCredit {
        let mut credit = AdviceCredit::new(1 << 20);
        credit.record_read(MEASURED_NS, 1 << 20);
        assert_eq!(credit.state_at(0), AdviceState::Advise);
        credit
    }

    const PREDICTED: PrefetchReason = PrefetchReason::Predicted { is_used_up: false };

    /// In each round 1,000 pages are used and 900 lost.
    #[test]
    fn advice_continues_while_pages_are_used() {
        let mut credit = credit_in_advice();
        for _ in 0..100 {
            credit.record_used(1000);
            credit.record_lost(900);
            assert!(credit.judge((0, 0), 5));
        }
        assert_eq!(credit.state_at(6), AdviceState::Advise);
    }

    /// Trials of 512, 256, 128, 64 and 32 pages, all lost, with pauses of 1, 2, 4 and 8 seconds.
    #[test]
    fn advice_without_use_pauses_ever_longer_and_stops() {
        let mut credit = credit_in_advice();
        let mut at_ns = 0;
        for (pause_s, pages) in [(1, 512), (2, 256), (4, 128), (8, 64)] {
            assert_eq!(credit.available_pages(PREDICTED, PAGE_PS), pages);
            credit.record_lost(pages - 100.min(pages));
            assert!(credit.judge((0, 99.min(pages - 1)), at_ns));
            assert!(!credit.judge((0, 100.min(pages)), at_ns));
            let until_ns = at_ns + pause_s * SECOND;
            assert_eq!(credit.state_at(at_ns), AdviceState::RestUntil { until_ns });
            at_ns = until_ns;
            assert_eq!(credit.state_at(at_ns), AdviceState::Advise, "after {pause_s} s");
        }
        assert!(!credit.judge((0, 32), at_ns));
        assert_eq!(
            (credit.state_at(1 << 60), credit.stop_reason()),
            (AdviceState::Stopped, Some(StopReason::Unused))
        );
    }

    /// The program uses one in 16 prefetched pages. At most twice the start is prefetched.
    #[test]
    fn unpredictable_reads_get_few_prefetched_pages() {
        let mut credit = credit_in_advice();
        let (mut prefetched, mut used) = (0, 0);
        for step in 0..1_000_000_u64 {
            let at_ns = step * 100_000;
            if credit.state_at(at_ns) == AdviceState::Advise {
                let pages = credit.available_pages(PREDICTED, PAGE_PS).min(32);
                if pages < 32 {
                    credit.record_credit_refusal();
                }
                credit.record_prefetched(pages, PREDICTED);
                prefetched += pages;
            }
            credit.record_access(1, None);
            if used * 16 < prefetched {
                credit.record_used(1);
                used += 1;
            }
            credit.judge((prefetched - used, 0), at_ns);
        }
        assert_eq!(credit.state_at(u64::MAX), AdviceState::Stopped);
        let prefetched_max = 2 * INITIAL_CREDIT_PAGES + 2 * used;
        assert!(prefetched <= prefetched_max, "{prefetched} pages, {used} used");
    }

    /// A stream uses each window before the next but one is prefetched.
    #[test]
    fn stream_prefetch_never_runs_out_of_credit() {
        let mut credit = credit_in_advice();
        credit.record_prefetched(256, PREDICTED);
        for step in 0..10_000 {
            assert!(credit.available_pages(PREDICTED, PAGE_PS) >= 256, "step {step}");
            credit.record_prefetched(256, PREDICTED);
            credit.record_access(256, None);
            credit.record_used(256);
            assert!(credit.judge((256, 0), step));
        }
        assert_eq!(credit.stop_reason(), None);
    }

    /// 8,000 of 60,000 unused pages are prefetched. By hand: 8,000 accesses in random order find
    /// 1,067 of them, and half of that is enough. A quarter of all accesses would be 2,000.
    #[test]
    fn use_of_a_whole_file_is_judged_by_its_prefetched_part() {
        let rest = WholeFileRest { pages: 60_000, prefetched_pages: 8_000 };
        for (used_pages, whole_file, pays) in [
            (1_067, Some(rest), true),
            (534, Some(rest), true),
            (533, Some(rest), false),
            (1_999, None, false),
            (2_000, None, true),
        ] {
            let mut credit = credit_in_advice();
            credit.record_credit_refusal();
            credit.record_access(8_000, whole_file);
            credit.record_used(used_pages);
            assert_eq!(credit.judge((8_000, 0), 5), pays, "{used_pages} {whole_file:?}");
            assert_eq!(credit.stop_reason(), (!pays).then_some(StopReason::FewPrefetched));
        }
    }

    /// The whole-file prefetch waits for use. Within the pieces the policy continues.
    #[test]
    fn whole_file_prefetch_has_more_credit() {
        let mut credit = credit_in_advice();
        let whole_file_pages = credit.available_pages(PrefetchReason::WholeFile, PAGE_PS);
        assert_eq!(whole_file_pages, 8192 + 512, "the additional and the initial credit");
        credit.record_prefetched(whole_file_pages, PrefetchReason::WholeFile);
        let within_piece = PrefetchReason::Predicted { is_used_up: true };
        assert_eq!(
            (
                credit.available_pages(PrefetchReason::WholeFile, PAGE_PS),
                credit.available_pages(within_piece, PAGE_PS)
            ),
            (0, 512)
        );
        credit.record_prefetched(1 << 20, PrefetchReason::Requested);
        assert_eq!(
            credit.available_pages(within_piece, PAGE_PS),
            512,
            "the rest of a read needs no credit"
        );
        credit.record_credit_refusal();
        for piece in 0..1000 {
            credit.record_prefetched(200, within_piece);
            credit.record_access(256, None);
            credit.record_used(200);
            assert!(credit.judge((8192, 0), piece));
        }
        assert!(credit.available_pages(PrefetchReason::WholeFile, PAGE_PS) > 8192);
    }

    /// Half a second and the first 10 ms, at 8.192 µs a page, are 62,255 pages.
    #[test]
    fn whole_file_prefetch_may_take_as_long_as_the_waits_so_far() {
        let mut credit = credit_in_advice();
        credit.record_read(SECOND / 2, 1 << 20);
        assert_eq!(credit.available_pages(PrefetchReason::WholeFile, PAGE_PS), 62_255 + 512);
        assert_eq!(credit.available_pages(PREDICTED, PAGE_PS), 512);
        // A device that is a hundred times as slow reads fewer pages than the minimum.
        assert_eq!(credit.available_pages(PrefetchReason::WholeFile, 100 * PAGE_PS), 8192 + 512);
    }

    /// All pages are used, but the wait for 100 MiB grows from 1 s. The verdict is negative from
    /// 1.5 s on.
    #[test]
    fn growing_waits_end_the_advice() {
        for (advised_ns, pays) in [(SECOND, true), (SECOND * 3 / 2, false), (SECOND * 2, false)] {
            let mut credit = AdviceCredit::new(1 << 20);
            assert_eq!(credit.state_at(0), AdviceState::Measure);
            credit.record_read(SECOND, 100 << 20);
            credit.record_read(advised_ns, 100 << 20);
            credit.record_used(4096);
            assert_eq!(credit.judge((0, 0), 7), pays, "{advised_ns} ns");
            assert_eq!(credit.stop_reason(), (!pays).then_some(StopReason::WaitsGrew));
        }
    }
}
