//! Matrix as text: a table for each state, the notes, and a summary.

use super::cells::{BenchCell, Figures, QueueSummary, StateSummary, fastest_queue};
use super::states::CacheState;
use crate::table::{Column, Table, mib, number};

/// Output of the run as text: a table for each state, the notes, and a sentence for each state.
pub fn results_text(cells: &[BenchCell], summaries: &[StateSummary], notes: &[String]) -> String {
    let mut text = String::new();
    for summary in summaries {
        text += &state_text(summary.state, cells);
    }
    for note in notes {
        text += &format!("{note}\n");
    }
    text += "\n";
    for summary in summaries {
        text += &summary_sentence(summary);
    }
    text
}

/// Table with one row per cell of one state. The columns are throughputs in MiB/s, ratios,
/// processor seconds, memory, and the reason of a missed goal. `ratio` and `of queue` are the time
/// of the fastest baseline or queue ÷ the library's time. `cpu ratio` is the reverse: the
/// library's processor time ÷ the baseline's. The columns of the queues, the last three, are left
/// out if no cell has been compared with one.
pub fn cells_table(rows: &[&BenchCell]) -> Table {
    let columns: [Column<&BenchCell>; 15] = [
        ("row", |cell| cell.row.clone()),
        ("readpath MiB/s", |cell| throughput(&cell.ours)),
        ("pread", |cell| throughput(&cell.pread)),
        ("mmap", |cell| throughput(&cell.mmap)),
        ("O_DIRECT", |cell| throughput(&cell.o_direct)),
        ("best", |cell| cell.best.unwrap_or("-").to_owned()),
        ("ratio", |cell| number(cell.ratio, 2)),
        ("cpu s", |cell| number(cell.ours.cpu_seconds, 3)),
        ("cpu ratio", |cell| number(cell.cpu_ratio, 2)),
        ("peak MiB", |cell| mib(cell.ours.peak_bytes)),
        ("read MiB", |cell| mib(cell.ours.device_bytes)),
        ("misses goal", |cell| miss_reason(cell)),
        ("queue", |cell| {
            fastest_queue(&cell.queues)
                .map_or_else(|| "-".to_owned(), |fastest| throughput(&fastest.figures))
        }),
        ("depth", |cell| {
            fastest_queue(&cell.queues)
                .map_or_else(|| "-".to_owned(), |fastest| fastest.depth.to_string())
        }),
        ("of queue", |cell| number(cell.queue_ratio, 2)),
    ];
    let queue_columns = 3;
    let has_queues = rows.iter().any(|cell| !cell.queues.is_empty());
    let column_count = columns.len() - if has_queues { 0 } else { queue_columns };
    let numbers_from = 1;
    Table::of(rows, &columns[..column_count], numbers_from)
}

/// Text of one state: title, table and caveats.
fn state_text(state: CacheState, cells: &[BenchCell]) -> String {
    let rows: Vec<&BenchCell> = cells.iter().filter(|cell| cell.state == state).collect();
    let table = cells_table(&rows);
    let mut text = format!("{}: {}\n\n{table}\n", state.name(), state.description());
    for cell in rows {
        if let Some(note) = &cell.note {
            text += &format!("{} {}: {note}\n", state.name(), cell.row);
        }
    }
    text + "\n"
}

/// Throughput in MiB/s. A leading `<` marks an aborted run, of which it is an upper bound.
fn throughput(figures: &Figures) -> String {
    let sign = if figures.is_lower_bound { "<" } else { "" };
    match figures.mib_per_s {
        Some(rate) => format!("{sign}{rate:.0}"),
        None => "-".to_owned(),
    }
}

/// Returns the reason for which a cell misses its goal; empty if it does not. `<` stands for the
/// ratio to the fastest baseline, which has its own column. The ratio of an aborted library run is
/// an upper bound: the goal is missed even where the bound reaches the minimum. `no figure`: the
/// library or the goal's own baseline has no completed run.
fn miss_reason(cell: &BenchCell) -> String {
    if cell.is_met != Some(false) {
        return String::new();
    }
    match (cell.judged_ratio, cell.goal_baseline) {
        (Some(ratio), _) if ratio >= cell.ratio_min => match cell.ours.is_lower_bound {
            true => "aborted".to_owned(),
            false => "processor time".to_owned(),
        },
        (Some(ratio), Some(baseline)) => format!("{ratio:.2} of {baseline}"),
        (Some(_), None) => "<".to_owned(),
        (None, _) => "no figure".to_owned(),
    }
}

/// Summary of a state in one sentence. A ratio is the time of the fastest baseline divided by the
/// time of the library; more is better.
pub fn summary_sentence(summary: &StateSummary) -> String {
    let minimum = match (summary.minimum, &summary.minimum_row) {
        (Some(ratio), Some(row)) => format!("{ratio:.2} ({row})"),
        _ => "-".to_owned(),
    };
    format!(
        "{}: {} cells, ratio to the fastest of three baselines: geometric mean {}, minimum \
            {minimum}; {} of {} miss the goal\n",
        summary.state.name(),
        summary.cells,
        number(summary.geometric_mean, 2),
        summary.missed_goals,
        summary.judged_cells,
    ) + &summary.queue.as_ref().map_or_else(String::new, queue_sentence)
}

/// Comparison with the fastest queue in one sentence.
fn queue_sentence(queue: &QueueSummary) -> String {
    let QueueSummary { cells, geometric_mean, minimum, minimum_row } = queue;
    format!(
        "{cells} cells, ratio to the fastest queue of a program that knows its reads beforehand \
            (O_DIRECT, without a cache): geometric mean {geometric_mean:.2}, minimum \
            {minimum:.2} ({minimum_row})\n"
    )
}
