//! Rows as an HTML page: the table and pictures.

use readpath_sim::load::LoadRow;
use readpath_sim::observe::{Events, PolicyCallEvent, ReadEvent, RequestEvent};
use readpath_sim::report::ResultRow;

use crate::html::axes::{Axis, PlotArea, format_number, format_percent, format_us};
use crate::html::bars::{self, ChartBar};
use crate::html::dots::{self, DotSeries};
use crate::html::lines::{self, ChartLine, DASHED};
use crate::html::{Page, colours};
use crate::output::{job_table, load_table};

/// Maximum number of rows with a timeline; the first rows are chosen. The number bounds the size of
/// the page. Chosen, not measured.
const ROWS_MAX: usize = 8;
/// Maximum number of drawn rectangles of a kind. Longer lists are thinned evenly, which bounds the
/// size of the page. Chosen, not measured.
const RECTANGLES_MAX: usize = 3_000;

/// Bytes in a MiB.
const MIB: f64 = 1_048_576.0;
/// Height of the plot area of the latency distributions, in pixels.
const DISTRIBUTION_HEIGHT: f64 = 300.0;
/// Height of each plot area of a timeline, in pixels.
const TIMELINE_HEIGHT: f64 = 260.0;
/// Bytes in a sector of a device request.
const SECTOR_BYTES: f64 = 512.0;
/// KiB in a page.
const PAGE_KIB: f64 = 4.0;
/// Least step of the share between two points of a latency distribution. Smaller steps are not
/// visible in the picture.
const SHARE_STEP_MIN: f64 = 0.002;

/// Page of a job's rows; `recorded_events` has the recorded events of each.
pub fn job_page(rows: &[ResultRow], recorded_events: &[Events]) -> Page {
    let job = rows.first().map_or("", |row| row.job.as_str());
    let lead = "One job under several policies and devices, each a row.";
    let mut page = Page::new(&format!("Job {job}"), lead);
    page.heading("Throughput");
    let bars: Vec<ChartBar> = rows
        .iter()
        .map(|row| ChartBar::new(&row_name(row), row.mib_per_s, row_colour(row)))
        .collect();
    let caption = "MiB/s: blue on a modelled device, green through our read path, orange through the \
                   kernel's own.";
    page.picture(caption, &bars::draw("Throughput of each row", "MiB/s", &bars));
    let distributions: Vec<ChartLine> = rows
        .iter()
        .enumerate()
        .filter_map(|(row_index, row)| latency_distribution(row_index, row))
        .collect();
    if !distributions.is_empty() {
        page.heading("Latency");
        let caption = "Cumulative distribution of latencies: a line farther to the left is \
            faster; a line that reaches the top late has a long tail.";
        page.picture(caption, &draw_distributions(&distributions));
    }
    page.heading("Rows");
    page.table(
        "One row per storage and policies, with the sections of the job below",
        &job_table(rows),
    );
    page.notes(
        rows.iter().filter_map(|row| Some(format!("{}: {}", row.storage, row.note.as_ref()?))),
    );
    let rows_with_events =
        rows.iter().zip(recorded_events).filter(|(_, events)| !events.requests.is_empty());
    for (row, events) in rows_with_events.take(ROWS_MAX) {
        page.heading(&format!("Moment by moment: {}", row_name(row)));
        add_timeline(&mut page, events);
    }
    page
}

/// Page of the rows of loads on memory; `recorded_events` has the recorded events of each.
pub fn load_page(rows: &[LoadRow], recorded_events: &[Events]) -> Page {
    let lead = "Loads on memory that is too small for them, under several swap-in policies.";
    let mut page = Page::new("Loads on memory", lead);
    page.heading("Time");
    let bars: Vec<ChartBar> = rows
        .iter()
        .map(|row| ChartBar::new(&load_name(row), row.seconds, storage_colour(&row.storage)))
        .collect();
    let caption = "Seconds, less is better: blue on a modelled device, green over a Region, orange under \
                   the kernel's own swap.";
    page.picture(caption, &bars::draw("Time of each row", "s", &bars));
    add_fault_picture(&mut page, rows);
    page.heading("Rows");
    page.table("A row for each load, storage and policies", &load_table(rows));
    page.notes(
        rows.iter().filter_map(|row| Some(format!("{}: {}", row.storage, row.note.as_ref()?))),
    );
    let rows_with_events =
        rows.iter().zip(recorded_events).filter(|(_, events)| !events.requests.is_empty());
    for (row, events) in rows_with_events.take(ROWS_MAX) {
        page.heading(&format!("Moment by moment: {}", load_name(row)));
        add_timeline(&mut page, events);
    }
    page
}

