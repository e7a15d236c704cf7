//! Handles of open files, and their replacement. A *handle* is one opening of a file by the
//! program, with a readahead state of its own. The *engine* is the path's own cache with its
//! requests. In a child made by `fork` another engine's handle takes over. A *version* of a file is
//! its content between two changes. After a change a handle of the new version takes over.
//!
//! Every operation enters through [`Handle::current`], which returns the handle to use in this
//! process at this time. In a child this is a handle of a new engine over the same open file with
//! the same policies, made on first use. The inherited engine is never touched, because its lock
//! may be held. A cache hit skips this call while [`Handle::is_fast_path_enabled`] permits it.
//!
//! The *machine* is the state machine of the engine's cache. A page is *shared* if readers may copy
//! it from the frame cache without the machine. A *marked* page has the readahead mark: its use
//! must reach the readahead *policy*. *Lasting* advice changes the readahead state of a handle and
//! stays until the next such advice.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use readpath_core::machine::Machine;
use readpath_core::readahead::Advice;
use readpath_core::request::ProcessId;
use readpath_core::unit::PageRange;

use super::OpenFile;
use super::frame_cache::PinnedPage;
use super::lazy_engine::LazyEngine;
use super::read_counters::{ReadCounters, thread_number};
use super::state::open_files::MachineIds;
use super::storage_backend::StorageFile;
use crate::os::process::{ForkLocal, ProcessNumber};
use crate::page_cache::kernel::kernel_readahead::HandlePolicy;
use crate::read_error::{Forked, PinLimitReached, ReadError};
use crate::target::Coherence;
use crate::target::identity::{Identity, file_time};

/// A handle of an open file: one readahead state.
pub(crate) struct Handle {
    /// Owner of the path's engine.
    pub(crate) engine: Arc<LazyEngine>,
    /// Open file, shared by its handles.
    pub(crate) file: Arc<OpenFile>,
    /// The machine's identifiers, set when the machine first learns of the handle.
    machine_ids: OnceLock<MachineIds>,
    /// True if the readahead policy must be called for every hit, so that hits may not bypass it.
    needs_every_hit: bool,
    /// Number of the process in which cached bytes may be returned without [`Handle::current`];
    /// `ProcessNumber::NONE` if there is none.
    fast_path_process: AtomicU32,
    /// Counters of this handle's reads, and the ends that the policy must learn of.
    pub(crate) read_counters: ReadCounters,
    /// Index of the latest lasting advice in [`ADVICE`].
    advice: AtomicU8,
    /// Readahead state for a file in the kernel page cache.
    pub(crate) kernel_policy: Mutex<HandlePolicy>,
    /// Replacement of this handle in a child.
    child_handle: ForkLocal<Arc<Handle>>,
    /// Replacement of this handle after changes of the file.
    newest_version: Mutex<NewestVersion>,
}

/// Handle of the newest version of a file that has changed since it was opened.
#[derive(Default)]
struct NewestVersion {
    /// `None` if the file has not changed.
    handle: Option<Arc<Handle>>,
    /// Handles between the first one and `handle`. Reads that were started with them, such as reads
    /// of a batch, may still be counted.
    replaced: Vec<Arc<Handle>>,
    /// Sums of the [`ReadCounters`] of the earlier ones of them, which no read uses any more: the
    /// four of [`ReadCounters::byte_sums`].
    replaced_sums: [u64; 4],
}

impl NewestVersion {
    /// Adds the counters of replaced handles without readers to the sums. Returns these handles, to
    /// be dropped without the lock of this state.
    fn take_unused(&mut self) -> Vec<Handle> {
        let mut unused = Vec::new();
        for handle in std::mem::take(&mut self.replaced) {
            match Arc::try_unwrap(handle) {
                Ok(handle) => unused.push(handle),
                Err(in_use) => self.replaced.push(in_use),
            }
        }
        for sums in unused.iter().map(|handle| handle.read_counters.byte_sums()) {
            self.replaced_sums.iter_mut().zip(sums).for_each(|(sum, value)| *sum += value);
        }
        unused
    }
}

/// Kinds of advice that last, by their index in a handle.
const ADVICE: [Advice; 3] = [Advice::Normal, Advice::Sequential, Advice::Random];

