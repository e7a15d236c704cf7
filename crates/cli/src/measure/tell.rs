//! Measurements of a device as tables and as a JSON document.

use readpath_models::measure::{
    Contradiction, MeasurementCell, ProfileAccess, ProfileReliability, ProfileSample,
    ROUND_RATIO_MAX,
};
use readpath_models::measured::description::{SizeCosts, StorageDescription};
use serde::Serialize;

use crate::exit::CommandResult;
use crate::output::print_json;
use crate::table::{Column, Table, duration, number};

/// Short description of a cell: access, request size, and number of requests in flight. Nearby and
/// stream cells always have one in flight, which is left out.
pub fn cell_name(cell: &MeasurementCell) -> String {
    let MeasurementCell { access, bytes, depth } = cell;
    let size = format_size(*bytes);
    match access {
        ProfileAccess::Random => format!("random {size}, {depth} in flight"),
        ProfileAccess::Following => format!("sequential {size}, {depth} in flight"),
        ProfileAccess::Near(distance) if *distance < 0 => {
            format!("{size}, {} back", format_size(distance.unsigned_abs()))
        }
        ProfileAccess::Near(distance) => {
            format!("{size}, {} on", format_size(distance.unsigned_abs()))
        }
        ProfileAccess::Streams(count) => format!("{size}, {count} streams in turn"),
    }
}

/// Returns the output as text: the summary, the response times by queue depth (random and
/// sequential), and the response times by distance.
pub fn tables(description: &StorageDescription, samples: &[ProfileSample]) -> String {
    let mut text = summary(description);
    for (order_text, lines) in
        [("at random", &description.random), ("sequential", &description.following)]
    {
        text += &format!("\ntime of a request, {order_text}, by queue depth\n");
        text += &depth_table(description, lines);
    }
    let is_by_distance = |sample: &&ProfileSample| {
        matches!(sample.cell.access, ProfileAccess::Near(_) | ProfileAccess::Streams(_))
    };
    let rows: Vec<&ProfileSample> = samples.iter().filter(is_by_distance).collect();
    let columns: [Column<&ProfileSample>; 4] = [
        ("one in flight", |sample| cell_name(&sample.cell)),
        ("mean", |sample| duration(Some(sample.mean_ns / 1e3))),
        ("p50", |sample| duration(Some(sample.quantile_ns(0.5) as f64 / 1e3))),
        ("p99", |sample| duration(Some(sample.quantile_ns(0.99) as f64 / 1e3))),
    ];
    text += "\nby distance from the end of the last request\n";
    let numbers_from = 1;
    text + &Table::of(&rows, &columns, numbers_from).to_string()
}

/// Table of mean response times, with one row per request size and one column per queue depth. A
/// large request may not be measured at the highest depths: a dash stands for the missing times.
/// The last column is the highest throughput of the row.
fn depth_table(description: &StorageDescription, lines: &[SizeCosts]) -> String {
    let depths = description.depths.iter().map(u32::to_string);
    let header = std::iter::once("size".to_owned()).chain(depths).chain(["most MB/s".to_owned()]);
    let numbers_from = 1;
    let mut table = Table::with_header(header.collect(), numbers_from);
    for line in lines {
        let mut cells = vec![format_size(line.bytes)];
        cells.extend(
            (0..description.depths.len()).map(|index| duration(line.us.get(index).copied())),
        );
        cells.push(number(Some(most_bytes_per_us(description, line)), 1));
        table.add_row(cells);
    }
    table.to_string()
}

/// Highest throughput of a row over all depths, in bytes per µs (equal to MB/s).
fn most_bytes_per_us(description: &StorageDescription, line: &SizeCosts) -> f64 {
    let rates = description.depths.iter().zip(&line.us);
    rates.map(|(depth, us)| f64::from(*depth) * line.bytes as f64 / us).fold(0.0, f64::max)
}

/// Costs of a request and of a KiB, from the smallest and the largest random requests with one in
/// flight, the first depth.
fn random_cost(first: &SizeCosts, last: &SizeCosts) -> String {
    let kib = |costs: &SizeCosts| costs.bytes as f64 / 1024.0;
    // The bound prevents a division by zero if one size alone was measured.
    let kib_us = (last.us[0] - first.us[0]) / (kib(last) - kib(first)).max(1.0);
    if kib_us < 0.0 {
        // Noise, or a device whose cost does not depend on the size.
        return format!(
            "a random request of {} takes {}, a larger one no more: the cost of a KiB is unknown",
            format_size(first.bytes),
            duration(Some(first.us[0]))
        );
    }
    format!(
        "a random request costs {}, each KiB of it {} more",
        duration(Some(first.us[0] - kib_us * kib(first))),
        duration(Some(kib_us))
    )
}

