//! A file on an NFS server as what carries the machine's requests.
//!
//! A request of the machine is one READ. It is sent by the `exchange` that
//! follows `submit`, or by the next sleep, together with all others, before any
//! answer is awaited. Its data goes straight to its memory: which replies may write there is
//! rule 6 of the `client`. A server that brings less than was asked, without
//! saying that the file ends there, is asked for the rest.
//!
//! A file that was found to be another one since it was opened is one file more, with sectors
//! of its own, of the same storage.

use std::sync::Arc;
use std::time::Duration;

use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::calls::{self, Attributes};
use super::client::{CallId, Traffic};
use super::connection::{EventFd, sleep_on};
use super::error::NfsError;
use super::link::{Ask, ServerLink};
use super::lookup::{ExportPath, RegularFile};
use super::reading::{NfsRead, Opened, Use, Uses};
use super::rpc::{CallError, Procedure};
use super::target::NfsTarget;
use super::url::NfsUrl;
use super::xdr::Garbled;
use crate::backend::BackendError;
use crate::storage::{FILE_SECTORS_LOG2, Sleep, Sleeper, Storage};
use crate::sync::{Mutex, MutexGuard};

/// A file on an NFS server that carries the machine's requests out.
pub struct NfsStorage {
    shared: Arc<NfsShared>,
    caps: DeviceCaps,
    read_bytes: u32,
}

/// What the storage, its sleeper and who asks for attributes all work on.
pub(crate) struct NfsShared {
    /// Held only while bytes are moved, never while somebody sleeps.
    state: Mutex<NfsState>,
    /// Held by the one who asks something: it has the one call that READs leave.
    queue_depth: Mutex<()>,
    place: ExportPath,
    /// Written to, it ends a sleep; none where one thread does everything.
    bell: Option<EventFd>,
}

struct NfsState {
    link: ServerLink,
    uses: Uses,
    read_bytes: u32,
    /// What had come by then was taken in.
    looked: Time,
    /// Readings that are over, kept for their room.
    spare: Vec<NfsRead>,
    completed: Vec<Completion>,
    in_flight: u32,
}

/// How a server's file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// `rsize`: the most bytes of one READ.
    pub read_bytes_max: u32,
    /// Whether calls come from a reserved port, as servers may ask.
    pub is_from_reserved_port: bool,
    /// What went over the wire so far.
    pub traffic: Traffic,
}

/// A poll(2) that finds something comes back sooner than this; one that took longer has slept.
const SLEPT: Time = Time::from_us(5);

/// Sleeps for a storage's answers while other threads hand in requests.
struct NfsSleeper {
    shared: Arc<NfsShared>,
}

impl NfsStorage {
    /// The storage of one file, for one thread.
    pub fn one(target: NfsTarget) -> NfsStorage {
        let found = target.found;
        let mut storage = NfsStorage::over(target, None);
        storage.add(found);
        storage
    }

    /// A storage for several threads, with what one of them sleeps on: of the
    /// files that are [added](NfsStorage::add), beginning with the target's.
    ///
    /// # Errors
    /// The kernel gives no eventfd.
    pub(crate) fn shared(
        target: NfsTarget,
    ) -> Result<(NfsStorage, Arc<dyn Sleeper>), BackendError> {
        let storage = NfsStorage::over(target, Some(bell()?));
        let sleeper = NfsSleeper { shared: Arc::clone(&storage.shared) };
        Ok((storage, Arc::new(sleeper)))
    }

    fn over(target: NfsTarget, bell: Option<EventFd>) -> NfsStorage {
        let caps = target.caps();
        let NfsTarget { link, read_bytes, place, .. } = target;
        let uses = Uses {
            // One more than READs, for a question.
            calls: (0..=caps.depth_max).map(|_| None).collect(),
            files: Vec::new(),
            over: Vec::new(),
            partial: Vec::new(),
            clock: link.clock(),
        };
        let state = NfsState {
            link,
            uses,
            read_bytes,
            looked: Time::ZERO,
            spare: Vec::new(),
            completed: Vec::new(),
            in_flight: 0,
        };
        let (state, queue_depth) = (Mutex::new(state), Mutex::new(()));
        let shared = Arc::new(NfsShared { state, queue_depth, place, bell });
        NfsStorage { shared, caps, read_bytes }
    }

