//! The types of volumes, with a source for every value.

use super::super::parameter_spec::{ParameterQuantity, ParameterSpec};
use super::{GIB, TIB};

/// A value and its source.
type ValueAndSource = (u64, &'static str);

const MIB: u64 = 1 << 20;

const EBS_TYPES: &str = "published: Amazon EBS User Guide, volume types, 2024";
const ANY_SIZE: &str = "published: Amazon EBS User Guide: the rate is the same for every size";
const EBS_GP2_RATE: &str = "published: Amazon EBS User Guide, general purpose SSD volumes, 2024";
const EVERY_SIZE: &str = "published: Amazon EBS User Guide: small volumes are not slower";
const NOT_MERGED: &str = "chosen: the guide does not state which requests are merged";
const NO_BURST: &str = "published: Amazon EBS User Guide: the type has no burst";
const CHOSEN_LATENCY: &str =
    "chosen: the guide states milliseconds in one digit for the types on solid-state drives";
const CHOSEN_DISK_LATENCY: &str = "chosen: a disk's seek and half a revolution; none is published";

/// Values of one type. `parameter_specs` and `io_specs` describe each of them. Rates are in bytes
/// per second, sizes in bytes, the latency in ns, and `rate_credits` in percent of the size.
struct TypeValues {
    size: ValueAndSource,
    iops_per_gib: ValueAndSource,
    iops_min: ValueAndSource,
    iops_max: ValueAndSource,
    burst_iops: ValueAndSource,
    io_credits: ValueAndSource,
    io_size: ValueAndSource,
    merge_min: ValueAndSource,
    rate_per_tib: ValueAndSource,
    rate_max: ValueAndSource,
    small_size: ValueAndSource,
    small_rate: ValueAndSource,
    burst_per_tib: ValueAndSource,
    burst_max: ValueAndSource,
    rate_credits: ValueAndSource,
    latency: ValueAndSource,
}

/// Parameters of `gp2`: 3 IOPS for each GiB, and a bucket of 5.4 million I/Os.
pub fn gp2() -> Vec<ParameterSpec> {
    parameter_specs(&TypeValues {
        size: (100 * GIB, "chosen: a volume that can burst"),
        iops_per_gib: (3, EBS_TYPES),
        iops_min: (100, EBS_TYPES),
        iops_max: (16_000, EBS_TYPES),
        burst_iops: (3_000, EBS_TYPES),
        io_credits: (5_400_000, EBS_TYPES),
        io_size: (256 << 10, "published: Amazon EBS User Guide, I/O characteristics"),
        merge_min: (0, NOT_MERGED),
        rate_per_tib: (0, ANY_SIZE),
        rate_max: (250 * MIB, EBS_GP2_RATE),
        small_size: (170 * GIB, EBS_GP2_RATE),
        small_rate: (128 * MIB, EBS_GP2_RATE),
        burst_per_tib: (0, ANY_SIZE),
        burst_max: (250 * MIB, EBS_GP2_RATE),
        rate_credits: (0, NO_BURST),
        latency: (500_000, CHOSEN_LATENCY),
    })
}

/// Parameters of `gp3`: 3,000 IOPS and 125 MiB/s, which can be raised for a price.
pub fn gp3() -> Vec<ParameterSpec> {
    parameter_specs(&TypeValues {
        size: (100 * GIB, "chosen: as gp2"),
        iops_per_gib: (0, ANY_SIZE),
        iops_min: (1, ANY_SIZE),
        iops_max: (
            3_000,
            "published: Amazon EBS User Guide, the baseline; up to 16,000 at a price",
        ),
        burst_iops: (0, NO_BURST),
        io_credits: (0, NO_BURST),
        io_size: (256 << 10, "published: Amazon EBS User Guide, I/O characteristics"),
        merge_min: (0, NOT_MERGED),
        rate_per_tib: (0, ANY_SIZE),
        rate_max: (
            125 * MIB,
            "published: Amazon EBS User Guide, the baseline; up to 1,000 MiB/s at a price",
        ),
        small_size: (0, EVERY_SIZE),
        small_rate: (0, EVERY_SIZE),
        burst_per_tib: (0, ANY_SIZE),
        burst_max: (0, NO_BURST),
        rate_credits: (0, NO_BURST),
        latency: (500_000, CHOSEN_LATENCY),
    })
}

/// Parameters of `st1`: 40 MiB/s for each TiB, a bucket of 1 TiB for each TiB.
pub fn st1() -> Vec<ParameterSpec> {
    parameter_specs(&TypeValues {
        rate_per_tib: (40 * MIB, EBS_TYPES),
        rate_max: (500 * MIB, EBS_TYPES),
        burst_per_tib: (250 * MIB, EBS_TYPES),
        burst_max: (500 * MIB, EBS_TYPES),
        iops_max: (500, EBS_TYPES),
        ..cold_values()
    })
}

/// Parameters of `sc1`: 12 MiB/s for each TiB, a bucket of 1 TiB for each TiB.
pub fn sc1() -> Vec<ParameterSpec> {
    parameter_specs(&cold_values())
}

/// Values of `sc1`, most of which hold for `st1` as well.
fn cold_values() -> TypeValues {
    TypeValues {
        size: (TIB, "chosen: the size in the guide's examples"),
        iops_per_gib: (0, ANY_SIZE),
        iops_min: (1, ANY_SIZE),
        iops_max: (250, EBS_TYPES),
        burst_iops: (0, NO_BURST),
        io_credits: (0, NO_BURST),
        io_size: (1 << 20, "published: Amazon EBS User Guide, I/O characteristics"),
        merge_min: (
            32 << 10,
            "published: AWS Knowledge Center, low throughput of sc1 and st1 volumes, 2020",
        ),
        rate_per_tib: (12 * MIB, EBS_TYPES),
        rate_max: (192 * MIB, EBS_TYPES),
        small_size: (0, EVERY_SIZE),
        small_rate: (0, EVERY_SIZE),
        burst_per_tib: (80 * MIB, EBS_TYPES),
        burst_max: (250 * MIB, EBS_TYPES),
        rate_credits: (100, "published: Amazon EBS User Guide, 1 TiB of credits for each TiB"),
        latency: (8_000_000, CHOSEN_DISK_LATENCY),
    }
}

/// Parameters of one type.
fn parameter_specs(values: &TypeValues) -> Vec<ParameterSpec> {
    use ParameterQuantity::{Bytes, Count, Percent, Time};
    let request_max = (1 << 20, "chosen: the largest request that Linux sends by default, rounded");
    let depth = (1_023, "published: Linux nvme driver, queues of 1,024 entries, one kept free");
    let rates = [
        ("rate_per_tib", "baseline rate for each TiB; 0: rate_max", values.rate_per_tib),
        ("rate_max", "largest baseline rate", values.rate_max),
        ("small_rate", "largest rate, with credits too, up to small_size", values.small_rate),
        ("burst_per_tib", "rate for each TiB with credits; 0: burst_max", values.burst_per_tib),
        ("burst_max", "largest rate with credits", values.burst_max),
    ];
    let credits = "bytes in the full bucket, of the capacity";
    let latency = "time of a request that waits for no token";
    let small_size = "largest capacity with small_rate; 0: none";
    let mut specs = vec![
        spec("size", "capacity", Bytes, values.size, 1 << 20, 64 * TIB),
        spec("small_size", small_size, Bytes, values.small_size, 0, 64 * TIB),
    ];
    specs.extend(io_specs(values));
    specs.extend(rates.map(|(key, description, value)| {
        // The bucket fills at the baseline rate, which cannot be 0.
        let least = if key == "rate_max" { 1_000 } else { 0 };
        let quantity = ParameterQuantity::BytesPerSecond;
        spec(key, description, quantity, value, least, 64_000_000_000)
    }));
    specs.extend([
        spec("rate_credits", credits, Percent, values.rate_credits, 0, 10_000),
        spec("latency", latency, Time, values.latency, 0, 10_000_000_000),
        spec("request_max", "largest request", Bytes, request_max, 4_096, 64 << 20),
        spec("depth", "requests accepted at once", Count, depth, 1, 1 << 16),
    ]);
    specs
}

/// Parameters of the bucket for I/Os.
fn io_specs(values: &TypeValues) -> [ParameterSpec; 7] {
    use ParameterQuantity::{Bytes, Count};
    let per_gib = "baseline I/Os a second for each GiB; 0: iops_max";
    let (iops_min, iops_max) = ("least baseline I/Os a second", "largest baseline I/Os a second");
    let (burst, io_size) = ("I/Os a second with credits", "largest request that is one I/O");
    let merge_min = "smallest request that joins the I/O of the adjacent one before; each I/O then \
                     takes io_size bytes of credits; 0: none joins, and a request takes its size";
    let most = 10_000_000;
    [
        spec("iops_per_gib", per_gib, Count, values.iops_per_gib, 0, 100_000),
        spec("iops_min", iops_min, Count, values.iops_min, 1, most),
        spec("iops_max", iops_max, Count, values.iops_max, 1, most),
        spec("burst_iops", burst, Count, values.burst_iops, 0, most),
        spec("io_credits", "I/Os in the full bucket", Count, values.io_credits, 0, 1 << 40),
        spec("io_size", io_size, Bytes, values.io_size, 512, 1 << 30),
        spec("merge_min", merge_min, Bytes, values.merge_min, 0, 1 << 30),
    ]
}

/// Creates one parameter. Its bounds are chosen: they only exclude senseless values.
fn spec(
    key: &'static str,
    description: &'static str,
    quantity: ParameterQuantity,
    (default, source): ValueAndSource,
    least: u64,
    most: u64,
) -> ParameterSpec {
    ParameterSpec { key, description, quantity, default, least, most, source }
}
