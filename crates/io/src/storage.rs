//! Storage interface between the driver of a machine and real I/O.
//!
//! A [`Storage`] takes requests together with their memory and completes each one exactly once. It
//! decides nothing and owns no memory of the cache. [`FileStorage`] serves any number of local
//! files and block devices; an NFS connection and a source are the others. Functions with
//! `cfg(inside)` exist only in the crate `readpath-dst`, for tests of this layer.

use std::sync::Arc;

#[cfg(inside)]
use readpath_core::request::RequestId;
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest};
use readpath_core::unit::{PAGE_SECTORS, SECTOR_BYTES};

use crate::backend::{Backend, BackendError, BackendInUse, BackendKind};
pub use crate::backend::{Sleep, Sleeper};
use crate::os::clock::Clock;
use crate::target::{FILE_BYTES_MAX, FILE_SECTORS_LOG2, TRANSFER_BYTES_MAX, Target};
use crate::transfers::{TransferFile, TransferProgress, TransferStart, Transfers};

/// Executes requests between memory and storage.
///
/// The core's machine knows a [`IoBackend`](readpath_core::machine::IoBackend), which asks the
/// machine for a request's memory. A storage knows no machine, gets addresses, and can be slept in.
/// The real-time driver of a machine is therefore an engine over a storage.
///
/// Order of calls: `submit` while fewer requests than the depth are in flight, then `exchange` to
/// submit them to the kernel and to collect completions. A storage shared by several threads comes
/// with a [`Sleeper`]: one thread sleeps there, and `collect` takes the completions. Each submitted
/// request is completed exactly once. A storage dropped with requests in flight cancels them and
/// returns only when none of them accesses memory any more.
pub trait Storage: Send {
    /// Capabilities: size, largest request, depth and alignment. They do not change.
    fn caps(&self) -> DeviceCaps;

    /// Accepts a request, which starts at the latest with the next `exchange` or sleep. A read that
    /// reaches past the end completes as `Short`, and the rest of its memory is unspecified.
    ///
    /// # Safety
    /// `memory` has as many bytes as the request, in order, in 1 to 1024 segments. They are valid
    /// until the completion comes out of `exchange` or the storage is dropped. Until then no other
    /// code uses them (for a write: changes them).
    unsafe fn submit(&mut self, request: DeviceRequest, memory: &[libc::iovec]);

    /// Cancels a request if possible. It is completed in any case, with `Cancelled` if the
    /// cancellation succeeded.
    #[cfg(inside)]
    fn cancel(&mut self, id: RequestId);

    /// Adds the available completions to `completions`, without sleeping. A storage with a
    /// [`Sleeper`] makes no system call here. The default calls `exchange`.
    ///
    /// Returns true if the storage has queued requests again, for example the rest of a request
    /// that stopped early. The caller must then submit them, by
    /// [`submit_queued`](Sleeper::submit_queued) or `exchange`.
    ///
    /// # Errors
    /// As [`exchange`](Storage::exchange).
    fn collect(&mut self, completions: &mut Vec<Completion>) -> Result<bool, BackendError> {
        self.exchange(Sleep::Never, completions).map(|()| false)
    }

    /// Submits accepted requests and adds completions, stamped with the time of the storage's
    /// clock. Sleeps for the first completion as long as `sleep` allows. May return early without
    /// completions; returns at once if no request is in flight.
    ///
    /// # Errors
    /// The storage has failed as a whole; no completion is lost.
    fn exchange(
        &mut self,
        sleep: Sleep,
        completions: &mut Vec<Completion>,
    ) -> Result<(), BackendError>;
}

/// Files and block devices as one storage. Each has a sector range of its own, so requests of two
/// files are never adjacent.
pub struct FileStorage {
    // Dropped before the targets, which its transfers access.
    transfers: Transfers<()>,
    /// Open files by slot; the slot number is the upper part of the sector number.
    targets: Vec<Option<Target>>,
    /// Free slots in `targets`.
    free_slots: Vec<usize>,
    /// Capabilities of the storage as a whole, for files of any device.
    caps: DeviceCaps,
    /// I/O backend when the storage was created.
    in_use: BackendInUse,
    /// True if waiting threads may execute requests themselves.
    can_execute_inline: bool,
}

impl FileStorage {
    /// Storage of one file, for one thread. Sector numbers are relative to the file.
    ///
    /// # Errors
    /// The backend is not available here.
    #[cfg(inside)]
    pub fn for_one_thread(
        target: Target,
        backend: BackendKind,
        clock: Clock,
    ) -> Result<FileStorage, BackendError> {
        let caps = target.caps();
        let (backend, in_use) = backend.build(caps.depth_max)?;
        let transfers = Transfers::with_backend(backend, caps.depth_max, clock);
        let targets = vec![Some(target)];
        Ok(FileStorage {
            transfers,
            targets,
            free_slots: Vec::new(),
            caps,
            in_use,
            can_execute_inline: false,
        })
    }

