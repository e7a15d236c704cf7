//! Policy matrix as an HTML page.

use readpath_eval::policy_matrix::{JudgedCell, MatrixSummary};

use super::{cells_table, policies_table, workloads_table};
use crate::html::Page;
use crate::html::heat::{self, HeatCell, HeatMap};

/// Page with a map of all cells, the tables, and the causes of losses. `sentences` summarize the
/// cells, and `policies` names the tested policies.
pub fn matrix_page(
    judged: &[JudgedCell],
    summary: &MatrixSummary,
    sentences: &[String],
    policies: &str,
) -> Page {
    let title = format!("{policies}, compared with the best classic policy of each cell");
    let mut page = Page::new(&title, &format!("{}.", sentences.join("; ")));
    page.heading("Throughput to that of the best baseline");
    let mut processes: Vec<u32> = judged.iter().map(|cell| cell.processes).collect();
    processes.sort_unstable();
    processes.dedup();
    let processes: Vec<String> = processes.iter().map(u32::to_string).collect();
    let caption = format!(
        "Above 1 (blue) it is faster than any fixed choice, below (red) slower. Side by side in a field: {} \
         processes. Point at a square for its figures.",
        processes.join(", ")
    );
    page.picture(&caption, &heat::draw(&title, &heat_map(judged)));
    page.heading("Cells");
    let cells: Vec<&JudgedCell> = judged.iter().collect();
    page.table("A row for each cell", &cells_table(&cells));
    let causes = cells
        .iter()
        .filter_map(|cell| Some(format!("{}: {}", cell.name(), cell.cause.as_ref()?.line)));
    page.notes(causes);
    page.heading("Workloads");
    let shows_all = true;
    page.table("Over all cells of each", &workloads_table(summary, shows_all));
    page.heading("One pair of policies everywhere");
    page.table("Its throughput ÷ that of the best of each cell", &policies_table(summary));
    page
}

/// Heat map with one row per workload and one column per device. A ratio is the throughput of the
/// tested policies divided by the best baseline's; each number of processes has one.
fn heat_map(judged: &[JudgedCell]) -> HeatMap {
    let mut map = HeatMap::default();
    let index_or_append = |names: &mut Vec<String>, name: &str| {
        names.iter().position(|other| other == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        })
    };
    for cell in judged {
        let row = index_or_append(&mut map.rows, &cell.workload);
        let column = index_or_append(&mut map.columns, &cell.device);
        let best = &cell.baselines[0];
        let tooltip = format!(
            "{}: {:.3}; {:.2} MiB/s, {} {:.2}",
            cell.name(),
            cell.ratio,
            cell.adaptive.mib_per_s,
            best.policies(),
            best.mib_per_s
        );
        map.cells.push(HeatCell { row, column, ratio: cell.ratio, tooltip });
    }
    map
}
