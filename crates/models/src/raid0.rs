//! RAID-0: one address space that is striped over several members in chunks.
//!
//! Members of different sizes are laid out as by Linux `md`. The first zone stripes over all
//! members until the smallest is full, the next zone over those with remaining space, and so on. A
//! partial chunk at the end of a member is not used. An array request becomes one member request
//! per member that it touches, because its chunks on one member are contiguous there. A member
//! request larger than the member allows is split. The array request completes with its last member
//! request. Member requests for a full member wait, in order of arrival.
//!
//! There can be up to [`MEMBERS_MAX`] members. Each event costs log₂ of their number.

use std::collections::VecDeque;

use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::earliest::EarliestEvent;
use super::numbered_slab::NumberedSlab;
use super::parted_request::PartedRequest;
use super::{BoxedDevice, Device};

/// Maximum number of members in one array, chosen. Building a simulated disk takes 11 KiB and 0.3
/// ms, so a full array is built in a third of a second.
pub const MEMBERS_MAX: u32 = 1024;

/// A striped array.
pub struct Raid0 {
    /// Limits of the array.
    caps: DeviceCaps,
    /// Mapping between array sectors and member sectors.
    layout: StripeLayout,
    /// Members, by their indices.
    members: Vec<ArrayMember>,
    /// Next event of each member.
    next_events: EarliestEvent,
    /// Member requests, waiting or in flight.
    member_requests: NumberedSlab<MemberRequest>,
    /// Array requests and flushes in flight.
    array_requests: NumberedSlab<ArrayRequest>,
    /// Completions that `poll` has not yet returned.
    done: VecDeque<Completion>,
    /// Ranges of the array request that is being split. A field only to reuse the allocation.
    ranges: Vec<MemberRange>,
}

/// A member with the member requests that wait for it.
struct ArrayMember {
    /// The member itself.
    device: BoxedDevice,
    /// Its limits.
    caps: DeviceCaps,
    /// Requests in the member, without flushes.
    in_flight: u32,
    /// Keys of the member requests that wait.
    waiting: VecDeque<u32>,
}

/// A range of sectors on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemberRange {
    /// Index of the member.
    member: u32,
    /// First sector on the member.
    start: u64,
    /// Number of sectors.
    sectors: u32,
}

/// A request or a flush of one member, as a part of an array request.
#[derive(Clone, Copy, Debug)]
struct MemberRequest {
    /// Key of the array request.
    array_request: u32,
    /// Sectors of the member, or `None` for a flush.
    range: Option<MemberRange>,
}

/// A request or a flush of the array, in flight. A flush is a request of no sectors.
#[derive(Clone, Copy, Debug)]
struct ArrayRequest {
    /// The request, in sectors of the array.
    request: DeviceRequest,
    /// Its member requests.
    parts: PartedRequest,
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
        // There is a member, so the defaults below are not used.
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
            next_events: EarliestEvent::new(count),
            members,
            member_requests: NumberedSlab::new(),
            array_requests: NumberedSlab::new(),
            done: VecDeque::new(),
            ranges: Vec::new(),
        }
    }

    /// Returns the number of members with requests in flight.
    pub fn members_busy(&self) -> usize {
        self.members.iter().filter(|member| member.in_flight > 0).count()
    }

    /// Submits waiting member requests to the member `index` while its queue has room. Then records
    /// its next event, even if none was submitted, because the caller may have polled the member.
    fn submit_waiting(&mut self, now: Time, index: u32) {
        let member = &mut self.members[index as usize];
        while member.in_flight < member.caps.depth_max
            && let Some(key) = member.waiting.pop_front()
        {
            let MemberRequest { array_request, range } = self.member_requests[key];
            let range = range.expect("a flush does not wait for room");
            member.in_flight += 1;
            let op = self.array_requests[array_request].request.op;
            let id = RequestId(key);
            let MemberRange { start, sectors, .. } = range;
            member.device.submit(now, DeviceRequest { id, op, start, sectors });
        }
        self.next_events.set(index, member.device.next_event());
    }

    /// Handles a completed member request. The last one adds the array's completion to `done`: the
    /// first error of a member, or the bytes up to the first sector that was not transferred.
    fn finish_member_request(&mut self, completion: &Completion) {
        let MemberRequest { array_request: request_key, range } =
            self.member_requests.take(completion.id.0);
        let array_request = &mut self.array_requests[request_key];
        if let Outcome::Short { bytes } = completion.outcome {
            let range = range.expect("a flush moves nothing");
            // The first sector of the array that was not transferred completely.
            let cut_sector =
                self.layout.to_array_sector(range.member, range.start + bytes / SECTOR_BYTES);
            let offset = cut_sector - array_request.request.start;
            array_request
                .parts
                .record_outcome(offset, Outcome::Short { bytes: bytes % SECTOR_BYTES });
        } else {
            let any_offset = 0;
            array_request.parts.record_outcome(any_offset, completion.outcome);
        }
        let Some(outcome) = array_request.parts.end_part() else { return };
        self.done.push_back(Completion::at(completion.at, array_request.request.id, outcome));
        self.array_requests.take(request_key);
    }

    /// Processes the members' events up to `now` in order of time, and starts waiting requests.
    /// Completions of the array are added to `done`.
    fn advance(&mut self, now: Time) {
        while let Some((event_time, index)) = self.next_events.first()
            && event_time <= now
        {
            while let Some(completion) = self.members[index as usize].device.poll(event_time) {
                // A flush does not count as in flight.
                let is_request = self.member_requests[completion.id.0].range.is_some();
                self.members[index as usize].in_flight -= u32::from(is_request);
                self.finish_member_request(&completion);
            }
            self.submit_waiting(event_time, index);
        }
    }
}

