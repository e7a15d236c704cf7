//! Converts each system call in the output of strace into records.
//!
//! A *task* is a thread of the traced programs. A *table* has the descriptors and file mappings of
//! a process.

use std::cell::Cell;
use std::rc::Rc;

use super::folders::CURRENT_FOLDER;
use super::held::NewTask;
use super::syntax::{self, Call, Path, begins_task, is_file, parse_descriptor, unquoted};
use super::tables::{Mapped, OpenFile, OpenMode, UnfinishedCall};
use super::{Record, StraceParser, kind};
use crate::recording::{
    AdviceGiven, AdviceType, FileMapped, OFFSET_MAX, OpenRecord, ReadMethod, ReadOutcome,
    ReadRecord,
};

/// Maximum number of bytes that one call moves (`MAX_RW_COUNT` in Linux). Copying programs request
/// more to mean "up to the end".
pub(super) const CALL_BYTES_MAX: u64 = 0x7fff_f000;

/// Returns true if a call of this name reads a file.
pub fn is_read(name: &str) -> bool {
    read_method(name).is_some()
}

/// Returns the read method of a call, or `None` if it is not a read.
fn read_method(name: &str) -> Option<ReadMethod> {
    Some(match name {
        "read" => ReadMethod::Read,
        "pread64" | "pread" => ReadMethod::Pread,
        "readv" => ReadMethod::Readv,
        "preadv" | "preadv2" => ReadMethod::Preadv,
        "sendfile" | "sendfile64" | "copy_file_range" | "splice" => ReadMethod::Copied,
        _ => return None,
    })
}

/// A read as requested by the arguments of its call.
struct RequestedRead {
    /// Read method, by the name of the call.
    method: ReadMethod,
    /// Index of the argument that holds the descriptor.
    descriptor_index: usize,
    /// Offset in the arguments. `None`: the read uses the descriptor's position.
    offset: Option<u64>,
    /// Requested bytes. `None` for reads into several buffers, whose sizes are not evaluated.
    bytes: Option<u64>,
}

impl RequestedRead {
    /// Returns the read that a call requests, or `None` if it is not a read.
    fn of_call(call: &Call<'_>) -> Option<RequestedRead> {
        let method = read_method(call.name)?;
        // Indexes of the arguments from 0, by the manual page of each call.
        let (descriptor_index, offset, bytes) = match call.name {
            "sendfile" | "sendfile64" => (1, call.pointed_offset(2), call.number(3)),
            "copy_file_range" | "splice" => (0, call.pointed_offset(1), call.number(4)),
            "pread64" | "pread" => (0, call.number(3), call.number(2)),
            // An offset of -1 means the descriptor's position: it is no unsigned number, so `None`.
            "preadv" | "preadv2" => (0, call.number(3), None),
            "read" => (0, None, call.number(2)),
            _ => (0, None, None),
        };
        Some(RequestedRead { method, descriptor_index, offset, bytes })
    }
}

