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
/// few parts per thousand, and DiskSim uses the sum of the zones. A smaller stated size is always
/// valid.
const STATED_SIZE_RATIO_MAX: f64 = 1.01;

/// An angle in units of 2⁻⁶⁴ revolution.
pub(super) type Angle = u64;

/// Sectors of one zone with adjacent positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SectorRun {
    /// Position of the first sector, counted in sectors from the start of the zone.
    zone_offset: u64,
    /// Index of the zone.
    zone: u32,
    /// Extra angle of all its sectors: slips shift the skew in some sparing schemes.
    skew_shift: Angle,
}

/// Data of a zone for the look-up.
#[derive(Clone, Copy, Debug)]
struct ZoneGeometry {
    /// First cylinder of the zone.
    first_cylinder: u32,
    /// Sectors per track, including those without a number.
    track_sectors: u32,
    /// Angle of one sector.
    sector_width: Angle,
    /// Angle of the zone's first sector from the index mark.
    offset: Angle,
    /// Angle between the first sectors of consecutive tracks of a cylinder.
    track_skew: Angle,
    /// Angle between consecutive cylinders: the sum of the track skews and the cylinder skew.
    cylinder_angle: Angle,
}

/// Position of a sector, and the number of consecutive sectors from it on along the track.
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
    first_sectors: Vec<u64>,
    /// The runs, one for each first sector except the last.
    runs: Vec<SectorRun>,
    /// The zones, outermost first.
    zones: Vec<ZoneGeometry>,
    /// Number of surfaces.
    heads: u32,
    /// Numbering order of the tracks.
    mapping: TrackOrder,
    /// Size of the drive: the stated one, at most the number of numbered sectors.
    sectors: u64,
}

/// Checks the fields of a layout against each other, and its stated size against its zones.
///
/// # Errors
/// Returns the first contradiction.
pub(super) fn check_layout(layout: &DriveLayout) -> Result<(), LayoutFault> {
    layout.check_zones()?;
    let zone_sectors = Geometry::new(layout).numbered_sectors();
    match layout.sectors {
        Some(stated) if stated as f64 > zone_sectors as f64 * STATED_SIZE_RATIO_MAX => {
            let problem = format!("{stated} sectors, but its zones hold {zone_sectors}");
            Err(LayoutFault { zone_index: None, key: "sectors", problem })
        }
        _ => Ok(()),
    }
}

