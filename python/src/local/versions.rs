//! The version of a file, and the check for a change. A child of `fork` opens its parent's file
//! again by name, and may find another version or another file.
//!
//! An `Own` holds a value of the process that created it. In a child of `fork` its `get` returns
//! none, `is_ours` false, and `inherited` the parent's value.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use readpath::{Advice, File};

use super::LocalFile;
use crate::failure::{Failure, open_error};
use crate::interruptible::run_interruptible;
use crate::process::Own;
use crate::urls::{Reports, shown_name};

/// The version that the program knows by its length, and differences of the file that this process
/// has opened.
pub(super) struct KnownVersion {
    /// Version of the object of a URL. Empty for other files.
    object: Mutex<String>,
    /// True if a child has opened another version.
    is_other_version: AtomicBool,
    /// True if a child has opened another file: another inode, or another version of an object.
    is_other_file: AtomicBool,
}

impl KnownVersion {
    /// The version that was just opened.
    pub(super) fn new(reports: Option<&Reports>) -> KnownVersion {
        KnownVersion {
            object: Mutex::new(reports.map(Reports::version).unwrap_or_default()),
            is_other_version: AtomicBool::new(false),
            is_other_file: AtomicBool::new(false),
        }
    }

    /// Version of the object of a URL. Empty for other files.
    pub(super) fn of_object(&self) -> String {
        self.object.lock().expect("no thread panics while holding it").clone()
    }

    /// True if the last opening of an object has found this version.
    fn is_of_object(&self, reports: &Reports) -> bool {
        self.of_object() == reports.version()
    }

    /// Compares the file that a child has opened with its parent's.
    fn compare(&self, reopened: &File, inherited: &File, reports: Option<&Reports>) {
        let (is_same_file, is_same_version) = match reports {
            Some(reports) => {
                let is_same = self.is_of_object(reports);
                (is_same, is_same)
            }
            None => (reopened.is_same_file(inherited), reopened.is_same_version(inherited)),
        };
        // A grandchild compares with the child's file, which may already differ.
        self.is_other_file.fetch_or(!is_same_file, Ordering::Relaxed);
        self.is_other_version.fetch_or(!is_same_version, Ordering::Relaxed);
    }

    /// Takes the version that was opened last.
    fn replace(&self, reports: Option<&Reports>) {
        let version = reports.map(Reports::version).unwrap_or_default();
        *self.object.lock().expect("no thread panics while holding it") = version;
        self.is_other_file.store(false, Ordering::Relaxed);
        self.is_other_version.store(false, Ordering::Relaxed);
    }
}

impl LocalFile {
    /// Returns the file as opened by this process. In a child of `fork`, the first call opens it
    /// again. Raises ValueError if the file is closed, OSError (`ESTALE`) if the child has found
    /// another file.
    pub(super) fn file(&self, py: Python<'_>) -> PyResult<Arc<Own<File>>> {
        let file = self.file_of_any_version(py)?;
        if !self.version.is_other_file.load(Ordering::Relaxed) {
            return Ok(file);
        }
        let name = match &self.reports {
            Some(_) => shown_name(self.path.to_str().unwrap_or_default()).into(),
            None => self.path.clone().into_os_string(),
        };
        Err(Failure::Replaced { name }.into())
    }

    /// As [`file`](LocalFile::file), but without an error if the child has found another file.
    fn file_of_any_version(&self, py: Python<'_>) -> PyResult<Arc<Own<File>>> {
        let current = || -> PyResult<Arc<Own<File>>> {
            let state = self.state.lock().expect("no thread panics while holding it");
            state.as_ref().map(Arc::clone).ok_or_else(|| Failure::Closed.into())
        };
        let file = current()?;
        if file.is_ours() {
            return Ok(file);
        }
        let reopened = Arc::new(self.open_again(py)?);
        // Another thread may have closed the file or opened it again meanwhile.
        let mut state = self.state.lock().expect("no thread panics while holding it");
        match &mut *state {
            None => Err(Failure::Closed.into()),
            Some(other) if other.is_ours() => Ok(Arc::clone(other)),
            stale => {
                let reports = self.reports.as_deref();
                self.version.compare(reopened.inherited(), file.inherited(), reports);
                *stale = Some(Arc::clone(&reopened));
                Ok(reopened)
            }
        }
    }

    /// Opens the file by its name, with the last hint of its handle.
    fn open_again(&self, py: Python<'_>) -> PyResult<Own<File>> {
        let file = self.engine.open_any(py, &self.path, self.reports.as_ref())?;
        let advice = *self.advice.lock().expect("no thread panics while holding it");
        // A new handle has no hint.
        if advice != Advice::Normal {
            py.detach(|| file.get().expect("it was just opened").advise(advice));
        }
        Ok(file)
    }

    /// Checks a local file, or a file of an NFS server, for a change. Returns true after a change.
    pub(super) fn revalidate_file(&self, py: Python<'_>) -> PyResult<bool> {
        let file = self.file_of_any_version(py)?;
        let check = move || {
            // After a change this clone has the new version, and the file in use the old one.
            let mut file = file.get().expect("this process has opened it").clone();
            file.revalidate().map(|has_changed| (Own::new(file), has_changed))
        };
        // A server may not answer, and signals are handled during the wait.
        let checked = if self.is_remote { run_interruptible(py, check)? } else { py.detach(check) };
        let (current_file, has_changed) =
            checked.map_err(|error| open_error(&error, &self.path))?;
        self.replace_if(py, has_changed, current_file)
    }

    /// Checks the object of a URL for a change. Returns true after a change.
    pub(super) fn revalidate_object(
        &self,
        py: Python<'_>,
        reports: &Arc<Reports>,
    ) -> PyResult<bool> {
        // For its errors, and because the first call in a child of `fork` compares the versions.
        self.file_of_any_version(py)?;
        // The opening stores the current version in `reports`.
        let current_file = self.open_again(py)?;
        let has_changed = !self.version.is_of_object(reports);
        self.replace_if(py, has_changed, current_file)
    }

    /// Continues with the current file in place of a stale one, and returns true. Returns false if
    /// neither the file has changed nor a child has opened another version. Raises ValueError if
    /// the file is closed.
    fn replace_if(
        &self,
        py: Python<'_>,
        has_changed: bool,
        current_file: Own<File>,
    ) -> PyResult<bool> {
        if !has_changed && !self.version.is_other_version.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.bytes.store(current_file.get().expect("it was just opened").len(), Ordering::Relaxed);
        let current_file = Arc::new(current_file);
        let stale = {
            let mut state = self.state.lock().expect("no thread panics while holding it");
            match &*state {
                // Another thread has closed the file meanwhile.
                None => return Err(Failure::Closed.into()),
                Some(_) => state.replace(current_file),
            }
        };
        self.version.replace(self.reports.as_deref());
        py.detach(|| drop(stale));
        Ok(true)
    }
}
