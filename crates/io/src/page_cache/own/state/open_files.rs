//! Open files and their handle counts. After the last handle has closed, the file is removed once
//! none of its pages is in flight. A file is found by its identity, so the cost of opening does not
//! depend on the number of open files. A *version* of a file is its content between two changes, as
//! found at an opening. Each version that is open has an entry of its own here. A *handle* is one
//! opening of a version. The *machine* is the state machine of the cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use readpath_core::cache::FileId;
use readpath_core::machine::HandleId;
use readpath_core::request::ProcessId;
use readpath_core::unit::PageRange;

use super::EngineState;
use crate::page_cache::kernel::FilePages;
use crate::page_cache::own::OpenFile;
use crate::page_cache::own::in_flight::DeferredDrop;
use crate::target::identity::Identity;

/// All pages of a file.
pub(super) const ALL_PAGES: PageRange = PageRange { first: 0, end: u64::MAX };

/// An open file with its number of handles.
pub(in crate::page_cache::own) struct OpenFileEntry {
    /// The file, closed with its last reference.
    file: Arc<OpenFile>,
    /// The machine's number of the file.
    id: FileId,
    /// First sector of the file in the storage, by which requests address the file. All files of a
    /// storage share one range of sector numbers.
    start_sector: u64,
    /// Number of handles.
    handle_count: u32,
}

/// The machine's identifiers of a handle and its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineIds {
    /// The machine's number of the handle. Numbers of closed handles are reused.
    pub(crate) handle: HandleId,
    /// The machine's number of the file version.
    pub(crate) file_id: FileId,
    /// First sector of the file in the storage.
    pub(crate) start_sector: u64,
    /// True if the readahead policy must be called for every hit, also for shared pages without a
    /// mark.
    pub(in crate::page_cache::own) needs_every_hit: bool,
}

/// All open files.
#[derive(Default)]
pub(in crate::page_cache::own) struct OpenFiles {
    /// By file number.
    files: Vec<Option<OpenFileEntry>>,
    /// By identity. The versions of one file are adjacent.
    by_identity: BTreeMap<Identity, FileId>,
}

impl OpenFiles {
    /// Returns the entry of an open file. Panics if the file is not open.
    fn entry(&self, id: FileId) -> &OpenFileEntry {
        self.files[id.0 as usize].as_ref().expect("the file is open")
    }

    /// Like `entry`, for a change of the entry.
    fn entry_mut(&mut self, id: FileId) -> &mut OpenFileEntry {
        self.files[id.0 as usize].as_mut().expect("the file is open")
    }

    /// Adds a file without handles.
    fn add(&mut self, id: FileId, start_sector: u64, file: Arc<OpenFile>) {
        let index = id.0 as usize;
        if index >= self.files.len() {
            self.files.resize_with(index + 1, || None);
        }
        self.by_identity.insert(file.identity, id);
        self.files[index] = Some(OpenFileEntry { file, id, start_sector, handle_count: 0 });
    }

    /// Removes an open file and returns its entry.
    fn remove(&mut self, id: FileId) -> OpenFileEntry {
        let entry = self.files[id.0 as usize].take().expect("the file is open");
        self.by_identity.remove(&entry.file.identity);
        entry
    }

    /// Returns the number of each open version of the file. A change creates a new version, and
    /// earlier handles keep theirs.
    fn versions_of(&self, id: FileId) -> impl Iterator<Item = FileId> {
        let identities = self.entry(id).file.identity.all_versions();
        self.by_identity.range(identities).map(|(_, &id)| id)
    }
}

/// A handle with its number of reads that have not ended.
pub(in crate::page_cache::own) struct HandleUse {
    /// File version of the handle.
    file_id: FileId,
    /// Number of reads in flight, and of completed reads that were not released.
    pub(super) reads: u32,
    /// True if the owner has dropped the handle. The handle closes with its last read.
    is_dropped: bool,
}

impl EngineState {
    /// Opens a new handle of a file. Adds the file unless this version of it is already open: then
    /// this reference is dropped. Returns the open file that the machine uses, and the identifiers
    /// of the new handle.
    pub(crate) fn open(&mut self, file: Arc<OpenFile>) -> (Arc<OpenFile>, MachineIds) {
        if let Some(&id) = self.open_files.by_identity.get(&file.identity) {
            // A second opening of the same version, whose reference is dropped without the lock.
            self.in_flight.deferred.drops.push(DeferredDrop::File(file));
            return (Arc::clone(&self.open_files.entry(id).file), self.open_another_handle(id));
        }
        let start_sector = self.in_flight.storage.add(file.storage_file.clone());
        let id = self
            .machine
            .add_file(file.bytes, start_sector)
            .expect("the storage has sectors for every file that it takes");
        self.open_files.add(id, start_sector, Arc::clone(&file));
        (file, self.open_another_handle(id))
    }

