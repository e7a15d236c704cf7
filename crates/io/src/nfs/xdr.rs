//! XDR (RFC 4506), as far as RPC and NFS version 3 need it.
//!
//! Received values are never trusted: a length is compared with the limit of its field and with the
//! available bytes before its use. Decoding copies and allocates nothing.

/// Unit of XDR in bytes. Each item is padded to a multiple of it.
const UNIT_BYTES: usize = 4;

/// Error: the received bytes are not the expected ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbled;

/// Decodes values from the start of received bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XdrReader<'a> {
    /// Bytes that were not decoded yet.
    undecoded: &'a [u8],
}

impl<'a> XdrReader<'a> {
    /// Creates a reader at the start of these bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> XdrReader<'a> {
        XdrReader { undecoded: bytes }
    }

    /// Takes the next `count` bytes. They have no length and no padding.
    pub(crate) fn fixed(&mut self, count: usize) -> Result<&'a [u8], Garbled> {
        let (bytes, undecoded) = self.undecoded.split_at_checked(count).ok_or(Garbled)?;
        self.undecoded = undecoded;
        Ok(bytes)
    }

    /// Decodes an unsigned integer.
    pub(crate) fn u32(&mut self) -> Result<u32, Garbled> {
        let bytes = self.fixed(4)?;
        Ok(u32::from_be_bytes(bytes.try_into().expect("the slice has four bytes")))
    }

    /// Decodes an unsigned hyper integer.
    pub(crate) fn u64(&mut self) -> Result<u64, Garbled> {
        let bytes = self.fixed(8)?;
        Ok(u64::from_be_bytes(bytes.try_into().expect("the slice has eight bytes")))
    }

    /// Decodes a boolean. Only 0 and 1 are valid.
    pub(crate) fn bool(&mut self) -> Result<bool, Garbled> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbled),
        }
    }

    /// Decodes opaque data: its length, at most `bytes_max` bytes, and its padding. Returns the
    /// bytes without the padding.
    pub(crate) fn opaque(&mut self, bytes_max: usize) -> Result<&'a [u8], Garbled> {
        let count = self.u32()? as usize;
        if count > bytes_max {
            return Err(Garbled);
        }
        self.padded(count)
    }

    /// Takes `count` bytes and the padding behind them.
    pub(crate) fn padded(&mut self, count: usize) -> Result<&'a [u8], Garbled> {
        let bytes = self.fixed(count)?;
        self.fixed(padding(count))?;
        Ok(bytes)
    }

    /// Returns the remaining bytes.
    pub(crate) fn remaining(self) -> &'a [u8] {
        self.undecoded
    }

    /// Checks that no bytes remain.
    pub(crate) fn expect_end(self) -> Result<(), Garbled> {
        if self.undecoded.is_empty() { Ok(()) } else { Err(Garbled) }
    }
}

/// Number of padding bytes behind opaque data of `count` bytes.
pub(crate) fn padding(count: usize) -> usize {
    count.next_multiple_of(UNIT_BYTES) - count
}

/// Appends an unsigned integer to `message`.
pub(crate) fn put_u32(message: &mut Vec<u8>, value: u32) {
    message.extend_from_slice(&value.to_be_bytes());
}

/// Appends an unsigned hyper integer to `message`.
pub(crate) fn put_u64(message: &mut Vec<u8>, value: u64) {
    message.extend_from_slice(&value.to_be_bytes());
}

/// Appends opaque data or a string to `message`: its length, its bytes, its padding.
pub(crate) fn put_opaque(message: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(message, bytes.len() as u32);
    message.extend_from_slice(bytes);
    message.extend_from_slice(&[0; UNIT_BYTES][..padding(bytes.len())]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples of RFC 4506, sections 4.10 and 4.11, by hand.
    #[test]
    fn opaque_data_is_length_prefixed_and_padded() {
        let mut bytes = Vec::new();
        put_opaque(&mut bytes, b"sillyprog");
        assert_eq!(bytes, b"\0\0\0\x09sillyprog\0\0\0");
        let mut reader = XdrReader::new(&bytes);
        assert_eq!(reader.opaque(9), Ok(&b"sillyprog"[..]));
        assert_eq!(reader.expect_end(), Ok(()));
        assert_eq!(
            XdrReader::new(&bytes).opaque(8),
            Err(Garbled),
            "the data is longer than permitted"
        );
        assert_eq!(XdrReader::new(&bytes[..13]).opaque(9), Err(Garbled), "the padding is missing");
        assert_eq!(
            XdrReader::new(&bytes[..12]).opaque(9),
            Err(Garbled),
            "the last byte is missing"
        );
    }

    #[test]
    fn integers_are_big_endian_and_a_boolean_is_0_or_1() {
        let mut bytes = Vec::new();
        put_u32(&mut bytes, 1);
        put_u64(&mut bytes, 0x0102_0304_0506_0708);
        assert_eq!(bytes, [0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mut reader = XdrReader::new(&bytes);
        assert_eq!(reader.bool(), Ok(true));
        assert_eq!(reader.u64(), Ok(0x0102_0304_0506_0708));
        assert_eq!(reader.u32(), Err(Garbled));
        assert_eq!(XdrReader::new(&[0, 0, 0, 2]).bool(), Err(Garbled));
    }
}
