//! Explanation as an HTML page: the findings, and pictures of the reads.

use readpath_record::explain::{Explanation, ReadShape};
use readpath_sim::job::printable;

use super::pictures::{DrawnRead, Pictures};
use super::{file_and_thread_tables, gains, headline, no_findings_text, other_reads_text};
use crate::html::axes::{Axis, PlotArea, format_number, format_percent, format_us};
use crate::html::bars::{self, ChartBar};
use crate::html::dots::{self, DotSeries};
use crate::html::lines::{self, ChartLine};
use crate::html::{Page, colours};

/// Maximum number of files with a picture of their reads, which bounds the size of the page.
/// Chosen, not measured.
const FILES_MAX: usize = 4;

/// Bytes in a MiB.
const MIB: f64 = 1_048_576.0;

/// Height of a plot area, in pixels.
const PLOT_HEIGHT: f64 = 260.0;
/// Height of the plot area of the queue depth, in pixels.
const DEPTH_PLOT_HEIGHT: f64 = 200.0;

/// Page with the findings, the pictures, and the tables of files and threads. Without reads it ends
/// after the findings.
pub fn explanation_page(explanation: &Explanation, pictures: &Pictures) -> Page {
    let mut page = Page::new("What a program reads", &headline(explanation));
    if explanation.lost > 0 {
        page.paragraph(&format!("{} events were lost: figures are too low.", explanation.lost));
    }
    for others in &explanation.other_reads {
        page.paragraph(&other_reads_text(others));
    }
    page.heading("Findings");
    match explanation.findings.is_empty() {
        true => page.paragraph(&no_findings_text(explanation)),
        false => add_findings(&mut page, explanation),
    }
    if explanation.shape.reads == 0 {
        return page;
    }
    add_offset_pictures(&mut page, &explanation.shape, pictures);
    add_latency_picture(&mut page, pictures);
    add_depth_picture(&mut page, pictures);
    add_byte_use_picture(&mut page, &explanation.shape);
    add_working_set_picture(&mut page, &explanation.shape);
    page.heading("Files and threads");
    let [files, threads] = file_and_thread_tables(&explanation.shape);
    page.table("Files, the one that was waited for the longest first", &files);
    page.table("Threads, the one that waited the longest first", &threads);
    page
}

/// Adds a bar chart of the seconds that the findings cost, and a paragraph with notes for each.
fn add_findings(page: &mut Page, explanation: &Explanation) {
    let findings = &explanation.findings;
    let bars: Vec<ChartBar> = findings
        .iter()
        .map(|finding| ChartBar::new(&finding.title, finding.seconds, colours::ORANGE))
        .collect();
    let caption = "Seconds of waits, or of small reads, for each finding.";
    page.picture(caption, &bars::draw("Cost of each finding", "s", &bars));
    for finding in findings {
        let share = finding.share * 100.0;
        page.paragraph(&format!("{}: {:.2} s ({share:.0} %).", finding.title, finding.seconds));
        page.notes([
            format!("Evidence: {}.", finding.evidence),
            format!("Remedy: {}.", finding.remedy),
        ]);
        if let Some(gain) = &finding.gain {
            page.notes([format!("Gain: {}.", gains::gain_text(gain, explanation.seconds))]);
        }
    }
}

/// Splits the reads into those that waited for a device and the others. `rectangle` returns the
/// left, right, bottom and top value of a read.
fn split_by_wait(
    reads: &[&DrawnRead],
    rectangle: impl Fn(&DrawnRead) -> [f64; 4],
) -> [DotSeries; 2] {
    let rectangles = |has_waited: bool| {
        let reads = reads.iter().filter(|read| (read.waited_ns > 0) == has_waited);
        reads.map(|read| rectangle(read)).collect()
    };
    let dot_series = |name: &str, series, has_waited| {
        let name = name.to_owned();
        DotSeries { name, series, is_thin: has_waited, pieces: rectangles(has_waited) }
    };
    // Reads that waited are drawn first, below the others, and translucent.
    let has_waited = true;
    [
        dot_series("waited for a device", colours::ORANGE, has_waited),
        dot_series("did not wait", colours::GREEN, !has_waited),
    ]
}

/// Draws the offsets of the reads over time, one picture for each of the first [`FILES_MAX`] files
/// of the table of files. A file of which no read was kept has no picture. Reads belong to a file
/// by their path.
fn add_offset_pictures(page: &mut Page, shape: &ReadShape, pictures: &Pictures) {
    page.heading("Where it reads");
    for file in shape.files.iter().take(FILES_MAX) {
        let is_of_file = |read: &&DrawnRead| pictures.paths.get(&read.file) == Some(&file.path);
        let reads: Vec<&DrawnRead> = pictures.reads.items().iter().filter(is_of_file).collect();
        if reads.is_empty() {
            continue;
        }
        let rectangle = |read: &DrawnRead| {
            let first = read.offset as f64 / MIB;
            let last = first + read.bytes as f64 / MIB;
            [read.begin_ns as f64 / 1e9, read.end_ns as f64 / 1e9, first, last]
        };
        let end_max = reads.iter().map(|read| rectangle(read)[3]).fold(0.0, f64::max);
        let plot_area = PlotArea::new(
            time_axis(pictures),
            Axis::linear("MiB in the file", end_max, format_number),
            PLOT_HEIGHT,
        );
        let sampling = match pictures.reads.keep_every() {
            1 => String::new(),
            sampling => format!(" One of {sampling} reads is drawn."),
        };
        let caption =
            format!("{}: each read at its place and time.{sampling}", printable(&file.path));
        page.picture(
            &caption,
            &dots::draw("Reads by place and time", &plot_area, &split_by_wait(&reads, rectangle)),
        );
    }
}

