//! The command `readpath` with policies and a device of another crate.
//!
//! Each other file of the folder has one of them: a readahead policy, an eviction policy, a
//! scheduler and a device. They use the public interface alone, so the folder also builds as a
//! crate outside this repository. Its dependencies are `readpath-cli`, `readpath-core` and
//! `readpath-models`.
//!
//! ```sh
//! cargo run --example own_policies -- policies two-blocks
//! cargo run --example own_policies -- run JOB.fio --on tape,hdd --readahead two-blocks,ondemand
//! cargo run --example own_policies -- cachesim TRACE --eviction fifo,lru
//! cargo run --example own_policies -- run JOB.fio --on file:FOLDER --scheduler nearest
//! ```

mod fifo;
mod nearest;
mod tape;
mod two_blocks;

use std::process::ExitCode;

use readpath_core::policy::{Policy, RegisterError};
use readpath_core::{eviction, readahead, scheduler};
use readpath_models::registry::{self, DeviceEntry};

fn register() -> Result<(), RegisterError> {
    let two_blocks = "the block of 64 KiB that contains a read, and the next one";
    readahead::register(
        Policy::new("two-blocks", two_blocks, include_str!("two_blocks.rs")),
        |spec, _limits| {
            spec.only(&[])?;
            Ok(Box::new(two_blocks::TwoBlocks))
        },
    )?;
    eviction::register(
        Policy::new("fifo", "evicts the page that entered first", include_str!("fifo.rs")),
        |spec, _pages| {
            spec.only(&[])?;
            Ok(Box::new(fifo::Fifo))
        },
    )?;
    scheduler::register(
        Policy::new("nearest", "the request nearest to the head", include_str!("nearest.rs")),
        |spec, _caps| {
            spec.only(&[])?;
            Ok(Box::new(nearest::Nearest::default()))
        },
    )?;
    registry::register(DeviceEntry {
        name: "tape",
        line: "a tape drive: winds to the place of a request",
        parameters: &tape::PARAMETERS,
        build: |spec, _seed| Ok(Box::new(tape::Tape::from_spec(spec)?)),
    })
}

fn main() -> ExitCode {
    register().expect("the names are free");
    readpath_cli::main()
}
