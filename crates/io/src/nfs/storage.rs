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

use super::call_results::CallId;
use super::calls_in_flight::{CallPurpose, CallsInFlight, NfsFile, NfsRead};
use super::client::Traffic;
use super::connection::{EventFd, sleep_on};
use super::error::NfsError;
use super::lookup::{ExportPath, RegularFile};
use super::procedures::{self, Attributes};
use super::rpc::{CallError, Procedure};
use super::server_link::{CallServer, ServerLink};
use super::target::NfsTarget;
use super::url::NfsUrl;
use super::xdr::Garbled;
use crate::backend::BackendError;
use crate::os::sync::{Mutex, MutexGuard};
use crate::storage::{Sleep, Sleeper, Storage};
use crate::target::FILE_SECTORS_LOG2;

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
    question_lock: Mutex<()>,
    export_path: ExportPath,
    /// Eventfd that ends a sleep; `None` for use by one thread.
    event_fd: Option<EventFd>,
}

/// State of a storage under its lock.
struct NfsState {
    link: ServerLink,
    calls: CallsInFlight,
    read_bytes: u32,
    /// Time of the last receive: all bytes that had arrived by then were processed.
    received_at: Time,
    /// Ended requests, kept for their capacity.
    spare_reads: Vec<NfsRead>,
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
const POLL_SLEEP_MIN: Time = Time::from_us(5);

/// Sleeps for a storage's answers while other threads submit requests.
struct NfsSleeper {
    shared: Arc<NfsShared>,
}

impl NfsStorage {
    /// Creates the storage of one file, for one thread.
    pub fn for_one_thread(target: NfsTarget) -> NfsStorage {
        let found = target.file;
        let mut storage = NfsStorage::without_files(target, None);
        storage.add(found);
        storage
    }

    /// Creates a storage for several threads, with a sleeper for one of them. Its files are
    /// [added](NfsStorage::add), the target's first.
    ///
    /// # Errors
    /// The kernel provides no eventfd.
    pub(crate) fn for_several_threads(
        target: NfsTarget,
    ) -> Result<(NfsStorage, Arc<dyn Sleeper>), BackendError> {
        let storage = NfsStorage::without_files(target, Some(new_event_fd()?));
        let sleeper = NfsSleeper { shared: Arc::clone(&storage.shared) };
        Ok((storage, Arc::new(sleeper)))
    }

    /// Creates a storage without files.
    fn without_files(target: NfsTarget, event_fd: Option<EventFd>) -> NfsStorage {
        let caps = target.caps();
        let NfsTarget { link, read_bytes, export_path, .. } = target;
        let uses = CallsInFlight {
            // One more than the number of READs, for a question.
            calls: (0..=caps.depth_max).map(|_| None).collect(),
            files: Vec::new(),
            ended: Vec::new(),
            incomplete: Vec::new(),
            clock: link.clock(),
        };
        let state = NfsState {
            link,
            calls: uses,
            read_bytes,
            received_at: Time::ZERO,
            spare_reads: Vec::new(),
            completed: Vec::new(),
            in_flight: 0,
        };
        let (state, queue_depth) = (Mutex::new(state), Mutex::new(()));
        let shared =
            Arc::new(NfsShared { state, question_lock: queue_depth, export_path, event_fd });
        NfsStorage { shared, caps, read_bytes }
    }

    /// URL of the file.
    pub fn url(&self) -> &NfsUrl {
        &self.shared.export_path.url
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
        let opened = state.calls.files[0].as_ref().expect("the file that the storage was made for");
        let age = state.calls.clock.now().since(opened.attributes_at);
        let RegularFile { handle, attributes } = opened.regular_file;
        if age <= self.url().options.attributes_age_max {
            return Ok(attributes);
        }
        drop(state);
        let put = |to: &mut Vec<u8>| procedures::put_handle(to, &handle);
        let answer = (&*self.shared).ask(procedures::GETATTR, put, procedures::decode_getattr);
        let fresh = self.shared.export_path.file_result(answer)?;
        self.shared.lock().calls.update_attributes(0, fresh);
        Ok(fresh)
    }

    /// Returns the state through which the file is looked up again while it is read.
    pub(crate) fn shared_state(&self) -> Arc<NfsShared> {
        Arc::clone(&self.shared)
    }

    /// Adds a file and returns its first sector, which identifies it until its removal.
    pub(crate) fn add(&mut self, found: RegularFile) -> u64 {
        let uses = &mut self.shared.lock().calls;
        let at = uses.files.iter().position(Option::is_none).unwrap_or_else(|| {
            uses.files.push(None);
            uses.files.len() - 1
        });
        uses.files[at] = Some(NfsFile { regular_file: found, attributes_at: uses.clock.now() });
        (at as u64) << FILE_SECTORS_LOG2
    }

