//! What a program did with one file, and what was read for it: plain data.
//!
//! A list of [`HandleStep`]s can be played to a law and to the running kernel; each
//! answers with the folios that every step added, and the two can be compared.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Advice, Folio, ReadaheadLimits};

/// One thing that a program does with an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleStep {
    /// `pread(2)`; may reach past the end of the file, or lie past it.
    Read {
        /// The first byte.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// An access to one byte of the mapped file, which lies within it.
    Touch {
        /// The byte.
        offset: u64,
    },
    /// `posix_fadvise(2)` for the whole file, and `madvise(2)` for its mapping.
    /// `DontNeed` makes it cold again.
    Advise(Advice),
    /// Closes the file and opens it anew: what was learned of the stream is
    /// lost, what is cached stays.
    Reopen,
}

/// What a list of steps brought into the cache on some system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Whose decisions these are: `Linux 6.18.44 ext4`, `ondemand`.
    pub system: String,
    /// What the device allowed.
    pub limits: ReadaheadLimits,
    /// The length of the file in bytes.
    pub file_bytes: u64,
    /// The largest folio that the file system takes, as an order; 0 for single pages only.
    pub folio_order_max: u8,
    /// For each step, the folios that it added, in order.
    pub added: Vec<Vec<Folio>>,
}
