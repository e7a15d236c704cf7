//! The modelled world: where requests go, what time it is, and what it costs a process
//! to take its bytes.

use std::collections::VecDeque;

use readpath_core::machine::{Done, IoBackend, Machine};
use readpath_core::request::{Completion, DeviceError, DeviceRequest, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES, Time};

use crate::device::BoxedDevice;
use crate::observe::Observer;
use crate::stuck::{Steps, Stuck};

/// What the host's processor costs: measured on one core of a shared virtual
/// machine (Linux 6.18) with `pread` of cached pages spread over 1 GiB: 1.07 µs
/// for 4 KiB, 6.0 µs for 64 KiB; and 2.4 µs for a minor fault on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCosts {
    /// Per operation, in nanoseconds: 740.
    pub operation_ns: u64,
    /// Per byte copied, in picoseconds: 80 (12.5 GB/s).
    pub byte_ps: u64,
    /// Per fault on a mapped page, in nanoseconds: 2,400.
    pub fault_ns: u64,
    /// Per raw chunk, in nanoseconds: 740, as any operation.
    pub chunk_ns: u64,
    /// Per page of a raw chunk, in nanoseconds: 57. A direct read of 512 KiB
    /// costs 8 µs at depth 4 and above, of which the operation takes its part.
    pub pin_page_ns: u64,
}

impl Default for HostCosts {
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

/// A modelled device in virtual time.
pub struct SimulatedEnvironment {
    now: Time,
    device: BoxedDevice,
    host: HostCosts,
    /// What the processes were charged for the host's processor.
    host_time: Time,
    /// Of every request given to the device, and every completion, in order.
    decisions: DecisionHash,
    /// What was given to the device, or what of it is asked again, by the request's name.
    requests: Vec<QueuedRequest>,
    /// What was completed by now and not polled yet.
    completed: VecDeque<Completion>,
    observer: Option<Observer>,
}

/// A request as the device has it.
#[derive(Clone, Copy, Debug)]
struct QueuedRequest {
    request: DeviceRequest,
    /// How often it was asked again without a byte moved.
    retries: u32,
}

/// How often Linux asks a disk again for what moves no byte (`SD_MAX_RETRIES`).
const RETRIES_MAX: u32 = 5;

/// Events inside a device before anything is completed, or the time comes that was waited for.
/// A device that looks about every 10 ms has fewer in a day.
const EVENTS_MAX: u64 = 1 << 24;

impl SimulatedEnvironment {
    /// Time 0, over this device.
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

    /// The same, looked at by an observer.
    pub fn observed_by(self, observer: Observer) -> SimulatedEnvironment {
        SimulatedEnvironment { observer: Some(observer), ..self }
    }

    /// The time since the start of the run.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Asks for the rest of a request of which the device moved a part, as the kernel does;
    /// gives the completion when there is nothing more to be asked.
    fn settled(&mut self, completion: Completion) -> Option<Completion> {
        let Outcome::Short { bytes } = completion.outcome else { return Some(completion) };
        let asked = &mut self.requests[completion.id.0 as usize];
        let sectors = (bytes / SECTOR_BYTES) as u32;
        if sectors == 0 && asked.retries == RETRIES_MAX {
            let outcome = Outcome::Failed(DeviceError::Medium);
            return Some(Completion { outcome, ..completion });
        }
        asked.retries = if sectors == 0 { asked.retries + 1 } else { 0 };
        asked.request.start += u64::from(sectors);
        asked.request.sectors -= sectors;
        let request = asked.request;
        self.give(request);
        None
    }

    fn give(&mut self, request: DeviceRequest) {
        let Time(now) = self.now;
        self.decisions.add([now, request.start, request.sectors.into(), request.op as u64]);
        self.device.submit(self.now, request);
    }

    /// Asks the device to keep what was reported written by now, whatever happens to its
    /// power; a completion of this name, which no request has, says when it does.
    pub fn flush(&mut self, id: RequestId) {
        self.decisions.add([self.now.ns(), id.0.into(), 0, 3]);
        self.device.flush(self.now, id);
    }