/// Draws the faults that waited for a device, and the faults that found their page already brought
/// in.
fn add_fault_picture(page: &mut Page, rows: &[LoadRow]) {
    let bars: Vec<ChartBar> = rows
        .iter()
        .filter(|row| row.major_faults.is_some())
        .flat_map(|row| {
            let name = load_name(row);
            let bar = |kind: &str, faults: Option<u64>, colour| {
                faults
                    .map(|faults| ChartBar::new(&format!("{name}, {kind}"), faults as f64, colour))
            };
            let found = bar("found", row.minor_faults, colours::GREEN);
            bar("waited", row.major_faults, colours::ORANGE).into_iter().chain(found)
        })
        .collect();
    if !bars.is_empty() {
        page.heading("Faults");
        let caption = "Orange: faults that waited for a device; green: those that found their page brought in \
                       by the fault of another, the hits of a swap-in policy.";
        page.picture(caption, &bars::draw("Faults of each row", "faults", &bars));
    }
}

/// Storage and policies that distinguish a load's row from the others.
fn load_name(row: &LoadRow) -> String {
    let policies = [&row.swapin, &row.scheduler].into_iter().flatten().map(String::as_str);
    let parts = [row.job.as_str(), row.storage.as_str()].into_iter().chain(policies);
    parts.collect::<Vec<_>>().join(" · ")
}

/// Storage and policies that distinguish a job's row from the others.
fn row_name(row: &ResultRow) -> String {
    let policies =
        [&row.readahead, &row.scheduler, &row.raw].into_iter().flatten().map(String::as_str);
    std::iter::once(row.storage.as_str()).chain(policies).collect::<Vec<_>>().join(" · ")
}

/// Returns the colour number of a row, by its kind of storage.
fn row_colour(row: &ResultRow) -> usize {
    storage_colour(&row.storage)
}

/// Returns the colour number of a storage: the kernel, the library or a model.
fn storage_colour(storage: &str) -> usize {
    match storage.split_once(':').map(|(kind, _)| kind) {
        Some("kernel") => colours::ORANGE,
        Some("file" | "nfs" | "region") => colours::GREEN,
        _ => colours::BLUE,
    }
}

/// Returns the cumulative distribution of a row's latencies: time in µs and share of the
/// operations. `None` without operations.
fn latency_distribution(row_index: usize, row: &ResultRow) -> Option<ChartLine> {
    // Latency in nanoseconds, as the upper bound of a histogram bucket, and number of operations.
    let mut counts: Vec<(u64, u64)> = row
        .sections
        .iter()
        .flat_map(|section| &section.directions)
        .flat_map(|direction| direction.recorded.iter().copied())
        .collect();
    counts.sort_unstable();
    let operation_count: u64 = counts.iter().map(|(_, count)| count).sum();
    let mut operations_so_far = 0;
    let mut points = Vec::new();
    for (ns, count) in counts {
        let share_before = operations_so_far as f64 / operation_count as f64;
        operations_so_far += count;
        let share = operations_so_far as f64 / operation_count as f64;
        let is_distant =
            points.last().is_none_or(|&(_, last): &(f64, f64)| share - last >= SHARE_STEP_MIN);
        if is_distant || operations_so_far == operation_count {
            // The curve begins at the least latency, with a share of 0.
            if points.is_empty() {
                points.push((ns as f64 / 1e3, share_before));
            }
            points.push((ns as f64 / 1e3, share));
        }
    }
    (operation_count > 0).then(|| ChartLine {
        name: row_name(row),
        series: row_index,
        // The eight colours repeat, with dashes.
        dashes: if row_index >= 8 { DASHED } else { "" },
        has_steps: true,
        points,
    })
}

/// Draws the distributions of several rows.
fn draw_distributions(distributions: &[ChartLine]) -> String {
    let all_latencies = || distributions.iter().flat_map(|line| &line.points).map(|point| point.0);
    let (latency_min, latency_max) =
        (all_latencies().fold(f64::MAX, f64::min), all_latencies().fold(0.0, f64::max));
    let plot_area = PlotArea::new(
        Axis::logarithmic("latency", latency_min, latency_max, format_us),
        Axis::linear("share of operations", 1.0, format_percent),
        DISTRIBUTION_HEIGHT,
    );
    lines::draw("Distribution of latencies", &plot_area, distributions)
}

/// Draws the timeline of a row: its reads, the device requests, and the readahead windows. A row
/// without reads or windows lacks their pictures.
fn add_timeline(page: &mut Page, events: &Events) {
    let end_times = events.requests.iter().map(request_end_ms);
    let end_times = end_times.chain(events.reads.iter().map(|event| event.done_ns as f64 / 1e6));
    let end_ms_max = end_times.fold(0.0, f64::max);
    let plot_area = |axis_name: &str, axis_max: f64| {
        let x = Axis::linear("time in ms", end_ms_max, format_number);
        PlotArea::new(x, Axis::linear(axis_name, axis_max, format_number), TIMELINE_HEIGHT)
    };
    if !events.reads.is_empty() {
        add_reads_picture(page, events, &plot_area);
    }
    add_requests_picture(page, events, &plot_area);
    add_windows_picture(page, events, &plot_area);
    if events.dropped > 0 {
        page.paragraph(&format!("{} later events are not drawn.", events.dropped));
    }
}

/// Time in ms at which a request ended. A request that was in flight at the end has its start.
fn request_end_ms(event: &RequestEvent) -> f64 {
    event.done_ns.unwrap_or(event.issued_ns) as f64 / 1e6
}

