//! Tests of the client's rules with answers written by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[path = "direct_data_tests.rs"]
mod direct_data;

use direct_data::{bytes_of, data, in_fragments};

const TIMING: Timing =
    Timing { repeat_after: Time::from_ms(1_000), give_up_after: Time::from_ms(10_000) };

/// A client with its recorded results.
struct Rig {
    client: Client,
    recorded: RecordedResults,
}

/// Results of ended calls, and the memory of READs.
struct RecordedResults {
    ended: Vec<(u32, Result<Vec<u8>, CallError>)>,
    /// Results with this prefix are reported as garbled.
    garbage: &'static [u8],
    /// Memory by call. A guard byte, which must not be written to, follows the last byte.
    memory: BTreeMap<u32, Vec<u8>>,
}

/// Value of bytes that were never written to.
const UNTOUCHED: u8 = 0xee;

impl Caller for RecordedResults {
    fn on_call_end(
        &mut self,
        call: CallId,
        results: Result<CallResults<'_>, CallError>,
    ) -> Result<(), Garbled> {
        let memory = self.memory.get(&call.0);
        let results = match results {
            Ok(CallResults::Whole(results)) if results.starts_with(self.garbage) => {
                return Err(Garbled);
            }
            Ok(CallResults::Whole(results)) => match memory {
                // Complete results contain the data.
                Some(memory) => procedures::decode_read(results, memory.len() as u32 - 1)?
                    .map(|(_, data)| data.to_vec())
                    .map_err(|_| CallError::ServerFault),
                None => Ok(results.to_vec()),
            },
            Ok(CallResults::DataInPlace(head)) => {
                Ok(memory.unwrap()[..head.bytes as usize].to_vec())
            }
            Err(error) => Err(error),
        };
        self.ended.push((call.0, results));
        self.memory.remove(&call.0);
        Ok(())
    }

    fn copy_data(&mut self, call: CallId, at: usize, data: &[u8]) {
        // This panics if the call has ended.
        self.memory.get_mut(&call.0).unwrap()[at..at + data.len()].copy_from_slice(data);
    }

    fn data_memory(&self, _: CallId, _: usize, _: usize, _: &mut Vec<libc::iovec>) {
        unreachable!("the rig writes as the socket would");
    }
}

impl Rig {
    fn new(slots: u32) -> Rig {
        let client = Client::new(vec![], TIMING, slots, 20_000, 77);
        let garbage = b"\0\0\0\0BAD!";
        let heard = RecordedResults { ended: Vec::new(), garbage, memory: BTreeMap::new() };
        Rig { client, recorded: heard }
    }

    fn connected(slots: u32) -> Rig {
        let mut rig = Rig::new(slots);
        rig.client.handle_connected(Time::ZERO);
        rig
    }

    fn call(&mut self, now: Time) -> u32 {
        self.client.call(now, procedures::GETATTR, 0, |_| {}).0
    }

    /// Starts a READ.
    fn read(&mut self, now: Time, bytes: u32) -> u32 {
        let call = self.client.call(now, procedures::READ, bytes, |_| {}).0;
        self.recorded.memory.insert(call, vec![UNTOUCHED; bytes as usize + 1]);
        call
    }

    /// Transaction ids of the messages to send.
    fn sent(&mut self) -> Vec<u32> {
        let (mut xids, mut at) = (Vec::new(), 0);
        let bytes = self.client.unsent_bytes().to_vec();
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        while at < bytes.len() {
            xids.push(word(at + 4));
            at += 4 + (word(at) & 0x7fff_ffff) as usize;
        }
        self.client.handle_sent(bytes.len());
        xids
    }

    /// Passes the bytes to the client, each time as many as it accepts.
    fn receive(&mut self, now: Time, bytes: &[u8]) {
        let mut left = bytes;
        while !left.is_empty() {
            let mut past = 0;
            if let Some((call, at, bytes)) = self.client.direct_data() {
                past = bytes.min(left.len());
                self.recorded.copy_data(call, at, &left[..past]);
            }
            let space = self.client.receive_buffer();
            let count = space.len().min(left.len() - past);
            space[..count].copy_from_slice(&left[past..past + count]);
            self.client.handle_received(now, past + count, &mut self.recorded);
            left = &left[past + count..];
        }
    }

