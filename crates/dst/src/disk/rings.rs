//! The backend and the sleeper of a path in a simulation: transfers are queued in a *ring* of the
//! disk, and tasks of the world sleep for its answers. At a *preemption point* another task may
//! run.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use readpath_core::request::Op;

use super::super::world::{World, world};
use super::{Answered, DiskTransfer, SLEEP_KEY, SimulatedRing};
use crate::backend::{Backend, BackendError, KernelAnswer, Sleep, Sleeper, Transfer};

/// Creates a simulated backend with its sleeper; `None` outside a simulation.
pub(crate) fn backend() -> Option<(Box<dyn Backend>, Arc<dyn Sleeper>)> {
    let no_event_fd = None;
    let ring = new_ring(no_event_fd)?;
    Some((Box::new(SimulatedBackend { ring }), Arc::new(SimulatedSleeper { ring })))
}

/// Creates a simulated backend whose answers signal an eventfd; `None` outside a simulation.
pub(crate) fn backend_with_event_fd(event_fd: BorrowedFd<'_>) -> Option<Box<dyn Backend>> {
    let ring = new_ring(Some(event_fd.as_raw_fd()))?;
    Some(Box::new(SimulatedBackend { ring }))
}

/// Adds a ring to the disk and returns its index in `rings`; `None` outside a simulation. Each
/// answer of the ring signals `event_fd`, if it is given.
fn new_ring(event_fd: Option<RawFd>) -> Option<usize> {
    let world = world()?;
    let mut disk = world.disk.borrow_mut();
    disk.rings.push(SimulatedRing { event_fd, ..SimulatedRing::default() });
    Some(disk.rings.len() - 1)
}

/// Reason for which a simulated object finds its world.
const OUTSIDE_SIMULATION: &str = "what a simulation made is used in it";

/// The backend of a path, which queues transfers in a ring.
struct SimulatedBackend {
    /// Index of the ring in the disk.
    ring: usize,
}

impl Backend for SimulatedBackend {
    /// Queues a transfer until the next sleep or exchange. Its descriptor is the inode number of a
    /// simulated file.
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let world = world().expect(OUTSIDE_SIMULATION);
        let queued = DiskTransfer {
            inode: transfer.fd as u32,
            op: transfer.op,
            offset: transfer.offset,
            segments: transfer.segments.to_vec(),
            is_started: false,
            pinned_pages: Vec::new(),
        };
        // The pages may exceed the pager's limit from here to the end of their write-out.
        if transfer.op == Op::Write {
            world.count_written(transfer.segments);
        }
        let earlier_transfer =
            world.disk.borrow_mut().rings[self.ring].transfers.insert(transfer.token, queued);
        if earlier_transfer.is_some() {
            world.fail_run(format!("two transfers of one name are under way: {}", transfer.token));
        }
    }

    /// Ends the transfer with ECANCELED in one case of two. Otherwise does nothing: as with the
    /// kernel, a cancellation may come too late, and the transfer then ends by itself.
    fn cancel(&mut self, token: u64) {
        let world = world().expect(OUTSIDE_SIMULATION);
        if world.random_below(2) == 0 {
            let delay_ns = 0;
            world.schedule(delay_ns, Answered { ring: self.ring, token, is_cancelled: true });
        }
    }

    /// Moves the answers that have arrived to `answers`. Returns false: the backend has queued no
    /// request of its own.
    fn collect(&mut self, answers: &mut Vec<KernelAnswer>) -> Result<bool, BackendError> {
        let world = world().expect(OUTSIDE_SIMULATION);
        answers.append(&mut world.disk.borrow_mut().rings[self.ring].answers);
        let has_queued_request = false;
        Ok(has_queued_request)
    }

    /// Starts the queued transfers, sleeps until an answer arrives or the ring is idle, at most as
    /// long as `sleep` allows, and adds the answers to `answers`. Fails once the ring is dead.
    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        let world = world().expect(OUTSIDE_SIMULATION);
        let ends_by_wake = false;
        world.sleep(self.ring, sleep, ends_by_wake)?;
        self.collect(answers).map(drop)
    }
}

impl Drop for SimulatedBackend {
    /// Waits for transfers in flight, because their memory belongs to the device.
    fn drop(&mut self) {
        let Some(world) = world() else { return };
        world.start_queued_transfers(self.ring);
        let no_timeout = None;
        while !world.disk.borrow().rings[self.ring].transfers.is_empty() {
            world.block(SLEEP_KEY + self.ring, no_timeout);
        }
    }
}

impl World {
    /// Starts the queued transfers of a ring, and sleeps until an answer, a wake-up or a timeout.
    /// With `ends_by_wake`, a wake-up ends the sleep; without it, an idle ring does. Returns true
    /// if no answer was there at the start, so that the task may have slept, and false without a
    /// sleep for `Sleep::Never`. Fails once the ring is dead.
    fn sleep(&self, ring: usize, sleep: Sleep, ends_by_wake: bool) -> Result<bool, BackendError> {
        self.start_queued_transfers(ring);
        if self.disk.borrow().rings[ring].is_dead {
            // The error number is chosen: any error of the whole storage has the same effect.
            return Err(BackendError::Exchange { errno: libc::EPERM });
        }
        let spurious_wake_one_in = self.disk.borrow().faults.spurious_wake_one_in;
        let until_ns = match sleep {
            Sleep::Never => return Ok(false),
            Sleep::AtMost(span) => Some(self.now_ns() + span.as_nanos() as u64),
            Sleep::UntilAnswered => None,
        };
        let had_no_answer = self.disk.borrow().rings[ring].answers.is_empty();
        // Each event of the ring wakes the task, which checks if the sleep ends.
        loop {
            let mut disk = self.disk.borrow_mut();
            let ring_state = &mut disk.rings[ring];
            let is_woken = ends_by_wake && std::mem::take(&mut ring_state.is_woken);
            let is_idle = !ends_by_wake && ring_state.transfers.is_empty();
            if is_woken
                || is_idle
                || !ring_state.answers.is_empty()
                || self.happens_one_in(spurious_wake_one_in)
            {
                return Ok(had_no_answer);
            }
            drop(disk);
            if until_ns.is_some_and(|until_ns| until_ns <= self.now_ns()) {
                return Ok(had_no_answer);
            }
            self.block(SLEEP_KEY + ring, until_ns);
        }
    }
}

/// The object on which the threads of a path sleep for the answers of a ring.
struct SimulatedSleeper {
    /// Index of the ring in the disk.
    ring: usize,
}

impl Sleeper for SimulatedSleeper {
    /// Starts the queued transfers, and sleeps until an answer or a wake-up.
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let world = world().expect(OUTSIDE_SIMULATION);
        world.preemption_point();
        let ends_by_wake = true;
        let slept = world.sleep(self.ring, sleep, ends_by_wake);
        world.preemption_point();
        slept
    }

    /// Ends the present sleep on the ring, or else the next one, which thus misses no wake-up.
    fn wake(&self) {
        let Some(world) = world() else { return };
        world.disk.borrow_mut().rings[self.ring].is_woken = true;
        world.wake_all(SLEEP_KEY + self.ring);
    }
}