impl Geometry {
    /// Builds the table from a checked layout.
    pub(super) fn new(layout: &DriveLayout) -> Geometry {
        let mut geometry = Geometry {
            first_sectors: vec![0],
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
        self.first_sectors[self.runs.len()]
    }

    /// Size of the drive in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the index of the run that contains `sector`, which must lie within the drive.
    fn run_index(&self, sector: u64) -> usize {
        self.first_sectors.partition_point(|first| *first <= sector) - 1
    }

    /// Returns the sector numbers around `sector` whose positions ascend on one track. Slipped
    /// sectors do not interrupt the range. A remapped sector counts at the position of its spare.
    /// The range ends there if that position is on another track or not in ascending order.
    pub(super) fn track(&self, sector: u64) -> Range<u64> {
        let index = self.run_index(sector);
        let run = &self.runs[index];
        let track_sectors = u64::from(self.zones[run.zone as usize].track_sectors);
        let zone_position = run.zone_offset + (sector - self.first_sectors[index]);
        let track = zone_position / track_sectors;
        // Start and end of the track, in sectors from the start of the zone.
        let track_start = track * track_sectors;
        let track_end = track_start + track_sectors;
        let is_in_zone = |other: &SectorRun| other.zone == run.zone;
        // Start and end of a run, in the same unit.
        let run_start = |run_index: usize| self.runs[run_index].zone_offset;
        let run_end = |run_index: usize| {
            run_start(run_index) + self.first_sectors[run_index + 1] - self.first_sectors[run_index]
        };
        // First and last run of the range. It ends at a neighbour in another zone or beyond the
        // track. It also ends where the order of positions differs from the order of numbers: one
        // of the two runs is then a remapped sector at its spare.
        let (mut first_run, mut last_run) = (index, index);
        while first_run > 0 && run_start(first_run) > track_start {
            let previous_end = run_end(first_run - 1);
            if !is_in_zone(&self.runs[first_run - 1])
                || previous_end <= track_start
                || previous_end > run_start(first_run)
            {
                break;
            }
            first_run -= 1;
        }
        while last_run + 1 < self.runs.len() && run_end(last_run) < track_end {
            let next_start = run_start(last_run + 1);
            if !is_in_zone(&self.runs[last_run + 1])
                || next_start >= track_end
                || next_start < run_end(last_run)
            {
                break;
            }
            last_run += 1;
        }
        // The outermost runs can extend beyond the track.
        let start =
            self.first_sectors[first_run] + track_start.saturating_sub(run_start(first_run));
        let last_run_sector = self.first_sectors[last_run];
        let end_on_track = last_run_sector + (track_end - run_start(last_run));
        start..self.first_sectors[last_run + 1].min(end_on_track)
    }

    /// Number of sectors on the track of `sector`, including those without a number.
    pub(super) fn track_sectors(&self, sector: u64) -> u32 {
        self.zones[self.runs[self.run_index(sector)].zone as usize].track_sectors
    }

    /// Returns the position of `sector`, which must lie within the drive.
    pub(super) fn locate(&self, sector: u64) -> SectorPosition {
        let index = self.run_index(sector);
        let run = &self.runs[index];
        let zone = &self.zones[run.zone as usize];
        let offset_in_run = sector - self.first_sectors[index];
        let zone_position = run.zone_offset + offset_in_run;
        let track_sectors = u64::from(zone.track_sectors);
        let track = zone_position / track_sectors;
        let offset_on_track = zone_position % track_sectors;
        let cylinder = track / u64::from(self.heads);
        let head_index = track % u64::from(self.heads);
        let run_sectors_left = self.first_sectors[index + 1] - sector;
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

    /// Returns the surface of the track with index `head_index` in the zone's cylinder `cylinder`.
    /// Serpentine mappings reverse the order in alternate cylinders. The number of the cylinder
    /// counts in the zone or on the disk, as the mapping states.
    fn surface(&self, zone: &ZoneGeometry, cylinder: u64, head_index: u32) -> u32 {
        let is_reversed = match self.mapping {
            TrackOrder::Cylinders => false,
            TrackOrder::SerpentineInZone => cylinder % 2 == 1,
            TrackOrder::SerpentineOnDisk => (u64::from(zone.first_cylinder) + cylinder) % 2 == 1,
        };
        if is_reversed { self.heads - 1 - head_index } else { head_index }
    }

    /// Numbers the sectors of the zone `index`, region by region of its sparing scheme. A region is
    /// the part of a zone with spares of its own, such as a track, a cylinder or the whole zone.
    ///
    /// A region provides as many numbers as its sectors minus its spares. Defective sectors are
    /// skipped, so the numbers extend into the spares. The management area at the front of the zone
    /// uses up the first numbers, across regions if necessary (`reserved_sectors`).
    fn number_zone(&mut self, layout: &DriveLayout, index: usize) {
        let zone = &layout.zones[index];
        let zone_sectors = zone.physical_sectors(layout.heads);
        let region_sectors = layout.sparing.region_sectors(zone, layout.heads).min(zone_sectors);
        let mut slips = layout.sparing.slipped_sectors(zone);
        slips.sort_unstable();
        slips.dedup();
        let mut remaps = layout.sparing.remapped_sectors(zone);
        // A sector remapped to itself is not moved.
        remaps.retain(|(bad, spare)| bad != spare);
        remaps.sort_unstable();
        let mut reserved_sectors = zone.front_sectors;
        for region_start in (0..zone_sectors).step_by(region_sectors as usize) {
            let region_end = (region_start + region_sectors).min(zone_sectors);
            let first_slip = slips.partition_point(|slip| *slip < region_start);
            let region_slips = &slips[first_slip..slips.partition_point(|slip| *slip < region_end)];
            // A last region that is cut off by the end of the zone has no spares.
            let is_full_region = region_end - region_start == region_sectors;
            let spares = if is_full_region { layout.sparing.region_spares(zone) } else { 0 };
            let slip_count = region_slips.len() as u64;
            let usable =
                layout.sparing.usable_sectors(region_start, region_end, spares, slip_count);
            // Each slip before the region shifts it by a sector, if the scheme shifts skews at all.
            let skew_shift = match layout.sparing.slips_push_skew() {
                true => (first_slip as u64).wrapping_mul(self.zones[index].sector_width),
                false => 0,
            };
            let mut numbers_left = usable.numbers_max;
            let mut position = usable.start;
            // A run ends at each slipped sector, which gets no number. Slips among free spares
            // change nothing.
            let is_usable = |slip: &u64| (usable.start..usable.end).contains(slip);
            let run_ends = region_slips.iter().copied().filter(is_usable);
            for run_end in run_ends.chain([usable.end]) {
                let count = (run_end - position).min(numbers_left);
                let skipped = reserved_sectors.min(count);
                let zone_offset = position + skipped;
                let run = SectorRun { zone_offset, zone: index as u32, skew_shift };
                self.append_with_remaps(&remaps, run, count - skipped);
                reserved_sectors -= skipped;
                numbers_left -= count;
                position = run_end + 1;
            }
        }
    }

    /// Appends `count` sectors from the start of `run`, split at its remapped sectors. Remapped
    /// sectors become runs at their spares. `remaps` has pairs of a bad sector and its spare.
    fn append_with_remaps(&mut self, remaps: &[(u64, u64)], run: SectorRun, count: u64) {
        let end = run.zone_offset + count;
        let first = remaps.partition_point(|(bad, _)| *bad < run.zone_offset);
        let mut next_offset = run.zone_offset;
        for (bad, spare) in remaps[first..].iter().take_while(|(bad, _)| *bad < end) {
            self.append_run(SectorRun { zone_offset: next_offset, ..run }, bad - next_offset);
            self.append_run(SectorRun { zone_offset: *spare, ..run }, 1);
            next_offset = bad + 1;
        }
        self.append_run(SectorRun { zone_offset: next_offset, ..run }, end - next_offset);
    }

    /// Appends a run of `count` numbered sectors, or extends the last run if the positions are
    /// adjacent. No effect if `count` is 0.
    fn append_run(&mut self, run: SectorRun, count: u64) {
        if count == 0 {
            return;
        }
        let end = self.first_sectors[self.runs.len()];
        if let Some(last) = self.runs.last() {
            let last_count = end - self.first_sectors[self.runs.len() - 1];
            let continuation = SectorRun { zone_offset: last.zone_offset + last_count, ..*last };
            if continuation == run {
                self.first_sectors.pop();
                self.first_sectors.push(end + count);
                return;
            }
        }
        self.runs.push(run);
        self.first_sectors.push(end + count);
    }
}

/// Computes the look-up data of a zone on a drive with `heads` surfaces.
fn zone_geometry(zone: &DiskZone, heads: u32) -> ZoneGeometry {
    // Rounded down, so the last sector of a track ends within the revolution.
    let width = u64::MAX / u64::from(zone.track_sectors);
    // The angle of a number of sectors, modulo one revolution.
    let angle_of =
        |sectors: f64| (sectors.rem_euclid(f64::from(zone.track_sectors)) * width as f64) as Angle;
    let track_skew = angle_of(zone.track_skew_sectors);
    ZoneGeometry {
        first_cylinder: zone.first_cylinder,
        track_sectors: zone.track_sectors,
        sector_width: width,
        offset: angle_of(zone.offset_sectors),
        track_skew,
        cylinder_angle: u64::from(heads - 1)
            .wrapping_mul(track_skew)
            .wrapping_add(angle_of(zone.cylinder_skew_sectors)),
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

    /// Returns the geometry of a disk with two heads and the given zones.
    fn geometry(mapping: TrackOrder, sparing: SparingScheme, zones: Vec<DiskZone>) -> Geometry {
        let cylinders = zones.last().map_or(0, |zone| zone.last_cylinder) + 1;
        let layout = DriveLayout { heads: 2, cylinders, sectors: None, mapping, sparing, zones };
        check_layout(&layout).expect("a layout of the tests");
        Geometry::new(&layout)
    }

    /// Returns cylinder, head, and angle in quarters of a revolution, one sector of the tests.
    fn rounded_position(geometry: &Geometry, sector: u64) -> (u32, u32, u64) {
        let SectorPosition { cylinder, head, angle, .. } = geometry.locate(sector);
        (cylinder, head, (angle >> 62) + ((angle >> 61) & 1))
    }

    /// Each cylinder has 8 sectors, 4 on each head. Sector 8 is the first of cylinder 1, which a
    /// serpentine order begins at head 1. With a zone boundary before cylinder 1, that cylinder is
    /// even in its zone and odd on the disk.
    #[test]
    fn tracks_are_numbered_cylinder_by_cylinder_or_back_and_forth() {
        let straight = geometry(TrackOrder::Cylinders, SparingScheme::None, vec![zone()]);
        assert_eq!(straight.sectors(), 24);
        assert_eq!(rounded_position(&straight, 5), (0, 1, 1));
        assert_eq!(rounded_position(&straight, 8), (1, 0, 0));
        let serpentine = geometry(TrackOrder::SerpentineInZone, SparingScheme::None, vec![zone()]);
        assert_eq!(rounded_position(&serpentine, 5), (0, 1, 1));
        assert_eq!(rounded_position(&serpentine, 8), (1, 1, 0));
        assert_eq!(rounded_position(&serpentine, 12), (1, 0, 0));
        let second = DiskZone { first_cylinder: 1, last_cylinder: 2, ..zone() };
        let first = DiskZone { last_cylinder: 0, ..zone() };
        let on_disk = geometry(
            TrackOrder::SerpentineOnDisk,
            SparingScheme::None,
            vec![first.clone(), second.clone()],
        );
        let in_zone =
            geometry(TrackOrder::SerpentineInZone, SparingScheme::None, vec![first, second]);
        assert_eq!(rounded_position(&on_disk, 8), (1, 1, 0));
        assert_eq!(rounded_position(&in_zone, 8), (1, 0, 0));
    }

    /// 24 sectors with 4 spares at the end, which slips do not use: 20 numbers. A defective sector
    /// among the spares, also the first one, takes none of them. One before takes one.
    #[test]
    fn slips_among_free_spares_take_no_numbers() {
        let sectors = |slip| {
            let zone = DiskZone { spares: 4, slips: vec![slip], ..zone() };
            let scheme = SparingScheme::PerZoneSlipToEnd;
            geometry(TrackOrder::Cylinders, scheme, vec![zone]).sectors()
        };
        assert_eq!([sectors(23), sectors(20), sectors(19)], [20, 20, 19]);
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
        assert_eq!(rounded_position(&geometry, 0), (0, 0, 1));
        assert_eq!(rounded_position(&geometry, 4), (0, 1, 2));
        // The offset, one track switch and one cylinder switch: 1 + 1 + 2 sectors, a revolution.
        assert_eq!(rounded_position(&geometry, 8), (1, 0, 0));
        assert_eq!(rounded_position(&geometry, 13), (1, 1, 2));
    }

    #[test]
    fn slips_shift_sector_numbers_and_remaps_move_them_to_spares() {
        // Two of 24 positions are spares. Position 2 is slipped, so number 2 is at position 3.
        let slipped = DiskZone { spares: 2, slips: vec![2], remaps: vec![(5, 23)], ..zone() };
        let geometry = geometry(TrackOrder::Cylinders, SparingScheme::PerZone, vec![slipped]);
        assert_eq!(geometry.sectors(), 22);
        assert_eq!(rounded_position(&geometry, 1), (0, 0, 1));
        assert_eq!(rounded_position(&geometry, 2), (0, 0, 3));
        // Position 5 is defective, 23 replaces it.
        assert_eq!(rounded_position(&geometry, 4), (2, 1, 3));
        assert_eq!(rounded_position(&geometry, 5), (0, 1, 2));
        assert_eq!(geometry.locate(0).run_sectors, 2);
        // The first track has three numbers, around the slipped sector. The second is split in
        // three by the remapped sector.
        assert_eq!((geometry.track(0), geometry.track(2)), (0..3, 0..3));
        assert_eq!([3, 4, 5].map(|sector| geometry.track(sector)), [3..4, 4..5, 5..7]);
        assert_eq!(geometry.track(7), 7..11);
    }

    /// The zone has 24 sectors in 6 tracks, 3 cylinders. Each region loses its spares, and in the
    /// schemes without use of spares each slip costs one more sector. A slipped track is 4 sectors.
    #[test]
    fn every_sparing_scheme_has_the_capacity_that_disksim_computes() {
        let spared = |spares, slips| DiskZone { spares, slips, ..zone() };
        let numbered_sectors = |sparing, zone: DiskZone| {
            geometry(TrackOrder::Cylinders, sparing, vec![zone]).sectors()
        };
        assert_eq!(numbered_sectors(SparingScheme::None, spared(0, vec![])), 24);
        assert_eq!(numbered_sectors(SparingScheme::TracksPerZone, spared(1, vec![0])), 20);
        assert_eq!(numbered_sectors(SparingScheme::PerCylinder, spared(1, vec![3])), 21);
        assert_eq!(numbered_sectors(SparingScheme::PerTrack, spared(1, vec![3])), 18);
        assert_eq!(numbered_sectors(SparingScheme::PerCylinderSlipToEnd, spared(1, vec![3])), 20);
        assert_eq!(numbered_sectors(SparingScheme::CylinderFront, spared(1, vec![3])), 21);
        assert_eq!(numbered_sectors(SparingScheme::CylinderFrontSlipToEnd, spared(1, vec![3])), 20);
        assert_eq!(numbered_sectors(SparingScheme::EndOfDisk, spared(0, vec![3, 9])), 22);
        let per_range = SparingScheme::PerRange { cylinders: 2 };
        assert_eq!(numbered_sectors(per_range, spared(3, vec![3])), 21);
        assert_eq!(numbered_sectors(SparingScheme::PerZone, spared(5, vec![3])), 19);
        assert_eq!(numbered_sectors(SparingScheme::PerZoneSlipToEnd, spared(5, vec![3])), 18);
    }

    /// A spare at the end of each cylinder leaves 7 numbers in it, so number 7 begins the next one.
    /// A spare at the front, or 3 front sectors of a zone, shift number 0 by 1 or 3 positions.
    #[test]
    fn spare_sectors_are_placed_by_the_sparing_scheme() {
        let spared = DiskZone { spares: 1, ..zone() };
        let spares_at_end =
            geometry(TrackOrder::Cylinders, SparingScheme::PerCylinder, vec![spared.clone()]);
        assert_eq!(rounded_position(&spares_at_end, 7), (1, 0, 0));
        let spares_at_front =
            geometry(TrackOrder::Cylinders, SparingScheme::CylinderFront, vec![spared.clone()]);
        assert_eq!(rounded_position(&spares_at_front, 0), (0, 0, 1));
        let managed = DiskZone { front_sectors: 3, ..zone() };
        let managed = geometry(TrackOrder::Cylinders, SparingScheme::None, vec![managed]);
        assert_eq!((managed.sectors(), rounded_position(&managed, 0)), (21, (0, 0, 3)));
    }
}
