//! Fetches in flight, open reads, and the events for the caller: the driver of the machine.
//!
//! The *machine* is the read path of the core: page cache, readahead policy and scheduler over one
//! device, which stands for the remote storage. It sends requests to its driver, which are the
//! fetches of the planner, and releases a read when its pages are no longer needed.
//!
//! A file of one generation is one file of the machine, here called a *site*. A new generation is a
//! new site; the older one stays until its last read has ended, and fetches nothing more.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use readpath_core::machine::{self, Buffer, Done, Driver, IoBackend, Machine, ReadError};
use readpath_core::request::{Completion, DeviceError, DeviceRequest, Outcome, RequestId};
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES, Time};

use super::neighbourhoods::Neighbourhoods;
use super::options::ReadFailure;
use super::{Event, Fetch, FetchId, FileId, Generation, HandleId, ReadId};

/// A file of one generation, as a file of the machine.
#[derive(Debug)]
pub(super) struct Site {
    /// The planner's file.
    pub(super) file: FileId,
    /// The machine's file.
    pub(super) machine_file: readpath_core::cache::FileId,
    /// Size of the file in this generation.
    pub(super) bytes: u64,
    /// Generation that all its bytes have.
    pub(super) generation: Generation,
    /// Handles of the machine by the planner's.
    pub(super) handles: BTreeMap<HandleId, SiteHandle>,
    /// True after a newer generation, or the close of the file: no event concerns it any more.
    pub(super) is_retired: bool,
}

/// A handle of a site.
#[derive(Debug)]
pub(super) struct SiteHandle {
    /// The handle of the machine.
    pub(super) machine_handle: machine::HandleId,
    /// Number of reads that the machine has not released.
    pub(super) open_reads: u64,
    /// True if the handle closes with the last of these reads.
    pub(super) is_closing: bool,
    /// Requests of the handle that may be parts of a stream without order.
    pub(super) neighbourhoods: Neighbourhoods,
}

impl SiteHandle {
    /// Wraps a new handle of the machine.
    pub(super) fn new(machine_handle: machine::HandleId) -> SiteHandle {
        let neighbourhoods = Neighbourhoods::default();
        SiteHandle { machine_handle, open_reads: 0, is_closing: false, neighbourhoods }
    }
}

impl Site {
    /// Closes a handle, now or with its last read. No effect on one that is not open.
    pub(super) fn close(&mut self, machine: &mut Machine, id: HandleId) {
        let Some(handle) = self.handles.get_mut(&id) else { return };
        handle.is_closing = true;
        if handle.open_reads == 0 {
            machine.close(handle.machine_handle);
            self.handles.remove(&id);
        }
    }
}

/// A read from its start until the machine has released it.
#[derive(Debug)]
pub(super) struct OpenRead {
    /// The read of the machine; `None` before it begins.
    pub(super) machine_read: Option<machine::ReadId>,
    /// First sector of its site.
    pub(super) site: u64,
    /// The planner's handle by which it was started.
    pub(super) handle: HandleId,
    /// The first byte in the file.
    pub(super) offset: u64,
    /// Number of bytes, none of them past the end of the file.
    pub(super) bytes: u64,
    /// Buffer of a read that bypasses the cache.
    pub(super) direct: Option<DirectBuffer>,
    /// Progress of the read, and whether its result is still needed.
    pub(super) state: ReadState,
}

/// State of an open read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    /// Waits for its bytes. Entered at the start.
    Waiting,
    /// Has all its bytes. Entered by `on_done`; left by the release.
    Done,
    /// Its result is not needed any more. Entered when its reader abandons it, and in `retire`;
    /// left by the release, in `on_done` or when a read is abandoned that has not begun.
    Unwanted,
}

/// Buffer of a read that bypasses the cache. It begins on a sector.
#[derive(Debug)]
pub(super) struct DirectBuffer {
    /// Content, in whole sectors.
    pub(super) data: Vec<u8>,
    /// Bytes before the requested ones.
    pub(super) skipped: u64,
}

