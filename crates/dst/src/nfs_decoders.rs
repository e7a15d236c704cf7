//! Decoding of arbitrary bytes from a server, for the fuzzers and their seeds.
//!
//! A *record* is a message on a connection, sent in one or more *fragments*. To *divert* the data
//! of a READ is to receive it directly at its destination, without the buffer.

use crate::nfs::procedures::{
    decode_access, decode_fsinfo, decode_getattr, decode_lookup, decode_read, decode_read_head,
    decode_readlink,
};
use crate::nfs::records::{RecordStep, Records};
use crate::nfs::rpc::read_reply;

/// Largest accepted record in bytes. The largest reply to a READ is a little longer than its data.
const RECORD_BYTES_MAX: usize = 1 << 16;

/// Receives bytes as a connection does, and runs every decoder on the records. The data of a READ
/// bypasses the buffer from the moment its head is complete, as in the client. The first byte
/// selects the size of the received pieces (1 to 32 bytes) and of the READs (up to 65,280 bytes).
pub fn decode_stream(bytes: &[u8]) {
    let Some((&first_byte, mut unreceived)) = bytes.split_first() else { return };
    let (piece_bytes, requested_bytes) =
        (1 + usize::from(first_byte & 0x1f), u32::from(first_byte) << 8);
    let mut records = Records::new(RECORD_BYTES_MAX);
    while !unreceived.is_empty() {
        // The data of a READ whose head is complete, and then bytes into the buffer.
        let direct_bytes = records.direct_bytes().min(unreceived.len()).min(piece_bytes);
        records.record_direct(direct_bytes);
        // The buffer ends with the current fragment.
        let extra_bytes = 0;
        let buffer = records.receive_buffer(extra_bytes);
        let count = buffer.len().min(unreceived.len() - direct_bytes).min(piece_bytes);
        buffer[..count].copy_from_slice(&unreceived[direct_bytes..direct_bytes + count]);
        records.record_received(count);
        unreceived = &unreceived[direct_bytes + count..];
        loop {
            match records.next() {
                Err(_) => return,
                Ok(None) => break,
                Ok(Some(RecordStep::Record(record))) => decode_record(record, requested_bytes),
                Ok(Some(RecordStep::Data(_) | RecordStep::End { .. })) => {}
            }
        }
        // If the head of a READ is complete and its data is not, the data bypasses the buffer.
        let incomplete = records.incomplete_record().and_then(|incomplete| {
            let reply = read_reply(incomplete).ok()?;
            let (head, data) = decode_read_head(reply.results.ok()?, requested_bytes)?;
            let head_bytes = incomplete.len() - data.len();
            Some((head_bytes, head.bytes as usize))
        });
        if let Some((head_bytes, data_bytes)) = incomplete {
            records.divert(head_bytes, data_bytes);
        }
        // Without progress, the rest of the stream is not accepted.
        if direct_bytes + count == 0 {
            return;
        }
    }
}

/// Runs every decoder on the results of a reply, as for a READ of `requested_bytes` bytes. No
/// effect if the record is no reply with results.
fn decode_record(record: &[u8], requested_bytes: u32) {
    let Ok(results) = read_reply(record).map(|reply| reply.results) else { return };
    let Ok(results) = results else { return };
    let _ = (decode_getattr(results), decode_lookup(results), decode_access(results));
    let _ = (decode_readlink(results), decode_fsinfo(results));
    if let Ok(Ok((head, data))) = decode_read(results, requested_bytes) {
        assert_eq!(data.len(), head.bytes as usize, "the reply has the announced bytes");
    }
}
