//! Golden trajectories of the chunking policies, and properties of each.
//!
//! A row is one event: `+FIRST..END` a submitted chunk, `-FIRST` a completed chunk, in KiB. Worked
//! by hand from the descriptions of the policies.

use proptest::prelude::*;
use readpath_core::chunking::{self, Chunk, ChunkingPolicy, POLICIES, RawTransfer, TransferEnd};
use readpath_core::policy::Spec;
use readpath_core::request::{DeviceError, Outcome};

fn policy(text: &str) -> Box<dyn ChunkingPolicy + Send + Sync> {
    chunking::build(&Spec::parse(text).unwrap()).unwrap()
}

/// The events of a transfer whose chunks complete in the order of submission.
fn trajectory(policy_text: &str, offset: u64, bytes: u64) -> Vec<String> {
    let policy = policy(policy_text);
    let mut transfer = RawTransfer::new(offset, bytes, 512);
    let mut in_flight = std::collections::VecDeque::new();
    let mut rows = Vec::new();
    while !transfer.is_over() {
        while let Some(chunk) = transfer.poll_chunk(&*policy) {
            rows.push(format!("+{}..{}", kib(chunk.offset), kib(chunk.end())));
            in_flight.push_back(chunk);
        }
        let chunk = in_flight.pop_front().unwrap();
        transfer.handle(chunk, Outcome::Done);
        rows.push(format!("-{}", kib(chunk.offset)));
    }
    assert_eq!(transfer.end(), TransferEnd { bytes, error: None });
    rows
}

fn kib(bytes: u64) -> String {
    if bytes.is_multiple_of(1024) { (bytes / 1024).to_string() } else { format!("{bytes}B") }
}

#[test]
fn kiobuf_waits_for_each_chunk() {
    let rows = trajectory("kiobuf,chunk=64KiB", 0, 200 << 10);
    let expected = ["+0..64", "-0", "+64..128", "-64", "+128..192", "-128", "+192..200", "-192"];
    assert_eq!(rows, expected);
}

#[test]
fn ring_submits_the_next_chunk_while_the_last_is_in_flight() {
    let rows = trajectory("ring,chunk=64KiB,depth=2", 0, 200 << 10);
    let expected = ["+0..64", "+64..128", "-0", "+128..192", "-64", "+192..200", "-128", "-192"];
    assert_eq!(rows, expected);
}

#[test]
fn a_transfer_of_one_chunk_is_one_chunk_under_each_policy() {
    for policy in POLICIES {
        assert_eq!(trajectory(policy.name, 4096, 512 << 10), ["+4..516", "-4"], "{}", policy.name);
    }
}

/// 1,000 bytes at 700: blocks 1 to 3 of 512 bytes. 100,000 bytes at 65,000: from 64,512 (126
/// blocks) to 165,376 (323 blocks), split after 65,536 of them.
#[test]
fn transfer_edges_and_chunk_boundaries_are_block_aligned() {
    assert_eq!(trajectory("ring", 700, 1_000), ["+512B..2", "-512B"]);
    let rows = trajectory("kiobuf,chunk=64KiB", 65_000, 100_000);
    assert_eq!(rows, ["+63..127", "-63", "+127..165376B", "-127"]);
}

#[test]
fn failed_transfer_submits_no_more_and_counts_bytes_up_to_the_first_gap() {
    let policy = policy("ring,chunk=64KiB,depth=3");
    let mut transfer = RawTransfer::new(0, 1 << 20, 512);
    let chunks: Vec<Chunk> = std::iter::from_fn(|| transfer.poll_chunk(&*policy)).collect();
    assert_eq!(chunks.len(), 3);
    // The last fails, then the middle one is short: the lower one counts.
    transfer.handle(chunks[2], Outcome::Failed(DeviceError::Medium));
    assert_eq!(transfer.poll_chunk(&*policy), None);
    transfer.handle(chunks[0], Outcome::Done);
    assert!(!transfer.is_over());
    transfer.handle(chunks[1], Outcome::Short { bytes: 1_000 });
    assert!(transfer.is_over());
    assert_eq!(transfer.end(), TransferEnd { bytes: 65_536 + 1_000, error: None });
}

#[test]
fn a_file_end_in_the_last_block_is_not_a_short_transfer() {
    let policy = policy("ring");
    let mut transfer = RawTransfer::new(0, 700, 512);
    let chunk = transfer.poll_chunk(&*policy).unwrap();
    transfer.handle(chunk, Outcome::Short { bytes: 700 });
    assert_eq!(transfer.end(), TransferEnd { bytes: 700, error: None });
    // The file ends before the first requested byte.
    let mut transfer = RawTransfer::new(700, 100, 512);
    let chunk = transfer.poll_chunk(&*policy).unwrap();
    transfer.handle(chunk, Outcome::Short { bytes: 88 });
    assert_eq!(transfer.end(), TransferEnd { bytes: 0, error: None });
}

#[test]
fn an_empty_transfer_is_over_at_once() {
    let transfer = RawTransfer::new(700, 0, 512);
    assert!(transfer.is_over());
    assert_eq!(transfer.end(), TransferEnd { bytes: 0, error: None });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// With every policy and any order of completions, the chunks cover the requested blocks in
    /// order. Their number is minimal, and at most the depth is in flight.
    #[test]
    fn chunks_tile_the_transfer(
        offset in 0u64..100_000,
        bytes in 1u64..3_000_000,
        alignment_power in 0u32..13,
        chunk_pages in 1u64..64,
        depth in 0u64..9,
        picks in proptest::collection::vec(any::<prop::sample::Index>(), 1..50),
    ) {
        let alignment = 1u64 << alignment_power;
        let text = match depth {
            0 => format!("kiobuf,chunk={}", chunk_pages * 4096),
            depth => format!("ring,chunk={},depth={depth}", chunk_pages * 4096),
        };
        let policy = policy(&text);
        let mut transfer = RawTransfer::new(offset, bytes, alignment);
        let (mut in_flight, mut next, mut count) = (Vec::new(), offset / alignment * alignment, 0u64);
        let mut picks = picks.iter().cycle();
        while !transfer.is_over() {
            while let Some(chunk) = transfer.poll_chunk(&*policy) {
                prop_assert_eq!(chunk.offset, next);
                prop_assert!(chunk.bytes.is_multiple_of(alignment) && chunk.bytes <= policy.chunk_bytes());
                next = chunk.end();
                count += 1;
                in_flight.push(chunk);
                prop_assert!(in_flight.len() <= policy.depth() as usize);
            }
            let is_all_out = next == transfer.covered_end();
            prop_assert!(is_all_out || in_flight.len() == policy.depth() as usize, "never less than it may");
            let pick = picks.next().unwrap().index(in_flight.len());
            transfer.handle(in_flight.swap_remove(pick), Outcome::Done);
        }
        let covered = (offset + bytes).next_multiple_of(alignment) - offset / alignment * alignment;
        prop_assert_eq!(next, (offset + bytes).next_multiple_of(alignment));
        prop_assert_eq!(count, covered.div_ceil(policy.chunk_bytes()));
        prop_assert_eq!(transfer.end(), TransferEnd { bytes, error: None });
    }
}
