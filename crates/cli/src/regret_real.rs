//! `readpath regret --on PATH`: the workloads of the matrix on real storage, with the
//! kernel's own path as one of the rivals.
//!
//! All contenders read the same bytes of one file, which holds the workload's files
//! side by side, with a thread for each process and a handle for each of its
//! files: ours through a [`ReadPath`], the kernel's by `pread(2)`. Each round runs
//! all of them one after the other, and each round begins with another one.
//!
//! Each runs twice in a row, and the second run counts. A host may take memory back that
//! was free for a while, and to touch it again for the first time takes up to 2 ns a byte: as long as
//! the reads that are measured. The first run brings it back, for whichever contender.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use indicatif::ProgressBar;
use readpath::clock::Clock;
use readpath::target::{OpenOptions, Target};
use readpath::{ReadPath, cold};
use readpath_core::law::Spec;
use readpath_sim::regret::work::{Work, classic_readaheads};
use readpath_sim::regret::{Judged, Laws, Size};
use readpath_sim::report::{Row, Tally};
use readpath_sim::workload::{FileId, Next, Process, Workload};

use crate::exit::Failure;
use crate::made_files::MadeFiles;
use crate::progress::Interrupt;

/// How often a contender runs.
const ROUNDS: usize = 5;

/// The file in a folder that is named in place of one.
const FILE_NAME: &str = "readpath-regret.data";

/// Judges the work on the storage at `path`: a file or block device, or a folder, in
/// which a file is made for the run.
pub fn judge_all(
    path: &Path,
    work: &[Work],
    laws: &Laws,
    size: Size,
    interrupt: &Interrupt,
) -> Result<Vec<Judged>, Failure> {
    let bytes = |work: &Work| work.workload(size.seed, size.part).side_by_side().1;
    let need_bytes = work.iter().map(bytes).max().unwrap_or(0);
    let mut made = MadeFiles::default();
    let path = data(path, need_bytes, size.seed, &mut made, interrupt)?;
    let bar = ProgressBar::new(work.len() as u64);
    let mut judged = Vec::new();
    for work in work {
        let contenders = race(&path, work, laws, size, interrupt)?;
        judged.push(work.judged("file", contenders));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(judged)
}

/// The file to read, with at least so many bytes.
fn data(
    path: &Path,
    need_bytes: u64,
    seed: u64,
    made: &mut MadeFiles,
    interrupt: &Interrupt,
) -> Result<PathBuf, Failure> {
    if path.is_dir() {
        let path = path.join(FILE_NAME);
        made.add(&path, need_bytes, seed, interrupt)?;
        return Ok(path);
    }
    let target = Target::open(path, OpenOptions::default()).map_err(Failure::usage)?;
    if target.bytes() < need_bytes {
        return Err(Failure::Usage(format!(
            "{}: has {} bytes, and these workloads need {need_bytes}; name a larger file, or a \
             folder, in which one is made for the run, or fewer --cells",
            path.display(),
            target.bytes()
        )));
    }
    Ok(path.to_path_buf())
}

/// Who runs.
enum Contender {
    Ours(Laws),
    Kernel,
}

/// The rows of each contender: the laws under test first.
fn race(
    path: &Path,
    work: &Work,
    laws: &Laws,
    size: Size,
    interrupt: &Interrupt,
) -> Result<Vec<Vec<Row>>, Failure> {
    let classic = |readahead| {
        let scheduler = Spec::plain("noop");
        Contender::Ours(Laws { readahead, scheduler, ..Laws::default() })
    };
    let mut contenders = vec![Contender::Ours(laws.clone()), Contender::Kernel];
    contenders.extend(classic_readaheads().map(classic));
    let mut rows: Vec<Vec<Row>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            if interrupt.has_come() {
                return Err(Failure::Interrupted);
            }
            let run = || {
                let workload = work.workload(size.seed, size.part);
                let row = match &contenders[at] {
                    Contender::Ours(laws) => ours(path, workload, laws),
                    Contender::Kernel => kernel(path, workload),
                };
                row.map_err(|error| Failure::about(path.display(), error))
            };
            run()?;
            rows[at].push(run()?);
        }
    }
    Ok(rows)
}

