//! Tables on standard output: text columns, numbers to the right.

use std::fmt;

/// A table that is printed in aligned columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns from this one on hold numbers.
    numbers_from: usize,
}

/// A column: its name, and its cell of a row.
pub type Column<R> = (&'static str, fn(&R) -> String);

impl Table {
    /// A table of these rows; columns from `numbers_from` on are set to the right.
    pub fn of<R>(rows: &[R], columns: &[Column<R>], numbers_from: usize) -> Table {
        let header = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let cells = |row| columns.iter().map(|(_, cell)| cell(row)).collect();
        Table { header, rows: rows.iter().map(cells).collect(), numbers_from }
    }

    /// An empty table, with a header that is not known beforehand.
    pub fn with_header(header: Vec<String>, numbers_from: usize) -> Table {
        Table { header, rows: Vec::new(), numbers_from }
    }

    /// Adds a row; it has as many cells as the header.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells);
    }

    /// The names of its columns.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// Its rows, in order. A row whose first cell begins with spaces is a part of the one above.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// From which column on they hold numbers.
    pub fn numbers_from(&self) -> usize {
        self.numbers_from
    }

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

/// A text; `-` where there is none.
pub fn text(value: Option<&String>) -> String {
    value.map_or_else(|| "-".to_owned(), String::clone)
}

/// A count; `-` where there is none.
pub fn count(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

/// Bytes in MiB with one decimal; `-` where there are none.
pub fn mib(bytes: Option<u64>) -> String {
    number(bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 1)
}

/// A number with so many decimals; `-` where there is none.
pub fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// A time in microseconds, in the unit that suits it; `-` where there is none.
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
    fn text_stands_left_and_numbers_right() {
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
