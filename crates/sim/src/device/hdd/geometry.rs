//! Where a sector lies: cylinder, head, angle.
//!
//! The drive's sectors are numbered along tracks, track after track, cylinder
//! after cylinder, zone after zone; outer zones have more sectors on a track.
//! Sectors set aside as spares, sectors that the maker found bad and slipped
//! over, and management areas take no number; a sector that went bad later is
//! remapped to a spare. All of that is folded, once, into a sorted table of
//! *runs*: spans of numbers whose places follow each other. A look-up is a
//! binary search in it and two divisions.
//!
//! Angles are fractions of a revolution in units of 2⁻⁶⁴, so that wrapping
//! arithmetic is arithmetic modulo a revolution, and a skew multiplied by
//! millions of tracks loses nothing.

use std::ops::Range;

use super::layout::{DiskZone, DriveLayout, TrackOrder};

/// A fraction of a revolution, in units of 2⁻⁶⁴ revolution.
pub(super) type Angle = u64;

/// Sectors of one zone whose places follow each other without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SectorRun {
    /// The place of its first sector, counted in sectors from the start of the zone.
    place: u64,
    /// Its zone.
    zone: u32,
    /// Turns all its sectors by this much: slips push the skew in some sparing schemes.
    push: Angle,
}

/// What the look-up needs of a zone.
#[derive(Clone, Copy, Debug)]
struct ZoneGeometry {
    first_cylinder: u32,
    track_sectors: u32,
    sector_width: Angle,
    offset: Angle,
    track_skew: Angle,
    /// What a whole cylinder turns the next one by: its track switches and the cylinder switch.
    cylinder_turn: Angle,
}

/// Where a sector lies, and how far the numbers go on from there along the track.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SectorPosition {
    /// The cylinder.
    pub cylinder: u32,
    /// The head (the surface).
    pub head: u32,
    /// Where the sector begins.
    pub angle: Angle,
    /// How wide a sector is here.
    pub sector_width: Angle,
    /// How many sectors, this one included, follow each other on this track.
    pub run_sectors: u32,
}

/// The drive's map from sector numbers to places.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    /// The first number of each run, ascending, and one past the end of all.
    firsts: Vec<u64>,
    runs: Vec<SectorRun>,
    zones: Vec<ZoneGeometry>,
    heads: u32,
    mapping: TrackOrder,
    sectors: u64,
}

impl Geometry {
    /// Folds a checked layout into the table.
    pub(super) fn new(layout: &DriveLayout) -> Geometry {
        let mut geometry = Geometry {
            firsts: vec![0],
            runs: Vec::new(),
            zones: layout.zones.iter().map(|zone| facts(zone, layout.heads)).collect(),
            heads: layout.heads,
            mapping: layout.mapping,
            sectors: 0,
        };
        for index in 0..layout.zones.len() {
            geometry.number_zone(layout, index);
        }
        let held = geometry.held_sectors();
        geometry.sectors = layout.sectors.map_or(held, |stated| stated.min(held));
        geometry
    }

    /// How many numbered sectors the zones hold.
    pub(super) fn held_sectors(&self) -> u64 {
        self.firsts[self.runs.len()]
    }

    /// The size of the drive in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// The run in which `sector` lies.
    fn run_of(&self, sector: u64) -> usize {
        self.firsts.partition_point(|first| *first <= sector) - 1
    }

    /// The numbers on the track of `sector`, bad sectors that are slipped over notwithstanding;
    /// one that is remapped to another track ends them.
    pub(super) fn track(&self, sector: u64) -> Range<u64> {
        let index = self.run_of(sector);
        let run = &self.runs[index];
        let track_sectors = u64::from(self.zones[run.zone as usize].track_sectors);
        let place = run.place + (sector - self.firsts[index]);
        let track = place / track_sectors;
        // Where the track begins and ends in the count of a run's places.
        let begin = track * track_sectors;
        let end = begin + track_sectors;
        let is_here = |other: &SectorRun| other.zone == run.zone;
        let (mut first, mut last) = (index, index);
        while first > 0 && self.runs[first].place > begin {
            let before = &self.runs[first - 1];
            let before_end = before.place + self.firsts[first] - self.firsts[first - 1];
            if !is_here(before) || before_end <= begin || before_end > self.runs[first].place {
                break;
            }
            first -= 1;
        }
        let run_end = |at: usize| self.runs[at].place + self.firsts[at + 1] - self.firsts[at];
        while last + 1 < self.runs.len() && run_end(last) < end {
            let after = &self.runs[last + 1];
            if !is_here(after) || after.place >= end || after.place < run_end(last) {
                break;
            }
            last += 1;
        }
        let start = self.firsts[first] + begin.saturating_sub(self.runs[first].place);
        start..self.firsts[last + 1].min(self.firsts[last] + (end - self.runs[last].place))
    }

