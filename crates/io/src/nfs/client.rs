//! The calls in flight to one server: which are sent, sent again, answered,
//! given up. It has no socket and no clock: bytes and the time come in, bytes
//! and wishes come out.
//!
//! Many calls are under way at once on one connection, and answers come in any
//! order: each is matched to its call by its transaction id. The rules:
//!
//! 1. A call that is not answered within `repeat_after` is sent again, after twice
//!    as long each time, if the server has said anything since; if it has been
//!    silent, the connection is given up. A repeat on the same connection has a
//!    transaction id of its own, and the answer to either counts: there are
//!    servers that drop what repeats an id, answered or not (`nfs3_server` 0.11),
//!    and to read twice does no harm.
//! 2. On a new connection every call that waits is sent again. A broken
//!    connection is replaced at once; one that never carried an answer after a
//!    pause, which doubles up to [`PAUSE_MAX`].
//! 3. A call that is not answered within `give_up_after` of its start fails. As
//!    long as the server stays silent after that, further calls are given only
//!    `repeat_after`: so a server that is gone costs one long wait, not many.
//! 4. `NFS3ERR_JUKEBOX` means later: the call rests, [`REST_FIRST`] and then
//!    twice as long each time up to [`REST_MAX`], and goes out under a new id.
//! 5. An answer that can't be understood counts for nothing and the call is
//!    sent again, up to [`GARBLED_MAX`] times in all. An answer to no call (late, or a
//!    duplicate) is dropped. After bytes that are no answer at all the
//!    connection can't be trusted, and is given up.
//! 6. Data that is still on its way when the head of its reply is there goes straight to
//!    the memory of its call, if the reply's id is one that the call awaits an answer to,
//!    and the head says that the READ succeeded and brings no more than was asked for, and the
//!    record is as long as that makes it. The call ends when all of it has come. Is the call
//!    over before (its time is up, or it is cancelled), the rest goes nowhere; is the
//!    connection, or does the record end early, the call is sent again. So only memory of
//!    calls under way is ever written to.
//!
//! Order of calls: `call` while there is `room`; then, whenever something has
//! happened, `handle_*`, [`wish`](Client::wish), [`to_send`](Client::to_send); sleep until
//! [`next_wake`](Client::next_wake).

use readpath_core::unit::Time;

use super::caller::{Caller, Results};
use super::calls::{self, DataHead};
use super::records::{RecordStep, Records};
use super::rpc::{CallError, Procedure, change_xid, read_reply, write_call};
use super::status::JUKEBOX;
use super::xdr::{Garbled, XdrReader};

/// The lowest bits of a transaction id are its call's slot.
const SLOT_BITS: u32 = 11;

/// The most calls that can be in flight at once.
pub(crate) const SLOTS_MAX: u32 = 1 << SLOT_BITS;

/// READs of so many bytes or more are received one by one, so that their data goes past the
/// buffer: a system call more for each costs less than a copy of this size. Of smaller
/// ones one system call receives as many as there are.
const LARGE_BYTES: u32 = 16 << 10;

/// What is received behind a large READ's data: its padding, and the next one's head
/// (record mark 4, RPC 24, status and attributes 92, counts 12).
const HEAD_BYTES: usize = 3 + 132;

/// How often an answer may be garbage before its call fails. Where one answer in
/// six is, three in a row met one call in two hundred; eight, one in a million.
const GARBLED_MAX: u32 = 8;

/// The pause before a second attempt to connect; it doubles.
const PAUSE_FIRST: Time = Time::from_ms(50);

/// The longest pause between two attempts to connect.
const PAUSE_MAX: Time = Time::from_s(1);

/// The rest of a call that the server has asked to come later; it doubles.
const REST_FIRST: Time = Time::from_ms(100);

/// The longest rest: Linux's `NFS_JUKEBOX_RETRY_TIME`.
const REST_MAX: Time = Time::from_s(5);

/// The times that the rules speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) repeat_after: Time,
    pub(crate) give_up_after: Time,
}

/// Names a call from its start until its end; reused afterwards. Below the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId(pub(crate) u32);

/// A reply whose data goes past the buffer: that of a call under way.
#[derive(Clone, Copy, Debug)]
struct Landing {
    index: u32,
    head: DataHead,
    /// Bytes of data that have come.
    at: usize,
}

/// What is to be done about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing.
    Nothing,
    /// Make one, and tell how it went.
    Connect,
    /// Give it up, and tell `handle_lost`.
    Disconnect,
}

