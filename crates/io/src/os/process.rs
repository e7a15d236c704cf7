//! Identity of the process, and values that belong to one process.
//!
//! A child made by `fork(2)` has a copy of its parent's memory but none of its other threads, and
//! shares kernel objects with it, above all the rings. The child must neither use nor drop such
//! objects. It must also never wait for a lock that another thread held at the fork, because no
//! thread would release it. Values of one process are therefore marked with its [`ProcessNumber`],
//! and each operation checks [`ProcessNumber::is_current`] before it touches them.
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
pub(crate) struct ProcessNumber(u32);

impl ProcessNumber {
    /// Number of no process.
    pub(crate) const NONE: ProcessNumber = ProcessNumber(u32::MAX);

    /// Returns the number of the calling process, which is assigned at first use.
    pub(crate) fn current() -> ProcessNumber {
        let word = number_word();
        loop {
            match word.load(Ordering::Relaxed) {
                0 => {
                    // Larger than the number of any ancestor, since the counter is inherited.
                    let next = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
                    // If another thread has stored a number first, the next load finds that one.
                    let _ = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
                }
                number => return ProcessNumber(number),
            }
        }
    }

    /// The number, for storage in an atomic word.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Converts a stored `number` back.
    #[inline]
    pub(crate) const fn from_number(number: u32) -> ProcessNumber {
        ProcessNumber(number)
    }

    /// True if this is the number of the calling process. False in a process without a number yet.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        // SAFETY: the pointer is `UNASSIGNED` or the word of `number_word`; neither is ever freed.
        let word = unsafe { &*NUMBER_WORD.load(Ordering::Relaxed) };
        word.load(Ordering::Relaxed) == self.0
    }
}

/// Address of the word with this process's number; 0 there means not assigned.
static NUMBER_WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNASSIGNED).cast_mut());
/// Initial target of [`NUMBER_WORD`].
static UNASSIGNED: AtomicU32 = AtomicU32::new(0);
/// Word zeroed by the fork handler, for kernels without `MADV_WIPEONFORK`.
static HANDLER_ZEROED_WORD: AtomicU32 = AtomicU32::new(0);
/// Last assigned number.
static LAST_NUMBER: AtomicU32 = AtomicU32::new(0);

/// Returns the word with the number of this process, which is 0 in a new child. Lock-free: the fork
/// may have happened in the middle of this function.
fn number_word() -> &'static AtomicU32 {
    let current_word = NUMBER_WORD.load(Ordering::Acquire);
    if !ptr::eq(current_word, &UNASSIGNED) {
        // SAFETY: made below, never freed.
        return unsafe { &*current_word };
    }
    let new_word = map_wipe_on_fork_word().unwrap_or_else(install_zeroing_handler);
    let new_address = ptr::from_ref(new_word).cast_mut();
    match NUMBER_WORD.compare_exchange(
        current_word,
        new_address,
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => new_word,
        // Another thread won the race; one page is leaked. SAFETY: as above.
        Err(other_word) => unsafe { &*other_word },
    }
}

/// Maps a word in a page that the kernel zeroes in children. Returns `None` if the kernel does not
/// support that.
fn map_wipe_on_fork_word() -> Option<&'static AtomicU32> {
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

/// Installs a handler that zeroes a word in children, and returns the word.
fn install_zeroing_handler() -> &'static AtomicU32 {
    extern "C" fn zero_word_in_child() {
        HANDLER_ZEROED_WORD.store(0, Ordering::Relaxed);
    }
    // SAFETY: the handler is a static function that performs one store.
    let errno = unsafe { libc::pthread_atfork(None, None, Some(zero_word_in_child)) };
    assert!(errno == 0, "the system has memory for a handler of forks");
    &HANDLER_ZEROED_WORD
}

/// Value of the process that created it. A child neither uses nor drops it.
pub(crate) struct ProcessOwned<T> {
    /// Dropped only by `process`.
    value: ManuallyDrop<T>,
    /// Process that created the value.
    process: ProcessNumber,
}

impl<T> ProcessOwned<T> {
    /// Marks a value as created by the calling process.
    pub(crate) fn new(value: T) -> ProcessOwned<T> {
        ProcessOwned { value: ManuallyDrop::new(value), process: ProcessNumber::current() }
    }

