//! Modelled device in real time: virtual time follows the wall clock.
//!
//! A request enters the model when it arrives, and is answered when the wall clock reaches the
//! completion time of the model. One thread sleeps until the model's next event, executes all due
//! events in the model's order, and gives the answers. The model's times are exact in any case.
//! Only the answers can be late, and their lateness is counted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use readpath_core::request::{DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};
use readpath_eval::clock::Clock;
use readpath_models::BoxedDevice;
use readpath_sim::report::ReadCounters;

/// Callback with the result of a request.
pub type AnswerFn = Box<dyn FnOnce(Result<(), DeviceError>) + Send>;

/// Device that answers in real time. Dropping it waits for the requests in flight.
pub struct RealTimeDevice {
    /// Clock and state, which the engine's thread uses too.
    shared: Arc<EngineShared>,
    /// The engine's thread, until it is joined.
    thread: Option<JoinHandle<()>>,
}

/// State that the engine's thread shares with the file system's threads.
struct EngineShared {
    /// Wall clock since the start, which is the model's time too.
    clock: Clock,
    /// The model and its requests.
    state: Mutex<ServedState>,
    /// Wakes the engine's thread after a new request, or to stop.
    wake: Condvar,
}

/// Device with its requests. A *part* is a piece of a request that the device accepts in one go.
struct ServedState {
    /// The model, which decides the completion times.
    device: BoxedDevice,
    /// Limits of the device: request size, queue depth, alignment.
    caps: DeviceCaps,
    /// Number of parts in the device, without flushes, which need no slot.
    in_flight: u32,
    /// Parts that the device has no free slot for, in order of arrival.
    waiting: VecDeque<DeviceRequest>,
    /// Request number of each part, by the number of the part.
    parts: BTreeMap<u32, u32>,
    /// Unfinished requests by number.
    requests: BTreeMap<u32, Pending>,
    /// Next number to try for a request or part.
    next_number: u32,
    /// Completed requests whose answers are due, with their due times.
    finished: Vec<(Time, Pending)>,
    /// One entry per answer to a read or write: from its due time to the time it was given.
    answer_counters: ReadCounters,
    /// True if the thread must end when no request is in flight.
    is_stopping: bool,
}

/// Request that waits for its parts.
struct Pending {
    /// Number of unfinished parts.
    parts_left: u32,
    /// Bytes that the program has requested, without the widening to the alignment. 0 for a flush.
    bytes: u64,
    /// Error of the part that failed last.
    result: Result<(), DeviceError>,
    /// Called with the result once, at the modelled end of the request or soon after.
    answer: AnswerFn,
}

impl RealTimeDevice {
    /// Starts the clock and the thread of `device`.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(device: BoxedDevice) -> std::io::Result<RealTimeDevice> {
        let state = ServedState {
            caps: device.caps(),
            device,
            in_flight: 0,
            waiting: VecDeque::new(),
            parts: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_number: 0,
            finished: Vec::new(),
            answer_counters: ReadCounters::default(),
            is_stopping: false,
        };
        let shared = Arc::new(EngineShared {
            clock: Clock::start(),
            state: Mutex::new(state),
            wake: Condvar::new(),
        });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("model".to_owned())
            .spawn(move || worker.run_events())?;
        Ok(RealTimeDevice { shared, thread: Some(thread) })
    }

    /// Submits a request of `bytes` bytes, at least one, at `offset` to the model. `answer` is
    /// called on the engine's thread.
    ///
    /// The range is widened to whole units of the device's alignment. It is split at the device's
    /// maximum request size.
    pub fn submit(&self, op: Op, offset: u64, bytes: u64, answer: AnswerFn) {
        self.begin(|state, now| {
            state.enqueue_parts(op, offset, bytes, answer);
            state.submit_waiting(now);
        });
    }

    /// Submits a flush to the model: writes that were answered before become durable. `answer` is
    /// called on the engine's thread. A flush needs no slot of the device.
    pub fn flush(&self, answer: AnswerFn) {
        self.begin(|state, now| {
            let (request, part) = (state.new_number(), state.new_number());
            state.parts.insert(part, request);
            let (parts_left, bytes) = (1, 0);
            state.requests.insert(request, Pending { parts_left, bytes, result: Ok(()), answer });
            state.device.flush(now, RequestId(part));
        });
    }

    /// Gives the model a new request by `add`, at the present time, and wakes the engine's thread.
    fn begin(&self, add: impl FnOnce(&mut ServedState, Time)) {
        let mut state = self.shared.lock();
        let now = self.shared.clock.now();
        // The model takes events in order of time: due completions precede the new request.
        state.advance(now);
        add(&mut state, now);
        drop(state);
        // The new request may have an event before the one for which the thread sleeps.
        self.shared.wake.notify_one();
    }

    /// Counters of the answered requests, without flushes. The latencies are the lateness of the
    /// answers.
    pub fn answer_counters(&self) -> ReadCounters {
        self.shared.lock().answer_counters.clone()
    }

    /// Orders the thread to stop once no request is in flight, and waits for its end.
    fn join(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; its counters up to then remain valid.
            let _ = thread.join();
        }
    }
}