/// What went over the wire since the file was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Calls made.
    pub calls: u64,
    /// Calls sent again.
    pub repeats: u64,
    /// Connections made.
    pub connections: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientLink {
    /// No connection. Entered at the start and when one is lost; left by the wish to connect.
    Down { retry_at: Time },
    /// One is being made. Left when it is told how that went.
    Connecting { give_up_at: Time },
    /// There is one. `is_distrusted`: it is to be given up.
    Up { is_distrusted: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    /// No call.
    Free,
    /// Its answer is awaited; it goes out again at `repeat_at`.
    Waiting { sent_at: Time, repeat_at: Time },
    /// The server has asked to come later: at `again_at`.
    Resting { again_at: Time },
}

struct CallSlot {
    state: CallState,
    /// The transaction ids that it has gone out under and was not answered to;
    /// the last one is in the message.
    xids: Vec<u32>,
    procedure: Procedure,
    /// What a READ asks for; 0 of other calls.
    data_bytes: u32,
    /// As it goes out, record mark and all; kept for its room.
    message: Vec<u8>,
    expires_at: Time,
    repeat_after: Time,
    rest: Time,
    garbled: u32,
}

/// The calls in flight to one server.
pub(crate) struct Client {
    credentials: Vec<u8>,
    timing: Timing,
    slots: Vec<CallSlot>,
    free: Vec<u32>,
    /// Of the next call: the upper bits of its transaction id.
    sequence: u32,
    records: Records,
    landing: Option<Landing>,
    /// How many large READs are under way.
    large: u32,
    out: Vec<u8>,
    out_sent: usize,
    link: ClientLink,
    /// The next pause before an attempt to connect; zero after an answer.
    pause: Time,
    heard_at: Time,
    /// The server has let a call expire, and said nothing since.
    is_silent: bool,
    traffic: Traffic,
}

impl Client {
    /// For `slots` calls at once whose answers have at most `reply_bytes_max`
    /// bytes. `sequence` is where transaction ids begin: best another number
    /// for each client.
    pub(crate) fn new(
        credentials: Vec<u8>,
        timing: Timing,
        slots: u32,
        reply_bytes_max: usize,
        sequence: u32,
    ) -> Client {
        assert!((1..=SLOTS_MAX).contains(&slots), "the options were checked");
        let slot = || CallSlot {
            state: CallState::Free,
            xids: Vec::new(),
            procedure: calls::READ,
            data_bytes: 0,
            message: Vec::new(),
            expires_at: Time::ZERO,
            repeat_after: Time::ZERO,
            rest: Time::ZERO,
            garbled: 0,
        };
        Client {
            credentials,
            timing,
            slots: (0..slots).map(|_| slot()).collect(),
            free: (0..slots).rev().collect(),
            sequence,
            records: Records::new(reply_bytes_max),
            landing: None,
            large: 0,
            out: Vec::new(),
            out_sent: 0,
            link: ClientLink::Down { retry_at: Time::ZERO },
            pause: Time::ZERO,
            heard_at: Time::ZERO,
            is_silent: false,
            traffic: Traffic::default(),
        }
    }

    /// How many more calls can be made now.
    #[cfg(test)]
    pub(crate) fn room(&self) -> u32 {
        self.free.len() as u32
    }

    /// How many calls are under way.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// What was counted so far.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Makes a call, with the arguments that `put` writes. `data_bytes` is what a READ asks for,
    /// and 0 of other calls.
    ///
    /// # Panics
    /// There is no room.
    pub(crate) fn call(
        &mut self,
        now: Time,
        procedure: Procedure,
        data_bytes: u32,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> CallId {
        let index = self.free.pop().expect("there is room");
        let xid = self.next_xid(index);
        let give_up_after =
            if self.is_silent { self.timing.repeat_after } else { self.timing.give_up_after };
        let slot = &mut self.slots[index as usize];
        write_call(&mut slot.message, xid, procedure, &self.credentials, put);
        slot.xids.clear();
        slot.xids.push(xid);
        slot.procedure = procedure;
        slot.data_bytes = data_bytes;
        self.large += u32::from(data_bytes >= LARGE_BYTES);
        slot.expires_at = now + give_up_after;
        slot.repeat_after = self.timing.repeat_after;
        slot.rest = REST_FIRST;
        slot.garbled = 0;
        self.traffic.calls += 1;
        self.send(now, index);
        CallId(index)
    }

    /// Forgets a call: whatever answer it gets is dropped.
    pub(crate) fn cancel(&mut self, call: CallId) {
        self.end(call.0);
    }

    /// What to do about the connection now.
    pub(crate) fn wish(&mut self, now: Time) -> Wish {
        match self.link {
            ClientLink::Down { retry_at } if self.in_flight() > 0 && now >= retry_at => {
                self.pause = (self.pause + self.pause).clamp(PAUSE_FIRST, PAUSE_MAX);
                self.link = ClientLink::Connecting { give_up_at: now + self.timing.repeat_after };
                Wish::Connect
            }
            ClientLink::Connecting { give_up_at } if now >= give_up_at => Wish::Disconnect,
            ClientLink::Up { is_distrusted: true } => Wish::Disconnect,
            _ => Wish::Nothing,
        }
    }

    /// The connection is there: everything that waits goes out again.
    pub(crate) fn handle_connected(&mut self, now: Time) {
        self.link = ClientLink::Up { is_distrusted: false };
        self.heard_at = now;
        self.traffic.connections += 1;
        for index in 0..self.slots.len() as u32 {
            if matches!(self.slots[index as usize].state, CallState::Waiting { .. }) {
                self.send(now, index);
            }
        }
    }

    /// The connection is gone, or could not be made.
    pub(crate) fn handle_lost(&mut self, now: Time) {
        self.out.clear();
        self.out_sent = 0;
        self.records.clear();
        self.landing = None;
        self.link = ClientLink::Down { retry_at: now + self.pause };
    }

    /// The bytes to be sent now.
    pub(crate) fn to_send(&self) -> &[u8] {
        &self.out[self.out_sent..]
    }

    /// So many of them were sent.
    pub(crate) fn handle_sent(&mut self, bytes: usize) {
        self.out_sent += bytes;
        if self.out_sent == self.out.len() {
            self.out.clear();
            self.out_sent = 0;
        }
    }

    /// The READ whose data comes next, if it goes past the buffer: which call, from which byte of
    /// its reply's data on, and how many bytes.
    pub(crate) fn landing(&self) -> Option<(CallId, usize, usize)> {
        let landing = self.landing.as_ref()?;
        let bytes = self.records.past_bytes();
        (bytes > 0).then_some((CallId(landing.index), landing.at, bytes))
    }

    /// Where received bytes go, behind the data that is [landing](Client::landing).
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.records.space(if self.large > 0 { HEAD_BYTES } else { usize::MAX })
    }

    /// So many bytes were received: as many as can be into the room of the call that is
    /// [landing](Client::landing), the others into [`space`](Client::space).
    pub(crate) fn handle_received(&mut self, now: Time, bytes: usize, caller: &mut dyn Caller) {
        if self.link == (ClientLink::Up { is_distrusted: true }) {
            return;
        }
        let past = bytes.min(self.records.past_bytes());
        self.records.passed(past);
        if let Some(landing) = &mut self.landing {
            landing.at += past;
        }
        self.records.filled(bytes - past);
        self.heard_at = now;
        loop {
            match self.records.next() {
                Ok(Some(RecordStep::Record(record))) => {
                    let Ok(reply) = read_reply(record) else { return self.distrust() };
                    let Some(index) = awaiting(&self.slots, reply.xid) else { continue };
                    if is_later(self.slots[index as usize].procedure, reply.results) {
                        self.heard();
                        self.rest(now, index);
                        continue;
                    }
                    let understood = match reply.results {
                        Err(CallError::Garbled) => Err(Garbled),
                        results => caller.ended(CallId(index), results.map(Results::Here)),
                    };
                    self.answered(now, index, understood, caller);
                }
                Ok(Some(RecordStep::Data(data))) => {
                    if let Some(landing) = &mut self.landing {
                        caller.take(CallId(landing.index), landing.at, data);
                        landing.at += data.len();
                    }
                }
                Ok(Some(RecordStep::Over { is_whole })) => {
                    let Some(Landing { index, head, .. }) = self.landing.take() else { continue };
                    let understood = match is_whole {
                        true => caller.ended(CallId(index), Ok(Results::Landed(head))),
                        false => Err(Garbled),
                    };
                    self.answered(now, index, understood, caller);
                }
                Ok(None) => {
                    if !self.divert() {
                        return;
                    }
                }
                Err(Garbled) => return self.distrust(),
            }
        }
    }

    /// Has the data of the reply that has begun go past the buffer, if it may.
    fn divert(&mut self) -> bool {
        let Some(begun) = self.records.begun() else { return false };
        let Ok(reply) = read_reply(begun) else { return false };
        let (Some(index), Ok(results)) = (awaiting(&self.slots, reply.xid), reply.results) else {
            return false;
        };
        let slot = &self.slots[index as usize];
        if slot.procedure != calls::READ {
            return false;
        }
        let Some((head, data)) = calls::data_begun(results, slot.data_bytes) else { return false };
        let head_bytes = begun.len() - data.len();
        let is_diverted = self.records.divert(head_bytes, head.bytes as usize);
        if is_diverted {
            self.landing = Some(Landing { index, head, at: 0 });
        }
        is_diverted
    }

    /// A call has its answer, understood or not.
    fn answered(
        &mut self,
        now: Time,
        index: u32,
        understood: Result<(), Garbled>,
        caller: &mut dyn Caller,
    ) {
        self.heard();
        match understood {
            Ok(()) => self.end(index),
            Err(Garbled) => self.again(now, index, caller),
        }
    }

    fn heard(&mut self) {
        self.is_silent = false;
        self.pause = Time::ZERO;
    }

    /// Does what is due by now.
    pub(crate) fn handle_time(&mut self, now: Time, caller: &mut dyn Caller) {
        for index in 0..self.slots.len() as u32 {
            let slot = &self.slots[index as usize];
            match slot.state {
                CallState::Free => {}
                _ if now >= slot.expires_at => {
                    // Somebody who asks us to come later is not silent.
                    self.is_silent |= matches!(slot.state, CallState::Waiting { .. });
                    self.fail(index, CallError::TimedOut, caller);
                }
                CallState::Resting { again_at } if now >= again_at => self.resend(now, index),
                CallState::Waiting { sent_at, repeat_at }
                    if now >= repeat_at && matches!(self.link, ClientLink::Up { .. }) =>
                {
                    if self.heard_at <= sent_at {
                        self.distrust();
                    } else {
                        let slot = &mut self.slots[index as usize];
                        slot.repeat_after = slot.repeat_after + slot.repeat_after;
                        self.resend(now, index);
                    }
                }
                _ => {}
            }
        }
    }

    /// When to call [`handle_time`](Client::handle_time) and [`wish`](Client::wish) though nothing
    /// has come; `None`: no need.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        let is_up = matches!(self.link, ClientLink::Up { .. });
        let of_slot = |slot: &CallSlot| match slot.state {
            CallState::Free => None,
            CallState::Waiting { repeat_at, .. } if is_up => Some(repeat_at.min(slot.expires_at)),
            CallState::Waiting { .. } => Some(slot.expires_at),
            CallState::Resting { again_at } => Some(again_at.min(slot.expires_at)),
        };
        let of_slots = self.slots.iter().filter_map(of_slot).min()?;
        Some(match self.link {
            ClientLink::Down { retry_at: at } | ClientLink::Connecting { give_up_at: at } => {
                of_slots.min(at)
            }
            ClientLink::Up { .. } => of_slots,
        })
    }

    fn next_xid(&mut self, index: u32) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence << SLOT_BITS | index
    }

    /// Has a call's message go out, now or with the next connection.
    fn send(&mut self, now: Time, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = CallState::Waiting { sent_at: now, repeat_at: now + slot.repeat_after };
        if self.link == (ClientLink::Up { is_distrusted: false }) {
            self.out.extend_from_slice(&slot.message);
        }
    }

    /// The same call under a new transaction id.
    fn resend(&mut self, now: Time, index: u32) {
        let xid = self.next_xid(index);
        let slot = &mut self.slots[index as usize];
        slot.xids.push(xid);
        change_xid(&mut slot.message, xid);
        self.traffic.repeats += 1;
        self.send(now, index);
    }

    fn rest(&mut self, now: Time, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = CallState::Resting { again_at: now + slot.rest };
        slot.xids.clear();
        slot.rest = (slot.rest + slot.rest).min(REST_MAX);
    }

    fn again(&mut self, now: Time, index: u32, caller: &mut dyn Caller) {
        let slot = &mut self.slots[index as usize];
        slot.garbled += 1;
        slot.xids.clear();
        if slot.garbled == GARBLED_MAX {
            return self.fail(index, CallError::Garbled, caller);
        }
        self.resend(now, index);
    }

    fn fail(&mut self, index: u32, error: CallError, caller: &mut dyn Caller) {
        // It hears of an error, so there is nothing for it to understand.
        let _ = caller.ended(CallId(index), Err(error));
        self.end(index);
    }

    fn end(&mut self, index: u32) {
        if self.landing.is_some_and(|landing| landing.index == index) {
            // Its memory is somebody else's from here on.
            self.landing = None;
            self.records.give_up();
        }
        let slot = &mut self.slots[index as usize];
        slot.state = CallState::Free;
        self.large -= u32::from(slot.data_bytes >= LARGE_BYTES);
        self.free.push(index);
    }

    fn distrust(&mut self) {
        if let ClientLink::Up { is_distrusted } = &mut self.link {
            *is_distrusted = true;
            // Nothing more of it is looked at.
            self.records.clear();
            self.landing = None;
        }
    }
}

/// The call that awaits an answer under this transaction id.
fn awaiting(slots: &[CallSlot], xid: u32) -> Option<u32> {
    let index = xid & (SLOTS_MAX - 1);
    let slot = slots.get(index as usize)?;
    let is_awaiting = matches!(slot.state, CallState::Waiting { .. }) && slot.xids.contains(&xid);
    is_awaiting.then_some(index)
}

/// Whether the server asks to come later.
fn is_later(procedure: Procedure, results: Result<&[u8], CallError>) -> bool {
    procedure.program == calls::PROGRAM
        && results.is_ok_and(|results| XdrReader::new(results).u32() == Ok(JUKEBOX))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
