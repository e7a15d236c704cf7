//! Random 4 KiB reads on a simulated device alone, at several queue depths.

use std::fmt::{self, Display};

use divan::Bencher;
use divan::counter::ItemsCount;
use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use readpath_models::registry;

use crate::sized;

const DEVICES: [&str; 6] = ["ssd", "nvme", "raid0:12xssd", "raid0:4xnvme", "hdd", "hdd,drive=sata"];

/// A device and a queue depth.
struct DeviceCase {
    device: &'static str,
    depth: u32,
}

impl Display for DeviceCase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}, {} under way", self.device, self.depth)
    }
}

fn cases() -> impl Iterator<Item = DeviceCase> {
    DEVICES.into_iter().flat_map(|device| [1, 32, 256].map(|depth| DeviceCase { device, depth }))
}

#[divan::bench(args = cases(), sample_count = 20)]
fn requests(bencher: Bencher, case: &DeviceCase) {
    let spec = Spec::parse(case.device).expect("the devices above are well-formed");
    let mut device = registry::build(&spec, 1).expect("the devices above exist");
    let caps = device.caps();
    let depth = case.depth.min(caps.depth_max);
    let requests = sized(100_000) as u32;
    let (mut state, mut now) = (1_u64, Time::ZERO);
    bencher.counter(ItemsCount::new(requests)).bench_local(|| {
        let (mut begun, mut done) = (0, 0);
        while done < requests {
            while begun < requests && begun - done < depth {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                let place = (u128::from(state) * u128::from(caps.sectors / 8)) >> 64;
                let (id, start) = (RequestId(begun), place as u64 * 8);
                device.submit(now, DeviceRequest { id, op: Op::Read, start, sectors: 8 });
                begun += 1;
            }
            now = device.next_event().expect("something is under way");
            while device.poll(now).is_some() {
                done += 1;
            }
        }
    });
}
