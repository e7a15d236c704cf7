//! RAID-0: one address space over many members, a chunk on each in turn.
//!
//! Members of different sizes are laid out as Linux `md` does: the first zone
//! stripes over all members until the smallest is full, the next over those
//! that have room left, and so on; what doesn't fill a chunk at a member's end
//! is not used. A request becomes one request for each member that it touches
//! (its chunks on one member lie one behind the other there), cut where a member takes no
//! larger ones, and is done when the last of them is. Members that are full
//! keep the rest waiting, in order of arrival.
//!
//! There may be up to [`MEMBERS_MAX`] members; each step costs log₂ of their number.

use std::collections::VecDeque;

use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::earliest::EarliestEvent;
use super::places::NumberedSlab;
use super::{BoxedDevice, Device};

/// The most members of one array. A modelled disk takes 11 KiB and 0.3 ms to be built.
pub const MEMBERS_MAX: u32 = 1024;

/// Members side by side.
pub struct Raid0 {
    caps: DeviceCaps,
    layout: StripeLayout,
    members: Vec<ArrayMember>,
    next: EarliestEvent,
    parts: NumberedSlab<PendingPiece>,
    slots: NumberedSlab<StripedRequest>,
    done: VecDeque<Completion>,
    /// The pieces of the request that is being cut; kept for its memory.
    pieces: Vec<MemberPiece>,
}

struct ArrayMember {
    device: BoxedDevice,
    caps: DeviceCaps,
    in_flight: u32,
    waiting: VecDeque<u32>,
}

/// A member's share of a request, in the member's sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemberPiece {
    member: u32,
    start: u64,
    sectors: u32,
}

#[derive(Clone, Copy, Debug)]
struct PendingPiece {
    slot: u32,
    /// `None`: the member's share of a flush.
    piece: Option<MemberPiece>,
}

#[derive(Clone, Copy, Debug)]
struct StripedRequest {
    request: DeviceRequest,
    parts_left: u32,
    /// Bytes from its start that are known to be good.
    good_bytes: u64,
    error: Option<DeviceError>,
}

impl Raid0 {
    /// Stripes over `members`, `chunk_sectors` on each in turn.
    ///
    /// # Panics
    /// When there is no member, more than [`MEMBERS_MAX`], an empty chunk, or
    /// no member has room for one chunk; the registry refuses these by name.
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
        let each = |of: fn(&DeviceCaps) -> u32| members.iter().map(move |member| of(&member.caps));
        let caps = DeviceCaps {
            sectors: layout.sectors(),
            request_sectors_max: each(|caps| caps.request_sectors_max).min().unwrap_or(1),
            depth_max: each(|caps| caps.depth_max).fold(0, u32::saturating_add),
            is_rotational: members.iter().any(|member| member.caps.is_rotational),
            alignment_sectors: each(|caps| caps.alignment_sectors).max().unwrap_or(1),
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

    /// How many members have something to do: in flight, or waiting for room.
    pub fn members_busy(&self) -> usize {
        self.members.iter().filter(|member| member.in_flight > 0).count()
    }

    /// Gives a member what it has room for.
    fn feed(&mut self, now: Time, index: u32) {
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

    /// Lets every member come to `now`, the earliest first.
    fn advance(&mut self, now: Time) {
        while let Some((at, index)) = self.next.first()
            && at <= now
        {
            while let Some(completion) = self.members[index as usize].device.poll(at) {
                let is_request = self.parts[completion.id.0].piece.is_some();
                self.members[index as usize].in_flight -= u32::from(is_request);
                self.finish_part(&completion);
            }
            self.feed(at, index);
        }
    }
}

impl Device for Raid0 {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let mut pieces = std::mem::take(&mut self.pieces);
        self.layout.cut(request.start, request.sectors, &mut pieces);
        let good_bytes = u64::from(request.sectors) * SECTOR_BYTES;
        let slot =
            self.slots.add(StripedRequest { request, parts_left: 0, good_bytes, error: None });
        for whole in &pieces {
            let most = self.members[whole.member as usize].caps.request_sectors_max;
            let mut rest = *whole;
            while rest.sectors > 0 {
                let piece = MemberPiece { sectors: rest.sectors.min(most), ..rest };
                rest.start += u64::from(piece.sectors);
                rest.sectors -= piece.sectors;
                let part = self.parts.add(PendingPiece { slot, piece: Some(piece) });
                self.slots[slot].parts_left += 1;
                self.members[piece.member as usize].waiting.push_back(part);
            }
        }
        for piece in &pieces {
            self.feed(now, piece.member);
        }
        self.pieces = pieces;
    }

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

    fn next_event(&self) -> Option<Time> {
        match self.done.front() {
            Some(completion) => Some(completion.at),
            None => self.next.first().map(|(at, _)| at),
        }
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        if self.done.is_empty() {
            self.advance(now);
        }
        self.done.pop_front()
    }
}

/// Which chunk lies where.
#[derive(Clone, Debug)]
struct StripeLayout {
    chunk_sectors: u64,
    zones: Vec<StripeZone>,
    /// By member: the piece that the cut in progress has on it.
    open: Vec<Option<usize>>,
}

/// A run of rows over the same members.
#[derive(Clone, Debug)]
struct StripeZone {
    /// The first chunk of the zone in the whole, and the one after its last.
    chunks: std::ops::Range<u64>,
    /// Where the zone starts on each of its members, in chunks.
    row: u64,
    members: Vec<u32>,
}

impl StripeLayout {
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

