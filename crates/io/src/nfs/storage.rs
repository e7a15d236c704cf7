//! A file on an NFS server as what carries the machine's requests.
//!
//! A request of the machine is one READ. It is sent by the `exchange` that
//! follows `submit`, or by the next sleep, together with all others, before any
//! answer is awaited. The data goes from the receive buffer to its memory once
//! the whole reply has come and makes sense: a reply that is cut off, late or
//! garbage touches nothing. A server that brings less than was asked, without
//! saying that the file ends there, is asked for the rest.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};
use rustix::event::{EventfdFlags, eventfd};

use super::calls::{self, Attributes, FileHandle};
use super::client::{CallId, Traffic};
use super::connection::sleep_on;
use super::error::{NfsError, Step};
use super::link::Link;
use super::rpc::CallError;
use super::status::Status;
use super::target::NfsTarget;
use super::url::NfsUrl;
use crate::backend::BackendError;
use crate::storage::{Sleep, Sleeper, Storage};

/// A file on an NFS server that carries the machine's requests out.
pub struct NfsStorage {
    shared: Arc<Shared>,
    url: NfsUrl,
    caps: DeviceCaps,
    read_bytes: u32,
}

/// What the storage and its sleeper both work on. The lock is held only while
/// bytes are moved, never while somebody sleeps.
struct Shared {
    state: Mutex<State>,
    /// Written to, it ends a sleep; none where one thread does everything.
    bell: Option<OwnedFd>,
}

struct State {
    link: Link,
    handle: FileHandle,
    read_bytes: u32,
    attributes: Attributes,
    attributes_at: Time,
    /// What had come by then was taken in.
    looked: Time,
    /// What each call in flight is for, by its number.
    uses: Vec<Option<Use>>,
    /// READs whose replies brought a part only.
    partial: Vec<Reading>,
    /// Readings that are over, kept for their room.
    spare: Vec<Reading>,
    completed: Vec<Completion>,
    told: Option<Told>,
    in_flight: u32,
}

/// A poll(2) that finds something comes back sooner than this; one that took longer has slept.
const SLEPT: Time = Time::from_us(5);

/// The answer to GETATTR.
type Told = Result<Result<Attributes, Status>, CallError>;

enum Use {
    Read(Reading),
    /// GETATTR.
    Attributes,
}

/// A request of the machine on its way.
struct Reading {
    id: RequestId,
    offset: u64,
    bytes: u64,
    /// Bytes that are in memory already.
    bytes_done: u64,
    /// Bytes that the READ in flight asks for.
    bytes_asked: u32,
    memory: Vec<libc::iovec>,
}

// SAFETY: the pieces of memory stay valid, and nobody else uses them, until the
// request is completed or the storage dropped (the contract of
// `Storage::submit`), on whatever thread.
unsafe impl Send for Reading {}

/// Sleeps for a storage's answers while other threads hand in requests.
struct NfsSleeper {
    shared: Arc<Shared>,
}

impl NfsStorage {
    /// The storage of one file, for one thread.
    pub fn one(target: NfsTarget) -> NfsStorage {
        NfsStorage::over(target, None)
    }

    /// The storage of one file, for several threads, with what one of them sleeps on.
    ///
    /// # Errors
    /// The kernel gives no eventfd.
    pub fn shared(target: NfsTarget) -> Result<(NfsStorage, Arc<dyn Sleeper>), BackendError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| BackendError::Exchange { errno: errno.raw_os_error() })?;
        let storage = NfsStorage::over(target, Some(bell));
        let sleeper = NfsSleeper { shared: Arc::clone(&storage.shared) };
        Ok((storage, Arc::new(sleeper)))
    }

    fn over(target: NfsTarget, bell: Option<OwnedFd>) -> NfsStorage {
        let caps = target.caps();
        let NfsTarget { link, handle, attributes, attributes_at, read_bytes, url } = target;
        let state = State {
            link,
            handle,
            read_bytes,
            attributes,
            attributes_at,
            looked: Time::ZERO,
            uses: (0..caps.depth_max).map(|_| None).collect(),
            partial: Vec::new(),
            spare: Vec::new(),
            completed: Vec::new(),
            told: None,
            in_flight: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), bell });
        NfsStorage { shared, url, caps, read_bytes }
    }

    /// Where the file was found.
    pub fn url(&self) -> &NfsUrl {
        &self.url
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
        let mut state = self.shared.lock();
        let age = state.link.clock().now().since(state.attributes_at);
        if age <= self.url.options.attributes_age_max {
            return Ok(state.attributes);
        }
        while state.link.room() == 0 {
            state.exchange(None);
        }
        let handle = state.handle;
        let call = state.link.call(calls::GETATTR, |to| calls::put_handle(to, &handle));
        state.uses[call.0 as usize] = Some(Use::Attributes);
        let told = loop {
            state.exchange(None);
            if let Some(told) = state.told.take() {
                break told;
            }
        };
        told.map_err(|error| NfsError::call(Step::File, error))?
            .map_err(|status| NfsError::of_file(&self.url, status))
    }
}

