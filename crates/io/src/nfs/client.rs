//! State machine of the calls in flight to one server: it decides which are sent, repeated,
//! answered or given up. It has no socket and no clock. Its input is received bytes and the time.
//! Its output is bytes to send and actions on the connection.
//!
//! A *slot* holds one call in flight. A *transaction id* (xid) is the number by which a reply names
//! its call. A *record* is one reply as it comes from the connection. A reply is *garbled* if it
//! cannot be decoded. The *caller* receives the ends of calls and owns the memory for the data of
//! its READs. Data is *direct* if it is received into that memory without a buffer.
//!
//! Many calls are in flight at once on one connection, and answers come in any order. Each answer
//! is matched to its call by the transaction id. The rules:
//!
//! 1. A call without an answer within `repeat_after` is sent again, with a timeout that doubles
//!    each time, if the server has sent anything since the timeout began. If it has been silent,
//!    the connection is given up. The timeout restarts with each answer to a call that was sent no
//!    later, and while the data of one arrives. This call's answer may wait behind it, and a
//!    repetition would load a slow connection more. A repetition on the same connection has a new
//!    transaction id, and an answer to any of the ids counts. The reason: some servers drop calls
//!    with a repeated id, answered or not (`nfs3_server` 0.11), and reading twice is harmless.
//! 2. On a new connection every waiting call is sent again. A broken connection is replaced at
//!    once. A connection that never carried an answer is replaced after a pause, which doubles up
//!    to [`RECONNECT_DELAY_MAX`]. There is no pause after the one that was made before the first
//!    call.
//! 3. A call without an answer within `give_up_after` of its start fails. While the server stays
//!    silent after that, further calls get only `repeat_after`. A dead server thus costs one long
//!    wait and not many. If bytes arrive after a pause of this program, the time by which it has
//!    missed its next timeout does not count: the answers may have waited for it.
//! 4. `NFS3ERR_JUKEBOX` means "try later": the call rests for [`POSTPONE_DELAY_FIRST`], then twice
//!    as long each time up to [`POSTPONE_DELAY_MAX`], and is sent under a new id.
//! 5. An answer that cannot be decoded is ignored and the call is sent again. The last
//!    of [`GARBLED_REPLIES_MAX`] such answers fails it. An answer to no call (late, or a duplicate)
//!    is dropped. After bytes that are no answer at all, the connection is given up.
//! 6. Data that is still arriving when the head of its reply is complete goes directly to the
//!    memory of its call. Conditions: the call waits for the reply's id, the head reports success
//!    with no more bytes than requested, and the record's length matches. The call ends when
//!    all data has come. If the call ends earlier (timeout or cancellation), the rest is discarded.
//!    If the connection or the record ends early, the call is sent again. Only the memory of calls
//!    in flight is ever written to.
//!
//! Order of calls: `call` while a slot is free; then after each event `handle_*`,
//! [`next_action`](Client::next_action), [`unsent_bytes`](Client::unsent_bytes); sleep until
//! [`next_wake`](Client::next_wake).

use readpath_core::unit::Time;

use super::call_results::{CallId, CallResults, Caller};
use super::procedures::{self, DataHead};
use super::records::{RecordStep, Records};
use super::rpc::{CallError, Procedure, change_xid, read_reply, write_call};
use super::xdr::Garbled;

mod timeouts;

/// Number of low bits of a transaction id that contain the call's slot.
const SLOT_BITS: u32 = 11;

/// Maximum number of calls in flight.
pub(crate) const SLOTS_MAX: u32 = 1 << SLOT_BITS;

/// READ size in bytes from which replies are received one by one: their data bypasses the buffer.
/// The additional system call costs less than the copy. Smaller replies are received together.
const DIRECT_DATA_BYTES_MIN: u32 = 16 << 10;

/// Number of bytes received behind a large READ's data: its padding of at most 3, and the next
/// reply's head of 132 (record mark 4, RPC 24, status and attributes 92, counts 12).
const NEXT_HEAD_BYTES: usize = 3 + 132;

