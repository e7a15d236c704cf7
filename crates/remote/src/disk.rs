//! A disk tier: blocks of objects in a local folder, below the page cache in memory.
//!
//! A fetch of the planner first looks in the folder. The absent part of its range is requested from
//! the store. Fetched pages whose next read is likely to cost more than a write are written to the
//! folder. Pages that have left memory are thus read from the disk, in this process and in later
//! ones. There is no disk tier unless the options name one.
//!
//! ```
//! use object_store::memory::InMemory;
//! use readpath_remote::disk::{DiskOptions, DiskTier};
//! use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("remote-doc-disk-{}", std::process::id()));
//! let tier = DiskTier::open(&DiskOptions::new(&folder, 10 << 30))?;
//! let options = StoreOptions::default().with_disk(tier.store("s3://bucket"));
//! # let s3 = InMemory::new();
//! let store = ReadpathStore::new(s3, options, TokioRuntime::current())?;
//! assert_eq!(tier.counters().hits, 0);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Identity
//! An entry has the pages of one block of 256 KiB of one version of one object. Its head has the
//! name of the store, the location, the strong ETag and the size of the object, and each lookup
//! compares them. An object without a strong ETag is not written. The entries of an older version
//! are never used again, and leave as unused ones.
//!
//! The version of an object is not taken from the folder: the first get of a process asks the store
//! for it. If the folder has entries of the object, that is a request without a body.
//!
//! # Damage and crashes
//! Each page and each head has a checksum of 64 bits, which is compared at each read. Pages are
//! written before the head that names them. A process that is killed at any point leaves an entry
//! of the older state, or one that is removed at its next use. It loses the blocks whose write had
//! not ended. There is no `fsync(2)`: after a loss of power, too, checksums decide. Damaged entries
//! are removed, counted, and fetched again.
//!
//! # Sharing
//! All processes of a user may use one folder. Changes are made under a lock of the folder. Readers
//! take no lock: a block that changes during its read fails its checksum, and is fetched. Each
//! process has its own order of eviction, by the policy `sieve`, over the entries that it has found
//! at its start, written, or hit. Entries are removed under the lock until the bytes of all
//! processes are within the budget. The processes should have equal budgets: each keeps the folder
//! within its own.
//!
//! # Admission
//! By default ([`Admit::ByCost`]) fetched pages are written if
//!
//! ```text
//! p × (A − R) > W
//! ```
//!
//! with the measured cost A of another request for them, among the requests in flight now, the cost
//! R of reading them from the disk, and W of writing them. The probability p of another read is 1
//! for pages that were fetched before, and left memory since. For new pages it is the share of new
//! pages that were read again, (K + 1) ÷ (N + 16). A stream that is read once is not written; its
//! second pass is. Small reads at random places are written at once, until many of them were not
//! used.
//!
//! # Failures
//! A failure of the folder is no error of a read. If the disk is full, or if the folder was deleted
//! or cannot be written, the tier is off until it is opened again. [`DiskCounters::off`] has the
//! reason, and reads go on from the store.
//!
//! # Threads
//! Up to four threads read, and one writes. They start with the first fetches and sleep between
//! jobs; there is no timer. Up to 32 MiB, or one larger fetch, wait for their write. Further blocks
//! are dropped. The bytes pass the page cache of the kernel.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use readpath_core::request::RequestId;

mod admission;
mod entries;
mod entry;
mod folder;
mod index;
mod options;
mod tier;
mod workers;

pub(crate) use entries::DiskRead;
use entries::{Part, ReadJob, WriteJob};
use entry::{VersionKey, object_hash};
use folder::{Folder, OpenFailure};
pub use options::{Admit, DiskCounters, DiskError, DiskOff, DiskOptions};
use tier::Tier;
use workers::Workers;

use crate::planner::Time;

/// Smallest budget in bytes: three whole blocks, with reserve.
const BUDGET_BYTES_MIN: u64 = 1 << 20;

/// An open folder with blocks of objects. See the [module](self). Clones share it. Its threads end
/// after the last clone, the stores and the files that use it.
#[derive(Clone)]
pub struct DiskTier(Arc<Owner>);

