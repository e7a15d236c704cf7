//! Seek time by distance in cylinders.
//!
//! A drive is described by a measured table or by a published formula. Seek times are computed on
//! demand. A table of all distances would take longer to fill, for each disk and simulation, than
//! most simulations run.

use core::fmt;

/// A seek curve: the time of a read seek in ms, by distance in cylinders.
#[derive(Clone, Debug, PartialEq)]
pub enum SeekCurve {
    /// A constant time for all distances.
    Constant {
        /// Time in ms.
        ms: f64,
    },
    /// Linear interpolation between the time for one cylinder, the average and the full stroke. The
    /// average is at one third of all cylinders, the mean distance of random pairs.
    Linear(DataSheetSeeks),
    /// `a √(d−1) + b (d−1) + c` through the same three values, where the average is taken over
    /// random pairs: Lee and Katz, "An analytic performance model of disk arrays" (1993).
    Lee(DataSheetSeeks),
    /// `single + (full − single) √(d ÷ full distance)`: an arm that accelerates half the way and
    /// brakes the other half. Its mean over random pairs is single + 8/15 (full − single).
    SquareRoot {
        /// Shortest seek.
        single_ms: f64,
        /// Full stroke.
        full_ms: f64,
    },
    /// Ruemmler and Wilkes, "An introduction to disk drive modeling" (IEEE Computer, 1994): square
    /// root for short distances, linear for long ones.
    Hpl(HplCurve),
    /// Like `HplCurve`, with the first ten distances measured (Worthington, CSE-TR-194-94).
    HplPlusTen(HplCurve, [f64; 10]),
    /// Measured `(cylinders, ms)` pairs, with linear interpolation and extrapolation.
    Table(Vec<(u32, f64)>),
}

/// The three values of a data sheet, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataSheetSeeks {
    /// Seek to the next cylinder.
    pub single_ms: f64,
    /// Average seek.
    pub average_ms: f64,
    /// Seek from the first cylinder to the last.
    pub full_ms: f64,
}

/// The six parameters of the HPL equation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HplCurve {
    /// Distance from which the linear formula applies instead of the square root.
    pub division_cylinders: f64,
    /// Constant of the square-root formula, in ms.
    pub root_base_ms: f64,
    /// Factor of the square-root formula, in ms per square root of a cylinder.
    pub root_factor_ms: f64,
    /// Constant of the linear formula, in ms.
    pub line_base_ms: f64,
    /// Slope of the linear formula, in ms per cylinder.
    pub line_slope_ms: f64,
    /// Time for one cylinder, if it is stated separately.
    pub single_ms: Option<f64>,
}

impl SeekCurve {
    /// Returns the time in ms for a distance of `cylinders` on a drive with `total` cylinders.
    pub fn ms(&self, cylinders: u32, total: u32) -> f64 {
        if cylinders == 0 {
            return 0.0;
        }
        let distance = f64::from(cylinders);
        // Not 0 on a drive with one cylinder, since it is a divisor.
        let farthest = f64::from(total.max(2) - 1);
        match self {
            SeekCurve::Constant { ms } => *ms,
            SeekCurve::Linear(points) => {
                // Distance of the average seek, always beyond one cylinder, so the first line has a
                // slope.
                let third = (f64::from(total) / 3.0).max(1.0 + f64::EPSILON);
                if distance <= third {
                    interpolate(distance, (1.0, points.single_ms), (third, points.average_ms))
                } else {
                    interpolate(distance, (third, points.average_ms), (farthest, points.full_ms))
                }
            }
            SeekCurve::Lee(points) => Lee::new(points, total).ms(distance),
            SeekCurve::SquareRoot { single_ms, full_ms } => {
                single_ms + (full_ms - single_ms) * (distance / farthest).sqrt()
            }
            SeekCurve::Hpl(hpl) => hpl.ms(distance),
            SeekCurve::HplPlusTen(hpl, first_ten_ms) => {
                let measured_ms = first_ten_ms.get(cylinders as usize - 1).copied();
                measured_ms.unwrap_or_else(|| hpl.ms(distance))
            }
            SeekCurve::Table(points) => table_ms(points, cylinders),
        }
    }
}

