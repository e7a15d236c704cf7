//! Handles of open files, and who answers for them: another engine in a child made by `fork`,
//! another state of the file once it was seen to have changed.
//!
//! Every operation comes through one door, [`Handle::here`], which gives the handle to be used
//! here and now. In a child that is one of an engine of its own, over the same open file and with
//! the same laws, made when it is first needed: what was inherited is left alone, lock and all. A hit
//! passes the door by, as long as [`Handle::lends`] says that it may.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use readpath_core::machine::Machine;
use readpath_core::readahead::Advice;
use readpath_core::request::ProcessId;
use readpath_core::unit::PageRange;

use super::OpenFile;
use super::below::Opening;
use super::frame_cache::{HeldMax, PinnedPage};
use super::opening::InMachine;
use super::owner::LazyEngine;
use super::read_counters::{ReadCounters, thread_number};
use crate::identity::{Identity, file_time};
use crate::kernel_pages::kernel_readahead::HandlePolicy;
use crate::path::Coherence;
use crate::process::{ForkLocal, ProcessName};
use crate::read_error::{Forked, ReadError};

/// A handle of an open file: one readahead state.
pub(crate) struct Handle {
    pub(crate) engine: Arc<LazyEngine>,
    pub(crate) file: Arc<OpenFile>,
    /// What the machine calls it, once that was told of it.
    named: OnceLock<InMachine>,
    sees_every_hit: bool,
    /// The number of the process in which what is cached may be given past the door.
    lends_in: AtomicU32,
    pub(crate) read_counters: ReadCounters,
    /// Which of [`ADVICE`] it was given last.
    advice: AtomicU8,
    /// Of a file whose pages the kernel keeps.
    pub(crate) policy: Mutex<HandlePolicy>,
    /// The handle in a child.
    fork_local: ForkLocal<Arc<Handle>>,
    /// The handle of the file as it was seen last, if it has changed since this was opened;
    /// and the bytes read by those between the two, of them those cached.
    newest: Mutex<(Option<Arc<Handle>>, [u64; 4])>,
}

/// The advice that lasts, by its number in a handle.
const ADVICE: [Advice; 3] = [Advice::Normal, Advice::Sequential, Advice::Random];

impl Handle {
    /// Opens `target`, or finds it open already and unchanged.
    pub(crate) fn open(engine: &Arc<LazyEngine>, target: Opening, identity: Identity) -> Handle {
        let number = engine.next_number();
        let file = OpenFile::of(target, identity, &engine.kernel_cache, number);
        Handle::of(engine, Arc::new(file))
    }

    /// One more handle of the same file.
    pub(crate) fn again(&self) -> Handle {
        Handle::of(&self.engine, Arc::clone(&self.file))
    }

    /// A handle of a file. Of one whose pages the kernel keeps the machine is not told before it is to read of it.
    fn of(engine: &Arc<LazyEngine>, file: Arc<OpenFile>) -> Handle {
        if file.kernel_pages.are_kept() {
            return Handle::opened(engine, file, None);
        }
        let (file, named) = engine.lock().open(file);
        Handle::opened(engine, file, Some(named))
    }

    /// A handle as the machine knows it, if it does.
    pub(super) fn opened(
        engine: &Arc<LazyEngine>,
        file: Arc<OpenFile>,
        named: Option<InMachine>,
    ) -> Handle {
        let sees_every_hit = named.is_some_and(|named| named.sees_every_hit);
        let lends = !sees_every_hit && engine.coherence != Coherence::EachRead;
        Handle {
            engine: Arc::clone(engine),
            file,
            named: named.map_or_else(OnceLock::new, OnceLock::from),
            sees_every_hit,
            lends_in: AtomicU32::new(
                if lends { ProcessName::this() } else { ProcessName::NONE }.number(),
            ),
            read_counters: ReadCounters::new(engine.copies_max),
            advice: AtomicU8::new(0),
            policy: Mutex::default(),
            fork_local: ForkLocal::new(),
            newest: Mutex::default(),
        }
    }

    /// What the machine calls it, which is told of it now if it was not before; not to be asked under its lock.
    #[inline]
    pub(crate) fn in_machine(&self) -> InMachine {
        *self.named.get_or_init(|| self.made_known())
    }

    #[cold]
    fn made_known(&self) -> InMachine {
        let (_, named) = self.engine.lock().open(Arc::clone(&self.file));
        let advice = ADVICE[usize::from(self.advice.load(Ordering::Relaxed))];
        if advice != Advice::Normal {
            self.advise_machine(named, advice, PageRange::new(0, 0));
        }
        named
    }

