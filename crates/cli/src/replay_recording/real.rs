//! `--on file:FOLDER` and `--on kernel:FOLDER`: replay of recorded reads on real storage.
//!
//! A scratch file in the folder stands for each recorded file. It has the same length and no holes,
//! since the kernel's reads of a hole never reach the device. Each row runs in its own process
//! ([`super::player`]) and starts with a cold cache. With the kernel's read path, a control group
//! limits the memory of that process alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use readpath::ReadPath;
use readpath_core::policy::Spec;
use readpath_eval::kernel_swap::SwapError;
use readpath_eval::kernel_swap::group::MemoryGroup;
use readpath_trace::replay::RecordedProgram;

use super::player::{Played, ReplayBegin, ReplayReply};
use super::read_methods::{Policies, ReplayOrder};
use crate::exit::Failure;
use crate::note;
use crate::progress::Interrupt;
use crate::real_file::{kernel_queue, make_cold};
use crate::scratch_files::ScratchFolder;
use crate::worker::{AnswerError, OrderPath, WorkerProcess, WorkerTask};

/// Divisor of the files' bytes for the space that a file system needs in addition to them: an
/// estimate of its metadata.
const OVERHEAD_DIVISOR: u64 = 64;

/// Scratch files of a recording in each named folder. Dropping the value removes them.
pub struct RealStorage<'a> {
    /// Path of the recording, for the process that replays it.
    recording: &'a Path,
    /// Its reads.
    recorded: &'a RecordedProgram,
    /// Seed of the scratch files' content.
    seed: u64,
    /// Ends the creation of files and the wait for an answer.
    interrupt: &'a Interrupt,
    /// Folder of the scratch files, by the folder that the user named.
    scratch_folders: BTreeMap<PathBuf, ScratchFolder>,
}

/// Parameters of a row on real storage.
#[derive(Clone, Debug)]
pub struct RealRow<'a> {
    /// Folder that the user named, below which the scratch files are created.
    pub folder: &'a Path,
    /// Policies of the library; `None` reads through the kernel.
    pub policies: Option<Policies>,
    /// Memory for pages; `None`: no limit.
    pub memory_bytes: Option<u64>,
}

impl Policies {
    /// Formats and validates the policies of a row.
    ///
    /// # Errors
    /// A policy is unknown, or lacks one of the parameters.
    pub fn new(readahead: &Spec, eviction: &Spec, scheduler: &Spec) -> Result<Policies, Failure> {
        let [readahead, eviction, scheduler] =
            [readahead, eviction, scheduler].map(ToString::to_string);
        let policies = Policies { readahead, eviction, scheduler };
        policies.apply(ReadPath::builder()).build().map_err(Failure::usage)?;
        Ok(policies)
    }
}

