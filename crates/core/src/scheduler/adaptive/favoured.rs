//! Favoured processes: their reads go first, and the device may be reserved for them.
//!
//! A process is favoured while it has enough *credit*: device time that it did without
//! (`device_time.rs`). Its reads form a *chain* if it sends each soon after the one before has
//! completed. While the device is *reserved*, reads of other processes stay in the scheduler, and
//! the device is kept idle between the reads of a chain for the *idle time*. A reservation begins
//! only if enough of its budget of time is left (`reservation.rs`).

use super::{AdaptiveScheduler, DispatchedRead, IDLE_TIMEOUT};
use crate::request::{ProcessId, RequestId, RequestTable};
use crate::scheduler::Dispatch;
use crate::unit::Time;

impl AdaptiveScheduler {
    /// Returns the next read of a favoured process, recorded as dispatched; `None` without one.
    /// Reserves the device for a process that usually sends its next read soon. Without a chain, an
    /// idle device would wait for a read that comes late.
    pub(super) fn dispatch_favoured(
        &mut self,
        now: Time,
        requests: &RequestTable,
    ) -> Option<RequestId> {
        let id = self.ready.dispatch_first(requests)?;
        let process = requests[id].process;
        let went_first = true;
        self.record_dispatch(now, id, process, went_first);
        self.reservation.on_dispatch(now);
        if self.can_reserve() && self.processes[&process].credit.is_chain() {
            self.reservation.begin(now);
        }
        Some(id)
    }

    /// Returns the answer of `dispatch` while the device is reserved; `None` without a reservation.
    /// Called after `dispatch_favoured` has found no read: dispatchable reads are not looked at.
    /// The answer has the end of the idle time, or no time while a favoured read is in the device.
    /// First ends a reservation that is over; the tuners exclude its duration from measurements.
    /// Then begins one, within its budget, if the device has held a favoured read for longer than
    /// the mean latency of the reads that did not go first. The device then prefers the requests of
    /// others.
    pub(super) fn dispatch_reserved(&mut self, now: Time) -> Option<Dispatch> {
        if let Some(duration) = self.reservation.end_if_over(now) {
            self.active_tuner.exclude(duration);
            self.depth_tuner.exclude(duration);
        }
        let is_starved = self.reservation.wait_in_device(now) > self.device_time.mean_latency();
        if is_starved && self.can_reserve() {
            self.reservation.begin(now);
        }
        let idle_end = self.reservation.is_active().then(|| self.reservation.idle_end())?;
        Some(idle_end.map_or(Dispatch::Nothing, Dispatch::WaitUntil))
    }

    /// Returns true if a reservation of the device can help: several processes have reads, and no
    /// limit on the depth protects processes with few reads.
    fn can_reserve(&self) -> bool {
        self.busy_processes > 1 && !self.is_uneven
    }

    /// Time for which keeping the device idle for a favoured process pays: the mean latency of
    /// other reads, up to the timeout of 8 ms. Under a limit on active processes it is the whole
    /// timeout. A limit on active processes is kept only if idling for the whole timeout gains.
    pub(super) fn idle_time(&self) -> Time {
        match self.active_tuner.allowed() {
            Some(_) => IDLE_TIMEOUT,
            None => self.device_time.idle_time(),
        }
    }

    /// Charges a completed read to its process. A read that went first counts for the reservation,
    /// and any other one for the mean latency. No read is expected of a process that has ended.
    pub(super) fn charge_device_time(
        &mut self,
        now: Time,
        id: ProcessId,
        dispatch: DispatchedRead,
    ) {
        let since = match self.reservation.is_active() {
            // The time in which the device was kept idle counts as well.
            true => self.device_time.last_completion(),
            false => dispatch.at,
        };
        let idle_time = self.idle_time();
        // A process is known while it has reads in the device.
        let Some(process) = self.processes.get_mut(&id) else { return };
        let credit = &mut process.credit;
        let occupied = self.device_time.charge(now, since, self.busy_processes, credit);
        if !dispatch.went_first {
            self.device_time.record_latency(now.since(dispatch.at));
            return;
        }
        let is_chain = credit.is_chain() && !process.has_ended;
        let idle = if is_chain { idle_time } else { Time::ZERO };
        self.reservation.on_completion(now, occupied, idle);
        // The others may have been between two reads when this one was dispatched.
        if is_chain && self.can_reserve() {
            self.reservation.begin(now);
        }
    }

