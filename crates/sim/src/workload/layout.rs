//! Which files there are, and which area of each a process uses: fio's size rules.
//!
//! For each file of a process, with `n` files:
//! - without `filesize`, the area is `size / n` bytes from `offset`, and the
//!   file reaches to its end; without `size` too, the area is all that the file
//!   has behind `offset`;
//! - with `filesize`, the area is all that such a file has behind `offset`, and
//!   `size` only limits how many bytes one pass moves in it;
//! - a percentage is one of the whole file, cut where the file ends and rounded
//!   down to whole blocks; a percentage as `offset` is rounded up to them.

use std::collections::BTreeMap;

use super::{File, FileId, Placement, WorkloadError, block_bytes_largest};
use crate::job::{Extent, Job};

/// The part of a file that a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub file: FileId,
    pub offset: u64,
    pub bytes: u64,
}

/// The files as they become known.
pub struct Layout<'a> {
    placement: Placement<'a>,
    files: Vec<File>,
    ids: BTreeMap<String, FileId>,
}

impl<'a> Layout<'a> {
    pub fn new(placement: Placement<'a>) -> Layout<'a> {
        Layout { placement, files: Vec::new(), ids: BTreeMap::new() }
    }

    pub fn into_files(self) -> Vec<File> {
        self.files
    }

    /// The areas of one process, one for each of its files.
    pub fn areas(&mut self, job: &Job, clone: u32) -> Result<Vec<Area>, WorkloadError> {
        let names = self.names(job, clone);
        let count = names.len() as u64;
        names.into_iter().map(|name| self.area(job, name, count)).collect()
    }

    fn names(&self, job: &Job, clone: u32) -> Vec<String> {
        if let Placement::One { name, .. } = self.placement {
            return vec![name.to_owned()];
        }
        let own = [format!("{}.{clone}.0", job.name)];
        let names = if job.file_names.is_empty() { &own[..] } else { &job.file_names[..] };
        match &job.directory {
            Some(directory) => names.iter().map(|name| format!("{directory}/{name}")).collect(),
            None => names.to_vec(),
        }
    }

    fn area(&mut self, job: &Job, name: String, files: u64) -> Result<Area, WorkloadError> {
        let real_bytes = self.real_bytes(job, &name)?;
        let (offset, bytes) = area_in_file(job, &name, files, real_bytes)?;
        let block_bytes = block_bytes_largest(job);
        if bytes < block_bytes {
            let job = job.name.clone();
            return Err(WorkloadError::BlockTooLarge {
                job,
                file: name,
                block_bytes,
                area_bytes: bytes,
            });
        }
        let end = offset.saturating_add(bytes);
        if let Some(have_bytes) = real_bytes.filter(|have| *have < end) {
            let job = job.name.clone();
            return Err(WorkloadError::BeyondEnd { job, file: name, need_bytes: end, have_bytes });
        }
        let file = self.file(name);
        let known = &mut self.files[file.0 as usize];
        known.bytes = real_bytes.unwrap_or(known.bytes.max(end));
        Ok(Area { file, offset, bytes })
    }

    /// The size of a file that exists; `None` in the modelled world.
    fn real_bytes(&self, job: &Job, name: &str) -> Result<Option<u64>, WorkloadError> {
        match self.placement {
            Placement::Modelled => Ok(None),
            Placement::One { bytes, .. } => Ok(Some(bytes)),
            Placement::Existing(size) => match size(name) {
                Some(bytes) => Ok(Some(bytes)),
                None => Err(WorkloadError::NoFile { job: job.name.clone(), file: name.to_owned() }),
            },
        }
    }

    fn file(&mut self, name: String) -> FileId {
        if let Some(id) = self.ids.get(&name) {
            return *id;
        }
        let id = FileId(self.files.len() as u32);
        self.files.push(File { name: name.clone(), bytes: 0 });
        self.ids.insert(name, id);
        id
    }
}

/// Offset and length of the area in one of `files` files.
fn area_in_file(
    job: &Job,
    name: &str,
    files: u64,
    real_bytes: Option<u64>,
) -> Result<(u64, u64), WorkloadError> {
    let whole_bytes = job.file_bytes.or(real_bytes);
    let known = || {
        whole_bytes.ok_or_else(|| WorkloadError::UnknownSize {
            job: job.name.clone(),
            file: name.to_owned(),
        })
    };
    let block_bytes = job.block_bytes_read.min(job.block_bytes_write);
    let offset = match job.offset {
        Extent::Bytes(bytes) => bytes,
        Extent::Percent(percent) => {
            share(known()?, percent).div_ceil(block_bytes).saturating_mul(block_bytes)
        }
    };
    let behind = |whole: u64| whole.saturating_sub(offset);
    let bytes = match job.size {
        Some(Extent::Bytes(bytes)) if job.file_bytes.is_none() => bytes / files,
        Some(Extent::Percent(percent)) if percent < 100 => {
            let whole = known()?;
            let cut = share(whole, percent).min(behind(whole));
            cut - cut % block_bytes
        }
        _ => behind(known()?),
    };
    Ok((offset, bytes))
}

/// `percent` of `bytes`, rounded down.
pub fn share(bytes: u64, percent: u8) -> u64 {
    (u128::from(bytes) * u128::from(percent) / 100) as u64
}
