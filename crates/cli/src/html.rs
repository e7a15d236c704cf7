//! `--html FILE`: the output of a command as one self-contained page.
//!
//! A page has headings, paragraphs, sortable tables and pictures. It refers to nothing outside, and
//! its own content security policy forbids it: no font, script or picture is fetched. External text
//! (names of files, jobs, devices) is escaped where it enters, here and in the pictures
//! ([`escaped`]). The address holds the order of a sorted table (`#sort=TABLE.COLUMN.descending`).

pub mod axes;
pub mod bars;
pub mod dots;
pub mod heat;
pub mod lines;
pub mod standalone;

use std::path::Path;

use crate::exit::{CommandResult, Failure};
use crate::output_file::write_results;
use crate::table::Table;

/// Numbers of the colours of bars, lines and rectangles, as page.css defines them.
pub mod colours {
    /// `--c0` of page.css.
    pub const BLUE: usize = 0;
    /// `--c1` of page.css.
    pub const ORANGE: usize = 1;
    /// `--c2` of page.css.
    pub const GREEN: usize = 2;
    /// `--c3` of page.css.
    pub const MAGENTA: usize = 3;
    /// `--c6` of page.css.
    pub const VIOLET: usize = 6;
    /// `--c7` of page.css, the last one.
    pub const GREY: usize = 7;
}

/// Builder of a page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Title of the window and the first heading.
    title: String,
    /// HTML of the content so far.
    body: String,
    /// Number of tables so far, which gives each table its id.
    tables: usize,
}

impl Page {
    /// Starts a page with a title and the paragraph `lead`, which describes it.
    pub fn new(title: &str, lead: &str) -> Page {
        let mut page = Page { title: title.to_owned(), body: String::new(), tables: 0 };
        page.paragraph(lead);
        page
    }

    /// Adds a heading.
    pub fn heading(&mut self, text: &str) {
        self.body += &format!("<h2>{}</h2>\n", escaped(text));
    }

    /// Adds a paragraph, unless the text is empty.
    pub fn paragraph(&mut self, text: &str) {
        if !text.is_empty() {
            self.body += &format!("<p>{}</p>\n", escaped(text));
        }
    }

    /// Adds a list of notes.
    pub fn notes(&mut self, notes: impl IntoIterator<Item = String>) {
        let items: String =
            notes.into_iter().map(|note| format!("<li>{}</li>\n", escaped(&note))).collect();
        if !items.is_empty() {
            self.body += &format!("<ul class=\"notes\">\n{items}</ul>\n");
        }
    }

    /// Adds a table under a caption. A row whose first cell is empty or begins with two spaces is a
    /// part of the row above, if there is one. Sorting moves it with that row. The attribute
    /// `data-key` is the number by which the script of the page sorts a cell; a cell without one is
    /// sorted as text.
    pub fn table(&mut self, caption: &str, table: &Table) {
        let table_number = self.tables;
        self.tables += 1;
        let mut text = format!(
            "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\">\n\
             <table class=\"sortable\" id=\"table-{table_number}\">\n<caption>{0}</caption>\n<thead><tr>",
            escaped(caption)
        );
        for (column, name) in table.header().iter().enumerate() {
            // The name is the text of the button that sorts by the column, so it is never empty.
            // Any word serves for a column without a name.
            let name = if name.is_empty() { "what" } else { name };
            let class_attribute = column_class(column, table);
            let name = escaped(name);
            text += &format!("<th scope=\"col\"{class_attribute}><button>{name}</button></th>");
        }
        text += "</tr></thead>\n";
        for (index, row) in table.rows().iter().enumerate() {
            // A part belongs to the table body of the row above.
            let is_part = index > 0
                && row.first().is_some_and(|cell| cell.is_empty() || cell.starts_with("  "));
            if !is_part {
                text += if index > 0 { "</tbody>\n<tbody>" } else { "<tbody>" };
            }
            text += if is_part { "<tr class=\"part\">" } else { "<tr>" };
            for (column, cell) in row.iter().enumerate() {
                let class_attribute = column_class(column, table);
                let key = sort_key(cell).map(|key| format!(" data-key=\"{key}\""));
                let (key, cell) = (key.unwrap_or_default(), escaped(cell.trim_start()));
                text += &format!("<td{class_attribute}{key}>{cell}</td>");
            }
            text += "</tr>\n";
        }
        if !table.rows().is_empty() {
            text += "</tbody>\n";
        }
        self.body += &text;
        self.body += "</table>\n</div>\n";
    }

