//! Tables on standard output: text columns on the left, numeric columns on the right.

use std::fmt;

/// Table with aligned columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// First numeric column.
    numbers_from: usize,
}

/// Column: its name, and a function that formats its cell of a row.
pub type Column<R> = (&'static str, fn(&R) -> String);

impl Table {
    /// Table of these rows. Columns from `numbers_from` on are right-aligned.
    pub fn of<R>(rows: &[R], columns: &[Column<R>], numbers_from: usize) -> Table {
        let header = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let cells = |row| columns.iter().map(|(_, cell)| cell(row)).collect();
        Table { header, rows: rows.iter().map(cells).collect(), numbers_from }
    }

    /// Empty table with a header known only at run time.
    pub fn with_header(header: Vec<String>, numbers_from: usize) -> Table {
        Table { header, rows: Vec::new(), numbers_from }
    }

    /// Adds a row with as many cells as the header.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells);
    }

    /// Names of the columns.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// Rows, in order. A row whose first cell begins with spaces is a part of the one above.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Index of the first numeric column.
    pub fn numbers_from(&self) -> usize {
        self.numbers_from
    }

    /// Width of each column in characters.
    fn widths(&self) -> Vec<usize> {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        (0..self.header.len())
            .map(|at| lines().map(|line| line[at].chars().count()).max().unwrap_or(0))
            .collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for line in std::iter::once(&self.header).chain(&self.rows) {
            let mut text = String::new();
            for (at, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                let (before, after) =
                    if at >= self.numbers_from { (pad.as_str(), "") } else { ("", pad.as_str()) };
                text += &format!("{before}{cell}{after}  ");
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Formats a text; `-` for `None`.
pub fn text(value: Option<&String>) -> String {
    value.map_or_else(|| "-".to_owned(), String::clone)
}

/// Formats a count; `-` for `None`.
pub fn count(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

/// Formats bytes in MiB with one decimal; `-` for `None`.
pub fn mib(bytes: Option<u64>) -> String {
    number(bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 1)
}

/// Formats a number with `decimals` decimals; `-` for `None`.
pub fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Formats a time in microseconds with the unit that suits it; `-` for `None`.
pub fn duration(us: Option<f64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us < 1_000.0 => format!("{us:.1} us"),
        Some(us) if us < 1_000_000.0 => format!("{:.2} ms", us / 1e3),
        Some(us) => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_text_left_and_numbers_right() {
        let rows = [("hdd", Some(8.456)), ("a", Some(1234.0)), ("b", None)];
        let columns: [Column<(&str, Option<f64>)>; 2] =
            [("storage", |row| row.0.to_owned()), ("MiB/s", |row| number(row.1, 1))];
        let table = Table::of(&rows, &columns, 1);
        assert_eq!(
            table.to_string(),
            "storage   MiB/s\nhdd         8.5\na        1234.0\nb             -\n"
        );
    }
}
