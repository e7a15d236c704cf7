//! Distinct names of a recording's files, for formats that name a file in each line.

use std::collections::BTreeMap;

/// Distinct names of a recording's files. Different files may have one path, one after the other.
#[derive(Default)]
pub(super) struct FileNames {
    /// Name of each file.
    names: BTreeMap<u32, String>,
    /// File of each name.
    files: BTreeMap<String, u32>,
}

impl FileNames {
    /// Names a file by its path. The number of the file follows if the name belongs to another one.
    /// A second path of the file replaces its first name.
    pub(super) fn add(&mut self, file: u32, path: String) {
        if let Some(old_name) = self.names.remove(&file) {
            self.files.remove(&old_name);
        }
        let mut name = path;
        while self.files.contains_key(&name) {
            name = format!("{name}#{file}");
        }
        self.files.insert(name.clone(), file);
        self.names.insert(file, name);
    }

    /// Names a file by its path with `_` for each white space. The number of the file follows a
    /// changed path, which could be the exact path of another file.
    pub(super) fn add_without_spaces(&mut self, file: u32, path: String) {
        let name = path.replace(char::is_whitespace, "_");
        self.add(file, if name == path { name } else { format!("{name}#{file}") });
    }

    /// Returns the name of a file, empty without one.
    pub(super) fn name(&self, file: u32) -> &str {
        self.names.get(&file).map_or("", String::as_str)
    }
}
