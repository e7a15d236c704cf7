//! Sleep of a task or of a process in calls that wait for asynchronous reads. Times are nanoseconds
//! since the start of the recording.

/// Sleep within such calls, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleTime {
    /// Sum of finished sleeps.
    finished_ns: u64,
    /// Start of the current sleep.
    since_ns: Option<u64>,
}

impl IdleTime {
    /// Begins a sleep at `at_ns`, unless one is in progress.
    pub(super) fn begin_sleep(&mut self, at_ns: u64) {
        self.since_ns.get_or_insert(at_ns);
    }

    /// Ends the sleep in progress at `at_ns`, if any, and adds its duration to the sum.
    pub(super) fn end_sleep(&mut self, at_ns: u64) {
        if let Some(since_ns) = self.since_ns.take() {
            self.finished_ns += at_ns.saturating_sub(since_ns);
        }
    }

    /// Returns the sum of all sleeps up to `at_ns` in nanoseconds, with the part of a sleep in
    /// progress.
    pub(super) fn total_until_ns(&self, at_ns: u64) -> u64 {
        self.finished_ns + self.since_ns.map_or(0, |since_ns| at_ns.saturating_sub(since_ns))
    }
}
