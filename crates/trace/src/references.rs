//! Traces of references to blocks: the requested pages and their order only.
//!
//! A trace lists the references to a cache. It has no addresses on a device, no durations and no
//! queue depth. Reads and writes are references alike: a written block predicts the next read as
//! well as a read block does. A request for a range is one reference to each of its pages, in their
//! order.
//!
//! Formats in which such traces are published:
//!
//! - `lirs`: a block's number a line, as in the traces of the LIRS authors (`*` parts programs);
//! - `arc`: `FIRST COUNT …` a line, as in the traces of the ARC paper (`.lis`);
//! - `cloudphysics`: numbers of 32 bits each, the highest byte first;
//! - `oracle-general`: libCacheSim's records of 24 bytes, of which the object's number counts;
//! - the formats of [`crate::block_trace`]: requests by their bytes, and this project's recordings;
//! - `reads`: this project's lists of reads (`readpath check-kernel`): `OFFSET LENGTH`, `touch
//!   OFFSET`.

use readpath_core::readahead::HandleStep;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use crate::TraceError;
use crate::block_trace;
use crate::read_list::parse_steps;

mod curves;
mod detect_format;

pub use curves::{MissCurve, MissCurvePoint, OPTIMUM, belady, misses};
pub use detect_format::detect_format;

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTraceFormat {
    /// One block number per line.
    Lirs,
    /// First block and count on each line.
    Arc,
    /// 32-bit numbers, big-endian.
    CloudPhysics,
    /// libCacheSim's `oracleGeneral`.
    OracleGeneral,
    /// A list of reads of this project.
    Reads,
    /// A trace of requests.
    Requests(block_trace::TraceFormat),
}

impl BlockTraceFormat {
    /// The formats by name that are of blocks alone.
    const BLOCK_FORMATS: [(&'static str, BlockTraceFormat); 5] = [
        ("lirs", BlockTraceFormat::Lirs),
        ("arc", BlockTraceFormat::Arc),
        ("cloudphysics", BlockTraceFormat::CloudPhysics),
        ("oracle-general", BlockTraceFormat::OracleGeneral),
        ("reads", BlockTraceFormat::Reads),
    ];

    /// Returns all formats with their names.
    pub fn all() -> impl Iterator<Item = (&'static str, BlockTraceFormat)> {
        let requests = block_trace::FORMATS
            .iter()
            .map(|&(name, format)| (name, BlockTraceFormat::Requests(format)));
        BlockTraceFormat::BLOCK_FORMATS.into_iter().chain(requests)
    }

    /// Returns the format with this name, or `None` if it is unknown.
    pub fn named(name: &str) -> Option<BlockTraceFormat> {
        BlockTraceFormat::all().find(|(known, _)| *known == name).map(|(_, format)| format)
    }
}

/// A trace: blocks in order of reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTrace {
    /// References. The blocks are renumbered from 0 in the order of their original numbers.
    pub references: Vec<u32>,
    /// Number of distinct blocks.
    pub blocks: u32,
    /// Notes for readers of the figures ([`block_trace::TraceReader::note`] and
    /// [`time_order_note`](block_trace::TraceReader::time_order_note)).
    pub note: Option<String>,
}

impl BlockTrace {
    /// Parses a trace, up to `references_max` references. Later references are left out, and their
    /// lines are not checked, except in the format `reads`.
    ///
    /// # Errors
    /// Fails on the first malformed line or record, on an empty trace, and with too many blocks.
    pub fn parse(
        bytes: &[u8],
        format: BlockTraceFormat,
        references_max: usize,
    ) -> Result<BlockTrace, TraceError> {
        let mut trace_blocks = TraceBlocks { blocks: Vec::new(), references_max, note: None };
        let text = block_trace::without_byte_order_mark(bytes);
        match format {
            BlockTraceFormat::CloudPhysics => {
                for &record in binary_records::<4>(bytes)? {
                    trace_blocks.add(u32::from_be_bytes(record).into());
                }
            }
            BlockTraceFormat::OracleGeneral => {
                for (object, _) in oracle_general_records(bytes)? {
                    trace_blocks.add(object);
                }
            }
            BlockTraceFormat::Reads => add_reads(text, &mut trace_blocks)?,
            BlockTraceFormat::Lirs => add_lines(text, &mut trace_blocks, parse_lirs)?,
            BlockTraceFormat::Arc => add_lines(text, &mut trace_blocks, parse_arc)?,
            BlockTraceFormat::Requests(format) => add_requests(bytes, format, &mut trace_blocks)?,
        }
        trace_blocks.into_trace()
    }

