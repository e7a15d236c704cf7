//! The whole engine in a simulated world. Its lock, waiters, futures, guards and batches are
//! unchanged. A seed decides the order of threads, the time and the behaviour of the storage.
//!
//! Only the library's requests to the system are replaced: locks and threads (`primitives`, through
//! `sync.rs`), the clock, the opening and identity of files, the I/O backend, and `preadv(2)`
//! (`disk`). For mappings and regions, userfaultfd and the kernel's own mapping of a file are
//! replaced too (`memory`). All code above is the code that programs run.
//!
//! The crate `readpath-dst` compiles the library's sources with this module and `cfg(simulation)`.
//! The library itself has only the places where it calls this module, and none in its own builds.
//!
//! A [`Scenario`] describes the actions of some threads, and the faults. It follows from its seed,
//! as does everything that happens in it. While it [runs](Scenario::run), a `model` of the files
//! checks the bytes and errors of each read. [`Scenario::shrunk`] shortens a scenario that fails.
//!
//! ```text
//! cargo run --release -p readpath-dst -- --minutes 10
//! ```

mod build_path;
pub(crate) mod channels;
pub(crate) mod disk;
pub(crate) mod memory;
mod model;
pub(crate) mod network;
mod nfs_decoders;
mod paged;
mod panicking_callers;
pub(crate) mod primitives;
mod regressions;
mod run;
mod scenario;
mod server;
mod shrink;
pub(crate) mod world;

use std::path::Path;

pub use disk::{Disk, Faults};
pub use memory::Kernel;
pub use nfs_decoders::decode_stream;
pub use paged::{check_against_current, open_region};
pub use regressions::regressions;
pub use scenario::{Action, Draw, MappingTouch, Paged, Scenario, Settings, draw_kinds};
pub use server::SimulatedServer;
pub use world::{Report, ScheduleRates, World, world};

use crate::target::identity::Identity;
use crate::target::{OpenError, Target};

/// Creation time of the files of a simulation, in seconds.
const FILE_TIME: i64 = 1_000_000;

/// Opens a file of the running simulation. `path` is the index of its name as a decimal number.
/// Returns `None` outside a simulation.
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

/// Returns the present identity of the file with this inode number. Its time stamps contain the
/// number of changes as nanoseconds, so that each change is seen. Other threads may run before, as
/// during a system call. Panics outside a simulation.
pub(crate) fn identity(inode: u32) -> Identity {
    let world = world().expect("only a simulation has simulated files");
    world.preemption_point();
    let disk = world.disk.borrow();
    let file = &disk.inodes[inode as usize];
    let time = (FILE_TIME, file.changes as i64);
    let (inode, bytes) = (u64::from(inode), file.bytes);
    // All files are on one device, whose number has no meaning. The times show each change, so that
    // no `unstable_id` is needed.
    Identity { device: 1, inode, bytes, modified: time, changed: time, unstable_id: 0 }
}

/// Present time of the clock of file time stamps, in seconds and nanoseconds. It is always 10
/// seconds after the stamps of the files: a file counts as settled 2 seconds after its change.
/// `None` outside a simulation.
pub(crate) fn file_time() -> Option<(i64, i64)> {
    world().map(|_| (FILE_TIME + 10, 0))
}