impl Handle {
    /// Opens `storage_file`, whose version is `identity`. If the machine has to know the handle at
    /// once and knows an open file of the same version, that one is used instead.
    pub(crate) fn open(
        engine: &Arc<LazyEngine>,
        storage_file: StorageFile,
        identity: Identity,
    ) -> Handle {
        let file_number = engine.next_file_number();
        let file = OpenFile::from_storage_file(storage_file, identity, &engine.pages, file_number);
        Handle::from_file(engine, Arc::new(file))
    }

    /// Opens another handle of the same file version, with a readahead state of its own.
    pub(crate) fn reopen(&self) -> Handle {
        Handle::from_file(&self.engine, Arc::clone(&self.file))
    }

    /// Creates a handle of a file. If the kernel caches its pages, or there is no engine yet, the
    /// machine learns of the handle only when it has to read.
    fn from_file(engine: &Arc<LazyEngine>, file: Arc<OpenFile>) -> Handle {
        if file.pages.kernel_file().is_some() || engine.existing_engine().is_none() {
            let not_registered = None;
            return Handle::with_machine_ids(engine, file, not_registered);
        }
        let (file, machine_ids) = engine.lock().open(file);
        Handle::with_machine_ids(engine, file, Some(machine_ids))
    }

    /// Creates a handle with the machine's identifiers of it. `None` means that the machine does
    /// not know the handle yet.
    pub(super) fn with_machine_ids(
        engine: &Arc<LazyEngine>,
        file: Arc<OpenFile>,
        machine_ids: Option<MachineIds>,
    ) -> Handle {
        // A handle without identifiers is of a file that the kernel caches, without own hits, or of
        // a source in memory. The default policy of such a source does not need every hit.
        let needs_every_hit = machine_ids.is_some_and(|machine_ids| machine_ids.needs_every_hit);
        // The *fast path* returns hits without `current`. No hit may bypass such a policy, or the
        // check of each read.
        let has_fast_path = !needs_every_hit && engine.coherence != Coherence::EachRead;
        Handle {
            engine: Arc::clone(engine),
            file,
            machine_ids: machine_ids.map_or_else(OnceLock::new, OnceLock::from),
            needs_every_hit,
            fast_path_process: AtomicU32::new(
                if has_fast_path { ProcessNumber::current() } else { ProcessNumber::NONE }.number(),
            ),
            read_counters: ReadCounters::new(engine.concurrent_copies_max),
            // Index of `Advice::Normal`.
            advice: AtomicU8::new(0),
            kernel_policy: Mutex::default(),
            child_handle: ForkLocal::new(),
            newest_version: Mutex::default(),
        }
    }

    /// Returns the machine's identifiers, and registers the handle first if necessary. The
    /// registration builds a missing engine, and panics if it cannot be built. Must not be called
    /// with the engine's lock held.
    #[inline]
    pub(crate) fn machine_ids_or_register(&self) -> MachineIds {
        *self.machine_ids.get_or_init(|| self.register_in_machine())
    }

    /// Registers the handle with the machine, passes its lasting advice on, and returns the
    /// machine's identifiers.
    #[cold]
    fn register_in_machine(&self) -> MachineIds {
        // The handle keeps its own open file, also if the machine knows another one of its version.
        let (_open_file, machine_ids) = self.engine.lock().open(Arc::clone(&self.file));
        let advice = ADVICE[usize::from(self.advice.load(Ordering::Relaxed))];
        if advice != Advice::Normal {
            let no_range = PageRange { first: 0, end: 0 };
            self.advise_machine(machine_ids, advice, no_range);
        }
        machine_ids
    }

    /// Returns the machine's identifiers of a registered handle.
    pub(crate) fn machine_ids(&self) -> MachineIds {
        *self
            .machine_ids
            .get()
            .expect("the handle is registered before its first read of the machine")
    }

    /// Returns the handle to use in this process at this time. If the path's [`Coherence`] requires
    /// it, checks the file for a change.
    ///
    /// # Errors
    /// The process is a child without a usable engine, or the check of the file fails.
    pub(crate) fn current(self: &Arc<Handle>) -> Result<Arc<Handle>, ReadError> {
        let handle = self.of_this_process()?;
        match handle.engine.coherence {
            Coherence::WhenOpened => Ok(handle),
            Coherence::EachMiss | Coherence::EachRead => handle.revalidated(),
        }
    }

