//! Encodings of single fields, for writing and reading.
//!
//! A block is the unit of a recording that can be decoded alone. Its *reference values* are the
//! last time and the ends of the last ranges.
//!
//! A function fails if its encoding cannot express the value, or if the bytes of the block end
//! early or stand for no value.

use std::collections::BTreeMap;

use super::{OFFSET_MAX, TEXT_BYTES_MAX};

/// Problem with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordProblem {
    /// The record extends beyond its block.
    Short,
    /// The record is malformed, with a description.
    Wrong(&'static str),
}

/// Processes the fields of a record one after another: a [`FieldEncoder`] writes them, a
/// [`FieldDecoder`] fills them in.
pub(super) trait FieldCodec {
    /// Writes a number, or replaces it by the one that was read. The encoding is LEB128: seven bits
    /// per byte, the lowest first. The highest bit of a byte is set if another byte follows.
    fn number(&mut self, value: &mut u64) -> Result<(), RecordProblem>;

    /// Writes a text, or replaces it by the one that was read. The encoding is the number of bytes,
    /// then the bytes in UTF-8.
    fn text(&mut self, value: &mut String) -> Result<(), RecordProblem>;

    /// Returns the reference values of the present block.
    fn reference(&mut self) -> &mut BlockReference;
}

/// Values of a block to which later fields are encoded as differences.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockReference {
    /// Last time in the block, 0 at its start.
    time_ns: u64,
    /// End of the last range of each file in the block. A file without a range has 0.
    ends: BTreeMap<u32, u64>,
}

/// Encoder: appends fields to the bytes of a block.
#[derive(Debug, Default)]
pub(super) struct FieldEncoder {
    /// Encoded records of the block.
    pub bytes: Vec<u8>,
    /// Values of the block so far, to which differences refer.
    pub reference: BlockReference,
}

impl FieldCodec for FieldEncoder {
    /// Appends the number to the block.
    fn number(&mut self, value: &mut u64) -> Result<(), RecordProblem> {
        let mut rest = *value;
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
        Ok(())
    }

    /// Appends length and bytes of the text to the block.
    fn text(&mut self, value: &mut String) -> Result<(), RecordProblem> {
        if value.len() as u64 > TEXT_BYTES_MAX {
            return Err(RecordProblem::Wrong("a text of more than 64 KiB"));
        }
        self.number(&mut (value.len() as u64))?;
        self.bytes.extend_from_slice(value.as_bytes());
        Ok(())
    }

    /// Returns the reference values of the block.
    fn reference(&mut self) -> &mut BlockReference {
        &mut self.reference
    }
}

/// Decoder: fills in fields from the bytes of a block.
#[derive(Debug)]
pub(super) struct FieldDecoder<'a> {
    /// Bytes that have not been read.
    pub rest: &'a [u8],
    /// Values of the block so far, to which differences refer.
    pub reference: &'a mut BlockReference,
}

impl FieldCodec for FieldDecoder<'_> {
    /// Takes the next number from the block.
    fn number(&mut self, value: &mut u64) -> Result<(), RecordProblem> {
        *value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(RecordProblem::Short)?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            // Bits beyond the 64th would be lost.
            if bits << shift >> shift != bits {
                break;
            }
            *value |= bits << shift;
            if byte < 0x80 {
                return Ok(());
            }
        }
        Err(RecordProblem::Wrong("a number of more than 64 bits"))
    }

    /// Takes the next text from the block: its length, and then its bytes.
    fn text(&mut self, value: &mut String) -> Result<(), RecordProblem> {
        let mut bytes = 0;
        self.number(&mut bytes)?;
        if bytes > TEXT_BYTES_MAX {
            return Err(RecordProblem::Wrong("a text of more than 64 KiB"));
        }
        let (text, rest) =
            self.rest.split_at_checked(bytes as usize).ok_or(RecordProblem::Short)?;
        let text =
            str::from_utf8(text).map_err(|_| RecordProblem::Wrong("a text that is not UTF-8"))?;
        self.rest = rest;
        text.clone_into(value);
        Ok(())
    }

    /// Returns the reference values of the block.
    fn reference(&mut self) -> &mut BlockReference {
        self.reference
    }
}

