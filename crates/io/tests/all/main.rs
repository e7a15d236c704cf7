//! Integration tests of the path, linked as one program. Tests that must be alone in their process
//! (they fork, set limits, count memory or descriptors) are programs of their own, next to this
//! folder.

mod decisions;
mod direct;
mod file;
mod foreign;
mod page_cache;
mod public;
mod raw_batch;
mod raw_concurrent;
mod raw_file;
mod reader;
mod scans;
mod source;
#[path = "../support/mod.rs"]
mod support;