    /// Like [`current`](Handle::current), without the check.
    ///
    /// # Errors
    /// The process is a child without a usable engine.
    pub(crate) fn current_unchecked(self: &Arc<Handle>) -> Result<Arc<Handle>, ReadError> {
        let handle = self.of_this_process()?;
        Ok(handle.newest_version().unwrap_or(handle))
    }

    /// Returns this handle, or its replacement in this child, which is made on first use.
    fn of_this_process(self: &Arc<Handle>) -> Result<Arc<Handle>, ReadError> {
        if self.engine.is_of_this_process() {
            return Ok(Arc::clone(self));
        }
        let reopen = || self.reopen_in_child().map(Arc::new);
        let child_handle =
            self.child_handle.get_or_init(reopen).map_err(|why| ReadError::Forked { why })?;
        // A grandchild inherits the child's handle, and replaces it in turn.
        child_handle.of_this_process()
    }

    /// Creates a handle of the same open file in an engine of this child.
    fn reopen_in_child(&self) -> Result<Handle, Forked> {
        let engine = self.engine.for_this_process()?;
        // The connection to a server, or the threads of a source, belong to the parent.
        let StorageFile::Local(target) = &self.file.storage_file else {
            return Err(Forked::Server);
        };
        // A child that closed all descriptors may have opened other files under the same number.
        if !target.is_still_open() {
            return Err(Forked::Closed);
        }
        let identity = self.file.identity;
        Ok(self.with_own_advice(Handle::open(
            &engine,
            StorageFile::Local(target.clone()),
            identity,
        )))
    }

    /// Applies the lasting advice of this handle to its replacement `handle`, and returns that.
    fn with_own_advice(&self, handle: Handle) -> Handle {
        self.pass_advice_to(&handle);
        handle
    }

    /// Applies the lasting advice of this handle to its replacement `handle`.
    pub(crate) fn pass_advice_to(&self, handle: &Handle) {
        let advice_index = usize::from(self.advice.load(Ordering::Relaxed));
        // Index 0 is `Normal`, the state of a new handle.
        if advice_index != 0 {
            let no_range = PageRange { first: 0, end: 0 };
            handle.advise(ADVICE[advice_index], no_range);
        }
    }

    /// Checks the file for a change, and returns the handle of its current version. After a change
    /// this is a new handle, and the cached pages of the older version are dropped. With
    /// [`Coherence::EachRead`] a file that was changed in the last 2 s counts as changed each time:
    /// its *unstable id* is unique. Only for handles of this process.
    ///
    /// # Errors
    /// The attributes of the file cannot be read (`ReadError::Look`).
    fn revalidated(self: Arc<Handle>) -> Result<Arc<Handle>, ReadError> {
        loop {
            let newest = self.newest_version().unwrap_or_else(|| Arc::clone(&self));
            // Files of a server or a source are not checked.
            let StorageFile::Local(target) = &newest.file.storage_file else { return Ok(newest) };
            // Taken before the check, so that a change after it is not taken for an old one.
            let time = file_time();
            let identity = Identity::from_target(target)
                .map_err(|errno| ReadError::Look { errno: errno.raw_os_error() })?
                .with_unstable_id(time, self.engine.coherence);
            if identity.is_unchanged_since(&newest.file.identity) {
                return Ok(newest);
            }
            let target = target.clone().with_bytes(identity.bytes);
            let reopened = Handle::open(&self.engine, StorageFile::Local(target), identity);
            let reopened = Arc::new(newest.with_own_advice(reopened));
            if self.replace_newest(&newest, &reopened) {
                // This handle's cached pages are outdated: each later read must go through
                // `current`.
                self.fast_path_process.store(ProcessNumber::NONE.number(), Ordering::Relaxed);
                newest.invalidate_all_pages();
                return Ok(reopened);
            }
            // Another thread has replaced the handle meanwhile, perhaps with a later version.
        }
    }

    /// Makes `reopened` the handle of the newest version if that is still `expected`. Returns false
    /// without a change otherwise. A replaced handle stays in `replaced` while reads use it. Later
    /// replacements drop it, and keep its counters. (This handle, of the first version, stays and
    /// is never in that list.)
    fn replace_newest(self: &Arc<Handle>, expected: &Arc<Handle>, reopened: &Arc<Handle>) -> bool {
        let mut newest = self.newest_version.lock().expect("nothing panics under this lock");
        let is_newest = Arc::ptr_eq(newest.handle.as_ref().unwrap_or(self), expected);
        let mut unused = Vec::new();
        if is_newest && let Some(replaced) = newest.handle.replace(Arc::clone(reopened)) {
            unused = newest.take_unused();
            newest.replaced.push(replaced);
        }
        drop(newest);
        // Takes the lock of the engine, which is never taken under the lock above.
        drop(unused);
        is_newest
    }

