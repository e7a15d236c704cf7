//! Miss-ratio curves as a self-contained picture: an SVG, or an HTML page around it.

use std::path::Path;

use readpath_trace::references::OPTIMUM;

use super::MissCell;
use crate::exit::Failure;
use crate::html::axes::{Axis, Chart, PlotArea, format_number};
use crate::html::colours;
use crate::html::lines::{self, ChartLine, DASHED, DOTTED};
use crate::html::standalone;

/// Format of the picture.
#[derive(Clone, Copy, Debug)]
pub enum PictureFormat {
    /// One SVG document.
    Svg,
    /// HTML page that contains the SVG.
    Html,
}

impl PictureFormat {
    /// Chooses the format from the ending of the file name. Another ending is refused.
    pub fn of(path: &Path) -> Result<PictureFormat, Failure> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("svg") => Ok(PictureFormat::Svg),
            Some("html") => Ok(PictureFormat::Html),
            _ => Err(Failure::Usage(format!(
                "--picture {}: end the name with .svg or .html",
                path.display()
            ))),
        }
    }
}

/// Height of a trace's plot area, in pixels.
const HEIGHT: f64 = 320.0;

/// Draws the curves of each trace, which has `trace_cells` cells, one chart below the other.
/// Returns an SVG or an HTML document.
pub fn draw(cells: &[MissCell], trace_cells: usize, format: PictureFormat) -> String {
    let charts: Vec<_> =
        cells.chunks(trace_cells).map(|cells| (caption(cells), curves(cells))).collect();
    let text = standalone::svg(&charts);
    match format {
        PictureFormat::Svg => text,
        PictureFormat::Html => format!(
            "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
             <title>Miss ratios</title></head>\n<body>\n{text}\n</body>\n</html>\n"
        ),
    }
}

/// Caption of a trace's chart.
pub fn caption(cells: &[MissCell]) -> String {
    let first = &cells[0];
    format!("{}: {} references, {} blocks", first.trace, first.references, first.blocks)
}

/// Draws the curves of one trace: a line per policy over the cache size.
///
/// # Panics
/// Panics without cells.
pub fn curves(cells: &[MissCell]) -> Chart {
    let pages = |cell: &MissCell| f64::from(cell.pages);
    let (pages_min, pages_max) =
        cells.iter().map(pages).fold((f64::MAX, 0.0_f64), |(pages_min, pages_max), pages| {
            (pages_min.min(pages), pages_max.max(pages))
        });
    let highest = cells.iter().map(|cell| cell.miss_ratio).fold(0.0, f64::max);
    let mut policies: Vec<&str> = Vec::new();
    for cell in cells {
        if !policies.contains(&cell.eviction.as_str()) {
            policies.push(&cell.eviction);
        }
    }
    let mut lines = Vec::new();
    for (index, policy) in policies.into_iter().enumerate() {
        let mut points: Vec<(f64, f64)> = cells
            .iter()
            .filter(|cell| cell.eviction == policy)
            .map(|cell| (pages(cell), cell.miss_ratio))
            .collect();
        points.sort_by(|left, right| left.0.total_cmp(&right.0));
        // The optimum alone has the grey colour, the last one. Its number is thus the number of the
        // other colours, which the policies have in turn. A second round of colours is dashed, and
        // a third one dotted.
        let (series, dashes) = match policy {
            OPTIMUM => (colours::GREY, ""),
            _ => (index % colours::GREY, ["", DASHED, DOTTED][index / colours::GREY % 3]),
        };
        let name = policy.to_owned();
        lines.push(ChartLine { name, points, series, dashes, has_steps: false });
    }
    let area = PlotArea::new(
        Axis::logarithmic("memory in blocks", pages_min, pages_max, format_number),
        // The axis reaches at least 1 %, also for a trace with hardly any miss.
        Axis::linear("miss ratio", highest.max(0.01), format_number),
        HEIGHT,
    );
    lines::chart(&cells[0].trace, &area, &lines)
}
