//! Writer of recordings.

use std::io;

use super::code::{FieldCodec, FieldEncoder, RecordProblem};
use super::{MAGIC, Record, VERSION, fields};

/// Block size in bytes at which a block ends. Its last record may extend beyond it, by at most two
/// texts of 64 KiB and some numbers. A reader accepts blocks of up to 1 MiB. Chosen, not measured.
const BLOCK_BYTES: usize = 64 << 10;

/// Writes a recording, block by block. The last block is only in the file after
/// [`flush`](RecordingWriter::flush).
#[derive(Debug)]
pub struct RecordingWriter<W> {
    /// Destination of the bytes.
    sink: W,
    /// Records of the block that is not written yet.
    block: FieldEncoder,
}

impl<W: io::Write> RecordingWriter<W> {
    /// Writes the header to `sink`.
    ///
    /// # Errors
    /// Returns the errors of `sink`.
    pub fn new(mut sink: W) -> io::Result<RecordingWriter<W>> {
        sink.write_all(&MAGIC)?;
        sink.write_all(&VERSION.to_le_bytes())?;
        Ok(RecordingWriter { sink, block: FieldEncoder::default() })
    }

    /// Appends a record to the block, which is written once it has `BLOCK_BYTES` bytes.
    ///
    /// # Errors
    /// Returns the errors of `sink`, and [`io::ErrorKind::InvalidInput`] for an invalid record.
    /// The invalid record is omitted, the block of its predecessors is written, and the recording
    /// stays valid.
    pub fn put(&mut self, mut record: Record) -> io::Result<()> {
        let bytes_before = self.block.bytes.len();
        let mut tag = u64::from(record.tag());
        let result = self
            .block
            .number(&mut tag)
            .and_then(|()| fields::code_fields(&mut record, &mut self.block));
        // An encoder reports no other problem.
        if let Err(RecordProblem::Wrong(why)) = result {
            // The reference values include the fields already encoded, so a new block is needed.
            self.block.bytes.truncate(bytes_before);
            self.flush()?;
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a record with {why}"),
            ));
        }
        match self.block.bytes.len() >= BLOCK_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Ends the block and writes all data to the sink.
    ///
    /// # Errors
    /// Returns the errors of the sink.
    pub fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.block).bytes;
        if !bytes.is_empty() {
            self.sink.write_all(&(bytes.len() as u32).to_le_bytes())?;
            self.sink.write_all(&crc32fast::hash(&bytes).to_le_bytes())?;
            self.sink.write_all(&bytes)?;
        }
        self.sink.flush()
    }

    /// Ends the block and returns the sink.
    ///
    /// # Errors
    /// Returns the errors of the sink.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.sink)
    }
}
