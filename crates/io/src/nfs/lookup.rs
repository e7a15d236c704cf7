//! Walks from the names of a path to a file, over the symbolic links on the way.
//!
//! A server returns the target of a link and leaves following it to its clients. Links are followed
//! here as in path_resolution(7), within the export: a relative one from its directory, an absolute
//! one if it begins with the export's own path. `..` goes back along the walked path without asking
//! the server, and never out of the export. A link that leads out of the export refers to files of
//! another machine, and is rejected.

use super::error::{LINKS_MAX, NfsError, NfsStep};
use super::printable::printable;
use super::procedures::{self, Attributes, FileHandle, FileKind};
use super::server_link::CallServer;
use super::url::NfsUrl;
use crate::target::FILE_BYTES_MAX;

/// Location of a file, starting at its export.
pub(crate) struct ExportPath {
    /// URL of the file, for its names and for errors.
    pub(crate) url: NfsUrl,
    /// Handle of the mounted directory.
    pub(crate) export: FileHandle,
    /// Number of leading names of the URL that form the export's path.
    pub(crate) export_names: usize,
}

/// A file, directory or link found on the server. [`find`](ExportPath::find) returns only readable
/// regular files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundFile {
    /// The server's identifier of the file.
    pub(crate) handle: FileHandle,
    /// Attributes at the time of the look-up.
    pub(crate) attributes: Attributes,
}

impl ExportPath {
    /// Finds the file on the server, and checks that it is a regular file that may be read.
    ///
    /// # Errors
    /// The file does not exist, is no regular file, is too large, or may not be read. A link leads
    /// nowhere or out of the export, or there are too many links. The server does not answer.
    pub(crate) fn find(&self, server: &mut impl CallServer) -> Result<FoundFile, NfsError> {
        let names = self.url.path_names();
        let Some(file) = self.walk_names(server, &names[self.export_names..])? else {
            return Err(NfsError::Directory { url: self.url.to_string() });
        };
        let url = || self.url.to_string();
        match file.attributes.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(NfsError::Directory { url: url() }),
            FileKind::Link | FileKind::Special => return Err(NfsError::NotFile { url: url() }),
        }
        let put_arguments = |message: &mut Vec<u8>| {
            procedures::put_access(message, &file.handle, procedures::ACCESS_READ)
        };
        // The server answers with the permissions of the calls' user.
        let granted_bits = self.file_result(server.ask(
            procedures::ACCESS,
            put_arguments,
            procedures::decode_access,
        ))?;
        if granted_bits & procedures::ACCESS_READ == 0 {
            return Err(NfsError::Refused { url: url() });
        }
        let bytes = file.attributes.bytes;
        if bytes > FILE_BYTES_MAX {
            return Err(NfsError::TooLarge { url: url(), bytes, bytes_max: FILE_BYTES_MAX });
        }
        Ok(file)
    }

    /// Looks up the names one after the other, starting at the export, and follows links. Returns
    /// the last file, or `None` if the names end at the export itself. Fails if a name is missing,
    /// follows no directory, or leads out of the export, and after more than [`LINKS_MAX`] links.
    fn walk_names(
        &self,
        server: &mut impl CallServer,
        names: &[&[u8]],
    ) -> Result<Option<FoundFile>, NfsError> {
        let missing = || NfsError::Missing { url: self.url.to_string() };
        // Reversed: the next name is the last element.
        let mut names_left: Vec<Vec<u8>> = names.iter().rev().map(|name| name.to_vec()).collect();
        // Path from below the export to the present file or directory.
        let mut walked_files: Vec<FoundFile> = Vec::new();
        let mut link_count = 0;
        while let Some(name) = names_left.pop() {
            // A name behind a file that is no directory.
            if walked_files.last().is_some_and(|file| file.attributes.kind != FileKind::Directory) {
                return Err(missing());
            }
            if name == b".." {
                // At the export itself `..` would leave it. Only a link can contain `..`.
                walked_files.pop().ok_or_else(|| self.link_outside_export(b".."))?;
                continue;
            }
            let parent = walked_files.last().map_or(self.export, |directory| directory.handle);
            let next = self.look_up_name(server, &parent, &name)?;
            if next.attributes.kind != FileKind::Link {
                walked_files.push(next);
                continue;
            }
            link_count += 1;
            if link_count > LINKS_MAX {
                return Err(NfsError::LinkLoop { url: self.url.to_string() });
            }
            let put_arguments =
                |message: &mut Vec<u8>| procedures::put_handle(message, &next.handle);
            let target = self.file_result(server.ask(
                procedures::READLINK,
                put_arguments,
                procedures::decode_readlink,
            ))?;
            // The link itself is left out of the path: a relative target starts in its directory.
            // An empty link names no file.
            if target.is_empty() {
                return Err(missing());
            }
            let mut target_names: Vec<&[u8]> = target
                .split(|&byte| byte == b'/')
                .filter(|name| !name.is_empty() && *name != b".")
                .collect();
            // An absolute target is walked from the export again, without the export's own names.
            if target[0] == b'/' {
                let export = &self.url.path_names()[..self.export_names];
                if !target_names.starts_with(export) {
                    return Err(self.link_outside_export(&target));
                }
                target_names.drain(..export.len());
                walked_files.clear();
            }
            names_left.extend(target_names.iter().rev().map(|name| name.to_vec()));
        }
        Ok(walked_files.pop())
    }

    /// Looks up one name in a directory. Returns its handle with its attributes, which are
    /// requested if the server did not include them.
    fn look_up_name(
        &self,
        server: &mut impl CallServer,
        directory: &FileHandle,
        name: &[u8],
    ) -> Result<FoundFile, NfsError> {
        let put_arguments =
            |message: &mut Vec<u8>| procedures::put_lookup(message, directory, name);
        let (handle, server_attributes) = self.file_result(server.ask(
            procedures::LOOKUP,
            put_arguments,
            procedures::decode_lookup,
        ))?;
        let attributes = match server_attributes {
            Some(attributes) => attributes,
            None => {
                let put_arguments =
                    |message: &mut Vec<u8>| procedures::put_handle(message, &handle);
                self.file_result(server.ask(
                    procedures::GETATTR,
                    put_arguments,
                    procedures::decode_getattr,
                ))?
            }
        };
        Ok(FoundFile { handle, attributes })
    }

    /// Converts the answer to a call into a result for the file: the decoded results, or an error
    /// for the server's status or for the failed call.
    pub(crate) fn file_result<T>(
        &self,
        answer: Result<Result<T, super::status::Status>, super::rpc::CallError>,
    ) -> Result<T, NfsError> {
        answer
            .map_err(|error| NfsError::from_call(NfsStep::File, error))?
            .map_err(|status| NfsError::from_status(&self.url, status))
    }

    /// Returns the error for a link with this target, which leads out of the export.
    fn link_outside_export(&self, target: &[u8]) -> NfsError {
        NfsError::Outside { url: self.url.to_string(), target: printable(target) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The target of a hostile server's link contains terminal escapes. The message shows the text
    /// of the target without control characters.
    #[test]
    fn messages_hold_no_control_characters_of_a_server() {
        let url = NfsUrl::parse("nfs://host/export/file").unwrap();
        let export = FileHandle::new(b"root").unwrap();
        let export_path = ExportPath { url, export, export_names: 1 };
        let error =
            export_path.link_outside_export(b"/etc/\x1b]0;renamed\x07\x1b[2J\r\nfine").to_string();
        assert!(error.contains("renamed") && error.contains("fine"), "{error}");
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}
