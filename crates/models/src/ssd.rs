//! A solid-state drive: flash dies and channels behind one controller and one host link.
//!
//! - A read takes controller overhead, senses its flash pages on their dies, and transfers the data
//!   over the channels of these dies and the host link. It completes with its last byte.
//! - Pages are distributed over channels first, then ways, dies and planes (CWDP in MQSim's terms).
//!   Adjacent pages are therefore read in parallel.
//! - A write crosses the link, completes from the buffer, and is programmed in the background. It
//!   waits only when the buffer is full.
//! - Overwritten pages become invalid. A full drive must collect blocks to make room
//!   (`ssd/translation.rs`).
//!
//! A *flash page* is the unit that a die senses (parameter `page`). A page of the buffer and of the
//! garbage collection is one of the host, with 4 KiB.
//!
//! A read passes controller, map page if needed, die, channel and link, in this order. Each of them
//! has a queue, and all delays result from these queues. The die of an overwritten page is not
//! tracked: a read uses the position that the address had when the drive was filled in order.

use std::collections::VecDeque;

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, PageRange, SECTOR_BYTES, Time};

use super::Device;
use super::due::{FifoEvents, NEVER};
use super::numbered_slab::NumberedSlab;
use super::parameter_spec::{ParameterSpec, ParameterValues};
use super::rate::Link;

mod buffer;
mod drives;
mod flash;
mod map;
mod translation;
mod written;

use buffer::WriteBuffer;
pub use drives::{intel_520, mqsim, nvme_gen5, nvme_today, sata_2012};
use flash::{Flash, FlashEvent, FlashTiming};
use map::{MapCache, MapMiss};
use translation::{FlashDivision, Translation};