/// Memory that a fetch fills.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece {
    /// A frame of the pool.
    Frame(u32),
    /// `bytes` bytes from `offset` on in the buffer of a read that bypasses the cache.
    Direct { read: ReadId, offset: u64, bytes: u64 },
}

/// A fetch in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    /// The machine's request.
    request: RequestId,
    /// First sector of its site.
    site: u64,
    /// Bytes of the file, cut at its end.
    pub(super) range: Range<u64>,
    /// Memory that it fills, in the order of the file. The last piece may reach past the file.
    pub(super) pieces: Vec<Piece>,
    /// Number of bytes that have arrived.
    pub(super) arrived_bytes: u64,
    /// Index of the piece for the next byte.
    pub(super) next_piece: usize,
    /// Position of the next byte in that piece.
    pub(super) next_offset: usize,
}

/// The state of a planner next to its machine.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Sites by their first sector.
    pub(super) sites: BTreeMap<u64, Site>,
    /// Reads that the machine has not released.
    pub(super) reads: BTreeMap<ReadId, OpenRead>,
    /// Errors of ended reads that have not been taken.
    pub(super) failed: BTreeMap<ReadId, ReadFailure>,
    /// Fetches in flight.
    pub(super) fetching: BTreeMap<FetchId, InFlight>,
    /// Events for the caller, the oldest first.
    pub(super) events: VecDeque<Event>,
    /// Ended fetches that the machine has not polled.
    completions: VecDeque<Completion>,
    /// Number of the next fetch.
    next_fetch: u64,
}

impl Work {
    /// Ends a fetch, which must be in flight.
    pub(super) fn end_fetch(&mut self, now: Time, id: FetchId, outcome: Outcome) {
        let fetch = self.fetching.remove(&id).expect("the fetch is in flight");
        self.completions.push_back(Completion::at(now, fetch.request, outcome));
    }

    /// Retires a site: its fetches end, and its waiting reads fail. Fetches that the caller of the
    /// planner has not polled are withdrawn. After that the caller gets no bytes of the site,
    /// except by reads that have ended.
    pub(super) fn retire(&mut self, now: Time, start_sector: u64, failure: ReadFailure) {
        let site = self.sites.get_mut(&start_sector).expect("the site of an open file");
        site.is_retired = true;
        let of_site = self.fetching.iter().filter(|(_, fetch)| fetch.site == start_sector);
        let fetches: Vec<FetchId> = of_site.map(|(&id, _)| id).collect();
        let is_withdrawn = |event: &Event| match event {
            Event::Fetch(fetch) => fetches.contains(&fetch.id),
            Event::Ended(_) => false,
        };
        self.events.retain(|event| !is_withdrawn(event));
        for id in fetches {
            self.end_fetch(now, id, Outcome::Failed(DeviceError::Stale));
        }
        for (&id, read) in &mut self.reads {
            if read.site == start_sector && read.state == ReadState::Waiting {
                read.state = ReadState::Unwanted;
                self.failed.insert(id, failure);
                self.events.push_back(Event::Ended(id));
            }
        }
    }

    /// Releases a read that the machine has ended, or not begun. The last read of a closing handle
    /// closes it. No effect on a read that is not open.
    pub(super) fn release(&mut self, machine: &mut Machine, now: Time, id: ReadId) {
        let Some(read) = self.reads.remove(&id) else { return };
        if let Some(machine_read) = read.machine_read {
            machine.release(now, machine_read);
        }
        let site = self.sites.get_mut(&read.site).expect("a site outlives its reads");
        let handle = site.handles.get_mut(&read.handle).expect("a handle outlives its reads");
        handle.open_reads -= 1;
        if handle.is_closing {
            // No effect while the handle has other reads.
            site.close(machine, read.handle);
        }
    }
}

