//! Plot area with two axes and a grid, and the positions of values in it.

use super::escaped;

/// Axis: name, range, and format of its marks.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name, with the unit of the values unless the marks have one.
    name: String,
    /// Value at the left or lower end: 0 on a linear axis, above 0 on a logarithmic one.
    least: f64,
    /// Value at the right or upper end, above `least`.
    most: f64,
    /// True if equal distances on the axis are equal ratios of values.
    is_logarithmic: bool,
    /// Formats the value of a mark.
    format_label: fn(f64) -> String,
}

impl Axis {
    /// Creates a linear axis from 0 to `max`, or to 1 if `max` is not positive.
    pub fn linear(name: &str, max: f64, format_label: fn(f64) -> String) -> Axis {
        let max = if max > 0.0 { max } else { 1.0 };
        Axis { name: name.to_owned(), least: 0.0, most: max, is_logarithmic: false, format_label }
    }

    /// Creates a logarithmic axis, from the power of ten below `min` to the power of ten above
    /// `max`. Values of 0 count as 1e-9, and the range is at least one decade. An empty range, with
    /// `min` above `max`, becomes the decade from 1.
    pub fn logarithmic(name: &str, min: f64, max: f64, format_label: fn(f64) -> String) -> Axis {
        let (min, max) = if min <= max { (min, max) } else { (1.0, 10.0) };
        let min = 10f64.powf(min.max(1e-9).log10().floor());
        let max = 10f64.powf(max.max(min * 1.01).log10().ceil());
        Axis { name: name.to_owned(), least: min, most: max, is_logarithmic: true, format_label }
    }

    /// Position of a value on the axis, from 0 to 1. A value beyond an end is placed at that end.
    fn position(&self, value: f64) -> f64 {
        let position = match self.is_logarithmic {
            true => (value.max(self.least) / self.least).ln() / (self.most / self.least).ln(),
            false => (value - self.least) / (self.most - self.least),
        };
        position.clamp(0.0, 1.0)
    }

    /// Returns the values with a grid line. A logarithmic axis has them at powers of ten, and over
    /// at most two decades also at 2 and 5 times these. A linear axis has at most six round steps
    /// from 0.
    fn marks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let decades = (self.most / self.least).log10().round() as i32;
            let factors: &[f64] = if decades <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            return (0..=decades)
                .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
                .map(|mark| self.least * mark)
                // The factor allows for the rounding of the last power.
                .filter(|mark| *mark <= self.most * 1.001)
                .collect();
        }
        // The step is rounded up, so there are at most six steps.
        let step = nice_step(self.most / 6.0);
        (0..).map(|index| f64::from(index) * step).take_while(|mark| *mark <= self.most).collect()
    }
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is at least `step_min`.
fn nice_step(step_min: f64) -> f64 {
    let power = 10f64.powf(step_min.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= step_min)
        .unwrap_or(10.0 * power)
}

/// Plot area with one axis below and one to the left.
#[derive(Clone, Debug)]
pub struct PlotArea {
    /// The axis below.
    x: Axis,
    /// The axis to the left.
    y: Axis,
    /// Vertical position of the lower axis in pixels, from the top of the drawing. The marks, the
    /// axis name and the legend lie below it.
    height: f64,
}

/// A finished drawing.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Text of the SVG.
    pub svg: String,
    /// Width in pixels.
    pub width: f64,
    /// Height in pixels, with the axis and the legend.
    pub height: f64,
}

/// Width of the drawing, in pixels.
const WIDTH: f64 = 900.0;
/// Margin to the left of the plot area, with the marks and the axis name, in pixels.
const LEFT: f64 = 76.0;
/// Margin to the right of the plot area, in pixels.
const RIGHT: f64 = 16.0;
/// Margin above the plot area, in pixels.
const TOP: f64 = 10.0;
/// Margin below the plot area, with the marks and the axis name, in pixels.
const BELOW: f64 = 44.0;
/// Height of a line of the legend, in pixels.
const LEGEND_LINE_HEIGHT: f64 = 18.0;
/// Estimated width of a character of the legend, in pixels.
const CHARACTER_WIDTH: f64 = 7.2;

impl PlotArea {
    /// Creates a plot area whose lower axis lies `height` pixels below the top of the drawing.
    pub fn new(x: Axis, y: Axis, height: f64) -> PlotArea {
        PlotArea { x, y, height }
    }

    /// Returns the horizontal position of a value in pixels, from the left.
    pub fn x(&self, value: f64) -> f64 {
        LEFT + self.x.position(value) * (WIDTH - LEFT - RIGHT)
    }

    /// Returns the vertical position of a value in pixels, from the top.
    pub fn y(&self, value: f64) -> f64 {
        TOP + (1.0 - self.y.position(value)) * (self.height - TOP)
    }

    /// Returns the text of [`PlotArea::chart`].
    pub fn svg(&self, label: &str, inner: &str, legend: &[(String, &str)]) -> String {
        self.chart(label, inner, legend).svg
    }

