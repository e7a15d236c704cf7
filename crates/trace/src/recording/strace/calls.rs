//! Converts each system call in the output of strace into records.

use super::syntax::{self, Call, Path, descriptor, field, is_file, quoted};
use super::tables::{Mapped, OpenFile, Submitted};
use super::{Record, StraceParser, kind};
use crate::recording::{
    AdviceGiven, AdviceType, FileMapped, OFFSET_MAX, ReadMethod, ReadOutcome, ReadRecord,
};

/// Maximum number of bytes that one call moves (`MAX_RW_COUNT` in Linux). Copying programs request
/// more to mean "up to the end".
const CALL_BYTES_MAX: u64 = 0x7fff_f000;

/// Returns true if a call of this name reads a file.
pub fn is_read(name: &str) -> bool {
    way(name).is_some()
}

/// Returns the read method of a call, or `None` if it is not a read.
fn way(name: &str) -> Option<ReadMethod> {
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
    way: ReadMethod,
    /// Index of the argument that holds the descriptor.
    descriptor_at: usize,
    /// Offset in the arguments. `None`: the read uses the descriptor's position.
    offset: Option<u64>,
    bytes: Option<u64>,
}

impl RequestedRead {
    /// Returns the read that a call requests, or `None` if it is not a read.
    fn of(call: &Call<'_>) -> Option<RequestedRead> {
        let way = way(call.name)?;
        let (descriptor_at, offset, bytes) = match call.name {
            "sendfile" | "sendfile64" => (1, call.pointed_offset(2), call.number(3)),
            "copy_file_range" | "splice" => (0, call.pointed_offset(1), call.number(4)),
            "pread64" | "pread" => (0, call.number(3), call.number(2)),
            // An offset of -1 means the descriptor's position.
            "preadv" | "preadv2" => (0, call.number(3), None),
            "read" => (0, None, call.number(2)),
            _ => (0, None, None),
        };
        Some(RequestedRead { way, descriptor_at, offset, bytes })
    }
}

impl StraceParser {
    /// Processes a call. Returns `None` if its arguments are malformed.
    pub(super) fn call(&mut self, task: u32, begin_ns: u64, call: &Call<'_>) -> Option<()> {
        let end_ns = begin_ns.checked_add(call.took_ns)?;
        self.end_ns = self.end_ns.max(end_ns);
        if let Some(asked) = RequestedRead::of(call) {
            self.copied_to(task, call);
            return self.read(task, (begin_ns, end_ns), call, &asked);
        }
        match call.name {
            "openat" | "open" | "creat" | "openat2" => self.open(task, call),
            "close" | "close_range" => self.close(task, call),
            "lseek" | "_llseek" => self.seek(task, call),
            "dup" | "dup2" | "dup3" => self.duplicate(task, call),
            "fcntl" | "fcntl64" if call.argument(1).starts_with("F_DUPFD") => {
                self.duplicate(task, call);
            }
            "clone" | "clone3" | "fork" | "vfork" => {
                let is_shared = call.arguments.concat().contains("CLONE_FILES");
                self.new_task(task, call.success_value(), is_shared);
            }
            "mmap" | "mmap2" => self.map(task, end_ns, call),
            "munmap" => {
                if let (Some(address), Some(bytes)) = (call.number(0), call.number(1)) {
                    self.table(task).unmap(address, bytes);
                }
            }
            "fadvise64" | "fadvise64_64" | "posix_fadvise" | "readahead" => {
                self.advise_file(task, end_ns, call);
            }
            "madvise" => self.advise_mapping(task, end_ns, call),
            "io_submit" => self.submit(task, begin_ns, call),
            "io_getevents" | "io_pgetevents" | "io_pgetevents_time64" => {
                self.events(end_ns, call)?;
            }
            "io_uring_enter" => self.count_left_out(kind::URING),
            "write" | "writev" => {
                self.count_left_out(call.name);
                self.advance(task, call.argument(0), call.success_value());
            }
            "pwrite64" | "pwritev" | "pwritev2" | "vmsplice" | "tee" | "process_vm_readv"
            | "msync" | "mremap" => self.count_left_out(call.name),
            _ => {}
        }
        Some(())
    }

    /// Returns the table of the task's process.
    fn table(&mut self, task: u32) -> &mut super::Table {
        let table = *self.table_of.entry(task).or_insert(task);
        self.tables.entry(table).or_default()
    }

