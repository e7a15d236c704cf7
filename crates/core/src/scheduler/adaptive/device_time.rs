//! Device time, and the credit of processes that did without it.
//!
//! A program that starts, or reads now and then, has had less of the device's time than an equal
//! share, and needs little. How it works:
//!
//! - A completed read is charged to its process with the time since the completion before it, or
//!   since its own dispatch if that is later. While the device is reserved for the process, idle
//!   time is charged as well.
//! - The *equal share* grows with each charge, by the charge divided by the processes with
//!   outstanding reads.
//! - The *credit* of a process grows with the equal share while the process has no outstanding
//!   read, up to one round of time slices. Charges reduce it. A process that waits for the device
//!   all the time has no credit.
//! - A process is *new* if it had no outstanding read while the device served the others for four
//!   rounds. Its credit is four rounds then. An equal share alone is too little: a program that
//!   needs 0.5 s of device time used it up early, among ten streams. The rest took as long as a
//!   stream.
//! - A process with a credit of half a round is *favoured*, until its credit is used up. A round is
//!   the time in which every waiting process gets a time slice: 300 ms.
//!
//! Source of the shares: start-time fair queueing (Goyal, Vin, Cheng 1996), with time for bytes.

use super::{IDLE_TIMEOUT, ROUND_TIME};
use crate::observed::{EWMA_WINDOW, MIN_SAMPLES};
use crate::unit::Time;

/// Largest credit of a process, and the most that all reservations of the device take at once: four
/// rounds ([`MIN_SAMPLES`]). A process counts as new after the others have used the same device
/// time.
pub(super) fn largest_credit() -> Time {
    Time(MIN_SAMPLES * ROUND_TIME.ns())
}

/// Device time of all processes.
#[derive(Debug, Default)]
pub(super) struct DeviceTime {
    /// Device time of all processes together since the start.
    total_ns: u64,
    /// Device time of a process with an equal share since the start.
    equal_share_ns: u64,
    /// Time of the newest completion.
    last_completion: Time,
    /// Mean latency of the reads that did not go first.
    mean_latency_ns: u64,
}

impl DeviceTime {
    /// Updates the mean latency by a completed read that did not go first; the newest read weighs a
    /// sixteenth (`EWMA_WINDOW`). The first read sets the mean.
    pub(super) fn record_latency(&mut self, latency: Time) {
        let samples = if self.mean_latency_ns == 0 { 1 } else { EWMA_WINDOW };
        self.mean_latency_ns = (self.mean_latency_ns * (samples - 1) + latency.ns()) / samples;
    }

    /// Mean latency of the reads that did not go first.
    pub(super) fn mean_latency(&self) -> Time {
        Time(self.mean_latency_ns)
    }

    /// Time for which keeping the device idle pays: a read that is sent later would have waited no
    /// longer among the others. Zero before the first completed read.
    pub(super) fn idle_time(&self) -> Time {
        self.mean_latency().min(IDLE_TIMEOUT)
    }

    /// Charges a read of one of `busy_processes` processes that completes at `now`. It has occupied
    /// the device since `since`, or since the completion before it if that is later. Returns the
    /// charged duration. A credit that falls to 0 ends the favour.
    pub(super) fn charge(
        &mut self,
        now: Time,
        since: Time,
        busy_processes: usize,
        credit: &mut Credit,
    ) -> Time {
        let charge_ns = now.since(self.last_completion.max(since)).ns();
        self.last_completion = now;
        self.total_ns += charge_ns;
        self.equal_share_ns += charge_ns / busy_processes.max(1) as u64;
        credit.credit_ns = credit.credit_ns.saturating_sub(charge_ns);
        credit.is_favoured &= credit.credit_ns > 0;
        Time(charge_ns)
    }

    /// Time of the newest completion.
    pub(super) fn last_completion(&self) -> Time {
        self.last_completion
    }
}

/// Credit of a process.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// The credit, at most [`largest_credit`].
    credit_ns: u64,
    /// Equal share when the process last had an outstanding read; 0 before its first, as if it had
    /// done without since the start.
    idle_since_share_ns: u64,
    /// Total device time at that point.
    idle_since_total_ns: u64,
    /// True from the time at which the credit reaches half a round until it is used up.
    is_favoured: bool,
    /// True if the process sent a read later than the idle time after its last completion.
    is_slow: bool,
}

impl Credit {
    /// Adds the credit of the time without an outstanding read, which ends now. If the others have
    /// used four rounds of device time since it began, the process is new, with the largest credit.
    /// A credit above one round does not grow. Half a round or more makes the process favoured.
    pub(super) fn end_idle_time(&mut self, device: &DeviceTime) {
        let earned_ns = device.equal_share_ns - self.idle_since_share_ns;
        self.idle_since_share_ns = device.equal_share_ns;
        if device.total_ns - self.idle_since_total_ns >= largest_credit().ns() {
            self.credit_ns = largest_credit().ns();
        } else if self.credit_ns < ROUND_TIME.ns() {
            self.credit_ns = (self.credit_ns + earned_ns).min(ROUND_TIME.ns());
        }
        self.idle_since_total_ns = device.total_ns;
        self.is_favoured |= self.credit_ns >= ROUND_TIME.ns() / 2;
    }

