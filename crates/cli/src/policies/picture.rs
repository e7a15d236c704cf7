//! Demo run as a self-contained SVG: time on the horizontal axis, offsets on the vertical axis.

use crate::html::axes::{Axis, PlotArea, format_number};
use crate::html::{dots, standalone};

/// Colour of a mark, by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Read of the program.
    Requested,
    /// Bytes read by the device and used.
    Read,
    /// Wasted work: unused bytes or a miss.
    Waste,
    /// Written bytes.
    Written,
    /// Hit in memory.
    Hit,
    /// Request of one of four programs, numbered from 0.
    Program(u8),
}

impl Colour {
    /// Returns the colour of the program with this number. Four colours are used in turn.
    pub fn of_program(program: u64) -> Colour {
        Colour::Program((program % 4) as u8)
    }

    /// Returns the CSS class of the colour. Meanings that share a class never occur in one picture.
    /// The classes `s0`, `s1`, `s2`, `s6` and `s7` are a page's blue, orange, green, violet and
    /// grey. `below` is red, as a ratio below 1 in a heat map.
    fn class(self) -> &'static str {
        match self {
            Colour::Read | Colour::Program(0) => "fill s0",
            Colour::Requested | Colour::Program(1) => "fill s1",
            Colour::Hit | Colour::Program(2) => "fill s2",
            // Program 3.
            Colour::Program(_) => "fill s6",
            Colour::Written => "fill s7",
            Colour::Waste => "below",
        }
    }
}

/// Rectangle: a range of time and a range of offsets.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Start and end on the horizontal axis.
    pub x: (f64, f64),
    /// Start and end on the vertical axis.
    pub y: (f64, f64),
    /// Meaning of the mark.
    pub colour: Colour,
}

/// Content of the picture.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Title above the picture.
    pub title: String,
    /// Unit of the horizontal axis.
    pub x_name: &'static str,
    /// Unit of the vertical axis.
    pub y_name: &'static str,
    /// Meanings of the colours. A colour with an empty text has no entry.
    pub legend: Vec<(Colour, &'static str)>,
    /// Figures of the run in one line.
    pub figures_line: String,
    /// Marks, in drawing order.
    pub marks: Vec<Mark>,
}

/// Height of the plot area, in pixels.
const HEIGHT: f64 = 330.0;
/// Minimum height of a mark in pixels.
const MARK_HEIGHT_MIN: f64 = 2.5;
/// Minimum height in pixels of a read of the program. It is drawn over the device's read for it,
/// which stays visible above and below.
const REQUESTED_HEIGHT_MIN: f64 = 1.5;
/// Length of the horizontal axis, as a multiple of the end of the last mark: a margin at the right.
const X_AXIS_FACTOR: f64 = 1.01;
/// Length of the vertical axis, as a multiple of the end of the highest mark: a margin at the top.
const Y_AXIS_FACTOR: f64 = 1.02;

/// Draws the scene: its marks over both axes, the legend, and a caption of title and figures.
/// Returns a self-contained SVG document.
pub fn svg(scene: &Scene) -> String {
    let x_max = scene.marks.iter().map(|mark| mark.x.1).fold(0.0, f64::max);
    let y_max = scene.marks.iter().map(|mark| mark.y.1).fold(0.0, f64::max);
    let area = PlotArea::new(
        Axis::linear(scene.x_name, x_max * X_AXIS_FACTOR, format_number),
        Axis::linear(scene.y_name, y_max * Y_AXIS_FACTOR, format_number),
        HEIGHT,
    );
    // Successive marks of one colour share an element of the SVG.
    let mut drawn_marks = String::new();
    for marks in scene.marks.chunk_by(|left, right| left.colour == right.colour) {
        let height_min = match marks[0].colour {
            Colour::Requested => REQUESTED_HEIGHT_MIN,
            _ => MARK_HEIGHT_MIN,
        };
        let rectangles = marks.iter().map(|mark| [mark.x.0, mark.x.1, mark.y.0, mark.y.1]);
        drawn_marks +=
            &dots::draw_rectangles(marks[0].colour.class(), &area, height_min, rectangles);
    }
    let legend: Vec<(String, &str)> = scene
        .legend
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|&(colour, text)| (text.to_owned(), colour.class()))
        .collect();
    let caption = format!("{} ({})", scene.title, scene.figures_line);
    let chart = area.chart(&scene.title, &drawn_marks, &legend);
    standalone::svg(&[(caption, chart)])
}
