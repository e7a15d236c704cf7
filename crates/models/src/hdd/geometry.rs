//! Position of a sector: cylinder, head, angle.
//!
//! Sector numbers run along tracks, then cylinders, then zones. Outer zones have more sectors per
//! track. Spares, defective sectors slipped by the manufacturer, and management areas have no
//! number. A sector that failed later is remapped to a spare. At construction, all this is
//! converted into a sorted table of *runs*: ranges of numbers with adjacent positions. A look-up
//! takes one binary search and two divisions.
//!
//! Angles are fractions of a revolution in units of 2⁻⁶⁴. Wrapping arithmetic is then arithmetic
//! modulo one revolution, and a skew multiplied by millions of tracks loses no precision.

use std::ops::Range;

use super::layout::{DiskZone, DriveLayout, LayoutFault, TrackOrder};

/// Maximum ratio of the stated size to the sum of the zones. Existing parameter files deviate by a
/// few parts per thousand, and DiskSim uses the sum of the zones.
const STATED_SIZE_RATIO_MAX: f64 = 1.01;

/// An angle in units of 2⁻⁶⁴ revolution.
pub(super) type Angle = u64;

/// Sectors of one zone with adjacent positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SectorRun {
    /// Position of the first sector, counted in sectors from the start of the zone.
    place: u64,
    /// Index of the zone.
    zone: u32,
    /// Extra angle of all its sectors: slips shift the skew in some sparing schemes.
    skew_shift: Angle,
}

/// Data of a zone for the look-up.
#[derive(Clone, Copy, Debug)]
struct ZoneGeometry {
    first_cylinder: u32,
    track_sectors: u32,
    sector_width: Angle,
    offset: Angle,
    track_skew: Angle,
    /// Angle between consecutive cylinders: the sum of the track skews and the cylinder skew.
    cylinder_angle: Angle,
}

/// Position of a sector, and the number of consecutive sectors after it on the track.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SectorPosition {
    /// Cylinder number.
    pub cylinder: u32,
    /// Head (surface) number.
    pub head: u32,
    /// Angle at which the sector starts.
    pub angle: Angle,
    /// Angle of one sector in this zone.
    pub sector_width: Angle,
    /// Number of consecutive sectors on this track, including this one.
    pub run_sectors: u32,
}

/// Mapping from sector numbers to positions.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    /// First sector number of each run in ascending order, followed by the end of the last run.
    firsts: Vec<u64>,
    runs: Vec<SectorRun>,
    zones: Vec<ZoneGeometry>,
    heads: u32,
    mapping: TrackOrder,
    sectors: u64,
}

/// Checks the fields of a layout against each other, and its stated size against its zones.
///
/// # Errors
/// Returns the zone (if one zone is wrong), the field, and the contradiction.
pub(super) fn check_layout(layout: &DriveLayout) -> Result<(), LayoutFault> {
    layout.check_zones()?;
    let zone_sectors = Geometry::new(layout).numbered_sectors();
    match layout.sectors {
        Some(stated) if stated as f64 > zone_sectors as f64 * STATED_SIZE_RATIO_MAX => {
            Err((None, "sectors", format!("{stated} sectors, but its zones hold {zone_sectors}")))
        }
        _ => Ok(()),
    }
}

impl Geometry {
    /// Builds the table from a checked layout.
    pub(super) fn new(layout: &DriveLayout) -> Geometry {
        let mut geometry = Geometry {
            firsts: vec![0],
            runs: Vec::new(),
            zones: layout.zones.iter().map(|zone| zone_geometry(zone, layout.heads)).collect(),
            heads: layout.heads,
            mapping: layout.mapping,
            sectors: 0,
        };
        for index in 0..layout.zones.len() {
            geometry.number_zone(layout, index);
        }
        let numbered_sectors = geometry.numbered_sectors();
        geometry.sectors =
            layout.sectors.map_or(numbered_sectors, |stated| stated.min(numbered_sectors));
        geometry
    }

    /// Number of numbered sectors in all zones.
    pub(super) fn numbered_sectors(&self) -> u64 {
        self.firsts[self.runs.len()]
    }

    /// Size of the drive in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the index of the run that contains `sector`.
    fn run_of(&self, sector: u64) -> usize {
        self.firsts.partition_point(|first| *first <= sector) - 1
    }

    /// Returns the sector numbers on the track of `sector`. Slipped sectors do not interrupt the
    /// range. A sector that is remapped to another track ends it.
    pub(super) fn track(&self, sector: u64) -> Range<u64> {
        let index = self.run_of(sector);
        let run = &self.runs[index];
        let track_sectors = u64::from(self.zones[run.zone as usize].track_sectors);
        let zone_position = run.place + (sector - self.firsts[index]);
        let track = zone_position / track_sectors;
        // Start and end of the track, in positions of the zone.
        let begin = track * track_sectors;
        let end = begin + track_sectors;
        let is_in_zone = |other: &SectorRun| other.zone == run.zone;
        let (mut first_run, mut last_run) = (index, index);
        while first_run > 0 && self.runs[first_run].place > begin {
            let previous_run = &self.runs[first_run - 1];
            let previous_end =
                previous_run.place + self.firsts[first_run] - self.firsts[first_run - 1];
            if !is_in_zone(previous_run)
                || previous_end <= begin
                || previous_end > self.runs[first_run].place
            {
                break;
            }
            first_run -= 1;
        }
        let run_end = |run_index: usize| {
            self.runs[run_index].place + self.firsts[run_index + 1] - self.firsts[run_index]
        };
        while last_run + 1 < self.runs.len() && run_end(last_run) < end {
            let next_run = &self.runs[last_run + 1];
            if !is_in_zone(next_run) || next_run.place >= end || next_run.place < run_end(last_run)
            {
                break;
            }
            last_run += 1;
        }
        let start = self.firsts[first_run] + begin.saturating_sub(self.runs[first_run].place);
        start
            ..self.firsts[last_run + 1]
                .min(self.firsts[last_run] + (end - self.runs[last_run].place))
    }

