//! Measurements for the findings of an explanation.

use super::call_cost;
use super::gain::{Gain, Trial};
use super::readahead::{self, Comparison};
use super::{Explanation, Finding, STORAGE_ACTIVITIES, SampledWaits, WaitCause};

/// Part of a gain, chosen, that must have passed without other work of the program. A program that
/// computes next to the rest of its waits may gain less: its processors may be the limit.
const IDLE_PART_MIN: f64 = 0.8;

/// Measures the gains of an explanation's findings, where a measurement is possible.
/// `should_continue` is asked before each round; after false the other findings have no gain.
///
/// A remedy without a gain is taken out: the text of its remedy says so. If the rounds differ too
/// much, the remedy stays, and its gain is unknown.
pub fn measure(explanation: &mut Explanation, should_continue: &mut dyn FnMut() -> bool) {
    if measure_findings(explanation, should_continue) {
        measure_readahead(explanation, should_continue);
        measure_calls(explanation);
    }
    limit_gains(explanation);
}

/// Measures the gain of each finding that has a trial. Returns false if it was interrupted: the
/// findings measured until then keep their gains.
fn measure_findings(
    explanation: &mut Explanation,
    should_continue: &mut dyn FnMut() -> bool,
) -> bool {
    if !measure_parts(explanation, should_continue) {
        return false;
    }
    for finding in &mut explanation.findings {
        let Some(sample) = explanation.samples.get(&finding.cause) else { continue };
        let depth = recorded_depth(sample);
        let Some(trial) = Trial::of_remedy(finding.cause, sample, depth) else { continue };
        let Some(gain) = trial.measure_gain(finding, sample, should_continue) else {
            return false;
        };
        if let Gain::Measured { with, .. } = &gain
            && gain.is_none(finding.seconds)
        {
            finding.remedy = format!("none is known: {with} took as long on this storage");
            finding.gain = Some(gain);
            continue;
        }
        finding.gain = Some(gain.if_certain());
    }
    true
}

/// Returns the number of threads that repeat the reads as recorded: the mean number of requests in
/// flight during the waits, rounded. The limit of 64 is chosen.
fn recorded_depth(sample: &SampledWaits) -> usize {
    (sample.depth.round() as usize).clamp(1, 64)
}

/// Measures separate requests for the used parts where their time is assumed, and charges the
/// measured difference to `OverRead`. The rest of the waits goes to `Depth`. Without a difference,
/// all of them do. Returns false if it was interrupted.
fn measure_parts(explanation: &mut Explanation, should_continue: &mut dyn FnMut() -> bool) -> bool {
    let index_of = |findings: &[Finding], cause| findings.iter().position(|it| it.cause == cause);
    let findings = &mut explanation.findings;
    let (Some(parts), Some(sample), Some(index), Some(depth_index)) = (
        &explanation.assumed_parts,
        explanation.samples.get_mut(&WaitCause::Depth),
        index_of(findings, WaitCause::OverRead),
        index_of(findings, WaitCause::Depth),
    ) else {
        return true;
    };
    let over_read = &findings[index];
    // Both findings together have the waits that separate requests would shorten.
    let judged_seconds = over_read.seconds + findings[depth_index].seconds;
    let judged = Finding { seconds: judged_seconds, ..over_read.clone() };
    let trial = Trial::of_parts(parts, recorded_depth(sample));
    // The reads of this measurement are left out of the next one: a repeated read may come out of a
    // cache. A quarter of the sample is chosen.
    let runs = sample.runs.split_off(sample.runs.len() * 3 / 4);
    let quarter = SampledWaits { runs, ..sample.clone() };
    let Some(gain) = trial.measure_gain(&judged, &quarter, should_continue) else { return false };
    // Without certain rounds the assumption stays, and the text names it.
    let Gain::Measured { saved_seconds, .. } = gain else { return true };
    let is_reported = !gain.is_none(judged_seconds) && !gain.is_uncertain();
    let lost_seconds = if is_reported { saved_seconds } else { 0.0 };
    let mut charge = |index: usize, seconds: f64| {
        let finding: &mut Finding = &mut findings[index];
        finding.share *= seconds / finding.seconds;
        finding.seconds = seconds;
    };
    charge(depth_index, judged_seconds - lost_seconds);
    charge(index, lost_seconds);
    let finding = &mut findings[index];
    finding.evidence = format!(
        "{} take {:.2} s instead of {judged_seconds:.2} s, as measured",
        parts.fetch_text,
        judged_seconds - lost_seconds
    );
    finding.gain = Some(gain);
    findings.retain(|finding| finding.seconds > 0.0);
    findings.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
    true
}

