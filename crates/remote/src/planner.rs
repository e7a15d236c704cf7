//! A planner: reads of remote files come in, ranges to fetch go out, bytes arrive in any order.
//!
//! # The poll contract
//! 1. Commands: [`open_file`](Planner::open_file), [`open`](Planner::open),
//!    [`start`](Planner::start), [`advise`](Planner::advise),
//!    [`set_generation`](Planner::set_generation). They never block.
//! 2. [`poll`](Planner::poll) until it returns none: ranges to fetch, and ended reads.
//! 3. For each fetch, in any order and interleaved with others: [`fill`](Planner::fill) with the
//!    bytes as they arrive, then [`finish`](Planner::finish); or [`fail`](Planner::fail).
//! 4. [`take`](Planner::take) the bytes of each ended read, or [`abandon`](Planner::abandon) it.
//!    Until then its pages stay in memory.
//! 5. After each of these calls, poll again.
//!
//! All files share one memory budget, whose pages go by the eviction policy `adaptive`.
//!
//! # Invariants
//! 1. All bytes of a read are of one *generation* of its file: of the one at its start. If the
//!    generation changes before the read has ended, the read fails with
//!    [`ReadFailure::Changed`], and later arrivals for it are ignored.
//! 2. A page in memory or in flight is not fetched again: two reads of one page cause one fetch.
//!    The exceptions are reads of half of the memory or more, which bypass the cache.
//! 3. A fetch counts only if exactly as many bytes arrived as it has.
//! 4. Fetches that a reader waits for are returned before prefetches, and prefetches leave an
//!    eighth of the fetches to them.
//! 5. Frames take `memory_bytes` at most, fetches in flight included. Reads that bypass the cache
//!    have buffers of their own.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use readpath_core::machine::{Config, Machine};
pub use readpath_core::readahead::Advice;
use readpath_core::request::ProcessId;
pub use readpath_core::unit::Time;
use readpath_core::unit::{PAGE_BYTES, PageRange};

mod addresses;
mod arrivals;
mod demand_first;
mod neighbourhoods;
mod options;
mod reads;
mod work;

use addresses::Addresses;
pub use addresses::FILE_BYTES_MAX;
pub use options::{PlannerError, PlannerOptions, ReadFailure};
use work::{Site, SiteHandle, Work};

/// Identifies an open file. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(u64);

/// Identifies a handle, which has a readahead state of its own. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(u64);

/// Identifies a read. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(u64);

/// Identifies a fetch. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(u64);

/// Conversions to numbers and back, for bindings of other languages. A number that is not from this
/// planner is the identifier of a read or fetch that is not open.
macro_rules! number_of {
    ($id:ident) => {
        impl From<$id> for u64 {
            fn from(id: $id) -> u64 {
                id.0
            }
        }

        impl From<u64> for $id {
            fn from(number: u64) -> $id {
                $id(number)
            }
        }
    };
}

number_of!(ReadId);
number_of!(FetchId);

/// Version of a file, such as a strong ETag. Two equal generations of a file must have equal bytes:
/// a weak ETag, or a time in whole seconds, is not always enough.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(Arc<str>);

impl Generation {
    /// The text of the generation.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Generation {
    fn from(text: &str) -> Generation {
        Generation(text.into())
    }
}

/// A range of a file to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Identifier under which its bytes are reported.
    pub id: FetchId,
    /// The file.
    pub file: FileId,
    /// The generation that the bytes must have. If the file has another one now, report it by
    /// [`Planner::set_generation`] in place of the bytes.
    pub generation: Generation,
    /// The bytes of the file; not empty.
    pub range: Range<u64>,
}

/// Result of a [`poll`](Planner::poll).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A range to fetch.
    Fetch(Fetch),
    /// A read that has ended: its bytes, or its failure, can be [taken](Planner::take).
    Ended(ReadId),
}

/// Use of the bytes of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The planner has used the bytes, or the report about the fetch.
    Accepted,
    /// The fetch has ended or been dropped: its file has another generation, or is closed. Its
    /// transfer may be cancelled.
    Ignored,
    /// The number of bytes is wrong. The fetch has failed, and its bytes are dropped.
    WrongLength,
}

/// Counters of a planner since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of all reads.
    pub requested_bytes: u64,
    /// Bytes of reads that were in memory at the start of the read.
    pub hit_bytes: u64,
    /// Number of fetches.
    pub fetches: u64,
    /// Bytes of all fetches, rounded up to whole pages.
    pub fetched_bytes: u64,
    /// Largest number of fetches in flight.
    pub fetches_in_flight_max: u32,
}

