//! Seek detection: decides if a queue's next request is likely to be close to its last one, so that
//! idling for it pays.
//!
//! Two detectors, the old one and its repair, both discussed in 2010 (*source D*):
//!
//! - **mean** (until 2.6.33): a decaying average of the distance between the end of one request and
//!   the start of the next; seeky above 8 × 1024 sectors. An average can't distinguish "always
//!   medium seeks" from "runs of sequential requests with large seeks between".
//! - **history** (since 2.6.34): each request is judged by itself, near or far, and the last 32
//!   verdicts are kept as bits; seeky when more than 1/8 of them are far. On a device without a
//!   head, position has no influence and size has: there a request below 32 KiB counts as far.
//!
//! [`verdict_table`] compares both on labelled streams.

use alloc::vec::Vec;

use crate::scheduler::decaying_mean::DecayingMean;

/// The detector in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seekiness {
    /// The average distance, until 2.6.33.
    Mean,
    /// The last 32 verdicts, since 2.6.34.
    #[default]
    History,
}

/// Mean distance above which a queue is seeky: 8 × 1024 sectors, 4 MiB, as in 2.6.33.
const MEAN_SECTORS: u64 = 8 * 1024;

/// Distance above which one request is far: 8 × 100 sectors, 400 KiB. A shorter distance is "likely
/// in the disk's own cache".
const FAR_SECTORS: u64 = 8 * 100;

/// On a device without a head, a request smaller than this counts as far: 32 KiB, as in 2.6.34.
const SMALL_SECTORS: u32 = 2 * 32;

/// Number of far requests among the last 32 above which a queue is seeky: 1/8 of 32.
const FAR_OF_32: u32 = 32 / 8;

/// Detects random access of one queue.
#[derive(Clone, Debug)]
pub(super) struct SeekDetector {
    /// The sector after the last request; `None` before the first, whose distance counts as 0.
    end_of_last: Option<u64>,
    /// Observations about the distances so far.
    state: SeekHistory,
}

/// The data of the detector in use.
#[derive(Clone, Debug)]
enum SeekHistory {
    /// Mean distance in sectors.
    Mean(DecayingMean),
    /// The last 32 verdicts, the newest in the lowest bit: 1 for a far request.
    History { bits: u32, is_rotational: bool },
}

impl SeekDetector {
    /// Creates a detector without observations.
    pub(super) fn new(seekiness: Seekiness, is_rotational: bool) -> SeekDetector {
        let state = match seekiness {
            Seekiness::Mean => SeekHistory::Mean(DecayingMean::default()),
            Seekiness::History => SeekHistory::History { bits: 0, is_rotational },
        };
        SeekDetector { end_of_last: None, state }
    }

    /// Updates the detector by the next request of the queue: `sectors` sectors from the sector
    /// `start` on.
    pub(super) fn observe(&mut self, start: u64, sectors: u32) {
        let distance = self.end_of_last.map_or(0, |end| end.abs_diff(start));
        match &mut self.state {
            SeekHistory::Mean(mean) => {
                // Limits the effect of one far seek on the average. The first three samples (a
                // weight of up to 60 before them) are cut at 1 GiB above four times the mean, later
                // ones at 64 MiB.
                let slack_sectors =
                    if mean.samples() <= 60 { 2 * 1024 * 1024 } else { 2 * 1024 * 64 };
                let distance_max = 4 * mean.mean_with_rounding(mean.samples() / 2) + slack_sectors;
                mean.add(distance.min(distance_max));
            }
            SeekHistory::History { bits, is_rotational } => {
                let is_far =
                    if *is_rotational { distance > FAR_SECTORS } else { sectors < SMALL_SECTORS };
                *bits = *bits << 1 | u32::from(is_far);
            }
        }
        self.end_of_last = Some(start + u64::from(sectors));
    }

    /// Returns true if the next request is unlikely to be close, by the detector in use. The mean
    /// needs at least three requests. Half of its weight, added before the division, rounds it to
    /// the nearest sector.
    pub(super) fn is_seeky(&self) -> bool {
        match &self.state {
            SeekHistory::Mean(mean) => {
                mean.is_valid() && mean.mean_with_rounding(mean.samples() / 2) > MEAN_SECTORS
            }
            SeekHistory::History { bits, .. } => bits.count_ones() > FAR_OF_32,
        }
    }

    /// The deciding value: the mean distance in sectors, or the number of far requests among the
    /// last 32.
    pub(super) fn deciding_value(&self) -> u64 {
        match &self.state {
            SeekHistory::Mean(mean) => mean.mean_with_rounding(mean.samples() / 2),
            SeekHistory::History { bits, .. } => bits.count_ones().into(),
        }
    }

    /// Returns true if the detector is the average distance of 2.6.33.
    pub(super) fn uses_mean(&self) -> bool {
        matches!(self.state, SeekHistory::Mean(_))
    }
}

/// Verdicts of both detectors on one labelled stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekVerdict {
    /// Label of the stream.
    pub stream: &'static str,
    /// Number of the last [`VERDICT_REQUESTS`] requests after which the average of 2.6.33 said
    /// "seeky".
    pub mean_seeky: u32,
    /// The number for the history of 32 verdicts.
    pub history_seeky: u32,
}

