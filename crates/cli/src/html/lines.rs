//! Line chart: one figure as a function of another, for several series.

use super::axes::{Chart, PlotArea};
use super::escaped;

/// Lengths of a dash and a gap of a dashed line, in pixels.
pub const DASHED: &str = "5 3";
/// Lengths of a dot and a gap of a dotted line, in pixels.
pub const DOTTED: &str = "1 3";

/// Line of the chart.
#[derive(Clone, Debug)]
pub struct ChartLine {
    /// Name in the legend.
    pub name: String,
    /// Points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Number of one of eight colours.
    pub series: usize,
    /// Lengths of the dashes and gaps in pixels; empty for a solid line.
    pub dashes: &'static str,
    /// True for a step line, which keeps its value up to the next point.
    pub has_steps: bool,
}

/// Returns the text of [`chart`].
pub fn draw(label: &str, plot_area: &PlotArea, lines: &[ChartLine]) -> String {
    chart(label, plot_area, lines).svg
}

/// Draws the lines in a plot area, with a legend below.
pub fn chart(label: &str, plot_area: &PlotArea, lines: &[ChartLine]) -> Chart {
    /// CSS classes of the boxes in the legend, by colour.
    const CLASSES: [&str; 8] =
        ["fill s0", "fill s1", "fill s2", "fill s3", "fill s4", "fill s5", "fill s6", "fill s7"];
    let mut inner = String::new();
    let mut legend = Vec::new();
    for line in lines {
        let series = line.series % 8;
        let mut points = String::new();
        let mut last_y_value = None;
        for &(x, y) in &line.points {
            // A step keeps the last value up to the position of this point.
            if line.has_steps
                && let Some(last_y) = last_y_value
            {
                points += &format!("{:.1},{:.1} ", plot_area.x(x), plot_area.y(last_y));
            }
            points += &format!("{:.1},{:.1} ", plot_area.x(x), plot_area.y(y));
            last_y_value = Some(y);
        }
        let dashes = match line.dashes {
            "" => String::new(),
            dashes => format!(" stroke-dasharray=\"{dashes}\""),
        };
        inner += &format!(
            "<polyline class=\"line s{}\" points=\"{}\"{}><title>{}</title></polyline>\n",
            series,
            points.trim_end(),
            dashes,
            escaped(&line.name)
        );
        // The points of a line without steps are marked by circles.
        if !line.has_steps {
            for &(x, y) in &line.points {
                inner += &format!(
                    "<circle class=\"fill s{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                    series,
                    plot_area.x(x),
                    plot_area.y(y)
                );
            }
            inner += "\n";
        }
        legend.push((line.name.clone(), CLASSES[series]));
    }
    plot_area.chart(label, &inner, &legend)
}
