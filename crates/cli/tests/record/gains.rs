//! Gains of remedies, measured on devices of known parallelism.

use std::fs;

use serde_json::Value;

use crate::programs::{SCATTERED, SCATTERED_READS};
use crate::support::Scratch;
use crate::{SlowFile, can_watch, watch};

/// Device of 8 ms a request that works on `connections` requests at once.
fn device(connections: u32) -> String {
    let times = ["first_byte_min", "first_byte_p50", "first_byte_p90", "first_byte_p99"];
    let times: String = times.iter().map(|name| format!("{name}=8ms,")).collect();
    format!("object,{times}first_byte_max=8ms,connections={connections}")
}

/// Finding about the depth in an explanation of the recording with these options.
fn depth_finding(scratch: &Scratch, options: &str) -> Value {
    let ran = scratch.run(&format!("explain reads.rec --json {options}"));
    ran.has_ended(0, options);
    let explanation: Value = serde_json::from_str(&ran.stdout).unwrap();
    let findings = explanation["findings"].as_array().unwrap();
    let depth = findings.iter().find(|finding| finding["cause"] == "depth");
    depth.unwrap_or_else(|| panic!("no finding about the depth: {explanation:#}")).clone()
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
        let Some(slow) = SlowFile::serve(&folder, &device(connections), "64M") else {
            println!("skipped: needs FUSE");
            return;
        };
        watch(&scratch, "-o reads.rec", &SCATTERED);
        assert_eq!(depth_finding(&scratch, "").get("gain"), None, "a recording is not measured");

        let finding = depth_finding(&scratch, "--gains always");
        let gain = &finding["gain"]["measured"];
        assert_eq!(gain["with"], "16 reads in flight", "{finding:#}");
        let part = gain["seconds"].as_f64().unwrap() / finding["seconds"].as_f64().unwrap();
        assert!((1.0 / 20.0..=1.5).contains(&part), "{part} of the time: {finding:#}");
        assert_eq!(part < 0.5, has_gain, "{part} of the time: {finding:#}");
        assert!(gain["requests"].as_u64().unwrap() <= SCATTERED_READS, "{finding:#}");
        let remedy = finding["remedy"].as_str().unwrap();
        assert_eq!(!remedy.starts_with("none is known"), has_gain, "{remedy}");
        let text = scratch.run("explain reads.rec --gains always").stdout;
        assert!(text.contains("   Gain: with 16 reads in flight "), "{text}");

        drop(slow);
        let gone = depth_finding(&scratch, "--gains always");
        let reason = gone["gain"]["unknown"].as_str().unwrap();
        assert!(reason.contains("slow/device"), "{reason}");
        fs::remove_dir(&folder).unwrap();
    }
}
