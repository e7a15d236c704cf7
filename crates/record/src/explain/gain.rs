//! Gains of remedies, measured on the storage of the recorded files.
//!
//! A recording with one request at a time does not show the device's speed with sixteen. Direct
//! reads therefore repeat a sample of the reads that waited, and leave the page cache alone. Some
//! are repeated as recorded, others as the remedy would request them. Both kinds alternate in
//! `ROUNDS` rounds, and no read is repeated twice. The gain is the difference of the two times, for
//! each read that waited. A *run* is a sequence of sampled reads of a file, each from the end of
//! the one before. Its reads are repeated in the same round.
//!
//! A gain is unknown if no file is the recorded one with direct reads, if a read fails, if the
//! reads are too few, or if the storage has changed. It has changed if it answers more than
//! `CHANGE_MAX` times as fast as recorded, or as slowly. Also unknown if
//! a device with a tenth of the reads has no file that can be read. Separate requests in place of
//! readahead have no gain if they take longer than the recorded waits, also on changed storage.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use readpath_core::unit::PageRange;
use readpath_os::queue::QueueLimits;
use readpath_trace::page_set::PAGE_BYTES;
use serde::Serialize;

use crate::capture::path_of_text;
use crate::direct_reads::{self, Request, seconds_per_read};
use crate::median::median;

use super::cause::over_read::losses;
use super::{
    AssumedParts, Finding, REPORTED_SHARE_MIN, SampledFile, SampledRun, SampledWaits, WaitCause,
};

/// Number of rounds, chosen. Each has reads as recorded and reads with the remedy.
const ROUNDS: usize = 5;

/// Least number of rounds, chosen, where the runs or the time do not suffice for [`ROUNDS`].
const ROUNDS_MIN: usize = 3;

/// Ratio of the measured to the recorded time of a read, or its inverse, from which on the storage
/// has changed. Chosen.
const CHANGE_MAX: f64 = 2.0;

/// Processor time of a read in seconds, at most, chosen. Recorded waits do not contain it, measured
/// times do.
const PROCESSOR_SECONDS: f64 = 20e-6;

/// Number of requests in flight that a remedy proposes, chosen.
pub const REMEDY_DEPTH: usize = 16;

/// Size of the requests that the remedy of small reads proposes, in bytes. Chosen.
const LARGE_READ_BYTES: u64 = 256 << 10;

/// Aim for the time of a round's reads as recorded. Chosen.
const ROUND_TIME: Duration = Duration::from_millis(60);

/// Longest time for one finding, chosen. The round in progress is completed.
const TIME_MAX: Duration = Duration::from_secs(3);

/// Largest number of files opened for a finding, chosen.
const FILES_MAX: usize = 512;

/// Part of the sampled reads, chosen, that must be of devices with a readable file. The times of
/// the reads are known for all devices together only, so a gain of some would be wrong.
const MEASURED_PART_MIN: f64 = 0.9;

/// Readahead window in bytes where the device's own is not known: the kernel's default.
const WINDOW_BYTES_DEFAULT: u64 = 128 << 10;

/// Largest readahead window that is measured, in bytes. Chosen.
const WINDOW_BYTES_MAX: u64 = 1 << 20;

/// Gain of a remedy, or the reason why it is unknown.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gain {
    /// Measured.
    Measured {
        /// Short text for the remedy: "16 reads in flight".
        with: String,
        /// Time in seconds that the remedy saves: the median of the rounds.
        saved_seconds: f64,
        /// Least saved time of a round in seconds. The least of five rounds is left out.
        low: f64,
        /// Greatest saved time of a round in seconds. The greatest of five rounds is left out.
        high: f64,
        /// Number of requests that were measured.
        requests: u64,
    },
    /// Not known, with the reason as text.
    Unknown(String),
}

impl Gain {
    /// Returns true if the remedy was measured and shortens the time of the finding by at most
    /// [`REPORTED_SHARE_MIN`] of it.
    pub fn is_none(&self, finding_seconds: f64) -> bool {
        match self {
            Gain::Measured { saved_seconds, .. } => {
                *saved_seconds <= REPORTED_SHARE_MIN * finding_seconds
            }
            Gain::Unknown(_) => false,
        }
    }

