//! Records of the reads by io_uring, the page faults and the requests of other programs that were
//! sampled. The functions fail only if the recording cannot be written.

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use readpath_core::unit::PAGE_BYTES;
use readpath_trace::recording::{
    OthersSampled, ReadMethod, ReadOutcome, ReadRecord, Record, RecordingWriter, Unseen,
};

use super::super::advise::CalledRead;
use super::super::names::OpenFile;
use super::super::now_ns;
use super::super::state_samples::{SampledFault, SampledTouch, UringRead};
use super::Preload;
use super::opens::open_record;

impl Preload {
    /// Writes the records of the samples since the last call: reads by io_uring, page faults, and
    /// requests of other programs. The advisor gets the sampled touches.
    pub(super) fn record_sampled_reads<W: Write>(
        &mut self,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        // Without samples there is nothing to write.
        let Some(states) = &self.states else { return Ok(()) };
        let (reads, faults, touches) =
            (states.take_uring_reads(), states.take_faults(), states.take_touches());
        let others_requests = states.take_others_requests();
        reads.into_iter().try_for_each(|read| self.record_uring(read, writer))?;
        faults.into_iter().try_for_each(|fault| self.record_fault(fault, writer))?;
        touches.into_iter().try_for_each(|touch| self.advise_touch(touch, writer))?;
        others_requests.into_iter().try_for_each(|sampled| {
            let begin_ns = sampled.begin_ns.saturating_sub(self.start_ns);
            let end_ns = sampled.end_ns.saturating_sub(self.start_ns).max(begin_ns);
            writer.put(Record::OthersSampled(OthersSampled { end_ns, begin_ns, ..sampled }))
        })
    }

    /// Writes a read. A read of an unknown file or range has no file here, and is counted with its
    /// wait. The wait of a written read is 0, as unknown: its duration stands for it.
    fn record_uring<W: Write>(
        &mut self,
        read: UringRead,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        // The recorder does not know which thread sent the request: the first one stands for all.
        // Its number is the number of its process, in both halves of the task.
        let process = u64::from(read.process);
        let thread = self.thread(process << 32 | process, writer)?;
        let begin_ns = read.begin_ns.saturating_sub(self.start_ns);
        let end_ns = read.end_ns.saturating_sub(self.start_ns).max(begin_ns);
        self.reads += 1;
        self.asynchronous_reads += 1;
        let Some(OpenFile { inode, named, flags, .. }) = read.file else {
            let waited_ns = end_ns - begin_ns;
            let way = ReadMethod::Uring;
            let unseen = Unseen { at_ns: end_ns, thread, way, count: 1, waited_ns };
            return writer.put(Record::Unseen(unseen));
        };
        // An unknown length is passed as the largest number.
        let name_and_size = (named.path, named.bytes.unwrap_or(u64::MAX));
        let file = self.file_number((inode.device, inode.number), Some(name_and_size), writer)?;
        // New flags at the descriptor are written: they decide if its reads are direct.
        let open = open_record(begin_ns, thread, (file, read.descriptor), flags);
        if self.written_opens.add(&open) {
            writer.put(Record::Open(open))?;
        }
        let outcome = match read.result {
            Some(result) if result < 0 => ReadOutcome::Error(result.unsigned_abs()),
            Some(bytes) => ReadOutcome::Bytes(u64::from(bytes.unsigned_abs())),
            // A read whose result was overwritten counts as complete.
            None => ReadOutcome::Bytes(read.asked_bytes),
        };
        writer.put(Record::Read(ReadRecord {
            end_ns,
            begin_ns,
            waited_ns: 0,
            thread,
            way: ReadMethod::Uring,
            descriptor: Some(read.descriptor),
            file,
            offset: read.offset,
            asked_bytes: read.asked_bytes,
            outcome,
        }))
    }

    /// Writes a page fault as a read of the pages that it brought in. A file that the program also
    /// reads by calls is left out: these calls may have brought its pages in.
    fn record_fault<W: Write>(
        &mut self,
        fault: SampledFault,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let device_and_inode = (fault.inode.device, fault.inode.number);
        if self.called_files.contains(&device_and_inode) {
            return Ok(());
        }
        // The sample does not name the thread: the first one of the process stands for all.
        let process = u64::from(fault.process);
        let thread = self.thread(process << 32 | process, writer)?;
        // An unknown length is passed as the largest number.
        let name_and_size = (fault.named.path, fault.named.bytes.unwrap_or(u64::MAX));
        let file = self.file_number(device_and_inode, Some(name_and_size), writer)?;
        let begin_ns = fault.begin_ns.saturating_sub(self.start_ns);
        let asked_bytes = fault.range.count() * PAGE_BYTES;
        writer.put(Record::Read(ReadRecord {
            end_ns: fault.end_ns.saturating_sub(self.start_ns).max(begin_ns),
            begin_ns,
            waited_ns: 0,
            thread,
            way: ReadMethod::Fault,
            descriptor: None,
            file,
            offset: fault.range.first * PAGE_BYTES,
            asked_bytes,
            outcome: ReadOutcome::Bytes(asked_bytes),
        }))
    }

