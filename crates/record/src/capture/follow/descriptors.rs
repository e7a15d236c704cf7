//! Effects of system calls on descriptors, and reads through them.
//!
//! A `task` is the kernel's number of a thread. Times are nanoseconds since the start of the
//! recording. A *queued* record is written once no earlier record can follow. `names` looks files
//! up in the reports of opens and in `/proc`.

use std::cell::RefCell;
use std::rc::Rc;

use readpath_trace::recording::{
    FileMapped, OpenRecord, ReadMethod, ReadOutcome, ReadRecord, Record,
};

use super::super::device_number::is_without_block_device;
use super::super::event::{Inode, SystemCall};
use super::super::maps::{Mapping, UNKNOWN};
use super::super::names::{FileNames, NamedFile};
use super::super::tables::{DescriptorTableId, DescriptorTarget, OpenFileState, SharedOpenFile};
use super::{ActiveCall, PAGE_BYTES, RecordedTask, TaskTracker};

/// Bits of the access mode in the open flags, with the same values on x86-64 and arm64.
const ACCESS_MASK: u64 = libc::O_ACCMODE as u64;

/// Flag of direct I/O in the open flags.
pub(super) const DIRECT: u64 = libc::O_DIRECT as u64;

/// Arguments of a system call that reads a file.
#[derive(Clone, Copy, Debug)]
struct ReadCall {
    /// Method of the read, for its record.
    method: ReadMethod,
    /// Descriptor of the file that is read.
    descriptor: u64,
    /// `None` for a read at the file position, and for an offset in the program's memory.
    offset: Option<u64>,
    /// True if the call has a pointer to its offset. It then leaves the file position as it is.
    has_pointed_offset: bool,
    /// `None` for vectors, whose lengths are in the program's memory, and for copies, whose length
    /// is often only a maximum.
    requested_bytes: Option<u64>,
}

impl ReadCall {
    /// Returns the arguments of a call, by its manual page; `None` for a call that reads nothing.
    fn from_call(call: &ActiveCall) -> Option<ReadCall> {
        let [first, second, third, fourth, ..] = call.arguments;
        let (method, descriptor, offset, requested_bytes) = match call.system_call {
            SystemCall::Read => (ReadMethod::Read, first, None, Some(third)),
            SystemCall::Readv => (ReadMethod::Readv, first, None, None),
            SystemCall::Pread => (ReadMethod::Pread, first, Some(fourth), Some(third)),
            // `preadv2` reads at the file position for offset -1.
            SystemCall::Preadv => {
                (ReadMethod::Preadv, first, Some(fourth).filter(|offset| *offset != u64::MAX), None)
            }
            SystemCall::Sendfile => (ReadMethod::Copied, second, None, None),
            SystemCall::CopyFileRange | SystemCall::Splice => {
                (ReadMethod::Copied, first, None, None)
            }
            _ => return None,
        };
        let has_pointed_offset = match call.system_call {
            SystemCall::Sendfile => third != 0,
            SystemCall::CopyFileRange | SystemCall::Splice => second != 0,
            _ => false,
        };
        let descriptor = descriptor_in(descriptor);
        Some(ReadCall { method, descriptor, offset, has_pointed_offset, requested_bytes })
    }
}

/// Returns the descriptor in an argument. It has 32 bits; the upper half is undefined.
fn descriptor_in(argument: u64) -> u64 {
    argument & 0xffff_ffff
}

impl<N: FileNames> TaskTracker<N> {
    /// Adds the files of the descriptors and mappings of a process that ran before the recording,
    /// as `/proc` reports them. A process without a recorded task has no effect.
    pub(in crate::capture) fn add_existing_files(&mut self, process: u32, descriptors: &[u64]) {
        let Some(table) = self.tasks.values().find(|task| task.process == process) else { return };
        let table = table.table;
        // Before the first event of the process, the time is the start of the recording. These
        // files come first: their lengths are known.
        self.record_executables(0, process);
        for (address, mapping, named) in self.names.mappings(process) {
            let file = self.file_number(mapping.inode, Some(named));
            self.maps.insert(process, address, Mapping { file, ..mapping });
        }
        for &descriptor in descriptors {
            let Some(open_file) = self.names.open_file(process, descriptor) else { continue };
            // Queues the name of a file that no mapping has shown. Its number is not needed.
            self.file_number(open_file.inode, Some(open_file.named));
            let (position, flags) = (Some(open_file.position), open_file.flags);
            let file_state = OpenFileState {
                target: DescriptorTarget::File(open_file.inode),
                position,
                flags,
                ..OpenFileState::default()
            };
            self.tables.set(table, descriptor, Rc::new(RefCell::new(file_state)));
        }
    }