impl Device for Raid0 {
    /// Size of all whole chunks, the smallest request limit, and the sum of the queue depths.
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Splits a request into member requests, and submits as many as the members accept.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let mut ranges = std::mem::take(&mut self.ranges);
        self.layout.split(request.start, request.sectors, &mut ranges);
        // Each member request below adds a part.
        let parts_so_far = 0;
        let parts = PartedRequest::new(request.sectors, parts_so_far);
        let array_request = self.array_requests.add(ArrayRequest { request, parts });
        for full_range in &ranges {
            let sectors_max = self.members[full_range.member as usize].caps.request_sectors_max;
            let mut remaining = *full_range;
            while remaining.sectors > 0 {
                let range =
                    MemberRange { sectors: remaining.sectors.min(sectors_max), ..remaining };
                remaining.start += u64::from(range.sectors);
                remaining.sectors -= range.sectors;
                let member_request = MemberRequest { array_request, range: Some(range) };
                let key = self.member_requests.add(member_request);
                self.array_requests[array_request].parts.add_part();
                self.members[range.member as usize].waiting.push_back(key);
            }
        }
        for range in &ranges {
            self.submit_waiting(now, range.member);
        }
        self.ranges = ranges;
    }

    /// Flushes all members. The flush completes with its last member.
    fn flush(&mut self, now: Time, id: RequestId) {
        let request = DeviceRequest { id, op: Op::Write, start: 0, sectors: 0 };
        let parts = PartedRequest::new(request.sectors, self.members.len() as u64);
        let array_request = self.array_requests.add(ArrayRequest { request, parts });
        for (index, member) in self.members.iter_mut().enumerate() {
            let key = self.member_requests.add(MemberRequest { array_request, range: None });
            member.device.flush(now, RequestId(key));
            self.next_events.set(index as u32, member.device.next_event());
        }
    }

    /// Returns the time of the next completion or member event.
    fn next_event(&self) -> Option<Time> {
        match self.done.front() {
            // Completions in `done` are due already.
            Some(completion) => Some(completion.at),
            None => self.next_events.first().map(|(time, _)| time),
        }
    }

    /// Processes the members' events up to `now`. Returns the next completion, if any.
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
    /// Sectors per chunk.
    chunk_sectors: u64,
    /// The zones, in array order.
    zones: Vec<StripeZone>,
    /// During a split: for each member the index of its range. `None` outside of it.
    range_of_member: Vec<Option<usize>>,
}

/// A range of rows over the same members.
#[derive(Clone, Debug)]
struct StripeZone {
    /// Chunks of the zone, in array order.
    chunks: std::ops::Range<u64>,
    /// First row of the zone: its start on each member, in chunks. A row is one chunk per member.
    first_row: u64,
    /// Indices of the members, ascending.
    members: Vec<u32>,
}

impl StripeLayout {
    /// Divides members of the given sizes, in sectors, into zones. All members with space left at a
    /// row of chunks are in its zone. Space of less than one chunk at a member's end is not used.
    fn new(member_sectors: &[u64], chunk_sectors: u32) -> StripeLayout {
        let chunk_sectors = u64::from(chunk_sectors);
        let member_chunks: Vec<u64> =
            member_sectors.iter().map(|size| size / chunk_sectors).collect();
        let mut zones: Vec<StripeZone> = Vec::new();
        let mut first_row = 0;
        // A zone ends at the row where the next member is full.
        while let Some(row_end) = member_chunks.iter().copied().filter(|&end| end > first_row).min()
        {
            let has_space = |member: &usize| member_chunks[*member] > first_row;
            let members: Vec<u32> =
                (0..member_chunks.len()).filter(has_space).map(|member| member as u32).collect();
            let start = zones.last().map_or(0, |zone| zone.chunks.end);
            let end = start + (row_end - first_row) * members.len() as u64;
            zones.push(StripeZone { chunks: start..end, first_row, members });
            first_row = row_end;
        }
        StripeLayout { chunk_sectors, zones, range_of_member: vec![None; member_chunks.len()] }
    }

