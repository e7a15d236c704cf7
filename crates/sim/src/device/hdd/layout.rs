//! The description of a drive's surfaces: zones, skews, spares, bad sectors.
//!
//! Schemes and their numbers are those of DiskSim's `dm_layout_g1`, since that
//! is the format in which extracted drives are described.

/// In which order the tracks of a cylinder and of the next one are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TrackOrder {
    /// Surface 0 first in every cylinder (DiskSim's scheme 0).
    #[default]
    Cylinders,
    /// The surfaces back and forth, so that a cylinder switch switches no head; each
    /// zone begins at surface 0 (scheme 1).
    SerpentineInZone,
    /// Likewise, with even cylinders always ascending (scheme 2).
    SerpentineOnDisk,
}

/// Where spare sectors lie and what becomes of the numbers after a slipped sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SparingScheme {
    /// No spares (scheme 0).
    #[default]
    None,
    /// Whole spare tracks at the end of the zone; slips and remaps name tracks (scheme 1).
    TracksPerZone,
    /// Spare sectors at the end of each cylinder (scheme 2).
    PerCylinder,
    /// Spare sectors at the end of each track (scheme 3).
    PerTrack,
    /// As 2, but slips leave the spares alone: numbers run on to the zone's end (scheme 4).
    PerCylinderSlipToEnd,
    /// Spare sectors at the front of each cylinder (scheme 5).
    CylinderFront,
    /// As 5, but slips leave the spares alone (scheme 6).
    CylinderFrontSlipToEnd,
    /// Spares only at the end of the disk (scheme 7).
    EndOfDisk,
    /// Spare sectors at the end of each range of so many cylinders (scheme 8).
    PerRange {
        /// Cylinders in a range; at least 1.
        cylinders: u32,
    },
    /// Spare sectors at the end of each zone (scheme 9).
    PerZone,
    /// As 9, but slips leave the spares alone (scheme 10).
    PerZoneSlipToEnd,
}

/// The part of a region that takes numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsableSectors {
    /// The first sector that may.
    pub start: u64,
    /// The end, exclusive.
    pub end: u64,
    /// How many numbers at most.
    pub numbers_max: u64,
}

impl SparingScheme {
    /// How many sectors make one region of this scheme.
    pub(super) fn region_sectors(self, zone: &DiskZone, heads: u32) -> u64 {
        let cylinder_sectors = u64::from(zone.track_sectors) * u64::from(heads);
        match self {
            SparingScheme::PerTrack => u64::from(zone.track_sectors),
            SparingScheme::PerCylinder
            | SparingScheme::PerCylinderSlipToEnd
            | SparingScheme::CylinderFront
            | SparingScheme::CylinderFrontSlipToEnd => cylinder_sectors,
            SparingScheme::PerRange { cylinders } => cylinder_sectors * u64::from(cylinders),
            _ => zone.physical_sectors(heads),
        }
    }

    /// How many spare sectors a region has.
    pub(super) fn region_spares(self, zone: &DiskZone) -> u64 {
        match self {
            SparingScheme::None | SparingScheme::EndOfDisk => 0,
            SparingScheme::TracksPerZone => zone.spares * u64::from(zone.track_sectors),
            _ => zone.spares,
        }
    }

    /// Whether numbers pass over slipped sectors without using the region's spares.
    fn leaves_spares_alone(self) -> bool {
        matches!(
            self,
            SparingScheme::PerCylinderSlipToEnd
                | SparingScheme::CylinderFrontSlipToEnd
                | SparingScheme::EndOfDisk
                | SparingScheme::PerZoneSlipToEnd
        )
    }

    /// Which sectors of the region `start..end` take numbers, `spares` being spare and
    /// `slips` slipped.
    pub(super) fn usable(self, start: u64, end: u64, spares: u64, slips: u64) -> UsableSectors {
        let spares = spares.min(end - start);
        let is_front =
            matches!(self, SparingScheme::CylinderFront | SparingScheme::CylinderFrontSlipToEnd);
        match (is_front, self.leaves_spares_alone()) {
            (true, true) => UsableSectors { start: start + spares, end, numbers_max: u64::MAX },
            // Each slip moves the first number one spare further to the front.
            (true, false) => UsableSectors {
                start: start + spares.saturating_sub(slips),
                end,
                numbers_max: end - start - spares,
            },
            (false, true) => UsableSectors { start, end: end - spares, numbers_max: u64::MAX },
            (false, false) => UsableSectors { start, end, numbers_max: end - start - spares },
        }
    }

    /// Whether slips in earlier regions of the zone turn the later ones.
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

    /// The zone's slipped sectors; slipped tracks spread out into theirs.
    pub(super) fn slipped_sectors(self, zone: &DiskZone) -> Vec<u64> {
        match self {
            SparingScheme::TracksPerZone => {
                let width = u64::from(zone.track_sectors);
                zone.slips.iter().flat_map(|track| track * width..(track + 1) * width).collect()
            }
            _ => zone.slips.clone(),
        }
    }

