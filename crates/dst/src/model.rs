//! Permitted bytes and errors of a read: the guarantees of the documentation, checked with the
//! changes of the files.
//!
//! Each change of a file has a number, counted from 0 for its creation. The bytes of a file show
//! the changes that wrote them ([disk](super::disk)).
//!
//! *Coherence* is the time at which the path checks a file for changes. With `WhenOpened` it checks
//! at openings and on request, with `EachMiss` also if a read misses the cache, and with `EachRead`
//! at each read.

use readpath_core::request::DeviceError;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::disk::{BLOCK, Disk, fill_content};
use super::scenario::{Action, Scenario, ScenarioRead};
use super::server::SimulatedServer;
use super::world::world;
use crate::page_guard::PageGuard;
use crate::read_error::ReadError;
use crate::target::Coherence;

/// State of a file at its opening. The handle may serve this state, or a later one.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibleState {
    /// Number of the file.
    pub(super) inode: u32,
    /// Number of the file's last change before it was opened.
    pub(super) opened_at_change: u64,
    /// Length of the file at that time.
    pub(super) bytes: u64,
}

/// A read at its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadStart {
    /// The oldest state that the handle of the read may show.
    pub(super) visible_state: VisibleState,
    /// First requested byte.
    pub(super) offset: u64,
    /// Number of requested bytes; the range may reach past the end of the file.
    pub(super) bytes: u64,
    /// Number of the file's last change before the read started.
    pub(super) change: u64,
    /// Number of dropped ranges at that time.
    pub(super) dropped_range_count: usize,
}

/// A range of pages that was dropped from the cache.
struct DroppedRange {
    /// Number of the file.
    inode: u32,
    /// First page of the range.
    first_page: u64,
    /// The page after the last one.
    end_page: u64,
    /// Number of the last change before the drop. From then on no older state may be served.
    change: u64,
}

/// Guarantees of a run.
pub(super) struct Model {
    /// Time at which the path checks files for changes: determines the states that a read may see.
    pub(super) coherence: Coherence,
    /// True if no page can be in flight while a file changes.
    cannot_overlap_changes: bool,
    /// The server of the file, for its fault rates; `None` for files of this machine.
    server: Option<SimulatedServer>,
    /// True if threads are sometimes frozen for seconds.
    can_freeze_threads: bool,
    /// All dropped ranges so far, oldest first.
    dropped_ranges: Vec<DroppedRange>,
}

impl Model {
    /// Creates the model of a run at its start. With one thread, no readahead and no background
    /// reads, no page can be in flight while a file changes. Advice may prefetch, and a batch or
    /// futures may leave reads in flight.
    pub(super) fn new(scenario: &Scenario) -> Model {
        let has_no_background_reads = |action: &Action| {
            !matches!(
                action,
                Action::Prefetch(..) | Action::Advise(..) | Action::Batch(..) | Action::Futures(..)
            )
        };
        // Another thread may change a file while a page of it is in flight.
        let [thread] = &scenario.threads[..] else {
            let cannot_overlap_changes = false;
            return Model::for_scenario(scenario, cannot_overlap_changes);
        };
        let cannot_overlap_changes =
            scenario.settings.readahead == "none" && thread.iter().all(has_no_background_reads);
        Model::for_scenario(scenario, cannot_overlap_changes)
    }

    /// Creates the model of a run. `cannot_overlap_changes` is true if no page can be in flight
    /// while a file changes.
    fn for_scenario(scenario: &Scenario, cannot_overlap_changes: bool) -> Model {
        let Scenario { settings, server, .. } = scenario;
        Model {
            coherence: settings.coherence,
            cannot_overlap_changes,
            server: server.clone(),
            can_freeze_threads: settings.freeze_one_in > 0,
            dropped_ranges: Vec::new(),
        }
    }

    /// Returns the start of a read of this range, with the present state of the file and of the
    /// model.
    pub(super) fn start_read(
        &self,
        disk: &Disk,
        visible_state: VisibleState,
        (_file_index, offset, bytes): ScenarioRead,
    ) -> ReadStart {
        let change = disk.inodes[visible_state.inode as usize].changes;
        let dropped_range_count = self.dropped_ranges.len();
        ReadStart { visible_state, offset, bytes, change, dropped_range_count }
    }

    /// Records that the cached pages of a read's range were dropped, at the start of that read. No
    /// effect if the range has no page of the file.
    pub(super) fn record_drop(&mut self, read_start: &ReadStart) {
        let ReadStart { visible_state: VisibleState { inode, bytes, .. }, offset, change, .. } =
            *read_start;
        let end_page = (offset + read_start.bytes).min(bytes).div_ceil(PAGE_BYTES);
        let first_page = offset / PAGE_BYTES;
        // An empty range and a range beyond the end contain no page.
        if read_start.bytes == 0 || offset >= bytes {
            return;
        }
        self.dropped_ranges.push(DroppedRange { inode, first_page, end_page, change });
    }

