//! Files of the repository.

use std::path::{Path, PathBuf};

/// Files below `folder` with one of these endings, sorted. Folders with one of the `skipped` names,
/// and hidden ones, are left out. There are none below a folder that cannot be listed.
pub fn files(folder: &Path, endings: &[&str], skipped: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !skipped.contains(&name.as_str()) && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
