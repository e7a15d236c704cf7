//! `readpath worker replay`: replays one row on real storage in its own process. `readpath replay`
//! starts it. A *row* is the recorded program with one storage, one size of memory, and one choice
//! of policies, or the kernel.
//!
//! The process is a [`worker`](crate::worker) of that run. The protocol: [`ReplayOrder`], answered
//! by [`ReplayReply::Ready`]; then [`ReplayBegin`], answered by [`ReplayReply::Played`].
//!
//! The loop is closed, as in the model. Each recorded thread is replayed by one worker thread per
//! read that it had in flight. After a read, a worker takes the next one, waits for the recorded
//! think time, and reads. Workers of one recorded thread never think at the same time, as the
//! original thread could not. Advice is given at its moment of that time. A file is opened at its
//! first read, within that think time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use readpath::raw::RawMemory;
use readpath_core::unit::{PAGE_BYTES, Time};
use readpath_eval::clock::Clock;
use readpath_sim::workload::{FileId, GivenAdvice, GivenRead, ReadList};
use readpath_trace::TraceError;
use readpath_trace::recording::RecordingReader;
use readpath_trace::replay::{RecordedProgram, RecordingInput};
use serde::{Deserialize, Serialize};

use super::read_methods::{OpenedFile, ReadMethods, ReplayOrder};
use crate::exit::{CommandResult, Failure};
use crate::recordings::open_buffered;
use crate::worker::{Orders, WorkerTask, write_answer};

/// Part of a think time that is spent spinning. A sleep ends late: 50 µs by the kernel's timer
/// slack, plus the scheduling delay.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// Memory of the process in addition to its buffers: stacks and handles. An estimate.
const PROCESS_BYTES: u64 = 4 << 20;

/// Order to start: the memory is limited, and no page of the files is resident.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReplayBegin;

/// Answer of the process.
#[derive(Debug, Serialize, Deserialize)]
pub enum ReplayReply {
    /// The recording has been loaded.
    Ready {
        /// Memory that the process needs for itself.
        own_bytes: u64,
    },
    /// All reads have been made.
    Played(Played),
    /// The replay failed, for the given reason.
    Failed(String),
}

/// Measurements of the replay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Played {
    /// Time from the start to the end of the last read.
    pub seconds: f64,
    /// Device requests of the library, where it counts them.
    pub device_requests: Option<u64>,
    /// Bytes read from storage during the replay, where they are counted.
    pub device_bytes: Option<u64>,
    /// Caveat about the figures.
    pub note: Option<String>,
}

/// Takes the order, loads the recording, and reports the memory that the process needs. Then waits
/// for the order to begin, replays, and answers.
pub fn run() -> CommandResult {
    let mut orders = Orders::from_stdin(WorkerTask::Replay);
    let order: ReplayOrder = orders.next()?;
    let recorded = load_recording(&order)?;
    let own_bytes = PROCESS_BYTES + recorded.threads().iter().map(all_buffers_bytes).sum::<u64>();
    write_answer(&ReplayReply::Ready { own_bytes })?;
    let _: ReplayBegin = orders.next()?;
    write_answer(&match replay_all(&order, &recorded) {
        Ok(played) => ReplayReply::Played(played),
        Err(problem) => ReplayReply::Failed(problem),
    })
}

/// Loads the recording. The parent process has already reported a truncated one.
fn load_recording(order: &ReplayOrder) -> Result<RecordedProgram, Failure> {
    let failure = |error: TraceError| Failure::usage_of(order.recording.0.display(), error);
    let mut gathered = RecordingInput::default();
    for record in RecordingReader::new(open_buffered(&order.recording.0)?).map_err(failure)? {
        match record {
            Ok(record) => gathered.take(&record),
            Err(TraceError::Cut { .. }) => break,
            Err(error) => return Err(failure(error)),
        }
    }
    let no_reads = || Failure::usage_of(order.recording.0.display(), "has no read to replay");
    gathered.finish().ok_or_else(no_reads)
}