    /// Writes the number of reads by POSIX AIO, which threads of the C library made. `at_ns`: end
    /// of the recording.
    pub(super) fn record_helper_reads<W: Write>(
        &mut self,
        at_ns: u64,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let count = self.ring.head().helper_reads.load(Ordering::Relaxed);
        if count == 0 {
            return Ok(());
        }
        // The first thread of the started program stands for the threads of the C library.
        let process = u64::from(self.process);
        let thread = self.thread(process << 32 | process, writer)?;
        let way = ReadMethod::Aio;
        writer.put(Record::Unseen(Unseen { at_ns, thread, way, count, waited_ns: 0 }))
    }

    /// Lets the advisor see a touch of a mapping, like a read of its pages that has just ended. A
    /// sample does not name the thread, so the process takes its place.
    fn advise_touch<W: Write>(
        &mut self,
        touch: SampledTouch,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let SampledTouch { process, inode, named, range, waited_ns } = touch;
        // An unknown length is passed as the largest number.
        let name_and_size = (named.path, named.bytes.unwrap_or(u64::MAX));
        let file = self.file_number((inode.device, inode.number), Some(name_and_size), writer)?;
        let Some(advisor) = &mut self.advisor else { return Ok(()) };
        let end_ns = now_ns();
        let asked_bytes = range.count() * PAGE_BYTES;
        advisor.on_record(&Record::Read(ReadRecord {
            end_ns,
            begin_ns: end_ns.saturating_sub(waited_ns),
            waited_ns,
            way: ReadMethod::Fault,
            file,
            offset: range.first * PAGE_BYTES,
            asked_bytes,
            outcome: ReadOutcome::Bytes(asked_bytes),
            ..ReadRecord::default()
        }));
        let call = CalledRead { task: process, inode, range, has_waited: waited_ns > 0 };
        advisor.on_call(call, &mut self.system, end_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::{RecordingEnd, RecordingMethod, RecordingReader};

    use super::super::super::event::Inode;
    use super::super::super::first_record;
    use super::super::super::names::NamedFile;
    use super::*;

    const DIRECT: u64 = libc::O_DIRECT as u64;

    /// Read by io_uring of the file (8, 1) at descriptor 3.
    fn sampled(begin_ns: u64, flags: u64) -> UringRead {
        let inode = Inode { device: 8, number: 1 };
        let named = NamedFile { path: "/db".to_owned(), bytes: Some(1 << 20) };
        let file = Some(OpenFile { inode, named, position: 0, flags });
        UringRead { file, descriptor: 3, begin_ns, end_ns: begin_ns, ..UringRead::default() }
    }

    /// A file is read by `pread`, buffered, and by io_uring, directly, at one descriptor. The first
    /// `pread` is delayed after the first read by io_uring. The library reports its open once.
    #[test]
    fn each_read_follows_an_open_with_its_flags() {
        let mut preload = Preload::start(&[]).unwrap();
        let mut bytes = Vec::new();
        let mut writer = RecordingWriter::new(&mut bytes).unwrap();
        writer.put(first_record(RecordingMethod::Preload, 0, "db")).unwrap();
        let file = preload.file_number((8, 1), None, &mut writer).unwrap();
        let thread = preload.thread(7 << 32 | 7, &mut writer).unwrap();
        let called = Record::Read(ReadRecord {
            thread,
            way: ReadMethod::Pread,
            descriptor: Some(3),
            file,
            ..ReadRecord::default()
        });
        let buffered = open_record(0, thread, (file, 3), 0);
        preload.pending.on_open(&buffered);
        preload.pending.add(Record::Open(buffered), 7, 0);
        preload.pending.add(called.clone(), 7, 0);
        preload.record_uring(sampled(0, DIRECT), &mut writer).unwrap();
        preload.record_pending(true, &mut writer).unwrap();
        preload.record_uring(sampled(0, DIRECT), &mut writer).unwrap();
        preload.pending.add(called, 7, 0);
        preload.record_pending(true, &mut writer).unwrap();
        let end = RecordingEnd { at_ns: 0, processor_ns: None, has_exited: true };
        writer.put(Record::End(end)).unwrap();
        writer.finish().unwrap();
        let mut is_direct = None;
        let mut reads = Vec::new();
        for record in RecordingReader::new(bytes.as_slice()).unwrap() {
            match record.unwrap() {
                Record::Open(open) => is_direct = Some(open.is_direct),
                Record::Read(read) => reads.push((read.way, is_direct)),
                _ => {}
            }
        }
        let expected = [
            (ReadMethod::Uring, Some(true)),
            (ReadMethod::Pread, Some(false)),
            (ReadMethod::Uring, Some(true)),
            (ReadMethod::Pread, Some(false)),
        ];
        assert_eq!(reads, expected);
    }
}
