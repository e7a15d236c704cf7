//! Raw readers compared with the bytes of the file.

use super::*;
use crate::raw::RawReader;

/// Reads a reader to its end and returns all bytes, and the fault that ended it, if any.
fn read_to_end(reader: &mut RawReader<'_>) -> (Vec<u8>, Option<RawFault>) {
    let mut bytes = Vec::new();
    let mut next_offset = None;
    loop {
        match reader.next_chunk() {
            Ok(Some(chunk)) => {
                let follows = next_offset.is_none_or(|next_offset| next_offset == chunk.offset());
                assert!(follows, "the chunks have no gap and no overlap");
                next_offset = Some(chunk.offset() + chunk.len() as u64);
                bytes.extend_from_slice(&chunk);
            }
            Ok(None) => return (bytes, None),
            Err(error) => return (bytes, Some(error.fault)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// With early stops and out-of-order answers, a reader returns the bytes of its range in order,
    /// up to the end of the file or the first bad byte.
    #[test]
    fn raw_reader_returns_the_bytes_of_its_range_in_order(
        length in 0usize..90_000,
        ranges in proptest::collection::vec((0u64..100_000, 0u64..100_000, 0usize..8), 1..5),
        depth in 1u32..5,
        chunk_pages in 1u64..4,
        short_every in 0u64..5,
        again_every in prop_oneof![Just(0u64), 2u64..5],
        bad_byte in proptest::option::of(0u64..90_000),
    ) {
        let data = pattern_bytes(length, 1);
        let scratch = ScratchFile::with_content(&data);
        let chunk_bytes = chunk_pages * 4096;
        let (mut file, faults) =
            open_faulty(&scratch.0, &format!("ring,chunk={chunk_bytes},depth={depth}"));
        let block_bytes = u64::from(file.alignment_bytes());
        for &(offset, bytes, answer_index) in &ranges {
            *faults.lock().unwrap() =
                Faults { short_every, again_every, bad_byte, answer_index, ..Faults::default() };
            let start = (offset as usize).min(length);
            let end = (start + bytes as usize).min(length);
            let mut reader = file.reader(offset, bytes).unwrap();
            let (returned_bytes, fault) = read_to_end(&mut reader);
            prop_assert!(returned_bytes == data[start..start + returned_bytes.len()]);
            let Some(fault) = fault else {
                prop_assert_eq!(returned_bytes.len(), end - start);
                prop_assert!(reader.next_chunk().unwrap().is_none(), "later calls return the end again");
                continue;
            };
            let RawFault::Device { op: Op::Read, offset: fault_offset, bytes_done, error } = fault else {
                panic!("{fault:?}");
            };
            let returned = returned_bytes.len() as u64;
            let expected = (offset + returned, returned, DeviceError::Medium);
            prop_assert_eq!((fault_offset, bytes_done, error), expected);
            // The bad byte lies in the chunk after the returned bytes. Chunks begin at the block of
            // the first byte.
            let first_block = offset - offset % block_bytes;
            let chunk_index = (fault_offset - first_block) / chunk_bytes;
            let chunk_start = first_block + chunk_index * chunk_bytes;
            prop_assert!((chunk_start..chunk_start + chunk_bytes).contains(&bad_byte.unwrap()));
            prop_assert_eq!(reader.next_chunk().unwrap_err().fault, fault);
        }
        *faults.lock().unwrap() = Faults::default();
        let mut memory = vec![0; length];
        prop_assert_eq!(file.read_at(&mut memory, 0).unwrap(), length);
        prop_assert!(memory == data, "the file can be read after the faults");
    }
}

/// A reader starts four chunks, and one more for each returned buffer: ten in all, none before its
/// turn.
#[test]
fn returned_buffer_is_submitted_again() {
    let scratch = ScratchFile::with_content(&pattern_bytes(10 * 4096, 1));
    let (mut file, _) = open_faulty(&scratch.0, "ring,chunk=4KiB,depth=4");
    let mut submitted_counts = Vec::new();
    let mut reader = file.reader(0, u64::MAX).unwrap();
    while reader.next_chunk().unwrap().is_some() {
        submitted_counts.push(reader.submitted_chunks());
    }
    assert_eq!(submitted_counts, [4, 5, 6, 7, 8, 9, 10, 10, 10, 10]);
}

/// A reader dropped with chunks in flight takes no byte from the next reader.
#[test]
fn dropped_reader_leaves_nothing_in_flight() {
    let data = pattern_bytes(40 * 4096, 1);
    let scratch = ScratchFile::with_content(&data);
    let (mut file, _) = open_faulty(&scratch.0, "ring,chunk=4KiB,depth=4");
    let mut reader = file.reader(8192, 100_000).unwrap();
    assert!(reader.next_chunk().unwrap().unwrap()[..] == data[8192..12288]);
    let mut reader = file.reader(5, 20_000).unwrap();
    assert!(reader.next_chunk().unwrap().unwrap()[..] == data[5..4096]);
    let mut reader = file.reader(4096, 4096).unwrap();
    assert!(reader.next_chunk().unwrap().unwrap()[..] == data[4096..8192]);
    let mut memory = vec![0; data.len()];
    file.read_exact_at(&mut memory, 0).unwrap();
    assert!(memory == data);
}

/// The file is truncated to 10,000 bytes while a reader is in it: the reader ends there.
#[test]
fn truncated_file_ends_the_reader_at_its_new_length() {
    let data = pattern_bytes(100_000, 1);
    let scratch = ScratchFile::with_content(&data);
    let (mut file, _) = open_faulty(&scratch.0, "kiobuf,chunk=4KiB");
    let mut reader = file.reader(0, u64::MAX).unwrap();
    assert!(reader.next_chunk().unwrap().unwrap()[..] == data[..4096]);
    let other = std::fs::File::options().write(true).open(&scratch.0).unwrap();
    other.set_len(10_000).unwrap();
    let (rest, fault) = read_to_end(&mut reader);
    assert!(rest == data[4096..10_000] && fault.is_none(), "{} {fault:?}", rest.len());
}
