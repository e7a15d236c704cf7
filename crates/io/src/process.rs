//! Which process this is, and what belongs to one process alone.
//!
//! A child made by `fork(2)` has a copy of its parent's memory, none of its other threads, and
//! shares with it what the kernel keeps for it: the rings, above all. What a parent has made
//! must be neither used nor dropped in the child; nor may the child wait for a lock that a
//! thread had at that moment, which will never be let go there. So what belongs to a
//! process is marked with its [`ProcessName`], and each operation asks [`ProcessName::is_this`] before it
//! touches anything.
//!
//! To ask is two loads. The number of the process lies in a page that the kernel empties in
//! every child (`MADV_WIPEONFORK`, Linux 4.14): by `fork`, and by `clone(2)` as well, where no handler is
//! called. A child finds 0 there, is nobody's process, and takes the next number. Where the
//! kernel has no such pages a handler of `pthread_atfork(3)` empties the word: then a child made
//! by a bare `clone` isn't known. A child of `vfork`, or of `clone` with `CLONE_VM`, has no memory
//! of its own, and must not use the path: to it applies what vfork(2) says.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use readpath_core::unit::PAGE_BYTES;
use rustix::mm;

/// Names a process among its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessName(u32);

impl ProcessName {
    /// No process at all.
    pub(crate) const NONE: ProcessName = ProcessName(u32::MAX);

    /// The process that asks.
    pub(crate) fn this() -> ProcessName {
        let word = word();
        loop {
            match word.load(Ordering::Relaxed) {
                0 => {
                    // Larger than that of any ancestor, from whom the count is inherited.
                    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                    let _ = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
                }
                number => return ProcessName(number),
            }
        }
    }

    /// Its number, for an atomic word.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// That of a number.
    #[inline]
    pub(crate) const fn of(number: u32) -> ProcessName {
        ProcessName(number)
    }

    /// Whether it is the one that asks.
    #[inline]
    pub(crate) fn is_this(self) -> bool {
        // SAFETY: `UNSET` or the word that `word` made; neither ever goes.
        let word = unsafe { &*WORD.load(Ordering::Relaxed) };
        word.load(Ordering::Relaxed) == self.0
    }
}

/// Where the number of this process is; 0 as long as it has none.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNSET).cast_mut());
/// The word before there is one.
static UNSET: AtomicU32 = AtomicU32::new(0);
/// The word where the kernel empties no pages.
static WATCHED: AtomicU32 = AtomicU32::new(0);
/// The last number that was given.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The word of this process, which is 0 in a child. Without a lock: a child may come here
/// after a fork in the middle of it.
fn word() -> &'static AtomicU32 {
    let known = WORD.load(Ordering::Acquire);
    if !ptr::eq(known, &UNSET) {
        // SAFETY: it was made below, and never goes.
        return unsafe { &*known };
    }
    let made = wiped_word().unwrap_or_else(watched_word);
    let made_address = ptr::from_ref(made).cast_mut();
    match WORD.compare_exchange(known, made_address, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        // Another thread was faster; a page is lost.
        // SAFETY: as above.
        Err(other) => unsafe { &*other },
    }
}

/// A word in a page that is empty in children.
fn wiped_word() -> Option<&'static AtomicU32> {
    let (protection, flags) = (mm::ProtFlags::READ | mm::ProtFlags::WRITE, mm::MapFlags::PRIVATE);
    let bytes = PAGE_BYTES as usize;
    // SAFETY: a new private mapping at an address of the kernel's choice, aligned to a page, all
    // zero, which is never unmapped once it is given out.
    unsafe {
        let page = mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags).ok()?;
        if mm::madvise(page, bytes, mm::Advice::LinuxWipeOnFork).is_err() {
            let _ = mm::munmap(page, bytes);
            return None;
        }
        Some(&*page.cast::<AtomicU32>())
    }
}

/// A word that a handler empties in children.
fn watched_word() -> &'static AtomicU32 {
    extern "C" fn in_child() {
        WATCHED.store(0, Ordering::Relaxed);
    }
    // SAFETY: a handler that lives as long as the program, and does no more than a store.
    let errno = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    assert!(errno == 0, "no memory for a handler of forks");
    &WATCHED
}

/// Something that only the process that made it has: in a child it is neither used nor dropped.
pub(crate) struct Own<T> {
    value: ManuallyDrop<T>,
    process: ProcessName,
}

impl<T> Own<T> {
    /// Made in this process.
    pub(crate) fn new(value: T) -> Own<T> {
        Own { value: ManuallyDrop::new(value), process: ProcessName::this() }
    }