    /// Returns true if the remedy was measured and saves no more than the spread of the rounds.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Gain::Measured { saved_seconds, low, high, .. } => *saved_seconds <= high - low,
            Gain::Unknown(_) => false,
        }
    }

    /// Returns the gain of a remedy whose rounds agree. Otherwise the gain is unknown.
    pub(super) fn if_certain(self) -> Gain {
        match &self {
            Gain::Measured { with, low, high, .. } if self.is_uncertain() => {
                Gain::Unknown(format!(
                    "the measured rounds with {with} differ too much, from {low:.2} to {high:.2} s"
                ))
            }
            _ => self,
        }
    }
}

/// Method by which the reads of a sample are repeated.
#[derive(Debug)]
pub(super) struct Trial {
    /// Short text for the remedy: "16 reads in flight".
    remedy_text: String,
    /// Number of requests in flight: as recorded, and with the remedy.
    depths: [usize; 2],
    /// Size of the remedy's requests. `None`: as recorded. They end with the run.
    piece_bytes: Option<u64>,
    /// For separate requests in place of readahead: size in bytes of each, and their number for
    /// each recorded read. They begin where the recorded reads do.
    parts: Option<(u64, f64)>,
}

/// Measurement of one round.
#[derive(Clone, Copy, Debug, Default)]
struct MeasuredRound {
    /// Seconds per read: as recorded, then with the remedy.
    read_seconds: [f64; 2],
    /// Number of requests.
    requests: u64,
}

impl Trial {
    /// Returns the trial of a cause's remedy. `depth`: number of requests in flight in the
    /// recording. `None` if other depths or sizes of the same reads are not the remedy: for
    /// example if writes delay the reads, or if bytes are read repeatedly.
    pub fn of_remedy(cause: WaitCause, sample: &SampledWaits, depth: usize) -> Option<Trial> {
        let runs = sample.runs.len().max(1) as f64;
        let reads = sample.runs.iter().map(|run| run.reads).sum::<u64>() as f64;
        let has_several_reads = reads / runs >= 2.0;
        let trial = |remedy_text: &str, remedy_depth, piece_bytes| {
            let remedy_text = remedy_text.to_owned();
            let depths = [depth, remedy_depth];
            Some(Trial { remedy_text, depths, piece_bytes, parts: None })
        };
        match cause {
            WaitCause::Depth => trial("16 reads in flight", REMEDY_DEPTH, None),
            WaitCause::ManyFiles => trial("16 files in flight", REMEDY_DEPTH, None),
            WaitCause::Small => trial("reads of 256 KiB", depth, Some(LARGE_READ_BYTES)),
            WaitCause::PageFaults if has_several_reads => {
                // A piece without a limit is the whole run.
                trial("one request for each run of touched pages", depth, Some(u64::MAX))
            }
            WaitCause::PageFaults => trial("16 pages in flight", REMEDY_DEPTH, None),
            WaitCause::Advice if has_several_reads => {
                // The first file stands for all.
                let file = sample
                    .files
                    .first()
                    .and_then(|file| std::fs::metadata(path_of_text(&file.path)).ok());
                let queue = file.as_ref().and_then(QueueLimits::from_metadata);
                let window_bytes =
                    queue.map_or(WINDOW_BYTES_DEFAULT, |queue| queue.read_ahead_bytes);
                let window_bytes = window_bytes.clamp(PAGE_BYTES, WINDOW_BYTES_MAX);
                let remedy_text = format!("readahead of {} KiB", window_bytes >> 10);
                // The kernel requests the next window while the program reads the last one, so at
                // least two requests are in flight.
                trial(&remedy_text, depth.max(2), Some(window_bytes))
            }
            // Without runs of several reads there is nothing to read ahead. No other cause is
            // remedied by another depth or size of the reads.
            _ => None,
        }
    }

    /// Returns the trial of separate requests for the used parts of each read.
    pub fn of_parts(parts: &AssumedParts, depth: usize) -> Trial {
        Trial {
            remedy_text: "separate requests".to_owned(),
            depths: [depth, depth],
            piece_bytes: None,
            parts: Some((parts.request_bytes, parts.parts_per_wait)),
        }
    }

