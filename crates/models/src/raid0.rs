//! RAID-0: one address space that is striped over several members in chunks.
//!
//! Members of different sizes are laid out as by Linux `md`. The first zone stripes over all
//! members until the smallest is full, the next zone over those with remaining space, and so on. A
//! partial chunk at the end of a member is not used. A request becomes one request per member that
//! it touches, because its chunks on one member are contiguous there. A part larger than the
//! member's largest request is split. The request completes with its last part. Parts for a full
//! member wait, in order of arrival.
//!
//! There can be up to [`MEMBERS_MAX`] members. Each event costs log₂ of their number.

use std::collections::VecDeque;

use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::earliest::EarliestEvent;
use super::numbered_slab::NumberedSlab;
use super::{BoxedDevice, Device};

/// Maximum number of members in one array. Building a simulated disk takes 11 KiB and 0.3 ms.
pub const MEMBERS_MAX: u32 = 1024;

/// A striped array.
pub struct Raid0 {
    caps: DeviceCaps,
    layout: StripeLayout,
    members: Vec<ArrayMember>,
    /// Next event of each member.
    next: EarliestEvent,
    /// Parts of requests, waiting or in flight at a member.
    parts: NumberedSlab<PendingPiece>,
    /// Requests in flight.
    slots: NumberedSlab<StripedRequest>,
    /// Completions that `poll` has not yet returned.
    done: VecDeque<Completion>,
    /// Pieces of the request that is being split. A field only to reuse the allocation.
    pieces: Vec<MemberPiece>,
}

/// A member with the parts that wait for it.
struct ArrayMember {
    device: BoxedDevice,
    caps: DeviceCaps,
    in_flight: u32,
    waiting: VecDeque<u32>,
}

/// One member's share of a request, in the member's sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemberPiece {
    member: u32,
    start: u64,
    sectors: u32,
}

/// A request to one member, on behalf of the request in `slot`.
#[derive(Clone, Copy, Debug)]
struct PendingPiece {
    slot: u32,
    /// Sectors of the member, or `None` for a flush.
    piece: Option<MemberPiece>,
}

/// A request in flight, with the number of its parts in flight.
#[derive(Clone, Copy, Debug)]
struct StripedRequest {
    request: DeviceRequest,
    parts_left: u32,
    /// Number of bytes from its start that were transferred without a gap.
    good_bytes: u64,
    error: Option<DeviceError>,
}

impl Raid0 {
    /// Stripes over `members` with chunks of `chunk_sectors`.
    ///
    /// # Panics
    /// Panics if there is no member, more than [`MEMBERS_MAX`], an empty chunk, or no member with
    /// room for one chunk. The registry rejects these cases with an error.
    pub fn new(members: Vec<BoxedDevice>, chunk_sectors: u32) -> Raid0 {
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        assert!((1..=MEMBERS_MAX).contains(&count), "1 to {MEMBERS_MAX} members");
        assert!(chunk_sectors > 0, "a chunk has at least one sector");
        let members: Vec<ArrayMember> = members
            .into_iter()
            .map(|device| ArrayMember {
                caps: device.caps(),
                device,
                in_flight: 0,
                waiting: VecDeque::new(),
            })
            .collect();
        let sizes: Vec<u64> = members.iter().map(|member| member.caps.sectors).collect();
        let layout = StripeLayout::new(&sizes, chunk_sectors);
        assert!(layout.sectors() > 0, "no member has room for one chunk");
        let member_values = |value_of: fn(&DeviceCaps) -> u32| {
            members.iter().map(move |member| value_of(&member.caps))
        };
        let caps = DeviceCaps {
            sectors: layout.sectors(),
            request_sectors_max: member_values(|caps| caps.request_sectors_max).min().unwrap_or(1),
            depth_max: member_values(|caps| caps.depth_max).fold(0, u32::saturating_add),
            is_rotational: members.iter().any(|member| member.caps.is_rotational),
            alignment_sectors: member_values(|caps| caps.alignment_sectors).max().unwrap_or(1),
        };
        Raid0 {
            caps,
            layout,
            next: EarliestEvent::new(count),
            members,
            parts: NumberedSlab::new(),
            slots: NumberedSlab::new(),
            done: VecDeque::new(),
            pieces: Vec::new(),
        }
    }

    /// Returns the number of members with requests in flight.
    pub fn members_busy(&self) -> usize {
        self.members.iter().filter(|member| member.in_flight > 0).count()
    }

    /// Submits waiting parts to a member while it has room.
    fn submit_waiting(&mut self, now: Time, index: u32) {
        let member = &mut self.members[index as usize];
        while member.in_flight < member.caps.depth_max
            && let Some(part) = member.waiting.pop_front()
        {
            let PendingPiece { slot, piece } = self.parts[part];
            let piece = piece.expect("a flush does not wait for room");
            member.in_flight += 1;
            let op = self.slots[slot].request.op;
            let id = RequestId(part);
            let MemberPiece { start, sectors, .. } = piece;
            member.device.submit(now, DeviceRequest { id, op, start, sectors });
        }
        self.next.set(index, member.device.next_event());
    }

