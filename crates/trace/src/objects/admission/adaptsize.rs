//! A missed object of size s enters with the probability exp(-s / c), and c follows the trace:
//! `adaptsize`, `adaptsize:INTERVAL`, or `adaptsize:INTERVAL:SEED`.
//!
//! After each interval of references a model of the cache predicts the hit ratio as a function of
//! c, and the best c is used until the next interval ends. In the model, an object with the
//! request rate r is present with the probability (e^(r T) - 1) p / (1 + (e^(r T) - 1) p), where p
//! is exp(-s / c). T is the time that an unused object stays. It follows from the size of the
//! cache, which equals the expected size of the present objects.
//!
//! The rates are references per interval, smoothed over the intervals. The prediction is evaluated
//! at every fourth power of two, since it can have several maxima. A golden section search from a
//! byte to the size of the cache begins at the best one, as in the published code.
//!
//! Use: traces with sizes over several powers of ten. It maximizes the hits of objects, not of
//! bytes, so that the byte miss ratio can rise.
//!
//! Source: Berger, Sitaraman and Harchol-Balter, "AdaptSize: Orchestrating the Hot Object Memory
//! Cache in a Content Delivery Network", NSDI 2017. The paper's default interval is 250,000
//! references. From its published code: the initial c is 32 KiB, and the weight of the past is 0.3.
//! The objects with rates must have more than three times the bytes of the cache.

use super::{AdmissionPolicy, Draws, ObjectReference};

/// References between two changes of c (the paper, section 4).
pub(super) const INTERVAL: u64 = 250_000;

/// Initial c in bytes, as in the published code.
const INITIAL_SCALE_BYTES: f64 = 32_768.0;

/// Weight of the past rate of an object, as in the published code.
const PAST_WEIGHT: f64 = 0.3;

/// Rate below which an object is forgotten, in references per interval. Chosen.
const RATE_MIN: f64 = 0.1;

/// Multiple of the size of the cache that the objects with rates must exceed for a change of c, as
/// in the published code.
const TRACKED_CACHES_MIN: u64 = 3;

/// References before the next attempt if the objects with rates have too few bytes. Chosen.
const RETRY_REFERENCES: u64 = 1_000;

/// First point of the coarse grid, and its step, as powers of two in bytes (published code).
const GRID_LOG2_MIN: f64 = 2.0;
const GRID_LOG2_STEP: f64 = 4.0;

/// Steps of the golden section search, as in the published code.
const SEARCH_STEPS: u32 = 15;

/// Width of the bracket at which the search ends, in its inner points (published code).
const SEARCH_TOLERANCE: f64 = 3.0e-8;

/// The golden section.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// Maximum number of iterations for T, as in the published code.
const TIME_ITERATIONS: u32 = 20;

/// Maximum T. The smallest positive probability is e^-745. With it and the smallest rate, 0.1, an
/// object is present with a probability of 1/2 at T = 7,450, and always at 10,000: e^(1000 - 745).
/// If not all objects fit, T is therefore shorter. Without the limit, the first T is the reciprocal
/// of the probability, which the iterations do not correct, and the predictions overflow.
const TIME_MAX: f64 = 10_000.0;

/// Relative change of T at which the iterations end. Chosen.
const TIME_TOLERANCE: f64 = 1e-6;

/// Requests of one object.
#[derive(Clone, Copy, Debug, Default)]
struct ObjectRate {
    /// Size at the last reference; 0 for an object that was never used or is forgotten.
    bytes: u64,
    /// References in this interval.
    references: u32,
    /// Smoothed references per interval.
    rate: f64,
}

/// Rate and size of an object in the model.
#[derive(Clone, Copy, Debug)]
struct Modelled {
    /// References per interval.
    rate: f64,
    /// Size in bytes.
    bytes: f64,
}

