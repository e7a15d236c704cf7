//! A shingled drive that manages itself (drive-managed SMR), over a conventional device.
//!
//! Tracks overlap, so a band of tracks can be written from its first sector on only. The drive
//! hides this by a persistent cache on the medium:
//!
//! - A write goes to the log of the cache, together with the other waiting writes, as one
//!   transaction. The drive then records where the data lie.
//! - A sequential stream of writes goes directly to its bands.
//! - Cleaning reads a band and its newer data in the cache, writes both to a reserve band, and then
//!   writes the band in place. It runs while the drive is idle, oldest data first. Once log or map
//!   are full, writes wait for it.
//! - A read collects its parts from band and cache.
//!
//! The member is the drive's mechanics. Its first sectors are the cache, then the reserve band,
//! then the bands. Source of the structure: Aghayev and Desnoyers, "Skylight: A Window on Shingled
//! Disk Operation", FAST 2015. Reads from the memory of the drive before the log are not modelled.

use std::collections::{BTreeMap, VecDeque};

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use self::cleaning::Cleaning;
use self::map::{CacheMap, Place};
use self::stream::WriteStream;
use super::agenda::EventQueue;
use super::parameter_spec::ParameterValues;
use super::{BoxedDevice, Device};

mod cleaning;
mod map;
mod settings;
mod stream;

pub use settings::PARAMETERS;

/// Largest log transaction in sectors. Chosen: 4 MiB, some hundred small writes to one record.
const TRANSACTION_SECTORS_MAX: u64 = 8_192;
/// Time of a command that needs no medium. Chosen: as of the modelled SATA drives.
const COMMAND: Time = Time::from_us(100);

/// A shingled drive in virtual time.
pub struct Smr {
    /// The mechanics. It sees the addresses of the medium.
    member: BoxedDevice,
    /// Limits that the host sees.
    caps: DeviceCaps,
    /// Requests in the member at most, and the largest one in sectors.
    member_depth: usize,
    member_sectors_max: u64,
    layout: Layout,
    map: CacheMap,
    stream: WriteStream,
    settings: Timing,
    /// Parts of reads and of cleaning that wait for the member, in order.
    waiting_parts: VecDeque<Part>,
    /// Parts of the transaction that wait for the member. They go first.
    transaction_parts: VecDeque<Part>,
    /// Owners of the member's requests by their number, and the next number.
    in_member: BTreeMap<u32, Owner>,
    next_number: u32,
    /// Parts of each host request in flight that are not done.
    host_parts: BTreeMap<u32, u64>,
    /// Written pieces that are not on the medium, in order of arrival.
    pieces: VecDeque<Piece>,
    /// Sectors of writes that were reported complete and are not on the medium.
    buffered_sectors: u64,
    /// Pieces being written, and their parts that are not done.
    transaction: Vec<Piece>,
    transaction_parts_left: u64,
    /// Log transactions so far.
    log_transactions: u64,
    cleaning: Option<Cleaning>,
    /// Bands whose stream of writes ended before the band did.
    torn_bands: VecDeque<u64>,
    /// Pieces that have arrived, and that are on the medium. Pieces leave in order.
    arrived_pieces: u64,
    written_pieces: u64,
    /// Waiting flushes, each with the pieces that must be on the medium.
    flushes: VecDeque<(RequestId, u64)>,
    /// The transaction keeps the arm until this time, and ends no earlier.
    held_until: Time,
    /// Time of the last event that was processed.
    clock: Time,
    /// Time of the last arrival of a request, and of the last end of one.
    last_use: Time,
    completions: EventQueue<RequestId>,
}

/// Division of the medium, in sectors.
#[derive(Clone, Copy, Debug)]
struct Layout {
    band_sectors: u64,
    /// First sector of the reserve band: the end of the cache.
    reserve: u64,
}

impl Layout {
    /// Returns the place on the medium of a user sector in its band.
    const fn of_user(self, sector: u64) -> u64 {
        self.reserve + self.band_sectors + sector
    }
}

/// Times and limits of the drive.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// Memory for writes that are reported complete, in sectors.
    buffer_sectors: u64,
    /// Shortest time of a transaction: its data and the record of their places.
    transaction: Time,
    /// Every n-th transaction writes the map, in this time.
    checkpoint_every: u64,
    checkpoint: Time,
    /// Idle time before cleaning.
    idle: Time,
}

/// A written piece of one band.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Host request to complete when the piece is on the medium; `None` once it is reported.
    id: Option<RequestId>,
    start: u64,
    sectors: u64,
    /// True if the piece goes to its band, past the cache.
    is_direct: bool,
}

