//! Median of measured values.

/// Middle of ascending values, at least one. If there are two middle ones, the greater.
pub(crate) fn middle(ascending: &[f64]) -> f64 {
    ascending[ascending.len() / 2]
}

/// Sorts the values, at least one, and returns their middle.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    middle(values)
}