    /// Returns the open file of a descriptor, with the path of the descriptor's text.
    fn open_file(&mut self, task: u32, text: &str) -> Option<(u64, &mut OpenFile)> {
        let (number, path) = descriptor(text)?;
        let held = self.table(task).open_files.entry(number).or_default();
        path.into_iter().for_each(|path| held.name(path));
        Some((number, held))
    }

    /// Advances the position of a descriptor after a read or copy.
    fn advance(&mut self, task: u32, text: &str, by: Option<u64>) {
        if let (Some((_, held)), Some(by)) = (self.open_file(task, text), by) {
            held.position = held.position.saturating_add(by);
        }
    }

    /// Adds the descriptor of an opened file, with position 0.
    fn open(&mut self, task: u32, call: &Call<'_>) {
        let Some(descriptor) = call.success_value() else { return };
        // With `-y` the result has the whole path.
        let with_result = call.result.split_once('<').and_then(|(_, path)| Path::parse(path));
        let path = match with_result {
            Some(path) => path.name,
            None => quoted(call.argument(usize::from(call.name.starts_with("openat")))),
        };
        self.table(task).open_files.insert(descriptor, OpenFile { path, position: 0 });
    }

    /// Removes closed descriptors.
    fn close(&mut self, task: u32, call: &Call<'_>) {
        let Some((first, _)) = descriptor(call.argument(0)) else { return };
        let last = match call.name {
            "close_range" if call.argument(2).contains("CLOEXEC") => return,
            "close_range" => descriptor(call.argument(1)).map_or(u64::MAX, |(last, _)| last),
            _ => first,
        };
        self.table(task).open_files.retain(|number, _| !(first..=last).contains(number));
    }

    /// Sets the position of a descriptor to the result of `lseek`.
    fn seek(&mut self, task: u32, call: &Call<'_>) {
        let position = match call.name {
            "_llseek" => call.success_value().and(call.pointed_offset(2)),
            _ => call.success_value(),
        };
        if let (Some((_, held)), Some(position)) =
            (self.open_file(task, call.argument(0)), position)
        {
            held.position = position;
        }
    }

    /// Copies a descriptor (`dup`, `F_DUPFD`).
    fn duplicate(&mut self, task: u32, call: &Call<'_>) {
        if let (Some((number, _)), Some(copy)) =
            (descriptor(call.argument(0)), call.success_value())
        {
            let table = self.table(task);
            if let Some(held) = table.open_files.get(&number).cloned() {
                table.open_files.insert(copy, held);
            }
        }
    }

    /// Gives a new task the descriptors and mappings of its creator: the same table for a thread
    /// (`is_shared`), otherwise a copy.
    fn new_task(&mut self, task: u32, new: Option<u64>, is_shared: bool) {
        let Some(new) = new.and_then(|new| u32::try_from(new).ok()) else { return };
        let table = *self.table_of.entry(task).or_insert(task);
        if is_shared {
            self.table_of.insert(new, table);
        } else if let Some(copy) = self.tables.get(&table).cloned() {
            self.tables.insert(new, copy);
        }
    }

    /// Records a read, and advances the position of its descriptor if the read uses it.
    fn read(
        &mut self,
        task: u32,
        (begin_ns, end_ns): (u64, u64),
        call: &Call<'_>,
        asked: &RequestedRead,
    ) -> Option<()> {
        let Some((number, held)) = self.open_file(task, call.argument(asked.descriptor_at)) else {
            return Some(());
        };
        let Some(value) = call.value() else {
            self.count_left_out(kind::RESTARTED);
            return Some(());
        };
        if held.path.is_empty() {
            if value >= 0 {
                self.count_left_out("reads of descriptors whose file the text does not show");
            }
            return Some(());
        }
        if !is_file(&held.path) {
            self.count_left_out(kind::NO_FILE);
            return Some(());
        }
        let got = u64::try_from(value).unwrap_or(0);
        let offset = asked.offset.unwrap_or(held.position);
        if asked.offset.is_none() {
            held.position = held.position.checked_add(got)?;
        }
        let path = held.path.clone();
        let asked_bytes = match asked.bytes {
            Some(bytes) if asked.way != ReadMethod::Copied || bytes <= CALL_BYTES_MAX => {
                bytes.max(got)
            }
            _ => got,
        };
        let outcome = match value {
            ..0 => ReadOutcome::Error(syntax::error_number(call.result)),
            _ => ReadOutcome::Bytes(got),
        };
        let way = asked.way;
        let descriptor = Some(number);
        let (file, thread) = (self.file(path), self.thread(task));
        self.add_read(ReadRecord {
            end_ns,
            begin_ns,
            waited_ns: 0,
            thread,
            way,
            descriptor,
            file,
            offset,
            asked_bytes,
            outcome,
        })
    }

