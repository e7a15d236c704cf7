//! Matrix as an HTML page.

use super::cells::BenchCell;
use super::{BenchDocument, picture, tell};
use crate::html::Page;

/// Page with the picture, one table per state, and the notes.
pub fn matrix_page(document: &BenchDocument<'_>) -> Page {
    let BenchDocument { notes, summary, results, .. } = document;
    let title = document.title();
    let lead = "The same accesses by the library with default options, pread, mmap and O_DIRECT, \
        each in its own process. Ratio: time of the fastest of the three ÷ the library's; above \
        1 the library is faster.";
    let mut page = Page::new(&title, lead);
    let caption = "One line per row, one field per state. Point at a dot for its figures.";
    page.picture_on_white(caption, &picture::svg(results, summary, &title));
    page.notes(notes.iter().cloned());
    for summary in *summary {
        let rows: Vec<&BenchCell> =
            results.iter().filter(|cell| cell.state == summary.state).collect();
        page.heading(summary.state.name());
        page.paragraph(&tell::summary_sentence(summary));
        page.table(summary.state.description(), &tell::cells_table(&rows));
        page.notes(
            rows.iter().filter_map(|cell| Some(format!("{}: {}", cell.row, cell.note.as_ref()?))),
        );
    }
    page
}
