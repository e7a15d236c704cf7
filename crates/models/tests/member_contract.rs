//! Devices built on other devices obey the contract towards their members.
//!
//! The member checks its user: time never goes backwards nor passes the next event. No request is
//! out of range, too large, misaligned or beyond the depth. No request has the id of one in flight.

use std::collections::BTreeSet;

use readpath_core::policy::Spec;
use readpath_core::request::{Completion, DeviceCaps, DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use readpath_models::array::{Controller, ControllerParts};
use readpath_models::changing::Changing;
use readpath_models::faulty::{FaultEffect, FaultRule, FaultSelector, Faulty};
use readpath_models::nfs::Nfs;
use readpath_models::raid0::Raid0;
use readpath_models::{BoxedDevice, Device, registry};

/// A device that checks the contract of its user.
struct Strict {
    inner: BoxedDevice,
    now: Time,
    in_flight: BTreeSet<RequestId>,
    flushes: BTreeSet<RequestId>,
}

impl Strict {
    fn new(inner: BoxedDevice) -> Strict {
        let (in_flight, flushes) = (BTreeSet::new(), BTreeSet::new());
        Strict { inner, now: Time::ZERO, in_flight, flushes }
    }
}

fn strict(text: &str) -> BoxedDevice {
    let inner = registry::build(&Spec::parse(text).unwrap(), 3).unwrap();
    Box::new(Strict::new(inner))
}

impl Strict {
    fn at(&mut self, now: Time) {
        assert!(now >= self.now, "time goes back from {} to {now}", self.now);
        let next = self.inner.next_event();
        assert!(next.is_none_or(|next| now <= next), "time passes {next:?} to {now}");
        self.now = now;
    }
}

impl Device for Strict {
    fn caps(&self) -> DeviceCaps {
        self.inner.caps()
    }

    fn submit(&mut self, now: Time, request: DeviceRequest) {
        self.at(now);
        let caps = self.caps();
        assert!(request.sectors > 0 && request.sectors <= caps.request_sectors_max);
        assert!(request.end() <= caps.sectors, "{request:?} is outside");
        assert!(self.in_flight.insert(request.id), "{:?} is in flight already", request.id);
        assert!(self.in_flight.len() <= caps.depth_max as usize, "one too many");
        self.inner.submit(now, request);
    }

    fn flush(&mut self, now: Time, id: RequestId) {
        self.at(now);
        assert!(!self.in_flight.contains(&id), "{id:?} is a request's name");
        assert!(self.flushes.insert(id), "{id:?} is under way already");
        self.inner.flush(now, id);
    }

    fn next_event(&self) -> Option<Time> {
        self.inner.next_event()
    }

    fn poll(&mut self, now: Time) -> Option<Completion> {
        self.at(now);
        let completion = self.inner.poll(now)?;
        assert!(self.in_flight.remove(&completion.id) || self.flushes.remove(&completion.id));
        Some(completion)
    }
}

fn users() -> Vec<(&'static str, BoxedDevice)> {
    let members = |text, count| (0..count).map(|_| strict(text)).collect();
    let controller = |readahead_sectors, caches_all_reads, inner| {
        let parts = ControllerParts {
            overhead: Time::from_us(30),
            miss: Time::from_us(200),
            link_bytes_per_second: Some(400_000_000),
            cache_bytes: 1 << 20,
            caches_all_reads,
            line_sectors: 128,
            readahead_sectors,
            readahead_all_sectors: 2_048,
            readahead_after_sectors: 1,
            streams: 4,
            inactive_after_requests: 192,
            write_cache_bytes: 1 << 20,
            write_cache_survives_power_loss: caches_all_reads,
            depth_max: 100,
        };
        Box::new(Controller::new(inner, parts))
    };
    let faults = [
        (FaultSelector::Every(3), FaultEffect::Delay(Time::from_ms(2))),
        (FaultSelector::Every(5), FaultEffect::Halve),
    ]
    .map(|(strikes, effect)| FaultRule { selector: strikes, effect, since: Time::ZERO });
    let turns = Spec::parse("changing,at=20ms").unwrap();
    let changing = Changing::from_spec(&turns, strict("nvme"), strict("hdd")).unwrap();
    let striped = Raid0::new(members("hdd", 3), 128);
    vec![
        ("raid0 of ssd", Box::new(Raid0::new(members("ssd,depth=3", 4), 24))),
        ("raid0 of hdd", Box::new(Raid0::new(members("hdd", 5), 128))),
        ("controller", controller(1_024, false, strict("hdd"))),
        ("controller that keeps all", controller(0, true, strict("nvme,depth=2"))),
        ("controller over raid0", controller(512, false, Box::new(striped))),
        ("nfs", Box::new(Nfs::from_spec(&Spec::plain("nfs"), strict("ssd"), 1).unwrap())),
        ("faulty", Box::new(Faulty::new(strict("nvme"), faults.to_vec(), 1))),
        ("changing", Box::new(changing)),
    ]
}

#[test]
fn composed_devices_use_members_as_the_contract_requires() {
    for (name, device) in users() {
        // The composed device is checked from above too.
        let mut device: BoxedDevice = Box::new(Strict::new(device));
        let caps = device.caps();
        let (mut state, mut now) = (5u64, Time::ZERO);
        let (mut begun, mut done, mut flushed) = (0u32, 0u32, 0u32);
        let mut draw = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((u128::from(state) * u128::from(limit)) >> 64) as u64
        };
        while done < 3_000 {
            while begun < 3_000 && begun - done < caps.depth_max.min(64) {
                let most = if draw(4) == 0 { caps.request_sectors_max.into() } else { 64 };
                let sectors = 1 + draw(most);
                // Mostly in four streams, some at random up to the last sector.
                let start = match draw(3) {
                    0 => draw(caps.sectors - sectors + 1),
                    _ => u64::from(begun % 4) * 1_000_000 + u64::from(begun / 4) * 64,
                };
                let op = if draw(5) == 0 { Op::Write } else { Op::Read };
                let sectors = sectors as u32;
                device.submit(now, DeviceRequest { id: RequestId(begun), op, start, sectors });
                begun += 1;
                if begun.is_multiple_of(100) {
                    device.flush(now, RequestId((1 << 31) + begun));
                }
            }
            now = device.next_event().unwrap_or_else(|| panic!("{name} forgot a request"));
            while let Some(completion) = device.poll(now) {
                let is_flush = completion.id.0 >= 1 << 31;
                *(if is_flush { &mut flushed } else { &mut done }) += 1;
            }
        }
        while flushed < 30 {
            now = device.next_event().unwrap_or_else(|| panic!("{name} forgot a flush"));
            flushed += u32::from(device.poll(now).is_some());
        }
    }
}
