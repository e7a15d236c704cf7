//! A caching controller in front of a device: link, overhead, read-ahead into a cache, write cache.
//!
//! - A read of a sequential stream is served from cache lines once the stream is long enough.
//!   Missing lines are read together with the stream's next lines.
//! - Any other read is served from the cache if all its lines are there or being read, otherwise by
//!   the device, unchanged. Only a server's memory caches such reads too (`caches_all_reads`).
//! - All read data crosses the link to the host, one transfer at a time.
//! - Each read of the device occupies the controller's single processor. These times never overlap,
//!   for any number of members.
//! - A write crosses the link in the other direction. It completes when the write cache has room
//!   for it, and leaves the cache when the device has stored it.
//! - Reads for waiting requests go to the device before read-ahead and write-back. Read-ahead that
//!   a request waits for is such a read. While a write waits for room, or a flush for data, reads
//!   and write-backs take turns. A write-back needs no processor time.
//!
//! A line whose read failed is dropped, and the requests that waited for it read from the device
//! directly. An error therefore affects exactly the reads that needed the bytes. Reads do not look
//! for data in the write cache. The next flush reports the error of a write-back, as `COMMIT` does
//! (RFC 1813). A cache that survives a power loss answers a flush at once, and then flushes the
//! device for it. The next flush reports an error of that one.

use std::collections::VecDeque;

use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::lines::{CacheLineState, LineCache};
use super::streams::ControllerStreams;
use super::write_cache::WriteCache;
use crate::agenda::EventQueue;
use crate::numbered_slab::NumberedSlab;
use crate::rate::Link;
use crate::{BoxedDevice, Device};

/// Parameters of a controller.
#[derive(Clone, Copy, Debug)]
pub struct ControllerParts {
    /// Delay between the arrival of a request and its look-up in the cache or the device.
    pub overhead: Time,
    /// Processor time for each read of the device, never overlapped.
    pub miss: Time,
    /// Bandwidth of the link in bytes per second, each way. `None` if modelled elsewhere.
    pub link_bytes_per_second: Option<u64>,
    /// Read cache in bytes. Less than one line means no read cache.
    pub cache_bytes: u64,
    /// Caches all data that is read, as a server's memory does. Otherwise only streams use the
    /// cache, and their lines are dropped after use.
    pub caches_all_reads: bool,
    /// Sectors per cache line, the unit of reading and caching. At least 1.
    pub line_sectors: u64,
    /// Maximum read-ahead of one stream, in sectors.
    pub readahead_sectors: u64,
    /// Maximum read-ahead of all streams together, in sectors, in equal shares.
    pub readahead_all_sectors: u64,
    /// Number of sectors that a stream must have read in sequence before read-ahead starts.
    pub readahead_after_sectors: u64,
    /// Maximum number of streams that are tracked at once.
    pub streams: usize,
    /// Number of requests of all streams after which a stream without one loses its share.
    pub inactive_after_requests: u64,
    /// Write cache in bytes. With 0, a write completes when the device has stored it.
    pub write_cache_bytes: u64,
    /// True if the write cache survives a power loss. A flush then waits for no write.
    pub write_cache_survives_power_loss: bool,
    /// Maximum number of requests in flight.
    pub depth_max: u32,
}

/// A device with a controller in front.
pub struct Controller {
    /// Its parameters.
    parts: ControllerParts,
    /// The device behind the controller.
    inner: BoxedDevice,
    /// Limits of that device.
    inner_caps: DeviceCaps,
    /// Reads and writes in the device behind the controller, or in the processor before it.
    inner_in_flight: u32,
    /// True while the processor handles a read of the device.
    is_processor_busy: bool,
    /// Link to the host, for read data.
    link_out: Option<Link>,
    /// Link from the host, for write data.
    link_in: Option<Link>,
    /// Read cache.
    lines: LineCache,
    /// Sequential streams of the host.
    streams: ControllerStreams,
    /// Write cache.
    write_cache: WriteCache,
    /// True from a write-back that was due until the next urgent job, which may then go first.
    is_reads_turn: bool,
    /// Internal events, by their times.
    events: EventQueue<ControllerEvent>,
    /// Requests of the host in flight.
    slots: NumberedSlab<ControllerRequest>,
    /// Requests to the device, queued or in flight.
    jobs: NumberedSlab<ControllerJob>,
    /// Queued jobs that a request of the host waits for, without write-backs.
    urgent_jobs: VecDeque<u32>,
    /// Queued jobs of read-ahead that no request waits for.
    read_ahead_jobs: VecDeque<u32>,
}

