//! Which files are open, by how many handles; when the last handle goes, so does
//! the file, once nothing of it is on its way. A file is found by its identity: its opening costs
//! the same however many are open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use readpath_core::cache::FileId;
use readpath_core::machine::HandleId;
use readpath_core::request::ProcessId;
use readpath_core::unit::PageRange;

use super::OpenFile;
use super::below::Opening;
use super::in_flight::DeferredDrop;
use super::state::State;
use crate::identity::Identity;
use crate::kernel_pages::{KernelCache, KernelPages};
use crate::target::{BufferedBecause, Mode};

/// A file that is open, and by how many handles.
pub(super) struct Open {
    file: Arc<OpenFile>,
    handles: u32,
}

/// All that are open.
#[derive(Default)]
pub(super) struct OpenFiles {
    /// By the number of the file.
    files: Vec<Option<Open>>,
    /// The same, by what they are: the states of one file lie side by side.
    by_identity: BTreeMap<Identity, FileId>,
}

impl OpenFiles {
    fn of(&self, id: FileId) -> &Open {
        self.files[id.0 as usize].as_ref().expect("the file is open")
    }

    fn of_mut(&mut self, id: FileId) -> &mut Open {
        self.files[id.0 as usize].as_mut().expect("the file is open")
    }

    fn add(&mut self, file: &Arc<OpenFile>) {
        let at = file.id.0 as usize;
        if at >= self.files.len() {
            self.files.resize_with(at + 1, || None);
        }
        self.files[at] = Some(Open { file: Arc::clone(file), handles: 0 });
        self.by_identity.insert(file.identity, file.id);
    }

    fn remove(&mut self, id: FileId) -> Arc<OpenFile> {
        let open = self.files[id.0 as usize].take().expect("the file is open");
        self.by_identity.remove(&open.file.identity);
        open.file
    }

    /// One for each state in which the file was found when it was opened: a change
    /// makes a new one, and earlier handles keep theirs.
    fn states_of(&self, id: FileId) -> impl Iterator<Item = &Arc<OpenFile>> {
        let states = self.of(id).file.identity.all_states();
        self.by_identity.range(states).map(|(_, &id)| &self.of(id).file)
    }
}

/// A handle, and how many reads it has under way.
pub(super) struct InUse {
    file: FileId,
    pub(super) reads: u32,
    /// Its owner has dropped it: it is closed with the last of its reads.
    is_dropped: bool,
}

impl State {
    /// Opens `target`, or finds it open already and unchanged, with a new handle.
    pub(crate) fn open(
        &mut self,
        target: Opening,
        identity: Identity,
        kernel_cache: &KernelCache,
    ) -> (Arc<OpenFile>, HandleId) {
        if let Some(&id) = self.open.by_identity.get(&identity) {
            self.in_flight.deferred.drops.push(DeferredDrop::Opening(target));
            let file = Arc::clone(&self.open.of(id).file);
            let handle = self.open_again(&file);
            return (file, handle);
        }
        let (bytes, mode) = (target.bytes(), target.mode());
        let start_sector = self.in_flight.files.add(target.clone());
        let id = self
            .machine
            .add_file(bytes, start_sector)
            .expect("the storage has sectors for every file that it takes");
        let kernel_pages = KernelPages::of(&target, id.0, kernel_cache);
        let mode = match mode {
            Mode::Direct if kernel_pages.are_kept() => Mode::Buffered(BufferedBecause::Kept),
            mode => mode,
        };
        let file = Arc::new(OpenFile {
            id,
            bytes,
            start_sector,
            mode,
            opening: target,
            identity,
            kernel_pages,
            has_pages: AtomicBool::new(false),
        });
        self.open.add(&file);
        let handle = self.open_again(&file);
        (file, handle)
    }

    /// Invalidates a range of a file in each state in which it is open.
    pub(crate) fn invalidate_states(&mut self, file: FileId, range: PageRange) {
        let states: Vec<FileId> = self.open.states_of(file).map(|state| state.id).collect();
        for id in states {
            self.command(|machine, _| machine.invalidate_file(id, range));
        }
    }

    /// Those states of a file in which pages of a range were on their way when it was invalidated, and still are.
    /// Allocates only where there are some.
    pub(crate) fn stale_states(&self, file: FileId, range: PageRange) -> Vec<Arc<OpenFile>> {
        let is_stale = |state: &&Arc<OpenFile>| self.machine.first_stale(state.id, range).is_some();
        self.open.states_of(file).filter(is_stale).map(Arc::clone).collect()
    }

    /// Opens one more handle of a file that is open.
    pub(crate) fn open_again(&mut self, file: &OpenFile) -> HandleId {
        self.open.of_mut(file.id).handles += 1;
        let handle = self.machine.open(file.id);
        let in_use = InUse { file: file.id, reads: 0, is_dropped: false };
        match self.in_use.get_mut(handle.0 as usize) {
            Some(place) => *place = in_use,
            None => self.in_use.push(in_use),
        }
        handle
    }

    /// Closes a handle once none of its reads is under way. With the last one of
    /// its file the pages go, and then the file.
    pub(crate) fn close(&mut self, handle: HandleId) {
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
            let file = self.open.remove(id);
            self.removing.push(file);
            self.remove_files();
        }
    }

    /// One read less is under way on the handle.
    pub(super) fn read_ended(&mut self, handle: HandleId) {
        let in_use = &mut self.in_use[handle.0 as usize];
        in_use.reads -= 1;
        if in_use.is_dropped && in_use.reads == 0 {
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
            let file = self.removing.swap_remove(at);
            self.in_flight.files.remove(file.start_sector);
            self.in_flight.deferred.drops.push(DeferredDrop::File(file));
        }
    }
}
