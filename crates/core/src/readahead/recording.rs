//! Accesses of a program to one file, and the folios that were read for them: plain data.
//!
//! A list of [`HandleStep`]s can be played to a policy and to the running kernel. Each returns the
//! folios that every step added, and the two results can be compared.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Advice, Folio, ReadaheadLimits};

/// One operation of a program on an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleStep {
    /// `pread(2)`; may reach past the end of the file, or lie past it.
    Read {
        /// The first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// An access to one byte of the mapped file, inside the file.
    Touch {
        /// Offset of the byte.
        offset: u64,
    },
    /// `posix_fadvise(2)` for the whole file, and `madvise(2)` for its mapping. `DontNeed` drops
    /// its pages.
    Advise(Advice),
    /// Closes and reopens the file: the stream state is lost, cached pages stay.
    Reopen,
}

/// Folios that a list of steps added to the cache of one system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The system that decided, for example `Linux 6.18.44 ext4` or `ondemand`.
    pub system: String,
    /// Limits of the device.
    pub limits: ReadaheadLimits,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Largest folio of the file system, as an order; 0 for single pages only.
    pub folio_order_max: u8,
    /// For each step, the folios that it added, in order.
    pub added: Vec<Vec<Folio>>,
}