    /// How many sectors a track has where `sector` lies, numbered or not.
    pub(super) fn track_sectors(&self, sector: u64) -> u32 {
        self.zones[self.runs[self.run_of(sector)].zone as usize].track_sectors
    }

    /// The place of `sector`, which lies within the drive.
    pub(super) fn locate(&self, sector: u64) -> SectorPosition {
        let index = self.run_of(sector);
        let run = &self.runs[index];
        let zone = &self.zones[run.zone as usize];
        let into_run = sector - self.firsts[index];
        let place = run.place + into_run;
        let track_sectors = u64::from(zone.track_sectors);
        let track = place / track_sectors;
        let on_track = place % track_sectors;
        let cylinder = track / u64::from(self.heads);
        let nth_head = track % u64::from(self.heads);
        let left_in_run = self.firsts[index + 1] - sector;
        let angle = zone
            .offset
            .wrapping_add(run.push)
            .wrapping_add(nth_head.wrapping_mul(zone.track_skew))
            .wrapping_add(cylinder.wrapping_mul(zone.cylinder_turn))
            .wrapping_add(on_track.wrapping_mul(zone.sector_width));
        SectorPosition {
            cylinder: zone.first_cylinder + cylinder as u32,
            head: self.surface(zone, cylinder, nth_head as u32),
            angle,
            sector_width: zone.sector_width,
            run_sectors: left_in_run.min(track_sectors - on_track) as u32,
        }
    }

    /// Which surface holds the `nth` track of a cylinder: serpentine maps turn back each time.
    fn surface(&self, zone: &ZoneGeometry, cylinder: u64, nth: u32) -> u32 {
        let turned = match self.mapping {
            TrackOrder::Cylinders => false,
            TrackOrder::SerpentineInZone => cylinder % 2 == 1,
            TrackOrder::SerpentineOnDisk => (u64::from(zone.first_cylinder) + cylinder) % 2 == 1,
        };
        if turned { self.heads - 1 - nth } else { nth }
    }

    /// Numbers the sectors of one zone, region by region of its sparing scheme.
    ///
    /// A region takes as many numbers as its sectors less its spares; bad sectors are
    /// slipped over, so that the numbers run on into the spares. The management area at
    /// the front of the zone takes the first numbers away.
    fn number_zone(&mut self, layout: &DriveLayout, index: usize) {
        let zone = &layout.zones[index];
        let zone_sectors = zone.physical_sectors(layout.heads);
        let region_sectors = layout.sparing.region_sectors(zone, layout.heads).min(zone_sectors);
        let mut slips = layout.sparing.slipped_sectors(zone);
        slips.sort_unstable();
        slips.dedup();
        let mut remaps = layout.sparing.remapped_sectors(zone);
        remaps.retain(|(bad, spare)| bad != spare);
        remaps.sort_unstable();
        let mut dead = zone.front_sectors;
        for region in (0..zone_sectors).step_by(region_sectors as usize) {
            let end = (region + region_sectors).min(zone_sectors);
            let first_slip = slips.partition_point(|slip| *slip < region);
            let here = &slips[first_slip..slips.partition_point(|slip| *slip < end)];
            // A last region cut short by the end of the zone has no spares of its own.
            let is_whole = end - region == region_sectors;
            let spares = if is_whole { layout.sparing.region_spares(zone) } else { 0 };
            let usable = layout.sparing.usable(region, end, spares, here.len() as u64);
            let push = match layout.sparing.slips_push_skew() {
                true => (first_slip as u64).wrapping_mul(self.zones[index].sector_width),
                false => 0,
            };
            let mut quota = usable.numbers_max;
            let mut place = usable.start;
            let bounds = here.iter().copied().filter(|slip| *slip >= usable.start);
            for stop in bounds.chain([usable.end]).take_while(|stop| *stop <= usable.end) {
                let count = (stop - place).min(quota);
                let skipped = dead.min(count);
                let run = SectorRun { place: place + skipped, zone: index as u32, push };
                self.push_run(&remaps, run, count - skipped);
                dead -= skipped;
                quota -= count;
                place = stop + 1;
            }
        }
    }

