//! Rectangles over two axes, for example reads over time and file offset.

use super::axes::PlotArea;

/// Rectangles of one series.
#[derive(Clone, Debug)]
pub struct DotSeries {
    /// Name in the legend.
    pub name: String,
    /// Number of one of eight colours.
    pub series: usize,
    /// True if the rectangles are translucent.
    pub is_thin: bool,
    /// Each rectangle: left, right, bottom, top, in values of the axes.
    pub pieces: Vec<[f64; 4]>,
}

/// Minimum width of a rectangle, and minimum height of one of a series, in pixels.
const SIZE_MIN: f64 = 2.0;

/// Draws rectangles of one CSS class: left, right, bottom, top, in values of the axes. `height_min`
/// is their minimum height in pixels.
pub fn draw_rectangles(
    class: &str,
    plot_area: &PlotArea,
    height_min: f64,
    pieces: impl Iterator<Item = [f64; 4]>,
) -> String {
    let mut text = format!("<path class=\"{class}\" d=\"");
    for [left, right, bottom, top] in pieces {
        let (x, y) = (plot_area.x(left), plot_area.y(top));
        let width = (plot_area.x(right) - x).max(SIZE_MIN);
        let height = (plot_area.y(bottom) - y).max(height_min);
        text += &format!("M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
    }
    text + "\"/>\n"
}

/// Draws the series, the first one at the bottom. The colours repeat after eight.
pub fn draw(label: &str, plot_area: &PlotArea, all_series: &[DotSeries]) -> String {
    /// CSS classes of opaque rectangles, by colour.
    const FILLED: [&str; 8] =
        ["fill s0", "fill s1", "fill s2", "fill s3", "fill s4", "fill s5", "fill s6", "fill s7"];
    /// CSS classes of translucent rectangles, by colour.
    const THIN: [&str; 8] =
        ["thin s0", "thin s1", "thin s2", "thin s3", "thin s4", "thin s5", "thin s6", "thin s7"];
    let mut inner = String::new();
    let mut legend = Vec::new();
    for DotSeries { name, series, is_thin, pieces } in all_series {
        let class = if *is_thin { THIN[series % 8] } else { FILLED[series % 8] };
        inner += &draw_rectangles(class, plot_area, SIZE_MIN, pieces.iter().copied());
        legend.push((name.clone(), class));
    }
    plot_area.svg(label, &inner, &legend)
}
