//! Files of a workload, and the area of each that a process uses: fio's size rules. A *pass* is one
//! repetition of a job's work.
//!
//! For each file of a process with `n` files:
//!
//! - Without `filesize`, the area is `size / n` bytes from `offset`, and the file ends with it.
//!   Without `size` too, the area is everything after `offset`.
//! - With `filesize`, the area is everything after `offset`. `size` only limits the bytes of one
//!   pass.
//! - A percentage refers to the whole file, is cut at its end, and is rounded down to whole blocks.
//!   If `offset` or `offset_increment` is in percent, their sum is rounded up to whole blocks.
//! - A block is the smallest one of all directions, trims included. Trims are never issued here,
//!   and only their sizes count.
//! - The clones of a job (`numjobs`) count downwards: of three processes, the second has the job
//!   number 2 and the third the job number 1. The job number is in names and in
//!   `offset_increment`.

use std::collections::BTreeMap;

use readpath_core::request::ProcessId;

use super::random::{ProcessSeeds, RandomStream, Taus88};
use super::skew::hash_of_name;
use super::{FileId, FileSource, WorkloadError, WorkloadFile};
use crate::job::{BytesOrPercent, Job};

/// Format of the names of unnamed files, as in fio.
const NAME_FORMAT: &str = "$jobname.$jobnum.$filenum";

/// Maximum number of files in a workload, chosen.
pub const FILES_MAX: u64 = 1 << 20;

/// The part of a file that a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileArea {
    /// The file.
    pub file: FileId,
    /// Start of the area in the file.
    pub offset: u64,
    /// Length of the area.
    pub bytes: u64,
    /// Length of the whole file when the process is laid out.
    pub file_bytes: u64,
    /// Hash of the file's name in fio. Skewed positions have seeds from it.
    pub name_hash: u32,
}

/// The files found so far.
pub struct FileLayout<'a> {
    /// Source of the files, and of their sizes.
    source: FileSource<'a>,
    /// Files so far, by their identifiers.
    files: Vec<WorkloadFile>,
    /// Identifiers of the files by their names.
    ids: BTreeMap<String, FileId>,
}

