//! Objects that belong to one process.
//!
//! A child of `fork` has a copy of the memory, but no threads, and would share the ring with its
//! parent. Objects created before must neither be used nor dropped there. Python reports the fork
//! (`os.register_at_fork`).

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

/// Number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Counts a fork. Called in a child, before anything else runs there. Objects created before then
/// belong to another process.
#[pyfunction]
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A value that belongs to the process that created it.
pub struct Own<T: Send> {
    value: ManuallyDrop<T>,
    /// Value of [`FORKS`] at the creation, which identifies the process.
    forks: u32,
}

impl<T: Send> Own<T> {
    /// Creates a value of this process.
    pub fn new(value: T) -> Own<T> {
        Own { value: ManuallyDrop::new(value), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Returns the value if this process created it.
    pub fn get(&self) -> Option<&T> {
        self.is_ours().then_some(&self.value)
    }

    /// Returns the value in any process, also in a child of the one that created it. Only for uses
    /// without a thread of the parent, such as memory.
    pub fn inherited(&self) -> &T {
        &self.value
    }

    /// Takes the value if this process created it. Otherwise the value is never dropped here.
    pub fn into_inner(self) -> Option<T> {
        let is_ours = self.is_ours();
        let mut own = ManuallyDrop::new(self);
        // SAFETY: taken once, and `own` is not dropped.
        is_ours.then(|| unsafe { ManuallyDrop::take(&mut own.value) })
    }

    /// Like `get`, for changes.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_ours() { Some(&mut self.value) } else { None }
    }

    /// Returns true if this process created the value.
    pub fn is_ours(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }
}

/// The drop of an object may wait for its threads, and such a thread may be about to call Python
/// (the waker of a future does). Therefore the drop runs without Python's lock.
impl<T: Send> Drop for Own<T> {
    /// Drops the value in the process that created it. No effect in its children.
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        // SAFETY: dropped once, here, and not used afterwards.
        let mut value = Some(unsafe { ManuallyDrop::take(&mut self.value) });
        // Without an interpreter (at exit) there is no lock.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
        drop(value);
    }
}