    /// Adds a picture with a caption. `svg` is a drawing of [`bars`], [`lines`], [`dots`] or
    /// [`heat`].
    pub fn picture(&mut self, caption: &str, svg: &str) {
        self.figure("", caption, svg);
    }

    /// Adds a picture with fixed colours on a white background.
    pub fn picture_on_white(&mut self, caption: &str, svg: &str) {
        self.figure(" class=\"on-white\"", caption, svg);
    }

    /// Adds a picture with a caption. `class` is the attribute with its CSS class, or empty.
    fn figure(&mut self, class: &str, caption: &str, svg: &str) {
        self.body += &format!(
            "<figure{class}>\n<div class=\"wide\">\n{svg}</div>\n<figcaption>{}</figcaption>\n</figure>\n",
            escaped(caption)
        );
    }

    /// Returns the page as one HTML document, which contains its style sheet and its script.
    pub fn text(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
             {}</main>\n<footer>readpath {}</footer>\n<script>\n{}</script>\n</body>\n</html>\n",
            include_str!("html/page.css"),
            self.body,
            env!("CARGO_PKG_VERSION"),
            include_str!("html/page.js"),
            title = escaped(&self.title),
        )
    }

    /// Writes the page to a file, after the results in it are printed: see [`write_results`].
    pub fn write(&self, path: &Path) -> CommandResult {
        write_results(path, &self.text())
    }
}

/// Refuses a path that is a folder or lies in no existing folder, before minutes are spent on the
/// content of the file. Permissions are not checked. `None`, no requested file, is accepted.
pub fn check_output_folder(path: Option<&Path>) -> CommandResult {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        true => Err(Failure::usage_of(
            path.display(),
            "can't be written: it is a folder, or in none; name another file",
        )),
        false => Ok(()),
    }
}

/// Escapes a text for element content and for quoted attributes.
pub fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Attribute with the CSS class of a column: numeric columns are right-aligned. Empty for others.
fn column_class(column: usize, table: &Table) -> &'static str {
    if column >= table.numbers_from() { " class=\"number\"" } else { "" }
}

/// Sort key of a cell: its number, or a time in µs. A bound, marked by `<`, has the key of its
/// number. `None` for other text.
fn sort_key(cell: &str) -> Option<f64> {
    let cell = cell.trim().trim_start_matches('<');
    let (value, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let value: f64 = value.parse().ok().filter(|value: &f64| value.is_finite())?;
    match unit {
        "" | "us" => Some(value),
        "ms" => Some(value * 1e3),
        "s" => Some(value * 1e6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One hostile name enters the page as title, lead, caption, cell, heading, note and label.
    #[test]
    fn external_text_is_escaped_in_pages() {
        let name = "<script>alert('&\"')</script>";
        let mut page = Page::new(name, name);
        let mut table = Table::with_header(vec![name.to_owned(), "MiB/s".to_owned()], 1);
        table.add_row(vec![name.to_owned(), "1.5".to_owned()]);
        page.table(name, &table);
        page.heading(name);
        page.notes([name.to_owned()]);
        page.picture(name, &bars::draw(name, "MiB/s", &[bars::ChartBar::new(name, 1.0, 0)]));
        let text = page.text();
        assert!(!text.contains("alert('"), "{text}");
        assert_eq!(text.matches("<script>").count(), 1, "only the script of the page itself");
        // A caption is also the region's name, and a label is also a tooltip.
        assert!(
            text.matches("&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;").count() >= 9
        );
    }

    /// Durations are converted to microseconds; a `<` of an upper bound is ignored.
    #[test]
    fn sort_keys_are_cell_numbers_and_durations_in_one_unit() {
        assert_eq!(sort_key("12.50"), Some(12.5));
        assert_eq!(sort_key("2.98 ms"), Some(2_980.0));
        assert_eq!(sort_key("1.05 s"), Some(1_050_000.0));
        assert_eq!(sort_key("<240"), Some(240.0));
        assert_eq!((sort_key("-"), sort_key("ssd"), sort_key("4 KiB")), (None, None, None));
    }
}
