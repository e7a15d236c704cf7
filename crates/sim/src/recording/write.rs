//! Writing a recording.

use std::io;

use super::code::{FieldCodec, FieldEncoder, RecordProblem};
use super::{MAGIC, Record, VERSION, fields};

/// A block ends with the record that makes it this long.
const BLOCK_BYTES: usize = 64 << 10;

/// Writes a recording, block by block. The last block is in the file after
/// [`flush`](RecordingWriter::flush) alone.
#[derive(Debug)]
pub struct RecordingWriter<W> {
    sink: W,
    block: FieldEncoder,
}

impl<W: io::Write> RecordingWriter<W> {
    /// Begins a recording in `sink`.
    ///
    /// # Errors
    /// What `sink` answers.
    pub fn new(mut sink: W) -> io::Result<RecordingWriter<W>> {
        sink.write_all(&MAGIC)?;
        sink.write_all(&VERSION.to_le_bytes())?;
        Ok(RecordingWriter { sink, block: FieldEncoder::default() })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// What `sink` answers. [`io::ErrorKind::InvalidInput`] for a record that no recording can have;
    /// it is left out, and the recording stays whole.
    pub fn put(&mut self, mut record: Record) -> io::Result<()> {
        let before = self.block.bytes.len();
        let mut tag = u64::from(record.tag());
        let written =
            self.block.number(&mut tag).and_then(|()| fields::each(&mut record, &mut self.block));
        if let Err(RecordProblem::Wrong(why)) = written {
            // What the block has had so far counts the fields that were written: begin another.
            self.block.bytes.truncate(before);
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

    /// Ends the block, and has all that was put in the file.
    ///
    /// # Errors
    /// What the sink answers.
    pub fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.block).bytes;
        if !bytes.is_empty() {
            self.sink.write_all(&(bytes.len() as u32).to_le_bytes())?;
            self.sink.write_all(&crc32fast::hash(&bytes).to_le_bytes())?;
            self.sink.write_all(&bytes)?;
        }
        self.sink.flush()
    }

    /// Ends the block, and gives the sink back.
    ///
    /// # Errors
    /// What the sink answers.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.sink)
    }
}