    /// Where the file was found.
    pub fn url(&self) -> &NfsUrl {
        &self.shared.place.url
    }

    /// `rsize`: the most bytes of one READ.
    pub fn read_bytes(&self) -> u32 {
        self.read_bytes
    }

    /// What went over the wire since the file was found.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().link.traffic()
    }

    /// What the server last told of the file: with each READ, or, when that is
    /// longer ago than the option `attributes` allows, now.
    ///
    /// # Errors
    /// It had to be asked, and gives no answer, or the file is gone.
    pub fn attributes(&mut self) -> Result<Attributes, NfsError> {
        let state = self.shared.lock();
        let opened = state.uses.files[0].as_ref().expect("the file that the storage was made for");
        let age = state.uses.clock.now().since(opened.told_at);
        let RegularFile { handle, attributes } = opened.found;
        if age <= self.url().options.attributes_age_max {
            return Ok(attributes);
        }
        drop(state);
        let put = |to: &mut Vec<u8>| calls::put_handle(to, &handle);
        let answer = (&*self.shared).ask(calls::GETATTR, put, calls::attributes_told);
        let fresh = self.shared.place.told(answer)?;
        self.shared.lock().uses.told(0, fresh);
        Ok(fresh)
    }

    /// Who can look for the file again while it is read.
    pub(crate) fn finder(&self) -> Arc<NfsShared> {
        Arc::clone(&self.shared)
    }

    /// Adds a file; gives its first sector, under which it is known until it is removed.
    pub(crate) fn add(&mut self, found: RegularFile) -> u64 {
        let uses = &mut self.shared.lock().uses;
        let at = uses.files.iter().position(Option::is_none).unwrap_or_else(|| {
            uses.files.push(None);
            uses.files.len() - 1
        });
        uses.files[at] = Some(Opened { found, told_at: uses.clock.now() });
        (at as u64) << FILE_SECTORS_LOG2
    }

    /// Removes the file whose first sector is `start`. None of its requests is in flight.
    pub(crate) fn remove(&mut self, start: u64) {
        self.shared.lock().uses.files[(start >> FILE_SECTORS_LOG2) as usize] = None;
    }
}

impl Storage for NfsStorage {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    fn collect(&mut self, completions: &mut Vec<Completion>) -> Result<bool, BackendError> {
        let mut state = self.shared.lock();
        let ended = state.link.clock().now();
        let looked = std::mem::replace(&mut state.looked, ended);
        // They may have come in since the last look.
        state.completed.iter_mut().for_each(|completion| completion.not_before = looked);
        completions.append(&mut state.completed);
        Ok(true)
    }

    /// A write is refused: files on a server are read here, and nothing else.
    unsafe fn submit(&mut self, request: DeviceRequest, memory: &[libc::iovec]) {
        let mut state = self.shared.lock();
        state.in_flight += 1;
        let mut reading = state.spare.pop().unwrap_or_else(NfsRead::empty);
        let sector = request.start & ((1 << FILE_SECTORS_LOG2) - 1);
        reading.id = request.id;
        reading.file = (request.start >> FILE_SECTORS_LOG2) as usize;
        reading.offset = sector * SECTOR_BYTES;
        reading.bytes = u64::from(request.sectors) * SECTOR_BYTES;
        reading.bytes_done = 0;
        reading.memory.extend_from_slice(memory);
        if request.op == Op::Write {
            return state.complete(reading, Outcome::Failed(DeviceError::Refused));
        }
        state.call(reading);
    }

    /// It is completed by the next `exchange`; whatever the server still answers is dropped.
    fn cancel(&mut self, id: RequestId) {
        let mut state = self.shared.lock();
        let is_it = |used: &Option<Use>| matches!(used, Some(Use::Read(read)) if read.id == id);
        let Some(call) = state.uses.calls.iter().position(is_it) else { return };
        if let Some(Use::Read(reading)) = state.uses.calls[call].take() {
            state.link.cancel(CallId(call as u32));
            state.complete(reading, Outcome::Failed(DeviceError::Cancelled));
        }
    }

