//! The fields of each record type in order, for both writing and reading.

use super::code::{
    FieldCodec, RecordProblem, flag, one_of, optional_number, range, small_number, start_time, time,
};
use super::{
    Activity, AdviceType, DeviceOperation, ReadMethod, ReadOutcome, Record, RecordingMethod,
};

/// Values of `RecordingMethod` in encoding order.
const SOURCES: [RecordingMethod; 4] = [
    RecordingMethod::Tracepoints,
    RecordingMethod::Preload,
    RecordingMethod::Strace,
    RecordingMethod::Requests,
];

/// Values of `AdviceType` in encoding order.
const HINTS: [AdviceType; 6] = [
    AdviceType::Normal,
    AdviceType::Random,
    AdviceType::Sequential,
    AdviceType::WillNeed,
    AdviceType::DontNeed,
    AdviceType::Other,
];

/// Values of `ReadMethod` in encoding order.
const METHODS: [ReadMethod; 8] = [
    ReadMethod::Read,
    ReadMethod::Pread,
    ReadMethod::Readv,
    ReadMethod::Preadv,
    ReadMethod::Fault,
    ReadMethod::Uring,
    ReadMethod::Copied,
    ReadMethod::Aio,
];

/// Values of `DeviceOperation` in encoding order.
const WORKS: [DeviceOperation; 3] =
    [DeviceOperation::Read, DeviceOperation::Write, DeviceOperation::Other];

