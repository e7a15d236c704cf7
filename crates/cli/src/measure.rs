//! `readpath devices measure`: real storage, measured gently, as a device that `--on` takes.
//!
//! A *cell* is one access pattern with a request size and a queue depth. A *doubtful* cell has
//! rounds that disagree, or contradicts another cell.

mod storage;
mod tell;

use std::num::NonZero;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use readpath::Direct;
use readpath::raw::RawFile;
use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;
use readpath_models::measure::{
    CellLimits, MeasurementCell, PositionGenerator, ProfileReliability, ProfileSample,
    STORAGE_BYTES_MIN, StorageShape, cells, describe, measure,
};
use readpath_models::measured::description::StorageDescription;
use readpath_record::notice;

use crate::exit::{CommandResult, Failure};
use crate::html::check_output_folder;
use crate::input;
use crate::output::print;
use crate::output_file::{check_not_needed, write_results};
use crate::progress::Interrupt;
use crate::scratch_files::ScratchFiles;
use storage::RealStorage;

/// `readpath devices measure`.
#[derive(Debug, Args)]
#[command(
    after_help = "Measures reads that bypass the page cache: requests of 4 KiB to 1 MiB, queue depths \
    of 1 to 64,\nrandom and sequential, near and far from each other, of several streams. At most 16 MiB \
    are in\nflight.\n\nEach cell is measured three times, and the median counts. If the time or the bytes \
    are used up\nbefore, each cell is measured at least once, with a few requests. Cells with different \
    rounds, and\ncells that contradict each other, are measured again. The spread is printed. If figures \
    still\ncontradict each other, no description is written (exit code 1): measure again on an idle \
    machine or\nfor longer (--seconds), or accept the figures (--noisy).\n\n\
    A file should be larger than the cache of its storage, and contiguous on a disk.\n\n\
    Example:\n  \
    readpath devices measure /dev/sdb --toml mine.toml\n  \
    readpath run JOB.fio --on measured,toml=mine.toml,nvme"
)]
pub struct MeasureArgs {
    /// File or block device, which is only read; or folder for a scratch file, which is removed
    /// afterwards
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// File for the device's description
    #[arg(long, value_name = "FILE")]
    pub toml: Option<PathBuf>,
    /// Approximate duration of the measurement, in seconds
    #[arg(long, value_name = "N", default_value = "60")]
    pub seconds: NonZero<u64>,
    /// Approximate limit of the bytes read, with a unit
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub bytes: String,
    /// Length of the scratch file that is created if PATH is a folder, with a unit
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub size: String,
    /// Seed of the read positions
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write the description even if its figures contradict each other
    #[arg(long, requires = "toml")]
    pub noisy: bool,
    /// Print one JSON document in place of the tables
    #[arg(long)]
    pub json: bool,
}

/// Bytes that stay free on the file system next to the scratch file. Chosen, not measured.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// Measures the storage, prints its costs, and writes its description.
pub fn run(args: &MeasureArgs) -> CommandResult {
    let scratch_bytes = input::size("--size", &args.size)?;
    let budget = Budget {
        time: Duration::from_secs(args.seconds.get()),
        bytes: input::size("--bytes", &args.bytes)?,
    };
    if budget.bytes == 0 {
        let problem = "--bytes 0: nothing would be measured; give some MiB, or leave it out";
        return Err(Failure::Usage(problem.to_owned()));
    }
    check_output_folder(args.toml.as_deref())?;
    check_not_needed(args.toml.as_deref(), [&args.path])?;
    let interrupt = Interrupt::listen();
    let mut scratch_files = ScratchFiles::default();
    let path = locate_storage(args, scratch_bytes, &mut scratch_files, &interrupt)?;
    let file = RawFile::builder().direct(Direct::Required).open(&path).map_err(|error| {
        Failure::usage_of(error, "its kernel cache would be measured; name a file on a disk")
    })?;
    let bytes = file.bytes().map_err(Failure::usage)? / PAGE_BYTES * PAGE_BYTES;
    if bytes < STORAGE_BYTES_MIN {
        return Err(Failure::usage_of(
            path.display(),
            format!(
                "has {bytes} bytes, and a profile needs {} MiB; name a larger file, a block \
                 device, or a folder, in which a file is made",
                STORAGE_BYTES_MIN >> 20
            ),
        ));
    }
    let samples = measure_all(&file, bytes, budget, args.seed, &interrupt)?;
    drop(scratch_files);
    let shape = StorageShape {
        name: args.path.display().to_string(),
        bytes: storage_bytes(&args.path, bytes),
        // The largest request of the cells.
        request_bytes_max: 1 << 20,
        // A description knows only these two alignments.
        alignment_bytes: if file.alignment_bytes() > 512 { 4096 } else { 512 },
    };
    let description = describe(shape, &samples).expect("every cell was measured");
    print_and_write(args, &description, &samples)
}

