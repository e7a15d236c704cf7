//! `mq-deadline`: `deadline` with priority classes, as in Linux 6.
//!
//! How it works: each class (real-time, best-effort, idle) has queues and sector order as
//! `deadline` has. A request is served only if no higher class has requests, queued or in the
//! device. A request that has waited `prio_aging_expire` is served in spite of higher classes. The
//! level inside a class has no effect. With one class it serves in the order of `deadline`.
//!
//! A withheld request is not looked at when the higher class's last request completes. It is served
//! at the next arrival, or when the queue is run again, 3 ms after it was withheld. A process of
//! the higher class that sends its next read at once thus keeps the device, although no idling is
//! planned. Measured on Linux 6.18: a real-time stream gets 235 to 300 times the throughput of
//! a best-effort one (`bench/loop_schedulers.py`).
//!
//! The classes share one batch: the number of its requests, its direction, and the number of read
//! batches that passed writes.
//!
//! Longest wait: a request that no other class delays has the bound of `deadline`. Another one
//! waits at most `prio_aging_expire`, and then only for aged requests: an idle one for all of
//! best-effort, and each one for others of its class, in the order of `deadline`. A real-time
//! request waits for all aged ones besides.
//!
//! Source: Linux's `Documentation/block/deadline-iosched.rst` and `ioprio.rst`, and the text of the
//! commits that added classes and aging. One rule differs: in Linux a younger request that
//! continues the batch can hide an aged one. Here the oldest request of the class is served then,
//! in either direction. `async_depth` is omitted: it limits requests before they reach a scheduler.

use crate::policy::{Spec, SpecError};
use crate::request::{Class, DeviceCaps, Op, RequestId, RequestTable};
use crate::unit::Time;

use super::batches::{BatchState, DeadlineTunables, DirectionQueues};
use super::requests::{SectorKey, WaitingRequest};
use super::{Dispatch, Inserted, Scheduler};

/// Number of priority classes: real-time (index 0), best-effort and idle.
const CLASSES: usize = 3;

/// Time until the queue is run again after a run that withheld requests (`BLK_MQ_BUDGET_DELAY`).
const RERUN_DELAY: Time = Time::from_ms(3);

/// The tunables of `mq-deadline`, under the kernel's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqDeadlineTunables {
    /// The tunables that `deadline` has as well.
    pub deadline: DeadlineTunables,
    /// True if a request may be merged with a queued one that starts at its end (`front_merges`;
    /// 1). Few loads have such requests, and the search for them costs processor time.
    pub front_merges: bool,
    /// Time that a request may wait for higher classes (`prio_aging_expire`; 10,000 ms). A shorter
    /// time weakens the classes.
    pub prio_aging_expire: Time,
}

impl Default for MqDeadlineTunables {
    /// The defaults of Linux.
    fn default() -> MqDeadlineTunables {
        MqDeadlineTunables {
            deadline: DeadlineTunables::default(),
            front_merges: true,
            prio_aging_expire: Time::from_s(10),
        }
    }
}

impl MqDeadlineTunables {
    /// Parses the keys of `deadline`, `front_merges` (0 or 1) and `prio_aging_expire` (ms, up to an
    /// hour).
    ///
    /// # Errors
    /// A parameter is unknown, or a value is not a number or out of range.
    pub fn from_spec(spec: &Spec) -> Result<MqDeadlineTunables, SpecError> {
        let [a, b, c, d] = DeadlineTunables::KEYS;
        spec.only(&[a, b, c, d, "front_merges", "prio_aging_expire"])?;
        let aging_ms = spec.integer("prio_aging_expire", 10_000, 0..=3_600_000)?;
        Ok(MqDeadlineTunables {
            deadline: DeadlineTunables::from_known_keys(spec)?,
            front_merges: spec.integer("front_merges", 1, 0..=1)? == 1,
            prio_aging_expire: Time::from_ms(aging_ms),
        })
    }
}

