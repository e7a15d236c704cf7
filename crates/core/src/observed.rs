//! How much the laws `adaptive` go by what they have seen: the same numbers wherever something is learned.

/// Fewer observations tell nothing; and however much was lost, so many pages are read ahead, so that it is seen when more
/// would be used. The kernel reads no fewer either: 16 KiB.
pub(crate) const MIN_SAMPLES: u64 = 4;

/// A mean is one of so many of the newest: enough that one that is far off doesn't rule it.
pub(crate) const EWMA_WINDOW: u64 = 16;

/// What was before is outweighed by so many, or by a share of so many parts at a time.
pub(crate) const DECAY_WINDOW: u64 = 64;