/// Prints the figures and their spread. Writes the description, if one is requested. If figures
/// contradict each other, it is written only with `--noisy`, else the command fails at the end.
fn print_and_write(
    args: &MeasureArgs,
    description: &StorageDescription,
    samples: &[ProfileSample],
) -> CommandResult {
    let reliability = ProfileReliability::of(samples);
    let warnings = tell::warnings(&reliability, samples);
    warnings.iter().for_each(notice::print);
    // The figures are printed in any case; a description with contradictions needs --noisy.
    let is_refused = !reliability.contradictions.is_empty() && !args.noisy;
    let written_path = args.toml.as_ref().filter(|_| !is_refused);
    let spread = tell::spread_sentence(&reliability);
    let printed = match args.json {
        true => tell::print_cells(samples),
        false => print(&format!("{}\n{spread}\n", tell::tables(description, samples))),
    };
    if let Some(path) = written_path {
        let mut head = vec![
            format!("`readpath devices measure {}` measured this.", args.path.display()),
            format!("It is what `--on measured,toml={}` takes.", path.display()),
            spread,
        ];
        head.extend(warnings);
        write_results(path, &description.to_toml(&head))?;
    }
    printed?;
    match (&args.toml, written_path) {
        (Some(path), None) => Err(Failure::Run(format!(
            "{}: not written: figures contradict each other, so other work disturbed the \
             measurement; measure again when the machine is quiet, give more --seconds, or --noisy",
            path.display()
        ))),
        _ if args.json => Ok(()),
        (_, Some(path)) => print(&format!(
            "\n{0}: written; `readpath run JOB.fio --on measured,toml={0}` runs on it\n",
            path.display()
        )),
        (None, None) => print("\n--toml FILE writes it as a device that --on takes\n"),
    }
}

/// Limits of the measurement.
#[derive(Clone, Copy)]
struct Budget {
    /// Duration of the whole measurement.
    time: Duration,
    /// Bytes that all reads together may request. The first round may exceed both limits.
    bytes: u64,
}

/// Number of rounds over all cells, as far as the time permits: the fewest with a median.
const ROUNDS: usize = 3;

/// Number of times that doubtful cells are measured again. Chosen, not measured.
const REPEATS_MAX: usize = 4;

/// Divisor of the time and bytes reserved for doubtful cells: a fifth. Chosen, not measured.
const REPEAT_BUDGET_DIVISOR: u32 = 5;

/// Measurements of all cells, and the remaining byte budget.
struct Rounds<'a> {
    /// The measured file or block device.
    file: &'a RawFile,
    /// Size of the file.
    bytes: u64,
    /// Seed from which each measurement derives its own.
    seed: u64,
    /// Ends the measurement early.
    interrupt: &'a Interrupt,
    /// Cells to measure, in the order of a round.
    cells: Vec<MeasurementCell>,
    /// Samples of each cell, one per measurement.
    rounds: Vec<Vec<ProfileSample>>,
    /// Rest of the limit of bytes read.
    bytes_left: u64,
    /// Number of measurements so far, from which each gets its own seed.
    measurement_count: u64,
}