/// Measures larger readahead windows, and larger direct reads. A faster one becomes a finding. If
/// none is faster, the waits are taken out.
fn measure_readahead(explanation: &mut Explanation, should_continue: &mut dyn FnMut() -> bool) {
    for waits in [&mut explanation.readahead, &mut explanation.direct_in_order] {
        match waits.as_ref().and_then(|waits| readahead::measure(waits, should_continue)) {
            None => {}
            Some(Comparison::NoneFaster) => *waits = None,
            Some(Comparison::Faster(found)) => explanation.findings.push(found),
        }
    }
    explanation.findings.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
}

/// Measures the small reads by system calls without the recorder. A finding below the reported
/// share is taken out.
fn measure_calls(explanation: &mut Explanation) {
    let Some(calls) = &explanation.small_calls else { return };
    explanation.findings.retain_mut(|finding| {
        finding.cause != WaitCause::Calls || call_cost::measure(calls, finding)
    });
    explanation.findings.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
}

/// Makes a gain unknown if the program had no other work than to wait for reads in less than
/// [`IDLE_PART_MIN`] of it. The text has both times. The storage shows how much shorter the waits
/// become. If other threads use the processors meanwhile, shorter waits may not end the program
/// earlier. The text names other threads only if several threads read. Without times by activity
/// all gains stay.
fn limit_gains(explanation: &mut Explanation) {
    if explanation.time.is_empty() {
        return;
    }
    let times = explanation.time.iter();
    let idle_times = times.filter(|time| STORAGE_ACTIVITIES.contains(&time.activity));
    // The sum of no times is -0.0.
    let idle_seconds = 0.0 + idle_times.map(|time| time.seconds).sum::<f64>();
    let meanwhile = match explanation.shape.threads.len() > 1 {
        true => "other threads of it run or wait for a processor",
        false => "it runs or waits for something else",
    };
    for finding in &mut explanation.findings {
        // Fewer calls save processor time, and no waits.
        if finding.cause != WaitCause::Calls
            && let Some(Gain::Measured { with, saved_seconds, .. }) = &finding.gain
            && idle_seconds < IDLE_PART_MIN * saved_seconds
        {
            finding.gain = Some(Gain::Unknown(format!(
                "with {with} these waits are {saved_seconds:.2} s shorter; all but \
                 {idle_seconds:.2} s of the program's waits pass while {meanwhile}"
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::Activity;

    use super::*;
    use crate::explain::{ActivityTime, Explainer};

    /// Explanation of a program that waits only for reads for `idle_seconds`, with a finding whose
    /// remedy saves 1.1 s of waits.
    fn with_gain(idle_seconds: &[(Activity, f64)]) -> Explanation {
        let gain = Gain::Measured {
            with: "16 reads in flight".to_owned(),
            saved_seconds: 1.1,
            low: 1.0,
            high: 1.2,
            requests: 100,
        };
        let finding = Finding {
            cause: WaitCause::Depth,
            seconds: 1.2,
            share: 0.3,
            title: String::new(),
            evidence: String::new(),
            remedy: String::new(),
            gain: Some(gain),
        };
        let mut explanation = Explainer::default().finish();
        explanation.findings.push(finding);
        let times = idle_seconds.iter();
        explanation.time =
            times.map(|&(activity, seconds)| ActivityTime { activity, seconds }).collect();
        explanation
    }

    /// Four processes compute checksums on two processors, and wait 1.2 s for their files, all but
    /// 0.2 s next to work. A window that saved 1.1 s of these waits saved no time of the program.
    #[test]
    fn waits_next_to_work_have_no_certain_gain() {
        let mut explanation = with_gain(&[(Activity::Processor, 3.5), (Activity::Read, 0.2)]);
        limit_gains(&mut explanation);
        let Some(Gain::Unknown(reason)) = &explanation.findings[0].gain else {
            panic!("{explanation:?}")
        };
        assert!(reason.contains("are 1.10 s shorter; all but 0.20 s"), "{reason}");
    }

    /// The text of no time is zero without a sign.
    #[test]
    fn program_without_idle_waits_waited_zero_seconds() {
        let mut explanation = with_gain(&[(Activity::Others, 3.5)]);
        limit_gains(&mut explanation);
        let Some(Gain::Unknown(reason)) = &explanation.findings[0].gain else {
            panic!("{explanation:?}")
        };
        assert!(reason.contains("all but 0.00 s"), "{reason}");
    }

    /// 0.9 s are more than 80 % of 1.1 s. A recording without times by activity keeps the gain.
    #[test]
    fn waits_without_other_work_keep_their_gain() {
        for times in [&[(Activity::Read, 0.5), (Activity::Fault, 0.4)][..], &[]] {
            let mut explanation = with_gain(times);
            let before = explanation.clone();
            limit_gains(&mut explanation);
            assert_eq!(explanation, before);
        }
    }
}