/// Size of the buffers of all workers of a thread, in bytes.
fn all_buffers_bytes(thread: &ReadList) -> u64 {
    let largest_bytes = thread.reads.iter().map(|read| read.bytes).max().unwrap_or(0);
    // Bytes of a mapping are resident twice: in the mapping and in the copy.
    2 * u64::from(thread.depth) * largest_bytes.next_multiple_of(PAGE_BYTES)
}

/// Makes all reads with all workers, and measures them from the workers' common start. Returns the
/// first error.
fn replay_all(order: &ReplayOrder, recorded: &RecordedProgram) -> Result<Played, String> {
    let methods = ReadMethods::new(order, recorded)?;
    let recorded_threads: Vec<RecordedThread<'_>> = recorded
        .threads_with_advice()
        .map(|thread| RecordedThread::new(thread, &methods))
        .collect();
    let worker_count: usize =
        recorded_threads.iter().map(|recorded| recorded.thread.depth as usize).sum();
    // All workers and this thread.
    let barrier = Barrier::new(worker_count + 1);
    let (clock, has_failed) = (OnceLock::new(), AtomicBool::new(false));
    let last_end = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for recorded_thread in &recorded_threads {
            for _ in 0..recorded_thread.thread.depth {
                let memory = RawMemory::new(worker_buffer_bytes(recorded_thread.thread) as usize);
                let memory = memory.map_err(|error| error.to_string());
                let (barrier, clock, has_failed) = (&barrier, &clock, &has_failed);
                threads.push(scope.spawn(move || {
                    // A worker without memory waits too: the barrier counts all workers.
                    barrier.wait();
                    let clock = *clock.get_or_init(Clock::start);
                    let result = memory.and_then(|mut memory| {
                        recorded_thread.replay_reads(&mut memory, clock, has_failed)
                    });
                    has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    result
                }));
            }
        }
        barrier.wait();
        let mut last_end = Time::ZERO;
        for thread in threads {
            let joined = thread.join().map_err(|_| "a thread has panicked".to_owned())?;
            last_end = last_end.max(joined?);
        }
        Ok::<Time, String>(last_end)
    })?;
    // Their read functions end before the counts are read.
    drop(recorded_threads);
    let (device_requests, device_bytes) = methods.device_counts();
    Ok(Played { seconds: last_end.seconds(), device_requests, device_bytes, note: methods.note() })
}

/// Returns the size of one worker's buffer in bytes: the thread's largest read, in whole pages; one
/// page for a thread without reads.
fn worker_buffer_bytes(thread: &ReadList) -> u64 {
    let largest_bytes = thread.reads.iter().map(|read| read.bytes).max().unwrap_or(1);
    largest_bytes.next_multiple_of(PAGE_BYTES)
}

/// Reads of one recorded thread, shared by its workers.
struct RecordedThread<'a> {
    /// Reads in their order, with the think time before each.
    thread: &'a ReadList,
    /// Advice of the thread, in order.
    advice: &'a [GivenAdvice],
    /// Read methods of the row.
    methods: &'a ReadMethods<'a>,
    /// Index of the last read of each file, after which the file is closed.
    last_read_indices: BTreeMap<FileId, usize>,
    /// Next read and open files. A worker holds the lock while it thinks, so only one does.
    cursor: Mutex<ReplayCursor>,
}

/// State of the workers' turns: the next read, and the open files.
#[derive(Default)]
struct ReplayCursor {
    /// Index of the next read.
    next_index: usize,
    /// Index of the next advice.
    next_advice_index: usize,
    /// Time at which the last read was started.
    last_start: Time,
    /// The files that are open.
    open_files: BTreeMap<FileId, Arc<OpenedFile>>,
}