/// Summary: cost of a request and of a byte, and effects of depth and distance. A description has
/// random, following and near requests. The first time of each size is with one request in flight.
fn summary(description: &StorageDescription) -> String {
    let (first, last) = (&description.random[0], description.random.last());
    let last = last.unwrap_or(first);
    let lines = description.random.iter().chain(&description.following);
    let bytes_per_us_max =
        lines.map(|line| most_bytes_per_us(description, line)).fold(0.0, f64::max);
    // Requests per µs at the depth with this index; index 0 is one in flight. The summary names
    // the smallest depth that reaches nine tenths of the best rate.
    let rate = |index: usize| f64::from(description.depths[index]) / first.us[index];
    let best_rate = (0..first.us.len()).map(rate).fold(0.0, f64::max);
    let sufficient_index =
        (0..first.us.len()).find(|&index| rate(index) >= 0.9 * best_rate).unwrap_or(0);
    let nearest_us = description.near.iter().map(|near| near.us).fold(f64::MAX, f64::min);
    format!(
        "{}: {:.1} GB\n{}; {:.0} MB/s at most\n{} \
            of 4 KiB at once are {:.1} times as fast as one; more bring little\na sequential one \
            costs {}, a nearby one at least {}, {}\n",
        description.name,
        description.bytes as f64 / 1e9,
        random_cost(first, last),
        bytes_per_us_max,
        description.depths[sufficient_index],
        rate(sufficient_index) / rate(0),
        duration(Some(description.following[0].us[0])),
        duration(Some(nearest_us)),
        match description.is_rotational {
            true => "so distance matters",
            false => "so distance does not matter",
        }
    )
}

/// Spread between the rounds of a cell, in a sentence. The spread is the slowest round divided by
/// the fastest. From `ROUND_RATIO_MAX` on, rounds disagree.
pub fn spread_sentence(reliability: &ProfileReliability) -> String {
    match reliability.median_spread {
        None => "each cell was measured once, so its spread is not known: give more --seconds and \
                 --bytes"
            .to_owned(),
        Some(spread) => format!(
            "slowest to fastest round of a cell: {spread:.2} in the median; cells at {ROUND_RATIO_MAX} or \
             more: {}",
            reliability.disagreeing_cells.len()
        ),
    }
}

/// Maximum number of lines of each kind of warning. Chosen, not measured.
const WARNINGS_MAX: usize = 4;

/// Returns warnings about cells whose rounds disagree, and about cells that contradict each other:
/// the one with more or larger requests has a shorter mean response time.
pub fn warnings(reliability: &ProfileReliability, samples: &[ProfileSample]) -> Vec<String> {
    let time = |ns: f64| duration(Some(ns / 1e3));
    let contradiction = |Contradiction { lighter, heavier }: &Contradiction| {
        let ((lighter_cell, lighter_ns), (heavier_cell, heavier_ns)) = (lighter, heavier);
        format!(
            "not possible: {} took {} each, and {} took {}: other work disturbed one of them",
            cell_name(heavier_cell),
            time(*heavier_ns),
            cell_name(lighter_cell),
            time(*lighter_ns)
        )
    };
    let disagreement = |cell: &MeasurementCell| {
        let sample = samples.iter().find(|sample| sample.cell == *cell)?;
        // The rounds are in ascending order.
        let (fastest, slowest) = (sample.rounds_ns.first()?, sample.rounds_ns.last()?);
        Some(format!(
            "rounds disagree: {} took from {} to {} in {} rounds",
            cell_name(cell),
            time(*fastest),
            time(*slowest),
            sample.rounds_ns.len()
        ))
    };
    let mut lines: Vec<String> =
        reliability.contradictions.iter().take(WARNINGS_MAX).map(contradiction).collect();
    lines.extend(reliability.disagreeing_cells.iter().take(WARNINGS_MAX).filter_map(disagreement));
    let more = reliability.contradictions.len().saturating_sub(WARNINGS_MAX)
        + reliability.disagreeing_cells.len().saturating_sub(WARNINGS_MAX);
    if more > 0 {
        lines.push(format!("and {more} more that are not reliable"));
    }
    lines
}

