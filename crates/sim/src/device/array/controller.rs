//! A controller with memory in front of a device: link, overhead, read-ahead
//! into a cache, writes answered from memory.
//!
//! A read that belongs to a sequential stream, long enough by then, is served
//! from lines; those that it lacks are read, and the stream's next ones with
//! them. Any other read takes what is in the cache, or goes to the device as
//! it came; only a server's memory keeps that too. Whatever answers it, its bytes cross the link to the host, one
//! transfer after the other. What the cache doesn't have costs the controller's
//! one processor time: there is no overlap in that, however many members there
//! are. A write crosses the link the other way, is
//! answered when the write cache has room for it, and leaves the cache when
//! the device has it. What reads ask for goes to the device before what is
//! read ahead or written back.
//!
//! A line that could not be read is dropped, and those who waited for it ask
//! the device themselves: an error reaches exactly the reads that needed the
//! bytes. A read does not look for what is still in the write cache.

use std::collections::VecDeque;

use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::lines::{CacheLineState, LineCache};
use super::streams::ControllerStreams;
use crate::device::agenda::EventQueue;
use crate::device::places::NumberedSlab;
use crate::device::rate::Link;
use crate::device::{BoxedDevice, Device};

/// How a controller is made.
#[derive(Clone, Copy, Debug)]
pub struct ControllerParts {
    /// Time for each request, from its arrival until the cache or the device is asked.
    pub overhead: Time,
    /// Time that each read of the device keeps the controller's processor, one after the other.
    pub miss: Time,
    /// The link in bytes a second, each way; `None`: the link is somebody else's.
    pub link_bytes_per_second: Option<u64>,
    /// Memory for reads in bytes; less than a line: no read cache.
    pub cache_bytes: u64,
    /// Whether the cache keeps whatever is read, as a server's memory does; else only
    /// streams go through it, and leave nothing behind.
    pub caches_all_reads: bool,
    /// Sectors of a line: what the cache reads and keeps as one.
    pub line_sectors: u64,
    /// Sectors read ahead of a stream.
    pub readahead_sectors: u64,
    /// Sectors read ahead of all streams together: each has its share.
    pub readahead_all_sectors: u64,
    /// Sectors that a stream must have read in sequence before it is read ahead.
    pub readahead_after_sectors: u64,
    /// Streams told apart at once.
    pub streams: usize,
    /// A stream that has not been heard of for so many requests of all has no share.
    pub inactive_after_requests: u64,
    /// Memory for writes in bytes; 0: a write is answered when the device has it.
    pub write_cache_bytes: u64,
    /// Whether that memory keeps what it holds without power, so that a flush asks for nothing.
    pub write_cache_survives_power_loss: bool,
    /// Requests taken at once.
    pub depth_max: u32,
}

/// A device with a controller in front.
pub struct Controller {
    parts: ControllerParts,
    inner: BoxedDevice,
    inner_caps: DeviceCaps,
    inner_in_flight: u32,
    is_processor_busy: bool,
    link_out: Option<Link>,
    link_in: Option<Link>,
    lines: LineCache,
    streams: ControllerStreams,
    write_cache_used: u64,
    writes_held: VecDeque<u32>,
    /// Flushes that wait for the write cache to be empty.
    flushes_waiting: Vec<RequestId>,
    agenda: EventQueue<ControllerEvent>,
    slots: NumberedSlab<ControllerRequest>,
    jobs: NumberedSlab<(ControllerJob, DeviceRequest)>,
    urgent: VecDeque<u32>,
    relaxed: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug)]
struct ControllerRequest {
    request: DeviceRequest,
    lines_left: u32,
}

#[derive(Clone, Copy, Debug)]
enum ControllerEvent {
    /// The controller has understood the request.
    Understood(u32),
    /// The processor is done with a job, which goes to the device now.
    Issued(u32),
    /// The data of a write is here.
    DataIn(u32),
    /// The host has its answer.
    Answered(u32, Outcome),
    /// The controller has understood a flush.
    FlushAsked(RequestId),
    /// The host knows its flush done.
    Flushed(RequestId),
}

