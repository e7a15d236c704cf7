//! RAID-0, compared with closed forms.

use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, RequestId,
};
use readpath_core::unit::Time;
use readpath_models::raid0::Raid0;
use readpath_models::{BoxedDevice, Device};

/// A member that takes 1 ms per request, all in parallel, and fails at given sectors.
struct Plain {
    sectors: u64,
    queue: Vec<(Time, DeviceRequest)>,
    outcome: fn(&DeviceRequest) -> Outcome,
}

fn plain(sectors: u64, outcome: fn(&DeviceRequest) -> Outcome) -> BoxedDevice {
    Box::new(Plain { sectors, queue: Vec::new(), outcome })
}

impl Device for Plain {
    fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            sectors: self.sectors,
            request_sectors_max: 256,
            depth_max: 64,
            is_rotational: false,
            alignment_sectors: 1,
        }
    }
    fn submit(&mut self, now: Time, request: DeviceRequest) {
        self.queue.push((now + Time::from_ms(1), request));
    }
    fn flush(&mut self, now: Time, id: RequestId) {
        self.submit(now, DeviceRequest { id, op: Op::Write, start: 0, sectors: 0 });
    }
    fn next_event(&self) -> Option<Time> {
        self.queue.iter().map(|(at, _)| *at).min()
    }
    fn poll(&mut self, now: Time) -> Option<Completion> {
        let index = self.queue.iter().position(|(at, _)| *at <= now)?;
        let (at, request) = self.queue.remove(index);
        Some(Completion::at(at, request.id, (self.outcome)(&request)))
    }
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

fn array(members: usize, chunk_sectors: u32) -> Raid0 {
    Raid0::new((0..members).map(|_| plain(1 << 24, |_| Outcome::Done)).collect(), chunk_sectors)
}

fn read(id: u32, start: u64, sectors: u32) -> DeviceRequest {
    DeviceRequest { id: RequestId(id), op: Op::Read, start, sectors }
}

/// n readers at independent random offsets keep N (1 − (1 − 1/N)ⁿ) of N members busy.
#[test]
fn busy_members_follow_the_occupancy_formula() {
    let mut draw = Draw(1);
    for (members, readers) in [(12, 1), (12, 8), (12, 64), (4, 3), (100, 50)] {
        let rounds = 2_000;
        let mut busy = 0;
        for _ in 0..rounds {
            let mut array = array(members, 128);
            let chunks = array.caps().sectors / 128;
            for reader in 0..readers {
                array.submit(Time::ZERO, read(reader, draw.below(chunks) * 128, 128));
            }
            busy += array.members_busy();
        }
        let n = members as f64;
        let expected = n * (1.0 - (1.0 - 1.0 / n).powi(readers as i32));
        let measured = busy as f64 / f64::from(rounds);
        assert!((measured / expected - 1.0).abs() < 0.02, "{measured} against {expected}");
    }
}

/// Two aligned requests of at most a stripe fall on different members with probability 1 − 1/N.
#[test]
fn two_aligned_requests_meet_on_one_member_once_in_n() {
    let mut draw = Draw(2);
    for members in [2, 12, 100] {
        let rounds = 20_000;
        let mut apart = 0;
        for _ in 0..rounds {
            let mut array = array(members, 128);
            let places = array.caps().sectors / 32;
            array.submit(Time::ZERO, read(0, draw.below(places) * 32, 32));
            array.submit(Time::ZERO, read(1, draw.below(places) * 32, 32));
            apart += u32::from(array.members_busy() == 2);
        }
        let expected = 1.0 - 1.0 / members as f64;
        let measured = f64::from(apart) / f64::from(rounds);
        assert!((measured - expected).abs() < 0.012, "{measured} against {expected}");
    }
}

/// A request over all members is one request on each, and ends with the last of them.
#[test]
fn a_request_ends_with_its_last_part() {
    let mut array = array(12, 128);
    array.submit(Time::ZERO, read(7, 0, 256));
    assert_eq!(array.members_busy(), 2);
    assert_eq!(array.next_event(), Some(Time::from_ms(1)));
    let completion = array.poll(Time::from_ms(1)).unwrap();
    assert_eq!((completion.id, completion.outcome), (RequestId(7), Outcome::Done));
    assert_eq!(array.poll(Time::from_ms(1)), None);
    assert_eq!(array.next_event(), None);
}

/// An error on one member fails the request. A short result shortens it to the complete part.
#[test]
fn a_members_error_reaches_exactly_the_requests_that_needed_it() {
    let end = |request: &DeviceRequest| match request.start {
        0..128 => Outcome::Done,
        128..256 => Outcome::Short { bytes: 1_024 },
        _ => Outcome::Failed(DeviceError::Medium),
    };
    let mut array = Raid0::new(vec![plain(4_096, |_| Outcome::Done), plain(4_096, end)], 128);
    let outcome = |array: &mut Raid0, start, sectors| {
        array.submit(Time::ZERO, read(0, start, sectors));
        let at = array.next_event().unwrap();
        array.poll(at).unwrap().outcome
    };
    assert_eq!(outcome(&mut array, 0, 256), Outcome::Done);
    // Chunks 2 and 3: the first is complete on member 0, two sectors of the second arrived.
    assert_eq!(outcome(&mut array, 256, 256), Outcome::Short { bytes: 128 * 512 + 1_024 });
    assert_eq!(outcome(&mut array, 512, 256), Outcome::Failed(DeviceError::Medium));
    assert_eq!(outcome(&mut array, 512, 128), Outcome::Done);
}