/// A curve on a drive of given size, with the values that all distances share.
#[derive(Clone, Debug)]
pub(super) struct SeekTimes {
    /// The curve.
    curve: SeekCurve,
    /// Number of cylinders of the drive.
    cylinders: u32,
    /// The factors of a curve by Lee and Katz. `None` for any other curve.
    lee: Option<Lee>,
}

impl SeekTimes {
    /// Creates the seek times of `curve` on a drive of `cylinders` cylinders.
    pub(super) fn new(curve: SeekCurve, cylinders: u32) -> SeekTimes {
        let lee = match &curve {
            SeekCurve::Lee(points) => Some(Lee::new(points, cylinders)),
            _ => None,
        };
        SeekTimes { curve, cylinders, lee }
    }

    /// Returns the time of a seek over `distance` cylinders, in whole ns and never below 0.
    pub(super) fn seek_ns(&self, distance: u32) -> u64 {
        let ms = match &self.lee {
            Some(lee) if distance > 0 => lee.ms(f64::from(distance)),
            _ => self.curve.ms(distance, self.cylinders),
        };
        // The conversion saturates at 32 bits, 4.3 s, far beyond any drive.
        u64::from((ms.max(0.0) * 1e6) as u32)
    }
}

/// Lee and Katz's equation with its two factors, in ms.
#[derive(Clone, Debug)]
struct Lee {
    /// Factor of the square root.
    root_factor: f64,
    /// Factor of the linear term.
    line_factor: f64,
    /// Time of the shortest seek.
    single_ms: f64,
}

impl Lee {
    /// Fits the curve to three seek times of a drive with `cylinders` cylinders (Lee's formula).
    fn new(points: &DataSheetSeeks, cylinders: u32) -> Lee {
        let DataSheetSeeks { single_ms, average_ms, full_ms } = points;
        let root_factor = (-10.0 * single_ms + 15.0 * average_ms - 5.0 * full_ms)
            / (3.0 * f64::from(cylinders).sqrt());
        let line_factor =
            (7.0 * single_ms - 15.0 * average_ms + 8.0 * full_ms) / (3.0 * f64::from(cylinders));
        Lee { root_factor, line_factor, single_ms: *single_ms }
    }

    /// Returns the seek time in ms over `distance` cylinders by Lee's formula.
    fn ms(&self, distance: f64) -> f64 {
        let beyond_one = distance - 1.0;
        self.root_factor * beyond_one.sqrt() + self.line_factor * beyond_one + self.single_ms
    }
}

impl HplCurve {
    /// Returns the time in ms for a distance of at least one cylinder.
    fn ms(&self, distance: f64) -> f64 {
        match self.single_ms {
            Some(ms) if distance == 1.0 => ms,
            _ if distance < self.division_cylinders => {
                self.root_base_ms + self.root_factor_ms * distance.sqrt()
            }
            _ => self.line_base_ms + self.line_slope_ms * distance,
        }
    }
}

impl fmt::Display for SeekCurve {
    /// Writes the figures of the curve, in ms and cylinders (`d`). Measured times are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SeekCurve::Constant { ms } => write!(f, "{ms} always"),
            SeekCurve::Linear(points) | SeekCurve::Lee(points) => write!(
                f,
                "{} single, {} average, {} full",
                points.single_ms, points.average_ms, points.full_ms
            ),
            SeekCurve::SquareRoot { single_ms, full_ms } => {
                write!(f, "{single_ms} single, {full_ms} full, root between")
            }
            SeekCurve::Hpl(hpl) | SeekCurve::HplPlusTen(hpl, _) => write!(
                f,
                "{} + {}·√d below {} cylinders, {} + {}·d from there",
                hpl.root_base_ms,
                hpl.root_factor_ms,
                hpl.division_cylinders,
                hpl.line_base_ms,
                hpl.line_slope_ms
            ),
            SeekCurve::Table(points) => write!(f, "{} measured distances", points.len()),
        }
    }
}