    fn tick(&mut self, now: Time) {
        self.client.handle_time(now, &mut self.recorded);
    }
}

/// An accepted reply: mark, id, REPLY, accepted, no verifier, success, results.
fn answer(xid: u32, results: &[u8]) -> Vec<u8> {
    let words = [(24 + results.len() as u32) | 1 << 31, xid, 1, 0, 0, 0, 0];
    [words.map(u32::to_be_bytes).concat(), results.to_vec()].concat()
}

const OK: &[u8] = b"\0\0\0\0fine";

/// Status 10,008: try later.
const LATER: &[u8] = &[0, 0, 0x27, 0x18];

fn ms(ms: u64) -> Time {
    Time::from_ms(ms)
}

#[test]
fn answers_match_their_calls_in_any_order_and_others_are_dropped() {
    let mut rig = Rig::connected(3);
    let calls: Vec<u32> = (0..3).map(|_| rig.call(ms(1))).collect();
    assert_eq!(rig.client.free_slot_count(), 0);
    let xids = rig.sent();
    assert_eq!(xids.len(), 3, "all are sent before any answer");
    let stream =
        [2, 0, 2, 1, 0].map(|at: usize| answer(xids[at], format!("\0\0\0\0{at:4}").as_bytes()));
    // The answers come in small pieces.
    for piece in stream.concat().chunks(7) {
        rig.receive(ms(2), piece);
    }
    let expected =
        [2, 0, 1].map(|at: u32| (calls[at as usize], Ok(format!("\0\0\0\0{at:4}").into())));
    assert_eq!(rig.recorded.ended, expected);
    // A duplicate of the previous answer does not answer the slot's next call.
    rig.call(ms(3));
    rig.receive(ms(4), &stream.concat());
    assert_eq!((rig.recorded.ended.len(), rig.client.in_flight()), (3, 1));
}

#[test]
fn silent_connection_is_replaced_and_all_calls_are_resent() {
    let mut rig = Rig::connected(2);
    rig.call(ms(1));
    rig.call(ms(1));
    let xids = rig.sent();
    assert_eq!(rig.client.next_wake(), Some(ms(1_001)));
    rig.tick(ms(1_000));
    assert_eq!(rig.client.next_action(ms(1_000)), ConnectionAction::Nothing);
    rig.tick(ms(1_001));
    assert_eq!(rig.client.next_action(ms(1_001)), ConnectionAction::Disconnect);
    rig.client.handle_lost(ms(1_001));
    assert_eq!(rig.client.next_action(ms(1_001)), ConnectionAction::Connect, "at once");
    rig.client.handle_connected(ms(1_002));
    assert_eq!(rig.sent(), xids, "under the same ids");
    rig.receive(ms(1_003), &answer(xids[1], OK));
    assert_eq!(rig.recorded.ended.len(), 1);
}

#[test]
fn unanswered_call_is_resent_with_doubling_timeouts() {
    let mut rig = Rig::connected(2);
    rig.call(ms(1));
    let mut xids = rig.sent();
    for again_at in [1_001, 3_001, 7_001] {
        rig.tick(ms(again_at - 1));
        assert_eq!(rig.sent(), []);
        // The server sends an answer to no call, so it is not silent.
        rig.receive(ms(again_at - 1), &answer(0, OK));
        rig.tick(ms(again_at));
        let again = rig.sent();
        assert!(again.len() == 1 && !xids.contains(&again[0]), "under another id");
        xids.extend(again);
        assert_eq!(rig.client.next_action(ms(again_at)), ConnectionAction::Nothing);
    }
    rig.tick(ms(10_000));
    assert_eq!(rig.recorded.ended, []);
    rig.tick(ms(10_001));
    assert_eq!(rig.recorded.ended, [(0, Err(CallError::TimedOut))]);
}

#[test]
fn first_answer_to_any_xid_of_a_call_completes_it() {
    for which in [0, 1] {
        let mut rig = Rig::connected(1);
        rig.call(ms(1));
        let mut xids = rig.sent();
        rig.receive(ms(1_000), &answer(0, OK));
        rig.tick(ms(1_001));
        xids.extend(rig.sent());
        rig.receive(ms(1_002), &answer(xids[which], OK));
        rig.receive(ms(1_003), &answer(xids[1 - which], OK));
        assert_eq!(rig.recorded.ended, [(0, Ok(OK.to_vec()))]);
    }
}