    /// Creates a trace from references in their order, by arbitrary block numbers. The blocks are
    /// renumbered from 0.
    ///
    /// # Errors
    /// Fails if there is no block, or if there are too many.
    pub fn of(blocks: Vec<u64>) -> Result<BlockTrace, TraceError> {
        TraceBlocks { blocks, references_max: usize::MAX, note: None }.into_trace()
    }
}

/// A trace under construction, with original block numbers.
struct TraceBlocks {
    /// References in their order.
    blocks: Vec<u64>,
    /// Maximum number of references. Later ones are left out.
    references_max: usize,
    /// Note for readers of the figures, if the trace's reader has one.
    note: Option<String>,
}

impl TraceBlocks {
    /// Appends a reference, unless the maximum is reached.
    fn add(&mut self, block: u64) {
        if !self.is_full() {
            self.blocks.push(block);
        }
    }

    /// Returns true once the maximum number of references is reached.
    fn is_full(&self) -> bool {
        self.blocks.len() >= self.references_max
    }

    /// Renumbers the blocks in the order of their original numbers and returns the trace.
    ///
    /// # Errors
    /// There is no reference, or there are too many blocks.
    fn into_trace(self) -> Result<BlockTrace, TraceError> {
        let mut numbers = self.blocks.clone();
        numbers.sort_unstable();
        numbers.dedup();
        // The highest number is a mark in the simulated caches, so no block may have it.
        let is_countable = |&count: &u32| count < u32::MAX;
        let count = u32::try_from(numbers.len()).ok().filter(is_countable);
        let number = |block: &u64| {
            numbers.binary_search(block).expect("every name is among all names") as u32
        };
        match count.ok_or(TraceError::TooManyBlocks)? {
            0 => Err(TraceError::Empty { reason: "there is no reference in it".to_owned() }),
            blocks => {
                let references = self.blocks.iter().map(number).collect();
                Ok(BlockTrace { references, blocks, note: self.note })
            }
        }
    }
}

/// Splits a binary trace into records of `BYTES` bytes. A partial record is an error.
fn binary_records<const BYTES: usize>(bytes: &[u8]) -> Result<&[[u8; BYTES]], TraceError> {
    match bytes.as_chunks() {
        (records, []) => Ok(records),
        _ => Err(TraceError::PartialRecord { bytes: bytes.len(), record_bytes: BYTES }),
    }
}

/// Returns the object and its size in bytes of each record of [`BlockTraceFormat::OracleGeneral`].
/// Fails if the bytes are no whole number of records.
pub(crate) fn oracle_general_records(
    bytes: &[u8],
) -> Result<impl Iterator<Item = (u64, u64)>, TraceError> {
    // The object's number and size follow a time of 4 bytes.
    let parse = |record: &[u8; 24]| {
        let object = record[4..12].try_into().expect("a record has 24 bytes");
        let size = record[12..16].try_into().expect("a record has 24 bytes");
        (u64::from_le_bytes(object), u64::from(u32::from_le_bytes(size)))
    };
    Ok(binary_records(bytes)?.iter().map(parse))
}

/// Error of a line that is not text.
fn not_text_error(line: u64) -> TraceError {
    TraceError::line(line, "not text; name the format that the trace is in")
}

/// Result of a line: a range of blocks, each numbered like a page, or the description of an error.
type LineBlocks = Result<PageRange, String>;

/// Adds the blocks of each line, up to the maximum. `parse_blocks` parses a line. A line that it
/// rejects, or that is no text, is an error. Empty lines and comments (`#`) have no blocks.
fn add_lines(
    bytes: &[u8],
    trace: &mut TraceBlocks,
    parse_blocks: fn(&str) -> LineBlocks,
) -> Result<(), TraceError> {
    for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let text = str::from_utf8(text).map_err(|_| not_text_error(line))?;
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let blocks = parse_blocks(text).map_err(|reason| TraceError::line(line, reason))?;
        for block in blocks.pages() {
            if trace.is_full() {
                return Ok(());
            }
            trace.add(block);
        }
    }
    Ok(())
}

/// Parses a line of the format `lirs`: a block number, or `*` without a block.
fn parse_lirs(text: &str) -> LineBlocks {
    match text {
        "*" => Ok(PageRange::default()),
        _ => Ok(PageRange::new(parse_number(text, "a block's number")?, 1)),
    }
}

