//! Line chart: one figure as a function of another, for several series.

use super::axes::{Chart, PlotArea};
use super::escaped;

/// Lengths of a dashed line.
pub const DASHED: &str = "5 3";
/// Lengths of a dotted line.
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
    /// True for a step line.
    pub has_steps: bool,
}

/// Returns the text of [`chart`].
pub fn draw(label: &str, field: &PlotArea, lines: &[ChartLine]) -> String {
    chart(label, field, lines).svg
}

/// Draws the lines in a plot area, with a legend below.
pub fn chart(label: &str, field: &PlotArea, lines: &[ChartLine]) -> Chart {
    const CLASSES: [&str; 8] =
        ["fill s0", "fill s1", "fill s2", "fill s3", "fill s4", "fill s5", "fill s6", "fill s7"];
    let mut inner = String::new();
    let mut legend = Vec::new();
    for line in lines {
        let series = line.series % 8;
        let mut points = String::new();
        let mut last = None;
        for &(x, y) in &line.points {
            if line.has_steps
                && let Some(last_y) = last
            {
                points += &format!("{:.1},{:.1} ", field.x(x), field.y(last_y));
            }
            points += &format!("{:.1},{:.1} ", field.x(x), field.y(y));
            last = Some(y);
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
        if !line.has_steps {
            for &(x, y) in &line.points {
                inner += &format!(
                    "<circle class=\"fill s{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                    series,
                    field.x(x),
                    field.y(y)
                );
            }
            inner += "\n";
        }
        legend.push((line.name.clone(), CLASSES[series]));
    }
    field.chart(label, &inner, &legend)
}
