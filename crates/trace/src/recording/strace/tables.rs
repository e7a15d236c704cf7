//! State of a process at a line of strace: its descriptors, mappings and pending requests.

use std::collections::{BTreeMap, VecDeque};

use super::syntax::Path;

/// Descriptors and mappings of one process.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Open files by descriptor.
    pub open_files: BTreeMap<u64, OpenFile>,
    /// Mappings of files by their address.
    mapped: BTreeMap<u64, Mapped>,
}

/// An open file.
#[derive(Clone, Debug, Default)]
pub struct OpenFile {
    pub path: String,
    /// Offset of the next read in bytes.
    pub position: u64,
}

impl OpenFile {
    /// Sets the path of the descriptor. A deleted file keeps the path under which it was opened.
    pub fn set_path(&mut self, path: Path) {
        let Path { name, is_deleted } = path;
        if is_deleted && self.path != name {
            self.path = format!("{name} (deleted)");
        } else if !is_deleted {
            self.path = name;
        }
    }
}

/// A mapping of a file.
#[derive(Clone, Debug)]
pub struct Mapped {
    pub path: String,
    /// File offset of the first byte.
    pub offset: u64,
    pub bytes: u64,
}

impl Table {
    /// Adds the mapping of a file at an address.
    pub fn map(&mut self, address: u64, mapped: Mapped) {
        self.unmap(address, mapped.bytes);
        self.mapped.insert(address, mapped);
    }

    /// Removes the mappings that begin in a range of addresses.
    pub fn unmap(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        self.mapped.retain(|start, _| !(address..end).contains(start));
    }

    /// Returns the file mapped at an address, and the offset of the address in the file. `None`
    /// without a mapping there.
    pub fn file_at(&self, address: u64) -> Option<(String, u64)> {
        let (start, mapped) = self.mapped.range(..=address).next_back()?;
        let within = address - start;
        let offset = mapped.offset.checked_add(within)?;
        (within < mapped.bytes).then(|| (mapped.path.clone(), offset))
    }
}

/// An asynchronous read that was submitted.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub begin_ns: u64,
    pub task: u32,
    pub descriptor: u64,
    pub path: String,
    pub offset: u64,
    pub asked_bytes: u64,
}

/// Asynchronous requests by their context and their number (`aio_data`), the oldest first. Requests
/// other than reads are kept as `None`, so that their completions are not mistaken for completed
/// reads.
#[derive(Debug, Default)]
pub struct Pending {
    requests: BTreeMap<(String, String), VecDeque<Option<Submitted>>>,
}

impl Pending {
    /// Adds a request that was submitted. `None`: it is no read.
    pub fn add(&mut self, context: &str, data: &str, request: Option<Submitted>) {
        let key = (context.to_owned(), data.to_owned());
        self.requests.entry(key).or_default().push_back(request);
    }

    /// Removes and returns the oldest request with this context and number, which has completed.
    /// `None` if it is unknown or no read.
    pub fn complete(&mut self, context: &str, data: &str) -> Option<Submitted> {
        let key = (context.to_owned(), data.to_owned());
        self.requests.get_mut(&key)?.pop_front()?
    }

    /// Returns the number of reads that have not completed.
    pub fn count(&self) -> u64 {
        self.requests.values().flatten().flatten().count() as u64
    }
}
