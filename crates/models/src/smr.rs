//! A shingled drive that manages itself (drive-managed SMR), over a conventional device.
//!
//! Tracks overlap, so a band of tracks can be written from its first sector on only. The drive
//! hides this by a persistent cache on the medium:
//!
//! - A write goes to the log of the cache, together with the other waiting writes, as one
//!   transaction. The drive then records where the data lie.
//! - A sequential stream of writes goes directly to its bands.
//! - Cleaning reads a band and its newer data in the cache, writes both to a reserve band, and then
//!   writes the band in place. It runs while the drive is idle: first over the bands in which a
//!   stream ended (*torn* bands), then from the oldest data on. Once log or map are full, writes
//!   wait for it.
//! - A read collects its parts from band and cache.
//!
//! The member is the drive's mechanics. Its first sectors are the cache, then the reserve band,
//! then the bands. Source of the structure: Aghayev and Desnoyers, "Skylight: A Window on Shingled
//! Disk Operation", FAST 2015. Reads from the memory of the drive before the log are not modelled.
//!
//! Errors of the member are passed on as `raid0` does. The next flush reports an error of a write
//! that was complete before. Errors of cleaning are lost, since no request waits for it.

use std::collections::{BTreeMap, VecDeque};

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};

use self::cleaning::Cleaning;
use self::map::{CacheMap, Place};
use self::stream::WriteStream;
use super::agenda::EventQueue;
use super::parameter_spec::ParameterValues;
use super::parted_request::PartedRequest;
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
    timing: Timing,
    /// Parts of reads and of cleaning that wait for the member, in order.
    waiting_parts: VecDeque<Part>,
    /// Parts of the transaction that wait for the member. They go first.
    transaction_parts: VecDeque<Part>,
    /// The member's requests by their number, and the next number.
    in_member: BTreeMap<u32, Part>,
    next_number: u32,
    /// Host requests in flight, without writes that are reported complete from the memory.
    host_requests: BTreeMap<u32, PartedRequest>,
    /// Written pieces that are not on the medium, in order of arrival.
    pieces: VecDeque<Piece>,
    /// Sectors of writes that were reported complete and are not on the medium.
    buffered_sectors: u64,
    /// Pieces being written, and their parts that are not done.
    transaction: Vec<PlacedPiece>,
    transaction_parts_left: u64,
    /// Log transactions so far.
    log_transactions: u64,
    cleaning: Option<Cleaning>,
    /// Bands whose stream of writes ended before the band did, each once.
    torn_bands: VecDeque<u64>,
    /// Pieces that have arrived, and that are on the medium. Pieces leave in order.
    arrived_pieces: u64,
    written_pieces: u64,
    /// Waiting flushes, each with the pieces that must be on the medium.
    flushes: VecDeque<(RequestId, u64)>,
    /// Flushes of the member by their number, each with the host's and with an earlier error.
    member_flushes: BTreeMap<u32, (RequestId, Option<DeviceError>)>,
    /// First error of a write that was reported complete. The next flush takes it.
    lost_write: Option<DeviceError>,
    /// The transaction keeps the arm until this time, and ends no earlier.
    held_until: Time,
    /// Time of the last event that was processed.
    clock: Time,
    /// Start of the idle time: the last arrival or end of a request, or end of a transaction.
    last_use: Time,
    completions: EventQueue<(RequestId, Outcome)>,
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

/// A written piece of one band, in sectors of the user.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Host request to complete when the piece is on the medium; `None` once it is reported.
    id: Option<RequestId>,
    /// Sectors of the request before the piece.
    offset: u64,
    start: u64,
    sectors: u64,
    /// True if the piece goes to its band, past the cache.
    is_direct: bool,
}

/// A piece being written, and its first sector on the medium.
type PlacedPiece = (Piece, u64);