    /// Ends the idle time if a favoured process has ended. All favoured processes share one idle
    /// time: it ends even if the last read was of another. No effect for other processes.
    pub(super) fn end_idle_time_of(&mut self, now: Time, id: ProcessId) {
        if self.processes.get(&id).is_some_and(|process| process.credit.is_favoured()) {
            self.reservation.end_idle_time(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{SchedulerBench, caps, read};
    use super::super::probe::{Parameter, ThroughputTuner};
    use super::*;
    use crate::request::Request;

    /// A read of 8 sectors of the process.
    fn read_of(process: u32, start: u64) -> Request {
        Request { process: ProcessId(process), ..read(start, 8) }
    }

    /// A scheduler over which process 0 has read for 300 ms, until 300 ms.
    fn busy_for_a_round() -> SchedulerBench {
        let mut policy = SchedulerBench::new(AdaptiveScheduler::new(&caps()));
        policy.insert(Time::ZERO, read_of(0, 1000));
        policy.dispatch_all::<1>(Time::ZERO);
        policy.complete(Time::from_ms(300), RequestId(0));
        policy
    }

    /// Reads 1 and 2 of process 0 are queued when read 3 of process 1 arrives, at a higher sector.
    /// It goes first, and the others wait for it and for the idle time, 8 ms.
    #[test]
    fn first_read_of_a_program_goes_first_and_alone() {
        let mut policy = busy_for_a_round();
        let now = Time::from_ms(300);
        for request in [read_of(0, 2000), read_of(0, 3000), read_of(1, 9000)] {
            policy.insert(now, request);
        }
        assert_eq!(policy.dispatch(now), Dispatch::Request(RequestId(3)));
        assert_eq!(policy.dispatch(now), Dispatch::Nothing);
        let completion = Time::from_ms(310);
        policy.complete(completion, RequestId(3));
        let idle_end = Time::from_ms(318);
        assert_eq!(policy.dispatch(completion), Dispatch::WaitUntil(idle_end));
        assert_eq!(policy.dispatch(idle_end), Dispatch::Request(RequestId(1)));
    }

    /// The device accepts one request at a time. The read of process 1 is dispatched between two
    /// reads of process 0, when no other process has one. It must reserve the device as well.
    #[test]
    fn chain_next_to_one_stream_reserves_a_device_without_a_queue() {
        let mut policy = busy_for_a_round();
        let now = Time::from_ms(300);
        policy.insert(now, read_of(1, 9000));
        assert_eq!(policy.dispatch(now), Dispatch::Request(RequestId(1)));
        policy.insert(now, read_of(0, 2000));
        let completion = Time::from_ms(310);
        policy.complete(completion, RequestId(1));
        assert_eq!(policy.dispatch(completion), Dispatch::WaitUntil(Time::from_ms(318)));
    }

    /// Other reads take 2 ms. A limit on the processes keeps the device idle for 8 ms anyway.
    #[test]
    fn idle_time_is_the_whole_timeout_under_a_limit() {
        let mut policy = AdaptiveScheduler::new(&caps());
        policy.device_time.record_latency(Time::from_ms(2));
        assert_eq!(policy.idle_time(), Time::from_ms(2));
        policy.active_tuner = ThroughputTuner::with_setting(Parameter::Processes, 1);
        assert_eq!(policy.idle_time(), Time::from_ms(8));
    }

    /// The program has ended after its read, so that the device is not kept idle.
    #[test]
    fn ended_program_leaves_the_device_to_the_others() {
        let mut policy = busy_for_a_round();
        let now = Time::from_ms(300);
        for request in [read_of(0, 2000), read_of(1, 9000)] {
            policy.insert(now, request);
        }
        assert_eq!(policy.dispatch(now), Dispatch::Request(RequestId(2)));
        let completion = Time::from_ms(310);
        policy.complete(completion, RequestId(2));
        policy.policy.process_ended(completion, ProcessId(1));
        assert_eq!(policy.dispatch(completion), Dispatch::Request(RequestId(1)));
    }

    /// Process 1 reads at 300 ms and again at 700 ms, so its reads form no chain. The read of
    /// process 0 has taken 300 ms. The second read of process 1 is starved after more than that.
    #[test]
    fn read_that_waits_longer_than_others_reserves_the_device() {
        let mut policy = busy_for_a_round();
        policy.insert(Time::from_ms(300), read_of(1, 9000));
        policy.dispatch_all::<1>(Time::from_ms(300));
        policy.complete(Time::from_ms(310), RequestId(1));
        let now = Time::from_ms(700);
        policy.insert(now, read_of(1, 9100));
        assert_eq!(policy.dispatch(now), Dispatch::Request(RequestId(2)));
        policy.insert(now, read_of(0, 2000));
        assert_eq!(policy.dispatch(now), Dispatch::Request(RequestId(3)), "not a chain");
        // The only other read so far took 300 ms.
        for (ms, expected) in [(1000, Dispatch::Request(RequestId(4))), (1001, Dispatch::Nothing)] {
            policy.insert(now, read_of(0, 2000 + ms));
            assert_eq!(policy.dispatch(Time::from_ms(ms)), expected, "{ms} ms");
        }
    }
}