    /// Returns the number of the oldest change whose state of page number `page` the read may see.
    /// With `EachRead`, it is the last change before the read; otherwise, the last before the
    /// opening. With `WhenOpened`, an earlier drop of the page from the cache counts as well. With
    /// `EachMiss` drops are left out, so that the check permits older states too.
    fn oldest_visible_change(&self, read_start: &ReadStart, page: u64) -> u64 {
        let VisibleState { inode, opened_at_change, .. } = read_start.visible_state;
        if self.coherence == Coherence::EachRead {
            return read_start.change;
        }
        let earlier_drops = &self.dropped_ranges[..read_start.dropped_range_count];
        let drops_of_page = earlier_drops.iter().filter(|dropped| {
            dropped.inode == inode
                && self.coherence == Coherence::WhenOpened
                && (dropped.first_page..dropped.end_page).contains(&page)
        });
        drops_of_page
            .map(|dropped| dropped.change)
            .max()
            .unwrap_or(opened_at_change)
            .max(opened_at_change)
    }

    /// Checks the number of bytes of a read: as many as a permitted length of the file allows. With
    /// `WhenOpened` this is the length at the opening, otherwise any length since the oldest
    /// permitted state.
    ///
    /// # Errors
    /// The number is wrong.
    pub(super) fn check_length(
        &self,
        disk: &Disk,
        read_start: &ReadStart,
        bytes: u64,
    ) -> Result<(), String> {
        let VisibleState { inode, opened_at_change, bytes: opened_bytes } =
            read_start.visible_state;
        let file = &disk.inodes[inode as usize];
        let readable_bytes =
            |length: u64| length.saturating_sub(read_start.offset).min(read_start.bytes);
        let is_permitted_by = |length| readable_bytes(length) == bytes;
        let is_permitted = match self.coherence {
            Coherence::WhenOpened => is_permitted_by(opened_bytes),
            Coherence::EachMiss => file.lengths_since(opened_at_change).any(is_permitted_by),
            Coherence::EachRead => file.lengths_since(read_start.change).any(is_permitted_by),
        };
        if is_permitted { Ok(()) } else { Err(format!("{bytes} bytes of {read_start:?}")) }
    }

    /// Returns the read that `bytes` bytes of a reader answer. A reader returns the bytes before a
    /// byte that it can't read. In a file that has shrunk since its opening, these end at one of
    /// the later lengths. All other answers are for the whole of `read_start`.
    pub(super) fn answered_read(
        &self,
        disk: &Disk,
        read_start: ReadStart,
        bytes: u64,
    ) -> ReadStart {
        let VisibleState { inode, opened_at_change, .. } = read_start.visible_state;
        let end = read_start.offset + bytes;
        let mut lengths = disk.inodes[inode as usize].lengths_since(opened_at_change);
        match lengths.any(|length| length == end) {
            true => ReadStart { bytes, ..read_start },
            false => read_start,
        }
    }

    /// Checks the bytes of a read, and their number. The bytes of each block must be as one of the
    /// permitted changes wrote them.
    ///
    /// # Errors
    /// The bytes are not permitted. The text says why.
    pub(super) fn check_bytes(
        &self,
        disk: &Disk,
        read_start: &ReadStart,
        bytes: &[u8],
    ) -> Result<(), String> {
        self.check_length(disk, read_start, bytes.len() as u64)?;
        let VisibleState { inode, .. } = read_start.visible_state;
        let file = &disk.inodes[inode as usize];
        // Range of changes after which the file had all bytes seen so far; empty if it never had.
        let (mut first_change, mut last_change) = (0, u64::MAX);
        let mut expected = [0; BLOCK as usize];
        let mut position = read_start.offset;
        let mut unchecked = bytes;
        while !unchecked.is_empty() {
            let part_bytes =
                ((position / BLOCK + 1) * BLOCK - position).min(unchecked.len() as u64) as usize;
            let page = position / PAGE_BYTES;
            let oldest = self.oldest_visible_change(read_start, page);
            let writes = file.writes_since(page, oldest);
            let mut is_expected = |change: u64| {
                fill_content(inode, position, change, &mut expected[..part_bytes]);
                expected[..part_bytes] == unchecked[..part_bytes]
            };
            // The first permitted change that wrote these bytes.
            let write_index = writes.iter().position(|&change| is_expected(change));
            // A few bytes may be the same after several changes.
            let is_unambiguous = writes.iter().filter(|&&change| is_expected(change)).count() == 1;
            let Some(write_index) = write_index else {
                return Err(format!(
                    "wrong bytes at {position}, page {page}, of {read_start:?}: {:02x?}, \
                     which is {}; right are those of the \
                     changes {writes:?}, as of {oldest} or later, and there were {}",
                    &unchecked[..part_bytes.min(16)],
                    describe_bytes(&unchecked[..part_bytes], position),
                    file.changes,
                ));
            };
            // The file had these bytes from this change to the next write of the page.
            if is_unambiguous {
                first_change = first_change.max(writes[write_index]);
                last_change =
                    last_change.min(writes.get(write_index + 1).map_or(u64::MAX, |next| next - 1));
            }
            position += part_bytes as u64;
            unchecked = &unchecked[part_bytes..];
        }
        // Without changes during a read, `EachMiss` guarantees bytes of one common state.
        if self.cannot_overlap_changes
            && self.coherence == Coherence::EachMiss
            && file.changes == read_start.change
            && first_change > last_change
        {
            return Err(format!(
                "bytes as of change {first_change} beside some from before {last_change}, \
                 of {read_start:?}"
            ));
        }
        Ok(())
    }

