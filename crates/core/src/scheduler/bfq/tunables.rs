//! The tunables of BFQ, by their names under `/sys/block/*/queue/iosched`. A queue is *seeky* if
//! most of its requests are far apart.

use crate::policy::{Spec, SpecError};
use crate::scheduler::seek_order::BackSeek;
use crate::unit::Time;

/// Idle time for a seeky queue (`BFQ_MIN_TT`). Idling for it protects only its share.
pub(super) const SEEKY_IDLE: Time = Time::from_ms(2);

/// Tunables, with the defaults of Linux 6.
///
/// `slice_idle_us` is omitted: it is `slice_idle` in another unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfqTunables {
    /// Time for which the device is kept idle for the next request of a process (`slice_idle`; 8
    /// ms); 0: never. It costs throughput on devices with more than one head.
    pub slice_idle: Time,
    /// Largest budget of a queue, in sectors (`max_budget`; 0: the sectors that the device moves in
    /// `timeout_sync` at its estimated peak rate). A larger one makes other queues wait longer.
    pub max_budget: u64,
    /// Longest service of a queue (`timeout_sync`; 125 ms).
    pub timeout_sync: Time,
    /// 1 raises the weight of interactive and soft real-time processes (`low_latency`; 1). The
    /// others get less of the device meanwhile.
    pub low_latency: bool,
    /// 1 keeps the device idle for every process that may send another request, and sends one
    /// request at a time (`strict_guarantees`; 0). It costs throughput.
    pub strict_guarantees: bool,
    /// Time after which a synchronous request is served out of order (`fifo_expire_sync`; 125 ms).
    pub fifo_expire_sync: Time,
    /// The corresponding time of an asynchronous request (`fifo_expire_async`; 250 ms).
    pub fifo_expire_async: Time,
    /// Largest distance behind the head, in KiB, at which a request may be served next
    /// (`back_seek_max`; 16,384).
    pub back_seek_max: u64,
    /// Factor of a backward distance in comparisons with a forward one (`back_seek_penalty`; 2).
    pub back_seek_penalty: u64,
}

impl Default for BfqTunables {
    /// The defaults of Linux 6.
    fn default() -> BfqTunables {
        BfqTunables {
            slice_idle: Time::from_ms(8),
            max_budget: 0,
            timeout_sync: Time::from_ms(125),
            low_latency: true,
            strict_guarantees: false,
            fifo_expire_sync: Time::from_ms(125),
            fifo_expire_async: Time::from_ms(250),
            back_seek_max: 16 * 1024,
            back_seek_penalty: 2,
        }
    }
}

/// Keys of the tunables in a [`Spec`].
const KEYS: [&str; 9] = [
    "slice_idle",
    "max_budget",
    "timeout_sync",
    "low_latency",
    "strict_guarantees",
    "fifo_expire_sync",
    "fifo_expire_async",
    "back_seek_max",
    "back_seek_penalty",
];

/// Smallest `max_budget` other than 0, in sectors. A queue gets a thirty-second of it at least.
const MAX_BUDGET_MIN: u64 = 32;

impl BfqTunables {
    /// Parses the tunables. Times are in ms, at most a minute. The other upper bounds are chosen,
    /// and far above useful values.
    ///
    /// # Errors
    /// A parameter is unknown, or a value is not a number or out of range.
    pub fn from_spec(spec: &Spec) -> Result<BfqTunables, SpecError> {
        spec.only(&KEYS)?;
        let default = BfqTunables::default();
        let ms = |key, default_time: Time, min| {
            spec.integer(key, default_time.ns() / 1_000_000, min..=60_000).map(Time::from_ms)
        };
        let flag = |key, default_flag: bool| {
            spec.integer(key, default_flag.into(), 0..=1).map(|number| number == 1)
        };
        let max_budget = spec.integer("max_budget", default.max_budget, 0..=1 << 30)?;
        if (1..MAX_BUDGET_MIN).contains(&max_budget) {
            let expected = alloc::format!("0, or a number of sectors from {MAX_BUDGET_MIN}");
            return Err(spec.bad_value("max_budget", &expected));
        }
        Ok(BfqTunables {
            slice_idle: ms("slice_idle", default.slice_idle, 0)?,
            max_budget,
            timeout_sync: ms("timeout_sync", default.timeout_sync, 1)?,
            low_latency: flag("low_latency", default.low_latency)?,
            strict_guarantees: flag("strict_guarantees", default.strict_guarantees)?,
            fifo_expire_sync: ms("fifo_expire_sync", default.fifo_expire_sync, 1)?,
            fifo_expire_async: ms("fifo_expire_async", default.fifo_expire_async, 1)?,
            back_seek_max: spec.integer("back_seek_max", default.back_seek_max, 0..=1 << 40)?,
            back_seek_penalty: spec.integer(
                "back_seek_penalty",
                default.back_seek_penalty,
                1..=65_536,
            )?,
        })
    }

    /// The tunables `back_seek_max`, converted from KiB to sectors (two each), and
    /// `back_seek_penalty`.
    pub(super) const fn back_seek(&self) -> BackSeek {
        BackSeek { max_sectors: self.back_seek_max * 2, penalty: self.back_seek_penalty }
    }

    /// Time after which a request is served out of order.
    pub(super) const fn fifo_expire(&self, is_sync: bool) -> Time {
        if is_sync { self.fifo_expire_sync } else { self.fifo_expire_async }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tunable_is_read_from_the_spec() {
        let text = "bfq,slice_idle=1,max_budget=64,timeout_sync=3,low_latency=0,\
                    strict_guarantees=1,fifo_expire_sync=4,fifo_expire_async=5,\
                    back_seek_max=6,back_seek_penalty=7";
        let expected = BfqTunables {
            slice_idle: Time::from_ms(1),
            max_budget: 64,
            timeout_sync: Time::from_ms(3),
            low_latency: false,
            strict_guarantees: true,
            fifo_expire_sync: Time::from_ms(4),
            fifo_expire_async: Time::from_ms(5),
            back_seek_max: 6,
            back_seek_penalty: 7,
        };
        let parse = |text: &str| BfqTunables::from_spec(&Spec::parse(text).unwrap());
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("bfq"), Ok(BfqTunables::default()));
        for text in ["bfq,max_budget=31", "bfq,timeout_sync=0", "bfq,slice_idle_us=1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
