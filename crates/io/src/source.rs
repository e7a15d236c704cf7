//! Files of other storages, such as objects of a store: the program fetches ranges, the library
//! caches, prefetches and schedules them.
//!
//! A [`Source`] is one such file. [`Builder::open_source`](crate::Builder::open_source) makes a
//! [`File`](crate::File) of it, with the same [`Reader`](crate::Reader), [`Batch`](crate::Batch)
//! and futures as a local file. The crate `readpath-remote` has the source of an object store. With
//! [`register_urls`](crate::register_urls) it makes [`File::open`](crate::File::open) take the URLs of object stores.
//!
//! ```
//! use std::ops::Range;
//! use std::sync::Arc;
//!
//! use readpath::ReadPath;
//! use readpath::source::{Fetch, Source};
//!
//! /// Bytes in memory, each fetch by a thread.
//! struct Bytes(Vec<u8>);
//!
//! impl Source for Bytes {
//!     fn bytes(&self) -> u64 {
//!         self.0.len() as u64
//!     }
//!
//!     fn fetch(&self, range: Range<u64>, mut fetch: Fetch) {
//!         let bytes = self.0[range.start as usize..range.end as usize].to_vec();
//!         std::thread::spawn(move || {
//!             fetch.fill(&bytes);
//!             fetch.finish();
//!         });
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = Arc::new(Bytes((0..100_000_u32).map(|byte| byte as u8).collect()));
//! let file = ReadPath::builder().memory(1 << 20).open_source("bytes", source)?;
//! let mut buffer = [0; 4];
//! file.read_exact_at(&mut buffer, 70_000)?;
//! assert_eq!(buffer, [112, 113, 114, 115]);
//! # Ok(())
//! # }
//! ```

use std::ops::Range;

mod completions;
pub(crate) mod direct;
mod fetch;
mod request;
pub(crate) mod storage;

pub use fetch::Fetch;

/// A file in one version, whose ranges the program fetches.
pub trait Source: Send + Sync + 'static {
    /// Length in bytes. It does not change.
    fn bytes(&self) -> u64;

    /// Starts to fetch a range of the file, and returns soon. The range is not empty, and within
    /// the file. The bytes go into `fetch`, now or later, on any thread. Must not read the file
    /// that is made of this source. A panic fails the fetch: its readers get the error
    /// [`Gone`](crate::DeviceError::Gone).
    fn fetch(&self, range: Range<u64>, fetch: Fetch);

    /// Largest range of a fetch in bytes, in whole pages of 4 KiB, from 4 KiB to 4 MiB. Default 2
    /// MiB. Larger reads become several fetches in parallel.
    fn fetch_bytes_max(&self) -> u64 {
        2 << 20
    }

    /// All bytes of the file, if they are in memory already. Each read is then a copy of them, and
    /// no cache is built before another use needs one. Default `None`. It does not change.
    fn all_bytes(&self) -> Option<&[u8]> {
        None
    }

    /// Largest range of a fetch of a read past the cache, in bytes: see
    /// [`File::read_direct_at`](crate::File::read_direct_at). Default
    /// [`fetch_bytes_max`](Source::fetch_bytes_max).
    fn direct_fetch_bytes_max(&self) -> u64 {
        self.fetch_bytes_max()
    }
}
