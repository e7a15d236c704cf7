//! Sample counts of the policies `adaptive`: the same numbers wherever a value is learned.

/// Number of observations before a value is used. It is also the smallest readahead, in pages,
/// after any number of wasted ones, so that a changed pattern is noticed. The kernel has the same
/// minimum: 16 KiB.
pub(crate) const MIN_SAMPLES: u64 = 4;

/// Number of newest samples in a mean: large enough that one outlier doesn't dominate.
pub(crate) const EWMA_WINDOW: u64 = 16;

/// Number of observations that outweigh the older ones; also the divisor of a gradual change.
pub(crate) const DECAY_WINDOW: u64 = 64;