    /// Handles a completed part. The request completes with its last part.
    fn finish_part(&mut self, completion: &Completion) {
        let PendingPiece { slot, piece } = self.parts.take(completion.id.0);
        let this = &mut self.slots[slot];
        this.parts_left -= 1;
        match completion.outcome {
            Outcome::Done => {}
            Outcome::Failed(error) => this.error = this.error.or(Some(error)),
            Outcome::Short { bytes } => {
                let piece = piece.expect("a flush moves nothing");
                let bad = self.layout.address(piece.member, piece.start + bytes / SECTOR_BYTES);
                let good = (bad - this.request.start) * SECTOR_BYTES + bytes % SECTOR_BYTES;
                this.good_bytes = this.good_bytes.min(good);
            }
        }
        if this.parts_left > 0 {
            return;
        }
        let whole = u64::from(this.request.sectors) * SECTOR_BYTES;
        let outcome = match this.error {
            Some(error) => Outcome::Failed(error),
            None if this.good_bytes < whole => Outcome::Short { bytes: this.good_bytes },
            None => Outcome::Done,
        };
        self.done.push_back(Completion::at(completion.at, this.request.id, outcome));
        self.slots.take(slot);
    }

    /// Processes the events of all members up to `now`, in order of time. Each event may let
    /// waiting parts start.
    fn advance(&mut self, now: Time) {
        while let Some((at, index)) = self.next.first()
            && at <= now
        {
            while let Some(completion) = self.members[index as usize].device.poll(at) {
                let is_request = self.parts[completion.id.0].piece.is_some();
                self.members[index as usize].in_flight -= u32::from(is_request);
                self.finish_part(&completion);
            }
            self.submit_waiting(at, index);
        }
    }
}

impl Device for Raid0 {
    /// Limits of the array.
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Splits a request into pieces of the members, and submits as many as the members accept.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let mut pieces = std::mem::take(&mut self.pieces);
        self.layout.cut(request.start, request.sectors, &mut pieces);
        let good_bytes = u64::from(request.sectors) * SECTOR_BYTES;
        let slot =
            self.slots.add(StripedRequest { request, parts_left: 0, good_bytes, error: None });
        for full_piece in &pieces {
            let sectors_max = self.members[full_piece.member as usize].caps.request_sectors_max;
            let mut remaining = *full_piece;
            while remaining.sectors > 0 {
                let piece =
                    MemberPiece { sectors: remaining.sectors.min(sectors_max), ..remaining };
                remaining.start += u64::from(piece.sectors);
                remaining.sectors -= piece.sectors;
                let part = self.parts.add(PendingPiece { slot, piece: Some(piece) });
                self.slots[slot].parts_left += 1;
                self.members[piece.member as usize].waiting.push_back(part);
            }
        }
        for piece in &pieces {
            self.submit_waiting(now, piece.member);
        }
        self.pieces = pieces;
    }

    /// Flushes all members. The flush completes with its last member.
    fn flush(&mut self, now: Time, id: RequestId) {
        let request = DeviceRequest { id, op: Op::Write, start: 0, sectors: 0 };
        let parts_left = self.members.len() as u32;
        let slot =
            self.slots.add(StripedRequest { request, parts_left, good_bytes: 0, error: None });
        for (index, member) in self.members.iter_mut().enumerate() {
            let part = self.parts.add(PendingPiece { slot, piece: None });
            member.device.flush(now, RequestId(part));
            self.next.set(index as u32, member.device.next_event());
        }
    }

    /// Returns the time of the next completion or member event.
    fn next_event(&self) -> Option<Time> {
        match self.done.front() {
            Some(completion) => Some(completion.at),
            None => self.next.first().map(|(time, _)| time),
        }
    }

    /// Computes the members' events up to `now`. Returns the next completion, or `None` if there is
    /// none yet.
    fn poll(&mut self, now: Time) -> Option<Completion> {
        if self.done.is_empty() {
            self.advance(now);
        }
        self.done.pop_front()
    }
}

/// Mapping between array sectors and member sectors.
#[derive(Clone, Debug)]
struct StripeLayout {
    chunk_sectors: u64,
    zones: Vec<StripeZone>,
    /// During a split: for each member the index of its piece.
    open: Vec<Option<usize>>,
}

/// A range of rows over the same members.
#[derive(Clone, Debug)]
struct StripeZone {
    /// Chunks of the zone, in array order.
    chunks: std::ops::Range<u64>,
    /// First row of the zone: its start on each member, in chunks.
    row: u64,
    members: Vec<u32>,
}