/// Number of garbled answers after which a call fails. If one answer in six is garbled, eight in a
/// row happen to about one call in a million.
const GARBLED_REPLIES_MAX: u32 = 8;

/// Initial pause before a second attempt to connect. It doubles.
const RECONNECT_DELAY_FIRST: Time = Time::from_ms(50);

/// Longest pause between two attempts to connect.
const RECONNECT_DELAY_MAX: Time = Time::from_s(1);

/// Initial rest of a call that the server has postponed. It doubles.
const POSTPONE_DELAY_FIRST: Time = Time::from_ms(100);

/// Longest rest: Linux's `NFS_JUKEBOX_RETRY_TIME`.
const POSTPONE_DELAY_MAX: Time = Time::from_s(5);

/// Timeouts: `repeat_after` of rule 1 and `give_up_after` of rule 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) repeat_after: Time,
    pub(crate) give_up_after: Time,
}

/// A reply of a call in flight whose data bypasses the buffer.
#[derive(Clone, Copy, Debug)]
struct DirectReply {
    /// Slot of its call.
    slot_index: u32,
    head: DataHead,
    /// Number of data bytes received.
    data_bytes_received: usize,
}

/// Action required on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionAction {
    /// No action.
    Nothing,
    /// Connect, and report the result.
    Connect,
    /// Close the connection, and call `handle_lost`.
    Disconnect,
}

/// Traffic of NFS calls to the server, with the calls by which the file was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of calls.
    pub calls: u64,
    /// Number of times that a call was sent again, except on a new connection.
    pub repeats: u64,
    /// Number of connections made.
    pub connections: u64,
}

/// State of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientLink {
    /// No connection: at the start and after a loss. A connection is requested from `retry_at` on.
    Down { retry_at: Time },
    /// Connecting, until the result is reported. The attempt is given up at `give_up_at`.
    Connecting { give_up_at: Time },
    /// Connected. The connection must be closed if `must_close` is true.
    Up { must_close: bool },
}

/// State of a slot and its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    /// No call.
    Free,
    /// Waits for an answer. The call is sent again `repeat_after` after `since`, the time of its
    /// sending or of the last restart of its timeout.
    Waiting { sent_at: Time, since: Time },
    /// Postponed by the server. The call is sent again at `resend_at`.
    Postponed { resend_at: Time },
}

/// A call in flight, or a free slot.
struct CallSlot {
    state: CallState,
    /// Transaction ids under which the call was sent without an answer. The message contains the
    /// last one.
    xids: Vec<u32>,
    procedure: Procedure,
    /// Number of bytes that a READ requests; 0 for other calls.
    data_bytes: u32,
    /// Message with its record mark. The buffer is reused.
    message: Vec<u8>,
    /// Time at which the call fails.
    expires_at: Time,
    /// Present timeout of rule 1. Doubles with each repetition.
    repeat_after: Time,
    /// Duration of the next rest after `NFS3ERR_JUKEBOX`.
    postpone_delay: Time,
    /// Number of answers that could not be decoded.
    garbled_replies: u32,
}

/// The calls in flight to one server.
pub(crate) struct Client {
    credentials: Vec<u8>,
    timing: Timing,
    slots: Vec<CallSlot>,
    /// Indices of the free slots.
    free_slots: Vec<u32>,
    /// Upper bits of the last transaction id.
    sequence: u32,
    records: Records,
    /// Reply that is being received past the buffer, if there is one.
    direct_reply: Option<DirectReply>,
    /// Number of large READs in flight.
    large_reads: u32,
    /// Messages to send.
    send_buffer: Vec<u8>,
    /// Number of bytes of `send_buffer` already sent.
    sent_bytes: usize,
    link: ClientLink,
    /// Next pause before an attempt to connect; zero after an answer.
    reconnect_delay: Time,
    /// Time of the last received byte, or of the present connection if it was made later.
    last_byte_at: Time,
    /// Time of the last received bytes or handled timeouts.
    handled_at: Time,
    /// True if a waiting call has expired, and the server has answered no call since. An expired
    /// call that the server has postponed does not count.
    is_silent: bool,
    /// Earliest sending time of the calls that the received bytes have answered.
    answered_sent_at: Option<Time>,
    traffic: Traffic,
}

