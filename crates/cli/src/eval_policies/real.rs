//! `readpath eval policies --on PATH`: the workloads of the matrix on real storage.
//!
//! The kernel's own read path is one of the baselines. All contenders read the same bytes, with one
//! thread per process and one handle per file of a process, closed after its last read. Ours read
//! through a [`ReadPath`], the kernel's through `pread(2)`.
//!
//! In a folder, the workload's files are created as separate files. On an existing file or device
//! they are adjacent ranges: there a policy does not see the end of a file, and cannot exhaust one.
//! Each round runs all contenders one after the other, and each round begins with another one.
//!
//! The contender under test is the library with default settings, or with the named policies. Named
//! policies, like the policies of the baselines, manage pages of our own page cache.
//!
//! Each contender runs twice in a row, and the two runs are judged apart. A host may reclaim guest
//! memory that was free for a while. The first touch of such memory takes up to 2 ns per byte, as
//! long as the measured reads. The first run brings the memory back for every contender, so that
//! the second run compares only the contenders.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use indicatif::ProgressBar;
use readpath::{PageCache, RawFile, ReadPath};
use readpath_core::policy::Spec;
use readpath_core::unit::PAGE_BYTES;
use readpath_eval::clock::Clock;
use readpath_eval::policy_matrix::work::{MatrixWorkload, classic_readaheads};
use readpath_eval::policy_matrix::{CellSize, JudgedCell, Policies};
use readpath_record::cold;
use readpath_sim::report::{ReadCounters, ResultRow};
use readpath_sim::workload::{self, FileId, NextAction, Process, Workload};

use crate::exit::Failure;
use crate::progress::Interrupt;
use crate::real_file::{kernel_queue, mode_and_length};
use crate::scratch_files::ScratchFiles;

/// Number of rounds; each contender runs twice in a round. A contender is represented by its median
/// round. Chosen, not measured.
const ROUNDS: usize = 3;

/// First and second runs, judged separately.
#[derive(Debug, Default)]
pub struct FirstAndSecond {
    /// First runs of all rounds, by cell.
    pub first: Vec<JudgedCell>,
    /// Second runs, directly after the first ones.
    pub second: Vec<JudgedCell>,
}

