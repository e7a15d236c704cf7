//! Effects of system calls on descriptors, and reads through them.

use std::cell::RefCell;
use std::rc::Rc;

use readpath_trace::recording::{
    FileMapped, OpenRecord, ReadMethod, ReadOutcome, ReadRecord, Record,
};

use super::super::event::{Inode, SystemCall};
use super::super::maps::{Mapping, UNKNOWN};
use super::super::names::{FileNames, NamedFile};
use super::super::tables::{DescriptorTarget, OpenFileState, SharedOpenFile};
use super::{InCall, PAGE_BYTES, TaskTracker};

/// Open flags. The access mode has the same values on x86-64 and arm64.
const ACCESS_MASK: u64 = libc::O_ACCMODE as u64;
pub(super) const DIRECT: u64 = libc::O_DIRECT as u64;

impl<N: FileNames> TaskTracker<N> {
    /// Reads the descriptors and mappings of a process that ran before the recording.
    pub(in crate::capture) fn add_existing_files(&mut self, process: u32, descriptors: &[u64]) {
        let Some(table) = self.tasks.values().find(|task| task.process == process) else { return };
        let table = table.table;
        for (address, mapping, named) in self.names.mappings(process) {
            let file = self.file(mapping.inode, Some(named));
            self.maps.insert(process, address, Mapping { file, ..mapping });
        }
        for &descriptor in descriptors {
            let Some(found) = self.names.open_file(process, descriptor) else { continue };
            self.file(found.inode, Some(found.named));
            let (position, flags) = (Some(found.position), found.flags);
            let file_state = OpenFileState {
                of: DescriptorTarget::File(found.inode),
                position,
                flags,
                ..OpenFileState::default()
            };
            self.tables.set(table, descriptor, Rc::new(RefCell::new(file_state)));
        }
    }

