//! File of a recording.
//!
//! 1. A write error ends the recording and not the recorded program: later writes are dropped, and
//!    the error is kept to be reported.
//! 2. A symbolic link is followed only if this user or root has made it. The command often runs as
//!    root in a folder where other users may write: their link would lead to a file of the system.
//! 3. An earlier file of the name keeps its content until [`begin`](Output::begin), so that a
//!    program that cannot be started costs no recording.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::OFlags;

/// Most links that are followed, as in the kernel's `ELOOP`.
const LINKS_MAX: u32 = 40;

/// A file that is written, or an error that has ended it.
#[derive(Clone, Debug)]
pub struct Output(Rc<RefCell<State>>);

/// State that all clones of an output share.
#[derive(Debug)]
struct State {
    /// File that was opened, until the output begins. `None` from then on, and without a file.
    opened: Option<Opened>,
    /// File that is written. `None` until the output begins, after an error, and without a file.
    file: Option<BufWriter<File>>,
    /// Error that ended the file, until it is taken for the report.
    error: Option<io::Error>,
}

/// File that was opened to be written. It has its old content.
#[derive(Debug)]
enum Opened {
    /// File that is truncated.
    Existing(File),
    /// Pipe, device, or a descriptor of this process, such as standard output.
    Stream(File),
    /// File that did not exist. It is removed if the output never begins.
    New(File, PathBuf),
    /// File that is removed, and created again under its name.
    Replaced(PathBuf),
}

impl Output {
    /// Opens the file of this name, or creates it. The output is written after
    /// [`begin`](Output::begin).
    ///
    /// # Errors
    /// It can't be created, or the path leads through another user's link.
    pub fn open(path: &Path) -> io::Result<Output> {
        Ok(Output::new(Some(open_for_writing(path)?)))
    }

    /// Drops the old content of the file. Later writes go to it; earlier ones were dropped. No
    /// effect without a file, and in a second call.
    pub fn begin(&self) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        let file = match state.opened.take() {
            None => return Ok(()),
            Some(Opened::New(file, _) | Opened::Stream(file)) => file,
            Some(Opened::Existing(file)) => {
                file.set_len(0)?;
                file
            }
            Some(Opened::Replaced(path)) => {
                fs::remove_file(&path)?;
                create_new_file(&path)?
            }
        };
        state.file = Some(BufWriter::new(file));
        Ok(())
    }

    /// Creates an output that drops all writes.
    pub fn discarding() -> Output {
        let no_file = None;
        Output::new(no_file)
    }

    /// Creates an output; without a file, all writes are dropped.
    fn new(opened: Option<Opened>) -> Output {
        Output(Rc::new(RefCell::new(State { opened, file: None, error: None })))
    }

    /// Returns the error that has ended the file, once. `None` without an error.
    pub fn take_error(&self) -> Option<io::Error> {
        self.0.borrow_mut().error.take()
    }

    /// Applies `write` to the file, and returns its result. An error ends the file and is kept.
    /// After it, and without a file, the result is `dropped`.
    fn apply<T>(&self, dropped: T, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<T>) -> T {
        let mut state = self.0.borrow_mut();
        let Some(file) = &mut state.file else { return dropped };
        match write(file) {
            Ok(written) => written,
            Err(error) => {
                // The rest in memory would fail again when it is dropped.
                state.file.take().map(BufWriter::into_parts);
                state.error = Some(error);
                dropped
            }
        }
    }
}

impl Drop for State {
    /// Removes a file that was created for an output which never began.
    fn drop(&mut self) {
        if let Some(Opened::New(_, path)) = &self.opened {
            // Another program may have removed it.
            let _ = fs::remove_file(path);
        }
    }
}

impl Write for Output {
    /// Writes to the file, or drops the data without one. An error of the file is kept and not
    /// returned.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(self.apply(data.len(), |file| file.write(data)))
    }

    /// Flushes the file. An error is kept and not returned.
    fn flush(&mut self) -> io::Result<()> {
        self.apply((), BufWriter::flush);
        Ok(())
    }
}

/// Opens a path for writing. Follows symbolic links only of this user and of root. As root, pipes
/// of other users are refused, and their files and files with several names are to be replaced. A
/// file that is exchanged meanwhile is an error.
fn open_for_writing(path: &Path) -> io::Result<Opened> {
    let own_user = rustix::process::geteuid().as_raw();
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Opened::New(create_new_file(&path)?, path));
            }
            Err(error) => return Err(error),
        };
        let kind = metadata.file_type();
        let is_trusted = metadata.uid() == own_user || metadata.uid() == 0;
        if kind.is_symlink() {
            if !is_trusted {
                let user = metadata.uid();
                return Err(unsafe_path_error(format!(
                    "it is a symbolic link of user {user}; remove it, or name its target"
                )));
            }
            if is_on_proc(&path)? {
                // A descriptor of this process, as behind /dev/stdout: its text is no path.
                return OpenOptions::new().write(true).open(&path).map(Opened::Stream);
            }
            let target = fs::read_link(&path)?;
            path = path.parent().map_or_else(PathBuf::new, Path::to_path_buf).join(target);
            continue;
        }
        if !kind.is_file() {
            if own_user == 0 && !is_trusted && kind.is_fifo() {
                return Err(unsafe_path_error(format!(
                    "it is a pipe of user {}; name a file",
                    metadata.uid()
                )));
            }
            return nofollow_options().open(&path).map(Opened::Stream);
        }
        // Root writes to no file that another user has put there: it may be a hard link.
        if own_user == 0 && (!is_trusted || metadata.nlink() > 1) {
            return Ok(Opened::Replaced(path));
        }
        let file = nofollow_options().open(&path)?;
        let opened = file.metadata()?;
        if (opened.dev(), opened.ino()) != (metadata.dev(), metadata.ino()) {
            return Err(unsafe_path_error(
                "another file has come in its place; try again".to_owned(),
            ));
        }
        return Ok(Opened::Existing(file));
    }
    Err(unsafe_path_error(format!("more than {LINKS_MAX} symbolic links lead to it")))
}

/// Error for a path that is not safe to write.
fn unsafe_path_error(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

/// Options that fail on a symbolic link.
fn nofollow_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Creates a file that must not exist yet.
fn create_new_file(path: &Path) -> io::Result<File> {
    nofollow_options().create_new(true).open(path)
}

/// Returns true for a link of the file system proc.
fn is_on_proc(link: &Path) -> io::Result<bool> {
    let parent = link.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = rustix::fs::statfs(parent.unwrap_or(Path::new(".")))?;
    Ok(folder.f_type as u64 == rustix::fs::PROC_SUPER_MAGIC as u64)
}
