//! Baselines and evaluation of readpath. For the command, tests and benchmarks, not for programs.
//!
//! The library does not depend on this crate: a baseline must not share its faults.
//!
//! - [`kernel`]: the same reads through the kernel's own path;
//! - [`access_patterns`]: access patterns of ordinary programs, for any implementation;
//! - [`kernel_swap`]: the baseline of memory loads: a swap area, a memory limit, memory to touch;
//! - [`kernel_trace`], [`oracle`]: the kernel's readahead, read by read;
//! - [`check_kernel`]: the policy `ondemand` compared with these decisions;
//! - [`policy_matrix`], [`eviction_matrix`]: adaptive policies compared with the best baseline of
//!   each cell;
//! - [`reproduce`]: the published tables, from the models;
//! - [`mapping`]: a file mapped by the kernel;
//! - [`clock`], [`usage`]: wall-clock and processor time.

#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

pub mod access_patterns;
pub mod check_kernel;
pub mod clock;
pub mod eviction_matrix;
pub mod kernel;
pub mod kernel_swap;
pub mod kernel_trace;
pub mod mapping;
pub mod oracle;
pub mod policy_matrix;
pub mod reproduce;
pub mod usage;

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
