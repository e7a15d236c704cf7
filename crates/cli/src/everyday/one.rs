//! `readpath everyday-one`: one measurement, in a process of its own, started by `readpath bench`.
//!
//! What is measured begins before the file is opened and ends after it is closed, so that everything
//! counts that a program has to do for its bytes; of a second pass it is the pass alone. The processor
//! time is that of all the process's threads.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use readpath_peers::everyday::batches::InRing;
use readpath_peers::everyday::formats::Ranges;
use readpath_peers::everyday::places::{AtPlaces, Taking};
use readpath_peers::everyday::streams::{Blocks, Copied};
use readpath_peers::everyday::whole_files::WholeFiles;
use readpath_peers::everyday::{Accesses, Checksum, Peer, ReadAt, SequentialFile};
use readpath_peers::usage::{CpuTime, peak_memory_bytes, storage_read_bytes};
use serde::{Deserialize, Serialize};

use super::futures::Tasks;
use super::ours::Ours;
use super::refused::{self, Refused};
use super::rows::{Row, RowAccesses, Scale};
use super::states::CacheState;
use crate::exit::{CommandResult, Failure};
use crate::part::{OrderPath, Orders, say};

/// The subcommand.
pub const NAME: &str = "everyday-one";

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadWay {
    /// The library.
    Ours,
    /// `pread(2)`.
    Pread,
    /// `mmap(2)`.
    Mmap,
    /// `O_DIRECT`.
    Direct,
}

impl ReadWay {
    /// The library first.
    pub const ALL: [ReadWay; 4] = [ReadWay::Ours, ReadWay::Pread, ReadWay::Mmap, ReadWay::Direct];

    /// Which peer it is.
    pub const fn peer(self) -> Option<Peer> {
        match self {
            ReadWay::Ours => None,
            ReadWay::Pread => Some(Peer::Pread),
            ReadWay::Mmap => Some(Peer::Mmap),
            ReadWay::Direct => Some(Peer::Direct),
        }
    }

    /// Its name in the table.
    pub const fn name(self) -> &'static str {
        match self.peer() {
            None => "ours",
            Some(peer) => peer.name(),
        }
    }
}

/// What is to be measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasurementOrder {
    /// The row's name, of the rows of that scale.
    pub row: String,
    /// The scale.
    pub scale: Scale,
    /// Who reads.
    pub way: ReadWay,
    /// In which state; it has been brought about.
    pub state: CacheState,
    /// The folder of the run, with the data in it.
    pub folder: OrderPath,
    /// What is refused to whoever reads.
    pub refused: Vec<Refused>,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub enum MeasurementOutcome {
    /// All was read.
    Measured(Measurement),
    /// It can't be read so, and why.
    Failed(String),
}

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// How long it took.
    pub seconds: f64,
    /// User and system time.
    pub cpu_seconds: f64,
    /// The most memory that the process held at once.
    pub peak_bytes: Option<u64>,
    /// What was read from storage meanwhile, where the kernel counts it.
    pub device_bytes: Option<u64>,
    /// Over what was read: one pass.
    pub checksum: u64,
    /// What a reader must know of it.
    pub note: Option<String>,
}

/// Takes the order and carries it out.
pub fn run() -> CommandResult {
    let order: MeasurementOrder = Orders::take(NAME, "everyday").next()?;
    let row = Row::of(&order.row, order.scale)
        .ok_or_else(|| Failure::about(&order.row, "there is no such row"))?;
    refused::refuse(&order.refused)
        .map_err(|error| Failure::Unavailable(format!("--refuse: {error}")))?;
    say(&match measure(&order, &row) {
        Ok(measured) => MeasurementOutcome::Measured(measured),
        Err(error) => MeasurementOutcome::Failed(error.to_string()),
    })
}

