//! The description of a drive's surfaces: zones, skews, spares, defective sectors.
//!
//! Schemes and their numbers follow DiskSim's `dm_layout_g1`, the format of extracted drive
//! descriptions.

/// Numbering order of the tracks in consecutive cylinders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TrackOrder {
    /// Surface 0 first in every cylinder (DiskSim's scheme 0).
    #[default]
    Cylinders,
    /// Alternating surface order, so a cylinder switch needs no head switch. Each zone begins at
    /// surface 0 (scheme 1).
    SerpentineInZone,
    /// Alternating surface order, with ascending order in even cylinders of the disk (scheme 2).
    SerpentineOnDisk,
}

/// Location of spare sectors, and effect of a slipped sector on the following numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SparingScheme {
    /// No spares (scheme 0).
    #[default]
    None,
    /// Whole spare tracks at the end of the zone. Slips and remaps name tracks (scheme 1).
    TracksPerZone,
    /// Spare sectors at the end of each cylinder (scheme 2).
    PerCylinder,
    /// Spare sectors at the end of each track (scheme 3).
    PerTrack,
    /// Like scheme 2, but slips do not use the spares: numbers continue to the end of the zone
    /// (scheme 4).
    PerCylinderSlipToEnd,
    /// Spare sectors at the front of each cylinder (scheme 5).
    CylinderFront,
    /// Like scheme 5, but slips do not use the spares (scheme 6).
    CylinderFrontSlipToEnd,
    /// Spares only at the end of the disk (scheme 7).
    EndOfDisk,
    /// Spare sectors at the end of each range of cylinders (scheme 8).
    PerRange {
        /// Cylinders in a range, at least 1.
        cylinders: u32,
    },
    /// Spare sectors at the end of each zone (scheme 9).
    PerZone,
    /// Like scheme 9, but slips do not use the spares (scheme 10).
    PerZoneSlipToEnd,
}

/// The part of a region that contains numbered sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsableSectors {
    /// First usable sector.
    pub start: u64,
    /// End of the usable sectors, exclusive.
    pub end: u64,
    /// Maximum number of numbered sectors. `u64::MAX` if only `start` and `end` bound them.
    pub numbers_max: u64,
}

impl SparingScheme {
    /// Returns the number of sectors in one region of this scheme, the unit with spares of its own:
    /// a track, a cylinder, a range of cylinders or the whole zone. `heads` is the number of
    /// surfaces.
    pub(super) fn region_sectors(self, zone: &DiskZone, heads: u32) -> u64 {
        let cylinder_sectors = u64::from(zone.track_sectors) * u64::from(heads);
        match self {
            SparingScheme::PerTrack => u64::from(zone.track_sectors),
            SparingScheme::PerCylinder
            | SparingScheme::PerCylinderSlipToEnd
            | SparingScheme::CylinderFront
            | SparingScheme::CylinderFrontSlipToEnd => cylinder_sectors,
            SparingScheme::PerRange { cylinders } => cylinder_sectors * u64::from(cylinders),
            // Schemes without spares in the zone, or with spares for the zone as a whole.
            _ => zone.physical_sectors(heads),
        }
    }

    /// Returns the number of spare sectors in a region; 0 for schemes without spares in the zone.
    pub(super) fn region_spares(self, zone: &DiskZone) -> u64 {
        match self {
            SparingScheme::None | SparingScheme::EndOfDisk => 0,
            SparingScheme::TracksPerZone => zone.spares * u64::from(zone.track_sectors),
            // Every other scheme counts its spares in sectors.
            _ => zone.spares,
        }
    }

    /// Returns true if slipped sectors do not use up the region's spares. Each slip then costs a
    /// number, and the numbers end before the spares. Without spares in the region both results
    /// have the same effect.
    fn slips_avoid_spares(self) -> bool {
        matches!(
            self,
            SparingScheme::PerCylinderSlipToEnd
                | SparingScheme::CylinderFrontSlipToEnd
                | SparingScheme::EndOfDisk
                | SparingScheme::PerZoneSlipToEnd
        )
    }