    /// Returns the size of the array in sectors.
    fn sectors(&self) -> u64 {
        self.zones.last().map_or(0, |zone| zone.chunks.end) * self.chunk_sectors
    }

    /// Returns the index of the member, and the sector on it, for a sector within the array.
    fn to_member_sector(&self, sector: u64) -> (u32, u64) {
        let (chunk, offset) = (sector / self.chunk_sectors, sector % self.chunk_sectors);
        let zone = &self.zones[self.zones.partition_point(|zone| zone.chunks.end <= chunk)];
        let chunk_in_zone = chunk - zone.chunks.start;
        let member_count = zone.members.len() as u64;
        let member = zone.members[(chunk_in_zone % member_count) as usize];
        let row = zone.first_row + chunk_in_zone / member_count;
        (member, row * self.chunk_sectors + offset)
    }

    /// Returns the sector of the array that lies at the sector `sector` of the member `member`,
    /// which must be in a zone of that member.
    fn to_array_sector(&self, member: u32, sector: u64) -> u64 {
        let (row, offset) = (sector / self.chunk_sectors, sector % self.chunk_sectors);
        let zone = &self.zones[self.zones.partition_point(|zone| zone.first_row <= row) - 1];
        let index = zone.members.partition_point(|&other| other < member) as u64;
        let chunk = zone.chunks.start + (row - zone.first_row) * zone.members.len() as u64 + index;
        chunk * self.chunk_sectors + offset
    }

    /// Splits a request of `sectors` sectors from `start` into one range per member, in order of
    /// the first chunk on each. Replaces the contents of `ranges` by them.
    fn split(&mut self, start: u64, sectors: u32, ranges: &mut Vec<MemberRange>) {
        ranges.clear();
        let end = start + u64::from(sectors);
        let mut sector = start;
        while sector < end {
            let chunk_end = end.min((sector / self.chunk_sectors + 1) * self.chunk_sectors);
            let (member, member_sector) = self.to_member_sector(sector);
            let part_sectors = (chunk_end - sector) as u32;
            match self.range_of_member[member as usize] {
                // The chunks of a request on one member are contiguous there.
                Some(index) => ranges[index].sectors += part_sectors,
                None => {
                    self.range_of_member[member as usize] = Some(ranges.len());
                    let range = MemberRange { member, start: member_sector, sectors: part_sectors };
                    ranges.push(range);
                }
            }
            sector = chunk_end;
        }
        for range in ranges.iter() {
            self.range_of_member[range.member as usize] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_members_alternate_and_a_request_is_one_range_on_each() {
        let chunk_sectors = 128;
        let mut layout = StripeLayout::new(&[1_000, 1_000, 1_000], chunk_sectors);
        // Each member has room for 7 whole chunks of 128 sectors.
        assert_eq!(layout.sectors(), 3 * 7 * 128);
        assert_eq!(layout.to_member_sector(0), (0, 0));
        assert_eq!(layout.to_member_sector(128), (1, 0));
        assert_eq!(layout.to_member_sector(3 * 128 + 5), (0, 133));
        // From sector 100 on, the request covers the last 28 sectors of chunk 0, the chunks 1 to 3,
        // and the first 100 of chunk 4. Chunks 0 and 3 lie on member 0, 1 and 4 on member 1.
        let mut ranges = Vec::new();
        layout.split(100, 4 * 128, &mut ranges);
        let range = |member, start, sectors| MemberRange { member, start, sectors };
        assert_eq!(ranges, [range(0, 100, 28 + 128), range(1, 0, 128 + 100), range(2, 0, 128)]);
    }

    #[test]
    fn unequal_members_are_laid_out_in_zones_as_md_does() {
        // The members have 2, 4 and 3 chunks, so 3, 3, 2 and 1 of them are in rows 0 to 3.
        let chunk_sectors = 10;
        let layout = StripeLayout::new(&[20, 40, 35], chunk_sectors);
        assert_eq!(layout.sectors(), 90);
        let member_sectors: Vec<(u32, u64)> =
            (0..9).map(|chunk| layout.to_member_sector(chunk * 10)).collect();
        let expected =
            [(0, 0), (1, 0), (2, 0), (0, 10), (1, 10), (2, 10), (1, 20), (2, 20), (1, 30)];
        assert_eq!(member_sectors, expected);
        for sector in 0..90 {
            let (member, member_sector) = layout.to_member_sector(sector);
            assert_eq!(layout.to_array_sector(member, member_sector), sector);
        }
    }
}
