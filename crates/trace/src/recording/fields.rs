//! The fields of each record type in order, for both writing and reading. Each function stops at
//! the first field with an error: a value without an encoding, or bytes without a value.

use super::code::{
    FieldCodec, RecordProblem, code_choice, code_flag, code_optional_number, code_range,
    code_start_time, code_time, code_u32,
};
use super::{
    Activity, AdviceGiven, AdviceType, DeviceOperation, DeviceRecord, FileRecord, OpenRecord,
    OthersRequests, OthersSampled, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingMethod,
    RecordingStart, RequestRecord,
};

/// Values of `RecordingMethod` in encoding order.
const SOURCES: [RecordingMethod; 4] = [
    RecordingMethod::Tracepoints,
    RecordingMethod::Preload,
    RecordingMethod::Strace,
    RecordingMethod::Requests,
];

/// Values of `Activity` in encoding order.
const ACTIVITIES: [Activity; 15] = [
    Activity::Processor,
    Activity::ProcessorQueue,
    Activity::Read,
    Activity::Fault,
    Activity::SwapIn,
    Activity::Memory,
    Activity::Metadata,
    Activity::Write,
    Activity::AsyncIo,
    Activity::Others,
    Activity::Sleep,
    Activity::Lock,
    Activity::Children,
    Activity::Unknown,
    Activity::Sync,
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
        Record::Start(start) => code_start(start, code),
        Record::Device(device) => code_device(device, code),
        Record::File(file) => code_file(file, code),
        Record::Thread(thread) => {
            code_u32(code, &mut thread.thread)?;
            code_u32(code, &mut thread.task)?;
            code_u32(code, &mut thread.process)?;
            code.text(&mut thread.name)
        }
        Record::Open(open) => code_open(open, code),
        Record::Map(map) => {
            code_time(code, &mut map.at_ns)?;
            code_u32(code, &mut map.thread)?;
            code_u32(code, &mut map.file)?;
            code_range(code, map.file, &mut map.offset, &mut map.bytes)
        }
        Record::Advice(advice) => code_advice(advice, code),
        Record::Read(read) => code_read(read, code),
        Record::Insert(insert) => {
            code_time(code, &mut insert.at_ns)?;
            code_u32(code, &mut insert.thread)?;
            code_u32(code, &mut insert.file)?;
            code_range(code, insert.file, &mut insert.offset, &mut insert.bytes)
        }
        Record::Evict(evict) => {
            code_time(code, &mut evict.at_ns)?;
            code_u32(code, &mut evict.file)?;
            code_range(code, evict.file, &mut evict.offset, &mut evict.bytes)
        }
        Record::Request(request) => code_request(request, code),
        Record::Lost(lost) => {
            code_time(code, &mut lost.at_ns)?;
            code.number(&mut lost.count)
        }
        Record::End(end) => {
            code_time(code, &mut end.at_ns)?;
            code_optional_number(code, &mut end.processor_ns)?;
            code_flag(code, &mut end.has_exited)
        }
        Record::Mapped(mapped) => {
            code_time(code, &mut mapped.at_ns)?;
            code_u32(code, &mut mapped.thread)?;
            code_u32(code, &mut mapped.file)?;
            code_range(code, mapped.file, &mut mapped.offset, &mut mapped.bytes)
        }
        Record::Unseen(unseen) => {
            code_time(code, &mut unseen.at_ns)?;
            code_u32(code, &mut unseen.thread)?;
            code_choice(code, &mut unseen.way, &METHODS)?;
            code.number(&mut unseen.count)?;
            code.number(&mut unseen.waited_ns)
        }
        Record::TimeSpent(spent) => {
            code_time(code, &mut spent.at_ns)?;
            code_choice(code, &mut spent.activity, &ACTIVITIES)?;
            code.number(&mut spent.wall_ns)
        }
        Record::OthersRequests(others) => code_others_requests(others, code),
        Record::OthersSampled(others) => code_others_sampled(others, code),
        Record::Executable(mapped) => {
            code_time(code, &mut mapped.at_ns)?;
            code_u32(code, &mut mapped.file)
        }
    }
}

/// Encodes or decodes the fields of the start of a recording.
fn code_start(start: &mut RecordingStart, code: &mut impl FieldCodec) -> Result<(), RecordProblem> {
    code_choice(code, &mut start.source, &SOURCES)?;
    code.number(&mut start.wall_ns)?;
    code.number(&mut start.page_bytes)?;
    if !start.page_bytes.is_power_of_two() {
        return Err(RecordProblem::Wrong("a page whose length is no power of two"));
    }
    code.number(&mut start.memory_bytes)?;
    code.text(&mut start.program)?;
    code.text(&mut start.system)
}