/// Judges the workloads on the storage at `path`. `path` is a file, a block device, or a folder for
/// scratch files. `policies` is the tested pair; `None` tests a read path with default options.
pub fn judge_all(
    path: &Path,
    workloads: &[MatrixWorkload],
    policies: Option<&Policies>,
    size: CellSize,
    interrupt: &Interrupt,
) -> Result<FirstAndSecond, Failure> {
    let is_folder = path.is_dir();
    if !is_folder {
        check_storage_size(path, workloads, size)?;
    }
    let bar = ProgressBar::new(workloads.len() as u64);
    let mut judged = FirstAndSecond::default();
    let mut data: Option<Data> = None;
    for work in workloads {
        let files = work.workload(size.seed, size.part).files;
        // The files of the last workload serve again if their sizes are equal.
        let has_files = data.as_ref().is_some_and(|data| data.has_sizes(&files));
        if !has_files {
            // Remove the old files before the new ones are created.
            data = None;
        }
        let data = match &mut data {
            Some(data) => data,
            None => data.insert(match is_folder {
                true => Data::create_in(path, files, size.seed, interrupt)?,
                false => Data::lay_out_in(path, files),
            }),
        };
        let [first, second] = run_contenders(data, work, policies, size, interrupt)?;
        let device_name = "file";
        judged.first.push(work.judge(device_name, first));
        judged.second.push(work.judge(device_name, second));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(judged)
}

/// Checks that the file or device is large enough for all workloads.
fn check_storage_size(
    path: &Path,
    workloads: &[MatrixWorkload],
    size: CellSize,
) -> Result<(), Failure> {
    let bytes = |work: &MatrixWorkload| {
        let (_starts, end) = work.workload(size.seed, size.part).contiguous_starts();
        end
    };
    let need_bytes = workloads.iter().map(bytes).max().unwrap_or(0);
    let (_mode, have_bytes) = mode_and_length(path, RawFile::builder())?;
    if have_bytes < need_bytes {
        return Err(Failure::Usage(format!(
            "{}: has {have_bytes} bytes, and these workloads need {need_bytes}; name a larger \
                file, a folder for scratch files, or fewer --cells",
            path.display()
        )));
    }
    Ok(())
}

/// Start of a workload's file on the storage.
struct FileStart {
    /// Index into [`Data::paths`]. `None` for an empty file in a folder, which has no path.
    path_index: Option<usize>,
    /// Start in the file or device at that path, in bytes.
    offset: u64,
}

/// Files of a workload on the storage.
struct Data {
    /// The workload's files, by their numbers.
    files: Vec<workload::WorkloadFile>,
    /// Files or device that contain the workload's files.
    paths: Vec<PathBuf>,
    /// Start of each file. The offset of an empty file is arbitrary.
    file_starts: Vec<FileStart>,
    /// Files to remove; none on an existing file or device.
    _scratch_files: ScratchFiles,
}

impl Data {
    /// Creates each non-empty file as a scratch file in `folder`, filled with data from `seed`.
    fn create_in(
        folder: &Path,
        files: Vec<workload::WorkloadFile>,
        seed: u64,
        interrupt: &Interrupt,
    ) -> Result<Data, Failure> {
        let (mut paths, mut file_starts) = (Vec::new(), Vec::new());
        let mut scratch_files = ScratchFiles::default();
        for file in &files {
            // An empty file has no bytes to read, and no path. The matrix has such files only as
            // gaps in the layout of a disk.
            let path_index = (file.bytes > 0).then_some(paths.len());
            file_starts.push(FileStart { path_index, offset: 0 });
            if path_index.is_some() {
                let path = folder.join(format!("readpath-regret.{}", paths.len()));
                scratch_files.add(&path, file.bytes, seed, interrupt)?;
                paths.push(path);
            }
        }
        Ok(Data { files, paths, file_starts, _scratch_files: scratch_files })
    }

    /// Lays all files out one after the other in the existing file at `path`, each from a whole
    /// page on.
    fn lay_out_in(path: &Path, files: Vec<workload::WorkloadFile>) -> Data {
        let mut end = 0;
        let file_starts = files.iter().map(|file| {
            let start = end;
            end += file.bytes.next_multiple_of(PAGE_BYTES);
            FileStart { path_index: Some(0), offset: start }
        });
        let (file_starts, paths) = (file_starts.collect(), vec![path.to_path_buf()]);
        Data { files, paths, file_starts, _scratch_files: ScratchFiles::default() }
    }

    /// True if the workload's files have the sizes of `files`.
    fn has_sizes(&self, files: &[workload::WorkloadFile]) -> bool {
        let bytes =
            |files: &[workload::WorkloadFile]| files.iter().map(|file| file.bytes).collect();
        let (ours, theirs): (Vec<u64>, Vec<u64>) = (bytes(&self.files), bytes(files));
        ours == theirs
    }

    /// Drops the files' pages from the kernel page cache. Pages that stay are ignored.
    fn make_cold(&self) -> io::Result<()> {
        self.paths.iter().try_for_each(|path| cold::drop_pages(path).map(drop))
    }
}

/// Contender of a measurement.
enum Contender {
    /// The library, with these policies or with default options.
    Library(Option<Policies>),
    /// The kernel's own read path.
    Kernel,
}

/// Runs all contenders in every round. Returns the rows of the first and of the second runs by
/// contender; the tested one comes first.
fn run_contenders(
    data: &Data,
    work: &MatrixWorkload,
    policies: Option<&Policies>,
    size: CellSize,
    interrupt: &Interrupt,
) -> Result<[Vec<Vec<ResultRow>>; 2], Failure> {
    // The classic policies are compared by their readahead alone: all have the same scheduler.
    let classic_contender = |readahead| {
        let scheduler = Spec::plain("noop");
        Contender::Library(Some(Policies { readahead, scheduler, ..Policies::default() }))
    };
    let mut contenders = vec![Contender::Library(policies.cloned()), Contender::Kernel];
    contenders.extend(classic_readaheads().map(classic_contender));
    let no_rows: Vec<Vec<ResultRow>> = contenders.iter().map(|_| Vec::new()).collect();
    let mut rows = [no_rows.clone(), no_rows];
    for round in 0..ROUNDS {
        for position in 0..contenders.len() {
            let contender_index = (round + position) % contenders.len();
            if interrupt.is_signalled() {
                return Err(Failure::Interrupted);
            }
            let measure = || {
                // Every run has the same seed, so all contenders perform the same reads.
                let workload = work.workload(size.seed, size.part);
                let row = match &contenders[contender_index] {
                    Contender::Library(policies) => run_library(data, workload, policies.as_ref()),
                    Contender::Kernel => run_kernel(data, workload),
                };
                row.map_err(|error| Failure::usage_of(data.paths[0].display(), error))
            };
            for rows_of_run in &mut rows {
                rows_of_run[contender_index].push(measure()?);
            }
        }
    }
    Ok(rows)
}

/// Reads exactly the bytes of the buffer at an offset.
type ReadExactAt = Box<dyn Fn(&mut [u8], u64) -> io::Result<()> + Send>;

/// Runs the workload once through the library, on cold files. `policies` selects them and the
/// library's own cache; `None` leaves the defaults.
fn run_library(
    data: &Data,
    workload: Workload,
    policies: Option<&Policies>,
) -> Result<ResultRow, Box<dyn std::error::Error>> {
    data.make_cold()?;
    let mut builder = ReadPath::builder();
    if let Some(Policies { readahead, scheduler, .. }) = policies {
        // Named policies are judged on readpath's own cache.
        let uses_kernel_cache = false;
        // Without a limit the cache is sized by the spare memory.
        builder =
            builder.page_cache(PageCache::Own { bytes: None }).kernel_cache(uses_kernel_cache);
        builder = builder.readahead(&readahead.to_string()).scheduler(&scheduler.to_string());
    }
    let read_path = builder.build()?;
    let files: Result<Vec<readpath::File>, _> =
        data.paths.iter().map(|path| read_path.open(path)).collect();
    let files = files?;
    let handle = |file_index: usize| -> io::Result<ReadExactAt> {
        let file = files[file_index].reopen();
        Ok(Box::new(move |buffer, offset| file.read_exact_at(buffer, offset)))
    };
    let mut row = read_all(workload, "file", data, &handle)?;
    // Without named policies, the default pair has the names of the library's own defaults.
    let Policies { readahead, scheduler, .. } = policies.cloned().unwrap_or_default();
    row.readahead = Some(readahead.to_string());
    row.scheduler = Some(scheduler.to_string());
    // With the kernel page cache, the kernel issues its own requests, which are not counted here.
    if read_path.page_cache() != PageCache::Kernel {
        let stats = read_path.stats();
        row.device_requests = Some(stats.device_reads);
        row.device_bytes = Some(stats.device_bytes);
        let per_request = stats.device_bytes as f64 / 1024.0 / stats.device_reads as f64;
        row.device_request_kib_mean = (stats.device_reads > 0).then_some(per_request);
        row.amplification = Some(stats.device_bytes as f64 / row.bytes as f64);
        row.waste_bytes = Some(stats.waste_bytes);
    }
    Ok(row)
}

/// Runs the workload once through the kernel, with `pread(2)` on cold files.
fn run_kernel(data: &Data, workload: Workload) -> Result<ResultRow, Box<dyn std::error::Error>> {
    data.make_cold()?;
    let queue = kernel_queue(&data.paths[0]);
    let handle = |file_index: usize| -> io::Result<ReadExactAt> {
        let file = std::fs::File::open(&data.paths[file_index])?;
        Ok(Box::new(move |buffer, offset| file.read_exact_at(buffer, offset)))
    };
    let mut row = read_all(workload, "kernel", data, &handle)?;
    row.readahead = Some("kernel".to_owned());
    row.scheduler = queue.and_then(|queue| queue.scheduler);
    Ok(row)
}

/// Performs the workload with one thread per process and one handle per file. `open` opens the file
/// with a path index. Returns the row of the measurement, with the name `storage`.
fn read_all(
    workload: Workload,
    storage: &str,
    data: &Data,
    open: &dyn Fn(usize) -> io::Result<ReadExactAt>,
) -> io::Result<ResultRow> {
    let start = Barrier::new(workload.processes.len());
    let mut readers = Vec::new();
    for process in workload.processes {
        let path_index = |id: FileId| {
            let path_index = data.file_starts[id.0 as usize].path_index;
            path_index.expect("a process reads files with bytes only")
        };
        let files = process.files().into_iter().map(|id| Ok((id, open(path_index(id))?)));
        let files: io::Result<Vec<(FileId, ReadExactAt)>> = files.collect();
        readers.push((process, files?));
    }
    let counters_by_process: Vec<io::Result<ReadCounters>> = std::thread::scope(|scope| {
        let threads: Vec<_> = readers
            .into_iter()
            .map(|(process, files)| {
                let (file_starts, start) = (&data.file_starts, &start);
                scope.spawn(move || read_process(process, files, file_starts, start))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|read_counters| read_counters.expect("a reader does not panic")).collect()
    });
    let mut total = ReadCounters::default();
    for read_counters in counters_by_process {
        total.add(&read_counters?);
    }
    // Rows of modelled workloads without a job file have the same name.
    let job_name = "listed";
    Ok(ResultRow::new(job_name, storage, &total))
}

/// Performs the reads of one process sequentially, after all threads have reached the barrier
/// `start`. `file_starts` has the start of each file of the workload. A file is closed with the
/// last operation on it. The first failed read ends the process.
fn read_process(
    mut process: Process,
    mut files: Vec<(FileId, ReadExactAt)>,
    file_starts: &[FileStart],
    start: &Barrier,
) -> io::Result<ReadCounters> {
    // Writing ones makes the pages of the buffer resident before the first read.
    let mut buffer = vec![1; process.block_bytes_max() as usize];
    start.wait();
    let clock = Clock::start();
    let mut read_counters = ReadCounters::default();
    loop {
        let issued = clock.now();
        match process.next(issued) {
            NextAction::Operation(operation) => {
                let index = files.iter().position(|(id, _)| *id == operation.file);
                let index = index.expect("the files of a process are known");
                let read_at = &files[index].1;
                let offset = file_starts[operation.file.0 as usize].offset + operation.offset;
                read_at(&mut buffer[..operation.bytes as usize], offset)?;
                std::hint::black_box(&buffer);
                let ended = clock.now();
                read_counters.record(issued, ended, operation.bytes);
                process.completed(ended);
                if operation.closes {
                    drop(files.swap_remove(index));
                }
            }
            NextAction::Ended => return Ok(read_counters),
            NextAction::WaitUntil(_) | NextAction::WaitForCompletion | NextAction::Sync { .. } => {
                unreachable!("the process has one read in flight and no think times")
            }
        }
    }
}
