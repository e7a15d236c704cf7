//! Volumes of a cloud, compared with the published durations of their bursts.

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use readpath_models::{BoxedDevice, registry};

/// Requests in flight.
const DEPTH: u32 = 32;

fn build(text: &str) -> BoxedDevice {
    registry::build(&Spec::parse(text).unwrap(), 1).unwrap_or_else(|error| panic!("{error}"))
}

/// Completes `count` adjacent reads of `sectors`. Calls `observe` with the time of each
/// completion, in seconds.
fn read(text: &str, sectors: u32, count: u64, observe: impl FnMut(f64)) {
    read_spaced(text, sectors, 1, count, observe);
}

/// Completes `count` reads of `sectors`. Their starts are `spacing` times that apart. Calls
/// `observe` as `read` does.
fn read_spaced(text: &str, sectors: u32, spacing: u64, count: u64, mut observe: impl FnMut(f64)) {
    let mut device = build(text);
    let positions = device.caps().sectors / u64::from(sectors);
    let (mut now, mut submitted, mut completed) = (Time::ZERO, 0, 0);
    while completed < count {
        while submitted < count && submitted - completed < u64::from(DEPTH) {
            let start = submitted * spacing % positions * u64::from(sectors);
            let id = RequestId(submitted as u32);
            device.submit(now, DeviceRequest { id, op: Op::Read, start, sectors });
            submitted += 1;
        }
        now = device.next_event().unwrap();
        while let Some(completion) = device.poll(now) {
            completed += 1;
            observe(completion.at.seconds());
        }
    }
}

/// Last completion before the interval between completions grows by a third: the end of the burst,
/// in seconds.
fn burst_seconds(text: &str, sectors: u32, count: u64) -> f64 {
    let (mut last, mut interval, mut end) = (0.0, f64::INFINITY, None);
    let mut observed = 0;
    read(text, sectors, count, |now| {
        observed += 1;
        if observed > DEPTH {
            if now - last > 1.3 * interval {
                end = end.or(Some(last));
            } else {
                interval = now - last;
            }
        }
        last = now;
    });
    end.expect("the burst ends")
}

/// The user guide's burst duration of gp2: the credits / (burst IOPS - 3 times the size in GiB),
/// with 5.4 million credits: 2,000, 2,400 and 3,600 s for 100, 250 and 500 GiB. A request of 64 MiB
/// counts as 256 I/Os of 256 KiB, and the limits on bytes are raised to keep the test short.
#[test]
fn gp2_bursts_as_long_as_published() {
    for (size, published_seconds) in [("100g", 2_000.0), ("250g", 2_400.0), ("500g", 3_600.0)] {
        let text = format!(
            "gp2,size={size},small_size=0,rate_max=64000m,burst_max=64000m,request_max=64m"
        );
        let seconds = burst_seconds(&text, 131_072, 60_000);
        assert!((seconds / published_seconds - 1.0).abs() < 0.002, "{size}: {seconds}");
    }
}

/// Published: 3,000 IOPS during the burst, then 3 for each GiB.
#[test]
fn gp2_serves_its_burst_and_its_baseline_of_requests() {
    let at = |text: &str, count| {
        let mut end = 0.0;
        read(text, 8, count, |now| end = now);
        count as f64 / end
    };
    assert!((at("gp2", 90_000) / 3_000.0 - 1.0).abs() < 0.001);
    assert!((at("gp2,io_credits=0", 9_000) / 300.0 - 1.0).abs() < 0.001);
    // At least 100, and above 1,000 GiB more than the burst.
    assert!((at("gp2,size=8g,io_credits=0", 9_000) / 100.0 - 1.0).abs() < 0.001);
    assert!((at("gp2,size=2t", 90_000) / 6_144.0 - 1.0).abs() < 0.001);
    assert!((at("gp3", 90_000) / 3_000.0 - 1.0).abs() < 0.001);
}

/// The user guide's times of a scan of a whole volume, in hours: st1 of 1, 2, 3 and 4 TiB 1.17,
/// 1.17, 1.75 and 2.33, and sc1 3.64, 3.64, 3.64 and 4.66. The bucket lasts for the whole scan.
#[test]
fn disk_volumes_are_scanned_in_the_published_time() {
    for (name, hours) in [("st1", [1.17, 1.17, 1.75, 2.33]), ("sc1", [3.64, 3.64, 3.64, 4.66])] {
        for (tib, published_hours) in (1_u64..).zip(hours) {
            let text = format!("{name},size={tib}t,request_max=64m");
            let mut end = 0.0;
            read(&text, 131_072, tib << 14, |now| end = now);
            let hours = end / 3_600.0;
            assert!((hours - published_hours).abs() < 0.006, "{name}, {tib} TiB: {hours}");
        }
    }
}

