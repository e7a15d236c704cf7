//! Which files are open, by how many handles; when the last handle goes, so does
//! the file, once nothing of it is on its way. A file is found by its identity: its opening costs
//! the same however many are open.

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

/// A file that is open, and by how many handles.
pub(super) struct OpenHandle {
    file: Arc<OpenFile>,
    id: FileId,
    start_sector: u64,
    handles: u32,
}

/// What the machine calls a handle and its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InMachine {
    pub(crate) handle: HandleId,
    pub(crate) file: FileId,
    pub(crate) start_sector: u64,
    pub(super) sees_every_hit: bool,
}

/// All that are open.
#[derive(Default)]
pub(super) struct OpenFiles {
    /// By the number of the file.
    files: Vec<Option<OpenHandle>>,
    /// The same, by what they are: the states of one file lie side by side.
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

    /// One for each state in which the file was found when it was opened: a change
    /// makes a new one, and earlier handles keep theirs.
    fn states_of(&self, id: FileId) -> impl Iterator<Item = FileId> {
        let states = self.of(id).file.identity.all_states();
        self.by_identity.range(states).map(|(_, &id)| id)
    }
}

/// A handle, and how many reads it has under way.
pub(super) struct InUse {
    file: FileId,
    pub(super) reads: u32,
    /// Its owner has dropped it: it is closed with the last of its reads.
    is_dropped: bool,
}

impl EngineState {
    /// Takes a file in, or finds it there already and unchanged, with a new handle; gives it as it is there.
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

    /// Those states of a file in which pages of a range were on their way when it was invalidated, and still are.
    /// Allocates only where there are some.
    pub(super) fn stale_states(
        &self,
        file: FileId,
        range: PageRange,
    ) -> Vec<(FileId, Arc<OpenFile>)> {
        let is_stale = |state: &FileId| self.machine.first_stale(*state, range).is_some();
        let stale = self.open.states_of(file).filter(is_stale);
        stale.map(|state| (state, Arc::clone(&self.open.of(state).file))).collect()
    }

    /// Opens one more handle of a file that is open.
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

    /// The owner of a handle has dropped it. What the scheduler held back for it, or had wait for its turn, goes out.
    pub(crate) fn dropped(&mut self, handle: HandleId) {
        self.close(handle);
        let now = self.clock.now();
        self.pump(now);
    }

    /// Closes a handle once none of its reads is under way. With the last one of
    /// its file the pages go, and then the file.
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

    /// One read less is under way on the handle, and its pages are given back.
    ///
    /// Where the kernel keeps the pages of the file, a read comes here only because the kernel could
    /// not give its bytes. The pages that it brought in, with those read ahead, go with it: they would
    /// stay as they are while the kernel's follow the file.
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