    /// Drops all cached pages of the file version of this handle. No effect without an engine.
    fn invalidate_all_pages(&self) {
        if self.engine.existing_engine().is_none() {
            return;
        }
        let all_pages = PageRange { first: 0, end: u64::MAX };
        // Registered for this call if necessary: other handles of the version may have read pages.
        let machine_ids = self.machine_ids_or_register();
        self.engine
            .lock()
            .with_machine(|machine, _| machine.invalidate(machine_ids.handle, all_pages));
    }

    /// Returns the handle of the newest file version, or `None` if the file has not changed.
    fn newest_version(&self) -> Option<Arc<Handle>> {
        self.newest_version.lock().expect("nothing panics under this lock").handle.clone()
    }

    /// Last known length of the file in bytes. Does not look at the file itself. In a child without
    /// a usable engine, it is the length at the opening of this handle.
    pub(crate) fn bytes(self: &Arc<Handle>) -> u64 {
        match self.engine.coherence {
            Coherence::WhenOpened => self.file.bytes,
            // A later version may have another length.
            _ => self.current_unchecked().map_or(self.file.bytes, |handle| handle.file.bytes),
        }
    }

    /// Sums of the counters of this handle and of its later versions in this process, in bytes, as
    /// [`ReadCounters::byte_sums`]. In a child without a replacement of the handle, all are 0.
    pub(crate) fn counter_sums(&self) -> [u64; 4] {
        if !self.engine.is_of_this_process() {
            return self.child_handle.get().map_or([0; 4], |handle| handle.counter_sums());
        }
        let newest = self.newest_version.lock().expect("nothing panics under this lock");
        let newest_sums =
            newest.handle.as_ref().map_or([0; 4], |handle| handle.read_counters.byte_sums());
        let replaced = newest.replaced.iter().map(|handle| handle.read_counters.byte_sums());
        let own_sums = self.read_counters.byte_sums();
        replaced.chain([own_sums, newest_sums]).fold(newest.replaced_sums, |sums, others| {
            std::array::from_fn(|index| sums[index] + others[index])
        })
    }

    /// Takes advice about future reads of this handle, for the policy of each cache that it uses.
    /// `WillNeed` prefetches the range, and `DontNeed` drops its cached pages. Other advice ignores
    /// `range`. Lasting advice is kept for replacements of the handle.
    pub(crate) fn advise(&self, advice: Advice, range: PageRange) {
        if let Some(index) = ADVICE.iter().position(|&kind| kind == advice) {
            self.advice.store(index as u8, Ordering::Relaxed);
        }
        if let Some(file) = self.file.pages.kernel_file() {
            file.advise(&self.kernel_policy, advice, range);
        }
        if advice == Advice::WillNeed {
            // The kernel has got the hint above, or there is no cache for pages that no read waits
            // for. A source with all bytes in memory builds no engine for them.
            if !self.file.pages.stay_in_own_cache() || self.file.storage_file.has_all_bytes() {
                return;
            }
            // From now on a reader must look into the own cache first.
            self.file.has_pages.store(true, Ordering::Relaxed);
        }
        // Without an engine there are no own pages to drop. An engine that is built later receives
        // lasting advice when the handle is registered.
        if self.engine.existing_engine().is_some() || advice == Advice::WillNeed {
            self.advise_machine(self.machine_ids_or_register(), advice, range);
        }
    }

    /// Readahead state of the handle's file: from the policy of the kernel page cache if the kernel
    /// caches the file, otherwise from the machine. The latter registers the handle if necessary.
    pub(crate) fn readahead_state(&self) -> readpath_core::readahead::ReadaheadState {
        match self.file.pages.kernel_file() {
            Some(file) => file.readahead_state(),
            None => {
                let handle = self.machine_ids_or_register().handle;
                self.engine.lock().machine.readahead_state(handle)
            }
        }
    }

