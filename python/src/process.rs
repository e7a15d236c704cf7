//! What belongs to one process.
//!
//! A child made by `fork` has a copy of the memory and none of the threads, and would share the
//! ring with its parent: what was made before must be neither used nor dropped there.
//! Python says when that has happened (`os.register_at_fork`).

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

/// How many forks lie between the first of our processes and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called in a child, before anything else runs there.
#[pyfunction]
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Something that only the process that made it has.
pub struct Own<T: Send> {
    value: ManuallyDrop<T>,
    forks: u32,
}

impl<T: Send> Own<T> {
    /// Made in this process.
    pub fn new(value: T) -> Own<T> {
        Own { value: ManuallyDrop::new(value), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// It, where this process made it.
    pub fn get(&self) -> Option<&T> {
        self.is_ours().then_some(&self.value)
    }

    /// It, in whatever process: for what works in children as well.
    pub fn inherited(&self) -> &T {
        &self.value
    }

    /// Takes it out, where this process made it.
    pub fn into_inner(self) -> Option<T> {
        let is_ours = self.is_ours();
        let mut own = ManuallyDrop::new(self);
        // SAFETY: taken once, and `own` is not dropped.
        is_ours.then(|| unsafe { ManuallyDrop::take(&mut own.value) })
    }

    /// As `get`, to be changed.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_ours() { Some(&mut self.value) } else { None }
    }

    /// Whether this process made it.
    pub fn is_ours(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }
}

/// What has threads waits for their end when it is dropped, and such a thread may be about to call
/// Python (the waker of a future does): it is waited for without Python's lock.
impl<T: Send> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        // SAFETY: dropped once, here, and not used afterwards.
        let mut value = Some(unsafe { ManuallyDrop::take(&mut self.value) });
        // Without an interpreter (it ends) there is no lock to be held.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
        drop(value);
    }
}