/// A request of the host, in its sectors.
#[derive(Clone, Copy, Debug)]
struct ControllerRequest {
    request: DeviceRequest,
    /// Number of lines that are still being read for it, until one fails. 0 for other requests.
    lines_left: u32,
    /// True for a read that continues a stream, which drops the lines that it has read.
    is_stream: bool,
}

/// Internal event. The number is a key in `slots`, for `Issued` in `jobs`.
#[derive(Clone, Copy, Debug)]
enum ControllerEvent {
    /// The overhead of a request has passed.
    OverheadPassed(u32),
    /// The processor has finished with a job, and the job goes to the device.
    Issued(u32),
    /// The data of a write has arrived.
    DataIn(u32),
    /// The request is complete at the host.
    Answered(u32, Outcome),
    /// The overhead of a flush has passed. It needs the write-backs up to this number.
    FlushOverheadPassed(RequestId, u64),
    /// The flush is complete at the host.
    Flushed(RequestId, Outcome),
}

/// A request to the device behind the controller, with its purpose. [`Controller::submit_job`] sets
/// the identifier of the request.
#[derive(Clone, Copy, Debug)]
struct ControllerJob {
    /// Determines the work after the request is complete.
    purpose: JobPurpose,
    /// Sectors and direction for the device.
    request: DeviceRequest,
}

/// Reason for a request to the device behind the controller.
#[derive(Clone, Copy, Debug)]
enum JobPurpose {
    /// Serves one request of the host, the one with this key in `slots`, unchanged.
    Direct(u32),
    /// Fills the cache lines `first..end`.
    Fill { first: u64, end: u64 },
    /// Writes back data of a write that is already complete. The number is its place in the order
    /// of the writes.
    WriteBack(u64),
    /// Flushes the device, for the host's flush with this identifier. The error is one of an
    /// earlier write.
    Flush(RequestId, Option<DeviceError>),
    /// Flushes the device while no flush of the host waits. The number is the newest write-back
    /// that it covers.
    MemberFlush(u64),
}

/// Queue of a read or of a direct write.
#[derive(Clone, Copy, Debug)]
enum JobPriority {
    /// A request of the host waits for the job.
    Urgent,
    /// Read-ahead: only if no urgent job is queued.
    ReadAhead,
}

impl Controller {
    /// Puts a controller with the parameters `parts` in front of `inner`.
    pub fn new(inner: BoxedDevice, parts: ControllerParts) -> Controller {
        let inner_caps = inner.caps();
        let line_bytes = parts.line_sectors * SECTOR_BYTES;
        Controller {
            inner,
            inner_caps,
            inner_in_flight: 0,
            is_processor_busy: false,
            link_out: parts.link_bytes_per_second.map(Link::new),
            link_in: parts.link_bytes_per_second.map(Link::new),
            lines: LineCache::new((parts.cache_bytes / line_bytes) as usize),
            streams: ControllerStreams::new(parts.streams, parts.inactive_after_requests),
            write_cache: WriteCache::new(parts.write_cache_bytes),
            is_reads_turn: false,
            events: EventQueue::new(),
            slots: NumberedSlab::new(),
            jobs: NumberedSlab::new(),
            urgent_jobs: VecDeque::new(),
            read_ahead_jobs: VecDeque::new(),
            parts,
        }
    }

    /// Returns true if the read cache holds at least one line.
    fn has_read_cache(&self) -> bool {
        self.parts.cache_bytes >= self.parts.line_sectors * SECTOR_BYTES
    }

    /// Starts the request in `slot`, whose overhead has passed at `now`: a cache look-up, or the
    /// transfer of a write's data, which takes no time without a link.
    fn start_request(&mut self, now: Time, slot: u32) {
        let request = self.slots[slot].request;
        match request.op {
            Op::Read => self.serve_read(now, slot, request),
            Op::Write => {
                let bytes = bytes_of(&request);
                let arrival_time =
                    self.link_in.as_mut().map_or(now, |link| link.queue_transfer(now, bytes));
                self.events.add(arrival_time, ControllerEvent::DataIn(slot));
            }
        }
    }

