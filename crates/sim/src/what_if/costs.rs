//! What calls, copies and faults cost the recorded machine, by the reads that waited for nothing.

use crate::recording::{ReadMethod, ReadRecord};
use crate::world::HostCosts;

/// A read of no more tells what a call costs, one of no less what a byte does.
const SMALL_BYTES: u64 = 8 << 10;
const LARGE_BYTES: u64 = 64 << 10;

/// So few tell nothing.
const MIN_SAMPLES: usize = 20;

/// Of so many the middle is known well enough.
const BOUND_MAX: usize = 100_000;

/// What was seen of each kind.
#[derive(Clone, Debug, Default)]
pub struct RecordedCosts {
    small_ns: Vec<u64>,
    /// Picoseconds a byte.
    large_ps: Vec<u64>,
    fault_ns: Vec<u64>,
}

impl RecordedCosts {
    /// A read that found all in memory.
    pub fn add(&mut self, read: &ReadRecord) {
        let (ns, bytes) = (read.took_ns(), read.got_bytes());
        let (kind, cost) = match read.way {
            ReadMethod::Uring | ReadMethod::Aio => return,
            ReadMethod::Fault => (&mut self.fault_ns, ns),
            _ if bytes <= SMALL_BYTES => (&mut self.small_ns, ns),
            _ if bytes >= LARGE_BYTES => (&mut self.large_ps, ns.saturating_mul(1_000) / bytes),
            _ => return,
        };
        if kind.len() < BOUND_MAX {
            kind.push(cost);
        }
    }

    /// The host: what was not seen often enough is the modelled one's own.
    pub fn host(mut self) -> HostCosts {
        let usual = HostCosts::default();
        let byte_ps = middle(&mut self.large_ps).unwrap_or(usual.byte_ps);
        HostCosts {
            operation_ns: middle(&mut self.small_ns).unwrap_or(usual.operation_ns),
            byte_ps,
            fault_ns: middle(&mut self.fault_ns).unwrap_or(usual.fault_ns),
            ..usual
        }
    }
}

/// The median.
fn middle(values: &mut [u64]) -> Option<u64> {
    let at = values.len() / 2;
    (values.len() >= MIN_SAMPLES).then(|| *values.select_nth_unstable(at).1)
}
