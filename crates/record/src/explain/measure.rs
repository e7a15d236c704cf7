//! Measurements for the findings of an explanation.

use super::Explanation;
use super::gain::{Gain, Trial};
use super::readahead::{self, Comparison};

/// Measures the gains of an explanation's findings, where a measurement is possible.
/// `should_continue` is asked before each round; after false the other findings have no gain.
///
/// A remedy without a gain is taken out: the text of its remedy says so. If the rounds differ too
/// much, the remedy stays, and its gain is unknown. A larger readahead window
/// that is faster becomes a further finding. If none is faster, the waits for readahead are taken
/// out.
pub fn measure(explanation: &mut Explanation, should_continue: &mut dyn FnMut() -> bool) {
    // The number of threads that repeat the reads as recorded. The limit of 64 is chosen.
    let depth = (explanation.shape.depth.round() as usize).clamp(1, 64);
    for finding in &mut explanation.findings {
        let Some(sample) = explanation.samples.get(&finding.cause) else { continue };
        let Some(trial) = Trial::of_remedy(finding.cause, sample, depth) else { continue };
        let Some(gain) = trial.measure_gain(finding, sample, should_continue) else { return };
        if let Gain::Measured { with, .. } = &gain
            && gain.is_none(finding.seconds)
        {
            finding.remedy = format!("none is known: {with} took as long on this storage");
            finding.gain = Some(gain);
            continue;
        }
        finding.gain = Some(gain.if_certain());
    }
    let readahead = explanation.readahead.as_ref();
    match readahead.and_then(|waits| readahead::measure(waits, should_continue)) {
        None => {}
        Some(Comparison::NoneFaster) => explanation.readahead = None,
        Some(Comparison::Faster(found)) => {
            explanation.findings.push(found);
            explanation.findings.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
        }
    }
}