    /// Removes the file whose first sector is `start`. No request of the file may be in flight.
    pub(crate) fn remove(&mut self, start: u64) {
        self.shared.lock().calls.files[(start >> FILE_SECTORS_LOG2) as usize] = None;
    }
}

impl Storage for NfsStorage {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    fn collect(&mut self, completions: &mut Vec<Completion>) -> Result<bool, BackendError> {
        let mut state = self.shared.lock();
        let ended = state.link.clock().now();
        let received_at = std::mem::replace(&mut state.received_at, ended);
        // The completions may have arrived at any time since the last receive.
        state.completed.iter_mut().for_each(|completion| completion.not_before = received_at);
        completions.append(&mut state.completed);
        Ok(true)
    }

    /// Rejects writes, because files on a server are only read.
    unsafe fn submit(&mut self, request: DeviceRequest, memory: &[libc::iovec]) {
        let mut state = self.shared.lock();
        state.in_flight += 1;
        let mut reading = state.spare_reads.pop().unwrap_or_else(NfsRead::empty);
        let sector = request.start & ((1 << FILE_SECTORS_LOG2) - 1);
        reading.id = request.id;
        reading.file_index = (request.start >> FILE_SECTORS_LOG2) as usize;
        reading.offset = sector * SECTOR_BYTES;
        reading.bytes = u64::from(request.sectors) * SECTOR_BYTES;
        reading.bytes_done = 0;
        reading.memory.extend_from_slice(memory);
        if request.op == Op::Write {
            return state.complete(reading, Outcome::Failed(DeviceError::Refused));
        }
        state.request_missing(reading);
    }

    /// Cancels a request: the next `exchange` completes it. A later answer of the server is
    /// dropped.
    fn cancel(&mut self, id: RequestId) {
        let mut state = self.shared.lock();
        let is_it = |used: &Option<CallPurpose>| matches!(used, Some(CallPurpose::Read(read)) if read.id == id);
        let Some(call) = state.calls.calls.iter().position(is_it) else { return };
        if let Some(CallPurpose::Read(reading)) = state.calls.calls[call].take() {
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
            Sleep::AtMost(timeout) => Some(now + Time(timeout.as_nanos() as u64)),
            Sleep::UntilAnswered => None,
        };
        loop {
            let until = if state.completed.is_empty() { deadline } else { Some(now) };
            state.exchange(until);
            let is_late = deadline.is_some_and(|deadline| state.link.clock().now() >= deadline);
            if !state.completed.is_empty() || state.in_flight == 0 || is_late {
                let ended = state.link.clock().now();
                let received_at = std::mem::replace(&mut state.received_at, ended);
                if sleep == Sleep::Never || ended.since(now) < POLL_SLEEP_MIN {
                    // The completions may have been in the socket since the last receive.
                    let unseen = state.completed.iter_mut();
                    unseen.for_each(|completion| completion.not_before = received_at);
                }
                completions.append(&mut state.completed);
                return Ok(());
            }
        }
    }
}

impl Sleeper for NfsSleeper {
    fn drain_kernel_answers(&self) {
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
            Sleep::AtMost(timeout) => Some(now + Time(timeout.as_nanos() as u64)),
            Sleep::Never | Sleep::UntilAnswered => None,
        };
        let wake = [deadline, state.link.next_wake()].into_iter().flatten().min();
        let (socket, to_write) = state.link.wait_socket();
        drop(state);
        let timeout = wake.map(|wake| Duration::from_nanos(wake.since(now).ns()));
        let event_fd = self.shared.event_fd.as_ref().expect("a storage with a sleeper has a bell");
        if sleep_on(socket.as_deref(), to_write, Some(event_fd), timeout).is_event_fd_signalled {
            event_fd.clear();
        }
        let mut state = self.shared.lock();
        let woken = state.link.clock().now();
        // A sleep ends at once if the socket has bytes. If this one has slept, its bytes have just
        // arrived.
        let has_slept = woken.since(now) >= POLL_SLEEP_MIN;
        if has_slept {
            state.received_at = woken;
        }
        // `collect` makes no system call, so the answers are received here.
        state.exchange(Some(woken));
        Ok(has_slept)
    }

    fn wake(&self) {
        let event_fd = self.shared.event_fd.as_ref().expect("a storage with a sleeper has a bell");
        event_fd.signal();
    }
}