    /// Adds the record of a read. Returns `None` if its range is beyond [`OFFSET_MAX`], or if the
    /// sums of the recording exceed their maximum.
    fn add_read(&mut self, read: ReadRecord) -> Option<()> {
        if read.offset.checked_add(read.asked_bytes).is_none_or(|end| end > OFFSET_MAX) {
            return None;
        }
        let end_ns = read.end_ns;
        let record = Record::Read(read);
        self.sums.add(&record).ok()?;
        self.reads += 1;
        self.records.push((end_ns, record));
        Some(())
    }

    /// Returns the number of a file.
    fn file(&mut self, path: String) -> u32 {
        let files = self.files.len() as u32;
        *self.files.entry(path).or_insert(files)
    }

    /// Returns the number of a thread.
    fn thread(&mut self, task: u32) -> u32 {
        let threads = self.threads.len() as u32;
        *self.threads.entry(task).or_insert(threads)
    }

    /// Advances the position of the file that a copy writes to.
    fn copied_to(&mut self, task: u32, call: &Call<'_>) {
        let (to, offset) = match call.name {
            "sendfile" | "sendfile64" => (0, None),
            "copy_file_range" | "splice" => (2, call.pointed_offset(3)),
            _ => return,
        };
        if offset.is_none() {
            self.advance(task, call.argument(to), call.success_value());
        }
    }

    /// Records a mapping (`mmap`).
    fn map(&mut self, task: u32, at_ns: u64, call: &Call<'_>) {
        let (Some(address), Some(bytes)) = (call.success_value(), call.number(1)) else { return };
        let offset = call.number(5).unwrap_or(0);
        let path = match self.open_file(task, call.argument(4)) {
            Some((_, held)) if is_file(&held.path) => held.path.clone(),
            // An anonymous mapping replaces the mappings in its range.
            _ => return self.table(task).unmap(address, bytes),
        };
        if offset.checked_add(bytes).is_none_or(|end| end > OFFSET_MAX) {
            return;
        }
        self.table(task).map(address, Mapped { path: path.clone(), offset, bytes });
        let (file, thread) = (self.file(path), self.thread(task));
        self.records.push((at_ns, Record::Map(FileMapped { at_ns, thread, file, offset, bytes })));
        self.count_left_out(kind::MAPPED);
    }

    /// Records advice on a file (`fadvise64`, `readahead`).
    fn advise_file(&mut self, task: u32, at_ns: u64, call: &Call<'_>) {
        let path = match self.open_file(task, call.argument(0)) {
            Some((_, held)) if is_file(&held.path) => held.path.clone(),
            _ => return,
        };
        let hint = match call.name {
            "readahead" => AdviceType::WillNeed,
            _ => hint(call.argument(3)),
        };
        if call.value() == Some(0) {
            let (offset, bytes) = (call.number(1).unwrap_or(0), call.number(2).unwrap_or(0));
            self.advise(task, at_ns, path, (offset, bytes), hint, false);
        }
    }

    /// Records advice on a mapping (`madvise`).
    fn advise_mapping(&mut self, task: u32, at_ns: u64, call: &Call<'_>) {
        let (Some(address), Some(0)) = (call.number(0), call.value()) else { return };
        let hint = hint(call.argument(2));
        match self.table(task).at(address) {
            Some((path, offset)) => {
                let bytes = call.number(1).unwrap_or(0);
                self.advise(task, at_ns, path, (offset, bytes), hint, true);
            }
            // Allocators release memory that is not mapped to a file.
            None if hint == AdviceType::DontNeed || hint == AdviceType::Other => {}
            None => self.count_left_out(kind::UNPLACED),
        }
    }