impl Client {
    /// Creates an unconnected client for `slot_count` simultaneous calls with answers of at most
    /// `reply_bytes_max` bytes. `credentials` is the encoded body of every call's credential.
    /// Transaction ids start after `sequence`, which should differ between clients.
    pub(crate) fn new(
        credentials: Vec<u8>,
        timing: Timing,
        slot_count: u32,
        reply_bytes_max: usize,
        sequence: u32,
    ) -> Client {
        assert!((1..=SLOTS_MAX).contains(&slot_count), "the options have a valid number of slots");
        // `call` sets the fields other than the state.
        let new_slot = || CallSlot {
            state: CallState::Free,
            xids: Vec::new(),
            procedure: procedures::READ,
            data_bytes: 0,
            message: Vec::new(),
            expires_at: Time::ZERO,
            repeat_after: Time::ZERO,
            postpone_delay: Time::ZERO,
            garbled_replies: 0,
        };
        Client {
            credentials,
            timing,
            slots: (0..slot_count).map(|_| new_slot()).collect(),
            free_slots: (0..slot_count).rev().collect(),
            sequence,
            records: Records::new(reply_bytes_max),
            direct_reply: None,
            large_reads: 0,
            send_buffer: Vec::new(),
            sent_bytes: 0,
            link: ClientLink::Down { retry_at: Time::ZERO },
            reconnect_delay: Time::ZERO,
            last_byte_at: Time::ZERO,
            handled_at: Time::ZERO,
            is_silent: false,
            answered_sent_at: None,
            traffic: Traffic::default(),
        }
    }

