//! One contract for every modelled device.
//!
//! Each request completes exactly once, not before its submission, in any order. Time never goes
//! backwards. A request at the last sector and one of the largest size work. An idle device has no
//! next event. Equal requests with equal seeds take equal times, to the nanosecond.

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, Outcome, RequestId};
use readpath_core::unit::Time;
use readpath_models::parameter::ParameterOrigin;
use readpath_models::{BoxedDevice, registry};

/// Every device of the registry, alone and composed.
const DEVICES: &[&str] = &[
    "hdd",
    "hdd,drive=sata",
    "smr",
    "smr,write_cache=0,cache=64m,map=40",
    "smr:hdd,hdd.drive=sata,idle=0",
    "ssd",
    "ssd520",
    "nvme5",
    "nvme",
    "nvme,map_span=64m",
    "nvme,spare=3",
    "mqsim",
    "raid0:4xssd",
    "raid0:2xssd+1xnvme,stripe=4k",
    "array:4xssd",
    "array:4xssd,cache=2m,write_cache=0,readahead_after=0",
    "array",
    "raid0:2xhdd+1xssd",
    "nfs",
    "nfs:ssd",
    "nfs:raid0:2xssd,rsize=64k,slots=3,jitter=5ms",
    "object",
    "object,connections=3,get_rate=50",
    "gp2",
    "gp2,io_credits=40,request_max=4m",
    "gp3",
    "st1",
    "sc1,rate_credits=0",
    "measured",
    "faulty:nvme,slow_every=3",
    "faulty:nvme,slow_every=3,slow_from=5ms",
    "changing:nvme+raid0:3xhdd,at=10ms",
];

const SEED: u64 = 20_100_224;

fn build(text: &str, seed: u64) -> BoxedDevice {
    registry::build(&Spec::parse(text).unwrap(), seed).unwrap_or_else(|error| panic!("{error}"))
}

/// A separate small generator, so that changes elsewhere do not change the load.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

/// Keeps `depth` requests in the device until `count` are done. Returns id, submission and
/// completion of each in order of completion.
fn drive(
    device: &mut BoxedDevice,
    depth: u32,
    count: u32,
    draw_seed: u64,
) -> Vec<(u32, Time, Time)> {
    let caps = device.caps();
    let mut draw = Draw(draw_seed);
    let mut now = Time::ZERO;
    let mut submitted: Vec<Option<Time>> = Vec::new();
    let mut done = Vec::new();
    let mut in_flight = 0;
    while done.len() < count as usize {
        while in_flight < depth && submitted.len() < count as usize {
            let unit = u64::from(caps.alignment_sectors);
            let most = u64::from(caps.request_sectors_max) / unit;
            let sectors = match draw.below(8) {
                0 => most * unit,
                1..=3 => (1 + draw.below(most)) * unit,
                _ => 8,
            };
            let places = (caps.sectors - sectors) / unit;
            let start = if draw.below(10) == 0 { places } else { draw.below(places + 1) } * unit;
            let op = if draw.below(4) == 0 { Op::Write } else { Op::Read };
            let id = RequestId(submitted.len() as u32);
            device.submit(now, DeviceRequest { id, op, start, sectors: sectors as u32 });
            submitted.push(Some(now));
            in_flight += 1;
        }
        let next = device.next_event().expect("requests are in flight");
        assert!(next >= now, "time goes back from {now} to {next}");
        now = next;
        while let Some(completion) = device.poll(now) {
            let id = completion.id.0;
            let since = submitted[id as usize].take().expect("completes once");
            assert!(completion.at >= since, "request {id} ended before it came");
            assert!(completion.at <= now, "request {id} ends in the future");
            assert_eq!(completion.outcome, Outcome::Done);
            done.push((id, since, completion.at));
            in_flight -= 1;
        }
    }
    assert_eq!(in_flight, 0);
    settle(device, now);
    done
}

/// With nothing in flight a device may finish its own work, and then has no next event.
fn settle(device: &mut BoxedDevice, mut now: Time) {
    for _ in 0..1_000_000 {
        let Some(next) = device.next_event() else { return };
        assert!(next >= now);
        now = next;
        assert_eq!(device.poll(now), None, "a completion without a request");
    }
    panic!("an idle device still expects something");
}