    /// Adds the record of an advice.
    fn advise(
        &mut self,
        task: u32,
        at_ns: u64,
        path: String,
        (offset, bytes): (u64, u64),
        hint: AdviceType,
        is_of_mapping: bool,
    ) {
        let Some(end) = offset.checked_add(bytes).or(Some(offset)) else { return };
        if offset > OFFSET_MAX {
            return;
        }
        // A length of 0 means "up to the end", and so does a length beyond any file.
        let bytes = if end > OFFSET_MAX || end == offset { 0 } else { bytes };
        let (file, thread) = (self.file(path), self.thread(task));
        let advice = AdviceGiven { at_ns, thread, file, offset, bytes, hint, is_of_mapping };
        self.records.push((at_ns, Record::Advice(advice)));
    }

    /// Processes the requests of `io_submit`: accepted requests are pending until they end.
    fn submit(&mut self, task: u32, begin_ns: u64, call: &Call<'_>) {
        let Some(taken) = call.success_value() else { return };
        let Some((requests, _)) = syntax::structures(call.argument(2)) else {
            return self.leave_out_many(kind::HIDDEN, 1);
        };
        self.leave_out_many(kind::HIDDEN, u64::from((requests.len() as u64) < taken));
        for request in requests.iter().take(usize::try_from(taken).unwrap_or(usize::MAX)) {
            let submitted = self.submitted(task, begin_ns, request);
            let data = field(request, "aio_data").unwrap_or("0");
            self.pending.add(call.argument(0), data, submitted);
        }
    }

    /// Parses one request of `io_submit`. Returns `None` and counts it as left out if it is not a
    /// read of a file.
    fn submitted(&mut self, task: u32, begin_ns: u64, request: &[String]) -> Option<Submitted> {
        let operation = field(request, "aio_lio_opcode")?;
        if !operation.starts_with("IOCB_CMD_PREAD") {
            self.count_left_out(&format!("io_submit of {operation}"));
            return None;
        }
        let (descriptor, held) = self.open_file(task, field(request, "aio_fildes")?)?;
        let path = held.path.clone();
        if !is_file(&path) {
            self.count_left_out(kind::NO_FILE);
            return None;
        }
        // A vectored request shows only its number of buffers. Its completion shows the number of
        // bytes.
        let asked = match operation {
            "IOCB_CMD_PREAD" => field(request, "aio_nbytes").and_then(syntax::number),
            _ => None,
        };
        let offset = field(request, "aio_offset").and_then(syntax::number)?;
        let asked_bytes = asked.unwrap_or(0);
        Some(Submitted { begin_ns, task, descriptor, path, offset, asked_bytes })
    }

    /// Processes the completions of `io_getevents`.
    fn events(&mut self, end_ns: u64, call: &Call<'_>) -> Option<()> {
        let Some((events, _)) = syntax::structures(call.argument(3)) else { return Some(()) };
        for event in &events {
            let data = field(event, "data").unwrap_or("0");
            let Some(submitted) = self.pending.take(call.argument(0), data) else { continue };
            let result = field(event, "res").unwrap_or_default();
            let result: i64 = result.split(' ').next()?.parse().ok()?;
            let got = u64::try_from(result).unwrap_or(0);
            let outcome = match result {
                ..0 => ReadOutcome::Error(u32::try_from(-result).unwrap_or(0)),
                _ => ReadOutcome::Bytes(got),
            };
            let Submitted { begin_ns, task, descriptor, path, offset, asked_bytes } = submitted;
            let (file, thread) = (self.file(path), self.thread(task));
            self.add_read(ReadRecord {
                end_ns: end_ns.max(begin_ns),
                begin_ns,
                waited_ns: 0,
                thread,
                way: ReadMethod::Aio,
                descriptor: Some(descriptor),
                file,
                offset,
                asked_bytes: asked_bytes.max(got),
                outcome,
            })?;
        }
        Some(())
    }
}

/// Converts a constant of `fadvise64` or `madvise`.
fn hint(constant: &str) -> AdviceType {
    match constant.trim_start_matches("POSIX_FADV_").trim_start_matches("MADV_") {
        "NORMAL" => AdviceType::Normal,
        "RANDOM" => AdviceType::Random,
        "SEQUENTIAL" => AdviceType::Sequential,
        "WILLNEED" | "POPULATE_READ" => AdviceType::WillNeed,
        "DONTNEED" => AdviceType::DontNeed,
        _ => AdviceType::Other,
    }
}
