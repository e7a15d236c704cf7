//! Run-length distribution: for each length, the share of the runs of that length that went on.
//!
//! A *run* is a sequence in order: the pages of a file that one reader takes, neighbouring faults
//! in a mapping, consecutive slots. Readahead always has the same question: the probability that
//! the run goes so far, and the benefit if it does. The probability is learned from observed runs,
//! length by length. Without observations, half of the runs of a length reach
//! twice that length. A run of length `b` reaches `b + w` with the probability `b ÷ (b + w)`. A
//! request that continues no other is not a run yet: it is expected to go on only after some such
//! requests did ([`LengthDistribution::of_requests`]). This prior counts as one run in addition to
//! the observed ones, so a few observations outweigh it.
//!
//! An observation at one length also affects the next lengths. If runs of 2 pages end three times
//! as often as the prior predicts, or a third as often, the same factor is expected for runs of 3.
//!
//! The benefit: each window costs one request to the device, worth `p` pages, and its unused pages.
//! The cost per *used* page is lowest if the window ends where the odds of wasting one more page
//! equal the cost of a used page so far. Let `S(w)` be the probability that the run reaches its
//! `w`-th page, and `U(w)` the expected number of used pages. The window then ends at
//! `U(w) ÷ S(w) = p + w`.

/// Fixed-point value of the probability 1.
pub(crate) const PROBABILITY_ONE: u64 = 1 << 16;

/// Largest inverse of a probability, of [`PROBABILITY_ONE`]: larger ones are clipped to avoid
/// overflow.
const INVERSE_MAX: u64 = PROBABILITY_ONE << 20;

/// Largest factor by which an observation at one length changes the expected ends of the next
/// lengths. Chosen on the tuning set of `readpath eval policies` (geometric mean, cells below
/// 0.95), and by slices of a mapping by 64 processes ÷ `runs` (`bench/slices.py`). 2 gives 1.535,
/// 103 and 1.03; 4 gives 1.547, 94 and 0.99; 8 gives 1.554, 95 and 0.94; 16 gives 1.550, 94 and
/// 0.86.
const PRIOR_FACTOR_MAX: u64 = 4;

/// First length that is not a step of its own. From there on a step is a quarter of an octave: 8 to
/// 9, 10 to 11, …, 16 to 19, …, up to 2^32 pages.
const FIRST_COARSE_LENGTH: u64 = 8;
/// Number of steps of a single length: lengths 1 to 7.
const FINE_STEPS: usize = FIRST_COARSE_LENGTH as usize - 1;
/// Number of steps: the single lengths, then four for each octave from 2^3 to 2^32.
const STEPS: usize = FINE_STEPS + 4 * (32 - 3);

/// Outcome of the runs of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthDistribution {
    /// Counts of the runs that reached each step: see `step_of`.
    steps: [LengthCount; STEPS],
    /// True if a run of length 1 is only a request that continued no other. The prior (the
    /// expectation without observations) of that length then expects no run to go on.
    is_of_requests: bool,
}

/// Counts of the runs that reached a step. Both counts are halved before their number exceeds a
/// byte: earlier behaviour is outweighed after the same number of new runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LengthCount {
    /// Runs that reached the next step.
    continued: u8,
    /// Runs that ended in this step.
    ended: u8,
}

impl LengthCount {
    /// Counts a run that reached this step: it went on to the next step, or ended here. Halving
    /// keeps the share, and lets newer runs outweigh older ones.
    fn record(&mut self, has_continued: bool) {
        *(if has_continued { &mut self.continued } else { &mut self.ended }) += 1;
        if self.continued + self.ended == u8::MAX {
            self.continued /= 2;
            self.ended /= 2;
        }
    }
}

impl Default for LengthDistribution {
    /// Creates a distribution without observations: a run doubles its length with probability 1/2.
    fn default() -> LengthDistribution {
        LengthDistribution { steps: [LengthCount::default(); STEPS], is_of_requests: false }
    }
}