/// Probability that falls with the size, with a tuned parameter.
#[derive(Debug)]
pub(super) struct AdaptSize {
    /// Requests of each object, by its number.
    objects: Vec<ObjectRate>,
    /// Sum of `bytes` over all objects.
    tracked_bytes: u64,
    /// Size of the cache in bytes.
    cache_bytes: u64,
    /// References between two changes of c.
    interval: u64,
    /// References until c is tuned.
    references_left: u64,
    /// The parameter c.
    scale_bytes: f64,
    /// Random numbers of the decisions.
    draws: Draws,
}

impl AdaptSize {
    /// Creates the policy for this number of distinct objects.
    pub(super) fn new(objects: u32, cache_bytes: u64, interval: u64, draws: Draws) -> AdaptSize {
        AdaptSize {
            objects: vec![ObjectRate::default(); objects as usize],
            tracked_bytes: 0,
            cache_bytes,
            interval,
            references_left: interval,
            scale_bytes: INITIAL_SCALE_BYTES,
            draws,
        }
    }

    /// Adds the interval's references to the rates, forgets objects below `RATE_MIN`, and selects
    /// the c with the best prediction. The rate of a new object is its first interval alone, since
    /// it has no past.
    fn tune(&mut self) {
        for object in self.objects.iter_mut().filter(|object| object.bytes > 0) {
            let references = f64::from(std::mem::take(&mut object.references));
            object.rate = match object.rate == 0.0 {
                true => references,
                false => PAST_WEIGHT * object.rate + (1.0 - PAST_WEIGHT) * references,
            };
            if object.rate < RATE_MIN {
                self.tracked_bytes -= object.bytes;
                *object = ObjectRate::default();
            }
        }
        let tracked = self.objects.iter().filter(|object| object.bytes > 0);
        let modelled: Vec<Modelled> = tracked
            .map(|object| Modelled { rate: object.rate, bytes: object.bytes as f64 })
            .collect();
        self.scale_bytes = best_scale_bytes(&modelled, self.cache_bytes as f64);
    }
}

impl AdmissionPolicy for AdaptSize {
    /// Counts a reference of the object. At the end of an interval, first changes c, or waits for
    /// another thousand references if the objects with rates have too few bytes.
    fn record(&mut self, reference: ObjectReference, _objects: u64) {
        self.references_left -= 1;
        if self.references_left == 0 {
            let tracked_bytes_min = self.cache_bytes.saturating_mul(TRACKED_CACHES_MIN);
            self.references_left = match self.tracked_bytes > tracked_bytes_min {
                true => {
                    self.tune();
                    self.interval
                }
                false => RETRY_REFERENCES,
            };
        }
        let object = &mut self.objects[reference.object as usize];
        self.tracked_bytes = self.tracked_bytes - object.bytes + reference.bytes;
        object.bytes = reference.bytes;
        object.references += 1;
    }

    /// Draws the decision by the size of the object.
    fn admits(
        &mut self,
        reference: ObjectReference,
        _leaving: &mut dyn Iterator<Item = u32>,
    ) -> bool {
        self.draws.is_below(admission(reference.bytes as f64, self.scale_bytes))
    }
}

/// Probability with which an object of this size enters.
fn admission(bytes: f64, scale_bytes: f64) -> f64 {
    (-bytes / scale_bytes).exp()
}

/// Returns the c with the best predicted hit ratio. The best power of two of a coarse grid is the
/// first inner point of a golden section search between a byte and the size of the cache.
fn best_scale_bytes(objects: &[Modelled], cache_bytes: f64) -> f64 {
    // All points and bounds are binary logarithms of c. A point has its predicted hits.
    let at = |log2: f64| (log2, predicted_hits(objects, cache_bytes, log2.exp2()));
    let (mut low, mut high) = (0.0, cache_bytes.log2().max(0.0));
    let grid = (0..).map(|step| GRID_LOG2_MIN + step as f64 * GRID_LOG2_STEP);
    // Without a predicted hit in the grid, the search begins at the size of the cache.
    let first = (high, 0.0);
    let best = grid
        .take_while(|log2| *log2 < high)
        .map(at)
        .fold(first, |best, point| if point.1 > best.1 { point } else { best });
    // The second inner point lies in the longer part.
    let (mut left, mut right) = match high - best.0 > best.0 - low {
        true => (best, at(best.0 + (1.0 - GOLDEN) * (high - best.0))),
        false => (at(low + (1.0 - GOLDEN) * (best.0 - low)), best),
    };
    for _ in 0..SEARCH_STEPS {
        if high - low <= SEARCH_TOLERANCE * (left.0 + right.0) {
            break;
        }
        if right.1 > left.1 {
            (low, left) = (left.0, right);
            right = at(GOLDEN * left.0 + (1.0 - GOLDEN) * high);
        } else {
            (high, right) = (right.0, left);
            left = at(GOLDEN * right.0 + (1.0 - GOLDEN) * low);
        }
    }
    let (log2, _) = if left.1 > right.1 { left } else { right };
    log2.exp2()
}

