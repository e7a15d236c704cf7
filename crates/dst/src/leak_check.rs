//! Leak check of an engine that is no longer used, for the simulation.
//!
//! The *leader* is the thread that sleeps once in the storage, for all, and takes in completions. A
//! *queue* collects the completed reads of a thread, task or batch. A thread *carries* a request
//! that it executes itself, outside the storage's queue.

use super::Engine;

impl Engine {
    /// Describes the work in flight, to diagnose a run that does not end. If the engine's
    /// lock is held or poisoned, the text says only that it is locked.
    pub(crate) fn describe_in_flight(&self) -> String {
        let Some(state) = self.state.peek() else { return "the engine is locked".to_owned() };
        let in_flight = &state.in_flight;
        let queues =
            in_flight.queues.iter().map(|(_, queue)| (queue.reads, queue.pending, queue.is_task));
        format!(
            "{} requests in the storage and {} carried by threads, next wake {:?}, short of memory {}, led {} for {:?}, \
             {} reads, {} tasks wait, queues {:?}, {} pages shared to batches, {:?}",
            state.machine.meter().in_device(),
            in_flight.inline_requests_in_flight,
            state.machine.next_wake(),
            state.machine.is_short_of_memory(),
            in_flight.leader.is_active,
            in_flight.leader.queue,
            in_flight.reads.len(),
            in_flight.tasks_pending,
            queues.collect::<Vec<_>>(),
            state.batch_pages,
            state.machine.meter(),
        )
    }

    /// Completes all work in flight, which may sleep, and checks for leaks. The calling thread
    /// leads: it takes in the completions. The engine must be unused, except that `pinned_expected`
    /// pages are still pinned by guards. Pinned pages keep the machine from being idle, so that
    /// this is checked only without them.
    ///
    /// # Errors
    /// Describes the first leak found.
    pub(crate) fn check_leaks(&self, pinned_expected: u32) -> Result<(), String> {
        let mut state = self.lock();
        // Returned pages may let requests begin that waited for memory, so that more work follows.
        loop {
            // A scheduler may hold back requests of abandoned reads for a while.
            while state.machine.meter().in_device() > 0
                || state.machine.next_wake().is_some() && !state.in_flight.reads.is_empty()
            {
                // This thread waits for no read's queue. The call sleeps without the lock.
                let queue = None;
                state = self.lead(state, queue);
            }
            let now = self.clock.now();
            state.machine.take_returned(now);
            state.step_until_idle(now);
            if state.machine.meter().in_device() == 0 {
                break;
            }
        }
        // Then these counts must be 0, and no page pinned but the expected ones. The last count is
        // for files without handles that still had pages in flight.
        let in_flight = &state.in_flight;
        let remaining = [
            ("reads", in_flight.reads.len() as u64),
            ("queues", in_flight.queues.len() as u64),
            ("tasks that wait", in_flight.tasks_pending.into()),
            ("requests that threads carry", in_flight.inline_requests_in_flight.into()),
            ("pages shared to batches", state.batch_pages),
            ("files", state.closing_files.len() as u64),
        ];
        if let Some((what, count)) = remaining.into_iter().find(|&(_, count)| count > 0) {
            let machine = &state.machine;
            let (wake, meter) = (machine.next_wake(), machine.meter());
            return Err(format!("{count} {what} are left, next wake {wake:?}, {meter:?}"));
        }
        let pinned = self.frame_cache.pinned_page_count();
        if pinned != pinned_expected {
            return Err(format!("{pinned_expected} pages are held, and {pinned} counted"));
        }
        if pinned_expected == 0 && !state.machine.is_idle() {
            return Err("something in the machine is open or reserved".to_owned());
        }
        drop(state);
        Ok(())
    }
}