    /// Hands the bytes of what is done to its process; gives how long that keeps it busy.
    pub fn take(&mut self, machine: &Machine, done: &Done) -> Time {
        if let Some(observer) = &self.observer {
            observer.taken(self.now, machine, done);
        }
        let bytes = done.result.unwrap_or(0);
        if machine.is_fault(done.read) {
            return self.charged(Time(self.host.fault_ns));
        }
        let copied = if machine.read_frames(done.read).is_empty() { 0 } else { bytes };
        self.charged(Time(self.host.operation_ns + copied * self.host.byte_ps / 1000))
    }

    /// Pins and describes the memory of a raw chunk of so many bytes; gives how long that
    /// keeps its process busy.
    pub fn pin(&mut self, bytes: u64) -> Time {
        let pages = bytes.div_ceil(PAGE_BYTES);
        self.charged(Time(self.host.chunk_ns + pages * self.host.pin_page_ns))
    }

    /// Lets time pass until something is completed, or until `until`.
    ///
    /// # Errors
    /// Things go on happening inside the device, and neither comes.
    ///
    /// # Panics
    /// Neither will ever be.
    pub fn advance(&mut self, until: Option<Time>) -> Result<(), Stuck> {
        let mut steps = Steps::default();
        let mut events = 0;
        // What goes on inside the device is no event for those who wait: a scheduler
        // that is asked again without one may decide otherwise than it would have.
        loop {
            let event = self.device.next_event();
            let time = match (event, until) {
                (Some(event), Some(until)) => event.min(until),
                (event, until) => event.or(until).expect("something is under way or due"),
            };
            self.now = self.now.max(time);
            let state = || format!("events of the device, the next at {:?}", event.map(Time::ns));
            steps.step(self.now, state)?;
            events += 1;
            if events > EVENTS_MAX {
                return Err(Stuck { at: self.now, steps: events, state: state() });
            }
            if event.is_some_and(|event| event <= self.now) {
                while let Some(completion) = self.device.poll(self.now) {
                    self.decisions.add([completion.at.ns(), completion.id.0.into(), 0, 2]);
                    let settled = self.settled(completion);
                    self.completed.extend(settled);
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

    /// Processor time that the host was charged with so far.
    pub fn host_time(&self) -> Time {
        self.host_time
    }

    fn charged(&mut self, span: Time) -> Time {
        self.host_time += span;
        span
    }

    /// When the device next needs to be looked at; `None` when it is idle.
    pub fn next_event(&self) -> Option<Time> {
        self.device.next_event()
    }

    /// The hash of everything that was decided so far: equal for equal runs.
    pub fn decisions(&self) -> u64 {
        self.decisions.0
    }
}

impl IoBackend for SimulatedEnvironment {
    fn submit(&mut self, _machine: &Machine, _now: Time, request: DeviceRequest) {
        let index = request.id.0 as usize;
        if index >= self.requests.len() {
            self.requests.resize(index + 1, QueuedRequest { request, retries: 0 });
        }
        self.requests[index] = QueuedRequest { request, retries: 0 };
        if let Some(observer) = &self.observer {
            observer.submitted(self.now, &request);
        }
        self.give(request);
    }

    /// Of those that were completed when time last [advanced](SimulatedEnvironment::advance): what was
    /// submitted since is not looked for, whatever its device.
    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        self.completed.pop_front()
    }
}

/// A running hash: FNV-1a's multiplication over whole words, with a final mix
/// of the high bits into the low ones at each step.
#[derive(Clone, Copy, Debug)]
struct DecisionHash(u64);

impl Default for DecisionHash {
    fn default() -> DecisionHash {
        DecisionHash(0xcbf2_9ce4_8422_2325)
    }
}

impl DecisionHash {
    fn add(&mut self, words: [u64; 4]) {
        for word in words {
            self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            self.0 ^= self.0 >> 29;
        }
    }
}