/// Cell in the JSON document.
#[derive(Serialize)]
struct MeasuredCell {
    /// Name of the access pattern.
    access: &'static str,
    /// Nearby cells: distance in bytes from the end of the last request. The real distance is up to
    /// twice as long.
    distance_bytes: Option<i64>,
    /// Stream cells: number of streams, read in turn.
    streams: Option<u32>,
    /// Size of each request.
    request_bytes: u64,
    /// Number of requests in flight.
    depth: u32,
    /// Number of requests of all rounds.
    requests: u64,
    /// The mean is the one of the median round; the other figures are of all requests.
    latency_us: Latency,
    /// Mean of each round, in ascending order.
    rounds_us: Vec<f64>,
    /// Slowest ÷ fastest round; null with a single round.
    spread: Option<f64>,
    /// Throughput of the median round in requests a second.
    iops: f64,
    /// Throughput of the median round in MiB a second.
    mib_per_s: f64,
}

/// Latencies of a cell's requests, in µs.
#[derive(Serialize)]
struct Latency {
    /// Mean.
    mean: f64,
    /// Median: half of the requests took at most this.
    p50: f64,
    /// 99 % of the requests took at most this.
    p99: f64,
    /// Maximum.
    max: f64,
}

/// Prints the JSON document with one result per cell.
pub fn print_cells(samples: &[ProfileSample]) -> CommandResult {
    let result = |sample: &ProfileSample| {
        let cell = sample.cell;
        let (access, distance_bytes, streams) = match cell.access {
            ProfileAccess::Random => ("random", None, None),
            ProfileAccess::Following => ("following", None, None),
            ProfileAccess::Near(distance) => ("near", Some(distance), None),
            ProfileAccess::Streams(count) => ("streams", None, Some(count)),
        };
        let us = |share| sample.quantile_ns(share) as f64 / 1e3;
        let mean = sample.mean_ns / 1e3;
        MeasuredCell {
            access,
            distance_bytes,
            streams,
            request_bytes: cell.bytes,
            depth: cell.depth,
            requests: sample.requests,
            latency_us: Latency { mean, p50: us(0.5), p99: us(0.99), max: us(1.0) },
            rounds_us: sample.rounds_ns.iter().map(|ns| ns / 1e3).collect(),
            spread: sample.spread(),
            iops: sample.per_second(),
            mib_per_s: sample.per_second() * cell.bytes as f64 / f64::from(1 << 20),
        }
    };
    // The seed of the positions is not printed.
    let no_seed = None;
    print_json(&samples.iter().map(result).collect::<Vec<_>>(), no_seed)
}

/// Formats a size in GiB, MiB or KiB, rounded down.
fn format_size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sample of random reads of 4 KiB at this depth, with one round per mean latency in µs.
    fn sample(depth: u32, rounds_us: &[f64]) -> ProfileSample {
        let cell = MeasurementCell { access: ProfileAccess::Random, bytes: 4096, depth };
        let round = |us: &f64| {
            let mean_ns = us * 1e3;
            ProfileSample {
                cell,
                requests: 9,
                mean_ns,
                rounds_ns: vec![mean_ns],
                latencies_ns: vec![1],
            }
        };
        ProfileSample::middle(rounds_us.iter().map(round).collect()).unwrap()
    }

    /// 4 KiB in 60 us and 1028 KiB in 316 us: 0.25 us a KiB, and 59 us a request.
    #[test]
    fn cost_of_a_kib_is_never_negative() {
        let costs = |kib: u64, us: f64| SizeCosts { bytes: kib << 10, us: vec![us] };
        let cost_text = |us| random_cost(&costs(4, 60.0), &costs(1028, us));
        assert_eq!(cost_text(316.0), "a random request costs 59.0 us, each KiB of it 0.2 us more");
        let unknown_cost = cost_text(59.0);
        assert!(unknown_cost.contains("takes 60.0 us") && unknown_cost.contains("is unknown"));
    }

    /// A request alone took 6.0 ms, but with 64 in flight only 2.5 ms each, which cannot be. The
    /// rounds of the latter differ by a factor of 2.
    #[test]
    fn warnings_name_unreliable_measurements() {
        let samples = [sample(1, &[6000.0, 6100.0]), sample(64, &[2500.0, 5000.0])];
        let reliability = ProfileReliability::of(&samples);
        let lines = warnings(&reliability, &samples);
        let impossible = "not possible: random 4 KiB, 64 in flight took 2.50 ms each, and random \
                          4 KiB, 1 in flight took 6.00 ms: other work disturbed one of them";
        let disagreement = "rounds disagree: random 4 KiB, 64 in flight took from 2.50 ms to \
                            5.00 ms in 2 rounds";
        assert_eq!(lines, [impossible, disagreement]);
        let spread = spread_sentence(&reliability);
        assert!(spread.ends_with("cells at 1.5 or more: 1"), "{spread}");
    }
}
