//! Names of the types that the sources define.

use std::collections::BTreeMap;
use std::path::Path;

/// Number of definitions by name, in the sources of all crates and of the Python package.
fn definitions(root: &Path) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let folders = std::fs::read_dir(root.join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("src"))
        .chain([root.join("python/src")]);
    for path in folders.flat_map(|folder| crate::files(&folder, &[".rs"])) {
        let text = std::fs::read_to_string(path).unwrap();
        for name in text.lines().filter_map(name) {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Name of the type that a line defines. An associated type of a trait is none: its name is given.
fn name(line: &str) -> Option<&str> {
    const ASSOCIATED: [&str; 6] = ["Output", "Item", "Target", "Error", "Err", "IntoIter"];
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let is_type = ["struct", "enum", "trait", "type"].contains(&words.next()?);
    let end = |letter: char| !(letter.is_alphanumeric() || letter == '_');
    let name = words.next()?.split(end).next()?;
    (is_type && name.starts_with(char::is_uppercase) && !ASSOCIATED.contains(&name)).then_some(name)
}

/// Number of distinct names, and of definitions.
pub fn counted(root: &Path) -> (usize, usize) {
    let counts = definitions(root);
    (counts.len(), counts.values().sum())
}

/// Names that are defined most often, with their numbers.
pub fn most_used(root: &Path) -> Vec<String> {
    let mut counts: Vec<(String, usize)> = definitions(root).into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    counts.into_iter().take(10).map(|(name, count)| format!("{name} ×{count}")).collect()
}
