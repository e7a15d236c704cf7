//! The library's side of a row, used with default options.
//!
//! A *row* of the benchmark is one access pattern with its data files. A *pass* performs all of its
//! accesses once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use readpath::{Batch, File, Mapping, Mode, ReadPath};
use readpath_eval::access_patterns::formats::Ranges;
use readpath_eval::access_patterns::positional_reads::{AccessPattern, ByteUse, PatternReads};
use readpath_eval::access_patterns::streams::{Blocks, Copied};
use readpath_eval::access_patterns::whole_files::WholeFiles;
use readpath_eval::access_patterns::{Accesses, Checksum, MemoryFile, ReadAt};
use readpath_os::page_buffer::PageBuffer;

use super::futures::Tasks;
use super::rows::{Data, RowAccesses};
use crate::note;

/// Open accesses of a row through the library.
pub struct LibraryAccesses {
    /// Accesses of one pass.
    pub accesses: Box<dyn Accesses>,
    /// Read path or mapping in use, which reports how the bytes were read.
    caveat_source: CaveatSource,
}

/// Object that reports how the bytes were read, for the caveat.
enum CaveatSource {
    /// `mode` is the mode of the open file; `None` if each pass opens the files itself.
    Path {
        read_path: ReadPath,
        mode: Option<Mode>,
    },
    Mapping(Arc<MemoryFile<Mapping>>),
}

impl LibraryAccesses {
    /// Opens the files of the row for its kind of access, with the default options of the library.
    /// A mapping has the memory limit of the row. `data` describes the files, and `files` are their
    /// paths.
    pub fn open(
        row_accesses: RowAccesses,
        data: Data,
        files: &[PathBuf],
    ) -> io::Result<LibraryAccesses> {
        let first_file = &files[0];
        // A mapping needs no read path.
        if let RowAccesses::Mapped { pattern, byte_use, memory_bytes } = row_accesses {
            let mut builder = Mapping::builder();
            if let Some(bytes) = memory_bytes {
                builder = builder.memory(bytes);
            }
            // SAFETY: the file belongs to this run, and no process changes it after its creation.
            let mapping = unsafe { builder.open(first_file) }.map_err(io::Error::other)?;
            let mapping = Arc::new(MemoryFile(mapping));
            let accesses =
                PatternReads::over(Arc::clone(&mapping) as Arc<dyn ReadAt>, pattern, byte_use);
            let caveat_source = CaveatSource::Mapping(mapping);
            return Ok(LibraryAccesses { accesses: Box::new(accesses), caveat_source });
        }
        let read_path = ReadPath::builder().build().map_err(io::Error::other)?;
        // Each pass opens the files itself.
        if let RowAccesses::WholeFiles { threads } = row_accesses {
            let caveat_source = CaveatSource::Path { read_path: read_path.clone(), mode: None };
            let open =
                move |path: &Path| Ok(Box::new(LibraryFile(open_file(&read_path, path)?)) as _);
            let accesses = WholeFiles::over(Box::new(open), files.to_vec(), threads);
            return Ok(LibraryAccesses { accesses: Box::new(accesses), caveat_source });
        }
        // All other accesses are to one file, open during all passes.
        let file = open_file(&read_path, first_file)?;
        let caveat_source =
            CaveatSource::Path { read_path: read_path.clone(), mode: Some(file.mode()) };
        let accesses: Box<dyn Accesses> = match row_accesses {
            RowAccesses::Offsets(pattern) => {
                Box::new(PatternReads::over(Arc::new(LibraryFile(file)), pattern, ByteUse::Copied))
            }
            RowAccesses::Blocks { bytes } => Box::new(Blocks::over(Box::new(file.reader()), bytes)),
            RowAccesses::Copied => Box::new(Copied::over(Box::new(file.reader()))),
            RowAccesses::Format(format) => {
                Box::new(Ranges::over(Box::new(file.reader()), format.ranges(data.bytes())))
            }
            RowAccesses::Batch { pattern, depth } => {
                Box::new(BatchReads::over(&read_path, file, pattern, depth))
            }
            RowAccesses::Futures(pattern) => Box::new(Tasks::through_library(file, pattern)?),
            RowAccesses::Mapped { .. } | RowAccesses::WholeFiles { .. } => {
                unreachable!("these accesses were opened above")
            }
        };
        Ok(LibraryAccesses { accesses, caveat_source })
    }

    /// Returns a caveat for the row, or `None`. There is one if the open file is read without
    /// direct I/O, if the I/O backend is not the best one, or if the kernel serves the mapping.
    /// Files that each pass opens are not checked for direct I/O.
    pub fn note(&self) -> Option<String> {
        match &self.caveat_source {
            CaveatSource::Path { read_path, mode } => {
                let mode = mode.filter(|&mode| mode != Mode::Direct).map(|mode| mode.to_string());
                note::join(mode, read_path.stats().backend.and_then(note::backend_caveat))
            }
            CaveatSource::Mapping(mapping) => match mapping.0.mode() {
                readpath::pager::MappingMode::Served => None,
                mode => Some(mode.to_string()),
            },
        }
    }
}

/// Opens a file on the read path, with the error as an I/O error.
fn open_file(read_path: &ReadPath, path: &Path) -> io::Result<File> {
    read_path.open(path).map_err(io::Error::other)
}

/// Library file as a [`ReadAt`].
struct LibraryFile(File);

impl ReadAt for LibraryFile {
    fn bytes(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
}

/// Batch reads, up to `depth` in flight. Each completed read is copied into `buffer`.
struct BatchReads {
    batch: Batch,
    file: File,
    /// Offsets of the reads.
    pattern: AccessPattern,
    /// Maximum number of reads in flight.
    depth: usize,
    /// Memory for one read. The next completed read overwrites it.
    buffer: PageBuffer,
}

impl BatchReads {
    /// Creates batched reads of the pattern, with `depth` reads in flight.
    fn over(read_path: &ReadPath, file: File, pattern: AccessPattern, depth: u32) -> BatchReads {
        let buffer = PageBuffer::new(pattern.read_bytes);
        BatchReads { batch: read_path.batch(), file, pattern, depth: depth as usize, buffer }
    }
}

impl Accesses for BatchReads {
    /// Performs all reads with `depth` in flight. Returns the checksum of their data. An error ends
    /// the pass and leaves the other reads in flight, so no pass may follow.
    fn pass(&mut self) -> io::Result<Checksum> {
        let BatchReads { batch, file, pattern, depth, buffer } = self;
        let mut sum = Checksum::default();
        // The rows with a batch have one thread.
        let only_thread = 0;
        let mut offsets = pattern.of_thread(only_thread);
        let mut in_flight_count = 0;
        loop {
            for offset in offsets.by_ref().take(*depth - in_flight_count) {
                // The ticket of a read is its offset, which the checksum needs.
                let ticket = offset;
                batch.read(file, offset, pattern.read_bytes, ticket)?;
                in_flight_count += 1;
            }
            // Every read goes to the same buffer, for any ticket and number of bytes. `None`: no
            // read is in flight, and no offset is left.
            let Some(read) = batch.wait_into(|_, _| &mut *buffer)? else { return Ok(sum) };
            in_flight_count -= 1;
            sum.add(read.ticket, &buffer[..read.bytes?]);
        }
    }
}