    /// Applies the effect of a system call that `task` ended at `end_ns` with `result`. A read
    /// becomes a read record. Other calls change the descriptors or the mappings of the task, or
    /// record its advice. `result` is a negative error number if the call failed. A task that is
    /// not recorded has no effect.
    pub(super) fn on_call_end(&mut self, end_ns: u64, task: u32, call: ActiveCall, result: i64) {
        if !self.tasks.contains_key(&task) {
            return;
        }
        match call.system_call {
            SystemCall::Read
            | SystemCall::Readv
            | SystemCall::Pread
            | SystemCall::Preadv
            | SystemCall::Sendfile
            | SystemCall::CopyFileRange
            | SystemCall::Splice => {
                if let Some(read) = ReadCall::from_call(&call) {
                    self.on_read_end(end_ns, task, &call, read, result);
                }
            }
            SystemCall::Open
            | SystemCall::OpenAt
            | SystemCall::OpenAt2
            | SystemCall::Close
            | SystemCall::Dup
            | SystemCall::Dup2
            | SystemCall::Fcntl
            | SystemCall::Lseek => self.on_descriptor_call_end(task, &call, result),
            SystemCall::Mmap
            | SystemCall::Munmap
            | SystemCall::Mremap
            | SystemCall::Mlock
            | SystemCall::Madvise => self.on_mapping_call_end(end_ns, task, &call, result),
            SystemCall::Fadvise | SystemCall::Readahead => {
                if result == 0 {
                    self.on_fadvise(end_ns, task, &call, descriptor_in(call.arguments[0]));
                }
            }
            SystemCall::IoSubmit => self.on_io_submit_end(end_ns, task, &call, result),
            SystemCall::IoGetevents => self.on_io_getevents_end(end_ns, task, &call, result),
            // Reads of io_uring end by events of their own.
            SystemCall::UringEnter => {}
        }
    }

