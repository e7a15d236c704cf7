//! Execution of a scenario: each thread performs its actions, and the model checks each read.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, BufRead, IoSliceMut, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};

use readpath_core::readahead::Advice;
use readpath_core::unit::PAGE_BYTES;

use super::build_path;
use super::disk::Disk;
use super::model::{Begun, Model, VisibleVersions};
use super::paged;
use super::panicking_callers::{PanickingBuffer, TaskWaker};
use super::scenario::{Action, Scenario, ScenarioRead};
use super::world::{Deliberate, Report, TaskId, Turns, World, world};
use crate::engine::LazyEngine;
use crate::file::File;
use crate::future::ReadFuture;
use crate::page_guard::PageGuard;
use crate::path::ReadPath;
use crate::read_error::ReadError;

impl Scenario {
    /// Runs the scenario to its end or to the first failure.
    pub fn run(&self) -> Report {
        let settings = &self.settings;
        let turns = Turns {
            switch_part: settings.switch_part,
            freeze_part: settings.freeze_part,
            refuse_thread_part: settings.refuse_thread_part,
        };
        let disk = Disk::new(&self.files, self.faults.clone());
        let scenario = Rc::new(self.clone());
        if let Some(paged) = &self.settings.paged {
            let paged = paged.clone();
            return World::run(
                self.seed,
                turns,
                disk,
                Box::new(move || paged::main(&scenario, &paged)),
            );
        }
        World::run(self.seed, turns, disk, Box::new(move || main(&scenario)))
    }
}

/// State shared by the threads of a run.
struct RunShared {
    scenario: Rc<Scenario>,
    path: ReadPath,
    /// The file, if it is on a server.
    served: Option<File>,
    model: RefCell<Model>,
    /// Number of guards now, and after each change.
    holding: Cell<u64>,
    holdings: RefCell<Vec<u64>>,
    /// Guards that outlive their threads.
    kept: RefCell<Vec<Guard>>,
}

/// A guard with its original bytes.
struct Guard {
    guard: PageGuard,
    bytes: Vec<u8>,
}

/// Ends the run after a failed check.
fn right(result: Result<(), String>) {
    if let Err(what) = result {
        world().expect("a task runs in its world").wrong(what);
    }
}

/// Main thread: builds the path, starts the other threads, and checks for leaks.
fn main(scenario: &Rc<Scenario>) {
    let Some((path, served)) = build_path::build(scenario) else { return };
    let shared = Rc::new(RunShared {
        scenario: Rc::clone(scenario),
        path,
        served,
        model: RefCell::new(Model::new(scenario)),
        holding: Cell::new(0),
        holdings: RefCell::default(),
        kept: RefCell::default(),
    });
    let world = world().expect("this is a task");
    let engine = Arc::downgrade(shared.path.engine());
    let witness = move || engine.upgrade().map_or_else(String::new, |engine| engine.told());
    *world.witness.borrow_mut() = Some(Box::new(witness));
    let threads: Vec<TaskId> = (0..scenario.threads.len())
        .map(|number| {
            let shared = Rc::clone(&shared);
            world.spawn(Box::new(move || Thread::new(shared).run(number)))
        })
        .collect();
    threads.into_iter().for_each(|thread| world.join(thread));
    let Ok(RunShared { path, served, kept, .. }) = Rc::try_unwrap(shared).map_err(drop) else {
        world.wrong("a thread has not let go of what all share".to_owned());
    };
    let kept = kept.into_inner();
    if scenario.faults.dies_after == 0 {
        let engine: &LazyEngine = path.engine();
        right(engine.settled(kept.iter().filter(|kept| kept.guard.holds()).count() as u32));
    }
    drop((path, served));
    kept.into_iter().for_each(Guard::let_go);
}

/// An open file of a thread.
struct SimulatedHandle {
    file: File,
    seen: VisibleVersions,
}

/// One thread of a run.
struct Thread {
    shared: Rc<RunShared>,
    world: Rc<World>,
    /// By name; `None` before its first use.
    open: Vec<Option<SimulatedHandle>>,
    guards: VecDeque<Guard>,
}