impl LengthDistribution {
    /// Creates a distribution of requests that continue no other: until some go on, none is
    /// expected to.
    pub fn of_requests() -> LengthDistribution {
        LengthDistribution { is_of_requests: true, ..LengthDistribution::default() }
    }

    /// Records that a run has grown from `length_before` to `length` pages, each at least 1. The
    /// run counts as continued at each step between them.
    pub fn record_growth(&mut self, length_before: u64, length: u64) {
        let has_continued = true;
        self.steps[step_of(length_before)..step_of(length)]
            .iter_mut()
            .for_each(|step| step.record(has_continued));
    }

    /// Records that a run ended with `length` pages, at least 1.
    pub fn record_end(&mut self, length: u64) {
        let has_continued = false;
        self.steps[step_of(length)].record(has_continued);
    }

    /// Corrects a [`record_end`](LengthDistribution::record_end) of a run that continued after all.
    /// No effect if the count is 0, because it was halved meanwhile.
    pub fn undo_end(&mut self, length: u64) {
        let ended = &mut self.steps[step_of(length)].ended;
        *ended = ended.saturating_sub(1);
    }

    /// Number of further pages that a run of `length` pages (at least 1) reaches with at least the
    /// probability `probability_min`; at most `pages_max`. The probability is above 0, in units of
    /// 1/[`PROBABILITY_ONE`]. The result is 0 if even the first page is less likely.
    pub(crate) fn pages_ahead(&self, length: u64, probability_min: u64, pages_max: u64) -> u64 {
        // The pieces have the inverse of the probability.
        let inverse_max = PROBABILITY_ONE * PROBABILITY_ONE / probability_min;
        let mut pages_ahead = 0;
        // Each piece that the run reaches with sufficient probability counts whole.
        for piece in self.pieces(length).take_while(|piece| piece.distance < pages_max) {
            if piece.inverse_end > inverse_max {
                // The probability falls below the minimum within this piece: interpolates.
                pages_ahead = piece.distance
                    + piece.pages * inverse_max.saturating_sub(piece.inverse_start) / piece.rise();
                break;
            }
            pages_ahead = piece.distance + piece.pages;
        }
        pages_ahead.min(pages_max)
    }

    /// Best window for a run of `length` requests of a reader, at least 1, of `request_pages` pages
    /// each. The device reads a window in one request of its own, which costs as much as
    /// `marginal_cost` pages. The result is a number of further requests of the reader, at most
    /// `requests_max`. 0 if no further request pays.
    pub fn window(
        &self,
        length: u64,
        request_pages: u64,
        marginal_cost: u64,
        requests_max: u64,
    ) -> u64 {
        // `U(w)` so far. The request for which the window is read counts as the first used one.
        let (mut window, mut expected_used) = (0, PROBABILITY_ONE);
        for piece in self.pieces(length).take_while(|piece| piece.distance < requests_max) {
            let pays = |count| piece.pays(expected_used, count, request_pages, marginal_cost);
            if !pays(piece.pages) {
                // The window ends within this piece.
                window = piece.distance + largest_below(piece.pages, pays);
                break;
            }
            expected_used += piece.expected_used(piece.pages);
            window = piece.distance + piece.pages;
        }
        window.min(requests_max)
    }

    /// Probability, of [`PROBABILITY_ONE`], that a run of `length` requests (at least 1) reaches
    /// `ahead` more; 0 beyond the longest length that is counted (see `pieces`).
    pub(crate) fn probability_of_reaching(&self, length: u64, ahead: u64) -> u64 {
        let piece = self.pieces(length).find(|piece| ahead <= piece.distance + piece.pages);
        piece.map_or(0, |piece| {
            PROBABILITY_ONE * PROBABILITY_ONE / piece.inverse_at(ahead - piece.distance)
        })
    }

