//! `readpath regret --on PATH`: the workloads of the matrix on real storage, with the
//! kernel's own path as one of the rivals.
//!
//! All contenders read the same bytes of one file, which holds the workload's files
//! side by side: ours through one read path, the kernel with a thread for each
//! process and a descriptor for each of its files. Each round runs all of them
//! one after the other, and each round begins with another one.

use std::path::{Path, PathBuf};
use std::sync::Barrier;

use indicatif::ProgressBar;
use readpath::clock::Clock;
use readpath::cold;
use readpath::kernel::{KernelEngine, KernelError, KernelFile, KernelOptions};
use readpath::target::{Direct, OpenOptions, Target};
use readpath_core::law::Spec;
use readpath_core::request::{Outcome, RequestId};
use readpath_sim::regret::work::{Work, classic_readaheads};
use readpath_sim::regret::{Judged, Laws, Size};
use readpath_sim::report::{Row, Tally};
use readpath_sim::run::{Go, Watch};
use readpath_sim::simulate::Setup;
use readpath_sim::workload::{FileId, Next, Process, Workload};

use crate::exit::Failure;
use crate::made_files::MadeFiles;
use crate::progress::Interrupt;
use crate::real::run_listed;

/// How often a contender runs.
const ROUNDS: usize = 3;

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
    let readaheads: Vec<Spec> = match work.is_direct() {
        true => vec![Spec::plain("none")],
        false => classic_readaheads().collect(),
    };
    let classic = |readahead| Contender::Ours(Laws { readahead, scheduler: Spec::plain("noop") });
    let mut contenders = vec![Contender::Ours(laws.clone()), Contender::Kernel];
    contenders.extend(readaheads.into_iter().map(classic));
    let mut rows: Vec<Vec<Row>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            if interrupt.has_come() {
                return Err(Failure::Interrupted);
            }
            let workload = work.workload(size.seed, size.part);
            let row = match &contenders[at] {
                Contender::Ours(laws) => ours(path, workload, laws, size, interrupt)?,
                Contender::Kernel => kernel(path, workload)?,
            };
            if row.errors > 0 {
                let what = row.first_error.as_deref().unwrap_or("reads failed");
                return Err(Failure::Run(format!("{}: {what}", path.display())));
            }
            rows[at].push(row);
        }
    }
    Ok(rows)
}

fn ours(
    path: &Path,
    workload: Workload,
    laws: &Laws,
    size: Size,
    interrupt: &Interrupt,
) -> Result<Row, Failure> {
    let setup = Setup {
        readahead: laws.readahead.clone(),
        scheduler: laws.scheduler.clone(),
        seed: size.seed,
        ..Setup::new(Spec::plain("file"))
    };
    let mut go_on = |_| if interrupt.has_come() { Go::Stop } else { Go::On };
    run_listed(path, workload, &setup, Watch::progress(&mut go_on))
}

/// The same reads by the kernel: a thread for each process.
fn kernel(path: &Path, workload: Workload) -> Result<Row, Failure> {
    let about = |error: &dyn std::fmt::Display| Failure::about(path.display(), error);
    let options = OpenOptions { is_writable: false, direct: Direct::Never };
    let target = Target::open(path, options).map_err(|error| about(&error))?;
    cold::drop_pages(path).map_err(|error| about(&error))?;
    let (starts, _) = workload.side_by_side();
    let clock = Clock::start();
    let start = Barrier::new(workload.processes.len());
    let tallies: Vec<Result<Tally, KernelError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = workload
            .processes
            .into_iter()
            .map(|process| scope.spawn(|| read_all(process, path, &starts, clock, &start)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|tally| tally.expect("a reader does not panic")).collect()
    });
    let mut total = Tally::default();
    for tally in tallies {
        total.add(&tally.map_err(|error| about(&error))?);
    }
    let mut row = Row::new("listed", &format!("kernel:{}", path.display()), &total);
    row.readahead = Some("kernel".to_owned());
    row.scheduler = target.queue().and_then(|queue| queue.scheduler.clone());
    Ok(row)
}

/// What one process reads, one after the other, once all are ready.
fn read_all(
    mut process: Process,
    path: &Path,
    starts: &[u64],
    clock: Clock,
    start: &Barrier,
) -> Result<Tally, KernelError> {
    let files = open_all(&process, path, clock);
    // Even if this one has failed: the others wait for it.
    start.wait();
    let mut files = files?;
    let begun = clock.now();
    let mut tally = Tally::default();
    loop {
        match process.next(clock.now()) {
            Next::Operation(operation) => {
                let file = files.iter_mut().find(|(id, _)| *id == operation.file);
                let (_, file) = file.expect("the files of a process are known");
                let issued = clock.now();
                let offset = starts[operation.file.0 as usize] + operation.offset;
                file.read(RequestId(0), offset, operation.bytes as u32);
                file.wait(None).map_err(KernelError::Backend)?;
                let (completion, bytes) = file.poll().expect("a read that was waited for is done");
                std::hint::black_box(bytes);
                let (issued, ended) = (issued.since(begun), completion.at.since(begun));
                match completion.outcome {
                    Outcome::Done => tally.record(issued, ended, operation.bytes),
                    _ => tally.record_error(issued, ended),
                }
                process.completed(completion.at);
            }
            Next::Ended => return Ok(tally),
            Next::WaitUntil(_) | Next::WaitForCompletion => {
                unreachable!("one read at a time, and no pauses")
            }
        }
    }
}

fn open_all(
    process: &Process,
    path: &Path,
    clock: Clock,
) -> Result<Vec<(FileId, KernelFile)>, KernelError> {
    let name = process.engine().name();
    let options = KernelOptions {
        engine: KernelEngine::of_ioengine(name).expect("every engine of a workload has a peer"),
        is_direct: process.is_direct(),
        depth: 1,
        bytes_max: u32::try_from(process.block_bytes_max()).unwrap_or(u32::MAX),
        is_writable: false,
        advice: process.advice(),
        mapping_advice: process.mapping_advice(),
    };
    let open = |id| {
        let mut file = KernelFile::open(path, options, clock)?;
        file.touch_buffers();
        Ok((id, file))
    };
    process.files().into_iter().map(open).collect()
}