    /// Measures the gain of the remedy for a finding. The header of this file has the cases in
    /// which it is unknown. Returns `None` if `should_continue` returned false.
    pub fn measure_gain(
        &self,
        finding: &Finding,
        sample: &SampledWaits,
        should_continue: &mut dyn FnMut() -> bool,
    ) -> Option<Gain> {
        let (files, runs) = match open_files(sample) {
            Ok(opened) => opened,
            Err(reason) => return Some(Gain::Unknown(reason)),
        };
        let recorded_seconds = sample.waited_seconds / sample.waits.max(1) as f64;
        // Fewer rounds need fewer runs.
        let plan = |rounds| Some((rounds, self.run_counts(&runs, rounds, recorded_seconds)?));
        let Some((rounds, counts)) = plan(ROUNDS).or_else(|| plan(ROUNDS_MIN)) else {
            return Some(Gain::Unknown(too_few_text(&runs)));
        };
        let start = Instant::now();
        let (mut recorded_request_seconds, mut remedy_seconds) = (Vec::new(), Vec::new());
        let (mut saved_per_read, mut requests) = (Vec::new(), 0);
        let mut untried_runs = &runs[..];
        for _ in 0..rounds {
            if !should_continue() {
                return None;
            }
            if start.elapsed() > TIME_MAX && saved_per_read.len() >= ROUNDS_MIN {
                break;
            }
            // Each round has runs of its own, since a repeated read may come out of a cache.
            let (round_runs, later_runs) = untried_runs.split_at(counts[0] + counts[1]);
            untried_runs = later_runs;
            let round = match self.measure_round(&files, round_runs.split_at(counts[0])) {
                Ok(round) => round,
                Err(error) => {
                    return Some(Gain::Unknown(format!("the reads cannot be repeated: {error}")));
                }
            };
            requests += round.requests;
            let read_seconds = round.read_seconds;
            // Requests in flight share the time, so a single one takes longer.
            recorded_request_seconds.push(read_seconds[0] * self.depths[0] as f64);
            remedy_seconds.push(read_seconds[1]);
            saved_per_read.push(read_seconds[0] - read_seconds[1]);
        }
        let present_seconds = median(&mut recorded_request_seconds);
        if let Err(reason) = check_unchanged(present_seconds, recorded_seconds) {
            match self.losses(recorded_seconds, [&mut saved_per_read, &mut remedy_seconds]) {
                Some(losses) => saved_per_read = losses,
                None => return Some(Gain::Unknown(reason)),
            }
        }
        // Waits at the same time overlap, and other findings may have taken a part of them. The
        // minimum avoids a division by 0.
        let passed_seconds = sample.waited_seconds / self.depths[0] as f64;
        let share_left = (finding.seconds / passed_seconds.max(1e-9)).min(1.0);
        let saved_waits =
            sample.waits as f64 * share_left * recorded_part(present_seconds, recorded_seconds);
        // The waits of the finding are all that a remedy can save.
        let total_seconds =
            |saved_per_read: f64| (saved_per_read * saved_waits).min(finding.seconds);
        // The median has sorted the values, so their ends are the least and the greatest.
        let saved_median = median(&mut saved_per_read);
        let excluded = outliers_per_side(saved_per_read.len());
        Some(Gain::Measured {
            with: self.remedy_text.clone(),
            saved_seconds: total_seconds(saved_median),
            low: total_seconds(saved_per_read[excluded]),
            high: total_seconds(saved_per_read[saved_per_read.len() - 1 - excluded]),
            requests,
        })
    }

    /// Returns the time that separate requests saved per read, if it is negative: see [`losses`].
    /// `None` too if the reads as recorded take longer than separate requests today.
    fn losses(&self, recorded_seconds: f64, rounds: [&mut [f64]; 2]) -> Option<Vec<f64>> {
        let [saved_per_read, remedy_seconds] = rounds;
        self.parts.filter(|_| median(saved_per_read) <= 0.0)?;
        losses(recorded_seconds, self.depths[0], remedy_seconds)
    }

    /// Repeats the reads of one round: the first runs as recorded, the others with the remedy.
    /// Fails if one of the reads fails.
    fn measure_round(
        &self,
        files: &[File],
        (recorded_runs, remedy_runs): (&[OpenRun], &[OpenRun]),
    ) -> io::Result<MeasuredRound> {
        let mut round = MeasuredRound::default();
        let variants = [(recorded_runs, None), (remedy_runs, self.piece_bytes)];
        for (variant, (runs, piece_bytes)) in variants.into_iter().enumerate() {
            let is_remedy = variant == 1;
            let split = |run| split_into_requests(run, piece_bytes);
            let mut requests: Vec<Request> = runs.iter().flat_map(split).collect();
            if let Some(parts) = self.parts.filter(|_| is_remedy) {
                requests.iter_mut().for_each(|request| shorten(request, parts));
            }
            round.requests += requests.len() as u64;
            // A read at the end of the file may be short.
            let read = |request: &Request, memory: &mut [u8]| {
                files[request.file].read_at(memory, request.offset).map(drop)
            };
            round.read_seconds[variant] = seconds_per_read(read, &requests, self.depths[variant])?;
        }
        Ok(round)
    }

