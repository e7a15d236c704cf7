//! `readpath touch-memory`: one process of a load, started by `readpath run` and nobody else.
//!
//! It is a [`part`](crate::part) of that run: an [`TouchTask`], then [`TouchReply::Filled`]; [`TouchBegin`], then
//! [`TouchReply::Touched`].

use std::time::Instant;

use readpath_core::unit::{PAGE_BYTES, Time};
use readpath_peers::clock::Clock;
use readpath_peers::kernel_swap::memory::{LoadMemory, WrongPage, shared_object_passed_on};
use readpath_peers::usage::{self, CpuTime};
use readpath_sim::load::{MemoryLoad, MemorySharing};
use readpath_sim::report::ReadCounters;
use serde::{Deserialize, Serialize};

use crate::exit::CommandResult;
use crate::part::{Orders, say};

/// The subcommand.
pub const NAME: &str = "touch-memory";

/// What one process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct TouchTask {
    /// The load.
    pub load: MemoryLoad,
    /// Which of its processes this one is.
    pub process: u32,
    /// The seed of the run.
    pub seed: u64,
    /// The number of the open file with the shared memory; none where it is private.
    pub object: Option<i32>,
}

impl TouchTask {
    /// Whether this process writes every page first: its own, or for all who share it.
    fn fills(&self) -> bool {
        self.load.share == MemorySharing::Private || self.process == 0
    }

    fn map(&self) -> std::io::Result<LoadMemory> {
        let bytes = self.load.mapping_bytes;
        match self.object {
            None => LoadMemory::private(bytes, u64::from(self.process)),
            Some(number) => LoadMemory::shared(shared_object_passed_on(number)?, bytes, 0),
        }
    }
}

/// All have filled: touch.
#[derive(Debug, Serialize, Deserialize)]
pub struct TouchBegin;

/// What it says.
#[derive(Debug, Serialize, Deserialize)]
pub enum TouchReply {
    /// Every page is written.
    Filled {
        /// How long that took.
        seconds: f64,
    },
    /// All touches are made.
    Touched(Touched),
    /// It can't go on.
    Failed(String),
}

/// What the touches of one process took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Touched {
    /// From the first to the last.
    pub seconds: f64,
    /// User and system time.
    pub cpu_seconds: f64,
    /// Faults that waited for the device.
    pub major_faults: u64,
    /// Faults that found their page in memory.
    pub minor_faults: u64,
    /// How many touches took how many nanoseconds.
    pub latencies: Vec<(u64, u64)>,
}

/// Takes the orders and carries them out.
pub fn run() -> CommandResult {
    let mut orders = Orders::take(NAME, "run");
    let order: TouchTask = orders.next()?;
    let memory = match order.map() {
        Ok(memory) => memory,
        Err(error) => {
            let bytes = order.load.mapping_bytes;
            return say(&TouchReply::Failed(format!("can't map {bytes} bytes: {error}")));
        }
    };
    let start = Instant::now();
    if order.fills() {
        (0..memory.pages()).for_each(|page| memory.fill(page));
    }
    say(&TouchReply::Filled { seconds: start.elapsed().as_secs_f64() })?;
    let TouchBegin = orders.next()?;
    match touch_all(&order, &memory) {
        Ok(touched) => say(&TouchReply::Touched(touched)),
        Err(wrong) => say(&TouchReply::Failed(wrong.to_string())),
    }
}

fn touch_all(order: &TouchTask, memory: &LoadMemory) -> Result<Touched, WrongPage> {
    let mut read_counters = ReadCounters::default();
    let faults = [usage::major_faults(), usage::minor_faults()];
    let (cpu, clock) = (CpuTime::of_process(), Clock::start());
    // One look at the clock a touch: the end of one is the start of the next.
    let mut last = Time::ZERO;
    for (nth, touch) in order.load.touches_of(order.process, order.seed).enumerate() {
        match touch.is_write {
            true => memory.write(touch.page, nth as u64)?,
            false => memory.read(touch.page)?,
        }
        let now = clock.now();
        read_counters.record(last, now, PAGE_BYTES);
        last = now;
    }
    Ok(Touched {
        seconds: last.seconds(),
        cpu_seconds: CpuTime::of_process().since(cpu).seconds(),
        major_faults: usage::major_faults() - faults[0],
        minor_faults: usage::minor_faults() - faults[1],
        latencies: read_counters.latencies(),
    })
}