    fn sectors(&self) -> u64 {
        self.zones.last().map_or(0, |zone| zone.chunks.end) * self.chunk_sectors
    }

    /// Member and sector on it of a sector of the whole.
    fn place(&self, sector: u64) -> (u32, u64) {
        let (chunk, offset) = (sector / self.chunk_sectors, sector % self.chunk_sectors);
        let zone = &self.zones[self.zones.partition_point(|zone| zone.chunks.end <= chunk)];
        let in_zone = chunk - zone.chunks.start;
        let width = zone.members.len() as u64;
        let member = zone.members[(in_zone % width) as usize];
        (member, (zone.row + in_zone / width) * self.chunk_sectors + offset)
    }

    /// The sector of the whole that lies at `sector` of `member`.
    fn address(&self, member: u32, sector: u64) -> u64 {
        let (row, offset) = (sector / self.chunk_sectors, sector % self.chunk_sectors);
        let zone = &self.zones[self.zones.partition_point(|zone| zone.row <= row) - 1];
        let index = zone.members.partition_point(|&other| other < member) as u64;
        let chunk = zone.chunks.start + (row - zone.row) * zone.members.len() as u64 + index;
        chunk * self.chunk_sectors + offset
    }

    /// Cuts a request into one piece a member, in order of the first chunk on each.
    fn cut(&mut self, start: u64, sectors: u32, pieces: &mut Vec<MemberPiece>) {
        pieces.clear();
        let end = start + u64::from(sectors);
        let mut at = start;
        while at < end {
            let part_end = end.min((at / self.chunk_sectors + 1) * self.chunk_sectors);
            let (member, place) = self.place(at);
            let sectors = (part_end - at) as u32;
            match self.open[member as usize] {
                Some(index) => pieces[index].sectors += sectors,
                None => {
                    self.open[member as usize] = Some(pieces.len());
                    pieces.push(MemberPiece { member, start: place, sectors });
                }
            }
            at = part_end;
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
    fn equal_members_take_turns_and_a_request_is_one_piece_on_each() {
        let mut layout = StripeLayout::new(&[1_000, 1_000, 1_000], 128);
        // 7 whole chunks of 128 sectors fit each member.
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
        // Chunks: 2, 4, 3. Rows 0 and 1 over all, row 2 over the last two, row 3 over the second.
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