    /// Returns the curve of the probability for runs of `length` pages, in linear pieces of the
    /// inverse. A run in the last step, or beyond it, has the curve of the step's first length:
    /// nothing is counted behind that step.
    fn pieces(&self, length: u64) -> impl Iterator<Item = CurvePiece> {
        let length = length.min(lengths_of(STEPS - 1).0);
        let first_step = step_of(length);
        let (first, width) = lengths_of(first_step);
        let mut rises = self.rises().enumerate().skip(first_step).peekable();
        // The run has passed a part of its step. Within a step the inverse of the probability is
        // linear: if four of five runs of 16 pages reach 20, eight of nine reach 18. All inverses
        // are divided by the inverse at the current length, which is 1 thereby. `inverse_end`
        // begins as the inverse at the start of the step, at most 1, and then moves from step to
        // step.
        let rise = rises.peek().map_or(0, |&(_, rise)| rise);
        let mut inverse_end =
            PROBABILITY_ONE * PROBABILITY_ONE / (PROBABILITY_ONE + rise * (length - first) / width);
        rises.map(move |(step, rise)| {
            let (first, width) = lengths_of(step);
            let begin = first.max(length);
            let inverse_start = if step == first_step { PROBABILITY_ONE } else { inverse_end };
            inverse_end = (inverse_end.saturating_mul(PROBABILITY_ONE + rise) / PROBABILITY_ONE)
                .min(INVERSE_MAX);
            let (distance, pages) = (begin - length, first + width - begin);
            CurvePiece { distance, pages, inverse_start, inverse_end }
        })
    }

    /// Rise of the inverse probability over each step: the number of runs that end in it for each
    /// that goes on, of [`PROBABILITY_ONE`].
    ///
    /// The prior of a length counts as one observed run. Without observations, half of the runs
    /// double their length: four of five go from 4 to 5 pages, five of six from there to 6.
    fn rises(&self) -> impl Iterator<Item = u64> {
        // Factor of the prior's ends, of `PROBABILITY_ONE`, learned at the lengths before.
        let mut prior_factor = PROBABILITY_ONE;
        (0..STEPS).map(move |step| {
            // The first length of the step, divided by the width of the step: the length itself for
            // a single length, 4 to 7 for a quarter of an octave (see `lengths_of`).
            let widths = match step < FINE_STEPS {
                true => step as u64 + 1,
                false => (step - FINE_STEPS) as u64 % 4 + 4,
            };
            let LengthCount { continued, ended } = self.steps[step];
            // Without observations, `widths` of `widths + 1` runs continue, and one ends. All
            // counts are multiplied by `widths + 1`, so that the prior counts as one run.
            let prior_continued = if self.is_of_requests && step == 0 { 0 } else { widths };
            let rise = |prior_ended: u64| {
                (prior_ended + (widths + 1) * PROBABILITY_ONE * u64::from(ended))
                    .checked_div(prior_continued + (widths + 1) * u64::from(continued))
                    // No run has gone on, and the prior expects none to.
                    .unwrap_or(INVERSE_MAX)
            };
            let rise_here = rise(prior_factor);
            // Without observations the factor learned before stays.
            if continued + ended > 0 {
                // The rise here, relative to the rise without observations: one part in `widths`.
                prior_factor = (rise(PROBABILITY_ONE) * widths)
                    .clamp(PROBABILITY_ONE / PRIOR_FACTOR_MAX, PROBABILITY_ONE * PRIOR_FACTOR_MAX);
            }
            rise_here
        })
    }
}

/// A piece of the curve, over which the inverse of the probability rises linearly. Lengths and
/// distances count the units of the run: pages, or requests of several pages.
#[derive(Clone, Copy, Debug)]
struct CurvePiece {
    /// Distance of its start from the current length.
    distance: u64,
    /// Its length.
    pages: u64,
    /// Inverse of the probability that a run reaches its start, of [`PROBABILITY_ONE`].
    inverse_start: u64,
    /// Inverse of the probability that a run reaches its end, of [`PROBABILITY_ONE`].
    inverse_end: u64,
}

impl CurvePiece {
    /// Increase of the inverse probability from the start to the end of the piece. At least 1,
    /// because callers divide by it.
    fn rise(&self) -> u64 {
        (self.inverse_end - self.inverse_start).max(1)
    }

