//! Reading and writing of entries, on the threads of a tier.
//!
//! An *entry* is the file of one block of an object's version. Its *head* names the version, and
//! has the checksums of its pages. The *ledger* of the folder has the number of bytes of all
//! entries. The *index* has the entries that this process knows, in the order of eviction.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use readpath_core::unit::PAGE_BYTES;

use super::entry::{BLOCK_BYTES, BadHead, EntryName, HEAD_BYTES, Head, VersionKey};
use super::folder::{Folder, FolderLock};
use super::index::ENTRIES_MAX;
use super::tier::Tier;

/// A range of an object to read.
#[derive(Debug)]
pub(super) struct ReadJob {
    /// The version of the object.
    pub(super) key: Arc<VersionKey>,
    /// Bytes within the object.
    pub(super) range: Range<u64>,
}

/// Bytes of a range from the folder.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskRead {
    /// The first bytes of the range.
    pub(crate) prefix: Bytes,
    /// The last bytes of the range, none of them in the prefix.
    pub(crate) suffix: Bytes,
}

/// Fetched pages to write.
#[derive(Debug)]
pub(super) struct WriteJob {
    /// The version of the object.
    pub(super) key: Arc<VersionKey>,
    /// Position of the first chunk in the object.
    pub(super) start: u64,
    /// The fetched bytes, without gaps.
    pub(super) chunks: Vec<Bytes>,
    /// Pages of these bytes that are to be written.
    pub(super) parts: Vec<Part>,
}

/// Whole pages of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Number of the block in the object.
    pub(super) block: u64,
    /// Numbers of the pages in the block.
    pub(super) pages: Range<u64>,
    /// True if most of the pages were not fetched before.
    pub(super) is_new: bool,
}

impl Part {
    /// The parts of a range of an object: its whole pages, by block. The last page of the object
    /// counts as a whole one. The admission sets `is_new` later.
    pub(super) fn of_range(range: Range<u64>, object_bytes: u64) -> Vec<Part> {
        let first = range.start.div_ceil(PAGE_BYTES);
        let end = match range.end == object_bytes {
            true => range.end.div_ceil(PAGE_BYTES),
            false => range.end / PAGE_BYTES,
        };
        let block_pages = BLOCK_BYTES / PAGE_BYTES;
        let mut parts = Vec::new();
        let mut page = first;
        while page < end {
            let block = page / block_pages;
            let block_end = end.min((block + 1) * block_pages);
            let pages = page - block * block_pages..block_end - block * block_pages;
            parts.push(Part { block, pages, is_new: false });
            page = block_end;
        }
        parts
    }

    /// The pages as a set: bit n for page n.
    pub(super) fn bits(&self) -> u64 {
        // A shift by 64, for the end of a whole block, is `None`: all pages are below it.
        let below = |page: u64| u64::MAX.checked_shl(page as u32).map_or(u64::MAX, |above| !above);
        below(self.pages.end) & !below(self.pages.start)
    }
}

impl WriteJob {
    /// Bytes that the job keeps in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }

    /// The bytes of a range of the object, which is within the chunks.
    fn data(&self, range: Range<u64>) -> Vec<u8> {
        let mut data = Vec::with_capacity((range.end - range.start) as usize);
        let mut at = self.start;
        for chunk in &self.chunks {
            let end = at + chunk.len() as u64;
            let part = range.start.max(at)..range.end.min(end);
            if part.start < part.end {
                data.extend_from_slice(
                    &chunk[(part.start - at) as usize..(part.end - at) as usize],
                );
            }
            at = end;
        }
        data
    }
}

/// End of a block from which on present pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    First,
    Last,
}

/// Result of a lookup that found no valid pages.
#[derive(Debug)]
enum BadEntry {
    /// A checksum does not match, or the file is too short.
    Damaged,
    /// The entry is of another key: its name has hashes only, and two keys may have the same ones.
    OtherKey,
}

