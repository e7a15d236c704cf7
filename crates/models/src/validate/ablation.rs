//! Contribution of each feature of the disk model: replays of one trace with an increasing set of
//! features.

use super::trace::TracedRequest;
use super::{GapMeaning, ModelAccuracy, compare, replay};
use crate::Device;
use crate::hdd::Hdd;
use crate::hdd::drive::{AccessTime, DriveDescription};
use crate::hdd::layout::{DiskZone, DriveLayout, SparingScheme, TrackOrder};
use readpath_core::request::{DeviceRequest, RequestId};
use readpath_core::unit::Time;

/// Queue depth, chosen, for the evaluation of queueing.
const DEPTH: u32 = 16;

/// One row of the ablation table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AblationRow {
    /// Feature that this row adds to the previous one.
    pub feature: &'static str,
    /// Accuracy of the model with the features so far.
    pub validation: ModelAccuracy,
    /// Requests per second at queue depth 16, with the trace's requests back to back.
    pub requests_per_s_at_16: f64,
}

/// Replays `requests` on `drive` with an increasing set of features, from a constant access time to
/// the complete model. Returns one row per added feature. `seed` decides the initial angle of the
/// platter. The replays take the idle times of the trace as its format defines them, and are not
/// corrected by the measured times. The drives are made from the last row to the first: each lacks
/// one feature more.
pub fn ablate(requests: &[TracedRequest], drive: &DriveDescription, seed: u64) -> Vec<AblationRow> {
    let window_without_choice = 1;
    let queueless = with_queue(drive, window_without_choice);
    let cacheless = without_cache(&queueless);
    let one_zone = DriveDescription { layout: without_zones(&drive.layout), ..cacheless.clone() };
    let half_turn = with_access(&one_zone, AccessTime::HalfTurn);
    let constant = with_access(&one_zone, AccessTime::Constant { ns: mean_access_ns(drive) });
    let queued = with_queue(drive, DEPTH);
    let is_observed = false;
    [
        ("constant time", &constant),
        ("seek curve", &half_turn),
        ("rotation", &one_zone),
        ("zones and skew", &cacheless),
        ("cache", &queueless),
        ("queueing", &queued),
    ]
    .into_iter()
    .map(|(feature, drive)| AblationRow {
        feature,
        validation: {
            let modelled_ms = replay(requests, drive, GapMeaning::After, is_observed, seed);
            compare(requests, &modelled_ms)
        },
        requests_per_s_at_16: requests_per_s(requests, drive, seed),
    })
    .collect()
}

/// Returns the drive with a queue depth of `DEPTH` and the queue window `window`.
fn with_queue(drive: &DriveDescription, window: u32) -> DriveDescription {
    let mut drive = drive.clone();
    drive.queue.depth = DEPTH;
    drive.queue.window = window;
    drive
}

/// Returns the drive with another model of the access time.
fn with_access(drive: &DriveDescription, access: AccessTime) -> DriveDescription {
    let mut drive = drive.clone();
    drive.mechanics.access = access;
    drive
}

/// Returns the drive without a cache for reads and without cached writes.
fn without_cache(drive: &DriveDescription) -> DriveDescription {
    let mut drive = drive.clone();
    drive.cache.is_enabled = false;
    drive.cache.writes.spans = 0;
    drive
}

/// Returns a layout of one zone with the drive's mean track, without skews, spares and slips. The
/// zone has room for the stated size too, which can exceed the zones slightly.
fn without_zones(layout: &DriveLayout) -> DriveLayout {
    let cylinders = layout.cylinders_in_all();
    let tracks = u64::from(cylinders) * u64::from(layout.heads);
    let zone_sectors =
        layout.zones.iter().map(|zone| zone.physical_sectors(layout.heads)).sum::<u64>();
    let zone = DiskZone {
        first_cylinder: 0,
        last_cylinder: cylinders - 1,
        track_sectors: zone_sectors.max(layout.sectors.unwrap_or(0)).div_ceil(tracks) as u32,
        ..DiskZone::default()
    };
    DriveLayout {
        mapping: TrackOrder::Cylinders,
        sparing: SparingScheme::None,
        zones: vec![zone],
        ..layout.clone()
    }
}

/// Returns the mean seek time over random pairs of cylinders, plus half a revolution, in ns.
fn mean_access_ns(drive: &DriveDescription) -> u64 {
    let total = drive.layout.cylinders_in_all();
    let pairs = f64::from(total) * f64::from(total - 1) / 2.0;
    // Distance d occurs in total − d pairs. A drive with one cylinder has no pair and no seek.
    let weighted_ms = |d: u32| f64::from(total - d) * drive.mechanics.seek.ms(d, total);
    let seek_ms = (1..total).map(weighted_ms).sum::<f64>() / pairs.max(1.0);
    let half_revolution_ms = 30e3 / drive.mechanics.rpm;
    ((seek_ms + half_revolution_ms) * 1e6) as u64
}

/// Returns the requests per second on `drive` at queue depth `DEPTH`, without idle times.
fn requests_per_s(requests: &[TracedRequest], drive: &DriveDescription, seed: u64) -> f64 {
    let mut hdd = Hdd::new(drive, seed);
    let mut now = Time(0);
    let (mut submitted, mut finished) = (0, 0);
    while finished < requests.len() {
        while submitted < requests.len() && submitted - finished < DEPTH as usize {
            let request = &requests[submitted];
            let id = RequestId(submitted as u32);
            let (op, start, sectors) = (request.op, request.start, request.sectors);
            hdd.submit(now, DeviceRequest { id, op, start, sectors });
            submitted += 1;
        }
        now = hdd.next_event().expect("a submitted request is in flight");
        while hdd.poll(now).is_some() {
            finished += 1;
        }
    }
    requests.len() as f64 / now.seconds()
}
