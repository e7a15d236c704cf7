//! Readers of file formats over [`ReadpathStore`], and a local server to try them with.
//!
//! - [`columns`] reads columns and row groups of Parquet objects, by the crate `parquet`.
//! - [`arrays`] reads boxes of Zarr arrays, by the crate `zarrs`.
//! - [`samples`] has small objects of both formats, and [`patterns`] has ways to read them.
//! - [`server`] is an HTTP server with delay, jitter, bandwidth and faults; [`http_client`] is the
//!   client of `object_store` for it.
//!
//! [`ReadpathStore`]: readpath_remote::store::ReadpathStore

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod arrays;
pub mod columns;
pub mod http_client;
pub mod patterns;
pub mod samples;
pub mod server;
