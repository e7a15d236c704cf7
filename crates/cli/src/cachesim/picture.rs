//! Miss-ratio curves as a self-contained picture: an SVG, or an HTML page around it.

use std::path::Path;

use plotters::prelude::*;
use readpath_trace::references::OPTIMUM;

use super::MissCell;
use crate::exit::Failure;

/// Format of the picture.
#[derive(Clone, Copy, Debug)]
pub enum PictureFormat {
    /// One SVG document.
    Svg,
    /// HTML page that contains the SVG.
    Html,
}

impl PictureFormat {
    /// Chooses the format from the ending of the file name.
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

/// Width of the picture, in pixels.
const WIDTH: u32 = 860;
/// Height of one trace's chart, in pixels.
const HEIGHT_OF_TRACE: u32 = 380;

/// Draws the curves of each trace, one chart below the other.
pub fn draw(cells: &[MissCell], kind: PictureFormat) -> String {
    let traces: Vec<&[MissCell]> = cells.chunk_by(|a, b| a.trace == b.trace).collect();
    let mut text = String::new();
    {
        let height = HEIGHT_OF_TRACE * traces.len() as u32;
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).expect("text takes what is drawn");
        for (area, cells) in root.split_evenly((traces.len(), 1)).iter().zip(&traces) {
            curves(area, cells);
        }
    }
    match kind {
        PictureFormat::Svg => text,
        PictureFormat::Html => format!(
            "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
             <title>Miss ratios</title></head>\n<body>\n{text}\n</body>\n</html>\n"
        ),
    }
}

/// Draws the curves of one trace: a line per policy over the cache size.
fn curves(area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, cells: &[MissCell]) {
    const DRAWN: &str = "text takes what is drawn";
    let pages = |cell: &MissCell| f64::from(cell.pages);
    let (least, most) = cells
        .iter()
        .map(pages)
        .fold((f64::MAX, 0.0_f64), |(least, most), pages| (least.min(pages), most.max(pages)));
    // A single size becomes a point in the middle of the axis.
    let (least, most) = if least < most { (least, most) } else { (least / 2.0, most * 2.0) };
    let highest = cells.iter().map(|cell| cell.miss_ratio).fold(0.0, f64::max);
    let first = &cells[0];
    let title =
        format!("{}: {} references, {} blocks", first.trace, first.references, first.blocks);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d((least..most).log_scale(), 0.0..highest.max(0.01))
        .expect(DRAWN);
    chart
        .configure_mesh()
        .x_desc("memory in blocks")
        .y_desc("miss ratio")
        .light_line_style(WHITE)
        .draw()
        .expect(DRAWN);
    let mut policies: Vec<&str> = Vec::new();
    for cell in cells {
        if !policies.contains(&cell.eviction.as_str()) {
            policies.push(&cell.eviction);
        }
    }
    for (nth, policy) in policies.into_iter().enumerate() {
        let color =
            if policy == OPTIMUM { BLACK.to_rgba() } else { Palette99::pick(nth).to_rgba() };
        let mut points: Vec<(f64, f64)> = cells
            .iter()
            .filter(|cell| cell.eviction == policy)
            .map(|cell| (pages(cell), cell.miss_ratio))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let dots = points.clone().into_iter().map(|point| Circle::new(point, 2, color.filled()));
        chart.draw_series(dots).expect(DRAWN);
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .expect(DRAWN)
            .label(policy)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .expect(DRAWN);
}
