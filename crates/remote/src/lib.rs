//! The read path for remote files: page cache, readahead, single flight and parallel ranges.
//!
//! - [`planner`] decides which byte ranges of which files to fetch, and when. It does no I/O and
//!   has no clock: the caller fetches the ranges by any means, and reports the bytes as they
//!   arrive. It builds for every target, `wasm32-unknown-unknown` included.
#![cfg_attr(feature = "object_store", doc = "- [`store`] is a store of the crate `object_store`")]
#![cfg_attr(
    not(feature = "object_store"),
    doc = "- `store` is a store of the crate `object_store`"
)]
//!   over another one: its reads pass the planner. It needs the feature `object_store`, and
//!   `tokio` for tasks on tokio. Both are on by default.
#![cfg_attr(all(feature = "file", target_os = "linux"), doc = "- [`file`](mod@file) opens objects")]
#![cfg_attr(not(all(feature = "file", target_os = "linux")), doc = "- `file` opens objects")]
//!   as files of the crate `readpath`, on Linux. It needs the feature `file`.
#![cfg_attr(all(feature = "disk", target_os = "linux"), doc = "- [`disk`] keeps blocks of objects")]
#![cfg_attr(
    not(all(feature = "disk", target_os = "linux")),
    doc = "- `disk` keeps blocks of objects"
)]
//!   in a local folder, on Linux. It needs the feature `disk`.
#![cfg_attr(feature = "opendal", doc = "- [`mod@opendal`] is a layer")]
#![cfg_attr(not(feature = "opendal"), doc = "- `opendal` is a layer")]
//!   for operators of the crate `opendal`. It needs the feature `opendal`.
//!
//! ```
//! use readpath_remote::planner::{Event, Planner, PlannerOptions, Time};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let object: Vec<u8> = (0..100_000).map(|byte| byte as u8).collect();
//! let now = Time::ZERO;
//! let mut planner = Planner::new(&PlannerOptions::default())?;
//! let file = planner.open_file(object.len() as u64, "the ETag")?;
//! let handle = planner.open(file)?;
//! let read = planner.start(now, handle, 5_000, 300)?;
//! while let Some(event) = planner.poll(now) {
//!     match event {
//!         Event::Fetch(fetch) => {
//!             // The bytes of a request for `fetch.range`, with `If-Match: fetch.generation`.
//!             let bytes = &object[fetch.range.start as usize..fetch.range.end as usize];
//!             planner.fill(now, fetch.id, bytes);
//!             planner.finish(now, fetch.id);
//!         }
//!         Event::Ended(ended) => assert_eq!(ended, read),
//!     }
//! }
//! assert_eq!(planner.take(now, read), Some(Ok(object[5_000..5_300].to_vec())));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

#[cfg(all(feature = "disk", target_os = "linux"))]
pub mod disk;
#[cfg(all(feature = "file", target_os = "linux"))]
pub mod file;
#[cfg(feature = "opendal")]
pub mod opendal;
pub mod planner;
#[cfg(feature = "object_store")]
mod promise;
#[cfg(feature = "object_store")]
pub mod store;

/// Programs of the book, run as doc-tests.
#[cfg(all(doctest, feature = "disk", feature = "file", feature = "opendal", target_os = "linux"))]
#[doc = include_str!("../../../book/src/remote.md")]
mod book {}
