//! The running kernel as an oracle of readahead, read by read.
//!
//! Each step runs on a cold file through `pread(2)`, a mapping or `posix_fadvise(2)`. After the
//! step, a trace returns the folios added to the kernel page cache. Lost events, evicted pages, and
//! a file that does not become cold are errors.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use readpath_core::readahead::{Advice, Folio, HandleStep, ReadaheadLimits, Recording};
use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::queue::{QueueLimits, device_folder};
use rustix::fs::fadvise;

use crate::kernel::fadvise_advice;
use crate::kernel_trace::{PageCacheTrace, TracefsError};
use crate::mapping::PlainMapping;
use readpath_record::cold::{ATTEMPTS, PAUSE, make_cold, page_count, residency_flags};

/// Maximum number of runs of a list when the kernel evicts pages in between. With proactive reclaim
/// (DAMON), one run in six of 2,000 reads lost a page.
const RUNS_MAX: u32 = 10;

/// Order of the largest folio on a file system with large folios: 512 pages, 2 MiB.
const FOLIO_ORDER_MAX: u8 = 9;

/// Maximum size in bytes of the large read that probes for large folios. Chosen, not measured.
const PROBE_BYTES_MAX: u64 = 4 << 20;

/// Number of single-page reads that probe for large folios in a small file. Chosen, not measured.
const PROBE_PAGES: u64 = 16;

/// Error of the oracle.
#[derive(Debug)]
pub enum OracleError {
    /// Tracing is unavailable or failed.
    Trace(TracefsError),
    /// The file could not be used.
    File {
        /// Action that was tried.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The path is not a regular file.
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// A touch lies past the end of the file, where a program would get SIGBUS.
    TouchPastEnd {
        /// The file.
        path: PathBuf,
        /// Offset of the touch in bytes.
        offset: u64,
    },
    /// The file is on no block device with readahead settings in sysfs.
    NoQueue {
        /// The file.
        path: PathBuf,
        /// Folder in which the settings were expected.
        folder: PathBuf,
    },
    /// Some pages stayed in the kernel page cache.
    NotCold {
        /// The file.
        path: PathBuf,
        /// Number of pages that stayed.
        pages: u64,
    },
    /// The kernel evicted pages during the run, so the later results are not comparable.
    Reclaimed {
        /// Number of missing pages.
        pages: u64,
    },
    /// SIGINT, SIGTERM or SIGHUP arrived. The signal was consumed.
    Interrupted,
}

impl OracleError {
    /// Returns true when the system lacks root or tracefs, false when a run failed.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, OracleError::Trace(TracefsError::Unavailable { .. }))
    }
}

