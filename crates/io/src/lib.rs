//! The real world of the read path.

pub mod cold;
pub mod kernel_trace;
pub mod mapping;
pub mod oracle;
