//! Records of open files, in the order of the reads.
//!
//! The library does not see an open itself. It reports a file at its first read, and again at the
//! first read after the flags at its descriptor have changed. Reads and files are in different
//! rings, so that an open is recorded before the first read that does not end earlier. A *look*
//! takes the reports that are in the rings at one time.

use std::io::{self, Write};

use readpath_trace::recording::{OpenRecord, Record, RecordingWriter};

use super::super::now_ns;
use super::Preload;

/// A reported open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TakenOpen {
    /// End of the first read, by the monotonic clock.
    at_ns: u64,
    /// Number of the file in the recording.
    file: u32,
    /// Process in the upper half, thread in the lower.
    task: u64,
    /// Descriptor, and flags of the open file.
    descriptor: u64,
    flags: u64,
    /// True if it was taken by an earlier look at the rings.
    is_held: bool,
}

impl TakenOpen {
    /// Creates an open of `file`. `opened`: flags in the upper half, descriptor in the lower. A
    /// time in the future is a false report, and becomes the present time.
    pub fn new(at_ns: u64, file: u32, task: u64, opened: u64) -> TakenOpen {
        let (descriptor, flags) = (opened & u64::from(u32::MAX), opened >> 32);
        TakenOpen { at_ns: at_ns.min(now_ns()), file, task, descriptor, flags, is_held: false }
    }
}

/// Opens that were reported and not yet recorded, in the order of their times.
#[derive(Debug, Default)]
pub(super) struct TakenOpens(Vec<TakenOpen>);

impl TakenOpens {
    /// Adds an open.
    pub fn add(&mut self, open: TakenOpen) {
        let place = self.0.partition_point(|other| other.at_ns <= open.at_ns);
        self.0.insert(place, open);
    }

    /// Takes the opens up to a time of the monotonic clock.
    fn take_until(&mut self, at_ns: u64) -> Vec<TakenOpen> {
        let count = self.0.partition_point(|open| open.at_ns <= at_ns);
        self.0.drain(..count).collect()
    }

    /// Takes the opens of earlier looks, and holds the others until the next look: their reads may
    /// not have been in the ring yet.
    fn take_held(&mut self) -> Vec<TakenOpen> {
        let opens = std::mem::take(&mut self.0);
        let (held, mut rest): (Vec<TakenOpen>, Vec<TakenOpen>) =
            opens.into_iter().partition(|open| open.is_held);
        rest.iter_mut().for_each(|open| open.is_held = true);
        self.0 = rest;
        held
    }
}

/// Returns the record of an open file with these flags of `open(2)`.
pub(super) fn open_record(
    at_ns: u64,
    thread: u32,
    (file, descriptor): (u32, u64),
    flags: u64,
) -> OpenRecord {
    let flags = flags as i32;
    let access = flags & libc::O_ACCMODE;
    OpenRecord {
        at_ns,
        thread,
        file,
        descriptor,
        is_direct: flags & libc::O_DIRECT != 0,
        is_readable: access != libc::O_WRONLY,
        is_writable: access != libc::O_RDONLY,
    }
}

impl Preload {
    /// Records the opens up to a time of the monotonic clock. Fails if the recording cannot be
    /// written.
    pub(super) fn put_opens_until<W: Write>(
        &mut self,
        at_ns: u64,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let opens = self.opens.take_until(at_ns);
        opens.into_iter().try_for_each(|open| self.put_open(open, writer))
    }

    /// Records the opens without a later read since the last look at the rings. Fails if the
    /// recording cannot be written.
    pub(super) fn put_held_opens<W: Write>(
        &mut self,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let opens = self.opens.take_held();
        opens.into_iter().try_for_each(|open| self.put_open(open, writer))
    }

    /// Records an open. Fails if the recording cannot be written.
    fn put_open<W: Write>(
        &mut self,
        open: TakenOpen,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let thread = self.thread(open.task, writer)?;
        let at_ns = open.at_ns.saturating_sub(self.start_ns);
        let record = open_record(at_ns, thread, (open.file, open.descriptor), open.flags);
        self.pending.on_open(&record);
        self.put_called(Record::Open(record), open.task, writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: opens at 10, 20 and 30. A read ends at 20, so two are before it. The third waits
    /// for one more look.
    #[test]
    fn open_precedes_the_first_read_that_ends_no_earlier() {
        let open = |at_ns| TakenOpen::new(at_ns, 0, 0, 3);
        let mut opens = TakenOpens::default();
        [30, 10, 20].map(open).into_iter().for_each(|open| opens.add(open));
        assert_eq!(opens.take_until(20), [open(10), open(20)]);
        assert_eq!(opens.take_held(), []);
        let held = TakenOpen { is_held: true, ..open(30) };
        assert_eq!(opens.take_held(), [held]);
    }
}
