//! A volume of a cloud's block storage, with limits in place of a medium.
//!
//! Two token buckets limit it: one for I/Os, one for bytes. A bucket fills at the baseline rate up
//! to its capacity, and is full at first. A request takes its tokens in order of arrival, at most
//! at the burst rate, and waits for missing ones. It completes a constant latency after both
//! buckets have let it pass. Reads and writes are equal. A completed write is durable.
//!
//! The devices `gp2`, `gp3`, `st1` and `sc1` are the types of Amazon EBS volumes with these names.
//! A request larger than the I/O size of the type counts as several I/Os. On `st1` and `sc1` an I/O
//! takes the tokens of 1 MiB, however small its requests are. Adjacent requests in order share one
//! I/O of up to 1 MiB, unless they are smaller than 32 KiB. Source: AWS Knowledge Center, "Why
//! isn't my SC1 or ST1 EBS volume achieving the rated throughput performance?" (2020). EBS also
//! merges adjacent requests to `gp2` and `gp3`, which is not modelled.

use readpath_core::policy::{Spec, SpecError};
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Outcome, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};

use super::Device;
use super::agenda::EventQueue;
use super::parameter_spec::{ParameterSpec, ParameterValues};

mod types;

pub use types::{gp2, gp3, sc1, st1};

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Nanoseconds in a second. Tokens are counted in billionths, so that the tokens of a nanosecond
/// are the rate.
const SECOND_NS: u128 = 1_000_000_000;

/// A token bucket with a limit on the rate at which tokens leave.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    /// Tokens a second that enter.
    baseline: u128,
    /// Tokens a second that leave at most.
    burst: u128,
    /// Capacity, in billionths of a token.
    capacity: u128,
    /// Billionths of tokens at `filled_at`, after the last request took its own.
    level: u128,
    /// Time to which `level` applies: the start of the last request.
    filled_at: Time,
    /// Earliest start of the next request: the last one and the time of its tokens at the burst
    /// rate.
    free_at: Time,
}

impl TokenBucket {
    /// Creates a full bucket for `tokens`, and at least for the largest request, which could
    /// otherwise never pass. A burst below the baseline means no burst.
    fn new(baseline: u64, burst: u64, tokens: u64, largest_request: u64) -> TokenBucket {
        let capacity = u128::from(tokens.max(largest_request)) * SECOND_NS;
        TokenBucket {
            baseline: u128::from(baseline),
            burst: u128::from(burst.max(baseline)),
            capacity,
            level: capacity,
            filled_at: Time::ZERO,
            free_at: Time::ZERO,
        }
    }

    /// Takes tokens for the next request. Returns its start: the time at which it has them. It
    /// starts at `free_at` at the earliest, and waits for missing tokens at the baseline rate. A
    /// request without tokens starts with the last one, whose I/O it shares.
    fn take(&mut self, now: Time, tokens: u64) -> Time {
        if tokens == 0 {
            return self.filled_at.max(now);
        }
        let cost = u128::from(tokens) * SECOND_NS;
        let mut start = self.free_at.max(now);
        let filled = u128::from((start - self.filled_at).ns()) * self.baseline;
        self.level = self.capacity.min(self.level + filled);
        if self.level < cost {
            let wait_ns = (cost - self.level).div_ceil(self.baseline);
            start += Time(wait_ns as u64);
            self.level += wait_ns * self.baseline;
        }
        self.level -= cost;
        self.filled_at = start;
        self.free_at = start + Time(cost.div_ceil(self.burst) as u64);
        start
    }
}

/// A volume.
pub struct Volume {
    /// Limits from the parameters.
    caps: DeviceCaps,
    /// Largest request that counts as one I/O, in bytes.
    io_bytes: u64,
    /// Smallest request that joins the I/O of the adjacent one before it, in bytes. 0: none joins.
    merge_bytes_min: u64,
    /// Bytes by which requests can still extend the last I/O.
    joinable_bytes: u64,
    /// Sector after the last request.
    last_end: u64,
    /// Tokens of I/Os.
    ios: TokenBucket,
    /// Tokens of bytes.
    bytes: TokenBucket,
    /// Time from the start of a request, when it has its tokens, to its completion.
    latency: Time,
    /// Requests and flushes in flight, by the time of their completion.
    completions: EventQueue<RequestId>,
}