    /// Inverse of the probability that a run reaches `pages` pages into the piece.
    fn inverse_at(&self, pages: u64) -> u64 {
        self.inverse_start + self.rise() * pages / self.pages
    }

    /// Expected number of used pages among its first `count`, of [`PROBABILITY_ONE`]. Simpson's
    /// rule gives the integral of the probability over these pages. The sum over the pages is
    /// smaller by half of the difference between both ends. A single page is used with the
    /// probability at its end.
    fn expected_used(&self, count: u64) -> u64 {
        let probability = |inverse: u64| PROBABILITY_ONE * PROBABILITY_ONE / inverse;
        let end = self.inverse_at(count);
        let [first, middle, last] =
            [self.inverse_start, self.inverse_start.midpoint(end), end].map(probability);
        match count {
            0..2 => count * last,
            _ => (count * (first + 4 * middle + last) / 6).saturating_sub((first - last) / 2),
        }
    }

    /// Returns true if a window may include the first `count` requests of the piece: there,
    /// `U(w) ÷ S(w)` is at most `p + w` (see the module). `used_before` is the expected number of
    /// used requests before the piece, of [`PROBABILITY_ONE`]. Each request of the reader has
    /// `request_pages` pages. The device's request for the window costs `marginal_cost` pages.
    fn pays(&self, used_before: u64, count: u64, request_pages: u64, marginal_cost: u64) -> bool {
        let used_requests = u128::from(used_before + self.expected_used(count));
        let used_pages = used_requests * u128::from(request_pages);
        // The 1 is the request for which the window is read.
        let cost = u128::from(marginal_cost + (1 + self.distance + count) * request_pages);
        used_pages * u128::from(self.inverse_at(count))
            <= cost * u128::from(PROBABILITY_ONE * PROBABILITY_ONE)
    }
}

/// Returns the largest number below `end` for which `is_true` is true, by bisection. The condition
/// must hold for all smaller numbers, and is not checked for 0. The result is 0 if it is false for
/// 1.
fn largest_below(end: u64, is_true: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, end);
    while low + 1 < high {
        let middle = low.midpoint(high);
        *(if is_true(middle) { &mut low } else { &mut high }) = middle;
    }
    low
}

/// Index of the step that a length (at least 1) falls in; the last one for all longer lengths.
fn step_of(length: u64) -> usize {
    if length < FIRST_COARSE_LENGTH {
        return length as usize - 1;
    }
    let octave = length.ilog2();
    // The two bits behind the highest one.
    let quarter = (length >> (octave - 2)) & 3;
    (FINE_STEPS + 4 * (octave as usize - 3) + quarter as usize).min(STEPS - 1)
}

