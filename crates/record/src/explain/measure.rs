//! Measurements for the findings of an explanation.
//!
//! A *trial* repeats sampled reads, some as recorded and others with the remedy, in several rounds.
//! A *run* is a sequence of sampled reads, each from the end of the one before. The *parts* of an
//! over-read file are the ranges of it that the program used. Separate requests for them are the
//! remedy of `OverRead`.

use std::collections::BTreeSet;

use super::call_cost;
use super::cause::over_read::TRIAL_CONDITION;
use super::gain::{Gain, Trial};
use super::readahead::{self, Comparison};
use super::{
    AssumedParts, Explanation, Finding, REPORTED_SHARE_MIN, SampledFile, SampledRun, SampledWaits,
    WaitCause,
};

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
    let Some(taken_runs) = measure_parts(explanation, should_continue) else { return false };
    for finding in &mut explanation.findings {
        let Some(sample) = explanation.samples.get(&finding.cause) else { continue };
        let depth = recorded_depth(sample);
        let Some(trial) = Trial::of_remedy(finding.cause, sample, depth) else { continue };
        let Some(mut gain) = trial.measure_gain(finding, sample, should_continue) else {
            return false;
        };
        // The gain may be unknown for want of other runs, so reads that were repeated once are
        // repeated again.
        if matches!(gain, Gain::Unknown(_))
            && finding.cause == WaitCause::Depth
            && !taken_runs.is_empty()
        {
            let mut sample = sample.clone();
            sample.runs.extend(&taken_runs);
            match trial.measure_gain(finding, &sample, should_continue) {
                Some(again) => gain = again,
                None => return false,
            }
        }
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
/// measured difference to `OverRead`. The rest of the waits goes to `Depth` where these lack it.
/// Without a certain measurement the assumption stays, with the condition of a trial, and the gain
/// is unknown.
///
/// The reads of this measurement are taken out of the sample of `Depth` and returned: a repeated
/// read may come out of a cache. Returns `None` if it was interrupted.
fn measure_parts(
    explanation: &mut Explanation,
    should_continue: &mut dyn FnMut() -> bool,
) -> Option<Vec<SampledRun>> {
    let index_of = |findings: &[Finding], cause| findings.iter().position(|it| it.cause == cause);
    let findings = &mut explanation.findings;
    let (Some(parts), Some(sample), Some(index)) = (
        &explanation.assumed_parts,
        explanation.samples.get(&WaitCause::OverRead),
        index_of(findings, WaitCause::OverRead),
    ) else {
        return Some(Vec::new());
    };
    let judged = Finding { seconds: parts.judged_seconds, ..findings[index].clone() };
    let trial = Trial::of_parts(parts, recorded_depth(sample));
    // A finding about the depth needs the other runs. Half of the sample is chosen: rounds of a
    // quarter of 256 runs differed too much on a busy machine.
    let run_step = if index_of(findings, WaitCause::Depth).is_some() { 2 } else { 1 };
    let runs = sample.runs.iter().step_by(run_step).copied().collect();
    let tried = SampledWaits { runs, ..sample.clone() };
    let gain = trial.measure_gain(&judged, &tried, should_continue)?;
    let taken_runs = take_runs(explanation.samples.get_mut(&WaitCause::Depth), &tried);
    let is_none = gain.is_none(parts.judged_seconds);
    let gain = if is_none { gain } else { gain.if_certain() };
    let Gain::Measured { saved_seconds, .. } = gain else {
        findings[index].gain = Some(gain);
        return Some(taken_runs);
    };
    let lost_seconds = if is_none { 0.0 } else { saved_seconds };
    let over_read = &mut findings[index];
    over_read.evidence = format!(
        "{} take {:.2} s instead of {:.2} s, as measured",
        parts.fetch_text,
        parts.judged_seconds - lost_seconds,
        parts.judged_seconds
    );
    if let Some(remedy) = over_read.remedy.strip_prefix(TRIAL_CONDITION) {
        over_read.remedy = remedy.to_owned();
    }
    over_read.gain = Some(gain);
    charge_lost_seconds(findings, parts, lost_seconds);
    Some(taken_runs)
}

/// Replaces the assumed loss in the findings by the measured one. The rest of the waits goes to
/// `Depth` where they lack it. Both causes need the reported share.
fn charge_lost_seconds(findings: &mut Vec<Finding>, parts: &AssumedParts, lost_seconds: f64) {
    if findings.iter().all(|finding| finding.cause != WaitCause::Depth) {
        findings.extend(parts.depth.clone());
    }
    let lost_part = lost_seconds / parts.judged_seconds.max(1e-9);
    for finding in &mut *findings {
        // `Depth` gets back the part that the assumed loss has taken from it. The measured loss
        // takes its own part.
        let added_seconds = match finding.cause {
            WaitCause::OverRead => lost_seconds - parts.lost_seconds,
            WaitCause::Depth => parts.depth_lost_seconds - parts.depth_seconds * lost_part,
            _ => continue,
        };
        let share_of_second = finding.share / finding.seconds.max(1e-9);
        finding.seconds = (finding.seconds + added_seconds).max(0.0);
        finding.share = finding.seconds * share_of_second;
    }
    findings.retain(|finding| {
        let is_changed = matches!(finding.cause, WaitCause::OverRead | WaitCause::Depth);
        !is_changed || finding.share >= REPORTED_SHARE_MIN
    });
    findings.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
}

/// Takes the runs that `tried` has too out of a sample, and returns them.
fn take_runs(sample: Option<&mut SampledWaits>, tried: &SampledWaits) -> Vec<SampledRun> {
    let Some(sample) = sample else { return Vec::new() };
    let key = |files: &[SampledFile], run: &SampledRun| (files[run.file].path.clone(), run.offset);
    let tried: BTreeSet<(String, u64)> =
        tried.runs.iter().map(|run| key(&tried.files, run)).collect();
    let (taken, left) = std::mem::take(&mut sample.runs)
        .into_iter()
        .partition(|run| tried.contains(&key(&sample.files, run)));
    sample.runs = left;
    taken
}

/// Measures larger readahead windows, and larger direct reads. A faster one becomes a finding. If
/// none is faster, the waits are taken out, and their time is kept. Without a measurement they
/// stay.
fn measure_readahead(explanation: &mut Explanation, should_continue: &mut dyn FnMut() -> bool) {
    for waits in [&mut explanation.readahead, &mut explanation.direct_in_order] {
        match waits.as_ref().and_then(|waits| readahead::measure(waits, should_continue)) {
            None => {}
            Some(Comparison::NoneFaster) => {
                explanation.none_faster_seconds += waits.take().map_or(0.0, |waits| waits.seconds);
            }
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
    let idle_seconds = explanation.idle_seconds();
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

    /// Findings of a recording of 10 s whose bytes were assumed to take 1.5 of 2 s. `Depth` has
    /// 0.25 s of that file and 1 s of others.
    fn charged_with(lost_seconds: f64) -> Vec<(WaitCause, f64, f64)> {
        let template = with_gain(&[]).findings.remove(0);
        let finding = |cause, seconds: f64| Finding {
            cause,
            seconds,
            share: seconds / 10.0,
            gain: None,
            ..template.clone()
        };
        let parts = AssumedParts {
            request_bytes: 4096,
            parts_per_wait: 1.0,
            fetch_text: String::new(),
            judged_seconds: 2.0,
            lost_seconds: 1.5,
            depth_seconds: 1.0,
            depth_lost_seconds: 0.75,
            depth: None,
        };
        let mut findings = vec![finding(WaitCause::OverRead, 1.5), finding(WaitCause::Depth, 1.25)];
        charge_lost_seconds(&mut findings, &parts, lost_seconds);
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        let numbers = |it: &Finding| (it.cause, rounded(it.seconds), rounded(it.share));
        findings.iter().map(numbers).collect()
    }

    /// By hand: 1 of the 2 s lacks depth. If the bytes take half of the time, 0.5 s of it are left,
    /// with 1 s of other files. If they take 0.1 s, 1 % of 10 s, there is no finding about them.
    #[test]
    fn measured_loss_leaves_the_waits_of_other_files() {
        let expected = [(WaitCause::Depth, 1.5, 0.15), (WaitCause::OverRead, 1.0, 0.1)];
        assert_eq!(charged_with(1.0), expected);
        assert_eq!(charged_with(0.1), [(WaitCause::Depth, 1.95, 0.195)]);
        assert_eq!(charged_with(0.0), [(WaitCause::Depth, 2.0, 0.2)]);
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
