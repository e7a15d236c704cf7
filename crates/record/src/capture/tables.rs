//! Descriptor tables of processes, with the file and position of each descriptor.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::event::Inode;

/// Number of a descriptor table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DescriptorTableId(u64);

/// State of an open file description. Duplicated descriptors share it, as do a process and its
/// children.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenFileState {
    /// File or other object.
    pub target: DescriptorTarget,
    /// Position of the next `read`. `None` if unknown.
    pub position: Option<u64>,
    /// Offset in bytes at which the last copy (`sendfile` and similar calls) by an offset in the
    /// program's memory has ended. The next copy may go on there. `None` without such a copy.
    pub copied_end: Option<u64>,
    /// Flags of the `open` call; 0 if unknown.
    pub flags: u64,
    /// Start of the `open` call in nanoseconds; 0 if it was not recorded.
    pub opened_ns: u64,
    /// True when the recording contains the `open`.
    pub is_open_recorded: bool,
}

/// Object of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DescriptorTarget {
    /// Unknown. It is looked up when needed.
    #[default]
    Unknown,
    /// A file.
    File(Inode),
    /// No file of the recording: an object without offsets (pipe, socket, terminal), a file without
    /// storage, or a file that is gone.
    NoRecordedFile,
}

/// A shared open file description.
pub(super) type SharedOpenFile = Rc<RefCell<OpenFileState>>;

/// Descriptor tables of all recorded processes.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Open file of each descriptor, by table.
    tables: HashMap<DescriptorTableId, HashMap<u64, SharedOpenFile>>,
    /// Number of tables so far, and the number of the next one.
    count: u64,
}

impl Tables {
    /// Adds an empty table and returns its number.
    pub fn add(&mut self) -> DescriptorTableId {
        self.add_table(HashMap::new())
    }

    /// Adds a table and returns its number.
    fn add_table(&mut self, table: HashMap<u64, SharedOpenFile>) -> DescriptorTableId {
        let id = DescriptorTableId(self.count);
        self.count += 1;
        self.tables.insert(id, table);
        id
    }

    /// Copies a table, as `fork` does, and returns the number of the copy. The open files are
    /// shared.
    pub fn copy(&mut self, table: DescriptorTableId) -> DescriptorTableId {
        let copy = self.tables.get(&table).cloned().unwrap_or_default();
        self.add_table(copy)
    }

    /// Removes a table that no task uses.
    pub fn remove(&mut self, table: DescriptorTableId) {
        self.tables.remove(&table);
    }

    /// Returns the open file of a descriptor. The file of a new descriptor is unknown at first.
    pub fn file_state(&mut self, table: DescriptorTableId, descriptor: u64) -> SharedOpenFile {
        let table = self.tables.entry(table).or_default();
        Rc::clone(table.entry(descriptor).or_default())
    }

    /// Returns the lowest descriptor of a file that is opened for direct I/O (`is_direct`), or not
    /// for it. A read may have used a higher one. `None` without one.
    pub fn descriptor_of(
        &self,
        table: DescriptorTableId,
        inode: Inode,
        is_direct: bool,
    ) -> Option<u64> {
        let is_of_file = |file_state: &SharedOpenFile| {
            let OpenFileState { target, flags, .. } = *file_state.borrow();
            let has_direct_flag = flags & libc::O_DIRECT as u64 != 0;
            target == DescriptorTarget::File(inode) && has_direct_flag == is_direct
        };
        let open_files = self.tables.get(&table)?.iter();
        open_files.filter(|(_, file)| is_of_file(file)).map(|(descriptor, _)| *descriptor).min()
    }

    /// Makes a descriptor refer to an open file, in place of its former one.
    pub fn set(&mut self, table: DescriptorTableId, descriptor: u64, file_state: SharedOpenFile) {
        self.tables.entry(table).or_default().insert(descriptor, file_state);
    }

    /// Removes a descriptor. Other descriptors of its open file stay.
    pub fn close(&mut self, table: DescriptorTableId, descriptor: u64) {
        self.tables.entry(table).or_default().remove(&descriptor);
    }
}