    /// Records that the process has no outstanding read from now on.
    pub(super) fn begin_idle_time(&mut self, device: &DeviceTime) {
        self.idle_since_total_ns = device.total_ns;
        self.idle_since_share_ns = device.equal_share_ns;
    }

    /// Records that the process has sent a read `think_time` after its last completion, if there
    /// was one. `idle_time` is the time for which keeping the device idle pays.
    pub(super) fn record_think_time(&mut self, think_time: Option<Time>, idle_time: Time) {
        self.is_slow = think_time.is_some_and(|think_time| think_time > idle_time);
    }

    /// Returns true if the reads of the process go first, and its next one is expected soon after a
    /// completion.
    pub(super) fn is_chain(&self) -> bool {
        self.is_favoured && !self.is_slow
    }

    /// Returns true if the reads of the process go first.
    pub(super) fn is_favoured(&self) -> bool {
        self.is_favoured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device time after reads of `ms` in total, of one of `busy_processes` processes.
    fn device_after(ms: u64, busy_processes: usize) -> DeviceTime {
        let mut device = DeviceTime::default();
        let mut credit = Credit::default();
        device.charge(Time::from_ms(ms), Time::ZERO, busy_processes, &mut credit);
        device
    }

    /// Credit of a process that sends its first read.
    fn newcomer(device: &DeviceTime) -> Credit {
        let mut credit = Credit::default();
        credit.end_idle_time(device);
        credit
    }

    /// Half of a round is 150 ms: an equal share of 150 ms alone, and of 600 ms among four.
    #[test]
    fn newcomer_is_favoured_once_others_had_half_a_round_each() {
        assert!(!newcomer(&device_after(149, 1)).is_favoured());
        assert!(newcomer(&device_after(150, 1)).is_favoured());
        assert!(!newcomer(&device_after(599, 4)).is_favoured());
        assert!(newcomer(&device_after(600, 4)).is_favoured());
    }

    /// Checks that reads of `credit_ms` use up the credit, and shorter ones do not, after the
    /// device served the others for `busy_ms`.
    #[track_caller]
    fn check_credit(busy_ms: u64, busy_processes: usize, credit_ms: u64) {
        let mut device = device_after(busy_ms, busy_processes);
        let mut credit = newcomer(&device);
        let start = Time::from_ms(busy_ms);
        device.charge(start + Time::from_ms(credit_ms - 1), start, 2, &mut credit);
        assert!(credit.is_favoured());
        device.charge(start + Time::from_ms(credit_ms), start, 2, &mut credit);
        assert!(!credit.is_favoured());
    }

    /// Four rounds are 1,200 ms. The equal share among four processes is then 300 ms, and among
    /// sixteen 75 ms. A process that is not new has the share: 1,196 ms / 4.
    #[test]
    fn new_process_has_four_rounds_among_any_number_of_processes() {
        check_credit(1_196, 4, 299);
        check_credit(1_200, 4, 1_200);
        check_credit(1_200, 16, 1_200);
        check_credit(3_600_000, 1, 1_200);
    }

    /// The process has used 1,000 ms of its 1,200. A pause in which another is served for 1 ms
    /// leaves it the rest and adds an equal share, 1 ms. A pause of 1,200 ms makes it new.
    #[test]
    fn short_pause_leaves_the_credit_and_a_long_one_renews_it() {
        for (pause_ms, rest_ms) in [(1, 201), (1_200, 1_200)] {
            let mut device = device_after(2_000, 1);
            let mut credit = newcomer(&device);
            let mut now = Time::from_s(2);
            let mut charge = |device: &mut DeviceTime, ms: u64, credit: &mut Credit| {
                now += Time::from_ms(ms);
                device.charge(now, Time::ZERO, 1, credit);
            };
            charge(&mut device, 1_000, &mut credit);
            credit.begin_idle_time(&device);
            charge(&mut device, pause_ms, &mut Credit::default());
            credit.end_idle_time(&device);
            charge(&mut device, rest_ms - 1, &mut credit);
            assert!(credit.is_favoured(), "{pause_ms} ms");
            charge(&mut device, 1, &mut credit);
            assert!(!credit.is_favoured(), "{pause_ms} ms");
        }
    }

    /// The device serves the other read until 20 ms. The read dispatched at 5 ms has occupied it
    /// for the 10 ms after that.
    #[test]
    fn read_is_charged_since_the_completion_before_it() {
        let mut device = device_after(20, 1);
        let mut credit = Credit::default();
        let charge = device.charge(Time::from_ms(30), Time::from_ms(5), 1, &mut credit);
        assert_eq!(charge, Time::from_ms(10));
    }

    /// Other reads take 2 ms. A read that follows 1 ms after a completion is part of a chain, and
    /// one that follows after 3 ms is not.
    #[test]
    fn chain_ends_with_a_think_time_above_the_latency_of_others() {
        let mut device = device_after(1_000, 1);
        device.record_latency(Time::from_ms(2));
        let mut credit = newcomer(&device);
        assert!(credit.is_chain(), "unknown yet");
        credit.record_think_time(Some(Time::from_ms(1)), device.idle_time());
        assert!(credit.is_chain());
        credit.record_think_time(Some(Time::from_ms(3)), device.idle_time());
        assert!(credit.is_favoured() && !credit.is_chain());
    }
}