/// Closes the threads of a tier at its end: they share the tier itself.
struct Owner(Arc<Workers>);

impl Drop for Owner {
    /// Ends the threads, without a wait. They execute the queued writes first, while the process
    /// runs.
    fn drop(&mut self) {
        self.0.close();
    }
}

impl DiskTier {
    /// The threads of the tier, and the state that all clones share.
    fn workers(&self) -> &Arc<Workers> {
        &self.0.0
    }

    /// Opens a folder, finds its entries (up to 20 us for each), and removes the ones beyond the
    /// budget. If the folder cannot be created, read or written, or not locked within 30 s, the
    /// tier is off from its start.
    ///
    /// # Errors
    /// The budget is too small, or the path is a symbolic link, a folder of another user, or one
    /// that other users may open.
    pub fn open(options: &DiskOptions) -> Result<DiskTier, DiskError> {
        let DiskOptions { folder, budget_bytes, admission } = options;
        if *budget_bytes < BUDGET_BYTES_MIN {
            return Err(DiskError::SmallBudget { budget_bytes: *budget_bytes });
        }
        let (folder, failure) = match Folder::open(folder) {
            Ok(folder) => (Some(folder), None),
            Err(OpenFailure::Refused(error)) => return Err(error),
            Err(OpenFailure::Io(error)) => (None, Some(error)),
        };
        let tier = Tier::new(folder, *budget_bytes, *admission);
        let counted = match (&tier.folder, failure) {
            (_, Some(error)) => Err(error),
            (Some(folder), None) => folder.lock_to_open().and_then(|lock| tier.fit(&lock)),
            // Impossible: a missing folder has a failure.
            (None, None) => Ok(()),
        };
        // The tier is off then. Reads go on from the store. A more exact reason that `on_failure`
        // has found stays.
        if let Err(error) = counted {
            let errno = error.raw_os_error().unwrap_or(0);
            tier.on_failure(&error);
            tier.turn_off(DiskOff::Failed { errno });
        }
        Ok(DiskTier(Arc::new(Owner(Arc::new(Workers::new(tier))))))
    }

    /// The tier for the objects of one store. `name` identifies the store, as by the URL of its
    /// bucket with its server. Two stores with one name must not have different bytes under equal
    /// locations and ETags.
    pub fn store(&self, name: &str) -> DiskStore {
        DiskStore { tier: self.clone(), name: name.into() }
    }

    /// Counters since the tier was opened.
    pub fn counters(&self) -> DiskCounters {
        let tier = &self.workers().tier;
        DiskCounters { off: tier.off(), ..tier.lock().counters }
    }

    /// Waits until all queued blocks are written, also later ones, or their writes have failed.
    /// Blocks the thread. Returns at once in a child made by `fork`, which has no writer.
    pub fn flush(&self) {
        if self.workers().tier.is_of_process() {
            self.workers().flush();
        }
    }
}

impl PartialEq for DiskTier {
    /// Returns true for clones of one tier.
    fn eq(&self, other: &DiskTier) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for DiskTier {}

impl fmt::Debug for DiskTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskTier").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

/// A disk tier for the objects of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStore {
    tier: DiskTier,
    /// Identifies the store in the names and heads of entries.
    name: Arc<str>,
}

impl DiskStore {
    /// The tier.
    pub fn tier(&self) -> &DiskTier {
        &self.tier
    }

    /// The name of the store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if this process's index has entries of some version of an object. False while
    /// the tier is off. Objects with equal hashes share the result: it only saves a request.
    pub(crate) fn has(&self, location: &str) -> bool {
        let tier = &self.tier.workers().tier;
        tier.open_folder().is_some()
            && tier.lock().index.has_object(object_hash(&self.name, location))
    }