impl std::fmt::Display for OracleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OracleError::Trace(error) => error.fmt(f),
            OracleError::File { action, path, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
            OracleError::NotRegular { path } => {
                write!(f, "{} is not a regular file; name one on a local disk", path.display())
            }
            OracleError::TouchPastEnd { path, offset } => write!(
                f,
                "cannot touch byte {offset} of {}: it lies past the end of the file",
                path.display()
            ),
            OracleError::NoQueue { path, folder } => write!(
                f,
                "{}: its device has no readahead settings in {}; \
                 use a file on a local disk (ext4, xfs)",
                path.display(),
                folder.display()
            ),
            OracleError::NotCold { path, pages } => write!(
                f,
                "{}: {pages} pages stay in memory; close the programs that use or map it",
                path.display()
            ),
            OracleError::Reclaimed { pages } => write!(
                f,
                "the system took {pages} pages away during each of {RUNS_MAX} runs; free some memory, \
                 turn proactive eviction (DAMON) off, or use a shorter list"
            ),
            OracleError::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for OracleError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OracleError::Trace(error) => Some(error),
            OracleError::File { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<TracefsError> for OracleError {
    fn from(error: TracefsError) -> OracleError {
        OracleError::Trace(error)
    }
}

/// Runs `steps` on the file at `path` and records the folios that the kernel read.
///
/// The file's cached pages are dropped. Its contents are only read. A run with evictions is
/// discarded and repeated, up to ten times.
///
/// # Errors
/// [`OracleError`]. Trace instances are removed in any case.
pub fn record(path: &Path, steps: &[HandleStep]) -> Result<Recording, OracleError> {
    let signals = BlockedSignals::block_signals();
    let mut run = 1;
    loop {
        match record_once(path, steps, &signals) {
            Err(OracleError::Reclaimed { .. }) if run < RUNS_MAX => run += 1,
            result => return result,
        }
    }
}

/// Performs the steps once on the cold file, and records the pages that the kernel added in each
/// step.
fn record_once(
    path: &Path,
    steps: &[HandleStep],
    signals: &BlockedSignals,
) -> Result<Recording, OracleError> {
    // `stat` comes before `open`, since opening a pipe would wait for a writer.
    let metadata = fs::metadata(path).map_err(|source| file_error("open", path, source))?;
    if !metadata.is_file() {
        return Err(OracleError::NotRegular { path: path.to_owned() });
    }
    let file = open(path)?;
    // Missing rights come before the device: no other file would help.
    let trace = PageCacheTrace::start(metadata.dev(), metadata.ino())?;
    let limits = device_limits(path, metadata.dev())?;
    let mut session = Session {
        path,
        mapping: None,
        advice: Advice::Normal,
        file,
        trace,
        cached: vec![false; metadata.len().div_ceil(PAGE_BYTES) as usize],
        buffer: Vec::new(),
    };
    let folio_order_max = session.probe_folio_order_max(metadata.len())?;
    session.drop_pages()?;
    let mut added = Vec::with_capacity(steps.len());
    for step in steps {
        if signals.take_pending() {
            return Err(OracleError::Interrupted);
        }
        added.push(session.execute_step(*step)?);
    }
    session.check_residence()?;
    session.trace.finish()?;
    Ok(Recording {
        system: readpath_os::system_name(),
        limits,
        file_bytes: metadata.len(),
        folio_order_max,
        added,
    })
}

/// One open file with a running trace.
struct Session<'a> {
    /// Path of the file, for opening it again.
    path: &'a Path,
    /// The file as it is open now.
    file: File,
    /// Mapping of `file`, created by the first touch.
    mapping: Option<PlainMapping>,
    /// Last advice on the file, for a mapping created later.
    advice: Advice,
    /// Trace of the pages that the kernel adds to its cache.
    trace: PageCacheTrace,
    /// For each page, true when the trace reported it since the last drop.
    cached: Vec<bool>,
    /// Memory for the data of reads, which nothing uses.
    buffer: Vec<u8>,
}

impl Session<'_> {
    /// Finds out if the file system uses large folios, since no system call reports it. Returns 0
    /// for single pages, and [`FOLIO_ORDER_MAX`] if any folio is larger, since the order of the
    /// largest cannot be observed here. Two streams are read that would get large folios. One is a
    /// single read of up to a quarter of the file, which works with any readahead window. The other
    /// reads single pages, and works in small files. The pages that were read stay cached, and the
    /// file is open without readahead state.
    fn probe_folio_order_max(&mut self, file_bytes: u64) -> Result<u8, OracleError> {
        let first_read_bytes = PROBE_BYTES_MAX.min(file_bytes / 4).next_multiple_of(PAGE_BYTES);
        let pages = (0..PROBE_PAGES).map(|page| (page * PAGE_BYTES, PAGE_BYTES));
        let mut has_large = false;
        for stream in [vec![(0, first_read_bytes)], pages.collect()] {
            self.drop_pages()?;
            self.execute_step(HandleStep::Reopen)?;
            for (offset, bytes) in stream {
                let added = self.execute_step(HandleStep::Read { offset, bytes })?;
                has_large |= added.iter().any(|folio| folio.order > 0);
            }
        }
        self.execute_step(HandleStep::Reopen)?;
        Ok(if has_large { FOLIO_ORDER_MAX } else { 0 })
    }

    /// Executes one step on the file. Returns the folios that the kernel added in it. A page that
    /// was added before and not dropped by a step must have been evicted: the error is `Reclaimed`.
    fn execute_step(&mut self, step: HandleStep) -> Result<Vec<Folio>, OracleError> {
        match step {
            HandleStep::Read { offset, bytes } => self.read(offset, bytes)?,
            HandleStep::Touch { offset } => self.touch(offset)?,
            HandleStep::Reopen => {
                self.mapping = None;
                self.advice = Advice::Normal;
                self.file = open(self.path)?;
            }
            HandleStep::Advise(Advice::DontNeed) => {
                // The check comes first: after the drop an earlier eviction would not show.
                self.check_residence()?;
                self.drop_pages()?;
            }
            HandleStep::Advise(advice) => self.advise(advice)?,
        }
        let added = self.trace.drain()?;
        for page in added.iter().flat_map(|folio| folio.range().pages()) {
            match self.cached.get_mut(page as usize) {
                Some(is_cached) if !*is_cached => *is_cached = true,
                // The first such page ends the recording, so the others are not counted.
                Some(_) => return Err(OracleError::Reclaimed { pages: 1 }),
                None => {} // tail of a folio beyond the end of the file
            }
        }
        Ok(added)
    }

    /// Reads `bytes` bytes at `offset` by one call, and discards the data.
    fn read(&mut self, offset: u64, bytes: u64) -> Result<(), OracleError> {
        let bytes = bytes as usize;
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        // One call, as in the program. A short read at the end of the file is no error, and a
        // second call would be another read.
        loop {
            match self.file.read_at(&mut self.buffer[..bytes], offset) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(file_error("read", self.path, source)),
            }
        }
    }

    /// Touches a byte through a mapping of the open file, so that faults and reads share the
    /// kernel's readahead state. The first touch creates the mapping. An offset past the end is an
    /// error.
    fn touch(&mut self, offset: u64) -> Result<(), OracleError> {
        let failed = |source| file_error("map", self.path, source);
        if self.mapping.is_none() {
            self.mapping = PlainMapping::of(&self.file).map_err(failed)?;
            if let Some(mapping) = &self.mapping {
                mapping.advise(self.advice).map_err(failed)?;
            }
        }
        // An empty file has no mapping, and every offset lies past its end.
        match &self.mapping {
            Some(mapping) if mapping.touch(offset) => Ok(()),
            _ => Err(OracleError::TouchPastEnd { path: self.path.to_owned(), offset }),
        }
    }

    /// Gives advice other than `DontNeed` on the file and on its mapping, if any. A later mapping
    /// gets it too.
    fn advise(&mut self, advice: Advice) -> Result<(), OracleError> {
        let failed = |source| file_error("advise on", self.path, source);
        let (from_start, to_end) = (0, None);
        fadvise(&self.file, from_start, to_end, fadvise_advice(advice))
            .map_err(|errno| failed(errno.into()))?;
        self.advice = advice;
        self.mapping.as_ref().map_or(Ok(()), |mapping| mapping.advise(advice)).map_err(failed)
    }

    /// Writes the file back and drops all its cached pages, which may then be added again. Returns
    /// an error if some remain.
    fn drop_pages(&mut self) -> Result<(), OracleError> {
        // Mapped pages cannot be dropped from the kernel page cache.
        if let Some(mapping) = &self.mapping {
            mapping
                .advise(Advice::DontNeed)
                .map_err(|source| file_error("unmap pages of", self.path, source))?;
        }
        let residency = make_cold(&self.file)
            .map_err(|source| file_error("drop pages of", self.path, source))?;
        match residency.resident {
            0 => self.cached.fill(false),
            pages => return Err(OracleError::NotCold { path: self.path.to_owned(), pages }),
        }
        Ok(())
    }

    /// Checks that every added page is still resident, otherwise returns `Reclaimed`. A page with
    /// I/O in flight counts as absent for `mincore`, so the check is repeated after a [`PAUSE`].
    fn check_residence(&self) -> Result<(), OracleError> {
        let residence_error = |source| file_error("look at", self.path, source);
        let whole = PageRange::new(0, page_count(&self.file).map_err(residence_error)?);
        let mut missing = 0;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let resident_flags = residency_flags(&self.file, whole).map_err(residence_error)?;
            missing = std::iter::zip(&self.cached, &resident_flags)
                .filter(|&(&was_added, &is_resident)| was_added && !is_resident)
                .count() as u64;
            if missing == 0 {
                return Ok(());
            }
        }
        Err(OracleError::Reclaimed { pages: missing })
    }
}

