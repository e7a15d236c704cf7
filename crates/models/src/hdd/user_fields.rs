//! Fields of a drive's description that the user sets on the command line: `hdd,rpm=15000`,
//! `hdd,drive=sata,cache.segments=8`.
//!
//! The key is the full path of a field in the description, or its last word if that is unambiguous.
//! A field that the description omits needs its full path. The value replaces the one in the
//! description, with the same unit and bounds.

use readpath_core::policy::{Spec, SpecError};

use crate::fields::{FieldBlock, FieldValue, NamedValue};

/// Sets in `root` every field that `spec` names, except the keys in `spec_keys`. The source of such
/// a field becomes `given`.
///
/// # Errors
/// Fails when more than one field matches, and on a non-number for a numeric field. Without a match
/// it fails unless the key is a full path into an existing block, which adds the field. Fails for a
/// list or a block of the description.
pub fn set_fields(
    root: &mut FieldBlock,
    spec: &Spec,
    spec_keys: &[&'static str],
) -> Result<(), SpecError> {
    let mut paths = Vec::new();
    list_paths(root, "", &mut paths);
    for (key, value) in &spec.parameters {
        if spec_keys.contains(&key.as_str()) {
            continue;
        }
        let ends_with_key = |path: &&String| {
            path.strip_suffix(key.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let matching_paths: Vec<&String> = paths.iter().filter(ends_with_key).collect();
        match matching_paths.as_slice() {
            [path] => set_field(root, path, spec, key, value)?,
            [] if has_field(root, key) => {
                let expected = "a field with one value: lists and blocks are only set in a \
                                description of one's own (toml=FILE)";
                return Err(value_error(spec, key, value, expected.to_owned()));
            }
            // The guard itself adds the field, if its block exists.
            [] if add_field(root, key, value) => {}
            [] => {
                let mut known_keys = spec_keys.to_vec();
                known_keys.push("any field of its description (`readpath devices hdd`)");
                let (name, key) = (spec.name.clone(), key.clone());
                return Err(SpecError::UnknownParameter { name, key, known: known_keys });
            }
            paths => {
                let paths: Vec<&str> = paths.iter().map(|path| path.as_str()).collect();
                let expected = format!("the field in full, one of {}", paths.join(", "));
                return Err(value_error(spec, key, value, expected));
            }
        }
    }
    Ok(())
}

/// Appends the full paths of all single-valued fields to `paths`. Lists cannot be set on the
/// command line. `prefix` is the block's path with a final dot, and empty for the root.
fn list_paths(block: &FieldBlock, prefix: &str, paths: &mut Vec<String>) {
    for field in &block.fields {
        let path = format!("{prefix}{}", field.key);
        match &field.value {
            FieldValue::Block(inner) => list_paths(inner, &format!("{path}."), paths),
            FieldValue::Number(_) | FieldValue::Text(_) => paths.push(path),
            FieldValue::List(_) => {}
        }
    }
}

/// Splits a path into its first key and the path below it, if any.
fn split_path(path: &str) -> (&str, Option<&str>) {
    path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)))
}

/// Returns true if the description has a field with this full path.
fn has_field(root: &FieldBlock, path: &str) -> bool {
    let (first, rest) = split_path(path);
    let field = root.fields.iter().find(|field| field.key == first);
    field.is_some_and(|field| match (&field.value, rest) {
        (_, None) => true,
        (FieldValue::Block(block), Some(rest)) => has_field(block, rest),
        (_, Some(_)) => false,
    })
}

/// Adds a field that the description omits, with its full path and the text of its value. Returns
/// false if the path has no block or the block does not exist. The field name is checked later,
/// when the drive is built: a field that its block does not read is an error.
fn add_field(root: &mut FieldBlock, path: &str, text: &str) -> bool {
    let Some((first, rest)) = path.split_once('.') else { return false };
    let Some(field) = root.fields.iter_mut().find(|field| field.key == first) else { return false };
    let (line, FieldValue::Block(block)) = (field.line, &mut field.value) else { return false };
    if rest.contains('.') {
        return add_field(block, rest, text);
    }
    let value = text.parse().map_or_else(|_| FieldValue::Text(text.to_owned()), FieldValue::Number);
    block.fields.push(NamedValue::new(rest.to_owned(), line, value, Some("given".to_owned())));
    true
}

/// Replaces the value of the field at `path`, relative to `block`, by `text`. Fails if the field is
/// a number and `text` is none. `spec` and `key` are only for the error.
fn set_field(
    block: &mut FieldBlock,
    path: &str,
    spec: &Spec,
    key: &str,
    text: &str,
) -> Result<(), SpecError> {
    let (first, rest) = split_path(path);
    let field = block.fields.iter_mut().find(|field| field.key == first);
    let field = field.expect("the path was listed from this block");
    match (&mut field.value, rest) {
        (FieldValue::Block(inner), Some(rest)) => return set_field(inner, rest, spec, key, text),
        (FieldValue::Number(number), _) => {
            let expected = || format!("a number, as in {path}={number}");
            *number = text.parse().map_err(|_| value_error(spec, key, text, expected()))?;
        }
        (value, _) => *value = FieldValue::Text(text.to_owned()),
    }
    field.source = Some("given".to_owned());
    Ok(())
}

/// Creates the error for an invalid value of `key`.
fn value_error(spec: &Spec, key: &str, value: &str, expected: String) -> SpecError {
    let (name, key, value) = (spec.name.clone(), key.to_owned(), value.to_owned());
    SpecError::BadValue { name, key, value, expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hdd::load::{drive_of, parameters};

    /// Parses a valid device text.
    fn spec(text: &str) -> Spec {
        Spec::parse(text).unwrap()
    }

    #[test]
    fn parameter_is_set_by_its_last_word_or_its_full_name() {
        for text in ["hdd,rpm=15000", "hdd,mechanics.rpm=15000"] {
            let drive = drive_of(&spec(text)).unwrap();
            assert!((drive.mechanics.rpm - 15_000.0).abs() < 1e-9, "{text}");
            let rpm = parameters(&spec(text)).unwrap();
            let rpm = rpm.iter().find(|parameter| parameter.name == "mechanics.rpm").unwrap();
            assert_eq!((rpm.value.as_str(), rpm.source.as_str()), ("15000", "given"));
        }
        assert!(drive_of(&spec("hdd,drive=sata,cache.segments=8,rpm=5400")).is_ok());
        // The built-in description has no such field.
        let with_added_field = drive_of(&spec("hdd,mechanics.zero_latency_read=1")).unwrap();
        assert!(with_added_field.mechanics.zero_latency_read);
    }

    #[test]
    fn unknown_parameters_and_bad_values_are_refused() {
        let error = |text: &str| drive_of(&spec(text)).unwrap_err().to_string();
        let unknown = error("hdd,rpms=15000");
        assert!(unknown.starts_with("`hdd` has no parameter `rpms`; it takes: drive"), "{unknown}");
        assert!(error("hdd,rpm=fast").contains("a number, as in rpm=10000"));
        assert!(error("hdd,rpm=0").contains("rpm"));
        assert!(error("hdd,mechanics.rpms=9").contains("no field of this block"));
        for key in ["geometry", "geometry.even_zones"] {
            assert!(error(&format!("hdd,{key}=9")).contains("lists and blocks"), "{key}");
        }
        assert!(error("hdd,pm=15000").contains("no parameter `pm`"), "whole words only");
    }
}