/// The scheduler `mq-deadline`.
#[derive(Debug)]
pub struct MqDeadline {
    /// Deadlines, sizes of batches, and the time for aging.
    tunables: MqDeadlineTunables,
    /// Largest request of the device, in sectors.
    sectors_max: u32,
    /// Queued requests of each class, the highest first.
    classes: [DirectionQueues; CLASSES],
    /// Number of requests of each class in the device.
    in_device: [u32; CLASSES],
    /// The batch in progress, which all classes share.
    batch: BatchState,
    /// False after a run that withheld requests, until an arrival or `rerun_at`. A run of the queue
    /// is a series of dispatches until no request may be sent.
    may_run: bool,
    /// Time of the next run for withheld requests; `None` while none is planned. An earlier run,
    /// which an arrival causes, does not change it.
    rerun_at: Option<Time>,
}

/// A request to dispatch, and the batch as it is afterwards.
struct Choice {
    /// Index of the request's class.
    class: usize,
    /// Its position in the queue of its direction.
    key: SectorKey,
    /// The batch after the dispatch of the request.
    batch: BatchState,
}

impl MqDeadline {
    /// Creates the scheduler for a device with these properties.
    pub fn new(caps: &DeviceCaps, tunables: MqDeadlineTunables) -> MqDeadline {
        MqDeadline {
            tunables,
            sectors_max: caps.request_sectors_max,
            classes: Default::default(),
            in_device: [0; CLASSES],
            batch: BatchState::new(&tunables.deadline),
            may_run: true,
            rerun_at: None,
        }
    }

    /// Returns true if requests wait, and all of the highest class with requests are in the device.
    fn withholds(&self) -> bool {
        self.queued() > 0
            && self.busy_classes().next().is_some_and(|class| self.classes[class].count() == 0)
    }

    /// Ends the run of the queue if it withholds requests and none is aged, and plans the next run
    /// unless one is planned. Otherwise the queue may run.
    fn update_run(&mut self, now: Time, requests: &RequestTable) {
        self.may_run = !self.withholds() || self.choose_aged(now, requests).is_some();
        if !self.may_run {
            self.rerun_at.get_or_insert(now + RERUN_DELAY);
        }
    }

    /// Chooses a request of the highest class that has any, queued or in the device. `None` without
    /// one, or while all of them are in the device: lower classes are withheld.
    fn choose_highest(&self, now: Time, requests: &RequestTable) -> Option<Choice> {
        self.choose_of(self.busy_classes().next()?, now, requests)
    }

    /// Chooses an aged request, of best-effort before idle. `None` without one, or if fewer than
    /// two classes have requests, so that none is withheld. Best-effort takes part even as the
    /// highest class with requests: its aged requests are not passed by idle ones. Real-time
    /// requests are withheld for no class, and need no aging.
    fn choose_aged(&self, now: Time, requests: &RequestTable) -> Option<Choice> {
        // With one busy class, nothing is withheld.
        self.busy_classes().nth(1)?;
        let mut classes = self.busy_classes().filter(|&class| class > Class::RealTime as usize);
        classes.find_map(|class| self.choose_aged_of(class, now, requests))
    }

    /// Chooses an aged request of this class, which has waited `prio_aging_expire` or longer;
    /// `None` without one. It is the request that the batch serves next, if that is aged, and
    /// otherwise the oldest of both directions.
    fn choose_aged_of(&self, class: usize, now: Time, requests: &RequestTable) -> Option<Choice> {
        let aging = self.tunables.prio_aging_expire;
        let queues = &self.classes[class];
        let oldest = [Op::Read, Op::Write].into_iter().filter_map(|op| {
            let (key, waiting) = queues.queued[op as usize].oldest(requests)?;
            Some((waiting.arrived, op, key))
        });
        let (arrived, op, key) = oldest.min_by_key(|&(arrived, ..)| arrived)?;
        if arrived + aging > now {
            return None;
        }
        let is_aged = |choice: &Choice| {
            let waiting = queues.queued[choice.batch.direction as usize].waiting(choice.key);
            waiting.is_some_and(|waiting| waiting.arrived + aging <= now)
        };
        self.choose_of(class, now, requests).filter(is_aged).or_else(|| {
            let mut batch = self.batch;
            batch.begin_batch(op);
            Some(Choice { class, key, batch })
        })
    }