/// Draws the device requests by offset and time. `plot_area` creates the area for the name and the
/// largest value of the vertical axis.
fn add_requests_picture(
    page: &mut Page,
    events: &Events,
    plot_area: &dyn Fn(&str, f64) -> PlotArea,
) {
    let request_rectangle = |event: &RequestEvent| {
        // Left and right in ms, bottom and top in MiB.
        let start = event.sector as f64 * SECTOR_BYTES / MIB;
        let end = start + f64::from(event.sectors) * SECTOR_BYTES / MIB;
        [event.issued_ns as f64 / 1e6, request_end_ms(event), start, end]
    };
    let (written, fetched): (Vec<_>, Vec<_>) =
        events.requests.iter().partition(|event| event.is_write);
    let rectangles =
        |events: Vec<&RequestEvent>| thinned(events.into_iter().map(request_rectangle).collect());
    let axis_max =
        events.requests.iter().map(|event| request_rectangle(event)[3]).fold(0.0, f64::max);
    let mut all_series = vec![DotSeries {
        name: "read".to_owned(),
        series: colours::BLUE,
        is_thin: true,
        pieces: rectangles(fetched),
    }];
    if !written.is_empty() {
        all_series.push(DotSeries {
            name: "written".to_owned(),
            series: colours::MAGENTA,
            is_thin: true,
            pieces: rectangles(written),
        });
    }
    let caption = "Requests: each from its submission to its completion, at its offset on the \
        device.";
    let area = plot_area("MiB on the device", axis_max);
    page.picture(caption, &dots::draw("Requests by place and time", &area, &all_series));
}

/// Draws the bytes that the readahead policy had read ahead, by time. Without any there is no
/// picture. `plot_area` creates the area for the name and the largest value of the vertical axis.
fn add_windows_picture(
    page: &mut Page,
    events: &Events,
    plot_area: &dyn Fn(&str, f64) -> PlotArea,
) {
    let window_rectangle = |event: &PolicyCallEvent| {
        let (ms, kib) = (event.now_ns as f64 / 1e6, event.ahead_pages as f64 * PAGE_KIB);
        [ms, ms, kib, kib]
    };
    let windows: Vec<[f64; 4]> =
        events.windows.iter().filter(|event| event.ahead_pages > 0).map(window_rectangle).collect();
    if !windows.is_empty() {
        let axis_max = windows.iter().map(|window| window[3]).fold(0.0, f64::max);
        let all_series = [DotSeries {
            name: "read ahead".to_owned(),
            series: colours::VIOLET,
            is_thin: false,
            pieces: thinned(windows),
        }];
        let caption = "Windows: data that the readahead policy had read beyond the request.";
        page.picture(
            caption,
            &dots::draw("Windows by time", &plot_area("KiB ahead", axis_max), &all_series),
        );
    }
}

/// Draws the reads by offset and time, split into hits and waits. A read that took at least as long
/// as the fastest request counts as a wait: the events do not record which it was. Without a
/// completed request all reads count as waits. `plot_area` creates the area for the name and the
/// largest value of the vertical axis.
fn add_reads_picture(page: &mut Page, events: &Events, plot_area: &dyn Fn(&str, f64) -> PlotArea) {
    // A read faster than the fastest request cannot have waited for the device.
    let quickest_ns = events
        .requests
        .iter()
        .filter_map(|event| Some(event.done_ns? - event.issued_ns))
        .min()
        .unwrap_or(0);
    let has_waited = |event: &&ReadEvent| event.done_ns - event.issued_ns >= quickest_ns;
    let read = |event: &ReadEvent| {
        let start = event.offset as f64 / MIB;
        // A failed read has no bytes.
        let mib = event.bytes.unwrap_or(0) as f64 / MIB;
        [event.issued_ns as f64 / 1e6, event.done_ns as f64 / 1e6, start, start + mib]
    };
    let hits = events.reads.iter().filter(|event| !has_waited(event)).map(read).collect();
    let misses = events.reads.iter().filter(has_waited).map(read).collect();
    let end_max = events.reads.iter().map(|event| read(event)[3]).fold(0.0, f64::max);
    let all_series = [
        DotSeries {
            name: "waited for the device".to_owned(),
            series: colours::ORANGE,
            is_thin: true,
            pieces: thinned(misses),
        },
        DotSeries {
            name: "found in memory".to_owned(),
            series: colours::GREEN,
            is_thin: false,
            pieces: thinned(hits),
        },
    ];
    let caption = "Reads: each from its request to its completion, at its offset in its file.";
    page.picture(
        caption,
        &dots::draw("Reads by place and time", &plot_area("MiB in the file", end_max), &all_series),
    );
}

/// Keeps at most [`RECTANGLES_MAX`] rectangles, evenly chosen.
fn thinned(pieces: Vec<[f64; 4]>) -> Vec<[f64; 4]> {
    let step = pieces.len().div_ceil(RECTANGLES_MAX).max(1);
    pieces.into_iter().step_by(step).collect()
}
