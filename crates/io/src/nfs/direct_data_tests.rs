//! Tests of rule 6 of the client: data that bypasses the buffer into the memory of its call.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Reply to a READ: its head by RFC 1813, without attributes, and the data.
pub(super) fn data_reply(xid: u32, bytes: &[u8]) -> Vec<u8> {
    let count = bytes.len() as u32;
    let head = [0, 0, count, 0, count].map(u32::to_be_bytes).concat();
    let padding = vec![0; bytes.len().next_multiple_of(4) - bytes.len()];
    answer(xid, &[head, bytes.to_vec(), padding].concat())
}

/// Splits a reply of one fragment into fragments of `fragment_bytes` bytes, each with its header.
pub(super) fn in_fragments(reply: &[u8], fragment_bytes: usize) -> Vec<u8> {
    let parts: Vec<&[u8]> = reply[4..].chunks(fragment_bytes).collect();
    let with_header = |(nth, part): (usize, &&[u8])| {
        let last_flag = if nth + 1 == parts.len() { 1 << 31 } else { 0 };
        [&(part.len() as u32 | last_flag).to_be_bytes()[..], part].concat()
    };
    parts.iter().enumerate().flat_map(with_header).collect()
}

/// Creates `count` bytes that depend on `seed` and differ from their neighbours.
pub(super) fn pattern_bytes(seed: u8, count: usize) -> Vec<u8> {
    (0..count).map(|index| seed.wrapping_add((index as u8).wrapping_mul(7))).collect()
}

/// Two READs, above and below the size at which replies are received one by one, answered in
/// reverse order. The stream, in one fragment or several, is split at every byte; a long one at
/// every 1,777th.
#[test]
fn read_data_reaches_its_calls_memory_for_any_stream_split() {
    for large_bytes in [0, DIRECT_DATA_BYTES_MIN] {
        let sizes = [31 + large_bytes, 18];
        for fragment_bytes in [usize::MAX, 64, 29] {
            // At least the length of the stream: replies of 80 and 68 bytes, and at most four more
            // headers of fragments.
            let stream_bytes: usize = 2 * 44 + 64 + 20;
            let step = if large_bytes > 0 { 1_777 } else { 1 };
            for split in (0..stream_bytes + large_bytes as usize).step_by(step) {
                let mut bench = ClientBench::connected(2);
                let calls = sizes.map(|bytes| bench.start_read(ms(0), bytes));
                let xids = bench.take_sent_xids();
                let read_bytes = |nth: usize| pattern_bytes(nth as u8, sizes[nth] as usize);
                let replies = [1, 0].map(|nth: usize| {
                    in_fragments(&data_reply(xids[nth], &read_bytes(nth)), fragment_bytes)
                });
                let stream = replies.concat();
                let (first, second) = stream.split_at(split.min(stream.len()));
                bench.receive(ms(1), first);
                bench.receive(ms(1), second);
                let expected = [1, 0].map(|nth: usize| (calls[nth], Ok(read_bytes(nth))));
                assert!(bench.recorded.ended == expected, "{split}");
            }
        }
    }
}

/// A READ of 100 bytes ends, by cancellation or timeout, after 80 or 90 of 148 bytes of its reply.
/// The rest arrives while the next READ uses the same slot.
#[test]
fn data_of_an_ended_call_is_discarded() {
    for is_cancelled in [true, false] {
        let mut bench = ClientBench::connected(1);
        let call = bench.start_read(ms(0), 100);
        let reply = data_reply(bench.take_sent_xids()[0], &pattern_bytes(1, 100));
        bench.receive(ms(1), &reply[..80]);
        let mut received = 80;
        assert!(bench.client.direct_data().is_some());
        if is_cancelled {
            bench.client.cancel(CallId(call));
        } else {
            // A byte each 900 ms, as a silent connection would be closed after a second.
            for nth in 0..10 {
                bench.receive(ms(901 + 900 * nth as u64), &reply[80 + nth..81 + nth]);
                received = 81 + nth;
            }
            bench.handle_time(ms(10_000));
            assert_eq!(bench.recorded.ended, [(call, Err(CallError::TimedOut))]);
        }
        // The slot's next call has other memory.
        bench.recorded.memory.clear();
        let next_call = bench.start_read(ms(10_001), 100);
        let xids = bench.take_sent_xids();
        bench.receive(ms(10_002), &reply[received..]);
        assert!(bench.recorded.memory[&next_call].iter().all(|&byte| byte == UNTOUCHED));
        bench.receive(ms(10_003), &data_reply(*xids.last().unwrap(), b"fresh"));
        assert_eq!(bench.recorded.ended.last(), Some(&(next_call, Ok(b"fresh".to_vec()))));
    }
}