impl Volume {
    /// Creates the volume that `spec` describes. `parameter_specs` belong to its type.
    ///
    /// # Errors
    /// Fails on an unknown parameter and on an invalid value.
    pub fn from_spec(spec: &Spec, parameter_specs: &[ParameterSpec]) -> Result<Volume, SpecError> {
        let settings = ParameterValues::read(spec, parameter_specs)?;
        let size = settings.of("size");
        let (io_bytes, request_bytes_max) = (settings.of("io_size"), settings.of("request_max"));
        let iops_max = settings.of("iops_max");
        let iops = match settings.of("iops_per_gib") {
            0 => iops_max,
            per_gib => {
                // Only whole GiB count. If the minimum is above the maximum, the maximum holds.
                (per_gib * (size / GIB)).clamp(settings.of("iops_min").min(iops_max), iops_max)
            }
        };
        let request_ios_max = request_bytes_max.div_ceil(io_bytes);
        // Small volumes have a maximum rate of their own, for baseline and burst.
        let small_rate_max = match size <= settings.of("small_size") {
            true => settings.of("small_rate"),
            false => u64::MAX,
        };
        // A rate for each TiB up to a maximum, or the maximum for every size.
        let rate = |per_tib: &str, most: &str| {
            let most = settings.of(most).min(small_rate_max);
            match settings.of(per_tib) {
                0 => most,
                per_tib => {
                    let scaled = u128::from(per_tib) * u128::from(size) / u128::from(TIB);
                    most.min(scaled as u64)
                }
            }
        };
        // The bucket fills at the baseline, which cannot be 0.
        let baseline_rate = rate("rate_per_tib", "rate_max").max(1);
        let burst_rate = rate("burst_per_tib", "burst_max");
        // The parameter is in percent of the size.
        let rate_credits = settings.of("rate_credits") * (size / 100);
        Ok(Volume {
            caps: DeviceCaps {
                sectors: size / SECTOR_BYTES,
                request_sectors_max: (request_bytes_max / SECTOR_BYTES) as u32,
                depth_max: settings.get_u32("depth"),
                is_rotational: false,
                alignment_sectors: 1,
            },
            io_bytes,
            merge_bytes_min: settings.of("merge_min"),
            joinable_bytes: 0,
            last_end: 0,
            ios: TokenBucket::new(
                iops,
                settings.of("burst_iops"),
                settings.of("io_credits"),
                request_ios_max,
            ),
            bytes: TokenBucket::new(
                baseline_rate,
                burst_rate,
                rate_credits,
                request_ios_max * io_bytes,
            ),
            latency: Time(settings.of("latency")),
            completions: EventQueue::new(),
        })
    }

    /// Returns the numbers of I/Os and of bytes for which a request needs tokens. With
    /// `merge_bytes_min`, every I/O takes the tokens of a whole I/O size. A request that joins the
    /// last I/O needs tokens for the bytes beyond it. A request that is too small to join begins an
    /// I/O, and the next one may join that.
    fn charge(&mut self, request: &DeviceRequest) -> (u64, u64) {
        let bytes = u64::from(request.sectors) * SECTOR_BYTES;
        if self.merge_bytes_min == 0 {
            return (bytes.div_ceil(self.io_bytes), bytes);
        }
        if bytes < self.merge_bytes_min || request.start != self.last_end {
            self.joinable_bytes = 0;
        }
        self.last_end = request.end();
        let ios = bytes.saturating_sub(self.joinable_bytes).div_ceil(self.io_bytes);
        self.joinable_bytes = self.joinable_bytes + ios * self.io_bytes - bytes;
        (ios, ios * self.io_bytes)
    }
}

impl Device for Volume {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Takes the request from both token buckets. It completes `latency` after both have let it
    /// pass.
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let (ios, bytes) = self.charge(&request);
        let ios_passed = self.ios.take(now, ios);
        let bytes_passed = self.bytes.take(now, bytes);
        self.completions.add(ios_passed.max(bytes_passed) + self.latency, request.id);
    }

    /// Completes after the latency: there is nothing to write.
    fn flush(&mut self, now: Time, id: RequestId) {
        self.completions.add(now + self.latency, id);
    }

    fn next_event(&self) -> Option<Time> {
        self.completions.next_at()
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        let (time, id) = self.completions.take_due(now)?;
        Some(Completion::at(time, id, Outcome::Done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 tokens a second, at most 10, 16 in the bucket. Requests of 4 tokens at time 0: four start
    /// at the burst rate, one each 0.4 s, while tokens return. At 1.2 s the fourth finds 16 - 12 +
    /// 2.4 = 6.4 and leaves 2.4. At 1.6 s the fifth finds 3.2, and waits 0.4 s for the rest. At
    /// 2.4 s the sixth finds 0.8 (0.4 s at 2 a second), and waits 1.6 s for 3.2 more.
    #[test]
    fn bucket_gives_its_tokens_at_the_burst_rate_and_then_those_of_the_baseline() {
        let mut bucket = TokenBucket::new(2, 10, 16, 4);
        let starts: Vec<u64> =
            (0..6).map(|_| bucket.take(Time::ZERO, 4).ns() / 1_000_000).collect();
        assert_eq!(starts, [0, 400, 800, 1_200, 2_000, 4_000]);
        // A request that shares the last I/O.
        assert_eq!(bucket.take(Time::ZERO, 0), Time::from_s(4));
    }

    /// After a long idle time the bucket is full, and not fuller: two requests of 4 tokens leave a
    /// bucket of 8 empty, plus the tokens of 0.8 s. The third waits for 4 - 1.6 tokens, 1.2 s.
    #[test]
    fn bucket_fills_up_to_its_capacity() {
        let mut bucket = TokenBucket::new(2, 10, 8, 4);
        let hour = Time(3_600_000_000_000);
        let starts: Vec<u64> =
            (0..3).map(|_| (bucket.take(hour, 4) - hour).ns() / 1_000_000).collect();
        assert_eq!(starts, [0, 400, 2_000]);
    }
}
