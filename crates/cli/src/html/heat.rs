//! Heat map of ratios. The colour shows the direction from 1, and its strength the distance.

use super::escaped;

/// Heat map: rows, columns and cells.
#[derive(Clone, Debug, Default)]
pub struct HeatMap {
    /// Names of the rows, from the top.
    pub rows: Vec<String>,
    /// Names of the columns, from the left.
    pub columns: Vec<String>,
    /// Cells of the map, in any order.
    pub cells: Vec<HeatCell>,
}

/// Ratio in a cell. Several ratios with the same row and column are drawn side by side.
#[derive(Clone, Debug)]
pub struct HeatCell {
    /// Index of its row.
    pub row: usize,
    /// Index of its column.
    pub column: usize,
    /// Ratio; 1 is even.
    pub ratio: f64,
    /// Text that is shown when the pointer is over the cell.
    pub tooltip: String,
}

/// Height of a row, in pixels.
const ROW_HEIGHT: f64 = 18.0;
/// Height of the column names, in pixels.
const HEADER_HEIGHT: f64 = 92.0;
/// Width of the row names and all columns together, in pixels, while the next bounds allow it.
const MAP_WIDTH: f64 = 900.0;
/// Smallest width of a column, in pixels.
const COLUMN_WIDTH_MIN: f64 = 24.0;
/// Largest width of a column, in pixels.
const COLUMN_WIDTH_MAX: f64 = 64.0;
/// Estimated width of a character of a row's name, in pixels.
const CHARACTER_WIDTH: f64 = 7.4;
/// Factor from 1 at which the colour is strongest. Chosen by eye.
const FULL_COLOUR_FACTOR: f64 = 2.0;

/// Draws the map as an SVG element, with column names above, row names at the left and a legend.
/// `label` is its title for screen readers. Literal numbers are distances of texts and squares in
/// pixels.
pub fn draw(label: &str, map: &HeatMap) -> String {
    let name_chars_max = map.rows.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let left = 16.0 + CHARACTER_WIDTH * name_chars_max as f64;
    let column_width = ((MAP_WIDTH - left) / map.columns.len().max(1) as f64)
        .clamp(COLUMN_WIDTH_MIN, COLUMN_WIDTH_MAX);
    // The names of the last columns lean to the right, and the legend needs 600 pixels.
    let (width, height) = (
        (left + column_width * map.columns.len() as f64 + 60.0).max(600.0),
        HEADER_HEIGHT + ROW_HEIGHT * map.rows.len() as f64 + 34.0,
    );
    let mut svg = format!(
        "<svg class=\"plot\" role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\">\n<title>{0}</title>\n",
        escaped(label)
    );
    // Names of the columns above and of the rows to the left, then the squares.
    for (index, name) in map.columns.iter().enumerate() {
        let column_middle = left + column_width * (index as f64 + 0.5);
        svg += &format!(
            "<text transform=\"translate({:.1} {:.0}) rotate(-40)\">{}</text>\n",
            column_middle - 3.0,
            HEADER_HEIGHT - 8.0,
            escaped(name)
        );
    }
    for (index, name) in map.rows.iter().enumerate() {
        svg += &format!(
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\n",
            left - 8.0,
            HEADER_HEIGHT + ROW_HEIGHT * index as f64 + 13.0,
            escaped(name)
        );
    }
    for (index, cell) in map.cells.iter().enumerate() {
        let is_same_field =
            |other: &&HeatCell| (other.row, other.column) == (cell.row, cell.column);
        // Cells with the same row and column share the width of the field.
        let cell_count = map.cells.iter().filter(is_same_field).count();
        let index_in_field = map.cells[..index].iter().filter(is_same_field).count();
        let cell_width = (column_width - 2.0) / cell_count as f64;
        let field_left = left + column_width * cell.column as f64 + 1.0;
        let x = field_left + cell_width * index_in_field as f64;
        let y = HEADER_HEIGHT + ROW_HEIGHT * cell.row as f64 + 1.0;
        svg += &format!(
            "{}<title>{}</title></rect></g>\n",
            open_square(x, y, cell_width - 0.5, cell.ratio),
            escaped(&cell.tooltip)
        );
    }
    svg + &legend(height) + "</svg>\n"
}

/// Opening tags of a square in the colour of `ratio`: a grey square, and over it one whose opacity
/// grows with the distance of the ratio from 1. `x` and `y` are its upper left corner, in pixels.
/// The caller adds a tooltip and closes the tags.
fn open_square(x: f64, y: f64, width: f64, ratio: f64) -> String {
    // On a logarithmic scale; the minimum avoids the logarithm of 0.
    let strength = (ratio.max(1e-9).ln() / FULL_COLOUR_FACTOR.ln()).clamp(-1.0, 1.0);
    let class = if strength < 0.0 { "below" } else { "above" };
    let height = ROW_HEIGHT - 2.0;
    let shape = format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.0}\"");
    // The exponent below 1 makes ratios near 1 stand out. Chosen by eye.
    format!(
        "<g><rect class=\"even\" {shape}/><rect class=\"{class}\" {shape} fill-opacity=\"{:.2}\">",
        strength.abs().powf(0.7)
    )
}

/// Legend of the colours below the map. `height` is the height of the picture in pixels, as are the
/// literal distances.
fn legend(height: f64) -> String {
    let mut text = String::new();
    for (number, (ratio, name)) in [
        (0.5, "½ or less"),
        (0.8, "0.8"),
        (0.95, "0.95"),
        (1.0, "1"),
        (1.25, "1.25"),
        (2.0, "2 or more"),
    ]
    .into_iter()
    .enumerate()
    {
        let x = 12.0 + 92.0 * number as f64;
        let y = height - 24.0;
        text += &open_square(x, y, 14.0, ratio);
        text += &format!(
            "</rect></g><text class=\"faint\" x=\"{:.0}\" y=\"{:.0}\">{name}</text>\n",
            x + 19.0,
            y + 13.0
        );
    }
    text
}