/// Heads with more bytes than requested, a record length that does not match, an invalid flag, or
/// an unknown id: no byte is written.
#[test]
fn inconsistent_reply_header_writes_no_data() {
    let mut changed_replies: Vec<Vec<u8>> = Vec::new();
    let valid_reply = |xid| data_reply(xid, &pattern_bytes(1, 100));
    let mut bench = ClientBench::connected(1);
    bench.start_read(ms(0), 100);
    let xid = bench.take_sent_xids()[0];
    // Words of the reply: 0 record mark (144 bytes), 1 id, 8 flag of the attributes, 9 count, 11
    // data length.
    for (word, value) in [(0, 1 << 31 | 148), (1, xid ^ 1 << 20), (9, 104), (11, 104), (8, 7)] {
        let mut reply = valid_reply(xid);
        reply[word * 4..word * 4 + 4].copy_from_slice(&u32::to_be_bytes(value));
        changed_replies.push(reply);
    }
    for reply in changed_replies {
        let mut bench = ClientBench::connected(1);
        let call = bench.start_read(ms(0), 100);
        assert_eq!(bench.take_sent_xids(), [xid]);
        // Incomplete, as only such a reply is diverted.
        bench.receive(ms(1), &reply[..reply.len() - 8]);
        assert_eq!(bench.client.direct_data(), None);
        assert!(bench.recorded.memory[&call].iter().all(|&byte| byte == UNTOUCHED));
    }
}

/// The connection breaks after 80 of the 148 bytes of a reply. The READ is sent again on the next
/// one, and its memory then contains the second reply.
#[test]
fn connection_lost_within_data_resends_the_read() {
    let mut bench = ClientBench::connected(1);
    let call = bench.start_read(ms(0), 100);
    let xids = bench.take_sent_xids();
    bench.receive(ms(1), &data_reply(xids[0], &pattern_bytes(1, 100))[..80]);
    bench.client.handle_lost(ms(2));
    assert_eq!(
        (bench.client.next_action(ms(2)), bench.recorded.ended.len()),
        (ConnectionAction::Connect, 0)
    );
    bench.client.handle_connected(ms(3));
    assert_eq!(bench.take_sent_xids(), xids);
    bench.receive(ms(4), &data_reply(xids[0], &pattern_bytes(2, 100)));
    assert_eq!(bench.recorded.ended, [(call, Ok(pattern_bytes(2, 100)))]);
}

/// The head announces 100 bytes of data. The record ends after a fragment of 64 bytes and one of
/// 2 bytes, which arrive byte by byte.
#[test]
fn record_shorter_than_its_data_is_requested_again() {
    let mut bench = ClientBench::connected(1);
    bench.start_read(ms(0), 100);
    let reply = data_reply(bench.take_sent_xids()[0], &pattern_bytes(1, 100));
    let fragments = [&in_fragments(&reply, 64)[..68], &[0x80, 0, 0, 2, 7, 7]].concat();
    for byte in fragments {
        bench.receive(ms(1), &[byte]);
    }
    assert_eq!(bench.recorded.ended, []);
    let resent_xids = bench.take_sent_xids();
    assert_eq!(resent_xids.len(), 1);
    bench.receive(ms(2), &data_reply(resent_xids[0], b"whole"));
    assert_eq!(bench.recorded.ended, [(0, Ok(b"whole".to_vec()))]);
}