/// Parses a line of the format `arc`: first block and count.
fn parse_arc(text: &str) -> LineBlocks {
    let mut words = text.split_whitespace();
    let (Some(first), Some(count)) = (words.next(), words.next()) else {
        return Err(format!("`{text}` is not `FIRST COUNT …`"));
    };
    block_range(parse_number(first, "the first block")?, parse_number(count, "how many blocks")?)
}

/// Adds the pages of all requests, up to the maximum. Each device has its own range of page
/// numbers. A malformed request, or one beyond this range, is an error.
fn add_requests(
    bytes: &[u8],
    format: block_trace::TraceFormat,
    trace: &mut TraceBlocks,
) -> Result<(), TraceError> {
    let mut reader = block_trace::TraceReader::new(bytes, format);
    'requests: while let Some(request) = reader.next() {
        let request = request?;
        let line = reader.line();
        let line_error = |reason| TraceError::line(line, reason);
        let pages = page_range(request.offset, request.bytes).map_err(line_error)?;
        if pages.end > DEVICE_PAGES {
            let reason = format!("offset {}: no disk is so large", request.offset);
            return Err(line_error(reason));
        }
        let start = u64::from(request.device) * DEVICE_PAGES;
        for page in pages.pages() {
            if trace.is_full() {
                break 'requests;
            }
            trace.add(start + page);
        }
    }
    let notes = [reader.note().map(str::to_owned), reader.time_order_note()];
    trace.note = notes.into_iter().flatten().reduce(|both, note| format!("{both}; {note}"));
    Ok(())
}

/// Distance of the page numbers of two devices: 4 PiB in pages, more than any disk has.
const DEVICE_PAGES: u64 = 1 << 40;

/// Adds the pages of a list of reads and touches, up to the maximum. Advice and reopening add none.
/// A line that is no step is an error, also behind the maximum: the list is parsed as a whole.
fn add_reads(bytes: &[u8], trace: &mut TraceBlocks) -> Result<(), TraceError> {
    let text = str::from_utf8(bytes).map_err(|error| {
        let valid_part = &bytes[..error.valid_up_to()];
        not_text_error(1 + valid_part.iter().filter(|&&byte| byte == b'\n').count() as u64)
    })?;
    for step in parse_steps(text)? {
        let pages = match step {
            HandleStep::Read { offset, bytes } => PageRange::covering(offset, bytes),
            HandleStep::Touch { offset } => {
                let touched_bytes = 1;
                PageRange::covering(offset, touched_bytes)
            }
            HandleStep::Advise(_) | HandleStep::Reopen => PageRange::default(),
        };
        pages.pages().for_each(|page| trace.add(page));
    }
    Ok(())
}

/// Parses a whole number. `expected` names it in the error.
fn parse_number(text: &str, expected: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is not {expected}: a whole number is expected"))
}

/// Returns `count` blocks from `first` on. A count that is too large for one request is an error.
fn block_range(first: u64, count: u64) -> LineBlocks {
    // An implausibly long range indicates another format, and would fill the memory.
    match first.checked_add(count).filter(|_| count <= REQUEST_BLOCKS_MAX) {
        Some(end) => Ok(PageRange { first, end }),
        None => Err(format!("{count} blocks from {first} on are more than one request can be for")),
    }
}

/// Maximum number of blocks in one request, chosen: 4 GiB in pages, more than any request has.
const REQUEST_BLOCKS_MAX: u64 = 1 << 20;

