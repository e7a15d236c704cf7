//! Sums over all records of a recording, with limits so that they fit 64 bits.

use super::{CALL_BYTES_MAX, OFFSET_MAX, Record, SUM_MAX};

/// The sums so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordingSums {
    /// Durations of reads and requests.
    duration_ns: u64,
    /// Times that threads waited for reads.
    waited_ns: u64,
    /// Lengths of device requests.
    bytes: u64,
    /// Lost events, and reads that were not seen.
    lost: u64,
    /// Times by activity.
    spent_ns: u64,
}

impl RecordingSums {
    /// Checks the values of a record and adds it to the sums.
    ///
    /// # Errors
    /// Returns the description of a value that is impossible or too large.
    pub fn add(&mut self, record: &Record) -> Result<(), &'static str> {
        check_values(record)?;
        self.add_values(record)?;
        check_at_most(SUM_MAX, time_ns(record), TIME_OUT_OF_RANGE)
    }

    /// Adds the times and counts of a record to the sums. The error names the sum that exceeds
    /// [`SUM_MAX`].
    fn add_values(&mut self, record: &Record) -> Result<(), &'static str> {
        /// Error for waits whose sum is beyond [`SUM_MAX`].
        const WAITS_OUT_OF_RANGE: &str = "waits of more than 36 years together";
        match record {
            Record::Unseen(unseen) => {
                let error = "more than 2⁶⁰ reads that were not seen";
                add_checked(&mut self.lost, unseen.count, error)?;
                add_checked(&mut self.waited_ns, unseen.waited_ns, WAITS_OUT_OF_RANGE)
            }
            Record::TimeSpent(spent) => {
                let error = "activities of more than 36 years together";
                add_checked(&mut self.spent_ns, spent.wall_ns, error)
            }
            Record::Read(read) => {
                let error = "reads that took more than 36 years together";
                add_checked(&mut self.duration_ns, read.duration_ns(), error)?;
                add_checked(&mut self.waited_ns, read.waited_ns, WAITS_OUT_OF_RANGE)
            }
            Record::Request(request) => {
                let error = "requests for more than 2⁶⁰ bytes together";
                add_checked(&mut self.bytes, request.bytes, error)?;
                let duration_ns = request.end_ns - request.begin_ns;
                let error = "requests that took more than 36 years together";
                add_checked(&mut self.duration_ns, duration_ns, error)
            }
            Record::OthersSampled(others) => {
                let error = "requests for more than 2⁶⁰ bytes together";
                add_checked(&mut self.bytes, others.bytes, error)
            }
            Record::Lost(lost) => {
                add_checked(&mut self.lost, lost.count, "more than 2⁶⁰ lost events")
            }
            // Other records have no value that is summed.
            _ => Ok(()),
        }
    }
}

/// Error for a time beyond [`SUM_MAX`]: 2⁶⁰ ns are 36.5 years.
const TIME_OUT_OF_RANGE: &str = "a time of more than 36 years";

/// Time of a record, since the start of the recording; 0 for a record without a time.
fn time_ns(record: &Record) -> u64 {
    match record {
        Record::Open(open) => open.at_ns,
        Record::Map(map) => map.at_ns,
        Record::Advice(advice) => advice.at_ns,
        Record::Evict(evict) => evict.at_ns,
        Record::Executable(mapped) => mapped.at_ns,
        Record::Mapped(mapped) => mapped.at_ns,
        Record::Unseen(unseen) => unseen.at_ns,
        Record::TimeSpent(spent) => spent.at_ns,
        Record::Read(read) => read.end_ns,
        Record::Insert(insert) => insert.at_ns,
        Record::Request(request) => request.end_ns,
        Record::OthersRequests(others) => others.at_ns,
        Record::OthersSampled(others) => others.end_ns,
        Record::Lost(lost) => lost.at_ns,
        Record::End(end) => end.at_ns,
        Record::Start(_) | Record::Device(_) | Record::File(_) | Record::Thread(_) => 0,
    }
}

/// Checks the values of a record that are not added to a sum. The error is the text for the value
/// that is too large. Ranges of files are not checked here: their encoding limits them.
fn check_values(record: &Record) -> Result<(), &'static str> {
    match record {
        Record::Start(start) => {
            // 2⁶³ ns after 1970 are in the year 2262.
            check_at_most(OFFSET_MAX, start.wall_ns, "a start after the year 2262")?;
            let error = "a machine with more than 2⁶³ bytes of memory";
            check_at_most(OFFSET_MAX, start.memory_bytes, error)?;
            check_at_most(OFFSET_MAX, start.page_bytes, "a page of more than 2⁶³ bytes")
        }
        Record::Device(device) => {
            let error = "a readahead of more than 2⁶³ bytes";
            check_at_most(OFFSET_MAX, device.readahead_bytes, error)
        }
        Record::File(file) => {
            let bytes = file.bytes.unwrap_or(0);
            check_at_most(OFFSET_MAX, bytes, "a file of more than 2⁶³ bytes")
        }
        Record::Mapped(mapped) => {
            check_at_most(CALL_BYTES_MAX, mapped.bytes, "a call that mapped more than 4 GiB")
        }
        Record::Read(read) => {
            let error = "a read that was given more than 4 GiB";
            check_at_most(CALL_BYTES_MAX, read.bytes_read(), error)
        }
        Record::Insert(insert) => {
            let error = "a call that had more than 4 GiB come in";
            check_at_most(CALL_BYTES_MAX, insert.bytes, error)
        }
        Record::Request(request) => {
            check_at_most(OFFSET_MAX, request.place, "a request beyond 2⁶³")
        }
        // In no sum: these requests have records of their own, which are added.
        Record::OthersRequests(others) => {
            check_at_most(SUM_MAX, others.bytes, "requests for more than 2⁶⁰ bytes together")?;
            check_at_most(SUM_MAX, others.count, "more than 2⁶⁰ requests")
        }
        Record::End(end) => {
            check_at_most(SUM_MAX, end.processor_ns.unwrap_or(0), TIME_OUT_OF_RANGE)
        }
        _ => Ok(()),
    }
}

/// Returns `error` if `value` exceeds `maximum`.
fn check_at_most(maximum: u64, value: u64, error: &'static str) -> Result<(), &'static str> {
    if value <= maximum { Ok(()) } else { Err(error) }
}

/// Adds a value to a sum. Returns `error` if the sum exceeds [`SUM_MAX`].
fn add_checked(sum: &mut u64, value: u64, error: &'static str) -> Result<(), &'static str> {
    *sum = sum.saturating_add(value);
    check_at_most(SUM_MAX, *sum, error)
}
