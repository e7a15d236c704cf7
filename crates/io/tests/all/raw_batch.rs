//! Batches of raw transfers: each has its own bytes, whatever the order of completion.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::support::{BACKENDS, TempFile, splitmix};
use readpath::RawFile;
use readpath::raw::{RawFault, RawMemory, RawMoved, RawStats};

const BLOCK: usize = 16 << 10;
const BLOCKS: u64 = 64;

/// A file whose bytes contain the number of their block.
fn numbered() -> TempFile {
    let temp = TempFile::new(0);
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|block| [block as u8; BLOCK]).collect();
    std::fs::write(&temp.path, bytes).unwrap();
    temp
}

#[test]
fn raw_batch_of_depth_zero_takes_one_transfer_on_every_backend() {
    let temp = numbered();
    for backend in BACKENDS {
        let file = RawFile::builder().backend(backend).open(&temp.path).unwrap();
        let mut batch = file.batch(0).unwrap();
        assert_eq!(batch.room(), 1, "{backend:?}");
        batch.read(RawMemory::new(BLOCK).unwrap(), BLOCK, 0, 7).unwrap();
        let moved = batch.wait().unwrap().expect("one is in flight");
        assert_eq!((moved.ticket, moved.result), (7, Ok(BLOCK)), "{backend:?}");
    }
}

#[test]
fn raw_batch_reads_fill_their_own_memory() {
    let temp = numbered();
    for backend in BACKENDS {
        let file = RawFile::builder().backend(backend).open(&temp.path).unwrap();
        let mut batch = file.batch(8).unwrap();
        let mut spare: Vec<RawMemory> = (0..8).map(|_| RawMemory::new(BLOCK).unwrap()).collect();
        let (mut seed, mut started, mut ended) = (5, 0, 0);
        while ended < 200 {
            while started < 200
                && let Some(memory) = spare.pop()
            {
                let block = splitmix(&mut seed) % BLOCKS;
                batch.read(memory, BLOCK, block * BLOCK as u64, block).unwrap();
                started += 1;
            }
            assert!(batch.room() as usize >= spare.len(), "what has come has left its place");
            let RawMoved { ticket, memory, result } = batch.wait().unwrap().expect("some are left");
            assert_eq!(result, Ok(BLOCK));
            assert!(memory.iter().all(|&byte| u64::from(byte) == ticket), "block {ticket}");
            spare.push(memory);
            ended += 1;
        }
        assert!(batch.wait().unwrap().is_none());
    }
}

#[test]
fn raw_batch_writes_are_visible_to_all_and_to_a_caching_read_path() {
    let temp = numbered();
    let cached = readpath::ReadPath::builder().build().unwrap().open(&temp.path).unwrap();
    let mut byte = [0];
    cached.read_exact_at(&mut byte, 3 * BLOCK as u64).unwrap();
    assert_eq!(byte, [3]);
    let file = cached.raw(RawFile::builder().write(true)).unwrap();
    let mut batch = file.batch(4).unwrap();
    for block in 0..4 {
        let mut memory = RawMemory::new(BLOCK).unwrap();
        memory.fill(100 + block as u8);
        batch.write(memory, BLOCK, block * BLOCK as u64, block).unwrap();
    }
    while let Some(moved) = batch.wait().unwrap() {
        assert_eq!(moved.result, Ok(BLOCK));
    }
    let plain = std::fs::File::open(&temp.path).unwrap();
    for block in 0..5 {
        let want = if block < 4 { 100 + block as u8 } else { 4 };
        plain.read_exact_at(&mut byte, block * BLOCK as u64).unwrap();
        assert_eq!(byte, [want]);
        cached.read_exact_at(&mut byte, block * BLOCK as u64).unwrap();
        assert_eq!(byte, [want]);
    }
}

#[test]
fn invalid_raw_batch_transfers_are_refused_by_name() {
    let temp = numbered();
    let file = RawFile::open(&temp.path).unwrap();
    let mut batch = file.batch(1).unwrap();
    let mut fault = |bytes: usize, offset: u64| {
        batch.read(RawMemory::new(BLOCK).unwrap(), bytes, offset, 0).unwrap_err().fault
    };
    assert!(matches!(fault(BLOCK, i64::MAX as u64), RawFault::Range { .. }));
    if file.alignment_bytes() > 1 {
        assert!(matches!(fault(BLOCK, 7), RawFault::Misaligned { value: 7, .. }));
        assert!(matches!(fault(9, 0), RawFault::Misaligned { value: 9, .. }));
    }
    let refused = batch.write(RawMemory::new(BLOCK).unwrap(), BLOCK, 0, 0).unwrap_err();
    assert_eq!(refused.fault, RawFault::ReadOnly);
    // No bytes past the last of 64 blocks; before it, as many as there are.
    for (offset, bytes) in [(BLOCKS * BLOCK as u64, 0), ((BLOCKS - 1) * BLOCK as u64, BLOCK)] {
        batch.read(RawMemory::new(2 * BLOCK).unwrap(), 2 * BLOCK, offset, 0).unwrap();
        assert_eq!(batch.wait().unwrap().unwrap().result, Ok(bytes), "at {offset}");
    }
}

