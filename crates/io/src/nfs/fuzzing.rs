//! Decoding of arbitrary bytes from a server, for the fuzzers and their seeds.

use super::procedures::{
    access_told, attributes_told, data_begun, data_told, fs_info_told, link_told, lookup_told,
};
use super::records::{RecordStep, Records};
use super::rpc::read_reply;

/// Largest accepted record in bytes. The largest reply to a READ is a little longer than its data.
const RECORD_BYTES_MAX: usize = 1 << 16;

/// Receives bytes as a connection does, in pieces whose size the first byte selects, and runs every
/// decoder on the records.
pub(crate) fn receive(bytes: &[u8]) {
    let Some((&first, mut left)) = bytes.split_first() else { return };
    let (piece, asked_bytes) = (1 + usize::from(first & 0x1f), u32::from(first) << 8);
    let mut records = Records::new(RECORD_BYTES_MAX);
    while !left.is_empty() {
        let past = records.past_bytes().min(left.len()).min(piece);
        records.passed(past);
        let space = records.space(0);
        let count = space.len().min(left.len() - past).min(piece);
        space[..count].copy_from_slice(&left[past..past + count]);
        records.filled(count);
        left = &left[past + count..];
        loop {
            match records.next() {
                Err(_) => return,
                Ok(None) => break,
                Ok(Some(RecordStep::Record(record))) => decode(record, asked_bytes),
                Ok(Some(RecordStep::Data(_) | RecordStep::Over { .. })) => {}
            }
        }
        let begun = records.begun().and_then(|begun| {
            let reply = read_reply(begun).ok()?;
            let (head, data) = data_begun(reply.results.ok()?, asked_bytes)?;
            let head_bytes = begun.len() - data.len();
            Some((head_bytes, head.bytes as usize))
        });
        if let Some((head_bytes, data_bytes)) = begun {
            records.divert(head_bytes, data_bytes);
        }
        if past + count == 0 {
            return;
        }
    }
}

fn decode(record: &[u8], asked_bytes: u32) {
    let Ok(results) = read_reply(record).map(|reply| reply.results) else { return };
    let Ok(results) = results else { return };
    let _ = (attributes_told(results), lookup_told(results), access_told(results));
    let _ = (link_told(results), fs_info_told(results));
    if let Ok(Ok((head, data))) = data_told(results, asked_bytes) {
        assert_eq!(data.len(), head.bytes as usize, "what is told to be there is there");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn no_kept_seed_panics() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/nfs_reply");
        let mut count = 0;
        for seed in std::fs::read_dir(corpus).unwrap() {
            super::receive(&std::fs::read(seed.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0, "there are seeds");
    }
}
