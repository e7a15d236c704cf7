//! A file on an NFS server as the storage of a machine.
//!
//! The *machine* is the state machine of the cache and its requests. A *READ* is one call of the
//! NFS procedure. A *question* is any other call, made while READs may be in flight. Functions with
//! `cfg(inside)` exist only in the crate `readpath-dst`, for tests of this layer.
//!
//! A request of the machine is one READ, or several one after the other if READs are smaller than a
//! page. The next `exchange` after `submit`, or the next sleep, sends it together with all others
//! before it waits for an answer. Data that arrives after the head of its reply usually goes to its
//! memory without a buffer: see rule 6 of `client`. If a server returns fewer bytes than requested
//! without the end of the file, the rest is requested again.
//!
//! A file that was replaced on the server since it was opened becomes a further file of the same
//! storage, with its own sectors. The upper bits of a sector number, above [`FILE_SECTORS_LOG2`]
//! bits, are the file's index. The *link* has the calls and the socket.

use std::sync::Arc;
use std::time::Duration;

#[cfg(inside)]
use readpath_core::request::RequestId;
use readpath_core::request::{Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::call_results::CallId;
use super::calls_in_flight::{CallPurpose, CallsInFlight, NfsRead};
use super::client::Traffic;
use super::connection::{EventFd, sleep_on};
use super::error::NfsError;
use super::lookup::{ExportPath, FoundFile};
use super::procedures;
use super::rpc::{CallError, Procedure};
use super::server_link::{CallServer, ServerLink, WakeEvents};
use super::target::NfsTarget;
use super::xdr::Garbled;
use crate::backend::BackendError;
use crate::os::sync::{Mutex, MutexGuard};
use crate::storage::{Sleep, Sleeper, Storage};
use crate::target::FILE_SECTORS_LOG2;

/// A file on an NFS server that executes the machine's requests.
pub struct NfsStorage {
    shared: Arc<NfsShared>,
    /// Capabilities of the file that was opened first.
    caps: DeviceCaps,
}

/// State shared by the storage, its sleeper and threads that ask for attributes.
pub(crate) struct NfsShared {
    /// Locked while bytes are moved. A sleep holds the lock only in a storage for one thread.
    state: Mutex<NfsState>,
    /// Locked by a thread that asks a question: READs leave one call free for it.
    question_lock: Mutex<()>,
    /// Location of the file, for looking it up again.
    export_path: ExportPath,
    /// Eventfd that ends a sleep of the sleeper; `None` for use by one thread.
    sleeper_event_fd: Option<EventFd>,
}

/// State of a storage under its lock.
struct NfsState {
    /// State machine of the calls, with the socket.
    link: ServerLink,
    /// Purposes of the calls in flight, and ended READs.
    calls: CallsInFlight,
    /// `rsize`: largest READ in bytes.
    read_bytes: u32,
    /// Time of the last receive. Bytes that had arrived by then were processed, except after very
    /// many receives in a row.
    received_at: Time,
    /// Ended requests, kept for the capacity of their memory lists, which are empty.
    spare_reads: Vec<NfsRead>,
    /// Completions that were not collected yet.
    completed: Vec<Completion>,
    /// Number of submitted requests that are not completed.
    in_flight: u32,
}

/// Description of the connection to the server of a file.
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

/// Result of a question, with the eventfd on which the asking thread sleeps for it.
struct PendingAnswer<T> {
    /// Signalled at the end of the call.
    answer_event_fd: EventFd,
    /// `None` until the call has ended.
    result: Mutex<Option<Result<T, CallError>>>,
}

/// Sleeps for a storage's answers while other threads submit requests.
struct NfsSleeper {
    shared: Arc<NfsShared>,
}

impl NfsStorage {
    /// Creates the storage of the target's file, for one thread.
    #[cfg(inside)]
    pub fn for_one_thread(target: NfsTarget) -> NfsStorage {
        let regular_file = target.file;
        let no_event_fd = None;
        let mut storage = NfsStorage::without_files(target, no_event_fd);
        storage.add(regular_file);
        storage
    }

    /// Creates a storage for several threads, with a sleeper for one of them. It has no files yet:
    /// the caller [adds](NfsStorage::add) them, and the target's `file` first.
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

    /// Creates a storage over the target's connection, without files. `sleeper_event_fd` ends the
    /// sleep of its sleeper, and is `None` for use by one thread.
    fn without_files(target: NfsTarget, sleeper_event_fd: Option<EventFd>) -> NfsStorage {
        let caps = target.caps();
        let NfsTarget { link, read_bytes, export_path, .. } = target;
        let calls = CallsInFlight {
            // One more than the number of READs, for a question.
            purposes: (0..=caps.depth_max).map(|_| None).collect(),
            files: Vec::new(),
            ended: Vec::new(),
            incomplete: Vec::new(),
        };
        let state = NfsState {
            link,
            calls,
            read_bytes,
            received_at: Time::ZERO,
            spare_reads: Vec::new(),
            completed: Vec::new(),
            in_flight: 0,
        };
        let (state, question_lock) = (Mutex::new(state), Mutex::new(()));
        let shared = Arc::new(NfsShared { state, question_lock, export_path, sleeper_event_fd });
        NfsStorage { shared, caps }
    }

    /// `rsize`: largest READ in bytes.
    #[cfg(inside)]
    pub fn read_bytes(&self) -> u32 {
        self.shared.lock().read_bytes
    }

    /// Traffic so far, with the calls by which the file was found.
    #[cfg(inside)]
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().link.traffic()
    }

    /// Returns the state through which the file is looked up again while it is read.
    pub(crate) fn shared_state(&self) -> Arc<NfsShared> {
        Arc::clone(&self.shared)
    }

    /// Adds a file and returns its first sector, which identifies it until its removal.
    pub(crate) fn add(&mut self, regular_file: FoundFile) -> u64 {
        let calls = &mut self.shared.lock().calls;
        let file_index = calls.files.iter().position(Option::is_none).unwrap_or_else(|| {
            calls.files.push(None);
            calls.files.len() - 1
        });
        calls.files[file_index] = Some(regular_file.handle);
        (file_index as u64) << FILE_SECTORS_LOG2
    }

    /// Removes the file with this first sector. No request of the file may be in flight.
    pub(crate) fn remove(&mut self, first_sector: u64) {
        let file_index = (first_sector >> FILE_SECTORS_LOG2) as usize;
        self.shared.lock().calls.files[file_index] = None;
    }
}

