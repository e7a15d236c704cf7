//! Trace of block requests: its format, its summary, and the options of its replay.
use std::borrow::Cow;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use readpath_core::request::Op;
use readpath_core::unit::Time;
use readpath_sim::job::{self, Job, JobEngine, JobFile, LogOptions, ReplayOptions, printable};
use readpath_sim::workload::Workload;
use readpath_trace::TraceError;
use readpath_trace::block_trace::{
    self, FORMATS, OPEN_DEPTH, TraceFormat, TracePlacement, TraceReader, TraceRequest, TraceSummary,
};

use readpath_trace::recording::strace;

use super::storage::Storage;
use super::trace_options::refuse_ignored_options;
use crate::args::RunArgs;
use crate::exit::{CommandResult, Failure};
use crate::note;
use crate::packed;

/// Maximum number of requests in flight on real storage in an *open* replay, which keeps the
/// trace's own times. Chosen, not measured.
const OPEN_DEPTH_REAL: u32 = 256;

/// Maximum memory of these requests in bytes. Each has a buffer of the largest request's size; a
/// single request may take more. Chosen, not measured.
const OPEN_BYTES_REAL: u64 = 1 << 30;

/// Trace after one pass over its file.
pub struct TraceSource {
    /// Path of the trace, which the replay reads again.
    pub path: PathBuf,
    /// Format of the trace.
    format: TraceFormat,
    /// Requests, bytes and devices, after the transformation.
    pub summary: TraceSummary,
    /// Caveats: the event read in place of queued requests that the trace lacks, left-out syncs and
    /// trims, and requests with an earlier time than one before them.
    note: Option<String>,
    /// Speed of the replay in thousandths of the recorded speed. `None`: operations follow each
    /// other without their recorded times.
    speed_milli: Option<u64>,
    /// Maximum number of operations in flight.
    depth: u32,
    /// Changes to each request, which a job may request.
    transform: RequestTransform,
    /// Largest power of two that divides all offsets and sizes, in bytes.
    granularity_bytes: u64,
    /// True if the replay widens requests to the blocks of the storage. A trace on the command line
    /// may be of reads through the cache. The direct I/O of a job is the job's own choice.
    widens: bool,
    /// True if all devices of the trace are mapped to one (`replay_redirect`).
    is_redirected: bool,
    /// Engine of the job that stands for the trace.
    engine: JobEngine,
    /// True if the replay uses direct I/O.
    is_direct: bool,
    /// Logs that the job requests; none for a trace on the command line.
    logs: LogOptions,
    /// Longest time of the replay; `None`: up to the end of the trace.
    runtime: Option<Time>,
    /// Delay of the replay after the start of the run.
    start_delay: Time,
    /// True if a replay has found fewer requests than the pass for the summary.
    is_cut_short: Arc<AtomicBool>,
}

/// Requests of a replay, at most as many as the pass for the summary has counted.
struct CountedRequests<I> {
    /// Requests of the second pass.
    requests: I,
    /// Number of counted requests that are still to come.
    left: u64,
    /// Set at an end of `requests` with some left.
    is_cut_short: Arc<AtomicBool>,
}

impl<I: Iterator<Item = TraceRequest>> Iterator for CountedRequests<I> {
    type Item = TraceRequest;

    fn next(&mut self) -> Option<TraceRequest> {
        self.left = self.left.checked_sub(1)?;
        let request = self.requests.next();
        if request.is_none() {
            self.is_cut_short.store(true, Ordering::Relaxed);
        }
        request
    }
}

/// Transformation of each request before its replay (`replay_scale` and others).
#[derive(Clone, Copy, Debug)]
struct RequestTransform {
    /// Sizes in bytes of the blocks to which reads and writes are widened, reads first. 1 changes
    /// nothing.
    widened_to: [u64; 2],
    /// Divisor of the offsets.
    scale: u64,
    /// Multiple to which the offsets are rounded down.
    align_bytes: u64,
    /// True for the directions that are left out: reads, writes.
    skips: [bool; 2],
}

impl RequestTransform {
    /// Leaves every request as it is.
    const NONE: RequestTransform =
        RequestTransform { widened_to: [1; 2], scale: 1, align_bytes: 1, skips: [false; 2] };