impl Tier {
    /// Reads the bytes at both ends of a range, up to the first absent page from either end. Each
    /// block that is looked up counts once, as a hit or a miss. Both parts are empty if the tier is
    /// off.
    pub(super) fn read(&self, job: &ReadJob) -> DiskRead {
        let Some(folder) = self.open_folder() else { return DiskRead::default() };
        let ReadJob { key, range } = job;
        // True for a block in which bytes were found, from either side: each block counts once.
        let mut found: BTreeMap<u64, bool> = BTreeMap::new();
        // From the first byte up: all before `at` was found.
        let mut prefix = Vec::new();
        let mut at = range.start;
        // A block without a valid entry: it is not looked up again from the other end.
        let mut absent = None;
        while at < range.end {
            let block = at / BLOCK_BYTES;
            let part_end = range.end.min((block + 1) * BLOCK_BYTES);
            let read = self.read_block(folder, key, at..part_end, Side::First);
            if read.is_none() {
                absent = Some(block);
            }
            let bytes = read.unwrap_or_default();
            found.insert(block, !bytes.is_empty());
            at += bytes.len() as u64;
            prefix.extend_from_slice(&bytes);
            if at < part_end {
                break;
            }
        }
        // From the last byte down: all from `end` on was found.
        let mut parts = Vec::new();
        let mut end = range.end;
        while end > at {
            let block = (end - 1) / BLOCK_BYTES;
            if absent == Some(block) {
                break;
            }
            let part_start = at.max(block * BLOCK_BYTES);
            let read = self.read_block(folder, key, part_start..end, Side::Last);
            let bytes = read.unwrap_or_default();
            *found.entry(block).or_default() |= !bytes.is_empty();
            end -= bytes.len() as u64;
            parts.push(bytes);
            if end > part_start {
                break;
            }
        }
        let hits = found.values().filter(|&&is_hit| is_hit).count() as u64;
        let counters = &mut self.lock().counters;
        counters.hits += hits;
        counters.misses += found.len() as u64 - hits;
        parts.reverse();
        DiskRead { prefix: prefix.into(), suffix: parts.concat().into() }
    }

    /// Reads bytes of one block, from one side up to the first absent page: no bytes if the page at
    /// this side is absent. `None` without a valid entry of this key, and after a read that failed.
    /// A damaged entry is removed, if the lock is free and a second read finds the damage too.
    fn read_block(
        &self,
        folder: &Folder,
        key: &VersionKey,
        range: Range<u64>,
        side: Side,
    ) -> Option<Vec<u8>> {
        let name = key.entry(range.start / BLOCK_BYTES);
        let started = now();
        let read = || -> io::Result<Result<PagesRead, BadEntry>> {
            read_entry(&folder.open_entry(name)?, key, &range, side)
        };
        let mut result = read();
        // The entry is damaged or cannot be read.
        if !matches!(result, Ok(Ok(_) | Err(BadEntry::OtherKey)))
            && !is_missing(&result)
            // Perhaps it is being written: then another process or thread has the lock.
            && let Some(folder_lock) = folder.try_lock()
        {
            result = read();
            if matches!(result, Ok(Err(BadEntry::Damaged))) || is_damage(&result) {
                self.discard(&folder_lock, name);
            }
        }
        let ns = started.elapsed().as_nanos() as u64;
        let mut state = self.lock();
        match result {
            Ok(Ok(PagesRead { bytes, entry_bytes })) if !bytes.is_empty() => {
                state.counters.hit_bytes += bytes.len() as u64;
                state.admission.on_disk_read(ns, bytes.len() as u64);
                // True for the first hit of a new entry, which is evidence for the admission.
                if state.index.on_hit(name, entry_bytes) {
                    state.admission.on_read_again();
                }
                Some(bytes)
            }
            result => {
                if is_missing(&result) {
                    state.index.remove(name);
                } else if result.is_err() {
                    state.counters.failures += 1;
                }
                // A valid entry without the first page from this side has no bytes. All other cases
                // are `None`.
                matches!(result, Ok(Ok(_))).then(Vec::new)
            }
        }
    }

    /// Removes a damaged entry, and its bytes from the ledger as far as its size is known.
    fn discard(&self, folder_lock: &FolderLock<'_>, name: EntryName) {
        let mut state = self.lock();
        state.counters.damaged += 1;
        // 0 for an entry that the index does not know. Its file is removed all the same, and its
        // bytes stay in the ledger until the next count.
        let known_bytes = state.index.remove(name);
        drop(state);
        // The removal returns `known_bytes`; 0 if another process has removed the file.
        let removed = folder_lock.remove(name, known_bytes).and_then(|removed_bytes| {
            match folder_lock.used_bytes()? {
                Some(used) => folder_lock.set_used_bytes(used.saturating_sub(removed_bytes)),
                // The next write counts the folder again.
                None => Ok(()),
            }
        });
        if let Err(error) = removed {
            self.on_failure(&error);
        }
    }