    fn exchange(
        &mut self,
        sleep: Sleep,
        completions: &mut Vec<Completion>,
    ) -> Result<(), BackendError> {
        let mut state = self.shared.lock();
        let now = state.link.clock().now();
        let deadline = match sleep {
            Sleep::Never => Some(now),
            Sleep::AtMost(span) => Some(now + Time(span.as_nanos() as u64)),
            Sleep::UntilAnswered => None,
        };
        loop {
            let until = if state.completed.is_empty() { deadline } else { Some(now) };
            state.exchange(until);
            let is_late = deadline.is_some_and(|deadline| state.link.clock().now() >= deadline);
            if !state.completed.is_empty() || state.in_flight == 0 || is_late {
                let ended = state.link.clock().now();
                let looked = std::mem::replace(&mut state.looked, ended);
                if sleep == Sleep::Never || ended.since(now) < SLEPT {
                    // They may have lain in the socket since the last look.
                    let unseen = state.completed.iter_mut();
                    unseen.for_each(|completion| completion.not_before = looked);
                }
                completions.append(&mut state.completed);
                return Ok(());
            }
        }
    }
}

impl Sleeper for NfsSleeper {
    fn look(&self) {
        // What hinders it is told to the next who sleeps.
        let _ = self.sleep(Sleep::AtMost(Duration::ZERO));
    }

    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let mut state = self.shared.lock();
        if sleep == Sleep::Never {
            // Perhaps somebody else sleeps here: the connection, the bell and what
            // time brings are theirs.
            state.link.send_only();
            return Ok(false);
        }
        state.hand_over();
        let now = state.link.clock().now();
        let deadline = match sleep {
            _ if !state.completed.is_empty() => Some(now),
            Sleep::AtMost(span) => Some(now + Time(span.as_nanos() as u64)),
            Sleep::Never | Sleep::UntilAnswered => None,
        };
        let wake = [deadline, state.link.next_wake()].into_iter().flatten().min();
        let (socket, to_write) = state.link.demand();
        drop(state);
        let span = wake.map(|wake| Duration::from_nanos(wake.since(now).ns()));
        let bell = self.shared.bell.as_ref().expect("a storage with a sleeper has a bell");
        if sleep_on(socket.as_deref(), to_write, Some(bell), span).is_rung {
            bell.quieten();
        }
        let mut state = self.shared.lock();
        let woken = state.link.clock().now();
        // What lay in the socket ends a sleep at once; what ended this one has just come.
        let has_slept = woken.since(now) >= SLEPT;
        if has_slept {
            state.looked = woken;
        }
        // `collect` makes no system call: it finds what came.
        state.exchange(Some(woken));
        Ok(has_slept)
    }

    fn wake(&self) {
        let bell = self.shared.bell.as_ref().expect("a storage with a sleeper has a bell");
        bell.ring();
    }
}