impl CallServer for &NfsShared {
    /// Asks while reads are in flight. Another thread may sleep for their answers.
    fn ask<T: Send + 'static>(
        &mut self,
        procedure: Procedure,
        put: impl FnOnce(&mut Vec<u8>),
        tell: fn(&[u8]) -> Result<T, Garbled>,
    ) -> Result<T, CallError> {
        let _asking = self.question_lock.lock().expect("no thread panics while it asks");
        // Signalled by the thread that processes the answer, because arriving bytes wake only one
        // of two sleepers.
        let answered = new_event_fd().map_err(|_| CallError::NoBell)?;
        let answered = Arc::new((answered, Mutex::new(None)));
        let thread_result = Arc::clone(&answered);
        let hear = move |results: Result<&[u8], CallError>| {
            let answer = match results {
                Ok(results) => Ok(tell(results)?),
                Err(error) => Err(error),
            };
            *thread_result.1.lock().expect("nothing panics under this lock") = Some(answer);
            thread_result.0.signal();
            Ok(())
        };
        let mut state = self.lock();
        let call = state.link.call(procedure, 0, put);
        state.calls.calls[call.0 as usize] = Some(CallPurpose::Question(Box::new(hear)));
        loop {
            let now = state.link.clock().now();
            let (before, _) = state.link.wait_socket();
            state.exchange(Some(now));
            let (socket, to_write) = state.link.wait_socket();
            let wake = state.link.next_wake();
            let is_other = before.as_ref().map(Arc::as_ptr) != socket.as_ref().map(Arc::as_ptr);
            let is_bell_due = !state.completed.is_empty() || is_other || to_write;
            drop(state);
            if is_bell_due {
                // The leader's sleep waits for events that are out of date.
                self.event_fd.iter().for_each(EventFd::signal);
            }
            if let Some(answer) = answered.1.lock().expect("nothing panics under this lock").take()
            {
                return answer;
            }
            let timeout = wake.map(|wake| Duration::from_nanos(wake.since(now).ns()));
            sleep_on(socket.as_deref(), to_write, Some(&answered.0), timeout);
            state = self.lock();
        }
    }
}

/// Creates an eventfd to sleep on.
fn new_event_fd() -> Result<EventFd, BackendError> {
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
    pub(crate) fn look_up_again(&self) -> Result<RegularFile, NfsError> {
        self.export_path.find(&mut &*self)
    }

    fn lock(&self) -> MutexGuard<'_, NfsState> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }
}

impl NfsState {
    /// Sends, and processes received bytes until `deadline` or until a call has ended.
    fn exchange(&mut self, deadline: Option<Time>) {
        self.link.exchange(deadline, &mut self.calls);
        self.complete_ended();
    }

    /// Handles timeouts and sends pending bytes only.
    fn hand_over(&mut self) {
        self.link.handle_timeouts_and_send(&mut self.calls);
        self.complete_ended();
    }

    /// Completes ended requests, and requests missing bytes.
    fn complete_ended(&mut self) {
        let mut ended_reads = std::mem::take(&mut self.calls.ended);
        ended_reads.drain(..).for_each(|(reading, outcome)| self.complete(reading, outcome));
        self.calls.ended = ended_reads;
        while let Some(reading) = self.calls.incomplete.pop() {
            self.request_missing(reading);
        }
    }

    /// Requests the missing bytes of a request, up to the size of one READ.
    fn request_missing(&mut self, mut reading: NfsRead) {
        let left = reading.bytes - reading.bytes_done;
        reading.bytes_requested = left.min(u64::from(self.read_bytes)) as u32;
        let opened = self.calls.files[reading.file_index].as_ref().expect("its file is there");
        let (handle, offset) = (opened.regular_file.handle, reading.offset + reading.bytes_done);
        let put =
            |to: &mut Vec<u8>| procedures::put_read(to, &handle, offset, reading.bytes_requested);
        let call = self.link.call(procedures::READ, reading.bytes_requested, put);
        self.calls.calls[call.0 as usize] = Some(CallPurpose::Read(reading));
    }

    /// Adds a completion, and keeps the read's buffer.
    fn complete(&mut self, mut reading: NfsRead, outcome: Outcome) {
        let at = self.link.clock().now();
        self.completed.push(Completion::at(at, reading.id, outcome));
        self.in_flight -= 1;
        reading.memory.clear();
        self.spare_reads.push(reading);
    }
}

impl Drop for NfsStorage {
    fn drop(&mut self) {
        // Only this storage writes to the memory of its requests, so cancelling its calls suffices.
        // A sleeper may outlive the storage.
        let mut state = self.shared.lock();
        for call in 0..state.calls.calls.len() {
            if state.calls.calls[call].take().is_some() {
                state.link.cancel(CallId(call as u32));
            }
        }
        state.in_flight = 0;
    }
}