/// A solid-state drive in virtual time.
///
/// Invariants: each slot is in exactly one of the queues below or in the flash. Times in each queue
/// are nondecreasing.
#[derive(Debug)]
pub struct Ssd {
    /// Limits from the parameters.
    caps: DeviceCaps,
    /// Distribution of flash pages over the dies.
    layout: FlashLayout,
    /// Delay between the start of a read in the controller and its first sensing.
    read_overhead: Time,
    /// Delay between the admission of a write to the buffer and its completion.
    write_overhead: Time,
    /// True if the buffer survives a power loss. A flush then completes after its overhead, without
    /// a program.
    write_cache_survives_power_loss: bool,
    /// Minimum time between two commands in the controller.
    command_interval: Time,
    /// Time from which the controller accepts the next command.
    controller_free_at: Time,
    /// Link to the host.
    link_out: Link,
    /// Link from the host, or `None` if both directions share `link_out`.
    link_in: Option<Link>,
    /// The part of the logical-to-physical map that is in memory.
    map: MapCache,
    /// Bytes of changed map pages that do not yet fill a program unit.
    changed_map_bytes: u64,
    /// Valid pages per block, and garbage collection.
    translation: Translation,
    /// Written data that is not yet programmed.
    buffer: WriteBuffer,
    /// Dies and channels.
    flash: Flash,
    /// Reads in the controller, by the time at which sensing starts.
    reads_in_controller: FifoEvents<u32>,
    /// Writes in the controller, by the time at which the transfer starts.
    writes_arriving: FifoEvents<u32>,
    /// Writes whose data is on the link.
    writes_on_link: FifoEvents<u32>,
    /// Writes that wait for room in the buffer.
    writes_waiting: VecDeque<u32>,
    /// Flushes in the controller, by the end of their overhead.
    flushes_arriving: FifoEvents<RequestId>,
    /// Flushes that wait, each with the number of bytes that must be programmed first.
    flushes_waiting: VecDeque<(u64, RequestId)>,
    /// Completed flushes, by their times.
    flushes_done: FifoEvents<RequestId>,
    /// Completed reads, by the time of the last byte at the host.
    reads_done: FifoEvents<u32>,
    /// Completed writes, by their times.
    writes_done: FifoEvents<u32>,
    /// Requests in flight. The keys are the numbers in the queues above.
    slots: NumberedSlab<SsdRequest>,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct SsdRequest {
    /// The request as submitted.
    request: DeviceRequest,
    /// Bytes that are not yet on the link to the host. For a write, all its bytes.
    bytes_left: u32,
    /// Bytes of map pages that are still read for the request, before its data. 0 for a write.
    map_bytes_left: u32,
}

/// Distribution of flash pages over the dies.
#[derive(Clone, Copy, Debug)]
struct FlashLayout {
    /// Base-2 logarithm of the size of a flash page in bytes.
    flash_page_shift: u32,
    /// Number of dies.
    dies: u32,
    /// Flash pages with the same row number in all planes of all dies: dies times planes.
    stripe_flash_pages: u64,
}

impl Ssd {
    /// Builds the drive that `spec` describes. `parameter_specs` contains the defaults:
    /// [`sata_2012`], [`intel_520`], [`nvme_today`], [`nvme_gen5`] or [`mqsim`].
    ///
    /// # Errors
    /// Fails on an unknown parameter and on an invalid value.
    pub fn from_spec(spec: &Spec, parameter_specs: &[ParameterSpec]) -> Result<Ssd, SpecError> {
        let settings = ParameterValues::read(spec, parameter_specs)?;
        let flash_page_bytes = settings.of("page");
        if !flash_page_bytes.is_power_of_two() {
            return Err(settings.contradiction("page", "a power of two".to_owned()));
        }
        let planes = settings.of("planes");
        // One program writes a flash page on each plane of a die.
        let unit_bytes = planes * flash_page_bytes;
        // The open unit stays in the buffer until it is full, so the largest request must fit next
        // to it. A request that is not aligned touches one more page of the host.
        let buffer_least = unit_bytes + settings.of("request_max") + PAGE_BYTES;
        if settings.of("buffer") < buffer_least {
            let expected = format!(
                "at least {buffer_least} bytes: the largest request and a page on each plane"
            );
            return Err(settings.contradiction("buffer", expected));
        }
        let flash = Flash::new(flash_timing(&settings, unit_bytes));
        let link_bytes_per_second = settings.of("link");
        let dies = settings.get_u32("channels") * settings.get_u32("dies_per_channel");
        let is_duplex = settings.of("link_duplex") == 1;
        Ok(Ssd {
            caps: DeviceCaps {
                sectors: settings.of("size") / SECTOR_BYTES,
                request_sectors_max: settings.get_u32("request_max") / SECTOR_BYTES as u32,
                depth_max: settings.get_u32("depth"),
                is_rotational: false,
                alignment_sectors: 1,
            },
            layout: FlashLayout {
                flash_page_shift: flash_page_bytes.trailing_zeros(),
                dies,
                stripe_flash_pages: u64::from(dies) * planes,
            },
            read_overhead: Time(settings.of("read_overhead")),
            write_overhead: Time(settings.of("write_overhead")),
            write_cache_survives_power_loss: settings.of("power_loss_protection") == 1,
            command_interval: Time(settings.of("command_interval")),
            controller_free_at: Time::ZERO,
            link_out: Link::new(link_bytes_per_second),
            link_in: is_duplex.then(|| Link::new(link_bytes_per_second)),
            map: MapCache::new(flash_page_bytes, settings.of("map_span")),
            changed_map_bytes: 0,
            // All sizes of the division are in pages of the host.
            translation: Translation::new(FlashDivision {
                pages: settings.of("size") / PAGE_BYTES,
                spare_percent: settings.of("spare"),
                free_percent: settings.of("kept_free"),
                block_pages: settings.of("pages_per_block") * unit_bytes / PAGE_BYTES,
                row_pages: unit_bytes / PAGE_BYTES,
                is_used: settings.of("used") == 1,
            }),
            buffer: WriteBuffer::new(settings.of("buffer"), unit_bytes),
            flash,
            reads_in_controller: FifoEvents::new(),
            writes_arriving: FifoEvents::new(),
            writes_on_link: FifoEvents::new(),
            writes_waiting: VecDeque::new(),
            flushes_arriving: FifoEvents::new(),
            flushes_waiting: VecDeque::new(),
            flushes_done: FifoEvents::new(),
            reads_done: FifoEvents::new(),
            writes_done: FifoEvents::new(),
            slots: NumberedSlab::new(),
        })
    }

