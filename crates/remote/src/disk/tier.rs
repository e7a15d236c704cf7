//! The state of an open folder. An *entry* is the file of one block of an object's version.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::admission::Admission;
use super::folder::Folder;
use super::index::Index;
use super::options::{Admit, DiskCounters, DiskOff};

/// An open folder.
#[derive(Debug)]
pub(super) struct Tier {
    /// `None` if it could not be opened: the tier is off.
    pub(super) folder: Option<Folder>,
    /// Largest number of bytes of all entries of the folder.
    pub(super) budget_bytes: u64,
    /// Selection of the fetched blocks that are written.
    pub(super) admit: Admit,
    state: Mutex<State>,
    /// Reason for which the tier is off; unset while it is on.
    off: OnceLock<DiskOff>,
    /// The process that has opened the folder: a child made by `fork` has no threads of it.
    process: u32,
}

/// The state behind the lock. No thread waits for the disk while it holds the lock.
#[derive(Debug)]
pub(super) struct State {
    /// The known entries, in the order of eviction.
    pub(super) index: Index,
    /// Measured costs, which decide which pages are written.
    pub(super) admission: Admission,
    /// Counters since the opening; their reason `off` is kept in the tier, not here.
    pub(super) counters: DiskCounters,
    /// Victims that this process has chosen, to make place for writes, since it counted the bytes
    /// of the folder.
    pub(super) removals: usize,
}

impl Tier {
    /// The tier of a folder; without one it must be turned off.
    pub(super) fn new(folder: Option<Folder>, budget_bytes: u64, admit: Admit) -> Tier {
        let (index, admission) = (Index::new(), Admission::default());
        let counters = DiskCounters::default();
        let state = State { index, admission, counters, removals: 0 };
        Tier {
            folder,
            budget_bytes,
            admit,
            state: Mutex::new(state),
            off: OnceLock::new(),
            process: std::process::id(),
        }
    }

    /// Locks the state. A panic of another thread is ignored: the state has only counters and
    /// estimates, and an index whose entries are checked when they are opened.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reason for which the tier is off; `None` while it is on.
    pub(super) fn off(&self) -> Option<DiskOff> {
        self.off.get().copied()
    }

    /// The folder, if the tier is on, and of this process.
    pub(super) fn open_folder(&self) -> Option<&Folder> {
        let is_usable = self.off.get().is_none() && self.is_of_process();
        self.folder.as_ref().filter(|_| is_usable)
    }

    /// Returns true in the process that has opened the folder.
    pub(super) fn is_of_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Turns the tier off. The first reason stays.
    pub(super) fn turn_off(&self, reason: DiskOff) {
        let _ = self.off.set(reason);
    }

    /// Counts a failed system call, and turns the tier off if the next write must fail too.
    pub(super) fn on_failure(&self, error: &std::io::Error) {
        self.lock().counters.failures += 1;
        if let Some(reason) = DiskOff::of_error(error) {
            self.turn_off(reason);
        }
    }
}