impl StraceParser {
    /// Imports a call that began at `begin_ns`. Reads, openings, mappings and advice become
    /// records. Reads by io_uring, writes and some other calls are counted as left out. Calls that
    /// change descriptors, positions, folders, names or tasks, or add or remove mappings, are
    /// applied to the tables. Other calls have no effect. Returns `None` for malformed or
    /// impossible values.
    pub(super) fn import_call(&mut self, task: u32, begin_ns: u64, call: &Call<'_>) -> Option<()> {
        let end_ns = begin_ns.checked_add(call.duration_ns.unwrap_or(0))?;
        self.has_durations |= call.duration_ns.is_some();
        self.end_ns = self.end_ns.max(end_ns);
        if let Some(requested) = RequestedRead::of_call(call) {
            self.advance_copy_target(task, call);
            return self.import_read(task, (begin_ns, end_ns), call, &requested);
        }
        match call.name {
            "openat" | "open" | "creat" | "openat2" => self.import_open(task, call),
            "close" | "close_range" => self.import_close(task, call),
            "lseek" | "_llseek" => self.import_seek(task, call),
            "dup" | "dup2" | "dup3" => self.import_duplicate(task, call),
            "fcntl" | "fcntl64" if call.argument(1).starts_with("F_DUPFD") => {
                self.import_duplicate(task, call);
            }
            "fcntl" | "fcntl64" if call.argument(1) == "F_SETFL" => {
                self.import_flags(task, call);
            }
            "chdir" | "fchdir" => self.import_folder_change(task, call),
            "rename" | "renameat" | "renameat2" => self.import_rename(task, call),
            name if begins_task(name) => {
                let is_shared = call.arguments.concat().contains("CLONE_FILES");
                self.import_new_task(task, call.success_value(), is_shared);
            }
            "mmap" | "mmap2" => self.import_map(task, end_ns, call),
            "munmap" if call.value() == Some(0) => {
                if let (Some(address), Some(bytes)) = (call.number(0), call.number(1)) {
                    self.table_of_task(task).unmap(address, bytes);
                }
            }
            "fadvise64" | "fadvise64_64" | "posix_fadvise" | "readahead" => {
                self.advise_file(task, end_ns, call);
            }
            "madvise" => self.advise_mapping(task, end_ns, call),
            "io_submit" => self.import_submit(task, begin_ns, call),
            "io_getevents" | "io_pgetevents" | "io_pgetevents_time64" => {
                self.import_events(end_ns, call)?;
            }
            "io_uring_enter" => self.count_left_out(kind::URING),
            "write" | "writev" => {
                self.count_left_out(call.name);
                // The next read by this descriptor begins after the written bytes.
                self.advance_position(task, call.argument(0), call.success_value());
            }
            "pwrite64" | "pwritev" | "pwritev2" | "vmsplice" | "tee" | "process_vm_readv"
            | "msync" | "mremap" => self.count_left_out(call.name),
            _ => {}
        }
        Some(())
    }

    /// Returns the key of the table that a task uses. An unknown task gets a table of its own.
    fn table_key(&mut self, task: u32) -> u32 {
        *self.table_by_task.entry(task).or_insert(task)
    }

    /// Returns the table of the task's process. The table of an unknown task is empty.
    pub(super) fn table_of_task(&mut self, task: u32) -> &mut super::Table {
        let table = self.table_key(task);
        self.tables.entry(table).or_default()
    }

    /// Removes the table of an ended task, unless another task shares it.
    pub(super) fn forget_table(&mut self, task: u32) {
        let Some(table) = self.table_by_task.remove(&task) else { return };
        if !self.table_by_task.values().any(|&other| other == table) {
            self.tables.remove(&table);
        }
    }

    /// Returns a descriptor and its open file. `text` is the argument, such as `3` or `3</path>`. A
    /// path in it is stored. `None` if the text is no descriptor.
    pub(super) fn file_of_descriptor(
        &mut self,
        task: u32,
        text: &str,
    ) -> Option<(u64, &mut OpenFile)> {
        let (descriptor_number, path) = parse_descriptor(text)?;
        let table = self.table_key(task);
        let open_files = &mut self.tables.entry(table).or_default().open_files;
        let open_file = open_files.entry(descriptor_number).or_default();
        path.into_iter().for_each(|path| open_file.set_path(path, &self.relative_renames));
        Some((descriptor_number, open_file))
    }

    /// Advances the position of a descriptor by `bytes`. No effect for a failed call (`None`), or
    /// for text that is no descriptor.
    fn advance_position(&mut self, task: u32, descriptor_text: &str, bytes: Option<u64>) {
        if let (Some((_, open_file)), Some(bytes)) =
            (self.file_of_descriptor(task, descriptor_text), bytes)
        {
            open_file.position.set(open_file.position.get().saturating_add(bytes));
        }
    }

