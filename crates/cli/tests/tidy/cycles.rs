//! Source files that use each other in a cycle, in every crate.
//!
//! A file uses a module by a path that begins with `crate`, `super` or `self`. A file and the files
//! of its folder belong together: uses of a parent module do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::layers::{Uses, reached};
use super::{root, sources};

/// Groups of files in a cycle, as crate and file. The list may only become shorter.
const CYCLES: [&[&str]; 1] =
    [&["dst/disk", "dst/memory", "dst/network", "dst/server", "dst/world"]];

/// Files of a crate by module path, with the code of each. Tests are left out.
fn modules(source: &Path) -> BTreeMap<String, String> {
    let mut modules = BTreeMap::new();
    for file in sources::files(source, &[".rs"], &[]) {
        let path = file.strip_prefix(source).unwrap().with_extension("");
        let path = path.to_string_lossy().into_owned();
        if path.contains("tests") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines = code.lines().map(|line| line.split("//").next().unwrap());
        let name = if ["lib", "main"].contains(&&*path) { String::new() } else { path };
        modules.insert(name, lines.collect::<Vec<_>>().join("\n"));
    }
    modules
}

/// All paths of a use tree such as `a::{b, c::{d, e}}`.
fn expand(prefix: &str, tree: &str) -> Vec<String> {
    let Some(start) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap();
        return vec![format!("{prefix}{}", path.trim())];
    };
    let prefix = format!("{prefix}{}", tree[..start].trim());
    let end = tree.rfind('}').unwrap_or(tree.len());
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in tree[start + 1..end].chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match letter {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().unwrap().push(letter),
        }
    }
    parts
        .iter()
        .filter(|part| !part.trim().is_empty())
        .flat_map(|part| expand(&prefix, part))
        .collect()
}

/// Paths in the code that begin with `crate`, `super` or `self`.
fn paths(code: &str) -> Vec<String> {
    let is_path =
        |path: &str| ["crate::", "super::", "self::"].iter().any(|it| path.starts_with(it));
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let tree = code[at + 4..].split(';').next().unwrap();
        if is_path(tree) {
            paths.extend(expand("", tree));
        }
    }
    let is_name = |it: char| it.is_alphanumeric() || "_:".contains(it);
    paths.extend(code.split(|it| !is_name(it)).filter(|path| is_path(path)).map(str::to_owned));
    paths
}

/// The module that a path of module `from` names: the longest that exists.
fn named<'a>(path: &str, from: &str, known: &'a BTreeMap<String, String>) -> Option<&'a String> {
    let mut base: Vec<&str> = from.split('/').filter(|part| !part.is_empty()).collect();
    let mut parts = path.split("::").map(str::trim).peekable();
    if parts.next_if_eq(&"crate").is_some() {
        base.clear();
    }
    let _ = parts.next_if_eq(&"self");
    while parts.next_if_eq(&"super").is_some() {
        base.pop();
    }
    let own_length = base.len();
    base.extend(parts);
    (own_length.max(1)..=base.len())
        .rev()
        .find_map(|length| known.get_key_value(&base[..length].join("/")).map(|(name, _)| name))
}

/// Uses between the files of a crate, without uses of a parent by its parts.
fn uses(modules: &BTreeMap<String, String>) -> Uses {
    let used_by = |(name, code): (&String, &String)| {
        let paths = paths(code);
        let used = paths.iter().filter_map(|path| named(path, name, modules));
        let is_parent = |used: &&String| used.is_empty() || name.starts_with(&format!("{used}/"));
        let used = used.filter(|used| *used != name && !is_parent(used)).cloned().collect();
        (name.clone(), used)
    };
    modules.iter().map(used_by).collect()
}

/// Groups of files that reach each other.
fn cycles(uses: &Uses) -> BTreeSet<Vec<String>> {
    let reach: Uses = uses.keys().map(|name| (name.clone(), reached(name, uses))).collect();
    let is_cyclic = |name: &&String| reach[*name].contains(*name);
    let group = |name: &String| {
        reach[name].iter().filter(|other| reach[*other].contains(name)).cloned().collect()
    };
    uses.keys().filter(is_cyclic).map(group).collect()
}

#[test]
fn no_file_joins_or_starts_a_cycle() {
    let mut found = BTreeSet::new();
    for folder in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = folder.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let groups = cycles(&uses(&modules(&folder.join("src"))));
        found.extend(
            groups
                .into_iter()
                .map(|group| group.iter().map(|file| format!("{name}/{file}")).collect::<Vec<_>>()),
        );
    }
    let known: BTreeSet<Vec<String>> =
        CYCLES.iter().map(|group| group.iter().map(|&file| file.to_owned()).collect()).collect();
    assert_eq!(found, known, "files that use each other in a cycle");
}

#[test]
fn cycle_check_finds_a_cycle_of_nested_uses() {
    let modules = [
        ("a", "use crate::{b::X, c};"),
        ("b", "fn f() { super::d::e::g() }"),
        ("c", "use super::a::part::Y;"),
        ("a/part", "use super::Z;"),
        ("d/e", "use crate::b::X;"),
    ];
    let modules = modules.map(|(name, code)| (name.to_owned(), code.to_owned())).into();
    let found: Vec<_> = cycles(&uses(&modules)).into_iter().collect();
    assert_eq!(found, [["b", "d/e"]]);
}
