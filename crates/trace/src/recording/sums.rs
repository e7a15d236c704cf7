//! Sums over all records of a recording, with limits so that they fit 64 bits.

use super::{CALL_BYTES_MAX, OFFSET_MAX, Record, SUM_MAX};

/// The sums so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordingSums {
    took_ns: u64,
    waited_ns: u64,
    bytes: u64,
    lost: u64,
    spent_ns: u64,
}

impl RecordingSums {
    /// Adds a record.
    ///
    /// # Errors
    /// Returns the description of a value that is impossible or too large.
    pub fn add(&mut self, record: &Record) -> Result<(), &'static str> {
        /// Error for a time beyond [`RECALL_BATCH_MAX`].
        const TIME_OUT_OF_RANGE: &str = "a time of more than 36 years";
        let mut until_ns = 0;
        match record {
            Record::Start(it) => {
                at_most(OFFSET_MAX, it.wall_ns, "a start after the year 2262")?;
                at_most(
                    OFFSET_MAX,
                    it.memory_bytes,
                    "a machine with more than 2⁶³ bytes of memory",
                )?;
                at_most(OFFSET_MAX, it.page_bytes, "a page of more than 2⁶³ bytes")?;
            }
            Record::Device(it) => {
                at_most(OFFSET_MAX, it.readahead_bytes, "a readahead of more than 2⁶³ bytes")?;
            }
            Record::File(it) => {
                at_most(OFFSET_MAX, it.bytes.unwrap_or(0), "a file of more than 2⁶³ bytes")?;
            }
            Record::Open(it) => until_ns = it.at_ns,
            Record::Map(it) => until_ns = it.at_ns,
            Record::Advice(it) => until_ns = it.at_ns,
            Record::Evict(it) => until_ns = it.at_ns,
            Record::Mapped(it) => {
                until_ns = it.at_ns;
                at_most(CALL_BYTES_MAX, it.bytes, "a call that mapped more than 4 GiB")?;
            }
            Record::Unseen(it) => {
                until_ns = it.at_ns;
                add(&mut self.lost, it.count, "more than 2⁶⁰ reads that were not seen")?;
                add(&mut self.waited_ns, it.waited_ns, "waits of more than 36 years together")?;
            }
            Record::TimeSpent(it) => {
                until_ns = it.at_ns;
                add(&mut self.spent_ns, it.wall_ns, "activities of more than 36 years together")?;
            }
            Record::Read(it) => {
                until_ns = it.end_ns;
                at_most(CALL_BYTES_MAX, it.bytes_read(), "a read that was given more than 4 GiB")?;
                add(
                    &mut self.took_ns,
                    it.duration_ns(),
                    "reads that took more than 36 years together",
                )?;
                add(&mut self.waited_ns, it.waited_ns, "waits of more than 36 years together")?;
            }
            Record::Insert(it) => {
                until_ns = it.at_ns;
                at_most(CALL_BYTES_MAX, it.bytes, "a call that had more than 4 GiB come in")?;
            }
            Record::Request(it) => {
                until_ns = it.end_ns;
                at_most(OFFSET_MAX, it.place, "a request beyond 2⁶³")?;
                add(&mut self.bytes, it.bytes, "requests for more than 2⁶⁰ bytes together")?;
                let took_ns = it.end_ns - it.begin_ns;
                add(&mut self.took_ns, took_ns, "requests that took more than 36 years together")?;
            }
            // These requests are counted by their own records too.
            Record::OthersRequests(it) => {
                until_ns = it.at_ns;
                at_most(SUM_MAX, it.bytes, "requests for more than 2⁶⁰ bytes together")?;
                at_most(SUM_MAX, it.count, "more than 2⁶⁰ requests")?;
            }
            Record::Lost(it) => {
                until_ns = it.at_ns;
                add(&mut self.lost, it.count, "more than 2⁶⁰ lost events")?;
            }
            Record::End(it) => {
                until_ns = it.at_ns;
                at_most(SUM_MAX, it.processor_ns.unwrap_or(0), TIME_OUT_OF_RANGE)?;
            }
            Record::Thread(_) => {}
        }
        at_most(SUM_MAX, until_ns, TIME_OUT_OF_RANGE)
    }
}

/// Returns the error `what` if `value` exceeds `most`.
fn at_most(most: u64, value: u64, what: &'static str) -> Result<(), &'static str> {
    if value <= most { Ok(()) } else { Err(what) }
}

/// Adds to a sum and checks it.
fn add(sum: &mut u64, value: u64, what: &'static str) -> Result<(), &'static str> {
    *sum = sum.saturating_add(value);
    at_most(SUM_MAX, *sum, what)
}