    /// Starts a read after the controller overhead. Its map pages that are not in memory are read
    /// first, all at once.
    fn begin_read(&mut self, now: Time, slot: u32) {
        let is_write = false;
        let misses = self.load_map(now, self.slots[slot].request, is_write, slot);
        if misses == 0 {
            return self.read_data(now, slot);
        }
        self.slots[slot].map_bytes_left = misses << self.layout.flash_page_shift;
    }

    /// Reads a map page for `slot`. Map page number n lies on the die and the row of flash page n,
    /// because the model assigns the map no place of its own. Evicted map pages that were changed
    /// are programmed together, in the background, once they fill a program unit.
    fn read_map(&mut self, now: Time, miss: MapMiss, slot: u32) {
        let bytes = 1u32 << self.layout.flash_page_shift;
        let (die, row) = self.layout.die_and_row(miss.page);
        self.flash.read(now, die, row, slot, bytes);
        if miss.writes_back {
            self.changed_map_bytes += u64::from(bytes);
            if self.changed_map_bytes >= self.buffer.unit_bytes() {
                self.changed_map_bytes -= self.buffer.unit_bytes();
                // The flash counts a program unit of the map as a row that a collection moves.
                let (rows_read, rows_programmed) = (0, 1);
                self.flash.collect(now, rows_read, rows_programmed);
            }
        }
    }

    /// Loads the map pages of a request's sectors into memory, for `slot`. Returns the number of
    /// pages that must be read. A write is already complete, so that its reads only occupy the
    /// flash, and `BACKGROUND_SLOT` stands for it.
    fn load_map(&mut self, now: Time, request: DeviceRequest, is_write: bool, slot: u32) -> u32 {
        let mut misses = 0;
        let mut sector = request.start;
        while sector < request.end() {
            if let Some(miss) = self.map.look_up(sector, is_write) {
                self.read_map(now, miss, slot);
                misses += 1;
            }
            sector = (sector / self.map.sectors_per_page() + 1) * self.map.sectors_per_page();
        }
        misses
    }

    /// Reads the data of the request in `slot`: buffered pages directly, the others from flash.
    fn read_data(&mut self, now: Time, slot: u32) {
        let request = self.slots[slot].request;
        let mut offset = request.start * SECTOR_BYTES;
        let end = request.end() * SECTOR_BYTES;
        let mut buffered_bytes = 0;
        while offset < end {
            let flash_page = offset >> self.layout.flash_page_shift;
            let part_end = end.min((flash_page + 1) << self.layout.flash_page_shift);
            let bytes = (part_end - offset) as u32;
            if self.buffer.holds(PageRange::covering(offset, u64::from(bytes))) {
                buffered_bytes += bytes;
            } else {
                let (die, row) = self.layout.die_and_row(flash_page);
                self.flash.read(now, die, row, slot, bytes);
            }
            offset = part_end;
        }
        if buffered_bytes > 0 {
            self.send_to_host(now, slot, buffered_bytes);
        }
    }

    /// Sends `bytes` of the read in `slot` over the link. The last part completes the read.
    #[inline]
    fn send_to_host(&mut self, now: Time, slot: u32, bytes: u32) {
        let sent_at = self.link_out.queue_transfer(now, u64::from(bytes));
        let request = &mut self.slots[slot];
        request.bytes_left -= bytes;
        if request.bytes_left == 0 {
            self.reads_done.push(sent_at, slot);
        }
    }

    /// Starts the data transfer of a write over the link. Its `bytes_left` are all its bytes.
    fn begin_write(&mut self, now: Time, slot: u32) {
        let bytes = u64::from(self.slots[slot].bytes_left);
        let link = self.link_in.as_mut().unwrap_or(&mut self.link_out);
        self.writes_on_link.push(link.queue_transfer(now, bytes), slot);
    }

    /// Queues the write in `slot`, whose data has arrived. It completes when the buffer has room.
    fn queue_write(&mut self, now: Time, slot: u32) {
        self.writes_waiting.push_back(slot);
        self.admit_writes(now);
    }

