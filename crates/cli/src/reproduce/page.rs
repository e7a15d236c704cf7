//! Published tables as an HTML page.

use readpath_eval::reproduce::{Grid, ReproducedTable};

use super::figures_table;
use crate::html::axes::{Axis, PlotArea, format_number};
use crate::html::bars::{self, ChartBar};
use crate::html::lines::{self, ChartLine, DASHED};
use crate::html::{Page, colours};

/// Height of the plot area of a grid, in pixels.
const GRID_HEIGHT: f64 = 300.0;

/// Page with a picture for each table, and the READs counted at a server as notes.
pub fn reproduction_page(tables: &[ReproducedTable], counted: Option<String>) -> Page {
    let lead = "Figures published in the classic threads, compared with the simulation of the \
        same workload on the same machine.";
    let mut page = Page::new("Published and modelled figures", lead);
    for table in tables {
        page.heading(&format!("Table {}: {}", table.table, table.title));
        page.paragraph(&format!("Machine: {}", table.machine));
        let svg = match &table.grid {
            Some(grid) => grid_chart(table, grid),
            None => bar_chart(table),
        };
        let caption = match &table.grid {
            Some(_) => format!("In {}; published in dashes, modelled drawn through.", table.unit),
            None => format!("In {}; orange published, blue modelled.", table.unit),
        };
        page.picture(&caption, &svg);
        page.table(&format!("In {}", table.unit), &figures_table(table));
    }
    if let Some(counted) = counted {
        page.heading("READs on the wire");
        page.notes(counted.lines().map(str::to_owned));
    }
    page
}

/// Bar chart with the published figure of each row, if there is one, and the modelled figure.
fn bar_chart(table: &ReproducedTable) -> String {
    let bars: Vec<ChartBar> = table
        .rows
        .iter()
        .flat_map(|row| {
            let label = format!("{} ({})", row.label, row.policies);
            let published = row
                .published
                .map(|value| ChartBar::new(&format!("{label}, published"), value, colours::ORANGE));
            published.into_iter().chain([ChartBar::new(&label, row.modelled, colours::BLUE)])
        })
        .collect();
    // The unit is in the caption of the picture.
    let no_unit = "";
    bars::draw(&table.title, no_unit, &bars)
}

/// Line chart of a grid: published lines dashed, modelled ones solid.
fn grid_chart(table: &ReproducedTable, grid: &Grid) -> String {
    let points = |figures: &[Option<f64>]| -> Vec<(f64, f64)> {
        let pairs = grid.columns.iter().zip(figures);
        pairs.filter_map(|(&column, figure)| Some((f64::from(column), (*figure)?))).collect()
    };
    let mut drawn = Vec::new();
    for (series, row) in grid.rows.iter().enumerate() {
        let modelled: Vec<Option<f64>> = row.modelled.iter().copied().map(Some).collect();
        for (kind, figures) in [("published", &row.published), ("modelled", &modelled)] {
            let name = format!("{} ({}), {kind}", row.label, row.policies);
            let dashes = if kind == "published" { DASHED } else { "" };
            drawn.push(ChartLine {
                name,
                series,
                dashes,
                // Points are joined by straight lines.
                has_steps: false,
                points: points(figures),
            });
        }
    }
    drawn.retain(|line| !line.points.is_empty());
    let all_points = || drawn.iter().flat_map(|line| &line.points);
    let x_max = all_points().map(|point| point.0).fold(0.0, f64::max);
    let y_max = all_points().map(|point| point.1).fold(0.0, f64::max);
    let plot_area = PlotArea::new(
        Axis::linear(&grid.over, x_max, format_number),
        Axis::linear(&table.unit, y_max, format_number),
        GRID_HEIGHT,
    );
    lines::draw(&table.title, &plot_area, &drawn)
}
