//! A file on an NFS server as the storage of a machine.
//!
//! A request of the machine is one READ. The next `exchange` after `submit`, or the next sleep,
//! sends it together with all others before it waits for an answer. Its data goes directly to its
//! memory. Rule 6 of the `client` says which replies may write there. If a server returns fewer
//! bytes than requested without the end of the file, the rest is requested again.
//!
//! A file that was replaced on the server since it was opened becomes a further file of the same
//! storage, with its own sectors.

use std::sync::Arc;
use std::time::Duration;

use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::calls_in_flight::{NfsRead, Opened, Use, Uses};
use super::client::{CallId, Traffic};
use super::connection::{EventFd, sleep_on};
use super::error::NfsError;
use super::lookup::{ExportPath, RegularFile};
use super::procedures::{self, Attributes};
use super::rpc::{CallError, Procedure};
use super::server_link::{Ask, ServerLink};
use super::target::NfsTarget;
use super::url::NfsUrl;
use super::xdr::Garbled;
use crate::backend::BackendError;
use crate::storage::{FILE_SECTORS_LOG2, Sleep, Sleeper, Storage};
use crate::sync::{Mutex, MutexGuard};

/// A file on an NFS server that executes the machine's requests.
pub struct NfsStorage {
    shared: Arc<NfsShared>,
    caps: DeviceCaps,
    read_bytes: u32,
}

/// State shared by the storage, its sleeper and threads that ask for attributes.
pub(crate) struct NfsShared {
    /// Locked only while bytes are moved, never during a sleep.
    state: Mutex<NfsState>,
    /// Locked by a thread that asks a question: READs leave one call free for it.
    queue_depth: Mutex<()>,
    place: ExportPath,
    /// Eventfd that ends a sleep; `None` for use by one thread.
    bell: Option<EventFd>,
}

/// State of a storage under its lock.
struct NfsState {
    link: ServerLink,
    uses: Uses,
    read_bytes: u32,
    /// Time of the last receive: all bytes that had arrived by then were processed.
    looked: Time,
    /// Ended requests, kept for their capacity.
    spare: Vec<NfsRead>,
    completed: Vec<Completion>,
    in_flight: u32,
}

/// Connection of a server's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// `rsize`: largest READ in bytes.
    pub read_bytes_max: u32,
    /// True if calls come from a reserved port, which servers may require.
    pub is_from_reserved_port: bool,
    /// Traffic so far.
    pub traffic: Traffic,
}

/// Duration of a poll(2) from which it must have slept. A poll(2) that finds events at once is
/// shorter.
const SLEPT: Time = Time::from_us(5);

/// Sleeps for a storage's answers while other threads submit requests.
struct NfsSleeper {
    shared: Arc<NfsShared>,
}

impl NfsStorage {
    /// Creates the storage of one file, for one thread.
    pub fn one(target: NfsTarget) -> NfsStorage {
        let found = target.found;
        let mut storage = NfsStorage::over(target, None);
        storage.add(found);
        storage
    }

    /// Creates a storage for several threads, with a sleeper for one of them. Its files are
    /// [added](NfsStorage::add), the target's first.
    ///
    /// # Errors
    /// The kernel provides no eventfd.
    pub(crate) fn shared(
        target: NfsTarget,
    ) -> Result<(NfsStorage, Arc<dyn Sleeper>), BackendError> {
        let storage = NfsStorage::over(target, Some(bell()?));
        let sleeper = NfsSleeper { shared: Arc::clone(&storage.shared) };
        Ok((storage, Arc::new(sleeper)))
    }

    /// Creates a storage without files.
    fn over(target: NfsTarget, bell: Option<EventFd>) -> NfsStorage {
        let caps = target.caps();
        let NfsTarget { link, read_bytes, place, .. } = target;
        let uses = Uses {
            // One more than the number of READs, for a question.
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

    /// URL of the file.
    pub fn url(&self) -> &NfsUrl {
        &self.shared.place.url
    }

    /// `rsize`: largest READ in bytes.
    pub fn read_bytes(&self) -> u32 {
        self.read_bytes
    }

    /// Traffic since the file was found.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().link.traffic()
    }

    /// Attributes of the file from the latest READ. If they are older than the option `attributes`
    /// permits, they are requested now.
    ///
    /// # Errors
    /// The server had to be asked and does not answer, or the file is gone.
    pub fn attributes(&mut self) -> Result<Attributes, NfsError> {
        let state = self.shared.lock();
        let opened = state.uses.files[0].as_ref().expect("the file that the storage was made for");
        let age = state.uses.clock.now().since(opened.told_at);
        let RegularFile { handle, attributes } = opened.found;
        if age <= self.url().options.attributes_age_max {
            return Ok(attributes);
        }
        drop(state);
        let put = |to: &mut Vec<u8>| procedures::put_handle(to, &handle);
        let answer = (&*self.shared).ask(procedures::GETATTR, put, procedures::attributes_told);
        let fresh = self.shared.place.told(answer)?;
        self.shared.lock().uses.told(0, fresh);
        Ok(fresh)
    }

    /// Returns the state through which the file is looked up again while it is read.
    pub(crate) fn finder(&self) -> Arc<NfsShared> {
        Arc::clone(&self.shared)
    }

    /// Adds a file and returns its first sector, which identifies it until its removal.
    pub(crate) fn add(&mut self, found: RegularFile) -> u64 {
        let uses = &mut self.shared.lock().uses;
        let at = uses.files.iter().position(Option::is_none).unwrap_or_else(|| {
            uses.files.push(None);
            uses.files.len() - 1
        });
        uses.files[at] = Some(Opened { found, told_at: uses.clock.now() });
        (at as u64) << FILE_SECTORS_LOG2
    }

    /// Removes the file whose first sector is `start`. No request of the file may be in flight.
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
        // The completions may have arrived at any time since the last receive.
        state.completed.iter_mut().for_each(|completion| completion.not_before = looked);
        completions.append(&mut state.completed);
        Ok(true)
    }