    /// Starts a flush, after its overhead: programs the open unit, which collects the admitted
    /// bytes of the next program, even if it is not full. The flush waits for the bytes admitted
    /// since the start. If the buffer survives a power loss, the flush completes at once.
    fn begin_flush(&mut self, now: Time, id: RequestId) {
        if self.write_cache_survives_power_loss {
            return self.flushes_done.push(now, id);
        }
        if self.buffer.pad_open_unit() {
            self.flash.program(now);
        }
        self.flushes_waiting.push_back((self.buffer.admitted_bytes(), id));
        self.end_flushes(now);
    }

    /// Completes at `now` the flushes whose bytes have been programmed, in order.
    fn end_flushes(&mut self, now: Time) {
        while let Some(&(bytes, id)) = self.flushes_waiting.front()
            && self.buffer.programmed_bytes() >= bytes
        {
            self.flushes_waiting.pop_front();
            self.flushes_done.push(now, id);
        }
    }

    /// Moves waiting writes into the buffer, in order, and starts the programs that this causes.
    fn admit_writes(&mut self, now: Time) {
        while let Some(&slot) = self.writes_waiting.front() {
            let request = self.slots[slot].request;
            let bytes = u64::from(request.sectors) * SECTOR_BYTES;
            let pages = PageRange::covering(request.start * SECTOR_BYTES, bytes);
            // Number of program units that are full now. Without room in the buffer, writes wait.
            let Some(units) = self.buffer.admit(pages) else { return };
            self.writes_waiting.pop_front();
            self.writes_done.push(now + self.write_overhead, slot);
            let is_write = true;
            self.load_map(now, request, is_write, BACKGROUND_SLOT);
            // Rows that the garbage collection reads and programs to make room for the write.
            let moved = self.translation.write(pages);
            self.flash.collect(now, moved.reads, moved.programs);
            for _ in 0..units {
                self.flash.program(now);
            }
        }
    }

    /// Handles the earliest internal event up to `now`. Returns false if there is none. Events at
    /// the same time are handled in a fixed order, so a simulation is repeatable: flush, flash,
    /// read, write, link.
    #[inline]
    fn process_event(&mut self, now: Time) -> bool {
        let read_time = self.reads_in_controller.next();
        let write_time = self.writes_arriving.next();
        let link_time = self.writes_on_link.next();
        let (flash_time, die) = self.flash.next_event().unwrap_or((NEVER, 0));
        let flush_time = self.flushes_arriving.next();
        let event_time = read_time.min(write_time).min(link_time).min(flash_time).min(flush_time);
        if event_time > now || event_time == NEVER {
            return false;
        }
        if flush_time == event_time {
            let (_, id) = self.flushes_arriving.pop().expect("the queue has this event");
            self.begin_flush(event_time, id);
            return true;
        }
        if flash_time == event_time {
            match self.flash.advance(event_time, die) {
                FlashEvent::Read { slot, bytes } => self.finish_page(event_time, slot, bytes),
                FlashEvent::Program => {
                    self.buffer.release_unit();
                    self.end_flushes(event_time);
                    self.admit_writes(event_time);
                }
                FlashEvent::Nothing => {}
            }
        } else if read_time == event_time {
            let (_, slot) = self.reads_in_controller.pop().expect("the queue has this event");
            self.begin_read(event_time, slot);
        } else if write_time == event_time {
            let (_, slot) = self.writes_arriving.pop().expect("the queue has this event");
            self.begin_write(event_time, slot);
        } else {
            let (_, slot) = self.writes_on_link.pop().expect("the queue has this event");
            self.queue_write(event_time, slot);
        }
        true
    }

    /// Handles a page read: sends its data, or starts the data read after the last map page. No
    /// effect for a background read.
    #[inline]
    fn finish_page(&mut self, now: Time, slot: u32, bytes: u32) {
        if slot == BACKGROUND_SLOT {
            return;
        }
        let request = &mut self.slots[slot];
        if request.map_bytes_left == 0 {
            return self.send_to_host(now, slot, bytes);
        }
        request.map_bytes_left -= bytes;
        if request.map_bytes_left == 0 {
            self.read_data(now, slot);
        }
    }
}

impl Device for Ssd {
    /// Limits from the parameters: capacity, largest request, queue depth.
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Accepts a request at time `now`. The controller starts one command per interval.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let bytes = request.sectors * SECTOR_BYTES as u32;
        debug_assert!(
            self.slots.count() < self.caps.depth_max as usize,
            "the drive has a free slot"
        );
        let slot = self.slots.add(SsdRequest { request, bytes_left: bytes, map_bytes_left: 0 });
        let started_at = self.controller_free_at.max(now);
        self.controller_free_at = started_at + self.command_interval;
        match request.op {
            Op::Read => self.reads_in_controller.push(started_at + self.read_overhead, slot),
            Op::Write => self.writes_arriving.push(started_at, slot),
        }
    }