    /// Applies the changes to a request: scaled and aligned offset, and then whole blocks. `None`
    /// if its direction is skipped.
    fn apply(self, request: TraceRequest) -> Option<TraceRequest> {
        let start = request.offset / self.scale / self.align_bytes * self.align_bytes;
        let block_bytes = self.widened_to[request.op as usize];
        let end = (start + request.bytes).div_ceil(block_bytes) * block_bytes;
        let offset = start / block_bytes * block_bytes;
        let bytes = end - offset;
        (!self.skips[request.op as usize]).then_some(TraceRequest { offset, bytes, ..request })
    }
}

/// Result of one pass over a trace.
struct TracePass {
    /// Requests, bytes and devices, after the transformation.
    summary: TraceSummary,
    /// Caveat of the reader.
    note: Option<String>,
    /// Largest power of two that divides all offsets and sizes, in bytes.
    granularity_bytes: u64,
    /// Bits that are set in the offset or the size of any write.
    write_bits: u64,
    /// Number of requests that were widened.
    widened_count: u64,
}

impl TracePass {
    /// Reads the whole trace, and returns the result for the requests that `transform` keeps. A
    /// malformed request is an error, and so is a trace of which none is kept.
    fn read(
        path: &Path,
        format: TraceFormat,
        transform: RequestTransform,
    ) -> Result<TracePass, Failure> {
        let failure = |error: &dyn std::fmt::Display| {
            Failure::usage_of(printable(&path.display().to_string()), error)
        };
        let mut reader = TraceReader::new(packed::open(path)?, format);
        // Bits that are set in any offset or size, and number of widened requests.
        let (mut set_bits, mut write_bits, mut widened_count) = (0, 0, 0);
        let mut has_skipped = false;
        let kept = reader.by_ref().filter_map(|request| {
            let request = match request {
                Ok(request) => request,
                Err(error) => return Some(Err(error)),
            };
            let Some(kept) = transform.apply(request) else {
                has_skipped = true;
                return None;
            };
            let bits = kept.offset | kept.bytes;
            set_bits |= bits;
            if kept.op == Op::Write {
                write_bits |= bits;
            }
            // Only widening changes the size of a request.
            widened_count += u64::from(kept.bytes != request.bytes);
            Some(Ok(kept))
        });
        let summary = match TraceSummary::of(kept) {
            Err(TraceError::Empty { .. }) if has_skipped => {
                let name = printable(&path.display().to_string());
                let text = format!("replay_skip leaves no request of {name}; take it out");
                return Err(Failure::Usage(text));
            }
            summary => summary.map_err(|error| failure(&error))?,
        };
        // The summary has at least one request, and a request one byte: a bit is set.
        let granularity_bytes = 1 << set_bits.trailing_zeros();
        let note = note::join(reader.note().map(str::to_owned), reader.left_out_note());
        let note = note::join(note, reader.time_order_note());
        Ok(TracePass { summary, note, granularity_bytes, write_bits, widened_count })
    }
}

impl TraceSource {
    /// Returns the trace on the command line, or `None` for a job file. With `--closed N`, up to N
    /// operations are in flight, without the recorded times.
    pub fn of(args: &RunArgs) -> Result<Option<TraceSource>, Failure> {
        let format = match &args.trace {
            Some(name) => Some(find_format(name)?),
            None => {
                let first_bytes = first_bytes(&args.job)?;
                if strace::is_start(&first_bytes) {
                    return Err(Failure::usage_of(
                        printable(&args.job.display().to_string()),
                        "is the text of strace; make a recording of it by `readpath recording \
                         import`, and name that",
                    ));
                }
                TraceFormat::detect(&first_bytes)
            }
        };
        let Some(format) = format else {
            return match (args.speed, args.closed) {
                (None, None) => Ok(None),
                _ => Err(Failure::Usage(format!(
                    "--speed and --closed are for traces, and {} is a job file; leave them out",
                    printable(&args.job.display().to_string())
                ))),
            };
        };
        // The speed is kept in thousandths, of which it has at least one.
        let speed = args.speed.unwrap_or(1.0);
        if !(0.001..=1e6).contains(&speed) {
            return Err(Failure::Usage(format!(
                "--speed {speed}: give a factor from 0.001 to 1000000"
            )));
        }
        let speed_milli = args.closed.is_none().then_some((speed * 1e3).round() as u64);
        let depth = args.closed.map_or(OPEN_DEPTH, std::num::NonZero::get);
        let runtime = args.runtime.as_deref().map(runtime_limit).transpose()?.flatten();
        let transform = RequestTransform::NONE;
        let read = TraceSource::read(&args.job, format, speed_milli, depth, transform)?;
        Ok(Some(TraceSource { runtime, widens: true, ..read }))
    }