    /// Storage of any number of files for several threads, with the sleeper that waits for its
    /// completions. At most `depth` requests are in flight. With the backend `Auto`, threads may
    /// also execute requests themselves.
    ///
    /// # Errors
    /// As [`for_one_thread`](FileStorage::for_one_thread).
    pub(crate) fn for_several_threads(
        depth: u32,
        backend: BackendKind,
        clock: Clock,
    ) -> Result<(FileStorage, Arc<dyn Sleeper>), BackendError> {
        // A backend that was named executes all requests.
        let can_execute_inline = backend == BackendKind::Auto;
        let ((backend, sleeper), in_use) = backend.build_shared(depth)?;
        let files = FileStorage {
            can_execute_inline,
            ..FileStorage::with_backend(backend, in_use, depth, clock)
        };
        Ok((files, sleeper))
    }

    /// Storage of any number of files over the given backend. Threads may not execute its requests
    /// themselves.
    pub(crate) fn with_backend(
        backend: Box<dyn Backend>,
        in_use: BackendInUse,
        depth: u32,
        clock: Clock,
    ) -> FileStorage {
        let caps = DeviceCaps {
            // Each file has sectors of its own, so the storage has no end.
            sectors: u64::MAX,
            request_sectors_max: (TRANSFER_BYTES_MAX / SECTOR_BYTES) as u32,
            depth_max: depth,
            // Unknown: the files may lie on different devices.
            is_rotational: false,
            // Whole pages suit every target.
            alignment_sectors: PAGE_SECTORS as u32,
        };
        let transfers = Transfers::with_backend(backend, depth, clock);
        let (targets, free_slots) = (Vec::new(), Vec::new());
        FileStorage { transfers, targets, free_slots, caps, in_use, can_execute_inline: false }
    }

    /// I/O backend at present.
    pub fn backend(&self) -> BackendInUse {
        self.in_use.or_threads_if_replaced(self.transfers.replacement_reason())
    }

    /// Adds an open file and returns its first sector, which identifies the file until it is
    /// removed.
    pub(crate) fn add(&mut self, target: Target) -> u64 {
        debug_assert!(target.bytes() <= FILE_BYTES_MAX, "larger files are refused at opening");
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.targets.push(None);
            self.targets.len() - 1
        });
        self.targets[slot] = Some(target);
        (slot as u64) << FILE_SECTORS_LOG2
    }

    /// Removes the file with this first sector, and frees its slot. The file must have no request
    /// in flight.
    pub(crate) fn remove(&mut self, first_sector: u64) {
        let slot = (first_sector >> FILE_SECTORS_LOG2) as usize;
        if self.targets[slot].take().is_some() {
            self.free_slots.push(slot);
        }
    }

    /// Returns the file with the sector `sector`.
    pub(crate) fn target(&self, sector: u64) -> &Target {
        self.targets[(sector >> FILE_SECTORS_LOG2) as usize]
            .as_ref()
            .expect("a request is for a file that is there")
    }

    /// True if a waiting thread may [execute](FileStorage::inline_transfer) its request by itself:
    /// the backend was chosen automatically.
    pub(crate) fn can_execute_inline(&self) -> bool {
        self.can_execute_inline
    }

    /// Prepares a request that the caller executes itself, with its memory in `segments`, which has
    /// as many bytes. The storage does not track it and reports no completion.
    pub(crate) fn inline_transfer(
        &self,
        request: DeviceRequest,
        segments: Vec<libc::iovec>,
    ) -> TransferProgress {
        TransferProgress::new(self.transfer_start(request), segments)
    }

    /// Converts a request from sectors of the storage to bytes of its file.
    fn transfer_start(&self, request: DeviceRequest) -> TransferStart {
        // The bits above are the file's slot.
        let sector_in_file = request.start & ((1 << FILE_SECTORS_LOG2) - 1);
        TransferStart {
            id: request.id,
            file: TransferFile::from_target(self.target(request.start)),
            op: request.op,
            offset: sector_in_file * SECTOR_BYTES,
            bytes: u64::from(request.sectors) * SECTOR_BYTES,
        }
    }

    /// Moves the completions of ended transfers to the caller's list.
    fn take_completions(&mut self, completions: &mut Vec<Completion>) {
        let ended_transfers = std::iter::from_fn(|| self.transfers.next_ended());
        completions.extend(ended_transfers.map(|ended| ended.completion));
    }
}

impl Storage for FileStorage {
    fn caps(&self) -> DeviceCaps {
        self.caps
    }

    /// Moves the available completions to `completions`. Returns true if the rest of a request that
    /// stopped early was queued. Completions are moved also after an error.
    fn collect(&mut self, completions: &mut Vec<Completion>) -> Result<bool, BackendError> {
        let result = self.transfers.collect();
        self.take_completions(completions);
        result
    }

    /// Starts a transfer of the request's file. The next `exchange` or sleep submits it.
    unsafe fn submit(&mut self, request: DeviceRequest, memory: &[libc::iovec]) {
        let start = self.transfer_start(request);
        // SAFETY: the caller's contract for the memory. A target is removed only when none of its
        // requests is in flight, and dropped after the transfers.
        unsafe {
            self.transfers.start(start, (), |(), segments| segments.extend_from_slice(memory));
        }
    }

    #[cfg(inside)]
    fn cancel(&mut self, id: RequestId) {
        self.transfers.cancel(id);
    }

    /// Submits started transfers and sleeps for the first completion as `sleep` allows. Completions
    /// are moved also after an error.
    fn exchange(
        &mut self,
        sleep: Sleep,
        completions: &mut Vec<Completion>,
    ) -> Result<(), BackendError> {
        let result = self.transfers.exchange(sleep);
        self.take_completions(completions);
        result
    }
}
