//! Encodings of single fields, for writing and reading.

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

/// Processes the fields of a record one after another: a [`FieldEncoder`] writes them, an
/// [`FieldDecoder`] fills them in.
pub(super) trait FieldCodec {
    /// Processes a number.
    fn number(&mut self, value: &mut u64) -> Result<(), RecordProblem>;

    /// Processes a text.
    fn text(&mut self, value: &mut String) -> Result<(), RecordProblem>;

    /// Reference values of the present block.
    fn past(&mut self) -> &mut BlockReference;
}

/// Values of a block to which later fields are encoded as differences.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockReference {
    /// Last time.
    time_ns: u64,
    /// End of the last range of each file.
    ends: BTreeMap<u32, u64>,
}

/// Encoder: appends fields to the bytes of a block.
#[derive(Debug, Default)]
pub(super) struct FieldEncoder {
    pub bytes: Vec<u8>,
    pub past: BlockReference,
}

impl FieldCodec for FieldEncoder {
    fn number(&mut self, value: &mut u64) -> Result<(), RecordProblem> {
        let mut left = *value;
        while left >= 0x80 {
            self.bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        self.bytes.push(left as u8);
        Ok(())
    }

    fn text(&mut self, value: &mut String) -> Result<(), RecordProblem> {
        if value.len() as u64 > TEXT_BYTES_MAX {
            return Err(RecordProblem::Wrong("a text of more than 64 KiB"));
        }
        self.number(&mut (value.len() as u64))?;
        self.bytes.extend_from_slice(value.as_bytes());
        Ok(())
    }

    fn past(&mut self) -> &mut BlockReference {
        &mut self.past
    }
}

/// Decoder: fills in fields from the bytes of a block.
#[derive(Debug)]
pub(super) struct FieldDecoder<'a> {
    pub left: &'a [u8],
    pub past: &'a mut BlockReference,
}

impl FieldCodec for FieldDecoder<'_> {
    fn number(&mut self, value: &mut u64) -> Result<(), RecordProblem> {
        *value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (&byte, left) = self.left.split_first().ok_or(RecordProblem::Short)?;
            self.left = left;
            let bits = u64::from(byte & 0x7f);
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

    fn text(&mut self, value: &mut String) -> Result<(), RecordProblem> {
        let mut bytes = 0;
        self.number(&mut bytes)?;
        if bytes > TEXT_BYTES_MAX {
            return Err(RecordProblem::Wrong("a text of more than 64 KiB"));
        }
        let (text, left) =
            self.left.split_at_checked(bytes as usize).ok_or(RecordProblem::Short)?;
        let text =
            str::from_utf8(text).map_err(|_| RecordProblem::Wrong("a text that is not UTF-8"))?;
        self.left = left;
        text.clone_into(value);
        Ok(())
    }

    fn past(&mut self) -> &mut BlockReference {
        self.past
    }
}

/// Processes a number below 2³².
pub(super) fn small(code: &mut impl FieldCodec, value: &mut u32) -> Result<(), RecordProblem> {
    let mut wide = u64::from(*value);
    code.number(&mut wide)?;
    *value = wide.try_into().map_err(|_| RecordProblem::Wrong("a number of more than 32 bits"))?;
    Ok(())
}

/// Processes a boolean.
pub(super) fn flag(code: &mut impl FieldCodec, value: &mut bool) -> Result<(), RecordProblem> {
    let mut number = u64::from(*value);
    code.number(&mut number)?;
    *value = match number {
        0 => false,
        1 => true,
        _ => return Err(RecordProblem::Wrong("neither yes nor no")),
    };
    Ok(())
}

/// Processes one of several values, encoded by its index in `all`.
pub(super) fn one_of<T: Copy + PartialEq>(
    code: &mut impl FieldCodec,
    value: &mut T,
    all: &[T],
) -> Result<(), RecordProblem> {
    let place = all.iter().position(|one| one == value).expect("all are listed");
    let mut number = place as u64;
    code.number(&mut number)?;
    let chosen = usize::try_from(number).ok().and_then(|place| all.get(place));
    *value = *chosen.ok_or(RecordProblem::Wrong("a choice that is not known"))?;
    Ok(())
}

/// Processes an optional number.
pub(super) fn optional_number(
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

/// Processes a number as the signed difference to `from`.
fn difference(code: &mut impl FieldCodec, from: u64, value: &mut u64) -> Result<(), RecordProblem> {
    let signed = value.wrapping_sub(from) as i64;
    let mut number = (signed << 1 ^ signed >> 63) as u64;
    code.number(&mut number)?;
    let signed = (number >> 1) as i64 ^ -((number & 1) as i64);
    *value = from.wrapping_add(signed as u64);
    Ok(())
}

/// Processes a time as the difference to the last one.
pub(super) fn time(code: &mut impl FieldCodec, value: &mut u64) -> Result<(), RecordProblem> {
    let last = code.past().time_ns;
    difference(code, last, value)?;
    code.past().time_ns = *value;
    Ok(())
}

/// Processes a start time as the distance to `end`.
pub(super) fn start_time(
    code: &mut impl FieldCodec,
    end: u64,
    value: &mut u64,
) -> Result<(), RecordProblem> {
    const WRONG: RecordProblem = RecordProblem::Wrong("a beginning after the end");
    let mut before = end.checked_sub(*value).ok_or(WRONG)?;
    code.number(&mut before)?;
    *value = end.checked_sub(before).ok_or(WRONG)?;
    Ok(())
}

/// Processes a file range: its first byte and its length.
pub(super) fn range(
    code: &mut impl FieldCodec,
    file: u32,
    offset: &mut u64,
    bytes: &mut u64,
) -> Result<(), RecordProblem> {
    let last = code.past().ends.get(&file).copied().unwrap_or(0);
    difference(code, last, offset)?;
    code.number(bytes)?;
    let end = offset.checked_add(*bytes).filter(|end| *end <= OFFSET_MAX);
    let end = end.ok_or(RecordProblem::Wrong("a range that ends beyond 2⁶³ bytes"))?;
    code.past().ends.insert(file, end);
    Ok(())
}
