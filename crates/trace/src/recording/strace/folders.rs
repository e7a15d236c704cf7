//! Names that calls give relative to a folder: the folder of a descriptor, or the current one.

use std::collections::BTreeSet;

use super::StraceParser;
use super::syntax::{Call, Path, unquoted};

/// Argument that stands for the current folder of the process.
pub const CURRENT_FOLDER: &str = "AT_FDCWD";

/// Current folder of a process. The path of a folder below the one in which the text begins has no
/// slash in front, and that folder itself is empty. `None` after a change to an unknown folder.
#[derive(Clone, Debug)]
pub struct CurrentFolder(Option<String>);

impl Default for CurrentFolder {
    fn default() -> CurrentFolder {
        CurrentFolder(Some(String::new()))
    }
}

/// Returns the path of a name in a folder, absolute if the folder's path is. Parts `.` and `..` are
/// resolved by the text: links are not known.
fn path_below(folder: &str, name: &str) -> String {
    let root = if folder.starts_with('/') { "/" } else { "" };
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(name.split('/')) {
        match (part, parts.last()) {
            ("" | ".", _) => {}
            // Above the folder in which the text begins, the names of folders are unknown.
            ("..", None | Some(&"..")) if root.is_empty() => parts.push(part),
            ("..", _) => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    format!("{root}{}", parts.join("/"))
}

impl StraceParser {
    /// Changes the current folder of a process (chdir(2), fchdir(2)). Without effect if the call
    /// failed. Threads of a process have one current folder, as `CLONE_FS` comes with their
    /// `CLONE_FILES`.
    pub(super) fn import_folder_change(&mut self, task: u32, call: &Call<'_>) {
        if call.value() != Some(0) {
            return;
        }
        let folder = match call.name {
            "chdir" => self.path_of_name(task, CURRENT_FOLDER, &unquoted(call.argument(0))),
            _ => self.folder_path(task, call.argument(0)),
        };
        self.table_of_task(task).current_folder = CurrentFolder(folder);
    }

    /// Returns the path of a folder by its argument: `AT_FDCWD`, `3` or `3</path>`. `None` if the
    /// text has not shown it.
    fn folder_path(&mut self, task: u32, text: &str) -> Option<String> {
        if let Some((_, path)) = text.split_once('<') {
            return Path::parse(path).map(|path| path.name);
        }
        if text == CURRENT_FOLDER {
            return self.table_of_task(task).current_folder.0.clone();
        }
        let (_, open_file) = self.file_of_descriptor(task, text)?;
        Some(open_file.path.clone()).filter(|path| !path.is_empty())
    }

    /// Returns the path of a name in the folder of an argument. `None` in an unknown folder.
    pub(super) fn path_of_name(
        &mut self,
        task: u32,
        folder_text: &str,
        name: &str,
    ) -> Option<String> {
        if name.starts_with('/') {
            return Some(path_below("/", name));
        }
        let folder = self.folder_path(task, folder_text)?;
        Some(path_below(&folder, name))
    }

    /// Returns the number of files with relative paths that end an absolute path. The folder in
    /// which the text begins is unknown, so that both can be one file.
    pub(super) fn count_files_of_two_names(&self) -> u64 {
        let absolute: BTreeSet<&str> =
            self.files.keys().flat_map(|path| ends_of_absolute(path)).collect();
        let relative = self.files.keys().filter(|path| !path.starts_with('/'));
        // Folders above the first one are unknown.
        let ends = relative.map(|path| path.trim_start_matches("../"));
        ends.filter(|end| absolute.contains(*end)).count() as u64
    }
}

/// Ends of an absolute path, each behind one of its slashes. Without any for a relative path.
fn ends_of_absolute(path: &str) -> impl Iterator<Item = &str> {
    let slashes = path.match_indices('/').filter(|_| path.starts_with('/'));
    slashes.map(|(index, _)| &path[index + 1..])
}