    /// Rejects writes, because files on a server are only read.
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

    /// Cancels a request: the next `exchange` completes it. A later answer of the server is
    /// dropped.
    fn cancel(&mut self, id: RequestId) {
        let mut state = self.shared.lock();
        let is_it = |used: &Option<Use>| matches!(used, Some(Use::Read(read)) if read.id == id);
        let Some(call) = state.uses.calls.iter().position(is_it) else { return };
        if let Some(Use::Read(reading)) = state.uses.calls[call].take() {
            state.link.cancel(CallId(call as u32));
            state.complete(reading, Outcome::Failed(DeviceError::Cancelled));
        }
    }

    /// Sends, receives and sleeps as one thread, until a request is complete or the time is over.
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
                    // The completions may have been in the socket since the last receive.
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
        // The next sleep reports any error.
        let _ = self.sleep(Sleep::AtMost(Duration::ZERO));
    }

    /// Sleeps without the lock, and then receives the answers.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let mut state = self.shared.lock();
        if sleep == Sleep::Never {
            // Another thread may sleep here. It then handles the connection, the eventfd and the
            // timeouts.
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
        // A sleep ends at once if the socket has bytes. If this one has slept, its bytes have just
        // arrived.
        let has_slept = woken.since(now) >= SLEPT;
        if has_slept {
            state.looked = woken;
        }
        // `collect` makes no system call, so the answers are received here.
        state.exchange(Some(woken));
        Ok(has_slept)
    }

    fn wake(&self) {
        let bell = self.shared.bell.as_ref().expect("a storage with a sleeper has a bell");
        bell.ring();
    }
}

impl Ask for &NfsShared {
    /// Asks while reads are in flight. Another thread may sleep for their answers.
    fn ask<T: Send + 'static>(
        &mut self,
        procedure: Procedure,
        put: impl FnOnce(&mut Vec<u8>),
        tell: fn(&[u8]) -> Result<T, Garbled>,
    ) -> Result<T, CallError> {
        let _asking = self.queue_depth.lock().expect("no thread panics while it asks");
        // Signalled by the thread that processes the answer, because arriving bytes wake only one
        // of two sleepers.
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
                // The leader's sleep waits for events that are out of date.
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

/// Creates an eventfd to sleep on.
fn bell() -> Result<EventFd, BackendError> {
    EventFd::new().map_err(|errno| BackendError::Exchange { errno: errno.raw_os_error() })
}

impl NfsShared {
    /// Describes the connection of the file.
    pub(crate) fn connection(&self) -> Connection {
        let state = self.lock();
        Connection {
            read_bytes_max: state.read_bytes,
            is_from_reserved_port: state.link.is_reserved(),
            traffic: state.link.traffic(),
        }
    }

    /// Looks the file up again by its name, while reads are in flight.
    pub(crate) fn find_again(&self) -> Result<RegularFile, NfsError> {
        self.place.find(&mut &*self)
    }

    fn lock(&self) -> MutexGuard<'_, NfsState> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }
}

impl NfsState {
    /// Sends, and processes received bytes until `deadline` or until a call has ended.
    fn exchange(&mut self, deadline: Option<Time>) {
        self.link.exchange(deadline, &mut self.uses);
        self.settle();
    }

    /// Handles timeouts and sends pending bytes only.
    fn hand_over(&mut self) {
        self.link.hand_over(&mut self.uses);
        self.settle();
    }

    /// Completes ended requests, and requests missing bytes.
    fn settle(&mut self) {
        let mut over = std::mem::take(&mut self.uses.over);
        over.drain(..).for_each(|(reading, outcome)| self.complete(reading, outcome));
        self.uses.over = over;
        while let Some(reading) = self.uses.partial.pop() {
            self.call(reading);
        }
    }

    /// Requests the missing bytes of a request, up to the size of one READ.
    fn call(&mut self, mut reading: NfsRead) {
        let left = reading.bytes - reading.bytes_done;
        reading.bytes_asked = left.min(u64::from(self.read_bytes)) as u32;
        let opened = self.uses.files[reading.file].as_ref().expect("its file is there");
        let (handle, offset) = (opened.found.handle, reading.offset + reading.bytes_done);
        let put = |to: &mut Vec<u8>| procedures::put_read(to, &handle, offset, reading.bytes_asked);
        let call = self.link.call(procedures::READ, reading.bytes_asked, put);
        self.uses.calls[call.0 as usize] = Some(Use::Read(reading));
    }

    /// Adds a completion, and keeps the read's buffer.
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
        // Only this storage writes to the memory of its requests, so cancelling its calls suffices.
        // A sleeper may outlive the storage.
        let mut state = self.shared.lock();
        for call in 0..state.uses.calls.len() {
            if state.uses.calls[call].take().is_some() {
                state.link.cancel(CallId(call as u32));
            }
        }
        state.in_flight = 0;
    }
}
