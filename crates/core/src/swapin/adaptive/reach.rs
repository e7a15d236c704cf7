//! How far runs go: which part of those that came to a length went on to the next.

/// A certain event, in the parts that likelihoods are counted in.
pub(super) const CERTAIN: u64 = 1024;

/// Lengths below 8 are told apart, from there on the quarters of each octave: 8
/// to 9, 10 to 11, …, 16 to 19, …, up to 2^32 pages.
const EXACT: u64 = 8;
const STEPS: usize = 7 + 4 * (32 - 3);

/// When so many runs have been seen to leave a step half of each count is
/// forgotten: what a program did before is outweighed after as many again.
const RUNS_REMEMBERED: u8 = 250;

/// What became of the runs of one space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    steps: [Step; STEPS],
}

/// Of the runs that came to a step.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// How many came to the next.
    went_on: u8,
    /// How many ended before.
    ended: u8,
}

impl Step {
    fn saw(&mut self, went_on: bool) {
        *(if went_on { &mut self.went_on } else { &mut self.ended }) += 1;
        if self.went_on + self.ended >= RUNS_REMEMBERED {
            self.went_on /= 2;
            self.ended /= 2;
        }
    }
}

impl Default for Reach {
    fn default() -> Reach {
        Reach { steps: [Step::default(); STEPS] }
    }
}

impl Reach {
    /// A run has grown from `before` to `length` faults, each at least 1.
    pub(super) fn grew(&mut self, before: u64, length: u64) {
        self.steps[step_of(before)..step_of(length)].iter_mut().for_each(|step| step.saw(true));
    }

    /// A run of so many faults did not go on.
    pub(super) fn ended(&mut self, length: u64) {
        self.steps[step_of(length)].saw(false);
    }

    /// How many pages more a run of `length` pages takes with at least this
    /// likelihood (of [`CERTAIN`]), `pages_max` at most.
    pub(super) fn pages_ahead(&self, length: u64, likelihood_min: u64, pages_max: u64) -> u64 {
        let end = length + pages_max;
        let inverse_max = CERTAIN * CERTAIN / likelihood_min;
        // The inverse of the likelihood rises evenly within a step: where four of
        // five runs of 16 pages come to 20, eight of nine come to 18.
        let at = step_of(length);
        let (first, width) = pages_of(at);
        let at_length = CERTAIN + self.rise(at) * (length - first) / width;
        let mut inverse = CERTAIN * CERTAIN / at_length;
        for step in at..STEPS {
            let (first, width) = pages_of(step);
            if first >= end {
                break;
            }
            let rise = self.rise(step);
            if inverse * (CERTAIN + rise) / CERTAIN > inverse_max {
                let left = (inverse_max * CERTAIN / inverse).saturating_sub(CERTAIN);
                return (first + left * width / rise).clamp(length, end) - length;
            }
            inverse = inverse * (CERTAIN + rise) / CERTAIN;
        }
        pages_max
    }

    /// By how much the inverse of the likelihood rises over a step.
    ///
    /// By the rule of succession. While nothing was seen half of the runs come to
    /// twice their length: four of five from 4 to 5 pages, five of six from there
    /// to 6. Of runs with less than four faults, which may be chance, one in sixteen
    /// comes to the next.
    fn rise(&self, step: usize) -> u64 {
        let went_on_before = match step {
            0..3 => 1,
            3..7 => step as u64 + 1,
            _ => (step as u64 - 7) % 4 + 4,
        };
        let ended_before = if step < 3 { 15 } else { 1 };
        let Step { went_on, ended } = self.steps[step];
        CERTAIN * (ended_before + u64::from(ended)) / (went_on_before + u64::from(went_on))
    }
}

/// The step that a length, at least 1, lies in.
fn step_of(length: u64) -> usize {
    if length < EXACT {
        return length as usize - 1;
    }
    let octave = length.ilog2();
    let quarter = (length >> (octave - 2)) & 3;
    (7 + 4 * (octave as usize - 3) + quarter as usize).min(STEPS - 1)
}

/// The first length of a step, and how many there are.
fn pages_of(step: usize) -> (u64, u64) {
    if step < 7 {
        return (step as u64 + 1, 1);
    }
    let width = 1 << ((step - 7) / 4 + 1);
    ((4 + (step as u64 - 7) % 4) * width, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = CERTAIN / 2;

    #[test]
    fn steps_and_lengths_agree() {
        for length in (1..3000).chain([1 << 20, (1 << 31) + 5]) {
            let (first, width) = pages_of(step_of(length));
            assert!((first..first + width).contains(&length), "{length}: {first}, {width}");
        }
        assert_eq!(
            [7, 8, 9, 10, 15, 16, 19, 20].map(|length| pages_of(step_of(length)).0),
            [7, 8, 8, 10, 14, 16, 16, 20]
        );
    }

    /// Half of the runs come to twice their length, so two of three to one and a
    /// half times it; those of less than four faults are not believed.
    #[test]
    fn while_nothing_is_known_a_run_comes_to_twice_its_length_with_one_half() {
        let reach = Reach::default();
        for length in [4, 5, 8, 12, 16, 100, 1000] {
            // Divisions round down in each step, to the one side or the other.
            let pages = reach.pages_ahead(length, HALF, 100_000);
            assert!(pages.abs_diff(length) <= 1 + length / 20, "{length}: {pages}");
        }
        assert_eq!(reach.pages_ahead(8, CERTAIN * 2 / 3, 1000), 4);
        assert_eq!([1, 2, 3].map(|length| reach.pages_ahead(length, HALF, 1000)), [0; 3]);
        assert_eq!(reach.pages_ahead(1000, HALF, 7), 7, "never more than asked for");
    }

    /// Two hundred runs of sixteen pages. Of those of one page 201 of 216 are expected
    /// to come to the next, and so on: eight of ten to four, nearly all of those to 16, and
    /// one of two hundred beyond.
    #[test]
    fn pieces_of_one_length_are_foreseen_from_their_first_page() {
        let mut reach = Reach::default();
        for _ in 0..200 {
            (1..16).for_each(|length| reach.grew(length, length + 1));
            reach.ended(16);
        }
        assert_eq!([1, 2, 8].map(|length| reach.pages_ahead(length, HALF, 1000)), [15, 14, 8]);
    }

    #[test]
    fn what_a_program_did_before_is_outweighed() {
        let mut reach = Reach::default();
        (0..1000).for_each(|_| reach.ended(1));
        assert_eq!(reach.pages_ahead(1, HALF, 1000), 0);
        (0..400).for_each(|_| reach.grew(1, 8));
        assert!(reach.pages_ahead(1, HALF, 1000) >= 7);
    }
}
