//! Cost of calls, copies and faults on the recorded machine, from reads without waiting.

use crate::recording::{ReadMethod, ReadRecord};
use readpath_sim::world::HostCosts;

/// Maximum size of a read that counts for the cost of a call: copying two pages adds little. This
/// bound and the next one are chosen, not measured.
const SMALL_BYTES: u64 = 8 << 10;
/// Minimum size of a read that counts for the cost of a byte: the call itself adds little.
const LARGE_BYTES: u64 = 64 << 10;

/// Number of samples below which a cost counts as unknown. Chosen, not measured.
const MIN_SAMPLES: usize = 20;

/// Number of samples of a cost that are kept. More do not change its median noticeably.
const SAMPLES_MAX: usize = 100_000;

/// Samples of each type of cost.
#[derive(Clone, Debug, Default)]
pub struct RecordedCosts {
    /// Durations of small reads.
    small_ns: Vec<u64>,
    /// Picoseconds per byte of large reads.
    large_ps: Vec<u64>,
    /// Durations of page faults.
    fault_ns: Vec<u64>,
}

impl RecordedCosts {
    /// Adds a sample from a read that found all its data in memory. A fault is a sample of the cost
    /// of a fault, a small read of the cost of a call, and a large read of the cost of a byte.
    /// Other sizes are mixtures and do not count, nor do asynchronous reads, whose durations
    /// include time in a queue. Samples beyond `SAMPLES_MAX` of a cost are left out.
    pub fn add(&mut self, read: &ReadRecord) {
        let (duration_ns, bytes) = (read.duration_ns(), read.bytes_read());
        let (samples, cost) = match read.way {
            ReadMethod::Uring | ReadMethod::Aio => return,
            ReadMethod::Fault => (&mut self.fault_ns, duration_ns),
            _ if bytes <= SMALL_BYTES => (&mut self.small_ns, duration_ns),
            _ if bytes >= LARGE_BYTES => {
                (&mut self.large_ps, duration_ns.saturating_mul(1_000) / bytes)
            }
            _ => return,
        };
        if samples.len() < SAMPLES_MAX {
            samples.push(cost);
        }
    }

    /// Returns the costs of the recorded machine for a simulation: the medians of the samples. A
    /// cost with too few samples keeps the default of the simulated host.
    pub fn host(mut self) -> HostCosts {
        let default_host = HostCosts::default();
        let byte_ps = median(&mut self.large_ps).unwrap_or(default_host.byte_ps);
        HostCosts {
            operation_ns: median(&mut self.small_ns).unwrap_or(default_host.operation_ns),
            byte_ps,
            fault_ns: median(&mut self.fault_ns).unwrap_or(default_host.fault_ns),
            ..default_host
        }
    }
}

/// Returns the median, of an even number the larger middle value. `None` with too few values.
fn median(values: &mut [u64]) -> Option<u64> {
    let middle = values.len() / 2;
    (values.len() >= MIN_SAMPLES).then(|| *values.select_nth_unstable(middle).1)
}