    /// True if this process created the value.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// The value, if this process created it. `None` in a child made by `fork`.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.is_of_this_process().then_some(&*self.value)
    }

    /// The value with exclusive access, if this process created it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_of_this_process() { Some(&mut self.value) } else { None }
    }

    /// The value in any process. Only for parts that never change after creation.
    #[inline]
    pub(crate) fn get_in_any_process(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for ProcessOwned<T> {
    /// Drops the value in the process that created it. In any other process the value leaks.
    fn drop(&mut self) {
        if self.is_of_this_process() {
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
    value_pointer: AtomicPtr<T>,
    _owns_value: PhantomData<T>,
}

impl<T: Send + Sync> ForkLocal<T> {
    /// Creates an owner without a value.
    pub(crate) const fn new() -> ForkLocal<T> {
        ForkLocal { value_pointer: AtomicPtr::new(ptr::null_mut()), _owns_value: PhantomData }
    }

    /// Creates an owner with this value.
    pub(crate) fn with_value(value: T) -> ForkLocal<T> {
        ForkLocal {
            value_pointer: AtomicPtr::new(Box::into_raw(Box::new(value))),
            _owns_value: PhantomData,
        }
    }

    /// The value; `None` if it was not created yet.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: null, or a box leaked by `with_value` or `create_value`, which lives as long as
        // `self`.
        unsafe { self.value_pointer.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value and creates it if necessary.
    ///
    /// # Errors
    /// The error of `make`; the next call tries again.
    #[inline]
    pub(crate) fn get_or_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        match self.get() {
            Some(value) => Ok(value),
            None => self.create_value(make),
        }
    }

    /// Creates the value with `make` and returns it. If several threads do so at once, the first
    /// value stays and the others are dropped.
    #[cold]
    fn create_value<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let new_pointer = Box::into_raw(Box::new(make()?));
        let null = ptr::null_mut();
        let exchanged = self.value_pointer.compare_exchange(
            null,
            new_pointer,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if exchanged.is_err() {
            // SAFETY: another thread won the race, and no reference to this box exists.
            drop(unsafe { Box::from_raw(new_pointer) });
        }
        Ok(self.get().expect("the value was set above, here or by another thread"))
    }

    /// Like [`get_or_init`](ForkLocal::get_or_init), mutable.
    ///
    /// # Errors
    /// The error of `make`.
    pub(crate) fn get_mut_or_init<E>(
        &mut self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&mut T, E> {
        self.get_or_init(make)?;
        // SAFETY: created above; `&mut self` makes this the only access.
        Ok(unsafe { &mut **self.value_pointer.get_mut() })
    }
}

impl<T: Send + Sync + std::fmt::Debug> std::fmt::Debug for ForkLocal<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ForkLocal").field(&self.get()).finish()
    }
}

impl<T: Send + Sync> Drop for ForkLocal<T> {
    /// Drops the value, if it was created.
    fn drop(&mut self) {
        let value_pointer = *self.value_pointer.get_mut();
        if !value_pointer.is_null() {
            // SAFETY: the box was leaked into `self`, and no borrow is left.
            drop(unsafe { Box::from_raw(value_pointer) });
        }
    }
}

/// Runs `check` in a forked child. Returns its result, or false if the child panicked, crashed or
/// hung.
#[cfg(test)]
pub(crate) fn is_true_in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs the tested code and ends, by a signal if necessary.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(20);
                // The test's thread would end a child that panics as if it were well.
                let is_true = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
                libc::_exit(i32::from(!is_true.unwrap_or(false)))
            }
            child => {
                let mut status = -1;
                libc::waitpid(child, &raw mut status, 0);
                status == 0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_and_grandchild_have_their_own_process_numbers() {
        let parent = ProcessNumber::current();
        assert!(
            parent.is_current()
                && ProcessNumber::current() == parent
                && !ProcessNumber::NONE.is_current()
        );
        assert!(is_true_in_child(|| {
            let child = ProcessNumber::current();
            let is_grandchild_new =
                || !parent.is_current() && !child.is_current() && ProcessNumber::current() != child;
            let is_child_new = child != parent && !parent.is_current() && child.is_current();
            is_child_new && is_true_in_child(is_grandchild_new)
        }));
        assert!(parent.is_current());
    }

    #[test]
    fn word_zeroed_by_atfork_handler_is_zero_in_a_child() {
        install_zeroing_handler().store(7, Ordering::Relaxed);
        assert!(is_true_in_child(|| HANDLER_ZEROED_WORD.load(Ordering::Relaxed) == 0));
        assert_eq!(HANDLER_ZEROED_WORD.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn bare_clone_child_reads_zero_from_a_wiped_page() {
        let Some(word) = map_wipe_on_fork_word() else {
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
    fn own_value_is_dropped_only_by_its_process() {
        /// Counts its drops.
        struct DropCounter<'a>(&'a AtomicU32);
        impl Drop for DropCounter<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let drops = AtomicU32::new(0);
        let own = ProcessOwned::new(DropCounter(&drops));
        assert!(is_true_in_child(|| {
            let is_ours = own.get().is_some();
            // SAFETY: dropped once in this process.
            drop(unsafe { ptr::read(&own) });
            !is_ours && drops.load(Ordering::Relaxed) == 0
        }));
        drop(own);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn fork_local_is_created_once_and_retried_after_an_error() {
        let fork_local = ForkLocal::new();
        assert_eq!(fork_local.get_or_init(|| Err("no")), Err("no"));
        assert_eq!(fork_local.get_or_init(|| Ok::<_, ()>(5)), Ok(&5));
        assert_eq!(fork_local.get_or_init(|| Ok::<_, ()>(6)), Ok(&5));
    }
}
