//! A caller's code, as hostile as safe code can be: buffers and wakers that panic, and that look whether they are called
//! under a lock.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;

use super::world::{Deliberate, TaskId, world};

/// Counts down; true when it comes to its end.
fn is_blown(fuse: u64) -> bool {
    fuse == 1
}

/// A buffer that panics after so many uses, if it is to.
pub(super) struct PanickingBuffer {
    pub(super) bytes: Vec<u8>,
    pub(super) fuse: Rc<Cell<u64>>,
}

impl AsMut<[u8]> for PanickingBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        others_code();
        let fuse = self.fuse.get();
        self.fuse.set(fuse.saturating_sub(1));
        if is_blown(fuse) {
            resume_unwind(Box::new(Deliberate));
        }
        &mut self.bytes
    }
}

/// What wakes a task of the world; panics the n-th time, if it is to, as a program's waker might.
pub(super) struct TaskWaker {
    pub(super) task: TaskId,
    pub(super) fuse: AtomicU64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<TaskWaker>) {
        others_code();
        if let Some(world) = world() {
            world.unpark(self.task);
        }
        let fuse = self.fuse.load(Ordering::Relaxed);
        self.fuse.store(fuse.saturating_sub(1), Ordering::Relaxed);
        if is_blown(fuse) {
            resume_unwind(Box::new(Deliberate));
        }
    }
}

impl Drop for TaskWaker {
    fn drop(&mut self) {
        others_code();
    }
}

/// Code of a caller runs without any lock of the engine's.
fn others_code() {
    if let Some(world) = world()
        && world.locks() != 0
    {
        world.failed("a caller's code ran under a lock".to_owned());
    }
}