    /// Returns the numbers of runs per round: as recorded, and with the remedy. `None` if the runs
    /// are too few for `rounds` rounds. `recorded_seconds`: mean recorded wait of a read. Each run
    /// has at least one request, so more runs than the depth fill the queue.
    fn run_counts(
        &self,
        runs: &[OpenRun],
        rounds: usize,
        recorded_seconds: f64,
    ) -> Option<[usize; 2]> {
        let reads = runs.iter().map(|run| run.reads).sum::<u64>() as f64;
        let reads_per_run = reads / runs.len().max(1) as f64;
        let run_seconds = (recorded_seconds * reads_per_run).max(1e-9);
        // Number of runs as recorded that take `ROUND_TIME`, one after the other.
        let aimed_count = (ROUND_TIME.as_secs_f64() / run_seconds) as usize;
        // Minimum numbers of runs. The first requests of a queue have no others in front of
        // them. More requests than the depth reduce their part of the time. The factors and
        // the minimum of 4 runs are chosen.
        let [count_min, remedy_count_min] = [4 + self.depths[0], (2 * self.depths[1]).max(4)];
        let runs_per_round = runs.len() / rounds;
        // As recorded: at most a third of the runs, except for the minimum.
        let count = aimed_count.clamp(count_min, (runs_per_round / 3).max(count_min));
        // With the remedy: up to three times the aimed number, and eight times its own minimum.
        let remedy_count = (runs_per_round.saturating_sub(count))
            .min((3 * aimed_count).clamp(remedy_count_min, 8 * remedy_count_min));
        (remedy_count >= remedy_count_min).then_some([count, remedy_count])
    }
}

/// Returns the reason for an unknown gain where the runs are too few: the number of their reads,
/// and of the runs if these are fewer.
fn too_few_text(runs: &[OpenRun]) -> String {
    let reads: u64 = runs.iter().map(|run| run.reads).sum();
    let run_count = runs.len() as u64;
    let ranges = match run_count < reads {
        true => format!(" in {run_count} contiguous ranges"),
        false => String::new(),
    };
    format!("{reads} reads of files that are still there{ranges} are too few to measure")
}

/// Returns the ratio of the recorded time of a read to its present time, at most 1. It is below 1
/// where the storage is slower now. Recorded waits lack the processor time, which is added. The
/// minimum of the present time avoids a division by 0.
fn recorded_part(present_seconds: f64, recorded_seconds: f64) -> f64 {
    ((recorded_seconds + PROCESSOR_SECONDS) / present_seconds.max(1e-9)).min(1.0)
}

/// Run of an open file.
#[derive(Clone, Copy, Debug)]
struct OpenRun {
    /// Index into the open files.
    file: usize,
    /// Offset of the first read in bytes.
    offset: u64,
    /// Bytes of all reads.
    bytes: u64,
    /// Number of recorded reads.
    reads: u64,
}

/// Opens the files of a sample past the page cache, and returns the runs in them. At most
/// [`FILES_MAX`] files are opened.
///
/// # Errors
/// As text. No file is the recorded one, or none can be read past the page cache: the reason is of
/// the last file. Or the devices of the opened files have too few of the sampled reads.
fn open_files(sample: &SampledWaits) -> Result<(Vec<File>, Vec<OpenRun>), String> {
    let mut reason = "it has no file".to_owned();
    let (mut files, mut devices) = (Vec::new(), BTreeSet::new());
    let mut indexes = vec![None; sample.files.len()];
    for (sampled, index) in sample.files.iter().zip(&mut indexes) {
        if files.len() == FILES_MAX {
            break;
        }
        match open_direct(sampled) {
            Ok(file) => {
                *index = Some(files.len());
                files.push(file);
                devices.insert(sampled.device);
            }
            Err(error) => reason = format!("{}: {error}", sampled.path),
        }
    }
    if files.is_empty() {
        return Err(reason);
    }
    let open_run = |run: &SampledRun| {
        let file = indexes[run.file]?;
        Some(OpenRun { file, offset: run.offset, bytes: run.bytes, reads: run.reads })
    };
    let is_measured = |run: &&SampledRun| devices.contains(&sample.files[run.file].device);
    let measured: u64 = sample.runs.iter().filter(is_measured).map(|run| run.reads).sum();
    let all: u64 = sample.runs.iter().map(|run| run.reads).sum();
    if (measured as f64) < MEASURED_PART_MIN * all as f64 {
        return Err(format!("of the files on another device, none can be read ({reason})"));
    }
    Ok((files, sample.runs.iter().filter_map(open_run).collect()))
}