/// An open file.
#[derive(Debug)]
struct RemoteFile {
    /// First sector of its present site. A *site* is the machine's file that stands for one
    /// generation of this file. A sector is an address of 512 bytes on the planner's one device.
    site: u64,
    /// Number of open handles.
    handles: usize,
}

/// Process of all reads: a planner does not distinguish its readers.
const THE_PROCESS: ProcessId = ProcessId(0);

/// The read path of remote files, without I/O and clock. See the [module](self) for the order of
/// calls.
pub struct Planner {
    /// Page cache, readahead policy and scheduler. Its one device is the remote storage.
    machine: Machine,
    /// Frames of the cache, contiguous. Most systems allocate memory at their first use.
    pool: Vec<u8>,
    /// Largest read through the cache, in bytes.
    cached_read_bytes_max: u64,
    /// Open files.
    files: BTreeMap<FileId, RemoteFile>,
    /// File of each open handle.
    handles: BTreeMap<HandleId, FileId>,
    /// Allocates the sectors of the sites on the planner's device.
    addresses: Addresses,
    /// Sites, open reads, fetches in flight and events.
    work: Work,
    /// First sectors of retired sites, whose reads and fetches may not have ended.
    retired: Vec<u64>,
    /// Reads that begin at the next poll or before: first sector of the site, offset, identifier.
    unbegun: Vec<(u64, u64, ReadId)>,
    /// Ranges to prefetch when the reads begin: gaps between reads, and windows of neighbourhoods.
    gaps: Vec<(HandleId, Range<u64>)>,
    /// Maximum number of open reads.
    reads_max: u32,
    /// Maximum number of fetches in flight.
    fetches_max: u32,
    /// Maximum size of one fetch in bytes.
    part_bytes: u64,
    /// Number of the next file, handle or read. The three share one sequence.
    next_id: u64,
    /// Latest time of a call.
    now: Time,
}

impl Planner {
    /// Creates a planner without files.
    ///
    /// # Errors
    /// An option is out of its bounds, the readahead policy is unknown, or the memory is not
    /// available.
    pub fn new(options: &PlannerOptions) -> Result<Planner, PlannerError> {
        let config: Config = options.config()?;
        let memory_bytes = config.memory_bytes / PAGE_BYTES * PAGE_BYTES;
        let pool = zeros(memory_bytes)?;
        let mut machine = Machine::new(config).map_err(PlannerError::Config)?;
        machine.fail_requests_whole();
        Ok(Planner {
            machine,
            pool,
            // The pages of a read have at most half of the memory. A read that begins and ends
            // within a page covers up to a page more than its bytes.
            cached_read_bytes_max: memory_bytes / 2 - PAGE_BYTES,
            files: BTreeMap::new(),
            handles: BTreeMap::new(),
            addresses: Addresses::default(),
            work: Work::default(),
            retired: Vec::new(),
            unbegun: Vec::new(),
            gaps: Vec::new(),
            reads_max: options.reads_max,
            fetches_max: options.fetches_max,
            part_bytes: options.part_bytes,
            next_id: 0,
            now: Time::ZERO,
        })
    }

    /// Opens a file of `bytes` bytes in this generation. Two files of one name are two files.
    ///
    /// # Errors
    /// The file is larger than [`FILE_BYTES_MAX`], or too many large files are open.
    pub fn open_file(
        &mut self,
        bytes: u64,
        generation: impl Into<Generation>,
    ) -> Result<FileId, PlannerError> {
        let file = FileId(self.next_id);
        let site = self.add_site(file, bytes, generation.into())?;
        self.next_id += 1;
        self.files.insert(file, RemoteFile { site, handles: 0 });
        Ok(file)
    }

    /// Adds a site without handles. Returns its first sector. Fails as `open_file` does.
    fn add_site(
        &mut self,
        file: FileId,
        bytes: u64,
        generation: Generation,
    ) -> Result<u64, PlannerError> {
        if bytes > FILE_BYTES_MAX {
            return Err(PlannerError::FileTooLarge { file_bytes: bytes });
        }
        let start_sector = self.addresses.allocate(bytes).ok_or(PlannerError::TooManyFiles)?;
        let machine_file =
            self.machine.add_file(bytes, start_sector).expect("the range is allocated");
        let site = Site {
            file,
            machine_file,
            bytes,
            generation,
            handles: BTreeMap::new(),
            is_retired: false,
        };
        self.work.sites.insert(start_sector, site);
        Ok(start_sector)
    }