/// A request to the member, in sectors of the medium.
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
    /// A host's read, of which this number of sectors comes before the part.
    Read(RequestId, u64),
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
            timing: Timing {
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
            host_requests: BTreeMap::new(),
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
            member_flushes: BTreeMap::new(),
            lost_write: None,
            held_until: Time::ZERO,
            clock: Time::ZERO,
            last_use: Time::ZERO,
            completions: EventQueue::new(),
        })
    }

    /// Queues the parts of a read for the member. Each lies in its band or in the cache.
    fn accept_read(&mut self, request: DeviceRequest) {
        let (mut parts, mut offset) = (0, 0);
        for (place, sectors) in self.map.places(request.start, u64::from(request.sectors)) {
            let start = match place {
                Place::Band(sector) => self.layout.of_user(sector),
                Place::Cache(sector) => sector,
            };
            parts += self.queue_parts(Op::Read, start, sectors, Owner::Read(request.id, offset));
            offset += sectors;
        }
        self.host_requests.insert(request.id.0, PartedRequest::new(request.sectors, parts));
    }

    /// Queues the pieces of a write. A write that fits the drive's memory is reported complete
    /// after `COMMAND`, any other one when all its pieces are on the medium. A write that leaves a
    /// direct stream in the middle of a band makes that band a torn one.
    fn accept_write(&mut self, now: Time, request: DeviceRequest) {
        let sectors = u64::from(request.sectors);
        let is_early = self.buffered_sectors + sectors <= self.timing.buffer_sectors;
        let mut count = 0;
        if let Some(band) = self.stream.torn_band(request.start)
            && !self.torn_bands.contains(&band)
        {
            self.torn_bands.push_back(band);
        }
        for (start, piece_sectors, is_direct) in self.stream.divide(request.start, sectors) {
            let id = (!is_early).then_some(request.id);
            let offset = start - request.start;
            let piece = Piece { id, offset, start, sectors: piece_sectors, is_direct };
            self.pieces.push_back(piece);
            count += 1;
        }
        self.arrived_pieces += count;
        if is_early {
            self.buffered_sectors += sectors;
            self.completions.add(now + COMMAND, (request.id, Outcome::Done));
        } else {
            self.host_requests.insert(request.id.0, PartedRequest::new(request.sectors, count));
        }
    }

    /// Queues a transfer in parts of at most the member's largest request. Returns their number.
    /// `start` is a sector of the medium.
    fn queue_parts(&mut self, op: Op, start: u64, sectors: u64, owner: Owner) -> u64 {
        let (mut next, end) = (start, start + sectors);
        while next < end {
            let part_sectors = self.member_sectors_max.min(end - next);
            let part_owner = match owner {
                Owner::Read(id, offset) => Owner::Read(id, offset + (next - start)),
                Owner::Transaction | Owner::Cleaning => owner,
            };
            let part = Part { op, start: next, sectors: part_sectors, owner: part_owner };
            match owner {
                Owner::Transaction => self.transaction_parts.push_back(part),
                Owner::Read(..) | Owner::Cleaning => self.waiting_parts.push_back(part),
            }
            next += part_sectors;
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

    /// Returns the time of the next event of the member, of a transaction, or of the idle timer. An
    /// event that was due before is due at `clock`.
    fn next_internal(&self) -> Option<Time> {
        let is_written = !self.transaction.is_empty() && self.transaction_parts_left == 0;
        // The member has room, so the parts can only wait for the arm, until `held_until`.
        let is_held = !self.waiting_parts.is_empty() && self.in_member.len() < self.member_depth;
        let held = (is_written || is_held).then_some(self.held_until);
        let is_dirty = !self.map.is_empty() || !self.torn_bands.is_empty();
        let idle = (is_dirty && self.cleaning.is_none() && self.is_idle())
            .then(|| self.last_use + self.timing.idle);
        let next = [self.member.next_event(), held, idle].into_iter().flatten().min();
        next.map(|at| at.max(self.clock))
    }

    /// Returns true if no host request, no written piece and no flush of the member is in progress.
    fn is_idle(&self) -> bool {
        self.host_requests.is_empty()
            && self.pieces.is_empty()
            && self.transaction.is_empty()
            && self.member_flushes.is_empty()
    }

    /// Ends and starts all work that is due at the time `now`: transactions, cleaning, and parts
    /// for the member. Parts of the transaction go first; the others wait until `held_until`.
    fn work(&mut self, now: Time) {
        let is_written = !self.transaction.is_empty() && self.transaction_parts_left == 0;
        if is_written && now >= self.held_until {
            self.on_transaction_end(now);
        }
        if self.transaction.is_empty() && !self.pieces.is_empty() {
            self.start_transaction(now);
        }
        // Pieces that could not start a transaction have no room in log or map.
        let is_full = self.transaction.is_empty() && !self.pieces.is_empty();
        let is_due = self.is_idle() && now >= self.last_use + self.timing.idle;
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

    /// Returns the number of the next request to the member.
    const fn next_id(&mut self) -> RequestId {
        let id = RequestId(self.next_number);
        self.next_number = self.next_number.wrapping_add(1);
        id
    }

    /// Flushes the member for a flush of the host. Writes of the member can be in its memory.
    fn flush_member(&mut self, now: Time, host_id: RequestId) {
        let id = self.next_id();
        self.member_flushes.insert(id.0, (host_id, self.lost_write.take()));
        self.member.flush(now, id);
    }

    /// Submits a part to the member.
    fn submit_part(&mut self, now: Time, part: Part) {
        let id = self.next_id();
        self.in_member.insert(id.0, part);
        let Part { op, start, sectors, .. } = part;
        self.member.submit(now, DeviceRequest { id, op, start, sectors: sectors as u32 });
    }

    /// Writes the waiting pieces at the front: the ones of a direct stream in one band, or pieces
    /// for the cache. The latter need room in log and map, up to the largest transaction, and hold
    /// the arm for the time of a transaction. Direct ones take only the member's time. Does nothing
    /// if the first piece finds no room. The caller ensures that no transaction is in progress.
    ///
    /// The map changes at once. A later read is queued behind the parts of the transaction, so it
    /// finds the data.
    fn start_transaction(&mut self, now: Time) {
        let mut sectors_in_all = 0;
        // Places on the medium, each with its size. Adjacent pieces are one place.
        let mut places: Vec<(u64, u64)> = Vec::new();
        while let Some(piece) = self.pieces.front().copied() {
            let first = self.transaction.first().map_or(piece, |(first, _)| *first);
            let is_same_kind = first.is_direct == piece.is_direct;
            let fits = match piece.is_direct {
                true => self.band_of(first) == self.band_of(piece),
                // A piece above the maximum is a transaction of its own.
                false => {
                    sectors_in_all + piece.sectors <= TRANSACTION_SECTORS_MAX.max(piece.sectors)
                        && self.map.has_room(piece.sectors)
                }
            };
            if !is_same_kind || !fits {
                break;
            }
            self.pieces.pop_front();
            sectors_in_all += piece.sectors;
            let start = if piece.is_direct {
                self.map.remove(piece.start, piece.sectors);
                self.layout.of_user(piece.start)
            } else {
                self.map.append(piece.start, piece.sectors)
            };
            self.transaction.push((piece, start));
            match places.last_mut().filter(|(place, sectors)| place + sectors == start) {
                Some((_, sectors)) => *sectors += piece.sectors,
                None => places.push((start, piece.sectors)),
            }
        }
        for (start, sectors) in places {
            self.transaction_parts_left +=
                self.queue_parts(Op::Write, start, sectors, Owner::Transaction);
        }
        if self.transaction.first().is_some_and(|(piece, _)| !piece.is_direct) {
            self.log_transactions += 1;
            self.held_until = now + self.timing.transaction;
            if self.log_transactions.is_multiple_of(self.timing.checkpoint_every) {
                self.held_until += self.timing.checkpoint;
            }
        }
    }

    /// Returns the band of a piece.
    const fn band_of(&self, piece: Piece) -> u64 {
        piece.start / self.layout.band_sectors
    }

    /// Starts the cleaning of a torn band, or of the band with the oldest data in the cache. Does
    /// nothing if no band is torn and the cache is empty. Data that enter the log later stay there.
    fn start_cleaning(&mut self) {
        let Some(band) = self.torn_bands.pop_front().or_else(|| self.map.oldest_band()) else {
            return;
        };
        let mut cleaning = Cleaning::new(band, self.map.head());
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
        if !cleaning.end_part() {
            self.cleaning = Some(cleaning);
            return;
        }
        let band_sectors = self.layout.band_sectors;
        let user_start = cleaning.band * band_sectors;
        let start = match cleaning.next_step() {
            cleaning::Step::Reserve => self.layout.reserve,
            cleaning::Step::InPlace => self.layout.of_user(user_start),
            cleaning::Step::Done => {
                self.map.remove_before(user_start, band_sectors, cleaning.log_end);
                return;
            }
        };
        let parts = self.queue_parts(Op::Write, start, band_sectors, Owner::Cleaning);
        cleaning.begin(parts);
        self.cleaning = Some(cleaning);
    }

    /// Credits a completion of the member to its owner.
    fn on_member_completion(&mut self, completion: Completion) {
        let Completion { at, outcome, .. } = completion;
        if let Some((id, lost)) = self.member_flushes.remove(&completion.id.0) {
            self.completions.add(at, (id, lost.map_or(outcome, Outcome::Failed)));
            return;
        }
        let part = self.in_member.remove(&completion.id.0).expect("each part ends once");
        match part.owner {
            Owner::Read(id, offset) => {
                self.host_request(id).record_outcome(offset, outcome);
                self.on_host_part(at, id);
            }
            Owner::Cleaning => self.on_cleaning_part(),
            Owner::Transaction => {
                self.transaction_parts_left -= 1;
                if outcome != Outcome::Done {
                    self.on_unwritten_part(part, outcome);
                }
            }
        }
    }

    /// Credits a failed or short part of a transaction to the pieces that it left unwritten. An
    /// error of a piece that was reported complete goes to `lost_write`, for the next flush.
    fn on_unwritten_part(&mut self, part: Part, outcome: Outcome) {
        // Bytes of the part that were written, and the error for a flush. A short write counts as
        // an error of the medium.
        let (moved, error) = match outcome {
            Outcome::Short { bytes } => (bytes, DeviceError::Medium),
            Outcome::Failed(error) => (0, error),
            Outcome::Done => return,
        };
        let unwritten =
            part.start * SECTOR_BYTES + moved..(part.start + part.sectors) * SECTOR_BYTES;
        for index in 0..self.transaction.len() {
            let (piece, place) = self.transaction[index];
            let (start, end) = (place * SECTOR_BYTES, (place + piece.sectors) * SECTOR_BYTES);
            if start >= unwritten.end || end <= unwritten.start {
                continue;
            }
            let Some(id) = piece.id else {
                self.lost_write = self.lost_write.or(Some(error));
                continue;
            };
            let outcome = match outcome {
                // The bytes of the piece before the unwritten ones.
                Outcome::Short { .. } => {
                    Outcome::Short { bytes: unwritten.start.saturating_sub(start) }
                }
                Outcome::Failed(_) | Outcome::Done => outcome,
            };
            self.host_request(id).record_outcome(piece.offset, outcome);
        }
    }

    /// Returns a host request in flight.
    fn host_request(&mut self, id: RequestId) -> &mut PartedRequest {
        self.host_requests.get_mut(&id.0).expect("a host request is in flight")
    }

    /// Reports the pieces of a transaction. Flushes that waited for them go to the member, and the
    /// idle time begins again.
    fn on_transaction_end(&mut self, at: Time) {
        for (piece, _) in std::mem::take(&mut self.transaction) {
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
            self.flush_member(at, id);
        }
    }

    /// Counts a part of a host request. Completes the request after its last part.
    fn on_host_part(&mut self, at: Time, id: RequestId) {
        if let Some(outcome) = self.host_request(id).end_part() {
            self.host_requests.remove(&id.0);
            self.last_use = at;
            self.completions.add(at, (id, outcome));
        }
    }
}

impl Device for Smr {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Accepts a request at time `now`. It ends the idle time of the drive.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        self.advance(now);
        self.last_use = now;
        match request.op {
            Op::Read => self.accept_read(request),
            Op::Write => self.accept_write(now, request),
        }
        self.work(now);
    }

    /// Flushes the member once all pieces that have arrived are on the medium. A flush keeps the
    /// drive from cleaning, but does not begin its idle time again.
    fn flush(&mut self, now: Time, id: RequestId) {
        self.advance(now);
        if self.arrived_pieces == self.written_pieces {
            self.flush_member(now, id);
        } else {
            self.flushes.push_back((id, self.arrived_pieces));
        }
    }

    /// Returns the time of the next completion or of the next event inside. Cleaning of an idle
    /// drive and written data in its memory are no events, because no request waits for them.
    fn next_event(&self) -> Option<Time> {
        let has_waiting = !self.host_requests.is_empty()
            || !self.flushes.is_empty()
            || !self.member_flushes.is_empty();
        let internal = if has_waiting { self.next_internal() } else { None };
        [self.completions.next_at(), internal].into_iter().flatten().min()
    }

    /// Processes the events up to `now`. Returns the next completion, if any.
    fn poll(&mut self, now: Time) -> Option<Completion> {
        self.advance(now);
        let (at, (id, outcome)) = self.completions.take_due(now)?;
        Some(Completion::at(at, id, outcome))
    }
}