/// Why the device is asked for something.
#[derive(Clone, Copy, Debug)]
enum ControllerJob {
    /// For one request, as it came.
    Direct(u32),
    /// To fill lines from this one up to and without that one.
    Fill(u64, u64),
    /// To write back what was answered already.
    WriteBack,
    /// A flush of the device, for the host's of this name.
    Flush(RequestId),
}

impl Controller {
    /// Puts a controller made of `parts` in front of `inner`.
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
            write_cache_used: 0,
            writes_held: VecDeque::new(),
            flushes_waiting: Vec::new(),
            agenda: EventQueue::new(),
            slots: NumberedSlab::new(),
            jobs: NumberedSlab::new(),
            urgent: VecDeque::new(),
            relaxed: VecDeque::new(),
            parts,
        }
    }

    fn has_read_cache(&self) -> bool {
        self.parts.cache_bytes >= self.parts.line_sectors * SECTOR_BYTES
    }

    fn understood(&mut self, now: Time, slot: u32) {
        let request = self.slots[slot].request;
        match request.op {
            Op::Read => self.read(now, slot, request),
            Op::Write => {
                let bytes = u64::from(request.sectors) * SECTOR_BYTES;
                let at = self.link_in.as_mut().map_or(now, |wire| wire.carry(now, bytes));
                self.agenda.add(at, ControllerEvent::DataIn(slot));
            }
        }
    }

    fn read(&mut self, now: Time, slot: u32, request: DeviceRequest) {
        let run_sectors = self.streams.hear(request.start, request.end());
        let line_sectors = self.parts.line_sectors;
        let (first, end) = (request.start / line_sectors, request.end().div_ceil(line_sectors));
        let is_stream = self.has_read_cache()
            && self.parts.readahead_sectors > 0
            && run_sectors >= self.parts.readahead_after_sectors;
        let is_kept = is_stream || (self.parts.caches_all_reads && self.has_read_cache());
        if is_kept && self.fill(first, end, true) && is_stream {
            self.read_ahead(request.end(), end);
        }
        if (first..end).any(|line| self.lines.state(line) == CacheLineState::Absent) {
            self.ask(ControllerJob::Direct(slot), request, true);
            return;
        }
        let mut lines_left = 0;
        for line in first..end {
            if self.lines.state(line) == CacheLineState::Coming {
                self.lines.wait(line, slot);
                lines_left += 1;
            } else if is_stream {
                self.evict_read_line(line, &request);
            }
        }
        self.slots[slot].lines_left = lines_left;
        if lines_left == 0 {
            self.send_read_data(now, slot, Outcome::Done);
        }
    }

    /// A stream has read the line to its end: it makes room for what is to come.
    fn evict_read_line(&mut self, line: u64, request: &DeviceRequest) {
        let is_read = (line + 1) * self.parts.line_sectors <= request.end();
        if is_read && !self.parts.caches_all_reads {
            self.lines.discard(line);
        }
    }

    /// Tops a stream up when less than half of what it may have is there, so that the
    /// members see few large requests, not many small ones.
    fn read_ahead(&mut self, sector: u64, from_line: u64) {
        let line_sectors = self.parts.line_sectors;
        let window_sectors = self.window_sectors();
        let line_at =
            |ahead: u64| (sector + ahead).min(self.inner_caps.sectors).div_ceil(line_sectors);
        let (half, whole) = (line_at(window_sectors / 2), line_at(window_sectors));
        let is_low = half > from_line && self.lines.state(half - 1) == CacheLineState::Absent;
        if is_low || self.lines.state(from_line) == CacheLineState::Absent {
            self.fill(from_line, whole.max(from_line), false);
        }
    }

    /// What one stream may have ahead: the streams that are being read have equal shares.
    fn window_sectors(&self) -> u64 {
        let streams = self.streams.active(self.parts.readahead_after_sectors).max(1);
        let share = self.parts.readahead_all_sectors / streams;
        self.parts.readahead_sectors.min(share).max(2 * self.parts.line_sectors)
    }

    /// Has the absent lines among `first..end` read; false when the cache has no room for them all.
    fn fill(&mut self, first: u64, end: u64, is_urgent: bool) -> bool {
        let lines_most = u64::from(self.inner_caps.request_sectors_max) / self.parts.line_sectors;
        let mut run_start = None;
        let mut has_room = true;
        for line in first..=end {
            let is_taken =
                has_room && line < end && self.lines.state(line) == CacheLineState::Absent && {
                    has_room = self.lines.expect(line);
                    has_room
                };
            let start = *run_start.get_or_insert(line);
            if is_taken && line + 1 - start < lines_most.max(1) {
                continue;
            }
            let run_end = line + u64::from(is_taken);
            if run_end > start {
                self.queue_line_read(start, run_end, is_urgent);
            }
            run_start = None;
        }
        has_room
    }

    fn queue_line_read(&mut self, first: u64, end: u64, is_urgent: bool) {
        let start = first * self.parts.line_sectors;
        let end_sector = (end * self.parts.line_sectors).min(self.inner_caps.sectors);
        let sectors = (end_sector - start) as u32;
        let request = DeviceRequest { id: RequestId(0), op: Op::Read, start, sectors };
        self.ask(ControllerJob::Fill(first, end), request, is_urgent);
    }

    fn ask(&mut self, job: ControllerJob, request: DeviceRequest, is_urgent: bool) {
        let index = self.jobs.add((job, request));
        if is_urgent { &mut self.urgent } else { &mut self.relaxed }.push_back(index);
    }

    fn feed(&mut self, now: Time) {
        while self.inner_in_flight < self.inner_caps.depth_max && !self.is_processor_busy {
            let next = self.urgent.pop_front().or_else(|| self.relaxed.pop_front());
            let Some(index) = next else { return };
            self.inner_in_flight += 1;
            if self.jobs[index].1.op == Op::Read && self.parts.miss > Time::ZERO {
                self.is_processor_busy = true;
                self.agenda.add(now + self.parts.miss, ControllerEvent::Issued(index));
            } else {
                self.issue(now, index);
            }
        }
    }

    fn issue(&mut self, now: Time, index: u32) {
        let request = self.jobs[index].1;
        self.inner.submit(now, DeviceRequest { id: RequestId(index), ..request });
    }

    fn receive_write_data(&mut self, now: Time, slot: u32) {
        let request = self.slots[slot].request;
        let line_sectors = self.parts.line_sectors;
        for line in request.start / line_sectors..request.end().div_ceil(line_sectors) {
            if self.lines.state(line) == CacheLineState::Present {
                self.lines.discard(line);
            }
        }
        if self.parts.write_cache_bytes == 0 {
            self.ask(ControllerJob::Direct(slot), request, true);
            return;
        }
        self.writes_held.push_back(slot);
        self.admit_writes(now);
    }

    fn admit_writes(&mut self, now: Time) {
        while let Some(&slot) = self.writes_held.front() {
            let request = self.slots[slot].request;
            let used = self.write_cache_used + u64::from(request.sectors) * SECTOR_BYTES;
            // A write larger than the whole cache waits until it is empty.
            if used > self.parts.write_cache_bytes && self.write_cache_used > 0 {
                return;
            }
            self.writes_held.pop_front();
            self.write_cache_used = used;
            self.ask(ControllerJob::WriteBack, request, false);
            self.agenda.add(now, ControllerEvent::Answered(slot, Outcome::Done));
        }
    }

    /// Memory with a battery keeps what it has; without it, it is written back first if it
    /// can hold any, and then the members are flushed.
    fn begin_flush(&mut self, now: Time, id: RequestId) {
        match self.parts.write_cache_survives_power_loss {
            true => self.agenda.add(now, ControllerEvent::Flushed(id)),
            false if self.write_cache_used > 0 => self.flushes_waiting.push(id),
            false => self.flush_members(now, id),
        }
    }

    fn flush_members(&mut self, now: Time, id: RequestId) {
        let request = DeviceRequest { id, op: Op::Write, start: 0, sectors: 0 };
        let index = self.jobs.add((ControllerJob::Flush(id), request));
        self.inner.flush(now, RequestId(index));
    }

    fn send_read_data(&mut self, now: Time, slot: u32, outcome: Outcome) {
        let bytes = match outcome {
            Outcome::Done => u64::from(self.slots[slot].request.sectors) * SECTOR_BYTES,
            Outcome::Short { bytes } => bytes,
            Outcome::Failed(_) => 0,
        };
        let at = self.link_out.as_mut().map_or(now, |wire| wire.carry(now, bytes));
        self.agenda.add(at, ControllerEvent::Answered(slot, outcome));
    }

    fn finish_job(&mut self, now: Time, completion: &Completion) {
        let (job, request) = self.jobs.take(completion.id.0);
        if let ControllerJob::Flush(id) = job {
            return self.agenda.add(now, ControllerEvent::Flushed(id));
        }
        self.inner_in_flight -= 1;
        match job {
            ControllerJob::Flush(_) => unreachable!("answered above"),
            ControllerJob::Direct(slot) => match request.op {
                Op::Read => self.send_read_data(now, slot, completion.outcome),
                Op::Write => {
                    self.agenda.add(now, ControllerEvent::Answered(slot, completion.outcome))
                }
            },
            ControllerJob::WriteBack => {
                self.write_cache_used -= u64::from(request.sectors) * SECTOR_BYTES;
                self.admit_writes(now);
                if self.write_cache_used == 0 {
                    let held = std::mem::take(&mut self.flushes_waiting);
                    held.into_iter().for_each(|id| self.flush_members(now, id));
                }
            }
            ControllerJob::Fill(first, end) if completion.outcome == Outcome::Done => {
                for line in first..end {
                    self.lines.arrive(line);
                    while let Some(slot) = self.lines.next_waiter(line) {
                        let this = &mut self.slots[slot];
                        let request = this.request;
                        this.lines_left -= 1;
                        let is_last = this.lines_left == 0;
                        self.evict_read_line(line, &request);
                        if is_last {
                            self.send_read_data(now, slot, Outcome::Done);
                        }
                    }
                }
            }
            ControllerJob::Fill(first, end) => (first..end).for_each(|line| self.give_up(line)),
        }
    }

    /// The line could not be read: those who waited for it ask for themselves.
    fn give_up(&mut self, line: u64) {
        self.lines.discard(line);
        while let Some(slot) = self.lines.next_waiter(line) {
            let request = self.slots[slot].request;
            let line_sectors = self.parts.line_sectors;
            for other in request.start / line_sectors..request.end().div_ceil(line_sectors) {
                self.lines.forget(other, slot);
            }
            self.ask(ControllerJob::Direct(slot), request, true);
        }
    }
}

