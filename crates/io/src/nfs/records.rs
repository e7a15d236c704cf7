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
pub(crate) struct Records {
    buffer: Vec<u8>,
    /// Offset of the first unprocessed byte.
    start: usize,
    /// End of the received bytes (exclusive).
    end: usize,
    /// Fragments so far of a record with several fragments.
    joined: Vec<u8>,
    /// True if `joined` was returned as a record. It is emptied before the next one.
    is_joined_returned: bool,
    diverted: Option<Diverted>,
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
    /// True if the fragment that starts now ends within the data and its padding, or at their end
    /// if it is the last.
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
    /// buffer. It has space for the rest of the current fragment and for up to `extra_bytes` bytes
    /// more. Never empty after [`next`](Records::next) has returned `None`.
    pub(crate) fn receive_buffer(&mut self, extra_bytes: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0
            && self.buffer.len() - self.start < HEADER_BYTES + self.record_bytes_max
        {
            // Only in this case, so that the start of a record is moved at most once.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let fragment_bytes_left = match (&self.diverted, self.next_header()) {
            (Some(diverted), _) => diverted.fragment_left - self.direct_bytes(),
            // Zero if the stream is garbage.
            (None, Some((_, count))) => {
                (HEADER_BYTES + count).saturating_sub(self.end - self.start)
            }
            (None, None) => HEADER_BYTES,
        };
        let bytes =
            fragment_bytes_left.saturating_add(extra_bytes).min(self.buffer.len() - self.end);
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
    /// A record is too long: the rest of the stream is not trustworthy.
    pub(crate) fn next(&mut self) -> Result<Option<RecordStep<'_>>, Garbled> {
        if self.diverted.is_some() {
            return self.next_diverted();
        }
        if std::mem::take(&mut self.is_joined_returned) {
            self.joined.clear();
        }
        loop {
            let Some((is_last, count)) = self.next_header() else { return Ok(None) };
            // Otherwise a stream of empty fragments could continue forever.
            if self.joined.len() + count > self.record_bytes_max || (count == 0 && !is_last) {
                return Err(Garbled);
            }
            let first = self.start + HEADER_BYTES;
            if self.end - first < count {
                return Ok(None);
            }
            self.start = first + count;
            if is_last && self.joined.is_empty() {
                return Ok(Some(RecordStep::Record(&self.buffer[first..first + count])));
            }
            self.joined.extend_from_slice(&self.buffer[first..first + count]);
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
    /// behind the record's first `head_bytes` bytes. The rest must consist of `data_bytes` bytes of
    /// data and their padding. Returns false without a change if the first fragment's length does
    /// not match.
    pub(crate) fn divert(&mut self, head_bytes: usize, data_bytes: usize) -> bool {
        let Some((is_last, count)) = self.next_header() else { return false };
        let Some(fragment_left) = count.checked_sub(head_bytes) else { return false };
        let diverted = Diverted {
            data_left: data_bytes,
            padding_left: padding(data_bytes),
            fragment_left,
            is_last,
            record_left: self.record_bytes_max.saturating_sub(count),
            is_given_up: false,
        };
        let fits = diverted.is_fragment_valid();
        if fits {
            self.start += HEADER_BYTES + head_bytes;
            self.diverted = Some(diverted);
        }
        fits
    }

    /// Marks the rest of the diverted record as to be discarded, because its data has no
    /// destination any more.
    pub(crate) fn discard_diverted(&mut self) {
        if let Some(diverted) = &mut self.diverted {
            diverted.is_given_up = true;
        }
    }

    /// Takes the next part of the diverted record. Returns `None` until more bytes arrive.
    fn next_diverted(&mut self) -> Result<Option<RecordStep<'_>>, Garbled> {
        loop {
            let header = self.next_header();
            let Some(diverted) = &mut self.diverted else { return Ok(None) };
            if diverted.fragment_left == 0 && !diverted.is_last {
                let Some((is_last, count)) = header else { return Ok(None) };
                if count > diverted.record_left || (count == 0 && !is_last) {
                    return Err(Garbled);
                }
                diverted.record_left -= count;
                (diverted.fragment_left, diverted.is_last) = (count, is_last);
                diverted.is_given_up |= !diverted.is_fragment_valid();
                self.start += HEADER_BYTES;
            }
            let available_bytes = diverted.fragment_left.min(self.end - self.start);
            let data =
                if diverted.is_given_up { 0 } else { diverted.data_left.min(available_bytes) };
            if data > 0 {
                diverted.data_left -= data;
                diverted.fragment_left -= data;
                self.start += data;
                return Ok(Some(RecordStep::Data(&self.buffer[self.start - data..self.start])));
            }
            // Padding or discarded bytes.
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

    /// Decodes the next fragment's header. Returns true for the last fragment, and the fragment's
    /// length in bytes. Returns `None` if the header is incomplete.
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

    /// Builds a fragment with its mark by hand, either the last one or another.
    fn fragment(bytes: &[u8], is_last: bool) -> Vec<u8> {
        let mut out = vec![if is_last { 0x80 } else { 0 }];
        out.extend_from_slice(&(bytes.len() as u32).to_be_bytes()[1..]);
        out.extend_from_slice(bytes);
        out
    }

    /// Passes the bytes in pieces and returns the records, or an error if they are garbled.
    fn records(bytes: &[u8], piece_bytes: usize, most: usize) -> Result<Vec<Vec<u8>>, Garbled> {
        let mut records = Records::new(most);
        let (mut found, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let space = records.receive_buffer(usize::MAX);
            assert!(!space.is_empty(), "there is always room for more");
            let count = piece_bytes.min(space.len()).min(bytes.len() - at);
            space[..count].copy_from_slice(&bytes[at..at + count]);
            records.record_received(count);
            at += count;
            while let Some(step) = records.next()? {
                let RecordStep::Record(record) = step else {
                    panic!("nothing is diverted: {step:?}")
                };
                found.push(record.to_vec());
            }
        }
        Ok(found)
    }

    /// Like `records`, but diverts records whose head contains the length of their data. Returns
    /// head and data of each record, and true if it ended at the right byte.
    fn diverted(
        bytes: &[u8],
        piece_bytes: usize,
        beyond: usize,
        most: usize,
    ) -> Result<Vec<(Vec<u8>, bool)>, Garbled> {
        const HEAD_BYTES: usize = 8;
        let mut records = Records::new(most);
        let (mut found, mut at) = (Vec::new(), 0);
        let mut under_way = Vec::new();
        while at < bytes.len() {
            let piece = &bytes[at..bytes.len().min(at + piece_bytes)];
            let (past, rest) = piece.split_at(piece.len().min(records.direct_bytes()));
            under_way.extend_from_slice(past);
            records.record_direct(past.len());
            let space = records.receive_buffer(beyond);
            let count = rest.len().min(space.len());
            assert!(past.len() + count > 0, "there is always room for more");
            space[..count].copy_from_slice(&rest[..count]);
            records.record_received(count);
            at += past.len() + count;
            loop {
                match records.next()? {
                    Some(RecordStep::Record(record)) => found.push((record.to_vec(), true)),
                    Some(RecordStep::Data(data)) => under_way.extend_from_slice(data),
                    Some(RecordStep::End { is_whole }) => {
                        found.push((std::mem::take(&mut under_way), is_whole));
                    }
                    None => {
                        let head =
                            records.incomplete_record().and_then(|bytes| bytes.get(..HEAD_BYTES));
                        let Some(head) = head.map(<[u8]>::to_vec) else { break };
                        let count = u32::from_be_bytes(head[4..8].try_into().unwrap());
                        if !records.divert(HEAD_BYTES, count as usize) {
                            break;
                        }
                        under_way = head;
                    }
                }
            }
        }
        Ok(found)
    }

    /// A head of eight bytes that contains the data's length, the data, its padding.
    fn with_data(data: &[u8]) -> Vec<u8> {
        let mut record = b"head".to_vec();
        super::super::xdr::put_opaque(&mut record, data);
        record
    }

    /// Splits a record into fragments that end at these offsets.
    fn cut(record: &[u8], ends: &[usize]) -> Vec<u8> {
        let mut ends: Vec<usize> = ends.iter().map(|end| end % record.len()).collect();
        ends.extend([0, record.len()]);
        ends.sort_unstable();
        ends.dedup();
        let part = |pair: &[usize]| fragment(&record[pair[0]..pair[1]], pair[1] == record.len());
        ends.windows(2).flat_map(part).collect()
    }

    /// Split at every byte, in one fragment and in two that meet at every byte.
    #[test]
    fn diverted_data_bypasses_the_buffer_for_any_split() {
        let records = [with_data(b"five!"), with_data(b"eight...")];
        for meet in 0..records[0].len() {
            let stream = [cut(&records[0], &[meet]), cut(&records[1], &[])].concat();
            for piece_bytes in 1..=stream.len() {
                for beyond in [HEADER_BYTES, 9, usize::MAX] {
                    let found = diverted(&stream, piece_bytes, beyond, 100).unwrap();
                    assert_eq!(found.len(), 2, "{meet}, {piece_bytes}");
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
        for (data, ends, is_whole) in [
            (&b"12345678"[..], [11, 16], true),
            // A byte more and a byte less than the head says.
            (b"12345678", [11, 15], false),
            (b"123456789", [11, 17], false),
        ] {
            let mut record = with_data(data);
            record[7] = 8;
            record.truncate(ends[1]);
            let next = fragment(b"next", true);
            let stream = [cut(&record, &ends[..1]), next].concat();
            for piece_bytes in 1..=stream.len() {
                let found = diverted(&stream, piece_bytes, usize::MAX, 100).unwrap();
                // Larger pieces contain bytes behind the head before it is checked.
                if piece_bytes < 4 {
                    assert_eq!(found[0].1, is_whole, "{data:?}, {piece_bytes}");
                }
                assert_eq!(found[1], (b"next".to_vec(), true), "and the stream goes on");
            }
        }
        // A stream of empty fragments would continue forever.
        let endless = [fragment(&with_data(&[7; 80])[..10], false), fragment(b"", false)].concat();
        assert_eq!(diverted(&endless, 1, 4, 100), Err(Garbled));
    }

    /// Data without a destination is skipped in the buffer, and none bypasses it.
    #[test]
    fn abandoned_data_is_skipped_in_the_buffer() {
        let stream = [fragment(&with_data(&[7; 16]), true), fragment(b"next", true)].concat();
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
        let stream = [fragment(b"ab", false), fragment(b"c", false), fragment(b"", true)].concat();
        assert_eq!(records(&stream, 1, 100), Ok(vec![b"abc".to_vec()]));
    }

    #[test]
    fn overlong_or_endless_records_are_garbled() {
        assert_eq!(records(&fragment(&[7; 101], true), 1000, 100), Err(Garbled));
        let stream = [fragment(&[7; 60], false), fragment(&[7; 60], true)].concat();
        assert_eq!(records(&stream, 1000, 100), Err(Garbled));
        assert_eq!(records(&fragment(b"", false), 1000, 100), Err(Garbled));
        // The largest count of a header allocates no memory.
        assert_eq!(records(&[0xff; 4], 4, 100), Err(Garbled));
    }

    proptest! {
        /// The records are the same for any split of the stream into fragments and pieces.
        #[test]
        fn records_round_trip_for_any_fragments_and_pieces(
            wanted in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40_000), 1..4), 1..6),
            piece_bytes in 1usize..70_000,
        ) {
            let stream: Vec<u8> = wanted.iter().flat_map(|fragments| {
                let last = fragments.len() - 1;
                fragments.iter().enumerate()
                    .flat_map(move |(at, bytes)| fragment(bytes, at == last))
            }).collect();
            let whole: Vec<Vec<u8>> = wanted.iter().map(|fragments| fragments.concat()).collect();
            prop_assert_eq!(records(&stream, piece_bytes, 120_000), Ok(whole));
        }

        /// The records with data that bypasses the buffer are the same for any split.
        #[test]
        fn diverted_data_round_trips_for_any_fragments_and_pieces(
            wanted in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..9_000),
                 prop::collection::vec(any::<usize>(), 0..4)), 1..6),
            piece_bytes in 1usize..12_000,
            beyond in HEADER_BYTES..400,
        ) {
            let whole: Vec<Vec<u8>> = wanted.iter().map(|(data, _)| with_data(data)).collect();
            let stream: Vec<u8> =
                whole.iter().zip(&wanted).flat_map(|(record, (_, ends))| cut(record, ends)).collect();
            let found = diverted(&stream, piece_bytes, beyond, 12_000).unwrap();
            prop_assert_eq!(found.len(), whole.len());
            for ((got, is_whole), sent) in found.iter().zip(&whole) {
                prop_assert!(*is_whole && sent.starts_with(got) && sent.len() - got.len() < 4);
            }
        }

        #[test]
        fn arbitrary_bytes_are_diverted_or_garbled(
            words in prop::collection::vec(prop_oneof![0u32..40, Just(LAST_FRAGMENT | 20), any::<u32>()], 0..400),
            piece_bytes in 1usize..900,
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let _ = diverted(&bytes, piece_bytes, 64, 3_000);
        }

        #[test]
        fn arbitrary_bytes_are_records_or_garbled(
            bytes in prop::collection::vec(any::<u8>(), 0..5_000),
            piece_bytes in 1usize..5_000,
        ) {
            let _ = records(&bytes, piece_bytes, 3_000);
        }
    }
}
