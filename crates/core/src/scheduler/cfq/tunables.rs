//! The tunables of CFQ, by their names under `/sys/block/*/queue/iosched`.
//!
//! Times are whole milliseconds, which at HZ = 1000 are jiffies: the policy decides at this
//! resolution (see [`jiffies`]). A *slice* is the time for which one queue has the device. A queue
//! is *seeky* if its requests are far apart.

use alloc::borrow::ToOwned;

use super::seek::Seekiness;
use crate::policy::{Spec, SpecError};
use crate::scheduler::seek_order::BackSeek;
use crate::unit::Time;

/// Milliseconds on the clock of the policy; signed, since a key in a service tree and the rest of a
/// slice can be negative.
pub(super) type Jiffies = i64;

/// One second in jiffies.
pub(super) const HZ: Jiffies = 1000;

/// The jiffy of `now`. As in the kernel the time is rounded down, so that a timer of 8 jiffies
/// fires after 7 to 8 ms.
pub(super) const fn jiffies(now: Time) -> Jiffies {
    (now.0 / 1_000_000) as Jiffies
}

/// Start time of a jiffy; zero for a negative one.
pub(super) const fn time_of(jiffy: Jiffies) -> Time {
    Time((if jiffy < 0 { 0 } else { jiffy as u64 }) * 1_000_000)
}

/// Tunables, with the defaults of Linux 2.6.34. Times are in ms, at least 1 (unless stated) and at
/// most a minute.
///
/// `group_idle` is omitted: it has no effect while there is one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CfqTunables {
    /// Detector of seeky queues: `seeky=mean` or `seeky=history` (default).
    pub seeky: Seekiness,
    /// Most requests of one queue in the device while others wait; half of it is the normal limit.
    /// Default 8, from 1 to 65,536. A larger value lets the device order more requests itself, and
    /// makes other queues wait longer.
    pub quantum: u32,
    /// Time after which a synchronous request is served out of order. Default 125. A shorter time
    /// costs seeks.
    pub fifo_expire_sync: Jiffies,
    /// Time after which an asynchronous request is served out of order. Default 250.
    pub fifo_expire_async: Jiffies,
    /// Largest distance behind the head, in KiB, at which a request may be served next. Default
    /// 16,384, from 0 to 2^40.
    pub back_seek_max: u64,
    /// Factor of a backward distance in comparisons with a forward one. Default 2, from 1 to
    /// 65,536.
    pub back_seek_penalty: u64,
    /// Slice of a synchronous queue of level 4. Default 100. Longer slices raise the latency of
    /// other queues, shorter ones cost more seeks between processes.
    pub slice_sync: Jiffies,
    /// Slice of an asynchronous queue of level 4. Default 40.
    pub slice_async: Jiffies,
    /// Scales the number of requests that an asynchronous queue may send in one slice. Default 2,
    /// from 1 to 65,536.
    pub slice_async_rq: u32,
    /// Time for which the device is kept idle for a process's next request; 0: never. Default 8. It
    /// costs throughput on devices with more than one spindle.
    pub slice_idle: Jiffies,
    /// 1 shrinks the slices so that all queues are served within `target_latency`, and raises the
    /// asynchronous depth slowly; 0 does not. Default 1. With many processes it costs throughput.
    pub low_latency: bool,
    /// Target time in which all queues are served once. Default 300.
    pub target_latency: Jiffies,
}

impl Default for CfqTunables {
    /// The defaults of Linux 2.6.34, as parts of a second (`HZ` jiffies).
    fn default() -> CfqTunables {
        CfqTunables {
            seeky: Seekiness::History,
            quantum: 8,
            fifo_expire_sync: HZ / 8,
            fifo_expire_async: HZ / 4,
            back_seek_max: 16 * 1024,
            back_seek_penalty: 2,
            slice_sync: HZ / 10,
            slice_async: HZ / 25,
            slice_async_rq: 2,
            slice_idle: HZ / 125,
            low_latency: true,
            target_latency: 300,
        }
    }
}

/// The keys that [`CfqTunables::from_spec`] accepts.
pub const KEYS: &[&str] = &[
    "seeky",
    "quantum",
    "fifo_expire_sync",
    "fifo_expire_async",
    "back_seek_max",
    "back_seek_penalty",
    "slice_sync",
    "slice_async",
    "slice_async_rq",
    "slice_idle",
    "low_latency",
    "target_latency",
];

/// Largest value of a time, in ms: a minute.
const TIME_MAX: u64 = 60_000;