proptest! {
    /// Replies are late, duplicated, cut off with their connection, or in fragments and pieces of
    /// any size. Each READ ends with the bytes of one of its own replies.
    #[test]
    fn reads_return_the_bytes_of_their_own_replies(
        events in prop::collection::vec(
            (0u8..9, any::<prop::sample::Index>(), 1usize..90, 1usize..300), 1..80),
    ) {
        // Each id has other data.
        let data_of_xid = |xid: u32| pattern_bytes((xid >> SLOT_BITS) as u8, 100);
        let mut bench = ClientBench::connected(3);
        let mut now = ms(0);
        // Ids that the server has seen on this connection, and all ids of each call.
        let mut seen_xids: Vec<u32> = Vec::new();
        let mut own_xids: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (kind, random_index, fragment_bytes, piece_bytes) in events {
            // Kinds 0 to 2 start a READ, 3 to 6 answer one, 7 waits, 8 cancels one.
            match kind {
                0..3 if bench.client.free_slot_count() > 0 => {
                    let call = bench.start_read(now, 100);
                    own_xids.insert(call, Vec::new());
                }
                3..7 if !seen_xids.is_empty() => {
                    let xid = *random_index.get(&seen_xids);
                    let reply = in_fragments(&data_reply(xid, &data_of_xid(xid)), fragment_bytes);
                    // Kind 6: the connection breaks within the reply.
                    let end = if kind == 6 { random_index.index(reply.len()) } else { reply.len() };
                    for piece in reply[..end].chunks(piece_bytes) {
                        bench.receive(now, piece);
                        now += ms(piece_bytes as u64);
                        bench.handle_time(now);
                    }
                    if kind == 6 {
                        bench.client.handle_lost(now);
                        seen_xids.clear();
                    }
                }
                7 => now += ms(400),
                8 => {
                    let in_flight = bench.recorded.memory.pop_first();
                    in_flight.inspect(|(call, _)| bench.client.cancel(CallId(*call)));
                }
                _ => {}
            }
            bench.handle_time(now);
            match bench.client.next_action(now) {
                ConnectionAction::Nothing => {}
                ConnectionAction::Connect => bench.client.handle_connected(now),
                ConnectionAction::Disconnect => {
                    bench.client.handle_lost(now);
                    seen_xids.clear();
                }
            }
            for xid in bench.take_sent_xids() {
                own_xids.get_mut(&(xid & (SLOTS_MAX - 1))).unwrap().push(xid);
                seen_xids.push(xid);
            }
            for (call, result) in bench.recorded.ended.drain(..) {
                let Ok(got) = result else { continue };
                prop_assert!(own_xids[&call].iter().any(|&xid| got == data_of_xid(xid)));
            }
        }
    }
}

/// The data of a READ arrives in 5,000 ms, a quarter each 1,250 ms. Neither it nor the call behind
/// it is sent again, with a timeout of 1,251 ms.
#[test]
fn arriving_data_restarts_the_timeouts_of_its_call_and_of_later_ones() {
    let timing = Timing { repeat_after: ms(1_251), give_up_after: ms(10_000) };
    let mut bench = ClientBench::connected(2);
    bench.client.timing = timing;
    let bytes = pattern_bytes(1, DIRECT_DATA_BYTES_MIN as usize);
    bench.start_read(ms(0), bytes.len() as u32);
    bench.start_call(ms(1));
    let xids = bench.take_sent_xids();
    let reply = data_reply(xids[0], &bytes);
    for (nth, part) in reply.chunks(reply.len().div_ceil(4)).enumerate() {
        let at_ms = 1_250 * (nth as u64 + 1);
        bench.handle_time(ms(at_ms));
        assert_eq!(bench.take_sent_xids(), [], "at {at_ms} ms");
        bench.receive(ms(at_ms), part);
    }
    assert!(bench.recorded.ended == [(0, Ok(bytes))]);
    bench.receive(ms(6_250), &answer(xids[1], OK_RESULTS));
    assert_eq!((bench.recorded.ended.len(), bench.client.traffic().repeats), (2, 0));
}
