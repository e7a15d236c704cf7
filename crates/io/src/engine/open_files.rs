//! Open files and their handle counts. After the last handle has closed, the file is removed once
//! none of its pages is in flight. A file is found by its identity, so the cost of opening does not
//! depend on the number of open files.

use std::collections::BTreeMap;
use std::sync::Arc;

use readpath_core::cache::FileId;
use readpath_core::machine::HandleId;
use readpath_core::request::ProcessId;
use readpath_core::unit::PageRange;

use super::OpenFile;
use super::in_flight::DeferredDrop;
use super::state::EngineState;
use crate::identity::Identity;

/// An open file with its number of handles.
pub(super) struct OpenHandle {
    file: Arc<OpenFile>,
    id: FileId,
    start_sector: u64,
    /// Number of handles.
    handles: u32,
}

/// The machine's identifiers of a handle and its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InMachine {
    pub(crate) handle: HandleId,
    pub(crate) file: FileId,
    pub(crate) start_sector: u64,
    /// True if the readahead policy must be called for every hit.
    pub(super) sees_every_hit: bool,
}

/// All open files.
#[derive(Default)]
pub(super) struct OpenFiles {
    /// By file number.
    files: Vec<Option<OpenHandle>>,
    /// By identity. The states of one file are adjacent.
    by_identity: BTreeMap<Identity, FileId>,
}

impl OpenFiles {
    fn of(&self, id: FileId) -> &OpenHandle {
        self.files[id.0 as usize].as_ref().expect("the file is open")
    }

    fn of_mut(&mut self, id: FileId) -> &mut OpenHandle {
        self.files[id.0 as usize].as_mut().expect("the file is open")
    }

    fn add(&mut self, id: FileId, start_sector: u64, file: Arc<OpenFile>) {
        let at = id.0 as usize;
        if at >= self.files.len() {
            self.files.resize_with(at + 1, || None);
        }
        self.by_identity.insert(file.identity, id);
        self.files[at] = Some(OpenHandle { file, id, start_sector, handles: 0 });
    }

    fn remove(&mut self, id: FileId) -> OpenHandle {
        let open = self.files[id.0 as usize].take().expect("the file is open");
        self.by_identity.remove(&open.file.identity);
        open
    }

    /// Returns one file for each state that the file had when it was opened. A change creates a new
    /// state, and earlier handles keep theirs.
    fn states_of(&self, id: FileId) -> impl Iterator<Item = FileId> {
        let states = self.of(id).file.identity.all_states();
        self.by_identity.range(states).map(|(_, &id)| id)
    }
}

/// A handle with its number of reads in flight.
pub(super) struct InUse {
    file: FileId,
    pub(super) reads: u32,
    /// True if the owner has dropped the handle. The handle closes with its last read.
    is_dropped: bool,
}

impl EngineState {
    /// Opens a new handle of a file. Adds the file unless it is already open and unchanged. Returns
    /// the open file.
    pub(crate) fn open(&mut self, file: Arc<OpenFile>) -> (Arc<OpenFile>, InMachine) {
        if let Some(&id) = self.open.by_identity.get(&file.identity) {
            self.in_flight.deferred.drops.push(DeferredDrop::File(file));
            return (Arc::clone(&self.open.of(id).file), self.open_again(id));
        }
        let start_sector = self.in_flight.files.add(file.opening.clone());
        let id = self
            .machine
            .add_file(file.bytes, start_sector)
            .expect("the storage has sectors for every file that it takes");
        self.open.add(id, start_sector, Arc::clone(&file));
        (file, self.open_again(id))
    }

    /// Invalidates a range of a file in each state in which it is open.
    pub(crate) fn invalidate_states(&mut self, file: FileId, range: PageRange) {
        let states: Vec<FileId> = self.open.states_of(file).collect();
        for id in states {
            self.command(|machine, _| machine.invalidate_file(id, range));
        }
    }

    /// States of a file in which pages of the range were in flight when it was invalidated, and
    /// still are. Allocates only if there are any.
    pub(super) fn stale_states(
        &self,
        file: FileId,
        range: PageRange,
    ) -> Vec<(FileId, Arc<OpenFile>)> {
        let is_stale = |state: &FileId| self.machine.first_stale(*state, range).is_some();
        let stale = self.open.states_of(file).filter(is_stale);
        stale.map(|state| (state, Arc::clone(&self.open.of(state).file))).collect()
    }

    /// Opens another handle of an open file.
    pub(super) fn open_again(&mut self, file: FileId) -> InMachine {
        let open = self.open.of_mut(file);
        open.handles += 1;
        let start_sector = open.start_sector;
        let handle = self.machine.open(file);
        let in_use = InUse { file, reads: 0, is_dropped: false };
        match self.in_use.get_mut(handle.0 as usize) {
            Some(place) => *place = in_use,
            None => self.in_use.push(in_use),
        }
        let sees_every_hit = self.machine.sees_every_hit(handle);
        InMachine { handle, file, start_sector, sees_every_hit }
    }

    /// Closes a handle whose owner has dropped it. Requests that the scheduler held back for this
    /// handle are submitted.
    pub(crate) fn dropped(&mut self, handle: HandleId) {
        self.close(handle);
        let now = self.clock.now();
        self.pump(now);
    }

    /// Closes a handle if none of its reads is in flight. The last handle of a file removes the
    /// pages, and then the file.
    fn close(&mut self, handle: HandleId) {
        let in_use = &mut self.in_use[handle.0 as usize];
        in_use.is_dropped = true;
        if in_use.reads > 0 {
            return;
        }
        let now = self.clock.now();
        self.machine.process_ended(now, ProcessId(handle.0));
        self.machine.close(handle);
        let id = in_use.file;
        let open = self.open.of_mut(id);
        open.handles -= 1;
        if open.handles == 0 {
            let open = self.open.remove(id);
            self.removing.push(open);
            self.remove_files();
        }
    }

    /// Ends a read on the handle and releases its pages.
    ///
    /// For a file in the kernel page cache, a read gets here only if the kernel could not return
    /// its bytes. The pages that it fetched, prefetched ones included, are dropped with it. They
    /// would become stale, while the kernel's pages follow changes of the file.
    pub(super) fn read_ended(&mut self, handle: HandleId) {
        let in_use = &mut self.in_use[handle.0 as usize];
        in_use.reads -= 1;
        let (file, is_over) = (in_use.file, in_use.is_dropped && in_use.reads == 0);
        if self.open.of(file).file.kernel_pages.are_kept() {
            self.machine.invalidate_file(file, PageRange { first: 0, end: u64::MAX });
        }
        if is_over {
            self.close(handle);
        }
    }

    /// Removes the files without handles whose pages are no longer in flight.
    pub(super) fn remove_files(&mut self) {
        let mut at = 0;
        while at < self.removing.len() {
            if !self.machine.remove_file(self.removing[at].id) {
                at += 1;
                continue;
            }
            let open = self.removing.swap_remove(at);
            self.in_flight.files.remove(open.start_sector);
            self.in_flight.deferred.drops.push(DeferredDrop::File(open.file));
        }
    }
}