    /// Classes with requests, queued or in the device, the highest first.
    fn busy_classes(&self) -> impl Iterator<Item = usize> {
        (0..CLASSES).filter(|&class| self.in_device[class] > 0 || self.classes[class].count() > 0)
    }

    /// Chooses the next request of this class; `None` if it has no queued one.
    fn choose_of(&self, class: usize, now: Time, requests: &RequestTable) -> Option<Choice> {
        let mut batch = self.batch;
        let queues = &self.classes[class];
        let key = batch.choose_request(queues, &self.tunables.deadline, now, requests)?;
        Some(Choice { class, key, batch })
    }
}

impl Scheduler for MqDeadline {
    /// Adds a request to the queue of its class and direction, merged with a neighbour if possible.
    fn insert(&mut self, now: Time, id: RequestId, requests: &mut RequestTable) -> Inserted {
        let request = &requests[id];
        let queues = &mut self.classes[request.priority.class as usize];
        let queued = &mut queues.queued[request.op as usize];
        // Without front merges, the request is merged only with one that ends where it starts.
        let inserted = if self.tunables.front_merges
            || queued.merges_at_its_start(id, requests, self.sectors_max)
        {
            queued.insert_or_merge(now, id, requests, self.sectors_max)
        } else {
            queued.insert(WaitingRequest { id, arrived: now }, requests);
            Inserted::Queued
        };
        self.update_run(now, requests);
        inserted
    }

    /// Sends an aged request, or the next one of the highest class with requests. While that class
    /// has all its requests in the device, returns the time of the next run. `Nothing` if no
    /// request is queued.
    fn dispatch(&mut self, now: Time, requests: &RequestTable) -> Dispatch {
        self.may_run |= self.rerun_at.take_if(|at| *at <= now).is_some();
        let choice = match self.may_run {
            true => self.choose_aged(now, requests).or_else(|| self.choose_highest(now, requests)),
            false => None,
        };
        let Some(choice) = choice else {
            if self.queued() == 0 {
                return Dispatch::Nothing;
            }
            // Requests wait, and a higher class has all its requests in the device.
            self.may_run = false;
            return Dispatch::WaitUntil(*self.rerun_at.get_or_insert(now + RERUN_DELAY));
        };
        self.batch = choice.batch;
        self.in_device[choice.class] += 1;
        let queues = &mut self.classes[choice.class];
        let id = queues.take(choice.batch.direction, choice.key, requests);
        self.update_run(now, requests);
        Dispatch::Request(id)
    }

    /// Removes the request from the count of its class in the device. If requests are withheld, the
    /// runs of the queue that were due until now had no effect, since this request was in the
    /// device. The next run is then the first one after now, in steps of `RERUN_DELAY`.
    fn complete(&mut self, now: Time, id: RequestId, requests: &RequestTable) {
        if !self.may_run
            && let Some(at) = &mut self.rerun_at
        {
            while *at <= now {
                *at += RERUN_DELAY;
            }
        }
        self.in_device[requests[id].priority.class as usize] -= 1;
    }

