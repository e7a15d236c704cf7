//! The engine under the public API: one machine, one storage and one cache,
//! shared by any number of threads.
//!
//! A read that finds everything takes it from the [shelf](shelf) and never comes
//! here. Any other read takes the lock of the [`Desk`](desk), starts, and then
//! *waits*: a thread that has to wait becomes the *leader* if there is none. The
//! leader sleeps in the storage (for AIO: in `poll`), without the
//! lock; it takes in what is completed for everybody, wakes exactly the threads
//! and tasks whose reads are done, and when its own is among them it wakes one
//! of those that still wait, to lead. A leader may be stopped, or get no processor:
//! who has waited behind it for some milliseconds looks, and if answers lie there that
//! it doesn't come for, takes them in and leads itself. So a thread that reads alone is woken by
//! the device itself, and hands nothing over to anybody. Idle, nobody sleeps in
//! the storage, and nothing uses the processor.
//!
//! Futures have no thread that could lead. The first one starts the *driver*, a
//! thread that leads whenever futures wait and nobody else does, and sleeps on a
//! condition otherwise.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use readpath_core::cache::FileId;
use readpath_core::machine;

use crate::backend::BackendError;
use crate::clock::Clock;
use crate::identity::Identity;
use crate::kernel_pages::KernelPages;
use crate::storage::{Sleep, Sleeper};
use crate::target::Mode;
use crate::thread;

pub(crate) mod below;
pub(crate) mod copy;
pub(crate) mod desk;
#[cfg(test)]
mod faults;
mod handle;
#[cfg(test)]
mod held_up;
pub(crate) mod index;
pub(crate) mod opening;
pub(crate) mod readers;
pub(crate) mod shelf;
pub(crate) mod tally;
pub(crate) mod turn;

use below::{Below, Opening};
use desk::{Buried, Desk, LineId, SeatId, Who};
pub(crate) use handle::{Handle, Owner};
use shelf::Shelf;

const POISON: &str = "the engine's own code doesn't panic under its lock";

/// How long one waits behind a leader before looking whether it still does what it is there for, at first
/// and at most; and how long a leader sleeps at most. Most devices have answered before the first look,
/// and then it costs nothing.
const PATIENCE: Duration = Duration::from_millis(4);
const PATIENCE_MAX: Duration = Duration::from_millis(64);

/// One cache over one storage.
pub(crate) struct Engine {
    // Dropped before the shelf, whose frames its storage fills.
    desk: Mutex<Desk>,
    pub(crate) shelf: Arc<Shelf>,
    sleeper: Arc<dyn Sleeper>,
    pub(crate) clock: Clock,
    /// The most bytes that one read of the machine takes; larger ones are cut.
    pub(crate) read_bytes_max: u64,
    /// There is something to lead, or the end.
    driver_called: Condvar,
    driver: Mutex<Option<JoinHandle<()>>>,
}

/// A file that is open in an engine, under all its handles.
pub(crate) struct OpenFile {
    pub(crate) id: FileId,
    pub(crate) bytes: u64,
    pub(crate) start_sector: u64,
    pub(crate) mode: Mode,
    /// What the storage has, to be opened again from.
    pub(crate) opening: Opening,
    pub(crate) identity: Identity,
    pub(crate) kernel_pages: KernelPages,
}

impl Engine {
    /// An engine of `machine` over `files`, whose completions `sleeper` sleeps for.
    pub(crate) fn new(
        machine: machine::Machine,
        files: Below,
        sleeper: Arc<dyn Sleeper>,
        shelf: Arc<Shelf>,
        clock: Clock,
    ) -> Engine {
        // Half of the memory, so that two large reads can take turns; 16 MiB are
        // four of the largest requests.
        let read_bytes_max = (machine.read_bytes_max() / 2).min(16 << 20);
        let page = readpath_core::unit::PAGE_BYTES;
        Engine {
            desk: Mutex::new(Desk::new(machine, files, Arc::clone(&shelf), clock)),
            shelf,
            sleeper,
            clock,
            read_bytes_max: (read_bytes_max / page).max(1) * page,
            driver_called: Condvar::new(),
            driver: Mutex::default(),
        }
    }