    /// Adds the descriptor of an opened file, with position 0 and its mode. Without effect if the
    /// call failed.
    fn import_open(&mut self, task: u32, call: &Call<'_>) {
        let Some(descriptor) = call.success_value() else { return };
        // With `-y` the result has the whole path.
        let result_path = call.result.split_once('<').and_then(|(_, path)| Path::parse(path));
        let path = match result_path {
            Some(path) => path.name,
            None => {
                // `openat` and `openat2` have a folder before the path.
                let (folder, name) = match call.name.starts_with("openat") {
                    true => (call.argument(0), unquoted(call.argument(1))),
                    false => (CURRENT_FOLDER, unquoted(call.argument(0))),
                };
                self.path_of_name(task, folder, &name).unwrap_or_else(|| {
                    self.names_in_unknown_folders += 1;
                    name
                })
            }
        };
        // An empty path is one that no line has shown. The folder of the text's begin is known.
        let path = if path.is_empty() { ".".to_owned() } else { path };
        let mode = match call.name {
            // `creat` opens for writing, and has no flags.
            "creat" => OpenMode::parse("O_WRONLY"),
            "open" => OpenMode::parse(call.argument(1)),
            _ => OpenMode::parse(call.argument(2)),
        };
        let open_file = OpenFile { path, position: Rc::default(), mode: Rc::new(Cell::new(mode)) };
        self.table_of_task(task).open_files.insert(descriptor, open_file);
    }

    /// Applies the flags that `F_SETFL` changes: direct I/O can begin or end (fcntl(2)). No effect
    /// if the call failed.
    fn import_flags(&mut self, task: u32, call: &Call<'_>) {
        let is_direct = OpenMode::parse(call.argument(2)).is_direct;
        if let (Some(0), Some((_, open_file))) =
            (call.value(), self.file_of_descriptor(task, call.argument(0)))
        {
            open_file.mode.set(OpenMode { is_direct, ..open_file.mode.get() });
        }
    }

    /// Removes closed descriptors, also after a failed call, which closes them on Linux too.
    /// `close_range` with the flag CLOEXEC closes nothing now. An unreadable last descriptor of it
    /// stands for all from the first on.
    fn import_close(&mut self, task: u32, call: &Call<'_>) {
        let Some((first, _)) = parse_descriptor(call.argument(0)) else { return };
        let last = match call.name {
            "close_range" if call.argument(2).contains("CLOEXEC") => return,
            "close_range" => parse_descriptor(call.argument(1)).map_or(u64::MAX, |(last, _)| last),
            _ => first,
        };
        self.table_of_task(task).open_files.retain(|number, _| !(first..=last).contains(number));
    }

    /// Replaces the path of a renamed file or folder in all processes. The files keep their
    /// positions. Without effect if the call failed.
    fn import_rename(&mut self, task: u32, call: &Call<'_>) {
        if call.value() != Some(0) {
            return;
        }
        let names = match call.name {
            "rename" => [(CURRENT_FOLDER, call.argument(0)), (CURRENT_FOLDER, call.argument(1))],
            _ => [0, 2].map(|index| (call.argument(index), call.argument(index + 1))),
        };
        // Each name as given, and its path. A name in the folder of a descriptor counts as given by
        // its path. A name in an unknown folder is its own path.
        let [from, to] = names.map(|(folder, name)| {
            let name = unquoted(name);
            let path = self.path_of_name(task, folder, &name).unwrap_or_else(|| name.clone());
            let is_given = folder == CURRENT_FOLDER || name.starts_with('/');
            let given = if is_given { name } else { path.clone() };
            [given, path].map(|text| text.trim_end_matches('/').to_owned())
        });
        let ([from_name, from], [to_name, to]) = (from, to);
        let is_exchange = call.argument(4).contains("RENAME_EXCHANGE");
        if !from.is_empty() && !to.is_empty() {
            self.relative_renames.add(&from_name, &to_name);
            if is_exchange {
                self.relative_renames.add(&to_name, &from_name);
            }
            self.tables.values_mut().for_each(|table| table.rename(&from, &to, is_exchange));
        }
    }

    /// Sets the position of a descriptor to the result of `lseek`. `_llseek` has it in an argument
    /// instead. Without effect if the call failed, or if its first argument is no descriptor.
    fn import_seek(&mut self, task: u32, call: &Call<'_>) {
        let position = match call.name {
            "_llseek" => call.success_value().and(call.pointed_offset(2)),
            _ => call.success_value(),
        };
        if let (Some((_, open_file)), Some(position)) =
            (self.file_of_descriptor(task, call.argument(0)), position)
        {
            open_file.position.set(position);
        }
    }

