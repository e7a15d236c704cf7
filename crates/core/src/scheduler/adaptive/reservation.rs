//! Reservation of the device for the reads of favoured processes: processes that did without the
//! device and have earned credit for it (`device_time.rs`).
//!
//! A read that goes first still waits for the requests in the device. A program that sends each
//! read after the one before would wait for a full device at each of its reads. The device is
//! therefore reserved: other reads stay in the scheduler while such a read is in progress, and for
//! the idle time after it. A reservation ends early when its time is used up: four rounds of time
//! slices (300 ms each) at first, and a sixteenth of the time since. The others thus lose about
//! that share at most. Time in which the device still serves earlier requests of others does not
//! count.

use super::ROUND_TIME;
use super::device_time::largest_credit;
use crate::observed::EWMA_WINDOW;
use crate::unit::Time;

/// The reservation of the device, and the time that is left for it.
#[derive(Debug)]
pub(super) struct Reservation {
    /// Time for which the device may be reserved, as of `updated`. Reads of favoured processes and
    /// idle time for them use it up.
    budget_ns: u64,
    /// Time up to which the budget has grown.
    updated: Time,
    /// Start of the reservation; `None` without one.
    since: Option<Time>,
    /// Reads of favoured processes in the device.
    in_device: u32,
    /// Time since which the device has had such a read, and none of them has completed.
    in_device_since: Time,
    /// Time of the newest completion of these reads.
    last_completion: Time,
    /// End of the idle time after that completion.
    idle_until: Time,
}

impl Default for Reservation {
    /// No reservation, with the largest time for reservations.
    fn default() -> Reservation {
        Reservation {
            budget_ns: largest_credit().ns(),
            updated: Time::ZERO,
            since: None,
            in_device: 0,
            in_device_since: Time::ZERO,
            last_completion: Time::ZERO,
            idle_until: Time::ZERO,
        }
    }
}

impl Reservation {
    /// Records the dispatch of a read of a favoured process. The wait in the device counts from the
    /// first of several, or from the newest completion of one.
    pub(super) fn on_dispatch(&mut self, now: Time) {
        if self.in_device == 0 {
            self.in_device_since = now;
        }
        self.in_device += 1;
    }

    /// Begins a reservation if enough time is left for it: a sixteenth of a round of time slices
    /// (`EWMA_WINDOW`). The budget first grows by a sixteenth of the time since the last call, up
    /// to the largest credit. A reservation that has begun goes on with the grown budget.
    pub(super) fn begin(&mut self, now: Time) {
        let earned_ns = now.since(self.updated).ns() / EWMA_WINDOW;
        self.budget_ns = (self.budget_ns + earned_ns).min(largest_credit().ns());
        self.updated = now;
        if self.since.is_none() && self.budget_ns >= ROUND_TIME.ns() / EWMA_WINDOW {
            self.since = Some(now);
        }
    }

    /// Time for which the device has had reads of favoured processes and completed none of them;
    /// zero without one.
    pub(super) fn wait_in_device(&self, now: Time) -> Time {
        if self.in_device == 0 { Time::ZERO } else { now.since(self.in_device_since) }
    }

    /// Records the completion of a read of a favoured process, which has occupied the device for
    /// `occupied`. The device is kept idle for the time `idle` afterwards, or longer for an earlier
    /// read. Without a reservation the read costs no budget.
    pub(super) fn on_completion(&mut self, now: Time, occupied: Time, idle: Time) {
        self.in_device -= 1;
        self.in_device_since = now;
        if self.since.is_some() {
            self.budget_ns = self.budget_ns.saturating_sub(occupied.ns());
        }
        self.last_completion = now;
        self.idle_until = self.idle_until.max(now + idle);
    }

    /// Ends the idle time: no read will follow soon.
    pub(super) fn end_idle_time(&mut self, now: Time) {
        self.idle_until = self.idle_until.min(now);
    }

    /// Ends the reservation if its budget is used up, or its idle time has passed without a read.
    /// Returns its duration then, and `None` otherwise. Idle time that ends without a read is taken
    /// from the budget here, because no completion charges it.
    pub(super) fn end_if_over(&mut self, now: Time) -> Option<Time> {
        let since = self.since?;
        let is_idle_over = self.in_device == 0 && self.idle_until <= now;
        if self.budget_ns > 0 && !is_idle_over {
            return None;
        }
        if is_idle_over {
            let idle = now.since(self.last_completion);
            self.budget_ns = self.budget_ns.saturating_sub(idle.ns());
        }
        self.since = None;
        Some(now.since(since))
    }

    /// True while the device is reserved.
    pub(super) fn is_active(&self) -> bool {
        self.since.is_some()
    }

    /// End of the idle time, if the reservation waits for the next read only. `None` while a read
    /// of a favoured process is in the device.
    pub(super) fn idle_end(&self) -> Option<Time> {
        (self.in_device == 0).then_some(self.idle_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reserves the device from `begin_ms` on for a read that takes `ms`, and for `idle_ms` after.
    fn reserve(reservation: &mut Reservation, begin_ms: u64, ms: u64, idle_ms: u64) {
        let (begin, duration) = (Time::from_ms(begin_ms), Time::from_ms(ms));
        reservation.on_dispatch(begin);
        reservation.begin(begin);
        reservation.on_completion(begin + duration, duration, Time::from_ms(idle_ms));
    }

    /// A read from 0 to 10 ms, and 8 ms of idle time.
    #[test]
    fn reservation_lasts_for_the_idle_time_after_a_read() {
        let mut reservation = Reservation::default();
        reserve(&mut reservation, 0, 10, 8);
        assert_eq!(reservation.idle_end(), Some(Time::from_ms(18)));
        assert_eq!(reservation.end_if_over(Time::from_ms(17)), None);
        assert_eq!(reservation.end_if_over(Time::from_ms(18)), Some(Time::from_ms(18)));
        assert!(!reservation.is_active());
    }

    /// The first four rounds, 1,200 ms, are used up. A sixteenth of 299 ms is below 18.75 ms, a
    /// sixteenth of a round; a sixteenth of 300 ms is that.
    #[test]
    fn used_up_reservation_begins_again_after_a_sixteenth_of_the_time() {
        let mut reservation = Reservation::default();
        reserve(&mut reservation, 0, 1_200, 8);
        assert_eq!(reservation.end_if_over(Time::from_ms(1_200)), Some(Time::from_ms(1_200)));
        reservation.begin(Time::from_ms(299));
        assert!(!reservation.is_active());
        reservation.begin(Time::from_ms(300));
        assert!(reservation.is_active());
    }

    /// Two programs read at once. One sends its next read until 18 ms, and the other none.
    #[test]
    fn idle_time_of_one_program_is_kept_after_a_read_of_another() {
        let mut reservation = Reservation::default();
        reserve(&mut reservation, 0, 10, 8);
        reservation.on_dispatch(Time::from_ms(10));
        reservation.on_completion(Time::from_ms(12), Time::from_ms(2), Time::ZERO);
        assert_eq!(reservation.idle_end(), Some(Time::from_ms(18)));
    }

    /// No read follows the process that ended at 12 ms.
    #[test]
    fn end_of_the_process_ends_the_idle_time() {
        let mut reservation = Reservation::default();
        reserve(&mut reservation, 0, 10, 8);
        reservation.end_idle_time(Time::from_ms(12));
        assert_eq!(reservation.end_if_over(Time::from_ms(12)), Some(Time::from_ms(12)));
    }
}