impl Thread {
    fn new(shared: Rc<RunShared>) -> Thread {
        let open = shared.scenario.files.iter().map(|_| None).collect();
        let world = world().expect("a thread is a task");
        Thread { shared, world, open, guards: VecDeque::new() }
    }

    /// Performs the thread's actions, and drops its files and guards.
    fn run(mut self, number: usize) {
        let scenario = Rc::clone(&self.shared.scenario);
        for (nth, action) in scenario.threads[number].iter().enumerate() {
            self.world.does(nth + 1);
            self.act(action);
        }
        // A thread drops its files before or after its guards, in turn. One guard of three stays to
        // the end of the run.
        if number.is_multiple_of(2) {
            self.open.clear();
        }
        let (mut kept, guards) = (self.shared.kept.borrow_mut(), std::mem::take(&mut self.guards));
        let (stay, go): (Vec<_>, Vec<_>) =
            guards.into_iter().enumerate().partition(|(at, _)| at % 3 == 2);
        kept.extend(stay.into_iter().map(|(_, guard)| guard));
        drop(kept);
        go.into_iter().for_each(|(_, guard)| self.let_go(guard));
    }

    /// Returns the file of a name, and opens it on first use.
    fn file(&mut self, name: usize) -> (File, VisibleVersions) {
        if self.open[name].is_none() {
            self.open_anew(name);
        }
        let SimulatedHandle { file, seen } = self.open[name].as_ref().expect("just opened");
        (file.clone(), *seen)
    }

    /// Opens the file of a name.
    fn open_anew(&mut self, name: usize) {
        // The opened state is from some moment after this one, which is the earliest.
        let now = self.seen_now(name);
        let (before, file) = match &self.shared.served {
            // The state of the first look-up.
            Some(file) => (build_path::as_found(now), file.reopen()),
            None => match self.shared.path.open(name.to_string()) {
                Ok(file) => (now, file),
                Err(error) => panic!("{error}"),
            },
        };
        let seen = self.seen(before, &file);
        self.open[name] = Some(SimulatedHandle { file, seen });
    }

    /// State seen by a handle that was opened after `before` was recorded.
    fn seen(&self, before: VisibleVersions, file: &File) -> VisibleVersions {
        let identity = file.handle().file.identity;
        let (inode, since) = (identity.inode as u32, identity.modified.1 as u64);
        if inode == before.inode && since < before.since {
            self.world.wrong(format!("{identity:?} was found after {before:?}"));
        }
        VisibleVersions { inode, since, bytes: identity.bytes }
    }

    /// Current state of the file of a name.
    fn seen_now(&self, name: usize) -> VisibleVersions {
        let disk = self.world.disk.borrow();
        let inode = disk.names[name];
        let file = &disk.inodes[inode as usize];
        VisibleVersions { inode, since: file.changes, bytes: file.bytes }
    }

    fn begin(&self, seen: VisibleVersions, place: ScenarioRead) -> Begun {
        self.shared.model.borrow().begin(&self.world.disk.borrow(), seen, place)
    }

    fn check(&self, begun: &Begun, bytes: &[u8]) {
        let checked = self.shared.model.borrow().check(&self.world.disk.borrow(), begun, bytes);
        self.world.note(bytes.len() as u64);
        right(checked);
    }

    fn check_length(&self, begun: &Begun, count: usize) {
        let model = self.shared.model.borrow();
        right(model.check_length(&self.world.disk.borrow(), begun, count as u64));
    }

    fn check_read_error(&self, begun: &Begun, error: ReadError) {
        let model = self.shared.model.borrow();
        self.world.note(0xe44);
        right(model.check_error(&self.world.disk.borrow(), begun, error));
    }

