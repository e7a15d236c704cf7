//! Data that a job with `verify` writes, and its verification on reads.
//!
//! Each word of eight bytes is a function of the job's seed and of the word's offset in the file.
//! Any process of the job may therefore write a block several times, and a read is verified without
//! a record of the writes. Different offsets have different bytes: data at a wrong offset is
//! detected too.

use readpath_core::request::Op;
use readpath_core::splitmix;
use readpath_sim::workload::{Process, ProcessOperation};

/// Size of a word, the unit that is derived from the seed and the offset.
const WORD_BYTES: u64 = 8;

/// Fills the buffer of a write at `offset`, if the job verifies its data.
pub fn fill_write(process: &Process, operation: ProcessOperation, offset: u64, memory: &mut [u8]) {
    if let (Op::Write, Some(seed)) = (operation.op, process.content_seed()) {
        fill(seed, offset, &mut memory[..operation.bytes as usize]);
    }
}

/// Verifies the bytes of a read at `offset`, if the job verifies data and its reads in flight are
/// verifications. Any other operation succeeds unchecked.
pub fn verify_read(
    process: &Process,
    operation: ProcessOperation,
    offset: u64,
    memory: &[u8],
) -> Result<(), String> {
    match process.content_seed() {
        Some(seed) if operation.op == Op::Read && process.is_checking() => {
            compare(seed, offset, &memory[..operation.bytes as usize])
        }
        _ => Ok(()),
    }
}

/// Expected bytes of the word with this index in the file.
fn expected_word(seed: u64, index: u64) -> [u8; WORD_BYTES as usize] {
    splitmix::mixed(seed ^ index.wrapping_mul(splitmix::STEP)).to_le_bytes()
}

/// Calls `visit` for each part of the range that lies in one word, with its range in the buffer and
/// the expected bytes. Stops when `visit` returns false.
fn for_each_word(
    seed: u64,
    offset: u64,
    length: usize,
    mut visit: impl FnMut(std::ops::Range<usize>, &[u8]) -> bool,
) {
    let mut buffer_offset = 0;
    while buffer_offset < length {
        let file_offset = offset + buffer_offset as u64;
        let skipped = (file_offset % WORD_BYTES) as usize;
        let byte_count = (WORD_BYTES as usize - skipped).min(length - buffer_offset);
        let word = expected_word(seed, file_offset / WORD_BYTES);
        if !visit(buffer_offset..buffer_offset + byte_count, &word[skipped..skipped + byte_count]) {
            return;
        }
        buffer_offset += byte_count;
    }
}

/// Fills the bytes of a write at `offset` with the content that `seed` determines.
fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    for_each_word(seed, offset, bytes.len(), |range, word| {
        bytes[range].copy_from_slice(word);
        true
    });
}

/// Compares bytes at `offset` of the file with the expected content. Returns the first difference
/// as text.
fn compare(seed: u64, offset: u64, bytes: &[u8]) -> Result<(), String> {
    let mut result = Ok(());
    for_each_word(seed, offset, bytes.len(), |range, word| {
        let is_equal = bytes[range.clone()] == *word;
        if !is_equal {
            let read = &bytes[range.clone()];
            let file_offset = offset + range.start as u64;
            result = Err(format!(
                "verify: at byte {file_offset} {word:02x?} was written, but {read:02x?} was read"
            ));
        }
        is_equal
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any piece of the filled data matches at its own offset and at no other. Byte 77 lies in the
    /// word that begins at byte 4096 + 72 = 4168 of the file.
    #[test]
    fn filled_data_matches_only_at_its_own_offset_and_seed() {
        const SEED: u64 = 7;
        const OFFSET: u64 = 4096;
        let mut whole = vec![0; 256];
        fill(SEED, OFFSET, &mut whole);
        for (start, length) in [(0, 256), (8, 8), (3, 20), (100, 1), (255, 1)] {
            let piece = &whole[start..start + length];
            assert_eq!(compare(SEED, OFFSET + start as u64, piece), Ok(()));
            // Shorter pieces may be equal by chance.
            assert!(length < 8 || compare(SEED, 2 * OFFSET + start as u64, piece).is_err());
            assert!(length < 8 || compare(SEED + 1, OFFSET + start as u64, piece).is_err());
        }
        whole[77] ^= 1;
        let error = compare(SEED, OFFSET, &whole).unwrap_err();
        assert!(error.contains("at byte 4168"), "{error}");
    }
}