    /// Serves a read from cache lines, or passes it to the device if a line is absent. A stream is
    /// a run of at least `readahead_after_sectors`. A read that continues one requests its absent
    /// lines, extends the read-ahead if all have room, and drops the lines that it has read. Any
    /// other read requests lines only if the controller caches all reads, and leaves present lines.
    fn serve_read(&mut self, now: Time, slot: u32, request: DeviceRequest) {
        // Sectors that the stream had read in sequence before this request.
        let run_sectors = self.streams.record_request(request.start, request.end());
        let line_sectors = self.parts.line_sectors;
        let (first, end) = (request.start / line_sectors, request.end().div_ceil(line_sectors));
        let is_stream = self.has_read_cache()
            && self.parts.readahead_sectors > 0
            && run_sectors >= self.parts.readahead_after_sectors;
        let uses_cache = is_stream || (self.parts.caches_all_reads && self.has_read_cache());
        let has_room = uses_cache && self.request_lines(first, end, JobPriority::Urgent);
        if has_room && is_stream {
            self.extend_read_ahead(request.end(), end);
        }
        // The cache is not used, has no room for all lines, or has evicted one for another. Reads
        // of lines that are queued already stay queued.
        if (first..end).any(|line| self.lines.state(line) == CacheLineState::Absent) {
            self.queue_job(JobPurpose::Direct(slot), request, JobPriority::Urgent);
            return;
        }
        self.slots[slot].is_stream = is_stream;
        for line in first..end {
            if self.lines.state(line) == CacheLineState::Requested {
                self.lines.add_waiter(line, slot);
                self.make_read_ahead_urgent(line);
                self.slots[slot].lines_left += 1;
            } else {
                self.evict_read_line(line, slot);
            }
        }
        if self.slots[slot].lines_left == 0 {
            self.send_read_data(now, slot, Outcome::Done);
        }
    }

    /// Moves the queued read-ahead of `line` to the urgent jobs, since a request waits for it. No
    /// effect if the line's read is urgent or has begun.
    fn make_read_ahead_urgent(&mut self, line: u64) {
        let reads_line = |job: &u32| match self.jobs[*job].purpose {
            JobPurpose::Fill { first, end } => (first..end).contains(&line),
            _ => false,
        };
        if let Some(index) = self.read_ahead_jobs.iter().position(reads_line) {
            self.urgent_jobs.extend(self.read_ahead_jobs.remove(index));
        }
    }

    /// Drops a line that the stream in `slot` has read to its end, unless `caches_all_reads`.
    fn evict_read_line(&mut self, line: u64, slot: u32) {
        let ControllerRequest { request, is_stream, .. } = self.slots[slot];
        let is_read = (line + 1) * self.parts.line_sectors <= request.end();
        if is_stream && is_read && !self.parts.caches_all_reads {
            self.lines.discard(line);
        }
    }

    /// Extends the read-ahead of a stream when less than half of its window is cached or being
    /// read. The window begins at `sector`, the end of the last request, and its first whole line
    /// is `from_line`. The device thus gets few large requests. Lines without room are left out.
    fn extend_read_ahead(&mut self, sector: u64, from_line: u64) {
        let line_sectors = self.parts.line_sectors;
        let window_sectors = self.window_sectors();
        let line_at =
            |sectors: u64| (sector + sectors).min(self.inner_caps.sectors).div_ceil(line_sectors);
        let (half_end, whole_end) = (line_at(window_sectors / 2), line_at(window_sectors));
        // The last line of the first half stands for it. An absent first line means no read-ahead
        // yet, or evicted lines. The window has no lines at the end of the device.
        let is_low =
            half_end > from_line && self.lines.state(half_end - 1) == CacheLineState::Absent;
        if is_low || self.lines.state(from_line) == CacheLineState::Absent {
            let end_line = whole_end.max(from_line);
            self.request_lines(from_line, end_line, JobPriority::ReadAhead);
        }
    }

    /// Returns the read-ahead window of one stream, in sectors: an equal share of the total, at
    /// most `readahead_sectors`. It has at least two lines, so each half has a line.
    fn window_sectors(&self) -> u64 {
        // The stream in question is active, so the bound 1 is only a guard for the division.
        let streams = self.streams.active_count(self.parts.readahead_after_sectors).max(1);
        let share = self.parts.readahead_all_sectors / streams;
        self.parts.readahead_sectors.min(share).max(2 * self.parts.line_sectors)
    }