    /// Checks the error of a read.
    ///
    /// # Errors
    /// The error is not permitted. The text says why.
    pub(super) fn check_error(
        &self,
        disk: &Disk,
        read_start: &ReadStart,
        error: ReadError,
    ) -> Result<(), String> {
        let VisibleState { inode, opened_at_change, bytes: file_bytes } = read_start.visible_state;
        let (faults, file) = (disk.faults(), &disk.inodes[inode as usize]);
        let end = read_start.offset + read_start.bytes;
        let is_permitted = match error {
            ReadError::Device { offset, error: DeviceError::Medium } => {
                (read_start.offset..end).contains(&offset)
                    && (faults.error_one_in > 0 || disk.is_bad(inode, offset / PAGE_BYTES))
            }
            ReadError::Device { offset, error } => {
                (read_start.offset..end).contains(&offset)
                    && self.is_server_error_permitted(error, disk)
            }
            // Exact only to the page: a page that has become incomplete is not cached.
            ReadError::Shrunk { offset } => {
                (read_start.offset..end.next_multiple_of(PAGE_BYTES)).contains(&offset)
                    && file.lengths_since(opened_at_change).any(|length| length <= offset)
            }
            ReadError::Storage { .. } => faults.dies_after > 0,
            // For a batch, whose reads are not split: the pages of its read within the file exceed
            // the limit. A file that has changed is opened again, with its length of that time.
            ReadError::TooLarge { bytes, bytes_max } => {
                let lengths = file.lengths_since(opened_at_change).chain([file_bytes]);
                let mut bytes_of_pages = lengths.map(|length| {
                    let bytes_in_file = end.min(length).saturating_sub(read_start.offset);
                    PageRange::covering(read_start.offset, bytes_in_file).count() * PAGE_BYTES
                });
                bytes > bytes_max && bytes_of_pages.any(|needed_bytes| needed_bytes == bytes)
            }
            // The model does not count the reads in progress.
            ReadError::TooManyReads { .. } => true,
            // Callers that take guards check the error of too many pinned pages themselves.
            _ => false,
        };
        if is_permitted { Ok(()) } else { Err(format!("{error:?} of {read_start:?}")) }
    }
}

/// A guard of a cached page, with the bytes that it showed at first.
pub(super) struct Guard {
    /// The guard under test, which keeps the page in memory.
    pub(super) page_guard: PageGuard,
    /// Copy of the bytes that the guard showed at first.
    pub(super) original_bytes: Vec<u8>,
}

impl Guard {
    /// Drops the guard. Fails the run if the guard's bytes have changed before.
    pub(super) fn drop_and_check(self) {
        if *self.page_guard != self.original_bytes[..] {
            let world = world().expect("a guard goes in its world");
            world.fail_run("what a guard shows has changed".to_owned());
        }
    }
}

impl Model {
    /// Returns true if a read of a server's file may fail with this error. Returns false without a
    /// server. A read by several calls may fail by any of them, so only the rates are checked. A
    /// rate of 0 means that the fault never happens.
    fn is_server_error_permitted(&self, error: DeviceError, disk: &Disk) -> bool {
        let (Some(server), faults) = (&self.server, disk.faults()) else { return false };
        match error {
            DeviceError::TimedOut => {
                // A delayed answer may come too late. The client repeats a postponed call until
                // its time is over. After an injected error the machine retries the parts of the
                // request: with more calls in flight, answers may come later.
                let rates = [faults.delay_one_in, faults.retry_one_in, faults.error_one_in];
                server.can_time_out()
                    || self.can_freeze_threads
                    || rates.iter().any(|&rate| rate > 0)
            }
            DeviceError::Garbled => server.garble_one_in > 0,
            // Answers that `error_one_in` injects: unknown program, access denied, or stale handle.
            DeviceError::Gone | DeviceError::Refused | DeviceError::Stale => {
                faults.error_one_in > 0
            }
            _ => false,
        }
    }
}

/// Describes the bytes that were read at `offset` by the file and the change that they show. From
/// its low end, a word of 8 bytes has 16 bits of the change, 24 of the word's number, 8 of the
/// file, and 16 of the change again.
fn describe_bytes(bytes: &[u8], offset: u64) -> String {
    let bytes_to_word = (offset.next_multiple_of(8) - offset) as usize;
    let Some(word) = bytes.get(bytes_to_word..bytes_to_word + 8) else {
        return "too short to tell".to_owned();
    };
    let word = u64::from_le_bytes(word.try_into().expect("the slice has eight bytes"));
    let (word_number, inode, change) = (word >> 16 & 0xff_ffff, word >> 40 & 0xff, word & 0xffff);
    format!("byte {} of file {inode} after change {change}", word_number * 8)
}