    /// Returns the trace named by a job (`read_iolog`), or `None` without one.
    pub fn of_jobs(jobs: &JobFile, job_file: &Path) -> Result<Option<TraceSource>, Failure> {
        let replay_options = |job: &Job| job.replay.clone();
        let Some(replay) = jobs.jobs.iter().find_map(replay_options) else { return Ok(None) };
        let ReplayOptions { names, keeps_times, time_percent, scale, align_bytes, redirect, skips } =
            replay;
        let [name] = names.as_slice() else {
            return Err(Failure::usage_of(
                job_file.display(),
                "read_iolog names several traces; replay one at a time",
            ));
        };
        if jobs.jobs.len() > 1 {
            return Err(Failure::usage_of(
                job_file.display(),
                "a job with read_iolog runs alone; give it a file of its own",
            ));
        }
        // Relative to the current folder or, if it does not exist there, to the job file's folder.
        let in_current_folder = PathBuf::from(name);
        let path = match job_file.parent().map(|folder| folder.join(name)) {
            Some(next_to_job_file) if !in_current_folder.exists() => next_to_job_file,
            _ => in_current_folder,
        };
        refuse_ignored_options(&jobs.jobs[0], job_file)?;
        check_is_file(&path)?;
        let format = TraceFormat::detect(&first_bytes(&path)?).ok_or_else(|| {
            Failure::usage_of(
                printable(&path.display().to_string()),
                "is no trace in a format that is known",
            )
        })?;
        // One percent of the recorded speed is 10 thousandths of it.
        let speed_milli = keeps_times.then(|| u64::from(time_percent) * 10);
        let transform =
            RequestTransform { scale: scale.into(), align_bytes, skips, ..RequestTransform::NONE };
        let job = &jobs.jobs[0];
        // Reads through the cache with their own times run one at a time, as the kernel executes
        // them.
        let is_one_by_one = keeps_times && !job.is_direct;
        let depth = if is_one_by_one { 1 } else { job.depth };
        let read = TraceSource::read(&path, format, speed_milli, depth, transform)?;
        Ok(Some(TraceSource {
            is_redirected: redirect.is_some(),
            engine: job.engine,
            is_direct: job.is_direct,
            logs: job.logs.clone(),
            runtime: job.runtime,
            start_delay: job.start_delay,
            ..read
        }))
    }

    /// Reads the whole trace once for its summary. The result has direct I/O, the engine libaio,
    /// and the defaults of all other options. The caller replaces the ones that differ.
    fn read(
        path: &Path,
        format: TraceFormat,
        speed_milli: Option<u64>,
        depth: u32,
        transform: RequestTransform,
    ) -> Result<TraceSource, Failure> {
        check_is_file(path)?;
        let pass = TracePass::read(path, format, transform)?;
        Ok(TraceSource {
            path: path.to_owned(),
            format,
            summary: pass.summary,
            note: pass.note,
            speed_milli,
            depth,
            transform,
            granularity_bytes: pass.granularity_bytes,
            widens: false,
            is_redirected: false,
            engine: JobEngine::Libaio,
            is_direct: true,
            logs: LogOptions::default(),
            runtime: None,
            start_delay: Time::ZERO,
            is_cut_short: Arc::default(),
        })
    }