/// The first length of a step, and its width: the number of its lengths. From length 8 on, the
/// first length is 4 to 7 times the width.
fn lengths_of(step: usize) -> (u64, u64) {
    if step < FINE_STEPS {
        return (step as u64 + 1, 1);
    }
    let quarters = step - FINE_STEPS;
    // The first octave, 8 to 15, has steps of two lengths. Each octave has twice the width.
    let width = 1 << (quarters / 4 + 1);
    ((4 + quarters as u64 % 4) * width, width)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const HALF: u64 = PROBABILITY_ONE / 2;

    #[test]
    fn every_length_lies_within_the_pages_of_its_step() {
        for length in (1..3000).chain([1 << 20, (1 << 31) + 5]) {
            let (first, width) = lengths_of(step_of(length));
            assert!((first..first + width).contains(&length), "{length}: {first}, {width}");
        }
        assert_eq!(
            [7, 8, 9, 10, 15, 16, 19, 20].map(|length| lengths_of(step_of(length)).0),
            [7, 8, 8, 10, 14, 16, 16, 20]
        );
    }

    /// Half of the runs double their length, so two of three reach one and a half times it.
    #[test]
    fn prior_expects_half_of_the_runs_to_double() {
        let curve = LengthDistribution::default();
        for length in [1, 2, 3, 4, 5, 8, 12, 16, 100, 1000] {
            // Divisions round down in each step, in either direction.
            let pages = curve.pages_ahead(length, HALF, 100_000);
            assert!(pages.abs_diff(length) <= 1 + length / 20, "{length}: {pages}");
        }
        assert_eq!(curve.pages_ahead(8, PROBABILITY_ONE * 2 / 3, 1000), 4);
        assert_eq!(curve.pages_ahead(1000, HALF, 7), 7, "never more than asked for");
    }

    /// Two hundred runs of sixteen pages: nearly all go from 1 to 16, and one of two hundred
    /// beyond.
    #[test]
    fn runs_of_one_length_are_predicted_from_the_first_page() {
        let mut curve = LengthDistribution::default();
        for _ in 0..200 {
            (1..16).for_each(|length| curve.record_growth(length, length + 1));
            curve.record_end(16);
        }
        assert_eq!([1, 2, 8].map(|length| curve.pages_ahead(length, HALF, 1000)), [15, 14, 8]);
    }

    /// A file may have 2^40 pages. Half of the runs double their length, so 1,000 pages more than
    /// 2^31 are reached by nearly all of them.
    #[test]
    fn run_beyond_the_longest_counted_length_goes_on() {
        let curve = LengthDistribution::default();
        for length in [(1 << 32) - 1, 1 << 32, (1 << 32) + 1, 1 << 40] {
            assert_eq!(curve.pages_ahead(length, HALF, 1000), 1000, "{length}");
            assert_eq!(curve.window(length, 1, 120, 1000), 1000, "{length}");
            let probability = curve.probability_of_reaching(length, 1000);
            assert!(probability > PROBABILITY_ONE - 10, "{length}: {probability}");
        }
    }

    #[test]
    fn new_observations_outweigh_old_ones() {
        let mut curve = LengthDistribution::default();
        (0..1000).for_each(|_| curve.record_end(1));
        assert_eq!(curve.pages_ahead(1, HALF, 1000), 0);
        (0..400).for_each(|_| curve.record_growth(1, 8));
        assert!(curve.pages_ahead(1, HALF, 1000) >= 7);
    }

    /// A request that continues no other is not expected to go on until one did. Then two pages are
    /// expected to, as in any run.
    #[test]
    fn single_request_predicts_no_run_until_one_run_has_continued() {
        let mut curve = LengthDistribution::of_requests();
        assert_eq!([1, 2, 3].map(|length| curve.pages_ahead(length, HALF, 1000)), [0, 2, 3]);
        curve.record_growth(1, 2);
        assert!(curve.pages_ahead(1, HALF, 1000) > 0);
    }

    /// The *odds* of a length are the number of runs that end there for each run that continues. By
    /// the prior, they are 1/2 at 2 pages and 1/3 at 3 pages.
    ///
    /// Two runs ended at 2 pages and one continued, and the prior adds one run, a third of which
    /// ends. In sum 7/3 runs end and 5/3 continue: the odds are 7/5, which is 14/5 times the prior.
    /// At 3 pages the prior is therefore multiplied by 14/5: the odds are 14/15, so that a fourth
    /// page is reached with probability 15/29.
    ///
    /// In the second part none of 100 runs ended at 16 pages. From 20 to 23 pages the odds are a
    /// quarter of the prior, and half of the runs go far beyond twice their length.
    #[test]
    fn runs_observed_at_one_length_change_the_odds_of_the_next_length() {
        let mut curve = LengthDistribution::default();
        (0..2).for_each(|_| curve.record_end(2));
        curve.record_growth(2, 3);
        let probability = PROBABILITY_ONE * 15 / 29;
        assert_eq!(curve.pages_ahead(3, probability - 10, 1000), 1);
        assert_eq!(curve.pages_ahead(3, probability + 10, 1000), 0);
        let mut curve = LengthDistribution::default();
        (0..100).for_each(|_| curve.record_growth(16, 20));
        assert!(curve.pages_ahead(20, HALF, 1000) > 4 * 20);
    }

    /// A run that was counted as ended is corrected once; a second correction has no effect.
    #[test]
    fn undo_end_removes_the_recorded_end() {
        let mut curve = LengthDistribution::default();
        curve.record_end(2);
        curve.undo_end(2);
        curve.undo_end(2);
        assert_eq!(curve, LengthDistribution::default());
    }

    /// By the prior, a run reaches `n = 1 + w` pages with probability `1 ÷ n`, and
    /// `1 + 1 ÷ 2 + … + 1 ÷ n` of them are used. A request that costs 120 pages pays up to n = 37
    /// (37 times 4.202 is 155.5, at most 157) and not 38 (160.7, more than 158). In requests of two
    /// pages one costs 60: up to n = 22 (22 times 3.691 is 81.2, at most 82), and not 23 (85.9,
    /// more than 83).
    #[test]
    fn a_window_ends_at_the_lowest_cost_per_used_page() {
        let curve = LengthDistribution::default();
        assert_eq!(curve.window(1, 1, 120, 1000), 36);
        assert_eq!(curve.window(1, 2, 120, 1000), 21);
        assert_eq!(curve.window(1, 1, 120, 30), 30, "never more than asked for");
        assert_eq!(LengthDistribution::of_requests().window(1, 1, 122, 1000), 0);
    }

    /// The rules above, page by page in floating point: random histories, and windows of all
    /// prices.
    #[test]
    fn windows_match_a_page_by_page_model() {
        let mut state = 7;
        let mut random_below = |end: u64| crate::splitmix::next(&mut state) % end;
        for _ in 0..300 {
            let mut curve = if random_below(2) == 0 {
                LengthDistribution::default()
            } else {
                LengthDistribution::of_requests()
            };
            for _ in 0..random_below(12) {
                let length_before = 1 + random_below(20);
                curve.record_growth(length_before, length_before + random_below(30));
                (0..random_below(5)).for_each(|_| curve.record_end(1 + random_below(40)));
            }
            let (length, marginal_cost) = (1 + random_below(60), 1 + random_below(400));
            // For each length: the odds of an end in its step, the part of the step that lies
            // before it, and the width of the step.
            let mut odds_by_length = Vec::new();
            let mut prior_factor = 1.0;
            for (step, &LengthCount { continued, ended }) in curve.steps.iter().enumerate() {
                let (first, width) = lengths_of(step);
                let widths = (first / width) as f64;
                let prior = if curve.is_of_requests && step == 0 { 0.0 } else { widths };
                let all_continued = prior / (widths + 1.0) + f64::from(continued);
                let odds = |factor: f64| match all_continued == 0.0 {
                    true => 1e9,
                    false => (factor / (widths + 1.0) + f64::from(ended)) / all_continued,
                };
                odds_by_length.extend(
                    (0..width).map(|page| (odds(prior_factor), page as f64 / width as f64, width)),
                );
                if continued + ended > 0 {
                    prior_factor = (odds(1.0) * widths).clamp(1.0 / 4.0, 4.0);
                }
                if odds_by_length.len() > 3000 {
                    break;
                }
            }
            // Probability that the run reaches the length `end`.
            let probability = |end: u64| {
                let mut probability = 1.0;
                for length in length..end {
                    let (odds, passed, width) = odds_by_length[length as usize - 1];
                    let inverse_at = |passed: f64| 1.0 + odds * passed;
                    probability *= inverse_at(passed) / inverse_at(passed + 1.0 / width as f64);
                }
                probability
            };
            let (mut used, mut pages) = (1.0, 0);
            while pages < 300 {
                let next = probability(length + pages + 1);
                used += next;
                // `U(w) ÷ S(w)` exceeds `p + w`.
                if used > next * (marginal_cost + 2 + pages) as f64 {
                    break;
                }
                pages += 1;
            }
            let window = curve.window(length, 1, marginal_cost, 300);
            assert!(window.abs_diff(pages) <= 1 + pages / 16, "{window}, by the model {pages}");
        }
    }
}