    /// Accepts a flush at time `now`. It begins after the overhead of a write, as the drives state
    /// none for a flush.
    #[inline]
    fn flush(&mut self, now: Time, id: RequestId) {
        let started_at = self.controller_free_at.max(now);
        self.controller_free_at = started_at + self.command_interval;
        self.flushes_arriving.push(started_at + self.write_overhead, id);
    }

    /// Returns the time of the next event; `None` if nothing is in progress.
    #[inline]
    fn next_event(&self) -> Option<Time> {
        let flash = self.flash.next_event().map_or(NEVER, |(time, _)| time);
        let arriving = self.reads_in_controller.next().min(self.writes_arriving.next());
        let done = self.reads_done.next().min(self.writes_done.next());
        let done = done.min(self.flushes_done.next()).min(self.flushes_arriving.next());
        let time = flash.min(arriving).min(done).min(self.writes_on_link.next());
        (time != NEVER).then_some(time)
    }

    /// Processes the events up to `now`. Returns the next completion, if any.
    #[inline]
    fn poll(&mut self, now: Time) -> Option<Completion> {
        while self.process_event(now) {}
        // A flush ends at the time of an event that has been processed, never after `now`.
        if let Some((time, id)) = self.flushes_done.pop() {
            return Some(Completion::at(time, id, Outcome::Done));
        }
        let read_time = self.reads_done.next();
        let write_time = self.writes_done.next();
        if read_time.min(write_time) > now {
            return None;
        }
        let done =
            if read_time <= write_time { &mut self.reads_done } else { &mut self.writes_done };
        let (time, slot) = done.pop()?;
        let id = self.slots.take(slot).request.id;
        Some(Completion::at(time, id, Outcome::Done))
    }
}

/// Slot number of background reads, which no request waits for.
const BACKGROUND_SLOT: u32 = u32::MAX;

impl FlashLayout {
    /// Returns the die of a flash page, and the row of the page in a plane of that die.
    #[inline]
    fn die_and_row(&self, flash_page: u64) -> (u32, u64) {
        let row = flash_page / self.stripe_flash_pages;
        let index_in_stripe = (flash_page - row * self.stripe_flash_pages) as u32;
        // Consecutive flash pages are on consecutive dies, first all on one plane, then on the
        // next one.
        (index_in_stripe % self.dies, row)
    }
}

/// Reads the flash parameters. Sense and program times depend on the bits per cell.
fn flash_timing(settings: &ParameterValues, unit_bytes: u64) -> FlashTiming {
    // The times for the lowest, middle and highest bit of a cell, by parameter key. A cell has one
    // to three bits.
    let by_bit = |lsb, csb, msb| {
        let keys: &[&str] = match settings.of("bits_per_cell") {
            1 => &[lsb],
            2 => &[lsb, msb],
            _ => &[lsb, csb, msb],
        };
        keys.iter().map(|key| Time(settings.of(key))).collect()
    };
    FlashTiming {
        channels: settings.get_u32("channels"),
        dies: settings.get_u32("channels") * settings.get_u32("dies_per_channel"),
        channel_bytes_per_second: settings.of("channel_rate"),
        sense_times: by_bit("read_lsb", "read_csb", "read_msb"),
        program_times: by_bit("program_lsb", "program_csb", "program_msb"),
        erase_time: Time(settings.of("erase")),
        pages_per_block: settings.get_u32("pages_per_block"),
        program_bytes: unit_bytes,
        suspend_program_time: Time(settings.of("suspend_program")),
        suspend_erase_time: Time(settings.of("suspend_erase")),
        data_programs_per_parity: settings.get_u32("parity"),
        reads_in_row_max: settings.get_u32("reads_in_row"),
    }
}
