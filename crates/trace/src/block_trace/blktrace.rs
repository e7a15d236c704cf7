//! Reader of blktrace's records (`linux/blktrace_api.h`). A record has 48 bytes in the byte order
//! of the writing machine, followed by a stated number of bytes.

use std::io::{self, BufRead, Read};

use readpath_core::request::Op;
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::Event;
use super::fields::{END_BYTES_LIMIT, checked_time};

/// Expected form, for errors.
pub const EXPECTED: &str = "a whole record of blktrace, version 7";

/// Magic number at the start of each record, without the version.
const MAGIC: u32 = 0x6561_7400;

/// Version of the records.
const VERSION: u32 = 7;

/// Bytes in a record.
const RECORD_BYTES: usize = 48;

/// Events of a request (`enum blktrace_act`): queued, issued, complete, inserted.
const EVENTS: [(u32, Event); 4] =
    [(1, Event::Queued), (7, Event::Issued), (8, Event::Completed), (12, Event::Inserted)];

/// Bit of an event that a task of a cgroup caused (`__BLK_TA_CGROUP`). The cgroup's number is among
/// the data after the record.
const CGROUP: u32 = 1 << 8;

/// Category bit of reads, in the upper half of a record's action.
const READ: u32 = 1 << 16;
/// Category bit of writes.
const WRITE: u32 = 1 << 17;
/// Category bit of passthrough commands (`BLK_TC_PC`), which name no place on the device.
const PASSTHROUGH: u32 = 1 << 25;
/// Category bit of notices: messages of the tracer, which are no requests.
const NOTICE: u32 = 1 << 26;
/// Category bit of discards.
const DISCARD: u32 = 1 << 29;

/// One record.
pub enum BlktraceRecord {
    /// End of the trace.
    End,
    /// The record is malformed or truncated.
    Bad,
    /// It is of no request, or moves no data.
    Nothing,
    /// An event of a request.
    Request { at: Time, device: u32, op: Op, offset: u64, bytes: u64, event: Event },
}

/// Returns true if a file with this start contains records of blktrace.
pub fn is_start(start: &[u8]) -> bool {
    let Some(magic) = start.first_chunk::<4>() else { return false };
    [u32::from_le_bytes(*magic), u32::from_be_bytes(*magic)].contains(&(MAGIC | VERSION))
}

/// Reads the next record: a request, or `Nothing` for other events, `Bad` for malformed or
/// truncated data and for a time or an offset beyond the limits, and `End`. `buffer` receives the
/// data after it, which is only skipped. An error is one of `source`.
pub fn read_next(source: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<BlktraceRecord> {
    if source.fill_buf()?.is_empty() {
        return Ok(BlktraceRecord::End);
    }
    let mut record = [0; RECORD_BYTES];
    match source.read_exact(&mut record) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(BlktraceRecord::Bad);
        }
        Err(error) => return Err(error),
    }
    let magic_offset = 0;
    let is_little_endian =
        u32::from_le_bytes(field_bytes(&record, magic_offset)) == MAGIC | VERSION;
    if !is_start(&record) {
        return Ok(BlktraceRecord::Bad);
    }
    let number_32 = |offset| match is_little_endian {
        true => u32::from_le_bytes(field_bytes(&record, offset)),
        false => u32::from_be_bytes(field_bytes(&record, offset)),
    };
    let number_64 = |offset| match is_little_endian {
        true => u64::from_le_bytes(field_bytes(&record, offset)),
        false => u64::from_be_bytes(field_bytes(&record, offset)),
    };
    // Length of the data after the record: the last field, two bytes at offset 46.
    let data_bytes = match is_little_endian {
        true => u16::from_le_bytes(field_bytes(&record, 46)),
        false => u16::from_be_bytes(field_bytes(&record, 46)),
    };
    buffer.clear();
    let skipped = source.by_ref().take(data_bytes.into()).read_to_end(buffer)?;
    if skipped < usize::from(data_bytes) {
        return Ok(BlktraceRecord::Bad);
    }
    // Offsets of the fields in `struct blk_io_trace`.
    let (time_ns, sector, bytes, action, device) =
        (number_64(8), number_64(16), number_32(24), number_32(28), number_32(36));
    // The lower half of the action is the event, the upper half the categories.
    let event = EVENTS.iter().find(|(number, _)| *number == action & 0xffff & !CGROUP);
    let Some(&(_, event)) = event else { return Ok(BlktraceRecord::Nothing) };
    let op = match action {
        _ if action & (PASSTHROUGH | NOTICE | DISCARD) != 0 || bytes == 0 => {
            return Ok(BlktraceRecord::Nothing);
        }
        _ if action & WRITE != 0 => Op::Write,
        _ if action & READ != 0 => Op::Read,
        _ => return Ok(BlktraceRecord::Nothing),
    };
    // The offset alone is checked: a length of 32 bits cannot make the end overflow.
    let offset = sector.checked_mul(SECTOR_BYTES).filter(|offset| *offset < END_BYTES_LIMIT);
    let time = checked_time(time_ns);
    Ok(match (offset, time) {
        (Some(offset), Some(at)) => {
            BlktraceRecord::Request { at, device, op, offset, bytes: bytes.into(), event }
        }
        _ => BlktraceRecord::Bad,
    })
}

/// Returns the bytes of a field at an offset.
fn field_bytes<const N: usize>(record: &[u8; RECORD_BYTES], offset: usize) -> [u8; N] {
    let bytes = record[offset..].first_chunk::<N>();
    *bytes.expect("the fields lie inside the record")
}
