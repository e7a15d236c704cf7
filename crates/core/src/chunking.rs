//! Raw I/O: large transfers that bypass the cache, in chunks.
//!
//! A transfer's memory must be pinned and described to the device before any data moves. A large
//! transfer is therefore split into *chunks*. The policy decides their size, and if the next one is
//! submitted before the last has completed. [`RawTransfer`] splits at offsets that the device can
//! address, and keeps the state. Both are pure: a driver polls the next chunk, transfers it, and
//! reports the outcome.
//!
//! Source: the thread of 2001 restated in SOURCES.md, E.

use alloc::boxed::Box;
use core::ops::RangeInclusive;

use crate::policy::{self, Policy, Spec, SpecError};
use crate::unit::PAGE_BYTES;

mod kiobuf;
mod ring;
mod transfer;

pub use kiobuf::Kiobuf;
pub use ring::{DEPTH_DEFAULT, RingChunking};
pub use transfer::{Chunk, RawTransfer, TransferEnd};

/// Default chunk size: source E raised it to this value, "so that each disk gets large requests".
pub const CHUNK_BYTES_DEFAULT: u64 = 512 << 10;

/// Range of chunk sizes. The minimum is a page, the largest alignment of any device. The maximum is
/// 64 MiB: beyond it a chunk is as large as a transfer, and needs contiguous memory.
pub const CHUNK_BYTES: RangeInclusive<u64> = PAGE_BYTES..=64 << 20;

/// State of a transfer, as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferProgress {
    /// Bytes not yet submitted; at least 1.
    pub bytes_left: u64,
    /// Submitted chunks that have not completed.
    pub in_flight: u32,
}

/// A chunking policy: decides the size and the concurrency of the chunks of a large transfer.
pub trait ChunkingPolicy {
    /// Number of bytes to submit now, as one chunk: at least 1, and at most
    /// [`chunk_bytes`](ChunkingPolicy::chunk_bytes). `None`: wait until a chunk in flight has
    /// completed.
    ///
    /// Never `None` without a chunk in flight.
    fn next(&self, progress: &TransferProgress) -> Option<u64>;

    /// The largest chunk in bytes: the size of a buffer.
    fn chunk_bytes(&self) -> u64;

    /// The most chunks in flight: the number of buffers.
    fn depth(&self) -> u32;
}

/// The chunking policies by name.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "kiobuf",
        line: "raw I/O of Linux 2.4: one chunk in flight, the next starts when it ends; chunk=64KiB|512KiB",
        source: include_str!("chunking/kiobuf.rs"),
    },
    Policy {
        name: "ring",
        line: "several chunks in flight at once; chunk=512KiB, depth=4",
        source: include_str!("chunking/ring.rs"),
    },
];

/// Builds the policy that `spec` names.
///
/// # Errors
/// The name or a parameter is unknown, or a value is out of range.
pub fn build(spec: &Spec) -> Result<Box<dyn ChunkingPolicy + Send + Sync>, SpecError> {
    match spec.name.as_str() {
        "kiobuf" => Ok(Box::new(Kiobuf::from_spec(spec)?)),
        "ring" => Ok(Box::new(RingChunking::from_spec(spec)?)),
        name => Err(policy::unknown("raw I/O policy", name, POLICIES.iter())),
    }
}

/// Reads the parameter `chunk`: a size in bytes that must be a whole number of pages.
fn chunk_bytes(spec: &Spec) -> Result<u64, SpecError> {
    let bytes = spec.bytes("chunk", CHUNK_BYTES_DEFAULT, CHUNK_BYTES)?;
    match bytes % PAGE_BYTES {
        0 => Ok(bytes),
        _ => Err(spec.bad_value("chunk", "a whole number of pages of 4 KiB")),
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    /// Builds a policy from its text. Returns its chunk size in bytes and its depth.
    fn built_limits(text: &str) -> Result<(u64, u32), SpecError> {
        let policy = build(&Spec::parse(text).unwrap())?;
        Ok((policy.chunk_bytes(), policy.depth()))
    }

    #[test]
    fn policies_are_built_from_text_with_their_defaults() {
        assert_eq!(built_limits("kiobuf"), Ok((524_288, 1)));
        assert_eq!(built_limits("kiobuf,chunk=64KiB"), Ok((65_536, 1)));
        assert_eq!(built_limits("ring"), Ok((524_288, 4)));
        assert_eq!(built_limits("ring,chunk=1m,depth=2"), Ok((1_048_576, 2)));
    }

    #[test]
    fn invalid_specs_are_refused_by_name() {
        for (text, expected_text) in [
            ("bounce", "there is no raw I/O policy `bounce`; there are: kiobuf, ring"),
            ("kiobuf,depth=2", "`kiobuf` has no parameter `depth`; it takes: chunk"),
            ("ring,depth=0", "`ring,depth=0`: expected a whole number from 1 to 256"),
            ("ring,chunk=1KiB", "expected a size from 4096 to 67108864 bytes"),
            ("ring,chunk=much", "expected a size from 4096"),
            ("kiobuf,chunk=5000", "expected a whole number of pages of 4 KiB"),
        ] {
            let error = built_limits(text).unwrap_err().to_string();
            assert!(error.contains(expected_text), "{text}: {error}");
        }
    }
}
