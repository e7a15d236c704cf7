//! Reader of recordings.

use std::collections::BTreeSet;
use std::io;

use super::code::{BlockReference, FieldCodec, FieldDecoder, RecordProblem};
use super::sums::RecordingSums;
use super::{BLOCK_BYTES_MAX, MAGIC, Record, VERSION, VERSION_OLDEST, fields};
use crate::TraceError;

/// Iterator over the records of a recording. Its memory holds one block and the numbers of all
/// names. It ends after an error.
#[derive(Debug)]
pub struct RecordingReader<R> {
    /// Bytes of the recording.
    source: R,
    /// First byte of the present block.
    block_start: u64,
    /// First byte of the next block.
    next_block_start: u64,
    /// Records of the present block. Empty before the first block.
    block: Vec<u8>,
    /// Number of bytes of the block that have been read.
    decoded_bytes: usize,
    /// Values of the block to which later fields are encoded as differences.
    reference: BlockReference,
    /// Numbers of the files that have been named.
    files: BTreeSet<u32>,
    /// Numbers of the threads that have been named.
    threads: BTreeSet<u32>,
    /// Numbers of the devices that have been named.
    devices: BTreeSet<u64>,
    /// Sums over all records so far, which have maxima.
    sums: RecordingSums,
    /// Progress of the reader, and its failure.
    state: ReaderState,
}

/// State of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    /// At the start: [`Record::Start`] is expected.
    Begins,
    /// Between the first and the last record.
    Within,
    /// [`Record::End`] was read.
    Over,
    /// An error was returned.
    Failed,
}