/// A request to the member.
#[derive(Clone, Copy, Debug)]
struct Part {
    op: Op,
    start: u64,
    sectors: u64,
    owner: Owner,
}

/// Reason for a request to the member.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Read(RequestId),
    Transaction,
    Cleaning,
}

impl Smr {
    /// Creates the drive over `member`.
    ///
    /// # Errors
    /// Fails on an unknown parameter, on an invalid value, and on a member that is too small.
    pub fn from_spec(spec: &Spec, member: BoxedDevice) -> Result<Smr, SpecError> {
        let values = ParameterValues::read(spec, &PARAMETERS)?;
        let (member_caps, sectors) = (member.caps(), |key: &str| values.of(key) / SECTOR_BYTES);
        let (band_sectors, cache_sectors) = (sectors("band"), sectors("cache"));
        let reserved = cache_sectors + band_sectors;
        let bands = member_caps.sectors.saturating_sub(reserved) / band_sectors;
        if bands == 0 {
            let expected = "a cache that leaves the member a band".to_owned();
            return Err(values.contradiction("cache", expected));
        }
        let buffer_sectors = if values.of("write_cache") == 1 { sectors("buffer") } else { 0 };
        Ok(Smr {
            caps: DeviceCaps { sectors: bands * band_sectors, ..member_caps },
            member_depth: member_caps.depth_max as usize,
            member_sectors_max: u64::from(member_caps.request_sectors_max),
            member,
            layout: Layout { band_sectors, reserve: cache_sectors },
            map: CacheMap::new(band_sectors, cache_sectors, values.of("map") as usize),
            stream: WriteStream::new(band_sectors, sectors("stream")),
            settings: Timing {
                buffer_sectors,
                transaction: Time(values.of("transaction")),
                checkpoint_every: values.of("checkpoint_every"),
                checkpoint: Time(values.of("checkpoint")),
                idle: Time(values.of("idle")),
            },
            waiting_parts: VecDeque::new(),
            transaction_parts: VecDeque::new(),
            in_member: BTreeMap::new(),
            next_number: 0,
            host_parts: BTreeMap::new(),
            pieces: VecDeque::new(),
            buffered_sectors: 0,
            transaction: Vec::new(),
            transaction_parts_left: 0,
            log_transactions: 0,
            cleaning: None,
            torn_bands: VecDeque::new(),
            arrived_pieces: 0,
            written_pieces: 0,
            flushes: VecDeque::new(),
            held_until: Time::ZERO,
            clock: Time::ZERO,
            last_use: Time::ZERO,
            completions: EventQueue::new(),
        })
    }

    /// Queues the parts of a read.
    fn accept_read(&mut self, request: DeviceRequest) {
        let mut parts = 0;
        for (place, sectors) in self.map.places(request.start, u64::from(request.sectors)) {
            let start = match place {
                Place::Band(sector) => self.layout.of_user(sector),
                Place::Cache(sector) => sector,
            };
            parts += self.queue_parts(Op::Read, start, sectors, Owner::Read(request.id));
        }
        self.host_parts.insert(request.id.0, parts);
    }

    /// Queues the pieces of a write. A write that fits the drive's memory is complete at once.
    fn accept_write(&mut self, now: Time, request: DeviceRequest) {
        let sectors = u64::from(request.sectors);
        let is_early = self.buffered_sectors + sectors <= self.settings.buffer_sectors;
        let mut count = 0;
        if let Some(band) = self.stream.torn_band(request.start) {
            self.torn_bands.push_back(band);
        }
        for (start, sectors, is_direct) in self.stream.divide(request.start, sectors) {
            let id = (!is_early).then_some(request.id);
            self.pieces.push_back(Piece { id, start, sectors, is_direct });
            count += 1;
        }
        self.arrived_pieces += count;
        if is_early {
            self.buffered_sectors += sectors;
            self.completions.add(now + COMMAND, request.id);
        } else {
            self.host_parts.insert(request.id.0, count);
        }
    }

    /// Queues a transfer as parts of the member's size. Returns their number.
    fn queue_parts(&mut self, op: Op, start: u64, sectors: u64, owner: Owner) -> u64 {
        let (mut next, end) = (start, start + sectors);
        while next < end {
            let sectors = self.member_sectors_max.min(end - next);
            let part = Part { op, start: next, sectors, owner };
            match owner {
                Owner::Transaction => self.transaction_parts.push_back(part),
                Owner::Read(_) | Owner::Cleaning => self.waiting_parts.push_back(part),
            }
            next += sectors;
        }
        sectors.div_ceil(self.member_sectors_max)
    }

