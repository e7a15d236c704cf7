//! Tables on standard output: text columns on the left, numeric columns on the right.
//!
//! In a terminal a table is fitted into its width, unless `--wide` is given. In a pipe or a file it
//! has all columns.

use std::fmt;
use std::io::IsTerminal;
use std::sync::OnceLock;

use readpath_sim::job::escaped;
use rustix::termios::tcgetwinsize;

/// Table with aligned columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Names of the columns.
    header: Vec<String>,
    /// Cells of each row, as many as the header has names.
    rows: Vec<Vec<String>>,
    /// Index of the first numeric column. Columns before it are texts.
    numbers_from: usize,
    /// True if columns that do not fit stand in further blocks, and none is left out.
    is_in_blocks: bool,
}

/// Column: its name, and a function that formats its cell of a row.
pub type Column<R> = (&'static str, fn(&R) -> String);

impl Table {
    /// Table of these rows. Columns from `numbers_from` on are right-aligned.
    pub fn of<R>(rows: &[R], columns: &[Column<R>], numbers_from: usize) -> Table {
        let header = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut table = Table::with_header(header, numbers_from);
        for row in rows {
            table.add_row(columns.iter().map(|(_, cell)| cell(row)).collect());
        }
        table
    }

    /// Empty table with a header known only at run time.
    pub fn with_header(header: Vec<String>, numbers_from: usize) -> Table {
        Table { header, rows: Vec::new(), numbers_from, is_in_blocks: false }
    }

    /// Adds a row with as many cells as the header. Names from a file may contain commands to the
    /// terminal, which are escaped.
    pub fn add_row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells.iter().map(|cell| escaped(cell)).collect());
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

    /// Shows all columns also where they do not fit, in blocks below each other.
    pub fn in_blocks(mut self) -> Table {
        self.is_in_blocks = true;
        self
    }

    /// Width of each column in characters.
    fn widths(&self) -> Vec<usize> {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        (0..self.header.len())
            .map(|column| lines().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect()
    }

    /// Replaces the texts of a column by shorter ones.
    pub fn shorten(&mut self, column: usize, shorten: impl Fn(&str) -> String) {
        for row in &mut self.rows {
            row[column] = shorten(&row[column]);
        }
    }

    /// Text of the table with lines of at most `columns_max` characters, if possible. If a line is
    /// longer, columns stand in further blocks (`is_in_blocks`), or the least ones are left out.
    pub fn fitted_text(&self, columns_max: usize) -> String {
        let widths = self.widths();
        let columns: Vec<usize> = (0..self.header.len()).collect();
        if line_width(&widths, &columns) <= columns_max {
            return self.aligned_lines(&widths, &columns);
        }
        match self.is_in_blocks {
            true => self.text_in_blocks(&widths, columns_max),
            false => self.without_least_columns(&widths, columns_max),
        }
    }

    /// Text of all columns, in blocks that repeat the columns of text.
    fn text_in_blocks(&self, widths: &[usize], columns_max: usize) -> String {
        let names: Vec<usize> = (0..self.numbers_from).collect();
        let mut blocks = vec![names.clone()];
        for column in self.numbers_from..self.header.len() {
            let block = blocks.last_mut().expect("the text has at least one block");
            block.push(column);
            // A block keeps at least one column of numbers, even if that is too wide.
            if line_width(widths, block) > columns_max && block.len() > names.len() + 1 {
                block.pop();
                blocks.push(names.iter().copied().chain([column]).collect());
            }
        }
        let blocks: Vec<String> =
            blocks.iter().map(|block| self.aligned_lines(widths, block)).collect();
        blocks.join("\n")
    }

    /// Text of the table with columns left out until it is at most `columns_max` characters wide.
    /// Empty columns go first, then texts that are equal in all rows, then the last numeric
    /// columns. The first column stays. In a table that is still wider, texts are broken into
    /// lines. Lines below the table give the equal texts and the names of the numeric columns left
    /// out. `widths` has the width of every column.
    fn without_least_columns(&self, widths: &[usize], columns_max: usize) -> String {
        let is_empty =
            |column: usize| self.rows.iter().all(|row| matches!(&*row[column], "" | "-"));
        let is_equal = |column: usize| {
            // An indented row is a part of the row above, and has only some of the columns.
            let whole_rows = || self.rows.iter().filter(|row| !row[0].starts_with(' '));
            let first = whole_rows().next().map(|row| &row[column]);
            whole_rows().count() > 1 && whole_rows().all(|row| Some(&row[column]) == first)
        };
        let mut shown: Vec<usize> = (0..self.header.len()).collect();
        // Texts of the columns left out because all rows have the same, and names of the numeric
        // ones.
        let (mut equal, mut hidden) = (Vec::new(), Vec::new());
        while line_width(widths, &shown) > columns_max {
            // The last columns are left out first.
            let candidates = || shown.iter().copied().skip(1).rev();
            let is_text = |column: &usize| *column < self.numbers_from;
            if let Some(column) = candidates().find(|column| is_empty(*column)) {
                shown.retain(|other| *other != column);
            } else if let Some(column) =
                candidates().filter(is_text).find(|column| is_equal(*column))
            {
                equal.insert(0, format!("{} {}", self.header[column], self.rows[0][column]));
                shown.retain(|other| *other != column);
            } else if let Some(column) = candidates().find(|column| !is_text(column)) {
                hidden.insert(0, self.header[column].clone());
                shown.retain(|other| *other != column);
            } else {
                break;
            }
        }
        let mut text = match line_width(widths, &shown) > columns_max {
            true => self.with_broken_texts(widths, &shown, columns_max),
            false => self.aligned_lines(widths, &shown),
        };
        if !equal.is_empty() {
            text += &format!("All rows: {}.\n", equal.join(", "));
        }
        if !hidden.is_empty() {
            let hidden = hidden.join(", ");
            text += &format!("Not shown: {hidden} (--wide shows them).\n");
        }
        text
    }

    /// Returns the lines of the columns `shown`, at most `columns_max` characters wide if possible.
    /// The widest columns of text become narrower, one character at a time, but never narrower than
    /// their longest word or [`TEXT_WIDTH_MIN`]. Longer cells are broken into several lines; the
    /// header is not. `widths` has the present width of every column.
    fn with_broken_texts(&self, widths: &[usize], shown: &[usize], columns_max: usize) -> String {
        let mut widths = widths.to_vec();
        let longest_word = |column: usize| {
            let words = self.rows.iter().flat_map(|row| row[column].split_whitespace());
            words.map(|word| word.chars().count()).max().unwrap_or(0).max(TEXT_WIDTH_MIN)
        };
        let width_min: Vec<usize> = (0..widths.len()).map(longest_word).collect();
        while line_width(&widths, shown) > columns_max {
            let texts = shown.iter().filter(|column| **column < self.numbers_from);
            let widest = texts
                .filter(|column| widths[**column] > width_min[**column])
                .max_by_key(|column| widths[**column]);
            let Some(&column) = widest else { break };
            widths[column] -= 1;
        }
        let mut wrapped_table = Table::with_header(self.header.clone(), self.numbers_from);
        for row in &self.rows {
            let parts: Vec<Vec<String>> = (0..row.len())
                .map(|column| match row[column].chars().count() > widths[column] {
                    true => wrap_words(&row[column], widths[column]),
                    false => vec![row[column].clone()],
                })
                .collect();
            let line_count = shown.iter().map(|&column| parts[column].len()).max().unwrap_or(0);
            for line in 0..line_count {
                let cell = |parts: &Vec<String>| parts.get(line).cloned().unwrap_or_default();
                wrapped_table.rows.push(parts.iter().map(cell).collect());
            }
        }
        let widths = wrapped_table.widths();
        wrapped_table.aligned_lines(&widths, shown)
    }

    /// Returns the header and the rows as lines. `widths` has the width of every column in
    /// characters, in which all its cells fit. `shown` has the indices of the columns to print.
    /// Columns of numbers align right.
    fn aligned_lines(&self, widths: &[usize], shown: &[usize]) -> String {
        let mut text = String::new();
        for line in std::iter::once(&self.header).chain(&self.rows) {
            let mut aligned = String::new();
            for &column in shown {
                let cell = &line[column];
                let pad = " ".repeat(widths[column] - cell.chars().count());
                let (left_pad, right_pad) = if column >= self.numbers_from {
                    (pad.as_str(), "")
                } else {
                    ("", pad.as_str())
                };
                aligned += &format!("{left_pad}{cell}{right_pad}  ");
            }
            text += aligned.trim_end();
            text.push('\n');
        }
        text
    }
}

/// Least width of a column of text that is broken into several lines, in characters. Chosen by eye.
const TEXT_WIDTH_MIN: usize = 12;

/// Width of the lines of these columns, with two spaces between columns.
fn line_width(widths: &[usize], shown: &[usize]) -> usize {
    shown.iter().map(|&column| widths[column] + 2).sum::<usize>().saturating_sub(2)
}

/// Breaks a paragraph into lines of at most `columns_max` characters, between words. A word of more
/// characters has a line of its own.
fn wrap_words(text: &str, columns_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns_max => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Breaks the lines of a text that are longer than `columns_max` characters. The parts of a line
/// have its indentation.
pub fn wrap_lines(text: &str, columns_max: usize) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches('\n');
        if content.chars().count() <= columns_max {
            out += line;
            continue;
        }
        let indent = &content[..content.len() - content.trim_start().len()];
        let content_columns = columns_max.saturating_sub(indent.len()).max(1);
        let parts = wrap_words(content, content_columns);
        let parts: Vec<String> = parts.iter().map(|part| format!("{indent}{part}")).collect();
        out += &parts.join("\n");
        out += &line[content.len()..];
    }
    out
}

