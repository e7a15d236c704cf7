//! `readpath emulate`: a modelled device as a file for real programs.
//!
//! The device is a file, `DIR/device`, on a FUSE mount. Reads and writes take the time that the
//! model computes, with many in flight; the data is in a backing file. With `losetup` on top it is
//! a block device. The mount ends on ctrl-C, SIGTERM, the end of the parent process, or `umount`,
//! also while a program has the file open. The command then reports the lateness of the answers.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, Session};
use readpath_core::policy::Spec;
use readpath_core::unit::SECTOR_BYTES;
use readpath_models::{BoxedDevice, registry};
use readpath_record::cleanup::{CleanupKind, Record};
use readpath_record::notice;
use readpath_sim::report::ReadCounters;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, getgid, getppid, getuid};

use crate::args::EmulateArgs;
use crate::devices::print_unmodelled;
use crate::exit::{CommandResult, Failure};
use crate::input;
use crate::output::print;

mod engine;
mod mount;

use engine::RealTimeDevice;
use mount::{FILE_NAME, Mount};

/// Interval of the checks of the parent process and the mount. Both events are rare, and a quarter
/// of a second is fast enough for a person.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// Event that ended the emulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EmulationEnd {
    /// Ctrl-C or SIGTERM.
    Signal,
    /// The parent process ended.
    ParentDied,
    /// The file system was unmounted.
    Unmounted,
}

/// Serves the device until one of the events in [`EmulationEnd`].
pub fn run(args: &EmulateArgs) -> CommandResult {
    // Read the parent's id before any slow step: a change of the id reveals its end.
    let parent = getppid();
    let spec = Spec::parse(&args.device).map_err(Failure::usage)?;
    let device = registry::build(&spec, args.seed).map_err(Failure::usage)?;
    print_unmodelled(&spec);
    let (backing, bytes) = open_backing(args, &device)?;
    let (sender, signals) = mpsc::channel();
    ctrlc::set_handler(move || {
        // The receiver is gone only if the end has already begun.
        let _ = sender.send(());
    })
    .map_err(|error| Failure::Unavailable(format!("can't wait for signals: {error}")))?;

    let thread_failure = |error| Failure::Unavailable(format!("can't start a thread: {error}"));
    let engine = Arc::new(RealTimeDevice::start(device).map_err(thread_failure)?);
    let owner = (getuid().as_raw(), getgid().as_raw());
    let file_system = Mount::new(Arc::clone(&engine), backing, bytes, owner);
    let session = mount_at(&args.folder, file_system)?;
    // Dropped at the end, in the regular case after the mount is removed. If the record stays, by
    // `leave` or by a kill of this process, the next run removes the mount.
    let record = Record::write_record(CleanupKind::ServedMount, &args.folder)
        .map_err(|error| Failure::usage_of(args.folder.display(), error))?;
    print(&format!(
        "ready: {} ({bytes} bytes, `{spec}`)\n",
        args.folder.join(FILE_NAME).display()
    ))?;

    let end = wait_for_end(&signals, parent, &session);
    let mount_end = end_mount(session, &args.folder, end);
    if end == EmulationEnd::ParentDied {
        notice::print(
            "the process that started this command has ended, which ends the device; start it \
             from a process that runs as long as the device is needed",
        );
    }
    let reported = print_report(&engine.answer_counters());
    let folder = args.folder.display();
    match mount_end {
        MountEnd::Removed => {}
        MountEnd::Detached => notice::print(format_args!(
            "{folder} was still in use and has been detached; programs that have it open get errors"
        )),
        MountEnd::Left(error) => {
            notice::print(format_args!(
                "{folder} is still mounted: {error}; end the programs that use it, and then run \
                 fusermount3 -u {folder}"
            ));
            record.leave();
        }
    }
    reported
}

/// Returns the backing file and the number of served bytes: the length of the named file, or the
/// size of a new temporary file. Refuses 0 bytes, and more than the device has.
fn open_backing(args: &EmulateArgs, device: &BoxedDevice) -> Result<(File, u64), Failure> {
    let device_bytes = device.caps().sectors.saturating_mul(SECTOR_BYTES);
    let refuse_beyond_end = |bytes: u64| match bytes > device_bytes {
        true => Err(Failure::Usage(format!(
            "`{}` has {device_bytes} bytes, less than the {bytes} to be served: \
             give a smaller --size or --backing, or a larger device",
            args.device
        ))),
        false => Ok(()),
    };
    let (file, bytes) = match (&args.backing, &args.size) {
        (Some(path), _) => {
            let failure = |error| Failure::usage_of(path.display(), error);
            let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(failure)?;
            // The metadata of a block device has the length 0.
            let bytes = file.seek(SeekFrom::End(0)).map_err(failure)?;
            refuse_beyond_end(bytes)?;
            (file, bytes)
        }
        (None, size_option) => {
            let bytes = match size_option {
                Some(text) => input::size("--size", text)?,
                None => device_bytes,
            };
            refuse_beyond_end(bytes)?;
            (temporary_file(bytes)?, bytes)
        }
    };
    if bytes == 0 {
        return Err(match (&args.backing, &args.size) {
            (Some(path), _) => Failure::usage_of(path.display(), "is empty: nothing to serve"),
            (None, Some(text)) => Failure::Usage(format!("--size {text}: nothing to serve")),
            (None, None) => Failure::Usage(format!("`{}` has no bytes to serve", args.device)),
        });
    }
    Ok((file, bytes))
}

