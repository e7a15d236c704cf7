//! A client with its connection: performs the client's wishes on a socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use readpath_core::unit::Time;

use super::call_results::CallId;
use super::call_results::{CallResults, Caller, ClosureCaller};
use super::client::{Client, ConnectionAction, Timing, Traffic};
use super::connection::{Connection, Socket};
use super::options::NfsOptions;
use super::rpc::{CallError, Procedure};
use super::socket::ConnectState;
use super::xdr::Garbled;
use crate::os::clock::Clock;
use crate::os::sync::simulated_random;

/// Maximum number of bytes of a reply besides its data.
const REPLY_HEAD_BYTES: usize = 1024;

/// Maximum number of receives before other work is checked.
const RECEIVES_PER_CALL_MAX: u32 = 16;

/// Maximum number of expected data bytes that one sleep waits for. A larger number wakes less
/// often, but less of the data is then in the processor's caches.
const WAKE_BYTES_MAX: usize = 256 << 10;

/// Calls to one server, and their connection.
pub(crate) struct ServerLink {
    client: Client,
    connection: Connection,
    is_connecting: bool,
    /// Memory for the next bytes. The list is reused.
    receive_segments: Vec<libc::iovec>,
    clock: Clock,
}

// SAFETY: the pieces are used only in `receive`, which fills them.
unsafe impl Send for ServerLink {}

impl ServerLink {
    /// Creates a link to `address`, with answers of at most `data_bytes_max` bytes of data.
    pub(crate) fn new(
        address: SocketAddr,
        options: &NfsOptions,
        data_bytes_max: usize,
        clock: Clock,
    ) -> ServerLink {
        let timing =
            Timing { repeat_after: options.repeat_after, give_up_after: options.give_up_after };
        // Other programs, and later starts of this one, should begin with other numbers.
        let sequence = simulated_random().unwrap_or_else(|| {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            std::process::id() ^ since_1970.subsec_nanos()
        });
        let client = Client::new(
            options.credentials.encoded(),
            timing,
            // One more than for READs, for a GETATTR at the same time.
            options.slots + 1,
            REPLY_HEAD_BYTES + data_bytes_max,
            sequence,
        );
        let connection = Connection::new(address, options.source_port);
        ServerLink { client, connection, is_connecting: false, receive_segments: Vec::new(), clock }
    }

    /// Connects before the first call, so that a missing server is reported at once.
    ///
    /// # Errors
    /// Error number of the kernel, as in `errno(3)`.
    pub(crate) fn connect(&mut self, deadline: Time) -> Result<(), i32> {
        let mut making = self.connection.start_connecting();
        loop {
            match making {
                ConnectState::Done => {
                    self.client.handle_connected(self.clock.now());
                    return Ok(());
                }
                ConnectState::Failed(errno) => return Err(errno),
                ConnectState::InProgress if self.clock.now() >= deadline => {
                    self.connection.close();
                    return Err(libc::ETIMEDOUT);
                }
                ConnectState::InProgress => {
                    self.connection.wait(true, Some(self.clock.until(deadline)));
                    making = self.connection.connect_state();
                }
            }
        }
    }

    /// Makes a call; see [`Client::call`].
    pub(crate) fn call(
        &mut self,
        procedure: Procedure,
        data_bytes: u32,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> CallId {
        self.client.call(self.clock.now(), procedure, data_bytes, put)
    }

    /// Cancels a call.
    pub(crate) fn cancel(&mut self, call: CallId) {
        self.client.cancel(call);
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.client.traffic()
    }

    /// True if calls come from a reserved port.
    pub(crate) fn is_reserved(&self) -> bool {
        self.connection.is_reserved()
    }

    /// Clock of all times here.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Sends and receives until a call has ended or `deadline` has come. Returns at once if no call
    /// is in flight.
    pub(crate) fn exchange(&mut self, deadline: Option<Time>, caller: &mut dyn Caller) {
        let mut watch = CallWatch { caller, has_ended_call: false };
        loop {
            // First, because bytes that have arrived by now are not late.
            self.receive(&mut watch);
            self.handle_timeouts_and_send(&mut watch);
            let is_late = |deadline| self.clock.now() >= deadline;
            if watch.has_ended_call || self.client.in_flight() == 0 || deadline.is_some_and(is_late)
            {
                return;
            }
            let wake = [deadline, self.client.next_wake()].into_iter().flatten().min();
            let timeout = wake.map(|wake| self.clock.until(wake));
            self.set_wake_bytes();
            self.connection.wait(self.must_wait_to_send(), timeout);
        }
    }

    /// Handles timeouts and sends pending bytes, without sleeping.
    pub(crate) fn handle_timeouts_and_send(&mut self, caller: &mut dyn Caller) {
        let now = self.clock.now();
        self.client.handle_time(now, caller);
        self.perform_action(now);
        self.send();
    }

    /// Sends pending bytes on an existing connection.
    pub(crate) fn send_only(&mut self) {
        if self.connection.is_open() {
            self.send();
        }
    }

    /// Time of the next work without other events; `None` if there is none.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        self.client.next_wake()
    }

    /// Returns the socket of the answers, and true if the sleep must also wait until bytes can be
    /// sent.
    pub(crate) fn wait_socket(&mut self) -> (Option<Arc<Socket>>, bool) {
        self.set_wake_bytes();
        (self.connection.socket(), self.must_wait_to_send())
    }