impl IoBackend for Work {
    /// Passes a fetch to the caller. A request of a retired site fails at once.
    fn submit(&mut self, machine: &Machine, now: Time, request: DeviceRequest) {
        let (&start_sector, site) =
            self.sites.range(..=request.start).next_back().expect("a request is for some site");
        if site.is_retired {
            let outcome = Outcome::Failed(DeviceError::Stale);
            return self.completions.push_back(Completion::at(now, request.id, outcome));
        }
        // The last sector may reach past the end of the file.
        let position = |sector: u64| ((sector - start_sector) * SECTOR_BYTES).min(site.bytes);
        let range = position(request.start)..position(request.end());
        let mut pieces = Vec::new();
        machine.request_buffers(request.id, |buffer| {
            pieces.push(match buffer {
                Buffer::Frame(frame) => Piece::Frame(frame.0),
                Buffer::Caller { read, offset, bytes } => {
                    Piece::Direct { read: ReadId(machine.tag(read)), offset, bytes }
                }
            });
        });
        let id = FetchId(self.next_fetch);
        self.next_fetch += 1;
        let (file, generation) = (site.file, site.generation.clone());
        let fetch = Fetch { id, file, generation, range: range.clone() };
        self.events.push_back(Event::Fetch(fetch));
        let fetch = InFlight {
            request: request.id,
            site: start_sector,
            range,
            pieces,
            arrived_bytes: 0,
            next_piece: 0,
            next_offset: 0,
        };
        self.fetching.insert(id, fetch);
    }

    /// Returns the next ended fetch for the machine; `None` without one.
    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        self.completions.pop_front()
    }
}

impl Driver for Work {
    /// Keeps the pages of a successful read until they are taken. Releases every other read. The
    /// end of a read is reported to the caller, with its failure if it has one, unless the read is
    /// unwanted.
    fn on_done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        let id = ReadId(done.tag);
        let read = self.reads.get_mut(&id).expect("the machine has only open reads");
        let is_wanted = read.state == ReadState::Waiting;
        if let (true, Ok(_)) = (is_wanted, done.result) {
            read.state = ReadState::Done;
            return self.events.push_back(Event::Ended(id));
        }
        if let (true, Err(error)) = (is_wanted, done.result) {
            let failure = failure_of(error, read.offset);
            self.failed.insert(id, failure);
            self.events.push_back(Event::Ended(id));
        }
        self.release(machine, now, id);
    }
}

/// Failure of a read from the error of the machine. `first` is the first byte of the read: an error
/// that begins before it, in the same page, is reported there. Reads of a
/// retired site are unwanted, so their errors never come here.
fn failure_of(error: ReadError, first: u64) -> ReadFailure {
    match error {
        ReadError::Device { offset, error: DeviceError::Other(reason) } => {
            ReadFailure::Fetch { offset: offset.max(first), reason }
        }
        ReadError::Device { offset, error: DeviceError::Garbled } => {
            ReadFailure::WrongLength { offset: offset.max(first) }
        }
        ReadError::Shrunk { offset } => ReadFailure::Shrunk { offset: offset.max(first) },
        error => unreachable!("a planner ends no request with this error: {error}"),
    }
}

/// Divides `data`, the next bytes of a fetch, among its pieces. There are no more bytes than the
/// fetch still lacks. Calls `write` with each piece, the position in it, and the bytes for it.
pub(super) fn scatter(
    fetch: &mut InFlight,
    mut data: &[u8],
    mut write: impl FnMut(Piece, usize, &[u8]),
) {
    fetch.arrived_bytes += data.len() as u64;
    while !data.is_empty() {
        let piece = fetch.pieces[fetch.next_piece];
        let piece_bytes = match piece {
            Piece::Frame(_) => PAGE_BYTES as usize,
            Piece::Direct { bytes, .. } => bytes as usize,
        };
        let (head, rest) = data.split_at(data.len().min(piece_bytes - fetch.next_offset));
        write(piece, fetch.next_offset, head);
        fetch.next_offset += head.len();
        if fetch.next_offset == piece_bytes {
            (fetch.next_piece, fetch.next_offset) = (fetch.next_piece + 1, 0);
        }
        data = rest;
    }
}