#[test]
fn pauses_between_attempts_to_connect_double_up_to_a_second() {
    let mut rig = Rig::new(1);
    assert_eq!(rig.client.next_action(ms(0)), ConnectionAction::Nothing, "not without a call");
    rig.call(ms(0));
    let mut now = ms(0);
    for pause in [50, 100, 200, 400, 800, 1_000, 1_000] {
        assert_eq!(rig.client.next_action(now), ConnectionAction::Connect);
        rig.client.handle_lost(now);
        assert_eq!(rig.client.next_action(now), ConnectionAction::Nothing);
        assert_eq!(rig.client.next_wake(), Some(now + ms(pause)));
        now += ms(pause);
    }
}

#[test]
fn calls_after_a_timeout_wait_briefly_until_the_server_answers() {
    let mut rig = Rig::new(1);
    rig.call(ms(0));
    rig.tick(ms(9_999));
    assert_eq!(rig.recorded.ended, []);
    rig.tick(ms(10_000));
    assert_eq!(rig.recorded.ended.len(), 1);
    rig.call(ms(20_000));
    rig.tick(ms(21_000));
    assert_eq!(rig.recorded.ended.len(), 2);
    rig.client.handle_connected(ms(30_000));
    rig.call(ms(30_000));
    let xids = rig.sent();
    rig.receive(ms(30_001), &answer(xids[0], OK));
    rig.client.handle_lost(ms(31_000));
    rig.call(ms(31_000));
    rig.tick(ms(40_999));
    assert_eq!(rig.recorded.ended.len(), 3);
}

#[test]
fn jukebox_reply_delays_the_call_and_resends_it_with_a_new_xid() {
    let mut rig = Rig::connected(1);
    rig.call(ms(0));
    let mut xid = rig.sent()[0];
    let mut now = ms(0);
    for rest in [100, 200, 400, 800, 1_600] {
        rig.receive(now, &answer(xid, LATER));
        rig.receive(now, &answer(xid, OK));
        assert_eq!(rig.recorded.ended, [], "nothing is awaited while it rests");
        assert_eq!(rig.client.next_wake(), Some(now + ms(rest)));
        now += ms(rest);
        rig.tick(now);
        let sent = rig.sent();
        assert!(sent.len() == 1 && sent[0] != xid);
        xid = sent[0];
    }
    rig.receive(now, &answer(xid, OK));
    assert_eq!(rig.recorded.ended.len(), 1);
}

#[test]
fn eight_garbled_answers_end_the_call_with_an_error() {
    let mut rig = Rig::connected(1);
    rig.call(ms(0));
    for _ in 0..8 {
        let sent = rig.sent();
        assert_eq!(rig.recorded.ended, []);
        rig.receive(ms(1), &answer(sent[0], rig.recorded.garbage));
    }
    assert_eq!(rig.recorded.ended, [(0, Err(CallError::Garbled))]);
    assert_eq!((rig.sent(), rig.client.in_flight()), (vec![], 0));
}

#[test]
fn non_rpc_bytes_cause_a_reconnect_and_no_other_loss() {
    let mut rig = Rig::connected(1);
    rig.call(ms(0));
    let xids = rig.sent();
    rig.receive(ms(1), b"HTTP/1.1 400 Bad Request\r\n");
    assert_eq!(rig.client.next_action(ms(1)), ConnectionAction::Disconnect);
    rig.client.handle_lost(ms(1));
    assert_eq!(rig.client.next_action(ms(1)), ConnectionAction::Connect);
    rig.client.handle_connected(ms(2));
    assert_eq!(rig.sent(), xids);
    rig.receive(ms(3), &answer(xids[0], OK));
    assert_eq!(rig.recorded.ended.len(), 1);
}

#[test]
fn cancelled_call_receives_no_result() {
    let mut rig = Rig::connected(1);
    let call = rig.call(ms(0));
    let xids = rig.sent();
    rig.client.cancel(CallId(call));
    rig.receive(ms(1), &answer(xids[0], OK));
    rig.tick(ms(60_000));
    assert_eq!((rig.recorded.ended.len(), rig.client.free_slot_count()), (0, 1));
    assert_eq!(rig.client.next_wake(), None);
}