/// Opens a file for reading.
fn open(path: &Path) -> Result<File, OracleError> {
    File::open(path).map_err(|source| file_error("open", path, source))
}

/// Creates the error of a system call on a file. `action` is for the message.
fn file_error(action: &'static str, path: &Path, source: io::Error) -> OracleError {
    OracleError::File { action, path: path.to_owned(), source }
}

/// Returns the readahead window and the maximum request size of the device with number `device`.
/// Without a queue of that device in sysfs, the error names `path`, a file on it.
fn device_limits(path: &Path, device: u64) -> Result<ReadaheadLimits, OracleError> {
    let queue = QueueLimits::from_device_number(device).ok_or_else(|| OracleError::NoQueue {
        path: path.to_owned(),
        folder: device_folder(device).join("queue"),
    })?;
    Ok(ReadaheadLimits {
        window_pages_max: queue.read_ahead_bytes / PAGE_BYTES,
        request_pages_max: queue.request_bytes_max / PAGE_BYTES,
    })
}

/// Blocks the signals that end a program while a trace is running, so that the trace is removed
/// first. A signal taken here becomes an error, so that callers can clean up too. A later signal is
/// delivered on drop.
struct BlockedSignals {
    /// Set of the signals that end a program.
    blocked: libc::sigset_t,
    /// Signal mask of the thread before.
    before: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks SIGINT, SIGTERM and SIGHUP for this thread, and keeps the previous signal mask.
    fn block_signals() -> BlockedSignals {
        // SAFETY: the calls initialise both sets before they are read.
        unsafe {
            let mut blocked = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigemptyset(&mut blocked);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut blocked, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, &mut before);
            BlockedSignals { blocked, before }
        }
    }

    /// Consumes a pending signal. Returns true if there was one.
    fn take_pending(&self) -> bool {
        let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `block_signals` filled the set. The information pointer may be null.
        unsafe { libc::sigtimedwait(&self.blocked, std::ptr::null_mut(), &no_wait) > 0 }
    }
}

impl Drop for BlockedSignals {
    /// Restores the signal mask of the thread, which delivers pending signals.
    fn drop(&mut self) {
        // SAFETY: `before` was filled by `pthread_sigmask` in `block_signals`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
