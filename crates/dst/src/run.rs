//! Execution of a scenario: each thread performs its actions, and the model checks each read.
//!
//! A *guard* keeps a cached page in its memory while it lives. *Coherence* is the time at which the
//! path checks a file for changes: with `WhenOpened`, only at openings and on request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, BufRead, IoSliceMut, Seek, SeekFrom};
use std::rc::Rc;
use std::sync::Arc;

use readpath_core::readahead::Advice::{self, DontNeed, Normal, Random, Sequential, WillNeed};
use readpath_core::unit::PAGE_BYTES;

use super::disk::Disk;
use super::model::{Guard, Model, ReadStart, VisibleState};
use super::scenario::{Action, Scenario, ScenarioRead};
use super::world::{Report, ScheduleRates, TaskId, World, world};
use super::{build_path, paged};
use crate::file::File;
use crate::page_cache::own::LazyEngine;
use crate::path::ReadPath;
use crate::read_error::ReadError;
use crate::target::Coherence;

mod concurrent_reads;

impl Scenario {
    /// Runs the scenario to its end or to the first failure.
    pub fn run(&self) -> Report {
        let settings = &self.settings;
        let schedule_rates = ScheduleRates {
            switch_one_in: settings.switch_one_in,
            freeze_one_in: settings.freeze_one_in,
            refuse_thread_one_in: settings.refuse_thread_one_in,
        };
        let disk = Disk::new(&self.files, self.faults.clone());
        let scenario = Rc::new(self.clone());
        if let Some(paged) = &self.settings.paged {
            let paged = paged.clone();
            return World::run(
                self.seed,
                schedule_rates,
                disk,
                Box::new(move || paged::run_paged_scenario(&scenario, &paged)),
            );
        }
        World::run(self.seed, schedule_rates, disk, Box::new(move || run_read_scenario(&scenario)))
    }
}

/// Advice by the number in an action.
const ADVICE: [Advice; 5] = [Normal, Sequential, Random, WillNeed, DontNeed];

/// State shared by the threads of a run.
struct RunShared {
    /// The scenario of the run.
    scenario: Rc<Scenario>,
    /// The path that all threads read through.
    path: ReadPath,
    /// The file, if it is on a server.
    server_file: Option<File>,
    /// Checks the results of the reads.
    model: RefCell<Model>,
    /// Present number of guards.
    guards_now: Cell<u64>,
    /// Number of guards after each change. A call notes the length at its start, and later finds
    /// the largest number meanwhile.
    guard_counts: RefCell<Vec<u64>>,
    /// Guards that outlive their threads.
    surviving_guards: RefCell<Vec<Guard>>,
}

/// Ends the run as failed if the check has failed; the text of its error describes the failure.
fn assert_ok(result: Result<(), String>) {
    if let Err(failure) = result {
        world().expect("a task runs in its world").fail_run(failure);
    }
}

/// Returns the library's error in an error of the standard library; `None` if there is none.
fn read_error_of(error: &io::Error) -> Option<&ReadError> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>())
}

/// Main thread: builds the path, starts the other threads, and checks for leaks. Ends early if the
/// server's file could not be opened for an expected reason.
fn run_read_scenario(scenario: &Rc<Scenario>) {
    let Some((path, server_file)) = build_path::build(scenario) else { return };
    let shared = Rc::new(RunShared {
        scenario: Rc::clone(scenario),
        path,
        server_file,
        model: RefCell::new(Model::new(scenario)),
        guards_now: Cell::new(0),
        guard_counts: RefCell::default(),
        surviving_guards: RefCell::default(),
    });
    // For the report of a run that hangs.
    let world = world().expect("this is a task");
    let engine = Arc::downgrade(shared.path.engine());
    let describe_in_flight =
        move || engine.upgrade().map_or_else(String::new, |engine| engine.describe_in_flight());
    *world.describe_engine.borrow_mut() = Some(Box::new(describe_in_flight));
    // The threads of the scenario run to their end.
    let threads: Vec<TaskId> = (0..scenario.threads.len())
        .map(|thread_index| {
            let shared = Rc::clone(&shared);
            world.spawn(Box::new(move || Thread::new(shared).run(thread_index)))
        })
        .collect();
    threads.into_iter().for_each(|thread| world.join(thread));
    let Ok(RunShared { path, server_file, surviving_guards, .. }) =
        Rc::try_unwrap(shared).map_err(drop)
    else {
        world.fail_run("a thread has not let go of what all share".to_owned());
    };
    // The engine has no work left and no leak, unless the simulated kernel has died: it then keeps
    // the requests in flight (`dies_after`). Guards outlive the path.
    let surviving_guards = surviving_guards.into_inner();
    if scenario.faults.dies_after == 0 {
        let engine: &LazyEngine = path.engine();
        // Other guards have a copy of their page, or no bytes.
        let is_pinned = |guard: &&Guard| guard.page_guard.has_pinned_page();
        assert_ok(engine.check_leaks(surviving_guards.iter().filter(is_pinned).count() as u32));
    }
    drop((path, server_file));
    surviving_guards.into_iter().for_each(Guard::drop_and_check);
}