/// Events of a hostile network.
#[derive(Clone, Debug)]
enum HostileEvent {
    Answer {
        which: prop::sample::Index,
        body: Vec<u8>,
    },
    Noise(Vec<u8>),
    Pass {
        ms: u64,
    },
    Cut,
    Call,
    Read,
    /// Data for the call with this id, in fragments, possibly incomplete.
    Data {
        which: prop::sample::Index,
        bytes: u8,
        fragment_bytes: u8,
        cut: prop::sample::Index,
    },
}

fn hostile_event() -> impl Strategy<Value = HostileEvent> {
    let body = prop_oneof![
        3 => Just(OK.to_vec()),
        1 => Just(LATER.to_vec()),
        1 => Just(b"\0\0\0\0BAD!".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    prop_oneof![
        4 => (any::<prop::sample::Index>(), body)
            .prop_map(|(which, body)| HostileEvent::Answer { which, body }),
        1 => prop::collection::vec(any::<u8>(), 1..60).prop_map(HostileEvent::Noise),
        3 => (0u64..3_000).prop_map(|ms| HostileEvent::Pass { ms }),
        1 => Just(HostileEvent::Cut),
        4 => Just(HostileEvent::Call),
        4 => Just(HostileEvent::Read),
        4 => (any::<prop::sample::Index>(), any::<u8>(), 1u8.., any::<prop::sample::Index>())
            .prop_map(|(which, bytes, fragment_bytes, cut)| {
                HostileEvent::Data { which, bytes, fragment_bytes, cut }
            }),
    ]
}

proptest! {
    /// Each call ends once and within its time, with results sent for it or an error, for any
    /// events and times.
    #[test]
    fn every_call_ends_once_and_in_time(events in prop::collection::vec(hostile_event(), 1..120)) {
        let mut rig = Rig::new(4);
        let mut now = ms(0);
        let mut started: BTreeMap<u32, Time> = BTreeMap::new();
        let mut xids: Vec<u32> = vec![0];
        let mut seen = 0;
        let passing = (0..40).map(|_| HostileEvent::Pass { ms: 300 });
        for event in events.into_iter().chain(passing) {
            match event {
                HostileEvent::Call if rig.client.free_slot_count() > 0 => {
                    prop_assert!(started.insert(rig.call(now), now).is_none());
                }
                HostileEvent::Read if rig.client.free_slot_count() > 0 => {
                    let call = rig.read(now, 100);
                    prop_assert!(started.insert(call, now).is_none());
                }
                HostileEvent::Call | HostileEvent::Read => {}
                HostileEvent::Data { which, bytes, fragment_bytes, cut } => {
                    let xid = *which.get(&xids);
                    let reply = data(xid, &bytes_of(xid as u8, bytes.into()));
                    let stream = in_fragments(&reply, fragment_bytes.into());
                    let end = stream.len() - if bytes % 3 == 0 { cut.index(stream.len()) } else { 0 };
                    // In two pieces.
                    let (first, second) = stream[..end].split_at(end / 2);
                    rig.receive(now, first);
                    rig.receive(now, second);
                }
                HostileEvent::Answer { which, body } => {
                    rig.receive(now, &answer(*which.get(&xids), &body));
                }
                HostileEvent::Noise(bytes) => rig.receive(now, &bytes),
                HostileEvent::Pass { ms: span } => now += ms(span),
                HostileEvent::Cut => rig.client.handle_lost(now),
            }
            rig.tick(now);
            match rig.client.next_action(now) {
                ConnectionAction::Nothing => {}
                ConnectionAction::Connect => rig.client.handle_connected(now),
                ConnectionAction::Disconnect => rig.client.handle_lost(now),
            }
            xids.extend(rig.sent());
            let beyond = rig.recorded.memory.values().map(|memory| *memory.last().unwrap());
            prop_assert!(beyond.into_iter().all(|byte| byte == UNTOUCHED));
            for (call, _) in &rig.recorded.ended[seen..] {
                prop_assert!(started.remove(call).is_some(), "it ends once");
            }
            seen = rig.recorded.ended.len();
            for &start in started.values() {
                prop_assert!(now.since(start) < TIMING.give_up_after);
            }
        }
        prop_assert_eq!(rig.client.in_flight(), 0);
        prop_assert_eq!(rig.client.free_slot_count(), 4);
        prop_assert_eq!(rig.client.next_wake(), None);
    }
}