impl Ask for &NfsShared {
    /// Asks while reads are under way, and another thread perhaps sleeps for their answers.
    fn ask<T: Send + 'static>(
        &mut self,
        procedure: Procedure,
        put: impl FnOnce(&mut Vec<u8>),
        tell: fn(&[u8]) -> Result<T, Garbled>,
    ) -> Result<T, CallError> {
        let _asking = self.queue_depth.lock().expect("no thread panics while it asks");
        // Rung by whoever takes the answer in: its bytes wake only one of two sleepers.
        let answered = bell().map_err(|_| CallError::NoBell)?;
        let answered = Arc::new((answered, Mutex::new(None)));
        let theirs = Arc::clone(&answered);
        let hear = move |results: Result<&[u8], CallError>| {
            let answer = match results {
                Ok(results) => Ok(tell(results)?),
                Err(error) => Err(error),
            };
            *theirs.1.lock().expect("nothing panics under this lock") = Some(answer);
            theirs.0.ring();
            Ok(())
        };
        let mut state = self.lock();
        let call = state.link.call(procedure, 0, put);
        state.uses.calls[call.0 as usize] = Some(Use::Question(Box::new(hear)));
        loop {
            let now = state.link.clock().now();
            let (before, _) = state.link.demand();
            state.exchange(Some(now));
            let (socket, to_write) = state.link.demand();
            let wake = state.link.next_wake();
            let is_other = before.as_ref().map(Arc::as_ptr) != socket.as_ref().map(Arc::as_ptr);
            let is_bell_due = !state.completed.is_empty() || is_other || to_write;
            drop(state);
            if is_bell_due {
                // Who leads sleeps for something else than there is now.
                self.bell.iter().for_each(EventFd::ring);
            }
            if let Some(answer) = answered.1.lock().expect("nothing panics under this lock").take()
            {
                return answer;
            }
            let span = wake.map(|wake| Duration::from_nanos(wake.since(now).ns()));
            sleep_on(socket.as_deref(), to_write, Some(&answered.0), span);
            state = self.lock();
        }
    }
}

/// Something to sleep on that another thread can ring.
fn bell() -> Result<EventFd, BackendError> {
    EventFd::new().map_err(|errno| BackendError::Exchange { errno: errno.raw_os_error() })
}

impl NfsShared {
    /// How the file is read now.
    pub(crate) fn connection(&self) -> Connection {
        let state = self.lock();
        Connection {
            read_bytes_max: state.read_bytes,
            is_from_reserved_port: state.link.is_reserved(),
            traffic: state.link.traffic(),
        }
    }

    /// Looks for the file anew, by its name, beside the reads that are under way.
    pub(crate) fn find_again(&self) -> Result<RegularFile, NfsError> {
        self.place.find(&mut &*self)
    }

    fn lock(&self) -> MutexGuard<'_, NfsState> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }
}

impl NfsState {
    /// Sends, and takes in what comes until `deadline` or until a call has ended.
    fn exchange(&mut self, deadline: Option<Time>) {
        self.link.exchange(deadline, &mut self.uses);
        self.settle();
    }

    /// Sends what is to be sent, and no more.
    fn hand_over(&mut self) {
        self.link.hand_over(&mut self.uses);
        self.settle();
    }

    /// Completes what is over, and asks for what is missing.
    fn settle(&mut self) {
        let mut over = std::mem::take(&mut self.uses.over);
        over.drain(..).for_each(|(reading, outcome)| self.complete(reading, outcome));
        self.uses.over = over;
        while let Some(reading) = self.uses.partial.pop() {
            self.call(reading);
        }
    }

    /// Asks for what is missing of a request, as far as one READ goes.
    fn call(&mut self, mut reading: NfsRead) {
        let left = reading.bytes - reading.bytes_done;
        reading.bytes_asked = left.min(u64::from(self.read_bytes)) as u32;
        let opened = self.uses.files[reading.file].as_ref().expect("its file is there");
        let (handle, offset) = (opened.found.handle, reading.offset + reading.bytes_done);
        let put = |to: &mut Vec<u8>| calls::put_read(to, &handle, offset, reading.bytes_asked);
        let call = self.link.call(calls::READ, reading.bytes_asked, put);
        self.uses.calls[call.0 as usize] = Some(Use::Read(reading));
    }

    fn complete(&mut self, mut reading: NfsRead, outcome: Outcome) {
        let at = self.link.clock().now();
        self.completed.push(Completion::at(at, reading.id, outcome));
        self.in_flight -= 1;
        reading.memory.clear();
        self.spare.push(reading);
    }
}

impl Drop for NfsStorage {
    fn drop(&mut self) {
        // Nobody but this storage writes to the memory of its requests, so it
        // is let go of by forgetting it: a sleeper may outlive the storage.
        let mut state = self.shared.lock();
        for call in 0..state.uses.calls.len() {
            if state.uses.calls[call].take().is_some() {
                state.link.cancel(CallId(call as u32));
            }
        }
        state.in_flight = 0;
    }
}