    /// Whether this process made it.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    /// It, where this process made it.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.is_ours().then_some(&*self.value)
    }

    /// As [`get`](Own::get), to be changed.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_ours() { Some(&mut self.value) } else { None }
    }

    /// It, in whatever process: for what is never changed in it.
    #[inline]
    pub(crate) fn inherited(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// What is made when it is first needed: an engine; or what takes the place of something in a child.
///
/// Without a lock, which a grandchild could inherit. Once made it stays as long as this does.
pub(crate) struct ForkLocal<T: Send + Sync> {
    made: AtomicPtr<T>,
    owns: PhantomData<T>,
}

impl<T: Send + Sync> ForkLocal<T> {
    pub(crate) const fn new() -> ForkLocal<T> {
        ForkLocal { made: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// One that is there from the start.
    pub(crate) fn of(made: T) -> ForkLocal<T> {
        ForkLocal { made: AtomicPtr::new(Box::into_raw(Box::new(made))), owns: PhantomData }
    }

    /// It, if it was made.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: null, or a box that `get_or_make` gave away, and that goes with `self`.
        unsafe { self.made.load(Ordering::Acquire).as_ref() }
    }

    /// It; made now if it is not there.
    ///
    /// # Errors
    /// Those of `make`; then the next call tries again.
    #[inline]
    pub(crate) fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        match self.get() {
            Some(made) => Ok(made),
            None => self.make(make),
        }
    }

    #[cold]
    fn make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let new = Box::into_raw(Box::new(make()?));
        let none = ptr::null_mut();
        let before = self.made.compare_exchange(none, new, Ordering::AcqRel, Ordering::Acquire);
        if before.is_err() {
            // SAFETY: another thread was faster, and nobody has seen this one.
            drop(unsafe { Box::from_raw(new) });
        }
        Ok(self.get().expect("it is there from now on"))
    }

    /// As [`get_or_make`](ForkLocal::get_or_make), to be changed.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn get_mut_or_make<E>(
        &mut self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&mut T, E> {
        self.get_or_make(make)?;
        // SAFETY: it is there, and `&mut self` makes this the only access.
        Ok(unsafe { &mut **self.made.get_mut() })
    }
}

impl<T: Send + Sync + std::fmt::Debug> std::fmt::Debug for ForkLocal<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Heir").field(&self.get()).finish()
    }
}

impl<T: Send + Sync> Drop for ForkLocal<T> {
    fn drop(&mut self) {
        let made = *self.made.get_mut();
        if !made.is_null() {
            // SAFETY: a box that was given away to this, and that nobody borrows any more.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks; whether `is_right` says so in the child.
    fn in_child(is_right: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls what is tested, and ends.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(i32::from(!is_right())),
                child => {
                    let mut status = -1;
                    libc::waitpid(child, &raw mut status, 0);
                    status == 0
                }
            }
        }
    }

    #[test]
    fn a_child_and_its_child_are_processes_of_their_own() {
        let first = ProcessName::this();
        assert!(first.is_this() && ProcessName::this() == first && !ProcessName::NONE.is_this());
        assert!(in_child(|| {
            let second = ProcessName::this();
            let is_third =
                || !first.is_this() && !second.is_this() && ProcessName::this() != second;
            second != first && !first.is_this() && second.is_this() && in_child(is_third)
        }));
        assert!(first.is_this());
    }

    #[test]
    fn a_word_that_a_handler_empties_is_empty_in_a_child() {
        watched_word().store(7, Ordering::Relaxed);
        assert!(in_child(|| WATCHED.load(Ordering::Relaxed) == 0));
        assert_eq!(WATCHED.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_bare_clone_is_known_where_the_kernel_empties_pages() {
        let Some(word) = wiped_word() else {
            eprintln!("skipped: this kernel has no MADV_WIPEONFORK");
            return;
        };
        word.store(7, Ordering::Relaxed);
        let mut status = -1;
        // SAFETY: a child with a copy of this memory, which looks at a word and ends.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            if child == 0 {
                libc::_exit(word.load(Ordering::Relaxed) as i32);
            }
            libc::waitpid(child as i32, &raw mut status, 0);
        }
        assert_eq!((status, word.load(Ordering::Relaxed)), (0, 7));
    }

    #[test]
    fn what_is_owned_is_dropped_by_its_process_alone() {
        struct ChildReport<'a>(&'a AtomicU32);
        impl Drop for ChildReport<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let drops = AtomicU32::new(0);
        let own = Own::new(ChildReport(&drops));
        assert!(in_child(|| {
            let is_ours = own.get().is_some();
            // SAFETY: dropped once in this process.
            drop(unsafe { ptr::read(&own) });
            !is_ours && drops.load(Ordering::Relaxed) == 0
        }));
        drop(own);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_heir_is_made_once_and_tried_again_after_an_error() {
        let fork_local = ForkLocal::new();
        assert_eq!(fork_local.get_or_make(|| Err("no")), Err("no"));
        assert_eq!(fork_local.get_or_make(|| Ok::<_, ()>(5)), Ok(&5));
        assert_eq!(fork_local.get_or_make(|| Ok::<_, ()>(6)), Ok(&5));
    }
}
