//! Self-contained SVG: charts below each other, each with a caption, on white.
//!
//! Viewers of SVG files know no CSS variables and no themes. The styles therefore name the colours
//! of the page's light theme.

use super::axes::Chart;
use super::escaped;

/// Height of a caption, in pixels.
const CAPTION_HEIGHT: f64 = 24.0;
/// Margin around the charts, in pixels.
const MARGIN: f64 = 10.0;

/// Draws charts with their captions, in the order from the top. Returns the text of the SVG.
pub fn svg(charts: &[(String, Chart)]) -> String {
    let width = charts.iter().map(|(_, chart)| chart.width).fold(0.0, f64::max) + 2.0 * MARGIN;
    let height: f64 =
        charts.iter().map(|(_, chart)| CAPTION_HEIGHT + chart.height + 2.0 * MARGIN).sum();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\">\n<style>\n{}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n",
        styles()
    );
    let mut top = 0.0;
    for (caption, chart) in charts {
        text += &format!(
            "<text class=\"caption\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <g transform=\"translate({MARGIN} {})\">\n{}</g>\n",
            width / 2.0,
            top + CAPTION_HEIGHT,
            escaped(caption),
            top + CAPTION_HEIGHT + MARGIN,
            chart.svg
        );
        top += CAPTION_HEIGHT + chart.height + 2.0 * MARGIN;
    }
    text + "</svg>\n"
}

/// CSS of line charts, with the colours of the page's light theme.
fn styles() -> String {
    let mut styles = format!(
        "text {{ fill: {}; font: 12px sans-serif; }}\n.caption {{ font-size: 14px; }}\n\
         .faint {{ fill: {faint}; }}\n.grid {{ stroke: {}; }}\n.axis {{ stroke: {faint}; }}\n\
         polyline {{ fill: none; stroke-width: 2; }}\n.below {{ fill: {}; }}\n",
        colour("text"),
        colour("rule"),
        colour("below"),
        faint = colour("faint"),
    );
    for series in 0..8 {
        let colour = colour(&format!("c{series}"));
        styles += &format!(
            ".fill.s{series} {{ fill: {colour}; }}\n.line.s{series} {{ stroke: {colour}; }}\n"
        );
    }
    styles
}

/// Value of the CSS variable `--NAME` in the page's light theme, which is defined first.
fn colour(name: &str) -> &'static str {
    let css = include_str!("page.css");
    let key = format!("--{name}: ");
    let begin = css.find(&key).expect("the page defines its colours") + key.len();
    css[begin..].split(';').next().expect("a split text has a first part")
}

#[cfg(test)]
mod tests {
    use super::super::axes::{Axis, PlotArea, format_number};
    use super::super::lines::{self, ChartLine};
    use super::*;

    /// Two charts of 900 × 162 pixels. Each adds a caption of 24 and two margins of 10: the height
    /// is 2 × 206 = 412, the width 920, and the second chart begins at 206 + 34 = 240.
    #[test]
    fn charts_lie_below_each_other_in_plain_colours() {
        let axis = || Axis::linear("n", 10.0, format_number);
        let line = ChartLine {
            name: "a < b".to_owned(),
            points: vec![(0.0, 10.0), (10.0, 0.0)],
            series: 1,
            dashes: "",
            has_steps: false,
        };
        let area = PlotArea::new(axis(), axis(), 100.0);
        let chart = || lines::chart("l", &area, std::slice::from_ref(&line));
        // 100 of the plot, 44 of the axis, 18 of the legend.
        assert_eq!((chart().width, chart().height), (900.0, 162.0));
        let text = svg(&[("first".to_owned(), chart()), ("second".to_owned(), chart())]);
        assert!(
            text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 920 412\"")
        );
        assert!(text.contains("translate(10 34)") && text.contains("translate(10 240)"), "{text}");
        assert!(text.contains(".line.s1 { stroke: #c05600; }") && text.contains("a &lt; b"));
        assert!(!text.contains("var(") && text.ends_with("</svg>\n"));
    }
}
