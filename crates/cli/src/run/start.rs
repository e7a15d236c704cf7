//! Common start of the processes of a phase. The time of a run counts its jobs, without their
//! preparation: the clock stands still until all processes of the phase are prepared.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use readpath_core::unit::Time;
use readpath_eval::clock::Clock;
use readpath_eval::usage::CpuTime;

/// Start and end of one phase, shared by its processes.
#[derive(Debug)]
pub struct PhaseStart {
    /// Time of the run at which the phase begins.
    time: Time,
    /// Numbers of processes that are to come and to end, and the figures of the end.
    state: Mutex<State>,
    /// Wakes the waiting threads when all processes are prepared, and when all have ended.
    changed: Condvar,
    /// Clock of the run and processor time of this process, set when all processes are prepared.
    clock: OnceLock<(Clock, CpuTime)>,
}

/// Progress of the processes of a phase.
#[derive(Debug)]
struct State {
    /// Number of processes that are not prepared yet.
    unprepared: usize,
    /// Number of processes that have not ended yet.
    running: usize,
    /// Time of the run at which the last process ended. Before, the start of the phase.
    end: Time,
    /// Processor time of this process during the phase, in seconds. 0 before its end.
    cpu_seconds: f64,
}

impl PhaseStart {
    /// Creates a phase with a number of processes that begins at this time of the run.
    pub fn new(processes: usize, time: Time) -> PhaseStart {
        let state =
            State { unprepared: processes, running: processes, end: time, cpu_seconds: 0.0 };
        let (changed, clock) = (Condvar::new(), OnceLock::new());
        PhaseStart { time, state: Mutex::new(state), changed, clock }
    }

    /// Returns the clock of the run. `None` until all processes are prepared.
    pub fn clock(&self) -> Option<Clock> {
        self.clock.get().map(|&(clock, _)| clock)
    }

    /// Counts one more process as prepared. The last one starts the clock and wakes the others.
    pub fn on_prepared(&self) {
        let mut state = self.lock();
        state.unprepared -= 1;
        if state.unprepared == 0 {
            let clock = Clock::starting_at(self.time);
            self.clock
                .set((clock, CpuTime::of_process()))
                .expect("only the last prepared process starts the clock");
            self.changed.notify_all();
        }
    }

    /// Waits until all processes are prepared.
    pub fn wait_until_prepared(&self) {
        let state = self.lock();
        let is_unprepared = |state: &mut State| state.unprepared > 0;
        drop(self.changed.wait_while(state, is_unprepared));
    }

    /// Counts one more process as ended. The last one sets the end and the processor time of the
    /// phase, and wakes [`wait_for_end`](PhaseStart::wait_for_end). The clock is set by then: a
    /// process is counted as prepared before it is counted as ended, also after a failure.
    pub fn on_ended(&self) {
        let mut state = self.lock();
        state.running -= 1;
        if let (0, Some((clock, cpu))) = (state.running, self.clock.get()) {
            state.end = clock.now();
            state.cpu_seconds = CpuTime::of_process().since(*cpu).seconds();
            self.changed.notify_all();
        }
    }

    /// Waits until all processes have ended, for at most `span`. Returns true if they have.
    pub fn wait_for_end(&self, span: Duration) -> bool {
        let state = self.lock();
        let is_running = |state: &mut State| state.running > 0;
        let waited = self.changed.wait_timeout_while(state, span, is_running);
        waited.unwrap_or_else(PoisonError::into_inner).0.running == 0
    }

    /// Returns the time of the run at which the last process ended.
    pub fn end(&self) -> Time {
        self.lock().end
    }

    /// Returns the processor time of this process from the start of the phase to its end, in
    /// seconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.lock().cpu_seconds
    }

    /// Locks the state, also after a panic of a thread that held the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of three is prepared late, one fails before it begins: time goes on from 7 s after
    /// both, and the phase ends when the last has ended.
    #[test]
    fn clock_starts_when_the_last_process_is_prepared() {
        let start = PhaseStart::new(3, Time::from_s(7));
        std::thread::scope(|scope| {
            let early = scope.spawn(|| {
                start.on_prepared();
                start.wait_until_prepared();
                let began = start.clock().expect("all are prepared").now();
                start.on_ended();
                began
            });
            start.on_prepared();
            start.on_ended();
            std::thread::sleep(Duration::from_millis(50));
            assert!(start.clock().is_none() && !start.wait_for_end(Duration::ZERO));
            start.on_prepared();
            let began = early.join().expect("the early thread does not panic");
            // The clock began after the pause of 50 ms: a busy machine may take longer, never less.
            assert!(began >= Time::from_s(7), "{began:?}");
            start.on_ended();
        });
        assert!(start.wait_for_end(Duration::ZERO));
        assert!(start.end() >= Time::from_s(7));
    }
}
