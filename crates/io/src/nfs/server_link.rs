//! The link to a server: the state machine of its calls ([`Client`]) with the TCP socket on which
//! the actions that it requests are performed.
//!
//! The client has no socket and no clock. It requests actions: connect, disconnect, send bytes. The
//! link performs them on one socket. It passes received bytes, the time and the results of the
//! actions back to the client. The *caller* receives the ends of calls and owns the memory for the
//! data of its READs. Data is *direct* if it is received into that memory without a buffer. The
//! client has bytes to send only on a connection. After a loss it queues the calls again on the
//! next.

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

/// Maximum number of bytes of a reply besides its data, more than any head needs.
const REPLY_HEAD_BYTES: usize = 1024;

/// Maximum number of receives in a row. Then timeouts are checked and pending bytes are sent. The
/// number is chosen, not measured.
const RECEIVES_PER_CALL_MAX: u32 = 16;

/// Maximum number of expected data bytes that one sleep waits for. A larger number wakes less
/// often, but less of the data is then in the processor's caches.
const WAKE_BYTES_MAX: usize = 256 << 10;

/// Events that must end the next sleep for answers.
pub(crate) struct WakeEvents {
    /// Socket of the answers; `None` without a connection.
    pub(crate) socket: Option<Arc<Socket>>,
    /// True if the sleep must also end when the socket accepts bytes.
    pub(crate) until_writable: bool,
}

/// Calls to one server, and their connection.
pub(crate) struct ServerLink {
    /// State machine of the calls.
    client: Client,
    /// Socket of the present connection, if there is one.
    connection: Connection,
    /// True from the start of an attempt that the client requested to its result. `connect` waits
    /// for its own attempt and leaves this false.
    is_connecting: bool,
    /// Memory for the next bytes. The list is reused.
    receive_segments: Vec<libc::iovec>,
    clock: Clock,
}

// SAFETY: the addresses in `receive_segments` are used only in `receive`, which sets them.
unsafe impl Send for ServerLink {}

impl ServerLink {
    /// Creates a link to `address`, not connected yet. Answers have at most `data_bytes_max` bytes
    /// of data.
    pub(crate) fn new(
        address: SocketAddr,
        options: &NfsOptions,
        data_bytes_max: usize,
        clock: Clock,
    ) -> ServerLink {
        let timing =
            Timing { repeat_after: options.repeat_after, give_up_after: options.give_up_after };
        // Start of the transaction ids. Other programs, and later starts of this one, should begin
        // with other numbers. In a simulation its seed decides.
        let sequence = simulated_random().unwrap_or_else(|| {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            std::process::id() ^ since_1970.subsec_nanos()
        });
        let client = Client::new(
            options.credentials.encoded(),
            timing,
            // `slots` is the number of READs in flight. One more is for another call at the same
            // time.
            options.slots + 1,
            REPLY_HEAD_BYTES + data_bytes_max,
            sequence,
        );
        let connection = Connection::new(address, options.source_port);
        ServerLink { client, connection, is_connecting: false, receive_segments: Vec::new(), clock }
    }

