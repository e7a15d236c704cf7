//! Integration tests of the machine. Each file below is a part of one program, which is linked once
//! and runs on all processors.

mod adaptive_strides;
mod adaptive_trajectory;
mod bad_pages;
mod cache_table;
mod chunking_trajectory;
mod common;
mod machine;
#[path = "memory/main.rs"]
mod memory;
mod ondemand_trajectory;
mod scans;
#[path = "shared_pages/main.rs"]
mod shared_pages;
mod stream_in_little_memory;