/// Encodes or decodes the fields of a device.
fn code_device(device: &mut DeviceRecord, code: &mut impl FieldCodec) -> Result<(), RecordProblem> {
    code.number(&mut device.device)?;
    code.text(&mut device.name)?;
    code_flag(code, &mut device.is_rotational)?;
    code.number(&mut device.readahead_bytes)?;
    code.text(&mut device.file_system)
}

/// Encodes or decodes the fields of a file.
fn code_file(file: &mut FileRecord, code: &mut impl FieldCodec) -> Result<(), RecordProblem> {
    code_u32(code, &mut file.file)?;
    code.number(&mut file.device)?;
    code.number(&mut file.inode)?;
    code_optional_number(code, &mut file.bytes)?;
    code.text(&mut file.path)
}

/// Encodes or decodes the fields of an open.
fn code_open(open: &mut OpenRecord, code: &mut impl FieldCodec) -> Result<(), RecordProblem> {
    code_time(code, &mut open.at_ns)?;
    code_u32(code, &mut open.thread)?;
    code_u32(code, &mut open.file)?;
    code.number(&mut open.descriptor)?;
    code_flag(code, &mut open.is_direct)?;
    code_flag(code, &mut open.is_readable)?;
    code_flag(code, &mut open.is_writable)
}

/// Encodes or decodes the fields of advice.
fn code_advice(advice: &mut AdviceGiven, code: &mut impl FieldCodec) -> Result<(), RecordProblem> {
    code_time(code, &mut advice.at_ns)?;
    code_u32(code, &mut advice.thread)?;
    code_u32(code, &mut advice.file)?;
    code_range(code, advice.file, &mut advice.offset, &mut advice.bytes)?;
    code_choice(code, &mut advice.hint, &HINTS)?;
    code_flag(code, &mut advice.is_of_mapping)
}

/// Encodes or decodes the fields of a read.
fn code_read(read: &mut ReadRecord, code: &mut impl FieldCodec) -> Result<(), RecordProblem> {
    code_time(code, &mut read.end_ns)?;
    code_start_time(code, read.end_ns, &mut read.begin_ns)?;
    code.number(&mut read.waited_ns)?;
    code_u32(code, &mut read.thread)?;
    code_choice(code, &mut read.way, &METHODS)?;
    code_optional_number(code, &mut read.descriptor)?;
    code_u32(code, &mut read.file)?;
    code_range(code, read.file, &mut read.offset, &mut read.asked_bytes)?;
    code_outcome(code, read.asked_bytes, &mut read.outcome)
}

/// Encodes or decodes the fields of a request.
fn code_request(
    request: &mut RequestRecord,
    code: &mut impl FieldCodec,
) -> Result<(), RecordProblem> {
    code_time(code, &mut request.end_ns)?;
    code_start_time(code, request.end_ns, &mut request.begin_ns)?;
    code_optional_number(code, &mut request.thread)?;
    code.number(&mut request.device)?;
    code_choice(code, &mut request.work, &WORKS)?;
    code_flag(code, &mut request.is_ahead)?;
    code.number(&mut request.place)?;
    code.number(&mut request.bytes)
}

/// Encodes or decodes the fields of other programs' requests.
fn code_others_requests(
    others: &mut OthersRequests,
    code: &mut impl FieldCodec,
) -> Result<(), RecordProblem> {
    code_time(code, &mut others.at_ns)?;
    code.number(&mut others.device)?;
    code_choice(code, &mut others.work, &WORKS)?;
    code_u32(code, &mut others.task)?;
    code.text(&mut others.name)?;
    code.number(&mut others.count)?;
    code.number(&mut others.bytes)
}

/// Encodes or decodes the fields of sampled requests of others.
fn code_others_sampled(
    others: &mut OthersSampled,
    code: &mut impl FieldCodec,
) -> Result<(), RecordProblem> {
    code_time(code, &mut others.end_ns)?;
    code_start_time(code, others.end_ns, &mut others.begin_ns)?;
    code.number(&mut others.device)?;
    code_choice(code, &mut others.work, &WORKS)?;
    code.number(&mut others.bytes)
}

/// Writes or reads the result of a read that requested `requested_bytes` bytes: twice the missing
/// bytes, or an odd number with the error. A result of more bytes than requested is an error.
fn code_outcome(
    code: &mut impl FieldCodec,
    requested_bytes: u64,
    value: &mut ReadOutcome,
) -> Result<(), RecordProblem> {
    const WRONG: RecordProblem =
        RecordProblem::Wrong("a read that was given more than it asked for");
    const TOO_LARGE: RecordProblem =
        RecordProblem::Wrong("a read that lacks 2⁶³ bytes, more than a call may request");
    let mut number = match *value {
        ReadOutcome::Bytes(read_bytes) => {
            let missing_bytes = requested_bytes.checked_sub(read_bytes).ok_or(WRONG)?;
            missing_bytes.checked_mul(2).ok_or(TOO_LARGE)?
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
