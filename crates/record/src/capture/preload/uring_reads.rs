//! Records of the reads by io_uring that were sampled.

use std::io::{self, Write};

use readpath_trace::recording::{
    ReadMethod, ReadOutcome, ReadRecord, Record, RecordingWriter, Unseen,
};

use super::super::state_samples::{StateSampler, UringRead};
use super::Preload;

impl Preload {
    /// Writes the sampled reads by io_uring since the last call.
    pub(super) fn record_uring_reads<W: Write>(
        &mut self,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let reads = self.states.as_ref().map(StateSampler::take_uring_reads);
        reads.unwrap_or_default().into_iter().try_for_each(|read| self.record_uring(read, writer))
    }

    /// Writes a read. A read of an unknown file or range is counted with its wait.
    fn record_uring<W: Write>(
        &mut self,
        read: UringRead,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        // The recorder does not know which thread sent the request: the first one stands for all.
        let process = u64::from(read.process);
        let thread = self.thread(process << 32 | process, writer)?;
        let begin_ns = read.begin_ns.saturating_sub(self.start_ns);
        let end_ns = read.end_ns.saturating_sub(self.start_ns).max(begin_ns);
        self.reads += 1;
        self.asynchronous_reads += 1;
        let Some((inode, named)) = read.file else {
            let waited_ns = end_ns - begin_ns;
            let way = ReadMethod::Uring;
            let unseen = Unseen { at_ns: end_ns, thread, way, count: 1, waited_ns };
            return writer.put(Record::Unseen(unseen));
        };
        let name_and_size = (named.path, named.bytes.unwrap_or(u64::MAX));
        let file = self.file_number((inode.device, inode.number), Some(name_and_size), writer)?;
        let outcome = match u64::try_from(read.result) {
            Ok(bytes) => ReadOutcome::Bytes(bytes),
            Err(_) => ReadOutcome::Error(read.result.unsigned_abs()),
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
}
