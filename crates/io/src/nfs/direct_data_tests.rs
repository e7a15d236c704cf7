//! Tests of rule 6 of the client: data that bypasses the buffer into the memory of its call.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Reply to a READ: its head by RFC 1813, without attributes, and the data.
pub(super) fn data(xid: u32, bytes: &[u8]) -> Vec<u8> {
    let count = bytes.len() as u32;
    let head = [0, 0, count, 0, count].map(u32::to_be_bytes).concat();
    let padding = vec![0; bytes.len().next_multiple_of(4) - bytes.len()];
    answer(xid, &[head, bytes.to_vec(), padding].concat())
}

/// Splits the same record into fragments of `bytes` bytes.
pub(super) fn in_fragments(reply: &[u8], bytes: usize) -> Vec<u8> {
    let parts: Vec<&[u8]> = reply[4..].chunks(bytes).collect();
    let marked = |(at, part): (usize, &&[u8])| {
        let last = if at + 1 == parts.len() { 1 << 31 } else { 0 };
        [&(part.len() as u32 | last).to_be_bytes()[..], part].concat()
    };
    parts.iter().enumerate().flat_map(marked).collect()
}

pub(super) fn bytes_of(seed: u8, count: usize) -> Vec<u8> {
    (0..count).map(|at| seed.wrapping_add((at as u8).wrapping_mul(7))).collect()
}

/// Two READs, above and below the size at which replies are received one by one, answered in
/// reverse order. The stream is split at every byte, in one fragment and in several.
#[test]
fn read_data_reaches_its_calls_memory_for_any_stream_split() {
    for large in [0, DIRECT_DATA_BYTES_MIN] {
        let sizes = [31 + large, 18];
        for fragment_bytes in [usize::MAX, 64, 29] {
            let whole: usize = 2 * 44 + 64 + 20;
            let step = if large > 0 { 1_777 } else { 1 };
            for split in (0..whole + large as usize).step_by(step) {
                let mut rig = Rig::connected(2);
                let calls = sizes.map(|bytes| rig.read(ms(0), bytes));
                let xids = rig.sent();
                let replies = [1, 0].map(|at: usize| {
                    let reply = data(xids[at], &bytes_of(at as u8, sizes[at] as usize));
                    in_fragments(&reply, fragment_bytes)
                });
                let stream = replies.concat();
                let (first, second) = stream.split_at(split.min(stream.len()));
                rig.receive(ms(1), first);
                rig.receive(ms(1), second);
                let expected =
                    [1, 0].map(|at: usize| (calls[at], Ok(bytes_of(at as u8, sizes[at] as usize))));
                assert!(rig.recorded.ended == expected, "{split}");
            }
        }
    }
}

#[test]
fn data_of_an_ended_call_is_discarded() {
    for is_cancelled in [true, false] {
        let mut rig = Rig::connected(1);
        let call = rig.read(ms(0), 100);
        let reply = data(rig.sent()[0], &bytes_of(1, 100));
        rig.receive(ms(1), &reply[..80]);
        assert!(rig.client.direct_data().is_some());
        if is_cancelled {
            rig.client.cancel(CallId(call));
        } else {
            rig.tick(ms(10_000));
            assert_eq!(rig.recorded.ended, [(call, Err(CallError::TimedOut))]);
        }
        // The slot's next call has other memory.
        rig.recorded.memory.clear();
        let next = rig.read(ms(10_001), 100);
        let xids = rig.sent();
        rig.receive(ms(10_002), &reply[80..]);
        assert!(rig.recorded.memory[&next].iter().all(|&byte| byte == UNTOUCHED));
        rig.receive(ms(10_003), &data(*xids.last().unwrap(), b"fresh"));
        assert_eq!(rig.recorded.ended.last(), Some(&(next, Ok(b"fresh".to_vec()))));
    }
}

/// Heads with more bytes than requested, a record length that does not match, or an unknown id: no
/// byte is written.
#[test]
fn inconsistent_reply_header_writes_no_data() {
    let mut changed: Vec<Vec<u8>> = Vec::new();
    let good = |xid| data(xid, &bytes_of(1, 100));
    let mut rig = Rig::connected(1);
    rig.read(ms(0), 100);
    let xid = rig.sent()[0];
    for (word, value) in [(0, 1 << 31 | 148), (1, xid ^ 1 << 20), (9, 104), (11, 104), (8, 7)] {
        let mut reply = good(xid);
        reply[word * 4..word * 4 + 4].copy_from_slice(&u32::to_be_bytes(value));
        changed.push(reply);
    }
    for reply in changed {
        let mut rig = Rig::connected(1);
        let call = rig.read(ms(0), 100);
        assert_eq!(rig.sent(), [xid]);
        rig.receive(ms(1), &reply[..reply.len() - 8]);
        assert_eq!(rig.client.direct_data(), None);
        assert!(rig.recorded.memory[&call].iter().all(|&byte| byte == UNTOUCHED));
    }
}

