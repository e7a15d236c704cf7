//! The whole engine in a simulated world: its lock, waiters, futures, guards and batches as they are, over threads,
//! time and storage that a seed decides.
//!
//! What is replaced are the calls by which the library asks the system for something: locks and threads
//! ([primitives], by way of `sync.rs`), the clock, the opening of files and what is known of them, the backend,
//! `preadv(2)` ([disk]), and for mappings and regions userfaultfd and the kernel's own mapping of a file ([memory]). All above that is the code that programs run. The feature `simulation` builds it in, and the
//! crate's own tests have it; where it isn't, there is not an instruction of it.
//!
//! A [`Scenario`] is what some threads do, and what goes wrong meanwhile; it follows from its seed, as does all that
//! happens in it. While it [runs](Scenario::run), a [model] of the files says which bytes each read may see and which
//! errors it may have. [`Scenario::shrunk`] makes one that fails shorter.
//!
//! ```text
//! cargo run --release -p readpath --features simulation --example simulate -- --minutes 10
//! ```

mod callers;
pub(crate) mod disk;
mod found;
mod front;
pub(crate) mod memory;
mod model;
pub(crate) mod network;
mod paged;
pub(crate) mod primitives;
pub(crate) mod replies;
mod run;
mod scenario;
mod server;
mod shrink;
#[cfg(test)]
mod tests;
pub(crate) mod world;

use std::path::Path;

pub use disk::Faults;
pub use found::found;
pub use memory::Kernel;
pub use paged::{MappingTouch, Paged};
pub use scenario::{Action, Scenario, Settings};
pub use server::SimulatedServer;
pub use world::Report;

use crate::identity::Identity;
use crate::target::{OpenError, Target};
use world::world;

/// When the files of a simulation were made, in seconds.
const FILE_TIME: i64 = 1_000_000;

/// Opens a file of the simulation that runs, by its number; `None` where none does.
pub(crate) fn open(path: &Path) -> Option<Result<Target, OpenError>> {
    let world = world()?;
    let name: Option<usize> = path.to_str().and_then(|name| name.parse().ok());
    let disk = world.disk.borrow();
    let Some(&inode) = name.and_then(|name| disk.names.get(name)) else {
        return Some(Err(OpenError::Missing { path: path.to_path_buf() }));
    };
    drop(disk);
    Some(Ok(Target::simulated(path, inode, identity(inode))))
}

/// What is known of an open file of the simulation.
pub(crate) fn identity(inode: u32) -> Identity {
    let world = world().expect("its files are looked at in a simulation");
    world.point();
    let disk = world.disk.borrow();
    let file = &disk.inodes[inode as usize];
    let time = (FILE_TIME, file.changes as i64);
    let (inode, bytes) = (u64::from(inode), file.bytes);
    Identity { device: 1, inode, bytes, modified: time, changed: time, unsettled: 0 }
}

/// The time by which files are stamped; `None` where no simulation runs.
pub(crate) fn file_time() -> Option<(i64, i64)> {
    world().map(|_| (FILE_TIME + 10, 0))
}