/// Predicted hits per interval with this c.
fn predicted_hits(objects: &[Modelled], cache_bytes: f64, scale_bytes: f64) -> f64 {
    let probabilities: Vec<f64> =
        objects.iter().map(|object| admission(object.bytes, scale_bytes)).collect();
    let time = time_in_cache(objects, &probabilities, cache_bytes);
    let hits = objects.iter().zip(&probabilities).map(|(object, &probability)| {
        object.rate * predicted_presence(object.rate * time, probability)
    });
    hits.sum()
}

/// Probability that an object is present, for the prediction: as [`presence`], but with the Padé
/// approximant of the exponential function, of degrees 4 and 3, as in the published code.
///
/// The approximant is exact within 2 % up to 3.5 uses, and has a pole near 5.6. Beyond it the
/// denominator is negative, so that a small probability yields 0: a rarely admitted object enters
/// so late that the rates have changed. With the exponential function c falls to 2 to 6 bytes on
/// the trace of the tests, and almost nothing enters.
fn predicted_presence(uses: f64, probability: f64) -> f64 {
    if uses.is_infinite() {
        return if probability > 0.0 { 1.0 } else { 0.0 };
    }
    // The quotient of both is the approximant less 1.
    let numerator = uses * (840.0 + uses * (60.0 + uses * (20.0 + uses)));
    let denominator = 840.0 - uses * (360.0 - uses * (60.0 - 4.0 * uses));
    let present = probability * numerator;
    match denominator + present {
        0.0 => 0.0,
        total => (present / total).clamp(0.0, 1.0),
    }
}

/// Time that an unused object stays, in intervals: with it the expected size of the present
/// objects is the size of the cache. Infinite if all objects fit.
fn time_in_cache(objects: &[Modelled], probabilities: &[f64], cache_bytes: f64) -> f64 {
    let admitted =
        || objects.iter().zip(probabilities).filter(|&(_, &probability)| probability > 0.0);
    if admitted().map(|(object, _)| object.bytes).sum::<f64>() <= cache_bytes {
        return f64::INFINITY;
    }
    // For short times the presence is the rate times the probability times T, from which follows
    // the first T. Each step scales it by the missing size.
    let growth: f64 = admitted().map(|(object, p)| object.rate * p * object.bytes).sum();
    let mut time = (cache_bytes / growth).min(TIME_MAX);
    for _ in 0..TIME_ITERATIONS {
        let present: f64 =
            admitted().map(|(object, &p)| object.bytes * presence(object.rate * time, p)).sum();
        let next = (time * cache_bytes / present).min(TIME_MAX);
        let is_settled = (next - time).abs() <= TIME_TOLERANCE * time;
        time = next;
        if is_settled {
            break;
        }
    }
    time
}