    /// Returns a job with the direction, engine and depth of the trace's operations, and the times
    /// of the replay. Its size is a placeholder: offsets and sizes come from the trace.
    pub fn job(&self) -> JobFile {
        let rw = match self.summary.writes {
            0 => "read",
            writes if writes == self.summary.requests => "write",
            _ => "rw",
        };
        // A job file accepts a depth of at most `OPEN_DEPTH`. `--closed` may name a larger one.
        let depth = self.depth.min(OPEN_DEPTH);
        let (engine, is_direct) = (self.engine.name(), u8::from(self.is_direct));
        let text = format!(
            "[trace]\nrw={rw}\nioengine={engine}\ndirect={is_direct}\nsize=4k\niodepth={depth}\n\
             fadvise_hint=0\n"
        );
        let mut file = JobFile::parse(&text).expect("the text is well formed");
        for job in &mut file.jobs {
            job.logs.clone_from(&self.logs);
            (job.runtime, job.start_delay) = (self.runtime, self.start_delay);
        }
        file
    }

    /// Returns the workload on a storage of `storage_bytes` bytes, and a caveat: the one of the
    /// trace, its placement and widened requests. `is_real` is true for real storage, on which
    /// fewer operations are open at once, and writes are not widened. The storage accepts direct
    /// transfers of whole blocks of `block_bytes` bytes. A widened read may end behind a real file,
    /// within its last block.
    pub fn workload(
        &self,
        storage_bytes: u64,
        block_bytes: u64,
        is_real: bool,
    ) -> Result<(Workload, Option<String>), Failure> {
        let failure = |error: &dyn std::fmt::Display| {
            Failure::usage_of(printable(&self.path.display().to_string()), error)
        };
        let mut job = self.job().jobs.remove(0);
        let (transform, summary, widened_note) = self.widened(block_bytes, is_real)?;
        // Each open operation on real storage has a buffer as large as the largest request; one is
        // always allowed. The user chose the depth of a replay without times, which stays.
        if is_real && self.speed_milli.is_some() {
            let operations_max = (OPEN_BYTES_REAL / summary.largest_bytes.max(1)).max(1);
            let depth_max = OPEN_DEPTH_REAL.min(u32::try_from(operations_max).unwrap_or(u32::MAX));
            job.depth = job.depth.min(depth_max);
            // The depth to which a full queue is drained stays within it.
            job.low = job.low.min(job.depth);
        }
        // The last block of a file may be part of one: a widened read ends behind the file. Writes
        // there would make the file longer.
        let placed_on_bytes = match is_real && summary.writes == 0 {
            true => storage_bytes.next_multiple_of(transform.widened_to[Op::Read as usize]),
            false => storage_bytes,
        };
        let placement = TracePlacement::new(&summary, placed_on_bytes, self.is_redirected)
            .in_blocks_of(block_bytes);
        if placement.bytes < summary.largest_bytes {
            return Err(failure(&format!(
                "a request of {} bytes is larger than the storage, which has {}",
                summary.largest_bytes, placement.bytes
            )));
        }
        let note = note::join(self.note.clone(), placement.note.clone());
        let note = note::join(note, widened_note);
        let requests = TraceReader::new(packed::open(&self.path)?, self.format)
            // The pass for the summary has reported every error of the file. Another one ends the
            // requests too early, which is reported after the replay.
            .map_while(Result::ok)
            .filter_map(move |request| transform.apply(request));
        let is_cut_short = Arc::clone(&self.is_cut_short);
        let requests = CountedRequests { requests, left: summary.requests, is_cut_short };
        let workload =
            block_trace::trace_workload(&job, &summary, placement, self.speed_milli, requests);
        Ok((workload, note))
    }

    /// Returns the transformation of the requests on a storage with blocks of `block_bytes` bytes,
    /// the summary after it, and a caveat with the number of widened requests. Reads the trace
    /// again unless its requests fit the blocks. Writes to real storage are not widened: they would
    /// overwrite the bytes next to them. They are refused if they do not fit: the kernel and a
    /// batch reject them, and a single one also reads the blocks at its edges.
    fn widened(
        &self,
        block_bytes: u64,
        is_real: bool,
    ) -> Result<(RequestTransform, Cow<'_, TraceSummary>, Option<String>), Failure> {
        if !self.widens || self.granularity_bytes.is_multiple_of(block_bytes) {
            return Ok((self.transform, Cow::Borrowed(&self.summary), None));
        }
        let written_block_bytes = if is_real { 1 } else { block_bytes };
        let widened_to = [block_bytes, written_block_bytes];
        let transform = RequestTransform { widened_to, ..self.transform };
        let pass = TracePass::read(&self.path, self.format, transform)?;
        if is_real && !pass.write_bits.is_multiple_of(block_bytes) {
            let name = printable(&self.path.display().to_string());
            return Err(Failure::Usage(format!(
                "{name}: its writes are no whole blocks of {block_bytes} bytes; replay it through \
                 the cache, by a job with read_iolog={name} and ioengine=psync"
            )));
        }
        let note = (pass.widened_count > 0).then(|| {
            format!(
                "{} of {} requests widened to whole blocks of {block_bytes} bytes",
                pass.widened_count, pass.summary.requests
            )
        });
        Ok((transform, Cow::Owned(pass.summary), note))
    }