    /// Applies the effect of a call that opens, closes or copies a descriptor, or moves its file
    /// position. A negative `result` is an error. A failed call has no effect, except `Close`.
    fn on_descriptor_call_end(&mut self, task: u32, call: &ActiveCall, result: i64) {
        let Some(table) = self.tasks.get(&task).map(|state| state.table) else { return };
        // Each call has its own order of arguments, see its manual page.
        let [first, second, third, ..] = call.arguments;
        let descriptor = descriptor_in(first);
        // The new descriptor or the file position; `None` if the call failed.
        let returned = u64::try_from(result).ok();
        match call.system_call {
            SystemCall::Open | SystemCall::OpenAt | SystemCall::OpenAt2 => {
                let Some(opened) = returned else { return };
                let flags = match call.system_call {
                    SystemCall::Open => second,
                    SystemCall::OpenAt => third,
                    // The flags of `openat2` are in the program's memory. `/proc` is read when they
                    // are needed.
                    _ => 0,
                };
                let file_state = OpenFileState {
                    position: Some(0),
                    flags,
                    opened_ns: call.begin_ns,
                    ..OpenFileState::default()
                };
                self.tables.set(table, opened, Rc::new(RefCell::new(file_state)));
                self.assign_opened(task);
            }
            // Linux releases the descriptor even if `close` returns an error, such as EIO. With
            // EBADF there is none to release.
            SystemCall::Close => self.tables.close(table, descriptor),
            SystemCall::Dup | SystemCall::Dup2 => {
                self.copy_descriptor(table, descriptor, returned);
            }
            SystemCall::Fcntl => {
                // The command has 32 bits.
                let is_copy = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC]
                    .iter()
                    .any(|command| *command as u64 == second & 0xffff_ffff);
                // Other commands copy nothing: `None` then means no copy, as after an error.
                self.copy_descriptor(table, descriptor, returned.filter(|_| is_copy));
            }
            SystemCall::Lseek if returned.is_some() => {
                self.tables.file_state(table, descriptor).borrow_mut().position = returned;
            }
            _ => {}
        }
    }

    /// Makes `copy` a descriptor of the same open file. `None` has no effect: the call has failed
    /// or copies no descriptor.
    fn copy_descriptor(&mut self, table: DescriptorTableId, descriptor: u64, copy: Option<u64>) {
        let Some(copy) = copy else { return };
        let file_state = self.tables.file_state(table, descriptor);
        self.tables.set(table, copy, file_state);
    }

    /// Applies the effect of a call that makes, moves or removes a mapping, or brings its pages in.
    /// `result` is the address of the mapping or 0. A negative one is an error, and the call then
    /// has no effect.
    fn on_mapping_call_end(&mut self, end_ns: u64, task: u32, call: &ActiveCall, result: i64) {
        let Some(process) = self.tasks.get(&task).map(|state| state.process) else { return };
        // Only `Mmap` and `Mremap` return an address. The other calls return 0.
        let Ok(address) = u64::try_from(result) else { return };
        let [first, second, third, ..] = call.arguments;
        match call.system_call {
            SystemCall::Mmap => self.on_mmap(end_ns, task, process, call, address),
            SystemCall::Munmap => {
                self.maps.remove(process, first, page_end(first, second));
            }
            SystemCall::Mremap => {
                let whole_pages = |bytes| page_end(0, bytes);
                let (old_bytes, new_bytes) = (whole_pages(second), whole_pages(third));
                let [_, _, _, flags, ..] = call.arguments;
                self.maps.move_range(process, (first, old_bytes), (address, new_bytes), flags);
            }
            // The third argument of mlock2(2) is its flags. With MLOCK_ONFAULT the call brings in
            // no page. mlock(2) has only two arguments, so the third one is 0 here.
            SystemCall::Mlock if third & ON_FAULT == 0 => {
                self.on_populate(end_ns, task, (first, page_end(first, second)));
            }
            SystemCall::Madvise => {
                if POPULATE_ADVICE.contains(&(third as i32)) {
                    self.on_populate(end_ns, task, (first, page_end(first, second)));
                }
                self.on_madvise(end_ns, task, process, (first, second), third);
            }
            _ => {}
        }
    }

    /// Queues the record of a read that ended at `end_ns`, and advances the file position. A copy
    /// with an offset in the program's memory leaves the position, and keeps its end for the next
    /// copy. `result` is the number of bytes or a negative error number. The read is not recorded
    /// if its file or position is unknown, or if the program has to retry.
    fn on_read_end(
        &mut self,
        end_ns: u64,
        task: u32,
        call: &ActiveCall,
        read: ReadCall,
        result: i64,
    ) {
        let ReadCall { method, descriptor, offset, has_pointed_offset, requested_bytes } = read;
        let Some(state) = self.tasks.get(&task) else { return };
        let waited_ns = wait_of_read(call, state);
        // The file, and the offset at which the read began.
        let file_state = self.tables.file_state(state.table, descriptor);
        let position = file_state.borrow().position;
        let accessed_inode = call.cache.map(|(inode, _)| inode);
        let Some(file) = self.file_number_of(end_ns, task, descriptor, &file_state, accessed_inode)
        else {
            return;
        };
        // `position` was taken before `/proc` was read, which reports the position after this read.
        let first_page = call.cache.map(|(_, page)| page);
        let page_begin = first_page.map(|page| page * PAGE_BYTES);
        let copied_end = file_state.borrow().copied_end;
        let position = match has_pointed_offset {
            // The page cache reports the page. A copy goes on where the last one ended in it.
            true => copied_end.filter(|end| Some(end / PAGE_BYTES) == first_page).or(page_begin),
            false => position.or(page_begin),
        };
        let Some(begin_offset) = offset.or(position) else { return };
        // The result, and the position after it.
        let outcome = match u64::try_from(result) {
            Ok(bytes) => ReadOutcome::Bytes(bytes),
            Err(_) => ReadOutcome::Error(result.unsigned_abs() as u32),
        };
        let read_bytes = u64::try_from(result).unwrap_or(0);
        if has_pointed_offset {
            file_state.borrow_mut().copied_end = Some(begin_offset + read_bytes);
        } else if offset.is_none() && result >= 0 {
            file_state.borrow_mut().position = Some(begin_offset + read_bytes);
        }
        // The program is asked to retry, so this is not a storage error.
        let must_retry = [libc::EAGAIN, libc::EINTR].contains(&i32::try_from(-result).unwrap_or(0));
        let Some(thread) = self.thread_number(task) else { return };
        if must_retry {
            return;
        }
        // The pages that the task added to the cache during the call come before its read.
        self.put_inserted(end_ns, task);
        let read = ReadRecord {
            end_ns,
            begin_ns: call.begin_ns,
            waited_ns,
            thread,
            way: method,
            descriptor: Some(descriptor),
            file,
            offset: begin_offset,
            // The lengths of vectors are in the program's memory.
            asked_bytes: requested_bytes.unwrap_or(read_bytes).max(read_bytes),
            outcome,
        };
        self.out.put(end_ns, Record::Read(read));
    }

    /// Returns the file number of a descriptor in the recording. `accessed_inode` is the inode that
    /// the page cache's event reported for this access at `at_ns`. Without it the state of the
    /// descriptor identifies the file, or else `/proc`. Returns `None` for a descriptor without a
    /// file of the recording. Queues an open record at the first use.
    pub(super) fn file_number_of(
        &mut self,
        at_ns: u64,
        task: u32,
        descriptor: u64,
        file_state: &SharedOpenFile,
        accessed_inode: Option<Inode>,
    ) -> Option<u32> {
        let process = self.tasks.get(&task)?.process;
        let mut proc_name = None;
        let target = file_state.borrow().target;
        let known_inode = match target {
            DescriptorTarget::File(inode) => accessed_inode.or(Some(inode)),
            _ => accessed_inode,
        };
        // `/proc` is read for a file without a name, or for a descriptor without a known file.
        let is_unknown = target == DescriptorTarget::Unknown;
        let must_identify = is_unknown && accessed_inode.is_none();
        if self.has_no_name(known_inode) || must_identify {
            let open_file = self.names.open_file(process, descriptor);
            if must_identify {
                let mut file_state = file_state.borrow_mut();
                if let Some(file) = &open_file {
                    file_state.target = DescriptorTarget::File(file.inode);
                    file_state.flags = file.flags;
                    file_state.position.get_or_insert(file.position);
                } else {
                    file_state.target = DescriptorTarget::NoRecordedFile;
                }
            }
            proc_name = open_file.map(|file| file.named);
        }
        // The event of this access is newer than the state of the descriptor.
        if let Some(inode) = accessed_inode {
            file_state.borrow_mut().target = DescriptorTarget::File(inode);
        }
        let DescriptorTarget::File(inode) = file_state.borrow().target else { return None };
        // An empty path names nothing: another source may have a better one.
        let proc_name = proc_name.filter(|named: &NamedFile| !named.path.is_empty());
        let file = self.file_number(inode, proc_name);
        self.record_open(at_ns, task, descriptor, file_state, file);
        Some(file)
    }

    /// Records that an open call of `task` with these `flags` returned `descriptor` for the regular
    /// file `inode`.
    ///
    /// Files without storage (`/proc`, `/sys`) are no files of the recording. They are recorded as
    /// such now, because a later look-up in `/proc` would find the next file with the same
    /// descriptor. Other files without a device and a path remain unknown.
    pub(super) fn on_open(&mut self, task: u32, descriptor: u64, inode: Inode, flags: u64) {
        let has_no_device = is_without_block_device(inode.device);
        let target = if self.names.is_without_storage(inode.device) {
            DescriptorTarget::NoRecordedFile
        } else if has_no_device && self.names.file(inode).is_none() {
            return;
        } else {
            DescriptorTarget::File(inode)
        };
        let Some(state) = self.tasks.get_mut(&task) else { return };
        state.opened = Some((descriptor, target, flags));
        // A call in progress assigns the file at its end, where its descriptor gets a new state.
        if state.call.is_none() {
            self.assign_opened(task);
        }
    }

    /// Assigns the file reported by the task's last open call to its descriptor. No effect if none
    /// was reported since the last assignment.
    fn assign_opened(&mut self, task: u32) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        let Some((descriptor, target, flags)) = state.opened.take() else { return };
        let file_state = self.tables.file_state(state.table, descriptor);
        let mut file_state = file_state.borrow_mut();
        (file_state.target, file_state.flags) = (target, flags);
    }

    /// Returns true if the inode is known and neither a record nor the system has its name.
    fn has_no_name(&mut self, inode: Option<Inode>) -> bool {
        inode.is_some_and(|inode| {
            self.files.number(inode).is_none() && self.names.file(inode).is_none()
        })
    }

    /// Queues the open record of a descriptor, unless this was done before.
    fn record_open(
        &mut self,
        at_ns: u64,
        task: u32,
        descriptor: u64,
        file_state: &SharedOpenFile,
        file: u32,
    ) {
        let mut file_state = file_state.borrow_mut();
        if std::mem::replace(&mut file_state.is_open_recorded, true) {
            return;
        }
        let Some(thread) = self.thread_number(task) else { return };
        let access = file_state.flags & ACCESS_MASK;
        // `opened_ns` is 0 for a file that was open before the recording.
        let open = OpenRecord {
            at_ns: file_state.opened_ns.min(at_ns),
            thread,
            file,
            descriptor,
            is_direct: file_state.flags & DIRECT != 0,
            is_readable: access != libc::O_WRONLY as u64,
            is_writable: access != libc::O_RDONLY as u64,
        };
        self.out.put(at_ns, Record::Open(open));
    }

    /// Returns inode and file number of the file that `/proc` reports at an address of a process.
    /// `None` without a mapped file there. Its descriptor may be closed by now.
    fn mapped_file(&mut self, process: u32, address: u64) -> Option<(Inode, u32)> {
        let mappings = self.names.mappings(process);
        let contains_address = |(first, mapping, _): &(u64, Mapping, NamedFile)| {
            (*first..mapping.end).contains(&address)
        };
        let (_, mapping, named) = mappings.into_iter().find(contains_address)?;
        let file = self.file_number(mapping.inode, Some(named));
        Some((mapping.inode, file))
    }

    /// Records an `mmap` call that ended at `end_ns` and returned `address`. An anonymous mapping
    /// only removes the file mappings at its addresses. A mapping of unknown file is kept without a
    /// record. Flags that map all pages at once make the whole mapping count as used.
    fn on_mmap(&mut self, end_ns: u64, task: u32, process: u32, call: &ActiveCall, address: u64) {
        let Some(state) = self.tasks.get(&task) else { return };
        let [_, bytes, protection, flags, descriptor, offset] = call.arguments;
        let end = page_end(address, bytes);
        if is_anonymous(call) {
            self.maps.remove(process, address, end);
            return;
        }
        let descriptor = descriptor_in(descriptor);
        let file_state = self.tables.file_state(state.table, descriptor);
        // The program may have closed the descriptor since: the mapping then shows the file.
        let found = match self.file_number_of(end_ns, task, descriptor, &file_state, None) {
            Some(file) => match file_state.borrow().target {
                DescriptorTarget::File(inode) => Some((inode, file)),
                _ => None,
            },
            None => self.mapped_file(process, address),
        };
        let Some(thread) = self.thread_number(task) else { return };
        let Some((inode, file)) = found else {
            // The number is a placeholder until a fault identifies the file.
            self.maps.insert(process, address, Mapping { end, inode: UNKNOWN, file: 0, offset });
            return;
        };
        self.maps.insert(process, address, Mapping { end, inode, file, offset });
        if protection & libc::PROT_EXEC as u64 != 0 {
            self.record_executable(end_ns, file);
        }
        self.out.put(
            end_ns,
            Record::Map(FileMapped { at_ns: call.begin_ns, thread, file, offset, bytes }),
        );
        if flags & POPULATE_FLAGS != 0 {
            self.on_populate(end_ns, task, (address, end));
        }
    }
}