/// Creates a sparse file of `bytes` bytes without a name, which disappears when it is closed.
fn temporary_file(bytes: u64) -> Result<File, Failure> {
    let path = std::env::temp_dir().join(format!("readpath-serve-{}", std::process::id()));
    let failure = |error: io::Error| Failure::usage_of(path.display(), error);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(failure)?;
    std::fs::remove_file(&path).map_err(failure)?;
    file.set_len(bytes).map_err(failure)?;
    Ok(file)
}

/// Mounts the file system on an empty folder, with two threads that serve it.
///
/// # Errors
/// A dead mount is in the way, the folder is not empty, or FUSE is not available.
fn mount_at(folder: &Path, file_system: Mount) -> Result<BackgroundSession, Failure> {
    let failure = |error| Failure::usage_of(folder.display(), error);
    let mut entries = match std::fs::read_dir(folder) {
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            return Err(Failure::Usage(format!(
                "{0}: a dead mount is in the way; remove it with `umount -l {0}`",
                folder.display()
            )));
        }
        entries => entries.map_err(failure)?,
    };
    if entries.next().is_some() {
        return Err(Failure::Usage(format!(
            "{}: is not an empty folder; its content would be hidden",
            folder.display()
        )));
    }
    let mut config = Config::default();
    config.mount_options =
        vec![MountOption::FSName("readpath".to_owned()), MountOption::DefaultPermissions];
    // One thread reads the backing file while the other one takes the next request.
    // Each has a descriptor of /dev/fuse of its own.
    config.n_threads = Some(2);
    config.clone_fd = true;
    let mounted = Session::new(file_system, folder, &config).and_then(Session::spawn);
    mounted.map_err(|error| {
        Failure::Unavailable(format!(
            "{}: can't mount: {error}; it needs FUSE (/dev/fuse) and root or fusermount3",
            folder.display()
        ))
    })
}

/// Waits for one of the events that end the command, and returns it. The mount and the parent are
/// checked each [`WATCH_INTERVAL`].
fn wait_for_end(
    signals: &mpsc::Receiver<()>,
    parent: Option<Pid>,
    session: &BackgroundSession,
) -> EmulationEnd {
    loop {
        match signals.recv_timeout(WATCH_INTERVAL) {
            // The signal handler keeps the sender for the lifetime of the process.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return EmulationEnd::Signal,
            Err(RecvTimeoutError::Timeout) if session.guard.is_finished() => {
                return EmulationEnd::Unmounted;
            }
            Err(RecvTimeoutError::Timeout) if getppid() != parent => {
                return EmulationEnd::ParentDied;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// State of the mount at the end of the emulation.
enum MountEnd {
    /// The folder is no mount any more.
    Removed,
    /// The mount was busy. Programs that have it open keep it until they close it.
    Detached,
    /// The mount could not be removed.
    Left(io::Error),
}

/// Removes the mount, unless it is gone already.
fn end_mount(session: BackgroundSession, folder: &Path, end: EmulationEnd) -> MountEnd {
    if end == EmulationEnd::Unmounted {
        return MountEnd::Removed;
    }
    match unmount(folder, UnmountFlags::empty()) {
        Ok(()) => {
            // The kernel has released the mount, and the session's loop ends by itself.
            let _ = session.join();
            MountEnd::Removed
        }
        Err(Errno::BUSY) => {
            let detached = unmount(folder, UnmountFlags::DETACH);
            // The loop continues while a program has the file open. This process does not wait for
            // it.
            std::mem::forget(session);
            match detached {
                Ok(()) => MountEnd::Detached,
                Err(error) => MountEnd::Left(error.into()),
            }
        }
        // Any other error, usually a missing right: without root, unmount through fusermount3, as
        // it was mounted.
        Err(_) => session.umount_and_join().map_or_else(MountEnd::Left, |()| MountEnd::Removed),
    }
}

/// Prints the number of served requests and the lateness of the answers, `-` without any.
fn print_report(counters: &ReadCounters) -> CommandResult {
    let micros = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{} µs", us as u64));
    // The counters record the lateness of each answer as its latency.
    let lateness = counters.latency();
    print(&format!(
        "served {} requests, {} bytes; answers late by {} (p50), {} (p99), {} (max)\n",
        counters.operations,
        counters.bytes,
        micros(lateness.p50),
        micros(lateness.p99),
        micros(lateness.max),
    ))
}
