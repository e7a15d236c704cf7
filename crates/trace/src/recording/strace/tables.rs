//! State of a process at a line of strace: its descriptors, mappings and pending requests.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use readpath_core::unit::PAGE_BYTES;

use super::folders::CurrentFolder;
use super::held::NewTask;
use super::syntax::Path;

/// Returns the new path of a file whose path is `from`, or is below that folder. `None` for another
/// file.
fn moved(path: &str, from: &str, to: &str) -> Option<String> {
    let rest = path.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
}

/// Descriptors, mappings and current folder of one process.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Open files by descriptor.
    pub open_files: BTreeMap<u64, OpenFile>,
    /// Folder in which relative names begin.
    pub current_folder: CurrentFolder,
    /// Mappings of files by their address. They do not overlap.
    mapped: BTreeMap<u64, Mapped>,
}

/// An open file. A clone is a copy of the descriptor, by dup(2) or fork(2): it has the same
/// position and mode.
#[derive(Clone, Debug, Default)]
pub struct OpenFile {
    /// Path, empty as long as no line has shown it.
    pub path: String,
    /// Offset of the next read in bytes, of all copies of the descriptor.
    pub position: Rc<Cell<u64>>,
    /// Mode of the opening, of all copies of the descriptor.
    pub mode: Rc<Cell<OpenMode>>,
}

/// Flags of an open file. All are false if the text does not show the opening.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenMode {
    /// True for direct I/O (`O_DIRECT`).
    pub is_direct: bool,
    /// True if opened for writing.
    pub is_writable: bool,
}

impl OpenMode {
    /// Parses the flags of open(2), such as `O_RDWR|O_DIRECT`, or `{flags=O_RDWR|O_DIRECT, …}`.
    /// `O_DIRECTORY` is another flag.
    pub fn parse(flags: &str) -> OpenMode {
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let has = |flag| flags.split(|letter| !is_of_name(letter)).any(|name| name == flag);
        OpenMode { is_direct: has("O_DIRECT"), is_writable: has("O_WRONLY") || has("O_RDWR") }
    }
}

impl OpenFile {
    /// Sets the path of the descriptor. A deleted file keeps the path under which it was opened.
    /// Without that path it gets the suffix " (deleted)", which keeps it apart from a new file of
    /// that name. Another path than before is another open file, with a position of its own, unless
    /// one of the `renames` may have changed it.
    pub fn set_path(&mut self, path: Path, renames: &RelativeRenames) {
        let Path { name, is_deleted } = path;
        let path = match is_deleted && self.path != name {
            true => format!("{name} (deleted)"),
            false => name,
        };
        // A rename by a relative name has left only that name.
        let is_relative = !self.path.starts_with('/');
        let has_name = is_relative && NameFolder::of_path(&path, &self.path).is_some();
        let is_other = !self.path.is_empty() && self.path != path && !has_name;
        if is_other && !renames.may_change(&self.path, &path) {
            (self.position, self.mode) = Default::default();
        }
        self.path = path;
    }
}

/// Last renames of files by names in folders that the text does not show: both names as given.
#[derive(Debug, Default)]
pub struct RelativeRenames(VecDeque<[String; 2]>);

impl RelativeRenames {
    /// Number of renames that are kept, chosen.
    const KEPT: usize = 64;

    /// Adds a rename. Without effect if both paths are absolute.
    pub fn add(&mut self, from: &str, to: &str) {
        if from.starts_with('/') && to.starts_with('/') {
            return;
        }
        if self.0.len() == Self::KEPT {
            self.0.pop_front();
        }
        self.0.push_back([from, to].map(without_empty_parts));
    }

    /// Returns true if a rename may have replaced the path `from` by `to`.
    fn may_change(&self, from: &str, to: &str) -> bool {
        self.0.iter().any(|[old_name, new_name]| {
            let folder = parent(old_name);
            // Both names are in one folder below the current one, so both paths are in one folder.
            // The path of that folder may have no part of the names: a part may be a symbolic link.
            if !old_name.starts_with('/') && !folder.is_empty() && folder == parent(new_name) {
                let names = [(from, old_name), (to, new_name)];
                let have_names =
                    names.iter().all(|(path, name)| last_name(path) == last_name(name));
                return have_names && parent(from) == parent(to);
            }
            // Two relative names of a call begin in one folder, the current one of the process.
            match (NameFolder::of_path(from, old_name), NameFolder::of_path(to, new_name)) {
                (Some(NameFolder::Current(old)), Some(NameFolder::Current(new))) => old == new,
                (old, new) => old.is_some() && new.is_some(),
            }
        })
    }
}