impl Device for Controller {
    fn caps(&self) -> DeviceCaps {
        DeviceCaps { depth_max: self.parts.depth_max, ..self.inner_caps }
    }

    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let slot = self.slots.add(ControllerRequest { request, lines_left: 0 });
        self.agenda.add(now + self.parts.overhead, ControllerEvent::Understood(slot));
    }

    fn flush(&mut self, now: Time, id: RequestId) {
        self.agenda.add(now + self.parts.overhead, ControllerEvent::FlushAsked(id));
    }

    fn next_event(&self) -> Option<Time> {
        [self.agenda.next_at(), self.inner.next_event()].into_iter().flatten().min()
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        loop {
            while let Some(completion) = self.inner.poll(now) {
                self.finish_job(now, &completion);
                self.feed(now);
            }
            let (at, event) = self.agenda.take_due(now)?;
            match event {
                ControllerEvent::Understood(slot) => self.understood(at, slot),
                ControllerEvent::DataIn(slot) => self.receive_write_data(at, slot),
                ControllerEvent::FlushAsked(id) => self.begin_flush(at, id),
                ControllerEvent::Flushed(id) => return Some(Completion::at(at, id, Outcome::Done)),
                ControllerEvent::Issued(index) => {
                    self.is_processor_busy = false;
                    self.issue(at, index);
                }
                ControllerEvent::Answered(slot, outcome) => {
                    let id = self.slots.take(slot).request.id;
                    return Some(Completion::at(at, id, outcome));
                }
            }
            self.feed(at);
        }
    }
}