/// Opens a recorded file for direct reads. It may have grown since: the recorded reads are still
/// within it.
///
/// # Errors
/// The file is not the recorded one, cannot be opened, or has no direct reads.
pub(super) fn open_direct(recorded: &SampledFile) -> io::Result<File> {
    open_recorded(recorded, direct_reads::open)
}

/// Opens a recorded file by `open`.
///
/// # Errors
/// The file is not the recorded one, or cannot be opened.
pub(super) fn open_recorded(
    recorded: &SampledFile,
    open: impl Fn(&Path) -> io::Result<File>,
) -> io::Result<File> {
    let changed = || io::Error::other("the file is not the recorded one");
    // A pipe or a device of this name is not opened: that may wait, or have an effect.
    let path = path_of_text(&recorded.path);
    let metadata = std::fs::metadata(&path)?;
    let is_same = metadata.is_file()
        && (recorded.inode == 0 || recorded.inode == metadata.ino())
        && recorded.bytes.is_none_or(|bytes| bytes <= metadata.len());
    if !is_same {
        return Err(changed());
    }
    let file = open(&path)?;
    let opened = file.metadata()?;
    match (opened.dev(), opened.ino()) == (metadata.dev(), metadata.ino()) {
        true => Ok(file),
        false => Err(changed()),
    }
}

/// Splits a run into requests of whole pages. Each is for `piece_bytes` bytes of the run, or for
/// the mean size of its reads without `piece_bytes`. The last one is for the rest. A run without
/// bytes has one request, of a page. Each request stands for an equal part of the reads.
fn split_into_requests(run: &OpenRun, piece_bytes: Option<u64>) -> Vec<Request> {
    let piece_bytes =
        piece_bytes.unwrap_or(run.bytes / run.reads.max(1)).clamp(1, run.bytes.max(1));
    let piece_count = run.bytes.div_ceil(piece_bytes).max(1);
    let piece = |index: u64| {
        let offset = run.offset + index * piece_bytes;
        let pages = PageRange::covering(offset, piece_bytes.min(run.offset + run.bytes - offset));
        Request {
            file: run.file,
            offset: pages.first * PAGE_BYTES,
            bytes: pages.count().max(1) * PAGE_BYTES,
            reads: run.reads as f64 / piece_count as f64,
        }
    };
    (0..piece_count).map(piece).collect()
}

/// Makes a request for a recorded read one for a part of it. `bytes`: mean size of a part.
/// `parts_per_read`: number of parts of a read.
fn shorten(request: &mut Request, (bytes, parts_per_read): (u64, f64)) {
    request.bytes = bytes.next_multiple_of(PAGE_BYTES).min(request.bytes);
    request.reads /= parts_per_read;
}

/// Compares the measured time of a read with its wait in the recording. A read also takes processor
/// time, at most [`PROCESSOR_SECONDS`], which makes only the measured time longer. It is therefore
/// added to the upper limit alone. A recorded time of 0 counts as a picosecond, for the division.
///
/// # Errors
/// As text: they differ by more than [`CHANGE_MAX`].
pub(super) fn check_unchanged(measured_seconds: f64, recorded_seconds: f64) -> Result<(), String> {
    let change = measured_seconds / recorded_seconds.max(1e-12);
    let change_max = CHANGE_MAX + PROCESSOR_SECONDS / recorded_seconds.max(1e-12);
    match (1.0 / CHANGE_MAX..=change_max).contains(&change) {
        true => Ok(()),
        false => Err(format!("the same reads take {change:.2} times as long as in the recording")),
    }
}