    /// Copies a descriptor (`dup`, `dup2`, `dup3`, `F_DUPFD`) to the number in the result. The copy
    /// replaces a file that had this number, as `dup2` closes it. Both have one file position. A
    /// descriptor whose file is not known yet, or is a pipe, is copied as well. No effect if the
    /// call failed.
    fn import_duplicate(&mut self, task: u32, call: &Call<'_>) {
        let Some(copy) = call.success_value() else { return };
        if let Some((_, original)) = self.file_of_descriptor(task, call.argument(0)) {
            let open_file = original.clone();
            self.table_of_task(task).open_files.insert(copy, open_file);
        }
    }

    /// Imports the task of a line if it is an early task: no line has shown it, and an unfinished
    /// call begins it. The text shows the task that each call begins, unless it ends before the
    /// second line of the call. A call that begins exactly this task is its parent. Otherwise the
    /// newest call that the end of the text cuts off is taken as its parent.
    pub(super) fn import_early_task(&mut self, task: u32) {
        if !self.seen_tasks.insert(task) {
            return;
        }
        // Rank of a call as the parent, `None` for a call that cannot be it: a shown task first,
        // then the newest call.
        let candidate = |call: &UnfinishedCall| match call.new_task {
            _ if call.has_begun_task => None,
            NewTask::Shown(shown) => (shown == task).then_some((true, call.begin_ns)),
            NewTask::CutOff => Some((false, call.begin_ns)),
            NewTask::Absent => None,
        };
        let candidates = self.unfinished.iter_mut().filter(|(_, call)| candidate(call).is_some());
        let Some((&parent, call)) = candidates.max_by_key(|(_, call)| candidate(call)) else {
            return;
        };
        call.has_begun_task = true;
        let is_shared = call.shares_descriptors();
        self.import_new_task(parent, Some(task.into()), is_shared);
    }

    /// Shares the descriptors and mappings of a task with its new task `new_task`: the same table
    /// if `is_shared` (threads), otherwise a copy (processes). The flag for descriptors decides for
    /// the mappings too. `None` for a failed call has no effect.
    fn import_new_task(&mut self, task: u32, new_task: Option<u64>, is_shared: bool) {
        let Some(new_task) = new_task.and_then(|new_task| u32::try_from(new_task).ok()) else {
            return;
        };
        self.seen_tasks.insert(new_task);
        let table = self.table_key(task);
        if is_shared {
            self.table_by_task.insert(new_task, table);
        } else {
            // An ended task may have had this number, and the table of another one.
            let copy = self.tables.get(&table).cloned().unwrap_or_default();
            self.tables.insert(new_task, copy);
            self.table_by_task.insert(new_task, new_task);
        }
    }

    /// Adds the record of a read, and advances the position of its descriptor if the read uses it.
    /// A read that is not of a file, or that began again after a signal, is counted as left out.
    /// No effect if the argument is no descriptor. Returns `None` for impossible values.
    fn import_read(
        &mut self,
        task: u32,
        (begin_ns, end_ns): (u64, u64),
        call: &Call<'_>,
        requested: &RequestedRead,
    ) -> Option<()> {
        let Some((descriptor_number, open_file)) =
            self.file_of_descriptor(task, call.argument(requested.descriptor_index))
        else {
            return Some(());
        };
        let Some(value) = call.value() else {
            self.count_left_out(kind::RESTARTED);
            return Some(());
        };
        if open_file.path.is_empty() {
            // A failed read of an unknown file has moved nothing, and is not counted.
            if value >= 0 {
                self.count_left_out(kind::UNKNOWN_FILE);
            }
            return Some(());
        }
        if !is_file(&open_file.path) {
            self.count_left_out(kind::NO_FILE);
            return Some(());
        }
        // A read of a file. One without an offset moves the position. A failed one has 0 bytes.
        let read_bytes = u64::try_from(value).unwrap_or(0);
        let offset = requested.offset.unwrap_or(open_file.position.get());
        if requested.offset.is_none() {
            open_file.position.set(open_file.position.get().checked_add(read_bytes)?);
        }
        let (path, mode) = (open_file.path.clone(), open_file.mode.get());
        // A copy of more than a call can move means the rest of the file.
        let asked_bytes = match requested.bytes {
            Some(bytes) if requested.method == ReadMethod::Copied && bytes > CALL_BYTES_MAX => {
                read_bytes
            }
            Some(bytes) => bytes.min(CALL_BYTES_MAX).max(read_bytes),
            None => read_bytes,
        };
        let outcome = match value {
            ..0 => ReadOutcome::Error(syntax::error_number(call.result)),
            _ => ReadOutcome::Bytes(read_bytes),
        };
        let method = requested.method;
        let descriptor = Some(descriptor_number);
        let (file, thread) = (self.file_number(path), self.thread_number(task));
        let read = ReadRecord {
            end_ns,
            begin_ns,
            // The text does not show which part of a call was a wait.
            waited_ns: 0,
            thread,
            way: method,
            descriptor,
            file,
            offset,
            asked_bytes,
            outcome,
        };
        self.add_read(read, mode)
    }

