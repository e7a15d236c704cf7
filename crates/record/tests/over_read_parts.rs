//! Waits behind unused bytes, for a measurement of separate requests. All are worked by hand.

use readpath_record::explain::gain::Gain;
use readpath_record::explain::{WaitCause, measure};
use readpath_trace::recording::ReadMethod;

use super::explain::{KIB, Made, far, found};

const MIB: u64 = KIB << 10;

/// 200 touches of a mapping, 4 MiB apart, for which the kernel fetches `window_bytes` in 1 ms each.
fn touches(made: &mut Made, window_bytes: u64) {
    for at in 0..200 {
        made.read(0, ReadMethod::Fault, (at * 4 * MIB, 4 * KIB), window_bytes, 1000);
    }
}

/// A touch is no lack of depth if its window is large. The cost of requests is assumed all the
/// same: the recording has one size. The file of the recording is missing, so no request can be
/// measured, the gain is unknown, and the remedy needs a trial.
#[test]
fn assumed_cost_with_large_windows_is_measured_or_its_gain_is_unknown() {
    let mut made = Made::new();
    touches(&mut made, 2 * MIB);
    let mut explanation = made.explained();
    // By hand: a request costs as much as 64 KiB (the fast drives), so a page costs 68 of 2112 KiB.
    assert_eq!(found(&explanation), [(WaitCause::OverRead, 194)]);
    let sample = &explanation.samples[&WaitCause::OverRead];
    assert_eq!((sample.runs.len(), sample.waits), (200, 200));
    assert!((sample.waited_seconds - 0.2).abs() < 1e-9, "{}", sample.waited_seconds);
    measure(&mut explanation, &mut || true);
    let gain = explanation.findings[0].gain.as_ref();
    assert!(matches!(gain, Some(Gain::Unknown(_))), "{gain:?}");
    let remedy = &explanation.findings[0].remedy;
    assert!(remedy.starts_with("only if a trial shows a gain"), "{remedy}");
}

/// Touches in the first phase have unused bytes. Random reads of another file in the second phase
/// use all bytes, in as many and as long waits. Separate requests for the used parts change only
/// the time of the first ones.
#[test]
fn sample_of_unused_bytes_has_only_their_files() {
    let mut made = Made::new();
    touches(&mut made, 128 * KIB);
    for at in 0..200 {
        made.read(2, ReadMethod::Pread, (far(at), 128 * KIB), 128 * KIB, 1000);
    }
    let explanation = made.explained();
    let sample = &explanation.samples[&WaitCause::OverRead];
    let paths: Vec<&str> = sample.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["/file-0"]);
    assert_eq!((sample.runs.len(), sample.waits), (200, 200));
    assert!((sample.waited_seconds - 0.2).abs() < 1e-9, "{}", sample.waited_seconds);
    let parts = explanation.assumed_parts.as_ref().expect("the recording has one size");
    assert_eq!(parts.parts_per_wait, 1.0);
    assert!((parts.judged_seconds - 0.2).abs() < 1e-9, "{}", parts.judged_seconds);
}

/// 20,000 random reads of another file use all bytes. The sample keeps 1,024 runs at most, and by
/// hand it has all 200 runs of the file with unused bytes.
#[test]
fn sample_of_a_small_share_of_the_reads_is_whole() {
    let mut made = Made::new();
    for at in 0..20_000 {
        if at % 100 == 0 {
            made.read(0, ReadMethod::Fault, (at / 100 * 4 * MIB, 4 * KIB), 128 * KIB, 1000);
        }
        let offset = (20_000 - at) * MIB;
        made.read(2, ReadMethod::Pread, (offset, 128 * KIB), 128 * KIB, 10);
    }
    let explanation = made.explained();
    let sample = &explanation.samples[&WaitCause::OverRead];
    assert_eq!((sample.runs.len(), sample.waits), (200, 200));
}
