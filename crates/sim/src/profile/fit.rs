//! From what was measured to what a modelled device takes.

use super::{PROBE_BYTES, ProfileAccess, ProfileSample};
use crate::device::measured::description::{
    NearResponse, SizeCosts, StorageDescription, StreamCosts,
};

/// What storage is, beside its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageShape {
    /// What it is.
    pub name: String,
    /// How many bytes it has.
    pub bytes: u64,
    /// The largest request that it was asked for, and is to be asked for.
    pub request_bytes_max: u64,
    /// What offsets and sizes are multiples of: 512 or 4096.
    pub alignment_bytes: u64,
}

/// A place far away costs so many times what one nearby costs where something must move there.
const ROTATIONAL_RATIO: f64 = 1.3;

/// And no less than this: what has no moving part answers sooner.
const ROTATIONAL_MIN_US: f64 = 1_000.0;

/// The description of storage in which this was measured; `None` where a request at random or a
/// following one, alone, was not, or none at any distance or of streams.
pub fn describe(shape: StorageShape, samples: &[ProfileSample]) -> Option<StorageDescription> {
    let us = |sample: &ProfileSample| sample.mean_ns / 1e3;
    let mut depths: Vec<u32> = samples.iter().map(|sample| sample.cell.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let lines = |access: ProfileAccess| {
        let of_access = || samples.iter().filter(move |sample| sample.cell.access == access);
        let mut sizes: Vec<u64> = of_access().map(|sample| sample.cell.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let line = |bytes: u64| {
            let at = |depth: &u32| {
                of_access().find(|sample| (sample.cell.bytes, sample.cell.depth) == (bytes, *depth))
            };
            SizeCosts { bytes, us: depths.iter().map_while(at).map(us).collect() }
        };
        let lines: Vec<SizeCosts> = sizes.into_iter().map(line).collect();
        lines.iter().all(|line| !line.us.is_empty()).then_some(lines).filter(|all| !all.is_empty())
    };
    let (random, following) = (lines(ProfileAccess::Random)?, lines(ProfileAccess::Following)?);
    let mut near: Vec<NearResponse> = samples
        .iter()
        .filter_map(|sample| match sample.cell.access {
            // From once to twice as far, so one and a half times in the mean.
            ProfileAccess::Near(distance) => {
                Some(NearResponse { distance: distance * 3 / 2, us: us(sample) })
            }
            _ => None,
        })
        .collect();
    near.sort_unstable_by_key(|near| near.distance);
    let probe = samples.iter().find(|sample| {
        let cell = sample.cell;
        (cell.access, cell.bytes, cell.depth) == (ProfileAccess::Random, PROBE_BYTES, 1)
    })?;
    let streams = samples.iter().find_map(|sample| match sample.cell.access {
        ProfileAccess::Streams(count) => {
            Some(StreamCosts { count, bytes: sample.cell.bytes, us: us(sample) })
        }
        _ => None,
    })?;
    let nearest = near.iter().map(|near| near.us).min_by(f64::total_cmp)?;
    let far = us(probe);
    let quantile = |share| probe.quantile_ns(share) as f64 / 1e3;
    Some(StorageDescription {
        name: shape.name,
        bytes: shape.bytes,
        request_bytes_max: shape.request_bytes_max,
        alignment_bytes: shape.alignment_bytes,
        is_rotational: far >= ROTATIONAL_MIN_US && far > ROTATIONAL_RATIO * nearest,
        depth_max: *depths.last()?,
        depths,
        probe_bytes: PROBE_BYTES,
        random,
        following,
        near,
        streams,
        spread_us: [0.0, 0.1, 0.5, 0.9, 0.99, 1.0].map(quantile).to_vec(),
    })
}