    /// Adds the record of a read. An opening precedes it if the mode of its descriptor is not the
    /// recorded one: the openings with direct I/O are recorded, and later ones without. A failed
    /// read beyond [`OFFSET_MAX`] is counted as left out. Returns `None` if another read is beyond
    /// it, or if the sums of the recording exceed their maximum.
    pub(super) fn add_read(&mut self, read: ReadRecord, mode: OpenMode) -> Option<()> {
        if read.offset.checked_add(read.asked_bytes).is_none_or(|end| end >= OFFSET_MAX) {
            // A failed call may have any arguments.
            if matches!(read.outcome, ReadOutcome::Error(_)) {
                self.count_left_out(kind::FAILED_BEYOND);
                return Some(());
            }
            return None;
        }
        let end_ns = read.end_ns;
        let opened = (read.file, read.descriptor.unwrap_or(0));
        let is_recorded_mode = match mode.is_direct {
            true => !self.direct_opens.insert(opened),
            false => !self.direct_opens.remove(&opened),
        };
        if !is_recorded_mode {
            let open = OpenRecord {
                at_ns: end_ns,
                thread: read.thread,
                file: read.file,
                descriptor: opened.1,
                is_direct: mode.is_direct,
                is_readable: true,
                is_writable: mode.is_writable,
            };
            self.records.push((end_ns, Record::Open(open)));
        }
        let record = Record::Read(read);
        self.sums.add(&record).ok()?;
        self.reads += 1;
        self.records.push((end_ns, record));
        Some(())
    }

    /// Returns the number of a file in the recording. A new path gets the next number.
    pub(super) fn file_number(&mut self, path: String) -> u32 {
        let files = self.files.len() as u32;
        *self.files.entry(path).or_insert(files)
    }

    /// Returns the number of a thread in the recording. A new task gets the next number.
    pub(super) fn thread_number(&mut self, task: u32) -> u32 {
        let threads = self.threads.len() as u32;
        *self.threads.entry(task).or_insert(threads)
    }

    /// Advances the position of the file that a copy writes to. No effect for another call, or for
    /// a copy to an offset of its own.
    fn advance_copy_target(&mut self, task: u32, call: &Call<'_>) {
        let (target_index, offset) = match call.name {
            "sendfile" | "sendfile64" => (0, None),
            "copy_file_range" | "splice" => (2, call.pointed_offset(3)),
            _ => return,
        };
        if offset.is_none() {
            self.advance_position(task, call.argument(target_index), call.success_value());
        }
    }

    /// Records a mapping (`mmap`) of a file, and counts it: the reads through it are left out. Any
    /// other mapping only removes the mappings in its range. A failed call has no effect, and
    /// neither has a mapping that ends beyond [`OFFSET_MAX`].
    fn import_map(&mut self, task: u32, at_ns: u64, call: &Call<'_>) {
        let (Some(address), Some(bytes)) = (call.success_value(), call.number(1)) else { return };
        // Arguments of mmap(2): address, length, protection, flags, descriptor, offset.
        let offset = call.number(5).unwrap_or(0);
        let path = match self.file_of_descriptor(task, call.argument(4)) {
            Some((_, open_file)) if is_file(&open_file.path) => open_file.path.clone(),
            // A mapping without a file, or of a device, replaces the mappings in its range.
            _ => return self.table_of_task(task).unmap(address, bytes),
        };
        if offset.checked_add(bytes).is_none_or(|end| end > OFFSET_MAX) {
            return;
        }
        self.table_of_task(task).map(address, Mapped { path: path.clone(), offset, bytes });
        let (file, thread) = (self.file_number(path), self.thread_number(task));
        self.records.push((at_ns, Record::Map(FileMapped { at_ns, thread, file, offset, bytes })));
        self.count_left_out(kind::MAPPED);
    }