    /// An object in one version. `tag` is its strong ETag, if it has one. `None` if its blocks
    /// cannot be in the folder: the tier is off, or there is no strong ETag, or a name is too long
    /// or contains a zero byte. Each reason but the first counts as `unversioned`.
    pub(crate) fn object(
        &self,
        location: &str,
        tag: Option<&str>,
        bytes: u64,
    ) -> Option<DiskObject> {
        let tier = &self.tier.workers().tier;
        tier.open_folder()?;
        let key = tag.and_then(|tag| VersionKey::new(&self.name, location, tag, bytes));
        if key.is_none() {
            tier.lock().counters.unversioned += 1;
        }
        Some(DiskObject { tier: self.tier.clone(), key: Arc::new(key?) })
    }
}

/// One version of an object, with a disk tier.
#[derive(Clone, Debug)]
pub(crate) struct DiskObject {
    tier: DiskTier,
    /// Names of the store and the object, with the ETag and the size.
    key: Arc<VersionKey>,
}

impl DiskObject {
    /// The folder with its state, shared by all objects and threads.
    fn shared(&self) -> &Tier {
        &self.tier.workers().tier
    }

    /// The bytes at both ends of a range of the object, up to the first absent page.
    pub(crate) async fn read(&self, range: Range<u64>) -> DiskRead {
        if self.shared().open_folder().is_none() {
            return DiskRead::default();
        }
        let job = ReadJob { key: Arc::clone(&self.key), range };
        self.tier.workers().read(job).wait().await
    }

    /// A request to the store begins. Returns its identifier, for the one call of `on_answer` that
    /// must follow.
    pub(crate) fn on_request(&self, now: Time) -> RequestId {
        self.shared().lock().admission.on_request(now)
    }

    /// A request to the store has ended, with this number of bytes; `None` if it has failed.
    pub(crate) fn on_answer(&self, now: Time, id: RequestId, bytes: Option<u64>) {
        self.shared().lock().admission.on_answer(now, id, bytes);
    }

    /// Offers fetched bytes of the object from `start` on. The whole pages among them are queued
    /// for a write if they are worth it, and dropped if the queue is full. The last page of the
    /// object counts as a whole one.
    pub(crate) fn offer(&self, start: u64, chunks: Vec<Bytes>) {
        let tier = self.shared();
        if tier.open_folder().is_none() {
            return;
        }
        let bytes: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let mut parts = Part::of_range(start..start + bytes, self.key.object_bytes);
        // Number of all parts, also of the ones that are not worth a write.
        let count = tier.select(&self.key, &mut parts);
        if parts.is_empty() {
            return tier.lock().counters.rejected += count;
        }
        let (rejected, admitted) = (count - parts.len() as u64, parts.len() as u64);
        let job = WriteJob { key: Arc::clone(&self.key), start, chunks, parts };
        let is_queued = self.tier.workers().write(job);
        let counters = &mut tier.lock().counters;
        counters.rejected += rejected;
        counters.dropped += if is_queued { 0 } else { admitted };
    }
}

impl Tier {
    /// Keeps the parts of a fetch that are worth a write; with [`Admit::All`] every part. Records
    /// in `admission` that all of them were fetched. Returns the number of all parts. The costs of
    /// the whole fetch decide, even if only its new or its seen parts are written.
    fn select(&self, key: &VersionKey, parts: &mut Vec<Part>) -> u64 {
        let count = parts.len() as u64;
        let admission = &mut self.lock().admission;
        for part in parts.iter_mut() {
            // `on_fetched` returns true if most of the pages were fetched before.
            part.is_new = !admission.on_fetched(key.entry(part.block), part.bits());
        }
        if self.admit == Admit::All || parts.is_empty() {
            return count;
        }
        let pages = parts.iter().map(|part| part.pages.end - part.pages.start).sum();
        let (has_new, has_seen) =
            (parts.iter().any(|part| part.is_new), parts.iter().any(|part| !part.is_new));
        // `is_worth` counts refusals: it is asked only about kinds of pages that are there. False
        // stands for new pages, true for pages that were fetched before.
        let admits_new = has_new && admission.is_worth(false, pages, count);
        let admits_seen = has_seen && admission.is_worth(true, pages, count);
        parts.retain(|part| if part.is_new { admits_new } else { admits_seen });
        count
    }
}
