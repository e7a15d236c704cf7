//! The simulated environment of the machine: the device, virtual time, and processor costs.
//!
//! The *machine* ([`Machine`]) is the read path with its page cache, its policies and its
//! scheduler. It submits requests to this environment and receives their completions. A *raw chunk*
//! is a part of a large direct transfer, whose memory is pinned before the part is submitted.

use std::collections::VecDeque;

use readpath_core::machine::{Done, IoBackend, Machine};
use readpath_core::request::{Completion, DeviceError, DeviceRequest, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES, Time};

use crate::observe::Observer;
use crate::stuck::{Steps, Stuck};
use readpath_models::BoxedDevice;

/// Processor costs of the host, measured on one core of a shared virtual machine (Linux 6.18). A
/// `pread` of cached pages spread over 1 GiB takes 1.07 µs for 4 KiB and 6.0 µs for 64 KiB. A minor
/// fault on a file takes 2.4 µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCosts {
    /// Nanoseconds per operation: 740.
    pub operation_ns: u64,
    /// Picoseconds per copied byte: 80 (12.5 GB/s).
    pub byte_ps: u64,
    /// Nanoseconds per fault on a mapped page: 2,400.
    pub fault_ns: u64,
    /// Nanoseconds per raw chunk: 740, the same as per operation.
    pub chunk_ns: u64,
    /// Nanoseconds per page of a raw chunk: 57. A direct read of 512 KiB costs 8 µs at depth 4 and
    /// above, including the cost of the operation.
    pub pin_page_ns: u64,
}

impl Default for HostCosts {
    /// The measured costs that the fields state.
    fn default() -> HostCosts {
        HostCosts {
            operation_ns: 740,
            byte_ps: 80,
            fault_ns: 2_400,
            chunk_ns: 740,
            pin_page_ns: 57,
        }
    }
}

/// A simulated device in virtual time.
pub struct SimulatedEnvironment {
    /// Time since the start.
    now: Time,
    /// The simulated device.
    device: BoxedDevice,
    /// Processor costs.
    host: HostCosts,
    /// Processor time charged to the processes.
    host_time: Time,
    /// Hash of all device requests and completions, in order.
    decisions: DecisionHash,
    /// Requests in the device, by identifier. After a partial transfer, the entry is the remaining
    /// part.
    requests: Vec<QueuedRequest>,
    /// Completions up to now that have not been polled.
    completed: VecDeque<Completion>,
    /// Receives requests, completions and times, if there is one.
    observer: Option<Observer>,
}

/// A request in the device.
#[derive(Clone, Copy, Debug)]
struct QueuedRequest {
    /// The request, or the part of it that is not transferred yet.
    request: DeviceRequest,
    /// Number of consecutive retries without progress.
    retries: u32,
}

/// Maximum retries of a request without progress, as in Linux (`SD_MAX_RETRIES`).
const RETRIES_MAX: u32 = 5;

/// Maximum events inside a device before it completes a request or the awaited time comes. A device
/// with an event every 10 ms has fewer in a day.
const EVENTS_MAX: u64 = 1 << 24;

/// Codes of completions and flushes in the hash of decisions. Requests have the number of their
/// operation: 0 for a read, 1 for a write.
const COMPLETION_CODE: u64 = 2;
const FLUSH_CODE: u64 = 3;

impl SimulatedEnvironment {
    /// Creates the environment with this device, at time 0.
    pub fn new(device: BoxedDevice, host: HostCosts) -> SimulatedEnvironment {
        SimulatedEnvironment {
            now: Time::ZERO,
            device,
            host,
            host_time: Time::ZERO,
            decisions: DecisionHash::default(),
            requests: Vec::new(),
            completed: VecDeque::new(),
            observer: None,
        }
    }