impl<'a> FileLayout<'a> {
    /// Creates a layout without files.
    pub fn new(source: FileSource<'a>) -> FileLayout<'a> {
        FileLayout { source, files: Vec::new(), ids: BTreeMap::new() }
    }

    /// Returns the files of all areas so far.
    pub fn into_files(self) -> Vec<WorkloadFile> {
        self.files
    }

    /// Returns the areas of the process at `process_index` of a job, one per file: a single one for
    /// [`FileSource::One`]. `id` is the number of the process over all jobs. Adds new files to the
    /// layout.
    ///
    /// # Errors
    /// Fails if a file is missing or too small, if its size is unknown, or if there are too many
    /// files.
    pub fn process_areas(
        &mut self,
        job: &Job,
        process_index: u32,
        id: ProcessId,
    ) -> Result<Vec<FileArea>, WorkloadError> {
        let job_number = job_number(job, process_index);
        let fio_names = self.file_names(job, process_index)?;
        let names = match self.source {
            FileSource::One { name, .. } => vec![name.to_owned()],
            _ => fio_names.clone(),
        };
        let count = names.len() as u64;
        // The seed of the run changes positions, not the sizes of files. The value 1 leaves fio's
        // seeds unchanged.
        let run_seed = 1;
        let seeds = ProcessSeeds::new(job, id.0, process_index > 0, run_seed);
        let mut sizes = Taus88::new(seeds.stream_seed(RandomStream::FileSizes));
        let mut areas = Vec::new();
        for (file_index, name) in names.into_iter().enumerate() {
            let stated_bytes = job.file_bytes.map(|(min, max)| match min == max {
                true => min,
                false => drawn_file_bytes(min, max, block_bytes_smallest(job), &mut sizes),
            });
            let area = self.add_area(job, job_number, &name, stated_bytes, count)?;
            // The hash is of the name in fio, also where another file stands for it.
            let name_hash = hash_of_name(fio_names.get(file_index).map_or(&name, |name| name));
            areas.push(FileArea { name_hash, ..area });
        }
        Ok(areas)
    }

    /// Returns the names of the files of the process at `process_index` of `job`, as fio would give
    /// them. Fails if there are too many files: the files so far, and all files of this process and
    /// of later ones of the job. Names that the job states are returned without this check.
    fn file_names(&self, job: &Job, process_index: u32) -> Result<Vec<String>, WorkloadError> {
        let job_number = job_number(job, process_index);
        let directory = match job.directories.len() {
            0 => String::new(),
            count => format!("{}/", job.directories[job_number as usize % count]),
        };
        if !job.file_names.is_empty() {
            return Ok(job.file_names.iter().map(|name| format!("{directory}{name}")).collect());
        }
        let processes_left = u64::from(job.processes - process_index);
        let file_count = u64::from(job.files) * processes_left + self.files.len() as u64;
        if file_count > FILES_MAX {
            return Err(WorkloadError::TooManyFiles { asked: file_count });
        }
        let format = job.file_name_format.as_deref().unwrap_or(NAME_FORMAT);
        let name = |file: u32| {
            let name = format
                .replace("$jobname", &job.name)
                .replace("$jobnum", &job_number.to_string())
                .replace("$filenum", &file.to_string())
                // The value in fio for a run without a client.
                .replace("$clientuid", "localhost");
            format!("{directory}{name}")
        };
        Ok((0..job.files).map(name).collect())
    }

    /// Returns the area of the process with `job_number` in one of `file_count` files, and
    /// registers the file. `stated_bytes` is the size that the job states (option filesize of fio).
    /// The caller sets the `name_hash` of the area, which is 0 here. Fails if the file is missing,
    /// or if its size is needed and unknown. Also fails if the area is too small for a block, or
    /// reaches past the end of an existing file.
    fn add_area(
        &mut self,
        job: &Job,
        job_number: u32,
        name: &str,
        stated_bytes: Option<u64>,
        file_count: u64,
    ) -> Result<FileArea, WorkloadError> {
        let real_bytes = self.real_bytes(job, name)?;
        let assumed_bytes = match self.source {
            // The default size is added to the largest offset in bytes of all processes of the job.
            FileSource::Assumed { file_bytes } => Some(
                fixed_bytes(job.offset)
                    .saturating_add(
                        fixed_bytes(job.offset_increment)
                            .saturating_mul(u64::from(job.processes - 1)),
                    )
                    .saturating_add(file_bytes),
            ),
            _ => None,
        };
        // The size that the job states precedes the real one.
        let whole_bytes = stated_bytes.or(real_bytes).or(assumed_bytes);
        let (offset, bytes) =
            area_in_file(job, job_number, name, file_count, stated_bytes, whole_bytes)?;
        // The area must hold the smallest block of each direction that the job has, and lie
        // within an existing file.
        let [read_bytes, write_bytes] =
            [0, 1].map(|direction: usize| job.block_sizes[direction].smallest_bytes());
        let block_bytes = match job.pattern.reads_percent {
            0 => write_bytes,
            100 => read_bytes,
            _ => read_bytes.max(write_bytes),
        };
        if bytes < block_bytes {
            return Err(WorkloadError::BlockTooLarge {
                job: job.name.clone(),
                file: name.to_owned(),
                block_bytes,
                area_bytes: bytes,
            });
        }
        let end = offset.saturating_add(bytes);
        if let Some(have_bytes) = real_bytes.filter(|bytes| *bytes < end) {
            let (job, file) = (job.name.clone(), name.to_owned());
            return Err(WorkloadError::BeyondEnd { job, file, need_bytes: end, have_bytes });
        }
        // A file that is made for the run reaches to the end of its last area.
        let file = self.file_id(name.to_owned());
        let file_entry = &mut self.files[file.0 as usize];
        file_entry.bytes = real_bytes.unwrap_or(file_entry.bytes.max(end));
        Ok(FileArea { file, offset, bytes, file_bytes: file_entry.bytes, name_hash: 0 })
    }

    /// Returns the size of an existing file in bytes, or `None` for a file that is created for the
    /// run. Fails if the file is missing.
    fn real_bytes(&self, job: &Job, name: &str) -> Result<Option<u64>, WorkloadError> {
        match self.source {
            FileSource::Modelled | FileSource::Assumed { .. } => Ok(None),
            FileSource::One { bytes, .. } => Ok(Some(bytes)),
            FileSource::Existing(size) => match size(name) {
                Some(bytes) => Ok(Some(bytes)),
                None => Err(WorkloadError::NoFile { job: job.name.clone(), file: name.to_owned() }),
            },
        }
    }

    /// Returns the identifier of the file with this name. A new name is added with a size of 0.
    fn file_id(&mut self, name: String) -> FileId {
        if let Some(id) = self.ids.get(&name) {
            return *id;
        }
        let id = FileId(self.files.len() as u32);
        self.files.push(WorkloadFile { name: name.clone(), bytes: 0 });
        self.ids.insert(name, id);
        id
    }
}

/// Returns an extent in bytes, or 0 for a percentage: the file has no known size yet.
fn fixed_bytes(extent: BytesOrPercent) -> u64 {
    match extent {
        BytesOrPercent::Bytes(bytes) => bytes,
        BytesOrPercent::Percent(_) => 0,
    }
}

/// Returns the number of a process within its job (`$jobnum`), as in fio: the clones of the first
/// process count downwards.
fn job_number(job: &Job, process_index: u32) -> u32 {
    match process_index {
        0 => 0,
        clone => job.processes - clone,
    }
}

/// Returns the smallest block size in bytes of all directions, trims included.
fn block_bytes_smallest(job: &Job) -> u64 {
    let [read, write] = [0, 1].map(|direction: usize| job.block_sizes[direction].smallest_bytes());
    read.min(write).min(job.trim_block_sizes.smallest_bytes())
}

/// Draws the size of a file from `min` up to `max`, which is excluded. The size is rounded down to
/// whole blocks of `block_bytes`, even below `min`. A size below one block is not rounded.
fn drawn_file_bytes(min: u64, max: u64, block_bytes: u64, sizes: &mut Taus88) -> u64 {
    let drawn = min + sizes.below(max - min);
    match drawn < block_bytes {
        true => drawn,
        false => drawn - drawn % block_bytes,
    }
}

/// Returns offset and length, in bytes, of the area of the process with `job_number` in one of
/// `file_count` files. The size of the file is `whole_bytes`, or `None` if it is unknown. It is
/// `stated_bytes` if the job states the size of each file. `name` is the file's, for the error.
///
/// The job's `size` limits the area as in fio. A size in bytes is divided equally among the files,
/// unless the job states their sizes. A size below 100 % is a share of the file, in whole blocks.
/// Without such a limit the area reaches to the end of the file.
///
/// # Errors
/// The area depends on the size of the file, which is unknown.
fn area_in_file(
    job: &Job,
    job_number: u32,
    name: &str,
    file_count: u64,
    stated_bytes: Option<u64>,
    whole_bytes: Option<u64>,
) -> Result<(u64, u64), WorkloadError> {
    let known_bytes = || {
        whole_bytes.ok_or_else(|| WorkloadError::UnknownSize {
            job: job.name.clone(),
            file: name.to_owned(),
        })
    };
    let block_bytes = block_bytes_smallest(job);
    let in_bytes = |extent: BytesOrPercent| match extent {
        BytesOrPercent::Bytes(bytes) => Ok(bytes),
        BytesOrPercent::Percent(0) => Ok(0),
        BytesOrPercent::Percent(percent) => Ok(percent_of(known_bytes()?, percent)),
    };
    let is_percent =
        |extent: BytesOrPercent| matches!(extent, BytesOrPercent::Percent(percent) if percent > 0);
    let increment_bytes = in_bytes(job.offset_increment)?.saturating_mul(u64::from(job_number));
    let sum = in_bytes(job.offset)?.saturating_add(increment_bytes);
    let offset = match is_percent(job.offset) || is_percent(job.offset_increment) {
        true => {
            let align_bytes = job.offset_align_bytes.unwrap_or(block_bytes);
            sum.div_ceil(align_bytes).saturating_mul(align_bytes)
        }
        false => sum,
    };
    let bytes_after_offset = |total_bytes: u64| total_bytes.saturating_sub(offset);
    let bytes = match job.size {
        Some(BytesOrPercent::Bytes(bytes)) if stated_bytes.is_none() => bytes / file_count,
        Some(BytesOrPercent::Percent(percent)) if percent < 100 => {
            let total_bytes = known_bytes()?;
            let area_bytes = percent_of(total_bytes, percent).min(bytes_after_offset(total_bytes));
            area_bytes - area_bytes % block_bytes
        }
        _ => bytes_after_offset(known_bytes()?),
    };
    Ok((offset, bytes))
}

/// Returns `percent` of `bytes`, rounded down.
pub fn percent_of(bytes: u64, percent: u8) -> u64 {
    (u128::from(bytes) * u128::from(percent) / 100) as u64
}