impl<'a> RealStorage<'a> {
    /// Starts without scratch files.
    pub fn new(
        recording: &'a Path,
        recorded: &'a RecordedProgram,
        seed: u64,
        interrupt: &'a Interrupt,
    ) -> RealStorage<'a> {
        RealStorage { recording, recorded, seed, interrupt, scratch_folders: BTreeMap::new() }
    }

    /// Checks that the folder exists and has enough free space for the files, before any is
    /// created. Other folders on the same file system are not counted.
    pub fn check_free_space(&self, folder: &Path) -> Result<(), Failure> {
        let failure = |problem: String| Err(Failure::usage_of(folder.display(), problem));
        if !folder.is_dir() {
            return failure(
                "is not a folder; name one for scratch copies of the recorded files".into(),
            );
        }
        let file_system = rustix::fs::statvfs(folder)
            .map_err(|errno| Failure::usage_of(folder.display(), errno))?;
        let (free_bytes, needed_bytes) =
            (file_system.f_bavail * file_system.f_frsize, self.recorded.file_bytes());
        if needed_bytes + needed_bytes / OVERHEAD_DIVISOR > free_bytes {
            return failure(format!(
                "the recorded files are made again there, {} MiB, and {} MiB are free; name a \
                 folder with more room, or cut the recording (`readpath recording cut`)",
                needed_bytes.div_ceil(1 << 20),
                free_bytes >> 20
            ));
        }
        Ok(())
    }

    /// Replays the reads once, in a process of its own and with cold scratch files, which are
    /// created at the first use of the folder. Returns the measurements, and a caveat of them or of
    /// pages that stayed in memory.
    pub fn replay(&mut self, row: &RealRow<'_>) -> Result<(Played, Option<String>), Failure> {
        let paths = self.scratch_paths(row.folder)?;
        let run_failure = |problem: &dyn std::fmt::Display| {
            Failure::Run(format!("{}: the reads can't be made: {problem}", row.folder.display()))
        };
        let mut worker =
            WorkerProcess::start(WorkerTask::Replay).map_err(|error| run_failure(&error))?;
        let order = ReplayOrder {
            recording: OrderPath(self.recording.to_owned()),
            files: paths.iter().cloned().map(OrderPath).collect(),
            policies: row.policies.clone(),
            memory_bytes: row.memory_bytes,
        };
        let answer_failure = |error: AnswerError| match error {
            AnswerError::Interrupted => Failure::Interrupted,
            AnswerError::Ended(status) => {
                run_failure(&format!("their process has ended: {status}"))
            }
            AnswerError::Malformed(message) => run_failure(&message),
            AnswerError::TimedOut => run_failure(&"it takes too long"),
        };
        worker.send_order(&order).map_err(|error| run_failure(&error))?;
        // A program may have run for any time, and so may its replay.
        let no_deadline = None;
        let answer = worker.receive_answer(no_deadline, self.interrupt);
        // The process has loaded the recording and waits for the start of the reads.
        let own_bytes = match answer.map_err(answer_failure)? {
            ReplayReply::Ready { own_bytes } => own_bytes,
            ReplayReply::Played(_) => return Err(run_failure(&"it answered before it was asked")),
            ReplayReply::Failed(message) => return Err(run_failure(&message)),
        };
        // The limit of the group covers the memory for pages and the memory of the process itself.
        let group = match (&row.policies, row.memory_bytes) {
            (None, Some(bytes)) => Some(memory_group(bytes + own_bytes)?),
            _ => None,
        };
        // Locals drop in reverse order. The worker is therefore bound again after its group: the
        // process ends before the group is removed, also on an error.
        let mut worker = worker;
        if let Some(group) = &group {
            group.add(worker.id()).map_err(|error| run_failure(&error))?;
        }
        let warm_note = self.make_all_cold(&paths)?;
        worker.send_order(&ReplayBegin).map_err(|error| run_failure(&error))?;
        let answer = worker.receive_answer(no_deadline, self.interrupt);
        let played = match answer.map_err(answer_failure)? {
            ReplayReply::Played(played) => played,
            ReplayReply::Ready { .. } => return Err(run_failure(&"it was ready twice")),
            ReplayReply::Failed(message) => return Err(run_failure(&message)),
        };
        drop(worker);
        let notes = note::join(warm_note, played.note.clone());
        Ok((played, notes))
    }

    /// Returns the paths of the scratch files in a folder, created at its first use.
    fn scratch_paths(&mut self, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
        if !self.scratch_folders.contains_key(folder) {
            let scratch_folder = ScratchFolder::new(folder, "readpath-replay")?;
            for (index, file) in self.recorded.files().iter().enumerate() {
                let path = scratch_folder.path().join(index.to_string());
                scratch_folder.add(
                    &path,
                    file.bytes,
                    self.seed.wrapping_add(index as u64),
                    self.interrupt,
                )?;
            }
            // Pages that are not written back could not be dropped from the page cache.
            scratch_folder.sync()?;
            self.scratch_folders.insert(folder.to_owned(), scratch_folder);
        }
        let scratch_folder = self.scratch_folders[folder].path();
        Ok((0..self.recorded.files().len())
            .map(|index| scratch_folder.join(index.to_string()))
            .collect())
    }

    /// Drops the files' pages from the kernel page cache. Returns a caveat if some stayed,
    /// otherwise `None`.
    fn make_all_cold(&self, paths: &[PathBuf]) -> Result<Option<String>, Failure> {
        let (mut resident, mut pages) = (0, 0);
        for path in paths {
            let residency = make_cold(path, &mut || !self.interrupt.is_signalled())?;
            resident += residency.resident;
            pages += residency.pages;
        }
        Ok((resident > 0)
            .then(|| format!("not cold: {resident} of {pages} pages stayed in memory")))
    }
}

/// Creates a memory cgroup for a replay through the kernel, with a limit of `bytes` bytes. Dropping
/// it removes it.
fn memory_group(bytes: u64) -> Result<MemoryGroup, Failure> {
    let unavailable = |error: SwapError| {
        Failure::Unavailable(format!("--memory on kernel: is a control group's: {error}"))
    };
    // The entries of groups that killed runs left are not reported here.
    MemoryGroup::new(bytes).map(|(group, _)| group).map_err(unavailable)
}

/// Returns the kernel's readahead and scheduler on a folder's device. The readahead includes its
/// window if that is known. The scheduler is `None` if unknown.
pub fn kernel_policies(folder: &Path) -> (String, Option<String>) {
    match kernel_queue(folder) {
        Some(queue) => (format!("kernel, {} KiB", queue.read_ahead_bytes / 1024), queue.scheduler),
        None => ("kernel".to_owned(), None),
    }
}