/// Number of rounds that are left out on each side of the range: one if all [`ROUNDS`] were made.
/// One delay of the machine must not hide a gain that all other rounds have.
fn outliers_per_side(rounds: usize) -> usize {
    usize::from(rounds >= ROUNDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// By hand: 40 KiB from offset 2 KiB, in five reads of 8 KiB, in pieces of 16 KiB, and as one
    /// piece. The first read, from 2 to 10 KiB, needs the pages from 0 to 12 KiB.
    #[test]
    fn run_is_split_into_requests_of_whole_pages() {
        let run = OpenRun { file: 2, offset: 2 * KIB, bytes: 40 * KIB, reads: 5 };
        let request = |offset_kib, size_kib, reads| Request {
            file: 2,
            offset: offset_kib * KIB,
            bytes: size_kib * KIB,
            reads,
        };
        let recorded = [0, 8, 16, 24, 32].map(|offset_kib| request(offset_kib, 12, 1.0));
        assert_eq!(split_into_requests(&run, None), recorded);
        let reads = 5.0 / 3.0;
        let pieces = [request(0, 20, reads), request(16, 20, reads), request(32, 12, reads)];
        assert_eq!(split_into_requests(&run, Some(16 * KIB)), pieces);
        assert_eq!(split_into_requests(&run, Some(u64::MAX)), [request(0, 44, 5.0)]);
    }

    /// 399 reads of 512 bytes in a row are one range. Two single reads are two.
    #[test]
    fn too_few_reads_are_counted_as_reads() {
        let run = |offset, reads| OpenRun { file: 0, offset, bytes: reads * 512, reads };
        let text = "399 reads of files that are still there in 1 contiguous ranges are too few";
        assert!(too_few_text(&[run(0, 399)]).starts_with(text), "{}", too_few_text(&[run(0, 399)]));
        let text = "2 reads of files that are still there are too few to measure";
        assert_eq!(too_few_text(&[run(0, 1), run(1 << 20, 1)]), text);
    }

    /// One file is of a device with another file that is gone. The only file of a second device is
    /// gone too.
    #[test]
    fn gain_of_reads_of_a_device_without_a_file_is_unknown() {
        let path = std::env::current_exe().unwrap().with_file_name("gain-devices");
        std::fs::write(&path, vec![7; 8192]).unwrap();
        let file = |path: &str, device| SampledFile {
            path: path.to_owned(),
            device,
            inode: 0,
            bytes: None,
        };
        // A tenth of the reads are of the device without a file, or a fifth.
        let opened = [9, 4].map(|reads| {
            let runs = [(0, reads - 1), (1, 1), (2, 1)];
            let runs = runs.map(|(file, reads)| SampledRun { file, offset: 0, bytes: 4096, reads });
            let sample = SampledWaits {
                files: vec![file(path.to_str().unwrap(), 1), file("/gone", 1), file("/gone", 2)],
                runs: runs.to_vec(),
                ..SampledWaits::default()
            };
            open_files(&sample).map(|(files, runs)| (files.len(), runs.len()))
        });
        let has_direct_reads = direct_reads::open(&path).is_ok();
        std::fs::remove_file(&path).unwrap();
        if !has_direct_reads {
            return println!("skipped: this file system has no direct reads");
        }
        assert_eq!(opened[0], Ok((1, 1)));
        let reason = opened[1].as_ref().unwrap_err();
        assert!(reason.starts_with("of the files on another device"), "{reason}");
    }

    /// One of five rounds on each side is an outlier, none of three.
    #[test]
    fn one_round_of_five_may_be_an_outlier() {
        assert_eq!([3, 4, 5].map(outliers_per_side), [0, 0, 1]);
    }

    /// By hand: a gain of 0.2 s counts next to a spread of 0.1 s, and is unknown next to one of
    /// 0.3 s. A gain of 2 % is none.
    #[test]
    fn gain_within_its_spread_is_unknown() {
        let gain = |saved_seconds, low, high| Gain::Measured {
            with: String::new(),
            saved_seconds,
            low,
            high,
            requests: 9,
        };
        let finding_seconds = 1.0;
        assert!(!gain(0.2, 0.15, 0.25).is_none(finding_seconds));
        let uncertain = gain(0.2, 0.05, 0.35);
        assert!(uncertain.is_uncertain() && !uncertain.is_none(finding_seconds));
        let Gain::Unknown(reason) = uncertain.if_certain() else { panic!("the rounds differ") };
        assert!(reason.contains("from 0.05 to 0.35 s"), "{reason}");
        let certain = gain(0.2, 0.15, 0.25);
        assert_eq!(certain.clone().if_certain(), certain);
        assert!(gain(0.02, 0.019, 0.021).is_none(finding_seconds));
        assert!(gain(-0.2, -0.2, -0.2).is_none(finding_seconds));
    }

    /// By hand: reads of 1 ms that take 2 ms now count half, with the processor time 51 %. A gain
    /// of 1.9 ms a read is then below the recorded wait. Faster storage changes nothing.
    #[test]
    fn slower_storage_saves_no_more_than_was_recorded() {
        assert!((recorded_part(2e-3, 1e-3) - 0.51).abs() < 1e-9);
        assert_eq!(recorded_part(0.8e-3, 1e-3), 1.0);
    }
}
