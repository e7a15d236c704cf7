//! Tests of the client's rules with answers written by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[path = "direct_data_tests.rs"]
mod direct_data;

use direct_data::{data_reply, in_fragments, pattern_bytes};

const TIMING: Timing =
    Timing { repeat_after: Time::from_ms(1_000), give_up_after: Time::from_ms(10_000) };

impl Client {
    /// Number of further calls that can be made now.
    fn free_slot_count(&self) -> u32 {
        self.free_slots.len() as u32
    }
}

/// A client with its recorded results. The test provides the received bytes and the time.
struct ClientBench {
    client: Client,
    recorded: RecordedResults,
}

/// Results of ended calls, and the memory of READs.
struct RecordedResults {
    /// Number of each ended call, with its results, data or error.
    ended: Vec<(u32, Result<Vec<u8>, CallError>)>,
    /// Results with this prefix are reported as garbled.
    garbled_prefix: &'static [u8],
    /// Memory by call. A guard byte, which must not be written to, follows the last byte.
    memory: BTreeMap<u32, Vec<u8>>,
}

/// Value of bytes that were never written to.
const UNTOUCHED: u8 = 0xee;

impl Caller for RecordedResults {
    /// Records the end of a call, and removes its memory.
    fn on_call_end(
        &mut self,
        call: CallId,
        results: Result<CallResults<'_>, CallError>,
    ) -> Result<(), Garbled> {
        let memory = self.memory.get(&call.0);
        let results = match results {
            Ok(CallResults::Whole(results)) if results.starts_with(self.garbled_prefix) => {
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

    fn copy_data(&mut self, call: CallId, data_offset: usize, data: &[u8]) {
        // This panics if the call has ended.
        let memory = self.memory.get_mut(&call.0).unwrap();
        memory[data_offset..data_offset + data.len()].copy_from_slice(data);
    }

    fn data_memory(&self, _: CallId, _: usize, _: usize, _: &mut Vec<libc::iovec>) {
        unreachable!("the bench writes as the socket would");
    }
}

impl ClientBench {
    /// Creates an unconnected client for `slot_count` calls.
    fn new(slot_count: u32) -> ClientBench {
        let (no_credentials, reply_bytes_max, sequence) = (vec![], 20_000, 77);
        let client = Client::new(no_credentials, TIMING, slot_count, reply_bytes_max, sequence);
        let (ended, memory) = (Vec::new(), BTreeMap::new());
        let garbled_prefix = GARBLED_RESULTS;
        ClientBench { client, recorded: RecordedResults { ended, garbled_prefix, memory } }
    }

    /// Creates a client that is connected at time 0.
    fn connected(slot_count: u32) -> ClientBench {
        let mut bench = ClientBench::new(slot_count);
        bench.client.handle_connected(Time::ZERO);
        bench
    }

    /// Starts a GETATTR and returns its number.
    fn start_call(&mut self, now: Time) -> u32 {
        let no_data_bytes = 0;
        self.client.call(now, procedures::GETATTR, no_data_bytes, |_| {}).0
    }

    /// Starts a READ of `bytes` bytes into untouched memory, and returns its number.
    fn start_read(&mut self, now: Time, bytes: u32) -> u32 {
        let call = self.client.call(now, procedures::READ, bytes, |_| {}).0;
        self.recorded.memory.insert(call, vec![UNTOUCHED; bytes as usize + 1]);
        call
    }

    /// Sends the unsent messages, and returns their transaction ids.
    fn take_sent_xids(&mut self) -> Vec<u32> {
        let (mut xids, mut offset) = (Vec::new(), 0);
        let bytes = self.client.unsent_bytes().to_vec();
        let word_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        while offset < bytes.len() {
            // A message is its record mark, which contains its length, its id and the rest.
            xids.push(word_at(offset + 4));
            offset += 4 + (word_at(offset) & 0x7fff_ffff) as usize;
        }
        self.client.handle_sent(bytes.len());
        xids
    }

    /// Passes the bytes to the client, each time as many as it accepts.
    fn receive(&mut self, now: Time, bytes: &[u8]) {
        let mut left = bytes;
        while !left.is_empty() {
            let mut direct_bytes = 0;
            if let Some((call, data_offset, bytes)) = self.client.direct_data() {
                direct_bytes = bytes.min(left.len());
                self.recorded.copy_data(call, data_offset, &left[..direct_bytes]);
            }
            let space = self.client.receive_buffer();
            let count = space.len().min(left.len() - direct_bytes);
            space[..count].copy_from_slice(&left[direct_bytes..direct_bytes + count]);
            self.client.handle_received(now, direct_bytes + count, &mut self.recorded);
            left = &left[direct_bytes + count..];
        }
    }

    /// Handles the client's timeouts at time `now`.
    fn handle_time(&mut self, now: Time) {
        self.client.handle_time(now, &mut self.recorded);
    }
}

/// An accepted reply: mark, id, REPLY, accepted, no verifier, success, results.
fn answer(xid: u32, results: &[u8]) -> Vec<u8> {
    let words = [(24 + results.len() as u32) | 1 << 31, xid, 1, 0, 0, 0, 0];
    [words.map(u32::to_be_bytes).concat(), results.to_vec()].concat()
}

/// Results with status 0.
const OK_RESULTS: &[u8] = b"\0\0\0\0fine";

/// Results that the caller reports as garbled.
const GARBLED_RESULTS: &[u8] = b"\0\0\0\0BAD!";

/// Results with status 10,008 (`NFS3ERR_JUKEBOX`): try later.
const POSTPONED_RESULTS: &[u8] = &[0, 0, 0x27, 0x18];

fn ms(ms: u64) -> Time {
    Time::from_ms(ms)
}

#[test]
fn answers_match_their_calls_in_any_order_and_others_are_dropped() {
    let mut bench = ClientBench::connected(3);
    let calls: Vec<u32> = (0..3).map(|_| bench.start_call(ms(1))).collect();
    assert_eq!(bench.client.free_slot_count(), 0);
    let xids = bench.take_sent_xids();
    assert_eq!(xids.len(), 3, "all calls are sent before any answer");
    // Indices of the calls in the order of their answers. Two are answered twice.
    let stream =
        [2, 0, 2, 1, 0].map(|nth: usize| answer(xids[nth], format!("\0\0\0\0{nth:4}").as_bytes()));
    // The answers come in small pieces.
    for piece in stream.concat().chunks(7) {
        bench.receive(ms(2), piece);
    }
    let expected =
        [2, 0, 1].map(|nth: u32| (calls[nth as usize], Ok(format!("\0\0\0\0{nth:4}").into())));
    assert_eq!(bench.recorded.ended, expected);
    // A duplicate of the previous answer does not answer the slot's next call.
    bench.start_call(ms(3));
    bench.receive(ms(4), &stream.concat());
    assert_eq!((bench.recorded.ended.len(), bench.client.in_flight()), (3, 1));
}

/// Two calls at 1 ms, and no byte from the server. At 1,001 ms, `repeat_after` later, the
/// connection is given up.
#[test]
fn silent_connection_is_replaced_and_all_calls_are_resent() {
    let mut bench = ClientBench::connected(2);
    bench.start_call(ms(1));
    bench.start_call(ms(1));
    let xids = bench.take_sent_xids();
    assert_eq!(bench.client.next_wake(), Some(ms(1_001)));
    bench.handle_time(ms(1_000));
    assert_eq!(bench.client.next_action(ms(1_000)), ConnectionAction::Nothing);
    bench.handle_time(ms(1_001));
    assert_eq!(bench.client.next_action(ms(1_001)), ConnectionAction::Disconnect);
    bench.client.handle_lost(ms(1_001));
    assert_eq!(
        bench.client.next_action(ms(1_001)),
        ConnectionAction::Connect,
        "the client connects at once"
    );
    bench.client.handle_connected(ms(1_002));
    assert_eq!(bench.take_sent_xids(), xids, "calls are sent again under the same ids");
    bench.receive(ms(1_003), &answer(xids[1], OK_RESULTS));
    assert_eq!(bench.recorded.ended.len(), 1);
}

/// A call at 1 ms. Its timeouts of 1,000, 2,000 and 4,000 ms end at 1,001, 3,001 and 7,001 ms. The
/// call fails at 10,001 ms, `give_up_after` later.
#[test]
fn unanswered_call_is_resent_with_doubling_timeouts() {
    let mut bench = ClientBench::connected(2);
    bench.start_call(ms(1));
    let mut xids = bench.take_sent_xids();
    for resend_ms in [1_001, 3_001, 7_001] {
        bench.handle_time(ms(resend_ms - 1));
        assert_eq!(bench.take_sent_xids(), []);
        // The server sends an answer to no call, so it is not silent.
        bench.receive(ms(resend_ms - 1), &answer(0, OK_RESULTS));
        bench.handle_time(ms(resend_ms));
        let again = bench.take_sent_xids();
        assert!(
            again.len() == 1 && !xids.contains(&again[0]),
            "the call is sent again under another id"
        );
        xids.extend(again);
        assert_eq!(bench.client.next_action(ms(resend_ms)), ConnectionAction::Nothing);
    }
    bench.handle_time(ms(10_000));
    assert_eq!(bench.recorded.ended, []);
    bench.handle_time(ms(10_001));
    assert_eq!(bench.recorded.ended, [(0, Err(CallError::TimedOut))]);
}

/// Three calls at 1 ms. The program is paused until 15,000 ms, and then receives the first answer:
/// the others wait behind it. By hand: the first timeout, at 1,001 ms, is missed by 13,999 ms. The
/// others thus fail at 24,000 ms in place of 10,001 ms. The second answer is the last one. A call
/// at 14,000 ms, within the pause, fails at 25,000 ms. Without any answer, all fail after the
/// pause.
#[test]
fn answers_that_waited_for_a_paused_program_are_not_late() {
    let mut bench = ClientBench::connected(4);
    for _ in 0..3 {
        bench.start_call(ms(1));
    }
    let xids = bench.take_sent_xids();
    bench.start_call(ms(14_000));
    bench.receive(ms(15_000), &answer(xids[0], OK_RESULTS));
    bench.handle_time(ms(15_000));
    bench.receive(ms(15_100), &answer(xids[1], OK_RESULTS));
    bench.handle_time(ms(15_100));
    assert_eq!((bench.recorded.ended.len(), bench.client.traffic().repeats), (2, 0));
    bench.handle_time(ms(23_999));
    assert_eq!(bench.recorded.ended.len(), 2);
    bench.handle_time(ms(24_000));
    assert_eq!(bench.recorded.ended[2].1, Err(CallError::TimedOut));
    bench.handle_time(ms(24_999));
    assert_eq!(bench.recorded.ended.len(), 3);
    bench.handle_time(ms(25_000));
    assert_eq!(bench.recorded.ended.len(), 4);

    let mut silent = ClientBench::connected(3);
    for _ in 0..3 {
        silent.start_call(ms(1));
    }
    silent.handle_time(ms(15_000));
    assert_eq!(silent.recorded.ended.len(), 3);
}

/// Eight calls are answered in their order, one each 600 ms. The last one waits 4,800 ms for the
/// others, and none is sent again although the timeout is 1,000 ms.
#[test]
fn calls_behind_other_answers_are_not_resent() {
    let mut bench = ClientBench::connected(8);
    for nth in 0..8 {
        bench.start_call(ms(nth));
    }
    for (nth, xid) in bench.take_sent_xids().into_iter().enumerate() {
        let at_ms = 600 * (nth as u64 + 1);
        bench.handle_time(ms(at_ms - 1));
        assert_eq!(bench.take_sent_xids(), [], "before {at_ms} ms");
        bench.receive(ms(at_ms), &answer(xid, OK_RESULTS));
    }
    assert_eq!((bench.recorded.ended.len(), bench.client.traffic().repeats), (8, 0));
}

/// The server drops the second of four calls, and answers the others at 600, 1,200 and 1,800 ms.
/// The first answer restarts its timeout of 1,000 ms, and the answers to later calls do not.
#[test]
fn dropped_call_is_resent_while_later_calls_are_answered() {
    let mut bench = ClientBench::connected(4);
    for nth in 0..4 {
        bench.start_call(ms(nth));
    }
    let xids = bench.take_sent_xids();
    for (nth, at_ms) in [(0, 600), (2, 1_200)] {
        bench.receive(ms(at_ms), &answer(xids[nth], OK_RESULTS));
    }
    bench.handle_time(ms(1_599));
    assert_eq!(bench.take_sent_xids(), []);
    assert_eq!(bench.client.next_wake(), Some(ms(1_600)));
    bench.handle_time(ms(1_600));
    assert_eq!(bench.take_sent_xids().len(), 1);
    bench.receive(ms(1_800), &answer(xids[3], OK_RESULTS));
    assert_eq!((bench.client.in_flight(), bench.client.traffic().repeats), (1, 1));
}

/// Calls at 0 and 1 ms. The first is answered at 600 ms, which restarts the timeout of 1,000 ms of
/// the second. No byte follows, so the connection is given up at 1,600 ms.
#[test]
fn connection_that_falls_silent_after_an_answer_is_replaced_at_the_first_timeout() {
    let mut bench = ClientBench::connected(2);
    bench.start_call(ms(0));
    bench.start_call(ms(1));
    let xids = bench.take_sent_xids();
    bench.receive(ms(600), &answer(xids[0], OK_RESULTS));
    bench.handle_time(ms(1_599));
    assert_eq!(bench.client.next_action(ms(1_599)), ConnectionAction::Nothing);
    bench.handle_time(ms(1_600));
    assert_eq!(bench.client.next_action(ms(1_600)), ConnectionAction::Disconnect);
    assert_eq!(bench.client.traffic().repeats, 0);
}

/// A call is sent twice, under two ids, and both are answered, in either order.
#[test]
fn first_answer_to_any_xid_of_a_call_completes_it() {
    for first_answered in [0, 1] {
        let mut bench = ClientBench::connected(1);
        bench.start_call(ms(1));
        let mut xids = bench.take_sent_xids();
        bench.receive(ms(1_000), &answer(0, OK_RESULTS));
        bench.handle_time(ms(1_001));
        xids.extend(bench.take_sent_xids());
        bench.receive(ms(1_002), &answer(xids[first_answered], OK_RESULTS));
        bench.receive(ms(1_003), &answer(xids[1 - first_answered], OK_RESULTS));
        assert_eq!(bench.recorded.ended, [(0, Ok(OK_RESULTS.to_vec()))]);
    }
}

#[test]
fn pauses_between_attempts_to_connect_double_up_to_a_second() {
    let mut bench = ClientBench::new(1);
    assert_eq!(
        bench.client.next_action(ms(0)),
        ConnectionAction::Nothing,
        "the client connects only for a call"
    );
    bench.start_call(ms(0));
    let mut now = ms(0);
    for pause_ms in [50, 100, 200, 400, 800, 1_000, 1_000] {
        assert_eq!(bench.client.next_action(now), ConnectionAction::Connect);
        bench.client.handle_lost(now);
        assert_eq!(bench.client.next_action(now), ConnectionAction::Nothing);
        assert_eq!(bench.client.next_wake(), Some(now + ms(pause_ms)));
        now += ms(pause_ms);
    }
}

/// The first call fails after `give_up_after` (10,000 ms). The second fails after `repeat_after`
/// (1,000 ms). The third is answered, so the fourth again has 10,000 ms.
#[test]
fn calls_after_a_timeout_wait_briefly_until_the_server_answers() {
    let mut bench = ClientBench::new(1);
    bench.start_call(ms(0));
    bench.handle_time(ms(9_999));
    assert_eq!(bench.recorded.ended, []);
    bench.handle_time(ms(10_000));
    assert_eq!(bench.recorded.ended.len(), 1);
    bench.start_call(ms(20_000));
    bench.handle_time(ms(21_000));
    assert_eq!(bench.recorded.ended.len(), 2);
    bench.client.handle_connected(ms(30_000));
    bench.start_call(ms(30_000));
    let xids = bench.take_sent_xids();
    bench.receive(ms(30_001), &answer(xids[0], OK_RESULTS));
    bench.client.handle_lost(ms(31_000));
    bench.start_call(ms(31_000));
    bench.handle_time(ms(40_999));
    assert_eq!(bench.recorded.ended.len(), 3);
}

/// A limit of a call equal to the time of repetition: the silent connection is replaced as with a
/// larger limit, by rule 1. An answer of the server during the call keeps it.
#[test]
fn silent_connection_is_closed_when_its_call_fails() {
    for (answers, expected) in
        [(false, ConnectionAction::Disconnect), (true, ConnectionAction::Nothing)]
    {
        let mut bench = ClientBench::connected(2);
        bench.client.timing.give_up_after = ms(1_000);
        bench.start_call(ms(1));
        if answers {
            bench.start_call(ms(1));
            let xids = bench.take_sent_xids();
            bench.receive(ms(2), &answer(xids[1], OK_RESULTS));
        }
        let ended_before = bench.recorded.ended.len();
        bench.handle_time(ms(1_001));
        assert_eq!(bench.recorded.ended.len(), ended_before + 1);
        assert_eq!(bench.client.next_action(ms(1_001)), expected);
    }
}

/// The server postpones the call five times. The rests double, and an answer during a rest is
/// dropped.
#[test]
fn jukebox_reply_delays_the_call_and_resends_it_with_a_new_xid() {
    let mut bench = ClientBench::connected(1);
    bench.start_call(ms(0));
    let mut xid = bench.take_sent_xids()[0];
    let mut now = ms(0);
    for rest_ms in [100, 200, 400, 800, 1_600] {
        bench.receive(now, &answer(xid, POSTPONED_RESULTS));
        bench.receive(now, &answer(xid, OK_RESULTS));
        assert_eq!(bench.recorded.ended, [], "an answer to a postponed call is ignored");
        assert_eq!(bench.client.next_wake(), Some(now + ms(rest_ms)));
        now += ms(rest_ms);
        bench.handle_time(now);
        let sent = bench.take_sent_xids();
        assert!(sent.len() == 1 && sent[0] != xid);
        xid = sent[0];
    }
    bench.receive(now, &answer(xid, OK_RESULTS));
    assert_eq!(bench.recorded.ended.len(), 1);
}

#[test]
fn eight_garbled_answers_end_the_call_with_an_error() {
    let mut bench = ClientBench::connected(1);
    bench.start_call(ms(0));
    for _ in 0..8 {
        let sent = bench.take_sent_xids();
        assert_eq!(bench.recorded.ended, []);
        bench.receive(ms(1), &answer(sent[0], bench.recorded.garbled_prefix));
    }
    assert_eq!(bench.recorded.ended, [(0, Err(CallError::Garbled))]);
    assert_eq!((bench.take_sent_xids(), bench.client.in_flight()), (vec![], 0));
}

/// The call is sent again on the next connection, under its old id, and answered there.
#[test]
fn non_rpc_bytes_cause_a_reconnect_and_no_other_loss() {
    let mut bench = ClientBench::connected(1);
    bench.start_call(ms(0));
    let xids = bench.take_sent_xids();
    bench.receive(ms(1), b"HTTP/1.1 400 Bad Request\r\n");
    assert_eq!(bench.client.next_action(ms(1)), ConnectionAction::Disconnect);
    bench.client.handle_lost(ms(1));
    assert_eq!(bench.client.next_action(ms(1)), ConnectionAction::Connect);
    bench.client.handle_connected(ms(2));
    assert_eq!(bench.take_sent_xids(), xids);
    bench.receive(ms(3), &answer(xids[0], OK_RESULTS));
    assert_eq!(bench.recorded.ended.len(), 1);
}

#[test]
fn cancelled_call_receives_no_result() {
    let mut bench = ClientBench::connected(1);
    let call = bench.start_call(ms(0));
    let xids = bench.take_sent_xids();
    bench.client.cancel(CallId(call));
    bench.receive(ms(1), &answer(xids[0], OK_RESULTS));
    bench.handle_time(ms(60_000));
    assert_eq!((bench.recorded.ended.len(), bench.client.free_slot_count()), (0, 1));
    assert_eq!(bench.client.next_wake(), None);
}

/// Events of a hostile network.
#[derive(Clone, Debug)]
enum HostileEvent {
    /// A reply with these results to the call with one of the sent ids.
    Answer { xid_index: prop::sample::Index, body: Vec<u8> },
    /// Arbitrary bytes.
    Noise(Vec<u8>),
    /// Time passes.
    Pass { ms: u64 },
    /// The connection is lost.
    Cut,
    /// A GETATTR is started if a slot is free.
    Call,
    /// A READ of 100 bytes is started if a slot is free.
    Read,
    /// Data for the call with one of the sent ids, in fragments, possibly incomplete.
    Data {
        xid_index: prop::sample::Index,
        bytes: u8,
        fragment_bytes: u8,
        cut_index: prop::sample::Index,
    },
}

/// Generates a hostile event. Half of the replies have valid results.
fn hostile_event() -> impl Strategy<Value = HostileEvent> {
    let body = prop_oneof![
        3 => Just(OK_RESULTS.to_vec()),
        1 => Just(POSTPONED_RESULTS.to_vec()),
        1 => Just(GARBLED_RESULTS.to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    prop_oneof![
        4 => (any::<prop::sample::Index>(), body)
            .prop_map(|(xid_index, body)| HostileEvent::Answer { xid_index, body }),
        1 => prop::collection::vec(any::<u8>(), 1..60).prop_map(HostileEvent::Noise),
        3 => (0u64..3_000).prop_map(|ms| HostileEvent::Pass { ms }),
        1 => Just(HostileEvent::Cut),
        4 => Just(HostileEvent::Call),
        4 => Just(HostileEvent::Read),
        4 => (any::<prop::sample::Index>(), any::<u8>(), 1u8.., any::<prop::sample::Index>())
            .prop_map(|(xid_index, bytes, fragment_bytes, cut_index)| {
                HostileEvent::Data { xid_index, bytes, fragment_bytes, cut_index }
            }),
    ]
}

proptest! {
    /// Each call ends once and within its time, with results sent for it or an error, for any
    /// events and times.
    #[test]
    fn every_call_ends_once_and_in_time(events in prop::collection::vec(hostile_event(), 1..120)) {
        let mut bench = ClientBench::new(4);
        let mut now = ms(0);
        let mut started: BTreeMap<u32, Time> = BTreeMap::new();
        let mut xids: Vec<u32> = vec![0];
        let mut checked_ends = 0;
        // At the end 12 s pass, more than `give_up_after`.
        let passing = (0..40).map(|_| HostileEvent::Pass { ms: 300 });
        for event in events.into_iter().chain(passing) {
            match event {
                HostileEvent::Call if bench.client.free_slot_count() > 0 => {
                    prop_assert!(started.insert(bench.start_call(now), now).is_none());
                }
                HostileEvent::Read if bench.client.free_slot_count() > 0 => {
                    let call = bench.start_read(now, 100);
                    prop_assert!(started.insert(call, now).is_none());
                }
                HostileEvent::Call | HostileEvent::Read => {}
                HostileEvent::Data { xid_index, bytes, fragment_bytes, cut_index } => {
                    let xid = *xid_index.get(&xids);
                    let reply = data_reply(xid, &pattern_bytes(xid as u8, bytes.into()));
                    let stream = in_fragments(&reply, fragment_bytes.into());
                    // A third of the replies are cut short.
                    let is_cut = bytes % 3 == 0;
                    let missing_bytes = if is_cut { cut_index.index(stream.len()) } else { 0 };
                    let end = stream.len() - missing_bytes;
                    // In two pieces.
                    let (first, second) = stream[..end].split_at(end / 2);
                    bench.receive(now, first);
                    bench.receive(now, second);
                }
                HostileEvent::Answer { xid_index, body } => {
                    bench.receive(now, &answer(*xid_index.get(&xids), &body));
                }
                HostileEvent::Noise(bytes) => bench.receive(now, &bytes),
                HostileEvent::Pass { ms: span } => now += ms(span),
                HostileEvent::Cut => bench.client.handle_lost(now),
            }
            bench.handle_time(now);
            match bench.client.next_action(now) {
                ConnectionAction::Nothing => {}
                ConnectionAction::Connect => bench.client.handle_connected(now),
                ConnectionAction::Disconnect => bench.client.handle_lost(now),
            }
            xids.extend(bench.take_sent_xids());
            let guard_bytes = bench.recorded.memory.values().map(|memory| *memory.last().unwrap());
            prop_assert!(guard_bytes.into_iter().all(|byte| byte == UNTOUCHED));
            for (call, _) in &bench.recorded.ended[checked_ends..] {
                prop_assert!(started.remove(call).is_some(), "each call ends once");
            }
            checked_ends = bench.recorded.ended.len();
            for &start in started.values() {
                prop_assert!(now.since(start) < TIMING.give_up_after);
            }
        }
        prop_assert_eq!(bench.client.in_flight(), 0);
        prop_assert_eq!(bench.client.free_slot_count(), 4);
        prop_assert_eq!(bench.client.next_wake(), None);
    }
}