#[test]
fn every_request_completes_once_in_time_at_every_depth() {
    for name in DEVICES {
        let depth_max = build(name, SEED).caps().depth_max;
        for depth in [1, 2, 7, 31, 256, 2_000].map(|depth: u32| depth.min(depth_max)) {
            println!("{name} at depth {depth}");
            let done = drive(&mut build(name, SEED), depth, 400, 99);
            assert_eq!(done.len(), 400, "{name} at depth {depth}");
            assert!(
                done.windows(2).all(|pair| pair[0].2 <= pair[1].2),
                "{name}: out of time order"
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_times() {
    for name in DEVICES {
        let first = drive(&mut build(name, SEED), 16, 500, 5);
        let second = drive(&mut build(name, SEED), 16, 500, 5);
        assert_eq!(first, second, "{name}");
    }
}

#[test]
fn flush_completes_once_alone_and_among_requests() {
    for name in DEVICES {
        let mut device = build(name, SEED);
        let mut now = Time(5);
        for id in 0..40 {
            let mut under_way = vec![RequestId((1 << 31) + id)];
            device.flush(now, under_way[0]);
            if id % 4 > 0 {
                let (op, start) = (Op::Write, u64::from(id) * 4096);
                under_way.push(RequestId(id));
                device.submit(now, DeviceRequest { id: RequestId(id), op, start, sectors: 8 });
            }
            while !under_way.is_empty() {
                now = device.next_event().expect("something is under way");
                while let Some(completion) = device.poll(now) {
                    let is_known = under_way.iter().position(|id| *id == completion.id);
                    under_way.remove(is_known.unwrap_or_else(|| panic!("{name}: ends twice")));
                    assert!(completion.at <= now, "{name}");
                }
            }
        }
        settle(&mut device, now);
    }
}

#[test]
fn capabilities_are_valid_and_a_new_device_is_idle() {
    for name in DEVICES {
        let device = build(name, SEED);
        let caps = device.caps();
        assert!(caps.sectors > 0 && caps.depth_max > 0, "{name}: {caps:?}");
        assert!(caps.request_sectors_max >= 8, "{name}: {caps:?}");
        assert!([1, 8].contains(&caps.alignment_sectors), "{name}: {caps:?}");
        assert_eq!(device.next_event(), None, "{name}");
    }
}

#[test]
fn early_poll_returns_nothing_and_changes_nothing() {
    for name in DEVICES {
        let mut device = build(name, SEED);
        let request = DeviceRequest { id: RequestId(3), op: Op::Read, start: 0, sectors: 8 };
        device.submit(Time(1_000), request);
        assert_eq!(device.poll(Time(1_000)), None, "{name}");
        let mut patient = build(name, SEED);
        patient.submit(Time(1_000), request);
        let finish = |device: &mut BoxedDevice, steps: u64| loop {
            let next = device.next_event().unwrap();
            for early in 1..steps {
                let early = Time(1_000 + (next.ns() - 1_000) * early / steps);
                let _ = device.poll(early).map(|completion| panic!("early: {completion:?}"));
            }
            if let Some(completion) = device.poll(next) {
                return completion;
            }
        };
        assert_eq!(finish(&mut device, 1), finish(&mut patient, 1), "{name}");
    }
}

#[test]
fn every_parameter_has_a_source_and_reads_back() {
    for name in DEVICES {
        let spec = Spec::parse(name).unwrap();
        for parameter in registry::describe(&spec).unwrap() {
            assert!(parameter.source.len() > 4, "{name}: {parameter:?}");
            let is_given = name.contains(parameter.name.rsplit('.').next().unwrap());
            let is_named =
                parameter.origin != ParameterOrigin::Given || parameter.name.ends_with("name");
            assert!(is_named || is_given, "{name}: how come by? {parameter:?}");
            let mut again = spec.clone();
            again.parameters.insert(parameter.name.clone(), parameter.value.clone());
            assert!(registry::build(&again, SEED).is_ok(), "{name}: {parameter:?}");
        }
    }
}
