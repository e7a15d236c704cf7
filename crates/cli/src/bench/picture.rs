//! Matrix as a picture: one line per row, one field per state. A dot shows the ratio to the fastest
//! baseline on a logarithmic scale. The result is one self-contained SVG file.

use std::fmt::Write;

use super::cells::{BenchCell, StateSummary};
use crate::html::escaped;
use crate::table::number;

/// Largest ratio on the scale. Ratios above it or below its inverse are drawn at the edge.
const RATIO_MAX: f64 = 16.0;

/// Marks of the scale: ratio and label.
const MARKS: [(f64, &str); 5] =
    [(0.0625, "1/16"), (0.25, "1/4"), (1.0, "1"), (4.0, "4"), (16.0, "16")];

/// Height of a row, in pixels.
const LINE_HEIGHT: f64 = 16.0;
/// Width of the column of row names, in pixels.
const NAMES_WIDTH: f64 = 200.0;
/// Width of the field of a state, in pixels.
const FIELD_WIDTH: f64 = 190.0;
/// Padding left and right of a field's scale, in pixels.
const FIELD_PAD: f64 = 14.0;
/// Height of the title and the fields' heads, in pixels.
const TOP: f64 = 92.0;

/// Colour of a cell that meets its goal.
const MET_COLOUR: &str = "#1a7f37";
/// Colour of a cell that misses its goal.
const MISSED_COLOUR: &str = "#cf222e";
/// Colour of a cell without a comparison.
const UNJUDGED_COLOUR: &str = "#6e7781";

/// Draws the matrix: a line for each row, a field for each state, and the dots of the cells at
/// their ratios. Returns the SVG document. `summaries` has one entry per state, in the order of
/// fields. Literal numbers are distances in pixels.
pub fn svg(cells: &[BenchCell], summaries: &[StateSummary], title: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for cell in cells {
        if !names.contains(&cell.row.as_str()) {
            names.push(&cell.row);
        }
    }
    let width = NAMES_WIDTH + FIELD_WIDTH * summaries.len() as f64 + 10.0;
    let bottom = TOP + LINE_HEIGHT * names.len() as f64;
    // The labels of the scale and the legend are below the rows.
    let height = bottom + 46.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    for (row_index, name) in names.iter().enumerate() {
        let y = line_middle(row_index);
        if row_index % 2 == 1 {
            let top = y - LINE_HEIGHT / 2.0;
            let stripe_width = width - 10.0;
            append_line(
                &mut svg,
                &format!(
                    "<rect x=\"5\" y=\"{top}\" width=\"{stripe_width}\" height=\"{LINE_HEIGHT}\" fill=\"#f6f8fa\"/>"
                ),
            );
        }
        append_line(&mut svg, &format!("<text x=\"8\" y=\"{}\">{}</text>", y + 4.0, escaped(name)));
    }
    for (field, summary) in summaries.iter().enumerate() {
        let left = NAMES_WIDTH + FIELD_WIDTH * field as f64;
        draw_field_header(&mut svg, left, bottom, summary);
        for cell in cells.iter().filter(|cell| cell.state == summary.state) {
            let line = names.iter().position(|name| *name == cell.row);
            let y = line_middle(line.expect("every cell's row has a line"));
            draw_cell(&mut svg, left, y, cell);
        }
    }
    let legend =
        "Fastest of pread, mmap and O_DIRECT ÷ the library: right of 1, the library is faster.";
    append_line(
        &mut svg,
        &format!("<text x=\"8\" y=\"{}\" fill=\"#57606a\">{legend}</text>", bottom + 38.0),
    );
    // Legend of the dots' colours, each at a fixed position.
    let dots = [(520.0, MET_COLOUR, "meets its goal"), (620.0, MISSED_COLOUR, "below")];
    for (x, colour, label) in dots {
        append_line(
            &mut svg,
            &format!("<circle cx=\"{x}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/>", bottom + 34.0),
        );
        append_line(
            &mut svg,
            &format!("<text x=\"{}\" y=\"{}\">{label}</text>", x + 8.0, bottom + 38.0),
        );
    }
    svg + "</svg>\n"
}