    /// Connects before the first call, so that a missing server is reported at once. Waits until
    /// `deadline`, a time of the link's clock. Without this step, the first call makes the client
    /// request a connection.
    ///
    /// # Errors
    /// Error number of the kernel, as in `errno(3)`; `ETIMEDOUT` after the deadline. The link is
    /// then not used any more.
    pub(crate) fn connect(&mut self, deadline: Time) -> Result<(), i32> {
        let mut connect_state = self.connection.start_connecting();
        loop {
            match connect_state {
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
                    // A socket accepts bytes once its connection attempt has ended.
                    let until_writable = true;
                    self.connection.wait(until_writable, Some(self.clock.until(deadline)));
                    connect_state = self.connection.connect_state();
                }
            }
        }
    }

    /// Makes a call with the arguments that `put_arguments` writes, and returns its id. The call is
    /// queued and sent later. `data_bytes` is the number of bytes that a READ requests, and 0 for
    /// other calls.
    pub(crate) fn call(
        &mut self,
        procedure: Procedure,
        data_bytes: u32,
        put_arguments: impl FnOnce(&mut Vec<u8>),
    ) -> CallId {
        self.client.call(self.clock.now(), procedure, data_bytes, put_arguments)
    }

    /// Cancels a call. Its answer will be dropped, and the caller is not informed.
    pub(crate) fn cancel(&mut self, call: CallId) {
        self.client.cancel(call);
    }

    /// Traffic since the link was created.
    pub(crate) fn traffic(&self) -> Traffic {
        self.client.traffic()
    }

    /// True if calls come from a reserved port.
    pub(crate) fn is_from_reserved_port(&self) -> bool {
        self.connection.is_from_reserved_port()
    }

    /// Clock of all times here.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Receives and sends, and repeats this with sleeps until a call has ended or `deadline` has
    /// come. `None` means no deadline. The caller is informed of each ended call. Does not sleep if
    /// no call is in flight.
    pub(crate) fn exchange(&mut self, deadline: Option<Time>, caller: &mut dyn Caller) {
        let mut watch = CallWatch { caller, has_ended_call: false };
        loop {
            // First, because bytes that have arrived already are not late.
            self.receive(&mut watch);
            self.handle_timeouts_and_send(&mut watch);
            let is_late = |deadline| self.clock.now() >= deadline;
            if watch.has_ended_call || self.client.in_flight() == 0 || deadline.is_some_and(is_late)
            {
                return;
            }
            // The client's next timeout also ends the sleep, so that it is handled in time.
            let wake_at = [deadline, self.client.next_wake()].into_iter().flatten().min();
            let timeout = wake_at.map(|wake_at| self.clock.until(wake_at));
            self.set_wake_bytes();
            self.connection.wait(self.must_wait_to_send(), timeout);
        }
    }

    /// Handles timeouts, performs the action that the client requests, and sends pending bytes,
    /// without sleeping or receiving. The caller is informed of calls that have timed out.
    pub(crate) fn handle_timeouts_and_send(&mut self, caller: &mut dyn Caller) {
        let now = self.clock.now();
        self.client.handle_time(now, caller);
        self.perform_action(now);
        self.send();
    }

    /// Sends pending bytes on an existing connection. Connects to no server and handles no timeout.
    pub(crate) fn send_only(&mut self) {
        if self.connection.is_open() {
            self.send();
        }
    }

    /// Time of the next work without other events; `None` if there is none.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        self.client.next_wake()
    }

    /// Sets the number of bytes that end the next sleep on the socket. Returns the events that must
    /// end that sleep.
    pub(crate) fn prepare_sleep(&mut self) -> WakeEvents {
        self.set_wake_bytes();
        let until_writable = self.must_wait_to_send();
        WakeEvents { socket: self.connection.socket(), until_writable }
    }

    /// Sets the number of received bytes that end the next sleep: one, or the direct data that is
    /// expected.
    fn set_wake_bytes(&mut self) {
        let expected_bytes = self.client.direct_data().map_or(1, |(_, _, bytes)| bytes);
        self.connection.set_wake_bytes(expected_bytes.min(WAKE_BYTES_MAX));
    }

    /// True if the next sleep must also wait until bytes can be sent.
    fn must_wait_to_send(&self) -> bool {
        self.is_connecting || !self.client.unsent_bytes().is_empty()
    }

    /// Continues a connection attempt, and performs the action on the connection that the client
    /// requests.
    fn perform_action(&mut self, now: Time) {
        if self.is_connecting {
            let connect_state = self.connection.connect_state();
            self.on_connect_state(now, connect_state);
        }
        match self.client.next_action(now) {
            ConnectionAction::Nothing => {}
            ConnectionAction::Connect => {
                let connect_state = self.connection.start_connecting();
                self.is_connecting = true;
                self.on_connect_state(now, connect_state);
            }
            ConnectionAction::Disconnect => self.on_connection_lost(now),
        }
    }

    /// Informs the client if a connection attempt has succeeded or failed. An attempt in progress
    /// is checked again at the next [`perform_action`](ServerLink::perform_action).
    fn on_connect_state(&mut self, now: Time, connect_state: ConnectState) {
        match connect_state {
            ConnectState::InProgress => {}
            ConnectState::Done => {
                self.is_connecting = false;
                self.client.handle_connected(now);
            }
            ConnectState::Failed(_) => self.on_connection_lost(now),
        }
    }

    /// Closes the connection and informs the client. Its calls stay, and it requests a new
    /// connection later.
    fn on_connection_lost(&mut self, now: Time) {
        self.is_connecting = false;
        self.connection.close();
        self.client.handle_lost(now);
    }

    /// Sends pending bytes as far as the socket accepts them. The rest stays with the client until
    /// the next call. An error counts as a lost connection. Without a connection no bytes are
    /// pending, so there is nothing to do.
    fn send(&mut self) {
        while !self.is_connecting && !self.client.unsent_bytes().is_empty() {
            match self.connection.send(self.client.unsent_bytes()) {
                // The socket is full. The next sleep also ends when it accepts bytes again.
                Ok(0) => return,
                Ok(bytes) => self.client.handle_sent(bytes),
                Err(_) => return self.on_connection_lost(self.clock.now()),
            }
        }
    }

    /// Receives available bytes and passes them to the client. Direct data goes into the caller's
    /// memory, and the bytes behind it into the client's buffer, by one system call. Stops after
    /// [`RECEIVES_PER_CALL_MAX`] receives: the next call takes the rest. A closed or failed
    /// connection counts as lost.
    fn receive(&mut self, caller: &mut dyn Caller) {
        if self.is_connecting || !self.connection.is_open() {
            return;
        }
        for _ in 0..RECEIVES_PER_CALL_MAX {
            self.receive_segments.clear();
            // `data_offset` bytes of the reply's data were received, and `bytes` are to come.
            if let Some((call, data_offset, bytes)) = self.client.direct_data() {
                caller.data_memory(call, data_offset, bytes, &mut self.receive_segments);
            }
            let direct_bytes: usize = self.receive_segments.iter().map(|piece| piece.iov_len).sum();
            let space_bytes = match self.client.direct_data() {
                // The bytes behind the data can be received only if all of the data fits. A caller
                // returns less memory if the data lies in more pieces than one call can take.
                Some((_, _, bytes)) if bytes > direct_bytes => 0,
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
                // No bytes are available.
                Ok(None) => return,
                Ok(Some(bytes)) => {
                    self.client.handle_received(self.clock.now(), bytes, caller);
                    // Fewer bytes than space: no more bytes are available.
                    if bytes < direct_bytes + space_bytes {
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
    /// Receives all results.
    caller: &'a mut dyn Caller,
    /// True once a call has ended with decoded results or with an error.
    has_ended_call: bool,
}

impl Caller for CallWatch<'_> {
    /// Passes the results or the error of a call to the wrapped caller, and returns its answer.
    /// Records that a call has ended.
    fn on_call_end(
        &mut self,
        call: CallId,
        results: Result<CallResults<'_>, CallError>,
    ) -> Result<(), Garbled> {
        let is_error = results.is_err();
        let decoded = self.caller.on_call_end(call, results);
        // A reply that cannot be decoded ends no call: the client sends the call again.
        self.has_ended_call |= is_error || decoded.is_ok();
        decoded
    }

    /// Passes the data to the wrapped caller.
    fn copy_data(&mut self, call: CallId, data_offset: usize, data: &[u8]) {
        self.caller.copy_data(call, data_offset, data);
    }

    /// Adds the memory of the wrapped caller.
    fn data_memory(
        &self,
        call: CallId,
        data_offset: usize,
        bytes: usize,
        pieces: &mut Vec<libc::iovec>,
    ) {
        self.caller.data_memory(call, data_offset, bytes, pieces);
    }
}

/// A connection to a server on which one call can be made and awaited.
pub(crate) trait CallServer {
    /// Makes one call with the arguments that `put_arguments` writes, and waits for its end.
    /// Returns the results, decoded with `decode`. Results that cannot be decoded make the client
    /// repeat the call.
    ///
    /// # Errors
    /// The call has ended without results: timeout, denial, or too many garbled replies.
    fn ask<T: Send + 'static>(
        &mut self,
        procedure: Procedure,
        put_arguments: impl FnOnce(&mut Vec<u8>),
        decode: fn(&[u8]) -> Result<T, Garbled>,
    ) -> Result<T, CallError>;
}

impl CallServer for ServerLink {
    /// Sends, receives and sleeps on this thread until the call has ended. No other call may be in
    /// flight.
    fn ask<T: Send + 'static>(
        &mut self,
        procedure: Procedure,
        put_arguments: impl FnOnce(&mut Vec<u8>),
        decode: fn(&[u8]) -> Result<T, Garbled>,
    ) -> Result<T, CallError> {
        let no_data_bytes = 0;
        let call = self.call(procedure, no_data_bytes, put_arguments);
        let mut answer = None;
        while answer.is_none() {
            let mut on_end = |ended_call: CallId, results: Result<&[u8], CallError>| {
                debug_assert_eq!(ended_call, call, "only this call is in flight");
                answer = Some(match results {
                    // Without decoding there is no answer yet: the call is sent again.
                    Ok(results) => Ok(decode(results)?),
                    Err(error) => Err(error),
                });
                Ok(())
            };
            // The client ends the call itself, at the latest after `give_up_after`.
            let no_deadline = None;
            self.exchange(no_deadline, &mut ClosureCaller(&mut on_end));
        }
        answer.expect("the loop ends with an answer")
    }
}