/// An open file of a thread.
struct SimulatedHandle {
    /// The handle under test.
    file: File,
    /// State at the opening: a read shows this state or a later one.
    visible_state: VisibleState,
}

/// One thread of a run.
struct Thread {
    /// State that the threads of the run share.
    shared: Rc<RunShared>,
    /// The world that runs the thread as a task.
    world: Rc<World>,
    /// By file index; `None` before its first use.
    handles: Vec<Option<SimulatedHandle>>,
    /// Guards of the thread, oldest first.
    guards: VecDeque<Guard>,
}

impl Thread {
    /// Creates a thread that has opened no file. The calling task runs it.
    fn new(shared: Rc<RunShared>) -> Thread {
        let handles = shared.scenario.files.iter().map(|_| None).collect();
        let world = world().expect("a thread is a task");
        Thread { shared, world, handles, guards: VecDeque::new() }
    }

    /// Performs the actions of the thread with this index, and drops its files and guards.
    fn run(mut self, thread_index: usize) {
        let scenario = Rc::clone(&self.shared.scenario);
        for (action_index, action) in scenario.threads[thread_index].iter().enumerate() {
            self.world.set_action(action_index + 1);
            self.perform(action);
        }
        // A thread drops its files before or after its guards, in turn. One guard of three stays to
        // the end of the run.
        if thread_index.is_multiple_of(2) {
            self.handles.clear();
        }
        let (mut surviving_guards, guards) =
            (self.shared.surviving_guards.borrow_mut(), std::mem::take(&mut self.guards));
        let (surviving, dropped): (Vec<_>, Vec<_>) =
            guards.into_iter().enumerate().partition(|&(index, _)| index % 3 == 2);
        surviving_guards.extend(surviving.into_iter().map(|(_, guard)| guard));
        drop(surviving_guards);
        dropped.into_iter().for_each(|(_, guard)| self.drop_guard(guard));
    }

    /// Returns the file with this index, opened on first use, and the state that it may show.
    fn file(&mut self, file_index: usize) -> (File, VisibleState) {
        if self.handles[file_index].is_none() {
            self.open_file(file_index);
        }
        let handle = self.handles[file_index].as_ref().expect("opened above");
        (handle.file.clone(), handle.visible_state)
    }

    /// Opens the file with this index, and replaces the thread's handle of it. A file of this
    /// machine always opens; a failure would be a fault of the library.
    fn open_file(&mut self, file_index: usize) {
        let current = self.current_state(file_index);
        let (earliest, file) = match &self.shared.server_file {
            // The state of the first look-up.
            Some(file) => (build_path::any_earlier_state(current), file.reopen()),
            None => match self.shared.path.open(file_index.to_string()) {
                Ok(file) => (current, file),
                Err(error) => panic!("{error}"),
            },
        };
        let visible_state = self.state_of_open_file(earliest, &file);
        self.handles[file_index] = Some(SimulatedHandle { file, visible_state });
    }

    /// Returns the state of `file` at its opening. Fails the run if it is older than `earliest`. A
    /// replaced file has another inode, whose changes are counted from 0, so that the two are not
    /// compared.
    fn state_of_open_file(&self, earliest: VisibleState, file: &File) -> VisibleState {
        let identity = file.handle().file.identity;
        // A simulated file has the number of its changes in its time stamp, as nanoseconds.
        let (_, change_count) = identity.modified;
        let (inode, opened_at_change) = (identity.inode as u32, change_count as u64);
        if inode == earliest.inode && opened_at_change < earliest.opened_at_change {
            self.world.fail_run(format!("{identity:?} was found after {earliest:?}"));
        }
        VisibleState { inode, opened_at_change, bytes: identity.bytes }
    }

    /// Current state of the file with this index on the disk.
    fn current_state(&self, file_index: usize) -> VisibleState {
        let disk = self.world.disk.borrow();
        let inode = disk.names[file_index];
        let file = &disk.inodes[inode as usize];
        VisibleState { inode, opened_at_change: file.changes, bytes: file.bytes }
    }