    /// Number of calls in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free_slots.len()) as u32
    }

    /// Traffic since the client was created.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Makes a call at time `now` with the arguments that `put_arguments` writes, and returns its
    /// id. The message is queued for sending. `data_bytes` is the number of bytes that a READ
    /// requests, and 0 for other calls.
    ///
    /// # Panics
    /// All slots are in use.
    pub(crate) fn call(
        &mut self,
        now: Time,
        procedure: Procedure,
        data_bytes: u32,
        put_arguments: impl FnOnce(&mut Vec<u8>),
    ) -> CallId {
        let index = self.free_slots.pop().expect("a slot is free");
        let xid = self.next_xid(index);
        // Rule 3: a silent server gets less time.
        let give_up_after =
            if self.is_silent { self.timing.repeat_after } else { self.timing.give_up_after };
        let slot = &mut self.slots[index as usize];
        write_call(&mut slot.message, xid, procedure, &self.credentials, put_arguments);
        slot.xids.clear();
        slot.xids.push(xid);
        slot.procedure = procedure;
        slot.data_bytes = data_bytes;
        self.large_reads += u32::from(data_bytes >= DIRECT_DATA_BYTES_MIN);
        slot.expires_at = now + give_up_after;
        slot.repeat_after = self.timing.repeat_after;
        slot.postpone_delay = POSTPONE_DELAY_FIRST;
        slot.garbled_replies = 0;
        self.traffic.calls += 1;
        self.queue_message(now, index);
        CallId(index)
    }

    /// Cancels a call in flight. Its message may still be sent. Its answer will be dropped, and its
    /// caller is not informed.
    pub(crate) fn cancel(&mut self, call: CallId) {
        self.free_slot(call.0);
    }

    /// Returns the action that is required on the connection at time `now`. The user of the client
    /// performs it and reports the result by `handle_connected` or `handle_lost`. For `Connect`,
    /// the link becomes `Connecting`, and the reconnect delay doubles. `Connect` requires a call in
    /// flight: servers close idle connections, and without a call no thread waits for a new one.
    pub(crate) fn next_action(&mut self, now: Time) -> ConnectionAction {
        match self.link {
            ClientLink::Down { retry_at } if self.in_flight() > 0 && now >= retry_at => {
                self.reconnect_delay = (self.reconnect_delay + self.reconnect_delay)
                    .clamp(RECONNECT_DELAY_FIRST, RECONNECT_DELAY_MAX);
                self.link = ClientLink::Connecting { give_up_at: now + self.timing.repeat_after };
                ConnectionAction::Connect
            }
            ClientLink::Connecting { give_up_at } if now >= give_up_at => {
                ConnectionAction::Disconnect
            }
            ClientLink::Up { must_close: true } => ConnectionAction::Disconnect,
            _ => ConnectionAction::Nothing,
        }
    }

    /// Records that the connection is made: every waiting call is sent under its last id, also if
    /// it was sent before, and its timeout restarts. Postponed calls rest until their time.
    pub(crate) fn handle_connected(&mut self, now: Time) {
        self.link = ClientLink::Up { must_close: false };
        self.last_byte_at = now;
        self.traffic.connections += 1;
        for index in 0..self.slots.len() as u32 {
            if matches!(self.slots[index as usize].state, CallState::Waiting { .. }) {
                self.queue_message(now, index);
            }
        }
    }

    /// Records that the connection is lost or could not be made. Received and unsent bytes are
    /// dropped, and the calls stay. A new connection is requested after the reconnect delay.
    pub(crate) fn handle_lost(&mut self, now: Time) {
        self.send_buffer.clear();
        self.sent_bytes = 0;
        self.records.clear();
        self.direct_reply = None;
        self.link = ClientLink::Down { retry_at: now + self.reconnect_delay };
    }

    /// Bytes to send now.
    pub(crate) fn unsent_bytes(&self) -> &[u8] {
        &self.send_buffer[self.sent_bytes..]
    }

    /// Records that this number of bytes was sent.
    pub(crate) fn handle_sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        if self.sent_bytes == self.send_buffer.len() {
            self.send_buffer.clear();
            self.sent_bytes = 0;
        }
    }

    /// Returns the READ whose data comes next and bypasses the buffer: its call, the offset in its
    /// reply's data, and the number of bytes. `None` if the next bytes go to the buffer.
    pub(crate) fn direct_data(&self) -> Option<(CallId, usize, usize)> {
        let reply = self.direct_reply.as_ref()?;
        let bytes = self.records.direct_bytes();
        (bytes > 0).then_some((CallId(reply.slot_index), reply.data_bytes_received, bytes))
    }

    /// Returns the buffer for received bytes behind the [direct data](Client::direct_data). While
    /// large READs are in flight, it ends behind the next reply's head: the data bypasses it.
    pub(crate) fn receive_buffer(&mut self) -> &mut [u8] {
        let extra_bytes_max = if self.large_reads > 0 { NEXT_HEAD_BYTES } else { usize::MAX };
        self.records.receive_buffer(extra_bytes_max)
    }

    /// Processes `bytes` received bytes, the [direct data](Client::direct_data) first. Informs the
    /// caller of ended calls. Sends calls with a garbled answer again, and postponed ones later.
    /// After bytes that are no reply the connection must be closed. Until the user of the client
    /// has closed it, further bytes are ignored.
    pub(crate) fn handle_received(&mut self, now: Time, bytes: usize, caller: &mut dyn Caller) {
        if self.link == (ClientLink::Up { must_close: true }) {
            return;
        }
        let direct_bytes = bytes.min(self.records.direct_bytes());
        self.records.record_direct(direct_bytes);
        if let Some(reply) = &mut self.direct_reply {
            reply.data_bytes_received += direct_bytes;
        }
        self.records.record_received(bytes - direct_bytes);
        self.extend_after_pause(now);
        self.last_byte_at = now;
        self.process_records(now, caller);
        self.restart_timeouts(now);
    }

    /// Processes the records that are complete, and the data of an incomplete one, at time `now`.
    /// Informs `caller` of ended calls. Ends when more bytes must arrive, or after bytes that are
    /// no reply.
    fn process_records(&mut self, now: Time, caller: &mut dyn Caller) {
        loop {
            match self.records.next() {
                Ok(Some(RecordStep::Record(record))) => {
                    let Ok(reply) = read_reply(record) else { return self.mark_for_closing() };
                    // An answer to no call is dropped.
                    let Some(index) = slot_of_xid(&self.slots, reply.xid) else { continue };
                    if procedures::is_postponed(self.slots[index as usize].procedure, reply.results)
                    {
                        self.record_answer(index);
                        self.postpone_call(now, index);
                        continue;
                    }
                    let decoded = match reply.results {
                        // The server could not decode the call.
                        Err(CallError::Garbled) => Err(Garbled),
                        results => {
                            caller.on_call_end(CallId(index), results.map(CallResults::Whole))
                        }
                    };
                    self.on_answer(now, index, decoded, caller);
                }
                // Direct data that came with other bytes, in the buffer.
                Ok(Some(RecordStep::Data(data))) => {
                    if let Some(reply) = &mut self.direct_reply {
                        let call = CallId(reply.slot_index);
                        caller.copy_data(call, reply.data_bytes_received, data);
                        reply.data_bytes_received += data.len();
                    }
                }
                Ok(Some(RecordStep::End { is_whole })) => {
                    // `None` if the call has ended earlier, and the rest was discarded.
                    let Some(reply) = self.direct_reply.take() else { continue };
                    let (call, results) =
                        (CallId(reply.slot_index), CallResults::DataInPlace(reply.head));
                    let decoded =
                        if is_whole { caller.on_call_end(call, Ok(results)) } else { Err(Garbled) };
                    self.on_answer(now, call.0, decoded, caller);
                }
                // More bytes must arrive. The rest of an incomplete reply may bypass the buffer.
                Ok(None) => {
                    if !self.begin_direct_reply() {
                        return;
                    }
                }
                Err(Garbled) => return self.mark_for_closing(),
            }
        }
    }

    /// Makes the data of an incomplete reply bypass the buffer, if rule 6 permits it. Returns true
    /// if it does: the records then pass on its data that is in the buffer already. Otherwise the
    /// whole reply is received into the buffer and decoded there.
    fn begin_direct_reply(&mut self) -> bool {
        let Some(incomplete_record) = self.records.incomplete_record() else { return false };
        let Ok(reply) = read_reply(incomplete_record) else { return false };
        let (Some(index), Ok(results)) = (slot_of_xid(&self.slots, reply.xid), reply.results)
        else {
            return false;
        };
        let slot = &self.slots[index as usize];
        if slot.procedure != procedures::READ {
            return false;
        }
        let Some((head, data)) = procedures::decode_read_head(results, slot.data_bytes) else {
            return false;
        };
        let head_bytes = incomplete_record.len() - data.len();
        let is_diverted = self.records.divert(head_bytes, head.bytes as usize);
        if is_diverted {
            self.direct_reply =
                Some(DirectReply { slot_index: index, head, data_bytes_received: 0 });
        }
        is_diverted
    }

    /// Handles an answer to the call in slot `index`. After `Ok` the slot is freed. After
    /// `Garbled`, which may come without asking the caller, the call is sent again, or fails after
    /// too many of them.
    fn on_answer(
        &mut self,
        now: Time,
        index: u32,
        decoded: Result<(), Garbled>,
        caller: &mut dyn Caller,
    ) {
        self.record_answer(index);
        match decoded {
            Ok(()) => self.free_slot(index),
            Err(Garbled) => self.retry_garbled(now, index, caller),
        }
    }

    /// Time at which [`handle_time`](Client::handle_time) and [`next_action`](Client::next_action)
    /// must be called without other events; `None` without a call in flight.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        let is_up = matches!(self.link, ClientLink::Up { .. });
        let slot_wake = |slot: &CallSlot| match slot.state {
            CallState::Free => None,
            CallState::Waiting { since, .. } if is_up => {
                Some((since + slot.repeat_after).min(slot.expires_at))
            }
            CallState::Waiting { .. } => Some(slot.expires_at),
            CallState::Postponed { resend_at } => Some(resend_at.min(slot.expires_at)),
        };
        let first_slot_wake = self.slots.iter().filter_map(slot_wake).min()?;
        Some(match self.link {
            ClientLink::Down { retry_at: link_wake }
            | ClientLink::Connecting { give_up_at: link_wake } => first_slot_wake.min(link_wake),
            ClientLink::Up { .. } => first_slot_wake,
        })
    }

    /// Creates a transaction id for slot `index`: low bits of the next `sequence` above the index.
    fn next_xid(&mut self, index: u32) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence << SLOT_BITS | index
    }

    /// Queues the message of the call in slot `index` for sending, and restarts its timeout.
    /// Without a usable connection the call only waits: `handle_connected` queues it again.
    fn queue_message(&mut self, now: Time, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = CallState::Waiting { sent_at: now, since: now };
        if self.link == (ClientLink::Up { must_close: false }) {
            self.send_buffer.extend_from_slice(&slot.message);
        }
    }

    /// Sends the call in slot `index` again under a new transaction id, and counts the repetition.
    /// Answers to earlier ids still count, unless these have been cleared before.
    fn resend(&mut self, now: Time, index: u32) {
        let xid = self.next_xid(index);
        let slot = &mut self.slots[index as usize];
        slot.xids.push(xid);
        change_xid(&mut slot.message, xid);
        self.traffic.repeats += 1;
        self.queue_message(now, index);
    }

    /// Postpones the call in slot `index` at the server's request, and doubles its next rest.
    /// Later answers to its earlier transaction ids are ignored.
    fn postpone_call(&mut self, now: Time, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = CallState::Postponed { resend_at: now + slot.postpone_delay };
        slot.xids.clear();
        slot.postpone_delay = (slot.postpone_delay + slot.postpone_delay).min(POSTPONE_DELAY_MAX);
    }

    /// Sends the call in slot `index` again after a garbled answer, or fails it after
    /// [`GARBLED_REPLIES_MAX`] of them. Later answers to its earlier transaction ids are ignored.
    fn retry_garbled(&mut self, now: Time, index: u32, caller: &mut dyn Caller) {
        let slot = &mut self.slots[index as usize];
        slot.garbled_replies += 1;
        slot.xids.clear();
        if slot.garbled_replies == GARBLED_REPLIES_MAX {
            return self.fail_call(index, CallError::Garbled, caller);
        }
        self.resend(now, index);
    }

    /// Ends the call in slot `index` with an error, and informs the caller.
    fn fail_call(&mut self, index: u32, error: CallError, caller: &mut dyn Caller) {
        // An error has no results that could be garbled, so the answer is ignored.
        let _ = caller.on_call_end(CallId(index), Err(error));
        self.free_slot(index);
    }

    /// Frees the slot `index` of a call. Data of the call that is still arriving will be discarded.
    fn free_slot(&mut self, index: u32) {
        if self.direct_reply.is_some_and(|reply| reply.slot_index == index) {
            // The call's memory is no longer available.
            self.direct_reply = None;
            self.records.discard_diverted();
        }
        let slot = &mut self.slots[index as usize];
        slot.state = CallState::Free;
        self.large_reads -= u32::from(slot.data_bytes >= DIRECT_DATA_BYTES_MIN);
        self.free_slots.push(index);
    }

    /// Marks the connection, if there is one, as to be closed, and drops the received bytes. The
    /// next action is then to disconnect. All calls stay, and wait for the next connection.
    fn mark_for_closing(&mut self) {
        if let ClientLink::Up { must_close } = &mut self.link {
            *must_close = true;
            // The rest of the received bytes is ignored.
            self.records.clear();
            self.direct_reply = None;
        }
    }
}

/// Returns the slot of the call that waits for an answer with this transaction id, or `None` if
/// there is none.
fn slot_of_xid(slots: &[CallSlot], xid: u32) -> Option<u32> {
    let index = xid & (SLOTS_MAX - 1);
    let slot = slots.get(index as usize)?;
    let is_awaiting = matches!(slot.state, CallState::Waiting { .. }) && slot.xids.contains(&xid);
    is_awaiting.then_some(index)
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