/// Published: 40 MiB/s for each TiB of st1 without credits, and 500 I/Os of up to 1 MiB a second.
#[test]
fn st1_without_credits_has_its_baseline() {
    let mut end = 0.0;
    read("st1,rate_credits=0", 2_048, 1_000, |now| end = now);
    assert!((1_000.0 / end / 40.0 - 1.0).abs() < 0.001, "{end}");
    // At 2 TiB, whose credits give 500 MiB/s.
    read("st1,size=2t", 8, 5_000, |now| end = now);
    assert!((5_000.0 / end / 500.0 - 1.0).abs() < 0.001, "{end}");
}

/// Published limits of gp2: 128 MiB/s up to 170 GiB. Larger volumes have 250 MiB/s, from 334 GiB on
/// also without credits, where 3 I/Os of 256 KiB for each GiB suffice. 200 GiB have 600 of them,
/// 150 MiB/s, without credits.
#[test]
fn gp2_has_the_published_rate_of_its_size() {
    for (options, published_mib) in [
        ("size=170g", 128.0),
        ("size=171g", 250.0),
        ("size=200g,io_credits=0", 150.0),
        ("size=334g,io_credits=0", 250.0),
    ] {
        let mut end = 0.0;
        read(&format!("gp2,{options}"), 512, 40_000, |now| end = now);
        let mib = 40_000.0 / 4.0 / end;
        assert!((mib / published_mib - 1.0).abs() < 0.003, "{options}: {mib}");
    }
}

/// Published of st1 and sc1: a random request takes the tokens of 1 MiB, and so does one below 32
/// KiB. Adjacent requests of at least 32 KiB share an I/O. `st1` of 1 TiB without credits has the
/// tokens of 40 I/Os a second. Requests of 64 KiB get 2.5 MiB/s at random and 40 MiB/s in order.
/// Requests of 16 KiB in order get 0.625 MiB/s.
#[test]
fn small_requests_of_a_disk_volume_take_the_tokens_of_a_mebibyte() {
    for (sectors, spacing, worked_mib) in [(128, 3, 2.5), (32, 1, 0.625), (128, 1, 40.0)] {
        let mut end = 0.0;
        read_spaced("st1,rate_credits=0", sectors, spacing, 6_400, |now| end = now);
        let mib = 6_400.0 * f64::from(sectors) / 2_048.0 / end;
        assert!((mib / worked_mib - 1.0).abs() < 0.005, "{sectors} by {spacing}: {mib}");
    }
}

/// A request of an idle volume finds its tokens, and takes the latency alone: 0.5 ms, and 8 ms on
/// disks. The next one leaves when the first has taken its time at the burst rate. The rates are
/// 3,000 a second, 128 KiB at 128 MiB/s, and 1 MiB at 250 MiB/s and at 80 MiB/s.
#[test]
fn request_alone_takes_the_latency() {
    for (text, sectors, first_ms, next_ms) in [
        ("gp2", 8, 0.5, 0.833_334),
        ("gp2", 256, 0.5, 1.476_563),
        ("gp3", 8, 0.5, 0.833_334),
        ("st1", 128, 8.0, 8.0),
        ("sc1", 8, 8.0, 20.5),
    ] {
        let mut ends = Vec::new();
        read(text, sectors, 2, |now| ends.push(now * 1e3));
        let has_ended = |nth: usize, ms: f64| (ends[nth] - ms).abs() < 1e-3;
        assert!(has_ended(0, first_ms) && has_ended(1, next_ms), "{text}: {ends:?}");
    }
}

#[test]
fn every_value_of_a_volume_changes_its_time() {
    let seconds = |text: &str, sectors| {
        let mut end = 0.0;
        read(text, sectors, 2_000, |now| end = now);
        end
    };
    let small = "gp2,io_credits=100";
    let large = "st1,rate_credits=0";
    for (base, option, sectors) in [
        (small, "size=400g", 8),
        (small, "iops_per_gib=9", 8),
        (small, "iops_min=1000", 8),
        (small, "iops_max=200", 8),
        (small, "burst_iops=300,io_credits=5000", 8),
        (small, "io_size=2k", 8),
        (small, "latency=9ms", 8),
        (large, "rate_per_tib=10m", 2_048),
        (large, "rate_max=10m", 2_048),
        ("st1", "rate_credits=0", 2_048),
        ("st1", "burst_per_tib=100m", 2_048),
        ("st1", "burst_max=100m", 2_048),
        ("st1", "merge_min=8k", 32),
        ("gp2", "small_size=50g", 512),
        ("gp2", "small_rate=50m", 512),
    ] {
        let options = format!("{base},{option}");
        let options = match option.contains("io_credits") {
            true => format!("gp2,{option}"),
            false => options,
        };
        assert_ne!(seconds(&options, sectors), seconds(base, sectors), "{option}");
    }
    assert_eq!(build("gp2,depth=7,request_max=8k").caps().depth_max, 7);
    assert_eq!(build("gp2,depth=7,request_max=8k").caps().request_sectors_max, 16);
    for text in ["gp2,iops_max=0", "gp2,iops_min=0", "st1,rate_max=0", "gp3,size=1", "sc1,color=1"]
    {
        assert!(registry::build(&Spec::parse(text).unwrap(), 1).is_err(), "{text}");
    }
}