impl Storage for NfsStorage {
    /// Capabilities of the file that was opened first.
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Moves the completed requests to `completions`. Receives nothing: sleeps and questions do.
    /// Always returns true, because they may have queued the rest of a READ to be sent.
    fn collect(&mut self, completions: &mut Vec<Completion>) -> Result<bool, BackendError> {
        let mut state = self.shared.lock();
        completions.append(&mut state.completed);
        Ok(true)
    }

    /// Starts the first READ of a request, which is sent later. The upper bits of the request's
    /// first sector are the file's index. A write is completed as refused, because files on a
    /// server are only read. The next `collect` or `exchange` returns its completion.
    unsafe fn submit(&mut self, request: DeviceRequest, memory: &[libc::iovec]) {
        let mut state = self.shared.lock();
        state.in_flight += 1;
        // A spare read has an empty memory list. Its other fields are replaced here, and
        // `bytes_requested` in `request_missing`.
        let mut nfs_read = state.spare_reads.pop().unwrap_or_else(NfsRead::empty);
        let sector_in_file = request.start & ((1 << FILE_SECTORS_LOG2) - 1);
        nfs_read.id = request.id;
        nfs_read.file_index = (request.start >> FILE_SECTORS_LOG2) as usize;
        nfs_read.offset = sector_in_file * SECTOR_BYTES;
        nfs_read.bytes = u64::from(request.sectors) * SECTOR_BYTES;
        nfs_read.bytes_done = 0;
        nfs_read.memory.extend_from_slice(memory);
        if request.op == Op::Write {
            return state.complete(nfs_read, Outcome::Failed(DeviceError::Refused));
        }
        state.request_missing(nfs_read);
    }

