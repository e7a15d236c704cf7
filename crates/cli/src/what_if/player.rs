//! `readpath replay-one`: one row's reads on real storage, in a process of its own, started by `readpath replay`.
//!
//! It is a [`part`](crate::part) of that run: an [`ReplayOrder`], then [`ReplayReply::Ready`]; [`ReplayBegin`], then
//! [`ReplayReply::Played`].
//!
//! The loop is closed, as in the model. A thread that was recorded is a thread here, or several where it had several reads in
//! flight: one for each. Who has its read done takes the next one, thinks for as long as the program did, and then
//! reads; two never think at once, as the program's one thread could not. Files are opened when they are first read, in
//! the time of that thought.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use readpath::raw::RawMemory;
use readpath_core::unit::{PAGE_BYTES, Time};
use readpath_peers::clock::Clock;
use readpath_sim::recording::{RecordingError, RecordingReader};
use readpath_sim::what_if::{RecordedProgram, RecordingInput};
use readpath_sim::workload::{FileId, GivenRead, ReadList};
use serde::{Deserialize, Serialize};

use super::ways::{Door, Ways};
use crate::exit::{CommandResult, Failure};
use crate::part::{OrderPath, Orders, say};
use crate::recordings::opened;

/// The subcommand.
pub const NAME: &str = "replay-one";

/// A sleep ends later than it was asked to: 50 µs by the kernel's timer slack, and the way to a processor. The rest of
/// a thought is waited out on the processor.
const SPIN: Duration = Duration::from_micros(100);

/// What the process has in memory beside its buffers once it reads: stacks and handles.
const OWN_BYTES: u64 = 4 << 20;

/// What is to be read, and how.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReplayOrder {
    /// The recording.
    pub recording: OrderPath,
    /// The scratch files, in the order of [`RecordedProgram::files`].
    pub files: Vec<OrderPath>,
    /// By the library under these laws, or else by the kernel.
    pub policies: Option<Policies>,
    /// The library's memory; the kernel's is limited from outside.
    pub memory_bytes: Option<u64>,
}

/// The library's laws, in words.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Policies {
    /// What is read ahead.
    pub readahead: String,
    /// What stays.
    pub eviction: String,
    /// In which order requests go out.
    pub scheduler: String,
}

/// Memory is limited, and nothing of the files is held: begin.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReplayBegin;

/// What it says.
#[derive(Debug, Serialize, Deserialize)]
pub enum ReplayReply {
    /// It has the recording.
    Ready {
        /// The memory that it will take for itself.
        own_bytes: u64,
    },
    /// All reads are made.
    Played(Played),
    /// They can't be made, and why.
    Failed(String),
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Played {
    /// From the start to the end of the last read.
    pub seconds: f64,
    /// What the library asked its device for, where it counts it.
    pub device_requests: Option<u64>,
    /// What was read from storage meanwhile, where it is counted.
    pub device_bytes: Option<u64>,
    /// What a reader must know of it.
    pub note: Option<String>,
}

/// Takes the orders and carries them out.
pub fn run() -> CommandResult {
    let mut orders = Orders::take(NAME, "replay");
    let order: ReplayOrder = orders.next()?;
    let recorded = recorded(&order)?;
    let own_bytes = OWN_BYTES + recorded.threads().iter().map(buffers_bytes).sum::<u64>();
    say(&ReplayReply::Ready { own_bytes })?;
    let _: ReplayBegin = orders.next()?;
    say(&match play(&order, &recorded) {
        Ok(played) => ReplayReply::Played(played),
        Err(problem) => ReplayReply::Failed(problem),
    })
}

/// Whoever gave the order has told of a recording that is cut off.
fn recorded(order: &ReplayOrder) -> Result<RecordedProgram, Failure> {
    let about = |error: RecordingError| Failure::about(order.recording.0.display(), error);
    let mut gathered = RecordingInput::default();
    for record in RecordingReader::new(opened(&order.recording.0)?).map_err(about)? {
        match record {
            Ok(record) => gathered.take(&record),
            Err(RecordingError::Cut { .. }) => break,
            Err(error) => return Err(about(error)),
        }
    }
    let nothing = || Failure::about(order.recording.0.display(), "has nothing to be read again");
    gathered.finish().ok_or_else(nothing)
}

fn buffers_bytes(thread: &ReadList) -> u64 {
    let largest = thread.readings.iter().map(|reading| reading.bytes).max().unwrap_or(0);
    // A mapping's bytes are copied twice here.
    2 * u64::from(thread.depth) * largest.next_multiple_of(PAGE_BYTES)
}

/// Makes all reads, and measures.
fn play(order: &ReplayOrder, recorded: &RecordedProgram) -> Result<Played, String> {
    let ways = Ways::new(order, recorded)?;
    let lines: Vec<RecordedThread<'_>> =
        recorded.threads().iter().map(|thread| RecordedThread::new(thread, &ways)).collect();
    let workers: usize = recorded.threads().iter().map(|thread| thread.depth as usize).sum();
    let barrier = Barrier::new(workers + 1);
    let (clock, is_over) = (OnceLock::new(), AtomicBool::new(false));
    let last = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for line in &lines {
            for _ in 0..line.thread.depth {
                let memory = RawMemory::new(buffer_bytes(line.thread) as usize);
                let memory = memory.map_err(|error| error.to_string());
                let (barrier, clock, is_over) = (&barrier, &clock, &is_over);
                threads.push(scope.spawn(move || {
                    barrier.wait();
                    let clock = *clock.get_or_init(Clock::start);
                    let worked =
                        memory.and_then(|mut memory| line.work(&mut memory, clock, is_over));
                    is_over.fetch_or(worked.is_err(), Ordering::Relaxed);
                    worked
                }));
            }
        }
        barrier.wait();
        let mut last = Time::ZERO;
        for thread in threads {
            last = last.max(thread.join().map_err(|_| "a thread has panicked".to_owned())??);
        }
        Ok::<Time, String>(last)
    })?;
    drop(lines);
    let (device_requests, device_bytes) = ways.counted();
    Ok(Played { seconds: last.seconds(), device_requests, device_bytes, note: ways.note() })
}