impl<'a> RecordedThread<'a> {
    /// Prepares the replay of a recorded thread, from its first read.
    fn new(
        (thread, advice): (&'a ReadList, &'a [GivenAdvice]),
        methods: &'a ReadMethods<'a>,
    ) -> RecordedThread<'a> {
        let indices = thread.reads.iter().enumerate().map(|(index, read)| (read.file, index));
        // A later read of a file replaces the index of an earlier one.
        let last_read_indices = indices.collect();
        RecordedThread { thread, advice, methods, last_read_indices, cursor: Mutex::default() }
    }

    /// Makes reads until none is left or a worker has failed. Returns the end of this worker's last
    /// read, or 0 without a read.
    fn replay_reads(
        &self,
        memory: &mut RawMemory,
        clock: Clock,
        has_failed: &AtomicBool,
    ) -> Result<Time, String> {
        let mut last_end = Time::ZERO;
        while !has_failed.load(Ordering::Relaxed) {
            let Some((read, opened)) = self.next_read(last_end, clock)? else { break };
            let bytes = match self.thread.is_direct {
                // The end of a file may be no whole block, but a direct transfer must be one.
                true => read.bytes.next_multiple_of(PAGE_BYTES),
                false => read.bytes,
            };
            (opened.read)(&mut memory[..bytes as usize], read.offset).map_err(|problem| {
                let name = self.methods.file_name(read.file);
                format!("{name} at byte {}: {problem}", read.offset)
            })?;
            last_end = clock.now();
        }
        Ok(last_end)
    }

    /// Takes the next read of the thread, and opens its file if it is not open. Waits for the
    /// read's think time, counted from the later of two times: the end of this worker's last read
    /// (`last_end`), and the start of the thread's last read. Returns the read with its open file;
    /// `None` after the last read. Other workers of the thread wait meanwhile.
    fn next_read(
        &self,
        last_end: Time,
        clock: Clock,
    ) -> Result<Option<(GivenRead, Arc<OpenedFile>)>, String> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let index = cursor.next_index;
        self.give_advice(&mut cursor, last_end, clock)?;
        let Some(&read) = self.thread.reads.get(index) else { return Ok(None) };
        cursor.next_index += 1;
        let opened = self.opened_file(&mut cursor, read.file)?;
        // The file closes when this read, its last one, has ended.
        if self.last_read_indices[&read.file] == index {
            cursor.open_files.remove(&read.file);
        }
        wait_until(last_end.max(cursor.last_start) + self.thread.think_times[index], clock);
        cursor.last_start = clock.now();
        Ok(Some((read, opened)))
    }

    /// Gives the advice that precedes the next read, each at its own moment of the think time. A
    /// file without a later read closes afterwards, unless the next advice is about it too.
    fn give_advice(
        &self,
        cursor: &mut ReplayCursor,
        last_end: Time,
        clock: Clock,
    ) -> Result<(), String> {
        let begin = last_end.max(cursor.last_start);
        while let Some(given) = self.advice.get(cursor.next_advice_index)
            && given.reads_before <= cursor.next_index
        {
            cursor.next_advice_index += 1;
            let opened = self.opened_file(cursor, given.file)?;
            wait_until(begin + given.think_time, clock);
            (opened.advise)(given.advice, given.offset, given.bytes);
            let last_read_index = self.last_read_indices.get(&given.file);
            let is_read_later = last_read_index.is_some_and(|&index| index >= cursor.next_index);
            let next = self.advice.get(cursor.next_advice_index);
            if !is_read_later && next.is_none_or(|next| next.file != given.file) {
                cursor.open_files.remove(&given.file);
            }
        }
        Ok(())
    }

    /// Returns a file of the thread, and opens it if it is not open.
    fn opened_file(
        &self,
        cursor: &mut ReplayCursor,
        file: FileId,
    ) -> Result<Arc<OpenedFile>, String> {
        if let Some(opened) = cursor.open_files.get(&file) {
            return Ok(Arc::clone(opened));
        }
        let opened = Arc::new(self.methods.open_file(file, self.thread)?);
        cursor.open_files.insert(file, Arc::clone(&opened));
        Ok(opened)
    }
}

/// Waits until `time`: sleeps, then spins for the last part.
fn wait_until(time: Time, clock: Clock) {
    let time_left = clock.until(time);
    if time_left > SPIN_TIME {
        std::thread::sleep(time_left - SPIN_TIME);
    }
    while clock.now() < time {
        std::hint::spin_loop();
    }
}