/// Folder from which a name is the one of a path.
enum NameFolder<'a> {
    /// The current folder of the process.
    Current(&'a str),
    /// Any folder: the name is absolute, or has a part `.` or `..` and is compared by its end.
    Any,
}

impl NameFolder<'_> {
    /// Returns the folder. `None` if the path cannot have this name.
    fn of_path<'a>(path: &'a str, name: &str) -> Option<NameFolder<'a>> {
        if name.split('/').any(|part| matches!(part, "." | "..")) {
            return (last_name(path) == last_name(name)).then_some(NameFolder::Any);
        }
        if name.starts_with('/') {
            return (path == name).then_some(NameFolder::Any);
        }
        path.strip_suffix(name)?.strip_suffix('/').map(NameFolder::Current)
    }
}

/// Returns a path without the parts of no letters between its slashes.
fn without_empty_parts(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

/// Returns the part of a path before the last slash; empty without a slash.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Returns the part of a path behind the last slash.
fn last_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// First line of a call that the text shows in two lines.
#[derive(Debug)]
pub struct UnfinishedCall {
    /// Start of the call, since the first line of the text.
    pub begin_ns: u64,
    /// Text of the call up to the mark of an unfinished one.
    pub text: String,
    /// Task that this call begins.
    pub new_task: NewTask,
    /// True from the first line of that task on.
    pub has_begun_task: bool,
}

impl UnfinishedCall {
    /// Returns true if the task shares the descriptors of its parent, as threads do.
    pub fn shares_descriptors(&self) -> bool {
        self.text.contains("CLONE_FILES")
    }
}

/// A mapping of a file.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// Path of the file.
    pub path: String,
    /// File offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Table {
    /// Replaces the path `from` by `to`, also at the start of the paths below a folder. With
    /// `is_exchange`, the other file gets the path `from`. Otherwise it is deleted.
    pub fn rename(&mut self, from: &str, to: &str, is_exchange: bool) {
        let open_paths = self.open_files.values_mut().map(|open_file| &mut open_file.path);
        let mapped_paths = self.mapped.values_mut().map(|mapped| &mut mapped.path);
        for path in open_paths.chain(mapped_paths) {
            let other = || match is_exchange {
                true => moved(path, to, from),
                false => (path == to && from != to).then(|| format!("{to} (deleted)")),
            };
            if let Some(new_path) = moved(path, from, to).or_else(other) {
                *path = new_path;
            }
        }
    }

    /// Adds the mapping of a file at an address. It replaces the mappings in its range.
    pub fn map(&mut self, address: u64, mapped: Mapped) {
        self.unmap(address, mapped.bytes);
        self.mapped.insert(address, mapped);
    }

    /// Removes a range of addresses from all mappings, in whole pages as the kernel does. The parts
    /// of a mapping before and after the range stay.
    pub fn unmap(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let end = end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        let end_of = |start: u64, mapped: &Mapped| start.saturating_add(mapped.bytes);
        let begin_before_end = self.mapped.range(..end);
        let cut_starts: Vec<u64> = begin_before_end
            .filter(|&(&start, mapped)| end_of(start, mapped) > address)
            .map(|(&start, _)| start)
            .collect();
        for start in cut_starts {
            let mapped = self.mapped.remove(&start).expect("the start is a key of the table");
            let mapped_end = end_of(start, &mapped);
            if mapped_end > end {
                let offset = mapped.offset + (end - start);
                let rest = Mapped { offset, bytes: mapped_end - end, path: mapped.path.clone() };
                self.mapped.insert(end, rest);
            }
            if start < address {
                self.mapped.insert(start, Mapped { bytes: address - start, ..mapped });
            }
        }
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
    /// Start of the submitting call, since the first line of the text.
    pub begin_ns: u64,
    /// Task that submitted it.
    pub task: u32,
    /// Descriptor of the file in that task.
    pub descriptor: u64,
    /// Mode of the descriptor.
    pub mode: OpenMode,
    /// Path of the file.
    pub path: String,
    /// First byte in the file.
    pub offset: u64,
    /// Requested bytes; 0 if the text does not show them.
    pub asked_bytes: u64,
}

/// Asynchronous requests by their context and their number (`aio_data`), the oldest first. The
/// context is the first argument of `io_submit` and `io_getevents`. Requests other than reads are
/// kept as `None`, so that their completions are not mistaken for completed reads.
#[derive(Debug, Default)]
pub struct Pending {
    /// Key: context and number as texts. Requests with an equal key complete in their order.
    requests: BTreeMap<(String, String), VecDeque<Option<Submitted>>>,
}

impl Pending {
    /// Adds a request that was submitted. `None`: it is no read.
    pub fn add(&mut self, context: &str, data: &str, request: Option<Submitted>) {
        let key = (context.to_owned(), data.to_owned());
        self.requests.entry(key).or_default().push_back(request);
    }

    /// Removes and returns the oldest request with this context and number, which has completed.
    /// `None` if it is unknown, or no read: such a request is removed too.
    pub fn complete(&mut self, context: &str, data: &str) -> Option<Submitted> {
        let key = (context.to_owned(), data.to_owned());
        self.requests.get_mut(&key)?.pop_front()?
    }

    /// Removes all requests of a context. Returns the number of reads among them.
    pub fn forget_context(&mut self, context: &str) -> u64 {
        let mut forgotten = 0;
        self.requests.retain(|(other, _), requests| {
            let is_kept = other != context;
            if !is_kept {
                forgotten += requests.iter().flatten().count() as u64;
            }
            is_kept
        });
        forgotten
    }

    /// Returns the number of reads that have not completed.
    pub fn count(&self) -> u64 {
        self.requests.values().flatten().flatten().count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Address of the test mapping: pages 0 to 9 of a file `a`.
    const START: u64 = 0x7000_0000;

    /// Files and pages that are mapped at each of the ten pages from [`START`] on.
    fn pages(table: &Table) -> String {
        let page_at = |page| match table.file_at(START + page * PAGE_BYTES) {
            Some((path, offset)) => format!("{path}{}", offset / PAGE_BYTES),
            None => "-".to_owned(),
        };
        (0..10).map(page_at).collect::<Vec<_>>().join(" ")
    }

    fn table() -> Table {
        let mut table = Table::default();
        let mapped = Mapped { path: "a".to_owned(), offset: 0, bytes: 10 * PAGE_BYTES };
        table.map(START, mapped);
        table
    }

    #[test]
    fn partial_unmap_leaves_the_rest_of_a_mapping() {
        let mut table = table();
        table.unmap(START, 2 * PAGE_BYTES);
        assert_eq!(pages(&table), "- - a2 a3 a4 a5 a6 a7 a8 a9");
        table.unmap(START + 9 * PAGE_BYTES, 5 * PAGE_BYTES);
        assert_eq!(pages(&table), "- - a2 a3 a4 a5 a6 a7 a8 -");
        // Part of a page unmaps the page.
        table.unmap(START + 4 * PAGE_BYTES, 1);
        assert_eq!(pages(&table), "- - a2 a3 - a5 a6 a7 a8 -");
        table.unmap(START + 3 * PAGE_BYTES, 4 * PAGE_BYTES);
        assert_eq!(pages(&table), "- - a2 - - - - a7 a8 -");
    }

    #[test]
    fn mapping_replaces_the_part_of_an_older_mapping_in_its_range() {
        let mut table = table();
        let mapped = Mapped { path: "b".to_owned(), offset: 0, bytes: 3 * PAGE_BYTES };
        table.map(START + 4 * PAGE_BYTES, mapped);
        assert_eq!(pages(&table), "a0 a1 a2 a3 b0 b1 b2 a7 a8 a9");
        table.unmap(START + 5 * PAGE_BYTES, PAGE_BYTES);
        assert_eq!(pages(&table), "a0 a1 a2 a3 b0 - b2 a7 a8 a9");
    }

    /// Addresses and lengths that no kernel accepts come from a damaged text.
    #[test]
    fn mapping_at_the_end_of_the_address_space_is_accepted() {
        let mut table = Table::default();
        let mapped = Mapped { path: "a".to_owned(), offset: 0, bytes: 1 << 60 };
        table.map(u64::MAX - PAGE_BYTES, mapped);
        table.unmap(u64::MAX - 1, u64::MAX);
        assert!(table.file_at(u64::MAX - PAGE_BYTES).is_some());
    }
}