impl Storage for NfsStorage {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// A write is refused: files on a server are read here, and nothing else.
    unsafe fn submit(&mut self, request: DeviceRequest, memory: &[libc::iovec]) {
        let mut state = self.shared.lock();
        state.in_flight += 1;
        let mut reading = state.spare.pop().unwrap_or_else(Reading::empty);
        reading.id = request.id;
        reading.offset = request.start * SECTOR_BYTES;
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
        let Some(call) = state.uses.iter().position(is_it) else { return };
        if let Some(Use::Read(reading)) = state.uses[call].take() {
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
        let (socket, to_write) = state.link.awaited();
        drop(state);
        let span = wake.map(|wake| std::time::Duration::from_nanos(wake.since(now).ns()));
        let bell = self.shared.bell.as_ref().expect("a storage with a sleeper has a bell");
        let socket = socket.as_ref().map(|socket| socket.as_fd());
        if sleep_on(socket, to_write, Some(bell.as_fd()), span).is_rung {
            // Empty when somebody was faster.
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        // What lay in the socket ends a sleep at once.
        Ok(self.shared.lock().link.clock().now().since(now) >= SLEPT)
    }

    fn wake(&self) {
        let bell = self.shared.bell.as_ref().expect("a storage with a sleeper has a bell");
        // It fails only when its count is full, and then it rings already.
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }
}

impl State {
    /// Sends, and takes in what comes until `deadline` or until a call has ended.
    fn exchange(&mut self, deadline: Option<Time>) {
        self.hear(|link, ended| link.exchange(deadline, ended));
    }

    /// Sends what is to be sent, and no more.
    fn hand_over(&mut self) {
        self.hear(|link, ended| link.hand_over(ended));
    }

    /// Does something with the link, and takes in the calls that end by it.
    fn hear(&mut self, act: impl FnOnce(&mut Link, &mut super::client::Ended<'_>)) {
        let State { link, uses, attributes, attributes_at, partial, told, .. } = self;
        let clock = link.clock();
        let mut over: Vec<(Reading, Outcome)> = Vec::new();
        act(link, &mut |call, results| {
            let used = &mut uses[call.0 as usize];
            let now = clock.now();
            let reading = match used.as_mut().expect("only a call that was made ends") {
                Use::Read(reading) => reading,
                Use::Attributes => {
                    let answer = match results.map(calls::attributes_told) {
                        Ok(answer) => Ok(answer?.inspect(|&fresh| {
                            (*attributes, *attributes_at) = (fresh, now);
                        })),
                        Err(error) => Err(error),
                    };
                    *told = Some(answer);
                    *used = None;
                    return Ok(());
                }
            };
            let ended = match results {
                Ok(results) => {
                    let told = calls::data_told(results, reading.bytes_asked)?;
                    if let Ok(Some(fresh)) = told.map(|data| data.attributes) {
                        (*attributes, *attributes_at) = (fresh, now);
                    }
                    reading.take(told)
                }
                Err(error) => Some(Outcome::Failed(device_error(error))),
            };
            let Some(Use::Read(reading)) = used.take() else { unreachable!("it was one above") };
            match ended {
                Some(outcome) => over.push((reading, outcome)),
                None => partial.push(reading),
            }
            Ok(())
        });
        over.into_iter().for_each(|(reading, outcome)| self.complete(reading, outcome));
        while let Some(reading) = self.partial.pop() {
            self.call(reading);
        }
    }

    /// Asks for what is missing of a request, as far as one READ goes.
    fn call(&mut self, mut reading: Reading) {
        let left = reading.bytes - reading.bytes_done;
        reading.bytes_asked = left.min(u64::from(self.read_bytes)) as u32;
        let (handle, offset) = (self.handle, reading.offset + reading.bytes_done);
        let put = |to: &mut Vec<u8>| calls::put_read(to, &handle, offset, reading.bytes_asked);
        let call = self.link.call(calls::READ, put);
        self.uses[call.0 as usize] = Some(Use::Read(reading));
    }

    fn complete(&mut self, mut reading: Reading, outcome: Outcome) {
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
        for call in 0..state.uses.len() {
            if state.uses[call].take().is_some() {
                state.link.cancel(CallId(call as u32));
            }
        }
        state.in_flight = 0;
    }
}

impl Reading {
    fn empty() -> Reading {
        Reading {
            id: RequestId(0),
            offset: 0,
            bytes: 0,
            bytes_done: 0,
            bytes_asked: 0,
            memory: Vec::new(),
        }
    }

    /// Takes the data of a reply in; gives how the request ends, unless more is to be asked for.
    fn take(&mut self, told: Result<calls::Data<'_>, Status>) -> Option<Outcome> {
        let data = match told {
            Ok(data) => data,
            Err(status) => return Some(Outcome::Failed(status.device_error())),
        };
        // The decoder has refused more bytes than were asked for.
        self.fill(data.bytes);
        self.bytes_done += data.bytes.len() as u64;
        if self.bytes_done == self.bytes {
            Some(Outcome::Done)
        } else if data.is_at_end || data.bytes.is_empty() {
            Some(Outcome::Short { bytes: self.bytes_done })
        } else {
            None
        }
    }

    /// Copies `bytes` behind those that are in memory already.
    fn fill(&self, bytes: &[u8]) {
        let (mut skip, mut left) = (self.bytes_done as usize, bytes);
        for segment in &self.memory {
            if skip >= segment.iov_len {
                skip -= segment.iov_len;
                continue;
            }
            let (part, rest) = left.split_at(left.len().min(segment.iov_len - skip));
            // SAFETY: the segment is valid for its length and used by nobody else
            // until the request is completed (the contract of `Storage::submit`);
            // the part ends within it. The receive buffer is other memory.
            unsafe {
                let to = segment.iov_base.cast::<u8>().add(skip);
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
            }
            (skip, left) = (0, rest);
        }
        assert!(left.is_empty(), "more bytes than the request has memory for");
    }
}

/// What a read that got no results tells its reader.
fn device_error(error: CallError) -> DeviceError {
    match error {
        CallError::TimedOut => DeviceError::TimedOut,
        CallError::Garbled => DeviceError::Garbled,
        CallError::Denied { .. } => DeviceError::Refused,
        CallError::Unavailable => DeviceError::Gone,
        CallError::ServerFault => DeviceError::Medium,
    }
}