    /// Adds the record of advice on a file (`fadvise64`, `readahead`). No effect for a failed call,
    /// or for a descriptor that is unknown or not of a file.
    fn advise_file(&mut self, task: u32, at_ns: u64, call: &Call<'_>) {
        let path = match self.file_of_descriptor(task, call.argument(0)) {
            Some((_, open_file)) if is_file(&open_file.path) => open_file.path.clone(),
            _ => return,
        };
        let hint = match call.name {
            "readahead" => AdviceType::WillNeed,
            _ => parse_hint(call.argument(3)),
        };
        let (offset, bytes) = (call.number(1).unwrap_or(0), call.number(2).unwrap_or(0));
        // A readahead of no bytes reads nothing. Advice of no bytes extends to the end of the file.
        let is_empty = call.name == "readahead" && bytes == 0;
        if call.value() == Some(0) && !is_empty {
            let is_of_mapping = false;
            self.add_advice(task, at_ns, path, (offset, bytes), hint, is_of_mapping);
        }
    }

    /// Adds the record of advice on a mapping (`madvise`). The file mapped at the first address
    /// counts for the whole range. Advice on memory without a known file is counted as left out,
    /// unless it releases memory or is of type `Other`. A failed call has no effect.
    fn advise_mapping(&mut self, task: u32, at_ns: u64, call: &Call<'_>) {
        let (Some(address), Some(0)) = (call.number(0), call.value()) else { return };
        let hint = parse_hint(call.argument(2));
        let bytes = call.number(1).unwrap_or(0);
        // Advice of no bytes on memory has no effect. On a file it extends to the end.
        if bytes == 0 {
            return;
        }
        match self.table_of_task(task).file_at(address) {
            Some((path, offset)) => {
                let is_of_mapping = true;
                self.add_advice(task, at_ns, path, (offset, bytes), hint, is_of_mapping);
            }
            // Allocators release memory that is not mapped to a file.
            None if hint == AdviceType::DontNeed || hint == AdviceType::Other => {}
            None => self.count_left_out(kind::UNPLACED),
        }
    }

    /// Adds the record of an advice, unless it lies beyond any file. A length of 0 means up to the
    /// end. `is_of_mapping`: true for `madvise`.
    fn add_advice(
        &mut self,
        task: u32,
        at_ns: u64,
        path: String,
        (offset, bytes): (u64, u64),
        hint: AdviceType,
        is_of_mapping: bool,
    ) {
        let end = offset.saturating_add(bytes);
        if offset > OFFSET_MAX {
            return;
        }
        // A length of 0 means "up to the end", and so does a length beyond any file.
        let bytes = if end > OFFSET_MAX || end == offset { 0 } else { bytes };
        let (file, thread) = (self.file_number(path), self.thread_number(task));
        let advice = AdviceGiven { at_ns, thread, file, offset, bytes, hint, is_of_mapping };
        self.records.push((at_ns, Record::Advice(advice)));
    }
}

/// Converts a constant of `fadvise64` or `madvise`. Unknown constants become `Other`.
fn parse_hint(constant: &str) -> AdviceType {
    match constant.trim_start_matches("POSIX_FADV_").trim_start_matches("MADV_") {
        "NORMAL" => AdviceType::Normal,
        "RANDOM" => AdviceType::Random,
        "SEQUENTIAL" => AdviceType::Sequential,
        "WILLNEED" | "POPULATE_READ" => AdviceType::WillNeed,
        "DONTNEED" => AdviceType::DontNeed,
        _ => AdviceType::Other,
    }
}