    /// Cancels a request: the next `exchange` returns its completion. A later answer of the server
    /// is dropped. No effect on a request that is not in flight.
    #[cfg(inside)]
    fn cancel(&mut self, id: RequestId) {
        let mut state = self.shared.lock();
        let is_request = |purpose: &Option<CallPurpose>| match purpose {
            Some(CallPurpose::Read(nfs_read)) => nfs_read.id == id,
            _ => false,
        };
        let Some(call) = state.calls.purposes.iter().position(is_request) else { return };
        if let Some(CallPurpose::Read(nfs_read)) = state.calls.purposes[call].take() {
            state.link.cancel(CallId(call as u32));
            state.complete(nfs_read, Outcome::Failed(DeviceError::Cancelled));
        }
    }

    /// Sends, receives and sleeps, until a request is complete, none is in flight, or the limit
    /// `sleep` is reached. For a storage that one thread uses: the lock is held during the sleep.
    /// Appends the completions to `completions`. Never fails: a lost connection is replaced.
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
            // With a completion at hand there is no sleep for further ones. A deadline that has
            // passed only takes in the bytes that have arrived.
            let receive_deadline = if state.completed.is_empty() { deadline } else { Some(now) };
            state.exchange(receive_deadline);
            let is_late = deadline.is_some_and(|deadline| state.link.clock().now() >= deadline);
            if !state.completed.is_empty() || state.in_flight == 0 || is_late {
                let ended_at = state.link.clock().now();
                let received_at = std::mem::replace(&mut state.received_at, ended_at);
                if sleep == Sleep::Never || ended_at.since(now) < POLL_SLEEP_MIN {
                    // Without a sleep, the completions may have been in the socket since the last
                    // receive. After a sleep they have just arrived: the stamp of `complete` stays.
                    let found = state.completed.iter_mut();
                    found.for_each(|completion| completion.not_before = received_at);
                }
                completions.append(&mut state.completed);
                return Ok(());
            }
        }
    }
}

impl Sleeper for NfsSleeper {
    /// Receives the answers that have arrived, without sleeping. Also handles timeouts and sends
    /// pending bytes.
    fn drain_kernel_answers(&self) {
        // Never fails.
        let _ = self.sleep(Sleep::AtMost(Duration::ZERO));
    }

    /// Sleeps without the lock, and then receives the answers. Arrived bytes, a due timeout, `wake`
    /// or the limit `sleep` ends the sleep. Space in the socket ends it too if bytes must still be
    /// sent. `Sleep::Never` only sends pending bytes. Returns true if it has slept: all answers
    /// that it finds have then just arrived. Never fails: a lost connection is replaced.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let mut state = self.shared.lock();
        if sleep == Sleep::Never {
            // Another thread may sleep here. It then handles the connection, the eventfd and the
            // timeouts.
            state.link.send_only();
            return Ok(false);
        }
        let now = state.link.clock().now();
        if state.link.next_wake().is_some_and(|wake_at| wake_at <= now) {
            // Receives first, because bytes that have arrived already are not late.
            state.receive_arrived(now);
        } else {
            state.handle_timeouts_and_send();
        }
        let now = state.link.clock().now();
        let deadline = match sleep {
            // With a completion at hand there is no sleep.
            _ if !state.completed.is_empty() => Some(now),
            Sleep::AtMost(timeout) => Some(now + Time(timeout.as_nanos() as u64)),
            // `Never` has returned above.
            Sleep::Never | Sleep::UntilAnswered => None,
        };
        let wake_at = [deadline, state.link.next_wake()].into_iter().flatten().min();
        let WakeEvents { socket, until_writable } = state.link.prepare_sleep();
        drop(state);
        let timeout = wake_at.map(|wake_at| Duration::from_nanos(wake_at.since(now).ns()));
        let event_fd =
            self.shared.sleeper_event_fd.as_ref().expect("a storage with a sleeper has an eventfd");
        let ready = sleep_on(socket.as_deref(), until_writable, Some(event_fd), timeout);
        if ready.is_event_fd_signalled {
            event_fd.clear();
        }
        let mut state = self.shared.lock();
        let woken_at = state.link.clock().now();
        // A call that finds bytes in the socket ends at once. After a longer one, the bytes have
        // just arrived.
        let has_slept = woken_at.since(now) >= POLL_SLEEP_MIN;
        if has_slept {
            state.received_at = woken_at;
        }
        // `collect` makes no system call, so the answers are received here.
        state.receive_arrived(woken_at);
        Ok(has_slept)
    }

    /// Signals the eventfd, which ends the present sleep or the next one.
    fn wake(&self) {
        let event_fd =
            self.shared.sleeper_event_fd.as_ref().expect("a storage with a sleeper has an eventfd");
        event_fd.signal();
    }
}

