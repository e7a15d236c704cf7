//! Entries: the file of one block of one version of an object.
//!
//! An entry is a head of 4 KiB, then a place of 4 KiB for each page of the block. Absent pages are
//! holes. The head has these fields, in little-endian order:
//!
//! | bytes | content |
//! |---|---|
//! | 0–8 | [`MAGIC`] |
//! | 8–16 | checksum of the rest of the head |
//! | 16–24 | bit n is set if page n of the block is present |
//! | 24–32 | length of the key in bytes |
//! | 32–544 | checksum of each page |
//! | 544–4096 | key, then zeros |
//!
//! A checksum is XXH3 with 64 bits. The seed for a page comes from the key and the page's number,
//! so the bytes of another page, object or version do not match. The seed for a head is the number
//! of its block.
//!
//! The *ledger* of the folder has the number of bytes of all entries.

use std::ops::Range;

use readpath_core::unit::PAGE_BYTES;
use twox_hash::XxHash3_64;

/// First bytes of an entry: format and its version.
const MAGIC: [u8; 8] = *b"rp-disk1";

/// Size of the head in bytes.
pub(super) const HEAD_BYTES: u64 = 4096;

/// Number of pages of a block. A head has one bit and one checksum for each. Below 256 KiB, a
/// request of 20 ms at 100 MB/s is mostly latency.
pub(super) const BLOCK_PAGES: u64 = 64;

/// Size of a block in bytes.
pub(super) const BLOCK_BYTES: u64 = BLOCK_PAGES * PAGE_BYTES;

/// Position of the checksums of the pages in the head.
const SUMS_START: usize = 32;

/// Position of the key in the head.
const KEY_START: usize = SUMS_START + 8 * BLOCK_PAGES as usize;

/// Largest length of a key in bytes.
const KEY_BYTES_MAX: usize = HEAD_BYTES as usize - KEY_START;

/// Name of an entry: hashes of the object and of its version, and the number of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EntryName {
    /// Hash of the store and the location: see [`object_hash`].
    pub(super) object: u64,
    /// Hash of the whole key of the version.
    version: u64,
    /// Number of the block in the object.
    block: u64,
}

impl EntryName {
    /// The name of the file: the three numbers, each in 16 hexadecimal digits.
    pub(super) fn file_name(&self) -> String {
        format!("{:016x}{:016x}{:016x}", self.object, self.version, self.block)
    }

    /// The entry with this file name; `None` for a file that is no entry.
    pub(super) fn parse(file_name: &[u8]) -> Option<EntryName> {
        let text = std::str::from_utf8(file_name).ok().filter(|text| text.len() == 48)?;
        let part = |range: Range<usize>| u64::from_str_radix(text.get(range)?, 16).ok();
        let name = EntryName { object: part(0..16)?, version: part(16..32)?, block: part(32..48)? };
        // Other spellings of these numbers, such as upper case, are no entry.
        (name.file_name() == text).then_some(name)
    }
}

/// Hash of an object of a store, for the names of its entries.
pub(super) fn object_hash(store: &str, location: &str) -> u64 {
    XxHash3_64::oneshot(format!("{store}\0{location}").as_bytes())
}

/// Identity of one version of an object. Two versions with equal bytes of `text` are one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VersionKey {
    /// Store, location, version and size.
    text: Vec<u8>,
    /// Hashes of store and location, and of the whole text.
    object: u64,
    version: u64,
    /// Size of the object in bytes.
    pub(super) object_bytes: u64,
}

impl VersionKey {
    /// The key of a version; `None` if it is too long for a head, or a part contains a zero byte.
    pub(super) fn new(
        store: &str,
        location: &str,
        version: &str,
        object_bytes: u64,
    ) -> Option<VersionKey> {
        // No part contains a zero byte, so that two different keys have different texts.
        if [store, location, version].iter().any(|part| part.contains('\0')) {
            return None;
        }
        let text = format!("{store}\0{location}\0{version}\0{object_bytes}").into_bytes();
        if text.len() > KEY_BYTES_MAX {
            return None;
        }
        let (object, version) = (object_hash(store, location), XxHash3_64::oneshot(&text));
        Some(VersionKey { text, object, version, object_bytes })
    }

    /// Name of the entry with the block of this number.
    pub(super) fn entry(&self, block: u64) -> EntryName {
        EntryName { object: self.object, version: self.version, block }
    }

    /// Checksum of a page of the block.
    pub(super) fn page_sum(&self, block: u64, page: u64, data: &[u8]) -> u64 {
        let number = block * BLOCK_PAGES + page;
        XxHash3_64::oneshot_with_seed(self.version ^ number.wrapping_mul(SEED_FACTOR), data)
    }

    /// Number of bytes of a page of the block: fewer for the last page of the object.
    pub(super) fn page_bytes(&self, block: u64, page: u64) -> u64 {
        let start = block * BLOCK_BYTES + page * PAGE_BYTES;
        self.object_bytes.saturating_sub(start).min(PAGE_BYTES)
    }
}

/// Odd factor that spreads page numbers over all bits: 2^64 divided by the golden ratio.
const SEED_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The head of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bit n is set if page n of the block is present.
    pub(super) pages: u64,
    /// Checksum of each page; any value for an absent one.
    pub(super) sums: [u64; BLOCK_PAGES as usize],
}

