//! Identity of the process, and values that belong to one process.
//!
//! A child made by `fork(2)` has a copy of its parent's memory but none of its other threads, and
//! shares kernel objects with it, above all the rings. The child must neither use nor drop such
//! objects. It must also never wait for a lock that another thread held at the fork, because no
//! thread would release it. Values of one process are therefore marked with its [`ProcessName`],
//! and each operation checks [`ProcessName::is_this`] before it touches them.
//!
//! The check is two loads. The process number lies in a page that the kernel zeroes in every child
//! (`MADV_WIPEONFORK`, Linux 4.14), also after `clone(2)`, which calls no handlers. A child reads 0
//! there and takes the next number. Without `MADV_WIPEONFORK` a handler of `pthread_atfork(3)`
//! zeroes the word, and a child of a bare `clone` is not detected. A child of `vfork`, or of
//! `clone` with `CLONE_VM`, shares the parent's memory and must not use the path (see vfork(2)).

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use readpath_core::unit::PAGE_BYTES;
use rustix::mm;

/// Number that identifies a process among its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessName(u32);

impl ProcessName {
    /// Number of no process.
    pub(crate) const NONE: ProcessName = ProcessName(u32::MAX);

    /// Returns the calling process, and assigns its number at first use.
    pub(crate) fn this() -> ProcessName {
        let word = word();
        loop {
            match word.load(Ordering::Relaxed) {
                0 => {
                    // Larger than the number of any ancestor, since the counter is inherited.
                    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                    let _ = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
                }
                number => return ProcessName(number),
            }
        }
    }

    /// The number, for storage in an atomic word.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Process of a stored number.
    #[inline]
    pub(crate) const fn of(number: u32) -> ProcessName {
        ProcessName(number)
    }

    /// True for the calling process.
    #[inline]
    pub(crate) fn is_this(self) -> bool {
        // SAFETY: the pointer is `UNSET` or the word made by `word`; neither is ever freed.
        let word = unsafe { &*WORD.load(Ordering::Relaxed) };
        word.load(Ordering::Relaxed) == self.0
    }
}

/// Address of the word with this process's number; 0 there means not assigned.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNSET).cast_mut());
/// Initial target of `WORD`.
static UNSET: AtomicU32 = AtomicU32::new(0);
/// Word zeroed by the fork handler, for kernels without `MADV_WIPEONFORK`.
static WATCHED: AtomicU32 = AtomicU32::new(0);
/// Last assigned number.
static LAST: AtomicU32 = AtomicU32::new(0);

/// Returns the word of this process, which is 0 in a new child. Lock-free: the fork may have
/// happened in the middle of this function.
fn word() -> &'static AtomicU32 {
    let known = WORD.load(Ordering::Acquire);
    if !ptr::eq(known, &UNSET) {
        // SAFETY: made below, never freed.
        return unsafe { &*known };
    }
    let made = wiped_word().unwrap_or_else(watched_word);
    let made_address = ptr::from_ref(made).cast_mut();
    match WORD.compare_exchange(known, made_address, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        // Another thread won the race; one page is leaked. SAFETY: as above.
        Err(other) => unsafe { &*other },
    }
}

/// Maps a word in a page that the kernel zeroes in children.
fn wiped_word() -> Option<&'static AtomicU32> {
    let (protection, flags) = (mm::ProtFlags::READ | mm::ProtFlags::WRITE, mm::MapFlags::PRIVATE);
    let bytes = PAGE_BYTES as usize;
    // SAFETY: a new private mapping at an address of the kernel's choice, page-aligned, all zero,
    // and never unmapped once returned.
    unsafe {
        let page = mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags).ok()?;
        if mm::madvise(page, bytes, mm::Advice::LinuxWipeOnFork).is_err() {
            let _ = mm::munmap(page, bytes);
            return None;
        }
        Some(&*page.cast::<AtomicU32>())
    }
}

/// Installs a handler that zeroes the word in children.
fn watched_word() -> &'static AtomicU32 {
    extern "C" fn in_child() {
        WATCHED.store(0, Ordering::Relaxed);
    }
    // SAFETY: the handler is a static function that performs one store.
    let errno = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    assert!(errno == 0, "no memory for a handler of forks");
    &WATCHED
}

/// Value of the process that created it. A child neither uses nor drops it.
pub(crate) struct Own<T> {
    value: ManuallyDrop<T>,
    /// Process that created the value.
    process: ProcessName,
}

impl<T> Own<T> {
    /// Marks a value as this process's.
    pub(crate) fn new(value: T) -> Own<T> {
        Own { value: ManuallyDrop::new(value), process: ProcessName::this() }
    }

    /// True if this process created the value.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    /// The value, if this process created it.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.is_ours().then_some(&*self.value)
    }

    /// Like [`get`](Own::get), mutable.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_ours() { Some(&mut self.value) } else { None }
    }

    /// The value in any process. Only for parts that never change after creation.
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

/// Lazily created value: an engine, or a child's replacement of an inherited object.
///
/// Lock-free, because a grandchild could inherit a held lock. The value lives as long as its owner.
pub(crate) struct ForkLocal<T: Send + Sync> {
    /// Leaked box with the value; null before its creation.
    made: AtomicPtr<T>,
    owns: PhantomData<T>,
}

impl<T: Send + Sync> ForkLocal<T> {
    pub(crate) const fn new() -> ForkLocal<T> {
        ForkLocal { made: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// Starts with a value.
    pub(crate) fn of(made: T) -> ForkLocal<T> {
        ForkLocal { made: AtomicPtr::new(Box::into_raw(Box::new(made))), owns: PhantomData }
    }

    /// The value, if created.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: null, or a box leaked by `get_or_make` that lives as long as `self`.
        unsafe { self.made.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value and creates it if necessary.
    ///
    /// # Errors
    /// The error of `make`; the next call tries again.
    #[inline]
    pub(crate) fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        match self.get() {
            Some(made) => Ok(made),
            None => self.make(make),
        }
    }

    /// Creates the value. If several threads do so at once, the first one wins and the others are
    /// dropped.
    #[cold]
    fn make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let new = Box::into_raw(Box::new(make()?));
        let none = ptr::null_mut();
        let before = self.made.compare_exchange(none, new, Ordering::AcqRel, Ordering::Acquire);
        if before.is_err() {
            // SAFETY: another thread won the race, and no reference to this box exists.
            drop(unsafe { Box::from_raw(new) });
        }
        Ok(self.get().expect("it is there from now on"))
    }

    /// Like [`get_or_make`](ForkLocal::get_or_make), mutable.
    ///
    /// # Errors
    /// The error of `make`.
    pub(crate) fn get_mut_or_make<E>(
        &mut self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&mut T, E> {
        self.get_or_make(make)?;
        // SAFETY: created above; `&mut self` makes this the only access.
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
            // SAFETY: the box was leaked into `self`, and no borrow is left.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `is_right` in a forked child and returns its answer.
    fn in_child(is_right: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child runs the tested code and exits.
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
        // SAFETY: the child has a copy of this memory, reads a word and exits.
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
