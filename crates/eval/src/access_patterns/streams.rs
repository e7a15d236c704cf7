//! Sequential reads from start to end with `std::io`.

use std::io::{self, SeekFrom, Write};

use readpath_os::page_buffer::PageBuffer;

use super::{Accesses, Checksum, SequentialFile};

/// Calls `read` with one buffer until the end of the file.
pub struct Blocks {
    /// The file to read.
    stream: Box<dyn SequentialFile>,
    /// Memory for one read.
    buffer: PageBuffer,
}

impl Blocks {
    /// Creates the accesses with a buffer of `bytes` bytes, a multiple of the page size.
    pub fn over(stream: Box<dyn SequentialFile>, bytes: u64) -> Blocks {
        Blocks { stream, buffer: PageBuffer::new(bytes) }
    }
}

impl Accesses for Blocks {
    /// Reads the whole stream through the buffer. Returns the checksum of its data.
    fn pass(&mut self) -> io::Result<Checksum> {
        let (mut sum, mut offset) = (Checksum::default(), 0);
        self.stream.seek(SeekFrom::Start(0))?;
        loop {
            let bytes = self.stream.read(&mut self.buffer)?;
            if bytes == 0 {
                return Ok(sum);
            }
            sum.add(offset, &self.buffer[..bytes]);
            offset += bytes as u64;
        }
    }
}

/// Copies the file to a writer by `std::io::copy` with its own buffer.
pub struct Copied {
    /// The file to copy.
    stream: Box<dyn SequentialFile>,
}

impl Copied {
    /// Creates the accesses to the stream.
    pub fn over(stream: Box<dyn SequentialFile>) -> Copied {
        Copied { stream }
    }
}

impl Accesses for Copied {
    /// Copies the whole stream by the standard library. Returns the checksum of its data.
    fn pass(&mut self) -> io::Result<Checksum> {
        self.stream.seek(SeekFrom::Start(0))?;
        let mut writer = ChecksumWriter { sum: Checksum::default(), offset: 0 };
        io::copy(&mut self.stream, &mut writer)?;
        Ok(writer.sum)
    }
}

/// Writer that adds its bytes to a checksum.
struct ChecksumWriter {
    /// Checksum of the bytes so far.
    sum: Checksum,
    /// Number of bytes so far, the offset of the next one in the file.
    offset: u64,
}

impl Write for ChecksumWriter {
    /// Adds the bytes to the checksum instead of storing them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sum.add(self.offset, bytes);
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }

    /// Has no effect: no byte is held back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