/// Writes or reads a number below 2³².
pub(super) fn code_u32(code: &mut impl FieldCodec, value: &mut u32) -> Result<(), RecordProblem> {
    let mut wide = u64::from(*value);
    code.number(&mut wide)?;
    *value = wide.try_into().map_err(|_| RecordProblem::Wrong("a number of more than 32 bits"))?;
    Ok(())
}

/// Writes or reads a boolean, as 0 or 1.
pub(super) fn code_flag(code: &mut impl FieldCodec, value: &mut bool) -> Result<(), RecordProblem> {
    let mut number = u64::from(*value);
    code.number(&mut number)?;
    *value = match number {
        0 => false,
        1 => true,
        _ => return Err(RecordProblem::Wrong("neither yes nor no")),
    };
    Ok(())
}

/// Writes or reads one of several values, encoded by its index in `values`, which contains all
/// values of the type.
pub(super) fn code_choice<T: Copy + PartialEq>(
    code: &mut impl FieldCodec,
    value: &mut T,
    values: &[T],
) -> Result<(), RecordProblem> {
    let index = values.iter().position(|candidate| candidate == value).expect("all are listed");
    let mut number = index as u64;
    code.number(&mut number)?;
    let decoded = usize::try_from(number).ok().and_then(|index| values.get(index));
    *value = *decoded.ok_or(RecordProblem::Wrong("a choice that is not known"))?;
    Ok(())
}

/// Writes or reads an optional number: 0 for none, otherwise the number + 1.
pub(super) fn code_optional_number(
    code: &mut impl FieldCodec,
    value: &mut Option<u64>,
) -> Result<(), RecordProblem> {
    let mut number = match *value {
        Some(number) => number.checked_add(1).ok_or(RecordProblem::Wrong("2⁶⁴ - 1"))?,
        None => 0,
    };
    code.number(&mut number)?;
    *value = number.checked_sub(1);
    Ok(())
}

/// Writes or reads a number as the signed difference to `reference`, modulo 2⁶⁴.
fn code_difference(
    code: &mut impl FieldCodec,
    reference: u64,
    value: &mut u64,
) -> Result<(), RecordProblem> {
    // 0, -1, 1 and -2 are encoded as 0, 1, 2 and 3, so that small differences are short.
    let signed_difference = value.wrapping_sub(reference) as i64;
    let mut number = (signed_difference << 1 ^ signed_difference >> 63) as u64;
    code.number(&mut number)?;
    let signed_difference = (number >> 1) as i64 ^ -((number & 1) as i64);
    *value = reference.wrapping_add(signed_difference as u64);
    Ok(())
}

/// Writes or reads a time in nanoseconds, as the difference to the last one in the block.
pub(super) fn code_time(
    code: &mut impl FieldCodec,
    time_ns: &mut u64,
) -> Result<(), RecordProblem> {
    let last_ns = code.reference().time_ns;
    code_difference(code, last_ns, time_ns)?;
    code.reference().time_ns = *time_ns;
    Ok(())
}

/// Writes or reads a start time in nanoseconds, as the distance to `end_ns`. A start after the end
/// is an error in both directions.
pub(super) fn code_start_time(
    code: &mut impl FieldCodec,
    end_ns: u64,
    begin_ns: &mut u64,
) -> Result<(), RecordProblem> {
    const WRONG: RecordProblem = RecordProblem::Wrong("a beginning after the end");
    // A decoder starts with a `begin_ns` of 0, which never fails here.
    let mut distance_ns = end_ns.checked_sub(*begin_ns).ok_or(WRONG)?;
    code.number(&mut distance_ns)?;
    *begin_ns = end_ns.checked_sub(distance_ns).ok_or(WRONG)?;
    Ok(())
}

/// Writes or reads a range of a file. The offset is the difference to the end of the file's last
/// range in the block. A range that ends beyond [`OFFSET_MAX`] is an error.
pub(super) fn code_range(
    code: &mut impl FieldCodec,
    file: u32,
    offset: &mut u64,
    bytes: &mut u64,
) -> Result<(), RecordProblem> {
    let last_end = code.reference().ends.get(&file).copied().unwrap_or(0);
    code_difference(code, last_end, offset)?;
    code.number(bytes)?;
    let end = offset.checked_add(*bytes).filter(|end| *end <= OFFSET_MAX);
    let end = end.ok_or(RecordProblem::Wrong("a range that ends beyond 2⁶³ bytes"))?;
    code.reference().ends.insert(file, end);
    Ok(())
}
