//! Horizontal bar chart of one figure.

use super::axes::plain;
use super::escaped;

/// Bar of the chart.
#[derive(Clone, Debug)]
pub struct ChartBar {
    label: String,
    /// Length of the bar; `None` if not measured.
    value: Option<f64>,
    /// Number of the colour.
    series: usize,
}

impl ChartBar {
    /// Creates a bar in one of eight colours. A bar without a value is labelled `not measured`.
    pub fn new(label: &str, value: impl Into<Option<f64>>, series: usize) -> ChartBar {
        ChartBar { label: label.to_owned(), value: value.into(), series: series % 8 }
    }
}

const LINE: f64 = 24.0;
const WIDTH: f64 = 900.0;
const AFTER: f64 = 90.0;
const LABEL_MAX: usize = 64;

/// Draws the chart. A missing value has no bar and the label `not measured`.
pub fn draw(label: &str, unit: &str, bars: &[ChartBar]) -> String {
    let longest = bars.iter().map(|bar| bar.label.chars().count().min(LABEL_MAX)).max();
    let left = 16.0 + 6.8 * longest.unwrap_or(0) as f64;
    let value_max =
        bars.iter().filter_map(|bar| bar.value).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let height = LINE * bars.len() as f64 + 8.0;
    let mut svg = format!(
        "<svg class=\"plot broad\" role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\">\n<title>{0}</title>\n",
        escaped(label)
    );
    for (index, bar) in bars.iter().enumerate() {
        let top = 4.0 + LINE * index as f64;
        let width = bar.value.unwrap_or(0.0) / value_max * (WIDTH - left - AFTER);
        let label_text = bar
            .value
            .map_or_else(|| "not measured".to_owned(), |value| format!("{} {unit}", plain(value)));
        let (full_label, shown_label) = (escaped(&bar.label), escaped(&shortened(&bar.label)));
        svg += &format!(
            "<g class=\"s{}\"><title>{full_label}: {}</title>\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{shown_label}</text>\
             <rect class=\"fill\" x=\"{left:.0}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"{:.0}\" rx=\"2\"/>\
             <text class=\"faint\" x=\"{:.1}\" y=\"{:.0}\">{}</text></g>\n",
            bar.series,
            escaped(&label_text),
            left - 8.0,
            top + 16.0,
            LINE - 6.0,
            left + width + 8.0,
            top + 14.0,
            escaped(&label_text)
        );
    }
    svg + "</svg>\n"
}

/// Shortens a long text to its end, the part that distinguishes file names.
fn shortened(text: &str) -> String {
    let count = text.chars().count();
    match count > LABEL_MAX {
        true => format!("…{}", text.chars().skip(count - LABEL_MAX + 1).collect::<String>()),
        false => text.to_owned(),
    }
}