fn buffer_bytes(thread: &ReadList) -> u64 {
    let largest = thread.readings.iter().map(|reading| reading.bytes).max().unwrap_or(1);
    largest.next_multiple_of(PAGE_BYTES)
}

/// One recorded thread's reads, and who makes them.
struct RecordedThread<'a> {
    thread: &'a ReadList,
    ways: &'a Ways<'a>,
    /// By file: the last read of it, after which it is closed.
    last_of: BTreeMap<FileId, usize>,
    turn: Mutex<ReplayTurn>,
}

/// Whose turn it is.
#[derive(Default)]
struct ReplayTurn {
    next: usize,
    /// When the last read began.
    begun: Time,
    open: BTreeMap<FileId, Arc<Door>>,
}

impl<'a> RecordedThread<'a> {
    fn new(thread: &'a ReadList, ways: &'a Ways<'a>) -> RecordedThread<'a> {
        let ats = thread.readings.iter().enumerate().map(|(at, reading)| (reading.file, at));
        RecordedThread { thread, ways, last_of: ats.collect(), turn: Mutex::default() }
    }

    /// Makes reads as long as there are any and nobody has failed; gives when the last one ended.
    fn work(
        &self,
        memory: &mut RawMemory,
        clock: Clock,
        is_over: &AtomicBool,
    ) -> Result<Time, String> {
        let mut freed = Time::ZERO;
        while !is_over.load(Ordering::Relaxed) {
            let Some((reading, door)) = self.take_turn(freed, clock)? else { break };
            let bytes = match self.thread.is_direct {
                // The end of a file is no whole block, and a transfer past the cache is.
                true => reading.bytes.next_multiple_of(PAGE_BYTES),
                false => reading.bytes,
            };
            door(&mut memory[..bytes as usize], reading.offset).map_err(|problem| {
                format!("{} at byte {}: {problem}", self.ways.name(reading.file), reading.offset)
            })?;
            freed = clock.now();
        }
        Ok(freed)
    }

    /// The next read, at the time when it is to begin.
    fn take_turn(
        &self,
        freed: Time,
        clock: Clock,
    ) -> Result<Option<(GivenRead, Arc<Door>)>, String> {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let at = turn.next;
        let Some(&reading) = self.thread.readings.get(at) else { return Ok(None) };
        turn.next += 1;
        let door = match turn.open.get(&reading.file) {
            Some(door) => Arc::clone(door),
            None => {
                let door = Arc::new(self.ways.open(reading.file, self.thread)?);
                turn.open.insert(reading.file, Arc::clone(&door));
                door
            }
        };
        if self.last_of[&reading.file] == at {
            turn.open.remove(&reading.file);
        }
        wait_until(freed.max(turn.begun) + self.thread.thinks[at], clock);
        turn.begun = clock.now();
        Ok(Some((reading, door)))
    }
}

fn wait_until(due: Time, clock: Clock) {
    let left = clock.until(due);
    if left > SPIN {
        std::thread::sleep(left - SPIN);
    }
    while clock.now() < due {
        std::hint::spin_loop();
    }
}