    /// Returns the part of the region `start..end` that contains numbered sectors. The region has
    /// `spares` spare and `slips` slipped sectors. The caller numbers the sectors of this part in
    /// order, skips the slipped ones, and stops at `numbers_max`. If slips use up the spares, the
    /// part includes the spares: each skipped sector moves the last number one sector further. The
    /// count of numbers stays the size without spares. Otherwise the spares stay free, and each
    /// slip costs a number.
    pub(super) fn usable_sectors(
        self,
        start: u64,
        end: u64,
        spares: u64,
        slips: u64,
    ) -> UsableSectors {
        // Only a guard: `check_zones` accepts only regions with fewer spares than sectors.
        let spares = spares.min(end - start);
        let is_front =
            matches!(self, SparingScheme::CylinderFront | SparingScheme::CylinderFrontSlipToEnd);
        match (is_front, self.slips_avoid_spares()) {
            // Spares in front, which slips leave free: numbers begin behind all of them.
            (true, true) => UsableSectors { start: start + spares, end, numbers_max: u64::MAX },
            // Spares in front: each slip uses up one, so the numbers begin one sector earlier.
            (true, false) => UsableSectors {
                start: start + spares.saturating_sub(slips),
                end,
                numbers_max: end - start - spares,
            },
            // Spares at the end, which slips leave free: numbers end before them.
            (false, true) => UsableSectors { start, end: end - spares, numbers_max: u64::MAX },
            // Spares at the end: after slips the numbers extend into them, up to the limit.
            (false, false) => UsableSectors { start, end, numbers_max: end - start - spares },
        }
    }

    /// Returns true if slips in earlier regions of the zone shift the angle of later ones.
    ///
    /// DiskSim: in the schemes by cylinder and by track "slips also push skew forward".
    pub(super) fn slips_push_skew(self) -> bool {
        matches!(
            self,
            SparingScheme::PerTrack
                | SparingScheme::PerCylinder
                | SparingScheme::PerCylinderSlipToEnd
                | SparingScheme::CylinderFront
                | SparingScheme::CylinderFrontSlipToEnd
        )
    }

    /// Returns the zone's slipped sectors. Slipped tracks are expanded into their sectors.
    pub(super) fn slipped_sectors(self, zone: &DiskZone) -> Vec<u64> {
        match self {
            SparingScheme::TracksPerZone => {
                let width = u64::from(zone.track_sectors);
                zone.slips.iter().flat_map(|track| track * width..(track + 1) * width).collect()
            }
            _ => zone.slips.clone(),
        }
    }

    /// Returns the zone's remapped sectors with their spares. Tracks are expanded into sectors.
    pub(super) fn remapped_sectors(self, zone: &DiskZone) -> Vec<(u64, u64)> {
        match self {
            SparingScheme::TracksPerZone => {
                let width = u64::from(zone.track_sectors);
                let track_sectors = |(bad, spare): &(u64, u64)| {
                    let (bad_start, spare_start) = (bad * width, spare * width);
                    (0..width).map(move |sector| (bad_start + sector, spare_start + sector))
                };
                zone.remaps.iter().flat_map(track_sectors).collect()
            }
            _ => zone.remaps.clone(),
        }
    }
}

/// A zone: cylinders with the same number of sectors per track.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskZone {
    /// First cylinder.
    pub first_cylinder: u32,
    /// Last cylinder, inclusive.
    pub last_cylinder: u32,
    /// Sectors per track.
    pub track_sectors: u32,
    /// Angle of the zone's first sector from the index mark, in sectors.
    pub offset_sectors: f64,
    /// Sectors without a number at the front (a management area).
    pub front_sectors: u64,
    /// Skew between consecutive tracks of a cylinder, in sectors.
    pub track_skew_sectors: f64,
    /// Skew between a cylinder's first track and the preceding track, in sectors.
    pub cylinder_skew_sectors: f64,
    /// Spares per region of the sparing scheme, in sectors or tracks.
    pub spares: u64,
    /// Defective sectors (or tracks) without a number, counted from the start of the zone.
    pub slips: Vec<u64>,
    /// Defective sectors (or tracks) and their spares, counted from the start of the zone.
    pub remaps: Vec<(u64, u64)>,
}

impl DiskZone {
    /// Returns the number of sectors in the zone, including spares and defective ones. `heads` is
    /// the number of surfaces. `last_cylinder` must not be less than `first_cylinder`.
    pub fn physical_sectors(&self, heads: u32) -> u64 {
        let cylinders = u64::from(self.last_cylinder - self.first_cylinder) + 1;
        cylinders * u64::from(heads) * u64::from(self.track_sectors)
    }
}