impl Rounds<'_> {
    /// Measures the cell at `cell_index` once more, for at most `time_max` and `bytes_max` bytes.
    /// Adds the sample to its rounds, and takes the bytes of all its reads from the rest of the
    /// limit, also of reads that only fill or empty the queue.
    ///
    /// # Errors
    /// A read failed, memory or direct I/O is not available, or the user interrupted the run.
    fn measure_cell(
        &mut self,
        cell_index: usize,
        time_max: Duration,
        bytes_max: u64,
    ) -> CommandResult {
        let cell = self.cells[cell_index];
        let span_ns = u64::try_from(time_max.as_nanos()).unwrap_or(u64::MAX);
        let limits = CellLimits { span_ns, bytes: bytes_max };
        let seed = splitmix::mixed(self.seed.wrapping_add(self.measurement_count));
        self.measurement_count += 1;
        let mut storage = RealStorage::new(self.file, cell, self.interrupt)?;
        let positions = PositionGenerator::new(cell, self.bytes, seed);
        let sample = measure(cell, positions, limits, &mut storage)?;
        self.bytes_left = self.bytes_left.saturating_sub(storage.requested_bytes());
        self.rounds[cell_index].push(sample);
        Ok(())
    }

    /// Returns the median round of each cell.
    fn samples(&self) -> Vec<ProfileSample> {
        self.rounds.iter().cloned().filter_map(ProfileSample::middle).collect()
    }

    /// Measures doubtful cells again, at most [`REPEATS_MAX`] times, until none is left, or the
    /// bytes or the `time` since `start` are spent. Each measurement gets an equal share of the
    /// rest, as if all repetitions followed.
    fn measure_doubtful(&mut self, start: Instant, time: Duration) -> CommandResult {
        for repeat in 0..REPEATS_MAX {
            let doubtful = ProfileReliability::of(&self.samples()).doubtful();
            for (index, cell) in doubtful.iter().enumerate() {
                let time_left = time.saturating_sub(start.elapsed());
                if time_left.is_zero() || self.bytes_left == 0 {
                    return Ok(());
                }
                let cell_index = self
                    .cells
                    .iter()
                    .position(|known| known == cell)
                    .expect("a doubtful cell is one of the measured cells");
                let remaining_measurements =
                    ((doubtful.len() - index) * (REPEATS_MAX - repeat)) as u32;
                self.measure_cell(
                    cell_index,
                    time_left / remaining_measurements,
                    self.bytes_left / u64::from(remaining_measurements),
                )?;
            }
        }
        Ok(())
    }
}

/// Measures every cell in several rounds, each with its share of the remaining time and bytes. Then
/// measures doubtful cells again. `bytes` is the size of the file.
fn measure_all(
    file: &RawFile,
    bytes: u64,
    budget: Budget,
    seed: u64,
    interrupt: &Interrupt,
) -> Result<Vec<ProfileSample>, Failure> {
    let cells = cells(bytes);
    let count = cells.len();
    let (rounds, bytes_left) = (vec![Vec::new(); count], budget.bytes);
    let mut measurement =
        Rounds { file, bytes, seed, interrupt, cells, rounds, bytes_left, measurement_count: 0 };
    let bar = ProgressBar::new((count * ROUNDS) as u64);
    let start = Instant::now();
    let rounds_time = budget.time - budget.time / REPEAT_BUDGET_DIVISOR;
    let repeat_bytes = budget.bytes / u64::from(REPEAT_BUDGET_DIVISOR);
    for measurement_index in 0..count * ROUNDS {
        let time_left = rounds_time.saturating_sub(start.elapsed());
        let rounds_bytes_left = measurement.bytes_left.saturating_sub(repeat_bytes);
        // The first round measures every cell, even when the time or bytes are spent. Its limits
        // are then 0, with which a measurement makes its fewest requests.
        if measurement_index >= count && (time_left.is_zero() || rounds_bytes_left == 0) {
            break;
        }
        let measurements_left = (count * ROUNDS - measurement_index) as u32;
        measurement.measure_cell(
            measurement_index % count,
            time_left / measurements_left,
            rounds_bytes_left / u64::from(measurements_left),
        )?;
        bar.inc(1);
    }
    measurement.measure_doubtful(start, budget.time)?;
    bar.finish_and_clear();
    Ok(measurement.samples())
}