    /// Writes the parts of a job. A failed system call drops the part at hand. If the next write
    /// must fail too, as on a full disk, it also turns the tier off, which drops all later parts.
    /// After other failures, such as a shortage of memory, the next part is tried.
    pub(super) fn write(&self, job: WriteJob) {
        for part in &job.parts {
            let Some(folder) = self.open_folder() else { return };
            let started = now();
            let position = |page: u64| part.block * BLOCK_BYTES + page * PAGE_BYTES;
            let end = position(part.pages.end).min(job.key.object_bytes);
            let data = job.data(position(part.pages.start)..end);
            let written = self.write_block(folder, &job.key, part, &data);
            let ns = started.elapsed().as_nanos() as u64;
            match written {
                Ok(Some(bytes)) => {
                    let mut state = self.lock();
                    state.counters.writes += 1;
                    state.counters.written_bytes += bytes;
                    state.admission.on_disk_write(ns, bytes);
                }
                Ok(None) => {}
                Err(error) => self.on_failure(&error),
            }
        }
    }

    /// Writes the absent pages among the ones of `part`. `data` has the bytes of all of them.
    /// Returns the number of written bytes; `None` if all pages are present, or if the budget has
    /// no place for them. A write that fails removes the whole entry. The folder stays locked
    /// meanwhile.
    fn write_block(
        &self,
        folder: &Folder,
        key: &VersionKey,
        part: &Part,
        data: &[u8],
    ) -> io::Result<Option<u64>> {
        let folder_lock = folder.lock()?;
        let mut used = match folder_lock.used_bytes()? {
            Some(used) if !self.is_recount_due() => used,
            _ => self.recount(&folder_lock)?,
        };
        let name = key.entry(part.block);
        let file = folder_lock.open_entry(name)?;
        let head = read_head(&file, key, part.block);
        let entry_bytes = head.as_ref().map_or(0, Head::entry_bytes);
        if let Err(bad) = &head
            && file.metadata()?.len() > 0
        {
            // An unfinished or damaged entry, or one of another key. A new file has no bytes, and
            // no head either.
            // Another process may have written it again, with fewer pages than the index has.
            let freed_bytes = folder_lock.allocated_bytes(&file)?;
            file.set_len(0)?;
            let mut state = self.lock();
            state.counters.damaged += u64::from(matches!(bad, BadEntry::Damaged));
            used = used.saturating_sub(state.index.remove(name).min(freed_bytes));
        }
        let mut head = head.unwrap_or_else(|_| Head::empty());
        let absent = part.bits() & !head.pages;
        if absent == 0 {
            return Ok(None);
        }
        let new_head_bytes = if entry_bytes == 0 { HEAD_BYTES } else { 0 };
        let needed = u64::from(absent.count_ones()) * PAGE_BYTES + new_head_bytes;
        let place = self.make_place(&folder_lock, name, used, needed);
        if entry_bytes == 0 && !matches!(place, Ok(Some(_))) {
            // An empty entry, perhaps created above. The ledger has no bytes for it.
            folder_lock.remove(name, 0)?;
        }
        let Some(used) = place? else {
            self.lock().counters.dropped += 1;
            return Ok(None);
        };
        // Before the write: the number of a process that is killed is too large, never too small.
        folder_lock.set_used_bytes(used + needed)?;
        let written = write_pages(&file, key, part, &mut head, data);
        if written.is_err() {
            // The space of a block that cannot be written is free again.
            let bytes = folder_lock.remove(name, entry_bytes)?;
            folder_lock.set_used_bytes(used.saturating_sub(bytes))?;
        }
        let mut state = self.lock();
        match written.is_ok() {
            true => {
                state.counters.used_bytes = used + needed;
                state.index.enter(name, entry_bytes + needed, part.is_new);
            }
            false => drop(state.index.remove(name)),
        }
        written.map(Some)
    }

    /// Returns true after as many removals as there are entries, and at least [`REMOVALS_MIN`]. By
    /// then the ledger may be too large: it has blocks of killed processes, and pages that others
    /// added to removed entries.
    fn is_recount_due(&self) -> bool {
        let state = self.lock();
        state.removals >= REMOVALS_MIN.max(state.index.count())
    }