    /// Appends `count` sectors from `place`, pulling remapped sectors out to their spares.
    fn push_run(&mut self, remaps: &[(u64, u64)], run: SectorRun, count: u64) {
        let end = run.place + count;
        let first = remaps.partition_point(|(bad, _)| *bad < run.place);
        let mut from = run.place;
        for (bad, spare) in remaps[first..].iter().take_while(|(bad, _)| *bad < end) {
            self.append(SectorRun { place: from, ..run }, bad - from);
            self.append(SectorRun { place: *spare, ..run }, 1);
            from = bad + 1;
        }
        self.append(SectorRun { place: from, ..run }, end - from);
    }

    /// Appends a run, joined to the last one where it goes on from it.
    fn append(&mut self, run: SectorRun, count: u64) {
        if count == 0 {
            return;
        }
        let end = self.firsts[self.runs.len()];
        if let Some(last) = self.runs.last() {
            let follows =
                SectorRun { place: last.place + end - self.firsts[self.runs.len() - 1], ..*last };
            if follows == run {
                self.firsts.pop();
                self.firsts.push(end + count);
                return;
            }
        }
        self.runs.push(run);
        self.firsts.push(end + count);
    }
}

fn facts(zone: &DiskZone, heads: u32) -> ZoneGeometry {
    // Rounded down, so that the last sector of a track ends within the revolution.
    let width = u64::MAX / u64::from(zone.track_sectors);
    let turn =
        |sectors: f64| (sectors.rem_euclid(f64::from(zone.track_sectors)) * width as f64) as Angle;
    let track_skew = turn(zone.track_skew_sectors);
    ZoneGeometry {
        first_cylinder: zone.first_cylinder,
        track_sectors: zone.track_sectors,
        sector_width: width,
        offset: turn(zone.offset_sectors),
        track_skew,
        cylinder_turn: u64::from(heads - 1)
            .wrapping_mul(track_skew)
            .wrapping_add(turn(zone.cylinder_skew_sectors)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::SparingScheme;
    use super::*;

    /// Two heads, tracks of four sectors, three cylinders: 24 sectors.
    fn zone() -> DiskZone {
        DiskZone { last_cylinder: 2, track_sectors: 4, ..DiskZone::default() }
    }

    fn geometry(mapping: TrackOrder, sparing: SparingScheme, zones: Vec<DiskZone>) -> Geometry {
        let cylinders = zones.last().map_or(0, |zone| zone.last_cylinder) + 1;
        let layout = DriveLayout { heads: 2, cylinders, sectors: None, mapping, sparing, zones };
        layout.check().expect("a layout of the tests");
        Geometry::new(&layout)
    }

    /// Cylinder, head and angle in quarters of a revolution.
    fn place(geometry: &Geometry, sector: u64) -> (u32, u32, u64) {
        let place = geometry.locate(sector);
        (place.cylinder, place.head, (place.angle >> 62) + ((place.angle >> 61) & 1)) // rounded
    }

    #[test]
    fn tracks_are_numbered_cylinder_by_cylinder_or_back_and_forth() {
        let straight = geometry(TrackOrder::Cylinders, SparingScheme::None, vec![zone()]);
        assert_eq!(straight.sectors(), 24);
        assert_eq!(place(&straight, 5), (0, 1, 1));
        assert_eq!(place(&straight, 8), (1, 0, 0));
        let serpentine = geometry(TrackOrder::SerpentineInZone, SparingScheme::None, vec![zone()]);
        assert_eq!(place(&serpentine, 5), (0, 1, 1));
        assert_eq!(place(&serpentine, 8), (1, 1, 0));
        assert_eq!(place(&serpentine, 12), (1, 0, 0));
        let second = DiskZone { first_cylinder: 1, last_cylinder: 2, ..zone() };
        let first = DiskZone { last_cylinder: 0, ..zone() };
        let on_disk = geometry(
            TrackOrder::SerpentineOnDisk,
            SparingScheme::None,
            vec![first.clone(), second.clone()],
        );
        let in_zone =
            geometry(TrackOrder::SerpentineInZone, SparingScheme::None, vec![first, second]);
        assert_eq!(place(&on_disk, 8), (1, 1, 0));
        assert_eq!(place(&in_zone, 8), (1, 0, 0));
    }

    #[test]
    fn skews_add_up_over_tracks_and_cylinders() {
        let skewed = DiskZone {
            offset_sectors: 1.0,
            track_skew_sectors: 1.0,
            cylinder_skew_sectors: 2.0,
            ..zone()
        };
        let geometry = geometry(TrackOrder::Cylinders, SparingScheme::None, vec![skewed]);
        assert_eq!(place(&geometry, 0), (0, 0, 1));
        assert_eq!(place(&geometry, 4), (0, 1, 2));
        // One track switch and one cylinder switch: 1 + 1 + 2 sectors.
        assert_eq!(place(&geometry, 8), (1, 0, 0));
        assert_eq!(place(&geometry, 13), (1, 1, 2));
    }

    #[test]
    fn slips_push_numbers_on_and_remaps_send_them_to_spares() {
        let slipped = DiskZone { spares: 2, slips: vec![2], remaps: vec![(5, 23)], ..zone() };
        let geometry = geometry(TrackOrder::Cylinders, SparingScheme::PerZone, vec![slipped]);
        assert_eq!(geometry.sectors(), 22);
        assert_eq!(place(&geometry, 1), (0, 0, 1));
        assert_eq!(place(&geometry, 2), (0, 0, 3));
        assert_eq!(place(&geometry, 4), (2, 1, 3)); // place 5 is bad, 23 stands in
        assert_eq!(place(&geometry, 5), (0, 1, 2));
        assert_eq!(geometry.locate(0).run_sectors, 2);
        // The first track holds three numbers, on both sides of the bad sector; the second is cut
        // in three by the sector that is elsewhere.
        assert_eq!((geometry.track(0), geometry.track(2)), (0..3, 0..3));
        assert_eq!([3, 4, 5].map(|sector| geometry.track(sector)), [3..4, 4..5, 5..7]);
        assert_eq!(geometry.track(7), 7..11);
    }

    #[test]
    fn every_sparing_scheme_holds_what_disksim_computes() {
        let spared = |spares, slips| DiskZone { spares, slips, ..zone() };
        let held = |sparing, zone: DiskZone| {
            geometry(TrackOrder::Cylinders, sparing, vec![zone]).sectors()
        };
        assert_eq!(held(SparingScheme::None, spared(0, vec![])), 24);
        assert_eq!(held(SparingScheme::TracksPerZone, spared(1, vec![0])), 20);
        assert_eq!(held(SparingScheme::PerCylinder, spared(1, vec![3])), 21);
        assert_eq!(held(SparingScheme::PerTrack, spared(1, vec![3])), 18);
        assert_eq!(held(SparingScheme::PerCylinderSlipToEnd, spared(1, vec![3])), 20);
        assert_eq!(held(SparingScheme::CylinderFront, spared(1, vec![3])), 21);
        assert_eq!(held(SparingScheme::CylinderFrontSlipToEnd, spared(1, vec![3])), 20);
        assert_eq!(held(SparingScheme::EndOfDisk, spared(0, vec![3, 9])), 22);
        assert_eq!(held(SparingScheme::PerRange { cylinders: 2 }, spared(3, vec![3])), 21);
        assert_eq!(held(SparingScheme::PerZone, spared(5, vec![3])), 19);
        assert_eq!(held(SparingScheme::PerZoneSlipToEnd, spared(5, vec![3])), 18);
    }

    #[test]
    fn spares_lie_where_the_scheme_says() {
        let spared = DiskZone { spares: 1, ..zone() };
        let back =
            geometry(TrackOrder::Cylinders, SparingScheme::PerCylinder, vec![spared.clone()]);
        assert_eq!(place(&back, 7), (1, 0, 0));
        let front =
            geometry(TrackOrder::Cylinders, SparingScheme::CylinderFront, vec![spared.clone()]);
        assert_eq!(place(&front, 0), (0, 0, 1));
        let managed = DiskZone { front_sectors: 3, ..zone() };
        let managed = geometry(TrackOrder::Cylinders, SparingScheme::None, vec![managed]);
        assert_eq!((managed.sectors(), place(&managed, 0)), (21, (0, 0, 3)));
    }
}