/// Returns the pages of a byte range. A length that is too large for one request is an error.
fn page_range(offset: u64, bytes: u64) -> LineBlocks {
    match offset.checked_add(bytes).filter(|_| bytes <= REQUEST_BLOCKS_MAX * PAGE_BYTES) {
        Some(_) => Ok(PageRange::covering(offset, bytes)),
        None => Err(format!("{bytes} bytes from {offset} on are more than one request can be for")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renumbered blocks of a trace, in the order of reference.
    fn references_in(
        format: BlockTraceFormat,
        bytes: impl AsRef<[u8]>,
    ) -> Result<Vec<u32>, TraceError> {
        BlockTrace::parse(bytes.as_ref(), format, usize::MAX).map(|trace| trace.references)
    }

    #[test]
    fn each_format_renumbers_its_blocks_in_numerical_order() {
        assert_eq!(references_in(BlockTraceFormat::Lirs, "*\n7\n\n9\n7\n*\n"), Ok(vec![0, 1, 0]));
        let ranges = "100 3 0 1\n101 1 0 2\n";
        assert_eq!(references_in(BlockTraceFormat::Arc, ranges), Ok(vec![0, 1, 2, 1]));
        let numbers = [0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0];
        assert_eq!(references_in(BlockTraceFormat::CloudPhysics, numbers), Ok(vec![1, 0, 1]));
        let mut records = Vec::new();
        for object in [5_u64, 1 << 40, 5] {
            records.extend([[1; 4].as_slice(), &object.to_le_bytes(), &[2; 12]].concat());
        }
        assert_eq!(references_in(BlockTraceFormat::OracleGeneral, records), Ok(vec![0, 1, 0]));
        // 20 sectors from sector 4 on are three pages. An issued request (D) was queued before and
        // is not counted again.
        let events = "  8,0    1        1     0.000000000   123  Q   R 4 + 20 [fio]\n\
                        8,0    1        2     0.000001000   123  D   R 4 + 20 [fio]\n\
                        8,0    1        3     0.000002000   123  Q  WS 8 + 8 [fio]\n\
                      CPU0 (8,0):\n Reads Queued:           1,       10KiB\n";
        assert_eq!(
            references_in(BlockTraceFormat::Requests(block_trace::TraceFormat::Blkparse), events),
            Ok(vec![0, 1, 2, 1])
        );
        let requests = "128166372003061629,usr,0,Read,4095,2,413\n\
                        128166372016382155,usr,1,Write,0,4096,9\n";
        assert_eq!(
            references_in(BlockTraceFormat::Requests(block_trace::TraceFormat::Msr), requests),
            Ok(vec![0, 1, 2])
        );
        assert_eq!(references_in(BlockTraceFormat::Lirs, "\u{feff}7\r\n9\r\n"), Ok(vec![0, 1]));
        let marked = format!("\u{feff}{requests}");
        assert_eq!(
            references_in(BlockTraceFormat::Requests(block_trace::TraceFormat::Msr), marked),
            Ok(vec![0, 1, 2])
        );
        let reads = "4096 8192 # two pages\nadvice random\ntouch 8192\n";
        assert_eq!(references_in(BlockTraceFormat::Reads, reads), Ok(vec![0, 1, 1]));
    }

    #[test]
    fn parse_errors_name_the_line_and_the_expected_form() {
        let wrong = |format, text: &str| references_in(format, text).unwrap_err().to_string();
        for (format, text, line, word) in [
            (BlockTraceFormat::Lirs, "1\n\nx\n", 3, "a block's number"),
            (BlockTraceFormat::Arc, "1 2\n5\n", 2, "FIRST COUNT"),
            (BlockTraceFormat::Arc, "1 99999999\n", 1, "more than one request"),
            (
                BlockTraceFormat::Requests(block_trace::TraceFormat::Blkparse),
                "8,0 1 1 0.0 9 Q R x + 8 [p]\n",
                1,
                "SECTOR + SECTORS",
            ),
            (
                BlockTraceFormat::Requests(block_trace::TraceFormat::Blkparse),
                "hello\n",
                1,
                "blkparse's `MAJOR,MINOR",
            ),
            (
                BlockTraceFormat::Requests(block_trace::TraceFormat::Msr),
                "1,usr,0,Read,1,2\n1,usr,0,Trim,1,2,3\n",
                2,
                "Read|Write",
            ),
            (
                BlockTraceFormat::Requests(block_trace::TraceFormat::Msr),
                "1,usr,0\n",
                1,
                "TICKS,HOST,DISK",
            ),
            (
                BlockTraceFormat::Requests(block_trace::TraceFormat::Blkparse),
                "8,0 1 1 0.0 9 D R 9000000000000000 + 8 [p]\n8,0 1 2 0.1 9 D R 8 + 8 [p]\n",
                1,
                "no disk is so large",
            ),
            (BlockTraceFormat::Reads, "1 2\nrewind\n", 2, "is no step"),
        ] {
            let error = wrong(format, text);
            assert!(error.starts_with(&format!("line {line}: ")), "{error}");
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(wrong(BlockTraceFormat::Lirs, "*\n"), "there is no reference in it");
        let cut = references_in(BlockTraceFormat::CloudPhysics, [0; 6]).unwrap_err().to_string();
        assert!(cut.contains("6 bytes") && cut.contains("cut off"), "{cut}");
        let binary = references_in(BlockTraceFormat::Lirs, b"1\n\xff\xfe\n");
        let binary = binary.unwrap_err().to_string();
        assert!(binary.contains("line 2: not text"), "{binary}");
    }

    #[test]
    fn trace_is_read_up_to_the_reference_limit() {
        let trace = BlockTrace::parse(b"10 5\n", BlockTraceFormat::Arc, 3).unwrap();
        assert_eq!(trace, BlockTrace { references: vec![0, 1, 2], blocks: 3, note: None });
    }
}
