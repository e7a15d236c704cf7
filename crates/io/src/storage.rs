//! What carries requests: the seam between whoever drives a machine and the
//! world below it.
//!
//! A [`Storage`] takes requests with the memory that they fill, and gives each
//! back completed, once. It decides nothing and owns no memory of the cache.
//! [`FileStorage`] is the storage of this machine's files and
//! block devices, many at once; an NFS connection is another.

use std::sync::Arc;

use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, RequestId};
use readpath_core::unit::{PAGE_SECTORS, SECTOR_BYTES};

use crate::backend::{Backend, BackendError, BackendInUse, BackendKind};
pub use crate::backend::{Sleep, Sleeper};
use crate::clock::Clock;
use crate::target::{TRANSFER_BYTES_MAX, Target};
use crate::transfers::{Progress, TransferFile, TransferStart, Transfers};

/// Carries requests between memory and what is stored.
///
/// A machine knows its [`IoBackend`](readpath_core::machine::IoBackend), which asks it where a
/// request's memory is; a storage knows no machine and is told the addresses, and it can be
/// slept in: so whoever drives a machine in real time is the carrier, over a storage.
///
/// Order of calls: `submit` while fewer than the depth are in flight;
/// `exchange` to hand over and to take in. A storage that several threads share
/// comes with a [`Sleeper`]: then one of them sleeps there, and `collect` takes in what that brings. Each request that was submitted is
/// completed exactly once. Dropped with requests in flight, a storage withdraws
/// them and returns only when nobody touches their memory any more.
pub trait Storage: Send {
    /// What it can do; constant over its life.
    fn caps(&self) -> DeviceCaps;

    /// Takes a request in; it starts with the next `exchange`, or the next sleep,
    /// at the latest. A read that reaches past the end comes back `Short`; what the rest
    /// of its memory then holds is not said.
    ///
    /// # Safety
    /// `memory` has as many bytes as the request, in order, in 1 to 1024 pieces.
    /// They are valid, and used by nobody else (for a write: changed by nobody),
    /// until the completion has come out of `exchange`, or the storage has been
    /// dropped.
    unsafe fn submit(&mut self, request: DeviceRequest, memory: &[libc::iovec]);

    /// Withdraws a request if that is still possible. It is completed all the
    /// same: with `Cancelled` if it was.
    fn cancel(&mut self, id: RequestId);

    /// Adds what is completed to `completions`, without a system call, where a [`Sleeper`] sleeps for it. True if
    /// something of it is to be handed over again.
    ///
    /// # Errors
    /// As [`exchange`](Storage::exchange).
    fn collect(&mut self, completions: &mut Vec<Completion>) -> Result<bool, BackendError> {
        self.exchange(Sleep::Never, completions).map(|()| false)
    }

    /// Hands over what was submitted and adds what is completed to
    /// `completions`, stamped with the time of the clock that the storage was
    /// built with; sleeps for the first one as long as `sleep` allows. May come
    /// back early with nothing; comes back at once when nothing is in flight.
    ///
    /// # Errors
    /// It carries nothing any more; no completion is lost by that.
    fn exchange(
        &mut self,
        sleep: Sleep,
        completions: &mut Vec<Completion>,
    ) -> Result<(), BackendError>;
}

/// Bits of a sector's number within its file: 4 PiB of file, and so 2 million files.
pub(crate) const FILE_SECTORS_LOG2: u32 = 43;
/// The most bytes that a file may have, so that no sector of it has the number of another's.
pub(crate) const FILE_BYTES_MAX: u64 = SECTOR_BYTES << FILE_SECTORS_LOG2;

/// Files and block devices, as one storage: each has a range of sectors of its
/// own, so that requests on two of them are never neighbours.
pub struct FileStorage {
    // Dropped before the targets, which its transfers read.
    transfers: Transfers<()>,
    targets: Vec<Option<Target>>,
    /// Places in `targets` that are free.
    free: Vec<usize>,
    caps: DeviceCaps,
    in_use: BackendInUse,
    lets_carry: bool,
}

impl FileStorage {
    /// The storage of one file, for one thread: its sectors are those of the file.
    ///
    /// # Errors
    /// The backend isn't to be had here.
    pub fn one(
        target: Target,
        backend: BackendKind,
        clock: Clock,
    ) -> Result<FileStorage, BackendError> {
        let caps = target.caps();
        let (backend, in_use) = backend.build(caps.depth_max)?;
        let transfers = Transfers::over(backend, caps.depth_max, clock);
        let targets = vec![Some(target)];
        Ok(FileStorage { transfers, targets, free: Vec::new(), caps, in_use, lets_carry: false })
    }