impl<R: io::Read> RecordingReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// Fails if the source is not a recording, ends within the header, or has another version.
    pub fn new(mut source: R) -> Result<RecordingReader<R>, TraceError> {
        // The magic bytes (8) and the version (4).
        let mut head = [0; 12];
        let length =
            fill_buffer(&mut source, &mut head).map_err(|error| unread_error(0, &error))?;
        // A file that was cut off within the magic bytes has their beginning.
        let has_magic = head[..length.min(MAGIC.len())] == MAGIC[..length.min(MAGIC.len())];
        if !has_magic || length == 0 {
            return Err(TraceError::NoRecording);
        }
        if length < head.len() {
            return Err(TraceError::Cut { byte: length as u64 });
        }
        let version = u32::from_le_bytes(head[8..].try_into().expect("the slice has four bytes"));
        if !(VERSION_OLDEST..=VERSION).contains(&version) {
            return Err(TraceError::Version { version });
        }
        Ok(RecordingReader {
            source,
            block_start: head.len() as u64,
            next_block_start: head.len() as u64,
            block: Vec::new(),
            decoded_bytes: 0,
            reference: BlockReference::default(),
            files: BTreeSet::new(),
            threads: BTreeSet::new(),
            devices: BTreeSet::new(),
            sums: RecordingSums::default(),
            state: ReaderState::Begins,
        })
    }

    /// Reads and checks the next record. Returns `None` after the last one.
    ///
    /// # Errors
    /// The source cannot be read, ends before the last record, or has a damaged block or a record
    /// that contradicts the earlier ones.
    fn read_record(&mut self) -> Result<Option<Record>, TraceError> {
        if self.decoded_bytes == self.block.len() && !self.read_block()? {
            return match self.state {
                ReaderState::Over => Ok(None),
                _ => Err(TraceError::Cut { byte: self.next_block_start }),
            };
        }
        let record = self.decode_record().map_err(|problem| {
            let why = match problem {
                RecordProblem::Short => "a record goes beyond its end",
                RecordProblem::Wrong(why) => why,
            };
            TraceError::Damaged { byte: self.block_start, why: format!("it has {why}") }
        })?;
        self.check_and_add(&record)
            .map_err(|why| TraceError::Damaged { byte: self.block_start, why: why.to_owned() })?;
        Ok(Some(record))
    }

    /// Reads the next block and checks its length and its checksum. Returns false at the end of the
    /// file. A file that ends within the block, and a failed check, are errors.
    fn read_block(&mut self) -> Result<bool, TraceError> {
        self.block_start = self.next_block_start;
        let block_start = self.block_start;
        // The length of the records (4 bytes) and their checksum (4).
        let mut head = [0; 8];
        match fill_buffer(&mut self.source, &mut head)
            .map_err(|error| unread_error(block_start, &error))?
        {
            0 => return Ok(false),
            8 => {}
            _ => return Err(TraceError::Cut { byte: block_start }),
        }
        let [length, checksum] = [0, 4].map(|offset| {
            u32::from_le_bytes(
                head[offset..offset + 4].try_into().expect("the slice has four bytes"),
            )
        });
        if length == 0 || length > BLOCK_BYTES_MAX {
            let why = format!("its length would be {length} bytes");
            return Err(TraceError::Damaged { byte: block_start, why });
        }
        self.block.resize(length as usize, 0);
        let read_bytes = fill_buffer(&mut self.source, &mut self.block)
            .map_err(|error| unread_error(block_start, &error))?;
        if read_bytes < self.block.len() {
            return Err(TraceError::Cut { byte: block_start });
        }
        if crc32fast::hash(&self.block) != checksum {
            let why = "its checksum is another".to_owned();
            return Err(TraceError::Damaged { byte: block_start, why });
        }
        self.next_block_start = block_start + 8 + u64::from(length);
        self.decoded_bytes = 0;
        self.reference = BlockReference::default();
        Ok(true)
    }

    /// Decodes the next record of the block: its type number, then its fields. Fails if the type is
    /// unknown or a field is malformed.
    fn decode_record(&mut self) -> Result<Record, RecordProblem> {
        let rest = &self.block[self.decoded_bytes..];
        let mut decoder = FieldDecoder { rest, reference: &mut self.reference };
        let mut tag = 0;
        decoder.number(&mut tag)?;
        let empty_record = u8::try_from(tag).ok().and_then(Record::constructor_of);
        let mut record =
            empty_record.ok_or(RecordProblem::Wrong("a record of a kind that is not known"))?();
        fields::code_fields(&mut record, &mut decoder)?;
        self.decoded_bytes = self.block.len() - decoder.rest.len();
        Ok(record)
    }

    /// Checks that a record may follow the preceding ones, and that the names in it are known. Adds
    /// it to the names and the sums. The error describes the first failed check.
    fn check_and_add(&mut self, record: &Record) -> Result<(), &'static str> {
        match (self.state, record) {
            (ReaderState::Begins, Record::Start(_)) => self.state = ReaderState::Within,
            (ReaderState::Begins, _) => return Err("the first record is not a start"),
            (_, Record::Start(_)) => return Err("a start within the recording"),
            (ReaderState::Over | ReaderState::Failed, _) => return Err("a record after the last"),
            (ReaderState::Within, _) => {}
        }
        // The numbers that the record uses, each of which must have been named.
        let (mut used_file, mut used_thread, mut used_device) = (None, None, None);
        match record {
            Record::Device(device) => {
                self.devices.insert(device.device);
            }
            Record::File(file) => {
                self.files.insert(file.file);
                // 0 stands for an unknown device, which has no name.
                used_device = Some(file.device).filter(|device| *device != 0);
            }
            Record::Thread(thread) => {
                self.threads.insert(thread.thread);
            }
            Record::Open(open) => (used_file, used_thread) = (Some(open.file), Some(open.thread)),
            Record::Map(map) => (used_file, used_thread) = (Some(map.file), Some(map.thread)),
            Record::Advice(advice) => {
                (used_file, used_thread) = (Some(advice.file), Some(advice.thread))
            }
            Record::Read(read) => (used_file, used_thread) = (Some(read.file), Some(read.thread)),
            Record::Insert(insert) => {
                (used_file, used_thread) = (Some(insert.file), Some(insert.thread))
            }
            Record::Mapped(mapped) => {
                (used_file, used_thread) = (Some(mapped.file), Some(mapped.thread))
            }
            Record::Unseen(unseen) => used_thread = Some(unseen.thread),
            Record::Evict(evict) => used_file = Some(evict.file),
            Record::Executable(mapped) => used_file = Some(mapped.file),
            Record::Request(request) => {
                used_device = Some(request.device);
                // Threads have numbers of 32 bits, also where a field is wider.
                used_thread = match request.thread.map(u32::try_from) {
                    Some(Err(_)) => return Err("a thread that has no name"),
                    Some(Ok(thread)) => Some(thread),
                    None => None,
                };
            }
            Record::End(_) => self.state = ReaderState::Over,
            Record::OthersRequests(others) => used_device = Some(others.device),
            Record::OthersSampled(others) => used_device = Some(others.device),
            Record::Start(_) | Record::Lost(_) | Record::TimeSpent(_) => {}
        }
        if used_file.is_some_and(|file| !self.files.contains(&file)) {
            return Err("a file that has no name");
        }
        if used_thread.is_some_and(|thread| !self.threads.contains(&thread)) {
            return Err("a thread that has no name");
        }
        if used_device.is_some_and(|device| !self.devices.contains(&device)) {
            return Err("a device that has no name");
        }
        self.sums.add(record)
    }
}

impl<R: io::Read> Iterator for RecordingReader<R> {
    type Item = Result<Record, TraceError>;

    /// Returns the next record, or `None` at the end and after an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.state == ReaderState::Failed {
            return None;
        }
        let read = self.read_record();
        if read.is_err() {
            self.state = ReaderState::Failed;
        }
        read.transpose()
    }
}

/// Reads until the buffer is full or the source ends. Returns the number of bytes read, or the
/// error of the source.
fn fill_buffer(source: &mut impl io::Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled_bytes = 0;
    while filled_bytes < buffer.len() {
        match source.read(&mut buffer[filled_bytes..]) {
            Ok(0) => break,
            Ok(count) => filled_bytes += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled_bytes)
}

/// Returns the error that the recording cannot be read from `byte` on.
fn unread_error(byte: u64, error: &io::Error) -> TraceError {
    TraceError::Unread { byte: Some(byte), because: error.to_string() }
}
