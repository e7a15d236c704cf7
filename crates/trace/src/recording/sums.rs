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
            Record::Start(it) => {
                check_at_most(OFFSET_MAX, it.wall_ns, "a start after the year 2262")?;
                check_at_most(
                    OFFSET_MAX,
                    it.memory_bytes,
                    "a machine with more than 2⁶³ bytes of memory",
                )?;
                check_at_most(OFFSET_MAX, it.page_bytes, "a page of more than 2⁶³ bytes")?;
            }
            Record::Device(it) => {
                check_at_most(
                    OFFSET_MAX,
                    it.readahead_bytes,
                    "a readahead of more than 2⁶³ bytes",
                )?;
            }
            Record::File(it) => {
                check_at_most(OFFSET_MAX, it.bytes.unwrap_or(0), "a file of more than 2⁶³ bytes")?;
            }
            Record::Open(it) => time_ns = it.at_ns,
            Record::Map(it) => time_ns = it.at_ns,
            Record::Advice(it) => time_ns = it.at_ns,
            Record::Evict(it) => time_ns = it.at_ns,
            Record::Mapped(it) => {
                time_ns = it.at_ns;
                check_at_most(CALL_BYTES_MAX, it.bytes, "a call that mapped more than 4 GiB")?;
            }
            Record::Unseen(it) => {
                time_ns = it.at_ns;
                add_checked(&mut self.lost, it.count, "more than 2⁶⁰ reads that were not seen")?;
                add_checked(
                    &mut self.waited_ns,
                    it.waited_ns,
                    "waits of more than 36 years together",
                )?;
            }
            Record::TimeSpent(it) => {
                time_ns = it.at_ns;
                add_checked(
                    &mut self.spent_ns,
                    it.wall_ns,
                    "activities of more than 36 years together",
                )?;
            }
            Record::Read(it) => {
                time_ns = it.end_ns;
                check_at_most(
                    CALL_BYTES_MAX,
                    it.bytes_read(),
                    "a read that was given more than 4 GiB",
                )?;
                add_checked(
                    &mut self.duration_ns,
                    it.duration_ns(),
                    "reads that took more than 36 years together",
                )?;
                add_checked(
                    &mut self.waited_ns,
                    it.waited_ns,
                    "waits of more than 36 years together",
                )?;
            }
            Record::Insert(it) => {
                time_ns = it.at_ns;
                check_at_most(CALL_BYTES_MAX, it.bytes, "a call that had more than 4 GiB come in")?;
            }
            Record::Request(it) => {
                time_ns = it.end_ns;
                check_at_most(OFFSET_MAX, it.place, "a request beyond 2⁶³")?;
                add_checked(
                    &mut self.bytes,
                    it.bytes,
                    "requests for more than 2⁶⁰ bytes together",
                )?;
                let duration_ns = it.end_ns - it.begin_ns;
                add_checked(
                    &mut self.duration_ns,
                    duration_ns,
                    "requests that took more than 36 years together",
                )?;
            }
            // These requests are counted by their own records too.
            Record::OthersRequests(it) => {
                time_ns = it.at_ns;
                check_at_most(SUM_MAX, it.bytes, "requests for more than 2⁶⁰ bytes together")?;
                check_at_most(SUM_MAX, it.count, "more than 2⁶⁰ requests")?;
            }
            Record::Lost(it) => {
                time_ns = it.at_ns;
                add_checked(&mut self.lost, it.count, "more than 2⁶⁰ lost events")?;
            }
            Record::End(it) => {
                time_ns = it.at_ns;
                check_at_most(SUM_MAX, it.processor_ns.unwrap_or(0), TIME_OUT_OF_RANGE)?;
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