    /// Draws `inner` in the plot area, with `label` as the drawing's title. The legend below has a
    /// name and a CSS class for each series. Literal numbers are distances of texts and lines in
    /// pixels.
    pub fn chart(&self, label: &str, inner: &str, legend: &[(String, &str)]) -> Chart {
        let bottom = self.height;
        let legend_lines = draw_legend_lines(bottom, legend);
        let height = bottom + BELOW + LEGEND_LINE_HEIGHT * legend_lines.len() as f64;
        let mut svg = format!(
            "<svg class=\"plot broad\" role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\">\n<title>{0}</title>\n",
            escaped(label)
        );
        for mark in self.x.marks() {
            let x = self.x(mark);
            // A label centred below the right end would not fit.
            let is_at_end = x > WIDTH - RIGHT - 8.0;
            svg += &format!(
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
                 <text class=\"faint\" x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"{}\">{}</text>\n",
                if is_at_end { WIDTH } else { x },
                bottom + 16.0,
                if is_at_end { "end" } else { "middle" },
                escaped(&(self.x.format_label)(mark))
            );
        }
        for mark in self.y.marks() {
            let y = self.y(mark);
            svg += &format!(
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.0}\" y2=\"{y:.1}\"/>\
                 <text class=\"faint\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                escaped(&(self.y.format_label)(mark))
            );
        }
        svg += &format!(
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{:.0}\" y2=\"{bottom}\"/>\n\
             <text class=\"faint\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\n\
             <text class=\"faint\" transform=\"translate(14 {:.0}) rotate(-90)\" \
             text-anchor=\"middle\">{}</text>\n",
            WIDTH - RIGHT,
            WIDTH - RIGHT,
            bottom + 34.0,
            escaped(&self.x.name),
            (TOP + bottom) / 2.0,
            escaped(&self.y.name)
        );
        svg += inner;
        svg += &legend_lines.concat();
        Chart { svg: svg + "</svg>\n", width: WIDTH, height }
    }
}

/// Draws the lines of a legend (name and CSS class of each series) below the axis at `bottom`.
/// Returns the text of each line, none for an empty legend.
fn draw_legend_lines(bottom: f64, legend: &[(String, &str)]) -> Vec<String> {
    // Text and right end of each line. An entry has a box of 14 pixels, and gaps of 6 and 14.
    let mut lines: Vec<(String, f64)> = Vec::new();
    for (name, class) in legend {
        let width = 34.0 + CHARACTER_WIDTH * name.chars().count() as f64;
        if lines.last().is_none_or(|&(_, end)| end + width > WIDTH) {
            lines.push((String::new(), LEFT));
        }
        let y = bottom + BELOW + LEGEND_LINE_HEIGHT * lines.len() as f64 - 6.0;
        let (text, end) = lines.last_mut().expect("a line was added for the first entry");
        *text += &format!(
            "<rect class=\"{class}\" x=\"{:.0}\" y=\"{:.0}\" width=\"14\" height=\"10\" rx=\"2\"/>\
             <text x=\"{:.0}\" y=\"{y:.0}\">{}</text>\n",
            *end,
            y - 9.0,
            *end + 20.0,
            escaped(name)
        );
        *end += width;
    }
    lines.into_iter().map(|(text, _)| text).collect()
}

/// Formats a number with a precision that suits its size.
pub fn format_number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.0e}"),
    }
}

/// Formats a time in µs with the unit that suits it.
pub fn format_us(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{} ns", format_number(us * 1e3)),
        us if us < 1e3 => format!("{} µs", format_number(us)),
        us if us < 1e6 => format!("{} ms", format_number(us / 1e3)),
        us => format!("{} s", format_number(us / 1e6)),
    }
}

/// Formats a share as a percentage.
pub fn format_percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A logarithmic axis for 3 to 700 goes from 1 to 1000: three decades, with four powers of ten.
    /// The value 10 lies at a third. An axis for 20,000 to 70,000 has one decade, with finer marks.
    #[test]
    fn axes_place_values_and_tick_marks_to_scale() {
        let axis = Axis::logarithmic("", 3.0, 700.0, format_number);
        assert_eq!((axis.least, axis.most), (1.0, 1000.0));
        assert!((axis.position(10.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(axis.marks().len(), 4);
        let decade = Axis::logarithmic("", 20_000.0, 70_000.0, format_number);
        assert_eq!(decade.marks(), [1e4, 2e4, 5e4, 1e5]);
        // The range of no values: a decade from 1.
        let empty = Axis::logarithmic("", f64::MAX, 0.0, format_number);
        assert_eq!((empty.least, empty.most), (1.0, 10.0));
        assert_eq!(empty.marks(), [1.0, 2.0, 5.0, 10.0]);
        let axis = Axis::linear("", 1_000.0, format_number);
        assert_eq!(axis.marks(), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!((axis.position(-5.0), axis.position(2_000.0)), (0.0, 1.0));
        let plot_area = PlotArea::new(axis.clone(), axis, 100.0);
        assert_eq!((plot_area.x(0.0), plot_area.y(0.0)), (LEFT, 100.0));
    }
}