    /// Brings the drive to the time `now`, event by event.
    fn advance(&mut self, now: Time) {
        while let Some(at) = self.next_internal().filter(|at| *at <= now) {
            self.clock = at;
            while let Some(completion) = self.member.poll(at) {
                self.on_member_completion(completion);
            }
            self.work(at);
        }
        self.clock = now;
    }

    /// Returns the time of the next event of the member, of a transaction, or of the idle timer.
    fn next_internal(&self) -> Option<Time> {
        let is_written = !self.transaction.is_empty() && self.transaction_parts_left == 0;
        let is_held = !self.waiting_parts.is_empty() && self.in_member.len() < self.member_depth;
        let held = (is_written || is_held).then_some(self.held_until);
        let is_dirty = !self.map.is_empty() || !self.torn_bands.is_empty();
        let idle = (is_dirty && self.cleaning.is_none() && self.is_idle())
            .then(|| self.last_use + self.settings.idle);
        let next = [self.member.next_event(), held, idle].into_iter().flatten().min();
        next.map(|at| at.max(self.clock))
    }

    /// Returns true if no host request and no written piece waits.
    fn is_idle(&self) -> bool {
        self.host_parts.is_empty() && self.pieces.is_empty() && self.transaction.is_empty()
    }

    /// Ends and starts all work that is due at the time `now`.
    fn work(&mut self, now: Time) {
        let is_written = !self.transaction.is_empty() && self.transaction_parts_left == 0;
        if is_written && now >= self.held_until {
            self.on_transaction_end(now);
        }
        if self.transaction.is_empty() && !self.pieces.is_empty() {
            self.start_transaction(now);
        }
        let is_full = self.transaction.is_empty() && !self.pieces.is_empty();
        let is_due = self.is_idle() && now >= self.last_use + self.settings.idle;
        if self.cleaning.is_none() && (is_full || is_due) {
            self.start_cleaning();
        }
        while self.in_member.len() < self.member_depth {
            let is_held = now < self.held_until;
            let part = self.transaction_parts.pop_front();
            let other = || if is_held { None } else { self.waiting_parts.pop_front() };
            let Some(part) = part.or_else(other) else { break };
            self.submit_part(now, part);
        }
    }

    /// Submits a part to the member.
    fn submit_part(&mut self, now: Time, part: Part) {
        let id = RequestId(self.next_number);
        self.next_number = self.next_number.wrapping_add(1);
        self.in_member.insert(id.0, part.owner);
        let Part { op, start, sectors, .. } = part;
        self.member.submit(now, DeviceRequest { id, op, start, sectors: sectors as u32 });
    }

    /// Writes the waiting pieces at the front: the ones of a direct stream in one band, or as many
    /// as fit the log. Does nothing if log or map are full.
    fn start_transaction(&mut self, now: Time) {
        let mut sectors_in_all = 0;
        // Places on the medium, each with its size. Adjacent pieces are one place.
        let mut places: Vec<(u64, u64)> = Vec::new();
        while let Some(piece) = self.pieces.front().copied() {
            let first = self.transaction.first().copied().unwrap_or(piece);
            let is_same_kind = first.is_direct == piece.is_direct;
            let fits = match piece.is_direct {
                true => first.start / self.layout.band_sectors == self.band_of(piece),
                false => {
                    sectors_in_all + piece.sectors <= TRANSACTION_SECTORS_MAX.max(piece.sectors)
                        && self.map.has_room(piece.sectors)
                }
            };
            if !is_same_kind || !fits {
                break;
            }
            self.pieces.pop_front();
            self.transaction.push(piece);
            sectors_in_all += piece.sectors;
            let start = if piece.is_direct {
                self.map.remove(piece.start, piece.sectors);
                self.layout.of_user(piece.start)
            } else {
                self.map.append(piece.start, piece.sectors)
            };
            match places.last_mut().filter(|(place, sectors)| place + sectors == start) {
                Some((_, sectors)) => *sectors += piece.sectors,
                None => places.push((start, piece.sectors)),
            }
        }
        for (start, sectors) in places {
            self.transaction_parts_left +=
                self.queue_parts(Op::Write, start, sectors, Owner::Transaction);
        }
        if self.transaction.first().is_some_and(|piece| !piece.is_direct) {
            self.log_transactions += 1;
            self.held_until = now + self.settings.transaction;
            if self.log_transactions.is_multiple_of(self.settings.checkpoint_every) {
                self.held_until += self.settings.checkpoint;
            }
        }
    }