    /// Adds an observer.
    pub fn with_observer(self, observer: Observer) -> SimulatedEnvironment {
        SimulatedEnvironment { observer: Some(observer), ..self }
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Submits the rest of a partial transfer, as the kernel does, and returns `None`: the machine
    /// sees only the completion of the whole. Any other completion is returned, and a transfer
    /// without progress after all retries as a failure.
    fn resubmit_rest(&mut self, completion: Completion) -> Option<Completion> {
        // A flush, which has no entry in `requests`, is never short.
        let Outcome::Short { bytes } = completion.outcome else { return Some(completion) };
        let queued = &mut self.requests[completion.id.0 as usize];
        let sectors = (bytes / SECTOR_BYTES) as u32;
        if sectors == 0 && queued.retries == RETRIES_MAX {
            let outcome = Outcome::Failed(DeviceError::Medium);
            return Some(Completion { outcome, ..completion });
        }
        // Only retries in a row without progress count.
        queued.retries = if sectors == 0 { queued.retries + 1 } else { 0 };
        queued.request.start += u64::from(sectors);
        queued.request.sectors -= sectors;
        let request = queued.request;
        self.send_to_device(request);
        None
    }

    /// Submits a request to the device. The hash gets its time, first sector, length and
    /// direction.
    fn send_to_device(&mut self, request: DeviceRequest) {
        let now_ns = self.now.ns();
        self.decisions.add([now_ns, request.start, request.sectors.into(), request.op as u64]);
        self.device.submit(self.now, request);
    }

    /// Flushes the device: all writes reported complete become durable. A completion with this
    /// identifier, which no request has, reports the end. The hash gets time, identifier, the
    /// unused word 0 and a code.
    pub fn flush(&mut self, id: RequestId) {
        self.decisions.add([self.now.ns(), id.0.into(), 0, FLUSH_CODE]);
        self.device.flush(self.now, id);
    }

    /// Charges the processor time of a completed transfer: a fault, or an operation with the copy
    /// of its data. Returns that time. Also reports the transfer to the observer.
    pub fn charge_completion(&mut self, machine: &Machine, done: &Done) -> Time {
        if let Some(observer) = &self.observer {
            observer.on_done(self.now, machine, done);
        }
        // A failed transfer has no data to copy.
        let bytes = done.result.unwrap_or(0);
        if machine.is_fault(done.read) {
            return self.charge(Time(self.host.fault_ns));
        }
        // A direct read has no frames of the cache, from which its data would be copied.
        let copied_bytes = if machine.read_frames(done.read).is_empty() { 0 } else { bytes };
        // Picoseconds per byte become nanoseconds.
        self.charge(Time(self.host.operation_ns + copied_bytes * self.host.byte_ps / 1000))
    }

    /// Charges the processor time to pin and describe the memory of a raw chunk of `bytes` bytes.
    /// Returns that time.
    pub fn charge_pinning(&mut self, bytes: u64) -> Time {
        let pages = bytes.div_ceil(PAGE_BYTES);
        self.charge(Time(self.host.chunk_ns + pages * self.host.pin_page_ns))
    }

    /// Advances the time to the next completion, or to `until` if that is earlier. The completions
    /// of that time then wait for `poll_completion`.
    ///
    /// # Errors
    /// Fails if internal events of the device continue without end.
    ///
    /// # Panics
    /// Panics if no event is due and `until` is `None`.
    pub fn advance(&mut self, until: Option<Time>) -> Result<(), Stuck> {
        let mut steps = Steps::default();
        // Unlike `steps`, counted over all times of this call.
        let mut events = 0;
        // Internal events of the device are hidden from the machine. A scheduler that is polled
        // without a completion could decide differently.
        loop {
            let event = self.device.next_event();
            let time = match (event, until) {
                (Some(event), Some(until)) => event.min(until),
                (event, until) => event.or(until).expect("something is under way or due"),
            };
            self.now = self.now.max(time);
            let state = || format!("events of the device, the next at {:?}", event.map(Time::ns));
            steps.count(self.now, state)?;
            events += 1;
            if events > EVENTS_MAX {
                return Err(Stuck { at: self.now, steps: events, state: state() });
            }
            if event.is_some_and(|event| event <= self.now) {
                while let Some(completion) = self.device.poll(self.now) {
                    let id = completion.id.0.into();
                    self.decisions.add([completion.at.ns(), id, 0, COMPLETION_CODE]);
                    let completion_of_request = self.resubmit_rest(completion);
                    self.completed.extend(completion_of_request);
                }
            }
            if !self.completed.is_empty() || until.is_some_and(|until| until <= self.now) {
                break;
            }
        }
        if let Some(observer) = &self.observer {
            observer.on_time(self.now, &self.completed);
        }
        Ok(())
    }

    /// Returns the processor time charged so far.
    pub fn host_time(&self) -> Time {
        self.host_time
    }

    /// Charges processor time to the host and returns it.
    fn charge(&mut self, duration: Time) -> Time {
        self.host_time += duration;
        duration
    }

    /// Returns the time of the next device event, or `None` when the device is idle.
    pub fn next_event(&self) -> Option<Time> {
        self.device.next_event()
    }

    /// Returns the hash of all decisions so far. Equal simulations have equal hashes.
    pub fn decisions(&self) -> u64 {
        self.decisions.0
    }
}

impl IoBackend for SimulatedEnvironment {
    /// Records the request for retries and for the observer, and sends it to the device.
    fn submit(&mut self, _machine: &Machine, _now: Time, request: DeviceRequest) {
        let index = request.id.0 as usize;
        // Entries up to the index are placeholders until their own requests are submitted.
        if index >= self.requests.len() {
            self.requests.resize(index + 1, QueuedRequest { request, retries: 0 });
        }
        self.requests[index] = QueuedRequest { request, retries: 0 };
        if let Some(observer) = &self.observer {
            observer.on_submit(self.now, &request);
        }
        self.send_to_device(request);
    }

    /// Returns a completion from the last [advance](SimulatedEnvironment::advance) of time, or
    /// `None` if none is left. Requests submitted since then are not polled, for any device: also
    /// one that is done at once completes after the next advance.
    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        self.completed.pop_front()
    }
}

/// A running hash: the multiplication of FNV-1a over whole words. Each step also mixes the high
/// bits into the low ones.
#[derive(Clone, Copy, Debug)]
struct DecisionHash(u64);

impl Default for DecisionHash {
    /// A hash of no event.
    fn default() -> DecisionHash {
        // The start value of FNV-1a with 64 bits.
        DecisionHash(0xcbf2_9ce4_8422_2325)
    }
}

impl DecisionHash {
    /// Mixes four words into the hash: the facts of one event. The multiplier is FNV's 64-bit
    /// prime.
    fn add(&mut self, words: [u64; 4]) {
        for word in words {
            self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            self.0 ^= self.0 >> 29;
        }
    }
}