/// Reads bytes at a place of a file into all of a buffer.
type ReadAt = Box<dyn Fn(&mut [u8], u64) -> io::Result<()> + Send>;

fn ours(path: &Path, workload: Workload, laws: &Laws) -> Result<Row, Box<dyn std::error::Error>> {
    cold::drop_pages(path)?;
    let (readahead, scheduler) = (laws.readahead.to_string(), laws.scheduler.to_string());
    let read_path = ReadPath::builder().readahead(&readahead).scheduler(&scheduler).build()?;
    let file = read_path.open(path)?;
    let handle = || -> io::Result<ReadAt> {
        let file = file.reopen();
        Ok(Box::new(move |buffer, offset| file.read_exact_at(buffer, offset)))
    };
    let mut row = read_all(workload, &format!("file:{}", path.display()), &handle)?;
    let stats = read_path.stats();
    row.readahead = Some(readahead);
    row.scheduler = Some(scheduler);
    row.device_requests = Some(stats.device_reads);
    row.device_bytes = Some(stats.device_bytes);
    let per_request = stats.device_bytes as f64 / 1024.0 / stats.device_reads as f64;
    row.device_request_kib_mean = (stats.device_reads > 0).then_some(per_request);
    row.amplification = Some(stats.device_bytes as f64 / row.bytes as f64);
    row.waste_bytes = Some(stats.waste_bytes);
    Ok(row)
}

fn kernel(path: &Path, workload: Workload) -> Result<Row, Box<dyn std::error::Error>> {
    cold::drop_pages(path)?;
    let queue = Target::open(path, OpenOptions::default())?.queue().cloned();
    let handle = || -> io::Result<ReadAt> {
        let file = std::fs::File::open(path)?;
        Ok(Box::new(move |buffer, offset| file.read_exact_at(buffer, offset)))
    };
    let mut row = read_all(workload, &format!("kernel:{}", path.display()), &handle)?;
    row.readahead = Some("kernel".to_owned());
    row.scheduler = queue.and_then(|queue| queue.scheduler);
    Ok(row)
}

/// Has a thread for each process read what it reads, with a handle for each of its files.
fn read_all(
    workload: Workload,
    storage: &str,
    handle: &dyn Fn() -> io::Result<ReadAt>,
) -> io::Result<Row> {
    let (starts, _) = workload.side_by_side();
    let start = Barrier::new(workload.processes.len());
    let mut readers = Vec::new();
    for process in workload.processes {
        let files = process.files().into_iter().map(|id| Ok((id, handle()?)));
        let files: io::Result<Vec<(FileId, ReadAt)>> = files.collect();
        readers.push((process, files?));
    }
    let tallies: Vec<io::Result<Tally>> = std::thread::scope(|scope| {
        let threads: Vec<_> = readers
            .into_iter()
            .map(|(process, files)| {
                let (starts, start) = (&starts, &start);
                scope.spawn(move || read_as(process, &files, starts, start))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|tally| tally.expect("a reader does not panic")).collect()
    });
    let mut total = Tally::default();
    for tally in tallies {
        total.add(&tally?);
    }
    Ok(Row::new("listed", storage, &total))
}

/// What one process reads, one after the other, once all are ready.
fn read_as(
    mut process: Process,
    files: &[(FileId, ReadAt)],
    starts: &[u64],
    start: &Barrier,
) -> io::Result<Tally> {
    let mut buffer = vec![1; process.block_bytes_max() as usize];
    start.wait();
    let clock = Clock::start();
    let mut tally = Tally::default();
    loop {
        let issued = clock.now();
        match process.next(issued) {
            Next::Operation(operation) => {
                let file = files.iter().find(|(id, _)| *id == operation.file);
                let (_, read_at) = file.expect("the files of a process are known");
                let offset = starts[operation.file.0 as usize] + operation.offset;
                read_at(&mut buffer[..operation.bytes as usize], offset)?;
                std::hint::black_box(&buffer);
                let ended = clock.now();
                tally.record(issued, ended, operation.bytes);
                process.completed(ended);
            }
            Next::Ended => return Ok(tally),
            Next::WaitUntil(_) | Next::WaitForCompletion => {
                unreachable!("one read at a time, and no pauses")
            }
        }
    }
}