impl Drop for RealTimeDevice {
    /// Stops the thread and waits for its end, also if the device was joined before.
    fn drop(&mut self) {
        self.join();
    }
}

impl EngineShared {
    /// Locks the state, also after a panic of a thread that held the lock.
    fn lock(&self) -> MutexGuard<'_, ServedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps on the condition variable until the model's next event or a new request. Ends on
    /// [`ServedState::is_stopping`] when no request is in flight.
    fn run_events(&self) {
        // Timers of this thread fire when due instead of up to 50 µs later. Without the file they
        // stay late, which the report shows.
        let _ = std::fs::write("/proc/thread-self/timerslack_ns", "1");
        let mut state = self.lock();
        loop {
            state.advance(self.clock.now());
            if !state.finished.is_empty() {
                // Without the lock, so that new requests can be submitted meanwhile.
                let finished = std::mem::take(&mut state.finished);
                drop(state);
                let answered = self.give_answers(finished);
                state = self.lock();
                // Flushes have no bytes.
                let with_bytes = answered.into_iter().filter(|&(_, _, bytes)| bytes > 0);
                for (due, answered_at, bytes) in with_bytes {
                    state.answer_counters.record(due, answered_at, bytes);
                }
                // Events may have become due during the answers.
                continue;
            }
            if state.is_stopping && state.requests.is_empty() {
                return;
            }
            state = match state.device.next_event() {
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(event_time) => {
                    let time_left = self.clock.until(event_time);
                    let waited = self.wake.wait_timeout(state, time_left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Calls the answer of each finished request. Returns the due time, the time of the answer, and
    /// the bytes of each.
    fn give_answers(&self, finished: Vec<(Time, Pending)>) -> Vec<(Time, Time, u64)> {
        finished
            .into_iter()
            .map(|(due, pending)| {
                (pending.answer)(pending.result);
                (due, self.clock.now(), pending.bytes)
            })
            .collect()
    }
}

impl ServedState {
    /// Executes all events of the model that are due by `now`, and submits queued parts into freed
    /// slots at the time of the event that freed them. Requests that end are added to `finished`.
    /// The device's `poll` executes the events of a time, and returns one completion per call.
    fn advance(&mut self, now: Time) {
        while let Some(event_time) = self.device.next_event()
            && event_time <= now
        {
            while let Some(completion) = self.device.poll(event_time) {
                self.complete_part(completion.id.0, completion.at, completion.outcome);
            }
            self.submit_waiting(event_time);
        }
    }

    /// Splits a request into parts that the device accepts, aligned and not too large, and queues
    /// them; [`submit_waiting`](ServedState::submit_waiting) has to follow. `answer` is called at
    /// the end of the last part. `bytes` is at least 1, so there is a part. Parts start and end at
    /// sectors. The device's largest request has at least its alignment.
    fn enqueue_parts(&mut self, op: Op, offset: u64, bytes: u64, answer: AnswerFn) {
        let alignment_sectors = u64::from(self.caps.alignment_sectors);
        let sectors_max =
            u64::from(self.caps.request_sectors_max) / alignment_sectors * alignment_sectors;
        let mut start = offset / SECTOR_BYTES / alignment_sectors * alignment_sectors;
        let end = (offset + bytes).div_ceil(SECTOR_BYTES * alignment_sectors) * alignment_sectors;
        let request = self.new_number();
        let mut parts_left = 0;
        while start < end {
            let sectors = (end - start).min(sectors_max) as u32;
            let part = self.new_number();
            self.parts.insert(part, request);
            self.waiting.push_back(DeviceRequest { id: RequestId(part), op, start, sectors });
            start += u64::from(sectors);
            parts_left += 1;
        }
        self.requests.insert(request, Pending { parts_left, bytes, result: Ok(()), answer });
    }

    /// Submits queued parts while the device has free slots. `now` is the time of the submission;
    /// the model has no unexecuted event before it.
    fn submit_waiting(&mut self, now: Time) {
        while self.in_flight < self.caps.depth_max
            && let Some(part) = self.waiting.pop_front()
        {
            self.in_flight += 1;
            self.device.submit(now, part);
        }
    }

    /// Records the completion of a part at the model's time `end`, or of a flush, which counts as a
    /// part. The last part ends its request, which moves to `finished`;
    /// [`run_events`](EngineShared::run_events) answers it.
    fn complete_part(&mut self, part: u32, end: Time, outcome: Outcome) {
        let request = self.parts.remove(&part).expect("every part belongs to a request");
        let pending = self
            .requests
            .get_mut(&request)
            .expect("a request is pending until its last part completes");
        pending.parts_left -= 1;
        // A flush has no bytes, and takes no slot of the device.
        let is_flush = pending.bytes == 0;
        self.in_flight -= u32::from(!is_flush);
        match outcome {
            Outcome::Done => {}
            // A program would take zeroes in place of the missing bytes for data.
            Outcome::Short { .. } => pending.result = Err(DeviceError::Medium),
            Outcome::Failed(error) => pending.result = Err(error),
        }
        if pending.parts_left == 0
            && let Some(pending) = self.requests.remove(&request)
        {
            self.finished.push((end, pending));
        }
    }

    /// Returns a number that no request or part in flight has. Numbers repeat after 2^32, when old
    /// ones may still be in use.
    fn new_number(&mut self) -> u32 {
        loop {
            let candidate = self.next_number;
            self.next_number = candidate.wrapping_add(1);
            if !self.parts.contains_key(&candidate) && !self.requests.contains_key(&candidate) {
                return candidate;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use readpath_core::policy::Spec;
    use readpath_models::registry;

    use super::*;

    /// Started engine of the device with this specification.
    fn engine(text: &str) -> RealTimeDevice {
        let spec = Spec::parse(text).unwrap();
        RealTimeDevice::start(registry::build(&spec, 1).unwrap()).unwrap()
    }

    /// Submits reads of `bytes` bytes at all offsets at once. Returns the answers in order of
    /// arrival.
    fn read_all(
        engine: &RealTimeDevice,
        offsets: &[u64],
        bytes: u64,
    ) -> Vec<(u64, Result<(), DeviceError>)> {
        let (sender, receiver) = mpsc::channel();
        for &offset in offsets {
            let sender = sender.clone();
            let answer = Box::new(move |result| sender.send((offset, result)).unwrap());
            engine.submit(Op::Read, offset, bytes, answer);
        }
        drop(sender);
        receiver.iter().collect()
    }

    /// One die with 20 ms per page: three reads take at least 60 ms and are answered in order.
    #[test]
    fn answers_arrive_no_earlier_than_modelled_completion_times() {
        let engine = engine("ssd,channels=1,dies_per_channel=1,read_lsb=20ms,read_msb=20ms");
        let clock = Clock::start();
        let answers = read_all(&engine, &[0, 4_096, 1 << 20], 4_096);
        assert!(clock.now() >= Time::from_ms(60), "{}", clock.now());
        assert_eq!(answers, [(0, Ok(())), (4_096, Ok(())), (1 << 20, Ok(()))]);
        // The engine counts an answer just after giving it.
        while engine.answer_counters().operations < 3 {
            std::thread::yield_now();
        }
        assert_eq!(engine.answer_counters().bytes, 3 * 4_096);
    }

    /// A flush of the Seagate ST2000DM006, which has a volatile write cache, takes 127 ms after 8
    /// random writes of 4 KiB (published). The answer takes at least a third of that: places differ
    /// by their seeks. A second flush has nothing to write.
    #[test]
    fn flush_is_answered_when_the_write_cache_is_on_the_medium() {
        let engine = engine("hdd,drive=sata");
        let (sender, receiver) = mpsc::channel();
        for index in 0..8 {
            let sender = sender.clone();
            let answer = Box::new(move |result| sender.send(result).unwrap());
            engine.submit(Op::Write, index * 200 * (1 << 30), 4_096, answer);
        }
        drop(sender);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), vec![Ok(()); 8]);
        let flush = || {
            let (sender, receiver) = mpsc::channel();
            let clock = Clock::start();
            engine.flush(Box::new(move |result| sender.send(result).unwrap()));
            assert_eq!(receiver.iter().collect::<Vec<_>>(), [Ok(())]);
            clock.now()
        };
        let first = flush();
        assert!(first > Time::from_ms(42), "{first}");
        flush();
        // The engine counts an answer just after giving it. Flushes are not counted.
        while engine.answer_counters().operations < 8 {
            std::thread::yield_now();
        }
        assert_eq!(engine.answer_counters().operations, 8);
    }

    /// The sector of 512 bytes at 1 MiB is bad. Requests are split into parts of 64 KiB, and the
    /// device has two of them at a time.
    #[test]
    fn medium_error_fails_only_overlapping_requests_also_split_ones() {
        let engine = engine("faulty:ssd,bad_from=1m,bad_bytes=512,ssd.request_max=64k,ssd.depth=2");
        let medium_error = Err(DeviceError::Medium);
        // The first range lies in sector 0, and the second is the last byte of the bad sector.
        assert_eq!(read_all(&engine, &[3], 10), [(3, Ok(()))]);
        assert_eq!(read_all(&engine, &[(1 << 20) + 511], 1), [((1 << 20) + 511, medium_error)]);
        assert_eq!(read_all(&engine, &[0], 2 << 20), [(0, medium_error)]);
        assert_eq!(read_all(&engine, &[2 << 20], 2 << 20), [(2 << 20, Ok(()))]);
    }
}
