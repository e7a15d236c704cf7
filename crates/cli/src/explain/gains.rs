//! Gain of a remedy as text.

use readpath_record::explain::gain::Gain;

/// Returns what a remedy gains, without a full stop. `finding_seconds` is the time of its finding.
pub fn text(gain: &Gain, finding_seconds: f64) -> String {
    match gain {
        Gain::Measured { with, seconds, low, high, requests } => format!(
            "with {with} {seconds:.2} s in place of {finding_seconds:.2} s ({low:.2} to {high:.2}; \
             measured with {requests} requests)"
        ),
        Gain::Unknown(reason) => format!("not known: {reason}"),
    }
}
