//! Code of a simulated caller: buffers and wakers that panic, and that check if they are called
//! under a lock of the engine. A *countdown* is the number of calls up to the one that panics.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;

use super::world::{Deliberate, TaskId, world};

/// True if a countdown with the value `calls_left` ends with the present call.
fn is_countdown_over(calls_left: u64) -> bool {
    calls_left == 1
}

/// A buffer that panics at the use at which `countdown` reaches zero; never if it is zero at the
/// start.
pub(super) struct PanickingBuffer {
    /// The memory of the buffer.
    pub(super) bytes: Vec<u8>,
    /// Uses that are left up to the panic, of all buffers that share it; 0 for no panic.
    pub(super) countdown: Rc<Cell<u64>>,
}

impl AsMut<[u8]> for PanickingBuffer {
    /// Returns the bytes, and panics at the end of the countdown.
    fn as_mut(&mut self) -> &mut [u8] {
        assert_no_engine_lock();
        let countdown = self.countdown.get();
        self.countdown.set(countdown.saturating_sub(1));
        if is_countdown_over(countdown) {
            resume_unwind(Box::new(Deliberate));
        }
        &mut self.bytes
    }
}

/// Waker of a task of the world. Like a program's waker, it may panic: at the call at which
/// `countdown` reaches zero.
pub(super) struct TaskWaker {
    /// The task that the waker unparks.
    pub(super) task: TaskId,
    /// Calls that are left up to the panic; 0 for no panic.
    pub(super) countdown: AtomicU64,
}

impl Wake for TaskWaker {
    /// Unparks the task, and panics at the end of the countdown.
    fn wake(self: Arc<TaskWaker>) {
        assert_no_engine_lock();
        if let Some(world) = world() {
            world.unpark(self.task);
        }
        let countdown = self.countdown.load(Ordering::Relaxed);
        self.countdown.store(countdown.saturating_sub(1), Ordering::Relaxed);
        if is_countdown_over(countdown) {
            resume_unwind(Box::new(Deliberate));
        }
    }
}

impl Drop for TaskWaker {
    /// A waker is dropped without any lock of the engine.
    fn drop(&mut self) {
        assert_no_engine_lock();
    }
}

/// Records a failure of the run if the running task holds a lock. Called by code of callers, which
/// must run without any lock of the engine. No effect outside a simulation.
fn assert_no_engine_lock() {
    if let Some(world) = world()
        && world.held_locks() != 0
    {
        world.record_failure("a caller's code ran under a lock".to_owned());
    }
}