    /// Returns the state of the file and of its storage at the start of a read of `range`.
    fn start_read(&self, visible_state: VisibleState, range: ScenarioRead) -> ReadStart {
        self.shared.model.borrow().start_read(&self.world.disk.borrow(), visible_state, range)
    }

    /// Checks the bytes of a read, and adds their number to the hash of the run.
    fn check_bytes(&self, read_start: &ReadStart, bytes: &[u8]) {
        let checked =
            self.shared.model.borrow().check_bytes(&self.world.disk.borrow(), read_start, bytes);
        self.world.add_to_hash(bytes.len() as u64);
        assert_ok(checked);
    }

    /// Checks the number of bytes of a read.
    fn check_length(&self, read_start: &ReadStart, bytes: usize) {
        let model = self.shared.model.borrow();
        assert_ok(model.check_length(&self.world.disk.borrow(), read_start, bytes as u64));
    }

    /// Checks that a read may fail with this error.
    fn check_read_error(&self, read_start: &ReadStart, error: ReadError) {
        let model = self.shared.model.borrow();
        let mark_of_an_error = 0xe44;
        self.world.add_to_hash(mark_of_an_error);
        assert_ok(model.check_error(&self.world.disk.borrow(), read_start, error));
    }

    /// Checks that a read may fail with this error, which must be one of the library.
    fn check_io_error(&self, read_start: &ReadStart, error: &io::Error) {
        match read_error_of(error) {
            Some(&inner) => self.check_read_error(read_start, inner),
            None => self.world.fail_run(format!("{error} of {read_start:?}")),
        }
    }

    /// Checks the bytes of a read, or its error.
    fn check_result(&self, read_start: &ReadStart, result: io::Result<&[u8]>) {
        match result {
            Ok(bytes) => self.check_bytes(read_start, bytes),
            Err(error) => self.check_io_error(read_start, &error),
        }
    }

    /// Performs one action of the thread and checks its results against the model of the files.
    fn perform(&mut self, action: &Action) {
        let disk = &self.world.disk;
        match *action {
            Action::Read(range) => self.read(range),
            Action::ReadVectored(range) => self.read_vectored(range),
            Action::Hold(file_index, offset) => self.take_guard(file_index, offset),
            Action::LetGo => {
                if let Some(guard) = self.guards.pop_front() {
                    self.drop_guard(guard);
                }
            }
            Action::Prefetch((file_index, offset, bytes)) => {
                let (file, _) = self.file(file_index);
                file.prefetch(offset, bytes);
            }
            Action::Advise(file_index, advice_index) => {
                let (file, _) = self.file(file_index);
                file.advise(ADVICE[usize::from(advice_index)]);
            }
            Action::Invalidate(range) => {
                let (file_index, offset, bytes) = range;
                let (file, visible_state) = self.file(file_index);
                let read_start = self.start_read(visible_state, range);
                file.invalidate(offset, bytes);
                // From now on, a read must not show an older state of these pages.
                self.shared.model.borrow_mut().record_drop(&read_start);
            }
            Action::Reopen(file_index) => self.reopen(file_index),
            Action::Open(file_index) => self.open_file(file_index),
            Action::Revalidate(file_index) => self.revalidate(file_index),
            Action::Stream(range, line_bytes) => self.read_stream(range, line_bytes),
            Action::Batch(ref ranges, waits, concurrent_read) => {
                self.read_batch(ranges, waits, concurrent_read);
            }
            Action::Futures(ref ranges, polls, countdown) => {
                self.poll_futures(ranges, polls, countdown);
            }
            Action::Stats => self.check_stats(),
            Action::Write(file_index, first_page, pages) => {
                disk.borrow_mut().write(file_index, first_page, pages);
            }
            Action::Resize(file_index, bytes) => disk.borrow_mut().resize(file_index, bytes),
            Action::Replace(file_index, bytes) => disk.borrow_mut().replace(file_index, bytes),
            Action::Pause(pause_us) => self.world.pause(pause_us * 1_000),
            Action::Touch(_) => unreachable!("these threads read files"),
        }
    }