#[test]
fn connection_lost_within_data_resends_the_read() {
    let mut rig = Rig::connected(1);
    let call = rig.read(ms(0), 100);
    let xids = rig.sent();
    rig.receive(ms(1), &data(xids[0], &bytes_of(1, 100))[..80]);
    rig.client.handle_lost(ms(2));
    assert_eq!(
        (rig.client.next_action(ms(2)), rig.recorded.ended.len()),
        (ConnectionAction::Connect, 0)
    );
    rig.client.handle_connected(ms(3));
    assert_eq!(rig.sent(), xids);
    rig.receive(ms(4), &data(xids[0], &bytes_of(2, 100)));
    assert_eq!(rig.recorded.ended, [(call, Ok(bytes_of(2, 100)))]);
}

#[test]
fn record_shorter_than_its_data_is_requested_again() {
    let mut rig = Rig::connected(1);
    rig.read(ms(0), 100);
    let reply = data(rig.sent()[0], &bytes_of(1, 100));
    let fragments = [&in_fragments(&reply, 64)[..68], &[0x80, 0, 0, 2, 7, 7]].concat();
    for byte in fragments {
        rig.receive(ms(1), &[byte]);
    }
    assert_eq!(rig.recorded.ended, []);
    let again = rig.sent();
    assert_eq!(again.len(), 1);
    rig.receive(ms(2), &data(again[0], b"whole"));
    assert_eq!(rig.recorded.ended, [(0, Ok(b"whole".to_vec()))]);
}

proptest! {
    /// Replies are late, duplicated, cut off with their connection, or in fragments and pieces of
    /// any size. Each READ ends with the bytes of one of its own replies.
    #[test]
    fn reads_return_the_bytes_of_their_own_replies(
        events in prop::collection::vec(
            (0u8..9, any::<prop::sample::Index>(), 1usize..90, 1usize..300), 1..80),
    ) {
        let seed = |xid: u32| (xid >> SLOT_BITS) as u8;
        let mut rig = Rig::connected(3);
        let mut now = ms(0);
        // Ids that the server has seen on this connection, and all ids of each call.
        let mut seen: Vec<u32> = Vec::new();
        let mut own: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (kind, which, fragment_bytes, piece_bytes) in events {
            match kind {
                0..3 if rig.client.free_slot_count() > 0 => {
                    let call = rig.read(now, 100);
                    own.insert(call, Vec::new());
                }
                3..7 if !seen.is_empty() => {
                    let xid = *which.get(&seen);
                    let reply = in_fragments(&data(xid, &bytes_of(seed(xid), 100)), fragment_bytes);
                    // Kind 6: the connection breaks within the reply.
                    let end = if kind == 6 { which.index(reply.len()) } else { reply.len() };
                    for piece in reply[..end].chunks(piece_bytes) {
                        rig.receive(now, piece);
                        now += ms(piece_bytes as u64);
                        rig.tick(now);
                    }
                    if kind == 6 {
                        rig.client.handle_lost(now);
                        seen.clear();
                    }
                }
                7 => now += ms(400),
                8 => {
                    let in_flight = rig.recorded.memory.pop_first();
                    in_flight.inspect(|(call, _)| rig.client.cancel(CallId(*call)));
                }
                _ => {}
            }
            rig.tick(now);
            match rig.client.next_action(now) {
                ConnectionAction::Nothing => {}
                ConnectionAction::Connect => rig.client.handle_connected(now),
                ConnectionAction::Disconnect => {
                    rig.client.handle_lost(now);
                    seen.clear();
                }
            }
            for xid in rig.sent() {
                own.get_mut(&(xid & (SLOTS_MAX - 1))).unwrap().push(xid);
                seen.push(xid);
            }
            for (call, result) in rig.recorded.ended.drain(..) {
                let Ok(got) = result else { continue };
                prop_assert!(own[&call].iter().any(|&xid| got == bytes_of(seed(xid), 100)));
            }
        }
    }
}