    /// Returns the band of a piece.
    const fn band_of(&self, piece: Piece) -> u64 {
        piece.start / self.layout.band_sectors
    }

    /// Starts the cleaning of a torn band, or of the band with the oldest data in the cache.
    fn start_cleaning(&mut self) {
        let Some(band) = self.torn_bands.pop_front().or_else(|| self.map.oldest_band()) else {
            return;
        };
        let mut cleaning = Cleaning::new(band);
        let user_start = band * self.layout.band_sectors;
        let mut parts = self.queue_parts(
            Op::Read,
            self.layout.of_user(user_start),
            self.layout.band_sectors,
            Owner::Cleaning,
        );
        for (start, sectors) in self.map.cached_parts(band) {
            parts += self.queue_parts(Op::Read, start, sectors, Owner::Cleaning);
        }
        cleaning.begin(parts);
        self.cleaning = Some(cleaning);
    }

    /// Moves the cleaning on by one completed part: from the read to the write of the reserve band,
    /// to the write in place, to its end.
    fn on_cleaning_part(&mut self) {
        let mut cleaning = self.cleaning.take().expect("a band is being cleaned");
        if !cleaning.ends_step() {
            self.cleaning = Some(cleaning);
            return;
        }
        let band_sectors = self.layout.band_sectors;
        let user_start = cleaning.band * band_sectors;
        let start = match cleaning.next_step() {
            cleaning::Step::Reserve => self.layout.reserve,
            cleaning::Step::InPlace => self.layout.of_user(user_start),
            cleaning::Step::Done => {
                self.map.remove(user_start, band_sectors);
                return;
            }
        };
        let parts = self.queue_parts(Op::Write, start, band_sectors, Owner::Cleaning);
        cleaning.begin(parts);
        self.cleaning = Some(cleaning);
    }

    /// Credits a completion of the member to its owner.
    fn on_member_completion(&mut self, completion: Completion) {
        let at = completion.at;
        match self.in_member.remove(&completion.id.0).expect("each part ends once") {
            Owner::Read(id) => self.on_host_part(at, id),
            Owner::Cleaning => self.on_cleaning_part(),
            Owner::Transaction => self.transaction_parts_left -= 1,
        }
    }

    /// Reports the pieces of a transaction and the flushes that waited for them.
    fn on_transaction_end(&mut self, at: Time) {
        for piece in std::mem::take(&mut self.transaction) {
            self.written_pieces += 1;
            match piece.id {
                Some(id) => self.on_host_part(at, id),
                None => self.buffered_sectors -= piece.sectors,
            }
        }
        self.last_use = at;
        while let Some((id, pieces)) = self.flushes.front().copied() {
            if pieces > self.written_pieces {
                break;
            }
            self.flushes.pop_front();
            self.completions.add(at, id);
        }
    }

    /// Counts a part of a host request. Completes the request after its last part.
    fn on_host_part(&mut self, at: Time, id: RequestId) {
        let parts = self.host_parts.get_mut(&id.0).expect("a host request is in flight");
        *parts -= 1;
        if *parts == 0 {
            self.host_parts.remove(&id.0);
            self.last_use = at;
            self.completions.add(at, id);
        }
    }
}

impl Device for Smr {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    fn submit(&mut self, now: Time, request: DeviceRequest) {
        self.advance(now);
        self.last_use = now;
        match request.op {
            Op::Read => self.accept_read(request),
            Op::Write => self.accept_write(now, request),
        }
        self.work(now);
    }

    fn flush(&mut self, now: Time, id: RequestId) {
        self.advance(now);
        if self.arrived_pieces == self.written_pieces {
            self.completions.add(now + COMMAND, id);
        } else {
            self.flushes.push_back((id, self.arrived_pieces));
        }
    }

    /// Returns the time of the next completion or of the next event inside. Cleaning of an idle
    /// drive and written data in its memory are no events, because no request waits for them.
    fn next_event(&self) -> Option<Time> {
        let has_waiting = !self.host_parts.is_empty() || !self.flushes.is_empty();
        let internal = if has_waiting { self.next_internal() } else { None };
        [self.completions.next_at(), internal].into_iter().flatten().min()
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        self.advance(now);
        let (at, id) = self.completions.take_due(now)?;
        Some(Completion::at(at, id, Outcome::Done))
    }
}
