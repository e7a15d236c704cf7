//! Gains of remedies, measured on devices of known parallelism.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::programs::{
    DATA_BYTES, DIRECT_STREAM, MAPPED_STEPS, SCATTERED, SCATTERED_READS, STREAM, TOUCHES,
};
use crate::support::disk::{LoopDevice, Mounted};
use crate::support::{Scratch, has};
use crate::{SlowFile, can_watch, watch};

/// Number of recordings until the storage takes as long in the measurement: a busy machine delays
/// one of them more than the other.
const RUNS_MAX: usize = 6;

/// Device of `ms` milliseconds a request that works on `connections` requests at once.
pub(crate) fn device(ms: u32, connections: u32) -> String {
    let times = ["min", "p50", "p90", "p99", "max"];
    let times: String = times.iter().map(|name| format!("first_byte_{name}={ms}ms,")).collect();
    format!("object,{times}connections={connections},get_rate=64000")
}

/// Finding of a cause in an explanation of the recording with these options.
fn finding(scratch: &Scratch, options: &str, cause: &str) -> Option<Value> {
    let ran = scratch.run(&format!("explain reads.rec --json {options}"));
    ran.has_ended(0, options);
    let explanation: Value = serde_json::from_str(&ran.stdout).unwrap();
    let mut findings = explanation["findings"].as_array().unwrap().iter();
    findings.find(|finding| finding["cause"] == cause).cloned()
}

/// Finding about the depth, which must be there.
fn depth_finding(scratch: &Scratch, options: &str) -> Value {
    finding(scratch, options, "depth").expect("a finding about the depth")
}

/// By hand: 16 requests of 8 ms at once take a sixteenth of the time, on a device that works on one
/// at a time they take the same.
#[test]
fn gain_of_more_requests_in_flight_follows_the_device() {
    let scratch = Scratch::new("explain-gains");
    if !can_watch(&scratch) {
        return;
    }
    for (connections, has_gain) in [(16, true), (1, false)] {
        let folder = scratch.path("slow");
        let Some(slow) = SlowFile::serve(&folder, &device(8, connections), "64M") else {
            println!("skipped: needs FUSE");
            return;
        };
        let measured = (0..RUNS_MAX).find_map(|_| {
            watch(&scratch, "-o reads.rec", &SCATTERED);
            assert_eq!(
                depth_finding(&scratch, "").get("gain"),
                None,
                "a recording is not measured"
            );
            let finding = depth_finding(&scratch, "--gains always");
            finding["gain"].get("measured").is_some().then_some(finding)
        });
        let finding = measured.expect("a measured gain");
        let gain = &finding["gain"]["measured"];
        assert_eq!(gain["with"], "16 reads in flight", "{finding:#}");
        let seconds = finding["seconds"].as_f64().unwrap();
        let part = gain["saved_seconds"].as_f64().unwrap() / seconds;
        assert!(part < 1.5, "{part} of the time: {finding:#}");
        assert_eq!(part > 0.5, has_gain, "{part} of the time: {finding:#}");
        assert!(gain["requests"].as_u64().unwrap() <= SCATTERED_READS, "{finding:#}");
        // On a busy machine more requests also hide delays of the processor: a small gain is true.
        let saved = |name: &str| gain[name].as_f64().unwrap();
        let least = (saved("high") - saved("low")).max(0.05 * seconds);
        let remedy = finding["remedy"].as_str().unwrap();
        assert_eq!(
            remedy.starts_with("none is known"),
            saved("saved_seconds") <= least,
            "{finding:#}"
        );
        let text = scratch.run("explain reads.rec --gains always").stdout;
        assert!(text.contains("   Gain: "), "{text}");

        drop(slow);
        let gone = depth_finding(&scratch, "--gains always");
        let reason = gone["gain"]["unknown"].as_str().unwrap();
        assert!(reason.contains("slow/device"), "{reason}");
        fs::remove_dir(&folder).unwrap();
    }
}

/// Ext4 file system on a slow device, with the kernel's default window. It is unmounted on drop.
pub(crate) struct SlowDisk {
    mounted: Mounted,
    _slow: SlowFile,
}

impl SlowDisk {
    /// Makes the file system. `None` where FUSE or a tool is missing.
    pub fn new(scratch: &Scratch, device: &str) -> Option<SlowDisk> {
        if !has("losetup") || !has("mount") {
            return None;
        }
        let slow = SlowFile::serve(&scratch.path("slow"), device, "512M")?;
        let device = LoopDevice::direct_over(&scratch.path("slow/device"))?;
        let make = ["mkfs.ext4", "-q", "-E", "nodiscard"];
        let mounted = Mounted::new(device, scratch.path("mounted"), &make, "defaults")?;
        fs::write(mounted.device.readahead_setting(), "128").unwrap();
        Some(SlowDisk { mounted, _slow: slow })
    }

    /// Root of the file system.
    pub fn folder(&self) -> &Path {
        &self.mounted.folder
    }

    /// File of sysfs with the readahead window.
    fn setting(&self) -> PathBuf {
        self.mounted.device.readahead_setting()
    }
}