/// Largest number of characters in a line of a table. Not set: any number.
static COLUMNS_MAX: OnceLock<usize> = OnceLock::new();

/// Fits all later tables into the terminal, if standard output is one and `is_wide` is false.
pub fn fit_terminal(is_wide: bool) {
    let output = std::io::stdout();
    if is_wide || !output.is_terminal() {
        return;
    }
    let size = tcgetwinsize(&output).map_or(0, |size| size.ws_col.into());
    // A terminal that does not report its size has 80 columns.
    let _ = COLUMNS_MAX.set(if size == 0 { 80 } else { size });
}

/// Largest number of characters in a line of output, if it is limited.
pub fn columns_max() -> Option<usize> {
    COLUMNS_MAX.get().copied()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fitted_text(columns_max().unwrap_or(usize::MAX)))
    }
}

/// Formats a text; `-` for `None`.
pub fn text_or_dash(value: Option<&String>) -> String {
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

    /// U+202E reverses the text direction in a terminal, and U+200B has no width.
    #[test]
    fn cells_show_hidden_characters_by_their_numbers() {
        let mut table = Table::with_header(vec!["name".to_owned()], 1);
        table.add_row(vec!["a\u{202e}b\u{200b}c".to_owned()]);
        assert_eq!(table.to_string(), "name\na\\u{202e}b\\u{200b}c\n");
    }

    /// Table of 42 characters with two text columns. One column is empty, and one text is the same
    /// in both rows.
    fn wide_table() -> Table {
        let header = ["storage", "policy", "MiB/s", "p99", "empty", "cpu s"];
        let mut table = Table::with_header(header.map(str::to_owned).into(), 2);
        for cells in
            [["hdd", "none", "8.5", "1 ms", "-", "0.2"], ["ssd", "none", "99", "2 ms", "-", "1"]]
        {
            table.add_row(cells.map(str::to_owned).into());
        }
        table
    }

    /// Widths: 42 characters for all columns, 35 without the empty one, and 27 without the equal
    /// one as well.
    #[test]
    fn narrow_table_leaves_out_empty_equal_and_last_columns() {
        let fitted = |columns_max| wide_table().fitted_text(columns_max);
        let all = "storage  policy  MiB/s   p99  empty  cpu s\n\
                   hdd      none      8.5  1 ms      -    0.2\n\
                   ssd      none       99  2 ms      -      1\n";
        assert_eq!((fitted(42), fitted(usize::MAX)), (all.to_owned(), all.to_owned()));
        let without_empty = "storage  policy  MiB/s   p99  cpu s\n\
                             hdd      none      8.5  1 ms    0.2\n\
                             ssd      none       99  2 ms      1\n";
        assert_eq!(fitted(41), without_empty);
        let without_equal = "storage  MiB/s   p99  cpu s\n\
                             hdd        8.5  1 ms    0.2\n\
                             ssd         99  2 ms      1\n\
                             All rows: policy none.\n";
        assert_eq!(fitted(34), without_equal);
        let least = "storage  MiB/s\nhdd        8.5\nssd         99\n\
                     All rows: policy none.\nNot shown: p99, cpu s (--wide shows them).\n";
        assert_eq!(fitted(14), least);
    }

    /// 30 characters fit two of the four numeric columns next to the text columns.
    #[test]
    fn blocks_repeat_the_text_columns_and_leave_out_none() {
        let table = wide_table().in_blocks();
        let blocks = "storage  policy  MiB/s   p99\n\
                      hdd      none      8.5  1 ms\n\
                      ssd      none       99  2 ms\n\
                      \n\
                      storage  policy  empty  cpu s\n\
                      hdd      none        -    0.2\n\
                      ssd      none        -      1\n";
        assert_eq!(table.fitted_text(30), blocks);
    }

    /// 28 characters: 6 for the names, 2 between the columns, and 20 for the text.
    #[test]
    fn long_text_is_broken_within_its_column() {
        let mut table = Table::with_header(vec!["name".to_owned(), "text".to_owned()], 9);
        table.add_row(vec!["a".to_owned(), "one two three four five six seven".to_owned()]);
        table.add_row(vec!["bcdefg".to_owned(), "eight".to_owned()]);
        let expected = "name    text\n\
                        a       one two three four\n        five six seven\n\
                        bcdefg  eight\n";
        assert_eq!(table.fitted_text(28), expected);
        assert_eq!(wrap_lines("  one two three\nshort\n", 9), "  one two\n  three\nshort\n");
    }
}
