//! Layers of the library: which module of `crates/io` uses which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{root, sources};

/// Lower layers of the library, from the bottom. A layer may use the layers before it.
const LOWER_LAYERS: [&str; 7] =
    ["os", "backend", "read_error", "target", "transfers", "storage", "nfs"];

/// Name of the module that has a path below `src`: its first part, or a part of the page cache.
fn module_of(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["page_cache", cache @ ("own" | "kernel" | "kernel_reads"), ..] => {
            format!("page_cache/{cache}")
        }
        [first, ..] => first.to_owned(),
        [] => String::new(),
    }
}

/// Modules of the library with the modules that they use. Tests are left out.
fn uses() -> Uses {
    let source = root().join("crates/io/src");
    let mut uses = Uses::new();
    for file in sources::files(&source, &[".rs"], &[]) {
        let path = file.strip_prefix(&source).unwrap().with_extension("");
        let path = path.to_string_lossy();
        if path == "lib" || path.contains("tests") {
            continue;
        }
        let used = uses.entry(module_of(&path)).or_default();
        used.extend(uses_of(&file));
    }
    let modules: BTreeSet<String> = uses.keys().cloned().collect();
    for (module, used) in &mut uses {
        used.retain(|used| used != module && modules.contains(used));
    }
    uses
}

/// Modules that a file names by a path from the crate's root.
fn uses_of(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|path| {
            let end = path.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
            module_of(&path[..end.unwrap_or(path.len())].replace("::", "/"))
        })
        .collect()
}

/// Modules with the modules that they use.
pub type Uses = BTreeMap<String, BTreeSet<String>>;

/// Modules that can be reached from a module by its uses.
pub fn reached(from: &str, uses: &Uses) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(module) = open.pop() {
        for used in &uses[&module] {
            if reached.insert(used.clone()) {
                open.push(used.clone());
            }
        }
    }
    reached
}

#[test]
fn lower_layers_of_the_library_use_only_layers_below() {
    let uses = uses();
    for (height, layer) in LOWER_LAYERS.iter().enumerate() {
        for used in &uses[*layer] {
            let is_below = LOWER_LAYERS[..height].contains(&used.as_str());
            assert!(is_below, "{layer} uses {used}, which is no layer below it");
        }
    }
}

#[test]
fn no_modules_of_the_library_use_each_other() {
    let uses = uses();
    assert!(uses.len() > 15, "the modules are found: {uses:?}");
    let cyclic: Vec<&String> =
        uses.keys().filter(|module| reached(module, &uses).contains(*module)).collect();
    assert_eq!(cyclic, [""; 0], "modules that use each other");
}