    /// Replaces the handle of a file by another one with its own readahead state. With `WhenOpened`
    /// the new handle shows the same state of the file.
    fn reopen(&mut self, file_index: usize) {
        let (file, visible_state) = self.file(file_index);
        self.handles[file_index] = Some(SimulatedHandle { file: file.reopen(), visible_state });
        if self.shared.model.borrow().coherence != Coherence::WhenOpened {
            // The new handle has the newest state that the first handle has seen.
            let earliest = build_path::any_earlier_state(visible_state);
            let file = &self.handles[file_index].as_ref().expect("opened above").file;
            let visible_state = self.state_of_open_file(earliest, file);
            self.handles[file_index].as_mut().expect("opened above").visible_state = visible_state;
        }
    }

    /// Checks a file for changes, and records the state that the handle shows from then on. If the
    /// check fails because of a fault, the handle stays as it was.
    fn revalidate(&mut self, file_index: usize) {
        let (mut file, visible_state) = self.file(file_index);
        let state_on_disk = self.current_state(file_index);
        let has_changed = match file.revalidate() {
            Ok(has_changed) => has_changed,
            Err(error) => {
                let scenario = &self.shared.scenario;
                return assert_ok(build_path::check_open_error(scenario, &error));
            }
        };
        let visible_state =
            if has_changed { self.state_of_open_file(state_on_disk, &file) } else { visible_state };
        let missed_a_change = visible_state.inode == state_on_disk.inode
            && visible_state.opened_at_change < state_on_disk.opened_at_change;
        // In the other modes, an earlier read may have noticed the change already.
        if missed_a_change && self.shared.model.borrow().coherence == Coherence::WhenOpened {
            self.world.fail_run(format!(
                "{visible_state:?} was not seen to have changed: {state_on_disk:?}"
            ));
        }
        self.handles[file_index] = Some(SimulatedHandle { file, visible_state });
    }

    /// Reads a range into one buffer and checks its bytes or its error.
    fn read(&mut self, range: ScenarioRead) {
        let (file_index, offset, bytes) = range;
        let (file, visible_state) = self.file(file_index);
        let mut buffer = vec![0; bytes as usize];
        let read_start = self.start_read(visible_state, range);
        let result = file.read_at(&mut buffer, offset);
        self.check_result(&read_start, result.map(|count| &buffer[..count]));
    }

    /// Reads a range into three buffers and checks its bytes.
    fn read_vectored(&mut self, range: ScenarioRead) {
        let (file_index, offset, bytes) = range;
        let (file, visible_state) = self.file(file_index);
        let mut buffer = vec![0; bytes as usize];
        let (first_third, rest) = buffer.split_at_mut(bytes as usize / 3);
        let (second_third, last_third) = rest.split_at_mut(rest.len() / 2);
        let read_start = self.start_read(visible_state, range);
        let mut buffers = [first_third, second_third, last_third].map(IoSliceMut::new);
        match file.read_vectored_at(&mut buffers, offset) {
            Ok(count) => self.check_parts(&read_start, &buffer[..count], bytes as usize),
            Err(error) => self.check_io_error(&read_start, &error),
        }
    }

    /// Checks the part of each of the three buffers as a read of its own, and then the total
    /// length. `bytes` has the bytes that were read, at most `requested_bytes`. A short read leaves
    /// the last buffers partly or wholly empty, and an empty part has nothing to check. The parts
    /// are divided as in `read_vectored`.
    fn check_parts(&self, read_start: &ReadStart, bytes: &[u8], requested_bytes: usize) {
        let second = requested_bytes / 3;
        let third = second + (requested_bytes - second) / 2;
        // Byte ranges of the three buffers, of about a third each.
        for (start, end) in [(0, second), (second, third), (third, requested_bytes)] {
            let end = end.min(bytes.len());
            if start < end {
                let part = ReadStart { offset: read_start.offset + start as u64, ..*read_start };
                let part = ReadStart { bytes: (end - start) as u64, ..part };
                self.check_bytes(&part, &bytes[start..end]);
            }
        }
        self.check_length(read_start, bytes.len());
    }

    /// Sets `guards_now` to the number `count` of guards, and appends it to `guard_counts`.
    fn record_guard_count(&self, count: u64) {
        self.shared.guards_now.set(count);
        self.shared.guard_counts.borrow_mut().push(count);
    }

    /// Largest number of guards since the entry `first_count` of `guard_counts`.
    fn guards_max_since(&self, first_count: usize) -> u64 {
        let guard_counts = self.shared.guard_counts.borrow();
        guard_counts[first_count..].iter().copied().max().unwrap_or(0)
    }