    fn check_error(&self, begun: &Begun, error: &io::Error) {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>());
        match inner {
            Some(&inner) => self.check_read_error(begun, inner),
            None => self.world.wrong(format!("{error} of {begun:?}")),
        }
    }

    /// Checks the bytes or the error of a read.
    fn judge(&self, begun: &Begun, result: io::Result<&[u8]>) {
        match result {
            Ok(bytes) => self.check(begun, bytes),
            Err(error) => self.check_error(begun, &error),
        }
    }

    /// Performs an action.
    fn act(&mut self, action: &Action) {
        match *action {
            Action::Read(place) => self.read(place),
            Action::ReadVectored(place) => self.read_vectored(place),
            Action::Hold(name, offset) => self.hold(name, offset),
            Action::LetGo => {
                if let Some(guard) = self.guards.pop_front() {
                    self.let_go(guard);
                }
            }
            Action::Prefetch((name, offset, bytes)) => self.file(name).0.prefetch(offset, bytes),
            Action::Advise(name, number) => {
                let all = [
                    Advice::Normal,
                    Advice::Sequential,
                    Advice::Random,
                    Advice::WillNeed,
                    Advice::DontNeed,
                ];
                self.file(name).0.advise(all[usize::from(number)]);
            }
            Action::Invalidate(place) => {
                let (file, seen) = self.file(place.0);
                let begun = self.begin(seen, place);
                file.invalidate(place.1, place.2);
                self.shared.model.borrow_mut().dropped(&begun);
            }
            Action::Reopen(name) => {
                let (file, seen) = self.file(name);
                self.open[name] = Some(SimulatedHandle { file: file.reopen(), seen });
                if self.shared.model.borrow().coherence != crate::path::Coherence::WhenOpened {
                    // It has the newest state that the first handle has seen.
                    let file = &self.open[name].as_ref().expect("just opened").file;
                    let seen = self.seen(VisibleVersions { since: 0, ..seen }, file);
                    self.open[name].as_mut().expect("just opened").seen = seen;
                }
            }
            Action::Open(name) => self.open_anew(name),
            Action::Revalidate(name) => {
                let (mut file, seen) = self.file(name);
                let before = self.seen_now(name);
                let has_changed = match file.revalidate() {
                    Ok(has_changed) => has_changed,
                    Err(error) => return right(build_path::check(&self.shared.scenario, &error)),
                };
                let seen = if has_changed { self.seen(before, &file) } else { seen };
                let is_old = seen.inode == before.inode && seen.since < before.since;
                if is_old
                    && self.shared.model.borrow().coherence == crate::path::Coherence::WhenOpened
                {
                    self.world.wrong(format!("{seen:?} was not seen to have changed: {before:?}"));
                }
                self.open[name] = Some(SimulatedHandle { file, seen });
            }
            Action::Stream(place, line) => self.stream(place, line),
            Action::Batch(ref places, waits, beside) => self.batch(places, waits, beside),
            Action::Futures(ref places, polls, fuse) => self.futures(places, polls, fuse),
            Action::Stats => self.stats(),
            Action::Write(name, first, count) => {
                self.world.disk.borrow_mut().write(name, first, count);
            }
            Action::Resize(name, bytes) => self.world.disk.borrow_mut().resize(name, bytes),
            Action::Replace(name, bytes) => self.world.disk.borrow_mut().replace(name, bytes),
            Action::Pause(us) => self.world.pause(us * 1_000),
            Action::Touch(_) => unreachable!("these threads read files"),
        }
    }

    /// Reads a range and checks its bytes.
    fn read(&mut self, place: ScenarioRead) {
        let (file, seen) = self.file(place.0);
        let mut buffer = vec![0; place.2 as usize];
        let begun = self.begin(seen, place);
        let result = file.read_at(&mut buffer, place.1);
        self.judge(&begun, result.map(|count| &buffer[..count]));
    }

    /// Reads a range into three buffers and checks its bytes.
    fn read_vectored(&mut self, place: ScenarioRead) {
        let (file, seen) = self.file(place.0);
        let mut buffer = vec![0; place.2 as usize];
        let (one, rest) = buffer.split_at_mut(place.2 as usize / 3);
        let (two, three) = rest.split_at_mut(rest.len() / 2);
        let begun = self.begin(seen, place);
        let mut buffers = [IoSliceMut::new(one), IoSliceMut::new(two), IoSliceMut::new(three)];
        match file.read_vectored_at(&mut buffers, place.1) {
            Ok(count) => self.check_parts(&begun, &buffer[..count], place.2 as usize),
            Err(error) => self.check_error(&begun, &error),
        }
    }

    /// Checks each part that went to a separate buffer, and then the total length.
    fn check_parts(&self, begun: &Begun, bytes: &[u8], wanted: usize) {
        let (one, two) = (wanted / 3, wanted / 3 + (wanted - wanted / 3) / 2);
        for (start, end) in [(0, one), (one, two), (two, wanted)] {
            let end = end.min(bytes.len());
            if start < end {
                let part = Begun { offset: begun.offset + start as u64, ..*begun };
                let part = Begun { bytes: (end - start) as u64, ..part };
                self.check(&part, &bytes[start..end]);
            }
        }
        self.check_length(begun, bytes.len());
    }

    /// Records the number of guards.
    fn set_holding(&self, count: u64) {
        self.shared.holding.set(count);
        self.shared.holdings.borrow_mut().push(count);
    }

    /// Takes a guard on a page, and checks its bytes or its error.
    fn hold(&mut self, name: usize, offset: u64) {
        let (file, seen) = self.file(name);
        let bytes = PAGE_BYTES - offset % PAGE_BYTES;
        let begun = self.begin(seen, (name, offset, bytes));
        let first = self.shared.holdings.borrow().len();
        self.set_holding(self.shared.holding.get() + 1);
        match file.page(offset) {
            Ok(guard) => {
                self.check(&begun, &guard);
                if guard.is_empty() {
                    self.set_holding(self.shared.holding.get() - 1);
                } else {
                    let bytes = guard.to_vec();
                    self.guards.push_back(Guard { guard, bytes });
                }
            }
            Err(error) => {
                let holdings = self.shared.holdings.borrow();
                let most = holdings[first..].iter().copied().max().unwrap_or(0);
                drop(holdings);
                self.set_holding(self.shared.holding.get() - 1);
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>());
                match inner {
                    Some(ReadError::HeldMax { .. }) => {
                        if most <= self.shared.scenario.settings.held_pages {
                            self.world.wrong(format!("refused with {most} guards at the most"));
                        }
                    }
                    _ => self.check_error(&begun, &error),
                }
            }
        }
    }

    fn let_go(&self, guard: Guard) {
        guard.let_go();
        self.set_holding(self.shared.holding.get() - 1);
    }

    /// Reads through a reader, which pins a page from its first line to its end.
    fn stream(&mut self, place: ScenarioRead, line: u64) {
        self.set_holding(self.shared.holding.get() + 1);
        self.stream_on(place, line);
        self.set_holding(self.shared.holding.get() - 1);
    }

    /// Reads a range line by line through a reader.
    fn stream_on(&mut self, (name, offset, bytes): ScenarioRead, line: u64) {
        let (file, seen) = self.file(name);
        let mut reader = file.reader();
        reader.seek(SeekFrom::Start(offset)).unwrap_or_else(|error| panic!("{error}"));
        let mut at = offset;
        while at < offset + bytes {
            let begun = self.begin(seen, (name, at, PAGE_BYTES - at % PAGE_BYTES));
            let first = self.shared.holdings.borrow().len() - 1;
            let filled = reader.fill_buf();
            let most = self.shared.holdings.borrow()[first..].iter().copied().max().unwrap_or(0);
            let part = match filled {
                Ok([]) => break,
                Ok(part) => part,
                Err(error) => {
                    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ReadError>());
                    match inner {
                        Some(ReadError::HeldMax { .. })
                            if most > self.shared.scenario.settings.held_pages => {}
                        _ => self.check_error(&begun, &error),
                    }
                    return;
                }
            };
            // The rest of a page may have been pinned some time ago.
            let taken = (part.len() as u64).min(line);
            let is_fresh = at == offset || at.is_multiple_of(PAGE_BYTES);
            if is_fresh {
                self.check(&begun, part);
            }
            reader.consume(taken as usize);
            at += taken;
        }
    }

    /// Reads several ranges in a batch, and checks that shared bytes do not change.
    fn batch(&mut self, places: &[ScenarioRead], waits: usize, beside: Option<ScenarioRead>) {
        let mut batch = self.shared.path.batch();
        let mut begun = Vec::new();
        for (ticket, &place) in places.iter().enumerate() {
            let (file, seen) = self.file(place.0);
            begun.push(self.begin(seen, place));
            match batch.read(&file, place.1, place.2, ticket as u64) {
                Ok(()) => {}
                Err(ReadError::TooLarge { bytes_max, .. }) if place.2 > bytes_max => {}
                Err(error) => self.check_read_error(&begun[ticket], error),
            }
        }
        for _ in 0..waits {
            let read = match batch.wait() {
                Ok(None) => break,
                Ok(Some(read)) => read,
                Err(error) => {
                    self.check_read_error(&begun[0], error);
                    break;
                }
            };
            let begun = &begun[read.ticket() as usize];
            match read.slices() {
                Ok(slices) => {
                    let bytes: Vec<u8> = slices.flatten().copied().collect();
                    self.check(begun, &bytes);
                    if let Some(place) = beside {
                        self.read(place);
                        let again: Vec<u8> =
                            read.slices().into_iter().flatten().flatten().copied().collect();
                        if bytes != again {
                            self.world.wrong(format!("what is lent has changed: {begun:?}"));
                        }
                    }
                }
                Err(error) => self.check_read_error(begun, error),
            }
        }
    }

    /// Polls several reads, with buffers and wakers that may panic.
    fn futures(&mut self, places: &[ScenarioRead], polls: u64, fuse: u64) {
        let bell = Arc::new(TaskWaker { task: self.world.task(), fuse: AtomicU64::new(fuse) });
        let waker = Waker::from(Arc::clone(&bell));
        let mut context = Context::from_waker(&waker);
        let fuse = Rc::new(Cell::new(fuse));
        let mut reads = Vec::new();
        for &place in places {
            let (file, seen) = self.file(place.0);
            let buffer =
                PanickingBuffer { bytes: vec![0; place.2 as usize], fuse: Rc::clone(&fuse) };
            reads.push(Some(Demand {
                place,
                seen,
                begun: None,
                read: file.read_at_async(buffer, place.1),
            }));
        }
        for round in 1.. {
            for read in &mut reads {
                let Some(demand) = read else { continue };
                let begun = match demand.begun {
                    Some(begun) => begun,
                    None => self.begin(demand.seen, demand.place),
                };
                demand.begun = Some(begun);
                let pinned = Pin::new(&mut demand.read);
                let polled = catch_unwind(AssertUnwindSafe(|| pinned.poll_once(&mut context)));
                match polled {
                    Ok(Poll::Pending) => continue,
                    Ok(Poll::Ready((result, buffer))) => match result {
                        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                            // The reactor's thread could not be started.
                            if self.shared.scenario.settings.refuse_thread_part == 0 {
                                self.world.wrong(format!("{error} of {begun:?}"));
                            }
                        }
                        result => self.judge(&begun, result.map(|count| &buffer.bytes[..count])),
                    },
                    Err(payload) if payload.is::<Deliberate>() => {}
                    Err(payload) => resume_unwind(payload),
                }
                *read = None;
            }
            if reads.iter().all(Option::is_none) || round == polls {
                return;
            }
            self.world.park(None);
        }
    }

    /// Checks the statistics of the path.
    fn stats(&self) {
        let stats = self.shared.path.stats();
        let settings = &self.shared.scenario.settings;
        let memory = settings.memory_pages * PAGE_BYTES;
        if stats.memory_bytes != memory
            || stats.used_memory_bytes > memory
            || stats.depth_max > settings.depth
            || stats.in_flight > settings.depth
        {
            self.world.wrong(format!("{settings:?}: {stats:?}"));
        }
    }
}

impl Guard {
    /// Checks that the guard's bytes have not changed.
    fn let_go(self) {
        if *self.guard != self.bytes[..] {
            let world = world().expect("a guard goes in its world");
            world.wrong("what a guard shows has changed".to_owned());
        }
    }
}

/// A future in progress.
struct Demand {
    place: ScenarioRead,
    seen: VisibleVersions,
    /// Set by the first poll.
    begun: Option<Begun>,
    read: ReadFuture<PanickingBuffer>,
}

impl<B: AsMut<[u8]> + Unpin> ReadFuture<B> {
    fn poll_once(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(io::Result<usize>, B)> {
        Future::poll(self, context)
    }
}
