//! A profile of a modelled device, compared with the device.
//!
//! Devices with known behaviour are measured in virtual time as real storage is in real time. The
//! resulting description must take the device's times, in measured cells and between them.

use std::convert::Infallible;
use std::path::Path;

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::{SECTOR_BYTES, Time};
use readpath_models::fields::toml_text;
use readpath_models::measure::{
    CellLimits, MeasurementCell, PositionGenerator, ProfileAccess, ProfileReliability,
    ProfileSample, RequestExecutor, StorageShape, cells, describe, measure,
};
use readpath_models::measured::MeasuredDevice;
use readpath_models::measured::description::StorageDescription;
use readpath_models::{BoxedDevice, registry};

/// A modelled device as the storage to measure.
struct Modelled {
    device: BoxedDevice,
    now: Time,
}

impl RequestExecutor for Modelled {
    type Error = Infallible;

    fn now_ns(&self) -> u64 {
        self.now.ns()
    }

    fn start(&mut self, offset: u64, bytes: u64, ticket: usize) -> Result<(), Infallible> {
        let (start, sectors) = (offset / SECTOR_BYTES, (bytes / SECTOR_BYTES) as u32);
        let id = RequestId(ticket as u32);
        self.device.submit(self.now, DeviceRequest { id, op: Op::Read, start, sectors });
        Ok(())
    }

    fn wait(&mut self) -> Result<usize, Infallible> {
        loop {
            if let Some(completion) = self.device.poll(self.now) {
                return Ok(completion.id.0 as usize);
            }
            self.now = self.device.next_event().expect("a request is under way");
        }
    }
}

fn sample(device: BoxedDevice, cell: MeasurementCell, seed: u64) -> ProfileSample {
    let bytes = device.caps().sectors * SECTOR_BYTES;
    let limits = CellLimits { span_ns: 60_000_000_000, bytes: 4 << 30 };
    let mut probe = Modelled { device, now: Time::ZERO };
    let Ok(sample) = measure(cell, PositionGenerator::new(cell, bytes, seed), limits, &mut probe);
    sample
}

fn truth(text: &str) -> BoxedDevice {
    registry::build(&Spec::parse(text).unwrap(), 1).unwrap()
}

fn profile(text: &str) -> StorageDescription {
    let caps = truth(text).caps();
    let bytes = caps.sectors * SECTOR_BYTES;
    let samples: Vec<ProfileSample> = cells(bytes)
        .into_iter()
        .filter(|cell| cell.depth <= caps.depth_max)
        .enumerate()
        .map(|(index, cell)| sample(truth(text), cell, index as u64 + 100))
        .collect();
    let trust = ProfileReliability::of(&samples);
    assert_eq!(trust.contradictions, [], "{text}: no storage contradicts itself");
    let shape = StorageShape {
        name: text.to_owned(),
        bytes,
        request_bytes_max: 1 << 20,
        alignment_bytes: 512,
    };
    let described = describe(shape, &samples).expect("all cells were measured");
    // The written text is read back equal.
    let toml = described.to_toml(&["a comment".to_owned()]);
    let read =
        StorageDescription::of(&toml_text::parse(&toml, Path::new("described")).unwrap()).unwrap();
    assert_eq!(read.to_toml(&[]), described.to_toml(&[]));
    read
}

/// Checks that the described storage takes the device's time in each of these cells.
fn agrees(text: &str, within: f64, between: &[(ProfileAccess, u64, u32)]) -> StorageDescription {
    let described = profile(text);
    let depth_max = truth(text).caps().depth_max;
    let measured = cells(described.bytes).into_iter().filter(|cell| cell.depth <= depth_max);
    let between =
        between.iter().map(|&(access, bytes, depth)| MeasurementCell { access, bytes, depth });
    let mut worst = (1.0f64, None);
    for cell in measured.chain(between) {
        // A disk with readahead has several possible rhythms with two or four requests in flight,
        // depending on the start. Its times lie in this range.
        let theirs = (0..4).map(|seed| sample(truth(text), cell, seed).mean_ns);
        let (least, most) =
            theirs.fold((f64::MAX, 0.0f64), |(least, most), ns| (least.min(ns), most.max(ns)));
        let ours = sample(Box::new(MeasuredDevice::new(&described, 3)), cell, 8).mean_ns;
        println!("{text} {cell:?}: {least:.0} to {most:.0} ns, described {ours:.0} ns");
        let ratio = (ours / most).max(least / ours);
        if ratio > worst.0 {
            worst = (ratio, Some(cell));
        }
    }
    assert!(worst.0 < 1.0 + within, "{text}: {:.3} at {:?}", worst.0, worst.1);
    described
}

const BETWEEN: [(ProfileAccess, u64, u32); 5] = [
    (ProfileAccess::Random, 32 << 10, 1),
    (ProfileAccess::Random, 128 << 10, 6),
    (ProfileAccess::Random, 4 << 10, 24),
    (ProfileAccess::Following, 128 << 10, 1),
    (ProfileAccess::Following, 512 << 10, 3),
];

#[test]
fn profile_of_an_ssd_reproduces_the_drive() {
    let described = agrees("ssd", 0.10, &BETWEEN);
    assert!(!described.is_rotational);
}

#[test]
fn profile_of_a_hard_disk_reproduces_the_disk() {
    let described = agrees("hdd", 0.10, &BETWEEN);
    assert!(described.is_rotational);
}

#[test]
fn profile_of_an_nfs_mount_reproduces_the_mount() {
    let described = agrees("nfs:ssd", 0.10, &BETWEEN);
    assert!(!described.is_rotational);
}