    /// Invalidates a range of a file in each of its open versions: cached pages are not served
    /// again. Pages in flight may still be served to the reads that wait for them.
    pub(crate) fn invalidate_all_versions(&mut self, file_id: FileId, range: PageRange) {
        let versions: Vec<FileId> = self.open_files.versions_of(file_id).collect();
        for id in versions {
            self.with_machine(|machine, _| machine.invalidate_file(id, range));
        }
    }

    /// Returns the versions of a file with stale pages in the range, each with its file. A page is
    /// *stale* if it was in flight when the range was invalidated, and still is. Allocates only if
    /// there are any.
    pub(in crate::page_cache::own) fn versions_with_stale_pages(
        &self,
        file_id: FileId,
        range: PageRange,
    ) -> Vec<(FileId, Arc<OpenFile>)> {
        let has_stale_page = |id: &FileId| self.machine.first_stale(*id, range).is_some();
        let versions = self.open_files.versions_of(file_id).filter(has_stale_page);
        versions.map(|id| (id, Arc::clone(&self.open_files.entry(id).file))).collect()
    }

    /// Opens another handle of an open file in the machine, counts it, and returns the machine's
    /// identifiers of it. Each handle ends with one call of `on_handle_dropped`.
    pub(in crate::page_cache::own) fn open_another_handle(
        &mut self,
        file_id: FileId,
    ) -> MachineIds {
        let entry = self.open_files.entry_mut(file_id);
        entry.handle_count += 1;
        let start_sector = entry.start_sector;
        let handle = self.machine.open(file_id);
        let handle_use = HandleUse { file_id, reads: 0, is_dropped: false };
        // The machine reuses the numbers of closed handles.
        match self.handle_uses.get_mut(handle.0 as usize) {
            Some(free_use) => *free_use = handle_use,
            None => self.handle_uses.push(handle_use),
        }
        let needs_every_hit = self.machine.needs_every_hit(handle);
        MachineIds { handle, file_id, start_sector, needs_every_hit }
    }

    /// Closes a handle whose owner has dropped it. Requests that the scheduler held back for this
    /// handle are submitted.
    pub(crate) fn on_handle_dropped(&mut self, handle: HandleId) {
        self.close(handle);
        let now = self.clock.now();
        self.step_until_idle(now);
    }

    /// Closes a handle if all of its reads have ended; otherwise, its last read closes it. The last
    /// handle of a file removes the file with its pages, at once or when no page is in flight any
    /// more. `step_until_idle` must follow.
    fn close(&mut self, handle: HandleId) {
        let handle_use = &mut self.handle_uses[handle.0 as usize];
        handle_use.is_dropped = true;
        if handle_use.reads > 0 {
            return;
        }
        let now = self.clock.now();
        // For the scheduler, each handle is a process of its own. It expects no request of this one
        // any more.
        self.machine.process_ended(now, ProcessId(handle.0));
        self.machine.close(handle);
        let id = handle_use.file_id;
        let entry = self.open_files.entry_mut(id);
        entry.handle_count -= 1;
        if entry.handle_count == 0 {
            let entry = self.open_files.remove(id);
            self.closing_files.push(entry);
            self.remove_idle_files();
        }
    }

    /// Ends a read on its handle. The machine has released the read before, and `range` covers its
    /// pages. With the last read of a dropped handle, closes the handle. `step_until_idle` must
    /// follow.
    ///
    /// The pages leave the cache if the path does not cache pages. For a file in the kernel page
    /// cache, the machine reads only bytes that the kernel could not return. All pages of the file
    /// are then dropped, prefetched ones included. They would become stale, while the kernel's
    /// pages follow changes of the file.
    pub(super) fn on_read_end(&mut self, handle: HandleId, range: PageRange) {
        let handle_use = &mut self.handle_uses[handle.0 as usize];
        handle_use.reads -= 1;
        let file_id = handle_use.file_id;
        let must_close = handle_use.is_dropped && handle_use.reads == 0;
        match &self.open_files.entry(file_id).file.pages {
            FilePages::Own(_) => {}
            FilePages::Kernel(_) => self.machine.invalidate_file(file_id, ALL_PAGES),
            FilePages::None => self.machine.invalidate_file(file_id, range),
        }
        if must_close {
            self.close(handle);
        }
    }

    /// Removes the files without handles whose pages are no longer in flight, from the machine and
    /// from the storage. They are closed after the lock is released.
    pub(super) fn remove_idle_files(&mut self) {
        let mut index = 0;
        while index < self.closing_files.len() {
            // False while a page of the file is in flight.
            if !self.machine.remove_file(self.closing_files[index].id) {
                index += 1;
                continue;
            }
            let entry = self.closing_files.swap_remove(index);
            self.in_flight.storage.remove(entry.start_sector);
            self.in_flight.deferred.drops.push(DeferredDrop::File(entry.file));
        }
    }
}