    /// Takes a guard on the page of byte `offset`, and checks its bytes or its error. The refusal
    /// of a guard is permitted only if there were more guards than pages for them at some time
    /// meanwhile.
    fn take_guard(&mut self, file_index: usize, offset: u64) {
        let (file, visible_state) = self.file(file_index);
        let bytes = PAGE_BYTES - offset % PAGE_BYTES;
        let read_start = self.start_read(visible_state, (file_index, offset, bytes));
        let first_count = self.shared.guard_counts.borrow().len();
        // The guard counts from before the call: the page may be pinned at any time in it.
        self.record_guard_count(self.shared.guards_now.get() + 1);
        match file.page(offset) {
            Ok(guard) => {
                self.check_bytes(&read_start, &guard);
                // An offset past the end of the file gives an empty guard, which pins no page.
                if guard.is_empty() {
                    self.record_guard_count(self.shared.guards_now.get() - 1);
                } else {
                    let original_bytes = guard.to_vec();
                    self.guards.push_back(Guard { page_guard: guard, original_bytes });
                }
            }
            Err(error) => {
                let guards_max = self.guards_max_since(first_count);
                self.record_guard_count(self.shared.guards_now.get() - 1);
                match read_error_of(&error) {
                    Some(ReadError::TooManyPinned { .. }) => {
                        // All guards at that time, with this one, had pages to pin.
                        if guards_max <= self.shared.scenario.settings.held_pages {
                            self.world
                                .fail_run(format!("refused with {guards_max} guards at the most"));
                        }
                    }
                    _ => self.check_io_error(&read_start, &error),
                }
            }
        }
    }

    /// Drops a guard, and checks that its bytes have not changed.
    fn drop_guard(&self, guard: Guard) {
        guard.drop_and_check();
        self.record_guard_count(self.shared.guards_now.get() - 1);
    }

    /// Like `read_lines`, and counts the page that the reader pins as one guard until the end.
    fn read_stream(&mut self, range: ScenarioRead, line_bytes: u64) {
        self.record_guard_count(self.shared.guards_now.get() + 1);
        self.read_lines(range, line_bytes);
        self.record_guard_count(self.shared.guards_now.get() - 1);
    }

    /// Reads a range through a reader, in lines of `line_bytes` bytes. Checks each page once, when
    /// the reader pins it.
    fn read_lines(&mut self, (file_index, offset, bytes): ScenarioRead, line_bytes: u64) {
        let (file, visible_state) = self.file(file_index);
        let mut reader = file.reader();
        reader.seek(SeekFrom::Start(offset)).unwrap_or_else(|error| panic!("{error}"));
        let mut position = offset;
        while position < offset + bytes {
            let bytes_to_page_end = PAGE_BYTES - position % PAGE_BYTES;
            let rest_of_page = (file_index, position, bytes_to_page_end);
            let read_start = self.start_read(visible_state, rest_of_page);
            // The last entry is the present number of guards.
            let first_count = self.shared.guard_counts.borrow().len() - 1;
            let filled = reader.fill_buf();
            let guards_max = self.guards_max_since(first_count);
            let part = match filled {
                // No bytes mean the end of the file, and not that the rest can't be read.
                Ok([]) => {
                    self.check_bytes(&read_start, &[]);
                    break;
                }
                Ok(part) => part,
                Err(error) => {
                    match read_error_of(&error) {
                        Some(ReadError::TooManyPinned { .. })
                            if guards_max > self.shared.scenario.settings.held_pages => {}
                        _ => self.check_io_error(&read_start, &error),
                    }
                    return;
                }
            };
            let consumed_bytes = (part.len() as u64).min(line_bytes);
            // The rest of a page was pinned earlier, and may be older than the start of this read.
            // It is not checked again.
            let is_new_page = position == offset || position.is_multiple_of(PAGE_BYTES);
            if is_new_page {
                let answered_read = self.shared.model.borrow().answered_read(
                    &self.world.disk.borrow(),
                    read_start,
                    part.len() as u64,
                );
                self.check_bytes(&answered_read, part);
            }
            reader.consume(consumed_bytes as usize);
            position += consumed_bytes;
        }
    }

    /// Checks that the statistics of the path are within its limits: the memory, and the queue
    /// depth of the storage.
    fn check_stats(&self) {
        let stats = self.shared.path.stats();
        let settings = &self.shared.scenario.settings;
        let memory = settings.memory_pages * PAGE_BYTES;
        if stats.memory_bytes != memory
            || stats.used_memory_bytes > memory
            || stats.depth_max > settings.depth
            || stats.in_flight > settings.depth
        {
            self.world.fail_run(format!("{settings:?}: {stats:?}"));
        }
    }
}