    /// Sets the number of bytes that end the next sleep.
    fn set_wake_bytes(&mut self) {
        let expected_bytes = self.client.direct_data().map_or(1, |(_, _, bytes)| bytes);
        self.connection.set_wake_bytes(expected_bytes.min(WAKE_BYTES_MAX));
    }

    /// True if the next sleep must also wait until bytes can be sent.
    fn must_wait_to_send(&self) -> bool {
        self.is_connecting || !self.client.unsent_bytes().is_empty()
    }

    /// Performs the client's wish for the connection.
    fn perform_action(&mut self, now: Time) {
        if self.is_connecting {
            let making = self.connection.connect_state();
            self.on_connect_state(now, making);
        }
        match self.client.next_action(now) {
            ConnectionAction::Nothing => {}
            ConnectionAction::Connect => {
                let making = self.connection.start_connecting();
                self.is_connecting = true;
                self.on_connect_state(now, making);
            }
            ConnectionAction::Disconnect => self.on_connection_lost(now),
        }
    }

    /// Handles the state of a connection attempt.
    fn on_connect_state(&mut self, now: Time, making: ConnectState) {
        match making {
            ConnectState::InProgress => {}
            ConnectState::Done => {
                self.is_connecting = false;
                self.client.handle_connected(now);
            }
            ConnectState::Failed(_) => self.on_connection_lost(now),
        }
    }

    /// Closes the connection and informs the client.
    fn on_connection_lost(&mut self, now: Time) {
        self.is_connecting = false;
        self.connection.close();
        self.client.handle_lost(now);
    }

    /// Sends pending bytes as far as the socket accepts them.
    fn send(&mut self) {
        while !self.is_connecting && !self.client.unsent_bytes().is_empty() {
            match self.connection.send(self.client.unsent_bytes()) {
                Ok(0) => return,
                Ok(bytes) => self.client.handle_sent(bytes),
                Err(_) => return self.on_connection_lost(self.clock.now()),
            }
        }
    }

    /// Receives available bytes, large data directly into the caller's memory.
    fn receive(&mut self, caller: &mut dyn Caller) {
        if self.is_connecting || !self.connection.is_open() {
            return;
        }
        for _ in 0..RECEIVES_PER_CALL_MAX {
            self.receive_segments.clear();
            if let Some((call, at, bytes)) = self.client.direct_data() {
                caller.data_memory(call, at, bytes, &mut self.receive_segments);
            }
            let past_bytes: usize = self.receive_segments.iter().map(|piece| piece.iov_len).sum();
            let space_bytes = match self.client.direct_data() {
                // The bytes behind the data can be received only if all of the data fits.
                Some((_, _, bytes)) if bytes > past_bytes => 0,
                _ => {
                    let space = self.client.receive_buffer();
                    self.receive_segments.push(libc::iovec {
                        iov_base: space.as_mut_ptr().cast(),
                        iov_len: space.len(),
                    });
                    space.len()
                }
            };
            // SAFETY: the caller's memory belongs to a READ in flight, which keeps it valid. The
            // space is borrowed from the client.
            let received = unsafe { self.connection.receive(&self.receive_segments) };
            match received {
                Ok(None) => return,
                Ok(Some(bytes)) => {
                    self.client.handle_received(self.clock.now(), bytes, caller);
                    // Fewer bytes than space: no more bytes are available.
                    if bytes < past_bytes + space_bytes {
                        return;
                    }
                }
                Err(_) => return self.on_connection_lost(self.clock.now()),
            }
        }
    }
}

/// Wrapper of a caller that records if a call has ended.
struct CallWatch<'a> {
    caller: &'a mut dyn Caller,
    has_ended_call: bool,
}

impl Caller for CallWatch<'_> {
    fn on_call_end(
        &mut self,
        call: CallId,
        results: Result<CallResults<'_>, CallError>,
    ) -> Result<(), Garbled> {
        let is_error = results.is_err();
        let understood = self.caller.on_call_end(call, results);
        self.has_ended_call |= is_error || understood.is_ok();
        understood
    }

    fn copy_data(&mut self, call: CallId, at: usize, data: &[u8]) {
        self.caller.copy_data(call, at, data);
    }

    fn data_memory(&self, call: CallId, at: usize, bytes: usize, pieces: &mut Vec<libc::iovec>) {
        self.caller.data_memory(call, at, bytes, pieces);
    }
}

/// A question to a server.
pub(crate) trait CallServer {
    /// Makes one call and decodes its results with `decode`.
    fn ask<T: Send + 'static>(
        &mut self,
        procedure: Procedure,
        put: impl FnOnce(&mut Vec<u8>),
        decode: fn(&[u8]) -> Result<T, Garbled>,
    ) -> Result<T, CallError>;
}

impl CallServer for ServerLink {
    /// No other call may be in flight.
    fn ask<T: Send + 'static>(
        &mut self,
        procedure: Procedure,
        put: impl FnOnce(&mut Vec<u8>),
        decode: fn(&[u8]) -> Result<T, Garbled>,
    ) -> Result<T, CallError> {
        let call = self.call(procedure, 0, put);
        let mut answer = None;
        while answer.is_none() {
            let mut hear = |ended: CallId, results: Result<&[u8], CallError>| {
                debug_assert_eq!(ended, call, "it is the only one");
                answer = Some(match results {
                    Ok(results) => Ok(decode(results)?),
                    Err(error) => Err(error),
                });
                Ok(())
            };
            self.exchange(None, &mut ClosureCaller(&mut hear));
        }
        answer.expect("the loop ends with it")
    }
}
