//! Sums over all records of a recording, with limits so that they fit 64 bits.

use super::{CALL_BYTES_MAX, OFFSET_MAX, Record, SUM_MAX};

/// The sums so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordingSums {
    /// Durations of reads and requests.
    duration_ns: u64,
    waited_ns: u64,
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
        /// Error for a time beyond [`SUM_MAX`].
        const TIME_OUT_OF_RANGE: &str = "a time of more than 36 years";
        let mut time_ns = 0;
        match record {
            Record::Start(start) => {
                check_at_most(OFFSET_MAX, start.wall_ns, "a start after the year 2262")?;
                check_at_most(
                    OFFSET_MAX,
                    start.memory_bytes,
                    "a machine with more than 2⁶³ bytes of memory",
                )?;
                check_at_most(OFFSET_MAX, start.page_bytes, "a page of more than 2⁶³ bytes")?;
            }
            Record::Device(device) => {
                check_at_most(
                    OFFSET_MAX,
                    device.readahead_bytes,
                    "a readahead of more than 2⁶³ bytes",
                )?;
            }
            Record::File(file) => {
                check_at_most(
                    OFFSET_MAX,
                    file.bytes.unwrap_or(0),
                    "a file of more than 2⁶³ bytes",
                )?;
            }
            Record::Open(open) => time_ns = open.at_ns,
            Record::Map(map) => time_ns = map.at_ns,
            Record::Advice(advice) => time_ns = advice.at_ns,
            Record::Evict(evict) => time_ns = evict.at_ns,
            Record::Mapped(mapped) => {
                time_ns = mapped.at_ns;
                check_at_most(CALL_BYTES_MAX, mapped.bytes, "a call that mapped more than 4 GiB")?;
            }
            Record::Unseen(unseen) => {
                time_ns = unseen.at_ns;
                add_checked(
                    &mut self.lost,
                    unseen.count,
                    "more than 2⁶⁰ reads that were not seen",
                )?;
                add_checked(
                    &mut self.waited_ns,
                    unseen.waited_ns,
                    "waits of more than 36 years together",
                )?;
            }
            Record::TimeSpent(spent) => {
                time_ns = spent.at_ns;
                add_checked(
                    &mut self.spent_ns,
                    spent.wall_ns,
                    "activities of more than 36 years together",
                )?;
            }
            Record::Read(read) => {
                time_ns = read.end_ns;
                check_at_most(
                    CALL_BYTES_MAX,
                    read.bytes_read(),
                    "a read that was given more than 4 GiB",
                )?;
                add_checked(
                    &mut self.duration_ns,
                    read.duration_ns(),
                    "reads that took more than 36 years together",
                )?;
                add_checked(
                    &mut self.waited_ns,
                    read.waited_ns,
                    "waits of more than 36 years together",
                )?;
            }
            Record::Insert(insert) => {
                time_ns = insert.at_ns;
                check_at_most(
                    CALL_BYTES_MAX,
                    insert.bytes,
                    "a call that had more than 4 GiB come in",
                )?;
            }
            Record::Request(request) => {
                time_ns = request.end_ns;
                check_at_most(OFFSET_MAX, request.place, "a request beyond 2⁶³")?;
                add_checked(
                    &mut self.bytes,
                    request.bytes,
                    "requests for more than 2⁶⁰ bytes together",
                )?;
                let duration_ns = request.end_ns - request.begin_ns;
                add_checked(
                    &mut self.duration_ns,
                    duration_ns,
                    "requests that took more than 36 years together",
                )?;
            }
            // These requests are counted by their own records too.
            Record::OthersRequests(others) => {
                time_ns = others.at_ns;
                check_at_most(SUM_MAX, others.bytes, "requests for more than 2⁶⁰ bytes together")?;
                check_at_most(SUM_MAX, others.count, "more than 2⁶⁰ requests")?;
            }
            Record::OthersSampled(others) => {
                time_ns = others.end_ns;
                add_checked(
                    &mut self.bytes,
                    others.bytes,
                    "requests for more than 2⁶⁰ bytes together",
                )?;
            }
            Record::Lost(lost) => {
                time_ns = lost.at_ns;
                add_checked(&mut self.lost, lost.count, "more than 2⁶⁰ lost events")?;
            }
            Record::End(end) => {
                time_ns = end.at_ns;
                check_at_most(SUM_MAX, end.processor_ns.unwrap_or(0), TIME_OUT_OF_RANGE)?;
            }
            Record::Thread(_) => {}
        }
        check_at_most(SUM_MAX, time_ns, TIME_OUT_OF_RANGE)
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
