//! Records on a byte stream (RFC 5531, section 11): a reply comes in one or
//! more fragments, each behind four bytes that hold its length and whether it
//! is the last.
//!
//! The socket writes straight into the buffer here, and a record of one
//! fragment (nearly all are) is lent from there without being copied.

use super::xdr::Garbled;

/// The bit of a fragment's header that says: the last one.
const LAST: u32 = 1 << 31;

/// A fragment's header.
const HEADER_BYTES: usize = 4;

/// Room beside the largest record, so that one system call brings many small ones.
const SPARE_BYTES: usize = 256 << 10;

/// The received bytes of one connection.
pub(crate) struct Records {
    buffer: Vec<u8>,
    /// The first byte that was received and not yet taken.
    start: usize,
    /// The end of what was received: exclusive.
    end: usize,
    /// The fragments so far of a record that has several.
    joined: Vec<u8>,
    /// `joined` was lent as a record; it is emptied before the next.
    is_lent: bool,
    record_bytes_max: usize,
}

impl Records {
    /// For records of at most `record_bytes_max` bytes; a longer one can only be garbage.
    pub(crate) fn new(record_bytes_max: usize) -> Records {
        Records {
            buffer: vec![0; HEADER_BYTES + record_bytes_max + SPARE_BYTES],
            start: 0,
            end: 0,
            joined: Vec::new(),
            is_lent: false,
            record_bytes_max,
        }
    }

    /// Where the socket may write; never empty once [`next`](Records::next) has given none.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0
            && self.buffer.len() - self.start < HEADER_BYTES + self.record_bytes_max
        {
            // Only then: a record's beginning is moved at most once.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// The socket has written so many bytes there.
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.end += bytes;
        debug_assert!(self.end <= self.buffer.len());
    }

    /// Forgets everything: the connection is another one.
    pub(crate) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
        self.joined.clear();
        self.is_lent = false;
    }

    /// The next whole record; `None` until more was received.
    ///
    /// # Errors
    /// A record is longer than any can be: the stream can't be trusted from here on.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, Garbled> {
        if std::mem::take(&mut self.is_lent) {
            self.joined.clear();
        }
        loop {
            let Some(header) = self.buffer[self.start..self.end].first_chunk::<HEADER_BYTES>()
            else {
                return Ok(None);
            };
            let header = u32::from_be_bytes(*header);
            let (is_last, count) = (header & LAST != 0, (header & !LAST) as usize);
            // An empty fragment that is not the last would let a stream of them go on for ever.
            if self.joined.len() + count > self.record_bytes_max || (count == 0 && !is_last) {
                return Err(Garbled);
            }
            let first = self.start + HEADER_BYTES;
            if self.end - first < count {
                return Ok(None);
            }
            self.start = first + count;
            if is_last && self.joined.is_empty() {
                return Ok(Some(&self.buffer[first..first + count]));
            }
            self.joined.extend_from_slice(&self.buffer[first..first + count]);
            if is_last {
                self.is_lent = true;
                return Ok(Some(&self.joined));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a record mark says, by hand: a last fragment of `bytes`, and one that is not the last.
    fn fragment(bytes: &[u8], is_last: bool) -> Vec<u8> {
        let mut out = vec![if is_last { 0x80 } else { 0 }];
        out.extend_from_slice(&(bytes.len() as u32).to_be_bytes()[1..]);
        out.extend_from_slice(bytes);
        out
    }

    /// Lets the bytes come in pieces; gives the records, or that they are garbled.
    fn records(bytes: &[u8], piece_bytes: usize, most: usize) -> Result<Vec<Vec<u8>>, Garbled> {
        let mut records = Records::new(most);
        let (mut found, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let space = records.space();
            assert!(!space.is_empty(), "there is always room for more");
            let count = piece_bytes.min(space.len()).min(bytes.len() - at);
            space[..count].copy_from_slice(&bytes[at..at + count]);
            records.filled(count);
            at += count;
            while let Some(record) = records.next()? {
                found.push(record.to_vec());
            }
        }
        Ok(found)
    }

    #[test]
    fn a_record_in_fragments_is_one_record() {
        let stream = [fragment(b"ab", false), fragment(b"c", false), fragment(b"", true)].concat();
        assert_eq!(records(&stream, 1, 100), Ok(vec![b"abc".to_vec()]));
    }

    #[test]
    fn what_is_too_long_or_goes_on_for_ever_is_garbage() {
        assert_eq!(records(&fragment(&[7; 101], true), 1000, 100), Err(Garbled));
        let stream = [fragment(&[7; 60], false), fragment(&[7; 60], true)].concat();
        assert_eq!(records(&stream, 1000, 100), Err(Garbled));
        assert_eq!(records(&fragment(b"", false), 1000, 100), Err(Garbled));
        // The largest count that a header can hold asks for no memory.
        assert_eq!(records(&[0xff; 4], 4, 100), Err(Garbled));
    }

    proptest! {
        /// However the stream is cut into fragments and into pieces, the records are the same.
        #[test]
        fn records_come_out_as_they_went_in(
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

        #[test]
        fn any_bytes_are_records_or_garbage(
            bytes in prop::collection::vec(any::<u8>(), 0..5_000),
            piece_bytes in 1usize..5_000,
        ) {
            let _ = records(&bytes, piece_bytes, 3_000);
        }
    }
}