    /// Queues reads of the absent lines among `first..end`, adjacent ones together, and reserves
    /// their room. Returns false if the cache has no room for all of them; the lines up to the
    /// first without room are queued. Lines that are present or being read are left as they are.
    fn request_lines(&mut self, first: u64, end: u64, priority: JobPriority) -> bool {
        let lines_max = u64::from(self.inner_caps.request_sectors_max) / self.parts.line_sectors;
        // First line of the adjacent reserved lines that are not yet queued.
        let mut run_start = None;
        let mut has_room = true;
        // `end` itself is never reserved, and so ends the last run.
        for line in first..=end {
            let is_wanted =
                has_room && line < end && self.lines.state(line) == CacheLineState::Absent;
            let is_reserved = is_wanted && self.lines.reserve_line(line);
            has_room &= is_reserved == is_wanted;
            let start = *run_start.get_or_insert(line);
            // A run ends before a line that is not reserved, or at the largest request. One line
            // always makes a request.
            if is_reserved && line + 1 - start < lines_max.max(1) {
                continue;
            }
            let run_end = line + u64::from(is_reserved);
            if run_end > start {
                self.queue_line_read(start, run_end, priority);
            }
            run_start = None;
        }
        has_room
    }

    /// Queues a read of the lines `first..end`, at most up to the end of the device.
    fn queue_line_read(&mut self, first: u64, end: u64, priority: JobPriority) {
        let start = first * self.parts.line_sectors;
        let end_sector = (end * self.parts.line_sectors).min(self.inner_caps.sectors);
        let sectors = (end_sector - start) as u32;
        // The identifier is a placeholder: `submit_job` replaces it.
        let request = DeviceRequest { id: RequestId(0), op: Op::Read, start, sectors };
        self.queue_job(JobPurpose::Fill { first, end }, request, priority);
    }

    /// Queues a job for the device.
    fn queue_job(&mut self, purpose: JobPurpose, request: DeviceRequest, priority: JobPriority) {
        let index = self.jobs.add(ControllerJob { purpose, request });
        match priority {
            JobPriority::Urgent => self.urgent_jobs.push_back(index),
            JobPriority::ReadAhead => self.read_ahead_jobs.push_back(index),
        }
    }

    /// Passes queued jobs to the device while it has room. A read first occupies the processor.
    fn submit_queued(&mut self, now: Time) {
        while self.inner_in_flight < self.inner_caps.depth_max
            && let Some(index) = self.take_next_job()
        {
            self.inner_in_flight += 1;
            if self.needs_processor(index) {
                self.is_processor_busy = true;
                self.events.add(now + self.parts.miss, ControllerEvent::Issued(index));
            } else {
                self.submit_job(now, index);
            }
        }
    }

    /// Removes and returns the next job that can begin now. A read cannot begin while it needs the
    /// busy processor. A write-back is due while a request of the host waits for it. Due ones and
    /// urgent jobs alternate, unless only one of the two kinds can begin. While no urgent job is
    /// queued, read-ahead that can begin goes next, and then the other write-backs.
    fn take_next_job(&mut self) -> Option<u32> {
        let can_begin = |job: Option<&u32>| {
            job.is_some_and(|job| !self.is_processor_busy || !self.needs_processor(*job))
        };
        let is_urgent_ready = can_begin(self.urgent_jobs.front());
        if self.write_cache.is_due() && !(is_urgent_ready && self.is_reads_turn) {
            self.is_reads_turn = true;
            return self.write_cache.begin_oldest();
        }
        if is_urgent_ready {
            self.is_reads_turn = false;
            return self.urgent_jobs.pop_front();
        }
        if !self.urgent_jobs.is_empty() {
            return None;
        }
        match can_begin(self.read_ahead_jobs.front()) {
            true => self.read_ahead_jobs.pop_front(),
            false => self.write_cache.begin_oldest(),
        }
    }

    /// Returns true if the job occupies the processor before it goes to the device.
    fn needs_processor(&self, index: u32) -> bool {
        self.jobs[index].request.op == Op::Read && self.parts.miss > Time::ZERO
    }

    /// Submits the job with this index to the device behind the controller.
    fn submit_job(&mut self, now: Time, index: u32) {
        let request = self.jobs[index].request;
        self.inner.submit(now, DeviceRequest { id: RequestId(index), ..request });
    }

