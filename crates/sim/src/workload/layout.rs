//! Files of a workload, and the area of each that a process uses: fio's size rules.
//!
//! For each file of a process with `n` files:
//!
//! - Without `filesize`, the area is `size / n` bytes from `offset`, and the file ends with it.
//!   Without `size` too, the area is everything after `offset`.
//! - With `filesize`, the area is everything after `offset`. `size` only limits the bytes of one
//!   pass.
//! - A percentage refers to the whole file, is cut at its end, and is rounded down to whole blocks.
//!   An `offset` in percent is rounded up to whole blocks.

use std::collections::BTreeMap;

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

    /// Returns the areas of process number `process_index` of a job, one per file. Adds new files
    /// to the layout.
    ///
    /// # Errors
    /// Fails if a file is missing or too small, if its size is unknown, or if there are too many
    /// files.
    pub fn process_areas(
        &mut self,
        job: &Job,
        process_index: u32,
    ) -> Result<Vec<FileArea>, WorkloadError> {
        let fio_names = self.file_names(job, process_index)?;
        let names = match self.source {
            FileSource::One { name, .. } => vec![name.to_owned()],
            _ => fio_names.clone(),
        };
        let count = names.len() as u64;
        let mut areas = Vec::new();
        for (file_index, name) in names.into_iter().enumerate() {
            // Stated sizes are spread evenly from the minimum to the maximum.
            let stated_bytes = job.file_bytes.map(|(min, max)| match count {
                1 => min,
                count => {
                    min + ((max - min) as u128 * file_index as u128 / (count - 1) as u128) as u64
                }
            });
            let area = self.add_area(job, process_index, &name, stated_bytes, count)?;
            // The hash is of the name in fio, also where another file stands for it.
            let name_hash = hash_of_name(fio_names.get(file_index).map_or(&name, |name| name));
            areas.push(FileArea { name_hash, ..area });
        }
        Ok(areas)
    }

    /// Returns the names of the files of process number `process_index` of a job, as fio would give
    /// them. Fails if there are too many files.
    fn file_names(&self, job: &Job, process_index: u32) -> Result<Vec<String>, WorkloadError> {
        let directory = match job.directories.len() {
            0 => String::new(),
            count => format!("{}/", job.directories[process_index as usize % count]),
        };
        if !job.file_names.is_empty() {
            return Ok(job.file_names.iter().map(|name| format!("{directory}{name}")).collect());
        }
        let file_count = u64::from(job.files) * u64::from(job.processes) + self.files.len() as u64;
        if file_count > FILES_MAX {
            return Err(WorkloadError::TooManyFiles { asked: file_count });
        }
        let format = job.file_name_format.as_deref().unwrap_or(NAME_FORMAT);
        let name = |file: u32| {
            let name = format
                .replace("$jobname", &job.name)
                .replace("$jobnum", &process_index.to_string())
                .replace("$filenum", &file.to_string())
                .replace("$clientuid", "localhost");
            format!("{directory}{name}")
        };
        Ok((0..job.files).map(name).collect())
    }

    /// Returns the area of process number `process_index` in one of `file_count` files, and
    /// registers the file. `stated_bytes` is the size that the job states (option filesize of
    /// fio). The caller sets the `name_hash` of the area, which is 0 here.
    fn add_area(
        &mut self,
        job: &Job,
        process_index: u32,
        name: &str,
        stated_bytes: Option<u64>,
        file_count: u64,
    ) -> Result<FileArea, WorkloadError> {
        let real_bytes = self.real_bytes(job, name)?;
        let assumed_bytes = match self.source {
            // The default size starts after the beginning of the areas of all processes of the job.
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
        let whole_bytes = stated_bytes.or(real_bytes).or(assumed_bytes);
        let (offset, bytes) =
            area_in_file(job, process_index, name, file_count, stated_bytes, whole_bytes)?;
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

    /// Returns the size of an existing file in bytes, or `None` in the simulation. Fails if the
    /// file is missing.
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

/// Returns offset and length, in bytes, of the area of process number `process_index` in one of
/// `file_count` files. The size of the file is `whole_bytes`, or `None` if it is unknown. It is
/// `stated_bytes` if the job states the size of each file.
///
/// The job's `size` limits the area as in fio. A size in bytes is divided equally among the files,
/// unless the job states their sizes. A size below 100 % is a share of the file, in whole blocks.
/// Without such a limit the area reaches to the end of the file.
///
/// # Errors
/// The area depends on the size of the file, which is unknown.
fn area_in_file(
    job: &Job,
    process_index: u32,
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
    let block_bytes = job.block_sizes[0].smallest_bytes().min(job.block_sizes[1].smallest_bytes());
    let align_bytes = job.offset_align_bytes.unwrap_or(block_bytes);
    let in_bytes = |extent: BytesOrPercent| match extent {
        BytesOrPercent::Bytes(bytes) => Ok(bytes),
        BytesOrPercent::Percent(percent) => {
            let bytes = percent_of(known_bytes()?, percent);
            Ok(bytes.div_ceil(align_bytes).saturating_mul(align_bytes))
        }
    };
    let increment_bytes = match job.offset_increment {
        BytesOrPercent::Bytes(0) => 0,
        increment => in_bytes(increment)?.saturating_mul(u64::from(process_index)),
    };
    let offset = in_bytes(job.offset)?.saturating_add(increment_bytes);
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
