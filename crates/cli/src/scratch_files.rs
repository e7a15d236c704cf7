//! Scratch files of a run (`--create`, `check-kernel`, `bench`, incomplete outputs), removed at its
//! end. If the run was killed, the next run removes them, as recorded in the cleanup journal.

pub(crate) mod registry;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use readpath_record::cleanup::{CleanupKind, Record};
use readpath_record::notice;

use crate::exit::Failure;
use crate::progress::Interrupt;
use readpath_core::splitmix;
use registry::CREATED_PATHS;

/// Files created by this run, each with its record in the cleanup journal. Dropping the value
/// removes the files and the records.
#[derive(Debug, Default)]
pub struct ScratchFiles(Vec<(PathBuf, Record)>);

impl ScratchFiles {
    /// Creates a file of `bytes` bytes, filled with incompressible data from `seed`, and writes it
    /// back to storage. An interrupt is the failure `Interrupted`. A file that is not complete
    /// stays in this value, whose drop removes it.
    pub fn add(
        &mut self,
        path: &Path,
        bytes: u64,
        seed: u64,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let file = self.create_empty(path)?;
        let filled = fill(&file, bytes, seed, interrupt).and_then(|()| file.sync_all());
        filled.map_err(|error| fill_failure(path, &error))
    }

    /// Creates an empty file, with a record in the cleanup journal. The path must not exist. A file
    /// whose record cannot be written is removed again: it would stay after a killed run.
    pub fn create_empty(&mut self, path: &Path) -> Result<File, Failure> {
        let file = File::create_new(path).map_err(|error| create_failure(path, &error))?;
        match Record::write_record(CleanupKind::File, path) {
            Ok(record) => {
                // A signal handler removes the files on this list if it ends the process.
                CREATED_PATHS
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(path.to_path_buf());
                self.0.push((path.to_path_buf(), record));
            }
            Err(error) => {
                let _ = std::fs::remove_file(path);
                return Err(journal_failure(path, &error));
            }
        }
        Ok(file)
    }
}

impl ScratchFiles {
    /// Renames the only file of this value to `target`. It is no scratch file from then on.
    ///
    /// # Errors
    /// The file cannot be renamed, and is removed.
    pub fn rename_only_file(mut self, target: &Path) -> io::Result<()> {
        let [(path, _)] = self.0.as_slice() else { panic!("only one file is renamed") };
        std::fs::rename(path, target)?;
        let mut created_paths = CREATED_PATHS.lock().unwrap_or_else(PoisonError::into_inner);
        created_paths.retain(|other| other != path);
        // Dropping the record removes it from the cleanup journal.
        self.0.clear();
        Ok(())
    }
}

impl Drop for ScratchFiles {
    /// Removes the files, and then their records in the cleanup journal. A file that cannot be
    /// removed keeps its record.
    fn drop(&mut self) {
        let mut created_paths = CREATED_PATHS.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, record) in self.0.drain(..) {
            created_paths.retain(|other| *other != path);
            if let Err(error) = std::fs::remove_file(&path) {
                notice::print(format_args!("{}: can't be removed: {error}", path.display()));
                // A file that is gone needs no removal later.
                if error.kind() != io::ErrorKind::NotFound {
                    record.leave();
                }
            }
        }
    }
}

/// Folder created by this run. Dropping the value removes it with its content.
#[derive(Debug)]
pub struct ScratchFolder {
    /// Path of the folder, whose name ends with the number of this process.
    path: PathBuf,
    /// Record in the cleanup journal, removed on drop after the folder. `None` only in the drop.
    record: Option<Record>,
}

impl ScratchFolder {
    /// Creates a folder below `parent`. Its name starts with `prefix`. The folder is removed when
    /// the value is dropped.
    pub fn new(parent: &Path, prefix: &str) -> Result<ScratchFolder, Failure> {
        let path = parent.join(format!("{prefix}-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| create_failure(&path, &error))?;
        match Record::write_record(CleanupKind::Folder, &path) {
            Ok(record) => Ok(ScratchFolder { path, record: Some(record) }),
            Err(error) => {
                let _ = std::fs::remove_dir(&path);
                Err(journal_failure(&path, &error))
            }
        }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file of `bytes` incompressible bytes from `seed` below the folder, and its parent
    /// folders. [`sync`](ScratchFolder::sync) writes its data back.
    pub fn add(
        &self,
        path: &Path,
        bytes: u64,
        seed: u64,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        debug_assert!(path.starts_with(&self.path));
        let folder = path.parent().expect("the path is below the scratch folder");
        std::fs::create_dir_all(folder).map_err(|error| create_failure(folder, &error))?;
        let file = File::create_new(path).map_err(|error| create_failure(path, &error))?;
        fill(&file, bytes, seed, interrupt).map_err(|error| fill_failure(path, &error))
    }

    /// Writes back all files of the file system that holds the folder.
    pub fn sync(&self) -> Result<(), Failure> {
        let folder = File::open(&self.path);
        let synced = folder.and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
        synced.map_err(|error| fill_failure(&self.path, &error))
    }
}

impl Drop for ScratchFolder {
    /// Removes the folder with its content, and then its record in the cleanup journal. A folder
    /// that cannot be removed keeps its record.
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            notice::print(format_args!("{}: can't be removed: {error}", self.path.display()));
            // A folder that is gone needs no removal later.
            if error.kind() != io::ErrorKind::NotFound
                && let Some(record) = self.record.take()
            {
                record.leave();
            }
        }
    }
}

/// Failure of a file or folder that has no record in the cleanup journal, and was removed again.
fn journal_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::Unavailable(format!(
        "{}: the cleanup journal can't be written, so the file would stay if this run is killed: \
            {error}",
        path.display()
    ))
}

/// Failure or interrupt while a file is filled.
fn fill_failure(path: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::Interrupted => Failure::Interrupted,
        _ => create_failure(path, error),
    }
}

/// Failure to create a file, with a remedy for common errors.
fn create_failure(path: &Path, error: &io::Error) -> Failure {
    let what_to_do = match error.kind() {
        io::ErrorKind::StorageFull => {
            "; make less of it (`size`, `--rows`), or name a place elsewhere"
        }
        io::ErrorKind::NotFound => "; make its folder first",
        _ => "",
    };
    Failure::Usage(format!("{}: can't be created: {error}{what_to_do}", path.display()))
}

/// Fills a file with `bytes` bytes that no file system can compress. An interrupt ends it with an
/// error.
fn fill(mut file: &File, bytes: u64, seed: u64, interrupt: &Interrupt) -> io::Result<()> {
    let mut state = seed;
    // Whole words of 8 bytes, at most 1 MiB between two checks of the interrupt.
    let mut chunk = vec![0u8; bytes.next_multiple_of(8).min(1 << 20) as usize];
    let mut bytes_left = bytes;
    while bytes_left > 0 {
        if interrupt.is_signalled() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&splitmix::next(&mut state).to_le_bytes());
        }
        let chunk_bytes = bytes_left.min(chunk.len() as u64);
        file.write_all(&chunk[..chunk_bytes as usize])?;
        bytes_left -= chunk_bytes;
    }
    Ok(())
}
