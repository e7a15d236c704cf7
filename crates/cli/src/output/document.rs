//! JSON documents on standard output. Renamed keys are printed under both names for one version.

use serde::Serialize;
use serde_json::Value;

use crate::exit::CommandResult;
use crate::output::print_plain;

/// Keys renamed in version 0.3.0: the present name, then the previous one. Version 0.4.0 prints
/// only new keys.
const RENAMED_KEYS: [(&str, &str); 4] = [
    ("eviction", "reclaim"),
    ("policies", "laws"),
    ("baselines", "rivals"),
    ("policy_pages", "law_pages"),
];

/// Prints a document, indented, with the previous names of renamed keys.
///
/// # Errors
/// Fails if standard output cannot be written. A closed pipe is no error.
pub fn print_document<T: Serialize>(document: &T) -> CommandResult {
    let mut value = serde_json::to_value(document).expect("documents are plain data");
    add_previous_keys(&mut value);
    let text = serde_json::to_string_pretty(&value).expect("documents are plain data");
    print_plain(&format!("{text}\n"))
}

/// Adds a copy of each renamed key under its previous name, behind all other keys of its object.
fn add_previous_keys(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(add_previous_keys),
        Value::Object(fields) => {
            fields.values_mut().for_each(add_previous_keys);
            for (key, previous) in RENAMED_KEYS {
                if let Some(copy) = fields.get(key).cloned() {
                    fields.insert(previous.to_owned(), copy);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamed_keys_are_printed_under_both_names_at_any_depth() {
        let mut value = serde_json::json!({
            "results": [{"eviction": "lru", "misses": 3, "baselines": [{"eviction": "arc"}]}],
        });
        add_previous_keys(&mut value);
        let expected = r#"{"results":[{"eviction":"lru","misses":3,"baselines":[{"eviction":"arc","reclaim":"arc"}],"reclaim":"lru","rivals":[{"eviction":"arc","reclaim":"arc"}]}]}"#;
        assert_eq!(value.to_string(), expected);
    }
}