    /// Removes entries until `needed` bytes more than the `used` ones fit into the budget, and
    /// there are fewer than [`ENTRIES_MAX`] in the index. Returns the bytes in use then; `None` if
    /// no other entry than `target` is left, also after a count of the folder. The target itself
    /// may leave the index, but stays in the folder.
    fn make_place(
        &self,
        folder_lock: &FolderLock<'_>,
        target: EntryName,
        mut used: u64,
        needed: u64,
    ) -> io::Result<Option<u64>> {
        let mut is_counted = false;
        loop {
            let mut state = self.lock();
            if used + needed <= self.budget_bytes && state.index.count() < ENTRIES_MAX {
                return Ok(Some(used));
            }
            match state.index.take_victim() {
                // The target stays in the folder, and enters the index again after its write, or
                // at its next hit if there is no place for the write.
                Some((victim, _)) if victim == target => {}
                Some((victim, bytes)) => {
                    state.removals += 1;
                    drop(state);
                    used = used.saturating_sub(self.evict(folder_lock, victim, bytes)?);
                }
                None if is_counted => return Ok(None),
                None => {
                    // The rest was written by other processes, or the number is too large after
                    // one was killed.
                    drop(state);
                    used = self.recount(folder_lock)?;
                    is_counted = true;
                }
            }
        }
    }

    /// Enters all entries of the folder in the index, and removes entries beyond the budget. The
    /// caller holds the lock of the folder. The lock of the state is taken for each step: no thread
    /// may hold it while it waits for the disk.
    pub(super) fn fit(&self, folder_lock: &FolderLock<'_>) -> io::Result<()> {
        let mut used = self.recount(folder_lock)?;
        while used > self.budget_bytes {
            let Some((victim, bytes)) = self.lock().index.take_victim() else { break };
            used = used.saturating_sub(self.evict(folder_lock, victim, bytes)?);
            folder_lock.set_used_bytes(used)?;
            self.lock().counters.used_bytes = used;
        }
        Ok(())
    }

    /// Removes the file of an entry that has left the index. Returns the bytes to subtract in the
    /// ledger. An entry that another process has removed is not counted as evicted.
    fn evict(
        &self,
        folder_lock: &FolderLock<'_>,
        victim: EntryName,
        bytes: u64,
    ) -> io::Result<u64> {
        let removed_bytes = folder_lock.remove(victim, bytes)?;
        self.lock().counters.evicted += u64::from(removed_bytes > 0);
        Ok(removed_bytes)
    }

    /// Counts the bytes of the folder again, and enters all entries in the index. Returns the
    /// number of bytes.
    pub(super) fn recount(&self, folder_lock: &FolderLock<'_>) -> io::Result<u64> {
        let (used, found) = folder_lock.recount()?;
        // The lock is taken for each thousand: tasks wait for it.
        for some in found.chunks(1000) {
            let mut state = self.lock();
            // These are not new (`false`): their hits are no evidence for the admission.
            some.iter().for_each(|found| state.index.enter(found.name, found.bytes, false));
        }
        let mut state = self.lock();
        state.removals = 0;
        state.counters.used_bytes = used;
        Ok(used)
    }
}

/// Smallest number of removals between two counts of the folder. Chosen.
const REMOVALS_MIN: usize = 256;

/// Returns true if there is no such entry.
fn is_missing<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns true if the bytes of a file cannot be read, though it could be opened.
fn is_damage<T>(result: &io::Result<T>) -> bool {
    let is_medium = |error: &io::Error| error.raw_os_error() == Some(EIO);
    result.as_ref().is_err_and(is_medium)
}

/// Error number of a medium that fails.
const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// The head of an entry, if it is whole and for this block of this key. A head that cannot be read
/// for any reason counts as damaged: without it the entry is of no use, and the store has its
/// bytes.
fn read_head(file: &File, key: &VersionKey, block: u64) -> Result<Head, BadEntry> {
    let mut bytes = vec![0; HEAD_BYTES as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|_| BadEntry::Damaged)?;
    Head::decode(&bytes, key, block).map_err(|bad| match bad {
        BadHead::Damaged => BadEntry::Damaged,
        BadHead::OtherKey => BadEntry::OtherKey,
    })
}

/// Bytes from an entry.
#[derive(Debug)]
struct PagesRead {
    /// The requested bytes in these pages; none if the first page from the side is absent.
    bytes: Vec<u8>,
    /// Bytes of the whole entry in the ledger.
    entry_bytes: u64,
}

