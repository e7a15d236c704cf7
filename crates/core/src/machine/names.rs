//! Identifiers of the open objects of a machine.

/// Identifies an open file: a file of the cache, with the readahead state of one opener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u32);

/// Identifies a read from its start until its release; reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u32);

/// Identifies a fault on memory from its start until its release; reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultId(pub u32);