impl CallServer for &NfsShared {
    /// Makes one call while READs are in flight, and waits for its decoded results. Another thread
    /// may sleep for the answers of the READs. It is woken if its sleep is out of date. Either
    /// thread may receive the answer: `exchange` passes it to `on_end`, which stores it in
    /// `pending`. The client ends each call at the latest after its timeout, so the loop ends. The
    /// caller keeps the storage alive: its drop would cancel the call without an answer.
    fn ask<T: Send + 'static>(
        &mut self,
        procedure: Procedure,
        put_arguments: impl FnOnce(&mut Vec<u8>),
        decode: fn(&[u8]) -> Result<T, Garbled>,
    ) -> Result<T, CallError> {
        // One question at a time: READs leave one call free for it.
        let _question_guard = self.question_lock.lock().expect("no thread panics while it asks");
        // Signalled by the thread that processes the answer, because arriving bytes wake only one
        // of two sleepers.
        let answer_event_fd = new_event_fd().map_err(|_| CallError::NoEventFd)?;
        let pending = Arc::new(PendingAnswer { answer_event_fd, result: Mutex::new(None) });
        let pending_of_call = Arc::clone(&pending);
        let on_end = move |results: Result<&[u8], CallError>| {
            let answer = match results {
                // Results that cannot be decoded are no answer yet: the client repeats the call.
                Ok(results) => Ok(decode(results)?),
                Err(error) => Err(error),
            };
            *pending_of_call.result.lock().expect("nothing panics under this lock") = Some(answer);
            pending_of_call.answer_event_fd.signal();
            Ok(())
        };
        let mut state = self.lock();
        let no_data_bytes = 0;
        let call = state.link.call(procedure, no_data_bytes, put_arguments);
        state.calls.purposes[call.0 as usize] = Some(CallPurpose::Question(Box::new(on_end)));
        loop {
            let now = state.link.clock().now();
            // The socket on which another thread sleeps, if it does. `prepare_sleep` also sets the
            // number of bytes that end a sleep on the socket.
            let WakeEvents { socket: old_socket, .. } = state.link.prepare_sleep();
            // Sends and receives without a sleep: the deadline is now.
            state.receive_arrived(now);
            let WakeEvents { socket, until_writable } = state.link.prepare_sleep();
            let wake_at = state.link.next_wake();
            let is_new_socket =
                old_socket.as_ref().map(Arc::as_ptr) != socket.as_ref().map(Arc::as_ptr);
            // Another thread that sleeps must collect these completions, sleep on the new socket,
            // or also wait until the socket accepts bytes.
            let must_wake_sleeper = !state.completed.is_empty() || is_new_socket || until_writable;
            drop(state);
            if must_wake_sleeper {
                self.sleeper_event_fd.iter().for_each(EventFd::signal);
            }
            let mut result = pending.result.lock().expect("nothing panics under this lock");
            if let Some(answer) = result.take() {
                return answer;
            }
            drop(result);
            // The sleep ends with bytes of the server, the answer, or the client's next timeout.
            let timeout = wake_at.map(|wake_at| Duration::from_nanos(wake_at.since(now).ns()));
            sleep_on(socket.as_deref(), until_writable, Some(&pending.answer_event_fd), timeout);
            state = self.lock();
        }
    }
}

/// Creates an eventfd to sleep on. Its error is `NoEventFd`.
fn new_event_fd() -> Result<EventFd, BackendError> {
    EventFd::new().map_err(|errno| BackendError::NoEventFd { errno: errno.raw_os_error() })
}