/// Probability that an object is present: `uses` are its expected references in the time that it
/// stays.
fn presence(uses: f64, probability: f64) -> f64 {
    match probability > 0.0 {
        // Equal to (e^u - 1) p / (1 + (e^u - 1) p), without its overflow.
        true => probability / (probability + 1.0 / uses.exp_m1()),
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two objects of equal rate r = 1 and sizes of 1 byte, of which the cache has 1 byte, and c so
    /// large that p = 1. Each is present half of the time: 1 - e^(-T) = 1/2, and T = ln 2.
    #[test]
    fn time_in_cache_makes_the_expected_size_equal_to_the_cache() {
        let objects = [Modelled { rate: 1.0, bytes: 1.0 }; 2];
        let time = time_in_cache(&objects, &[1.0, 1.0], 1.0);
        assert!((time - std::f64::consts::LN_2).abs() < 1e-4, "{time}");
        assert_eq!(time_in_cache(&objects, &[1.0, 1.0], 2.0), f64::INFINITY);
        assert!((predicted_hits(&objects, 1.0, 1e12) - 1.0).abs() < 1e-4);
    }

    /// Ten objects of 10 bytes with a rate of 1 and one of 1,000 bytes with a rate of 2, in 100
    /// bytes. All ten small objects fit if the large one stays out, which a small c achieves: 10
    /// hits. With a large c the large object leaves no room.
    #[test]
    fn best_scale_keeps_a_large_object_out() {
        let mut objects = vec![Modelled { rate: 1.0, bytes: 10.0 }; 10];
        objects.push(Modelled { rate: 2.0, bytes: 1_000.0 });
        let scale_bytes = best_scale_bytes(&objects, 100.0);
        assert!(admission(1_000.0, scale_bytes) < 1e-4, "{scale_bytes}");
        assert!(predicted_hits(&objects, 100.0, scale_bytes) > 9.0);
        assert!(predicted_hits(&objects, 100.0, 1e6) < 5.0);
    }

    /// The model has no unit of size. With objects of one size, c is therefore a fixed multiple of
    /// that size, and a prediction lies between zero hits and all of the references. A size that is
    /// several hundred times c has a probability near the smallest number, or of 0.
    #[test]
    fn best_scale_is_proportional_to_the_size_of_equal_objects() {
        let multiple = |bytes: f64| {
            let objects: Vec<Modelled> = (1..=200)
                .map(|rank| Modelled { rate: 5_000.0 / f64::from(rank).powf(0.8), bytes })
                .collect();
            let references: f64 = objects.iter().map(|object| object.rate).sum();
            for quarter in 0..80 {
                let scale_bytes = (f64::from(quarter) / 4.0).exp2();
                let hits = predicted_hits(&objects, 20.0 * bytes, scale_bytes);
                assert!((0.0..=references).contains(&hits), "{bytes}, {scale_bytes}: {hits}");
                // The approximant predicts no hits for a rarely admitted object.
                assert!(bytes < 700.0 * scale_bytes || hits == 0.0, "{bytes}, {scale_bytes}");
            }
            best_scale_bytes(&objects, 20.0 * bytes) / bytes
        };
        let expected = multiple(131_072.0);
        for bytes in [2_900.0, 3_104.0, 9_500.0, 16_384.0, 20_000.0, 28_000.0, 65_536.0, 86_000.0] {
            let ratio = multiple(bytes) / expected;
            assert!((0.98..=1.02).contains(&ratio), "{bytes}: {ratio} of {expected}");
        }
    }

    /// The third tuning of one object: 4, 2 and 0 references in the intervals are the rates 4,
    /// 0.3 · 4 + 0.7 · 2 = 2.6, and 0.3 · 2.6 = 0.78. Without references it falls below 0.1 at the
    /// fifth tuning (0.234, 0.0702), and the object is forgotten.
    #[test]
    fn rates_are_smoothed_and_old_objects_forgotten() {
        let mut policy = AdaptSize::new(1, 1, 100, Draws(1));
        let mut rates = Vec::new();
        for references in [4, 2, 0, 0, 0] {
            for _ in 0..references {
                policy.record(ObjectReference { object: 0, bytes: 50 }, 0);
            }
            policy.tune();
            rates.push((policy.objects[0].rate * 1e4).round() / 1e4);
        }
        assert_eq!(rates, [4.0, 2.6, 0.78, 0.234, 0.0]);
        assert_eq!(policy.tracked_bytes, 0);
    }
}
