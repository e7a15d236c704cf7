//! The real world of the read path.