/// A completed transfer is returned even with a zero timeout, and a wait without transfers returns
/// at once.
#[test]
fn raw_batch_wait_has_a_time_limit() {
    let temp = numbered();
    for backend in BACKENDS {
        let file = RawFile::builder().backend(backend).open(&temp.path).unwrap();
        let mut batch = file.batch(2).unwrap();
        // Added to a time, a timeout of 2^64 ns less one has no room in 64 bits.
        let longest =
            [Duration::from_secs(3600), Duration::from_nanos(u64::MAX - 1), Duration::MAX];
        for long in longest {
            assert!(batch.wait_for(long).unwrap().is_none(), "nothing is under way");
            batch.read(RawMemory::new(BLOCK).unwrap(), BLOCK, 0, 7).unwrap();
            assert_eq!(batch.wait_for(long).unwrap().expect("it ends").ticket, 7);
        }
        batch.read(RawMemory::new(BLOCK).unwrap(), BLOCK, 0, 8).unwrap();
        let moved = loop {
            if let Some(moved) = batch.wait_for(Duration::ZERO).unwrap() {
                break moved;
            }
        };
        assert_eq!((moved.ticket, moved.result), (8, Ok(BLOCK)));
    }
}

/// A call writes byte 5 of each block while a batch writes the blocks. The call reads and writes
/// whole blocks, and may not put old bytes back.
#[test]
fn call_with_a_partial_block_loses_no_bytes_of_a_batch_write() {
    for backend in BACKENDS {
        let temp = numbered();
        let file = RawFile::builder().write(true).backend(backend).open(&temp.path).unwrap();
        let write_partially = |block: u64| file.write_all_at(&[255], block * BLOCK as u64 + 5);
        for round in 0..200 {
            let value = round as u8;
            let mut batch = file.batch(8).unwrap();
            for block in 0..8 {
                let mut memory = RawMemory::new(BLOCK).unwrap();
                memory.fill(value);
                batch.write(memory, BLOCK, block * BLOCK as u64, block).unwrap();
            }
            assert!(
                batch.wait_for(Duration::ZERO).unwrap().is_none_or(|moved| moved.result.is_ok())
            );
            for block in (0..8).rev() {
                let _written_or_refused = write_partially(block);
            }
            while batch.wait().unwrap().is_some() {}
            (0..8).for_each(|block| write_partially(block).unwrap());
            let bytes = std::fs::read(&temp.path).unwrap();
            let wrong = (0..8 * BLOCK).find(|&at| at % BLOCK != 5 && bytes[at] != value);
            assert_eq!(wrong, None, "{backend:?}, round {round}: lost byte");
            assert!((0..8).all(|block| bytes[block * BLOCK + 5] == 255));
        }
    }
}

/// Block 1 is written by a batch that has not returned the write. The file ends in block 63.
#[test]
fn call_with_a_partial_block_is_refused_until_the_batch_write_is_returned() {
    let temp = numbered();
    let file = RawFile::builder().write(true).open(&temp.path).unwrap();
    let block_bytes = u64::from(file.alignment_bytes());
    if block_bytes == 1 {
        return; // Without direct I/O there are no partial blocks.
    }
    let mut batch = file.batch(1).unwrap();
    let start = BLOCK as u64;
    batch.write(RawMemory::new(BLOCK).unwrap(), BLOCK, start, 0).unwrap();
    let error = file.write_at(&[1], start + 5).unwrap_err();
    assert_eq!(error.fault, RawFault::BatchInFlight { offset: start });
    assert!(error.to_string().contains("take that from the batch first"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::ResourceBusy);
    // The last block of the batch's write, in a call that begins before it.
    let memory = vec![1; 3 * BLOCK];
    let error = file.write_at(&memory[..BLOCK], start - 1).unwrap_err();
    assert_eq!(error.fault, RawFault::BatchInFlight { offset: 2 * start - block_bytes });
    // Whole blocks, and parts of other blocks.
    file.write_all_at(&memory[..2 * block_bytes as usize], start).unwrap();
    file.write_all_at(&[1], start - 1).unwrap();
    file.write_all_at(&[1], 2 * start).unwrap();
    assert!(batch.wait().unwrap().unwrap().result.is_ok());
    file.write_all_at(&[1], start + 5).unwrap();
}

/// A header of 100 bytes is written to a new file next to the body, which begins behind its block.
#[test]
fn partial_block_before_batch_writes_keeps_them_in_the_file() {
    for round in 0..50 {
        let temp = TempFile::new(0);
        let file = RawFile::builder().write(true).open(&temp.path).unwrap();
        let mut batch = file.batch(4).unwrap();
        for block in 1..=4 {
            let mut memory = RawMemory::new(BLOCK).unwrap();
            memory.fill(block as u8);
            batch.write(memory, BLOCK, block * BLOCK as u64, block).unwrap();
        }
        file.write_all_at(&[9; 100], 0).unwrap();
        while let Some(moved) = batch.wait().unwrap() {
            assert_eq!(moved.result, Ok(BLOCK));
        }
        let mut expected = vec![0; 5 * BLOCK];
        expected[..100].fill(9);
        (1..=4).for_each(|block| expected[block * BLOCK..][..BLOCK].fill(block as u8));
        assert!(std::fs::read(&temp.path).unwrap() == expected, "round {round}");
    }
}

#[test]
fn raw_batch_transfers_are_counted() {
    let temp = numbered();
    let file = RawFile::builder().write(true).open(&temp.path).unwrap();
    let mut batch = file.batch(4).unwrap();
    for block in 0..3 {
        batch.read(RawMemory::new(BLOCK).unwrap(), BLOCK, block * BLOCK as u64, block).unwrap();
    }
    batch.write(RawMemory::new(BLOCK).unwrap(), BLOCK, 5 * BLOCK as u64, 5).unwrap();
    while batch.wait().unwrap().is_some() {}
    // Three chunks of 16 KiB by the batch, and one by the call.
    file.read_exact_at(&mut [0; BLOCK], 0).unwrap();
    let RawStats { reads, read_bytes, writes, written_bytes, .. } = file.stats();
    assert_eq!((reads, read_bytes, writes, written_bytes), (4, 65_536, 1, 16_384));
}