    /// The zone's remapped sectors with their spares; remapped tracks spread out into theirs.
    pub(super) fn remapped_sectors(self, zone: &DiskZone) -> Vec<(u64, u64)> {
        match self {
            SparingScheme::TracksPerZone => {
                let width = u64::from(zone.track_sectors);
                let spread = |(bad, spare): &(u64, u64)| {
                    let (bad, spare) = (bad * width, spare * width);
                    (0..width).map(move |sector| (bad + sector, spare + sector))
                };
                zone.remaps.iter().flat_map(spread).collect()
            }
            _ => zone.remaps.clone(),
        }
    }
}

/// One zone: cylinders with the same number of sectors on each track.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskZone {
    /// The first cylinder.
    pub first_cylinder: u32,
    /// The last cylinder, included.
    pub last_cylinder: u32,
    /// Sectors on a track.
    pub track_sectors: u32,
    /// By how many sectors the zone's first sector is turned against the index mark.
    pub offset_sectors: f64,
    /// Sectors at the front that take no number (a management area).
    pub front_sectors: u64,
    /// By how many sectors a track is turned against the one before it on the cylinder.
    pub track_skew_sectors: f64,
    /// By how many sectors a cylinder's first track is turned against the track before it.
    pub cylinder_skew_sectors: f64,
    /// Spares in each region of the sparing scheme: sectors, or tracks.
    pub spares: u64,
    /// Bad sectors (or tracks) that the numbers skip, counted from the zone's start.
    pub slips: Vec<u64>,
    /// Bad sectors (or tracks) and the spares in their place, counted from the zone's start.
    pub remaps: Vec<(u64, u64)>,
}

impl DiskZone {
    /// All sectors of the zone, numbered or not.
    pub fn physical_sectors(&self, heads: u32) -> u64 {
        let cylinders = u64::from(self.last_cylinder - self.first_cylinder) + 1;
        cylinders * u64::from(heads) * u64::from(self.track_sectors)
    }
}

/// A drive's surfaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriveLayout {
    /// Surfaces with a head; at least 1.
    pub heads: u32,
    /// Cylinders in all, as stated; the zones may reach one further.
    pub cylinders: u32,
    /// The size that the drive states, in sectors; what the zones hold when absent.
    pub sectors: Option<u64>,
    /// In which order tracks are numbered.
    pub mapping: TrackOrder,
    /// Where spares lie.
    pub sparing: SparingScheme,
    /// The zones, outermost first.
    pub zones: Vec<DiskZone>,
}

/// How much less than it states a drive's zones may hold: parameter files in the field are
/// off by a few parts in a thousand, and DiskSim takes the zones' sum for the size.
const STATED_SIZE_RATIO_MAX: f64 = 1.01;

impl DriveLayout {
    /// How many cylinders there are.
    pub fn cylinders_in_all(&self) -> u32 {
        self.zones.iter().map(|zone| zone.last_cylinder + 1).max().unwrap_or(0).max(self.cylinders)
    }

    /// Checks what one field alone can't tell: that the geometry is one.
    ///
    /// # Errors
    /// The zone (if it is one zone's fault), the field, and what contradicts it.
    pub(super) fn check(&self) -> Result<(), (Option<usize>, &'static str, String)> {
        if self.zones.is_empty() {
            return Err((None, "zones", "is empty; a drive has at least one zone".to_owned()));
        }
        let mut free_cylinder = 0;
        for (index, zone) in self.zones.iter().enumerate() {
            let fail = |key, problem| Err((Some(index), key, problem));
            let (first, last) = (zone.first_cylinder, zone.last_cylinder);
            if last < first {
                return fail("last_cylinder", format!("{last} is less than the first, {first}"));
            }
            if first < free_cylinder {
                let before = free_cylinder - 1;
                return fail(
                    "first_cylinder",
                    format!("{first} lies in the zone before, up to {before}"),
                );
            }
            // One more is let pass: files in the field number cylinders from 0 and state the
            // last one for their count (DiskSim's hp_c2490a does).
            if last > self.cylinders {
                let all = self.cylinders;
                return fail(
                    "last_cylinder",
                    format!("{last} is beyond the drive's {all} cylinders"),
                );
            }
            free_cylinder = last + 1;
            let held = zone.physical_sectors(self.heads);
            if zone.front_sectors >= held {
                let front = zone.front_sectors;
                return fail("front_sectors", format!("{front} sectors of a zone of {held}"));
            }
            let region = self.sparing.region_sectors(zone, self.heads).min(held);
            let spares = self.sparing.region_spares(zone);
            if spares >= region {
                return fail("spares", format!("{spares} spare sectors in a region of {region}"));
            }
            if let Some(slip) = self.sparing.slipped_sectors(zone).iter().find(|s| **s >= held) {
                return fail(
                    "slips",
                    format!("sector {slip} is not in the zone of {held} sectors"),
                );
            }
            let remaps = self.sparing.remapped_sectors(zone);
            if let Some(pair) = remaps.iter().find(|(bad, spare)| *bad.max(spare) >= held) {
                return fail("remaps", format!("{pair:?} is not in the zone of {held} sectors"));
            }
        }
        let held = super::geometry::Geometry::new(self).held_sectors();
        match self.sectors {
            Some(stated) if stated as f64 > held as f64 * STATED_SIZE_RATIO_MAX => {
                Err((None, "sectors", format!("{stated} sectors, but its zones hold {held}")))
            }
            _ => Ok(()),
        }
    }
}