/// A drive's surfaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriveLayout {
    /// Number of surfaces with a head, at least 1.
    pub heads: u32,
    /// Stated number of cylinders. The zones may extend one further.
    pub cylinders: u32,
    /// Stated size in sectors. If absent, the size is the sum of the zones.
    pub sectors: Option<u64>,
    /// Numbering order of the tracks.
    pub mapping: TrackOrder,
    /// Location of spares.
    pub sparing: SparingScheme,
    /// The zones, outermost first.
    pub zones: Vec<DiskZone>,
}

/// Number of sectors of 512 bytes, exclusive, whose offsets in bytes are below 2^64.
const SECTORS_END: u64 = 1 << 55;

/// A contradiction in a layout.
#[derive(Debug)]
pub(super) struct LayoutFault {
    /// Index of the wrong zone. `None` if no single zone is wrong.
    pub zone_index: Option<usize>,
    /// Name of the wrong field.
    pub key: &'static str,
    /// The contradiction.
    pub problem: String,
}

impl DriveLayout {
    /// Returns the number of cylinders, stated or used by the zones.
    pub fn cylinders_in_all(&self) -> u32 {
        self.zones.iter().map(|zone| zone.last_cylinder + 1).max().unwrap_or(0).max(self.cylinders)
    }

    /// Checks the fields against each other, except for the stated size.
    ///
    /// # Errors
    /// Returns the first contradiction.
    pub(super) fn check_zones(&self) -> Result<(), LayoutFault> {
        if self.zones.is_empty() {
            let problem = "is empty; a drive has at least one zone".to_owned();
            return Err(LayoutFault { zone_index: None, key: "zones", problem });
        }
        // First cylinder after the zones checked so far, and their sectors.
        let (mut free_cylinder, mut sectors_so_far) = (0, 0u64);
        for (index, zone) in self.zones.iter().enumerate() {
            let fail = |key, problem| Err(LayoutFault { zone_index: Some(index), key, problem });
            let (first, last) = (zone.first_cylinder, zone.last_cylinder);
            if last < first {
                return fail("last_cylinder", format!("{last} is less than the first, {first}"));
            }
            if first < free_cylinder {
                let previous_last = free_cylinder - 1;
                return fail(
                    "first_cylinder",
                    format!("{first} lies in the zone before, up to {previous_last}"),
                );
            }
            // One extra cylinder is accepted. Some existing files number cylinders from 0 and state
            // the last number as the count (DiskSim's hp_c2490a does).
            if last > self.cylinders {
                let cylinders = self.cylinders;
                return fail(
                    "last_cylinder",
                    format!("{last} is beyond the drive's {cylinders} cylinders"),
                );
            }
            free_cylinder = last + 1;
            let zone_sectors = zone.physical_sectors(self.heads);
            sectors_so_far = sectors_so_far.saturating_add(zone_sectors);
            if sectors_so_far >= SECTORS_END {
                let problem =
                    "with the tracks, 2^55 sectors or more: offsets exceed 64 bits".into();
                return Err(LayoutFault { zone_index: None, key: "heads", problem });
            }
            if zone.front_sectors >= zone_sectors {
                let front = zone.front_sectors;
                return fail(
                    "front_sectors",
                    format!("{front} sectors of a zone of {zone_sectors}"),
                );
            }
            // A range of cylinders can be larger than the zone, which then is one region.
            let region_sectors = self.sparing.region_sectors(zone, self.heads).min(zone_sectors);
            let spares = self.sparing.region_spares(zone);
            if spares >= region_sectors {
                let problem = format!("{spares} spare sectors in a region of {region_sectors}");
                return fail("spares", problem);
            }
            if let Some(slip) =
                self.sparing.slipped_sectors(zone).iter().find(|slip| **slip >= zone_sectors)
            {
                return fail(
                    "slips",
                    format!("sector {slip} is not in the zone of {zone_sectors} sectors"),
                );
            }
            let remaps = self.sparing.remapped_sectors(zone);
            if let Some(pair) = remaps.iter().find(|(bad, spare)| *bad.max(spare) >= zone_sectors) {
                return fail(
                    "remaps",
                    format!("{pair:?} is not in the zone of {zone_sectors} sectors"),
                );
            }
        }
        Ok(())
    }
}
