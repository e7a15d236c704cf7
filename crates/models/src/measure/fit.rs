//! Converts measured samples into the description of a simulated device.

use super::{PROBE_BYTES, ProfileAccess, ProfileSample};
use crate::measured::description::{NearResponse, SizeCosts, StorageDescription, StreamCosts};

/// Properties of storage other than its response times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageShape {
    /// Name of the storage.
    pub name: String,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Largest request in bytes.
    pub request_bytes_max: u64,
    /// Alignment of offsets and sizes in bytes: 512 or 4096.
    pub alignment_bytes: u64,
}

/// Ratio, chosen, of the response times of random and nearest requests above which storage is
/// rotational.
const ROTATIONAL_RATIO: f64 = 1.3;

/// Response time in µs, chosen, of a random request below which storage has no moving parts.
const ROTATIONAL_MIN_US: f64 = 1_000.0;

/// Returns the description of the measured storage. Returns `None` if a required sample is missing:
/// single random or following requests, a near distance, or the streams.
pub fn describe(shape: StorageShape, samples: &[ProfileSample]) -> Option<StorageDescription> {
    let mut depths: Vec<u32> = samples.iter().map(|sample| sample.cell.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let random = costs_by_size(samples, ProfileAccess::Random, &depths)?;
    let following = costs_by_size(samples, ProfileAccess::Following, &depths)?;
    let mut near: Vec<NearResponse> = samples
        .iter()
        .filter_map(|sample| match sample.cell.access {
            // The distances are between once and twice the stated one, so the mean is 1.5 times.
            ProfileAccess::Near(distance) => {
                Some(NearResponse { distance: distance * 3 / 2, us: mean_us(sample) })
            }
            _ => None,
        })
        .collect();
    near.sort_unstable_by_key(|near| near.distance);
    // Single random requests: their mean separates disks from flash, and the description states
    // their quantiles.
    let probe = samples.iter().find(|sample| {
        let cell = sample.cell;
        (cell.access, cell.bytes, cell.depth) == (ProfileAccess::Random, PROBE_BYTES, 1)
    })?;
    let streams = samples.iter().find_map(|sample| match sample.cell.access {
        ProfileAccess::Streams(count) => {
            Some(StreamCosts { count, bytes: sample.cell.bytes, us: mean_us(sample) })
        }
        _ => None,
    })?;
    let fastest_near_us = near.iter().map(|near| near.us).min_by(f64::total_cmp)?;
    let random_us = mean_us(probe);
    let quantile_us = |share| probe.quantile_ns(share) as f64 / 1e3;
    Some(StorageDescription {
        name: shape.name,
        bytes: shape.bytes,
        request_bytes_max: shape.request_bytes_max,
        alignment_bytes: shape.alignment_bytes,
        is_rotational: random_us >= ROTATIONAL_MIN_US
            && random_us > ROTATIONAL_RATIO * fastest_near_us,
        depth_max: *depths.last()?,
        depths,
        probe_bytes: PROBE_BYTES,
        random,
        following,
        near,
        streams,
        // The probabilities of the quantiles that a description states.
        spread_us: [0.0, 0.1, 0.5, 0.9, 0.99, 1.0].map(quantile_us).to_vec(),
    })
}

/// Returns the mean response time of a sample in µs.
fn mean_us(sample: &ProfileSample) -> f64 {
    sample.mean_ns / 1e3
}

/// Returns the costs of each size at one kind of positions, by increasing size. The times of a size
/// end at the first depth without a sample. `None` without any size, and if depth 1 is missing for
/// one.
fn costs_by_size(
    samples: &[ProfileSample],
    access: ProfileAccess,
    depths: &[u32],
) -> Option<Vec<SizeCosts>> {
    let with_access = || samples.iter().filter(move |sample| sample.cell.access == access);
    let mut sizes: Vec<u64> = with_access().map(|sample| sample.cell.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let size_costs = |bytes: u64| {
        let sample_at_depth = |depth: &u32| {
            with_access().find(|sample| (sample.cell.bytes, sample.cell.depth) == (bytes, *depth))
        };
        SizeCosts { bytes, us: depths.iter().map_while(sample_at_depth).map(mean_us).collect() }
    };
    let costs: Vec<SizeCosts> = sizes.into_iter().map(size_costs).collect();
    let is_complete = !costs.is_empty() && costs.iter().all(|costs| !costs.us.is_empty());
    is_complete.then_some(costs)
}
