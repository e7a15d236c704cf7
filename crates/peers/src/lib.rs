//! Baselines of readpath, and the tools that a measurement needs. For the command, tests and
//! benchmarks, not for programs.
//!
//! The library does not depend on this crate: a baseline must not share its faults.
//!
//! - [`kernel`]: the same reads through the kernel's own path;
//! - [`everyday`]: access patterns of ordinary programs, for any implementation;
//! - [`kernel_swap`]: the baseline of memory loads: a swap area, a memory limit, memory to touch;
//! - [`kernel_trace`], [`oracle`]: the kernel's readahead, read by read;
//! - [`watch`]: recordings of any program's reads, from the kernel's tracepoints;
//! - [`cold`]: a cold start, checked;
//! - [`mapping`]: a file mapped by the kernel;
//! - [`cleanup_entry`]: the cleanup journal of objects that a killed run leaves;
//! - [`notice`]: messages on standard error;
//! - [`queue`]: the kernel's settings of a device;
//! - [`clock`], [`usage`]: wall-clock and processor time.

#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod cleanup_entry;
pub mod clock;
pub mod cold;
pub mod everyday;
pub mod file_limit;
pub mod kernel;
pub mod kernel_swap;
pub mod kernel_trace;
pub mod mapping;
pub mod notice;
pub mod oracle;
pub mod queue;
mod tracefs;
pub mod usage;
pub mod watch;

/// Programs of the book, run as doc-tests. This crate depends on all the others.
#[cfg(doctest)]
mod book {
    macro_rules! chapters {
        ($($name:ident $file:literal;)*) => {$(
            #[doc = include_str!(concat!("../../../book/src/", $file))]
            struct $name;
        )*};
    }
    chapters! {
        Start "start.md";
        Choosing "choosing.md";
        Observe "observe.md";
        WriteAPolicy "write-a-policy.md";
        WriteADevice "write-a-device.md";
    }
}