fn measure(order: &MeasurementOrder, row: &Row) -> io::Result<Measurement> {
    let files: Vec<PathBuf> =
        row.data.files(&order.folder.0).into_iter().map(|(path, _)| path).collect();
    let [before, measured] = order.state.passes();
    let mut start = MeasurementStart::now();
    let mut opened = Opened::by(order.way, row, &files)?;
    let mut sum = Checksum::default();
    if before > 0 {
        for _ in 0..before {
            opened.accesses().pass()?;
        }
        start = MeasurementStart::now();
    }
    for _ in 0..measured {
        sum = opened.accesses().pass()?;
    }
    // A second pass ends here: what closing costs is for all passes together.
    let passed = (before > 0).then(|| start.end());
    let note = opened.note();
    drop(opened);
    let figures = passed.unwrap_or_else(|| start.end());
    Ok(Measurement { checksum: sum.0, note, ..figures })
}

/// Where a measurement begins.
struct MeasurementStart {
    device_bytes: Option<u64>,
    cpu: CpuTime,
    clock: Instant,
}

impl MeasurementStart {
    fn now() -> MeasurementStart {
        MeasurementStart {
            device_bytes: storage_read_bytes(),
            cpu: CpuTime::of_process(),
            clock: Instant::now(),
        }
    }

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

/// A row's accesses, open.
enum Opened {
    Ours(Ours),
    Peers(Box<dyn Accesses>),
}

impl Opened {
    fn by(way: ReadWay, row: &Row, files: &[PathBuf]) -> io::Result<Opened> {
        Ok(match way.peer() {
            None => Opened::Ours(Ours::open(row.work, row.data, files)?),
            Some(peer) => Opened::Peers(by_peer(peer, row, files)?),
        })
    }

    fn accesses(&mut self) -> &mut dyn Accesses {
        match self {
            Opened::Ours(ours) => &mut *ours.accesses,
            Opened::Peers(accesses) => &mut **accesses,
        }
    }

    fn note(&self) -> Option<String> {
        match self {
            Opened::Ours(ours) => ours.note(),
            Opened::Peers(_) => None,
        }
    }
}

/// The same accesses without the library.
fn by_peer(peer: Peer, row: &Row, files: &[PathBuf]) -> io::Result<Box<dyn Accesses>> {
    let first = &files[0];
    let file = || -> io::Result<Arc<dyn ReadAt>> {
        // SAFETY: a file of this run, which nobody changes once it is made.
        Ok(Arc::from(unsafe { peer.open(first) }?))
    };
    let stream = || -> io::Result<Box<dyn SequentialFile>> {
        // SAFETY: as above.
        unsafe { peer.open_stream(first) }
    };
    Ok(match row.work {
        RowAccesses::Places(places) => Box::new(AtPlaces::over(file()?, places, Taking::Copied)),
        RowAccesses::Mapped { places, taking, .. } => {
            Box::new(AtPlaces::over(file()?, places, taking))
        }
        RowAccesses::Blocks { bytes } => Box::new(Blocks::over(stream()?, bytes)),
        RowAccesses::Copied => Box::new(Copied::over(stream()?)),
        RowAccesses::Format(format) => {
            Box::new(Ranges::over(stream()?, format.ranges(row.data.bytes())))
        }
        RowAccesses::WholeFiles { threads } => {
            // SAFETY: as above.
            let open = move |path: &std::path::Path| unsafe { peer.open(path) };
            Box::new(WholeFiles::over(Box::new(open), files.to_vec(), threads))
        }
        RowAccesses::Batch { places, depth } => match peer {
            // Touches have no depth.
            Peer::Mmap => Box::new(AtPlaces::over(file()?, places, Taking::Copied)),
            Peer::Pread | Peer::Direct => {
                let is_direct = peer == Peer::Direct;
                let ring = InRing::open(first, places, depth, is_direct);
                Box::new(ring.map_err(io::Error::other)?)
            }
        },
        RowAccesses::Futures(places) => Box::new(Tasks::blocking(file()?, places)?),
    })
}
