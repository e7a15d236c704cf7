//! Which files are open, by how many handles; when the last handle goes, so does
//! the file, once nothing of it is on its way.

use std::sync::Arc;

use readpath_core::cache::FileId;
use readpath_core::machine::HandleId;
use readpath_core::request::ProcessId;
use readpath_core::unit::PageRange;

use super::OpenFile;
use super::below::Opening;
use super::desk::{Buried, Desk};
use crate::kernel_pages::KernelPages;

/// A file that is open, and by how many handles.
pub(super) struct Open {
    file: Arc<OpenFile>,
    identity: Identity,
    handles: u32,
}

/// A handle, and how many reads it has under way.
pub(super) struct InUse {
    file: FileId,
    pub(super) reads: u32,
    /// Its owner has dropped it: it is closed with the last of its reads.
    is_dropped: bool,
}

/// What must be the same for a file to be served from what is cached of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    /// Seconds and nanoseconds.
    pub(crate) modified: (i64, i64),
    pub(crate) changed: (i64, i64),
}

impl Identity {
    /// Whether it is the same file, in whatever state.
    fn is_same(&self, other: &Identity) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl Desk {
    /// Opens `target`, or finds it open already and unchanged, with a new handle.
    pub(crate) fn open(
        &mut self,
        target: Opening,
        identity: Identity,
    ) -> (Arc<OpenFile>, HandleId) {
        let same = self.open.iter().flatten().find(|open| open.identity == identity);
        if let Some(open) = same {
            self.graveyard.push(Buried::File(target));
            let file = Arc::clone(&open.file);
            let handle = self.open_again(&file);
            return (file, handle);
        }
        let (bytes, mode) = (target.bytes(), target.mode());
        let kernel_pages = KernelPages::of(&target, identity);
        let start_sector = self.files.add(target);
        let id = self
            .machine
            .add_file(bytes, start_sector)
            .expect("the storage has sectors for every file that it takes");
        let file = Arc::new(OpenFile { id, bytes, start_sector, mode, kernel_pages });
        let at = id.0 as usize;
        if at >= self.open.len() {
            self.open.resize_with(at + 1, || None);
        }
        self.open[at] = Some(Open { file: Arc::clone(&file), identity, handles: 0 });
        let handle = self.open_again(&file);
        (file, handle)
    }

    /// Whether `identity` is of the file that `file` is, perhaps in another state.
    pub(crate) fn is_same(&self, file: FileId, identity: &Identity) -> bool {
        self.states_of(file).any(|open| open.identity.is_same(identity))
    }

    /// Invalidates a range of a file in each state in which it is open.
    pub(crate) fn invalidate_states(&mut self, file: FileId, range: PageRange) {
        for at in 0..self.open.len() {
            let state = self.states_of(file).find(|open| open.file.id.0 as usize == at);
            if let Some(id) = state.map(|open| open.file.id) {
                self.command(|machine, _| machine.invalidate_file(id, range));
            }
        }
    }

    /// The pages of a range that are on their way, of a file in each state in
    /// which it is open. Allocates only where there are some.
    pub(crate) fn in_flight_of_states(
        &self,
        file: FileId,
        range: PageRange,
    ) -> Vec<(Arc<OpenFile>, u64)> {
        let mut found = Vec::new();
        for open in self.states_of(file) {
            let mut rest = range;
            while let Some(page) = self.machine.first_in_flight(open.file.id, rest) {
                found.push((Arc::clone(&open.file), page));
                rest.first = page + 1;
            }
        }
        found
    }

    /// One for each state in which the file was found when it was opened: a change
    /// makes a new one, and earlier handles keep theirs.
    fn states_of(&self, file: FileId) -> impl Iterator<Item = &Open> {
        let identity = self.open[file.0 as usize].as_ref().map(|open| open.identity);
        let is_same = move |open: &&Open| identity.is_some_and(|of| of.is_same(&open.identity));
        self.open.iter().flatten().filter(is_same)
    }

    /// Opens one more handle of a file that is open.
    pub(crate) fn open_again(&mut self, file: &OpenFile) -> HandleId {
        self.open[file.id.0 as usize].as_mut().expect("the file is open").handles += 1;
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
        let place = &mut self.open[in_use.file.0 as usize];
        let open = place.as_mut().expect("a handle's file is open");
        open.handles -= 1;
        if open.handles == 0 {
            let open = place.take().expect("it was there");
            self.removing.push(open.file);
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
            let target = self.files.remove(file.start_sector);
            self.graveyard.extend(target.map(Buried::File));
        }
    }
}