/// Number of requests over which the verdicts are counted: ten periods of the stream with 15 near
/// requests and one far one.
pub const VERDICT_REQUESTS: u32 = 160;

/// A stream of 4 KiB requests on a disk: maps the request number to the first sector.
type LabelledStream = fn(u64) -> u64;
/// The labelled streams, each by its label.
const STREAMS: &[(&str, LabelledStream)] = &[
    ("sequential", |number| 8 * number),
    ("medium seeks of 2 MiB", |number| (8 + 4096) * number),
    ("15 near, 1 far (mmap of random 64 KiB)", |number| {
        let (record, page) = (number / 16, number % 16);
        random_record(record) * 128 + page * 8
    }),
    ("random", |number| random_record(number) * 128),
    ("two sequential streams, 1 GiB apart", |number| {
        let (step, stream) = (number / 2, number % 2);
        step * 8 + stream * (1 << 21)
    }),
];

/// Number of one of 2^17 records, of 64 KiB or 128 sectors each. Successive results are far from
/// each other: multiples of an odd constant (2^17 divided by the golden ratio).
fn random_record(number: u64) -> u64 {
    number * 81_007 % (1 << 17)
}

/// The verdicts of both detectors on labelled streams, each counted over the last
/// [`VERDICT_REQUESTS`] requests of three times that number. The first ones are not counted,
/// because a detector starts without a past.
pub fn verdict_table() -> Vec<SeekVerdict> {
    let seeky_requests = |seekiness, start_of: LabelledStream| {
        let is_rotational = true;
        let mut detector = SeekDetector::new(seekiness, is_rotational);
        let mut seeky = 0;
        for number in 0..3 * u64::from(VERDICT_REQUESTS) {
            // 8 sectors are 4 KiB.
            detector.observe(start_of(number), 8);
            let is_counted = number >= 2 * u64::from(VERDICT_REQUESTS);
            seeky += u32::from(is_counted && detector.is_seeky());
        }
        seeky
    };
    STREAMS
        .iter()
        .map(|&(stream, start_of)| SeekVerdict {
            stream,
            mean_seeky: seeky_requests(Seekiness::Mean, start_of),
            history_seeky: seeky_requests(Seekiness::History, start_of),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of requests, of the last 160, after which each detector finds the stream seeky.
    /// Worked by hand.
    ///
    /// Sequential: every distance is 0. Medium: every distance is 4096 sectors, above 800 and below
    /// 8192. Random, and two streams: every distance is large, and the mean settles above 131,072.
    ///
    /// 15 near, 1 far: history has at most 2 far among 32, not above 4. Let m be the mean before
    /// the far request. After it, with the distance cut at 4 m + 131,072, it is 1.375 m + 16,384.
    /// The 15 distances of 0 multiply it with (7/8)^15 = 0.1349. The result is m = 2,714 and the
    /// peak 20,116; then 17,601, 15,401, 13,476, 11,791, 10,317, 9,028, 7,899: above 8,192 after 7
    /// of 16.
    #[test]
    fn seekiness_verdicts_match_hand_computed_streams() {
        let table: Vec<_> =
            verdict_table().iter().map(|v| (v.stream, v.mean_seeky, v.history_seeky)).collect();
        assert_eq!(
            table,
            [
                ("sequential", 0, 0),
                ("medium seeks of 2 MiB", 0, 160),
                ("15 near, 1 far (mmap of random 64 KiB)", 70, 0),
                ("random", 160, 160),
                ("two sequential streams, 1 GiB apart", 160, 160),
            ]
        );
    }

    /// Requests of 8 sectors with gaps of 801 sectors are far, with gaps of 800 near.
    #[test]
    fn history_is_seeky_from_five_far_requests_of_32() {
        let is_rotational = true;
        let mut detector = SeekDetector::new(Seekiness::History, is_rotational);
        let mut start = 0;
        let verdicts: Vec<_> = (0..6)
            .map(|_| {
                detector.observe(start, 8);
                start += 8 + 801;
                detector.is_seeky()
            })
            .collect();
        // The first request has no predecessor, and counts as near.
        assert_eq!(verdicts, [false, false, false, false, false, true]);
        let mut near = SeekDetector::new(Seekiness::History, is_rotational);
        for number in 0..40 {
            near.observe(number * (8 + 800), 8);
        }
        assert_eq!(near.deciding_value(), 0, "800 sectors are near");
    }

    /// Random requests of 63 sectors, below 32 KiB, are seeky. Requests of 64 sectors are not.
    #[test]
    fn devices_without_a_head_judge_seekiness_by_request_size() {
        let is_seeky = |sectors: u32| {
            let is_rotational = false;
            let mut detector = SeekDetector::new(Seekiness::History, is_rotational);
            for number in 0..40 {
                detector.observe(random_record(number) * 128, sectors);
            }
            detector.is_seeky()
        };
        assert!(is_seeky(63));
        assert!(!is_seeky(64));
    }
}
