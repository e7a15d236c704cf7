//! Output file that replaces the file of its name when it is complete.
//!
//! The bytes go to a *partial file* in the same folder, which is renamed at the end. After an error
//! the file of that name is the old one, or there is none. The partial file is a scratch file: a
//! signal removes it ([`Interrupt::ending_at_once`](crate::progress::Interrupt::ending_at_once)),
//! and the next run of any command removes it after a killed run. Pipes and devices have no old
//! content, and are written directly.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::exit::{CommandResult, Failure};
use crate::scratch_files::ScratchFiles;

/// A file that is written, to replace the one of its name.
pub struct OutputFile {
    /// The partial file, or the output itself if it is written directly.
    writer: BufWriter<File>,
    /// `None` for an output that is written directly.
    partial_file: Option<PartialFile>,
}

/// File with the output until it is complete.
struct PartialFile {
    /// Contains only this file.
    scratch_files: ScratchFiles,
    /// Path that the file gets at the end.
    target: PathBuf,
}

impl OutputFile {
    /// Begins the output to `path`. A file of this name stays as it is until
    /// [`finish`](OutputFile::finish), and for good if the value is dropped before. An output that
    /// no other file can replace (a pipe, a device, a descriptor of this process) is written
    /// directly. A regular file then begins with length 0, unless it is the standard output.
    pub fn create(path: &Path) -> Result<OutputFile, Failure> {
        let failure = |error: io::Error| Failure::usage_of(path.display(), error);
        let (target, old_permissions) = match open_existing(path).map_err(failure)? {
            None => (path.to_owned(), None),
            Some(file) => {
                let metadata = file.metadata().map_err(failure)?;
                if !can_be_replaced(path, &metadata) {
                    // Text that was printed before stays.
                    if metadata.is_file() && !is_standard_output(&metadata) {
                        file.set_len(0).map_err(failure)?;
                    }
                    return Ok(OutputFile { writer: BufWriter::new(file), partial_file: None });
                }
                // A symbolic link stays, and leads to the new file.
                (fs::canonicalize(path).map_err(failure)?, Some(metadata.permissions()))
            }
        };
        // A missing folder fails here, with the name of the output instead of the partial file.
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        fs::metadata(folder.unwrap_or(Path::new("."))).map_err(failure)?;
        let mut scratch_files = ScratchFiles::default();
        let file = scratch_files.create_empty(&partial_path(&target))?;
        if let Some(permissions) = old_permissions {
            file.set_permissions(permissions).map_err(failure)?;
        }
        let partial_file = Some(PartialFile { scratch_files, target });
        Ok(OutputFile { writer: BufWriter::new(file), partial_file })
    }

    /// Writes the buffered rest, and replaces the file of the output's name.
    ///
    /// # Errors
    /// The file stays as it was before the output, unless it is written directly.
    pub fn finish(mut self) -> io::Result<()> {
        self.writer.flush()?;
        match self.partial_file {
            Some(PartialFile { scratch_files, target }) => scratch_files.rename_only_file(&target),
            None => Ok(()),
        }
    }
}

impl Write for OutputFile {
    /// Writes through the buffer.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.writer.write(data)
    }

    /// Writes the buffered bytes to the partial file, or to the output.
    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Writes a file with results, as whole as an [`OutputFile`]. The caller prints the results before,
/// so that a full disk does not lose them.
///
/// # Errors
/// [`Failure::Run`]: the figures have been printed.
pub fn write_results(path: &Path, content: &str) -> CommandResult {
    let after_figures = |failure| match failure {
        Failure::Usage(text) => Failure::Run(text),
        other => other,
    };
    let mut file = OutputFile::create(path).map_err(after_figures)?;
    let written = file.write_all(content.as_bytes()).and_then(|()| file.finish());
    written.map_err(|error| {
        let path = path.display();
        Failure::Run(format!("{path}: can't be written: {error}; name another file"))
    })
}

/// Refuses an output that would overwrite one of `needed_paths`, the inputs and the other outputs
/// of the command. `None`, no requested file, is accepted.
pub fn check_not_needed(
    output: Option<&Path>,
    needed_paths: impl IntoIterator<Item: AsRef<Path>>,
) -> CommandResult {
    let Some(output) = output else { return Ok(()) };
    match needed_paths.into_iter().find(|needed| is_same_file(output, needed.as_ref())) {
        None => Ok(()),
        Some(needed) => Err(Failure::usage_of(
            output.display(),
            format!(
                "it would overwrite {}, which this command needs; name another file",
                needed.as_ref().display()
            ),
        )),
    }
}

/// True if both paths lead to the same file or block device, also by links. Two missing files are
/// compared by their folders and names. Pipes and character devices can have several writers, and
/// count as different, and so do a missing file and an existing one.
pub fn is_same_file(left: &Path, right: &Path) -> bool {
    match (fs::metadata(left), fs::metadata(right)) {
        (Ok(left), Ok(right)) => {
            let keeps_data = left.is_file() || left.file_type().is_block_device();
            keeps_data && (left.dev(), left.ino()) == (right.dev(), right.ino())
        }
        (Err(_), Err(_)) => {
            let resolved = |path: &Path| {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
                Some(folder.join(path.file_name()?))
            };
            // `None`, the path of a missing folder, equals no other path.
            resolved(left).is_some_and(|left| Some(left) == resolved(right))
        }
        _ => false,
    }
}

/// True if this is the file of the standard output.
fn is_standard_output(metadata: &Metadata) -> bool {
    let output = rustix::fs::fstat(io::stdout());
    output.is_ok_and(|output| (output.st_dev, output.st_ino) == (metadata.dev(), metadata.ino()))
}

/// Opens an existing file for writing, so that a file without write permission is refused. `None`
/// if there is none. A missing target of a symbolic link is created.
fn open_existing(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.write(true).truncate(false).create(path.is_symlink());
    match options.open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the existing output `path` is a file that another one can replace. A descriptor of this
/// process, as behind `/dev/stdout`, must be written itself.
fn can_be_replaced(path: &Path, metadata: &Metadata) -> bool {
    let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok()).unwrap_or_default();
    let is_system_folder = folder.starts_with("/dev") || folder.starts_with("/proc");
    metadata.is_file() && !(path.is_symlink() && is_system_folder)
}

/// Path of the partial file of `target`: an unused one in the same folder.
fn partial_path(target: &Path) -> PathBuf {
    let process = std::process::id();
    unused_path(|n| target.with_file_name(format!(".readpath-{process}-{n}.part")))
}

/// Returns the first path of those for the numbers from 0 on at which nothing exists.
pub fn unused_path(path_of: impl Fn(u32) -> PathBuf) -> PathBuf {
    let mut unused = (0..).map(path_of).filter(|path| path.symlink_metadata().is_err());
    unused.next().expect("a folder has fewer names than there are numbers")
}