/// Passes each field of a record to `code`, in the order of the file. An encoder writes the fields,
/// a decoder fills them in.
pub(super) fn code_fields(
    record: &mut Record,
    code: &mut impl FieldCodec,
) -> Result<(), RecordProblem> {
    match record {
        Record::Start(start) => {
            one_of(code, &mut start.source, &SOURCES)?;
            code.number(&mut start.wall_ns)?;
            code.number(&mut start.page_bytes)?;
            if !start.page_bytes.is_power_of_two() {
                return Err(RecordProblem::Wrong("a page whose length is no power of two"));
            }
            code.number(&mut start.memory_bytes)?;
            code.text(&mut start.program)?;
            code.text(&mut start.system)
        }
        Record::Device(device) => {
            code.number(&mut device.device)?;
            code.text(&mut device.name)?;
            flag(code, &mut device.is_rotational)?;
            code.number(&mut device.readahead_bytes)?;
            code.text(&mut device.file_system)
        }
        Record::File(file) => {
            small_number(code, &mut file.file)?;
            code.number(&mut file.device)?;
            code.number(&mut file.inode)?;
            optional_number(code, &mut file.bytes)?;
            code.text(&mut file.path)
        }
        Record::Thread(thread) => {
            small_number(code, &mut thread.thread)?;
            small_number(code, &mut thread.task)?;
            small_number(code, &mut thread.process)?;
            code.text(&mut thread.name)
        }
        Record::Open(open) => {
            time(code, &mut open.at_ns)?;
            small_number(code, &mut open.thread)?;
            small_number(code, &mut open.file)?;
            code.number(&mut open.descriptor)?;
            flag(code, &mut open.is_direct)?;
            flag(code, &mut open.is_readable)?;
            flag(code, &mut open.is_writable)
        }
        Record::Map(map) => {
            time(code, &mut map.at_ns)?;
            small_number(code, &mut map.thread)?;
            small_number(code, &mut map.file)?;
            range(code, map.file, &mut map.offset, &mut map.bytes)
        }
        Record::Advice(advice) => {
            time(code, &mut advice.at_ns)?;
            small_number(code, &mut advice.thread)?;
            small_number(code, &mut advice.file)?;
            range(code, advice.file, &mut advice.offset, &mut advice.bytes)?;
            one_of(code, &mut advice.hint, &HINTS)?;
            flag(code, &mut advice.is_of_mapping)
        }
        Record::Read(read) => {
            time(code, &mut read.end_ns)?;
            start_time(code, read.end_ns, &mut read.begin_ns)?;
            code.number(&mut read.waited_ns)?;
            small_number(code, &mut read.thread)?;
            one_of(code, &mut read.way, &METHODS)?;
            optional_number(code, &mut read.descriptor)?;
            small_number(code, &mut read.file)?;
            range(code, read.file, &mut read.offset, &mut read.asked_bytes)?;
            outcome(code, read.asked_bytes, &mut read.outcome)
        }
        Record::Insert(insert) => {
            time(code, &mut insert.at_ns)?;
            small_number(code, &mut insert.thread)?;
            small_number(code, &mut insert.file)?;
            range(code, insert.file, &mut insert.offset, &mut insert.bytes)
        }
        Record::Evict(evict) => {
            time(code, &mut evict.at_ns)?;
            small_number(code, &mut evict.file)?;
            range(code, evict.file, &mut evict.offset, &mut evict.bytes)
        }
        Record::Request(request) => {
            time(code, &mut request.end_ns)?;
            start_time(code, request.end_ns, &mut request.begin_ns)?;
            optional_number(code, &mut request.thread)?;
            code.number(&mut request.device)?;
            one_of(code, &mut request.work, &WORKS)?;
            flag(code, &mut request.is_ahead)?;
            code.number(&mut request.place)?;
            code.number(&mut request.bytes)
        }
        Record::Lost(lost) => {
            time(code, &mut lost.at_ns)?;
            code.number(&mut lost.count)
        }
        Record::End(end) => {
            time(code, &mut end.at_ns)?;
            optional_number(code, &mut end.processor_ns)?;
            flag(code, &mut end.has_exited)
        }
        Record::Mapped(mapped) => {
            time(code, &mut mapped.at_ns)?;
            small_number(code, &mut mapped.thread)?;
            small_number(code, &mut mapped.file)?;
            range(code, mapped.file, &mut mapped.offset, &mut mapped.bytes)
        }
        Record::Unseen(unseen) => {
            time(code, &mut unseen.at_ns)?;
            small_number(code, &mut unseen.thread)?;
            one_of(code, &mut unseen.way, &METHODS)?;
            code.number(&mut unseen.count)?;
            code.number(&mut unseen.waited_ns)
        }
        Record::TimeSpent(spent) => {
            time(code, &mut spent.at_ns)?;
            one_of(code, &mut spent.activity, &Activity::ALL)?;
            code.number(&mut spent.wall_ns)
        }
        Record::OthersRequests(others) => {
            time(code, &mut others.at_ns)?;
            code.number(&mut others.device)?;
            one_of(code, &mut others.work, &WORKS)?;
            small_number(code, &mut others.task)?;
            code.text(&mut others.name)?;
            code.number(&mut others.count)?;
            code.number(&mut others.bytes)
        }
    }
}

/// Writes or reads the result of a read that requested `requested_bytes` bytes: twice the missing
/// bytes, or an odd number with the error.
fn outcome(
    code: &mut impl FieldCodec,
    requested_bytes: u64,
    value: &mut ReadOutcome,
) -> Result<(), RecordProblem> {
    const WRONG: RecordProblem =
        RecordProblem::Wrong("a read that was given more than it asked for");
    let mut number = match *value {
        ReadOutcome::Bytes(read_bytes) => {
            requested_bytes.checked_sub(read_bytes).ok_or(WRONG)? << 1
        }
        ReadOutcome::Error(error) => u64::from(error) << 1 | 1,
    };
    code.number(&mut number)?;
    *value = match number & 1 {
        0 => ReadOutcome::Bytes(requested_bytes.checked_sub(number >> 1).ok_or(WRONG)?),
        _ => {
            let error = u32::try_from(number >> 1);
            ReadOutcome::Error(error.map_err(|_| RecordProblem::Wrong("no error number"))?)
        }
    };
    Ok(())
}