    /// Passes advice to the machine and submits the resulting requests.
    fn advise_machine(&self, machine_ids: MachineIds, advice: Advice, range: PageRange) {
        let handle = machine_ids.handle;
        let process = ProcessId(handle.0);
        let advise =
            |machine: &mut Machine, now| machine.advise(now, handle, process, advice, range);
        self.engine.lock().with_machine(advise);
    }

    /// True if cached bytes may be returned without [`Handle::current`].
    #[inline]
    pub(crate) fn is_fast_path_enabled(&self) -> bool {
        ProcessNumber::from_number(self.fast_path_process.load(Ordering::Relaxed)).is_current()
    }

    /// True if the own cache may contain pages of the file.
    #[inline]
    pub(crate) fn has_pages(&self) -> bool {
        self.file.has_pages.load(Ordering::Relaxed)
    }

    /// True if all pages of the range are shared in the own cache and none is marked. Other threads
    /// may change this at any time.
    pub(crate) fn are_all_shared(&self, range: PageRange) -> bool {
        self.has_pages()
            && self.engine.frame_cache.are_all_shared(self.machine_ids_or_register().file_id, range)
    }

    /// Copies shared bytes from `offset` on into `buffer`, which is not empty, without
    /// [`Handle::current`], and counts the read. Returns false if not all bytes are shared, or if
    /// reads may not skip that call now.
    #[inline]
    pub(crate) fn read_shared(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.has_pages() && self.is_fast_path_enabled() && self.copy_shared(offset, buffer)
    }

    /// Copies shared bytes like [`read_shared`](Handle::read_shared), for callers that went through
    /// [`Handle::current`]. Returns false if not all bytes are shared, or if the policy must see
    /// every hit. (`read_shared` needs no such check: the fast path is off for that policy.)
    pub(crate) fn read_shared_checked(&self, offset: u64, buffer: &mut [u8]) -> bool {
        !self.needs_every_hit && self.has_pages() && self.copy_shared(offset, buffer)
    }

    /// Copies bytes from byte `offset` on out of the frame cache and counts the read. Returns false
    /// if not all bytes are shared; the content of `buffer` is then undefined.
    // `inline(always)`: with two callers it would otherwise be a function call in every hit.
    #[inline(always)]
    fn copy_shared(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let preferred_slot = thread_number();
        // A copy that starts in this page continues its last use and does not count as another.
        let last_used_page = self.read_counters.last_page(preferred_slot);
        let reader_guard = self.engine.frame_cache.copy(
            self.machine_ids_or_register().file_id,
            offset,
            buffer,
            preferred_slot,
            last_used_page,
        );
        let Some(reader_guard) = reader_guard else { return false };
        let bytes = buffer.len() as u64;
        self.read_counters.record_copy(reader_guard.slot(), bytes, offset + bytes);
        true
    }

    /// Pins a page and returns it. Returns `None` if it is not shared, if the policy must see its
    /// use (a marked page) or every hit, or while pinning is paused. The caller has checked
    /// [`Handle::is_fast_path_enabled`] or has gone through [`Handle::current`].
    ///
    /// # Errors
    /// The limit of pinned pages is reached.
    pub(crate) fn pin_shared(&self, page: u64) -> Result<Option<PinnedPage>, PinLimitReached> {
        if self.needs_every_hit || !self.has_pages() {
            return Ok(None);
        }
        let file_id = self.machine_ids_or_register().file_id;
        let ignores_mark = false;
        self.engine.frame_cache.pin(file_id, page, ignores_mark)
    }

    /// Calls `record_end` with the end offset of the last read in each slot that bypassed the
    /// machine, unless an earlier call has passed it. The calling thread's comes last. A *slot* is
    /// the number of a simultaneous copy, usually the number of its thread.
    pub(super) fn take_unreported_ends(&self, record_end: impl FnMut(u64)) {
        self.read_counters.take_unreported_ends(record_end);
    }
}

impl Drop for Handle {
    /// Closes the handle in the kernel policy, and in the machine if it is registered there. Does
    /// nothing to a handle of the parent in a child made by `fork`.
    fn drop(&mut self) {
        if self.engine.is_of_this_process() {
            if let Some(file) = self.file.pages.kernel_file() {
                file.on_close(&self.kernel_policy);
            }
            if let Some(machine_ids) = self.machine_ids.get() {
                self.engine.lock().on_handle_dropped(machine_ids.handle);
            }
        }
    }
}
