//! Figures of a trial's result.

use super::*;

impl ThroughputTuner {
    /// Creates a search with `setting` as the current setting.
    pub(in super::super) fn with_setting(parameter: Parameter, setting: u32) -> ThroughputTuner {
        ThroughputTuner { setting: Some(setting), ..ThroughputTuner::new(parameter) }
    }
}

/// Result of a trial of `setting`, whose second epoch had 1200 KiB/s, with 1000 KiB/s of all at
/// once, 32 of them in progress. The limit is 12 requests with 500 KiB/s.
fn result_of_trial(setting: Option<u32>) -> ProbeResult {
    let mut tuner = ThroughputTuner {
        all_kib_per_s: 1000,
        mean_kib_per_s: 500,
        ..ThroughputTuner::with_setting(Parameter::Requests, 12)
    };
    let trial = SettingTrial { setting, began: Time::ZERO, first_kib_per_s: Some(600) };
    tuner.evaluate_trial(Time::from_ms(64), trial, 1200, 32).unwrap()
}

/// By hand: the mean of 600 and 1200 decides, 900, which is above seven eighths of 1000. A
/// limit of 12 whose 500 are too few next to 1200 is raised to 16.
#[test]
fn result_has_the_rate_that_decided_it() {
    let figures = |result: ProbeResult| (result.setting, result.kib_per_s, result.all_kib_per_s);
    assert_eq!(figures(result_of_trial(Some(8))), (Some(8), 900, 1000));
    assert_eq!(figures(result_of_trial(None)), (Some(16), 500, 1200));
}
