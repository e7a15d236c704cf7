//! Which bytes a read may see, and which errors it may have: what the documentation promises, held against the changes
//! of the files.

use readpath_core::request::DeviceError;
use readpath_core::unit::{PAGE_BYTES, PageRange};

use super::disk::{BLOCK, Disk, fill};
use super::scenario::{Action, Scenario, ScenarioRead};
use super::server::SimulatedServer;
use crate::path::Coherence;
use crate::read_error::ReadError;

/// What a handle may serve.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibleVersions {
    pub(super) inode: u32,
    /// After which change of the file it was opened.
    pub(super) since: u64,
    /// How long the file was then.
    pub(super) bytes: u64,
}

/// A read, from when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) seen: VisibleVersions,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// After which change of the file.
    pub(super) change: u64,
    /// How many ranges had been dropped.
    pub(super) dropped: usize,
}

/// A range of pages that was dropped from what is cached of a file.
struct Dropped {
    inode: u32,
    first: u64,
    end: u64,
    /// After which change: nothing older is served from then on.
    change: u64,
}

/// What the whole run promises.
pub(super) struct Model {
    pub(super) coherence: Coherence,
    /// Whether nothing can be on its way while a file changes.
    is_alone: bool,
    server: Option<SimulatedServer>,
    /// Whether a thread is stopped for seconds now and then.
    freezes: bool,
    dropped: Vec<Dropped>,
}

impl Model {
    pub(super) fn new(scenario: &Scenario) -> Model {
        let leaves_nothing = |action: &Action| {
            !matches!(
                action,
                Action::Prefetch(..) | Action::Advise(..) | Action::Batch(..) | Action::Futures(..)
            )
        };
        let [thread] = &scenario.threads[..] else {
            return Model::of(scenario, false);
        };
        let is_alone = scenario.settings.readahead == "none" && thread.iter().all(leaves_nothing);
        Model::of(scenario, is_alone)
    }

    fn of(scenario: &Scenario, is_alone: bool) -> Model {
        let Scenario { settings, server, .. } = scenario;
        Model {
            coherence: settings.coherence,
            is_alone,
            server: server.clone(),
            freezes: settings.freeze_part > 0,
            dropped: Vec::new(),
        }
    }

    /// A read of that place begins.
    pub(super) fn begin(
        &self,
        disk: &Disk,
        seen: VisibleVersions,
        (_, offset, bytes): ScenarioRead,
    ) -> Begun {
        let change = disk.inodes[seen.inode as usize].changes;
        Begun { seen, offset, bytes, change, dropped: self.dropped.len() }
    }

    /// What was cached of that read's range when it began has been dropped.
    pub(super) fn dropped(&mut self, begun: &Begun) {
        let Begun { seen: VisibleVersions { inode, bytes, .. }, offset, change, .. } = *begun;
        let end = (offset + begun.bytes).min(bytes).div_ceil(PAGE_BYTES);
        let first = offset / PAGE_BYTES;
        if begun.bytes == 0 || offset >= bytes {
            return;
        }
        self.dropped.push(Dropped { inode, first, end, change });
    }

    /// The oldest change as of which a page may be seen.
    fn oldest(&self, begun: &Begun, page: u64) -> u64 {
        let VisibleVersions { inode, since, .. } = begun.seen;
        if self.coherence == Coherence::EachRead {
            return begun.change;
        }
        let of_page = self.dropped[..begun.dropped].iter().filter(|dropped| {
            dropped.inode == inode
                && self.coherence == Coherence::WhenOpened
                && (dropped.first..dropped.end).contains(&page)
        });
        of_page.map(|dropped| dropped.change).max().unwrap_or(since).max(since)
    }

    /// The read has given so many bytes.
    ///
    /// # Errors
    /// There are more or fewer; says so.
    pub(super) fn check_length(
        &self,
        disk: &Disk,
        begun: &Begun,
        bytes: u64,
    ) -> Result<(), String> {
        let VisibleVersions { inode, since, bytes: opened_bytes } = begun.seen;
        let file = &disk.inodes[inode as usize];
        let count = |length: u64| length.saturating_sub(begun.offset).min(begun.bytes);
        let is_length = |length| count(length) == bytes;
        let may_be = match self.coherence {
            Coherence::WhenOpened => is_length(opened_bytes),
            Coherence::EachMiss => file.lengths_since(since).any(is_length),
            Coherence::EachRead => file.lengths_since(begun.change).any(is_length),
        };
        if may_be { Ok(()) } else { Err(format!("{bytes} bytes of {begun:?}")) }
    }

