//! Gain of a remedy as text.

use readpath_record::explain::gain::Gain;

/// Returns the gain of a remedy, without a full stop. `run_seconds` is the time of the recording.
/// The saved time is the median of the measured rounds. `low` and `high` are the least and the
/// greatest round; of five rounds both extremes are left out. `with` is the remedy, and `requests`
/// the number of measured requests.
pub fn gain_text(gain: &Gain, run_seconds: f64) -> String {
    match gain {
        Gain::Measured { with, saved_seconds, low, high, requests } => format!(
            "{saved_seconds:.2} s of {run_seconds:.2} s, with {with} ({low:.2} to {high:.2}; measured by \
             {requests} requests)"
        ),
        Gain::Unknown(reason) => format!("not known: {reason}"),
    }
}
