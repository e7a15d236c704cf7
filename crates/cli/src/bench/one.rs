//! `readpath worker bench`: one measurement, in a process of its own, started by `readpath bench`.
//!
//! A *pass* performs all accesses of a row once. A measurement begins before the file is opened and
//! ends after it is closed: it includes all work that a program does for its bytes. A second pass
//! is measured without opening and closing. The processor time is the sum over all threads of the
//! process.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use readpath_eval::access_patterns::batches::RingReads;
use readpath_eval::access_patterns::formats::Ranges;
use readpath_eval::access_patterns::positional_reads::{ByteUse, PatternReads};
use readpath_eval::access_patterns::streams::{Blocks, Copied};
use readpath_eval::access_patterns::whole_files::WholeFiles;
use readpath_eval::access_patterns::{Accesses, Baseline, Checksum, ReadAt, SequentialFile};
use readpath_eval::usage::{CpuTime, peak_memory_bytes, storage_read_bytes};
use serde::{Deserialize, Serialize};

use super::futures::Tasks;
use super::ours::LibraryAccesses;
use super::refused::{self, DeniedInterface};
use super::rows::{QueuedReads, Row, RowAccesses, Scale};
use super::states::CacheState;
use crate::exit::{CommandResult, Failure};
use crate::worker::{OrderPath, Orders, WorkerTask, write_answer};

/// Contender: the library, a baseline, or a program with a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Contender {
    /// The library.
    #[default]
    Ours,
    /// `pread(2)`.
    Pread,
    /// `mmap(2)`.
    Mmap,
    /// `O_DIRECT`.
    Direct,
    /// A careful program of its own: it knows all its reads beforehand and keeps many of them in
    /// flight, see [`Row::queued`].
    Queue {
        /// Number of reads in flight.
        depth: u32,
    },
}

impl Contender {
    /// Contenders of every cell, the library first.
    pub const ALL: [Contender; 4] =
        [Contender::Ours, Contender::Pread, Contender::Mmap, Contender::Direct];

    /// Returns the baseline that makes the accesses of the row, or `None` for the library and for a
    /// queue, which makes other accesses for the same bytes.
    pub const fn baseline(self) -> Option<Baseline> {
        match self {
            Contender::Ours | Contender::Queue { .. } => None,
            Contender::Pread => Some(Baseline::Pread),
            Contender::Mmap => Some(Baseline::Mmap),
            Contender::Direct => Some(Baseline::Direct),
        }
    }

    /// Name in the table and in notes.
    pub fn name(self) -> Cow<'static, str> {
        match (self, self.baseline()) {
            (Contender::Queue { depth }, _) => format!("a queue of {depth}").into(),
            (_, Some(baseline)) => baseline.name().into(),
            (_, None) => "ours".into(),
        }
    }
}

/// Parameters of one measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasurementOrder {
    /// Name of the row at that scale.
    pub row: String,
    /// Scale of the data, with which the process finds the row by its name.
    pub scale: Scale,
    /// Contender that makes the reads.
    pub contender: Contender,
    /// Cache state. The parent process has already prepared it.
    pub state: CacheState,
    /// Folder of the run, which contains the data.
    pub folder: OrderPath,
    /// System calls to deny in the measured process.
    pub refused: Vec<DeniedInterface>,
}

/// Answer of the measuring process.
#[derive(Debug, Serialize, Deserialize)]
pub enum MeasurementOutcome {
    /// All bytes were read.
    Measured(Measurement),
    /// The files could not be opened or read, for the given reason.
    Failed(String),
}

/// Figures of one measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Duration.
    pub seconds: f64,
    /// User and system time.
    pub cpu_seconds: f64,
    /// Peak resident memory of the process.
    pub peak_bytes: Option<u64>,
    /// Bytes read from storage during the measurement, if the kernel counts them.
    pub device_bytes: Option<u64>,
    /// Checksum over the bytes of one pass.
    pub checksum: u64,
    /// Caveat about the figures.
    pub note: Option<String>,
}

/// Takes the order from the parent process, denies the system calls that it names, measures, and
/// writes the answer.
pub fn run() -> CommandResult {
    let order: MeasurementOrder = Orders::from_stdin(WorkerTask::Bench).next()?;
    let row = Row::of(&order.row, order.scale)
        .ok_or_else(|| Failure::usage_of(&order.row, "no row has this name"))?;
    refused::deny(&order.refused)
        .map_err(|error| Failure::Unavailable(format!("--refuse: {error}")))?;
    write_answer(&match measure(&order, &row) {
        Ok(measured) => MeasurementOutcome::Measured(measured),
        Err(error) => MeasurementOutcome::Failed(error.to_string()),
    })
}

/// Opens the files, runs the passes of the cache state, and returns the figures, with the checksum
/// of the last pass. Passes before the measurement are not counted, except in the peak memory.
fn measure(order: &MeasurementOrder, row: &Row) -> io::Result<Measurement> {
    let files: Vec<PathBuf> =
        row.data.files(&order.folder.0).into_iter().map(|(path, _)| path).collect();
    let [passes_before, measured_passes] = order.state.passes();
    let mut start = MeasurementStart::now();
    let mut open = OpenAccesses::open_by(order.contender, row, &files)?;
    let mut sum = Checksum::default();
    if passes_before > 0 {
        for _ in 0..passes_before {
            open.accesses().pass()?;
        }
        start = MeasurementStart::now();
    }
    for _ in 0..measured_passes {
        sum = open.accesses().pass()?;
    }
    // The measurement of a second pass ends before closing: the cost of closing belongs to all
    // passes.
    let figures_before_close = (passes_before > 0).then(|| start.end());
    let note = open.note();
    drop(open);
    let figures = figures_before_close.unwrap_or_else(|| start.end());
    Ok(Measurement { checksum: sum.0, note, ..figures })
}