    /// Returns the total length in bytes of all devices of the trace, laid out one after the other.
    pub fn bytes(&self) -> u64 {
        let any_storage_bytes = u64::MAX;
        TracePlacement::new(&self.summary, any_storage_bytes, self.is_redirected).bytes
    }

    /// Fails if a replay has found fewer requests than the pass for the summary.
    pub fn check_replayed(&self) -> CommandResult {
        match self.is_cut_short.load(Ordering::Relaxed) {
            true => Err(Failure::Run(format!(
                "{}: {} requests were counted, and the replay has found fewer; leave the trace \
                 unchanged during the run",
                printable(&self.path.display().to_string()),
                self.summary.requests
            ))),
            false => Ok(()),
        }
    }

    /// Refuses files on a server, which cannot replay a trace. The caller has refused regions.
    pub fn check_storages(&self, storages: &[Storage]) -> CommandResult {
        for storage in storages {
            if let Storage::Nfs(_) = storage {
                return Err(Failure::Usage(format!(
                    "{storage}: a trace is replayed past the cache, and a server's file is read \
                     through it; name file:PATH, kernel:PATH or a modelled device"
                )));
            }
        }
        Ok(())
    }
}

/// Returns the trace format of that name. An unknown name is refused, with the known ones.
fn find_format(name: &str) -> Result<TraceFormat, Failure> {
    let entry = FORMATS.iter().find(|(format_name, _)| *format_name == name);
    entry.map(|(_, format)| *format).ok_or_else(|| {
        let names = FORMATS.map(|(name, _)| name).join(", ");
        Failure::Usage(format!("--trace {}: expected one of {names}", printable(name)))
    })
}

/// Refuses a trace that is no regular file, such as a pipe: it can be read only once. A missing
/// file passes: the later read reports it.
pub fn check_is_file(path: &Path) -> CommandResult {
    match path.exists() && !path.is_file() {
        true => Err(Failure::usage_of(
            printable(&path.display().to_string()),
            "a trace is read twice; name a file",
        )),
        false => Ok(()),
    }
}

/// Parses the time of `--runtime`. `None` for 0, which sets no limit.
fn runtime_limit(text: &str) -> Result<Option<Time>, Failure> {
    let limit = job::span(text).map_err(|expected| {
        Failure::Usage(format!("--runtime {}: expected {expected}", printable(text)))
    })?;
    Ok((limit > Time::ZERO).then_some(limit))
}

/// Returns the first bytes of a file, unpacked, to detect its format. Empty for a missing file and
/// a pipe: a later read reports the error, or finds a job in the pipe.
fn first_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let failure =
        |error: std::io::Error| Failure::usage_of(printable(&path.display().to_string()), error);
    Ok(packed::open(path)?.fill_buf().map_err(failure)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace of three requests, of which the second pass finds two, three or four.
    #[test]
    fn second_pass_with_fewer_requests_is_noticed() {
        let request =
            TraceRequest { at: Time::ZERO, device: 0, op: Op::Read, offset: 0, bytes: 512 };
        for (found, expected) in [(2, (2, true)), (3, (3, false)), (4, (3, false))] {
            let is_cut_short = Arc::new(AtomicBool::new(false));
            let requests = std::iter::repeat_n(request, found);
            let flag = Arc::clone(&is_cut_short);
            let counted = CountedRequests { requests, left: 3, is_cut_short: flag }.count();
            assert_eq!((counted, is_cut_short.load(Ordering::Relaxed)), expected);
        }
    }
}
