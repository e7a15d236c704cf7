//! Horizontal bar chart of one figure.

use super::axes::format_number;
use super::escaped;

/// Bar of the chart.
#[derive(Clone, Debug)]
pub struct ChartBar {
    /// Text at the left of the bar.
    label: String,
    /// Length of the bar; `None` if not measured.
    value: Option<f64>,
    /// Number of the colour.
    series: usize,
}

impl ChartBar {
    /// Creates a bar. `series` is the number of its colour, of eight. A bar without a value is
    /// labelled `not measured`.
    pub fn new(label: &str, value: impl Into<Option<f64>>, series: usize) -> ChartBar {
        ChartBar { label: label.to_owned(), value: value.into(), series: series % 8 }
    }
}

/// Height of a bar's line, in pixels.
const LINE_HEIGHT: f64 = 24.0;
/// Width of the chart, in pixels.
const WIDTH: f64 = 900.0;
/// Width right of the longest bar, for its value, in pixels.
const VALUE_WIDTH: f64 = 90.0;
/// Estimated width of a character of a label, in pixels.
const CHARACTER_WIDTH: f64 = 6.8;
/// Maximum number of characters of a label. About half of the chart's width is then left.
const LABEL_CHARS_MAX: usize = 64;

/// Draws the chart. `unit` follows each value, and may be empty. A missing value has no bar and the
/// label `not measured`. Literal numbers are distances in pixels.
pub fn draw(label: &str, unit: &str, bars: &[ChartBar]) -> String {
    let longest_chars = bars.iter().map(|bar| bar.label.chars().count().min(LABEL_CHARS_MAX)).max();
    let left = 16.0 + CHARACTER_WIDTH * longest_chars.unwrap_or(0) as f64;
    // The largest value has the whole width. The minimum prevents a division by zero.
    let value_max =
        bars.iter().filter_map(|bar| bar.value).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let height = LINE_HEIGHT * bars.len() as f64 + 8.0;
    let mut svg = format!(
        "<svg class=\"plot broad\" role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\">\n<title>{0}</title>\n",
        escaped(label)
    );
    for (index, bar) in bars.iter().enumerate() {
        let top = 4.0 + LINE_HEIGHT * index as f64;
        let width = bar.value.unwrap_or(0.0) / value_max * (WIDTH - left - VALUE_WIDTH);
        let value_text = match bar.value {
            Some(value) => format!("{} {unit}", format_number(value)),
            None => "not measured".to_owned(),
        };
        let (full_label, shown_label) = (escaped(&bar.label), escaped(&shortened(&bar.label)));
        svg += &format!(
            "<g class=\"s{}\"><title>{full_label}: {}</title>\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{shown_label}</text>\
             <rect class=\"fill\" x=\"{left:.0}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"{:.0}\" rx=\"2\"/>\
             <text class=\"faint\" x=\"{:.1}\" y=\"{:.0}\">{}</text></g>\n",
            bar.series,
            escaped(&value_text),
            left - 8.0,
            top + 16.0,
            LINE_HEIGHT - 6.0,
            left + width + 8.0,
            top + 14.0,
            escaped(&value_text)
        );
    }
    svg + "</svg>\n"
}

/// Shortens a long text to its end, the part that distinguishes file names.
fn shortened(text: &str) -> String {
    let count = text.chars().count();
    match count > LABEL_CHARS_MAX {
        true => format!("…{}", text.chars().skip(count - LABEL_CHARS_MAX + 1).collect::<String>()),
        false => text.to_owned(),
    }
}