impl NfsShared {
    /// Describes the connection of the file.
    pub(crate) fn connection(&self) -> Connection {
        let state = self.lock();
        Connection {
            read_bytes_max: state.read_bytes,
            is_from_reserved_port: state.link.is_from_reserved_port(),
            traffic: state.link.traffic(),
        }
    }

    /// Looks the file up again by its name, while READs are in flight. Returns its present handle
    /// and attributes.
    pub(crate) fn look_up_again(&self) -> Result<FoundFile, NfsError> {
        self.export_path.find(&mut &*self)
    }

    /// Locks the state.
    fn lock(&self) -> MutexGuard<'_, NfsState> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }
}

impl NfsState {
    /// Sends pending bytes and processes received ones until `deadline` or until a call has ended.
    /// Then completes ended requests.
    fn exchange(&mut self, deadline: Option<Time>) {
        self.link.exchange(deadline, &mut self.calls);
        self.complete_ended();
    }

    /// Sends pending bytes and processes the bytes that have arrived, without a sleep. The new
    /// completions may have arrived at any time since the last receive. The estimate of request
    /// costs needs this earliest time (`not_before`). `now` is the present time.
    fn receive_arrived(&mut self, now: Time) {
        let collected_before = self.completed.len();
        self.exchange(Some(now));
        let received_before = std::mem::replace(&mut self.received_at, now);
        let new_completions = &mut self.completed[collected_before..];
        new_completions.iter_mut().for_each(|completion| completion.not_before = received_before);
    }

    /// Handles timeouts and sends pending bytes, without receiving. Then completes ended requests.
    fn handle_timeouts_and_send(&mut self) {
        self.link.handle_timeouts_and_send(&mut self.calls);
        self.complete_ended();
    }

    /// Completes the requests that have ended, and requests the missing bytes of others whose last
    /// READ brought only a part.
    fn complete_ended(&mut self) {
        let mut ended_reads = std::mem::take(&mut self.calls.ended);
        ended_reads.drain(..).for_each(|(nfs_read, outcome)| self.complete(nfs_read, outcome));
        self.calls.ended = ended_reads;
        while let Some(nfs_read) = self.calls.incomplete.pop() {
            self.request_missing(nfs_read);
        }
    }

    /// Makes a READ for the missing bytes of a request, up to the size of one READ. If more bytes
    /// are missing, the next READ follows when this one has ended. Until then `purposes` has
    /// the request.
    fn request_missing(&mut self, mut nfs_read: NfsRead) {
        let bytes_left = nfs_read.bytes - nfs_read.bytes_done;
        nfs_read.bytes_requested = bytes_left.min(u64::from(self.read_bytes)) as u32;
        let handle = self.calls.files[nfs_read.file_index]
            .expect("the file of a request in flight is not removed");
        let offset = nfs_read.offset + nfs_read.bytes_done;
        let put_arguments = |message: &mut Vec<u8>| {
            procedures::put_read(message, &handle, offset, nfs_read.bytes_requested)
        };
        let call = self.link.call(procedures::READ, nfs_read.bytes_requested, put_arguments);
        self.calls.purposes[call.0 as usize] = Some(CallPurpose::Read(nfs_read));
    }

    /// Adds the completion of a request, stamped with the present time, and keeps the read's memory
    /// list for reuse. No call of the request may be in flight.
    fn complete(&mut self, mut nfs_read: NfsRead, outcome: Outcome) {
        let now = self.link.clock().now();
        self.completed.push(Completion::at(now, nfs_read.id, outcome));
        self.in_flight -= 1;
        nfs_read.memory.clear();
        self.spare_reads.push(nfs_read);
    }
}

impl Drop for NfsStorage {
    /// Cancels all calls in flight. Their answers are dropped, and their requests get no
    /// completion.
    fn drop(&mut self) {
        // Only this storage writes to the memory of its requests, so cancelling its calls suffices.
        // A sleeper may outlive the storage.
        let mut state = self.shared.lock();
        for call in 0..state.calls.purposes.len() {
            if state.calls.purposes[call].take().is_some() {
                state.link.cancel(CallId(call as u32));
            }
        }
        state.in_flight = 0;
    }
}