/// Counters at the start of a measurement.
struct MeasurementStart {
    /// Bytes read from storage by this process so far.
    device_bytes: Option<u64>,
    /// Processor time of this process so far.
    cpu: CpuTime,
    /// Time of the start.
    clock: Instant,
}

impl MeasurementStart {
    /// Reads the counters at the start of a measurement.
    fn now() -> MeasurementStart {
        MeasurementStart {
            device_bytes: storage_read_bytes(),
            cpu: CpuTime::of_process(),
            clock: Instant::now(),
        }
    }

    /// Returns the differences of the counters since the start, and the peak memory since the begin
    /// of the process. Checksum and note are still empty. The bytes of the device are unknown if
    /// the kernel did not report them at the start or now.
    fn end(&self) -> Measurement {
        let seconds = self.clock.elapsed().as_secs_f64();
        let cpu_seconds = CpuTime::of_process().since(self.cpu).seconds();
        let read = storage_read_bytes().zip(self.device_bytes);
        Measurement {
            seconds,
            cpu_seconds,
            peak_bytes: peak_memory_bytes(),
            device_bytes: read.map(|(end, start)| end.saturating_sub(start)),
            checksum: 0,
            note: None,
        }
    }
}

/// Accesses of a row with its files open, by the kind of contender.
enum OpenAccesses {
    /// The library, which may have a caveat.
    Ours(LibraryAccesses),
    /// A baseline or a queue.
    Other(Box<dyn Accesses>),
}

impl OpenAccesses {
    /// Opens the accesses of the row for one contender.
    fn open_by(contender: Contender, row: &Row, files: &[PathBuf]) -> io::Result<OpenAccesses> {
        Ok(match (contender, contender.baseline()) {
            (Contender::Queue { depth }, _) => OpenAccesses::Other(open_queue(depth, row, files)?),
            (_, Some(baseline)) => OpenAccesses::Other(open_baseline(baseline, row, files)?),
            (_, None) => OpenAccesses::Ours(LibraryAccesses::open(row.work, row.data, files)?),
        })
    }

    /// Returns the opened accesses of any contender.
    fn accesses(&mut self) -> &mut dyn Accesses {
        match self {
            OpenAccesses::Ours(ours) => &mut *ours.accesses,
            OpenAccesses::Other(accesses) => &mut **accesses,
        }
    }

    /// Returns the caveat of the library about its figures. `None` without one, and for all other
    /// contenders.
    fn note(&self) -> Option<String> {
        match self {
            OpenAccesses::Ours(ours) => ours.note(),
            OpenAccesses::Other(_) => None,
        }
    }
}

/// Opens the accesses of the row through a baseline, without any access. The memory limit of a
/// mapped row applies to the library alone.
fn open_baseline(
    baseline: Baseline,
    row: &Row,
    files: &[PathBuf],
) -> io::Result<Box<dyn Accesses>> {
    let first_file = &files[0];
    let file = || -> io::Result<Arc<dyn ReadAt>> {
        // SAFETY: the file belongs to this run, and no process changes it after its creation.
        Ok(Arc::from(unsafe { baseline.open(first_file) }?))
    };
    let stream = || -> io::Result<Box<dyn SequentialFile>> {
        // SAFETY: no process changes a file of this run after its creation.
        unsafe { baseline.open_stream(first_file) }
    };
    Ok(match row.work {
        RowAccesses::Offsets(pattern) => {
            Box::new(PatternReads::over(file()?, pattern, ByteUse::Copied))
        }
        RowAccesses::Mapped { pattern, byte_use, .. } => {
            Box::new(PatternReads::over(file()?, pattern, byte_use))
        }
        RowAccesses::Blocks { bytes } => Box::new(Blocks::over(stream()?, bytes)),
        RowAccesses::Copied => Box::new(Copied::over(stream()?)),
        RowAccesses::Format(format) => {
            Box::new(Ranges::over(stream()?, format.ranges(row.data.bytes())))
        }
        RowAccesses::WholeFiles { threads } => {
            // SAFETY: no process changes a file of this run after its creation.
            let open = move |path: &std::path::Path| unsafe { baseline.open(path) };
            Box::new(WholeFiles::over(Box::new(open), files.to_vec(), threads))
        }
        RowAccesses::Batch { pattern, depth } => match baseline {
            // Accesses to mapped memory have no queue depth.
            Baseline::Mmap => Box::new(PatternReads::over(file()?, pattern, ByteUse::Copied)),
            Baseline::Pread | Baseline::Direct => {
                let is_direct = baseline == Baseline::Direct;
                let ring = RingReads::open(first_file, pattern, depth, is_direct);
                Box::new(ring.map_err(io::Error::other)?)
            }
        },
        RowAccesses::Futures(pattern) => Box::new(Tasks::blocking(file()?, pattern)?),
    })
}

/// Opens the bytes of the row for a program that keeps `depth` reads in flight. Fails for a row
/// without a form with a queue.
fn open_queue(depth: u32, row: &Row, files: &[PathBuf]) -> io::Result<Box<dyn Accesses>> {
    Ok(match row.queued() {
        None => return Err(io::Error::other("the row has no form with a queue")),
        Some(QueuedReads::Ring(pattern)) => {
            let is_direct = true;
            let ring = RingReads::open(&files[0], pattern, depth, is_direct);
            Box::new(ring.map_err(io::Error::other)?)
        }
        Some(QueuedReads::Threads) => {
            // SAFETY: no process changes a file of this run after its creation.
            let open = move |path: &std::path::Path| unsafe { Baseline::Direct.open(path) };
            Box::new(WholeFiles::over(Box::new(open), files.to_vec(), depth as usize))
        }
    })
}