    /// Sets the size and the generation of an open file. If either differs from before, all pages
    /// of the older generation are dropped, reads in progress fail with [`ReadFailure::Changed`],
    /// and arrivals for its fetches are ignored. Reads that have ended keep their bytes. Handles
    /// stay open, with a new readahead state. Returns true in that case.
    ///
    /// # Errors
    /// The file is not open, or the same errors as [`open_file`](Planner::open_file).
    pub fn set_generation(
        &mut self,
        now: Time,
        file: FileId,
        bytes: u64,
        generation: impl Into<Generation>,
    ) -> Result<bool, PlannerError> {
        let now = self.advance(now);
        let generation = generation.into();
        let old_sector = self.files.get(&file).ok_or(PlannerError::NotOpen)?.site;
        let site = &self.work.sites[&old_sector];
        if site.bytes == bytes && site.generation == generation {
            return Ok(false);
        }
        // A closed handle stays in its site until its last read is released.
        let is_open = |handle: &HandleId| self.handles.contains_key(handle);
        let handles: Vec<HandleId> = site.handles.keys().copied().filter(is_open).collect();
        let new_sector = self.add_site(file, bytes, generation)?;
        let site = self.work.sites.get_mut(&new_sector).expect("it was added just now");
        for handle in handles {
            site.handles.insert(handle, SiteHandle::new(self.machine.open(site.machine_file)));
        }
        self.files.get_mut(&file).expect("found above").site = new_sector;
        self.work.retire(now, old_sector, ReadFailure::Changed);
        self.retired.push(old_sector);
        Ok(true)
    }

    /// The generation of an open file; `None` if the file is not open.
    pub fn generation(&self, file: FileId) -> Option<&Generation> {
        self.files.get(&file).map(|file| &self.work.sites[&file.site].generation)
    }

    /// The size of an open file in bytes; `None` if the file is not open.
    pub fn file_bytes(&self, file: FileId) -> Option<u64> {
        self.files.get(&file).map(|file| self.work.sites[&file.site].bytes)
    }

    /// Closes a file without handles, and drops its pages. Its reads in progress fail with
    /// [`ReadFailure::Closed`]. Reads that have ended keep their bytes until they are taken.
    ///
    /// # Errors
    /// The file is not open, or has handles.
    pub fn close_file(&mut self, now: Time, file: FileId) -> Result<(), PlannerError> {
        let now = self.advance(now);
        let RemoteFile { site, handles } = *self.files.get(&file).ok_or(PlannerError::NotOpen)?;
        if handles > 0 {
            return Err(PlannerError::HasHandles);
        }
        self.files.remove(&file);
        self.work.retire(now, site, ReadFailure::Closed);
        self.retired.push(site);
        Ok(())
    }

    /// Opens a handle of a file.
    ///
    /// # Errors
    /// The file is not open.
    pub fn open(&mut self, file: FileId) -> Result<HandleId, PlannerError> {
        let remote = self.files.get_mut(&file).ok_or(PlannerError::NotOpen)?;
        let handle = HandleId(self.next_id);
        self.next_id += 1;
        remote.handles += 1;
        self.handles.insert(handle, file);
        let site = self.work.sites.get_mut(&remote.site).expect("the site of an open file");
        site.handles.insert(handle, SiteHandle::new(self.machine.open(site.machine_file)));
        Ok(handle)
    }

    /// Closes a handle. Its reads go on.
    ///
    /// # Errors
    /// The handle is not open.
    pub fn close(&mut self, handle: HandleId) -> Result<(), PlannerError> {
        let file = self.handles.remove(&handle).ok_or(PlannerError::NotOpen)?;
        let remote = self.files.get_mut(&file).expect("the file of an open handle");
        remote.handles -= 1;
        let site = self.work.sites.get_mut(&remote.site).expect("the site of an open file");
        site.close(&mut self.machine, handle);
        Ok(())
    }