impl CfqTunables {
    /// Parses the tunables from `cfq,key=value,…`.
    ///
    /// # Errors
    /// A key is unknown, or a value is out of range.
    pub fn from_spec(spec: &Spec) -> Result<CfqTunables, SpecError> {
        spec.only(KEYS)?;
        let default = CfqTunables::default();
        let time = |key, value: Jiffies, least| {
            spec.integer(key, value as u64, least..=TIME_MAX).map(|ms| ms as Jiffies)
        };
        Ok(CfqTunables {
            seeky: seekiness(spec)?,
            quantum: spec.integer("quantum", default.quantum.into(), 1..=65_536)? as u32,
            fifo_expire_sync: time("fifo_expire_sync", default.fifo_expire_sync, 1)?,
            fifo_expire_async: time("fifo_expire_async", default.fifo_expire_async, 1)?,
            back_seek_max: spec.integer("back_seek_max", default.back_seek_max, 0..=1 << 40)?,
            back_seek_penalty: spec.integer(
                "back_seek_penalty",
                default.back_seek_penalty,
                1..=1 << 16,
            )?,
            slice_sync: time("slice_sync", default.slice_sync, 1)?,
            slice_async: time("slice_async", default.slice_async, 1)?,
            slice_async_rq: spec.integer(
                "slice_async_rq",
                default.slice_async_rq.into(),
                1..=65_536,
            )? as u32,
            slice_idle: time("slice_idle", default.slice_idle, 0)?,
            low_latency: spec.integer("low_latency", default.low_latency.into(), 0..=1)? == 1,
            target_latency: time("target_latency", default.target_latency, 1)?,
        })
    }

    /// Time in jiffies after which a synchronous or asynchronous request is served out of order.
    pub(super) const fn fifo_expire(&self, is_sync: bool) -> Jiffies {
        if is_sync { self.fifo_expire_sync } else { self.fifo_expire_async }
    }

    /// The tunables `back_seek_max`, converted from KiB to sectors (two each), and
    /// `back_seek_penalty`.
    pub(super) const fn back_seek(&self) -> BackSeek {
        BackSeek { max_sectors: self.back_seek_max * 2, penalty: self.back_seek_penalty }
    }
}

/// Parses the parameter `seeky`; `history` if it is missing. Fails if it is neither `mean` nor
/// `history`.
fn seekiness(spec: &Spec) -> Result<Seekiness, SpecError> {
    match spec.parameters.get("seeky").map(|text| text.as_str()) {
        None | Some("history") => Ok(Seekiness::History),
        Some("mean") => Ok(Seekiness::Mean),
        Some(other) => Err(SpecError::BadValue {
            name: spec.name.clone(),
            key: "seeky".to_owned(),
            value: other.to_owned(),
            expected: "`mean` (until 2.6.33) or `history` (since 2.6.34)".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn each_tunable_is_read_under_its_own_name() {
        let text = "cfq,seeky=mean,quantum=4,fifo_expire_sync=1,fifo_expire_async=2,\
                    back_seek_max=3,back_seek_penalty=5,slice_sync=6,slice_async=7,\
                    slice_async_rq=9,slice_idle=0,low_latency=0,target_latency=10";
        let read = CfqTunables::from_spec(&Spec::parse(text).unwrap()).unwrap();
        let expected = CfqTunables {
            seeky: Seekiness::Mean,
            quantum: 4,
            fifo_expire_sync: 1,
            fifo_expire_async: 2,
            back_seek_max: 3,
            back_seek_penalty: 5,
            slice_sync: 6,
            slice_async: 7,
            slice_async_rq: 9,
            slice_idle: 0,
            low_latency: false,
            target_latency: 10,
        };
        assert_eq!(read, expected);
        assert_eq!(CfqTunables::from_spec(&Spec::plain("cfq")), Ok(CfqTunables::default()));
    }

    #[test]
    fn bad_value_error_names_the_expected_values() {
        let message = |text| {
            let spec = Spec::parse(text).unwrap();
            CfqTunables::from_spec(&spec).unwrap_err().to_string()
        };
        assert_eq!(
            message("cfq,seeky=often"),
            "`cfq,seeky=often`: expected `mean` (until 2.6.33) or `history` (since 2.6.34)"
        );
        assert_eq!(
            message("cfq,slice_sync=0"),
            "`cfq,slice_sync=0`: expected a whole number from 1 to 60000"
        );
        assert!(message("cfq,group_idle=8").starts_with("`cfq` has no parameter `group_idle`"));
    }
}