/// Draws the name, the summary and the scale of one state's field. `left` is the field's left edge,
/// and `bottom` the lower end of the scale's lines, in pixels.
fn draw_field_header(svg: &mut String, left: f64, bottom: f64, summary: &StateSummary) {
    let middle = left + FIELD_WIDTH / 2.0;
    let mut draw_centred = |y: f64, font_size: u32, text: &str| {
        append_line(
            svg,
            &format!(
                "<text x=\"{middle}\" y=\"{y}\" font-size=\"{font_size}\" text-anchor=\"middle\">{text}</text>"
            ),
        );
    };
    draw_centred(44.0, 13, summary.state.name());
    let mean = number(summary.geometric_mean, 2);
    draw_centred(60.0, 11, &format!("mean {mean}, min {}", number(summary.minimum, 2)));
    let missed = format!("{} of {} miss the goal", summary.missed_goals, summary.judged_cells);
    draw_centred(74.0, 11, &missed);
    for (ratio, label) in MARKS {
        let x = ratio_x(left, ratio);
        let colour = if ratio == 1.0 { "#24292f" } else { "#d0d7de" };
        append_line(
            svg,
            &format!(
                "<line x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"{colour}\"/>",
                TOP - 6.0
            ),
        );
        append_line(
            svg,
            &format!(
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#57606a\">{label}</text>",
                bottom + 14.0
            ),
        );
    }
}

/// Draws the dot of a cell with its figures as a tooltip. Its position is the ratio to the fastest
/// baseline. Its colour shows the goal, which may have another baseline. A cell without a ratio is
/// a cross at the left end of the scale: the library lacks a figure, or every baseline complete
/// runs. `left` is the left edge of its field, and `y` the middle of its line, in pixels.
fn draw_cell(svg: &mut String, left: f64, y: f64, cell: &BenchCell) {
    let colour = match cell.is_met {
        Some(true) => MET_COLOUR,
        Some(false) => MISSED_COLOUR,
        None => UNJUDGED_COLOUR,
    };
    let title = format!(
        "{} {}: {} of {}",
        cell.row,
        cell.state.name(),
        number(cell.ratio, 2),
        cell.best.unwrap_or("none")
    );
    let title = format!("<title>{}</title>", escaped(&title));
    match cell.ratio {
        Some(ratio) => {
            let x = ratio_x(left, ratio);
            append_line(
                svg,
                &format!(
                    "<circle cx=\"{x:.1}\" cy=\"{y}\" r=\"4\" fill=\"{colour}\">{title}</circle>"
                ),
            );
        }
        None => {
            let x = left + FIELD_PAD;
            append_line(
                svg,
                &format!(
                    "<path d=\"M{} {}l6 6m0 -6l-6 6\" stroke=\"{colour}\" stroke-width=\"2\">{title}</path>",
                    x - 3.0,
                    y - 3.0
                ),
            );
        }
    }
}

/// Vertical middle of the row with this index, in pixels.
fn line_middle(row_index: usize) -> f64 {
    TOP + LINE_HEIGHT * (row_index as f64 + 0.5)
}

/// Horizontal position of a ratio, in pixels, in the field that begins at `left`. The scale is
/// logarithmic, with 1 in its middle. A ratio beyond an end of the scale is drawn there.
fn ratio_x(left: f64, ratio: f64) -> f64 {
    let share = (ratio.clamp(1.0 / RATIO_MAX, RATIO_MAX).ln() / RATIO_MAX.ln() + 1.0) / 2.0;
    left + FIELD_PAD + share * (FIELD_WIDTH - 2.0 * FIELD_PAD)
}

/// Appends an element and a line end.
fn append_line(svg: &mut String, element: &str) {
    writeln!(svg, "{element}").expect("a text takes whatever is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field that begins at 100 pixels. Its scale goes from 1/16 to 16.
    #[test]
    fn ratio_of_one_is_drawn_in_the_middle_and_extremes_at_the_edge() {
        let (left, right) = (100.0 + FIELD_PAD, 100.0 + FIELD_WIDTH - FIELD_PAD);
        assert_eq!(ratio_x(100.0, 1.0), (left + right) / 2.0);
        assert_eq!((ratio_x(100.0, 1e-9), ratio_x(100.0, 1e9)), (left, right));
        // A quarter is halfway to a sixteenth.
        assert!((ratio_x(100.0, 0.25) - (3.0 * left + right) / 4.0).abs() < 1e-9);
    }
}