    /// Number of bytes that cost as much as one more request now, by the costs measured so far.
    ///
    /// # Errors
    /// The handle is not open.
    pub fn request_cost_bytes(&mut self, handle: HandleId) -> Result<u64, PlannerError> {
        let file = self.handles.get(&handle).ok_or(PlannerError::NotOpen)?;
        let site = &self.work.sites[&self.files[file].site];
        let machine_handle = site.handles[&handle].machine_handle;
        Ok(self.machine.readahead_state(machine_handle).marginal_cost_pages * PAGE_BYTES)
    }

    /// Returns true while reads of the present generation of the file hold memory: until each is
    /// taken, or has ended after it was abandoned. Reads of an older generation do not count. False
    /// for a file that is not open.
    pub fn has_reads(&self, file: FileId) -> bool {
        let Some(remote) = self.files.get(&file) else { return false };
        self.work.sites[&remote.site].handles.values().any(|handle| handle.open_reads > 0)
    }

    /// Hint about a range of the file, or about the use of the handle, as in `posix_fadvise(2)`:
    /// `WillNeed` prefetches the range as far as memory allows, and `DontNeed` drops its pages. The
    /// range is cut at the end of the file, and has no effect on other advice.
    ///
    /// # Errors
    /// The handle is not open.
    pub fn advise(
        &mut self,
        now: Time,
        handle: HandleId,
        advice: Advice,
        range: Range<u64>,
    ) -> Result<(), PlannerError> {
        let now = self.advance(now);
        let file = self.handles.get(&handle).ok_or(PlannerError::NotOpen)?;
        let site = &self.work.sites[&self.files[file].site];
        let bytes = range.end.min(site.bytes).saturating_sub(range.start);
        let pages = PageRange::covering(range.start, bytes);
        let machine_handle = site.handles[&handle].machine_handle;
        self.machine.advise(now, machine_handle, THE_PROCESS, advice, pages);
        Ok(())
    }

    /// The next range to fetch, or the next ended read; `None` if there is none now.
    pub fn poll(&mut self, now: Time) -> Option<Event> {
        let now = self.advance(now);
        self.begin_reads(now);
        // Each step may bring work for the next one. It returns false if none was due.
        while self.machine.step(now, &mut self.work) {}
        self.remove_retired();
        self.work.events.pop_front()
    }

    /// Time at which to poll again if no other call comes before; `None` without such a time.
    pub fn next_wake(&self) -> Option<Time> {
        self.machine.next_wake()
    }

    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        let meter = self.machine.meter();
        Counters {
            requested_bytes: meter.requested_bytes,
            hit_bytes: meter.hit_bytes,
            fetches: meter.device_reads,
            fetched_bytes: meter.device_read_bytes,
            fetches_in_flight_max: meter.depth_max,
        }
    }

    /// Returns true if no read is open and no fetch in flight.
    pub fn is_idle(&self) -> bool {
        self.work.reads.is_empty() && self.work.fetching.is_empty() && self.machine.is_idle()
    }

    /// The later one of `now` and the time of the previous call: the machine's time never goes
    /// backwards.
    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    /// Removes the retired sites whose reads have all been released, and whose pages are no longer
    /// in flight. The addresses of their sectors become free.
    fn remove_retired(&mut self) {
        let Planner { machine, work, addresses, .. } = self;
        self.retired.retain(|start_sector| {
            // True keeps the site in the list, for another try at the next poll.
            let site = work.sites.get_mut(start_sector).expect("a retired site is kept");
            let handles: Vec<HandleId> = site.handles.keys().copied().collect();
            // A handle with unreleased reads stays until the release of the last one.
            handles.into_iter().for_each(|handle| site.close(machine, handle));
            if !site.handles.is_empty() || !machine.remove_file(site.machine_file) {
                return true;
            }
            addresses.free(*start_sector, site.bytes);
            work.sites.remove(start_sector);
            false
        });
    }
}

/// A buffer of zeros. Not written here: most systems then allocate each page at its first use.
/// Fails if the memory is not available.
fn zeros(bytes: u64) -> Result<Vec<u8>, PlannerError> {
    let out_of_memory = || PlannerError::OutOfMemory { bytes };
    let count = usize::try_from(bytes).map_err(|_| out_of_memory())?;
    // A first allocation, dropped at once, fails where the next one would abort the process.
    Vec::<u8>::new().try_reserve_exact(count).map_err(|_| out_of_memory())?;
    Ok(vec![0; count])
}

impl fmt::Debug for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Planner { machine, files, .. } = self;
        f.debug_struct("Planner").field("machine", machine).field("files", files).finish()
    }
}