    /// The storage of any number of files, for several threads, with what one
    /// of them sleeps on; `depth` requests at once.
    ///
    /// # Errors
    /// As [`one`](FileStorage::one).
    pub(crate) fn several(
        depth: u32,
        backend: BackendKind,
        clock: Clock,
    ) -> Result<(FileStorage, Arc<dyn Sleeper>), BackendError> {
        let lets_carry = backend == BackendKind::Auto;
        let ((backend, sleeper), in_use) = backend.build_shared(depth)?;
        let files = FileStorage { lets_carry, ..FileStorage::over(backend, in_use, depth, clock) };
        Ok((files, sleeper))
    }

    /// The storage of any number of files, carried by `backend`.
    pub(crate) fn over(
        backend: Box<dyn Backend>,
        in_use: BackendInUse,
        depth: u32,
        clock: Clock,
    ) -> FileStorage {
        let caps = DeviceCaps {
            sectors: u64::MAX,
            request_sectors_max: (TRANSFER_BYTES_MAX / SECTOR_BYTES) as u32,
            depth_max: depth,
            is_rotational: false,
            // Whole pages, which suit every target.
            alignment_sectors: PAGE_SECTORS as u32,
        };
        let transfers = Transfers::over(backend, depth, clock);
        let (targets, free) = (Vec::new(), Vec::new());
        FileStorage { transfers, targets, free, caps, in_use, lets_carry: false }
    }

    /// What carries the bytes now.
    pub fn backend(&self) -> BackendInUse {
        self.in_use.unless(self.transfers.refused())
    }

    /// Adds a file; gives its first sector, under which it is known until it is removed.
    pub(crate) fn add(&mut self, target: Target) -> u64 {
        debug_assert!(target.bytes() <= FILE_BYTES_MAX, "larger ones are refused when opened");
        let at = self.free.pop().unwrap_or_else(|| {
            self.targets.push(None);
            self.targets.len() - 1
        });
        self.targets[at] = Some(target);
        (at as u64) << FILE_SECTORS_LOG2
    }

    /// Removes the file whose first sector is `start`. None of its requests is in flight.
    pub(crate) fn remove(&mut self, start: u64) {
        let at = (start >> FILE_SECTORS_LOG2) as usize;
        if self.targets[at].take().is_some() {
            self.free.push(at);
        }
    }

    /// The file whose first sector is `start`.
    pub(crate) fn target(&self, start: u64) -> &Target {
        self.targets[(start >> FILE_SECTORS_LOG2) as usize]
            .as_ref()
            .expect("a request is for a file that is there")
    }

    /// Whether a thread that waits for a request may [carry](FileStorage::progress) it by itself: where nobody asked for
    /// something else.
    pub(crate) fn lets_carry(&self) -> bool {
        self.lets_carry
    }

    /// A request at its begin, to be carried by the caller; nothing of it is known here.
    pub(crate) fn progress(&self, request: DeviceRequest, segments: Vec<libc::iovec>) -> Progress {
        Progress::begun(self.start_of(request), segments)
    }

    fn start_of(&self, request: DeviceRequest) -> TransferStart {
        let sector = request.start & ((1 << FILE_SECTORS_LOG2) - 1);
        TransferStart {
            id: request.id,
            place: TransferFile::of(self.target(request.start)),
            op: request.op,
            offset: sector * SECTOR_BYTES,
            bytes: u64::from(request.sectors) * SECTOR_BYTES,
        }
    }

    fn take_ended(&mut self, completions: &mut Vec<Completion>) {
        let ended = std::iter::from_fn(|| self.transfers.next_ended());
        completions.extend(ended.map(|ended| ended.completion));
    }
}

impl Storage for FileStorage {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    fn collect(&mut self, completions: &mut Vec<Completion>) -> Result<bool, BackendError> {
        let result = self.transfers.collect();
        self.take_ended(completions);
        result
    }

    unsafe fn submit(&mut self, request: DeviceRequest, memory: &[libc::iovec]) {
        let start = self.start_of(request);
        // SAFETY: the caller's promise for the memory; a target is removed only
        // when none of its requests is in flight, and dropped after the transfers.
        unsafe {
            self.transfers.start(start, (), |(), segments| segments.extend_from_slice(memory));
        }
    }

    fn cancel(&mut self, id: RequestId) {
        self.transfers.cancel(id);
    }

    fn exchange(
        &mut self,
        sleep: Sleep,
        completions: &mut Vec<Completion>,
    ) -> Result<(), BackendError> {
        let result = self.transfers.exchange(sleep);
        self.take_ended(completions);
        result
    }
}