    /// Handles a write whose data has arrived: drops the present lines that it overlaps, and queues
    /// the write. A line that is still being read stays, as the model carries no data. Without a
    /// write cache the write goes to the device and completes there.
    fn receive_write_data(&mut self, now: Time, slot: u32) {
        let request = self.slots[slot].request;
        let line_sectors = self.parts.line_sectors;
        for line in request.start / line_sectors..request.end().div_ceil(line_sectors) {
            if self.lines.state(line) == CacheLineState::Present {
                self.lines.discard(line);
            }
        }
        if self.parts.write_cache_bytes == 0 {
            self.queue_job(JobPurpose::Direct(slot), request, JobPriority::Urgent);
            return;
        }
        self.write_cache.add_write(slot, bytes_of(&request));
        self.admit_writes(now);
    }

    /// Moves waiting writes into the write cache, in order, and completes them.
    fn admit_writes(&mut self, now: Time) {
        while let Some((slot, number)) = self.write_cache.admit_write() {
            let request = self.slots[slot].request;
            let purpose = JobPurpose::WriteBack(number);
            let job = self.jobs.add(ControllerJob { purpose, request });
            self.write_cache.queue_write_back(number, job, bytes_of(&request));
            self.events.add(now, ControllerEvent::Answered(slot, Outcome::Done));
        }
    }

    /// Handles a flush. A battery-backed cache answers it at once, as its data are safe there. The
    /// answer reports an error of the write-backs and member flushes up to `number`, if any. A
    /// volatile cache first ends all write-backs up to `number`. The device behind the controller
    /// is flushed afterwards in both cases. Without a write cache only that device is flushed.
    fn begin_flush(&mut self, now: Time, id: RequestId, number: u64) {
        if self.parts.write_cache_survives_power_loss {
            let lost_write = self.write_cache.take_lost_writes(number);
            let outcome = lost_write.map_or(Outcome::Done, Outcome::Failed);
            self.events.add(now, ControllerEvent::Flushed(id, outcome));
            self.write_cache.request_member_flush(number);
        } else {
            self.write_cache.add_flush(id, number);
        }
        self.flush_inner(now);
    }

    /// Flushes the device behind the controller for each flush whose data are all in that device. A
    /// waiting flush of the host takes the error of a lost write with it.
    fn flush_inner(&mut self, now: Time) {
        while let Some((id, number)) = self.write_cache.take_written_flush() {
            let lost_write = self.write_cache.take_lost_writes(number);
            self.submit_flush(now, JobPurpose::Flush(id, lost_write));
        }
        while let Some(number) = self.write_cache.begin_member_flush() {
            self.submit_flush(now, JobPurpose::MemberFlush(number));
        }
    }

    /// Submits a flush to the device behind the controller. The request of the job is a
    /// placeholder, because a flush has no sectors.
    fn submit_flush(&mut self, now: Time, purpose: JobPurpose) {
        let request = DeviceRequest { id: RequestId(0), op: Op::Write, start: 0, sectors: 0 };
        let index = self.jobs.add(ControllerJob { purpose, request });
        self.inner.flush(now, RequestId(index));
    }

    /// Sends the data of the read in `slot` over the link, then completes it with `outcome`. A
    /// failed read has no data to send.
    fn send_read_data(&mut self, now: Time, slot: u32, outcome: Outcome) {
        let bytes = match outcome {
            Outcome::Done => bytes_of(&self.slots[slot].request),
            Outcome::Short { bytes } => bytes,
            Outcome::Failed(_) => 0,
        };
        let sent_time = self.link_out.as_mut().map_or(now, |link| link.queue_transfer(now, bytes));
        self.events.add(sent_time, ControllerEvent::Answered(slot, outcome));
    }

