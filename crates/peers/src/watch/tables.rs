//! What the descriptors of processes are of, and where they stand.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::event::Inode;

/// Which table of descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DescriptorTableId(u64);

/// What is known of an open file. Descriptors that were duplicated, and those of a process and its
/// children, share it.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenFileState {
    pub of: Of,
    /// Where the next `read` begins.
    pub position: Option<u64>,
    pub flags: u64,
    pub opened_ns: u64,
    /// Whether the recording has its opening.
    pub is_told: bool,
}

/// What a descriptor is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Of {
    /// Not known: it is looked up when something depends on it.
    #[default]
    Unknown,
    /// A file.
    File(Inode),
    /// Something that has no places: a pipe, a socket, a terminal; or a file that is gone.
    Nothing,
}

/// One open file, shared.
pub(super) type SharedOpenFile = Rc<RefCell<OpenFileState>>;

/// The tables of all watched processes.
#[derive(Debug, Default)]
pub(super) struct Tables {
    tables: HashMap<DescriptorTableId, HashMap<u64, SharedOpenFile>>,
    count: u64,
}

impl Tables {
    /// A table of which nothing is known.
    pub fn add(&mut self) -> DescriptorTableId {
        self.insert(HashMap::new())
    }

    fn insert(&mut self, table: HashMap<u64, SharedOpenFile>) -> DescriptorTableId {
        let number = DescriptorTableId(self.count);
        self.count += 1;
        self.tables.insert(number, table);
        number
    }

    /// A copy, as `fork` makes one.
    pub fn copy(&mut self, table: DescriptorTableId) -> DescriptorTableId {
        let copy = self.tables.get(&table).cloned().unwrap_or_default();
        self.insert(copy)
    }

    pub fn remove(&mut self, table: DescriptorTableId) {
        self.tables.remove(&table);
    }

    /// What a descriptor is of; nothing is known of one that was open before.
    pub fn held(&mut self, table: DescriptorTableId, descriptor: u64) -> SharedOpenFile {
        let table = self.tables.entry(table).or_default();
        Rc::clone(table.entry(descriptor).or_default())
    }

    pub fn set(&mut self, table: DescriptorTableId, descriptor: u64, held: SharedOpenFile) {
        self.tables.entry(table).or_default().insert(descriptor, held);
    }

    pub fn close(&mut self, table: DescriptorTableId, descriptor: u64) {
        self.tables.entry(table).or_default().remove(&descriptor);
    }
}
