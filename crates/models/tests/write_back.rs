//! Write-back of a controller's cache: the requests and flushes that wait for it, and its errors.

use readpath_core::policy::Spec;
use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::Time;
use readpath_models::array::{Controller, ControllerParts};
use readpath_models::changing::Changing;
use readpath_models::{BoxedDevice, Device, registry};

const FAILED: Outcome = Outcome::Failed(DeviceError::Medium);

/// Sectors of 4 KiB.
const BLOCK: u64 = 8;

fn build(text: &str) -> BoxedDevice {
    registry::build(&Spec::parse(text).unwrap(), 7).unwrap_or_else(|error| panic!("{error}"))
}

/// Block that no write of `Timed` can store.
const BAD_BLOCK: u64 = 4;

/// A member of depth 2 that takes as many ms as the number of the first block says. Its flush takes
/// no time.
struct Timed(Vec<Completion>);

impl Device for Timed {
    fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            sectors: 1 << 20,
            request_sectors_max: 256,
            depth_max: 2,
            is_rotational: false,
            alignment_sectors: 1,
        }
    }

    fn submit(&mut self, now: Time, request: DeviceRequest) {
        let number = request.start / BLOCK;
        let outcome = if number == BAD_BLOCK { FAILED } else { Outcome::Done };
        self.0.push(Completion::at(now + Time::from_ms(number), request.id, outcome));
    }

    fn flush(&mut self, now: Time, id: RequestId) {
        self.0.push(Completion::at(now, id, Outcome::Done));
    }

    fn next_event(&self) -> Option<Time> {
        self.0.iter().map(|completion| completion.at).min()
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        let index = self.0.iter().position(|completion| completion.at <= now)?;
        Some(self.0.swap_remove(index))
    }
}

/// A controller that takes no time of its own except `miss`, with a volatile write cache of
/// `blocks` blocks.
fn controller(blocks: u64, miss: Time) -> BoxedDevice {
    let parts = ControllerParts {
        overhead: Time::ZERO,
        miss,
        link_bytes_per_second: None,
        cache_bytes: 0,
        caches_all_reads: false,
        line_sectors: BLOCK,
        readahead_sectors: 0,
        readahead_all_sectors: 0,
        readahead_after_sectors: 1,
        streams: 1,
        inactive_after_requests: 192,
        write_cache_bytes: blocks * 4_096,
        write_cache_survives_power_loss: false,
        depth_max: 100,
    };
    Box::new(Controller::new(Box::new(Timed(Vec::new())), parts))
}

fn block(id: u32, op: Op, number: u64) -> DeviceRequest {
    DeviceRequest { id: RequestId(id), op, start: number * BLOCK, sectors: BLOCK as u32 }
}

/// Takes all completions up to `until`.
fn completions_until(device: &mut BoxedDevice, until: Time) -> Vec<Completion> {
    let mut taken = Vec::new();
    while let Some(next) = device.next_event().filter(|next| *next <= until) {
        while let Some(completion) = device.poll(next) {
            taken.push(completion);
        }
    }
    taken
}

/// Takes all completions up to `until`: identifier and time in ms.
fn take_until(device: &mut BoxedDevice, until: Time) -> Vec<(u32, u64)> {
    let taken = completions_until(device, until);
    taken.iter().map(|completion| (completion.id.0, completion.at.ns() / 1_000_000)).collect()
}

/// Two writes of 30 and 10 ms are complete before the flush, and go to the member together. The
/// later one ends first. Another write of 10 ms comes every 5 ms, twice as fast as the member has
/// room for. The flush ends at 30 ms.
#[test]
fn flush_waits_for_all_earlier_writes_and_for_no_later_one() {
    const FLUSH: u32 = 1 << 31;
    let mut device = controller(1_000, Time::ZERO);
    device.submit(Time::ZERO, block(0, Op::Write, 30));
    device.submit(Time::ZERO, block(1, Op::Write, 10));
    assert_eq!(take_until(&mut device, Time::ZERO), [(0, 0), (1, 0)]);
    device.flush(Time::ZERO, RequestId(FLUSH));
    let mut flush_ms = Vec::new();
    for nth in 0..100 {
        let now = Time::from_ms(5 * nth);
        device.submit(now, block(2, Op::Write, 10));
        let taken = take_until(&mut device, now + Time::from_ms(4));
        flush_ms.extend(taken.iter().filter(|(id, _)| *id == FLUSH).map(|(_, ms)| *ms));
    }
    assert_eq!(flush_ms, [30]);
}

/// Four readers keep the processor busy: 2 ms for each read, of which the member then needs 1 ms.
/// A writer keeps one write in flight, and the cache has room for one. A write-back takes 3 ms and
/// no processor time. By hand: a write without room waits for one write-back, 3 ms, and before that
/// for at most one of the member's two places, 3 ms of a read.
#[test]
fn write_waits_for_one_write_back_however_many_reads_are_queued() {
    const WRITE: u32 = 9;
    let mut device = controller(1, Time::from_ms(2));
    let mut written = vec![0];
    for id in 0..4 {
        device.submit(Time::ZERO, block(id, Op::Read, 1));
    }
    device.submit(Time::ZERO, block(WRITE, Op::Write, 3));
    for ms in 0..300 {
        let now = Time::from_ms(ms);
        for (id, at_ms) in take_until(&mut device, now) {
            let is_write = id == WRITE;
            written.extend(is_write.then_some(at_ms));
            let (op, number) = if is_write { (Op::Write, 3) } else { (Op::Read, 1) };
            device.submit(now, block(id, op, number));
        }
    }
    let longest = written.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(written.len() > 300 / 7 && longest <= Some(6), "{longest:?} of {written:?}");
}