    /// Handles a completed request of the device by its purpose. Answers a direct request, or a
    /// flush of the host, which fails if a write was lost. Records the outcome of a write-back or a
    /// member flush. After a write-back, waiting writes enter the cache and ready flushes begin.
    /// Marks read lines as present, drops each that a waiting stream has read to its end, and
    /// answers requests that wait for no other line. Drops lines whose read failed or was short.
    fn finish_job(&mut self, now: Time, completion: &Completion) {
        let ControllerJob { purpose, request } = self.jobs.take(completion.id.0);
        let device_outcome = completion.outcome;
        if !matches!(purpose, JobPurpose::Flush(..) | JobPurpose::MemberFlush(_)) {
            self.inner_in_flight -= 1;
        }
        match purpose {
            JobPurpose::Flush(id, lost_write) => {
                let outcome = lost_write.map_or(device_outcome, Outcome::Failed);
                self.events.add(now, ControllerEvent::Flushed(id, outcome));
            }
            JobPurpose::MemberFlush(number) => {
                self.write_cache.record_outcome(number, device_outcome);
            }
            JobPurpose::Direct(slot) => match request.op {
                Op::Read => self.send_read_data(now, slot, device_outcome),
                Op::Write => self.events.add(now, ControllerEvent::Answered(slot, device_outcome)),
            },
            JobPurpose::WriteBack(number) => {
                self.write_cache.end_write_back(number, bytes_of(&request), device_outcome);
                self.admit_writes(now);
                self.flush_inner(now);
            }
            JobPurpose::Fill { first, end } if device_outcome == Outcome::Done => {
                for line in first..end {
                    self.lines.mark_present(line);
                    while let Some(slot) = self.lines.take_waiter(line) {
                        let waiter = &mut self.slots[slot];
                        waiter.lines_left -= 1;
                        let is_last = waiter.lines_left == 0;
                        self.evict_read_line(line, slot);
                        if is_last {
                            self.send_read_data(now, slot, Outcome::Done);
                        }
                    }
                }
            }
            JobPurpose::Fill { first, end } => {
                (first..end).for_each(|line| self.drop_failed_line(line))
            }
        }
    }

    /// Drops a line whose read failed. Requests that waited for it read all their sectors from the
    /// device, so they wait for none of their other lines either.
    fn drop_failed_line(&mut self, line: u64) {
        self.lines.discard(line);
        while let Some(slot) = self.lines.take_waiter(line) {
            let (request, line_sectors) = (self.slots[slot].request, self.parts.line_sectors);
            for other in request.start / line_sectors..request.end().div_ceil(line_sectors) {
                self.lines.remove_waiter(other, slot);
            }
            self.queue_job(JobPurpose::Direct(slot), request, JobPriority::Urgent);
        }
    }
}

/// Size of a request in bytes.
fn bytes_of(request: &DeviceRequest) -> u64 {
    u64::from(request.sectors) * SECTOR_BYTES
}

impl Device for Controller {
    /// Limits of the device behind the controller, with the queue depth of the controller.
    fn caps(&self) -> DeviceCaps {
        DeviceCaps { depth_max: self.parts.depth_max, ..self.inner_caps }
    }

    /// Accepts a request at time `now`. Its overhead begins at once.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let slot = self.slots.add(ControllerRequest { request, lines_left: 0, is_stream: false });
        self.events.add(now + self.parts.overhead, ControllerEvent::OverheadPassed(slot));
    }

    /// Accepts a flush of the writes so far. It begins after the controller's overhead.
    fn flush(&mut self, now: Time, id: RequestId) {
        let event = ControllerEvent::FlushOverheadPassed(id, self.write_cache.newest_number());
        self.events.add(now + self.parts.overhead, event);
    }

    /// Returns the time of the next event of the controller or the device behind it.
    fn next_event(&self) -> Option<Time> {
        [self.events.next_at(), self.inner.next_event()].into_iter().flatten().min()
    }

    /// Processes the events up to `now`. Returns the next completion, if any.
    fn poll(&mut self, now: Time) -> Option<Completion> {
        loop {
            while let Some(completion) = self.inner.poll(now) {
                self.finish_job(now, &completion);
                self.submit_queued(now);
            }
            let (time, event) = self.events.take_due(now)?;
            match event {
                ControllerEvent::OverheadPassed(slot) => self.start_request(time, slot),
                ControllerEvent::DataIn(slot) => self.receive_write_data(time, slot),
                ControllerEvent::FlushOverheadPassed(id, number) => {
                    self.begin_flush(time, id, number);
                }
                ControllerEvent::Flushed(id, outcome) => {
                    return Some(Completion::at(time, id, outcome));
                }
                ControllerEvent::Issued(index) => {
                    self.is_processor_busy = false;
                    self.submit_job(time, index);
                }
                ControllerEvent::Answered(slot, outcome) => {
                    let id = self.slots.take(slot).request.id;
                    return Some(Completion::at(time, id, outcome));
                }
            }
            self.submit_queued(time);
        }
    }
}