    /// Handles the end of a system call.
    pub(super) fn on_call_end(&mut self, at: u64, number: u32, entered: InCall, result: i64) {
        let Some(task) = self.tasks.get(&number) else { return };
        let (table, process) = (task.table, task.process);
        let [first, second, third, fourth, ..] = entered.arguments;
        // A descriptor has 32 bits. The upper half of the argument is undefined.
        let descriptor = first & 0xffff_ffff;
        let given = u64::try_from(result).ok();
        match entered.call {
            SystemCall::Read | SystemCall::Readv => {
                let (way, asked) = match entered.call {
                    SystemCall::Read => (ReadMethod::Read, Some(third)),
                    _ => (ReadMethod::Readv, None),
                };
                self.on_read_end(at, number, &entered, (way, descriptor), None, asked, result);
            }
            SystemCall::Pread => {
                let asked = Some(third);
                let way = (ReadMethod::Pread, descriptor);
                self.on_read_end(at, number, &entered, way, Some(fourth), asked, result);
            }
            SystemCall::Preadv => {
                // `preadv2` reads at the file position for offset -1.
                let offset = Some(fourth).filter(|offset| *offset != u64::MAX);
                let way = (ReadMethod::Preadv, descriptor);
                self.on_read_end(at, number, &entered, way, offset, None, result);
            }
            SystemCall::Sendfile => {
                let way = (ReadMethod::Copied, second & 0xffff_ffff);
                self.on_read_end(at, number, &entered, way, None, None, result);
            }
            SystemCall::CopyFileRange => {
                let way = (ReadMethod::Copied, descriptor);
                self.on_read_end(at, number, &entered, way, None, None, result);
            }
            SystemCall::Open | SystemCall::OpenAt | SystemCall::OpenAt2 => {
                let Some(opened) = given else { return };
                let flags = match entered.call {
                    SystemCall::Open => second,
                    SystemCall::OpenAt => third,
                    // The flags of `openat2` are in the program's memory. `/proc` is read when they
                    // are needed.
                    _ => 0,
                };
                let file_state = OpenFileState {
                    position: Some(0),
                    flags,
                    opened_ns: entered.begin_ns,
                    ..OpenFileState::default()
                };
                self.tables.set(table, opened, Rc::new(RefCell::new(file_state)));
                self.assign_opened(number);
            }
            SystemCall::IoSubmit => self.on_io_submit_end(at, number, &entered, result),
            SystemCall::IoGetevents => self.on_io_getevents_end(at, number, &entered, result),
            SystemCall::UringEnter => {}
            SystemCall::Close => self.tables.close(table, descriptor),
            SystemCall::Dup | SystemCall::Dup2 => {
                if let Some(copy) = given {
                    let file_state = self.tables.file_state(table, descriptor);
                    self.tables.set(table, copy, file_state);
                }
            }
            SystemCall::Fcntl => {
                let is_copy = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC]
                    .iter()
                    .any(|command| *command as u64 == second & 0xffff_ffff);
                if let Some(copy) = given.filter(|_| is_copy) {
                    let file_state = self.tables.file_state(table, descriptor);
                    self.tables.set(table, copy, file_state);
                }
            }
            SystemCall::Lseek => {
                if given.is_some() {
                    self.tables.file_state(table, descriptor).borrow_mut().position = given;
                }
            }
            SystemCall::Mmap => {
                if let Some(address) = given {
                    self.map(at, number, process, &entered, address);
                }
            }
            SystemCall::Munmap => {
                if result == 0 {
                    self.maps.remove(process, first, page_end(first, second));
                }
            }
            SystemCall::Mremap => {
                if let Some(address) = given {
                    let whole = |bytes| page_end(0, bytes);
                    self.maps.rename(process, (first, whole(second)), (address, whole(third)));
                }
            }
            SystemCall::Mlock => {
                // `mlock2` has its flags in the third argument (MLOCK_ONFAULT). `mlock` has two
                // arguments.
                if result == 0 && third & ON_FAULT == 0 {
                    self.on_populate(at, number, (first, page_end(first, second)));
                }
            }
            SystemCall::Madvise => {
                if result == 0 {
                    if POPULATE.contains(&(third as i32)) {
                        self.on_populate(at, number, (first, page_end(first, second)));
                    }
                    self.madvise(at, number, process, (first, second), third);
                }
            }
            SystemCall::Fadvise | SystemCall::Readahead => {
                if result == 0 {
                    self.fadvise(at, number, &entered, descriptor);
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn on_read_end(
        &mut self,
        at: u64,
        number: u32,
        entered: &InCall,
        (way, descriptor): (ReadMethod, u64),
        offset: Option<u64>,
        asked: Option<u64>,
        result: i64,
    ) {
        let Some(task) = self.tasks.get(&number) else { return };
        // A read of absent pages cannot continue without the device.
        let is_missed = entered.cache.is_none_or(|(inode, page)| {
            task.inserted
                .iter()
                .any(|(of, first, end, _)| *of == inode && (*first..*end).contains(&page))
        });
        let waited_ns = match entered.waited_ns {
            0 if is_missed => entered.device_ns,
            seen => seen,
        };
        let file_state = self.tables.file_state(task.table, descriptor);
        let position = file_state.borrow().position;
        let cached = entered.cache.map(|(inode, _)| inode);
        let Some(file) = self.file_of(at, number, descriptor, &file_state, cached) else { return };
        // `/proc` reports the position of an older descriptor after this read.
        let position = position.or_else(|| entered.cache.map(|(_, page)| page * PAGE_BYTES));
        let Some(begin) = offset.or(position) else { return };
        let outcome = match u64::try_from(result) {
            Ok(bytes) => ReadOutcome::Bytes(bytes),
            Err(_) => ReadOutcome::Error(result.unsigned_abs() as u32),
        };
        let got = u64::try_from(result).unwrap_or(0);
        if offset.is_none() && result >= 0 {
            file_state.borrow_mut().position = Some(begin + got);
        }
        // The program is asked to retry, so this is not a storage error.
        let is_again = [libc::EAGAIN, libc::EINTR].contains(&i32::try_from(-result).unwrap_or(0));
        let (Some(thread), false) = (self.thread(number), is_again) else { return };
        self.put_inserted(at, number);
        let read = ReadRecord {
            end_ns: at,
            begin_ns: entered.begin_ns,
            waited_ns,
            thread,
            way,
            descriptor: Some(descriptor),
            file,
            offset: begin,
            // The lengths of vectors are in the program's memory.
            asked_bytes: asked.unwrap_or(got).max(got),
            outcome,
        };
        self.out.put(at, Record::Read(read));
    }

    /// Returns the number of the descriptor's file in the recording. The page cache's event
    /// identifies the file, otherwise `/proc` does.
    pub(super) fn file_of(
        &mut self,
        at: u64,
        number: u32,
        descriptor: u64,
        file_state: &SharedOpenFile,
        cached: Option<Inode>,
    ) -> Option<u32> {
        let process = self.tasks.get(&number)?.process;
        let mut looked_up = None;
        let of = file_state.borrow().of;
        let known = match of {
            DescriptorTarget::File(inode) => cached.or(Some(inode)),
            _ => cached,
        };
        let is_unknown = of == DescriptorTarget::Unknown;
        if self.has_no_name(known) || (is_unknown && cached.is_none()) {
            let found = self.names.open_file(process, descriptor);
            let mut file_state = file_state.borrow_mut();
            match (&found, cached) {
                _ if !is_unknown => {}
                (Some(file), None) => {
                    file_state.of = DescriptorTarget::File(file.inode);
                    file_state.flags = file.flags;
                    file_state.position.get_or_insert(file.position);
                }
                (None, None) => file_state.of = DescriptorTarget::Nothing,
                _ => {}
            }
            looked_up = found.map(|file| file.named);
        }
        if let Some(inode) = cached {
            file_state.borrow_mut().of = DescriptorTarget::File(inode);
        }
        let DescriptorTarget::File(inode) = file_state.borrow().of else { return None };
        let file = self.file(inode, looked_up.filter(|named: &NamedFile| !named.path.is_empty()));
        self.record_open(at, number, descriptor, file_state, file);
        Some(file)
    }

    /// Records the regular file of an opened descriptor. Files without storage (`/proc`, `/sys`)
    /// are no files of the recording. A later look-up in `/proc` would find the next file with the
    /// same descriptor. Other files without a device and a path remain unknown.
    pub(super) fn on_open(&mut self, number: u32, descriptor: u64, inode: Inode, flags: u64) {
        let of = match self.names.is_without_storage(inode.device) {
            true => DescriptorTarget::Nothing,
            false if inode.device >> 20 == 0 && self.names.file(inode).is_none() => return,
            false => DescriptorTarget::File(inode),
        };
        let Some(task) = self.tasks.get_mut(&number) else { return };
        task.opened = Some((descriptor, of, flags));
        // The event of the call's end may come later, with a new state of the descriptor.
        if task.call.is_none() {
            self.assign_opened(number);
        }
    }

    /// Assigns the file reported by the last open call to its descriptor.
    fn assign_opened(&mut self, number: u32) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        let Some((descriptor, of, flags)) = task.opened.take() else { return };
        let file_state = self.tables.file_state(task.table, descriptor);
        let mut file_state = file_state.borrow_mut();
        (file_state.of, file_state.flags) = (of, flags);
    }

    /// Returns true if neither a record nor the system has a name of this file.
    fn has_no_name(&mut self, inode: Option<Inode>) -> bool {
        inode.is_some_and(|inode| {
            !self.files.contains_key(&inode) && self.names.file(inode).is_none()
        })
    }

    fn record_open(
        &mut self,
        at: u64,
        number: u32,
        descriptor: u64,
        file_state: &SharedOpenFile,
        file: u32,
    ) {
        let mut file_state = file_state.borrow_mut();
        if std::mem::replace(&mut file_state.is_open_recorded, true) {
            return;
        }
        let Some(thread) = self.thread(number) else { return };
        let access = file_state.flags & ACCESS_MASK;
        let open = OpenRecord {
            at_ns: file_state.opened_ns.min(at),
            thread,
            file,
            descriptor,
            is_direct: file_state.flags & DIRECT != 0,
            is_readable: access != libc::O_WRONLY as u64,
            is_writable: access != libc::O_RDONLY as u64,
        };
        self.out.put(at, Record::Open(open));
    }

    /// Returns the file mapped at an address. Its descriptor may be closed by now.
    fn mapped_file(&mut self, process: u32, address: u64) -> Option<(Inode, u32)> {
        let all = self.names.mappings(process);
        let is_it = |(first, mapping, _): &(u64, Mapping, NamedFile)| {
            (*first..mapping.end).contains(&address)
        };
        let (_, mapping, named) = all.into_iter().find(is_it)?;
        let file = self.file(mapping.inode, Some(named));
        Some((mapping.inode, file))
    }

    fn map(&mut self, at: u64, number: u32, process: u32, entered: &InCall, address: u64) {
        let Some(task) = self.tasks.get(&number) else { return };
        let [_, bytes, _, flags, descriptor, offset] = entered.arguments;
        let end = page_end(address, bytes);
        if is_anonymous(entered) {
            self.maps.remove(process, address, end);
            return;
        }
        let descriptor = descriptor & 0xffff_ffff;
        let file_state = self.tables.file_state(task.table, descriptor);
        let of = match self.file_of(at, number, descriptor, &file_state, None) {
            Some(file) => match file_state.borrow().of {
                DescriptorTarget::File(inode) => Some((inode, file)),
                _ => None,
            },
            None => self.mapped_file(process, address),
        };
        let Some(thread) = self.thread(number) else { return };
        let Some((inode, file)) = of else {
            self.maps.insert(process, address, Mapping { end, inode: UNKNOWN, file: 0, offset });
            return;
        };
        self.maps.insert(process, address, Mapping { end, inode, file, offset });
        let at_ns = entered.begin_ns;
        self.out.put(at, Record::Map(FileMapped { at_ns, thread, file, offset, bytes }));
        if flags & POPULATE_FLAGS != 0 {
            self.on_populate(at, number, (address, end));
        }
    }
}

/// Flags of `mmap` that map all pages at once.
const POPULATE_FLAGS: u64 = (libc::MAP_POPULATE | libc::MAP_LOCKED) as u64;

/// Flag `MLOCK_ONFAULT` of `mlock2`.
const ON_FAULT: u64 = 1;

/// Advice that maps all pages of a range at once.
const POPULATE: [i32; 2] = [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE];

/// Returns the end of an address range, rounded up to whole pages.
fn page_end(address: u64, bytes: u64) -> u64 {
    let end = address.saturating_add(bytes);
    end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(end)
}

fn is_anonymous(entered: &InCall) -> bool {
    entered.arguments[3] & libc::MAP_ANONYMOUS as u64 != 0
}
