//! `readpath worker touch`: worker process of a load, started only by `readpath run`.
//!
//! The process is a [`worker`](crate::worker) of that run. The protocol: [`TouchTask`], answered by
//! [`TouchReply::Filled`]; then [`TouchBegin`], answered by [`TouchReply::Touched`].
//! [`TouchReply::Failed`] may stand for either answer.

use std::time::Instant;

use readpath_core::unit::{PAGE_BYTES, Time};
use readpath_eval::clock::Clock;
use readpath_eval::kernel_swap::memory::{LoadMemory, WrongPage, shared_object_passed_on};
use readpath_eval::usage::{self, CpuTime};
use readpath_sim::load::{MemoryLoad, MemorySharing};
use readpath_sim::report::ReadCounters;
use serde::{Deserialize, Serialize};

use crate::exit::CommandResult;
use crate::worker::{Orders, WorkerTask, write_answer};

/// Task of one process.
#[derive(Debug, Serialize, Deserialize)]
pub struct TouchTask {
    /// The whole load: size of the memory, sharing, and number and kind of the touches.
    pub load: MemoryLoad,
    /// Number of this process within the load, from 0.
    pub process: u32,
    /// Seed of the load's random touches. Each process derives its own from its number.
    pub seed: u64,
    /// File descriptor of the shared memory; `None` for private memory.
    pub object: Option<i32>,
}

impl TouchTask {
    /// True if this process first writes every page. With shared memory only process 0 does.
    fn fills_pages(&self) -> bool {
        self.load.share == MemorySharing::Private || self.process == 0
    }

    /// Maps the private memory, or the shared memory passed by the parent process.
    fn map_memory(&self) -> std::io::Result<LoadMemory> {
        let bytes = self.load.mapping_bytes;
        match self.object {
            None => {
                // The contents differ by process.
                let tag = u64::from(self.process);
                LoadMemory::private(bytes, tag)
            }
            Some(descriptor) => {
                // All processes expect the same contents.
                let common_tag = 0;
                let object = shared_object_passed_on(descriptor)?;
                LoadMemory::shared(object, bytes, common_tag)
            }
        }
    }
}

/// Order to touch, sent when all processes have filled their memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct TouchBegin;

/// Answer of the process.
#[derive(Debug, Serialize, Deserialize)]
pub enum TouchReply {
    /// The process has written every page that it fills.
    Filled {
        /// Duration of the writes.
        seconds: f64,
    },
    /// All touches have been made.
    Touched(Touched),
    /// The process cannot continue, for the given reason.
    Failed(String),
}

/// Measurements of one process's touches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Touched {
    /// Time from the first touch to the last.
    pub seconds: f64,
    /// User and system time.
    pub cpu_seconds: f64,
    /// Faults that waited for the device.
    pub major_faults: u64,
    /// Faults that found their page in memory.
    pub minor_faults: u64,
    /// Histogram of the touches: latency in nanoseconds and count.
    pub latencies: Vec<(u64, u64)>,
}

/// Takes the order, maps and fills the memory, and answers. Then waits for the order to begin,
/// makes the touches, and answers with their figures. Memory that cannot be mapped, and a wrong
/// page, are answered as failures.
pub fn run() -> CommandResult {
    let mut orders = Orders::from_stdin(WorkerTask::Touch);
    let order: TouchTask = orders.next()?;
    let memory = match order.map_memory() {
        Ok(memory) => memory,
        Err(error) => {
            let bytes = order.load.mapping_bytes;
            return write_answer(&TouchReply::Failed(format!("can't map {bytes} bytes: {error}")));
        }
    };
    let start = Instant::now();
    if order.fills_pages() {
        (0..memory.pages()).for_each(|page| memory.fill(page));
    }
    write_answer(&TouchReply::Filled { seconds: start.elapsed().as_secs_f64() })?;
    let TouchBegin = orders.next()?;
    match touch_all(&order, &memory) {
        Ok(touched) => write_answer(&TouchReply::Touched(touched)),
        Err(wrong_page) => write_answer(&TouchReply::Failed(wrong_page.to_string())),
    }
}

/// Makes all touches of the process and measures them. Stops at the first page with other contents
/// than the written ones.
fn touch_all(order: &TouchTask, memory: &LoadMemory) -> Result<Touched, WrongPage> {
    let mut read_counters = ReadCounters::default();
    let (major_before, minor_before) = (usage::major_faults(), usage::minor_faults());
    let (cpu_before, clock) = (CpuTime::of_process(), Clock::start());
    // Read the clock once per touch: the end of one is the start of the next.
    let mut last = Time::ZERO;
    for (touch_index, touch) in order.load.touches_of(order.process, order.seed).enumerate() {
        match touch.is_write {
            // The written value is arbitrary: only the first word of a page is checked.
            true => memory.write(touch.page, touch_index as u64)?,
            false => memory.read(touch.page)?,
        }
        let now = clock.now();
        read_counters.record(last, now, PAGE_BYTES);
        last = now;
    }
    Ok(Touched {
        seconds: last.seconds(),
        cpu_seconds: CpuTime::of_process().since(cpu_before).seconds(),
        major_faults: usage::major_faults() - major_before,
        minor_faults: usage::minor_faults() - minor_before,
        latencies: read_counters.latencies(),
    })
}
