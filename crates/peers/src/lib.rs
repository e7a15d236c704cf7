//! What readpath is measured against, and what a measurement needs: for the command, tests and
//! benchmarks; a program has no use of it.
//!
//! Nothing here is carried by the library: what it is held against must not share its mistakes.
//!
//! - [`kernel`]: the same reads through the kernel's own path;
//! - [`everyday`]: what programs do with files, for whatever gives them the bytes;
//! - [`kernel_swap`]: the peer of memory loads: a swap area, a memory limit, memory to touch;
//! - [`kernel_trace`], [`oracle`]: what the kernel reads ahead, read by read;
//! - [`watch`]: what any program reads, recorded by the kernel's tracepoints;
//! - [`cold`]: a cold start, checked;
//! - [`mapping`]: a file as the kernel maps it;
//! - [`cleanup_entry`]: what a run makes on the machine, undone by the next one if it is killed;
//! - [`notice`]: messages on standard error;
//! - [`queue`]: what the kernel decides by for a device;
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

/// The programs in the book, run as the doctests of this crate, which has all the others at hand.
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