/// Bytes of a range within one block, from one side up to the first absent page. Empty if the page
/// at this side is absent. An entry that has no valid pages of this version is a [`BadEntry`].
fn read_entry(
    file: &File,
    key: &VersionKey,
    range: &Range<u64>,
    side: Side,
) -> io::Result<Result<PagesRead, BadEntry>> {
    let block = range.start / BLOCK_BYTES;
    let block_start = block * BLOCK_BYTES;
    let head = match read_head(file, key, block) {
        Ok(head) => head,
        Err(bad) => return Ok(Err(bad)),
    };
    let needed =
        (range.start - block_start) / PAGE_BYTES..(range.end - block_start).div_ceil(PAGE_BYTES);
    let pages = match side {
        Side::First => {
            let end = needed.clone().find(|&page| !head.has(page)).unwrap_or(needed.end);
            needed.start..end
        }
        Side::Last => {
            let absent = needed.clone().rev().find(|&page| !head.has(page));
            absent.map_or(needed.start, |page| page + 1)..needed.end
        }
    };
    let bytes: u64 = pages.clone().map(|page| key.page_bytes(block, page)).sum();
    let mut data = vec![0; bytes as usize];
    match file.read_exact_at(&mut data, HEAD_BYTES + pages.start * PAGE_BYTES) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Err(BadEntry::Damaged));
        }
        Err(error) => return Err(error),
    }
    for (page, page_data) in pages.clone().zip(data.chunks(PAGE_BYTES as usize)) {
        if head.sums[page as usize] != key.page_sum(block, page, page_data) {
            return Ok(Err(BadEntry::Damaged));
        }
    }
    // The range may begin and end within a page.
    let first = block_start + pages.start * PAGE_BYTES;
    let kept = range.start.max(first)..range.end.min(first + bytes);
    let entry_bytes = head.entry_bytes();
    if kept.is_empty() {
        return Ok(Ok(PagesRead { bytes: Vec::new(), entry_bytes }));
    }
    data.truncate((kept.end - first) as usize);
    data.drain(..(kept.start - first) as usize);
    Ok(Ok(PagesRead { bytes: data, entry_bytes }))
}

/// Writes the absent pages of a part, and then the head. `data` is the content of all its pages. A
/// process that is killed between leaves the old head, which has no absent page. Returns the number
/// of bytes written.
fn write_pages(
    file: &File,
    key: &VersionKey,
    part: &Part,
    head: &mut Head,
    data: &[u8],
) -> io::Result<u64> {
    let mut written = 0;
    let pages: Vec<(u64, &[u8])> =
        part.pages.clone().zip(data.chunks(PAGE_BYTES as usize)).collect();
    // Neighbours are written together.
    for run in pages.chunk_by(|(one, _), (other, _)| head.has(*one) == head.has(*other)) {
        let (first, last) = (run[0].0, run[run.len() - 1].0);
        if head.has(first) {
            continue;
        }
        let start = (first - part.pages.start) * PAGE_BYTES;
        let end = (start + (last - first + 1) * PAGE_BYTES).min(data.len() as u64);
        let bytes = &data[start as usize..end as usize];
        file.write_all_at(bytes, HEAD_BYTES + first * PAGE_BYTES)?;
        written += bytes.len() as u64;
    }
    for (page, page_data) in pages {
        if !head.has(page) {
            head.sums[page as usize] = key.page_sum(part.block, page, page_data);
            head.pages |= 1 << page;
        }
    }
    file.write_all_at(&head.encode(key, part.block), 0)?;
    Ok(written)
}

/// Time of the clock, to measure the disk.
#[expect(clippy::disallowed_methods, reason = "the disk is measured where it is used")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block has 64 pages of 4,096 bytes. Pages that the range has in part do not count, except
    /// for the last one of the object.
    #[test]
    fn parts_are_the_whole_pages_of_each_block() {
        let part = |block, pages| Part { block, pages, is_new: false };
        assert_eq!(Part::of_range(4096..12_288, 1 << 30), [part(0, 1..3)]);
        assert_eq!(Part::of_range(4097..12_287, 1 << 30), []);
        assert_eq!(Part::of_range(4095..12_289, 1 << 30), [part(0, 1..3)]);
        assert_eq!(Part::of_range(4096..12_287, 12_287), [part(0, 1..3)]);
        assert_eq!(Part::of_range(0..0, 0), []);
        assert_eq!(
            Part::of_range(258_048..528_384, 1 << 30),
            [part(0, 63..64), part(1, 0..64), part(2, 0..1)]
        );
        assert_eq!(part(0, 0..64).bits(), u64::MAX);
        assert_eq!(part(0, 1..3).bits(), 0b110);
        assert_eq!(part(0, 63..64).bits(), 1 << 63);
    }
}