impl StripeLayout {
    /// Divides members of the given sizes into zones.
    fn new(member_sectors: &[u64], chunk_sectors: u32) -> StripeLayout {
        let chunk_sectors = u64::from(chunk_sectors);
        let chunks: Vec<u64> = member_sectors.iter().map(|size| size / chunk_sectors).collect();
        let mut zones: Vec<StripeZone> = Vec::new();
        let mut row = 0;
        while let Some(row_end) = chunks.iter().copied().filter(|&end| end > row).min() {
            let members: Vec<u32> =
                (0..chunks.len()).filter(|&m| chunks[m] > row).map(|m| m as u32).collect();
            let first = zones.last().map_or(0, |zone| zone.chunks.end);
            let end = first + (row_end - row) * members.len() as u64;
            zones.push(StripeZone { chunks: first..end, row, members });
            row = row_end;
        }
        StripeLayout { chunk_sectors, zones, open: vec![None; chunks.len()] }
    }

    /// Returns the size of the array in sectors.
    fn sectors(&self) -> u64 {
        self.zones.last().map_or(0, |zone| zone.chunks.end) * self.chunk_sectors
    }

    /// Returns the index of the member, and the sector on it, for a sector of the array.
    fn place(&self, sector: u64) -> (u32, u64) {
        let (chunk, offset) = (sector / self.chunk_sectors, sector % self.chunk_sectors);
        let zone = &self.zones[self.zones.partition_point(|zone| zone.chunks.end <= chunk)];
        let in_zone = chunk - zone.chunks.start;
        let width = zone.members.len() as u64;
        let member = zone.members[(in_zone % width) as usize];
        (member, (zone.row + in_zone / width) * self.chunk_sectors + offset)
    }

    /// Returns the sector of the array that lies at the sector `sector` of the member `member`.
    fn address(&self, member: u32, sector: u64) -> u64 {
        let (row, offset) = (sector / self.chunk_sectors, sector % self.chunk_sectors);
        let zone = &self.zones[self.zones.partition_point(|zone| zone.row <= row) - 1];
        let index = zone.members.partition_point(|&other| other < member) as u64;
        let chunk = zone.chunks.start + (row - zone.row) * zone.members.len() as u64 + index;
        chunk * self.chunk_sectors + offset
    }

    /// Splits a request of `sectors` sectors from `start` into one piece per member, in order of
    /// the first chunk on each. Writes the pieces to `pieces`.
    fn cut(&mut self, start: u64, sectors: u32, pieces: &mut Vec<MemberPiece>) {
        pieces.clear();
        let end = start + u64::from(sectors);
        let mut sector = start;
        while sector < end {
            let chunk_end = end.min((sector / self.chunk_sectors + 1) * self.chunk_sectors);
            let (member, member_sector) = self.place(sector);
            let sectors = (chunk_end - sector) as u32;
            match self.open[member as usize] {
                Some(index) => pieces[index].sectors += sectors,
                None => {
                    self.open[member as usize] = Some(pieces.len());
                    pieces.push(MemberPiece { member, start: member_sector, sectors });
                }
            }
            sector = chunk_end;
        }
        for piece in pieces.iter() {
            self.open[piece.member as usize] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_members_alternate_and_a_request_is_one_piece_on_each() {
        let mut layout = StripeLayout::new(&[1_000, 1_000, 1_000], 128);
        // Each member has room for 7 whole chunks of 128 sectors.
        assert_eq!(layout.sectors(), 3 * 7 * 128);
        assert_eq!(layout.place(0), (0, 0));
        assert_eq!(layout.place(128), (1, 0));
        assert_eq!(layout.place(3 * 128 + 5), (0, 133));
        let mut pieces = Vec::new();
        layout.cut(100, 4 * 128, &mut pieces);
        let piece = |member, start, sectors| MemberPiece { member, start, sectors };
        assert_eq!(pieces, [piece(0, 100, 28 + 128), piece(1, 0, 128 + 100), piece(2, 0, 128)]);
    }

    #[test]
    fn unequal_members_are_laid_out_in_zones_as_md_does() {
        // The members have 2, 4 and 3 chunks. Rows 0 and 1 use all members, row 2 the last two, row
        // 3 the second.
        let layout = StripeLayout::new(&[20, 40, 35], 10);
        assert_eq!(layout.sectors(), 90);
        let places: Vec<(u32, u64)> = (0..9).map(|chunk| layout.place(chunk * 10)).collect();
        let expected =
            [(0, 0), (1, 0), (2, 0), (0, 10), (1, 10), (2, 10), (1, 20), (2, 20), (1, 30)];
        assert_eq!(places, expected);
        for sector in 0..90 {
            let (member, place) = layout.place(sector);
            assert_eq!(layout.address(member, place), sector);
        }
    }
}