/// Makes a slow disk of `ms` milliseconds a request, 32 at once. The link `data` of the scratch
/// folder leads to a file of [`DATA_BYTES`] on it. Returns `None`, and prints the reason, where
/// recordings, FUSE or a tool are missing.
fn slow_disk_with_data(scratch: &Scratch, ms: u32) -> Option<SlowDisk> {
    if !can_watch(scratch) {
        return None;
    }
    let Some(disk) = SlowDisk::new(scratch, &device(ms, 32)) else {
        println!("skipped: needs FUSE, losetup and mkfs.ext4");
        return None;
    };
    let made = scratch.data("made", DATA_BYTES as usize);
    fs::copy(made, disk.folder().join("data")).unwrap();
    rustix::fs::sync();
    std::os::unix::fs::symlink("mounted/data", scratch.path("data")).unwrap();
    Some(disk)
}

/// By hand: 4 ms a request and two windows of 128 KiB in flight are 64 MiB a second. Windows of
/// 512 KiB have four times as much.
#[test]
fn small_readahead_window_is_found_and_its_setting_named() {
    let scratch = Scratch::new("explain-window");
    let Some(disk) = slow_disk_with_data(&scratch, 4) else { return };

    let found = (0..RUNS_MAX).find_map(|_| {
        watch(&scratch, "-o reads.rec", &STREAM);
        assert_eq!(finding(&scratch, "", "readahead"), None, "it is not measured");
        finding(&scratch, "--gains always", "readahead")
    });
    let found = found.expect("a finding about the window");
    let setting = disk.setting();
    let setting = setting.to_str().unwrap();
    let remedy = found["remedy"].as_str().unwrap();
    assert!(remedy.contains(&format!("> {setting}` as root")), "{remedy}");
    let gain = &found["gain"]["measured"];
    let part = gain["saved_seconds"].as_f64().unwrap() / found["seconds"].as_f64().unwrap();
    assert!(part > 0.5, "{part} of the time: {found:#}");

    let place = disk.folder().to_str().unwrap();
    let advised = scratch.run(&format!("advise --mount {place}"));
    advised.has_ended(0, place);
    assert!(advised.stdout.contains("The present window is 128 KiB."), "{}", advised.stdout);
    assert!(advised.stdout.contains(&format!(" > {setting}\n")), "{}", advised.stdout);
}

/// By hand: a request of 16 ms takes as long for a page as for a window of 128 KiB, but for the
/// transfer, which takes about 2 ms by FUSE. An assumed cost of requests charges half of the waits
/// to the unused bytes.
#[test]
fn unused_bytes_cost_what_separate_requests_would_save() {
    let scratch = Scratch::new("explain-unused");
    let Some(_disk) = slow_disk_with_data(&scratch, 16) else { return };

    let part_of_depth = || {
        watch(&scratch, "-o reads.rec", &TOUCHES);
        let assumed = finding(&scratch, "", "over_read").expect("a finding by an assumed cost");
        assert!(assumed["evidence"].as_str().unwrap().contains("by an assumed cost"), "{assumed}");
        let depth_seconds = |options| depth_finding(&scratch, options)["seconds"].as_f64().unwrap();
        let all_seconds = assumed["seconds"].as_f64().unwrap() + depth_seconds("");
        depth_seconds("--gains always") / all_seconds
    };
    let has_depth = (0..RUNS_MAX).any(|_| part_of_depth() > 0.8);
    assert!(has_depth, "one request at a time has less than 0.8 of the waits");
}

/// By hand: requests of 64 KiB, one at a time, of 4 ms each are 16 MiB a second. Even single
/// requests of 8 MiB, at the 500 MiB a second that the test machines reach, are 30 times as fast.
#[test]
fn single_requests_in_order_are_compared_with_larger_ones() {
    let scratch = Scratch::new("explain-single");
    let Some(_disk) = slow_disk_with_data(&scratch, 4) else { return };

    for (program, cause) in [(&MAPPED_STEPS, "readahead"), (&DIRECT_STREAM, "small")] {
        let found = (0..RUNS_MAX).find_map(|_| {
            watch(&scratch, "-o reads.rec", program);
            let text = scratch.run("explain reads.rec").stdout;
            assert!(text.contains("No diagnosis: "), "{text}");
            assert!(text.contains("for a request of their own, one at a time"), "{text}");
            finding(&scratch, "--gains always", cause)
        });
        let found = found.unwrap_or_else(|| panic!("no finding for {}", program.name));
        assert!(found["share"].as_f64().unwrap() > 0.5, "{found:#}");
        let gain = &found["gain"]["measured"];
        let part = gain["saved_seconds"].as_f64().unwrap() / found["seconds"].as_f64().unwrap();
        assert!(part > 0.8, "{part} of the time: {found:#}");
    }
}

/// Places without a window, and places without a file that is long enough.
#[test]
fn windows_of_unsuitable_places_are_refused() {
    let scratch = Scratch::new("advise-mount");
    let refused = |place: &str, code, reason: &str| {
        let ran = scratch.run(&format!("advise --mount {place}"));
        ran.has_ended(code, place);
        assert!(ran.stderr.contains(reason), "{}", ran.stderr);
    };
    refused("/proc", 3, "/proc: the kernel shows no readahead window for it");
    refused("missing", 2, "missing: ");
    refused("/dev/null", 3, "no readahead window");
    scratch.data("short", 4096);
    let window = scratch.run("advise --mount short");
    match window.code {
        Some(3) => println!("skipped: {}", window.stderr),
        _ => {
            refused("short", 2, "a file of 64 MiB is needed");
            // A file of holes is read without a device.
            let holes = fs::File::create(scratch.path("holes")).unwrap();
            holes.set_len(1 << 30).unwrap();
            refused("holes", 2, "a file of 64 MiB is needed");
            refused(".", 2, "no readable file with 64 MiB of data was found");
        }
    }
}
