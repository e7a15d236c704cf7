//! Demo run as a self-contained SVG: time on the horizontal axis, offsets on the vertical axis.

use plotters::prelude::*;

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
    /// Request of one of four programs.
    Program(u8),
}

impl Colour {
    /// Returns the colour of a program.
    pub fn of(program: u64) -> Colour {
        Colour::Program((program % 4) as u8)
    }

    fn rgb(self) -> RGBColor {
        match self {
            Colour::Requested => RGBColor(0xbf, 0x87, 0x00),
            Colour::Read => RGBColor(0x21, 0x8b, 0xff),
            Colour::Waste => RGBColor(0xcf, 0x22, 0x2e),
            Colour::Written => RGBColor(0x8c, 0x95, 0x9f),
            Colour::Hit => RGBColor(0x9a, 0xc7, 0xa5),
            Colour::Program(0) => RGBColor(0x21, 0x8b, 0xff),
            Colour::Program(1) => RGBColor(0xbf, 0x87, 0x00),
            Colour::Program(2) => RGBColor(0x1a, 0x7f, 0x37),
            Colour::Program(_) => RGBColor(0x82, 0x50, 0xdf),
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

const WIDTH: u32 = 760;
const HEIGHT: u32 = 360;
/// Minimum size of a mark, as a share of the width and of the height.
const MARK_SHARE_MIN: (f64, f64) = (1.0 / 330.0, 1.0 / 140.0);

/// Returns the text of the picture.
pub fn svg(scene: &Scene) -> String {
    const DRAWN: &str = "text takes what is drawn";
    let (x_max, y_max) = scene
        .marks
        .iter()
        .fold((0.0_f64, 0.0_f64), |(x, y), mark| (x.max(mark.x.1), y.max(mark.y.1)));
    let least = (x_max * MARK_SHARE_MIN.0, y_max * MARK_SHARE_MIN.1);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).expect(DRAWN);
        let mut chart = ChartBuilder::on(&root)
            .caption(format!("{} ({})", scene.title, scene.figures_line), ("sans-serif", 13))
            .margin(10)
            .x_label_area_size(34)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..x_max * 1.01, 0.0..y_max * 1.02)
            .expect(DRAWN);
        chart
            .configure_mesh()
            .x_desc(scene.x_name)
            .y_desc(scene.y_name)
            .light_line_style(WHITE)
            .draw()
            .expect(DRAWN);
        let boxes = scene.marks.iter().map(|mark| {
            let high = if mark.colour == Colour::Requested { least.1 * 0.6 } else { least.1 };
            let (x, y) = (at_least(mark.x, least.0), at_least(mark.y, high));
            Rectangle::new([(x.0, y.0), (x.1, y.1)], mark.colour.rgb().filled())
        });
        chart.draw_series(boxes).expect(DRAWN);
        for &(colour, words) in scene.legend.iter().filter(|(_, words)| !words.is_empty()) {
            let nothing: [Rectangle<(f64, f64)>; 0] = [];
            chart.draw_series(nothing).expect(DRAWN).label(words).legend(move |(x, y)| {
                Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.rgb().filled())
            });
        }
        if scene.legend.iter().any(|(_, words)| !words.is_empty()) {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.3))
                .draw()
                .expect(DRAWN);
        }
    }
    // Drop attributes that equal the defaults of SVG.
    text.replace(" opacity=\"1\"", "").replace(" stroke=\"none\"/>", "/>")
}

/// Extends a range to a minimum length.
fn at_least((from, to): (f64, f64), least: f64) -> (f64, f64) {
    (from, to.max(from + least))
}
