//! A caller's code, as hostile as safe code can be: buffers and wakers that panic, and that check
//! if they are called under a lock.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;

use super::world::{Deliberate, TaskId, world};

/// True if the countdown ends with this call.
fn is_blown(fuse: u64) -> bool {
    fuse == 1
}

/// A buffer that panics at the use at which `fuse` reaches zero; never if it is zero at the start.
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

/// Waker of a task of the world. Like a program's waker, it may panic: at the call at which `fuse`
/// reaches zero.
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

/// Checks that a caller's code runs without any lock of the engine.
fn others_code() {
    if let Some(world) = world()
        && world.locks() != 0
    {
        world.failed("a caller's code ran under a lock".to_owned());
    }
}