    /// The read has given these bytes.
    ///
    /// # Errors
    /// They are not among those that it may give; says why.
    pub(super) fn check(&self, disk: &Disk, begun: &Begun, bytes: &[u8]) -> Result<(), String> {
        self.check_length(disk, begun, bytes.len() as u64)?;
        let VisibleVersions { inode, .. } = begun.seen;
        let file = &disk.inodes[inode as usize];
        // The changes as of which all pages are as they were seen, where one such is promised.
        let (mut least, mut most) = (0, u64::MAX);
        let mut right = [0; BLOCK as usize];
        let mut at = begun.offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let part = ((at / BLOCK + 1) * BLOCK - at).min(rest.len() as u64) as usize;
            let page = at / PAGE_BYTES;
            let oldest = self.oldest(begun, page);
            let writes = file.writes_since(page, oldest);
            let mut is_right = |change: u64| {
                fill(inode, at, change, &mut right[..part]);
                right[..part] == rest[..part]
            };
            let found = writes.iter().position(|&change| is_right(change));
            // A byte or two may be the same after several changes.
            let is_sure = writes.iter().filter(|&&change| is_right(change)).count() == 1;
            let Some(found) = found else {
                return Err(format!(
                    "wrong bytes at {at}, page {page}, of {begun:?}: {:02x?}, which is {}; right are those of the \
                     changes {writes:?}, as of {oldest} or later, and there were {}",
                    &rest[..part.min(16)],
                    told(&rest[..part], at),
                    file.changes,
                ));
            };
            if is_sure {
                least = least.max(writes[found]);
                most = most.min(writes.get(found + 1).map_or(u64::MAX, |next| next - 1));
            }
            at += part as u64;
            rest = &rest[part..];
        }
        if self.is_alone
            && self.coherence == Coherence::EachMiss
            && file.changes == begun.change
            && least > most
        {
            return Err(format!(
                "bytes as of change {least} beside some from before {most}, of {begun:?}"
            ));
        }
        Ok(())
    }

    /// The read has failed.
    ///
    /// # Errors
    /// It may not fail so; says why.
    pub(super) fn check_error(
        &self,
        disk: &Disk,
        begun: &Begun,
        error: ReadError,
    ) -> Result<(), String> {
        let VisibleVersions { inode, since, .. } = begun.seen;
        let (faults, file) = (disk.faults(), &disk.inodes[inode as usize]);
        let end = begun.offset + begun.bytes;
        let may_be = match error {
            ReadError::Device { offset, error: DeviceError::Medium } => {
                (begun.offset..end).contains(&offset)
                    && (faults.fails > 0 || disk.is_bad(inode, offset / PAGE_BYTES))
            }
            ReadError::Device { offset, error } => {
                (begun.offset..end).contains(&offset) && self.may_be_said(error, disk)
            }
            // Exact to the page: one that is no longer there whole is not cached.
            ReadError::Shrunk { offset } => {
                (begun.offset..end.next_multiple_of(PAGE_BYTES)).contains(&offset)
                    && file.lengths_since(since).any(|length| length <= offset)
            }
            ReadError::Storage { .. } => faults.dies_after > 0,
            // Of a batch, which is not read in parts: its pages are more than a read may have.
            ReadError::TooLarge { bytes, bytes_max } => {
                bytes > bytes_max
                    && bytes == PageRange::covering(begun.offset, begun.bytes).count() * PAGE_BYTES
            }
            ReadError::TooManyReads { .. } => true,
            _ => false,
        };
        if may_be { Ok(()) } else { Err(format!("{error:?} of {begun:?}")) }
    }
}

impl Model {
    /// Whether a server's file may have that error.
    fn may_be_said(&self, error: DeviceError, disk: &Disk) -> bool {
        let (Some(server), faults) = (&self.server, disk.faults()) else { return false };
        match error {
            DeviceError::TimedOut => {
                let parts = [faults.late, faults.again, faults.fails];
                server.may_be_late() || self.freezes || parts.iter().any(|&part| part > 0)
            }
            DeviceError::Garbled => server.garbles > 0,
            DeviceError::Gone | DeviceError::Refused | DeviceError::Stale => faults.fails > 0,
            _ => false,
        }
    }
}

/// What the bytes at that place are, if they are of a file.
fn told(bytes: &[u8], at: u64) -> String {
    let skip = (at.next_multiple_of(8) - at) as usize;
    let Some(word) = bytes.get(skip..skip + 8) else { return "too short to tell".to_owned() };
    let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
    let (place, inode, change) = (word >> 16 & 0xff_ffff, word >> 40 & 0xff, word & 0xffff);
    format!("byte {} of file {inode} after change {change}", place * 8)
}