    /// Number of requests that are not in the device.
    fn queued(&self) -> usize {
        self.classes.iter().map(DirectionQueues::count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SchedulerBench, caps, read, write};
    use super::*;
    use crate::request::{Priority, Request};

    fn mq_deadline(tunables: MqDeadlineTunables) -> SchedulerBench {
        SchedulerBench::new(MqDeadline::new(&caps(), tunables))
    }

    fn of_class(class: Class, request: Request) -> Request {
        Request { priority: Priority { class, level: 4 }, ..request }
    }

    /// Tunables by which each request is a batch of its own.
    fn single() -> MqDeadlineTunables {
        let deadline = DeadlineTunables { fifo_batch: 1, ..DeadlineTunables::default() };
        MqDeadlineTunables { deadline, ..MqDeadlineTunables::default() }
    }

    /// Requests are numbered in the order of arrival, all at 0 ms. Real-time: 0 at sector 9000, 4
    /// at 100. Best-effort: 1 (a write) at 50, 3 at 8000, 5 at 20. Idle: 2 at 7000.
    ///
    /// The head starts at 0, so that real-time comes upwards: 4, 0. As long as one of the two is in
    /// the device, nothing else goes: `complete` of both precedes 5, and the next run at 3 ms.
    /// Best-effort reads go upwards from 0, in a batch that has had 2 requests: 5, 3. No read is
    /// left: the write 1. The idle request goes when these have completed, at 6 ms.
    #[test]
    fn golden_order_of_three_classes() {
        let mut policy = mq_deadline(MqDeadlineTunables::default());
        policy.insert(Time::ZERO, of_class(Class::RealTime, read(9000, 8)));
        policy.insert(Time::ZERO, write(50, 8));
        policy.insert(Time::ZERO, of_class(Class::Idle, read(7000, 8)));
        policy.insert(Time::ZERO, read(8000, 8));
        policy.insert(Time::ZERO, of_class(Class::RealTime, read(100, 8)));
        policy.insert(Time::ZERO, read(20, 8));
        for (at_ms, ids) in [(0, [4, 0].as_slice()), (3, &[5, 3, 1]), (6, &[2])] {
            let now = Time::from_ms(at_ms);
            for &id in ids {
                assert_eq!(policy.dispatch(now), Dispatch::Request(RequestId(id)));
            }
            let after = match at_ms {
                6 => Dispatch::Nothing,
                _ => Dispatch::WaitUntil(Time::from_ms(at_ms + 3)),
            };
            for &id in ids {
                assert_eq!(policy.dispatch(now), after, "at {at_ms} ms, request {id}");
                policy.complete(now, RequestId(id));
            }
        }
        assert_eq!(policy.policy.queued(), 0);
    }

    /// Idle request 0 arrives at 0 s, best-effort ones 1 to 3 at 9 s, of which 1 is dispatched at
    /// once. With the default, 10 s, request 0 is aged at 10 s: it passes 2 and 3. A second idle
    /// request, 4, of 9 s is not aged. With 20 s request 0 is the first of its class only, since it
    /// is past `read_expire`.
    #[test]
    fn aged_request_passes_higher_classes() {
        let order = |prio_aging_expire| {
            let mut policy = mq_deadline(MqDeadlineTunables { prio_aging_expire, ..single() });
            policy.insert(Time::ZERO, of_class(Class::Idle, read(9000, 8)));
            for start in [100, 200, 300] {
                policy.insert(Time::from_s(9), read(start, 8));
            }
            policy.insert(Time::from_s(9), of_class(Class::Idle, read(50, 8)));
            assert_eq!(policy.dispatch(Time::from_s(9)), Dispatch::Request(RequestId(1)));
            let mut ids = std::vec::Vec::new();
            let mut in_device = std::vec::Vec::from([RequestId(1)]);
            let mut now = Time::from_s(10);
            while policy.policy.queued() > 0 {
                match (policy.dispatch(now), in_device.pop()) {
                    (Dispatch::Request(id), others) => {
                        ids.push(id.0);
                        in_device.extend(others.into_iter().chain([id]));
                    }
                    (_, Some(id)) => policy.complete(now, id),
                    (Dispatch::WaitUntil(time), None) => now = time,
                    (other, None) => panic!("{other:?} with requests that wait"),
                }
            }
            ids
        };
        assert_eq!(order(Time::from_s(10)), [0, 2, 3, 4]);
        assert_eq!(order(Time::from_s(20)), [2, 3, 0, 4]);
    }

    /// Best-effort requests 0 and 1 and the idle request 2 arrive at 0 s, the real-time one 3 at 10
    /// s. At 10 s, 0 to 2 have aged. Best-effort comes first among the aged ones, whether
    /// it is the highest class with requests or not. Without real-time requests, 2 would have to
    /// wait for the completions of 0 and 1, if it had not aged.
    #[test]
    fn aged_request_does_not_pass_aged_ones_of_a_higher_class() {
        let order = |prio_aging_expire, has_real_time| {
            let mut policy = mq_deadline(MqDeadlineTunables { prio_aging_expire, ..single() });
            policy.insert(Time::ZERO, read(100, 8));
            policy.insert(Time::ZERO, read(200, 8));
            policy.insert(Time::ZERO, of_class(Class::Idle, read(50, 8)));
            if has_real_time {
                policy.insert(Time::from_s(10), of_class(Class::RealTime, read(9000, 8)));
            }
            let dispatches = [(); 4].map(|()| policy.dispatch(Time::from_s(10)));
            dispatches.map(|dispatch| match dispatch {
                Dispatch::Request(id) => Some(id.0),
                _ => None,
            })
        };
        let ten = Time::from_s(10);
        assert_eq!(order(ten, true), [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(order(ten, false), [Some(0), Some(1), Some(2), None]);
        assert_eq!(order(Time::ZERO, false), [Some(0), Some(1), Some(2), None]);
    }

    /// The real-time read 0 is in the device from 0 s on, in a batch of reads. Of the best-effort
    /// requests the write 1 arrives at 0 s and the read 2 at 1 s; both have aged at 11 s. The batch
    /// would go on with the read 3, which has not aged. Thus the oldest goes: 1, then 2. The read 3
    /// waits for the real-time class.
    #[test]
    fn oldest_aged_request_is_served_in_either_direction() {
        let mut policy = mq_deadline(MqDeadlineTunables::default());
        policy.insert(Time::ZERO, of_class(Class::RealTime, read(500, 8)));
        assert_eq!(policy.dispatch(Time::ZERO), Dispatch::Request(RequestId(0)));
        policy.insert(Time::ZERO, write(50, 8));
        policy.insert(Time::from_s(1), read(100, 8));
        policy.insert(Time::from_s(11), read(10, 8));
        let now = Time::from_s(11);
        assert_eq!(policy.dispatch(now), Dispatch::Request(RequestId(1)));
        assert_eq!(policy.dispatch(now), Dispatch::Request(RequestId(2)));
        let next_run = now + Time::from_ms(3);
        assert_eq!(policy.dispatch(now), Dispatch::WaitUntil(next_run));
        policy.complete(now, RequestId(0));
        policy.complete(now, RequestId(1));
        assert_eq!(policy.dispatch(now), Dispatch::WaitUntil(next_run));
        assert_eq!(policy.dispatch(next_run), Dispatch::Request(RequestId(3)));
    }

    /// The real-time reads 0, 2 and 3 follow each other, 5 ms in the device each, with 0.1 ms in
    /// between. The best-effort read 1 waits from 1 ms on, and is looked at 4, 7, 10 and 13 ms. At
    /// 10 ms no real-time read is in the device: 2 ended at 9.9 ms, and 3 comes at 10.2 ms.
    #[test]
    fn withheld_request_is_served_at_the_next_run_after_a_completion() {
        let us = Time::from_us;
        let mut policy = mq_deadline(single());
        let real_time = |start| of_class(Class::RealTime, read(start, 8));
        policy.insert(us(0), real_time(0));
        assert_eq!(policy.dispatch(us(0)), Dispatch::Request(RequestId(0)));
        policy.insert(us(1_000), read(900, 8));
        assert_eq!(policy.dispatch(us(1_000)), Dispatch::WaitUntil(us(4_000)));
        assert_eq!(policy.dispatch(us(4_000)), Dispatch::WaitUntil(us(7_000)));
        policy.complete(us(5_000), RequestId(0));
        assert_eq!(policy.dispatch(us(5_000)), Dispatch::WaitUntil(us(7_000)));
        policy.insert(us(5_100), real_time(8));
        assert_eq!(policy.dispatch(us(5_100)), Dispatch::Request(RequestId(2)));
        // The device is full, for example: the run at 7 ms does not reach the scheduler.
        policy.complete(us(9_900), RequestId(2));
        assert_eq!(policy.dispatch(us(9_900)), Dispatch::WaitUntil(us(10_000)));
        assert_eq!(policy.dispatch(us(10_000)), Dispatch::Request(RequestId(1)));
        policy.insert(us(10_200), real_time(16));
        assert_eq!(policy.dispatch(us(10_200)), Dispatch::Request(RequestId(3)));
    }

    /// Two reads in the order of arrival, the second in front of the first.
    #[test]
    fn front_merges_can_be_turned_off() {
        let queued = |front_merges, starts: [u64; 3]| {
            let mut policy = mq_deadline(MqDeadlineTunables { front_merges, ..single() });
            for start in starts {
                policy.insert(Time::ZERO, read(start, 8));
            }
            policy.policy.queued()
        };
        assert_eq!(queued(true, [108, 100, 5000]), 1 + 1);
        assert_eq!(queued(false, [108, 100, 5000]), 2 + 1);
        assert_eq!(queued(false, [5000, 108, 100]), 2 + 1);
        assert_eq!(queued(false, [100, 108, 5000]), 1 + 1, "at the end of the first");
        assert_eq!(queued(false, [5000, 100, 108]), 1 + 1, "at the end of the second");
    }

    /// The same random requests of one class, a third of them writes, leave in the same order.
    #[test]
    fn one_class_is_served_as_by_deadline() {
        let (mut state, mut order) = (3, std::vec::Vec::new());
        let mut random = |below| crate::splitmix::next(&mut state) % below;
        let requests: std::vec::Vec<_> =
            (0..500).map(|_| (random(3), random(1_000) * 16, random(3) == 0, random(3))).collect();
        for name in ["deadline", "mq-deadline"] {
            let spec = Spec::parse(&std::format!("{name},read_expire=40,fifo_batch=4")).unwrap();
            let mut policy = SchedulerBench::of(super::super::build(&spec, &caps()).unwrap());
            let (mut now, mut ids) = (Time::ZERO, std::vec::Vec::new());
            for &(pause_ms, start, is_write, dispatches) in &requests {
                now += Time::from_ms(pause_ms);
                policy.insert(now, if is_write { write(start, 8) } else { read(start, 8) });
                for _ in 0..dispatches {
                    if let Dispatch::Request(id) = policy.dispatch(now) {
                        ids.push(id);
                    }
                }
            }
            order.push(ids);
        }
        assert!(order[0].len() > 300 && order[0] == order[1]);
    }

    #[test]
    fn tunables_are_read_from_the_spec() {
        let parse = |text| MqDeadlineTunables::from_spec(&Spec::parse(text).unwrap());
        let expected = MqDeadlineTunables {
            deadline: DeadlineTunables { writes_starved: 3, ..DeadlineTunables::default() },
            front_merges: false,
            prio_aging_expire: Time::from_ms(50),
        };
        let text = "mq-deadline,writes_starved=3,front_merges=0,prio_aging_expire=50";
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("mq-deadline"), Ok(MqDeadlineTunables::default()));
        assert!(parse("mq-deadline,front_merges=2").is_err());
        assert!(parse("mq-deadline,async_depth=1").is_err());
    }
}