/// Reason for which a head is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHead {
    /// The bytes are no head, or not one that was written.
    Damaged,
    /// The head is one of another key with the same hashes.
    OtherKey,
}

impl Head {
    /// The head of an entry without pages.
    pub(super) fn empty() -> Head {
        Head { pages: 0, sums: [0; BLOCK_PAGES as usize] }
    }

    /// The bytes of the head.
    pub(super) fn encode(&self, key: &VersionKey, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[16..24].copy_from_slice(&self.pages.to_le_bytes());
        bytes[24..32].copy_from_slice(&(key.text.len() as u64).to_le_bytes());
        for (place, sum) in bytes[SUMS_START..KEY_START].chunks_exact_mut(8).zip(self.sums) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        bytes[KEY_START..KEY_START + key.text.len()].copy_from_slice(&key.text);
        let sum = head_sum(&bytes, block);
        bytes[8..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The head with these bytes, if it is whole and for this block of this version.
    pub(super) fn decode(bytes: &[u8], key: &VersionKey, block: u64) -> Result<Head, BadHead> {
        if bytes.len() != HEAD_BYTES as usize
            || bytes[..8] != MAGIC
            || word(&bytes[8..16]) != head_sum(bytes, block)
        {
            return Err(BadHead::Damaged);
        }
        let key_bytes = usize::try_from(word(&bytes[24..32])).unwrap_or(usize::MAX);
        if bytes[KEY_START..].get(..key_bytes) != Some(&key.text) {
            return Err(BadHead::OtherKey);
        }
        let mut head = Head { pages: word(&bytes[16..24]), sums: [0; BLOCK_PAGES as usize] };
        for (sum, place) in head.sums.iter_mut().zip(bytes[SUMS_START..KEY_START].chunks_exact(8)) {
            *sum = word(place);
        }
        Ok(head)
    }

    /// Bytes of the entry in the ledger. A file system may need a block more, for the runs of a
    /// file with many holes.
    pub(super) fn entry_bytes(&self) -> u64 {
        HEAD_BYTES + u64::from(self.pages.count_ones()) * PAGE_BYTES
    }

    /// Returns true if a page is present.
    pub(super) fn has(&self, page: u64) -> bool {
        self.pages >> page & 1 == 1
    }
}

/// Checksum of the head of this block, without its first 16 bytes: they are [`MAGIC`] and the
/// checksum itself.
fn head_sum(bytes: &[u8], block: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(block, &bytes[16..])
}

/// The number in exactly eight bytes.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(version: &str) -> VersionKey {
        VersionKey::new("s3://bucket", "a/b", version, 300_000).unwrap()
    }

    #[test]
    fn head_returns_what_was_encoded_for_its_key_and_block_alone() {
        let mut head = Head::empty();
        (head.pages, head.sums[3], head.sums[63]) = (1 << 3 | 1 << 63, 17, u64::MAX);
        let bytes = head.encode(&key("tag 1"), 5);
        assert_eq!(Head::decode(&bytes, &key("tag 1"), 5), Ok(head));
        assert_eq!(Head::decode(&bytes, &key("tag 2"), 5), Err(BadHead::OtherKey));
        assert_eq!(Head::decode(&bytes, &key("tag 1"), 6), Err(BadHead::Damaged));
        assert_eq!(Head::decode(&bytes[..4095], &key("tag 1"), 5), Err(BadHead::Damaged));
        for bit in 0..8 * HEAD_BYTES as usize {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&flipped, &key("tag 1"), 5), Err(BadHead::Damaged), "{bit}");
        }
    }

    #[test]
    fn keys_differ_in_each_part() {
        let differ = |a: [&str; 3], b: [&str; 3], bytes| {
            let [one, two] = [(a, 1), (b, bytes)]
                .map(|(it, bytes)| VersionKey::new(it[0], it[1], it[2], bytes).unwrap());
            one.text != two.text && one.entry(0) != two.entry(0)
        };
        let one = ["store", "path", "tag"];
        assert!(!differ(one, one, 1));
        assert!(differ(one, one, 2));
        assert!(differ(one, ["storepath", "", "tag"], 1));
        assert!(differ(one, ["store", "path", "tag2"], 1));
        assert_eq!(VersionKey::new("a\0", "b", "c", 1), None);
        assert_eq!(VersionKey::new("a", &"b".repeat(3600), "c", 1), None);
    }

    #[test]
    fn file_names_are_parsed_strictly() {
        let name = key("tag 1").entry(12);
        assert_eq!(EntryName::parse(name.file_name().as_bytes()), Some(name));
        assert_eq!(EntryName::parse(b"ledger"), None);
        assert_eq!(EntryName::parse(name.file_name().to_uppercase().as_bytes()), None);
        assert_eq!(EntryName::parse(&[b'+'; 48]), None);
    }

    /// 300,000 bytes are one block of 262,144 and 37,856 more: 9 pages and 992 bytes.
    #[test]
    fn last_page_ends_with_the_object() {
        let key = key("tag 1");
        assert_eq!(key.page_bytes(0, 63), 4096);
        assert_eq!(key.page_bytes(1, 9), 992);
        assert_eq!(key.page_bytes(1, 10), 0);
    }
}