/// Returns the size of the storage in bytes: for a block device `measured_bytes`, its own size; for
/// a file or folder the size of its file system. A larger job thus fits on the described device. A
/// file system of unknown size counts as `measured_bytes`, the least result.
fn storage_bytes(path: &Path, measured_bytes: u64) -> u64 {
    let is_device = std::fs::metadata(path).is_ok_and(|data| data.file_type().is_block_device());
    match rustix::fs::statvfs(path) {
        Ok(file_system) if !is_device => (file_system.f_blocks * file_system.f_frsize / PAGE_BYTES
            * PAGE_BYTES)
            .max(measured_bytes),
        _ => measured_bytes,
    }
}

/// Returns the named file or block device. For a folder, creates a scratch file of `scratch_bytes`
/// bytes there, and adds it to `scratch_files`.
fn locate_storage(
    args: &MeasureArgs,
    scratch_bytes: u64,
    scratch_files: &mut ScratchFiles,
    interrupt: &Interrupt,
) -> Result<PathBuf, Failure> {
    let path = args.path.as_path();
    let failure = |error: std::io::Error| Failure::usage_of(path.display(), error);
    let kind = std::fs::metadata(path).map_err(failure)?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(path.to_path_buf());
    }
    if !kind.is_dir() {
        let problem = "is no file, block device or folder; name one";
        return Err(Failure::usage_of(path.display(), problem));
    }
    if scratch_bytes < STORAGE_BYTES_MIN {
        return Err(Failure::Usage(format!(
            "--size {}: a profile needs a file of at least {} MiB",
            args.size,
            STORAGE_BYTES_MIN >> 20
        )));
    }
    let file_system = rustix::fs::statvfs(path).map_err(|error| failure(error.into()))?;
    let free_bytes = file_system.f_bavail * file_system.f_frsize;
    let needed_bytes = scratch_bytes.saturating_add(FREE_BYTES_MIN);
    if free_bytes < needed_bytes {
        let problem = format!(
            "has {} MiB free, and the file to be read needs {}; give a smaller --size",
            free_bytes >> 20,
            needed_bytes >> 20
        );
        return Err(Failure::usage_of(path.display(), problem));
    }
    let file = path.join(format!("readpath-profile-{}", std::process::id()));
    scratch_files.add(&file, scratch_bytes, args.seed, interrupt)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use readpath_models::measure::ProfileAccess;

    use super::*;

    /// A cell of depth 4, at its limits from the start: 4 blocks fill the queue, 8 are its sample,
    /// and 3 are in flight at the end. These are 15 blocks of 4 KiB. A limit of 20 blocks holds for
    /// all its reads.
    #[test]
    fn reads_that_fill_and_empty_the_queue_count_toward_the_limit() {
        let name = format!("readpath-measure-test-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, vec![1; STORAGE_BYTES_MIN as usize]).unwrap();
        let file = RawFile::builder().open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let cell = MeasurementCell { access: ProfileAccess::Random, bytes: 4096, depth: 4 };
        let mut rounds = Rounds {
            file: &file,
            bytes: STORAGE_BYTES_MIN,
            seed: 1,
            interrupt: &Interrupt::default(),
            cells: vec![cell],
            rounds: vec![Vec::new()],
            bytes_left: 1 << 20,
            measurement_count: 0,
        };
        let (time_max, bytes_max) = (Duration::ZERO, 0);
        assert!(rounds.measure_cell(0, time_max, bytes_max).is_ok());
        assert_eq!(rounds.rounds[0][0].requests, 8);
        assert_eq!(rounds.bytes_left, (1 << 20) - 15 * 4096);
        let (time_max, bytes_max) = (Duration::from_secs(600), 20 * 4096);
        assert!(rounds.measure_cell(0, time_max, bytes_max).is_ok());
        assert_eq!(rounds.bytes_left, (1 << 20) - 35 * 4096);
    }
}