    /// The desk, for one caller at a time; never held while anybody sleeps.
    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().expect(POISON)
    }

    /// Lets the desk go, and wakes those whose reads are done.
    pub(crate) fn leave(&self, mut desk: MutexGuard<'_, Desk>) {
        let calls = desk.take_calls();
        let is_driver_called = desk.call_driver();
        let is_leader_late = desk.take_is_leader_late();
        // Who leads has handed over before, and sleeps.
        let is_queued = desk.is_led() && desk.take_is_queued();
        let graveyard = desk.take_graveyard();
        drop(desk);
        if is_queued {
            self.hand_over();
        }
        calls.into_iter().for_each(Who::call);
        if is_driver_called {
            self.driver_called.notify_one();
        }
        if is_leader_late {
            self.sleeper.wake();
        }
        graveyard.into_iter().for_each(Buried::drop_quietly);
    }

    /// Waits for a read of the line to be done, and gives its seat; the desk is
    /// the caller's still. One of the line must be under way.
    ///
    /// # Errors
    /// The storage carries nothing any more.
    pub(crate) fn wait<'a>(
        &'a self,
        mut desk: MutexGuard<'a, Desk>,
        line: LineId,
    ) -> (MutexGuard<'a, Desk>, Result<SeatId, BackendError>) {
        let mut patience = PATIENCE;
        loop {
            if let Some(done) = desk.next_done(line) {
                desk.pass_the_lead_on();
                return (desk, done);
            }
            if self.sleeper.has_work() {
                desk = self.work(desk);
            } else if desk.is_led() {
                desk.park(line, Who::Thread(std::thread::current()));
                self.leave(desk);
                let parked = Instant::now();
                std::thread::park_timeout(patience);
                let is_called = parked.elapsed() < patience;
                desk = self.desk();
                desk.unpark(line);
                if !is_called {
                    patience = (2 * patience).min(PATIENCE_MAX);
                    desk.take_in_for_the_leader();
                }
            } else {
                desk = self.lead(desk, Some(line));
            }
        }
    }

    /// Carries a transfer that takes a thread, in place of one that would have to be woken.
    fn work<'a>(&'a self, desk: MutexGuard<'a, Desk>) -> MutexGuard<'a, Desk> {
        self.leave(desk);
        let worked = self.sleeper.work();
        let mut desk = self.desk();
        if let Some(is_awaited) = worked {
            desk.take_in(Ok(is_awaited));
        }
        self.call(desk)
    }

    /// Sleeps in the storage for everybody, once, and takes in what is completed.
    fn lead<'a>(
        &'a self,
        mut desk: MutexGuard<'a, Desk>,
        line: Option<LineId>,
    ) -> MutexGuard<'a, Desk> {
        let (term, deadline) = desk.lead(line);
        // Who was only slow when another took its place sleeps beside that one, and a call to wake up
        // may end the other's sleep alone. So nobody sleeps for long without a look.
        let span = deadline.map_or(PATIENCE_MAX, |deadline| self.clock.until(deadline));
        self.leave(desk);
        let result = self.sleeper.sleep(Sleep::AtMost(span.min(PATIENCE_MAX)));
        let mut desk = self.desk();
        desk.led(term, result);
        if line.is_none() && !desk.is_driver_due() {
            // The driver goes back to sleep; threads may wait still.
            desk.pass_the_lead_on();
        }
        self.call(desk)
    }

    /// Wakes those whose reads are done, without the lock.
    fn call<'a>(&'a self, mut desk: MutexGuard<'a, Desk>) -> MutexGuard<'a, Desk> {
        let calls = desk.take_calls();
        if !calls.is_empty() {
            drop(desk);
            calls.into_iter().for_each(Who::call);
            desk = self.desk();
        }
        desk
    }

    /// Lets the desk go, and has what was submitted carried out though nobody waits.
    pub(crate) fn leave_and_hand_over(&self, mut desk: MutexGuard<'_, Desk>) {
        let is_queued = desk.take_is_queued();
        self.leave(desk);
        if is_queued {
            self.hand_over();
        }
    }

    /// Hands what was submitted to the storage, while somebody else leads.
    pub(crate) fn hand_over(&self) {
        // What hinders it is met, and told, by the one who leads.
        let _ = self.sleeper.sleep(Sleep::Never);
    }

    /// Has a thread lead for futures from now on.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start_driver(self: &Arc<Engine>) -> std::io::Result<()> {
        let mut driver = self.driver.lock().expect("nothing panics under this lock");
        if driver.is_none() {
            let engine = Arc::clone(self);
            *driver = Some(thread::spawn("readpath-driver", move || engine.drive())?);
        }
        Ok(())
    }

    /// The life of the driver.
    fn drive(&self) {
        let mut desk = self.desk();
        while !desk.is_closing {
            if desk.is_driver_due() {
                desk = self.lead(desk, None);
            } else if desk.has_futures() {
                let waited = self.driver_called.wait_timeout(desk, PATIENCE_MAX);
                let (waited, timed_out) = waited.expect(POISON);
                desk = waited;
                if timed_out.timed_out() {
                    desk.take_in_for_the_leader();
                    desk = self.call(desk);
                }
            } else {
                desk.is_driver_idle = true;
                desk = self.driver_called.wait(desk).expect(POISON);
            }
        }
    }

    /// Ends the driver, which holds the engine.
    pub(crate) fn close(&self) {
        let driver = self.driver.lock().expect("nothing panics under this lock").take();
        let Some(driver) = driver else { return };
        self.desk().is_closing = true;
        self.driver_called.notify_one();
        self.sleeper.wake();
        if driver.thread().id() != std::thread::current().id() {
            // A driver that panicked has told so; there is nothing to add.
            let _ = driver.join();
        }
    }
}
