//! `--on file:FOLDER` and `--on kernel:FOLDER`: recorded reads made again on real storage.
//!
//! In the folder each file that was recorded is made again, as long as it was and without holes: the
//! kernel's reads of a hole never get to the device. Each row is then a process of its own
//! ([`super::player`]), of whose files the kernel holds nothing at first; under the kernel's path memory is limited by a
//! control group, in which that process is alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use readpath::ReadPath;
use readpath_core::policy::Spec;
use readpath_peers::kernel_swap::SwapError;
use readpath_peers::kernel_swap::group::MemoryGroup;
use readpath_sim::what_if::RecordedProgram;

use super::player::{NAME, Played, Policies, ReplayBegin, ReplayOrder, ReplayReply};
use crate::exit::Failure;
use crate::note;
use crate::part::{Gone, OrderPath, WorkerProcess};
use crate::progress::Interrupt;
use crate::real_file::{make_cold, queue_of};
use crate::scratch_files::ScratchFolder;

/// What a file system needs beyond its files' bytes, as one part of so many.
const OVERHEAD_PART: u64 = 64;

/// The scratch files of a recording, in each folder that is named. They are removed with this.
pub struct RealStorage<'a> {
    recording: &'a Path,
    recorded: &'a RecordedProgram,
    seed: u64,
    interrupt: &'a Interrupt,
    made: BTreeMap<PathBuf, ScratchFolder>,
}

/// How the reads of a row are carried out.
#[derive(Clone, Debug)]
pub struct RealRow<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// By the library under these laws, or else by the kernel.
    pub policies: Option<Policies>,
    /// The memory for pages; `None`: what there is.
    pub memory_bytes: Option<u64>,
}

impl Policies {
    /// The laws of a row, known to the library.
    ///
    /// # Errors
    /// There is no such law, or it has no such parameter.
    pub fn new(readahead: &Spec, eviction: &Spec, scheduler: &Spec) -> Result<Policies, Failure> {
        let [readahead, eviction, scheduler] =
            [readahead, eviction, scheduler].map(ToString::to_string);
        let policies = Policies { readahead, eviction, scheduler };
        policies.apply(ReadPath::builder()).build().map_err(Failure::usage)?;
        Ok(policies)
    }
}

impl<'a> RealStorage<'a> {
    /// No folder yet.
    pub fn new(
        recording: &'a Path,
        recorded: &'a RecordedProgram,
        seed: u64,
        interrupt: &'a Interrupt,
    ) -> RealStorage<'a> {
        RealStorage { recording, recorded, seed, interrupt, made: BTreeMap::new() }
    }

    /// Finds out whether there is room for the files in a folder.
    pub fn check(&self, folder: &Path) -> Result<(), Failure> {
        let about = |problem: String| Err(Failure::about(folder.display(), problem));
        if !folder.is_dir() {
            return about(
                "is no folder: name one, in which the recorded files are made again".into(),
            );
        }
        let room =
            rustix::fs::statvfs(folder).map_err(|errno| Failure::about(folder.display(), errno))?;
        let (free, bytes) = (room.f_bavail * room.f_frsize, self.recorded.file_bytes());
        if bytes + bytes / OVERHEAD_PART > free {
            return about(format!(
                "the recorded files are made again there, {} MiB, and {} MiB are free; name a \
                 folder with more room, or cut the recording (`readpath recording cut`)",
                bytes.div_ceil(1 << 20),
                free >> 20
            ));
        }
        Ok(())
    }

    /// Makes the reads once; gives what was measured, and what a reader must know of it.
    pub fn play(&mut self, row: &RealRow<'_>) -> Result<(Played, Option<String>), Failure> {
        let paths = self.make(row.folder)?;
        let failed = |problem: &dyn std::fmt::Display| {
            Failure::Run(format!("{}: the reads can't be made: {problem}", row.folder.display()))
        };
        let mut part = WorkerProcess::start(NAME).map_err(|error| failed(&error))?;
        let order = ReplayOrder {
            recording: OrderPath(self.recording.to_owned()),
            files: paths.iter().cloned().map(OrderPath).collect(),
            policies: row.policies.clone(),
            memory_bytes: row.memory_bytes,
        };
        let gone = |gone: Gone| match gone {
            Gone::Interrupted => Failure::Interrupted,
            Gone::Process(status) => failed(&format!("their process has ended: {status}")),
            Gone::Said(words) => failed(&words),
            Gone::TooLate => failed(&"it takes too long"),
        };
        part.tell(&order).map_err(|error| failed(&error))?;
        let own_bytes = match part.answer(None, self.interrupt).map_err(gone)? {
            ReplayReply::Ready { own_bytes } => own_bytes,
            ReplayReply::Played(_) => return Err(failed(&"it answered before it was asked")),
            ReplayReply::Failed(words) => return Err(failed(&words)),
        };
        // What comes later is dropped first, so the process has ended before its group goes.
        let group = match (&row.policies, row.memory_bytes) {
            (None, Some(bytes)) => Some(limit(bytes + own_bytes)?),
            _ => None,
        };
        let mut part = part;
        if let Some(group) = &group {
            group.add(part.id()).map_err(|error| failed(&error))?;
        }
        let warm = self.make_cold(&paths)?;
        part.tell(&ReplayBegin).map_err(|error| failed(&error))?;
        let played = match part.answer(None, self.interrupt).map_err(gone)? {
            ReplayReply::Played(played) => played,
            ReplayReply::Ready { .. } => return Err(failed(&"it was ready twice")),
            ReplayReply::Failed(words) => return Err(failed(&words)),
        };
        drop(part);
        let notes = note::join(warm, played.note.clone());
        Ok((played, notes))
    }

    /// The files in a folder; they are made when it is first used.
    fn make(&mut self, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
        if !self.made.contains_key(folder) {
            let made = ScratchFolder::new(folder, "readpath-replay")?;
            for (at, file) in self.recorded.files().iter().enumerate() {
                let path = made.path().join(at.to_string());
                made.add(&path, file.bytes, self.seed.wrapping_add(at as u64), self.interrupt)?;
            }
            made.sync()?;
            self.made.insert(folder.to_owned(), made);
        }
        let made = self.made[folder].path();
        Ok((0..self.recorded.files().len()).map(|at| made.join(at.to_string())).collect())
    }

    /// Has the kernel drop the files' pages; says how many stayed.
    fn make_cold(&self, paths: &[PathBuf]) -> Result<Option<String>, Failure> {
        let (mut resident, mut pages) = (0, 0);
        for path in paths {
            let residency = make_cold(path, &mut || !self.interrupt.has_come())?;
            resident += residency.resident;
            pages += residency.pages;
        }
        Ok((resident > 0)
            .then(|| format!("not cold: {resident} of {pages} pages stayed in memory")))
    }
}

fn limit(bytes: u64) -> Result<MemoryGroup, Failure> {
    let unavailable = |error: SwapError| {
        Failure::Unavailable(format!("--memory on kernel: is a control group's: {error}"))
    };
    MemoryGroup::new(bytes).map(|(group, _)| group).map_err(unavailable)
}

/// The kernel's readahead and scheduler on a folder's device, where it tells.
pub fn kernel_policies(folder: &Path) -> (String, Option<String>) {
    match queue_of(folder) {
        Some(queue) => (format!("kernel, {} KiB", queue.read_ahead_bytes / 1024), queue.scheduler),
        None => ("kernel".to_owned(), None),
    }
}