/// Outcomes of requests one after the other; `None` is a flush. Each waits for the one before, and
/// a second more.
fn outcomes(device: &mut BoxedDevice, requests: &[Option<DeviceRequest>]) -> Vec<Outcome> {
    let mut now = Time::ZERO;
    let mut outcome_of = |request: &Option<DeviceRequest>| {
        match *request {
            Some(request) => device.submit(now, request),
            None => device.flush(now, RequestId(1 << 31)),
        }
        let outcome = loop {
            now = device.next_event().expect("a request is in flight");
            if let Some(completion) = device.poll(now) {
                break completion.outcome;
            }
        };
        let idle_end = now + Time::from_ms(1_000);
        take_until(device, idle_end);
        now = idle_end;
        outcome
    };
    requests.iter().map(&mut outcome_of).collect()
}

/// The first 4 KiB of the disk are bad. RFC 1813 has the server answer `COMMIT` with `NFS3ERR_IO`,
/// and fsync(2) fails with `EIO`. The data are gone, so the flush after that one succeeds.
#[test]
fn next_flush_reports_a_lost_write_once() {
    let done = Outcome::Done;
    let write = |number| Some(block(0, Op::Write, number));
    for device in ["nfs:faulty:hdd", "array:1xfaulty:hdd"] {
        let text = format!("{device},faulty:hdd.bad_from=0,faulty:hdd.bad_bytes=4096");
        let requests = [write(0), None, None, write(500), None];
        let outcomes = outcomes(&mut build(&text), &requests);
        assert_eq!(outcomes, [done, FAILED, done, done, done], "{device}");
    }
}

/// A write of 30 ms succeeds, and one that arrives at 1 ms fails at 5 ms. The flush at 0 covers the
/// first write only, and the one at 6 ms both. Each ends at 30 ms.
#[test]
fn flush_reports_the_lost_writes_before_it_only() {
    const FLUSHES: [RequestId; 2] = [RequestId(1 << 31), RequestId((1 << 31) + 1)];
    let mut device = controller(1_000, Time::ZERO);
    device.submit(Time::ZERO, block(0, Op::Write, 30));
    assert_eq!(take_until(&mut device, Time::ZERO), [(0, 0)]);
    device.flush(Time::ZERO, FLUSHES[0]);
    take_until(&mut device, Time::ZERO);
    device.submit(Time::from_ms(1), block(1, Op::Write, BAD_BLOCK));
    assert_eq!(take_until(&mut device, Time::from_ms(5)), [(1, 1)]);
    device.flush(Time::from_ms(6), FLUSHES[1]);
    let end = Time::from_ms(30);
    let outcomes = [Outcome::Done, FAILED];
    let expected = [0, 1].map(|nth| Completion::at(end, FLUSHES[nth], outcomes[nth]));
    assert_eq!(completions_until(&mut device, end), expected);
}

/// The shingled member has memory of its own, and its log cannot be written. The array's memory
/// survives a loss of power, so the first flush ends after the overhead of 50 us. It has the member
/// flushed, and the next flush of the host reports the error once.
#[test]
fn array_flushes_members_with_memory_of_their_own() {
    let member = "smr:faulty:hdd,hdd.drive=archive,faulty.bad_from=0,faulty.bad_bytes=4096";
    let requests = [Some(block(0, Op::Write, 0)), None, None, None];
    let done = Outcome::Done;
    let mut array = build(&format!("array:1x{member}"));
    assert_eq!(outcomes(&mut array, &requests), [done, done, FAILED, done]);
    let id = RequestId(1 << 31);
    let mut array = build(&format!("array:1x{member}"));
    array.submit(Time::ZERO, block(0, Op::Write, 0));
    let written_time = completions_until(&mut array, Time::from_ms(1))[0].at;
    array.flush(written_time, id);
    let flushed_time = written_time + Time::from_us(50);
    let completions = completions_until(&mut array, Time::from_ms(1_000));
    assert_eq!(completions, [Completion::at(flushed_time, id, done)]);
}

/// The second device loses a write. Its flush ends at once, and the one of the first device after a
/// round trip of a second. The flush of both has failed.
#[test]
fn changing_device_reports_the_failed_flush_of_a_member() {
    let lossy = build("smr:faulty:hdd,hdd.drive=archive,faulty.bad_from=0,faulty.bad_bytes=4096");
    let spec = Spec::parse("changing,at=0").unwrap();
    let changing = Changing::from_spec(&spec, build("nfs:ssd,rtt=1s"), lossy).unwrap();
    let requests = [Some(block(0, Op::Write, 0)), None, None];
    let outcomes = outcomes(&mut (Box::new(changing) as BoxedDevice), &requests);
    assert_eq!(outcomes, [Outcome::Done, FAILED, Outcome::Done]);
}
