//! Export of a recording as a trace of objects, for cache simulators. An object is a page.

use std::collections::BTreeMap;
use std::path::Path;

use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_trace::recording::{MappedUse, Record};
use serde_json::json;

use super::file_names::FileNames;
use super::{Output, for_each_record};
use crate::exit::{CommandResult, Failure};

/// Maximum number of references in `oracleGeneral`. Each of its records names the next reference to
/// its object, so that all references are kept in memory: 32 bytes for each, 4 GiB in all.
const REFERENCES_MAX: usize = 1 << 27;

/// Next use of an object that has none.
const NO_NEXT_USE: i64 = -1;

/// A reference to a page.
struct PageReference {
    /// Begin of the read since the begin of the recording, in nanoseconds.
    begin_ns: u64,
    /// Number of the file in the recording.
    file: u32,
    /// Number of the page in the file.
    page: u64,
}

/// Passes the pages of each read to `on_page`, and each file with its path to `on_file`. The reads
/// come in the order of their ends. A fault of a mapping counts as the pages that were used. Reads
/// without bytes are left out.
fn for_each_page(
    path: &Path,
    on_file: &mut dyn FnMut(u32, String),
    on_page: &mut dyn FnMut(PageReference) -> CommandResult,
) -> CommandResult {
    let mut mapped = MappedUse::default();
    for_each_record(path, |record| {
        match record {
            Record::File(file) => on_file(file.file, file.path),
            Record::Mapped(range) => mapped.map(&range),
            Record::Read(read) if read.bytes_read() > 0 => {
                for read in mapped.reads(&read) {
                    for page in PageRange::covering(read.offset, read.bytes_read()).pages() {
                        on_page(PageReference { begin_ns: read.begin_ns, file: read.file, page })?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    })
}

/// Writes a line for each page of each read: key (name of the file and page), size in bytes, and
/// microseconds since the begin of the recording.
pub(super) fn write_jsonl(path: &Path, out: &mut Output) -> CommandResult {
    let names = std::cell::RefCell::new(FileNames::default());
    let mut keep_name = |file, path| names.borrow_mut().add(file, path);
    for_each_page(path, &mut keep_name, &mut |PageReference { begin_ns, file, page }| {
        let names = names.borrow();
        let name = names.name(file);
        let line = json!({
            "key": format!("{name}:{page}"), "size": PAGE_BYTES, "time_us": begin_ns / 1000,
        });
        out.write_text(format_args!("{line}\n"))
    })
}

/// Writes libCacheSim's `oracleGeneral`: records of 24 bytes, with the time in seconds, the object,
/// its size and its next use. Objects are numbered from 1 by their first reference. The next use is
/// the number of a reference, from 0, or [`NO_NEXT_USE`].
pub(super) fn write_oracle_general(path: &Path, out: &mut Output) -> CommandResult {
    let mut numbers: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let mut references: Vec<(u32, u64)> = Vec::new();
    for_each_page(path, &mut |_, _| {}, &mut |PageReference { begin_ns, file, page }| {
        if references.len() == REFERENCES_MAX {
            let reason = format!(
                "more than {REFERENCES_MAX} pages; cut the recording with `readpath recording cut`"
            );
            return Err(Failure::usage_of(path.display(), reason));
        }
        let next_number = numbers.len() as u64 + 1;
        let object = *numbers.entry((file, page)).or_insert(next_number);
        // A time that the field cannot hold becomes its maximum.
        let seconds = u32::try_from(begin_ns / 1_000_000_000).unwrap_or(u32::MAX);
        references.push((seconds, object));
        Ok(())
    })?;
    let objects: Vec<u64> = references.iter().map(|(_, object)| *object).collect();
    for ((seconds, object), next) in references.into_iter().zip(next_uses(&objects)) {
        let size = PAGE_BYTES as u32;
        out.write_bytes(&seconds.to_le_bytes())?;
        out.write_bytes(&object.to_le_bytes())?;
        out.write_bytes(&size.to_le_bytes())?;
        out.write_bytes(&next.to_le_bytes())?;
    }
    Ok(())
}

/// Index of the next reference to the same object, for each reference.
fn next_uses(objects: &[u64]) -> Vec<i64> {
    let mut next_by_object: BTreeMap<u64, i64> = BTreeMap::new();
    let mut next_uses = vec![NO_NEXT_USE; objects.len()];
    for (index, object) in objects.iter().enumerate().rev() {
        let later = next_by_object.insert(*object, index as i64);
        next_uses[index] = later.unwrap_or(NO_NEXT_USE);
    }
    next_uses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_use_is_the_next_reference_to_the_object() {
        assert_eq!(next_uses(&[7, 8, 7, 7, 9]), [2, -1, 3, -1, -1]);
    }
}
