//! Records on a byte stream (RFC 5531, section 11). A *record* is one reply. It consists of one or
//! more *fragments*. Each follows four bytes with its length and a flag for the last one.
//!
//! The socket writes directly into the buffer here, and a record of one fragment (the usual case)
//! is borrowed from there without a copy. A record whose data is still arriving when its head is
//! complete may be [diverted](Records::divert). The socket then writes the data to its destination
//! and not to the buffer, and the data that came with the head is copied there. For any
//! fragmentation, the data must end where the record ends.

use super::xdr::{Garbled, padding};

/// Bit of a fragment's header that marks the last fragment.
const LAST_FRAGMENT: u32 = 1 << 31;

/// Size of a fragment's header in bytes.
const HEADER_BYTES: usize = 4;

/// Buffer space in bytes beyond the largest record, so that one system call receives many small
/// records.
const SPARE_BYTES: usize = 256 << 10;

/// Received bytes of one connection.
///
/// Order of calls: `next` until it returns `None`. Then optionally `divert`, followed by `next`
/// until `None` again. Then the socket writes at most `direct_bytes` bytes to their destination and
/// more bytes to `receive_buffer`, which `record_direct` and `record_received` record.
pub(crate) struct Records {
    /// Memory for received bytes, of fixed length.
    buffer: Vec<u8>,
    /// Offset of the first unprocessed byte.
    start: usize,
    /// End of the received bytes (exclusive).
    end: usize,
    /// Fragments so far of a record with several fragments.
    joined: Vec<u8>,
    /// True if `joined` was returned as a record. It is emptied before the next one.
    is_joined_returned: bool,
    /// Rest of the record whose data bypasses `buffer`, if there is one.
    diverted: Option<Diverted>,
    /// Largest valid record in bytes, without the headers of its fragments.
    record_bytes_max: usize,
}