/// Rejects a table that is empty or whose distances do not increase. The error contains the index
/// of the wrong point and the problem.
pub(super) fn check_table(points: &[(u32, f64)]) -> Result<(), (usize, String)> {
    if points.is_empty() {
        return Err((0, "holds no distance; expected cylinders and ms".to_owned()));
    }
    let is_not_rising = |pair: &[(u32, f64)]| pair[1].0 <= pair[0].0;
    match points.windows(2).position(is_not_rising) {
        None => Ok(()),
        Some(index) => {
            let (before, after) = (points[index].0, points[index + 1].0);
            Err((index + 1, format!("{after} cylinders follow {before}; distances must rise")))
        }
    }
}

/// Returns the value at `x` of the line through two points, or `y_2` if x does not rise (a drive of
/// few cylinders).
fn interpolate(x: f64, (x_1, y_1): (f64, f64), (x_2, y_2): (f64, f64)) -> f64 {
    if x_2 <= x_1 {
        return y_2;
    }
    y_1 + (x - x_1) * (y_2 - y_1) / (x_2 - x_1)
}

/// Returns the time in ms of a seek over `cylinders`, interpolated in a measured table. Beyond its
/// last distance the last two points are extrapolated; a table of one point is constant.
fn table_ms(points: &[(u32, f64)], cylinders: u32) -> f64 {
    let point = |index: usize| (f64::from(points[index].0), points[index].1);
    match points.partition_point(|(distance, _)| *distance < cylinders) {
        // Below the first measured distance, its time is used.
        0 => points[0].1,
        index if points.len() == 1 => point(index - 1).1,
        index => {
            let next = index.min(points.len() - 1);
            interpolate(f64::from(cylinders), point(next - 1), point(next))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean seek time in ms over all unordered pairs of n different cylinders. A distance d occurs
    /// n − d times.
    fn mean_ms(curve: &SeekCurve, cylinders: u32) -> f64 {
        let pairs_at = |distance: u32| u64::from(cylinders - distance);
        let pair_count = (1..cylinders).map(pairs_at).sum::<u64>() as f64;
        let times = SeekTimes::new(curve.clone(), cylinders);
        let sum_ms = (1..cylinders)
            .map(|distance| pairs_at(distance) as f64 * times.seek_ns(distance) as f64 / 1e6)
            .sum::<f64>();
        sum_ms / pair_count
    }

    #[test]
    fn mean_of_a_root_curve_is_its_minimum_plus_8_15_of_its_range() {
        let curve = SeekCurve::SquareRoot { single_ms: 0.6, full_ms: 10.0 };
        let expected_ms = 0.6 + 8.0 / 15.0 * (10.0 - 0.6);
        assert!((mean_ms(&curve, 20_000) - expected_ms).abs() < 0.01);
    }

    #[test]
    fn mean_of_a_lee_curve_is_the_data_sheet_average() {
        let points = DataSheetSeeks { single_ms: 0.8, average_ms: 5.2, full_ms: 12.0 };
        assert!((mean_ms(&SeekCurve::Lee(points), 20_000) - 5.2).abs() < 0.02);
    }

    #[test]
    fn the_hp_97560_curve_gives_the_published_times() {
        // Ruemmler and Wilkes 1994, figure 2: 3.24 + 0.400 √d below 383, 8.00 + 0.008 d above.
        let hpl = HplCurve {
            division_cylinders: 383.0,
            root_base_ms: 3.24,
            root_factor_ms: 0.4,
            line_base_ms: 8.0,
            line_slope_ms: 0.008,
            single_ms: None,
        };
        let curve = SeekCurve::Hpl(hpl);
        // 3.24 + 0.4 √100, and 8 + 0.008 · 1000.
        assert!((curve.ms(100, 1962) - 7.24).abs() < 1e-9);
        assert!((curve.ms(1000, 1962) - 16.0).abs() < 1e-9);
        assert_eq!(curve.ms(0, 1962), 0.0);
    }

    /// The slope is 0.1 ms per cylinder up to 10, then −0.2 ms per cylinder.
    #[test]
    fn seek_table_is_linear_between_and_beyond_its_points() {
        let curve = SeekCurve::Table(vec![(1, 1.0), (10, 1.9), (12, 1.5)]);
        assert_eq!(curve.ms(1, 100), 1.0);
        assert!((curve.ms(4, 100) - 1.3).abs() < 1e-9);
        assert!((curve.ms(11, 100) - 1.7).abs() < 1e-9);
        assert!((curve.ms(13, 100) - 1.3).abs() < 1e-9);
    }
}