/// Draws each kept read at its begin and its latency, on a logarithmic scale. Reads that waited for
/// a device have a colour of their own. Without kept reads there is no picture.
fn add_latency_picture(page: &mut Page, pictures: &Pictures) {
    let reads: Vec<&DrawnRead> = pictures.reads.items().iter().collect();
    if reads.is_empty() {
        return;
    }
    page.heading("How long it waits");
    // A logarithmic axis has no 0: shorter reads are drawn at 0.1 µs.
    let latency_us = |read: &DrawnRead| ((read.end_ns - read.begin_ns) as f64 / 1e3).max(0.1);
    let latencies = || reads.iter().map(|read| latency_us(read));
    let (latency_min, latency_max) =
        (latencies().fold(f64::MAX, f64::min), latencies().fold(0.0, f64::max));
    let plot_area = PlotArea::new(
        time_axis(pictures),
        Axis::logarithmic("it took", latency_min, latency_max, format_us),
        PLOT_HEIGHT,
    );
    let rectangle = |read: &DrawnRead| {
        let begin_seconds = read.begin_ns as f64 / 1e9;
        [begin_seconds, begin_seconds, latency_us(read), latency_us(read)]
    };
    let caption = "Each read: when it began, and how long it took.";
    let series = split_by_wait(&reads, rectangle);
    page.picture(caption, &dots::draw("Latency over time", &plot_area, &series));
}

/// Draws the number of requests at the devices over time. The axis reaches at least 1. Without
/// requests there is no picture.
fn add_depth_picture(page: &mut Page, pictures: &Pictures) {
    let points = pictures.depths();
    if points.is_empty() {
        return;
    }
    page.heading("Queue depth");
    let depth_max = points.iter().map(|point| point.1).fold(1.0, f64::max);
    let depth_axis = Axis::linear("requests", depth_max, format_number);
    let plot_area = PlotArea::new(time_axis(pictures), depth_axis, DEPTH_PLOT_HEIGHT);
    let name = "reading requests at the devices".to_owned();
    let line = ChartLine { name, points, series: colours::BLUE, dashes: "", has_steps: true };
    let caption = "Requests to read that devices had, on average over each span of time.";
    page.picture(caption, &lines::draw("Depth over time", &plot_area, &[line]));
}

/// Draws how many bytes were returned to the program, fetched, fetched again, and never requested.
/// If less than half of the fetched bytes came from a device, their bar is not named after devices.
fn add_byte_use_picture(page: &mut Page, shape: &ReadShape) {
    page.heading("Bytes read and their use");
    let mib = |bytes: u64| bytes as f64 / MIB;
    let (fetched, rest) = match shape.few_device_bytes() {
        _ if shape.misses_readahead => {
            ("fetched by reads that waited", "in memory, or fetched by readahead")
        }
        Some(_) => ("brought into the page cache", "in memory"),
        None => ("fetched from devices", "in memory"),
    };
    let bars = [
        ChartBar::new("returned to the program", mib(shape.got_bytes), colours::GREEN),
        ChartBar::new(fetched, mib(shape.fetched_bytes), colours::BLUE),
        ChartBar::new("of that, fetched before", mib(shape.again_bytes), colours::ORANGE),
        ChartBar::new("of that, not requested", mib(shape.unused_bytes), colours::ORANGE),
    ];
    let caption = format!("MiB. Bytes that were returned but not fetched were {rest}.");
    page.picture(&caption, &bars::draw("Bytes returned, fetched, and unused", "MiB", &bars));
}

/// Draws the miss ratio over the size of a memory. The sizes of `shape.reuse` ascend. Without one
/// there is no picture.
fn add_working_set_picture(page: &mut Page, shape: &ReadShape) {
    let points: Vec<(f64, f64)> =
        shape.reuse.iter().map(|point| (point.bytes as f64 / MIB, point.miss_ratio)).collect();
    let Some(&(largest_mib, _)) = points.last() else { return };
    page.heading("Working set");
    let plot_area = PlotArea::new(
        Axis::logarithmic("MiB of memory", points[0].0, largest_mib, format_number),
        Axis::linear("not found in memory", 1.0, format_percent),
        PLOT_HEIGHT,
    );
    let name = "pages that a memory of that size would not hold".to_owned();
    let line = ChartLine { name, points, series: colours::BLUE, dashes: "", has_steps: true };
    let caption =
        "Where the line falls, a memory of that size holds pages that the program reads again.";
    page.picture(caption, &lines::draw("Working set", &plot_area, &[line]));
}

/// Horizontal axis: time of the recording in seconds.
fn time_axis(pictures: &Pictures) -> Axis {
    Axis::linear("time in s", pictures.end_ns as f64 / 1e9, format_number)
}