/// The next part of the received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RecordStep<'a> {
    /// A whole record.
    Record(&'a [u8]),
    /// The next data of the diverted record.
    Data(&'a [u8]),
    /// The end of the diverted record. It is not whole if it ended before or after the end of its
    /// data, or was given up.
    End { is_whole: bool },
}

/// Rest of a record whose data bypasses the buffer.
struct Diverted {
    /// Number of data bytes to come.
    data_left: usize,
    /// Number of padding bytes behind the data.
    padding_left: usize,
    /// Number of bytes of this fragment to come.
    fragment_left: usize,
    /// True if this is the last fragment.
    is_last: bool,
    /// Number of bytes that further fragments may have.
    record_left: usize,
    /// True if the rest of the record is discarded.
    is_given_up: bool,
}

impl Diverted {
    /// True if the rest of the fragment ends within the data and its padding, or at their end if it
    /// is the last fragment.
    fn is_fragment_valid(&self) -> bool {
        let bytes_left = self.data_left + self.padding_left;
        if self.is_last {
            self.fragment_left == bytes_left
        } else {
            self.fragment_left <= bytes_left
        }
    }
}

impl Records {
    /// Creates a buffer for records of at most `record_bytes_max` bytes. A longer record is
    /// garbage.
    pub(crate) fn new(record_bytes_max: usize) -> Records {
        Records {
            buffer: vec![0; HEADER_BYTES + record_bytes_max + SPARE_BYTES],
            start: 0,
            end: 0,
            joined: Vec::new(),
            is_joined_returned: false,
            diverted: None,
            record_bytes_max,
        }
    }

    /// Returns memory for the socket, used after the bytes that [bypass](Records::direct_bytes) the
    /// buffer. It has space for the rest of the current fragment and for up to `extra_bytes_max`
    /// bytes more, as far as the buffer has room. With an `extra_bytes_max` of [`HEADER_BYTES`] or
    /// more, it is never empty after [`next`](Records::next) has returned `None`.
    pub(crate) fn receive_buffer(&mut self, extra_bytes_max: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0
            && self.buffer.len() - self.start < HEADER_BYTES + self.record_bytes_max
        {
            // A record of the largest size might not fit behind `start`. The bytes are moved only
            // in this case, so that the start of a record is moved at most once.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let fragment_bytes_left = match (&self.diverted, self.next_header()) {
            // The direct bytes go elsewhere. Padding or a discarded rest remains.
            (Some(diverted), _) => diverted.fragment_left - self.direct_bytes(),
            // Zero only for a fragment that `next` has rejected.
            (None, Some((_, fragment_bytes))) => {
                (HEADER_BYTES + fragment_bytes).saturating_sub(self.end - self.start)
            }
            (None, None) => HEADER_BYTES,
        };
        let bytes =
            fragment_bytes_left.saturating_add(extra_bytes_max).min(self.buffer.len() - self.end);
        &mut self.buffer[self.end..self.end + bytes]
    }

    /// Records that the socket has written this number of bytes to the start of
    /// [`receive_buffer`](Records::receive_buffer).
    pub(crate) fn record_received(&mut self, bytes: usize) {
        self.end += bytes;
        debug_assert!(self.end <= self.buffer.len());
    }

    /// Number of the next bytes that are data of the diverted record, after [`next`](Records::next)
    /// has returned `None`. The socket may write them to their destination.
    pub(crate) fn direct_bytes(&self) -> usize {
        match &self.diverted {
            Some(diverted) if !diverted.is_given_up => {
                diverted.data_left.min(diverted.fragment_left)
            }
            _ => 0,
        }
    }

    /// Records that the socket has written this number of the diverted record's data bytes to their
    /// destination.
    pub(crate) fn record_direct(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.direct_bytes());
        if let Some(diverted) = &mut self.diverted {
            diverted.data_left -= bytes;
            diverted.fragment_left -= bytes;
        }
    }

    /// Drops all received bytes and the diverted record, for a new connection.
    pub(crate) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
        self.joined.clear();
        self.is_joined_returned = false;
        self.diverted = None;
    }

    /// Takes the next part of the received bytes. Returns `None` until more bytes arrive.
    ///
    /// # Errors
    /// A record is too long, or has an empty fragment before its last one. The rest of the stream
    /// is not trustworthy.
    pub(crate) fn next(&mut self) -> Result<Option<RecordStep<'_>>, Garbled> {
        if self.diverted.is_some() {
            return self.next_diverted();
        }
        if std::mem::take(&mut self.is_joined_returned) {
            self.joined.clear();
        }
        loop {
            let Some((is_last, fragment_bytes)) = self.next_header() else { return Ok(None) };
            // Without a check of empty fragments, a stream of them could continue forever.
            if self.joined.len() + fragment_bytes > self.record_bytes_max
                || (fragment_bytes == 0 && !is_last)
            {
                return Err(Garbled);
            }
            let content_start = self.start + HEADER_BYTES;
            if self.end - content_start < fragment_bytes {
                return Ok(None);
            }
            self.start = content_start + fragment_bytes;
            let content = &self.buffer[content_start..self.start];
            if is_last && self.joined.is_empty() {
                return Ok(Some(RecordStep::Record(content)));
            }
            self.joined.extend_from_slice(content);
            if is_last {
                self.is_joined_returned = true;
                return Ok(Some(RecordStep::Record(&self.joined)));
            }
        }
    }

    /// Returns the received bytes of a record whose first fragment is incomplete, after
    /// [`next`](Records::next) has returned `None`. Returns `None` if there is no such record.
    pub(crate) fn incomplete_record(&self) -> Option<&[u8]> {
        if self.diverted.is_some() || !self.joined.is_empty() {
            return None;
        }
        self.next_header()?;
        Some(&self.buffer[self.start + HEADER_BYTES..self.end])
    }

    /// Makes the data of the [incomplete record](Records::incomplete_record) bypass the buffer,
    /// behind the record's first `head_bytes` bytes, which were received. The rest must consist of
    /// `data_bytes` bytes of data and their padding. Returns false without a change if the first
    /// fragment's length does not match.
    pub(crate) fn divert(&mut self, head_bytes: usize, data_bytes: usize) -> bool {
        let Some((is_last, fragment_bytes)) = self.next_header() else { return false };
        let Some(fragment_left) = fragment_bytes.checked_sub(head_bytes) else { return false };
        let diverted = Diverted {
            data_left: data_bytes,
            padding_left: padding(data_bytes),
            fragment_left,
            is_last,
            // `next` has rejected longer fragments.
            record_left: self.record_bytes_max.saturating_sub(fragment_bytes),
            is_given_up: false,
        };
        let is_valid = diverted.is_fragment_valid();
        if is_valid {
            self.start += HEADER_BYTES + head_bytes;
            self.diverted = Some(diverted);
        }
        is_valid
    }

    /// Marks the rest of the diverted record as to be discarded, because its data has no
    /// destination any more.
    pub(crate) fn discard_diverted(&mut self) {
        if let Some(diverted) = &mut self.diverted {
            diverted.is_given_up = true;
        }
    }

    /// Takes the next part of the diverted record. Returns `None` until more bytes arrive, and
    /// without a diverted record. Fails as [`next`](Records::next) does.
    fn next_diverted(&mut self) -> Result<Option<RecordStep<'_>>, Garbled> {
        loop {
            let header = self.next_header();
            let Some(diverted) = &mut self.diverted else { return Ok(None) };
            if diverted.fragment_left == 0 && !diverted.is_last {
                // The next fragment begins.
                let Some((is_last, fragment_bytes)) = header else { return Ok(None) };
                if fragment_bytes > diverted.record_left || (fragment_bytes == 0 && !is_last) {
                    return Err(Garbled);
                }
                diverted.record_left -= fragment_bytes;
                (diverted.fragment_left, diverted.is_last) = (fragment_bytes, is_last);
                // A fragment that ends past the data, or a last one that ends before it, belongs to
                // no valid reply.
                diverted.is_given_up |= !diverted.is_fragment_valid();
                self.start += HEADER_BYTES;
            }
            let available_bytes = diverted.fragment_left.min(self.end - self.start);
            let data_bytes =
                if diverted.is_given_up { 0 } else { diverted.data_left.min(available_bytes) };
            if data_bytes > 0 {
                diverted.data_left -= data_bytes;
                diverted.fragment_left -= data_bytes;
                let data_start = self.start;
                self.start += data_bytes;
                return Ok(Some(RecordStep::Data(&self.buffer[data_start..self.start])));
            }
            // Padding, or bytes of a record that is given up, which may exceed the padding.
            diverted.padding_left = diverted.padding_left.saturating_sub(available_bytes);
            diverted.fragment_left -= available_bytes;
            self.start += available_bytes;
            if diverted.fragment_left > 0 {
                return Ok(None);
            }
            if diverted.is_last {
                let is_whole = !diverted.is_given_up;
                self.diverted = None;
                return Ok(Some(RecordStep::End { is_whole }));
            }
        }
    }

    /// Decodes the next fragment's header, which stays in the buffer. Returns true for the last
    /// fragment, and the fragment's length in bytes. Returns `None` if the header is incomplete.
    fn next_header(&self) -> Option<(bool, usize)> {
        let header = self.buffer[self.start..self.end].first_chunk::<HEADER_BYTES>()?;
        let header = u32::from_be_bytes(*header);
        Some((header & LAST_FRAGMENT != 0, (header & !LAST_FRAGMENT) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Largest record in bytes of the tests with fixed data.
    const BYTES_MAX: usize = 100;

    /// Encodes a fragment by hand: four bytes with the flag `is_last` and the length, then `bytes`.
    fn fragment(bytes: &[u8], is_last: bool) -> Vec<u8> {
        let mut out = vec![if is_last { 0x80 } else { 0 }];
        out.extend_from_slice(&(bytes.len() as u32).to_be_bytes()[1..]);
        out.extend_from_slice(bytes);
        out
    }

    /// Encodes the last fragment of a record.
    fn last_fragment(bytes: &[u8]) -> Vec<u8> {
        let is_last = true;
        fragment(bytes, is_last)
    }

    /// Encodes a fragment that another one follows.
    fn inner_fragment(bytes: &[u8]) -> Vec<u8> {
        let is_last = false;
        fragment(bytes, is_last)
    }

    /// Passes `bytes` in pieces of at most `piece_bytes` bytes and returns the records, or an error
    /// if they are garbled.
    fn decode_records(
        bytes: &[u8],
        piece_bytes: usize,
        record_bytes_max: usize,
    ) -> Result<Vec<Vec<u8>>, Garbled> {
        let mut records = Records::new(record_bytes_max);
        let (mut found, mut offset) = (Vec::new(), 0);
        while offset < bytes.len() {
            let space = records.receive_buffer(usize::MAX);
            assert!(!space.is_empty(), "the buffer has free space");
            let count = piece_bytes.min(space.len()).min(bytes.len() - offset);
            space[..count].copy_from_slice(&bytes[offset..offset + count]);
            records.record_received(count);
            offset += count;
            while let Some(step) = records.next()? {
                let RecordStep::Record(record) = step else {
                    panic!("nothing is diverted: {step:?}")
                };
                found.push(record.to_vec());
            }
        }
        Ok(found)
    }

    /// Like `decode_records` for records of `record_with_data`, but diverts their data. The receive
    /// buffer takes `extra_bytes` bytes behind the data. Returns head and data of each record, and
    /// true if the record ended at the right byte.
    fn decode_diverting(
        bytes: &[u8],
        piece_bytes: usize,
        extra_bytes: usize,
        record_bytes_max: usize,
    ) -> Result<Vec<(Vec<u8>, bool)>, Garbled> {
        const HEAD_BYTES: usize = 8;
        let mut records = Records::new(record_bytes_max);
        let (mut found, mut offset) = (Vec::new(), 0);
        let mut diverted_record = Vec::new();
        while offset < bytes.len() {
            let piece = &bytes[offset..bytes.len().min(offset + piece_bytes)];
            let (direct_piece, rest) = piece.split_at(piece.len().min(records.direct_bytes()));
            diverted_record.extend_from_slice(direct_piece);
            records.record_direct(direct_piece.len());
            let space = records.receive_buffer(extra_bytes);
            let count = rest.len().min(space.len());
            assert!(direct_piece.len() + count > 0, "the buffer has free space");
            space[..count].copy_from_slice(&rest[..count]);
            records.record_received(count);
            offset += direct_piece.len() + count;
            loop {
                match records.next()? {
                    Some(RecordStep::Record(record)) => found.push((record.to_vec(), true)),
                    Some(RecordStep::Data(data)) => diverted_record.extend_from_slice(data),
                    Some(RecordStep::End { is_whole }) => {
                        found.push((std::mem::take(&mut diverted_record), is_whole));
                    }
                    None => {
                        let head =
                            records.incomplete_record().and_then(|bytes| bytes.get(..HEAD_BYTES));
                        let Some(head) = head.map(<[u8]>::to_vec) else { break };
                        let data_bytes = u32::from_be_bytes(head[4..8].try_into().unwrap());
                        if !records.divert(HEAD_BYTES, data_bytes as usize) {
                            break;
                        }
                        diverted_record = head;
                    }
                }
            }
        }
        Ok(found)
    }

    /// Encodes a record: a head of eight bytes that ends with the data's length, the data, its
    /// padding.
    fn record_with_data(data: &[u8]) -> Vec<u8> {
        let mut record = b"head".to_vec();
        super::super::xdr::put_opaque(&mut record, data);
        record
    }

    /// Splits a record into fragments that end at these offsets.
    fn into_fragments(record: &[u8], ends: &[usize]) -> Vec<u8> {
        let mut ends: Vec<usize> = ends.iter().map(|end| end % record.len()).collect();
        ends.extend([0, record.len()]);
        ends.sort_unstable();
        ends.dedup();
        let part = |pair: &[usize]| fragment(&record[pair[0]..pair[1]], pair[1] == record.len());
        ends.windows(2).flat_map(part).collect()
    }

    /// Two records arrive in pieces of any size. The first has two fragments, divided at any byte.
    #[test]
    fn diverted_data_bypasses_the_buffer_for_any_split() {
        let records = [record_with_data(b"five!"), record_with_data(b"eight...")];
        for fragment_end in 0..records[0].len() {
            let first = into_fragments(&records[0], &[fragment_end]);
            let stream = [first, into_fragments(&records[1], &[])].concat();
            for piece_bytes in 1..=stream.len() {
                for extra_bytes in [HEADER_BYTES, 9, usize::MAX] {
                    let found =
                        decode_diverting(&stream, piece_bytes, extra_bytes, BYTES_MAX).unwrap();
                    assert_eq!(found.len(), 2, "{fragment_end}, {piece_bytes}");
                    // The padding is not data.
                    for ((got, is_whole), sent) in found.iter().zip(&records) {
                        assert!(*is_whole && sent.starts_with(got) && sent.len() - got.len() < 4);
                    }
                }
            }
        }
    }

    #[test]
    fn diverted_record_with_a_wrong_length_is_not_whole() {
        // Data, ends of the two fragments, and the expected result. The head announces 8 bytes.
        for (data, ends, is_whole) in [
            (&b"12345678"[..], [11, 16], true),
            // A byte less and a byte more than the head announces.
            (b"12345678", [11, 15], false),
            (b"123456789", [11, 17], false),
        ] {
            let mut record = record_with_data(data);
            record[7] = 8;
            record.truncate(ends[1]);
            let next = last_fragment(b"next");
            let stream = [into_fragments(&record, &ends[..1]), next].concat();
            for piece_bytes in 1..=stream.len() {
                let found = decode_diverting(&stream, piece_bytes, usize::MAX, BYTES_MAX).unwrap();
                // Larger pieces contain bytes behind the head before it is checked.
                if piece_bytes < 4 {
                    let (_, is_first_whole) = &found[0];
                    assert_eq!(*is_first_whole, is_whole, "{data:?}, {piece_bytes}");
                }
                assert_eq!(found[1], (b"next".to_vec(), true), "the records after it are decoded");
            }
        }
        // A stream of empty fragments would continue forever.
        let begin = inner_fragment(&record_with_data(&[7; 80])[..10]);
        let endless = [begin, inner_fragment(b"")].concat();
        assert_eq!(decode_diverting(&endless, 1, 4, BYTES_MAX), Err(Garbled));
    }

    /// Data without a destination is skipped in the buffer, and none bypasses it.
    #[test]
    fn abandoned_data_is_skipped_in_the_buffer() {
        let abandoned = last_fragment(&record_with_data(&[7; 16]));
        let stream = [abandoned, last_fragment(b"next")].concat();
        let mut records = Records::new(100);
        let fill = |records: &mut Records, bytes: &[u8]| {
            records.receive_buffer(usize::MAX)[..bytes.len()].copy_from_slice(bytes);
            records.record_received(bytes.len());
        };
        let head_bytes = HEADER_BYTES + 8;
        fill(&mut records, &stream[..head_bytes]);
        assert!(records.next().unwrap().is_none());
        assert!(records.divert(8, 16));
        assert_eq!(records.direct_bytes(), 16);
        records.discard_diverted();
        assert_eq!(records.direct_bytes(), 0);
        fill(&mut records, &stream[head_bytes..]);
        assert!(matches!(records.next(), Ok(Some(RecordStep::End { is_whole: false }))));
        assert!(matches!(records.next(), Ok(Some(RecordStep::Record(b"next")))));
    }

    #[test]
    fn a_record_in_fragments_is_one_record() {
        let stream = [inner_fragment(b"ab"), inner_fragment(b"c"), last_fragment(b"")].concat();
        assert_eq!(decode_records(&stream, 1, BYTES_MAX), Ok(vec![b"abc".to_vec()]));
    }

    /// Records of at most 100 bytes: one of 101, one of 60 + 60, and one of empty fragments.
    #[test]
    fn overlong_or_endless_records_are_garbled() {
        assert_eq!(decode_records(&last_fragment(&[7; 101]), 1000, BYTES_MAX), Err(Garbled));
        let stream = [inner_fragment(&[7; 60]), last_fragment(&[7; 60])].concat();
        assert_eq!(decode_records(&stream, 1000, BYTES_MAX), Err(Garbled));
        assert_eq!(decode_records(&inner_fragment(b""), 1000, BYTES_MAX), Err(Garbled));
        // The largest count of a header allocates no memory.
        assert_eq!(decode_records(&[0xff; 4], 4, BYTES_MAX), Err(Garbled));
    }

    proptest! {
        /// The records are the same for any split of the stream into fragments and pieces.
        #[test]
        fn records_round_trip_for_any_fragments_and_pieces(
            records_in_fragments in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40_000), 1..4), 1..6),
            piece_bytes in 1usize..70_000,
        ) {
            let stream: Vec<u8> = records_in_fragments.iter().flat_map(|fragments| {
                let last = fragments.len() - 1;
                fragments.iter().enumerate()
                    .flat_map(move |(nth, bytes)| fragment(bytes, nth == last))
            }).collect();
            let expected: Vec<Vec<u8>> =
                records_in_fragments.iter().map(|fragments| fragments.concat()).collect();
            prop_assert_eq!(decode_records(&stream, piece_bytes, 120_000), Ok(expected));
        }

        /// The records with data that bypasses the buffer are the same for any split.
        #[test]
        fn diverted_data_round_trips_for_any_fragments_and_pieces(
            data_and_ends in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..9_000),
                 prop::collection::vec(any::<usize>(), 0..4)), 1..6),
            piece_bytes in 1usize..12_000,
            extra_bytes in HEADER_BYTES..400,
        ) {
            let expected: Vec<Vec<u8>> =
                data_and_ends.iter().map(|(data, _)| record_with_data(data)).collect();
            let stream: Vec<u8> =
                expected.iter().zip(&data_and_ends)
                    .flat_map(|(record, (_, ends))| into_fragments(record, ends)).collect();
            let found = decode_diverting(&stream, piece_bytes, extra_bytes, 12_000).unwrap();
            prop_assert_eq!(found.len(), expected.len());
            for ((got, is_whole), sent) in found.iter().zip(&expected) {
                prop_assert!(*is_whole && sent.starts_with(got) && sent.len() - got.len() < 4);
            }
        }

        /// The decoder must not panic. Many of the words are valid headers of short fragments.
        #[test]
        fn arbitrary_bytes_are_diverted_or_garbled(
            words in prop::collection::vec(prop_oneof![0u32..40, Just(LAST_FRAGMENT | 20), any::<u32>()], 0..400),
            piece_bytes in 1usize..900,
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let _ = decode_diverting(&bytes, piece_bytes, 64, 3_000);
        }

        /// The decoder must not panic.
        #[test]
        fn arbitrary_bytes_are_records_or_garbled(
            bytes in prop::collection::vec(any::<u8>(), 0..5_000),
            piece_bytes in 1usize..5_000,
        ) {
            let _ = decode_records(&bytes, piece_bytes, 3_000);
        }
    }
}
