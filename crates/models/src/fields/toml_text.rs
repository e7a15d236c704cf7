//! Parses TOML into a tree of fields with line numbers.
//!
//! Any value can be written as `{ value = …, source = "…" }` to state its source. A boolean becomes
//! the number 0 or 1. All numbers are floating-point.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{FieldBlock, FieldValue, FileError, NamedValue};

/// Parses `text`, the contents of a TOML file, into a tree of fields. Errors name `file`, which is
/// not opened.
///
/// # Errors
/// Fails if the text is not TOML, with the line number; 0 if the TOML parser states no place.
pub fn parse(text: &str, file: &Path) -> Result<FieldBlock, FileError> {
    let file = file.display().to_string();
    let lines = LineOffsets::new(text);
    let table = DeTable::parse(text).map_err(|error| FileError {
        file: file.clone(),
        line: error.span().map_or(0, |span| lines.line_number(span.start)),
        field: String::new(),
        problem: error.message().to_owned(),
    })?;
    // The file's root table has no name.
    let (line, kind) = (1, "");
    Ok(convert_table(table.get_ref(), &file, line, kind, &lines))
}

/// Offsets of the line ends, for the conversion of offsets to line numbers.
struct LineOffsets(Vec<usize>);

impl LineOffsets {
    /// Collects the offsets of the line ends in a text.
    fn new(text: &str) -> LineOffsets {
        LineOffsets(text.match_indices('\n').map(|(offset, _)| offset).collect())
    }

    /// Returns the line number of a byte offset, counted from 1.
    fn line_number(&self, byte_offset: usize) -> usize {
        self.0.partition_point(|end| *end < byte_offset) + 1
    }
}

/// Converts a TOML table to a block of fields. `kind` is the key of the table, `line` its line in
/// `file`. `lines` gives each field its own line. In a table with a `value`, further keys and a
/// source that is no text become fields of their own, such as `depth.unit`, which no block reads.
fn convert_table(
    table: &DeTable<'_>,
    file: &str,
    line: usize,
    kind: &str,
    lines: &LineOffsets,
) -> FieldBlock {
    let mut unknown_keys = Vec::new();
    let named_values = table.iter().map(|(key, item)| {
        let field_line = lines.line_number(key.span().start);
        let name = key.get_ref().to_string();
        // A table with a `value` is the value of the field, with its source.
        let (item, source) = match item.get_ref() {
            DeValue::Table(pair) if pair.get("value").is_some() => {
                let source = pair.get("source").and_then(|text| text.get_ref().as_str());
                let is_known = |key: &str| key == "value" || key == "source" && source.is_some();
                for (extra_key, extra) in pair.iter().filter(|(key, _)| !is_known(key.get_ref())) {
                    let extra_line = lines.line_number(extra_key.span().start);
                    let extra_name = format!("{name}.{}", extra_key.get_ref());
                    let value =
                        convert_value(extra.get_ref(), file, extra_line, &extra_name, lines);
                    unknown_keys.push(NamedValue::new(extra_name, extra_line, value, None));
                }
                (&pair["value"], source.map(str::to_owned))
            }
            _ => (item, None),
        };
        let value = convert_value(item.get_ref(), file, field_line, &name, lines);
        NamedValue::new(name, field_line, value, source)
    });
    let mut fields: Vec<NamedValue> = named_values.collect();
    fields.extend(unknown_keys);
    FieldBlock {
        file: file.to_owned(),
        line,
        kind: kind.to_owned(),
        name: String::new(),
        fields,
        defaults: Vec::new().into(),
    }
}

/// Converts the TOML value `item` of the field `key`. `line` is its line in `file`; nested values
/// get their own line from `lines`.
fn convert_value(
    item: &DeValue<'_>,
    file: &str,
    line: usize,
    key: &str,
    lines: &LineOffsets,
) -> FieldValue {
    // A number that cannot be parsed stays a text, which the reader of the field refuses.
    let number_or_text =
        |text: &str| text.parse().map_or(FieldValue::Text(text.to_owned()), FieldValue::Number);
    match item {
        DeValue::String(text) => FieldValue::Text(text.to_string()),
        DeValue::Integer(digits) if digits.radix() == 10 => number_or_text(digits.as_str()),
        // The digits must be read in their radix: 0x10 is 16. A number beyond 64 bits stays text.
        DeValue::Integer(digits) => u64::from_str_radix(digits.as_str(), digits.radix())
            .map_or(FieldValue::Text(digits.to_string()), |parsed| {
                FieldValue::Number(parsed as f64)
            }),
        DeValue::Float(digits) => number_or_text(digits.as_str()),
        DeValue::Boolean(flag) => FieldValue::Number(f64::from(u8::from(*flag))),
        DeValue::Datetime(time) => FieldValue::Text(time.to_string()),
        DeValue::Array(items) => {
            let element = |element: &toml::Spanned<DeValue<'_>>| {
                let line = lines.line_number(element.span().start);
                (line, convert_value(element.get_ref(), file, line, key, lines))
            };
            FieldValue::List(items.iter().map(element).collect())
        }
        DeValue::Table(table) => FieldValue::Block(convert_table(table, file, line, key, lines)),
    }
}