/// Returns the wait in nanoseconds of a call of `state`'s task that has read: the sleep of the task
/// in it. Without a reported sleep, the longest request (`device_ns`) is the wait of a read whose
/// first page was absent. A page that the task itself has inserted was absent. A read without a
/// cache event (direct I/O) counts as one of an absent page.
fn wait_of_read(call: &ActiveCall, state: &RecordedTask) -> u64 {
    let is_missed = call.cache.is_none_or(|(inode, page)| {
        state
            .inserted
            .iter()
            .any(|range| range.inode == inode && (range.first..range.end).contains(&page))
    });
    match call.waited_ns {
        0 if is_missed => call.device_ns,
        slept_ns => slept_ns,
    }
}

/// Flags of `mmap` that map all pages at once.
const POPULATE_FLAGS: u64 = (libc::MAP_POPULATE | libc::MAP_LOCKED) as u64;

/// Flag `MLOCK_ONFAULT` of `mlock2`.
const ON_FAULT: u64 = 1;

/// Advice that maps all pages of a range at once.
const POPULATE_ADVICE: [i32; 2] = [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE];

/// Returns the end of a range of `bytes` bytes from `address`, rounded up to whole pages. An end
/// within the last page of all addresses stays as it is.
fn page_end(address: u64, bytes: u64) -> u64 {
    let end = address.saturating_add(bytes);
    end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(end)
}

/// Returns true for an `mmap` call without a file.
fn is_anonymous(call: &ActiveCall) -> bool {
    call.arguments[3] & libc::MAP_ANONYMOUS as u64 != 0
}