    /// Number of sectors on the track of `sector`, including those without a number.
    pub(super) fn track_sectors(&self, sector: u64) -> u32 {
        self.zones[self.runs[self.run_of(sector)].zone as usize].track_sectors
    }

    /// Returns the position of `sector`, which must lie within the drive.
    pub(super) fn locate(&self, sector: u64) -> SectorPosition {
        let index = self.run_of(sector);
        let run = &self.runs[index];
        let zone = &self.zones[run.zone as usize];
        let offset_in_run = sector - self.firsts[index];
        let zone_position = run.place + offset_in_run;
        let track_sectors = u64::from(zone.track_sectors);
        let track = zone_position / track_sectors;
        let offset_on_track = zone_position % track_sectors;
        let cylinder = track / u64::from(self.heads);
        let head_index = track % u64::from(self.heads);
        let run_sectors_left = self.firsts[index + 1] - sector;
        let angle = zone
            .offset
            .wrapping_add(run.skew_shift)
            .wrapping_add(head_index.wrapping_mul(zone.track_skew))
            .wrapping_add(cylinder.wrapping_mul(zone.cylinder_angle))
            .wrapping_add(offset_on_track.wrapping_mul(zone.sector_width));
        SectorPosition {
            cylinder: zone.first_cylinder + cylinder as u32,
            head: self.surface(zone, cylinder, head_index as u32),
            angle,
            sector_width: zone.sector_width,
            run_sectors: run_sectors_left.min(track_sectors - offset_on_track) as u32,
        }
    }

    /// Returns the surface of the `nth` track of a cylinder. Serpentine mappings reverse the order
    /// in alternate cylinders.
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
    /// A region provides as many numbers as its sectors minus its spares. Defective sectors are
    /// skipped, so the numbers extend into the spares. The management area at the front of the zone
    /// uses up the first numbers.
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
        let mut reserved_sectors = zone.front_sectors;
        for region in (0..zone_sectors).step_by(region_sectors as usize) {
            let end = (region + region_sectors).min(zone_sectors);
            let first_slip = slips.partition_point(|slip| *slip < region);
            let region_slips = &slips[first_slip..slips.partition_point(|slip| *slip < end)];
            // A last region that is cut off by the end of the zone has no spares.
            let is_full_region = end - region == region_sectors;
            let spares = if is_full_region { layout.sparing.region_spares(zone) } else { 0 };
            let usable = layout.sparing.usable(region, end, spares, region_slips.len() as u64);
            let skew_shift = match layout.sparing.slips_push_skew() {
                true => (first_slip as u64).wrapping_mul(self.zones[index].sector_width),
                false => 0,
            };
            let mut quota = usable.numbers_max;
            let mut position = usable.start;
            let bounds = region_slips.iter().copied().filter(|slip| *slip >= usable.start);
            for stop in bounds.chain([usable.end]).take_while(|stop| *stop <= usable.end) {
                let count = (stop - position).min(quota);
                let skipped = reserved_sectors.min(count);
                let run = SectorRun { place: position + skipped, zone: index as u32, skew_shift };
                self.push_run(&remaps, run, count - skipped);
                reserved_sectors -= skipped;
                quota -= count;
                position = stop + 1;
            }
        }
    }

    /// Appends `count` sectors from the start of `run`. Remapped sectors become runs at their
    /// spares. `remaps` has pairs of a bad sector and its spare.
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

    /// Appends a run of `count` numbered sectors, or extends the last run if the positions are
    /// adjacent. No effect if `count` is 0.
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

/// Computes the look-up data of a zone on a drive with `heads` surfaces.
fn zone_geometry(zone: &DiskZone, heads: u32) -> ZoneGeometry {
    // Rounded down, so the last sector of a track ends within the revolution.
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
        cylinder_angle: u64::from(heads - 1)
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
        check_layout(&layout).expect("a layout of the tests");
        Geometry::new(&layout)
    }

    /// Returns cylinder, head, and angle in quarters of a revolution.
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
    fn slips_shift_sector_numbers_and_remaps_move_them_to_spares() {
        let slipped = DiskZone { spares: 2, slips: vec![2], remaps: vec![(5, 23)], ..zone() };
        let geometry = geometry(TrackOrder::Cylinders, SparingScheme::PerZone, vec![slipped]);
        assert_eq!(geometry.sectors(), 22);
        assert_eq!(place(&geometry, 1), (0, 0, 1));
        assert_eq!(place(&geometry, 2), (0, 0, 3));
        assert_eq!(place(&geometry, 4), (2, 1, 3)); // position 5 is defective, 23 replaces it
        assert_eq!(place(&geometry, 5), (0, 1, 2));
        assert_eq!(geometry.locate(0).run_sectors, 2);
        // The first track has three numbers, around the slipped sector. The second is split in
        // three by the remapped sector.
        assert_eq!((geometry.track(0), geometry.track(2)), (0..3, 0..3));
        assert_eq!([3, 4, 5].map(|sector| geometry.track(sector)), [3..4, 4..5, 5..7]);
        assert_eq!(geometry.track(7), 7..11);
    }

    #[test]
    fn every_sparing_scheme_has_the_capacity_that_disksim_computes() {
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
    fn spare_sectors_are_placed_by_the_sparing_scheme() {
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