    /// What the machine, which was told of it, calls it.
    pub(crate) fn named(&self) -> InMachine {
        *self.named.get().expect("who reads through the machine has told it of the handle")
    }

    /// The handle to be used here and now; looks, where the path's [`Coherence`] says so, whether
    /// the file has changed.
    ///
    /// # Errors
    /// This is a child, and there is none; or the file can't be looked at.
    pub(crate) fn here(self: &Arc<Handle>) -> Result<Arc<Handle>, ReadError> {
        let handle = self.ours()?;
        match handle.engine.coherence {
            Coherence::WhenOpened => Ok(handle),
            Coherence::EachMiss | Coherence::EachRead => handle.looked_at(),
        }
    }

    /// As [`here`](Handle::here), without looking.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn here_as_seen(self: &Arc<Handle>) -> Result<Arc<Handle>, ReadError> {
        let handle = self.ours()?;
        Ok(handle.newest().unwrap_or(handle))
    }

    /// Itself, or what has its place in this child.
    fn ours(self: &Arc<Handle>) -> Result<Arc<Handle>, ReadError> {
        if self.engine.is_ours() {
            return Ok(Arc::clone(self));
        }
        let inherit = || self.inherited().map(Arc::new);
        let fork_local =
            self.fork_local.get_or_make(inherit).map_err(|why| ReadError::Forked { why })?;
        fork_local.ours()
    }

    /// A handle of the same open file in an engine of this child.
    fn inherited(&self) -> Result<Handle, Forked> {
        let engine = self.engine.here()?;
        let Opening::Local(target) = &self.file.opening else { return Err(Forked::Server) };
        // A child that has closed all descriptors may have opened others by that number.
        if !target.is_still_open() {
            return Err(Forked::Closed);
        }
        let identity = self.file.identity;
        Ok(self.like(Handle::open(&engine, Opening::Local(target.clone()), identity)))
    }

    /// Gives a handle in the place of this one what this one was told.
    fn like(&self, handle: Handle) -> Handle {
        let advice = self.advice.load(Ordering::Relaxed);
        if advice != 0 {
            let all = PageRange { first: 0, end: 0 };
            handle.advise(ADVICE[usize::from(advice)], all);
        }
        handle
    }

    /// The handle of the file as it is now; of its own process.
    fn looked_at(self: Arc<Handle>) -> Result<Arc<Handle>, ReadError> {
        loop {
            let seen = self.newest().unwrap_or_else(|| Arc::clone(&self));
            let Opening::Local(target) = &seen.file.opening else { return Ok(seen) };
            let time = file_time();
            let found = Identity::now_of(target)
                .map_err(|errno| ReadError::Look { errno: errno.raw_os_error() })?
                .marked(time, self.engine.coherence);
            if found.is_still(&seen.file.identity) {
                return Ok(seen);
            }
            let target = target.clone().with_bytes(found.bytes);
            let fresh = Handle::open(&self.engine, Opening::Local(target), found);
            let fresh = Arc::new(self.like(fresh));
            if self.replace(&seen, &fresh) {
                self.lends_in.store(ProcessName::NONE.number(), Ordering::Relaxed);
                seen.forget_all();
                return Ok(fresh);
            }
            // Another thread has looked meanwhile, perhaps later than this one.
        }
    }

    /// Puts `fresh` in the place of `seen`, if that is the newest still.
    fn replace(self: &Arc<Handle>, seen: &Arc<Handle>, fresh: &Arc<Handle>) -> bool {
        let mut newest = self.newest.lock().expect("nothing panics under this lock");
        let is_newest = Arc::ptr_eq(newest.0.as_ref().unwrap_or(self), seen);
        if is_newest && let Some(before) = newest.0.replace(Arc::clone(fresh)) {
            // `seen` itself, so that this is not its last drop.
            let sums = before.read_counters.sums();
            newest.1.iter_mut().zip(sums).for_each(|(sum, more)| *sum += more);
        }
        is_newest
    }

    /// Drops what is cached of the file in the state that this handle knows.
    fn forget_all(&self) {
        if self.engine.built().is_none() {
            return;
        }
        let (all, named) = (PageRange { first: 0, end: u64::MAX }, self.in_machine());
        self.engine.lock().command(|machine, _| machine.invalidate(named.handle, all));
    }

    fn newest(&self) -> Option<Arc<Handle>> {
        self.newest.lock().expect("nothing panics under this lock").0.clone()
    }

    /// The length that is known of the file.
    pub(crate) fn bytes(self: &Arc<Handle>) -> u64 {
        match self.engine.coherence {
            Coherence::WhenOpened => self.file.bytes,
            _ => self.here_as_seen().map_or(self.file.bytes, |handle| handle.file.bytes),
        }
    }

    /// What this handle has read in this process: as [`ReadCounters::sums`].
    pub(crate) fn sums(&self) -> [u64; 4] {
        if !self.engine.is_ours() {
            return self.fork_local.get().map_or([0; 4], |fork_local| fork_local.sums());
        }
        let newest = self.newest.lock().expect("nothing panics under this lock");
        let last = newest.0.as_ref().map_or([0; 4], |handle| handle.read_counters.sums());
        let own = self.read_counters.sums();
        std::array::from_fn(|at| own[at] + newest.1[at] + last[at])
    }

    /// A hint on how this handle will read; what is wanted of it goes out.
    pub(crate) fn advise(&self, advice: Advice, range: PageRange) {
        if let Some(number) = ADVICE.iter().position(|&one| one == advice) {
            self.advice.store(number as u8, Ordering::Relaxed);
        }
        let is_kept = self.file.kernel_pages.advise(&self.policy, advice, range);
        if advice == Advice::WillNeed {
            if is_kept {
                return;
            }
            self.file.has_pages.store(true, Ordering::Relaxed);
        }
        // Of a path that has no engine it has no pages either; once it has, it is told what the handle was told.
        if self.engine.built().is_some() || advice == Advice::WillNeed {
            self.advise_machine(self.in_machine(), advice, range);
        }
    }

    /// What is believed of the file: by the law of the kernel's pages where it keeps them, and else by the machine.
    pub(crate) fn readahead_state(&self) -> readpath_core::readahead::ReadaheadState {
        match self.file.kernel_pages.readahead_state() {
            Some(readahead_state) => readahead_state,
            None => {
                let handle = self.in_machine().handle;
                self.engine.lock().machine.readahead_state(handle)
            }
        }
    }

    fn advise_machine(&self, named: InMachine, advice: Advice, range: PageRange) {
        let handle = named.handle;
        let process = ProcessId(handle.0);
        let advise =
            |machine: &mut Machine, now| machine.advise(now, handle, process, advice, range);
        self.engine.lock().command(advise);
    }

    /// Whether what is cached may be given past the door.
    #[inline]
    pub(crate) fn lends(&self) -> bool {
        ProcessName::of(self.lends_in.load(Ordering::Relaxed)).is_this()
    }

    /// Whether any page of the file may be in our cache.
    #[inline]
    pub(crate) fn has_pages(&self) -> bool {
        self.file.has_pages.load(Ordering::Relaxed)
    }

    /// Reads what is lent into `buffer`, which is not empty, all of it or nothing,
    /// past the door.
    #[inline]
    pub(crate) fn read_lent(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.has_pages() && self.lends() && self.copy(offset, buffer)
    }

    /// As [`read_lent`](Handle::read_lent), for who came through the door.
    pub(crate) fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> bool {
        !self.sees_every_hit && self.has_pages() && self.copy(offset, buffer)
    }

    // Always: with its two callers it would else be a call on the way of each hit.
    #[inline(always)]
    fn copy(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let wish = thread_number();
        let used_on = self.read_counters.last_page(wish);
        let copied =
            self.engine.frame_cache.copy(self.in_machine().file, offset, buffer, wish, used_on);
        let Some(reading) = copied else { return false };
        let bytes = buffer.len() as u64;
        self.read_counters.copied(reading.slot(), bytes, offset + bytes);
        true
    }

    /// Holds a page, if it is lent.
    ///
    /// # Errors
    /// As many pages are held as may be.
    pub(crate) fn hold_cached(&self, page: u64) -> Result<Option<PinnedPage>, HeldMax> {
        match self.sees_every_hit || !self.has_pages() {
            true => Ok(None),
            false => self.engine.frame_cache.hold(self.in_machine().file, page, false),
        }
    }

    /// Tells where reads ended that the machine was not shown, each once; the calling
    /// thread's comes last.
    pub(super) fn take_passed(&self, passed: impl FnMut(u64)) {
        self.read_counters.take_passed(passed);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.engine.is_ours() {
            self.file.kernel_pages.closed(&self.policy);
            if let Some(named) = self.named.get() {
                self.engine.lock().dropped(named.handle);
            }
        }
    }
}
